"""Engines that batch continuously, as operating points of a fleet: the levels at which buckets keep their SLO.

An engine is one model instance on some GPUs. Its levels are step times t (`optmodels.engine.continuous`) and, at each,
waits ω. A bucket keeps its limits on TTFT and deadline up to a wait of its own, and of buckets that share a deployment
the least counts, so that the best ω is always one bucket's: `WAITS` of them are offered, at equal ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress

import numpy as np
import numpy.typing as npt

from formulations.fleet.plan import DeploymentLine
from formulations.fleet.problem import Demand, FleetCase, FleetWorkload
from optmodels.engine.continuous import (
    MOST_OF_WAIT,
    ROWS,
    RUNNING,
    TURNS,
    Classes,
    EngineLimits,
    LatencyLimit,
    Points,
    Stage,
    levels_of_loads,
    operating_points,
    seconds_and_quantile,
    waits_for_places,
    with_best_steps,
)
from optmodels.engine.costs import Steps, drafts_of, steps
from optmodels.engine.stages import cache_bytes
from optmodels.errors import UnpublishedError
from optmodels.latency.memory import kv_tokens
from optmodels.latency.resolve import deployment, llm_name
from optmodels.latency.steps import Provenance, StepCosts
from optmodels.latency.work import layer_work
from optmodels.plans.lines import latency_source
from optmodels.simulation.continuous import Engine
from optmodels.units import GBPS, GIB

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
LOADS = 0.95 * 0.8 ** np.arange(8.0, -1.0, -1.0)  # ρ of the levels at the least and the largest a₀
WAITS = 3  # waits of a level for each of MOST_OF_WAIT, and of `BUDGETS` where decoding elsewhere shares a deadline
BUDGETS = 3  # of a deadline for decoding: what the fastest engines take, the slowest that leave any time, and between


@dataclass(frozen=True)
class EngineKind:
    """One model instance: GPUs of one kind that share it, each with its memory."""

    gpu: str
    tensor_parallel: int  # GPUs that share an attention rank
    vram_gib: float  # of each
    net_gbps: float | None = None  # of its machine, through which KV caches go; of engines of one stage
    attention_ranks: int = 1  # each with requests and KV cache of its own; experts are spread over all

    @property
    def gpus(self) -> int:
        """Of all ranks."""
        return self.tensor_parallel * self.attention_ranks


@dataclass(frozen=True)
class FleetLevels:
    """Levels of engines of one model, n rows; capacities of one engine, infinite where a bucket misses its SLO.

    Attributes:
        engine: row of the engines, (n,).
        step_s, wait_s, most_of_wait: t, ω and the class of requests that ω is for, (n,).
        kv_tokens: that the engine holds, (n,).
        capacities: one request/s as a share of each of `ROWS`, (6, D, n).
        ttft_s, tpot_s, e2e_s: at the quantile that the bucket's SLO names, waiting included, at most; (D, n).
        late: 1 where the bucket misses its soft SLO, (D, n).
        place_wait_s: mean wait for a slot or KV cache; 0: requests seldom wait for these, (n,).
        max_num_seqs: requests that a rank runs at a time, at most, (n,).

    Of engines of one stage: TTFT with sending the cache, and no time per token, of those that prefill; a time per token
    with receiving it, and no TTFT, of those that decode; E2E is either's part of it.
    """

    engine: Index
    step_s: Array
    wait_s: Array
    most_of_wait: Array
    kv_tokens: Array
    capacities: Array
    ttft_s: Array
    tpot_s: Array
    e2e_s: Array
    late: Array
    place_wait_s: Array
    max_num_seqs: Array


def classes_of(case: FleetCase, demands: Sequence[int], kv_tokens: float = 0.0) -> Classes:
    """Buckets as request classes, weighted by their largest rates; with the prefix cache of so many KV tokens."""
    rows = [case.demands[i] for i in demands]
    return Classes.of(
        [float(d.input_tokens or 1) for d in rows], [float(d.output_tokens or 1) for d in rows],
        cached=np.array([case.hit_share(d.workload, kv_tokens) for d in rows]),
        weight=np.array([d.weight for d in rows]),
    )  # fmt: skip


def mean_prompt(classes: Classes) -> float:
    """Tokens of a prompt, mean over the mixture."""
    return float((classes.weight * classes.input_tokens).sum() / classes.weight.sum())


def _resolved(case: FleetCase, w: FleetWorkload, kind: EngineKind, prompt_tokens: float) -> Steps:
    assert case.source is not None
    model = case.architectures[w.name]
    d = deployment(
        case.source, model, llm_name(model if w.model is None else w.model), case.gpus[kind.gpu], kind.gpu,
        w.precision.weights, w.precision.kv, kind.tensor_parallel, kind.attention_ranks,
    )  # fmt: skip
    return steps(case.source, case.problem.engine, d, prompt_tokens)


def step_costs(case: FleetCase, w: FleetWorkload, kind: EngineKind, prompt_tokens: float) -> tuple[StepCosts, float]:
    """Costs of an engine's steps at the instance's safety, and what TTFT is multiplied by besides.

    Raises:
        InputError: the deployment cannot be modelled.
    """
    found = _resolved(case, w, kind, prompt_tokens)
    tpot, ttft = found.provenance.factors(case.problem.latency.safety)
    return found.costs.scaled(tpot), max(ttft / tpot, 1.0)


def source_of(case: FleetCase, w: FleetWorkload, kind: EngineKind) -> str:
    """Where the seconds of an engine's steps come from."""
    return latency_source(provenance(case, w, kind))


