"""Engines that batch continuously, as operating points of a fleet: the levels at which buckets keep their SLO.

An engine is one model instance on some GPUs. Its levels are step times t and, at each, waits ω
(`optmodels.engine.levels`). With a relaxed limit no plan is worse or impossible. Each point p that a limit allows has a
point q at a relaxed limit that serves every bucket of p, no later, and holds what p holds: all that q takes of any
capacity for a bucket is no more than p takes, or no more than p takes of one fixed other capacity. Points are of three
kinds:

*Fixed steps.* t is one of some that depend on no limit. A bucket w meets its limits up to a wait ω_w, which grows with
them, and each ω_w is offered. Let p serve S and wait for ω ≤ ω_w, w in S. At a relaxed limit q is p's step with the
least ω_w of S: a longer wait takes less of (S7) and (S12) and no more of the rest. Of many buckets ω_w is rounded down
to one of `WAITS` from a second to the next two, which keeps the order.

*Best steps.* Fix a wait g, and let t_w be the longest of some fixed steps at which w meets its limits with it and takes
no more of anything than of time. A relaxed limit does not shorten it. The point of (t, g), t = t_w for some w, serves
S = {v : t_v ≥ t} alone. At a relaxed limit q is the point at t' = the least t_v of S. It serves S, t' ≥ t, and takes no
more of anything than of time, and no more time than p: steps that take more of it than a shorter one are none of the
fixed ones. Of one bucket t_w is found by halving, with the longest wait that it keeps (`longest_steps` has the proof).
A soft limit adds steps and waits to those of the limit itself.

*Stages.* An engine that only prefills leaves decoding what remains of a deadline, so that a longer wait or step is not
better: with deadlines the fixed steps are offered with fixed waits alone.

Each point cut here has another in its place that is q (`_needless`, `_short_enough`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import compress

import numpy as np

from formulations.fleet.plan import DeploymentLine
from formulations.fleet.problem import Demand, FleetCase, FleetWorkload
from optmodels.arrays import Array, Columns, Index, Mask
from optmodels.engine.continuous import (
    FEW_CLASSES,
    FINE,
    MOST_OF_WAIT,
    ROWS,
    RUNNING,
    TIME,
    TURNS,
    Classes,
    Coefficients,
    EngineLimits,
    LatencyLimit,
    Points,
    Stage,
    lacks_slots,
    levels_of_loads,
    loads_of_levels,
    operating_points,
    seconds_and_quantile,
    waits_for_places,
    with_best_steps,
)
from optmodels.engine.costs import EngineCosts, drafts_of, engine_costs
from optmodels.engine.stages import cache_bytes
from optmodels.errors import UnpublishedError
from optmodels.latency.resolve import llm_name
from optmodels.latency.steps import Provenance, StepCosts
from optmodels.latency.work import layer_work
from optmodels.simulation.continuous import Engine
from optmodels.units import GBPS

WAITS = 2  # fixed waits from one to its double
SHORTEST_WAIT_S = 2.0**-10  # of the fixed waits that are all offered


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
        """Summed over ranks."""
        return self.tensor_parallel * self.attention_ranks


@dataclass(frozen=True)
class FleetLevels(Columns):
    """Levels of engines of one model, n rows; capacities of one engine, infinite where a bucket misses its SLO.

    Attributes:
        engine: row of the engines, (n,).
        step_s, wait_s, most_of_wait: t, ω and the class of requests that ω is for, (n,).
        kv_tokens: KV tokens that the engine holds, (n,).
        capacities: one request/s as a share of each of `ROWS`, (6, D, n).
        ttft_s, tpot_s, e2e_s: at the quantile that the bucket's SLO names, waiting included, at most; (D, n).
        itl_s: the same of times between tokens; NaN without a limit, (D, n).
        late: 1 where the bucket misses its soft SLO, (D, n).
        place_wait_s: mean wait for a slot or KV cache; 0: requests seldom wait for these, (n,).
        max_num_seqs: requests that a rank runs at a time, at most, (n,).

    Of engines of one stage: TTFT with sending the cache, and no time per token, where they prefill; a time per token
    with receiving it, and no TTFT, where they decode; E2E is either's part.
    """

    engine: Index
    step_s: Array
    wait_s: Array
    most_of_wait: Array
    kv_tokens: Array
    capacities: Array
    ttft_s: Array
    tpot_s: Array
    itl_s: Array
    e2e_s: Array
    late: Array
    place_wait_s: Array
    max_num_seqs: Array


def classes_of(case: FleetCase, demands: Sequence[int], kv_tokens: float = 0.0) -> Classes:
    """Buckets as request classes, weighted by their largest rates; with the prefix cache of this many KV
    tokens.
    """
    rows = [case.demands[i] for i in demands]
    return Classes.of(
        [float(d.input_tokens or 1) for d in rows], [float(d.output_tokens or 1) for d in rows],
        cached=np.array([case.hit_share(d.workload, kv_tokens) for d in rows]),
        weight=np.array([d.weight for d in rows]),
    )  # fmt: skip


def mean_prompt(classes: Classes) -> float:
    """Tokens of a prompt, mean over the mixture."""
    return float((classes.weight * classes.input_tokens).sum() / classes.weight.sum())


def costs_of(
    case: FleetCase, w: FleetWorkload, kind: EngineKind, prompt_tokens: float = 1.0, request_tokens: float = 1.0,
    limits: EngineLimits | None = None,
) -> EngineCosts:  # fmt: skip
    """An engine's steps at the instance's safety, and its KV cache.

    Args:
        case: the instance.
        w: a workload of the model.
        kind: the engine.
        prompt_tokens: mean over the mixture.
        request_tokens: request tokens of the shortest requests; with windows these hold most a token.
        limits: limits of the engine, with its max_num_seqs; None: the instance's.

    Raises:
        InputError: the deployment cannot be modelled.
    """
    return engine_costs(
        case.on_engines(w, prompt_tokens, request_tokens), limits or case.problem.engine, case.gpus[kind.gpu], kind.gpu,
        kind.tensor_parallel, kind.vram_gib, kind.attention_ranks,
    )  # fmt: skip


def engine_of(case: FleetCase, d: DeploymentLine) -> tuple[StepCosts, float]:
    """Costs of the steps of a plan's line, and what TTFT is multiplied by besides."""
    case = case.loading(d.loads, d.model)
    alike = [i for i, x in enumerate(case.demands) if x.workload in case.accepted]
    e = costs_of(case, case.workload(d.loads or ""), _kind_of(case, d), mean_prompt(classes_of(case, alike)))
    return e.costs, e.slower


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
    """Model and GPUs of a plan's line, in words, and the source of its latencies; None: measured points."""
    if d.loads is None or d.family is None or not d.serves:
        return None
    case = case.loading(d.loads, d.model)
    w, main = case.workload(d.loads), d.machines[0]
    stored = "" if w.precision.weights == "fp16" else f" in {w.precision.weights}"
    model = llm_name(case.architectures[w.name] if w.model is None else w.model) + stored
    if not case.problem.continuous:
        first = next(x for x in case.demands if x.name in {s.demand for s in d.serves})
        one, tp = case.single(w, first, main.region, d.batch).resolve(), d.tensor_parallel or 1
        return f"{model} on {tp} × {main.gpu}", one.provenance(main.gpu or "", tp, d.family)
    kind = _kind_of(case, d)
    split = "" if kind.attention_ranks == 1 else f" (TP{kind.tensor_parallel} × DP{kind.attention_ranks})"
    return f"{model} on {kind.gpus} × {kind.gpu}{split}", costs_of(case, w, kind).provenance


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
    seconds[mine] = transfer_bytes(loaded, compress(case.demands, mine)) / link.rate(net * GBPS)
    return seconds


