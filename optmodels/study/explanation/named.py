"""Limits that a formulation names as groups of rows of its model: which cannot hold together, shadow prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from optmodels.model import Model
from optmodels.solver import Compiled, Report, Settings, solve_compiled
from optmodels.study.explanation.irreducible import irreducible

MOST_NAMED = 6  # limits named in a sentence


def groups(model: Model, words: Callable[[str, tuple[int, ...]], str | None]) -> dict[str, list[int]]:
    """Rows of a model by the words for them.

    Args:
        model: stated.
        words: words of a row's family and label; None: the row is no limit of the user's and always holds.
    """
    found: dict[str, list[int]] = {}
    for family in model.families:
        rows = model.rows(family)
        labels = zip(*(part.tolist() for part in rows.labels), strict=True) if rows.labels else [()] * len(rows)
        for position, label in zip(model.positions(family).tolist(), labels, strict=True):
            said = words(family, label)
            if said is not None:
                found.setdefault(said, []).append(position)
    return found


def conflict(
    model: Compiled, limits: Mapping[str, Sequence[int]], seconds: float, order: Callable[[str], Any] = str
) -> dict[str, Any]:
    """An irreducible set of limits that cannot hold together, for the log of a method.

    Args:
        model: infeasible.
        limits: rows by name; rows of no limit always hold.
        seconds: time limit of the search.
        order: sorts the names.

    Returns:
        ``conflict`` (names), ``conflict_irreducible`` (proved) and ``reason`` (a sentence); the last alone where no
        set was found.
    """
    found, proved = irreducible(model, limits, seconds)
    if not found:
        return {"reason": "no plan exists, and no smaller set of limits was found"}
    names = sorted(found, key=order)
    return {
        "conflict": names, "conflict_irreducible": proved,
        "reason": f"these cannot hold together: {listed(names, MOST_NAMED)}",
    }  # fmt: skip


def gains(
    model: Compiled, limits: Mapping[str, Sequence[int]], settings: Settings, optimum: float | None,
    solve: Callable[[Compiled, Settings], Report] = solve_compiled,
) -> dict[str, float]:  # fmt: skip
    """By how much one more unit of each limit makes the objective better, by solving again; 0 if it does not.

    Args:
        model: model of one objective.
        limits: rows by name whose upper side rises, each by one.
        settings: settings of each solve; unsettled ones are left out.
        optimum: optimum of the model; None: of the linear relaxation, for models too large to be solved again.
        solve: function that solves it again.
    """
    relaxed = optimum is None
    if relaxed:
        model = replace(model, integer=np.zeros_like(model.integer))
        optimum = solve(model, settings).objective
    found = {}
    for name, rows in limits.items():
        upper = model.row_upper.copy()
        upper[np.asarray(rows, dtype=np.intp)] += 1.0
        again = solve(replace(model, row_upper=upper), settings)
        if again.objective is not None and optimum is not None and (relaxed or again.status == "optimal"):
            found[name] = max((optimum - again.objective) * float(model.signs[0]), 0.0)
    return found


def listed(words: Sequence[str], most: int = 8) -> str:
    """A list in words that stays readable: the first of them, and how many more there are."""
    more = len(words) - most
    return "; ".join(words[:most]) + (f"; and {more:,} more" if more > 0 else "")