def engine_of(case: FleetCase, d: DeploymentLine) -> tuple[StepCosts, float]:
    """`step_costs` of a plan's line."""
    case = case.loading(d.loads, d.model)
    alike = [i for i, x in enumerate(case.demands) if x.workload in case.accepted]
    return step_costs(case, case.workload(d.loads or ""), _kind_of(case, d), mean_prompt(classes_of(case, alike)))


def simulated(case: FleetCase, d: DeploymentLine) -> tuple[Engine, float]:
    """An engine of a plan's line step by step, and what TTFT is multiplied by besides."""
    costs, slower = engine_of(case, d)
    e, ranks = d.engine, d.attention_ranks or 1
    assert e is not None
    limits = e.max_num_seqs, e.max_num_batched_tokens, e.chunk_tokens
    return Engine(costs, int(e.kv_tokens / ranks), *limits, ranks=ranks), slower


def _kind_of(case: FleetCase, d: DeploymentLine) -> EngineKind:
    main = d.machines[0]
    machine = next(m for m in case.machines if (m.machine, m.region) == (main.machine, main.region))
    vram_gib = machine.vram_gib / machine.gpu_count
    return EngineKind(machine.gpu or "", d.tensor_parallel or 1, vram_gib, attention_ranks=d.attention_ranks or 1)


def provenance_of(case: FleetCase, d: DeploymentLine) -> tuple[str, Provenance] | None:
    """What a plan's line runs, in words, and where its latencies come from; None of measured points."""
    if d.loads is None or d.family is None or not d.serves:
        return None
    case = case.loading(d.loads, d.model)
    w, main = case.workload(d.loads), d.machines[0]
    model = llm_name(case.architectures[w.name] if w.model is None else w.model)
    if not case.problem.continuous:
        first = next(x for x in case.demands if x.name in {s.demand for s in d.serves})
        one, tp = case.single(w, first, main.region, d.batch).resolve(), d.tensor_parallel or 1
        return f"{model} on {tp} × {main.gpu}", one.provenance(main.gpu or "", tp, d.family)
    kind = _kind_of(case, d)
    split = "" if kind.attention_ranks == 1 else f" (TP{kind.tensor_parallel} × DP{kind.attention_ranks})"
    return f"{model} on {kind.gpus} × {kind.gpu}{split}", provenance(case, w, kind)


def provenance(case: FleetCase, w: FleetWorkload, kind: EngineKind) -> Provenance:
    """Where the seconds of an engine's steps come from."""
    return _resolved(case, w, kind, 1.0).provenance


