"""The event loop of `cluster.simulate`, compiled.

All requests in the slots of an instance decode at one rate r(w), so an instance needs one clock of *virtual tokens*
V(t) = ∫ r(w) dt: a request that begins to decode at V is done at V + output tokens, whatever is admitted or completed
meanwhile. An event of an instance costs O(log W), and instances are brought forward only when one of their requests
arrives.

The start that a new request would get is known exactly: with a slot free, now; with all slots taken and none waiting,
the first completion, because until then the rate is r(W); with others waiting, the top of a heap of the slots' release
times, which is made when the queue begins and is exact while it lasts, because the batch then stays full. A queue in
order of urgency is played out instead: a request is admitted if neither it nor anybody behind it is made late.

An arrival looks at every instance of its model, so these fields lie separate and dense: `next_event`, and `rank`, by
which a policy chooses. Nothing is allocated here, hence no reference is counted (``_nrt``), which took half the time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

SHORTEST_QUEUE, LEAST_LOAD, ROUND_ROBIN, RANDOM, MAASO, BEST_FIT, PLANNED_SHARES = range(7)
FIFO, DEADLINE = 1, 2  # what `protect` may be: overflow protection of queues in either order; 0: none
ANY = -1  # kind of instance
INF = np.inf
LAST = np.finfo(np.float64).max

INSTANCE = np.dtype([
    ("clock", "f8"), ("tokens", "f8"),  # V at the time to which the instance is brought forward
    ("active", "i8"), ("waiting", "i8"), ("slots", "i8"), ("worst_s", "f8"),  # of a token in a full batch, 1/F(W)
    ("prefill_s", "f8"), ("prefill_s_per_token", "f8"),
    ("ready", "f8"),  # start that a new request would get; −inf: at once
    ("base", "i8"), ("decoding", "i8"), ("prefilling", "i8"),  # of the heaps: where they lie, and sizes
    ("head", "i8"), ("tail", "i8"),  # of the queue
    ("played", "?"), ("after", "f8"),  # whether starts in the queue are known, and the one behind it
    ("available_from", "f8"), ("group", "i8"), ("busy", "f8"), ("name", "i8"),
])  # fmt: skip
ENTRY = np.dtype([("key", "f8"), ("who", "i8")])
RANK = np.dtype([("first", "f8"), ("second", "f8")])  # the lowest is chosen


class SlotState(NamedTuple):
    """Everything that changes and everything looked up, of n requests and I instances in order of their models."""

    arrival: Any  # (n,), as the next six
    due: Any
    prompt: Any
    output: Any
    model: Any
    group: Any
    klass: Any
    following: Any  # (n,) the next in the queue
    latest: Any  # (n,) start that meets the deadline, of waiting requests by urgency
    instance: Any  # (n,) outcomes, as the next four
    start: Any  # while by urgency in a queue: as far as known
    first: Any
    finish: Any
    promised: Any
    x: Any  # (I,) of INSTANCE
    next_event: Any  # (I,)
    rank: Any  # (I,) of RANK
    kind: Any  # (I,)
    rates: Any  # (I, W) the table r
    done: Any  # (slots,) of ENTRY, heaps of decoding requests, by V at completion; of instance j from x[j].base on
    joins: Any  # (slots,) of ENTRY, heaps of prefilling requests, by time
    release: Any  # (slots,) heaps of release times


def compiled(function):  # type: ignore[no-untyped-def]
    """A part of the loop, put in place of every call and called by nothing else: Python needs no way into it."""
    options = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return njit(cache=True, _nrt=False, error_model="numpy", **options)(function)


@compiled
def _before(one, other):  # type: ignore[no-untyped-def]
    """Order in heaps; ties by request."""
    return one.key < other.key or (one.key == other.key and one.who < other.who)


@compiled
def _push(heap, base, n, key, who):  # type: ignore[no-untyped-def]
    """Add to a heap of n entries."""
    k = n
    while k > 0:
        parent = base + ((k - 1) >> 1)
        if heap[parent].key < key or (heap[parent].key == key and heap[parent].who < who):
            break
        heap[base + k].key = heap[parent].key
        heap[base + k].who = heap[parent].who
        k = parent - base
    heap[base + k].key = key
    heap[base + k].who = who


@compiled
def _pop(heap, base, n):  # type: ignore[no-untyped-def]
    """Remove the top of a heap of n entries."""
    n -= 1
    last = base + n
    key, who = heap[last].key, heap[last].who
    k = 0
    while True:
        child = 2 * k + 1
        if child >= n:
            break
        one = base + child
        if child + 1 < n and _before(heap[one + 1], heap[one]):
            one += 1
        if key < heap[one].key or (key == heap[one].key and who < heap[one].who):
            break
        heap[base + k].key = heap[one].key
        heap[base + k].who = heap[one].who
        k = one - base
    heap[base + k].key = key
    heap[base + k].who = who


@compiled
def _sift(keys, base, n, k):  # type: ignore[no-untyped-def]
    """Restore a heap of plain numbers below entry k."""
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


@compiled
def _forward(s, j, t):  # type: ignore[no-untyped-def]
    """Let time pass on an instance without an event."""
    x = s.x[j]
    if x.active > 0:
        passed = t - x.clock
        x.tokens += s.rates[j, x.active - 1] * passed
        x.busy += passed
    else:
        x.tokens = 0.0
    x.clock = t


@compiled
def _prefill(s, i, x):  # type: ignore[no-untyped-def]
    return x.prefill_s + x.prefill_s_per_token * s.prompt[i]


@compiled
def _worst(s, i, x):  # type: ignore[no-untyped-def]
    """Prefill and decoding at the full-batch rate."""
    return _prefill(s, i, x) + s.output[i] * x.worst_s


@compiled
def _start(s, i, j):  # type: ignore[no-untyped-def]
    """Put a request into a slot at the instance's clock."""
    x = s.x[j]
    t = x.clock
    x.active += 1
    s.start[i] = t
    prefill = _prefill(s, i, x)
    s.promised[i] = t + prefill + s.output[i] / s.rates[j, x.active - 1] <= s.due[i]
    if prefill > 0:
        _push(s.joins, x.base, x.prefilling, t + prefill, i)
        x.prefilling += 1
    else:
        _decode(s, i, x)


