"""Column generation for tables too large to list in one model, and the certified bound of the linear relaxation.

In the relaxation n_p is the load on p, so that the fleet is shares alone; the families of `formulations.fleet.model`
are stated on them, with that load in the place of n. Given prices σ of limits the best column of a demand is argmin_p
of (C_p + Σ_r σ_r·a_pr)·λ_w·l_wp + penalties, less what its quality is worth: a look-up in the table. For any σ ≥ 0 the
sum of these minima less Σ σ_r·b_r is a lower bound on every fleet (Lagrange); it is evaluated on the whole table, so
the bound does not rest on the linear solver's tolerances. Minimum replicas, reserves and changes are left out, which
keeps it valid.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from formulations.fleet.making import FleetChoice
from formulations.fleet.model import Parameters, demand_met, quality, spot_share, stock, usd, within_budget
from formulations.fleet.points import FleetTables, changes_matter
from formulations.fleet.problem import Fleet
from optmodels.arrays import Array, Index, Mask
from optmodels.formulation import Options
from optmodels.model import Expression, Rows
from optmodels.plans.outcome import Outcome
from optmodels.solver.cancel import cancelled
from optmodels.solver.highs import Report, Status, relative_gap
from optmodels.solver.session import Limit, Session, Settings

Milp = Callable[
    [Fleet, FleetTables, Settings, FleetChoice | None],
    tuple[Report, FleetChoice | None, dict[str, float], dict[str, int]],
]
MOST_PAIRS = 30_000  # of the model that proves; where it has more, bound and gap state how far the proof got
MOST_PAIRS_OPEN = 300_000  # the same where the gap is not even `ENOUGH`
ENOUGH = 2e-3  # gap at which the restricted model may stop if the user asked for none
WIDE = 1e-2  # gap beyond which more points are looked at
NEAREST = 60  # points, of least reduced cost


@dataclass(frozen=True)
class ColumnRelaxation:
    """The linear relaxation of one period.

    Attributes:
        bound: certified lower bound on all costs, USD/h; −inf if there is none.
        w, p, value: shares of the master's solution.
        priced: USD/h of serving w on p alone at the row prices σ, shape (W, P); inf where impossible.
        reduced: least amount by which a fleet with a deployment of p costs more than `bound`, shape (P,).
        feasible: whether a solution of the relaxation was found.
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
    """Minimum cost in one period, without changes, of deployments that each serve requests alone."""
    one = len(problem.periods) <= 1 and problem.running is None and not changes_matter(problem)
    return one and problem.objective == "min_cost" and not problem.deployment.apart


class Coupling(Parameters):
    """The families that hold demands together, over the deployments of one period."""

    def __init__(self, problem: Fleet, tables: FleetTables, t: int) -> None:
        super().__init__(problem, tables)
        P = len(tables.points)
        self.n = self.variable("n", ("t", "p"), (np.full(P, t), np.arange(P)))
        self.state((stock, within_budget))


class ColumnShares(Parameters):
    """Columns of the master problem: shares of pairs (w, p), whose load stands in the place of n.

    Args:
        t: the period.
        w, p: pairs, (n,) each.
        rest: unserved shares, in place of pairs, and ``missing`` ones that break the SLO of who must be served.
    """

    def __init__(self, problem: Fleet, tables: FleetTables, t: int, w: Index, p: Index, rest: bool = False) -> None:
        super().__init__(problem, tables)
        asked = np.flatnonzero(self.rates[t] > 0) if rest else np.zeros(0, dtype=np.intp)
        at = np.full(len(asked), t), asked
        self.x = self.variable("x", ("t", "w", "p"), (np.full(len(w), t), w, p))
        self.n = (self.x * self.load_of(self.x)).by("t", "p")
        unserved = self.variable("s", ("t", "w"), at, upper=1.0 - self.served[asked])
        self.missing = self.variable("missing", ("t", "w"), at)
        self.s = unserved + self.missing
        self.state((demand_met, stock, within_budget, spot_share, quality))


