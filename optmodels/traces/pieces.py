"""A trace cut by its rate: the few moments at which the rates of its buckets change, and its busiest stretch.

Counts of each bucket in equal bins of time are Poisson with a rate that is constant within a piece. The cut maximises

    Σ_pieces Σ_w c_w·log(c_w / d) / φ  −  penalty · pieces

with c_w the requests of bucket w in a piece of d bins, by dynamic programming over the bins. φ ≥ 1 is the dispersion of
the counts: arrivals in bursts need more evidence for a change. The penalty is BIC's, (W + 1)/2 · log(bins). There
are at most `MOST_PIECES`. Bursts within a piece are left to the simulation of the trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from optmodels.arrays import Array, Ints
from optmodels.catalog.types import Entry
from optmodels.traces.shape import dispersion

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MOST_PIECES = 6
MOST_BINS = 480
REQUESTS_A_BIN = 10  # on average, at least
DISPERSION_BINS = (1, 4)  # lengths of the windows that φ is the largest of: bursts outlast a bin
WINDOWS_S = {"hour": 3600.0, "minute": 60.0, "second": 1.0}  # of the busiest one; the longest that the trace has 4 of
LEAST_WINDOWS = 4


class BusiestPiece(Entry):
    """The busiest window of a trace."""

    window: Annotated[str, Field(min_length=1, max_length=20)] = Field(description="hour, minute or second")
    times_the_mean: Positive = Field(description="rate within the window over the mean rate of the trace")

    def in_words(self) -> str:
        """``busiest hour 3.7 × the mean``."""
        return f"busiest {self.window} {self.times_the_mean:.1f} × the mean"


class Pieces(Entry):
    """Stretches of about even rates, one after the other, that a trace was cut into."""

    seconds: tuple[Positive, ...] = Field(min_length=1, max_length=1000, description="length of each piece")
    busiest: BusiestPiece | None = Field(default=None, description="the trace's busiest hour, minute or second")


@dataclass(frozen=True)
class CutInTime:
    """Pieces of a trace with the rate of every bucket in each.

    Attributes:
        edges_s: (K + 1,) moments at which pieces begin, and the end.
        rates: (K, W) requests/s.
    """

    edges_s: Array
    rates: Array


def cut_in_time(arrival_s: Array, bucket: Ints, buckets: int, span_s: float) -> CutInTime:
    """The pieces of a trace.

    Args:
        arrival_s: (n,) ascending, from 0 to `span_s`.
        bucket: (n,) of each request.
        buckets: how many there are.
        span_s: length of the trace, > 0.
    """
    bins = int(np.clip(len(arrival_s) // REQUESTS_A_BIN, 1, MOST_BINS))
    at = np.minimum((arrival_s * (bins / span_s)).astype(np.int64), bins - 1)
    counts = np.zeros((bins + 1, buckets))
    np.add.at(counts, (at + 1, bucket), 1.0)
    total = counts.cumsum(axis=0)
    dispersed = max(1.0, *(dispersion(arrival_s, k * span_s / bins) for k in DISPERSION_BINS))
    edges = _changes(total, dispersed)
    seconds = np.diff(edges) * (span_s / bins)
    edges_s: Array = edges.astype(np.float64) * (span_s / bins)
    return CutInTime(edges_s, np.diff(total[edges], axis=0) / seconds[:, None])


def _changes(total: Array, dispersed: float) -> Ints:
    """Bins at which pieces begin, with both ends; `total` (bins + 1, W) counts the requests before each bin."""
    bins = len(total) - 1
    gain = np.full((bins + 1, bins + 1), -np.inf)  # of one piece from bin i to bin j
    for i in range(bins):
        c = total[i + 1 :] - total[i]
        length = np.arange(1, bins + 1 - i)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            gain[i, i + 1 :] = np.where(c > 0, c * np.log(c / length), 0.0).sum(axis=1) / dispersed
    penalty = (total.shape[1] + 1) / 2 * np.log(max(bins, 2))
    best = gain[0] - penalty
    before: list[Ints] = []
    values = [best[bins]]
    for _ in range(min(MOST_PIECES, bins) - 1):
        each = best[:, None] + gain - penalty
        before.append(each.argmax(axis=0))
        best = each.max(axis=0)
        values.append(best[bins])
    edges = [bins]
    for k in range(int(np.argmax(values)), 0, -1):
        edges.append(int(before[k - 1][edges[-1]]))
    return np.array([0, *edges[::-1]], np.int64) if edges[-1] else np.array(edges[::-1], np.int64)


def busiest_window(arrival_s: Array, span_s: float) -> BusiestPiece | None:
    """The busiest hour, minute or second of a trace over its mean; None of a trace of less than four seconds."""
    window = next((w for w in WINDOWS_S if span_s >= LEAST_WINDOWS * WINDOWS_S[w]), None)
    if window is None:
        return None
    seconds = WINDOWS_S[window]
    within = np.searchsorted(arrival_s, arrival_s + seconds, side="left") - np.arange(len(arrival_s))
    return BusiestPiece(window=window, times_the_mean=float(within.max()) / seconds / (len(arrival_s) / span_s))


def busiest_stretch(arrival_s: Array, tokens: Array, most: int) -> slice:
    """The `most` requests in a row that ask for the most tokens a second; all where there are no more."""
    if len(arrival_s) <= most:
        return slice(0, len(arrival_s))
    work = np.concatenate(([0.0], np.cumsum(tokens)))
    first = np.arange(len(arrival_s) - most + 1)
    seconds = np.maximum(arrival_s[first + most - 1] - arrival_s[first], 1e-9)
    start = int(((work[first + most] - work[first]) / seconds).argmax())
    return slice(start, start + most)


def without_dominated(rates: Array) -> Ints:
    """Rows of rates (K, W) that no other row exceeds or equals in every bucket; of equal rows the first."""
    least = rates[None, :, :] >= rates[:, None, :] * (1 - 1e-12)  # row k against every other row
    above = least.all(axis=2)
    k = np.arange(len(rates))
    earlier = k[None, :] < k[:, None]
    same = above & above.T
    return np.flatnonzero(~(above & (~same | earlier) & (k[None, :] != k[:, None])).any(axis=1))
