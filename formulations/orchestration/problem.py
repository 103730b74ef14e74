"""Instance schema of the orchestration problem (MaaSO §IV-C): instances on GPUs, requests on instances."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from formulations.orchestration.prefixes import KV_BLOCK_TOKENS, Prompts
from optmodels import catalog
from optmodels.arrays import Array, Ints
from optmodels.catalog.spelling import llm, unknown_gpu, unknown_llm
from optmodels.catalog.types import AnyLlm, Architecture, Entry, Gpu, GpuName, OwnGpus
from optmodels.engine.continuous import EngineLimits, LatencyLimit, Stage, latency_limit, seconds_and_quantile
from optmodels.engine.costs import AttentionRanks, check_speculation, written_out
from optmodels.engine.spelling import StoredModel, with_engines
from optmodels.engine.stages import DeploymentStages
from optmodels.errors import Mistakes
from optmodels.io.tables import read_table
from optmodels.latency.resolve import ModelChoice, StatedEngine, read_source
from optmodels.latency.strategies import Variant
from optmodels.limits import SPELLED, Limit
from optmodels.problem import Problem
from optmodels.traces.shape import dispersion
from optmodels.traces.spec import TraceSpec
from optmodels.traces.types import Label, Prefixes, Trace
from optmodels.units import (
    GBPS,
    Fraction,
    Gib,
    NonNegativeGib,
    PositiveFraction,
    PositiveInt,
    RequestsPerSecond,
    Seconds,
    TokensPerSecond,
    Unit,
)

Count = Annotated[int, Field(strict=True, ge=0, le=10**9)]
BlockId = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Metric = Literal["attainment", "latency", "throughput"]
MOST_GPUS = 1_000_000
MOST_BINS = 2_000
MOST_ROWS = 100_000  # requests written into a plan file
MOST_TOKENS = 10**6  # of a request in rows, a `PositiveInt`
ONE_BY_ONE = 50  # requests of a trace up to which each is a class of its own


class Servers(Entry):
    """`count` equal servers; with count above 1 they are called NAME-1, NAME-2, …"""

    server: str = Field(
        min_length=1, max_length=100, description="name of the server, or beginning of the names of several"
    )
    count: PositiveInt = Field(default=1, description="number of equal servers")
    gpu: GpuName = Field(description="a GPU of the catalogue or of the file's gpus:")
    gpus: PositiveInt = Field(description="GPUs in each server")
    vram_gib: Gib | None = Field(
        default=None, description="VRAM of one GPU for programs; default: the catalogue's driver_gib"
    )

    @property
    def names(self) -> list[str]:
        """The servers' names."""
        return [self.server] if self.count == 1 else [f"{self.server}-{i + 1}" for i in range(self.count)]


class GpuCluster(Entry):
    """Servers, their failed GPUs, and limits on groups that span servers."""

    servers: tuple[Servers, ...] = Field(min_length=1, description="servers of the cluster")
    failed_gpus: dict[str, tuple[Count, ...]] = Field(
        default={}, description="failed GPUs: server name → GPU indices from 0"
    )
    stock: Annotated[dict[GpuName, Count], Limit("GPUs used{key}", "most", "GPUs")] = Field(
        default={}, description="most GPUs that may be used, by GPU type"
    )
    tensor_groups_cross_servers: Annotated[bool, Limit("tensor groups stay inside a server", "flag", off=True)] = Field(
        default=False, description="whether GPUs of one tensor-parallel group may be in different servers"
    )
    pipelines_cross_servers: Annotated[bool, Limit("pipelines stay inside a server", "flag", off=True)] = Field(
        default=False, description="whether stages of one pipeline may be in different servers"
    )

    def unit(self, tp: int, pp: int, ranks: int = 1) -> int:
        """GPUs that must share a server: a replica's `ranks` tensor-parallel groups of each of its stages."""
        if self.tensor_groups_cross_servers:
            return 1
        return tp * ranks if self.pipelines_cross_servers else tp * pp * ranks


class Candidates(Entry):
    """Degrees and batch sizes to choose from; every combination is a candidate."""

    tp: tuple[PositiveInt, ...] = Field(
        default=(1, 2, 4, 8), min_length=1, description="GPUs of a tensor-parallel group"
    )
    pp: tuple[PositiveInt, ...] = Field(default=(1,), min_length=1, description="stages of a pipeline")
    dp: tuple[PositiveInt, ...] = Field(default=(1,), min_length=1, description="replicas of an instance")
    batch: tuple[PositiveInt, ...] = Field(
        default=(1, 2, 4, 8, 16, 32, 64), min_length=1,
        description="concurrent requests of a replica, or of each of its attention ranks",
    )  # fmt: skip
    attention_ranks: AttentionRanks = (1,)


