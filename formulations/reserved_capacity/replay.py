"""Replay of a reserved-capacity plan: its machines of an hour on a request trace, and again without each region.

A machine becomes the replicas its throughput was derived from (`throughput`): step times and KV memory from the
same roofline, at most the planned batch. Where the problem states throughputs only, a replica is assumed that serves
exactly that many mean requests per second; a note names it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from formulations.reserved_capacity.plan import ReservedPlan
from formulations.reserved_capacity.points import ReservedTables, build_tables
from formulations.reserved_capacity.problem import QUARTERS_OF_TERM, ReservedCapacity, ReservedCase, ServiceSlo
from formulations.reserved_capacity.throughput import PROMPT_TOKENS_A_STEP, MachineChoice
from optmodels.arrays import Array, Ints
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.engine.lengths import Length, mean_tokens
from optmodels.errors import InputError, Mistake
from optmodels.latency.memory import kv_copies, weight_bytes
from optmodels.simulation.options import ReplayOptions
from optmodels.simulation.regions import RegionEngine, RegionFleet, RegionRouting, Replay, describe, policy, simulate
from optmodels.traces.multiregion import Chat, RegionWorkload, open_loop_chat
from optmodels.traces.types import Label, Programs, Trace
from optmodels.units import GIB

WINDOW_S, SHORTEST_S = 600.0, 90.0
LONGEST_S = 31 * 86400.0  # of a trace
MOST_REQUESTS = 60_000
WARM_UP = 0.1  # share of the window not measured
AFTER_S = 60.0  # simulated after the last arrival
KEPT_UP = 0.95  # throughput over demand from which a fleet counts as keeping up: what noise leaves to tell
INPUT_TOKENS, OUTPUT_TOKENS, TBT_S = 512, 256, 0.05  # where an instance names none


@dataclass(frozen=True)
class RegionReplayOptions(ReplayOptions):
    """Options of the replay over regions, next to the verb's own.

    Attributes:
        hour: hour of the demand, with its purchases; None: the busiest.
        quarter, scenario: which of them.
        seconds: seconds of a generated trace; None: ten minutes, less where there are too many requests.
        lose: regions removed one at a time: ``each``, ``none``, a name; None: each, if the instance asks for it.
    """

    hour: int | None = None
    quarter: int = 0
    scenario: int = 0
    seconds: float | None = None
    lose: str | None = None


def routing_of(name: str | None, fastest_rps: float = 0.0) -> RegionRouting:
    """``skylb``, or a policy with another way of pushing: ``least_load/pending``.

    Between two probes a replica gets as many requests as the fastest serves in twice that time, and one at least:
    fleets of hundreds get more in between than SK's twelve, and its listing would send them all to whichever was seen
    free.

    Args:
        name: name of the policy.
        fastest_rps: requests/s of one replica, at most.

    Raises:
        InputError: unknown policy or push.
    """
    select, _, push = (name or "skylb").partition("/")
    routing = policy(select, push or None)
    return dataclasses.replace(routing, burst=max(1, math.ceil(2.0 * fastest_rps * routing.probe_s)))


def replay(
    problem: ReservedCapacity, plan: Mapping[str, Any], trace: Trace | None, options: ReplayOptions,
    tables: ReservedTables | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Simulate a plan.

    Args:
        problem: its instance.
        plan: the plan as JSON data.
        trace: requests with a label ``region`` (none: drawn by the regions' shares of demand) and, where services
            share machines, ``model`` with the services' names; None: generated for the hour's demand, as conversations
            with the workload's mean lengths, or one by one with lengths drawn from several.
        options: policy, seed, and what `RegionReplayOptions` adds.
        tables: tables of the problem, or with another demand in its place; None: made again.

    Returns:
        Policy, hour, seconds, ``services`` with their metrics (`regions.Replay.metrics`), ``losses`` by region, notes.

    Raises:
        InputError: an hour, region, policy or service that does not exist.
    """
    o = options if isinstance(options, RegionReplayOptions) else RegionReplayOptions(**vars(options))
    if o.controller is not None:
        raise InputError(
            Mistake(None, "controller", o.controller, "none: machines of reserved plans have fixed batches")
        )
    routing_of(o.policy)
    p, case = ReservedPlan.model_validate(plan), problem.resolve()
    t = tables or build_tables(problem)
    demand = _demand(problem, t, o)
    hour = int(demand.sum(axis=(1, 2)).argmax()) if o.hour is None else o.hour
    if not 0 <= hour < len(demand):
        raise InputError(Mistake(None, "hour", hour, f"an hour of the demand, 0 to {len(demand) - 1}"))
    notes: list[str] = []
    if trace is not None and trace.predicted_output_tokens is not None:
        notes.append("predicted output lengths change nothing: regions are chosen without them")
    seconds = _window(o, demand[hour], trace)
    works = [_work(problem, case, k, trace, demand[hour, :, k], seconds, o.seed) for k in range(len(problem.services))]
    machines = _machines(problem, p, o, hour, seconds)
    shares = _shares(problem, machines, hour, o, t)
    lost = _lost(problem, case, machines, o)
    fleets = {k: _fleet(problem, case, k, machines, shares[k], notes) for k, w in enumerate(works) if len(w.trace)}
    routing = routing_of(o.policy, max((rps for _, rps in fleets.values()), default=0.0))
    services, losses = [], []
    metrics: dict[str, Any] = {}
    for k, service in enumerate(problem.services):
        if k not in fleets:
            continue
        work = works[k]
        if trace is None and (w := service.workload) is not None and len(w.classes) > 1 and w.cached_input_share > 0:
            notes.append(f"{service.service}: requests are drawn one by one, so that no cache has any of their prompts")
        fleet, name = fleets[k][0], service.service
        found, metrics[name] = _run(work, fleet, routing, seconds, service.slo, o, name)
        planned = None if service.workload is None else service.workload.cached_input_share
        services.append({"service": service.service, "planned_cache_hit_rate": planned, "replicas": len(fleet.region),
                         "offered_requests_per_s": len(work.trace) / seconds} | found)  # fmt: skip
        keep = problem.resilience.lose_any_region_keep or 1.0
        kept = _thinned(work, keep, o.seed)
        for region in lost:
            left = fleet.without(region)
            name = f"{service.service} without {region}"
            found, metrics[name] = _run(kept, left, routing, seconds, service.slo, o, name)
            losses.append({"region": region, "service": service.service, "demand_kept": keep} | found)
    name = o.policy or "skylb"
    one = len(services) == 1
    shown = {name if one else f"{name}, {s['service']}": s for s in services}
    planned_hits = [s["planned_cache_hit_rate"] for s in services]
    return {
        "predicted": {"throughput_over_demand": 1.0, "forwarded_share": p.forwarded_share,
                      "cache_hit_rate": planned_hits[0] if one else None},
        "policies": {
            label: {"throughput_over_demand": s["throughput_over_demand"]}
            | {x: s.get(x) for x in ("forwarded_share", "cache_hit_rate", "within_ttft_slo")}
            | ({"within_deadline": s["within_deadline"]} if "within_deadline" in s else {})
            for label, s in shown.items()
        },
        "policy": name, "routing": dict(describe(routing)), "hour": hour, "quarter": o.quarter,
        "scenario": o.scenario, "seconds": seconds, "generated": trace is None, "services": services, "losses": losses,
        "metrics": metrics,
        "survives_every_loss": all(x["survives"] for x in losses) if losses else None,
        "notes": list(dict.fromkeys(notes)),
    }  # fmt: skip


