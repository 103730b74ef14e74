"""A small mixed-integer program stated row by row and solved by HiGHS, as the references need it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import highspy
import numpy as np

from tests.adversary.harness import UnsettledError

Row = Mapping[int, float]
TIME_LIMIT_S = 60.0


class Program:
    """Columns with bounds, rows with bounds; solved for any objective."""

    def __init__(self) -> None:
        self.low: list[float] = []
        self.high: list[float] = []
        self.whole: list[bool] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []

    def column(self, low: float = 0.0, high: float = math.inf, whole: bool = False) -> int:
        """A new column; its number."""
        self.low.append(low)
        self.high.append(high)
        self.whole.append(whole)
        return len(self.low) - 1

    def row(self, row: Row, low: float = -math.inf, high: float = math.inf) -> None:
        """low ≤ row·x ≤ high, divided by its largest coefficient; a row without columns must hold as it is."""
        row = {i: c for i, c in row.items() if c != 0}
        scale = max((abs(c) for c in row.values()), default=1.0)
        if any(abs(c) < 1e-11 * scale for c in row.values()):
            raise UnsettledError("coefficients of a row differ by more than 1e11")
        self.rows.append(({i: c / scale for i, c in row.items()}, low / scale, high / scale))

    def minimum(self, objective: Row) -> tuple[float, list[float]] | None:
        """Least objective·x and its x, whole columns rounded; None: infeasible.

        The objective is scaled by its value and solved again, so that the solver's absolute gap is small beside it.

        Raises:
            UnsettledError: the solver stopped or errs.
        """
        scale = max((abs(c) for c in objective.values()), default=0.0) or 1.0
        found = None
        for _ in range(4):
            found = self._solve(objective, scale)
            if found is None:
                return None
            value = math.fsum(c * found[i] for i, c in objective.items())
            if value == 0 or 0.5 < 1000 * scale / abs(value) < 2 or scale < 1e-3 * abs(value):
                break
            scale = abs(value) / 1000
        assert found is not None
        return math.fsum(c * found[i] for i, c in objective.items()), found

    def _solve(self, objective: Row, scale: float) -> list[float] | None:
        cost = np.zeros(len(self.low))
        for i, c in objective.items():
            cost[i] = c / scale
        starts, index, value = [0], [], []
        for row, _, _ in self.rows:
            index += list(row)
            value += list(row.values())
            starts.append(len(index))
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(cost), len(self.rows)
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, np.array(self.low), np.array(self.high)
        lp.row_lower_ = np.array([low for _, low, _ in self.rows])
        lp.row_upper_ = np.array([high for _, _, high in self.rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = np.array(starts), np.array(index, dtype=np.int32)
        lp.a_matrix_.value_ = np.array(value)
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[w] for w in self.whole]
        h = highspy.Highs()
        for option, setting in (
            ("output_flag", False), ("threads", 1), ("time_limit", TIME_LIMIT_S), ("mip_rel_gap", 1e-8),
            ("mip_abs_gap", 1e-7), ("small_matrix_value", 1e-12),
            ("primal_feasibility_tolerance", 1e-9), ("dual_feasibility_tolerance", 1e-9),
            ("mip_feasibility_tolerance", 1e-9),
        ):  # fmt: skip
            h.setOptionValue(option, setting)
        h.passModel(lp)
        h.run()
        status = h.getModelStatus()
        if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
            return None
        if status != highspy.HighsModelStatus.kOptimal:
            raise UnsettledError(f"reference: {h.modelStatusToString(status)}")
        x = [round(v) if w else v for v, w in zip(h.getSolution().col_value, self.whole, strict=True)]
        for row, low, high in self.rows:
            activity = math.fsum(c * x[i] for i, c in row.items())
            size = 1e-6 * max(1.0, max((abs(c * x[i]) for i, c in row.items()), default=1.0))
            if not low - size <= activity <= high + size:
                raise UnsettledError(f"reference: a rounded row is {activity!r} outside [{low!r}, {high!r}]")
        return [float(v) for v in x]