class ServedModel(StoredModel):
    """A model to serve; requests ask for it by its name."""

    model: str = Field(default="", alias="name", max_length=100, description="name in the requests; default: `model`")
    architecture: AnyLlm | None = Field(
        default=None, alias="model", description="LLM of the catalogue, or its shape; default: the entry `name`"
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        if "architecture" in data:  # older spelling
            if "name" in data:
                raise ValueError("either name and model, or model and architecture, their older spelling")
            data = {k: v for k, v in data.items() if k not in ("model", "architecture")} | {
                "name": data.get("model"), "model": data["architecture"]
            }  # fmt: skip
        elif "name" not in data and isinstance(data.get("model"), str):
            data = {"name": data["model"], **data}
        if not data.get("name"):
            raise ValueError("a model of the catalogue, or a name and the model's shape")
        return data

    t_slice_s: Seconds | None = Field(
        default=None, description="t_slice of the deadline; default: per-token latency of an idle one-GPU instance"
    )
    candidates: Candidates | None = Field(default=None, description="candidates of this model, in place of the file's")
    minimum_instances: Annotated[Count, Limit("instances of {owner}", "least", off=0)] = Field(
        default=0, description="least number of instances"
    )
    maximum_instances: Annotated[Count | None, Limit("instances of {owner}", "most")] = Field(
        default=None, description="most instances; default: any number"
    )
    weight: Share = Field(default=1.0, description="weight of this model's requests in S")
    attainment_at_least: Annotated[Fraction | None, Limit("share of {owner} in time", "least", "%")] = Field(
        default=None, description="least SLO attainment of its requests"
    )


class DecayRow(Entry):
    """MS(1) of one model and parallelism: F = T₀·(1 − δ·ln(ε + min(B, W))), tokens/s of one request among W."""

    model: str = Field(description="model of the row")
    gpu: GpuName | None = Field(default=None, description="GPU type; default: every one")
    tp: PositiveInt = Field(default=1, description="GPUs of a tensor-parallel group")
    pp: PositiveInt = Field(default=1, description="stages of the pipeline")
    base_tokens_per_s: TokensPerSecond = Field(description="T₀: tokens/s of one request alone")
    delta: Share = Field(description="δ: decay")
    epsilon: Share = Field(default=0.0, description="ε: offset in the logarithm")
    prefill_tokens_per_s: TokensPerSecond | None = Field(
        default=None, description="prompt tokens/s; default: prefill takes no time"
    )


class Latency(Entry):
    """Source of latencies: exactly one of model, decay, fitted, measured and roofline."""

    model: ModelChoice | None = None
    engine: StatedEngine = Field(default="vllm", description="engine of the built-in coefficients")
    decay: tuple[DecayRow, ...] | None = Field(default=None, description="MaaSO's decay law, by model and parallelism")
    fitted: dict[str, str] | None = Field(default=None, description="latency model file, or a shipped one, by model")
    measured: str | None = Field(
        default=None, description="CSV/Parquet: model, gpu, tp, pp, load, tokens_per_s, prefill_tokens_per_s"
    )
    measured_rows: tuple[MeasuredRow, ...] | None = Field(default=None, description="the same rows, inline")
    roofline: Variant | None = Field(default=None, description="times at hardware peaks")
    safety: Fraction | None = Field(
        default=None, description="prediction quantile of measured over predicted, with model or fitted"
    )

    @model_validator(mode="after")
    def _one(self) -> Latency:
        given = [self.model, self.decay, self.fitted, self.measured, self.measured_rows, self.roofline]
        if sum(v is not None for v in given) != 1:
            raise ValueError("exactly one of model, decay, fitted, measured, measured_rows and roofline")
        if self.safety is not None and self.model == "roofline":
            raise ValueError("a measured model with safety: the error of the roofline is unknown")
        return self


class MeasuredRow(Entry):
    """One measurement: tokens/s of one request among `load`."""

    model: str = Field(description="model of the row")
    gpu: GpuName = Field(description="GPU type")
    tp: PositiveInt = Field(default=1, description="GPUs of a tensor-parallel group")
    pp: PositiveInt = Field(default=1, description="stages of the pipeline")
    load: PositiveInt = Field(description="concurrent requests")
    tokens_per_s: TokensPerSecond = Field(description="tokens/s of one request")
    prefill_tokens_per_s: TokensPerSecond | None = Field(
        default=None, description="tokens/s of one prompt; default: prefill takes no time"
    )


class RequestClass(Entry):
    """Requests as a rate instead of one by one."""

    model: str = Field(description="model that the requests ask for")
    output_tokens: Positive = Field(description="output tokens of a request")
    prompt_tokens: Share = Field(default=0.0, alias="input_tokens", description="input tokens of a request")
    slo_factor: Positive = Field(description="θ of the deadline θ·l·t_slice")
    requests_per_s: RequestsPerSecond | tuple[RequestsPerSecond, ...] = Field(
        description="constant rate, or rates by time bin of classes_bin_s"
    )
    weight: Share = Field(default=1.0, description="weight of a request in S")


class RequestRows(Entry):
    """Requests one by one, as columns in the order of their arrival."""

    arrival_s: tuple[Share, ...] = Field(min_length=1, description="arrivals from the beginning, ascending")
    output_tokens: tuple[PositiveInt, ...] = Field(description="output tokens of each request")
    prompt_tokens: tuple[PositiveInt, ...] | None = Field(
        default=None, alias="input_tokens", description="input tokens of each request; default: 1"
    )
    model: tuple[str, ...] | None = Field(
        default=None, description="model of each request; default: requests.model or the only one"
    )
    slo_factor: tuple[Positive, ...] | None = Field(default=None, description="θ of each request; default: slo.factor")
    predicted_output_tokens: tuple[PositiveInt, ...] | None = Field(
        default=None, description="output tokens that dispatchers expect in a replay; default: the true ones"
    )
    prefix_blocks: tuple[tuple[BlockId, ...], ...] | None = Field(
        default=None, description="ids of each prompt's content blocks for prefix caches; equal ids are shared"
    )
    prefix_block_tokens: PositiveInt | None = Field(default=None, description="tokens of a content block")

    @model_validator(mode="after")
    def _equally_long(self) -> RequestRows:
        n = len(self.arrival_s)
        for key in (
            "output_tokens", "prompt_tokens", "model", "slo_factor", "predicted_output_tokens", "prefix_blocks",
        ):  # fmt: skip
            column = getattr(self, key)
            if column is not None and len(column) != n:
                raise ValueError(f"{SPELLED.get(key, key)} of {n} requests like arrival_s (it has {len(column)})")
        if any(a > b for a, b in pairwise(self.arrival_s)):
            raise ValueError("arrival_s in ascending order")
        if (self.prefix_blocks is None) != (self.prefix_block_tokens is None):
            raise ValueError("prefix_blocks and prefix_block_tokens, both or neither")
        return self

    @classmethod
    def of(cls, trace: Trace) -> RequestRows:
        """The requests of a trace."""
        label = trace.labels.get("model")
        return cls(
            arrival_s=tuple(trace.arrival_s.tolist()), output_tokens=tuple(trace.output_tokens.tolist()),
            prompt_tokens=tuple(trace.prompt_tokens.tolist()),
            model=None if label is None else tuple(label.names[i] for i in label.codes),
            slo_factor=None if trace.slo_factor is None else tuple(trace.slo_factor.tolist()),
            predicted_output_tokens=(
                None if trace.predicted_output_tokens is None else tuple(trace.predicted_output_tokens.tolist())
            ),
            prefix_blocks=(
                None if trace.prefixes is None
                else tuple(tuple(trace.prefixes.of(i).tolist()) for i in range(len(trace)))
            ),
            prefix_block_tokens=None if trace.prefixes is None else trace.prefixes.block_tokens,
        )  # fmt: skip

    def trace(self) -> Trace:
        """The same as arrays."""
        n = len(self.arrival_s)
        labels = {}
        if self.model is not None:
            names, codes = np.unique(np.array(self.model), return_inverse=True)
            labels["model"] = Label(tuple(map(str, names)), codes.astype(np.int64))
        predicted, prefixes = self.predicted_output_tokens, None
        if self.prefix_blocks is not None and self.prefix_block_tokens is not None:
            ids = np.array([i for blocks in self.prefix_blocks for i in blocks], dtype=np.int64)
            start = np.cumsum([0, *map(len, self.prefix_blocks)]).astype(np.int64)
            prefixes = Prefixes(self.prefix_block_tokens, start, ids)
        return Trace(
            "rows", np.array(self.arrival_s), np.array(self.prompt_tokens or (1,) * n, dtype=np.int64),
            np.array(self.output_tokens, dtype=np.int64), labels,
            None if self.slo_factor is None else np.array(self.slo_factor), prefixes,
            None if predicted is None else np.array(predicted, dtype=np.int64),
        )  # fmt: skip


class RequestSource(Entry):
    """Requests: a trace (file or generated), single requests, or classes with rates."""

    trace: TraceSpec | None = Field(default=None, description="trace: a file, or drawn at random")
    rows: RequestRows | None = Field(default=None, description="requests one by one")
    classes: tuple[RequestClass, ...] | None = Field(
        default=None, min_length=1, description="classes of requests with rates"
    )
    duration_s: Seconds | None = Field(default=None, description="duration of constant rates")
    classes_bin_s: Seconds | None = Field(default=None, description="width of the bins of rates given as a list")
    model: str | None = Field(default=None, description="model of the requests, for a trace without a model column")

    @model_validator(mode="after")
    def _one(self) -> RequestSource:
        if sum(v is not None for v in (self.trace, self.rows, self.classes)) != 1:
            raise ValueError("exactly one of trace, rows and classes")
        if self.classes is not None:
            listed = {len(c.requests_per_s) for c in self.classes if isinstance(c.requests_per_s, tuple)}
            if len(listed) > 1:
                raise ValueError(f"lists of rates of one length (these have {sorted(listed)})")
            if listed and self.classes_bin_s is None:
                raise ValueError("classes_bin_s, the width of the bins of the rates")
            if not listed and self.duration_s is None:
                raise ValueError("duration_s, how long the constant rates last")
        return self


class Slo(Entry):
    """Deadline θ·l·t_slice (MaaSO §III-C); optionally also a limit on the first token."""

    factor: Positive | None = Field(default=None, description="θ of requests whose trace states none")
    ttft_s: Annotated[Seconds | None, Limit("TTFT", "most", "s")] = Field(
        default=None, description="limit on the time to the first token"
    )
    itl_s: Annotated[LatencyLimit | None, latency_limit("ITL")] = Field(
        default=None,
        description="limit on the time between two output tokens, pauses for others' prompts included (serving: "
        "continuous); its percentile is of all such times of a model's requests on an engine",
    )
    shortfall_penalty: Share | None = Field(
        default=None,
        description="score lost per unit of missed attainment_at_least; default: the attainment is a limit",
    )


class AttainmentObjective(Entry):
    """MS(6) α·S + (1 − α)·(β·T + (1 − β)·L), or one metric after the other."""

    kind: Literal["score", "lexicographic"] = Field(
        default="score",
        description="score: weighted sum of the three metrics; lexicographic: one metric after the other",
    )
    alpha: Fraction = Field(default=0.8, description="α: weight of SLO attainment")
    beta: Fraction = Field(default=0.2, description="β: weight of throughput against latency in the remaining 1 − α")
    throughput_threshold_tokens_per_s: TokensPerSecond | None = Field(
        default=None, description="MS(7): throughput that counts as 1; default: all tokens asked for, over the horizon"
    )
    latency_threshold_s: Seconds | None = Field(
        default=None,
        description="MS(8): first-token latency that counts as 0; default: the longest allowed wait",
    )
    order: tuple[Metric, ...] = Field(
        default=("attainment", "latency", "throughput"),
        min_length=1,
        description="lexicographic order, most important metric first",
    )

    def score(self, attainment: Any, throughput: Any, latency: Any) -> Any:
        """MS(6) of numbers, arrays or coefficients of S, T and L."""
        return self.alpha * attainment + (1 - self.alpha) * (self.beta * throughput + (1 - self.beta) * latency)

    @property
    def weights(self) -> tuple[float, float, float]:
        """Of S, T and L in MS(6); in a lexicographic order each metric counts a thousandth of the one before."""
        if self.kind == "score":
            return self.alpha, (1 - self.alpha) * self.beta, (1 - self.alpha) * (1 - self.beta)
        weight = {name: 1e-3**i for i, name in enumerate(self.order)}
        return weight.get("attainment", 0.0), weight.get("throughput", 0.0), weight.get("latency", 0.0)


class ClusterMemory(Entry):
    """MS(d): weights, KV cache of a full batch and activations fit every GPU."""

    vram_usable: Annotated[PositiveFraction, Limit("usable share of VRAM", "most", "%", off=1.0)] = Field(
        default=0.9, description="share of GPU memory for weights, cache and activations"
    )
    runtime_gib: NonNegativeGib | None = Field(
        default=None,
        description="part of each GPU's share for CUDA context, communication buffers and CUDA graphs; default: 1 GiB"
        " with serving: continuous, none with static batches",
    )
    tokens_per_slot: Literal["mean", "max"] | PositiveInt = Field(
        default="mean",
        description="KV tokens of a slot: of the model's mean or longest request, or a number",
    )


BURST_S = 0.5  # window in which arrivals are counted: about as long as prompts wait for each other
WAITS = (1.0, 4.0)
QUEUED = 0.5  # a longer wait is planned for where the level's own requests take more of the shorter one's row
Waits = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]