def exchange(case: FleetCase, d: DeploymentLine) -> tuple[int | None, str, int]:
    """Key of a plan's line of one stage: lines with equal keys exchange KV caches."""
    equal = case.problem.deployment.link.tensor_parallel == "equal"
    return case.which(d.loads, d.model), d.machines[0].region, (d.tensor_parallel or 1) * equal


def levels(
    case: FleetCase, demands: list[int], kinds: list[EngineKind], stage: Stage = "both",
    rest_s: Array | None = None,
) -> tuple[FleetLevels, float, dict[int, str]]:  # fmt: skip
    """Every level of every engine that can be modelled, their `Points.spread`, and why some buckets have none.

    Args:
        case: the instance.
        demands: demands of one model.
        kinds: engines.
        stage: stage of a request that they do.
        rest_s: seconds that decode engines take of a deadline, where these only prefill; infinite: impossible, (D,
            R).
    """
    parts, which, before = [], list(range(len(kinds))), 0
    for n in case.problem.engine.choices:
        made, spread, why, lacking = _levels(
            case, demands, [kinds[e] for e in which], case.problem.engine.choosing(n), stage, rest_s
        )
        made = replace(made, engine=np.array(which, dtype=np.intp)[made.engine])
        # Levels told no more than the last choice are on that choice already, with more KV cache.
        parts.append((made.take(np.asarray(made.max_num_seqs > before)), spread, why))
        before = n
        which = [which[e] for e in lacking.tolist()]  # engines that lack slots before all else
        if not which:
            break
    blocked = [i for i in demands if all(i in why for *_, why in parts)]
    made = FleetLevels.joined([part for part, *_ in parts])
    return made, max(s for _, s, _ in parts), {i: parts[0][2][i] for i in blocked}


