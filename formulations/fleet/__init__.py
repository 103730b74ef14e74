"""Fleet planning: many workloads, integer counts of deployments, one bill. See README.md."""

from typing import Literal

from optmodels.formulation import Folder

part = Folder(__name__)

GOALS: dict[str, tuple[Literal["min", "max"], str]] = {
    "min_cost": ("min", "USD/h"),
    "max_ce": ("max", "tokens/USD"),
    "max_served": ("max", "weighted requests/s"),
}

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
    leaves_out=lambda problem: () if problem.deployment.apart else ("distserve", "xpyd"),
    attach=part("model:attach"),
    plan=part("plan:FleetPlan"),
    trusted=part("check:TRUSTED"),
    timed=part("check:TIMED"),
    simulated_again=part("certify:simulated_again"),
    objective=part("plan:objective_value"),
    certifies="every fleet of the candidate operating points at their planned loads",
)
__getattr__ = part.exports("model:attach", "model:build", "model:extract")
