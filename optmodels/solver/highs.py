"""Compiled models solved on a `Session`: lexicographic objectives, every point verified, honest status and bound."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp

from optmodels.arrays import Array
from optmodels.errors import InputError, Mistake, SolverError
from optmodels.solver.cancel import cancelled, caught_interrupt
from optmodels.solver.compile import Compiled
from optmodels.solver.infeasible import refute
from optmodels.solver.linking import linked
from optmodels.solver.otherwise import otherwise, way
from optmodels.solver.own_process import EndedError, in_own_process, possible
from optmodels.solver.pyomo_solver import run_pyomo
from optmodels.solver.safe import EPS, least_value, propagated
from optmodels.solver.scaling import REFUSED, Scaled, capped, scaled
from optmodels.solver.scip import run_scip
from optmodels.solver.session import Ended, Event, Limit, Progress, Session, Settings

__all__ = [
    "PROVED", "Event", "Limit", "Relaxed", "Report", "Settings", "Status", "agreed", "relative_gap", "relaxation",
    "solve_compiled", "verify",
]  # fmt: skip

Status = Literal["optimal", "feasible", "infeasible", "unbounded", "no_solution_found", "error"]
PROVED = 1e-6  # a relative gap below this is a proof


@dataclass(frozen=True)
class Report:
    """Solution and proof of a run; `objective` and `bound` in the model's own sense, first objective."""

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
    iterations: int = 0  # of the simplex method, where HiGHS is the solver


ZERO = 1e-10  # bound next to an objective of 0, in its unit: `relative_gap`


def relative_gap(objective: float | None, bound: float | None) -> float | None:
    """|objective − bound| / |objective|, as HiGHS defines it; None without both.

    Next to an objective of 0 a bound counts as 0 up to `ZERO`, which is what rounding leaves of a dual bound.
    """
    if objective is None or bound is None or not math.isfinite(bound):
        return None
    if objective == bound or (objective == 0.0 and abs(bound) <= ZERO):
        return 0.0
    return abs(objective - bound) / abs(objective) if objective else math.inf


GRACE_S = 1.0  # beyond its time limit, until a run that does not hear it is ended with its process
# Runs that answer for another. Presolve stays out: its way back now and then breaks rows that HiGHS then reports as
# kept, and with tight tolerances 1.15.1 has proved a false optimum. These are as tight as HiGHS works with.
CAREFUL: dict[str, Any] = {
    "presolve": "off", "mip_feasibility_tolerance": 1e-9, "primal_feasibility_tolerance": 1e-9,
    "dual_feasibility_tolerance": 1e-9, "small_matrix_value": 1e-12,
}  # fmt: skip
LESS_TIGHT = {"mip_feasibility_tolerance": 1e-7, "primal_feasibility_tolerance": 1e-8}  # of the run after that
DUAL = 1e-7  # HiGHS' tolerance of reduced costs
MOST_RUNS = 3  # until two agree
PATIENCE_S = 2.0  # for a proof of infeasibility at least, if the run was shorter
MOVED = 1e-9  # rounding of an integer without its rounding mattering to continuous parts
NEAR = 1e-6  # from a bound, in the column's unit or range: the solver means the bound
UNCONFIRMED = "Infeasible by one run, which nothing confirms"
CONTRADICTION = "runs of HiGHS contradict one another, or a bound its point"


def solve_compiled(model: Compiled, settings: Settings | None = None, start: dict[int, float] | None = None) -> Report:
    """Solve the compiled model lexicographically in its objectives and verify the answers of HiGHS.

    * A point is verified against our own arrays, every row by its own size (`verify`).
    * "Infeasible" is proved in our own arithmetic (`infeasible.refute`). Where that takes too long, a second run
      without presolve and with another seed must find it too, and the message names that run; else it is not reported.
    * The duals of an LP prove its bound in our arithmetic (`safe.least_value`; the reduced cost of a column
      without bounds may be wrong by HiGHS' tolerance). The tree gives a MIP's bound, and no point may be better.
    * Where HiGHS gives up on every run, the model is solved without its costs, for a point or the proof of none.
    * A second run is made where the first one's point or bound is refuted, where the model's numbers are extreme even
      when scaled (`scaling.extremes`), and where a right-hand side is near-integral (`Session.near_integral`). The best
      point counts, and a bound that two runs reached.

    Args:
        model: the arrays.
        settings: limits, seed, progress.
        start: warm start, column → value; may name only some columns.

    Returns:
        The report; status ``error`` where two runs contradict each other, or a point contradicts its bound.

    Raises:
        InputError: the numbers of the model lie too far apart: no answer can be verified.
        SolverError: HiGHS refused the model, or no point that it returned is feasible.
    """
    return _Solve(model, settings or Settings()).report(start)


