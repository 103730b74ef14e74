"""Branch and bound on how many deployments a pool has, on few points, to which prices add those that pay.

A fleet has many points, engines of one machine at many levels, and uses few. The linear relaxation leaves open
how many *machines* there are, and then how many of them have short steps: so the tree branches on M_c, the deployments
of one price (a fleet costs a whole combination of prices), where these are whole on N_g = Σ_{p ∈ g} n_p, g the points
of one machine set, model and stage, and then on U_p, in g up to p in the order of their steps. No n_p is branched
on: without p a relaxation takes the next level, which does nearly as well, while U_p ≤ k moves the load that is split
between levels; and where every U_p is whole, so is every n_p = U_p − U_{before p}.

Nodes are linear programs on a subset S of the points, solved from the last basis. Their row prices y bound the whole
model (Lagrange): the points outside S add Σ_p min(0, u_p·(C_p − yᵀA_p − K_p)), K_p being the most that one *whole*
deployment can save at these prices, a fractional knapsack. Where that sum matters, those points enter S. So a bound
holds for all points, though most of them are in no linear program; and prefill and decode points are priced each by
itself, at y's split of a demand's price.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import scipy.sparse as sp

from formulations.fleet.making import FleetChoice
from formulations.fleet.model import FleetModel
from formulations.fleet.points import DECODE, changes_matter
from formulations.fleet.problem import Fleet
from optmodels.arrays import Array, Index, Mask
from optmodels.errors import SolverError
from optmodels.solver import Compiled, Report, Settings
from optmodels.solver.cancel import cancelled
from optmodels.solver.highs import PROVED, Event, Limit, Relaxed, Status, relative_gap, verify
from optmodels.solver.safe import least_value
from optmodels.solver.session import Session

Key = tuple[str, int]  # "M" and a price, "N" and a group, or "U" and a point
Bounds = dict[Key, tuple[float, float]]
Node = tuple[float, int, Bounds, Any]  # proved bound, order, bounds, its parent's basis on the S of now or None
OF_POINTS = ("capacity", "capacities", "small_shares")  # families whose rows are of one point
FIRST = 100  # points of least reduced cost in the first S
MORE = 80  # that enter S at once
ROUNDS = 8  # of mixing a point's capacities, to tell what its room is worth
WHOLE = 1e-6  # from a whole number
UPWARDS = 0.3  # fraction from which on the larger number is tried first
EQUAL = 1e-7  # relative, of costs
DIVE = 20  # nodes from one dive's beginning to the next, at least
NEAR = 60  # points of least reduced cost that stay in S when others enter
ELASTIC = 1e3  # USD/h of breaking a row by one, in costs of the plan in hand


def applies(problem: Fleet) -> bool:
    """Minimum cost in one period without reserve or changes: all that joins points are rows of n, x and s."""
    one = len(problem.periods) <= 1 and problem.running is None and not changes_matter(problem)
    return one and problem.reserve is None and problem.objective == "min_cost"


class PointModel:
    """The model on every point, its rows and columns distinguished by point, and prices of all points at duals of
    rows.
    """

    def __init__(self, model: FleetModel, compiled: Compiled) -> None:
        self.model, self.compiled = model, compiled
        tables = model.tables
        m, self.W = self.model, len(tables.demands)
        self.P = len(tables.points)
        rows, columns = self.compiled.A.shape
        self.of_row, self.of_column = np.full(rows, -1), np.full(columns, -1)
        for family in m.families:
            if family in OF_POINTS:
                rows_of = m.rows(family)
                if len(rows_of):
                    self.of_row[m.positions(family)] = rows_of.labels[2 if family == "small_shares" else 1]
        self.of_column[m.n.columns], self.of_column[m.x.columns] = m.n.labels[1], m.x.labels[2]
        self.linking = np.flatnonzero(self.of_row < 0)
        self.coupling = self.compiled.A.tocsr()[self.linking].tocsc()
        self.most = self.compiled.upper[m.n.columns]
        self.groups, self.group = np.unique(tables.points.pool, return_inverse=True)
        self.price = np.zeros(len(self.groups))
        np.maximum.at(self.price, self.group, tables.points.usd_per_hour)
        self.prices, self.of_price = np.unique(self.price, return_inverse=True)
        order = np.lexsort((*tables.points.level[::-1], tables.points.configuration, self.group))
        self.rank = np.argsort(order)  # of points, by group, configuration, step and wait
        load = np.where(np.isfinite(tables.each_load), tables.each_load, 0.0)
        self.each = load * tables.rates[0][None, :, None]  # (Q, W, P)
        self.mix = np.full((len(load), self.P), 1.0 / len(load))
        self.within = np.zeros(len(m.x.columns), dtype=bool)  # shares with a row x_wp ≤ n_p in linear programs

    def learn(self, duals: Array) -> None:
        """Mix the capacities of every point as the rows' duals do."""
        m = self.model
        if "capacities" not in m.families or not len(m.rows("capacities")):
            return
        _, p, q = m.rows("capacities").labels
        own = np.zeros_like(self.mix)
        own[q, p] = np.maximum(-duals[m.positions("capacities")], 0.0)
        total = own.sum(axis=0)
        self.mix = np.where(total > 0, 0.95 * own / np.where(total > 0, total, 1.0) + 0.05 * self.mix, self.mix)

    def feasible(self, x: Array) -> Array | None:
        """The point as our own arrays allow it, shares where deployments are; None if there is no such point."""
        full = self.compiled
        n = x[self.model.n.columns]
        some = np.append(n > 0.5, True)  # the last: of no point
        columns, rows = np.flatnonzero(some[self.of_column]), np.flatnonzero(some[self.of_row])
        found = np.zeros_like(x)
        try:
            found[columns] = verify(full.part(rows, columns), x[columns])
        except SolverError:
            return None
        return found if full.violation(found) is None else None

    def outside(self, y: Array, of_count: Array, inside: Mask) -> tuple[Array, Array]:
        """What points outside S may add to a bound, ≤ 0 each, (P,); and their reduced costs, (P,), at most.

        Args:
            y: duals of the linking rows.
            of_count: duals of the row of sums that each n_p is in, (P,).
            inside: points in S, (P,).
        """
        m = self.model
        reduced = self.compiled.costs[0] - self.coupling.T @ y
        unit = reduced[m.n.columns] - of_count
        gain = np.zeros((self.W, self.P))
        gain[m.x.labels[1], m.x.labels[2]] = np.maximum(-reduced[m.x.columns], 0.0)
        gain[:, inside] = 0.0
        cost = unit.copy()
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            mixed = np.einsum("qp,qwp->wp", self.mix, self.each)
            dearest = np.where(gain > 0, gain / mixed, 0.0).max(axis=0, initial=0.0)
        open_ = np.flatnonzero((dearest > unit * (1 - 1e-9)) & ~inside)
        if len(open_):
            worth, self.mix[:, open_], _ = worth_of_room(
                gain[:, open_], self.each[:, :, open_], self.mix[:, open_], unit[open_] * (1 - 1e-9)
            )
            cost[open_] = unit[open_] - worth * (1 + 1e-9)
        cost = np.where(inside, 0.0, cost)
        return np.minimum(cost, 0.0) * self.most, cost


