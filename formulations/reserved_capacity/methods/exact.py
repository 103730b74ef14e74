"""The method ``exact``: cuts in place of flows, from the oracles; docs/reserved-capacity-cuts.md has the mathematics.

The master keeps one solver session: the purchases of the model, one θ per group of rows for the rows' cost, cuts as
added rows; first its LP relaxation with in-out separation, then the MIP, until bound and cost agree.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from formulations.reserved_capacity.dispatch import SHORT, Dispatch, RowLp
from formulations.reserved_capacity.losses import of_demand, of_guard, short_row
from formulations.reserved_capacity.making import counts_of, make_plan
from formulations.reserved_capacity.methods.flows import flow_variables, solve_flows
from formulations.reserved_capacity.methods.heuristics import best_of_all
from formulations.reserved_capacity.methods.oracles import (
    TOLERANCE,
    Evaluation,
    Oracle,
    OracleCut,
    Projection,
    RowByRow,
)
from formulations.reserved_capacity.model import PURCHASES, Purchases, held
from formulations.reserved_capacity.plan import ReservedPlan
from formulations.reserved_capacity.points import ReservedTables, families
from formulations.reserved_capacity.problem import HOURS_PER_MONTH, ReservedCapacity
from optmodels.arrays import Array, Index
from optmodels.errors import SolverError
from optmodels.formulation import Options
from optmodels.plans.outcome import Outcome
from optmodels.solver import Compiled
from optmodels.solver.cancel import cancelled, caught_interrupt
from optmodels.solver.highs import agreed, relative_gap
from optmodels.solver.infeasible import confirmed
from optmodels.solver.session import Event, Limit, Session, Settings

PROOF = 1e-6
WHOLE = 1e-9  # next to a whole number of machines: rounding
GROUPS = 160
CONFIRM_S = 10.0  # for another proof that the master has no point
SLACK = 0.01  # of a cut's right-hand side, by which it does not bind
MANY_CUTS = 1_000  # of a master, from which on those that do not bind are no part of the integer master
CLOSEST_SECONDS = 4.0
WIND_UP_S = 4.0  # for a plan from the known parts, once told to stop
TANGENTS = 10
NOTHING_USD = 1e-9  # a month: rounding, no cost; cuts would not end it
START_ROWS, START_GAP = 120, 5e-3  # of the relaxation over a few rows that a long one starts from
START_SHARE = 0.2  # of the time limit that this may take
FREE_CELLS = 20_000_000  # sets × rows up to which all rows are first cut with forwarding for nothing
FEW_FLOWS, FEW_ROUNDS = 100_000, 2  # flow variables up to which, after this many rounds of integers, the model as it
FLOWS_SECONDS = 60.0  # stands has its turn, for this long
ROUNDINGS, ROUNDING_GAP = 4, 1e-4  # masters that round one fractional point, and their gap,
ROUNDING_S, ROUNDING_SHARE, ROUNDING_LEAST_S = (
    10.0,
    0.25,
    0.3,
)  # each with at most this long, or a share of the rest
TURN = 0.4  # share of the time limit after which, unproved, the heuristics have their turn
SHORT_S, SHORT_TURN = 10.0, 0.2  # the same of a short limit, which one good heuristic nearly fills


NOTHING_NEW = "the last round brought no new cut, bound or plan"


# -------------------------------------------------------------------------------------------------------- master


class CommitmentMaster:
    """Integers k and hourly cost θ by group in one solver session; cuts are added rows."""

    def __init__(self, t: ReservedTables, groups: int, options: Options) -> None:
        self.t = t
        model = self.model = Purchases(t)
        self.theta = model.variable("theta", ("group",), (groups,))
        model.state(PURCHASES)
        self.held = held(model, t.column_active, "q")
        self.unit = 1.0 / _typical_usd(t)  # of money, θ included: coefficients stay far above what HiGHS drops
        model.minimise("cost", model.reserved_usd * self.unit + self.theta)
        compiled = model.compiled()
        self.session = Session(compiled, Settings(seed=options.seed, options={"mip_feasibility_tolerance": 1e-7}))
        self.cost, self.integer = compiled.costs[0], np.flatnonzero(compiled.integer)
        self.lower = compiled.row_lower.tolist()  # of rows
        self.structural = len(self.lower)
        self.keys: list[bytes] = [b""] * self.structural  # of rows; hashes of cuts tell equal ones
        self.known: set[bytes] = set()
        self.added = 0  # cuts, those dropped since included

    def _row(self, lower: float, upper: float, index: Any, value: Any) -> None:
        self.session.add_row(lower, upper, index, value)
        self.lower.append(lower)
        self.keys.append(b"")

    def _reserved(self, weight: Array, quarter: int) -> tuple[Index, Array]:
        """Σ_j weight_j·machines reserved in j in a quarter: columns and their coefficients."""
        j, q = self.held.labels
        mine = (q == quarter) & (weight[j] != 0)
        return self.held.columns[mine], weight[j[mine]] * self.held.coefficients[mine]

    def add(self, cuts: list[OracleCut]) -> None:
        """Add the cuts that are new as rows, each scaled to a right-hand side of about one."""
        lower: list[float] = []
        indices: list[Index] = []
        values: list[Array] = []
        for cut in cuts:
            index, value = self._reserved(cut.slope, cut.quarter)
            constant = cut.constant
            if cut.group is not None:
                index, value = np.append(index, self.theta.start + cut.group), np.append(value * self.unit, 1.0)
                constant *= self.unit
            largest = np.abs(value).max(initial=0.0)
            if not largest and constant <= TOLERANCE:
                continue
            keep = np.abs(value) > 1e-12 * largest  # none: 0 ≥ 1, nothing reservable can help
            least = constant / largest if largest else 1.0
            least = least if cut.group is not None else _slightly_less(least)
            index, value = index[keep], value[keep] / largest if largest else value[keep]
            key = index.tobytes() + np.append(value, least).tobytes()
            if key in self.known:
                continue
            self.known.add(key)
            self.keys.append(key)
            lower.append(least)
            indices.append(index)
            values.append(value)
        if lower:
            start = np.cumsum([0, *map(len, indices)])
            shape = (len(lower), self.session.columns)
            rows = sp.csr_array((np.concatenate(values), np.concatenate(indices), start), shape=shape)
            self.session.add_rows(np.array(lower), np.full(len(lower), np.inf), rows)
            self.lower += lower
            self.added += len(lower)

    def drop_slack(self) -> None:
        """Delete cuts that do not bind in the last solution, where there are many: to find one again takes a MIP."""
        if len(self.lower) - self.structural <= MANY_CUTS:
            return
        value = self.session.row_activity()  # of the rows that were there: later ones stay
        lower = np.array(self.lower[: len(value)])
        slack = np.flatnonzero(value - lower > SLACK * np.maximum(1.0, np.abs(lower)))
        slack = slack[slack >= self.structural]
        self.session.delete_rows(slack)
        self.lower = np.delete(self.lower, slack).tolist()
        self.known -= {self.keys[i] for i in slack}
        gone = set(slack.tolist())
        self.keys = [key for i, key in enumerate(self.keys) if i not in gone]

    def between(self, lower: Array | None = None, upper: Array | None = None) -> None:
        """Keep reservations, in steps, (C,), within these limits; without any, within the model's again."""
        model = self.model
        index = np.arange(model.k.start, model.k.start + len(model.most))
        upper = model.most if upper is None else np.minimum(upper, model.most)
        self.session.set_column_bounds(index, np.zeros(len(index)) if lower is None else lower, upper)

    def integers(self, on: bool) -> None:
        """Make k integer, or relax it."""
        self.session.set_integer(self.integer, on)

    def solve(self, gap: float, seconds: float | None) -> tuple[str, Array | None, float | None]:
        """(status, k in machines, lower bound in USD/month)."""
        session = self.session
        session.set_option("mip_rel_gap", gap)
        with session.watched():
            status = session.run(None if seconds is None else max(0.01, seconds))
        if status == "infeasible":
            known = confirmed(session, CONFIRM_S if seconds is None else min(CONFIRM_S, max(0.01, seconds)))
            return ("infeasible" if known else "limit"), None, None
        x, bound = session.point(), session.bound
        if x is not None:
            x = self.model.counts(x)
        return ("optimal" if status == "optimal" else "limit"), x, None if bound is None else bound / self.unit

    def agreed(self, model: Compiled, gap: float, seconds: float | None) -> tuple[Array | None, float | None]:
        """(k in machines, lower bound in USD/month) of the last run, on `model`, and others: one that two reached."""
        seconds = None if seconds is None else max(0.01, seconds)
        x, bound = agreed(model, self.session, Settings(seconds, gap, self.session.settings.seed))
        return (None if x is None else self.model.counts(x)), None if bound is None else bound / self.unit

    def prefer_local(self, oracle: Projection, usd_per_month: float) -> None:
        """Hold the cost at `usd_per_month` and maximise the load served in its own region, tangent by tangent."""
        t, n = self.t, len(self.cost)
        on = np.flatnonzero(self.cost)
        self._row(-np.inf, usd_per_month * self.unit * (1 + 1e-10), on, self.cost[on])
        self.session.set_costs(np.zeros(n))
        scale = 1.0 / max(1e-12, float(t.weight @ oracle.load.sum(axis=1)))
        for r in np.unique(t.source_region):
            for q in range(t.quarters):
                rows = t.quarter == q
                load, weight = oracle.load[:, t.source_region == r][rows].sum(axis=1), t.weight[rows] * scale
                mine, value = self._reserved(np.where(t.sink_region == r, oracle.strength, 0.0), q)
                self.session.add_columns([-1.0], [0.0], [float(weight @ load)])
                for level in np.unique(np.quantile(load, np.linspace(0, 0.98, TANGENTS))):
                    slope = float(weight[load > level].sum())  # served ≤ served(level) + slope·(capacity − level)
                    at = float(weight @ np.minimum(load, level))
                    self._row(-np.inf, at - slope * level, np.append(mine, n), np.append(-slope * value, 1.0))
                n += 1

    @property
    def size(self) -> dict[str, int]:
        """Of the master."""
        session = self.session
        return {"variables": session.columns, "integers": len(self.integer),
                "constraints": session.rows, "nonzeros": session.nonzeros}  # fmt: skip


