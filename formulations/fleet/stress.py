"""A plan under more demand, slower engines and losses: the share still served, and the cost of a plan for that
scenario.

Under latency factor g every second of an engine's step becomes g seconds. An operating point then meets its limits if
it kept limits 1/g as long before, and a request loads it g times as much: both are exact, since capacities and
latencies are proportional to the step time. The served share is the most that any routing of requests to the remaining
engines serves within the SLOs (`carried`). Requests beyond it are refused or late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from formulations.fleet.carried import CarriedModel, Engines, engines_of, scaled, tables_of
from formulations.fleet.certify import stretched
from formulations.fleet.methods import exact
from formulations.fleet.plan import FleetPlan
from formulations.fleet.points import DECODE, FleetTables
from formulations.fleet.problem import Fleet
from formulations.fleet.recourse import refused
from formulations.fleet.scenarios import Draws, draws_of
from optmodels.arrays import Array
from optmodels.autoscaling.backtest import cost_at
from optmodels.formulation import Options
from optmodels.solver import Settings, solve_compiled

ALL_SERVED = 1e-4  # of the requests: the gap of the solves
GAP = 1e-3  # of the plans for stressed demand
MARGINS = 6  # between none and the largest factors
TRAINED = 100  # draws that plans are made for
LEVELS = (0.8, 0.95)  # quantiles of the rates
GAMMAS = (1, 2)  # machine types that are slow together
UNSERVED = (0.05, 0.02, 0.01, 0.005)  # that costs are compared at
ASKED = (*UNSERVED, 0.002)  # of the plans for draws
ROUNDS = 6


def stress(
    problem: Fleet, plan: Mapping[str, Any], demand: Sequence[float], latency: Sequence[float], lose: Sequence[str], *,
    draws: int = 0, seed: int = 0, time_limit: float = 10.0,
) -> dict[str, Any]:  # fmt: skip
    """Judge a plan in its busiest period.

    Args:
        problem: the instance.
        plan: plan of the instance, JSON data.
        demand: factors on all rates.
        latency: factors on all engine times.
        lose: kinds of losses: ``region`` (each in turn), ``machine`` (one deployment of each line), ``spot`` (all).
        draws: random draws that the frontier is judged on; 0: no frontier. They follow the instance's `scenarios`.
            Without them each workload's factor is uniform between the smallest and largest of `demand`, and the latency
            factor one of `latency`.
        seed: random seed of the draws.
        time_limit: seconds of each solve.

    Returns:
        ``usd_per_hour`` of the plan, ``scenarios`` (``demand``, ``latency``, ``lost``, ``attained``, ``worst``,
        ``worst_attained``, ``usd_per_hour`` and ``bound`` of a plan for it) and ``frontier`` (``kind`` of plan,
        ``setting``, ``usd_per_hour`` of machines, ``unserved`` share, ``worst``, ``kept``). ``cost_at_unserved``:
        USD/h of each kind at some unserved shares, on the line between neighbours of its frontier.
    """
    p = FleetPlan.model_validate(plan)
    base = tables_of(problem, p)
    t = int(np.argmax(base.rates.sum(axis=1)))
    lines = p.periods[t].deployments
    slower = {g: _slower(base, g, p.stretch) for g in dict.fromkeys((1.0, *latency))}
    engines = {g: engines_of(tables, lines) for g, tables in slower.items()}
    scenarios = [
        _judged(slower[g], engines[g], t, f, time_limit)
        | {"demand": f, "latency": g, "lost": None}
        | _planned(problem, slower[g], f, time_limit)
        for f in demand for g in latency
    ]  # fmt: skip
    for name, left in _losses(engines[1.0], lines, lose):
        row = _judged(slower[1.0], left, t, 1.0, time_limit)
        scenarios.append(row | {"demand": 1.0, "latency": 1.0, "lost": name, "usd_per_hour": None, "bound": None})
    frontier: list[dict[str, Any]] = []
    if draws and len(p.periods) == 1 and problem.objective == "min_cost":
        frontier = _frontier(problem, p, slower[1.0], demand, latency, draws, seed, time_limit)
    kinds = dict.fromkeys(r["kind"] for r in frontier if r["kind"] != "plan")
    at = {str(share): {kind: _cost_at(frontier, kind, share) for kind in kinds} for share in UNSERVED if frontier}
    return {"period": p.periods[t].name, "usd_per_hour": p.periods[t].usd_per_hour, "scenarios": scenarios,
            "frontier": frontier, "cost_at_unserved": at}  # fmt: skip


def _slower(tables: FleetTables, factor: float, stretch: float) -> FleetTables:
    """Tables of engines whose steps take `factor` times as long."""
    if factor == 1.0:
        return tables
    made = tables  # measured points have rates alone
    if tables.case.points is None:
        made = replace(stretched(tables, stretch / factor), stretch=tables.stretch)
    capacities = None if made.capacities is None else made.capacities * factor
    part = None if made.part_s is None else made.part_s * factor
    return replace(made, load=made.load * factor, capacities=capacities, part_s=part)


def _judged(
    tables: FleetTables, engines: Engines, t: int, factors: float | Array, time_limit: float
) -> dict[str, Any]:  # fmt: skip
    """Served share of the requests, and of the demand that is served least."""
    tables = scaled(tables, np.broadcast_to(np.asarray(factors, dtype=float), (len(tables.demands),)))
    rates = tables.rates[t]
    m = CarriedModel(tables, t, engines.kind, engines.counts, common=False)
    total = float(rates.sum())
    if not len(m.x):
        return {"attained": 0.0, "attained_bound": 0.0, "worst": tables.demands[0].name, "worst_attained": 0.0}
    report = solve_compiled(m.compiled(), Settings(time_limit, ALL_SERVED))
    served = np.zeros(len(rates))
    if report.x is not None:
        first = m.stage[m.x.labels[2]] != DECODE
        np.add.at(served, m.x.labels[1][first], m.x.of(report.x)[first])
    share = np.where(rates > 0, np.minimum(served, 1.0), 1.0)
    worst = int(share.argmin())
    return {
        "attained": float(rates @ share) / total,
        "attained_bound": 1.0 if report.bound is None else min(report.bound / total, 1.0),
        "worst": tables.demands[worst].name, "worst_attained": float(share[worst]),
    }  # fmt: skip


def _planned(problem: Fleet, tables: FleetTables, factor: float, time_limit: float) -> dict[str, Any]:
    """The cost of a plan that serves the stressed demand, with its bound."""
    plan, bound = _plan_for(problem, tables, factor, time_limit)
    return {"usd_per_hour": None if plan is None else plan.total_usd_per_hour, "bound": bound}


def _plan_for(
    problem: Fleet, tables: FleetTables, factor: float | Array, time_limit: float
) -> tuple[FleetPlan | None, float | None]:
    if problem.objective != "min_cost":
        return None, None
    plain = problem.model_copy(update={"certify": "none", "scenarios": None})
    tables = scaled(tables, np.broadcast_to(np.asarray(factor, dtype=float), (len(tables.demands),)))
    tables = replace(tables, case=replace(tables.case, problem=plain, draws=None))
    outcome = exact.exact(plain, tables, Options(time_limit=time_limit, gap=GAP, answer_only=True))
    return outcome.plan, outcome.bound


def _losses(engines: Engines, lines: Any, lose: Sequence[str]) -> list[tuple[str, Engines]]:
    """The engines after each loss, by its name."""
    found: list[tuple[str, Engines]] = []
    if "region" in lose:
        for region in dict.fromkeys(m.region for d in lines for m in d.machines):
            gone = [i for i, d in enumerate(lines) if any(m.region == region for m in d.machines)]
            found.append((f"region {region or 'of all machines'}", _without(engines, lines, gone)))
    if "machine" in lose:
        for kind in dict.fromkeys(engines.lines.tolist()):
            i = int(np.flatnonzero(engines.lines == kind)[0])
            d, count = lines[i], int(engines.counts[kind])
            what = " + ".join(f"{m.count}× {m.machine} ({m.market})" for m in d.machines)
            found.append((f"one of {count}: {what}, {d.model or d.loads or d.point}", engines.without(i, 1)))
    if "spot" in lose:
        gone = [i for i, d in enumerate(lines) if any(m.market == "spot" for m in d.machines)]
        if gone:
            found.append(("every spot machine", _without(engines, lines, gone)))
    return found


def _without(engines: Engines, lines: Any, gone: Sequence[int]) -> Engines:
    for i in gone:
        engines = engines.without(i, lines[i].count)
    return engines


def _frontier(
    problem: Fleet, plan: FleetPlan, tables: FleetTables, demand: Sequence[float], latency: Sequence[float], draws: int,
    seed: int, time_limit: float,
) -> list[dict[str, Any]]:  # fmt: skip
    """Plans of four kinds, judged on the same draws: cost next to the unserved share."""
    known, judged = (_draws(problem, tables, demand, latency, n, seed + k) for k, n in enumerate((TRAINED, draws)))
    names = np.array([d.workload for d in tables.demands])
    rows: list[dict[str, Any]] = []

    def add(kind: str, setting: float | None, made: FleetPlan | None) -> None:
        if made is None:
            return
        missed, total = refused(tables, counts_of(tables, made), judged, time_limit * 6)
        share = np.clip(missed / total, 0.0, 1.0)
        rows.append({
            "kind": kind, "setting": setting, "usd_per_hour": made.usd_per_hour, "unserved": float(share.mean()),
            "worst": float(share.max()), "kept": float((share <= 2 * ALL_SERVED).mean()),
        })  # fmt: skip

    add("plan", None, plan)
    slowest = max((float(x.max()) for x in judged.slow.values()), default=1.0)
    largest = max(float(np.quantile(x, 0.9)) for x in known.demand.values()) * slowest
    for margin in np.linspace(1.0, max(largest, 1.0 + 1e-9), MARGINS + 1)[1:].tolist():
        add("uniform margin", margin, _plan_for(problem, tables, margin, time_limit)[0])
    for level in LEVELS:
        each = {name: max(float(np.quantile(x, level)), 1.0) for name, x in known.demand.items()}
        factors = np.array([each[name] for name in names])
        add("margin by workload", level, _plan_for(problem, tables, factors, time_limit)[0])
        if any(float(x.max()) > 1.0 for x in known.slow.values()) and not _common(known):
            for gamma in GAMMAS:
                add(f"the same, {gamma} type{'s' * (gamma > 1)} slow", level,
                    _slow_types(problem, tables, each, known, gamma, time_limit))  # fmt: skip
    for share in ASKED:
        asked = replace(known, unserved=share, usd_per_1000=0.0)
        add("scenarios", share, _for_draws(problem, tables, asked, 3 * time_limit))
    return rows


def _cost_at(frontier: Sequence[Mapping[str, Any]], kind: str, share: float) -> float | None:
    """USD/h of a kind of plans at an unserved share; the plan given is one of each kind."""
    mine = [(1 - r["unserved"], r["usd_per_hour"]) for r in frontier if r["kind"] in ("plan", kind)]
    return cost_at(mine, 1 - share)


def _draws(
    problem: Fleet, tables: FleetTables, demand: Sequence[float], latency: Sequence[float], count: int, seed: int
) -> Draws:  # fmt: skip
    """Draws of the instance's scenarios, under another seed; without them uniform factors and one latency factor."""
    names = [w.name for w in tables.case.workloads]
    types = list(dict.fromkeys(r[0] for r in tables.resources))
    if problem.scenarios is not None:
        other = problem.scenarios.model_copy(
            update={"draws": count, "seed": problem.scenarios.seed + 7919 * (1 + seed)}
        )
        return draws_of(other, names, types)
    rng = np.random.default_rng(seed)
    each = rng.uniform(min(demand), max(demand), (count, len(names)))
    slow = np.array(latency)[rng.integers(len(latency), size=count)]
    return Draws(dict(zip(names, each.T, strict=True)), dict.fromkeys(types, slow))


