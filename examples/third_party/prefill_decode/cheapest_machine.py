"""A heuristic for somebody else's formulation: the fleet on the one machine type with the lowest price per hour."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from formulations.fleet.methods.heuristics import finish, lp_rounding_choice
from formulations.fleet.points import FleetTables
from formulations.fleet.problem import Fleet
from optmodels.formulation import Options
from optmodels.plans.outcome import Outcome


def cheapest_machine(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[Any]:
    """The machine type with the lowest price per hour that serves everything; counts by LP rounding."""
    clock = time.perf_counter()
    if problem.objective != "min_cost":
        return finish(problem, tables, None, clock, "only for objective: min_cost")
    why = "no single machine type serves every bucket"
    by_price = sorted(range(len(tables.resources)), key=lambda g: _usd_per_hour(tables, g))
    for g in by_price:
        uses = np.asarray(tables.use.todense())
        only = np.flatnonzero((uses[:, g] > 0) & (uses.sum(axis=1) == uses[:, g]))
        part = tables.restricted(only)
        if len(only) and np.isfinite(part.load).any(axis=1).all():
            found = finish(problem, part, lp_rounding_choice(problem, part), clock, why)
            if found.plan is not None:
                return found
            why = found.log["reason"]
    return finish(problem, tables, None, clock, why)


def _usd_per_hour(tables: FleetTables, g: int) -> float:
    machine, region, market = tables.resources[g]
    found = [m for m in tables.case.machines if (m.machine, m.region) == (machine, region)]
    price = found[0].prices.get(market) if found else None
    return float("inf") if price is None else price
