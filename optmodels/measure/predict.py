"""What the strategies' curves (LP 4, 11-14) say of a measured point: T_pred of LP(18), and the scale of the design.

The same `Curves` that plans are made of, so a slope and an intercept fitted to these pairs apply to a plan unchanged.
A decode step over c cached tokens is the curves' first step after a prompt of c tokens. Mixed steps and chunks over
earlier KV have no prediction there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optmodels.catalog.types import Architecture, Gpu
from optmodels.latency.strategies import Hardware, Model, Variant
from optmodels.latency.work import layer_work
from optmodels.measure.grid import Point


@dataclass(frozen=True)
class Machine:
    """A GPU (or what stands for one), and the bandwidths beside it."""

    gpu: Gpu
    disk_bytes_per_s: float = np.nan
    net_bytes_per_s: float = np.nan


def hardware(machine: Machine, tp: int) -> Hardware:
    """One replica of `tp` GPUs; memory without limit, because what was measured did fit."""
    g, one = machine.gpu, np.ones(1)
    return Hardware(
        tp=tp * one,
        flops=tp * one * (g.fp16_flops if g.fp16_flops is not None else np.nan),
        mem_bytes_per_s=tp * one * g.mem_bytes_per_s,
        vram_bytes=np.inf * one,
        pcie_bytes_per_s=tp * one * (g.pcie_bytes_per_s or np.nan),
        disk_bytes_per_s=one * machine.disk_bytes_per_s,
        net_bytes_per_s=one * machine.net_bytes_per_s,
        link_bytes_per_s=one * g.link_bytes_per_s,
        ram_bytes=np.inf * one,
        disk_bytes=np.inf * one,
    )


def predicted(arch: Architecture, machine: Machine, point: Point, variant: Variant = "roofline") -> float:
    """Seconds of the point's step; NaN for mixed steps and chunks over earlier KV."""
    if point.phase == "mixed" or point.earlier:
        return float("nan")
    prefill = point.phase == "prefill"
    B = np.array([float(point.prefills or point.decodes)])
    model = Model(layer_work(arch), point.chunk if prefill else point.context, 2, variant)
    hw, one = hardware(machine, point.tp), np.ones(1)
    match point.family:
        case "high_end":
            curves = model.resident(hw, B, one)
        case "kvo_ram":
            curves = model.kv_offload(hw, B, hw.pcie_bytes_per_s, hw.ram_bytes)
        case "kvo_disk":
            curves = model.kv_offload(hw, B, hw.disk_bytes_per_s, hw.disk_bytes)
        case "ao":
            curves = model.attention_offload(hw, hardware(machine, 1), B, 0.0 * one)
    ttft, tbt, _ = curves.metrics(np.array([point.alpha]))
    return float(ttft[0] if prefill else tbt[0])


def estimate(arch: Architecture, machine: Machine, point: Point) -> float:
    """A rough duration of any point, to order and to budget by: parts of a step one after another."""
    work, hw = layer_work(arch), hardware(machine, point.tp)
    flops = point.tokens * work.linear_flops_per_token + work.attention_flops_per_pair * (
        point.prefills * point.chunk * (point.earlier + point.chunk) + point.decodes * point.context
    )
    read = float(work.weight_bytes_read(point.tokens)) + work.kv_bytes(1.0, point.kv_tokens)
    seconds = flops / hw.flops[0] + read / hw.mem_bytes_per_s[0]
    rate = {"kvo_ram": hw.pcie_bytes_per_s, "kvo_disk": hw.disk_bytes_per_s}.get(point.family)
    if rate is not None:
        seconds += work.kv_bytes(1.0, point.moved_tokens) / rate[0]
    return float(work.layers * seconds)
