"""One HiGHS run on compiled arrays: limits, live progress, Ctrl-C, warm start, every status mapped."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import highspy
import numpy as np
import numpy.typing as npt

from optmodels.errors import SolverError
from optmodels.solver.cancel import current
from optmodels.solver.compile import Compiled

Array = npt.NDArray[np.float64]
Status = Literal["optimal", "feasible", "infeasible", "unbounded", "no_solution_found", "error"]
Limit = Literal["time", "gap", "interrupt", "memory"]
PROVED = 1e-6  # a relative gap below this is a proof


@dataclass(frozen=True)
class Event:
    """Progress of a run: values in the model's own sense."""

    seconds: float
    objective: float | None
    bound: float | None
    nodes: int


@dataclass(frozen=True)
class Settings:
    """How to solve. Same settings, same answer: threads and seed are fixed.

    Attributes:
        time_limit: seconds, None for none.
        gap: stop at this relative MIP gap.
        seed: HiGHS random seed.
        on_event: called on every improvement of incumbent or bound.
        options: further HiGHS options by name.
    """

    time_limit: float | None = None
    gap: float = 0.0
    seed: int = 0
    threads: int = 1
    on_event: Callable[[Event], None] | None = None
    options: dict[str, Any] = field(default_factory=dict)


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


@contextmanager
def _catch_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a flag (a second one interrupts as usual); only possible in the main thread."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    previous = signal.getsignal(signal.SIGINT)

    def handler(signum: int, frame: Any) -> None:
        if flag.is_set():
            signal.signal(signal.SIGINT, previous)
            raise KeyboardInterrupt
        flag.set()

    signal.signal(signal.SIGINT, handler)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, previous)


def _must(status: Any, what: str) -> None:
    if status == highspy.HighsStatus.kError:
        raise SolverError(f"HiGHS refused {what}")


class _Run:
    """A HiGHS handle with the model passed; solves one objective after another."""

    def __init__(self, model: Compiled, settings: Settings) -> None:
        self.model, self.settings = model, settings
        # HiGHS' tolerances are absolute: costs of size one keep the relative gap meaningful.
        self.scale = [1.0 / float(np.median(np.abs(c[c != 0]))) if c.any() else 1.0 for c in model.costs]
        self.events: list[Event] = []
        self.started = time.perf_counter()
        self.priority = 0
        h = self.h = highspy.Highs()
        options = {
            "output_flag": True, "log_to_console": False, "threads": settings.threads, "random_seed": settings.seed,
            "mip_rel_gap": settings.gap, "mip_abs_gap": 0.0,
        } | settings.options  # fmt: skip
        for name, value in options.items():
            _must(h.setOptionValue(name, value), f"option {name} = {value}")
        A = model.A
        status = h.passModel(
            A.shape[1], A.shape[0], A.nnz, int(highspy.MatrixFormat.kColwise), int(highspy.ObjSense.kMinimize),
            float(model.offsets[0]) * self.scale[0], model.costs[0] * self.scale[0], model.lower, model.upper,
            model.row_lower, model.row_upper,
            A.indptr.astype(np.int32), A.indices.astype(np.int32), A.data.astype(float),
            model.integer.astype(np.int32),
        )  # fmt: skip
        _must(status, "the model")

    def warm_start(self, start: dict[int, float]) -> None:
        """Offer values of some columns; HiGHS completes them by LP and drops an infeasible start.

        Values are moved into their bounds, outside of which HiGHS refuses the whole start.
        """
        index = np.fromiter(start, dtype=np.int32, count=len(start))
        value = np.fromiter(start.values(), dtype=float, count=len(start))
        value = np.clip(value, self.model.lower[index], self.model.upper[index])
        _must(self.h.setSolution(len(index), index, value), "the warm start")

    def remaining(self) -> float | None:
        """Seconds left of the time limit."""
        if self.settings.time_limit is None:
            return None
        return max(0.0, self.settings.time_limit - (time.perf_counter() - self.started))

    def watch(self, stop: threading.Event) -> None:
        """Hook progress, Ctrl-C and cancellation into the run."""

        cancel = current()  # looked up here: callbacks need not run in this thread

        def interrupt(event: Any) -> None:
            if stop.is_set() or (cancel is not None and cancel.is_set()):
                event.interrupt()

        def progress(event: Any) -> None:
            if self.priority == 0:
                data = event.data_out
                self.record(data.objective_function_value, data.mip_dual_bound, int(data.mip_node_count))

        h = self.h
        h.cbMipInterrupt += interrupt
        h.cbSimplexInterrupt += interrupt
        h.cbIpmInterrupt += interrupt
        h.cbMipLogging += progress
        h.cbMipImprovingSolution += progress

    def record(self, objective: float, bound: float, nodes: int) -> None:
        """Keep an event if it brings news; values as HiGHS sees them, scaled."""
        event = Event(time.perf_counter() - self.started, self.in_model(objective), self.in_model(bound), nodes)
        last = self.events[-1] if self.events else None
        if last is None or (last.objective, last.bound) != (event.objective, event.bound):
            self.events.append(event)
            if self.settings.on_event is not None:
                self.settings.on_event(event)

    def in_model(self, value: float) -> float | None:
        """A value of the first objective in the model's own scale and sense; None for infinity."""
        if not abs(value) < highspy.kHighsInf:
            return None
        return float(self.model.signs[0]) * float(value) / self.scale[0]

    def run(self) -> Any:
        """Run within the remaining time; returns the HiGHS model status."""
        left = self.remaining()
        if left is not None:
            # HiGHS counts time from the handle's first run.
            self.h.setOptionValue("time_limit", self.h.getRunTime() + left)
        self.h.run()
        status = self.h.getModelStatus()
        if status == highspy.HighsModelStatus.kUnboundedOrInfeasible:
            self.h.setOptionValue("presolve", "off")
            self.h.run()
            status = self.h.getModelStatus()
        return status

    def solution(self) -> Array | None:
        """The feasible point found, if any."""
        if self.h.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        return np.array(self.h.getSolution().col_value)


