"""Instances that a user runs today: their attainment under a dispatcher, and the best use of the same instances.

The best use is the linear model's at given counts, so that the distance to the best plan is one within a model: no plan
of it gains more than its bound. The dispatcher's attainment is replayed on the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from formulations.orchestration.assign import reserve
from formulations.orchestration.flow import latency_threshold, metrics
from formulations.orchestration.making import make_plan
from formulations.orchestration.plan import Dispatcher, OrchestrationPlan, parallelism
from formulations.orchestration.points import Configuration, OrchestrationTables, build_tables, served
from formulations.orchestration.problem import (
    Candidates,
    Continuous,
    InstanceChange,
    Orchestration,
    RequestRows,
    RequestSource,
)
from formulations.orchestration.replay import (
    cluster_of,
    dispatched,
    replayed_score,
    requests_of,
    sent,
    shares_of,
)
from formulations.orchestration.rounding import scheduled
from optmodels.catalog.types import Entry, GpuName
from optmodels.errors import InputError, Mistake, Mistakes
from optmodels.plans.current import Evaluated
from optmodels.reporting.sources import source_entries
from optmodels.simulation.cluster import Requests as Simulated
from optmodels.simulation.compiling import time_to_replay
from optmodels.simulation.options import ReplayOptions
from optmodels.simulation.summary import columns, summary
from optmodels.solver.deadline import seconds_for
from optmodels.traces.types import Trace
from optmodels.units import PositiveInt, Tokens

Policy = Literal[
    "round_robin", "shortest_queue", "least_kv", "earliest_finish", "prefix_affine", "least_load", "maaso", "best_fit"
]
OF_ENGINES = ("round_robin", "shortest_queue", "least_kv", "earliest_finish", "prefix_affine")
OF_SLOTS = ("round_robin", "shortest_queue", "least_load", "maaso", "best_fit")
SWEEPS = 3  # over the deployments, each time with every level of one


class CurrentInstances(Entry):
    """Some equal instances of one model."""

    name: Annotated[str, Field(max_length=100)] = Field(default="", description="default: model, degrees and GPU")
    model: str = Field(description="name of a model of the problem")
    gpu: GpuName | None = Field(default=None, description="GPU type of the cluster; default: its first type")
    instances: PositiveInt = Field(default=1, description="number of running instances")
    tp: PositiveInt = Field(default=1, description="GPUs of a tensor group")
    pp: PositiveInt = Field(default=1, description="stages of a pipeline")
    dp: PositiveInt = Field(default=1, description="replicas of an instance")
    attention_ranks: PositiveInt = Field(default=1, description="attention ranks of a replica, each of tp GPUs")
    batch: PositiveInt | None = Field(default=None, description="requests at once of a replica, with serving: slots")
    max_num_seqs: PositiveInt | None = Field(default=None, description="default: the problem's engine")
    max_num_batched_tokens: Tokens | None = Field(default=None, description="default: the problem's engine")
    chunk_tokens: Tokens | None = Field(default=None, description="default: the problem's engine")


class CurrentCluster(Entry):
    """Today's instances of a cluster, and the dispatcher between them."""

    schema_version: Literal[1] = Field(alias="schema")
    instance: str | None = Field(
        default=None, description="file with cluster, models, requests and deadlines, beside this one or below"
    )
    dispatcher: Policy = Field(default="shortest_queue", description="between instances of a model")
    refuse_late: bool = Field(default=False, description="requests predicted to be late are refused at arrival")
    deployments: tuple[CurrentInstances, ...] = Field(min_length=1, description="running instances")


