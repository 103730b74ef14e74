"""Independent check of a cost-efficiency plan: from the instance and the plan alone.

Shares no code with tables, model or methods. Latencies are recomputed from the papers' equations
(`optmodels.plans.latencies`), costs are added up from the price list; memory, splits, counts and stated figures are
recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from formulations.cost_efficiency.plan import CostPlan
from formulations.cost_efficiency.predicted import of_mean_request, predicted
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.batch.static import BatchCase, RealTime
from optmodels.catalog.types import Machine
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.engine.costs import engine_costs
from optmodels.errors import InputError
from optmodels.plans.engines import Kind, Seen, check_engine
from optmodels.plans.findings import TOLERANCE, Findings
from optmodels.plans.latencies import MemoryLimit, RecomputedRun, latencies
from optmodels.plans.outcome import CheckReport

TRUSTED = {
    "plan.engine.most_of_wait": "any class of waits may be planned for; capacities and latencies that follow are"
    " recomputed",
}


def check(problem: CostEfficiency, plan: Mapping[str, Any]) -> CheckReport:
    """Verify a plan (as JSON data) against its instance."""
    found = Findings()
    p = found.read(CostPlan, plan, "a cost_efficiency plan")
    if p is None:
        return found.report()
    case = problem.resolve()
    pool = {(m.machine, m.region): m for m in case.machines}
    lines = {line.role: line for line in p.machines}
    at: dict[str, Machine | None] = {role: pool.get((line.machine, line.region)) for role, line in lines.items()}
    main, ao = at.get("main"), at.get("ao")
    if main is None or None in at.values() or len(lines) != len(p.machines):
        found.add("machines are in the pool", ", ".join(line.machine for line in p.machines), "machines of the pool")
        return found.report()
    for role, line in lines.items():
        machine = at[role]
        if machine is not None:
            found.require(f"GPU of {line.machine}", line.gpu == machine.gpu, line.gpu, machine.gpu)
            same = line.gpus_per_machine == machine.gpu_count
            found.require(f"GPUs of {line.machine}", same, line.gpus_per_machine, machine.gpu_count)
    batches = problem.serving == "continuous"
    found.require("an engine exactly with serving: continuous", (p.engine is not None) == batches, p.engine, batches)
    count = _structure(found, problem, case, p, main, ao)
    _money(found, problem, p, at)
    seen: Seen | None = None
    if case.operating_points:
        point = next((o for o in case.operating_points if o.name == p.measured), None)
        if point is None:
            found.add("operating point is in the problem file", str(p.measured), "a listed operating point")
            return found.report()
        used = (point.family, point.main, point.ao, point.count, point.alpha, point.tp, point.replicas_per_machine)
        bought = (lines["main"].machine, lines["ao"].machine if ao else None)
        stated = (p.family, *bought, count, p.alpha, p.tensor_parallel, p.replicas_per_machine)
        found.require("plan is its operating point", used == stated, stated, used)
        e2e = point.e2e_s if point.e2e_s is not None else case.tokens / (point.tps or 1.0)
        ttft, tbt = point.ttft_s, point.tpot_s
        memory: list[MemoryLimit] = []
        found.require(
            "no load is claimed of a measured point", p.prediction.ao_load is None, p.prediction.ao_load, None
        )
    elif problem.serving == "continuous":
        found.require("no measured point is claimed of a modelled plan", p.measured is None, p.measured, None)
        found.require("no load is claimed of engines", p.prediction.ao_load is None, p.prediction.ao_load, None)
        seen = _engine(found, problem, case, p, main)
        if seen is None:
            return found.report()
        ttft, tbt = seen.first_s + seen.waiting_s, seen.tpot_s
        e2e, whole = seen.e2e_s, seen.deadline_s
        most = math.floor(seen.running * (1 + 1e-9))
        memory = [("requests in flight per replica", float(max(p.batch_split)), float(most), "", "<=")]
        at_users = None if found.violations else predicted(problem, p)
        if not found.violations:  # `optmodels.engine.loop.least`
            least = of_mean_request(problem, p)
            ttft, tbt = max(ttft, least["ttft_s"]), max(tbt, least["tpot_s"])
            if least["e2e_s"] > e2e:
                e2e, whole = least["e2e_s"], max(whole, least["e2e_s"])
        for name, key, bound in (("TTFT", "ttft_s", ttft), ("TPOT", "tpot_s", tbt), ("E2E", "e2e_s", e2e)):
            if at_users is not None:
                found.at_most(f"predicted {name} ≤ at most", at_users[key], bound, "s")
    else:
        found.require("no measured point is claimed of a modelled plan", p.measured is None, p.measured, None)
        run = RecomputedRun(
            p.family, max(p.batch_split), p.alpha, p.tensor_parallel, p.replicas_per_machine, p.passes, count
        )
        true_run = latencies(found, case, run, main, ao)
        ttft, tbt, e2e, memory = true_run.ttft_s, true_run.tpot_s, true_run.e2e_s, true_run.memory
        if true_run.ao_load is None:
            claimed = p.prediction.ao_load
            found.require("load only of a shared AO machine", claimed is None, claimed, None)
        else:
            found.equal("predicted load of the AO machine", p.prediction.ao_load, true_run.ao_load)
    tps = case.tokens / e2e
    for name, stated_value, true in (
        ("predicted TTFT", p.prediction.ttft_s, ttft), ("predicted TPOT", p.prediction.tpot_s, tbt),
        ("predicted E2E", p.prediction.e2e_s, e2e), ("predicted TPS", p.prediction.tps, tps),
    ):  # fmt: skip
        if true is not None:
            found.equal(name, stated_value, true)
        else:
            found.require(f"{name} was not measured", stated_value is None, stated_value, None)
    slo = problem.slo
    at_ttft, at_tbt, at_e2e = (seconds_and_quantile(x)[0] for x in slo.latencies)
    if problem.serving == "static":
        whole = e2e
    cost = sum(line.count * line.usd_per_hour_each for line in p.machines)
    found.equal("CE capped", p.ce_capped.tokens_per_usd, min(tps, slo.tps) * 3600 / cost, "tokens/USD")
    found.equal("CE uncapped", p.ce_uncapped.tokens_per_usd, tps * 3600 / cost, "tokens/USD")
    for name, stated_ce in (("capped", p.ce_capped), ("uncapped", p.ce_uncapped)):
        found.equal(f"CE {name}, per USD/h", stated_ce.tps_per_usd_per_hour, stated_ce.tokens_per_usd / 3600)
    slo_limits: list[MemoryLimit] = []
    if isinstance(slo, RealTime) and ttft is not None and tbt is not None:
        slo_limits = [("TTFT", ttft, at_ttft, "s", "<="), ("TPOT", tbt, at_tbt, "s", "<=")]
    if slo.latencies[2] is not None:
        slo_limits.append(("E2E", whole, at_e2e, "s", "<="))
    if slo.itl is not None and seen is not None:
        slo_limits.append(("ITL", seen.itl_s, seconds_and_quantile(slo.itl)[0], "s", "<="))
    budget = problem.budget_usd_per_hour
    _limits(found, p, [
        *slo_limits, ("TPS", tps, slo.tps, "tokens/s", ">="), ("budget", cost, budget, "USD/h", "<="), *memory,
    ])  # fmt: skip
    rated = slo.tps if problem.objective == "capped" else tps
    found.equal("objective", p.usd_per_million_tokens, cost / (3600 * rated) * 1e6, "USD/1M tokens")
    return found.report()


def _engine(found: Findings, problem: CostEfficiency, case: BatchCase, p: CostPlan, main: Machine) -> Seen | None:
    """Latencies of requests on the plan's engines, each with its part of the requests in flight; None where unknown."""
    found.require("continuous batching keeps the KV cache on the GPUs", p.family == "high_end", p.family, "high_end")
    line, gpu = p.engine, main.gpu or ""
    if line is None or gpu not in case.gpus:
        found.add("how the engines batch", "none", "an engine, with serving: continuous")
        return None
    quantiles = [seconds_and_quantile(x)[1] for x in problem.slo.latencies]
    lengths = tuple((float(x.input_tokens), float(x.output_tokens), x.share) for x in case.lengths)
    kind = replace(Kind(lengths, 0.0, *quantiles), itl=problem.slo.itl)
    try:
        engine = engine_costs(
            problem.engines(case),
            problem.engine,
            case.gpus[gpu],
            gpu,
            p.tensor_parallel,
            main.vram_gib / main.gpu_count,
            p.attention_ranks or 1,
        )
    except InputError as error:
        found.add("engines", str(error), "steps of known latency")
        return None
    return check_engine(found, "engine", line, engine, problem.engine, kind, in_flight=float(max(p.batch_split)))