class ColumnMaster:
    """The master problem in HiGHS: it is given columns, solved, and asked for prices.

    Its rows are `demand_met` by w, `stock` by r, `within_budget`, `spot_share` by w and `quality` by i, in
    this order; a row that no column is in is free.
    """

    def __init__(self, demands: int, limits: int, workloads: int, seconds: float | None = None) -> None:
        self.starts = {"demand_met": 0, "stock": demands, "within_budget": demands + limits,
                       "spot_share": demands + limits + 1, "quality": 2 * demands + limits + 1}  # fmt: skip
        self.size = 2 * demands + limits + 1 + workloads
        free = np.full(self.size, np.inf)
        self.session = Session(settings=Settings(seconds))
        nothing = np.zeros(0)
        self.session.load(nothing, sparse.csc_array((self.size, 0)), -free, free, nothing, nothing)

    def positions(self, family: str, rows: Rows) -> Index:
        """Where rows of a family are: their labels are (t, index of its rows)."""
        return self.starts[family] + (rows.labels[1] if len(rows.labels) > 1 else np.zeros(len(rows), dtype=np.intp))

    def add(self, part: ColumnShares, missing_usd: float = 0.0) -> None:
        """Add the columns of shares and the bounds of the rows they are in."""
        entries = [sparse.coo_array((self.size, part.width))]
        for family in part.families:
            rows = part.rows(family)
            at = self.positions(family, rows)
            self.session.set_row_bounds(at, rows.lower, rows.upper)
            where = at[rows.row], rows.columns
            entries.append(sparse.coo_array((rows.coefficients, where), shape=(self.size, part.width)))
        cost = Expression(usd(part)).vector(part.width)
        cost[part.missing.columns] += missing_usd
        lower, upper, _ = part.bounds()
        self.session.add_columns(cost, lower, upper, sum(e.tocsc() for e in entries))


def relaxation(
    problem: Fleet, tables: FleetTables, t: int = 0, rounds: int = 100, seconds: float | None = None
) -> ColumnRelaxation:
    """Solve the relaxation of period t by column generation (see the module's docstring), for at most this many
    seconds.

    Of several capacities one of each point stands for all (`FleetTables.blended`): the bound stays one.
    """
    tables = tables.blended()
    coupling = Coupling(problem, tables, t)
    asked = coupling.rates[t] > 0
    W, P = tables.load.shape
    load = np.full((W, P), np.inf)  # deployments for all of w
    load[asked] = tables.load[asked] * coupling.rates[t, asked, None]
    penalty = tables.usd_per_share(t) if tables.penalty is not None else None
    least = np.where(asked, coupling.served, 0.0)
    price = coupling.usd_unserved * coupling.rates[t]
    families = {family: coupling.rows(family) for family in coupling.families}
    rows = np.concatenate([part.matrix(P).toarray() for part in families.values()])  # (R', P)
    limits = np.concatenate([part.upper for part in families.values()])
    limited = np.flatnonzero(np.isfinite(coupling.spot_share))
    sigma, tau, kappa = np.zeros(len(rows)), np.zeros(W), np.zeros(len(tables.case.workloads))
    worse = None  # (W, P), a demand's contribution on a point to its workload's quality
    if tables.quality is not None:
        worse = -tables.quality * (coupling.rates[t] / np.maximum(coupling.together[t], 1e-300))[:, None]

    def priced() -> Array:
        value = load * (coupling.usd + sigma @ rows)
        if penalty is not None:
            value = value + np.where(np.isfinite(load), penalty, 0.0)
        if len(limited):
            value = value + tau[:, None] * coupling.spot
        if worse is not None:
            value = value + np.where(np.isfinite(load), worse * kappa[coupling.workload, None], 0.0)
        return value

    def bound(value: Array) -> float:
        cheapest = value.min(axis=1) if P else np.full(W, np.inf)
        with np.errstate(invalid="ignore"):
            each = np.where(least > 0, least * cheapest, 0.0) + np.where(
                least < 1, (1 - least) * np.minimum(cheapest, price), 0.0
            )
        return float(each.sum() - sigma @ limits - tau[limited] @ coupling.spot_share[limited])

    value = priced()
    if (~np.isfinite(value).any(axis=1) & (least > 0)).any():
        empty = np.zeros(0, dtype=np.intp)
        return ColumnRelaxation(np.inf, empty, empty, np.zeros(0), value, np.zeros(P), False, 0, 0)
    best_bound, best_prices = bound(value), (sigma, tau, value)
    if not len(rows) and not len(limited) and worse is None:
        w = np.flatnonzero(np.isfinite(value).any(axis=1) & ((value.min(axis=1) <= price) | (least > 0)))
        p = value[w].argmin(axis=1)
        share = np.where(value[w, p] <= price[w], 1.0, least[w])
        reduced = reduced_costs(load, value, coupling.usd)
        return ColumnRelaxation(best_bound, w, p, share, value, reduced, True, 1, len(w))
    master = ColumnMaster(W, len(tables.limits), len(kappa), seconds)
    no_pairs = np.zeros(0, dtype=np.intp)
    rest = ColumnShares(problem, tables, t, no_pairs, no_pairs, rest=True)
    master.add(rest, 10.0 * (np.where(np.isfinite(value), value, 0.0).max() + price.max() + 1.0))
    taken = np.zeros((W, P), dtype=bool)
    listed = [no_pairs]  # positions in (W, P), in the order of their columns

    def add(value: Array, below: Array) -> bool:
        """Give the master the three cheapest pairs of each demand, those below its level; whether any is new."""
        if P == 0:
            return False
        p = np.argpartition(value, min(3, P) - 1, axis=1)[:, :3]
        cheapest = np.zeros_like(taken)
        np.put_along_axis(cheapest, p, True, axis=1)
        new = cheapest & np.isfinite(value) & (value < below[:, None]) & ~taken
        taken[new] = True
        listed.append(np.flatnonzero(new))
        w, p = np.nonzero(new)
        master.add(ColumnShares(problem, tables, t, w, p))
        return bool(new.any())

    at = np.concatenate([master.positions(family, part) for family, part in families.items()])
    add(value, np.full(W, np.inf))
    done, new = 0, True
    x = np.zeros(rest.width)
    x[rest.missing.columns] = 1.0  # serves nothing
    while (
        new and done < rounds and not cancelled() and master.session.run() == "optimal"
    ):  # else any prices so far give a bound
        done += 1
        duals = master.session.row_duals()
        pi, gains = duals[:W], np.maximum(-duals, 0.0)
        sigma, tau, kappa = gains[at], gains[-W - len(kappa) : -len(kappa)], gains[-len(kappa) :]
        value = priced()
        now = bound(value)
        if now > best_bound:
            best_bound, best_prices = now, (sigma, tau, value)
        x = master.session.values()
        new = add(value, pi - 1e-9 * np.maximum(np.abs(pi), 1.0))
    pairs = np.concatenate(listed)[: len(x) - rest.width]
    pairs, share = pairs[order := np.argsort(pairs)], x[rest.width :][order]
    used = share > 1e-9
    w, p = np.divmod(pairs[used], P)
    sigma, tau, value = best_prices
    reduced = reduced_costs(load, value, coupling.usd + sigma @ rows)
    feasible = float(x[rest.missing.columns].sum()) < 1e-7
    return ColumnRelaxation(best_bound, w, p, share[used], value, reduced, feasible, done, len(pairs))