def agreed(model: Compiled, session: Session, settings: Settings) -> tuple[Array | None, float | None]:
    """The best point and a bound that two runs have reached: the last one of a kept session, and others.

    Args:
        model: model that the session had then (`Session.compiled`).
        session: session with a near-integral right-hand side.
        settings: settings of the others.

    Returns:
        Point (n,) and bound as minimised; None without.
    """
    solve = _Solve(model, settings)
    x, _ = solve.verified(session.point(), 1.0)
    bound = None if session.bound is None else float(model.signs[0]) * session.bound
    found = bound, session.nodes, session.near_integral, session.iterations
    first = _Run(session.status, session.limit, session.message, x, None, *found)
    with caught_interrupt():
        answer = solve.beside(first)
    return answer.x, answer.bound


class _Run(NamedTuple):
    """One run and its result, verified; the bound as minimised, in the model's unit.

    Attributes:
        x: a point that `verify` accepted.
        problem: reason why `verify` refused the point; None: it accepted it, or there was none.
        near_integral: whether a right-hand side is near-integral.
    """

    ended: Ended
    limit: Limit | None
    message: str
    x: Array | None
    problem: str | None
    bound: float | None
    nodes: int
    near_integral: bool = False
    iterations: int = 0


class _Solve:
    """The runs on one model."""

    def __init__(self, model: Compiled, settings: Settings, seen: Scaled | None = None) -> None:
        self.model, self.settings = model, settings
        self.seen = scaled(model) if seen is None else seen
        self.extreme = self.seen.extreme
        self.twice = self.extreme is not None  # a bound is one that two runs have reached
        self.events: list[Event] = []
        self.began = time.perf_counter()

    def report(self, start: dict[int, float] | None) -> Report:
        """See `solve_compiled`; Ctrl-C ends all its runs."""
        with caught_interrupt():
            return self._told(self._answer(start))

    def _answer(self, start: dict[int, float] | None) -> _Run:
        limit = self.settings.time_limit
        if self.extreme and limit is not None:
            limit /= 2  # the rest is for the second run
        first = self.run(self.seen, replace(self.settings, time_limit=limit), start, self.record)
        # Where dear columns hide cheap ones, runs have agreed on a false optimum: one that sees them may find better.
        other = capped(self.seen) if self.extreme and self.model.integer.any() else None
        if other is not None and first.ended in ("optimal", "limit"):
            left = self._left()
            left = None if left is None else left / 2  # the rest is for another that agrees
            second = self._killable(other, replace(self.settings, time_limit=left, on_event=None))
            value = self._value(first.x)
            if self._value(second.x) < value - PROVED * abs(value):
                self.seen, first = other, second
        return self.beside(first)

    def beside(self, first: _Run) -> _Run:
        """The first run with others where it needs them."""
        infeasible = first.ended == "infeasible"
        self.twice |= first.near_integral
        if first.ended == "unbounded" or not (self.twice or infeasible or self._doubtful(first)):
            return first
        if infeasible and (words := refute(self.seen.model, self._patience())) is not None:
            return first._replace(message=words)
        runs, answer = [first], self._agreed([first])
        while len(runs) < MOST_RUNS and not self._settled(answer) and self._left() != 0 and not cancelled():
            runs.append(self._careful(answer.x, len(runs)))
            answer = self._agreed(runs)
        if answer.x is None and answer.ended == "error" and self._left() != 0 and not cancelled():
            answer = self._without_costs(answer)
        if answer.x is None and answer.problem is not None and answer.ended != "infeasible" and self._left() != 0:
            if self.extreme is None:
                raise SolverError(answer.problem)
            expected = "numbers less far apart: no answer could be verified"
            raise InputError(Mistake(None, "model", f"{self.extreme}; {answer.problem}", expected))
        if answer.x is None and answer.ended == "error" and self._left() == 0:  # no run was left the time to agree
            return answer._replace(ended="limit", limit="time")
        return answer

    def run(
        self, seen: Scaled, settings: Settings, start: dict[int, float] | None, record: Progress | None = None,
        careful: bool = False,
    ) -> _Run:  # fmt: skip
        """One run on the scaled model, its point verified against the model; careful ones for Pyomo's are HiGHS'."""
        name = way().solver
        if seen.model.costs.shape[1] and (name == "SCIP" or (name != "HiGHS" and not careful)):
            return self._other(name, seen, settings)
        session = Session(seen.model, settings)
        lp = not seen.model.integer.any()
        if start:
            session.warm_start({k: value / seen.column[k] for k, value in start.items()})
        with session.watched(record):
            ended, limit, message = session.run(), session.limit, session.message
            x, bound, nodes, work = session.point(), session.bound, session.nodes, session.iterations
            if lp and ended == "optimal":
                duals = session.row_duals()
                bound = least_value(seen.model, seen.model.costs[0], duals, DUAL) + float(seen.model.offsets[0])
            x, problem = self.verified(x, seen.column)
            session.progress = None  # later objectives are no news of the first
            if ended == "optimal" and x is not None:
                for k in range(1, len(self.model.costs)):
                    x = self._next_priority(session, seen, k, x)
        bound = None if bound is None or not math.isfinite(bound) else bound / float(seen.objective[0])
        return _Run(ended, limit, message, x, problem, bound, nodes, session.near_integral, work)

    def _other(self, name: str, seen: Scaled, settings: Settings) -> _Run:
        """One run by another solver; later objectives are left out."""
        seed = (settings.seed + way().seed) % 2**31
        how = seen.model, settings.time_limit, settings.gap, seed
        ended, limit, message, x, bound, nodes = run_scip(*how) if name == "SCIP" else run_pyomo(name, *how)
        way().said.append(message)
        if ended in ("unbounded", "error") and name != "SCIP":  # several do not tell unbounded, infeasible and others
            return self.run(seen, settings, None, careful=True)
        found, problem = self.verified(x, seen.column)
        return _Run(
            ended, limit, message, found, problem, None if bound is None else bound / float(seen.objective[0]), nodes
        )

    def verified(self, x: Array | None, column: Array | float) -> tuple[Array | None, str | None]:
        """A point scaled by `column` in the model's units, or why it is none."""
        try:
            return (None if x is None else verify(self.model, x * column)), None
        except SolverError as error:
            return None, str(error)

    def record(self, objective: float, bound: float | None, nodes: int) -> None:
        """Keep an event if it brings news; values as HiGHS sees them, scaled."""
        unit = float(self.model.signs[0]) / float(self.seen.objective[0])
        value, proved = (unit * v if v is not None and math.isfinite(v) else None for v in (objective, bound))
        event = Event(time.perf_counter() - self.began, value, proved, nodes)
        if not self.events or (self.events[-1].objective, self.events[-1].bound) != (event.objective, event.bound):
            self.events.append(event)
            if self.settings.on_event is not None:
                self.settings.on_event(event)

    def _next_priority(self, session: Session, seen: Scaled, k: int, x: Array) -> Array:
        """Minimise objective k with all earlier ones held at their values at x; x where nothing better is found."""
        held, at = self.model.costs[k - 1] * seen.column * seen.objective[k - 1], x / seen.column
        index = np.flatnonzero(held)
        if len(index):
            unit = max(1.0, float(np.abs(held).max()) / REFUSED)
            value = float(held @ at) / unit
            session.add_row(-np.inf, value + 1e-9 * max(1.0, abs(value)), index, held[index] / unit)
        session.set_costs(seen.model.costs[k], float(seen.model.offsets[k]))
        session.warm_start(dict(enumerate(map(float, at))))
        better = session.point() if session.run() == "optimal" else None
        found, _ = self.verified(better, seen.column)
        cost = self.model.costs[k]
        return x if found is None or cost @ found > cost @ x else found

    def _left(self) -> float | None:
        """Seconds until the time limit; None without one."""
        limit = self.settings.time_limit
        return None if limit is None else max(0.0, limit - (time.perf_counter() - self.began))

    def _patience(self) -> float:
        """Seconds for a proof of infeasibility: as long again as the run took, or a little."""
        patience, left = max(PATIENCE_S, time.perf_counter() - self.began), self._left()
        return patience if left is None else min(patience, left)

    def _value(self, x: Array | None) -> float:
        """The first objective, as minimised."""
        return math.inf if x is None else float(self.model.costs[0] @ x + self.model.offsets[0])

    def _rounding(self, x: Array) -> float:
        """Largest rounding error of the first objective at x, which matters where its terms cancel."""
        terms = np.append(self.model.costs[0] * x, self.model.offsets[0])
        return float(np.count_nonzero(terms) * EPS * np.abs(terms).sum())

    def _gap(self, run: _Run) -> float | None:
        """The relative gap; 0 where point and bound differ by rounding only."""
        value = self._value(run.x)
        if run.x is not None and run.bound is not None and abs(value - run.bound) <= self._rounding(run.x):
            return 0.0
        return relative_gap(value, run.bound)

    def _contradicts(self, run: _Run) -> bool:
        """Whether the point is better than the bound."""
        if run.x is None or run.bound is None:
            return False
        value = self._value(run.x)
        return run.bound - value > max(PROVED * max(abs(value), abs(run.bound)), self._rounding(run.x))

    def _doubtful(self, run: _Run) -> bool:
        """Whether HiGHS gave up, point or bound is refuted, or its stated optimum has a gap: tolerances hid it."""
        unproved = run.ended == "optimal" and run.bound is not None and not self._settled(run)
        return run.ended == "error" or run.problem is not None or self._contradicts(run) or unproved

    def _settled(self, run: _Run) -> bool:
        """Whether another run has nothing to add."""
        gap = self._gap(run)
        return run.ended == "infeasible" or (gap is not None and gap <= max(PROVED, 1.01 * self.settings.gap))

    def _careful(self, known: Array | None, number: int) -> _Run:
        """A run by other ways (`CAREFUL`), with all the room that a point as good as the known one can need."""
        seen = self.seen
        small = linked(seen.model)
        if known is not None:
            cost, true = small.costs[:1], self.model.costs[0] * seen.objective[0]  # these are never less
            top = true @ known + NEAR * (np.abs(true) @ np.abs(known))
            cut = replace(
                small, A=sp.vstack((small.A, sp.csr_matrix(cost)), format="csc"),
                row_lower=np.append(small.row_lower, -np.inf), row_upper=np.append(small.row_upper, top),
            )  # fmt: skip
            bounds = propagated(cut, small.lower, small.upper)
            if bounds is not None:
                small = replace(small, lower=bounds[0], upper=bounds[1])
        options = self.settings.options | CAREFUL | ({} if number == 1 else LESS_TIGHT)
        seed = (self.settings.seed + number) % 2**31
        settings = replace(self.settings, time_limit=self._left(), seed=seed, options=options, on_event=None)
        return self._killable(replace(seen, model=small), settings)

    def _killable(self, seen: Scaled, settings: Settings) -> _Run:
        """A careful run; where numbers are extreme in a process that ends with its time, whatever HiGHS hears."""
        settings = replace(
            settings, seed=(settings.seed + way().seed) % 2**31, options=settings.options | dict(way().options)
        )
        seen = replace(seen, model=replace(seen.model, variables=()))
        with otherwise(replace(way(), seed=0, options={})):
            if self.extreme is None or not seen.model.integer.any() or way().solver == "SCIP" or not possible():
                return self.run(seen, settings, None, careful=True)
            left = None if settings.time_limit is None else settings.time_limit + GRACE_S
            try:
                return in_own_process(_careful_run, replace(self.model, variables=()), seen, settings, seconds=left)
            except EndedError:
                limit: Limit = "interrupt" if cancelled() else "time"
                return _Run("limit", limit, "ended with its process", None, None, None, 0)

    def _without_costs(self, given_up: _Run) -> _Run:
        """Where every run gave up: whether there is a point does not depend on the costs, which may be why."""
        plain = replace(self.seen, model=replace(self.seen.model, costs=np.zeros_like(self.seen.model.costs)))
        options = self.settings.options | CAREFUL
        run = self._killable(plain, replace(self.settings, time_limit=self._left(), options=options, on_event=None))
        if run.ended == "infeasible" and (words := refute(plain.model, self._patience())) is not None:
            return run._replace(message=words)
        if run.x is None:
            return given_up
        return given_up._replace(ended="limit", limit="gap", x=run.x, problem=None)

    def _agreed(self, runs: list[_Run]) -> _Run:
        """The joint result of runs: the best of their points, and a bound that no point refutes.

        A point refutes that there is none. Where one run's bound is not enough, it is one that two have reached.
        """
        x = min((run.x for run in runs), key=self._value)
        no_point = [run for run in runs if run.ended == "infeasible"]
        if x is None and len(no_point) > 1:
            name = way().solver
            by = f"{name}, with presolve and without" if name in ("HiGHS", "SCIP") else f"{name} and HiGHS"
            return no_point[-1]._replace(message=f"Infeasible by two runs of {by}")
        others = [run._replace(x=x) for run in runs if run.ended != "infeasible"]
        if not others:
            return no_point[0]._replace(ended="limit", limit="time", message=UNCONFIRMED)
        bounds = sorted(
            (run.bound for run in others if run.bound is not None and not self._contradicts(run)), reverse=True
        )
        # By a hair HiGHS errs in bounds (`Session.near_integral`): those are not believed. Elsewhere it is a fault.
        refuted = not bounds and any(map(self._contradicts, others)) and not any(run.near_integral for run in runs)
        bound = None if len(bounds) <= self.twice else bounds[self.twice]
        run = next((r for r in others if r.ended == "optimal"), others[-1])
        if refuted or (x is None and no_point):
            run = run._replace(ended="error", message=CONTRADICTION)
        elif bound is None and run.ended == "optimal" and self.model.integer.any():
            run = run._replace(ended="limit", limit=run.limit or "gap")
        problem = next((r.problem for r in reversed(runs) if r.problem is not None), None)
        iterations = sum(r.iterations for r in runs)
        return run._replace(bound=bound, nodes=sum(r.nodes for r in runs), problem=problem, iterations=iterations)

    def _told(self, run: _Run) -> Report:
        """The report of a run."""
        model, seconds = self.model, time.perf_counter() - self.began
        if run.ended in ("infeasible", "unbounded"):
            return Report(
                run.ended, None, None, None, None, None, (), seconds, run.nodes, run.message, tuple(self.events)
            )
        sign = float(model.signs[0])
        x, limit, bound = run.x, run.limit, None if run.bound is None else sign * run.bound
        if x is not None:
            factor = float(self.seen.objective[0])
            self.record(factor * self._value(x), None if run.bound is None else factor * run.bound, run.nodes)
        objectives = () if x is None else tuple(
            float(s * (c @ x + o)) for s, c, o in zip(model.signs, model.costs, model.offsets, strict=True)
        )  # fmt: skip
        objective = objectives[0] if objectives else None
        gap = None if x is None else self._gap(run)
        status: Status = "error"
        message = run.message
        if self._contradicts(run):
            message = CONTRADICTION
        elif run.ended == "optimal" and x is not None:
            status = "optimal" if gap is not None and gap <= PROVED else "feasible"
            limit = None if status == "optimal" else "gap"
        elif limit is not None:
            status = "feasible" if x is not None else "no_solution_found"
            if gap is not None and gap <= PROVED:
                status, limit = "optimal", None
        return Report(
            status, limit, objective, bound, gap, x, objectives, seconds, run.nodes, message, tuple(self.events)
        )