def _limits(found: Findings, p: CostPlan, true: list[MemoryLimit]) -> None:
    """Every limit is kept, and the plan's own table of limits states the true values."""
    for name, value, limit, unit, sense in true:
        if limit is not None:
            small, large = (value, limit) if sense == "<=" else (limit, value)
            found.at_most(f"{name} {sense} {limit:g}", small, large, unit)
    stated = [(line.name, line.unit, line.sense) for line in p.limits]
    expected = [(name, unit, sense) for name, _, _, unit, sense in true]
    found.require("the limits listed are those of the problem", stated == expected, stated, expected)
    if stated != expected:
        return
    for line, (name, value, limit, unit, _) in zip(p.limits, true, strict=True):
        found.equal(f"stated {name}", line.value, value, unit)
        if limit is None or math.isinf(limit):
            found.require(f"no limit on {name}", line.limit is None, line.limit, None)
        else:
            found.equal(f"stated limit of {name}", line.limit, limit, unit)
            found.limit_is_kept(f"{name}: kept", line.value, line.limit, line.sense)
        slack = None if limit is None else abs(value - limit) / max(abs(limit), 1e-12)
        if slack is None or abs(slack - TOLERANCE) > TOLERANCE / 2:  # nearer than that, rounding decides
            tight = slack is not None and slack <= TOLERANCE
            found.require(f"{name} binds exactly if said so", line.binding == tight, line.binding, tight)


