"""From the `latency` section of an instance to the costs of a step on one deployment: the one way, in all formulations.

``model: default``   the engines' global coefficients (`latency.engines`): physics × engine × GPU × precision
``model: roofline``  times at the peaks of the catalogue, added up; no engine reaches them
``model: FILE``      fitted models (`latency.fit`), one or a list; the one that fits a deployment best is taken

A measurement on another LLM, GPU, precision, engine or parallelism than the deployment's is a *transfer*: its
ratio to the global coefficients at home is carried over to the global coefficients of the deployment, it is named, and
the interval is the wider of its own and the interval of a never-measured deployment. Machines compared with one another
are all treated so: calibrating one and leaving its rival at peak picks the wrong machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from optmodels import catalog
from optmodels.catalog.types import Architecture, Entry, Gpu, spelled
from optmodels.errors import InputError, Mistake, did_you_mean
from optmodels.io.read import read_document, read_model
from optmodels.latency.convert import convert
from optmodels.latency.engines.document import Deployed, EngineModel, read_engine_model
from optmodels.latency.engines.interval import LEVELS
from optmodels.latency.engines.terms import (
    CHUNK_TOKENS,
    MEASURED_AS,
    STEP,
    TRENDS,
    Loads,
    ModelInstance,
    age,
    context_seconds,
    pair_seconds,
    states,
    step_terms,
)
from optmodels.latency.fit.document import LatencyModel, read_latency_model
from optmodels.latency.steps import AttentionWindow, Experts, Provenance, StepCosts, static_batch
from optmodels.latency.work import KvPrecision, Precision, layer_work
from optmodels.limits import Limit
from optmodels.problem import Problem

Engine = Literal["vllm", "sglang", "trtllm"]
StatedEngine = Annotated[Engine, spelled("engine")]
UNCALIBRATED = "uncalibrated: real engines took 1.5–7× these times"
PROMPT_TOKENS = 1024.0  # of a prompt, where the file states none

OUTPUT_TOKENS = 256.0  # of a lone request, whose first token hardly depends on it
BATCH = 16.0  # requests, at which a model is compared with the global coefficients
SAID_FROM = 0.01  # median distance of a model from sums over requests that is worth a word
_KEYS = ("gpu", "llm", "precision", "engine", "parallelism")  # of a model, by how far another one carries over
# Which seconds of a step a term of `engines.terms` becomes.
_FIXED = ("dense", "layer", "moe", "mla", "comm", "sparse", "linear")
Levels = tuple[tuple[float, float], ...]  # level → quantile of measured/predicted
_AT_PEAK = ("dense", "experts", "kv", "decode", "prefill", "routed", "attention", "collective")


_RECORDING: ContextVar[tuple[dict[ModelInstance, None], ...]] = ContextVar("recording", default=())
ModelChoice = Annotated[
    str | tuple[LatencyModel | EngineModel, ...],
    Field(
        description="default: the built-in coefficients; roofline: times at hardware peaks; a file; or the documents"
    ),
]
Safety = Annotated[
    float | None,
    Limit("chance that latencies stay below", "least", "%", tight=1 - 1e-6),
    Field(
        gt=0, lt=1, allow_inf_nan=False,
        description="prediction quantile: probability that measured latencies stay below the planned ones",
    ),
]  # fmt: skip


class StepLatency(Entry):
    """The `latency` section of an instance whose latencies come from an engine's steps."""

    model: ModelChoice = "default"
    engine: StatedEngine = Field(default="vllm", description="engine of the built-in coefficients")
    safety: Safety = None

    @model_validator(mode="after")
    def _safety_of_something(self) -> StepLatency:
        if self.safety is not None and self.model == "roofline":
            raise ValueError("a measured model with safety: the error of the roofline is unknown")
        return self


@dataclass(frozen=True, eq=False)
class Source:
    """The `latency` section of an instance, read.

    Attributes:
        engine: engine that the deployments run.
        coefficients: coefficients of the engines; None for times at peak.
        models: fitted to measurements of some deployments; elsewhere the coefficients carry them over.
        known: latencies resolved before.
    """

    engine: Engine
    coefficients: EngineModel | None
    models: tuple[LatencyModel, ...] = ()
    known: dict[tuple[Any, ...], tuple[StepCosts, Provenance]] = field(default_factory=dict)

    @property
    def documents(self) -> str | tuple[LatencyModel | EngineModel, ...]:
        """The same, to be written out in an instance that stands alone."""
        return "roofline" if self.coefficients is None else (*self.models, self.coefficients)


