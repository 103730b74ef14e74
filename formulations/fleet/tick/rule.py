"""Base stock at the lead time with bridging: the optimal counts of one machine type on a path of needs, by levels.

Level k is the k-th machine at a time. It is served by a machine that exists, from b_k on, or by one that has to be
ordered and is then ready L ticks later at the earliest. It runs wherever the need is at least k, and stays through a
gap of g ticks if and only if

    g ≤ L + D + (S + E)/C        (between needs)        g ≤ D + E/C        (after the last need, up to the horizon)

where D is draining, S and E are USD of a start and a stop and C is USD a tick. Of the machines that exist each level
gets the last one that arrives before its first need: it costs nothing until then. An arrival that no level needs takes
the place of a machine that would idle in a gap. The constraints n_t ≥ need_t are an
interval matrix and the b_k grow with k, so the levels are independent: no plan that covers as much costs less.
`tests/fleet/test_tick.py` compares with the MILP.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optmodels.arrays import Ints


@dataclass(frozen=True)
class Lead:
    """Times in ticks and costs of one machine type.

    Attributes:
        start: whole ticks from the order until it is ready.
        bridge: longest gap that is bridged.
        tail: longest rest of the horizon that is.
    """

    start: int
    bridge: float
    tail: float


def lead_of(start: int, drain: float, start_usd: float, stop_usd: float, usd_a_tick: float) -> Lead:
    """Times of a machine type; a machine without a price is never stopped."""
    if usd_a_tick <= 0:
        return Lead(start, np.inf, np.inf)
    end = drain + stop_usd / usd_a_tick
    return Lead(start, start + end + start_usd / usd_a_tick, end)


def counts(need: Ints, ready: int, arriving: Ints, lead: Lead) -> tuple[Ints, Ints]:
    """Machines in each tick and orders of each tick, both (H,).

    Args:
        need: machines needed in each tick, (H,).
        ready: machines that run before the first tick.
        arriving: machines on their way by the tick in which they are ready, (H,).
        lead: times of the type.
    """
    H = len(need)
    known = np.concatenate([np.zeros(ready, dtype=np.int64), np.repeat(np.arange(H), arriving)])
    found, orders = np.zeros(H, dtype=np.int64), np.zeros(H, dtype=np.int64)
    begins, needed = _begins(need, known)
    gaps: list[list[int]] = []  # first tick without need, next tick with it, whether it is bridged
    for level in range(1, max(int(need.max(initial=0)), len(begins)) + 1):
        there = level <= len(known)
        begin = int(begins[level - 1]) if there else lead.start
        runs_to = begin if there else None  # the tick after the last one that it runs in
        for t in (begin + np.flatnonzero(need[begin:] >= level)).tolist():
            bridged = runs_to is not None and t - runs_to <= lead.bridge
            if runs_to is not None and t > runs_to:
                gaps.append([runs_to, t, int(bridged)])
            if bridged:
                found[runs_to:t] += 1
            else:
                orders[t - lead.start] += 1
            found[t] += 1
            runs_to = t + 1
        if runs_to is not None and H - runs_to <= lead.tail:
            found[runs_to:] += 1
    for at in begins[needed:].tolist() if gaps else ():  # arrivals that no level needs serve in place of one in a gap
        if at == 0 or H - at <= lead.tail:
            continue
        worth = [at - s if bridged else lead.bridge - (e - at) for s, e, bridged in gaps]
        able = [i for i, (s, e, _) in enumerate(gaps) if s < at <= e and worth[i] > 0]
        if able:
            gap = gaps[max(able, key=worth.__getitem__)]
            if gap[2]:
                found[gap[0] : at] -= 1
            else:
                orders[gap[1] - lead.start] -= 1
                found[at : gap[1]] += 1
            gap[0], gap[2] = at, 1
    return found, orders


def _begins(need: Ints, known: Ints) -> tuple[Ints, int]:
    """The tick in which the machine of each level is ready, (T,), and how many levels need one.

    Machines that no level needs come last.
    """
    T = len(known)
    first = np.full(T, -1, dtype=np.int64)
    for k in range(T):
        wanted = np.flatnonzero(need[known[k] :] > k)
        first[k] = known[k] + wanted[0] if len(wanted) else -1
    free = np.ones(T, dtype=bool)
    begins = np.full(T, -1, dtype=np.int64)
    last = T
    for k in range(T - 1, -1, -1):
        if first[k] >= 0:
            last = min(last, int(np.searchsorted(known, first[k], side="right"))) - 1
            begins[k], free[last] = known[last], False
    needed = int((begins >= 0).sum())
    begins[begins < 0] = known[free]
    return begins, needed
