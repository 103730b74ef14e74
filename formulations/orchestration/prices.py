"""How many whole requests given slots can serve in time, at most: prices of slots over time (Lagrangian duality).

Every request has its own arrival, deadline and service; only that slots are taken by whole requests, one after the
other, is relaxed: mean requests in slots ≤ slots, in every bin. Whatever the prices π_cb ≥ 0 of a slot-second,

    in time ≤ Σ_cb π_cb·slots_c·Δ + Σ_r max(0, 1 − min_{c, s} ∫_s^{s + service_rc} π_c),    release_r ≤ s ≤ latest_rc,

so every step of the subgradient method gives a bound. The integral is piecewise linear in s, with corners where s or
s + service meets an edge of a bin. A request's choice at the last prices states where it should go.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from optmodels.arrays import Array, Ints

BINS_PER_SERVICE, MOST_BINS = 8, 20_000
STEPS, LEAST_STEPS, MOST_CHOICES = 300, 60, 2_000_000  # subgradient steps; requests × steps


def most_in_time(
    release: Array, latest: Array, service: Array, slots: Ints, known: int
) -> tuple[float, Ints]:  # fmt: skip
    """An upper bound on requests in time, and the configuration that each of them chooses (−1: none).

    Args:
        release: (n,) arrival, seconds.
        latest: (n, C) latest start in time; −inf: never.
        service: (n, C) seconds in a slot.
        slots: (C,) of each configuration.
        known: starts known to be in time: the target of the steps.
    """
    able = latest >= release[:, None]
    some = able.any(axis=1)
    if not some.any():
        return 0.0, np.full(len(release), -1)
    end = float(np.where(able, latest + service, 0.0).max())
    bin_s = max(float(np.median(service[able])) / BINS_PER_SERVICE, end / MOST_BINS)  # a bound with any width
    if not bin_s > 0:
        return float(some.sum()), np.where(some, able.argmax(axis=1), -1)  # a service of no time takes no slot
    bins = int(end / bin_s) + 2
    steps = int(np.clip(MOST_CHOICES / len(release), LEAST_STEPS, STEPS))
    bound, often = _subgradient(release, latest, service, slots.astype(np.float64), bin_s, bins, steps, float(known))
    choice = np.where(often.sum(axis=1) > 0.5, often.argmax(axis=1), -1)
    return min(bound, float(some.sum())), choice


@njit(cache=True)
def _cost(P, bin_s, s, p):  # type: ignore[no-untyped-def]
    """Price of a slot from s to s + p, P being prices summed up to the edges of the bins."""
    total = 0.0
    for at, sign in ((s / bin_s, -1.0), ((s + p) / bin_s, 1.0)):
        i = min(int(at), len(P) - 2)
        total += sign * (P[i] + min(at - i, 1.0) * (P[i + 1] - P[i]))
    return total


@njit(cache=True)
def _cheapest(P, bin_s, r, last, p):  # type: ignore[no-untyped-def]
    """The least price over starts in [r, last], and the earliest such start."""
    best, when = _cost(P, bin_s, r, p), r
    for edge in range(int(r / bin_s) + 1, int((last + p) / bin_s) + 1):
        for s in (edge * bin_s, edge * bin_s - p):
            if r < s < last:
                cost = _cost(P, bin_s, s, p)
                if cost < best - 1e-12 or (cost < best + 1e-12 and s < when):
                    best, when = cost, s
    cost = _cost(P, bin_s, last, p)
    if cost < best - 1e-12:
        best, when = cost, last
    return best, when


@njit(cache=True)
def _subgradient(release, latest, service, slots, bin_s, bins, steps, target):  # type: ignore[no-untyped-def]
    """The best bound, and how often each request chose each configuration in the second half of the steps."""
    n, C = service.shape
    price, ahead, taken = np.zeros((C, bins)), np.zeros((C, bins)), np.zeros((C, bins))
    P, often = np.zeros((C, bins + 1)), np.zeros((n, C))
    best, length, since = np.inf, 1.0, 0
    for step in range(steps):
        value = 0.0
        for c in range(C):
            for b in range(bins):
                P[c, b + 1] = P[c, b] + price[c, b] * bin_s
                taken[c, b] = 0.0
            value += P[c, bins] * slots[c]
        for i in range(n):
            won, chosen, when = 0.0, -1, 0.0
            for c in range(C):
                if release[i] <= latest[i, c]:
                    cost, s = _cheapest(P[c], bin_s, release[i], latest[i, c], service[i, c])
                    if 1.0 - cost > won:
                        won, chosen, when = 1.0 - cost, c, s
            if chosen < 0:
                continue
            value += won
            if 2 * step >= steps:
                often[i, chosen] += 2.0 / steps
            begin, end = when / bin_s, (when + service[i, chosen]) / bin_s
            for b in range(int(begin), min(int(end), bins - 1) + 1):
                taken[chosen, b] += min(end, b + 1.0) - max(begin, float(b))
        if value < best:
            best, since = value, 0
        else:
            since += 1
            if since == 10:
                length, since = 0.7 * length, 0
        norm = 0.0
        for c in range(C):
            for b in range(bins):
                over = (taken[c, b] - slots[c]) * bin_s
                ahead[c, b] = 0.5 * (ahead[c, b] + over) if step else over
                if price[c, b] > 0 or ahead[c, b] > 0:
                    norm += ahead[c, b] ** 2
        if norm == 0.0 or value <= target:
            break
        for c in range(C):
            for b in range(bins):
                price[c, b] = max(0.0, price[c, b] + length * (value - target) / norm * ahead[c, b])
    return best, often
