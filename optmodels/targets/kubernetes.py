"""Kubernetes: a Deployment and a Service for each deployment of the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from optmodels.errors import printable
from optmodels.plans.deployment import Deployment, Deployments
from optmodels.targets import Export, about, as_yaml, head, names, prefixed, said, vllm

IMAGE = f"vllm/vllm-openai:v{vllm.VERSION}"
SPOT: dict[str, tuple[str, str]] = {  # node label of spot machines
    "aws": ("eks.amazonaws.com/capacityType", "SPOT"),
    "gcp": ("cloud.google.com/gke-spot", "true"),
    "azure": ("kubernetes.azure.com/scalesetpriority", "spot"),
}


def bought(d: Deployment) -> list[str]:
    """Notes on its machines that no manifest has a field for."""
    notes = []
    if d.market == "spot" and d.provider not in SPOT:
        notes.append("Bought on the spot market; add your cluster's node label for spot machines.")
    if d.devices:
        notes.append("The plan names GPUs; a device plugin chooses them itself, of the same servers.")
    if d.market is not None and d.market.startswith("reserved"):
        notes.append("On reserved machines; a reservation is made with the provider, not in a manifest.")
    return notes


Manifests = Callable[[str, Deployment], list[dict[str, Any]]]


def labels(name: str) -> dict[str, str]:
    """Of everything that belongs to a deployment."""
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "optmodels"}


def of_line(d: Deployment) -> dict[str, str]:
    """Which line of the plan this is."""
    return {"optmodels/plans": printable(d.name, 500)}


def pod(d: Deployment, container: str = "vllm") -> dict[str, Any]:
    """The pod of one replica on one machine: where it runs, and the engine as its only container."""
    select = {} if d.hosts else {"node.kubernetes.io/instance-type": d.machine}
    if d.region:
        select["topology.kubernetes.io/region"] = d.region
    tolerations: list[dict[str, Any]] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    if d.market == "spot" and d.provider in SPOT:
        key, value = SPOT[d.provider]
        select[key] = value
        tolerations.append({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"})
    gpus = d.gpus_per_replica // d.nodes
    side_channel = [{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    engine = {
        "name": container, "image": IMAGE, "args": ["--model", vllm.flags(d)[0], *vllm.flags(d)[1:]],
        "ports": [{"name": "http", "containerPort": vllm.PORT}],
        "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token",
                                                                    "optional": True}}},
                *(side_channel if d.stage != "both" else [])],
        "resources": {"limits": {"nvidia.com/gpu": gpus}, "requests": {"nvidia.com/gpu": gpus}},
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10},
        "startupProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10, "failureThreshold": 180},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - ranks share memory there
    }  # fmt: skip
    named = {"key": "kubernetes.io/hostname", "operator": "In", "values": d.hosts}
    required = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [named]}]}
    }
    return {
        **({"affinity": {"nodeAffinity": required}} if d.hosts else {}),
        "nodeSelector": select, "tolerations": tolerations, "containers": [engine],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }  # fmt: skip


def service(name: str, further: dict[str, str] | None = None) -> dict[str, Any]:
    """The Service before the pods of a deployment; `further` labels that they have."""
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": labels(name)},
        "spec": {"selector": {"app.kubernetes.io/name": name} | (further or {}),
                 "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }  # fmt: skip


def manifests(name: str, d: Deployment) -> list[dict[str, Any]]:
    """Deployment and Service of one deployment."""
    deployed = {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "labels": labels(name), "annotations": of_line(d)},
        "spec": {"replicas": d.replicas, "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
                 "template": {"metadata": {"labels": labels(name)}, "spec": pod(d)}},
    }  # fmt: skip
    return [deployed, service(name)]


def written(plan: Deployments, made: Manifests, file: str) -> Export:
    """One file with the manifests of every deployment, each below the plan's statement on it.

    Args:
        plan: plan to run.
        made: (name, deployment) → its manifests.
        file: its name.
    """
    notes = list(plan.notes)
    parts = ["\n".join(head(plan))]
    for name, d in zip(names(plan.deployments), plan.deployments, strict=True):
        mine = [*said(d), *bought(d)]
        notes += prefixed(d, mine)
        text = "\n".join(about(d, mine))
        body = as_yaml(*made(name, d), start=True)
        parts.append(f"{text}\n{body}")
    return Export({file: "\n".join(parts)}, notes)


def export(plan: Deployments) -> Export:
    """``manifests.yaml``."""
    return written(plan, manifests, "manifests.yaml")