def kv_tokens_of(
    case: FleetCase, w: FleetWorkload, kind: EngineKind, request_tokens: float, limits: EngineLimits
) -> float:
    """Tokens that the KV caches of all ranks hold beside weights and a pass; 0 where they do not fit.

    Args:
        case: the instance.
        w: a workload of the model.
        kind: the engine.
        request_tokens: of the shortest requests; with windows these hold most a token.
        limits: of the engine, with its max_num_seqs.
    """
    work = layer_work(case.architectures[w.name], w.precision.weights, w.precision.kv)
    return kv_tokens(
        work, kind.vram_gib * GIB, kind.tensor_parallel, attention_ranks=kind.attention_ranks,
        utilization=case.problem.memory.vram_usable,
        runtime_bytes=case.problem.memory.runtime_gib * GIB, chunk_tokens=limits.max_num_batched_tokens,
        max_requests=limits.slots, request_tokens=request_tokens,
        drafts=drafts_of(limits, case.architectures[w.name], w.precision.weights, w.precision.kv),
    )  # fmt: skip


def transfer_bytes(case: FleetCase, demands: Iterable[Demand]) -> Array:
    """Bytes of the KV cache of a bucket's prompt, (D,): what goes from its prefill to its decode engine."""
    found = []
    for d in demands:
        w, prompt = case.workload(d.workload), float(d.input_tokens or 1)
        model, p = case.architectures[w.name], w.precision
        drafts = drafts_of(case.problem.engine, model, p.weights, p.kv)
        found.append(float(cache_bytes(layer_work(model, p.weights, p.kv), prompt, drafts)))
    return np.array(found)


def transfer_s(case: FleetCase, d: DeploymentLine) -> Array:
    """Seconds that the KV cache of each bucket's prompt takes through the network of a plan's line, (W,).

    0 of buckets that do not accept its model.
    """
    link, main = case.problem.deployment.link, d.machines[0]
    net = link.net_gbps or next(m.net_gbps for m in case.machines if m.machine == main.machine) or np.inf
    loaded, seconds = case.loading(d.loads, d.model), np.zeros(len(case.demands))
    mine = np.array([x.workload in loaded.accepted for x in case.demands])
    seconds[mine] = transfer_bytes(loaded, compress(case.demands, mine)) / (net * GBPS * (1.0 - link.most_used))
    return seconds


def exchange(case: FleetCase, d: DeploymentLine) -> tuple[int | None, str, int]:
    """What a plan's line of one stage exchanges KV caches with: lines of which this is the same."""
    equal = case.problem.deployment.link.tensor_parallel == "equal"
    return case.which(d.loads, d.model), d.machines[0].region, (d.tensor_parallel or 1) * equal


def levels(
    case: FleetCase, demands: list[int], kinds: list[EngineKind], stage: Stage = "both",
    rest_s: Array | None = None,
) -> tuple[FleetLevels, float, dict[int, str]]:  # fmt: skip
    """Every level of every engine that can be modelled, their `Points.spread`, and why some buckets have none.

    Args:
        case: the instance.
        demands: of one model.
        kinds: engines.
        stage: of a request that they do.
        rest_s: that decode engines take of a deadline, where these only prefill; infinite: impossible, (D, R).
    """
    parts, which, before = [], list(range(len(kinds))), 0
    for n in case.problem.engine.choices:
        made, spread, why = _levels(
            case, demands, [kinds[e] for e in which], case.problem.engine.choosing(n), stage, rest_s
        )
        made = replace(made, engine=np.array(which, dtype=np.intp)[made.engine])
        # Levels told no more than the last choice are on that choice already, with more KV cache.
        more, before = np.asarray(made.max_num_seqs > before), n
        made = FleetLevels(**{f: getattr(made, f)[..., more] for f in FleetLevels.__dataclass_fields__})
        parts.append((made, spread, why))
        with np.errstate(invalid="ignore"):  # engines that lack slots before all else
            lacking = (made.max_num_seqs == n)[None, :] & (made.capacities[RUNNING] >= made.capacities.max(axis=0))
        which = sorted({*made.engine[(lacking & np.isfinite(made.capacities[RUNNING])).any(axis=0)].tolist()})
        if not which:
            break
    blocked = [i for i in demands if all(i in why for *_, why in parts)]
    return _joined([part for part, *_ in parts]), max(s for _, s, _ in parts), {i: parts[0][2][i] for i in blocked}


