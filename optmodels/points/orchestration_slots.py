"""Whole requests in slots, all of them known beforehand: a schedule in which everybody who starts is in time.

A slot serves one request after the other; on configuration c request r takes service_rc seconds at the full-batch rate
and must start between release_r and latest_rc. Who goes where is proposed from outside (`choice`); the rest is repair:

1. *list*: on each configuration, whenever a slot is free, whoever must start first starts; who comes too late is out;
2. *insert*: those that are out, best gain for their GPU-seconds first, into the tightest gap that makes nobody late;
3. *exchange*: somebody out takes the place of one that occupies more GPU-seconds for no more gain, then 2 again.

The number of requests in time is NP-hard to maximise (P | r_j | Σ U_j): this is a heuristic, and what it returns is
feasible, hence a certified lower bound.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numba import njit

ROUNDS = 12
LOSS = 0.1  # of its gain may an exchange cost, as the room it makes is worth more
EPS = 1e-9


@njit(cache=True)
def _settle(seq, begin, limit, length, service, release, latest, c, s, q):  # type: ignore[no-untyped-def]
    """Starts from position q on, and the latest starts that keep all that follow in time, up to it."""
    for k in range(q, length[s]):
        i = seq[s, k]
        at = release[i]
        if k > 0:
            at = max(at, begin[s, k - 1] + service[seq[s, k - 1], c])
        if k > q + 1 and at == begin[s, k]:
            break
        begin[s, k] = at
    for k in range(min(q, length[s] - 1), -1, -1):
        i = seq[s, k]
        at = latest[i, c]
        if k + 1 < length[s]:
            at = min(at, limit[s, k + 1] - service[i, c])
        if k < q - 1 and at == limit[s, k]:
            break
        limit[s, k] = at


@njit(cache=True)
def _from(begin, seq, service, c, s, length, when):  # type: ignore[no-untyped-def]
    """The first position whose request ends after a time."""
    low, high = 0, length[s]
    while low < high:
        middle = (low + high) // 2
        if begin[s, middle] + service[seq[s, middle], c] > when:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True)
def _listed(release, latest, service, choice, kind, begin, seq, length, where):  # type: ignore[no-untyped-def]
    """Step 1; whether the rows of `seq` were long enough."""
    C = service.shape[1]
    order = np.argsort(release, kind="mergesort")
    for c in range(C):
        idle = [np.int64(0) for _ in range(0)]
        for k in np.flatnonzero(kind == c):
            heappush(idle, k)
        busy = [(0.0, np.int64(0)) for _ in range(0)]
        waiting = [(0.0, np.int64(0)) for _ in range(0)]
        at = 0
        now = 0.0
        while True:
            while at < len(order) and (choice[order[at]] != c or release[order[at]] <= now):
                i = order[at]
                if choice[i] == c:
                    heappush(waiting, (latest[i, c], np.int64(i)))
                at += 1
            while len(busy) > 0 and busy[0][0] <= now:
                heappush(idle, heappop(busy)[1])
            while len(waiting) > 0 and len(idle) > 0:
                last, i = heappop(waiting)
                if last < now:
                    continue
                s = heappop(idle)
                if length[s] + 1 >= seq.shape[1]:
                    return False
                seq[s, length[s]] = i
                begin[s, length[s]] = now
                length[s] += 1
                where[i] = s
                heappush(busy, (now + service[i, c], s))
            coming = release[order[at]] if at < len(order) else np.inf
            freed = busy[0][0] if len(busy) > 0 and len(waiting) > 0 else np.inf
            if coming == np.inf and freed == np.inf:
                break
            now = min(coming, freed)
    return True


@njit(cache=True)
def _gap(i, release, latest, service, cost, kind, seq, begin, limit, length):  # type: ignore[no-untyped-def]
    """Slot and position where a request costs fewest GPU-seconds, idle ones that nobody can use included; −1: none."""
    best, best_s, best_q = np.inf, -1, -1
    r = release[i]
    for s in range(len(kind)):
        c = kind[s]
        p, last = service[i, c], latest[i, c]
        if not r <= last or p * cost[c] >= best or length[s] == seq.shape[1]:
            continue
        for q in range(_from(begin, seq, service, c, s, length, r), length[s] + 1):
            before = begin[s, q - 1] + service[seq[s, q - 1], c] if q > 0 else 0.0
            start = max(r, before)
            if start > last:
                break
            if q < length[s] and start + p > limit[s, q]:
                continue
            idle = start - before
            if q < length[s]:
                idle += max(0.0, begin[s, q] - start - p)
            if (p + idle) * cost[c] < best:
                best, best_s, best_q = (p + idle) * cost[c], s, q
    return best_s, best_q


@njit(cache=True)
def _exchange(i, release, latest, service, gain, cost, kind, seq, begin, limit, length):  # type: ignore[no-untyped-def]
    """Slot and position of the one whose place frees most GPU-seconds; −1: none."""
    best, best_s, best_q = EPS, -1, -1
    r = release[i]
    for s in range(len(kind)):
        c = kind[s]
        p, last = service[i, c], latest[i, c]
        if not r <= last:
            continue
        for q in range(_from(begin, seq, service, c, s, length, r), length[s]):
            start = max(r, begin[s, q - 1] + service[seq[s, q - 1], c]) if q > 0 else r
            if start > last:
                break
            j = seq[s, q]
            saved = (service[j, c] - p) * cost[c]
            if saved <= best or gain[i] < (1 - LOSS) * gain[j]:
                continue
            if q + 1 < length[s] and start + p > limit[s, q + 1]:
                continue
            best, best_s, best_q = saved, s, q
    return best_s, best_q


@njit(cache=True)
def schedule(release, latest, service, gain, choice, kind, cost, rounds):  # type: ignore[no-untyped-def]
    """Slot and start of every request; −1 and infinity: refused.

    Args:
        release: (n,) arrival, seconds.
        latest: (n, C) latest start in time; −inf: never.
        service: (n, C) seconds in a slot.
        gain: (n,) of serving it in time, > 0.
        choice: (n,) configuration that a request is meant for; −1: none.
        kind: (S,) configuration of each slot.
        cost: (C,) GPUs of a slot.
        rounds: of exchanges, at most.
    """
    n, S = len(release), len(kind)
    width = 16
    while width < 4 * (n // max(S, 1)):
        width *= 2
    while True:
        seq = np.zeros((S, width), np.int32)
        begin, limit = np.zeros((S, width)), np.zeros((S, width))
        length, where = np.zeros(S, np.int64), np.full(n, -1, np.int64)
        if _listed(release, latest, service, choice, kind, begin, seq, length, where):
            break
        width *= 2
    for s in range(S):
        for q in range(length[s] - 1, -1, -1):
            i = seq[s, q]
            limit[s, q] = latest[i, kind[s]]
            if q + 1 < length[s]:
                limit[s, q] = min(limit[s, q], limit[s, q + 1] - service[i, kind[s]])
    worth = np.zeros(n)
    for i in range(n):
        least = np.inf
        for c in range(service.shape[1]):
            if release[i] <= latest[i, c]:
                least = min(least, service[i, c] * cost[c])
        worth[i] = gain[i] / max(least, EPS) if least < np.inf else -1.0
    order = np.argsort(-worth, kind="mergesort")
    total, best = 0.0, -1.0
    kept_where, kept_start = where.copy(), np.full(n, np.inf)
    for turn in range(rounds + 1):
        for i in order:
            if where[i] < 0 and worth[i] > 0:
                s, q = _gap(i, release, latest, service, cost, kind, seq, begin, limit, length)
                if s >= 0:
                    for k in range(length[s], q, -1):
                        seq[s, k], begin[s, k], limit[s, k] = seq[s, k - 1], begin[s, k - 1], limit[s, k - 1]
                    seq[s, q] = i
                    length[s] += 1
                    where[i] = s
                    _settle(seq, begin, limit, length, service, release, latest, kind[s], s, q)
        total = 0.0
        for i in range(n):
            if where[i] >= 0:
                total += gain[i]
        if total <= best + EPS:
            break
        best = total
        kept_where[:] = where
        for s in range(S):
            for q in range(length[s]):
                kept_start[seq[s, q]] = begin[s, q]
        if turn == rounds:
            break
        changed = False
        for i in order:
            if where[i] < 0 and worth[i] > 0:
                s, q = _exchange(i, release, latest, service, gain, cost, kind, seq, begin, limit, length)
                if s >= 0:
                    where[seq[s, q]] = -1
                    seq[s, q] = i
                    where[i] = s
                    _settle(seq, begin, limit, length, service, release, latest, kind[s], s, q)
                    changed = True
        if not changed:
            break
    for i in range(n):
        if kept_where[i] < 0:
            kept_start[i] = np.inf
    return kept_where, kept_start
