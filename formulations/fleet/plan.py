"""The plan of a fleet: its schema, its headline, the value its objective rates."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from optmodels.certification import document as certification
from optmodels.certification.document import Whole
from optmodels.engine.continuous import Stage
from optmodels.latency.strategies import Family
from optmodels.limits import SPELLED, either
from optmodels.plans.lines import (
    Amount,
    Count,
    EngineLine,
    LimitLine,
    MachineLine,
    Money,
    RankedDocument,
    SeveralRanks,
)
from optmodels.plans.outcome import Document
from optmodels.traces.types import Routing

Share = Annotated[float, Field(ge=0, le=1.001)]  # rounding of many shares included
Machines = dict[str, Annotated[int, Field(strict=True, ge=0, le=10**9)]]  # a deployment takes several


class ShareLine(Document):
    """A share of one demand on one deployment, with what its requests see.

    With continuous batching latencies are bounds at the percentile that the SLO names (none: the mean), waiting
    included; the load is on the share's scarcest capacity. A deployment that only prefills states
    TTFT with sending the KV cache, one that only decodes the time per token with receiving it, and either its part of
    E2E at the percentile of the deadline: the part of any of the former and of any of the latter that it can go to.
    """

    demand: str
    share: Share
    requests_per_s: Amount
    load: Amount = Field(description="load of all counted deployments together, in deployments at their planned load")
    alpha: Annotated[float, Field(ge=-1e-6, le=1 + 1e-6)] | None = None
    ttft_s: Amount | None = Field(default=None, description="without waiting")
    tpot_s: Amount | None = Field(default=None, validation_alias=either("tpot_s"))
    itl_s: Amount | None = Field(default=None, description="time between tokens; where the SLO limits it")
    e2e_s: Amount | None = Field(default=None, description="without waiting")
    wait_s: Amount = Field(default=0.0, description="mean, or at the SLO's percentile")
    misses_slo: bool = False


class DeploymentLine(RankedDocument):
    """Some equal deployments in one period."""

    name: str
    count: Count
    stage: Stage = Field(default="both", description="stage of its requests that it serves")
    usd_per_hour_each: Money
    machines: list[MachineLine] = Field(min_length=1, max_length=2, description="machines of one deployment")
    loads: str | None = Field(default=None, description="a workload whose model it loads; None: a measured point")
    model: str | None = Field(
        default=None, description="model, of those that the workload accepts; None: it has no list of them"
    )
    family: Family | None = None
    tensor_parallel: Count | None = None
    attention_ranks: SeveralRanks = None
    replicas_per_machine: Count | None = None
    passes: Count = 1
    batch: Count
    load_level: float = Field(gt=0, le=1, description="share of its capacity that is planned")
    service_cap_s: Amount | None = Field(default=None, description="longest service time that waiting is planned for")
    engine: EngineLine | None = Field(default=None, description="None: static batches")
    point: str | None = Field(default=None, description="name of the measured point")
    serves: list[ShareLine]
    utilisation: Amount = Field(description="share of full capacity in use, 1 being saturation")
    headroom: float = Field(le=1, allow_inf_nan=False, description="share of planned capacity that is free")


class TransferLine(Document):
    """KV caches that go from prefill to decode deployments of one workload's model in one region."""

    loads: str | None = Field(description="a workload whose model it is; None: between measured points")
    model: str | None = Field(
        default=None, description="model, of those that the workload accepts; None: it has no list of them"
    )
    region: str
    tensor_parallel: Count | None = Field(
        default=None, description="tensor parallelism of both sides, where they must be equal"
    )
    requests_per_s: Amount
    gb_per_s: Amount | None = Field(
        default=None, description="None: between measured points, which have the rate alone"
    )
    demands: dict[str, Share] = Field(description="share of each that is served apart")


class UnservedLine(Document):
    """A share of one demand that is not served."""

    demand: str
    share: Share
    requests_per_s: Amount
    usd_per_hour: Amount


class ShadowPrice(Document):
    """The gain of one more unit of a limit."""

    limit: str
    unit: str
    gain: Amount = Field(description="better objective with one more unit, in the objective's unit")
    exact: bool = Field(description="true: found by solving again; false: from the linear relaxation")


class PromiseLine(certification.PromiseDocument):
    """An SLO of a demand on a line, and the result of the simulation."""

    period: str
    deployment: str
    demand: str
    latency: Annotated[
        Literal["ttft_s", "tpot_s", "itl_s", "deadline_s"], BeforeValidator(lambda name: SPELLED.get(name, name))
    ]
    percentile: Annotated[float, Field(gt=0, lt=1)] | None = Field(default=None, description="None: the mean")
    at_most_s: Money
    seen_s: Amount


class RoundLine(certification.RoundDocument):
    """One round of certification: a plan, and the result of its engines' simulation."""

    stretch: float = Field(ge=1, le=10, description="the model's limits were so many times as long as the promises")
    objective: Amount
    worst: Amount = Field(description="largest of what was seen over what was promised")
    worst_of: str = Field(description="the demand and latency of it")
    requests: Whole = Field(description="simulated")


