"""Instance schema of fleet planning: many workloads in buckets of length, pools with limits, one bill.

A *demand* is one bucket of one workload, named ``workload/bucket``. Operating points are modelled from the latency
curves of the cost-efficiency problem, or measured (``points:``, ``points_table:``, Mélange's JSON).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from formulations.fleet.files import MelangeConfig, TraceFile, read_points_table
from formulations.fleet.scenarios import Draws, Scenarios, draws_of
from optmodels import catalog
from optmodels.arrays import Array
from optmodels.batch.static import (
    AlphaRange,
    Batch,
    BatchLatency,
    BatchWorkload,
    Counts,
    Markets,
    MemoryRules,
    PoolChoice,
    PrecisionChoice,
    RealTime,
    SeveralCounts,
    Splits,
    StaticBatch,
    Strategies,
    price_source,
    select_machines,
    with_prices,
)
from optmodels.catalog import geography
from optmodels.catalog.spelling import unknown_gpu, unknown_llm
from optmodels.catalog.types import AnyLlm, Architecture, Entry, Gpu, Machine, Market, OwnGpus, spelled
from optmodels.engine.continuous import EngineLimits, LatencyLimit, Stage, latency_limit
from optmodels.engine.continuous import Percentile as Percentile
from optmodels.engine.costs import ONE_OF_STATIC, AttentionRanks, ModelOnEngines, check_speculation, written_out
from optmodels.engine.spelling import NamedModel
from optmodels.engine.stages import DeploymentStages, Link
from optmodels.errors import Mistake, Mistakes
from optmodels.io.read import read_document, read_model, validate
from optmodels.latency.calibration import Calibration
from optmodels.latency.memory import runtime_gib
from optmodels.latency.resolve import ModelChoice, Safety, Source, StatedEngine, llm_name, read_source
from optmodels.latency.strategies import FAMILIES, Family, Variant
from optmodels.limits import ELEMENT, Limit, Price, either
from optmodels.problem import Problem
from optmodels.traces.buckets import BucketRequests, CutTrace, bucket_trace
from optmodels.traces.pieces import Pieces, without_dominated
from optmodels.traces.types import Label, Routing
from optmodels.traces.types import Trace as Requests
from optmodels.units import (
    BudgetUsdPerHour,
    Fraction,
    PositiveFraction,
    PositiveInt,
    RequestsPerSecond,
    Seconds,
    Tokens,
    TokensPerSecond,
)

LEAST_LOAD = 1e-3
SAME_RATE = 1e-6  # relative, by which the mean of a bucket's rates over the pieces may miss its rate
LoadLevel = Annotated[PositiveFraction, Field(ge=LEAST_LOAD)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=0)]
Goal = Literal["min_cost", "max_ce", "max_served"]
Name = Annotated[str, Field(min_length=1, max_length=100)]


Bounds = tuple[Count, PositiveInt | None]
Quality = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class Bucket(Entry):
    """Requests of one length: their own rate, or a share of the workload's."""

    name: str = Field(default="", max_length=100, description="name; default: input x output tokens, such as 1024x256")
    input_tokens: Tokens | None = Field(default=None, description="mean prompt tokens")
    output_tokens: Tokens | None = Field(default=None, description="mean output tokens")
    requests_per_s: RequestsPerSecond | None = Field(default=None, description="rate of the bucket; or share")
    share: Fraction | None = Field(
        default=None, description="share of the workload's requests_per_s; or a rate of its own"
    )
    longest_tokens: Tokens | None = Field(
        default=None,
        description="input and output tokens of the longest request, which engines must admit; default: unknown",
    )
    input_bounds: Bounds | None = Field(
        default=None,
        description="prompt tokens of the requests that belong here, [above, up to]; default: nearest means",
    )
    output_bounds: Bounds | None = Field(
        default=None, description="output tokens of the requests that belong here, [above, up to]"
    )
    rates: tuple[Rate, ...] | None = Field(
        default=None, description="requests/s in each of the workload's pieces; default: the rate of the bucket in all"
    )

    @property
    def bounds(self) -> tuple[float, float, float, float] | None:
        """Prompt above and up to, answer above and up to; None: it has none."""
        if self.input_bounds is None and self.output_bounds is None:
            return None
        both = (*(self.input_bounds or (0, None)), *(self.output_bounds or (0, None)))
        low_in, high_in, low_out, high_out = (float("inf") if x is None else float(x) for x in both)
        return low_in, high_in, low_out, high_out

    @model_validator(mode="after")
    def _consistent(self) -> Bucket:
        if (self.requests_per_s is None) == (self.share is None):
            raise ValueError("exactly one of requests_per_s and share")
        if not self.name and (self.input_tokens is None or self.output_tokens is None):
            raise ValueError("a name, or input_tokens and output_tokens")
        return self

    @property
    def label(self) -> str:
        """Its name in plans and messages."""
        return self.name or f"{self.input_tokens}x{self.output_tokens}"


class FleetSlo(Entry):
    """Limits of one workload: a number bounds the mean, ``{at_most: 1.0, percentile: 0.95}`` a percentile.

    TTFT and the deadline include waiting; TPOT has none (requests wait before their first token). `tps` is the
    throughput of one deployment at its batch, as in LLM-Pilot eq 6; continuous batching has no such batch.
    """

    ttft_s: Annotated[LatencyLimit | None, latency_limit("TTFT", off=None)] = Field(
        default=None, description="time to the first token, waiting included"
    )
    tpot_s: Annotated[LatencyLimit | None, latency_limit("TPOT", off=None)] = Field(
        default=None,
        validation_alias=either("tpot_s"),
        description="time per output token (TPOT); percentiles with serving: continuous",
    )
    itl_s: Annotated[LatencyLimit | None, latency_limit("ITL", off=None)] = Field(
        default=None,
        description="time between two output tokens, pauses for others' prompts included (serving: continuous); its "
        "percentile is of all such times of the workload's requests together",
    )
    tps: Annotated[TokensPerSecond | None, Limit("throughput of a deployment", "least", "tokens/s")] = Field(
        default=None, description="tokens/s of one deployment at its batch (serving: static; LP 6)"
    )
    deadline_s: Annotated[LatencyLimit | None, latency_limit("time of a request", off=None)] = Field(
        default=None, description="end-to-end time of a request, waiting included"
    )


class SoftSlo(Entry):
    """The SLO may be missed by a factor of at most `up_to`, at a price; measured points always keep it."""

    usd_per_1000_requests: Positive = Field(description="price of a request that misses the SLO")
    up_to: Annotated[float, Field(gt=1, le=100, allow_inf_nan=False)] = Field(
        default=2.0, description="factor by which soft limits may be missed"
    )


class ModelOption(NamedModel):
    """A model at a precision that may answer a workload's requests, and the user's quality score."""

    name: str = Field(default="", max_length=100, description="name in plans; default: model and precision")
    model: AnyLlm = Field(description="name of the catalogue, or the model's shape")
    precision: PrecisionChoice = PrecisionChoice()
    quality: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = Field(
        default=None, description="your quality score of its answers, on any scale; the toolkit has none"
    )

    @property
    def label(self) -> str:
        """Its name in plans and messages."""
        kv = "" if self.precision.kv == "fp16" else f", {self.precision.kv} KV cache"
        return self.name or f"{llm_name(self.model) or 'model'} {self.precision.weights}{kv}"