def evaluate(problem: Orchestration, current: CurrentCluster, trace: Trace | None, options: ReplayOptions) -> Evaluated:
    """Attainment of the running instances, replayed, and their best use.

    Args:
        problem: the instance.
        current: the instances that run.
        trace: requests in place of the instance's, both for the running instances and for the best plan.
        options: seed of the draws; `keep` gets a table of requests for each replay.

    Raises:
        InputError: names that the instance does not have, instances that fit neither memory nor servers, or a
            dispatcher of another kind of serving.
    """
    if trace is not None:
        rows = RequestRows.of(trace)
        problem = problem.model_copy(update={"requests": RequestSource(rows=rows, model=problem.requests.model)})
    known = OF_SLOTS if problem.continuous is None else OF_ENGINES
    if current.dispatcher not in known:
        raise InputError(Mistake(None, "dispatcher", current.dispatcher, f"one of {', '.join(known)}"))
    t = build_tables(problem)
    lines = _lines(t, current)
    plan, at = _best_use(t, lines, [d.instances for d in current.deployments])
    if plan is None:
        total = sum(d.instances * d.tp * d.pp * d.attention_ranks * d.dp for d in current.deployments)
        free = int(t.case.free_gpus.sum())
        expected = f"instances whose units fit the servers together; {free} GPUs work"
        raise InputError(Mistake(None, "deployments", f"instances on {total} GPUs", expected))
    queue: Literal["fifo"] = "fifo"
    today = Dispatcher(policy=current.dispatcher, overflow_protection=current.refuse_late, queue=queue)
    requests = requests_of(at, None, options.seed)
    in_time = time_to_replay if t.taken is not None else partial(seconds_for, most=np.inf)
    seen: dict[str, dict[str, Any]] = {}
    way = None
    if in_time("the replay"):
        seen["replayed"] = _replayed(at, _with_limits(plan, at), requests, today, options, "replayed")
    if in_time("the replay with the best dispatcher"):
        routed = dispatched(at, [plan], options.seed)
        planned = routed.dispatcher.policy == "planned"
        way = routed.online if routed.online is not None and planned else routed.dispatcher
        seen["best_dispatcher"] = _replayed(at, routed, requests, way, options, "best_dispatcher")
    return Evaluated(problem, _report(t, at, current, plan, seen, way), plan.score.total, _keeps(problem, plan))


def start(problem: Orchestration) -> list[dict[str, Any]]:
    """One instance of every model that the instance has a candidate for: the one with the fewest GPUs.

    Raises:
        InputError: no model has a candidate.
    """
    t = build_tables(problem)
    found = []
    for m, name in enumerate(t.case.models):
        x = min((x for x in t.configurations if x.model == m), key=lambda x: x.tp * x.pp * x.dp * x.ranks, default=None)
        if x is not None:
            degrees = {"tp": x.tp, "pp": x.pp, "dp": x.dp, "attention_ranks": x.ranks}
            batch = {"batch": x.batch} if problem.continuous is None else {}
            more = {k: n for k, n in degrees.items() if n > 1} | batch
            found.append({"model": name, "gpu": t.case.gpu_types[x.gpu], "instances": 1} | more)
    if not found:
        raise InputError(Mistake(None, "models", list(t.case.models), "a model that some GPUs of the cluster hold"))
    return found


def _lines(t: OrchestrationTables, current: CurrentCluster) -> list[list[Configuration]]:
    """Of each deployment the levels it can be planned at; one of slots.

    Raises:
        InputError: every mistake.
    """
    case, wrong, found = t.case, Mistakes(), list[list[Configuration]]()
    problem, keys = case.problem, set[tuple[Any, ...]]()
    for i, d in enumerate(current.deployments):
        at = f"deployments[{i}]"
        gpu = d.gpu or case.gpu_types[0]
        if d.model not in case.models:
            wrong.unknown(f"{at}.model", d.model, "a model of the problem", case.models)
            continue
        if gpu not in case.gpu_types:
            wrong.unknown(f"{at}.gpu", gpu, "a GPU type of the cluster", case.gpu_types)
            continue
        key = (d.model, gpu, d.tp, d.pp, d.attention_ranks, d.dp, d.batch)
        if key in keys:
            wrong.add(at, d.model, "one entry for each model, GPU type and degrees")
        keys.add(key)
        limits = problem.continuous
        if (d.batch is None) == (limits is None):
            wrong.add(f"{at}.batch", d.batch, "a batch with serving: slots" if limits is None else "none: engines have"
                      " max_num_seqs")  # fmt: skip
            continue
        made = wrong.collect(
            _configurations, problem, d, gpu, case.models.index(d.model), case.gpu_types.index(gpu), at
        )
        if made is not None:
            found.append(made)
    wrong.raise_any()
    return found