class CutLine(RankedDocument):
    """Cut of a point by certification: an engine at one level, in whatever market and place."""

    # Fields that name the point.
    POINT: ClassVar = ("loads", "model", "stage", "gpu", "gpu_gib", "tensor_parallel", "attention_ranks", "step_s",
                       "wait_s", "most_of_wait", "place_wait_s")  # fmt: skip

    loads: str = Field(description="a workload whose model it loads")
    model: str | None = Field(
        default=None, description="model, of those that the workload accepts; None: it has no list of them"
    )
    stage: Stage = "both"
    gpu: str
    gpu_gib: Money
    tensor_parallel: Count
    attention_ranks: SeveralRanks = None
    step_s: Money
    wait_s: Amount
    most_of_wait: Amount | None = None
    place_wait_s: Amount = 0.0
    keep: float = Field(gt=0, le=1, description="share of its planned load that it may have")
    forbidden: list[str] = Field(default=[], description="demands that it does not serve")


class CertificationLine(certification.CertificationDocument):
    """How far a plan's promises were confirmed by simulation, and the cuts that this took."""

    arrivals: Literal["poisson", "trace"] = Field(
        default="poisson",
        description="arrivals of the simulated requests; trace: the trace's own, without randomness",
    )
    bound_stretch: float = Field(
        ge=1, le=10, description="the bound is of the linear model, uncut, whose limits are so many times as long"
    )
    bound_stretch_alone: float | None = Field(
        default=None, ge=1, le=10,
        description="the same of fleets without stages apart, if longer: no fleet of either model is better",
    )  # fmt: skip
    rounds: list[RoundLine] = []
    cuts: list[CutLine] = Field(default=[], description="cuts that the plan was made under")
    promises: list[PromiseLine] = Field(default=[], description="SLOs of the plan")

    @model_validator(mode="after")
    def _alone_is_longer(self) -> Self:
        if self.bound_stretch_alone is not None and self.bound_stretch_alone <= self.bound_stretch:
            raise ValueError(f"bound_stretch_alone: longer than bound_stretch, {self.bound_stretch:g}, or none")
        return self


class PeriodLine(Document):
    """Deployments of one period."""

    name: str
    hours: Money
    usd_per_hour: Amount
    requests_per_s: Amount
    served_requests_per_s: Amount
    deployments: list[DeploymentLine]
    unserved: list[UnservedLine]
    transfers: list[TransferLine] = []
    limits: list[LimitLine]
    starts: Machines = Field(default={}, description="machines by resource, from what ran before")
    stops: Machines = {}


class ScenariosLine(Document):
    """Shares that the plan's engines serve in the scenarios' draws, under the best routing of each."""

    draws: Count
    unserved_share: Share = Field(description="mean over the draws")
    worst_share: Share = Field(description="largest unserved share of a draw")
    all_served: Share = Field(description="share of the draws in which at most 0.01 % is unserved")
    usd_per_hour: Amount = Field(description="cost of the unserved requests, mean over the draws")
    routes: list[list[str]] = Field(
        description="demands that each deployment line may serve in a draw, in the order of the lines"
    )


class FleetPlan(Document):
    """Counts of deployments and shares of every workload, by period."""

    formulation: Literal["fleet"] = "fleet"
    name: str
    objective: Literal["min_cost", "max_ce", "max_served"]
    periods: list[PeriodLine]
    usd_per_hour: Amount = Field(description="machines, mean over the day")
    penalty_usd_per_hour: Amount = Field(description="missed soft SLOs and unserved requests")
    change_usd_per_hour: Amount
    total_usd_per_hour: Amount
    served_share: Share
    usd_per_million_tokens: Amount | None
    tokens_per_usd: Amount = Field(description="weighted tokens served per USD in total")
    first_priority_served_per_s: Amount = Field(description="weighted requests/s served of the highest priority")
    pools_on_spot: int = Field(ge=0, le=10**6)
    survival_probability: Annotated[float, Field(ge=0, le=1 + 1e-9)] | None = Field(
        default=None, description="probability that every spot pool keeps its load"
    )
    routing: Routing | None = Field(
        default=None, description="routing to engines that the measured prefix-cache hits of the plan assume; None: any"
    )
    shadow_prices: list[ShadowPrice] = Field(
        default=[], validation_alias=AliasChoices("shadow_prices", "worth"), description="``worth`` in documents of 0.1"
    )

    certification: CertificationLine | None = Field(default=None, description="None: the problem asks for none")
    scenarios: ScenariosLine | None = Field(default=None, description="None: the problem has no scenarios")

    @property
    def stretch(self) -> float:
        """How many times as long as promised the limits were that the plan's model kept."""
        c = self.certification
        return 1.0 if c is None or not 0 < c.of_round <= len(c.rounds) else c.rounds[c.of_round - 1].stretch

    def headline(self) -> str:
        """One line: what to buy."""
        period = max(self.periods, key=lambda q: q.usd_per_hour)
        bought: dict[str, int] = {}
        for d in period.deployments:
            for m in d.machines:
                key = m.machine + ("" if m.market == "on_demand" else f" ({m.market.replace('_', '-')})")
                key += f" in {m.region}" if m.region and len({x.region for e in period.deployments
                                                               for x in e.machines}) > 1 else ""  # fmt: skip
                bought[key] = bought.get(key, 0) + m.count * d.count
        text = " + ".join(f"{c}× {k}" for k, c in sorted(bought.items(), key=lambda i: -i[1])[:8]) or "nothing"
        more = f" + {len(bought) - 8} more types" if len(bought) > 8 else ""
        return text + more + (f" (peak: {period.name})" if len(self.periods) > 1 else "")


def objective_value(plan: FleetPlan) -> float:
    """The value that the plan's objective rates."""
    match plan.objective:
        case "min_cost":
            return plan.total_usd_per_hour
        case "max_ce":
            return plan.tokens_per_usd
        case _:
            return plan.first_priority_served_per_s
