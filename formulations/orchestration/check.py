"""Independent check of an orchestration plan: GPUs one by one, requests as cumulative curves over time.

Shares no code with tables, packing, flow model, formulation or methods. Candidates, memory, request classes, deadlines
and time bins are recomputed from the instance (`recomputed`, which shares with the tables only what both read: problem
and rates), and so is everything a plan states: every GPU is held once and works, units share a server, stock, numbers
of instances, what stays where it runs; no request is admitted before it arrives, or starts before that or later than
the deadline allows; busy slots are integrals of the curves of starts. Not checked: names and labels, and which
dispatcher is named (a decision, whose attainment replay states; the check is that its parts fit together).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from formulations.orchestration.check_certification import check_certification, under
from formulations.orchestration.plan import CAUTIONS, ConfigurationLine, Dispatcher, Key, OrchestrationPlan
from formulations.orchestration.problem import Continuous, Orchestration, RunningInstance
from formulations.orchestration.recomputed import (
    Candidate,
    Group,
    Recomputed,
    first_s,
    legs,
    recompute,
    service_s,
    work_s,
)
from formulations.orchestration.recomputed_engines import check_line, may_let_in, started_between, taken
from optmodels.arrays import Array
from optmodels.plans.findings import Findings
from optmodels.plans.outcome import CheckReport
from optmodels.simulation.continuous import DISPATCHERS

Placement = tuple[tuple[str, tuple[int, ...]], ...]  # servers with their GPUs
Route = tuple[int, int]  # the plan's configurations that a request begins and ends on
MOST_SHOWN = 20
DECISION = "a decision about who sends requests where: the report's replay says what it attains"
TRUSTED = {
    "plan.instances[].placement": "a decision; that the GPUs exist, work, are held once and suit the units is checked",
    "plan.instances[].subcluster": DECISION,
    "plan.configurations[].engine.max_num_seqs": "a decision; that it was tried is checked, not that it is best",
    "plan.dispatcher": DECISION,
    "plan.online": DECISION,
    "plan.certification.rounds": "of plans that are not in the document; the plan's own is replayed again",
    "plan.certification.bound_looser": "of the bound: `optmodels check --prove` derives that of the model it names",
    "plan.certification.cuts": "what earlier rounds led to; that the plan keeps to them is checked",
    "plan.certification.of_round": "as rounds",
    "log.stages": "a solve without stages apart",
}
CUT_SHORT = {"names of requests": dict.fromkeys(
    ("report.replay", "report.out_of_sample", "requests.csv"),
    "the clock cut the names of requests short; each row of the table is checked, not that none is refused in vain",
)}  # fmt: skip


def check(problem: Orchestration, plan: Mapping[str, Any]) -> CheckReport:
    """Verify a plan against its instance.

    Returns:
        Every requirement broken, with value and limit (at most twenty).
    """
    found = Findings()
    p = found.read(OrchestrationPlan, plan, "an orchestration plan")
    if p is None:
        return found.report()
    true = under(recompute(problem, p), p)
    check_certification(found, problem, true, p)
    known = _configurations(found, true, p)
    if known is not None:
        _gpus(found, problem, p)
        _limits(found, true, p)
        _stays(found, true, p)
        _dispatched(found, true, p)
        curves = _schedule(found, true, p, known)
        if curves is not None:
            _figures(found, true, p, known, *curves)
            _apart(found, true, p, known, curves[0])
            _seen(found, true, p, known, *curves)
    del found.violations[MOST_SHOWN:]
    return found.report()


def _configurations(found: Findings, true: Recomputed, p: OrchestrationPlan) -> list[Candidate] | None:
    """The candidate of each configuration of the plan: one that can be used, MS(d) included."""
    known = []
    held = Counter(i.configuration for i in p.instances)
    for j, line in enumerate(p.configurations):
        candidate = true.candidates.get(line.key)
        if candidate is None or candidate.refused:
            allowed = "one of the problem's candidates" if candidate is None else candidate.refused
            found.add(f"configurations[{j}] is a usable candidate", _name(line), allowed)
            return None
        known.append(candidate)
        where = f"configurations[{j}].engine"
        both = (line.engine is None) == (candidate.level is None)
        found.require(f"{where} exactly with continuous serving", both, line.engine, candidate.level is not None)
        if candidate.level is not None and true.case.problem.continuous is not None:
            check_line(found, where, candidate.level, line.batch, _limits_of(true, p))
        found.equal(f"configurations[{j}].instances", float(line.instances), float(held[j]))
        found.equal(f"configurations[{j}].gpus", float(line.gpus), float(held[j] * line.gpus_each))
    for j in held:
        if not 0 <= j < len(p.configurations):
            found.add("instances[].configuration", j, f"0 to {len(p.configurations) - 1}")
            return None
    once = {line.key for line in p.configurations}
    if len(once) != len(known):
        found.add("each configuration once", len(known), len(once))
        return None
    return known


def _limits_of(true: Recomputed, p: OrchestrationPlan) -> Continuous:
    """The engine's limits, with the margins of the plan's pass of certification."""
    c, problem = p.certification, true.case.problem
    looser = c is not None and c.planned is not None and c.planned.looser
    limits = (problem.looser() if looser else problem).continuous
    assert limits is not None
    return limits


def _name(line: ConfigurationLine) -> str:
    of = "" if line.engine is None else f" waits {line.engine.waits:g}"
    stage = "" if line.stage == "both" else f" {line.stage}"
    return f"{line.model} {line.parallelism} B{line.batch}{of} on {line.gpu}{stage}"


def _gpus(found: Findings, problem: Orchestration, p: OrchestrationPlan) -> None:
    """Every GPU exists, works, has the right type and one owner; a unit's GPUs share a server."""
    c = problem.cluster
    kind = {name: s for s in c.servers for name in s.names}
    owner: dict[tuple[str, int], str] = {}
    names = Counter(i.name for i in p.instances)
    for name, times in names.items():
        if times > 1:
            found.add("instance names differ", name, "once")
    for i in p.instances:
        line = p.configurations[i.configuration]
        if i.subcluster not in (-1, 0, 1):
            found.add(f"sub-cluster of {i.name}", i.subcluster, "-1, 0 or 1")
        total = sum(len(g) for g in i.placement.values())
        if total != line.gpus_each:
            found.add(f"GPUs of {i.name}", total, line.gpus_each)
        of_a_stage = line.tp * line.ranks
        together = 1 if c.tensor_groups_cross_servers else of_a_stage * (1 if c.pipelines_cross_servers else line.pp)
        for server, gpus in i.placement.items():
            if server not in kind:
                found.add(f"server of {i.name}", server, "a server of the cluster")
                continue
            if kind[server].gpu != line.gpu:
                found.add(f"GPU type of {server} for {i.name}", kind[server].gpu, line.gpu)
            if len(gpus) % together:
                found.add(f"{i.name} on {server}: groups of {together} GPUs", len(gpus), f"a multiple of {together}")
            for g in gpus:
                if not 0 <= g < kind[server].gpus or g in c.failed_gpus.get(server, ()):
                    found.add(f"GPU {server}/{g} of {i.name}", "not there or failed", "a GPU that works")
                if (server, g) in owner:
                    found.add(f"GPU {server}/{g} held once (MS b)", i.name, owner[server, g])
                owner[server, g] = i.name