_LIMITS: dict[Any, Limit] = {
    highspy.HighsModelStatus.kTimeLimit: "time",
    highspy.HighsModelStatus.kIterationLimit: "time",
    highspy.HighsModelStatus.kSolutionLimit: "gap",
    highspy.HighsModelStatus.kObjectiveBound: "gap",
    highspy.HighsModelStatus.kObjectiveTarget: "gap",
    highspy.HighsModelStatus.kInterrupt: "interrupt",
    highspy.HighsModelStatus.kMemoryLimit: "memory",
}


def solve_compiled(model: Compiled, settings: Settings | None = None, start: dict[int, float] | None = None) -> Report:
    """Solve the compiled model lexicographically in its objectives.

    Every point HiGHS returns is checked against our own arrays before it is believed.

    Args:
        model: the arrays.
        settings: limits, seed, progress.
        start: warm start, column → value; may name only some columns.

    Raises:
        SolverError: HiGHS refused the model or returned a point that is not feasible.
    """
    settings = settings or Settings()
    run = _Run(model, settings)
    if start:
        run.warm_start(start)
    with _catch_interrupt() as stop:
        run.watch(stop)
        status = run.run()
        info = run.h.getInfo()
        x = run.solution()
        nodes = max(0, int(info.mip_node_count))
        is_mip = bool(model.integer.any())
        first_bound = float(info.mip_dual_bound) if is_mip else float(info.objective_function_value)
        if x is not None:
            x = _believe(model, x)
            run.record(float(model.costs[0] @ x + model.offsets[0]) * run.scale[0], first_bound, nodes)
        limit = _LIMITS.get(status)
        if status == highspy.HighsModelStatus.kOptimal:
            for k in range(1, len(model.costs)):
                assert x is not None
                better = _next_priority(run, k, x)
                x = better if better is not None else x
    seconds = time.perf_counter() - run.started
    return _report(model, status, limit, x, first_bound if is_mip or limit is None else -math.inf, seconds, nodes, run)