class FleetWorkload(NamedModel):
    """One workload: its model or models, requests, latency limits and weight."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^/]+$", description="without /")]
    model: AnyLlm | None = Field(default=None, description="the model; not needed with measured points")
    precision: PrecisionChoice = PrecisionChoice()
    models: tuple[ModelOption, ...] | None = Field(
        default=None, description="models that may answer its requests, in place of model and precision"
    )
    quality_at_least: Annotated[Quality | None, Limit("quality of {owner}", "least")] = Field(
        default=None, description="least mean score of answered requests, in every period; the models need scores"
    )
    requests_per_s: RequestsPerSecond | None = Field(
        default=None, description="rate of all buckets together, if they have shares"
    )
    prefix_hit_share: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = Field(
        default=0.0, description="share of prompt tokens found in the prefix cache (serving: continuous)"
    )
    buckets: tuple[Bucket, ...] | None = Field(default=None, description="requests by length; or trace")
    trace: TraceFile | None = Field(default=None, description="request trace to cut into buckets; or buckets")
    requests: BucketRequests | None = Field(
        default=None, description="requests that the buckets were cut from, as a result writes it; replays send them"
    )
    pieces: Pieces | None = Field(
        default=None,
        description="pieces of even rates of its trace, as a result writes it; one fleet must carry each",
    )
    slo: FleetSlo = Field(default=FleetSlo(), description="latency limits")
    soft: SoftSlo | None = Field(
        default=None, description="limits that may be missed at a price; default: the SLO always holds"
    )
    weight: Positive = Field(default=1.0, description="weight of its requests in max_served")
    priority: Annotated[int, Field(strict=True, ge=1, le=9)] = Field(
        default=1, description="priority in max_served; 1 is served first"
    )
    serve_at_least: Annotated[
        Fraction | None, Limit("served share", "least", "%", off=0.0, implied=lambda p, w: p.served_unless_said(w))
    ] = Field(default=None, description="share of requests that must be served; default: 1 for min_cost, 0 otherwise")
    unserved_usd_per_1000_requests: Rate = Field(
        default=0.0, description="price of a refused request; above 0 requests may be refused"
    )
    min_replicas: Annotated[Count, Limit("deployments for {owner}", "least", off=0)] = Field(
        default=0,
        description="least number of deployments in every period that can serve one of its buckets with requests, or "
        "any bucket if it has none; with disaggregated prefill and decode it holds for each stage",
    )
    spot_share_max: Annotated[Fraction, Limit("share of {owner} on spot", "most", "%", off=1.0)] = Field(
        default=1.0,
        description="largest share of every bucket's requests on spot machines; with disaggregated "
        "prefill and decode, for each stage",
    )

    @model_validator(mode="after")
    def _one_source(self) -> FleetWorkload:
        if (self.buckets is None) == (self.trace is None):
            raise ValueError("exactly one of buckets and trace")
        if self.buckets is not None:
            labels = [b.label for b in self.buckets]
            if not labels:
                raise ValueError("at least one bucket")
            twice = next((n for n in labels if labels.count(n) > 1), None)
            if twice is not None:
                raise ValueError(f"each bucket once: {twice!r} is there twice")
            if any(b.share is not None for b in self.buckets) and self.requests_per_s is None:
                raise ValueError("requests_per_s of the workload, of which the buckets have shares")
        if self.requests is not None:
            if self.buckets is None:
                raise ValueError("requests only beside the buckets that were cut from them")
            if max(self.requests.bucket) >= len(self.buckets):
                raise ValueError(f"requests.bucket below {len(self.buckets)}, the number of buckets")
        long = {len(b.rates) for b in self.buckets or () if b.rates is not None}
        if long and (self.pieces is None or long != {len(self.pieces.seconds)}):
            raise ValueError("rates of a bucket only beside pieces, one for each")
        if self.pieces is not None and self.buckets is None:
            raise ValueError("pieces only beside buckets: a trace is cut into its own")
        for b in self.buckets or ():
            if b.rates is not None and self.pieces is not None:
                mean = np.average(b.rates, weights=self.pieces.seconds)
                if b.requests_per_s is None or abs(mean - b.requests_per_s) > SAME_RATE * mean:
                    raise ValueError(f"rates of {b.label} whose mean over the pieces is its requests_per_s ({mean:g})")
        if self.requests_per_s is not None and not any(b.share is not None for b in self.buckets or ()):
            raise ValueError("requests_per_s only where buckets have shares of it: other demand has rates of its own")
        return self

    @model_validator(mode="after")
    def _one_choice(self) -> FleetWorkload:
        if self.models is None:
            if self.quality_at_least is not None:
                raise ValueError("models, each with its quality, where quality_at_least is given")
            return self
        if self.model is not None or self.precision != PrecisionChoice():
            raise ValueError("either models, each with its precision, or model and precision")
        if not self.models:
            raise ValueError("at least one of models")
        labels = [m.label for m in self.models]
        twice = next((n for n in labels if labels.count(n) > 1), None)
        if twice is not None:
            raise ValueError(f"each of models once, or by names of their own: {twice!r} is there twice")
        if self.quality_at_least is not None and any(m.quality is None for m in self.models):
            raise ValueError("quality of every one of models where quality_at_least is given")
        return self

    @property
    def accepts(self) -> tuple[ModelOption, ...]:
        """The models that may answer its requests; none where points are measured."""
        if self.models is not None:
            return self.models
        return () if self.model is None else (ModelOption(model=self.model, precision=self.precision),)


class StockLine(Entry):
    """A limit on machines by patterns of name, GPU and region, and by market (none: all markets together)."""

    machine: Name = Field(default="*", description="pattern of machine names")
    gpu: Annotated[Name, spelled("gpu")] = Field(
        default="*", description="GPU of the machine, as the catalogue names it"
    )
    region: str = Field(default="*", description="pattern of regions")
    market: Market | None = Field(default=None, description="default: all markets together")
    at_most: Annotated[Count, Limit("{list} of {owner}", "most", "{unit}", off=ELEMENT)] = Field(
        description="largest number"
    )
    unit: Literal["machines", "gpus", "vcpus"] = Field(default="machines", description="unit of the limit")

    @property
    def label(self) -> str:
        """Its name in plans and messages."""
        where = "" if self.region == "*" else f" in {self.region}"
        machine = "all machines" if self.machine == "*" else self.machine
        what = machine if self.gpu == "*" else self.gpu if self.machine == "*" else f"{self.machine} ({self.gpu})"
        return f"{what}{where}{'' if self.market is None else f' ({self.market})'}"


class Interruption(Entry):
    """Rate of spot interruptions, and time until a replacement serves."""

    machine: Name = Field(default="*", description="pattern of machine names")
    region: str = Field(default="*", description="pattern of regions")
    per_hour: Rate = Field(description="interruptions of a machine per hour")
    recovery_s: Seconds = Field(default=600.0, description="time until the replacement serves")


class Reserve(Entry):
    """Capacity held against losing deployments, per pool of equal machine sets serving one model, or measured point.

    Either every pool keeps its load after losing any `lost` deployments (N−k), spot or all as `machines` states. Or
    every used pool on spot keeps it with a probability so high that all do together with at least
    `survive_probability` (union bound over at most `pools` used pools; losses by `interruptions`).
    """

    lost: Annotated[int, Field(strict=True, ge=1, le=20)] | None = Field(
        default=None, description="number of deployments that any pool may lose; or survive_probability"
    )
    survive_probability: Annotated[float, Field(gt=0.5, lt=1, allow_inf_nan=False)] | None = Field(
        default=None, description="probability that all pools keep their load; or lost"
    )
    pools: PositiveInt = Field(default=4, description="most pools in use, over which the probability is split")
    machines: Literal["spot", "all"] = Field(
        default="all", description="deployments whose loss counts; default with survive_probability: spot"
    )
    load_after_loss: Annotated[PositiveFraction, Limit("load after a loss", "most", "%", off=1.0)] = Field(
        default=1.0, description="largest utilisation of the surviving deployments"
    )

    @model_validator(mode="before")
    @classmethod
    def _only_spot_is_interrupted(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("survive_probability") is not None:
            return {"machines": "spot", **data}
        return data

    @model_validator(mode="after")
    def _one_kind(self) -> Reserve:
        if (self.lost is None) == (self.survive_probability is None):
            raise ValueError("exactly one of lost and survive_probability")
        if self.survive_probability is not None and self.machines != "spot":
            raise ValueError("machines: spot with survive_probability, because only spot machines are interrupted")
        return self


class RunningDeployment(Entry):
    """Running machines."""

    machine: Name = Field(description="machine of the pool")
    region: str = Field(default="", description="region, as the pool names it")
    market: Market = Field(default="on_demand", description="market of the machines")
    count: PositiveInt = Field(description="number of running machines")


class FleetChange(Entry):
    """Costs and limits of starting and stopping machines, from the running fleet and between periods."""

    start_usd: Rate = Field(default=0.0, description="cost of starting a machine")
    stop_usd: Rate = Field(default=0.0, description="cost of stopping a machine")
    max_starts: Annotated[Count | None, Limit("machines started", "most")] = Field(
        default=None, description="most machines started per period change"
    )
    max_stops: Annotated[Count | None, Limit("machines stopped", "most")] = Field(
        default=None, description="most machines stopped per period change"
    )
    horizon_hours: Positive = Field(
        default=24.0, description="time over which a change of a one-period plan is paid off"
    )


class Period(Entry):
    """A part of the day with its own rates; the day repeats."""

    name: Name = Field(description="name in plans")
    hours: Positive = Field(description="length of the period")
    rate_factor: Rate = Field(default=1.0, description="factor on all rates")
    rate_factors: dict[str, Rate] = Field(default={}, description="factor by workload, in place of rate_factor")


class Queueing(Entry):
    """Waiting before a deployment's batch slots, by Allen–Cunneen: load levels that keep percentiles."""

    model: Literal["none", "mdc", "mmc", "ggc"] = Field(default="none", description="waiting formula; none: no waiting")
    arrival_scv: Rate = Field(default=1.0, description="squared coefficient of variation between arrivals (ggc)")
    service_scv: Rate = Field(
        default=1.0, description="squared coefficient of variation of the service time within a bucket (ggc)"
    )
    load_levels: tuple[LoadLevel, ...] = Field(
        default=(0.3, 0.5, 0.7, 0.8, 0.9, 0.95),
        min_length=1,
        description="utilisations of a slot to choose from",
    )
    service_classes: Annotated[int, Field(strict=True, ge=1, le=16)] = Field(
        default=3, description="number of upper limits on the service time of buckets that share a deployment"
    )


