"""The event loop of `cluster.simulate`, compiled.

All requests in the slots of an instance decode at one rate r(w), so an instance needs one clock of *virtual tokens*
V(t) = ∫ r(w) dt: a request that begins to decode at V is done at V + output tokens, whatever is admitted or completed
meanwhile. An event of an instance costs O(log W), and instances are brought forward only when somebody looks at them.

The start that a new request would get is known exactly: with a slot free, now; with all slots taken and nobody waiting,
the first completion, because until then the rate is r(W); with others waiting, the top of a heap of the slots' release
times, which is made when the queue begins and is exact while it lasts, because the batch then stays full. A queue in
order of urgency is played out instead: a request is admitted if neither it nor anybody behind it is made late.

State is in arrays of records, because compiled functions pass few arrays faster than many: ``x`` of instances, ``r`` of
requests, ``done`` and ``joins`` the heaps of those that decode (by V at completion) and that are prefilled (by time),
``release`` the heaps of release times, ``rates`` the table r. The heaps of instance j lie at ``x[j].base``.
"""

from __future__ import annotations

import numpy as np
from numba import njit

SHORTEST_QUEUE, LEAST_LOAD, ROUND_ROBIN, RANDOM, MAASO, BEST_FIT, PLANNED_SHARES = range(7)
FIFO, DEADLINE = 1, 2  # what `protect` may be: overflow protection of queues in either order; 0: none
INF = np.inf
LAST = np.finfo(np.float64).max

INSTANCE = np.dtype([
    ("next_event", "f8"), ("ready", "f8"),  # start that a new request would get; −inf: at once
    ("active", "i8"), ("waiting", "i8"), ("slots", "i8"), ("worst_s", "f8"),  # of a token in a full batch, 1/F(W)
    ("prefill_s", "f8"),
    ("prefill_s_per_token", "f8"), ("available_from", "f8"), ("group", "i8"), ("kind", "i8"),
    ("clock", "f8"), ("tokens", "f8"),  # V at the time to which the instance is brought forward
    ("base", "i8"), ("decoding", "i8"), ("prefilling", "i8"),  # sizes of the heaps
    ("head", "i8"), ("tail", "i8"),  # of the queue
    ("busy", "f8"),
])  # fmt: skip
REQUEST = np.dtype([
    ("arrival", "f8"), ("due", "f8"), ("prompt", "f8"), ("output", "f8"), ("model", "i8"), ("group", "i8"),
    ("klass", "i8"), ("following", "i8"), ("latest", "f8"),  # the next in the queue; start that meets the deadline
    ("instance", "i8"), ("start", "f8"), ("first", "f8"), ("finish", "f8"), ("promised", "i8"),
])  # fmt: skip
ENTRY = np.dtype([("key", "f8"), ("who", "i8")])


@njit(cache=True)
def _push(heap, base, n, key, who):  # type: ignore[no-untyped-def]
    """Add to a heap of n entries; ties by request."""
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


@njit(cache=True)
def _pop(heap, base, n):  # type: ignore[no-untyped-def]
    """Remove the top of a heap of n entries."""
    n -= 1
    key, who = heap[base + n].key, heap[base + n].who
    k = 0
    while True:
        child = 2 * k + 1
        if child >= n:
            break
        one, other = base + child, base + child + 1
        if child + 1 < n and (
            heap[other].key < heap[one].key or (heap[other].key == heap[one].key and heap[other].who < heap[one].who)
        ):
            child, one = child + 1, other
        if key < heap[one].key or (key == heap[one].key and who < heap[one].who):
            break
        heap[base + k].key = heap[one].key
        heap[base + k].who = heap[one].who
        k = child
    heap[base + k].key = key
    heap[base + k].who = who


@njit(cache=True)
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


@njit(cache=True)
def _forward(x, rates, j, t):  # type: ignore[no-untyped-def]
    """Let time pass on an instance without an event."""
    w = x[j].active
    if w > 0:
        passed = t - x[j].clock
        x[j].tokens += rates[j, w - 1] * passed
        x[j].busy += passed
    else:
        x[j].tokens = 0.0
    x[j].clock = t


@njit(cache=True)
def _prefill(x, r, i, j):  # type: ignore[no-untyped-def]
    return x[j].prefill_s + x[j].prefill_s_per_token * r[i].prompt


