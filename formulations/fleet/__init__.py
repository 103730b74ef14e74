"""Fleet planning: many workloads, integer counts of deployments, one bill. See README.md."""

from collections.abc import Collection
from typing import Any, Literal

from optmodels.formulation import Folder

part = Folder(__name__)

GOALS: dict[str, tuple[Literal["min", "max"], str]] = {
    "min_cost": ("min", "USD/h"),
    "max_ce": ("max", "tokens/USD"),
    "max_served": ("max", "weighted requests/s"),
}

STAGES_ALONE = ("distserve", "xpyd")


def _without(problem: Any) -> Collection[str]:
    """Methods without an answer: heuristics know no scenarios, and some methods are for disaggregated stages alone."""
    if problem.scenarios is not None:
        return [name for name in FORMULATION.methods if name != "exact"]
    return () if problem.deployment.apart else STAGES_ALONE


FORMULATION = part.formulation(
    name="fleet",
    title="Fleet planning: many workloads, integer counts of deployments, one bill",
    problem=part("problem:Fleet"),
    sense="min",
    unit="USD/h",
    goal=lambda problem: GOALS[problem.objective],
    rebind=part("points:rebind"),
    model=part("model:FleetModel"),
    other=part("methods.whole:whole"),
    leaves_out=_without,
    attach=part("model:attach"),
    plan=part("plan:FleetPlan"),
    trusted=part("check:TRUSTED"),
    solves=part("check:SOLVES"),
    is_open=part("check:is_open"),
    simulated_again=part("certify:simulated_again"),
    objective=part("plan:objective_value"),
    certifies="every fleet of the candidate operating points at their planned loads",
)
__getattr__ = part.exports("model:attach", "model:build", "model:extract")
