"""A fluid queue served in order of arrival: which requests wait longer than they may.

Within a step of ten seconds requests arrive evenly and n replicas serve n·r requests/s. A request that arrives to a
backlog B waits B/(n·r). It counts as late if that exceeds `slack_s`; requests that would wait longer than `patience_s`
leave, late already.
"""

from __future__ import annotations

from typing import Any

from numba import njit

STEP_S = 10.0
STEPS_A_MINUTE = 6


@njit(cache=True)  # type: ignore[untyped-decorator]
def serve_minute(arrivals: Any, first: int, capacity: float, backlog: float, slack_s: float, patience_s: float) -> Any:
    """Serve six steps; returns (late requests, backlog at the end, largest use of the capacity in a step).

    Args:
        arrivals: requests in each step of the history.
        first: index of the minute's first step.
        capacity: requests/s that the ready replicas serve.
        backlog: requests that wait at the start.
        slack_s, patience_s: seconds of waiting that a request may and will bear.
    """
    late, use = 0.0, 0.0
    for k in range(first, first + STEPS_A_MINUTE):
        came = arrivals[k]
        if capacity <= 0.0:
            late += came
            backlog = min(backlog + came, came * patience_s / STEP_S)
            use = 1e9 if came + backlog > 0.0 else use
            continue
        use = max(use, (came + backlog) / (STEP_S * capacity))
        slope = came / STEP_S - capacity
        allowed = slack_s * capacity
        end = backlog + STEP_S * slope
        if came > 0.0:
            if backlog <= allowed and end <= allowed:
                share = 0.0
            elif backlog > allowed and end > allowed:
                share = 1.0
            elif slope > 0.0:
                share = (end - allowed) / (STEP_S * slope)
            else:
                share = (backlog - allowed) / (-STEP_S * slope)
            late += share * came
        backlog = min(max(end, 0.0), patience_s * capacity)
    return late, backlog, use