class Continuous(EngineLimits):
    """Engines with continuous batching: chunks of prompts and decoding requests share every iteration."""

    quantile: Annotated[float, Field(ge=0.5, le=0.99)] = Field(
        default=0.8, description="quantile of TTFT and E2E that must meet the deadline; 0.5: the mean"
    )
    waits: Waits | Annotated[tuple[Waits, ...], Field(min_length=1, max_length=8)] | None = Field(
        default=None,
        description="planned queueing delay of a prompt at the quantile, in mean prompts; less leaves room for bursts; "
        "of several values the plan chooses one for each instance, a longer one where prompts fill the "
        "shorter by half; default: [1, 4], or 1 with change.running",
    )
    bursts: Annotated[float, Field(ge=1, le=10_000, allow_inf_nan=False)] | Literal["trace", "none"] = Field(
        default="trace",
        description="index of dispersion of arrivals: variance over mean of their number in half a second; 1 or none: "
        "Poisson; trace: as measured, at least 1",
    )

    @model_validator(mode="after")
    def _each_wait_once(self) -> Self:
        if len(set(self.wait_levels)) < len(self.wait_levels):
            raise ValueError("each of waits once")
        return self

    @property
    def wait_levels(self) -> tuple[float, ...]:
        """The waits that an engine may be planned for, shortest first."""
        waits = WAITS if self.waits is None else self.waits
        return tuple(sorted(waits)) if isinstance(waits, tuple) else (waits,)


