"""Throughput of one machine: requests per second at the largest batch, or engine level, that holds TPOT and memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from pydantic import Discriminator, Field, PrivateAttr, Tag

from optmodels import catalog
from optmodels.arrays import Array, Index
from optmodels.catalog.spelling import unknown_gpu, unknown_llm
from optmodels.catalog.types import AnyLlm, Architecture
from optmodels.engine.continuous import EngineLimits, LatencyLimit, Percentile, seconds_and_quantile
from optmodels.engine.costs import AttentionRanks, EngineCosts, ModelOnEngines, engine_costs
from optmodels.engine.lengths import (
    Length,
    Lengths,
    LengthsOfTrace,
    classes,
    mean_tokens,
    normalised,
    shortest_tokens,
    which,
)
from optmodels.engine.levels import Levels, levels
from optmodels.engine.spelling import StoredModel
from optmodels.errors import Mistakes
from optmodels.latency.memory import runtime_gib
from optmodels.latency.resolve import Source, deployment, llm_name, resolve
from optmodels.latency.steps import Provenance, StepCosts, static_batch
from optmodels.latency.strategies import BatchModel, Hardware, Variant
from optmodels.latency.work import LayerWork, layer_work, peak_flops
from optmodels.problem import Problem
from optmodels.traces.buckets import lengths_of
from optmodels.units import GIB, Fraction, NonNegativeGib, PositiveFraction, Tokens

PROMPT_TOKENS_A_STEP = 8192
UNLIMITED_S = 1e9
ROUNDING_S = 1e-12
BATCHES = np.unique(np.round(np.geomspace(1, 1024, 61))).astype(float)


class ServiceRates(StoredModel):
    """The model of a service, and how engines hold it."""

    model: AnyLlm = Field(description="LLM of the catalogue, or its architecture")
    attention_ranks: AttentionRanks = (1,)
    cached_input_share: Fraction = Field(default=0.0, description="share of the prompt found in the prefix cache")
    variant: Variant = Field(
        default="roofline", description="formulas of the roofline: the paper's, or with every term"
    )
    vram_usable: PositiveFraction = Field(
        default=0.9, description="share of GPU memory that weights, cache and activations may take"
    )
    runtime_gib: NonNegativeGib | None = Field(
        default=None,
        description="memory of each GPU for CUDA context, communication buffers and CUDA graphs; default: 1 GiB with "
        "serving: continuous, none with static batches",
    )


class ServiceWorkload(ServiceRates):
    """The model of a service and the mean request."""

    input_tokens: Tokens = Field(description="mean tokens of a prompt")
    output_tokens: Tokens = Field(description="mean tokens of an answer")

    @property
    def classes(self) -> tuple[Length, ...]:
        """One."""
        return (Length(input_tokens=self.input_tokens, output_tokens=self.output_tokens),)


class ServiceMix(ServiceRates):
    """The model of a service and requests of several lengths, with serving: continuous."""

    lengths: Lengths = Field(description="classes, or those of a trace, in place of input_tokens and output_tokens")

    _cut: tuple[LengthsOfTrace, tuple[Length, ...]] | None = PrivateAttr(default=None)  # the trace as read

    def read(self, problem: Problem, path: str) -> None:
        """Read the trace, if it is one, from its file next to the problem's; `path`: where that names it.

        Raises:
            InputError: there is none, or it cannot be read.
        """
        of = self.lengths
        if isinstance(of, LengthsOfTrace) and (self._cut is None or self._cut[0] != of):
            self._cut = of, lengths_of(problem.beside(of.trace, path), of)

    @property
    def classes(self) -> tuple[Length, ...]:
        """Its requests' classes, shares summing to 1; a trace's classes once it is read."""
        if isinstance(self.lengths, LengthsOfTrace):
            assert self._cut is not None and self._cut[0] == self.lengths
            return self._cut[1]
        return normalised(self.lengths)


AnyWorkload = Annotated[
    Annotated[ServiceWorkload, Tag("Workload")] | Annotated[ServiceMix, Tag("MixedWorkload")], Discriminator(which)
]


@dataclass(frozen=True)
class MachineChoice:
    """How a machine runs a service: `replicas` of `ranks` attention ranks of `tp` GPUs, `batch` requests in flight.

    Attributes:
        rps: requests/s of the machine.
        prefill_s: prefill seconds of one mean prompt; continuous: time to the first token but for waiting, as its limit
            bounds it.
        e2e_s: E2E of a request at the machine, queue included, as the deadline bounds it.
        work: work of a layer of the model.
        flops, mem_bytes_per_s, vram_bytes: of one replica.
        costs: costs of its steps, at the safety level; None at the peaks of the hardware.
        provenance: source of the figures.
        reach_s: longest round trip of requests that are within ttft_s and deadline_s.
    """

    rps: float
    prefill_s: float
    e2e_s: float
    tp: int
    replicas: int
    batch: int
    work: LayerWork
    flops: float
    mem_bytes_per_s: float
    vram_bytes: float
    costs: StepCosts | None = None
    provenance: Provenance | None = None
    continuous: ContinuousEngine | None = None
    ranks: int = 1
    reach_s: float = math.inf


@dataclass(frozen=True)
class ContinuousEngine:
    """Where a replica that batches continuously stands: a row of the levels, the engine and its limits."""

    at: Levels
    row: int
    engine: EngineCosts
    limits: EngineLimits


@dataclass(frozen=True)
class SafetyLevel:
    """How long steps take on any machine: by an engine's model, at a safety level; `engine`: batches are continuous."""

    source: Source
    safety: float | None = None
    engine: EngineLimits | None = None


