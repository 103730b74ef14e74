r"""Cost efficiency in its obvious form: one α, one E2E, big-M rows switched by the skeleton's binary.

The same optimum as `cost_efficiency`, kept as the reference the tight form is tested against and to show what
tightness buys: with every z fractional the big-M rows are slack, so the uncapped LP bound is far from the optimum.

    min cost     s.t.  Σ z_c = 1,   α_min,c − (1 − z_c) ≤ α ≤ α_max,c + (1 − z_c),
                       memory_c(α), ttft_cj(α), tbt_cj(α) ≤ 1 + M_c·(1 − z_c)
                       e ≥ e2e_cj(α) − M_cj·(1 − z_c),   e ≤ E2E_SLO/T
    capped       cost = Σ P_c·z_c                        (P_c: USD per million tokens, `Data`)
    uncapped     cost ≥ P_c·e − M·(1 − z_c)
"""

from __future__ import annotations

from typing import Any

import pyomo.environ as pyo

from formulations.cost_efficiency.model import Piece, model_data
from formulations.cost_efficiency.points import CostTables
from formulations.cost_efficiency.problem import CostEfficiency


def _largest(piece: Piece) -> float:
    """max over α ∈ [0, 1] of the piece, at least 1."""
    return max(piece.u, piece.u + piece.v, 1.0)


def build_literal(problem: CostEfficiency, tables: CostTables) -> Any:
    """The ConcreteModel; objective in USD per million tokens, like `cost_efficiency.build`."""
    read = model_data(problem, tables)
    data, price = read.of, read.usd_per_million_tokens
    m = pyo.ConcreteModel(name=f"{problem.name} (literal)")
    m.C = pyo.Set(initialize=list(data))
    m.z = pyo.Var(m.C, domain=pyo.Binary)
    m.alpha = pyo.Var(bounds=(0, 1))
    longest = max((s.longest_e2e for s in data.values()), default=1.0)
    m.e = pyo.Var(bounds=(0, longest))
    m.rows = pyo.ConstraintList()
    m.nothing = pyo.Var(bounds=(0, 0))
    m.rows.add(sum(m.z[c] for c in m.C) + m.nothing == 1)
    dearest = max(price.values(), default=1.0) * longest
    if data and problem.budget_usd_per_hour is not None:
        m.rows.add(sum(data[c].usd_per_hour * m.z[c] for c in m.C) <= problem.budget_usd_per_hour)
    uncapped = problem.objective == "uncapped"
    m.usd = pyo.Var(bounds=(0, dearest))
    for c, s in data.items():
        off = 1 - m.z[c]
        m.rows.add(m.alpha >= s.alpha_min - off)
        m.rows.add(m.alpha <= s.alpha_max + off)
        if s.kv_in_vram:
            m.rows.add(s.vram_fixed + s.kv_in_vram * (1 - m.alpha) <= 1 + (s.vram_fixed + s.kv_in_vram) * off)
        if s.kv_in_host is not None:
            m.rows.add(s.kv_in_host * m.alpha <= 1 + s.kv_in_host * off)
        for piece in (*s.ttft, *s.tbt):
            m.rows.add(piece.u + piece.v * m.alpha <= 1 + _largest(piece) * off)
        for piece in s.e2e:
            m.rows.add(m.e >= piece.u + piece.v * m.alpha - _largest(piece) * off)
        if uncapped:
            m.rows.add(m.usd >= price[c] * m.e - dearest * off)
    m.cost = pyo.Objective(expr=m.usd if uncapped else sum(price[c] * m.z[c] for c in m.C))
    return m
