"""The event loop of `cluster.simulate`, compiled.

All requests in the slots of an instance decode at one rate r(w), so an instance needs one clock of *virtual tokens*
V(t) = ∫ r(w) dt: a request that begins to decode at V is done at V + output tokens, whatever is admitted or completed
meanwhile. An event of an instance costs O(log W), and instances are brought forward only when somebody looks at them.

The start that a new request would get is known exactly: with a slot free, now; with all slots taken and nobody waiting,
the first completion, because until then the rate is r(W); with others waiting, the top of a heap of the slots' release
times, which is made when the queue begins and is exact while it lasts, because the batch then stays full.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

SHORTEST_QUEUE, LEAST_LOAD, ROUND_ROBIN, RANDOM, MAASO, BEST_FIT, PLANNED_SHARES = range(7)
INF = np.inf
LAST = np.finfo(np.float64).max


class State(NamedTuple):
    """Of all instances; the heaps and lists of instance j lie at ``base[j] …`` of flat arrays."""

    base: Any
    clock: Any  # (I,) time to which the instance is brought forward
    tokens: Any  # (I,) V at that time
    active: Any  # (I,) requests in slots
    waiting: Any  # (I,)
    head: Any  # (I,) first in the queue
    tail: Any
    following: Any  # (n,) the next in the queue
    decoding: Any  # (I,) size of the heap of V at completion
    done_at: Any
    done_who: Any
    prefilling: Any  # (I,) size of the heap of times at which prefill ends
    joins_at: Any
    joins_who: Any
    release: Any  # heaps of the slots' release times, of instances with a queue
    next_event: Any  # (I,)
    ready: Any  # (I,) start that a new request would get; −inf: at once


class Given(NamedTuple):
    """Requests, instances, and where outcomes are written."""

    arrival: Any
    prompt: Any
    output: Any
    model: Any
    deadline: Any
    group: Any
    slots: Any
    rates: Any
    full: Any
    prefill_s: Any
    prefill_s_per_token: Any
    instance_group: Any
    available_from: Any
    instance: Any
    start: Any
    first: Any
    finish: Any
    promised: Any
    busy: Any


@njit(cache=True)
def _push(keys, who, base, n, key, i):  # type: ignore[no-untyped-def]
    """Add to a heap of n entries; ties by request."""
    k = n
    while k > 0:
        parent = (k - 1) >> 1
        p = keys[base + parent]
        if p < key or (p == key and who[base + parent] < i):
            break
        keys[base + k] = p
        who[base + k] = who[base + parent]
        k = parent
    keys[base + k] = key
    who[base + k] = i


@njit(cache=True)
def _pop(keys, who, base, n):  # type: ignore[no-untyped-def]
    """Remove the top of a heap of n entries."""
    n -= 1
    key, i = keys[base + n], who[base + n]
    k = 0
    while True:
        child = 2 * k + 1
        if child >= n:
            break
        other = child + 1
        if other < n and (
            keys[base + other] < keys[base + child]
            or (keys[base + other] == keys[base + child] and who[base + other] < who[base + child])
        ):
            child = other
        c = keys[base + child]
        if key < c or (key == c and i < who[base + child]):
            break
        keys[base + k] = c
        who[base + k] = who[base + child]
        k = child
    keys[base + k] = key
    who[base + k] = i


@njit(cache=True)
def _sift(keys, base, n, k):  # type: ignore[no-untyped-def]
    """Restore a heap without owners below entry k."""
    key = keys[base + k]
    while True:
        child = 2 * k + 1
        if child >= n:
            break
        if child + 1 < n and keys[base + child + 1] < keys[base + child]:
            child += 1
        if key <= keys[base + child]:
            break
        keys[base + k] = keys[base + child]
        k = child
    keys[base + k] = key


@njit(cache=True)
def _forward(s, g, j, t):  # type: ignore[no-untyped-def]
    """Let time pass on an instance without an event."""
    w = s.active[j]
    if w > 0:
        passed = t - s.clock[j]
        s.tokens[j] += g.rates[j, w - 1] * passed
        g.busy[j] += passed
    else:
        s.tokens[j] = 0.0
    s.clock[j] = t


@njit(cache=True)
def _prefill(g, i, j):  # type: ignore[no-untyped-def]
    return g.prefill_s[j] + g.prefill_s_per_token[j] * g.prompt[i]


@njit(cache=True)
def _start(s, g, i, j):  # type: ignore[no-untyped-def]
    """Put a request into a slot at the instance's clock."""
    t = s.clock[j]
    s.active[j] += 1
    g.start[i] = t
    prefill = _prefill(g, i, j)
    g.promised[i] = t + prefill + g.output[i] / g.rates[j, s.active[j] - 1] <= g.arrival[i] + g.deadline[i]
    if prefill > 0:
        _push(s.joins_at, s.joins_who, s.base[j], s.prefilling[j], t + prefill, i)
        s.prefilling[j] += 1
    else:
        _decode(s, g, i, j)


