"""Reserved capacity: commitments over regions for demand that follows the sun (SkyLB). See README.md."""

from optmodels.formulation import Folder

part = Folder(__name__)

FORMULATION = part.formulation(
    name="reserved_capacity",
    title="Reserved capacity: commitments over regions for demand that follows the sun (SkyLB)",
    problem=part("problem:ReservedCapacity"),
    sense="min",
    unit="USD/month",
    model=part("model:stated"),
    other=part("methods.full:full"),
    plan=part("plan:ReservedPlan"),
    objective=lambda plan: plan.cost.total_usd_per_month,
    certifies="every plan for the given demand, with divisible requests",
    trusted=part("check:TRUSTED"),
    cut_short=part("check:CUT_SHORT"),
    solves=part("check:SOLVES"),
)
__getattr__ = part.exports("model:attach", "model:build", "making:extract")
