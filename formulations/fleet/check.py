"""Independent check of a fleet plan: from the instance and the plan alone.

Shares no code with tables, formulation or heuristics. Latencies are recomputed step by step as in the check of the
cost-efficiency plan, waiting from the Erlang B recursion, survival by adding up the binomial; loads, counts, shares,
costs, stock, quota, budget, spot shares, replicas, reserve, changes, the table of limits and every stated figure are
recomputed. Not recomputed is what `TRUSTED` lists.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from typing import Any

from formulations.fleet.check_certification import check_certification, cut_of
from formulations.fleet.check_engines import Models, check_engines, check_stages, loadable, over_time
from formulations.fleet.check_scenarios import check_scenarios
from formulations.fleet.plan import DeploymentLine, FleetPlan, PeriodLine, ShareLine
from formulations.fleet.problem import Demand, Fleet, FleetCase, FleetPoint, FleetSlo, FleetWorkload, StockLine
from optmodels.catalog.types import Machine
from optmodels.engine.continuous import Percentile
from optmodels.errors import InputError
from optmodels.plans.findings import Findings
from optmodels.plans.latencies import RecomputedRun, latencies
from optmodels.plans.outcome import CheckReport

SLACK = 1e-6
TRUSTED = {
    "plan.periods[].deployments[].service_cap_s": "any time at least the longest service may be planned for; the"
    " waiting stated is that of the one stated",
    "plan.periods[].deployments[].engine.step_s": "any step, wait and kind of wait may be planned for; every capacity,"
    " latency and setting that follows is recomputed",
    "plan.periods[].deployments[].engine.wait_s": "as step_s",
    "plan.periods[].deployments[].engine.place_wait_s": "as step_s",
    "plan.periods[].deployments[].engine.most_of_wait": "as step_s",
    "plan.certification.rounds": "of plans that are not in the document; the plan's own is simulated again",
    "plan.certification.bound_stretch": "of the bound: `optmodels check --prove` derives that of the model it names",
    "plan.certification.bound_stretch_alone": "as bound_stretch",
    "plan.certification.cuts": "what earlier rounds led to; that the plan keeps to them is checked",
    "report.not_out_of_sample": "why a replay is missing: a workload without a trace",
    "report.replayed_whole": "a replay of a long trace, of which the document has the busiest stretch; that its verdict"
    " fits the SLOs it names is checked",
    "log.stages": "a solve without stages apart, or at other prices",
    "plan.shadow_prices": "solving again shows what one more unit gains; sign, unit, limit and a ceiling are checked",
}

SOLVES = {  # with twice the gaps that they are solved to
    "the headroom": ("report.headroom", 0.01),
    "GPUs over time": ("report.over_time", 2e-3),
}


def is_open(path: str, part: Any) -> bool:
    """Whether the clock stopped a solve of the report before its gap: the headroom then has a bound further off."""
    if path != "report.headroom" or not isinstance(part, Mapping):
        return False
    factor, bound = part.get("factor"), part.get("bound")
    return isinstance(factor, float) and isinstance(bound, float) and bound > factor * (1 + SOLVES["the headroom"][1])


def check(problem: Fleet, plan: Mapping[str, Any]) -> CheckReport:
    """Verify a plan (as JSON data) against its instance."""
    found = Findings()
    p = found.read(FleetPlan, plan, "a fleet plan")
    if p is None:
        return found.report()
    case = problem.resolve()
    demands = {d.name: d for d in case.demands}
    found.require("objective is the problem's", p.objective == problem.objective, p.objective, problem.objective)
    found.require("routing is that of the measured hits", p.routing == case.routing, p.routing, case.routing)
    names = [q.name for q in p.periods]
    expected = [q.name for q in case.periods]
    if names != expected:
        found.require("periods are the problem's", False, names, expected)
        return found.report()
    models = _models(case)
    for q in p.periods:
        for d in q.deployments:
            line = cut_of(case, p, models, d)
            keep = 1.0 if line is None else line.keep
            if not _well_formed(found, problem, case, demands, models, d, f"{q.name}: {d.name}", keep):
                return found.report()
    total_hours = sum(q.hours for q in case.periods)
    machine = penalty = tokens = plain = served_all = rate_all = first = 0.0
    asked = {d.workload for d in case.demands if max(d.requests_per_s) > 0}
    top = min((w.priority for w in case.workloads if w.name in asked), default=1)
    lines: list[tuple[DeploymentLine, dict[str, list[float]]]] = []
    for t, q in enumerate(p.periods):
        share = case.periods[t].hours / total_hours
        found.close(f"{q.name}: hours", q.hours, case.periods[t].hours)
        cost = 0.0
        served = dict.fromkeys(demands, 0.0)
        late = 0.0
        for d in q.deployments:
            where = f"{q.name}: {d.name}"
            able: dict[str, list[float]] = {}
            cost += d.count * _deployment(found, problem, case, demands, models, t, d, where, p.stretch, able)
            lines.append((d, able))
            for s in d.serves:
                served[s.demand] += s.share if d.stage != "decode" else 0.0
                w = case.workload(demands[s.demand].workload)
                if s.misses_slo and w.soft is not None:
                    late += s.requests_per_s * 3.6 * w.soft.usd_per_1000_requests
        unserved_usd = 0.0
        rates = {name: demand.requests_per_s[t] for name, demand in demands.items()}
        rests = [u.demand for u in q.unserved]
        possible = len(set(rests)) == len(rests) and all(rates.get(name, 0.0) > 0 for name in rests)
        found.require(f"{q.name}: unserved demands each once, of this period", possible, rests, sorted(demands))
        for name, demand in demands.items():
            w = case.workload(demand.workload)
            rate = demand.requests_per_s[t]
            if rate <= 0:
                continue
            got = min(served[name], 1.0)
            found.at_most(f"{q.name}: share of {name} served", served[name], 1.0)
            least = _least(problem, w)
            if got < least - SLACK:
                found.add(f"{q.name}: {name} served", got, least)
            rest = next((u for u in q.unserved if u.demand == name), None)
            found.close(f"{q.name}: unserved share of {name}", rest.share if rest else 0.0, 1 - got, scale=1.0)
            if rest is not None:
                missed = (1 - got) * rate
                found.close(f"{q.name}: unserved requests/s of {name}", rest.requests_per_s, missed, "1/s", scale=rate)
                price = 3.6 * w.unserved_usd_per_1000_requests
                found.close(
                    f"{q.name}: cost of not serving {name}", rest.usd_per_hour, missed * price, "USD/h", rate * price
                )
            unserved_usd += (1 - got) * rate * 3.6 * w.unserved_usd_per_1000_requests
            tokens += share * got * rate * 3600 * demand.tokens * w.weight
            plain += share * got * rate * 3600 * demand.tokens
            served_all += share * got * rate
            rate_all += share * rate
            first += share * got * rate * w.weight if w.priority == top else 0.0
        demanded = sum(rates.values())
        answered = sum(rates[name] * min(served[name], 1.0) for name in demands)
        found.close(f"{q.name}: requests/s", q.requests_per_s, demanded, "1/s")
        found.close(f"{q.name}: requests/s served", q.served_requests_per_s, answered, "1/s", scale=demanded)
        found.close(f"{q.name}: cost", q.usd_per_hour, cost, "USD/h")
        check_stages(found, problem, case, demands, models, q, p.stretch)
        _reserve(found, problem, models, q)
        machine += share * cost
        penalty += share * (late + unserved_usd)
    change = _changes(found, problem, case, p)
    _limits(found, problem, case, demands, models, p)
    _shadow_prices(found, problem, p)
    _spot(found, problem, models, p)
    total = machine + penalty + change + check_scenarios(found, case, p, lines)
    for name, stated_value, true, unit in (
        ("cost of machines", p.usd_per_hour, machine, "USD/h"),
        ("penalties", p.penalty_usd_per_hour, penalty, "USD/h"),
        ("cost of changes", p.change_usd_per_hour, change, "USD/h"),
        ("total cost", p.total_usd_per_hour, total, "USD/h"),
        ("served share", p.served_share, served_all / rate_all if rate_all else 0.0, ""),
        ("tokens per USD", p.tokens_per_usd, tokens / total if total else 0.0, "tokens/USD"),
        ("served of the highest priority", p.first_priority_served_per_s, first, "requests/s"),
    ):  # fmt: skip
        found.close(name, stated_value, true, unit, scale=max(total, 1.0) if unit == "USD/h" else 1.0)
    values = {"min_cost": total, "max_ce": tokens / total if total else 0.0, "max_served": first}
    check_certification(found, problem, case, models, p, values[problem.objective])
    if plain > 0 and p.usd_per_million_tokens is not None:
        found.close("USD per million tokens", p.usd_per_million_tokens, total / plain * 1e6, "USD")
    else:
        same = (p.usd_per_million_tokens is None) == (plain <= 0)
        found.require("USD per million tokens where there are tokens", same, p.usd_per_million_tokens, plain)
    return found.report()


def _point(case: FleetCase, name: str | None) -> FleetPoint | None:
    """A measured point by name."""
    return _points(case)[0].get(name or "")


def _points(case: FleetCase) -> tuple[dict[str, FleetPoint], dict[str, set[str]]]:
    """The measured points by name, and the demands that each serves; indexed once per instance.

    A demand is served by a point of one stage where one of the other, with which it exchanges caches, completes it.
    """
    global _indexed
    if _indexed[0] is not case:
        points, known = case.points or (), {d.name for d in case.demands}
        equal = case.problem.deployment.link.tensor_parallel == "equal"
        pairs = [
            (x, (x.model, x.region, x.tp if equal else None), d)
            for x in points for d, rate in x.requests_per_s.items() if rate > 0 and d in known
        ]  # fmt: skip
        done = {(x.stage, exchange, d) for x, exchange, d in pairs}
        rest = {"both": "both", "prefill": "decode", "decode": "prefill"}
        serves: dict[str, set[str]] = {x.name: set() for x in points}
        for x, exchange, d in pairs:
            if (rest[x.stage], exchange, d) in done:
                serves[x.name].add(d)
        _indexed = case, ({x.name: x for x in points}, serves)
    return _indexed[1]


_indexed: tuple[FleetCase | None, tuple[dict[str, FleetPoint], dict[str, set[str]]]] = (None, ({}, {}))


def _least(problem: Fleet, w: FleetWorkload) -> float:
    if w.serve_at_least is not None:
        return w.serve_at_least
    return 0.0 if problem.objective != "min_cost" or w.unserved_usd_per_1000_requests > 0 else 1.0


def _models(case: FleetCase) -> Models:
    """The model that is loaded, by workload and model: architecture and precision, or the name of measured points.

    A line of a measured point names no workload.
    """
    if case.points is not None:
        labels = {m.label for w in case.workloads for m in w.models or ()}
        named = ["", *(w.name for w in case.workloads)]
        return {(name, label): label or "" for name in named for label in (None, *sorted(labels))}
    return {
        (w.name, None if w.models is None else m.label): shape.model_dump_json() + m.precision.model_dump_json()
        for w in case.workloads for m, shape in zip(w.accepts, case.accepted[w.name], strict=True)
    }  # fmt: skip


def _mean_score(case: FleetCase, models: Models, q: PeriodLine, w: FleetWorkload, t: int) -> float | None:
    """Mean score of a workload's answered requests, each counted where it is prefilled; None where there are none."""
    rates = {d.name: d.requests_per_s[t] for d in case.demands if d.workload == w.name}
    scores = {models[w.name, m.label]: m.quality or 0.0 for m in w.models or ()}
    answered = [
        (s.share * rates[s.demand], scores[models[d.loads or "", d.model]])
        for d in q.deployments if d.stage != "decode" for s in d.serves
        if s.demand in rates and models[d.loads or "", d.model] in scores
    ]  # fmt: skip
    requests = math.fsum(r for r, _ in answered)
    return math.fsum(r * score for r, score in answered) / requests if requests > 0 else None