@njit(cache=True)
def _decode(s, g, i, j):  # type: ignore[no-untyped-def]
    g.first[i] = s.clock[j]
    _push(s.done_at, s.done_who, s.base[j], s.decoding[j], s.tokens[j] + g.output[i], i)
    s.decoding[j] += 1


@njit(cache=True)
def _refresh(s, g, j):  # type: ignore[no-untyped-def]
    """Next event, and the start a new request would get."""
    b, t = s.base[j], s.clock[j]
    event = INF
    if s.prefilling[j] > 0:
        event = s.joins_at[b]
    if s.decoding[j] > 0:
        rate = g.rates[j, s.active[j] - 1]
        event = min(event, max(t, t + (s.done_at[b] - s.tokens[j]) / rate))
    s.next_event[j] = event
    if s.active[j] < g.slots[j]:
        s.ready[j] = -INF
    elif s.waiting[j] > 0:
        s.ready[j] = s.release[b]
    else:
        ready = INF
        if s.decoding[j] > 0:
            ready = max(t, t + (s.done_at[b] - s.tokens[j]) / g.full[j])
        for k in range(s.prefilling[j]):
            ready = min(ready, s.joins_at[b + k] + g.output[s.joins_who[b + k]] / g.full[j])
        s.ready[j] = ready


@njit(cache=True)
def _advance(s, g, j, until):  # type: ignore[no-untyped-def]
    """Every event of an instance up to and including a time."""
    b = s.base[j]
    while s.next_event[j] <= until:
        t = s.next_event[j]
        _forward(s, g, j, t)
        if s.prefilling[j] > 0 and s.joins_at[b] <= t:
            i = s.joins_who[b]
            _pop(s.joins_at, s.joins_who, b, s.prefilling[j])
            s.prefilling[j] -= 1
            _decode(s, g, i, j)
        else:
            i = s.done_who[b]
            s.tokens[j] = s.done_at[b]
            _pop(s.done_at, s.done_who, b, s.decoding[j])
            s.decoding[j] -= 1
            s.active[j] -= 1
            g.finish[i] = t
            if s.waiting[j] > 0:
                i = s.head[j]
                s.head[j] = s.following[i]
                s.waiting[j] -= 1
                _start(s, g, i, j)
        _refresh(s, g, j)


