"""Given reserved machines, who serves whom and the purchases in every row: nearest first, exact where tight.

Vectorised greedy orders serve most rows at once. Purchases of the others are known in closed form where purchases are
unlimited (`purchases`), and max-flow then serves them; the rest are small LPs in one kept solver session.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from formulations.reserved_capacity.model import TrafficModel, capacity, demand_met
from formulations.reserved_capacity.points import ReservedTables, families
from formulations.reserved_capacity.problem import HOURS_PER_MONTH
from optmodels.arrays import Array, Index
from optmodels.errors import SolverError
from optmodels.solver.light_imports import graphs
from optmodels.solver.session import Session, Settings

SERVED = 1e-9  # share of a row's demand below which it counts as served
# Of a row's LP: what its tolerance leaves of demand at no cost is dear where forgoing requests is, and no bound has it.
FINE = Settings(options={"primal_feasibility_tolerance": SERVED})
ROWS_AT_ONCE = 5_000  # whose flows between regions are kept until their peaks are known
SHORT = 1e-7  # the same for demand that must be served: the part that an LP's tolerance may leave
LEFT = 3 * SHORT  # the same of a plan's: a third for bounds of demand less `SHORT`, two for two tolerances


def less_a_hair(t: ReservedTables) -> Array:
    """Demand of bounds, requests/s, (H, I): what must be served less `SHORT`, which a plan may lack; none is better.

    What lacks of demand that has a price is paid for.
    """
    return t.demand * np.where(np.isfinite(t.penalty), 1.0, 1 - SHORT)


@dataclass(frozen=True)
class Dispatch:
    """Flows and purchases of every row.

    Attributes:
        bought: machines that work, by option, (H, O).
        unserved: requests/s, (H, I).
        flow: mean requests/s from source to sink, weighted, (I, J).
        peak_flow: from region to region in the row with most, requests/s, (R, R).
        used: machines busy in each sink, (H, J).
    """

    bought: Array
    unserved: Array
    flow: Array
    peak_flow: Array
    used: Array

    def usd_per_month(self, t: ReservedTables) -> tuple[Array, float]:
        """Cost by option, (O,), and of unserved demand, USD/month."""
        by_option = (t.weight @ self.bought) * t.option_usd_per_hour * HOURS_PER_MONTH
        penalty = np.where(np.isfinite(t.penalty), t.penalty, t.shortfall)
        return by_option, float((t.weight @ self.unserved) @ penalty) * HOURS_PER_MONTH

    def egress_usd_per_month(self, t: ReservedTables) -> Array:
        """Cost of forwarded data by source and sink, (I, J), USD/month."""
        return self.flow * t.egress * HOURS_PER_MONTH

    def total_usd_per_month(self, t: ReservedTables) -> float:
        """Everything but reservations, USD/month."""
        by_option, unserved = self.usd_per_month(t)
        return float(by_option.sum()) + unserved + float(self.egress_usd_per_month(t).sum())

    def short(self, t: ReservedTables) -> float:
        """Largest share of a row's demand that must be served and is not."""
        must = ~np.isfinite(t.penalty)
        total = np.maximum(t.demand.sum(axis=1), 1e-12)
        return float((self.unserved[:, must].sum(axis=1) / total).max(initial=0.0))


