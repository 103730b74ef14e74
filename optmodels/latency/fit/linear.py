"""Non-negative least squares on relative errors, with confidence intervals and identifiability.

min_β Σ_i w_i (x_iβ/y_i − 1)², β ≥ 0 (`scipy.optimize.nnls`). Relative errors, because latencies span three decades
and plain least squares fits only the slowest rows. Huber weights w_i, from the median absolute residual and
iterated around scipy's solver, keep a wrong measurement from bending the rest; far out they fall off faster, since a
time recorded 1000 times too short has 1000 times the leverage.

Confidence intervals hold the active set fixed and use the heteroscedasticity-consistent covariance (HC1) with
Student's t; a coefficient at its bound of zero has none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from optmodels.arrays import Array, Index
from optmodels.errors import InputError, Mistake

MIN_ROWS = 3
_HUBER = 2.0  # residuals beyond this many robust standard deviations weigh less (Huber)
_REDESCEND = 10.0  # and beyond ten times that next to nothing: a relative error has no upper bound
_FLOOR = 0.005  # residuals below half a percent are never outliers
_COLLINEAR = 1.0 - 1e-9
_CONDITION = 1e4


@dataclass(frozen=True)
class LinearFit:
    """Coefficients of one linear form; `low`, `high` are NaN where a coefficient sits at zero or is not identified."""

    names: tuple[str, ...]
    value: Array
    low: Array
    high: Array
    warnings: tuple[str, ...] = field(default=())


def fit_nonnegative(
    X: Array, y: Array, names: tuple[str, ...], *, relative: bool = True, robust: bool = True,
    emphasis: Array | None = None, level: float = 0.95, where: str = "",
) -> LinearFit:  # fmt: skip
    """Fit y ≈ Xβ with β ≥ 0.

    Args:
        X: (n, k) terms. y: (n,) seconds, > 0. names: k of them.
        relative: weigh by 1/y (else plain least squares, as LV(1) prints it).
        robust: Huber reweighting.
        emphasis: (n,) factors on the residuals, where some rows matter more; None: all equal.
        level: level of the confidence intervals.
        where: name of the fit, for messages.

    Raises:
        InputError: too few rows to fit anything, or all terms zero.
    """
    from scipy.optimize import nnls

    n = len(y)
    if n < MIN_ROWS:
        raise InputError(
            Mistake(
                None,
                where or "measurements",
                f"{n} row{'s' * (n != 1)}",
                f"at least {MIN_ROWS} measurements to fit a latency model",
            )
        )
    warnings: list[str] = []
    weight = 1.0 / y if relative else np.full(n, 1.0 / float(np.mean(y)))
    A0, b0 = X * weight[:, None], y * weight
    scale = np.sqrt((A0**2).mean(axis=0))
    keep = _independent(A0, scale, names, warnings)
    if not keep.size:
        raise InputError(Mistake(None, where or "measurements", "all terms zero", "measurements under some load"))
    A = A0[:, keep] / scale[keep]
    # Rows far below the median time would dominate a first relative fit if they are wrong: start them low.
    w = np.minimum(1.0, y / float(np.median(y))) if relative and robust else np.ones(n)
    more = np.ones(n) if emphasis is None else emphasis
    beta = np.zeros(len(keep))
    for _ in range(30 if robust else 1):
        new, _ = nnls(A * (w * more)[:, None], b0 * w * more, maxiter=50 * len(keep) + 100)
        done = np.allclose(new, beta, rtol=1e-6, atol=1e-12)
        beta = new
        residual = np.abs(A @ beta - b0)
        spread = max(1.4826 * float(np.median(residual)), _FLOOR) * _HUBER
        if done or (residual.max() <= spread and (w == 1.0).all()):
            break
        far = np.maximum(1.0, residual / spread)
        w = np.sqrt(1.0 / far) * np.minimum(1.0, _REDESCEND / far)
    outliers = int((np.abs(A @ beta - b0) > 10 * spread).sum())
    if outliers:
        warnings.append(
            f"{outliers} of {n} rows are more than ten robust deviations off: outliers, or a regime this form lacks"
        )
    value, low, high = np.zeros(X.shape[1]), np.full(X.shape[1], np.nan), np.full(X.shape[1], np.nan)
    value[keep] = beta / scale[keep]
    active = np.flatnonzero(beta > 0)
    half = _half_widths(A[:, active] * (w * more)[:, None], (A @ beta - b0) * w * more, level)
    for a, h in zip(active, half, strict=True):
        j = keep[a]
        low[j], high[j] = max(0.0, value[j] - h / scale[j]), value[j] + h / scale[j]
    if n <= len(active):
        warnings.append(f"{n} rows cannot identify {len(active)} coefficients")
    elif len(active) > 1:
        condition = float(np.linalg.cond(A[:, active] / np.linalg.norm(A[:, active], axis=0)))
        if condition > _CONDITION:
            warnings.append(
                f"the terms {', '.join(names[keep[a]] for a in active)} are nearly collinear in these data "
                f"(condition {condition:.0e}): their sum is trustworthy, the split between them is not"
            )
    return LinearFit(names, value, low, high, tuple(warnings))


def _independent(A: Array, scale: Array, names: tuple[str, ...], warnings: list[str]) -> Index:
    """Columns that are neither zero nor proportional to an earlier one; the latter are named."""
    keep: list[int] = []
    for j in range(A.shape[1]):
        if scale[j] == 0 or not np.isfinite(scale[j]):
            continue
        unit = A[:, j] / scale[j]
        twin = next((i for i in keep if abs(float(np.mean(unit * A[:, i] / scale[i]))) > _COLLINEAR), None)
        if twin is None:
            keep.append(j)
        else:
            warnings.append(
                f"the data cannot tell {names[j]} from {names[twin]} (always proportional): "
                f"{names[twin]} stands for both"
            )
    return np.array(keep, dtype=np.intp)


def _half_widths(A: Array, residual: Array, level: float) -> Array:
    from scipy.stats import t

    n, k = A.shape
    if n <= k or k == 0:
        return np.full(k, np.nan)
    inverse = np.linalg.pinv(A.T @ A)
    meat = (A * residual[:, None]).T @ (A * residual[:, None])
    variance = np.clip(np.diag(inverse @ meat @ inverse), 0.0, None) * n / (n - k)
    return np.sqrt(variance) * float(t.ppf(0.5 + level / 2, n - k))