def reduced_costs(load: Array, value: Array, unit: Array) -> Array:
    """Reduced cost of the first deployment of every point: its price less the most that its room can save.

    At prices π_w = min_p value[w, p] a fleet that uses p costs at least the bound plus unit_p − max Σ_w (π_w −
    (value − load·unit)[w, p])·x_w over Σ_w load[w, p]·x_w ≤ 1, 0 ≤ x ≤ 1: a fractional knapsack, filled by density.

    Args:
        load: deployments for all of w, shape (W, P).
        value: USD/h of serving w on p alone at the row prices, shape (W, P).
        unit: USD/h of a deployment at the row prices, shape (P,).
    """
    if not value.size:
        return np.zeros(value.shape[1])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        pi = value.min(axis=1)
        gain = np.where(np.isfinite(value), pi[:, None] - (value - load * unit), 0.0)
        gain = np.maximum(np.nan_to_num(gain, nan=0.0, posinf=0.0, neginf=0.0), 0.0)
        density = np.where(gain > 0, gain / np.maximum(load, 1e-300), 0.0)
    order = np.argsort(-density, axis=0, kind="stable")
    size = np.take_along_axis(np.where(gain > 0, load, 0.0), order, axis=0)
    before = np.cumsum(size, axis=0) - size
    filled = np.clip(1.0 - before, 0.0, size)
    saved: Array = (filled * np.take_along_axis(density, order, axis=0)).sum(axis=0)
    return np.maximum(unit - saved, 0.0)