def _levels(
    case: FleetCase, demands: list[int], kinds: list[EngineKind], limits: EngineLimits, stage: Stage,
    rest_s: Array | None,
) -> tuple[FleetLevels, float, dict[int, str], Index]:  # fmt: skip
    """`levels` of engines told one max_num_seqs, and engines for which slots are scarcest at a level within limits."""
    measured = {case.demands[i].workload for i in demands} & set(case.measured_hits)
    if stage == "decode":  # prompts arrive with their caches
        measured = set()
    if measured and len(kinds) > 1:
        return _one_by_one(case, demands, kinds, limits, stage, rest_s)
    classes = classes_of(case, demands)
    if stage == "decode" and (classes.output_tokens <= 1).all():
        said = "of one output token, nothing is left to decode"
        return _none(len(demands)), 1.0, dict.fromkeys(demands, said), np.zeros(0, dtype=np.intp)
    works = [case.workload(case.demands[i].workload) for i in demands]
    prompt = mean_prompt(classes)
    shortest = float((classes.input_tokens + classes.output_tokens.mean(axis=1)).min())
    found, index = [], []
    for e, kind in enumerate(kinds):
        try:
            of_kind = costs_of(case, works[0], kind, prompt, shortest, limits)
            found.append((of_kind.costs, of_kind.slower, of_kind.kv_tokens))
        except UnpublishedError:
            continue
        index.append(e)
    index = [e for e, f in zip(index, found, strict=True) if f[2] > 0]
    found = [f for f in found if f[2] > 0]
    if not found:
        said = "the model fits no deployment's memory"
        if unknown := case.without_flops:
            said += f" that has known latencies{unknown}"
        return _none(len(demands)), 1.0, dict.fromkeys(demands, said), np.zeros(0, dtype=np.intp)
    costs, slower, kv = zip(*found, strict=True)
    runs = np.array(kv)
    if measured:  # of the only kind
        classes, runs = classes_of(case, demands, kv[0]), np.array([case.running_kv_tokens(measured, kv[0])])
    engines, held = np.array(index, dtype=np.intp), np.zeros((len(index), 1, len(demands)))
    ranks = np.array([kinds[e].attention_ranks for e in index])
    if stage != "both":
        link = case.problem.deployment.link
        each = np.array([link.rate((kinds[e].net_gbps or 0.0) * GBPS) for e in index])
        held = transfer_bytes(case, [case.demands[i] for i in demands])[None, None, :] / each[:, None, None]
        held += link.latency_s if stage == "prefill" else 0.0

    stacked = Coefficients.stack(costs)

    def at(step_s: Array, placed: bool = False) -> Points:
        if step_s is not steps:
            return operating_points(stacked, runs, limits, classes, step_s, stage, held, ranks, placed)
        if placed not in known:
            known[placed] = operating_points(stacked, runs, limits, classes, steps, stage, held, ranks, placed)
        return known[placed]

    least = np.zeros(len(demands))
    if stage == "prefill":  # no request meets its limits where no engine decodes
        assert rest_s is not None
        least = rest_s.min(axis=1, initial=np.inf)
    every = case.problem.certify != "none"
    of = _Engines(works, np.array(slower), np.array(kv), engines, stage, held, least, every)
    alone = stage == "both" and len(demands) == 1
    known: dict[bool, Points] = {}  # at the steps of levels
    steps = levels_of_loads(costs, loads_of_levels(limits.load, least=limits.least))
    points = at(steps)
    fine = levels_of_loads(costs, loads_of_levels(limits.load, FINE[len(demands) > FEW_CLASSES], limits.least))
    timed = any(w.slo.deadline_s is not None for w in works) and stage != "both"
    finer = {} if (alone and works[0].soft is None) or timed else {False: at(fine)}
    if stage == "decode":
        parts = [_decoding(points, works, np.array(kv), engines, held)]
        parts += [_decoding(of, works, np.array(kv), engines, held, True) for of in finer.values()]
        can = np.isfinite(points.load).all(axis=0)
    else:
        rows = np.concatenate([points.load, np.zeros_like(points.load[:1])])
        scarce: Mask = np.asarray(waits_for_places(rows).any(axis=(1, 2)))
        ways = [(False, most, 0.0) for most in MOST_OF_WAIT]
        ways += [(True, MOST_OF_WAIT[0], turns) for turns in TURNS] if stage == "both" and scarce.any() else []
        if finer and any(placed for placed, *_ in ways):
            finer[True] = at(fine, True)
        parts = []
        for placed, most, turns in ways:
            if alone:
                seen = partial(of.seen, at, placed, most, turns)
                chosen = at(with_best_steps(steps, seen), placed)
            else:
                chosen = at(steps, placed)
            if placed:
                chosen = replace(chosen, exists=chosen.exists & scarce[:, None])
            parts.append(of.with_waits(chosen, most, turns))
            if placed in finer:
                able = scarce if placed else np.ones(len(scarce), dtype=bool)
                parts.append((of.at_best_steps(finer[placed], most, turns, able), []))
        can = of.within(points, MOST_OF_WAIT[-1]).can
    lacking = engines[lacks_slots(points.load, np.asarray(can))]
    made = FleetLevels.joined([part for part, *_ in parts])
    served = np.isfinite(made.capacities[0]).any(axis=1)
    why = {i: parts[0][1][k] for k, i in enumerate(demands) if not served[k]}
    return made, points.spread(), why, lacking


