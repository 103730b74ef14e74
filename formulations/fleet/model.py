r"""Fleet planning: many workloads, integer counts of deployments, one bill.

Sets
    t ∈ T                periods of a repeating day
    w ∈ W                demands: buckets (input × output length) of workloads
    p ∈ P                points: deployments (machine set + markets + strategy + batch + load level)
    r ∈ R                stock and quota rows
    j ∈ J                pools under a reserve: points of equal machine set and model

Parameters, all from tables
    λ_tw                 requests/s
    l_wp                 deployments that one request/s of w takes of p: E2E/(batch·ρ_p); pairs (w, p) exist where p
                         keeps w's SLO, waiting at ρ_p included
    C_p                  USD per hour of a deployment
    a_pr, b_r            what a deployment takes of r, and how much there is
    c_twp                USD per hour if all of w misses its soft SLO on p
    v_w                  USD per request that is not served

Variables
    n_tp ∈ ℤ≥0           deployments; equal ones are counted, never named, so there is no symmetry
    x_twp ≥ 0            share of w on p
    s_tw ∈ [0, 1 − σ_w]  share of w not served
    y_tjk ∈ {0, 1}       pool j is used and withstands the loss of k deployments
    up_tg, down_tg ≥ 0   machines of type g started and stopped before t

Objectives
    min_cost             min  Σ_t h_t·(Σ C_p n_tp + Σ c_twp x_twp + Σ 3600·v_w λ_tw s_tw) + changes      USD/h
    max_ce               max  tokens served / cost, by Dinkelbach: max tokens − q·cost until its optimum is 0
    max_served           max  Σ weight·λ·(1 − s) by priority, lexicographically, then min cost

All non-linearity (latency, waiting, binomial losses) sits in tables. With one workload and no limits the optimum is
`cost_efficiency`'s. `formulations.fleet.points.prune` and column generation (`formulations.fleet.methods.columns`) keep
the model small; the former keeps an optimum, the latter certifies how far the answer can be from one.

    python -m formulations.fleet INSTANCE      solves an instance file
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyomo.environ as pyo

from formulations.fleet.making import Choice
from formulations.fleet.points import FleetTables, changes_matter
from formulations.fleet.problem import Fleet
from formulations.fleet.reserve import largest_pools
from optmodels.solver import paused_gc


@dataclass(frozen=True)
class Data:
    """What the rules read."""

    tables: FleetTables
    rates: Any  # (T, W)
    hours: Any  # (T,), shares of the day
    pairs: dict[tuple[int, int], list[int]]  # (t, w) → points
    demands_on: dict[tuple[int, int], list[int]]  # (t, p) → demands
    consumption: Any  # (P, R)
    soft: list[Any]  # by t: (W, P) USD/h
    most: list[int]  # by p: deployments beyond which none helps
    pools: dict[int, list[int]]  # reserved pools → points
    levels: dict[int, list[tuple[int, int]]]  # pool → (k, most deployments that k spare ones protect)
    machines_before: dict[Any, int] | None  # resource → machines running before period 0


def model_data(problem: Fleet, tables: FleetTables) -> Data:
    """Model data on the given tables."""
    case, points = tables.case, tables.points
    rates = tables.rates
    T, W, P = *rates.shape, len(points)
    finite = np.isfinite(tables.load)
    pairs = {(t, w): np.flatnonzero(finite[w]).tolist() if rates[t, w] > 0 else [] for t in range(T) for w in range(W)}
    demands_on = {
        (t, p): [w for w in np.flatnonzero(finite[:, p]).tolist() if rates[t, w] > 0]
        for t in range(T)
        for p in range(P)
    }
    spare = _spare(problem)
    replicas = max((w.min_replicas for w in case.workloads), default=0)
    peak = rates.max(axis=0)[:, None] * np.where(finite, tables.load, 0.0)
    most = [max(math.ceil(v - 1e-9) + spare, replicas, 1) + _kept(tables, p) for p, v in enumerate(peak.sum(axis=0))]
    pools: dict[int, list[int]] = {}
    levels: dict[int, list[tuple[int, int]]] = {}
    if problem.reserve is not None:
        for p in range(P):
            if problem.reserve.machines == "all" or points.spot[p]:
                pools.setdefault(int(points.pool[p]), []).append(p)
        for j, mine in pools.items():
            bound = sum(most[p] for p in mine)
            if problem.reserve.lost is not None:
                levels[j] = [(problem.reserve.lost, bound)]
            else:
                assert problem.reserve.survive_probability is not None
                miss = (1 - problem.reserve.survive_probability) / problem.reserve.pools
                levels[j] = largest_pools(float(points.unavailable[mine].max()), miss, bound)
    before: dict[Any, int] | None = None
    if problem.running is not None:
        before = {}
        for r in problem.running:
            before[r.machine, r.region, r.market] = before.get((r.machine, r.region, r.market), 0) + r.count
    hours = np.array([q.hours for q in case.periods])
    return Data(
        tables, rates, hours / hours.sum(), pairs, demands_on, tables.consumption,
        [tables.usd_per_share(t) for t in range(T)], most, pools, levels, before,
    )  # fmt: skip


def _kept(tables: FleetTables, p: int) -> int:
    """Deployments of p that the running machines make up: they may be kept idle because stopping costs."""
    running = tables.case.problem.running
    if running is None:
        return 0
    names = {r[:3] for r, _ in tables.machines_of(p)}
    return sum(r.count for r in running if (r.machine, r.region, r.market) in names)


def _spare(problem: Fleet) -> int:
    if problem.reserve is None:
        return 0
    return problem.reserve.lost if problem.reserve.lost is not None else 40


# ------------------------------------------------------------------------------------------------- constraints


def demand_met(m: Any, t: int, w: int) -> Any:
    """Σ_p x_twp + s_tw = 1: every request goes somewhere, or is not served."""
    return pyo.quicksum(m.x[t, w, p] for p in m.data.pairs[t, w]) + m.s[t, w] == 1


def capacity(m: Any, t: int, p: int) -> Any:
    """Σ_w λ_tw·l_wp·x_twp ≤ n_tp."""
    d = m.data
    if not d.demands_on[t, p]:
        return pyo.Constraint.Skip
    load = d.tables.load
    return pyo.quicksum(d.rates[t, w] * load[w, p] * m.x[t, w, p] for w in d.demands_on[t, p]) <= m.n[t, p]


def stock(m: Any, t: int, r: int) -> Any:
    """Σ_p a_pr·n_tp ≤ b_r: stock of a machine type, or quota over several."""
    a = m.data.consumption[:, r]
    used = np.flatnonzero(a).tolist()
    if not used:
        return pyo.Constraint.Skip
    return pyo.quicksum(a[p] * m.n[t, p] for p in used) <= m.data.tables.limits[r]


def within_budget(m: Any, t: int) -> Any:
    """Σ_p C_p·n_tp ≤ budget."""
    budget = m.data.tables.case.problem.budget_usd_per_hour
    cost = m.data.tables.points.usd_per_hour
    return pyo.quicksum(cost[p] * m.n[t, p] for p in m.P) <= budget if budget is not None else pyo.Constraint.Skip


def spot_share(m: Any, t: int, w: int) -> Any:
    """Σ_{p on spot} x_twp ≤ the workload's spot_share_max."""
    tables = m.data.tables
    limit = tables.case.workload(tables.demands[w].workload).spot_share_max
    on_spot = [p for p in m.data.pairs[t, w] if tables.points.spot[p]]
    if limit >= 1 or not on_spot:
        return pyo.Constraint.Skip
    return pyo.quicksum(m.x[t, w, p] for p in on_spot) <= limit


