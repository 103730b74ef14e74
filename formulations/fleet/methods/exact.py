"""The method ``exact``: dominance pruning, the MILP by HiGHS, column generation where the table is too large.

A plan has the shadow price of each binding limit, an infeasible instance which limits cannot hold together
(`optmodels.study.explanation.named`). `column_pruning` is the MILP on few points.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from formulations.fleet.making import FleetChoice, make_plan
from formulations.fleet.methods import benders, heuristics, pools
from formulations.fleet.methods import columns as fleet_columns
from formulations.fleet.methods.scenarios import scenarios as of_scenarios
from formulations.fleet.model import FleetModel
from formulations.fleet.plan import FleetPlan, ShadowPrice, objective_value
from formulations.fleet.points import BOTH, FleetTables, build_case, changes_matter, prune
from formulations.fleet.problem import Fleet
from optmodels.engine.stages import DeploymentStages
from optmodels.formulation import Options
from optmodels.latency.strategies import FAMILIES
from optmodels.plans.outcome import Outcome
from optmodels.solver import Compiled, Report, Settings, solve_compiled
from optmodels.solver.deadline import seconds_for
from optmodels.solver.highs import PROVED, Event, Limit, Status, relative_gap
from optmodels.solver.otherwise import as_usual
from optmodels.study.explanation import named

MANY_PAIRS = 40_000  # (w, p) pairs beyond which columns are generated
ROUNDING = 1e-12  # of all requests/s: rounding of their sums
MOST_SHADOW_PRICES = 8  # limits solved again for theirs
MANY_PAIRS_APART = 5_000  # the same where stages are apart, beyond which cuts on counts are worth their programs
SOME_PAIRS = 150  # of points with several capacities, beyond which `pools` is quicker than HiGHS where it applies
WORTH = 1e-3  # of the cost: saving that a fleet with disaggregated stages needs before it is stated to pay
FIRST_FACTOR, LEAST_FACTOR = 0.5, 0.05  # on its prices that are tried
CLOSE = 1.01  # factor by which a proof may lie above a fleet's value
MOST_BREAK_EVEN_S = 10.0
MOST_SIMPLER_S = 5.0  # for each way to run a batch that a plan of equal cost may do without
QUICK_S = 5.0  # a model solved so fast is solved again for shadow prices; of others the relaxation is


@dataclass(frozen=True)
class _SolvedPart:
    report: Report
    compiled: Compiled
    model: FleetModel
    seconds: dict[str, float]
    by_pools: bool = False

    @property
    def choice(self) -> FleetChoice | None:
        """Counts and shares found."""
        return None if self.report.x is None else self.model.choice(self.report.x)


def _solve(
    problem: Fleet, tables: FleetTables, settings: Settings, start: FleetChoice | None, ratio: float = 0.0
) -> _SolvedPart:
    clock = time.perf_counter()
    model = FleetModel(problem, tables, ratio)
    built = time.perf_counter()
    compiled = model.compiled()
    done = time.perf_counter()
    report = solve_compiled(compiled, settings, None if start is None else model.start({"n": start.n}))
    seconds = {"build": built - clock, "compile": done - built, "solve": time.perf_counter() - done}
    return _SolvedPart(report, compiled, model, seconds)


def exact(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """The optimum with its proof, and of equal plans a simple one."""
    if problem.scenarios is not None and len(tables.points):
        return of_scenarios(problem, tables, options)
    outcome = _proved(problem, tables, options)
    return outcome if options.answer_only else _simplest(problem, tables, options, outcome)


def _proved(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """Prune, build, solve by HiGHS; columns are generated where the table is too large; infeasibility is explained."""
    clock = time.perf_counter()
    pruned, counts = prune(tables)
    seconds = {"prune": time.perf_counter() - clock}
    log: dict[str, Any] = {"columns": counts}
    case = tables.case
    missing = {
        d.name: tables.blocked[d.name] for d in tables.demands
        if d.has_requests and d.name in tables.blocked and case.serve_at_least(case.workload(d.workload)) > 0
    }  # fmt: skip
    if missing:
        log["conflict"] = [f"{name}: {why}" for name, why in missing.items()]
        log["reason"] = "no operating point serves " + "; ".join(log["conflict"])
        return Outcome("infeasible", None, seconds=seconds, log=log)
    short = [w for w in tables.case.workloads if w.min_replicas and not _servable(pruned, w.name)]
    if short:
        log["conflict"] = [f"replicas for {w.name} at least {w.min_replicas}: no point can serve it" for w in short]
        log["reason"] = "; ".join(log["conflict"])
        return Outcome("infeasible", None, seconds=seconds, log=log)
    if not len(pruned.points):
        if (empty := _nothing(problem, pruned)) is not None:
            seconds["solve"] = time.perf_counter() - clock
            return Outcome("optimal", empty, objective_value(empty), None, seconds, log=log)
        log["reason"] = "no operating point serves any bucket"
        return Outcome("infeasible", None, seconds=seconds, log=log)
    parts = separate(problem, pruned)
    if problem.objective == "max_ce":
        outcome = _dinkelbach(problem, pruned, options, seconds, log)
    elif len(parts) > 1:
        outcome = _by_part(problem, pruned, parts, options, seconds, log)
    else:
        outcome = _one_part(problem, pruned, options, seconds, log)
    if isinstance(outcome.plan, FleetChoice):
        outcome = replace(outcome, plan=make_plan(pruned, outcome.plan))
    outcome = _no_worse_than_heuristics(problem, pruned, options, outcome)
    return outcome if options.answer_only else _with_what_stages_save(problem, tables, options, outcome)


def _simplest(problem: Fleet, tables: FleetTables, options: Options, outcome: Outcome[FleetPlan]) -> Outcome[FleetPlan]:
    """Among plans of equal objective one of the simplest ways to run a batch, in the order of `FAMILIES`.

    Tables keep of equal machines only the undominated points, so that they are made again for the simpler ones.
    """
    plan, families = outcome.plan, problem.strategies.families
    if outcome.status != "optimal" or plan is None or tables.case.points is not None:
        return outcome
    used = max((FAMILIES.index(d.family) for q in plan.periods for d in q.deployments if d.family), default=0)
    for most in sorted(k for k in map(FAMILIES.index, families) if k < used):
        seconds = seconds_for("a simpler plan of equal cost", MOST_SIMPLER_S)
        if not seconds:
            break
        allowed = tuple(f for f in families if FAMILIES.index(f) <= most)
        fewer = problem.model_copy(update={"strategies": problem.strategies.model_copy(update={"families": allowed})})
        simpler = build_case(replace(tables.case, problem=fewer))
        found = _proved(fewer, simpler, replace(options, time_limit=seconds, answer_only=True, on_event=None)).plan
        if found is not None and not heuristics.better(problem, plan, found):
            binding = {line.name for q in found.periods for line in q.limits if line.binding}
            found.shadow_prices = [s for s in plan.shadow_prices if s.limit in binding]  # every point
            return replace(outcome, plan=found)
    return outcome


def _with_what_stages_save(
    problem: Fleet, tables: FleetTables, options: Options, outcome: Outcome[FleetPlan]
) -> Outcome[FleetPlan]:
    """The outcome with, in its log, whether disaggregated prefill and decode pay: the best fleet without, or a proof.

    A plan without stages that is optimal among all fleets proves that none with them is better. Where a limit stopped
    the search, the best fleet without may be better than the one found: it is the plan, then.
    """
    alone = tables.alone()
    if outcome.plan is None or alone is tables or not len(alone.points) or problem.certify != "none":
        return outcome  # of certified plans `certify.beside_whole` states it
    if any(q.transfers for q in outcome.plan.periods):
        seconds = seconds_for("the best fleet without stages", options.time_limit or 30.0)
        if not seconds:
            return outcome
        whole = problem.model_copy(update={"deployment": DeploymentStages()})
        other = exact(whole, alone, replace(options, time_limit=seconds, answer_only=True, on_event=None))
        known = None if outcome.status == "optimal" else other.plan
        if known is None or not heuristics.better(problem, known, outcome.plan):
            value = None if other.plan is None else objective_value(other.plan)
            without = {"status": other.status, "objective": value, "bound": other.bound}
            return replace(outcome, log=outcome.log | {"stages": {"used": True, "without": without}})
        outcome = _closed(replace(outcome, log=outcome.log | {"plan_by": "exact, without stages"}), known)
    stages: dict[str, Any] = {"used": False, "none_is_better": outcome.status == "optimal"}
    if outcome.status == "optimal" and outcome.plan is not None and problem.objective == "min_cost":
        stages |= {"pays_below": pays_below(problem, tables, options, objective_value(outcome.plan))}
    return replace(outcome, log=outcome.log | {"stages": stages})


def _closed(outcome: Outcome[FleetPlan], plan: FleetPlan) -> Outcome[FleetPlan]:
    """An outcome that a limit stopped, with this plan: optimal where that meets the bound."""
    value = objective_value(plan)
    if outcome.bound is None or abs(value - outcome.bound) > PROVED * abs(value):
        return replace(outcome, plan=plan, status="feasible")
    return replace(outcome, plan=plan, status="optimal", limit=None)


def pays_below(problem: Fleet, tables: FleetTables, options: Options, usd_per_hour: float) -> dict[str, float] | None:
    """The factor on the price of prefill and decode deployments below which a fleet with them is cheaper, and by proof.

    g(f), the least cost where deployments of one stage cost f times as much, is the minimum of a line for every fleet,
    whole + f·apart: concave, and never less at a larger f. Dinkelbach: the fleet of least cost at f gives the next f at
    which it would save exactly `WORTH`. So `found` only grows, and a fleet is known that pays there; at `none_from`
    the bound of g proves that none does, hence at no larger factor.

    Args:
        usd_per_hour: USD per hour of the best fleet, which has none of one stage.

    Returns:
        `found`, 0 where none is known, and `none_from`, 1 where nothing smaller is proved; None where there was no time
        or a budget counts such prices, too.
    """
    most = min(options.time_limit or MOST_BREAK_EVEN_S, MOST_BREAK_EVEN_S)
    seconds = seconds_for("the price at which stages apart pay", most)
    if not seconds or problem.budget_usd_per_hour is not None:
        return None
    until, goal, one = time.perf_counter() + seconds, usd_per_hour * (1 - WORTH), tables.points.stage != BOTH
    hours = np.array([q.hours for q in tables.case.periods])
    found, none_from, factor = 0.0, 1.0, FIRST_FACTOR
    while (left := until - time.perf_counter()) > 0 and factor < none_from:
        usd = np.where(one, factor, 1.0) * tables.points.usd_per_hour
        cheaper = replace(tables, points=replace(tables.points, usd_per_hour=usd))
        rough = replace(options, time_limit=left / 2, gap=2 * WORTH, answer_only=True, on_event=None)
        best = exact(problem, cheaper, rough)
        if best.bound is not None and best.bound >= goal:
            none_from, factor = factor, LEAST_FACTOR
            if found:
                break
            continue
        if best.plan is None or objective_value(best.plan) >= goal:
            break  # neither a fleet nor a proof
        paid = [sum(d.count * d.usd_per_hour_each for d in q.deployments if d.stage != "both")
                for q in best.plan.periods]  # fmt: skip
        apart = float(hours @ paid) / (float(hours.sum()) * factor)
        found = max(found, min((goal - objective_value(best.plan)) / apart + factor, 1.0))
        factor = max(found, factor) * CLOSE
    return {"found": found, "none_from": none_from}


def _no_worse_than_heuristics(
    problem: Fleet, tables: FleetTables, options: Options, outcome: Outcome[FleetPlan]
) -> Outcome[FleetPlan]:
    """Where a limit stopped the proof, the best known plan: a heuristic's may be better, or the only one."""
    bound = outcome.bound
    if problem.objective == "max_served" and outcome.plan is not None and bound is not None:
        value, noise = objective_value(outcome.plan), ROUNDING * float(tables.rates.max(axis=0).sum())
        if 0.0 <= value <= noise:  # of requests/s: none may be served, or so few that the solver does not see them
            outcome = _with_best(problem, tables, options, outcome)
            assert outcome.plan is not None
            value = objective_value(outcome.plan)
        if abs(bound - value) <= noise:
            return replace(outcome, status="optimal", bound=value, limit=None)
    known = outcome.limit == "gap" and bound is not None
    if outcome.status not in ("feasible", "no_solution_found") or known:
        return outcome
    best = _with_best(problem, tables, options, outcome)
    if best.plan is outcome.plan or best.plan is None:
        return best
    return _closed(best, best.plan)


