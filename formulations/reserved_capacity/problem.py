"""Instance schema of the reserved-capacity problem (SkyLB §2.2): commitments over regions for diurnal demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Discriminator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, PrivateAttr, Tag, model_validator
from pydantic_core import core_schema

from formulations.reserved_capacity.demand import Demand, demand_of
from formulations.reserved_capacity.throughput import (
    UNLIMITED_S,
    AnyWorkload,
    MachineChoice,
    SafetyLevel,
    ServiceMix,
    choices_of,
)
from optmodels import catalog
from optmodels.arrays import Array, Index, Mask
from optmodels.catalog import geography
from optmodels.catalog.prices import read_prices
from optmodels.catalog.types import MARKETS, CloudName, Entry, GpuName, Market, Prices
from optmodels.engine.continuous import EngineLimits, LatencyLimit, Percentile, latency_limit, seconds_and_quantile
from optmodels.engine.costs import ONE_OF_STATIC, check_speculation, written_out
from optmodels.engine.lengths import ALIKE_OF_STATIC, in_words
from optmodels.errors import InputError, Mistake, Mistakes, UnattainableError, did_you_mean
from optmodels.io.tables import csv_lines
from optmodels.latency.resolve import StepLatency, read_source
from optmodels.limits import SPELLED, Limit, either
from optmodels.problem import Problem
from optmodels.units import REQUESTS, Fraction, Gib, NonNegativeSeconds, PositiveFraction, PositiveInt, Unit

UsdPerGb = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Kilobytes = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=0)]
Available = Count | dict[str, Count] | None
HOURS_PER_MONTH = 730.0
MONTHS_PER_QUARTER = 3
QUARTERS_OF_TERM: dict[Market, int] = {"reserved_1y": 4, "reserved_3y": 12}
MACHINES_TRUSTED = (1e-4, 1e8)  # that serve the largest demand: beyond, a solver's tolerances are too coarse
USD_PER_HOUR_TRUSTED = (1e-6, 1e7)
PRICES_APART = 1e6  # most over least expensive machine
USD_FORGONE_TRUSTED = (1e-6, 1e10)  # in an hour, of the requests that the fastest machine serves
MONTH_AGAINST_HOUR = 100.0  # a larger ratio between prices of one machine is a mix-up of units


class Region(Entry):
    """A region: users live here and machines may stand here. Known cloud regions bring their place and clock."""

    region: str = Field(
        min_length=1, max_length=100, description="name; a cloud region of the catalogue brings its place and clock"
    )
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False, description="share of generated demand, on any scale")
    time_zone: str | None = Field(default=None, description="time zone, an IANA name; default: the catalogue's")
    utc_offset_h: float | None = Field(
        default=None, ge=-14, le=14, description="local time ahead of UTC, in place of time_zone"
    )
    latitude_deg: float | None = Field(
        default=None, ge=-90, le=90, description="latitude, north; default: the catalogue's"
    )
    longitude_deg: float | None = Field(
        default=None, ge=-180, le=180, description="longitude, east; default: the catalogue's"
    )


class _OrName:
    """Marks a section for which its name alone may stand: ``us-east-1`` for ``{region: us-east-1}``."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def section(value: Any) -> Any:
            return {"region": value} if isinstance(value, str) else value

        return core_schema.no_info_before_validator_function(section, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> Any:
        return {"anyOf": [handler(schema), {"type": "string", "minLength": 1, "maxLength": 100}]}


class Egress(Entry):
    """Price of data between regions, USD per GB (10⁹ bytes): a catalogue table, or by the region that sends."""

    catalog: str | None = Field(default=None, description="a table of prices: optmodels list catalog")
    usd_per_gb: UsdPerGb | dict[str, UsdPerGb | dict[str, UsdPerGb]] | None = Field(
        default=None, description="one price, by source, or by source and destination (*: any other)"
    )

    @model_validator(mode="after")
    def _one(self) -> Egress:
        if (self.catalog is None) == (self.usd_per_gb is None):
            raise ValueError("exactly one of catalog and usd_per_gb")
        return self


class Network(Entry):
    """Round-trip times: a catalogue table, a CSV file, a matrix in the file, or an estimate from distance."""

    catalog: str | None = Field(default=None, description="a table of round trips: optmodels list catalog")
    file: str | None = Field(
        default=None, description="CSV of round trips: first column and header are regions, cells ms"
    )
    rtt_ms: dict[str, dict[str, float]] | None = Field(
        default=None, description="round trip from region to region; one direction is enough"
    )
    estimate: Literal["geodesic"] | None = Field(default=None, description="round trips estimated from the distance")
    local_rtt_ms: float | None = Field(
        default=None, ge=0, description="round trip from a user to a machine in the same region"
    )
    egress: Egress | None = Field(default=None, description="price of forwarded requests and answers")

    @model_validator(mode="after")
    def _one(self) -> Network:
        if sum(v is not None for v in (self.catalog, self.file, self.rtt_ms, self.estimate)) != 1:
            raise ValueError("exactly one of catalog, file, rtt_ms and estimate")
        return self


class Serving(Entry):
    """Throughput and times of one machine for one service."""

    requests_per_s: Annotated[float, Unit(REQUESTS), Field(gt=0, allow_inf_nan=False)] = Field(
        validation_alias=either("requests_per_s"),
        description="throughput at the largest batch that meets the TPOT limit",
    )
    prefill_s: NonNegativeSeconds = Field(default=0.0, description="prefill time of a mean prompt")
    e2e_s: NonNegativeSeconds | None = Field(
        default=None,
        description="time of a request at the machine, queue included; for services with a deadline_s",
    )  # fmt: skip


AnyServing = Annotated[
    Annotated[Serving, Tag("Serving")] | Annotated[tuple[Serving, ...], Field(min_length=1), Tag("Levels")],
    Discriminator(lambda value: "Levels" if isinstance(value, list | tuple) else "Serving"),
]


class MachineType(Entry):
    """A machine type with its prices by region and its throughput."""

    machine: str = Field(min_length=1, max_length=200, description="name of the machine, as in the list")
    prices: Prices = Field(default=Prices(), description="prices in every region")
    prices_by_region: dict[str, Prices] = Field(default={}, description="prices by region, in place of prices")
    prices_file: str | None = Field(
        default=None,
        description="CSV with machine, region, *_usd_per_hour or _per_month; SkyPilot's catalogue, or a FOCUS export",
    )
    price_columns: dict[str, str] = Field(
        default={}, description="columns of a prices_file with names of its own, ours: THEIRS, e.g. machine: sku"
    )
    price_source: str = Field(default="", max_length=2000, description="source and date of the prices")
    catalog: CloudName | None = Field(default=None, description="pool whose prices by region and GPU are used")
    regions: tuple[str, ...] | None = Field(
        default=None, description="regions that offer it; default: the regions with a price"
    )
    reservable: Annotated[Available, Limit("reservable {owner}{key}", "most", "machines")] = Field(
        default=None, description="most reserved machines per region"
    )
    on_demand_available: Annotated[Available, Limit("{owner} on demand{key}", "most", "machines")] = Field(
        default=None,
        description="most on-demand machines in an hour, by region or for every region; default: any number",
    )
    spot_available: Annotated[Available, Limit("{owner} on spot{key}", "most", "machines")] = Field(
        default=None,
        description="most spot machines in an hour, by region or for every region; default: any number",
    )
    spot_lost_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="share of the paid spot time lost to interruptions"
    )
    minimum: Annotated[Count, Limit("a reservation of {owner}", "least", "machines", off=0)] = Field(
        default=0, description="smallest reservation in a region and term"
    )
    step: PositiveInt = Field(default=1, description="step of reservations: they are multiples of it")
    serves: dict[str, AnyServing] = Field(
        default={},
        description="throughput of a machine by service; of a list of operating points each region uses the fastest "
        "within reach; default: computed from the service's workload",
    )
    gpu: GpuName | None = Field(default=None, description="GPU type; default: the list's")
    gpu_count: PositiveInt = Field(default=1, description="number of GPUs")
    vram_gib: Gib | None = Field(
        default=None, description="VRAM of all its GPUs together; default: the list's or the GPU's"
    )


