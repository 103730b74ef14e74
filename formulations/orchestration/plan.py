"""The plan of an orchestration problem: instances on named GPUs, shares of every request class by time, prediction."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Annotated, Literal

from pydantic import Field

from optmodels.certification import document as certification
from optmodels.engine.continuous import Stage
from optmodels.plans import lines
from optmodels.plans.lines import RankedDocument, SeveralRanks
from optmodels.plans.outcome import Document
from optmodels.simulation.cluster import Policy, Queue
from optmodels.simulation.continuous import Dispatcher as EnginePolicy

Count = Annotated[int, Field(ge=0, le=10**9)]
Portion = Annotated[float, Field(ge=0, le=1 + 1e-6)]  # rounding of many shares included


Key = tuple[str, str, tuple[int, int, int, int], int, tuple[int, float, float] | None, Stage]


class InstanceLine(Document):
    """One instance and where it sits."""

    name: str
    configuration: Count = Field(description="index into the plan's configurations")
    placement: dict[str, list[int]] = Field(description="server → GPU indices")
    kept: bool = Field(default=False, description="runs already, on these GPUs")
    subcluster: int = Field(default=-1, description="0 strict requests, 1 relaxed ones, -1 both (MaaSO §IV-E)")


class EngineLevelLine(lines.EngineLine):
    """An engine that batches continuously, and the level that it is planned for.

    `max_num_seqs` is 0.7, 1 or 1.5 times the running requests that the busiest bin seldom exceeds, as replays do best.
    """

    level_num_seqs: Count = Field(description="max_num_seqs that the level is planned for, at most")
    waits: float = Field(gt=0, description="wait for prefill planned for at engine.quantile, in mean prompts")
    token_s: float = Field(gt=0, description="time per output token at engine.quantile, of the mean request")
    itl_s: float | None = Field(
        default=None, ge=0, description="time between tokens at the quantile of its limit, at most; where one is set"
    )


class LinkLine(Document):
    """KV caches through the network of one engine that does one stage."""

    net_gbps: float = Field(ge=0, description="share of its GPUs in the server's network, Gbit/s")
    planned_gbps: float = Field(ge=0, description="part of it that may be used: link.most_used")
    busiest_gbps: float = Field(ge=0, description="sent or received in the mean of its busiest time bin")


def parallelism(tp: int, pp: int, ranks: int, dp: int) -> str:
    """As the paper writes it, with the attention ranks of each replica."""
    degrees = (("tp", tp), ("pp", pp), ("ranks", ranks), ("dp", dp))
    return " ".join(f"{k}-{v}" for k, v in degrees if v > 1) or "dp"


class ConfigurationLine(RankedDocument):
    """A way to run a model that the plan uses."""

    model: str
    gpu: str
    tp: int
    pp: int
    dp: int
    attention_ranks: SeveralRanks = None
    batch: int
    instances: Count
    gpus: Count = Field(description="GPUs of all its instances")
    requests: float = Field(description="planned for it")
    engine: EngineLevelLine | None = Field(default=None, description="engine of each replica, with continuous serving")
    stage: Stage = Field(default="both", description="stage of its requests that it serves")
    link: LinkLine | None = Field(default=None, description="network of each replica that serves one stage")

    @property
    def level(self) -> tuple[int, float, float] | None:
        """Key of a level within its batch."""
        e = self.engine
        return None if e is None else (e.level_num_seqs, e.waits, e.place_wait_s)

    @property
    def parallelism(self) -> str:
        """As the paper writes it."""
        return parallelism(*self.degrees)

    @property
    def ranks(self) -> int:
        """Attention ranks of a replica."""
        return self.attention_ranks or 1

    @property
    def degrees(self) -> tuple[int, int, int, int]:
        """All that states on which GPUs it runs."""
        return self.tp, self.pp, self.ranks, self.dp

    @property
    def key(self) -> Key:
        """Key among the candidates of the problem."""
        return self.model, self.gpu, self.degrees, self.batch, self.level, self.stage

    @property
    def gpus_each(self) -> int:
        """GPUs of an instance."""
        return math.prod(self.degrees)


class ClassLine(Document):
    """A group of like requests."""

    label: str
    model: str
    requests: float
    output_tokens: float
    deadline_s: float
    in_time: float = Field(description="requests planned to meet their deadline")
    ttft_s: float | None = Field(
        default=None, ge=0, description="mean TTFT of those, with continuous serving: planned wait and prefill"
    )
    token_s: float | None = Field(default=None, ge=0, description="likewise: time per output token after the first")
    e2e_s: float | None = Field(default=None, ge=0, description="likewise: from arrival to the last token")
    e2e_at_most_s: float | None = Field(
        default=None, ge=0, description="likewise: their deadline, or what slo.ttft_s leaves of it; mean"
    )


class ShareColumns(Document):
    """Requests by class, configuration and time bin, as columns: the dispatcher's shares.

    `admitted` arrive in the bin and are meant for the configuration; `started` begin prefill in the bin.
    """

    request_class: list[int] = []
    configuration: list[int] = []
    decode: list[int] = Field(
        default=[], description="configuration that decodes what this one prefills; itself: it does both; [] all do"
    )
    bin: list[int] = []
    admitted: list[float] = []
    started: list[float] = []


class ApartLine(Document):
    """Requests of a class that are prefilled on one configuration and decoded on another."""

    request_class: Count = Field(description="index into the plan's classes")
    prefill: Count = Field(description="index into its configurations")
    decode: Count = Field(description="likewise")
    requests: float = Field(ge=0, description="requests that meet their deadline")
    ttft_s: float = Field(
        ge=0, description="mean time from the start to the first token, sending of the cache included"
    )
    tpot_s: float = Field(ge=0, description="per token after it, the cache's receiving included; mean of the class")
    kv_gb: float = Field(ge=0, description="size of the caches of all these requests' prompts")


class AttainmentPrediction(Document):
    """Predicted attainment, all requests known beforehand: an upper bound on any dispatcher under overload."""

    requests: float
    in_time: float
    attainment: float = Field(description="share in time, unweighted")
    throughput_tokens_per_s: float = Field(description="tokens of requests in time over the horizon")
    mean_latency_s: float = Field(description="wait and prefill of requests in time: first token")
    gpus_used: Count
    gpus: Count
    slot_use: float = Field(description="busy share of the slots, or of the engines' time, over the horizon")


class ScoreLines(Document):
    """MS(6–8) and penalties."""

    satisfaction: float
    throughput: float
    latency: float
    changes: float
    shortfall: float
    total: float


CAUTIONS = (1.0, 1.5, 2.0)  # that dispatchers of engines are tried with


class Dispatcher(Document):
    """How requests are sent to instances while the plan runs."""

    policy: Policy | EnginePolicy | Literal["planned"] = Field(
        default="planned_shares", description="planned: each request as it was named beforehand, all of them known"
    )
    overflow_protection: bool = True
    queue: Queue = Field(default="fifo", description="order in which an instance serves")
    by_bin: bool = Field(default=True, description="the plan's shares bin by bin; else of a class over all bins")
    refuse_rest: bool = Field(
        default=False, description="refuse what the plan's shares leave out; of engines whatever the policy"
    )
    caution: float = Field(
        default=1.0, ge=0, le=100, description="predictions have tokens take so many times the level's step at least"
    )
    strict_slo_factor: float | None = Field(
        default=None, description="requests with θ up to this go to sub-cluster 0, others to 1"
    )


class AttainmentPromise(certification.PromiseDocument):
    """A share that a plan promises of a model's requests or times between tokens, and what replays found."""

    model: str
    metric: Literal["in_time", "itl_s"] = Field(
        default="in_time", description="requests in time, or times between tokens within their limit"
    )
    promised: Portion = Field(description="attainment predicted by the linear model; of ITL its percentile, or 1")
    seen: Portion = Field(description="mean over the draws; of a trace replayed once, its attainment")
    requests: float = Field(ge=0, description="requests or times replayed, all draws together")