class RowLp:
    """The flow model of one row, its reservations given as machines by sink; duals are a cut for all rows.

    Args:
        t: tables.
        phase_one: minimise unserved requests/s instead of money, with no purchases.
        tie_break: prefer short round trips among equals, by a cost too small to change the plan.
    """

    def __init__(self, t: ReservedTables, phase_one: bool = False, tie_break: bool = True) -> None:
        row = t.over(np.zeros(1, dtype=np.intp), np.ones(1) / HOURS_PER_MONTH).without("column")
        if phase_one:
            row = replace(row.without("option"), penalty=np.ones(len(t.penalty)), egress=np.zeros_like(t.egress))
        row = replace(row, penalty=np.where(np.isfinite(row.penalty), row.penalty, t.shortfall), guards=())
        self.model = model = TrafficModel(row, (demand_met, capacity))
        self.source, self.sink, _ = model.f.labels
        compiled = model.compiled()
        if tie_break and not phase_one:
            rtt = t.case.rtt_ms[t.source_region[self.source], t.sink_region[self.sink]]
            price = t.option_usd_per_hour
            small = 1e-9 * float(np.median(price) if len(price) else 1.0) / max(rtt.max(initial=1), 1)
            model.f.of(compiled.costs[0])[:] += small * rtt * t.work[self.source, self.sink]
        # Money in units that keep a solver's absolute tolerance small next to prices.
        dearest = float(t.option_usd_per_hour.max(initial=0.0))
        self.usd = 1.0 if phase_one or 1e-3 <= dearest <= 1e5 or not dearest else 2.0 ** round(np.log2(dearest))
        self.session = Session(replace(compiled, costs=compiled.costs / self.usd), None if phase_one else FINE)
        self.rows = np.arange(len(compiled.row_lower))
        self.unlimited = np.full(len(t.sink_region), -np.inf)

    def solve(self, demand: Array, machines: Array) -> None:
        """Solve for demand (I,) and machines by sink (J,)."""
        lower, upper = np.concatenate([demand, self.unlimited]), np.concatenate([demand, machines])
        self.session.set_row_bounds(self.rows, lower, upper)
        if self.session.run() != "optimal":
            raise SolverError(f"the LP of a row: {self.session.message}")

    @property
    def objective(self) -> float:
        """Of the last solve, USD/h."""
        return self.usd * self.session.objective

    def primal(self) -> tuple[Array, Array, Array]:
        """Flows (F,), purchases (O,), unserved (I,)."""
        x, model = self.session.values(), self.model
        return model.f.of(x), model.x.of(x), model.u.of(x)

    def duals(self) -> tuple[Array, Array]:
        """Price of demand y (I,), and of machines z ≥ 0 (J,)."""
        y, z = np.split(self.usd * self.session.row_duals(), [len(self.rows) - len(self.unlimited)])
        return y, np.maximum(0.0, -z)


def greedy_flows(t: ReservedTables, demand: Array, machines: Array, order: Index | None = None) -> tuple[Array, Array]:
    """Serve all rows at once, edge after edge.

    Args:
        t: tables.
        demand: (H, I).
        machines: (H, J).
        order: positions of the allowed pairs; default nearest first.

    Returns:
        Unserved (H, I) and idle machines (H, J).
    """
    return _fill(t, demand, machines, nearest_first(t) if order is None else order, None)


def _fill(
    t: ReservedTables, demand: Array, machines: Array, order: Index, served: dict[tuple[int, int], Array] | None
) -> tuple[Array, Array]:
    """Unserved and idle; flows, (H,) each, go to `served` by source and sink."""
    source, sink = np.nonzero(t.reach)
    work = t.work[source, sink]
    left, idle = np.ascontiguousarray(demand.T), np.ascontiguousarray(machines.T)
    left, idle = left.copy(), idle.copy()
    for e in order:
        i, j, a = source[e], sink[e], work[e]
        f = np.minimum(left[i], idle[j] / a)
        if not f.any():
            continue
        left[i] -= f
        idle[j] -= a * f
        if served is not None:
            served[int(i), int(j)] = f
    return left.T, np.maximum(idle.T, 0.0)


def nearest_first(t: ReservedTables) -> Index:
    """Allowed pairs by round trip, local ones first, then by work."""
    source, sink = np.nonzero(t.reach)
    rtt = t.case.rtt_ms[t.source_region[source], t.sink_region[sink]]
    local = t.source_region[source] == t.sink_region[sink]
    return np.lexsort((t.work[source, sink], rtt, ~local))