class InstancePrefixCache(Entry):
    """Prefix-cache hits that a plan counts on."""

    hits: Literal["trace", "none"] = Field(
        default="trace",
        description="trace: hits measured on the prefix blocks of the requests, if there are any; none: no hits",
    )


class AttainmentCertification(Entry):
    """Certification of plans: solve, replay with the plan's dispatcher, plan less full where attainment falls short."""

    confidence: Annotated[float, Field(ge=0.5, lt=1, allow_inf_nan=False)] = Field(
        default=0.95, description="joint confidence of all SLOs of a certified plan, if requests are drawn"
    )
    copies: Annotated[int, Field(strict=True, ge=2, le=1000)] | None = Field(
        default=None,
        description="number of drawn request sets to replay: resampled traces, or Poisson arrivals; default: the trace "
        "itself once, or 32 Poisson sets",
    )
    quantile: Annotated[float, Field(ge=0.5, le=0.99)] = Field(
        default=0.5,
        description="engine.quantile of the second pass, which plans without bursts because replays decide",
    )
    waits: Waits = Field(default=4.0, description="engine.waits of the second pass")
    rounds: Annotated[int, Field(strict=True, ge=1, le=50)] = Field(
        default=10, description="most solves in the first pass, and again in the second"
    )
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**31)] = Field(
        default=0, description="random seed of the drawn requests"
    )


