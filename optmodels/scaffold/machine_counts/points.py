"""The instance as arrays: what can be chosen, and what it does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .problem import Instance

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Tables:
    """I services on J machine types; no limit is infinity.

    Attributes:
        instance: with every price written out.
        demand: (I,) tokens/s.
        rate: (I, J) tokens/s of one machine, 0 where it cannot serve.
        usd_per_hour: (J,) of one machine.
        stock: (J,) machines.
        budget: USD/h.
    """

    instance: Instance
    demand: Array
    rate: Array
    usd_per_hour: Array
    stock: Array
    budget: float


def build_tables(problem: Instance) -> Tables:
    """The tables of an instance."""
    instance = problem.resolve()
    services, machines = instance.services, instance.machines
    rate = [[m.tokens_per_s.get(s.service, 0.0) for m in machines] for s in services]
    return Tables(
        instance,
        demand=np.array([s.tokens_per_s for s in services]),
        rate=np.array(rate).reshape(len(services), len(machines)),
        usd_per_hour=np.array([m.usd_per_hour for m in machines], dtype=float),
        stock=np.array([np.inf if m.stock is None else m.stock for m in machines], dtype=float),
        budget=np.inf if instance.budget_usd_per_hour is None else instance.budget_usd_per_hour,
    )