def _joined(parts: Sequence[FleetLevels]) -> FleetLevels:
    return FleetLevels(**{
        f: np.concatenate([getattr(part, f) for part in parts], axis=-1) for f in FleetLevels.__dataclass_fields__
    })  # fmt: skip


def _levels(
    case: FleetCase, demands: list[int], kinds: list[EngineKind], limits: EngineLimits, stage: Stage,
    rest_s: Array | None,
) -> tuple[FleetLevels, float, dict[int, str]]:  # fmt: skip
    """`levels` of engines told one max_num_seqs."""
    measured = {case.demands[i].workload for i in demands} & set(case.measured_hits)
    if stage == "decode":  # prompts come with their caches, whoever had a part of them
        measured = set()
    if measured and len(kinds) > 1:
        return _one_by_one(case, demands, kinds, limits, stage, rest_s)
    classes = classes_of(case, demands)
    if stage == "decode" and (classes.output_tokens <= 1).all():
        return _none(len(demands)), 1.0, dict.fromkeys(demands, "of one output token, nothing is left to decode")
    works = [case.workload(case.demands[i].workload) for i in demands]
    prompt = mean_prompt(classes)
    shortest = float((classes.input_tokens + classes.output_tokens.mean(axis=1)).min())
    found, index = [], []
    for e, kind in enumerate(kinds):
        try:
            found.append(
                (*step_costs(case, works[0], kind, prompt), kv_tokens_of(case, works[0], kind, shortest, limits))
            )
        except UnpublishedError:
            continue
        index.append(e)
    index = [e for e, f in zip(index, found, strict=True) if f[2] > 0]
    found = [f for f in found if f[2] > 0]
    if not found:
        said = "the model fits no deployment's memory"
        if unknown := sorted({m.gpu for m in case.machines if m.gpu and case.gpus[m.gpu].fp16_flops is None}):
            said += f" that has known latencies (no FLOP/s are published of {', '.join(unknown)})"
        return _none(len(demands)), 1.0, dict.fromkeys(demands, said)
    costs, slower, kv = zip(*found, strict=True)
    runs = np.array(kv)
    if measured:  # of the only kind
        classes, runs = classes_of(case, demands, kv[0]), np.array([case.running_kv_tokens(measured, kv[0])])
    engines, held = np.array(index, dtype=np.intp), np.zeros((len(index), 1, len(demands)))
    ranks = np.array([kinds[e].attention_ranks for e in index])
    if stage != "both":
        link = case.problem.deployment.link
        each = np.array([(kinds[e].net_gbps or 0.0) * GBPS * (1.0 - link.most_used) for e in index])
        held = transfer_bytes(case, [case.demands[i] for i in demands])[None, None, :] / each[:, None, None]
        held += link.latency_s if stage == "prefill" else 0.0

    def at(step_s: Array, placed: bool = False) -> Points:
        return operating_points(costs, runs, limits, classes, step_s, stage, held, ranks, placed)

    def missed(step_s: Array, placed: bool = False) -> Array:
        points = at(step_s, placed)
        at_most = np.array([seconds_and_quantile(w.slo.tbt_s)[0] for w in works])
        return points.missed(_per_token(points, works, stage, held), at_most)

    points = at(with_best_steps(levels_of_loads(costs, LOADS), missed))
    if stage == "decode":
        parts = [_decoding(points, works, np.array(kv), engines, held)]
    else:
        ways = [(points, most, 0.0) for most in MOST_OF_WAIT]
        rows = np.concatenate([points.load, np.zeros_like(points.load[:1])])
        scarce: Mask = np.asarray(waits_for_places(rows).any(axis=(1, 2)))
        if stage == "both" and scarce.any():
            steps = with_best_steps(levels_of_loads(costs, LOADS), partial(missed, placed=True))
            placed = at(steps, placed=True)
            placed = replace(placed, exists=placed.exists & scarce[:, None])
            ways += [(placed, MOST_OF_WAIT[0], turns) for turns in TURNS]
        parts = [
            _with_waits(of, works, np.array(slower), np.array(kv), most, turns, engines, stage, held, rest_s)
            for of, most, turns in ways
        ]
    made = _joined([part for part, _ in parts])
    served = np.isfinite(made.capacities[0]).any(axis=1)
    why = {i: parts[0][1][k] for k, i in enumerate(demands) if not served[k]}
    return made, points.spread(), why