def _limits(found: Findings, true: Recomputed, p: OrchestrationPlan) -> None:
    """Stock by GPU type, numbers of instances by model, changes against the running instances."""
    problem = true.case.problem
    used: Counter[str] = Counter()
    count: Counter[str] = Counter()
    plan: Counter[Key] = Counter()
    for i in p.instances:
        line = p.configurations[i.configuration]
        used[line.gpu] += line.gpus_each
        count[line.model] += 1
        plan[line.key] += 1
    for gpu, most in problem.cluster.stock.items():
        found.at_most(f"stock of {gpu}", used[gpu], most, "GPUs")
    for m in problem.models:
        found.at_most(f"instances of {m.model}: minimum", m.minimum_instances, count[m.model])
        if m.maximum_instances is not None:
            found.at_most(f"instances of {m.model}: maximum", count[m.model], m.maximum_instances)
    running: Counter[Key] = Counter()
    for r in problem.change.running:
        running[_running_key(true, r)] += r.count
    found.equal("started", float(p.started), float(sum((plan - running).values())))
    # An instance on no usable configuration any more is not one of the plan's to stop.
    usable: Counter[Key] = Counter({k: n for k, n in running.items() if _usable(true, k)})
    found.equal("stopped", float(p.stopped), float(sum((usable - plan).values())))
    found.equal("prediction.gpus_used", float(p.prediction.gpus_used), float(sum(used.values())))
    found.equal("prediction.gpus", float(p.prediction.gpus), float(sum(len(s.free) for s in true.case.servers)))


