"""SkyPilot: a service task for each deployment (SkyPilot 0.14, docs.skypilot.co: task and service YAML)."""

from __future__ import annotations

import shlex
from typing import Any

from optmodels.errors import InputError, Mistake
from optmodels.plans.deployment import Deployment, Deployments
from optmodels.targets import Export, about, as_yaml, head, names, prefixed, said, vllm

PROVIDERS = ("aws", "gcp", "azure")
GATED = ("meta-llama", "google", "mistralai")  # publishers whose weights are downloaded with a token only


def task(name: str, d: Deployment) -> dict[str, Any]:
    """The task: one replica of the service is one machine."""
    resources: dict[str, Any] = {"instance_type": d.machine, "use_spot": d.market == "spot", "ports": vllm.PORT}
    if d.hosts:
        gpus = d.gpus_per_replica * d.replicas_per_machine
        resources = {"infra": f"ssh/{name}", "accelerators": f"{d.gpu}:{gpus}", "ports": vllm.PORT}
    elif d.provider in PROVIDERS:
        resources["infra"] = f"{d.provider}/{d.region}" if d.region else d.provider
    flags = vllm.flags(d)
    if d.replicas_per_machine > 1:
        flags.append(f"--data-parallel-size={d.replicas_per_machine}")
    return {
        "name": name,
        "resources": resources,
        **({"secrets": {"HF_TOKEN": None}} if is_gated(d) else {}),  # null: SkyPilot asks for it
        "service": {"readiness_probe": {"path": "/health", "initial_delay_seconds": 1800}, "replicas": d.machines},
        "setup": f"pip install vllm=={vllm.VERSION}",
        "run": shlex.join(["vllm", "serve", *flags, f"--port={vllm.PORT}"]),
    }


def is_gated(d: Deployment) -> bool:
    """Whether downloading the weights takes a token of Hugging Face."""
    return d.checkpoint.partition("/")[0] in GATED


def export(plan: Deployments) -> Export:
    """``NAME.sky.yaml`` for each deployment: ``sky serve up NAME.sky.yaml``.

    Raises:
        InputError: all of the plan's deployments do one stage, or share machines with others of several ranks.
    """
    files, notes = {}, list(plan.notes)
    whole = [d for d in plan.deployments if d.stage == "both"]
    if len(whole) < len(plan.deployments):
        notes.append(
            "SkyPilot's service sends a request to one replica, never to a prefill and then a decode engine:"
            " deployments that do one stage are not in these files; export them --to llm-d or dynamo."
        )
    if not whole:
        raise InputError(Mistake(None, "to", "skypilot", f"llm-d or dynamo: {notes[-1]}"))
    shared = [d for d in whole if d.attention_ranks > 1 and d.replicas_per_machine > 1]
    notes += [
        f"{d.name}: SkyPilot's replica is a machine, and one command starts no {d.replicas_per_machine} engines of"
        f" {d.attention_ranks} attention ranks on it; export it --to vllm or kubernetes."
        for d in shared
    ]
    whole = [d for d in whole if d not in shared]
    if not whole:
        raise InputError(Mistake(None, "to", "skypilot", f"vllm or kubernetes: {notes[-1]}"))
    for name, d in zip(names(whole), whole, strict=True):
        mine = said(d)
        if is_gated(d):
            mine.append("The weights are gated: start it with a token, sky serve up --secret HF_TOKEN FILE.")
        if d.hosts:
            mine.append("On servers of one's own: add them to SkyPilot as an SSH node pool of this name, and name the"
                        " GPU as SkyPilot shows it there.")  # fmt: skip
        elif d.provider not in PROVIDERS:
            mine.append(f"The plan does not say whose machine {d.machine} is; SkyPilot looks in every cloud.")
        if d.market is not None and d.market.startswith("reserved"):
            mine.append("On reserved machines; make the reservation first and name it in SkyPilot's config.")
        notes += prefixed(d, mine)
        body = as_yaml(task(name, d), width=10**6)
        files[f"{name}.sky.yaml"] = "\n".join([*head(plan), *about(d, mine), body])
    return Export(files, notes)
