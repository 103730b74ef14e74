"""Tight relaxation of fleets, and Benders cuts on how many deployments there are, both over every point.

A fleet is counts n and shares x. The relaxation forgets that a deployment carries no more than all of a
demand: rows x_wp ≤ n_p (`_Program.separate`). With `capacities` they state the load that any numbers of whole
deployments carry together, so that the relaxation with them is the one of Dantzig and Wolfe, whose columns are all
loads of one deployment. It is solved on few points and shares, to which prices add those that pay.

At prices y of the rows that shares are in, the shares' cost is at least

    φ(n) ≥ b·y + Σ_s min(0, c_s − yᵀA_s)·u_s − Σ_p K_p(y)·n_p,   K_p the most that one *whole* deployment of p can save,

a fractional knapsack (`pools.worth_of_room`): a cut that holds for every fleet, whatever program y is from. The master
problem finds the cheapest counts that keep all cuts and the rows that only counts are in; its optimum bounds every
fleet. At its counts a linear program on few points states whether they can carry the requests, and if not, at which
prices: it adds τ·D to the counts, D the counts of a fleet that can, with the least τ, so that the cut is where the way
to D enters the set of counts that can carry the requests (Conforti and Wolsey 2019, *"Facet" separation with one linear
program*). At first only the sums N_g over the points of one machine set, model and stage are whole, which are few; then
all n_p.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from formulations.fleet.making import FleetChoice
from formulations.fleet.methods.pools import PointModel, Tree, spare_columns, worth_of_room
from formulations.fleet.model import FleetModel
from formulations.fleet.points import nondominated
from optmodels.arrays import Array, Index
from optmodels.solver import Compiled, Report, Settings, solve_compiled
from optmodels.solver.cancel import cancelled, caught_interrupt
from optmodels.solver.highs import Relaxed
from optmodels.solver.session import Session

SEPARATIONS = 6  # runs of the relaxation with more rows x ≤ n before prices are looked at again
CUTS = 300  # such rows that enter at once
VIOLATED = 1e-6  # of such a row
ROUGH, CLOSE = 1e-2, 1e-4  # relative, what points outside may add to a relaxation without and with these rows
BEST = 3  # cheapest points of every demand, stage and model in the first S
MORE = 60  # points that enter S at once
ROOT_ROUNDS = 60  # of the relaxation
TIGHT_ROUNDS = 3  # with rows x ≤ n, where cuts follow, which prove the rest in less time
EQUAL = 1e-7  # relative, of costs
SAFE = 1e-9  # relative, by which cuts are looser than computed
CARRIES = 1e-3  # deployments of a point that D counts
DEAR = 30.0  # times the cost of D: what τ = 1 costs
FIRST_GAP, LEAST_GAP = 1e-4, 1e-5  # relative, of master problems: of the first, and as soon as its counts can carry
PATIENCE = 50  # cuts on single counts that raise no bound, after which the tree goes on alone
PARTS = {"tree": 1, "cuts": 2}  # of the work
NEARLY = 1e-3  # τ up to which counts are worth a look by the tree
ROUNDING_S = 5.0  # for the best fleet of the relaxation's points


class _Cuts:
    """The model's rows and columns distinguished, and the cut of any prices."""

    def __init__(self, whole: PointModel) -> None:
        self.model, self.compiled, self.of_row, self.each = whole.model, whole.compiled, whole.of_row, whole.each
        m, A, linking = self.model, self.compiled.A.tocsr(), whole.linking
        self.W, self.P = whole.W, whole.P
        counts = np.diff(A[linking][:, m.n.columns].indptr) > 0
        shares = np.diff(sp.csr_array(A[linking]).indptr) > np.diff(A[linking][:, m.n.columns].indptr)
        self.only_counts, self.linking = linking[counts], linking[~counts]
        self.mixed = bool((counts & shares).any())
        self.of_shares = sp.csc_array(A[self.linking])
        self.of_counts = sp.csr_array(A[self.only_counts][:, m.n.columns])
        self.cost = self.compiled.costs[0]
        self.usd = self.cost[m.n.columns]
        rest = np.ones(A.shape[1], dtype=bool)
        rest[m.n.columns] = False
        self.rest_free = bool((self.cost[rest] == 0).all())  # nothing but deployments costs anything
        self.proper = bool((self.cost >= 0).all()) and rest.sum() == len(m.x.columns) + len(m.s.columns)
        self.low, self.high = self.compiled.row_lower[self.linking], self.compiled.row_upper[self.linking]
        keys = np.column_stack([m.tables.points.pool, self.usd, self.of_counts.T.toarray()])
        _, self.group = np.unique(keys, axis=0, return_inverse=True)
        self.G = int(self.group.max()) + 1
        self.price = np.zeros(self.G)
        self.price[self.group] = self.usd
        self.mix = np.full((len(self.each), self.P), 1.0 / len(self.each))
        self.full = np.minimum(self.each.sum(axis=1), 1.0)  # (Q, P), S of the rows of capacities
        self.columns = sp.csc_array(A)
        self.of_share_point = np.full(A.shape[1], -1)
        self.of_share_point[m.x.columns] = m.x.labels[2]
        self.of_count, self.of_share = (np.full(A.shape[1], -1) for _ in range(2))
        self.of_count[m.n.columns], self.of_share[m.x.columns] = m.n.labels[1], m.x.labels[2]
        self.own = np.argsort(self.of_row, kind="stable")  # rows by point
        self.start = np.searchsorted(self.of_row[self.own], np.arange(self.P + 1))
        self.entry = np.full((self.W, self.P), -1)
        self.entry[m.x.labels[1], m.x.labels[2]] = np.arange(len(m.x.columns))

    def cut(self, y: Array, alive: Index | slice = slice(None)) -> tuple[float, Array]:
        """b·y + what columns without a point may take from it, and K (P,), at prices of the linking rows.

        `alive`: points that a better fleet may have; K of others is 0, so that the cut holds for fleets without them.
        `held` are the shares that each such deployment would have, (W, P).
        """
        y = np.where(((y > 0) & np.isinf(self.low)) | ((y < 0) & np.isinf(self.high)), 0.0, y)
        m = self.model
        reduced = self.cost - self.of_shares.T @ y
        gain = np.zeros((self.W, self.P))
        gain[m.x.labels[1], m.x.labels[2]] = np.maximum(-reduced[m.x.columns], 0.0)
        self.gain = gain
        worth, self.held = np.zeros(self.P), np.zeros_like(gain)
        worth[alive], self.mix[:, alive], self.held[:, alive] = worth_of_room(
            gain[:, alive], self.each[:, :, alive], self.mix[:, alive], np.zeros(self.P)[alive]
        )
        sides = np.where(y > 0, self.low, np.where(y < 0, self.high, 0.0)) * y
        free = np.minimum(reduced[m.s.columns], 0.0) * self.compiled.upper[m.s.columns]
        least = float(sides.sum() + free.sum()) - SAFE * float(np.abs(sides).sum() + np.abs(free).sum())
        return least, worth * (1 + SAFE)

    def learn(self, full: Array, over: Array | float = 1.0) -> None:
        """Mix the capacities of every point as prices of all rows do, over what they are divided by (Q, P)."""
        m = self.model
        if "capacities" not in m.families or not len(m.rows("capacities")):
            return
        own = np.zeros_like(self.mix)
        _, p, q = m.rows("capacities").labels
        own[q, p] = full[m.positions("capacities")]
        own = np.divide(own, over, out=np.zeros_like(own), where=own > 0)
        total = own.sum(axis=0)
        self.mix[:, total > 0] = own[:, total > 0] / total[total > 0]

    def only_value(self, y: Array) -> float:
        """y·b of the rows that only counts are in."""
        low, high = self.compiled.row_lower[self.only_counts], self.compiled.row_upper[self.only_counts]
        y = np.where(((y > 0) & np.isinf(low)) | ((y < 0) & np.isinf(high)), 0.0, y)
        return float((np.where(y > 0, low, np.where(y < 0, high, 0.0)) * y).sum())

    def shares(self, points: Index, any_: bool = False) -> Index:
        """Entries of x that deployments of these points would have at the last prices, or any that gain."""
        found = self.entry[:, points][(self.gain if any_ else self.held)[:, points] > 0]
        return found[found >= 0]


