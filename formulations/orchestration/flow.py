"""An assignment of requests to instances and its score: busy slots, weights and metrics of MS(6–8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from formulations.orchestration.place import running_counts
from formulations.orchestration.points import OrchestrationTables
from optmodels.arrays import Array, Ints
from optmodels.engine.continuous import RUNNING

NO_WAIT_BINS = 0.02  # a wait shorter than this share of a bin is none
ROUNDING = 1e-12  # relative, of sums


@dataclass(frozen=True)
class Assignment:
    """Instances of every configuration and the requests meant for them; P pairs (class, configuration), T bins.

    Attributes:
        counts: (C,) instances.
        request_class, configuration: (P,), the latter a route of the tables.
        admitted, started, waiting: (P, T); `waiting` at the end of the bin.
    """

    counts: Ints
    request_class: Ints
    configuration: Ints
    admitted: Array
    started: Array
    waiting: Array


@dataclass(frozen=True)
class Metrics:
    """MS(6–8) of an assignment."""

    satisfaction: float
    throughput: float
    latency: float
    changes: float
    shortfall_penalty: float
    total: float
    in_time: float
    tokens_per_s: float
    mean_latency_s: float
    slot_use: float
    started: int
    stopped: int
    shortfalls: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Weights:
    """Contribution of a request that meets its deadline to each metric, by class; MS(6) with its normalisers.

    S = Σ satisfaction·served; T = Σ throughput·served, at most 1; L = Σ latency·served − waiting·(seconds waited).
    A request that is not served in time adds nothing to any of them.
    """

    satisfaction: Array  # (K,)
    throughput: Array  # (K,)
    first_token: Array  # (K, R) share of L lost to prefill
    latency: float
    waiting: float  # per second
    capped: bool  # T could exceed 1


def weights(t: OrchestrationTables) -> Weights:
    """The linear pieces of MS(6–8)."""
    q, o = t.classes, t.case.problem.objective
    N = float(q.count.sum()) or 1.0
    offered = float(q.count @ q.output_tokens)
    threshold = o.throughput_threshold_tokens_per_s
    full = offered if threshold is None else threshold * t.horizon_s
    longest = latency_threshold(t)
    return Weights(
        satisfaction=q.weight / (float(q.count @ q.weight) or 1.0),
        throughput=q.output_tokens / (full or 1.0),
        first_token=t.first_s / (longest * N),
        latency=1.0 / N,
        waiting=1.0 / (longest * N),
        capped=offered > full * (1 + 1e-12),
    )


def latency_threshold(t: OrchestrationTables) -> float:
    """First-token latency that counts as 0, seconds: given, or the longest that any candidate allows any class.

    Of engines it is the longest that any request's own limits allow, whatever candidates there are.
    """
    given = t.case.problem.objective.latency_threshold_s
    if given is not None:
        return given
    if t.taken is not None:
        due = t.classes.deadline_s if t.deadline_s is None else t.deadline_s
        return float(np.minimum(due, t.case.ttft_limit_s).max(initial=0.0)) or 1.0
    longest = np.where(t.admissible, t.wait_s + t.first_s, 0.0).max(initial=t.cut_s)
    return float(longest) or 1.0


class BinDemand(NamedTuple):
    """Arrivals as the model counts them: no more than the GPUs can start together, in a unit that occurs once or more.

    Attributes:
        arrivals: (K, T) in units.
        unit: requests; 1, or the power of two below them where they are fewer.
    """

    arrivals: Array
    unit: float


def demand(t: OrchestrationTables) -> BinDemand:
    """Possible arrivals. Arrivals beyond the number that the GPUs could start in every bin together change no row:

    φ·a is at least that many for the least share φ, too. A start is in slots for its whole service or, from a uniform
    time of the last bin on, until the end of the bin after that: slots are counted until then.
    """
    q, able = t.classes, t.admissible
    each = np.zeros(len(t.case.gpu_types))
    if len(t.configurations):
        np.maximum.at(each, t.gpu_of, np.array([x.most_running for x in t.configurations]) / t.gpus_of)
    slot_s = float(each @ t.case.free_gpus) * (t.bins + 1) * t.bin_s
    after = np.maximum(2.0 * t.bin_s - t.service_s, 0.0)  # as `busy_shares`: 3/2 bins less the free part
    free_s = np.where(after < t.bin_s, after**2 / (2.0 * t.bin_s), after - t.bin_s / 2.0)
    least_s = np.where(able, 1.5 * t.bin_s - free_s, np.inf).min(axis=1, initial=np.inf)
    least = np.where(able, t.share, 1.0).min(axis=1, initial=1.0)
    with np.errstate(divide="ignore", over="ignore"):
        most = np.where(least_s > 0, slot_s / (least_s * least), np.inf)
    arrivals = np.minimum(q.arrivals, np.where(able.any(axis=1), most, np.inf)[:, None])
    total = float(arrivals[able.any(axis=1)].sum())
    unit = 2.0 ** np.floor(np.log2(total)) if 0 < total < 1 else 1.0
    return BinDemand(arrivals / unit, unit)


def ceiling(t: OrchestrationTables) -> float:
    """No plan scores more: all requests that some configuration serves in time are, without a wait; nothing is paid."""
    w, q, o = weights(t), t.classes, t.case.problem.objective
    allowed = t.admissible & (q.count > 0)[:, None]
    able = np.where(allowed, t.share, 0.0).max(axis=1, initial=0.0) * q.count
    first = np.where(allowed, w.latency - w.first_token, 0.0).max(axis=1, initial=0.0)
    S, T, L = float(w.satisfaction @ able), min(1.0, float(w.throughput @ able)), float(first @ able)
    best = {"attainment": S, "throughput": T, "latency": L}
    return (o.score(S, T, L) if o.kind == "score" else best[o.order[0]]) * (1 + ROUNDING)


def kept_models(t: OrchestrationTables) -> list[int]:
    """Models with an attainment to hold."""
    return [m for m, s in enumerate(t.case.problem.models) if s.attainment_at_least is not None]


def busiest(t: OrchestrationTables, a: Assignment) -> Array:
    """(R, C) share of each capacity taken of one engine in the busiest bin of its configuration (continuous serving).

    Most starts of the last bin may be in the one after it, when all of it has started.
    """
    total = np.zeros((len(t.capacity), len(t.configurations), t.bins + 1))
    for k, c, started in zip(a.request_class.tolist(), a.configuration.tolist(), a.started, strict=True):
        for on, shares in t.uses(k, c):
            for later, taken in enumerate(shares.T[: t.bins + 1]):
                total[:, on, later : later + t.bins] += taken[:, None] * started[: t.bins + 1 - later]
    return total.max(axis=2, initial=0.0) / np.maximum(a.counts, 1)


def most_running(t: OrchestrationTables, a: Assignment) -> Array:
    """(C,) requests that run on one engine in the mean of its configuration's busiest bin."""
    kept = [1.0 if x.engine is None else x.engine.keep for x in t.configurations]  # shares are of the remainder
    return busiest(t, a)[RUNNING] * np.array([x.most_running / x.dp for x in t.configurations]) * kept


