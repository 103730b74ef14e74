r"""Cost efficiency: one workload, one pool, the deployment with the most tokens per dollar (LLM-Pilot LP 2–18).

Sets
    c ∈ C                skeletons: (main machine, its market, strategy, AO machine, its market, parallelism, k/K/N)
    j ∈ J_c              pieces of skeleton c's convex latency curve over α

Parameters, all from tables
    C_c                  cost of skeleton c, USD per hour
    (u, v)_cj            chord j over α as u + v·α: TTFT and TBT as shares of their limits, E2E in units of T
    W_c, KV_c, V_c, H_c  weights + activations, KV cache, VRAM, host or AO memory, bytes

Variables
    z_c ∈ {0, 1}         skeleton c is chosen
    a_c ∈ [0, 1]         α·z_c: the offload ratio of the chosen skeleton, 0 elsewhere
    e_c ≥ 0              E2E of the chosen skeleton in units of T, the shortest E2E of any skeleton; 0 elsewhere

Objective (the reciprocal of CE: USD per million tokens)
    capped    LP(9)      min Σ C_c/(3600·TPS_SLO)·10⁶ z_c
    uncapped  TPS/C      min Σ C_c·T/(3600·tokens)·10⁶ e_c
    and among equals, lexicographically, the simplest strategy family and then the shortest E2E, min Σ e_c

Every row is the perspective of a convex piece, so {(z, a, e)} is the convex hull of the union of the skeletons'
polyhedra (Balas): the LP relaxation has an integral optimum and its bound is the optimum. There are no big-M
constants, and α stays continuous. `cost_efficiency_literal` is the obvious form, with big M, that tests compare.

The shared-AO waiting time (LP 16, M/D/1) enters through the same pieces; how far a chord can lie above the curve is
certified in the tables and zero at the nodes that decide the optimum (`points.cost_efficiency.Nodes`).

    python -m formulations.cost_efficiency INSTANCE      solves an instance file
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyomo.environ as pyo

from formulations.cost_efficiency.making import make_plan
from formulations.cost_efficiency.plan import CostPlan
from formulations.cost_efficiency.points import CostTables
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.serving.points import in_memory, linearise
from optmodels.solver import paused_gc

MIN_PIECE = 1e-7  # α-width below which a chord's slope is rounding noise; leaving it out moves nothing above 1e-7


@dataclass(frozen=True)
class Piece:
    """u·z + v·a, one chord of a curve as a share of its limit."""

    u: float
    v: float


@dataclass(frozen=True)
class Skeleton:
    """The data of one skeleton in the model; memory in units of its capacity, times as in the module's docstring."""

    usd_per_hour: float
    rank: int  # of its family in FAMILIES, which lists them from simple to involved
    alpha_min: float
    alpha_max: float
    vram_fixed: float
    kv_in_vram: float
    kv_in_host: float | None
    ttft: tuple[Piece, ...]
    tbt: tuple[Piece, ...]
    e2e: tuple[Piece, ...]
    longest_e2e: float  # E2E_SLO, or the longest E2E the skeleton can have where that is shorter, in units of T


@dataclass(frozen=True)
class Data:
    """What the rules read."""

    of: dict[int, Skeleton]
    budget: float | None
    usd_per_million_tokens: dict[int, float]  # at TPS_SLO if capped, at E2E = T if uncapped


