"""Cuts that a point of the master of `exact` violates: cost by the hour and demand; docs/reserved-capacity-cuts.md.

`Projection` lists the sets of every connected part of the network and evaluates all brackets over all rows by matrix
products. `RowByRow` is for cases that cannot be listed (κ ≠ 1, machines that differ in their best services, egress):
the duals (y, z) of a row's small LP are cuts in every row, so it keeps all it has seen, tries them on all rows by
matrix products, and solves LPs only where that leaves something open.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp

from formulations.reserved_capacity.dispatch import SHORT, Dispatch, RowLp, dispatch, free_orders, greedy_flows
from formulations.reserved_capacity.losses import LossCase, of_demand, of_guard, undominated, unserved
from formulations.reserved_capacity.points import Guard, ReservedTables
from formulations.reserved_capacity.problem import HOURS_PER_MONTH
from optmodels.arrays import Array, Index, Mask

TOLERANCE = 1e-7  # of a row's load: brackets below it, and what cuts do not ask for, count as ≤ 0
CHUNK_CELLS = 4_000_000
MOST_CUTS = 40  # of one bracket or case at a time
FRESH = 15  # duals of one case found by LPs at a time
LATELY = 6  # rounds in which a dual was the best for some row, or it is not tried any more
FEW_ROWS = 600  # up to which the LP of every row is solved
SAMPLE = 300  # rows whose LP is solved where there are more


# ------------------------------------------------------------------------------------------------------ brackets


@dataclass(frozen=True)
class Bracket:
    """max_S [load of S − strength of N(S)] with its own extra machines and admissible sources.

    Attributes:
        usd: price step p_l − p_{l−1}, USD/h per unit of load; None: the bracket must be ≤ 0.
        extra: hourly machines that count, (J,), infinite: S must avoid the sink.
        alive: share of reservations that counts, (J,).
        sources: sources that S may contain, (I,).
        guard: demand that must survive a loss; None: no loss.
    """

    usd: float | None
    extra: Array
    alive: Array
    sources: Mask
    guard: Guard | None = None


def brackets(t: ReservedTables, load: Array, strength: Array) -> list[Bracket]:
    """Price levels from cheap to dear, the hard level, and one hard bracket for every guard."""
    J = len(t.sink_region)
    price = t.option_usd_per_hour / strength[t.option_sink] if len(t.option_sink) else np.zeros(0)
    penalty = t.penalty / load
    levels = np.unique(np.concatenate([price, penalty[np.isfinite(penalty)]]))
    ones, out, before = np.ones(J), [], 0.0
    for p in levels:
        extra = np.zeros(J)
        cheaper = price < p
        np.add.at(extra, t.option_sink[cheaper], t.option_most[cheaper])
        out.append(Bracket(float(p - before), extra, ones, penalty >= p))
        before = float(p)
    extra = np.zeros(J)
    np.add.at(extra, t.option_sink, t.option_most)
    if np.isinf(penalty).any():
        out.append(Bracket(None, extra, ones, np.isinf(penalty)))
    out += [Bracket(None, g.extra, g.alive, np.ones(len(load), dtype=bool), g) for g in t.guards]
    return out


@dataclass
class OracleCut:
    """Σ_j slope[j, q]·n[j, q] + θ_group ≥ constant; hard cuts have no group."""

    slope: Array
    constant: float
    group: int | None = None
    quarter: int = 0


@dataclass
class Evaluation:
    """Hourly cost at one point, USD/month, and the cuts that are tight there."""

    usd_per_month: float
    cuts: list[OracleCut] = field(default_factory=list)


@dataclass(frozen=True)
class _Part:
    """The listed sets of one connected part; those admissible at dear levels first, so that every level is a prefix."""

    family: Array  # (F, J)
    contains: Array  # (F, I)
    prefix: Index  # sets of every price level
    hard: tuple[tuple[Array, Mask], ...]  # for every hard bracket, largest load of every set (F, Q); admissible


class Projection:
    """Brackets over listed families of sets: everything by matrix products."""

    def __init__(self, t: ReservedTables, load: Array, strength: Array, families: list[Mask], groups: Index) -> None:
        self.t, self.strength, self.groups = t, strength, groups
        self.quarter_of_group = _quarter_of_group(t, groups)
        self.load, self.lacks = t.demand * load, TOLERANCE + SHORT
        parts = [b for b in brackets(t, load, strength) if b.sources.any()]
        self.soft, self.hard = [b for b in parts if b.usd is not None], [b for b in parts if b.usd is None]
        self.parts = [self._part(family) for family in families]

    @property
    def sets(self) -> int:
        """How many are listed."""
        return sum(len(part.family) for part in self.parts)

    def _part(self, family: Mask) -> _Part:
        allowed = np.array([~family[:, np.isinf(b.extra)].any(axis=1) for b in self.soft]).reshape(-1, len(family))
        family = family[np.argsort(-allowed.sum(axis=0), kind="stable")]
        outside = self.t.reach.astype(float) @ (~family).T.astype(float)
        mine = self.t.reach[:, family.any(axis=0)].any(axis=1)
        contains = ((outside == 0).T & mine).astype(float)
        hard = tuple(self._right_sides(b, family, contains) for b in self.hard)
        return _Part(family.astype(float), contains, allowed.sum(axis=1), hard)

    def _right_sides(self, b: Bracket, family: Mask, contains: Array) -> tuple[Array, Mask]:
        """Largest load of every set over the rows of every quarter, (F, Q), and which sets are admissible."""
        t = self.t
        load = self.load if b.guard is None else b.guard.demand(self.load)
        members = contains * b.sources
        ok: Mask = np.asarray(~family[:, np.isinf(b.extra)].any(axis=1))
        most = np.zeros((len(members), t.quarters))
        for q in range(t.quarters):
            rows = load[t.quarter == q]
            step = max(1, CHUNK_CELLS // len(rows))
            for at in range(0, len(members), step):
                each = rows @ members[at : at + step].T
                most[at : at + step, q] = each.max(axis=0, initial=0.0)
                if b.guard is None or not b.guard.budget:
                    continue
                for e in np.flatnonzero(ok[at : at + step]):
                    most[at + e, q] = self._with_deviations(rows, members[at + e], each[:, e], b.guard)
        return most * (b.guard.keep if b.guard is not None else 1.0), ok

    def _with_deviations(self, rows: Array, member: Array, load: Array, guard: Guard) -> float:
        """Largest load of a set over rows, (H, I), when up to `budget` regions exceed theirs."""
        regions, of_source = np.unique(self.t.source_region[member > 0], return_inverse=True)
        inside = np.flatnonzero(member)
        most = 0.0
        while True:  # the row of largest load bounds the others from below: few can exceed it
            rows, load = rows[load * (1 + guard.deviation) > most], load[load * (1 + guard.deviation) > most]
            if not len(load):
                return most
            first = np.argsort(-load, kind="stable")[:50]
            by_region = rows[np.ix_(first, inside)] @ (of_source[:, None] == np.arange(len(regions)))
            top = _largest(by_region, guard.budget)
            most = max(most, float((load[first] + guard.deviation * top).max()))
            rows, load = np.delete(rows, first, axis=0), np.delete(load, first)

    def violated(self, machines: Array, most: int = MOST_CUTS) -> list[OracleCut]:
        """Hard brackets above zero at machines (J, Q): the most violated sets of each."""
        cuts = []
        for part in self.parts:
            for b, (right, ok) in zip(self.hard, part.hard, strict=True):
                finite = np.where(np.isinf(b.extra), 0.0, b.extra)
                have = part.family @ (self.strength[:, None] * (b.alive[:, None] * machines + finite[:, None]))
                excess = np.where(ok[:, None], right - have, 0.0)
                scale = self.lacks * np.maximum(1e-9, right)
                for q in range(self.t.quarters):
                    worst = np.flatnonzero(excess[:, q] > scale[:, q])
                    if len(worst) > most:
                        worst = worst[np.argpartition(-excess[worst, q], most)[:most]]
                    for e in worst:
                        slope = part.family[e] * self.strength * b.alive
                        constant = right[e, q] - float(part.family[e] * self.strength @ finite)
                        cuts.append(OracleCut(slope, constant, quarter=q))
        return cuts

    def dispatched(self, machines: Array, until: float | None = None) -> tuple[Evaluation, Dispatch | None]:
        """Exact hourly cost; the dispatch itself is not needed for it."""
        return self.cost(machines), None

    def cost(self, machines: Array) -> Evaluation:
        """Hourly cost at machines (J, Q)."""
        t = self.t
        sums = _Sums(t, self.groups)
        apart = ~t.reach.any(axis=1) & np.isfinite(t.penalty)  # users out of every machine's reach pay their price
        if apart.any():
            rows = np.arange(len(t.demand))
            nothing = np.zeros((len(rows), len(self.strength)))
            sums.add(rows, t.demand[:, apart] @ t.penalty[apart], nothing, machines[:, 0])
        for part in self.parts:
            n = int(part.prefix.max(initial=0))
            for q in range(t.quarters) if n else ():
                rows_q = np.flatnonzero(t.quarter == q)
                have = [
                    part.family[:n] @ (self.strength * (machines[:, q] + np.where(np.isinf(b.extra), 0.0, b.extra)))
                    for b in self.soft
                ]
                chunk = max(1, CHUNK_CELLS // n)
                for at in range(0, len(rows_q), chunk):
                    rows = rows_q[at : at + chunk]
                    load = self.load[rows] @ part.contains[:n].T
                    for b, offer, m in zip(self.soft, have, part.prefix, strict=True):
                        if not m:
                            continue
                        whole = b.sources.all()
                        mine = load[:, :m] if whole else self.load[rows] @ (part.contains[:m] * b.sources).T
                        value = mine - offer[:m]
                        best = value.argmax(axis=1)
                        deficit = value[np.arange(len(rows)), best]
                        on = np.flatnonzero(deficit > 0)
                        usd = float(b.usd or 0.0)
                        slope = part.family[best[on]] * self.strength
                        sums.add(rows[on], usd * deficit[on], usd * slope, machines[:, q])
        return sums.evaluation(self.quarter_of_group)


class _Sums:
    """Hourly cost and its slopes added up by group of rows."""

    def __init__(self, t: ReservedTables, groups: Index) -> None:
        G, J = int(groups.max()) + 1, len(t.sink_region)
        self.t, self.groups = t, groups
        self.usd, self.constant, self.slope = 0.0, np.zeros(G), np.zeros((G, J))

    def add(self, rows: Index, value: Array, slope: Array, machines: Array) -> None:
        """Rows cost `value` USD/h, (n,), at `machines`, (J,) or (n, J), and `slope` less per machine more, (n, J)."""
        if not len(rows):
            return
        weight = self.t.weight[rows] * HOURS_PER_MONTH
        self.usd += float(weight @ value)
        at = value + (slope * machines).sum(axis=1)
        group = sp.csr_array(
            (weight, (self.groups[rows], np.arange(len(rows)))), shape=(len(self.constant), len(rows))
        )  # fmt: skip
        self.constant += np.asarray(group @ at)
        self.slope += np.asarray(group @ slope)

    def evaluation(self, quarter_of_group: Index) -> Evaluation:
        """The sum, and one cut for every group that costs anything."""
        on = [int(g) for g in np.flatnonzero(self.slope.any(axis=1) | (self.constant > 0))]
        cuts = [OracleCut(self.slope[g], float(self.constant[g]), g, int(quarter_of_group[g])) for g in on]
        return Evaluation(self.usd, cuts)


def _largest(values: Array, n: int) -> Array:
    """Sum of the `n` largest of every row of values, (rows, columns)."""
    n = min(n, values.shape[1])
    return np.partition(values, values.shape[1] - n, axis=1)[:, values.shape[1] - n :].sum(axis=1)


def _quarter_of_group(t: ReservedTables, groups: Index) -> Index:
    of = np.zeros(int(groups.max(initial=0)) + 1, dtype=np.intp)
    of[groups] = t.quarter
    return of


class _Duals:
    """Price vectors (y, z) seen so far; equal ones are kept once."""

    def __init__(self, I: int, J: int) -> None:  # noqa: E741
        self.n, self.y, self.z = 0, np.zeros((256, I)), np.zeros((256, J))
        self.used, self.round = np.zeros(256, dtype=np.intp), 0  # round in which each was last the best for some row
        self.known: set[bytes] = set()

    def add(self, y: Array, z: Array) -> bool:
        """Whether it is new."""
        both = np.concatenate([y, z])
        largest = np.abs(both).max(initial=0.0) or 1.0
        key = np.round(np.append(both / largest, np.log(largest)), 7).tobytes()
        if key in self.known:
            return False
        self.known.add(key)
        if self.n == len(self.y):
            self.used = np.concatenate([self.used, np.zeros_like(self.used)])
            self.y, self.z = (
                np.concatenate([self.y, np.zeros_like(self.y)]),
                np.concatenate([self.z, np.zeros_like(self.z)]),
            )
        self.y[self.n], self.z[self.n], self.used[self.n] = y, z, self.round
        self.n += 1
        return True

    @property
    def prices(self) -> tuple[Array, Array]:
        """Of demand (n, I), of machines (n, J)."""
        return self.y[: self.n], self.z[: self.n]


class RowByRow:
    """The same by the LPs of rows that neither a greedy flow nor a known dual settles: any gains, any egress."""

    def __init__(self, t: ReservedTables, groups: Index, seed: int = 0) -> None:
        self.t, self.groups = t, groups
        self.quarter_of_group = _quarter_of_group(t, groups)
        self.lp, self.feasibility = RowLp(t, tie_break=False), RowLp(t, phase_one=True)
        self.lacks = TOLERANCE + SHORT
        self.random = np.random.default_rng(seed)
        I, J = t.reach.shape  # noqa: E741
        self.costs, self.losses = _Duals(I, J), _Duals(I, J)
        everything = np.zeros(J)
        np.add.at(everything, t.option_sink, t.option_most)
        must = ~np.isfinite(t.penalty)
        must &= ~t.reach[:, np.isinf(everything)].any(axis=1)
        rows = np.zeros(0, dtype=np.intp)
        for q in range(t.quarters) if t.guards or must.any() else ():
            mine = np.flatnonzero(t.quarter == q)
            rows = np.concatenate([rows, mine[undominated(t.demand[mine])]])
        self.cases = [of_guard(t, g, rows) for g in t.guards]
        if must.any():
            self.cases.insert(0, of_demand(t, rows, ~np.isfinite(t.penalty), everything))
        self.right: list[list[Array]] = [[] for _ in self.cases]  # case, dual → largest load by quarter

    # ------------------------------------------------------------------------------------------------ hard cuts

    def violated(self, machines: Array, most: int = MOST_CUTS) -> list[OracleCut]:
        """Cuts from duals of rows that cannot be served; known duals are tried on all rows first."""
        cuts = [cut for c in range(len(self.cases)) for cut in self._known(c, machines, most)]
        if cuts:
            return cuts
        for c, case in enumerate(self.cases):
            before = self.losses.n
            self._search(case, machines)
            for k in range(before, self.losses.n):
                self._right_sides(k)
            cuts += self._known(c, machines, most, before)
        return cuts

    def _known(self, c: int, machines: Array, most: int, first: int = 0) -> list[OracleCut]:
        """Cuts of a case from known duals, the most violated ones."""
        if self.losses.n == first:
            return []
        case, z = self.cases[c], self.losses.prices[1][first:]
        right = np.array(self.right[c][first:]) - (z @ case.extra)[:, None]
        slope = z * case.alive
        excess = right - slope @ machines
        bad = np.argwhere(excess > self.lacks * np.maximum(1e-9, np.abs(right)))
        bad = bad[np.argsort(-excess[tuple(bad.T)], kind="stable")[:most]]
        return [OracleCut(slope[k], float(right[k, q]), quarter=int(q)) for k, q in bad]

    def _right_sides(self, k: int) -> None:
        """The largest load of dual k in every case and quarter; the worst regions deviate."""
        y = self.losses.y[k]
        regions, of_source = np.unique(self.t.source_region, return_inverse=True)
        member = (of_source[:, None] == np.arange(len(regions))).astype(float)
        for c, case in enumerate(self.cases):
            load = case.demand * y
            total = load.sum(axis=1)
            if case.budget:
                total = total + case.deviation * _largest(load @ member, case.budget)
            most = np.zeros(self.t.quarters)
            np.maximum.at(most, case.quarter, total)
            self.right[c].append(most)

    def _search(self, case: LossCase, machines: Array) -> None:
        """Duals of rows that cannot be served, unlike ones; none only if every row can."""
        lp, found = self.feasibility, self.losses.n
        for demand, have, _ in unserved(self.t, case, machines):
            for d, m in zip(demand, have, strict=True):
                y, z = self.losses.prices
                scale = self.lacks * max(float(d.sum()), 1e-9)
                if self.losses.n > found and (y[found:] @ d - z[found:] @ m).max() > scale:
                    continue  # cut off already
                lp.solve(d, m)
                if lp.objective > scale:
                    self.losses.add(*lp.duals())
                    if self.losses.n >= found + FRESH:
                        return
            if self.losses.n > found:
                return

    # ------------------------------------------------------------------------------------------------ hourly cost

    def dispatched(self, machines: Array, until: float | None = None) -> tuple[Evaluation, Dispatch | None]:
        """Hourly cost by a dispatch that has it: exact, or as near as it comes until a time of `time.perf_counter`."""
        if not self.t.costs_by_the_hour:
            return Evaluation(0.0), None
        held, sums = machines.T[self.t.quarter], _Sums(self.t, self.groups)
        rows, values, slopes = [], [], []

        def seen(row: int, lp: RowLp) -> None:
            y, z = lp.duals()
            self.costs.add(y, z)
            rows.append(row)
            values.append(lp.objective)
            slopes.append(z)

        found = dispatch(self.t, machines, seen, until)
        if rows:
            sums.add(np.array(rows), np.array(values), np.array(slopes), held[rows])
        total, cuts = found.total_usd_per_month(self.t), sums.evaluation(self.quarter_of_group).cuts
        return Evaluation(total, cuts), found

    def cost(self, machines: Array) -> Evaluation:
        """Hourly cost by the LP of every row that reservations alone cannot serve.

        Where these are many, an estimate: known duals bound every row from below, LPs are solved for some rows, and
        their addition represents the addition to the others. The cuts are valid either way.
        """
        t = self.t
        if not t.costs_by_the_hour:
            return Evaluation(0.0)
        held, sums = machines.T[t.quarter], _Sums(t, self.groups)
        left, _ = greedy_flows(t, t.demand, held, free_orders(t)[0])
        todo = np.flatnonzero(left.sum(axis=1) > TOLERANCE * np.maximum(t.demand.sum(axis=1), 1e-12))
        value, z = np.zeros(len(todo)), np.zeros((len(todo), len(t.sink_region)))
        some = np.arange(len(todo))
        if len(todo) > FEW_ROWS:
            value, z = self._bounds(todo, held)
            some = np.sort(self.random.choice(len(todo), SAMPLE, replace=False))
        bound = value[some].copy()
        for x in some:
            self.lp.solve(t.demand[todo[x]], held[todo[x]])
            y, z[x] = self.lp.duals()
            value[x] = self.lp.objective
            self.costs.add(y, z[x])
        sums.add(todo, value, z, held[todo])
        found = sums.evaluation(self.quarter_of_group)
        if len(some) == len(todo):
            return found
        weight = t.weight[todo] * HOURS_PER_MONTH
        more = float(weight[some] @ (value[some] - bound)) * (weight.sum() / weight[some].sum() - 1.0)
        return Evaluation(found.usd_per_month + more, found.cuts)

    def _bounds(self, rows: Index, held: Array) -> tuple[Array, Array]:
        """Lower bounds on the cost of rows from known duals, (n,), and the machine prices that prove them, (n, J)."""
        duals = self.costs
        duals.round += 1
        lately = np.flatnonzero(duals.used[: duals.n] >= duals.round - LATELY)
        y, z = duals.y[lately], duals.z[lately]
        # Where machines by the hour are few, those that cost less than z save the difference.
        few = np.flatnonzero(np.isfinite(self.t.option_most))
        saved = np.maximum(0.0, z[:, self.t.option_sink[few]] - self.t.option_usd_per_hour[few])
        saved = saved @ self.t.option_most[few]
        value, slope = np.zeros(len(rows)), np.zeros((len(rows), held.shape[1]))
        step = max(1, CHUNK_CELLS // max(1, len(lately)))
        for at in range(0, len(rows) if len(lately) else 0, step):
            mine = rows[at : at + step]
            each = self.t.demand[mine] @ y.T - held[mine] @ z.T - saved
            best = each.argmax(axis=1)
            top = np.maximum(0.0, each[np.arange(len(mine)), best])
            value[at : at + step] = top
            slope[at : at + step] = np.where(top[:, None] > 0, z[best], 0.0)
            duals.used[lately[best]] = duals.round
        return value, slope


Oracle = Projection | RowByRow
