"""The method ``full``: the flow formulation as it stands in `formulations.reserved_capacity.model`."""

from __future__ import annotations

import time

import numpy as np

from formulations.reserved_capacity.making import make_plan
from formulations.reserved_capacity.methods.exact import exact
from formulations.reserved_capacity.model import FlowModel
from formulations.reserved_capacity.plan import ReservedPlan
from formulations.reserved_capacity.points import ReservedTables, deviations
from formulations.reserved_capacity.problem import ReservedCapacity
from optmodels.formulation import Options
from optmodels.plan.outcome import Outcome
from optmodels.solver import Settings, solve_compiled

MOST_FLOWS = 1_000_000


def full(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """The full flow formulation as it stands above, by HiGHS: the reference, for small and middling sizes."""
    if not len(tables.sink_region) or not len(tables.source_region):
        return exact(problem, tables, options)
    flows = int(tables.reach.sum()) * len(tables.demand) * (1 + sum(len(deviations(tables, g)) for g in tables.guards))
    if flows > MOST_FLOWS:
        reason = f"{flows:,} flow variables; the full model is for up to {MOST_FLOWS:,}, exact has the same optimum"
        return Outcome("no_solution_found", None, log={"reason": reason})
    clock = [time.perf_counter()]
    model = FlowModel(tables)
    clock.append(time.perf_counter())
    compiled = model.compiled()
    clock.append(time.perf_counter())
    settings = Settings(options.time_limit, options.gap, options.seed, on_event=options.on_event)
    solved = solve_compiled(compiled, settings)
    clock.append(time.perf_counter())
    plan = make_plan(tables, model.counts(solved.x)) if solved.x is not None else None
    clock.append(time.perf_counter())
    seconds = dict(zip(("build", "compile", "solve", "extract"), np.diff(clock).tolist(), strict=True))
    return Outcome(
        solved.status, plan, solved.bound, solved.limit, seconds, compiled.size,
        {"solver": solved.message, "nodes": solved.nodes}, solved.events,
    )  # fmt: skip
