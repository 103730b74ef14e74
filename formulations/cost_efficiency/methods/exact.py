"""The method ``exact``: pruning with proof, then the MILP by HiGHS."""

from __future__ import annotations

import time

from formulations.cost_efficiency.making import nearest_miss
from formulations.cost_efficiency.model import CostModel, planned, progress, stated, tokens_per_usd
from formulations.cost_efficiency.plan import CostPlan
from formulations.cost_efficiency.points import CostTables, prune
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.formulation import Options
from optmodels.plans.outcome import Outcome
from optmodels.solver import Settings, solve_compiled


def exact(problem: CostEfficiency, tables: CostTables, options: Options) -> Outcome[CostPlan]:
    """Prune with proof, build, solve by HiGHS from the best plan that pruning proved feasible as a warm start."""
    clock = time.perf_counter()
    pruned = prune(tables)
    seconds = {"prune": time.perf_counter() - clock}
    if not len(pruned.tables.candidates):
        reason = {} if options.answer_only else {"reason": nearest_miss(tables)}
        return Outcome("infeasible", None, seconds=seconds, log={"pruning": pruned.counts} | reason)
    clock = time.perf_counter()
    model = CostModel(problem, pruned.tables)
    seconds["build"] = time.perf_counter() - clock
    clock = time.perf_counter()
    compiled = model.compiled()
    seconds["compile"] = time.perf_counter() - clock
    candidates = model.data.candidate
    start = None
    if pruned.incumbent is not None and pruned.incumbent in candidates:
        start = model.start({"z": candidates == pruned.incumbent})
    clock = time.perf_counter()
    settings = Settings(options.time_limit, options.gap, options.seed, on_event=progress(options))
    solved = solve_compiled(compiled, settings, start)
    seconds["solve"] = time.perf_counter() - clock
    clock = time.perf_counter()
    plan = None
    if solved.x is not None:
        chosen = int(model.z.of(solved.x).argmax())
        plan = planned(pruned.tables, int(candidates[chosen]))
    seconds["extract"] = time.perf_counter() - clock
    bound, events = tokens_per_usd(solved.bound), tuple(map(stated, solved.events))
    return Outcome(
        solved.status, plan, bound, solved.limit, seconds, compiled.size,
        {"pruning": pruned.counts, "solver": solved.message, "nodes": solved.nodes}, events,
    )  # fmt: skip
