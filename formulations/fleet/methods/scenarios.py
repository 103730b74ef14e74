"""The method ``exact`` with scenarios: machines are bought before the draw is known, requests are routed after it.

The linear relaxation is solved on few points. Points outside are priced by its duals: a point whose capacity would be
worth more than it costs joins. If none does, the duals, scaled down to the least cost of every point outside, bound
every fleet over the whole table. Counts come from diving in the relaxation. HiGHS then searches the points that a
better fleet may have; a fleet with another point costs at least the bound plus that point's reduced cost.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from formulations.fleet.making import make_plan
from formulations.fleet.model import FleetModel, drawn_of
from formulations.fleet.plan import FleetPlan, objective_value
from formulations.fleet.points import FleetTables, prune
from formulations.fleet.problem import Fleet
from optmodels.arrays import Array, Index
from optmodels.formulation import Options
from optmodels.plans.outcome import Outcome
from optmodels.solver import Compiled, Settings, solve_compiled
from optmodels.solver.highs import PROVED, Event, Limit, relative_gap
from optmodels.solver.safe import least_value
from optmodels.solver.session import Session
from optmodels.study.explanation import named

ROUNDS = 30
JOIN = 25  # points that join in a round
SEARCHED = 60  # points at most that branch and bound searches
WORTH = 1e-6  # relative, by which a point's capacity is worth more than it costs
SECONDS = 60.0
LEAST_LEFT = 0.15  # of the time limit, for a search of more points


def scenarios(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """The fleet of least cost over the draws, or with the unserved share asked for, and its proved bound."""
    began, limit = time.perf_counter(), options.time_limit or SECONDS
    tables, counted = prune(tables)
    log: dict[str, Any] = {"columns": counted}
    seconds: dict[str, float] = {}

    def left(part: float = 1.0) -> float:
        return max(part * (limit - (time.perf_counter() - began)), 0.05)

    kept, bound, reduced = _first(tables), -math.inf, np.zeros(len(tables.points))
    usd, known = tables.points.usd_per_hour, None
    for _ in range(ROUNDS):
        model = FleetModel(problem, tables.restricted(kept))
        compiled = model.compiled()
        plain = replace(compiled, integer=np.zeros_like(compiled.integer))
        session = Session(plain, Settings(left(0.6)))
        ended = session.run()
        if ended != "optimal":
            break
        duals = session.row_duals()
        worth = _worth(model, tables, duals)
        outside = np.setdiff1d(np.arange(len(tables.points)), kept)
        scale = float((usd[outside] / np.maximum(worth[outside], usd[outside])).min(initial=1.0))
        value = least_value(plain, plain.costs[0], scale * duals) + float(plain.offsets[0])
        if value > bound:
            bound, reduced = value, usd - scale * worth
            inner = plain.costs[0] - plain.A.T @ (scale * duals)
            reduced[kept] = np.maximum(inner[model.n.columns], 0.0)
        known = model, compiled, plain, session.values(), kept
        joins = outside[worth[outside] > usd[outside] * (1 + WORTH)]
        if not len(joins) or left() < 0.4 * limit:
            break
        kept = np.union1d(kept, joins[np.argsort(usd[joins] / worth[joins])[:JOIN]])
    seconds["relaxation"] = time.perf_counter() - began
    if known is None:
        return _none(problem, tables, options, compiled, ended, seconds, log)
    model, compiled, plain, relaxed, kept = known
    clock = time.perf_counter()
    found = _dive(model, compiled, plain, relaxed, left(0.5))
    seconds["diving"] = time.perf_counter() - clock
    clock = time.perf_counter()
    plan = None if found is None else make_plan(model.tables, model.choice(found))
    gap = None if plan is None else relative_gap(objective_value(plan), bound)
    nodes, message, most = 0, "relaxation and diving", SEARCHED
    events: tuple[Event, ...] = ()
    proved_bound = bound
    counts = np.zeros(len(tables.points))
    if found is not None:
        counts[kept] = model.n.of(found)
    while (gap is None or gap > options.gap) and left() > 0.1:
        best = math.inf if plan is None else objective_value(plan)
        inside = _searched(
            np.union1d(kept[model.n.of(relaxed) > 1e-6], np.flatnonzero(counts)), reduced, best - bound, most
        )
        smaller = FleetModel(problem, tables.restricted(inside))
        start = None if plan is None else smaller.start({"n": counts[inside][None]})
        asked = Settings(left(), options.gap, options.seed, on_event=options.on_event)
        report = solve_compiled(smaller.compiled(), asked, start)
        nodes, message, events = nodes + report.nodes, report.message, (*events, *report.events)
        others = np.setdiff1d(np.arange(len(tables.points)), inside)
        beyond = bound + float(reduced[others].min(initial=math.inf))
        if report.x is not None:
            better = make_plan(smaller.tables, smaller.choice(report.x))
            if plan is None or objective_value(better) < objective_value(plan):
                plan, counts = better, np.zeros(len(tables.points))
                counts[inside] = smaller.n.of(report.x)
        log["points_searched"] = len(inside)
        if report.bound is not None:
            proved_bound = max(proved_bound, min(report.bound, beyond))
        gap = None if plan is None else relative_gap(objective_value(plan), proved_bound)
        if report.bound is None or beyond >= report.bound or left() < LEAST_LEFT * limit:
            break  # no point that was left out holds the bound down, or no time
        most *= 2
    bound = proved_bound
    seconds["branch_and_bound"] = time.perf_counter() - clock
    log |= {"solver": message, "nodes": nodes, "points_of_the_relaxation": len(kept)}
    if plan is None:
        return Outcome("no_solution_found", None, bound, "time", seconds, compiled.size, log)
    gap = relative_gap(objective_value(plan), bound)
    proved = gap is not None and gap <= PROVED
    stop: Limit | None = None if proved else "gap" if gap is not None and gap <= options.gap else "time"
    return Outcome("optimal" if proved else "feasible", plan, bound, stop, seconds, compiled.size, log, events)


def _first(tables: FleetTables) -> Index:
    """For each demand and machine type the cheapest point a request."""
    usd = tables.points.usd_per_hour[None] * tables.load  # (W, P)
    main = np.asarray(tables.use.argmax(axis=1)).ravel()
    kept: set[int] = set()
    for w in range(len(usd)):
        order = np.argsort(usd[w], kind="stable")
        order = order[np.isfinite(usd[w, order])]
        _, first = np.unique(main[order], return_index=True)
        kept |= set(order[np.sort(first)[:4]].tolist())
    return np.array(sorted(kept), dtype=np.intp)


def _worth(model: FleetModel, tables: FleetTables, duals: Array) -> Array:
    """USD/h that one deployment of each point is worth at most, (P,): it earns less than it costs if it is outside.

    A capacity row's multiplier may be any π ≥ 0 with λ·l·π at least the dual of every demand. One capacity q alone is
    enough in each draw, so the least over q bounds it.
    """

    def dual(family: str) -> Array:
        return np.asarray(duals[model.positions(family)])

    each, rates = tables.each_load, model.rates  # (Q, W, P), (T, W)
    draws = tables.case.draws
    assert draws is not None
    drawn, slower = drawn_of(tables, draws)
    value = np.zeros((1 + len(drawn), len(tables.demands)))
    t, w = (np.asarray(x) for x in model.rows("demand_met").labels)
    value[t, w] = dual("demand_met")
    c, w = (np.asarray(x) for x in model.rows("drawn_served").labels)
    value[1 + c, w] = dual("drawn_served")
    value = np.maximum(value, 0.0)
    every = np.concatenate([rates, drawn])
    factor = np.concatenate([np.ones((1, slower.shape[1])), slower])
    total = np.zeros(slower.shape[1])
    able = np.isfinite(tables.load)
    for k in range(len(every)):
        on = np.flatnonzero((value[k] > 0) & (every[k] > 0))
        if not len(on):
            continue
        load = each[:, on] * every[k, on][None, :, None] * factor[k]  # (Q, on, P)
        with np.errstate(divide="ignore", invalid="ignore"):
            need = np.where(able[on][None], value[k, on][None, :, None] / load, 0.0)
        need = np.where(np.isnan(need), 0.0, need)
        total += need.max(axis=1).min(axis=0)
    rows = model.rows("stock")
    if rows.labels and len(model.positions("stock")):
        limit = np.zeros(len(tables.limits))
        np.add.at(limit, np.asarray(rows.labels[-1]), dual("stock"))
        total += np.asarray(tables.takes @ limit)
    for family in ("within_budget",):
        if len(model.positions(family)):
            total += tables.points.usd_per_hour * float(dual(family).sum())
    if len(model.positions("min_replicas")):
        for i, y in zip(np.asarray(model.rows("min_replicas").labels[-1]), dual("min_replicas"), strict=True):
            name = tables.case.workloads[i].name
            mine = [k for k, d in enumerate(tables.demands) if d.workload == name]
            total += y * able[mine].any(axis=0)
    return np.where(np.isfinite(total), total, np.inf)


def _dive(model: FleetModel, compiled: Compiled, plain: Compiled, x: Array, seconds: float) -> Array | None:
    """Counts fixed one after the other, the one closest to a whole number first; up where down is infeasible."""
    until = time.perf_counter() + seconds
    session = Session(plain, Settings(seconds, options={"solver": "simplex"}))
    columns = model.n.columns
    lower, upper = plain.lower[columns].copy(), plain.upper[columns].copy()
    if session.run() != "optimal":
        return None
    x = session.values()
    while time.perf_counter() < until:
        n = x[columns]
        whole = np.abs(n - np.round(n)) <= 1e-6
        if whole.all():
            break
        free = np.flatnonzero(~whole)
        zero = np.flatnonzero(whole & (n < 0.5) & (upper > 0.5) & (lower < 0.5))
        upper[zero] = 0.0  # points that the relaxation leaves out stay out
        at = free[np.argmin(np.ceil(n[free]) - n[free])]
        lower[at] = upper[at] = np.ceil(n[at])
        session.set_column_bounds(columns, lower, upper)
        if session.run() != "optimal":
            lower[at], upper[at] = 0.0, np.floor(n[at])
            session.set_column_bounds(columns, lower, upper)
            if session.run() != "optimal":
                return None
        x = session.values()
    n = np.round(x[columns])
    if np.abs(x[columns] - n).max() > 1e-6:
        n = np.ceil(x[columns] - 1e-6)
    session.set_column_bounds(columns, n, n)
    if session.run() != "optimal":
        return None
    x = session.values()
    x[columns] = n
    return x


def _searched(used: Index, reduced: Array, room: float, most: int) -> Index:
    """Points that a cheaper fleet may have, by reduced cost, at most `most`; those in use are among them."""
    rest = np.setdiff1d(np.flatnonzero(reduced < room), used)
    rest = rest[np.argsort(reduced[rest], kind="stable")]
    return np.union1d(used, rest[: max(most - len(used), 0)])


def _none(
    problem: Fleet, tables: FleetTables, options: Options, compiled: Compiled, ended: str, seconds: dict[str, float],
    log: dict[str, Any],
) -> Outcome[FleetPlan]:  # fmt: skip
    """No relaxation: infeasible with every point, or no time."""
    if ended == "infeasible":
        whole = FleetModel(problem, tables)
        report = solve_compiled(whole.compiled(), Settings(options.time_limit or SECONDS, options.gap))
        if report.status == "infeasible":
            log |= named.conflict(
                whole.compiled(), named.groups(whole, whole.words), 10.0,
                order=lambda words: (words.startswith("bucket "), words),
            )  # fmt: skip
            return Outcome("infeasible", None, None, None, seconds, compiled.size, log)
        if report.x is not None:
            plan = make_plan(tables, whole.choice(report.x))
            return Outcome(report.status, plan, report.bound, report.limit, seconds, compiled.size, log)
    return Outcome("no_solution_found", None, None, "time", seconds, compiled.size, log)