class ServiceSlo(Entry):
    """Latency limits of a service; TTFT = round trip + queue + prefill (SK §2.1), the deadline's with all tokens.

    A number bounds the mean; with serving: continuous ``{at_most: 0.6, percentile: 0.95}`` bounds a percentile.
    """

    ttft_s: Annotated[LatencyLimit, latency_limit("TTFT")] = Field(
        description="time to the first token, round trip and queue included"
    )
    queue_s: NonNegativeSeconds = Field(
        default=0.0,
        description="queueing delay within the TTFT limit; with serving: continuous the longest one, at "
        "the percentile of ttft_s",
    )
    tpot_s: Annotated[LatencyLimit | None, latency_limit("TPOT")] = Field(
        default=None, validation_alias=either("tpot_s"), description="time per output token (TPOT)"
    )
    itl_s: Annotated[LatencyLimit | None, latency_limit("ITL")] = Field(
        default=None,
        description="time between two output tokens, pauses for others' prompts included (serving: continuous); its "
        "percentile is of all such times of all requests",
    )
    deadline_s: Annotated[LatencyLimit | None, latency_limit("time of a request")] = Field(
        default=None, description="end-to-end time of a request, round trip and queue included"
    )

    @property
    def ttft_limit_s(self) -> float:
        """Its seconds."""
        return seconds_and_quantile(self.ttft_s)[0]

    @property
    def deadline_limit_s(self) -> float:
        """Its seconds, infinite without one."""
        return seconds_and_quantile(self.deadline_s)[0]


class Service(Entry):
    """One model, served to users in several regions."""

    service: str = Field(alias="name", min_length=1, max_length=100, description="name of the service")
    slo: ServiceSlo = Field(description="latency limits")
    demand: Demand = Field(description="requests by hour and region; kind names the source")
    workload: AnyWorkload | None = Field(
        default=None,
        description="workload to compute the machines' throughput from; requests of one length or of several",
    )
    kappa: float = Field(
        default=1.0,
        ge=1,
        allow_inf_nan=False,
        description="work of a forwarded request divided by the work of a local one",
    )
    forwarding_ceiling: Annotated[
        Fraction, Limit("share of {owner} that may leave its region", "most", "%", off=1.0)
    ] = Field(
        default=1.0,
        description="largest share of a region's demand served elsewhere, in any hour; no ceiling after the loss of "
        "the region",
    )
    residency: Annotated[dict[str, tuple[str, ...]], Limit("regions that serve {owner} to users{key}", "among")] = (
        Field(default={}, description="regions that may serve the users of a region")
    )
    request_kb: Kilobytes = Field(default=0.0, description="10³ bytes of a request to a machine elsewhere")
    answer_kb: Kilobytes = Field(default=0.0, description="10³ bytes of its answer")
    unserved_usd_per_request: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="price of a refused request; default: all are served",
    )


class Resilience(Entry):
    """Share of demand to serve in every hour after a loss."""

    lose_any_region_keep: Annotated[
        PositiveFraction | None, Limit("demand kept after losing any region", "least", "%")
    ] = Field(default=None, description="least share of demand served after the loss of any one region")
    lose_spot_keep: Annotated[
        PositiveFraction | None, Limit("demand kept after losing all spot machines", "least", "%")
    ] = Field(default=None, description="least share of demand served after the loss of all spot machines")
    count_on_demand: Annotated[bool, Limit("on-demand machines not counted on after a loss", "flag", off=True)] = Field(
        default=False, description="count on-demand machines up to their availability"
    )


class Scenario(Entry):
    """One future of demand: every hour times a factor."""

    scenario: str = Field(description="name of the scenario")
    probability: PositiveFraction = Field(description="probability of the scenario; they sum to 1")
    factor: float = Field(default=1.0, ge=0, allow_inf_nan=False, description="factor on every hour's demand")
    by_region: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default={}, description="factor by region, times factor"
    )


class WorstCase(Entry):
    """Budgeted worst case: in any hour up to `regions` regions exceed their demand by `deviation`."""

    deviation: float = Field(
        gt=0, allow_inf_nan=False, description="share by which demand may exceed the expected demand"
    )
    regions: PositiveInt = Field(description="number of regions that may exceed it in one hour")


class Uncertainty(Entry):
    """Scenarios (two-stage: reservations before, on-demand and flows after) and a worst case to survive."""

    scenarios: tuple[Scenario, ...] = Field(default=(), description="demand scenarios; default: one, as expected")
    worst_case: Annotated[
        WorstCase | None, Limit("excess over expected demand to survive", "least", "%", inner="deviation")
    ] = Field(default=None, description="excess over expected demand that the plan must serve")

    @model_validator(mode="after")
    def _sums_to_one(self) -> Uncertainty:
        total = sum(s.probability for s in self.scenarios)
        if self.scenarios and abs(total - 1) > 1e-6:
            raise ValueError(f"probabilities that sum to 1 (these sum to {total:g})")
        return self