def _well_formed(
    found: Findings, problem: Fleet, case: FleetCase, demands: Mapping[str, Demand], models: Models,
    d: DeploymentLine, where: str, keep: float,
) -> bool:  # fmt: skip
    """Requirements without which no figure can be recomputed; False stops the check.

    `keep` is the share of its load that certification leaves the line's point.
    """
    before = len(found.violations)
    q, s = problem.queueing, problem.strategies
    stated = (d.engine is not None) == problem.continuous
    found.require(f"{where}: engines exactly with continuous batching", stated, d.engine is not None, problem.serving)
    stages = problem.deployment.stages
    found.require(f"{where}: stage is allowed", d.stage in stages, d.stage, stages)
    levels = (problem.max_load * keep,) if q.model == "none" else tuple(x for x in q.load_levels if x < 1)
    found.require(f"{where}: load level", any(abs(d.load_level - x) < 1e-12 for x in levels), d.load_level, levels)
    for line in d.serves:
        found.require(f"{where}: demand is in the problem file", line.demand in demands, line.demand, "workload/bucket")
    if len({line.demand for line in d.serves}) != len(d.serves):
        found.add(f"{where}: each demand once", len(d.serves), len({line.demand for line in d.serves}))
    capped = (d.service_cap_s is None) == (q.model == "none")
    found.require(f"{where}: a longest service time exactly with queueing", capped, d.service_cap_s, q.model)
    roles = [m.role for m in d.machines]
    if case.points is not None:
        point = _point(case, d.point)
        found.require(f"{where}: measured point is in the problem file", point is not None, d.point, "a listed point")
        if point is not None:
            found.require(f"{where}: batch", d.batch == point.slots, d.batch, point.slots)
            split = d.tensor_parallel, d.attention_ranks, d.replicas_per_machine
            measured = point.tp, None, point.replicas_per_machine
            found.require(f"{where}: parallelism of its measured point", split == measured, split, measured)
            does, listed = (d.stage, d.model), (point.stage, point.model)
            found.require(f"{where}: stage and model of its measured point", does == listed, does, listed)
        found.require(f"{where}: machines of a measured point", roles == ["main"], roles, ["main"])
        claimed = [d.family, d.loads, d.passes]
        found.require(f"{where}: nothing modelled is claimed", claimed == [None, None, 1], claimed, None)
        for line in d.serves:
            figures = [line.alpha, line.ttft_s, line.tpot_s, line.itl_s, line.e2e_s]
            found.require(f"{where}: no latency is claimed of a measured point", figures == [None] * 5, figures, None)
        return len(found.violations) == before
    found.require(f"{where}: no measured point in this problem", d.point is None, d.point, None)
    loaded = (d.loads, d.model) in models
    found.require(f"{where}: a workload's model is loaded", loaded, (d.loads, d.model), sorted(map(str, models)))
    expected = ["main", "ao"] if d.family in ("ao", "ao_parallel", "ao_shared") else ["main"]
    found.require(f"{where}: machines of its family", roles == expected, roles, expected)
    batches, families = s.batches, s.families
    if problem.continuous:
        batches, families = () if d.engine is None else (d.engine.max_num_seqs,), ("high_end",)
    found.require(f"{where}: family is allowed", d.family in families, d.family, families)
    found.require(f"{where}: batch", d.batch in batches, d.batch, batches)
    pool = {(m.machine, m.region): m for m in case.machines}
    for m in d.machines:
        known = pool.get((m.machine, m.region))
        found.require(f"{where}: machine is in the pool", known is not None, m.machine, "a machine of the pool")
    regions = {m.region for m in d.machines}
    found.require(f"{where}: one region", len(regions) == 1, sorted(regions), 1)
    if len(found.violations) > before:
        return False
    bought = [m.count for m in d.machines]
    k = d.passes if d.family == "multi_pass" else bought[0]
    allowed = s.allowed(d.family) if d.family is not None else ()
    if problem.continuous:
        allowed = (1,)
    found.require(f"{where}: k, K, N or replicas allowed", k in allowed, k, allowed)
    right = {"multi_pass": [1], "ao_parallel": [k, k], "ao": [1, 1], "ao_shared": [k, 1]}.get(d.family or "", [k])
    found.require(f"{where}: number of machines", bought == right, bought, right)
    found.require(f"{where}: passes", d.family == "multi_pass" or d.passes == 1, d.passes, 1)
    tp, gpu_count = d.tensor_parallel, pool[d.machines[0].machine, d.machines[0].region].gpu_count
    found.require(f"{where}: TP is allowed", tp in s.tensor_parallel, tp, s.tensor_parallel)
    ranks, model = d.attention_ranks or 1, case.loading(d.loads, d.model).architectures[d.loads or ""]
    allowed_ranks = s.attention_ranks if model.routed else (1,)
    found.require(f"{where}: attention ranks are allowed", ranks in allowed_ranks, ranks, allowed_ranks)
    gpus = (tp or 0) * ranks * (d.replicas_per_machine or 0)
    found.require(f"{where}: TP × attention ranks × replicas = GPUs", gpus == gpu_count, gpus, gpu_count)
    heads = model.heads
    found.require(f"{where}: TP divides the heads", bool(tp) and heads % (tp or 1) == 0, tp, heads)
    offloads = d.family not in ("high_end", "multi_pass")
    low, high = (s.alpha.min, s.alpha.max) if offloads else (0.0, 0.0)
    for line in d.serves:
        inside = line.alpha is not None and low - 1e-9 <= line.alpha <= high + 1e-9
        found.require(f"{where}: α of {line.demand}", inside, line.alpha, (low, high))
        if d.engine is None:
            found.require(f"{where}: no ITL of {line.demand}", line.itl_s is None, line.itl_s, None)
        figures = [line.ttft_s, line.tpot_s, line.e2e_s]
        needed = {"both": figures, "prefill": figures[::2], "decode": figures[1:]}[d.stage]
        found.require(f"{where}: latencies of {line.demand} are stated", None not in needed, figures, "seconds")
    return len(found.violations) == before