def metrics(t: OrchestrationTables, a: Assignment) -> Metrics:
    """MS(6–8) of an assignment."""
    p, w, q = t.case.problem, weights(t), t.classes
    served = a.admitted.sum(axis=1)
    k, c = a.request_class, a.configuration
    satisfaction = float(w.satisfaction[k] @ served)
    tokens = float(q.output_tokens[k] @ served)
    throughput = min(1.0, float(w.throughput[k] @ served))
    waited = float(a.waiting.sum()) * t.bin_s
    latency = float((w.latency - w.first_token[k, c]) @ served) - w.waiting * waited
    prefill = w.first_token[k, c] @ served / w.waiting if len(k) else 0.0
    in_time = float(served.sum())
    running = running_counts(t)
    started, stopped = int(np.maximum(a.counts - running, 0).sum()), int(np.maximum(running - a.counts, 0).sum())
    listed = bool(p.change.running)
    changes = p.change.score_per_start * started + p.change.score_per_stop * stopped if listed else 0.0
    short = {}
    for m in kept_models(t):
        count = float(q.count[q.model == m].sum())
        missing = (p.models[m].attainment_at_least or 0.0) - (
            float(served[q.model[k] == m].sum()) / count if count else 1.0
        )
        if missing > 1e-9:
            short[t.case.models[m]] = missing
    penalty = (p.slo.shortfall_penalty or 0.0) * sum(short.values())
    o = p.objective
    values = {"attainment": satisfaction, "throughput": throughput, "latency": latency}
    score = o.score(*values.values()) if o.kind == "score" else values[o.order[0]]
    capacity, busy = float(a.counts @ t.slots_of) * t.horizon_s if len(a.counts) else 0.0, t.work_s
    if t.taken is not None:  # the time of engines
        capacity = float(a.counts @ [x.dp for x in t.configurations]) * t.horizon_s if len(a.counts) else 0.0
    return Metrics(
        satisfaction=satisfaction, throughput=throughput, latency=latency, changes=changes, shortfall_penalty=penalty,
        total=score - changes - penalty, in_time=in_time, tokens_per_s=tokens / t.horizon_s,
        mean_latency_s=(waited + float(prefill)) / in_time if in_time > 0 else 0.0,
        slot_use=float(busy[k, c] @ served) / capacity if capacity > 0 else 0.0,
        started=started if listed else int(a.counts.sum()), stopped=stopped, shortfalls=short,
    )  # fmt: skip
