"""The method ``exact``: pruning with proof, then the MILP by HiGHS."""

from __future__ import annotations

import time

import pyomo.environ as pyo

from formulations.cost_efficiency.making import nearest_miss
from formulations.cost_efficiency.model import build, extract
from formulations.cost_efficiency.plan import CostPlan
from formulations.cost_efficiency.points import CostTables, prune
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.formulation import Options
from optmodels.plan.outcome import Outcome
from optmodels.solver import Settings, solve_model


def exact(problem: CostEfficiency, tables: CostTables, options: Options) -> Outcome[CostPlan]:
    """Prune with proof, build, solve by HiGHS from the best plan that pruning proved feasible as a warm start."""
    clock = time.perf_counter()
    pruned = prune(tables)
    seconds = {"prune": time.perf_counter() - clock}
    if not len(pruned.tables.skeletons):
        reason = {} if options.answer_only else {"reason": nearest_miss(tables)}
        return Outcome("infeasible", None, seconds=seconds, log={"pruning": pruned.counts} | reason)
    clock = time.perf_counter()
    model = build(problem, pruned.tables)
    seconds["build"] = time.perf_counter() - clock
    start = None
    if pruned.incumbent is not None and pruned.incumbent in model.C:
        start = pyo.ComponentMap((model.z[c], float(c == pruned.incumbent)) for c in model.C)
    settings = Settings(options.time_limit, options.gap, options.seed, on_event=options.on_event)
    solved, phases, size = solve_model(model, settings, start)
    clock = time.perf_counter()
    plan = extract(model, pruned.tables) if solved.x is not None else None
    bound = 1e6 / solved.bound if solved.bound and solved.bound > 0 else None
    return Outcome(
        solved.status, plan, bound, solved.limit, seconds | phases | {"extract": time.perf_counter() - clock},
        size, {"pruning": pruned.counts, "solver": solved.message, "nodes": solved.nodes}, solved.events,
    )  # fmt: skip
