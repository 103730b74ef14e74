"""One engine that batches continuously: what its steps cost at the instance's safety, and what its KV cache holds."""

from __future__ import annotations

from dataclasses import dataclass

from optmodels.catalog.types import Architecture, Gpu
from optmodels.latency.memory import kv_tokens
from optmodels.latency.resolve import Source, deployment, llm_name, resolve
from optmodels.latency.steps import Provenance, StepCosts
from optmodels.latency.work import KvPrecision, Precision, layer_work
from optmodels.serving.continuous import EngineLimits
from optmodels.units import GIB


@dataclass(frozen=True)
class ModelOnEngines:
    """A model as it is served, and what says how long its steps take.

    Attributes:
        model: its name in the catalogue, or the architecture itself.
        vram_usable: share of each GPU's memory that the engine may take.
        runtime_gib: of each GPU, what the engine takes besides.
        prompt_tokens: of the mean prompt.
        request_tokens: of the shortest requests; with windows these hold most memory a token.
    """

    source: Source
    safety: float | None
    model: str | Architecture
    architecture: Architecture
    weights: Precision
    kv: KvPrecision
    vram_usable: float
    runtime_gib: float
    prompt_tokens: float
    request_tokens: float


@dataclass(frozen=True)
class EngineCosts:
    """Of one engine.

    Attributes:
        costs: of its steps, slower by the safety's factor of TPOT.
        slower: what TTFT is multiplied by besides, ≥ 1.
        kv_tokens: that its cache holds beside weights and a step; 0: they do not fit.
    """

    costs: StepCosts
    slower: float
    kv_tokens: float
    provenance: Provenance


def engine_costs(
    of: ModelOnEngines, limits: EngineLimits, gpu: Gpu, gpu_name: str, gpus: int, vram_gib: float
) -> EngineCosts:
    """An engine on `gpus` GPUs with `vram_gib` each.

    Raises:
        InputError: nothing is known of its steps, or nobody has measured what safety needs.
    """
    d = deployment(of.source, of.architecture, llm_name(of.model), gpu, gpu_name, of.weights, of.kv, gpus)
    costs, provenance = resolve(of.source, d, of.prompt_tokens)
    tpot, ttft = provenance.factors(of.safety)
    holds = kv_tokens(
        layer_work(of.architecture, of.weights, of.kv), vram_gib * GIB, gpus, utilization=of.vram_usable,
        runtime_bytes=of.runtime_gib * GIB, chunk_tokens=limits.max_num_batched_tokens,
        max_requests=limits.max_num_seqs, request_tokens=of.request_tokens,
    )  # fmt: skip
    return EngineCosts(costs.scaled(tpot), max(ttft / tpot, 1.0), holds, provenance)