def read_source(problem: Problem, model: ModelChoice, engine: Engine = "vllm", path: str = "latency") -> Source:
    """Read the files that an instance's `latency` section names.

    Args:
        problem: the instance, next to which files lie.
        model: ``default``, ``roofline``, a file next to the instance, a shipped latency model, or documents.
        engine: engine that all deployments run.
        path: path of the section in the instance.

    Raises:
        InputError: no such file, or not a latency model.
    """
    return source_of(model, engine, lambda name: problem.beside(name, f"{path}.model"), f"{path}.model")


def source_of(model: ModelChoice, engine: Engine, find: Callable[[str], Path], path: str) -> Source:
    """The same where no instance names it: `find` gives a file by its name, `path` is for messages.

    Raises:
        InputError: no such file, or not a latency model.
    """
    if model == "roofline":
        return Source(engine, None)
    documents: tuple[LatencyModel | EngineModel, ...] = ()
    if not isinstance(model, str):
        documents = model
    elif model in catalog.latency_models():
        documents = (LatencyModel.model_validate(catalog.latency_model_document(model)),)
    elif model.endswith((".yaml", ".yml", ".json")):
        documents = read_models(find(model))
    elif model != "default":
        known = ("default", "roofline", *catalog.latency_models())
        expected = "default, roofline, a .yaml file, or a latency model of the catalogue"
        raise InputError(Mistake(None, path, model, expected, hint=did_you_mean(model, known)))
    engines = [d for d in documents if isinstance(d, EngineModel)]
    if len(engines) > 1:
        raise InputError(Mistake(None, path, len(engines), "the coefficients of engines at most once"))
    fitted = tuple(d for d in documents if isinstance(d, LatencyModel))
    return Source(engine, engines[0] if engines else _shipped(), fitted)


class _Models(Entry):
    """A model file of several deployments: of each LLM × GPU × precision × engine × parallelism a model of its own."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    models: tuple[LatencyModel | EngineModel, ...] = Field(min_length=1)


def read_models(path: Path) -> tuple[LatencyModel | EngineModel, ...]:
    """The models of a file: one, a list under ``models:``, or engines' coefficients that own rows pulled.

    Raises:
        InputError: every problem with it.
    """
    data, _ = read_document(path)
    if "models" in data:
        return read_model(path, _Models).models
    if "together" in data:
        return (read_engine_model(path),)
    return (read_latency_model(path),)


def llm_name(model: str | Architecture) -> str:
    """The catalogue's name of an LLM, also of its shape and of a fine-tune of the same shape; else its title."""
    if isinstance(model, str):
        return model
    same = [name for name, llm in catalog.llms().items() if llm.same_shape(model)]
    return next((name for name in same if catalog.llms()[name].title == model.title), same[0] if same else model.title)


def deployment(
    source: Source, architecture: Architecture, name: str, gpu: Gpu, gpu_name: str, weights: Precision,
    kv: KvPrecision, tp: int, attention_ranks: int = 1,
) -> ModelInstance:  # fmt: skip
    """One model instance under the source's engine, on `tp` GPUs for each of its attention ranks.

    Engines were measured with fp8 and 4-bit floats, whatever the blocks of their scales, and with caches of 16 and 8
    bits: other formats count as the next wider of these.
    """
    return ModelInstance(
        architecture, name, gpu, gpu_name, source.engine, MEASURED_AS.get(weights, weights),
        "fp16" if kv == "fp16" else "fp8", tp * attention_ranks, attention_ranks,
    )  # fmt: skip


def resolve(source: Source, d: ModelInstance, prompt_tokens: float = PROMPT_TOKENS) -> tuple[StepCosts, Provenance]:
    """Seconds of a step on one deployment, central, and where they come from.

    Args:
        source: source of the predictions.
        d: one model instance; its engine is the source's.
        prompt_tokens: typical length of a prompt, for what depends on it and is no sum over tokens.
    """
    for found in _RECORDING.get():
        found[d] = None
    key = (d, prompt_tokens)
    if key not in source.known:
        source.known[key] = _resolve(source, d, prompt_tokens)
    return source.known[key]


