"""The online batch controllers of the dynamic-batching paper: one call of `step` per scheduling interval.

Both are deterministic and know nothing of the engine: they see an `StepObservation` and return the batch limit b_t.

* `MemoryController`: Algorithm 1. While prompts wait and requests decode, b_t = ⌊(η − L₀)/(E l_in + E l_out)⌋, at least
  the decoding requests, at most B_max. L₀ is the buffer of `batch_limits` (see there for the paper's text).
* `SlaController`: Algorithm 2, a noisy binary search for the largest batch whose decode latency stays within
  D_SLA ± ε_D: α keeps the bracket open, δ lets it drift after the load.
* `CombinedController`: b* = min(b_mem, b_SLA) (§III-B). `StaticController`: vLLM's fixed limit.

Two slips of Algorithm 2 as printed are mended: b_high may exceed B_max in line 6 and b_low may exceed b_high after
line 9, and both are clipped (the returned b_t is clipped in the paper as well).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from optmodels.errors import InputError, Mistake, Mistakes
from optmodels.latency.batch_limits import LengthMoments, b_mem_linear, b_mem_normal, buffer_tokens


@dataclass(frozen=True)
class StepObservation:
    """Report of the engine at a scheduling interval.

    Attributes:
        waiting: Requests whose prefill is pending, N^p.
        decoding: Requests decoding, N^d.
        mean_input_tokens: Current average prompt length.
        mean_output_tokens: Current average (expected) output length.
        decode_latency_s: Recent average time of a decode step, None before the first.
        decode_batch: Recent average decode batch.
    """

    waiting: int
    decoding: int
    mean_input_tokens: float = 0.0
    mean_output_tokens: float = 0.0
    decode_latency_s: float | None = None
    decode_batch: float | None = None


class Controller(Protocol):
    """Anything that sets the batch limit."""

    def step(self, seen: StepObservation) -> int:
        """The batch limit of the next interval."""
        ...


def _bounds(b_min: int, b_max: int) -> None:
    if not 1 <= b_min <= b_max:
        raise InputError(Mistake(None, "b_min, b_max", (b_min, b_max), "1 ≤ b_min ≤ b_max"))


class StaticController:
    """A fixed batch limit, the baseline."""

    def __init__(self, batch: int) -> None:
        _bounds(1, batch)
        self.batch = batch

    def step(self, seen: StepObservation) -> int:
        """The fixed limit."""
        return max(self.batch, seen.decoding)


class MemoryController:
    """Algorithm 1.

    Args:
        capacity_tokens: η. epsilon: ε_M. b_max: hard upper limit.
        lengths: Distribution from which L₀ is computed offline.
        initial: b₀; default the normal b_mem.

    Raises:
        InputError: bad η, ε or b_max.
    """

    def __init__(
        self, capacity_tokens: float, epsilon: float, lengths: LengthMoments, *, b_max: int = 1024,
        initial: int | None = None,
    ) -> None:  # fmt: skip
        _bounds(1, b_max)
        self.capacity_tokens = capacity_tokens
        self.b_max = b_max
        start = b_mem_normal(lengths, capacity_tokens, epsilon)
        self.reserve_tokens = buffer_tokens(lengths, start, epsilon)
        self.batch = min(max(1, initial if initial is not None else start), b_max)

    def step(self, seen: StepObservation) -> int:
        """b_t; unchanged while nothing waits or nothing decodes."""
        if seen.decoding > 0 and seen.waiting > 0 and seen.mean_input_tokens + seen.mean_output_tokens > 0:
            mean = seen.mean_input_tokens + seen.mean_output_tokens
            b = b_mem_linear(mean, self.capacity_tokens, self.reserve_tokens)
            self.batch = min(max(b, seen.decoding, 1), self.b_max)
        return self.batch


class SlaController:
    """Algorithm 2.

    Args:
        limit_s: D_SLA. tolerance_s: ε_D. b_min, b_max: search space.
        alpha: least width of the bracket. delta: drift of its far end.

    Raises:
        InputError: a limit that is not positive, negative tolerance, α or δ below 1, bad bounds.
    """

    def __init__(
        self, limit_s: float, *, tolerance_s: float = 0.002, b_min: int = 1, b_max: int = 1024, alpha: int = 16,
        delta: int = 4,
    ) -> None:  # fmt: skip
        _bounds(b_min, b_max)
        wrong = Mistakes()
        if not (math.isfinite(limit_s) and limit_s > 0):
            wrong.add("limit_s", limit_s, "a finite number > 0 s")
        if not tolerance_s >= 0:
            wrong.add("tolerance_s", tolerance_s, "a number ≥ 0 s")
        if alpha < 1 or delta < 1:
            wrong.add("alpha, delta", (alpha, delta), "whole numbers ≥ 1")
        wrong.raise_any()
        self.limit_s, self.tolerance_s = limit_s, tolerance_s
        self.b_min, self.b_max, self.alpha, self.delta = b_min, b_max, alpha, delta
        self.low, self.high = b_min, b_max

    def step(self, seen: StepObservation) -> int:
        """b_t: the middle of the bracket after this interval's evidence."""
        if seen.decode_latency_s is not None and seen.decode_batch is not None:
            batch, low, high = math.floor(seen.decode_batch), self.low, self.high
            if seen.decode_latency_s > self.limit_s + self.tolerance_s:
                self.high = max(batch, low + self.alpha)
                self.low = max(low - self.delta, self.b_min)
            elif seen.decode_latency_s < self.limit_s - self.tolerance_s:
                self.low = min(batch, high - self.alpha)
                self.high = min(high + self.delta, self.b_max)
            else:
                self.high = min(batch + self.alpha // 2, self.b_max)
                self.low = max(batch - self.alpha // 2, self.b_min)
            self.high = min(max(self.high, self.b_min), self.b_max)
            self.low = min(max(self.low, self.b_min), self.high)
        return min(max((self.low + self.high) // 2, seen.decoding), self.b_max)


class CombinedController:
    """min(b_mem, b_SLA), §III-B; never below the number that already decode."""

    def __init__(self, memory: Controller, sla: Controller) -> None:
        self.memory, self.sla = memory, sla

    def step(self, seen: StepObservation) -> int:
        """The smaller of the two limits."""
        return min(self.memory.step(seen), self.sla.step(seen))
