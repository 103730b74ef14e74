"""Independent check of a plan made for draws: what its lines serve in each draw, by a linear program of its own.

The draws are data of the instance. Loads come from the check of the lines; SciPy solves the program draw by draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from formulations.fleet.plan import DeploymentLine, FleetPlan
from formulations.fleet.problem import FleetCase
from optmodels.plans.findings import Findings

Loads = Mapping[str, Sequence[float]]  # demand → deployments per request/s on each capacity, in each piece of a trace
ALL_SERVED = 1e-4  # of the requests of a draw
CLOSE = 2e-6  # of shares: the tolerances of two solvers


def check_scenarios(
    found: Findings, case: FleetCase, p: FleetPlan, lines: Sequence[tuple[DeploymentLine, Loads]]
) -> float:  # fmt: skip
    """Checks the plan's `scenarios`; returns the cost of unserved requests, USD/h."""
    draws, stated = case.draws, p.scenarios
    found.require("scenarios exactly with the instance's", (draws is None) == (stated is None), stated, draws)
    if draws is None or stated is None:
        return 0.0
    routes = stated.routes
    known = [[name for name in route if name in able] for route, (_, able) in zip(routes, lines, strict=False)]
    possible = len(routes) == len(lines) and known == routes and all(len(set(x)) == len(x) for x in routes)
    found.require("routes in draws: for each line demands whose limits it meets", possible, routes,
                  [sorted(able) for _, able in lines])  # fmt: skip
    if not possible:
        return stated.usd_per_hour
    lines = [(d, {name: able[name] for name in route}) for (d, able), route in zip(lines, routes, strict=True)]
    rates = {d.name: d.requests_per_s[0] for d in case.demands if d.requests_per_s[0] > 0}
    workload = {d.name: d.workload for d in case.demands}
    shares, missed = [], []
    for c in range(len(draws)):
        now = {name: rate * float(draws.demand[workload[name]][c]) for name, rate in rates.items()}
        slow = [max((float(draws.slow[m.machine][c]) if m.machine in draws.slow else 1.0) for m in d.machines)
                for d, _ in lines]  # fmt: skip
        total = sum(now.values())
        short = max(total - _most(now, lines, slow), 0.0)
        shares.append(short / total if total else 0.0)
        missed.append(short)
    mean, usd = float(np.mean(shares)), 3.6 * draws.usd_per_1000 * float(np.mean(missed))
    found.require("number of draws", stated.draws == len(draws), stated.draws, len(draws))
    for name, value, true, scale in (
        ("unserved share, mean over the draws", stated.unserved_share, mean, 1.0),
        ("unserved share of the worst draw", stated.worst_share, max(shares), 1.0),
        ("cost of unserved requests", stated.usd_per_hour, usd, max(usd, p.total_usd_per_hour, 1.0)),
    ):  # fmt: skip
        found.require(name, abs(value - true) <= CLOSE * scale, value, true)
    served = np.array(shares)
    low, high = ((served <= ALL_SERVED + e).mean() for e in (-CLOSE, CLOSE))
    found.require("share of the draws with all served", low - 1e-9 <= stated.all_served <= high + 1e-9,
                  stated.all_served, float(high))  # fmt: skip
    if draws.unserved is not None:
        found.at_most("unserved share, mean over the draws", mean, draws.unserved + CLOSE)
    return stated.usd_per_hour


def _most(rates: Mapping[str, float], lines: Sequence[tuple[DeploymentLine, Loads]], slow: Sequence[float]) -> float:
    """The most requests/s of these rates that the lines serve, each slower by its factor."""
    pairs = [(k, name) for k, (_, able) in enumerate(lines) for name in able if rates.get(name, 0.0) > 0]
    if not pairs:
        return 0.0
    names = list(rates)
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    limits: list[float] = [1.0] * len(names)
    first: dict[int, int] = {}
    for j, (k, name) in enumerate(pairs):
        d, able = lines[k]
        loads = able[name]
        if k not in first:
            first[k] = len(limits)
            limits += [float(d.count)] * len(loads)
        for q, load in enumerate(loads):
            rows.append(first[k] + q)
            columns.append(j)
            values.append(load * rates[name] * slow[k])
        rows.append(names.index(name))
        columns.append(j)
        values.append(1.0)
    A = sp.csr_array((values, (rows, columns)), shape=(len(limits), len(pairs)))
    from scipy import optimize  # here, as few checks need it and it takes long to import

    solve: Any = optimize.linprog  # its stubs know no sparse arrays
    done = solve([-rates[name] for _, name in pairs], A_ub=A, b_ub=limits, bounds=(0, 1), method="highs")
    return 0.0 if done.x is None else float(-done.fun)
