"""Kubernetes: a Deployment and a Service for each deployment of the plan."""

from __future__ import annotations

from typing import Any

import yaml

from optmodels.errors import printable
from optmodels.plan.deployment import Deployment, Deployments
from optmodels.targets import Export, about, head, names, prefixed, said, vllm

IMAGE = f"vllm/vllm-openai:v{vllm.VERSION}"
SPOT: dict[str, tuple[str, str]] = {  # node label of spot machines
    "aws": ("eks.amazonaws.com/capacityType", "SPOT"),
    "gcp": ("cloud.google.com/gke-spot", "true"),
    "azure": ("kubernetes.azure.com/scalesetpriority", "spot"),
}


def manifests(name: str, d: Deployment) -> list[dict[str, Any]]:
    """Deployment and Service of one deployment."""
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "optmodels"}
    select = {} if d.hosts else {"node.kubernetes.io/instance-type": d.machine}
    if d.region:
        select["topology.kubernetes.io/region"] = d.region
    tolerations: list[dict[str, Any]] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    if d.market == "spot" and d.provider in SPOT:
        key, value = SPOT[d.provider]
        select[key] = value
        tolerations.append({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"})
    gpus = d.tensor_parallel * d.pipeline_parallel
    container = {
        "name": "vllm", "image": IMAGE, "args": ["--model", vllm.flags(d)[0], *vllm.flags(d)[1:]],
        "ports": [{"name": "http", "containerPort": vllm.PORT}],
        "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token",
                                                                    "optional": True}}}],
        "resources": {"limits": {"nvidia.com/gpu": gpus}, "requests": {"nvidia.com/gpu": gpus}},
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10},
        "startupProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10, "failureThreshold": 180},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - ranks share memory there
    }  # fmt: skip
    named = {"key": "kubernetes.io/hostname", "operator": "In", "values": d.hosts}
    required = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [named]}]}
    }
    spec = {
        **({"affinity": {"nodeAffinity": required}} if d.hosts else {}),
        "nodeSelector": select, "tolerations": tolerations, "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }  # fmt: skip
    return [
        {
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "labels": labels, "annotations": {"optmodels/plan": printable(d.name, 500)}},
            "spec": {"replicas": d.replicas, "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
                     "template": {"metadata": {"labels": dict(labels)}, "spec": spec}},
        },
        {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": dict(labels)},
            "spec": {"selector": {"app.kubernetes.io/name": name},
                     "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
        },
    ]  # fmt: skip


def export(plan: Deployments) -> Export:
    """``manifests.yaml``."""
    notes = list(plan.notes)
    parts = ["\n".join(head(plan))]
    for name, d in zip(names(plan.deployments), plan.deployments, strict=True):
        mine = said(d)
        if d.market == "spot" and d.provider not in SPOT:
            mine.append("Bought on the spot market; add your cluster's node label for spot machines.")
        if d.devices:
            mine.append("The plan names GPUs; a device plugin chooses them itself, of the same servers.")
        if d.market is not None and d.market.startswith("reserved"):
            mine.append("On reserved machines; a reservation is made with the provider, not in a manifest.")
        notes += prefixed(d, mine)
        text = "\n".join(about(d, mine))
        body = yaml.safe_dump_all(manifests(name, d), sort_keys=False, explicit_start=True, width=110)
        parts.append(f"{text}\n{body}")
    return Export({"manifests.yaml": "\n".join(parts)}, notes)
