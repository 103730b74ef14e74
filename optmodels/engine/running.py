"""Engines that run, at the rates they have: load, slots, KV cache, and the share of requests within their SLOs.

Where an operating point is an engine at a level that was chosen for it, here the level is a consequence: means and
quantiles come from `continuous.predict` at the rates themselves, without its points' margins. A dispatcher divides
the requests of a group among engines that need not be equal; the quantity that it evens out states how (`shares`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from optmodels.arrays import Array
from optmodels.engine.between import BetweenTokens
from optmodels.engine.continuous import (
    LEAST_RPS,
    Classes,
    Coefficients,
    EngineLimits,
    crowd_above,
    held_tokens,
    predict,
)
from optmodels.latency.steps import StepCosts

GRID = (*(0.5 + 0.01 * k for k in range(50)), 0.995, 0.999)  # shares of requests at which latencies are predicted
SHARES = 1e-3 ** np.linspace(1.0, 0.0, 40)  # share of a group's requests, at which engines are tabulated


@dataclass(frozen=True)
class Running:
    """An engine at given rates.

    Attributes:
        load: ρ, share of its time; at least 1 where the rates are more than it can serve, and all else is infinite.
        step_s: mean step. running: mean requests that run. waiting_s: mean wait before prefill.
        slots, kv: mean share of its slots and of its KV cache that requests would use if they never waited for them.
        full: probability that a request finds all slots or all of the cache taken.
        drained_s: mean seconds that it then waits for one.
        ttft_s, tpot_s, e2e_s: share of requests (None: the mean) → seconds of each class (W,).
        between, between_s: times between tokens of the requests together, and their mean; None: it is overloaded.
    """

    load: float
    step_s: float
    running: float
    waiting_s: float
    slots: float
    kv: float
    full: float
    drained_s: float
    ttft_s: dict[float | None, Array]
    tpot_s: dict[float | None, Array]
    e2e_s: dict[float | None, Array]
    between: BetweenTokens | None
    between_s: float

    def at(self, what: str, klass: int, share: float | None) -> float:
        """Seconds of ``ttft_s``, ``tpot_s`` or ``e2e_s`` that a share of the requests of a class stays below.

        Of ``itl_s`` a share of the times between tokens, whichever class they are of.

        Of quantiles q above the share, the least of that at q and of the wait for a slot or cache that all
        but q − share stay below.
        """
        if what == "itl_s":
            return self.between_s if share is None or self.between is None else self.between.at(share)
        if share is None or what == "tpot_s" or share >= GRID[-1]:
            return self._quantile(what, klass, share)
        least = math.inf
        if share + self.full <= GRID[-1]:  # none is spared
            least = float(np.interp(share + self.full, GRID, [self._quantile(what, klass, q) for q in GRID]))
        for q in (q for q in GRID if q > share):
            waits = self.drained_s * math.log(max(self.full / (q - share), 1.0))
            least = min(least, self._quantile(what, klass, q) + waits)
        return least

    def _quantile(self, what: str, klass: int, share: float | None) -> float:
        values = getattr(self, what)
        if share not in values:
            share = next((q for q in GRID if q >= (share or 0.0)), GRID[-1])
        return float(values[share][klass])

    def within(self, what: str, klass: int, limit_s: float) -> float:
        """Share of the requests of a class within a limit; 0 where it is less than half.

        The most that a quantile of `GRID` leaves after those that wait for a slot or for cache for too long:
        q − P(full)·exp(−(limit − seconds at q)/mean wait).
        """
        if what == "itl_s":
            return 0.0 if self.between is None else self.between.within(limit_s)
        most = 0.0
        for q in GRID:
            spare = limit_s * (1.0 + 1e-9) - self._quantile(what, klass, q)
            if spare < 0:
                break
            waits = self.full * math.exp(-spare / self.drained_s) if what != "tpot_s" and self.full > 0 else 0.0
            most = max(most, q - waits)
        return most


def running(
    costs: StepCosts, slower: float, classes: Classes, rates: Array, kv_tokens: float, limits: EngineLimits,
    ranks: int = 1,
) -> Running:  # fmt: skip
    """Prediction of an engine at rates (W,), requests/s.

    Of several attention ranks the least busy one gets a request, so that they run out of slots together; its cache,
    which dispatchers ignore, a rank fills by itself, with its share of the concurrency spread as widely as the whole.

    Args:
        costs: costs of its steps.
        slower: further factor on TTFT (`latency.steps.Provenance.factors`).
        classes: W of them.
        rates: rates of each; where no request comes, as in a silent piece of a trace, a lone one's latencies.
        kv_tokens: KV tokens that its cache holds, over the ranks.
        limits: its settings, of each rank.
        ranks: data-parallel attention ranks D.
    """
    S, c = classes.input_tokens, Coefficients.of(costs)
    rates = rates if rates.any() else np.full_like(rates, LEAST_RPS)
    room = float(limits.max_num_batched_tokens)
    chunks = np.ceil(classes.new_tokens / min(room, limits.chunk_tokens or room))
    one, two = held_tokens(c, classes, chunks)
    steps = float(rates @ (chunks + c.rounds(classes.output_tokens - 1.0).mean(axis=1)))
    size, typical = float(rates @ one) / steps, float(rates @ two) / float(rates @ one)  # of a request, of a token's
    slots, cache = float(ranks * limits.slots), kv_tokens / ranks
    most = min(slots, kv_tokens / size)  # that run at a time, at most, in the mean
    try:
        if float((S + classes.output_tokens.max(axis=1)).max()) + costs.drafts > cache:
            raise ValueError  # a request alone is too long
        found = predict(costs, classes, rates, limits, most, GRID, ranks)
    except ValueError:
        return _overloaded(len(classes))
    # The concurrency is a birth–death chain; with all slots taken requests leave at one rate, and the queue is
    # geometric. The cache is a concurrency of requests of the size typical for a token, which counts large ones by what
    # they hold.
    each = found.load / steps
    alone = found.running * (1.0 - found.load) - found.load  # N₀
    busy = alone / most + found.load
    if not (math.isfinite(found.waiting_s) and busy < 1.0):
        return _overloaded(len(classes))
    by_slots = _full(slots, alone, found.load, busy)
    full = min(1.0, by_slots + _full(cache / typical, alone / ranks * size / typical, found.load, busy))
    drained = busy / (1.0 - busy) / float(rates.sum())
    full_s = (found.fixed_s + each * most) / found.tokens
    tpot = found.tpot_s | {None: np.minimum(found.tpot_s[None], full_s)}
    ttft = {q: v * slower for q, v in found.ttft_s.items()}
    ttft[None] = ttft[None] + full * drained
    e2e = {q: v + np.maximum(classes.output_at(q) - 1.0, 0.0) * tpot[q] for q, v in ttft.items()}
    return Running(
        found.load, found.step_s, found.running, found.waiting_s, found.running / slots,
        found.running * size / kv_tokens, full, drained, ttft, tpot, e2e,
        found.between, found.all_tpot_s[None] * found.tokens,
    )  # fmt: skip


def prefilling(classes: Classes) -> Classes:
    """Requests whose first token alone an engine makes."""
    return replace(classes, output_tokens=np.ones_like(classes.output_tokens))


def decoding(costs: StepCosts, classes: Classes) -> tuple[StepCosts, Classes]:
    """Requests whose prompt comes with its KV cache, for `running`.

    They join at the end of the step in which it comes and make S_out − 1 tokens here, the first one being the first
    token of `Running`: a prompt of one token that costs nothing, next to which others decode.

    Args:
        costs: costs of the engine's steps.
        classes: requests of two output tokens at least.
    """
    free = replace(
        costs, prompt_step_s=0.0, prompt_token_s=0.0, prompt_pair_s=0.0, prompt_context_s=0.0, prompt_expert_s=0.0
    )
    come = 1.0 - 1.0 / classes.input_tokens
    return free, replace(classes, output_tokens=np.maximum(classes.output_tokens - 1.0, 1.0), cached=come)


def _full(most: float, alone: float, load: float, busy: float) -> float:
    """P(N ≥ most) of a concurrency that grows without limit below, and whose queue above is geometric with ratio
    `busy`.
    """
    above, beyond = (float(crowd_above(n, alone, load)) for n in (most, most + 1.0))
    queue = (above - beyond) / (1.0 - busy)
    return queue / (1.0 - above + queue)


def _overloaded(classes: int) -> Running:
    always, never = math.inf, dict.fromkeys((None, *GRID), np.full(classes, math.inf))
    return Running(1.0, always, always, always, always, always, 1.0, always, never, never, never, None, always)


def shares(dispatcher: str, engines: Sequence[Any], counts: Sequence[int]) -> Array:
    """Share of a group's requests that each engine gets under a dispatcher, (E,); Σ counts·shares = 1.

    It fills the engine whose looked-at quantity is least, so that it is equal on every used one: requests that
    run (`shortest_queue`, and `prefix_affine`, where nothing is shared), share of KV cache (`least_kv`), seconds of a
    request (`earliest_finish`). ``round_robin`` looks at nothing.

    Args:
        dispatcher: ``round_robin``, ``shortest_queue``, ``least_kv``, ``earliest_finish`` or ``prefix_affine``.
        engines: engines of E kinds: share of the group's requests → `Running`.
        counts: counts of each kind.
    """
    number = np.asarray(counts, dtype=float)
    if dispatcher == "round_robin" or len(number) == 1:
        return np.full(len(number), 1.0 / number.sum())
    tables = []
    for engine, count in zip(engines, number, strict=True):
        at = SHARES / count
        seen = [_looked_at(dispatcher, engine(float(s))) for s in at]
        idle = _looked_at(dispatcher, engine(float(at[0]) * 1e-3)) if dispatcher == "earliest_finish" else 0.0
        known = np.isfinite(seen)
        values = np.maximum.accumulate(np.concatenate([[idle], np.array(seen)[known]]))
        tables.append((values, np.concatenate([[0.0], at[known]])))

    def at_level(level: float) -> Array:
        return np.array([0.0 if level < v[0] else np.interp(level, v, s) for v, s in tables])

    low, high = 0.0, max(float(v[-1]) for v, _ in tables)
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (low, middle) if number @ at_level(middle) >= 1.0 else (middle, high)
    found = at_level(high)
    total = float(number @ found)
    # Where all together cannot serve the group, each gets its share in proportion, and is overloaded.
    found = found / total if total > 0 else np.full(len(number), 1.0 / number.sum())
    return np.asarray(found, dtype=float)


def _looked_at(dispatcher: str, engine: Running) -> float:
    if dispatcher == "least_kv":
        return engine.kv
    if dispatcher == "earliest_finish":
        return float(np.mean(engine.e2e_s[None]))
    return engine.running
