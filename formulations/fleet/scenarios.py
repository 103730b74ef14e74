"""Draws of demand and machine slow-downs: the section ``scenarios`` of an instance, and its random numbers.

Machines are bought before the draw is known. Requests are routed after it. A workload's factor is lognormal, mean 1.
A machine type is slow with a probability of its own, and then serves 1/g of its requests. The draws are data of the
instance: they depend on its seed and on the names of workloads and machine types alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from optmodels.arrays import Array
from optmodels.catalog.types import Entry
from optmodels.limits import Limit

Deviation = Annotated[float, Field(ge=0, le=3, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=1, le=10, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Scenarios(Entry):
    """Random demand and slow machines that a plan is made for."""

    draws: Annotated[int, Field(strict=True, ge=1, le=2000)] = Field(default=30, description="number of draws")
    demand_sd: Deviation | dict[str, Deviation] = Field(
        default=0.2, description="standard deviation of a workload's rate over its mean; or by workload, others 0"
    )
    slow_probability: Share = Field(default=0.0, description="probability that a machine type is slow in a draw")
    slow: tuple[Factor, Factor] = Field(
        default=(1.1, 1.5), description="smallest and largest factor on the times of a slow machine type"
    )
    unserved: Annotated[
        Share | None, Limit("unserved share of the requests, mean over the draws", "most", "%", off=1.0)
    ] = Field(default=None, description="largest unserved share, mean over the draws; or usd_per_1000_unserved")
    usd_per_1000_unserved: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="cost of a thousand unserved requests in a draw; or unserved"
    )
    seed: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)] = Field(default=0, description="seed of the draws")

    @model_validator(mode="after")
    def _consistent(self) -> Scenarios:
        if (self.unserved is None) == (self.usd_per_1000_unserved is None):
            raise ValueError("exactly one of unserved and usd_per_1000_unserved")
        if self.slow[0] > self.slow[1]:
            raise ValueError("slow: the smaller factor first")
        return self

    def sd(self, workload: str) -> float:
        """Standard deviation of a workload's factor."""
        return self.demand_sd.get(workload, 0.0) if isinstance(self.demand_sd, Mapping) else self.demand_sd


@dataclass(frozen=True)
class Draws:
    """Factors of N draws, all equally likely.

    Attributes:
        demand: factor on the rates of each workload, (N,) by name.
        slow: factor on the times of each machine type, (N,) by name; one without an entry is never slow.
        unserved: largest unserved share, mean over the draws; None: priced.
        usd_per_1000: cost of a thousand unserved requests.
    """

    demand: Mapping[str, Array]
    slow: Mapping[str, Array]
    unserved: float | None = None
    usd_per_1000: float = 0.0

    def __len__(self) -> int:
        return len(next(iter(self.demand.values())))


def draws_of(s: Scenarios, workloads: Iterable[str], machines: Iterable[str]) -> Draws:
    """The draws of an instance; each workload and machine type has a stream of its own."""
    demand, slow = {}, {}
    for name in workloads:
        rng = np.random.default_rng([s.seed, 0, zlib.crc32(name.encode())])
        sigma = math.sqrt(math.log1p(s.sd(name) ** 2))
        demand[name] = np.exp(sigma * rng.standard_normal(s.draws) - sigma**2 / 2)
    for name in machines:
        rng = np.random.default_rng([s.seed, 1, zlib.crc32(name.encode())])
        factor = rng.uniform(*s.slow, s.draws)
        slow[name] = np.where(rng.random(s.draws) < s.slow_probability, factor, 1.0)
    return Draws(demand, slow, s.unserved, s.usd_per_1000_unserved or 0.0)