def _demand(problem: ReservedCapacity, t: ReservedTables, o: RegionReplayOptions) -> Array:
    """Requests/s of the quarter and scenario asked for, (T, R, K)."""
    growth, scenarios = problem.growth, problem.uncertainty.scenarios
    for name, value, most in (("quarter", o.quarter, growth.quarters if growth else 1),
                              ("scenario", o.scenario, max(1, len(scenarios)))):  # fmt: skip
        if not 0 <= value < most:
            raise InputError(Mistake(None, name, value, f"0 to {most - 1}"))
    found = np.zeros_like(t.case.demand_rps)
    for i, (r, k) in enumerate(zip(t.source_region, t.source_service, strict=True)):  # several may be of one service
        found[:, r, k] += t.unit * t.demand[_rows(t, o), i]
    return found


def _rows(t: ReservedTables, o: RegionReplayOptions) -> Ints:
    """The rows of the quarter and scenario asked for, hour by hour."""
    return np.flatnonzero((t.scenario == o.scenario) & (t.quarter == o.quarter))


def _window(o: RegionReplayOptions, demand: Array, trace: Trace | None) -> float:
    if trace is not None:
        if trace.duration_s > LONGEST_S:
            expected = f"arrivals within {LONGEST_S / 86400:g} days, which are gone through probe by probe (--first)"
            raise InputError(Mistake(None, "trace", f"{trace.duration_s:g} s", expected))
        return max(trace.duration_s, 1.0)
    if o.seconds is not None:
        return o.seconds
    return float(np.clip(MOST_REQUESTS / max(demand.sum(), 1e-9), SHORTEST_S, WINDOW_S))