def _believe(model: Compiled, x: Array) -> Array:
    """The point with integers rounded, after checking it; continuous parts follow the rounding where they must."""
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
    lower = np.where(model.integer, x, model.lower)
    upper = np.where(model.integer, x, model.upper)
    fixed = replace(model, lower=lower, upper=upper, integer=np.zeros_like(model.integer))
    run = _Run(fixed, Settings(options={"presolve": "off"}))
    if run.run() != highspy.HighsModelStatus.kOptimal:
        return None
    found = run.solution()
    return None if found is None else np.where(model.integer, x, found)


def _next_priority(run: _Run, k: int, x: Array) -> Array | None:
    """Minimise objective k with all earlier ones held at their values at x."""
    model, h = run.model, run.h
    run.priority = k
    n = len(x)
    held = model.costs[k - 1] * run.scale[k - 1]
    index = np.flatnonzero(held).astype(np.int32)
    if len(index):
        value = float(held @ x)
        slack = 1e-9 * max(1.0, abs(value))
        _must(h.addRow(-highspy.kHighsInf, value + slack, len(index), index, held[index]), "the priority row")
    _must(h.changeColsCost(n, np.arange(n, dtype=np.int32), model.costs[k] * run.scale[k]), "the next objective")
    _must(h.changeObjectiveOffset(float(model.offsets[k]) * run.scale[k]), "the next objective")
    run.warm_start(dict(enumerate(map(float, x))))
    if run.run() != highspy.HighsModelStatus.kOptimal:
        return None
    better = run.solution()
    return None if better is None else _believe(model, better)


def _report(
    model: Compiled,
    status: Any,
    limit: Limit | None,
    x: Array | None,
    first_bound: float,
    seconds: float,
    nodes: int,
    run: _Run,
) -> Report:
    S = highspy.HighsModelStatus
    message = run.h.modelStatusToString(status)
    objectives: tuple[float, ...] = ()
    objective = None
    bound = run.in_model(first_bound)
    if x is not None:
        objectives = tuple(
            float(s * (c @ x + o)) for s, c, o in zip(model.signs, model.costs, model.offsets, strict=True)
        )
        objective = objectives[0]
    gap = relative_gap(objective, bound)
    result: Status
    if status in (S.kOptimal, S.kModelEmpty) and x is not None:
        result = "optimal" if gap is None or gap <= PROVED else "feasible"
        limit = None if result == "optimal" else "gap"
    elif status == S.kInfeasible:
        return Report("infeasible", None, None, None, None, None, (), seconds, nodes, message, tuple(run.events))
    elif status in (S.kUnbounded, S.kUnboundedOrInfeasible):
        return Report("unbounded", None, None, None, None, None, (), seconds, nodes, message, tuple(run.events))
    elif limit is not None:
        result = "feasible" if x is not None else "no_solution_found"
        if gap is not None and gap <= PROVED:
            result, limit = "optimal", None
    else:
        result = "error"
    return Report(result, limit, objective, bound, gap, x, objectives, seconds, nodes, message, tuple(run.events))


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
        relaxed = replace(relaxed, costs=model.costs[:1] + prefer)
    run = _Run(relaxed, replace(settings, options=options))
    if run.run() != highspy.HighsModelStatus.kOptimal:
        return Relaxed(None, None, None)
    solution = run.h.getSolution()
    x, y = np.array(solution.col_value), np.array(solution.row_dual) / run.scale[0]
    reduced = relaxed.costs[0] - model.A.T @ y
    with np.errstate(invalid="ignore"):
        parts = np.concatenate((
            np.where(y > 0, y * model.row_lower, np.where(y < 0, y * model.row_upper, 0.0)),
            np.where(reduced > 0, reduced * model.lower, np.where(reduced < 0, reduced * model.upper, 0.0)),
        ))  # fmt: skip
    bound = float(parts.sum() + model.offsets[0]) - (most if prefer is not None else 0.0)
    sign = float(model.signs[0])
    return Relaxed(sign * bound if math.isfinite(bound) else None, x, sign * reduced)
