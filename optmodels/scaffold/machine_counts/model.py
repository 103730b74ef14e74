"""The MILP: every constraint family stated once, its docstring the inequality. README.md has the symbols."""

from __future__ import annotations

import numpy as np

from optmodels.model import Family, Model, Rows, at_least, at_most

from .points import Array, Tables
from .problem import Instance


class CountsModel(Model):
    """n_ij machines of type j for service i, where j can serve i."""

    def __init__(self, problem: Instance, tables: Tables) -> None:
        super().__init__(problem.name or problem.formulation)
        self.demand, self.stock, self.budget = tables.demand, tables.stock, tables.budget
        i, j = np.nonzero(tables.rate)
        self.rate, self.usd = tables.rate[i, j], tables.usd_per_hour[j]  # entry by entry of n
        most = np.ceil(self.demand[i] / self.rate)  # more of j than serve all of i are never needed
        self.n = self.variable("n", ("i", "j"), (i, j), upper=most, integer=True)
        self.state(FAMILIES)
        self.minimise("cost", self.expression("usd_per_hour", self.n * self.usd))

    def counts(self, x: Array) -> Array:
        """(I, J) machines of a solution."""
        found = np.zeros((len(self.demand), len(self.stock)))
        found[self.n.labels] = np.round(self.n.of(x))
        return found


def demand_met(m: CountsModel) -> Rows:
    """Σ_j r_ij·n_ij ≥ d_i: every service gets its tokens."""
    return at_least(m.demand, (m.n * m.rate).by("i"), over=m.demand.shape)


def stock(m: CountsModel) -> Rows:
    """Σ_i n_ij ≤ b_j: machines of one type, over all services."""
    return at_most(m.stock, m.n.by("j"))


def within_budget(m: CountsModel) -> Rows:
    """Σ_ij c_j·n_ij ≤ C: USD per hour."""
    return at_most(m.budget, (m.n * m.usd).by())


FAMILIES: tuple[Family, ...] = (demand_met, stock, within_budget)
