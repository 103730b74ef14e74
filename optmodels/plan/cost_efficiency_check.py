"""Independent check of a cost-efficiency plan: from the instance and the plan alone.

Shares no code with tables, formulation or heuristics. Latencies are recomputed from the papers' equations in plain
scalar arithmetic with a loop over every decode step, where the tables use closed forms; costs are added up from the
price list; memory, splits, counts and every stated figure are recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from optmodels.catalog.types import Machine
from optmodels.plan.cost_efficiency import CostPlan
from optmodels.plan.findings import TOLERANCE, Findings
from optmodels.plan.outcome import CheckReport
from optmodels.problem.cost_efficiency import Case, CostEfficiency, RealTime

GIB = 1024.0**3
BYTES_PER_GBIT = 1e9 / 8


def check(problem: CostEfficiency, plan: Mapping[str, Any]) -> CheckReport:
    """Verify a plan (as JSON data) against its instance."""
    found = Findings()
    p = found.read(CostPlan, plan, "a cost_efficiency plan")
    if p is None:
        return found.report()
    case = problem.resolve()
    pool = {(m.machine, m.region): m for m in case.machines}
    lines = {line.role: line for line in p.machines}
    main = pool.get((lines["main"].machine, lines["main"].region)) if "main" in lines else None
    ao = pool.get((lines["ao"].machine, lines["ao"].region)) if "ao" in lines else None
    if main is None or ("ao" in lines and ao is None) or len(lines) != len(p.machines):
        found.add("machines are in the pool", ", ".join(line.machine for line in p.machines), "machines of the pool")
        return found.report()
    for line, machine in ((lines["main"], main), (lines.get("ao"), ao)):
        if line is not None and machine is not None:
            found.require(f"GPU of {line.machine}", line.gpu == machine.gpu, line.gpu, machine.gpu)
            same = line.gpus_per_machine == machine.gpu_count
            found.require(f"GPUs of {line.machine}", same, line.gpus_per_machine, machine.gpu_count)
    count = _structure(found, problem, case, p, main, ao)
    _money(found, problem, case, p, {"main": main, "ao": ao})
    if case.operating_points:
        point = next((o for o in case.operating_points if o.name == p.measured), None)
        if point is None:
            found.add("operating point is in the instance", str(p.measured), "a listed operating point")
            return found.report()
        used = (point.family, point.main, point.ao, point.count, point.alpha)
        stated = (p.family, lines["main"].machine, lines["ao"].machine if ao else None, count, p.alpha)
        found.require("plan is its operating point", used == stated, stated, used)
        e2e = point.e2e_s if point.e2e_s is not None else case.tokens / (point.tps or 1.0)
        ttft, tbt = point.ttft_s, point.tbt_s
        memory: list[_Limit] = []
        found.require(
            "no load is claimed of a measured point", p.prediction.ao_load is None, p.prediction.ao_load, None
        )
    else:
        found.require("no measured point is claimed of a modelled plan", p.measured is None, p.measured, None)
        ttft, tbt, e2e, memory = latencies(found, problem, case, p, main, ao, count)
    tps = case.tokens / e2e
    for name, stated_value, true in (
        ("predicted TTFT", p.prediction.ttft_s, ttft), ("predicted TBT", p.prediction.tbt_s, tbt),
        ("predicted E2E", p.prediction.e2e_s, e2e), ("predicted TPS", p.prediction.tps, tps),
    ):  # fmt: skip
        if true is not None:
            found.equal(name, stated_value, true)
        else:
            found.require(f"{name} was not measured", stated_value is None, stated_value, None)
    slo = problem.slo
    if isinstance(slo, RealTime) and ttft is not None and tbt is not None:
        found.at_most("TTFT ≤ SLO", ttft, slo.ttft_s, "s")
        found.at_most("TBT ≤ SLO", tbt, slo.tbt_s, "s")
    found.at_most("TPS ≥ SLO", slo.tps, tps, "tokens/s")
    cost = sum(line.count * line.usd_per_hour_each for line in p.machines)
    found.equal("CE capped", p.ce_capped.tokens_per_usd, min(tps, slo.tps) * 3600 / cost, "tokens/USD")
    found.equal("CE uncapped", p.ce_uncapped.tokens_per_usd, tps * 3600 / cost, "tokens/USD")
    for name, stated_ce in (("capped", p.ce_capped), ("uncapped", p.ce_uncapped)):
        found.equal(f"CE {name}, per USD/h", stated_ce.tps_per_usd_per_hour, stated_ce.tokens_per_usd / 3600)
    slo_limits: list[_Limit] = []
    if isinstance(slo, RealTime) and ttft is not None and tbt is not None:
        slo_limits = [("TTFT", ttft, slo.ttft_s, "s", "<="), ("TBT", tbt, slo.tbt_s, "s", "<=")]
    budget = problem.budget_usd_per_hour
    _limits(found, p, [
        *slo_limits, ("TPS", tps, slo.tps, "tokens/s", ">="), ("budget", cost, budget, "USD/h", "<="), *memory,
    ])  # fmt: skip
    rated = slo.tps if problem.objective == "capped" else tps
    found.equal("objective", p.usd_per_million_tokens, cost / (3600 * rated) * 1e6, "USD/1M tokens")
    return found.report()


_Limit = tuple[str, float, float | None, str, str]  # name, value, limit, unit, sense


def _limits(found: Findings, p: CostPlan, true: list[_Limit]) -> None:
    """The plan's own table of limits says what is so."""
    stated = [(line.name, line.unit, line.sense) for line in p.limits]
    expected = [(name, unit, sense) for name, _, _, unit, sense in true]
    found.require("the limits listed are those of the instance", stated == expected, stated, expected)
    if stated != expected:
        return
    for line, (name, value, limit, unit, _) in zip(p.limits, true, strict=True):
        found.equal(f"stated {name}", line.value, value, unit)
        if limit is None or math.isinf(limit):
            found.require(f"no limit on {name}", line.limit is None, line.limit, None)
        else:
            found.equal(f"stated limit of {name}", line.limit, limit, unit)
        slack = None if limit is None else abs(value - limit) / max(abs(limit), 1e-12)
        if slack is None or abs(slack - TOLERANCE) > TOLERANCE / 2:  # nearer than that, rounding decides
            tight = slack is not None and slack <= TOLERANCE
            found.require(f"{name} binds exactly if said so", line.binding == tight, line.binding, tight)


