"""KServe (serving.kserve.io/v1beta1): an InferenceService for each deployment, in Standard deployment mode.

Where the plan has several numbers of replicas, KServe has KEDA scale between them (autoscaler class ``keda``).
"""

from __future__ import annotations

from typing import Any

from optmodels.plans.deployment import Deployment, Deployments
from optmodels.targets import Export, keda
from optmodels.targets.kubernetes import labels, of_line, pod, written


def manifests(name: str, d: Deployment) -> list[dict[str, Any]]:
    """The InferenceService of one deployment; KServe knows a predictor's container by its name."""
    least, most = keda.bounds(d)
    predictor = pod(d, "kserve-container") | {"minReplicas": least, "maxReplicas": most}
    modes = {"serving.kserve.io/deploymentMode": "Standard"}
    if least < most:
        modes["serving.kserve.io/autoscalerClass"] = "keda"
        predictor["autoScaling"] = {"metrics": [{"type": "External", "external": {
            "metric": {"backend": "prometheus", "serverAddress": keda.PROMETHEUS,
                       "query": keda.query(f"{name}-predictor")},
            "target": {"type": "AverageValue", "averageValue": keda.slots(d)},
        }}]}  # fmt: skip
    return [{
        "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
        "metadata": {"name": name, "labels": labels(name), "annotations": of_line(d) | modes},
        "spec": {"predictor": predictor},
    }]  # fmt: skip


def export(plan: Deployments) -> Export:
    """``inferenceservices.yaml``."""
    scaled = any(keda.bounds(d)[0] < keda.bounds(d)[1] for d in plan.deployments)
    notes = [*plan.notes, *(keda.NOTES if scaled else [])]
    return written(plan.model_copy(update={"notes": notes}), manifests, "inferenceservices.yaml")
