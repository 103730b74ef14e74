"""Pareto frontiers of study rows: what nothing else beats in every aim at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from optmodels.arrays import Array, Mask
from optmodels.errors import InputError, Mistake, Mistakes, did_you_mean

Direction = Literal["min", "max"]


@dataclass(frozen=True)
class Aim:
    """A column and which way is better."""

    column: str
    direction: Direction


def aims(text: str, columns: Sequence[str]) -> tuple[Aim, ...]:
    """``X:min,Y:max`` as aims; a column goes by its name or by an ending that only one column has.

    Raises:
        InputError: no such column, an ending of several; what `aim_texts` refuses.
    """
    found: list[Aim] = []
    wrong = Mistakes()
    for name, direction in aim_texts(text):
        matches = [name] if name in columns else [c for c in columns if c.endswith(("." + name, "]" + name))]
        if len(matches) != 1:
            expected = f"one of {', '.join(matches)}" if matches else "a column of the sweep"
            hint = None if matches else did_you_mean(name, columns, 0.4, most=3)
            wrong.add("--pareto", name, expected, hint=hint)
            continue
        found.append(Aim(matches[0], direction))
    wrong.raise_any()
    return tuple(found)


def plan_columns(schema: Mapping[str, Any], node: Mapping[str, Any] | None = None, prefix: str = "") -> Iterator[str]:
    """Dotted names of the numbers that a plan of this JSON Schema may have outside of lists; ``*`` for any key."""
    node = schema if node is None else node
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    for inner in (c for key in ("anyOf", "allOf") for c in node.get(key, ())):
        yield from plan_columns(schema, inner, prefix)
    for name, inner in node.get("properties", {}).items():
        yield from plan_columns(schema, inner, f"{prefix}.{name}" if prefix else name)
    if isinstance(more := node.get("additionalProperties"), Mapping):
        yield from plan_columns(schema, more, f"{prefix}.*")
    if node.get("type") in ("number", "integer", "boolean") and prefix:
        yield prefix


def refuse_unknown(text: str, keys: Sequence[str], schema: Mapping[str, Any]) -> None:
    """Refuse ``X:min,Y:max`` before there is a plan where no plan has such a column.

    Args:
        text: the aims.
        keys: the fields that are varied.
        schema: JSON Schema of the plans.

    Raises:
        InputError: a column that is none, with all that there are; what `aim_texts` refuses.
    """
    known = [*keys, "objective", "bound", *dict.fromkeys(plan_columns(schema))]
    wrong = Mistakes()
    for name, _ in aim_texts(text):
        if name in keys or any(k.endswith(("." + name, "]" + name)) for k in keys):
            continue
        if not any(_names(name.removeprefix("plan."), c) for c in known):
            wrong.add("--pareto", name, f"one of {', '.join(known)}", hint=did_you_mean(name, known, 0.4, most=3))
    wrong.raise_any()


def _names(name: str, column: str) -> bool:
    """Whether a name is a column or its ending; no ending begins with the key of a mapping."""
    parts = column.split(".")
    found = (
        r"\.".join(".+" if p == "*" else re.escape(p) for p in parts[i:]) for i in range(len(parts)) if parts[i] != "*"
    )
    return any(re.fullmatch(one, name) for one in found)


def aim_texts(text: str) -> list[tuple[str, Direction]]:
    """The names and directions of ``X:min,Y:max``.

    Raises:
        InputError: another direction, fewer than two.
    """
    parts = [p.strip().rpartition(":") for p in text.split(",")]
    found: list[tuple[str, Direction]] = [(n, "min" if d == "min" else "max") for n, _, d in parts]
    if len({n for n, _ in found}) < 2 or any(d not in ("min", "max") or not n for n, _, d in parts):
        raise InputError(Mistake(None, "--pareto", text, "two or more columns, as in usd_per_hour:min,ttft_s:min"))
    return found


def frontier(values: Array) -> Mask:
    """Which rows no other row dominates: as good in every column and better in one; smaller is better.

    Rows with a NaN are on no frontier; equal rows are all on it.

    Args:
        values: (rows, aims).
    """
    n, k = values.shape
    kept = np.zeros(n, dtype=bool)
    usable = np.flatnonzero(~np.isnan(values).any(axis=1))
    # In lexicographic order a row can only be dominated by an earlier one, and then by one on the frontier.
    order = usable[np.lexsort(values[usable].T[::-1])]
    if k == 2:
        best, at = np.inf, np.inf
        for i in order:
            x, y = values[i]
            if y < best or (y == best and x == at):
                kept[i], best, at = True, y, x
        return kept
    front = np.empty((0, k))
    for i in order:
        v = values[i]
        better = (front <= v).all(axis=1) & (front < v).any(axis=1)
        if not better.any():
            kept[i] = True
            front = np.vstack([front, v])
    return kept


def on_frontier(frame: Any, chosen: Sequence[Aim]) -> Mask:
    """Which rows of a sweep's table are on the frontier; only rows with a plan that passed its check count."""
    import pandas as pd

    columns = []
    for aim in chosen:
        value = pd.to_numeric(frame[aim.column], errors="coerce").to_numpy(dtype=float)
        columns.append(value if aim.direction == "min" else -value)
    values = np.column_stack(columns)
    values[~(frame["check_ok"] == True).to_numpy(dtype=bool)] = np.nan  # noqa: E712 - the column may hold None
    return frontier(values)
