"""A plan under more demand, slower engines and losses: what it still serves, and what a plan for that would cost.

Under latency factor g every second of an engine's step becomes g seconds. An operating point then meets its limits if
it kept limits 1/g as long before, and a request loads it g times as much: both are exact, since capacities and
latencies are proportional to the step time. The served share is the most that any routing of requests to the remaining
engines serves within the SLOs (`carried`). Requests beyond it are refused or late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from formulations.fleet.carried import CarriedModel, Engines, engines_of, scaled, tables_of
from formulations.fleet.certify import stretched
from formulations.fleet.methods import exact
from formulations.fleet.plan import FleetPlan
from formulations.fleet.points import DECODE, FleetTables
from formulations.fleet.problem import Fleet
from optmodels.formulation import Options
from optmodels.solver import Settings, solve_compiled

Array = npt.NDArray[np.float64]
ALL_SERVED = 1e-4  # of the requests: the gap of the solves
GAP = 1e-3  # of the plans for stressed demand
MARGINS = 4  # between none and the product of the largest factors


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
        draws: random scenarios for the frontier of margins: each workload's factor is uniform between the smallest and
            largest of `demand`, and the latency factor one of `latency`; 0: no frontier.
        seed: random seed of the draws.
        time_limit: seconds of each solve.

    Returns:
        ``usd_per_hour`` of the plan, ``scenarios`` (``demand``, ``latency``, ``lost``, ``attained``, ``worst``,
        ``worst_attained``, ``usd_per_hour`` and ``bound`` of a plan for it) and ``frontier`` (``margin``,
        ``usd_per_hour``, ``unserved``, ``worst``, ``kept``).
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
        frontier = _frontier(problem, p, slower, engines, demand, latency, draws, seed, time_limit)
    return {"period": p.periods[t].name, "usd_per_hour": p.periods[t].usd_per_hour, "scenarios": scenarios,
            "frontier": frontier}  # fmt: skip


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
    """Served share of all requests, and of the demand that is served least."""
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
    problem: Fleet, tables: FleetTables, factor: float, time_limit: float
) -> tuple[FleetPlan | None, float | None]:
    if problem.objective != "min_cost":
        return None, None
    plain = problem.model_copy(update={"certify": "none"})
    tables = scaled(tables, np.full(len(tables.demands), factor))
    tables = replace(tables, case=replace(tables.case, problem=plain))
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
    problem: Fleet, plan: FleetPlan, slower: Mapping[float, FleetTables], engines: Mapping[float, Engines],
    demand: Sequence[float], latency: Sequence[float], draws: int, seed: int, time_limit: float,
) -> list[dict[str, Any]]:  # fmt: skip
    """Plans with a margin on every rate, judged on random scenarios: cost next to the unserved share."""
    rng = np.random.default_rng(seed)
    base = slower[1.0]
    names = [w.name for w in base.case.workloads]
    of = np.array([names.index(d.workload) for d in base.demands])
    each = rng.uniform(min(demand), max(demand), (draws, len(names)))
    at = rng.integers(len(latency), size=draws)
    rows: list[dict[str, Any]] = []
    for margin in (None, *np.linspace(1.0, max(demand) * max(latency), MARGINS + 1)[1:].tolist()):
        if margin is None:
            made: FleetPlan | None = plan
        else:
            made, _ = _plan_for(problem, base, margin, time_limit)
        if made is None:
            continue
        lines = made.periods[0].deployments
        own = engines if margin is None else {g: engines_of(tables, lines) for g, tables in slower.items()}
        unserved = np.array([
            1.0 - _judged(slower[g], own[g], 0, each[i, of], time_limit)["attained"]
            for i in range(draws) for g in (latency[at[i]],)
        ])  # fmt: skip
        rows.append({
            "margin": margin, "usd_per_hour": made.total_usd_per_hour, "unserved": float(unserved.mean()),
            "worst": float(unserved.max()), "kept": float((unserved <= 2 * ALL_SERVED).mean()),
        })  # fmt: skip
    return rows