@compiled
def _decode(s, i, x):  # type: ignore[no-untyped-def]
    s.first[i] = x.clock
    _push(s.done, x.base, x.decoding, x.tokens + s.output[i], i)
    x.decoding += 1


@compiled
def _refresh(s, j, policy, protect):  # type: ignore[no-untyped-def]
    """State that dispatchers read, after a change."""
    x = s.x[j]
    s.next_event[j] = _next_event(s, j, x)
    x.ready = _ready(s, x, protect)
    _rank(x, s.rank[j], policy)


@compiled
def _rank(x, rank, policy):  # type: ignore[no-untyped-def]
    """Where an instance stands in the order in which a policy chooses."""
    here = float(x.active + x.waiting)
    if policy == SHORTEST_QUEUE:
        rank.first = here
    elif policy == MAASO:
        rank.first, rank.second = float(x.waiting), here / x.slots
    elif policy == BEST_FIT:
        rank.first, rank.second = -1.0 * x.worst_s, here / x.slots
    else:
        rank.first = here / x.slots


@compiled
def _next_event(s, j, x):  # type: ignore[no-untyped-def]
    """Time of the next first token or completion."""
    event = INF
    if x.prefilling > 0:
        event = s.joins[x.base].key
    if x.decoding > 0:
        left = (s.done[x.base].key - x.tokens) / s.rates[j, x.active - 1]
        event = min(event, max(x.clock, x.clock + left))
    return event


@compiled
def _ready(s, x, protect):  # type: ignore[no-untyped-def]
    """The start a new request would get; in a queue by urgency, if it were the first."""
    if x.active < x.slots:
        return -INF
    if x.waiting > 0 and protect != DEADLINE:
        return s.release[x.base]
    ready = INF
    if x.decoding > 0:
        ready = max(x.clock, x.clock + (s.done[x.base].key - x.tokens) * x.worst_s)
    for k in range(x.base, x.base + x.prefilling):
        ready = min(ready, s.joins[k].key + s.output[s.joins[k].who] * x.worst_s)
    return ready


