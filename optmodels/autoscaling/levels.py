"""Least-cost replica counts for a known path of needs: exact, without a solver.

Replica k runs wherever the need is at least k. Between two such stretches it either keeps running through the gap of g
minutes, or stops and is ordered again, which costs its start-up of L minutes and its draining of D minutes without
work. The constraints n_t ≥ need_t are an interval matrix, so the optimum separates by k: bridge a gap if and only if

    g ≤ L + D + S

where S is the cost of a start in minutes of one replica. After the last need a
replica stays to the end where that is no longer than draining. `tests/autoscaling/test_levels.py` compares with the
linear program. Orders before minute 0 are free of the past: replicas needed at minute 0 pay their start-up as any
others.
"""

from __future__ import annotations

import numpy as np

from optmodels.arrays import Ints


def bridge_gaps(need: Ints, longest_gap: int) -> Ints:
    """Replica counts, (n,): the need, with every gap of a level up to `longest_gap` minutes filled."""
    need = np.asarray(need, dtype=np.int64)
    found = need.copy()
    for level in range(1, int(need.max(initial=0)) + 1):
        running = np.flatnonzero(need >= level)
        gaps = np.diff(running) - 1
        for i in np.flatnonzero((gaps > 0) & (gaps <= longest_gap)):
            inside = slice(running[i] + 1, running[i + 1])
            found[inside] = np.maximum(found[inside], level)
    return found


def paid_minutes(count: Ints, start_up: int, draining: int) -> int:
    """Replica-minutes that a path of counts pays: running, starting up and draining.

    A start at minute 0 pays its start-up; replicas that run at the end pay no draining.
    """
    count = np.asarray(count, dtype=np.int64)
    change = np.diff(count, prepend=0)
    return int(count.sum() + start_up * np.maximum(change, 0).sum() + draining * np.maximum(-change, 0).sum())


def hindsight(need: Ints, start_up: int, draining: int, start_minutes: float = 0.0) -> Ints:
    """The counts of least cost that cover every minute's need, with perfect knowledge of the path."""
    found = bridge_gaps(need, int(start_up + draining + start_minutes))
    for level in range(1, int(found.max(initial=0)) + 1):
        last = int(np.flatnonzero(found >= level)[-1])
        if len(found) - 1 - last <= draining:
            found[last:] = np.maximum(found[last:], level)
    return found
