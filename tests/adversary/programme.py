"""A linear or mixed-integer programme as a list of rows, solved by HiGHS at its tightest tolerances: for references.

Nothing here is clever: every variable and every row is written out, and what HiGHS says is looked at again. Whole
numbers are rounded and the rest solved anew with them fixed, so that a value returned belongs to a plan that is there;
"infeasible" has to be said with presolve and without.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import highspy
import numpy as np
import numpy.typing as npt

from tests.adversary.harness import UnsettledError

Array = npt.NDArray[np.float64]
TIME_LIMIT_S = 30.0
FEASIBILITY = 1e-9
NOTHING = 1e-7  # of a share or a machine: less than anybody's tolerance
SMALLEST = 1e-12  # coefficients below are dropped by HiGHS
MOST_WHOLE = 1e6  # of a larger number the fraction is less than anybody's tolerance


@dataclass(frozen=True)
class Solution:
    """What came of a minimisation.

    Attributes:
        bound: no solution costs less.
        value: what `x` costs.
        x: of every variable.
    """

    bound: float
    value: float
    x: Array


@dataclass
class Programme:
    """Minimise Σ cost·x over variables with bounds, some of them whole, subject to rows."""

    cost: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[float, float, dict[int, float]]] = field(default_factory=list)

    def variable(self, cost: float = 0.0, low: float = 0.0, high: float = math.inf, whole: bool = False) -> int:
        """A new variable; its index."""
        self.cost.append(cost)
        self.low.append(low)
        self.high.append(high)
        self.whole.append(whole)
        return len(self.cost) - 1

    def row(
        self, terms: Mapping[int, float] | Iterable[tuple[int, float]], low: float = -math.inf, high: float = math.inf
    ) -> None:
        """low ≤ Σ coefficient·variable ≤ high, divided by its largest coefficient."""
        summed: dict[int, float] = {}
        for i, a in terms.items() if isinstance(terms, Mapping) else terms:
            summed[i] = summed.get(i, 0.0) + a
        kept = {i: a for i, a in summed.items() if a != 0}
        scale = max((abs(a) for a in kept.values()), default=1.0)
        if any(abs(a) < 10 * SMALLEST * scale for a in kept.values()):
            raise UnsettledError(f"coefficients of a row differ by more than {0.1 / SMALLEST:g}")
        self.rows.append((low / scale, high / scale, {i: a / scale for i, a in kept.items()}))

    def solve(self) -> Solution | None:
        """The optimum, or None where there is none.

        What costs more than a plan that is known cannot be in a better one: it is left out, and costs are counted in
        that plan's, so that no cost hides another below HiGHS's tolerance.

        Raises:
            UnsettledError: HiGHS stopped, or contradicts itself.
        """
        if any(not terms and not low <= 0 <= high for low, high, terms in self.rows):
            return None
        status, _, _ = self._run(self.low, self.high, any(self.whole), "choose", 0.0)
        if status == "infeasible":
            again, _, _ = self._run(self.low, self.high, any(self.whole), "off", 0.0)
            if again != "infeasible":
                raise UnsettledError(f"infeasible with presolve, {again} without")
            return None
        found = self._optimum(max((abs(c) for c in self.cost), default=0.0))
        while found.value > 0 and min(self.cost) >= 0:
            again = found
            for i, cost in enumerate(self.cost):
                if self.low[i] == 0 and cost * (0.999 if self.whole[i] else NOTHING) > found.value:
                    self.high[i] = 0.0
            found = self._optimum(found.value)
            if found.value > again.value * (1 + 1e-6):
                raise UnsettledError(f"{again.value!r}, and {found.value!r} without what costs more")
            if found.value > again.value * (1 - 1e-7):
                break
        return found

    def _optimum(self, scale: float) -> Solution:
        """The optimum, which there has to be, with costs divided by `scale`: the better with presolve and without.

        HiGHS 1.15 with presolve and narrow tolerances has said "optimal" of a solution that costs 28 % too much.
        """
        return min((self._found(scale, presolve) for presolve in ("choose", "off")), key=lambda s: s.value)

    def _found(self, scale: float, presolve: str) -> Solution:
        _, bound, x = self._run(self.low, self.high, any(self.whole), presolve, scale)
        if x is None:
            raise UnsettledError("infeasible with costs, feasible without")
        if not any(self.whole):
            return Solution(float(bound), float(bound), x)
        whole = np.array(self.whole)
        low = np.where(whole, np.round(x), self.low)
        high = np.where(whole, np.round(x), self.high)
        _, value, x = self._run(low.tolist(), high.tolist(), False, presolve, scale)
        if x is None:
            raise UnsettledError("the whole numbers found are none when rounded")
        return Solution(float(min(bound, value)), float(value), x)

    def _run(
        self, low: list[float], high: list[float], whole: bool, presolve: str, scale: float
    ) -> tuple[str, float, Array | None]:
        """(status, bound, solution) with costs divided by `scale`; 0: without costs."""
        n, h = len(self.cost), highspy.Highs()
        h.setOptionValue("output_flag", False)
        h.setOptionValue("threads", 1)
        h.setOptionValue("presolve", presolve)
        h.setOptionValue("time_limit", TIME_LIMIT_S)
        h.setOptionValue("small_matrix_value", SMALLEST)
        for name in ("primal_feasibility_tolerance", "dual_feasibility_tolerance", "mip_feasibility_tolerance"):
            h.setOptionValue(name, FEASIBILITY)
        for name in ("mip_rel_gap", "mip_abs_gap"):
            h.setOptionValue(name, 0.0)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = n, len(self.rows)
        lp.col_cost_ = np.where(np.array(high) != 0, self.cost, 0.0) / scale if scale else np.zeros(n)
        lp.col_lower_, lp.col_upper_ = np.array(low), np.array(high)
        lp.row_lower_ = np.array([r[0] for r in self.rows])
        lp.row_upper_ = np.array([r[1] for r in self.rows])
        starts = np.cumsum([0, *(len(r[2]) for r in self.rows)])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = starts
        lp.a_matrix_.index_ = np.array([i for r in self.rows for i in r[2]], dtype=np.int64)
        lp.a_matrix_.value_ = np.array([a for r in self.rows for a in r[2].values()])
        if whole:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            lp.integrality_ = [kinds[w] for w in self.whole]
        h.passModel(lp)
        h.run()
        status: Any = h.getModelStatus()
        if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
            return "infeasible", math.nan, None
        if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kModelEmpty):
            raise UnsettledError(f"HiGHS: {h.modelStatusToString(status)}")
        info = h.getInfo()
        x = np.array(h.getSolution().col_value)
        return "optimal", (info.mip_dual_bound if whole else info.objective_function_value) * scale, x