def _with_best(
    problem: Fleet, tables: FleetTables, options: Options, outcome: Outcome[FleetPlan]
) -> Outcome[FleetPlan]:  # fmt: skip
    """The outcome with the best plan of its own and the heuristics'."""
    began = time.perf_counter()
    best, log = outcome.plan, outcome.log
    for name, method in heuristics.METHODS.items():
        found = method(problem, tables, options).plan
        if found is not None and heuristics.better(problem, found, best):
            best, log = found, outcome.log | {"plan_by": name}
    seconds = outcome.seconds | {"heuristics": time.perf_counter() - began}
    return replace(outcome, plan=best, seconds=seconds, log=log)


def _nothing(problem: Fleet, tables: FleetTables) -> FleetPlan | None:
    """The plan that buys nothing, where that keeps all limits: none has to run, and nothing has to be served."""
    choice = heuristics.complete(problem, tables, [])
    if choice.n.any():
        return None
    plan = make_plan(tables, choice)
    return None if heuristics.broken(problem, tables, choice, plan) else plan


def _servable(tables: FleetTables, workload: str) -> bool:
    rows = [k for k, d in enumerate(tables.demands) if d.workload == workload]
    return not rows or bool(np.isfinite(tables.load[rows]).any())


def separate(problem: Fleet, tables: FleetTables) -> list[tuple[Any, Any]]:
    """Demands and points of parts that share neither points nor limits; one part unless the objective is a sum.

    Demands of one workload stay together.
    """
    coupled = len(tables.limits) > 0 or problem.budget_usd_per_hour is not None or problem.running is not None
    coupled |= len(tables.case.periods) > 1 and changes_matter(problem)
    coupled |= problem.reserve is not None and problem.reserve.survive_probability is not None
    whole = [(np.arange(len(tables.demands)), np.arange(len(tables.points)))]
    if coupled or problem.objective != "min_cost":
        return whole
    groups: dict[int, int] = {}
    of = {name: k for k, name in enumerate(dict.fromkeys(d.workload for d in tables.demands))}
    linked = np.zeros((len(of), len(tables.points)), dtype=bool)
    for w, d in enumerate(tables.demands):
        linked[of[d.workload]] |= np.isfinite(tables.load[w])
        groups[w] = of[d.workload]
    if problem.reserve is not None:  # points of a pool share their spare deployments
        for j in np.unique(tables.points.pool):
            pool = np.flatnonzero(tables.points.pool == j)
            linked[:, pool] |= linked[:, pool].any(axis=1, keepdims=True)
    parts = []
    for workloads, columns in fleet_columns.components(linked):
        inside = set(workloads.tolist())
        parts.append((np.array([w for w in groups if groups[w] in inside], dtype=np.intp), columns))
    return parts if sum(len(rows) for rows, _ in parts) == len(tables.demands) else whole