def _one_by_one(
    case: FleetCase, demands: list[int], kinds: list[EngineKind], limits: EngineLimits, stage: Stage,
    rest_s: Array | None,
) -> tuple[FleetLevels, float, dict[int, str], Index]:  # fmt: skip
    """`_levels` of engines whose prefix caches have different shares of prompts."""
    parts = [_levels(case, demands, [kind], limits, stage, rest_s) for kind in kinds]
    engine = np.concatenate([np.full(len(part), e, dtype=np.intp) for e, (part, *_) in enumerate(parts)])
    made = replace(FleetLevels.joined([x for x, *_ in parts]), engine=engine)
    why = {i: parts[-1][2][i] for i in demands if all(i in blocked for _, _, blocked, _ in parts)}
    lacking = np.flatnonzero([len(lacks) > 0 for *_, lacks in parts])
    return made, max(spread for _, spread, *_ in parts), why, lacking


def _per_token(points: Points, works: list[FleetWorkload], stage: Stage, receives_s: Array) -> Array:
    """Each bucket's time per token at the quantile of its limit, at most, (P, L, D); none of engines that prefill.

    Of engines that only decode with the time to join: at the end of the step in which the cache has come.
    """
    if stage == "prefill":
        return np.zeros(points.work_s.shape)
    asked = [seconds_and_quantile(w.slo.tpot_s)[1] for w in works]
    each = {q: points.tpot_s(q) for q in set(asked)}
    found = np.stack([each[q][..., k] for k, q in enumerate(asked)], axis=-1)
    if stage == "decode":
        decoded = [points.classes.output_at(q)[k] - 1.0 for k, q in enumerate(asked)]
        found += _joins(points, receives_s) / np.maximum(decoded, 1.0)
    return found


def _pauses(points: Points, works: list[FleetWorkload], stage: Stage, receives_s: Array) -> Array:
    """Time between two tokens of each bucket at the quantile of its limit, at most, (P, L, D); NaN without a limit."""
    found = np.full(points.work_s.shape, np.nan)
    limits = [w.slo.itl_s for w in works]
    if stage == "prefill" or not any(limit is not None for limit in limits):
        return found
    joins = _joins(points, receives_s)
    asked = [None if limit is None else seconds_and_quantile(limit)[1] for limit in limits]
    each = {q: points.itl_of_joining_s(q, joins) if stage == "decode" else points.itl_s(q) for q in {*asked}}
    for k, limit in enumerate(limits):
        if limit is not None:
            found[..., k] = each[asked[k]][..., k]
    return found


def _joins(points: Points, receives_s: Array) -> Array:
    return points.step_s[..., None] + receives_s + points.request_s[:, None, None]


@dataclass(frozen=True)
class _Within:
    """Levels that the limits leave, (P, L, D).

    Attributes:
        ttft_s, e2e_s, tpot_s: without waiting; of engines that only prefill with sending the cache.
        itl_s: time between tokens; NaN without a limit.
        per_ttft, per_e2e: times ω that waiting adds, (P, 1, D).
        allowed_s, soft_s: longest waits within the limits and within soft SLOs; none: 0 or less.
        missed: TPOT over its limit, or ITL, whichever is more.
        fits: levels that a bucket can be on; `can`: and meets its limits, if they are soft those.
    """

    ttft_s: Array
    e2e_s: Array
    tpot_s: Array
    itl_s: Array
    per_ttft: Array
    per_e2e: Array
    allowed_s: Array
    soft_s: Array
    missed: Array
    fits: Mask
    can: Mask

    def take(self, deployment: Index, level: Index) -> _Within:
        """As `Points.take`."""
        return _Within(**{
            f.name: x[deployment, level if x.shape[1] > 1 else 0][:, None]
            for f in fields(self) for x in (getattr(self, f.name),)
        })  # fmt: skip


