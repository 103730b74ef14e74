"""The method ``full``: the flow formulation as it stands in `formulations.reserved_capacity.model`."""

from __future__ import annotations

import time

import numpy as np

from formulations.reserved_capacity.making import make_plan
from formulations.reserved_capacity.methods.exact import exact
from formulations.reserved_capacity.methods.flows import flow_variables, solve_flows
from formulations.reserved_capacity.methods.heuristics import best_of_all
from formulations.reserved_capacity.plan import ReservedPlan
from formulations.reserved_capacity.points import ReservedTables
from formulations.reserved_capacity.problem import ReservedCapacity
from optmodels.formulation import Options
from optmodels.plan.outcome import Outcome

MOST_FLOWS = 1_000_000


def full(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """The full flow formulation as it stands above, by HiGHS: the reference, for small and middling sizes.

    Beyond `MOST_FLOWS` flow variables no model is built: the best plan of a heuristic, without a bound.
    """
    began = time.perf_counter()
    if not len(tables.sink_region) or not len(tables.source_region):
        return exact(problem, tables, options)
    flows = flow_variables(tables)
    if flows > MOST_FLOWS:
        reason = f"{flows:,} flow variables; the full model is for up to {MOST_FLOWS:,}, exact has the same optimum"
        found = best_of_all(problem, tables, options, began)
        seconds = {"heuristics": time.perf_counter() - began}
        if found is None:
            return Outcome("no_solution_found", None, seconds=seconds, log={"reason": reason})
        return Outcome("feasible", found[0], seconds=seconds, log={"reason": reason, "plan_of": found[1]})
    solved, counts, size, seconds = solve_flows(tables, options)
    log = {"solver": solved.message, "nodes": solved.nodes}
    clock = time.perf_counter()
    plan = None if counts is None else make_plan(tables, counts)
    seconds["extract"] = time.perf_counter() - clock
    status = solved.status
    if solved.limit == "time":  # no heuristic is to have a better plan
        below = np.inf if plan is None else plan.cost.total_usd_per_month
        other = best_of_all(problem, tables, options, began, below)
        if other is not None:
            plan, log["plan_of"] = other
            status = "feasible"
    return Outcome(status, plan, solved.bound, solved.limit, seconds, size, log, solved.events)
