"""A fleet plan as what to run and to buy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formulations.fleet.plan import DeploymentLine, FleetPlan
from formulations.fleet.problem import Fleet, FleetCase
from optmodels import catalog
from optmodels.batch.static import PrecisionChoice
from optmodels.catalog.types import Architecture, Market
from optmodels.latency.memory import kv_bytes
from optmodels.latency.work import KvPrecision, Precision, layer_work
from optmodels.plans.deployment import (
    Deployment,
    Deployments,
    Purchase,
    drafts,
    loras,
    purchase,
    stage_note,
    strategy_notes,
)
from optmodels.units import GIB


def deployments(problem: Fleet, plan: Mapping[str, Any]) -> Deployments:
    """The deployments of the most expensive period; purchases as many as any period uses at once."""
    p, case = FleetPlan.model_validate(plan), problem.resolve()
    pool = {(m.machine, m.region): m for m in case.machines}
    peak = max(p.periods, key=lambda q: q.usd_per_hour)
    notes = []
    if len(p.periods) > 1:
        others = "; ".join(
            f"{q.name}: " + ", ".join(f"{d.count} × {d.name}" for d in q.deployments)
            for q in p.periods if q.name != peak.name
        )  # fmt: skip
        notes.append(
            f"Deployments are those of the most expensive period, {peak.name}. Scale by the clock to {others}."
        )
    made = []
    for d in peak.deployments:
        main = d.machines[0]
        known = pool.get((main.machine, main.region))
        served = [s.demand for s in d.serves]
        architecture, precision = _model(case, d)
        alpha = max((s.alpha or 0.0 for s in d.serves), default=0.0)
        mine = strategy_notes(d.family, alpha, d.machines, d.passes)
        if d.point is not None:
            loaded = "" if d.model is None else f", with {d.model}"
            mine.append(f"The plan rests on the measured point {d.point}: run the engine as it was measured{loaded}.")
        if d.stage != "both":
            mine.append(stage_note(d.stage))
        hits = _hits(case, d)
        if hits:
            mine.append(
                f"The plan counts on {hits:.0%} of the prompts' tokens in the engine's prefix cache: prompts that begin"
                " alike have to come to the same engine."
            )
        mine += [f"Routing: {s.share:.1%} of {s.demand} goes here." for s in d.serves if s.share < 1 - 1e-6]
        mix = [x for x in case.demands if x.name in served]
        longest = max((max(x.tokens, x.longest_tokens) for x in mix), default=1)
        known_longest = bool(mix) and all(x.longest_tokens for x in mix)
        batch = d.batch if d.engine else _of_a_replica(d)
        counts = [sum(x.count for x in q.deployments if x.name == d.name) for q in p.periods]
        host = None
        if d.family == "kvo_ram" and alpha > 0 and architecture is not None:
            work = layer_work(architecture, precision[0], precision[1])
            host = alpha * float(kv_bytes(work, d.tensor_parallel or 1, batch, longest)) / GIB
        made.append(Deployment(
            name=d.name, model=architecture.title if architecture else "", provider=known.provider if known else "",
            checkpoint=architecture.checkpoint if architecture else "", region=main.region, machine=main.machine,
            market=main.market, machines=main.count * d.count, fewest_machines=main.count * min(counts),
            most_machines=main.count * max(counts), gpu=main.gpu, gpus_per_machine=main.gpus_per_machine,
            tensor_parallel=d.tensor_parallel or 1, attention_ranks=d.attention_ranks or 1,
            replicas_per_machine=d.replicas_per_machine or 1,
            max_num_seqs=None if d.point is not None and d.batch == 1 else batch,  # one slot: it does not state
            max_num_batched_tokens=d.engine.max_num_batched_tokens if d.engine else None,
            chunk_tokens=d.engine.chunk_tokens if d.engine else None,
            max_model_len=int(longest) if known_longest else None,
            kv_offload_gib=host, stage=d.stage,
            drafts=drafts(problem.engine.speculates(architecture)) if d.engine and architecture else None,
            **(loras(problem.engine.lora) if d.engine else {}),
            prefix_hits=hits,
            weights=precision[0], kv=precision[1], vram_usable=problem.memory.vram_usable, notes=mine,
        ))  # fmt: skip
    most: dict[tuple[str, str, Market, str], Purchase] = {}
    for q in p.periods:
        now: dict[tuple[str, str, Market, str], Purchase] = {}
        for d in q.deployments:
            for m in d.machines:
                bought = purchase(m, pool, d.count)
                key = (bought.machine, bought.region, bought.market, bought.purpose)
                count = bought.count + (now[key].count if key in now else 0)
                now[key] = bought.model_copy(update={"count": count})
        for key, bought in now.items():
            if key not in most or bought.count > most[key].count:
                most[key] = bought
    notes += [f"Not served: {u.share:.1%} of {u.demand}." for u in peak.unserved]
    return Deployments(name=p.name or "plan", deployments=made, purchases=list(most.values()), notes=notes)


def _hits(case: FleetCase, d: DeploymentLine) -> float:
    """Share of a line's prompt tokens that its prefix cache has; 0 where any engine has it, or prompts come whole."""
    if d.engine is None or d.stage == "decode" or case.routing == "random":
        return 0.0
    prompts = {x.name: x for x in case.demands}
    of = [(s.requests_per_s * (prompts[s.demand].input_tokens or 1), prompts[s.demand].workload) for s in d.serves]
    total = sum(tokens for tokens, _ in of)
    kv = d.engine.kv_tokens
    return sum(tokens * case.hit_share(name, kv) for tokens, name in of) / total if total > 0 else 0.0


def _of_a_replica(d: DeploymentLine) -> int:
    """The largest part of the batch that a replica has at a time: it is split over machines, replicas and passes."""
    return -(-d.batch // (d.machines[0].count * (d.replicas_per_machine or 1) * d.passes))


def _model(case: FleetCase, d: DeploymentLine) -> tuple[Architecture | None, tuple[Precision, KvPrecision]]:
    """Model of a line, and the precision of its weights and KV cache; of measured points if they name it."""
    if d.point is not None:
        named = next((m for w in case.workloads for m in w.models or () if m.label == d.model), None)
        model = None if named is None else named.model
        shape = model if isinstance(model, Architecture) else catalog.llms().get(model or "")
        chosen = PrecisionChoice() if named is None else named.precision
        return shape, (chosen.weights, chosen.kv)
    loaded = case.loading(d.loads, d.model)
    if d.loads not in loaded.architectures:
        return None, ("fp16", "fp16")
    precision = loaded.workload(d.loads).precision
    return loaded.architectures[d.loads], (precision.weights, precision.kv)
