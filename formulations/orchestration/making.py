"""The plan of an orchestration problem made from its tables and an assignment; the tables' rows of a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from formulations.orchestration.engines import CAPACITIES, TRANSFER
from formulations.orchestration.flow import Assignment, Metrics, busiest, metrics, most_running
from formulations.orchestration.place import place, running_counts
from formulations.orchestration.plan import (
    ApartLine,
    AttainmentPrediction,
    ClassLine,
    ConfigurationLine,
    EngineLevelLine,
    InstanceLine,
    LinkLine,
    OrchestrationPlan,
    ScoreLines,
    ShareColumns,
)
from formulations.orchestration.points import Configuration, OrchestrationTables
from optmodels.arrays import Array, Ints
from optmodels.plans.lines import latency_source
from optmodels.plans.outcome import Outcome
from optmodels.units import GBPS

BOTH = -1  # sub-clusters, or none


def make_plan(
    t: OrchestrationTables, a: Assignment, subclusters: Mapping[int, Sequence[int]] | None = None, *,
    on_servers: bool = True,
) -> OrchestrationPlan | None:  # fmt: skip
    """The plan with `a.counts` instances of every configuration and its shares; None if they do not fit the servers.

    Args:
        t: the tables.
        a: instances and their served requests.
        subclusters: subclusters of every used configuration, the sub-cluster of each of its instances.
        on_servers: False leaves out the instances by name (`with_instances` adds them): of tens of thousands they take
            longer than all else.
    """
    used = np.flatnonzero(a.counts)
    position = {int(c): i for i, c in enumerate(used)}
    m, running = metrics(t, a), np.zeros(len(a.counts)) if t.taken is None else most_running(t, a)
    taken = np.zeros((len(CAPACITIES), len(a.counts))) if t.taken is None else busiest(t, a)
    lines = [
        ConfigurationLine(
            model=t.case.models[x.model], gpu=t.case.gpu_types[x.gpu], tp=x.tp, pp=x.pp, dp=x.dp,
            attention_ranks=x.ranks if x.ranks > 1 else None, batch=x.batch,
            instances=int(a.counts[c]), gpus=int(a.counts[c]) * x.gpus,
            requests=float(a.admitted[(t.legs[a.configuration] == c).any(axis=1)].sum()),
            engine=_engine(x, float(running[c]), taken[:, c]), stage=x.stage, link=_link(x, taken[:, c]),
        ) for c in used for x in [t.configurations[c]]
    ]  # fmt: skip
    in_time = np.zeros(len(t.classes))
    np.add.at(in_time, a.request_class, a.admitted.sum(axis=1))
    seen = _seen(t, a) if t.taken is not None else {}
    classes = [
        ClassLine(
            label=t.classes.label[k], model=t.case.models[t.classes.model[k]], requests=float(t.classes.count[k]),
            output_tokens=float(t.classes.output_tokens[k]), deadline_s=float(t.classes.deadline_s[k]),
            in_time=float(in_time[k]), **seen.get(k, {}),
        ) for k in range(len(t.classes))
    ]  # fmt: skip
    plan = OrchestrationPlan(
        name=t.case.problem.name, bin_s=t.bin_s, bins=t.bins, configurations=lines, instances=[],
        classes=classes, shares=_shares(t, a, position), apart=_apart(t, a, position), prediction=_prediction(t, a, m),
        score=ScoreLines(satisfaction=m.satisfaction, throughput=m.throughput, latency=m.latency, changes=m.changes,
                         shortfall=m.shortfall_penalty, total=m.total),
        shortfalls=m.shortfalls, started=m.started, stopped=m.stopped,
    )  # fmt: skip
    return with_instances(t, plan, subclusters) if on_servers else plan


def with_instances(
    t: OrchestrationTables, plan: OrchestrationPlan, subclusters: Mapping[int, Sequence[int]] | None = None
) -> OrchestrationPlan | None:
    """The plan with its instances on GPUs of servers; None if they do not fit."""
    placed = place(t, counts_of(t, plan))
    if placed is None:
        return None
    rows = rows_of(t, plan)
    position = {c: i for i, c in enumerate(rows)}
    sides = [s for c in rows for s in subclusters[c]] if subclusters else [BOTH] * len(placed.instances)
    instances = [
        InstanceLine(
            name=i.name, configuration=position[i.configuration], placement=i.placement, kept=i.kept, subcluster=side
        ) for i, side in zip(placed.instances, sides, strict=True)
    ]  # fmt: skip
    return plan.model_copy(update={"instances": instances, "moved": placed.moved})


def _engine(x: Configuration, running: float, taken: Array) -> EngineLevelLine | None:
    if (e := x.engine) is None:
        return None
    names = CAPACITIES if e.transfer is not None else CAPACITIES[:TRANSFER]
    return EngineLevelLine(
        max_num_seqs=e.lets_in(running), level_num_seqs=e.limits.slots,
        max_num_batched_tokens=e.limits.max_num_batched_tokens, chunk_tokens=e.limits.chunk_tokens,
        kv_tokens=e.kv_tokens, step_s=e.step_s, wait_s=e.wait_s, place_wait_s=e.place_wait_s, most_of_wait=None,
        capacities=dict(zip(names, taken.tolist(), strict=False)), latency=latency_source(e.of.provenance),
        waits=e.waits, token_s=e.token_s, itl_s=e.itl_s,
    )  # fmt: skip


def rows_of(t: OrchestrationTables, p: OrchestrationPlan) -> list[int]:
    """Table row of each of the plan's configurations, planned for the same wait or, where there is none, another.

    Certification's looser pass has other waits; engines are the same.
    """
    exact, alike = dict[tuple[Any, ...], int](), dict[tuple[Any, ...], int]()
    for c, x in enumerate(t.configurations):
        key = t.case.models[x.model], t.case.gpu_types[x.gpu], x.degrees, x.batch, x.stage
        exact[*key, x.level] = c
        alike.setdefault(key, c)
    found = []
    for line in p.configurations:
        key = line.model, line.gpu, line.degrees, line.batch, line.stage
        found.append(exact.get((*key, line.level), alike[key]))
    return found


def routes_of(t: OrchestrationTables, p: OrchestrationPlan) -> Ints:
    """Route of each row of the plan's shares."""
    rows, s = np.array(rows_of(t, p), dtype=np.int64), p.shares
    first = rows[np.array(s.configuration, dtype=np.int64)]
    last = rows[np.array(s.decode, dtype=np.int64)] if s.decode else first
    route = {(a, b): r for r, (a, b) in enumerate(t.legs.tolist())}
    return np.array([route[leg] for leg in zip(first.tolist(), last.tolist(), strict=True)], dtype=np.int64)