def select(tables: FleetTables, relaxed: ColumnRelaxation, opening: float = 0.5, most: int = 400) -> Index:
    """Few points that together are nearly as cheap as all: greedy facility location at the row prices.

    Opening p costs `opening`·C_p, what rounding its count up costs on average; a demand uses the cheapest open point.
    Points are added while that lowers the total, then ones that no longer pay are dropped.
    """
    fee = opening * tables.points.usd_per_hour  # good answers are worth something, so that a price may be below 0
    value = relaxed.priced - np.minimum(relaxed.priced.min(axis=1, initial=np.inf), 0.0)[:, None]
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


def components(can: Mask) -> list[tuple[Index, Index]]:
    """Demands and points that are connected by possible pairs; demands without any are in no part."""
    parts = []
    left = can.any(axis=1)
    while left.any():
        rows = np.zeros(len(can), dtype=bool)
        new = np.array([left.argmax()])
        columns = np.zeros(can.shape[1], dtype=bool)
        while len(new):  # demands found, points they can use, demands that can use those, …
            rows[new] = True
            more = can[new].any(axis=0) & ~columns
            columns |= more
            new = np.flatnonzero(can[:, more].any(axis=1) & ~rows)
        left &= ~rows
        parts.append((np.flatnonzero(rows), np.flatnonzero(columns)))
    return parts


def solve(
    problem: Fleet, tables: FleetTables, options: Options, milp: Milp, seconds: dict[str, float], log: dict[str, Any]
) -> Outcome[FleetChoice]:
    """Certified LP bound over the whole table, then the MILP on the few points that matter.

    Returns:
        The choice in terms of `tables`.
    """
    clock = time.perf_counter()
    relaxed = relaxation(problem, tables, seconds=options.time_limit)
    seconds["column_generation"] = spent = time.perf_counter() - clock
    log |= {"lp_bound": relaxed.bound, "lp_rounds": relaxed.rounds, "lp_columns": relaxed.columns}
    if not relaxed.feasible:  # unless a demand has no point at all, a price of missing shares proves nothing
        status: Status = "infeasible" if relaxed.bound == np.inf else "no_solution_found"
        if status != "infeasible" and (cancelled() or (options.time_limit is not None and spent >= options.time_limit)):
            log["reason"] = "stopped in the linear relaxation"
            stopped: Limit = "interrupt" if cancelled() else "time"
            return Outcome(status, None, relaxed.bound, stopped, seconds=seconds, log=log)
        log["reason"] = "the linear relaxation over every point has no solution"
        return Outcome(status, None, seconds=seconds, log=log)
    clock = time.perf_counter()
    opened = np.union1d(select(tables, relaxed), _wanted(tables, relaxed))
    if _spot_is_limited(tables):  # what must not be on spot goes elsewhere
        steady = np.flatnonzero(~tables.points.spot)
        there = replace(relaxed, priced=relaxed.priced[:, steady])
        opened = np.union1d(opened, steady[select(tables.restricted(steady), there)])
    seconds["select"] = time.perf_counter() - clock
    settings = Settings(options.time_limit or 25.0, max(options.gap, ENOUGH), options.seed, on_event=options.on_event)
    for points in (opened, np.union1d(opened, relaxed.p)):  # the points of the relaxation's solution, too, if need be
        opened = points
        restricted = _few_pairs(tables, opened, relaxed)
        start = _rounded(restricted, relaxed.priced[:, opened])
        report, choice, phases, size = milp(problem, restricted, settings, start)
        for phase, spent in phases.items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
        if choice is not None or report.status != "infeasible":
            break
    log |= {"restricted_points": len(opened), "solver": report.message, "nodes": report.nodes}
    if choice is None:
        return Outcome("no_solution_found", None, relaxed.bound, report.limit, seconds, size, log, report.events)
    bound = relaxed.bound
    usd = report.objective if report.objective is not None else np.inf
    answer = on_all(choice, opened, tables)
    left = (options.time_limit or 25.0) - seconds["solve"]
    if (usd - bound) > WIDE * usd and left > 1:  # few deployments, so that rounding costs much: those nearest in price
        near = np.union1d(opened, np.argsort(relaxed.reduced, kind="stable")[:NEAREST])
        restricted, at = _few_pairs(tables, near, relaxed), np.searchsorted(near, opened)
        start = replace(choice, n=spread(choice.n, at, len(near)), p=at[choice.p])
        again, better, phases, size = milp(problem, restricted, replace(settings, time_limit=left / 2), start)
        seconds["solve"] += sum(phases.values())
        if better is not None and again.objective is not None and again.objective < usd - 1e-9:
            usd, answer = again.objective, on_all(better, near, tables)
    clock = time.perf_counter()
    # No fleet with a point of larger reduced cost is better than this one: solve on the others, with all their pairs.
    rest = np.flatnonzero(relaxed.reduced <= (usd - bound) * (1 + 1e-9))
    log["points_after_reduced_cost"] = len(rest)
    goal, limit = max(options.gap, 1e-6), report.limit
    left = (options.time_limit or 25.0) - seconds["solve"]
    pairs = int(np.isfinite(tables.load[:, rest]).sum())
    most = MOST_PAIRS if usd - bound <= ENOUGH * usd else MOST_PAIRS_OPEN
    if pairs > most and (usd - bound) > goal * usd:
        limit = limit if limit == "time" else "memory"  # a model of them all is too large
    elif (usd - bound) > goal * usd and left > 1:
        whole = tables.restricted(rest)
        kept = replace(answer, n=answer.n[:, rest]) if not np.delete(answer.n, rest, axis=1).any() else None
        again, better, more, size = milp(problem, whole, replace(settings, gap=options.gap, time_limit=left), kept)
        if again.bound is not None:
            bound = max(bound, min(again.bound, usd))
        elif again.status == "infeasible":
            bound = usd
        if better is not None and again.objective is not None and again.objective < usd - 1e-9:
            usd = again.objective
            answer = on_all(better, rest, tables)
        seconds["proof"] = sum(more.values())
        limit = again.limit or limit
    gap = relative_gap(usd, bound)
    done = gap is not None and gap <= 1e-6
    return Outcome(
        "optimal" if done else "feasible", answer, bound, None if done else (limit or "gap"), seconds,
        size, log, report.events,
    )  # fmt: skip


