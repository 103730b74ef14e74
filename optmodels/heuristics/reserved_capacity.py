"""Reservation plans without a proof: the practice SkyLB starts from, its global pool, and ways to come close.

Each rule decides reserved machines; what remains is bought by the hour where that is allowed (`dispatch`), and rules
that must not buy are repaired until every hour is served.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from optmodels.formulation import Method, Options
from optmodels.plan.outcome import Outcome
from optmodels.plan.reserved_capacity import ReservedPlan, make_plan
from optmodels.points.reserved_capacity import Array, Index, ReservedTables, deviations
from optmodels.points.reserved_dispatch import RowLp, dispatch, greedy_flows
from optmodels.problem.reserved_capacity import ReservedCapacity

ROUNDS = 400
STEP = 0.25  # of what would help the worst row
SERVED = 1e-9


def _cheapest(t: ReservedTables) -> Index:
    """For every sink the reservation with the least USD/month that runs from the first quarter, or −1."""
    best = np.full(len(t.sink_region), -1, dtype=np.intp)
    for c in np.argsort(-t.column_usd_per_month, kind="stable"):
        if t.column_quarter[c] == 0:
            best[t.column_sink[c]] = c
    return best


def _outcome(t: ReservedTables, counts: Array | None, began: float, reason: str = "") -> Outcome[ReservedPlan]:
    if counts is None:
        seconds = {"solve": time.perf_counter() - began}
        return Outcome("no_solution_found", None, seconds=seconds, log={"reason": reason})
    counts = _legal(t, counts)
    broken = _broken(t, counts)
    if broken:
        seconds = {"solve": time.perf_counter() - began}
        return Outcome("no_solution_found", None, seconds=seconds, log={"reason": broken})
    found = dispatch(t, t.reserved(counts))
    seconds = {"solve": time.perf_counter() - began}
    if found.short(t) > 1e-7:
        return Outcome("no_solution_found", None, seconds=seconds, log={"reason": "some hour cannot be served"})
    return Outcome("feasible", make_plan(t, counts, found), seconds=seconds)


def _broken(t: ReservedTables, counts: Array) -> str:
    """What the reservations break before anything is served: availability, or a loss to survive; empty if nothing."""
    if (t.reserved(counts) > t.sink_most[:, None] + 1e-9).any():
        return "needs more machines than can be reserved somewhere"
    if not t.guards:
        return ""
    lp = RowLp(t, phase_one=True)
    for demand, machines in _short_rows(t, counts, losses_only=True):
        lp.solve(demand, machines)
        if lp.objective > 1e-7 * max(float(demand.sum()), 1e-12):
            return "does not survive every loss that the instance names"
    return ""


def _legal(t: ReservedTables, counts: Array) -> Array:
    """Counts rounded up to steps and minima."""
    counts = np.ceil(counts / t.column_step - 1e-9) * t.column_step
    return np.where((counts > 0) & (counts < t.column_minimum), t.column_minimum, counts)


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


Case = tuple[Array, Array, Array]  # demand (H, I), share of reservations that survives (J,), further machines (J,)


def _cases(t: ReservedTables, losses_only: bool = False) -> list[Case]:
    """What reservations must serve: every row, unless the rest is bought by the hour, and every loss."""
    cases = [
        (t.demand * f, g.alive, np.where(np.isinf(g.extra), 1e9, g.extra)) for g in t.guards for f in deviations(t, g)
    ]
    if not losses_only and not len(t.option_sink):
        cases.insert(0, (t.demand, np.ones(len(t.sink_region)), np.zeros(len(t.sink_region))))
    return cases


def _short_in(t: ReservedTables, case: Case, machines: Array, most: int) -> list[tuple[float, Array, Array]]:
    """(requests/s short, demand, machines) of rows of a case that the greedy flow does not serve; worst first."""
    demand, alive, extra = case
    have = (alive[:, None] * machines + extra[:, None]).T[t.quarter]
    left, _ = greedy_flows(t, demand, have)
    short = left.sum(axis=1)
    rows = np.flatnonzero(short > SERVED * np.maximum(demand.sum(axis=1), 1e-12))
    return [(float(short[h]), demand[h], have[h]) for h in rows[np.argsort(-short[rows], kind="stable")][:most]]


def _short_rows(t: ReservedTables, counts: Array, losses_only: bool = False) -> list[tuple[Array, Array]]:
    """(demand, machines) of rows, losses included, that the greedy flow does not serve; worst first."""
    machines, most = t.reserved(counts), 200 if losses_only else 30
    found = [x for case in _cases(t, losses_only) for x in _short_in(t, case, machines, most)]
    return [(d, m) for _, d, m in sorted(found, key=lambda x: -x[0])]


def _repair(t: ReservedTables, counts: Array, options: Options, began: float) -> Array | None:
    """Add the cheapest machine that helps the worst row of a case, case after case, until every row is served.

    The LP's dual says what helps; a case that was short is tried again first.
    """
    best, lp, cases = _cheapest(t), RowLp(t, phase_one=True), _cases(t)
    counts, at, served = counts.copy(), 0, 0
    for _ in range(ROUNDS * max(1, len(cases))):
        if served == len(cases):
            return counts
        if options.time_limit is not None and time.perf_counter() - began > options.time_limit:
            return None
        for _, demand, machines in _short_in(t, cases[at], t.reserved(counts), 30):
            lp.solve(demand, machines)
            if lp.objective > 1e-7 * max(float(demand.sum()), 1e-12):
                break
        else:
            at, served = (at + 1) % len(cases), served + 1
            continue
        served = 0
        z = lp.duals()[1] * cases[at][1]  # a machine that is lost does not help
        usd = np.array([t.column_usd_per_month[c] if c >= 0 else np.inf for c in best])
        room = t.sink_most - t.reserved(counts).max(axis=1)
        value = np.where((z > 1e-12) & (best >= 0) & (room >= 1), z / usd, 0.0)
        if not value.any():
            return None
        j = int(value.argmax())
        step = max(1.0, min(np.ceil(STEP * lp.objective / z[j]), room[j]))  # not all at once: others help too
        again = np.zeros_like(counts)
        again[best[j]] = step
        counts += _renew(t, again)
    return None


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
        return _outcome(tables, None, began, "a region has users and no machine to reserve")
    out = _outcome(_alone(tables), _counts_of(tables, found[0]), began)
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
        return _outcome(t, None, began, "nothing to reserve")
    strength = 1.0 / np.array([t.work[t.reach[:, j], j].min(initial=np.inf) for j in usable])
    j = usable[int(np.argmin(t.column_usd_per_month[best[usable]] / strength))]
    machines = np.zeros(len(t.sink_region))
    load = np.array(
        [t.work[i, j] if t.reach[i, j] else t.work[i][t.reach[i]].min(initial=0.0) for i in range(len(t.reach))]
    )
    machines[j] = float((t.demand @ load).max(initial=0.0))
    return _outcome(t, _counts_of(t, machines), began)


def proportional(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """The global peak split over regions in proportion to their own peaks, scaled up until every hour is served."""
    began, t = time.perf_counter(), tables
    found = _own_peaks(t)
    if found is None:
        return _outcome(t, None, began, "a region has users and no machine to reserve")
    peaks = found[0]
    low = float((t.demand.sum(axis=1)).max(initial=0.0) / max(1e-12, t.demand.max(axis=0).sum()))
    high = 1.0
    while _short_rows(t, _counts_of(t, high * peaks)) and high < 16:
        high *= 2
    if high >= 16:
        return _outcome(t, _repair(t, _counts_of(t, peaks), options, began), began, "no repair found within the limit")
    low = min(low, high)
    if _short_rows(t, _counts_of(t, low * peaks)):
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (middle, high) if _short_rows(t, _counts_of(t, middle * peaks)) else (low, middle)
    else:
        high = low
    return _outcome(t, _counts_of(t, high * peaks), began)


def greedy(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """From nothing, add the reservation that serves most of the worst hour per dollar, until every hour is served.

    Where machines can be bought by the hour, a reservation is added while it saves more than it costs.
    """
    began, t = time.perf_counter(), tables
    counts = _repair(t, np.zeros(len(t.column_sink)), options, began)
    if counts is not None and len(t.option_sink):
        counts = _while_it_saves(t, counts, options, began)
    return _outcome(t, counts, began, "stopped at the limit, or no reservation helps the hours that are short")


def _while_it_saves(t: ReservedTables, counts: Array, options: Options, began: float) -> Array:
    """Marginal value by the duals of sampled rows, in growing and shrinking steps."""
    best, lp = _cheapest(t), RowLp(t, tie_break=False)
    sample = np.unique(np.linspace(0, len(t.demand) - 1, 96).astype(np.intp))
    sample = np.argsort(t.demand.sum(axis=1), kind="stable")[sample]
    share = 1.0 / len(sample)
    usd = np.array([t.column_usd_per_month[c] if c >= 0 else np.inf for c in best])
    step = np.maximum(1.0, np.ceil((t.demand.max(axis=0) @ t.work) / 16))
    for _ in range(60):
        if options.time_limit is not None and time.perf_counter() - began > options.time_limit:
            break
        machines, worth = t.reserved(counts), np.zeros(len(t.sink_region))
        for h in sample:
            lp.solve(t.demand[h], machines[:, t.quarter[h]])
            worth += share * 730.0 * lp.duals()[1]
        room = t.sink_most - machines.max(axis=1) >= step
        gain = np.where((best >= 0) & room, worth / usd, 0.0)
        j = int(gain.argmax())
        if gain[j] <= 1.0:
            if step.max() <= 1:
                break
            step = np.maximum(1.0, np.floor(step / 2))
            continue
        again = np.zeros_like(counts)
        again[best[j]] = step[j]
        counts = counts + _renew(t, again)
    return counts


def lp_rounding(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """The LP over representative hours, rounded to the nearest machine, then repaired on all hours."""
    began, t = time.perf_counter(), tables
    rows = np.unique(np.concatenate([t.demand.argmax(axis=0), [int(t.demand.sum(axis=1).argmax())], _spread(t, 48)]))
    x = _relaxed(t, rows, np.full(len(rows), 1.0 / len(rows)))
    if x is None:
        return _outcome(t, None, began, "the relaxation is infeasible")
    return _outcome(t, _repair(t, np.floor(x + 0.5), options, began), began, "no repair found within the limit")


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
    x = _relaxed(t, np.concatenate(rows), np.concatenate(weight))
    if x is None:
        return _outcome(t, None, began, "the relaxation is infeasible")
    return _outcome(t, _repair(t, np.ceil(x - 1e-6), options, began), began, "no repair found within the limit")


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
    picked: Index = order[np.linspace(0, len(order) - 1, min(n, len(order))).astype(np.intp)]
    return picked


def _relaxed(t: ReservedTables, rows: Index, weight: Array) -> Array | None:
    """Reservations of the LP over some rows, (C,), flows written out; None if infeasible."""
    import scipy.sparse as sp
    from scipy import optimize

    source, sink = np.nonzero(t.reach)
    F, O, C, (I, J), H = len(source), len(t.option_sink), len(t.column_sink), t.reach.shape, len(rows)  # noqa: E741
    balance = sp.csr_array((np.ones(F), (source, np.arange(F))), shape=(I, F))
    use = sp.csr_array((t.work[source, sink], (sink, np.arange(F))), shape=(J, F))
    buy = sp.csr_array((-np.ones(O), (t.option_sink, np.arange(O))), shape=(J, O))
    quarter = [
        sp.csr_array((-t.column_active[:, q], (t.column_sink, np.arange(C))), shape=(J, C)) for q in range(t.quarters)
    ]
    finite = np.where(np.isfinite(t.penalty), t.penalty, 1e7)
    eye = sp.eye_array(H)
    A_eq: Any = sp.hstack(
        [sp.csr_array((H * I, C)), sp.kron(eye, sp.hstack([balance, sp.csr_array((I, O)), sp.eye_array(I)]))]
    )
    A_ub: Any = sp.hstack([
        sp.vstack([quarter[t.quarter[h]] for h in rows]), sp.kron(eye, sp.hstack([use, buy, sp.csr_array((J, I))]))
    ])  # fmt: skip
    hourly = np.concatenate([np.zeros(F), t.option_usd_per_hour, finite]) * 730.0
    cost = np.concatenate([t.column_usd_per_month, (weight[:, None] * hourly).ravel()])
    most = np.concatenate([np.full(F, np.inf), t.option_most, np.full(I, np.inf)])
    bounds = np.stack([np.zeros(C + H * (F + O + I)), np.concatenate([t.most_useful(), np.tile(most, H)])], axis=1)
    solve_lp: Any = optimize.linprog  # its stubs know no sparse arrays
    result = solve_lp(cost, A_ub=A_ub.tocsr(), b_ub=np.zeros(H * J), A_eq=A_eq.tocsr(), b_eq=t.demand[rows].ravel(),
                     bounds=bounds, method="highs")  # fmt: skip
    return result.x[:C] if result.status == 0 else None


def on_demand(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """Perfect autoscaling: nothing reserved, every hour bought on demand without delay (SK Fig. 3b's last bar)."""
    began = time.perf_counter()
    if not len(tables.option_sink):
        return _outcome(tables, None, began, "the terms allow nothing by the hour")
    return _outcome(tables, np.zeros(len(tables.column_sink)), began)


METHODS: dict[str, Method] = {
    "region_local": region_local,
    "global_peak": global_peak,
    "proportional": proportional,
    "greedy": greedy,
    "lp_rounding": lp_rounding,
    "representative_days": representative_days,
    "on_demand": on_demand,
}


def _first_line(method: Callable[..., object]) -> str:
    return (method.__doc__ or "").strip().split("\n")[0]


TITLES = {name: _first_line(method) for name, method in METHODS.items()}
