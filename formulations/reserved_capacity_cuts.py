r"""Reserved capacity with the flows projected out: the method ``exact`` of `formulations.reserved_capacity`.

Given machines n_j in every sink, what one row still has to pay is (LP duality, then the coarea formula over prices)

    Q_t(n) = Σ_l (p_l − p_{l−1}) · max_S [ Σ_{i∈S} load_i·d_it − Σ_{j∈N(S)} strength_j·(n_j + extra_jl) ]₊

with p_1 < p_2 < … the prices of hourly machines and of unserved demand per unit of load, extra_jl the hourly machines
of sink j cheaper than p_l (S must avoid N(S) where they are unlimited), and N(S) the sinks that S may use: max-flow
min-cut (Hoffman, Gale) at every price level. Past the last price the bracket must be ≤ 0; that alone is the problem
with reservations only. What must survive a loss are more brackets that must be ≤ 0.

Only the sets S = {i: N(i) ⊆ Z} matter, for Z in the union-closed family of the N(i). Reach is geographic, so the
family is small (32 AWS regions: 4,096 sets at 60 ms, 364 at 150 ms) and is listed once; every bracket is then a matrix
product over all rows. Where the family is too large, κ ≠ 1, machines differ in what they are good at ("gains") or
egress has a price, the rows that a greedy flow cannot serve (for nothing) are solved as small LPs, whose duals (y, z)
are cuts valid in every row.

The master keeps one HiGHS handle: integers k_c, one variable θ per group of rows for Σ_t w_t·Q_t, cuts as added rows;
first its LP relaxation with in-out separation, then the MIP, until bound and cost agree.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import highspy
import numpy as np

from optmodels.errors import SolverError
from optmodels.formulation import Options
from optmodels.plan.outcome import Outcome
from optmodels.plan.reserved_capacity import ReservedPlan, make_plan
from optmodels.points.reserved_capacity import Array, Guard, Index, Mask, ReservedTables, deviations, union_closed
from optmodels.points.reserved_dispatch import RowLp, free_orders, greedy_flows
from optmodels.problem.reserved_capacity import HOURS_PER_MONTH, ReservedCapacity
from optmodels.solver.cancel import cancelled
from optmodels.solver.highs import Event, Limit, relative_gap

TOLERANCE = 1e-7  # of a row's load: brackets below it count as ≤ 0
PROOF = 1e-6
GROUPS = 160
CHUNK_CELLS = 4_000_000
CLOSEST_SECONDS = 4.0
TANGENTS = 10


# ------------------------------------------------------------------------------------------------------ families


def undominated(demand: Array) -> Index:
    """Rows of `demand` (H, I) that no other row exceeds everywhere; of equal rows the first."""
    order = np.argsort(-demand.sum(axis=1), kind="stable")
    kept: list[int] = []
    frontier = np.empty_like(demand)
    for h in order:
        n = len(kept)
        if n and (frontier[:n] >= demand[h]).all(axis=1).any():
            continue
        frontier[n] = demand[h]
        kept.append(int(h))
    return np.sort(np.array(kept, dtype=np.intp))


# ------------------------------------------------------------------------------------------------------ brackets


@dataclass(frozen=True)
class Bracket:
    """max_S [load of S − strength of N(S)] with its own extra machines and admissible sources.

    Attributes:
        usd: price step p_l − p_{l−1}, USD/h per unit of load; None: the bracket must be ≤ 0.
        extra: hourly machines that count, (J,), infinite: S must avoid the sink.
        alive: share of reservations that counts, (J,).
        sources: sources that S may contain, (I,).
        guard: what must survive, if this is about a loss.
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
class Cut:
    """Σ_j slope[j, q]·n[j, q] + θ_group ≥ constant; hard cuts have no group."""

    slope: Array
    constant: float
    group: int | None = None
    quarter: int = 0


@dataclass
class Evaluation:
    """Hourly cost at one point, USD/month, and the cuts that are tight there."""

    usd_per_month: float
    cuts: list[Cut] = field(default_factory=list)


