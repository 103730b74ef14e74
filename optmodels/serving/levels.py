"""Levels of engines that serve one mixture of requests: what they carry within its limits, and how fast.

A level is a step time t (`optmodels.serving.continuous`) with a wait ω. Of the waits the longest that the limits allow
carries most requests. A request/s of the mixture takes Σ f_w·load_k,w of capacity k, and limits are on means and
percentiles over all its classes (`optmodels.serving.lengths`, M1). Each bound b_w(g) on TTFT or E2E grows with ω by the
same seconds p(g), so that it reaches a limit at one ω_w(g), and the longest wait is

    max {ω : Σ_w f_w · max {g : ω_w(g) ≥ ω} ≥ q}                                                             (M2)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product

import numpy as np
import numpy.typing as npt

from optmodels.serving.continuous import (
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
from optmodels.serving.engine import EngineCosts
from optmodels.serving.lengths import over_classes, shares_bounded

Array = npt.NDArray[np.float64]
LOADS = 0.95 * 0.9 ** np.arange(24.0, -1.0, -1.0)  # ρ of the levels at the least and the largest a₀


@dataclass(frozen=True)
class Levels:
    """Levels of engines at which a mixture of requests keeps its limits; shape (n,), of one engine.

    Attributes:
        engine: row of the engines.
        step_s, wait_s, most_of_wait: t, ω and the class of requests that ω is for.
        place_wait_s: mean wait for a slot or KV cache besides; 0: requests seldom wait for these.
        max_num_seqs: requests that a rank runs at a time, at most.
        requests_per_s: λ, the most that all its capacities carry.
        alone_s, work_s: steps·a₀, what a request takes in an empty engine, and W, what it adds to others' steps; means.
        first_s: TTFT at its quantile without waiting; `waiting_s`: what waiting adds to it, at most; `ttft_s`: both,
            which a wait as long as the limit allows makes that limit and not, by rounding, more.
        tpot_s: time per output token at its quantile, at most.
        e2e_s: of a request in the mean, waiting included, at most; `deadline_s`: at the quantile of the deadline.
        capacities: share of each of `ROWS` in use at that rate, (6, n).

    Of engines that only prefill TTFT and both E2E are with sending the KV cache, and there is no time per token; of
    those that only decode it is with receiving the cache and joining, spread over the tokens, and there is no wait nor
    TTFT.
    """

    engine: npt.NDArray[np.intp]
    step_s: Array
    wait_s: Array
    most_of_wait: Array
    requests_per_s: Array
    alone_s: Array
    work_s: Array
    first_s: Array
    waiting_s: Array
    ttft_s: Array
    tpot_s: Array
    e2e_s: Array
    deadline_s: Array
    capacities: Array
    place_wait_s: Array
    max_num_seqs: npt.NDArray[np.intp]

    @property
    def running(self) -> Array:
        """Requests in flight at that rate while none waits, λ·steps·t̄ with t̄ = a₀/(1 − λ·W): Little's law."""
        return self.requests_per_s * self.alone_s / (1.0 - self.requests_per_s * self.work_s)

    def rate_of(self, row: int, in_flight: float) -> float:
        """The requests/s of a closed loop that keeps so many in flight, at most: those that wait are served later."""
        return float(in_flight / (self.alone_s[row] + in_flight * self.work_s[row]))

    def __len__(self) -> int:
        return len(self.engine)