class _Program:
    """The linear program on the points S, with counts fixed at the requested counts, plus τ·D.

    Args:
        cuts: the model.
        chosen: S.
        direction: D (P,), ≥ 0; None: counts are free at their price, and every row may be broken at `dear` USD/h.
        dear: USD/h of τ = 1, or of breaking a row by one.
        group: group of every point: the sums over the points of one group are asked for, (P,).
        settings: limits.
    """

    def __init__(self, cuts: _Cuts, chosen: Index, direction: Array | None, dear: float, group: Index,
                 settings: Settings) -> None:  # fmt: skip
        self.cuts, self.chosen, self.direction = cuts, chosen, direction
        c, m = cuts.compiled, cuts.model
        inside = np.zeros(cuts.P, dtype=bool)
        inside[chosen] = True
        self.x = m.x.columns[inside[m.x.labels[2]]]
        n = m.n.columns[chosen]
        self.own = np.flatnonzero((cuts.of_row >= 0) & inside[cuts.of_row])
        self.columns = np.concatenate([self.x, m.s.columns, n])
        self.n = len(self.x) + len(m.s.columns) + np.arange(len(n))
        self.first = cuts.linking if direction is not None else np.concatenate([cuts.linking, cuts.only_counts])
        self.L = len(self.first)
        rows = np.concatenate([self.first, self.own])
        A: Any = sp.csr_array(c.A.tocsr()[rows][:, self.columns])
        low, high = c.row_lower[rows], c.row_upper[rows]
        cost, upper = cuts.cost[self.columns].copy(), c.upper[self.columns].copy()
        upper[: len(self.x)], upper[self.n] = np.inf, np.inf  # the rows bound them, with prices
        if direction is not None:
            cost[self.n] = 0.0
            asked, at = np.unique(group[chosen], return_inverse=True)
            self.asked, self.at = asked, len(rows) + np.arange(len(asked))
            sums = sp.csr_array((np.ones(len(n)), (at, self.n)), shape=(len(asked), A.shape[1]))
            D = np.bincount(at, direction[chosen], len(asked))
            tau = sp.csr_array(np.concatenate([np.zeros(len(rows)), -D])[:, None])
            A = sp.hstack([sp.vstack([A, sums]), tau])
            low, high = np.append(low, np.zeros(len(asked))), np.append(high, np.zeros(len(asked)))
            cost, upper = np.append(cost, dear), np.append(upper, np.inf)
        else:
            spare = spare_columns(low[: self.L], high[: self.L], A.shape[0])
            A = sp.hstack([A, spare])
            cost = np.append(cost, np.full(spare.shape[1], dear))
            upper = np.append(upper, np.full(spare.shape[1], np.inf))
        self.session = Session(None, settings)
        self.session.load(cost, A, low, high, np.zeros(len(cost)), upper)

    def solve(self, asked: Array | None, left: float | None) -> bool:
        """Run with these sums by group; whether it was solved to its end."""
        if asked is not None:
            self.session.set_row_bounds(self.at, asked[self.asked], asked[self.asked])
        if self.session.run(left) != "optimal":
            return False
        self.value, self.duals = self.session.values(), self.session.row_duals()
        self.y = self.duals[: self.L]
        full = np.zeros(len(self.cuts.of_row))
        full[self.own] = np.maximum(-self.duals[self.L : self.L + len(self.own)], 0.0)
        self.cuts.learn(full)
        return True

    @property
    def counts(self) -> Array:
        """By point, (P,)."""
        n = np.zeros(self.cuts.P)
        n[self.chosen] = np.maximum(self.value[self.n], 0.0)
        return n

    def as_relaxed(self) -> Relaxed:
        """The last solution and its prices on all columns and rows of the model."""
        c = self.cuts.compiled
        x, y = np.zeros(c.A.shape[1]), np.zeros(c.A.shape[0])
        x[self.columns] = self.value[: len(self.columns)]
        y[np.concatenate([self.first, self.own])] = self.duals[: self.L + len(self.own)]
        return Relaxed(None, x, None, y)

    def point(self) -> Array:
        """The shares of the last solution on all columns of the model, with its counts rounded up."""
        x = np.zeros(self.cuts.compiled.A.shape[1])
        x[self.columns] = self.value[: len(self.columns)]
        n = self.cuts.model.n.columns
        x[n] = np.ceil(x[n] - 1e-7)
        return np.clip(x, self.cuts.compiled.lower, self.cuts.compiled.upper)


