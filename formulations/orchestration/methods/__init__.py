"""Every way to find a plan, by its stable name."""

import time
from dataclasses import replace
from functools import partial

from formulations.orchestration.making import among_stages
from formulations.orchestration.methods import exact
from formulations.orchestration.methods.baselines import alpaserve, round_robin, selective_replication
from formulations.orchestration.methods.exchange import greedy_dp_exchange
from formulations.orchestration.methods.greedy_dp import greedy_dp, maaso_printed, maaso_star
from formulations.orchestration.methods.relaxed import config_tree, lp_rounding
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.problem import Orchestration
from formulations.orchestration.pruning import together
from optmodels.certification.rounds import LEAST_S, Certifier, certified
from optmodels.errors import InputError, Mistake
from optmodels.formulation import Method, Options
from optmodels.plans.outcome import Outcome
from optmodels.solver.highs import PROVED

FOR_WHOLE = 0.3  # of a time limit, for the best plan without disaggregated stages


def literal(problem: Orchestration, tables: OrchestrationTables, options: Options) -> Outcome[OrchestrationPlan]:
    """`formulations.orchestration.literal`, which takes all of Pyomo: imported when it is run."""
    from formulations.orchestration.literal import literal as run

    return run(problem, tables, options)


def _rounds(problem: Orchestration, tables: OrchestrationTables) -> Certifier[OrchestrationPlan]:
    from formulations.orchestration.certify import AttainmentRounds

    return AttainmentRounds(problem, tables)


def _whole(method: Method) -> Method:
    """A method that knows no stages: on the configurations that do both, so that it proves nothing of the others."""

    def run(problem: Orchestration, tables: OrchestrationTables, options: Options) -> Outcome[OrchestrationPlan]:
        stages = list(problem.deployment.stages)
        if "both" not in stages:
            raise InputError(Mistake(None, "deployment.stages", stages, "both among them, or --method exact"))
        found = among_stages(tables, method(problem, together(tables), options))
        if not problem.deployment.apart:
            return found
        return replace(found, status="no_solution_found" if found.plan is None else "feasible", bound=None)

    return run


def _beside_whole(problem: Orchestration, tables: OrchestrationTables, options: Options) -> Outcome[OrchestrationPlan]:
    """`exact`; where stages may be apart, next to it the best plan without them, which is the plan where it is better.

    The log has under ``stages`` its attainment, and whether the bound on every plan proves that no disaggregated plan
    is better.
    """
    whole = together(tables)
    if not problem.deployment.apart or options.answer_only or not len(whole.configurations):
        return exact.exact(problem, tables, options)
    began, limit = time.perf_counter(), options.time_limit
    part = None if limit is None else limit * FOR_WHOLE
    without = among_stages(tables, exact.exact(problem, whole, replace(options, time_limit=part, on_event=None)))
    left = None if limit is None else max(limit - (time.perf_counter() - began), LEAST_S)
    found = exact.exact(problem, tables, replace(options, time_limit=left))
    if without.plan is None:
        return found
    value, bound = without.plan.score.total, found.bound
    if found.plan is None or value >= found.plan.score.total:
        proved = bound is not None and bound - value <= PROVED * abs(value)
        found = replace(
            found, status="optimal" if proved else "feasible", plan=without.plan, limit=None if proved else found.limit
        )
    assert found.plan is not None
    stages = {
        "used": bool(found.plan.apart), "none_is_better": not found.plan.apart and found.status == "optimal",
        "without": {"status": without.status, "objective": value, "bound": without.bound,
                    "attainment": without.plan.prediction.attainment},
    }  # fmt: skip
    log = found.log if problem.certify != "none" else found.log | {"stages": stages}  # rounds have tables of their own
    return replace(found, log=log)


_WHOLE: dict[str, Method] = {
    "literal": literal, "greedy_dp": greedy_dp, "greedy_dp_exchange": greedy_dp_exchange, "maaso_star": maaso_star,
    "maaso_printed": maaso_printed, "alpaserve": alpaserve, "selective_replication": selective_replication,
    "round_robin": round_robin,
}  # fmt: skip
_METHODS: dict[str, Method] = {name: _whole(method) for name, method in _WHOLE.items()} | {
    "exact": _beside_whole,
    "config_tree": partial(config_tree, exact=exact.exact),
    "lp_rounding": lp_rounding,
}
TITLES = {
    "exact": "column form with waiting by HiGHS",
    "literal": "every request and every GPU by itself, by HiGHS",
    "greedy_dp": "simulator-guided greedy and the split of the GPUs by dynamic programming (MaaSO Algorithms 1, 2)",
    "greedy_dp_exchange": "greedy_dp, then exchanges of instances judged by their schedule",
    "maaso_star": "greedy_dp for SLO satisfaction alone (α = 1)",
    "maaso_printed": "greedy_dp with one configuration for all models of a sub-cluster, as the paper prints it",
    "config_tree": "exact on what both prunings of the configuration tree leave (MaaSO §IV-D)",
    "lp_rounding": "the relaxation's instance counts rounded and repaired",
    "alpaserve": "one configuration for each model, found by simulation",
    "selective_replication": "replicas of the smallest instance that fits, where simulation gains most",
    "round_robin": "equal shares of the GPUs, requests in turn",
}
METHODS: dict[str, Method] = {name: certified(_METHODS[name], _rounds) for name in TITLES}