# -------------------------------------------------------------------------------------------------- requests


def _tokens(service: Any) -> tuple[int, int]:
    """Of the mean request."""
    if service.workload is None:
        return INPUT_TOKENS, OUTPUT_TOKENS
    prompt, answer = map(round, mean_tokens(service.workload.classes))
    return prompt, answer


def chat_of(input_tokens: int, output_tokens: int) -> Chat:
    """Conversations whose requests have these mean lengths: as many turns (WildChat's 2.5 at most) as fit."""
    for turns in (2.5, 2.0, 1.5, 1.2, 1.0):
        # A request of a geometric conversation comes after turns − 1 others in the mean.
        user = (input_tokens - 32 - (turns - 1) * output_tokens) / turns
        if user >= 0.2 * input_tokens or turns == 1.0:
            break
    user = max(user, 1.0)
    return Chat(
        turns, user, float(output_tokens), system_tokens=min(32, input_tokens), template_tokens=0, templated=0.0
    )


def _work(
    problem: ReservedCapacity, case: ReservedCase, k: int, trace: Trace | None, rates: Array, seconds: float, seed: int
) -> RegionWorkload:
    """The requests of service k."""
    service = problem.services[k]
    if trace is None:
        by_region = {n: float(v) for n, v in zip(case.regions, rates, strict=True)}
        if service.workload is not None and len(service.workload.classes) > 1:
            return _alone(requests_drawn(service.workload.classes, by_region, seconds, seed + k, service.service))
        return open_loop_chat(chat_of(*_tokens(service)), by_region, seconds, seed=seed + k, name=service.service)
    mine = trace
    if len(problem.services) > 1:
        label = trace.labels.get("model")
        if label is None or service.service not in label.names:
            names = ", ".join(s.service for s in problem.services)
            raise InputError(Mistake(trace.name, "model", None, f"the service of every request ({names})"))
        mine = trace.take(np.flatnonzero(label.codes == label.names.index(service.service)))
    n = len(mine)
    if "region" not in mine.labels:
        share = rates / rates.sum() if rates.sum() > 0 else np.full(len(rates), 1 / len(rates))
        drawn = np.random.default_rng(seed).choice(len(rates), n, p=share).astype(np.int64)
        mine = Trace(mine.name, mine.arrival_s, mine.prompt_tokens, mine.output_tokens,
                     dict(mine.labels) | {"region": Label(tuple(case.regions), drawn)}, mine.slo_factor,
                     mine.prefixes)  # fmt: skip
    return _alone(mine)


def _alone(trace: Trace) -> RegionWorkload:
    """Requests that do not wait for one another."""
    free = np.full(len(trace), -1, dtype=np.int64)
    return RegionWorkload(trace, Programs(free, np.arange(len(trace)), free, np.zeros(len(trace))))


def requests_drawn(
    lengths: Sequence[Length], rates: Mapping[str, float], seconds: float, seed: int, name: str
) -> Trace:
    """Requests by a Poisson process of every region's rate, with lengths drawn by their shares; no two share a prefix.

    Args:
        lengths: shares sum to 1.
        rates: requests/s by region.
        seconds: length of the trace.
        seed: random seed of everything drawn.
        name: name of the trace.
    """
    rng = np.random.default_rng(seed)
    counts = rng.poisson([rate * seconds for rate in rates.values()])
    n = int(counts.sum())
    arrival, kind = rng.uniform(0.0, seconds, n), rng.choice(len(lengths), n, p=[x.share for x in lengths])
    prompt, output = (
        np.array([getattr(x, of) for x in lengths], dtype=np.int64)[kind] for of in ("input_tokens", "output_tokens")
    )
    order = np.argsort(arrival, kind="stable")
    region = Label(tuple(rates), np.repeat(np.arange(len(rates)), counts)[order])
    return Trace(name, arrival[order], prompt[order], output[order], {"region": region})


