"""Reserved capacity: commitments over regions for demand that follows the sun (SkyLB). See README.md."""

from optmodels.formulation import Folder, Formulation

part = Folder(__name__)

FORMULATION = Formulation(
    name="reserved_capacity",
    title="Reserved capacity: commitments over regions for demand that follows the sun (SkyLB)",
    problem=part("problem:ReservedCapacity"),
    template=part("template.yaml"),
    sense="min",
    unit="USD/month",
    tables=part("points:build_tables"),
    model=part("model:stated"),
    methods=part("methods:METHODS"),
    method_titles=part("methods:TITLES"),
    plan=part("plan:ReservedPlan"),
    objective=lambda plan: plan.cost.total_usd_per_month,
    check=part("check:check"),
    replay=part("replay:replay"),
    report=part("show:report"),
    summary=part("show:summary"),
    frames=part("show:frames"),
    charts=part("charts:charts"),
    deployments=part("deploy:deployments"),
)
__getattr__ = part.exports("model:attach", "model:build", "making:extract")