def levels(
    engines: Sequence[EngineCosts], limits: EngineLimits, kind: Classes, ttft: LatencyLimit | None,
    tpot: LatencyLimit | None, waiting_s: float = math.inf, shares: Sequence[float] = (1.0,), stage: Stage = "both",
    moved_s: npt.ArrayLike = 0.0, deadline: tuple[float, float | None] = (math.inf, None),
) -> Levels:  # fmt: skip
    """All of them, at every max_num_seqs of `EngineLimits.choices` below which slots are what an engine lacks.

    Args:
        engines: whose caches hold something.
        limits: of each engine.
        kind: the mixture; of classes by their weights.
        ttft: limit, waiting included.
        tpot: limit.
        waiting_s: most of TTFT that is waiting, at the quantile of `ttft`.
        shares: of the longest wait: a shorter one promises more, and carries less where waiting is what binds.
        stage: of a request that they do.
        moved_s: seconds that its KV cache is on its way from (prefill) or to (decode) each engine, (E,).
        deadline: seconds of the stage's part of E2E, waiting included, and the quantile that they bound
            (None: the mean). Of engines that only decode the quantile alone counts.
    """
    moved = np.broadcast_to(np.asarray(moved_s, dtype=float), len(engines))
    which, parts = list(range(len(engines))), []
    for n in limits.choices:
        mine = {i: e for i in which if (e := engines[i].with_slots(n)).kv_tokens > 0}
        which = list(mine)
        at = _levels(
            [*mine.values()], limits.choosing(n), kind, ttft, tpot, waiting_s, shares, stage, moved[which], deadline
        )  # fmt: skip
        at = replace(at, engine=np.array(which, dtype=np.intp)[at.engine])
        parts.append(at)
        lacking = (at.max_num_seqs == n) & (at.capacities[RUNNING] > 1.0 - 1e-9)
        which = np.unique(at.engine[lacking]).tolist()
        if not which:
            break
    return Levels(**{
        f.name: np.concatenate([getattr(part, f.name) for part in parts], axis=-1) for f in fields(Levels)
    })  # fmt: skip