def _thinned(work: RegionWorkload, keep: float, seed: int) -> RegionWorkload:
    """A share of the requests, drawn."""
    if keep >= 1.0:
        return work
    chosen = np.flatnonzero(np.random.default_rng(seed + 101).random(len(work.trace)) < keep)
    contents = work.programs.contents
    free = np.full(len(chosen), -1, dtype=np.int64)
    return RegionWorkload(work.trace.take(chosen), Programs(free, np.arange(len(chosen)), free, np.zeros(len(chosen)),
                                                      None if contents is None else contents.take(chosen)))  # fmt: skip


# -------------------------------------------------------------------------------------------------- machines


@dataclass(frozen=True)
class _Machine:
    region: int
    kind: int
    from_s: float
    until_s: float


def _machines(
    problem: ReservedCapacity, plan: ReservedPlan, o: RegionReplayOptions, hour: int, seconds: float
) -> list[_Machine]:
    """Machines of the plan while the trace lasts: reservations of the quarter, purchases of its hours."""
    names, kinds = [r.region for r in problem.regions], [m.machine for m in problem.machines]
    out = []
    for line in plan.reservations:
        if line.first_quarter <= o.quarter < line.first_quarter + QUARTERS_OF_TERM[line.term]:
            out += [_Machine(names.index(line.region), kinds.index(line.machine), -np.inf, np.inf)] * line.count
    b, hours = plan.purchases, int(np.ceil(seconds / 3600.0))
    T = len(problem.resolve().demand_rps)
    bought = np.zeros((hours, len(names), len(kinds)))
    for x in range(len(b.hour)):
        at = (b.hour[x] - hour) % T
        if (b.scenario[x], b.quarter[x]) == (o.scenario, o.quarter) and at < hours:
            kind = kinds.index(b.machine[x])
            works = 1 - problem.machines[kind].spot_lost_share if b.market[x] == "spot" else 1.0
            bought[at, names.index(b.region[x]), kind] += b.machines[x] * works
    whole = np.ceil(bought - 1e-9).astype(int)
    for r, kind in np.argwhere(whole.any(axis=0)):
        for nth in range(int(whole[:, r, kind].max())):
            on = np.concatenate(([False], whole[:, r, kind] > nth, [False])).astype(int)
            for begin, end in zip(np.flatnonzero(np.diff(on) > 0), np.flatnonzero(np.diff(on) < 0), strict=True):
                out.append(_Machine(int(r), int(kind), 3600.0 * begin if begin else -np.inf, 3600.0 * end))
    return out


