"""Lines that the plans of several formulations have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from optmodels.catalog.types import Market
from optmodels.plan.outcome import Document

Count = Annotated[int, Field(ge=1, le=10**6)]
Money = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class MachineLine(Document):
    """Some machines of one type bought for one role."""

    role: Literal["main", "ao"]
    machine: str
    region: str
    gpu: str | None
    gpus_per_machine: Count
    market: Market
    count: Count
    usd_per_hour_each: Money


class LimitLine(Document):
    """One requirement with what the plan makes of it."""

    name: str
    value: float
    limit: float | None
    unit: str
    sense: Literal["<=", ">="]
    binding: bool