@njit(cache=True)
def _admit(s, g, i, j, t):  # type: ignore[no-untyped-def]
    """Send a request to an instance that is brought forward to its arrival."""
    g.instance[i] = j
    if s.active[j] < g.slots[j]:
        _forward(s, g, j, t)
        _start(s, g, i, j)
    else:
        b, w = s.base[j], g.slots[j]
        if s.waiting[j] == 0:
            s.head[j] = i
            for k in range(s.decoding[j]):
                s.release[b + k] = s.clock[j] + (s.done_at[b + k] - s.tokens[j]) / g.full[j]
            for k in range(s.prefilling[j]):
                s.release[b + s.decoding[j] + k] = s.joins_at[b + k] + g.output[s.joins_who[b + k]] / g.full[j]
            for k in range(w // 2 - 1, -1, -1):
                _sift(s.release, b, w, k)
        else:
            s.following[s.tail[j]] = i
        s.tail[j] = i
        s.waiting[j] += 1
        s.release[b] += _prefill(g, i, j) + g.output[i] / g.full[j]
        _sift(s.release, b, w, 0)
    _refresh(s, g, j)


@njit(cache=True)
def _may(s, g, i, j, protect):  # type: ignore[no-untyped-def]
    """Whether a request may go to an instance of its model."""
    t = g.arrival[i]
    if g.available_from[j] > t:
        return False
    if g.group[i] >= 0 and g.instance_group[j] >= 0 and g.group[i] != g.instance_group[j]:
        return False
    return not protect or _predicted(s, g, i, j) <= t + g.deadline[i]


@njit(cache=True)
def _predicted(s, g, i, j):  # type: ignore[no-untyped-def]
    """Finish at the full-batch rate, MaaSO's worst case."""
    return max(g.arrival[i], s.ready[j]) + _prefill(g, i, j) + g.output[i] / g.full[j]


@njit(cache=True)
def _pick(s, g, i, members, low, high, policy, protect, kinds, kind):  # type: ignore[no-untyped-def]
    """The best instance among ``members[low:high]`` (of a kind, if ≥ 0), or −1."""
    best, best_a, best_b = -1, INF, INF
    t = g.arrival[i]
    for m in range(low, high):
        j = members[m]
        if kind >= 0 and kinds[j] != kind:
            continue
        if s.next_event[j] <= t:
            _advance(s, g, j, t)
        if not _may(s, g, i, j, protect):
            continue
        here = float(s.active[j] + s.waiting[j])
        a, b = here, 0.0
        if policy == LEAST_LOAD:
            a = here / g.slots[j]
        elif policy == MAASO:
            if _prefill(g, i, j) + g.output[i] / g.full[j] > g.deadline[i]:
                continue
            a, b = float(s.waiting[j]), here / g.slots[j]
        elif policy == BEST_FIT:
            b = _predicted(s, g, i, j)
            if b <= t + g.deadline[i]:
                a, b = g.full[j] - 1e300, here / g.slots[j]
            else:
                a = 0.0
        if a < best_a or (a == best_a and b < best_b):
            best, best_a, best_b = j, a, b
    return best


@njit(cache=True)
def _hash(seed, i):  # type: ignore[no-untyped-def]
    """A 64-bit number of a seed and a request (splitmix64)."""
    z = np.uint64(seed) * np.uint64(0xD1342543DE82EF95) + np.uint64(i + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True)
def _turn(s, g, i, members, low, high, last, policy, protect, seed):  # type: ignore[no-untyped-def]
    """Round robin: the first that may, from after the `last` position; random: one of those that may."""
    t = g.arrival[i]
    n, able = high - low, 0
    for k in range(n):
        m = low + (last + 1 + k) % n if policy == ROUND_ROBIN else low + k
        j = members[m]
        if s.next_event[j] <= t:
            _advance(s, g, j, t)
        if _may(s, g, i, j, protect):
            if policy == ROUND_ROBIN:
                return m - low
            able += 1
    if able == 0:
        return -1
    left = int(_hash(seed, i) % np.uint64(able))
    for m in range(low, high):
        if _may(s, g, i, members[m], protect):
            if left == 0:
                return m - low
            left -= 1
    return -1


@njit(cache=True)
def _follow(s, g, i, k, members, low, high, protect, kinds, weight, credit, refuse_rest):  # type: ignore[no-untyped-def]
    """Deficit round robin over the kinds of instance that class k is planned on; −1: refused."""
    total = 0.0
    for q in range(len(weight)):
        total += weight[q]
    rest = max(0.0, 1.0 - total) if refuse_rest else 0.0
    turn, refused = -1, len(weight)
    if total + rest > 0:
        for q in range(len(weight) + 1):
            w = rest if q == refused else weight[q]
            credit[k, q] += w / (total + rest)
            if w > 0 and (turn < 0 or credit[k, q] > credit[k, turn]):
                turn = q
        credit[k, turn] -= 1.0
        if turn == refused:
            return -1
        j = _pick(s, g, i, members, low, high, LEAST_LOAD, protect, kinds, turn)
        if j >= 0:
            return j
        best = -1
        for q in range(len(weight)):
            if weight[q] > 0 and q != turn and (best < 0 or credit[k, q] > credit[k, best]):
                other = _pick(s, g, i, members, low, high, LEAST_LOAD, protect, kinds, q)
                if other >= 0:
                    best, j = q, other
        if j >= 0:
            return j
    return _pick(s, g, i, members, low, high, LEAST_LOAD, protect, kinds, -1)


@njit(cache=True)
def run(  # type: ignore[no-untyped-def]
    arrival, prompt, output, model, deadline, group, klass,
    slots, rates, full, prefill_s, prefill_s_per_token, instance_group, available_from, start_of, members,
    policy, protect, seed, kinds, weight, bin_s, refuse_rest,
    instance, start, first, finish, promised, busy,
):  # fmt: skip
    """Serve all requests; the last six arrays are written."""
    n, count = len(arrival), len(slots)
    base = np.zeros(count + 1, np.int64)
    for j in range(count):
        base[j + 1] = base[j] + slots[j]
    room = base[count]
    s = State(
        base, np.zeros(count), np.zeros(count), np.zeros(count, np.int64), np.zeros(count, np.int64),
        np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(n, np.int64),
        np.zeros(count, np.int64), np.zeros(room), np.zeros(room, np.int64),
        np.zeros(count, np.int64), np.zeros(room), np.zeros(room, np.int64),
        np.zeros(room), np.full(count, INF), np.full(count, -INF),
    )  # fmt: skip
    g = Given(
        arrival, prompt, output, model, deadline, group, slots, rates, full, prefill_s, prefill_s_per_token,
        instance_group, available_from, instance, start, first, finish, promised, busy,
    )  # fmt: skip
    models = len(start_of) - 1
    groups = 1
    for i in range(n):
        groups = max(groups, group[i] + 2)
    last = np.full((max(models, 1), groups), -1, np.int64)
    credit = np.zeros((weight.shape[1], weight.shape[2] + 1))
    for i in range(n):
        m = model[i]
        if m < 0 or m >= models:
            continue
        low, high = start_of[m], start_of[m + 1]
        j = -1
        if policy in (ROUND_ROBIN, RANDOM):
            turn = max(group[i], -1) + 1
            place = _turn(s, g, i, members, low, high, last[m, turn], policy, protect, seed)
            if place >= 0:
                last[m, turn] = place
                j = members[low + place]
        elif policy == PLANNED_SHARES and klass[i] >= 0:
            b = min(int(arrival[i] / bin_s), weight.shape[0] - 1)
            j = _follow(s, g, i, klass[i], members, low, high, protect, kinds, weight[b, klass[i]], credit, refuse_rest)
        else:
            simple = LEAST_LOAD if policy == PLANNED_SHARES else policy
            j = _pick(s, g, i, members, low, high, simple, protect, kinds, -1)
        if j >= 0:
            _admit(s, g, i, j, arrival[i])
    for j in range(count):
        _advance(s, g, j, LAST)
