"""A method's answer in terms of the tables: counts of deployments and shares of demands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from formulations.fleet.points import DECODE, FleetTables
from optmodels.arrays import Array, Index


@dataclass(frozen=True)
class FleetChoice:
    """A method's answer in terms of the tables: counts and shares."""

    n: Index  # (T, P) deployments
    t: Index  # (K,) and three more: share `value` of demand w on point p in period t
    w: Index
    p: Index
    value: Array

    def served(self, tables: FleetTables) -> Array:
        """Share of every demand served, (T, W); a request with disaggregated decode counts where it is prefilled."""
        served = np.zeros((len(self.n), len(tables.demands)))
        first = tables.points.stage[self.p] != DECODE
        np.add.at(served, (self.t[first], self.w[first]), self.value[first])
        return served

    def used(self, tables: FleetTables) -> Array:
        """Load in deployments of the scarcest capacity, (T, P)."""
        return self.used_of_each(tables).max(axis=0)

    def used_of_each(self, tables: FleetTables) -> Array:
        """Load in deployments on each capacity, (K, T, P)."""
        every = tables.load[None] if tables.capacities is None else tables.capacities
        load = np.zeros((len(every), *self.n.shape))
        requests = tables.rates[self.t, self.w] * self.value
        for k, each in enumerate(every):
            np.add.at(load[k], (self.t, self.p), requests * each[self.w, self.p])
        return load

    def used_alone(self, tables: FleetTables) -> Array:
        """Load in deployments if every share had its scarcest capacity, which no other need be scarce of; (T, P)."""
        load = np.zeros(self.n.shape)
        requests = tables.rates[self.t, self.w] * self.value
        np.add.at(load, (self.t, self.p), requests * tables.load[self.w, self.p])
        return load
