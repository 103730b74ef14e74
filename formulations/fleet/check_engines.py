"""Independent check of deployments that batch continuously: every figure of a line again, from step and wait stated.

Request by request and chunk by chunk, in plain numbers: as docs/engine.md states it, and as
`optmodels.engine.continuous` does in closed form over arrays. The seconds of a step and the tokens that a cache holds
are the toolkit's (`optmodels.latency`): they are data here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from formulations.fleet.plan import DeploymentLine, PeriodLine, ShareLine
from formulations.fleet.problem import Demand, Fleet, FleetCase
from optmodels.engine.continuous import Classes, EngineLimits, seconds_and_quantile
from optmodels.engine.costs import drafts_of, engine_costs
from optmodels.engine.running import running
from optmodels.errors import InputError
from optmodels.latency.memory import kv_bytes
from optmodels.latency.steps import StepCosts
from optmodels.latency.work import layer_work
from optmodels.plans.engines import (
    SLACK,
    Level,
    Request,
    at_level,
    between_tokens,
    capacities,
    check_stated,
    drafted,
    latencies,
    seen_at_least,
)
from optmodels.plans.findings import Findings
from optmodels.plans.lines import EngineLine

Models = Mapping[tuple[str, str | None], str]  # loaded models, by workload and position in its list


def loadable(models: Models, d: DeploymentLine, workload: str) -> bool:
    """Whether a workload accepts the model that a line loads."""
    loaded = models.get((d.loads or "", d.model))
    return loaded is not None and any(name == workload and of == loaded for (name, _), of in models.items())


def check_engines(
    found: Findings, problem: Fleet, case: FleetCase, demands: Mapping[str, Demand], models: Models,
    t: int, d: DeploymentLine, where: str, stretch: float = 1.0, able: dict[str, list[float]] | None = None,
) -> None:  # fmt: skip
    """Every figure of a line of engines but its price; limits are `stretch` times as long, where simulation vouches.

    With scenarios `able` gets the demands that the line serves within their limits, and the load of one request/s.
    """
    e, loads = d.engine, d.loads or ""
    assert e is not None
    limits = problem.engine.choosing(e.max_num_seqs)
    others = sorted(s.demand for s in d.serves if not loadable(models, d, demands[s.demand].workload))
    found.require(f"{where}: serves workloads that accept its model", not others, others, loads)
    if others:
        return
    case = case.loading(d.loads, d.model)
    mine = [x for x in demands.values() if loadable(models, d, x.workload)]
    kept, shares = _cached(problem, case, {x.workload for x in mine}, e.kv_tokens)
    kept = 0.0 if d.stage == "decode" else kept  # whose requests bring their caches
    requests = {}
    for x in mine:
        prompt = float(x.input_tokens or 1)
        new = max(prompt * (1 - shares[x.workload]), 1.0)
        output = float(x.output_tokens or 1)
        requests[x.name] = Request(
            prompt, 0.0 if d.stage == "decode" else new, 1.0 if d.stage == "prefill" else output, x.weight
        )
    machine = next(m for m in d.machines if m.role == "main")
    listed = next(m for m in case.machines if (m.machine, m.region) == (machine.machine, machine.region))
    w, tp, ranks, gpu = case.workload(loads), d.tensor_parallel or 1, d.attention_ranks or 1, listed.gpu or ""
    weight = sum(r.weight for r in requests.values())
    prompts = sum(r.weight * r.prompt for r in requests.values()) / weight
    sent = {x.name: _cache_bytes(case, x) for x in mine} if d.stage != "both" else {}
    link, net = problem.deployment.link, (problem.deployment.link.net_gbps or listed.net_gbps or 0.0) * 1e9 / 8
    if d.stage != "both" and net <= 0:
        found.add(f"{where}: network of {machine.machine}", net, "bytes/s > 0, through which KV caches go")
        return
    latency = link.latency_s if d.stage == "prefill" else 0.0
    on_the_way = {k: v / link.rate(net) + latency for k, v in sent.items()}
    shortest = min(float((x.input_tokens or 1) + (x.output_tokens or 1)) for x in mine)
    try:
        engine = engine_costs(case.on_engines(w, prompts, shortest), limits, case.gpus[gpu], gpu, tp,
                              listed.vram_gib / listed.gpu_count, ranks)  # fmt: skip
    except InputError as error:
        found.add(f"{where}: engines", str(error), "steps of known latency")
        return
    check_stated(found, where, e, engine, limits)
    kv, costs = engine.kv_tokens, drafted(engine.alone or engine.costs, engine.draft, engine.speculation)
    waits = e.wait_s == 0 and e.most_of_wait is None if d.stage == "decode" else e.wait_s > 0
    told = limits.model_copy(update={"max_num_seqs": e.max_num_seqs})
    level = at_level(told, costs, kv * (1 - kept), requests, e.step_s, d.stage, ranks) if kv > 0 and waits else None
    if level is None:
        found.add(
            f"{where}: step and wait that an engine can be planned for", e.step_s, "a step above its fixed part", "s"
        )
        return
    each = capacities(
        level, e.step_s, e.wait_s, e.most_of_wait, e.max_num_seqs, on_the_way, e.place_wait_s, limits.busiest
    )  # fmt: skip
    for k, v in sent.items():  # of the machine's network, which its engines share
        each[k]["transfer"] = v / (link.most_used * net) * (d.replicas_per_machine or 1)
    engines = (d.replicas_per_machine or 1) * d.load_level
    factors = over_time(case, demands)
    if able is not None and case.draws is not None and d.stage == "both":
        for x in mine:
            if _keeps(case, level, x, d, engine.slower, costs.request_s, stretch):
                able[x.name] = [f * load / engines for load in each[x.name].values() for f in factors[x.name]]
    every = [dict.fromkeys(each[mine[0].name], 0.0) for _ in next(iter(factors.values()))]  # by piece of a trace
    each_of = d.count * (d.replicas_per_machine or 1)
    rates = {s.demand: s.share * demands[s.demand].requests_per_s[t] / each_of for s in d.serves}
    for s in d.serves:
        demand = demands[s.demand]
        found.require(f"{where}: share of {s.demand}", 0 <= s.share <= 1 + SLACK, s.share, "0 … 1")
        rate = s.share * demand.requests_per_s[t]
        found.close(f"{where}: requests/s of {s.demand}", s.requests_per_s, rate, "1/s")
        takes = {k: v * rate / engines for k, v in each[s.demand].items()}
        most = max(factors[s.demand])
        found.close(f"{where}: load by {s.demand}", s.load, most * max(takes.values()), "deployments", scale=1.0)
        every = [
            {k: v + f * takes[k] for k, v in used.items()} for f, used in zip(factors[s.demand], every, strict=True)
        ]
        if d.stage == "decode" and (demand.output_tokens or 1) < 2:
            found.add(f"{where}: tokens of {s.demand} to decode", demand.output_tokens or 1, "2 or more")
            continue
        moved = on_the_way.get(s.demand, 0.0)
        if s.tpot_s is not None:
            quantile = seconds_and_quantile(case.workload(demand.workload).slo.tpot_s)[1]
            least = seen_at_least(level, costs, level.requests[s.demand], rates, quantile)
            found.at_most(f"{where}: TPOT of {s.demand} seen at least ≤ what it is at most", least, s.tpot_s, "s")
        _share(found, case, level, s, demand, d, engine.slower, costs.request_s, moved, stretch, where)
        _pause(found, case, level, s, demand, d, costs, told, moved, stretch, where)
    used = {k: max(piece[k] for piece in every) for k in every[0]}
    if d.stage == "both" and max(used.values()) > d.count * (1 + SLACK):  # else its upper bound holds
        _predicted(found, case, d, level, costs, engine.slower, kv * (1 - kept), rates, told, where)
    names_match = set(e.capacities) == set(used)
    found.require(f"{where}: capacities by name", names_match, sorted(e.capacities), sorted(used))
    for k, v in used.items():
        found.close(f"{where}: {k} in use", e.capacities.get(k, math.nan), v / d.count, scale=1.0)
        found.at_most(f"{where}: {k} ≤ what there is", v, d.count, "deployments")
    most = max(used.values())
    found.close(f"{where}: utilisation", d.utilisation, most * d.load_level / d.count, scale=1.0)
    found.close(f"{where}: headroom", d.headroom, 1 - most / d.count, scale=1.0)


def _predicted(
    found: Findings, case: FleetCase, d: DeploymentLine, level: Level, costs: StepCosts, slower: float, kv: float,
    rates: Mapping[str, float], told: EngineLimits, where: str,
) -> None:  # fmt: skip
    """Where requests take more of an engine than there is, each bucket's latency is no more than its bound.

    Elsewhere the bounds of its level hold whatever an estimate says, and screens state the smaller of the two.
    """
    mine = [level.requests[s.demand] for s in d.serves]
    if not any(rates[s.demand] > 0 for s in d.serves):
        return
    classes = Classes.of(
        [r.prompt for r in mine], [r.output for r in mine], cached=np.array([1 - r.new / r.prompt for r in mine])
    )
    at = running(costs, slower, classes, np.array([rates[s.demand] for s in d.serves]), kv, told, level.ranks)
    for k, s in enumerate(d.serves):
        slo = case.workload(s.demand.partition("/")[0]).slo
        for name, what, limit, most in (
            ("TTFT", "ttft_s", slo.ttft_s, s.ttft_s), ("TPOT", "tpot_s", slo.tpot_s, s.tpot_s),
            ("E2E", "e2e_s", slo.deadline_s, s.e2e_s), ("ITL", "itl_s", slo.itl_s, s.itl_s),
        ):  # fmt: skip
            if what == "itl_s" and limit is None:
                continue
            estimate = at.at(what, k, seconds_and_quantile(limit)[1])
            found.at_most(f"{where}: predicted {name} of {s.demand} ≤ at most", estimate, most or math.inf, "s")


def over_time(case: FleetCase, demands: Mapping[str, Demand]) -> dict[str, list[float]]:
    """Rate of every demand over its mean in each piece of the traces; [1] for every demand where there are none."""
    ends: dict[str, list[float]] = {}
    for name, pieces in case.pieces_of.items():
        total = 0.0
        for seconds in pieces.seconds:
            total += seconds
            ends.setdefault(name, []).append(round(total, 6))
    moments = sorted({0.0}.union(*(x[:-1] for x in ends.values()), *(x[-1:] for x in ends.values()))) or [0.0]
    begins = moments[:-1] or [0.0]
    found = {}
    for name, d in demands.items():
        mine, rates = ends.get(d.workload, []), d.rates
        if rates is None or not mine or d.base_requests_per_s <= 0:
            found[name] = [1.0] * len(begins)
            continue
        at = [next((k for k, end in enumerate(mine) if begin < end), None) for begin in begins]
        found[name] = [(max(rates) if k is None else rates[k]) / d.base_requests_per_s for k in at]
    return found


def _cached(problem: Fleet, case: FleetCase, workloads: set[str], kv_tokens: float) -> tuple[float, dict[str, float]]:
    """Share of the KV cache that prefixes have, and the least share of each workload's prompts.

    Of the measured numbers of engines those up to the first that is the instance's or more; of each the largest size
    that fits into the cache.
    """
    shares = {name: case.workload(name).prefix_hit_share for name in workloads}
    cache, kept = problem.prefix_cache, 0.0
    for name in workloads if cache is not None else ():
        assert cache is not None
        by_count: dict[int, list[tuple[float, float]]] = {}
        for row in case.hits:
            if row.workload is None or row.workload == name:
                by_count.setdefault(row.engines, []).append((row.kv_tokens, row.share))
        if not by_count:
            continue
        kept, least = cache.kept, 1.0
        for count, sizes in sorted(by_count.items()):
            fitting = [x for x in sizes if x[0] <= cache.kept * kv_tokens]
            least = min(least, max(fitting)[1] if fitting else 0.0)
            if count >= cache.engines:
                break
        shares[name] = least
    return kept, shares


def _seen(
    level: Level, r: Request, e: EngineLine, factor: float, request_s: float,
    quantiles: tuple[float | None, float | None, float | None],
) -> tuple[float, float, float]:  # fmt: skip
    """TTFT, time per output token and E2E of requests on a line, each at its quantile."""
    wait = e.wait_s + e.place_wait_s
    return latencies(level, r, e.step_s, wait, e.most_of_wait, e.max_num_seqs, factor, request_s, quantiles,
                     e.place_wait_s > 0)  # fmt: skip


def _keeps(
    case: FleetCase, level: Level, demand: Demand, d: DeploymentLine, factor: float, request_s: float, stretch: float
) -> bool:  # fmt: skip
    """Whether requests of a demand meet their limits on the line."""
    e, w = d.engine, case.workload(demand.workload)
    assert e is not None
    limits = [seconds_and_quantile(limit) for limit in (w.slo.ttft_s, w.slo.tpot_s, w.slo.deadline_s)]
    seen = _seen(level, level.requests[demand.name], e, factor, request_s, (limits[0][1], limits[1][1], limits[2][1]))
    return all(value <= seconds * stretch * (1 + SLACK) for value, (seconds, _) in zip(seen, limits, strict=True))


def _share(
    found: Findings, case: FleetCase, level: Level, s: ShareLine, demand: Demand, d: DeploymentLine, factor: float,
    request_s: float, moved_s: float, stretch: float, where: str,
) -> None:  # fmt: skip
    """Latencies of one bucket on the line, and its limits; `moved_s`: of its KV cache, from or to the line."""
    e, w = d.engine, case.workload(demand.workload)
    assert e is not None
    named = (("TTFT", w.slo.ttft_s), ("TPOT", w.slo.tpot_s), ("deadline", w.slo.deadline_s))
    read = [(what, *seconds_and_quantile(limit)) for what, limit in named]
    limits = [(what, seconds * stretch, q) for what, seconds, q in read]
    seen = _seen(level, level.requests[s.demand], e, factor, request_s, (limits[0][2], limits[1][2], limits[2][2]))
    first, each, whole = seen
    true: tuple[float | None, float | None, float | None] = seen
    if d.stage == "prefill":
        true = first + moved_s, None, whole + moved_s
    elif d.stage == "decode":  # the first part of a request is another line's
        joins = e.step_s + moved_s + request_s
        rest = level.requests[s.demand].output - 1
        at = _seen(level, level.requests[s.demand], e, factor, request_s, (None, limits[2][2], None))[1]
        true = None, each + joins / rest, rest * at + joins
    found.require(f"{where}: no other wait of {s.demand}", s.wait_s == 0, s.wait_s, 0)
    up_to, worst = 1.0 if w.soft is None else w.soft.up_to, 0.0
    for (what, seconds, _), stated, value in zip(limits, (s.ttft_s, s.tpot_s, s.e2e_s), true, strict=True):
        if value is None:
            found.require(f"{where}: no {what} of {s.demand}", stated is None, stated, None)
            continue
        found.close(f"{where}: {what} of {s.demand}", math.nan if stated is None else stated, value, "s")
        if math.isfinite(seconds) and (d.stage == "both" or what != "deadline"):  # of a stage: `check_stages`
            found.at_most(f"{where}: {what} of {s.demand}", value, seconds * up_to, "s")
            worst = max(worst, value / seconds)
    missed = w.soft is not None and worst > 1
    if w.soft is None or not 0 < worst - 1 < SLACK:
        said = f"{where}: {s.demand} is said to miss its SLO exactly if it does"
        by_itl = w.soft is not None and s.itl_s is not None and s.itl_s > stretch * seconds_and_quantile(w.slo.itl_s)[0]
        found.require(said, s.misses_slo == (missed or by_itl), s.misses_slo, missed or by_itl)


def _pause(
    found: Findings, case: FleetCase, level: Level, s: ShareLine, demand: Demand, d: DeploymentLine, costs: StepCosts,
    told: EngineLimits, moved_s: float, stretch: float, where: str,
) -> None:  # fmt: skip
    """Time between two tokens of one bucket on the line, and its limit; none where it only prefills or has no limit.

    Where it is decoded apart one of its n times between tokens is that until it joins, and all others leave room for it
    if there are enough of them.
    """
    e, w, r = d.engine, case.workload(demand.workload), level.requests[s.demand]
    assert e is not None
    seconds, quantile = seconds_and_quantile(w.slo.itl_s)
    if d.stage == "prefill" or w.slo.itl_s is None:
        found.require(f"{where}: no ITL of {s.demand}", s.itl_s is None, s.itl_s, None)
        return

    def at(q: float | None) -> float:
        asked = {s.demand: q}
        return between_tokens(level, costs, told, asked, e.step_s, e.max_num_seqs, e.place_wait_s > 0)[s.demand]

    true = at(quantile)
    if d.stage == "decode":
        joins = e.step_s + moved_s + costs.request_s
        if quantile is None:
            true += joins / max(r.decodes, 1)
        else:
            true += joins
            if (room := (1 - quantile) * r.decodes - 1) > 1e-9 * (r.decodes - 1):
                true = min(true, at(1 - min(room / (r.decodes - 1), 0.5)))
    found.close(f"{where}: ITL of {s.demand}", math.nan if s.itl_s is None else s.itl_s, true, "s")
    up_to = 1.0 if w.soft is None else w.soft.up_to
    found.at_most(f"{where}: ITL of {s.demand}", true, seconds * stretch * up_to, "s")
    if true > seconds * stretch * (1 + SLACK):
        found.require(f"{where}: {s.demand} is said to miss its ITL", s.misses_slo, s.misses_slo, True)


def _cache_bytes(case: FleetCase, demand: Demand) -> float:
    """Of the KV cache of a bucket's prompt, and of the draft model's."""
    w = case.workload(demand.workload)
    model, precisions, prompt = case.architectures[w.name], (w.precision.weights, w.precision.kv), demand.input_tokens
    drafts = drafts_of(case.problem.engine, model, *precisions)
    head, small = (0.0, None) if drafts is None else (drafts.head, drafts.work)
    each = [(1.0 + head, layer_work(model, *precisions))] + ([] if small is None else [(1.0, small)])
    return math.fsum(times * float(kv_bytes(work, 1, 1.0, float(prompt or 1))) for times, work in each)


def check_stages(
    found: Findings, problem: Fleet, case: FleetCase, demands: Mapping[str, Demand], models: Models,
    q: PeriodLine, stretch: float = 1.0,
) -> None:  # fmt: skip
    """Disaggregated prefills are decoded by deployments that exchange caches with it, in time; and the transfers.

    In time is within deadlines `stretch` times as long, where simulation vouches.

    Shares are paired one by one, the slowest prefill first: whatever decode deployment is in time for it is so for
    every faster one, so that which of them it takes makes no difference.
    """
    ends: dict[tuple[str, str, int | None], dict[str, tuple[list[list[float]], list[list[float]]]]] = {}
    loads: dict[tuple[str, str, int | None], set[str]] = {}
    views: dict[tuple[str, str, int | None], FleetCase] = {}
    for d in q.deployments:
        if d.stage == "both":
            continue
        equal = problem.deployment.link.tensor_parallel == "equal"
        key = models[d.loads or "", d.model], d.machines[0].region, d.tensor_parallel if equal else None
        for s in d.serves:
            pair = ends.setdefault(key, {}).setdefault(s.demand, ([], []))
            pair[d.stage == "decode"].append([s.e2e_s or 0.0, s.share])
            loads.setdefault(key, set()).add(demands[s.demand].workload)
            views[key] = case.loading(d.loads, d.model)
    sent_of = {
        key: {name: sum(share for _, share in firsts) for name, (firsts, _) in by_demand.items()}
        for key, by_demand in ends.items()
    }
    for key, by_demand in ends.items():
        where = f"{q.name}: prefill and decode of {min(loads[key])} in {key[1] or 'one place'}"
        for name, (firsts, rests) in by_demand.items():
            first, rest = (sum(share for _, share in side) for side in (firsts, rests))
            found.close(f"{where}: share of {name} decoded", rest, first, scale=1.0)
            limit = stretch * seconds_and_quantile(case.workload(demands[name].workload).slo.deadline_s)[0]
            late = 0.0
            for seconds, share in sorted(firsts, reverse=True):
                for other in rests:
                    taken = min(share, other[1]) if seconds + other[0] <= limit * (1 + SLACK) else 0.0
                    share, other[1] = share - taken, other[1] - taken
                late += share if math.isfinite(limit) else 0.0
            found.at_most(f"{where}: share of {name} that misses its deadline", late, SLACK)
    stated = {
        (models[x.loads or "", x.model], x.region, x.tensor_parallel): x
        for x in q.transfers
        if (x.loads or "", x.model) in models and (x.loads is None) == (case.points is not None)
    }
    same = len(stated) == len(q.transfers) and set(stated) == set(ends)
    found.require(f"{q.name}: transfers", same, [x.loads for x in q.transfers], sorted(k[1] for k in ends))
    for key in set(stated) & set(ends):
        line, at = stated[key], [x.name for x in case.periods].index(q.name)
        shares = sent_of[key]
        found.require(f"{q.name}: demands of transfers", set(line.demands) == set(shares), line.demands, shares)
        for name, share in shares.items():
            found.close(f"{q.name}: share of {name} sent", line.demands.get(name, math.nan), share, scale=1.0)
        sent = {name: share * demands[name].requests_per_s[at] for name, share in shares.items()}
        found.close(f"{q.name}: requests/s sent", line.requests_per_s, sum(sent.values()), "1/s")
        if case.points is not None:
            found.require(
                f"{q.name}: no KV caches counted of measured points", line.gb_per_s is None, line.gb_per_s, None
            )
            continue
        total = sum(v * _cache_bytes(views[key], demands[name]) for name, v in sent.items()) / 1e9
        found.close(f"{q.name}: KV caches sent", math.nan if line.gb_per_s is None else line.gb_per_s, total, "GB/s")