class FleetStrategies(Splits):
    """Strategies and batches to choose from; counts as in the cost-efficiency problem, but few by default.

    No engine offloads a share of the KV cache at every step, or attention: LLM-Pilot's families are there to be asked
    for.
    """

    families: Annotated[tuple[Family, ...], Limit("strategies", "among", full=FAMILIES)] = Field(
        default=("high_end",), min_length=1, description="strategies to run a batch (serving: static)"
    )
    batches: tuple[PositiveInt, ...] = Field(
        default=(1, 4, 16, 64), min_length=1, description="batch sizes to choose from (serving: static)"
    )
    replicas: Annotated[Counts, Field(min_length=1)] | None = Field(
        default=(1,), description="numbers of machines that share the batch"
    )
    multi_pass: SeveralCounts | None = Field(default=(2, 4), description="numbers of passes k")
    parallel: SeveralCounts | None = Field(default=(2, 4), description="numbers of machine pairs K")
    shared: SeveralCounts | None = Field(
        default=(2, 4), description="numbers of machines N that share an offload machine"
    )
    tensor_parallel: tuple[PositiveInt, ...] = Field(
        default=(1, 2, 4, 8, 16), description="GPUs per replica, or attention rank, to choose from"
    )
    attention_ranks: AttentionRanks = (1,)
    alpha: AlphaRange = AlphaRange()


class FleetLatency(Entry):
    """Latency model of the operating points."""

    variant: Variant = Field(
        default="roofline", description="formulas of static batches: the paper's, or with every term of the roofline"
    )
    calibration: str | Calibration | None = Field(
        default=None, description="calibration of static batches: a catalogue name, a YAML file or the coefficients"
    )
    model: ModelChoice | None = Field(
        default=None, description="latency model of engine steps; default: default with serving: continuous, else none"
    )
    engine: StatedEngine = Field(default="vllm", description="engine that deployments run")
    safety: Safety = None

    @model_validator(mode="after")
    def _consistent(self) -> FleetLatency:
        levelled = self.model not in (None, "roofline")
        if self.safety is not None and self.model == "roofline":
            raise ValueError("a measured model with safety: the error of the roofline is unknown")
        if levelled and self.calibration is not None:
            raise ValueError("either a model or a calibration: each says how long things take")
        if levelled and self.variant != "roofline":
            raise ValueError(f"variant: roofline beside a model, whose curves it corrects (not {self.variant})")
        return self


class FleetPoint(Entry):
    """One measured deployment: its cost, and the requests/s within the SLO of each demand alone.

    One that only prefills has prompts/s within TTFT, with sending their KV caches; one that only decodes has answers/s
    within TPOT, with joining its batch. Both rates are as measured: the link is not computed.
    """

    name: Name = Field(description="name in plans")
    usd_per_hour: Annotated[Positive | None, Price(off=ELEMENT)] = Field(
        default=None, description="price of the deployment; or machine and market"
    )
    machine: str = Field(default="", description="machine of the pool; or usd_per_hour")
    region: str = Field(default="", description="region of the machine, if the pool has several")
    market: Market = Field(default="on_demand", description="market of the machine's price")
    count: PositiveInt = Field(default=1, description="number of machines of a deployment")
    slots: PositiveInt = Field(default=1, description="concurrent requests (for queueing)")
    tp: PositiveInt | None = Field(default=None, description="GPUs of a replica (tensor parallel), for the exports")
    replicas_per_machine: PositiveInt | None = Field(default=None, description="replicas on a machine, for the exports")
    stage: Stage = Field(default="both", description="stages of a request; one of deployment.stages")
    model: str | None = Field(default=None, description="model that it loads, by its name in the workloads' models")
    requests_per_s: dict[str, Rate] = Field(
        description="requests/s by demand (workload/bucket); 0 or absent: cannot serve it"
    )


Stretch = Annotated[float, Field(ge=1, le=10, allow_inf_nan=False)]


class FleetCertification(Entry):
    """Certification of plans: solve, simulate every chosen engine, cut off violated SLOs, solve again."""

    confidence: Annotated[float, Field(ge=0.5, lt=1, allow_inf_nan=False)] = Field(
        default=0.95, description="joint confidence that all SLOs of a certified plan hold in simulation"
    )
    stretch: Stretch | Annotated[tuple[Stretch, ...], Field(min_length=1, max_length=8)] = Field(
        default=(1.4, 2.0, 3.0),
        description="factors by which latency limits are relaxed in the model, one after the other; the simulation "
        "keeps the stated limits",
    )
    rounds: Annotated[int, Field(strict=True, ge=1, le=50)] = Field(
        default=12, description="most solves with the stated limits, and again with relaxed ones"
    )
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**31)] = Field(
        default=0, description="random seed of the simulated requests"
    )
    draws: Annotated[int, Field(strict=True, ge=1, le=100)] = Field(
        default=3,
        description="times that the requests of a trace are sent to engines at random; every SLO has to hold each time",
    )

    @property
    def stretches(self) -> tuple[float, ...]:
        """Of the limits in the model of each pass: none, then as many times as listed."""
        listed = self.stretch if isinstance(self.stretch, tuple) else (self.stretch,)
        return tuple(sorted({1.0, *listed}))


class Melange(Entry):
    """Mélange's own configuration, and its slice factor for the `melange` method."""

    file: str | None = Field(default=None, description="Mélange's JSON file, in place of workloads and pool")
    slice_factor: Annotated[int, Field(strict=True, ge=1, le=64)] | None = Field(
        default=None, description="slices per bucket; default: the file's"
    )


class HitRow(Entry):
    """One measured share, as ``optmodels prefix-hits`` writes it."""

    workload: str | None = Field(default=None, description="workload of the prompts; default: every workload's")
    engines: PositiveInt = Field(description="number of engines that the requests were split over")
    kv_tokens: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(description="size of each engine's cache")
    share: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = Field(
        description="share of prompt tokens found in the cache"
    )


class PrefixCache(Entry):
    """Prefix-cache hits of prompts, by cache size and number of engines."""

    hits: str | tuple[HitRow, ...] = Field(description="file of optmodels prefix-hits, or its rows")
    engines: PositiveInt = Field(
        description="most engines that serve a workload of the table; shares measured with at most this number count"
    )
    routing: Routing | None = Field(
        default=None,
        description="routing of requests to engines that the shares were measured with; default: the file's, or any",
    )
    kept: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = Field(
        default=0.5,
        description="share of the KV cache for idle prompts; running requests have the rest",
    )


class Fleet(Problem):
    """Many workloads, one bill: integer counts of deployments and the share of each workload on each."""

    formulation: Literal["fleet"] = Field(description="formulation of the file")
    objective: Goal = Field(
        default="min_cost",
        description="min_cost: least expensive; max_ce: most tokens per USD; max_served: most "
        "requests served within a budget",
    )
    workloads: tuple[FleetWorkload, ...] = Field(default=(), description="workloads to serve")
    gpus: OwnGpus = {}
    pool: PoolChoice | tuple[PoolChoice, ...] | None = Field(
        default=None, description="machines to choose from; a list of pools joins several clouds or regions"
    )
    markets: Markets = Markets()
    strategies: FleetStrategies = FleetStrategies()
    serving: Literal["static", "continuous"] = Field(
        default="static",
        description="static: batches of one size that start and end together; continuous: engines with continuous "
        "batching; required unless points are measured",
    )
    engine: EngineLimits = Field(default=EngineLimits(), description="engine limits, with serving: continuous")
    certify: Literal["none", "replay"] = Field(
        default="none",
        description="replay: plan with simulated latencies, so that every SLO holds on the step simulator",
    )
    certification: FleetCertification = FleetCertification()
    deployment: DeploymentStages = Field(
        default=DeploymentStages(), description="stages of deployments, with serving: continuous or measured points"
    )
    prefix_cache: PrefixCache | None = Field(
        default=None, description="measured prefix-cache hits, with serving: continuous"
    )
    latency: FleetLatency = FleetLatency()
    memory: MemoryRules = MemoryRules()
    points: tuple[FleetPoint, ...] | None = Field(
        default=None, description="measured deployments in place of the latency model"
    )
    points_table: str | None = Field(default=None, description="CSV or Parquet: a point per row, a column per demand")
    melange: Melange = Melange()
    queueing: Queueing = Queueing()
    max_load: Annotated[LoadLevel, Limit("load of a deployment", "most", "%", off=1.0, tight=LEAST_LOAD)] = Field(
        default=1.0, description="largest utilisation of a deployment, without queueing"
    )
    budget_usd_per_hour: Annotated[BudgetUsdPerHour | None, Limit("budget", "most", "USD/h")] = Field(
        default=None, description="most USD/h for all machines together"
    )
    stock: tuple[StockLine, ...] = Field(default=(), description="stock of each matching machine and region separately")
    quota: tuple[StockLine, ...] = Field(default=(), description="quota of all matching machines together")
    interruptions: tuple[Interruption, ...] = Field(default=(), description="interruption rates of spot machines")
    reserve: Annotated[
        Reserve | None,
        Limit("deployments a pool can lose", "least", inner="lost", tight=20),
        Limit(
            "chance that all pools keep their load", "least", "%", inner="survive_probability", top=0.5, tight=1 - 1e-6
        ),
    ] = Field(default=None, description="reserve capacity against losses")
    running: tuple[RunningDeployment, ...] | None = Field(
        default=None, description="running machines; default: unknown, and the first starts cost nothing"
    )
    change: FleetChange = FleetChange()
    periods: tuple[Period, ...] = Field(default=(), description="parts of the day; default: one period without end")
    scenarios: Scenarios | None = Field(
        default=None, description="random demand and slow machines that the plan is made for"
    )

    def resolve(self) -> FleetCase:
        """Look up models, machines, traces and measured points.

        Raises:
            InputError: every unknown name, every contradiction, each with its path.
        """
        if self._resolved is None or self._resolved.problem is not self:
            self._resolved = _resolve(self)
        return self._resolved

    def served_unless_said(self, w: FleetWorkload) -> float:
        """Share of every bucket that must be served where `serve_at_least` is not given."""
        return 1.0 if self.objective == "min_cost" and not w.unserved_usd_per_1000_requests else 0.0

    @property
    def continuous(self) -> bool:
        """Whether deployments batch continuously."""
        return self.serving == "continuous"

    _resolved: FleetCase | None = None

    def own_trace(self) -> Requests | None:
        """The requests of the busiest period one by one; None unless every workload was cut from a trace."""
        return self.resolve().trace

    def inline(self) -> Fleet:
        """The same problem with catalogue entries, traces and measured points written out."""
        case = self.resolve()
        workloads = tuple(
            w.model_copy(update={
                **_models_written_out(w, case), "trace": None, "requests_per_s": None, "buckets": _written_out(w, case),
                "requests": case.requests.get(w.name), "pieces": case.pieces_of.get(w.name),
            })
            for w in case.workloads
        )  # fmt: skip
        update: dict[str, object] = {
            "workloads": workloads, "gpus": dict(case.gpus), "engine": written_out(self.engine),
        }  # fmt: skip
        if self.prefix_cache is not None:
            update["prefix_cache"] = self.prefix_cache.model_copy(update={"hits": case.hits, "routing": case.routing})
        if case.machines:
            update["pool"] = PoolChoice(machines=case.machines, price_source=case.price_source)
        model = self.latency.model if case.source is None else case.source.documents
        update["latency"] = self.latency.model_copy(update={"calibration": case.calibration, "model": model})
        if case.points is not None and sum(len(q.requests_per_s) for q in case.points) <= MAX_INLINE:
            update |= {"points": case.points, "points_table": None}
            update["melange"] = self.melange.model_copy(update={"file": None, "slice_factor": case.slice_factor})
        copy = self.model_copy(update=update)
        copy._resolved, copy._folder = None, self._folder
        return copy


