"""The method ``greedy``: what a person with a price list would do."""

from __future__ import annotations

import time

import numpy as np

from optmodels.formulation import Options
from optmodels.plans.outcome import Outcome

from ..making import make_plan
from ..plan import Plan
from ..points import Tables
from ..problem import Instance

SERVED = 1e-9  # share of its demand that a service may lack to rounding


def greedy(problem: Instance, tables: Tables, options: Options) -> Outcome[Plan]:
    """The largest service first; each time machines of the type that costs least per token still asked for."""
    clock = time.perf_counter()
    left = tables.stock.copy()
    counts = np.zeros(tables.rate.shape)
    why = ""
    for i in np.argsort(-tables.demand, kind="stable"):
        missing = tables.demand[i]
        while missing > SERVED * tables.demand[i]:
            useful = np.minimum(tables.rate[i], missing)
            possible = (useful > 0) & (left >= 1)
            if not possible.any():
                why = f"machines run out before {problem.services[i].service} is served"
                break
            usd_per_token = np.divide(tables.usd_per_hour, useful, out=np.full(len(left), np.inf), where=possible)
            j = int(usd_per_token.argmin())
            count = min(left[j], max(1.0, missing // tables.rate[i, j]))  # equal steps at once
            counts[i, j] += count
            left[j] -= count
            missing -= count * tables.rate[i, j]
    if not why and float((counts @ tables.usd_per_hour).sum()) > tables.budget * (1 + SERVED):
        why = "the plan found is above the budget"
    seconds = {"solve": time.perf_counter() - clock}
    if why:
        return Outcome("no_solution_found", None, seconds=seconds, log={"reason": why})
    return Outcome("feasible", make_plan(tables, counts), seconds=seconds)
