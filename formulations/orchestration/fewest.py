"""The fewest GPUs that attain a share of the requests: bisection over the stock, attainment alone being maximised."""

from __future__ import annotations

from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.problem import AttainmentObjective, InstanceChange, Orchestration
from optmodels.errors import InputError, Mistake
from optmodels.plans.fewest import Fewest, Solve, least_number


def fewest(problem: Orchestration, attainment: float, solve: Solve) -> Fewest:
    """The fewest GPUs on which a share of the requests is in time; limits and floors of the instance hold as well.

    Raises:
        InputError: GPUs of several types, whose numbers cannot be compared.
    """
    case = problem.resolve()
    if len(case.gpu_types) > 1:
        raise InputError(Mistake(None, "cluster.servers", list(case.gpu_types), "GPUs of one type, to count them"))
    (kind,) = case.gpu_types
    most = min(int(case.free_gpus[0]), problem.cluster.stock.get(kind, int(case.free_gpus[0])))
    requests = problem.requests
    if requests.classes is not None:
        same = tuple(c.model_copy(update={"weight": 1.0}) for c in requests.classes)
        requests = requests.model_copy(update={"classes": same})

    def capped(gpus: int) -> Orchestration:
        return problem.model_copy(update={
            "cluster": problem.cluster.model_copy(update={"stock": {kind: gpus}}),
            "models": tuple(m.model_copy(update={"weight": 1.0}) for m in problem.models), "requests": requests,
            "objective": AttainmentObjective(kind="lexicographic", order=("attainment",)), "change": InstanceChange(),
            "certify": "none",
            "slo": problem.slo.model_copy(update={"shortfall_penalty": None}),
        })  # fmt: skip

    return least_number(
        most, attainment, lambda gpus: solve(capped(gpus)),
        lambda result: OrchestrationPlan.model_validate(result.plan).prediction.gpus_used,
    )  # fmt: skip
