"""One engine that batches continuously: what its steps cost at the instance's safety, and what its KV cache holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import AfterValidator, Field

from optmodels import catalog
from optmodels.catalog.spelling import unknown_llm
from optmodels.catalog.types import Architecture, Gpu
from optmodels.engine.continuous import EngineLimits
from optmodels.errors import InputError, Mistake, Mistakes
from optmodels.latency.adapters import adapter_bytes, is_known
from optmodels.latency.engines.terms import ModelInstance
from optmodels.latency.memory import MAX_REQUESTS, SAMPLER_BYTES, Drafts, kv_tokens, runtime_interval
from optmodels.latency.resolve import Source, deployment, llm_name, resolve
from optmodels.latency.speculation import Speculation, with_drafts
from optmodels.latency.steps import Provenance, StepCosts, never_measured
from optmodels.latency.work import KvPrecision, Precision, layer_work
from optmodels.units import GIB, PositiveInt


def _each_once(ranks: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(ranks)) != len(ranks):
        raise ValueError("each number of attention ranks once")
    return ranks


ONE_OF_STATIC = "[1] with serving: static, whose batches are of replicas apart from each other"  # expected
AttentionRanks = Annotated[
    tuple[PositiveInt, ...],
    Field(
        min_length=1,
        description="data-parallel attention ranks of an engine to choose from (serving: continuous); each has its own "
        "requests and KV cache, and experts are spread over all; models without routed experts have one",
    ),
    AfterValidator(_each_once),
]


@dataclass(frozen=True)
class Steps:
    """An engine's steps, central: of the model alone, of its draft model where there is one, and of both together."""

    costs: StepCosts
    alone: StepCosts
    draft: StepCosts | None
    provenance: Provenance


