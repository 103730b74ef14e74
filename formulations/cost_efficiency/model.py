"""The tight form of cost efficiency as rows over arrays; README.md has the mathematics and why it is tight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from formulations.cost_efficiency.making import make_plan
from formulations.cost_efficiency.plan import CostPlan
from formulations.cost_efficiency.points import CostTables
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.arrays import Array, Index
from optmodels.batch.points import in_memory, linearise, optimise
from optmodels.formulation import Options
from optmodels.model import Family, Model, Rows, Terms, Variable, at_least, at_most, equal
from optmodels.solver.highs import Event

MIN_PIECE = 1e-7  # α-width below which a chord's slope is rounding noise; leaving it out moves nothing above 1e-7


@dataclass(frozen=True)
class CurvePieces:
    """Chords u + v·α of the candidates' curves as shares of a limit; shape (m,), each candidate's in a run."""

    row: Index  # of the candidate in `Data`
    candidate: Index
    j: Index  # which of its pieces
    u: Array
    v: Array

    def of(self, variable: Variable, coefficient: Array) -> Terms:
        """coefficient_cj·variable_c in row (c, j)."""
        return variable.at(self.row, (self.candidate, self.j), coefficient, ("c", "j"))


@dataclass(frozen=True)
class Data:
    """Candidates that fit memory and meet each limit at some α; shape (n,), memory in units of its capacity."""

    candidate: Index  # row of the tables' candidates
    usd_per_hour: Array
    usd_per_million_tokens: Array  # at TPS_SLO if capped, at E2E = T if uncapped
    rank: Index  # of the family in FAMILIES, which lists them from simple to involved
    alpha_min: Array
    alpha_max: Array
    vram_fixed: Array
    kv_in_vram: Array
    kv_in_host: Array  # NaN where nothing is offloaded
    longest_e2e: Array  # E2E_SLO, or the longest E2E the candidate can have where that is shorter, in units of T
    ttft: CurvePieces
    tbt: CurvePieces
    e2e: CurvePieces
    budget: float  # USD per hour, infinite without one


def model_data(problem: CostEfficiency, tables: CostTables, max_error: float = 1e-3) -> Data:
    """The arrays that the families read, from tables."""
    compact = tables.compact()
    limits = tables.limits
    fits = np.flatnonzero(in_memory(compact.curves))
    part = compact.curves.take(fits)
    nodes = linearise(part, limits, max_error)
    # The nodes hold the minimiser of every curve, so a node within each limit is needed for any feasible α; without
    # one (or with a saturated AO machine, infinitely slow) the candidate has no place in the model.
    meets = [
        (value <= limit).any(axis=1)
        for value, limit in ((nodes.ttft_s, limits.ttft_s), (nodes.tpot_s, limits.tpot_s), (nodes.e2e_s, limits.e2e_s))
    ]
    hopeful = np.logical_and.reduce(meets) & np.isfinite(nodes.e2e_s).all(axis=1)
    shortest = float(nodes.e2e_s[hopeful].min()) if hopeful.any() else 1.0
    position = np.full(len(compact.configurations), -1)
    position[fits[hopeful]] = np.flatnonzero(hopeful)
    candidate = np.flatnonzero(position[compact.candidates.configuration] >= 0)
    configuration = compact.candidates.configuration[candidate]
    i = position[configuration]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        host_share = np.where(part.host > 0, part.kv_host / part.host, np.nan)
    vram = np.where(part.vram > 0, part.vram, 1.0)
    usd_per_hour = compact.candidates.usd_per_hour[candidate]
    seconds_per_million = (
        1e6 / problem.slo.tps if problem.objective == "capped" else shortest / tables.case.tokens * 1e6
    )
    return Data(
        candidate=candidate, usd_per_hour=usd_per_hour,
        usd_per_million_tokens=usd_per_hour / 3600.0 * seconds_per_million,
        rank=compact.configurations.family[configuration],
        alpha_min=part.alpha_lo[i], alpha_max=part.alpha_hi[i],
        vram_fixed=(part.vram_fixed / vram)[i], kv_in_vram=(part.kv / vram)[i], kv_in_host=host_share[i],
        longest_e2e=np.minimum(limits.e2e_s, nodes.e2e_s.max(axis=1))[i] / shortest,
        ttft=_pieces(candidate, i, nodes.alpha, nodes.ttft_s, limits.ttft_s, within=1.0),
        tbt=_pieces(candidate, i, nodes.alpha, nodes.tpot_s, limits.tpot_s, within=1.0),
        e2e=_pieces(candidate, i, nodes.alpha, nodes.e2e_s, shortest),
        budget=limits.usd_per_hour,
    )  # fmt: skip


def _pieces(
    candidate: Index, curve: Index, alpha: Array, value: Array, limit: float, within: float = -np.inf
) -> CurvePieces:
    """Chords between successive nodes of every candidate's curve in units of `limit`; none where there is no limit.

    Chords that stay at or below `within` on the whole range of α are left out: a row u·z + v·a ≤ within·z follows then
    from those of the range.
    """
    used, which = np.unique(curve, return_inverse=True) if np.isfinite(limit) else (curve[:0], curve[:0])
    at, u, v = _chords(alpha[used], value[used] / limit)
    low, high = alpha[used].min(axis=1, initial=np.inf)[at], alpha[used].max(axis=1, initial=-np.inf)[at]
    kept = np.maximum(u + v * low, u + v * high) > within
    u, v, many = u[kept], v[kept], np.bincount(at[kept], minlength=len(used))
    each = many[which]  # chords of every candidate
    row = np.repeat(np.arange(len(each)), each)
    j = np.arange(len(row)) - np.repeat(np.cumsum(each) - each, each)
    chord = np.repeat((np.cumsum(many) - many)[which], each) + j
    return CurvePieces(row, candidate[row], j, u[chord], v[chord])


def _chords(alpha: Array, y: Array) -> tuple[Index, Array, Array]:
    """The chords u + v·α of curves, each once, in the order of curve, u, v: row of the curve, u and v, (m,) each.

    Args:
        alpha, y: nodes, (n, J); a curve without room for a chord has its largest value as a constant.
    """
    wide = np.diff(alpha, axis=1) > MIN_PIECE
    at, k = np.nonzero(wide)
    v = (y[at, k + 1] - y[at, k]) / (alpha[at, k + 1] - alpha[at, k])
    u = y[at, k] - v * alpha[at, k]
    flat = np.flatnonzero(~wide.any(axis=1))
    at, u = np.append(at, flat), np.append(u, y[flat].max(axis=1, initial=-np.inf))
    v = np.append(v, np.zeros(len(flat)))
    order = np.lexsort((v, u, at))
    at, u, v = at[order], u[order], v[order]
    same = (at[1:] == at[:-1]) & (u[1:] == u[:-1]) & (v[1:] == v[:-1])
    first = np.append(np.ones(min(len(at), 1), dtype=bool), ~same)
    return at[first], u[first], v[first]


class CostModel(Model):
    """One binary, one offload ratio and one E2E for each candidate; rows c of `tables.candidates` are the labels."""

    def __init__(self, problem: CostEfficiency, tables: CostTables) -> None:
        super().__init__(problem.name or problem.formulation)
        d = self.data = model_data(problem, tables)
        self.z = self.variable("z", ("c",), (d.candidate,), upper=1, integer=True)
        self.a = self.variable("a", ("c",), (d.candidate,), upper=1)
        self.e = self.variable("e", ("c",), (d.candidate,))
        self.state(FAMILIES)
        self.expression("usd_per_hour", self.z * d.usd_per_hour)
        rated = self.z if problem.objective == "capped" else self.e
        self.minimise("cost", self.expression("usd_per_million_tokens", rated * d.usd_per_million_tokens))
        self.minimise("simplest", self.z * d.rank)
        self.minimise("fastest", self.e)


# ------------------------------------------------------------------------------------------------- constraints


def choose_one(m: CostModel) -> Rows:
    """Σ_c z_c = 1: exactly one deployment."""
    return equal(1.0, m.z.by(), over=())


def within_budget(m: CostModel) -> Rows:
    """Σ_c C_c·z_c ≤ C_max (LP 10)."""
    return at_most(m.data.budget, (m.z * m.data.usd_per_hour).by())


def alpha_at_least(m: CostModel) -> Rows:
    """a_c ≥ α_min,c·z_c: the range that memory, the user and light load of a shared AO machine leave."""
    some, low = m.data.alpha_min > 0, m.data.alpha_min
    return at_least(0.0, m.a[some] - (m.z * low)[some])


def alpha_at_most(m: CostModel) -> Rows:
    """a_c ≤ α_max,c·z_c."""
    return at_most(0.0, m.a - m.z * m.data.alpha_max)


def vram(m: CostModel) -> Rows:
    """W_c·z_c + KV_c·(z_c − a_c) ≤ V_c·z_c: weights, activations and the resident KV cache fit (in units of V_c)."""
    some, fixed, kv = m.data.kv_in_vram > 0, m.data.vram_fixed, m.data.kv_in_vram
    return at_most(0.0, (m.z * (fixed + kv - 1))[some] - (m.a * kv)[some])


def host_memory(m: CostModel) -> Rows:
    """KV_c·a_c ≤ H_c·z_c: the offloaded KV cache fits host RAM, the disk volume or the AO machine's VRAM."""
    some, share = np.isfinite(m.data.kv_in_host), m.data.kv_in_host
    return at_most(0.0, (m.a * share)[some] - m.z[some])