def _one_by_one(
    case: FleetCase, demands: list[int], kinds: list[EngineKind], limits: EngineLimits, stage: Stage,
    rest_s: Array | None,
) -> tuple[FleetLevels, float, dict[int, str]]:  # fmt: skip
    """`_levels` of engines whose prefix caches have different shares of prompts."""
    parts = [_levels(case, demands, [kind], limits, stage, rest_s) for kind in kinds]
    engine = np.concatenate([np.full(len(part.engine), e, dtype=np.intp) for e, (part, *_) in enumerate(parts)])
    made = replace(_joined([x for x, *_ in parts]), engine=engine)
    why = {i: parts[-1][2][i] for i in demands if all(i in blocked for _, _, blocked in parts)}
    return made, max(spread for _, spread, _ in parts), why


def _per_token(points: Points, works: list[FleetWorkload], stage: Stage, receives_s: Array) -> Array:
    """Each bucket's time per token at the quantile of its limit, at most, (P, L, D); none of engines that prefill.

    Of engines that only decode with what it takes to join: at the end of the step in which the cache has come.
    """
    if stage == "prefill":
        return np.zeros(points.work_s.shape)
    asked = [seconds_and_quantile(w.slo.tbt_s)[1] for w in works]
    each = {q: points.tpot_s(q) for q in set(asked)}
    found = np.stack([each[q][..., k] for k, q in enumerate(asked)], axis=-1)
    if stage == "decode":
        decoded = [points.classes.output_at(q)[k] - 1.0 for k, q in enumerate(asked)]
        found += _joins(points, receives_s) / np.maximum(decoded, 1.0)
    return found


def _joins(points: Points, receives_s: Array) -> Array:
    return points.step_s[..., None] + receives_s + points.request_s[:, None, None]


