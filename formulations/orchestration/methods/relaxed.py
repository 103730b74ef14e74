"""Methods that solve the column form: on what pruning leaves of the configuration tree, or relaxed and rounded."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from formulations.orchestration.clock import Clock
from formulations.orchestration.making import make_plan
from formulations.orchestration.model import FlowModel, nonzeros
from formulations.orchestration.place import running_counts
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.problem import Orchestration
from formulations.orchestration.pruning import dominated, paper_rules, restrict
from formulations.orchestration.replay import dispatched
from formulations.orchestration.rounding import rounded, unaffordable
from optmodels.formulation import Method, Options
from optmodels.plans.outcome import Outcome
from optmodels.solver.highs import relaxation


def config_tree(
    problem: Orchestration, tables: OrchestrationTables, options: Options, *, exact: Method
) -> Outcome[OrchestrationPlan]:
    """`exact` on what both prunings of the configuration tree leave (MaaSO §IV-D).

    Its bound holds for the whole problem only where the paper's rules cut no more than dominance does.
    """
    clock = time.perf_counter()
    proved = dominated(tables)
    rules = paper_rules(tables)
    keep = (proved.keep & rules.keep) | (running_counts(tables) > 0)  # running instances that stop are in the plan
    log = {
        "configurations": len(keep), "cut_by_dominance": int((~proved.keep).sum()),
        "cut_by_paper_rules": int((proved.keep & ~rules.keep).sum()), "left": int(keep.sum()),
        "cut": {tables.name(c): proved.cut.get(c) or rules.cut[c] for c in map(int, np.flatnonzero(~keep))},
    }  # fmt: skip
    seconds = {"prune": time.perf_counter() - clock}
    found = exact(problem, restrict(tables, keep), options)
    found = replace(found, seconds=seconds | found.seconds, log=log | found.log)
    if (keep >= proved.keep).all():
        return found
    status = found.status
    if status in ("optimal", "infeasible"):
        status = "feasible" if found.plan is not None else "no_solution_found"
    return replace(found, status=status, bound=None)


def lp_rounding(problem: Orchestration, tables: OrchestrationTables, options: Options) -> Outcome[OrchestrationPlan]:
    """The pooled form without integrality; its instances rounded down, then filled up where most is missing."""
    clock = Clock.of(options)
    if not len(tables.configurations):
        return Outcome("no_solution_found", None, log={"reason": "no candidate can be used"})
    size = nonzeros(tables, pooled=True)
    if (limit := unaffordable(size, clock)) is not None:
        return Outcome("no_solution_found", None, limit=limit, log={"reason": f"the model has {size:,.0f} nonzeros"})
    flow = FlowModel(tables)
    model = flow.compiled()
    bound, x, *_ = relaxation(model, clock.settings())
    seconds = {"relax": clock.seconds}
    found = None if x is None else rounded(tables, flow.n.of(x), clock)
    plan = None if found is None else make_plan(tables, found.assignment, on_servers=clock.on_servers)
    if plan is not None and not options.answer_only:
        plan = dispatched(tables, [plan], options.seed, clock)
    seconds |= {"solve": clock.seconds}
    limit = clock.stopped
    if plan is None:
        why = "the relaxation has no solution" if x is None else "the rounded instances cannot hold what is asked"
        return Outcome("no_solution_found", None, bound, limit, seconds, model.size, {"reason": why})
    return Outcome("feasible", plan, bound, limit, seconds, model.size)
