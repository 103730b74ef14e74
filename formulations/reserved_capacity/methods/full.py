"""The method ``full``: the flow formulation as it stands in `formulations.reserved_capacity.model`."""

from __future__ import annotations

import time

import numpy as np

from formulations.reserved_capacity.dispatch import RowLp, dispatch
from formulations.reserved_capacity.losses import of_guard, short_row
from formulations.reserved_capacity.making import make_plan
from formulations.reserved_capacity.methods.exact import exact
from formulations.reserved_capacity.methods.flows import flow_variables, solve_flows
from formulations.reserved_capacity.methods.heuristics import best_of_all
from formulations.reserved_capacity.plan import ReservedPlan
from formulations.reserved_capacity.points import ReservedTables
from formulations.reserved_capacity.problem import ReservedCapacity
from optmodels.arrays import Array
from optmodels.formulation import Options
from optmodels.plans.outcome import Outcome

MOST_FLOWS = 1_000_000


def full(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """The full flow formulation as it stands above, by HiGHS: the reference, for small and middling sizes.

    Where a limit stops it, no heuristic's plan is better than its own. Beyond `MOST_FLOWS` flow variables nothing is
    solved.
    """
    began = time.perf_counter()
    if not len(tables.sink_region) or not len(tables.source_region):
        return exact(problem, tables, options)
    if (flows := flow_variables(tables)) > MOST_FLOWS:
        reason = f"{flows:,} flow variables, solved are up to {MOST_FLOWS:,}; exact needs none"
        return Outcome("no_solution_found", None, log={"reason": reason})
    solved, counts, size, seconds = solve_flows(tables, options)
    log = {"solver": solved.message, "nodes": solved.nodes}
    clock = time.perf_counter()
    plan = None if counts is None else _with(tables, counts, None)  # None: slightly short, within HiGHS' tolerance
    seconds["extract"] = time.perf_counter() - clock
    status = solved.status
    lacking = counts is not None and plan is None
    if lacking:
        log["reason"] = "the point found serves slightly less than the demand; the plan is of a heuristic"
    if solved.limit == "time" or lacking:
        below = np.inf if plan is None else plan.cost.total_usd_per_month
        other = best_of_all(problem, tables, options, began, below)
        if other is not None:
            plan, log["plan_of"] = other
        status = "no_solution_found" if plan is None else "feasible"
    stopped = solved.limit or ("gap" if status == "feasible" else None)
    return Outcome(status, plan, solved.bound, stopped, seconds, size, log, solved.events)


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
