"""GPUs over time: GPUs needed by a fleet that follows a trace, next to the one fleet that carries the whole trace.

Each piece of the trace is planned by itself, on the operating points of the plan under the cuts of its certification.
Starting and stopping take no time here, and nothing is simulated: a lower bound on what following the trace saves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from formulations.fleet.carried import as_cut
from formulations.fleet.methods import exact
from formulations.fleet.plan import FleetPlan
from formulations.fleet.points import FleetTables, in_piece
from optmodels.formulation import Options
from optmodels.solver.deadline import OVER_TIME, leave_out, seconds_for

SECONDS = 20.0  # for all pieces together


def over_time(tables: FleetTables, plan: FleetPlan) -> dict[str, Any] | None:
    """Fleets that the pieces of a trace need, each by itself; None: no workload was cut from a trace.

    Returns:
        ``busiest`` in words (None: too short a trace), ``pieces``: ``from_s``, ``seconds``, ``requests_per_s``, and
        where there is time and one period ``gpus`` and ``usd_per_hour``; then also ``peak_gpus``, ``mean_gpus``,
        ``gpu_hours``, ``usd`` over the trace and ``gpus`` of the one fleet.
    """
    case = tables.case
    if not case.pieces_of:
        return None
    seconds, factors = case.pieces
    rates = factors @ [d.requests_per_s[case.busiest] for d in case.demands]
    begins = np.cumsum(seconds) - seconds
    pieces: list[dict[str, Any]] = [
        {"from_s": float(a), "seconds": float(b), "requests_per_s": float(r)}
        for a, b, r in zip(begins, seconds, rates, strict=True)
    ]
    words = [x.busiest for x in case.pieces_of.values() if x.busiest is not None]
    busiest = max(words, key=lambda b: b.times_the_mean, default=None)
    found: dict[str, Any] = {"busiest": None if busiest is None else busiest.in_words(), "pieces": pieces}
    if len(case.periods) > 1 or case.points is not None or case.problem.objective != "min_cost":
        return found
    if len(pieces) == 1:
        each = [plan]
    else:
        each = _each(tables, plan, factors)
        if len(each) < len(pieces):
            return found
    for piece, its in zip(pieces, each, strict=True):
        piece |= {"gpus": gpus_of(its), "usd_per_hour": its.usd_per_hour}
    hours = {name: sum(x[name] * x["seconds"] for x in pieces) / 3600.0 for name in ("gpus", "usd_per_hour")}
    return found | {
        "gpus": gpus_of(plan), "peak_gpus": max(x["gpus"] for x in pieces),
        "mean_gpus": hours["gpus"] * 3600.0 / float(seconds.sum()), "gpu_hours": hours["gpus"],
        "usd": hours["usd_per_hour"],
    }  # fmt: skip


def _each(tables: FleetTables, plan: FleetPlan, factors: Any) -> list[FleetPlan]:
    """A plan for each piece, the whole plan where it is the busiest; fewer where time ran out."""
    tables = as_cut(tables, plan)
    problem = tables.case.problem.model_copy(update={"certify": "none"})
    tables = replace(tables, case=replace(tables.case, problem=problem))
    found: list[FleetPlan] = []
    for f in factors:
        left = seconds_for(OVER_TIME, SECONDS / len(factors))
        if left <= 0:
            break
        outcome = exact.exact(problem, in_piece(tables, f), Options(time_limit=left, gap=1e-3, answer_only=True))
        if outcome.limit not in (None, "gap"):
            leave_out(OVER_TIME)
            break
        best = outcome.plan
        found.append(plan if best is None or best.usd_per_hour > plan.usd_per_hour else best)
    return found


def gpus_of(plan: FleetPlan) -> int:
    """GPUs of the period that has most."""
    return max(
        sum(d.count * m.count * m.gpus_per_machine for d in q.deployments for m in d.machines) for q in plan.periods
    )
