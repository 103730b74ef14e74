"""The plan of a reserved-capacity problem: what to reserve, what to buy by the hour, who serves whom."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from optmodels.catalog.types import Market
from optmodels.limits import either
from optmodels.plans.lines import Amount, Count, EngineLine, RankedDocument, SeveralRanks
from optmodels.plans.outcome import Document

Index = Annotated[int, Field(ge=0, le=10**6)]
Money = Annotated[float, Field(allow_inf_nan=False)]


class ReservationLine(Document):
    """Some machines of one type reserved in one region for one term."""

    region: str
    machine: str
    term: Market
    first_quarter: Index
    count: Annotated[int, Field(ge=1, le=10**12)]
    usd_per_hour_each: Amount


class HourlyPurchases(Document):
    """Machines bought by the hour, as columns; `machines` are those paid for (spot: before interruptions)."""

    scenario: list[Index] = []
    quarter: list[Index] = []
    hour: list[Index] = []
    region: list[str] = []
    machine: list[str] = []
    market: list[Market] = []
    machines: list[Amount] = []


class Unserved(Document):
    """Demand left unserved at its price, as columns."""

    scenario: list[Index] = []
    quarter: list[Index] = []
    hour: list[Index] = []
    region: list[str] = []
    service: list[str] = []
    requests_per_s: list[Amount] = Field(default=[], validation_alias=either("requests_per_s"))


class ServingLine(RankedDocument):
    """How machines of one type run one service, with continuous batching; latencies are bounds at the SLO's percentile.

    A machine with several operating points has a line for each. The engine's capacities are those in use at the rate
    stated, and `utilisation` plans a share.
    """

    left_out: ClassVar[tuple[str, ...]] = ("attention_ranks", "reach_ms")

    machine: str
    service: str
    tensor_parallel: Count
    attention_ranks: SeveralRanks = None
    replicas_per_machine: Count
    reach_ms: Amount | None = Field(
        default=None, description="longest round trip within the SLO; left out where a machine has one operating point"
    )
    requests_per_s: Amount = Field(validation_alias=either("requests_per_s"), description="requests/s of one machine")
    ttft_s: Amount = Field(description="TTFT at the machine, without waiting")
    wait_s: Amount = Field(description="before prefill, at the percentile of the TTFT")
    tpot_s: Amount = Field(description="time per output token")
    itl_s: Amount | None = Field(default=None, description="time between tokens; where the SLO limits it")
    e2e_s: Amount = Field(description="mean time of a request at the machine")
    engine: EngineLine


class FlowLine(Document):
    """Requests of one region served in another (or the same) one."""

    origin: str
    server: str
    rtt_ms: Amount
    mean_requests_per_s: Amount = Field(validation_alias=either("mean_requests_per_s"))
    peak_requests_per_s: Amount = Field(
        validation_alias=either("peak_requests_per_s"),
        description="rate of the busiest hour, all services together",
    )
    egress_usd_per_month: Amount = 0.0


class CostLines(Document):
    """USD per month of 730 h, mean over the horizon and the scenarios, and what reservations commit to, USD."""

    reserved_usd_per_month: Money = Field(description="within the horizon")
    beyond_horizon_usd_per_month: Money = Field(
        default=0.0, description="the share charged of what commitments cost after the horizon, spread over its months"
    )
    on_demand_usd_per_month: Money
    spot_usd_per_month: Money
    unserved_usd_per_month: Money
    egress_usd_per_month: Money = 0.0
    total_usd_per_month: Money
    committed_usd: Money | None = Field(default=None, description="all reservations until their terms end")
    committed_beyond_horizon_usd: Money | None = Field(
        default=None, description="part of it after the last quarter of `growth`; without `growth` there is no last one"
    )


class ReservedPlan(Document):
    """Reservations for the horizon, purchases by the hour, forwarding."""

    formulation: Literal["reserved_capacity"] = "reserved_capacity"
    name: str
    reservations: list[ReservationLine]
    purchases: HourlyPurchases
    unserved: Unserved
    serving: list[ServingLine] = Field(
        default=[],
        description="engines by machine and service, with continuous batching; none where the file states rates",
    )
    flows: list[FlowLine] = Field(description="weighted mean over the horizon, local service included")
    forwarded_share: Money
    pooled: bool = Field(default=True, description="false: every region for itself, or another comparison plan")
    cost: CostLines

    def headline(self) -> str:
        """One line: reservations and their cost."""
        total = sum(r.count for r in self.reservations)
        regions = len({r.region for r in self.reservations})
        what = f"{total:,} machine{'s' * (total != 1)} reserved in {regions} region{'s' * (regions != 1)}"
        terms = sorted({r.term.replace("reserved_", "") for r in self.reservations})
        bought = f"{what} ({', '.join(terms)})" if total else "nothing reserved"
        hourly = self.cost.on_demand_usd_per_month + self.cost.spot_usd_per_month
        extra = f", {hourly:,.0f} USD/month by the hour" if hourly > 0 else ""
        return f"{bought}{extra}; {self.cost.total_usd_per_month:,.0f} USD/month, {self.forwarded_share:.1%} forwarded"
