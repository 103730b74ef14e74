"""The method ``full``: the flow formulation as it stands in `formulations.reserved_capacity.model`."""

from __future__ import annotations

import time

from pyomo.common.errors import InfeasibleConstraintException

from formulations.reserved_capacity.methods.exact import exact
from formulations.reserved_capacity.model import build, extract
from formulations.reserved_capacity.plan import ReservedPlan
from formulations.reserved_capacity.points import ReservedTables, deviations
from formulations.reserved_capacity.problem import ReservedCapacity
from optmodels.formulation import Options
from optmodels.plan.outcome import Outcome
from optmodels.solver import Settings, solve_model

MOST_FLOWS = 1_000_000


def full(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """The full flow formulation as it stands above, by HiGHS: the reference, for small and middling sizes."""
    if not len(tables.sink_region) or not len(tables.source_region):
        return exact(problem, tables, options)
    flows = int(tables.reach.sum()) * len(tables.demand) * (1 + sum(len(deviations(tables, g)) for g in tables.guards))
    if flows > MOST_FLOWS:
        reason = f"{flows:,} flow variables; the full model is for up to {MOST_FLOWS:,}, exact has the same optimum"
        return Outcome("no_solution_found", None, log={"reason": reason})
    clock = time.perf_counter()
    settings = Settings(options.time_limit, options.gap, options.seed, on_event=options.on_event)
    try:
        model = build(problem, tables)
        seconds = {"build": time.perf_counter() - clock}
        solved, phases, size = solve_model(model, settings)
    except InfeasibleConstraintException as error:  # a row without variables that cannot hold
        return Outcome("infeasible", None, seconds={"build": time.perf_counter() - clock}, log={"reason": str(error)})
    clock = time.perf_counter()
    plan = extract(model, tables) if solved.x is not None else None
    return Outcome(
        solved.status, plan, solved.bound, solved.limit, seconds | phases | {"extract": time.perf_counter() - clock},
        size, {"solver": solved.message, "nodes": solved.nodes}, solved.events,
    )  # fmt: skip