def _deployment(
    found: Findings, problem: Fleet, case: FleetCase, demands: Mapping[str, Demand], models: Models,
    t: int, d: DeploymentLine, where: str, stretch: float, able: dict[str, list[float]],
) -> float:  # fmt: skip
    """Checks one line; returns the true USD/h of one deployment.

    With scenarios `able` gets the demands that the line serves within their limits, and the load of one request/s.
    """
    prices = {(m.machine, m.region): m for m in case.machines}
    q = problem.queueing
    each = 0.0
    point: FleetPoint | None = None
    if d.point is not None:
        point = _point(case, d.point)
        assert point is not None
        if point.usd_per_hour is not None:
            each = point.usd_per_hour
        else:
            each = point.count * (getattr(prices[point.machine, point.region].prices, point.market) or math.nan)
        bought = [(m.machine, m.region, m.market, m.count) for m in d.machines]
        own = [(point.machine or point.name, point.region, point.market, point.count)]
        found.require(f"{where}: machines", bought == own, bought, own)
        listed = prices.get((point.machine or point.name, point.region))
        price = None if listed is None else getattr(listed.prices, point.market)
        line = d.machines[0]
        each_true = each / point.count if price is None else price
        found.close(f"{where}: price of {line.machine}", line.usd_per_hour_each, each_true, "USD/h")
        hardware = (None, 1) if listed is None else (listed.gpu, listed.gpu_count)
        found.require(
            f"{where}: GPUs", (line.gpu, line.gpus_per_machine) == hardware, (line.gpu, line.gpus_per_machine), hardware
        )
        if q.model != "none":
            services = [point.slots / v for k, v in point.requests_per_s.items() if v > 0 and k in demands]
            cap = d.service_cap_s or 0.0
            known = any(abs(cap - x) <= SLACK * x for x in services) or (not services and cap == 0)
            found.require(f"{where}: longest service time is one of the point's", known, cap, services)
    else:
        for m in d.machines:
            listed = prices[m.machine, m.region]
            hardware = (listed.gpu, listed.gpu_count)
            found.require(
                f"{where}: GPUs", (m.gpu, m.gpus_per_machine) == hardware, (m.gpu, m.gpus_per_machine), hardware
            )
            allowed = problem.markets.main if m.role == "main" else problem.markets.ao
            found.require(f"{where}: market", m.market in allowed, m.market, allowed)
            price = getattr(listed.prices, m.market)
            found.close(
                f"{where}: price of {m.machine}", m.usd_per_hour_each, math.nan if price is None else price, "USD/h"
            )
            each += m.count * (price or 0.0)
    found.close(f"{where}: cost of one", d.usd_per_hour_each, each, "USD/h")
    if d.engine is not None:
        check_engines(found, problem, case, demands, models, t, d, where, stretch, able)
        return each
    factors = over_time(case, demands)
    if point is not None and case.draws is not None:
        for name, throughput in point.requests_per_s.items():
            if throughput > 0 and name in demands:
                e2e = point.slots / throughput
                if _in_time(problem, d, case.workload(demands[name].workload).slo, e2e):
                    able[name] = [f * e2e / (d.batch * d.load_level) for f in factors[name]]
    loads = [0.0] * len(next(iter(factors.values())))  # by piece of a trace
    longest = 0.0
    others = []  # shares of workloads that do not accept its model
    view = case.loading(d.loads, d.model)
    for s in d.serves:
        demand = demands[s.demand]
        w = case.workload(demand.workload)
        found.require(f"{where}: share of {s.demand}", 0 <= s.share <= 1 + SLACK, s.share, "0 … 1")
        found.close(f"{where}: requests/s of {s.demand}", s.requests_per_s, s.share * demand.requests_per_s[t], "1/s")
        if point is not None:
            throughput = point.requests_per_s.get(s.demand, 0.0)
            if throughput <= 0:
                found.add(f"{where}: sustains {s.demand}", 0.0, "requests/s > 0", "1/s")
                continue
            e2e = point.slots / throughput
            if q.model != "none":
                _slo(found, problem, d, s, w, demand, 0.0, None, e2e, where, measured=True)
            else:
                found.require(f"{where}: no waiting, no SLO missed", s.wait_s == 0 and not s.misses_slo, s.wait_s, 0)
        else:
            if not loadable(models, d, w.name):
                others.append(s.demand)
                continue
            ttft, tbt, e2e = _latencies(found, view, d, s, view.workload(w.name), demand, where)
            for label, stated, true in (("TTFT", s.ttft_s, ttft), ("TPOT", s.tpot_s, tbt), ("E2E", s.e2e_s, e2e)):
                found.close(
                    f"{where}: predicted {label} of {s.demand}", stated if stated is not None else math.nan, true, "s"
                )
            _slo(found, problem, d, s, w, demand, ttft, tbt, e2e, where)
        mine = s.share * demand.requests_per_s[t] * e2e / (d.batch * d.load_level)
        most = max(factors[s.demand])
        found.close(f"{where}: load by {s.demand}", s.load, most * mine, "deployments", scale=1.0)
        loads = [load + f * mine for load, f in zip(loads, factors[s.demand], strict=True)]
        longest = max(longest, e2e)
    found.require(f"{where}: serves workloads that accept its model", not others, others, d.loads)
    load = max(loads)
    found.at_most(f"{where}: load ≤ deployments", load, d.count, "deployments")
    found.close(f"{where}: utilisation", d.utilisation, load * d.load_level / d.count, scale=1.0)
    found.close(f"{where}: headroom", d.headroom, 1 - load / d.count, scale=1.0)
    if q.model != "none" and d.serves:
        found.at_most(f"{where}: service time ≤ what waiting is planned for", longest, d.service_cap_s or 0.0, "s")
    return each


