"""Quantiles of the largest minute of each coming tick, from a history that ends now, or from a file.

A tick's forecast is the largest median of its minutes. Its quantiles are conformal: the ⌈(m + 1)q⌉-th smallest of the m
scaled errors of the same horizon in the window (`conformal`). Every error's outcome lies in the history, so nothing
after its end can enter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from optmodels.arrays import Array
from optmodels.errors import InputError, Mistake
from optmodels.forecast.conformal import CORRECTIONS, LEAST_ERRORS, LEAST_RATE, Correction, pinball, quantiles
from optmodels.forecast.methods import method_of
from optmodels.forecast.points import METHODS

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
CHOSEN_AT, CHOSEN_ON_MIN = 0.98, 4320  # quantile whose loss chooses a method, and the newest minutes that count
QUANTILE = re.compile(r"q0?(\.\d+)")


class TickForecast:
    """Median forecasts of a rate series, made at every minute, and the quantiles of the coming ticks.

    Parameters are fitted, and method and correction chosen, on the first `train` minutes alone. A forecast made at
    minute t reads nothing later.

    Args:
        rates: mean requests/s of every minute, (n,); NaN: not measured.
        required: requests/s that each minute required, (n,) (`History.required`).
        train: minutes.
        minutes: minutes ahead.
        method: name of `forecast.methods.NAMES`, or auto: the method and correction of least loss at `ahead`.
        ahead: minutes ahead at which methods are compared.
    """

    def __init__(
        self, rates: Array, required: Array, train: int, minutes: int, method: str = "auto", ahead: int = 10
    ) -> None:  # fmt: skip
        self.required, self.method, self.correction = required, method, Correction()
        if method != "auto":
            self.points = method_of(method)(rates, train, minutes)
            return
        at = min(ahead, minutes)
        outcome = np.concatenate([required[at:], np.full(at, np.nan)])[:train]
        begin, best = max(train - CHOSEN_ON_MIN, train // 2), math.inf
        for name, each in METHODS.items():
            points = each(rates, train, minutes)
            for correction in CORRECTIONS:
                q = quantiles(points[:train, at - 1], outcome, at, (CHOSEN_AT,), correction)[:, 0]
                loss = pinball(outcome[begin:], q[begin:], CHOSEN_AT)
                if loss < best:
                    best, self.method, self.correction, self.points = loss, name, correction, points

    def at(self, n: int, tick_min: int, ticks: int, levels: Sequence[float] = LEVELS) -> Array:
        """Requests/s at each quantile of the largest minute of each tick after minute n − 1, (ticks, levels)."""
        c = self.correction
        first = max(n - c.window_min - tick_min * ticks - 1, 0)
        points = self.points[first:n, : tick_min * ticks].reshape(n - first, ticks, tick_min).max(axis=2)
        required, n = self.required[first:n], n - first
        found = np.empty((ticks, len(levels)))
        windows = np.lib.stride_tricks.sliding_window_view(required, tick_min)
        for h in range(ticks):
            last = n - (h + 1) * tick_min  # forecasts before it have their outcomes in the history
            now = max(float(points[-1, h]), LEAST_RATE)
            errors = np.zeros(0)
            if last > 0:
                outcome = windows[h * tick_min + 1 : h * tick_min + 1 + last].max(axis=1)
                f, y = points[: len(outcome), h][-c.window_min :], outcome[-c.window_min :]
                usable = np.isfinite(y) & (y > LEAST_RATE) & (f > LEAST_RATE)
                errors = np.sort((y[usable] - f[usable]) / f[usable] ** c.power)
            m = len(errors)
            for k, q in enumerate(levels):
                rank = m if m < LEAST_ERRORS else min(math.ceil((m + 1) * q), m)
                found[h, k] = max(now + now**c.power * errors[rank - 1], 0.0) if m else now
        return np.maximum.accumulate(found, axis=1)


def tick_quantiles(
    rates: Array, required: Array, tick_min: int, ticks: int, levels: Sequence[float] = LEVELS,
    method: str = "last_value",
) -> Array:  # fmt: skip
    """Requests/s at each quantile of the largest minute of each coming tick, (ticks, levels).

    Args:
        rates: mean requests/s of every minute up to now, (n,); NaN: not measured.
        required: requests/s that each minute required, (n,) (`History.required`).
        tick_min: minutes of a tick.
        ticks: ticks ahead.
        levels: quantiles, ascending.
        method: name of `forecast.methods.NAMES`, or auto.
    """
    n = len(rates)
    return TickForecast(rates, required, n, tick_min * ticks, method, 2 * tick_min).at(n, tick_min, ticks, levels)


def read_forecast(path: Path, workloads: Sequence[str], ticks: int | None = None) -> tuple[Array, tuple[float, ...]]:
    """Rates of a table with ``time``, ``workload`` where there are several, and ``q0.5``, ``q0.9``, … or
    ``requests_per_s``: (H, J, W) requests/s, and the quantiles.

    Raises:
        InputError: other columns, a workload without rows, or fewer than two ticks.
    """
    from optmodels.io.tables import read_frame

    frame = read_frame(path)
    frame.columns = [str(c).strip().lower() for c in frame.columns]
    named = {c: float(m[1]) for c in frame.columns if (m := QUANTILE.fullmatch(c))}
    columns = sorted(named, key=named.__getitem__) or [c for c in ("requests_per_s",) if c in frame.columns]
    if "time" not in frame.columns or not columns:
        expected = "time and q0.5, q0.9, … (or requests_per_s), and workload where there are several"
        raise InputError(Mistake(str(path), "columns", ", ".join(frame.columns)[:100], expected))
    if "workload" not in frame.columns and len(workloads) > 1:
        raise InputError(Mistake(str(path), "columns", "no workload", f"a column with {', '.join(workloads)}"))
    tables = []
    for name in workloads:
        mine = frame if "workload" not in frame.columns else frame[frame["workload"].astype(str) == name]
        if len(mine) < 2:
            raise InputError(Mistake(str(path), "workload", name, "at least two rows"))
        values = mine.sort_values("time")[columns].to_numpy(dtype=float)
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise InputError(Mistake(str(path), f"rows of {name}", "a missing or negative rate", "requests/s ≥ 0"))
        tables.append(values)
    least = min(len(t) for t in tables)
    least = least if ticks is None else min(least, ticks)
    rates = np.stack([np.maximum.accumulate(t[:least], axis=1) for t in tables], axis=2)
    return rates, tuple(named[c] for c in columns) if named else (0.5,)
