"""Compiled models solved on a `Session`: lexicographic objectives, every point verified, honest status and bound."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from optmodels.errors import SolverError
from optmodels.solver.compile import Compiled
from optmodels.solver.session import Array, Ended, Event, Limit, Session, Settings

__all__ = [
    "PROVED", "Event", "Limit", "Relaxed", "Report", "Settings", "Status", "relative_gap", "relaxation",
    "solve_compiled", "verify",
]  # fmt: skip

Status = Literal["optimal", "feasible", "infeasible", "unbounded", "no_solution_found", "error"]
PROVED = 1e-6  # a relative gap below this is a proof


@dataclass(frozen=True)
class Report:
    """What a run found and what it proved; `objective` and `bound` in the model's own sense, first objective."""

    status: Status
    limit: Limit | None
    objective: float | None
    bound: float | None
    gap: float | None
    x: Array | None
    objectives: tuple[float, ...]
    seconds: float
    nodes: int
    message: str
    events: tuple[Event, ...] = ()


def relative_gap(objective: float | None, bound: float | None) -> float | None:
    """|objective − bound| / |objective|, as HiGHS defines it; None without both, 0 for equal zeros."""
    if objective is None or bound is None or not math.isfinite(bound):
        return None
    if objective == bound:
        return 0.0
    return abs(objective - bound) / abs(objective) if objective else math.inf


def _scales(model: Compiled) -> Array:
    """A factor for each objective, (objectives,), by which its median cost becomes one.

    HiGHS' tolerances are absolute: costs of size one keep the relative gap meaningful.
    """
    return np.array([1.0 / float(np.median(np.abs(c[c != 0]))) if c.any() else 1.0 for c in model.costs])


def _scaled(model: Compiled, scale: Array) -> Compiled:
    return replace(model, costs=model.costs * scale[:, None], offsets=model.offsets * scale)


def solve_compiled(model: Compiled, settings: Settings | None = None, start: dict[int, float] | None = None) -> Report:
    """Solve the compiled model lexicographically in its objectives.

    Every point that HiGHS returns is verified against our own arrays.

    Args:
        model: the arrays.
        settings: limits, seed, progress.
        start: warm start, column → value; may name only some columns.

    Raises:
        SolverError: HiGHS refused the model or returned a point that is not feasible.
    """
    settings = settings or Settings()
    scale = _scales(model)
    scaled = _scaled(model, scale)
    session = Session(scaled, settings)
    unit = float(model.signs[0]) / float(scale[0])
    events: list[Event] = []

    def in_model(value: float | None) -> float | None:
        """A value of the first objective in the model's own scale and sense; None for infinity."""
        return None if value is None or not math.isfinite(value) else unit * float(value)

    def record(objective: float, bound: float | None, nodes: int) -> None:
        """Keep an event if it brings news; values as HiGHS sees them, scaled."""
        event = Event(time.perf_counter() - session.started, in_model(objective), in_model(bound), nodes)
        if not events or (events[-1].objective, events[-1].bound) != (event.objective, event.bound):
            events.append(event)
            if settings.on_event is not None:
                settings.on_event(event)

    if start:
        session.warm_start(start)
    with session.watched(record):
        status, limit, message = session.run(), session.limit, session.message
        x, bound, nodes = session.point(), session.bound, session.nodes
        if x is not None:
            x = verify(model, x)
            record(float(scaled.costs[0] @ x + scaled.offsets[0]), bound, nodes)
        session.progress = None  # later objectives are no news of the first
        if status == "optimal" and x is not None:
            for k in range(1, len(model.costs)):
                x = _next_priority(session, model, scaled, k, x)
    return _report(model, status, limit, message, x, in_model(bound), nodes, time.perf_counter() - session.started,
                   tuple(events))  # fmt: skip


def verify(model: Compiled, x: Array) -> Array:
    """The point with integers rounded, after checking it; continuous parts follow the rounding where they must.

    Raises:
        SolverError: it is not feasible, even so.
    """
    rounded = np.where(model.integer, np.round(x), x)
    if model.violation(rounded) is None:
        return rounded
    completed = _complete(model, rounded)
    problem = "no continuous completion of its integers" if completed is None else model.violation(completed)
    if completed is None or problem is not None:
        raise SolverError(f"HiGHS returned an infeasible point: {problem}")
    return completed


