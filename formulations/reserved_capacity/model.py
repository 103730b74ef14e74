r"""Reserved capacity over regions for demand that follows the sun (SkyLB §2.2, §3.1), with flows written out.

Sets
    i ∈ I                sources: a service's users in a region (the share that may not leave is a source of its own)
    j ∈ J                sinks: a machine type in a region
    c ∈ C                reservations on offer: (sink, term, first quarter)
    o ∈ O                machines by the hour: (sink, on demand or spot)
    t ∈ T                rows: (scenario, quarter, hour), w_t their share of time
    g ∈ G, v ∈ V_g       what must survive (a region lost, spot lost, a worst case) and its largest deviations

Parameters, all from tables
    d_it                 demand, requests/s
    a_ij                 machines per request/s: κ·[i's region ≠ j's]/(throughput·utilisation)
    C_c, p_o, P_i        USD/month of a reservation; USD/h of a machine by the hour; USD/h per request/s unserved
    g_ij                 USD/h of egress per request/s of i served in j, request and answer
    A_cq                 1 where reservation c runs in quarter q
    keep_gvi, alive_gj, extra_gj    demand kept, share of reservations left, hourly machines counted on

Variables
    k_c ∈ Z₊             reservations in steps of `step`; b_c ∈ {0, 1} where a minimum purchase applies
    x_ot ∈ [0, cap_o]    machines bought by the hour
    f_ijt ≥ 0            requests/s of i served in j, only where round trip + queue + prefill ≤ TTFT (SK §2.1)
    u_it ≥ 0             unserved requests/s, where they have a price
    e_gvijt ≥ 0          flows after g

Objective  min Σ_c C_c·step_c·k_c + 730 Σ_t w_t (Σ_o p_o·x_ot + Σ_i P_i·u_it + Σ_ij g_ij·f_ijt)

This is the reference: its size is regions² × hours. The method `exact` (`formulations.reserved_capacity.methods.exact`)
projects the flows out and has the same optimum; tests compare the two on random networks.

    python -m formulations.reserved_capacity INSTANCE      solves an instance file
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyomo.environ as pyo

from formulations.reserved_capacity.making import make_plan
from formulations.reserved_capacity.plan import ReservedPlan
from formulations.reserved_capacity.points import ReservedTables, deviations
from formulations.reserved_capacity.problem import HOURS_PER_MONTH, ReservedCapacity
from optmodels.errors import SolverError
from optmodels.solver import paused_gc


@dataclass(frozen=True)
class Data:
    """What the rules read; see the module's docstring."""

    tables: ReservedTables
    demand: dict[tuple[int, int], float]
    servers: dict[int, list[int]]  # sinks of a source
    users: dict[int, list[int]]  # sources of a sink
    work: dict[tuple[int, int], float]
    columns: dict[int, list[int]]  # reservations of a sink
    options: dict[int, list[int]]  # hourly options of a sink
    most: dict[int, int]  # largest k_c
    survive: list[tuple[int, int]]  # (guard, variant)
    kept: dict[tuple[int, int], Any]  # share of every source's demand kept