def _structure(
    found: Findings, problem: CostEfficiency, case: Case, p: CostPlan, main: Machine, ao: Machine | None
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
    if not case.operating_points:
        counts = {"multi_pass": s.multi_pass, "ao": (1,), "ao_parallel": s.parallel, "ao_shared": s.shared}
        allowed = counts.get(p.family, s.replicas)
        found.require("k, K, N or the number of replicas is allowed", count in allowed, count, allowed)
        gpus = p.tensor_parallel * p.replicas_per_machine
        found.require("TP × replicas = GPUs of the machine", gpus == main.gpu_count, gpus, main.gpu_count)
        found.require("TP is allowed", p.tensor_parallel in s.tensor_parallel, p.tensor_parallel, s.tensor_parallel)
        heads = case.architecture.heads
        found.require("TP divides the heads", heads % p.tensor_parallel == 0, p.tensor_parallel, heads)
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


def _money(
    found: Findings, problem: CostEfficiency, case: Case, p: CostPlan, machines: Mapping[str, Machine | None]
) -> None:
    total = 0.0
    for line in p.machines:
        machine = machines[line.role]
        assert machine is not None
        allowed = problem.markets.main if line.role == "main" else problem.markets.ao
        found.require(f"market of the {line.role} machine", line.market in allowed, line.market, allowed)
        price = getattr(machine.prices, line.market)
        found.equal(
            f"price of {line.machine}", line.usd_per_hour_each, float("nan") if price is None else price, "USD/h"
        )
        total += line.count * line.usd_per_hour_each
    found.equal("cost", p.usd_per_hour, total, "USD/h")
    if problem.budget_usd_per_hour is not None:
        found.at_most("cost ≤ budget", total, problem.budget_usd_per_hour, "USD/h")
    spot = any(line.market == "spot" for line in p.machines)
    found.require("uses_spot says whether a part is on spot", p.uses_spot == spot, p.uses_spot, spot)


def latencies(
    found: Findings, problem: CostEfficiency, case: Case, p: CostPlan, main: Machine, ao: Machine | None, count: int
) -> tuple[float, float, float, list[_Limit]]:
    """TTFT, TBT and E2E of the largest part, step by step (LP 3–6, 11–18), and what memory it takes."""
    work, w = case.work, problem.workload
    L, S_in, S_out = work.layers, w.input_tokens, w.output_tokens
    B = float(max(p.batch_split))
    alpha, roofline = p.alpha, problem.latency.variant == "roofline"
    tp, dp = p.tensor_parallel, p.replicas_per_machine
    gpu = case.gpus[main.gpu or ""]
    flops = tp * (case.gpu_flops(gpu) or 0.0)
    bandwidth = tp * gpu.mem_bytes_per_s
    head = work.head_flops_per_token if roofline else 0.0

    def allreduce(tokens: float) -> float:
        return 2 * 2 * (tp - 1) / tp * tokens * work.allreduce_bytes_per_token / gpu.link_bytes_per_s

    # Memory
    kv = B * (S_in + S_out) * work.kv_bytes_per_token_all_layers
    activations = min(B * S_in, problem.memory.chunk_tokens) * work.activation_bytes_per_token
    resident = work.weight_bytes + activations + B * work.logit_bytes_per_sequence + (1 - alpha) * kv
    vram = tp * main.vram_gib / main.gpu_count * GIB * problem.memory.vram_usable
    found.at_most("VRAM of a replica", resident / GIB, vram / GIB, "GiB")
    memory: list[_Limit] = [("VRAM per replica", resident / GIB, vram / GIB, "GiB", "<=")]

    # Prefill
    compute = B * S_in * (work.linear_flops_per_token + work.attention_flops_per_pair * S_in) / flops
    if roofline:
        compute = max(compute + B * head / flops, float(work.weight_bytes_read(B * S_in)) / bandwidth)
    compute += allreduce(B * S_in)

    transfer = 0.0
    io, net, ao_flops, ao_bandwidth = 1.0, 1.0, 1.0, 1.0
    if p.family in ("kvo_ram", "kvo_disk"):
        if p.family == "kvo_ram":
            io = tp * gpu.pcie_bytes_per_s
            host = (main.ram_gib or 0.0) / dp * problem.memory.ram_usable
        else:
            io = (main.disk_gbps or 0.0) * BYTES_PER_GBIT / dp
            host = problem.memory.volume_gib / dp
        found.at_most("offloaded KV cache", alpha * kv / GIB, host, "GiB")
        where = "host RAM" if p.family == "kvo_ram" else "disk volume"
        memory.append((f"{where} per replica", alpha * kv / GIB, host, "GiB", "<="))
        transfer = alpha * B * S_in * work.kv_bytes_per_token / io
    elif ao is not None:
        ao_gpu = case.gpus[ao.gpu or ""]
        net = min(main.net_gbps or 0.0, ao.net_gbps or 0.0) * BYTES_PER_GBIT / dp
        ao_flops = ao.gpu_count * (case.gpu_flops(ao_gpu) or 0.0) / dp
        ao_bandwidth = ao.gpu_count * ao_gpu.mem_bytes_per_s / dp
        mains = count if p.family == "ao_shared" else 1
        limit = ao.vram_gib * problem.memory.vram_usable / dp / mains
        found.at_most("offloaded KV cache on the AO machine", alpha * kv / GIB, limit, "GiB")
        memory.append(("AO machine's VRAM per replica", alpha * kv / GIB, limit, "GiB", "<="))
        transfer = alpha * B * S_in * work.ao_bytes_per_token / net
    first = L * max(compute, transfer)

    # Decode, one step after the other
    weights = float(work.weight_bytes_read(B)) / bandwidth
    linear = B * (work.linear_flops_per_token + head) / flops
    decode = service = 0.0
    for t in range(1, S_out):
        context = S_in + t
        attention = B * work.attention_flops_per_pair * context
        kv_read = B * context * work.kv_bytes_per_token
        if p.family in ("ao", "ao_parallel", "ao_shared"):
            sent = B * work.ao_bytes_per_token / net
            if roofline:
                own = max(linear, weights)
                local = (1 - alpha) * max(attention / flops, kv_read / bandwidth)
                remote = alpha * (max(attention / ao_flops, kv_read / ao_bandwidth) + sent)
            else:
                own, local = linear, (1 - alpha) * attention / flops
                remote = alpha * attention / ao_flops + sent
            decode += own + max(local, remote)
            service += remote
        else:
            fetched = alpha * kv_read / io if p.family in ("kvo_ram", "kvo_disk") else 0.0
            if roofline:
                decode += max(linear + attention / flops, weights + (1 - alpha) * kv_read / bandwidth, fetched)
            else:
                decode += linear + attention / flops + max((1 - alpha) * kv_read / bandwidth, fetched)
        decode += allreduce(B)
    steps = S_out - 1
    tbt = 0.0
    if p.family != "ao_shared":
        found.require("load only of a shared AO machine", p.prediction.ao_load is None, p.prediction.ao_load, None)
    elif not steps:
        found.equal("predicted load of the AO machine", p.prediction.ao_load, 0.0)
    if steps:
        mean, mean_service = decode / steps, service / steps
        if p.family == "ao_shared":
            load = count * mean_service / mean
            if load >= 1:
                found.add("load of the shared AO machine < 1", load, 1.0)
                load = 1 - 1e-12
            mean += mean_service * load / (2 * (1 - load))
            found.equal("predicted load of the AO machine", p.prediction.ao_load, load)
        tbt = L * mean

    # LP(18)
    if case.calibration is not None:
        first = _calibrated(case, main.gpu or "", p.family, "prefill", first)
        tbt = _calibrated(case, main.gpu or "", p.family, "decode", tbt) if steps else 0.0
    one_pass = first + steps * tbt
    return first + (p.passes - 1) * one_pass, tbt, p.passes * one_pass, memory


def _calibrated(case: Case, gpu: str, family: str, phase: str, seconds: float) -> float:
    assert case.calibration is not None
    for c in case.calibration.coefficients:
        if c.phase == phase and c.gpu in ("*", gpu) and c.family in ("*", family):
            return (c.slope * seconds + c.intercept_s) * _margin(c.residual_quantiles, case.problem.latency.safety)
    return seconds


def _margin(quantiles: Mapping[str, float], safety: float | None) -> float:
    """Measured/predicted at the first stored level reaching the safety level; NaN, which no limit admits, if none."""
    if safety is None:
        return 1.0
    enough = sorted((float(level), ratio) for level, ratio in quantiles.items() if float(level) >= safety - 1e-9)
    return enough[0][1] if enough else float("nan")
