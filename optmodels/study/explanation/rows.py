"""The same questions about the model itself, for instances that mark no limits: rows as limits, costs as prices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from optmodels.formulation import Formulation
from optmodels.limits import Limit, Offer, Restriction
from optmodels.solver import Compiled, InfeasibleModelError, Settings, solve_compiled
from optmodels.study.explanation.oracle import DROPPED, Answer, Budget, Oracle
from optmodels.study.explanation.oracle import Settings as Changes
from optmodels.study.explanation.purchases import Key

SHOWN = 8  # columns named in a line
MOST_ROWS = 100  # rows whose effect is examined


@dataclass(frozen=True)
class ColumnPlan:
    """A point of the model: its used integer columns, or all used ones where none is integer."""

    values: dict[str, float]

    def headline(self) -> str:
        """The used columns with their values."""
        largest = sorted(self.values.items(), key=lambda i: -abs(i[1]))
        more = f", and {len(largest) - SHOWN} more" if len(largest) > SHOWN else ""
        return ", ".join(f"{k} = {v:g}" for k, v in largest[:SHOWN]) + more or "every variable 0"


class ColumnAnswer(Answer):
    """An answer whose purchases are the used columns."""

    @property
    def buys(self) -> dict[Key, float]:
        """Used columns."""
        return {(k, "", ""): v for k, v in self.plan.values.items()}


class RowOracle(Oracle):
    """Changes right-hand sides and costs of the compiled model."""

    def __init__(self, form: Formulation, problem: Any, budget: Budget) -> None:
        """Build and compile the formulation's model.

        Raises:
            InputError, SolverError: there is no model to compile.
        """
        self._at: Any = None
        try:
            self.model, said = form.compiled(problem, form.tables(problem))
        except InfeasibleModelError as error:
            raise InfeasibleModelError(f"a row cannot hold whatever the plan: {error}") from None
        super().__init__(budget, "min" if self.model.signs[0] > 0 else "max")
        self._limits = [self._limit(i, name, said) for i, name in enumerate(self.model.row_names)]
        self._row = {r: i for i, r in enumerate(self._limits)}
        self._names = names = list(self.model.column_names)
        costs = self.model.costs[0] * self.model.signs[0]
        self._offers = [
            Offer(("columns", n), float(costs[k]), "", ((), None), 1, n, "", "") for k, n in enumerate(names)
        ]
        self._column = {o: k for k, o in enumerate(self._offers)}

    def _limit(self, i: int, name: str, said: dict[str, str]) -> Restriction:
        low, high = float(self.model.row_lower[i]), float(self.model.row_upper[i])
        rule = said.get(name.partition("[")[0].rpartition(".")[2], "").split("\n")[0].rstrip(".:")
        path = ("rows", name)
        if np.isinf(low) and np.isfinite(high):
            marker, value = Limit(name, "most", signed=True), high
        elif np.isinf(high) and np.isfinite(low):
            marker, value = Limit(name, "least", signed=True), low
        else:
            marker, value = Limit(name, "flag", off=True), False
        return Restriction(path, path, marker, value, name, "", f" ({rule})" if rule else "", bool(value), (path, None))

    def limits(self) -> list[Restriction]:
        """Every row."""
        return self._limits

    def examined(self) -> tuple[list[Restriction], str]:
        """Inequalities without slack at the optimum: dropping another one changes nothing."""
        assert self._at is not None
        activity = np.asarray(self.model.A @ self._at)
        slack = np.minimum(activity - self.model.row_lower, self.model.row_upper - activity)
        tight = [r for r, i in self._row.items() if r.number and slack[i] <= 1e-6 * max(1.0, abs(activity[i]))]
        rest = len(self._limits) - min(len(tight), MOST_ROWS)
        return tight[:MOST_ROWS], f"{rest} rows: equations, and inequalities with slack" if rest else ""

    def priced(self) -> tuple[Oracle, list[Offer]]:
        """Itself, and the cost of every column that has one."""
        return self, self._offers

    def checked(self, settings: Changes) -> tuple[Answer, bool]:
        """`solve_compiled` returns no point that it has not verified against the arrays."""
        answer = self.solve(settings, 0.99)
        return answer, bool(answer.feasible)

    def solve(self, settings: Changes, gap: float) -> Answer:
        """HiGHS on the changed arrays."""
        seconds = self.budget.take()
        m = self._changed(settings)
        found = solve_compiled(m, Settings(time_limit=max(seconds, 0.1), gap=gap))
        if found.x is None:
            return ColumnAnswer(False if found.status == "infeasible" else None, reason=found.message)
        if not settings:
            self._at = found.x
        which = np.flatnonzero((np.abs(found.x) > 1e-7) & (m.integer if m.integer.any() else True))
        plan = ColumnPlan({self._names[k]: round(float(found.x[k]), 6) for k in which})
        return ColumnAnswer(True, found.objective, plan, found.status == "optimal")

    def _changed(self, settings: Changes) -> Compiled:
        low, high = self.model.row_lower.copy(), self.model.row_upper.copy()
        costs, top, bottom = self.model.costs.copy(), self.model.upper.copy(), self.model.lower.copy()
        for what, value in settings.items():
            if isinstance(what, Offer):
                k = self._column[what]
                if value is DROPPED:
                    top[k], bottom[k] = max(bottom[k], 0.0), min(top[k], 0.0)
                else:
                    costs[0, k] = value * self.model.signs[0]
            elif value is DROPPED:
                low[self._row[what]], high[self._row[what]] = -np.inf, np.inf
            elif what.marker.side == "most":
                high[self._row[what]] = value
            else:
                low[self._row[what]] = value
        return replace(self.model, row_lower=low, row_upper=high, costs=costs, upper=top, lower=bottom)
