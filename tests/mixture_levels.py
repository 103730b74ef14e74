"""Levels of an engine that serves requests of several lengths, one by one in plain numbers and by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from scipy.optimize import brentq

from optmodels.plan.engines import Level, Request, at_level, capacities, latencies
from optmodels.serving import levels
from optmodels.serving.continuous import EngineLimits, levels_of_loads
from optmodels.serving.engine import EngineCosts

SHARES = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
Limit = tuple[float, float | None]  # seconds, and the share of all requests that keep them; None: their mean


def smallest(bound: Callable[[int, float | None], float], weight: Sequence[float], q: float | None) -> float:
    """B(q): every bound of every class tried, the smallest within which there are enough."""
    if q is None:
        return sum(f * bound(w, None) for w, f in enumerate(weight))
    if len(weight) == 1:
        return bound(0, q)
    within = [0.0] * len(weight)  # of each class, by the bounds tried so far
    for x, w, g in sorted((bound(w, g), w, g) for w in range(len(weight)) for g in {*SHARES, q}):
        within[w] = max(within[w], g)
        if sum(f * each for f, each in zip(weight, within, strict=True)) >= q * (1 - 1e-9):
            return x
    raise AssertionError("every class is within its bound at q")


@dataclass(frozen=True)
class Row:
    """A level: requests/s, requests in flight, and what all requests see."""

    rate: float
    running: float
    first_s: float
    ttft_s: float
    tpot_s: float
    e2e_s: float
    deadline_s: float


class Mixture:
    """An engine and the (prompt, answer, share) of each class."""

    def __init__(
        self, e: EngineCosts, limits: EngineLimits, lengths: Sequence[tuple[int, int, float]], cached: float = 0.0
    ) -> None:
        total = sum(f for _, _, f in lengths)
        self.e, self.limits, self.weight = e, limits, [f / total for _, _, f in lengths]
        self.requests = {
            str(w): Request(i, max(i * (1 - cached), 1.0), o, f)
            for w, ((i, o, _), f) in enumerate(zip(lengths, self.weight, strict=True))
        }

    def level(self, t: float) -> Level | None:
        return at_level(self.limits, self.e.costs, self.e.kv_tokens, self.requests, t, ranks=self.e.ranks)

    def seen(self, level: Level, t: float, wait: float, most: float | None, which: int, q: float | None) -> float:
        """TTFT, TPOT or E2E of all."""

        def bound(w: int, g: float | None) -> float:
            r, slots = level.requests[str(w)], self.limits.slots
            return latencies(level, r, t, wait, most, slots, self.e.slower, self.e.costs.request_s, (g, g, g))[which]

        several = [f if r.output > 1 else 0.0 for f, r in zip(self.weight, level.requests.values(), strict=True)]
        if which == 1 and q is None:
            return smallest(bound, [f / (sum(several) or 1.0) for f in several], None)
        return smallest(bound, self.weight, q)

    def takes(self, level: Level, t: float, wait: float, most: float | None) -> dict[str, float]:
        each = capacities(level, t, wait, most, self.limits.slots)
        names = next(iter(each.values()))
        return {n: sum(f * each[str(w)][n] for w, f in enumerate(self.weight)) for n in names}

    def steps(self, tpot: Limit) -> list[float]:
        """Step times of loads, and the best one."""
        c = self.e.costs
        steps = levels_of_loads([c], levels.LOADS)[0].tolist()

        def beyond(t: float) -> float:
            level = self.level(t)
            if level is None:
                return -1.0
            takes = self.takes(level, t, 1.0, None)
            room = max(takes[row] / takes["time"] for row in ("running", "memory", "tokens"))
            return max(self.seen(level, t, 0.0, None, 1, tpot[1]) / tpot[0], room) - 1

        kept = max(t for t in (c.fixed_s, *steps) if beyond(t) <= 0)
        after = min((t for t in steps if t > kept), default=None)
        if after is None or (beyond(kept) == -1.0 and math.isinf(beyond(after))):
            return steps
        return [*steps, brentq(beyond, kept, after) * (1 - 1e-9)]

    def loop(self, users: int, ttft: Limit, tpot: Limit, deadline: Limit) -> Iterator[Row]:
        """The shortest step that so many users do not fill, with the shortest waits, by bisection; limits say at what
        quantiles."""  # fmt: skip

        def least(enough: Callable[[float], bool], low: float, high: float) -> float:
            for _ in range(60):
                middle = (low + high) / 2
                low, high = (low, middle) if enough(middle) else (middle, high)
            return high

        def rate(level: Level) -> float:
            steps, work = self._of(level, "steps"), self._of(level, "work")
            return users / (steps * level.fixed + users * work)

        def enough(t: float) -> bool:
            level = self.level(t)
            return level is not None and t >= level.fixed + users * self._of(level, "work") / self._of(level, "steps")

        longest = self.e.costs.fixed_s
        while not enough(longest):
            longest *= 2
        t = least(enough, self.e.costs.fixed_s, longest) * (1 + 1e-9)
        level = self.level(t)
        assert level is not None
        for most in (4.0, None):

            def carried(wait: float, most: float | None = most) -> bool:
                return max(self.takes(level, t, wait, most).values()) * rate(level) <= 1 + 1e-8

            if carried(30.0):
                yield self._row(level, t, least(carried, 0.0, 30.0), most, ttft, tpot, deadline)

    def _of(self, level: Level, name: str) -> float:
        return sum(f * getattr(r, name) for f, r in zip(self.weight, level.requests.values(), strict=True))

    def rows(
        self, ttft: Limit, tpot: Limit, deadline: Limit = (math.inf, None), queue_s: float = math.inf
    ) -> Iterator[Row]:  # fmt: skip
        """Every level within the limits."""
        for t in self.steps(tpot):
            level = self.level(t)
            if level is None or self.seen(level, t, 0.0, None, 1, tpot[1]) > tpot[0]:
                continue
            for most in (4.0, None):
                longest = self._longest(level, t, most, ttft, deadline, queue_s)
                if longest > 0 and math.isfinite(max(self.takes(level, t, longest, most).values())):
                    yield self._row(level, t, longest, most, ttft, tpot, deadline)

    def _longest(
        self, level: Level, t: float, most: float | None, ttft: Limit, deadline: Limit, queue_s: float
    ) -> float:  # fmt: skip
        """The longest wait within the limits, by bisection; 0 where none is."""
        first = self.seen(level, t, 0.0, most, 0, ttft[1])

        def within(wait: float) -> bool:
            return (
                self.seen(level, t, wait, most, 0, ttft[1]) <= min(ttft[0], first + queue_s)
                and self.seen(level, t, wait, most, 2, deadline[1]) <= deadline[0]
            )

        low, high = 0.0, 30.0
        if within(high):
            return high
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if within(middle) else (low, middle)
        return low if low > 1e-9 else 0.0

    def _row(
        self, level: Level, t: float, wait: float, most: float | None, ttft: Limit, tpot: Limit, deadline: Limit
    ) -> Row:  # fmt: skip
        rate = 1 / max(self.takes(level, t, wait, most).values())
        steps, work = self._of(level, "steps"), self._of(level, "work")
        first, later, each, whole, late = (
            self.seen(level, t, w, most, which, q)
            for w, which, q in ((0.0, 0, ttft[1]), (wait, 0, ttft[1]), (wait, 1, tpot[1]), (wait, 2, None),
                                (wait, 2, deadline[1]))
        )  # fmt: skip
        return Row(rate, rate * steps * level.fixed / (1 - rate * work), first, later, each, whole, late)
