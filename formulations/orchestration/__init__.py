"""Orchestration: which GPUs form which model instances, which requests go where and when (MaaSO). See README.md."""

from optmodels.formulation import Folder

part = Folder(__name__)

FORMULATION = part.formulation(
    name="orchestration",
    title="Orchestration: model instances on GPUs, requests on instances (MaaSO)",
    problem=part("problem:Orchestration"),
    sense="max",
    unit="score",
    model=part("model:model"),
    other=part("literal:literal"),
    plan=part("plan:OrchestrationPlan"),
    objective=lambda plan: plan.score.total,
    certifies="every plan of the linear model (class means, divisible requests, planned speeds and prefix-cache hits);"
    " a replay may attain more",
    current=part("current:CurrentCluster"),
    trusted=part("check:TRUSTED"),
    cut_short=part("check:CUT_SHORT"),
    simulated_again=part("certify:simulated_again"),
)
__getattr__ = part.exports("model:attach", "model:build", "model:extract")
