"""The plan of a cost-efficiency problem: its schema and its headline."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from optmodels.latency.strategies import FAMILY_TITLES, Family
from optmodels.limits import either
from optmodels.plans.lines import Count, EngineLine, LimitLine, MachineLine, Money, RankedDocument, SeveralRanks
from optmodels.plans.outcome import Document

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class LatencyPrediction(Document):
    """Predicted latencies of the batch."""

    ttft_s: float | None
    tpot_s: float | None = Field(validation_alias=either("tpot_s"))
    e2e_s: Rate
    tps: Rate = Field(description="B·(S_in + S_out)/E2E, LP(6)")
    ao_load: float | None = Field(default=None, description="ρ of a shared AO machine")


class CostEfficiencyValue(Document):
    """CE in the unit of LP(9) and in the unit the paper's Table IX uses."""

    tokens_per_usd: float
    tps_per_usd_per_hour: float


class CostPlan(RankedDocument):
    """One deployment for one workload."""

    formulation: Literal["cost_efficiency"] = "cost_efficiency"
    name: str
    family: Family
    machines: list[MachineLine]
    tensor_parallel: Count
    attention_ranks: SeveralRanks = None
    replicas_per_machine: Count
    passes: Count = Field(description="k of multi-pass, else 1")
    alpha: float = Field(ge=0, le=1)
    batch_split: list[Count] = Field(
        min_length=1,
        description="requests of every replica (multi-pass: of every pass of every replica)",
    )
    prediction: LatencyPrediction
    usd_per_hour: Money
    usd_per_million_tokens: Money
    ce_capped: CostEfficiencyValue
    ce_uncapped: CostEfficiencyValue
    limits: list[LimitLine]
    uses_spot: bool
    engine: EngineLine | None = Field(
        default=None,
        description="engine of each replica, with continuous batching: `batch_split` counts requests in flight, "
        "latencies are bounds at the SLO's percentiles, E2E and TPS are means",
    )
    measured: str | None = Field(default=None, description="name of the measured operating point, if it is one")

    def headline(self) -> str:
        """One line: what to buy and how to run it."""
        bought = " + ".join(f"{m.count}× {m.machine} ({m.market.replace('_', '-')})" for m in self.machines)
        how = FAMILY_TITLES[self.family] if self.engine is None else "continuous batching"
        if self.family == "multi_pass":
            how += f" k={self.passes}"
        if self.machines[0].gpus_per_machine > 1:
            how += f", TP={self.tensor_parallel}{_ranks(self.attention_ranks)}" + (
                f"×{self.replicas_per_machine} replicas" if self.replicas_per_machine > 1 else ""
            )
        if self.family not in ("high_end", "multi_pass"):
            how += f", α={self.alpha:.3f}"
        return f"{bought}: {how}"


def _ranks(several: int | None) -> str:
    return "" if several is None else f" × {several} attention ranks"