@contextmanager
def recorded() -> Iterator[dict[ModelInstance, None]]:
    """The deployments whose steps are resolved meanwhile, each once, as an instance's tables need."""
    found: dict[ModelInstance, None] = {}
    token = _RECORDING.set((*_RECORDING.get(), found))
    try:
        yield found
    finally:
        _RECORDING.reset(token)


def _resolve(source: Source, d: ModelInstance, prompt_tokens: float) -> tuple[StepCosts, Provenance]:
    if source.coefficients is None:
        return roofline_costs(d), Provenance("roofline", "peaks of the catalogue", notes=(UNCALIBRATED,))
    deployed = source.coefficients.at(d)
    if not source.models:
        return engine_costs(deployed, prompt_tokens)
    apart, model = min(
        ((_apart(m, d), m) for m in source.models), key=lambda x: (len(x[0]), [_KEYS.index(what) for what in x[0]])
    )
    if not apart:
        return _measured(model, d, prompt_tokens)
    return _transferred(source, model, apart, deployed, prompt_tokens)


def _apart(model: LatencyModel, d: ModelInstance) -> tuple[str, ...]:
    """Parts of a deployment that a model was not measured on, the gravest first; unstated parts count as such.

    Its engine, where it names none, is taken to be the deployment's.
    """
    low, high = model.domain.get("tp", (1.0, 1.0))
    t = d.gpus // d.attention_ranks
    same = {
        "gpu": model.gpu == d.gpu_name, "llm": model.llm == d.llm_name,
        "precision": MEASURED_AS.get(model.precision, model.precision) == d.precision,
        "engine": model.engine in (None, d.engine), "parallelism": low <= t <= high and d.attention_ranks == 1,
    }  # fmt: skip
    return tuple(what for what in _KEYS if not same[what])