def min_replicas(m: Any, t: int, i: int) -> Any:
    """Σ n_tp over the points that can serve workload i ≥ its min_replicas."""
    tables = m.data.tables
    w = tables.case.workloads[i]
    rows = [k for k, d in enumerate(tables.demands) if d.workload == w.name]
    if not w.min_replicas:
        return pyo.Constraint.Skip
    can = np.flatnonzero(np.isfinite(tables.load[rows]).any(axis=0)).tolist()
    if not can:  # `exact` has said so before
        return pyo.Constraint.Skip
    return pyo.quicksum(m.n[t, p] for p in can) >= w.min_replicas


def one_level(m: Any, t: int, j: int) -> Any:
    """Σ_k y_tjk ≤ 1."""
    if not m.data.levels[j]:  # so unreliable that `pool_size` keeps it empty
        return pyo.Constraint.Skip
    return sum(m.y[t, j, k] for k in range(len(m.data.levels[j]))) <= 1


def pool_size(m: Any, t: int, j: int) -> Any:
    """Σ_{p ∈ j} n_tp ≤ Σ_k N_jk·y_tjk: a pool of more than N_jk deployments needs more than k spare ones."""
    d = m.data
    return pyo.quicksum(m.n[t, p] for p in d.pools[j]) <= sum(
        size * m.y[t, j, k] for k, (_, size) in enumerate(d.levels[j])
    )