def _with_waits(
    points: Points, works: list[FleetWorkload], slower: Array, kv: Array, most: float, turns: float, engines: Index,
    stage: Stage, sends_s: Array, rest_s: Array | None,
) -> tuple[FleetLevels, list[str]]:  # fmt: skip
    """Levels with waits for requests of one of `MOST_OF_WAIT`, and by bucket why it is on none if so.

    With `turns` of `TURNS` the rest of the wait is for a slot or KV cache, on levels where these are scarcest.

    A shorter wait leaves slower, cheaper decode engines their time: engines that only prefill have waits for `BUDGETS`.
    """
    shape, slow = points.work_s.shape, slower[:, None]
    ttft, e2e = (np.empty(shape) for _ in range(2))  # without waiting
    longest = points.engine.wait_s
    tpot = _per_token(points, works, stage, sends_s)
    per_ttft, per_e2e = (np.empty(shape) for _ in range(2))  # times ω
    allowed, soft_allowed, missed = np.full(shape, longest), np.full(shape, longest), np.empty(shape)
    left = np.full((BUDGETS, *shape), np.inf)  # waits that leave decoding its budget
    left_e2e: list[float] = []  # what decoding leaves of each deadline at most
    up_to = np.array([1.0 if w.soft is None else w.soft.up_to for w in works])
    asked = {q for w in works for _, q in map(seconds_and_quantile, (w.slo.ttft_s, w.slo.deadline_s))}
    first = {q: points.ttft_s(q, most) for q in asked}
    rest = {q: points.decoding_s(q) for q in asked}
    for k, slo in enumerate(w.slo for w in works):
        (at_ttft, q_ttft), (at_tpot, _), (at_e2e, q_e2e) = map(
            seconds_and_quantile, (slo.ttft_s, slo.tbt_s, slo.deadline_s)
        )
        ttft[..., k], per_ttft[..., k] = first[q_ttft][0][..., k] * slow, first[q_ttft][1] * slow
        e2e[..., k] = first[q_e2e][0][..., k] * slow + rest[q_e2e][..., k]
        per_e2e[..., k] = first[q_e2e][1] * slow
        missed[..., k] = tpot[..., k] / at_tpot
        if stage == "prefill":  # one token of output: nothing is left to decode
            ttft[..., k] += sends_s[..., k]
            e2e[..., k] += sends_s[..., k]
            budgets = _budgets(np.zeros(0) if rest_s is None else rest_s[k], at_e2e - e2e[..., k])
            if np.isfinite(at_e2e):
                left[..., k] = (at_e2e - e2e[..., k] - budgets) / per_e2e[..., k]
            at_e2e = at_e2e - float(budgets[0].min()) if np.isfinite(budgets).all() else -np.inf
        left_e2e.append(at_e2e)
        for into, factor in ((allowed, 1.0), (soft_allowed, up_to[k])):
            for limit, base, per in ((at_ttft, ttft, per_ttft), (at_e2e, e2e, per_e2e)):
                into[..., k] = np.minimum(into[..., k], (limit * factor - base[..., k]) / per[..., k])
    fits: Mask = (
        points.holds & points.exists[..., None] if points.placed else np.asarray(np.isfinite(points.load).all(axis=0))
    )
    able: Mask = fits & (missed <= up_to)
    budgeted = range(BUDGETS if np.isfinite(left).any() else 1)
    waits = np.concatenate([
        _ranks(*(np.where(able, np.minimum(a, left[b]), 0.0) for a in (allowed, soft_allowed))) for b in budgeted
    ], axis=2)  # fmt: skip
    shares, load = points.waiting(waits, most), np.repeat(points.load[:, :, :, None, :], waits.shape[2], axis=3)
    prefill = waits
    if points.placed:
        prefill = np.repeat(points.prefill_waits(turns)[..., None], waits.shape[2], axis=2)
        some = points.exists[..., None] & (waits > prefill)
        prefill = np.where(some, prefill, waits)
        load = points.with_places(np.where(some, waits - prefill, 1.0), points.prefill_waits(turns), most)
        shares = np.where(some[..., None], points.waiting(prefill, most), np.inf)
    rows: list[FleetLevels] = []
    for v in range(waits.shape[2]):
        omega = waits[:, :, v, None]
        keeps: Mask = able & (omega <= soft_allowed * (1 + 1e-12)) & np.isfinite(shares[:, :, v])
        keeps &= np.isfinite(load[:, :, :, v]).all(axis=0)
        capacities = np.where(keeps, np.concatenate([load[:, :, :, v], shares[None, :, :, v]]), np.inf)
        e, level = np.nonzero(keeps.any(axis=2))
        late: Mask = np.asarray((omega > allowed * (1 + 1e-12)) | (missed > 1 + 1e-12))
        rows.append(FleetLevels(
            engines[e], points.step_s[e, level], prefill[e, level, v], np.full(len(e), most), kv[e],
            capacities[:, e, level].transpose(0, 2, 1),
            (ttft + per_ttft * omega)[e, level].T, tpot[e, level].T, (e2e + per_e2e * omega)[e, level].T,
            late[e, level].T.astype(float), (waits - prefill)[e, level, v], points.slots[e, 0, 0],
        ))  # fmt: skip
        if stage == "prefill":
            rows[-1].tpot_s.fill(np.nan)
    why = [
        _why(points, fits[..., k], [
            ("TPOT", w.slo.tbt_s, seconds_and_quantile(w.slo.tbt_s)[0], tpot[..., k]),
            ("TTFT", w.slo.ttft_s, seconds_and_quantile(w.slo.ttft_s)[0], ttft[..., k]),
            ("E2E", w.slo.deadline_s, left_e2e[k], e2e[..., k]),
        ]) for k, w in enumerate(works)
    ]  # fmt: skip
    return _joined(rows), why


