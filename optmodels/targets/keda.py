"""KEDA (keda.sh/v1alpha1): a ScaledObject for each Deployment of ``--to kubernetes``, between the plan's bounds.

The fewest and the most are over every period of the plan; the metric that moves the number of
replicas between them is the engine's own count of requests, running and waiting, against the slots of a replica.
"""

from __future__ import annotations

from typing import Any

from optmodels.plans.deployment import Deployment, Deployments
from optmodels.targets import Export
from optmodels.targets.kubernetes import labels, of_line, written

PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"  # the operator's own name
NOTES = [
    f"Set serverAddress to your Prometheus ({PROMETHEUS} is a guess); it has to scrape the engines with a label"
    " `service` that names their Service.",
    "Bounds are the plan's, by its periods. A replica that starts loads its weights first: scale ahead of demand.",
]


def bounds(d: Deployment) -> tuple[int, int]:
    """Fewest and most replicas; at least one, as an engine that does not run reports no requests."""
    fewest, most = d.replica_bounds
    return max(1, fewest), most


def query(name: str) -> str:
    """Requests in all replicas of a deployment, running and waiting."""
    return f'sum(vllm:num_requests_running{{service="{name}"}}) + sum(vllm:num_requests_waiting{{service="{name}"}})'


def slots(d: Deployment) -> str:
    """Requests that a replica takes at a time: as many in it ask for one more (vLLM's default: 256)."""
    return str((d.max_num_seqs or 256) * d.attention_ranks)


def manifests(name: str, d: Deployment) -> list[dict[str, Any]]:
    """The ScaledObject of one deployment."""
    least, most = bounds(d)
    trigger = {
        "type": "prometheus", "metricType": "AverageValue",
        "metadata": {"serverAddress": PROMETHEUS, "query": query(name), "threshold": slots(d)},
    }  # fmt: skip
    return [{
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
        "metadata": {"name": name, "labels": labels(name), "annotations": of_line(d)},
        "spec": {"scaleTargetRef": {"name": name}, "minReplicaCount": least, "maxReplicaCount": most,
                 "triggers": [trigger]},
    }]  # fmt: skip


def export(plan: Deployments) -> Export:
    """``scaledobjects.yaml``."""
    return written(plan.model_copy(update={"notes": [*plan.notes, *NOTES]}), manifests, "scaledobjects.yaml")
