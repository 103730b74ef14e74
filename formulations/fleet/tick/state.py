"""The running fleet: machines ready and starting, lead times, costs of changes. The file of ``replan --state``."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from optmodels.catalog.types import Entry, Market
from optmodels.units import PositiveInt

Minutes = Annotated[float, Field(ge=0, le=10_080, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Level = Annotated[float, Field(gt=0, lt=1)]


class Starting(Entry):
    """Machines or deployments on their way."""

    count: PositiveInt
    ready_in_min: Minutes


class LeadTime(Entry):
    """Minutes from an order to a ready machine, and from a ready machine to a deployment that serves."""

    machine: str = Field(description="a pattern; the first entry that matches counts")
    start_min: Minutes = Field(description="time from the order until the machine is ready")
    load_min: Minutes = Field(default=0.0, description="time from a ready machine until the model serves")


class Changes(Entry):
    """Cost of a change, and the largest number of changes."""

    start_usd: Amount = 0.0
    stop_usd: Amount = 0.0
    hysteresis_h: Amount = Field(default=0.1, description="hours of a machine's price that count for each start")
    min_up_min: Minutes = Field(default=0.0, description="a machine runs at least so long")
    drain_min: Minutes = Field(default=1.0, description="a stopped machine is paid so much longer")
    max_changes: Count | None = Field(default=None, description="machines ordered and stopped in one tick")


class Machines(Entry):
    """Machines of one type in one region and market."""

    machine: str
    region: str = ""
    market: Market = "on_demand"
    ready: Count = 0
    ages_min: tuple[Minutes, ...] = Field(default=(), description="minutes since each became ready; default: old")
    starting: tuple[Starting, ...] = ()

    @model_validator(mode="after")
    def _ages(self) -> Machines:
        if self.ages_min and len(self.ages_min) != self.ready:
            raise ValueError(f"{self.ready} ages, one for each ready machine")
        return self


class Loaded(Entry):
    """Deployments that serve a workload on machines of one type."""

    workload: str
    machine: str
    region: str = ""
    market: Market = "on_demand"
    count: Count = 0
    loading: tuple[Starting, ...] = ()


class Commitment(Entry):
    """Machines that are paid in any case."""

    machine: str
    region: str = ""
    market: Market = "on_demand"
    count: Count


class Blocked(Entry):
    """A machine type that cannot be had."""

    machine: str
    region: str = "*"
    minutes: Minutes = Field(description="time from now")


class TickState(Entry):
    """The fleet now."""

    schema_version: Literal[1] = Field(alias="schema")
    at: datetime | None = Field(default=None, description="the time of this state, ISO 8601")
    tick_min: Annotated[float, Field(ge=1, le=60)] = Field(default=5.0, description="minutes of a tick")
    lead_times: tuple[LeadTime, ...] = (LeadTime(machine="*", start_min=5.0),)
    change: Changes = Changes()
    commitments: tuple[Commitment, ...] = ()
    machines: tuple[Machines, ...] = ()
    deployments: tuple[Loaded, ...] | None = Field(
        default=None, description="default: every machine serves whatever is planned, after start and load"
    )
    blocked: tuple[Blocked, ...] = ()
    order: Level = Field(default=0.99, description="quantile of the rate that orders cover")
    keep: Level = Field(default=0.995, description="quantile of the rate that running machines are kept for")
    usd_per_1000_late: Amount | None = Field(
        default=None,
        description="cost of requests beyond capacity; default: so that capacity at the order quantile costs least",
    )

    def lead(self, machine: str) -> LeadTime:
        """The first entry that matches a machine."""
        return first(self.lead_times, machine) or LeadTime(machine="*", start_min=5.0)


def first(entries: Sequence[Any], machine: str) -> Any:
    """The first entry whose pattern matches a machine; None: none does."""
    return next((e for e in entries if fnmatch.fnmatchcase(machine, e.machine)), None)
