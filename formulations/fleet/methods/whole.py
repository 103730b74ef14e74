"""The model on all points in one piece, for `check --prove`: unpruned, not in parts, without columns or a start."""

from __future__ import annotations

import time

from formulations.fleet.making import make_plan
from formulations.fleet.methods.exact import exact
from formulations.fleet.model import FleetModel
from formulations.fleet.plan import FleetPlan
from formulations.fleet.points import FleetTables
from formulations.fleet.problem import Fleet
from optmodels.formulation import Options
from optmodels.plans.outcome import Outcome
from optmodels.solver import Settings, solve_compiled


def whole(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """The model as README.md states it, by one run of the solver; of a ratio, whose model is not linear, `exact`."""
    if problem.objective == "max_ce" or not len(tables.points):
        return exact(problem, tables, options)
    clock = time.perf_counter()
    model = FleetModel(problem, tables)
    compiled = model.compiled()
    seconds = {"build": time.perf_counter() - clock}
    clock = time.perf_counter()
    solved = solve_compiled(
        compiled, Settings(options.time_limit, options.gap, options.seed, on_event=options.on_event)
    )
    seconds["solve"] = time.perf_counter() - clock
    plan = None if solved.x is None else make_plan(tables, model.choice(solved.x))
    log = {"solver": solved.message, "nodes": solved.nodes}
    return Outcome(solved.status, plan, solved.bound, solved.limit, seconds, compiled.size, log, solved.events)