def survives(m: Any, t: int, j: int) -> Any:
    """Σ λ·l·ρ·x ≤ full·Σ_{p ∈ j} (n_tp) − full·Σ_k k·y_tjk: the load fits what is left after the losses."""
    d = m.data
    load, rho = d.tables.load, d.tables.points.rho
    full = d.tables.case.problem.reserve.load_after_loss
    used = pyo.quicksum(
        d.rates[t, w] * load[w, p] * rho[p] * m.x[t, w, p] for p in d.pools[j] for w in d.demands_on[t, p]
    )
    spare = sum(lost * m.y[t, j, k] for k, (lost, _) in enumerate(d.levels[j]))
    return used <= full * pyo.quicksum(m.n[t, p] for p in d.pools[j]) - full * spare


def few_pools(m: Any, t: int) -> Any:
    """Σ y_tjk ≤ pools: the union bound counts so many."""
    reserve = m.data.tables.case.problem.reserve
    if reserve.survive_probability is None or not any(m.data.levels[j] for j in m.J):
        return pyo.Constraint.Skip
    return pyo.quicksum(m.y[t, j, k] for j in m.J for k in range(len(m.data.levels[j]))) <= reserve.pools


def machine_balance(m: Any, t: int, g: int) -> Any:
    """machines_tg − machines_{t−1,g} = up_tg − down_tg; before the first period comes what runs now, or the last."""
    d = m.data
    resource = m.resources[g]
    now = _machines(m, t, g)
    if t > 0:
        before = _machines(m, t - 1, g)
    elif d.machines_before is not None:
        before = d.machines_before.get(resource, 0)
    else:
        before = _machines(m, len(d.hours) - 1, g)
    return now - before == m.up[t, g] - m.down[t, g]


def _machines(m: Any, t: int, g: int) -> Any:
    use = m.use_columns.get(g)
    return pyo.quicksum(count * m.n[t, p] for p, count in use) if use else 0


def starts_limit(m: Any, t: int) -> Any:
    """Σ_g up_tg ≤ max_starts."""
    limit = m.data.tables.case.problem.change.max_starts
    return pyo.quicksum(m.up[t, g] for g in m.G) <= limit if limit is not None else pyo.Constraint.Skip


def stops_limit(m: Any, t: int) -> Any:
    """Σ_g down_tg ≤ max_stops."""
    limit = m.data.tables.case.problem.change.max_stops
    return pyo.quicksum(m.down[t, g] for g in m.G) <= limit if limit is not None else pyo.Constraint.Skip


def something_runs(m: Any) -> Any:
    """Σ n ≥ 1: the ratio of max_ce needs a cost."""
    return pyo.quicksum(m.n[t, p] for t in m.T for p in m.P) >= 1


# ------------------------------------------------------------------------------------------------------- model


