"""The flow model solved as it stands: the method `full`, and the end of `exact` on small instances."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from formulations.reserved_capacity.dispatch import less_a_hair
from formulations.reserved_capacity.model import TrafficModel
from formulations.reserved_capacity.points import ReservedTables, deviations
from optmodels.arrays import Array
from optmodels.formulation import Options
from optmodels.solver import Report, Settings, solve_compiled

SMALL = 20_000  # flow variables up to which an instance counts as small


def flow_variables(t: ReservedTables) -> int:
    """Of the flow model: the larger of its sizes."""
    return int(t.reach.sum()) * len(t.demand) * (1 + sum(len(deviations(t, g)) for g in t.guards))


def solve_flows(
    t: ReservedTables, options: Options, start: Array | None = None
) -> tuple[Report, Array | None, dict[str, int], dict[str, float]]:
    """The flow model by HiGHS, from reservations (C,) to start at, if any; of demand less the part that may be left.

    Returns:
        The solver's report, the reservations found (C,), the model's size, seconds by phase.

    Raises:
        SolverError: as `optmodels.solver.solve_compiled`.
    """
    clock = [time.perf_counter()]
    model = TrafficModel(replace(t, demand=less_a_hair(t)))
    clock.append(time.perf_counter())
    compiled = model.compiled()
    clock.append(time.perf_counter())
    at = None
    if start is not None:
        steps = start / model.step
        at = dict(zip((model.k.start + np.arange(len(steps))).tolist(), steps.tolist(), strict=True))
    settings = Settings(options.time_limit, options.gap, options.seed, on_event=options.on_event)
    solved = solve_compiled(compiled, settings, at)
    clock.append(time.perf_counter())
    counts = None if solved.x is None else model.counts(solved.x)
    return solved, counts, compiled.size, dict(zip(("build", "compile", "solve"), np.diff(clock).tolist(), strict=True))
