"""Rows as text that people review, and the differences between two statements of a model, row by row and by name.

::

    capacity[0,3]: 0.25 x[0,1,3] - n[0,3] <= 0
    x[0,1,3] in [0, 1]
    n[0,3] integer in [0, 5]
    minimise cost: 2.5 n[0,3] + 10

Statements come from a stated model, from a compiled one, from any linear Pyomo model, or from such text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from optmodels.errors import SolverError
from optmodels.model.model import Family, Model, Names
from optmodels.model.rows import Rows
from optmodels.solver.compile import Compiled, compile_model

Coefficients = dict[str, float]


@dataclass(frozen=True)
class GoldenRow:
    """lower ≤ Σ coefficient·variable ≤ upper; no coefficient is 0."""

    coefficients: Coefficients
    lower: float
    upper: float


@dataclass(frozen=True)
class GoldenBounds:
    """Of a variable."""

    lower: float
    upper: float
    integer: bool


@dataclass(frozen=True)
class Goal:
    """An objective: ``minimise`` or ``maximise`` Σ coefficient·variable + constant."""

    sense: str
    coefficients: Coefficients
    constant: float


@dataclass(frozen=True)
class GoldenStatement:
    """A model by names; objectives in order of priority."""

    rows: dict[str, GoldenRow] = field(default_factory=dict)
    variables: dict[str, GoldenBounds] = field(default_factory=dict)
    objectives: dict[str, Goal] = field(default_factory=dict)

    def used(self) -> set[str]:
        """Names of the variables in rows and objectives."""
        parts: list[GoldenRow | Goal] = [*self.rows.values(), *self.objectives.values()]
        return {name for part in parts for name in part.coefficients}


# ------------------------------------------------------------------------------------------------------- statements


def statement(model: Any) -> GoldenStatement:
    """All of a model: a `Model`, a `Compiled`, or a Pyomo model.

    Raises:
        SolverError: a Pyomo model that is not linear or has a row that cannot hold.
    """
    if isinstance(model, Model):
        names = list(model.column_names)
        rows = {name: row for f in model.families for name, row in rows_of(model, f).rows.items()}
        lower, upper, integer = model.bounds()
        goals = {
            o.name: Goal("minimise" if o.sense == "min" else "maximise",
                         _named(enumerate(o.expression.vector(len(names)).tolist()), names), o.expression.constant)
            for o in model.objectives
        }  # fmt: skip
    else:
        titles: list[str] = []
        if not isinstance(model, Compiled):
            import pyomo.environ as pyo

            titles = [o.name for o in model.component_data_objects(pyo.Objective, active=True)]
            model = compile_model(model)
        names = model.column_names
        rows = _merged(_rows(model.A.tocsr(), model.row_names, names, model.row_lower, model.row_upper))
        lower, upper, integer = model.lower, model.upper, model.integer
        goals = {}
        for k, (cost, offset, sign) in enumerate(zip(model.costs, model.offsets, model.signs, strict=True)):
            title = titles[k] if titles else f"objective_{k}"
            sense = "minimise" if sign > 0 else "maximise"
            goals[title] = Goal(sense, _named(enumerate((cost * sign).tolist()), names), float(offset * sign))
    bounds = zip(lower.tolist(), upper.tolist(), integer.tolist(), strict=True)
    return GoldenStatement(rows, {name: GoldenBounds(*b) for name, b in zip(names, bounds, strict=True)}, goals)


def rows_of(model: Model, family: Family | str, rows: Rows | None = None) -> GoldenStatement:
    """The rows of one family; `rows` where they are other ones than the model's own."""
    name = family if isinstance(family, str) else family.__name__
    rows = model.rows(name) if rows is None else rows
    titles = Names([(name, rows.labels, len(rows))])
    return GoldenStatement(
        _merged(_rows(rows.matrix(model.width), titles, list(model.column_names), rows.lower, rows.upper))
    )


def _rows(A: Any, titles: Iterable[str], names: list[str], lower: Any, upper: Any) -> Iterator[tuple[str, GoldenRow]]:
    starts, columns, data = A.indptr.tolist(), A.indices.tolist(), A.data.tolist()
    for r, (title, low, high) in enumerate(zip(titles, lower.tolist(), upper.tolist(), strict=True)):
        part = slice(starts[r], starts[r + 1])
        yield title, GoldenRow(_named(sorted(zip(columns[part], data[part], strict=True)), names), low, high)


