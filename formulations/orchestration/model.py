"""Orchestration in column form (MaaSO §IV-C): integer numbers of instances, shares of request classes over time.

Configurations c with n_c instances; request classes k with arrivals a_kt, of which the share φ_kc can be in time on c;
starts x_kct of k on c in bin t; levels l of k, the first few of its configurations in the order of their shares,
with the stock I_klt waiting for them at the end of bin t. Nothing in it counts GPUs or requests one by one.

    max  MS(6) or its parts
    s.t. balance        Σ_{c in l} x_kct + I_klt − I_kl,t−1 ≤ φ_l·a_kt          (the rest is refused)
         bounds         0 ≤ I_klt ≤ φ_l·(arrivals of the last w_l seconds), 0 ≤ x_kct ≤ φ_kc·(arrivals young enough)
         whole          Σ_t x_kct ≤ φ_kc·requests·n_c                             (tightens the relaxation)
         occupancy      Σ_k Σ_τ busy_kc(t − τ)·x_kcτ ≤ slots_c·n_c
         packing        Σ_{c: unit ≥ s} gpus_c·n_c ≤ s·Σ_servers ⌊working GPUs / s⌋, or patterns (MS b, c)
         stock, numbers of instances by model, attainment_at_least, changes against what runs

Memory (MS d) and the throughput of a configuration (MS 1) are in the tables: an operating point that does not fit is
no column. `points/orchestration_flow.py` states the same matrix in numpy, which `exact` solves (a test holds the two
equal); for the instances it finds, the exact waiting form there is the plan's schedule, and its objective the plan's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyomo.environ as pyo

from formulations.orchestration.flow import FlowModel, busy_shares, dispatch, weights
from formulations.orchestration.making import make_plan
from formulations.orchestration.place import running_counts
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.problem import Orchestration
from optmodels.solver import paused_gc

# ---------------------------------------------------------------------------------------------------------------------
# Parameters


def model_data(t: OrchestrationTables) -> SimpleNamespace:
    """What the constraint families read: pairs (k, c), bounds, packing."""
    flow = FlowModel(t)
    upper = flow.compiled().upper
    cols, T = flow.columns, flow.T
    pairs = [(int(k), int(c)) for k, c in zip(flow.k, flow.c, strict=True)]
    return SimpleNamespace(
        t=t, T=T, pairs=pairs, rooms=flow.rooms, w=weights(t), running=running_counts(t),
        levels=flow.levels,
        used=sorted({c for _, c in pairs}),
        of={c: [k for k, q in pairs if q == c] for c in {c for _, c in pairs}},
        most_x={p: upper[cols.x.start + i * T : cols.x.start + (i + 1) * T] for i, p in enumerate(pairs)},
        most_I=[upper[cols.Y.start + i * T : cols.Y.start + (i + 1) * T] for i in range(len(flow.levels))],
        most_n=upper[cols.n], busy={p: busy_shares(float(t.service_s[p]), t.bin_s) for p in pairs},
        patterns=[(g, i) for g, r in enumerate(flow.rooms) if not r.divisible for i in range(len(r.patterns))],
        changes=cols.up.stop > cols.up.start, soft=cols.short.stop > cols.short.start,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Constraints, one function for each family


def balance(b: Any, i: int, t: int) -> Any:
    """Σ_{c in l} x_kct + I_klt − I_kl,t−1 ≤ φ_l·a_kt, of the i-th level (k, l)."""
    level = b.data.levels[i]
    before = b.I[i, t - 1] if t > 0 else 0.0
    starts = sum(b.x[b.data.pairs[p] + (t,)] for p in level.pairs)
    return starts + b.I[i, t] - before <= float(level.share * b.data.t.classes.arrivals[level.k, t])


def whole(b: Any, k: int, c: int) -> Any:
    """Σ_t x_kct ≤ φ_kc·requests·n_c: implied by whole instances, not by the relaxation's fractions of one."""
    most = float(b.data.t.share[k, c] * b.data.t.classes.count[k])
    return sum(b.x[k, c, t] for t in range(b.data.T)) - most * b.n[c] <= 0


def occupancy(b: Any, c: int, t: int) -> Any:
    """Σ_k Σ_τ busy_kc(t − τ)·x_kcτ ≤ slots_c·n_c: mean requests in slots in a bin."""
    d = b.data
    busy = sum(
        float(share) * b.x[k, c, t - s]
        for k in d.of[c] for s, share in enumerate(d.busy[k, c]) if 0 <= t - s < d.T
    )  # fmt: skip
    return busy <= int(d.t.slots_of[c]) * b.n[c]


