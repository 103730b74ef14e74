"""NVIDIA Dynamo: a DynamoGraphDeployment (nvidia.com/v1beta1) for each pool, a frontend before its vLLM workers.

Fields as in the API of Dynamo 1.6 (docs.nvidia.com/dynamo, DynamoGraphDeployment Reference; its Go types under
deploy/operator/api/v1beta1). The operator gives the container `main` its ports, probes and shared memory.
"""

from __future__ import annotations

from typing import Any

from optmodels.errors import InputError, Mistake
from optmodels.plans.deployment import Deployment, Deployments
from optmodels.targets import Export, NodePool, about, as_yaml, head, pools, prefixed, said, vllm
from optmodels.targets.kubernetes import bought, labels, of_line, pod

VERSION = "1.6.1"
IMAGE = f"nvcr.io/nvidia/ai-dynamo/vllm-runtime:{VERSION}"
MOST_COMPONENTS = 25  # of a graph
TYPES = {"both": "worker", "prefill": "prefill", "decode": "decode"}
NOTES = [
    vllm.TRANSFERS,
    "Dynamo's frontend sends a request to the prefill and decode workers that its router finds free: shares of"
    " workloads, limits on TTFT and TPOT and the load that was planned are no settings of a graph.",
]


def component(name: str, d: Deployment) -> dict[str, Any]:
    """The workers of one deployment."""
    spec = pod(d, "main")
    (engine,) = spec["containers"]
    for field in ("ports", "readinessProbe", "startupProbe", "volumeMounts"):
        del engine[field]
    del spec["volumes"]
    arguments = vllm.arguments(d)
    if d.stage != "both":  # Dynamo has roles of its own
        arguments |= {"kv-transfer-config": vllm.connector("kv_both"), "disaggregation-mode": d.stage}
    engine |= {"image": IMAGE, "command": ["python3", "-m", "dynamo.vllm"],
               "args": [vllm.flag(k, v) for k, v in arguments.items()]}  # fmt: skip
    return {
        "name": name, "type": TYPES[d.stage], "replicas": d.replicas,
        "podTemplate": {"metadata": {"labels": labels(name), "annotations": of_line(d)}, "spec": spec},
    }  # fmt: skip


def graph(pool: NodePool) -> dict[str, Any]:
    """The graph of one pool.

    Raises:
        InputError: it has more kinds of workers than a graph takes.
    """
    if len(pool.members) >= MOST_COMPONENTS:
        expected = f"at most {MOST_COMPONENTS - 1} deployments of one model ({pool.name} has {len(pool.members)})"
        raise InputError(Mistake(None, "to", "dynamo", expected))
    router: dict[str, Any] = {"name": "main", "image": IMAGE}
    if any(d.prefix_hits for _, d in pool.members):  # by requests sent, without events of the engines' caches
        router |= {
            "command": ["python3", "-m", "dynamo.frontend"],
            "args": ["--router-mode=kv", "--no-router-kv-events"],
        }
    front = {
        "name": "frontend", "type": "frontend", "replicas": 1, "podTemplate": {"spec": {"containers": [router]}},
    }  # fmt: skip
    return {
        "apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment",
        "metadata": {"name": pool.name, "labels": labels(pool.name)},
        "spec": {"backendFramework": "vllm", "components": [front, *(component(n, d) for n, d in pool.members)]},
    }  # fmt: skip


def export(plan: Deployments) -> Export:
    """``NAME.dynamo.yaml`` for each pool."""
    if any(d.stage != "both" for d in plan.deployments):
        plan = plan.model_copy(update={"notes": [*plan.notes, *NOTES]})
    files, notes = {}, list(plan.notes)
    for pool in pools(plan.deployments):
        lines = head(plan)
        for _, d in pool.members:
            mine = [*said(d), *bought(d)]
            notes += prefixed(d, mine)
            lines += about(d, mine)
        files[f"{pool.name}.dynamo.yaml"] = "\n".join([*lines, as_yaml(graph(pool))])
    return Export(files, notes)