def free_orders(t: ReservedTables) -> tuple[Index, ...]:
    """Greedy orders that cost nothing where they serve all: any, or of the pairs without egress."""
    if not t.egress.any():
        return nearest_first(t), fewest_choices_first(t)
    source, sink = np.nonzero(t.reach)
    free = t.egress[source, sink] == 0
    return tuple(order[free[order]] for order in (nearest_first(t), fewest_choices_first(t)))


def fewest_choices_first(t: ReservedTables) -> Index:
    """Allowed pairs by how few sinks the source has, then by how few sources the sink has."""
    source, sink = np.nonzero(t.reach)
    return np.lexsort((t.reach.sum(axis=0)[sink], t.reach.sum(axis=1)[source]))


def dispatch(
    t: ReservedTables, machines: Array, seen: Callable[[int, RowLp], None] | None = None, until: float | None = None
) -> Dispatch:
    """Serve every row at least cost, given reserved machines by sink and quarter, (J, Q).

    Args:
        t: tables.
        machines: reserved.
        seen: called with every row that takes an LP, once it is solved.
        until: time of `time.perf_counter` after which rows are served by greedy purchases, dearer than need be, or
            left short where those do not serve them.
    """
    demand, held = t.demand, machines.T[t.quarter]
    total = np.maximum(demand.sum(axis=1), 1e-12)
    bought, unserved = np.zeros((len(demand), len(t.option_sink))), np.zeros_like(demand)
    R = len(t.case.regions)
    flow = _Flow(np.zeros(t.reach.shape), np.zeros((R, R)), np.zeros_like(held))
    rows = np.arange(len(demand))
    greedy = free_orders(t)
    for order in greedy:
        rows = _serve(t, rows, held, order, flow)
    bill = purchases(t, held[rows], demand[rows]) if len(rows) else None
    if bill is not None:
        bought[rows] = bill
        have = held.copy()
        np.add.at(have.T, t.option_sink, bought.T)
        for order in greedy:
            rows = _serve(t, rows, have, order, flow, 1e-9)
        rows = _serve_by_max_flow(t, rows, have, flow)
    if len(rows):
        bought[rows] = 0.0
        lp = RowLp(t)
        for x, h in enumerate(rows):
            if until is not None and time.perf_counter() > until:
                _serve_greedily(t, rows[x:], held, bought, unserved, flow)
                break
            lp.solve(demand[h], held[h])
            if seen is not None:
                seen(int(h), lp)
            f, bought[h], unserved[h] = lp.primal()
            flow.mean[lp.source, lp.sink] += t.weight[h] * f
            between = np.zeros((R, R))
            np.add.at(between, (t.source_region[lp.source], t.sink_region[lp.sink]), f)
            np.maximum(flow.peak, between, out=flow.peak)
            flow.used[h] = np.bincount(lp.sink, f * t.work[lp.source, lp.sink], len(held[h]))
    bought[bought < 1e-9] = 0.0
    # Remainders within an LP's tolerance: next to nothing unserved is nothing, next to nothing served is nothing.
    must = ~np.isfinite(t.penalty)
    unserved[unserved < np.where(must, LEFT, SERVED) * total[:, None]] = 0.0
    unserved = np.where(demand - unserved < SERVED * total[:, None], np.where(unserved > 0, demand, 0.0), unserved)
    return Dispatch(bought, unserved, flow.mean, flow.peak, flow.used)


def kept_dispatch(t: ReservedTables, machines: Array) -> Dispatch:
    """`dispatch` of a plan's machines, once: its report, tables and charts ask for the same."""
    key = machines.tobytes()
    if key not in t.dispatched:
        found = dispatch(t, machines)
        t.dispatched.clear()
        t.dispatched[key] = found
    return t.dispatched[key]


@dataclass
class _Flow:
    mean: Array  # (I, J)
    peak: Array  # (R, R)
    used: Array  # (H, J)

    def add(self, t: ReservedTables, rows: Index, served: dict[tuple[int, int], Array]) -> None:
        """Mean and peak of some rows' flows, (n,) each, by source and sink."""
        between: dict[tuple[int, int], Array] = {}
        for (i, j), f in served.items():
            self.mean[i, j] += t.weight[rows] @ f
            pair = (int(t.source_region[i]), int(t.sink_region[j]))
            between[pair] = between.get(pair, 0.0) + f
        for pair, f in between.items():
            self.peak[pair] = max(self.peak[pair], f.max(initial=0.0))


