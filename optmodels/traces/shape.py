"""Traces cut and sped up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from optmodels.errors import InputError, Mistake
from optmodels.traces.types import Trace


def part(trace: Trace, skip_s: float = 0.0, first_s: float | None = None) -> Trace:
    """The requests that arrive from `skip_s` on, `first_s` long (None: to the end); time begins anew at `skip_s`.

    Raises:
        InputError: no request arrives then.
    """
    end = np.inf if first_s is None else skip_s + first_s
    low, high = np.searchsorted(trace.arrival_s, [skip_s, end], side="left")
    if low == high:
        expected = f"some of {trace.name}'s {trace.duration_s:g} s, in which a request arrives"
        raise InputError(Mistake(None, "skip_s, first_s", (skip_s, first_s), expected))
    kept = trace.take(np.arange(low, high))
    return replace(kept, arrival_s=kept.arrival_s - skip_s)


def sped_up(trace: Trace, factor: float) -> Trace:
    """The same requests, arriving `factor` times as fast.

    Raises:
        InputError: a factor that is not positive.
    """
    if not (factor > 0 and np.isfinite(factor)):
        raise InputError(Mistake(None, "rate_factor", factor, "a finite number > 0"))
    return trace if factor == 1 else replace(trace, arrival_s=trace.arrival_s / factor)
