"""Median forecasts of a rate series: each uses only values before the forecast is made.

A method maps a series x, one rate a minute, NaN where nothing was measured, to an array F of shape (n, H): F[t, h − 1]
is the forecast of x[t + h], made when x[t] is the newest value. Methods work on log(1 + x), so that errors are ratios.
Parameters are fitted on the first `train` minutes alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from optmodels.arrays import Array

Method = Callable[[Array, int, int], Array]  # (rates, train, horizons) → forecasts, (n, H)
MINUTES_A_DAY = 1440
FITTED_MINUTES = 4320  # newest training minutes that ETS and ARIMA are fitted on: three days


def carry_forward(x: Array) -> Array:
    """The series with each missing value replaced by the newest value before it; 0 before the first."""
    seen = np.where(np.isfinite(x), np.arange(len(x)), -1)
    newest = np.maximum.accumulate(seen)
    return np.where(newest >= 0, x[np.maximum(newest, 0)], 0.0)


def last_value(x: Array, train: int, horizons: int) -> Array:
    """F[t, h] = x[t]."""
    return np.repeat(carry_forward(x)[:, None], horizons, axis=1)


def yesterdays_change(x: Array, train: int, horizons: int) -> Array:
    """The last value times the change that followed the same minute a day before; the last value on the first day."""
    filled = carry_forward(x)
    found = last_value(x, train, horizons)
    for h in range(1, horizons + 1):
        t = np.arange(MINUTES_A_DAY, len(x))
        before = filled[t - MINUTES_A_DAY]
        ratio = np.divide(filled[t - MINUTES_A_DAY + h], before, out=np.ones(len(t)), where=before > 0)
        found[t, h - 1] *= np.clip(ratio, 0.2, 5.0)
    return found


def damped_ets(x: Array, train: int, horizons: int) -> Array:
    """Exponential smoothing with a damped additive trend, fitted by maximum likelihood (statsmodels)."""
    from statsmodels.tsa.statespace.exponential_smoothing import ExponentialSmoothing

    return _filtered(lambda y: ExponentialSmoothing(y, trend=True, damped_trend=True), x, train, horizons, disp=0)


def arima(x: Array, train: int, horizons: int) -> Array:
    """ARIMA(2, 1, 1), fitted by maximum likelihood (statsmodels)."""
    from statsmodels.tsa.arima.model import ARIMA

    return _filtered(lambda y: ARIMA(y, order=(2, 1, 1)), x, train, horizons)


METHODS: dict[str, Method] = {
    "last_value": last_value,
    "yesterdays_change": yesterdays_change,
    "damped_ets": damped_ets,
    "arima": arima,
}


def _filtered(model: Callable[[Array], object], x: Array, train: int, horizons: int, **quietly: int) -> Array:
    """Forecasts of a linear state-space model of log(1 + x) whose parameters come from the training minutes.

    The Kalman filter runs once over the whole series; with transition T, design Z and the filtered state a_t the
    forecast h steps ahead is Z·Tʰ·a_t + d, which uses nothing later than t. Missing values are skipped by the filter.
    """
    y = np.log1p(x)
    recent = y[max(train - FITTED_MINUTES, 0) : train]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # starting values that the optimiser leaves behind
        fitted = model(recent).fit(**quietly)  # type: ignore[attr-defined]
        whole = model(y).filter(fitted.params)  # type: ignore[attr-defined]
    results = whole.filter_results
    T, Z = results.transition[:, :, 0], results.design[:, :, 0]
    c, d = results.state_intercept[:, 0], float(results.obs_intercept[0, 0])
    state = results.filtered_state.copy()
    found = np.empty((len(x), horizons))
    for h in range(horizons):
        state = T @ state + c[:, None]
        found[:, h] = (Z @ state)[0] + d
    return np.maximum(np.expm1(np.clip(found, None, 50.0)), 0.0)