def packing(b: Any, g: int, s: int) -> Any:
    """Units of at least s GPUs fit the servers of type g; patterns where sizes do not divide one another (MS b)."""
    d, room = b.data, b.data.rooms[g]
    mine = [c for c, x in enumerate(d.t.configurations) if x.gpu == g]
    if room.divisible:
        big = [c for c in mine if d.t.configurations[c].unit >= s]
        return sum(int(d.t.gpus_of[c]) * b.n[c] for c in big) <= room.capacity[s]
    units = sum(d.t.configurations[c].units * b.n[c] for c in mine if d.t.configurations[c].unit == s)
    i = room.sizes.index(s)
    return units - sum(p[i] * b.y[g, j] for j, (_, p) in enumerate(room.patterns) if p[i]) <= 0


def servers(b: Any, g: int, free: int) -> Any:
    """Every server of type g with so many working GPUs follows one pattern."""
    room = b.data.rooms[g]
    return sum(b.y[g, j] for j, (kind, _) in enumerate(room.patterns) if kind == free) <= room.servers[free]


def stock(b: Any, g: int) -> Any:
    """Σ gpus_c·n_c ≤ cluster.stock of the GPU type (MS c)."""
    d = b.data
    return sum(int(d.t.gpus_of[c]) * b.n[c] for c in range(len(d.t.configurations)) if d.t.gpu_of[c] == g) <= (
        d.rooms[g].stock
    )


def gpus_of_model(b: Any, m: int) -> Any:
    """g_m = Σ gpus_c·n_c, integer: something to branch on."""
    d = b.data
    return sum(int(d.t.gpus_of[c]) * b.n[c] for c in range(len(d.t.configurations)) if d.t.model_of[c] == m) == b.g[m]


def instances_of_model(b: Any, m: int) -> Any:
    """minimum_instances ≤ Σ n_c ≤ maximum_instances."""
    served = b.data.t.case.problem.models[m]
    total = sum(b.n[c] for c in range(len(b.data.t.configurations)) if b.data.t.model_of[c] == m)
    return (served.minimum_instances, total, served.maximum_instances)


def started(b: Any, c: int) -> Any:
    """up_c ≥ n_c − running_c."""
    return b.n[c] - b.up[c] <= int(b.data.running[c])


def stopped(b: Any, c: int) -> Any:
    """down_c ≥ running_c − n_c."""
    return b.n[c] + b.down[c] >= int(b.data.running[c])


def attainment(b: Any, m: int) -> Any:
    """Requests of the model in time ≥ attainment_at_least of them − shortfall."""
    d = b.data
    count = float(d.t.classes.count[d.t.classes.model == m].sum())
    served = sum(b.x[k, c, t] * (1.0 / count) for k, c in d.pairs if d.t.classes.model[k] == m for t in range(d.T))
    return served + (b.short[m] if d.soft else 0.0) >= float(d.t.case.problem.models[m].attainment_at_least)


def throughput_cap(b: Any) -> Any:
    """T ≤ Σ tokens in time / threshold, where T could exceed 1 (MS 7)."""
    return sum(b.data.w.throughput[k] * b.x[k, c, t] for k, c, t in b.x) - b.T >= 0


# ---------------------------------------------------------------------------------------------------------------------
# The model


