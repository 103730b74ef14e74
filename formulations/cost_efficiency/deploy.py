"""A cost-efficiency plan as what to run and to buy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formulations.cost_efficiency.plan import CostPlan
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.plans.deployment import Deployment, Deployments, drafts, loras, purchase, strategy_notes


def deployments(problem: CostEfficiency, plan: Mapping[str, Any]) -> Deployments:
    """One deployment; attention-offload machines are purchases only."""
    p, case = CostPlan.model_validate(plan), problem.resolve()
    pool = {(m.machine, m.region): m for m in case.machines}
    main = p.machines[0]
    known = pool.get((main.machine, main.region))
    parts = max(p.batch_split)
    host = next((x.value for x in p.limits if x.name == "host RAM per replica"), None)
    deployment = Deployment(
        name=p.name or "plan", model=case.architecture.title, checkpoint=case.architecture.checkpoint,
        provider=known.provider if known else "", region=main.region, machine=main.machine, market=main.market,
        machines=main.count, gpu=main.gpu, gpus_per_machine=main.gpus_per_machine, tensor_parallel=p.tensor_parallel,
        attention_ranks=p.attention_ranks or 1, replicas_per_machine=p.replicas_per_machine,
        max_num_seqs=parts if p.engine is None else p.engine.max_num_seqs,
        max_num_batched_tokens=None if p.engine is None else p.engine.max_num_batched_tokens,
        chunk_tokens=None if p.engine is None else p.engine.chunk_tokens,
        drafts=None if p.engine is None else drafts(problem.engine.speculates(case.architecture)),
        **({} if p.engine is None else loras(problem.engine.lora)),
        weights=problem.precision.weights, kv=problem.precision.kv,
        vram_usable=problem.memory.vram_usable, kv_offload_gib=host or None,
        notes=strategy_notes(p.family, p.alpha, p.machines, p.passes),
    )  # fmt: skip
    return Deployments(name=p.name or "plan", deployments=[deployment],
                       purchases=[purchase(m, pool) for m in p.machines])  # fmt: skip
