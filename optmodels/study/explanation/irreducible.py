"""Which rows of an infeasible model cannot hold together: an irreducible set of named groups of rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from optmodels.solver.compile import Compiled
from optmodels.solver.session import Session

T = TypeVar("T")


class _Feasibility:
    """One session; asks again and again with other groups of rows switched off."""

    def __init__(self, model: Compiled, integers: bool) -> None:
        self.model = model
        self.session = Session()
        self.session.load(np.zeros(model.A.shape[1]), model.A, model.row_lower, model.row_upper, model.lower,
                          model.upper, model.integer if integers else None)  # fmt: skip

    def infeasible(self, off: Sequence[int], seconds: float) -> bool | None:
        """Whether the model without the rows `off` is infeasible; None: not found out in time."""
        rows = np.array(off, dtype=np.int32)
        unlimited = np.full(len(rows), np.inf)
        self.session.set_row_bounds(rows, -unlimited, unlimited)
        status = self.session.run(max(seconds, 0.05))
        self.session.set_row_bounds(rows, self.model.row_lower[rows], self.model.row_upper[rows])
        return {"infeasible": True, "optimal": False}.get(status)


def irreducible(
    model: Compiled, groups: Mapping[str, Sequence[int]], time_limit: float = 30.0
) -> tuple[list[str], bool]:
    """Names of groups that are infeasible together, and each of them necessary.

    Rows in no group always hold. Deletion filter with halving chunks; on the linear relaxation if that is already
    infeasible, else with integers.

    Args:
        model: an infeasible model.
        groups: name → its rows.
        time_limit: seconds; when it runs out, the rest is returned.

    Returns:
        The names ([] if the model could not be proved infeasible) and whether the set is proved irreducible.
    """
    deadline = time.perf_counter() + time_limit

    def left() -> float:
        return deadline - time.perf_counter()

    oracle = None
    for integers in (False, True):
        candidate = _Feasibility(model, integers)
        if candidate.infeasible([], left()):
            oracle = candidate
            break
    if oracle is None:
        return [], False

    def infeasible_without(names: list[str]) -> bool | None:
        rows = [r for name in names for r in groups[name]]
        return oracle.infeasible(rows, left()) if left() > 0 else None

    return deletion_filter(list(groups), infeasible_without)


def deletion_filter(members: list[T], infeasible_without: Callable[[list[T]], bool | None]) -> tuple[list[T], bool]:
    """Members that are infeasible together, each of them necessary; chunks that halve.

    Args:
        members: infeasible together.
        infeasible_without: whether all but these are infeasible; None: not found out.

    Returns:
        The rest, in order, and whether every one of them was proved necessary.
    """
    kept, off = list(members), list[T]()
    chunk = max(1, len(kept) // 2)
    proved = True
    while True:
        i = 0
        while i < len(kept):
            trial = kept[i : i + chunk]
            verdict = infeasible_without(off + trial)
            if verdict:
                del kept[i : i + chunk]
                off += trial
            else:
                proved &= verdict is not None or chunk > 1
                i += chunk
        if chunk == 1:
            return kept, proved
        chunk = max(1, chunk // 2)