def attach(block: Any, problem: Fleet, tables: FleetTables) -> None:
    """Put sets, variables and constraints on a Pyomo block; no objective.

    The block gets ``n`` by (period, point), ``x`` by (period, demand, point), ``s`` by (period, demand) and the
    expressions ``usd_per_hour`` (all costs, mean over the day) and ``tokens_per_hour`` (weighted, served).
    """
    d = block.data = model_data(problem, tables)
    case = tables.case
    T, W = d.rates.shape
    block.T, block.W, block.P = range(T), range(W), range(len(tables.points))
    block.n = pyo.Var(block.T, block.P, domain=pyo.NonNegativeIntegers, bounds=lambda m, t, p: (0, d.most[p]))
    index = [(t, w, p) for (t, w), points in d.pairs.items() for p in points]
    block.x = pyo.Var(index, bounds=(0, 1))
    least = [case.serve_at_least(case.workload(q.workload)) for q in tables.demands]
    block.s = pyo.Var(block.T, block.W, bounds=lambda m, t, w: (0, 1 - least[w] if d.rates[t, w] > 0 else 1))
    block.demand_met = pyo.Constraint([(t, w) for t in block.T for w in block.W if d.rates[t, w] > 0], rule=demand_met)
    block.capacity = pyo.Constraint(block.T, block.P, rule=capacity)
    block.stock = pyo.Constraint(block.T, range(len(tables.limits)), rule=stock)
    block.within_budget = pyo.Constraint(block.T, rule=within_budget)
    block.spot_share = pyo.Constraint([k for k in d.pairs if d.pairs[k]], rule=spot_share)
    block.min_replicas = pyo.Constraint(block.T, range(len(case.workloads)), rule=min_replicas)
    if d.pools:
        block.J = list(d.pools)
        levels = [(t, j, k) for t in block.T for j in block.J for k in range(len(d.levels[j]))]
        block.y = pyo.Var(levels, domain=pyo.Binary)
        for rule in (one_level, pool_size, survives):
            setattr(block, rule.__name__, pyo.Constraint(block.T, block.J, rule=rule))
        block.few_pools = pyo.Constraint(block.T, rule=few_pools)
    changing = problem.running is not None or (T > 1 and changes_matter(problem))
    changes: Any = 0.0
    if changing:
        block.resources = [*tables.resources, *(r for r in d.machines_before or {} if r not in tables.resources)]
        columns = tables.use.tocsc()
        block.use_columns = {
            g: list(zip(columns[:, [g]].indices.tolist(), columns[:, [g]].data.tolist(), strict=True))
            for g in range(len(tables.resources))
        }
        block.G = range(len(block.resources))
        block.up = pyo.Var(block.T, block.G, domain=pyo.NonNegativeReals)
        block.down = pyo.Var(block.T, block.G, domain=pyo.NonNegativeReals)
        block.starts_limit = pyo.Constraint(block.T, rule=starts_limit)
        block.stops_limit = pyo.Constraint(block.T, rule=stops_limit)
        block.machine_balance = pyo.Constraint(block.T, block.G, rule=machine_balance)
        c = problem.change
        span = sum(q.hours for q in case.periods) if T > 1 else c.horizon_hours
        changes = pyo.quicksum(
            c.start_usd / span * block.up[t, g] + c.stop_usd / span * block.down[t, g] for t in block.T for g in block.G
        )
    cost = tables.points.usd_per_hour
    price = [case.workload(q.workload).unserved_usd_per_1000_requests * 3.6 for q in tables.demands]
    weight = [case.workload(q.workload).weight for q in tables.demands]
    machines = pyo.quicksum(d.hours[t] * cost[p] * block.n[t, p] for t in block.T for p in block.P)
    soft = pyo.quicksum(d.hours[t] * d.soft[t][w, p] * block.x[t, w, p] for t, w, p in index if d.soft[t][w, p] > 0)
    unserved = pyo.quicksum(
        d.hours[t] * price[w] * d.rates[t, w] * block.s[t, w] for t in block.T for w in block.W if price[w] > 0
    )
    block.usd_per_hour = pyo.Expression(expr=machines + soft + unserved + changes)
    block.tokens_per_hour = pyo.Expression(expr=pyo.quicksum(
        d.hours[t] * 3600.0 * weight[w] * tables.demands[w].tokens * d.rates[t, w] * (1 - block.s[t, w])
        for t in block.T for w in block.W if d.rates[t, w] > 0
    ))  # fmt: skip


def build(problem: Fleet, tables: FleetTables, ratio: float = 0.0) -> Any:
    """The ConcreteModel of the problem on the given tables (prune them first: `points.fleet.prune`).

    Args:
        problem: objective and limits.
        tables: points.
        ratio: q of Dinkelbach's subproblem max tokens − q·cost (max_ce), tokens per USD.
    """
    with paused_gc():
        m = pyo.ConcreteModel(name=problem.name or problem.formulation)
        attach(m, problem, tables)
        if problem.objective == "min_cost":
            m.cost = pyo.Objective(expr=m.usd_per_hour)
        elif problem.objective == "max_ce":
            m.something_runs = pyo.Constraint(rule=something_runs)
            m.parametric = pyo.Objective(expr=ratio * m.usd_per_hour - m.tokens_per_hour)
        else:
            case, d = tables.case, m.data
            by_priority: dict[int, list[int]] = {}
            for w, q in enumerate(tables.demands):
                by_priority.setdefault(case.workload(q.workload).priority, []).append(w)
            for priority in sorted(by_priority):
                served = pyo.quicksum(
                    d.hours[t] * case.workload(tables.demands[w].workload).weight * d.rates[t, w] * (1 - m.s[t, w])
                    for t in m.T for w in by_priority[priority] if d.rates[t, w] > 0
                )  # fmt: skip
                setattr(m, f"served_{priority}", pyo.Objective(expr=served, sense=pyo.maximize))
            m.cost = pyo.Objective(expr=m.usd_per_hour)
    return m


def extract(model: Any, tables: FleetTables) -> Choice:
    """Counts and shares of a solved model; `tables` are those it was built on."""
    T, P = len(model.T), len(tables.points)
    n = np.zeros((T, P), dtype=np.intp)
    for (t, p), v in model.n.items():
        n[t, p] = round(v.value) if v.value is not None else 0
    used = [(t, w, p, v.value) for (t, w, p), v in model.x.items() if v.value is not None and v.value > 1e-9]
    t, w, p = (np.array([u[k] for u in used], dtype=np.intp) for k in range(3))
    return Choice(n, t, w, p, np.array([u[3] for u in used], dtype=float))