def _configurations(
    problem: Orchestration, d: CurrentInstances, gpu: str, m: int, g: int, at: str
) -> list[Configuration]:
    """The configurations that a deployment can be."""
    from optmodels.io.read import validate

    limits, update = problem.continuous, dict[str, Any]()
    if limits is not None:
        told = {"max_num_seqs": limits.slots}  # running instances have a number, which no plan chooses
        told |= {k: v for k in ("max_num_seqs", "max_num_batched_tokens", "chunk_tokens") if (v := getattr(d, k))}
        update["engine"] = validate(Continuous, limits.model_dump() | told, prefix=at)
    batches = (problem.models[m].candidates or problem.candidates).batch if d.batch is None else (d.batch,)
    choose = Candidates(tp=(d.tp,), pp=(d.pp,), dp=(d.dp,), batch=batches, attention_ranks=(d.attention_ranks,))
    models = tuple(x.model_copy(update={"candidates": choose}) if i == m else x for i, x in enumerate(problem.models))
    tables = build_tables(problem.model_copy(update=update | {"models": models}))
    made = [x for x in tables.configurations if (x.model, x.gpu) == (m, g)]
    if not made:
        reasons = [x.reason for x in tables.discarded if (x.model, x.gpu) == (d.model, gpu)]
        expected = "instances that can serve" + (f": {reasons[0]}" if reasons else "")
        raise InputError(Mistake(None, at, parallelism(d.tp, d.pp, d.attention_ranks, d.dp), expected))
    return made


