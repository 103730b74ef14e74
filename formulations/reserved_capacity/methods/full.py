"""The method ``full``: the flow formulation as it stands in `formulations.reserved_capacity.model`."""

from __future__ import annotations

import heapq
import itertools
import time
from dataclasses import replace
from typing import Any

import numpy as np

from formulations.reserved_capacity.dispatch import RowLp, dispatch
from formulations.reserved_capacity.losses import of_guard, short_row
from formulations.reserved_capacity.making import counts_of, make_plan
from formulations.reserved_capacity.methods.exact import exact
from formulations.reserved_capacity.methods.flows import SMALL, flow_variables, solve_flows
from formulations.reserved_capacity.methods.heuristics import best_of_all
from formulations.reserved_capacity.plan import ReservedPlan
from formulations.reserved_capacity.points import Array, Index, ReservedTables
from formulations.reserved_capacity.problem import ReservedCapacity
from optmodels.formulation import Options
from optmodels.plans.outcome import Outcome
from optmodels.solver.highs import PROVED, relative_gap

MOST_FLOWS = 1_000_000
MERGED_FLOWS = 50_000  # of the relaxation that takes the place of a larger model
FIRST_SHARE = 0.4  # of a time limit that this takes before a model that is not small
PLANS_SHARE = 0.5  # the heuristics' share


