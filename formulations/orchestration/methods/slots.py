"""A quick simulation of like instances as one pool of slots, for many numbers of instances at once.

MaaSO §V-A's virtual slots without queues of their own: a request takes the slot that is free first, unless it would
miss its deadline at the full-batch rate (overflow protection). Its speed follows the load it meets, spread evenly
over the instances. `simulation.engine` knows better: queues by instance, speeds that change underway.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

import numpy as np
from numba import njit


@njit(cache=True)
def pooled(arrival, prefill, output, latest, satisfaction, throughput, latency, waiting, rates, counts):  # type: ignore[no-untyped-def]
    """Gains of this many instances, until more gain nothing.

    Args:
        arrival, prefill: (n,) seconds.
        output: (n,) tokens.
        latest: (n,) latest start, seconds.
        satisfaction, throughput: (n,) gained in S and T by a request in time.
        latency: gained in L by a request in time whose first token comes at once.
        waiting: waiting time lost by every second until the first token.
        rates: (slots,) tokens/s of one request among 1 … slots.
        counts: numbers of instances to try, ascending.

    Returns:
        (tried, 4): S, T, L and requests in time.
    """
    n, slots = len(arrival), len(rates)
    found = np.zeros((len(counts), 4))
    prefills = 0.0
    for i in range(n):
        prefills += prefill[i]
    for j in range(len(counts)):
        count = counts[j]
        room = slots * count
        free = [0.0 for _ in range(0)]  # when each busy slot is free, a heap
        s, t, waited, served = 0.0, 0.0, 0.0, 0
        for i in range(n):
            now = arrival[i]
            while len(free) > 0 and free[0] <= now:
                heappop(free)
            full = len(free) >= room
            start = free[0] if full else now
            if start > latest[i]:
                continue
            load = slots if full else len(free) // count + 1
            end = start + prefill[i] + output[i] / rates[load - 1]
            if full:
                heapreplace(free, end)
            else:
                heappush(free, end)
            s += satisfaction[i]
            t += throughput[i]
            waited += start + prefill[i] - now
            served += 1
        found[j, 0] = s
        found[j, 1] = t
        found[j, 2] = latency * served - waiting * waited
        found[j, 3] = served
        if served == n and waited - prefills < 1e-3 * n:
            return found[: j + 1]
    return found
