"""Independent check of machines with continuous batching: a line's figures, from its step and wait."""

from __future__ import annotations

import math

import numpy as np

from formulations.reserved_capacity.plan import ReservedPlan, ServingLine
from formulations.reserved_capacity.problem import ReservedCapacity, ReservedCase
from formulations.reserved_capacity.throughput import hardware_of, on_engines
from optmodels import catalog
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.engine.costs import engine_costs
from optmodels.errors import InputError
from optmodels.plans.engines import Kind, check_engine
from optmodels.plans.findings import Findings


def check_engines(found: Findings, problem: ReservedCapacity, case: ReservedCase, p: ReservedPlan) -> None:
    """Levels that exist, keep the limits, and carry the requests that the machines of the plan are counted for."""
    level = problem.level()
    if level is None or level.engine is None:
        found.require("how machines batch, with continuous batching only", not p.serving, len(p.serving), 0)
        return
    machines, services = [m.machine for m in problem.machines], [s.service for s in problem.services]
    pairs = [(line.machine, line.service, _point(case, machines, services, line)) for line in p.serving]
    found.require("one line for a machine, a service and an operating point", len(set(pairs)) == len(pairs), pairs,
                  "each once")  # fmt: skip
    of_engines = [
        (m, s, x) for i, m in enumerate(machines) for k, s in enumerate(services)
        for x in case.points(i, k) if case.derived(i, k, x)
    ]  # fmt: skip
    missing = sorted(set(of_engines) - set(pairs))  # where the file itself states a rate there is no engine to run
    found.require("how machines batch, with continuous batching", not missing, missing, "a line for each")
    for line, (_, _, x) in zip(p.serving, pairs, strict=True):
        where = f"{line.service} on {line.machine}"
        known = line.machine in machines and line.service in services
        k = services.index(line.service) if known else 0
        service = problem.services[k]
        if not known or service.workload is None:
            found.add(f"{where}: a machine, and a service with a workload", where, "names of the problem")
            continue
        i, w, slo = machines.index(line.machine), service.workload, service.slo
        gpu, gpus, vram = hardware_of(problem.machines[i])
        of, ranks = on_engines(service, level), line.attention_ranks or 1
        used = line.tensor_parallel * ranks * line.replicas_per_machine
        found.require(f"{where}: TP × attention ranks × replicas = GPUs of the machine", used == gpus, used, gpus)
        allowed = w.attention_ranks if of.architecture.routed else (1,)
        found.require(f"{where}: attention ranks are allowed", ranks in allowed, ranks, allowed)
        heads = of.architecture.heads
        found.require(f"{where}: TP divides the heads", heads % line.tensor_parallel == 0, line.tensor_parallel, heads)
        try:
            of_gpu = catalog.gpus()[gpu or ""]
            engine = engine_costs(of, level.engine, of_gpu, gpu or "", line.tensor_parallel, vram, ranks)
        except (InputError, KeyError) as error:
            found.add(f"{where}: engines", str(error), "steps of known latency")
            continue
        limits = {"TTFT": seconds_and_quantile(slo.ttft_s), "TPOT": seconds_and_quantile(slo.tpot_s)}
        lengths = tuple((float(x.input_tokens), float(x.output_tokens), x.share) for x in w.classes)
        kind = Kind(lengths, w.cached_input_share, limits["TTFT"][1], limits["TPOT"][1],
                    seconds_and_quantile(slo.deadline_s)[1], slo.itl_s)  # fmt: skip
        rate = line.requests_per_s / line.replicas_per_machine
        seen = check_engine(found, where, line.engine, engine, level.engine, kind, rate)
        if seen is None:
            continue
        counted, several = float(case.rps_at[i, k, x]), len(case.points(i, k)) > 1
        reach_s = min(limits["TTFT"][0] - slo.queue_s - seen.first_s, slo.deadline_limit_s - seen.deadline_s)
        found.require(f"{where}: reach, of several operating points", several == (line.reach_ms is not None),
                      line.reach_ms, "stated" if several else None)  # fmt: skip
        if line.reach_ms is not None:
            found.close(f"{where}: longest round trip", line.reach_ms, 1e3 * reach_s, "ms")
        for what, stated, true, unit in (
            ("TTFT without waiting", line.ttft_s, seen.first_s, "s"), ("wait", line.wait_s, seen.waiting_s, "s"),
            ("TPOT", line.tpot_s, seen.tpot_s, "s"), ("E2E", line.e2e_s, seen.e2e_s, "s"),
            ("requests/s that machines are counted for", counted, line.requests_per_s, "1/s"),
            ("TTFT that reach is counted with", float(case.prefill_s_at[i, k, x]), line.ttft_s, "s"),
        ):  # fmt: skip
            found.close(f"{where}: {what}", stated, true, unit)
        if slo.itl_s is None:
            found.require(f"{where}: no ITL", line.itl_s is None, line.itl_s, None)
        else:
            found.close(f"{where}: ITL", math.nan if line.itl_s is None else line.itl_s, seen.itl_s, "s")
            found.at_most(f"{where}: ITL ≤ itl_s", seen.itl_s, seconds_and_quantile(slo.itl_s)[0], "s")
        if slo.deadline_s is not None:
            found.close(f"{where}: E2E that reach is counted with", float(case.e2e_s_at[i, k, x]), seen.deadline_s, "s")
        found.at_most(f"{where}: wait ≤ queue_s", seen.waiting_s, slo.queue_s, "s")
        found.at_most(f"{where}: TTFT and queue_s ≤ ttft_s", seen.first_s + slo.queue_s, limits["TTFT"][0], "s")
        found.at_most(f"{where}: E2E ≤ deadline_s", seen.deadline_s, slo.deadline_limit_s, "s")
        found.at_most(f"{where}: TPOT ≤ tpot_s", seen.tpot_s, limits["TPOT"][0], "s")


def _point(case: ReservedCase, machines: list[str], services: list[str], line: ServingLine) -> int:
    """The operating point of the instance with requests/s nearest to a line's."""
    if line.machine not in machines or line.service not in services:
        return 0
    rates = case.rps_at[machines.index(line.machine), services.index(line.service)]
    return int(np.abs(rates - line.requests_per_s).argmin())