def _measured(model: LatencyModel, d: ModelInstance, prompt_tokens: float) -> tuple[StepCosts, Provenance]:
    """A model's costs on the deployment it was measured on."""
    found = convert(model, d.gpus // d.attention_ranks, prompt_tokens, roofline_costs(d))
    tpot, ttft = ("tpot_s", "ttft_s") if model.measured == "served" else ("latency_s", "latency_s")
    far = np.abs(1.0 / found.ratio - 1.0)
    notes = []
    if float(np.median(far)) > SAID_FROM:
        notes.append(f"as a sum over the requests of a step it misses {_name(model)} by {np.median(far):.0%} in the "
                     f"median, {np.quantile(far, 0.9):.0%} at 9 of 10 points of its range")  # fmt: skip
    if model.engine is None:
        notes.append(f"{_name(model)} names no engine: taken for {d.engine}")
    return found.costs, Provenance(
        _name(model), ", ".join(filter(None, (model.source, model.date))), (), found.quantiles(tpot, model),
        found.quantiles(ttft if ttft in model.targets else tpot, model), tuple(notes),
    )  # fmt: skip


def _transferred(
    source: Source, model: LatencyModel, apart: tuple[str, ...], deployed: Deployed, prompt_tokens: float
) -> tuple[StepCosts, Provenance]:
    """The global coefficients of a deployment, times the model's ratio to them where it was measured.

    One ratio for steps that decode and one for prompts, of a batch of `BATCH` requests. The interval is the wider of
    the model's own at home and the coefficients' interval where the differing parts count as never measured.
    """
    d = deployed.deployment
    gpu, llm = model.gpu or "", model.llm or ""
    missing = [what for what, there in (("gpu", gpu in catalog.gpus()), ("llm", llm in catalog.llms())) if not there]
    if missing:
        expected = "the catalogue's names of what it was measured on, to carry it over to other deployments"
        found = " and ".join(str(getattr(model, what)) for what in missing)
        raise InputError(Mistake(None, f"latency.model ({_name(model)}): {' and '.join(missing)}", found, expected))
    tp = float(np.clip(d.gpus // d.attention_ranks, *model.domain.get("tp", (1.0, 1.0))))
    home = ModelInstance(
        catalog.llms()[llm], llm, catalog.gpus()[gpu], gpu, model.engine or d.engine,
        MEASURED_AS.get(model.precision, model.precision), "fp16" if model.kv_precision == "fp16" else "fp8", int(tp),
    )  # fmt: skip
    key = (home, prompt_tokens)
    mine, own = source.known[key] = source.known.get(key) or _measured(model, home, prompt_tokens)
    theirs, _ = engine_costs(deployed.source.at(home), prompt_tokens)
    costs, _ = engine_costs(deployed, prompt_tokens)
    S, out = round(prompt_tokens), round(OUTPUT_TOKENS)
    (first, decode), (first_known, decode_known) = (
        static_batch(c, np.array([BATCH]), S, out, CHUNK_TOKENS) for c in (mine, theirs)
    )
    prompts = float(((first - mine.request_s) / (first_known - theirs.request_s))[0])
    decodes = float((decode / decode_known)[0])
    by_prompts = {
        name: value * prompts for name, value in vars(costs).items() if name.startswith("prompt") or name == "request_s"
    }
    new = {"precision": "llm|precision", "parallelism": "engine|llm|gpu"}  # of a known LLM, on known GPUs
    names = {new.get(what, what) for what in apart}
    unseen = [k for k in LEVELS if names & {k, *k.split("|")}]
    measured_on = ", ".join(f"{what} {theirs} for {ours}" for what, theirs, ours in _said(model, d) if what in apart)
    return replace(costs.scaled(decodes), **by_prompts), Provenance(
        _name(model), ", ".join(filter(None, (model.source, model.date))), apart,
        _wider(own.tpot, _quantiles(deployed, "tpot_s", unseen)),
        _wider(own.ttft, _quantiles(deployed, "ttft_s", unseen)),
        (f"carried over by {deployed.source.title}: measured on {measured_on}", *own.notes),
    )  # fmt: skip


def _said(model: LatencyModel, d: ModelInstance) -> tuple[tuple[str, object, object], ...]:
    """The deployment that a model was measured on, next to the one asked for."""
    low, high = model.domain.get("tp", (1.0, 1.0))
    measured = f"TP {low:g}" if low == high else f"TP {low:g} to {high:g}"
    split = f"TP {d.gpus // d.attention_ranks}" + (f" × DP {d.attention_ranks}" if d.attention_ranks > 1 else "")
    return (
        ("gpu", model.gpu, d.gpu_name), ("llm", model.llm, d.llm_name), ("precision", model.precision, d.precision),
        ("engine", model.engine, d.engine), ("parallelism", measured, split),
    )  # fmt: skip


def _name(model: LatencyModel) -> str:
    return model.title or f"{model.model} from {model.measured} measurements"


def roofline_costs(d: ModelInstance) -> StepCosts:
    """Times at the peaks of the catalogue, added up: reading weights, experts touched and KV, products, collectives.

    Engines overlap some of these; the latency curves of static batches take the longer of products and reading.
    """
    return _costs(d, dict.fromkeys(_AT_PEAK, 1.0), PROMPT_TOKENS)


def engine_costs(deployed: Deployed, prompt_tokens: float) -> tuple[StepCosts, Provenance]:
    """The global coefficients at a deployment.

    Their mean step in a closed-loop run (`engines.terms`) is the mean of the steps that these costs give, but for the
    experts that a step with a short prompt leaves untouched. A request's cost outside the steps is the cost that a lone
    one's first token takes longer than its prompt's step, in which its attention rank keeps the others waiting.
    """
    costs = _costs(deployed.deployment, _weights(deployed), prompt_tokens)
    alone = {"concurrency": 1.0, "input_tokens": prompt_tokens, "output_tokens": OUTPUT_TOKENS}
    ttft = float(deployed.predict({k: np.array([v]) for k, v in alone.items()}, "ttft_s")[0])
    none, prompt = np.zeros(0), (np.array([prompt_tokens]), np.zeros(1), np.zeros(0))
    own = costs.step_of_ranks([prompt, *[(none, none, none)] * (deployed.deployment.attention_ranks - 1)])
    costs = StepCosts(**vars(costs) | {"request_s": max(0.0, ttft - own)})
    return costs, Provenance(
        "default", deployed.said, deployed.transfer,
        _quantiles(deployed, "tpot_s"), _quantiles(deployed, "ttft_s"), deployed.caveats,
        to_measure=deployed.to_measure,
    )  # fmt: skip


def collective_costs(d: ModelInstance) -> StepCosts:
    """Cost of collectives in a step by the shipped coefficients: launches, and bytes of every token."""
    weights = _weights(_shipped().at(d))
    return _costs(d, {name: weights[name] for name in ("comm", "collective")}, PROMPT_TOKENS)


@cache
def _shipped() -> EngineModel:
    return read_engine_model()


def _quantiles(deployed: Deployed, target: Literal["tpot_s", "ttft_s"], more: Sequence[str] = ()) -> Levels:
    """Level → quantile of measured/predicted; `more`: further levels that count as never measured."""
    return tuple((float(p), q) for p, q in sorted(deployed.factors(target, more).items(), key=lambda x: float(x[0])))


def _wider(own: Levels, theirs: Levels) -> Levels:
    """Level → the larger of two quantiles, at levels that both support; `theirs` where nothing is known of `own`."""
    known = dict(own)
    return tuple((level, max(q, known[level])) for level, q in theirs if level in known) if known else theirs


def _weights(deployed: Deployed) -> dict[str, float]:
    """Factor on a term of the step at this deployment: coefficient, adjustments and factors."""
    d = deployed.deployment
    one = np.eye(len(STEP))
    terms = {name: one[j] for j, name in enumerate(STEP)} | {"age": np.full(len(STEP), age(d.engine, d.version))}
    found = deployed.targets["tpot_s"].fitted.predict(terms, deployed.labels)
    return dict(zip(STEP, found.tolist(), strict=True))


def _costs(d: ModelInstance, weights: Mapping[str, float], prompt_tokens: float) -> StepCosts:
    """Costs from terms of the mean step, each times its weight (0 where there is none).

    One request of one prompt and one output token takes one step with a prompt: 1 prompt token that sees ½ an earlier
    one, 1 decode token over 1½ and its states, every expert touched. `prompt` grows with the prompt's length and is
    taken at `prompt_tokens`, and so is the form of sparse attention.
    """
    one = np.ones(1)
    found = step_terms(d, Loads(one, one, one))
    unknown = set(found) - {*STEP, *TRENDS}
    assert not unknown, f"terms without a place in a step: {unknown}"
    term = {name: weights.get(name, 0.0) * float(found[name][0]) for name in STEP}
    prompt = weights.get("prompt", 0.0) * float(step_terms(d, Loads(one, prompt_tokens * one, one))["prompt"][0])
    collective = term["collective"] / 2.0  # of a prompt token and of a decode token
    kept = weights.get("kv", 0.0) * states(d)
    work = layer_work(d.llm, d.precision, d.kv_precision)
    every, picked, tokens = (float(np.squeeze(x)) for x in pair_seconds(d, work, prompt_tokens * one))
    window = None if np.isinf(tokens) else AttentionWindow(work.window_share, round(tokens), work.window_pair_share)
    if work.top_tokens < np.inf:
        scored, kept_s, _ = context_seconds(d, work)
        window = AttentionWindow(kept_s / (scored + kept_s), round(tokens), picked / (every + picked))
    expert = float(found["routed"][0] / found["decode"][0])  # share of a decode token's products
    return StepCosts(
        fixed_s=sum(term[name] for name in _FIXED),
        prompt_step_s=prompt + term["sparse_prompt"],
        prompt_token_s=term["prefill"] + term["routed"] + collective,
        prompt_pair_s=weights.get("attention", 0.0) * d.llm.layers * (every + picked) / d.gpus,
        decode_request_s=term["decode"] + term["running"] + collective + kept,
        context_s=(term["kv"] - kept) / 1.5,
        mixed_context_s=(term["kv"] - kept) / 1.5,
        experts=Experts(term["experts"], work.experts, work.active_experts) if work.experts else None,
        window=window,
        prompt_expert_s=term["routed"],
        decode_expert_s=term["decode"] * expert,
    )