def choices_of(
    machine: Any, service: Any, machine_path: str, service_path: str, level: SafetyLevel | None, nearest_s: Array,
    away_s: Array,
) -> tuple[MachineChoice, ...]:  # fmt: skip
    """The ways in which one machine type may serve one service; none if it cannot.

    A way that carries more reaches less far. So there is one for each round trip of `away_s` that some way reaches:
    among those that are within ttft_s and deadline_s of users that far away, the one that carries most requests/s. Each
    carries more, or reaches more round trips, than every other; the points of a relaxed limit carry no less at any
    round trip. The first one reaches users in as many regions as any from the machines nearest to them, and carries
    most of these; the others follow from the fastest on.

    The machine runs `gpu_count`/tp replicas of tp GPUs, for every tp that divides both GPUs and heads; continuous
    batching has replicas of several attention ranks of this many GPUs, too, where the workload lists any.

    *Static*: a replica with B requests in flight spends B prefills and one decode step per output token on them:
    B/(B·prefill + (S_out − 1)·TPOT(B)) requests per second, with TPOT(B) ≤ tpot_s and the KV cache of B full requests
    in memory. Prefill and TPOT follow the roofline or, with a `level`, an engine's steps; a request's share
    outside of them is in its own prefill time. E2E is queue_s + prefill + (S_out − 1)·TPOT(B).

    *Continuous*: the rate of a level of `optmodels.engine.levels` that keeps tpot_s and, of the time to first token,
    queue_s for waiting. The steps are those of fixed loads, the longest at which time is scarcest, and for each round
    trip that the best of these does not reach the longest that does, each with the longest wait that the deadline
    leaves there. Rates and waits of steps depend on no limit of a latency, and the module proves that a relaxed limit
    has a step that carries no less at each round trip.

    Args:
        machine: a type.
        service: the service.
        machine_path, service_path: of both in the instance.
        level: how long steps take; None: the roofline.
        nearest_s: round trip from each region with users to the nearest machine of the type that may serve them.
        away_s: round trips from any of them to any machine of the type that may serve them.

    Raises:
        InputError: unknown model or GPU, or the service has no tpot_s.
    """
    w: ServiceWorkload | ServiceMix = service.workload
    wrong = Mistakes()
    if isinstance(w.model, str) and w.model not in catalog.llms():
        wrong.append(unknown_llm(f"{service_path}.workload.model", w.model))
    gpu_name, gpu_count, vram = hardware_of(machine)
    if gpu_name is None:
        return ()
    if gpu_name not in catalog.gpus():
        wrong.append(unknown_gpu(f"{machine_path}.gpu", gpu_name))
    if service.slo.tpot_s is None:
        wrong.add(f"{service_path}.slo.tpot_s", None, "a TPOT in s, to choose the batch by")
    wrong.raise_any()
    architecture = catalog.llms()[w.model] if isinstance(w.model, str) else w.model
    gpu = catalog.gpus()[gpu_name]
    if peak_flops(gpu, w.weights) is None:
        return ()
    splits = [d for d in range(1, gpu_count + 1) if gpu_count % d == 0 and architecture.heads % d == 0]
    away_s = np.unique(away_s)
    if level is not None and level.engine is not None:
        found = _continuous(service, level, level.engine, architecture, gpu_name, gpu_count, vram, splits, away_s)
    else:
        found = _static(service, level, architecture, gpu_name, gpu_count, vram, splits, away_s)
    near = [int((nearest_s <= x.reach_s + ROUNDING_S).sum()) for x in found]
    widest = int(np.argmax(near)) if near else 0
    return (*found[widest : widest + 1], *found[:widest], *found[widest + 1 :])


