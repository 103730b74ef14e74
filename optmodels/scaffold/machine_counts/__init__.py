"""Machine counts: how many machines of which type serve every service at least cost. See README.md."""

from optmodels.formulation import Folder, Formulation

part = Folder(__name__)

FORMULATION = Formulation(
    name="machine_counts",
    title="Machine counts: how many machines of which type serve every service at least cost",
    problem=part("problem:Instance"),
    template=part("template.yaml"),
    sense="min",
    unit="USD/h",
    tables=part("points:build_tables"),
    model=part("model:CountsModel"),
    methods=part("methods:METHODS"),
    method_titles=part("methods:TITLES"),
    plan=part("plan:Plan"),
    objective=lambda plan: plan.usd_per_hour,
    check=part("check:check"),
    report=part("show:report"),
    summary=part("show:summary"),
    frames=part("show:frames"),
)
