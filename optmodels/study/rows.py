"""One method on one instance as a row of a study: its plan and bound, how long it took, never an abort."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from optmodels.errors import InputError
from optmodels.formulation import Formulation, Options
from optmodels.plans.outcome import Outcome, judged
from optmodels.solver.highs import relative_gap

Row = dict[str, Any]
PREPARATION = ("prune", "build", "compile")  # phases before a solver's clock, from which events count, starts
SOLVED = ("optimal", "infeasible")


def best_bound(rows: Iterable[Row], sense: str) -> float | None:
    """The best bound that any of the rows of an instance proved; None where none did."""
    bounds = [r["bound"] for r in rows if r["bound"] is not None]
    return (min if sense == "max" else max)(bounds, default=None)


def solved_row(form: Formulation, problem: Any, tables: Any, method: str, options: Options) -> tuple[Row, Any]:
    """Run a method and check its plan.

    A method that refuses the instance gives a row without a plan and with its reason (``no_solution_found``), a fault
    of ours one of status ``error``.

    Args:
        form: the formulation.
        problem: the instance.
        tables: its tables.
        method: its name.
        options: how it may run.

    Returns:
        The row: a solve document without instance, report and plan, and with ``headline``, ``proved``, and the
        seconds ``to_first`` solution and ``to_proof`` (None: never), tables left out; and the plan as JSON data.
    """
    sense, unit = form.goal_of(problem)
    row: Row = {
        "formulation": form.name, "method": method, "status": "error", "limit": None, "objective": None,
        "sense": sense, "unit": unit, "bound": None, "gap": None, "proved": False,
        "seconds": {}, "size": {"variables": 0, "integers": 0, "constraints": 0, "nonzeros": 0}, "check": None,
        "headline": "", "events": [],
    }  # fmt: skip
    began = time.perf_counter()
    try:
        outcome = form.method(method)(problem, tables, options)
        took = time.perf_counter() - began
        data = None if outcome.plan is None else outcome.plan.model_dump(mode="json")
        verdict = None if data is None else form.check(problem, data)
    except InputError as error:
        reason = "; ".join(f"{m.path}: {m.expected}" for m in error.mistakes)
        return row | _stopped(began, "no_solution_found", f"refused: {reason}"), None
    except Exception as error:
        return row | _stopped(began, "error", f"{type(error).__name__}: {error}"), None
    objective = None if outcome.plan is None else form.objective(outcome.plan)
    outcome = judged(outcome, objective, sense, verdict)
    plan = None if outcome.status == "error" else outcome.plan
    return row | {
        "status": outcome.status, "limit": outcome.limit, "objective": objective, "bound": outcome.bound,
        "gap": relative_gap(objective, outcome.bound), "proved": outcome.status in SOLVED,
        "seconds": {"build": 0.0, "solve": 0.0} | outcome.seconds | _milestones(outcome, took) | {"total": took},
        "size": row["size"] | outcome.size,
        "check": None if verdict is None else verdict.model_dump(mode="json"),
        "headline": outcome.log.get("reason", "") if plan is None else plan.headline(),
        "events": [
            {"seconds": e.seconds, "objective": e.objective, "bound": e.bound, "nodes": e.nodes} for e in outcome.events
        ],
    }, data  # fmt: skip


def _stopped(began: float, status: str, reason: str) -> Row:
    took = time.perf_counter() - began
    seconds = {"build": 0.0, "solve": 0.0, "to_first": None, "to_proof": None, "total": took}
    return {"status": status, "headline": reason, "seconds": seconds}


def _milestones(outcome: Outcome[Any], took: float) -> dict[str, float | None]:
    """Seconds from a method's start to its first solution and to its proof."""
    before = sum(outcome.seconds.get(phase, 0.0) for phase in PREPARATION)
    first = next((e.seconds for e in outcome.events if e.objective is not None), None)
    return {
        "to_first": None if outcome.plan is None else took if first is None else min(before + first, took),
        "to_proof": took if outcome.status in SOLVED else None,
    }


def replayed(form: Formulation, problem: Any, plan: Mapping[str, Any] | None, seed: int = 0) -> Row:
    """The figures of a replay of the plan as columns ``replay.…``; where there is none, ``replay.none`` states why.

    Args:
        form: the formulation.
        problem: the instance, whose own trace or demand is replayed.
        plan: plan as JSON data, or None.
        seed: random seed of the draws.
    """
    if plan is None:
        return {"replay.none": "no plan"}
    if form.replay is None:
        return {"replay.none": f"plans of {form.name} cannot be replayed"}
    from optmodels.simulation.options import ReplayOptions

    try:
        report = form.replay(problem, plan, None, ReplayOptions(seed=seed))
    except InputError as error:
        return {"replay.none": "; ".join(f"{m.path}: {m.expected}" for m in error.mistakes)}
    except Exception as error:
        return {"replay.none": f"{type(error).__name__}: {error}"}
    return figures(report, "replay", records=True)


def figures(data: Any, prefix: str, *, records: bool = False) -> Row:
    """Single numbers, texts and truths of a JSON document by dotted name; lists and long texts left out.

    With `records`, lists of records stay that differ in their first entry: it names them, as a service does.
    """
    if records and isinstance(data, list) and data and all(isinstance(x, Mapping) and x for x in data):
        names = [next(iter(x.values())) for x in data]
        if all(isinstance(n, str) for n in names) and len(set(names)) == len(names):
            data = {n: dict(list(x.items())[1:]) for n, x in zip(names, data, strict=True)}
    if isinstance(data, Mapping):
        inner = (figures(value, f"{prefix}.{key}", records=records) for key, value in data.items())
        return {k: v for found in inner for k, v in found.items()}
    if isinstance(data, bool | int | float) or data is None or (isinstance(data, str) and len(data) <= 80):
        return {prefix: data}
    return {}
