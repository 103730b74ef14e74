"""A small model that uses every part of the kernel: plants, customers and stocks over periods."""

import numpy as np

from optmodels.model import Model, Rows, at_least, at_most, between, equal, no_rows


class Transport(Model):
    """Two plants that may be opened serve three customers over three periods and keep stocks."""

    def __init__(self, *, cyclic=False, budget=np.inf, families=None):
        super().__init__("transport")
        self.supply, self.usd_open = np.array([8.0, 9.0]), np.array([10.0, 14.0])
        self.demand = np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [4.0, 1.0, 0.5]])  # (T, J)
        self.usd = np.array([[1.0, 2.0, np.inf], [2.0, 1.0, 0.5]])  # (I, J); inf: no road
        self.staff = np.array([[1.0, 0.0], [2.0, 3.0]])  # (I, H) of two trades
        self.T, (self.I, self.J) = 3, self.usd.shape
        self.cyclic, self.budget = cyclic, budget
        reach = np.argwhere(np.isfinite(self.usd)[None] & np.ones((3, 1, 1), dtype=bool))
        self.open = self.variable("open", ("i",), (self.I,), upper=1.0, integer=True)
        self.x = self.variable("x", ("t", "i", "j"), reach)
        self.stock = self.variable("stock", ("t", "j"), (self.T, self.J), upper=np.array([[1.0], [2.0], [0.0]]))
        self.late = self.variable("late", (), upper=3.0)
        self.state(FAMILIES if families is None else families)
        cost = self.expression("usd_roads", self.x * self.usd[self.x.labels[1:]])
        self.minimise("usd", cost + self.open * self.usd_open + self.late * 100.0 + 5.0)
        self.maximise("kept", self.stock)


def demand_met(m: Transport) -> Rows:
    """Σ_i x_tij + I_t−1,j − I_tj + late ≥ demand_tj: from the road, or from the stock of the period before.

    Late units are counted once for all.
    """
    late = m.late.across(t=m.T, j=m.J)
    before = m.stock.lag("t", cyclic=m.cyclic)
    return at_least(m.demand, m.x.by("t", "j") + before - m.stock + late, over=(m.T, m.J))


def capacity(m: Transport) -> Rows:
    """Σ_j x_tij ≤ supply_i·open_i."""
    return at_most(0.0, m.x.by("t", "i") - (m.open * m.supply).across(t=m.T).by("t", "i"))


def trades(m: Transport) -> Rows:
    """1 ≤ Σ_i staff_ih·open_i ≤ 4 | of each trade h."""
    return between(1.0, np.array([4.0, 4.5]), m.open.dot("i", m.staff, "h"))


def budget(m: Transport) -> Rows:
    """Σ usd·x ≤ budget."""
    _, i, j = m.x.labels
    return at_most(m.budget, (m.x * m.usd[i, j]).by())


def same_mix(m: Transport) -> Rows:
    """x_1ij = x_0ij, and shipped again two periods later in part."""
    if m.cyclic:
        return no_rows()
    t = m.x.labels[0]
    return equal(0.0, m.x[t == 1].by("i", "j") - m.x[t == 0].by("i", "j"))


def half_returns(m: Transport) -> Rows:
    """Σ_j x_tij + 0.5·Σ_j x_t−1,ij ≤ 9: half of what leaves comes back a period later."""
    t, i, _ = m.x.labels
    entry, later = np.divmod(np.arange(2 * len(m.x)), 2)
    inside = t[entry] + later < m.T
    entry, later = entry[inside], later[inside]
    back = m.x.at(entry, (i[entry], t[entry] + later), np.array([1.0, 0.5])[later], ("i", "t"))
    return at_most(np.array([[9.0, 8.5, 8.0]]), back, over=(m.I, m.T))


FAMILIES = (demand_met, capacity, trades, budget, same_mix, half_returns)
