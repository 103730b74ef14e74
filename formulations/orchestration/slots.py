"""Whole requests in slots, all of them known beforehand: a schedule in which everybody who starts is in time.

A slot serves one request after the other; on configuration c request r takes service_rc seconds at the full-batch rate
and must start between release_r and latest_rc. Who goes where is proposed from outside (`choice`); the rest is repair:

1. *list*: on each configuration, whenever a slot is free, the one who must start first starts; who comes too late is
out; 2. *fill*: those that are out, best gain for their GPU-seconds first, into the tightest gap that makes none late;
3. *renew*: around a refused request a few slots are emptied for as long as its service could last, and filled in
   another order; kept if that gains, or gains as much in fewer GPU-seconds.

The number of requests in time is NP-hard to maximise (P | r_j | Σ U_j): this is a heuristic, and its result is
feasible, hence a certified lower bound.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np
from numba import njit

from optmodels.arrays import Array, Ints

EPS = 1e-9
AT_ONCE = 6  # slots emptied together
MANY = 200  # requests to be sorted
BETWEEN = 25  # tries between two looks at the time
NOISE = 0.3  # of the spread of whatever orders them


def schedule(
    release: Array, latest: Array, service: Array, gain: Array, choice: Ints, kind: Ints, cost: Array, tries: int,
    seed: int = 0, over: Callable[[], bool] = lambda: False,
) -> tuple[Ints, Array]:  # fmt: skip
    """Slot and start of every request; −1 and infinity: refused.

    Args:
        release: (n,) arrival, seconds, ascending.
        latest: (n, C) latest start in time; −inf: never.
        service: (n, C) seconds in a slot.
        gain: (n,) of serving it in time, > 0.
        choice: (n,) configuration that a request is meant for; −1: none.
        kind: (S,) configuration of each slot.
        cost: (C,) GPUs of a slot.
        tries: tries of step 3.
        seed: random seed of them.
        over: whether to stop trying.
    """
    n, S = len(release), len(kind)
    able = latest >= release[:, None]
    worth = gain / np.maximum(np.where(able, service * cost, np.inf).min(axis=1), EPS)
    width = 16 + 4 * (n // max(S, 1))
    while True:
        state = (np.zeros((S, width), np.int64), np.zeros((S, width)), np.zeros((S, width)), np.zeros(S, np.int64))
        where = np.full(n, -1)
        if _list(release, latest, service, choice, kind, *state, where):
            break
        width *= 2  # some slots serve more requests than others
    given = (release, latest, service, gain, cost, kind)
    out = np.flatnonzero(able.any(axis=1) & (where < 0))
    _fill(out[np.argsort(-worth[out], kind="stable")], *given, *state, where)
    rng = np.random.default_rng(seed)
    while tries > 0 and not over() and len(out := np.flatnonzero(able.any(axis=1) & (where < 0))):
        some = rng.permutation(out)[:tries]
        draws = rng.random((len(some), AT_ONCE + 1))
        for at in range(0, len(some), BETWEEN):
            if not over():
                _renew(some[at : at + BETWEEN], draws[at : at + BETWEEN], *given, worth, *state, where)
        tries -= len(some)
    seq, begin, _, length = state
    used = np.arange(width) < length[:, None]
    start = np.full(n, np.inf)
    start[seq[used]] = begin[used]
    return where, start


# State of the slots: seq (S, width) who, begin (S, width) from when on, limit (S, width) the latest start that keeps
# all that follow in time, length (S,) how many; where (n,) slot of each request.


@njit(cache=True)
def _list(release, latest, service, choice, kind, seq, begin, limit, length, where):  # type: ignore[no-untyped-def]
    """Step 1; whether the rows were long enough."""
    n = len(release)
    for c in range(service.shape[1]):
        idle = [np.int64(0) for _ in range(0)]
        for k in range(len(kind)):
            if kind[k] == c:
                heappush(idle, np.int64(k))
        busy = [(0.0, np.int64(0)) for _ in range(0)]
        waiting = [(0.0, np.int64(0)) for _ in range(0)]
        at, now = 0, 0.0
        while True:
            while at < n and (choice[at] != c or release[at] <= now):
                if choice[at] == c:
                    heappush(waiting, (latest[at, c], np.int64(at)))
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
            following = np.inf
            if at < n:
                following = release[at]
            if len(busy) > 0 and len(waiting) > 0:
                following = min(following, busy[0][0])
            if following == np.inf:
                break
            now = following
    for k in range(len(kind)):
        _limits(k, kind[k], latest, service, seq, limit, length)
    return True


@njit(cache=True)
def _limits(s, c, latest, service, seq, limit, length):  # type: ignore[no-untyped-def]
    """The latest starts of a whole slot."""
    for q in range(length[s] - 1, -1, -1):
        limit[s, q] = latest[seq[s, q], c]
        if q + 1 < length[s]:
            limit[s, q] = min(limit[s, q], limit[s, q + 1] - service[seq[s, q], c])


@njit(cache=True)
def _gap(i, release, latest, service, cost, kind, seq, begin, limit, length):  # type: ignore[no-untyped-def]
    """Slot and position where a request costs fewest GPU-seconds, idle ones without a use included; −1: none."""
    best, best_s, best_q = np.inf, -1, -1
    r = release[i]
    for s in range(len(kind)):
        c = kind[s]
        p, last = service[i, c], latest[i, c]
        if r > last or p * cost[c] >= best or length[s] == seq.shape[1]:
            continue
        low, high = 0, length[s]
        while low < high:  # the first that ends after the arrival
            middle = (low + high) // 2
            if begin[s, middle] + service[seq[s, middle], c] > r:
                high = middle
            else:
                low = middle + 1
        for q in range(low, length[s] + 1):
            before = 0.0
            if q > 0:
                before = begin[s, q - 1] + service[seq[s, q - 1], c]
            start = max(r, before)
            if start > last:
                break
            idle = start - before
            if q < length[s]:
                if start + p > limit[s, q]:
                    continue
                idle += max(0.0, begin[s, q] - start - p)
            if (p + idle) * cost[c] < best:
                best, best_s, best_q = (p + idle) * cost[c], s, q
    return best_s, best_q


@njit(cache=True)
def _put(i, s, q, release, latest, service, kind, seq, begin, limit, length):  # type: ignore[no-untyped-def]
    """Into a slot before position q: who follows starts later, who comes before must not."""
    c = kind[s]
    for k in range(length[s], q, -1):
        seq[s, k], begin[s, k], limit[s, k] = seq[s, k - 1], begin[s, k - 1], limit[s, k - 1]
    seq[s, q] = i
    length[s] += 1
    for k in range(q, length[s]):
        at = release[seq[s, k]]
        if k > 0:
            at = max(at, begin[s, k - 1] + service[seq[s, k - 1], c])
        if k > q and at == begin[s, k]:
            break
        begin[s, k] = at
    for k in range(q, -1, -1):
        at = latest[seq[s, k], c]
        if k + 1 < length[s]:
            at = min(at, limit[s, k + 1] - service[seq[s, k], c])
        if k < q and at == limit[s, k]:
            break
        limit[s, k] = at


@njit(cache=True)
def _fill(order, release, latest, service, gain, cost, kind, seq, begin, limit, length, where):  # type: ignore[no-untyped-def]
    """Step 2; the gain of requests that found room."""
    total = 0.0
    for i in order:
        s, q = _gap(i, release, latest, service, cost, kind, seq, begin, limit, length)
        if s >= 0:
            _put(i, s, q, release, latest, service, kind, seq, begin, limit, length)
            where[i] = s
            total += gain[i]
    return total


@njit(cache=True)
def _sort(keys, pool, size):  # type: ignore[no-untyped-def]
    """Sort the first of `pool` by their keys, equal ones as they stand: merges of runs, twice as long every time.

    NumPy's own sort, and an assignment that might have to report unequal shapes, take seconds to compile.
    """
    key, other = np.zeros(size), np.zeros(size, np.int64)
    run = 1
    while run < size:
        for left in range(0, size, 2 * run):
            middle, right = min(left + run, size), min(left + 2 * run, size)
            a, b = left, middle
            for k in range(left, right):
                if a < middle and (b >= right or keys[a] <= keys[b]):
                    key[k], other[k] = keys[a], pool[a]
                    a += 1
                else:
                    key[k], other[k] = keys[b], pool[b]
                    b += 1
        for k in range(size):
            keys[k], pool[k] = key[k], other[k]
        run *= 2


@njit(cache=True)
def _renew(who, chance, release, latest, service, gain, cost, kind, worth, seq, begin, limit, length, where):  # type: ignore[no-untyped-def]
    """Step 3 around each of some that are out, with their random numbers."""
    C, S, width = service.shape[1], len(kind), seq.shape[1]
    K = chance.shape[1] - 1
    few, b, m = np.zeros((K, width), np.int64), np.zeros((K, width)), np.zeros((K, width))  # the slots filled again
    n, mine, slots = np.zeros(K, np.int64), np.zeros(K, np.int64), np.zeros(K, np.int64)
    pool, keys, place = np.zeros(4096, np.int64), np.zeros(4096), np.full(len(release), -1)
    for turn in range(len(who)):
        i = who[turn]
        if where[i] >= 0:
            continue
        low, high = np.inf, -np.inf
        for c in range(C):
            if release[i] <= latest[i, c]:
                low, high = min(low, release[i] - service[i, c]), max(high, latest[i, c] + service[i, c])
        used = 0
        for k in range(K):
            s = int(chance[turn, k] * S)
            new = True
            for a in range(used):
                new &= slots[a] != s
            if new:
                slots[used], mine[used] = s, kind[s]
                used += 1
        size, lost, spent = 0, 0.0, 0.0
        for a in range(used):
            s, c = slots[a], mine[a]
            kept = 0
            for q in range(length[s]):
                j = seq[s, q]
                if begin[s, q] < high and begin[s, q] + service[j, c] > low and size < len(pool) // 2:
                    pool[size] = j
                    size += 1
                    lost += gain[j]
                    spent += service[j, c] * cost[c]
                else:
                    few[a, kept], b[a, kept] = j, release[j]
                    if kept > 0:
                        b[a, kept] = max(b[a, kept], b[a, kept - 1] + service[few[a, kept - 1], c])
                    kept += 1
            n[a] = kept
            _limits(a, c, latest, service, few, m, n)
        j, last = 0, len(release)
        while j < last:  # the first that arrives then or later
            middle = (j + last) // 2
            if release[middle] < low:
                j = middle + 1
            else:
                last = middle
        while j < len(release) and release[j] < high and size < len(pool):
            if where[j] < 0 and worth[j] > 0:
                pool[size] = j
                size += 1
            j += 1
        # In the order of worth, of arrival or of haste, with noise.
        way = int(chance[turn, K] * 3)
        mean, square, noise = 0.0, 0.0, chance[turn, K] * 3 - way
        for k in range(size):
            j = pool[k]
            keys[k] = release[j]
            if way == 0:
                keys[k] = -worth[j]
            elif way == 1:
                for c in range(C):
                    keys[k] = max(keys[k], latest[j, c])
            mean += keys[k] / size
            square += keys[k] ** 2 / size
        spread = NOISE * np.sqrt(max(0.0, square - mean**2))
        for k in range(size):
            noise = (noise * 9821.0 + 0.211327) % 1.0
            keys[k] += spread * noise
        if size > MANY:  # by insertion it would take seconds
            _sort(keys, pool, size)
        for k in range(1, size if size <= MANY else 0):
            key, j, at = keys[k], pool[k], k
            while at > 0 and keys[at - 1] > key:
                keys[at], pool[at] = keys[at - 1], pool[at - 1]
                at -= 1
            keys[at], pool[at] = key, j
        won = _fill(pool[:size], release, latest, service, gain, cost, mine[:used], few, b, m, n, place)
        now = 0.0
        for a in range(used):
            for q in range(n[a]):
                now += service[few[a, q], mine[a]] * cost[mine[a]] if place[few[a, q]] >= 0 else 0.0
        if won > lost + EPS or (won > lost - EPS and now <= spent):
            for k in range(size):
                where[pool[k]] = -1
            for a in range(used):
                s = slots[a]
                length[s] = n[a]
                for q in range(n[a]):
                    seq[s, q], begin[s, q], limit[s, q] = few[a, q], b[a, q], m[a, q]
                    where[few[a, q]] = s
        for k in range(size):
            place[pool[k]] = -1