class RunningInstance(Entry):
    """Instances already up."""

    model: str = Field(description="model of the instance")
    gpu: GpuName | None = Field(default=None, description="GPU type; default: the first server's")
    tp: PositiveInt = Field(default=1, description="GPUs of its tensor-parallel groups")
    pp: PositiveInt = Field(default=1, description="stages of its pipeline")
    dp: PositiveInt = Field(default=1, description="data-parallel replicas of the instance")
    attention_ranks: PositiveInt = Field(default=1, description="attention ranks of each replica, tp GPUs each")
    batch: PositiveInt = Field(description="concurrent requests of a replica, or of each of its attention ranks")
    stage: Stage = Field(default="both", description="stages of a request: both, prefill or decode")
    count: PositiveInt = Field(default=1, description="number of equal instances")
    placement: dict[str, tuple[Count, ...]] | None = Field(default=None, description="server → GPUs; one instance")


class InstanceChange(Entry):
    """Cost of a change against the running instances, in score."""

    running: tuple[RunningInstance, ...] = Field(default=(), description="running instances")
    score_per_start: Share = Field(default=0.0, description="score lost for every started instance")
    score_per_stop: Share = Field(default=0.0, description="score lost for every stopped instance")


class Bins(Entry):
    """Granularity of request groups. Finer is slower and changes plans little."""

    seconds: Annotated[float, Unit("s"), Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="width of a time bin; default: about a quarter of a mean service time"
    )
    lengths: PositiveInt | None = Field(
        default=None,
        description="groups by output length, of each model; default: 3, or every request by itself in a trace of at"
        f" most {ONE_BY_ONE} where slo is not given either",
    )
    slo: PositiveInt | None = Field(
        default=None, description="groups by seconds allowed per token, of each model; default: 4, or as with lengths"
    )

    def groups(self, requests: int) -> tuple[int, int] | None:
        """Groups by length and by allowance for this many requests; None: every request by itself."""
        if self.lengths is None and self.slo is None and requests <= ONE_BY_ONE:
            return None
        return self.lengths or 3, self.slo or 4


class Orchestration(Problem):
    """Which instances on which GPUs, and which requests on which instances."""

    model_config = ConfigDict(json_schema_extra=lambda schema: schema["required"].remove("latency"))

    formulation: Literal["orchestration"] = Field(description="formulation of the file")
    gpus: OwnGpus = {}
    cluster: GpuCluster
    models: tuple[ServedModel, ...] = Field(min_length=1, description="models to serve")
    candidates: Candidates = Field(
        default=Candidates(), description="degrees and batch sizes to choose from, for all models"
    )
    latency: Latency = Field(description="latency model; default with serving: continuous is {model: default}")
    serving: Literal["slots", "continuous"] = Field(
        default="slots",
        description="slots: MaaSO's instances, each request prefilled in a slot; continuous: engines "
        "with continuous batching",
    )
    engine: Continuous | None = Field(default=None, description="engine limits, with serving: continuous")
    prefix_cache: InstancePrefixCache = Field(
        default=InstancePrefixCache(), description="prefix caches, with serving: continuous"
    )
    deployment: DeploymentStages = Field(
        default=DeploymentStages(), description="stages of deployments, with serving: continuous"
    )
    certify: Literal["none", "replay"] = Field(
        default="none",
        description="replay: plan so that the dispatcher reaches the stated attainment on the step simulator",
    )
    certification: AttainmentCertification = Field(
        default=AttainmentCertification(), description="certification, with certify: replay"
    )
    requests: RequestSource
    slo: Slo = Slo()
    objective: AttainmentObjective = AttainmentObjective()
    memory: ClusterMemory = ClusterMemory()
    change: InstanceChange = InstanceChange()
    bins: Bins = Bins()

    _case: OrchestrationCase | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _latencies(cls, data: Any) -> Any:
        return with_engines(data)

    @model_validator(mode="after")
    def _engines(self) -> Orchestration:
        if self.serving == "continuous" and self.latency.model is None:
            raise ValueError("latency: {model: default} or another model of engines' steps beside serving: continuous")
        if self.serving == "slots" and self.engine is not None:
            raise ValueError("serving: continuous beside engine: slots have no steps")
        waits = None if self.engine is None else self.engine.waits
        if isinstance(waits, tuple) and len(waits) > 1 and self.change.running:
            raise ValueError("engine.waits: one beside change.running, which does not say what its engines wait")
        return self

    @property
    def continuous(self) -> Continuous | None:
        """The engines' limits; None: MaaSO's slots."""
        if self.serving == "slots":
            return None
        limits = self.engine or Continuous()
        if limits.waits is None and self.change.running:
            return limits.model_copy(update={"waits": WAITS[0]})
        return limits

    def hits(self, trace: Trace | None) -> Prefixes | None:
        """Shared prompt blocks of the requests, if plans count prefix-cache hits."""
        found = None if trace is None or self.continuous is None or self.prefix_cache.hits == "none" else trace.prefixes
        # Engines share whole blocks of their caches.
        return None if found is None or found.block_tokens % KV_BLOCK_TOKENS else found

    def looser(self) -> Orchestration:
        """The instance whose model a certification's second pass solves."""
        rules, engine = self.certification, self.continuous or Continuous()
        other = engine.model_copy(update={"quantile": rules.quantile, "waits": rules.waits, "bursts": "none"})
        return self.model_copy(update={"engine": other})

    def resolve(self) -> OrchestrationCase:
        """Look up GPUs, models and requests; once per problem.

        Raises:
            InputError: every contradiction, each with its path.
        """
        if self._case is None or self._case.problem is not self:  # a copy carries its original's case
            self._case = _resolve(self)
        return self._case

    def own_trace(self) -> Trace | None:
        """The requests one by one; None where they come as classes."""
        return self.resolve().trace

    def measured_rows(self) -> tuple[MeasuredRow, ...]:
        """The measurements of the instance's table.

        Raises:
            InputError: the file or a row is wrong.
        """
        if self.latency.measured is None:
            return self.latency.measured_rows or ()
        return read_table(self.beside(self.latency.measured, "latency.measured"), MeasuredRow)

    def inline(self) -> Orchestration:
        """The same problem with measurements and requests from files written out; very long ones stay in theirs."""
        update: dict[str, Any] = {}
        case = self.resolve()
        if self.latency.measured is not None:
            update["latency"] = self.latency.model_copy(
                update={"measured": None, "measured_rows": self.measured_rows()}
            )
        if self.latency.model is not None:
            documents = read_source(self, self.latency.model, self.latency.engine).documents
            update["latency"] = self.latency.model_copy(update={"model": documents})
        if self.engine is not None:
            update["engine"] = written_out(self.engine)
        spec = self.requests.trace
        long = case.trace is not None and (
            len(case.trace) > MOST_ROWS
            or max(case.trace.prompt_tokens.max(), case.trace.output_tokens.max()) > MOST_TOKENS
        )
        if spec is not None and spec.file is not None and case.trace is not None and not long:
            inlined = RequestRows.of(case.trace)
            update["requests"] = self.requests.model_copy(update={"trace": None, "rows": inlined})
        return self.model_copy(update=update)