def verify(model: Compiled, x: Array) -> Array:
    """The point with integers rounded, after checking it; continuous parts follow the rounding where they must.

    Values that the solver's tolerances leave next to a bound are moved onto it where rows need that.

    Raises:
        SolverError: it is not feasible, even so.
    """
    whole = np.clip(np.round(x), np.ceil(model.lower), np.floor(model.upper))
    rounded = np.where(model.integer, whole, np.clip(x, model.lower, model.upper))
    problem = model.violation(rounded)
    near = [rounded, _onto_bounds(model, rounded)]
    moved = (np.abs(rounded - x)[model.integer] > MOVED).any()
    for found in chain(_completions(model, rounded), near) if moved else chain(near, _completions(model, rounded)):
        if model.violation(found) is None:
            return found
    raise SolverError(f"the solver returned an infeasible point: {problem}")


def _onto_bounds(model: Compiled, x: Array) -> Array:
    """Continuous values that are `NEAR` a bound moved onto it."""
    with np.errstate(invalid="ignore"):
        near = np.where(model.integer, 0.0, NEAR * np.minimum(1.0, model.upper - model.lower))
        x = np.where(x - model.lower <= near, model.lower, x)
        return np.where(model.upper - x <= near, model.upper, x)


def _completions(model: Compiled, x: Array) -> Iterator[Array]:
    """The best continuous parts next to the integers of x, by LP."""
    whole, rest = np.flatnonzero(model.integer), np.flatnonzero(~model.integer)
    fixed = model.A[:, whole] @ x[whole]
    part = replace(
        model, costs=model.costs[:1, rest], offsets=model.offsets[:1], signs=model.signs[:1], A=model.A[:, rest],
        row_lower=model.row_lower - fixed, row_upper=model.row_upper - fixed, lower=model.lower[rest],
        upper=model.upper[rest], integer=np.zeros(len(rest), dtype=bool),
    )  # fmt: skip
    seen = scaled(part)
    for tolerance in (1e-9, 1e-7):
        session = Session(seen.model, Settings(options=CAREFUL | {"primal_feasibility_tolerance": tolerance}))
        if session.run() == "optimal" and (found := session.point()) is not None:
            completed = x.copy()
            completed[rest] = np.clip(found * seen.column, model.lower[rest], model.upper[rest])
            yield completed
            yield _onto_bounds(model, completed)


