"""Machine counts: how many machines of which type serve every service at least cost. See README.md."""

from optmodels.formulation import Folder

part = Folder(__name__)

FORMULATION = part.formulation(
    name="machine_counts",
    title="Machine counts: how many machines of which type serve every service at least cost",
    problem=part("problem:Instance"),
    sense="min",
    unit="USD/h",
    model=part("model:CountsModel"),
    plan=part("plan:Plan"),
    objective=lambda plan: plan.usd_per_hour,
    certifies="every choice of machines, at the rates given",
)
