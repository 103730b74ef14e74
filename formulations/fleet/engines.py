"""Engines that batch continuously, as operating points of a fleet: the levels at which buckets keep their SLO.

An engine is one model instance on some GPUs. Its levels are step times t (`optmodels.serving.continuous`) and, at each,
waits ω. A bucket keeps its limits on TTFT and deadline up to a wait of its own, and of buckets that share a deployment
the least counts, so that the best ω is always one bucket's: `WAITS` of them are offered, at equal ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from formulations.fleet.problem import FleetCase, FleetWorkload, LatencyLimit, Percentile
from optmodels.errors import InputError
from optmodels.latency.engines.terms import Deployment
from optmodels.latency.resolve import llm_name, resolve
from optmodels.latency.steps import StepCosts
from optmodels.latency.work import layer_work
from optmodels.serving.continuous import MOST_OF_WAIT, ROWS, Classes, levels_of_loads, operating_points
from optmodels.units import GIB

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
LOADS = 0.95 * 0.87 ** np.arange(13.0)  # ρ of the levels: geometric, so that a neighbour carries at least 87 %
WAITS = 3  # waits of a level for each of MOST_OF_WAIT
LONGEST_WAIT_S = 30.0  # mean wait planned for, at most: nearly full, and a burst is over some time


@dataclass(frozen=True)
class EngineKind:
    """One model instance: GPUs of one kind that share it, each with its memory."""

    gpu: str
    gpus: int
    vram_gib: float  # of each


@dataclass(frozen=True)
class Levels:
    """Levels of engines of one model, n rows; capacities of one engine, infinite where a bucket misses its SLO.

    Attributes:
        engine: row of the engines, (n,).
        step_s, wait_s, most_of_wait: t, ω and the class of requests that ω is for, (n,).
        max_num_batched_tokens: what the engine is told, (n,).
        capacities: one request/s as a share of each of `ROWS`, (6, D, n).
        ttft_s, tpot_s, e2e_s: at the quantile that the bucket's SLO names, waiting included, at most; (D, n).
        penalty: whether the bucket misses its soft SLO, (D, n).
    """

    engine: Index
    step_s: Array
    wait_s: Array
    most_of_wait: Array
    max_num_batched_tokens: Array
    capacities: Array
    ttft_s: Array
    tpot_s: Array
    e2e_s: Array
    late: npt.NDArray[np.bool_]


def classes_of(case: FleetCase, demands: Sequence[int]) -> Classes:
    """Buckets as request classes, weighted by their largest rates."""
    rows = [case.demands[i] for i in demands]
    return Classes.of(
        [float(d.input_tokens or 1) for d in rows], [float(d.output_tokens or 1) for d in rows],
        cached=np.array([case.workload(d.workload).prefix_hit_share for d in rows]),
        weight=np.array([max(d.requests_per_s) for d in rows]),
    )  # fmt: skip


def step_costs(
    case: FleetCase, w: FleetWorkload, kind: EngineKind, prompt_tokens: float
) -> tuple[StepCosts, float, str]:
    """Costs of an engine's steps at the instance's safety, what TTFT is multiplied by besides, and their source.

    Raises:
        InputError: the deployment cannot be modelled.
    """
    assert case.source is not None
    deployment = Deployment(
        case.architectures[w.name], llm_name(case.architectures[w.name] if w.model is None else w.model),
        case.gpus[kind.gpu], kind.gpu, case.source.engine, w.precision.weights, w.precision.kv, gpus=kind.gpus,
    )  # fmt: skip
    costs, provenance = resolve(case.source, deployment, prompt_tokens)
    tpot, ttft = provenance.factors(case.problem.latency.safety)
    said = provenance.source
    if provenance.transfer:
        said += f"; carried over to an unmeasured {', '.join(provenance.transfer)}"
    return costs.scaled(tpot), max(ttft / tpot, 1.0), "; ".join((said, *provenance.notes))


def kv_tokens(case: FleetCase, w: FleetWorkload, kind: EngineKind) -> float:
    """Tokens that an engine's KV cache holds beside weights and activations; 0 where they do not fit."""
    a, rules = case.architectures[w.name], case.problem.memory
    work = layer_work(a, w.precision.weights, w.precision.kv)
    each = kind.vram_gib * GIB * rules.vram_usable
    batched = case.problem.engine.max_num_batched_tokens
    free = each - work.weight_bytes / kind.gpus - batched * work.activation_bytes_per_token / kind.gpus
    shards = 1 if a.mla is not None else min(kind.gpus, a.kv_heads)
    return max(0.0, free / (work.kv_bytes_per_token_all_layers / shards))


def _limit(limit: LatencyLimit | None) -> tuple[float, float | None]:
    if limit is None:
        return math.inf, None
    return (limit.at_most, limit.percentile) if isinstance(limit, Percentile) else (limit, None)


