"""Pyomo model → arrays. The model holds the formulation; the solver sees one sparse matrix."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from optmodels.arrays import Array, Mask
from optmodels.errors import SolverError


@dataclass(frozen=True)
class Compiled:
    """min c_k·x lexicographically over k, row_lower ≤ A·x ≤ row_upper, lower ≤ x ≤ upper, some x integer."""

    costs: Array  # (objectives, n), already of minimisation sense
    offsets: Array  # (objectives,)
    signs: Array  # (objectives,): −1 where the model maximises
    A: Any  # scipy.sparse CSC (m, n)
    row_lower: Array
    row_upper: Array
    lower: Array
    upper: Array
    integer: Mask
    column_names: Sequence[str]
    row_names: Sequence[str]
    variables: Sequence[Any] = ()  # Pyomo's, in column order, where it was compiled from a Pyomo model

    def part(self, rows: Any, columns: Any) -> Compiled:
        """Some rows and columns of it, without the names of the instance."""
        return replace(
            self, costs=self.costs[:, columns], A=self.A.tocsr()[rows][:, columns].tocsc(),
            row_lower=self.row_lower[rows], row_upper=self.row_upper[rows], lower=self.lower[columns],
            upper=self.upper[columns], integer=self.integer[columns],
            column_names=["x"] * len(columns), row_names=["row"] * len(rows),
        )  # fmt: skip

    @property
    def size(self) -> dict[str, int]:
        """Variables, integers, constraints and nonzeros."""
        rows, columns = self.A.shape
        return {
            "variables": columns,
            "integers": int(self.integer.sum()),
            "constraints": rows,
            "nonzeros": int(self.A.nnz),
        }

    def violation(self, x: Array, tolerance: float = 1e-6) -> str | None:
        """The worst violated row, bound or integrality of x beyond `tolerance`, in words; None if there is none.

        A row's violation is relative to what stands in it, the larger of Σ_j |a_ij·x_j| and the bound it breaks, a
        column's to its value and bound: a row of size 10⁻⁷ has to hold as well as one of size one. The rounding of
        A·x in double precision is below 10⁻⁹ of these sizes for rows of up to a million terms. An integer may be off
        by `tolerance`.
        """
        activity, size = self.A @ x, abs(self.A) @ np.abs(x)
        row_gap = np.maximum(
            _excess(self.row_lower - activity, size, self.row_lower),
            _excess(activity - self.row_upper, size, self.row_upper),
        )
        column_gap = np.maximum(
            _excess(self.lower - x, np.abs(x), self.lower), _excess(x - self.upper, np.abs(x), self.upper)
        )
        integer_gap = np.where(self.integer, np.abs(x - np.round(x)), 0.0)
        for gap, names in (
            (row_gap, self.row_names), (column_gap, self.column_names), (integer_gap, self.column_names)
        ):  # fmt: skip
            if not (gap <= tolerance).all():  # not a number is a violation
                worst = int(np.where(np.isnan(gap), np.inf, gap).argmax())
                return f"{names[worst]} by {gap[worst]:.3g}"
        return None


def _excess(gap: Array, size: Array, bound: Array) -> Array:
    """Gaps relative to sizes and bounds; 0 where there is no bound, or nothing stands."""
    limited = np.isfinite(bound)
    size = np.maximum(size, np.where(limited, np.abs(bound), 0.0))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(limited & (gap != 0), gap / size, 0.0)


class InfeasibleModelError(SolverError):
    """A row whose variables are all fixed or absent cannot hold: infeasible before any solver has run."""


@contextmanager
def paused_gc() -> Iterator[None]:
    """No garbage collection inside: building millions of small Pyomo objects otherwise spends its time there."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def compile_model(model: Any) -> Compiled:
    """Compile a linear Pyomo model; its active objectives become lexicographic priorities in declaration order.

    Raises:
        InfeasibleModelError: a row without variables cannot hold.
        SolverError: not linear, or a coefficient, bound or cost is no finite number.
    """
    from pyomo.common.errors import InfeasibleConstraintException, PyomoException

    try:
        with paused_gc():
            return _arrays(model)
    except InfeasibleConstraintException as error:
        raise InfeasibleModelError(str(error)) from None
    except (PyomoException, ValueError) as error:
        raise SolverError(f"the model {model.name} cannot be compiled to linear form: {error}") from None


def _arrays(model: Any) -> Compiled:
    from pyomo.core import Constraint, Objective, minimize
    from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler

    if next(model.component_data_objects(Constraint, active=True), None) is None:
        raise SolverError(f"the model {model.name} has no constraint")
    if next(model.component_data_objects(Objective, active=True), None) is None:
        raise SolverError(f"the model {model.name} has no objective")
    form = LinearStandardFormCompiler().write(model, mixed_form=True, set_sense=None)
    m = form.A.shape[0]
    rhs = np.asarray(form.rhs, dtype=float)
    kind = np.array([row.bound_type for row in form.rows], dtype=int)
    signs = np.array([1.0 if o.sense == minimize else -1.0 for o in form.objectives])
    lower, upper, integer = _domains(form.columns)
    compiled = Compiled(
        costs=np.atleast_2d(np.asarray(form.c.toarray(), dtype=float)) * signs[:, None],
        offsets=np.asarray(form.c_offset, dtype=float) * signs,
        signs=signs,
        A=form.A.tocsc(),
        row_lower=np.where(kind <= 0, rhs, -np.inf) if m else rhs,
        row_upper=np.where(kind >= 0, rhs, np.inf) if m else rhs,
        lower=lower,
        upper=upper,
        integer=integer,
        variables=list(form.columns),
        column_names=[v.name for v in form.columns],
        row_names=[row.constraint.name for row in form.rows],
    )
    if not (
        np.isfinite(compiled.A.data).all() and np.isfinite(compiled.costs).all() and np.isfinite(compiled.offsets).all()
    ):
        raise SolverError("a coefficient of the model is not finite")
    if np.isnan(rhs).any() or np.isnan(lower).any() or np.isnan(upper).any():
        raise SolverError("a bound of the model is not a number")
    return compiled


def _domains(columns: list[Any]) -> tuple[Array, Array, Mask]:
    """Bounds and integrality of every column."""
    lower, upper = np.empty(len(columns)), np.empty(len(columns))
    integer = np.zeros(len(columns), dtype=bool)
    for i, v in enumerate(columns):
        low, high = v.bounds
        lower[i] = -np.inf if low is None else low
        upper[i] = np.inf if high is None else high
        integer[i] = not v.is_continuous()
    return lower, upper, integer


def said(model: Any) -> dict[str, str]:
    """The docstring of every constraint's rule, by the constraint's name."""
    import pyomo.environ as pyo

    found = {}
    for constraint in model.component_objects(pyo.Constraint, active=True):
        rule = getattr(constraint.rule, "_fcn", None)
        found[constraint.local_name] = (constraint.doc or getattr(rule, "__doc__", None) or "").strip()
    return found