def model_data(t: ReservedTables) -> Data:
    """Model data from tables."""
    I, J = t.reach.shape  # noqa: E741
    rows = range(len(t.demand))
    kept = {(g, v): f for g, guard in enumerate(t.guards) for v, f in enumerate(deviations(t, guard))}
    most = t.most_useful()
    return Data(
        tables=t,
        demand={(i, h): float(t.demand[h, i]) for i in range(I) for h in rows},
        servers={i: np.flatnonzero(t.reach[i]).tolist() for i in range(I)},
        users={j: np.flatnonzero(t.reach[:, j]).tolist() for j in range(J)},
        work={(int(i), int(j)): float(t.work[i, j]) for i, j in zip(*np.nonzero(t.reach), strict=True)},
        columns={j: np.flatnonzero(t.column_sink == j).tolist() for j in range(J)},
        options={j: np.flatnonzero(t.option_sink == j).tolist() for j in range(J)},
        most={c: int(most[c] // t.column_step[c]) for c in range(len(t.column_sink))},
        survive=list(kept), kept=kept,
    )  # fmt: skip


def held(m: Any, j: int, q: int) -> Any:
    """Σ_c A_cq·step_c·k_c: machines reserved in sink j in quarter q."""
    t = m.data.tables
    return sum(int(t.column_step[c]) * m.k[c] for c in m.data.columns[j] if t.column_active[c, q])


# ------------------------------------------------------------------------------------------------- constraints


def demand_met(m: Any, i: int, h: int) -> Any:
    """Σ_j f_ijt + u_it = d_it: every request is served somewhere it may be, or pays its price."""
    short = m.u[i, h] if (i, h) in m.u else 0.0  # noqa: SIM401 - a Pyomo component has no get
    if not m.data.servers[i] and isinstance(short, float):
        return pyo.Constraint.Feasible if m.data.demand[i, h] == 0 else pyo.Constraint.Infeasible
    return sum(m.f[i, j, h] for j in m.data.servers[i]) + short == m.data.demand[i, h]


def capacity(m: Any, j: int, h: int) -> Any:
    """Σ_i a_ij·f_ijt ≤ machines reserved + bought in j: SK §2.2's pool, region by region."""
    q = int(m.data.tables.quarter[h])
    bought = sum(m.x[o, h] for o in m.data.options[j])
    return sum(m.data.work[i, j] * m.f[i, j, h] for i in m.data.users[j]) <= held(m, j, q) + bought


def reservable(m: Any, j: int, q: int) -> Any:
    """Machines reserved in j at any time ≤ what the provider has there."""
    most = m.data.tables.sink_most[j]
    if not np.isfinite(most) or not m.data.columns[j]:
        return pyo.Constraint.Skip
    return held(m, j, q) <= most


def minimum_purchase(m: Any, c: int) -> Any:
    """step_c·k_c ≥ minimum_c·b_c: none, or at least the minimum."""
    t = m.data.tables
    return int(t.column_step[c]) * m.k[c] >= int(t.column_minimum[c]) * m.b[c]


def purchase_only_if(m: Any, c: int) -> Any:
    """k_c ≤ K_c·b_c."""
    return m.k[c] <= m.data.most[c] * m.b[c]


def survivors_meet_demand(m: Any, g: int, v: int, i: int, h: int) -> Any:
    """Σ_j e_gvijt = keep_gvi·d_it: after the loss, the stated share of demand is served."""
    alive = m.data.tables.guards[g]
    flows = [m.e[g, v, i, j, h] for j in m.data.servers[i] if alive.alive[j] > 0]
    kept = float(m.data.kept[g, v][i]) * m.data.demand[i, h]
    if not flows:
        return pyo.Constraint.Feasible if kept == 0 else pyo.Constraint.Infeasible
    return sum(flows) == kept


def survivors_capacity(m: Any, g: int, v: int, j: int, h: int) -> Any:
    """Σ_i a_ij·e_gvijt ≤ alive_gj·reserved + extra_gj."""
    t = m.data.tables
    guard = t.guards[g]
    if guard.alive[j] == 0 or not np.isfinite(guard.extra[j]):
        return pyo.Constraint.Skip
    used = sum(m.data.work[i, j] * m.e[g, v, i, j, h] for i in m.data.users[j])
    return used <= float(guard.alive[j]) * held(m, j, int(t.quarter[h])) + float(guard.extra[j])


# ------------------------------------------------------------------------------------------------------- model


def attach(block: Any, problem: ReservedCapacity, tables: ReservedTables) -> None:
    """Put sets, variables and constraints on a Pyomo block; no objective.

    The block gets ``k`` by reservation (columns of `tables`), ``x`` by (option, row), ``f`` by (source, sink, row),
    ``u`` by (source, row) and the expressions ``reserved_usd_per_month`` and ``hourly_usd_per_month``.
    """
    t = tables
    data = block.data = model_data(t)
    rows = range(len(t.demand))
    C, J, Q = range(len(t.column_sink)), range(len(t.sink_region)), range(t.quarters)
    block.k = pyo.Var(C, domain=pyo.NonNegativeIntegers, bounds=lambda _, c: (0, data.most[c]))
    small = [c for c in C if t.column_minimum[c] > 0]
    block.b = pyo.Var(small, domain=pyo.Binary)
    most = [None if np.isinf(v) else float(v) for v in t.option_most]
    block.x = pyo.Var(range(len(t.option_sink)), rows, bounds=lambda _, o, h: (0, most[o]))
    block.f = pyo.Var([(i, j, h) for i, j in data.work for h in rows], domain=pyo.NonNegativeReals)
    priced = [i for i in range(len(t.penalty)) if np.isfinite(t.penalty[i])]
    block.u = pyo.Var(priced, rows, domain=pyo.NonNegativeReals)
    block.demand_met = pyo.Constraint(range(len(t.source_region)), rows, rule=demand_met)
    block.capacity = pyo.Constraint(J, rows, rule=capacity)
    block.reservable = pyo.Constraint(J, Q, rule=reservable)
    block.minimum_purchase = pyo.Constraint(small, rule=minimum_purchase)
    block.purchase_only_if = pyo.Constraint(small, rule=purchase_only_if)
    if data.survive:
        block.e = pyo.Var(
            [(g, v, i, j, h) for g, v in data.survive for i, j in data.work for h in rows if t.guards[g].alive[j] > 0],
            domain=pyo.NonNegativeReals,
        )
        block.survivors_meet_demand = pyo.Constraint(
            [(g, v, i, h) for g, v in data.survive for i in range(len(t.source_region)) for h in rows],
            rule=survivors_meet_demand,
        )
        block.survivors_capacity = pyo.Constraint(
            [(g, v, j, h) for g, v in data.survive for j in J for h in rows], rule=survivors_capacity
        )
    block.reserved_usd_per_month = pyo.Expression(
        expr=sum(float(t.column_usd_per_month[c] * t.column_step[c]) * block.k[c] for c in C)
    )
    per_hour = HOURS_PER_MONTH * t.weight
    block.hourly_usd_per_month = pyo.Expression(
        expr=pyo.quicksum(float(per_hour[h] * t.option_usd_per_hour[o]) * block.x[o, h] for o, h in block.x)
        + pyo.quicksum(float(per_hour[h] * t.penalty[i]) * block.u[i, h] for i, h in block.u)
        + pyo.quicksum(float(per_hour[h] * t.egress[i, j]) * block.f[i, j, h] for i, j, h in block.f if t.egress[i, j])
    )


def build(problem: ReservedCapacity, tables: ReservedTables) -> Any:
    """The ConcreteModel of the problem.

    Raises:
        SolverError: no machine can be reserved or bought anywhere, or there is no demand: no model to build.
    """
    if not len(tables.sink_region) or not len(tables.source_region):
        raise SolverError("no demand, or no machine that may serve it")
    with paused_gc():
        model = pyo.ConcreteModel(name=problem.name or problem.formulation)
        attach(model, problem, tables)
        model.cost = pyo.Objective(expr=model.reserved_usd_per_month + model.hourly_usd_per_month)
    return model


def extract(model: Any, tables: ReservedTables) -> ReservedPlan:
    """The plan of a solved model; purchases and flows are dispatched anew (local first among equals)."""
    counts = np.array([round(model.k[c].value) * int(tables.column_step[c]) for c in range(len(tables.column_sink))])
    return make_plan(tables, counts.astype(float))
