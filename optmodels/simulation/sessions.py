"""Sessions in simulation: turns are sent after the answer before them, so arrivals depend on the simulation.

A simulation with given arrivals is run again with the arrivals that its answers lead to, until these stay as they are:
then every turn comes its think time after the answer before it, as with closed-loop clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from optmodels.arrays import Array
from optmodels.simulation.summary import quantiles
from optmodels.traces.sessions import sent_after
from optmodels.traces.types import Trace

MOST_ROUNDS = 50
SAME_S = 1e-6


def in_sessions(
    trace: Trace, run: Callable[[Trace], tuple[Any, Mapping[str, Any]]], first: int = MOST_ROUNDS
) -> tuple[Any, Mapping[str, Any], Trace, str]:  # fmt: skip
    """Simulate a trace whose turns wait for the answers before them.

    Args:
        trace: the requests.
        run: simulates requests as they arrive; a report, and columns with ``e2e_s`` in their order.
        first: rounds at most.

    Returns:
        Report and columns of the last round, its requests, and a note on the arrivals (empty: none).
    """
    if trace.follows is None:
        return *run(trace), trace, ""
    moved = np.inf
    for rounds in range(1, first + 1):  # noqa: B007 - said below
        report, columns = run(trace)
        assert trace.follows is not None
        at = sent_after(trace, np.asarray(columns["e2e_s"], dtype=float))
        moved = float(np.abs(at - trace.arrival_s).max())
        if moved <= SAME_S:
            break
        trace = replace(trace, arrival_s=at).take(np.argsort(at, kind="stable"))
    turns = int((trace.follows.parent >= 0).sum()) if trace.follows is not None else 0
    if moved <= SAME_S:
        return report, columns, trace, f"{turns:,} turns sent after the answer before them (closed loops)"
    return report, columns, trace, (
        f"{turns:,} turns sent after the answer before them, to within {moved:.3g} s after {rounds} rounds"
    )  # fmt: skip


def beside_measured(trace: Trace, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Latencies of the trace's log next to simulated ones: means and percentiles of requests that have both."""
    found: dict[str, Any] = {}
    for name, measured in trace.measured.items():
        seen: Array = np.asarray(columns[name], dtype=float)
        both = np.isfinite(measured) & np.isfinite(seen)
        if both.any():
            log, simulated = quantiles(measured[both]), quantiles(seen[both])
            found[name] = {
                "requests": int(both.sum()), "measured": log, "simulated": simulated,
                "error": simulated["mean"] / log["mean"] - 1.0 if log["mean"] > 0 else None,
            }  # fmt: skip
    return found