@dataclass(frozen=True)
class ServerLine:
    """One server with the GPUs that work."""

    name: str
    gpu: int
    free: tuple[int, ...]


@dataclass(frozen=True)
class OrchestrationCase:
    """A problem with every reference resolved.

    Attributes:
        gpu_types: names of the GPU types in order of first mention.
        gpus: their data.
        vram_gib: VRAM GiB of one GPU, by type.
        servers: every server with its working GPUs, in file order.
        architectures: architectures of every model.
        trace: the requests one by one, or None where they are given as classes.
        request_model: (n,) model of every request.
        slo_factor: (n,) θ of every request.
        notes: remarks for the reader.
    """

    problem: Orchestration
    gpu_types: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    vram_gib: tuple[float, ...]
    servers: tuple[ServerLine, ...]
    architectures: tuple[Architecture, ...]
    trace: Trace | None
    request_model: Ints
    slo_factor: Array
    notes: tuple[str, ...] = field(default=())

    @cached_property
    def models(self) -> tuple[str, ...]:
        """Names of the models."""
        return tuple(m.model for m in self.problem.models)

    def ranks(self, m: int) -> tuple[int, ...]:
        """Attention ranks to choose from, ascending; a model without routed experts has one."""
        choose = self.problem.models[m].candidates or self.problem.candidates
        return tuple(sorted(choose.attention_ranks)) if self.architectures[m].routed else (1,)

    @property
    def ttft_limit_s(self) -> float:
        """Seconds after arrival by which a first token is due; infinite without a limit."""
        limit = self.problem.slo.ttft_s
        return math.inf if limit is None else limit

    def lengths(self, m: int) -> tuple[Array, Array, Array]:
        """Prompt and output tokens of a model's requests, of weight 1 each, or of its classes, with mean rates."""
        if self.trace is not None:
            mine = self.request_model == m
            prompt, output = (v[mine].astype(float) for v in (self.trace.prompt_tokens, self.trace.output_tokens))
            return prompt, output, np.ones(len(prompt))
        rows = [c for c in self.problem.requests.classes or () if c.model == self.models[m]]
        stated = [(c.prompt_tokens, c.output_tokens, float(np.mean(c.requests_per_s))) for c in rows]
        prompt, output, rate = np.array(stated, dtype=float).reshape(-1, 3).T
        return prompt, output, rate

    def stream(self, m: int) -> tuple[float, float]:
        """A model's requests per second in the mean, and the index of dispersion of their arrivals."""
        engine, trace = self.problem.continuous, self.trace
        given = engine.bursts if engine is not None and isinstance(engine.bursts, float) else 1.0
        if trace is None:
            rows = [c for c in self.problem.requests.classes or () if c.model == self.models[m]]
            return float(sum(np.mean(c.requests_per_s) for c in rows)) or math.inf, given
        arrival = trace.arrival_s[self.request_model == m]
        lasts = float(arrival.max(initial=0.0))
        measured = engine is not None and engine.bursts == "trace"
        rate = len(arrival) / lasts if lasts > 0 else math.inf
        return rate, max(1.0, dispersion(arrival, BURST_S)) if measured else given

    def prompts(self, m: int) -> Prompts | None:
        """A model's requests, where plans count with what prefix caches have of their prompts."""
        mine = self.request_model == m
        if self.trace is None or self.problem.hits(self.trace) is None:
            return None
        return Prompts(self.trace.take(np.flatnonzero(mine))) if mine.any() else None

    @cached_property
    def largest_server(self) -> Ints:
        """(G,) GPUs, working or not, of the largest server of each type."""
        found = np.zeros(len(self.gpu_types), dtype=np.int64)
        for s in self.problem.cluster.servers:
            g = self.gpu_types.index(s.gpu)
            found[g] = max(found[g], s.gpus)
        return found

    def net_bytes_per_s(self, g: int, gpus: int) -> float:
        """The GPUs' share of their server's network, equal to their share of its GPUs."""
        net = self.problem.deployment.link.net_gbps or 0.0
        return net * GBPS * min(1.0, gpus / int(self.largest_server[g]))

    @cached_property
    def servers_of(self) -> tuple[tuple[ServerLine, ...], ...]:
        """The servers by GPU type."""
        found: list[list[ServerLine]] = [[] for _ in self.gpu_types]
        for s in self.servers:
            found[s.gpu].append(s)
        return tuple(tuple(of) for of in found)

    @cached_property
    def free_gpus(self) -> Ints:
        """Working GPUs by type."""
        return np.array([sum(len(s.free) for s in of) for of in self.servers_of], dtype=np.int64)