def _models_written_out(w: FleetWorkload, case: FleetCase) -> dict[str, Any]:
    """A workload's model, or those it accepts, by their shapes."""
    found = case.accepted.get(w.name, ())
    if case.points is not None and w.models is not None:  # their names are all that points refer to
        return {"models": tuple(m.model_copy(update={"name": m.label}) for m in w.models)}
    if w.models is None:
        return {"model": found[0] if found else None}
    return {"models": tuple(
        m.model_copy(update={"name": m.label, "model": a}) for m, a in zip(w.models, found, strict=True)
    )}  # fmt: skip


def _written_out(w: FleetWorkload, case: FleetCase) -> tuple[Bucket, ...]:
    """A workload's buckets with rates of their own; a trace's buckets as found."""
    if w.buckets is None:
        return tuple(
            Bucket(
                name=d.bucket, input_tokens=d.input_tokens, output_tokens=d.output_tokens,
                requests_per_s=d.base_requests_per_s, longest_tokens=d.longest_tokens or None,
                input_bounds=d.input_bounds, output_bounds=d.output_bounds, rates=d.rates,
            )
            for d in case.demands if d.workload == w.name
        )  # fmt: skip
    whole = w.requests_per_s or 0.0
    return tuple(
        b if b.share is None else b.model_copy(update={"share": None, "requests_per_s": b.share * whole})
        for b in w.buckets
    )


MAX_INLINE = 200_000  # measured throughputs beyond which a result keeps the reference to its table


NO_REQUESTS = 1e-12  # requests/s: the weight of a bucket that has none


@dataclass(frozen=True)
class Demand:
    """One bucket of one workload."""

    workload: str
    bucket: str
    input_tokens: int | None
    output_tokens: int | None
    base_requests_per_s: float
    requests_per_s: tuple[float, ...]  # by period
    longest_tokens: int = 0  # of a request, if longer than the mean
    input_bounds: Bounds | None = None
    output_bounds: Bounds | None = None
    rates: tuple[float, ...] | None = None  # in the pieces of its workload; None: its base rate

    @property
    def bounds(self) -> tuple[float, float, float, float] | None:
        """Lengths of the requests that belong here: prompt above and up to, answer above and up to."""
        return Bucket(name="of", share=0.0, input_bounds=self.input_bounds, output_bounds=self.output_bounds).bounds

    @property
    def name(self) -> str:
        """``workload/bucket``."""
        return f"{self.workload}/{self.bucket}"

    @property
    def has_requests(self) -> bool:
        """Whether requests arrive in any period."""
        return max(self.requests_per_s) > 0

    @property
    def weight(self) -> float:
        """Its largest rate, by which it counts in means over buckets; without requests next to nothing."""
        return max(*self.requests_per_s, NO_REQUESTS)

    @property
    def tokens(self) -> int:
        """Tokens of a request; 1 where lengths are unknown (measured points need none)."""
        return (self.input_tokens or 0) + (self.output_tokens or 0) or 1