def full(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """The full flow formulation as it stands above, by HiGHS: the reference, for small and middling sizes.

    Beyond `MOST_FLOWS` flow variables the model of merged rows gives the bound (`merged`), and the plan is the best of
    those of all heuristics and of the reservations that are the optimum there. With a limit a model that is not small
    starts from these.
    """
    began = time.perf_counter()
    if not len(tables.sink_region) or not len(tables.source_region):
        return exact(problem, tables, options)
    flows, limit = flow_variables(tables), options.time_limit
    if flows > MOST_FLOWS:
        return _by_merged_rows(problem, tables, options)
    known, start = None, None
    if flows > SMALL and limit is not None:
        known = _by_merged_rows(problem, tables, replace(options, time_limit=FIRST_SHARE * limit))
        if known.status in ("optimal", "infeasible"):
            return known
        start = None if known.plan is None else counts_of(tables, known.plan)
        options = replace(options, time_limit=max(1.0, limit - (time.perf_counter() - began)))
    solved, counts, size, seconds = solve_flows(tables, options, start)
    log = {"solver": solved.message, "nodes": solved.nodes}
    clock = time.perf_counter()
    plan = None if counts is None else _with(tables, counts, None)  # None: a hair short, within HiGHS' tolerance
    seconds["extract"] = time.perf_counter() - clock
    status, bound = solved.status, solved.bound
    lacking = counts is not None and plan is None
    if lacking:
        log["reason"] = "the point found lacks a hair of the demand: a plan of the heuristics"
    if solved.limit == "time" or lacking:  # no heuristic is to have a better plan
        below = np.inf if plan is None else plan.cost.total_usd_per_month
        if known is None:
            other = best_of_all(problem, tables, options, began, below)
        else:
            other = None if known.plan is None else (known.plan, str(known.log["plan_of"]))
            if known.bound is not None and (bound is None or bound < known.bound):
                bound, log["reason"] = known.bound, known.log["reason"]
        if other is not None and other[0].cost.total_usd_per_month < below:
            plan, log["plan_of"] = other
        status = "no_solution_found" if plan is None else "feasible"
    stopped = solved.limit or ("gap" if status == "feasible" else None)
    return Outcome(status, plan, bound, stopped, seconds, size, log, solved.events)


def _by_merged_rows(problem: ReservedCapacity, t: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """Plans of heuristics, and the bound of the model of merged rows."""
    began, flows = time.perf_counter(), flow_variables(t)
    limit = options.time_limit
    until = None if limit is None else began + limit
    part = merged(t, MERGED_FLOWS * len(t.demand) // flows)
    small_enough = flow_variables(part) <= MOST_FLOWS
    bound_of = f"the bound is of {len(part.demand):,} rows, merged of {len(t.demand):,}" if small_enough else "no bound"
    log: dict[str, Any] = {"reason": f"{flows:,} flow variables: {bound_of}; exact needs none"}
    share = None if limit is None else PLANS_SHARE * limit
    best = best_of_all(problem, t, replace(options, time_limit=share), began)
    seconds = {"heuristics": time.perf_counter() - began}
    if best is not None:
        log["plan_of"] = best[1]
    plan = None if best is None else best[0]
    if not small_enough:
        return Outcome("no_solution_found" if plan is None else "feasible", plan, seconds=seconds, log=log)
    left = None if until is None else max(1.0, until - time.perf_counter())
    solved, counts, size, phases = solve_flows(part, replace(options, time_limit=left))
    seconds |= phases
    log |= {"solver": solved.message, "nodes": solved.nodes}
    if solved.status == "infeasible":
        return Outcome("infeasible", None, seconds=seconds, size=size, log=log)
    cost = np.inf if plan is None else plan.cost.total_usd_per_month
    if counts is not None:
        clock = time.perf_counter()
        other = _with(t, counts, until)
        if other is not None and other.cost.total_usd_per_month < cost:
            plan, cost, log["plan_of"] = other, other.cost.total_usd_per_month, "the merged rows"
        seconds["extract"] = time.perf_counter() - clock
    bound = solved.bound
    if plan is None:
        return Outcome("no_solution_found", None, bound, solved.limit, seconds, size, log, solved.events)
    gap = relative_gap(cost, bound)
    proved = gap is not None and gap <= PROVED
    stopped = None if proved else solved.limit
    return Outcome("optimal" if proved else "feasible", plan, bound, stopped, seconds, size, log, solved.events)


def _with(t: ReservedTables, counts: Array, until: float | None) -> ReservedPlan | None:
    """The plan of reservations (C,), if they serve every row and survive every loss."""
    held = t.reserved(np.round(counts))
    found = dispatch(t, held, until=until)
    if found.short(t) > 0:
        return None
    lp = RowLp(t, phase_one=True)
    if any(short_row(t, of_guard(t, guard), held, lp) is not None for guard in t.guards):
        return None
    return make_plan(t, counts, found)


def merged(t: ReservedTables, most_rows: int) -> ReservedTables:
    """Tables of about `most_rows` rows, at least one a quarter, each for several of a quarter: a relaxation.

    A row stands for others with their mean demand and the sum of their weights. With reservations given, whether a row
    can be served, before and after a loss, and what that costs, is convex in its demand: the mean of several rows can
    be served where each of them can, and costs no more than they do in the mean (Jensen).

    The rows in which a source, or all of them, have most are left alone, up to half of `most_rows`; the others are
    halved, the group whose demand varies most first, at the median of its source that varies most.
    """
    groups: list[Index] = []
    number = itertools.count()  # of equal ones the first
    heap: list[tuple[float, int, Index, int]] = []

    def put(rows: Index) -> None:
        load = t.demand[rows] * t.work.max(axis=1)
        spread = load.var(axis=0) * len(rows)
        heapq.heappush(heap, (-float(spread.sum()), next(number), rows, int(spread.argmax())))

    for q in range(t.quarters):
        rows = np.flatnonzero(t.quarter == q)
        if not len(rows):
            continue
        demand = t.demand[rows]
        peaks = np.unique(rows[np.append(demand.sum(axis=1).argmax(), demand.argmax(axis=0))])
        peaks = peaks[: most_rows // (2 * t.quarters)]
        groups += [peaks[[n]] for n in range(len(peaks))]
        rest = np.setdiff1d(rows, peaks)
        if len(rest):
            put(rest)
    while heap and len(groups) + len(heap) < most_rows:
        spread, _, rows, source = heapq.heappop(heap)
        if spread == 0:
            groups.append(rows)
            continue
        order = rows[np.argsort(t.demand[rows, source], kind="stable")]
        put(order[: len(order) // 2])
        put(order[len(order) // 2 :])
    groups += [rows for _, _, rows, _ in heap]
    weight = np.array([t.weight[rows].sum() for rows in groups])
    demand = np.array([
        np.average(t.demand[rows], axis=0, weights=t.weight[rows] if total > 0 else None)
        for rows, total in zip(groups, weight, strict=True)
    ])  # fmt: skip
    return replace(t.over(np.array([rows[0] for rows in groups]), weight), demand=demand)