def steps(source: Source, limits: EngineLimits, d: ModelInstance, prompt_tokens: float) -> Steps:
    """Cost of the steps of one running model, draft tokens included.

    Raises:
        InputError: nothing is known of its steps, or of the draft model's.
    """
    alone, provenance = resolve(source, d, prompt_tokens)
    provenance = replace(provenance, runtime_gib=tuple(runtime_interval(d.llm.routed).items()))
    if limits.lora is not None and limits.lora.slower > 1.0:
        alone = alone.scaled(limits.lora.slower)
        note = f"iterations {limits.lora.slower:g} times as long with LoRA adapters, as stated"
        provenance = replace(provenance, notes=(*provenance.notes, note))
    s = limits.speculates(d.llm)
    if s is None:
        return Steps(alone, alone, None, provenance)
    path = f"engine.speculation[{limits.speculation.index(s)}].draft"
    draft, said = None, "of a head" if s.head else "that cost nothing"
    if s.draft is not None:
        shape, name = _shape(s.draft), llm_name(s.draft)
        if shape.heads % (d.gpus // d.attention_ranks):
            expected = f"a model whose {shape.heads} heads TP {d.gpus // d.attention_ranks} divides"
            raise InputError(Mistake(None, path, name, expected))
        draft, theirs = resolve(source, replace(d, llm=shape, llm_name=name), prompt_tokens)
        unseen = f", {never_measured(theirs.transfer)}" if theirs.transfer else ""
        said = f"of {name}{unseen}"
    note = f"{s.drafts} drafts a step {said}: {s.tokens:.4g} tokens a step as stated"
    return Steps(
        with_drafts(alone, s, draft, path), alone, draft, replace(provenance, notes=(*provenance.notes, note))
    )  # fmt: skip


def drafts_of(limits: EngineLimits, model: Architecture, weights: Precision, kv: KvPrecision) -> Drafts | None:
    """Memory that draft tokens take on a model's engines."""
    s = limits.speculates(model)
    if s is None:
        return None
    return Drafts(s.drafts, None if s.draft is None else layer_work(_shape(s.draft), weights, kv), s.head or 0.0)


def _shape(draft: str | Architecture) -> Architecture:
    return catalog.llms()[draft] if isinstance(draft, str) else draft


def check_speculation(
    limits: EngineLimits | None, models: Iterable[Architecture], continuous: bool, wrong: Mistakes
) -> None:  # fmt: skip
    """Name draft tokens, models of `engine.speculation` and adapters that are unknown, or that no workload uses.

    Args:
        limits: the instance's `engine` section.
        models: models that it has.
        continuous: whether it batches continuously.
        wrong: the mistakes so far.
    """
    if limits is None:
        return
    models = list(models)
    if limits.lora is not None:
        if not continuous:
            wrong.add("engine.lora", limits.lora.max_loras, "none but with serving: continuous, which has engines")
        unknown = next((m.title or m.hidden for m in models if not is_known(m)), None)
        if unknown is not None and limits.lora.gib_each is None:
            wrong.add("engine.lora.gib_each", None, f"GiB of an adapter: projections of {unknown} are not of one shape")
    if not limits.speculation:
        return
    if not continuous:
        wrong.add("engine.speculation", len(limits.speculation), "none but with serving: continuous, which has steps")
    names = {name for m in models for name in (llm_name(m), m.title)}
    for i, s in enumerate(limits.speculation):
        if s.model is not None and s.model not in names:
            wrong.unknown(f"engine.speculation[{i}].model", s.model, "a model of this problem", names)
        if isinstance(s.draft, str) and s.draft not in catalog.llms():
            wrong.append(unknown_llm(f"engine.speculation[{i}].draft", s.draft))


def written_out(limits: EngineLimits) -> EngineLimits:
    """The same without names of the catalogue: shapes of draft models, titles of models."""
    made = []
    for s in limits.speculation:
        known = catalog.llms().get(s.model or "")
        draft = None if s.draft is None else _shape(s.draft)
        made.append(s.model_copy(update={"draft": draft, "model": s.model if known is None else known.title}))
    return limits.model_copy(update={"speculation": tuple(made)})


@dataclass(frozen=True)
class ModelOnEngines:
    """A model as served, and the source of its iteration times.

    Attributes:
        model: its name in the catalogue, or the architecture itself.
        vram_usable: share of each GPU's memory that the engine may take.
        runtime_gib: memory of each GPU that the engine takes besides, GiB.
        prompt_tokens: prompt tokens of the mean prompt.
        request_tokens: request tokens of the shortest requests; with windows these hold most memory a token.
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
        costs: costs of its steps, slower by the safety's factor of TPOT.
        slower: further factor on TTFT, ≥ 1.
        kv_tokens: KV tokens that its cache holds next to weights and a step; 0: they do not fit.
        alone, draft: costs of the model's own and of the draft model's steps, as slow, from which `costs` come with
            `speculation`.
        ranks: data-parallel attention ranks, which `costs` and `kv_tokens` are of together.
        slots: max_num_seqs for which `kv_tokens` holds.
        logit_tokens: KV tokens taken by each further slot; `sampler_tokens`: more of them, beyond
            `memory.MAX_REQUESTS`.
    """

    costs: StepCosts
    slower: float
    kv_tokens: float
    provenance: Provenance
    alone: StepCosts | None = None
    draft: StepCosts | None = None
    speculation: Speculation | None = None
    ranks: int = 1
    slots: int = 256
    logit_tokens: float = 0.0
    sampler_tokens: float = 0.0

    def with_slots(self, max_num_seqs: int) -> EngineCosts:
        """The same of an engine that is told another max_num_seqs."""
        beyond = max(max_num_seqs, MAX_REQUESTS) - max(self.slots, MAX_REQUESTS)
        left = self.kv_tokens - (max_num_seqs - self.slots) * self.logit_tokens - beyond * self.sampler_tokens
        return replace(self, kv_tokens=max(left, 0.0) if self.kv_tokens > 0 else 0.0, slots=max_num_seqs)


def engine_costs(
    of: ModelOnEngines, limits: EngineLimits, gpu: Gpu, gpu_name: str, gpus: int, vram_gib: float,
    attention_ranks: int = 1,
) -> EngineCosts:  # fmt: skip
    """An engine on `gpus` GPUs with `vram_gib` each, for each of its attention ranks.

    Raises:
        InputError: its iteration times are unknown, or there is no measurement for `safety`.
    """
    d = deployment(of.source, of.architecture, llm_name(of.model), gpu, gpu_name, of.weights, of.kv, gpus,
                   attention_ranks)  # fmt: skip
    found = steps(of.source, limits, d, of.prompt_tokens)
    tpot, ttft = found.provenance.factors(of.safety)
    work, drafts = layer_work(of.architecture, of.weights, of.kv), drafts_of(limits, of.architecture, of.weights, of.kv)
    holds, one, two = (
        kv_tokens(
            work, vram_gib * GIB, gpus, attention_ranks=attention_ranks, utilization=of.vram_usable,
            runtime_bytes=of.runtime_gib * GIB + adapter_bytes(limits.lora, of.architecture, gpus),
            chunk_tokens=limits.max_num_batched_tokens,
            max_requests=n, request_tokens=of.request_tokens, drafts=drafts,
        ) for n in (limits.slots, 1, 2)
    )  # fmt: skip
    sampled = (
        gpus * SAMPLER_BYTES * work.vocab / ((1 + (drafts.drafts if drafts else 0)) * work.logit_bytes_per_sequence)
    )
    return EngineCosts(
        found.costs.scaled(tpot), max(ttft / tpot, 1.0), holds, found.provenance, found.alone.scaled(tpot),
        None if found.draft is None else found.draft.scaled(tpot), limits.speculates(of.architecture), attention_ranks,
        limits.slots, one - two, (one - two) * sampled,
    )  # fmt: skip