@njit(cache=True)
def _start(x, r, done, joins, rates, i, j):  # type: ignore[no-untyped-def]
    """Put a request into a slot at the instance's clock."""
    t = x[j].clock
    x[j].active += 1
    r[i].start = t
    prefill = _prefill(x, r, i, j)
    r[i].promised = t + prefill + r[i].output / rates[j, x[j].active - 1] <= r[i].due
    if prefill > 0:
        _push(joins, x[j].base, x[j].prefilling, t + prefill, i)
        x[j].prefilling += 1
    else:
        _decode(x, r, done, i, j)


@njit(cache=True)
def _decode(x, r, done, i, j):  # type: ignore[no-untyped-def]
    r[i].first = x[j].clock
    _push(done, x[j].base, x[j].decoding, x[j].tokens + r[i].output, i)
    x[j].decoding += 1


@njit(cache=True)
def _refresh(x, r, done, joins, release, rates, protect, j):  # type: ignore[no-untyped-def]
    """Next event, and the start a new request would get."""
    b, t = x[j].base, x[j].clock
    event = INF
    if x[j].prefilling > 0:
        event = joins[b].key
    if x[j].decoding > 0:
        event = min(event, max(t, t + (done[b].key - x[j].tokens) / rates[j, x[j].active - 1]))
    x[j].next_event = event
    if x[j].active < x[j].slots:
        x[j].ready = -INF
    elif x[j].waiting > 0 and protect != DEADLINE:
        x[j].ready = release[b]
    else:
        ready = INF
        if x[j].decoding > 0:
            ready = max(t, t + (done[b].key - x[j].tokens) * x[j].worst_s)
        for k in range(b, b + x[j].prefilling):
            ready = min(ready, joins[k].key + r[joins[k].who].output * x[j].worst_s)
        x[j].ready = ready


@njit(cache=True)
def _advance(x, r, done, joins, release, rates, protect, j, until):  # type: ignore[no-untyped-def]
    """Every event of an instance up to and including a time."""
    b = x[j].base
    while x[j].next_event <= until:
        t = x[j].next_event
        _forward(x, rates, j, t)
        if x[j].prefilling > 0 and joins[b].key <= t:
            i = joins[b].who
            _pop(joins, b, x[j].prefilling)
            x[j].prefilling -= 1
            _decode(x, r, done, i, j)
        else:
            i = done[b].who
            x[j].tokens = done[b].key
            _pop(done, b, x[j].decoding)
            x[j].decoding -= 1
            x[j].active -= 1
            r[i].finish = t
            if x[j].waiting > 0:
                i = x[j].head
                x[j].head = r[i].following
                x[j].waiting -= 1
                _start(x, r, done, joins, rates, i, j)
        _refresh(x, r, done, joins, release, rates, protect, j)


@njit(cache=True)
def _admit(x, r, done, joins, release, rates, protect, i, j):  # type: ignore[no-untyped-def]
    """Send a request to an instance that is brought forward to its arrival."""
    r[i].instance = j
    if x[j].active < x[j].slots:
        _forward(x, rates, j, r[i].arrival)
        _start(x, r, done, joins, rates, i, j)
    elif protect == DEADLINE:
        _insert(x, r, i, j)
    else:
        b, w = x[j].base, x[j].slots
        if x[j].waiting == 0:
            x[j].head = i
            _releases(x, r, done, joins, release, j)
        else:
            r[x[j].tail].following = i
        x[j].tail = i
        x[j].waiting += 1
        release[b] += _prefill(x, r, i, j) + r[i].output * x[j].worst_s
        _sift(release, b, w, 0)
    _refresh(x, r, done, joins, release, rates, protect, j)