class Projection:
    """Brackets over a listed family of sets: everything by matrix products."""

    def __init__(self, t: ReservedTables, load: Array, strength: Array, family: Mask, groups: Index) -> None:
        self.t, self.strength, self.groups = t, strength, groups
        self.load = t.demand * load
        self.parts = [b for b in brackets(t, load, strength) if b.sources.any()]
        self.contains = self._contains(family)
        # Sets that stay admissible up to the dearest level come first, so that every level is a prefix.
        self.soft = [b for b in self.parts if b.usd is not None]
        allowed = np.array([~family[:, np.isinf(b.extra)].any(axis=1) for b in self.soft]).reshape(
            len(self.soft), len(family)
        )
        order = np.argsort(-allowed.sum(axis=0), kind="stable")
        self.family, self.prefix = family[order].astype(float), allowed.sum(axis=1)
        self.contains = self.contains[order]
        self.hard = [(b, *self._right_sides(b)) for b in self.parts if b.usd is None]
        self.active = [np.zeros(0, dtype=np.intp) for _ in self.soft]

    def _contains(self, family: Mask) -> Mask:
        """(F, I): source i has all its sinks in set Z and some sink at all."""
        outside = self.t.reach.astype(float) @ (~family).T.astype(float)
        inside: Mask = (outside == 0).T & self.t.reach.any(axis=1)
        return inside

    def _right_sides(self, b: Bracket) -> tuple[Array, Mask]:
        """Largest load of every set over the rows of every quarter, (F, Q), and which sets are admissible."""
        t, Q = self.t, self.t.quarters
        members = (self.contains & b.sources).astype(float)
        banned = np.isinf(b.extra)
        ok: Mask = np.asarray(~(self.family[:, banned] > 0).any(axis=1))
        keep = b.guard.keep if b.guard is not None else 1.0
        most = np.zeros((len(members), Q))
        budget = b.guard.budget if b.guard is not None else 0
        for q in range(Q):
            rows = np.unique(self.load[t.quarter == q], axis=0)
            if budget and b.guard is not None:
                for e in np.flatnonzero(ok):
                    most[e, q] = self._with_deviations(rows * members[e], b.guard)
                continue
            step = max(1, CHUNK_CELLS // max(1, len(members)))
            for at in range(0, len(rows), step):
                np.maximum(most[:, q], (rows[at : at + step] @ members.T).max(axis=0), out=most[:, q])
        return keep * most, ok

    def _with_deviations(self, rows: Array, guard: Guard) -> float:
        """Largest load over rows when up to `budget` regions exceed theirs."""
        R = len(self.t.case.regions)
        by_region = np.zeros((len(rows), R))
        np.add.at(by_region.T, self.t.source_region, rows.T)
        n = min(guard.budget, R)
        top = np.partition(by_region, R - n, axis=1)[:, R - n :].sum(axis=1)
        return float((by_region.sum(axis=1) + guard.deviation * top).max(initial=0.0))

    def violated(self, machines: Array, most: int = 40, exact: bool = True) -> list[Cut]:
        """Hard brackets above zero at machines (J, Q): the most violated sets of each."""
        cuts = []
        for b, right, ok in self.hard:
            finite = np.where(np.isinf(b.extra), 0.0, b.extra)
            have = self.family @ (self.strength[:, None] * (b.alive[:, None] * machines + finite[:, None]))
            excess = np.where(ok[:, None], right - have, 0.0)
            scale = TOLERANCE * np.maximum(1e-9, right)
            for q in range(self.t.quarters):
                worst = np.flatnonzero(excess[:, q] > scale[:, q])
                if len(worst) > most:
                    worst = worst[np.argpartition(-excess[worst, q], most)[:most]]
                for e in worst:
                    slope = self.family[e] * self.strength * b.alive
                    constant = right[e, q] - float(self.family[e] * self.strength @ finite)
                    cuts.append(Cut(slope, constant, quarter=q))
        return cuts

    def cost(self, machines: Array, exact: bool = True) -> Evaluation:
        """Hourly cost at machines (J, Q); exact: over the whole family, else over sets seen tight so far."""
        t, G = self.t, int(self.groups.max()) + 1
        J = len(self.strength)
        slope, constant, total = np.zeros((G, J)), np.zeros(G), 0.0
        chunk = max(1, CHUNK_CELLS // max(1, len(self.family)))
        seen: list[list[Index]] = [[] for _ in self.soft]
        for q in range(t.quarters):
            rows_q = np.flatnonzero(t.quarter == q)
            have = []
            for b in self.soft:
                finite = np.where(np.isinf(b.extra), 0.0, b.extra)
                have.append(self.family @ (self.strength * (machines[:, q] + finite)))
            for at in range(0, len(rows_q), chunk if exact else len(rows_q)):
                rows = rows_q[at : at + chunk] if exact else rows_q
                shared = None
                for level, b in enumerate(self.soft):
                    n = int(self.prefix[level])
                    sets = np.arange(n) if exact else self.active[level]
                    if not len(sets):
                        continue
                    if exact and b.sources.all():
                        if shared is None:
                            shared = self.load[rows] @ self.contains[: int(self.prefix.max())].T.astype(float)
                        value = shared[:, :n] - have[level][:n]
                    else:
                        members = (self.contains[sets] & b.sources).T.astype(float)
                        value = self.load[rows] @ members - have[level][sets]
                    best = value.argmax(axis=1)
                    deficit = value[np.arange(len(rows)), best]
                    on = np.flatnonzero(deficit > 0)
                    if not len(on):
                        continue
                    e, weight = sets[best[on]], t.weight[rows[on]] * HOURS_PER_MONTH * float(b.usd or 0.0)
                    seen[level].append(np.unique(e))
                    total += float(weight @ deficit[on])
                    group = self.groups[rows[on]]
                    np.add.at(
                        constant, group, weight * (deficit[on] + self.family[e] @ (self.strength * machines[:, q]))
                    )
                    np.add.at(slope, group, weight[:, None] * self.family[e] * self.strength)
        if exact:
            for level, found in enumerate(seen):
                if found:
                    self.active[level] = np.unique(np.concatenate([self.active[level], *found]))
        cuts = [
            Cut(slope[g], float(constant[g]), g, int(self.quarter_of_group[g]))
            for g in map(int, np.flatnonzero(slope.any(axis=1)))
        ]
        return Evaluation(total, cuts)

    @property
    def quarter_of_group(self) -> Index:
        """Quarter of every group."""
        of = np.zeros(int(self.groups.max()) + 1, dtype=np.intp)
        of[self.groups] = self.t.quarter
        return of


class RowByRow:
    """The same by the LP of every row that a greedy flow cannot serve: any gains, any family."""

    def __init__(self, t: ReservedTables, groups: Index) -> None:
        self.t, self.groups = t, groups
        self.lp = RowLp(t, tie_break=False)
        self.feasibility = RowLp(t, phase_one=True)
        self.hourly = t.costs_by_the_hour
        self.quarter_of_group = np.zeros(int(groups.max()) + 1, dtype=np.intp)
        self.quarter_of_group[groups] = t.quarter
        self.tests: list[tuple[Array, Array, Array, Mask]] = []  # demand rows, alive, extra, must be served
        J = len(t.sink_region)
        everything = np.zeros(J)
        np.add.at(everything, t.option_sink, t.option_most)
        must = ~np.isfinite(t.penalty)
        if must.any():
            self._add_test(np.where(must, t.demand, 0.0), np.ones(J), everything)
        for g in t.guards:
            for factor in deviations(t, g):
                self._add_test(t.demand * factor, g.alive, g.extra)
        self.pool: list[list[tuple[Array, Array]]] = [[] for _ in self.tests]

    def _add_test(self, demand: Array, alive: Array, extra: Array) -> None:
        rows = np.concatenate([
            np.flatnonzero(self.t.quarter == q)[undominated(demand[self.t.quarter == q])]
            for q in range(self.t.quarters)
        ])  # fmt: skip
        enough = float((demand.max(axis=0, initial=0.0) @ self.t.work).max(initial=1.0)) * 10 + 10
        self.tests.append((demand[rows], alive, np.where(np.isinf(extra), enough * len(demand.T), extra), rows))

    def violated(self, machines: Array, most: int = 40, exact: bool = True) -> list[Cut]:
        """Cuts from duals of rows that cannot be served; known duals are tried on all rows first."""
        t, cuts = self.t, []
        for index, (demand, alive, extra, rows) in enumerate(self.tests):
            quarter = t.quarter[rows]
            fresh = self._from_pool(index, machines)
            if not fresh and exact:
                have = (alive[:, None] * machines + extra[:, None]).T[quarter]
                left, _ = greedy_flows(t, demand, have)
                scale = np.maximum(demand.sum(axis=1), 1e-12)
                tried = np.flatnonzero(left.sum(axis=1) > TOLERANCE * scale)
                for h in tried[np.argsort(-left[tried].sum(axis=1), kind="stable")]:
                    self.feasibility.solve(demand[h], have[h])
                    if self.feasibility.objective > TOLERANCE * scale[h]:
                        y, z = self.feasibility.duals()
                        self.pool[index].append((y, z))
                        fresh.append(self._cut(index, y, z, int(quarter[h])))
                        if len(fresh) >= most:
                            break
            cuts += fresh
        return cuts

    def _cut(self, index: int, y: Array, z: Array, q: int) -> Cut:
        demand, alive, extra, rows = self.tests[index]
        mine = demand[self.t.quarter[rows] == q]
        return Cut(z * alive, float((mine @ y).max() - z @ extra), quarter=q)

    def _from_pool(self, index: int, machines: Array) -> list[Cut]:
        found = []
        for y, z in self.pool[index]:
            for q in range(self.t.quarters):
                cut = self._cut(index, y, z, q)
                if cut.constant - cut.slope @ machines[:, q] > TOLERANCE * max(1e-9, abs(cut.constant)):
                    found.append(cut)
        return found

    def cost(self, machines: Array, exact: bool = True) -> Evaluation:
        """Hourly cost by the LP of every row that reservations alone cannot serve."""
        t, G, J = self.t, int(self.groups.max()) + 1, len(self.t.sink_region)
        if not self.hourly:
            return Evaluation(0.0)
        held = machines.T[t.quarter]
        left, _ = greedy_flows(t, t.demand, held, free_orders(t)[0])
        slope, constant, total = np.zeros((G, J)), np.zeros(G), 0.0
        for h in np.flatnonzero(left.sum(axis=1) > TOLERANCE * np.maximum(t.demand.sum(axis=1), 1e-12)):
            self.lp.solve(t.demand[h], held[h])
            _, z = self.lp.duals()
            weight = t.weight[h] * HOURS_PER_MONTH
            value = self.lp.objective
            total += weight * value
            constant[self.groups[h]] += weight * (value + z @ held[h])
            slope[self.groups[h]] += weight * z
        on = [int(g) for g in np.flatnonzero(slope.any(axis=1))]
        return Evaluation(total, [Cut(slope[g], float(constant[g]), g, int(self.quarter_of_group[g])) for g in on])


# -------------------------------------------------------------------------------------------------------- master


class Master:
    """Integers k and hourly cost θ by group on one HiGHS handle; cuts are added rows."""

    def __init__(self, t: ReservedTables, groups: int, options: Options) -> None:
        self.t = t
        C = self.C = len(t.column_sink)
        self.G = groups
        self.small = np.flatnonzero(t.column_minimum > 0)
        B = len(self.small)
        self.unit = 1.0 / max(1.0, float(np.median(t.column_usd_per_month)) if C else 1.0)
        cost = np.concatenate([t.column_usd_per_month * t.column_step, np.zeros(B), np.ones(groups)]) * self.unit
        most = np.floor(t.most_useful() / t.column_step)
        upper = np.concatenate([most, np.ones(B), np.full(groups, np.inf)])
        n = C + B + groups
        h = self.h = highspy.Highs()
        for name, value in (
            ("output_flag", False), ("threads", 1), ("random_seed", options.seed), ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 0.0), ("mip_feasibility_tolerance", 1e-7),
        ):  # fmt: skip
            h.setOptionValue(name, value)
        zero = np.zeros(n, dtype=np.int32)
        h.passModel(
            n, 0, 0, int(highspy.MatrixFormat.kColwise), int(highspy.ObjSense.kMinimize), 0.0, cost, np.zeros(n), upper,
            np.zeros(0), np.zeros(0), np.zeros(n + 1, dtype=np.int32), np.zeros(0, dtype=np.int32), np.zeros(0), zero,
        )  # fmt: skip
        self.rows = 0
        for j in range(len(t.sink_region)):
            mine = np.flatnonzero(t.column_sink == j)
            for q in range(t.quarters):
                on = mine[t.column_active[mine, q] > 0]
                if np.isfinite(t.sink_most[j]) and len(on):
                    self._row(-np.inf, float(t.sink_most[j]), on, t.column_step[on].astype(float))
        for b, c in enumerate(self.small):
            self._row(
                0.0, np.inf, np.array([c, C + b]), np.array([t.column_step[c], -t.column_minimum[c]], dtype=float)
            )
            self._row(-np.inf, 0.0, np.array([c, C + b]), np.array([1.0, -most[c]]))

    def _row(self, lower: float, upper: float, index: Any, value: Any) -> None:
        status = self.h.addRow(
            lower, upper, len(index), np.asarray(index, dtype=np.int32), np.asarray(value, dtype=float)
        )
        if status == highspy.HighsStatus.kError:
            raise SolverError("HiGHS refused a cut")
        self.rows += 1

    def add(self, cuts: list[Cut]) -> None:
        """Add cuts as rows, each scaled to a right-hand side of about one."""
        t, C = self.t, self.C
        for cut in cuts:
            coefficient = (
                cut.slope[t.column_sink] * t.column_active[:, cut.quarter] * t.column_step if C else np.zeros(0)
            )
            index = np.flatnonzero(coefficient)
            value = coefficient[index]
            constant = cut.constant
            if cut.group is not None:
                index, value = np.append(index, C + len(self.small) + cut.group), np.append(value, 1.0)
            largest = np.abs(value).max(initial=0.0)
            if not largest:
                if constant > TOLERANCE:
                    self._row(1.0, np.inf, np.zeros(0), np.zeros(0))  # 0 ≥ 1: nothing reservable can help
                continue
            keep = np.abs(value) > 1e-12 * largest
            self._row(constant / largest, np.inf, index[keep], value[keep] / largest)

    def integers(self, on: bool) -> None:
        """Make k integer, or relax it."""
        n = self.C + len(self.small)
        kind = highspy.HighsVarType.kInteger if on else highspy.HighsVarType.kContinuous
        if n:
            self.h.changeColsIntegrality(n, np.arange(n, dtype=np.int32), np.full(n, int(kind), dtype=np.uint8))

    def solve(self, gap: float, seconds: float | None) -> tuple[str, Array | None, float | None]:
        """(status, k in machines, lower bound in USD/month)."""
        h = self.h
        h.setOptionValue("mip_rel_gap", gap)
        h.setOptionValue("time_limit", np.inf if seconds is None else h.getRunTime() + max(0.01, seconds))
        h.run()
        status, S = h.getModelStatus(), highspy.HighsModelStatus
        if status == S.kModelEmpty:
            return "optimal", np.zeros(self.C), 0.0
        if status in (S.kInfeasible, S.kUnboundedOrInfeasible):
            return "infeasible", None, None
        info = h.getInfo()
        x = None
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            x = np.array(h.getSolution().col_value)[: self.C] * self.t.column_step.astype(float)
        is_mip = info.mip_node_count >= 0
        bound = float(info.mip_dual_bound if is_mip else info.objective_function_value) / self.unit
        return ("optimal" if status == S.kOptimal else "limit"), x, bound if np.isfinite(bound) else None

    def prefer_local(self, oracle: Projection, usd_per_month: float) -> None:
        """Hold the cost at `usd_per_month` and maximise the load served in its own region, tangent by tangent."""
        t, h = self.t, self.h
        n = h.getNumCol()
        cost = np.array(h.getLp().col_cost_)
        on = np.flatnonzero(cost)
        self._row(-np.inf, usd_per_month * self.unit * (1 + 1e-10), on, cost[on])
        h.changeColsCost(n, np.arange(n, dtype=np.int32), np.zeros(n))
        scale = 1.0 / max(1e-12, float(t.weight @ oracle.load.sum(axis=1)))
        for r in np.unique(t.source_region):
            for q in range(t.quarters):
                rows = t.quarter == q
                load, weight = oracle.load[rows][:, t.source_region == r].sum(axis=1), t.weight[rows] * scale
                mine = np.flatnonzero((t.sink_region[t.column_sink] == r) & (t.column_active[:, q] > 0))
                h.addCol(-1.0, 0.0, float(weight @ load), 0, np.zeros(0, dtype=np.int32), np.zeros(0))
                value = oracle.strength[t.column_sink[mine]] * t.column_step[mine]
                for level in np.unique(np.quantile(load, np.linspace(0, 0.98, TANGENTS))):
                    slope = float(weight[load > level].sum())  # served ≤ served(level) + slope·(capacity − level)
                    at = float(weight @ np.minimum(load, level))
                    self._row(-np.inf, at - slope * level, np.append(mine, n), np.append(-slope * value, 1.0))
                n += 1

    @property
    def size(self) -> dict[str, int]:
        """Of the master."""
        return {"variables": self.h.getNumCol(), "integers": self.C + len(self.small),
                "constraints": self.h.getNumRow(), "nonzeros": self.h.getNumNz()}  # fmt: skip


# -------------------------------------------------------------------------------------------------------- method


def exact(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """Cuts in place of flows, to the optimum of the full model or to the gap asked for."""
    return _Run(tables, options).outcome()


class _Run:
    def __init__(self, t: ReservedTables, options: Options) -> None:
        self.t, self.options = t, options
        self.clock = time.perf_counter()
        self.target = max(options.gap, PROOF)
        self.events: list[Event] = []
        self.best: tuple[float, Array] | None = None
        self.lower = 0.0
        self.log: dict[str, Any] = {}

    def left(self) -> float | None:
        limit = self.options.time_limit
        return None if limit is None else limit - (time.perf_counter() - self.clock)

    def out_of_time(self) -> bool:
        left = self.left()
        return (left is not None and left <= 0) or cancelled()

    def record(self) -> None:
        event = Event(time.perf_counter() - self.clock, self.best[0] if self.best else None, self.lower, 0)
        self.events.append(event)
        if self.options.on_event is not None:
            self.options.on_event(event)

    def outcome(self) -> Outcome[ReservedPlan]:
        t = self.t
        unreachable = np.flatnonzero(~t.reach.any(axis=1) & ~np.isfinite(t.penalty))
        if len(unreachable):
            name = t.case.regions[t.source_region[unreachable[0]]]
            return Outcome("infeasible", None, log={"reason": f"nobody can serve {name} locally"})
        groups = row_groups(t)
        pure = t.pure
        family = union_closed(t.reach) if pure is not None and not t.egress.any() else None
        self.oracle: Projection | RowByRow
        if not len(t.demand.T):
            return Outcome("optimal", make_plan(t, np.zeros(len(t.column_sink))), 0.0, log={"reason": "no demand"})
        if pure is not None and family is not None and len(family):
            self.oracle = Projection(t, *pure, family, groups)
            self.log["sets"] = len(family)
        else:
            self.oracle = RowByRow(t, groups)
            self.log["sets"] = "by row LPs"
        self.soft = t.costs_by_the_hour
        self.master = Master(t, int(groups.max()) + 1 if self.soft else 0, self.options)
        built = time.perf_counter() - self.clock
        status = self._relaxation()
        if status == "optimal":
            status = self._integers()
        size = self.master.size
        if status == "optimal" and self.best is not None and isinstance(self.oracle, Projection):
            self._closest_to_users(self.oracle)
        seconds = {"build": built, "solve": time.perf_counter() - self.clock - built}
        if status == "infeasible":
            reason = "demand exceeds what can be reserved and bought within reach"
            return Outcome("infeasible", None, seconds=seconds, size=size, log=self.log | {"reason": reason})
        if self.best is None:
            stopped: Limit = "interrupt" if cancelled() else "time"
            return Outcome("no_solution_found", None, self.lower, stopped, seconds, size, self.log, tuple(self.events))
        began = time.perf_counter()
        plan = make_plan(t, self.best[1])
        seconds["extract"] = time.perf_counter() - began
        cost = plan.cost.total_usd_per_month
        self.lower = min(self.lower, cost)
        gap = relative_gap(cost, self.lower) or 0.0
        proved = gap <= 2 * PROOF
        limit: Limit | None = None
        if not proved:
            limit = "gap" if gap <= self.target else "interrupt" if cancelled() else "time"
        return Outcome(
            "optimal" if proved else "feasible", plan, cost if proved else self.lower, limit,
            seconds, size, self.log, tuple(self.events),
        )  # fmt: skip

    def _reserved_usd(self, counts: Array) -> float:
        return float(counts @ self.t.column_usd_per_month) if len(counts) else 0.0

    def _offer(self, counts: Array, hourly: float) -> None:
        value = self._reserved_usd(counts) + hourly
        if self.best is None or value < self.best[0]:
            self.best = (value, counts.copy())
            self.record()

    def _relaxation(self) -> str:
        """Cut the LP relaxation until no hard cut is violated and θ is within a third of the target."""
        t, rounds = self.t, 0
        inside: tuple[float, Array] | None = None
        self.master.integers(on=False)
        weight = 0.5
        while True:
            rounds += 1
            status, x, bound = self.master.solve(0.0, self.left())
            if status == "infeasible":
                return "infeasible"
            if x is None or self.out_of_time():
                return "limit"
            machines = t.reserved(x)
            hard = self.oracle.violated(machines)
            if hard:
                self.master.add(hard)
                continue
            self.lower = max(self.lower, bound or 0.0)
            if not self.soft:
                break
            # In-out: cut between the best point so far and the master's.
            point = x if inside is None else weight * inside[1] + (1 - weight) * x
            found = self.oracle.cost(t.reserved(point))
            value = self._reserved_usd(point) + found.usd_per_month
            self.master.add(found.cuts)
            if inside is None or value < inside[0]:
                inside = (value, point)
            if inside[0] - self.lower <= 0.2 * self.target * max(abs(inside[0]), 1e-9):
                break
            if not self._cuts_off(found.cuts, x, bound or 0.0):
                found = self.oracle.cost(machines)
                self.master.add(found.cuts)
                value = self._reserved_usd(x) + found.usd_per_month
                if value < inside[0]:
                    inside = (value, x)
                if value - self.lower <= 0.2 * self.target * max(abs(value), 1e-9):
                    break
        self.log["relaxation_rounds"] = rounds
        self.log["relaxation_usd_per_month"] = self.lower
        self.log["relaxation_seconds"] = time.perf_counter() - self.clock
        self._round(inside[1] if inside is not None else x)
        return "optimal"

    def _cuts_off(self, cuts: list[Cut], x: Array, bound: float) -> bool:
        """Whether new cuts exclude the master's point x at its claimed hourly cost."""
        machines = self.t.reserved(x)
        claimed = bound - self._reserved_usd(x)
        forced = sum(max(0.0, c.constant - float(c.slope @ machines[:, c.quarter])) for c in cuts)
        return forced > claimed + 1e-9 * max(1.0, abs(bound))

    def _round(self, x: Array) -> None:
        """Offer roundings of a fractional point that satisfy every hard bracket."""
        t = self.t
        if (t.column_minimum > 0).any():
            return
        for ahead in (0.5, 1.0 - 1e-6) if self.soft else (1.0 - 1e-6,):
            counts = np.floor(x / t.column_step + ahead) * t.column_step.astype(float)
            counts = np.minimum(counts, np.floor(t.most_useful() / t.column_step) * t.column_step)
            machines = t.reserved(counts)
            if (machines > t.sink_most[:, None] + 1e-9).any() or self.oracle.violated(machines, 1):
                continue
            self._offer(counts, self.oracle.cost(machines).usd_per_month if self.soft else 0.0)

    def _gap(self) -> float:
        return np.inf if self.best is None else (self.best[0] - self.lower) / max(abs(self.best[0]), 1e-9)

    def _integers(self) -> str:
        """MIP master, check, cut, repeat."""
        t, rounds = self.t, 0
        if self._gap() <= self.target:
            return "optimal"
        self.master.integers(on=True)
        while not self.out_of_time():
            rounds += 1
            inner = min(0.3 * self.target, max(1e-7, 0.3 * self.target))
            status, x, bound = self.master.solve(inner, self.left())
            if status == "infeasible":
                return "infeasible"
            if bound is not None:
                self.lower = max(self.lower, bound)
            if x is None:
                return "limit"
            x = np.round(x / t.column_step) * t.column_step
            machines = t.reserved(x)
            hard = self.oracle.violated(machines)
            self.master.add(hard)
            if self.soft:
                found = self.oracle.cost(machines)
                self.master.add(found.cuts)
                if not hard:
                    self._offer(x, found.usd_per_month)
            elif not hard:
                self._offer(x, 0.0)
            self.record()
            if self._gap() <= self.target or status == "limit":
                break
        self.log["integer_rounds"] = rounds
        return "optimal"

    def _closest_to_users(self, oracle: Projection, rounds: int = 12) -> None:
        """Among plans of the same cost, the one that serves most requests where they arise (SK §2.2's insight).

        Locally served load of a region is concave and piecewise linear in its machines: tangents over its demand.
        """
        assert self.best is not None
        began, value = time.perf_counter(), self.best[0]
        self.log["local_rounds"] = 0
        for _ in range(rounds):
            spent = time.perf_counter() - began
            left = self.left()
            seconds = min(CLOSEST_SECONDS - spent, np.inf if left is None else left)
            if seconds <= 0:
                return
            if not self.log["local_rounds"]:
                self.master.prefer_local(oracle, value)
            self.log["local_rounds"] += 1
            status, x, _ = self.master.solve(1e-3, seconds)
            if x is None or status == "infeasible":
                return
            x = np.round(x / self.t.column_step) * self.t.column_step
            machines = self.t.reserved(x)
            hard = oracle.violated(machines)
            self.master.add(hard)
            found = oracle.cost(machines) if self.soft else Evaluation(0.0)
            self.master.add(found.cuts)
            if not hard and self._reserved_usd(x) + found.usd_per_month <= value * (1 + 1e-9):
                self.best = (self._reserved_usd(x) + found.usd_per_month, x)
                return


def row_groups(t: ReservedTables, most: int = GROUPS) -> Index:
    """Rows of one quarter with like total demand share one θ; with few rows every row has its own."""
    H = len(t.demand)
    per_quarter = max(1, most // t.quarters)
    group = np.zeros(H, dtype=np.intp)
    start = 0
    for q in range(t.quarters):
        rows = np.flatnonzero(t.quarter == q)
        rank = np.argsort(np.argsort(t.demand[rows].sum(axis=1), kind="stable"), kind="stable")
        n = min(per_quarter, len(rows))
        group[rows] = start + rank * n // max(1, len(rows))
        start += n
    return group