class Relaxed(NamedTuple):
    """A relaxation's bound in the model's own sense, its point, and the shadow price of each column's bound.

    With `reduced`, (n,) and of the model's own sense too, bound + reduced_j·(new − old) is a bound for another bound of
    column j (the upper one where that is positive in a model that maximises). `y` are the multipliers of rows, (m,),
    that prove the bound, as minimised.
    """

    bound: float | None
    x: Array | None
    reduced: Array | None
    y: Array | None = None


def _careful_run(model: Compiled, seen: Scaled, settings: Settings) -> _Run:
    """A careful run for a process of its own: numbers far apart once had HiGHS 1.15.1 loop for ever in a tree."""
    return _Solve(model, settings, seen).run(seen, settings, None, careful=True)


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
        prefer: small costs (n,) to minimise next to the objective, to choose among its many optima.
        most: the largest value of prefer·x at any feasible point; the bound, of the objective alone, is weaker by it.

    Returns:
        All None where the time ran out or there is no such point.
    """
    settings = settings or Settings()
    options = {"solver": "ipm", "run_crossover": "off"} | settings.options
    relaxed = replace(model, integer=np.zeros_like(model.integer))
    if prefer is not None:
        relaxed = replace(relaxed, costs=model.costs[:1] + prefer, offsets=model.offsets[:1])
    seen = scaled(relaxed)
    session = Session(seen.model, replace(settings, options=options))
    with session.watched():
        if session.run() != "optimal":
            return Relaxed(None, None, None)
    x, y = session.values() * seen.column, session.row_duals() * seen.row / seen.objective[0]
    bound = least_value(relaxed, relaxed.costs[0], y) + float(model.offsets[0]) - (most if prefer is not None else 0.0)
    sign = float(model.signs[0])
    return Relaxed(sign * bound if math.isfinite(bound) else None, x, sign * (relaxed.costs[0] - model.A.T @ y), y)