def model_data(problem: CostEfficiency, tables: CostTables, max_error: float = 1e-3) -> Data:
    """Model data of every skeleton in the tables that fits memory and has some α within each limit."""
    compact = tables.compact()
    curves, limits = compact.curves, tables.limits
    fits = np.flatnonzero(in_memory(curves))
    position = {int(c): i for i, c in enumerate(fits)}
    part = curves.take(fits)
    nodes = linearise(part, limits, max_error)
    with np.errstate(divide="ignore", invalid="ignore"):
        host_share = np.where(part.host > 0, part.kv / part.host, np.nan)
        vram = np.where(part.vram > 0, part.vram, 1.0)
    # The nodes hold the minimiser of every curve, so a node within each limit is needed for any feasible α; without
    # one (or with a saturated AO machine, infinitely slow) the skeleton has no place in the model.
    meets = [
        (value <= limit).any(axis=1)
        for value, limit in ((nodes.ttft_s, limits.ttft_s), (nodes.tbt_s, limits.tbt_s), (nodes.e2e_s, limits.e2e_s))
    ]
    hopeful = np.logical_and.reduce(meets) & np.isfinite(nodes.e2e_s).all(axis=1)
    position = {c: i for c, i in position.items() if hopeful[i]}
    shortest = float(nodes.e2e_s[hopeful].min()) if hopeful.any() else 1.0
    of = {}
    for row, c in enumerate(compact.skeletons.configuration):
        i = position.get(int(c))
        if i is None:
            continue
        alpha = nodes.alpha[i]
        of[row] = Skeleton(
            usd_per_hour=float(compact.skeletons.usd_per_hour[row]), rank=int(compact.configurations.family[c]),
            alpha_min=float(part.alpha_lo[i]), alpha_max=float(part.alpha_hi[i]),
            vram_fixed=float(part.vram_fixed[i] / vram[i]), kv_in_vram=float(part.kv[i] / vram[i]),
            kv_in_host=None if np.isnan(host_share[i]) else float(host_share[i]),
            ttft=_pieces(alpha, nodes.ttft_s[i], limits.ttft_s),
            tbt=_pieces(alpha, nodes.tbt_s[i], limits.tbt_s),
            e2e=_pieces(alpha, nodes.e2e_s[i], shortest),
            longest_e2e=min(limits.e2e_s, float(nodes.e2e_s[i].max())) / shortest,
        )  # fmt: skip
    seconds_per_million = (
        1e6 / problem.slo.tps if problem.objective == "capped" else shortest / tables.case.tokens * 1e6
    )
    price = {c: s.usd_per_hour / 3600.0 * seconds_per_million for c, s in of.items()}
    return Data(of, problem.budget_usd_per_hour, price)


def _pieces(alpha: Any, value: Any, limit: float) -> tuple[Piece, ...]:
    """Chords between successive nodes in units of `limit`; none where there is no limit."""
    if not np.isfinite(limit):
        return ()
    y = value / limit
    wide = np.flatnonzero(np.diff(alpha) > MIN_PIECE)
    if not len(wide):
        return (Piece(float(y.max()), 0.0),)
    slope = (y[wide + 1] - y[wide]) / (alpha[wide + 1] - alpha[wide])
    lines = np.unique(np.stack([y[wide] - slope * alpha[wide], slope], axis=1), axis=0)
    return tuple(Piece(float(u), float(v)) for u, v in lines)


# ------------------------------------------------------------------------------------------------- constraints


def choose_one(m: Any) -> Any:
    """Σ_c z_c = 1: exactly one deployment."""
    return (sum(m.z[c] for c in m.C) if len(m.C) else m.nothing) == 1


def within_budget(m: Any) -> Any:
    """Σ_c C_c·z_c ≤ C_max (LP 10)."""
    if m.data.budget is None or not len(m.C):
        return pyo.Constraint.Skip
    return sum(m.data.of[c].usd_per_hour * m.z[c] for c in m.C) <= m.data.budget


def alpha_at_least(m: Any, c: int) -> Any:
    """a_c ≥ α_min,c·z_c: the range that memory, the user and light load of a shared AO machine leave."""
    low = m.data.of[c].alpha_min
    return m.a[c] >= low * m.z[c] if low > 0 else pyo.Constraint.Skip


def alpha_at_most(m: Any, c: int) -> Any:
    """a_c ≤ α_max,c·z_c."""
    return m.a[c] <= m.data.of[c].alpha_max * m.z[c]


def vram(m: Any, c: int) -> Any:
    """W_c·z_c + KV_c·(z_c − a_c) ≤ V_c·z_c: weights, activations and the resident KV cache fit."""
    s = m.data.of[c]
    if s.kv_in_vram == 0:
        return pyo.Constraint.Skip
    return s.vram_fixed * m.z[c] + s.kv_in_vram * (m.z[c] - m.a[c]) <= m.z[c]


def host_memory(m: Any, c: int) -> Any:
    """KV_c·a_c ≤ H_c·z_c: the offloaded KV cache fits host RAM, the disk volume or the AO machine's VRAM."""
    share = m.data.of[c].kv_in_host
    return share * m.a[c] <= m.z[c] if share is not None else pyo.Constraint.Skip


