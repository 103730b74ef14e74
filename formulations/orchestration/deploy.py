"""An orchestration plan as what to run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formulations.orchestration.plan import ConfigurationLine, OrchestrationPlan
from formulations.orchestration.problem import Orchestration, OrchestrationCase
from optmodels.plans.deployment import Deployment, Deployments, drafts, loras, stage_note


def deployments(problem: Orchestration, plan: Mapping[str, Any]) -> Deployments:
    """A deployment for all servers on which the same configuration has the same GPUs; nothing is bought."""
    p, case = OrchestrationPlan.model_validate(plan), problem.resolve()
    notes = []
    groups: dict[tuple[int, str], list[list[int]]] = {}
    spanning: list[tuple[int, dict[str, list[int]]]] = []  # one replica on equal parts of several servers
    for instance in p.instances:
        c = p.configurations[instance.configuration]
        size = c.tp * c.pp * c.ranks
        counts = [len(gpus) for gpus in instance.placement.values()]
        if c.ranks == 1 and sum(counts) == size and len(counts) > 1 and len(set(counts)) == 1:
            spanning.append((instance.configuration, instance.placement))
            continue
        if any(count % size for count in counts):
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
    made = []
    for (k, _), hosts in alike.items():
        devices = sorted(groups[k, hosts[0]])
        made.append(_deployment(problem, case, p.configurations[k], hosts, devices, 1))
    for k, placement in spanning:
        parts = [sorted(gpus) for gpus in placement.values()]
        devices = parts[:1] if all(part == parts[0] for part in parts) else []
        made.append(_deployment(problem, case, p.configurations[k], list(placement), devices, len(placement)))
    if problem.continuous is not None:
        notes.append("A dispatcher in front has to refuse who cannot be in time: engines alone let everybody wait.")
    notes.append("Who serves whom is in the plan's shares by class and time; they belong into the dispatcher.")
    return Deployments(name=p.name or "plan", deployments=made, notes=notes)


def _deployment(
    problem: Orchestration, case: OrchestrationCase, c: ConfigurationLine, hosts: list[str], devices: list[list[int]],
    nodes: int,
) -> Deployment:  # fmt: skip
    """A configuration on `hosts`, on the same GPUs of each; with several `nodes` one replica on all of them."""
    model = problem.models[case.models.index(c.model)]
    architecture = case.architectures[case.models.index(c.model)]
    notes = [] if c.stage == "both" else [stage_note(c.stage)]
    if c.engine is not None and c.engine.chunk_tokens is not None:
        notes.append(f"Of one prompt at most {c.engine.chunk_tokens:,} tokens in a step.")
    role = "" if c.stage == "both" else f", {c.stage}"
    return Deployment(
        name=f"{c.model}, {c.parallelism}, batch {c.batch}{role}", model=architecture.title or c.model,
        checkpoint=architecture.checkpoint, machine=f"server with {c.gpu}", market=None, machines=len(hosts),
        hosts=hosts, devices=devices, nodes=nodes, gpu=c.gpu,
        gpus_per_machine=next(len(s.free) for s in case.servers if s.name == hosts[0]),
        tensor_parallel=c.tp, pipeline_parallel=c.pp, attention_ranks=c.ranks,
        replicas_per_machine=len(devices) if nodes == 1 else 1,
        max_num_seqs=c.batch if c.engine is None else c.engine.max_num_seqs,
        max_model_len=_longest(case, c.model), weights=model.weights, kv=model.kv,
        vram_usable=problem.memory.vram_usable,
        drafts=None if problem.continuous is None else drafts(problem.continuous.speculates(architecture)),
        **({} if problem.continuous is None else loras(problem.continuous.lora)),
        max_num_batched_tokens=None if c.engine is None else c.engine.max_num_batched_tokens,
        stage=c.stage, notes=notes,
    )  # fmt: skip


def _longest(case: OrchestrationCase, model: str) -> int | None:
    """Tokens of the longest request of a model, where requests are known one by one."""
    if case.trace is None:
        return None
    prompt, output, _ = case.lengths(case.models.index(model))
    return int((prompt + output).max(initial=1))