def _running_key(true: Recomputed, r: RunningInstance) -> Key:
    """The running instance's; the first one for an engine with a planned level next to the running one."""
    degrees, limits = (r.tp, r.pp, r.attention_ranks, r.dp), true.case.problem.continuous
    level = None if limits is None else (limits.choices[0], limits.wait_levels[0], 0.0)
    return r.model, r.gpu or true.case.gpu_types[0], degrees, r.batch, level, r.stage


def _usable(true: Recomputed, key: Key) -> bool:
    candidate = true.candidates.get(key)
    return candidate is not None and not candidate.refused


def _stays(found: Findings, true: Recomputed, p: OrchestrationPlan) -> None:
    """An instance that is kept runs already, on the same GPUs; whatever else could have stayed there has moved."""
    working = {s.name: set(s.free) for s in true.case.servers}
    there: Counter[tuple[Key, Placement]] = Counter()
    for r in true.case.problem.change.running:
        if r.placement and all(set(gpus) <= working.get(server, set()) for server, gpus in r.placement.items()):
            there[_running_key(true, r), _placement(r.placement)] += 1
    able = Counter(key for key, _ in there.elements())
    count: Counter[Key] = Counter()
    for i in p.instances:
        key = p.configurations[i.configuration].key
        count[key] += 1
        if i.kept:
            runs = there[key, _placement(i.placement)]
            found.require(f"{i.name} is kept where it runs", runs > 0, i.placement, "a placement of change.running")
            there[key, _placement(i.placement)] -= 1
    kept = sum(i.kept for i in p.instances)
    stay = sum((able & count).values())
    found.equal("moved", float(p.moved), float(stay - kept))


def _dispatched(found: Findings, true: Recomputed, p: OrchestrationPlan) -> None:
    """The parts of the dispatchers and sub-clusters fit together."""
    d, online = p.dispatcher, p.online
    planned = d.policy == "planned"
    found.require("online: exactly beside requests named beforehand", planned == (online is not None), online, d.policy)
    for name, way in (("dispatcher", d), ("online", online)):
        if way is None:
            continue
        may_refuse = {"planned_shares"} if true.case.problem.continuous is None else set(DISPATCHERS)
        refuses = way.policy in may_refuse or not way.refuse_rest
        found.require(f"{name}.refuse_rest only with shares", refuses, way.refuse_rest, way.policy)
        by_shares = way.policy == "planned_shares" or way.refuse_rest
        found.require(f"{name}.by_bin only with shares", by_shares or way.by_bin, way.by_bin, way.policy)
        orders = way.overflow_protection or way.queue == "fifo"
        found.require(f"{name}: order by deadline only with overflow protection", orders, way.queue, "fifo")
        cautions = CAUTIONS if true.case.problem.continuous is not None else CAUTIONS[:1]
        found.require(f"{name}.caution is one that is tried", way.caution in cautions, way.caution, cautions)
        if way.policy == "planned":
            bare = way == Dispatcher(policy="planned")
            found.require(f"{name}: named requests need no other rule", name == "dispatcher" and bare, way, "planned")
            found.require("requests named beforehand are known", true.case.trace is not None, "classes", "a trace")
    sides = {i.subcluster for i in p.instances}
    split = d.strict_slo_factor
    found.require("sub-clusters exactly with a split of the SLO", (split is not None) == bool(sides - {-1}),
                  sorted(sides), split)  # fmt: skip
    found.require("dispatcher.strict_slo_factor", split is None or 0 <= split < np.inf, split, "a factor ≥ 0")
    whole = online is None or online.strict_slo_factor is None
    found.require("online: no split of its own", whole, online, "strict_slo_factor: none")


def _placement(servers: Mapping[str, Sequence[int]]) -> Placement:
    return tuple(sorted((server, tuple(sorted(gpus))) for server, gpus in servers.items()))