def _by_part(
    problem: Fleet, tables: FleetTables, parts: list[tuple[Any, Any]], options: Options, seconds: dict[str, float],
    log: dict[str, Any],
) -> Outcome[FleetPlan]:  # fmt: skip
    """Solve parts that share nothing one by one; cost and bound add up. A large part has more of the time."""
    began = time.perf_counter()
    pairs = np.array([np.isfinite(tables.load[np.ix_(rows, columns)]).sum() + 1.0 for rows, columns in parts])
    T, P = len(tables.case.periods), len(tables.points)
    n = np.zeros((T, P), dtype=np.intp)
    pieces: list[FleetChoice] = []
    statuses, bound, limit = [], 0.0, None
    size: dict[str, int] = {}
    for k, (rows, columns) in enumerate(parts):
        left = None if options.time_limit is None else options.time_limit - (time.perf_counter() - began)
        share = None if left is None else max(left, 0.1) * pairs[k] / pairs[k:].sum()
        part = tables.restricted(columns).of_demands(rows)
        mine: dict[str, float] = {}
        details: dict[str, Any] = {}
        content = (_content(problem, part), options.gap) if options.answer_only else None
        found = tables.memory.get(content)
        if found is None:
            asked = replace(options, time_limit=share, on_event=None)
            found = _one_part(problem, part, asked, mine, details, plain=True)
            if content is not None and found.status in ("optimal", "infeasible"):
                tables.memory.keep(content, found)
        for key, v in mine.items():
            seconds[key] = seconds.get(key, 0.0) + v
        for key, count in found.size.items():
            size[key] = size.get(key, 0) + count
        statuses.append(found.status)
        limit = limit or found.limit
        bound += found.bound if found.bound is not None else -math.inf
        if found.status == "infeasible":
            return Outcome("infeasible", None, None, found.limit, seconds, size, log | details)
        if not isinstance(found.plan, FleetChoice):
            continue
        n[:, columns] += found.plan.n
        pieces.append(replace(found.plan, w=rows[found.plan.w], p=columns[found.plan.p]))
        if options.on_event is not None:
            options.on_event(Event(time.perf_counter() - began, None, bound, 0))
    log["parts"] = len(parts)
    if len(pieces) < len(parts):  # the bounds of the parts stand, for the plan that a heuristic may have
        least = bound if math.isfinite(bound) else None
        return Outcome("no_solution_found", None, least, limit, seconds, size, log)
    choice = FleetChoice(n, *(np.concatenate([getattr(c, f) for c in pieces]) for f in ("t", "w", "p", "value")))
    plan = make_plan(tables, choice)
    proved = math.isfinite(bound) and plan.total_usd_per_hour - bound <= 1e-6 * plan.total_usd_per_hour
    return Outcome(
        "optimal" if proved or set(statuses) == {"optimal"} else "feasible", plan,
        bound if math.isfinite(bound) else None, None if proved else limit, seconds, size, log,
    )  # fmt: skip