class ReplayRound(certification.RoundDocument):
    """One round of certification: a plan, and what its replays found."""

    looser: bool = Field(description="whether the quantile and waits of certification replaced the engine's")
    attainment: Portion = Field(description="predicted, of all requests")
    replayed: Portion


class ModelCut(Document):
    """Cut of a model's configurations by certification in the linear model."""

    model: str
    keep: float = Field(gt=0, le=1, description="share kept of every capacity of an engine at its level")
    in_time: float = Field(
        gt=0, le=1, description="share kept of the requests of each class that can meet the deadline"
    )


class ReplayCertification(certification.CertificationDocument):
    """How far replays confirmed a plan's promise, and the cuts that this took."""

    copies: Count = Field(description="draws of the requests replayed; 0: the trace itself, once, without chance")
    bound_looser: bool = Field(
        description="the bound is of the linear model, without cuts, with the quantile and waits of certification in"
        " place of the engine's"
    )
    rounds: list[ReplayRound] = []
    cuts: list[ModelCut] = Field(default=[], description="cuts that the plan was made under")
    promises: list[AttainmentPromise] = Field(default=[], description="SLO attainments of the plan")


class OrchestrationPlan(Document):
    """Instances, shares, prediction."""

    formulation: Literal["orchestration"] = "orchestration"
    name: str
    bin_s: float
    bins: int
    configurations: list[ConfigurationLine]
    instances: list[InstanceLine]
    classes: list[ClassLine]
    shares: ShareColumns
    apart: list[ApartLine] = Field(
        default=[], description="requests prefilled on one configuration and decoded on another"
    )
    prediction: AttainmentPrediction
    score: ScoreLines
    shortfalls: dict[str, float] = Field(default={}, description="model → missing share of its attainment_at_least")
    started: Count = Field(default=0, description="instances to start, against change.running")
    stopped: Count = 0
    moved: Count = Field(default=0, description="running instances that had to change GPUs")
    dispatcher: Dispatcher = Dispatcher()
    online: Dispatcher | None = Field(
        default=None,
        description="best dispatcher without knowledge of the requests, where `dispatcher` is planned",
    )
    certification: ReplayCertification | None = Field(default=None, description="None: the problem asks for none")

    @property
    def attainment_by_model(self) -> dict[str, float]:
        """Share of each model's requests that is planned to be in time, of models with requests."""
        asked, in_time = defaultdict[str, float](float), defaultdict[str, float](float)
        for c in self.classes:
            asked[c.model] += c.requests
            in_time[c.model] += c.in_time
        return {model: in_time[model] / number for model, number in asked.items() if number > 0}

    def headline(self) -> str:
        """One line: instances and attainment."""
        p = self.prediction
        count, kinds = len(self.instances), len({c.model for c in self.configurations})
        # In slots of a decay model prefill takes no time: then only the wait is counted.
        until = "wait and prefill" if any(c.engine is None for c in self.configurations) else "first token after"
        first = f"{until} {p.mean_latency_s:.3g} s"
        if p.mean_latency_s == 0:  # prefill with any speed takes time, and so does a step of an engine
            first = "first token at once (no prefill modelled)" if p.in_time > 0 else "no first token within the SLO"
        return (
            f"{count:,} instance{'s' * (count != 1)} of {kinds} model{'s' * (kinds != 1)} on {p.gpus_used:,} of"
            f" {p.gpus:,} GPUs;"
            f" {p.attainment:.2%} of {p.requests:,.0f} requests predicted to meet the SLO,"
            f" {p.throughput_tokens_per_s:,.0f} output tokens/s,"
            f" {first}"
        )