def _schedule(
    found: Findings, true: Recomputed, p: OrchestrationPlan, known: list[Candidate]
) -> tuple[dict[tuple[int, Route], Array], dict[tuple[int, Route], Array]] | None:
    """Admitted and started by (class, route), checked against arrivals, deadlines and slots."""
    T, bin_s, groups, s = true.bins, true.bin_s, true.groups, p.shares
    if p.bins != T or not abs(p.bin_s - bin_s) <= 1e-9 * bin_s or len(p.classes) != len(groups):
        found.add("time bins and classes as in the problem file", f"{p.bins} of {p.bin_s:g} s", f"{T} of {bin_s:g} s")
        return None
    ends = s.decode or s.configuration
    columns = (s.request_class, s.configuration, ends, s.bin, s.admitted, s.started)
    if len({len(c) for c in columns}) > 1:
        found.add("shares have columns of one length", str([len(c) for c in columns]), "equal")
        return None
    admitted: dict[tuple[int, Route], Array] = {}
    started: dict[tuple[int, Route], Array] = {}
    for k, j, end, b, m, x in zip(*columns, strict=True):
        if not (0 <= k < len(groups) and 0 <= j < len(known) and 0 <= end < len(known) and 0 <= b < T):
            found.add("shares[] indices", f"class {k}, configurations {j}, {end}, bin {b}", "within the plan")
            return None
        if not (m >= 0 and x >= 0 and np.isfinite(m + x)):
            found.add("shares[] ≥ 0", f"{m}, {x}", "0 or more requests")
            return None
        admitted.setdefault((k, (j, end)), np.zeros(T))[b] += m
        started.setdefault((k, (j, end)), np.zeros(T))[b] += x
    N = sum(q.requests for q in groups)
    slack = 1e-6 * (N**0.5 if N > 1 else N)
    busy = np.zeros((len(known), T + 2))
    used: list[dict[str, Any]] = [{} for _ in known]
    for k, q in enumerate(groups):
        mine = {j: curve for (i, j), curve in admitted.items() if i == k}
        share = {}
        for route, curve in mine.items():
            j, end = route
            way, x = (known[j], known[end]), started[k, route]
            share[route], wait = true.in_time(q, way)
            who = f"{p.classes[k].label} on {' and '.join(dict.fromkeys(_name(p.configurations[i]) for i in route))}"
            if any(c.model != q.model for c in way):
                found.add(f"model of {who}", p.configurations[j].model, true.case.models[q.model])
            elif share[route] <= 0:
                taking = sum(service_s(q, c) for c in legs(way))
                found.add(f"stages and deadline of {who}", taking, q.deadline_s, "s")
            else:
                _waits(found, who, wait, bin_s, curve, x, slack)
            since = 0.0
            for i in dict.fromkeys(route):
                if (of := known[i].level) is None:
                    busy[i] += started_between(x, 0.0, service_s(q, known[i]), bin_s)
                    continue
                starts = true.starting(q, way, known[i])
                if not len(starts.number):
                    continue
                for name, amount in taken(of, starts.number, x, bin_s, since).items():
                    used[i][name] = used[i].get(name, 0.0) + amount
                since += service_s(starts, known[i])
        _taken(found, p.classes[k].label, q, mine, share, slack)
    for j, line in enumerate(p.configurations):
        if known[j].level is not None:
            _capacities(found, j, line, known[j], used[j], T, slack)
            continue
        slots = line.instances * known[j].slots
        worst = float(busy[j].max(initial=0.0))
        if worst > slots * (1 + 1e-6) + slack:
            found.add(f"busy slots of {_name(line)} in bin {int(busy[j].argmax())}", worst, slots)
    return admitted, started


