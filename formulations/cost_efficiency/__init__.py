"""Cost efficiency: one workload, one pool, the most tokens per dollar (LLM-Pilot). See README.md."""

from optmodels.formulation import Folder

part = Folder(__name__)

FORMULATION = part.formulation(
    name="cost_efficiency",
    title="Cost efficiency: the cheapest way to serve one workload within its SLO (LLM-Pilot)",
    problem=part("problem:CostEfficiency"),
    sense="max",
    unit="tokens/USD",
    rebind=part("points:rebind"),
    curves=part("points:linearised"),
    model=part("model:CostModel"),
    other=part("literal:literal"),
    plan=part("plan:CostPlan"),
    trusted=part("check:TRUSTED"),
    objective=lambda plan: 1e6 / plan.usd_per_million_tokens,
    certifies="every deployment of the candidates, at predicted latencies",
)
__getattr__ = part.exports("model:attach", "model:build", "model:extract")
