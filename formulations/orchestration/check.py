"""Independent check of an orchestration plan: GPUs one by one, requests as cumulative curves over time.

Shares no code with packing, flow model or formulation. What a request class is (mean length, deadline, arrivals) and
how fast a configuration decodes are read from the tables; everything a plan states about them is recomputed: every GPU
is held once and works, units share a server, memory, stock, numbers of instances; nobody is admitted before arriving,
starts before being admitted or later than the deadline allows; busy slots are integrals of the curves of starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from formulations.orchestration.plan import ConfigurationLine, OrchestrationPlan
from formulations.orchestration.points import LEAST_SHARE, OrchestrationTables, build_tables
from formulations.orchestration.problem import Orchestration
from optmodels.latency.work import layer_work
from optmodels.plan.findings import Findings
from optmodels.plan.outcome import CheckReport
from optmodels.units import GIB

Array = npt.NDArray[np.float64]
MOST_SHOWN = 20


def check(problem: Orchestration, plan: Mapping[str, Any]) -> CheckReport:
    """Verify a plan against its instance.

    Returns:
        Every requirement broken, with value and limit (at most twenty).
    """
    found = Findings()
    p = found.read(OrchestrationPlan, plan, "an orchestration plan")
    if p is None:
        return found.report()
    tables = build_tables(problem)
    known = _configurations(found, tables, p)
    if known is not None:
        _gpus(found, problem, p)
        _limits(found, problem, p)
        curves = _schedule(found, tables, p, known)
        if curves is not None:
            _figures(found, problem, tables, p, known, *curves)
    del found.violations[MOST_SHOWN:]
    return found.report()


def _configurations(found: Findings, t: OrchestrationTables, p: OrchestrationPlan) -> list[int] | None:
    """Table row of each configuration of the plan; its memory recomputed."""
    case = t.case
    rows = {(case.models[x.model], case.gpu_types[x.gpu], x.tp, x.pp, x.dp, x.batch): i
            for i, x in enumerate(t.configurations)}  # fmt: skip
    known = []
    held = Counter(i.configuration for i in p.instances)
    for j, line in enumerate(p.configurations):
        row = rows.get((line.model, line.gpu, line.tp, line.pp, line.dp, line.batch))
        if row is None:
            found.add(f"configurations[{j}] is a usable candidate", _name(line), "one that the tables allow")
            return None
        known.append(row)
        found.equal(f"configurations[{j}].instances", float(line.instances), float(held[j]))
        found.equal(f"configurations[{j}].gpus", float(line.gpus), float(held[j] * line.tp * line.pp * line.dp))
        m, g = case.models.index(line.model), case.gpu_types.index(line.gpu)
        served = case.problem.models[m]
        work = layer_work(case.architectures[m], served.weights, served.kv)
        usable = case.problem.memory.vram_usable * case.vram_gib[g]
        kv = (t.configurations[row].gib_per_gpu * GIB - work.weight_bytes / (line.tp * line.pp)) / line.batch
        least = work.weight_bytes / (line.tp * line.pp) / GIB
        found.at_most(f"memory of {_name(line)}: weights", least, usable, "GiB")
        found.require(f"memory of {_name(line)}: a KV cache", kv > 0, kv, "> 0 bytes a slot")
        found.at_most(f"memory of {_name(line)}", t.configurations[row].gib_per_gpu, usable, "GiB")
    for j in held:
        if not 0 <= j < len(p.configurations):
            found.add("instances[].configuration", j, f"0 to {len(p.configurations) - 1}")
            return None
    if len(set(known)) != len(known):
        found.add("each configuration once", len(known), len(set(known)))
        return None
    return known


def _name(line: ConfigurationLine) -> str:
    return f"{line.model} {line.parallelism} B{line.batch} on {line.gpu}"


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
        total = sum(len(g) for g in i.placement.values())
        found.equal(f"GPUs of {i.name}", float(total), float(line.tp * line.pp * line.dp))
        together = 1 if c.tensor_groups_cross_servers else line.tp * (1 if c.pipelines_cross_servers else line.pp)
        for server, gpus in i.placement.items():
            if server not in kind:
                found.add(f"server of {i.name}", server, "a server of the cluster")
                continue
            found.require(
                f"GPU type of {server} for {i.name}", kind[server].gpu == line.gpu, kind[server].gpu, line.gpu
            )
            if len(gpus) % together:
                found.add(f"{i.name} on {server}: groups of {together} GPUs", len(gpus), f"a multiple of {together}")
            for g in gpus:
                if not 0 <= g < kind[server].gpus or g in c.failed_gpus.get(server, ()):
                    found.add(f"GPU {server}/{g} of {i.name}", "not there or failed", "a GPU that works")
                if (server, g) in owner:
                    found.add(f"GPU {server}/{g} held once (MS b)", i.name, owner[server, g])
                owner[server, g] = i.name


def _limits(found: Findings, problem: Orchestration, p: OrchestrationPlan) -> None:
    """Stock by GPU type, numbers of instances by model, changes against what runs."""
    used: Counter[str] = Counter()
    count: Counter[str] = Counter()
    plan: Counter[tuple[Any, ...]] = Counter()
    for i in p.instances:
        line = p.configurations[i.configuration]
        used[line.gpu] += line.tp * line.pp * line.dp
        count[line.model] += 1
        plan[line.model, line.gpu, line.tp, line.pp, line.dp, line.batch] += 1
    for gpu, most in problem.cluster.stock.items():
        found.at_most(f"stock of {gpu}", used[gpu], most, "GPUs")
    for m in problem.models:
        found.at_most(f"instances of {m.model}: minimum", m.minimum_instances, count[m.model])
        if m.maximum_instances is not None:
            found.at_most(f"instances of {m.model}: maximum", count[m.model], m.maximum_instances)
    running: Counter[tuple[Any, ...]] = Counter()
    for r in problem.change.running:
        running[r.model, r.gpu or problem.cluster.servers[0].gpu, r.tp, r.pp, r.dp, r.batch] += r.count
    found.equal("started", float(p.started), float(sum((plan - running).values())))
    if problem.change.running:  # what runs on no usable configuration any more is no instance of the plan's
        found.at_most("stopped", p.stopped, sum((running - plan).values()))
    found.equal("prediction.gpus_used", float(p.prediction.gpus_used), float(sum(used.values())))


def _schedule(
    found: Findings, t: OrchestrationTables, p: OrchestrationPlan, known: list[int]
) -> tuple[dict[tuple[int, int], Array], dict[tuple[int, int], Array]] | None:
    """Admitted and started by (class, plan configuration), checked against arrivals, deadlines and slots."""
    T, bin_s, s = t.bins, t.bin_s, p.shares
    if p.bins != T or abs(p.bin_s - bin_s) > 1e-9 * bin_s or len(p.classes) != len(t.classes):
        found.add("time bins and classes as in the instance", f"{p.bins} of {p.bin_s:g} s", f"{T} of {bin_s:g} s")
        return None
    columns = (s.request_class, s.configuration, s.bin, s.admitted, s.started)
    if len({len(c) for c in columns}) > 1:
        found.add("shares have columns of one length", str([len(c) for c in columns]), "equal")
        return None
    admitted: dict[tuple[int, int], Array] = {}
    started: dict[tuple[int, int], Array] = {}
    for k, j, b, m, x in zip(s.request_class, s.configuration, s.bin, s.admitted, s.started, strict=True):
        if not (0 <= k < len(t.classes) and 0 <= j < len(known) and 0 <= b < T):
            found.add("shares[] indices", f"class {k}, configuration {j}, bin {b}", "within the plan")
            return None
        if not (m >= 0 and x >= 0 and np.isfinite(m + x)):
            found.add("shares[] ≥ 0", f"{m}, {x}", "0 or more requests")
            return None
        admitted.setdefault((k, j), np.zeros(T))[b] += m
        started.setdefault((k, j), np.zeros(T))[b] += x
    slack = 1e-6 * max(1.0, float(t.classes.count.sum()) ** 0.5)
    taken = np.zeros_like(t.classes.arrivals)
    busy = np.zeros((len(known), T + 2))
    for (k, j), curve in admitted.items():
        taken[k] += curve
        _waits(found, t, k, known[j], curve, started[k, j], slack)
        busy[j] += _busy(started[k, j], _service(t, k, known[j]), bin_s)
    for k in {k for k, _ in admitted}:
        _nested(found, t, k, {known[j]: m for (q, j), m in admitted.items() if q == k}, slack)
    excess = taken - t.classes.arrivals
    if len(excess) and excess.max(initial=0.0) > slack:
        k, b = divmod(int(excess.argmax()), T)
        found.add(f"admitted of {t.classes.label[k]} in bin {b}", float(taken[k, b]), float(t.classes.arrivals[k, b]))
    for j, line in enumerate(p.configurations):
        slots = line.instances * line.batch * line.dp
        worst = float(busy[j].max(initial=0.0))
        if worst > slots * (1 + 1e-6) + slack:
            found.add(f"busy slots of {_name(line)} in bin {int(busy[j].argmax())}", worst, slots)
    return admitted, started


def _nested(found: Findings, t: OrchestrationTables, k: int, admitted: dict[int, Array], slack: float) -> None:
    """No more requests of a class on configurations than can be in time there."""
    share = {c: _eligible(t, k, c)[0] for c in admitted}
    for level in set(share.values()):
        total: Array = sum((m for c, m in admitted.items() if share[c] <= level), np.zeros(t.bins))
        over = float((total - level * t.classes.arrivals[k]).max())
        if over > slack:
            found.add(f"requests of {t.classes.label[k]} where only {level:.1%} can be in time", over, 0.0, "too many")


def _service(t: OrchestrationTables, k: int, c: int) -> float:
    """Seconds in a slot: prefill and decoding at the rate of the full batch."""
    x = t.configurations[c]
    return float(
        x.prefill_s_per_token * t.classes.prompt_tokens[k] + t.classes.output_tokens[k] / x.tokens_per_s[x.slots - 1]
    )


def _eligible(t: OrchestrationTables, k: int, c: int) -> tuple[float, float]:
    """Share of a class that is in time on an idle instance, and how long that share can wait: request by request."""
    x, limit = t.configurations[c], t.case.problem.slo.ttft_s
    if t.servable(t.classes.model[k : k + 1], t.classes.prompt_tokens[k] + t.classes.output_tokens[k])[0] < 0:
        return 0.0, -1.0
    if t.class_of is not None and t.deadline_s is not None and t.case.trace is not None:
        r = np.flatnonzero(t.class_of == k)
        prompt, output, due = t.case.trace.prompt_tokens[r], t.case.trace.output_tokens[r], t.deadline_s[r]
    else:
        prompt, output, due = (np.array([float(v[k])]) for v in
                               (t.classes.prompt_tokens, t.classes.output_tokens, t.classes.deadline_s))  # fmt: skip
    first = x.prefill_s_per_token * prompt
    slack = due - first - output / x.tokens_per_s[x.slots - 1]
    if limit is not None:
        slack = np.minimum(slack, limit - first)
    able = slack >= 0
    return float(able.mean()), float(slack[able].mean()) if able.any() else -1.0


def _waits(found: Findings, t: OrchestrationTables, k: int, c: int, m: Array, x: Array, slack: float) -> None:
    """Nobody starts before being admitted, nor so late that the deadline is missed."""
    who = f"{t.classes.label[k]} on {t.name(c)}"
    if t.configurations[c].model != t.classes.model[k]:
        found.add(f"model of {who}", t.name(c), t.case.models[t.classes.model[k]])
        return
    share, wait = _eligible(t, k, c)
    if share <= 0 or wait < 0:
        found.add(f"deadline of {who}", _service(t, k, c), float(t.classes.deadline_s[k]), "s")
        return
    edges = np.arange(t.bins + 1) * t.bin_s
    M, X = np.concatenate(([0.0], np.cumsum(m))), np.concatenate(([0.0], np.cumsum(x)))
    early = float((X - M).max())
    if early > slack:
        found.add(f"starts of {who} after admission", early, 0.0, "requests too early")
    late = float((np.interp(edges - wait, edges, M) - X).max())
    if late > slack + 1e-6 * float(M[-1]):
        found.add(f"starts of {who} within {wait:.3g} s", late, 0.0, "requests too late")
    if abs(M[-1] - X[-1]) > slack + 1e-6 * float(M[-1]):
        found.add(f"everybody admitted of {who} starts", float(X[-1]), float(M[-1]))


def _busy(x: Array, service: float, bin_s: float) -> Array:
    """Mean requests in slots in each bin and the two after the last: integrals of the curve of starts."""
    edges = np.arange(len(x) + 1) * bin_s
    level = np.concatenate(([0.0], np.cumsum(x)))
    area = np.concatenate(([0.0], np.cumsum((level[1:] + level[:-1]) / 2 * bin_s)))

    def integral(at: Array) -> Array:
        at = np.maximum(at, 0.0)
        i = np.minimum((at / bin_s).astype(np.int64), len(x))
        inside = np.where(i < len(x), x[np.minimum(i, len(x) - 1)] / bin_s, 0.0)
        rest = at - edges[i]
        total: Array = area[i] + level[i] * rest + inside * rest**2 / 2
        return total

    a = bin_s * np.arange(len(x) + 2, dtype=np.float64)
    held: Array = (integral(a + bin_s) - integral(a) - integral(a + bin_s - service) + integral(a - service)) / bin_s
    return held


def _figures(
    found: Findings, problem: Orchestration, t: OrchestrationTables, p: OrchestrationPlan, known: list[int],
    admitted: dict[tuple[int, int], Array], started: dict[tuple[int, int], Array],
) -> None:  # fmt: skip
    """Prediction, score, shortfalls."""
    q, o, horizon = t.classes, problem.objective, t.bins * t.bin_s
    N = float(q.count.sum()) or 1.0
    in_time = np.zeros(len(q))
    waited = prefill = busy = 0.0
    for (k, j), m in admitted.items():
        in_time[k] += m.sum()
        waited += float(np.cumsum(m - started[k, j]).sum()) * t.bin_s
        prefill += float(m.sum()) * t.configurations[known[j]].prefill_s_per_token * float(q.prompt_tokens[k])
        busy += float(m.sum()) * _service(t, k, known[j])
    total = float(in_time.sum())
    for k, line in enumerate(p.classes):
        found.close(f"classes[{k}].in_time", line.in_time, float(in_time[k]), scale=N)
        found.close(f"classes[{k}].requests", line.requests, float(q.count[k]), scale=N)
    x = p.prediction
    found.close("prediction.in_time", x.in_time, total, scale=N)
    found.close("prediction.requests", x.requests, float(q.count.sum()), scale=N)
    found.close("prediction.attainment", x.attainment, total / N, scale=1.0)
    tokens = float(in_time @ q.output_tokens)
    found.close(
        "prediction.throughput_tokens_per_s", x.throughput_tokens_per_s, tokens / horizon, scale=tokens / horizon
    )
    latency = (waited + prefill) / total if total > 0 else 0.0
    found.close("prediction.mean_latency_s", x.mean_latency_s, latency, "s", scale=max(latency, 1.0))
    slots = sum(c.instances * c.batch * c.dp for c in p.configurations) * horizon
    found.close("prediction.slot_use", x.slot_use, busy / slots if slots > 0 else 0.0, scale=1.0)
    s = p.score
    satisfaction = float(in_time @ q.weight) / (float(q.count @ q.weight) or 1.0)
    threshold = o.throughput_threshold_tokens_per_s
    full = float(q.count @ q.output_tokens) if threshold is None else threshold * horizon
    longest = o.latency_threshold_s or _longest(t)
    L = (total - (waited + prefill) / longest) / N
    T = min(1.0, tokens / (full or 1.0))
    found.close("score.satisfaction", s.satisfaction, satisfaction, scale=1.0)
    found.close("score.throughput", s.throughput, T, scale=1.0)
    found.close("score.latency", s.latency, L, scale=1.0)
    short = {}
    for i, served in enumerate(problem.models):
        mine = q.model == i
        if served.attainment_at_least is not None and q.count[mine].sum() > 0:
            missing = served.attainment_at_least - float(in_time[mine].sum() / q.count[mine].sum())
            if missing > 1e-6:
                short[served.model] = missing
            if problem.slo.shortfall_penalty is None:
                found.at_most(f"attainment_at_least of {served.model}: missing", missing, 1e-6)
    for name in short.keys() | p.shortfalls.keys():
        found.close(f"shortfalls.{name}", p.shortfalls.get(name, 0.0), short.get(name, 0.0), scale=1.0)
    change = problem.change
    changes = change.score_per_start * p.started + change.score_per_stop * p.stopped if change.running else 0.0
    penalty = (problem.slo.shortfall_penalty or 0.0) * sum(short.values())
    parts = {"attainment": satisfaction, "throughput": T, "latency": L}
    if o.kind == "score":
        value = o.alpha * satisfaction + (1 - o.alpha) * (o.beta * T + (1 - o.beta) * L)
    else:
        value = parts[o.order[0]]
    found.close("score.changes", s.changes, changes, scale=1.0)
    found.close("score.shortfall", s.shortfall, penalty, scale=1.0)
    found.close("score.total", s.total, value - changes - penalty, scale=1.0)


def _longest(t: OrchestrationTables) -> float:
    """Longest wait and prefill any admissible pair allows, seconds."""
    longest = 0.0
    for k in range(len(t.classes)):
        for c, x in enumerate(t.configurations):
            if x.model == t.classes.model[k]:
                prefill = x.prefill_s_per_token * float(t.classes.prompt_tokens[k])
                share, wait = _eligible(t, k, c)
                if share >= LEAST_SHARE and wait >= 0:
                    longest = max(longest, wait + prefill)
    return longest or 1.0