def worth_of_room(gain: Array, each: Array, mix: Array, enough: Array) -> tuple[Array, Array, Array]:
    """The most that one deployment of every point can gain, at most: max Σ_w gain·x, Σ_w each_q·x ≤ 1, 0 ≤ x ≤ 1.

    Any mixture of the capacities gives a knapsack that allows more; better ones weigh capacities that the last one
    overfilled.

    Args:
        gain: gain of a whole demand on a point, (W, P).
        each: deployments that the whole demand takes of every capacity, (Q, W, P).
        mix: weights of the capacities, sum 1, (Q, P).
        enough: a worth that need not be less, (P,).

    Returns:
        The worth (P,), the mixture that it is for (Q, P), and the shares that have it (W, P).
    """
    best, kept, held = np.full(gain.shape[1], np.inf), mix.copy(), np.zeros_like(gain)
    on = np.arange(gain.shape[1])  # points that are weighed further
    for _ in range(ROUNDS):
        load = np.einsum("qp,qwp->wp", mix, each)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            density = np.where(gain > 0, gain / load, 0.0)
        order = np.argsort(-density, axis=0)
        size = np.take_along_axis(np.where(gain > 0, load, 0.0), order, axis=0)
        share = np.divide(np.clip(1.0 - np.cumsum(size, axis=0) + size, 0.0, size), size,
                          out=np.ones_like(size), where=size > 0)  # fmt: skip
        x = np.zeros_like(gain)
        np.put_along_axis(x, order, share, axis=0)
        x[gain <= 0] = 0.0
        worth = (gain * x).sum(axis=0)
        less = worth < best[on]
        kept[:, on[less]], best[on[less]], held[:, on[less]] = mix[:, less], worth[less], x[:, less]
        used = np.einsum("qwp,wp->qp", each, x)
        further = (used.max(axis=0, initial=0.0) > 1 + 1e-9) & (best[on] > enough[on])
        if not further.any():
            break
        on, gain, each = on[further], gain[:, further], each[:, :, further]
        mix = mix[:, further] * np.exp(np.clip(used[:, further] - 1.0, -1.0, 1.0)) + 1e-9
        mix = mix / mix.sum(axis=0)
    return best, kept, held