def _best_use(
    t: OrchestrationTables, lines: list[list[Configuration]], counts: Sequence[int]
) -> tuple[OrchestrationPlan | None, OrchestrationTables]:
    """The linear model's best schedule at these counts, with the tables of the running instances.

    Levels are chosen one deployment after the other by a schedule by reservations, the last schedule by a linear
    programme. The plan is None where instances do not fit the servers.
    """
    p = t.case.problem
    free = p.model_copy(update={
        "models": tuple(
            m.model_copy(update={"attainment_at_least": None, "minimum_instances": 0, "maximum_instances": None})
            for m in p.models
        ),
        "objective": p.objective.model_copy(update={"latency_threshold_s": latency_threshold(t)}),
        "change": InstanceChange(), "cluster": p.cluster.model_copy(update={"stock": {}}), "certify": "none",
    })  # fmt: skip
    case = replace(t.case, problem=free)
    number = np.asarray(counts, dtype=np.int64)

    def tables(chosen: Sequence[int]) -> OrchestrationTables:
        mine = tuple(of[i] for of, i in zip(lines, chosen, strict=True))
        service, first, share, wait, taken = served(case, mine, t.classes, t.class_of, t.deadline_s, t.most_tokens)
        return replace(
            t, case=case, configurations=mine, service_s=service, first_s=first, share=share, wait_s=wait, taken=taken
        )  # fmt: skip

    def value(chosen: Sequence[int]) -> float:
        of = tables(chosen)
        return metrics(of, reserve(of, number, free.objective.weights, swaps=0)).total

    best = [len(of) // 2 for of in lines]
    if max(map(len, lines)) > 1:
        best = _ascended(best, [len(of) for of in lines], value)
    of = tables(best)
    found = scheduled(of, number)
    return (None if found is None else make_plan(of, found.assignment)), of


def _ascended(start: list[int], levels: Sequence[int], value: Callable[[Sequence[int]], float]) -> list[int]:
    """Coordinate ascent over levels, until there is no time."""
    best, most = start, value(start)
    for _ in range(SWEEPS):
        before = best
        for j, n in enumerate(levels):
            for i in range(n):
                if not seconds_for("better levels of what runs", np.inf):
                    return best
                other = [*best[:j], i, *best[j + 1 :]]
                if other != best and (found := value(other)) > most:
                    best, most = other, found
        if best == before:
            break
    return best


def _with_limits(p: OrchestrationPlan, t: OrchestrationTables) -> OrchestrationPlan:
    """The plan with each engine's own max_num_seqs: running engines admit as many as they are set to."""
    lines = []
    for line, x in zip(p.configurations, t.configurations, strict=True):
        if line.engine is not None and x.engine is not None:
            engine = line.engine.model_copy(update={"max_num_seqs": x.engine.limits.slots})
            line = line.model_copy(update={"engine": engine})
        lines.append(line)
    return p.model_copy(update={"configurations": lines})


def _replayed(
    t: OrchestrationTables, p: OrchestrationPlan, requests: Simulated, way: Dispatcher, options: ReplayOptions,
    name: str,
) -> dict[str, Any]:  # fmt: skip
    """Figures of one simulation."""
    cluster = cluster_of(t, p)
    run = ReplayOptions(seed=options.seed)
    seen = sent(t, p, requests, cluster, shares_of(t, p), way, run)
    if options.keep is not None:
        options.keep(name, columns(seen, requests, cluster))
    found = summary(seen, requests, cluster, t.classes.label, t.case.models).json()
    kind = np.array([i.configuration for i in p.instances], dtype=np.int64)
    span = max(float(np.max(seen.finish_s, initial=0.0, where=np.isfinite(seen.finish_s))), t.horizon_s)
    each = np.bincount(kind, seen.busy_s, len(p.configurations)) / np.bincount(kind, minlength=len(p.configurations))
    sent_to = np.bincount(kind[seen.instance[seen.served]], minlength=len(p.configurations)) / span
    return found | {
        "dispatcher": way.model_dump(mode="json"), "score": replayed_score(t, requests, seen),
        "busy": (each / span).tolist(), "served_per_s": sent_to.tolist(),
    }  # fmt: skip


def _keeps(problem: Orchestration, p: OrchestrationPlan) -> bool:
    """Whether the best use has every model's attainment_at_least."""
    return all(
        m.attainment_at_least is None or share >= m.attainment_at_least - 1e-6
        for m in problem.models if (share := p.attainment_by_model.get(m.model)) is not None
    )  # fmt: skip


def _report(
    t: OrchestrationTables, at: OrchestrationTables, current: CurrentCluster, p: OrchestrationPlan,
    seen: dict[str, dict[str, Any]], way: Dispatcher | None,
) -> dict[str, Any]:  # fmt: skip
    """The report of `evaluate`."""
    planned, rows = p.attainment_by_model, []
    floors = {m.model: m.attainment_at_least for m in t.case.problem.models}
    duration = t.case.trace.duration_s if t.case.trace is not None and t.case.trace.duration_s > 0 else t.horizon_s
    for model, share in planned.items():
        came = sum(c.requests for c in p.classes if c.model == model)
        row: dict[str, Any] = {"demand": model, "requests_per_s": came / duration}
        row |= {f"{how}_within": found["by_model"].get(model) for how, found in seen.items()}
        rows.append(row | {"planned_routing_within": share, "attainment_at_least": floors[model]})
    deployments = []
    for j, (d, c, x) in enumerate(zip(current.deployments, p.configurations, at.configurations, strict=True)):
        line: dict[str, Any] = {
            "name": d.name or f"{d.instances}× {c.model} {c.parallelism} on {c.gpu}", "model": c.model, "gpu": c.gpu,
            "gpus": c.gpus, "engines": d.instances * d.dp, "tp": c.tp, "pp": c.pp, "dp": c.dp,
            **({"attention_ranks": c.attention_ranks} if c.attention_ranks else {}),
        }  # fmt: skip
        if (replayed := seen.get("replayed")) is not None:
            line |= {"requests_per_s": replayed["served_per_s"][j], "replayed_busy": replayed["busy"][j]}
        if x.engine is not None:
            line |= {"step_s": x.engine.step_s, "planned_level": c.batch,
                     **{k: getattr(x.engine.limits, k) for k in (
                         "max_num_seqs", "max_num_batched_tokens", "chunk_tokens")}}  # fmt: skip
        else:
            line["batch"] = c.batch
        deployments.append(line)
    sources = [(f"{t.case.models[x.model]} on {x.tp * x.ranks} × {t.case.gpu_types[x.gpu]}", x.provenance)
               for x in at.configurations if x.provenance is not None]  # fmt: skip

    def keeps(shares: dict[str, Any]) -> bool:
        return all(f is None or shares.get(m, 1.0) >= f - 1e-9 for m, f in floors.items())

    attainment = {how: found["attainment"] for how, found in seen.items()}
    kept = {how: keeps(found["by_model"]) for how, found in seen.items()} if any(floors.values()) else {}
    return {
        "gpus": p.prediction.gpus_used, "gpus_of_cluster": p.prediction.gpus,
        "attainment": attainment | {"planned_routing": p.prediction.attainment}, "keeps_every_slo": kept,
        "deployments": deployments, "demands": rows, "replays": seen,
        "planned_dispatcher": None if way is None else way.policy,
        "latency": source_entries(sources, t.case.problem.latency.safety),
    }  # fmt: skip
