"""Column generation for tables too large to list in one model, and the certified bound of the linear relaxation.

In the relaxation n_p is the load on p, so that the fleet is shares alone: min Σ c_wp·x_wp with Σ_p x_wp (+ unserved)
= 1 and a few coupling rows (stock, quota, budget, spot shares). Given prices σ of those rows the best column of a
demand is argmin_p of (C_p + Σ_r σ_r·a_pr)·λ_w·l_wp + penalties: a look-up in the table. For any σ ≥ 0 the sum of those
minima less Σ σ_r·b_r is a lower bound on every fleet (Lagrange); it is evaluated on the whole table, so the bound does
not rest on the linear solver's tolerances. Minimum replicas, reserves and changes are left out, which keeps it valid.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from formulations.fleet.plan import Choice
from formulations.fleet.points import FleetTables, changes_matter
from formulations.fleet.problem import Fleet
from optmodels.errors import SolverError
from optmodels.formulation import Options
from optmodels.plan.outcome import Outcome
from optmodels.solver.highs import Report, Settings, relative_gap

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Milp = Callable[
    [Fleet, FleetTables, Settings, Choice | None], tuple[Report, Choice | None, dict[str, float], dict[str, int]]
]
MOST_PAIRS = 30_000  # of the model that proves
ENOUGH = 2e-3  # gap at which the restricted model may stop if the user asked for none


@dataclass(frozen=True)
class Relaxation:
    """The linear relaxation of one period.

    Attributes:
        bound: certified lower bound on all costs, USD/h; −inf if there is none.
        w, p, value: shares of the master's solution.
        priced: USD/h of all of w on p at the row prices σ, shape (W, P); inf where impossible.
        reduced: by how much a fleet with a deployment of p costs more than `bound`, at least, shape (P,).
        feasible: whether the relaxation has a solution.
        rounds, columns: of the column generation.
    """

    bound: float
    w: Index
    p: Index
    value: Array
    priced: Array
    reduced: Array
    feasible: bool
    rounds: int
    columns: int


def applies(problem: Fleet) -> bool:
    """Minimum cost in one period, without changes."""
    one = len(problem.periods) <= 1 and problem.running is None and not changes_matter(problem)
    return one and problem.objective == "min_cost"


def relaxation(problem: Fleet, tables: FleetTables, t: int = 0, rounds: int = 100) -> Relaxation:
    """Solve the relaxation of period t by column generation (see the module's docstring)."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix

    case, points = tables.case, tables.points
    rates = tables.rates[t]
    W, P = tables.load.shape
    load = tables.load * rates[:, None]  # deployments for all of w
    load[rates == 0] = 0.0
    penalty = tables.usd_per_share(t) if tables.penalty is not None else None
    least = np.array([case.serve_at_least(case.workload(d.workload)) for d in tables.demands])
    least[rates == 0] = 0.0
    price = np.array([case.workload(d.workload).unserved_usd_per_1000_requests * 3.6 for d in tables.demands]) * rates
    # Coupling rows: weights per deployment, and spot shares per demand.
    rows, limits = tables.consumption.T, tables.limits
    if problem.budget_usd_per_hour is not None:
        rows = np.concatenate([rows, points.usd_per_hour[None, :]])
        limits = np.append(limits, problem.budget_usd_per_hour)
    spot_limit = np.array([case.workload(d.workload).spot_share_max for d in tables.demands])
    limited = np.flatnonzero(spot_limit < 1)
    sigma, tau = np.zeros(len(rows)), np.zeros(W)

    def priced() -> Array:
        unit = points.usd_per_hour + sigma @ rows if len(rows) else points.usd_per_hour
        value = load * unit
        if penalty is not None:
            value = value + np.where(np.isfinite(load), penalty, 0.0)
        if len(limited):
            value = value + tau[:, None] * points.spot
        return value

    def bound(value: Array) -> float:
        cheapest = value.min(axis=1) if P else np.full(W, np.inf)
        with np.errstate(invalid="ignore"):
            each = np.where(least > 0, least * cheapest, 0.0) + np.where(
                least < 1, (1 - least) * np.minimum(cheapest, price), 0.0
            )
        return float(each.sum() - sigma @ limits - tau[limited] @ spot_limit[limited])

    value = priced()
    if (~np.isfinite(value).any(axis=1) & (least > 0)).any():
        empty = np.zeros(0, dtype=np.intp)
        return Relaxation(np.inf, empty, empty, np.zeros(0), value, np.zeros(P), False, 0, 0)
    pairs: set[tuple[int, int]] = set()

    def add(value: Array, most: int, below: Array | None) -> int:
        """The `most` cheapest pairs of each demand (below a level); how many were new."""
        before = len(pairs)
        if P == 0:
            return 0
        best = np.argpartition(value, min(most, P) - 1, axis=1)[:, : min(most, P)]
        for w in range(W):
            for p in best[w]:
                if np.isfinite(value[w, p]) and (below is None or value[w, p] < below[w]):
                    pairs.add((w, int(p)))
        return len(pairs) - before

    add(value, 1 if not len(rows) and not len(limited) else 3, None)
    best_bound, best_prices = bound(value), (sigma, tau, value)
    if not len(rows) and not len(limited):
        w = np.flatnonzero(np.isfinite(value).any(axis=1) & ((value.min(axis=1) <= price) | (least > 0)))
        p = value[w].argmin(axis=1)
        share = np.where(value[w, p] <= price[w], 1.0, least[w])
        reduced = reduced_costs(load, value, points.usd_per_hour)
        return Relaxation(best_bound, w, p, share, value, reduced, True, 1, len(w))
    huge = 10.0 * (np.where(np.isfinite(value), value, 0.0).max() + price.max() + 1.0)
    x = np.zeros(0)
    listed: list[tuple[int, int]] = []
    artificial = 0.0
    done = 0
    for _ in range(rounds):
        done += 1
        listed = sorted(pairs)
        i = np.array([k[0] for k in listed], dtype=np.intp)
        j = np.array([k[1] for k in listed], dtype=np.intp)
        own = load[i, j] * points.usd_per_hour[j] + (penalty[i, j] if penalty is not None else 0.0)
        n = len(listed)
        # Columns: shares, then unserved, then artificial.
        c = np.concatenate([own, price, np.full(W, huge)])
        eye = np.arange(W)
        equal = csr_matrix(
            (np.ones(n + 2 * W), (np.concatenate([i, eye, eye]), np.arange(n + 2 * W))), shape=(W, n + 2 * W)
        )
        upper = np.zeros((len(rows) + len(limited), n + 2 * W))
        upper[: len(rows), :n] = rows[:, j] * load[i, j]
        for k, limited_demand in enumerate(limited):
            upper[len(rows) + k, :n] = (i == limited_demand) & points.spot[j]
        rhs = np.concatenate([limits, spot_limit[limited]])
        ends = np.concatenate([np.full(n, np.inf), 1 - least, np.full(W, np.inf)])
        solved: Any = linprog(  # type: ignore[call-overload]
            c, A_ub=csr_matrix(upper), b_ub=rhs, A_eq=equal, b_eq=np.ones(W),
            bounds=np.stack([np.zeros(n + 2 * W), ends], axis=1), method="highs",
        )  # fmt: skip
        if solved.x is None:
            raise SolverError(f"the master problem was not solved: {solved.message}")
        x, artificial = solved.x[:n], float(solved.x[n + W :].sum())
        dual = np.maximum(-np.asarray(solved.ineqlin.marginals), 0.0)
        sigma, tau = dual[: len(rows)], np.zeros(W)
        tau[limited] = dual[len(rows) :]
        value = priced()
        now = bound(value)
        if now > best_bound:
            best_bound, best_prices = now, (sigma, tau, value)
        pi = np.asarray(solved.eqlin.marginals)
        if add(value, 3, pi - 1e-9 * np.maximum(np.abs(pi), 1.0)) == 0:
            break
    used = np.flatnonzero(x > 1e-9)
    sigma, tau, value = best_prices
    reduced = reduced_costs(load, value, points.usd_per_hour + (sigma @ rows if len(rows) else 0.0))
    return Relaxation(
        best_bound, np.array([listed[k][0] for k in used], dtype=np.intp),
        np.array([listed[k][1] for k in used], dtype=np.intp), x[used], value, reduced, artificial < 1e-7,
        done, len(listed),
    )  # fmt: skip


def reduced_costs(load: Array, value: Array, unit: Array) -> Array:
    """Reduced cost of the first deployment of every point: its price less the most that its room can save.

    At prices π_w = min_p value[w, p] a fleet that uses p costs at least the bound plus unit_p − max Σ_w (π_w −
    (value − load·unit)[w, p])·x_w over Σ_w load[w, p]·x_w ≤ 1, 0 ≤ x ≤ 1: a fractional knapsack, filled by density.

    Args:
        load: deployments for all of w, shape (W, P).
        value: USD/h of all of w on p at the row prices, shape (W, P).
        unit: USD/h of a deployment at the row prices, shape (P,).
    """
    if not value.size:
        return np.zeros(value.shape[1])
    with np.errstate(invalid="ignore", divide="ignore"):
        pi = value.min(axis=1)
        worth = np.where(np.isfinite(value), pi[:, None] - (value - load * unit), 0.0)
        worth = np.maximum(np.nan_to_num(worth, nan=0.0, posinf=0.0, neginf=0.0), 0.0)
        density = np.where(worth > 0, worth / np.maximum(load, 1e-300), 0.0)
    order = np.argsort(-density, axis=0, kind="stable")
    size = np.take_along_axis(np.where(worth > 0, load, 0.0), order, axis=0)
    before = np.cumsum(size, axis=0) - size
    filled = np.clip(1.0 - before, 0.0, size)
    saved: Array = (filled * np.take_along_axis(density, order, axis=0)).sum(axis=0)
    return np.maximum(unit - saved, 0.0)


def select(tables: FleetTables, relaxed: Relaxation, opening: float = 0.5, most: int = 400) -> Index:
    """Few points that together are nearly as cheap as all: greedy facility location at the row prices.

    Opening p costs `opening`·C_p, what rounding its count up costs on average; a demand uses the cheapest open point.
    Points are added while that lowers the total, then ones that no longer pay are dropped.
    """
    value, fee = relaxed.priced, opening * tables.points.usd_per_hour
    finite = np.where(np.isfinite(value), value, np.nanmax(np.where(np.isfinite(value), value, np.nan)) * 1e3)
    can = np.isfinite(value)
    opened: list[int] = []
    # Demands of different models share no points, so their choices are independent.
    for rows, columns in components(can):
        part = finite[np.ix_(rows, columns)]
        cost = fee[columns]
        current = np.full(len(rows), part.max() * 10)
        mine: list[int] = []
        while len(mine) < most:
            gain = np.maximum(current[:, None] - part, 0.0).sum(axis=0) - cost
            gain[mine] = -np.inf
            k = int(gain.argmax())
            if gain[k] <= 0:
                break
            mine.append(k)
            current = np.minimum(current, part[:, k])
        for k in list(mine):
            rest = [q for q in mine if q != k]
            if rest and part[:, rest].min(axis=1).sum() - part[:, mine].min(axis=1).sum() < cost[k]:
                mine = rest
        opened += columns[mine].tolist()
    return np.array(sorted(opened), dtype=np.intp)


def components(can: npt.NDArray[np.bool_]) -> list[tuple[Index, Index]]:
    """Demands and points that are connected by possible pairs; demands without any are in no part."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    W, P = can.shape
    i, j = np.nonzero(can)
    graph = coo_matrix((np.ones(len(i)), (i, j + W)), shape=(W + P, W + P))
    number, label = connected_components(graph, directed=False)
    parts = []
    for k in range(number):
        rows, columns = np.flatnonzero(label[:W] == k), np.flatnonzero(label[W:] == k)
        if len(rows) and len(columns):
            parts.append((rows, columns))
    return parts


def solve(
    problem: Fleet, tables: FleetTables, options: Options, milp: Milp, seconds: dict[str, float], log: dict[str, Any]
) -> Outcome[Choice]:
    """Certified LP bound over the whole table, then the MILP on the few points that matter.

    Returns:
        The choice in terms of `tables`.
    """
    clock = time.perf_counter()
    relaxed = relaxation(problem, tables)
    seconds["column_generation"] = time.perf_counter() - clock
    log |= {"lp_bound": relaxed.bound, "lp_rounds": relaxed.rounds, "lp_columns": relaxed.columns}
    if not relaxed.feasible:
        log["reason"] = "the linear relaxation over every point has no solution"
        return Outcome("infeasible", None, seconds=seconds, log=log)
    clock = time.perf_counter()
    opened = np.union1d(select(tables, relaxed), _wanted(tables, relaxed))
    restricted = _few_pairs(tables.restricted(opened), relaxed.priced[:, opened])
    seconds["select"] = time.perf_counter() - clock
    log["restricted_points"] = len(opened)
    settings = Settings(options.time_limit or 25.0, max(options.gap, ENOUGH), options.seed, on_event=options.on_event)
    report, choice, phases, size = milp(problem, restricted, settings, None)
    seconds |= phases
    log |= {"solver": report.message, "nodes": report.nodes}
    if choice is None:
        return Outcome("no_solution_found", None, relaxed.bound, report.limit, seconds, size, log, report.events)
    bound = relaxed.bound
    usd = report.objective if report.objective is not None else np.inf
    answer = replace(choice, n=_spread(choice.n, opened, len(tables.points)), p=opened[choice.p])
    clock = time.perf_counter()
    # No fleet with a point of larger reduced cost is better than this one: solve on the others, with all their pairs.
    rest = np.flatnonzero(relaxed.reduced <= (usd - bound) * (1 + 1e-9))
    log["points_after_reduced_cost"] = len(rest)
    goal = max(options.gap, 1e-6)
    left = (options.time_limit or 25.0) - sum(v for k, v in phases.items() if k == "solve")
    pairs = int(np.isfinite(tables.load[:, rest]).sum())
    if (usd - bound) > goal * usd and pairs <= MOST_PAIRS and left > 1:
        whole = tables.restricted(rest)
        start = replace(answer, n=answer.n[:, rest]) if not np.delete(answer.n, rest, axis=1).any() else None
        again, better, more, size = milp(problem, whole, replace(settings, gap=options.gap, time_limit=left), start)
        if again.bound is not None:
            bound = max(bound, min(again.bound, usd))
        elif again.status == "infeasible":
            bound = usd
        if better is not None and again.objective is not None and again.objective < usd - 1e-9:
            usd = again.objective
            answer = replace(better, n=_spread(better.n, rest, len(tables.points)), p=rest[better.p])
        seconds["proof"] = sum(more.values())
    gap = relative_gap(usd, bound)
    done = gap is not None and gap <= 1e-6
    return Outcome(
        "optimal" if done else "feasible", answer, bound, None if done else (report.limit or "gap"), seconds,
        size, log, report.events,
    )  # fmt: skip


def _spread(n: Index, columns: Index, points: int) -> Index:
    """Counts of some points as counts of all."""
    all_of_them = np.zeros((len(n), points), dtype=np.intp)
    all_of_them[:, columns] = n
    return all_of_them


def _wanted(tables: FleetTables, relaxed: Relaxation) -> Index:
    """Points that carry whole deployments in the relaxation."""
    load = np.zeros(len(tables.points))
    np.add.at(load, relaxed.p, tables.load[relaxed.w, relaxed.p] * tables.rates[0][relaxed.w] * relaxed.value)
    return np.flatnonzero(load >= 1.0)


def _few_pairs(tables: FleetTables, priced: Array, most: int = 12) -> FleetTables:
    """Only the `most` cheapest points of every demand."""
    if priced.shape[1] <= most:
        return tables
    best = np.argpartition(priced, most - 1, axis=1)[:, :most]
    keep = np.zeros(priced.shape, dtype=bool)
    np.put_along_axis(keep, best, True, axis=1)
    return replace(tables, load=np.where(keep, tables.load, np.inf))
