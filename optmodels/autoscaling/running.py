"""A policy run on a history: replicas of one type, or of several behind one queue, minute by minute."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from optmodels.arrays import Array, Ints
from optmodels.autoscaling.history import History
from optmodels.autoscaling.policies import Observation, Policy
from optmodels.autoscaling.queue import STEPS_A_MINUTE, serve_minute


@dataclass(frozen=True)
class Replica:
    """What autoscaling adds and removes.

    Attributes:
        requests_per_s: rate within the SLO.
        usd_per_hour: price, from the order to the end of draining.
        start_min: whole minutes from the order until it serves.
        drain_min: whole minutes that it drains.
        slack_s: waiting that a request may have within its SLO.
        patience_s: waiting after which a client leaves.
    """

    requests_per_s: float
    usd_per_hour: float = 1.0
    start_min: int = 5
    drain_min: int = 1
    slack_s: float = 2.0
    patience_s: float = 30.0


@dataclass(frozen=True)
class PolicyRun:
    """One policy on a history, minute by minute; all arrays have shape (minutes,).

    Attributes:
        late: requests outside the SLO.
        requests: requests that arrived.
        paid: replica-minutes paid.
        changes: replicas ordered or stopped.
        ready: replicas that served.
    """

    late: Array
    requests: Array
    paid: Array
    changes: Array
    ready: Array


def run(policy: Policy, history: History, replica: Replica, least: int = 1) -> PolicyRun:
    """Simulate a policy minute by minute."""
    rates, minutes = history.per_minute, history.minutes
    arrivals = np.nan_to_num(history.requests[: minutes * STEPS_A_MINUTE], nan=0.0)
    late, paid, changes, ready_path = (np.zeros(minutes) for _ in range(4))
    coming: deque[list[int]] = deque()  # [minute it is ready, count, type 0]
    measured = np.flatnonzero(np.isfinite(rates))
    first = float(rates[measured[0]]) if len(measured) else 0.0
    ready = max(math.ceil(first / replica.requests_per_s / 0.7), least)
    seen = Observation(0, rates[:0], first, first, 0.0, 0.0, ready, 0, replica.requests_per_s)
    draining: deque[list[int]] = deque()  # [minute it ends, count]
    for t in range(minutes):
        while coming and coming[0][0] <= t:
            ready += coming.popleft()[1]
        while draining and draining[0][0] <= t:
            draining.popleft()
        seen.minute, seen.rates, seen.ready = t, rates[:t], ready
        seen.pending, seen.coming = sum(x[1] for x in coming), coming
        change = max(int(policy(seen)), least) - ready - seen.pending
        changes[t] = abs(change)
        if change > 0:
            coming.append([t + replica.start_min, change, 0])
            if replica.start_min == 0:
                ready += coming.pop()[1]
        while change < 0 and coming:  # cancel the newest orders first
            taken = min(-change, coming[-1][1])
            coming[-1][1] -= taken
            change += taken
            if not coming[-1][1]:
                coming.pop()
        if change < 0:
            ready += change
            if replica.drain_min:
                draining.append([t + replica.drain_min, -change])
        paid[t] = ready + sum(x[1] for x in coming) + sum(c for _, c in draining)
        late[t], seen.backlog, seen.use = serve_minute(
            arrivals, t * STEPS_A_MINUTE, ready * replica.requests_per_s, seen.backlog, replica.slack_s,
            replica.patience_s,
        )  # fmt: skip
        ready_path[t] = ready
        if math.isfinite(rates[t]):
            seen.rate = float(rates[t])
            seen.newest_rate = float(arrivals[(t + 1) * STEPS_A_MINUTE - 1]) / 10.0
    requests = arrivals.reshape(-1, STEPS_A_MINUTE).sum(axis=1)
    return PolicyRun(late, requests, paid, changes, ready_path)


class TypesPolicy(Protocol):
    """A rule from an observation to the wanted number of replicas of each type."""

    def __call__(self, seen: Observation) -> Ints:
        """Wanted replicas, ready and starting, (G,)."""
        ...


def run_types(policy: TypesPolicy, history: History, types: Sequence[Replica]) -> PolicyRun:
    """Simulate a policy minute by minute; all types serve one queue.

    Args:
        policy: counts by type.
        history: requests.
        types: replicas, the one that rivals use first. Slack and patience are the first's.

    Returns:
        Minutes as of `backtest.run`; `paid` is in minutes of the first type at its price.
    """
    first, minutes, rates = types[0], history.minutes, history.per_minute
    arrivals = np.nan_to_num(history.requests[: minutes * STEPS_A_MINUTE], nan=0.0)
    rate = np.array([x.requests_per_s for x in types])
    price = np.array([x.usd_per_hour for x in types]) / first.usd_per_hour
    measured = np.flatnonzero(np.isfinite(rates))
    now = float(rates[measured[0]]) if len(measured) else 0.0
    ready = np.zeros(len(types), dtype=np.int64)
    ready[0] = max(int(np.ceil(now / rate[0] / 0.7)), 1)
    coming: list[list[int]] = []  # minute in which it is ready, count, type
    draining: list[list[int]] = []
    seen = Observation(0, rates[:0], now, now, 0.0, 0.0, 0, 0, float(rate[0]))
    late, paid, changes, ready_path = (np.zeros(minutes) for _ in range(4))
    for t in range(minutes):
        for _, count, g in (x for x in coming if x[0] <= t):
            ready[g] += count
        coming = [x for x in coming if x[0] > t]
        draining = [x for x in draining if x[0] > t]
        seen.minute, seen.rates, seen.ready, seen.counts = t, rates[:t], int(ready.sum()), ready.copy()
        seen.pending, seen.coming = sum(x[1] for x in coming), coming
        there = ready.copy()
        for _, count, g in coming:
            there[g] += count
        change = np.maximum(np.asarray(policy(seen)), 0) - there
        changes[t] = np.abs(change).sum()
        for g in np.flatnonzero(change).tolist():
            wanted = int(change[g])
            if wanted > 0:
                coming.append([t + types[g].start_min, wanted, g])
            for x in reversed([x for x in coming if x[2] == g] if wanted < 0 else []):  # cancel the newest first
                taken = min(-wanted, x[1])
                x[1] -= taken
                wanted += taken
            if wanted < 0:
                gone = min(-wanted, int(ready[g]))
                ready[g] -= gone
                draining.append([t + types[g].drain_min, gone, g])
        for x in (x for x in coming if x[0] <= t):
            ready[x[2]] += x[1]
            x[1] = 0
        coming = [x for x in coming if x[1]]
        draining = [x for x in draining if x[0] > t]
        paid[t] = float(ready @ price) + sum(n * price[g] for _, n, g in (*coming, *draining))
        late[t], seen.backlog, seen.use = serve_minute(
            arrivals, t * STEPS_A_MINUTE, float(ready @ rate), seen.backlog, first.slack_s, first.patience_s
        )
        ready_path[t] = ready.sum()
        if np.isfinite(rates[t]):
            seen.rate = float(rates[t])
            seen.newest_rate = float(arrivals[(t + 1) * STEPS_A_MINUTE - 1]) / 10.0
    return PolicyRun(late, arrivals.reshape(-1, STEPS_A_MINUTE).sum(axis=1), paid, changes, ready_path)
