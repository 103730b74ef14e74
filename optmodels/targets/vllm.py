"""vLLM: a script with the ``vllm serve`` commands and a configuration file for each deployment.

Argument names as of vLLM 0.33 (docs.vllm.ai, Engine Arguments): ``--kv-offloading-size`` is in GiB over all ranks.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from optmodels.plans.deployment import Deployment, Deployments, DraftModel
from optmodels.targets import (
    DRAFT_PLACEHOLDER,
    PLACEHOLDER,
    Export,
    about,
    as_yaml,
    comment,
    head,
    names,
    prefixed,
    said,
)

VERSION = "0.33.0"
PORT = 8000
TRANSFERS = (
    "KV caches go by NIXL over the network that engines have: without RDMA devices (in pods, too) by TCP, slower than"
    " planned."
)
ROUTER = (
    "Several engines listen, each on a host and port of its own: put a router in front of them, such as vLLM's"
    " production-stack router or llm-d's."
)
SIDE_CHANNEL = 5600  # of NIXL, one for each engine of a host: its first rank's, the others' follow


def arguments(d: Deployment) -> dict[str, Any]:
    """Engine arguments of one replica, by their command-line names without dashes in front."""
    found: dict[str, Any] = {"model": d.checkpoint or PLACEHOLDER}
    found["dtype"] = "auto"  # as the checkpoint: bf16 ones stay bf16, and some refuse float16
    if d.weights == "fp8":
        found["quantization"] = "fp8"
    if d.kv == "fp8":
        found["kv-cache-dtype"] = "fp8"
    found["tensor-parallel-size"] = d.tensor_parallel
    if d.pipeline_parallel > 1:
        found["pipeline-parallel-size"] = d.pipeline_parallel
    if d.attention_ranks > 1:  # limits below are of each
        found["data-parallel-size"] = d.attention_ranks
        found["enable-expert-parallel"] = True
    if d.max_num_seqs is not None:
        found["max-num-seqs"] = d.max_num_seqs
    if d.max_num_batched_tokens is not None:
        found["max-num-batched-tokens"] = d.max_num_batched_tokens
    if d.chunk_tokens is not None:
        found["long-prefill-token-threshold"] = d.chunk_tokens
    found["max-model-len"] = d.max_model_len or "auto"  # auto: the most that the model and its KV memory allow
    found["gpu-memory-utilization"] = d.vram_usable
    if d.stage != "both":  # roles are the proxy's with NIXL, but other connectors go by them
        role = {"prefill": "kv_producer", "decode": "kv_consumer"}[d.stage]
        found["kv-transfer-config"] = connector(role)
    if d.drafts is not None:
        found["speculative-config"] = json.dumps(_speculative(d, d.drafts))
    if d.max_loras:
        found |= {"enable-lora": True, "max-loras": d.max_loras, "max-lora-rank": d.max_lora_rank}
    if d.kv_offload_gib is not None:
        found["kv-offloading-size"] = float(f"{d.kv_offload_gib:.4g}")
        found["kv-offloading-backend"] = "native"
    return found


def connector(role: str) -> str:
    """How KV caches go from prefill to decode engines: by NIXL."""
    return json.dumps({"kv_connector": "NixlConnector", "kv_role": role})


def _speculative(d: Deployment, s: DraftModel) -> dict[str, Any]:
    """vLLM's SpeculativeConfig."""
    each: dict[str, Any] = {"num_speculative_tokens": s.drafts}
    if s.by == "ngram":
        return {"method": "ngram"} | each
    if s.by == "head":
        return {"method": "eagle3", "model": DRAFT_PLACEHOLDER} | each
    named = s.checkpoint or DRAFT_PLACEHOLDER
    return {"method": "draft_model", "model": named} | each | {"draft_tensor_parallel_size": d.tensor_parallel}


def flags(d: Deployment) -> list[str]:
    """Arguments of ``vllm serve``: the model, then its flags."""
    found = arguments(d)
    return [found.pop("model"), *(flag(k, v) for k, v in found.items())]


def flag(name: str, value: Any) -> str:
    """An argument on the command line."""
    return f"--{name}" if value is True else f"--{name}={value}"


def export(plan: Deployments) -> Export:
    """For each deployment ``NAME.sh``, for one of its machines, and ``NAME.yaml`` for ``vllm serve --config``."""
    files: dict[str, str] = {}
    if sum(d.replicas for d in plan.deployments) > 1:
        plan = plan.model_copy(update={"notes": [*plan.notes, ROUTER]})
    notes = list(plan.notes)
    taken: dict[str, int] = {}  # ports by host: several deployments may share one
    for name, d in zip(names(plan.deployments), plan.deployments, strict=True):
        mine = said(d)
        notes += prefixed(d, mine)
        lines = [*head(plan), *about(d, mine), *comment(f"Arguments of vLLM {VERSION}.")]
        commands = []
        first = PORT + max((taken.get(h, 0) for h in d.hosts), default=0)
        taken |= dict.fromkeys(d.hosts, first - PORT + len(d.groups))
        for i, group in enumerate(d.groups):
            devices = ",".join(str(g) for g in group)
            command = shlex.join(["vllm", "serve", *flags(d), f"--port={first + i}"])
            channel = ""
            if d.stage != "both":
                host = 'VLLM_NIXL_SIDE_CHANNEL_HOST="${VLLM_NIXL_SIDE_CHANNEL_HOST:-$(hostname -I | cut -d" " -f1)}"'
                channel = f"{host} VLLM_NIXL_SIDE_CHANNEL_PORT={SIDE_CHANNEL + first - PORT + i * d.attention_ranks} "
            commands.append(f"CUDA_VISIBLE_DEVICES={devices} {channel}{command}")
        run = commands if len(commands) == 1 else [*(f"{c} &" for c in commands), "wait"]
        files[f"{name}.sh"] = "\n".join(["#!/bin/sh", *lines, *run, ""])
        text = as_yaml(arguments(d))
        files[f"{name}.yaml"] = "\n".join([*lines, text])
    return Export(files, notes)