def _content(problem: Fleet, part: FleetTables) -> bytes:
    """Everything that the answer to a part depends on; numbers of pools and exchanges count from its own first."""
    x = part.points
    same = {
        "objective", "reserve", "change", "periods", "interruptions", "deployment", "queueing", "engine", "max_load",
        "serving",
    }  # fmt: skip
    found = blake2b(problem.model_dump_json(include=same).encode())
    for w in part.case.workloads:
        found.update(w.model_dump_json(exclude={"requests"}).encode())
    arrays = [x.usd_per_hour, x.spot, x.unavailable, x.rho, x.slots, x.stage, part.load, part.rates, part.deadlines]
    arrays += [np.unique(of, return_inverse=True)[1] for of in (x.pool, x.exchange, x.model)]
    arrays += [a for a in (part.capacities, part.penalty, part.part_s, part.quality) if a is not None]
    for a in arrays:
        found.update(f"{a.shape}".encode() + np.ascontiguousarray(a).tobytes())
    return found.digest()


def _one_part(
    problem: Fleet, tables: FleetTables, options: Options, seconds: dict[str, float], log: dict[str, Any],
    plain: bool = False,
) -> Outcome[Any]:  # fmt: skip
    """One model, or column generation where that is too large; `plain`: the bare `FleetChoice`, no shadow prices."""
    began = time.perf_counter()
    pairs = int(np.isfinite(tables.load).sum()) * len(tables.case.periods)
    if pairs > MANY_PAIRS and fleet_columns.applies(problem):
        found = fleet_columns.solve(problem, tables, options, _restricted_milp, seconds, log)
        if found.plan is not None or found.status != "no_solution_found":
            return found
        log.pop("reason", None)
        log["column_generation"] = "no plan on few points: solved on all"

    def settings() -> Settings:
        """With the rest of the time."""
        spent = time.perf_counter() - began
        left = None if options.time_limit is None else max(options.time_limit - spent, 0.1)
        return Settings(left, options.gap, options.seed, on_event=options.on_event)

    first, relaxed, solved = None, -math.inf, None
    if problem.objective == "min_cost":
        alone = tables.alone()
        if len(alone.points):
            first, relaxed = heuristics.rounded_relaxation(problem, alone, settings().time_limit)
        apart = alone is not tables
        if apart:  # a plan over every point, but no bound on it
            relaxed, rows = -math.inf, np.flatnonzero(tables.points.stage == BOTH)
            if first is not None:
                first = fleet_columns.on_all(first, rows, tables)
        enough = SOME_PAIRS if len(tables.each_load) > 1 and as_usual() else MANY_PAIRS_APART if apart else math.inf
        if pairs > enough and pools.applies(problem):
            model = FleetModel(problem, tables)
            compiled = model.compiled()
            report = benders.solve(model, compiled, settings(), first, by_cuts=pairs > MANY_PAIRS_APART)
            if report is not None:
                solved = _SolvedPart(report, compiled, model, {"solve": report.seconds}, by_pools=True)
                first, relaxed = solved.choice or first, max(relaxed, report.bound or -math.inf)
    whole, kept = tables, np.arange(len(tables.points))
    if solved is None or _left_open(solved.report, options.gap):
        kept = _worth_their_price(problem, tables, first)
        if len(kept) < len(whole.points):
            tables = whole.restricted(kept)
            first = None if first is None else replace(first, n=first.n[:, kept])  # none of the others is in it
            log["points_within_the_cost_of_a_plan"] = len(kept)
        solved = _solve(problem, tables, settings(), first)
    seconds |= solved.seconds
    report_ = solved.report
    if report_.status in ("feasible", "no_solution_found") and math.isfinite(relaxed):
        bound = relaxed if report_.bound is None else max(relaxed, report_.bound)
        report_ = replace(report_, bound=bound, gap=relative_gap(report_.objective, bound))
    log |= {"solver": report_.message, "nodes": report_.nodes}
    if report_.status == "infeasible" and not options.answer_only:
        clock = time.perf_counter()
        log |= explain(solved, options)
        seconds["explain"] = time.perf_counter() - clock
    answer: Any = solved.choice
    if answer is not None and not plain:
        plan = make_plan(tables, answer)
        clock = time.perf_counter()
        if not options.answer_only:
            plan.shadow_prices = shadow_prices(solved, plan, settings())
        seconds["shadow_prices"] = time.perf_counter() - clock
        answer = plan
    elif answer is not None:
        answer = fleet_columns.on_all(answer, kept, whole)
    return Outcome(
        report_.status, answer, report_.bound, report_.limit, seconds, solved.compiled.size, log, report_.events
    )