def _levels(
    engines: Sequence[EngineCosts], limits: EngineLimits, kind: Classes, ttft: LatencyLimit | None,
    tpot: LatencyLimit | None, waiting_s: float, shares: Sequence[float], stage: Stage, moved_s: Array,
    deadline: tuple[float, float | None],
) -> Levels:  # fmt: skip
    """Those of engines told one max_num_seqs; arguments are those of `levels`."""
    if not engines:
        z = np.zeros(0)
        return Levels(np.zeros(0, dtype=np.intp), z, z, z, z, z, z, z, z, z, z, z, z, np.zeros((len(ROWS), 0)), z,
                      np.zeros(0, dtype=np.intp))  # fmt: skip
    costs, slower = [e.costs for e in engines], np.array([e.slower for e in engines])[:, None]
    moved = np.broadcast_to(np.asarray(moved_s, dtype=float), len(engines))[:, None]
    (at_ttft, q_ttft), (at_tpot, q_tpot), (at_e2e, q_e2e) = *map(seconds_and_quantile, (ttft, tpot)), deadline
    kv, ranks = (np.array([getattr(e, name) for e in engines]) for name in ("kv_tokens", "ranks"))
    weight = kind.weight / kind.weight.sum()
    several = kind.output_tokens.max(axis=1) > 1.0  # output tokens

    def at(step_s: Array, placed: bool = False) -> Points:
        return operating_points(costs, kv, limits, kind, step_s, stage, moved[..., None], ranks, placed)

    def mean(of_each: Array) -> Array:
        return (weight * of_each).sum(axis=-1)

    def joins(points: Points) -> Array:  # of engines that only decode: the end of the step in which the cache has come
        return points.step_s + moved + points.request_s[:, None]

    def per_token(points: Points) -> Array:
        if stage == "prefill":
            return np.zeros_like(points.step_s)
        of_each = np.stack([points.tpot_s(q) for q in shares_bounded(q_tpot, len(kind))], axis=-1)
        if stage == "decode":
            tokens = np.maximum(points.classes.output_at(q_tpot) - 1.0, 1.0)
            of_each = of_each + (joins(points)[..., None] / tokens)[..., None]
        of = weight * several if q_tpot is None else weight  # without a token after the first there is no mean of them
        return over_classes(of_each, of / (of.sum() or 1.0), q_tpot)

    def missed(step_s: Array, placed: bool = False) -> Array:
        points = at(step_s, placed)
        return points.missed(per_token(points)[..., None], at_tpot, mean(points.rows_of_step())[..., None])

    def longest(spare: Array, per: Array, quantile: float | None) -> Array:
        """(M2) of seconds that a limit leaves each class, (E, L, W, G), and those that a second of ω takes, (E, G)."""
        return -over_classes(-spare / per[:, None, None], weight, quantile)

    crowd = at(with_best_steps(levels_of_loads(costs, LOADS), missed))
    scarce = np.asarray(
        waits_for_places(np.concatenate([mean(crowd.load), np.zeros_like(crowd.step_s)[None]])).any(axis=1)
    )
    sent: Array | float = moved if stage == "prefill" else 0.0
    parts = []
    ways: list[tuple[float, float, float]] = [(math.inf, 1.0, 0.0)]  # most, share, turns
    if stage != "decode":
        ways = [*product(MOST_OF_WAIT, shares, (0.0,))]
    if stage == "both" and scarce.any():
        ways += product(MOST_OF_WAIT[:1], shares, TURNS)
    after = {}  # by whether requests wait for places: points, and what follows the first token
    for placed in {turns > 0.0 for *_, turns in ways}:
        points = crowd
        if placed:
            points = at(with_best_steps(levels_of_loads(costs, LOADS), partial(missed, placed=True)), placed)
        whole = np.stack([points.decoding_s(q) for q in shares_bounded(q_e2e, len(kind))], axis=-1)
        after[placed] = points, per_token(points), mean(points.decoding_s(None)), whole
    for most, share, turns in ways:
        points, each, decoding, rest = after[turns > 0.0]
        work, steps, load = mean(points.work_s), mean(points.steps), mean(points.load)

        def first_tokens(quantile: float | None, most: float = most, points: Points = points) -> tuple[Array, Array]:
            """TTFT without waiting at each share that bounds the quantile, (E, L, W, G), and what ω adds, (E, G)."""
            found = [points.ttft_s(q, most) for q in shares_bounded(quantile, len(kind))]
            base = np.stack([x for x, _ in found], axis=-1) * slower[..., None, None]
            return base + np.asarray(sent)[..., None, None], np.array([per for _, per in found]) * slower

        (base, per), (whole, per_whole) = first_tokens(q_ttft), first_tokens(q_e2e)
        (mean_base, per_mean) = points.ttft_s(None, most)
        first = over_classes(base, weight, q_ttft)
        spare = np.minimum(at_ttft - base, waiting_s + (first[..., None, None] - base))
        most_s = np.minimum(longest(spare, per, q_ttft), limits.wait_s)
        whole = whole + rest
        if math.isfinite(at_e2e):
            most_s = np.minimum(most_s, longest(at_e2e - whole, per_whole, q_e2e))
        wait = share * most_s
        if stage == "decode":
            first, wait = np.zeros_like(first), np.ones_like(first)  # no prompt waits: (S7) is 0
        able = points.exists & (each <= at_tpot) & (wait > 0)
        wait = np.where(able, wait, 1.0)
        loads = np.concatenate([load, mean(points.waiting(wait[..., None], most)[:, :, 0])[None]])
        prefill = wait
        if points.placed:  # where slots or KV cache are scarcest, requests may wait for them
            prefill = points.prefill_waits(turns)
            able &= scarce[:, None] & (wait > prefill)
            prefill = np.where(able, prefill, wait)
            rows = points.with_places(np.where(able, wait - prefill, 1.0)[..., None], prefill, most)[:, :, :, 0]
            loads = np.concatenate([mean(rows), mean(points.waiting(prefill[..., None], most)[:, :, 0])[None]])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            rate = 1.0 / loads.max(axis=0)
        e, level = np.nonzero(able & (rate > 0))
        e2e = (mean(mean_base) + per_mean * wait) * slower + decoding + sent
        e2e_q = over_classes(whole + per_whole[:, None, None] * wait[..., None, None], weight, q_e2e)
        e2e_q = np.minimum(e2e_q, at_e2e)
        waiting = over_classes(base + per[:, None, None] * wait[..., None, None], weight, q_ttft) - first
        if stage == "decode":
            e2e, e2e_q, wait = decoding + joins(points), over_classes(rest, weight, q_e2e) + joins(points), 0.0 * wait
            waiting = wait
        columns = (
            points.step_s, prefill if stage != "decode" else wait, np.full_like(wait, most), rate,
            steps * points.fixed_s, work, first, waiting,
            np.minimum(first + waiting, at_ttft), each, e2e if q_e2e is not None else e2e_q, e2e_q,  # a mean is one E2E
        )  # fmt: skip
        parts.append((
            e, *(x[e, level] for x in columns), loads[:, e, level] * rate[e, level],
            (wait - prefill)[e, level], points.slots[e, 0, 0].astype(np.intp),
        ))  # fmt: skip
    return Levels(*(np.concatenate(x, axis=-1) for x in zip(*parts, strict=True)))
