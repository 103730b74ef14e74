"""Bounds on a linear relaxation from row multipliers, in floating point with every rounding error on the safe side.

For any y, the least value over row and column bounds of Σ_i y_i·b_i + Σ_j (c − Aᵀy)_j·x_j is below c·x at every point
(Neumaier and Shcherbina 2004, *Safe bounds in linear and mixed-integer linear programming*). It is as good as y is, and
valid whatever y is. With c = 0 a value above zero proves that there is no point: y is a Farkas ray.
"""

from __future__ import annotations

import numpy as np

from optmodels.arrays import Array
from optmodels.solver.compile import Compiled

EPS = float(np.finfo(float).eps)
ROUNDS = 20  # of propagation; any number is valid
SLACK = 1e-9  # relative, by which an implied bound is looser than computed


def least_value(
    model: Compiled, cost: Array, y: Array, tolerance: float = 0.0, lower: Array | None = None,
    upper: Array | None = None,
) -> float:  # fmt: skip
    """A number that cost·x is not below at any point of the relaxation; −∞ if y states nothing.

    Columns without a bound that y needs get the one that the rows imply.

    Args:
        model: rows, and columns unless others are given.
        cost: (n,).
        y: multipliers of rows, (m,), of any sign.
        tolerance: a reduced cost that has the wrong sign by no more than this part of its terms counts as zero where
            the column has no bound; 0: never.
        lower, upper: other bounds of columns, (n,).
    """
    lower = model.lower if lower is None else lower
    upper = model.upper if upper is None else upper
    y = np.where(((y > 0) & np.isinf(model.row_lower)) | ((y < 0) & np.isinf(model.row_upper)), 0.0, y)
    y = np.where(np.isfinite(y), y, 0.0)
    with np.errstate(invalid="ignore"):
        rows = np.where(y > 0, y * model.row_lower, np.where(y < 0, y * model.row_upper, 0.0))
    reduced = cost - model.A.T @ y
    terms = int(np.diff(model.A.indptr).max(initial=0)) + 4
    size = abs(model.A).T @ np.abs(y) + np.abs(cost)
    error = terms * EPS * size
    columns = _least_terms(reduced, error, lower, upper)
    columns[np.isneginf(columns) & (np.abs(reduced) <= tolerance * size)] = 0.0
    if np.isneginf(columns).any():
        implied = propagated(model, lower, upper)
        if implied is None:
            return np.inf
        columns = _least_terms(reduced, error, *implied)
    parts = np.concatenate((rows, columns))
    return float(parts.sum() - 2 * len(parts) * EPS * np.abs(parts).sum()) if np.isfinite(parts).all() else -np.inf


def _least_terms(reduced: Array, error: Array, lower: Array, upper: Array) -> Array:
    """min d_j·x_j over d_j within `error` of `reduced` and x_j within its bounds, (n,)."""
    with np.errstate(invalid="ignore"):
        corners = [d * x for d in (reduced - error, reduced + error) for x in (lower, upper)]
    found: Array = np.min([np.where(np.isnan(c), 0.0, c) for c in corners], axis=0)  # 0·∞ is 0
    return found


def propagated(model: Compiled, lower: Array, upper: Array, rounds: int = ROUNDS) -> tuple[Array, Array] | None:
    """Bounds of columns that rows and integrality imply, (n,) each; None: they contradict one another.

    In the row a·x ≤ b, a_j·x_j is at most b less the least that the other terms can be.
    """
    lower, upper = lower.copy(), upper.copy()
    entries = model.A.tocoo()
    i, j, a = entries.row, entries.col, entries.data
    m = model.A.shape[0]
    for _ in range(rounds):
        before = lower.copy(), upper.copy()
        for sign, limit in ((1.0, model.row_upper), (-1.0, -model.row_lower)):
            if not np.isfinite(limit).any():
                continue
            # In Σ s_ij·x_j ≤ limit_i: each term's least value, and of the rest of the row.
            s = sign * a
            with np.errstate(invalid="ignore"):
                least = np.where(s > 0, s * lower[j], s * upper[j])
            open_ = np.isneginf(least)
            finite = np.where(open_, 0.0, least)
            total, size = np.bincount(i, finite, m), np.bincount(i, np.abs(finite), m)
            count = np.bincount(i, open_, m)
            slack = SLACK * (np.where(np.isfinite(limit), np.abs(limit), 0.0) + size)
            if (np.isfinite(limit) & (count == 0) & (total > limit + slack)).any():
                return None
            alone = np.isfinite(limit)[i] & (count[i] - open_ == 0)
            room = (limit + slack)[i] - (total[i] - finite)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                most = np.where(alone, room / s, np.nan)
            up, down = alone & (s > 0) & np.isfinite(most), alone & (s < 0) & np.isfinite(most)
            np.minimum.at(upper, j[up], most[up])
            np.maximum.at(lower, j[down], most[down])
        whole = model.integer
        lower[whole] = np.ceil(lower[whole] - SLACK * np.maximum(1.0, np.abs(lower[whole])))
        upper[whole] = np.floor(upper[whole] + SLACK * np.maximum(1.0, np.abs(upper[whole])))
        with np.errstate(invalid="ignore"):
            gap = lower - upper
            size = np.maximum(np.abs(lower), np.abs(upper))
        if (np.isfinite(gap) & (gap > SLACK * np.maximum(size, SLACK))).any():
            return None
        crossed = lower > upper  # by rounding only
        lower[crossed], upper[crossed] = upper[crossed], lower[crossed]
        if _settled(before, (lower, upper)):
            break
    return lower, upper


def _settled(before: tuple[Array, Array], now: tuple[Array, Array]) -> bool:
    """Whether a round has changed no bound by a thousandth."""
    with np.errstate(invalid="ignore"):
        return all(
            bool(((a == b) | (np.abs(a - b) <= 1e-3 * np.abs(a))).all()) for a, b in zip(before, now, strict=True)
        )