@dataclass(frozen=True)
class _Engines:
    """Engines of one model and the demands on them.

    Attributes:
        works: workload of each of the D buckets.
        slower: factor of TTFT besides, (P,).
        kv: tokens of their caches, (P,).
        engines: row of each, (P,).
        stage: stage of a request that they do.
        sends_s: seconds that a prompt's cache is on its way, (P, 1, D).
        least_s: least part of a bucket's deadline that decoding elsewhere takes, (D,).
        every: levels are not cut: certification may plan the one that stands in for others less full.
    """

    works: list[FleetWorkload]
    slower: Array
    kv: Array
    engines: Index
    stage: Stage
    sends_s: Array
    least_s: Array
    every: bool

    def within(self, points: Points, most: float) -> _Within:
        """Levels that the limits leave, with waits of one of `MOST_OF_WAIT`."""
        shape, slow, works = points.work_s.shape, self.slower[:, None], self.works
        ttft, e2e, missed = (np.empty(shape) for _ in range(3))
        per_ttft, per_e2e = (np.empty((shape[0], 1, shape[2])) for _ in range(2))
        allowed, soft = (np.full(shape, points.engine.wait_s) for _ in range(2))
        tpot = _per_token(points, works, self.stage, self.sends_s)
        itl = _pauses(points, works, self.stage, self.sends_s)
        asked = {q for w in works for _, q in map(seconds_and_quantile, (w.slo.ttft_s, w.slo.deadline_s))}
        first = {q: points.ttft_s(q, most) for q in asked}
        rest = {q: points.decoding_s(q) for q in asked}
        up_to = np.array([1.0 if w.soft is None else w.soft.up_to for w in works])
        for k, slo in enumerate(w.slo for w in works):
            (at_ttft, q_ttft), (at_tpot, _), (at_e2e, q_e2e) = map(
                seconds_and_quantile, (slo.ttft_s, slo.tpot_s, slo.deadline_s)
            )
            ttft[..., k], per_ttft[..., k] = first[q_ttft][0][..., k] * slow, first[q_ttft][1] * slow
            e2e[..., k] = first[q_e2e][0][..., k] * slow + rest[q_e2e][..., k]
            per_e2e[..., k] = first[q_e2e][1] * slow
            missed[..., k] = np.fmax(tpot[..., k] / at_tpot, itl[..., k] / seconds_and_quantile(slo.itl_s)[0])
            if self.stage == "prefill":  # one token of output: nothing is left to decode
                ttft[..., k] += self.sends_s[..., k]
                e2e[..., k] += self.sends_s[..., k]
                at_e2e = at_e2e - self.least_s[k] if np.isfinite(self.least_s[k]) else -np.inf
            for into, factor in ((allowed, 1.0), (soft, up_to[k])):
                for limit, base, per in ((at_ttft, ttft, per_ttft), (at_e2e, e2e, per_e2e)):
                    into[..., k] = np.minimum(into[..., k], (limit * factor - base[..., k]) / per[..., k])
        fits: Mask = (
            points.holds & points.exists[..., None]
            if points.placed
            else np.asarray(np.isfinite(points.load).all(axis=0))
        )
        can: Mask = fits & (missed <= up_to) & (soft > 0.0)
        return _Within(ttft, e2e, tpot, itl, per_ttft, per_e2e, allowed, soft, missed, fits, can)

    def rows(self, points: Points, wait_s: Array, most: float, turns: float) -> tuple[Array, Array]:
        """One request/s as a share of each of `ROWS` with waits (P, L, V), (6, P, L, V, D), and those for prefill.

        With `turns` of `TURNS` the rest of a wait is for a slot or KV cache; infinite where there is no rest.
        """
        if not points.placed:
            load = np.repeat(points.load[:, :, :, None, :], wait_s.shape[2], axis=3)
            return np.concatenate([load, points.waiting(wait_s, most)[None]]), wait_s
        before = points.prefill_waits(turns)
        prefill = np.repeat(before[..., None], wait_s.shape[2], axis=2)
        some = points.exists[..., None] & (wait_s > prefill)
        prefill = np.where(some, prefill, wait_s)
        load = points.with_places(np.where(some, wait_s - prefill, 1.0), before, most)
        shares = np.where(some[..., None], points.waiting(prefill, most), np.inf)
        return np.concatenate([load, shares[None]]), prefill

    def ends(self, points: Points, of: _Within, most: float, turns: float) -> tuple[Mask, Array, Array]:
        """Where buckets take no more of capacities that waits do not lessen than of time, and of the others.

        Returns:
            (P, L, D); the waits for prefill, 0 where these are to be chosen, (P, L); those that make places no scarcer
            than time, (P, L, D).
        """
        time = points.load[TIME]
        others = np.delete(points.load, TIME, axis=0).max(axis=0)
        can = of.can & (others <= time)
        before, needs = np.zeros(points.step_s.shape), np.zeros(can.shape)
        if points.placed:
            before = points.prefill_waits(turns)
            can &= points.waiting(np.maximum(before, 1e-300)[..., None], most)[:, :, 0] <= time
            with np.errstate(invalid="ignore", divide="ignore"):
                for k in range(can.shape[2]):

                    def over_time(place: Array, k: int = k) -> Array:
                        return np.asarray(place[..., k] / time[..., k])

                    needs[..., k] = points.place_waits(before, most, over_time)
        return can, before, needs

    def seen(
        self, at: Callable[[Array, bool], Points], placed: bool, most: float, turns: float, step_s: Array
    ) -> tuple[Array, Array]:
        """Whether steps are too long for the only bucket with the longest wait that it keeps: 2, else 1, (P, L).

        Infinite where it keeps no limit at all, 0 where a step is too short for a level. And the requests/s that time
        carries: all of them, at a step that is not too long.
        """
        points = at(step_s, placed)
        of = self.within(points, most)
        can, before, needs = self.ends(points, of, most, turns)
        fits = can & (of.missed <= 1.0) & (of.allowed_s > 0.0) & (needs <= of.allowed_s - before[..., None])
        if not points.placed:
            fits &= points.waiting(np.where(fits, of.allowed_s, 1.0), most)[:, :, 0] <= points.load[TIME]
        beyond = np.where(of.can & (of.missed <= 1.0), 2.0, np.inf)
        missed = np.where(points.exists, np.where(fits, 1.0, beyond)[..., 0], 0.0)
        return missed, np.where(points.exists, 1.0 / points.load[TIME, ..., 0], 0.0)

    def with_waits(self, points: Points, most: float, turns: float) -> tuple[FleetLevels, list[str]]:
        """Levels with waits for requests of one of `MOST_OF_WAIT`, and by bucket why it is on none if so.

        With `turns` of `TURNS` the rest of the wait is for a slot or KV cache, on levels where these are scarcest.
        """
        of, works = self.within(points, most), self.works
        why = [
            _why(points, of.fits[..., k], [
                ("TPOT", w.slo.tpot_s, seconds_and_quantile(w.slo.tpot_s)[0], of.tpot_s[..., k]),
                ("ITL", w.slo.itl_s, seconds_and_quantile(w.slo.itl_s)[0], of.itl_s[..., k]),
                ("TTFT", w.slo.ttft_s, seconds_and_quantile(w.slo.ttft_s)[0], of.ttft_s[..., k]),
                ("E2E", w.slo.deadline_s, np.inf if w.slo.deadline_s is None else e2e_s - least_s, of.e2e_s[..., k]),
            ])
            for k, (w, least_s) in enumerate(zip(works, self.least_s, strict=True))
            for e2e_s in (seconds_and_quantile(w.slo.deadline_s)[0],)
        ]  # fmt: skip
        soft = any(w.soft is not None for w in works)
        p, level = np.nonzero(of.can.any(axis=2))
        points, of = points.take(p, level), of.take(p, level)
        if self.stage == "both" and not soft and not self.every:
            beside = (p[1:] == p[:-1]) & (level[1:] == level[:-1] + 1)
            keep = np.flatnonzero(~self._needless(points, of, most, turns, beside))
            first = np.zeros_like(keep)
            p, points, of = p[keep], points.take(keep, first), of.take(keep, first)
        split = self.stage == "prefill" and any(w.slo.deadline_s is not None for w in works)
        n, wait = _offered(of, soft, split)
        first = np.zeros_like(n)
        points, of = points.take(n, first), of.take(n, first)
        rows, prefill = self.rows(points, wait[:, None, None], most, turns)
        rows, omega = rows[:, :, 0, 0], wait[:, None]
        keeps: Mask = of.can[:, 0] & (omega <= of.soft_s[:, 0] * (1 + 1e-12)) & np.isfinite(rows).all(axis=0)
        serves: Mask = np.asarray(keeps.any(axis=1))
        some = np.flatnonzero(serves if self.every else serves & ~_short_enough(rows, keeps, n))
        made = self._levels(p, points, of, n, wait, most, rows, prefill[:, 0, 0], keeps, some)
        return made, why

    def at_best_steps(self, points: Points, most: float, turns: float, scarce: Mask) -> FleetLevels:
        """Levels at the best steps of buckets for each fixed wait (the module's *best steps*).

        Args:
            points: points of fine loads.
            most, turns: of `with_waits`.
            scarce: engines that have any, (P,).
        """
        of, time = self.within(points, most), points.load[TIME]
        can, before, needs = self.ends(points, of, most, turns)
        # A longer step takes less of time, but where more steps carry prompts and contexts cost more beside these.
        can &= scarce[:, None, None] & (time <= np.minimum.accumulate(time, axis=1)).all(axis=2, keepdims=True)
        ends = [(can & (of.missed <= 1.0), of.allowed_s), (can, of.soft_s)]
        ends = ends if any(w.soft is not None for w in self.works) else ends[:1]
        found: list[Array] = []
        for wait in fixed_waits(points.engine.wait_s, 1)[::-1]:
            fits = needs <= wait - before[..., None]
            if not points.placed:
                fits = points.waiting(np.full((*before.shape, 1), wait), most)[:, :, 0] <= time
            last = np.stack([_last(able & fits & (limit >= wait)) for able, limit in ends], axis=1)
            p, end, k = np.nonzero(last >= 0)
            at = np.unique(np.stack([p, last[p, end, k]], axis=1), axis=0)
            serves = last[at[:, 0], -1] >= at[:, 1:]
            found.append(np.concatenate([at, serves, np.full((len(at), 1), wait)], axis=1))
        every = np.concatenate(found)  # columns: engine, level, serves a bucket (one each), wait
        every = every[np.sort(np.unique(every[:, :-1], axis=0, return_index=True)[1])]  # of the same the longest wait
        p, level = every[:, :2].T.astype(np.intp)
        points, of, wait, first = points.take(p, level), of.take(p, level), every[:, -1], np.arange(len(p))
        rows, prefill = self.rows(points, wait[:, None, None], most, turns)
        keeps: Mask = (every[:, 2:-1] > 0.0) & np.isfinite(rows[:, :, 0, 0]).all(axis=0)
        keeps &= of.can[:, 0] & (wait[:, None] <= of.soft_s[:, 0] * (1 + 1e-12))  # ITL of a shorter step may be longer
        some = np.flatnonzero(keeps.any(axis=1))
        return self._levels(p, points, of, first, wait, most, rows[:, :, 0, 0], prefill[:, 0, 0], keeps, some)

    def _levels(
        self, p: Index, points: Points, of: _Within, n: Index, wait: Array, most: float, rows: Array, prefill: Array,
        keeps: Mask, some: Index,
    ) -> FleetLevels:  # fmt: skip
        """`some` of m levels: engines `p` of rows `n`, with capacities (6, m, D) where a bucket is served."""
        omega = wait[:, None]
        late: Mask = np.asarray((omega > of.allowed_s[:, 0] * (1 + 1e-12)) | (of.missed[:, 0] > 1 + 1e-12))
        made = FleetLevels(
            self.engines[p[n]][some], points.step_s[some, 0], prefill[some], np.full(len(some), most),
            self.kv[p[n]][some], np.where(keeps, rows, np.inf)[:, some].transpose(0, 2, 1),
            (of.ttft_s[:, 0] + of.per_ttft[:, 0] * omega)[some].T, of.tpot_s[some, 0].T, of.itl_s[some, 0].T,
            (of.e2e_s[:, 0] + of.per_e2e[:, 0] * omega)[some].T, late[some].T.astype(float),
            (wait - prefill)[some], points.slots[some, 0, 0],
        )  # fmt: skip
        if self.stage == "prefill":
            made.tpot_s.fill(np.nan)
        return made

    def _needless(self, points: Points, of: _Within, most: float, turns: float, beside: Mask) -> Mask:
        """Levels that a neighbour stands in for with the wait that all its buckets keep, (n,).

        The longer one where it takes no more of anything than the shorter of time, and the shorter one where it takes
        no more of anything than the longer of one other capacity; both of each bucket of the one that goes.

        Args:
            points, of, most, turns: n levels that serve something, (n, 1), ascending.
            beside: whether a level and the next are neighbours of one engine, (n − 1,).
        """
        can, wait = of.can[:, 0], np.where(of.can, of.allowed_s, np.inf).min(axis=2)[..., None]
        takes = self.rows(points, wait, most, turns)[0][:, :, 0, 0].max(axis=0)
        whole = (np.isfinite(takes) | ~can).all(axis=1)  # serves every bucket that can be there
        room = points.load[:, :, 0]

        def stands_in(one: slice, other: slice, rows: Array) -> Mask:
            """Whether levels `one` do for `other` in one of the latter's rows."""
            fits = (~can[other] | (can[one] & (takes[one] <= rows[:, other]))).all(axis=2).any(axis=0)
            return beside & whole[one] & fits

        short, long = slice(0, -1), slice(1, None)
        found = np.zeros(len(can), dtype=bool)
        found[short] = stands_in(long, short, room[[TIME]])
        found[long] |= stands_in(short, long, np.delete(room, TIME, axis=0)) & ~found[short]
        return found