def _capacities(
    found: Findings, j: int, line: ConfigurationLine, c: Candidate, used: Mapping[str, Array], T: int, slack: float
) -> None:  # fmt: skip
    """In every bin the use of each capacity is at most the capacity, and the stated use is right."""
    of, e, where = c.level, line.engine, f"configurations[{j}]"
    assert of is not None and e is not None
    engines, nothing = line.instances * line.dp, np.zeros(T + 2)
    names = sorted(of.load)
    found.require(f"{where}: capacities by name", sorted(e.capacities) == names, sorted(e.capacities), names)
    for name in names:
        all_of = used.get(name, nothing)
        worst = float(all_of.max(initial=0.0))
        if worst > engines * of.keep * (1 + 1e-6 + slack):
            found.add(f"{name} of {_name(line)}", worst, engines * of.keep)
        peak = float(all_of[: T + 1].max(initial=0.0)) / max(engines, 1) / of.keep
        found.close(f"{where}: {name} in its busiest bin", e.capacities.get(name, math.nan), peak, scale=1.0)
    taken = float(used.get("running", nothing)[: T + 1].max(initial=0.0)) / max(engines, 1)
    running = taken * of.most_running
    may = may_let_in(of, running * (1 - 1e-6)) | may_let_in(of, running * (1 + 1e-6))
    found.require(f"{where}.engine.max_num_seqs", e.max_num_seqs in may, e.max_num_seqs, sorted(may))
    one_stage = (line.link is not None) == (of.sent is not None)
    found.require(f"{where}: a network exactly of one stage", one_stage, line.link, line.stage)
    if of.sent is not None and line.link is not None:
        net, most_used = of.sent.net_bytes_per_s * 8 / 1e9, of.sent.link.most_used
        peak = float(used.get("transfer", nothing)[: T + 1].max(initial=0.0)) / max(engines, 1)
        for name, stated, value in (
            ("network", line.link.net_gbps, net), ("planned network", line.link.planned_gbps, most_used * net),
            ("busiest network", line.link.busiest_gbps, peak * most_used * net),
        ):  # fmt: skip
            found.close(f"{where}: {name}", stated, value, "Gbit/s", scale=net)


def _taken(
    found: Findings, label: str, q: Group, admitted: Mapping[Route, Array], share: Mapping[Route, float], slack: float
) -> None:
    """No more requests of a class than come, nor more on configurations than can be in time there."""
    nothing = np.zeros(len(q.arrivals))
    excess = sum(admitted.values(), nothing) - q.arrivals
    if excess.max() > slack:
        b = int(excess.argmax())
        found.add(f"admitted of {label} in bin {b}", float(excess[b] + q.arrivals[b]), float(q.arrivals[b]))
    for level in set(share.values()):
        total = sum((m for j, m in admitted.items() if share[j] <= level), nothing)
        over = float((total - level * q.arrivals).max())
        if over > slack:
            found.add(f"requests of {label} where only {level:.1%} can be in time", over, 0.0, "too many")


def _waits(found: Findings, who: str, wait: float, bin_s: float, m: Array, x: Array, slack: float) -> None:
    """Nobody starts before being admitted, nor more than `wait` seconds after."""
    edges = np.arange(len(m) + 1) * bin_s
    M, X = np.concatenate(([0.0], np.cumsum(m))), np.concatenate(([0.0], np.cumsum(x)))
    early = float((X - M).max())
    if early > slack:
        found.add(f"starts of {who} after admission", early, 0.0, "requests too early")
    late = float((np.interp(edges - wait, edges, M) - X).max())
    if late > slack + 1e-6 * float(M[-1]):
        found.add(f"starts of {who} within {wait:.3g} s", late, 0.0, "requests too late")
    if abs(M[-1] - X[-1]) > slack + 1e-6 * float(M[-1]):
        found.add(f"everybody admitted of {who} starts", float(X[-1]), float(M[-1]))