@njit(cache=True)
def _releases(x, r, done, joins, release, j):  # type: ignore[no-untyped-def]
    """Make the heap of times at which the slots of a full instance become free."""
    b, w, p = x[j].base, x[j].slots, x[j].decoding
    for k in range(b, b + p):
        release[k] = x[j].clock + (done[k].key - x[j].tokens) * x[j].worst_s
    for k in range(b, b + x[j].prefilling):
        release[k + p] = joins[k].key + r[joins[k].who].output * x[j].worst_s
    for k in range(w // 2 - 1, -1, -1):
        _sift(release, b, w, k)


@njit(cache=True)
def _insert(x, r, i, j):  # type: ignore[no-untyped-def]
    """Queue a request before all that may start later than it must."""
    latest = r[i].due - (_prefill(x, r, i, j) + r[i].output * x[j].worst_s)
    r[i].latest = latest
    if x[j].waiting == 0:
        x[j].head = x[j].tail = i
    elif latest >= r[x[j].tail].latest:
        r[x[j].tail].following = i
        x[j].tail = i
    elif latest < r[x[j].head].latest:
        r[i].following = x[j].head
        x[j].head = i
    else:
        k = x[j].head
        while r[r[k].following].latest <= latest:
            k = r[k].following
        r[i].following = r[k].following
        r[k].following = i
    x[j].waiting += 1


@njit(cache=True)
def _fits(x, r, done, joins, release, i, j):  # type: ignore[no-untyped-def]
    """Whether a queue in order of urgency, played out at the full-batch rate with one more in it, makes no one late."""
    needs = _prefill(x, r, i, j) + r[i].output * x[j].worst_s
    latest = r[i].due - needs
    _releases(x, r, done, joins, release, j)
    b, k, left, inserted = x[j].base, x[j].head, x[j].waiting, False
    while left > 0 or not inserted:
        start = release[b]
        if not inserted and (left == 0 or latest < r[k].latest):
            if start > latest:
                return False
            inserted = True
            release[b] = start + needs
        else:
            if inserted and r[k].latest == INF:
                return True
            if start > r[k].latest:
                return False
            release[b] = start + _prefill(x, r, k, j) + r[k].output * x[j].worst_s
            k = r[k].following
            left -= 1
        _sift(release, b, x[j].slots, 0)
    return True


@njit(cache=True)
def _predicted(x, r, i, j):  # type: ignore[no-untyped-def]
    """Finish at the full-batch rate, MaaSO's worst case; in a queue by urgency, if it were the first."""
    return max(r[i].arrival, x[j].ready) + _prefill(x, r, i, j) + r[i].output * x[j].worst_s


@njit(cache=True)
def _may(x, r, done, joins, release, i, j, protect):  # type: ignore[no-untyped-def]
    """Whether a request may go to an instance of its model."""
    if x[j].available_from > r[i].arrival:
        return False
    if r[i].group >= 0 and x[j].group >= 0 and r[i].group != x[j].group:
        return False
    if not protect:
        return True
    if _predicted(x, r, i, j) > r[i].due:
        return False
    return protect == FIFO or x[j].waiting == 0 or _fits(x, r, done, joins, release, i, j)


@njit(cache=True)
def _pick(x, r, done, joins, release, rates, i, members, low, high, policy, protect, kind):  # type: ignore[no-untyped-def]
    """The best instance among ``members[low:high]`` (of a kind, if ≥ 0), or −1."""
    best, best_a, best_b = -1, INF, INF
    t, due = r[i].arrival, r[i].due
    for m in range(low, high):
        j = members[m]
        if kind >= 0 and x[j].kind != kind:
            continue
        if x[j].next_event <= t:
            _advance(x, r, done, joins, release, rates, protect, j, t)
        here = float(x[j].active + x[j].waiting)
        a, b = here, 0.0
        if policy == LEAST_LOAD:
            a = here / x[j].slots
        elif policy == MAASO:
            a, b = float(x[j].waiting), here / x[j].slots
        elif policy == BEST_FIT:
            a = _predicted(x, r, i, j)
            if a <= due:  # before all that are late, the slowest first
                a, b = -1.0 * x[j].worst_s, here / x[j].slots
        if a > best_a or (a == best_a and b >= best_b) or not _may(x, r, done, joins, release, i, j, protect):
            continue
        if policy == MAASO and t + _prefill(x, r, i, j) + r[i].output * x[j].worst_s > due:
            continue
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
def _turn(x, r, done, joins, release, rates, i, members, low, high, last, policy, protect, seed):  # type: ignore[no-untyped-def]
    """Round robin: the first that may, from after position `last`; random: one of those that may. −1: none."""
    t = r[i].arrival
    n, able = high - low, 0
    for k in range(n):
        at = (last + 1 + k) % n if policy == ROUND_ROBIN else k
        j = members[low + at]
        if x[j].next_event <= t:
            _advance(x, r, done, joins, release, rates, protect, j, t)
        if _may(x, r, done, joins, release, i, j, protect):
            if policy == ROUND_ROBIN:
                return at
            able += 1
    if able == 0:
        return -1
    left = int(_hash(seed, i) % np.uint64(able))
    for k in range(n):
        if _may(x, r, done, joins, release, i, members[low + k], protect):
            if left == 0:
                return k
            left -= 1
    return -1


@njit(cache=True)
def _follow(x, r, done, joins, release, rates, i, members, low, high, protect, weight, credit, refuse_rest):  # type: ignore[no-untyped-def]
    """Deficit round robin over the kinds of instance that a class is planned on; −1: refused."""
    total = 0.0
    for q in range(len(weight)):
        total += weight[q]
    rest = max(0.0, 1.0 - total) if refuse_rest else 0.0
    if total + rest > 0:
        turn, refused = -1, len(weight)
        for q in range(len(weight) + 1):
            w = rest if q == refused else weight[q]
            credit[q] += w / (total + rest)
            if w > 0 and (turn < 0 or credit[q] > credit[turn]):
                turn = q
        credit[turn] -= 1.0
        if turn == refused:
            j = _pick(x, r, done, joins, release, rates, i, members, low, high, LEAST_LOAD, protect, -1)
            if j < 0 or x[j].active == x[j].slots:
                return -1
            credit[turn] += 1.0  # a slot that nobody waits for
            return j
        j = _pick(x, r, done, joins, release, rates, i, members, low, high, LEAST_LOAD, protect, turn)
        best = -1
        for q in range(len(weight)):
            open_ = (j < 0 or best >= 0) and weight[q] > 0 and q != turn
            if open_ and (best < 0 or credit[q] > credit[best]):
                other = _pick(x, r, done, joins, release, rates, i, members, low, high, LEAST_LOAD, protect, q)
                if other >= 0:
                    best, j = q, other
        if j >= 0:
            return j
    return _pick(x, r, done, joins, release, rates, i, members, low, high, LEAST_LOAD, protect, -1)


@njit(cache=True)
def run(x, r, rates, start_of, members, policy, protect, seed, weight, bin_s, refuse_rest):  # type: ignore[no-untyped-def]
    """Serve all requests; outcomes are written into the records."""
    room = 0
    for j in range(len(x)):
        x[j].base, x[j].next_event, x[j].ready = room, INF, -INF
        room += x[j].slots
    done, joins, release = np.zeros(room, ENTRY), np.zeros(room, ENTRY), np.zeros(room)
    models, groups = len(start_of) - 1, 1
    for i in range(len(r)):
        groups = max(groups, r[i].group + 2)
    last = np.full((max(models, 1), groups), -1, np.int64)
    credit = np.zeros((weight.shape[1], weight.shape[2] + 1))
    for i in range(len(r)):
        r[i].instance, r[i].start, r[i].first, r[i].finish, r[i].promised = -1, INF, INF, INF, 0
        m = r[i].model
        if m < 0 or m >= models:
            continue
        low, high = start_of[m], start_of[m + 1]
        if low == high:
            continue
        j = -1
        if policy in (ROUND_ROBIN, RANDOM):
            turn = max(r[i].group, -1) + 1
            at = _turn(
                x, r, done, joins, release, rates, i, members, low, high, last[m, turn], policy, protect, seed
            )  # fmt: skip
            if at >= 0:
                last[m, turn] = at
                j = members[low + at]
        elif policy == PLANNED_SHARES and r[i].klass >= 0:
            b, k = int(min(r[i].arrival / bin_s, weight.shape[0] - 1.0)), r[i].klass
            j = _follow(
                x, r, done, joins, release, rates, i, members, low, high, protect, weight[b, k], credit[k], refuse_rest
            )  # fmt: skip
        else:
            simple = LEAST_LOAD if policy == PLANNED_SHARES else policy
            j = _pick(x, r, done, joins, release, rates, i, members, low, high, simple, protect, -1)
        if j >= 0:
            _admit(x, r, done, joins, release, rates, protect, i, j)
    for j in range(len(x)):
        _advance(x, r, done, joins, release, rates, protect, j, LAST)
