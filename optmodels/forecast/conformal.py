"""Quantiles of a forecast by split conformal prediction, on a rolling window.

At minute t the scaled errors e_s = (y_s − f_s)/f_s^β of every forecast whose outcome is known by t are at hand. The
quantile forecast at level q is f_t + f_t^β·Q, where Q is the ⌈(m + 1)q⌉-th smallest of the m errors of the window
(Vovk, Gammerman & Shafer 2005, eq. 4.6). It covers y with probability q where scaled errors are exchangeable within the
window, whatever f is. β = 1 makes errors ratios. β = ½ suits traffic whose variance grows with its rate, as sums of
many clients do. Missing minutes leave the window: an outage states nothing about traffic.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optmodels.arrays import Array

LEAST_ERRORS = 60  # an hour of outcomes; with fewer the largest error counts
LEAST_RATE = 1e-9


@dataclass(frozen=True)
class Correction:
    """How errors are scaled and how long they count.

    Attributes:
        power: β.
        window_min: minutes of forecasts whose errors count.
    """

    power: float = 1.0
    window_min: int = 4320


CORRECTIONS = tuple(Correction(power, days * 1440) for power in (1.0, 0.5) for days in (1, 3))


def quantiles(
    forecast: Array, outcome: Array, delay: int, levels: Sequence[float], correction: Correction = Correction()
) -> Array:
    """Quantile forecasts, (n, levels).

    Args:
        forecast: f_t, made at minute t; (n,).
        outcome: the measured value that f_t forecasts, (n,); NaN: not measured.
        delay: minutes after t at which `outcome[t]` is known.
        levels: each between 0 and 1.
        correction: scale of the errors and their window.
    """
    f = np.maximum(np.nan_to_num(forecast, nan=0.0), LEAST_RATE)
    usable = np.isfinite(outcome) & (outcome > LEAST_RATE) & (f > LEAST_RATE)
    scale = f**correction.power
    errors = np.divide(outcome - f, scale, out=np.full(len(f), np.nan), where=usable)
    known = np.concatenate([np.full(delay, np.nan), errors])[: len(f)]
    return np.maximum(f[:, None] + scale[:, None] * _order_statistics(known, correction.window_min, levels), 0.0)


def pinball(outcome: Array, quantile: Array, level: float) -> float:
    """Mean pinball loss of quantile forecasts at a level; NaN outcomes do not count."""
    short = outcome - quantile
    return float(np.nanmean(np.maximum(level * short, (level - 1.0) * short)))


def _order_statistics(x: Array, window: int, levels: Sequence[float]) -> Array:
    """The ⌈(m + 1)q⌉-th smallest of the m values of x in (t − window, t] at each level q, NaN left out, (n, levels).

    The largest where m is too small for the level or below `LEAST_ERRORS`; 0 where there is none.
    """
    kept: list[float] = []
    found = np.zeros((len(x), len(levels)))
    for t in range(len(x)):
        if t >= window and not math.isnan(old := x[t - window]):
            del kept[bisect_left(kept, old)]
        if not math.isnan(new := x[t]):
            insort(kept, new)
        m = len(kept)
        for k, level in enumerate(levels if m else ()):
            rank = m if m < LEAST_ERRORS else min(math.ceil((m + 1) * level), m)
            found[t, k] = kept[rank - 1]
    return found