def _shares(
    problem: ReservedCapacity, machines: list[_Machine], hour: int, o: RegionReplayOptions, t: ReservedTables
) -> list[list[tuple[int, int]]]:
    """Which machines serve which service at which operating point: by the work of the hour's cheapest dispatch, largest
    remainders first.
    """
    K, L = t.case.rps_at.shape[1:]
    if K * L == 1:
        return [[(x, 0) for x in range(len(machines))]]
    from formulations.reserved_capacity.dispatch import RowLp

    groups: dict[tuple[int, int], list[int]] = {}
    for x, m in enumerate(machines):
        groups.setdefault((m.region, m.kind), []).append(x)
    held = np.array([len(groups.get((int(r), int(i)), [])) for r, i in zip(t.sink_region, t.sink_machine, strict=True)],
                    dtype=float)  # fmt: skip
    lp = RowLp(t)
    lp.solve(t.demand[_rows(t, o)[hour]], held)
    flow = lp.primal()[0] * t.work[lp.source, lp.sink]
    service, region = t.source_service[lp.source], t.source_region[lp.source]
    point = t.case.level[service, region, t.sink_region[lp.sink], t.sink_machine[lp.sink]]
    use = np.zeros((len(held), K, L))
    np.add.at(use, (lp.sink, service, point), flow)
    out: list[list[tuple[int, int]]] = [[] for _ in range(K)]
    for j in range(len(held)):
        mine = groups.get((int(t.sink_region[j]), int(t.sink_machine[j])), [])
        can = np.zeros((K, L))
        can[:, 0] = t.case.requests_per_s[t.sink_machine[j]] > 0
        want = (use[j] if use[j].sum() > 0 else can).ravel()
        exact = len(mine) * want / want.sum()
        count = np.floor(exact).astype(int)
        for x in np.argsort(count - exact)[: len(mine) - count.sum()]:
            count[x] += 1
        at = 0
        for x in range(K * L):
            out[x // L] += [(m, x % L) for m in mine[at : at + count[x]]]
            at += count[x]
    return out


def engine_of(found: MachineChoice, problem_workload: Any) -> RegionEngine:
    """A replica by the roofline or the engine's steps that its throughput was derived from.

    By steps it runs as an engine of `optmodels.simulation.continuous` does. Several attention ranks are one replica of
    all their slots, over which requests are even, but for prompts: the ranks without one wait for it, outside the
    experts, and prompts of several ranks in a step take the time of one after another.
    """
    w, layers = found.work, found.work.layers
    weights = layers * float(w.weight_bytes_read(float(found.batch)))
    per_token = layers * (w.linear_flops_per_token + w.head_flops_per_token) / found.flops
    room = found.vram_bytes * problem_workload.vram_usable - found.tp * (problem_workload.runtime_gib or 0.0) * GIB
    room -= float(weight_bytes(w, found.tp))
    kv_token = float(kv_copies(w, found.tp)) * w.kv_bytes_per_token_all_layers
    if found.costs is not None:
        c, D, of = found.costs, found.ranks, found.continuous
        alone = dataclasses.replace(
            c, prompt_token_s=D * (c.prompt_token_s - c.prompt_expert_s) + c.prompt_expert_s,
            prompt_pair_s=D * c.prompt_pair_s, prompt_context_s=D * c.prompt_context_s,
        )  # fmt: skip
        return RegionEngine(
            kv_tokens=max(1, int(room / kv_token if of is None else of.engine.kv_tokens)),
            max_batch=max(1, found.batch), costs=alone,
            prefill_tokens=found.batch + PROMPT_TOKENS_A_STEP if of is None else D * of.limits.max_num_batched_tokens,
            chunk_tokens=None if of is None else of.limits.chunk_tokens or of.limits.max_num_batched_tokens,
        )  # fmt: skip
    return RegionEngine(
        kv_tokens=max(1, int(room / kv_token)), decode_s=weights / found.mem_bytes_per_s,
        decode_per_kv_token_s=kv_token / found.mem_bytes_per_s, decode_per_sequence_s=per_token,
        prefill_per_token_s=per_token, prefill_per_pair_s=layers * w.prefill_flops_per_pair / found.flops,
        max_batch=max(1, found.batch),
    )  # fmt: skip


def stated_engine(
    rps: float, prefill_s: float, input_tokens: int, output_tokens: int, tpot_s: float
) -> tuple[RegionEngine, int]:
    """A made-up replica, and how many of them a machine has, that serve `rps` mean requests per second together.

    So many replicas that none spends more than half its time on prefills; the batch follows from
    B/(B·prefill + (S_out − 1)·TPOT) = rps of a replica.
    """
    replicas = max(1, int(np.ceil(2 * rps * prefill_s)))
    mine = rps / replicas
    batch = max(1, int(np.ceil((output_tokens - 1) * tpot_s * mine / (1 - mine * prefill_s) - 1e-9)))
    total = input_tokens + output_tokens
    decode = batch * (1 / mine - prefill_s) / max(output_tokens - 1, 1)  # so that the whole batch gives exactly rps
    return RegionEngine(
        kv_tokens=8 * batch * total + 64 * total, decode_s=decode, prefill_per_token_s=prefill_s / input_tokens,
        max_batch=batch,
    ), replicas  # fmt: skip


def _tpot_s(service: Any) -> float:
    """The limit, or a usual one."""
    seconds, _ = seconds_and_quantile(service.slo.tpot_s)
    return seconds if np.isfinite(seconds) else TBT_S


def _fleet(
    problem: ReservedCapacity, case: ReservedCase, k: int, machines: list[_Machine], mine: list[tuple[int, int]],
    notes: list[str],
) -> tuple[RegionFleet, float]:  # fmt: skip
    """Replicas of service k, and the requests/s of the fastest."""
    service = problem.services[k]
    engines: list[RegionEngine] = []
    of_kind: dict[tuple[int, int], tuple[int, int]] = {}
    every = [(i, x) for i in range(len(problem.machines)) for x in case.points(i, k)]
    for i, point in every:
        rate, name = float(case.rps_at[i, k, point]), problem.machines[i].machine
        derived = case.derived(i, k, point)
        if derived is not None:
            engine, replicas = engine_of(derived, service.workload), derived.replicas
        else:
            engine, replicas = stated_engine(rate, float(case.prefill_s_at[i, k, point]), *_tokens(service),
                                             _tpot_s(service))  # fmt: skip
            notes.append(f"{name} for {service.service}: steps made up to serve the stated {rate:.3g} requests/s")
        of_kind[i, point] = (len(engines), replicas)
        engines.append(engine)
    region, engine_at, opening, closing, fastest_rps = [], [], [], [], 0.0
    for x, point in mine:
        if (machines[x].kind, point) in of_kind:
            e, replicas = of_kind[machines[x].kind, point]
            fastest_rps = max(fastest_rps, float(case.rps_at[machines[x].kind, k, point]) / replicas)
            region += [machines[x].region] * replicas
            engine_at += [e] * replicas
            opening += [machines[x].from_s] * replicas
            closing += [machines[x].until_s] * replicas
    return RegionFleet(
        tuple(case.regions), case.rtt_ms / 2000.0, tuple(engines), _ints(region), _ints(engine_at), np.array(opening),
        np.array(closing), case.allowed[k].any(axis=2),
    ), fastest_rps  # fmt: skip


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _lost(problem: ReservedCapacity, case: ReservedCase, machines: list[_Machine], o: RegionReplayOptions) -> list[str]:
    held = sorted({m.region for m in machines})
    if o.lose == "none" or (o.lose is None and problem.resilience.lose_any_region_keep is None):
        return []
    if o.lose in (None, "each"):
        return [case.regions[r] for r in held]
    if o.lose not in case.regions:
        raise InputError(Mistake(None, "lose", o.lose, f"each, none, or one of {', '.join(case.regions)}"))
    return [o.lose]


def _run(
    work: RegionWorkload, fleet: RegionFleet, routing: RegionRouting, seconds: float, slo: ServiceSlo,
    o: RegionReplayOptions, name: str,
) -> tuple[dict[str, Any], dict[str, Any] | None]:  # fmt: skip
    if not len(fleet.region):
        return {"survives": False, "throughput_over_demand": 0.0}, None
    r: Replay = simulate(work.trace, fleet, routing, programs=work.programs, until_s=seconds + AFTER_S, seed=o.seed)
    if o.keep is not None:
        o.keep(name, columns(r))
    share = throughput_over_demand(r, seconds)
    deadline_s = None if slo.deadline_s is None else slo.deadline_limit_s
    m = r.metrics(warmup_s=WARM_UP * seconds, ttft_slo_s=slo.ttft_limit_s, deadline_s=deadline_s)
    return {
        "survives": share >= KEPT_UP, "throughput_over_demand": share, "ttft_p50_s": m["ttft_s"]["p50"],
        "ttft_p90_s": m["ttft_s"]["p90"], "within_ttft_slo": m["within_ttft_slo"],
        "cache_hit_rate": m["cache_hit_rate"], "forwarded_share": m["forwarded_share"],
        **({} if deadline_s is None else {"within_deadline": m["within_deadline"]}),
    }, m  # fmt: skip


def columns(r: Replay) -> dict[str, Any]:
    """Every request and its outcome, as columns of a table; empty or NaN where it did not happen."""
    trace, names = r.trace, np.array([*r.fleet.regions, ""], dtype=object)
    label = trace.labels["region"]
    served = np.where(r.replica >= 0, r.fleet.region[r.replica], -1)
    return {
        "arrival_s": trace.arrival_s, "input_tokens": trace.prompt_tokens, "output_tokens": trace.output_tokens,
        "region": np.array(label.names, dtype=object)[label.codes], "served_in": names[served],
        "replica": r.replica, "forwarded": r.forwarded, "refused": r.refused, "cached_tokens": r.hit_tokens,
        "sent_s": r.sent_s, "ttft_s": r.ttft_s, "e2e_s": r.e2e_s,
    }  # fmt: skip


def throughput_over_demand(r: Replay, seconds: float) -> float:
    """First tokens in the second half of the window over requests sent in it.

    First tokens and not last ones: answers have long tails, and the answers of a window's last minutes end after it
    however well a fleet keeps up. One that does not keep up lets requests wait for their prefill, so fewer start than
    arrive.
    """
    low, high = seconds / 2, seconds
    sent = int(((r.sent_s > low) & (r.sent_s <= high)).sum())
    first = r.sent_s + r.ttft_s
    begun = int(((first > low) & (first <= high)).sum())
    return begun / sent if sent else 1.0