def fixed_waits(most_s: float, each: int = WAITS) -> Array:
    """Waits that depend on no limit of a request, this many from one to its double, ascending."""
    first, last = (math.log2(s) * each for s in (SHORTEST_WAIT_S, most_s))
    return 2.0 ** (np.arange(math.ceil(first), math.floor(last) + 1.0) / each)


def _last(able: Mask) -> Index:
    """The last level at which it is true, (P, D); −1: at none."""
    return np.where(able.any(axis=1), able.shape[1] - 1 - np.argmax(able[:, ::-1], axis=1), -1)


def _offered(of: _Within, soft: bool, every: bool) -> tuple[Index, Array]:
    """Waits of levels: row of the n levels, and wait, ascending for each; (m,) both.

    Args:
        of: limits of the levels, (n, 1).
        soft: whether any is soft.
        every: all fixed waits, in place of each bucket's own.
    """
    own = np.concatenate([of.allowed_s, of.soft_s] if soft else [of.allowed_s], axis=2)[:, 0]
    can = np.concatenate([of.can, of.can] if soft else [of.can], axis=2)[:, 0]
    own = np.where(can & (own > 0.0), own, np.nan)
    if every:
        fixed = fixed_waits(np.nanmax(own, initial=SHORTEST_WAIT_S))
        own = np.broadcast_to(fixed, (len(own), len(fixed)))
    elif of.can.shape[2] > FEW_CLASSES:
        own = 2.0 ** (np.floor(np.log2(own) * WAITS) / WAITS)
    own = np.sort(own, axis=1)  # NaN last
    again = own <= np.roll(own, 1, axis=1) * (1.0 + 1e-12)
    again[:, :1] = False
    row, at = np.nonzero(np.isfinite(own) & ~again)
    return row, own[row, at]