class Growth(Entry):
    """A horizon of quarters: demand multiplied every quarter; commitments may start in any of them."""

    quarters: Annotated[int, Field(strict=True, ge=1, le=40)] = Field(description="length of the horizon in quarters")
    factor_per_quarter: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="factor on demand from each quarter to the next"
    )
    beyond_horizon_charged: Fraction = Field(
        default=1.0,
        description="share of commitments' cost after the last quarter that the plan is charged; 0 assumes the "
        "machines are needed then",
    )


def quarters_charged(growth: Growth | None, term: Market, first_quarter: int = 0) -> float:
    """Quarters of a commitment bought in `first_quarter` that a plan is charged; 1 without growth."""
    if growth is None:
        return 1.0
    within = min(QUARTERS_OF_TERM[term], growth.quarters - first_quarter)
    return within + growth.beyond_horizon_charged * (QUARTERS_OF_TERM[term] - within)


class ReservedCapacity(Problem):
    """How many machines to reserve where, for how long, and what to buy by the hour on top."""

    formulation: Literal["reserved_capacity"] = Field(description="formulation of the file")
    regions: tuple[Annotated[Region, _OrName()], ...] = Field(
        min_length=1, description="regions of users and machines: sections, or names alone"
    )
    network: Network
    services: tuple[Service, ...] = Field(min_length=1, description="services to provide")
    machines: tuple[MachineType, ...] = Field(min_length=1, description="machine types to choose from")
    terms: Annotated[tuple[Market, ...], Limit("terms", "among", full=MARKETS)] = Field(
        default=("reserved_1y", "reserved_3y"),
        min_length=1,
        description="terms of reservations and hourly markets to buy in",
    )
    utilisation: Annotated[PositiveFraction, Limit("planned share of throughput", "most", "%", off=1.0)] = Field(
        default=1.0, description="share of a machine's throughput to plan with"
    )
    resilience: Resilience = Resilience()
    uncertainty: Uncertainty = Uncertainty()
    growth: Growth | None = Field(
        default=None, description="horizon with growing demand; default: one horizon without end"
    )

    serving: Literal["static", "continuous"] = Field(
        default="static",
        description="static: batches; continuous: engines with continuous batching; for machines whose throughput is "
        "computed from a workload",
    )
    engine: EngineLimits = Field(default=EngineLimits(), description="engine limits, with serving: continuous")
    latency: StepLatency | None = Field(
        default=None,
        description="latency model of these machines; default: default with serving: continuous, else the roofline",
    )

    _case: ReservedCase | None = PrivateAttr(default=None)

    def price_source(self, machine: MachineType) -> str:
        """Source and date of a machine's prices; empty if the instance does not state them."""
        said = [] if machine.catalog is None else [catalog.pools()[machine.catalog].prices_of(self.terms)]
        said += [x for x in (machine.prices_file, machine.price_source) if x]
        return "; ".join(said)

    def level(self) -> SafetyLevel | None:
        """How long steps take by the `latency` section; None: at the peaks of the hardware."""
        if self.serving == "continuous":
            of = self.latency or StepLatency()
            return SafetyLevel(read_source(self, of.model, of.engine), of.safety, self.engine)
        if self.latency is None or self.latency.model == "roofline":
            return None
        return SafetyLevel(read_source(self, self.latency.model, self.latency.engine), self.latency.safety)

    def resolve(self) -> ReservedCase:
        """Look up regions, round trips, prices, throughputs and demand; once per problem.

        Raises:
            InputError: every contradiction, each with its path.
        """
        if self._case is None or self._case.problem is not self:  # a copy carries its original's case
            self._case = _resolve(self)
        return self._case

    def inline(self) -> ReservedCapacity:
        """The same problem with files written out: demand by hour, round trips, prices and throughputs."""
        case = self.resolve()
        names = [r.region for r in self.regions]
        services = []
        for k, s in enumerate(self.services):
            demand = s.demand.inline(names, case.demand_rps[:, :, k], case.start)
            workload = s.workload
            if workload is not None and isinstance(workload.model, str):
                workload = workload.model_copy(update={"model": catalog.llms()[workload.model]})
            if isinstance(workload, ServiceMix):
                workload = workload.model_copy(update={"lengths": workload.classes})
            services.append(s.model_copy(update={"demand": demand, "workload": workload}))
        machines = []
        for i, m in enumerate(self.machines):
            prices = {
                r: Prices(**{t: float(v) for t, v in zip(MARKETS, case.usd_per_hour[i, s], strict=True) if v == v})
                for s, r in enumerate(names) if case.offered[i, s]
            }  # fmt: skip
            serves: dict[str, Serving | tuple[Serving, ...]] = {}
            for k, s in enumerate(self.services):
                levels = tuple(
                    Serving(requests_per_s=float(rate), prefill_s=float(case.prefill_s_at[i, k, x]),
                            e2e_s=None if s.slo.deadline_s is None else float(case.e2e_s_at[i, k, x]))
                    for x, rate in enumerate(case.rps_at[i, k]) if rate > 0
                )  # fmt: skip
                if levels:
                    serves[s.service] = levels if len(levels) > 1 else levels[0]
            listed = [c for c in catalog.machines(m.catalog) if c.machine == m.machine] if m.catalog else []
            hardware: dict[str, Any] = {}
            if listed and m.gpu is None:
                one = listed[0]
                hardware = {"gpu": one.gpu, "gpu_count": one.gpu_count, "vram_gib": m.vram_gib or one.vram_gib}
            machines.append(m.model_copy(update=hardware | {
                "prices": Prices(), "prices_by_region": prices, "prices_file": None, "price_columns": {},
                "catalog": None, "regions": None, "serves": serves, "price_source": self.price_source(m),
            }))  # fmt: skip
        rtt = {a: {b: float(case.rtt_ms[i, j]) for j, b in enumerate(names)} for i, a in enumerate(names)}
        egress = None
        if self.network.egress is not None:
            price = _egress_usd_per_gb(self, names)
            egress = Egress(usd_per_gb={
                a: {b: float(price[i, j]) for j, b in enumerate(names)} for i, a in enumerate(names)
            })  # fmt: skip
        level = self.level()
        latency = self.latency
        if latency is not None and level is not None:
            latency = latency.model_copy(update={"model": level.source.documents})
        return self.model_copy(update={
            "services": tuple(services), "machines": tuple(machines), "network": Network(rtt_ms=rtt, egress=egress),
            "latency": latency, "engine": written_out(self.engine),
        })  # fmt: skip


