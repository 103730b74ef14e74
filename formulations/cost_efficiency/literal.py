r"""Cost efficiency in its obvious form: one α, one E2E, big-M rows switched by the candidate's binary.

The same optimum as `formulations.cost_efficiency.model`, kept as the reference the tight form is tested against and to
show what tightness buys: with every z fractional the big-M rows are slack, so the uncapped LP bound is far from the
optimum.

    min cost     s.t.  Σ z_c = 1,   α_min,c − (1 − z_c) ≤ α ≤ α_max,c + (1 − z_c),
                       memory_c(α), ttft_cj(α), tbt_cj(α) ≤ 1 + M_c·(1 − z_c)
                       e ≥ e2e_cj(α) − M_cj·(1 − z_c),   e ≤ E2E_SLO/T
    capped       cost = Σ P_c·z_c                        (P_c: USD per million tokens, `Data`)
    uncapped     cost ≥ P_c·e − M·(1 − z_c)
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyomo.environ as pyo

from formulations.cost_efficiency.model import CurvePieces, model_data, planned, progress, stated, tokens_per_usd
from formulations.cost_efficiency.plan import CostPlan
from formulations.cost_efficiency.points import CostTables
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.arrays import Array
from optmodels.formulation import Options
from optmodels.plans.outcome import Outcome
from optmodels.solver import Settings, solve_model

MOST_CANDIDATES = 500


def _largest(pieces: CurvePieces) -> Array:
    """max over α ∈ [0, 1] of each piece, at least 1; shape (m,)."""
    return np.maximum(np.maximum(pieces.u, pieces.u + pieces.v), 1.0)


def build_literal(problem: CostEfficiency, tables: CostTables) -> Any:
    """The ConcreteModel; objective in USD per million tokens, like `model.build`."""
    d = model_data(problem, tables)
    m = pyo.ConcreteModel(name=f"{problem.name} (literal)")
    m.C = pyo.Set(initialize=d.candidate.tolist())
    m.z = pyo.Var(m.C, domain=pyo.Binary)
    m.alpha = pyo.Var(bounds=(0, 1))
    longest = float(d.longest_e2e.max(initial=1.0))
    m.e = pyo.Var(bounds=(0, longest))
    m.rows = pyo.ConstraintList()
    m.nothing = pyo.Var(bounds=(0, 0))
    m.rows.add(sum(m.z[c] for c in m.C) + m.nothing == 1)
    most_expensive = float(d.usd_per_million_tokens.max(initial=1.0)) * longest
    if len(d.candidate) and np.isfinite(d.budget):
        m.rows.add(sum(usd * m.z[c] for c, usd in zip(m.C, d.usd_per_hour, strict=True)) <= d.budget)
    uncapped = problem.objective == "uncapped"
    m.usd = pyo.Var(bounds=(0, most_expensive))
    for i, c in enumerate(m.C):
        off = 1 - m.z[c]
        m.rows.add(m.alpha >= d.alpha_min[i] - off)
        m.rows.add(m.alpha <= d.alpha_max[i] + off)
        fixed, kv, host = d.vram_fixed[i], d.kv_in_vram[i], d.kv_in_host[i]
        if kv:
            m.rows.add(fixed + kv * (1 - m.alpha) <= 1 + (fixed + kv) * off)
        if np.isfinite(host):
            m.rows.add(host * m.alpha <= 1 + host * off)
        if uncapped:
            m.rows.add(m.usd >= d.usd_per_million_tokens[i] * m.e - most_expensive * off)
    for pieces in (d.ttft, d.tbt):
        for c, u, v, most in zip(pieces.candidate, pieces.u, pieces.v, _largest(pieces), strict=True):
            m.rows.add(u + v * m.alpha <= 1 + most * (1 - m.z[c]))
    for c, u, v, most in zip(d.e2e.candidate, d.e2e.u, d.e2e.v, _largest(d.e2e), strict=True):
        m.rows.add(m.e >= u + v * m.alpha - most * (1 - m.z[c]))
    usd = sum(price * m.z[c] for c, price in zip(m.C, d.usd_per_million_tokens, strict=True))
    m.cost = pyo.Objective(expr=m.usd if uncapped else usd)
    return m


def literal(problem: CostEfficiency, tables: CostTables, options: Options) -> Outcome[CostPlan]:
    """The literal form on all candidates, for `check --prove`: none of the pruning or tightening of `exact` is used."""
    if len(tables.candidates) > MOST_CANDIDATES:
        reason = f"{len(tables.candidates):,} candidates; the literal form is for up to {MOST_CANDIDATES:,}"
        return Outcome("no_solution_found", None, log={"reason": reason})
    began = time.perf_counter()
    model = build_literal(problem, tables)
    left = None if options.time_limit is None else max(0.1, options.time_limit - (time.perf_counter() - began))
    settings = Settings(left, options.gap, options.seed, on_event=progress(options))
    solved, seconds, size = solve_model(model, settings)
    plan = None
    if solved.x is not None:
        chosen = max(model.C, key=lambda c: model.z[c].value)
        plan = planned(tables, chosen)
    bound, events = tokens_per_usd(solved.bound), tuple(map(stated, solved.events))
    return Outcome(solved.status, plan, bound, solved.limit, seconds, size, {"solver": solved.message}, events)