def levels(case: FleetCase, demands: list[int], kinds: list[EngineKind]) -> tuple[Levels, dict[int, str]]:
    """Every level of every engine that can be modelled, and why some buckets have none."""
    classes = classes_of(case, demands)
    works = [case.workload(case.demands[i].workload) for i in demands]
    prompt = float((classes.weight * classes.input_tokens).sum() / classes.weight.sum())
    found, index = [], []
    for e, kind in enumerate(kinds):
        try:
            found.append((*step_costs(case, works[0], kind, prompt), kv_tokens(case, works[0], kind)))
        except InputError:  # no peak of the GPU is known, or nobody has measured what safety needs
            continue
        index.append(e)
    index = [e for e, f in zip(index, found, strict=True) if f[3] > 0]
    found = [f for f in found if f[3] > 0]
    if not found:
        return _none(len(demands)), dict.fromkeys(demands, "the model fits no deployment's memory")
    costs, late_ttft, _, kv = zip(*found, strict=True)
    points = operating_points(costs, np.array(kv), case.problem.engine, classes, levels_of_loads(costs, LOADS))
    P, L, W = points.work_s.shape
    slower = np.array(late_ttft)[:, None, None]
    slos = [w.slo for w in works]
    up_to = np.array([1.0 if w.soft is None else w.soft.up_to for w in works])
    ttft, e2e = np.empty((2, P, L, W)), np.empty((2, P, L, W))  # base, and its factor of ω, below
    tpot = np.empty((P, L, W))
    ratio = np.zeros((P, L, W))  # of TPOT to its limit
    parts: list[tuple[Array, Array, float, Array, Array, Array, Array]] = []
    for most in MOST_OF_WAIT:
        allowed = np.full((P, L, W), LONGEST_WAIT_S)
        soft_allowed = allowed.copy()
        for k, slo in enumerate(slos):
            for limit, latency, into in ((slo.ttft_s, points.ttft_s, ttft), (slo.deadline_s, points.e2e_s, e2e)):
                seconds, quantile = _limit(limit)
                base, waits = latency(quantile, most)
                into[0, :, :, k] = base[:, :, k] * slower[:, :, 0]
                into[1, :, :, k] = waits * slower[:, :, 0]
                if math.isfinite(seconds):
                    for most_allowed, factor in ((allowed, 1.0), (soft_allowed, up_to[k])):
                        mine = (seconds * factor - into[0, :, :, k]) / into[1, :, :, k]
                        most_allowed[:, :, k] = np.minimum(most_allowed[:, :, k], mine)
            seconds, quantile = _limit(slo.tbt_s)
            tpot[:, :, k] = points.tpot_s(quantile)[:, :, k]
            ratio[:, :, k] = tpot[:, :, k] / seconds
        able = (ratio <= up_to) & (soft_allowed > 0) & np.isfinite(points.load).all(axis=0)
        waits = _ranks(np.where(able & (allowed > 0), allowed, np.nan), np.where(able, soft_allowed, np.nan))
        parts.append((waits, points.waiting(waits, most), most, ttft.copy(), e2e.copy(), allowed, soft_allowed))
    rows: list[Levels] = []
    for waits, share, most, ttft_part, e2e_part, allowed, soft_allowed in parts:
        for v in range(waits.shape[2]):
            omega = waits[:, :, v, None]
            keeps = (omega <= soft_allowed * (1 + 1e-12)) & (ratio <= up_to * (1 + 1e-12))
            capacities = np.concatenate([points.load, share[None, :, :, v]])
            capacities = np.where(keeps, capacities, np.inf)
            capacities = np.where(np.isfinite(capacities).all(axis=0), capacities, np.inf)
            e, level = np.nonzero(np.isfinite(capacities[0]).any(axis=2))
            late = (omega > allowed * (1 + 1e-12)) | (ratio > 1 + 1e-12)
            rows.append(Levels(
                np.array(index, dtype=np.intp)[e], points.step_s[e, level], waits[e, level, v],
                np.full(len(e), most), points.max_num_batched_tokens[e, level].astype(float),
                capacities[:, e, level].transpose(0, 2, 1),
                (ttft_part[0] + ttft_part[1] * omega)[e, level].T, tpot[e, level].T,
                (e2e_part[0] + e2e_part[1] * omega)[e, level].T, late[e, level].T,
            ))  # fmt: skip
    made = Levels(**{
        f: np.concatenate([getattr(r, f) for r in rows], axis=-1) for f in Levels.__dataclass_fields__
    })  # fmt: skip
    why = {}
    for k, i in enumerate(demands):
        if np.isfinite(made.capacities[0, k]).any():
            continue
        why[i] = _nearest(points, ratio[:, :, k], parts[-1][5][:, :, k], k)
    return made, why


def _ranks(*allowed: Array) -> Array:
    """`WAITS` waits of every level, at equal ranks among those that buckets allow; (P, L, V)."""
    every = np.concatenate([np.where(a > 0, a, np.nan) for a in allowed], axis=2)
    every = np.sort(every, axis=2)  # NaN last
    count = np.isfinite(every).sum(axis=2)
    at = [np.rint(np.maximum(count - 1, 0) * v / (WAITS - 1)).astype(int) for v in range(WAITS)]
    picked = np.stack([np.take_along_axis(every, a[:, :, None], axis=2)[:, :, 0] for a in at], axis=2)
    return np.where(count[:, :, None] > 0, picked, 1.0)


def _nearest(points: object, ratio: Array, allowed: Array, k: int) -> str:
    """Why no level serves a bucket."""
    load = points.load[:, :, :, k]  # type: ignore[attr-defined]
    fits = np.isfinite(load).all(axis=0)
    if not fits.any():
        return "its KV cache fits no deployment beside the model"
    if not (fits & (ratio <= 1)).any():
        return f"its time per output token is at least {float(ratio[fits].min()):.3g} times its limit at every load"
    if not (fits & (allowed > 0)).any():
        return "its time to first token or deadline is missed at every load, without waiting"
    return "no load keeps all its latency limits"


def _none(demands: int) -> Levels:
    empty, table = np.zeros(0), np.zeros((demands, 0))
    return Levels(
        np.zeros(0, dtype=np.intp), empty, empty, empty, empty, np.zeros((len(ROWS), demands, 0)), table, table, table,
        table.astype(bool),
    )  # fmt: skip
