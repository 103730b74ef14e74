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
`cost_efficiency`'s. `optmodels.points.fleet.prune` and column generation (`optmodels.heuristics.fleet_columns`) keep
the model small; the former keeps an optimum, the latter certifies how far the answer can be from one.

    python -m formulations.fleet INSTANCE      solves an instance file
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyomo.environ as pyo

from formulations.fleet_melange import melange
from optmodels.formulation import Formulation, Options
from optmodels.heuristics import fleet as heuristics
from optmodels.heuristics import fleet_columns
from optmodels.plan import deploy
from optmodels.plan.fleet import Choice, FleetPlan, WorthLine, make_plan, objective_value
from optmodels.plan.fleet_check import check
from optmodels.plan.fleet_replay import replay
from optmodels.plan.outcome import Outcome
from optmodels.points.fleet import FleetTables, build_tables, changes_matter, prune, rebind
from optmodels.points.reserve import largest_pools
from optmodels.problem.fleet import Fleet
from optmodels.problem.fleet_template import FLEET as TEMPLATE
from optmodels.reporting.charts.fleet import charts
from optmodels.reporting.fleet import frames, report, summary
from optmodels.solver import Compiled, Report, Settings, compile_model, paused_gc, solve_compiled
from optmodels.solver.conflict import irreducible
from optmodels.solver.highs import Event, Limit, Status

MANY_PAIRS = 40_000  # (w, p) pairs beyond which columns are generated
MOST_WORTHS = 8  # limits solved again for their worth


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


# ------------------------------------------------------------------------------------------------------- exact


@dataclass
class _Solved:
    report: Report
    compiled: Compiled
    model: Any
    seconds: dict[str, float]


def _solve(
    problem: Fleet, tables: FleetTables, settings: Settings, start: Choice | None, ratio: float = 0.0
) -> _Solved:
    clock = time.perf_counter()
    model = build(problem, tables, ratio)
    built = time.perf_counter()
    compiled = compile_model(model)
    columns = None
    if start is not None:
        offered = pyo.ComponentMap((model.n[t, p], float(start.n[t, p])) for t in model.T for p in model.P)
        columns = {i: offered[v] for i, v in enumerate(compiled.variables) if v in offered}
    done = time.perf_counter()
    solved = solve_compiled(compiled, settings, columns)
    if solved.x is not None:
        for v, value in zip(compiled.variables, solved.x, strict=True):
            v.set_value(float(value), skip_validation=True)
    seconds = {"build": built - clock, "compile": done - built, "solve": time.perf_counter() - done}
    return _Solved(solved, compiled, model, seconds)


