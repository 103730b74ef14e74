"""Reservation plans without a proof: the practice SkyLB starts from, its global pool, and ways to come close.

Each rule decides reserved machines; what remains is bought by the hour where that is allowed (`dispatch`), and rules
that must not buy are repaired until every hour is served.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from formulations.reserved_capacity.dispatch import RowLp, dispatch
from formulations.reserved_capacity.losses import LossCase, of_demand, of_guard, short_row, unserved
from formulations.reserved_capacity.making import make_plan
from formulations.reserved_capacity.methods.flows import SMALL, flow_variables
from formulations.reserved_capacity.model import TrafficModel, capacity, demand_met
from formulations.reserved_capacity.plan import ReservedPlan
from formulations.reserved_capacity.points import ReservedTables
from formulations.reserved_capacity.problem import HOURS_PER_MONTH, ReservedCapacity
from optmodels.arrays import Array, Index
from optmodels.formulation import Method, Options
from optmodels.plans.outcome import Outcome
from optmodels.solver.cancel import cancelled
from optmodels.solver.session import Session

ROUNDS = 400
STEP = 0.25  # of the machines that would help the row that lacks least
EQUAL = 0.02  # sinks whose value per dollar differs by less are equal
MOST_OF_IT = 0.8  # of the time that is left, for one heuristic of `best_of_all` that has no plan yet
GRACE = 3.0  # s that a heuristic gets, past the limit, where `best_of_all` has no plan yet
CHEAP = 1e-9  # USD/month for what costs nothing, to divide by
BUSIEST = 12  # rows looked at while machines are taken away again, besides every source's peak


def _cheapest(t: ReservedTables) -> Index:
    """For every sink the reservation with the least USD/month that runs from the first quarter, or −1."""
    best = np.full(len(t.sink_region), -1, dtype=np.intp)
    for c in np.argsort(-t.column_usd_per_month, kind="stable"):
        if t.column_quarter[c] == 0:
            best[t.column_sink[c]] = c
    return best


def _outcome(
    t: ReservedTables, counts: Array | None, options: Options, began: float, reason: str = ""
) -> Outcome[ReservedPlan]:
    found = None
    if counts is not None:
        counts = _legal(t, counts)
        reason = _broken(t, counts)
        if not reason:
            found = dispatch(t, t.reserved(counts), until=_until(options, began))
            reason = "some hour cannot be served" if found.short(t) > 0 else ""
    seconds = {"solve": time.perf_counter() - began}
    if counts is None or found is None or reason:
        return Outcome("no_solution_found", None, seconds=seconds, log={"reason": reason})
    return Outcome("feasible", make_plan(t, counts, found), seconds=seconds)


def _broken(t: ReservedTables, counts: Array) -> str:
    """Requirements that the reservations break by themselves: availability, a loss to survive; empty: none."""
    if (t.reserved(counts) > t.sink_most[:, None] + 1e-9).any():
        return "needs more machines than can be reserved somewhere"
    if not t.guards:
        return ""
    lp = RowLp(t, phase_one=True)
    if any(short_row(t, case, t.reserved(counts), lp) is not None for case in _cases(t, losses_only=True)):
        return "does not survive every loss that the problem names"
    return ""


def _legal(t: ReservedTables, counts: Array) -> Array:
    """Counts rounded up to steps and minima."""
    steps = np.ceil(counts / t.column_step - 1e-9)
    fewest = np.ceil(t.column_minimum / t.column_step)
    return np.where(steps > 0, np.maximum(steps, fewest), 0.0) * t.column_step


def _renew(t: ReservedTables, counts: Array) -> Array:
    """Buy the same again whenever a commitment of the first quarter ends within the horizon."""
    out = counts.copy()
    for c in np.flatnonzero(counts):
        length = int(t.column_active[c].sum())
        for q in range(length, t.quarters, length):
            same = (t.column_sink == t.column_sink[c]) & (t.column_quarter == q)
            again = [x for x in np.flatnonzero(same) if t.column_term[x] == t.column_term[c]]
            out[again] += counts[c]
    return out


def _cases(t: ReservedTables, losses_only: bool = False) -> list[LossCase]:
    """Demand that reservations must serve: every row, unless the rest is bought by the hour, and every loss."""
    cases = [of_guard(t, g) for g in t.guards]
    if not losses_only and not len(t.option_sink):
        cases.insert(0, of_demand(t))
    return cases


def _serves(t: ReservedTables, counts: Array, cases: list[LossCase]) -> bool:
    """Whether greedy flows serve every row of every case; they may fail where a better flow would not."""
    machines = t.reserved(counts)
    return all(next(unserved(t, case, machines), None) is None for case in cases)


def _until(options: Options, began: float) -> float | None:
    return None if options.time_limit is None else began + options.time_limit


def _out_of_time(options: Options, began: float) -> bool:
    until = _until(options, began)
    return until is not None and time.perf_counter() > until


def _repair(t: ReservedTables, counts: Array, options: Options, began: float) -> Array | None:
    """Add the machine that serves most per dollar, over a short row of every case, until every row is served.

    The LPs' duals state what helps; cases that were served are tried again only when the others are.
    """
    best, lp, cases = _cheapest(t), RowLp(t, phase_one=True), _cases(t)
    usd = np.array([max(CHEAP, t.column_usd_per_month[c]) if c >= 0 else np.inf for c in best])
    counts, open_ = counts.copy(), list(cases)
    for _ in range(ROUNDS * max(1, len(cases))):
        if _out_of_time(options, began):
            return None
        machines = t.reserved(counts)
        short = [(case, w) for case in open_ if (w := short_row(t, case, machines, lp)) is not None]
        if not short:
            if len(open_) == len(cases):
                return counts
            open_ = list(cases)
            continue
        open_ = [case for case, _ in short]
        missing, price = np.array([w[0] for _, w in short]), np.array([w[1] for _, w in short])
        room = t.sink_most - machines.max(axis=1)
        value = np.where((best >= 0) & (room >= 1), price.sum(axis=0) / usd, 0.0)
        if not (value > 1e-12).any():
            return None
        # Not all at once: others help too; and spread over the sinks that help equally, lest one be lost.
        equal = np.flatnonzero(value >= value.max() * (1 - EQUAL))
        j = int(equal[np.argmin(machines[equal].max(axis=1))])
        helped = price[:, j] > 1e-12
        step = max(1.0, min(np.ceil(STEP * float((missing[helped] / price[helped, j]).min())), room[j]))
        again = np.zeros_like(counts)
        again[best[j]] = step
        counts = counts + _renew(t, again)
    return None


def _critical(t: ReservedTables) -> list[LossCase]:
    """The cases over few rows: the busiest, and where each source, with those that it can go to, is at its peak."""
    near = (t.reach.astype(float) @ t.reach.T.astype(float) > 0).astype(float)
    rows = [np.argsort(-t.demand.sum(axis=1), kind="stable")[:BUSIEST], t.demand.argmax(axis=0)]
    rows.append((t.demand @ near).argmax(axis=0))
    few = np.unique(np.concatenate(rows))
    cases = [of_guard(t, g, few) for g in t.guards]
    return cases if len(t.option_sink) else [of_demand(t, few), *cases]


def _pruned(t: ReservedTables, counts: Array, options: Options, began: float) -> Array:
    """Take machines away, dearest first: as many of each as critical rows can spare and do not save their price."""
    cases, rows = _critical(t), _Sample(t, 24)
    counts, cost = counts.copy(), rows.cost(counts)[0]
    for c in np.argsort(-t.column_usd_per_month, kind="stable"):
        low, high = 0, int(counts[c] // t.column_step[c])  # steps that can go; more than can
        if _out_of_time(options, began) or not high or not _serves(t, counts, cases):
            continue
        while low < high:
            middle = (low + high + 1) // 2
            less = counts.copy()
            less[c] -= middle * t.column_step[c]
            if _serves(t, less, cases) and rows.cost(less)[0] <= cost:
                low = middle
            else:
                high = middle - 1
        counts[c] -= low * t.column_step[c]
        cost = rows.cost(counts)[0] if low else cost
    return counts


def _repaired(t: ReservedTables, counts: Array, options: Options, began: float) -> Array | None:
    """Repaired, pruned on critical rows, and repaired where those were not all."""
    served = _repair(t, counts, options, began)
    return None if served is None else _repair(t, _pruned(t, served, options, began), options, began)


def _own_peaks(t: ReservedTables) -> tuple[Array, Array] | None:
    """(machines, cheapest sink per region) that serve every region's own peak locally; None if some cannot."""
    best = _cheapest(t)
    machines = np.zeros(len(t.sink_region))
    sinks = np.full(len(t.case.regions), -1)
    for r in np.unique(t.source_region):
        mine = np.flatnonzero(t.source_region == r)
        local = [j for j in np.flatnonzero(t.sink_region == r) if t.reach[mine, j].all() and best[j] >= 0]
        if not local:
            return None
        need = [float((t.demand[:, mine] @ t.work[mine, j]).max()) for j in local]
        cost = [np.ceil(n - 1e-9) * t.column_usd_per_month[best[j]] for n, j in zip(need, local, strict=True)]
        x = int(np.argmin(cost))
        machines[local[x]], sinks[r] = need[x], local[x]
    return machines, sinks


