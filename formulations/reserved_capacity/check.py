"""Independent check of a reserved-capacity plan, hour by hour: from the instance and the plan alone.

Shares no code with tables, formulation, dispatch or heuristics. Reach is recomputed from round trips and SLOs, machines
of every hour are added up from the plan, and demand is served again. First the regions with the fewest choices are
filled: a plan that passes is proved feasible. The hours left open go to max-flow (one service or one machine type, no
locality loss; scipy.sparse.csgraph). Else they are filled in other orders, then solved as linear programs by SciPy's
linprog. Everything else uses `optmodels.solver`, so that the check shares no solver code with the methods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from formulations.reserved_capacity.check_engines import check_engines
from formulations.reserved_capacity.plan import FlowLine, ReservedPlan
from formulations.reserved_capacity.problem import ReservedCapacity, ReservedCase, WorstCase
from optmodels.arrays import Array, Index
from optmodels.plans.findings import TOLERANCE, Findings
from optmodels.plans.outcome import CheckReport
from optmodels.solver.light_imports import graphs

MARKET_ORDER = ("on_demand", "spot", "reserved_1y", "reserved_3y")
TERM_QUARTERS = {"reserved_1y": 4, "reserved_3y": 12}
TRUSTED = {
    "plan.flows[].peak_requests_per_s": "flows hour by hour are not in the document; between their mean and"
    " what demand and machines allow is checked",
    "plan.pooled": "which way the plan was made; one of regions by themselves forwards nothing",
    "report.not_out_of_sample": "why other demand was not tried: what file the hours came of is not in the document",
}
CUT_SHORT = {"values of one more machine": {"report.values": "the clock left some of them out"}}
SOLVES = {"values of one more machine": ("report.values", -2e-6)}  # differences of two optima, each proved to 1e-6
MOST_SHOWN = 10
ROUNDING = 1e-12
BLOCK = 100  # hours in one max-flow
ORDERS = 4  # further orders in which rows are filled before each has a linear program


def _require(found: Findings, holds: bool, requirement: str, value: Any, limit: Any, unit: str = "") -> None:
    """Require that something holds; more than `MOST_SHOWN` violations would state no more."""
    if not holds and len(found.violations) < MOST_SHOWN:
        found.add(requirement, value, limit, unit)


@dataclass(frozen=True)
class _World:
    """Demand and machines of every row: scenario × quarter × hour, in that order."""

    weight: Array  # (H,) share of the time, adding up to one
    demand: Array  # (H, R, K) requests/s
    reserved: Array  # (H, R, I) machines
    hourly: dict[str, Array]  # market → (H, R, I) machines paid for
    unserved: Array  # (H, R, K)


def check(problem: ReservedCapacity, plan: Mapping[str, Any]) -> CheckReport:
    """Verify a plan against its instance.

    Returns:
        Every requirement broken (at most ten), with value and limit.
    """
    found = Findings()
    p = found.read(ReservedPlan, plan, "a reserved-capacity plan")
    if p is None:
        return found.report()
    case = problem.resolve()
    world = _world(found, problem, case, p)
    if world is not None:
        _money(found, problem, case, p, world)
        check_engines(found, problem, case, p)
        _purchases_offered(found, problem, case, p, world)
        net = _Network(problem, case)
        working = _hours(found, problem, case, world, net)
        _flows(found, case, p, world, net, working)
    return found.report()


def _world(found: Findings, problem: ReservedCapacity, case: ReservedCase, p: ReservedPlan) -> _World | None:
    T, R, K = case.demand_rps.shape
    machines = [m.machine for m in problem.machines]
    services = [s.service for s in problem.services]
    quarters = problem.growth.quarters if problem.growth else 1
    scenarios = problem.uncertainty.scenarios
    W = max(1, len(scenarios))
    demand = np.empty((W, quarters, T, R, K))
    for w in range(W):
        for q in range(quarters):
            demand[w, q] = case.demand_rps * (problem.growth.factor_per_quarter**q if problem.growth else 1.0)
            if scenarios:
                by_region = [scenarios[w].by_region.get(n, 1.0) * scenarios[w].factor for n in case.regions]
                demand[w, q] *= np.array(by_region)[:, None]
    reserved = np.zeros((quarters, R, len(machines)))
    for line in p.reservations:
        if line.region not in case.regions or line.machine not in machines or line.term not in TERM_QUARTERS:
            _require(found, False, "reservation of a machine, region and term of the problem", str(line), "known names")
            return None
        last = line.first_quarter + TERM_QUARTERS[line.term]
        _require(found, 0 <= line.first_quarter < quarters, "first quarter", line.first_quarter, quarters - 1)
        _require(found, line.count >= 0, "count", line.count, 0)
        reserved[max(0, line.first_quarter) : last, case.regions.index(line.region), machines.index(line.machine)] += (
            line.count
        )
    b, u = p.purchases, p.unserved
    columns = (b.scenario, b.quarter, b.hour, b.region, b.machine, b.market, b.machines)
    if (
        len({len(c) for c in columns}) > 1
        or len({len(c) for c in (u.scenario, u.quarter, u.hour, u.region, u.service, u.requests_per_s)}) > 1
    ):
        _require(found, False, "purchases and unserved as columns of one length", "unequal", "equal")
        return None
    shape = (W, quarters, T, R, len(machines))
    hourly = {m: np.zeros(shape) for m in ("on_demand", "spot")}
    unserved = np.zeros((W, quarters, T, R, K))
    try:
        region = {n: i for i, n in enumerate(case.regions)}
        machine = {n: i for i, n in enumerate(machines)}
        service = {n: i for i, n in enumerate(services)}
        at = (np.array(b.scenario, int), np.array(b.quarter, int), np.array(b.hour, int),
              np.array([region[x] for x in b.region], int), np.array([machine[x] for x in b.machine], int))  # fmt: skip
        for market, grid in hourly.items():
            mine = np.array([x == market for x in b.market], dtype=bool)
            np.add.at(grid, tuple(x[mine] for x in at), np.array(b.machines, float)[mine])
        np.add.at(unserved, (np.array(u.scenario, int), np.array(u.quarter, int), np.array(u.hour, int),
                             np.array([region[x] for x in u.region], int),
                             np.array([service[x] for x in u.service], int)),
                  np.array(u.requests_per_s, float))  # fmt: skip
    except (KeyError, IndexError) as error:
        _require(
            found,
            False,
            "purchases and unserved in hours, regions, machines and services of the problem",
            str(error),
            "",
        )
        return None
    _require(
        found, set(b.market) <= {"on_demand", "spot"}, "markets of hourly purchases", str(sorted(set(b.market))), ""
    )
    rows = W * quarters * T
    weight = [np.full(quarters * T, (s.probability if s else 1.0) / (quarters * T)) for s in (scenarios or (None,))]
    return _World(
        np.concatenate(weight), demand.reshape(rows, R, K), np.tile(np.repeat(reserved, T, axis=0), (W, 1, 1)),
        {m: g.reshape(rows, R, -1) for m, g in hourly.items()}, unserved.reshape(rows, R, K),
    )  # fmt: skip


def _money(found: Findings, problem: ReservedCapacity, case: ReservedCase, p: ReservedPlan, world: _World) -> None:
    quarters = problem.growth.quarters if problem.growth else 1
    total = after = committed = 0.0
    machines = [m.machine for m in problem.machines]
    for line in p.reservations:
        price = case.usd_per_hour[
            machines.index(line.machine), case.regions.index(line.region), MARKET_ORDER.index(line.term)
        ]
        _require(found, line.term in problem.terms, "term", line.term, ", ".join(problem.terms))
        _require(found, abs(price - line.usd_per_hour_each) <= 1e-9,
                      f"price of {line.machine} in {line.region}, {line.term}",
                      line.usd_per_hour_each, float(price), "USD/h")  # fmt: skip
        runs = min(quarters, line.first_quarter + TERM_QUARTERS[line.term]) - line.first_quarter
        total += line.count * float(price) * 730.0 * runs / quarters
        committed += line.count * float(price) * 2190.0 * TERM_QUARTERS[line.term]  # 2,190 hours a quarter
        after += line.count * float(price) * 2190.0 * (TERM_QUARTERS[line.term] - runs if problem.growth else 0)
    found.close("reserved cost", p.cost.reserved_usd_per_month, total, "USD/month", 1.0)
    commitments = (("commitments", p.cost.committed_usd, committed),
                   ("commitments beyond the horizon", p.cost.committed_beyond_horizon_usd, after))  # fmt: skip
    for what, stated, true in commitments:
        if stated is not None:  # plans of earlier versions do not state them
            found.close(what, stated, true, "USD", 1.0)
    beyond = problem.growth.beyond_horizon_charged * after / (3 * quarters) if problem.growth else 0.0
    found.close("cost beyond the horizon", p.cost.beyond_horizon_usd_per_month, beyond, "USD/month", 1.0)
    total += beyond
    for market, stated in (("on_demand", p.cost.on_demand_usd_per_month), ("spot", p.cost.spot_usd_per_month)):
        bought = np.einsum("h,hri->ri", world.weight, world.hourly[market])
        price = np.nan_to_num(case.usd_per_hour[:, :, MARKET_ORDER.index(market)].T)
        offered = ~np.isnan(case.usd_per_hour[:, :, MARKET_ORDER.index(market)].T)
        _require(found, not (bought[~offered] > 0).any(), f"{market} purchases where it has a price", "none there", "")
        _require(found, market in problem.terms or not bought.any(), "term", market, ", ".join(problem.terms))
        found.close(f"{market} cost", stated, float((bought * price).sum()) * 730.0, "USD/month", 1.0)
        total += float((bought * price).sum()) * 730.0
    unserved = 0.0
    for k, s in enumerate(problem.services):
        amount = float(world.weight @ world.unserved[:, :, k].sum(axis=1))
        _require(found, amount == 0 or s.unserved_usd_per_request is not None,
                      f"all of {s.service} is served", amount, 0.0, "requests/s")  # fmt: skip
        unserved += amount * 3600.0 * 730.0 * (s.unserved_usd_per_request or 0.0)
    found.close("cost of unserved demand", p.cost.unserved_usd_per_month, unserved, "USD/month", 1.0)
    egress = sum(line.egress_usd_per_month for line in p.flows)
    found.close("cost of egress", p.cost.egress_usd_per_month, egress, "USD/month", 1.0)
    found.close("objective", p.cost.total_usd_per_month, total + unserved + egress, "USD/month", 1.0)


def _purchases_offered(
    found: Findings, problem: ReservedCapacity, case: ReservedCase, p: ReservedPlan, world: _World
) -> None:
    names = case.regions
    for i, m in enumerate(problem.machines):
        for s, name in enumerate(names):
            held = float(world.reserved[:, s, i].max(initial=0.0))
            what = f"{m.machine} in {name}"
            _require(found, held == 0 or bool(case.offered[i, s]), f"{what} is offered", held, 0)
            _require(
                found, held <= case.reservable[i, s], f"reserved {what}", held, float(case.reservable[i, s]), "machines"
            )
            for market, cap in (("on_demand", case.on_demand_cap[i, s]), ("spot", case.spot_cap[i, s])):
                bought = float(world.hourly[market][:, s, i].max(initial=0.0))
                limit = cap * (1 + TOLERANCE) + 1e-9
                _require(found, bought <= limit, f"{market} {what}", bought, float(cap), "machines")
    for line in p.reservations:
        m = next(m for m in problem.machines if m.machine == line.machine)
        _require(found, line.count % m.step == 0, f"reservations of {m.machine} in steps", line.count, m.step)
        _require(found, not 0 < line.count < m.minimum, f"smallest reservation of {m.machine}", line.count, m.minimum)


def _hours(
    found: Findings, problem: ReservedCapacity, case: ReservedCase, world: _World, net: _Network
) -> Array:  # fmt: skip
    """Every hour serves its demand; after every loss its kept share. The machines that work, (H, R, I)."""
    lost = np.array([m.spot_lost_share for m in problem.machines])
    working = world.hourly["on_demand"] + world.hourly["spot"] * (1 - lost)
    served = world.demand - world.unserved
    _require(
        found,
        bool((served >= -TOLERANCE * world.demand.sum(axis=(1, 2), keepdims=True)).all()),
        "unserved at most the demand",
        "more",
        "",
    )
    working = world.reserved + working
    outcome = net.worst(np.maximum(served, 0.0), working, world.demand * net.ceilings, world.demand)
    _report(found, "demand is served", outcome, case)
    rules = problem.resilience
    everywhere = np.where(
        np.isnan(case.usd_per_hour[:, :, 0]) | ("on_demand" not in problem.terms), 0.0, case.on_demand_cap
    ).T
    if rules.lose_any_region_keep is not None:
        for s, name in enumerate(case.regions):
            if not case.offered[:, s].any():
                continue
            alive = world.reserved + (everywhere if rules.count_on_demand else 0.0)
            alive[:, s] = 0.0
            kept = rules.lose_any_region_keep * world.demand
            away = kept * net.ceilings
            away[:, s] = kept[:, s]  # there is no home to stay at
            said = f"{rules.lose_any_region_keep:.0%} of demand after the loss of {name}"
            _report(found, said, net.worst(kept, alive, away), case)
    if rules.lose_spot_keep is not None:
        outcome = net.worst(rules.lose_spot_keep * world.demand, world.reserved + everywhere)
        _report(found, f"{rules.lose_spot_keep:.0%} of demand without spot machines", outcome, case)
    worst = problem.uncertainty.worst_case
    if worst is not None:
        spot = np.where(np.isnan(case.usd_per_hour[:, :, 1]) | ("spot" not in problem.terms), 0.0,
                        case.spot_cap * (1 - lost)[:, None]).T  # fmt: skip
        users = np.flatnonzero(world.demand.any(axis=(0, 2)))
        machines = world.reserved + everywhere + spot
        _deviations(found, case, world, net, machines, worst, users.tolist(), np.arange(len(machines)), set())
    return working


def _deviations(
    found: Findings, case: ReservedCase, world: _World, net: _Network, machines: Array, worst: WorstCase,
    users: list[int], rows: Index, done: set[tuple[int, ...]],
) -> None:  # fmt: skip
    """Rows are served whichever regions of `users` exceed their demand, as many at once as may.

    A row served while all of them do is served whichever do. For the others: of `users` in one part more than may
    deviate at once, the one who does leaves a part out.
    """
    factor = np.ones(len(case.regions))
    factor[users] += worst.deviation
    demand = world.demand[rows] * factor[:, None]
    short, total = net.short(demand, machines[rows]), demand.sum(axis=(1, 2))
    left = np.flatnonzero(short > TOLERANCE * np.maximum(total, 1e-9))
    if not len(left) or len(found.violations) >= MOST_SHOWN:
        return
    if len(users) <= worst.regions:
        row = left[(short[left] / total[left]).argmax()]
        what = f"demand {worst.deviation:.0%} higher in {', '.join(case.regions[r] for r in users)}"
        _report(found, what, (int(rows[row]), float(short[row]), float(total[row])), case)
        return
    parts = np.array_split(users, worst.regions + 1)
    for x in range(len(parts)):
        rest = np.concatenate([*parts[:x], *parts[x + 1 :]]).tolist()
        for_row = [h for h in rows[left].tolist() if (h, *rest) not in done]
        done |= {(h, *rest) for h in for_row}
        if for_row:
            _deviations(found, case, world, net, machines, worst, rest, np.array(for_row), done)


def _report(found: Findings, what: str, outcome: tuple[int, float, float], case: ReservedCase) -> None:
    row, short, total = outcome
    if short > TOLERANCE * max(total, 1e-9):
        hour = row % len(case.demand_rps)
        _require(found, False, f"{what} in hour {hour} (row {row})", total - short, total, "requests/s")


_Edge = tuple[int, int, int, int, float]  # service, user region, server region, machine, machines per request/s


class _Network:
    """Who may serve whom, and max-flow over it."""

    def __init__(self, problem: ReservedCapacity, case: ReservedCase) -> None:
        K, R, M = len(problem.services), len(case.regions), len(problem.machines)
        self.edges: list[_Edge] = []
        for k, s in enumerate(problem.services):
            for r in range(R):
                for to in range(R):
                    if (
                        s.residency.get(case.regions[r]) is not None
                        and case.regions[to] not in s.residency[case.regions[r]]
                    ):
                        continue
                    for i in range(M):
                        fastest = 0.0  # of the operating points within the SLO
                        points = zip(case.rps_at[i, k], case.prefill_s_at[i, k], case.e2e_s_at[i, k], strict=True)
                        for rate, prefill_s, e2e_s in points:
                            ttft = case.rtt_ms[r, to] / 1000 + s.slo.queue_s + prefill_s
                            whole = case.rtt_ms[r, to] / 1000 + e2e_s
                            if ttft <= s.slo.ttft_limit_s + 1e-12 and whole <= s.slo.deadline_limit_s + 1e-12:
                                fastest = max(fastest, float(rate))
                        if case.offered[i, to] and fastest > 0:
                            gain = (1.0 if r == to else s.kappa) / (fastest * problem.utilisation)
                            self.edges.append((k, r, to, i, gain))
        self.shape = (K, R, M)
        self.ceilings = np.array([s.forwarding_ceiling for s in problem.services])  # (K,)
        gains: dict[tuple[int, int], set[float]] = {}
        for k, _, _, i, gain in self.edges:
            gains.setdefault((k, i), set()).add(gain)
        plain = all(len(g) == 1 for g in gains.values())
        self.unit: dict[int, float] = {i: min(g) for (_, i), g in gains.items()}
        self.is_flow = plain and K == 1

    def worst(
        self, demand: Array, machines: Array, away: Array | None = None, whole: Array | None = None
    ) -> tuple[int, float, float]:
        """(row, requests/s not served, its demand) of the worst row.

        Args:
            demand: demand to be served, (H, R, K).
            machines: working, (H, R, M).
            away: part of the demand that may leave its region, (H, R, K); default the ceilings' share.
            whole: demand before any is given up at a price; default itself.
        """
        short, total = self.short(demand, machines, away), (demand if whole is None else whole).sum(axis=(1, 2))
        if not len(short):
            return 0, 0.0, 0.0
        row = int((short / np.maximum(total, 1e-12)).argmax())
        return row, float(short[row]), float(total[row])

    def short(self, demand: Array, machines: Array, away: Array | None = None) -> Array:
        """Requests/s not served in every row, (H,); arguments as of `worst`."""
        machines = np.minimum(machines, 1e9)
        away = demand * self.ceilings if away is None else away
        total = demand.sum(axis=(1, 2))
        short = self._fill(demand, machines, away, self.order)
        hard = np.flatnonzero(short > 1e-9 * np.maximum(total, 1e-12))
        for attempt in range(0 if self.is_flow else ORDERS):  # a filled row needs no linear program
            if not len(hard):
                break
            order = self._shuffled(attempt)
            short[hard] = np.minimum(short[hard], self._fill(demand[hard], machines[hard], away[hard], order))
            hard = hard[short[hard] > 1e-9 * np.maximum(total[hard], 1e-12)]
        if not len(hard):
            return short
        if self.is_flow:
            short[hard] = self._max_flow(demand[hard, :, 0], machines[hard], away[hard, :, 0])
        else:
            for h in hard:
                short[h] = self._linear_program(demand[h], machines[h], away[h])
        return short

    @cached_property
    def order(self) -> list[_Edge]:
        """Edges at home first, then edges of users with few choices into servers with few users."""
        choices = Counter((k, r) for k, r, *_ in self.edges)
        demanders = Counter((i, to) for _, _, to, i, _ in self.edges)
        return sorted(self.edges, key=lambda e: (e[1] != e[2], choices[e[0], e[1]], demanders[e[3], e[2]]))

    def _shuffled(self, attempt: int) -> list[_Edge]:
        """Another order: edges that take fewest machines first, at random among these."""
        at = np.random.default_rng(attempt).random(len(self.edges)).tolist()
        each = sorted(zip(self.edges, at, strict=True), key=lambda x: (x[0][1] != x[0][2], x[0][4], x[1]))
        return [edge for edge, _ in each]

    def _fill(self, demand: Array, machines: Array, ceiling: Array, order: list[_Edge]) -> Array:
        """Requests/s left after serving as much as possible over one edge after the other."""
        left = np.ascontiguousarray(demand.transpose(2, 1, 0)).copy()
        idle = np.ascontiguousarray(machines.transpose(2, 1, 0)).copy()
        away = np.ascontiguousarray(ceiling.transpose(2, 1, 0)).copy()
        asks, has = left.max(axis=2, initial=0.0) > 0, idle.max(axis=2, initial=0.0) > 0
        for k, r, to, i, gain in order:
            if not (asks[k, r] and has[i, to]):
                continue
            f = np.minimum(left[k, r], idle[i, to] / gain)
            if r != to:
                f = np.minimum(f, away[k, r])
                away[k, r] -= f
            left[k, r] -= f
            idle[i, to] -= gain * f
            asks[k, r], has[i, to] = left[k, r].any(), idle[i, to].any()
        return left.sum(axis=(0, 1))

    def _max_flow(self, demand: Array, machines: Array, ceiling: Array) -> Array:
        """Requests/s not served per row: demand (H, R), machines (H, R, M), forwarding ceilings (H, R) in requests/s.

        Integer max-flow on blocks of rows: users → (their own servers, or a gate of the ceiling's width → other
        servers) → sink. 2·10⁸ units stand for the largest row, so rounding is far below the tolerance.
        """
        R, M = demand.shape[1], machines.shape[2]
        served = np.zeros(len(demand))
        size = 2 * R + R * M  # users, gates, servers
        edges = [(r if r == to else R + r, 2 * R + to * M + i) for _, r, to, i, _ in self.edges]
        edges += [(r, R + r) for r in range(R)]
        tail, head = np.array(edges, dtype=np.int64).T
        per_machine = np.array([1 / self.unit.get(i, np.inf) for i in range(M)])
        for at in range(0, len(demand), BLOCK):
            d = demand[at : at + BLOCK]
            n = len(d)
            scale = 2e8 / max(d.sum(axis=1).max(), 1e-12)
            offer = np.minimum(machines[at : at + BLOCK] * per_machine, d.sum(axis=1)[:, None, None]).reshape(n, R * M)
            width = np.full((n, len(tail)), 1e9)
            width[:, len(tail) - R :] = np.minimum(np.ceil(ceiling[at : at + BLOCK] * scale), 1e9)
            base = 2 + size * np.arange(n)[:, None]
            row = np.concatenate([
                np.zeros(R * n, dtype=np.int64), (base + tail).ravel(), (base + 2 * R + np.arange(R * M)).ravel(),
            ])  # fmt: skip
            col = np.concatenate([
                (base + np.arange(R)).ravel(), (base + head).ravel(), np.ones(R * M * n, dtype=np.int64),
            ])  # fmt: skip
            value = np.concatenate([np.floor(d * scale).ravel(), width.ravel(), np.ceil(offer * scale).ravel()])
            graph = sp.csr_array((value.astype(np.int32), (row, col)), shape=(2 + size * n,) * 2)
            graph.eliminate_zeros()
            flow = graphs().maximum_flow(graph, 0, 1).flow
            out = np.asarray(flow[[0]].toarray()).ravel()[2:].reshape(n, size)[:, :R]
            served[at : at + BLOCK] = np.minimum((out.sum(axis=1) + R) / scale, d.sum(axis=1))
        return demand.sum(axis=1) - served

    def _linear_program(self, demand: Array, machines: Array, ceiling: Array) -> float:
        """Requests/s not served in one row: demand (R, K), machines (R, M), forwarding ceilings (R, K).

        Flows are shares of their demand and rows are divided by their largest coefficient: HiGHS drops small ones.
        """
        from scipy import optimize  # here, as few checks need it and it takes long to import

        solve_lp: Any = optimize.linprog  # its stubs know no sparse arrays
        K, R, M = self.shape
        wanted, allowed = demand.T.ravel(), ceiling.T.ravel()
        if not self.edges:
            return float(wanted.sum())
        k, r, to, i, gain = (np.array(x) for x in zip(*self.edges, strict=True))
        use = np.flatnonzero(wanted[k * R + r] > 0)
        if not len(use):
            return 0.0
        k, r, to, i, gain = (x[use] for x in (k, r, to, i, gain))
        user, n = k * R + r, len(use)
        away = np.flatnonzero(r != to)
        rows = np.concatenate([user, K * R + to * M + i, K * R + R * M + user[away]])
        cols = np.concatenate([np.arange(n), np.arange(n), away])
        data = np.concatenate([np.ones(n), gain * wanted[user], np.ones(len(away))])
        share = np.divide(allowed, wanted, out=np.ones(len(wanted)), where=wanted > 0)
        bound = np.concatenate([np.ones(K * R), machines.ravel(), share])
        largest = np.zeros(len(bound))
        np.maximum.at(largest, rows, data)
        A = sp.csr_array((data / largest[rows], (rows, cols)), shape=(len(bound), n))
        total = wanted.sum()
        result: Any = solve_lp(
            -wanted[user] / total, A_ub=A, b_ub=bound / np.where(largest > 0, largest, 1.0), method="highs"
        )
        return float(total * (1 + result.fun)) if result.status == 0 else float(total)


def _flows(
    found: Findings, case: ReservedCase, p: ReservedPlan, world: _World, net: _Network, working: Array
) -> None:  # fmt: skip
    """Flows use allowed pairs, add up to the demand served, and are within what demand and machines allow."""
    index = {name: r for r, name in enumerate(case.regions)}
    pairs = [(line.origin, line.server) for line in p.flows]
    _require(found, len(set(pairs)) == len(pairs), "flows: each pair of regions once", len(pairs), len(set(pairs)))
    wrong = next((name for pair in pairs for name in pair if name not in index), None)
    if wrong is not None:
        _require(found, False, "flows between regions of the problem", wrong, ", ".join(index))
        return
    served = np.maximum(world.demand - world.unserved, 0.0)
    uses: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
    best: list[dict[int, float]] = [{} for _ in index]  # by server: machines per request/s of whom it serves easiest
    for k, r, to, i, gain in net.edges:
        uses.setdefault((r, to), []).append((k, i, gain))
        best[to][i] = min(gain, best[to].get(i, gain))
    sent, taken = np.zeros(len(index)), np.zeros(len(index))
    peaks = served.sum(axis=2).max(axis=0, initial=0.0)
    for line in p.flows:
        a, b = index[line.origin], index[line.server]
        sent[a] += line.mean_requests_per_s
        taken[b] += line.mean_requests_per_s
        _flow(found, case, line, world.weight, served[:, a], working[:, b], uses.get((a, b), []), float(peaks[a]))
    total = float(sent.sum())
    tolerance = TOLERANCE * float(world.weight @ served.sum(axis=(1, 2)))
    tolerance += ROUNDING * float(world.weight @ world.demand.sum(axis=(1, 2)))  # demand less the unserved part
    for name, r in index.items():
        true = float(world.weight @ served[:, r].sum(axis=1))
        _require(found, abs(sent[r] - true) <= tolerance,
                      f"requests of {name} served somewhere", float(sent[r]), true, "requests/s")  # fmt: skip
        most = sum(float(world.weight @ working[:, r, i]) / gain for i, gain in best[r].items())
        _require(found, taken[r] <= most + tolerance, f"requests served in {name}", float(taken[r]), most, "requests/s")
    away = sum(line.mean_requests_per_s for line in p.flows if line.origin != line.server)
    share = away / total if total else 0.0
    _require(found, abs(share - p.forwarded_share) <= 1e-6, "forwarded share", p.forwarded_share, share)
    _require(found, p.pooled or share <= 1e-6, "nothing forwarded where regions are by themselves", share, 0.0)


def _flow(
    found: Findings, case: ReservedCase, line: FlowLine, weight: Array, served: Array, working: Array,
    uses: list[tuple[int, int, float]], peak_served: float,
) -> None:  # fmt: skip
    """One pair of regions: round trip, egress, and the most that could flow.

    Args:
        found: takes the violations.
        case: the instance.
        line: the flow as stated.
        weight: (H,).
        served: demand of the origin that is served, (H, K).
        working: machines of the server, (H, I).
        uses: (service, machine, machines per request/s) whose server may serve the origin.
        peak_served: largest demand of the origin that is served in a row, requests/s.
    """
    what = f"from {line.origin} to {line.server}"
    if not uses:
        _require(found, False, f"{what}: within residency and SLO", line.mean_requests_per_s, 0.0, "requests/s")
        return
    a, b = case.regions.index(line.origin), case.regions.index(line.server)
    rtt, services = float(case.rtt_ms[a, b]), sorted({k for k, _, _ in uses})
    _require(found, abs(rtt - line.rtt_ms) <= TOLERANCE * rtt + 1e-9, f"round trip {what}", line.rtt_ms, rtt, "ms")
    best = {i: min(gain for _, m, gain in uses if m == i) for _, i, _ in uses}
    able = sum((working[:, i] / gain for i, gain in best.items()), np.zeros(len(weight)))
    most = np.minimum(served[:, services].sum(axis=1), able)
    mean, peak = line.mean_requests_per_s, line.peak_requests_per_s
    slack = TOLERANCE * peak_served
    limit = float(weight @ most)
    _require(found, mean <= limit + slack, f"mean {what}", mean, limit, "requests/s")
    _require(found, mean <= peak + slack, f"mean {what}: at most the peak", mean, peak, "requests/s")
    limit = float(most.max(initial=0.0))
    _require(found, peak <= limit + slack, f"peak {what}", peak, limit, "requests/s")
    each = case.egress_usd_per_request[services, a, b] * mean * 3600.0 * 730.0
    low, high = float(each.min()) * (1 - TOLERANCE) - 1e-9, float(each.max()) * (1 + TOLERANCE) + 1e-9
    _require(found, low <= line.egress_usd_per_month <= high, f"egress {what}",
                  line.egress_usd_per_month, float(each.max()), "USD/month")  # fmt: skip
