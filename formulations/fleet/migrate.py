"""The ordered steps from the fleet that runs to a plan: start before stop, capacity kept at every step.

Each step starts or stops deployments of one kind. New ones start as far as stock and quota have room. Old ones stop
only as far as the engines that remain serve the planned rates within the SLOs by some routing (`carried`). Where stock
has no room for either, the step with the least loss comes next and states it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from formulations.fleet.carried import CarriedModel, Engines, engines_of, tables_of
from formulations.fleet.plan import DeploymentLine, FleetPlan
from formulations.fleet.points import FleetTables
from formulations.fleet.problem import Fleet
from optmodels.arrays import Array
from optmodels.errors import SolverError
from optmodels.solver import Settings, solve_compiled

SAME = 2e-4  # of the requests: the gap of the solves
MOST_STEPS = 500


def migrate(problem: Fleet, now: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """Steps from one plan's fleet to another's, at the rates of the second one's busiest period.

    Returns:
        ``attained`` before and after, ``steps`` (``do`` start or stop, ``deployment``, ``count``, ``attained`` and
        ``usd_per_hour`` after it, ``reason``), and ``kept``: no step serves less than both fleets do.

    Raises:
        InputError: engines that the instance has no operating point of.
    """
    old, new = FleetPlan.model_validate(now), FleetPlan.model_validate(plan)
    tables = tables_of(problem, new)
    t = int(np.argmax(tables.rates.sum(axis=1)))
    runs, wanted = _busiest(old), new.periods[t].deployments
    lines = [*runs, *wanted]
    engines = engines_of(tables, lines)
    K = len(engines.counts)
    before, after = np.zeros(K), np.zeros(K)
    np.add.at(before, engines.lines[: len(runs)], [d.count for d in runs])
    np.add.at(after, engines.lines[len(runs) :], [d.count for d in wanted])
    usd, names = np.zeros(K), [""] * K
    for k, d in zip(engines.lines.tolist(), lines, strict=True):
        usd[k], names[k] = d.usd_per_hour_each, _words(d)
    example = np.array([int(np.flatnonzero(engines.kind == k)[0]) for k in range(K)])
    takes = tables.consumption[example]
    limits = np.maximum(np.maximum(tables.limits, before @ takes), after @ takes) + 1e-9
    served = _Served(tables, engines, t)
    goal = min(served(before), served(after)) - SAME
    steps: list[dict[str, Any]] = []
    current = before.copy()

    def record(do: str, k: int, count: int, reason: str) -> None:
        steps.append({
            "do": do, "deployment": names[k], "count": count, "attained": served(current),
            "usd_per_hour": float(current @ usd), "reason": reason,
        })  # fmt: skip

    while (current != after).any():
        if len(steps) > MOST_STEPS:
            raise SolverError(f"no end after {MOST_STEPS} steps")
        moved = False
        for k in np.flatnonzero(current < after).tolist():
            taken = takes[k] > 0
            room = np.floor(((limits - current @ takes)[taken] / takes[k][taken]).min(initial=np.inf) + 1e-9)
            count = int(max(min(after[k] - current[k], room), 0))
            if count:
                current[k] += count
                record("start", k, count, "in the plan; the engines that run keep serving while these start")
                moved = True
        for k in sorted(np.flatnonzero(current > after).tolist(), key=lambda k: -usd[k]):
            count = _most_stops(served, current, k, int(current[k] - after[k]), goal)
            if count:
                current[k] -= count
                record(
                    "stop", k, count, "not in the plan; the rest serves every request within its SLO: drain, then stop"
                )
                moved = True
        if not moved:  # no room to start, and every stop loses requests
            losses = {k: served(_less(current, k, 1)) for k in np.flatnonzero(current > after).tolist()}
            k = max(losses, key=losses.__getitem__)
            current[k] -= 1
            record("stop", k, 1, "stock has no room for a new one beside it: the step with the least loss")
    least = min((s["attained"] for s in steps), default=served(after))
    return {
        "period": new.periods[t].name, "attained": {"before": served(before), "after": served(after), "least": least},
        "usd_per_hour": {"before": float(before @ usd), "after": float(after @ usd)}, "kept": bool(least >= goal),
        "steps": steps,
    }  # fmt: skip


class _Served:
    """Share of the requests that some routing serves by given counts, remembered."""

    def __init__(self, tables: FleetTables, engines: Engines, t: int) -> None:
        self.tables, self.engines, self.t = tables, engines, t
        self.known: dict[tuple[float, ...], float] = {}

    def __call__(self, counts: Array) -> float:
        key = tuple(counts.tolist())
        if key not in self.known:
            m = CarriedModel(self.tables, self.t, self.engines.kind, counts, common=False)
            total = float(self.tables.rates[self.t].sum())
            report = solve_compiled(m.compiled(), Settings(10.0, SAME / 2)) if len(m.x) else None
            self.known[key] = 0.0 if report is None or report.objective is None else min(report.objective / total, 1.0)
        return self.known[key]


def _most_stops(served: _Served, current: Array, k: int, most: int, goal: float) -> int:
    """The most deployments of a kind that can stop: the served share falls with each."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if served(_less(current, k, middle)) >= goal else (low, middle - 1)
    return low


def _less(counts: Array, k: int, count: int) -> Array:
    found = counts.copy()
    found[k] -= count
    return found


def _busiest(plan: FleetPlan) -> list[DeploymentLine]:
    return max(plan.periods, key=lambda q: q.requests_per_s).deployments


def _words(d: DeploymentLine) -> str:
    machines = " + ".join(
        f"{m.count}× {m.machine}{' in ' + m.region if m.region else ''} ({m.market})" for m in d.machines
    )
    what = d.model or d.loads or d.point or ""
    stage = "" if d.stage == "both" else f", {d.stage}"
    return f"{machines}: {what}{stage}"