def _figures(
    found: Findings, true: Recomputed, p: OrchestrationPlan, known: list[Candidate],
    admitted: Mapping[tuple[int, Route], Array], started: Mapping[tuple[int, Route], Array],
) -> None:  # fmt: skip
    """Prediction, score, shortfalls."""
    groups, horizon = true.groups, true.bins * true.bin_s
    N = sum(q.requests for q in groups)
    in_time, planned = [0.0] * len(groups), [0.0] * len(known)
    waited = prefill = busy = 0.0
    for (k, route), m in admitted.items():
        served = float(m.sum())
        in_time[k] += served
        waited += float(np.cumsum(m - started[k, route]).sum()) * true.bin_s
        way = known[route[0]], known[route[1]]
        starts = {j: true.starting(groups[k], way, known[j]) for j in route}
        prefill += served * first_s(starts[route[0]], way)
        for j in dict.fromkeys(route):
            planned[j] += served
            busy += served * work_s(starts[j], known[j])
    total, scale = sum(in_time), N or 1.0
    for j, configuration in enumerate(p.configurations):
        found.close(f"configurations[{j}].requests", configuration.requests, planned[j], scale=scale)
    for k, (line, q) in enumerate(zip(p.classes, groups, strict=True)):
        model = true.case.models[q.model]
        found.require(f"classes[{k}].model", line.model == model, line.model, model)
        found.close(f"classes[{k}].in_time", line.in_time, in_time[k], scale=scale)
        found.close(f"classes[{k}].requests", line.requests, q.requests, scale=scale)
        found.close(f"classes[{k}].output_tokens", line.output_tokens, q.output_tokens)
        found.close(f"classes[{k}].deadline_s", line.deadline_s, q.deadline_s, "s")
    tokens = sum(n * q.output_tokens for n, q in zip(in_time, groups, strict=True))
    latency = (waited + prefill) / total if total > 0 else 0.0
    slots = sum(
        c.instances * (x.slots if x.level is None else x.dp) for c, x in zip(p.configurations, known, strict=True)
    ) * horizon  # fmt: skip
    x = p.prediction
    found.close("prediction.in_time", x.in_time, total, scale=scale)
    found.close("prediction.requests", x.requests, N, scale=scale)
    found.close("prediction.attainment", x.attainment, total / scale, scale=1.0)
    rate = tokens / horizon
    found.close("prediction.throughput_tokens_per_s", x.throughput_tokens_per_s, rate, scale=rate)
    found.close("prediction.mean_latency_s", x.mean_latency_s, latency, "s", scale=max(latency, 1.0))
    found.close("prediction.slot_use", x.slot_use, busy / slots if slots > 0 else 0.0, scale=1.0)
    lost = (waited + prefill) / true.latency_threshold_s()
    _score(found, true, p, in_time, tokens, (total - lost) / scale, _shortfalls(found, true, p, in_time))


def _apart(
    found: Findings, true: Recomputed, p: OrchestrationPlan, known: list[Candidate],
    admitted: Mapping[tuple[int, Route], Array],
) -> None:  # fmt: skip
    """Check of requests that are prefilled on one configuration and decoded on another."""
    total = sum(q.requests for q in true.groups) or 1.0
    apart = {(k, *route): float(m.sum()) for (k, route), m in admitted.items() if route[0] != route[1]}
    stated = {(x.request_class, x.prefill, x.decode) for x in p.apart}
    found.require("apart: each class and pair once", len(stated) == len(p.apart), len(p.apart), len(stated))
    missing = {key for key, served in apart.items() if served > 1e-6 * total} - stated
    found.require("apart: all that the shares say", not missing, str(sorted(stated)), str(sorted(missing)))
    for i, x in enumerate(p.apart):
        key = x.request_class, x.prefill, x.decode
        if key not in apart:
            found.add(f"apart[{i}]", str(key), "a class and two configurations of the shares")
            continue
        q, first, last = true.groups[x.request_class], known[x.prefill], known[x.decode]
        if first.level is None or first.level.sent is None:  # no stage of its own: found above
            continue
        found.close(f"apart[{i}].requests", x.requests, apart[key], scale=total)
        begins, ends = (true.starting(q, (first, last), c) for c in (first, last))
        found.close(f"apart[{i}].ttft_s", x.ttft_s, first_s(begins, (first, last)), "s")
        found.close(f"apart[{i}].tpot_s", x.tpot_s, service_s(ends, last) / max(q.output_tokens - 1.0, 1.0), "s")
        sent = float(first.level.sent.bytes_of(begins.prompt).mean()) * apart[key] / 1e9
        found.close(f"apart[{i}].kv_gb", x.kv_gb, sent, "GB", scale=max(sent, 1e-9))


