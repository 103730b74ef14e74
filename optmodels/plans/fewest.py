"""The fewest GPUs that attain a share of the requests, as every formulation finds them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from optmodels.plans.outcome import Result
from optmodels.problem import Problem

Solve = Callable[[Problem], Result]
ROUNDING = 1e-6


@dataclass
class Fewest:
    """Result of a search.

    Attributes:
        gpus: GPUs of the plan; None: there is none.
        bound: no plan attains it with fewer; None: none attains it with any number.
        attained: least SLO attainment of the plan.
        result: result of the plan, on its own instance.
        tried: (GPUs allowed, attained, bound on their attainment) of every solve.
    """

    gpus: int | None
    bound: int | None
    attained: float | None = None
    result: Result | None = None
    tried: list[dict[str, Any]] = field(default_factory=list)


def least_number(
    most: int, attainment: float, solve: Callable[[int], Result], used: Callable[[Result], int]
) -> Fewest:  # fmt: skip
    """Bisection over a number of GPUs; more GPUs attain no less.

    A plan that attains it shows that its GPUs suffice; a bound below it that this many do not. Where a limit stops a
    solve in between, nothing is shown: the search goes on above, and the bound stays.

    Args:
        most: GPUs that there are.
        attainment: share that is asked for.
        solve: GPUs allowed → the most that they attain, as objective and bound.
        used: GPUs of a plan.
    """
    found = Fewest(None, 1 if attainment > 0 else 0)
    low, high = found.bound or 0, most
    while low <= high:
        allowed = most if found.result is None else (low + high) // 2
        result = solve(allowed)
        bound = 0.0 if result.status == "infeasible" else result.bound
        found.tried.append({"gpus": allowed, "attained": result.objective, "bound": bound})
        if result.objective is not None and result.objective >= attainment - ROUNDING:
            found.gpus, found.attained, found.result = used(result), result.objective, result
            high = found.gpus - 1
            continue
        if bound is not None and bound < attainment - ROUNDING:
            found.bound = max(found.bound or 0, allowed + 1)
        if allowed == most:
            break
        low = allowed + 1
    if found.bound is not None and found.bound > most:
        found.bound = None
    return found


def of_objective(result: Result, attainment: float) -> Fewest:
    """Where GPUs are the objective of one solve that has to attain the share."""
    bound = None if result.bound is None else math.ceil(result.bound - ROUNDING)
    tried = [{"gpus": None, "attained": None if result.plan is None else attainment, "bound": result.bound}]
    if result.plan is None or result.objective is None:
        return Fewest(None, None if result.status == "infeasible" else bound, tried=tried)
    return Fewest(round(result.objective), bound, attainment, result, tried)
