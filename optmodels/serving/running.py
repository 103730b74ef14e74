"""Engines that run, at the rates they have: load, slots, KV cache, and how many requests see what they were promised.

Where an operating point is an engine at a level that was chosen for it, here the level is a consequence: means and
quantiles are those of `continuous.predict` at the rates themselves, without its points' margins. A dispatcher divides the
requests of a group among engines that need not be alike; what it evens out says how (`shares`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from optmodels.latency.steps import StepCosts
from optmodels.serving.continuous import Classes, EngineLimits, Prediction, crowd_above, predict

Array = npt.NDArray[np.float64]
GRID = (*(0.5 + 0.01 * k for k in range(50)), 0.995, 0.999)  # shares of requests at which latencies are predicted
SHARES = 1e-3 ** np.linspace(1.0, 0.0, 40)  # of all requests of a group, at which engines are tabulated
EVENED = ("round_robin", "shortest_queue", "least_kv", "earliest_finish", "prefix_affine")


@dataclass(frozen=True)
class Running:
    """An engine at given rates.

    Attributes:
        load: ρ, share of its time; at least 1 where the rates are more than it can serve, and all else is infinite.
        step_s: mean step. running: mean requests that run. waiting_s: mean wait before prefill.
        slots, kv: mean share of its slots and of its KV cache that are in use.
        full: probability that all slots or all of the cache are taken.
        ttft_s, e2e_s: share of requests (None: the mean) → seconds of each class (W,); tpot_s: of all.
    """

    load: float
    step_s: float
    running: float
    waiting_s: float
    slots: float
    kv: float
    full: float
    ttft_s: dict[float | None, Array]
    tpot_s: dict[float | None, float]
    e2e_s: dict[float | None, Array]

    def at(self, what: str, klass: int, share: float | None) -> float:
        """Seconds of ``ttft_s``, ``tpot_s`` or ``e2e_s`` that a share of the requests of a class stays below."""
        values = getattr(self, what)
        if share not in values:
            share = next((q for q in GRID if q >= (share or 0.0)), GRID[-1])
        return float(values[share] if what == "tpot_s" else values[share][klass])

    def within(self, what: str, klass: int, limit_s: float) -> float:
        """Share of the requests of a class within a limit: the largest of `GRID`, 0 where it is less than half.

        Those that find slots or cache full are counted as late.
        """
        kept = [q for q in GRID if self.at(what, klass, q) <= limit_s * (1.0 + 1e-9)]
        return max(0.0, min(max(kept, default=0.0), 1.0 - self.full))


def running(
    costs: StepCosts, slower: float, classes: Classes, rates: Array, kv_tokens: float, limits: EngineLimits
) -> Running:
    """What an engine does at rates (W,), requests/s.

    Args:
        costs: of its steps.
        slower: what TTFT is multiplied by besides (`latency.steps.Provenance.factors`).
        classes: W of them.
        rates: of each.
        kv_tokens: that its cache holds.
        limits: its settings.
    """
    try:
        found = _settled(costs, classes, rates, limits)
    except ValueError:
        return _overloaded(len(classes))
    if not math.isfinite(found.waiting_s):
        return _overloaded(len(classes))
    S, D = classes.input_tokens, classes.output_tokens - 1.0
    chunks = np.ceil(classes.new_tokens / _room(limits, found.running))
    steps = chunks + D.mean(axis=1)
    # Tokens held, summed over the steps of a request's life, and their squares; a cache is full as slots of the size
    # typical for a token are, which counts large requests by what they hold.
    one = (D * S[:, None] + D * (D + 1) / 2).mean(axis=1) + chunks * S
    two = (D * S[:, None] ** 2 + S[:, None] * D * (D + 1) + D * (D + 1) * (2 * D + 1) / 6).mean(axis=1) + chunks * S**2
    total = float(rates @ one)
    held = found.running * total / float(rates @ steps)
    typical = float(rates @ two) / total
    full = _full(limits.max_num_seqs, found.running, found.load) + _full(
        kv_tokens / typical, held / typical, found.load
    )
    ttft = {q: v * slower for q, v in found.ttft_s.items()}
    e2e = {q: v + np.maximum(classes.output_at(q) - 1.0, 0.0) * found.tpot_s[q] for q, v in ttft.items()}
    if float((S + classes.output_tokens.max(axis=1)).max()) > kv_tokens:
        full = 1.0  # the longest request alone is too long
    return Running(
        found.load, found.step_s, found.running, found.waiting_s, found.running / limits.max_num_seqs,
        held / kv_tokens, min(full, 1.0), ttft, found.tpot_s, e2e,
    )  # fmt: skip


def _room(limits: EngineLimits, crowd: float) -> float:
    """Prompt tokens of a step beside one of each running request."""
    room = max(limits.max_num_batched_tokens - min(crowd, limits.max_num_seqs), 1.0)
    return min(room, float(limits.chunk_tokens or room))


def _settled(costs: StepCosts, classes: Classes, rates: Array, limits: EngineLimits) -> Prediction:
    """The prediction with the prompt room that its own crowd leaves."""
    found = predict(costs, classes, rates, _room(limits, 0.0), limits.max_num_seqs, GRID)
    return predict(costs, classes, rates, _room(limits, found.running), limits.max_num_seqs, GRID)


def _full(most: float, mean: float, load: float) -> float:
    """P(N ≥ most) of a crowd with that mean at load ρ."""
    return float(crowd_above(most, max(mean * (1.0 - load) - load, 0.0), load)) if load > 0 else 0.0


def _overloaded(classes: int) -> Running:
    never, always = np.full(classes, math.inf), math.inf
    return Running(
        1.0, always, always, always, always, always, 1.0, dict.fromkeys((None, *GRID), never),
        dict.fromkeys((None, *GRID), always), dict.fromkeys((None, *GRID), never),
    )  # fmt: skip


def shares(dispatcher: str, engines: Sequence[Any], counts: Sequence[int]) -> Array:
    """Share of a group's requests that each engine gets under a dispatcher, (E,); Σ counts·shares = 1.

    It fills the engine on which what it looks at is least, so that this is equal on all that are used: requests that
    run (`shortest_queue`, and `prefix_affine`, where nothing is shared), share of KV cache (`least_kv`), seconds of a
    request (`earliest_finish`). ``round_robin`` looks at nothing.

    Args:
        dispatcher: of `EVENED`.
        engines: of E kinds: share of the group's requests → `Running`.
        counts: of each kind.
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
    # Where all together cannot serve the group, each gets what it can in proportion, and is overloaded.
    found = found / total if total > 0 else np.full(len(number), 1.0 / number.sum())
    return np.asarray(found, dtype=float)


def _looked_at(dispatcher: str, engine: Running) -> float:
    if dispatcher == "least_kv":
        return engine.kv
    if dispatcher == "earliest_finish":
        return float(np.mean(engine.e2e_s[None]))
    return engine.running
