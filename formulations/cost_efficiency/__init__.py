"""Cost efficiency: one workload, one pool, the most tokens per dollar (LLM-Pilot). See README.md."""

from optmodels.formulation import Folder, Formulation

part = Folder(__name__)

FORMULATION = Formulation(
    name="cost_efficiency",
    title="Cost efficiency: the cheapest way to serve one workload within its SLO (LLM-Pilot)",
    problem=part("problem:CostEfficiency"),
    template=part("template.yaml"),
    sense="max",
    unit="tokens/USD",
    tables=part("points:build_tables"),
    rebind=part("points:rebind"),
    curves=part("points:linearised"),
    model=part("model:CostModel"),
    methods=part("methods:METHODS"),
    method_titles=part("methods:TITLES"),
    plan=part("plan:CostPlan"),
    objective=lambda plan: 1e6 / plan.usd_per_million_tokens,
    check=part("check:check"),
    report=part("show:report"),
    summary=part("show:summary"),
    frames=part("show:frames"),
    charts=part("charts:charts"),
    deployments=part("deploy:deployments"),
)
__getattr__ = part.exports("model:attach", "model:build", "model:extract")
