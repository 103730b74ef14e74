"""Median forecasts by gradient boosting on lags (scikit-learn, the extra ``boosting``), one model for all horizons."""

from __future__ import annotations

import numpy as np

from optmodels.arrays import Array, Index
from optmodels.errors import InputError, Mistake
from optmodels.forecast.points import FITTED_MINUTES, MINUTES_A_DAY, carry_forward

LAGS = (0, 1, 2, 4, 9, 29)
MEANS = (5, 15, 60)  # minutes
AT_ONCE = 6  # horizons that the model is fitted and asked at; those between are on a line


def boosting(x: Array, train: int, horizons: int) -> Array:
    """log(1 + x) at each horizon above its newest value, from lags, recent means, and the same minute a day before.

    Raises:
        InputError: scikit-learn is not installed.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits
    except ImportError:
        expected = "pip install 'optmodels[boosting]' first"
        raise InputError(Mistake(None, "forecast_method", "boosting", expected)) from None
    y, now = np.log1p(x), np.log1p(carry_forward(x))
    known = np.stack([*(_before(y, k) - now for k in LAGS), *(_mean(y, m) - now for m in MEANS), now], axis=1)
    at = np.unique(np.round(np.geomspace(1, horizons, min(AT_ONCE, horizons))).astype(int))

    def rows(t: Index, h: int) -> Array:
        angle = 2 * np.pi * ((t + h) % MINUTES_A_DAY) / MINUTES_A_DAY
        yesterday = _before(_mean(y, 5), MINUTES_A_DAY - h - 2)[t] - now[t]
        return np.column_stack([known[t], yesterday, np.sin(angle), np.cos(angle), np.full(len(t), h)])

    inputs, outputs = [], []
    for h in at.tolist():
        t = np.arange(max(train - FITTED_MINUTES, 0), max(train - h, 0))
        t = t[np.isfinite(y[t + h])]
        inputs.append(rows(t, h))
        outputs.append(y[t + h] - now[t])
    target = np.concatenate(outputs)
    if not len(target):
        return np.repeat(carry_forward(x)[:, None], horizons, axis=1)
    every = np.arange(len(x))
    with threadpool_limits(1):  # threads that wait for one another cost more than they save
        model = HistGradientBoostingRegressor(
            loss="absolute_error", learning_rate=0.1, max_iter=150, min_samples_leaf=50, early_stopping=False,
            random_state=0,
        ).fit(np.concatenate(inputs), target)  # fmt: skip
        found = np.stack([model.predict(rows(every, h)) for h in at.tolist()], axis=1)
    change = np.stack([np.interp(np.arange(1, horizons + 1), at, row) for row in found])
    return np.maximum(np.expm1(np.clip(now[:, None] + change, None, 50.0)), 0.0)


def _before(x: Array, minutes: int) -> Array:
    """x some minutes before; NaN before the first."""
    return np.concatenate([np.full(min(minutes, len(x)), np.nan), x])[: len(x)]


def _mean(x: Array, minutes: int) -> Array:
    """Mean of the measured values among the newest minutes; NaN without one."""
    there = np.isfinite(x)
    total = np.concatenate([np.zeros((1, 2)), np.cumsum(np.stack([np.where(there, x, 0.0), there], axis=1), axis=0)])
    t = np.arange(1, len(x) + 1)
    window = total[t] - total[np.maximum(t - minutes, 0)]
    return np.divide(window[:, 0], window[:, 1], out=np.full(len(x), np.nan), where=window[:, 1] > 0)