def ttft(m: Any, c: int, j: int) -> Any:
    """TTFT_c(α) ≤ TTFT_SLO, piece j (LP 4, 7, 11, 13)."""
    piece = m.data.of[c].ttft[j]
    return piece.u * m.z[c] + piece.v * m.a[c] <= m.z[c]


def tbt(m: Any, c: int, j: int) -> Any:
    """TBT_c(α) ≤ TBT_SLO, piece j (LP 5, 7, 12, 14–16)."""
    piece = m.data.of[c].tbt[j]
    return piece.u * m.z[c] + piece.v * m.a[c] <= m.z[c]


def e2e_epigraph(m: Any, c: int, j: int) -> Any:
    """e_c ≥ E2E_c(α)/T, piece j (LP 3, 17)."""
    piece = m.data.of[c].e2e[j]
    return m.e[c] >= piece.u * m.z[c] + piece.v * m.a[c]


def throughput(m: Any, c: int) -> Any:
    """e_c ≤ E2E_SLO/T·z_c: TPS ≥ TPS_SLO (LP 6–8), because TPS = tokens/E2E."""
    return m.e[c] <= m.data.of[c].longest_e2e * m.z[c]


# ------------------------------------------------------------------------------------------------------- model


def attach(block: Any, problem: CostEfficiency, tables: CostTables) -> None:
    """Put sets, variables and constraints on a Pyomo block; no objective.

    The block gets ``z``, ``a``, ``e`` by skeleton (rows of `tables.skeletons`) and the expressions
    ``usd_per_hour`` and ``usd_per_million_tokens``, for use in a larger model.
    """
    block.data = model_data(problem, tables)
    of = block.data.of
    block.C = pyo.Set(initialize=list(of))
    block.z = pyo.Var(block.C, domain=pyo.Binary)
    block.a = pyo.Var(block.C, bounds=(0, 1))
    block.e = pyo.Var(block.C, domain=pyo.NonNegativeReals)
    block.nothing = pyo.Var(bounds=(0, 0))  # what is left to choose when no skeleton is: the row stays, infeasible
    block.choose_one = pyo.Constraint(rule=choose_one)
    block.within_budget = pyo.Constraint(rule=within_budget)
    for rule in (alpha_at_least, alpha_at_most, vram, host_memory, throughput):
        setattr(block, rule.__name__, pyo.Constraint(block.C, rule=rule))
    for by_piece, pieces in ((ttft, "ttft"), (tbt, "tbt"), (e2e_epigraph, "e2e")):
        index = [(c, j) for c in of for j in range(len(getattr(of[c], pieces)))]
        setattr(block, by_piece.__name__, pyo.Constraint(index, rule=by_piece))
    block.usd_per_hour = pyo.Expression(expr=sum(of[c].usd_per_hour * block.z[c] for c in block.C))
    rated = block.z if problem.objective == "capped" else block.e
    block.usd_per_million_tokens = pyo.Expression(
        expr=sum(block.data.usd_per_million_tokens[c] * rated[c] for c in block.C)
    )


def build(problem: CostEfficiency, tables: CostTables) -> Any:
    """The ConcreteModel of the problem on the given tables (prune them first for speed: `points.prune`).

    Without any skeleton left the model is infeasible: `choose_one` has nothing to choose.
    """
    with paused_gc():
        model = pyo.ConcreteModel(name=problem.name or problem.formulation)
        attach(model, problem, tables)
        model.cost = pyo.Objective(expr=model.usd_per_million_tokens)
        model.simplest = pyo.Objective(expr=sum(model.data.of[c].rank * model.z[c] for c in model.C))
        model.fastest = pyo.Objective(expr=sum(model.e[c] for c in model.C))
    return model


def extract(model: Any, tables: CostTables) -> CostPlan:
    """The plan of a solved model; `tables` are those it was built on."""
    chosen = max(model.C, key=lambda c: model.z[c].value)
    s = model.data.of[chosen]
    alpha = float(np.clip(model.a[chosen].value, s.alpha_min, s.alpha_max))
    return make_plan(tables, chosen, alpha)
