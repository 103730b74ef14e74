"""GPUs and their memory as the latency model takes them."""

from __future__ import annotations

import numpy as np

from optmodels.catalog.types import Architecture, Gpu
from optmodels.latency.strategies import Hardware
from optmodels.latency.work import LayerWork


def peak_flops(gpu: Gpu, weights: str) -> float | None:
    """FLOP/s at the weights' precision; in 16 bit where the GPU has none of it, as always for int4."""
    own = None
    if weights.startswith("fp8"):
        own = gpu.fp8_flops
    elif weights in ("fp4", "mxfp4"):
        own = gpu.fp4_flops
    return own or gpu.fp16_flops


def group(gpu: Gpu, tp: int, weights: str, vram_bytes: float) -> Hardware | None:
    """One group of `tp` GPUs that work as one; None without a compute peak."""
    flops = peak_flops(gpu, weights)
    if flops is None:
        return None
    known = {
        "tp": tp, "flops": tp * flops, "mem_bytes_per_s": tp * gpu.mem_bytes_per_s, "vram_bytes": vram_bytes,
        "pcie_bytes_per_s": tp * (gpu.pcie_bytes_per_s or np.nan), "link_bytes_per_s": gpu.link_bytes_per_s,
    }  # fmt: skip
    unused = dict.fromkeys(("disk_bytes_per_s", "net_bytes_per_s", "ram_bytes", "disk_bytes"), np.nan)
    return Hardware(**{k: np.array([v], dtype=float) for k, v in (known | unused).items()})


def replicas_of_a_head(shape: Architecture, tp: int) -> float:
    """KV heads that `tp` GPUs hold together, whole ones on each, over those there are; a latent is one head."""
    heads = shape.kv_heads if shape.mla is None else 1
    each = 1
    while each * tp < heads:
        each += 1
    return each * tp / heads


def held_bytes(work: LayerWork, shape: Architecture, tp: int, tokens: float, sequences: float) -> float:
    """Weights, a pass over `tokens` prompt tokens and what `sequences` hold at any length, on all `tp` GPUs."""
    again = (replicas_of_a_head(shape, tp) - 1) * work.kv_weight_bytes + (tp - 1) * work.whole_weight_bytes
    hidden = 2 * shape.hidden * 2.0  # two hidden states of 16 bits, on every GPU
    if shape.moe is not None:  # and what each of a token's experts makes of it
        hidden += shape.moe.active * (shape.moe.latent or shape.hidden) * 2.0
    return (
        work.weight_bytes + shape.layers * (again + sequences * work.state_bytes)
        + tokens * (work.activation_bytes_per_token + (tp - 1) * hidden) + sequences * work.logit_bytes_per_sequence
    )  # fmt: skip
