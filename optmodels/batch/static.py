"""Serving one workload in static batches on a pool of machines: the sections of a problem file about it, resolved.

Cost efficiency asks it of one workload (LLM-Pilot §III), fleet of every bucket of many.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Discriminator, Field, Tag, model_validator

from optmodels import catalog
from optmodels.catalog.prices import machines_of
from optmodels.catalog.spelling import unknown_gpu, unknown_llm
from optmodels.catalog.types import (
    MARKETS,
    AnyLlm,
    Architecture,
    CloudName,
    Entry,
    Gpu,
    Machine,
    Market,
    OwnGpus,
    Prices,
    RegionName,
    spelled,
)
from optmodels.engine.continuous import LatencyLimit, Percentile, latency_limit, seconds_and_quantile
from optmodels.engine.costs import AttentionRanks
from optmodels.engine.lengths import Length, Lengths, mean_tokens, normalised, which
from optmodels.engine.spelling import NamedModel
from optmodels.errors import Mistakes
from optmodels.io.read import read_model
from optmodels.io.tables import read_table
from optmodels.latency.calibration import Calibration
from optmodels.latency.resolve import (
    UNCALIBRATED,
    ModelChoice,
    Safety,
    Source,
    StatedEngine,
    deployment,
    llm_name,
    read_source,
    resolve,
)
from optmodels.latency.steps import Provenance, StepCosts
from optmodels.latency.strategies import AO_FAMILIES, FAMILIES, Family, Variant
from optmodels.latency.work import LayerWork, StatedPrecision, layer_work, peak_flops
from optmodels.limits import Limit, either
from optmodels.problem import Problem
from optmodels.units import (
    Fraction,
    Gib,
    NonNegativeGib,
    PositiveFraction,
    PositiveInt,
    Seconds,
    Tokens,
    TokensPerSecond,
)

Latencies = tuple[LatencyLimit | None, LatencyLimit | None, LatencyLimit | None]
NO_THROUGHPUT = 1e-3  # tokens/s that everything reaches


class PrecisionChoice(Entry):
    """Storage precision of weights and KV cache."""

    weights: StatedPrecision = Field(default="fp16", description="precision of the weights; fp4: NVFP4")
    kv: Annotated[Literal["fp16", "fp8"], spelled("kv_precision")] = Field(
        default="fp16", description="precision of the KV cache"
    )


class BatchWorkload(Entry):
    """W = (B, S_in, S_out) of LP Table IV: requests that are all equal."""

    batch: PositiveInt = Field(description="B: requests served together")
    input_tokens: Tokens = Field(description="S_in: tokens of a prompt")
    output_tokens: Tokens = Field(description="S_out: tokens of an answer")


class BatchMix(Entry):
    """B requests at a time, of several lengths, with serving: continuous."""

    batch: PositiveInt = Field(description="B: requests served together")
    lengths: Lengths = Field(
        description="request classes, or a trace to cut into classes, in place of input_tokens and output_tokens"
    )


class RealTime(Entry):
    """LP(7): throughput and latencies bound; with serving: continuous also ``{at_most: 1.0, percentile: 0.9}``."""

    kind: Literal["real_time"] = Field(description="real_time: limits on throughput and latencies")
    tps: Annotated[TokensPerSecond, Limit("throughput", "least", "tokens/s", off=NO_THROUGHPUT, rated=True)] = Field(
        description="input and output tokens a second together (LP 6)"
    )
    ttft_s: Annotated[LatencyLimit, latency_limit("TTFT")] = Field(description="time to the first token")
    tpot_s: Annotated[LatencyLimit, latency_limit("TPOT")] = Field(
        validation_alias=either("tpot_s"), description="time per output token (TPOT)"
    )
    itl_s: Annotated[LatencyLimit | None, latency_limit("ITL")] = Field(
        default=None,
        description="time between two output tokens, pauses for others' prompts included (serving: continuous); its "
        "percentile is of all such times of all requests",
    )
    deadline_s: Annotated[LatencyLimit | None, latency_limit("time of a request")] = Field(
        default=None, description="end-to-end time of a request, waiting included; with static batches all its passes"
    )

    @property
    def latencies(self) -> Latencies:
        """Limits on TTFT, time per output token and E2E."""
        return self.ttft_s, self.tpot_s, self.deadline_s

    @property
    def itl(self) -> LatencyLimit | None:
        """Limit on the time between tokens."""
        return self.itl_s


class Batch(Entry):
    """LP(8): throughput alone."""

    kind: Literal["batch"] = Field(description="batch: a limit on throughput alone")
    tps: Annotated[TokensPerSecond, Limit("throughput", "least", "tokens/s", off=NO_THROUGHPUT, rated=True)] = Field(
        description="input and output tokens a second together (LP 6)"
    )

    @property
    def latencies(self) -> Latencies:
        """None, see `RealTime.latencies`."""
        return None, None, None

    @property
    def itl(self) -> LatencyLimit | None:
        """None, see `RealTime.itl`."""
        return None


NAMED = 5  # machines that are left out, by name


class PoolChoice(Entry):
    """Machines to choose from: a catalogue pool narrowed by region and name patterns, own machines, or both."""

    catalog: CloudName | None = Field(default=None, description="a machine list: optmodels list catalog")
    prices: str | None = Field(
        default=None,
        description="CSV of machines with prices: SkyPilot's catalogue, a FOCUS export, or machine, region, gpu and"
        " on_demand_usd_per_hour; prices of one GPU as on_demand_usd_per_gpu_hour with least_gpus",
    )
    columns: dict[str, str] = Field(
        default={},
        description="columns of a price list with names of its own, ours: THEIRS, e.g. machine: InstanceType",
    )
    region: RegionName | None = Field(
        default=None, description="region of the list's machines; default: the list's own"
    )
    include: Annotated[tuple[str, ...], Limit("machines", "among", off=("*",), scope=True)] = Field(
        default=("*",), description="patterns of machine names to choose from"
    )
    exclude: tuple[str, ...] = Field(default=(), description="patterns of machine names to leave out")
    machines: tuple[Machine, ...] = ()
    price_source: str = Field(default="", max_length=2000, description="source and date of the machines' prices")
    assumed_discounts: dict[Market, Fraction] = Field(
        default={}, description="discount for markets without a price in the catalogue; 0.6: 60 % off on-demand"
    )


class Markets(Entry):
    """Markets allowed for each role."""

    main: Annotated[tuple[Market, ...], Limit("markets of the main machines", "among", full=MARKETS)] = Field(
        default=("on_demand",), min_length=1, description="markets of main machines"
    )
    ao: Annotated[tuple[Market, ...], Limit("markets of the AO machines", "among", full=MARKETS)] = Field(
        default=("on_demand",), min_length=1, description="markets of attention-offload machines"
    )

    def bought(self, families: Iterable[Family]) -> tuple[Market, ...]:
        """Markets of the machines that deployments of these families have."""
        return self.main + (() if AO_FAMILIES.isdisjoint(families) else self.ao)


class AlphaRange(Entry):
    """Allowed offload ratio of the offloading families."""

    min: Annotated[Fraction, Limit("offload ratio", "least", off=0.0)] = Field(
        default=0.0, description="least offloaded share of the KV cache or attention"
    )
    max: Annotated[Fraction, Limit("offload ratio", "most", off=1.0)] = Field(
        default=1.0, description="largest offloaded share of the KV cache or attention"
    )

    @model_validator(mode="after")
    def _ordered(self) -> AlphaRange:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) at most max ({self.max})")
        return self


MOST_PARTS = 1024  # machines or passes that share a batch
Counts = tuple[Annotated[int, Field(strict=True, ge=1, le=MOST_PARTS)], ...]
SeveralCounts = tuple[Annotated[int, Field(strict=True, ge=2, le=MOST_PARTS)], ...]


class Splits(Entry):
    """Into how many parts a batch may be split, family by family; without a list, into any number up to 1,024."""

    replicas: Annotated[Counts, Field(min_length=1)] | None = Field(
        default=None,
        description="numbers of machines that share the batch, without or with KV offload; default: any up to 1,024",
    )
    multi_pass: SeveralCounts | None = Field(default=None, description="numbers of passes k; default: any up to 1,024")
    parallel: SeveralCounts | None = Field(
        default=None, description="numbers of machine pairs K; default: any up to 1,024"
    )
    shared: SeveralCounts | None = Field(
        default=None, description="numbers of machines N that share an offload machine; default: up to 1,024"
    )

    def allowed(self, family: Family) -> Sequence[int]:
        """The counts k, K, N or of replicas that the instance allows a family: as listed, or all up to `MOST_PARTS`."""
        match family:
            case "ao":
                return (1,)
            case "multi_pass":
                listed = self.multi_pass
            case "ao_parallel":
                listed = self.parallel
            case "ao_shared":
                listed = self.shared
            case _:
                return range(1, MOST_PARTS + 1) if self.replicas is None else self.replicas
        return range(2, MOST_PARTS + 1) if listed is None else listed


class Strategies(Splits):
    """The strategy space Σ; `replicas` of single-machine strategies go beyond the paper, whose space has [1]."""

    families: Annotated[tuple[Family, ...], Limit("strategies", "among", full=FAMILIES)] = Field(
        default=FAMILIES, min_length=1, description="strategies to run a batch"
    )
    tensor_parallel: tuple[PositiveInt, ...] = Field(
        default=(1, 2, 4, 8, 16),
        description="GPUs per replica, or attention rank, to choose from; their product with the replicas is the "
        "machine's GPUs",
    )
    attention_ranks: AttentionRanks = (1,)
    alpha: AlphaRange = AlphaRange()


class OperatingPoint(Entry):
    """One measured way to run the workload; replaces the performance model."""

    name: str = Field(min_length=1, max_length=200, description="name in plans and messages")
    family: Family = Field(description="strategy")
    main: str = Field(description="machine of the pool")
    ao: str | None = Field(default=None, description="attention-offload machine of the pool, in the ao families")
    count: PositiveInt = Field(default=1, description="k, K or N of the family")
    tp: PositiveInt = Field(default=1, description="GPUs of a replica on the main machine (tensor parallel)")
    replicas_per_machine: PositiveInt = Field(default=1, description="replicas on a main machine that share its part")
    alpha: Fraction = Field(default=0.0, description="offload ratio")
    tps: TokensPerSecond | None = Field(
        default=None, description="tokens/s of the batch, input and output together; or e2e_s"
    )
    e2e_s: Seconds | None = Field(
        default=None, description="time from the first prompt to the last token of the batch; or tps"
    )
    ttft_s: Seconds | None = Field(default=None, description="time to the first token")
    tpot_s: Seconds | None = Field(
        default=None, validation_alias=either("tpot_s"), description="time per output token (TPOT)"
    )
    source: str = Field(default="", description="author of the measurement")

    @model_validator(mode="after")
    def _consistent(self) -> OperatingPoint:
        if (self.tps is None) == (self.e2e_s is None):
            raise ValueError("exactly one of tps and e2e_s")
        if (self.family in AO_FAMILIES) != (self.ao is not None):
            raise ValueError("an ao machine in the ao families, and in no other")
        return self


class BatchLatency(Entry):
    """Where latencies come from: measured points, or curves over α with a level.

    The level comes from a `model` of an engine's steps, from a `calibration` of the curves, or, without
    either, the peaks of the hardware (``model: roofline`` states the same).
    """

    model: ModelChoice | None = None
    engine: StatedEngine = Field(default="vllm", description="engine of the built-in coefficients")
    variant: Variant = Field(
        default="roofline", description="formulas of the curves: the paper's, or with every term of the roofline"
    )
    calibration: str | Calibration | None = Field(
        default=None, description="calibration: a catalogue name or a YAML file"
    )
    safety: Safety = None
    operating_points: str | tuple[OperatingPoint, ...] | None = Field(
        default=None, description="operating points: a CSV file or rows"
    )

    @model_validator(mode="after")
    def _safety_of_something(self) -> BatchLatency:
        levelled = self.model not in (None, "roofline")
        if self.safety is not None and self.calibration is None and not levelled:
            raise ValueError("a calibration or a model with safety: without one the error of latencies is unknown")
        if levelled and self.calibration is not None:
            raise ValueError("either a model or a calibration: each says how long things take")
        if levelled and self.variant != "roofline":
            raise ValueError(f"variant: roofline beside a model, whose curves it corrects (not {self.variant})")
        return self


class MemoryRules(Entry):
    """Fractions of memory a server may plan with, and the prompt tokens it processes at a time."""

    vram_usable: Annotated[PositiveFraction, Limit("usable share of VRAM", "most", "%", off=1.0)] = Field(
        default=0.9, description="share of GPU memory for weights, cache and activations"
    )
    ram_usable: Annotated[PositiveFraction, Limit("usable share of RAM", "most", "%", off=1.0)] = Field(
        default=0.9, description="share of the host's memory for offloaded caches"
    )
    volume_gib: Annotated[Gib, Limit("disk volume for KV offload", "most", "GiB", off=math.inf)] = Field(
        default=16384.0, description="attached volume for KV offload to disk (its price is not included)"
    )
    chunk_tokens: Tokens = Field(default=8192, description="prompt tokens processed at a time")
    runtime_gib: NonNegativeGib | None = Field(
        default=None,
        description="part of each GPU for CUDA context, communication buffers and CUDA graphs; default: 1 GiB with"
        " serving: continuous, none with static batches",
    )


class StaticBatch(NamedModel, Problem):
    """One workload, its SLO, a pool of machines and the strategies allowed on them."""

    model: AnyLlm = Field(description="LLM of the catalogue, or its architecture")
    precision: PrecisionChoice = PrecisionChoice()
    workload: Annotated[
        Annotated[BatchWorkload, Tag("Workload")] | Annotated[BatchMix, Tag("MixedWorkload")], Discriminator(which)
    ] = Field(description="requests served together, of one length or of several")
    slo: Annotated[RealTime | Batch, Field(discriminator="kind")] = Field(
        description="limits of the workload; kind states which there are"
    )
    gpus: OwnGpus = {}
    pool: PoolChoice = Field(description="machines to choose from")
    markets: Markets = Markets()
    strategies: Strategies = Strategies()
    latency: BatchLatency = BatchLatency()
    memory: MemoryRules = MemoryRules()

    def resolve(self) -> BatchCase:
        """Look up model, machines, GPUs, calibration and operating points.

        Raises:
            InputError: every unknown name, every contradiction, each with its path.
        """
        return _resolve(self)

    @property
    def alike(self) -> BatchWorkload:
        """The workload of static batches, whose requests are all equal."""
        assert isinstance(self.workload, BatchWorkload)
        return self.workload

    def lengths(self) -> tuple[Length, ...]:
        """Classes of the requests, shares summing to 1; one where all are equal.

        Raises:
            InputError: a trace that cannot be read.
        """
        w = self.workload
        if isinstance(w, BatchWorkload):
            return (Length(input_tokens=w.input_tokens, output_tokens=w.output_tokens),)
        assert isinstance(w.lengths, tuple)  # who accepts traces reads them
        return normalised(w.lengths)

    @property
    def usd_per_hour_at_most(self) -> float:
        """The budget; infinite where there is none."""
        return math.inf

    def named_machines(self) -> Mapping[str, str]:
        """Path → machine of the pool that the instance names next to it; each has to be there."""
        return {}

    def inline(self) -> Self:
        """The same problem with catalogue entries and side files written out."""
        case = self.resolve()
        pool = PoolChoice(machines=case.machines, price_source=case.price_source)
        latency = self.latency.model_copy(
            update={
                "calibration": case.calibration, "operating_points": case.operating_points or None,
                "model": self.latency.model if case.source is None else case.source.documents,
            }
        )  # fmt: skip
        return self.model_copy(
            update={"model": case.architecture, "gpus": dict(case.gpus), "pool": pool, "latency": latency}
        )


@dataclass(frozen=True)
class BatchLimits:
    """The SLO and the budget as upper limits; infinite where there is none."""

    ttft_s: float
    tpot_s: float
    e2e_s: float  # TPS ≥ TPS_SLO as E2E ≤ B·(S_in + S_out)/TPS_SLO, and a deadline that is no percentile
    usd_per_hour: float


@dataclass(frozen=True)
class BatchCase:
    """A problem with every reference resolved; what tables are built from."""

    problem: StaticBatch
    architecture: Architecture
    work: LayerWork
    machines: tuple[Machine, ...]
    gpus: Mapping[str, Gpu]
    calibration: Calibration | None
    operating_points: tuple[OperatingPoint, ...]
    lengths: tuple[Length, ...]
    source: Source | None = None

    def costs(self, gpu: str, tp: int, attention_ranks: int = 1) -> tuple[StepCosts, Provenance]:
        """Seconds of an engine's steps on `tp` GPUs for each attention rank, by the instance's latency model."""
        assert self.source is not None
        p = self.problem
        d = deployment(
            self.source, self.architecture, llm_name(p.model), self.gpus[gpu], gpu, p.precision.weights,
            p.precision.kv, tp, attention_ranks,
        )  # fmt: skip
        return resolve(self.source, d, mean_tokens(self.lengths)[0])

    @property
    def price_source(self) -> str:
        """Where the machines' prices are from, and their date; empty where the instance does not state."""
        return price_source(self.problem.pool, self.problem.markets.bought(self.problem.strategies.families))

    def provenance(self, gpu: str, tp: int, family: Family, attention_ranks: int = 1) -> Provenance:
        """Where the latencies of `family` on `tp` of these GPUs, for each attention rank, come from."""
        if self.source is not None:
            found = self.costs(gpu, tp, attention_ranks)[1]
            if family in ("high_end", "multi_pass"):
                return found
            said = "with a share offloaded: its roofline times the ratio found without, which no engine was measured at"
            return replace(found, transfer=(*found.transfer, "offloading"), notes=(*found.notes, said))
        if self.calibration is None:
            kind = self.problem.latency.variant
            return Provenance(kind, "peaks of the catalogue", notes=(UNCALIBRATED,))
        c = self.calibration
        both = [c.find(gpu, family, phase) for phase in ("decode", "prefill")]
        tbt, ttft = (tuple(sorted((float(q), x) for q, x in (f.residual_quantiles if f else {}).items())) for f in both)
        notes = () if all(both) else (f"its coefficients say nothing of {gpu}, {family}: {UNCALIBRATED}",)
        return Provenance(c.title or "calibration", ", ".join(filter(None, (c.source, c.date))), (), tbt, ttft, notes)

    @property
    def tokens(self) -> float:
        """Tokens of one batch in the mean, B·(S_in + S_out), the numerator of LP(6)."""
        return self.problem.workload.batch * math.fsum(mean_tokens(self.lengths))

    @property
    def deadline_s(self) -> float:
        """Seconds that E2E may take in the mean, infinite without a limit: a percentile is the levels' own."""
        limit = self.problem.slo.latencies[2]
        return np.inf if isinstance(limit, Percentile) else seconds_and_quantile(limit)[0]

    @property
    def limits(self) -> BatchLimits:
        """The SLO and budget of the problem."""
        slo = self.problem.slo
        ttft, tbt, _ = slo.latencies
        return BatchLimits(
            ttft_s=seconds_and_quantile(ttft)[0],
            tpot_s=seconds_and_quantile(tbt)[0],
            e2e_s=min(self.tokens / slo.tps, self.deadline_s),
            usd_per_hour=self.problem.usd_per_hour_at_most,
        )

    def gpu_flops(self, gpu: Gpu) -> float | None:
        """Peak FLOP/s at the weights' precision; None: not published."""
        return peak_flops(gpu, self.problem.precision.weights)