def _left_open(report: Report, gap: float) -> bool:
    """Whether a search ended by itself without a plan within the gap: of extreme numbers no point is kept."""
    return report.x is None or (report.limit == "gap" and (report.gap is None or report.gap > max(gap, PROVED)))


def _worth_their_price(problem: Fleet, tables: FleetTables, first: FleetChoice | None) -> Any:
    """Points whose single deployment in the shortest period costs no more than a whole plan in hand.

    No cheaper plan has another one; without them prices are of one size, which the solver's tolerances need.
    """
    if first is None or problem.objective != "min_cost":
        return np.arange(len(tables.points))
    plan = make_plan(tables, first)
    if heuristics.broken(problem, tables, first, plan):
        return np.arange(len(tables.points))
    return _within(tables, plan.total_usd_per_hour)


def _within(tables: FleetTables, usd_per_hour: float) -> Any:
    """Points whose single deployment in the shortest period costs no more than that on average."""
    hours = np.array([q.hours for q in tables.case.periods])
    least = tables.points.usd_per_hour * hours.min() / hours.sum()
    return np.flatnonzero(least <= usd_per_hour * (1 + 1e-9))


def _restricted_milp(
    problem: Fleet, tables: FleetTables, settings: Settings, start: FleetChoice | None
) -> tuple[Report, FleetChoice | None, dict[str, float], dict[str, int]]:
    solved = _solve(problem, tables, settings, start)
    return solved.report, solved.choice, solved.seconds, solved.compiled.size