def _undominated(order: Index, reach_s: Array, away_s: Array) -> Index:
    """Rows in this order, the largest throughput first, that reach more of `away_s` than every row before."""
    count = np.searchsorted(away_s, reach_s[order] + ROUNDING_S, side="right")
    before = np.maximum.accumulate(np.concatenate([[0], count[:-1]])) if len(count) else count
    return order[count > before]


def hardware_of(machine: Any) -> tuple[str | None, int, float]:
    """GPU, how many and GiB of each (0 where nothing is known) of a machine, from the file or its machine list."""
    gpu_name, gpu_count, vram_gib = machine.gpu, machine.gpu_count, machine.vram_gib
    if machine.catalog is not None:
        listed = next((m for m in catalog.machines(machine.catalog) if m.machine == machine.machine), None)
        if listed is not None:
            if gpu_name is None:
                gpu_name, vram_gib = listed.gpu, vram_gib or listed.vram_gib
            gpu_count = listed.gpu_count if gpu_count == 1 else gpu_count
    if vram_gib is None and gpu_name in catalog.gpus():
        vram_gib = catalog.gpus()[gpu_name].usable_gib * gpu_count
    return gpu_name, gpu_count, (vram_gib or 0.0) / gpu_count


def on_engines(service: Any, level: SafetyLevel) -> ModelOnEngines:
    """The model of a service as engines serve it."""
    w: ServiceWorkload | ServiceMix = service.workload
    architecture = catalog.llms()[w.model] if isinstance(w.model, str) else w.model
    return ModelOnEngines(
        level.source, level.safety, w.model, architecture, w.weights, w.kv, w.vram_usable,
        runtime_gib(w.runtime_gib, level.safety, architecture.routed),
        mean_tokens(w.classes)[0], float(shortest_tokens(w.classes)),
    )  # fmt: skip