def _resolve(p: StaticBatch) -> BatchCase:
    wrong = Mistakes()

    lengths = wrong.collect(p.lengths)
    if isinstance(p.model, str):
        architecture = catalog.llms().get(p.model)
        if architecture is None:
            wrong.append(unknown_llm("model", p.model))
    else:
        architecture = p.model
    if architecture is not None:
        for i, x in enumerate(lengths or ()):
            if x.input_tokens + x.output_tokens > architecture.max_positions:
                at_most = f"at most the model's context of {architecture.max_positions} tokens"
                where = "workload" if isinstance(p.workload, BatchWorkload) else f"workload.lengths ({i})"
                wrong.add(where, x.input_tokens + x.output_tokens, f"input_tokens + output_tokens {at_most}")

    gpus = catalog.gpus() | p.gpus
    machines = select_machines(with_prices(p, p.pool, wrong), wrong)
    measured = _operating_points(p, {m.machine: m.gpu_count for m in machines}, wrong)
    for i, m in enumerate(p.pool.machines):
        if not _selected(p.pool, m):
            continue
        if m.gpu is None and not measured:
            hint = f"machine {m.machine}"
            wrong.add(f"pool.machines[{i}].gpu", None, "a GPU of the catalogue or of gpus", hint=hint)
        elif m.gpu is not None and m.gpu not in gpus:
            wrong.append(unknown_gpu(f"pool.machines[{i}].gpu", m.gpu, gpus, "a GPU of the catalogue or of gpus"))

    calibration = None
    if isinstance(p.latency.calibration, Calibration):
        calibration = p.latency.calibration
    elif p.latency.calibration is not None:
        name = p.latency.calibration
        if name in catalog.calibrations():
            calibration = Calibration.model_validate(catalog.calibration_document(name))
        elif name.endswith((".yaml", ".yml", ".json")):
            with wrong.collecting():
                calibration = read_model(p.beside(name, "latency.calibration"), Calibration)
        else:
            wrong.unknown(
                "latency.calibration", name, "a .yaml file or a calibration of the catalogue", catalog.calibrations()
            )
    source = None
    if p.latency.model is not None and p.latency.model != "roofline":
        source = wrong.collect(read_source, p, p.latency.model, p.latency.engine)
    names = {m.machine for m in machines}
    for path, machine in p.named_machines().items():
        if machines and machine not in names:
            wrong.unknown(path, machine, "a machine of the pool", names)
    wrong.raise_any()
    assert architecture is not None
    return BatchCase(
        problem=p,
        architecture=architecture,
        work=layer_work(architecture, p.precision.weights, p.precision.kv),
        machines=machines,
        gpus={m.gpu: gpus[m.gpu] for m in machines if m.gpu is not None},
        calibration=calibration,
        operating_points=measured,
        lengths=lengths or (),
        source=source,
    )