def among_stages(t: OrchestrationTables, found: Outcome[OrchestrationPlan]) -> Outcome[OrchestrationPlan]:
    """An outcome of `pruning.together(t)` among all that runs: instances that do one stage are stopped, too."""
    single = np.array([x.stage != "both" for x in t.configurations], dtype=bool)
    stops = int(running_counts(t)[single].sum())
    if not stops:
        return found
    lost, plan = t.case.problem.change.score_per_stop * stops, found.plan

    def less(value: float | None) -> float | None:
        return None if value is None else value - lost

    if plan is not None:
        score = plan.score
        score = score.model_copy(update={"changes": score.changes + lost, "total": score.total - lost})
        plan = plan.model_copy(update={"stopped": plan.stopped + stops, "score": score})
    events = tuple(replace(e, objective=less(e.objective), bound=less(e.bound)) for e in found.events)
    return replace(found, plan=plan, bound=less(found.bound), events=events)


def counts_of(t: OrchestrationTables, p: OrchestrationPlan) -> Ints:
    """(C,) instances of every configuration in a plan."""
    counts = np.zeros(len(t.configurations), dtype=np.int64)
    np.add.at(counts, rows_of(t, p), [line.instances for line in p.configurations])
    return counts


def assignment_of(t: OrchestrationTables, p: OrchestrationPlan) -> Assignment:
    """Starts of a plan by place and time, without waiting and admitted requests."""
    pair, row = np.unique(np.stack((np.array(p.shares.request_class, dtype=np.int64), routes_of(t, p))), axis=1,
                          return_inverse=True)  # fmt: skip
    started = np.zeros((pair.shape[1], t.bins))
    np.add.at(started, (row.ravel(), np.array(p.shares.bin, dtype=np.int64)), p.shares.started)
    nothing = np.zeros_like(started)
    return Assignment(counts_of(t, p), pair[0], pair[1], nothing, started, nothing)