def exact(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """Prune, build, solve by HiGHS; columns are generated where the table is too large; infeasibility is explained."""
    clock = time.perf_counter()
    pruned, counts = prune(tables)
    seconds = {"prune": time.perf_counter() - clock}
    log: dict[str, Any] = {"columns": counts}
    missing = {
        name: why for name, why in tables.blocked.items()
        if tables.case.serve_at_least(tables.case.workload(name.split("/")[0])) > 0
    }  # fmt: skip
    if missing:
        log["conflict"] = [f"{name}: {why}" for name, why in missing.items()]
        log["reason"] = "no operating point serves " + "; ".join(log["conflict"])
        return Outcome("infeasible", None, seconds=seconds, log=log)
    short = [w for w in tables.case.workloads if w.min_replicas and not _servable(pruned, w.name)]
    if short:
        log["conflict"] = [f"replicas for {w.name} at least {w.min_replicas}: no point can serve it" for w in short]
        log["reason"] = "; ".join(log["conflict"])
        return Outcome("infeasible", None, seconds=seconds, log=log)
    if not len(pruned.points):
        log["reason"] = "no operating point serves any bucket"
        return Outcome("infeasible", None, seconds=seconds, log=log)
    if problem.objective == "max_ce":
        return _dinkelbach(problem, pruned, options, seconds, log)
    parts = separate(problem, pruned)
    if len(parts) > 1:
        return _by_part(problem, pruned, parts, options, seconds, log)
    outcome = _one_part(problem, pruned, options, seconds, log)
    if isinstance(outcome.plan, Choice):
        return replace(outcome, plan=make_plan(pruned, outcome.plan))
    return outcome


def _servable(tables: FleetTables, workload: str) -> bool:
    rows = [k for k, d in enumerate(tables.demands) if d.workload == workload]
    return not rows or bool(np.isfinite(tables.load[rows]).any())


def separate(problem: Fleet, tables: FleetTables) -> list[tuple[Any, Any]]:
    """Demands and points of parts that share neither points nor limits; one part unless the objective is a sum.

    Demands of one workload stay together.
    """
    coupled = len(tables.limits) > 0 or problem.budget_usd_per_hour is not None or problem.running is not None
    coupled |= len(tables.case.periods) > 1 and changes_matter(problem)
    coupled |= problem.reserve is not None and problem.reserve.survive_probability is not None
    whole = [(np.arange(len(tables.demands)), np.arange(len(tables.points)))]
    if coupled or problem.objective != "min_cost":
        return whole
    groups: dict[int, int] = {}
    of = {name: k for k, name in enumerate(dict.fromkeys(d.workload for d in tables.demands))}
    linked = np.zeros((len(of), len(tables.points)), dtype=bool)
    for w, d in enumerate(tables.demands):
        linked[of[d.workload]] |= np.isfinite(tables.load[w])
        groups[w] = of[d.workload]
    parts = []
    for workloads, columns in fleet_columns.components(linked):
        inside = set(workloads.tolist())
        parts.append((np.array([w for w in groups if groups[w] in inside], dtype=np.intp), columns))
    return parts if sum(len(rows) for rows, _ in parts) == len(tables.demands) else whole


def _by_part(
    problem: Fleet, tables: FleetTables, parts: list[tuple[Any, Any]], options: Options, seconds: dict[str, float],
    log: dict[str, Any],
) -> Outcome[FleetPlan]:  # fmt: skip
    """Solve parts that share nothing one by one; cost and bound add up."""
    began = time.perf_counter()
    T, P = len(tables.case.periods), len(tables.points)
    n = np.zeros((T, P), dtype=np.intp)
    pieces: list[Choice] = []
    statuses, bound, limit = [], 0.0, None
    size: dict[str, int] = {}
    for k, (rows, columns) in enumerate(parts):
        left = None if options.time_limit is None else options.time_limit - (time.perf_counter() - began)
        share = None if left is None else max(left, 0.1) / (len(parts) - k)
        part = tables.restricted(columns).of_demands(rows)
        mine: dict[str, float] = {}
        details: dict[str, Any] = {}
        found = _one_part(problem, part, replace(options, time_limit=share, on_event=None), mine, details, plain=True)
        for key, v in mine.items():
            seconds[key] = seconds.get(key, 0.0) + v
        for key, count in found.size.items():
            size[key] = size.get(key, 0) + count
        statuses.append(found.status)
        limit = limit or found.limit
        bound += found.bound if found.bound is not None else -math.inf
        if not isinstance(found.plan, Choice):
            status = found.status if found.status == "infeasible" else "no_solution_found"
            return Outcome(status, None, None, found.limit, seconds, size, log | details)
        n[:, columns] += found.plan.n
        pieces.append(replace(found.plan, w=rows[found.plan.w], p=columns[found.plan.p]))
        if options.on_event is not None:
            options.on_event(Event(time.perf_counter() - began, None, bound, 0))
    choice = Choice(n, *(np.concatenate([getattr(c, f) for c in pieces]) for f in ("t", "w", "p", "value")))
    plan = make_plan(tables, choice)
    log["parts"] = len(parts)
    proved = math.isfinite(bound) and plan.total_usd_per_hour - bound <= 1e-6 * plan.total_usd_per_hour
    return Outcome(
        "optimal" if proved or set(statuses) == {"optimal"} else "feasible", plan,
        bound if math.isfinite(bound) else None, None if proved else limit, seconds, size, log,
    )  # fmt: skip


def _one_part(
    problem: Fleet, tables: FleetTables, options: Options, seconds: dict[str, float], log: dict[str, Any],
    plain: bool = False,
) -> Outcome[Any]:  # fmt: skip
    """One model, or column generation where that is too large; `plain`: only the `Choice`, without worths."""
    settings = Settings(options.time_limit, options.gap, options.seed, on_event=options.on_event)
    pairs = int(np.isfinite(tables.load).sum()) * len(tables.case.periods)
    if pairs > MANY_PAIRS and fleet_columns.applies(problem):
        return fleet_columns.solve(problem, tables, options, _restricted_milp, seconds, log)
    first = heuristics.lp_rounding_choice(problem, tables) if problem.objective == "min_cost" else None
    solved = _solve(problem, tables, settings, first)
    seconds |= solved.seconds
    report_ = solved.report
    log |= {"solver": report_.message, "nodes": report_.nodes}
    if report_.status == "infeasible" and not options.answer_only:
        clock = time.perf_counter()
        log |= explain(problem, tables, solved, options)
        seconds["explain"] = time.perf_counter() - clock
    answer: Any = extract(solved.model, tables) if report_.x is not None else None
    if answer is not None and not plain:
        plan = make_plan(tables, answer)
        clock = time.perf_counter()
        if not options.answer_only:
            plan.worth = worth(problem, tables, plan, solved, settings)
        seconds["worth"] = time.perf_counter() - clock
        answer = plan
    return Outcome(
        report_.status, answer, report_.bound, report_.limit, seconds, solved.compiled.size, log, report_.events
    )


def _restricted_milp(
    problem: Fleet, tables: FleetTables, settings: Settings, start: Choice | None
) -> tuple[Report, Choice | None, dict[str, float], dict[str, int]]:
    solved = _solve(problem, tables, settings, start)
    choice = extract(solved.model, tables) if solved.report.x is not None else None
    return solved.report, choice, solved.seconds, solved.compiled.size


def _dinkelbach(
    problem: Fleet, tables: FleetTables, options: Options, seconds: dict[str, float], log: dict[str, Any]
) -> Outcome[FleetPlan]:
    """max N/D exactly: solve max N − q·D for q = the best ratio so far until nothing is better.

    If max N − q·D ≤ F for every fleet, and D ≥ D_min, then N/D ≤ q + F/D_min: the bound reported.
    """
    began = time.perf_counter()
    ratio, best, bound, rounds = 0.0, None, math.inf, 0
    cheapest = (
        float(tables.points.usd_per_hour.min())
        * float(min(q.hours for q in tables.case.periods))
        / sum(q.hours for q in tables.case.periods)
    )
    start: Choice | None = None
    seconds |= {"build": 0.0, "compile": 0.0, "solve": 0.0}
    size: dict[str, int] = {}
    status: Status = "no_solution_found"
    limit: Limit | None = None
    while rounds < 50:
        left = None if options.time_limit is None else options.time_limit - (time.perf_counter() - began)
        if left is not None and left <= 0:
            limit = "time"
            break
        solved = _solve(problem, tables, Settings(left, min(options.gap, 1e-3), options.seed), start, ratio)
        rounds += 1
        for k, v in solved.seconds.items():
            seconds[k] += v
        size, r = solved.compiled.size, solved.report
        if r.status == "infeasible" and best is None:
            log |= {} if options.answer_only else explain(problem, tables, solved, options)
            return Outcome("infeasible", None, None, None, seconds, size, log)
        if r.bound is not None:
            bound = min(bound, ratio + max(0.0, -r.bound) / cheapest)
        if r.x is None:
            limit = r.limit
            break
        start = extract(solved.model, tables)
        plan = make_plan(tables, start)
        if best is None or plan.tokens_per_usd > best.tokens_per_usd:
            best = plan
        if plan.tokens_per_usd <= ratio * (1 + 1e-9):
            limit = r.limit
            break
        ratio = plan.tokens_per_usd
    if best is not None:
        proved = bound <= best.tokens_per_usd * (1 + 1e-6)
        status = "optimal" if proved else "feasible"
        limit = None if proved else (limit or "gap")
    log |= {"dinkelbach_rounds": rounds}
    return Outcome(
        status,
        best,
        bound if math.isfinite(bound) else None,
        limit,
        seconds,
        size,
        log,
    )


# --------------------------------------------------------------------------------------------- what binds, and why


def worth(problem: Fleet, tables: FleetTables, plan: FleetPlan, solved: _Solved, settings: Settings) -> list[WorthLine]:
    """The gain from one more unit of every binding stock, quota or budget, by solving again with it."""
    binding = {line.name for q in plan.periods for line in q.limits if line.binding}
    rows = [r for r, name in enumerate(tables.limit_names) if name in binding][:MOST_WORTHS]
    compiled = solved.compiled
    if solved.report.status != "optimal" or len(compiled.costs) > 1:
        return []
    exact_ = solved.seconds["solve"] <= 5.0
    position = {name: i for i, name in enumerate(compiled.row_names)}
    lines = []
    units = {"gpus": "GPU", "vcpus": "vCPU"}
    groups = [
        (
            tables.limit_names[r],
            units.get(tables.limit_names[r].rsplit(", ")[-1], "machine"),
            [f"stock[{t},{r}]" for t in solved.model.T],
        )
        for r in rows
    ]
    if "budget" in binding:
        groups.append(("budget", "USD/h", [f"within_budget[{t}]" for t in solved.model.T]))
    for name, unit, members in groups:
        upper = compiled.row_upper.copy()
        upper[[position[k] for k in members if k in position]] += 1.0
        changed = replace(compiled, row_upper=upper)
        base = solved.report.objective
        if not exact_:
            changed = replace(changed, integer=np.zeros_like(compiled.integer))
            relaxed = solve_compiled(replace(compiled, integer=changed.integer), Settings(10.0))
            base = relaxed.objective
        again = solve_compiled(changed, replace(settings, on_event=None, time_limit=10.0))
        if again.objective is None or base is None:
            continue
        gain = (base - again.objective) * float(compiled.signs[0])
        if exact_ and again.status != "optimal":
            continue
        lines.append(WorthLine(limit=name, unit=unit, gain=max(gain, 0.0), exact=exact_))
    return lines


def explain(problem: Fleet, tables: FleetTables, solved: _Solved, options: Options) -> dict[str, Any]:
    """An irreducible set of buckets and limits that cannot hold together, in the instance's words.

    Returns:
        ``conflict`` (lines) and ``reason`` (one sentence) for the log.
    """
    case, compiled = tables.case, solved.compiled
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(compiled.row_names):
        name, _, rest = row.partition("[")
        index = [int(v) for v in rest.rstrip("]").split(",")] if rest else []
        label = _label(problem, tables, name, index)
        if label is not None:
            groups.setdefault(label, []).append(i)
    # Rows that Pyomo cannot express (no point can serve the workload) are named by the blocked buckets.
    found, proved = irreducible(compiled, groups, time_limit=options.time_limit or 30.0)
    if not found:
        return {"reason": "no plan exists, and no smaller set of limits was found"}
    lines = sorted(found, key=lambda k: (k.startswith("bucket "), k))
    text = "; ".join(lines[:6]) + (f"; and {len(lines) - 6} more" if len(lines) > 6 else "")
    log: dict[str, Any] = {"conflict": lines, "conflict_irreducible": proved,
                           "reason": f"these cannot hold together: {text}"}  # fmt: skip
    if any(k.startswith("budget") for k in lines) and problem.objective == "min_cost":
        free = problem.model_copy(update={"budget_usd_per_hour": None})
        freed = replace(tables, case=replace(case, problem=free))
        again = _solve(free, freed, Settings(10.0, 1e-4), None).report
        if again.bound is not None:
            log["reason"] += f". Without the budget the cheapest fleet costs {again.bound:.4f} USD/h or more"
    return log


def _label(problem: Fleet, tables: FleetTables, name: str, index: list[int]) -> str | None:
    case = tables.case
    match name:
        case "demand_met":
            d = tables.demands[index[1]]
            return f"bucket {d.name} ({max(d.requests_per_s):.4g} requests/s)"
        case "stock":
            return f"{tables.limit_names[index[1]]} at most {tables.limits[index[1]]:g}"
        case "within_budget":
            return f"budget at most {problem.budget_usd_per_hour:g} USD/h"
        case "spot_share":
            w = case.workload(tables.demands[index[1]].workload)
            return f"spot share of {w.name} at most {w.spot_share_max:g}"
        case "min_replicas":
            w = case.workloads[index[1]]
            return f"replicas for {w.name} at least {w.min_replicas}"
        case "survives":
            return "reserve"
        case "few_pools":
            assert problem.reserve is not None
            return f"at most {problem.reserve.pools} pools under the reserve"
        case "starts_limit":
            return f"machines started at most {problem.change.max_starts}"
        case "stops_limit":
            return f"machines stopped at most {problem.change.max_stops}"
        case _:
            return None


def column_pruning(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """The MILP on the points that are among the three with the cheapest tokens for some bucket."""
    part = tables.restricted(heuristics.best_columns(tables, 3))
    found = exact(problem, part, options)
    status = {"optimal": "feasible", "infeasible": "no_solution_found"}.get(found.status, found.status)
    return replace(found, status=status, bound=None, limit=None)  # type: ignore[arg-type]


GOALS: dict[str, tuple[Literal["min", "max"], str]] = {
    "min_cost": ("min", "USD/h"),
    "max_ce": ("max", "tokens/USD"),
    "max_served": ("max", "weighted requests/s"),
}

FORMULATION = Formulation(
    name="fleet",
    title="Fleet planning: many workloads, integer counts of deployments, one bill",
    problem=Fleet,
    sense="min",
    unit="USD/h",
    tables=build_tables,
    build=build,
    attach=attach,
    methods={"exact": exact, **heuristics.METHODS, "column_pruning": column_pruning, "melange": melange},
    objective=objective_value,
    check=check,
    report=report,
    summary=summary,
    frames=frames,
    template=TEMPLATE,
    charts=charts,
    deployments=deploy.fleet,
    method_titles={"exact": "MILP by HiGHS after dominance pruning, column generation when large",
                   **heuristics.TITLES},
    rebind=rebind,
    goal=lambda problem: GOALS[problem.objective],
    plan=FleetPlan,
    replay=replay,
)  # fmt: skip

if __name__ == "__main__":
    from optmodels.cli import solve_script

    solve_script("fleet")