def _common(draws: Draws) -> bool:
    """Whether all machine types are slow together."""
    every = list(draws.slow.values())
    return all(np.array_equal(x, every[0]) for x in every)


def _slow_types(
    problem: Fleet, tables: FleetTables, demand: Mapping[str, float], draws: Draws, gamma: int, time_limit: float
) -> FleetPlan | None:  # fmt: skip
    """The fleet of least cost that serves all if any `gamma` machine types are slow (Bertsimas and Sim's budget).

    Only types in use matter: the types of each plan join until none is new.
    """
    factor = max(float(x.max()) for x in draws.slow.values())
    sets: dict[tuple[str, ...], None] = {(): None}
    for _ in range(ROUNDS):
        slow = {r[0]: np.array([factor if r[0] in s else 1.0 for s in sets]) for r in tables.resources}
        each = {name: np.full(len(sets), f) for name, f in demand.items()}
        made = _for_draws(problem, tables, Draws(each, slow, 0.0), time_limit)
        if made is None:
            return None
        types = sorted({m.machine for d in made.periods[0].deployments for m in d.machines})
        new = [s for s in combinations(types, min(gamma, len(types))) if s not in sets]
        if not new:
            return made
        sets |= dict.fromkeys(new)
    return made


def _for_draws(problem: Fleet, tables: FleetTables, draws: Draws, time_limit: float) -> FleetPlan | None:
    """The plan for given draws."""
    from formulations.fleet.methods.scenarios import scenarios

    plain = problem.model_copy(update={"certify": "none"})
    drawn = replace(tables, case=replace(tables.case, problem=plain, draws=draws))
    return scenarios(plain, drawn, Options(time_limit=time_limit, gap=GAP, answer_only=True)).plan


def counts_of(tables: FleetTables, plan: FleetPlan) -> Array:
    """Deployments of each point in a plan of one period, (P,): of the same engines the point of the same level."""
    n, x = np.zeros(len(tables.points)), tables.points
    engines = engines_of(tables, plan.periods[0].deployments)
    for kind, d in zip(engines.lines, plan.periods[0].deployments, strict=True):
        mine = np.flatnonzero(engines.kind == kind)
        far = np.abs(x.slots[mine] - d.batch).astype(float)
        if d.engine is not None:
            far = far + np.abs(x.level[0, mine] - d.engine.step_s) + np.abs(x.level[1, mine] - d.engine.wait_s)
        n[mine[int(far.argmin())]] += d.count
    return n