def _resolve(p: Orchestration) -> OrchestrationCase:
    wrong = Mistakes()
    known = catalog.gpus() | p.gpus
    types: dict[str, tuple[Gpu, float]] = {}
    for i, s in enumerate(p.cluster.servers):
        if s.gpu not in known:
            wrong.append(unknown_gpu(f"cluster.servers[{i}].gpu", s.gpu, known, "a GPU of the catalogue or of gpus"))
            continue
        vram = s.vram_gib or known[s.gpu].usable_gib
        if s.gpu in types and types[s.gpu][1] != vram:
            wrong.add(f"cluster.servers[{i}].vram_gib", vram, f"{types[s.gpu][1]} as in the other {s.gpu} servers",
                      "describe the other kind under gpus: with a name of its own")  # fmt: skip
        types.setdefault(s.gpu, (known[s.gpu], vram))
    names = [m.model for m in p.models]
    wrong.once("models[{}].model", names, "each name once")
    architectures = [_architecture(m, i, wrong) for i, m in enumerate(p.models)]
    servers = _servers(p, list(types), wrong)
    wrong.among("cluster.stock.{}", p.cluster.stock, "a GPU type of the cluster", types)
    for i, r in enumerate(p.change.running):
        wrong.among(f"change.running[{i}].model", [r.model], "a model of this file", names)
        wrong.among(f"change.running[{i}].gpu", [] if r.gpu is None else [r.gpu], "a GPU type of the cluster", types)
        if r.stage not in p.deployment.stages:
            wrong.add(
                f"change.running[{i}].stage", r.stage, f"one of deployment.stages: {', '.join(p.deployment.stages)}"
            )
    _placements(p, list(types), wrong)
    for i, row in enumerate(p.latency.decay or ()):
        wrong.among(f"latency.decay[{i}].model", [row.model], "a model of this file", names)
    if p.certify != "none" and p.continuous is None:
        wrong.add("certify", p.certify, "none but with serving: continuous, whose engines can be simulated")
    if p.slo.itl_s is not None and p.continuous is None:
        expected = "none but with serving: continuous, whose engines share steps with others' prompts"
        wrong.add("slo.itl_s", seconds_and_quantile(p.slo.itl_s)[0], expected)
    if p.deployment.apart:
        _apart(p, wrong)
    known_models = [a for a in architectures if a is not None]
    check_speculation(p.engine, known_models, p.serving == "continuous", wrong)
    trace, request_model, factor, notes = _requests(p, names, wrong)
    _with_ranks(p, trace, wrong)
    wrong.raise_any()
    return OrchestrationCase(
        problem=p, gpu_types=tuple(types), gpus=tuple(g for g, _ in types.values()),
        vram_gib=tuple(v for _, v in types.values()), servers=servers,
        architectures=tuple(known_models),
        trace=trace, request_model=request_model, slo_factor=factor, notes=tuple(notes),
    )  # fmt: skip


def _apart(p: Orchestration, wrong: Mistakes) -> None:
    """Requirements of disaggregated prefill and decode, and combinations without a defined meaning."""
    stages = list(p.deployment.stages)
    if p.continuous is None:
        wrong.add("deployment.stages", stages, "[both] with serving: slots, which prefill and decode in one place")
    if p.deployment.link.net_gbps is None:
        wrong.add("deployment.link.net_gbps", None, "of each server, in Gbit/s: caches go through it")


def _with_ranks(p: Orchestration, trace: Trace | None, wrong: Mistakes) -> None:
    """Combinations without a model for engines of several attention ranks."""
    for path, choose in (("", p.candidates), *((f"models[{i}].", m.candidates) for i, m in enumerate(p.models))):
        if choose is None or choose.attention_ranks == (1,):
            continue
        expected = []
        if p.continuous is None:
            expected.append("[1] with serving: slots, whose replicas are apart from each other")
        if p.deployment.apart:
            expected.append("[1] beside prefill and decode apart, which are planned with one rank")
        if p.hits(trace) is not None:
            expected.append("[1] beside hits of prefix caches, measured with one cache an engine; with several ranks"
                            " prefix_cache: {hits: none}")  # fmt: skip
        for each in expected:
            wrong.add(f"{path}candidates.attention_ranks", list(choose.attention_ranks), each)