def _merged(rows: Iterable[tuple[str, GoldenRow]]) -> dict[str, GoldenRow]:
    """Pyomo's compiler makes two rows of one with two bounds."""
    found: dict[str, GoldenRow] = {}
    for name, row in rows:
        known = found.get(name)
        if known is not None:
            if known.coefficients != row.coefficients:
                raise SolverError(f"there are two different rows {name}")
            row = GoldenRow(row.coefficients, max(known.lower, row.lower), min(known.upper, row.upper))
        found[name] = row
    return found


def _named(entries: Iterable[tuple[int, float]], names: list[str]) -> Coefficients:
    return {names[j]: value for j, value in entries if value}


# -------------------------------------------------------------------------------------------------------------- text


def text(stated: GoldenStatement) -> str:
    """One line for each row, variable and objective; `parse` reads it back without loss."""
    lines = [f"{name}: {_bounded(row)}" for name, row in stated.rows.items()]
    for name, b in stated.variables.items():
        lines.append(f"{name}{' integer' if b.integer else ''} in [{_number(b.lower)}, {_number(b.upper)}]")
    for name, goal in stated.objectives.items():
        lines.append(f"{goal.sense} {name}: {_sum(goal.coefficients, goal.constant)}")
    return "".join(line + "\n" for line in lines)