class _Relaxation:
    """The relaxation on few points and few of their shares, to which prices add others, and rows x ≤ n.

    Rows of the model may be broken at `dear` USD/h.
    """

    def __init__(self, cuts: _Cuts, dear: float, settings: Settings) -> None:
        self.cuts = cuts
        c, m = cuts.compiled, cuts.model
        self.L = len(cuts.linking)
        rows = np.concatenate([cuts.linking, cuts.only_counts])
        self.at_row, self.at_column = np.full(c.A.shape[0], -1), np.full(c.A.shape[1], -1)
        self.at_row[rows] = np.arange(len(rows))
        self.sums = len(rows) + np.arange(cuts.G)
        low = np.append(c.row_lower[rows], np.zeros(cuts.G))
        high = np.append(c.row_upper[rows], np.full(cuts.G, np.inf))
        spare = spare_columns(low[: len(rows)], high[: len(rows)], len(low))
        self.spare, free = np.arange(spare.shape[1]), np.zeros(spare.shape[1])
        self.session = Session(None, settings)
        self.session.load(free + dear, spare, low, high, free, free + np.inf)
        self.dear = dear
        self.inside = np.zeros(cuts.P, dtype=bool)
        self.there, self.strong = (np.zeros(len(m.x.columns), dtype=bool) for _ in range(2))  # x_wp; its row `within`
        self._add(m.s.columns)

    def _add(self, columns: Index) -> None:
        """Columns of the model, with their entries in the existing rows."""
        cuts, c = self.cuts, self.cuts.compiled
        part = cuts.columns[:, columns].tocoo()
        at = self.at_row[part.row]
        point = cuts.of_count[columns]
        counts = np.flatnonzero(point >= 0)
        rows = np.concatenate([at[at >= 0], self.sums[cuts.group[point[counts]]]])
        places = np.concatenate([part.col[at >= 0], counts])
        values = np.concatenate([part.data[at >= 0], np.ones(len(counts))])
        A = sp.csc_array((values, (rows, places)), shape=(self.session.rows, len(columns)))
        cost, upper = cuts.cost[columns].copy(), c.upper[columns].copy()
        upper[cuts.of_share[columns] >= 0] = np.inf  # the rows bound them, with prices
        upper[counts] = np.inf
        self.at_column[columns] = self.session.columns + np.arange(len(columns))
        self.session.add_columns(cost, c.lower[columns], upper, A)

    def enter(self, points: Index, shares: Index) -> bool:
        """Points and shares of these, entries of x, from now on; whether any is new."""
        cuts, m, c = self.cuts, self.cuts.model, self.cuts.compiled
        points, shares = points[~self.inside[points]], shares[~self.there[shares]]
        if len(points):
            self.inside[points] = True
            own = np.concatenate([cuts.own[cuts.start[p] : cuts.start[p + 1]] for p in points.tolist()])
            self.at_row[own] = self.session.rows + np.arange(len(own))
            self.session.add_rows(c.row_lower[own], c.row_upper[own], sp.csr_array((len(own), self.session.columns)))
        self.there[shares] = True
        self._add(np.concatenate([m.n.columns[points], m.x.columns[shares]]))
        return len(points) + len(shares) > 0

    def separate(self) -> bool:
        """Add the rows x_wp ≤ n_p that the last solution breaks most; whether there are any.

        A fleet of whole deployments keeps them: where x_wp is not 0, x_wp ≤ 1 ≤ n_p. The relaxation forgets them,
        though with `capacities` they state all: that no deployment carries more than all of a demand.
        """
        m = self.cuts.model
        e = np.flatnonzero(self.there & ~self.strong)
        p = m.x.labels[2][e]
        x, n = self.at_column[m.x.columns[e]], self.at_column[m.n.columns[p]]
        over = self.value[x] - self.value[n]
        worst = np.argsort(-over, kind="stable")[: min(CUTS, int((over > VIOLATED).sum()))]
        k = len(worst)
        if not k:
            return False
        parts = np.repeat([1.0, -1.0], k), (np.tile(np.arange(k), 2), np.append(x[worst], n[worst]))
        A = sp.csr_array(parts, shape=(k, self.session.columns))
        self.session.add_rows(np.full(k, -np.inf), np.zeros(k), A)
        self.strong[e[worst]] = True
        return True

    def restricted(self, points: Index) -> tuple[Compiled, Index]:
        """The model on some points, on the shares and rows `within` that are here; and its columns in the model."""
        cuts, m, c = self.cuts, self.cuts.model, self.cuts.compiled
        mine = np.zeros(cuts.P + 1, dtype=bool)
        mine[points], mine[-1] = True, True
        here = (self.at_column >= 0) & mine[np.maximum(cuts.of_count, cuts.of_share_point)]
        columns, rows = np.flatnonzero(here), np.flatnonzero(mine[cuts.of_row])
        at = np.full(len(here), -1)
        at[columns] = np.arange(len(columns))
        e = np.flatnonzero(self.strong & mine[m.x.labels[2]])
        k = len(e)
        within = sp.csr_array(
            (
                np.repeat([1.0, -1.0], k),
                (np.tile(np.arange(k), 2), np.concatenate([at[m.x.columns[e]], at[m.n.columns[m.x.labels[2][e]]]])),
            ),
            shape=(k, len(columns)),
        )
        part = c.part(rows, columns)
        return replace(
            part, A=sp.csc_array(sp.vstack([part.A, within])), row_lower=np.append(part.row_lower, np.full(k, -np.inf)),
            row_upper=np.append(part.row_upper, np.zeros(k)), row_names=["row"] * (len(rows) + k),
        ), columns  # fmt: skip

    def solve(self, left: float | None, rounds: int) -> bool:
        """Run, with rows `within` that are broken; whether it was solved to its end."""
        for k in range(rounds + 1):
            if self.session.run(left) != "optimal":
                return False
            self.value = self.session.values()
            if k == rounds or not self.separate():
                break
        duals = self.session.row_duals()
        self.y, self.of_sums = duals[: self.L], duals[self.sums]
        self.of_counts = duals[self.L : self.L + len(self.cuts.only_counts)]
        full, here = np.zeros(len(self.at_row)), self.at_row >= 0
        full[here] = np.maximum(-duals[self.at_row[here]], 0.0)
        self.cuts.learn(full, self.cuts.full)
        return True

    @property
    def counts(self) -> Array:
        """By point, (P,)."""
        n, p = np.zeros(self.cuts.P), np.flatnonzero(self.inside)
        n[p] = np.maximum(self.value[self.at_column[self.cuts.model.n.columns[p]]], 0.0)
        return n

    def as_relaxed(self) -> Relaxed:
        """The last solution and its prices on all columns and rows of the model."""
        x, y = np.zeros(len(self.at_column)), np.zeros(len(self.at_row))
        duals = self.session.row_duals()
        x[self.at_column >= 0] = self.value[self.at_column[self.at_column >= 0]]
        y[self.at_row >= 0] = duals[self.at_row[self.at_row >= 0]]
        return Relaxed(None, x, None, y)


