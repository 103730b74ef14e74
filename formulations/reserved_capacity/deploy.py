"""A reserved-capacity plan as what to buy and, with continuous batching, to run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formulations.reserved_capacity.plan import ReservedPlan, ServingLine
from formulations.reserved_capacity.problem import ReservedCapacity
from formulations.reserved_capacity.throughput import hardware_of
from optmodels import catalog
from optmodels.catalog import geography
from optmodels.catalog.types import Market
from optmodels.plans.deployment import Deployment, Deployments, Purchase, drafts, loras

POINTS_SHOWN = 4


def deployments(problem: ReservedCapacity, plan: Mapping[str, Any]) -> Deployments:
    """The reservations; hourly purchases and routes are stated in words."""
    p, places = ReservedPlan.model_validate(plan), geography.places()
    purchases = [
        Purchase(
            machine=r.machine, region=r.region, market=r.term, count=r.count, usd_per_hour_each=r.usd_per_hour_each,
            provider=places[r.region].provider if r.region in places else "",
            purpose="from now" if r.first_quarter == 0 else f"from quarter {r.first_quarter + 1}",
        ) for r in p.reservations if r.count > 0
    ]  # fmt: skip
    notes = []
    if p.cost.committed_usd:
        notes.append(f"The reservations commit to {p.cost.committed_usd:,.0f} USD until the last of their terms ends.")
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
    made: list[Deployment] = []
    if len(problem.services) == 1:
        first = [x for n, x in enumerate(p.serving) if x.machine not in {y.machine for y in p.serving[:n]}]
        made = [x for line in first for x in _standing(problem, p, line)]
        for line in first:
            points = [x for x in p.serving if x.machine == line.machine]
            if len(points) > 1:
                several = f"{line.machine} serves requests/s by the round trip of its users"
                shown = points if len(points) <= POINTS_SHOWN else [*points[: POINTS_SHOWN - 1], points[-1]]
                loads = ", ".join(f"{x.requests_per_s:.4g} within {x.reach_ms:.0f} ms" for x in shown)
                notes.append(f"{several}: {loads}.")
            other = {_run(x): x for x in reversed(points) if _run(x) != _run(line)}
            notes += [f"{run} where it serves users within {x.reach_ms:.0f} ms." for run, x in other.items()]
    else:
        notes += list(dict.fromkeys(f"{_run(x)}; services share the machines, hour by hour." for x in p.serving))
    return Deployments(name=p.name or "plan", deployments=made, purchases=purchases, notes=notes)


def _run(x: ServingLine) -> str:
    return (
        f"{x.service} on {x.machine}: --tensor-parallel-size {x.tensor_parallel}{_ranks(x)} --max-num-seqs"
        f" {x.engine.max_num_seqs} --max-num-batched-tokens {x.engine.max_num_batched_tokens}"
    )


def _ranks(line: ServingLine) -> str:
    return f" --data-parallel-size {line.attention_ranks} --enable-expert-parallel" if line.attention_ranks else ""


def _standing(problem: ReservedCapacity, p: ReservedPlan, line: ServingLine) -> list[Deployment]:
    """The only service on the machines of one type reserved from the start, region by region."""
    service, places = problem.services[0], geography.places()
    w = service.workload
    machine = next(m for m in problem.machines if m.machine == line.machine)
    if w is None:
        return []
    architecture = catalog.llms()[w.model] if isinstance(w.model, str) else w.model
    counts: dict[tuple[str, Market], int] = {}
    for r in p.reservations:
        if r.machine == line.machine and r.first_quarter == 0 and r.count > 0:
            counts[r.region, r.term] = counts.get((r.region, r.term), 0) + r.count
    gpu, gpus, _ = hardware_of(machine)
    return [
        Deployment(
            name=f"{p.name or 'plan'}-{region}-{market}", model=architecture.title, checkpoint=architecture.checkpoint,
            provider=places[region].provider if region in places else "", region=region, machine=line.machine,
            market=market, machines=count, gpu=gpu, gpus_per_machine=gpus, tensor_parallel=line.tensor_parallel,
            attention_ranks=line.attention_ranks or 1, replicas_per_machine=line.replicas_per_machine,
            max_num_seqs=line.engine.max_num_seqs,
            max_num_batched_tokens=line.engine.max_num_batched_tokens, chunk_tokens=line.engine.chunk_tokens,
            weights=w.weights, kv=w.kv, vram_usable=w.vram_usable,
            drafts=drafts(problem.engine.speculates(architecture)), **loras(problem.engine.lora),
        ) for (region, market), count in counts.items()
    ]  # fmt: skip