def on_all(choice: FleetChoice, points: Index, tables: FleetTables) -> FleetChoice:
    """A choice among some points as one among all."""
    return replace(choice, n=spread(choice.n, points, len(tables.points)), p=points[choice.p])


def _spot_is_limited(tables: FleetTables) -> bool:
    return any(w.spot_share_max < 1 for w in tables.case.workloads)


def spread(n: Index, columns: Index, points: int) -> Index:
    """Counts of some points as counts over all."""
    all_of_them = np.zeros((len(n), points), dtype=np.intp)
    all_of_them[:, columns] = n
    return all_of_them


def _wanted(tables: FleetTables, relaxed: ColumnRelaxation) -> Index:
    """Points that carry whole deployments in the relaxation."""
    load = np.zeros(len(tables.points))
    np.add.at(load, relaxed.p, tables.load[relaxed.w, relaxed.p] * tables.rates[0][relaxed.w] * relaxed.value)
    return np.flatnonzero(load >= 1.0)


def _rounded(tables: FleetTables, priced: Array) -> FleetChoice:
    """Every demand on the point where it costs least, counts rounded up: a plan in no time, unless a limit is broken.

    Args:
        tables: tables of few points.
        priced: USD/h of a whole demand on each of them at the row prices, (W, P).
    """
    w = np.flatnonzero(np.isfinite(tables.load).any(axis=1) & (tables.rates[0] > 0))
    p = np.where(np.isfinite(tables.load), priced, np.inf)[w].argmin(axis=1)
    load = np.bincount(p, tables.load[w, p] * tables.rates[0][w], len(tables.points))
    return FleetChoice(np.ceil(load).astype(np.intp)[None], np.zeros_like(w), w, p, np.ones(len(w)))


def _few_pairs(tables: FleetTables, opened: Index, relaxed: ColumnRelaxation, most: int = 12) -> FleetTables:
    """Only the opened points, and of every demand the pairs with the `most` cheapest.

    Where spot shares are limited, also with the cheapest not on spot; points in the relaxation's solution stay, too.
    """
    priced = relaxed.priced[:, opened]
    keep = np.zeros(relaxed.priced.shape, dtype=bool)
    groups = [np.arange(len(opened))]
    if _spot_is_limited(tables):
        groups.append(np.flatnonzero(~tables.points.spot[opened]))
    for columns in groups:
        few = min(most, len(columns))
        if few:
            best = columns[np.argpartition(priced[:, columns], few - 1, axis=1)[:, :few]]
            np.put_along_axis(keep, opened[best], True, axis=1)
    keep[relaxed.w, relaxed.p] = True
    part = tables.restricted(opened)
    return replace(part, load=np.where(keep[:, opened], part.load, np.inf))
