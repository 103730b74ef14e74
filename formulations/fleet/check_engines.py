"""Independent check of deployments that batch continuously: every figure of a line anew, from step and wait stated.

Request by request and chunk by chunk, in plain numbers: what README.md says under "Continuous batching", and
`optmodels.serving.continuous` does in closed form over arrays. The seconds of a step and the tokens that a cache holds
are the toolkit's (`optmodels.latency`): they are data here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from formulations.fleet.plan import DeploymentLine, ShareLine
from formulations.fleet.problem import Demand, Fleet, FleetCase
from optmodels.errors import InputError
from optmodels.latency.memory import kv_tokens
from optmodels.latency.resolve import deployment, llm_name, resolve
from optmodels.latency.work import layer_work
from optmodels.plan.engines import SLACK, Level, Request, at_level, capacities, check_batched_tokens, latencies
from optmodels.plan.findings import Findings
from optmodels.plan.lines import latency_source
from optmodels.serving.continuous import seconds_and_quantile


def check_engines(
    found: Findings, problem: Fleet, case: FleetCase, demands: Mapping[str, Demand], models: Mapping[str, str],
    t: int, d: DeploymentLine, where: str, stretch: float = 1.0,
) -> None:  # fmt: skip
    """Every figure of a line of engines but its price; limits are `stretch` times as long, where simulation vouches."""
    e, loads = d.engine, d.loads or ""
    assert e is not None
    assert case.source is not None
    limits = problem.engine
    for what, stated, true in (
        ("max_num_seqs", e.max_num_seqs, limits.max_num_seqs), ("chunk_tokens", e.chunk_tokens, limits.chunk_tokens),
    ):  # fmt: skip
        found.require(f"{where}: {what}", stated == true, stated, true)
    names = {case.workload(demands[s.demand].workload).name for s in d.serves}
    found.require(
        f"{where}: one model per deployment", {models[n] for n in names} <= {models[loads]}, sorted(names), loads
    )
    mine = [x for x in demands.values() if models[x.workload] == models[loads]]
    requests = {}
    for x in mine:
        prompt = float(x.input_tokens or 1)
        new = max(prompt * (1 - case.workload(x.workload).prefix_hit_share), 1.0)
        requests[x.name] = Request(prompt, new, float(x.output_tokens or 1), max(x.requests_per_s))
    machine = next(m for m in d.machines if m.role == "main")
    listed = next(m for m in case.machines if (m.machine, m.region) == (machine.machine, machine.region))
    w, gpus, gpu = case.workload(loads), d.tensor_parallel or 1, listed.gpu or ""
    weight = sum(r.weight for r in requests.values())
    prompts = sum(r.weight * r.prompt for r in requests.values()) / weight
    try:
        model = deployment(
            case.source, case.architectures[loads], llm_name(w.model or case.architectures[loads]), case.gpus[gpu], gpu,
            w.precision.weights, w.precision.kv, gpus,
        )  # fmt: skip
        costs, provenance = resolve(case.source, model, prompts)
        tpot, ttft = provenance.factors(problem.latency.safety)
    except InputError as error:
        found.add(f"{where}: engines", str(error), "steps of known latency")
        return
    source = latency_source(provenance)
    found.require(f"{where}: source of latencies", e.latency == source, e.latency, source)
    costs = costs.scaled(tpot)
    kv = kv_tokens(
        layer_work(case.architectures[loads], w.precision.weights, w.precision.kv),
        listed.vram_gib / listed.gpu_count * 2**30, gpus, utilization=problem.memory.vram_usable,
        runtime_bytes=problem.memory.runtime_gib * 2**30,
        chunk_tokens=limits.max_num_batched_tokens, max_requests=limits.max_num_seqs,
        request_tokens=min(r.prompt + r.output for r in requests.values()),
    )  # fmt: skip
    found.close(f"{where}: KV tokens", e.kv_tokens, kv, "tokens")
    level = at_level(limits, costs, kv, requests, e.step_s) if kv > 0 and e.wait_s > 0 else None
    if level is None:
        found.add(
            f"{where}: step and wait that an engine can be planned for", e.step_s, "a step above its fixed part", "s"
        )
        return
    check_batched_tokens(found, where, e, level, limits)
    each = capacities(level, e.step_s, e.wait_s, e.most_of_wait, limits.max_num_seqs)
    engines = (d.replicas_per_machine or 1) * d.load_level
    used = dict.fromkeys(each[mine[0].name], 0.0)
    for s in d.serves:
        demand = demands[s.demand]
        found.require(f"{where}: share of {s.demand}", 0 <= s.share <= 1 + SLACK, s.share, "0 … 1")
        rate = s.share * demand.requests_per_s[t]
        found.close(f"{where}: requests/s of {s.demand}", s.requests_per_s, rate, "1/s")
        takes = {k: v * rate / engines for k, v in each[s.demand].items()}
        found.close(f"{where}: load by {s.demand}", s.load, max(takes.values()), "deployments", scale=1.0)
        used = {k: used[k] + takes[k] for k in used}
        _share(found, case, level, s, demand, d, max(ttft / tpot, 1.0), costs.request_s, stretch, where)
    names_match = set(e.capacities) == set(used)
    found.require(f"{where}: capacities by name", names_match, sorted(e.capacities), sorted(used))
    for k, v in used.items():
        found.close(f"{where}: {k} in use", e.capacities.get(k, math.nan), v / d.count, scale=1.0)
        found.at_most(f"{where}: {k} ≤ what there is", v, d.count, "deployments")
    most = max(used.values())
    found.close(f"{where}: utilisation", d.utilisation, most * d.load_level / d.count, scale=1.0)
    found.close(f"{where}: headroom", d.headroom, 1 - most / d.count, scale=1.0)


def _share(
    found: Findings, case: FleetCase, level: Level, s: ShareLine, demand: Demand, d: DeploymentLine, factor: float,
    request_s: float, stretch: float, where: str,
) -> None:  # fmt: skip
    """Latencies of one bucket on the line, and its limits."""
    e, w = d.engine, case.workload(demand.workload)
    assert e is not None
    named = (("TTFT", w.slo.ttft_s), ("TBT", w.slo.tbt_s), ("deadline", w.slo.deadline_s))
    read = [(what, *seconds_and_quantile(limit)) for what, limit in named]
    limits = [(what, seconds * stretch, q) for what, seconds, q in read]
    true = latencies(
        level, level.requests[s.demand], e.step_s, e.wait_s, e.most_of_wait, e.max_num_seqs, factor, request_s,
        (limits[0][2], limits[1][2], limits[2][2]),
    )  # fmt: skip
    found.require(f"{where}: no other wait of {s.demand}", s.wait_s == 0, s.wait_s, 0)
    up_to, worst = 1.0 if w.soft is None else w.soft.up_to, 0.0
    for (what, seconds, _), stated, value in zip(limits, (s.ttft_s, s.tbt_s, s.e2e_s), true, strict=True):
        found.close(f"{where}: {what} of {s.demand}", math.nan if stated is None else stated, value, "s")
        if math.isfinite(seconds):
            found.at_most(f"{where}: {what} of {s.demand}", value, seconds * up_to, "s")
            worst = max(worst, value / seconds)
    missed = w.soft is not None and worst > 1
    if w.soft is None or not 0 < worst - 1 < SLACK:
        said = f"{where}: {s.demand} is said to miss its SLO exactly if it does"
        found.require(said, s.misses_slo == missed, s.misses_slo, missed)