def attach(block: Any, problem: Orchestration, tables: OrchestrationTables) -> None:
    """Put sets, variables and constraints on a Pyomo block; no objective.

    The block gets ``n`` by configuration, ``x`` by (class, configuration, bin), ``I`` by (class, bin) and the
    expressions ``satisfaction``, ``throughput``, ``latency`` (MS 6–8) and ``penalties``.
    """
    d = block.data = model_data(tables)
    C, M, bins = range(len(tables.configurations)), range(len(problem.models)), range(d.T)
    block.n = pyo.Var(C, domain=pyo.NonNegativeIntegers, bounds=lambda _, c: (0, d.most_n[c]))
    block.g = pyo.Var(M, domain=pyo.NonNegativeIntegers, bounds=(0, sum(r.gpus for r in d.rooms)))
    block.x = pyo.Var([(k, c, t) for k, c in d.pairs for t in bins], bounds=lambda _, k, c, t: (0, d.most_x[k, c][t]))
    block.I = pyo.Var(range(len(d.levels)), bins, bounds=lambda _, i, t: (0, d.most_I[i][t]))
    block.y = pyo.Var(d.patterns, domain=pyo.NonNegativeIntegers)
    kept = [m for m in M if problem.models[m].attainment_at_least is not None]
    block.short = pyo.Var(kept if d.soft else [], domain=pyo.NonNegativeReals)
    block.up = pyo.Var(C if d.changes else [], domain=pyo.NonNegativeReals)
    block.down = pyo.Var(C if d.changes else [], domain=pyo.NonNegativeReals)
    types = range(len(d.rooms))
    block.packing = pyo.Constraint([(g, s) for g in types for s in d.rooms[g].sizes], rule=packing)
    block.servers = pyo.Constraint(
        [(g, f) for g in types if not d.rooms[g].divisible for f in d.rooms[g].servers], rule=servers
    )
    block.stock = pyo.Constraint([g for g in types if d.rooms[g].stock is not None and d.rooms[g].sizes], rule=stock)
    block.gpus_of_model = pyo.Constraint([m for m in M if (tables.model_of == m).any()], rule=gpus_of_model)
    limited = [m for m in M if problem.models[m].minimum_instances or problem.models[m].maximum_instances is not None]
    block.instances_of_model = pyo.Constraint(limited, rule=instances_of_model)
    if d.changes:
        block.started = pyo.Constraint(C, rule=started)
        block.stopped = pyo.Constraint(C, rule=stopped)
    block.balance = pyo.Constraint(range(len(d.levels)), bins, rule=balance)
    block.whole = pyo.Constraint(d.pairs, rule=whole)
    block.occupancy = pyo.Constraint(d.used, range(d.T + 1), rule=occupancy)
    block.attainment = pyo.Constraint(
        [m for m in kept if tables.classes.count[tables.classes.model == m].sum() > 0], rule=attainment
    )
    _metrics(block, problem, tables)


def _metrics(block: Any, problem: Orchestration, tables: OrchestrationTables) -> None:
    """MS(6–8) as expressions."""
    d, w, change = block.data, block.data.w, problem.change
    block.satisfaction = pyo.Expression(expr=pyo.quicksum(w.satisfaction[k] * v for (k, _, _), v in block.x.items()))
    if w.capped:
        block.T = pyo.Var(bounds=(0, 1))
        block.throughput_cap = pyo.Constraint(rule=throughput_cap)
        block.throughput = pyo.Expression(expr=block.T)
    else:
        block.throughput = pyo.Expression(expr=pyo.quicksum(w.throughput[k] * v for (k, _, _), v in block.x.items()))
    block.latency = pyo.Expression(
        expr=pyo.quicksum((w.latency - w.first_token[k, c]) * v for (k, c, _), v in block.x.items())
        - pyo.quicksum(w.waiting * tables.bin_s * v for (i, _), v in block.I.items() if d.levels[i].whole)
    )
    block.penalties = pyo.Expression(
        expr=sum(change.score_per_start * v for v in block.up.values())
        + sum(change.score_per_stop * v for v in block.down.values())
        + sum((problem.slo.shortfall_penalty or 0.0) * v for v in block.short.values())
    )


def build(problem: Orchestration, tables: OrchestrationTables) -> Any:
    """The ConcreteModel of the problem: MS(6), or its parts as lexicographic priorities."""
    o = problem.objective
    with paused_gc():
        model = pyo.ConcreteModel(name=problem.name or problem.formulation)
        attach(model, problem, tables)
        parts = {"attainment": model.satisfaction, "throughput": model.throughput, "latency": model.latency}
        if o.kind == "score":
            rest = o.beta * parts["throughput"] + (1 - o.beta) * parts["latency"]
            score = o.alpha * parts["attainment"] + (1 - o.alpha) * rest - model.penalties
            model.score = pyo.Objective(expr=score, sense=pyo.maximize)
        else:
            for i, name in enumerate(o.order):
                expr = parts[name] - model.penalties if i == 0 else parts[name]
                setattr(model, f"priority_{name}", pyo.Objective(expr=expr, sense=pyo.maximize))
    return model


def extract(model: Any, tables: OrchestrationTables) -> OrchestrationPlan | None:
    """The plan of a solved model: its instances with their best schedule in the exact waiting form."""
    counts = np.array([round(model.n[c].value) for c in range(len(tables.configurations))], dtype=np.int64)
    assignment, _ = dispatch(tables, counts)
    return None if assignment is None else make_plan(tables, assignment)