def _seen(
    found: Findings, true: Recomputed, p: OrchestrationPlan, known: list[Candidate],
    admitted: Mapping[tuple[int, Route], Array], started: Mapping[tuple[int, Route], Array],
) -> None:  # fmt: skip
    """Check of latencies on engines, class by class; plans of earlier versions state none."""
    names = "ttft_s", "token_s", "e2e_s", "e2e_at_most_s"
    stated = [[getattr(line, name) for name in names] for line in p.classes]
    if all(value is None for values in stated for value in values):
        return
    least = 1e-6 * sum(float(m.sum()) for m in admitted.values())
    for k, q in enumerate(true.groups):
        served = ttft = after = spare = 0.0
        for (i, route), m in admitted.items():
            if i != k:
                continue
            way, n = (known[route[0]], known[route[1]]), float(m.sum())
            starts, ends = (true.starting(q, way, c) for c in way)
            served += n
            waited = float(np.cumsum(m - started[i, route]).sum()) * true.bin_s
            ttft += waited + n * first_s(starts, way)
            spare += n * true.in_time(q, way)[1] - waited
            # Decoded apart, it is in a stage of its own; else the rest of the service is decoding.
            apart = way[0] is not way[1]
            after += n * (service_s(ends, way[1]) - (0.0 if apart else first_s(starts, way)))
        if served <= least:
            found.require(
                f"classes[{k}]: latencies of no request", served > 0 or set(stated[k]) == {None}, stated[k], None
            )
            continue
        if true.case.problem.continuous is None or None in stated[k]:
            found.add(f"classes[{k}]: {', '.join(names)}", str(stated[k]), "of classes in time on engines")
            continue
        token = after / max(q.output_tokens - 1.0, 1.0)
        for name, value, total in zip(names, stated[k], (ttft, token, ttft + after, ttft + after + spare), strict=True):
            found.close(f"classes[{k}].{name}", value or 0.0, total / served, "s")
        found.at_most(
            f"classes[{k}]: E2E ≤ e2e_at_most_s", (ttft + after) / served, (ttft + after + spare) / served, "s"
        )


def _shortfalls(found: Findings, true: Recomputed, p: OrchestrationPlan, in_time: Sequence[float]) -> float:
    """Shares missing of attainment_at_least, added up; they need a price."""
    problem = true.case.problem
    short = {}
    for i, served in enumerate(problem.models):
        mine = [k for k, q in enumerate(true.groups) if q.model == i]
        count = sum(true.groups[k].requests for k in mine)
        if served.attainment_at_least is not None and count > 0:
            missing = served.attainment_at_least - sum(in_time[k] for k in mine) / count
            if missing > 1e-6:
                short[served.model] = missing
            if problem.slo.shortfall_penalty is None:
                found.at_most(f"attainment_at_least of {served.model}: missing", missing, 1e-6)
    for name in short.keys() | p.shortfalls.keys():
        found.close(f"shortfalls.{name}", p.shortfalls.get(name, 0.0), short.get(name, 0.0), scale=1.0)
    return sum(short.values())


def _score(
    found: Findings, true: Recomputed, p: OrchestrationPlan, in_time: Sequence[float], tokens: float, latency: float,
    short: float,
) -> None:  # fmt: skip
    """MS(6-8), what changes cost, what shortfalls cost."""
    groups, problem, o = true.groups, true.case.problem, true.case.problem.objective
    weighed = sum(q.requests * q.weight for q in groups) or 1.0
    satisfaction = sum(n * q.weight for n, q in zip(in_time, groups, strict=True)) / weighed
    threshold = o.throughput_threshold_tokens_per_s
    asked = sum(q.requests * q.output_tokens for q in groups)
    full = asked if threshold is None else threshold * true.bins * true.bin_s
    throughput = min(1.0, tokens / (full or 1.0))
    change = problem.change
    changes = change.score_per_start * p.started + change.score_per_stop * p.stopped if change.running else 0.0
    penalty = (problem.slo.shortfall_penalty or 0.0) * short
    if o.kind == "score":
        value = o.alpha * satisfaction + (1 - o.alpha) * (o.beta * throughput + (1 - o.beta) * latency)
    else:
        value = {"attainment": satisfaction, "throughput": throughput, "latency": latency}[o.order[0]]
    for name, stated, recomputed in (
        ("satisfaction", p.score.satisfaction, satisfaction), ("throughput", p.score.throughput, throughput),
        ("latency", p.score.latency, latency), ("changes", p.score.changes, changes),
        ("shortfall", p.score.shortfall, penalty), ("total", p.score.total, value - changes - penalty),
    ):  # fmt: skip
        found.close(f"score.{name}", stated, recomputed, scale=1.0)