def _decoding(
    points: Points, works: list[FleetWorkload], kv: Array, engines: Index, receives_s: Array
) -> tuple[FleetLevels, list[str]]:
    """Levels of engines that only decode: requests join at the end of the step in which their cache has come."""
    shape = points.work_s.shape
    joins, tpot = _joins(points, receives_s), _per_token(points, works, "decode", receives_s)
    e2e = np.empty(shape)
    keeps: Mask = np.asarray(np.isfinite(points.load).all(axis=0))
    why = []
    for k, slo in enumerate(w.slo for w in works):
        (at_tpot, _), (at_e2e, q_e2e) = map(seconds_and_quantile, (slo.tbt_s, slo.deadline_s))
        e2e[..., k] = points.decoding_s(q_e2e)[..., k] + joins[..., k]
        why.append(_why(points, keeps[..., k], [
            ("TPOT", slo.tbt_s, at_tpot, tpot[..., k]), ("E2E", slo.deadline_s, at_e2e, e2e[..., k]),
        ]))  # fmt: skip
        keeps[..., k] &= (tpot[..., k] <= at_tpot * (1 + 1e-12)) & (e2e[..., k] <= at_e2e)
    e, level = np.nonzero(keeps.any(axis=2))
    load = np.where(keeps, np.concatenate([points.load, np.zeros((1, *shape))]), np.inf)
    nothing = np.zeros(len(e))
    return FleetLevels(
        engines[e], points.step_s[e, level], nothing, nothing + np.inf, kv[e], load[:, e, level].transpose(0, 2, 1),
        np.full((len(works), len(e)), np.nan), tpot[e, level].T, e2e[e, level].T, np.zeros((len(works), len(e))),
        nothing, nothing + points.engine.slots,
    ), why  # fmt: skip


def _budgets(rest_s: Array, room_s: Array) -> Array:
    """What of a deadline decoding may take, `BUDGETS` of them: (B, P, L); infinite where nothing decodes.

    Args:
        rest_s: that decode engines take, (R,).
        room_s: that a level leaves them without waiting, (P, L).
    """
    times = np.sort(rest_s[np.isfinite(rest_s)])
    if not len(times):
        return np.full((BUDGETS, *room_s.shape), np.inf)
    slowest = times[np.maximum(np.searchsorted(times, room_s) - 1, 0)]
    return np.linspace(np.full_like(slowest, times[0]), slowest, BUDGETS)


def _ranks(*allowed: Array) -> Array:
    """`WAITS` waits of every level, at equal ranks among those that buckets allow; (P, L, V)."""
    every = np.concatenate([np.where(a > 0, a, np.nan) for a in allowed], axis=2)
    every = np.sort(every, axis=2)  # NaN last
    count = np.isfinite(every).sum(axis=2)
    at = [np.rint(np.maximum(count - 1, 0) * v / (WAITS - 1)).astype(int) for v in range(WAITS)]
    picked = np.stack([np.take_along_axis(every, a[:, :, None], axis=2)[:, :, 0] for a in at], axis=2)
    return np.where(count[:, :, None] > 0, picked, 1.0)


def _why(points: Points, fits: Mask, latencies: Sequence[tuple[str, LatencyLimit | None, float, Array]]) -> str:
    """Why no level serves a bucket.

    Args:
        points: of all engines.
        fits: those whose memory it fits, (P, L).
        latencies: name, limit as the file has it, what of that is left in s, and the seconds without waiting, (P, L).
    """
    if not points.exists.any():
        return "the engine's steps take longer than any that is planned for"
    if not np.isfinite(points.load[RUNNING]).any():
        return f"no load at which more than engine.max_num_seqs ({points.engine.slots}) seldom run at a time"
    if not fits.any():
        return "its KV cache fits no deployment beside the model"
    kept: list[str] = []
    for name, limit, left_s, least_s in latencies:
        most, quantile = seconds_and_quantile(limit)
        if not math.isfinite(most):
            continue
        within = fits & (least_s <= left_s)
        if not within.any():
            asked = f"{name} {'mean' if quantile is None else f'p{100 * quantile:g}'} of at most {1e3 * most:.4g} ms"
            if left_s < most:
                return f"{asked} cannot be kept: what its decoding needs leaves too little of it"
            where = f" that keeps its {' and '.join(kept)}" if kept else ""
            least = float(least_s[fits].min())
            return f"{asked} cannot be kept: it is at least {1e3 * least:.4g} ms at every load{where}"
        fits = within
        kept.append(name)
    return "its prompt holds others up for longer than its limits allow at every load"


def _none(demands: int) -> FleetLevels:
    empty, table = np.zeros(0), np.zeros((demands, 0))
    return FleetLevels(
        np.zeros(0, dtype=np.intp), empty, empty, empty, empty, np.zeros((len(ROWS), demands, 0)), table, table, table,
        table, empty, empty,
    )  # fmt: skip
