"""The fewest GPUs that serve a share of every bucket: the instance with the price of a machine its number of GPUs."""

from __future__ import annotations

from formulations.fleet.problem import Fleet, FleetChange
from optmodels.batch.static import PoolChoice
from optmodels.catalog.types import MARKETS, Prices
from optmodels.errors import InputError, Mistake
from optmodels.plans.fewest import Fewest, Solve, of_objective


def fewest(problem: Fleet, attainment: float, solve: Solve) -> Fewest:
    """The fewest GPUs that serve at least a share of every bucket within its SLO; stock, quota and reserve hold.

    A fleet cut from traces has to keep its promises to the traces' own requests: it is certified on them.

    Raises:
        InputError: measured points, whose GPUs are not known, or several periods.
    """
    case = problem.resolve()
    if case.points is not None:
        raise InputError(Mistake(None, "points", f"{len(case.points)} points", "a pool, whose GPUs are known"))
    if len(case.periods) > 1:
        raise InputError(Mistake(None, "periods", f"{len(case.periods)} periods", "one period, whose GPUs are counted"))
    machines = tuple(
        m.model_copy(update={"prices": Prices(**{
            k: float(m.gpu_count) for k in MARKETS if m.prices.get(k) is not None
        })}) for m in case.machines
    )  # fmt: skip
    workloads = tuple(
        w.model_copy(update={"serve_at_least": attainment, "unserved_usd_per_1000_requests": 0.0, "soft": None})
        for w in problem.workloads
    )
    judged = "replay" if problem.continuous and case.trace is not None else problem.certify  # by the trace itself
    counted = problem.model_copy(update={
        "certify": judged,
        "objective": "min_cost", "pool": PoolChoice(machines=machines), "workloads": workloads, "change": FleetChange(),
        "running": None, "budget_usd_per_hour": None,
    })  # fmt: skip
    counted._resolved, counted._folder = None, problem._folder
    return of_objective(solve(counted), attainment)