def parse(written: str) -> GoldenStatement:
    """The statement of a text; lines that begin with # are comments.

    Raises:
        ValueError: a line that is neither a row, a variable nor an objective, or one that is there twice.
    """
    stated = GoldenStatement()
    for number, line in enumerate(written.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            _line(line.strip(), stated)
        except (ValueError, IndexError) as error:
            raise ValueError(f"line {number}: {line!r}: {error}") from None
    return stated


def _line(line: str, stated: GoldenStatement) -> None:
    into: dict[str, Any]
    entry: Any
    head, colon, rest = line.partition(": ")
    if not colon:
        head, _, limits = line.partition(" in [")
        name, *kind = head.split()
        if kind not in ([], ["integer"]) or not limits.endswith("]"):
            raise ValueError("expected NAME [integer] in [LOWER, UPPER]")
        low, high = limits[:-1].split(", ")
        into, entry = stated.variables, GoldenBounds(float(low), float(high), bool(kind))
    elif head.startswith(("minimise ", "maximise ")):
        sense, name = head.split()
        into, entry = stated.objectives, Goal(sense, *_terms(rest))
    else:
        name, into, entry = head, stated.rows, _row(rest)
    if name in into:
        raise ValueError(f"{name} is there twice")
    into[name] = entry


def _row(rest: str) -> GoldenRow:
    parts = rest.split(" <= ")
    if len(parts) == 3:
        return GoldenRow(_pure(parts[1]), float(parts[0]), float(parts[2]))
    if len(parts) == 2:
        return GoldenRow(_pure(parts[0]), -math.inf, float(parts[1]))
    for sign, upper in ((" >= ", False), (" = ", True)):
        left, found, right = rest.partition(sign)
        if found:
            return GoldenRow(_pure(left), float(right), float(right) if upper else math.inf)
    raise ValueError("expected <=, >= or =")


def _pure(words: str) -> Coefficients:
    coefficients, constant = _terms(words)
    if constant:
        raise ValueError("a row has its constant on the right")
    return coefficients


def _terms(words: str) -> tuple[Coefficients, float]:
    """``0.5 x[0] - y + 3``."""
    coefficients: Coefficients = {}
    constant = 0.0
    tokens = words.split()
    if tokens[0].startswith("-") and len(tokens[0]) > 1 and not _is_number(tokens[0]):
        tokens[:1] = ["-", tokens[0][1:]]
    while tokens:
        sign = -1.0 if tokens[0] == "-" else 1.0
        if tokens[0] in "+-":
            tokens.pop(0)
        value = float(tokens.pop(0)) if _is_number(tokens[0]) else 1.0
        if not tokens or tokens[0] in "+-":
            constant += sign * value
        elif tokens[0] in coefficients:
            raise ValueError(f"{tokens[0]} is there twice")
        else:
            coefficients[tokens.pop(0)] = sign * value
    return coefficients, constant


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _bounded(row: GoldenRow) -> str:
    body = _sum(row.coefficients, 0.0)
    if row.lower == row.upper:
        return f"{body} = {_number(row.upper)}"
    if row.lower == -math.inf:
        return f"{body} <= {_number(row.upper)}"
    if row.upper == math.inf:
        return f"{body} >= {_number(row.lower)}"
    return f"{_number(row.lower)} <= {body} <= {_number(row.upper)}"


def _sum(coefficients: Coefficients, constant: float) -> str:
    words = ""
    for name, value in coefficients.items():
        size = "" if abs(value) == 1 else f"{_number(abs(value))} "
        words += (f" {'-' if value < 0 else '+'} " if words else "-" if value < 0 else "") + size + name
    if constant and words:
        words += f" {'-' if constant < 0 else '+'} {_number(abs(constant))}"
    return words or _number(constant)


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


# ------------------------------------------------------------------------------------------------------- comparison


def differences(expected: GoldenStatement, found: GoldenStatement, *, relative: float = 1e-9) -> list[str]:
    """Differences between two statements, one line each; empty where they state the same.

    A row may be written with all signs turned, and one without variables that holds states nothing. A variable may be
    missing where it is in no row and no objective.

    Args:
        expected, found: compared by the names of rows, variables and objectives.
        relative: tolerance of coefficients and bounds.
    """
    lines = []
    old = {name: row for name, row in expected.rows.items() if not _idle(row)}
    new = {name: row for name, row in found.rows.items() if not _idle(row)}
    for name in [*old, *(n for n in new if n not in old)]:
        if name not in new:
            lines.append(f"row {name} is missing: {_bounded(old[name])}")
        elif name not in old:
            lines.append(f"row {name} is new: {_bounded(new[name])}")
        else:
            a, b, c = _numbers(old[name]), _numbers(new[name]), _numbers(_turned(new[name]))
            as_written, turned = (_unequal(f"row {name}", a, other, relative) for other in (b, c))
            lines += turned if len(turned) < len(as_written) else as_written
    lines += _variables(expected, found, relative)
    if list(expected.objectives) != list(found.objectives):
        lines.append(f"objectives are {list(found.objectives)}, expected {list(expected.objectives)}")
    for name in expected.objectives.keys() & found.objectives.keys():
        goal, other = expected.objectives[name], found.objectives[name]
        if goal.sense != other.sense:
            lines.append(f"objective {name}: {other.sense}, expected {goal.sense}")
        lines += _unequal(f"objective {name}", goal.coefficients, other.coefficients, relative)
        lines += _unequal(f"objective {name}", {"constant": goal.constant}, {"constant": other.constant}, relative)
    return lines


def _variables(expected: GoldenStatement, found: GoldenStatement, relative: float) -> list[str]:
    lines = []
    for one, other, what in ((expected, found, "missing"), (found, expected, "new")):
        if other.variables:  # a text of rows alone has none
            gone = one.used() & (one.variables.keys() - other.variables.keys())
            lines += [f"variable {name} is {what}" for name in sorted(gone)]
    for name, a in expected.variables.items():
        b = found.variables.get(name)
        if b is not None:
            lines += _unequal(f"variable {name}", _limits(a), _limits(b), relative)
            if a.integer != b.integer:
                lines.append(f"variable {name}: {'integer' if b.integer else 'continuous'}")
    return lines


def _limits(of: GoldenRow | GoldenBounds) -> dict[str, float]:
    return {"lower bound": of.lower, "upper bound": of.upper}


def _unequal(where: str, expected: dict[str, float], found: dict[str, float], relative: float) -> list[str]:
    lines = []
    for name in [*expected, *(n for n in found if n not in expected)]:
        a, b = expected.get(name, 0.0), found.get(name, 0.0)
        if a != b and not abs(a - b) <= relative * max(abs(a), abs(b)) < math.inf:
            lines.append(f"{where}: {name}: {_number(b)}, expected {_number(a)}")
    return lines


def _idle(row: GoldenRow) -> bool:
    return not row.coefficients and row.lower <= 0 <= row.upper


def _turned(row: GoldenRow) -> GoldenRow:
    """The same row with all signs turned."""
    return GoldenRow({name: -value for name, value in row.coefficients.items()}, -row.upper, -row.lower)


def _numbers(row: GoldenRow) -> dict[str, float]:
    return row.coefficients | _limits(row)
