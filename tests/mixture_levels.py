"""Levels of an engine that serves requests of several lengths, one by one in plain numbers and by bisection.

They are levels at which requests seldom wait for slots or KV cache, and levels at which they wait for a place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from optmodels.engine import levels
from optmodels.engine.continuous import EngineLimits, levels_of_loads
from optmodels.engine.costs import EngineCosts
from optmodels.plans.engines import Level, Request, at_level, capacities, latencies

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
    full: bool  # slots are what it lacks


class Mixture:
    """An engine and the (prompt, answer, share) of each class; `placed`: requests wait for one of its slots."""

    def __init__(
        self, e: EngineCosts, limits: EngineLimits, lengths: Sequence[tuple[int, int, float]], cached: float = 0.0,
        placed: bool = False,
    ) -> None:  # fmt: skip
        total = sum(f for _, _, f in lengths)
        self.e, self.limits, self.weight = e, limits, [f / total for _, _, f in lengths]
        self.lengths, self.cached, self.placed = lengths, cached, placed
        self.requests = {
            str(w): Request(i, max(i * (1 - cached), 1.0), o, f)
            for w, ((i, o, _), f) in enumerate(zip(lengths, self.weight, strict=True))
        }

    def told(self, slots: int) -> Mixture:
        """The same, told how many requests to run at a time."""
        e, limits = self.e.with_slots(slots), self.limits.model_copy(update={"max_num_seqs": slots})
        return Mixture(e, limits, self.lengths, self.cached)

    def with_places(self) -> Mixture | None:
        """The same, told to run no more at a time than its cache holds of the largest request; None: it holds none."""
        kv = self.e.kv_tokens / self.e.ranks
        whole = [r.prompt + r.output + self.e.costs.drafts for r in self.requests.values()]
        places = min(self.limits.slots, int(kv // max((x for x in whole if x <= kv), default=math.inf)))
        if places < 1:
            return None
        limits = self.limits.model_copy(update={"max_num_seqs": places})
        return Mixture(self.e, limits, self.lengths, self.cached, placed=True)

    def level(self, t: float) -> Level | None:
        return at_level(self.limits, self.e.costs, self.e.kv_tokens, self.requests, t, ranks=self.e.ranks)

    def seen(self, level: Level, t: float, wait: float, most: float | None, which: int, q: float | None) -> float:
        """TTFT, TPOT or E2E of all; `wait` for prefill and for a place."""

        def bound(w: int, g: float | None) -> float:
            r, slots = level.requests[str(w)], self.limits.slots
            return latencies(level, r, t, wait, most, slots, self.e.slower, self.e.costs.request_s, (g, g, g),
                             self.placed)[which]  # fmt: skip

        several = [f if r.output > 1 else 0.0 for f, r in zip(self.weight, level.requests.values(), strict=True)]
        if which == 1 and q is None:
            return smallest(bound, [f / (sum(several) or 1.0) for f in several], None)
        return smallest(bound, self.weight, q)

    def takes(self, level: Level, t: float, wait: float, most: float | None, place: float = 0.0) -> dict[str, float]:
        """What one request/s takes of each capacity; `place`: the wait for one of the slots."""
        each = capacities(level, t, wait, most, self.limits.slots, None, place, self.limits.busiest)
        names = next(iter(each.values()))
        return {n: sum(f * each[str(w)][n] for w, f in enumerate(self.weight)) for n in names}

    def turn(self, level: Level, t: float) -> float:
        """Seconds that the longest prompt keeps the others of its rank from prefill."""
        return max(
            level.ranks * (r.filled * (level.beside(r, t) + level.outside) + r.prefill)
            for r in level.requests.values() if level.can_hold(r)
        )  # fmt: skip

    def lacks_places(self) -> bool:
        """Whether slots or KV cache are what is scarcest on any level."""
        for level, t in ((self.level(t), t) for t in self.steps()):
            if level is not None:
                takes = self.takes(level, t, 1.0, None)
                others = max(takes[row] for row in ("time", "tokens", "chunks"))
                if math.isfinite(others) and max(takes["running"], takes["memory"]) > others:
                    return True
        return False

    def steps(self) -> list[float]:
        """Step times of loads."""
        found: list[float] = levels_of_loads([self.e.costs], levels.loads_of_levels(self.limits.load))[0].tolist()
        return found

    def longest_step(self, fits: Callable[[float], bool | None]) -> list[float]:
        """The longest that fits, a little longer than the longest of `steps` that does; None: no level at all."""
        steps = self.steps()
        of = [fits(t) if self.level(t) is not None else True for t in steps]
        last = max(k for k, x in enumerate(of) if x)
        if last == len(steps) - 1 or (self.level(steps[last]) is None and of[last + 1] is None):
            return []
        low, high = steps[last], steps[last + 1]
        for _ in range(16):
            middle = (low + high) / 2
            low, high = (middle, high) if self.level(middle) is None or fits(middle) else (low, middle)
        return [low]

    def _all_places(self, level: Level) -> float:
        """Share of what full engines serve that one request/s is, where none waits for prefill."""
        if not all(level.can_hold(r) for r in level.requests.values()):
            return math.inf
        return self._of(level, "steps") * level.fixed / (level.ranks * self.limits.slots) + self._of(level, "work")

    def loop(self, users: int, ttft: Limit, tpot: Limit, deadline: Limit) -> Iterator[Row]:
        """The shortest step that so many users do not fill, with the shortest waits, by bisection; limits say at what
        quantiles. Then those where they wait for a place."""  # fmt: skip

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
        every = [*self.takes(level, t, 1.0, None)]
        others = [row for row in every if not (self.placed and row in ("running", "memory"))]
        for most in (4.0,) if self.placed else (4.0, None):

            def carried(rows: Sequence[str], wait: float, place: float = 0.0, most: float | None = most) -> bool:
                takes = self.takes(level, t, wait, most, place)
                return max(takes[row] for row in rows) * rate(level) <= 1 + 1e-8

            if not carried(others, 30.0):
                continue
            wait, place = least(partial(carried, others), 0.0, 30.0), 0.0
            if self.placed:
                if wait > 29.9 or not carried(every, wait, 30.0 - wait):
                    continue
                place = least(partial(carried, every, wait), 0.0, 30.0 - wait)
            yield self._row(level, t, wait, most, ttft, tpot, deadline, place)
        if not self.placed and (other := self.with_places()) is not None:
            yield from other.loop(users, ttft, tpot, deadline)

    def _of(self, level: Level, name: str) -> float:
        return sum(f * getattr(r, name) for f, r in zip(self.weight, level.requests.values(), strict=True))

    def rows(
        self, ttft: Limit, tpot: Limit, deadline: Limit = (math.inf, None), queue_s: float = math.inf,
        reach: tuple[float, float] = (math.inf, math.inf),
    ) -> Iterator[Row]:  # fmt: skip
        """Every level within the limits, of every max_num_seqs below which slots are what the engine lacks.

        `reach`: TTFT without waiting and E2E that one more level keeps, the longest that does.
        """
        for slots in self.limits.choices:
            told = self.told(slots)
            if told.e.kv_tokens <= 0:
                return
            found = [*told._rows(ttft, tpot, deadline, queue_s, reach)]
            if told.lacks_places() and (other := told.with_places()) is not None:
                placed = [*other._rows(ttft, tpot, deadline, queue_s, reach)]
                found += [replace(row, full=row.full and other.limits.slots == slots) for row in placed]
            yield from found
            if not any(row.full for row in found):
                return

    def _rows(
        self, ttft: Limit, tpot: Limit, deadline: Limit, queue_s: float, reach: tuple[float, float]
    ) -> Iterator[Row]:
        ways: list[tuple[float | None, float | None]] = [(4.0, None), (None, None)]
        ways = [(4.0, 1.0), (4.0, 4.0)] if self.placed else ways

        @cache
        def waits(t: float, most: float | None, turns: float | None) -> list[float]:
            """For prefill and for a place; none where limits leave none."""
            level = self.level(t)
            if level is None or self.seen(level, t, 0.0, None, 1, tpot[1]) > tpot[0]:
                return []
            longest = self._longest(level, t, most, ttft, deadline, queue_s)
            wait = longest if turns is None else turns * self.turn(level, t)
            return [wait, longest - wait] if longest > 0 and (turns is None or longest > wait) else []

        def fits(t: float, at: tuple[float, float], most: float | None, turns: float | None) -> bool | None:
            """Whether time is scarcest, with TTFT and E2E like this."""
            level = self.level(t)
            if level is None or not (both := waits(t, most, turns)):
                return None
            takes = self.takes(level, t, both[0], most, both[1])
            if max(takes.values()) > max(takes["time"], takes["chunks"]) * (1 + 1e-8):
                return False
            seen = ((0.0, 0, ttft[1]), (sum(both), 2, deadline[1]))
            return all(
                math.isinf(x) or self.seen(level, t, wait, most, which, q) <= x
                for x, (wait, which, q) in zip(at, seen, strict=True)
            )

        more = [
            t for most, turns in ways for at in {(math.inf, math.inf), reach}
            for t in self.longest_step(partial(fits, at=at, most=most, turns=turns))
        ]  # fmt: skip
        for most, turns in ways:
            for t in [*self.steps(), *more]:
                level = self.level(t)
                if level is not None and (both := waits(t, most, turns)):
                    row = self._row(level, t, both[0], most, ttft, tpot, deadline, both[1])
                    if row.rate > 0:
                        yield row

    def _longest(
        self, level: Level, t: float, most: float | None, ttft: Limit, deadline: Limit, queue_s: float
    ) -> float:  # fmt: skip
        """The longest wait within the limits, by bisection; 0 where none is."""
        first = self.seen(level, t, 0.0, most, 0, ttft[1])

        def within(wait: float) -> bool:
            return self.seen(level, t, wait, most, 0, ttft[1]) <= min(ttft[0], first + queue_s) and (
                math.isinf(deadline[0]) or self.seen(level, t, wait, most, 2, deadline[1]) <= deadline[0]
            )

        low, high = 0.0, 30.0
        if within(high):
            return high
        for _ in range(36):
            middle = (low + high) / 2
            low, high = (middle, high) if within(middle) else (low, middle)
        return low if low > 1e-9 else 0.0

    def _row(
        self, level: Level, t: float, wait: float, most: float | None, ttft: Limit, tpot: Limit, deadline: Limit,
        place: float,
    ) -> Row:  # fmt: skip
        takes = self.takes(level, t, wait, most, place)
        rate, all_s = 1 / max(takes.values()), wait + place
        steps, work = self._of(level, "steps"), self._of(level, "work")
        first, later, each, whole, late = (
            self.seen(level, t, w, most, which, q)
            for w, which, q in ((0.0, 0, ttft[1]), (all_s, 0, ttft[1]), (all_s, 1, tpot[1]), (all_s, 2, None),
                                (all_s, 2, deadline[1]))
        )  # fmt: skip
        running = rate * steps * level.fixed / (1 - rate * work)
        return Row(rate, running, first, later, each, whole, late, takes["running"] * rate > 1 - 1e-9)
