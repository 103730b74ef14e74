"""Demand that reservations must serve by themselves: every row, every loss, every set of regions above its demand.

Rows that a greedy flow serves are settled for thousands at a time. Where any Γ of n regions may exceed their demand,
the sets need no listing: if a row is served while a whole set T deviates, it is served for every Γ regions of T. Else T
is cut into Γ + 1 parts, and any Γ regions miss one, and each T without one part is tried, until |T| = Γ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from formulations.reserved_capacity.dispatch import (
    SERVED,
    SHORT,
    RowLp,
    fewest_choices_first,
    greedy_flows,
    nearest_first,
)
from formulations.reserved_capacity.points import Guard, ReservedTables
from optmodels.arrays import Array, Index, Mask

BLOCK = 256  # rows whose deviations are searched at once
UNLIMITED = 1e9  # machines; more than an instance may need (`problem.MACHINES_TRUSTED`)


@dataclass(frozen=True)
class LossCase:
    """Rows of demand to be served with the remaining machines.

    Attributes:
        demand: requests/s, (n, I).
        quarter: quarter of every row, (n,).
        alive: share of reservations that is left, (J,).
        extra: further machines, (J,), finite.
        deviation: share by which any `budget` regions may exceed their demand at once.
        budget: see `deviation`.
    """

    demand: Array
    quarter: Index
    alive: Array
    extra: Array
    deviation: float = 0.0
    budget: int = 0

    def have(self, machines: Array) -> Array:
        """Machines in every row, (n, J), of reserved ones (J, Q)."""
        return (self.alive[:, None] * machines + self.extra[:, None]).T[self.quarter]


def of_guard(t: ReservedTables, guard: Guard, rows: Index | slice = slice(None)) -> LossCase:
    """Demand of a guard in some rows, by default all."""
    extra = np.minimum(guard.extra, UNLIMITED)
    return LossCase(
        guard.demand(t.demand[rows]) * guard.keep, t.quarter[rows], guard.alive, extra, guard.deviation, guard.budget
    )


def of_demand(t: ReservedTables, rows: Index | slice = slice(None), sources: Mask | None = None,
              extra: Array | None = None) -> LossCase:  # fmt: skip
    """The demand itself, or some sources' part, with reservations and further machines, by default none."""
    J = len(t.sink_region)
    demand = t.demand[rows] if sources is None else np.where(sources, t.demand[rows], 0.0)
    return LossCase(demand, t.quarter[rows], np.ones(J), np.minimum(np.zeros(J) if extra is None else extra, UNLIMITED))


def undominated(demand: Array) -> Index:
    """Rows of `demand` (H, I) that no other row exceeds everywhere; of equal rows the first."""
    order = np.argsort(-demand.sum(axis=1), kind="stable")
    kept: list[int] = []
    frontier = np.empty_like(demand)
    for h in order:
        n = len(kept)
        if n and (frontier[:n] >= demand[h]).all(axis=1).any():
            continue
        frontier[n] = demand[h]
        kept.append(int(h))
    return np.sort(np.array(kept, dtype=np.intp))


def unserved(t: ReservedTables, case: LossCase, machines: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Rows, with the regions that deviate, that no greedy flow serves: (demand (m, I), machines (m, J), left (m,)).

    Block by block, within a block those with most left first. All others are served. Every row first with its largest
    regions above their demand, then with all other sets, the rows of largest demand first.
    """
    have = case.have(machines)
    every = np.arange(len(case.demand))
    yield from _failing(t, _with_largest(t, case), every, have)
    if not case.budget:
        return
    order = np.argsort(-case.demand.sum(axis=1), kind="stable")
    for at in range(0, len(order), BLOCK):
        rows, demand = _deviating(t, case, order[at : at + BLOCK], have)
        yield from _failing(t, demand, rows, have)


def short_row(t: ReservedTables, case: LossCase, machines: Array, lp: RowLp) -> tuple[float, Array] | None:
    """A row of a case that cannot be served, if not the worst: (requests/s short, prices of machines (J,))."""
    for demand, have, _ in unserved(t, case, machines):
        for d, m in zip(demand, have, strict=True):
            lp.solve(d, m)
            if lp.objective > SHORT * max(float(d.sum()), 1e-12):
                return lp.objective, lp.duals()[1] * case.alive  # a machine that is lost does not help
    return None


def _failing(t: ReservedTables, demand: Array, rows: Index, have: Array) -> Iterator[tuple[Array, Array, Array]]:
    left = _left(t, demand, have[rows])
    on = np.flatnonzero(left > 0)
    on = on[np.argsort(-left[on], kind="stable")]
    if len(on):
        yield demand[on], have[rows[on]], left[on]


def _with_largest(t: ReservedTables, case: LossCase) -> Array:
    """Demand of every row with its largest regions above it."""
    if not case.budget:
        return case.demand
    regions, of_source = np.unique(t.source_region, return_inverse=True)
    by_region = case.demand @ (of_source[:, None] == np.arange(len(regions)))
    rank = np.argsort(np.argsort(-by_region, axis=1, kind="stable"), axis=1, kind="stable")
    return case.demand * (1.0 + case.deviation * (rank < case.budget)[:, of_source])


def _left(t: ReservedTables, demand: Array, have: Array) -> Array:
    """Requests/s that neither greedy order serves, zero where one serves all, (n,)."""
    least = np.full(len(demand), np.inf)
    open_ = np.arange(len(demand))
    for order in (nearest_first(t), fewest_choices_first(t)):
        left = greedy_flows(t, demand[open_], have[open_], order)[0].sum(axis=1)
        left[left <= SERVED * np.maximum(demand[open_].sum(axis=1), 1e-12)] = 0.0
        least[open_] = np.minimum(least[open_], left)
        open_ = open_[left > 0]
        if not len(open_):
            break
    return least


def _deviating(t: ReservedTables, case: LossCase, rows: Index, have: Array) -> tuple[Index, Array]:
    """(row, its demand) for every row and set of Γ regions that is not settled by a larger set."""
    regions, of_source = np.unique(t.source_region, return_inverse=True)
    budget = min(case.budget, len(regions))
    sets: Mask = np.ones((len(rows), len(regions)), dtype=bool)
    while True:
        demand = case.demand[rows] * (1.0 + case.deviation * sets[:, of_source])
        open_ = sets.sum(axis=1) > budget
        if not open_.any():
            return rows, demand
        failed = open_.copy()
        failed[open_] = _left(t, demand[open_], have[rows[open_]]) > 0
        smaller = [_without(sets[failed], part, budget + 1) for part in range(budget + 1)]
        again = np.concatenate([rows[~open_], *([rows[failed]] * (budget + 1))])
        joined = np.concatenate([sets[~open_], *smaller])
        keys = np.column_stack([again, np.packbits(joined, axis=1)])
        _, first = np.unique(keys, axis=0, return_index=True)
        rows, sets = again[first], joined[first]


def _without(sets: Mask, part: int, parts: int) -> Mask:
    """Every set without its `part`-th of `parts` pieces of nearly equal size; none stays empty-handed."""
    place = np.cumsum(sets, axis=1) - 1
    size = sets.sum(axis=1, keepdims=True)
    piece = place * parts // np.maximum(size, 1)
    return sets & (piece != part)