# -------------------------------------------------------------------------------------------------------- method


@dataclass(frozen=True)
class _Point:
    """Reservations, (C,), with their whole cost in USD/month, its cuts, and the dispatch or plan that gave the cost."""

    value: float
    counts: Array
    cuts: list[OracleCut] = field(default_factory=list)
    found: Dispatch | None = None
    plan: ReservedPlan | None = None


def exact(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> Outcome[ReservedPlan]:
    """Cuts in place of flows, to the optimum of the full model or to the gap asked for."""
    with caught_interrupt():
        return _ExactRun(problem, tables, options).outcome()


def optimum(problem: ReservedCapacity, tables: ReservedTables, options: Options) -> float | None:
    """The least USD/month, whatever plan has it; None where that is not proved in time, whatever heuristics know."""
    with caught_interrupt():
        found = _ExactRun(problem, tables, options, only_value=True).outcome()
    return found.plan.cost.total_usd_per_month if found.plan is not None and found.status == "optimal" else None


class _ExactRun:
    def __init__(
        self, problem: ReservedCapacity, t: ReservedTables, options: Options, only_value: bool = False
    ) -> None:
        self.problem, self.t, self.options, self.only_value = problem, t, options, only_value
        self.clock = time.perf_counter()
        self.target = max(options.gap, PROOF)
        self.events: list[Event] = []
        self.best: _Point | None = None
        self.inside: _Point | None = None  # best fractional point of the relaxation
        self.lower = 0.0
        self.log: dict[str, Any] = {}
        self.until = None if options.time_limit is None else self.clock + options.time_limit
        self.heuristics_due = options.time_limit is not None and not only_value
        self.stopping = False  # asked to stop
        self.state: tuple[Any, ...] = ()  # cuts, bound and plans after the last round,
        self.anew = False  # and whether that was one on a master passed again, as the round before had brought nothing

    def left(self) -> float | None:
        return None if self.until is None else self.until - time.perf_counter()

    def out_of_time(self) -> bool:
        if cancelled() and not self.stopping:
            self.stopping = True
            self.until = min(time.perf_counter() + WIND_UP_S, np.inf if self.until is None else self.until)
        left = self.left()
        return self.stopping or (left is not None and left <= 0)

    def to_turn(self) -> float | None:
        """Seconds until the heuristics have their turn, or until the limit if they had it."""
        left, limit = self.left(), self.options.time_limit
        if left is None or limit is None or not self.heuristics_due:
            return left
        return left - (1 - (SHORT_TURN if limit <= SHORT_S else TURN)) * limit

    def due(self) -> bool:
        """Whether the heuristics' turn has come."""
        seconds = self.to_turn()
        return self.heuristics_due and seconds is not None and seconds <= 0

    def nothing_new(self) -> bool:
        """Whether the round brought no cut, bound or plan, and neither did one on the master passed again."""
        points = (None if p is None else p.value for p in (self.best, self.inside))
        before, self.state = self.state, (self.master.added, self.lower, *points)
        if self.state != before:
            self.anew = False
            return False
        if not self.anew:
            self.anew = True
            self.master.session.forget()
            return False
        self.log["ended"] = NOTHING_NEW
        return True

    def heuristics(self) -> None:
        """Offer the best plan among the heuristics, once: without a proof no other method is to have a better plan."""
        if not self.heuristics_due:
            return
        self.heuristics_due = False
        below = np.inf if self.best is None else self.best.value
        found = best_of_all(self.problem, self.t, self.options, self.clock, below)
        if found is not None:
            plan, self.log["plan_of"] = found
            self._offer(_Point(plan.cost.total_usd_per_month, counts_of(self.t, plan), plan=plan))

    def record(self) -> None:
        event = Event(time.perf_counter() - self.clock, self.best.value if self.best else None, self.lower, 0)
        self.events.append(event)
        if self.options.on_event is not None:
            self.options.on_event(event)

    def outcome(self) -> Outcome[ReservedPlan]:
        t = self.t
        must = ~np.isfinite(t.penalty) & t.demand.any(axis=0)
        for guard in t.guards:  # a loss has to be survived whatever the price of unserved demand
            must |= guard.demand(t.demand).any(axis=0)
        unreachable = np.flatnonzero(~t.reach.any(axis=1) & must)
        if len(unreachable):
            name = t.case.regions[t.source_region[unreachable[0]]]
            return Outcome("infeasible", None, log={"reason": f"no machine can serve {name} locally"})
        groups = row_groups(t)
        if not len(t.demand.T):
            return Outcome("optimal", make_plan(t, np.zeros(len(t.column_sink))), 0.0, log={"reason": "no demand"})
        listed = _listed(t, groups)
        self.oracle: Oracle = RowByRow(t, groups, self.options.seed) if listed is None else listed
        self.log["sets"] = "by row LPs" if listed is None else listed.sets
        self.soft = t.costs_by_the_hour
        self.master = CommitmentMaster(t, int(groups.max()) + 1 if self.soft else 0, self.options)
        built = time.perf_counter() - self.clock
        status = self._relaxation()
        if status == "optimal" and self._gap() > self.target:
            status = self._integers()
        if status != "infeasible" and self._gap() > self.target and not self.only_value:
            self.heuristics_due |= self.out_of_time() and self.best is None  # told to stop before there was a plan
            self.heuristics()
        size = self.master.size
        if status == "optimal" and isinstance(self.oracle, Projection) and not self.only_value:
            self._closest_to_users(self.oracle)
        seconds = {"build": built, "solve": time.perf_counter() - self.clock - built}
        if status == "infeasible":
            return Outcome("infeasible", None, seconds=seconds, size=size, log=self.log | {"reason": self._why_not()})
        if self.best is None:
            stopped: Limit = "interrupt" if cancelled() else "time"
            return Outcome("no_solution_found", None, self.lower, stopped, seconds, size, self.log, tuple(self.events))
        began = time.perf_counter()
        plan = self._plan()
        seconds["extract"] = time.perf_counter() - began
        cost = plan.cost.total_usd_per_month
        self.lower = min(self.lower, cost)
        gap = relative_gap(cost, self.lower) or 0.0
        proved = gap <= 2 * PROOF
        limit: Limit | None = None
        if not proved:
            unlimited = self.until is None or "ended" in self.log
            reached = gap <= self.target or (unlimited and not cancelled())  # all that runs agree on
            limit = "gap" if reached else "interrupt" if cancelled() else "time"
            if "ended" in self.log:
                self.log["reason"] = self.log["ended"]
        return Outcome(
            "optimal" if proved else "feasible", plan, cost if proved else self.lower, limit,
            seconds, size, self.log, tuple(self.events),
        )  # fmt: skip

    def _why_not(self) -> str:
        """Demand that all permitted purchases together do not serve, in words."""
        t, lp = self.t, RowLp(self.t, phase_one=True)
        held = np.minimum(t.reserved(np.floor(t.most_useful() / t.column_step) * t.column_step), t.sink_most[:, None])
        hourly = np.zeros(len(t.sink_region))
        np.add.at(hourly, t.option_sink, t.option_most)
        if short_row(t, of_demand(t, sources=~np.isfinite(t.penalty), extra=hourly), held, lp) is not None:
            return "demand exceeds what can be reserved and bought within reach"
        lost = [g.name for g in t.guards if short_row(t, of_guard(t, g), held, lp) is not None]
        if lost:
            return f"what can be reserved within reach does not survive: {', '.join(lost)}"
        return "what steps and minima leave to be reserved does not do"

    def _plan(self) -> ReservedPlan:
        assert self.best is not None
        return self.best.plan or make_plan(self.t, self.best.counts, self.best.found)

    def _reserved_usd(self, counts: Array) -> float:
        return float(counts @ self.t.column_usd_per_month) if len(counts) else 0.0

    def _offer(self, point: _Point) -> None:
        if point.found is not None and point.found.short(self.t) > 0:
            return  # cut short before every row was served
        if self.best is None or point.value < self.best.value:
            self.best = point
            self.record()

    def _start(self, oracle: RowByRow) -> bool:
        """A point to cut at first, and duals: the relaxation over a few rows, from calm to busy; whether it ended."""
        t, few = self.t, []
        for q in range(t.quarters):
            rows = np.flatnonzero(t.quarter == q)
            order = rows[np.argsort(t.demand[rows].sum(axis=1), kind="stable")]
            few.append(order[np.linspace(0, len(order) - 1, max(2, START_ROWS // t.quarters)).astype(np.intp)])
        rows = np.concatenate(few)
        part = t.over(rows, t.weight[rows] / t.weight[rows].sum())
        run, groups = _ExactRun(self.problem, part, replace(self.options, on_event=None)), row_groups(part)
        run.target, run.soft, run.heuristics_due = max(START_GAP, self.target), True, False
        left = self.left()
        run.until = None if left is None else time.perf_counter() + START_SHARE * left
        run.oracle = RowByRow(part, groups, self.options.seed)
        run.oracle.costs = oracle.costs
        run.master = CommitmentMaster(part, int(groups.max()) + 1, self.options)
        status = run._relaxation(whole=False)
        if run.inside is not None and not oracle.violated(t.reserved(run.inside.counts), 1):
            self.inside = self._cut_at(oracle, run.inside.counts)
        self.log["start_seconds"] = time.perf_counter() - self.clock
        return status == "optimal"

    def _relaxation(self, whole: bool = True) -> str:
        """Cut the LP relaxation until no hard cut is violated and θ is within a fifth of the target; round its end."""
        t, rounds = self.t, 0
        last = np.zeros(len(t.column_sink))
        self.master.integers(on=False)
        started = False
        if isinstance(self.oracle, RowByRow) and self.soft and len(t.demand) > 4 * START_ROWS:
            started = self._start(self.oracle)
        # What costs no more and needs no more has cuts that are valid here, by matrix products.
        free = None
        if not started and isinstance(self.oracle, RowByRow) and t.friction:
            free = _listed(t.without_friction(), self.oracle.groups)
            free = None if free is None or free.sets * len(t.demand) > FREE_CELLS else free
        for oracle in (self.oracle,) if free is None else (free, self.oracle):
            if self.inside is not None and free is not None:
                self.inside = self._cut_at(oracle, self.inside.counts)
            self.state = ()
            while not self.nothing_new():
                rounds += 1
                status, x, bound = self.master.solve(0.0, self.left())
                if status == "infeasible":
                    return "infeasible"
                if x is None:
                    return "limit"
                if self.out_of_time():
                    if self.inside is not None:
                        self._round(self.inside.counts)
                    return "limit"
                self.lower = max(self.lower, bound or 0.0)
                if self.due():
                    if self.inside is not None:
                        self._round(self.inside.counts)
                    self.heuristics()
                hard = oracle.violated(t.reserved(x))
                if hard:
                    self.master.add(hard)
                    continue
                last = x
                if not self.soft:
                    break
                # In-out: cut between the best point so far and the master's, and at the master's if that leaves it.
                cuts = self._look(oracle, x if self.inside is None else (self.inside.counts + x) / 2)
                if not self._cuts_off(cuts, x, bound or 0.0):
                    self._look(oracle, x)
                if self.inside is not None and self._close(self.inside.value):
                    break
        self.log["relaxation_rounds"] = rounds
        self.log["relaxation_usd_per_month"] = self.lower
        self.log["relaxation_seconds"] = time.perf_counter() - self.clock
        if whole:
            self._round(self.inside.counts if self.inside is not None else last)
        return "optimal"

    def _look(self, oracle: Oracle, counts: Array) -> list[OracleCut]:
        found = self._cut_at(oracle, counts)
        if self.inside is None or found.value < self.inside.value:
            self.inside = found
        return found.cuts

    def _cut_at(self, oracle: Oracle, counts: Array) -> _Point:
        """Cost of reservations, by some oracles an estimate, with its cuts added to the master."""
        cost = oracle.cost(self.t.reserved(counts))
        self.master.add(cost.cuts)
        return _Point(self._reserved_usd(counts) + cost.usd_per_month, counts, cost.cuts)

    def _settle(self, counts: Array) -> _Point:
        """Cost of whole reservations, with its cuts added to the master: exact, or what half of the time left makes."""
        if not self.soft:
            return _Point(self._reserved_usd(counts), counts)
        left = self.left()
        until = None if left is None else time.perf_counter() + left / 2
        cost, found = self.oracle.dispatched(self.t.reserved(counts), until)
        self.master.add(cost.cuts)
        return _Point(self._reserved_usd(counts) + cost.usd_per_month, counts, cost.cuts, found)

    def _close(self, value: float) -> bool:
        return value - self.lower <= max(0.2 * self.target * abs(value), NOTHING_USD)

    def _cuts_off(self, cuts: list[OracleCut], x: Array, bound: float) -> bool:
        """Whether new cuts exclude the master's point x at its claimed hourly cost."""
        machines = self.t.reserved(x)
        claimed = bound - self._reserved_usd(x)
        forced = sum(max(0.0, c.constant - float(c.slope @ machines[:, c.quarter])) for c in cuts)
        return forced > claimed + 1e-9 * max(1.0, abs(bound))

    def _round(self, x: Array) -> None:
        """Offer the best whole reservations next to a fractional point: the integer master, cut where it errs."""
        steps, minimum = x / self.t.column_step, self.t.column_minimum / self.t.column_step
        below, above = np.floor(steps + 1e-6), np.ceil(steps - 1e-6)
        self.master.integers(on=True)
        self.master.between(np.where(below < minimum, 0.0, below), np.maximum(above, np.where(above > 0, minimum, 0.0)))
        for _ in range(ROUNDINGS):  # while that makes the plan better
            before = np.inf if self.best is None else self.best.value
            left = self.left()
            seconds = ROUNDING_S if left is None else min(ROUNDING_S, max(ROUNDING_LEAST_S, ROUNDING_SHARE * left))
            _, counts, bound = self.master.solve(ROUNDING_GAP, seconds)
            if counts is None or (bound or 0.0) >= (1 - ROUNDING_GAP) * before:
                break
            hard = self.oracle.violated(self.t.reserved(counts), 1)
            self.master.add(hard)
            if not hard:
                self._offer(self._settle(counts))
            if self.out_of_time() or not (hard or (self.best is not None and self.best.value < before)):
                break
        self.master.between()
        self.master.integers(on=False)

    def _gap(self, lower: float | None = None) -> float:
        lower = self.lower if lower is None else lower
        return np.inf if self.best is None else (self.best.value - lower) / max(abs(self.best.value), 1e-9)

    def _integers(self) -> str:
        """Solve the integer master, check, cut, repeat. With near-integral rows a bound needs two runs."""
        rounds = 0
        if self._gap() <= self.target:
            return "optimal"
        self.master.drop_slack()
        self.master.integers(on=True)
        flows_due = flow_variables(self.t) <= FEW_FLOWS
        tried: set[bytes] = set()  # by further runs
        inner = 0.3 * self.target
        self.state = ()

        def seconds() -> float | None:
            left = self.to_turn()
            return min(FLOWS_SECONDS, np.inf if left is None else left) if flows_due else left

        while not self.out_of_time():
            rounds += 1
            most, near_integral = seconds(), self.master.session.near_integral
            status, x, bound = self.master.solve(inner, most / 2 if near_integral and most is not None else most)
            if status == "infeasible":
                return "infeasible"
            stuck = status == "limit"
            model = self.master.session.compiled() if self.master.session.near_integral else None
            if model is None:
                self.lower = max(self.lower, bound or 0.0)
            if x is not None:
                self._take(x)
            higher = bound is not None and bound > self.lower
            if model is not None and higher and (stuck or self._gap(bound) <= self.target):
                other, bound = self.master.agreed(model, inner, seconds())
                self.lower, stuck = max(self.lower, bound or 0.0), True
                if other is not None and other.tobytes() not in tried:
                    tried.add(other.tobytes())
                    self._take(other)
                    stuck = False
            self.record()
            stuck = self.nothing_new() or stuck
            if self._gap() > self.target and flows_due and (stuck or rounds >= FEW_ROUNDS):
                stuck = flows_due = False
                if self._by_flows() == "infeasible":
                    return "infeasible"
            if self._gap() > self.target and (self.due() or (stuck and self.heuristics_due)):
                stuck = False
                self.heuristics()
            if self._gap() <= self.target or stuck:
                break
        self.log["integer_rounds"] = rounds
        return "optimal" if self.best is not None else "limit"

    def _take(self, x: Array) -> None:
        """Cut reservations off where they are too few, or offer them, with cuts on their cost."""
        x = np.round(x / self.t.column_step) * self.t.column_step
        hard = self.oracle.violated(self.t.reserved(x))
        self.master.add(hard)
        if self.soft or not hard:
            found = self._settle(x)
            if not hard:
                self._offer(found)

    def _by_flows(self) -> str:
        """The flow model of a small instance as it stands, for half of the time that is left at most."""
        left = self.left()
        seconds = FLOWS_SECONDS if left is None else min(FLOWS_SECONDS, max(0.01, left / 2))
        options = replace(self.options, time_limit=seconds, gap=0.3 * self.target, on_event=None)
        try:
            solved, counts, _, _ = solve_flows(self.t, options, None if self.best is None else self.best.counts)
        except SolverError:  # the cuts go on
            return "limit"
        self.log["flow_model"] = solved.status
        if solved.bound is not None:
            self.lower = max(self.lower, solved.bound)
        if counts is not None:
            self._offer(self._settle(counts))
        return "infeasible" if solved.status == "infeasible" else "limit"

    def _closest_to_users(self, oracle: Projection, rounds: int = 12) -> None:
        """Among plans of the same cost, the one that serves most requests where they arise (SK §2.2's insight).

        Locally served load of a region is concave and piecewise linear in its machines: tangents over its demand.
        """
        if self.best is None:
            return
        began, value = time.perf_counter(), self.best.value
        self.log["local_rounds"] = 0
        for _ in range(rounds):
            spent = time.perf_counter() - began
            left = self.left()
            seconds = min(CLOSEST_SECONDS - spent, np.inf if left is None else left)
            if seconds <= 0:
                return
            if not self.log["local_rounds"]:
                self.master.prefer_local(oracle, value)
                self.master.integers(on=True)  # they are not where a rounding met the relaxation's bound
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
                self.best = _Point(self._reserved_usd(x) + found.usd_per_month, x)
                return


def _slightly_less(machines: float) -> float:
    """Requirement of a hard cut: `SHORT` of it less, or a plan that other methods call enough is better than the bound.

    Whole numbers stay unchanged; so the solver need not tell them from near ones.
    """
    whole = round(machines)
    return whole if abs(machines - whole) <= WHOLE * max(1.0, abs(machines)) else machines - SHORT * abs(machines)


def _typical_usd(t: ReservedTables) -> float:
    """USD/month between the cheapest reservation and the dearest way to serve, or to forgo, one machine's requests."""
    reserved = t.column_usd_per_month[t.column_usd_per_month > 0]
    forgone = [t.penalty[i] / t.work[i, j] for i, j in np.argwhere(t.reach) if np.isfinite(t.penalty[i])]
    hourly = HOURS_PER_MONTH * np.concatenate([t.option_usd_per_hour, forgone])
    usd = np.concatenate([reserved, hourly[hourly > 0]])
    return float(np.sqrt(usd.min() * usd.max())) if len(usd) else 1.0


def _listed(t: ReservedTables, groups: Index) -> Projection | None:
    """The oracle over listed sets, where the problem has one."""
    sets = families(t.reach) if t.pure is not None and not t.egress.any() else None
    return None if t.pure is None or sets is None else Projection(t, *t.pure, sets, groups)


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