def _dinkelbach(
    problem: Fleet, tables: FleetTables, options: Options, seconds: dict[str, float], log: dict[str, Any]
) -> Outcome[FleetPlan]:
    """max N/D exactly: solve max N − q·D for q = the best ratio so far until nothing is better.

    If max N − q·D ≤ F for every fleet, and D ≥ D_min, then N/D ≤ q + F/D_min: the bound reported. The first q is a
    heuristic's ratio, or the largest that could be. Rounds are few (convergence is superlinear); after the 50th the
    bound stands as it is then.
    """
    began = time.perf_counter()
    best, bound, rounds = heuristics.greedy(problem, tables, options).plan, math.inf, 0
    cheapest = (
        float(tables.points.usd_per_hour.min())
        * float(min(q.hours for q in tables.case.periods))
        / sum(q.hours for q in tables.case.periods)
    )
    weights = np.array([tables.case.workload(d.workload).weight * d.tokens for d in tables.demands])
    hours = np.array([q.hours for q in tables.case.periods])
    most = 3600.0 * float(hours / hours.sum() @ tables.rates @ weights) / cheapest
    start: FleetChoice | None = None
    seconds |= {"build": 0.0, "compile": 0.0, "solve": 0.0}
    size: dict[str, int] = {}
    status: Status = "no_solution_found"
    limit: Limit | None = None
    while rounds < 50:
        left = None if options.time_limit is None else options.time_limit - (time.perf_counter() - began)
        if left is not None and left <= 0:
            limit = "time"
            break
        attained = best is not None
        ratio = most if best is None else best.tokens_per_usd
        if attained and ratio > 0:  # more USD/h than all tokens are worth at this ratio is in no better fleet
            kept = _within(tables, most * cheapest / ratio)
            tables = tables.restricted(kept)
            start = None if start is None else replace(start, n=start.n[:, kept])
        solved = _solve(problem, tables, Settings(left, min(options.gap, 1e-3), options.seed), start, ratio)
        rounds += 1
        for k, v in solved.seconds.items():
            seconds[k] += v
        size, r = solved.compiled.size, solved.report
        if r.status == "infeasible" and best is None:
            if (empty := _nothing(problem, tables)) is not None:  # nothing can run, and nothing has to be served
                return Outcome("optimal", empty, 0.0, None, seconds, size, log)
            log |= {} if options.answer_only else explain(solved, options)
            return Outcome("infeasible", None, None, None, seconds, size, log)
        if r.bound is not None:
            bound = min(bound, ratio + max(0.0, -r.bound) / cheapest)
        start = solved.choice
        if start is None:
            limit = r.limit
            if limit is None:
                log["reason"] = f"the solver gave up on the model: {r.message}"
            break
        plan = make_plan(tables, start)
        if best is None or plan.tokens_per_usd > best.tokens_per_usd:
            best = plan
        if attained and plan.tokens_per_usd <= ratio * (1 + 1e-9):
            limit = r.limit
            break
    if best is not None:
        proved = bound <= best.tokens_per_usd * (1 + 1e-6)
        status = "optimal" if proved else "feasible"
        limit = None if proved else (limit or "gap")
    log |= {"dinkelbach_rounds": rounds}
    return Outcome(
        status,
        best,
        bound if math.isfinite(bound) else None,
        limit,
        seconds,
        size,
        log,
    )


