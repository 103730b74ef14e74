"""LeaderWorkerSet (leaderworkerset.x-k8s.io/v1, lws.sigs.k8s.io): a group of pods for each server of the engine.

The one Kubernetes form of servers that span machines; the Ray cluster inside a group is started by the script that
vLLM's image has for it (docs.vllm.ai, Deployment on LWS).
"""

from __future__ import annotations

import shlex
from typing import Any

from optmodels.plans.deployment import Deployment, Deployments
from optmodels.targets import Export, vllm
from optmodels.targets.kubernetes import labels, of_line, pod, service, written

SCRIPT = "/vllm-workspace/examples/online_serving/multi-node-serving.sh"
LEADER = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}  # a label that the controller gives


def manifests(name: str, d: Deployment) -> list[dict[str, Any]]:
    """The set, its pods one a machine, and the Service before its leaders."""
    leader, worker = pod(d), pod(d)
    if d.nodes > 1:
        serve = shlex.join(["vllm", "serve", *vllm.flags(d), f"--port={vllm.PORT}",
                            "--distributed-executor-backend=ray"])  # fmt: skip
        _run(leader, f"bash {SCRIPT} leader --ray_cluster_size=$(LWS_GROUP_SIZE) && {serve}")
        _run(worker, f"bash {SCRIPT} worker --ray_address=$(LWS_LEADER_ADDRESS)")
        for probe in ("readinessProbe", "startupProbe"):  # only the leader listens
            del worker["containers"][0][probe]
    metadata = {"labels": labels(name)}
    group = {
        "size": d.nodes, "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": {"metadata": metadata, "spec": leader},
        "workerTemplate": {"metadata": {"labels": labels(name)}, "spec": worker},
    }  # fmt: skip
    made = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "labels": labels(name), "annotations": of_line(d)},
        "spec": {"replicas": d.replicas, "leaderWorkerTemplate": group},
    }  # fmt: skip
    return [made, service(name, LEADER)]


def _run(spec: dict[str, Any], command: str) -> None:
    """Replace the image's own entry point; Kubernetes fills in $(VARIABLES) of the container."""
    engine = spec["containers"][0]
    del engine["args"]
    engine["command"] = ["sh", "-c", command]


def export(plan: Deployments) -> Export:
    """``leaderworkersets.yaml``."""
    return written(plan, manifests, "leaderworkersets.yaml")
