"""Requests on given instances without a linear programme: reservations, class by class or bin by bin.

A class's arrivals of a bin start as early as slots allow within their wait, on the slowest configuration that has room
(or the fastest); the rest for the next is whole, so every inequality of the column form holds by construction.
Which class comes first is what matters: orders by value, by haste and by patience are tried, then improved by swaps,
for each model by itself, as models share no instances.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from formulations.orchestration.busy import from_then_on
from formulations.orchestration.clock import Clock
from formulations.orchestration.flow import NO_WAIT_BINS, Assignment, demand, weights
from formulations.orchestration.points import OrchestrationTables
from optmodels.arrays import Array, Ints

Goal = tuple[float, float, float]
SWAPS = 60


def reserve(
    t: OrchestrationTables, counts: Ints, goal: Goal, seed: int = 0, swaps: int = SWAPS, clock: Clock | None = None
) -> Assignment:
    """A good assignment to given instances, in some ten milliseconds.

    Args:
        t: the tables.
        counts: (C,) instances.
        goal: weights of S, T and L.
        seed: random seed of the swaps.
        swaps: tried.
        clock: when it is over, the best found is returned; the first order is tried in any case.
    """
    return _Reservations(t, np.asarray(counts, dtype=np.int64), goal).best(np.random.default_rng(seed), swaps, clock)


class _Reservations:
    def __init__(self, t: OrchestrationTables, counts: Ints, goal: Goal) -> None:
        self.t, self.counts = t, counts
        # On configurations that serve requests whole: reservations of two engines at a time are not made.
        allowed = t.admissible[:, : len(counts)] & (counts > 0)[None, :] & (t.classes.count > 0)[:, None]
        self.k, self.c = k, c = np.ascontiguousarray(np.nonzero(allowed))  # one layout: `_reserve` is compiled once
        self.here = np.unique(k)
        shares = [t.busy(a, b) for a, b in zip(k.tolist(), c.tolist(), strict=True)]
        self.length = np.array([s.shape[1] for s in shares], dtype=np.int64)
        self.share = np.zeros((len(k), int(self.length.max(initial=1)), len(t.capacity)))
        for i, s in enumerate(shares):
            self.share[i, : s.shape[1]] = s.T
        self.after = np.ascontiguousarray(from_then_on(self.share.transpose(0, 2, 1)).transpose(0, 2, 1))
        self.eligible = t.share[k, c]
        wait = t.wait_s[k, c] / t.bin_s
        some = wait >= NO_WAIT_BINS
        self.whole = np.where(some, np.floor(wait + 1e-9), 0).astype(np.int64)
        self.part = np.where(some, np.clip(wait - self.whole, 0.0, 1.0), 0.0)
        w = weights(t)
        self.value = goal[0] * w.satisfaction[k] + goal[1] * w.throughput[k] + goal[2] * (
            w.latency - w.first_token[k, c]
        )  # fmt: skip
        self.late = goal[2] * w.waiting * t.bin_s
        slowest = np.lexsort((-t.service_s[k, c], k))
        fastest = np.lexsort((t.service_s[k, c], k))
        self.preferences = (slowest, fastest)
        self.first = np.searchsorted(k[slowest], np.arange(len(t.classes) + 1))
        self.arrivals, self.one = demand(t)
        self.room = (counts * t.capacity / self.one).T  # (C, R)

    def run(self, blocks: Ints, preference: int) -> tuple[Array, Array, Array]:
        """Starts, stocks, and the gain of each class."""
        T = self.t.bins
        started, waiting = np.zeros((len(self.k), T)), np.zeros((len(self.k), T))
        gained = np.zeros(len(self.t.classes))
        _reserve(
            blocks, self.arrivals, self.preferences[preference], self.first, self.c, self.share, self.after,
            self.length, self.whole, self.part, self.eligible, np.repeat(self.room[:, None, :], T + 1, axis=1),
            self.value, self.late, gained, started, waiting,
        )  # fmt: skip
        return started, waiting, gained

    def blocks(self, order: Ints, by_bin: bool) -> Ints:
        """(class, from bin, to bin) in the order of their turn."""
        T, K = self.t.bins, len(order)
        if not by_bin:
            return np.column_stack((order, np.zeros(K, dtype=np.int64), np.full(K, T)))
        bins = np.repeat(np.arange(T), K)
        return np.column_stack((np.tile(order, T), bins, bins + 1))

    def orders(self) -> list[Ints]:
        """Classes by value for the slot-seconds they take, by seconds allowed per token, by their longest wait."""
        q, K = self.t.classes, len(self.t.classes)
        worth, longest = np.full(K, -np.inf), np.full(K, -np.inf)
        np.maximum.at(worth, self.k, self.value / self.t.service_s[self.k, self.c])
        np.maximum.at(longest, self.k, self.t.wait_s[self.k, self.c])
        keys = (-worth[self.here], (q.deadline_s / q.output_tokens)[self.here], longest[self.here])
        return [self.here[np.argsort(key, kind="stable")] for key in keys]

    def best(self, rng: np.random.Generator, swaps: int, clock: Clock | None = None) -> Assignment:
        """The best found, model by model."""
        t = self.t

        def over() -> bool:
            return clock is not None and clock.over

        started, waiting = np.zeros((len(self.k), t.bins)), np.zeros((len(self.k), t.bins))
        if len(self.k):
            models = [m for m in range(len(t.case.models)) if (t.classes.model[self.here] == m).any()]
            mine = {m: t.classes.model[self.k] == m for m in models}
            score = dict.fromkeys(models, -np.inf)
            way: dict[int, tuple[Ints, bool, int]] = {}

            def attempt(order: Ints, by_bin: bool, preference: int) -> None:
                x, Y, gained = self.run(self.blocks(order, by_bin), preference)
                for m in models:
                    total = float(gained[t.classes.model == m].sum())
                    if total > score[m] + 1e-12:
                        score[m], way[m] = total, (order[t.classes.model[order] == m], by_bin, preference)
                        started[mine[m]], waiting[mine[m]] = x[mine[m]], Y[mine[m]]

            for preference in (0, 1):
                for by_bin in (False, True):
                    for order in self.orders():
                        if not way or not over():
                            attempt(order, by_bin, preference)
            for by_bin, preference in ((False, 0), (False, 1), (True, 0), (True, 1)):
                share = [m for m in models if way[m][1:] == (by_bin, preference)]
                for _ in range(swaps if share else 0):
                    if over():
                        break
                    changed = []
                    for m in share:
                        order = way[m][0].copy()
                        if len(order) > 1:
                            i, j = rng.choice(len(order), 2, replace=False)
                            order[i], order[j] = order[j], order[i]
                        changed.append(order)
                    attempt(np.concatenate(changed), by_bin, preference)
        before = np.hstack((np.zeros((len(self.k), 1)), waiting[:, :-1]))
        admitted = np.maximum(started + waiting - before, 0.0)
        return Assignment(self.counts, self.k, self.c, *(self.one * v for v in (admitted, started, waiting)))


@njit(cache=True)
def _reserve(  # type: ignore[no-untyped-def]
    blocks,
    arrivals,
    order,
    first,
    c,
    share,
    after,
    length,
    whole,
    part,
    eligible,
    free,
    value,
    late,
    gained,
    started,
    waiting,
):
    """Write starts and stocks of (class, from bin, to bin) after (class, from bin, to bin), and the gain of each class.

    `free` holds the free part of every configuration's resources in every bin, `after` the `share` in the one after
    all.
    """
    T = arrivals.shape[1]
    admitted = np.zeros(len(order))  # of the arrivals of one bin, by pair
    for n in range(len(blocks)):
        k = blocks[n, 0]
        longest = 0
        for i in range(first[k], first[k + 1]):
            pair = order[i]
            longest = max(longest, whole[pair] + (1 if part[pair] > 0 else 0))
        for t in range(blocks[n, 1], blocks[n, 2]):
            left = arrivals[k, t]
            for i in range(first[k], first[k + 1]):
                admitted[order[i]] = 0.0
            for later in range(longest + 1):
                s = t + later
                if left <= 1e-12 or s >= T:
                    break
                for i in range(first[k], first[k + 1]):
                    pair = order[i]
                    amount = left
                    if later > whole[pair]:  # the last bin is reached by a part of the arrivals only
                        if later > whole[pair] + 1 or part[pair] <= 0:
                            continue
                        f = min(part[pair], 0.999)
                        amount = min(amount, f / (1 - f) * admitted[pair])
                    for level in range(first[k], first[k + 1]):  # shares that can be in time are nested
                        most = eligible[order[level]]
                        if most < eligible[pair] or most >= 1:
                            continue
                        taken = 0.0
                        for other in range(first[k], first[k + 1]):
                            if eligible[order[other]] <= most:
                                taken += admitted[order[other]]
                        amount = min(amount, most * arrivals[k, t] - taken)
                    conf = c[pair]
                    for o in range(length[pair]):
                        if s + o > T or amount <= 0:
                            break
                        for r in range(share.shape[2]):
                            each = share[pair, o, r] if s + o < T else after[pair, o, r]
                            if each > 0:
                                amount = min(amount, free[conf, s + o, r] / each)
                    if amount <= 1e-12:
                        continue
                    for o in range(length[pair]):
                        if s + o > T:
                            break
                        for r in range(share.shape[2]):
                            each = share[pair, o, r] if s + o < T else after[pair, o, r]
                            free[conf, s + o, r] = max(0.0, free[conf, s + o, r] - amount * each)
                    gained[k] += amount * (value[pair] - late * later)
                    started[pair, s] += amount
                    admitted[pair] += amount
                    for b in range(t, s):
                        waiting[pair, b] += amount
                    left -= amount
                    if left <= 1e-12:
                        break
