"""Requests that were assigned beforehand: each to a slot of an instance, in the order planned for that slot.

A request starts as soon as it is there and the one before it in its slot is done. If the plan took the full-batch rate
for every service and speed falls with load, then by induction along each slot none starts or ends later than
planned: no admission delays another past its deadline, and no instance has more requests than slots.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numba import njit

from optmodels.arrays import Array, Ints
from optmodels.errors import InputError, Mistake
from optmodels.simulation.cluster import Cluster, Outcomes, Requests, Speed


def follow(
    requests: Requests, cluster: Cluster, instance: Ints, slot: Ints, start_s: Array, *, speed: Speed = "load"
) -> Outcomes:  # fmt: skip
    """Serve requests where and in the order that a plan states.

    Args:
        requests: requests in order of arrival.
        cluster: the instances.
        instance: (n,) of each request; −1: refused.
        slot: (n,) of its instance.
        start_s: (n,) planned starts; only their order in a slot matters.
        speed: speed of decoding, as in `cluster.simulate`.

    Raises:
        InputError: an instance or slot that is not there, or an instance of another model.
    """
    _validate(requests, cluster, instance, slot)
    n = len(requests)
    chosen = np.flatnonzero(instance >= 0)
    order = chosen[np.lexsort((start_s[chosen], slot[chosen], instance[chosen]))]
    before, after = np.full(n, -1), np.full(n, -1)
    same = (instance[order][1:] == instance[order][:-1]) & (slot[order][1:] == slot[order][:-1])
    before[order[1:][same]], after[order[:-1][same]] = order[:-1][same], order[1:][same]
    by_arrival = chosen[np.argsort(instance[chosen], kind="stable")]
    edges = np.searchsorted(instance[by_arrival], np.arange(len(cluster) + 1))
    full = cluster.full_tokens_per_s
    rates = cluster.tokens_per_s if speed == "load" else np.repeat(full[:, None], cluster.tokens_per_s.shape[1], axis=1)
    start, first, finish = (np.full(n, np.inf) for _ in range(3))
    promised, busy = np.zeros(n, np.bool_), np.zeros(len(cluster))
    for j in range(len(cluster)):
        mine = by_arrival[edges[j] : edges[j + 1]]
        prefill = cluster.prefill_s[j] + cluster.prefill_s_per_token[j] * requests.prompt_tokens
        busy[j] = _run(
            mine, requests.arrival_s, prefill, requests.output_tokens.astype(np.float64), requests.due_s,
            np.ascontiguousarray(rates[j]), before, after, start, first, finish, promised,
        )  # fmt: skip
    return Outcomes(np.where(instance >= 0, instance, -1).astype(np.int64), start, first, finish, promised, busy)


def _validate(requests: Requests, cluster: Cluster, instance: Ints, slot: Ints) -> None:
    used = instance >= 0
    if used.any() and int(instance.max()) >= len(cluster):
        raise InputError(Mistake(None, "instance", int(instance.max()), f"below {len(cluster)} instances"))
    if (cluster.model[instance[used]] != requests.model[used]).any():
        raise InputError(Mistake(None, "instance", "of another model", "instances of the requests' models"))
    if ((slot[used] < 0) | (slot[used] >= cluster.slots[instance[used]])).any():
        raise InputError(Mistake(None, "slot", "not there", "slots of the instances"))


@njit(cache=True)
def _run(mine, arrival, prefill, output, due, rates, before, after, start, first, finish, promised):  # type: ignore[no-untyped-def]
    """One instance, event by event; time with anybody in a slot. V(t) = ∫ r(w) dt as in `engine`."""
    joins = [(0.0, np.int64(0)) for _ in range(0)]  # by end of prefill
    done = [(0.0, np.int64(0)) for _ in range(0)]  # by V at completion
    here = np.zeros(len(arrival), np.bool_)
    now, tokens, active, busy, at = 0.0, 0.0, 0, 0.0, 0
    while True:
        event, kind = np.inf, -1
        if len(done) > 0:
            event, kind = now + max(0.0, done[0][0] - tokens) / rates[active - 1], 0
        if len(joins) > 0 and joins[0][0] < event:
            event, kind = joins[0][0], 1
        if at < len(mine) and arrival[mine[at]] < event:
            event, kind = arrival[mine[at]], 2
        if kind < 0:
            return busy
        if active > 0:
            busy += event - now
            tokens += rates[active - 1] * (event - now)
        now = event
        begins = np.int64(-1)
        if kind == 0:
            key, i = heappop(done)
            tokens = key
            finish[i] = now
            active -= 1
            if after[i] >= 0 and here[after[i]]:
                begins = after[i]
        elif kind == 1:
            i = heappop(joins)[1]
            first[i] = now
            heappush(done, (tokens + output[i], i))
        else:
            i = mine[at]
            at += 1
            here[i] = True
            if before[i] < 0 or finish[before[i]] < np.inf:
                begins = i
        if begins >= 0:
            active += 1
            start[begins] = now
            promised[begins] = now + prefill[begins] + output[begins] / rates[active - 1] <= due[begins]
            if prefill[begins] > 0:
                heappush(joins, (now + prefill[begins], begins))
            else:
                first[begins] = now
                heappush(done, (tokens + output[begins], begins))