@dataclass(frozen=True)
class FleetCase:
    """A problem with every reference resolved; what tables are built from."""

    problem: Fleet
    workloads: tuple[FleetWorkload, ...]
    demands: tuple[Demand, ...]
    accepted: Mapping[str, tuple[Architecture, ...]]  # by workload, as its `accepts`
    machines: tuple[Machine, ...]
    gpus: Mapping[str, Gpu]
    calibration: Calibration | None
    points: tuple[FleetPoint, ...] | None
    periods: tuple[Period, ...]
    slice_factor: int
    source: Source | None = None  # of engines' step latencies, with serving: continuous
    hits: tuple[HitRow, ...] = ()  # of `prefix_cache`
    routing: Routing | None = None  # routing that the shares were measured with; None: unknown
    requests: Mapping[str, BucketRequests] = field(default_factory=dict)  # by workload, where they are known
    pieces_of: Mapping[str, Pieces] = field(default_factory=dict)  # pieces of the trace, by workload
    whole: Mapping[str, CutTrace] = field(default_factory=dict)  # traces, if `requests` has only the busiest stretch
    notes: tuple[str, ...] = ()  # allowed settings that are seldom meant
    draws: Draws | None = None  # of `scenarios`

    @property
    def price_source(self) -> str:
        """Source and date of the machines' prices; empty if the instance does not state them."""
        pool = self.problem.pool or ()
        markets = self.problem.markets.bought(self.problem.strategies.families)
        said = [price_source(p, markets) for p in (pool if isinstance(pool, tuple) else (pool,))]
        return "; ".join(dict.fromkeys(filter(None, said)))

    @property
    def without_flops(self) -> str:
        """GPUs of the pool whose 16-bit peak is not published, in brackets; empty if there are none."""
        names = sorted({m.gpu for m in self.machines if m.gpu and self.gpus[m.gpu].fp16_flops is None})
        return f" (no FLOP/s are published of {', '.join(names)})" if names else ""

    @cached_property
    def _by_name(self) -> dict[str, FleetWorkload]:
        return {w.name: w for w in self.workloads}

    def workload(self, name: str) -> FleetWorkload:
        """A workload by name."""
        return self._by_name[name]

    @cached_property
    def pieces(self) -> tuple[Array, Array]:
        """Stretches of even rates that one fleet has to carry: their seconds, (K,), and rates over the mean, (K, W).

        Where several workloads have traces, a piece ends where one of any does. A trace that ends before the others
        goes on at the largest rates of its pieces. Without traces there is one piece, at the mean.
        """
        ends = {name: np.cumsum(x.seconds) for name, x in self.pieces_of.items()}
        if not ends:
            return np.ones(1), np.ones((1, len(self.demands)))
        every = np.unique(np.round(np.concatenate(list(ends.values())), 6))
        begins = np.concatenate(([0.0], every[:-1]))
        factors = np.ones((len(every), len(self.demands)))
        for w, d in enumerate(self.demands):
            if d.rates is not None and d.base_requests_per_s > 0:
                at = np.searchsorted(np.round(ends[d.workload], 6), begins, side="right")
                of = np.array([*d.rates, max(d.rates)]) / d.base_requests_per_s
                factors[:, w] = of[at]
        return every - begins, factors

    @cached_property
    def peaks(self) -> Array:
        """Rates over the mean of the pieces that no other one exceeds in every demand, (K, W)."""
        _, factors = self.pieces
        return factors[without_dominated(factors)]

    @property
    def requests_in_words(self) -> str:
        """``its own 23,725 requests``, or how many of how many."""
        each = dict.fromkeys(x.in_words() for x in self.requests.values())
        return "its own " + " and ".join(each)

    @cached_property
    def most_over_mean(self) -> dict[str, float]:
        """Largest rate of every demand over its mean."""
        return dict(zip((d.name for d in self.demands), self.peaks.max(axis=0).tolist(), strict=True))

    @cached_property
    def busiest(self) -> int:
        """The period with the most requests."""
        return max(range(len(self.periods)), key=lambda q: sum(d.requests_per_s[q] for d in self.demands))

    @cached_property
    def trace(self) -> Requests | None:
        """The requests one by one as often as they come in the busiest period, labelled ``workload/bucket``.

        Of a long trace its busiest stretch; None unless every workload was cut from a trace.
        """
        return self.trace_in(self.busiest)

    @cached_property
    def whole_trace(self) -> Requests | None:
        """All requests of a trace, if `trace` has only its busiest stretch; else None."""
        if self.trace is None or not self.whole:
            return None
        found = dict(self.requests)
        of = {
            name: (x.whole.arrival_s, x.whole.prompt_tokens, x.whole.output_tokens, x.bucket)
            for name, x in self.whole.items()
        }
        return self._sent(self.busiest, {name: of.get(name) or _columns(x) for name, x in found.items()})

    def trace_in(self, period: int) -> Requests | None:
        """The same in any period."""
        if not self.requests or any(w.name not in self.requests for w in self.workloads):
            return None
        return self._sent(period, {name: _columns(x) for name, x in self.requests.items()})

    def _sent(self, at: int, requests: Mapping[str, tuple[Any, Any, Any, Any]]) -> Requests:
        """Requests by workload (arrival, prompt, answer, bucket) as one trace, as fast as they come in a period."""
        period, names, parts = self.periods[at], [d.name for d in self.demands], []
        for w in self.workloads:
            arrival, prompt, output, bucket = requests[w.name]
            factor = period.rate_factors.get(w.name, period.rate_factor)
            known = [names.index(n) if n in names else -1 for n in self._names(w)]
            when = arrival / factor if factor > 0 else np.full(len(arrival), np.inf)
            parts.append((when, prompt, output, np.array(known, np.int64)[bucket]))
        arrival, prompt, output, code = (np.concatenate(c) for c in zip(*parts, strict=True))
        keep = np.flatnonzero((code >= 0) & np.isfinite(arrival))
        keep = keep[np.argsort(arrival[keep], kind="stable")]
        label = Label(tuple(names), code[keep])
        return Requests("requests", arrival[keep], prompt[keep], output[keep], {"class": label})

    @cached_property
    def lengths(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """Prompt and answer of each request that a demand was cut from, by demand, where they are known."""
        found: dict[str, list[tuple[int, int]]] = {}
        for w in self.workloads:
            if (x := self.requests.get(w.name)) is not None:
                names = self._names(w)
                for bucket, *lengths in zip(x.bucket, x.input_tokens, x.output_tokens, strict=True):
                    found.setdefault(names[bucket], []).append((lengths[0], lengths[1]))
        return {name: tuple(lengths) for name, lengths in found.items()}

    def _names(self, w: FleetWorkload) -> list[str]:
        """``workload/bucket`` of every bucket, also without requests if the file lists it."""
        labels = [b.label for b in w.buckets] if w.buckets else [d.bucket for d in self.demands if d.workload == w.name]
        return [f"{w.name}/{label}" for label in labels]

    @cached_property
    def architectures(self) -> dict[str, Architecture]:
        """Of the workloads that accept one model alone."""
        return {name: found[0] for name, found in self.accepted.items() if len(found) == 1}

    @cached_property
    def by_model(self) -> tuple[FleetCase, ...]:
        """The case as each model at each precision sees it: with the workloads that accept it, and it alone.

        Measured points know models by the names of `models`; a workload without such a list has one more.
        """
        groups: dict[str | None, dict[str, int]] = {}
        for w in self.workloads:
            for i, key in enumerate(self._loadable(w)):
                groups.setdefault(key, {})[w.name] = i
        return tuple(self._under(group) for group in groups.values())

    def _loadable(self, w: FleetWorkload) -> list[str | None]:
        """Key of the models that a workload accepts."""
        if self.points is not None:
            return [None] if w.models is None else [m.label for m in w.models]
        pairs = zip(w.accepts, self.accepted.get(w.name, ()), strict=False)
        return [shape.model_dump_json() + m.precision.model_dump_json() for m, shape in pairs]

    def _under(self, chosen: Mapping[str, int]) -> FleetCase:
        """The case with some workloads, each with one of the models it accepts."""
        workloads = tuple(
            w if w.models is None else w.model_copy(update={
                "model": w.models[i].model, "precision": w.models[i].precision, "models": (w.models[i],),
            }) for w in self.workloads if (i := chosen.get(w.name)) is not None
        )  # fmt: skip
        accepted = {name: self.accepted[name][i : i + 1] for name, i in chosen.items() if name in self.accepted}
        return replace(self, workloads=workloads, accepted=accepted)

    def which(self, workload: str | None, model: str | None) -> int | None:
        """The one of `by_model` that a plan's line loads: a workload, and which of its models if it has a list."""
        return next((k for k, of in enumerate(self._loads) if workload in of and of[workload] == model), None)

    def loading(self, workload: str | None, model: str | None) -> FleetCase:
        """The case as the model that a plan's line loads sees it; the whole one of measured points."""
        k = self.which(workload, model)
        return self if k is None else self.by_model[k]

    @cached_property
    def _loads(self) -> list[dict[str | None, str | None]]:
        return [
            {w.name: None if w.models is None else w.models[0].label for w in case.workloads} for case in self.by_model
        ]

    @property
    def measured_hits(self) -> tuple[str, ...]:
        """Workloads whose hits are measured, and which at most `prefix_cache.engines` engines may serve."""
        named = {row.workload for row in self.hits}
        return tuple(w.name for w in self.problem.workloads if named & {None, w.name})

    def hit_share(self, workload: str, kv_tokens: float) -> float:
        """Least share of a workload's prompts found in the prefix cache of an engine with these KV tokens.

        Taken at the largest measured size that running requests leave; the least over the allowed numbers of engines.
        """
        cache = self.problem.prefix_cache
        if cache is None or workload not in self.measured_hits:
            return self.workload(workload).prefix_hit_share
        mine = [row for row in self.hits if row.workload in (None, workload)]
        counts = sorted({row.engines for row in mine})
        most = next(n for n in counts if n >= cache.engines)
        there = [(row.engines, row.kv_tokens, row.share) for row in mine if row.kv_tokens <= cache.kept * kv_tokens]
        return min(
            max(((size, share) for of, size, share in there if of == n), default=(0.0, 0.0))[1]
            for n in counts if n <= most
        )  # fmt: skip

    def running_kv_tokens(self, workloads: Iterable[str], kv_tokens: float) -> float:
        """Of an engine's KV tokens those for running requests, where these workloads share its model."""
        cache = self.problem.prefix_cache
        kept = 0.0 if cache is None or not set(workloads) & set(self.measured_hits) else cache.kept
        return kv_tokens * (1.0 - kept)

    def serve_at_least(self, w: FleetWorkload) -> float:
        """Share of every bucket that must be served."""
        if w.serve_at_least is not None:
            return w.serve_at_least
        return self.problem.served_unless_said(w)

    def on_engines(self, w: FleetWorkload, prompt_tokens: float = 1.0, request_tokens: float = 1.0) -> ModelOnEngines:
        """A workload's only model as engines serve it, for mean prompts and shortest requests of so many tokens."""
        assert self.source is not None
        p, shape = self.problem, self.architectures[w.name]
        return ModelOnEngines(
            self.source, p.latency.safety, shape if w.model is None else w.model, shape, w.precision.weights,
            w.precision.kv, p.memory.vram_usable, runtime_gib(p.memory.runtime_gib, p.latency.safety, shape.routed),
            prompt_tokens, request_tokens,
        )  # fmt: skip

    @property
    def static_latency(self) -> BatchLatency:
        """The section that the serving of one bucket in static batches has."""
        latency, source = self.problem.latency, None if self.problem.continuous else self.source
        return BatchLatency(
            model=None if source is None else source.documents, engine=latency.engine, variant=latency.variant,
            calibration=self.calibration, safety=None if self.problem.continuous else latency.safety,
        )  # fmt: skip

    def single(
        self, workload: FleetWorkload, demand: Demand, region: str | None, batch: int, slack: float = 1.0
    ) -> StaticBatch:
        """The serving of one bucket at one batch in one region (None: the whole pool).

        Its limits leave out waiting; `slack` multiplies the latency limits (soft SLOs).
        """
        p, slo = self.problem, workload.slo
        lengths = BatchWorkload(
            batch=batch, input_tokens=demand.input_tokens or 1, output_tokens=demand.output_tokens or 1
        )
        tokens = batch * (lengths.input_tokens + lengths.output_tokens)
        tps = max(slo.tps or 0.0, tokens / (_seconds(slo.deadline_s) or 1e9)) / slack
        latencies = {"ttft_s": _seconds(slo.ttft_s), "tpot_s": _seconds(slo.tpot_s)}
        limits: RealTime | Batch
        if any(v is not None for v in latencies.values()):
            limits = RealTime(kind="real_time", tps=tps, **{k: (v or 1e9) * slack for k, v in latencies.items()})
        else:
            limits = Batch(kind="batch", tps=tps)
        s = p.strategies
        machines = tuple(m for m in self.machines if region is None or m.region == region)
        one = StaticBatch(
            formulation="fleet", schema_version=1, model=self.architectures[workload.name],
            precision=workload.precision, workload=lengths, slo=limits, gpus=dict(self.gpus),
            pool=PoolChoice(machines=machines), markets=p.markets,
            strategies=Strategies(
                families=s.families, replicas=s.replicas, multi_pass=s.multi_pass, parallel=s.parallel,
                shared=s.shared, tensor_parallel=s.tensor_parallel, alpha=s.alpha,
            ),
            latency=self.static_latency, memory=p.memory,
        )  # fmt: skip
        one._folder = p._folder
        return one


def _columns(x: BucketRequests) -> tuple[Any, Any, Any, Any]:
    """Arrival, prompt, answer and bucket of every request, as arrays."""
    return (np.array(x.arrival_s), np.array(x.input_tokens, np.int64), np.array(x.output_tokens, np.int64),
            np.array(x.bucket, np.int64))  # fmt: skip


def _seconds(limit: LatencyLimit | None) -> float | None:
    return limit.at_most if isinstance(limit, Percentile) else limit


def _resolve(p: Fleet) -> FleetCase:
    wrong = Mistakes()

    workloads, points, slice_factor = p.workloads, p.points, p.melange.slice_factor or 4
    if p.melange.file is not None:
        if workloads or points or p.points_table or p.pool:
            wrong.add("melange.file", p.melange.file, "no workloads, points or pool beside it")
        else:
            with wrong.collecting():
                config = read_model(p.beside(p.melange.file, "melange.file"), MelangeConfig)
                workloads, points = from_melange(config)
                slice_factor = p.melange.slice_factor or config.slice_factor
    names = [w.name for w in workloads]
    wrong.once("workloads[{}].name", names, "each workload once")
    if not workloads and not wrong:
        wrong.add("workloads", None, "at least one workload")
    periods = p.periods or (Period(name="always", hours=24.0),)
    wrong.once("periods[{}].name", [q.name for q in p.periods], "each period once")
    for i, period in enumerate(p.periods):
        wrong.among(f"periods[{i}].rate_factors.{{}}", period.rate_factors, "a workload", names)
    of_files: list[str] = []
    demands, requests, pieces, whole = _demands(p, workloads, periods, of_files, wrong)
    machines: tuple[Machine, ...] = ()
    if p.pool is not None:
        several = p.pool if isinstance(p.pool, tuple) else (p.pool,)
        for i, choice in enumerate(several):
            path = f"pool[{i}]" if isinstance(p.pool, tuple) else "pool"
            machines += select_machines(with_prices(p, choice, wrong, path, of_files), wrong, path)
        keys = [(m.machine, m.region) for m in machines]
        wrong += [
            Mistake(None, "pool", " in ".join(key), "each machine once in the pools")
            for key in sorted({k for k in keys if keys.count(k) > 1})
        ]
    if p.points_table is not None and not wrong:
        with wrong.collecting():
            rows = read_points_table(p.beside(p.points_table, "points_table"), _named(workloads, demands))
            file = p.points_table
            points = (points or ()) + tuple(
                validate(FleetPoint, row, file, prefix=f"row {k}.") for k, row in enumerate(rows, start=1)
            )
    accepted: dict[str, tuple[Architecture, ...]] = {}
    if points is None and "serving" not in p.model_fields_set:
        expected = "continuous (engines as they run) or static (batches of one size that start and end together)"
        wrong.add("serving", None, expected, "add serving: continuous, unless you plan the papers' static batches")
    if p.continuous:
        _continuous(p, workloads, points, wrong)
    elif p.certify != "none":
        wrong.add("certify", p.certify, "none but with serving: continuous, whose engines can be simulated")
    for i, w in enumerate(() if p.continuous else workloads):
        if w.slo.itl_s is not None:
            expected = "none with serving: static, whose batches take in no prompts: tpot_s is the same"
            wrong.add(f"workloads[{i}].slo.itl_s", _seconds(w.slo.itl_s), expected)
    if p.deployment.apart and points is None:
        _apart(p, workloads, machines, wrong)
    if p.strategies.attention_ranks != (1,):
        _with_ranks(p, wrong)
    draws = None if p.scenarios is None else _drawn(p, p.scenarios, workloads, points, machines, wrong)
    if points is None:
        _modelled(p, workloads, demands, accepted, wrong)
    else:
        found = Mistakes()
        _measured(points, workloads, machines, demands, p, found)
        _measured_apart(points, workloads, p, found)
        wrong += [_in_its_file(m, p) for m in found]
    architectures = [a for found in accepted.values() for a in found]
    check_speculation(p.engine, architectures, p.continuous, wrong)
    if p.prefix_cache is not None and any(w.models is not None for w in workloads):
        wrong.add("prefix_cache", "measured hits", "none with workloads that list models: each has caches of its own")
    hits, routing = _hits(p, names, wrong)
    gpus = catalog.gpus() | p.gpus
    if points is None:
        for m in machines:
            if m.gpu is None or m.gpu not in gpus:
                what = "a GPU of the catalogue or of gpus"
                wrong.append(unknown_gpu(f"pool ({m.machine}).gpu", str(m.gpu), gpus, what))
    notes = [
        *of_files,
        *_unmatched(p, machines, points, gpus, wrong),
        *_unlimited(p, workloads, points),
        *_without_quota(p, machines),
    ]
    for i, r in enumerate(p.running or ()):
        known = {m.machine for m in machines} | {q.machine or q.name for q in points or ()}
        wrong.among(f"running[{i}].machine", [r.machine], "a machine of the pool", known)
    source, chosen = None, p.latency.model or ("default" if p.continuous else None)
    if chosen is not None and points is None:
        source = wrong.collect(read_source, p, chosen, p.latency.engine)
    calibration = None
    if not wrong and points is None and workloads:
        calibration = _calibration(p, architectures[0], machines, gpus, wrong)
    if p.reserve is not None and p.reserve.survive_probability is not None and not p.interruptions:
        wrong.add("interruptions", None, "interruption rates, from which survival is computed")
    wrong.raise_any()
    return FleetCase(
        p, workloads, demands, accepted, machines,
        {m.gpu: gpus[m.gpu] for m in machines if m.gpu is not None and m.gpu in gpus},
        calibration, points, periods, slice_factor, source, hits, routing, requests, pieces, whole, tuple(notes),
        draws,
    )  # fmt: skip


def _unmatched(
    p: Fleet, machines: tuple[Machine, ...], points: tuple[FleetPoint, ...] | None, gpus: Mapping[str, Gpu],
    wrong: Mistakes,
) -> list[str]:  # fmt: skip
    """Lines of stock, quota and interruptions whose patterns match nothing here: those that the catalogue knows.

    A pattern that matches nothing anywhere is a mistake; one that does elsewhere may be in a list kept for many pools.
    """
    there = [{"machine": m.machine, "region": m.region, "gpu": m.gpu or ""} for m in machines]
    there += [{"machine": q.machine or q.name, "region": q.region, "gpu": ""} for q in points or ()]
    notes: list[str] = []
    for kind, lines in (("stock", p.stock), ("quota", p.quota), ("interruptions", p.interruptions)):
        for i, line in enumerate(lines):
            where = f"{kind}[{i}]"
            if isinstance(line, StockLine) and line.unit == "vcpus" and any(m.vcpu is None for m in machines):
                wrong.add(f"{where}.unit", "vcpus", "machines with known vcpu in the pool")
            patterns = {k: v for k in ("machine", "gpu", "region") if (v := getattr(line, k, "*")) != "*"}
            if not there or any(all(fnmatch.fnmatchcase(x[k], v) for k, v in patterns.items()) for x in there):
                continue
            for key, pattern in patterns.items():
                here, called = {x[key] for x in there}, {"gpu": "GPU"}.get(key, key)
                if fnmatch.filter(here, pattern):
                    continue
                if points is None and not fnmatch.filter(_known(key, gpus), pattern):
                    what = f"a {called} of the pool's machines, or one that the catalogue knows"
                    wrong.unknown(f"{where}.{key}", pattern, what, here - {""})
                    break
            else:
                said = ", ".join(f"{k} {v}" for k, v in patterns.items())
                notes.append(f"{where} is about nothing here: no machine of the pool has {said}")
    return notes


def _known(key: str, gpus: Mapping[str, Gpu]) -> set[str]:
    """Every name of a machine, region or GPU that the catalogue has, in whichever list."""
    if key == "gpu":
        return set(gpus)
    places = set(geography.places()) if key == "region" else set()
    return places | {getattr(m, key) for pool in catalog.pools() for m in catalog.machines(pool)}


def _unlimited(
    p: Fleet, workloads: tuple[FleetWorkload, ...], points: tuple[FleetPoint, ...] | None
) -> list[str]:  # fmt: skip
    """Allowed settings that are seldom meant: no SLO, or no limit that keeps a plan from growing."""
    notes = [
        f"{w.name}: nothing is promised to its requests (slo has no limit)"
        for w in workloads if points is None and w.slo == FleetSlo()
    ]  # fmt: skip
    if p.objective == "max_served" and p.budget_usd_per_hour is None and not (p.stock or p.quota):
        notes.append("objective: max_served without budget_usd_per_hour, stock or quota serves at any price")
    return notes


def _without_quota(p: Fleet, machines: tuple[Machine, ...]) -> list[str]:
    """The GPU types that no quota limits, where quotas limit others."""
    if not any(line.gpu != "*" for line in p.quota):
        return []
    free = {
        m.gpu for m in machines if m.gpu and not any(
            fnmatch.fnmatchcase(m.gpu, line.gpu) and fnmatch.fnmatchcase(m.machine, line.machine)
            and fnmatch.fnmatchcase(m.region, line.region) for line in p.quota
        )
    }  # fmt: skip
    return [f"no quota for {', '.join(sorted(free))}: any number may be rented"] if free else []


def _hits(p: Fleet, names: list[str], wrong: Mistakes) -> tuple[tuple[HitRow, ...], Routing | None]:
    """The rows of measured prefix-cache hits, and the routing that they are of."""
    cache, path = p.prefix_cache, "prefix_cache"
    if cache is None:
        return (), None
    if not p.continuous:
        wrong.add(path, "measured hits", "none but with serving: continuous, whose engines have prefix caches")
    rows: tuple[HitRow, ...] = ()
    routing = cache.routing
    if isinstance(cache.hits, str):
        with wrong.collecting():
            file = p.beside(cache.hits, f"{path}.hits")
            document = read_document(file)[0]
            found = validate(_HitFile, {k: document[k] for k in ("hits", "routing") if k in document}, str(file))
            rows, routing = found.hits, routing or found.routing
    else:
        rows = cache.hits
    for i, row in enumerate(rows):
        if row.workload is not None:
            wrong.among(f"{path}.hits[{i}].workload", [row.workload], "a workload", names)
    for name in dict.fromkeys(row.workload for row in rows):
        most = max(row.engines for row in rows if row.workload in (None, name))
        if most < cache.engines:
            of = "" if name is None else f" of {name}"
            expected = f"at most {most}, the largest number that hits{of} are measured for"
            wrong.add(f"{path}.engines", cache.engines, expected)
    for i, w in enumerate(p.workloads):
        if w.prefix_hit_share and {None, w.name} & {row.workload for row in rows}:
            expected = f"none beside {path}, which has its hits"
            wrong.add(f"workloads[{i}].prefix_hit_share", w.prefix_hit_share, expected)
    return rows, routing


class _HitFile(Entry):
    hits: tuple[HitRow, ...] = Field(min_length=1)
    routing: Routing | None = None


def _demands(
    p: Fleet, workloads: tuple[FleetWorkload, ...], periods: tuple[Period, ...], notes: list[str], wrong: Mistakes
) -> tuple[tuple[Demand, ...], dict[str, BucketRequests], dict[str, Pieces], dict[str, CutTrace]]:
    """Every bucket of every workload with its rate by period; of traces the requests, pieces, and long ones whole.

    Buckets without requests are left out, except where a workload has none at all and asks for replicas: its buckets
    show which deployments can serve it. Appends notes on changed rows of traces to `notes`.
    """
    demands: list[Demand] = []
    requests = {w.name: w.requests for w in workloads if w.requests is not None}
    pieces = {w.name: w.pieces for w in workloads if w.pieces is not None}
    whole: dict[str, CutTrace] = {}
    for i, w in enumerate(workloads):
        buckets = w.buckets or ()
        if w.trace is not None:
            with wrong.collecting():
                file = p.beside(w.trace.file, f"workloads[{i}].trace.file")
                found = bucket_trace(file, w.trace, w.trace.rate_factor, notes)
                requests[w.name], pieces[w.name] = found.requests, found.pieces
                whole |= {} if found.requests.of is None else {w.name: found}
                buckets = tuple(Bucket(**vars(c)) for c in found.cells)
        shares = sum(b.share for b in buckets if b.share is not None)
        if shares > 1 + 1e-9:
            wrong.add(f"workloads[{i}].buckets", shares, "shares that add up to at most 1")
        mine: list[Demand] = []
        for b in buckets:
            rate = b.requests_per_s if b.requests_per_s is not None else (b.share or 0.0) * (w.requests_per_s or 0.0)
            by_period = tuple(rate * q.rate_factors.get(w.name, q.rate_factor) for q in periods)
            mine.append(Demand(
                w.name, b.label, b.input_tokens, b.output_tokens, rate, by_period, b.longest_tokens or 0,
                b.input_bounds, b.output_bounds, b.rates,
            ))  # fmt: skip
        requested = [d for d in mine if d.has_requests]
        demands += requested if requested or not w.min_replicas else mine
    if workloads and not any(d.has_requests for d in demands) and not wrong:
        wrong.add("workloads", 0.0, "a bucket with requests_per_s > 0")
    return tuple(demands), requests, pieces, whole


def _modelled(
    p: Fleet, workloads: tuple[FleetWorkload, ...], demands: tuple[Demand, ...],
    accepted: dict[str, tuple[Architecture, ...]], wrong: Mistakes,
) -> None:  # fmt: skip
    """Requirements of operating points from the latency model: a pool, a model and lengths per workload."""
    if p.pool is None:
        wrong.add("pool", None, "machines to choose from, or points: of your own")
    for i, w in enumerate(workloads):
        found: list[Architecture] = []
        for k, m in enumerate(w.accepts):
            at = f"workloads[{i}].model" if w.models is None else f"workloads[{i}].models[{k}].model"
            if isinstance(m.model, Architecture):
                found.append(m.model)
            elif m.model not in catalog.llms():
                wrong.append(unknown_llm(at, m.model))
            else:
                found.append(catalog.llms()[m.model])
            if len(found) == k + 1 and (found[k], m.precision) in [
                (a, o.precision) for a, o in zip(found[:k], w.accepts, strict=False)
            ]:
                wrong.add(f"workloads[{i}].models[{k}]", m.label, "each model at each precision once")
        if not w.accepts:
            wrong.add(f"workloads[{i}].model", None, "a model of the catalogue, or points: of your own")
        accepted[w.name] = tuple(found)
        longest = min((a.max_positions for a in found), default=None)
        for d in demands:
            if d.workload != w.name:
                continue
            if d.input_tokens is None or d.output_tokens is None:
                expected = "input_tokens and output_tokens, from which latencies are modelled"
                wrong.add(f"workloads[{i}].buckets ({d.bucket})", None, expected)
            elif longest is not None and d.tokens > longest:
                expected = f"input_tokens + output_tokens at most the model's context of {longest} tokens"
                wrong.add(f"workloads[{i}].buckets ({d.bucket})", d.tokens, expected)


def _continuous(
    p: Fleet, workloads: tuple[FleetWorkload, ...], points: tuple[FleetPoint, ...] | None, wrong: Mistakes
) -> None:
    """Keys without effect under continuous batching are absent."""
    if points is not None:
        wrong.add("serving", "continuous", "static where points are measured: they are what they are")
    if p.queueing.model != "none":
        wrong.add(
            "queueing.model", p.queueing.model, "none with serving: continuous, whose levels have waits of their own"
        )
    if "high_end" not in p.strategies.families:
        expected = "high_end among them: with serving: continuous the KV cache is on the GPUs"
        wrong.add("strategies.families", list(p.strategies.families), expected)
    if p.latency.calibration is not None:
        wrong.add("latency.calibration", "a calibration of batches", "none with serving: continuous; latency.model")
    for i, w in enumerate(workloads):
        if w.slo.tps is not None:
            wrong.add(f"workloads[{i}].slo.tps", w.slo.tps, "none with serving: continuous, which has no batch")


def _apart(
    p: Fleet, workloads: tuple[FleetWorkload, ...], machines: tuple[Machine, ...], wrong: Mistakes
) -> None:  # fmt: skip
    """Requirements of disaggregated prefill and decode, and combinations without a defined meaning."""
    stages = list(p.deployment.stages)
    if not p.continuous:
        expected = "[both] with serving: static, whose batches are prefilled and decoded, but for measured points"
        wrong.add("deployment.stages", stages, expected)
    if machines and p.deployment.link.net_gbps is None and all(m.net_gbps is None for m in machines):
        wrong.add("deployment.link.net_gbps", None, "a figure: no machine of the pool says its network (net_gbps)")
    for i, w in enumerate(workloads):
        if w.soft is not None:
            # Paid for once, yet missed in one stage, the other or both: who meets whom would be a decision.
            expected = "none with prefill and decode apart: a request late in both stages would be paid for twice"
            wrong.add(f"workloads[{i}].soft", w.soft, expected)


def _drawn(
    p: Fleet, s: Scenarios, workloads: tuple[FleetWorkload, ...], points: tuple[FleetPoint, ...] | None,
    machines: tuple[Machine, ...], wrong: Mistakes,
) -> Draws:  # fmt: skip
    """The draws of `scenarios`; keys that they have no meaning with are absent."""
    at, c = "with scenarios", p.change
    if points is None and not p.continuous:
        wrong.add("serving", p.serving, f"continuous, or measured points, {at}")
    keys: tuple[tuple[str, Any, Any, str], ...] = (
        ("objective", p.objective, "min_cost", ""),
        ("reserve", p.reserve, None, ": slow_probability makes machines slow, `optmodels stress --lose` removes them"),
        ("deployment.stages", list(p.deployment.stages), ["both"],
         ": multiply requests_per_s by a margin of `optmodels stress` instead"),
        ("periods", p.periods[1:], (), ": one file for each period, as without costs of changes none affects another"),
        ("change", (c.start_usd, c.stop_usd, c.max_starts, c.max_stops), (0.0, 0.0, None, None), ""),
        ("prefix_cache", p.prefix_cache, None, ""),
    )  # fmt: skip
    for path, value, usual, instead in keys:
        if value != usual:
            wrong.add(path, "set" if value is None else str(value)[:60], f"{usual or 'no such key'} {at}{instead}")
    if any(x.stage != "both" for x in points or ()):
        wrong.add("points", "a stage", f"stage: both {at}")
    for i, w in enumerate(workloads):
        own = (("soft", w.soft, None), ("quality_at_least", w.quality_at_least, None),
               ("spot_share_max", w.spot_share_max, 1.0))  # fmt: skip
        for path, value, usual in own:
            if value != usual:
                wrong.add(f"workloads[{i}].{path}", str(value)[:60], f"no such key {at}")
    if isinstance(s.demand_sd, Mapping):
        wrong.among("scenarios.demand_sd.{}", s.demand_sd, "a workload", [w.name for w in workloads])
    types = dict.fromkeys([m.machine for m in machines] + [x.machine or x.name for x in points or ()])
    return draws_of(s, [w.name for w in workloads], types)


def _with_ranks(p: Fleet, wrong: Mistakes) -> None:
    """Combinations without a model for engines of several attention ranks."""
    path, ranks = "strategies.attention_ranks", list(p.strategies.attention_ranks)
    if not p.continuous:
        wrong.add(path, ranks, ONE_OF_STATIC)
    if p.prefix_cache is not None:
        wrong.add(path, ranks, "[1] beside prefix_cache: its hits are of engines with one cache, each rank has its own")


def _named(workloads: tuple[FleetWorkload, ...], demands: tuple[Demand, ...]) -> list[str]:
    """Names that measured points may use: demands, and buckets of rate 0."""
    return list(dict.fromkeys([
        *(d.name for d in demands), *(f"{w.name}/{b.label}" for w in workloads for b in w.buckets or ()),
    ]))  # fmt: skip


def _measured(
    points: tuple[FleetPoint, ...], workloads: tuple[FleetWorkload, ...], machines: tuple[Machine, ...],
    demands: tuple[Demand, ...], p: Fleet, wrong: Mistakes,
) -> None:  # fmt: skip
    """Check that every name in measured points exists."""
    accepts = {w.name: None if w.models is None else [m.label for m in w.models] for w in workloads}
    labels = list(dict.fromkeys(label for listed in accepts.values() for label in listed or ()))
    prices = {(m.machine, m.region): m.prices for m in machines}
    gpu_counts = {(m.machine, m.region): m.gpu_count for m in machines}
    known = dict.fromkeys(_named(p.workloads, demands))
    if not points:
        wrong.add("points", None, "at least one operating point")
    wrong.once("points[{}].name", [q.name for q in points], "each point once")
    for i, q in enumerate(points):
        if q.usd_per_hour is None:
            price = prices.get((q.machine, q.region))
            if price is None:
                wrong.unknown(
                    f"points[{i}].machine", q.machine, "usd_per_hour, or a machine of the pool", [k[0] for k in prices]
                )
            elif price.get(q.market) is None:
                wrong.add(f"points[{i}].market", q.market, f"a market {q.machine} has a price in")
        gpus, have = (q.tp or 1) * (q.replicas_per_machine or 1), gpu_counts.get((q.machine, q.region))
        if have is not None and gpus > have:
            wrong.add(f"points[{i}].tp", gpus, f"tp × replicas_per_machine at most {have}, the GPUs of {q.machine}")
        if q.model is not None and q.model not in labels:
            wrong.unknown(f"points[{i}].model", q.model, "the name of one of a workload's models", labels)
            continue
        for demand, rate in q.requests_per_s.items():
            if demand not in known:
                wrong.unknown(f"points[{i}].requests_per_s.{demand}", demand, "a demand (workload/bucket)", known)
            elif rate > 0 and (expected := _accepting(demand, q.model, accepts)) is not None:
                wrong.add(f"points[{i}].requests_per_s.{demand}", rate, expected)
        if len(wrong) > 20:
            return


def _in_its_file(mistake: Mistake, p: Fleet) -> Mistake:
    """A mistake in a row of `points_table`, by file and row; these points follow the instance's own."""
    listed, match = len(p.points or ()), re.match(r"points\[(\d+)\]", mistake.path)
    if match is None or (row := int(match[1]) - listed + 1) < 1:
        return mistake
    return replace(mistake, file=p.points_table, path=f"row {row}{mistake.path[match.end() :]}")


def _accepting(demand: str, model: str | None, accepts: Mapping[str, list[str] | None]) -> str | None:
    """The expected value in place of a rate whose workload does not accept the point's model; else None."""
    workload = demand.partition("/")[0]
    listed = accepts[workload]
    if listed is None:
        return None if model is None else f"0 or none: {workload} has no list of models with {model}"
    if model is None:
        return f"a point that says its model, one of {workload}'s: {', '.join(listed)}"
    return None if model in listed else f"0 or none: {workload} accepts {', '.join(listed)}, not {model}"


def _measured_apart(
    points: tuple[FleetPoint, ...], workloads: tuple[FleetWorkload, ...], p: Fleet, wrong: Mistakes
) -> None:  # fmt: skip
    """Requirements of measured points with one stage or several models, and quantities without a measurement."""
    named: dict[str, tuple[object, PrecisionChoice]] = {}
    for i, w in enumerate(workloads):
        for k, m in enumerate(w.models or ()):
            if named.setdefault(m.label, (m.model, m.precision)) != (m.model, m.precision):
                wrong.add(f"workloads[{i}].models[{k}].name", m.label, "one model and precision by that name")
    link, stages = p.deployment.link, p.deployment.stages
    for name, default in Link():
        if name != "tensor_parallel" and (value := getattr(link, name)) != default:
            expected = "none beside measured points, whose requests/s include sending caches"
            wrong.add(f"deployment.link.{name}", value, expected)
    for i, q in enumerate(points):
        if q.stage not in stages:
            expected = f"one of {', '.join(stages)}, or deployment: {{stages: [both, prefill, decode]}}"
            wrong.add(f"points[{i}].stage", q.stage, expected)
        if q.stage != "both" and q.tp is None and link.tensor_parallel == "equal":
            wrong.add(f"points[{i}].tp", None, "its GPUs, which deployment.link.tensor_parallel: equal compares")
        if len(wrong) > 20:
            return
    apart = {name.partition("/")[0] for q in points if q.stage != "both" for name, v in q.requests_per_s.items() if v}
    for i, w in enumerate(workloads):
        if w.name in apart and w.slo.deadline_s is not None:
            expected = (
                "none with points of one stage, for which no part of it was measured: limit ttft_s and tpot_s, or"
            )
            wrong.add(f"workloads[{i}].slo.deadline_s", _seconds(w.slo.deadline_s), f"{expected} leave such points out")
    if apart and p.queueing.model != "none":
        expected = "none with points of one stage, whose requests/s are within TTFT and TPOT; max_load leaves room"
        wrong.add("queueing.model", p.queueing.model, expected)


def _calibration(
    p: Fleet, model: Architecture, machines: tuple[Machine, ...], gpus: Mapping[str, Gpu], wrong: Mistakes
) -> Calibration | None:  # fmt: skip
    """Coefficients by name or file, looked up as the cost-efficiency problem does."""
    if p.latency.calibration is None or isinstance(p.latency.calibration, Calibration):
        return p.latency.calibration if isinstance(p.latency.calibration, Calibration) else None
    probe = StaticBatch(
        formulation="fleet", schema_version=1, model=model,
        workload=BatchWorkload(batch=1, input_tokens=1, output_tokens=1), slo=Batch(kind="batch", tps=1.0),
        gpus=dict(gpus), pool=PoolChoice(machines=machines), latency=BatchLatency(calibration=p.latency.calibration),
    )  # fmt: skip
    probe._folder = p._folder
    case = wrong.collect(probe.resolve)
    return case.calibration if case is not None else None


def from_melange(config: MelangeConfig) -> tuple[tuple[FleetWorkload, ...], tuple[FleetPoint, ...]]:
    """Mélange's configuration as one workload with measured points, one for each GPU type.

    Buckets are named ``i,j`` after the row (input size) and column (output size) of its matrices.
    """
    cells = [
        (f"{i},{j}", i, j) for i, row in enumerate(config.workload_distribution) for j in range(len(row))
    ]  # fmt: skip
    workload = FleetWorkload(
        name="melange",
        buckets=tuple(
            Bucket(name=n, requests_per_s=config.workload_distribution[i][j] * config.total_request_rate)
            for n, i, j in cells
        ),
    )
    points = tuple(
        FleetPoint(
            name=name, usd_per_hour=gpu.cost, machine=name,
            requests_per_s={f"melange/{n}": gpu.tputs[i][j] for n, i, j in cells},
        )
        for name, gpu in config.gpu_info.items()
    )  # fmt: skip
    return (workload,), points


assert set(FAMILIES) >= set(FleetStrategies().families)
