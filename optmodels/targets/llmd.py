"""llm-d 0.9: model servers as Deployments with their roles, and values for the chart of its router, for each pool.

As in llm-d's guides (llm-d.ai, P/D Disaggregation; github.com/llm-d/llm-d, guides/pd-disaggregation): the router finds
model servers by label, their roles by `llm-d.ai/role`; a sidecar of the decode servers has each prompt prefilled first.
"""

from __future__ import annotations

from typing import Any

from optmodels.plans.deployment import Deployment, Deployments
from optmodels.targets import Export, Lines, NodePool, about, as_yaml, comment, head, pools, prefixed, said, vllm
from optmodels.targets.kubernetes import bought, labels, of_line, pod

ROUTER = "v0.10.0"  # chart llm-d-router-standalone and sidecar, of llm-d 0.9.0
SIDECAR = f"ghcr.io/llm-d/llm-d-router-disagg-sidecar:{ROUTER}"
BEHIND = 8200  # port of an engine behind the sidecar
PREFIX_FIRST: dict[str, int | None] = {"prefix-cache-scorer": 3, "queue-scorer": 2}  # the router's default weights
NOTES = [
    vllm.TRANSFERS,
    "llm-d's router sends a request to the least busy prefill and decode servers: shares of workloads, limits on TTFT"
    " and TPOT and the load that was planned are no settings of it.",
]


def model_server(pool: NodePool, name: str, d: Deployment) -> dict[str, Any]:
    """The Deployment of one deployment's servers."""
    spec = pod(d, "modelserver")
    (engine,) = spec["containers"]
    if d.stage == "decode":
        engine["args"].append(f"--port={BEHIND}")
        engine["ports"][0]["containerPort"] = BEHIND
        spec["initContainers"] = [{
            "name": "routing-proxy", "image": SIDECAR, "restartPolicy": "Always",
            "args": [f"--port={vllm.PORT}", f"--model-server-port={BEHIND}", "--kv-connector=nixlv2",
                     "--secure-serving=false"],
            "ports": [{"name": "sidecar", "containerPort": vllm.PORT}],
        }]  # fmt: skip
    mine = labels(name) | selected(pool) | {"llm-d.ai/role": d.stage}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "labels": mine, "annotations": of_line(d)},
        "spec": {"replicas": d.replicas, "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
                 "template": {"metadata": {"labels": mine}, "spec": spec}},
    }  # fmt: skip


def selected(pool: NodePool) -> dict[str, str]:
    """Labels by which the router finds the servers of a pool."""
    return {"llm-d.ai/inference-serving": "true", "llm-d.ai/guide": pool.name}


def router(pool: NodePool) -> dict[str, Any]:
    """Values of the router's chart; where a pool does both stages its default of choosing servers stays."""
    found: dict[str, Any] = {"modelServers": {"type": "vllm", "matchLabels": selected(pool)}}
    if pool.apart:
        plugins: list[dict[str, Any]] = [{"type": "always-disagg-pd-decider"}]
        plugins.append({"type": "disagg-profile-handler",
                        "parameters": {"deciders": {"prefill": "always-disagg-pd-decider"}}})  # fmt: skip
        profiles = []
        hits = any(d.prefix_hits for _, d in pool.members)
        plugins += [{"type": "approx-prefix-cache-producer"}] if hits else []
        for stage, scorers in (
            ("prefill", PREFIX_FIRST if hits else {"queue-scorer": None}), ("decode", {"active-request-scorer": None}),
        ):  # fmt: skip
            mine = {f"{stage}-filter": None} | scorers | {"max-score-picker": None}
            plugins += [{"type": x} for x in mine if {"type": x} not in plugins]
            refs = [{"pluginRef": x} | ({} if weight is None else {"weight": weight}) for x, weight in mine.items()]
            profiles.append({"name": stage, "plugins": refs})
        chosen = {"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig", "plugins": plugins,
                  "schedulingProfiles": profiles}  # fmt: skip
        text = Lines(as_yaml(chosen))
        found["epp"] = {"pluginsConfigFile": "pd-config.yaml", "pluginsCustomConfig": {"pd-config.yaml": text}}
    return {"router": found}


def export(plan: Deployments) -> Export:
    """For each pool ``NAME.llm-d.yaml``, its model servers, and ``NAME.router.values.yaml``, its router."""
    if any(d.stage != "both" for d in plan.deployments):
        plan = plan.model_copy(update={"notes": [*plan.notes, *NOTES]})
    files, notes = {}, list(plan.notes)
    for pool in pools(plan.deployments):
        parts = ["\n".join(head(plan))]
        for name, d in pool.members:
            mine = [*said(d), *bought(d)]
            notes += prefixed(d, mine)
            body = as_yaml(model_server(pool, name, d), start=True)
            parts.append("\n".join([*about(d, mine), body]))
        files[f"{pool.name}.llm-d.yaml"] = "\n".join(parts)
        install = (
            f"helm install {pool.name} CHART -f {pool.name}.router.values.yaml, CHART being llm-d-router-standalone"
        )
        text = as_yaml(router(pool))
        files[f"{pool.name}.router.values.yaml"] = "\n".join([*head(plan), *comment(f"{install} {ROUTER}"), text])
    return Export(files, notes)