class _Search:
    """Cuts and their bound; the best fleet is the tree's."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.cuts = _Cuts(tree.whole)
        self.least: list[float] = []
        self.worth: list[Array] = []
        self.gap = FIRST_GAP
        self.suggested: set[bytes] = set()
        self.cost, self.reduced = -math.inf, np.zeros(self.cuts.P)

    def stopped(self) -> bool:
        """Whether the time is out, the call was stopped, or the gap is reached."""
        left = self.tree.left()
        return cancelled() or self.tree.reached() or (left is not None and left <= 0)

    def left(self) -> float | None:
        """Seconds until the time limit, each at least a solver's start-up time."""
        left = self.tree.left()
        return None if left is None else max(left, 0.01)

    def plain(self) -> Settings:
        """Settings of a program."""
        return replace(self.tree.settings, on_event=None, gap=0.0, time_limit=None)

    def take(self, x: Array) -> bool:
        """Keep a point if it is feasible by our own arrays, and the best; whether it is feasible."""
        found = self.tree.whole.feasible(x)
        if found is not None and self.tree.keep(found):
            self.tree.told()
        return found is not None

    def add(self, program: _Program) -> float:
        """The cut at the prices of a program just solved; its value where no deployment is."""
        least, worth = self.cuts.cut(program.y[: len(self.cuts.linking)], np.flatnonzero(self.most() > 0))
        self.least.append(least)
        self.worth.append(worth)
        return least

    def relaxation(self, enough: int = ROOT_ROUNDS) -> _Relaxation | None:
        """The relaxation with rows x ≤ n, solved next to what does not pay; None where it is not solved.

        Args:
            enough: runs with these rows after which it need not be solved to its end.
        """
        cuts, m = self.cuts, self.cuts.model
        with np.errstate(invalid="ignore"):
            usd = np.where(np.isfinite(m.tables.load), m.tables.load * cuts.usd, np.inf)
        kinds = np.column_stack([m.tables.points.stage, m.tables.points.model])
        dear = 10.0 * (1.0 + float(np.abs(cuts.cost @ cuts.compiled.upper)))
        dear = min(dear, 1e3 * (self.tree.usd if math.isfinite(self.tree.usd) else dear))
        program = _Relaxation(cuts, dear, self.plain())
        for kind in np.unique(kinds, axis=0):
            mine = np.flatnonzero((kinds == kind).all(axis=1))
            best = mine[np.argsort(usd[:, mine], axis=1, kind="stable")[:, :BEST]]
            shares = cuts.entry[np.arange(cuts.W)[:, None], best]
            program.enter(np.unique(best[shares >= 0]), np.unique(shares[shares >= 0]))
        tight, rounds = False, 0
        for _ in range(ROOT_ROUNDS):
            if self.stopped() or not program.solve(self.left(), SEPARATIONS if tight else 0):
                return None
            self.tree.nodes += 1
            least, worth = cuts.cut(program.y)
            reduced = cuts.usd - cuts.of_counts.T @ program.of_counts - worth
            less = np.minimum(reduced, 0.0) * cuts.compiled.upper[m.n.columns]
            broken = float(program.value[program.spare].sum())
            cost = program.session.objective
            bound = least + float(less.sum()) + float(cuts.compiled.offsets[0]) + cuts.only_value(program.of_counts)
            if bound > self.cost:
                self.cost, self.reduced = bound, np.maximum(reduced, 0.0)
                self.tree.proved = max(self.tree.proved, bound)
            if tight:
                self.least.append(least)
                self.worth.append(worth)
            enter = np.argsort(less, kind="stable")[:MORE]
            enter = enter[less[enter] < 0]
            rounds += tight
            closed = rounds >= enough or float(less.sum()) >= -(CLOSE if tight else ROUGH) * abs(cost)
            done = closed and broken <= 1e-7
            if done and tight:
                return program
            tight |= done
            if not program.enter(enter, cuts.shares(enter)) and not program.enter(enter, cuts.shares(enter, True)):
                if tight and not done:
                    return None if broken > 1e-7 else program
                tight = True
        return None

    def on_points(self, root: _Relaxation) -> _Program | None:
        """The plain relaxation with all shares of the points of `root` that a better fleet may have."""
        at = np.flatnonzero(root.inside & ((self.most() > 0) | (root.counts > 0)))
        program = _Program(self.cuts, at, None, root.dear, self.cuts.group, self.plain())
        return program if program.solve(None, self.left()) else None

    def master(self, whole: bool) -> Report:
        """The cheapest counts within all cuts and rows of counts; `whole`: each, else only the sums of groups.

        Of points of one group that no cut prefers to another only that one is in it. Columns: counts, sums, φ.
        """
        cuts = self.cuts
        K = np.array(self.worth)
        bounds = self.most()
        places = [np.flatnonzero((cuts.group == g) & (bounds > 0)) for g in range(cuts.G)]
        self.kept = np.concatenate([p[nondominated(-K[:, p].T)] for p in places])
        kept, G = self.kept, cuts.G
        size = np.maximum(np.abs(np.array(self.least)), K.max(axis=1, initial=0.0)) + 1e-300
        ones = np.ones(len(kept))
        sums = sp.csr_array((ones, (cuts.group[kept], np.arange(len(kept)))), shape=(G, len(kept)))
        phi = np.zeros((len(K), 1)) if cuts.rest_free else 1.0 / size[:, None]
        of_cost = sp.csr_array(np.concatenate([cuts.usd[kept], np.zeros(G), [1.0]])[None])
        A = sp.vstack([
            sp.hstack([sp.csr_array(K[:, kept] / size[:, None]), sp.csr_array((len(K), G)), sp.csr_array(phi)]),
            sp.hstack([sums, -sp.eye_array(G), sp.csr_array((G, 1))]),
            sp.hstack([cuts.of_counts[:, kept], sp.csr_array((len(cuts.only_counts), G + 1))]),
            of_cost,
        ])  # fmt: skip
        c, offset = cuts.compiled, float(cuts.compiled.offsets[0])
        most = np.bincount(cuts.group, bounds, G)
        with np.errstate(divide="ignore", invalid="ignore"):
            afford = np.where(cuts.price > 0, np.floor((self.tree.usd - offset) * (1 + SAFE) / cuts.price), np.inf)
        most = np.minimum(most, afford)
        n = len(kept)
        low = np.concatenate([np.array(self.least) / size, np.zeros(G), c.row_lower[cuts.only_counts],
                              [(self.tree.proved - offset) * (1 - SAFE)]])  # fmt: skip
        high = np.concatenate([np.full(len(K), np.inf), np.zeros(G), c.row_upper[cuts.only_counts], [np.inf]])
        integer = np.concatenate([np.full(n, whole), np.ones(G, dtype=bool), [False]])
        compiled = Compiled(
            np.concatenate([cuts.usd[kept], np.zeros(G), [1.0]])[None], np.array([offset]), c.signs[:1],
            sp.csc_array(A), low, high, np.zeros(n + G + 1),
            np.concatenate([most[cuts.group[kept]], most, [0.0 if cuts.rest_free else np.inf]]), integer,
            [f"x[{j}]" for j in range(n + G + 1)], [f"row[{i}]" for i in range(len(low))],
        )  # fmt: skip
        return solve_compiled(
            compiled, replace(self.tree.settings, on_event=None, gap=self.gap, time_limit=self.left())
        )

    def search(self, root: _Program) -> Iterator[None]:
        """Cut by cut until the gap is reached or the time is out, or, early, no cut is new; `root`: the relaxation."""
        cuts, tree = self.cuts, self.tree
        S = np.zeros(cuts.P, dtype=bool)
        S[root.chosen] = True
        core = root.counts
        whole, idle, program = False, 0, None
        each = np.arange(cuts.P)
        while not self.stopped():
            yield
            report = self.master(whole)
            tree.iterations += report.iterations
            bound = self.tree.usd if report.status == "infeasible" and self.tree.x is not None else report.bound
            idle = 0 if bound is None or bound > self.tree.proved + EQUAL * abs(bound) else idle + whole
            if bound is not None and bound > self.tree.proved:
                self.tree.proved = bound
                self.tree.told()
            if report.x is None or self.stopped() or idle > PATIENCE:
                return
            n, phi = np.zeros(cuts.P), report.x[-1]
            n[self.kept] = np.maximum(report.x[: len(self.kept)], 0.0)
            dear = DEAR * float(cuts.usd @ core) + 10.0 * float(cuts.cost[cuts.model.s.columns].sum()) + 1.0
            if whole:
                n = np.round(n)
                asked, program = n, None
                few = np.flatnonzero((n > 0) | (core >= CARRIES))
            else:
                asked = np.round(np.bincount(cuts.group, n, cuts.G))
                few = np.flatnonzero(S)
            if program is None:
                direction = np.where(core >= CARRIES, core, 0.0)
                program = _Program(cuts, few, direction, dear, each if whole else cuts.group, self.plain())
            solved = program.solve(asked, self.left())
            tree.iterations += program.session.iterations
            if not solved:
                return
            tree.nodes += 1
            value = program.session.objective
            carries = value <= phi + EQUAL * dear
            kept = self.take(program.point())
            core = 0.8 * core + 0.2 * program.counts
            if carries or (whole and value <= NEARLY * dear):
                self.suggest(np.round(np.bincount(tree.whole.group, n, len(tree.whole.groups))))
            if carries and self.gap > LEAST_GAP:
                self.gap = max(self.gap / 5, LEAST_GAP)
                if report.gap is None or report.gap > LEAST_GAP:  # else the next master would state the same
                    continue
            if carries and whole and not kept:
                return
            if carries and not whole:
                whole, program = True, None
                continue
            size = abs(self.add(program)) + 1e-300
            if self.least[-1] - float(self.worth[-1] @ n) - phi > EQUAL * size or carries:
                continue
            if whole:
                return
            inside = np.zeros(cuts.G)
            np.maximum.at(inside, cuts.group[few], self.worth[-1][few])
            over = np.where(S | (asked[cuts.group] == 0), 0.0, self.worth[-1] - inside[cuts.group])
            enter = np.argsort(-over, kind="stable")[:MORE]
            enter = enter[over[enter] > 0]
            if not len(enter):
                return
            S[enter], program = True, None

    def suggest(self, amounts: Array) -> None:
        """Let the tree look for a fleet of this many deployments of its groups, once."""
        if amounts.tobytes() not in self.suggested:
            self.suggested.add(amounts.tobytes())
            self.tree.suggest(amounts)

    def best_of(self, program: _Relaxation, points: Index) -> None:
        """The best fleet of some points and the shares that a program has of them, as far as little time finds it."""
        part, columns = program.restricted(points)
        left = self.tree.left()
        seconds = ROUNDING_S if left is None else min(ROUNDING_S, left / 4)
        report = solve_compiled(part, replace(self.plain(), gap=self.tree.settings.gap, time_limit=seconds))
        if report.x is not None:
            x = np.zeros(len(program.at_column))
            x[columns] = report.x
            self.take(x)

    def most(self) -> Array:
        """Deployments of every point that a better fleet may have, at most, (P,)."""
        most = self.cuts.compiled.upper[self.cuts.model.n.columns]
        room = self.tree.usd - self.cost
        with np.errstate(divide="ignore", invalid="ignore"):
            fits = np.floor(room / self.reduced * (1 + 1e-6) + 1e-6)
        return (
            np.where(self.reduced > 1e-6 * self.cuts.usd, np.minimum(most, fits), most) if np.isfinite(room) else most
        )


