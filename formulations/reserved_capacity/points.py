"""The reserved-capacity problem as arrays: sources of demand, sinks of capacity, purchases, and what must survive.

Every method reads these tables. Units: demand in requests per second (where machines serve less than 0.01 or more than
10,000 of them, in `unit` of them, so that a solver's absolute tolerances are as small next to numbers as elsewhere),
capacity in machines, money in USD/month (730 h) averaged over the horizon.

    source i  (region r, service k, whether its demand may leave the region)
    sink j    (region s, machine type)
    row t     (scenario, quarter, hour); its weight is its share of time, and the weights sum to one
    column c  (sink, term, first quarter) a reservation that can be bought
    option o  (sink, market) machines by the hour

`work[i, j]` is machines needed in j per request/s of i: κ·[r ≠ s]/(throughput·utilisation). Where work[i, j] =
load[i]/strength[j] on every allowed pair ("pure": one service or proportional throughputs, and κ = 1), requests can
be measured in one unit everywhere and flows are projected out by cuts (SK §2.2; docs/reserved-capacity-cuts.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from formulations.reserved_capacity.problem import (
    HOURS_PER_MONTH,
    QUARTERS_OF_TERM,
    ReservedCapacity,
    ReservedCase,
    quarters_charged,
)
from optmodels.arrays import Array, Index, Mask
from optmodels.catalog.types import MARKETS, Market
from optmodels.solver.light_imports import graphs

MOST_SETS = 30_000


@dataclass(frozen=True)
class Guard:
    """Something every row must survive: demand times `keep` (plus deviations) with the surviving capacity.

    A forwarding ceiling does not hold users in a region that is lost: what stays at home else counts as the demand of
    the source next to it that may leave, `moved`.
    """

    name: str
    keep: float
    alive: Array  # (J,) 1 or 0: share of a sink's reserved machines that survive
    extra: Array  # (J,) machines bought by the hour that may be counted on
    deviation: float = 0.0
    budget: int = 0  # regions that may deviate at once
    moved: Index | None = None  # (I,), source as whose each source's demand counts; None: its own

    def demand(self, demand: Array) -> Array:
        """Demand (H, I) as it arises after the loss, unreduced."""
        if self.moved is None:
            return demand
        after = np.zeros_like(demand)
        np.add.at(after.T, self.moved, demand.T)
        return after


@dataclass(frozen=True, repr=False)
class ReservedTables:
    """See the module's docstring. I sources, J sinks, H rows, C columns, O hourly options, Q quarters."""

    case: ReservedCase
    source_region: Index
    source_service: Index
    demand: Array  # (H, I)
    weight: Array  # (H,)
    quarter: Index  # (H,)
    scenario: Index  # (H,)
    hour: Index  # (H,)
    quarters: int
    sink_region: Index
    sink_machine: Index
    reach: Mask  # (I, J)
    work: Array  # (I, J), machines per request/s; 0 where not allowed
    column_sink: Index
    column_term: tuple[Market, ...]
    column_quarter: Index
    column_active: Array  # (C, Q)
    column_usd_per_month: Array  # (C,), with the share charged for the time after the horizon
    column_usd_per_hour: Array
    column_most: Array  # (C,), counts
    column_step: Index
    column_minimum: Index
    sink_most: Array  # (J,): reserved machines at any time, all terms
    option_sink: Index
    option_market: tuple[Market, ...]
    option_usd_per_hour: Array  # (O,), per machine that works
    option_most: Array  # (O,), machines that work
    penalty: Array  # (I,), USD per hour per request/s unserved; infinite: must be served
    egress: Array  # (I, J), USD per hour per request/s of i served in j: what its data cost on the way
    guards: tuple[Guard, ...]
    unit: float = 1.0  # requests/s that one unit of demand is
    dispatched: dict[bytes, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # the last one

    def __repr__(self) -> str:
        return f"<ReservedTables {self.case.problem.name}: {len(self.column_sink)} columns, {len(self.demand)} rows>"

    @property
    def shortfall(self) -> float:
        """USD/h per unit of demand that marks what cannot be served at all: far above any way to serve or forgo it."""
        usd = np.concatenate([self.option_usd_per_hour, self.column_usd_per_hour, [0.0]]).max()
        forgone = self.penalty[np.isfinite(self.penalty)].max(initial=0.0)
        dearest = float(usd * self.work.max(initial=0.0) + self.egress.max(initial=0.0) + forgone)
        return 1e4 * dearest if dearest else 1.0

    @cached_property
    def pure(self) -> tuple[Array, Array] | None:
        """(load, strength) with work = load/strength on every allowed pair, or None."""
        load, strength = np.full(len(self.reach), np.nan), np.full(self.reach.shape[1], np.nan)
        for start in range(len(load)):
            if not np.isnan(load[start]) or not self.reach[start].any():
                continue
            load[start] = 1.0
            stack: list[tuple[bool, int]] = [(True, start)]
            while stack:
                is_source, x = stack.pop()
                if is_source:
                    for j in np.flatnonzero(self.reach[x] & np.isnan(strength)):
                        strength[j] = load[x] / self.work[x, j]
                        stack.append((False, int(j)))
                else:
                    for i in np.flatnonzero(self.reach[:, x] & np.isnan(load)):
                        load[i] = self.work[i, x] * strength[x]
                        stack.append((True, int(i)))
        load, strength = np.nan_to_num(load, nan=1.0), np.nan_to_num(strength, nan=1.0)
        fits = (
            np.abs(self.work * strength - load[:, None])[self.reach]
            <= 1e-9 * np.broadcast_to(load[:, None], self.reach.shape)[self.reach]
        )
        return (load, strength) if fits.all() else None

    @property
    def costs_by_the_hour(self) -> bool:
        """Whether anything but reservations costs: hourly machines, unserved demand, egress."""
        return bool(len(self.option_sink) or np.isfinite(self.penalty).any() or self.egress.any())

    @property
    def friction(self) -> bool:
        """Whether forwarding costs anything: egress or a lost prefix cache."""
        return bool(self.egress.any()) or any(s.kappa > 1 for s in self.case.problem.services)

    def without_friction(self) -> ReservedTables:
        """The same with forwarding for nothing (κ = 1, no egress): a relaxation."""
        kappa = np.array([s.kappa for s in self.case.problem.services])[self.source_service]
        local = self.source_region[:, None] == self.sink_region[None, :]
        work = np.where(local, self.work, self.work / kappa[:, None])
        return replace(self, work=work, egress=np.zeros_like(self.egress))

    def over(self, rows: Index, weight: Array) -> ReservedTables:
        """The same over some rows, with weights of their own."""
        return replace(self, demand=self.demand[rows], weight=weight, quarter=self.quarter[rows],
                       scenario=self.scenario[rows], hour=self.hour[rows])  # fmt: skip

    def without(self, *kinds: Literal["column", "option"]) -> ReservedTables:
        """The same with nothing to reserve (column), nothing to buy by the hour (option)."""
        names = [f.name for f in fields(self) if f.name.partition("_")[0] in kinds]
        nothing: dict[str, Any] = {name: getattr(self, name)[:0] for name in names}
        return replace(self, **nothing)

    def most_useful(self) -> Array:
        """Counts of every column beyond which another machine cannot help, (C,); no larger than offered.

        Twice what would serve the largest demand of the sources at once, before or after a loss, plus minimum, step.
        """
        deviation = max((g.deviation for g in self.guards), default=0.0)
        arises = [self.demand, *(g.demand(self.demand) for g in self.guards if g.moved is not None)]
        largest = np.max([demand.max(axis=0, initial=0.0) for demand in arises], axis=0)
        enough = 2 * (1 + deviation) * (largest @ self.work)
        return np.minimum(self.column_most, np.ceil(enough[self.column_sink]) + self.column_minimum + self.column_step)

    def reserved(self, counts: Array) -> Array:
        """Reserved machines by sink and quarter, (J, Q), of column counts (C,)."""
        held = np.zeros((len(self.sink_region), self.quarters))
        np.add.at(held, self.column_sink, counts[:, None] * self.column_active)
        return held


def build_tables(problem: ReservedCapacity) -> ReservedTables:
    """Tables of a problem."""
    case = problem.resolve()
    p = case.problem
    R, K = len(p.regions), len(p.services)
    T = len(case.demand_rps)

    # Sinks: every machine type where it stands.
    sink_machine, sink_region = np.nonzero(case.offered & case.allowed.any(axis=(0, 1)).T)
    J = len(sink_region)

    # Sources: a service's users in a region; the share that may not leave is a source of its own.
    regions, services, shares, stays = [], [], [], []
    losses = p.resilience.lose_any_region_keep is not None
    for k, service in enumerate(p.services):
        for r in range(R):
            if not case.demand_rps[:, r, k].any():
                continue
            parts = [(1.0, False)] if service.forwarding_ceiling >= 1 else [
                (1 - service.forwarding_ceiling, True), (service.forwarding_ceiling, False)]  # fmt: skip
            for share, stays_here in parts:
                if share > 0 or (losses and not stays_here):  # after a loss, who else stays may leave
                    regions.append(r)
                    services.append(k)
                    shares.append(share)
                    stays.append(stays_here)
    source_region, source_service = np.array(regions, dtype=np.intp), np.array(services, dtype=np.intp)
    stay = np.array(stays, dtype=bool)
    local = source_region[:, None] == sink_region[None, :]
    pair = source_service[:, None], source_region[:, None], sink_region[None, :], sink_machine[None, :]
    reach, rate = case.allowed[pair], case.pair_rps[pair] * p.utilisation
    reach &= local | ~stay[:, None]
    kappa = np.array([s.kappa for s in p.services])
    factor = np.where(local, 1.0, kappa[source_service][:, None] if K else 1.0)
    work = np.where(reach, factor / np.where(rate > 0, rate, 1.0), 0.0)

    # Rows: scenarios × quarters × hours.
    growth = p.growth
    Q = growth.quarters if growth else 1
    scenarios = p.uncertainty.scenarios
    base = case.demand_rps[:, source_region, source_service] * np.array(shares)
    blocks, weights, quarter, scenario, hour = [], [], [], [], []
    for w in range(max(1, len(scenarios))):
        factors = np.ones(R)
        probability = 1.0
        if scenarios:
            probability = scenarios[w].probability
            factors = np.array([scenarios[w].factor * scenarios[w].by_region.get(n, 1.0) for n in case.regions])
        for q in range(Q):
            blocks.append(base * factors[source_region] * (growth.factor_per_quarter**q if growth else 1.0))
            weights.append(np.full(T, probability / (T * Q)))
            quarter.append(np.full(T, q))
            scenario.append(np.full(T, w))
            hour.append(np.arange(T))

    # Purchases.
    sinks, terms, first, active, charged, usd, most, step, minimum = [], [], [], [], [], [], [], [], []
    o_sink, o_market, o_usd, o_most = [], [], [], []
    for j in range(J):
        i, s = int(sink_machine[j]), int(sink_region[j])
        m = p.machines[i]
        for t in MARKETS:
            price = case.usd_per_hour[i, s, MARKETS.index(t)]
            if t not in p.terms or np.isnan(price):
                continue
            if t in QUARTERS_OF_TERM:
                for q in range(Q):
                    on = np.zeros(Q)
                    on[q : q + QUARTERS_OF_TERM[t]] = 1.0
                    sinks.append(j)
                    terms.append(t)
                    first.append(q)
                    active.append(on)
                    charged.append(quarters_charged(growth, t, q))
                    usd.append(price)
                    most.append(case.reservable[i, s])
                    step.append(m.step)
                    minimum.append(m.minimum)
            else:
                lost = m.spot_lost_share if t == "spot" else 0.0
                cap = case.spot_cap[i, s] if t == "spot" else case.on_demand_cap[i, s]
                if cap > 0:
                    o_sink.append(j)
                    o_market.append(t)
                    o_usd.append(price / (1 - lost))
                    o_most.append(cap * (1 - lost))
    column_active = np.array(active).reshape(len(sinks), Q)
    per_hour = np.array(usd, dtype=float)
    penalty = np.array([
        np.inf if (c := p.services[k].unserved_usd_per_request) is None else c * 3600.0 for k in source_service
    ])  # fmt: skip
    unit = _unit(rate[reach], np.concatenate(blocks))
    by_pair = case.egress_usd_per_request[source_service[:, None], source_region[:, None], sink_region[None, :]]
    egress = np.where(reach, 3600.0 * by_pair, 0.0) * unit
    tables = ReservedTables(
        case=case, source_region=source_region, source_service=source_service,
        demand=np.concatenate(blocks) / unit, weight=np.concatenate(weights),
        quarter=np.concatenate(quarter).astype(np.intp), scenario=np.concatenate(scenario).astype(np.intp),
        hour=np.concatenate(hour).astype(np.intp), quarters=Q,
        sink_region=sink_region, sink_machine=sink_machine, reach=reach, work=work * unit,
        column_sink=np.array(sinks, dtype=np.intp), column_term=tuple(terms),
        column_quarter=np.array(first, dtype=np.intp), column_active=column_active,
        column_usd_per_month=per_hour * np.array(charged) / Q * HOURS_PER_MONTH,
        column_usd_per_hour=per_hour, column_most=np.array(most, dtype=float),
        column_step=np.array(step, dtype=np.intp), column_minimum=np.array(minimum, dtype=np.intp),
        sink_most=case.reservable[sink_machine, sink_region],
        option_sink=np.array(o_sink, dtype=np.intp), option_market=tuple(o_market),
        option_usd_per_hour=np.array(o_usd, dtype=float), option_most=np.array(o_most, dtype=float),
        penalty=penalty * unit, egress=egress, guards=(), unit=unit,
    )  # fmt: skip
    object.__setattr__(tables, "guards", _guards(tables))
    return tables


def _unit(rates: Array, demand: Array) -> float:
    """Requests/s to count demand in: 1, or a power of two near the fastest machine's rate; near demand if none."""
    fastest = float(rates.max(initial=0.0)) or float(demand.max(initial=0.0))
    return 1.0 if fastest <= 0 or 0.01 <= fastest <= 1e4 else 2.0 ** round(np.log2(fastest))


def _guards(t: ReservedTables) -> tuple[Guard, ...]:
    p = t.case.problem
    J = len(t.sink_region)
    on_demand, everything = np.zeros(J), np.zeros(J)
    for o, j in enumerate(t.option_sink):
        everything[j] += t.option_most[o]
        if t.option_market[o] == "on_demand":
            on_demand[j] += t.option_most[o]
    counted = on_demand if p.resilience.count_on_demand else np.zeros(J)
    guards = []
    if p.resilience.lose_any_region_keep is not None:
        for s, name in enumerate(t.case.regions):
            alive = (t.sink_region != s).astype(float)
            if not alive.all() or not len(alive):
                guards.append(Guard(f"loss of {name}", p.resilience.lose_any_region_keep, alive,
                                    np.where(alive > 0, counted, 0.0), moved=_leaving(t, s)))  # fmt: skip
    if p.resilience.lose_spot_keep is not None:
        guards.append(Guard("loss of all spot machines", p.resilience.lose_spot_keep, np.ones(J), on_demand))
    worst = p.uncertainty.worst_case
    if worst is not None:
        whose = ("region", "its") if worst.regions == 1 else (f"{worst.regions} regions", "their")
        name = f"any {whose[0]} {worst.deviation:.0%} above {whose[1]} demand"
        guards.append(Guard(name, 1.0, np.ones(J), everything, worst.deviation, worst.regions))
    return tuple(guards)


def _leaving(t: ReservedTables, region: int) -> Index | None:
    """`Guard.moved` where a region is lost: the users who stay in it as those who may leave; None if none stays."""
    wide = t.reach.sum(axis=1)
    moved = np.arange(len(wide))
    for i in np.flatnonzero(t.source_region == region):
        twins = np.flatnonzero((t.source_region == region) & (t.source_service == t.source_service[i]))
        moved[i] = twins[wide[twins].argmax()]
    return moved if (moved != np.arange(len(wide))).any() else None


def deviations(t: ReservedTables, guard: Guard) -> list[Array]:
    """Factors on sources, (I,) each, for every largest set of regions that may deviate; one of ones without."""
    if not guard.budget:
        return [np.full(len(t.source_region), guard.keep)]
    regions = np.unique(t.source_region)
    ones = np.ones(len(t.source_region))
    size = min(guard.budget, len(regions))
    return [
        guard.keep * (ones + guard.deviation * np.isin(t.source_region, chosen).astype(float))
        for chosen in combinations(regions.tolist(), size)
    ]  # fmt: skip


def families(reach: Mask, most: int = MOST_SETS) -> list[Mask] | None:
    """The union-closed family of every connected part of a network, each (F, J); None if one has more than `most` sets.

    Parts share no sink, so a set's shortage is the sum over its parts: sets across parts state nothing new.
    """
    users = np.flatnonzero(reach.any(axis=1))
    own = reach[users].astype(float)
    found = []
    part = graphs().connected_components(sp.csr_array(own @ own.T), directed=False)[1] if len(users) else users
    for label in np.unique(part):
        family = union_closed(reach[users[part == label]], most)
        if family is None:
            return None
        found.append(family)
    return found


def union_closed(neighbours: Mask, most: int = MOST_SETS) -> Mask | None:
    """All unions of rows of `neighbours` (I, J) but the empty one, (F, J); None if there are more than `most`."""
    rows = {int.from_bytes(np.packbits(r).tobytes(), "big") for r in neighbours if r.any()}
    family = {0}
    for row in rows:
        family |= {z | row for z in family}
        if len(family) > most:
            return None
    family.discard(0)
    size = -(-neighbours.shape[1] // 8)
    packed = np.frombuffer(b"".join(z.to_bytes(size, "big") for z in sorted(family)), dtype=np.uint8)
    unpacked = np.unpackbits(packed.reshape(len(family), size), axis=1) if family else np.zeros((0, size * 8))
    return unpacked[:, : neighbours.shape[1]].astype(bool)