def _counts_of(t: ReservedTables, machines: Array) -> Array:
    best = _cheapest(t)
    counts = np.zeros(len(t.column_sink))
    for j in np.flatnonzero(machines > 1e-12):
        counts[best[j]] += np.ceil(machines[j] - 1e-9)
    return _renew(t, counts)


def _alone(t: ReservedTables) -> ReservedTables:
    """The tables without forwarding: every region for itself."""
    local = t.source_region[:, None] == t.sink_region[None, :]
    return replace(t, reach=t.reach & local, work=np.where(local, t.work, 0.0))


def region_local(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """Every region reserves for its own peak and serves its own users: common practice (SK Fig. 1a)."""
    began = time.perf_counter()
    found = _own_peaks(tables)
    if found is None:
        return _outcome(tables, None, options, began, "a region has users and no machine to reserve")
    out = _outcome(_alone(tables), _counts_of(tables, found[0]), options, began)
    if out.plan is None:
        return out
    return replace(out, plan=out.plan.model_copy(update={"pooled": False}))


def global_peak(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """The peak of world demand at the cheapest reservation, wherever it is: SK's provisioning, blind to reach.

    A comparison plan: hours that reach does not allow are repaired only by hourly purchases, where there are any.
    """
    began, t = time.perf_counter(), tables
    best = _cheapest(t)
    usable = [j for j in range(len(t.sink_region)) if best[j] >= 0 and t.reach[:, j].any()]
    if not usable:
        return _outcome(t, None, options, began, "nothing to reserve")
    strength = 1.0 / np.array([t.work[t.reach[:, j], j].min(initial=np.inf) for j in usable])
    j = usable[int(np.argmin(t.column_usd_per_month[best[usable]] / strength))]
    machines = np.zeros(len(t.sink_region))
    load = np.array(
        [t.work[i, j] if t.reach[i, j] else t.work[i][t.reach[i]].min(initial=0.0) for i in range(len(t.reach))]
    )
    machines[j] = float((t.demand @ load).max(initial=0.0))
    return _outcome(t, _counts_of(t, machines), options, began)


def proportional(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """The global peak split over regions in proportion to their own peaks, scaled up until every hour is served."""
    began, t = time.perf_counter(), tables
    found = _own_peaks(t)
    if found is None:
        return _outcome(t, None, options, began, "a region has users and no machine to reserve")
    peaks = found[0]
    cases = _cases(t)
    low = float((t.demand.sum(axis=1)).max(initial=0.0) / max(1e-12, t.demand.max(axis=0).sum()))
    high = 1.0
    while not _serves(t, _counts_of(t, high * peaks), cases) and high < 16:
        high *= 2
    if high >= 16:
        counts = _repair(t, _counts_of(t, peaks), options, began)
        return _outcome(t, counts, options, began, "no repair found within the limit")
    low = min(low, high)
    if not _serves(t, _counts_of(t, low * peaks), cases):
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (low, middle) if _serves(t, _counts_of(t, middle * peaks), cases) else (middle, high)
    else:
        high = low
    return _outcome(t, _counts_of(t, high * peaks), options, began)


def greedy(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """From nothing, add the reservation that serves most of the worst hours per dollar, then drop unneeded ones.

    Where machines can be bought by the hour, a reservation is added while it saves more than it costs.
    """
    began, t = time.perf_counter(), tables
    counts = _repaired(t, np.zeros(len(t.column_sink)), options, began)
    if counts is not None and len(t.option_sink):
        counts = _while_it_saves(t, counts, options, began)
    return _outcome(t, counts, options, began, "stopped at the limit, or no reservation helps the hours that are short")


def _while_it_saves(t: ReservedTables, counts: Array, options: Options, began: float) -> Array:
    """Add what saves most per dollar by the duals of sampled rows, if it does; every sink's steps shrink till it does.

    The dual alone is the value of the first machine, not of the last of a step, and at a kink not even that.
    """
    best, rows = _cheapest(t), _Sample(t, 96)
    usd = np.array([max(CHEAP, t.column_usd_per_month[c]) if c >= 0 else np.inf for c in best])
    step = np.maximum(1.0, np.ceil((t.demand.max(axis=0) @ t.work) / 16))
    cost, worth = rows.cost(counts)
    for _ in range(ROUNDS):
        room = t.sink_most - t.reserved(counts).max(axis=1) >= step
        gain = np.where((best >= 0) & room & (step >= 1), worth / usd, 0.0)
        j = int(gain.argmax())
        if gain[j] <= 1.0 or _out_of_time(options, began):
            break
        again = np.zeros_like(counts)
        again[best[j]] = step[j]
        more = counts + _renew(t, again)
        then, worth_then = rows.cost(more)
        if then < cost:
            counts, cost, worth = more, then, worth_then
        else:
            step[j] = np.floor(step[j] / 2)
    return counts


class _Sample:
    """Some rows, from calm to busy, that stand for all: cost of reservations, and the saving of one more machine."""

    def __init__(self, t: ReservedTables, n: int) -> None:
        self.t, self.lp = t, RowLp(t, tie_break=False)
        self.rows = _spread(t, n) if len(t.option_sink) else np.zeros(0, dtype=np.intp)

    def cost(self, counts: Array) -> tuple[float, Array]:
        """USD/month, reservations included, and USD/month that a machine more in each sink saves by the hour, (J,)."""
        machines, usd, worth = self.t.reserved(counts), float(counts @ self.t.column_usd_per_month), 0.0
        saved = np.zeros(len(self.t.sink_region))
        for h in self.rows:
            self.lp.solve(self.t.demand[h], machines[:, self.t.quarter[h]])
            worth += self.lp.objective
            saved += self.lp.duals()[1]
        per_row = HOURS_PER_MONTH / max(1, len(self.rows))
        return usd + per_row * worth, per_row * saved


def lp_rounding(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """The LP over representative hours, rounded to the nearest machine, then repaired on all hours."""
    began, t = time.perf_counter(), tables
    rows = np.unique(np.concatenate([t.demand.argmax(axis=0), [int(t.demand.sum(axis=1).argmax())], _spread(t, 48)]))
    x = _relaxed(t, rows, np.full(len(rows), 1.0 / len(rows)), options, began)
    if x is None:
        return _outcome(t, None, options, began, "the relaxation is infeasible, or was not solved within the limit")
    counts = _repaired(t, np.floor(x + 0.5), options, began)
    return _outcome(t, counts, options, began, "no repair found within the limit")


def representative_days(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """The optimum over a few typical days and the peak day (k-medoids), re-checked and repaired on all hours."""
    began, t = time.perf_counter(), tables
    T = len(t.case.demand_rps)
    days = T // 24
    if days < 2:
        return lp_rounding(problem, tables, options)
    blocks = len(t.demand) // T
    profile = t.demand.reshape(blocks, T, -1)[:, : days * 24].reshape(blocks * days, -1)
    medoids, size = k_medoids(profile, min(8, len(profile)), options.seed)
    peak = int(profile.reshape(len(profile), 24, -1).sum(axis=2).max(axis=1).argmax())
    if peak not in medoids:
        medoids, size = np.append(medoids, peak), np.append(size, 1)
    rows, weight = [], []
    for m, n in zip(medoids, size, strict=True):
        block, day = divmod(int(m), days)
        rows.append(block * T + day * 24 + np.arange(24))
        weight.append(np.full(24, n / (24 * size.sum())))
    x = _relaxed(t, np.concatenate(rows), np.concatenate(weight), options, began)
    if x is None:
        return _outcome(t, None, options, began, "the relaxation is infeasible, or was not solved within the limit")
    counts = _repaired(t, np.ceil(x - 1e-6), options, began)
    return _outcome(t, counts, options, began, "no repair found within the limit")


def k_medoids(points: Array, k: int, seed: int = 0, rounds: int = 20) -> tuple[Index, Index]:
    """Medoids and cluster sizes of points (n, d): k-means++ seeding, then alternating assignment.

    Returns:
        Indices of the medoids, and how many points each stands for.
    """
    from scipy.spatial.distance import cdist

    random = np.random.default_rng(seed)
    medoids = [int(((points - points.mean(axis=0)) ** 2).sum(axis=1).argmin())]
    while len(medoids) < k:
        nearest = cdist(points, points[medoids]).min(axis=1) ** 2
        if nearest.sum() <= 0:
            break
        medoids.append(int(random.choice(len(points), p=nearest / nearest.sum())))
    chosen = np.array(medoids, dtype=np.intp)
    for _ in range(rounds):
        label = cdist(points, points[chosen]).argmin(axis=1)
        new = chosen.copy()
        for c in range(len(chosen)):
            mine = np.flatnonzero(label == c)
            if len(mine):
                new[c] = mine[cdist(points[mine], points[mine]).sum(axis=1).argmin()]
        if (new == chosen).all():
            break
        chosen = new
    label = cdist(points, points[chosen]).argmin(axis=1)
    return chosen, np.bincount(label, minlength=len(chosen)).astype(np.intp)


def _spread(t: ReservedTables, n: int) -> Index:
    order = np.argsort(t.demand.sum(axis=1), kind="stable")
    return order[np.linspace(0, len(order) - 1, min(n, len(order))).astype(np.intp)]


def _relaxed(t: ReservedTables, rows: Index, weight: Array, options: Options, began: float) -> Array | None:
    """Reservations of the LP over some rows, (C,), flows written out; None if infeasible, or out of time.

    Losses are survived in these rows by cuts. Without them many optima cost the same, and repairs of some 25 % more.
    """
    some = replace(
        t.over(rows, weight), column_step=np.ones_like(t.column_step), column_minimum=np.zeros_like(t.column_minimum),
        column_most=t.most_useful(), egress=np.zeros_like(t.egress), guards=(),
        penalty=np.where(np.isfinite(t.penalty), t.penalty, t.shortfall / weight.min()),
    )  # fmt: skip
    model = TrafficModel(some, (capacity, demand_met))
    m, k = model.compiled(), len(model.k)
    # Hour by hour: in which of many optima the simplex method ends hangs on the order of columns and rows.
    hour = np.concatenate([model.f.labels[2], model.x.labels[1], model.u.labels[1]])
    columns = np.concatenate([np.arange(k), k + np.argsort(hour, kind="stable")])
    used, met = (np.arange(n * len(rows)).reshape(n, len(rows)).T.ravel() for n in t.reach.shape[::-1])
    order = np.concatenate([used, len(used) + met])
    session = Session()
    session.load(m.costs[0][columns], m.A[order][:, columns], m.row_lower[order], m.row_upper[order],
                 m.lower[columns], m.upper[columns])  # fmt: skip
    until = _until(options, began)
    left = None if until is None else max(0.01, until - time.perf_counter())
    if session.run(left) != "optimal":
        return None
    lp = RowLp(t, phase_one=True)
    for _ in range(ROUNDS if t.guards else 0):
        cuts = _lost(t, rows, session.values()[:k], lp)
        if not cuts or _out_of_time(options, began):
            break
        prices = np.array([price for price, _ in cuts])
        at = np.nonzero(prices)
        A = sp.csr_array((prices[at], at), shape=(len(cuts), session.columns))
        session.add_rows(np.array([least for _, least in cuts]), np.full(len(cuts), np.inf), A)
        left = None if until is None else max(0.01, until - time.perf_counter())
        if session.run(left) != "optimal":
            return None
    return session.values()[:k]


def _lost(t: ReservedTables, rows: Index, counts: Array, lp: RowLp) -> list[tuple[Array, float]]:
    """Cuts price·k ≥ least, price (C,), from a short row of every quarter and loss that reservations do not survive."""
    machines, cuts = t.reserved(counts), []
    for q in np.unique(t.quarter[rows]):
        some = rows[t.quarter[rows] == q]
        for guard in t.guards:
            if (short := short_row(t, of_guard(t, guard, some), machines, lp)) is not None:
                missing, price = short
                least = missing + float(price @ machines[:, q])
                cuts.append((price[t.column_sink] * t.column_active[:, q], least))
    return cuts


def on_demand(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """Perfect autoscaling: nothing reserved, every hour bought on demand without delay (SK Fig. 3b's last bar)."""
    began = time.perf_counter()
    if not len(tables.option_sink):
        return _outcome(tables, None, options, began, "the terms allow nothing by the hour")
    return _outcome(tables, np.zeros(len(tables.column_sink)), options, began)


METHODS: dict[str, Method] = {
    "region_local": region_local,
    "global_peak": global_peak,
    "proportional": proportional,
    "greedy": greedy,
    "lp_rounding": lp_rounding,
    "representative_days": representative_days,
    "on_demand": on_demand,
}


def best_of_all(
    problem: ReservedCapacity, t: ReservedTables, options: Options, began: float, below: float = np.inf
) -> tuple[ReservedPlan, str] | None:
    """The cheapest plan among the heuristics and its method; None if none costs less than `below`, USD/month.

    Quick and good ones first, each in the rest of the limit, in most of it while there is no plan. Past it they go
    on with `GRACE` each until there is a plan at all, on a small instance to the end; told to stop, to the first plan.
    """
    until, best, most = _until(options, began), None, below
    small = flow_variables(t) <= SMALL
    quick_first = ("region_local", "proportional", "lp_rounding", "representative_days", *METHODS)
    for name in dict.fromkeys(quick_first):
        left = None if until is None else until - time.perf_counter()
        if most < np.inf and (cancelled() or (left is not None and left <= 0 and not small)):
            break
        share = MOST_OF_IT if most == np.inf else 1.0
        seconds = None if left is None else max(GRACE if small or most == np.inf else 0.01, share * left)
        seconds = GRACE if cancelled() else seconds
        plan = METHODS[name](problem, t, replace(options, time_limit=seconds, on_event=None)).plan
        if plan is not None and plan.cost.total_usd_per_month < most:
            best, most = (plan, name), plan.cost.total_usd_per_month
    return best


def _first_line(method: Callable[..., object]) -> str:
    return (method.__doc__ or "").strip().split("\n")[0]


TITLES = {name: _first_line(method) for name, method in METHODS.items()}
