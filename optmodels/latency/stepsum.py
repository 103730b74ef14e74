"""Exact sums over decode steps without a loop over tokens."""

from __future__ import annotations

from functools import reduce
from itertools import combinations, pairwise

import numpy as np

from optmodels.arrays import Array

BLOCK = 4096  # rows at a time: working data stays in the cache, four times faster than 30,000 at once


def sum_max_lines(intercept: Array, slope: Array, first: int, count: int) -> Array:
    """Σ_{x = first}^{first+count−1} max_j (intercept_j + slope_j·x), in closed form.

    The upper envelope of J lines changes its line only where two of them cross, so the crossings cut the
    steps into at most J(J−1)/2 + 1 runs; within a run one line is the maximum throughout, hence the maximum of
    the lines' sums over the run is the sum of the maxima.

    Args:
        intercept: shape (..., J).
        slope: shape (..., J).
        first: the first x.
        count: number of steps, ≥ 0.

    Returns:
        Shape (...).
    """
    J = intercept.shape[-1]
    lines, slopes = intercept.reshape(-1, J), slope.reshape(-1, J)
    total = np.empty(len(lines))
    for i in range(0, len(lines), BLOCK):
        total[i : i + BLOCK] = _summed(lines[i : i + BLOCK], slopes[i : i + BLOCK], first, count)
    return total.reshape(intercept.shape[:-1])


def _summed(intercept: Array, slope: Array, first: int, count: int) -> Array:
    """`sum_max_lines` of shape (n, J) → (n,)."""
    lines = [(np.ascontiguousarray(intercept[:, j]), np.ascontiguousarray(slope[:, j]))
             for j in range(intercept.shape[1])]  # fmt: skip
    cuts: list[Array] = []
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for (a, b), (c, d) in combinations(lines, 2):
            steps_before = np.floor((c - a) / (b - d)) - first + 1
            cuts.append(np.minimum(np.fmax(steps_before, 0.0), float(count)))  # parallel lines cross nowhere: NaN is 0
    _sort(cuts)
    n = len(intercept)
    edges = [np.zeros(n), *cuts, np.full(n, float(count))]
    total: Array = np.zeros(n)
    for start, stop in pairwise(edges):
        steps = stop - start
        x_sum = steps * (first + (start + stop - 1.0) / 2.0)
        sums = [a * steps + b * x_sum for a, b in lines]
        total += reduce(np.maximum, sums)
    return total


def _sort(rows: list[Array]) -> None:
    """Sort a few rows against each other, elementwise and in place: bubble sort, far faster here than along an axis."""
    for last in range(len(rows) - 1, 0, -1):
        for i in range(last):
            rows[i], rows[i + 1] = np.minimum(rows[i], rows[i + 1]), np.maximum(rows[i], rows[i + 1])