def throughput(m: CostModel) -> Rows:
    """e_c ≤ E2E_SLO/T·z_c: TPS ≥ TPS_SLO (LP 6–8), because TPS = tokens/E2E; or the deadline, if that is shorter."""
    return at_most(0.0, m.e - m.z * m.data.longest_e2e)


def ttft(m: CostModel) -> Rows:
    """u_cj·z_c + v_cj·a_c ≤ z_c: TTFT_c(α) ≤ TTFT_SLO, piece j (LP 4, 7, 11, 13)."""
    p = m.data.ttft
    return at_most(0.0, p.of(m.z, p.u - 1) + p.of(m.a, p.v))


def tbt(m: CostModel) -> Rows:
    """u_cj·z_c + v_cj·a_c ≤ z_c: TBT_c(α) ≤ TBT_SLO, piece j (LP 5, 7, 12, 14–16)."""
    p = m.data.tbt
    return at_most(0.0, p.of(m.z, p.u - 1) + p.of(m.a, p.v))


def e2e_epigraph(m: CostModel) -> Rows:
    """e_c ≥ u_cj·z_c + v_cj·a_c: E2E_c(α)/T, piece j (LP 3, 17)."""
    p = m.data.e2e
    return at_least(0.0, p.of(m.e, np.ones(len(p.u))) - p.of(m.z, p.u) - p.of(m.a, p.v))