def _complete(model: Compiled, x: Array) -> Array | None:
    """The best continuous part beside the integers of x, by LP; None if there is none.

    Without presolve, whose way back now and then breaks rows that HiGHS then reports as kept.
    """
    session = Session(_scaled(model, _scales(model)), Settings(options={"presolve": "off"}))
    integers = np.flatnonzero(model.integer)
    session.set_integer(integers, on=False)
    session.set_column_bounds(integers, x[integers], x[integers])
    if session.run() != "optimal":
        return None
    found = session.point()
    return None if found is None else np.where(model.integer, x, found)


def _next_priority(session: Session, model: Compiled, scaled: Compiled, k: int, x: Array) -> Array:
    """Minimise objective k with all earlier ones held at their values at x; x where nothing better is found."""
    held = scaled.costs[k - 1]
    index = np.flatnonzero(held)
    if len(index):
        value = float(held @ x)
        session.add_row(-np.inf, value + 1e-9 * max(1.0, abs(value)), index, held[index])
    session.set_costs(scaled.costs[k], float(scaled.offsets[k]))
    session.warm_start(dict(enumerate(map(float, x))))
    better = session.point() if session.run() == "optimal" else None
    return x if better is None else verify(model, better)


def _report(
    model: Compiled, status: Ended, limit: Limit | None, message: str, x: Array | None, bound: float | None, nodes: int,
    seconds: float, events: tuple[Event, ...],
) -> Report:  # fmt: skip
    if status == "infeasible" or status == "unbounded":
        return Report(status, None, None, None, None, None, (), seconds, nodes, message, events)
    objectives: tuple[float, ...] = ()
    if x is not None:
        objectives = tuple(
            float(s * (c @ x + o)) for s, c, o in zip(model.signs, model.costs, model.offsets, strict=True)
        )
    objective = objectives[0] if objectives else None
    gap = relative_gap(objective, bound)
    result: Status = "error"
    if status == "optimal" and x is not None:
        result = "optimal" if gap is None or gap <= PROVED else "feasible"
        limit = None if result == "optimal" else "gap"
    elif limit is not None:
        result = "feasible" if x is not None else "no_solution_found"
        if gap is not None and gap <= PROVED:
            result, limit = "optimal", None
    return Report(result, limit, objective, bound, gap, x, objectives, seconds, nodes, message, events)


class Relaxed(NamedTuple):
    """A relaxation's bound in the model's own sense, its point, and what one more unit of each column's bound is worth.

    With `reduced`, (n,) and of the model's own sense too, bound + reduced_j·(new − old) is a bound for another bound of
    column j (the upper one where that is positive in a model that maximises).
    """

    bound: float | None
    x: Array | None
    reduced: Array | None


def relaxation(
    model: Compiled, settings: Settings | None = None, prefer: Array | None = None, most: float = 0.0
) -> Relaxed:
    """The first objective's LP relaxation by interior point, without crossover: a proved bound and the point.

    The bound comes from the row duals and our own arrays: for any y, the least value of
    Σ_i y_i·b_i + Σ_j (c − Aᵀy)_j·x_j over row and column bounds is a bound (Neumaier and Shcherbina 2004), whatever the
    solver's tolerances. It is finite where every column with a cost is bounded.

    Args:
        model: the arrays.
        settings: limits.
        prefer: small costs (n,) to minimise beside the objective, to choose among its many optima.
        most: the largest value of prefer·x at any feasible point; the bound, of the objective alone, is looser by it.

    Returns:
        All None where the time ran out or there is no such point.
    """
    settings = settings or Settings()
    options = {"solver": "ipm", "run_crossover": "off"} | settings.options
    relaxed = replace(model, integer=np.zeros_like(model.integer))
    if prefer is not None:
        relaxed = replace(relaxed, costs=model.costs[:1] + prefer, offsets=model.offsets[:1])
    scale = _scales(relaxed)
    session = Session(_scaled(relaxed, scale), replace(settings, options=options))
    if session.run() != "optimal":
        return Relaxed(None, None, None)
    x, y = session.values(), session.row_duals() / scale[0]
    reduced = relaxed.costs[0] - model.A.T @ y
    with np.errstate(invalid="ignore"):
        parts = np.concatenate((
            np.where(y > 0, y * model.row_lower, np.where(y < 0, y * model.row_upper, 0.0)),
            np.where(reduced > 0, reduced * model.lower, np.where(reduced < 0, reduced * model.upper, 0.0)),
        ))  # fmt: skip
    bound = float(parts.sum() + model.offsets[0]) - (most if prefer is not None else 0.0)
    sign = float(model.signs[0])
    return Relaxed(sign * bound if math.isfinite(bound) else None, x, sign * reduced)