# --------------------------------------------------------------------------------------------- what binds, and why


def shadow_prices(solved: _SolvedPart, plan: FleetPlan, settings: Settings) -> list[ShadowPrice]:
    """The gain from one more unit of every binding stock, quota or budget."""
    if solved.report.status != "optimal" or len(solved.compiled.costs) > 1:
        return []
    model, limit_names = solved.model, solved.model.tables.limit_names
    binding = {line.name for q in plan.periods for line in q.limits if line.binding}
    rows, labels = model.positions("stock"), model.rows("stock").labels
    groups = {
        name: rows[labels[-1] == k]
        for k, name in enumerate(limit_names)
        if name in binding and labels and (labels[-1] == k).any()  # a limit on an unused resource has no row
    }
    groups = dict(list(groups.items())[:MOST_SHADOW_PRICES])
    if "budget" in binding:
        groups["budget"] = model.positions("within_budget")
    seconds = seconds_for("shadow prices", 10.0) if groups else 0.0
    if not seconds:
        return []
    exact_ = solved.seconds["solve"] <= QUICK_S

    def again(compiled: Compiled, settings: Settings) -> Report:
        by_pools = solved.by_pools and exact_
        found = benders.solve(model, compiled, settings, solved.choice, by_cuts=False) if by_pools else None
        return solve_compiled(compiled, settings) if found is None else found

    gains = named.gains(solved.compiled, groups, replace(settings, on_event=None, time_limit=seconds),
                        solved.report.objective if exact_ else None, again)  # fmt: skip
    return [ShadowPrice(limit=name, unit=_unit(name), gain=gain, exact=exact_) for name, gain in gains.items()]