def price_source(pool: PoolChoice, markets: Iterable[Market]) -> str:
    """Where prices of a pool in these markets are from, and their date; empty where the instance does not state."""
    said = [pool.price_source]
    if pool.catalog is not None:
        said.insert(0, catalog.pools()[pool.catalog].prices_of(markets))
    if pool.prices is not None and not pool.price_source:
        said.append(f"prices of {pool.prices}")
    return "; ".join(filter(None, said))


def with_prices(
    p: Problem, pool: PoolChoice, wrong: Mistakes, path: str = "pool", notes: list[str] | None = None
) -> PoolChoice:  # fmt: skip
    """The pool with the machines of its price file, if it names one; mistakes are added to `wrong`."""
    if pool.prices is None:
        if pool.columns:
            wrong.add(f"{path}.columns", pool.columns, "prices: a file, whose columns these are")
        return pool
    with wrong.collecting():
        file = p.beside(pool.prices, f"{path}.prices")
        found, others = machines_of(file, pool.columns, None if pool.catalog is not None else pool.region)
        if others and notes is not None:
            more = ", …" if len(others) > NAMED else ""
            listing = f"{', '.join(others[:NAMED])}{more}"
            notes.append(f"{len(others)} machines of {pool.prices} left out: no GPU of the catalogue ({listing})")
        return pool.model_copy(update={"machines": (*pool.machines, *found)})
    return pool