def _architecture(m: ServedModel, i: int, wrong: Mistakes) -> Architecture | None:
    named = m.architecture if m.architecture is not None else llm(m.model)
    if isinstance(named, Architecture):
        return named
    if named not in catalog.llms():
        where = f"models[{i}].{'name' if m.architecture is None else 'model'}"
        wrong.append(unknown_llm(where, named, ", or its shape and a name"))
        return None
    return catalog.llms()[named]


def _servers(p: Orchestration, types: list[str], wrong: Mistakes) -> tuple[ServerLine, ...]:
    total = sum(s.count * s.gpus for s in p.cluster.servers)
    if total > MOST_GPUS:
        wrong.add("cluster.servers", total, f"at most {MOST_GPUS:,} GPUs")
        return ()
    lines: list[ServerLine] = []
    seen: set[str] = set()
    failed = p.cluster.failed_gpus
    for i, s in enumerate(p.cluster.servers):
        every = tuple(range(s.gpus))
        for name in s.names:
            if name in seen:
                wrong.add(f"cluster.servers[{i}].server", name, "each name once")
            seen.add(name)
            if s.gpu in types:
                lost = set(failed.get(name, ()))
                lines.append(
                    ServerLine(name, types.index(s.gpu), tuple(g for g in every if g not in lost) if lost else every)
                )
            for g in failed.get(name, ()):
                if g >= s.gpus:
                    wrong.add(f"cluster.failed_gpus.{name}", g, f"a GPU index from 0 to {s.gpus - 1}")
    for name in failed:
        if name not in seen:
            wrong.unknown(f"cluster.failed_gpus.{name}", name, "a server of the cluster", sorted(seen)[:1000])
    return tuple(lines)


def _placements(p: Orchestration, types: list[str], wrong: Mistakes) -> None:
    """Whether running instances stand on existing GPUs, in the right number, each used once (GPUs may have failed)."""
    placed = [(i, r) for i, r in enumerate(p.change.running) if r.placement is not None]
    asked = {s for _, r in placed for s in r.placement or ()}
    kind = {name: s for s in p.cluster.servers for name in s.names if name in asked} if asked else {}
    held: set[tuple[str, int]] = set()
    for i, r in placed:
        where, gpus = f"change.running[{i}].placement", r.tp * r.pp * r.attention_ranks * r.dp
        if r.count != 1:
            wrong.add(where, f"{r.count} instances", "one instance: an entry for each")
        total = sum(len(g) for g in (r.placement or {}).values())
        if total != gpus:
            expected = f"{gpus} GPUs: tp·pp·dp{'·attention_ranks' * (r.attention_ranks > 1)} of the instance"
            wrong.add(where, f"{total} GPUs", expected)
        for name, used in (r.placement or {}).items():
            if name not in kind:
                wrong.unknown(where, name, "a server of the cluster", sorted(kind)[:1000])
                continue
            if kind[name].gpu != (r.gpu or types[0]):
                wrong.add(f"{where}.{name}", kind[name].gpu, f"a server with {r.gpu or types[0]}")
            for g in used:
                if g >= kind[name].gpus:
                    wrong.add(f"{where}.{name}", g, f"a GPU index from 0 to {kind[name].gpus - 1}")
                elif (name, g) in held:
                    wrong.add(f"{where}.{name}", g, "a GPU that no other running instance holds")
                held.add((name, g))


def _requests(p: Orchestration, names: list[str], wrong: Mistakes) -> tuple[Trace | None, Ints, Array, list[str]]:
    nothing: tuple[Trace | None, Ints, Array, list[str]] = (None, np.zeros(0, dtype=np.int64), np.zeros(0), [])
    for i, c in enumerate(p.requests.classes or ()):
        wrong.among(f"requests.classes[{i}].model", [c.model], "a model of this file", names)
    if p.requests.classes is not None:
        return nothing
    trace = wrong.collect(_trace, p)
    if trace is None:
        return nothing
    if not len(trace):
        wrong.add("requests.trace", "no request", "at least one request")
        return nothing
    label = trace.labels.get("model")
    if label is not None:
        for name in label.names:
            if name not in names:
                wrong.unknown("requests.trace", name, "requests for a model of this file", names)
                return nothing
        code = np.array([names.index(n) for n in label.names], dtype=np.int64)[label.codes]
    else:
        only = p.requests.model or (names[0] if len(names) == 1 else None)
        if only not in names:
            wrong.add(
                "requests.model", only, f"one of {', '.join(names)}: the trace does not say which model is asked for"
            )
            return nothing
        code = np.full(len(trace), names.index(str(only)), dtype=np.int64)
    factor = trace.slo_factor
    if factor is None:
        if p.slo.factor is None:
            wrong.add("slo.factor", None, "θ > 0 of the deadline θ·l·t_slice: the trace has no SLO factors")
            return nothing
        factor = np.full(len(trace), p.slo.factor)
    return trace, code, np.asarray(factor, dtype=float), list(trace.notes)


def _trace(p: Orchestration) -> Trace:
    if p.requests.rows is not None:
        return p.requests.rows.trace()
    assert p.requests.trace is not None
    from optmodels.traces.load import load_trace  # numpy and readers, where a trace is asked for

    return load_trace(p.requests.trace, p.beside, "requests.trace")


Latency.model_rebuild()