def _continuous(
    service: Any, level: SafetyLevel, limits: EngineLimits, architecture: Architecture, gpu_name: str, gpu_count: int,
    vram_gib: float, splits: list[int], away_s: Array,
) -> list[MachineChoice]:  # fmt: skip
    """From the one that carries most to the one that reaches farthest."""
    w: ServiceWorkload | ServiceMix = service.workload
    of, gpu = on_engines(service, level), catalog.gpus()[gpu_name]
    found = [
        (tp, engine_costs(of, limits, gpu, gpu_name, tp, vram_gib, ranks))
        for ranks in (w.attention_ranks if architecture.routed else (1,)) for tp in splits
        if gpu_count % (tp * ranks) == 0
    ]  # fmt: skip
    found = [(tp, engine) for tp, engine in found if engine.kv_tokens > 0]
    kind = classes(w.classes, w.cached_input_share)
    slo = service.slo
    deadline_s, quantile = seconds_and_quantile(slo.deadline_s)
    first_s = slo.ttft_limit_s - slo.queue_s

    def ranked(reach: Array | None = None) -> tuple[Levels, Array, Array, Index]:
        """Levels, their machine's requests/s and reach, and their order."""
        at = levels([e for _, e in found], limits, kind, _free(slo.ttft_s), slo.tpot_s, slo.queue_s,
                    deadline=(math.inf, quantile), reach=reach, itl=slo.itl_s)  # fmt: skip
        tp, ranks = (
            np.array(x, dtype=np.intp)[at.engine] for x in ([tp for tp, _ in found], [e.ranks for _, e in found])
        )
        rps = at.requests_per_s * (gpu_count // (tp * ranks))
        longer = at.deadline_s if math.isfinite(deadline_s) else np.zeros(len(at))
        reach_s = np.minimum(first_s - at.first_s, deadline_s - at.deadline_s)
        return at, rps, reach_s, np.lexsort((longer, tp, ranks, -rps))

    if not found:
        return []
    at, rps, reach_s, order = ranked()
    far_s = away_s[away_s > reach_s[order[0]] + ROUNDING_S] if len(order) else away_s
    if len(far_s):
        at, rps, reach_s, order = ranked(np.stack([first_s - far_s, deadline_s - far_s], axis=1))

    def choice(row: int) -> MachineChoice:
        mine, engine = found[at.engine[row]]
        gpus = mine * engine.ranks
        return MachineChoice(
            float(rps[row]), float(at.first_s[row]), float(at.deadline_s[row]), mine, gpu_count // gpus,
            engine.ranks * limits.slots, layer_work(architecture, w.weights, w.kv),
            gpus * (peak_flops(gpu, w.weights) or 0.0), gpus * gpu.mem_bytes_per_s, gpus * vram_gib * GIB, engine.costs,
            engine.provenance, ContinuousEngine(at, row, engine, limits), engine.ranks, float(reach_s[row]),
        )  # fmt: skip

    return [choice(int(row)) for row in _undominated(order, reach_s, away_s)]


def _free(limit: LatencyLimit) -> LatencyLimit:
    """The same quantile without a limit: round trips decide how much remains."""
    return (
        Percentile(at_most=UNLIMITED_S, percentile=limit.percentile) if isinstance(limit, Percentile) else UNLIMITED_S
    )


def _static(
    service: Any, level: SafetyLevel | None, architecture: Architecture, gpu_name: str, gpu_count: int, vram: float,
    splits: list[int], away_s: Array,
) -> list[MachineChoice]:  # fmt: skip
    """From the one that carries most to the one that reaches farthest; without users the one that carries most."""
    w: ServiceWorkload = service.workload
    gpu = catalog.gpus()[gpu_name]
    flops = peak_flops(gpu, w.weights)
    assert flops is not None
    prompt = max(1, round(w.input_tokens * (1 - w.cached_input_share)))
    model = BatchModel(
        layer_work(architecture, w.weights, w.kv), w.input_tokens, w.output_tokens, w.variant, w.vram_usable,
        runtime_bytes=(w.runtime_gib or 0.0) * GIB,
    )  # fmt: skip
    short = replace(model, input_tokens=prompt)
    found: list[MachineChoice] = []
    for tp in splits:
        n = len(BATCHES)
        hardware = Hardware.of_gpu(gpu, flops, np.full(n, float(tp)), tp * vram * GIB)
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
        fits = (curves.vram_fixed + curves.kv <= curves.vram) & (tbt <= seconds_and_quantile(service.slo.tpot_s)[0])
        rate = BATCHES / (BATCHES * (prefill - outside) + (w.output_tokens - 1) * tbt)
        e2e = service.slo.queue_s + prefill + (w.output_tokens - 1) * tbt
        left = service.slo.ttft_limit_s - service.slo.queue_s - prefill
        reach = np.minimum(left, service.slo.deadline_limit_s - e2e)
        found += [
            MachineChoice(
                float(rate[x]) * gpu_count / tp, prefill, float(e2e[x]), tp, gpu_count // tp, int(BATCHES[x]),
                model.work, tp * flops, tp * gpu.mem_bytes_per_s, tp * vram * GIB, costs, provenance,
                reach_s=float(reach[x]),
            ) for x in np.flatnonzero(fits)
        ]  # fmt: skip
    order = np.argsort([-x.rps for x in found], kind="stable")
    chosen = _undominated(order, np.array([x.reach_s for x in found]), away_s) if len(away_s) else order[:1]
    return [found[x] for x in chosen]