def _unit(limit: str) -> str:
    if limit == "budget":
        return "USD/h"
    return {"gpus": "GPU", "vcpus": "vCPU", "engines": "engine"}.get(limit.rsplit(", ")[-1], "machine")


def explain(solved: _SolvedPart, options: Options) -> dict[str, Any]:
    """Buckets and limits that cannot hold together, for the log; with a budget among them, the least cost without."""
    model = solved.model
    problem, tables = model.problem, model.tables
    seconds = seconds_for("limits that cannot hold together", options.time_limit or 30.0)
    if not seconds:
        return {}
    log = named.conflict(solved.compiled, named.groups(model, model.words), seconds,
                         order=lambda words: (words.startswith("bucket "), words))  # fmt: skip
    if any(words.startswith("budget") for words in log.get("conflict", [])) and problem.objective == "min_cost":
        free = problem.model_copy(update={"budget_usd_per_hour": None})
        freed = replace(tables, case=replace(tables.case, problem=free))
        seconds = seconds_for("the least cost without the budget", 10.0)
        again = _solve(free, freed, Settings(seconds, 1e-4), None).report if seconds else None
        if again is not None and again.bound is not None:
            log["reason"] += f". Without the budget the cheapest fleet costs {again.bound:.4f} USD/h or more"
    return log


def column_pruning(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """The MILP on the cheapest points of the three configurations with the cheapest tokens for each bucket."""
    by_stage = [np.flatnonzero(tables.points.stage == k) for k in np.unique(tables.points.stage)]
    kept = [rows[heuristics.best_columns(tables.restricted(rows), 3)] for rows in by_stage]
    part = tables.restricted(np.concatenate([np.zeros(0, dtype=np.intp), *kept]))
    found = _proved(problem, part, options)
    status = {"optimal": "feasible", "infeasible": "no_solution_found"}.get(found.status, found.status)
    return replace(found, status=status, bound=None, limit=None)  # type: ignore[arg-type]