def _serve_greedily(t: ReservedTables, rows: Index, held: Array, bought: Array, unserved: Array, flow: _Flow) -> None:
    """Serve rows from reserved machines, nearest first; then buy, or forgo at its price, the cheapest in turn.

    Args:
        t: tables.
        rows: (n,).
        held: reserved machines, (H, J).
        bought, unserved: (H, O) and (H, I), written in these rows.
        flow: added to.
    """
    source, sink = np.nonzero(t.reach)
    left, idle = t.demand[rows].T.copy(), held[rows].T.copy()
    room = np.repeat(t.option_most[:, None], len(rows), axis=1)
    served: dict[tuple[int, int], Array] = {}

    def serve(i: int, j: int, machines: Array) -> Array:
        f = np.minimum(left[i], machines / t.work[i, j])
        left[i] -= f
        if f.any():
            served[i, j] = served.get((i, j), 0.0) + f
        return t.work[i, j] * f

    for e in nearest_first(t):
        i, j = int(source[e]), int(sink[e])
        idle[j] = np.maximum(0.0, idle[j] - serve(i, j, idle[j]))
    ways = [(float(t.penalty[i]), int(i), -1) for i in np.flatnonzero(np.isfinite(t.penalty))]
    for o, j in enumerate(t.option_sink):
        price = t.option_usd_per_hour[o] * t.work[:, j] + t.egress[:, j]
        ways += [(float(price[i]), int(i), o) for i in np.flatnonzero(t.reach[:, j])]
    for _, i, o in sorted(ways):
        if o < 0:
            unserved[rows, i] = left[i]
            left[i] = 0.0
        elif left[i].any():
            more = serve(i, int(t.option_sink[o]), room[o])
            bought[rows, o] += more
            room[o] = np.maximum(0.0, room[o] - more)
    unserved[rows] += left.T
    flow.add(t, rows, served)
    for (i, j), f in served.items():
        flow.used[rows, j] += t.work[i, j] * f


def _serve(t: ReservedTables, rows: Index, have: Array, order: Index, flow: _Flow, tolerance: float = SERVED) -> Index:
    """Record the flows of rows that a greedy order serves in full; returns the others."""
    if not len(rows):
        return rows
    served = np.zeros(len(rows), dtype=bool)
    for at in range(0, len(rows), ROWS_AT_ONCE):
        mine, flows = rows[at : at + ROWS_AT_ONCE], dict[tuple[int, int], Array]()
        left, idle = _fill(t, t.demand[mine], have[mine], order, flows)
        done = left.sum(axis=1) <= tolerance * np.maximum(t.demand[mine].sum(axis=1), 1e-12)
        served[at : at + ROWS_AT_ONCE] = done
        if not done.all():
            mine, idle, flows = mine[done], idle[done], {pair: f[done] for pair, f in flows.items()}
        flow.add(t, mine, flows)
        flow.used[mine] = have[mine] - idle
    return rows[~served]


