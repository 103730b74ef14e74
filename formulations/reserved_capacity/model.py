"""Reserved capacity: its constraint families, each stated once. README.md has the mathematics around them.

`Purchases` has the reservations; `TrafficModel` adds hourly purchases and who serves whom, flows written out:
the reference, as large as regions² × hours. The master of the method `exact` is `Purchases` with cuts, without flows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from formulations.reserved_capacity.points import ReservedTables, deviations
from formulations.reserved_capacity.problem import HOURS_PER_MONTH, ReservedCapacity
from optmodels.arrays import Array
from optmodels.errors import SolverError
from optmodels.model import Expression, Family, Model, Rows, Terms, at_least, at_most, equal, no_rows


class Purchases(Model):
    """Reservations k, minimum purchases b, and their price; families are stated by the one who adds to it."""

    def __init__(self, tables: ReservedTables) -> None:
        problem = tables.case.problem
        super().__init__(problem.name or problem.formulation)
        self.tables = tables
        self.step, self.minimum = tables.column_step.astype(float), tables.column_minimum.astype(float)  # (C,)
        self.most = np.floor(tables.most_useful() / self.step)  # (C,), K
        self.k = self.variable("k", ("c",), self.most.shape, upper=self.most, integer=True)
        self.b = self.variable("b", ("c",), (np.flatnonzero(self.minimum > 0),), upper=1.0, integer=True)
        price = tables.column_usd_per_month * self.step
        self.reserved_usd = self.expression("reserved_usd_per_month", self.k * price)

    def counts(self, x: Array) -> Array:
        """Machines of every column, (C,), in a solution."""
        return self.k.of(x) * self.step


class TrafficModel(Purchases):
    """The whole model with flows written out.

    Args:
        tables: see `points`.
        families: those stated; others than all for a part of the model, as an LP over some rows is.
    """

    def __init__(self, tables: ReservedTables, families: Iterable[Family] | None = None) -> None:
        super().__init__(tables)
        t = tables
        (I, J), T = t.reach.shape, len(t.demand)  # noqa: E741
        factors = [deviations(t, guard) for guard in t.guards]
        variants = [(g, v) for g, of_guard in enumerate(factors) for v in range(len(of_guard))]
        self.g, self.v = np.array(variants, dtype=np.intp).reshape(-1, 2).T  # (S,): lost parts, deviating sources
        self.kept = np.array([f for of_guard in factors for f in of_guard]).reshape(len(variants), I)
        self.left = np.array([guard.alive > 0 for guard in t.guards], dtype=bool).reshape(len(t.guards), J)
        self.extra = np.array([guard.extra for guard in t.guards]).reshape(len(t.guards), J)
        self.after = np.array([guard.demand(t.demand).T for guard in t.guards]).reshape(len(t.guards), I, T)

        self.f = self.variable("f", ("i", "j", "t"), np.nonzero(np.repeat(t.reach[:, :, None], T, axis=2)))
        self.x = self.variable("x", ("o", "t"), (len(t.option_sink), T), upper=t.option_most[:, None])
        priced = np.isfinite(t.penalty)
        self.u = self.variable("u", ("i", "t"), np.nonzero(np.repeat(priced[:, None], T, axis=1)))
        s, i, j, row = np.nonzero(np.repeat((t.reach & self.left[self.g][:, None, :])[..., None], T, axis=3))
        self.e = self.variable("e", ("g", "v", "i", "j", "t"), (self.g[s], self.v[s], i, j, row))
        self.state(FAMILIES if families is None else families)

        hourly = self.expression("hourly_usd_per_month", hourly_usd_per_month(self))
        self.minimise("cost", self.reserved_usd + hourly)


def held(m: Purchases, active: Array, name: str) -> Terms:
    """Σ_c A_c·step_c·k_c, machines reserved in sink j, in rows (j, q) of A (C, Q), or (j, t) of A (C, T)."""
    machines = (m.k * m.step).by("c", j=m.tables.column_sink)
    return machines.dot("c", active, name).by("j", name)


def held_at(m: Purchases) -> Terms:
    """The same in rows (j, t)."""
    return held(m, m.tables.column_active[:, m.tables.quarter], "t")


# ------------------------------------------------------------------------------------------------- constraints


def demand_met(m: TrafficModel) -> Rows:
    """Σ_j f_ijt + u_it = d_it: every request is served somewhere it may be, or pays its price."""
    demand = m.tables.demand.T
    return equal(demand, m.f.by("i", "t") + m.u, over=demand.shape)


def capacity(m: TrafficModel) -> Rows:
    """Σ_i a_ij·f_ijt ≤ Σ_c A_cq·step_c·k_c + Σ_o x_ot: machines in j, reserved or bought (SK §2.2); t is in q."""
    t = m.tables
    i, j, _ = m.f.labels
    used = (m.f * t.work[i, j]).by("j", "t")
    bought = m.x.by("t", j=t.option_sink[m.x.labels[0]]).by("j", "t")
    return at_most(0.0, used - held_at(m) - bought, over=(len(t.sink_most), len(t.demand)))


def reservable(m: Purchases) -> Rows:
    """Σ_c A_cq·step_c·k_c ≤ R_j: at any time the provider has this many in j."""
    return at_most(m.tables.sink_most[:, None], held(m, m.tables.column_active, "q"))


def minimum_purchase(m: Purchases) -> Rows:
    """step_c·k_c ≥ minimum_c·b_c: none, or at least the minimum."""
    return at_least(0.0, (m.k * m.step).among(m.b) - m.b * m.minimum[m.b.labels[0]])


def purchase_only_if(m: Purchases) -> Rows:
    """k_c ≤ K_c·b_c: reservations only where b_c = 1."""
    return at_most(0.0, m.k.among(m.b) - m.b * m.most[m.b.labels[0]])


def survivors_meet_demand(m: TrafficModel) -> Rows:
    """Σ_j e_gvijt = keep_gvi·d_git: after the loss, the stated share of demand is served, wherever it may be then."""
    s, i, row = (each.ravel() for each in np.indices((len(m.g), *m.after.shape[1:])))
    return equal(m.kept[s, i] * m.after[m.g[s], i, row], m.e.by("g", "v", "i", "t"), over=(m.g[s], m.v[s], i, row))


def survivors_capacity(m: TrafficModel) -> Rows:
    """Σ_i a_ij·e_gvijt ≤ Σ_c A_cq·step_c·k_c + extra_gj: in j that is left after the loss; t is in q."""
    if not len(m.g):
        return no_rows()
    _, _, i, j, _ = m.e.labels
    used = (m.e * m.tables.work[i, j]).by("g", "v", "j", "t")
    reserved = held_at(m).across(s=len(m.g))
    j, _, s = reserved.labels
    left = reserved.by("j", "t", g=m.g[s], v=m.v[s]).by("g", "v", "j", "t")[m.left[m.g[s], j]]
    return at_most(m.extra[:, None, :, None], used - left)


PURCHASES: tuple[Family, ...] = (reservable, minimum_purchase, purchase_only_if)
FAMILIES: tuple[Family, ...] = (demand_met, capacity, *PURCHASES, survivors_meet_demand, survivors_capacity)


def hourly_usd_per_month(m: TrafficModel) -> Expression:
    """730·Σ_t w_t·(Σ_o p_o·x_ot + Σ_i P_i·u_it + Σ_ij g_ij·f_ijt)."""
    t, usd = m.tables, HOURS_PER_MONTH * m.tables.weight
    o, row = m.x.labels
    bought = m.x * (usd[row] * t.option_usd_per_hour[o])
    i, row = m.u.labels
    unserved = m.u * (usd[row] * t.penalty[i])
    i, j, row = m.f.labels
    return Expression(bought.by() + unserved.by() + (m.f * (usd[row] * t.egress[i, j])).by())


# -------------------------------------------------------------------------------------------------------- uses


def stated(problem: ReservedCapacity, tables: ReservedTables) -> TrafficModel:
    """The model of the problem.

    Raises:
        SolverError: no machine can be reserved or bought anywhere, or there is no demand: no model to build.
    """
    if not len(tables.sink_region) or not len(tables.source_region):
        raise SolverError("no demand, or no machine that may serve it")
    return TrafficModel(tables)


def attach(block: Any, problem: ReservedCapacity, tables: ReservedTables) -> None:
    """Put variables, families and costs on a Pyomo block, each under its name; no objective.

    The block gets ``k`` by reservation (columns of `tables`), ``x`` by (option, row), ``f`` by (source, sink, row),
    ``u`` by (source, row) and the expressions ``reserved_usd_per_month`` and ``hourly_usd_per_month``.
    """
    TrafficModel(tables).attach(block)


def build(problem: ReservedCapacity, tables: ReservedTables) -> Any:
    """The ConcreteModel of the problem; see `stated`."""
    return stated(problem, tables).pyomo()