@dataclass(frozen=True)
class ReservedCase:
    """A problem with every reference resolved. R regions, T hours, K services, I machine types, L operating points.

    Attributes:
        start: first hour, UTC, or None where demand has no calendar.
        demand_rps: requests per second, mean of the hour, (T, R, K).
        rtt_ms: (R, R), user's region × serving region.
        usd_per_hour: (I, R, 4) in the order of MARKETS; NaN: not offered in that market.
        offered: (I, R).
        rps_at: requests/s of a machine at each operating point, (I, K, L); 0: there is none. The first one reaches
            users in as many regions as any from the machines nearest to them.
        prefill_s_at: (I, K, L).
        e2e_s_at: E2E of a request at the machine, queue included, as the deadline bounds it; 0 without a deadline,
            (I, K, L).
        reservable, on_demand_cap, spot_cap: machines, (I, R); infinite: no limit.
        egress_usd_per_request: (K, R, R) for a request of r served in s.
        reached: (K, R, R, I, L): users of r may be served in s on machine i at an operating point (round trip,
            residency, offer, SLO).
        notes: remarks for the reader.
    """

    problem: ReservedCapacity
    start: str | None
    demand_rps: Array
    rtt_ms: Array
    usd_per_hour: Array
    offered: Mask
    rps_at: Array
    prefill_s_at: Array
    e2e_s_at: Array
    reservable: Array
    on_demand_cap: Array
    spot_cap: Array
    egress_usd_per_request: Array
    reached: Mask
    places: tuple[tuple[float | None, float | None], ...]
    utc_offset_h: Array
    notes: tuple[str, ...] = field(default=())
    _choices: dict[tuple[int, int], tuple[MachineChoice, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def requests_per_s(self) -> Array:
        """At the first operating point, (I, K); 0: cannot serve."""
        return self.rps_at[:, :, 0]

    @cached_property
    def allowed(self) -> Mask:
        """Users of r may be served in s on machine i at some operating point, (K, R, R, I)."""
        return np.asarray(self.reached.any(axis=4))

    @cached_property
    def level(self) -> Index:
        """The operating point at which machine i in s serves users of r: the fastest within reach, (K, R, R, I)."""
        rate = self.rps_at.transpose(1, 0, 2)[:, None, None]
        return np.asarray(np.where(self.reached, rate, -1.0).argmax(axis=4))

    @cached_property
    def pair_rps(self) -> Array:
        """Requests/s of a machine at it, (K, R, R, I); 0 where not allowed."""
        K, I = self.rps_at.shape[1::-1]  # noqa: E741
        k, i = np.arange(K)[:, None, None, None], np.arange(I)
        return np.where(self.allowed, self.rps_at[i, k, self.level], 0.0)

    @cached_property
    def regions(self) -> list[str]:
        """Region names in order."""
        return [r.region for r in self.problem.regions]

    def choices(self, machine: int, service: int, level: SafetyLevel | None) -> tuple[MachineChoice, ...]:
        """How a machine type may run a service whose throughput comes of its workload; else none."""
        m, s = self.problem.machines[machine], self.problem.services[service]
        if s.workload is None or not self.requests_per_s[machine, service]:
            return ()
        away = self.regions, s, self.demand_rps[:, :, service], self.rtt_ms, self.offered[machine]
        return choices_of(m, s, f"machines[{machine}]", f"services[{service}]", level, nearest_s(*away), away_s(*away))

    def derived(self, machine: int, service: int, point: int = 0) -> MachineChoice | None:
        """The one at an operating point of the instance; None also if the file states another throughput."""
        if (machine, service) not in self._choices:
            self._choices[machine, service] = self.choices(machine, service, self.problem.level())
        stated = float(self.rps_at[machine, service, point])
        of = self._choices[machine, service]
        return next((x for x in of if abs(x.rps - stated) <= 1e-6 * x.rps), None)

    def points(self, machine: int, service: int) -> range:
        """Operating points of a machine type for a service."""
        return range(int((self.rps_at[machine, service] > 0).sum()))


def _resolve(p: ReservedCapacity) -> ReservedCase:
    wrong = Mistakes()
    names = [r.region for r in p.regions]
    services = [s.service for s in p.services]
    for what, values in (("regions", names), ("services", services), ("machines", [m.machine for m in p.machines])):
        wrong.once(f"{what}[{{}}].{what[:-1]}", values, "each name once")
    _read_lengths(p)
    clocks = [_clock(r, i, wrong) for i, r in enumerate(p.regions)]
    rtt = wrong.collect(_round_trips, p, names)
    parts = [wrong.collect(demand_of, p, s.demand, f"services[{k}].demand", clocks) for k, s in enumerate(p.services)]
    prices, offered = _prices(p, names, wrong)
    _served_as_said(p, wrong)
    level = wrong.collect(p.level)
    points: dict[tuple[int, int], tuple[Serving, ...]] = {}
    for i, m in enumerate(p.machines):
        wrong.among(f"machines[{i}].serves", m.serves, "a service of this file", services)
        for k, s in enumerate(p.services):
            stated, demand_of_it = m.serves.get(s.service), parts[k]
            if stated is not None:
                points[i, k] = stated if isinstance(stated, tuple) else (stated,)
            elif s.workload is not None and rtt is not None and demand_of_it is not None:
                away = names, s, demand_of_it.rps, rtt, offered[i]
                at = nearest_s(*away), away_s(*away)
                points[i, k] = wrong.collect(_serving_of, m, s, f"machines[{i}]", f"services[{k}]", level, *at) or ()
            for x, found in enumerate(points.get((i, k), ())):
                if s.slo.deadline_s is not None and found.e2e_s is None:
                    expected = "seconds of a whole request at the machine, queue included: the service has a deadline_s"
                    which = f"[{x}]" if isinstance(stated, tuple) else ""
                    wrong.add(f"machines[{i}].serves.{s.service}{which}.e2e_s", None, expected)
    most = max((len(x) for x in points.values()), default=1) or 1
    rates, prefills, e2es = (np.zeros((len(p.machines), len(p.services), most)) for _ in range(3))
    for (i, k), each in points.items():
        for x, found in enumerate(each):
            rates[i, k, x], prefills[i, k, x] = found.requests_per_s, found.prefill_s
            e2es[i, k, x] = (found.e2e_s or 0.0) if p.services[k].slo.deadline_s is not None else 0.0
    rate = rates[:, :, 0]
    unattainable, unserved = Mistakes(), []
    for k, s in enumerate(p.services):
        limited, demand_of_it = s.workload is not None and s.slo.tpot_s is not None, parts[k]
        needless = s.unserved_usd_per_request is not None or (
            demand_of_it is not None and not demand_of_it.rps[:, _asking(p, names)].any()
        )
        if not rate[:, k].any() and not wrong and limited and needless:
            unserved.append(f"no machine serves {s.service} within its SLO and memory: nothing of it is served")
        elif not rate[:, k].any() and not wrong:
            alone = _impossible(p, s, level) if limited else None
            value: Any = s.service
            mistakes, where = unattainable if limited else wrong, f"services[{k}].name"
            if alone is not None:
                where, value = f"services[{k}].slo.{SPELLED.get(alone, alone)}", getattr(s.slo, alone)
            if isinstance(value, Percentile):
                value = value.model_dump()
            mistakes.add(where, value, *IMPOSSIBLE[alone])
        for origin, servers in s.residency.items():
            wrong.among(f"services[{k}].residency", (origin, *servers), "a region of this file", names)
    for i, scenario in enumerate(p.uncertainty.scenarios):
        wrong.among(f"uncertainty.scenarios[{i}].by_region", scenario.by_region, "a region of this file", names)
    price = wrong.collect(_egress_usd_per_gb, p, names)
    if p.network.egress is not None and not any(s.request_kb + s.answer_kb for s in p.services):
        wrong.add("services[0].answer_kb", 0, "request_kb and answer_kb of some service, kB, to price its egress by")
    hours = {len(d.rps) for d in parts if d is not None}
    starts = {d.start for d in parts if d is not None}
    if len(hours) > 1 or len(starts) > 1:
        wrong.add("services", sorted(hours), f"demand over the same hours in every service (starts: {starts})")
    if not wrong:
        _trusted(p, np.stack([d.rps for d in parts if d is not None], axis=2), rate, prices, wrong)
    caps = {
        what: np.stack([_cap(getattr(m, what), names, f"machines[{i}].{what}", wrong)
                        for i, m in enumerate(p.machines)])
        for what in ("reservable", "on_demand_available", "spot_available")
    }  # fmt: skip
    if wrong:
        raise InputError([*wrong, *unattainable])
    if unattainable:
        raise UnattainableError(unattainable)
    demand = np.stack([d.rps for d in parts], axis=2)
    reached = _reached(p, names, rtt, rates, prefills, e2es, offered)
    _reachable(p, names, rtt, rates, prefills, e2es, demand, reached, offered)
    notes = unserved + [n for d in parts for n in d.notes] + _price_notes(p, names, prices)
    return ReservedCase(
        problem=p, start=next(iter(starts)), demand_rps=demand, rtt_ms=rtt, usd_per_hour=prices, offered=offered,
        rps_at=rates, prefill_s_at=prefills, e2e_s_at=e2es, reservable=caps["reservable"],
        on_demand_cap=caps["on_demand_available"], spot_cap=caps["spot_available"], reached=reached,
        egress_usd_per_request=np.stack([(s.request_kb * price + s.answer_kb * price.T) / 1e6 for s in p.services]),
        places=tuple(_place(r) for r in p.regions), utc_offset_h=np.array([c.offset_h for c in clocks]),
        notes=tuple(notes),
    )  # fmt: skip


def _read_lengths(p: ReservedCapacity) -> None:
    """Traces that lengths of requests come from.

    Raises:
        InputError: one cannot be read, or batches are static, whose requests are equal.
    """
    wrong = Mistakes()
    for k, s in enumerate(p.services):
        if not isinstance(s.workload, ServiceMix):
            continue
        if p.serving == "static":
            wrong.add(f"services[{k}].workload.lengths", in_words(s.workload.lengths), ALIKE_OF_STATIC)
        wrong.collect(s.workload.read, p, f"services[{k}].workload.lengths.trace")
    wrong.raise_any()


IMPOSSIBLE: dict[str | None, tuple[str, str]] = {  # expected value where one limit rules out every machine of a service
    "ttft_s": ("a TTFT that some machine can meet for some users",
               "round trip, queue_s and the steps to the first token go into it; without this limit machines serve it"),
    "tpot_s": ("a TPOT that some machine can meet", "without this limit machines serve it"),
    "itl_s": ("an ITL that some machine can meet",
              "fewer engine.max_num_batched_tokens shorten iterations; without this limit machines serve it"),
    "deadline_s": ("a deadline that some machine can meet for some users",
                   "round trip, queue and the steps to the last token are in it; without this limit machines serve it"),
    None: ("a machine that serves it within its SLO and memory",
           "give machines[].serves, or services[].workload and a machine with a gpu"),
}  # fmt: skip


def _impossible(p: ReservedCapacity, service: Service, level: SafetyLevel | None) -> str | None:
    """The one latency limit without which some machine would serve nearby users; None: no single limit."""
    for name in ("ttft_s", "tpot_s", "itl_s", "deadline_s"):
        if getattr(service.slo, name) is None:
            continue
        without = service.model_copy(update={"slo": service.slo.model_copy(update={name: UNLIMITED_S})})
        here = np.zeros(1)
        if any(_serving_of(m, without, "", "", level, here, here) for m in p.machines):
            return name
    return None


def nearest_s(names: list[str], service: Service, demand_rps: Array, rtt_ms: Array, offered: Mask) -> Array:
    """Round trips, s, from regions with users of a service to the nearest machine of a type that may serve them.

    Args:
        names: names of the regions.
        service: the service.
        demand_rps: its requests/s, (T, R).
        rtt_ms: (R, R).
        offered: whether a region offers the type, (R,).
    """
    may = _resident(names, service) & offered[None, :]
    near = np.where(may, rtt_ms, np.inf).min(axis=1)[demand_rps.any(axis=0)]
    return near[np.isfinite(near)] / 1000.0


def away_s(names: list[str], service: Service, demand_rps: Array, rtt_ms: Array, offered: Mask) -> Array:
    """The same to every machine of the type that may serve them."""
    users: Mask = np.asarray(demand_rps.any(axis=0))
    may = _resident(names, service) & offered[None, :] & users[:, None]
    return np.asarray(rtt_ms[may] / 1000.0)


def _served_as_said(p: ReservedCapacity, wrong: Mistakes) -> None:
    """Limits that the way of serving can keep, and how its engines speculate."""
    named = (s.workload.model for s in p.services if s.workload is not None)
    known = [catalog.llms().get(m) if isinstance(m, str) else m for m in named]
    check_speculation(p.engine, [m for m in known if m is not None], p.serving == "continuous", wrong)
    for k, s in enumerate(p.services):
        of = f"services[{k}].slo"
        if p.serving == "static" and s.workload is not None and s.workload.attention_ranks != (1,):
            wrong.add(f"services[{k}].workload.attention_ranks", list(s.workload.attention_ranks), ONE_OF_STATIC)
        if p.serving == "continuous" and s.workload is not None and s.slo.queue_s <= 0:
            wrong.add(f"{of}.queue_s", s.slo.queue_s, "seconds > 0 that requests may wait, with serving: continuous")
        if s.slo.itl_s is not None and (p.serving == "static" or s.workload is None):
            expected = "none but of workloads with serving: continuous"
            wrong.add(f"{of}.itl_s", seconds_and_quantile(s.slo.itl_s)[0], expected)
        for name, limit in (("ttft_s", s.slo.ttft_s), ("tpot_s", s.slo.tpot_s), ("deadline_s", s.slo.deadline_s)):
            if isinstance(limit, Percentile) and (p.serving == "static" or s.workload is None):
                expected = "a number: percentiles are of workloads with serving: continuous"
                wrong.add(f"{of}.{name}", limit.model_dump(), expected)


def _resident(names: list[str], service: Service) -> Mask:
    """Whether a region may serve the users of another, (R, R)."""
    resident = np.ones((len(names), len(names)), dtype=bool)
    for origin, servers in service.residency.items():
        if origin in names:
            resident[names.index(origin)] = np.isin(names, servers)
    return resident


def _trusted(p: ReservedCapacity, demand: Array, rate: Array, prices: Array, wrong: Mistakes) -> None:
    """Sizes and prices that a solver in double precision can resolve; others are wrong units.

    Args:
        demand: requests/s, (T, R, K).
        rate: requests/s of a machine, (I, K).
        prices: USD/h, (I, R, 4).
    """
    fewest, most = MACHINES_TRUSTED
    factors = [[s.factor * s.by_region.get(r.region, 1.0) for r in p.regions] for s in p.uncertainty.scenarios]
    growth = max(1.0, p.growth.factor_per_quarter ** (p.growth.quarters - 1)) if p.growth else 1.0
    worst = 1.0 + (p.uncertainty.worst_case.deviation if p.uncertainty.worst_case else 0.0)
    peak = growth * worst * (demand * np.max(factors or [[1.0]], axis=0)[:, None]).sum(axis=1).max(axis=0)  # (K,)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        need = np.where(rate > 0, peak / (rate * p.utilisation), np.nan)  # (I, K)
    few = 0.0
    for k, s in enumerate(p.services):
        if np.isnan(need[:, k]).all():
            continue
        best = int(np.nanargmin(need[:, k]))
        few += need[best, k]
        need[:, k] *= s.kappa * len(p.services)  # forwarded, and with all other services
        if not need[best, k] <= most:
            wrong.add(f"services[{k}].demand", float(peak[k]), f"a peak of requests/s that {most:g} machines serve",
                      f"it takes {need[best, k]:.3g} of {p.machines[best].machine}: check the units")  # fmt: skip
            continue
        for i in np.flatnonzero(need[:, k] > most):
            wrong.add(f"machines[{i}].serves.{s.service}.requests_per_s", float(rate[i, k]),
                      f"so many that {most:g} machines serve the peak of {peak[k]:.3g} requests/s")  # fmt: skip
    if 0 < few < fewest and not wrong:
        wrong.add("services[].demand", float(peak.sum()), f"a peak of requests/s that takes {fewest:g} machines",
                  f"it takes {few:.3g} machines: check units")  # fmt: skip
    low, high = USD_PER_HOUR_TRUSTED
    for i, r, market in np.argwhere((prices < low) | (prices > high))[:1]:
        wrong.add(f"machines[{i}] ({p.machines[i].machine}) in {p.regions[r].region}: {MARKETS[market]}",
                  float(prices[i, r, market]), f"a price from {low:g} to {high:g} USD/h")  # fmt: skip
    if not wrong and np.nanmax(prices) > PRICES_APART * np.nanmin(prices):
        i, r, market = np.unravel_index(int(np.nanargmax(prices)), prices.shape)
        wrong.add(f"machines[{i}] ({p.machines[i].machine}) in {p.regions[r].region}: {MARKETS[market]}",
                  float(prices[i, r, market]),
                  f"a price within {PRICES_APART:g} times the cheapest, {np.nanmin(prices):g} USD/h")  # fmt: skip
    for k, s in enumerate(p.services):
        if s.unserved_usd_per_request is None or not rate[:, k].any():
            continue
        low, high = (usd / (3600.0 * rate[:, k].max()) for usd in USD_FORGONE_TRUSTED)
        if not low <= s.unserved_usd_per_request <= high:
            wrong.add(f"services[{k}].unserved_usd_per_request", s.unserved_usd_per_request,
                      f"a price from {low:.3g} to {high:.3g} USD", "leave it out where all must be served")  # fmt: skip


def _clock(r: Region, i: int, wrong: Mistakes) -> Any:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    from formulations.reserved_capacity.demand import LocalClock

    place = geography.places().get(r.region)
    zone = r.time_zone or (place.time_zone if place and r.utc_offset_h is None else None)
    try:
        info = ZoneInfo(zone) if zone else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        wrong.add(f"regions[{i}].time_zone", zone, "an IANA time zone such as Europe/Berlin")
        info = None
    return LocalClock(r.region, r.weight, info, r.utc_offset_h)


def _place(r: Region) -> tuple[float | None, float | None]:
    place = geography.places().get(r.region)
    if r.latitude_deg is not None and r.longitude_deg is not None:
        return r.latitude_deg, r.longitude_deg
    return (place.latitude_deg, place.longitude_deg) if place else (None, None)


def _round_trips(p: ReservedCapacity, names: list[str]) -> Array:
    """Round trips in ms; every pair present, finite, not negative."""
    net, wrong = p.network, Mistakes()
    R = len(names)
    rtt = np.full((R, R), np.nan)
    if net.estimate is not None:
        places = [_place(r) for r in p.regions]
        for i, place in enumerate(places):
            if None in place:
                wrong.add(f"regions[{i}].latitude_deg", None, "latitude_deg and longitude_deg, to estimate round trips")
        wrong.raise_any()
        rtt = geography.geodesic_round_trip_ms(*np.array(places, dtype=float).T)
        where = "network.estimate"
    else:
        table: Mapping[str, Mapping[str, float]]
        if net.catalog is not None:
            where = "network.catalog"
            if net.catalog not in geography.networks():
                wrong.unknown(where, net.catalog, "a round-trip table of the catalogue", geography.networks())
                raise InputError(wrong)
            known, matrix = geography.round_trip_times(net.catalog)
            table = {a: dict(zip(known, row, strict=True)) for a, row in zip(known, matrix.tolist(), strict=True)}
        elif net.file is not None:
            where = "network.file"
            table = _matrix_file(p, net.file)
        else:
            where, table = "network.rtt_ms", net.rtt_ms or {}
        absent = [a for a in names if a not in table and R > 1 and net.catalog is not None]
        for a in absent:
            expected = f"round trips of your own (network.rtt_ms, file or estimate), or a region of {net.catalog}"
            wrong.unknown(f"regions[{names.index(a)}].region", a, expected, table)
        for i, a in enumerate(names):
            without: list[str] = []
            for j, b in enumerate(names):
                value = table.get(a, {}).get(b, table.get(b, {}).get(a))
                if value is None and i == j:
                    value = net.local_rtt_ms if net.local_rtt_ms is not None else 0.0
                if value is None:
                    without += [b] if i < j and not {a, b} & set(absent) else []
                    continue
                if not np.isfinite(value) or value < 0:
                    wrong.add(f"{where}: {a} → {b}", value, "a round trip in ms ≥ 0")
                    continue
                rtt[i, j] = value
                if value > 2000:
                    wrong.add(f"{where}: {a} → {b}", value, "a round trip in ms below 2,000", "are these µs?")
            if without:
                wrong.add(f"{where}: {a} → {', '.join(without)}", None, "a round trip in ms ≥ 0, one way or the other")
    if net.local_rtt_ms is not None:
        np.fill_diagonal(rtt, net.local_rtt_ms)
    wrong.raise_any(20)
    off = rtt[~np.eye(R, dtype=bool)]
    if R > 1 and 0 < off.max() < 1.0:
        raise InputError(Mistake(None, where, float(off.max()), "round trips in ms", hint="are these seconds?"))
    return rtt


def _egress_usd_per_gb(p: ReservedCapacity, names: list[str]) -> Array:
    """USD per GB from region to region, (R, R); zero without egress prices and at home."""
    egress, R, wrong = p.network.egress, len(names), Mistakes()
    price = np.zeros((R, R))
    if egress is None:
        return price
    given: Any = egress.usd_per_gb
    where = "network.egress.usd_per_gb"
    if egress.catalog is not None:
        where = "network.egress.catalog"
        if egress.catalog not in geography.egress_tables():
            wrong.unknown(where, egress.catalog, "a table of egress prices", geography.egress_tables())
            raise InputError(wrong)
        given = geography.egress_prices(egress.catalog)
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            if i == j:
                continue
            value = given.get(a) if isinstance(given, dict) else given
            if isinstance(value, dict):
                value = value.get(b, value.get("*"))
            if value is None:
                wrong.add(f"{where}: {a} → {b}", None, "a price in USD per GB")
            else:
                price[i, j] = value
    wrong.raise_any(20)
    return price


def _matrix_file(p: ReservedCapacity, name: str) -> dict[str, dict[str, float]]:
    path = p.beside(name, "network.file")
    rows, lines = csv_lines(path)
    head = rows[0][1:] if rows else []
    table: dict[str, dict[str, float]] = {}
    for number, row in zip(lines[1:], rows[1:], strict=True):
        try:
            table[row[0]] = {b: float(v) for b, v in zip(head, row[1:], strict=True) if v.strip()}
        except ValueError:
            expected = f"{len(head)} numbers in ms after the region's name"
            found = ",".join(row)[:60]
            raise InputError(Mistake(str(path), f"line {number}", found, expected, line=number)) from None
    return table


def _cap(value: int | Mapping[str, int] | None, names: list[str], path: str, wrong: Mistakes) -> Array:
    if value is None:
        return np.full(len(names), np.inf)
    if isinstance(value, int):
        return np.full(len(names), float(value))
    wrong.among(path, value, "a region of this file", names)
    return np.array([float(value.get(n, np.inf)) for n in names])


def _prices(p: ReservedCapacity, names: list[str], wrong: Mistakes) -> tuple[Array, Mask]:
    """Prices (I, R, 4) and where each type is offered; a term without any price is a mistake."""
    prices = np.full((len(p.machines), len(names), len(MARKETS)), np.nan)
    offered = np.zeros((len(p.machines), len(names)), dtype=bool)
    for i, m in enumerate(p.machines):
        path = f"machines[{i}]"
        own: dict[str, Prices] = {}
        if m.catalog is not None:
            if m.catalog not in catalog.pools():
                wrong.unknown(f"{path}.catalog", m.catalog, "a machine list of the catalogue", catalog.pools())
                continue
            own = {c.region: c.prices for c in catalog.machines(m.catalog) if c.machine == m.machine}
            if not own:
                known = {c.machine for c in catalog.machines(m.catalog)}
                wrong.unknown(f"{path}.machine", m.machine, "a machine of this list", known)
        if m.prices_file is not None:
            own |= wrong.collect(_price_file, p, m, path) or {}
        own |= m.prices_by_region
        wrong.among(f"{path}.prices_by_region", m.prices_by_region, "a region of this file", names)
        wrong.among(f"{path}.regions", m.regions or (), "a region of this file", names)
        base, seen = m.prices.model_dump(), set()
        for s, name in enumerate(names):
            mine = base | {k: v for k, v in own.get(name, Prices()).model_dump().items() if v is not None}
            row = np.array([np.nan if mine[t] is None else mine[t] for t in MARKETS])
            offered[i, s] = name in m.regions if m.regions is not None else not np.isnan(row).all()
            if not offered[i, s]:
                continue
            prices[i, s] = row
            if row.tobytes() not in seen:  # the same prices everywhere are one mistake
                _unit_mix_up(row, f"{path} ({m.machine}) in {name}", wrong)
            seen.add(row.tobytes())
            if m.regions is not None and np.isnan(row[[MARKETS.index(t) for t in p.terms]]).all():
                wrong.add(f"{path}.prices ({name})", None, f"a price in one of the terms {', '.join(p.terms)}, USD/h",
                          "the region is listed in regions: of this machine")  # fmt: skip
    for t in p.terms:
        if not wrong and np.isnan(prices[:, :, MARKETS.index(t)]).all():
            wrong.add("terms", t, "a term that some machine has a price for", f"no machine has prices.{t}")
    return prices, offered


def _unit_mix_up(row: Array, path: str, wrong: Mistakes) -> None:
    """Prices of one machine must lie within a factor that months against hours exceeds."""
    known = row[~np.isnan(row)]
    if len(known) > 1 and known.max() > MONTH_AGAINST_HOUR * known.min():
        low, high = int(np.nanargmin(row)), int(np.nanargmax(row))
        wrong.add(
            f"{path}.{MARKETS[high]}", float(row[high]), "a price in USD per hour like its other prices",
            f"{MARKETS[low]} is {row[low]:g}: is this one per month? Write '{row[high]:g} USD/month'",
        )  # fmt: skip


def _price_file(p: ReservedCapacity, m: MachineType, where: str) -> dict[str, Prices]:
    """Prices by region of one machine from a price file."""
    path = p.beside(m.prices_file or "", f"{where}.prices_file")
    rows = read_prices(path, m.price_columns)
    found = {}
    for row in rows:
        if row.machine == m.machine:
            try:
                found[row.region] = Prices(**dict(row.prices))
            except ValueError as error:
                text = str(error).split("\n")[0]
                raise InputError(Mistake(str(path), f"line {row.line}", text, "prices > 0", line=row.line)) from None
    if not found:
        known = list(dict.fromkeys(r.machine for r in rows))
        expected = f"a machine with rows in {path.name}: {', '.join(known[:8])}{', …' if len(known) > 8 else ''}"
        raise InputError(
            Mistake(str(path), f"{where}.machine", m.machine, expected, hint=did_you_mean(m.machine, known))
        )
    return found


def _price_notes(p: ReservedCapacity, names: list[str], prices: Array) -> list[str]:
    notes = []
    on_demand = prices[:, :, MARKETS.index("on_demand")]
    for t in ("reserved_1y", "reserved_3y"):
        dear = prices[:, :, MARKETS.index(t)] > on_demand
        if dear.any():
            i, s = map(int, np.argwhere(dear)[0])
            notes.append(f"{p.machines[i].machine} in {names[s]}: {t} costs more than on demand")
    return notes


def _reached(
    p: ReservedCapacity, names: list[str], rtt: Array, rate: Array, prefill: Array, e2e: Array, offered: Mask
) -> Mask:  # fmt: skip
    """(K, R, R, I, L): round trip + queue + prefill ≤ TTFT, E2E ≤ deadline, residency, it is there and serves."""
    K, R, (I, L) = len(p.services), len(names), rate.shape[::2]  # noqa: E741
    reached = np.zeros((K, R, R, I, L), dtype=bool)
    for k, s in enumerate(p.services):
        ttft = rtt[:, :, None, None] / 1000.0 + s.slo.queue_s + prefill[:, k]
        whole = rtt[:, :, None, None] / 1000.0 + e2e[:, k]
        within = (ttft <= s.slo.ttft_limit_s + 1e-12) & (whole <= s.slo.deadline_limit_s + 1e-12) & (rate[:, k] > 0)
        reached[k] = within & (_resident(names, s)[:, :, None] & offered.T[None])[..., None]
    return reached


def _asking(p: ReservedCapacity, names: list[str]) -> Mask:
    """Regions whose demand is not multiplied by 0 in every scenario, (R,)."""
    scenarios = p.uncertainty.scenarios
    asking = [not scenarios or any(s.factor * s.by_region.get(n, 1.0) for s in scenarios) for n in names]
    return np.array(asking, dtype=bool)


def _reachable(
    p: ReservedCapacity, names: list[str], rtt: Array, rate: Array, prefill: Array, e2e: Array, demand: Array,
    reached: Mask, offered: Mask,
) -> None:  # fmt: skip
    """Every region with demand in some scenario has somewhere to be served (unless unserved demand has a price)."""
    wrong, asking = Mistakes(), _asking(p, names)
    for k, s in enumerate(p.services):
        for r, name in enumerate(names):
            must = asking[r] and demand[:, r, k].any() and s.unserved_usd_per_request is None
            if not must or reached[k, r].any():
                continue
            resident = np.isin(names, s.residency[name]) if name in s.residency else np.ones(len(names), dtype=bool)
            there = (offered.T & resident[:, None])[..., None] & (rate[:, k] > 0)  # (R, I, L)
            if not there.any():
                wrong.add(f"services[{k}] ({name})", s.service, "a region that may serve these users with a machine",
                          "check residency, and where the machines that serve this service are offered")  # fmt: skip
                continue
            ttft = rtt[r][:, None, None] / 1000.0 + s.slo.queue_s + prefill[:, k]
            in_time = there & (ttft <= s.slo.ttft_limit_s + 1e-12)
            if in_time.any():
                best = float(np.where(in_time, rtt[r][:, None, None] / 1000.0 + e2e[:, k], np.inf).min())
                wrong.add(
                    f"services[{k}].slo.deadline_s ({name})", s.slo.deadline_limit_s,
                    "a deadline that some region within TTFT can meet for this region's users",
                    f"the least round trip + queue + time of a request is {best:.3g} s; check deadline_s and machines",
                )  # fmt: skip
                continue
            best = float(np.where(there, ttft, np.inf).min())
            wrong.add(
                f"services[{k}].slo.ttft_s ({name})", s.slo.ttft_limit_s,
                "a TTFT that some region offering a machine can meet for this region's users",
                f"the least round trip + queue + prefill is {best:.3g} s; check ttft_s, residency and machines",
            )  # fmt: skip
    if wrong:
        raise UnattainableError(wrong)


def _serving_of(
    machine: Any, service: Any, machine_path: str, service_path: str, level: SafetyLevel | None, nearest_s: Array,
    away_s: Array,
) -> tuple[Serving, ...]:  # fmt: skip
    """Operating points of one machine type for one service; none if it cannot serve it.

    Raises:
        InputError: unknown model or GPU, or the service has no tpot_s.
    """
    found = choices_of(machine, service, machine_path, service_path, level, nearest_s, away_s)
    return tuple(Serving(requests_per_s=x.rps, prefill_s=x.prefill_s, e2e_s=x.e2e_s) for x in found)
