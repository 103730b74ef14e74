"""Orchestration: which GPUs form which model instances, which requests go where and when (MaaSO). See README.md."""

from optmodels.formulation import Folder, Formulation

part = Folder(__name__)

FORMULATION = Formulation(
    name="orchestration",
    title="Orchestration: model instances on GPUs, requests on instances (MaaSO)",
    problem=part("problem:Orchestration"),
    template=part("template.yaml"),
    sense="max",
    unit="score",
    tables=part("points:build_tables"),
    model=part("model:model"),
    methods=part("methods:METHODS"),
    method_titles=part("methods:TITLES"),
    plan=part("plan:OrchestrationPlan"),
    objective=lambda plan: plan.score.total,
    check=part("check:check"),
    check_files=part("check_requests:check_files"),
    replay=part("replay:replay"),
    report=part("show:report"),
    summary=part("show:summary"),
    frames=part("show:frames"),
    charts=part("charts:charts"),
    deployments=part("deploy:deployments"),
)
__getattr__ = part.exports("model:attach", "model:build", "model:extract")