def select_machines(pool: PoolChoice, wrong: Mistakes, path: str = "pool") -> tuple[Machine, ...]:
    """The machines of a pool after region, patterns and assumed discounts; mistakes are added to `wrong`.

    Args:
        pool: the section of the instance file.
        wrong: the mistakes found so far.
        path: path of the section in the problem file.
    """
    found: list[Machine] = []
    if pool.catalog is not None:
        if pool.catalog not in catalog.pools():
            wrong.unknown(f"{path}.catalog", pool.catalog, "a machine list of the catalogue", catalog.pools())
            return ()
        listed = catalog.machines(pool.catalog)
        region = pool.region or catalog.pools()[pool.catalog].default_region
        regions = {m.region for m in listed}
        if region is not None and region not in regions:
            wrong.unknown(f"{path}.region", region, "a region of this list", regions)
            return ()
        found += [m for m in listed if region is None or m.region == region]
    elif pool.region is not None and pool.prices is None:
        wrong.add(f"{path}.region", pool.region, "a catalog: for the region to select from")
    found += pool.machines
    kept = [m for m in found if _selected(pool, m)]
    if not kept:
        value = [] if not found else list(pool.include)
        hint = f"{len(found)} machines listed, all removed by include/exclude" if found else None
        wrong.add(path, value, "at least one machine", hint)
    seen = {(m.machine, m.region) for m in found[: len(found) - len(pool.machines)]}
    for i, m in enumerate(pool.machines):
        if not _selected(pool, m):
            continue
        if (m.machine, m.region) in seen:
            wrong.add(f"{path}.machines[{i}].machine", m.machine, "each machine once in the pool")
        seen.add((m.machine, m.region))
        if all(m.prices.get(market) is None for market in catalog.MARKETS):
            wrong.add(f"{path}.machines[{i}].prices", m.machine, "a price in at least one market, USD/h")
    return tuple(_discounted(m, pool.assumed_discounts) for m in kept)