def spare_columns(low: Array, high: Array, rows: int) -> sp.csc_array:
    """Columns by which the first rows, of these bounds, may be broken: each where it has one; (rows, K)."""
    least, most = np.flatnonzero(np.isfinite(low)), np.flatnonzero(np.isfinite(high))
    index, signs = np.concatenate([least, most]), np.repeat([1.0, -1.0], [len(least), len(most)])
    return sp.csc_array((signs, (index, np.arange(len(index)))), shape=(rows, len(index)))


class _Few:
    """The linear program on the points S: rows may be broken at `elastic` USD/h, so that it always has a solution."""

    def __init__(self, whole: PointModel, chosen: Index, settings: Settings, elastic: float,
                 ever: Mask) -> None:  # fmt: skip
        self.whole, self.chosen, self.ever = whole, chosen, ever  # ever: points that some solution used
        self.inside = np.zeros(whole.P, dtype=bool)
        self.inside[chosen] = True
        full, G = whole.compiled, len(whole.groups)
        self.rows = np.concatenate([whole.linking, np.flatnonzero((whole.of_row >= 0) & self.inside[whole.of_row])])
        self.columns = np.flatnonzero((whole.of_column < 0) | self.inside[whole.of_column])
        n = len(self.columns)
        at = np.full(full.A.shape[1], -1)
        at[self.columns] = np.arange(n)
        self.n = at[whole.model.n.columns[chosen]]  # of the deployments of the chosen
        C, T = len(chosen), len(whole.prices)
        self.U, self.N, self.M = np.split(n + np.arange(C + G + T), [C, C + G])
        e = np.flatnonzero(whole.within & self.inside[whole.model.x.labels[2]])  # x ≤ n that a relaxation needed
        x, count = at[whole.model.x.columns[e]], at[whole.model.n.columns[whole.model.x.labels[2][e]]]
        k = np.arange(len(e))
        within = sp.csr_array((np.repeat([1.0, -1.0], len(e)), (np.tile(k, 2), np.append(x, count))), shape=(len(e), n))
        parts: Any = [[sp.csr_array(full.A.tocsr()[self.rows][:, self.columns]), None], [within, None],
                      self._sums(n)]  # fmt: skip
        A = sp.csc_array(sp.block_array(parts))
        zeros = np.zeros(C + G + T)
        own_low = np.append(full.row_lower[self.rows], np.full(len(e), -np.inf))
        own_high = np.append(full.row_upper[self.rows], np.zeros(len(e)))
        of_group = np.bincount(whole.group, whole.most, G)
        of_price = np.bincount(whole.of_price, of_group, T)
        self.part = Compiled(
            np.append(full.costs[0][self.columns], zeros)[None], full.offsets[:1], full.signs[:1], A,
            np.append(own_low, zeros), np.append(own_high, zeros),
            np.append(full.lower[self.columns], zeros),
            np.concatenate([full.upper[self.columns], of_group[whole.group[chosen]], of_group, of_price]),
            np.zeros(n + len(zeros), dtype=bool), [], [],
        )  # fmt: skip
        L = len(whole.linking)
        spare = spare_columns(self.part.row_lower[:L], self.part.row_upper[:L], A.shape[0])
        free = np.zeros(spare.shape[1])
        self.session = Session(None, settings)
        self.session.load(
            np.append(self.part.costs[0], free + elastic), sp.hstack([A, spare]), self.part.row_lower,
            self.part.row_upper, np.append(self.part.lower, free), np.append(self.part.upper, free + np.inf),
        )  # fmt: skip
        self.changed: Index = np.zeros(0, dtype=np.intp)

    def _sums(self, n: int) -> list[sp.csr_array]:
        """Rows n_p + U_before = U_p in the order of rank, U_last = N_g, Σ N_g = M_c: of n columns, and of U, N, M."""
        whole, C, G, T = self.whole, len(self.chosen), len(self.whole.groups), len(self.whole.prices)
        self.order = np.argsort(whole.rank[self.chosen])
        group = whole.group[self.chosen[self.order]]
        ends = np.append(group[1:] != group[:-1], True)[:C]
        i, U, again = np.arange(C), self.U[self.order] - n, np.flatnonzero(~ends)
        chain = sp.csr_array((np.ones(C), (i, self.n[self.order])), shape=(C + G + T, n))
        row = [i, again + 1, C + group[ends], C + np.arange(G), C + G + whole.of_price, C + G + np.arange(T)]
        column = [U, U[again], U[ends], C + np.arange(G), C + np.arange(G), C + G + np.arange(T)]
        value = [-np.ones(C), np.ones(len(again)), np.ones(ends.sum()), -np.ones(G), np.ones(G), -np.ones(T)]
        joined = np.concatenate(value), (np.concatenate(row), np.concatenate(column))
        return [chain, sp.csr_array(joined, shape=(C + G + T, C + G + T))]

    def _of_count(self, duals: Array) -> Array:
        """Duals of the row of sums that each n_p is in, (P,): of the next one in S, or behind the last the dual of N_g.

        Args:
            duals: duals of the rows of `_sums`.
        """
        whole, C = self.whole, len(self.chosen)
        chosen = self.chosen[self.order]
        at = np.searchsorted(whole.rank[chosen], whole.rank)
        return np.where(np.append(whole.group[chosen], -1)[at] == whole.group, duals[at], duals[C + whole.group])

    def solve(self, bounds: Bounds) -> bool:
        """Run under a node's bounds of n and N; whether it was solved to its end."""
        self.lower, self.upper = self.part.lower.copy(), self.part.upper.copy()
        place = dict(zip(self.chosen.tolist(), self.U.tolist(), strict=True))
        for (kind, k), (low, high) in bounds.items():
            j = place[k] if kind == "U" else int((self.N if kind == "N" else self.M)[k])
            self.lower[j], self.upper[j] = low, high
        now = np.flatnonzero((self.lower != self.part.lower) | (self.upper != self.part.upper))
        touched = np.union1d(now, self.changed)
        if len(touched):
            self.session.set_column_bounds(touched, self.lower[touched], self.upper[touched])
        self.changed = now
        if self.session.run() != "optimal":
            return False
        self.value = self.session.values()
        self.ever[self.chosen[self.value[self.n] > WHOLE]] = True
        return True

    def bound(self) -> tuple[float, Array]:
        """Proved for all points under the node's bounds, whatever the tolerances; and reduced costs outside S."""
        y = self.session.row_duals()
        L, sums = len(self.whole.linking), len(self.U) + len(self.N) + len(self.M)
        y = np.where(((y > 0) & np.isinf(self.part.row_lower)) | ((y < 0) & np.isinf(self.part.row_upper)), 0.0, y)
        inside = least_value(self.part, self.part.costs[0], y, lower=self.lower, upper=self.upper)
        less, reduced = self.whole.outside(y[:L], self._of_count(y[-sums:]), self.inside)
        return inside + float(less.sum()) + float(self.part.offsets[0]), reduced

    def near(self) -> Index:
        """Places in S of the points with the least reduced cost in the last solution."""
        return np.argsort(self.session.reduced_costs()[self.n], kind="stable")[:NEAR]

    def point(self) -> Array:
        """The last solution on all columns of the model."""
        x = np.zeros(self.whole.compiled.A.shape[1])
        x[self.columns] = self.value[: len(self.columns)]
        return x

    def branch(self) -> tuple[Key, float, float, float] | None:
        """What to branch on, its value and bounds: the dearest fraction of M, else N, else U; None if whole."""
        whole = self.whole
        usd = whole.prices, whole.price, whole.price[whole.group[self.chosen]]
        for kind, columns, weight in zip("MNU", (self.M, self.N, self.U), map(np.sqrt, usd), strict=True):
            amount = self.value[columns]
            off = np.abs(amount - np.round(amount))
            if off.max(initial=0.0) > WHOLE:
                k = int(np.where(off > WHOLE, off * weight, -1.0).argmax())
                key = (kind, int(self.chosen[k]) if kind == "U" else k)
                return key, float(amount[k]), float(self.lower[columns[k]]), float(self.upper[columns[k]])
        return None


