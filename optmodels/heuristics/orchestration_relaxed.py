"""Methods that solve the column form itself: on a pruned configuration tree, or relaxed and rounded."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from optmodels.formulation import Options
from optmodels.heuristics.orchestration import Deployment, finish, goal_of
from optmodels.heuristics.orchestration_search import Group
from optmodels.heuristics.orchestration_trials import BOTH
from optmodels.plan.orchestration import OrchestrationPlan, make_plan
from optmodels.plan.outcome import Outcome
from optmodels.points.orchestration import OrchestrationTables
from optmodels.points.orchestration_flow import Assignment, FlowModel
from optmodels.points.orchestration_place import place
from optmodels.points.orchestration_pruning import dominated, paper_rules, restrict
from optmodels.problem.orchestration import Orchestration
from optmodels.solver.compile import Compiled
from optmodels.solver.highs import Settings, solve_compiled

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def config_tree(problem: Orchestration, tables: OrchestrationTables, options: Options) -> Outcome[OrchestrationPlan]:
    """Exact over what both prunings of the configuration tree leave (§IV-D); its bound holds for no more than that."""
    clock = time.perf_counter()
    exact = dominated(tables)
    rules = paper_rules(tables)
    keep = exact.keep & rules.keep
    log = {
        "configurations": len(keep), "cut_by_dominance": int((~exact.keep).sum()),
        "cut_by_paper_rules": int((exact.keep & ~rules.keep).sum()), "left": int(keep.sum()),
        "cut": {tables.name(c): exact.cut.get(c) or rules.cut[c] for c in map(int, np.flatnonzero(~keep))},
    }  # fmt: skip
    flow = FlowModel(restrict(tables, keep))
    settings = Settings(options.time_limit, options.gap, options.seed, on_event=options.on_event)
    compiled = flow.compiled()
    report = solve_compiled(compiled, settings)
    seconds = {"solve": time.perf_counter() - clock}
    if report.x is None:
        status = report.status if keep.all() else "no_solution_found"
        return Outcome(status, None, limit=report.limit, seconds=seconds, size=compiled.size, log=log)
    made = flow.assignment(report.x)
    chosen = np.flatnonzero(keep)
    counts = np.zeros(len(keep), dtype=np.int64)
    counts[chosen] = made.counts
    plan = make_plan(tables, replace(made, counts=counts, configuration=chosen[made.configuration]))
    bound = report.bound if exact.keep[~keep].any() is np.False_ else None
    return Outcome(
        "feasible" if plan is not None else "no_solution_found", plan, bound, report.limit, seconds, compiled.size, log
    )


def lp_rounding(problem: Orchestration, tables: OrchestrationTables, options: Options) -> Outcome[OrchestrationPlan]:
    """The column form without integrality, its instances rounded down and filled up by what was lost most."""
    clock = time.perf_counter()
    t = tables
    flow = FlowModel(t)
    compiled = flow.compiled()
    relaxed = replace(compiled, integer=np.zeros_like(compiled.integer))
    settings = Settings(options.time_limit, seed=options.seed, options={"solver": "ipm"})
    report = solve_compiled(relaxed, settings)
    seconds = {"relaxation": time.perf_counter() - clock}
    if report.x is None:
        status = "infeasible" if report.status == "infeasible" else "no_solution_found"
        return Outcome(status, None, limit=report.limit, seconds=seconds, size=compiled.size)
    counts = rounded(t, np.maximum(report.x[flow.columns.n], 0.0))
    groups = tuple(Group(int(c), BOTH, int(counts[c])) for c in np.flatnonzero(counts))
    found = Deployment(groups, "maaso")
    outcome = finish(t, found, goal_of(problem), options, clock)
    bound = report.bound if report.status == "optimal" else None
    return replace(outcome, bound=bound, seconds=seconds | outcome.seconds, size=compiled.size)


def rounded(t: OrchestrationTables, wanted: Array) -> Ints:
    """Whole instances near the wanted ones that fit the servers: floors, then the largest remainders."""
    counts = np.floor(wanted + 1e-6).astype(np.int64)
    least = [m.minimum_instances for m in t.case.problem.models]
    most = [np.inf if m.maximum_instances is None else m.maximum_instances for m in t.case.problem.models]

    def room(c: int) -> bool:
        m = t.model_of[c]
        if counts[t.model_of == m].sum() >= most[m]:
            return False
        counts[c] += 1
        if place(t, counts) is None:
            counts[c] -= 1
            return False
        return True

    free = int(t.case.free_gpus.sum()) - int(counts @ t.gpus_of)
    for m in range(len(least)):
        mine = np.flatnonzero(t.model_of == m)
        for c in mine[np.argsort(-(wanted - counts)[mine], kind="stable")]:
            if counts[mine].sum() < least[m]:
                room(int(c))
    tried: set[int] = set()
    while free > 0:
        rest = [(float(wanted[c] - counts[c]), -int(c)) for c in np.flatnonzero(wanted > 1e-6) if int(c) not in tried]
        if not rest:
            break
        c = -max(rest)[1]
        if not room(c):
            tried.add(c)
        elif max(rest)[0] <= 0:
            tried.add(c)
    return counts