def solve(
    m: FleetModel, compiled: Compiled, settings: Settings, first: FleetChoice | None, by_cuts: bool = True
) -> Report | None:
    """The cheapest fleet on all points, or the best within the limits of time and gap, by cuts and tree in turns.

    The cuts prove bounds that take the tree long; the tree finds fleets, first at the numbers that cuts leave.

    Args:
        m: model of a problem to which `pools.applies`.
        compiled: its arrays.
        settings: limits.
        first: a choice in hand.
        by_cuts: with cuts, which pay where programs are large; else the tree alone.

    Returns:
        None where there are costs or rows that no cut knows, or where the relaxation is not solved.
    """
    tree = Tree(m, compiled, settings)
    search = _Search(tree)
    if search.cuts.mixed or not search.cuts.proper:
        return None
    if first is not None:
        tree.start(first)
    with caught_interrupt():
        root = search.relaxation(TIGHT_ROUNDS if by_cuts else ROOT_ROUNDS)
        if root is None:
            return tree.report(cancelled(), "stopped in the relaxation") if search.stopped() else None
        search.best_of(root, np.flatnonzero(root.counts >= CARRIES))
        plain = search.on_points(root) if by_cuts else None
        relaxed = root.as_relaxed() if plain is None else plain.as_relaxed()
        tree.whole.most = search.most()
        if plain is None:  # where programs are small, rows that the tree's bounds gain by more than its programs lose
            tree.whole.within = root.strong.copy()
        turns = {"tree": tree.search(relaxed)} | ({} if plain is None else {"cuts": search.search(plain)})
        spent = dict.fromkeys(turns, 0)  # iterations, which do not depend on what else the machine does
        while "tree" in turns:  # where it ends nothing is open
            turn = min(turns, key=lambda k: spent[k] / PARTS[k])
            before = tree.iterations
            if next(turns[turn], "over") == "over":
                del turns[turn]
            spent[turn] += tree.iterations - before + 1  # none is free
        stopped = cancelled()
    cuts = f" and {len(search.least)} Benders cuts" if by_cuts else ""
    return tree.report(stopped, f"branch and bound on pools{cuts}")
