"""Traces cut, sped up and resampled; output lengths as a predictor knows them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from optmodels.arrays import Array, Ints
from optmodels.errors import InputError, Mistake
from optmodels.traces.types import Trace

MAX_PREDICTED = 10**9
PARTS = ("first", "rest")


def part(trace: Trace, skip_s: float = 0.0, first_s: float | None = None) -> Trace:
    """The requests that arrive from `skip_s` on, `first_s` long (None: to the end); time begins again at `skip_s`.

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
    if factor == 1:
        return trace
    if trace.follows is None:
        return replace(trace, arrival_s=trace.arrival_s / factor)
    at, parent = trace.arrival_s / factor, trace.follows.parent
    for i in np.flatnonzero(parent >= 0):  # sessions begin faster; people think as long as before
        at[i] = at[parent[i]] + trace.follows.think_s[i]
    return replace(trace, arrival_s=at).take(np.argsort(at, kind="stable"))


def predicted(trace: Trace, error: float, seed: int = 0) -> Trace:
    """The same requests with output lengths predicted with error: round(true · exp(error · z)), z normal, at least 1.

    The median prediction is the true length. Dispatchers see it (`Trace.expected_output_tokens`); engines do not.

    Raises:
        InputError: an error that is negative or above 10.
    """
    if not 0 <= error <= 10:
        raise InputError(Mistake(None, "predicted_error", error, "a standard deviation of ln(predicted/true), 0 to 10"))
    z = np.random.default_rng(seed).standard_normal(len(trace))
    length = np.clip(np.rint(trace.output_tokens * np.exp(error * z)), 1, MAX_PREDICTED)
    return replace(trace, predicted_output_tokens=length.astype(np.int64))


def halves(trace: Trace, share: float = 0.5) -> tuple[Trace, Trace]:
    """The requests of the first `share` of the trace's time, and the rest, whose time begins again.

    Raises:
        InputError: a share that leaves one of them without a request.
    """
    cut = int(np.searchsorted(trace.arrival_s, share * trace.duration_s, side="left"))
    if not 0 < share < 1 or cut in (0, len(trace)):
        raise InputError(
            Mistake(None, "share", share, f"a share of {trace.name} in (0, 1) with requests on both sides")
        )
    rest = trace.take(np.arange(cut, len(trace)))
    start = share * trace.duration_s
    return trace.take(np.arange(cut)), replace(rest, arrival_s=rest.arrival_s - start, name=f"rest of {trace.name}")


def resampled(trace: Trace, seed: int = 0, block_s: float | None = None) -> Trace:
    """Another trace as long as this one, from its blocks drawn with replacement.

    Each block of `block_s` seconds is a stretch of the trace from a random moment on (wrapping at its end), so bursts,
    lengths and their correlation within a block follow the trace (moving-block bootstrap, Künsch 1989; circular).
    Sessions and prefix blocks stay as in the requests drawn.

    Args:
        trace: requests over some time.
        seed: random seed of the blocks drawn.
        block_s: length of a block; default: a 24th of the trace, at least ten mean times between arrivals.

    Raises:
        InputError: fewer than two moments of arrival, a block that is not positive.
    """
    whole = trace.duration_s
    if not whole > 0:
        raise InputError(Mistake(None, "resample", trace.name, "a trace over a time span > 0"))
    if block_s is not None and not 0 < block_s <= whole:
        raise InputError(Mistake(None, "block_s", block_s, f"seconds in (0, {whole:g}], the trace's"))
    block = block_s if block_s is not None else min(whole, max(whole / 24, 10 * whole / len(trace)))
    rng, arrival = np.random.default_rng(seed), trace.arrival_s
    twice = np.concatenate((arrival, arrival + whole))
    chosen: list[Ints] = []
    times: list[Array] = []
    while not sum(map(len, chosen)):  # blocks may all be gaps of a short trace: then others are drawn
        chosen, times, at = [], [], 0.0
        while at < whole:
            start, length = rng.uniform(0.0, whole), min(block, whole - at)
            low, high = np.searchsorted(twice, [start, start + length], side="left")
            chosen.append(np.arange(low, high) % len(trace))
            times.append(twice[low:high] - start + at)
            at += length
    drawn = replace(trace, follows=None).take(np.concatenate(chosen).astype(np.int64))
    return replace(drawn, arrival_s=np.concatenate(times), name=f"{trace.name}, resampled with seed {seed}")


def dispersion(arrival_s: Array, window_s: float) -> float:
    """Index of dispersion of arrivals: variance over mean of how many come in a window; 1 of Poisson's.

    From differences of neighbouring windows, Σ(c′ − c)²/2Σc, which a rate that changes slowly leaves alone (von
    Neumann). 1 where there are fewer than two windows.
    """
    windows = int(arrival_s.max(initial=0.0) / window_s)  # whole ones
    if windows < 2:
        return 1.0
    counts = np.bincount((arrival_s / window_s).astype(np.int64), minlength=windows)[:windows]
    met = float(counts[:-1].sum() + counts[1:].sum()) / 2.0
    return float((np.diff(counts) ** 2).sum()) / (2.0 * met) if met > 0 else 1.0