def _structure(
    found: Findings, problem: CostEfficiency, case: BatchCase, p: CostPlan, main: Machine, ao: Machine | None
) -> int:
    """Counts, splits, parallelism and α are ones the instance allows; returns k, K, N or replicas."""
    s = problem.strategies
    found.require("family is allowed", p.family in s.families, p.family, s.families)
    is_ao = p.family in ("ao", "ao_parallel", "ao_shared")
    found.require("an AO machine exactly where the family has one", is_ao == (ao is not None), p.family, "ao families")
    bought = {line.role: line.count for line in p.machines}
    count = p.passes if p.family == "multi_pass" else bought["main"]
    expected = {"main": 1 if p.family == "multi_pass" else count, "ao": count if p.family == "ao_parallel" else 1}
    for role, number in bought.items():
        found.require(f"number of {role} machines", number == expected[role], number, expected[role])
    found.require("passes only in multi-pass", p.family == "multi_pass" or p.passes == 1, p.passes, 1)
    if not case.operating_points:  # a measured point has its own
        allowed = s.allowed(p.family)
        found.require("k, K, N or the number of replicas is allowed", count in allowed, count, allowed)
        ranks, allowed_ranks = p.attention_ranks or 1, s.attention_ranks if case.architecture.routed else (1,)
        gpus = p.tensor_parallel * ranks * p.replicas_per_machine
        found.require("TP × attention ranks × replicas = GPUs of the machine", gpus == main.gpu_count, gpus,
                      main.gpu_count)  # fmt: skip
        found.require("attention ranks are allowed", ranks in allowed_ranks, ranks, allowed_ranks)
        found.require("TP is allowed", p.tensor_parallel in s.tensor_parallel, p.tensor_parallel, s.tensor_parallel)
        heads = case.architecture.heads
        found.require("TP divides the heads", heads % p.tensor_parallel == 0, p.tensor_parallel, heads)
        if ao is not None:
            found.require("AO machine in its main machine's region", ao.region == main.region, ao.region, main.region)
            clouds = {ao.provider, main.provider} - {""}  # without one it may be any
            found.require("AO machine in its main machine's cloud", len(clouds) <= 1, ao.provider, main.provider)
        if p.family not in ("high_end", "multi_pass"):
            inside = s.alpha.min - 1e-9 <= p.alpha <= s.alpha.max + 1e-9
            found.require("α is in the allowed range", inside, p.alpha, (s.alpha.min, s.alpha.max))
        else:
            found.require("no offloading in this family", p.alpha == 0, p.alpha, 0)
    parts = count * p.replicas_per_machine
    found.require("one part of the batch per replica and pass", len(p.batch_split) == parts, len(p.batch_split), parts)
    whole = sum(p.batch_split) == problem.workload.batch and min(p.batch_split, default=0) >= 1
    found.require("the parts are the batch", whole, p.batch_split, problem.workload.batch)
    return count


def _money(found: Findings, problem: CostEfficiency, p: CostPlan, machines: Mapping[str, Machine | None]) -> None:
    total = 0.0
    for line in p.machines:
        machine = machines[line.role]
        assert machine is not None
        allowed = problem.markets.ao if line.role == "ao" else problem.markets.main
        found.require(f"market of the {line.role} machine", line.market in allowed, line.market, allowed)
        price = getattr(machine.prices, line.market)
        found.equal(
            f"price of {line.machine}", line.usd_per_hour_each, float("nan") if price is None else price, "USD/h"
        )
        total += line.count * line.usd_per_hour_each
    found.equal("cost", p.usd_per_hour, total, "USD/h")
    spot = any(line.market == "spot" for line in p.machines)
    found.require("uses_spot says whether a part is on spot", p.uses_spot == spot, p.uses_spot, spot)
