"""The one place that talks to HiGHS: a model that is kept, changed in place and solved again from its last basis.

Costs, bounds, rows, columns and integrality change without passing the model again, so that cutting planes, column
generation, conflict searches and lexicographic objectives pay only for the changes in each run. Array arguments may be
NumPy arrays or lists; rows and columns are counted from zero in the order of their addition, and a deletion closes up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import highspy
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from optmodels.arrays import Array, Int32s, Mask
from optmodels.errors import SolverError
from optmodels.solver.cancel import caught_interrupt, current
from optmodels.solver.compile import Compiled
from optmodels.solver.otherwise import way

Numbers = npt.NDArray[Any] | Sequence[float]
Indices = npt.NDArray[Any] | Sequence[int]
Ended = Literal["optimal", "infeasible", "unbounded", "limit", "error"]
Limit = Literal["time", "gap", "interrupt", "memory"]
Progress = Callable[[float, float, int], None]  # objective, bound and nodes, as HiGHS has them


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


# The bound that some row sets on an integer may be nearly a whole number, about as far as HiGHS' tolerances reach. Then
# HiGHS 1.15 and 1.16 prove false optima: presolve calls a column free whose bound a row implies within tolerance, and
# gives that bound to the integer next to it (of "n ≥ 1.9999987·x, x ≤ 1" follows n ≤ 1), and the tree, with presolve or
# without, cuts off "n = 4, x = 0.9999992" of n ≥ 4.0000032·x. Such a model is run with a tolerance well below the hair
# and without the two rules of presolve that rest on free columns. Others keep both: tight tolerances have their price.
HAIR, COUNTED = 2e-6, 1_000.0  # of a column; larger integers are not looked at: one of this many
BESIDE = 0.005  # of HAIR: nearer is the same number to HiGHS
FINELY = {"presolve_rule_off": (0, 1 << 9 | 1 << 12), "mip_feasibility_tolerance": (1e-6, 1e-9)}  # as usual, and then

# Presolve of HiGHS 1.15 proves false optima where a continuous column stands in an equality with whole multiples of its
# coefficient and is therefore integer (HiGHS issue 3274, fixed in 1.16). Such a model is run without presolve.
PRESOLVE_ERRS = (highspy.HIGHS_VERSION_MAJOR, highspy.HIGHS_VERSION_MINOR) < (1, 16)
MULTIPLE = 1e-6  # off a whole number, within which HiGHS takes a ratio of coefficients for one
DISAGREES = "HiGHS reports an objective or a bound that its own point contradicts"
BEYOND = 1e-6  # of an objective, by which a bound may be beyond it
AGREES = 1e-7  # of the terms of an objective, by which HiGHS' value may differ from costs times point

_S = highspy.HighsModelStatus
_ENDED: dict[Any, Ended] = {
    _S.kOptimal: "optimal", _S.kModelEmpty: "optimal", _S.kInfeasible: "infeasible", _S.kUnbounded: "unbounded",
    _S.kUnboundedOrInfeasible: "unbounded",
}  # fmt: skip
_LIMITS: dict[Any, Limit] = {
    _S.kTimeLimit: "time", _S.kIterationLimit: "time", _S.kSolutionLimit: "gap", _S.kObjectiveBound: "gap",
    _S.kObjectiveTarget: "gap", _S.kInterrupt: "interrupt", _S.kMemoryLimit: "memory",
}  # fmt: skip


def _int32(values: Any) -> Int32s:
    return np.asarray(values, dtype=np.int32)


def _must(status: Any, what: str) -> None:
    if status == highspy.HighsStatus.kError:
        raise SolverError(f"HiGHS refused {what}")


class _Silent(highspy.Highs):  # type: ignore[misc]
    """HiGHS that prints nothing as it is made; 1.16 greets on stdout, where documents go."""

    def enableCallbacks(self) -> None:  # noqa: N802 - highspy's name; its constructor calls it, and greets there
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()


def _is_near_integral(
    A: Any, row_lower: Array, row_upper: Array, lower: Array, upper: Array, integer: Mask, fills: Array
) -> bool:  # fmt: skip
    """Whether the largest bound that some row sets on an integer column is nearly a whole number.

    Columns are at their upper bound, or where they alone fill a row without integers, which is noted in `fills`, (n,).
    """
    counted = np.bincount(A.row, integer[A.col], A.shape[0]) > 0
    mixed = counted & (np.bincount(A.row, ~integer[A.col], A.shape[0]) > 0)
    here = ~counted[A.row]
    row, column, value = A.row[here], A.col[here], A.data[here]
    with np.errstate(divide="ignore", invalid="ignore"):
        least = value * lower[column]
        rest = np.bincount(row, least, A.shape[0])[row] - least
        for bound in (row_lower, row_upper):
            alone = (bound[row] - rest) / value
            does = np.isfinite(alone) & (alone > 0)
            np.minimum.at(fills, column[does], alone[does])
        here = mixed[A.row]
        row, column, value = A.row[here], A.col[here], A.data[here]
        narrower = np.minimum(upper, fills)
        widest = np.zeros(A.shape[0])  # effect on its row of a continuous column that is a unit off
        np.maximum.at(widest, row, np.where(integer[column], 0.0, np.abs(value)))
        for a, bound in ((value, row_upper), (-value, -row_lower)):  # Σ a·x ≤ bound, in which a < 0 helps
            helps = integer[column] & (a < 0) & np.isfinite(bound)[row]
            off = widest[row[helps]] / -a[helps]
            for ends in (upper, narrower) if helps.any() else ():
                most = np.where(a > 0, a * ends[column], a * lower[column])
                asked = (np.bincount(row, most, A.shape[0])[row] - most - bound[row])[helps] / -a[helps]
                asked = np.where((asked > 0) & (asked <= COUNTED), asked, 0.0)
                beside = np.abs(asked - np.round(asked))
                if ((beside > BESIDE * HAIR) & (beside <= HAIR * np.maximum(np.minimum(off, asked), 1.0))).any():
                    return True
    return False


def _made_whole(A: Any, row_lower: Array, row_upper: Array, lower: Array, upper: Array, integer: Mask) -> bool:
    """Whether an equality makes a continuous column integer.

    All other columns of its row are integer or fixed, not all fixed, and the sum that they and the right-hand side
    contribute are whole multiples of the column's coefficient.
    """
    A = sp.csr_array(A)
    fixed = lower == upper
    value = np.where(fixed, lower, 0.0)
    free = (A != 0).astype(float) @ (~integer & ~fixed)
    for i in np.flatnonzero((row_lower == row_upper) & np.isfinite(row_lower) & (free == 1)):
        at = slice(A.indptr[i], A.indptr[i + 1])
        column, a = A.indices[at], A.data[at]
        mine, others = ~integer[column] & ~fixed[column] & (a != 0), integer[column] & ~fixed[column]
        multiple = np.append(a[others], row_lower[i] - a @ value[column]) / a[mine][0]
        if others.any() and (np.abs(multiple - np.round(multiple)) <= MULTIPLE).all():
            return True
    return False


class Session:
    """A model in HiGHS: min cost·x + offset with row_lower ≤ A·x ≤ row_upper, lower ≤ x ≤ upper, some x integer.

    Args:
        model: its first objective is loaded; None for an empty model, to be filled by `load` or `add_columns`.
        settings: limits, seed, threads and options of every run; `on_event` is left to the caller, who knows the
            model's own sense.

    Attributes:
        status, limit, message: how the last run ended; what stopped it early; in HiGHS' words.
        progress: called during a run inside `watched`; None for nothing.

    Raises:
        SolverError: HiGHS refuses an option, the model or, in every method, a change.
    """

    def __init__(self, model: Compiled | None = None, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.started = time.perf_counter()
        self.status: Ended = "error"
        self.limit: Limit | None = None
        self.message = "not run"
        self.progress: Progress | None = None
        self._h = _Silent()
        self._solution, self._info = self._h.getSolution(), self._h.getInfo()
        self._integer = np.zeros(0, dtype=bool)  # by column
        self._counted = self._integer  # bounds of the model as loaded, relaxed by now or not
        self._fills = np.zeros(0)  # by column, see `_is_near_integral`
        self.near_integral = False  # whether one is a hair next to a whole number in some row that was looked at
        self.made_whole = False  # whether some such row makes a continuous column integer
        self.believed = True  # whether objective, point and bound of the last run agree
        self._ran = False  # whether anything is kept of a run before
        self._start: tuple[Int32s, Array] | None = None  # of the next run
        self._cost, self._offset, self._sense = np.zeros(0), 0.0, 1.0
        self._unseen: list[tuple[Any, Numbers, Numbers]] = []  # matrix and bounds of the other rows
        self._moved = False  # whether bounds of an integer changed, of which that look knows nothing
        options = {
            "output_flag": False, "log_to_console": False, "threads": self.settings.threads,
            "random_seed": (self.settings.seed + way().seed) % 2**31, "mip_rel_gap": self.settings.gap,
            "mip_abs_gap": 0.0,
        } | self.settings.options | dict(way().options)  # fmt: skip
        for name, value in options.items():
            self.set_option(name, value)
        if model is not None:
            self.load(model.costs[0], model.A, model.row_lower, model.row_upper, model.lower, model.upper,
                      model.integer, float(model.offsets[0]))  # fmt: skip

    # ------------------------------------------------------------------------------------------------ the model

    def load(
        self, cost: Array, A: Any, row_lower: Numbers, row_upper: Numbers, lower: Numbers, upper: Numbers,
        integer: Mask | None = None, offset: float = 0.0, maximise: bool = False,
    ) -> None:  # fmt: skip
        """Pass a whole model, in place of the earlier one.

        Args:
            cost, lower, upper: by column, (n,).
            A: sparse of SciPy, (m, n).
            row_lower, row_upper: (m,).
            integer: (n,); None: all continuous.
            offset: offset of the objective.
            maximise: the sense.
        """
        A = A.tocsc()
        self._integer = np.zeros(A.shape[1], dtype=bool) if integer is None else integer.copy()
        self._counted = self._integer.copy()
        self._fills = np.full(A.shape[1], np.inf)
        self.near_integral, self.made_whole, self._unseen, self._moved = (
            False,
            False,
            [(A, row_lower, row_upper)],
            False,
        )
        self._cost, self._offset, self._sense = np.array(cost, dtype=float), offset, -1.0 if maximise else 1.0
        self._ran, self._start = False, None
        sense = highspy.ObjSense.kMaximize if maximise else highspy.ObjSense.kMinimize
        _must(self._h.passModel(
            A.shape[1], A.shape[0], A.nnz, int(highspy.MatrixFormat.kColwise), int(sense), offset, cost, lower, upper,
            row_lower, row_upper, _int32(A.indptr), _int32(A.indices), np.asarray(A.data, dtype=float),
            _int32(self._integer),
        ), "the model")  # fmt: skip

    def add_columns(self, cost: Numbers, lower: Numbers, upper: Numbers, A: Any = None) -> None:
        """Add continuous columns, (k,) each, with coefficients A, sparse, (rows, k), in the rows there are."""
        n = len(cost)
        if A is None:
            start, index, value = np.zeros(n, dtype=np.int32), np.zeros(0, dtype=np.int32), np.zeros(0)
        else:
            A = A.tocsc()
            start, index, value = _int32(A.indptr[:-1]), _int32(A.indices), A.data
        _must(self._h.addCols(n, cost, lower, upper, len(value), start, index, value), "a column")
        self._cost = np.append(self._cost, np.asarray(cost, dtype=float))
        self._integer, self._counted = (np.append(x, np.zeros(n, dtype=bool)) for x in (self._integer, self._counted))
        self._fills = np.append(self._fills, np.full(n, np.inf))

    def add_row(self, lower: float, upper: float, index: Indices, value: Numbers) -> None:
        """Add lower ≤ Σ value_i·x_{index_i} ≤ upper."""
        at = np.asarray(index), np.array([0, len(index)])
        self.add_rows([lower], [upper], sp.csr_array((np.asarray(value, dtype=float), *at), shape=(1, self.columns)))

    def add_rows(self, lower: Numbers, upper: Numbers, A: Any) -> None:
        """Add lower ≤ A·x ≤ upper, (k,) each, A sparse of SciPy, (k, columns): far quicker than one by one."""
        A = A.tocsr()
        if self._counted.any():
            self._unseen.append((A, lower, upper))
        _must(self._h.addRows(A.shape[0], lower, upper, A.nnz, _int32(A.indptr[:-1]), _int32(A.indices),
                              np.asarray(A.data, dtype=float)), "rows")  # fmt: skip

    def delete_rows(self, rows: Indices) -> None:
        """Delete rows, ascending; those behind move up."""
        _must(self._h.deleteRows(len(rows), _int32(rows)), "a deletion")

    def set_costs(self, cost: Numbers, offset: float | None = None) -> None:
        """Another objective: costs of the columns, (n,), and unless None the offset."""
        _must(self._h.changeColsCost(len(cost), np.arange(len(cost), dtype=np.int32), cost), "the costs")
        self._cost = np.array(cost, dtype=float)
        if offset is not None:
            self._offset = offset
            _must(self._h.changeObjectiveOffset(offset), "the offset")

    def set_row_bounds(self, rows: Indices, lower: Numbers, upper: Numbers) -> None:
        """Other bounds of some rows."""
        _must(self._h.changeRowsBounds(len(rows), _int32(rows), lower, upper), "the rows' bounds")

    def set_column_bounds(self, columns: Indices, lower: Numbers, upper: Numbers) -> None:
        """Other bounds of some columns."""
        _must(self._h.changeColsBounds(len(columns), _int32(columns), lower, upper), "the columns' bounds")
        self._moved = self._moved or bool(self._counted[_int32(columns)].any())

    def set_integer(self, columns: Indices, on: bool) -> None:
        """Make some columns integer or continuous."""
        kind = int(highspy.HighsVarType.kInteger if on else highspy.HighsVarType.kContinuous)
        kinds = np.full(len(columns), kind, dtype=np.uint8)
        _must(self._h.changeColsIntegrality(len(columns), _int32(columns), kinds), "the integrality")
        self._integer[columns] = on

    def set_option(self, name: str, value: Any) -> None:
        """A HiGHS option for the runs to come."""
        _must(self._h.setOptionValue(name, value), f"option {name} = {value}")

    @property
    def rows(self) -> int:
        """How many there are."""
        return int(self._h.getNumRow())

    @property
    def columns(self) -> int:
        """How many there are."""
        return int(self._h.getNumCol())

    @property
    def nonzeros(self) -> int:
        """Of the matrix."""
        return int(self._h.getNumNz())

    def compiled(self) -> Compiled:
        """The model as it is now, as minimised; without names."""
        lp = self._h.getLp()
        sign = 1.0 if lp.sense_ == highspy.ObjSense.kMinimize else -1.0
        m, n, matrix = self.rows, self.columns, lp.a_matrix_
        parts = np.array(matrix.value_), np.array(matrix.index_), np.array(matrix.start_)
        by_column = matrix.format_ == highspy.MatrixFormat.kColwise
        A = sp.csc_matrix(parts, shape=(m, n)) if by_column else sp.csr_matrix(parts, shape=(m, n)).tocsc()
        return Compiled(
            sign * np.array([lp.col_cost_]), np.array([sign * lp.offset_]), np.array([sign]), A,
            np.array(lp.row_lower_), np.array(lp.row_upper_), np.array(lp.col_lower_), np.array(lp.col_upper_),
            self._integer.copy(), [f"x[{j}]" for j in range(n)], [f"row[{i}]" for i in range(m)],
        )  # fmt: skip

    def write(self, path: Path, column_names: Iterable[str], row_names: Iterable[str]) -> None:
        """Write the model as MPS or LP, by the file's ending."""
        for i, name in enumerate(column_names):
            _must(self._h.passColName(i, name), f"the name {name}")
        for i, name in enumerate(row_names):
            _must(self._h.passRowName(i, name), f"the name {name}")
        _must(self._h.writeModel(str(path)), f"to write {path.name}")

    # -------------------------------------------------------------------------------------------------- solving

    def warm_start(self, start: Mapping[int, float]) -> None:
        """Offer values of some columns; HiGHS completes them by LP and drops an infeasible start.

        Values are moved into their bounds, outside of which HiGHS refuses the whole start.
        """
        index = np.array(sorted(start), dtype=np.int32)
        found, _, _, lower, upper, _ = self._h.getCols(len(index), index)
        _must(found, "the warm start")
        self._start = index, np.clip([start[i] for i in index], lower, upper)

    def basis(self) -> Any:
        """Of the last run, an LP's: for `set_basis` of the same columns and rows under other bounds."""
        return self._h.getBasis()

    def set_basis(self, basis: Any) -> None:
        """Begin the next run from this basis in place of the last."""
        _must(self._h.setBasis(basis), "the basis")

    def remaining(self) -> float | None:
        """Seconds left of the settings' time limit, which counts from the session's beginning; None: no limit."""
        if self.settings.time_limit is None:
            return None
        return max(0.0, self.settings.time_limit - (time.perf_counter() - self.started))

    @contextmanager
    def watched(self, progress: Progress | None = None) -> Iterator[None]:
        """Runs inside report progress and stop at Ctrl-C or at `cancel.cancellable`'s event, keeping the best point."""
        cancel = current()  # looked up here: callbacks need not run in this thread
        self.progress = progress
        h = self._h

        def report(event: Any) -> None:
            if self.progress is not None:
                data = event.data_out
                self.progress(data.objective_function_value, data.mip_dual_bound, int(data.mip_node_count))

        with caught_interrupt() as stop:

            def interrupt(event: Any) -> None:
                if stop.is_set() or (cancel is not None and cancel.is_set()):
                    event.interrupt()

            hooks = [(h.cbMipInterrupt, interrupt), (h.cbSimplexInterrupt, interrupt), (h.cbIpmInterrupt, interrupt),
                     (h.cbMipLogging, report), (h.cbMipImprovingSolution, report)]  # fmt: skip
            self.set_option("output_flag", True)  # HiGHS reports progress only where it would also print it
            for callback, hook in hooks:
                callback.subscribe(hook)
            try:
                yield
            finally:
                for callback, hook in hooks:
                    callback.unsubscribe(hook)
                self.set_option("output_flag", False)

    def run(self, seconds: float | None = None) -> Ended:
        """Solve what there is now and state how it ended: an LP from the last basis, a MIP from its start alone.

        Where objective, point and bound do not agree the model is passed again and solved again; where they do not
        agree then, neither bound nor optimality is reported.

        Args:
            seconds: limit of this run; None: the rest of the settings' time limit.
        """
        seconds = self.remaining() if seconds is None else seconds
        until = None if seconds is None else time.perf_counter() + seconds
        start = self._completed(seconds) if self._start is not None and self._integer.any() else None
        self._run(until, start)
        self.believed = self._agrees()
        if not self.believed and (until is None or time.perf_counter() < until):
            found = self._solution, self._info
            self.forget()
            self._run(until)
            self.believed = self._agrees()
            if self.status == "limit" and self.point() is None:  # the first point is one, whatever it costs
                (self._solution, self._info), self.believed = found, False
        if not self.believed and self.status == "optimal":
            self.status, self.limit, self.message = "limit", "gap", DISAGREES
        self._start = None
        return self.status

    def forget(self) -> None:
        """Pass the model again: nothing of earlier runs is kept, no basis, point or start."""
        lp = self._h.getLp()
        self._h.clearModel()
        _must(self._h.passModel(lp), "the model")
        self._ran, self._start = False, None

    def _run(self, until: float | None, start: Array | None = None) -> None:
        """One run until a time of `time.perf_counter`, from a point with a value for every column, and how it ended."""
        h, mip = self._h, bool(self._integer.any())
        if mip and self._ran:
            h.clearSolver()  # from a point that it keeps 1.16.0 counts without what presolve has moved to the offset
        self._ran = True
        # HiGHS counts the time of LPs from the handle's first run on, the time of MIPs from the run's own beginning.
        before = 0.0 if mip else h.getRunTime()
        left = np.inf if until is None else max(0.0, until - time.perf_counter())
        h.setOptionValue("time_limit", before + left)
        given = self.settings.options | dict(way().options)
        finely = mip and self._is_near_integral()
        for name, (usual, fine) in FINELY.items():
            self.set_option(name, fine if finely else given.get(name, usual))
        _, presolve = h.getOptionValue("presolve")
        if mip and self.made_whole:
            h.setOptionValue("presolve", "off")
        with self._offered(start):
            if h.run() == highspy.HighsStatus.kError:  # as when others in this process ran HiGHS on more threads
                highspy.Highs.resetGlobalScheduler(True)
                h.run()
        status = h.getModelStatus()
        # Presolve has called row LPs that always have a point infeasible, by a hair of 10⁻⁷.
        if status == _S.kUnboundedOrInfeasible or (status == _S.kInfeasible and not mip):
            h.setOptionValue("presolve", "off")
            h.run()
            status = h.getModelStatus()
        h.setOptionValue("presolve", presolve)
        self._solution, self._info = h.getSolution(), h.getInfo()  # copies: they outlive changes of the model
        self.message = h.modelStatusToString(status)
        self.limit = _LIMITS.get(status)
        self.status = _ENDED.get(status, "limit" if self.limit else "error")
        if status == _S.kModelEmpty and not self._empty_rows_hold():
            self.status = "infeasible"

    @contextmanager
    def _offered(self, start: Array | None) -> Iterator[None]:
        """A run inside is told the start, as soon as it asks: 1.16.0 miscounts values passed earlier."""
        if start is None:
            yield
            return
        told = False

        def tell(event: Any) -> None:
            nonlocal told
            if not told:
                told = True
                event.data_in.setSolution(start)

        self._h.cbMipUserSolution.subscribe(tell)
        try:
            yield
        finally:
            self._h.cbMipUserSolution.unsubscribe(tell)

    def _completed(self, seconds: float | None) -> Array | None:
        """The start with the columns that it does not name, by LP; None where no point has it."""
        assert self._start is not None
        index, value = self._start
        if len(index) == self.columns:
            return value
        model = self.compiled()
        lower, upper = model.lower.copy(), model.upper.copy()
        value = np.where(model.integer[index], np.round(value), value)
        lower[index], upper[index] = value, value
        rest = Session(None, Settings(seconds, seed=self.settings.seed))
        rest.load(model.costs[0], model.A, model.row_lower, model.row_upper, lower, upper)
        return rest.values() if rest.run() == "optimal" else None

    def _agrees(self) -> bool:
        """Whether the objective is what costs make of the point, and no bound states that the point cannot be."""
        if self._info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible or not self.columns:
            return True
        terms = np.append(self._cost * self.values(), self._offset)
        room = AGREES * float(np.abs(terms).sum())
        objective = float(self._info.objective_function_value)
        if abs(objective - float(terms.sum())) > room:
            return False
        if self._info.mip_node_count < 0 or not self._integer.any():
            return True
        bound = float(self._info.mip_dual_bound)
        return not math.isfinite(bound) or self._sense * (bound - objective) <= max(room, BEYOND * abs(objective))

    def _is_near_integral(self) -> bool:
        """Whether an integer is a hair next to a whole number in any row so far.

        Rows that are new since the last look are looked at, and all where bounds of integers are others.
        """
        unseen, self._unseen = self._unseen, []
        if self._moved and not self.near_integral:
            now = self.compiled()
            unseen, self._fills[:] = [(now.A, now.row_lower, now.row_upper)], np.inf
        self._moved = False
        if unseen and not self.near_integral:
            n = self.columns
            parts, starts = [A.tocoo() for A, _, _ in unseen], np.cumsum([0, *(A.shape[0] for A, _, _ in unseen)])
            row = np.concatenate([p.row + start for p, start in zip(parts, starts, strict=False)])
            column, value = (np.concatenate([getattr(p, of) for p in parts]) for of in ("col", "data"))
            A = sp.coo_array((value, (row, column)), shape=(int(starts[-1]), n))
            row_lower, row_upper = (
                np.concatenate([np.asarray(b[side], dtype=float) for b in unseen]) for side in (1, 2)
            )
            _, _, _, lower, upper, _ = self._h.getCols(n, np.arange(n, dtype=np.int32))
            self.near_integral = _is_near_integral(A, row_lower, row_upper, lower, upper, self._counted, self._fills)
            self.made_whole |= PRESOLVE_ERRS and _made_whole(A, row_lower, row_upper, lower, upper, self._counted)
        return self.near_integral

    def _empty_rows_hold(self) -> bool:
        """Whether 0 is within every row's bounds: HiGHS does not look where there is no column."""
        lp = self._h.getLp()
        return max(lp.row_lower_, default=0.0) <= 0.0 <= min(lp.row_upper_, default=0.0)

    # ---------------------------------------------------------------------------------- results of the last run

    def point(self) -> Array | None:
        """The feasible point found, (n,), if any; feasible by HiGHS' own tolerances (see `highs.verify`)."""
        if self._info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            return self.values()
        return np.zeros(0) if self.status == "optimal" and not self.columns else None

    def values(self) -> Array:
        """Of the columns, (n,), whatever the status."""
        return np.array(self._solution.col_value)

    def row_activity(self) -> Array:
        """A·x, (m,)."""
        return np.array(self._solution.row_value)

    def row_duals(self) -> Array:
        """Shadow prices of an LP: change of the objective per unit of the row's binding bound, (m,)."""
        return np.array(self._solution.row_dual)

    def reduced_costs(self) -> Array:
        """cost − Aᵀ·row_duals of an LP, (n,)."""
        return np.array(self._solution.col_dual)

    def dual_ray(self) -> Array | None:
        """Row multipliers that should prove an LP infeasible (`safe.least_value` states whether they do), (m,)."""
        _, found, ray = self._h.getDualRay()
        return np.array(ray) if found else None

    @property
    def objective(self) -> float:
        """Of the last run's point."""
        if not self.believed:
            return float(self._cost @ self.values()) + self._offset
        return float(self._info.objective_function_value)

    @property
    def bound(self) -> float | None:
        """Proved for the optimum: a MIP's dual bound, an LP's optimum; None without, or where it is not believed."""
        if not self.believed:
            return None
        if self._info.mip_node_count >= 0:
            value = float(self._info.mip_dual_bound)
        elif self.status == "optimal":
            value = self.objective
        else:
            return None
        return value if abs(value) < highspy.kHighsInf else None

    @property
    def nodes(self) -> int:
        """Of the branch-and-bound tree."""
        return max(0, int(self._info.mip_node_count))

    @property
    def iterations(self) -> int:
        """Of the simplex method in the last run, in all nodes: the work it took, whatever else the machine does."""
        return max(0, int(self._info.simplex_iteration_count))
