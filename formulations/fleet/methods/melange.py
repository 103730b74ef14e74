r"""Mélange's sliced assignment: every bucket is cut into F equal slices, each of which goes to one GPU type whole.

    min Σ_p C_p·n_p     s.t.  Σ_p k_wp = F,     Σ_w λ_w·l_wp·k_wp/F ≤ n_p,     k_wp, n_p ∈ ℤ≥0

Mélange writes a binary for every slice and GPU type; slices of one bucket are equal, so here they are counted: the
same optimum without F! symmetric copies. No stock, no budget, no queueing. With F → ∞ it becomes the fleet problem,
whose optimum costs at most as much for every F.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyomo.environ as pyo

from formulations.fleet.making import Choice
from formulations.fleet.methods.heuristics import finish
from formulations.fleet.plan import FleetPlan
from formulations.fleet.points import FleetTables, prune
from formulations.fleet.problem import Fleet
from optmodels.formulation import Options
from optmodels.plan.outcome import Outcome
from optmodels.solver import Settings, paused_gc, solve_model


def build_melange(tables: FleetTables, slices: int, t: int = 0) -> Any:
    """The ConcreteModel of one period, objective USD/h."""
    finite, rates = np.isfinite(tables.load), tables.rates[t]
    with paused_gc():
        m = pyo.ConcreteModel(name="melange")
        m.P = range(len(tables.points))
        m.W = [w for w in range(len(tables.demands)) if rates[w] > 0]
        pairs = [(w, p) for w in m.W for p in m.P if finite[w, p]]
        m.k = pyo.Var(pairs, domain=pyo.NonNegativeIntegers, bounds=(0, slices))
        m.n = pyo.Var(m.P, domain=pyo.NonNegativeIntegers)
        m.every_slice = pyo.Constraint(
            m.W, rule=lambda m, w: pyo.quicksum(m.k[w, p] for p in m.P if finite[w, p]) == slices
        )
        m.capacity = pyo.Constraint(
            [p for p in m.P if any(finite[w, p] for w in m.W)],
            rule=lambda m, p: pyo.quicksum(
                rates[w] * tables.load[w, p] / slices * m.k[w, p] for w in m.W if finite[w, p]
            ) <= m.n[p],
        )  # fmt: skip
        m.cost = pyo.Objective(expr=pyo.quicksum(tables.points.usd_per_hour[p] * m.n[p] for p in m.P))
    return m


def melange(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """Mélange's sliced assignment at the instance's slice factor, by HiGHS; a plan that breaks a limit is refused."""
    clock = time.perf_counter()
    if problem.objective != "min_cost" or len(tables.case.periods) > 1:
        return finish(problem, tables, None, clock, "only for objective: min_cost in one period")
    if tables.blocked:
        return finish(problem, tables, None, clock, "some bucket has no operating point")
    pruned, _ = prune(tables)
    slices = tables.case.slice_factor
    model = build_melange(pruned, slices)
    built = time.perf_counter()
    settings = Settings(options.time_limit or 60.0, options.gap, options.seed)
    solved, _, size = solve_model(model, settings)
    if solved.x is None:
        return finish(problem, pruned, None, clock, f"no solution within {settings.time_limit} s")
    n = np.array([[round(model.n[p].value or 0.0) for p in model.P]], dtype=np.intp)
    used = [(w, p, round(v.value or 0.0) / slices) for (w, p), v in model.k.items() if (v.value or 0.0) > 0.5]
    w, p = (np.array([u[k] for u in used], dtype=np.intp) for k in range(2))
    choice = Choice(n, np.zeros(len(used), dtype=np.intp), w, p, np.array([u[2] for u in used], dtype=float))
    outcome = finish(problem, pruned, choice, clock)
    # Its bound is one of the sliced problem, not of the fleet, so it is kept out of the certificate.
    log = outcome.log | {"slice_factor": slices, "sliced_status": solved.status, "sliced_bound": solved.bound}
    seconds = {"build": built - clock, "solve": time.perf_counter() - built}
    return Outcome(outcome.status, outcome.plan, None, solved.limit, seconds, size, log)
