"""Plans as deployments and purchases, one function a formulation (its ``deployments`` hook)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.catalog import geography
from optmodels.catalog.types import Architecture, Machine, Market
from optmodels.latency.strategies import AO_FAMILIES, FAMILY_TITLES
from optmodels.latency.work import Precision, layer_work
from optmodels.plan.cost_efficiency import CostPlan, MachineLine
from optmodels.plan.deployment import Deployment, Deployments, Purchase
from optmodels.plan.fleet import FleetPlan
from optmodels.plan.orchestration import OrchestrationPlan
from optmodels.plan.reserved_capacity import ReservedPlan
from optmodels.problem.cost_efficiency import CostEfficiency
from optmodels.problem.fleet import Fleet, FleetCase
from optmodels.problem.orchestration import Orchestration, OrchestrationCase
from optmodels.problem.reserved_capacity import ReservedCapacity
from optmodels.units import GIB

Pool = Mapping[tuple[str, str], Machine]


def _purchase(line: MachineLine, pool: Pool, times: int = 1) -> Purchase:
    known = pool.get((line.machine, line.region))
    return Purchase(
        machine=line.machine, provider=known.provider if known else "", region=line.region, market=line.market,
        count=line.count * times, usd_per_hour_each=line.usd_per_hour_each,
        purpose="serving" if line.role == "main" else "attention offload",
    )  # fmt: skip


def _strategy_notes(family: str | None, alpha: float, machines: list[MachineLine], passes: int) -> list[str]:
    """What of a strategy has no setting in serving engines."""
    if family == "multi_pass":
        return [f"The plan serves the batch in {passes} passes, one after another: admit the next only when one ends."]
    if family in AO_FAMILIES:
        other = machines[-1]
        return [
            f"{FAMILY_TITLES[family]}: the plan computes the share α = {alpha:.4f} of attention on {other.count} ×"
            f" {other.machine} ({other.market.replace('_', '-')}). No serving engine has this as a setting; it needs a"
            " system built for it. Without it this deployment may run out of memory or miss its SLO."
        ]
    if family == "kvo_disk" and alpha > 0:
        return [
            f"KV offload to disk: the plan keeps the share α = {alpha:.4f} of the KV cache on an attached volume. No"
            " setting of the engine does this while requests run; expect fewer requests at a time."
        ]
    if family == "kvo_ram" and alpha > 0:
        return [
            f"KV offload to host memory: the plan streams the share α = {alpha:.4f} of the running requests' KV cache"
            " from host memory. An engine's KV offloading keeps evicted blocks there instead: measure before you rely"
            " on the planned batch."
        ]
    return []


def cost_efficiency(problem: CostEfficiency, plan: Mapping[str, Any]) -> Deployments:
    """One deployment; its attention-offload machines are purchases only."""
    p, case = CostPlan.model_validate(plan), problem.resolve()
    pool = {(m.machine, m.region): m for m in case.machines}
    main = p.machines[0]
    known = pool.get((main.machine, main.region))
    parts = max(p.batch_split)
    host = next((x.value for x in p.limits if x.name == "host RAM per replica"), None)
    w = problem.workload
    deployment = Deployment(
        name=p.name or "plan", model=case.architecture.title, checkpoint=case.architecture.checkpoint,
        provider=known.provider if known else "", region=main.region, machine=main.machine, market=main.market,
        machines=main.count, gpu=main.gpu, gpus_per_machine=main.gpus_per_machine, tensor_parallel=p.tensor_parallel,
        replicas_per_machine=p.replicas_per_machine, max_num_seqs=parts,
        max_model_len=w.input_tokens + w.output_tokens, weights=problem.precision.weights, kv=problem.precision.kv,
        vram_usable=problem.memory.vram_usable, kv_offload_gib=host or None,
        notes=_strategy_notes(p.family, p.alpha, p.machines, p.passes),
    )  # fmt: skip
    return Deployments(name=p.name or "plan", deployments=[deployment],
                       purchases=[_purchase(m, pool) for m in p.machines])  # fmt: skip


def fleet(problem: Fleet, plan: Mapping[str, Any]) -> Deployments:
    """The deployments of the dearest period; purchases as many as any period uses at once."""
    p, case = FleetPlan.model_validate(plan), problem.resolve()
    pool = {(m.machine, m.region): m for m in case.machines}
    peak = max(p.periods, key=lambda q: q.usd_per_hour)
    notes = []
    if len(p.periods) > 1:
        others = "; ".join(
            f"{q.name}: " + ", ".join(f"{d.count} × {d.name}" for d in q.deployments)
            for q in p.periods if q.name != peak.name
        )  # fmt: skip
        notes.append(f"Deployments are those of the dearest period, {peak.name}. Scale by the clock to {others}.")
    deployments = []
    for d in peak.deployments:
        main = d.machines[0]
        known = pool.get((main.machine, main.region))
        served = [s.demand for s in d.serves]
        architecture, precision = _model(case, d.loads)
        alpha = max((s.alpha or 0.0 for s in d.serves), default=0.0)
        mine = _strategy_notes(d.family, alpha, d.machines, d.passes)
        if d.point is not None:
            mine.append(f"The plan rests on the measured point {d.point}: run the engine as it was measured.")
        mine += [f"Routing: {s.share:.1%} of {s.demand} goes here." for s in d.serves if s.share < 1 - 1e-6]
        longest = max((x.tokens for x in case.demands if x.name in served), default=1)
        host = None
        if d.family == "kvo_ram" and alpha > 0 and architecture is not None:
            work = layer_work(architecture, precision[0], precision[1])
            host = alpha * d.batch * longest * work.kv_bytes_per_token_all_layers / GIB
        deployments.append(Deployment(
            name=d.name, model=architecture.title if architecture else "", provider=known.provider if known else "",
            checkpoint=architecture.checkpoint if architecture else "", region=main.region, machine=main.machine,
            market=main.market, machines=main.count * d.count, gpu=main.gpu, gpus_per_machine=main.gpus_per_machine,
            tensor_parallel=d.tensor_parallel or 1, replicas_per_machine=d.replicas_per_machine or 1,
            max_num_seqs=d.batch, max_model_len=int(longest) if longest > 1 else None,
            kv_offload_gib=host,
            weights=precision[0], kv=precision[1], vram_usable=problem.memory.vram_usable, notes=mine,
        ))  # fmt: skip
    most: dict[tuple[str, str, Market, str], Purchase] = {}
    for q in p.periods:
        now: dict[tuple[str, str, Market, str], Purchase] = {}
        for d in q.deployments:
            for m in d.machines:
                bought = _purchase(m, pool, d.count)
                key = (bought.machine, bought.region, bought.market, bought.purpose)
                count = bought.count + (now[key].count if key in now else 0)
                now[key] = bought.model_copy(update={"count": count})
        for key, bought in now.items():
            if key not in most or bought.count > most[key].count:
                most[key] = bought
    notes += [f"Not served: {u.share:.1%} of {u.demand}." for u in peak.unserved]
    return Deployments(name=p.name or "plan", deployments=deployments, purchases=list(most.values()), notes=notes)


def _model(case: FleetCase, workload: str | None) -> tuple[Architecture | None, tuple[Precision, Precision]]:
    if workload is None or workload not in case.architectures:
        return None, ("fp16", "fp16")
    precision = case.workload(workload).precision
    return case.architectures[workload], (precision.weights, precision.kv)


def reserved_capacity(problem: ReservedCapacity, plan: Mapping[str, Any]) -> Deployments:
    """The reservations; what is bought by the hour and where requests go is said in words."""
    p, places = ReservedPlan.model_validate(plan), geography.places()
    purchases = [
        Purchase(
            machine=r.machine, region=r.region, market=r.term, count=r.count, usd_per_hour_each=r.usd_per_hour_each,
            provider=places[r.region].provider if r.region in places else "",
            purpose="from now" if r.first_quarter == 0 else f"from quarter {r.first_quarter + 1}",
        ) for r in p.reservations if r.count > 0
    ]  # fmt: skip
    notes = []
    if p.purchases.hour:
        bought = p.purchases
        hours = len(set(zip(bought.scenario, bought.quarter, bought.hour, strict=True)))
        hourly = p.cost.on_demand_usd_per_month + p.cost.spot_usd_per_month
        notes.append(
            f"By the hour, as demand comes: {sum(bought.machines):,.0f} machine-hours in {hours} hours of the horizon,"
            f" {hourly:,.0f} USD/month. They are no standing purchase."
        )
    if p.forwarded_share > 0:
        notes.append(f"Forwarding: {p.forwarded_share:.1%} of requests are served in another region; the flows are in"
                     " the plan and belong into the load balancer.")  # fmt: skip
    return Deployments(name=p.name or "plan", purchases=purchases, notes=notes)


def orchestration(problem: Orchestration, plan: Mapping[str, Any]) -> Deployments:
    """A deployment for all servers on which the same configuration has the same GPUs; nothing is bought."""
    p, case = OrchestrationPlan.model_validate(plan), problem.resolve()
    notes = []
    groups: dict[tuple[int, str], list[list[int]]] = {}
    for instance in p.instances:
        c = p.configurations[instance.configuration]
        size = c.tp * c.pp
        if any(len(gpus) % size for gpus in instance.placement.values()):
            where = "; ".join(f"{server}: GPUs {gpus}" for server, gpus in instance.placement.items())
            notes.append(f"{instance.name} ({c.model}, {c.parallelism}, batch {c.batch}) spans servers ({where}): start"
                         " it on a Ray cluster of theirs.")  # fmt: skip
            continue
        for server, gpus in instance.placement.items():
            replicas = [gpus[i : i + size] for i in range(0, len(gpus), size)]
            groups.setdefault((instance.configuration, server), []).extend(replicas)
    alike: dict[tuple[int, str], list[str]] = {}
    for (k, server), replicas in groups.items():
        alike.setdefault((k, repr(sorted(replicas))), []).append(server)
    deployments = []
    for (k, _), hosts in alike.items():
        c = p.configurations[k]
        devices = sorted(groups[k, hosts[0]])
        model = problem.models[case.models.index(c.model)]
        architecture = case.architectures[case.models.index(c.model)]
        deployments.append(Deployment(
            name=f"{c.model}, {c.parallelism}, batch {c.batch}", model=architecture.title or c.model,
            checkpoint=architecture.checkpoint, machine=f"server with {c.gpu}", market=None, machines=len(hosts),
            hosts=hosts, devices=devices, gpu=c.gpu, gpus_per_machine=_gpus_of(case, hosts[0]),
            tensor_parallel=c.tp, pipeline_parallel=c.pp, replicas_per_machine=len(devices), max_num_seqs=c.batch,
            max_model_len=_longest(case, c.model), weights=model.weights, kv=model.kv,
            vram_usable=problem.memory.vram_usable,
        ))  # fmt: skip
    notes.append("Who serves whom is in the plan's shares by class and time; they belong into the dispatcher.")
    return Deployments(name=p.name or "plan", deployments=deployments, notes=notes)


def _gpus_of(case: OrchestrationCase, server: str) -> int:
    return next(len(s.free) for s in case.servers if s.name == server)


def _longest(case: OrchestrationCase, model: str) -> int | None:
    """Tokens of the longest request of a model, where requests are known one by one."""
    if case.trace is None:
        return None
    mine = case.request_model == case.models.index(model)
    return int((case.trace.prompt_tokens + case.trace.output_tokens)[mine].max(initial=1))