def _selected(pool: PoolChoice, machine: Machine) -> bool:
    """Whether the name patterns keep a machine."""
    name = machine.machine
    return any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for pattern in pool.include) and not any(
        fnmatch.fnmatchcase(name.lower(), pattern.lower()) for pattern in pool.exclude
    )


def _discounted(machine: Machine, discounts: Mapping[Market, float]) -> Machine:
    on_demand = machine.prices.on_demand
    missing = {m: d for m, d in discounts.items() if machine.prices.get(m) is None and d < 1}
    if on_demand is None or not missing:
        return machine
    assumed = {m: on_demand * (1 - d) for m, d in missing.items()}
    note = "; ".join(filter(None, [machine.note, f"assumed price: {', '.join(sorted(assumed))}"]))
    return machine.model_copy(update={"prices": Prices(**(machine.prices.model_dump() | assumed)), "note": note})


def _operating_points(p: StaticBatch, gpu_counts: Mapping[str, int], wrong: Mistakes) -> tuple[OperatingPoint, ...]:
    source = p.latency.operating_points
    if source is None:
        return ()
    where = "latency.operating_points"
    if isinstance(source, str):
        points = wrong.collect(lambda: read_table(p.beside(source, where), OperatingPoint))
        if points is None:
            return ()
    else:
        points = source
    if not points:
        wrong.add(where, None, "at least one operating point")
    named: set[str] = set()
    for i, point in enumerate(points):
        if point.name in named:
            wrong.add(f"{where}[{i}].name", point.name, "each operating point's name once")
        named.add(point.name)
        parts = point.count * point.replicas_per_machine
        if parts > p.workload.batch:
            hint = f"{point.replicas_per_machine} replicas each" if point.replicas_per_machine > 1 else None
            wrong.add(f"{where}[{i}].count", point.count, f"at most the batch, {p.workload.batch} requests", hint)
        gpus = point.tp * point.replicas_per_machine
        have = gpu_counts.get(point.main, gpus)
        if gpus > have:
            expected = f"tp × replicas_per_machine at most {have}, the GPUs of {point.main}"
            wrong.add(f"{where}[{i}].tp", gpus, expected)
        for role, machine in (("main", point.main), ("ao", point.ao)):
            if machine is not None and gpu_counts and machine not in gpu_counts:
                wrong.unknown(f"{where}[{i}].{role}", machine, "a machine of the pool", gpu_counts)
        if isinstance(p.slo, RealTime) and (point.ttft_s is None or point.tpot_s is None):
            wrong.add(f"{where}[{i}]", point.name, "ttft_s and tpot_s: a real_time SLO bounds both")
    return tuple(points)
