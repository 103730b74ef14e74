"""What one machine serves: requests per second at the largest batch that holds TBT and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from optmodels import catalog
from optmodels.catalog.types import Architecture, Entry
from optmodels.errors import Mistakes
from optmodels.latency.resolve import Source, deployment, llm_name, resolve
from optmodels.latency.steps import Provenance, StepCosts, static_batch
from optmodels.latency.strategies import Hardware, Model, Variant
from optmodels.latency.work import KvPrecision, LayerWork, Precision, layer_work, peak_flops
from optmodels.units import GIB, Fraction, PositiveFraction, PositiveInt

PROMPT_TOKENS_A_STEP = 8192
BATCHES = np.unique(np.round(np.geomspace(1, 1024, 61))).astype(float)


class Workload(Entry):
    """The model of a service and the mean request."""

    model: str | Architecture
    weights: Precision = "fp16"
    kv: KvPrecision = "fp16"
    input_tokens: PositiveInt
    output_tokens: PositiveInt
    cached_input_share: Fraction = Field(default=0.0, description="of the prompt found in the prefix cache")
    variant: Variant = "roofline"
    vram_usable: PositiveFraction = 0.9


@dataclass(frozen=True)
class Choice:
    """How a machine runs a service: `replicas` of `tp` GPUs each, `batch` requests in flight.

    Attributes:
        rps: requests/s of the machine.
        prefill_s: of one mean prompt.
        work: of a layer of the model.
        flops, mem_bytes_per_s, vram_bytes: of one replica.
        costs: of its steps, at the safety level; None at the peaks of the hardware.
        provenance: where they come from.
    """

    rps: float
    prefill_s: float
    tp: int
    replicas: int
    batch: int
    work: LayerWork
    flops: float
    mem_bytes_per_s: float
    vram_bytes: float
    costs: StepCosts | None = None
    provenance: Provenance | None = None


@dataclass(frozen=True)
class Level:
    """How long steps take on any machine: by an engine's model, at a safety level."""

    source: Source
    safety: float | None = None


def serving_of(machine: Any, service: Any, machine_path: str, service_path: str, level: Level | None = None) -> Any:
    """Requests per second and prefill time of one machine type for one service, or None if it cannot serve it.

    Raises:
        InputError: unknown model or GPU, or the service has no tbt_s.
    """
    from formulations.reserved_capacity.problem import Serving

    found = choice_of(machine, service, machine_path, service_path, level)
    return None if found is None else Serving(requests_per_second=found.rps, prefill_s=found.prefill_s)