@compiled
def _event(s, j):  # type: ignore[no-untyped-def]
    """The next event of an instance: a first token, or a completion and the start of who waits."""
    x = s.x[j]
    t = s.next_event[j]
    _forward(s, j, t)
    if x.prefilling > 0 and s.joins[x.base].key <= t:
        i = s.joins[x.base].who
        _pop(s.joins, x.base, x.prefilling)
        x.prefilling -= 1
        _decode(s, i, x)
        return
    top = s.done[x.base]
    s.finish[top.who] = t
    x.tokens = top.key
    _pop(s.done, x.base, x.decoding)
    x.decoding -= 1
    x.active -= 1
    if x.waiting > 0:
        i = x.head
        x.head = s.following[i]
        x.waiting -= 1
        _start(s, i, j)


@compiled
def _advance(s, low, high, until, policy, protect):  # type: ignore[no-untyped-def]
    """Every event of some instances up to and including a time."""
    for j in range(low, high):
        while s.next_event[j] <= until:
            _event(s, j)
            _refresh(s, j, policy, protect)


@compiled
def _admit(s, i, j, policy, protect):  # type: ignore[no-untyped-def]
    """Send a request to an instance that is brought forward to its arrival."""
    x = s.x[j]
    s.instance[i] = x.name
    if x.active < x.slots:
        _forward(s, j, s.arrival[i])
        _start(s, i, j)
    elif protect == DEADLINE:
        _insert(s, i, x)
    else:
        _append(s, i, x)
    _refresh(s, j, policy, protect)


@compiled
def _append(s, i, x):  # type: ignore[no-untyped-def]
    """Queue a request behind all others."""
    if x.waiting == 0:
        x.head = i
        _releases(s, x)
    else:
        s.following[x.tail] = i
    x.tail = i
    x.waiting += 1
    s.release[x.base] += _worst(s, i, x)
    _sift(s.release, x.base, x.slots, np.int64(0))


