"""Engines that batch continuously, from the mathematics: what the references of fleet and orchestration share.

Written from formulations/fleet/README.md ("Continuous batching"), request class by request class and with plain sums
over chunks and tokens. Of the product come the seconds of an engine's step on a deployment (`StepCosts`), no more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta, norm

from optmodels.catalog.types import Architecture
from optmodels.latency.steps import StepCosts
from optmodels.latency.work import LayerWork
from tests.adversary.roofline import held_bytes, replicas_of_a_head

SELDOM = 0.005  # probability that slots or KV run out
HAIR = 1e-12  # by which a value may miss another that it was computed from
CLASSES_OF_WAIT = (4.0, math.inf)  # a prompt may keep others waiting at most so many ω by itself
LONGEST_WAIT_S = 30.0


@dataclass(frozen=True)
class Kind:
    """A class of requests; `weight`: requests/s, of which only ratios matter."""

    prompt: float
    output: float
    cached: float
    weight: float

    @property
    def new(self) -> float:
        """u: prompt tokens to prefill."""
        return max(self.prompt * (1.0 - self.cached), 1.0)


# What a request adds to its steps, and crowds of them -----------------------------------------------------------------


def seen(c: StepCosts, context: float) -> float:
    """Tokens that attention sees of so many, mean over the layers."""
    if c.window is None:
        return context
    return c.window.share * min(context, c.window.tokens) + (1.0 - c.window.share) * context


def prompt_s(c: StepCosts, new: float, earlier: float, chunk: float, charged: bool) -> float:
    """Seconds that a prompt adds to its steps; `charged`: each chunk pays `prompt_step_s`."""
    starts = [earlier + j * chunk for j in range(math.ceil(new / chunk))]
    end, bend = earlier + new, math.inf if c.window is None else float(c.window.tokens)
    corners = [earlier, *([bend] if earlier < bend < end else []), end]  # between these `seen` is a straight line
    pairs = sum((b - a) * (seen(c, a) + seen(c, b)) / 2 for a, b in itertools.pairwise(corners))
    return (
        c.prompt_token_s * new + c.prompt_pair_s * pairs + c.prompt_context_s * sum(seen(c, x) for x in starts)
        + (c.prompt_step_s * len(starts) if charged else 0.0)
    )  # fmt: skip


def decode_s(c: StepCosts, prompt: float, output: float, mixed: float) -> float:
    """Seconds that the output tokens after the first add to theirs; the share `mixed` of all steps carries prompts.

    An output that is a mean, and no whole number, is between those of its two neighbours on the parabola through them.
    """
    whole = math.floor(output - 1.0)
    contexts = sum(seen(c, prompt + i) for i in range(whole))
    if output - 1.0 > whole:
        contexts = _progression(c, prompt, output - 1.0)
    slope = c.context_s + (c.mixed_context_s - c.context_s) * mixed
    return c.decode_request_s * (output - 1.0) + slope * contexts


def _progression(c: StepCosts, first: float, count: float) -> float:
    """Σ of what is seen of first, first + 1, …, of a number of terms that is not whole."""

    def plain(terms: float) -> float:
        return terms * first + terms * (terms - 1.0) / 2.0

    if c.window is None:
        return plain(count)
    below = min(max(math.ceil(c.window.tokens - first), 0.0), count)
    capped = plain(below) + (count - below) * c.window.tokens
    return c.window.share * capped + (1.0 - c.window.share) * plain(count)


def fixed_s(c: StepCosts, decoding: float, mixed: float, charged: bool) -> float:
    """a₀ beside so many decoding requests; the share `mixed` of steps carries prompts, which touch every expert."""
    experts = 0.0
    if c.experts is not None:
        touched = 1.0 - (1.0 - c.experts.active / c.experts.experts) ** decoding
        experts = c.experts.all_s * ((1.0 - mixed) * touched + mixed)
    return c.fixed_s + experts + (0.0 if charged else c.prompt_step_s)


def allowed_crowd(most: float, load: float) -> float:
    """The largest mean of a negative binomial crowd, variance/mean 1/(1 − ρ), that seldom reaches `most`; 0: none."""

    def above(mean: float) -> float:
        return float(beta.cdf(load, most, mean * (1.0 - load) / load + 1.0)) - SELDOM

    if most <= 0 or above(0.0) > 0:
        return 0.0
    return float(brentq(above, 0.0, most, xtol=1e-14 * most, rtol=1e-14)) if above(most) > 0 else most


def crowd_at(quantile: float, fixed_crowd: float, load: float) -> float:
    """The crowd that is exceeded with probability 1 − quantile: Cornish–Fisher's expansion to the skewness."""
    mean = (fixed_crowd + load) / (1.0 - load)
    skewness = (1.0 + load) / math.sqrt(fixed_crowd + load)
    z = float(norm.ppf(quantile))
    return mean + math.sqrt(mean / (1.0 - load)) * (z + skewness * (z * z - 1.0) / 6.0)