def choice_of(
    machine: Any, service: Any, machine_path: str, service_path: str, level: Level | None = None
) -> Choice | None:
    """The way one machine type serves most requests/s of one service, or None if it cannot serve it.

    The machine runs `gpu_count`/tp replicas of tp GPUs; of all tp that divide both GPUs and heads the one with the
    most requests per second is used. A replica with B requests in flight spends B prefills and one decode step per
    output token on them: B/(B·prefill + (S_out − 1)·TBT(B)) requests per second, with TBT(B) ≤ tbt_s and the KV
    cache of B full requests in memory. Prefill and TBT are those of the roofline or, with a `level`, of an engine's
    steps; what a request takes outside of them is in its prefill time, and nobody else's.

    Raises:
        InputError: unknown model or GPU, or the service has no tbt_s.
    """
    w: Workload = service.workload
    wrong = Mistakes()
    if isinstance(w.model, str) and w.model not in catalog.llms():
        known = ", ".join(sorted(catalog.llms())[:12])
        wrong.add(f"{service_path}.workload.model", w.model, f"a model of the catalogue: {known}")
    gpu_name, vram_gib = machine.gpu, machine.vram_gib
    if gpu_name is None and machine.catalog is not None:
        same = [m for m in catalog.machines(machine.catalog) if m.machine == machine.machine]
        gpu_name = same[0].gpu if same else None
        vram_gib = vram_gib or (same[0].vram_gib if same else None)
    gpu_count = machine.gpu_count
    if machine.catalog is not None and gpu_count == 1:
        gpu_count = next((m.gpu_count for m in catalog.machines(machine.catalog) if m.machine == machine.machine), 1)
    if gpu_name is None:
        return None
    if gpu_name not in catalog.gpus():
        known = ", ".join(sorted(catalog.gpus())[:12])
        wrong.add(f"{machine_path}.gpu", gpu_name, f"a GPU of the catalogue: {known}")
    if service.slo.tbt_s is None:
        wrong.add(f"{service_path}.slo.tbt_s", None, "a TBT in s, to choose the batch by")
    wrong.raise_any()
    architecture = catalog.llms()[w.model] if isinstance(w.model, str) else w.model
    gpu = catalog.gpus()[gpu_name]
    flops = peak_flops(gpu, w.weights)
    if flops is None:
        return None
    vram = (vram_gib or gpu.vram_gib * gpu_count) / gpu_count
    prompt = max(1, round(w.input_tokens * (1 - w.cached_input_share)))
    model = Model(layer_work(architecture, w.weights, w.kv), w.input_tokens, w.output_tokens, w.variant, w.vram_usable)
    short = Model(model.work, prompt, w.output_tokens, w.variant, w.vram_usable)
    best: Choice | None = None
    for tp in (d for d in range(1, gpu_count + 1) if gpu_count % d == 0 and architecture.heads % d == 0):
        n = len(BATCHES)
        hardware = Hardware(
            tp=np.full(n, float(tp)), flops=np.full(n, tp * flops),
            mem_bytes_per_s=np.full(n, tp * gpu.mem_bytes_per_s),
            vram_bytes=np.full(n, tp * vram * GIB), pcie_bytes_per_s=np.full(n, tp * gpu.pcie_bytes_per_s),
            disk_bytes_per_s=np.full(n, np.nan), net_bytes_per_s=np.full(n, np.nan),
            link_bytes_per_s=np.full(n, gpu.link_bytes_per_s), ram_bytes=np.full(n, np.nan),
            disk_bytes=np.full(n, np.nan),
        )  # fmt: skip
        curves = model.resident(hardware, BATCHES, np.ones(n))
        tbt = curves.tbt(np.zeros(n))
        prefill = float(short.resident(hardware.take(np.array([0])), np.ones(1), np.ones(1)).ttft(np.zeros(1))[0])
        outside, costs, provenance = 0.0, None, None
        if level is not None:
            d = deployment(level.source, architecture, llm_name(w.model), gpu, gpu_name, w.weights, w.kv, tp)
            costs, provenance = resolve(level.source, d, prompt)
            tpot, ttft = provenance.factors(level.safety)
            _, decode = static_batch(costs, BATCHES, w.input_tokens, w.output_tokens, PROMPT_TOKENS_A_STEP)
            first, _ = static_batch(costs, np.ones(1), prompt, 1, PROMPT_TOKENS_A_STEP)
            tbt, prefill, outside = tpot * decode, ttft * float(first[0]), ttft * costs.request_s
            costs = costs.scaled(tpot)
        fits = (curves.vram_fixed + curves.kv <= curves.vram) & (tbt <= service.slo.tbt_s)
        if not fits.any():
            continue
        rate = BATCHES / (BATCHES * (prefill - outside) + (w.output_tokens - 1) * tbt)
        at = int(np.where(fits, rate, 0.0).argmax())
        rps = float(rate[at]) * gpu_count / tp
        if best is None or rps > best.rps:
            best = Choice(
                rps, prefill, tp, gpu_count // tp, int(BATCHES[at]), model.work, tp * flops, tp * gpu.mem_bytes_per_s,
                tp * vram * GIB, costs, provenance,
            )  # fmt: skip
    return best