def purchases(t: ReservedTables, held: Array, demand: Array) -> Array | None:
    """Cheapest machines by the hour, (H, O), in closed form; None where only the LP knows.

    Without gains, with unlimited purchases and no price on unserved demand, the purchases that make a row servable
    are a contra-polymatroid {x: x(Z) ≥ deficit(Z)}: buying for the most expensive sinks first only as they cannot do
    without, x_k = h(k most expensive sinks) − h(k − 1 of them), h(P) = max deficit of sets with all their sinks in P,
    is cheapest (Edmonds).
    """
    if t.pure is None or t.egress.any() or np.isfinite(t.penalty).any() or np.isfinite(t.option_most).any():
        return None
    listed = families(t.reach)
    if listed is None:
        return None
    load, strength = t.pure
    J = len(strength)
    price, choice = np.full(J, np.inf), np.full(J, -1)
    for o, j in enumerate(t.option_sink):
        if t.option_usd_per_hour[o] / strength[j] < price[j]:
            price[j], choice[j] = t.option_usd_per_hour[o] / strength[j], o
    order = np.argsort(-price, kind="stable")
    rank = np.empty(J, dtype=np.intp)
    rank[order] = np.arange(J)
    out = np.zeros((len(held), len(t.option_sink)))
    for family in listed:
        inside = ((t.reach.astype(float) @ (~family).T.astype(float)) == 0).T & t.reach[:, family.any(axis=0)].any(
            axis=1
        )
        enters = np.where(family, rank, -1).max(axis=1)  # step at which a set is within the prefix
        for at in range(0, len(held), 2000):
            rows = slice(at, at + 2000)
            deficit = (demand[rows] * load) @ inside.T.astype(float) - (held[rows] * strength) @ family.T.astype(float)
            so_far = np.zeros(len(deficit))
            for step in np.unique(enters):
                h = np.maximum(so_far, deficit[:, enters == step].max(axis=1))
                j = order[step]
                if choice[j] < 0:
                    if (h > 1e-9).any():
                        return None
                    continue
                out[rows, choice[j]] += (h - so_far) / strength[j]
                so_far = h
    return out


def _serve_by_max_flow(t: ReservedTables, rows: Index, have: Array, flow: _Flow, block: int = 50) -> Index:
    """Record max-flows of rows that can be served, several rows in one graph; returns the others."""
    if t.pure is None or not len(rows):
        return rows
    load, strength = t.pure
    source, sink = np.nonzero(t.reach)
    I, J = t.reach.shape  # noqa: E741
    size, rest = I + J, []
    for at in range(0, len(rows), block):
        mine = rows[at : at + block]
        n = len(mine)
        wanted = t.demand[mine] * load
        offer = np.minimum(have[mine] * strength, wanted.sum(axis=1)[:, None])
        scale = 2e8 / max(wanted.sum(axis=1).max(), 1e-12)
        base = 2 + size * np.arange(n)[:, None]
        tail = np.concatenate(
            [np.zeros(n * I, dtype=np.int64), (base + source).ravel(), (base + I + np.arange(J)).ravel()]
        )
        head = np.concatenate(
            [(base + np.arange(I)).ravel(), (base + I + sink).ravel(), np.ones(n * J, dtype=np.int64)]
        )
        asked = np.floor(wanted * scale)
        value = np.concatenate([asked.ravel(), np.full(n * len(source), 2e9), np.ceil(offer * scale).ravel()])
        graph = sp.csr_array((value.astype(np.int32), (tail, head)), shape=(2 + n * size,) * 2)
        found = graphs().maximum_flow(graph, 0, 1).flow.tocoo()
        real = (found.data > 0) & (found.row > 1) & (found.col > 1)
        which, i = np.divmod(found.row[real] - 2, size)
        j = (found.col[real] - 2) % size - I
        amount = found.data[real] / scale / load[i]
        served = np.zeros((n, I))
        np.add.at(served, (which, i), amount)
        ok = (t.demand[mine].sum(axis=1) - served.sum(axis=1)) <= 1e-6 * np.maximum(t.demand[mine].sum(axis=1), 1e-12)
        rest += mine[~ok].tolist()
        fine = ok[which]
        which, i, j, amount = which[fine], i[fine], j[fine], amount[fine]
        amount = amount * (t.demand[mine][which, i] / np.maximum(served[which, i], 1e-12))
        np.add.at(flow.mean, (i, j), t.weight[mine][which] * amount)
        between = np.zeros((n, *flow.peak.shape))
        np.add.at(between, (which, t.source_region[i], t.sink_region[j]), amount)
        np.maximum(flow.peak, between.max(axis=0), out=flow.peak)
        np.add.at(flow.used, (mine[which], j), amount * t.work[i, j])
    return np.array(rest, dtype=np.intp)
