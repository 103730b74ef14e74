"""The plan: its schema and its headline."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from optmodels.catalog import Market
from optmodels.plans.lines import Money
from optmodels.plans.outcome import Document


class Line(Document):
    """Equal machines for one service. `machine`, `market` and `count` are the names `explain` knows purchases by."""

    machine: str
    market: Market
    service: str
    count: int = Field(ge=1)
    usd_per_hour_each: Money
    tokens_per_s: float = Field(gt=0, description="of all of them")


class Plan(Document):
    """What to buy for whom."""

    formulation: Literal["machine_counts"] = "machine_counts"
    name: str
    lines: list[Line]
    usd_per_hour: float = Field(ge=0, allow_inf_nan=False)

    def headline(self) -> str:
        """One line: what to buy."""
        bought = [f"{x.count}× {x.machine} ({x.market.replace('_', '-')}) for {x.service}" for x in self.lines]
        return " + ".join(bought) or "nothing"
