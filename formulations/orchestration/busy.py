"""Capacity that one start keeps busy, bin by bin: means over a start at a uniform time of its bin."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from formulations.orchestration.problem import MOST_BINS
from optmodels.arrays import Array

LEAST = 1e-12  # of a share


@lru_cache(1 << 14)
def busy_shares(service_s: float, bin_s: float) -> Array:
    """Mean slots kept busy in the bin of the start and each one after it.

    Read-only: a search asks for the same hundreds of times. The part beyond the most bins that there can be, and the
    one after them, belongs to no request and is left out.
    """
    shares = held(service_s, bin_s, bins_of(service_s, bin_s))
    shares = shares[: np.flatnonzero(shares > LEAST).max(initial=0) + 1]
    shares.flags.writeable = False
    return shares


def bins_of(service_s: float, bin_s: float) -> int:
    """Bins that a service may touch."""
    return int(np.ceil(min(service_s / bin_s, MOST_BINS + 1) - LEAST)) + 1


def held(until_s: float, bin_s: float, bins: int) -> Array:
    """Mean by bin, (bins,), of the function that is 1 from the start until `until_s` later."""
    z = bin_s * np.arange(bins + 1, dtype=np.float64)
    return np.diff(_past(z, bin_s) - _past(z - until_s, bin_s)) / bin_s


def growing(since_s: float, until_s: float, bin_s: float, bins: int) -> Array:
    """Mean by bin, (bins,), of a function from 0 at `since_s` after the start to 1 at `until_s`, 0 after that."""
    if until_s <= since_s:
        return np.zeros(bins)
    z = bin_s * np.arange(bins + 1, dtype=np.float64)
    slope = (_area(z - since_s, bin_s) - _area(z - until_s, bin_s)) / (until_s - since_s)
    return np.diff(slope - _past(z - until_s, bin_s)) / bin_s


def from_then_on(shares: Array) -> Array:
    """The most of (…, bins) in each bin and those after it.

    Nothing starts after the last time bin, and one more stands for all that follow: slots are never taken more there
    than in the first of these, but an engine's cache grows with every token and decodes may take more than prompts.
    """
    return np.maximum.accumulate(shares[..., ::-1], axis=-1)[..., ::-1]


def _past(v: Array, bin_s: float) -> Array:
    """Mean of max(v − u, 0) over u uniform in the bin."""
    v = np.maximum(v, 0.0)
    return np.where(v < bin_s, v**2 / (2 * bin_s), v - bin_s / 2)


def _area(v: Array, bin_s: float) -> Array:
    """Mean of max(v − u, 0)²/2 over u uniform in the bin."""
    v = np.maximum(v, 0.0)
    return np.where(v < bin_s, v**3 / (6 * bin_s), v * (v - bin_s) / 2 + bin_s**2 / 6)