@compiled
def _releases(s, x):  # type: ignore[no-untyped-def]
    """Make the heap of times at which the slots of a full instance become free."""
    b, p = x.base, x.decoding
    for k in range(b, b + p):
        s.release[k] = x.clock + (s.done[k].key - x.tokens) * x.worst_s
    for k in range(b, b + x.prefilling):
        s.release[k + p] = s.joins[k].key + s.output[s.joins[k].who] * x.worst_s
    for k in range(x.slots // 2 - 1, -1, -1):
        _sift(s.release, b, x.slots, k)


@compiled
def _insert(s, i, x):  # type: ignore[no-untyped-def]
    """Queue a request before all that may start later than it must."""
    latest = s.due[i] - _worst(s, i, x)
    s.latest[i] = latest
    if x.waiting == 0:
        x.head = x.tail = i
    elif latest >= s.latest[x.tail]:
        s.following[x.tail] = i
        x.tail = i
    elif latest < s.latest[x.head]:
        s.following[i] = x.head
        x.head = i
    else:
        k = x.head
        while s.latest[s.following[k]] <= latest:
            k = s.following[k]
        s.following[i] = s.following[k]
        s.following[k] = i
    x.waiting += 1
    x.played = False  # completions keep to the starts, because the batch stays full


@compiled
def _fits(s, i, x):  # type: ignore[no-untyped-def]
    """Whether a queue in order of urgency, served at the full-batch rate with one more in it, makes no one late.

    Whoever is behind starts when the next did so far, unless a slot is released earlier that one of them has had.
    """
    if not x.played:
        _play(s, x)
    needs = _worst(s, i, x)
    latest = s.due[i] - needs
    k, left = x.head, x.waiting
    while left > 0 and s.latest[k] <= latest:
        if s.start[k] > s.latest[k]:
            return False
        k = s.following[k]
        left -= 1
    start = s.start[k] if left > 0 else x.after
    if start > latest:
        return False
    again = start + needs  # the first release of a slot by the newcomer or those behind
    while left > 0 and s.latest[k] < INF:
        again = min(again, s.start[k] + _worst(s, k, x))
        after = s.start[s.following[k]] if left > 1 else x.after
        if after >= again:
            return _fits_played(s, i, x, needs, latest)
        if after > s.latest[k]:
            return False
        k = s.following[k]
        left -= 1
    return True


@compiled
def _play(s, x):  # type: ignore[no-untyped-def]
    """Starts of the waiting requests, and of one more behind them."""
    _releases(s, x)
    k = x.head
    for _ in range(x.waiting):
        s.start[k] = s.release[x.base]
        s.release[x.base] += _worst(s, k, x)
        _sift(s.release, x.base, x.slots, np.int64(0))
        k = s.following[k]
    x.after = s.release[x.base]
    x.played = True


@compiled
def _fits_played(s, i, x, needs, latest):  # type: ignore[no-untyped-def]
    """The same, played to the end of the queue."""
    _releases(s, x)
    b, k, left, inserted = x.base, x.head, x.waiting, False
    while left > 0 or not inserted:
        start = s.release[b]
        if not inserted and (left == 0 or latest < s.latest[k]):
            if start > latest:
                return False
            inserted = True
            s.release[b] = start + needs
        else:
            if inserted and s.latest[k] == INF:
                return True
            if start > s.latest[k]:
                return False
            s.release[b] = start + _worst(s, k, x)
            k = s.following[k]
            left -= 1
        _sift(s.release, b, x.slots, np.int64(0))
    return True


@compiled
def _predicted(s, i, x):  # type: ignore[no-untyped-def]
    """Finish at the full-batch rate, MaaSO's worst case."""
    return max(s.arrival[i], x.ready) + _prefill(s, i, x) + s.output[i] * x.worst_s


@compiled
def _open(s, i, x):  # type: ignore[no-untyped-def]
    """Whether an instance takes requests, and this one's sub-cluster."""
    apart = s.group[i] >= 0 and x.group >= 0 and s.group[i] != x.group
    return x.available_from <= s.arrival[i] and not apart


@compiled
def _may(s, i, x, protect):  # type: ignore[no-untyped-def]
    """Whether a request may go to an instance of its model."""
    if not _open(s, i, x):
        return False
    if not protect:
        return True
    if _predicted(s, i, x) > s.due[i]:
        return False
    return protect == FIFO or x.waiting == 0 or _fits(s, i, x)


@compiled
def _pick(s, i, low, high, kind, policy, protect):  # type: ignore[no-untyped-def]
    """The instance of the lowest rank (of a kind, if ≥ 0) that may be sent a request, or −1."""
    best, first, second = -1, INF, INF
    for j in range(low, high):
        rank = s.rank[j]
        if rank.first > first or (rank.first == first and rank.second >= second):
            continue
        if kind != ANY and s.kind[j] != kind:
            continue
        x = s.x[j]
        if policy == MAASO and s.arrival[i] + _prefill(s, i, x) + s.output[i] * x.worst_s > s.due[i]:
            continue
        if policy == BEST_FIT and _predicted(s, i, x) > s.due[i]:
            continue
        if _may(s, i, x, protect):
            best, first, second = j, rank.first, rank.second
    return best


@compiled
def _soonest(s, i, low, high):  # type: ignore[no-untyped-def]
    """The open instance on which a request is predicted to finish first, or −1."""
    best, finish = -1, INF
    for j in range(low, high):
        if _predicted(s, i, s.x[j]) < finish and _open(s, i, s.x[j]):
            best, finish = j, _predicted(s, i, s.x[j])
    return best


@compiled
def _in_turn(s, i, low, high, last, protect):  # type: ignore[no-untyped-def]
    """The first after the last that may be sent a request, or −1."""
    j = last
    for _ in range(low, high):
        j += 1
        if j >= high or j < low:
            j = low
        if _may(s, i, s.x[j], protect):
            return j
    return -1


@compiled
def _hash(seed, i, k):  # type: ignore[no-untyped-def]
    """A 64-bit number of a seed, a request and its k-th draw (splitmix64)."""
    z = np.uint64(seed) * np.uint64(0xD1342543DE82EF95) + np.uint64(i + 1) * np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(k) * np.uint64(0xDA942042E4DD58B5)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled
def _drawn(s, i, low, high, deck, seed, protect):  # type: ignore[no-untyped-def]
    """Draw instances without putting them back until one may be sent a request, or −1."""
    for k in range(high - low):
        there = low + k + int(_hash(seed, i, k) % np.uint64(high - low - k))
        j = deck[there]
        deck[there] = deck[low + k]
        deck[low + k] = j
        if _may(s, i, s.x[j], protect):
            return j
    return -1


@compiled
def _turn(planned, credit):  # type: ignore[no-untyped-def]
    """The kind, or last refusal, whose planned share is furthest behind; `ANY` where nothing is planned."""
    turn = ANY
    for q in range(len(planned)):
        credit[q] += planned[q]
        if planned[q] > 0 and (turn == ANY or credit[q] > credit[turn]):
            turn = q
    if turn != ANY:
        credit[turn] -= 1.0
    return turn


@compiled
def _next_kind(planned, credit, turn, after):  # type: ignore[no-untyped-def]
    """The kind that comes after another in order of credit, its turn aside; `ANY` after the last."""
    kind = ANY
    for q in range(len(planned) - 1):
        behind = after == turn or credit[q] < credit[after] or (credit[q] == credit[after] and q > after)
        if planned[q] > 0 and q != turn and behind and (kind == ANY or credit[q] > credit[kind]):
            kind = q
    return kind


@compiled
def _follow(s, i, low, high, policy, protect, planned, credit):  # type: ignore[no-untyped-def]
    """Deficit round robin over the kinds of instance that a class is planned on, then any; −1: refused."""
    turn = _turn(planned, credit)
    if turn == len(planned) - 1:
        j = _pick(s, i, low, high, np.int64(ANY), policy, protect)
        if j < 0 or s.x[j].active == s.x[j].slots:
            return -1
        credit[turn] += 1.0  # a slot that no request waits for
        return j
    kind = turn
    while True:
        j = _pick(s, i, low, high, kind, policy, protect)
        if j >= 0 or kind == ANY:
            return j
        kind = _next_kind(planned, credit, turn, kind)


@njit(cache=True, _nrt=False, error_model="numpy")
def run(s, start_of, policy, protect, seed, last, deck, planned, bin_s, credit):  # type: ignore[no-untyped-def]
    """Serve all requests; outcomes are written into the state.

    Requests of model m go to instances ``start_of[m]`` to ``start_of[m + 1]``; `last` is whose turn it was, by model
    and sub-cluster, `deck` the instances in the order drawn, `credit` by class and kind.

    Constants are passed as ``np.int64``: Numba would compile the callee once more for a literal.
    """
    for j in range(len(s.x)):
        _rank(s.x[j], s.rank[j], policy)
    for i in range(len(s.arrival)):
        s.instance[i], s.start[i], s.first[i], s.finish[i], s.promised[i] = -1, INF, INF, INF, False
        m = s.model[i]
        if m < 0 or m >= len(start_of) - 1:
            continue
        low, high = start_of[m], start_of[m + 1]
        _advance(s, low, high, s.arrival[i], policy, protect)
        if policy == ROUND_ROBIN:
            group = max(s.group[i], -1) + 1
            j = _in_turn(s, i, low, high, last[m, group], protect)
            if j >= 0:
                last[m, group] = j
        elif policy == RANDOM:
            j = _drawn(s, i, low, high, deck, seed, protect)
        elif policy == PLANNED_SHARES and s.klass[i] >= 0:
            b, k = int(min(s.arrival[i] / bin_s, planned.shape[0] - 1.0)), s.klass[i]
            j = _follow(s, i, low, high, policy, protect, planned[b, k], credit[k])
        else:
            j = _pick(s, i, low, high, np.int64(ANY), policy, protect)
            if j < 0 and policy == BEST_FIT and not protect:
                j = _soonest(s, i, low, high)
        if j >= 0:
            _admit(s, i, j, policy, protect)
    _advance(s, np.int64(0), len(s.x), LAST, policy, protect)
