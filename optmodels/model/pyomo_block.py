"""A stated model as components of a Pyomo block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from optmodels.arrays import Array
from optmodels.errors import SolverError
from optmodels.model.labels import Labels
from optmodels.model.rows import Rows
from optmodels.model.terms import Expression, Variable
from optmodels.solver.compile import paused_gc

NO_VALUES = "the model has no values: it was not solved, or has no solution"


class Statement(Protocol):
    """The part of a model (`model.Model`) that becomes a block."""

    name: str

    @property
    def variables(self) -> Mapping[str, Variable]:
        """By name, in the order of their columns."""

    @property
    def families(self) -> Mapping[str, Any]:
        """Function by name."""

    @property
    def expressions(self) -> Mapping[str, Expression]:
        """By name."""

    @property
    def objectives(self) -> Sequence[Any]:
        """In order of priority."""

    def rows(self, name: str) -> Rows:
        """The rows of a family."""


def attach(model: Statement, block: Any) -> None:
    """See `Model.attach`."""
    with paused_gc():
        _attach(model, block)


def concrete(model: Statement) -> Any:
    """See `Model.pyomo`."""
    import pyomo.environ as pyo

    made = pyo.ConcreteModel(name=model.name)
    with paused_gc():
        columns = _attach(model, made)
        for o in model.objectives:
            sense = pyo.minimize if o.sense == "min" else pyo.maximize
            made.add_component(o.name, pyo.Objective(expr=_expression(o.expression, columns), sense=sense))
    return made


def solution(model: Statement, block: Any) -> Array:
    """See `Model.solution`."""
    values = [
        data.value
        for v in model.variables.values()
        for component in (block.component(v.name),)
        for data in (map(component.__getitem__, _labels(v.index.labels)) if v.sets else [component])
    ]
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def value_of(variable: Any) -> float:
    """A variable's value.

    Raises:
        SolverError: it has none.
    """
    if variable.value is None:
        raise SolverError(NO_VALUES)
    return float(variable.value)


def _attach(model: Statement, block: Any) -> list[Any]:
    """Pyomo variables by column."""
    import pyomo.environ as pyo

    columns: list[Any] = []
    for variable in model.variables.values():
        columns += _variable(variable, block)
    for name, family in model.families.items():
        rows = model.rows(name)
        if len(rows):
            _constraint(name, rows, columns, block, family.__doc__)
    for name, expression in model.expressions.items():
        block.add_component(name, pyo.Expression(expr=_expression(expression, columns)))
    return columns


def _variable(v: Variable, block: Any) -> list[Any]:
    import pyomo.environ as pyo

    binary = v.integer and bool((v.lower >= 0).all() and (v.upper <= 1).all())
    domain = pyo.Binary if binary else pyo.Integers if v.integer else pyo.Reals
    labels = _labels(v.index.labels)
    component = pyo.Var(labels, domain=domain) if v.sets else pyo.Var(domain=domain)
    block.add_component(v.name, component)
    made = [component[label] for label in labels] if v.sets else [component]
    for data, low, high in zip(made, v.lower.tolist(), v.upper.tolist(), strict=True):
        data.setlb(None if low == -np.inf else low)
        data.setub(None if high == np.inf else high)
    return made


def _constraint(name: str, rows: Rows, columns: list[Any], block: Any, doc: str | None) -> None:
    import pyomo.environ as pyo
    from pyomo.core.expr.numeric_expr import LinearExpression, MonomialTermExpression
    from pyomo.core.expr.relational_expr import EqualityExpression, InequalityExpression, RangedExpression

    A = rows.matrix(len(columns))
    pairs = zip(A.data.tolist(), map(columns.__getitem__, A.indices.tolist()), strict=True)
    starts, terms = A.indptr.tolist(), list(map(MonomialTermExpression, pairs))
    made: list[Any] = []
    for first, last, low, high in zip(starts[:-1], starts[1:], _finite(rows.lower), _finite(rows.upper), strict=True):
        body = LinearExpression(terms[first:last])
        if low is None:
            made.append(InequalityExpression((body, high), False))
        elif high is None:
            made.append(InequalityExpression((low, body), False))
        elif low == high:
            made.append(EqualityExpression((body, low)))
        else:
            made.append(RangedExpression((low, body, high), (False, False)))
    if rows.labels:
        in_order = iter(made)  # as Pyomo asks for them; by index it would look each one up in its set again
        block.add_component(name, pyo.Constraint(_labels(rows.labels), rule=lambda *_: next(in_order), doc=doc))
    else:
        block.add_component(name, pyo.Constraint(expr=made[0], doc=doc))


def _expression(of: Expression, columns: list[Any]) -> Any:
    from pyomo.core.expr.numeric_expr import LinearExpression

    costs = of.vector(len(columns))
    used = np.flatnonzero(costs).tolist()
    return LinearExpression(
        constant=of.constant, linear_coefs=costs[used].tolist(), linear_vars=[columns[j] for j in used]
    )


def _labels(labels: Labels) -> list[Any]:
    """Indices as Pyomo has them: integers, or tuples where there are several sets."""
    if len(labels) == 1:
        return labels[0].tolist()
    return list(zip(*(part.tolist() for part in labels), strict=True))


def _finite(values: Array) -> list[float | None]:
    return [v if known else None for v, known in zip(values.tolist(), np.isfinite(values).tolist(), strict=True)]