def kv_tokens(
    work: LayerWork, shape: Architecture, gpu_vram_bytes: float, tp: int, memory: Any, limits: Any, request: float
) -> float:
    """Tokens that the cache of an engine holds beside weights and a full pass, requests being so long; 0: no room."""
    room = tp * (memory.vram_usable * gpu_vram_bytes - memory.runtime_gib * 2.0**30)
    room -= held_bytes(work, shape, tp, limits.max_num_batched_tokens, 0)
    room -= limits.max_num_seqs * work.logit_bytes_per_sequence
    once = work.seen(request) * work.kv_bytes_per_token_all_layers
    return max(room, 0.0) / float((replicas_of_a_head(shape, tp) * once + shape.layers * work.state_bytes) / request)


# The levels of fleet --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """An engine at a planned step time; lists are by class.

    Attributes:
        rows: what one request/s of a class takes of the engine, of time, slots, memory, tokens and chunks.
        turn_s, mean_turn_s: s, and what a request/s adds to Σ λs.
    """

    step_s: float
    fixed_s: float
    rows: list[tuple[float, ...]]
    turn_s: list[float]
    mean_turn_s: list[float]
    chunks: list[int]
    prefill_s: list[float]
    beside_s: list[float]
    crowd_s: list[float]


def levels(c: StepCosts, kinds: Sequence[Kind], limits: Any, kv: float) -> list[Level]:
    """Those of nine loads that there are: ρ = 0.95·0.8^k, at the step a₀/(1 − ρ) of the largest a₀."""
    largest = fixed_s(c, math.inf, 1.0, False)
    each = [level(c, kinds, limits, kv, largest / (1.0 - 0.95 * 0.8**k)) for k in range(9)]
    return [x for x in each if x is not None]


def level(c: StepCosts, kinds: Sequence[Kind], limits: Any, kv: float, t: float) -> Level | None:
    """The level of a step time t, or None where a step has no time or room for prompts."""

    def mixture(values: Sequence[float]) -> float:
        return sum(k.weight * v for k, v in zip(kinds, values, strict=True)) / sum(k.weight for k in kinds)

    seqs, most_tokens = limits.max_num_seqs, limits.max_num_batched_tokens
    own_most = math.inf if limits.chunk_tokens is None else float(limits.chunk_tokens)
    whole = [prompt_s(c, k.new, k.prompt - k.new, k.new, False) for k in kinds]  # in one chunk
    alone = [w + c.prompt_step_s + decode_s(c, k.prompt, k.output, 0.0) for w, k in zip(whole, kinds, strict=True)]
    fewest = [math.ceil(k.new / min(most_tokens, own_most)) for k in kinds]
    carry = max(t - c.fixed_s, 0.0) * mixture(fewest) / mixture(alone)  # chunks a step of the mixture at full load
    varies = c.mixed_context_s != c.context_s or (c.experts is not None and c.experts.all_s > 0)
    phi = min(3.0 * carry, 1.0) if varies else 1.0 if carry >= 1 else 0.0
    lightest = c.decode_request_s + c.context_s * min(k.prompt for k in kinds)
    crowd = min(float(seqs), max(t - c.fixed_s, 0.0) / lightest) if lightest > 0 else float(seqs)
    a0 = fixed_s(c, crowd, phi, phi < 1)
    rho = 1.0 - a0 / t
    per_token = mixture(whole) / mixture([k.new for k in kinds])
    room = min(0.9 * (t - a0) / per_token if per_token > 0 else math.inf, float(most_tokens - seqs))
    if rho <= 0 or room < 16:
        return None
    chunk = min(room, own_most)
    chunks = [math.ceil(k.new / chunk) for k in kinds]
    prefill = [prompt_s(c, k.new, k.prompt - k.new, chunk, phi < 1) for k in kinds]
    decode = [decode_s(c, k.prompt, k.output, phi) for k in kinds]
    work = [p + d for p, d in zip(prefill, decode, strict=True)]
    steps = [m + k.output - 1.0 for m, k in zip(chunks, kinds, strict=True)]
    slots = allowed_crowd(float(seqs), rho)

    # Token-steps of the cache, and their squares: a prompt counts whole in its chunks.
    held = [
        m * k.prompt + sum(k.prompt + i for i in range(1, round(k.output))) for m, k in zip(chunks, kinds, strict=True)
    ]
    squares = [
        m * k.prompt**2 + sum((k.prompt + i) ** 2 for i in range(1, round(k.output)))
        for m, k in zip(chunks, kinds, strict=True)
    ]
    typical = mixture(squares) / mixture(held)
    mean = allowed_crowd(kv / typical, rho)
    rows = []
    for i, k in enumerate(kinds):
        memory = math.inf
        if mean > 0 and k.prompt + k.output <= kv:
            spread = math.sqrt(mean / (1.0 - rho))
            z, sigma = (kv / typical - mean) / spread, typical * spread
            memory = t * (held[i] + z * squares[i] / (2.0 * sigma * (1.0 - rho))) / (kv - z * sigma / 2.0)
        rows.append((
            work[i] / rho, steps[i] * t / slots if slots > 0 else math.inf, memory, k.new * t / (0.9 * room),
            chunks[i] * t / phi if varies and phi < 1 else 0.0,
        ))  # fmt: skip

    v = mixture(prefill) / mixture(work)
    gamma = min(p * room / (k.new * t) for p, k in zip(prefill, kinds, strict=True))
    beside = [a0 + rho * t * max(d / w, 1.0 - v) for d, w in zip(decode, work, strict=True)]
    return Level(
        t, a0, rows,
        [k.new * b / room + p for k, b, p in zip(kinds, beside, prefill, strict=True)],
        [k.new * t / room * (a0 / t + rho * (1.0 - v) ** 2) + p + d * rho * v**2 / gamma
         for k, p, d in zip(kinds, prefill, decode, strict=True)],
        chunks, prefill, beside,
        [max(w / n, mixture(work) / mixture(steps)) for w, n in zip(work, steps, strict=True)],
    )  # fmt: skip


def tpot_s(x: Level, i: int, quantile: float | None, seqs: int) -> float:
    """Seconds per output token after the first of class i, at most."""
    rho = 1.0 - x.fixed_s / x.step_s
    if quantile is None:
        return (x.fixed_s + x.crowd_s[i]) / (1.0 - rho)
    crowd = crowd_at(quantile, rho * x.fixed_s / x.crowd_s[i], rho)
    return x.fixed_s + 1.15 * x.crowd_s[i] * min(max(crowd, 1.0), float(seqs))


def ttft_s(x: Level, i: int, quantile: float | None, most: float, request_s: float) -> tuple[float, float]:
    """Seconds to the first token of class i but for waiting, at most, and of how many ω the wait is counted."""
    if quantile is None or quantile <= 0.5:
        return 0.5 * x.step_s + x.chunks[i] * x.step_s + x.prefill_s[i] + request_s, 1.0
    at = [-math.log(1.0 - q) for q in (0.9, 0.95, 0.99)]
    here = -math.log(1.0 - min(quantile, 1.0 - 1e-12))
    columns = ((0.75, 0.82, 0.98), (1.2, 1.15, 0.97), (1.05, 1.06, 1.09))
    first, own, waits = (float(np.interp(here, at, column)) for column in columns)
    base = first * x.step_s + own * (x.chunks[i] * x.beside_s[i] + x.prefill_s[i]) + request_s
    return base, waits * _longest_wait(1.0 - quantile, most)


@cache
def _longest_wait(above: float, most: float) -> float:
    """The wait that is exceeded with probability `above`, in ω, of the mixture in which it is longest.

    Prompts wait with probability ρ, and then exponentially, with mean θ ≤ min(1/ρ, most/2/(1 − ρ)): found by trying ρ.
    """

    def wait(rho: float) -> float:
        return min(1.0 / rho, most / 2.0 / (1.0 - rho)) * math.log(rho / above)

    low, high = above, 1.0 - 1e-15
    for _ in range(200):  # one peak
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (a, high) if wait(a) < wait(b) else (low, b)
    return max(wait(low), 0.0)
