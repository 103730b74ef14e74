"""Every way to find a plan, by its stable name."""

from dataclasses import replace
from functools import partial

from formulations.orchestration.methods import exact
from formulations.orchestration.methods.baselines import alpaserve, round_robin, selective_replication
from formulations.orchestration.methods.exchange import greedy_dp_exchange
from formulations.orchestration.methods.greedy_dp import greedy_dp, maaso_printed, maaso_star
from formulations.orchestration.methods.relaxed import config_tree, lp_rounding
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.problem import Orchestration
from formulations.orchestration.pruning import together
from optmodels.errors import InputError, Mistake
from optmodels.formulation import Method, Options
from optmodels.plan.outcome import Outcome
from optmodels.simulation.certification import Certifier, certified


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
        found = method(problem, together(tables), options)
        if not problem.deployment.apart:
            return found
        return replace(found, status="no_solution_found" if found.plan is None else "feasible", bound=None)

    return run


_WHOLE: dict[str, Method] = {
    "literal": literal, "greedy_dp": greedy_dp, "greedy_dp_exchange": greedy_dp_exchange, "maaso_star": maaso_star,
    "maaso_printed": maaso_printed, "alpaserve": alpaserve, "selective_replication": selective_replication,
    "round_robin": round_robin,
}  # fmt: skip
_METHODS: dict[str, Method] = {name: _whole(method) for name, method in _WHOLE.items()} | {
    "exact": exact.exact,
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