def _short_enough(rows: Array, keeps: Mask, level: Index) -> Mask:
    """Waits that the one before stands in for, (m,): it serves as much and takes no more of the capacities that waits
    lessen.

    Args:
        rows: (6, m, D), a wait changes the rows of waiting and of places.
        keeps: buckets that are served, (m, D).
        level: level of each wait, which ascend, (m,).
    """
    before, after = keeps[:-1], keeps[1:]
    with np.errstate(invalid="ignore"):
        changed = np.where(rows[:, :-1] > rows[:, 1:], rows[:, :-1], 0.0).max(axis=0)
        fits = (~after | (before & (changed <= rows[:, 1:]))).all(axis=2).any(axis=0)
    return np.concatenate([np.zeros(min(len(keeps), 1), dtype=bool), fits & (level[1:] == level[:-1])])


def _decoding(
    points: Points, works: list[FleetWorkload], kv: Array, engines: Index, receives_s: Array, best: bool = False
) -> tuple[FleetLevels, list[str]]:
    """Levels of engines that only decode: requests join at the end of the step in which their cache has come.

    `best`: of fine loads those alone at which time is scarcest for a bucket, as long as there are.
    """
    shape = points.work_s.shape
    joins, tpot = _joins(points, receives_s), _per_token(points, works, "decode", receives_s)
    itl = _pauses(points, works, "decode", receives_s)
    e2e = np.empty(shape)
    keeps: Mask = np.asarray(np.isfinite(points.load).all(axis=0))
    why = []
    for k, slo in enumerate(w.slo for w in works):
        (at_tpot, _), (at_e2e, q_e2e) = map(seconds_and_quantile, (slo.tpot_s, slo.deadline_s))
        e2e[..., k] = points.decoding_s(q_e2e)[..., k] + joins[..., k]
        why.append(_why(points, keeps[..., k], [
            ("TPOT", slo.tpot_s, at_tpot, tpot[..., k]),
            ("ITL", slo.itl_s, seconds_and_quantile(slo.itl_s)[0], itl[..., k]),
            ("E2E", slo.deadline_s, at_e2e, e2e[..., k]),
        ]))  # fmt: skip
        keeps[..., k] &= (tpot[..., k] <= at_tpot * (1 + 1e-12)) & (e2e[..., k] <= at_e2e)
        keeps[..., k] &= ~(itl[..., k] > seconds_and_quantile(slo.itl_s)[0] * (1 + 1e-12))
    if best:
        keeps &= (points.load <= points.load[TIME]).all(axis=0)
        last = _last(keeps)
        at = np.arange(keeps.shape[1])[None, :, None]
        keeps &= (at == last[:, None, :]).any(axis=2, keepdims=True) & (at <= last[:, None, :])
    e, level = np.nonzero(keeps.any(axis=2))
    load = np.where(keeps, np.concatenate([points.load, np.zeros((1, *shape))]), np.inf)
    nothing = np.zeros(len(e))
    return FleetLevels(
        engines[e], points.step_s[e, level], nothing, nothing + np.inf, kv[e], load[:, e, level].transpose(0, 2, 1),
        np.full((len(works), len(e)), np.nan), tpot[e, level].T, itl[e, level].T, e2e[e, level].T,
        np.zeros((len(works), len(e))), nothing, nothing + points.engine.slots,
    ), why  # fmt: skip


def _why(points: Points, fits: Mask, latencies: Sequence[tuple[str, LatencyLimit | None, float, Array]]) -> str:
    """Why no level serves a bucket.

    Args:
        points: every engine's points.
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
            if name == "ITL" and points.chunks.any():
                where += f"; steps with prompts of {points.engine.max_num_batched_tokens} tokens last longest: try "
                where += "fewer engine.max_num_batched_tokens, or disaggregated stages"
            least = float(least_s[fits].min())
            return f"{asked} cannot be kept: it is at least {1e3 * least:.4g} ms at every load{where}"
        fits = within
        kept.append(name)
    return "its prompt holds others up for longer than its limits allow at every load"


def _none(demands: int) -> FleetLevels:
    empty, table = np.zeros(0), np.zeros((demands, 0))
    return FleetLevels(
        np.zeros(0, dtype=np.intp), empty, empty, empty, empty, np.zeros((len(ROWS), demands, 0)), table, table, table,
        table, table, empty, empty,
    )  # fmt: skip