def _latencies(
    found: Findings, case: FleetCase, d: DeploymentLine, s: ShareLine, w: FleetWorkload, demand: Demand, where: str
) -> tuple[float, float, float]:
    """Latencies of one bucket at the deployment's batch, by the single-workload check's own arithmetic."""
    main = next(m for m in d.machines if m.role == "main")
    ao = next((m for m in d.machines if m.role == "ao"), None)
    if d.family is None or s.alpha is None or d.tensor_parallel is None or d.replicas_per_machine is None:
        stated = f"{d.family}, {d.tensor_parallel}, {d.replicas_per_machine}, {s.alpha}"
        found.add(f"{where}: {s.demand}: family, parallelism, offload ratio", stated, "all of them stated")
        return math.nan, math.nan, math.nan
    one = case.single(w, demand, main.region, d.batch)
    try:
        inner = one.resolve()
    except InputError as error:
        found.add(f"{where}: {s.demand}", str(error), "a valid bucket")
        return math.nan, math.nan, math.nan
    pool = {m.machine: m for m in inner.machines}
    count = d.passes if d.family == "multi_pass" else main.count
    parts = count * d.replicas_per_machine
    run = RecomputedRun(
        d.family, -(-d.batch // parts), s.alpha, d.tensor_parallel, d.replicas_per_machine, d.passes, count
    )
    inner_found = Findings()
    try:
        true = latencies(inner_found, inner, run, pool[main.machine], pool[ao.machine] if ao else None)
    except (ArithmeticError, KeyError, ValueError) as error:
        found.add(f"{where}: {s.demand} can be served by this deployment", type(error).__name__, "latencies")
        return math.nan, math.nan, math.nan
    for v in inner_found.violations:
        found.add(f"{where}: {s.demand}: {v.requirement}", v.value, v.limit, v.unit)
    return true.ttft_s, true.tpot_s, true.e2e_s


def _slo(
    found: Findings, problem: Fleet, d: DeploymentLine, s: ShareLine, w: FleetWorkload, demand: Demand,
    ttft: float, tbt: float | None, e2e: float, where: str, measured: bool = False,
) -> None:  # fmt: skip
    """Latency limits with waiting at the planned load."""
    shown = w.slo.ttft_s if w.slo.ttft_s is not None else w.slo.deadline_s
    percentile = shown.percentile if isinstance(shown, Percentile) else None
    wait = _wait(problem, d.batch, d.load_level, d.service_cap_s or 0.0, percentile)
    found.close(f"{where}: waiting of {s.demand}", s.wait_s, wait, "s", scale=1e-3)
    up_to = w.soft.up_to if w.soft is not None and not measured else 1.0
    worst = 0.0
    for label, limit, base in (("TTFT", w.slo.ttft_s, ttft), ("deadline", w.slo.deadline_s, e2e)):
        if limit is None:
            continue
        value, seconds = _waited(problem, d, limit, base)
        worst = max(worst, value / seconds)
        found.at_most(f"{where}: {label} of {s.demand}", value, seconds * up_to, "s")
    if not measured:
        if w.slo.tpot_s is not None and tbt is not None:
            seconds = w.slo.tpot_s.at_most if isinstance(w.slo.tpot_s, Percentile) else w.slo.tpot_s
            worst = max(worst, tbt / seconds)
            found.at_most(f"{where}: TPOT of {s.demand}", tbt, seconds * up_to, "s")
        if w.slo.tps is not None:
            tps = d.batch * demand.tokens / e2e
            worst = max(worst, w.slo.tps / tps)
            found.at_most(f"{where}: TPS of {s.demand}", w.slo.tps, tps * up_to, "tokens/s")
    missed = w.soft is not None and not measured and worst > 1
    if not 0 < worst - 1 < SLACK:
        said = f"{where}: {s.demand} is said to miss its SLO exactly if it does"
        found.require(said, s.misses_slo == missed, s.misses_slo, missed)


def _waited(problem: Fleet, d: DeploymentLine, limit: float | Percentile, base_s: float) -> tuple[float, float]:
    """Seconds with waiting at the line's planned load, and their limits."""
    at_most, percentile = (limit.at_most, limit.percentile) if isinstance(limit, Percentile) else (limit, None)
    return base_s + _wait(problem, d.batch, d.load_level, d.service_cap_s or 0.0, percentile), at_most


def _in_time(problem: Fleet, d: DeploymentLine, slo: FleetSlo, e2e_s: float) -> bool:
    """Whether requests of a measured point that take this long unhindered may wait there, and keep their limits."""
    if problem.queueing.model == "none":
        return True
    ends = [_waited(problem, d, limit, base) for limit, base in ((slo.ttft_s, 0.0), (slo.deadline_s, e2e_s)) if limit]
    return all(a <= b * (1 + SLACK) for a, b in [(e2e_s, d.service_cap_s or 0.0), *ends])


def _wait(problem: Fleet, servers: int, load: float, service_s: float, percentile: float | None) -> float:
    """Allen–Cunneen waiting from the Erlang B recursion; seconds."""
    q = problem.queueing
    if q.model == "none":
        return 0.0
    offered, b = servers * load, 1.0
    for k in range(1, servers + 1):
        b = offered * b / (k + offered * b)
    c = b / (1 - load * (1 - b))
    ca, cs = {"mdc": (1.0, 0.0), "mmc": (1.0, 1.0)}.get(q.model, (max(q.arrival_scv, 1.0), q.service_scv))
    factor = (ca + cs) / 2
    if q.model == "mdc":
        factor += (1 - load) * (servers - 1) * (math.sqrt(4 + 5 * servers) - 2) / (32 * load * servers)
        factor = min(factor, 1.0)
    mean = c * service_s / (servers * (1 - load)) * factor
    if percentile is None:
        return mean
    return mean / c * math.log(c / (1 - percentile)) if c > 1 - percentile else 0.0


def _counted(q: PeriodLine) -> dict[tuple[str, str, str], int]:
    counts: dict[tuple[str, str, str], int] = {}
    for d in q.deployments:
        for m in d.machines:
            key = (m.machine, m.region, m.market)
            counts[key] = counts.get(key, 0) + m.count * d.count
    return counts


def _has_gpu(machine: Machine | None, line: StockLine) -> bool:
    """Whether a limit counts a machine, by its GPU; a resource that is no machine has none."""
    return fnmatch.fnmatchcase("" if machine is None or machine.gpu is None else machine.gpu, line.gpu)


def _does(d: DeploymentLine) -> tuple[str, ...]:
    """The stages of its requests that a deployment does."""
    return ("prefill", "decode") if d.stage == "both" else (d.stage,)


def _replicas_of(case: FleetCase, models: Models, q: PeriodLine, workload: str) -> tuple[int, int]:
    """(at least, at most) deployments that can serve a workload, of the stage that has fewer."""
    stages = [_able(case, models, q, workload, stage=stage) for stage in ("prefill", "decode")]
    return min(a for a, _ in stages), min(b for _, b in stages)


def _able(
    case: FleetCase, models: Models, q: PeriodLine, workload: str, engines: bool = False, stage: str | None = None
) -> tuple[int, int]:  # fmt: skip
    """(at least, at most) deployments that can serve a workload, or engines: those that do, and that load its model.

    `stage`: only of deployments of that stage.
    """
    least = most = 0
    for d in q.deployments:
        if stage is not None and stage not in _does(d):
            continue
        point = _point(case, d.point)
        if point is None:
            can = loadable(models, d, workload)
        else:
            mine = [x for x in _points(case)[1][point.name] if x.rpartition("/")[0] == workload]
            slo = case.workload(workload).slo
            can = any(_in_time(case.problem, d, slo, point.slots / point.requests_per_s[x]) for x in mine)
        does = any(s.demand.split("/")[0] == workload for s in d.serves) or (d.loads == workload and not engines)
        count = d.count * (d.replicas_per_machine or 1) if engines else d.count
        least += count if does else 0
        most += count if can else 0
    return least, most


_Machines = tuple[tuple[str, str, str, int], ...]


def _pools(models: Models, q: PeriodLine, spot: bool) -> dict[Any, tuple[_Machines, list[DeploymentLine]]]:
    """Deployments of one machine set that load one model and do one stage; a measured point is a pool of its own."""
    pools: dict[Any, tuple[_Machines, list[DeploymentLine]]] = {}
    for d in q.deployments:
        machines = tuple((m.machine, m.region, m.market, m.count) for m in d.machines)
        if spot and not any(m.market == "spot" for m in d.machines):
            continue
        own = models[d.loads, d.model] if d.loads is not None else (d.point,)
        pools.setdefault((machines, own, d.stage), (machines, []))[1].append(d)
    return pools


def _too_many(count: int, lost: int, u: float) -> float:
    """Probability that more than `lost` of `count` are lost, each with probability u."""
    if lost >= count or u <= 0:
        return 0.0
    if u >= 1 or lost < 0:
        return 1.0
    logs = (
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        + k * math.log(u) + (count - k) * math.log1p(-u)
        for k in range(lost + 1, count + 1)
    )  # fmt: skip
    return min(1.0, math.fsum(math.exp(x) for x in logs))


def _needed(lines: list[DeploymentLine], full: float) -> float:
    """Deployments that carry the load of a pool when they are `full`."""
    return sum(d.load_level * sum(s.load for s in d.serves) for d in lines) / full


def _spare(count: int, needed: float, rounding: float) -> int:
    """Deployments that may be lost; `rounding` is relative where more than one is needed."""
    return math.floor(count - needed + rounding * max(1.0, needed))


def _reserve(found: Findings, problem: Fleet, models: Models, q: PeriodLine) -> None:
    r = problem.reserve
    if r is None:
        return
    pools = _pools(models, q, r.machines == "spot")
    if r.survive_probability is not None:  # pools without load lose nothing
        loaded = sum(_needed(members, r.load_after_loss) > 0 for _, members in pools.values())
        found.at_most(f"{q.name}: pools on spot with load", loaded, r.pools)
    for machines, members in pools.values():
        count = sum(d.count for d in members)
        needed = _needed(members, r.load_after_loss)
        name = " + ".join(m[0] for m in machines)
        if r.lost is not None:
            left = max(count - r.lost, 0)
            found.at_most(f"{q.name}: load of {name} after losing {r.lost}", needed, left, "deployments")
        else:
            miss = _too_many(count, _spare(count, needed, SLACK), _lost_share(problem, machines))
            allowed = (1 - (r.survive_probability or 0.0)) / r.pools
            found.at_most(f"{q.name}: probability that {name} loses too many", miss, allowed)


def _spot(found: Findings, problem: Fleet, models: Models, p: FleetPlan) -> None:
    """Pools on spot, and the probability that all keep their load (independent pools, binomial losses)."""
    number = len({key for q in p.periods for key in _pools(models, q, True)})
    found.require("number of pools on spot", p.pools_on_spot == number, p.pools_on_spot, number)
    if not problem.interruptions:
        none = p.survival_probability is None
        found.require("no survival probability without interruptions", none, p.survival_probability, None)
        return
    full = problem.reserve.load_after_loss if problem.reserve is not None else 1.0
    low = high = 1.0  # a pool whose spare capacity is a whole number but for rounding may count either way
    for q in p.periods:
        joint = [1.0, 1.0]
        for machines, members in _pools(models, q, True).values():
            count, u = sum(d.count for d in members), _lost_share(problem, machines)
            needed = _needed(members, full)
            for i, rounding in enumerate((-SLACK, SLACK)):
                joint[i] *= 1 - _too_many(count, max(_spare(count, needed, rounding), 0), u)
        low, high = min(low, joint[0]), min(high, joint[1])
    stated, slack = p.survival_probability, SLACK * (1 - low) + 1e-12
    if stated is None or not low - slack <= stated <= high + slack:
        found.add("survival probability", "none" if stated is None else stated, high)


_Limit = tuple[tuple[float, float], float, str, str, bool]  # (least, greatest) value, bound, unit, sense, whole


def _limits(
    found: Findings, problem: Fleet, case: FleetCase, demands: Mapping[str, Demand], models: Models,
    p: FleetPlan,
) -> None:  # fmt: skip
    """Every limit is kept, and every period's own table of limits states the true values.

    A stock line may be absent only where the plan uses none of its machines: machines that cannot serve anything
    have no line.
    """
    cheapest = min((d.usd_per_hour_each for q in p.periods for d in q.deployments), default=math.inf)
    pool = {(m.machine, m.region): m for m in case.machines}
    resources = dict.fromkeys(pool, 0)
    for x in case.points or ():
        resources.setdefault((x.machine or x.name, x.region), 0)
    moved = _moved(problem, case, p)
    for t, q in enumerate(p.periods):
        true: dict[str, list[_Limit]] = {}
        optional: set[str] = set()

        def put(
            name: str, value: tuple[float, float], bound: float, unit: str, sense: str = "<=", whole: bool = False,
            into: dict[str, list[_Limit]] = true,
        ) -> None:  # fmt: skip
            into.setdefault(name, []).append((value, bound, unit, sense, whole))

        cost = sum(d.count * d.usd_per_hour_each for d in q.deployments)
        if problem.budget_usd_per_hour is not None:
            put("budget", (cost, cost), problem.budget_usd_per_hour, "USD/h")
        counts = _counted(q)
        for kind, lines in (("stock", problem.stock), ("quota", problem.quota)):
            for line in lines:
                in_market = "" if line.market is None else f" ({line.market})"
                suffix = in_market + ("" if line.unit == "machines" else f", {line.unit}")
                sums: dict[str, float] = {}
                if kind == "quota":
                    where = "" if line.region == "*" else f" in {line.region}"
                    of = {(line.machine, "*"): line.machine, ("*", line.gpu): line.gpu, ("*", "*"): "all machines"}
                    what = of.get((line.machine, line.gpu), f"{line.machine} ({line.gpu})")
                    sums[f"quota of {what}{where}{suffix}"] = 0.0
                for machine, region in resources:
                    if not (fnmatch.fnmatchcase(machine, line.machine) and fnmatch.fnmatchcase(region, line.region)):
                        continue
                    m = pool.get((machine, region))
                    if not _has_gpu(m, line):
                        continue
                    size = 1 if m is None or line.unit == "machines" else m.gpu_count
                    if m is not None and line.unit == "vcpus":
                        size = m.vcpu or 0
                    used = size * sum(
                        v for k, v in counts.items() if k[:2] == (machine, region) and line.market in (None, k[2])
                    )
                    if kind == "quota":
                        name = next(iter(sums))
                    else:
                        name = f"stock of {machine}" + ("" if region in ("", "*") else f" in {region}") + suffix
                        if not used:
                            optional.add(name)
                    sums[name] = sums.get(name, 0.0) + used
                for name, taken in sums.items():
                    put(name, (taken, taken), line.at_most, line.unit, whole=True)
        for w in case.workloads:
            mine = [name for name, d in demands.items() if d.workload == w.name]
            if w.name in case.measured_hits and problem.prefix_cache is not None:
                engines = _able(case, models, q, w.name, engines=True, stage="prefill")
                put(f"quota for {w.name}, engines", engines, problem.prefix_cache.engines, "engines", whole=True)
            if w.min_replicas:
                able = _replicas_of(case, models, q, w.name)
                put(f"replicas for {w.name}", able, w.min_replicas, "deployments", ">=", True)
            shares = dict.fromkeys(mine, 0.0)
            on_spot = {(name, stage): 0.0 for name in mine for stage in ("prefill", "decode")}
            for d in q.deployments:
                spot = any(m.market == "spot" for m in d.machines)
                for s in d.serves:
                    if s.demand in shares:
                        shares[s.demand] += s.share if d.stage != "decode" else 0.0
                        for stage in _does(d) if spot else ():
                            on_spot[s.demand, stage] += s.share
            if w.spot_share_max < 1:
                most = max(on_spot.values(), default=0.0)
                put(f"spot share of {w.name}", (most, most), w.spot_share_max, "")
            mean = None if w.quality_at_least is None else _mean_score(case, models, q, w, t)
            if mean is not None:
                put(f"quality of {w.name}", (mean, mean), w.quality_at_least or 0.0, "", ">=")
            asked = [min(shares[name], 1.0) for name in mine if demands[name].requests_per_s[t] > 0]
            if asked and _least(problem, w) < 1:
                put(f"served share of {w.name}", (min(asked), min(asked)), _least(problem, w), "", ">=")
        up, down = moved[t]
        for verb, number, bound in (("started", up, problem.change.max_starts), ("stopped", down,
                                                                                problem.change.max_stops)):  # fmt: skip
            if bound is not None:
                total = sum(number.values())
                put(f"machines {verb}", (total, total), bound, "machines", whole=True)
        _stated(found, q, true, optional, cheapest)


def _stated(
    found: Findings, q: PeriodLine, true: dict[str, list[_Limit]], optional: set[str], cheapest: float
) -> None:  # fmt: skip
    """Every limit of a period is kept, and its table of limits is the true one."""
    for name, lines in true.items():
        for (low, high), bound, unit, sense, _ in lines:
            small, large = (low, bound) if sense == "<=" else (bound, high)
            found.at_most(f"{q.name}: {name} {sense} {bound:g}", small, large, unit)
    stated = [line.name for line in q.limits]
    expected = [name for name, lines in true.items() for _ in lines]
    missing = [name for name in expected if stated.count(name) < expected.count(name)
               and not (name in optional and name not in stated)]  # fmt: skip
    invented = [name for name in stated if stated.count(name) > expected.count(name)]
    found.require(
        f"{q.name}: the limits listed are those of the problem", not missing and not invented, stated, expected
    )
    for line in q.limits:
        if not true.get(line.name):
            continue
        (low, high), bound, unit, sense, whole = true[line.name].pop(0)
        where = f"{q.name}: {line.name}"
        slack = SLACK * max(abs(high), abs(bound), 1.0 if unit == "" else 0.0)
        counted = not whole or abs((line.value + 0.5) % 1.0 - 0.5) <= slack
        found.require(f"{where}: value", counted and low - slack <= line.value <= high + slack, line.value, high)
        found.close(f"{where}: bound", math.nan if line.limit is None else line.limit, bound, unit)
        found.limit_is_kept(f"{where}: kept", line.value, line.limit, line.sense, 1.0 if unit == "" else 0.0)
        same = (line.unit, line.sense) == (unit, sense)
        found.require(f"{where}: unit and sense", same, (line.unit, line.sense), (unit, sense))
        room = bound - line.value if sense == "<=" else line.value - bound
        edge = cheapest if line.name == "budget" else 0.5 if whole else SLACK * max(1.0, abs(bound))
        if abs(room - edge) > SLACK * max(1.0, abs(bound)) / 2:  # nearer than that, rounding decides
            found.require(f"{where}: binds exactly if said so", line.binding == (room < edge), line.binding, room)


def _shadow_prices(found: Findings, problem: Fleet, p: FleetPlan) -> None:
    """Shadow prices are of binding stocks, quotas and the budget; none where a ratio is the objective."""
    binding = {line.name: line.unit for q in p.periods for line in q.limits if line.binding}
    listed = [line.name for line in p.periods[0].limits]
    named = [line.limit for line in p.shadow_prices]
    found.require("no shadow prices with max_ce", problem.objective != "max_ce" or not named, named, [])
    for line in p.shadow_prices:
        can = line.limit == "budget" or line.limit.startswith(("stock of ", "quota of ", "quota for "))
        found.require(
            f"shadow price of {line.limit}: a limit that binds", can and line.limit in binding, line.limit, binding
        )
        units = {"machines": "machine", "gpus": "GPU", "vcpus": "vCPU", "engines": "engine"}
        unit = units.get(binding.get(line.limit, ""), "USD/h")
        found.require(f"shadow price of {line.limit}: unit", line.unit == unit, line.unit, unit)
        once = named.count(line.limit) <= max(listed.count(line.limit), 1)
        found.require(f"shadow price of {line.limit}: once", once, named.count(line.limit), 1)
        if problem.objective == "min_cost":
            found.at_most(f"shadow price of {line.limit} ≤ all it costs", line.gain, p.total_usd_per_hour, "USD/h")


def _lost_share(problem: Fleet, machines: _Machines) -> float:
    up = 1.0
    for machine, region, market, count in machines:
        if market != "spot":
            continue
        match = (
            x for x in problem.interruptions
            if fnmatch.fnmatchcase(machine, x.machine) and fnmatch.fnmatchcase(region, x.region)
        )  # fmt: skip
        rule = next(match, None)
        if rule is not None:
            up /= (1 + rule.per_hour * rule.recovery_s / 3600) ** count
    return 1 - up


_Moved = list[tuple[dict[tuple[str, str, str], int], dict[tuple[str, str, str], int]]]


def _moved(problem: Fleet, case: FleetCase, p: FleetPlan) -> _Moved:
    """Machines started and stopped before every period."""
    c = problem.change
    counts = [_counted(q) for q in p.periods]
    matters = bool(c.start_usd or c.stop_usd) or c.max_starts is not None or c.max_stops is not None
    if problem.running is not None:
        before: dict[tuple[str, str, str], int] = {}
        for r in problem.running:
            before[r.machine, r.region, r.market] = before.get((r.machine, r.region, r.market), 0) + r.count
    elif len(case.periods) > 1 and matters:
        before = counts[-1]
    else:
        return [({}, {}) for _ in counts]
    moved: _Moved = []
    for now in counts:
        change = {k: now.get(k, 0) - before.get(k, 0) for k in {**before, **now}}
        moved.append(({k: v for k, v in change.items() if v > 0}, {k: -v for k, v in change.items() if v < 0}))
        before = now
    return moved


def _changes(found: Findings, problem: Fleet, case: FleetCase, p: FleetPlan) -> float:
    """USD per hour of starting and stopping machines; checks the stated numbers."""
    c, usd = problem.change, 0.0
    for q, (up, down) in zip(p.periods, _moved(problem, case, p), strict=True):
        for verb, number, stated in (("started", up, q.starts), ("stopped", down, q.stops)):
            true = {f"{k[0]}{' in ' + k[1] if k[1] else ''} ({k[2]})": v for k, v in number.items()}
            found.require(f"{q.name}: machines {verb} as stated", stated == true, stated, true)
        usd += c.start_usd * sum(up.values()) + c.stop_usd * sum(down.values())
    return usd / (sum(q.hours for q in case.periods) if len(case.periods) > 1 else c.horizon_hours)