def with_limits(t: OrchestrationTables, p: OrchestrationPlan, factor: float) -> OrchestrationPlan:
    """The plan with engines that let in this many times as many at once, no more than the file's and no less than
    run.
    """
    least, lines = most_running(t, assignment_of(t, p)), []
    for line, c in zip(p.configurations, rows_of(t, p), strict=True):
        of = t.configurations[c].engine
        if line.engine is not None and of is not None and line.stage != "prefill" and not of.place_wait_s:
            most = max(math.ceil(of.lets_in(least[c]) * factor), math.ceil(least[c] / line.ranks))
            engine = line.engine.model_copy(update={"max_num_seqs": min(most, of.slots)})
            line = line.model_copy(update={"engine": engine})
        lines.append(line)
    return p.model_copy(update={"configurations": lines})


def _link(x: Configuration, taken: Array) -> LinkLine | None:
    """What goes through the network of an engine of one stage, of whose capacities so much is taken at most."""
    if x.engine is None or x.engine.transfer is None:
        return None
    of = x.engine.transfer
    net = of.net_bytes_per_s / GBPS
    planned = of.link.most_used * net
    return LinkLine(net_gbps=net, planned_gbps=planned, busiest_gbps=float(taken[TRANSFER]) * x.engine.keep * planned)


def _shares(t: OrchestrationTables, a: Assignment, position: dict[int, int]) -> ShareColumns:
    floor = 1e-9 * float(a.admitted.sum())
    row, bin_ = np.nonzero((a.admitted > floor) | (a.started > floor))
    first, last = t.legs[a.configuration[row]].T
    return ShareColumns(
        request_class=a.request_class[row].tolist(),
        configuration=[position[int(c)] for c in first],
        decode=[position[int(c)] for c in last] if (first != last).any() else [],
        bin=bin_.tolist(),
        admitted=a.admitted[row, bin_].tolist(),
        started=a.started[row, bin_].tolist(),
    )


def _apart(t: OrchestrationTables, a: Assignment, position: dict[int, int]) -> list[ApartLine]:
    lines, q = [], t.classes
    floor = 1e-9 * float(a.admitted.sum())
    for k, r, admitted in zip(a.request_class.tolist(), a.configuration.tolist(), a.admitted.sum(axis=1), strict=True):
        first, last = t.legs[r].tolist()
        if first == last or admitted <= floor:
            continue
        assert t.taken is not None
        after = float(t.service_s[k, r] - t.first_s[k, r])
        lines.append(ApartLine(
            request_class=k, prefill=position[first], decode=position[last], requests=float(admitted),
            ttft_s=float(t.first_s[k, r]), tpot_s=after / max(float(q.output_tokens[k]) - 1.0, 1.0),
            kv_gb=float(admitted * t.taken[first].kv_gb[k]),
        ))  # fmt: skip
    return lines


def _seen(t: OrchestrationTables, a: Assignment) -> dict[int, dict[str, float]]:
    """TTFT, time per output token, E2E and its limit of each class that has requests in time: means over these.

    Who waits does so until its start; from there on each takes the planned level's figures for requests that may start.
    """
    k, r, m = a.request_class, a.configuration, a.admitted.sum(axis=1)
    waited = np.cumsum(a.admitted - a.started, axis=1).sum(axis=1) * t.bin_s
    first, rest = m * t.first_s[k, r], m * (t.service_s[k, r] - t.first_s[k, r])
    most = m * (t.service_s[k, r] + t.wait_s[k, r])
    in_time, waits, firsts, rests, mosts = (np.bincount(k, x, len(t.classes)) for x in (m, waited, first, rest, most))
    served = np.flatnonzero(in_time > 1e-9 * float(m.sum()))
    ttft, after = (waits + firsts)[served] / in_time[served], rests[served] / in_time[served]
    token = after / np.maximum(t.classes.output_tokens[served] - 1.0, 1.0)
    columns = {
        "ttft_s": ttft, "token_s": token, "e2e_s": ttft + after, "e2e_at_most_s": mosts[served] / in_time[served],
    }  # fmt: skip
    return {k: {name: max(0.0, float(x[row])) for name, x in columns.items()} for row, k in enumerate(served.tolist())}


def _prediction(t: OrchestrationTables, a: Assignment, m: Metrics) -> AttainmentPrediction:
    return AttainmentPrediction(
        requests=float(t.classes.count.sum()), in_time=m.in_time,
        attainment=m.in_time / max(float(t.classes.count.sum()), 1e-300),
        throughput_tokens_per_s=m.tokens_per_s, mean_latency_s=m.mean_latency_s,
        gpus_used=int(a.counts @ t.gpus_of) if len(a.counts) else 0, gpus=int(t.case.free_gpus.sum()),
        slot_use=m.slot_use,
    )  # fmt: skip
