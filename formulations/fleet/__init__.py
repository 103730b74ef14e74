"""Fleet planning: many workloads, integer counts of deployments, one bill. See README.md."""

from typing import Literal

from optmodels.formulation import Folder, Formulation

part = Folder(__name__)

GOALS: dict[str, tuple[Literal["min", "max"], str]] = {
    "min_cost": ("min", "USD/h"),
    "max_ce": ("max", "tokens/USD"),
    "max_served": ("max", "weighted requests/s"),
}

FORMULATION = Formulation(
    name="fleet",
    title="Fleet planning: many workloads, integer counts of deployments, one bill",
    problem=part("problem:Fleet"),
    template=part("template.yaml"),
    sense="min",
    unit="USD/h",
    goal=lambda problem: GOALS[problem.objective],
    tables=part("points:build_tables"),
    rebind=part("points:rebind"),
    model=part("model:FleetModel"),
    build=part("model:build"),
    attach=part("model:attach"),
    methods=part("methods:METHODS"),
    method_titles=part("methods:TITLES"),
    plan=part("plan:FleetPlan"),
    objective=part("plan:objective_value"),
    check=part("check:check"),
    replay=part("replay:replay"),
    report=part("show:report"),
    summary=part("show:summary"),
    frames=part("show:frames"),
    charts=part("charts:charts"),
    deployments=part("deploy:deployments"),
)
__getattr__ = part.exports("model:attach", "model:build", "model:extract")