class Tree:
    """The tree, its best point and the bounds of open and abandoned nodes."""

    def __init__(self, model: FleetModel, compiled: Compiled, settings: Settings) -> None:
        self.settings, self.began = settings, time.perf_counter()
        self.whole = PointModel(model, compiled)
        self.x: Array | None = None
        self.usd = math.inf
        self.heap: list[Node] = []
        self.suggested: list[Bounds] = []  # where a dive may find a fleet
        self.tie = count(0, -1)  # of equal bounds the last, which is deeper: many fleets cost the same
        self.closed = -math.inf  # least bound of the parts not searched any further: before the search of all
        self.proved = -math.inf  # of every fleet, by the nodes or otherwise
        self.nodes, self.seen = 0, 0
        self.iterations = 0  # of the simplex method, in tree and cuts
        self.events: list[Event] = []

    def left(self) -> float | None:
        """Seconds until the time limit; None without one."""
        limit = self.settings.time_limit
        return None if limit is None else limit - (time.perf_counter() - self.began)

    def target(self) -> float:
        """Least bound of a node that holds nothing better, within the gap asked for."""
        return self.usd - max(self.settings.gap, EQUAL) * abs(self.usd)

    def take(self, x: Array) -> bool:
        """Keep a point if it is feasible by our own arrays, and the best; whether it is."""
        found = self.whole.feasible(x)
        return found is not None and self.keep(found)

    def keep(self, x: Array) -> bool:
        """Keep a feasible point if it is the best; whether it is."""
        usd = float(self.whole.compiled.costs[0] @ x + self.whole.compiled.offsets[0])
        if usd >= self.usd:
            return False
        self.x, self.usd = x, usd
        return True

    def told(self) -> None:
        """Report the best point and the proved bound."""
        bound = min(self.proved, self.usd)
        self.events.append(Event(time.perf_counter() - self.began, self.usd, bound, self.nodes))
        if self.settings.on_event is not None:
            self.settings.on_event(self.events[-1])

    def few(self, wanted: Index, ever: Mask) -> _Few:
        """A linear program on these points, points of the best solution, and points that open nodes branched on."""
        own = [k for node in self.heap for kind, k in node[2] if kind == "U"]
        best = np.zeros(0) if self.x is None else np.flatnonzero(self.x[self.whole.model.n.columns] > 0.5)
        chosen = np.unique(np.concatenate([wanted, np.flatnonzero(ever), best, own])).astype(np.intp)
        self.seen = max(self.seen, len(chosen))
        scale = self.usd if math.isfinite(self.usd) else float(self.whole.compiled.costs[0] @ self.whole.compiled.upper)
        left = self.left()
        plain = replace(self.settings, on_event=None, gap=0.0, time_limit=None if left is None else max(left, 0.01))
        return _Few(self.whole, chosen, plain, ELASTIC * max(scale, 1.0), ever)

    def reached(self) -> bool:
        """Whether the best point is within the gap of the proved bound."""
        return self.proved >= self.target()

    def search(self, relaxed: Relaxed) -> Iterator[None]:
        """Node by node until nothing is open or the time is out; `relaxed`: of the model."""
        assert relaxed.x is not None
        assert relaxed.y is not None
        self.closed = math.inf
        whole = self.whole
        ever = relaxed.x[whole.model.n.columns] > WHOLE
        whole.learn(relaxed.y)
        nobody = np.zeros(whole.P, dtype=bool)
        _, reduced = whole.outside(relaxed.y[whole.linking], np.zeros(whole.P), nobody)
        few = self.few(np.argsort(reduced, kind="stable")[:FIRST], ever)
        node: Node | None = (-math.inf, next(self.tie), {}, None)
        diving, dive = False, 0
        again: Bounds | None = None  # of the node that points have entered for
        while node is not None or self.heap:
            self.proved = max(
                self.proved, min([self.closed, *(n[0] for n in [*self.heap[:1], *([node] if node else [])])])
            )
            yield
            if self.reached():
                break
            if node is None and self.suggested:
                node, diving = (self.proved, next(self.tie), self.suggested.pop(), None), True
            elif node is None:  # down to a leaf now and then, else where the bound is least
                diving = self.nodes >= dive
                dive = self.nodes + DIVE if diving else dive
            fresh = node is None
            low, _, bounds, basis = node or heapq.heappop(self.heap)
            if fresh and basis is not None:  # another branch than the last: on from where it left
                few.session.set_basis(basis)
            node = None
            if low >= self.target():
                self.closed = min(self.closed, low)
                continue
            left = self.left()
            out = (left is not None and left <= 0) or cancelled()
            solved = not out and few.solve(bounds)
            self.iterations += 0 if out else few.session.iterations
            if not solved:
                self.closed = min(self.closed, low)
                if few.session.status == "error":
                    continue
                break
            self.nodes += 1
            certified, reduced = few.bound()
            low = max(low, certified)
            if low >= self.target():
                self.closed = min(self.closed, low)
                continue
            at = few.branch()
            cheapest = few.session.objective + float(whole.compiled.offsets[0])
            if at is None and self.take(few.point()):
                self.told()
            entering = np.flatnonzero(reduced < 0)
            if (at is None or cheapest >= self.target()) and low < self.target():
                if len(entering):  # only points outside keep this node open
                    worst = entering[np.argsort((reduced * whole.most)[entering], kind="stable")][:MORE]
                    fixed = [k for kind, k in bounds if kind == "U"]
                    stay = few.chosen if bounds is again else few.chosen[few.near()]  # else they come and go for ever
                    few, again = self.few(np.concatenate([worst, fixed, stay]), few.ever), bounds
                    node = (low, next(self.tie), bounds, None)
                    self.heap = [(*open_[:3], None) for open_ in self.heap]
                elif at is None:
                    self.closed = min(self.closed, low)
            if node is not None or at is None:
                continue
            key, amount, least, most = at
            start = few.session.basis()
            down = (low, next(self.tie), bounds | {key: (least, math.floor(amount))}, start)
            up = (low, next(self.tie), bounds | {key: (math.floor(amount) + 1.0, most)}, start)
            near, other = (up, down) if amount % 1.0 > UPWARDS else (down, up)
            heapq.heappush(self.heap, other)
            if diving:
                node = near
            else:
                heapq.heappush(self.heap, near)
        self.closed = min([self.closed, *(n[0] for n in [*self.heap, *([node] if node else [])])])

    def bound(self) -> float:
        """The bound for every fleet, after the search."""
        return min(max(self.closed, self.proved), self.usd)

    def start(self, first: FleetChoice) -> None:
        """Take up a choice in hand."""
        m = self.whole.model
        x = np.zeros(self.whole.compiled.A.shape[1])
        x[m.n.columns] = first.n[0]
        at = m.variables["x"].find(first.t, first.w, first.p)
        np.add.at(x, m.x.columns[at], first.value)
        served = np.zeros(self.whole.W)
        starts = m.stage[first.p] != DECODE
        np.add.at(served, first.w[starts], first.value[starts])
        x[m.s.columns] = np.clip(1.0 - served[m.s.labels[1]], 0.0, None)
        self.take(x)

    def suggest(self, amounts: Array) -> None:
        """Go down first where every group has this many deployments at most, (G,)."""
        self.suggested.append({("N", g): (0.0, v) for g, v in enumerate(amounts.tolist())})

    def report(self, stopped: bool, message: str) -> Report:
        """The best fleet and the bound."""
        bound, objective = self.bound(), None if self.x is None else self.usd
        gap, left = relative_gap(objective, bound), self.left()
        limit: Limit | None = "interrupt" if stopped else "time" if left is not None and left <= 0 else "gap"
        proved = gap is not None and gap <= PROVED
        status: Status = "optimal" if proved else "no_solution_found" if self.x is None else "feasible"
        return Report(
            status, None if proved else limit, objective, bound if math.isfinite(bound) else None, gap, self.x,
            () if objective is None else (objective,), time.perf_counter() - self.began, self.nodes,
            f"{message}, {self.seen} of {self.whole.P} points at a time at most", tuple(self.events),
        )  # fmt: skip
