"""A model: variables, the rows of its constraint families, expressions and objectives; compiled, or put into Pyomo."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from optmodels.arrays import Array, Mask
from optmodels.arrays import Index as Ints
from optmodels.errors import SolverError
from optmodels.model.labels import Labels, StatementError
from optmodels.model.rows import Rows
from optmodels.model.terms import Expression, Terms, Variable
from optmodels.solver.compile import Compiled

Family: TypeAlias = Callable[[Any], Rows]
"""A constraint family: a function of the model, its docstring the inequality."""


class Objective(NamedTuple):
    """One of the objectives, in order of priority."""

    name: str
    sense: str  # "min" or "max"
    expression: Expression


class Names(Sequence[str]):
    """``name[label]`` of many rows or columns, made on demand: a report needs ten of them, not a million.

    Args:
        groups: name, labels, and their number.
    """

    def __init__(self, groups: Sequence[tuple[str, Labels, int]]) -> None:
        self.groups = tuple(groups)
        self._ends = list(accumulate(n for _, _, n in self.groups))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        i = i + len(self) if i < 0 else int(i)
        if not 0 <= i < len(self):
            raise IndexError(i)
        group = bisect.bisect_right(self._ends, i)
        name, labels, n = self.groups[group]
        at = i - (self._ends[group] - n)
        return label_name(name, tuple(int(part[at]) for part in labels))

    def __iter__(self) -> Iterator[str]:
        for name, labels, n in self.groups:
            if labels:
                yield from (label_name(name, label) for label in zip(*(part.tolist() for part in labels), strict=True))
            else:
                yield from [name] * n


def label_name(name: str, label: tuple[int, ...]) -> str:
    """``capacity[0,3]``, as Pyomo writes it."""
    return f"{name}[{','.join(map(str, label))}]" if label else name


class Model:
    """A formulation makes a subclass: sets, parameters and variables in ``__init__``, families as functions.

    Attributes:
        variables: variables by name, in the order of their columns.
        families: function by name, in the order they were stated.
        expressions: expressions by name.
        objectives: objectives in order of priority.
    """

    def __init__(self, name: str = "model") -> None:
        self.name = name
        self.variables: dict[str, Variable] = {}
        self.families: dict[str, Family] = {}
        self.expressions: dict[str, Expression] = {}
        self.objectives: list[Objective] = []
        self._rows: dict[str, Rows] = {}
        self._width = 0

    # ------------------------------------------------------------------------------------------------ statement

    def variable(
        self, name: str, sets: tuple[str, ...] = (), over: Any = (), *, lower: npt.ArrayLike = 0.0,
        upper: npt.ArrayLike = np.inf, integer: bool = False,
    ) -> Variable:  # fmt: skip
        """Declare a variable.

        Args:
            name: name in the mathematics.
            sets: names of its index sets, ``("t", "p")``; none for a scalar.
            over: sizes ``(T, P)``, or the labels that exist: (n, k), or a tuple of k arrays (n,).
            lower, upper: scalars; arrays indexed by labels, axes of length 1 serving all; or (n,).
            integer: whether it is integer.

        Raises:
            StatementError: a label twice, a name twice, bounds that are no numbers or of another shape.
        """
        self._new(name)
        made = Variable(name, sets, over, self._width, lower, upper, integer)
        self.variables[name] = made
        self._width += len(made)
        return made

    def state(self, families: Iterable[Family]) -> None:
        """Make the rows of these families.

        Raises:
            StatementError: a family returns no rows, or wrong ones; the family is named.
        """
        for family in families:
            name = family.__name__
            self._new(name)
            try:
                rows = family(self)
            except StatementError as error:
                raise StatementError(f"family {name}: {error}") from None
            if not isinstance(rows, Rows):
                raise StatementError(f"family {name} returns {type(rows).__name__}, not rows")
            self.families[name], self._rows[name] = family, rows

    def expression(self, name: str, terms: Terms | Expression | None, constant: float = 0.0) -> Expression:
        """Name Σ terms + constant; `attach` gives it to the larger model."""
        self._new(name)
        made = terms + constant if isinstance(terms, Expression) else Expression(terms, constant)
        self.expressions[name] = made
        return made

    def minimise(self, name: str, of: Expression | Terms) -> None:
        """Add an objective, after those before it in priority."""
        self._objective(name, "min", of)

    def maximise(self, name: str, of: Expression | Terms) -> None:
        """Add an objective, after those before it in priority."""
        self._objective(name, "max", of)

    def _objective(self, name: str, sense: str, of: Expression | Terms) -> None:
        self._new(name)
        self.objectives.append(Objective(name, sense, of if isinstance(of, Expression) else Expression(of)))

    def _new(self, name: str) -> None:
        taken = {*self.variables, *self.families, *self.expressions, *(o.name for o in self.objectives)}
        if name in taken:
            raise StatementError(f"there are two of the name {name}")

    # -------------------------------------------------------------------------------------------------- reading

    @property
    def width(self) -> int:
        """Columns."""
        return self._width

    def rows(self, family: Family | str) -> Rows:
        """The rows of a family that was stated."""
        return self._rows[family if isinstance(family, str) else family.__name__]

    def positions(self, family: Family | str) -> Ints:
        """(r,) the rows of a family among the compiled model's rows."""
        name = family if isinstance(family, str) else family.__name__
        before = accumulate(map(len, self._rows.values()), initial=0)
        start = dict(zip(self._rows, before, strict=False))[name]
        return start + np.arange(len(self._rows[name]))

    @property
    def column_names(self) -> Names:
        """``x[0,1,3]`` by column."""
        return Names([(v.name, v.index.labels, len(v)) for v in self.variables.values()])

    @property
    def row_names(self) -> Names:
        """``capacity[0,3]`` by row."""
        return Names([(name, rows.labels, len(rows)) for name, rows in self._rows.items()])

    def solution(self, block: Any) -> Array:
        """(columns,) values of the variables on a block that the model was attached to; NaN where one has none."""
        from optmodels.model.pyomo_block import solution

        return solution(self, block)

    def start(self, values: Mapping[str, npt.ArrayLike]) -> dict[int, float]:
        """A warm start: value by column.

        Args:
            values: values by variable, (n,) or a table of its sizes; unknown values are not a number.
        """
        columns: dict[int, float] = {}
        for name, given in values.items():
            variable, numbers = self.variables[name], np.asarray(given, dtype=float).ravel()
            if len(numbers) != len(variable):
                raise StatementError(f"a start of {name} has {len(numbers)} values for {len(variable)} columns")
            known = np.flatnonzero(~np.isnan(numbers))
            columns |= dict(zip((variable.start + known).tolist(), numbers[known].tolist(), strict=True))
        return columns

    # -------------------------------------------------------------------------------------------------- results

    def bounds(self) -> tuple[Array, Array, Mask]:
        """Lower, upper and integrality of every column."""
        variables = list(self.variables.values())
        lower = np.concatenate([np.zeros(0), *(v.lower for v in variables)])
        upper = np.concatenate([np.zeros(0), *(v.upper for v in variables)])
        kinds = [np.zeros(0, dtype=bool), *(np.full(len(v), v.integer) for v in variables)]
        return lower, upper, np.concatenate(kinds)

    def compiled(self) -> Compiled:
        """The model for the solver.

        Raises:
            SolverError: no objective.
        """
        if not self.objectives:
            raise SolverError(f"the model {self.name} has no objective")
        parts = list(self._rows.values())
        heights = list(accumulate((len(rows) for rows in parts), initial=0))
        row = np.empty(sum(len(rows.row) for rows in parts), dtype=np.int32)
        column, value, at = np.empty_like(row), np.empty(len(row)), 0
        for rows, above in zip(parts, heights, strict=False):
            end = at + len(rows.row)
            np.add(rows.row, above, out=row[at:end], casting="same_kind")
            column[at:end], value[at:end], at = rows.columns, rows.coefficients, end
        A = sp.coo_matrix((value, (row, column)), shape=(heights[-1], self._width)).tocsc()
        if not A.data.all():
            A.eliminate_zeros()
        lower, upper, integer = self.bounds()
        signs = np.array([1.0 if o.sense == "min" else -1.0 for o in self.objectives])
        return Compiled(
            costs=np.array([o.expression.vector(self._width) for o in self.objectives]) * signs[:, None],
            offsets=np.array([o.expression.constant for o in self.objectives]) * signs,
            signs=signs,
            A=A,
            row_lower=np.concatenate([np.zeros(0), *(rows.lower for rows in parts)]),
            row_upper=np.concatenate([np.zeros(0), *(rows.upper for rows in parts)]),
            lower=lower,
            upper=upper,
            integer=integer,
            column_names=self.column_names,
            row_names=self.row_names,
        )

    def attach(self, block: Any) -> None:
        """Put variables, families and expressions on a Pyomo block, under the names of the statement; no objective.

        A family's component has its docstring as ``doc``; a family without rows makes no component.
        """
        from optmodels.model.pyomo_block import attach

        attach(self, block)

    def pyomo(self) -> Any:
        """The ConcreteModel, objectives included; for the solver `compiled` is the short way.

        Raises:
            SolverError: no objective.
        """
        from optmodels.model.pyomo_block import concrete

        if not self.objectives:
            raise SolverError(f"the model {self.name} has no objective")
        return concrete(self)