FAMILIES: tuple[Family, ...] = (
    choose_one, within_budget, alpha_at_least, alpha_at_most, vram, host_memory, throughput, ttft, tbt, e2e_epigraph,
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------- Pyomo


def attach(block: Any, problem: CostEfficiency, tables: CostTables) -> None:
    """Put sets, variables and constraints on a Pyomo block; no objective.

    The block gets ``z``, ``a``, ``e`` by candidate (rows of `tables.candidates`) and the expressions
    ``usd_per_hour`` and ``usd_per_million_tokens``, for use in a larger model.
    """
    CostModel(problem, tables).attach(block)


def build(problem: CostEfficiency, tables: CostTables) -> Any:
    """The ConcreteModel of the problem on the given tables (prune them first for speed: `points.prune`).

    Without any candidate left the model is infeasible: `choose_one` has nothing to choose.
    """
    return CostModel(problem, tables).pyomo()


def extract(block: Any, tables: CostTables) -> CostPlan:
    """The plan of a solved block; `tables` are those it was built on."""
    from optmodels.model.pyomo_block import value_of

    chosen = max(block.z, key=lambda c: value_of(block.z[c]))
    return planned(tables, chosen, value_of(block.a[chosen]))


def tokens_per_usd(usd_per_million: float | None) -> float | None:
    """Tokens per USD from the USD per million tokens that the models minimise; None: no cost, or none known."""
    return 1e6 / usd_per_million if usd_per_million and usd_per_million > 0 else None


def progress(options: Options) -> Callable[[Event], None] | None:
    """Who is told of progress, in tokens per USD."""
    tell = options.on_event
    return None if tell is None else lambda event: tell(stated(event))


def stated(event: Event) -> Event:
    """A solver's event in tokens per USD."""
    return replace(event, objective=tokens_per_usd(event.objective), bound=tokens_per_usd(event.bound))


def planned(tables: CostTables, candidate: int, alpha: float | None = None) -> CostPlan:
    """The plan of a chosen candidate, its α moved into the range it has.

    Without an α at its fastest within the limits: where E2E rises to thousands of times itself over α, the 10⁻⁶ that a
    solver may be off α are more than the limits leave.
    """
    curve = tables.curves.take(tables.candidates.configuration[[candidate]])
    wanted = optimise(curve, tables.limits).alpha if alpha is None else alpha
    return make_plan(tables, candidate, float(np.clip(wanted, curve.alpha_lo, curve.alpha_hi)[0]))
