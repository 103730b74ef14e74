"""Operating points of engines that serve one mixture of requests: the rates within its limits, and latencies.

A level is a step time t (`optmodels.engine.continuous`) with a wait ω. A request/s of the mixture takes Σ f_w·load_k,w
of capacity k, and limits are on means and percentiles over all its classes (`optmodels.engine.lengths`, M1).

*Open-loop runs* (`levels`). Step times belong to fixed loads (`loads_of_levels`), which depend on no limit. Besides
these there is the longest step at which time or chunks are scarcest (`longest_steps`): within the limits, and within
each TTFT and E2E that round trips leave. A step carries more with a longer wait, so each has the longest that the
limits allow, and the longest within each of these TTFT and E2E. Each bound b_w(g) on TTFT or E2E grows with ω by the
same seconds p(g), so that it reaches a limit at one ω_w(g), and the longest wait is

    max {ω : Σ_w f_w · max {g : ω_w(g) ≥ ω} ≥ q}                                                             (M2)

A relaxed limit on TTFT, TPOT, ITL, E2E or the wait itself carries no less at any round trip. It allows every fixed step
that the tighter one allows, with no shorter wait: of a longest wait and a deadline, (M2) is the shorter, and neither
grows shorter where the other is relaxed. And a step between these carries what its time and chunks carry, whatever the
limits: `longest_steps` proves that the relaxed limit has one that carries as much. The step that is longest without a
round trip is so at each that it reaches, too: TTFT and E2E without waiting do not fall with t.

*Closed-loop runs* (`loop_levels`). Of n users an engine ends at most λ(n, t) = n/(steps·a₀ + n·W) requests a second:
those that wait are served later. Every bound on a latency grows with t and with ω, so the best level that carries them
is the one with the shortest step whose time they do not fill, and next to it the shortest wait by (S7) and (S9):

    t_n = min {t : t ≥ a₀(t) + n·W(t)/steps(t)}          ⟺  λW ≤ 1 − a₀/t                                     (M3)
    ω_n = max {λ·D·E[s²]/(2(1 − λ·E[s])), D·max s/most}                                                       (M4)

No limit on a latency is in (M3) or (M4): a limit only states which of these levels are allowed. So the levels at a
limit are among those at any relaxed one, and the best one, or a possible one, at the tighter limit is so at the
relaxed one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from optmodels.arrays import Array, Columns, Index, Mask
from optmodels.engine.continuous import (
    CHUNKS,
    MEMORY,
    MOST_OF_WAIT,
    PLACE_HALVINGS,
    ROWS,
    RUNNING,
    TIME,
    TURNS,
    Classes,
    Coefficients,
    EngineLimits,
    LatencyLimit,
    Points,
    crowd_allowed,
    lacks_slots,
    levels_of_loads,
    loads_of_levels,
    longest_steps,
    operating_points,
    seconds_and_quantile,
    waits_for_places,
    work_of_steps,
)
from optmodels.engine.costs import EngineCosts
from optmodels.engine.lengths import over_classes, shares_bounded

HALVINGS = 40  # of the range in which the shortest step is
SECANTS = 30
ROUNDING = 1e-9  # relative, by which the shortest step and wait are longer
LATE = 1e-12  # relative, by which a wait ends before an E2E within reach
HALVED = 4.0 * 0.5**PLACE_HALVINGS  # of b, that `Points.with_places` may miss


@dataclass(frozen=True)
class Levels(Columns):
    """Levels of engines that serve a mixture of requests; shape (n,), of one engine.

    Attributes:
        engine: row of the engines.
        step_s, wait_s, most_of_wait: t, ω and the class of requests that ω is for.
        place_wait_s: mean wait for a slot or KV cache besides; 0: requests seldom wait for these.
        max_num_seqs: requests that a rank runs at a time, at most.
        requests_per_s: λ, the most that all its capacities carry.
        alone_s, work_s: steps·a₀, a request's time in an empty engine, and W, its addition to others' steps; means.
        first_s: TTFT at its quantile without waiting; `waiting_s`: what waiting adds to it, at most; `ttft_s`: both,
            which a wait as long as the limit allows makes that limit and not, by rounding, more.
        tpot_s: time per output token at its quantile, at most.
        itl_s: time between tokens at the quantile of its limit, at most, of the class in which it is longest; NaN
            without a limit.
        e2e_s: E2E of a request in the mean, waiting included, at most; `deadline_s`: at the quantile of the
            deadline.
        capacities: share of each of `ROWS` in use at that rate, (6, n).
    """

    engine: Index
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
    itl_s: Array
    e2e_s: Array
    deadline_s: Array
    capacities: Array
    place_wait_s: Array
    max_num_seqs: Index

    @property
    def running(self) -> Array:
        """Requests in flight at that rate while none waits, λ·steps·t̄ with t̄ = a₀/(1 − λ·W): Little's law."""
        return self.requests_per_s * self.alone_s / (1.0 - self.requests_per_s * self.work_s)

    def rate_of(self, row: int, in_flight: float) -> float:
        """The requests/s of a closed-loop run that keeps this many in flight, at most: those that wait are served
        later.
        """
        return float(in_flight / (self.alone_s[row] + in_flight * self.work_s[row]))


@dataclass(frozen=True)
class _Mixture:
    """A mixture of requests on engines, and the quantiles that its limits bound."""

    engines: Sequence[EngineCosts]
    limits: EngineLimits
    kind: Classes
    q_ttft: float | None
    q_tpot: float | None
    q_e2e: float | None
    itl: LatencyLimit | None = None

    @property
    def weight(self) -> Array:
        return self.kind.weight / self.kind.weight.sum()

    @property
    def slower(self) -> Array:
        return np.array([e.slower for e in self.engines])[:, None]

    @property
    def ranks(self) -> Array:
        return np.array([e.ranks for e in self.engines])

    @property
    def kv_tokens(self) -> Array:
        return np.array([e.kv_tokens for e in self.engines])

    def at(self, step_s: Array, placed: bool = False) -> Points:
        """Of step times (E, L)."""
        costs = [e.costs for e in self.engines]
        return operating_points(costs, self.kv_tokens, self.limits, self.kind, step_s, attention_ranks=self.ranks,
                                placed=placed)  # fmt: skip

    def mean(self, of_each: Array) -> Array:
        """Over the classes, the last axis."""
        return (self.weight * of_each).sum(axis=-1)

    def per_token_s(self, points: Points) -> Array:
        """TPOT at its quantile, (E, L)."""
        each = np.stack([points.tpot_s(q) for q in shares_bounded(self.q_tpot, len(self.kind))], axis=-1)
        several = self.kind.output_tokens.max(axis=1) > 1.0
        of = self.weight * several if self.q_tpot is None else self.weight  # without a second token there is no mean
        return over_classes(each, of / (of.sum() or 1.0), self.q_tpot)

    def pause_s(self, points: Points) -> Array:
        """Time between tokens at its quantile, (E, L); NaN without a limit."""
        if self.itl is None:
            return np.full(points.step_s.shape, np.nan)
        return points.itl_s(seconds_and_quantile(self.itl)[1])[..., self.kind.weight > 0].max(axis=2)

    def first_s(self, points: Points, quantile: float | None, most: float) -> tuple[Array, Array]:
        """TTFT without waiting at each share that bounds the quantile, (E, L, W, G), and what ω adds, (E, G)."""
        found = [points.ttft_s(q, most) for q in shares_bounded(quantile, len(self.kind))]
        base = np.stack([x for x, _ in found], axis=-1) * self.slower[..., None, None]
        return base, np.array([per for _, per in found]) * self.slower

    def decoding_s(self, points: Points) -> Array:
        """From the first token to the last, at the shares that bound the deadline's quantile, (E, L, W, G)."""
        return np.stack([points.decoding_s(q) for q in shares_bounded(self.q_e2e, len(self.kind))], axis=-1)

    def rows(
        self, points: Points, wait_s: Array, most: float, able: Mask,
        place_wait_s: Array | float = 0.0,
    ) -> tuple[Levels, Index]:  # fmt: skip
        """The levels that are, with waits for prefill and for places (E, L), and which of the L each has.

        `able`: those wanted.
        """
        prefill = np.where(able, wait_s, 1.0)
        place = np.where(able, place_wait_s, 1.0 if points.placed else 0.0)
        load, wait = self.mean(points.load), prefill + place
        if points.placed:
            load = self.mean(points.with_places(place[..., None], prefill, most)[:, :, :, 0])
        loads = np.concatenate([load, self.mean(points.waiting(prefill[..., None], most)[:, :, 0])[None]])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            rate = 1.0 / loads.max(axis=0)
        e, level = np.nonzero(able & (rate > 0))
        (base, per), (whole, per_whole) = (self.first_s(points, q, most) for q in (self.q_ttft, self.q_e2e))
        mean_base, per_mean = points.ttft_s(None, most)
        first = over_classes(base, self.weight, self.q_ttft)
        ttft = over_classes(base + per[:, None, None] * wait[..., None, None], self.weight, self.q_ttft)
        e2e = (self.mean(mean_base) + per_mean * wait) * self.slower + self.mean(points.decoding_s(None))
        late = whole + self.decoding_s(points) + per_whole[:, None, None] * wait[..., None, None]
        late = over_classes(late, self.weight, self.q_e2e)
        columns = (
            points.step_s, prefill, np.full_like(wait, most), rate, self.mean(points.steps) * points.fixed_s,
            self.mean(points.work_s), first, ttft - first, ttft, self.per_token_s(points),
            self.pause_s(points),
            e2e if self.q_e2e is not None else late, late,  # a mean is one E2E
        )  # fmt: skip
        slots = points.slots[e, 0, 0].astype(np.intp)
        found = (e, *(x[e, level] for x in columns), loads[:, e, level] * rate[e, level], place[e, level], slots)
        return Levels(*found), level


def _told_more(at: Levels, max_num_seqs: int) -> Mask:
    """Levels told a larger max_num_seqs. The smaller one has all others already, with more KV cache."""
    return np.asarray(at.max_num_seqs > max_num_seqs)


def _none() -> Levels:
    z = np.zeros(0)
    none = np.zeros(0, dtype=np.intp)
    return Levels(none, z, z, z, z, z, z, z, z, z, z, z, z, z, np.zeros((len(ROWS), 0)), z, none)


def loop_levels(
    engines: Sequence[EngineCosts], limits: EngineLimits, kind: Classes, users: Array,
    quantiles: tuple[float | None, float | None, float | None], itl: LatencyLimit | None = None,
) -> tuple[Levels, Array]:  # fmt: skip
    """The best levels of closed-loop runs (M3, M4), and the users of each, (n,).

    Args:
        engines: whose caches hold something.
        limits: limits of each engine.
        kind: the mixture; of classes by their weights.
        users: n of an engine, whole numbers, (N,).
        quantiles: quantiles that TTFT, time per output token and E2E are bounded at; None: the mean.
        itl: limit on the time between tokens, whose quantile it is bounded at.
    """
    which, parts, before = list(range(len(engines))), [(_none(), np.zeros(0))], 0
    for n in limits.choices:  # larger ones where an engine lacks slots
        mine = {i: e for i in which if (e := engines[i].with_slots(n)).kv_tokens > 0}
        if not mine or not len(users):
            break
        which, of = list(mine), _Mixture([*mine.values()], limits.choosing(n), kind, *quantiles, itl)
        lacking = np.zeros(len(which), dtype=bool)
        for placed in (False, True):
            at, each, lacks = _loops(of, users, placed)
            more = _told_more(at, before)
            parts.append((replace(at, engine=np.array(which, dtype=np.intp)[at.engine]).take(more), each[more]))
            lacking |= lacks
        before = n
        which = [i for i, lacks in zip(which, lacking.tolist(), strict=True) if lacks]
    return Levels.joined([at for at, _ in parts]), np.concatenate([each for _, each in parts])


def _loops(of: _Mixture, users: Array, placed: bool) -> tuple[Levels, Array, Mask]:
    """`loop_levels` of engines told one max_num_seqs, and which of them lack slots for some of the users."""
    step = _shortest_steps(of, users, placed)
    points = of.at(step, placed)
    load, alone, work = of.mean(points.load), of.mean(points.steps) * points.fixed_s, of.mean(points.work_s)
    rate, ranks = users / (alone + users * work), of.ranks[:, None].astype(float)
    fit = 1.0 + ROUNDING / 10.0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        rows = np.delete(load, (RUNNING, MEMORY), axis=0) if placed else load
        carried = points.exists & (rows * rate <= fit).all(axis=0)
        busy = rate * of.mean(points.mean_turn_s)
        waits = np.where(busy < 1.0, rate * ranks * of.mean(points.turn_s**2) / (2.0 * (1.0 - busy)), np.inf)
    parts: list[tuple[Levels, Index]] = []
    for most in MOST_OF_WAIT[:1] if placed else MOST_OF_WAIT:
        wait = np.maximum(waits, ranks * points.turn_s.max(axis=2) / most) * (1.0 + ROUNDING)
        able, place = carried & (wait <= of.limits.wait_s) & (wait > 0.0), np.zeros_like(wait)
        if placed:
            with np.errstate(invalid="ignore"):
                place = points.place_waits(
                    np.where(able, wait, 1.0), most, lambda taken: of.mean(taken) * rate + HALVED
                )
            place *= 1.0 + ROUNDING
            able &= wait + place <= of.limits.wait_s
        parts.append(of.rows(points, wait, most, able, place))
    with np.errstate(divide="ignore", invalid="ignore"):  # (S3), of `placed` too
        crowd = crowd_allowed(points.slots[:, :, 0], 1.0 - points.fixed_s / points.step_s, of.limits.overflow)
        carries = ranks * crowd / (of.mean(points.steps) * points.step_s)
        lacks: Mask = np.asarray((users > ranks * points.slots[:, :, 0]) | ~(points.exists & (rate <= fit * carries)))
    each = users[np.concatenate([level for _, level in parts])]
    return Levels.joined([at for at, _ in parts]), each, np.asarray(lacks.any(axis=1))


def _shortest_steps(of: _Mixture, users: Array, placed: bool) -> Array:
    """t_n of (M3) by halving, longer by the share `ROUNDING`, (E, N)."""
    c = Coefficients.stack([e.costs for e in of.engines])
    given = c, of.kv_tokens, of.limits, of.kind
    low = np.repeat(c.fixed_s[:, :, 0], len(users), axis=1)

    def fills(step_s: Array) -> Mask:
        exists, fixed_s, work_s, steps = work_of_steps(*given, step_s, attention_ranks=of.ranks, placed=placed)
        return ~(exists & (step_s >= fixed_s + users * of.mean(work_s) / of.mean(steps)))

    high = np.repeat(c.largest_fixed_s[:, :, 0], len(users), axis=1) * 2.0
    for _ in range(200):
        short = fills(high)
        if not short.any():
            break
        low, high = np.where(short, high, low), np.where(short, 2.0 * high, high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        short = fills(middle)
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return high * (1.0 + ROUNDING)


def steps_of_running(at: Callable[[Array, Classes], Points], kind: Classes, running: Array, together: bool) -> Array:
    """Step times t = a₀ + n·W/steps of one engine at which n requests of a mixture run in the mean (M3), (1, L).

    Found for a few classes in place of every class first, and from there by secants.

    Args:
        at: operating points of step times (1, L) and classes.
        kind: the mixture.
        running: n, over the ranks, (L,).
        together: whether prompts that a step has no room for wait next to it, as where engines only prefill.
    """

    def needs(step_s: Array, kind: Classes) -> Array:
        points, weight = at(step_s, kind), kind.weight / kind.weight.sum()
        work, steps = ((weight * x).sum(axis=2) for x in (points.work_s, points.steps))
        n = running[None, :]
        if together:
            room = points.engine.filled * points.ranks[:, :, 0] * points.room[:, :, 0]
            n = np.minimum(n, np.maximum(room * steps / float(weight @ kind.new_tokens), 1.0))
        return np.where(points.exists, points.fixed_s + n * work / steps, np.inf)

    few = _fewer(kind)
    low, high = np.zeros((1, len(running))), np.full((1, len(running)), 1e-3)
    for _ in range(200):
        short = ~(needs(high, few) <= high)
        if not short.any():
            break
        low, high = np.where(short, high, low), np.where(short, 2.0 * high, high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        short = ~(needs(middle, few) <= middle)
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    step, found = high, needs(high, kind)
    step = np.where(np.isfinite(found), step, 1.01 * step)
    before, missed = step, needs(step, kind) - step
    step = step + missed
    for _ in range(SECANTS):
        now = needs(step, kind) - step
        if (np.abs(now) <= ROUNDING / 10.0 * step).all():
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            following = step - now * (step - before) / (now - missed)
        good = np.isfinite(following) & (following > 0.5 * step) & (following < 2.0 * step)
        before, missed, step = step, now, np.where(now == 0.0, step, np.where(good, following, step + now))
    return step


def _fewer(kind: Classes, most: int = 64) -> Classes:
    """Some classes in place of many: means of classes with about as many tokens."""
    if len(kind) <= most:
        return kind
    order = np.argsort(kind.input_tokens + kind.output_tokens.mean(axis=1), kind="stable")
    parts = [x for x in np.array_split(order, most) if kind.weight[x].sum() > 0]

    def mean(values: Array) -> Array:
        return np.array([np.average(values[x], weights=kind.weight[x]) for x in parts])

    prompt = mean(kind.input_tokens)
    return Classes.of(
        prompt, mean(kind.output_tokens.mean(axis=1)), weight=np.array([kind.weight[x].sum() for x in parts]),
        cached=1.0 - mean(kind.new_tokens) / prompt,
    )  # fmt: skip


def levels(
    engines: Sequence[EngineCosts], limits: EngineLimits, kind: Classes, ttft: LatencyLimit | None,
    tpot: LatencyLimit | None, waiting_s: float = math.inf, deadline: tuple[float, float | None] = (math.inf, None),
    reach: Array | None = None, itl: LatencyLimit | None = None,
) -> Levels:  # fmt: skip
    """Levels of open-loop runs within limits, each with its longest wait.

    At every max_num_seqs of `EngineLimits.choices` at which an engine lacks slots.

    Args:
        engines: whose caches hold something.
        limits: limits of each engine.
        kind: the mixture; of classes by their weights.
        ttft: limit, waiting included.
        tpot: limit.
        waiting_s: most of TTFT that is waiting, at the quantile of `ttft`.
        deadline: seconds of E2E, waiting included, and the quantile that they bound (None: the mean).
        reach: rows of (TTFT without waiting, E2E with the wait), in seconds, (N, 2). Each adds the longest wait within
            both at every step, and the longest step of every engine.
        itl: limit on the time between tokens.
    """
    reach = np.zeros((0, 2)) if reach is None else reach
    which, parts, before = list(range(len(engines))), [_none()], 0
    for n in limits.choices:
        mine = {i: e for i in which if (e := engines[i].with_slots(n)).kv_tokens > 0}
        if not mine:
            break
        which = list(mine)
        at, lacking = _levels([*mine.values()], limits.choosing(n), kind, ttft, tpot, waiting_s, deadline, reach, itl)
        at = replace(at, engine=np.array(which, dtype=np.intp)[at.engine])
        parts.append(at.take(_told_more(at, before)))
        before = n
        which = [e for e, more in zip(which, lacking.tolist(), strict=True) if more]
    return Levels.joined(parts)


def _levels(
    engines: Sequence[EngineCosts], limits: EngineLimits, kind: Classes, ttft: LatencyLimit | None,
    tpot: LatencyLimit | None, waiting_s: float, deadline: tuple[float, float | None], reach: Array,
    itl: LatencyLimit | None,
) -> tuple[Levels, Mask]:  # fmt: skip
    """Operating points at one max_num_seqs, and the engines that lack slots; arguments as in `levels`."""
    (at_ttft, q_ttft), (at_tpot, q_tpot), (at_e2e, q_e2e) = *map(seconds_and_quantile, (ttft, tpot)), deadline
    of, costs = _Mixture(engines, limits, kind, q_ttft, q_tpot, q_e2e, itl), [e.costs for e in engines]
    at_itl = seconds_and_quantile(itl)[0]
    within_e2e = reach * np.array([1.0, 1.0 - LATE])  # a wait as long as that reaches no less, by rounding
    at = np.concatenate([np.array([[math.inf, at_e2e]]), np.minimum(within_e2e, (math.inf, at_e2e))])  # (N + 1, 2)

    def longest(spare: Array, per: Array, quantile: float | None) -> Array:
        """(M2) of seconds that a limit leaves each class, (E, L, V, W, G), and those that a second of ω takes."""
        return -over_classes(-spare / per[:, None, None, None], of.weight, quantile)

    def waits(points: Points, most: float, e2e_s: Array) -> tuple[Array, Array]:
        """The longest wait within the limits and each E2E, (E, L, V), and TTFT without it at its quantile, (E, L).

        `e2e_s`: to broadcast to (E, L, V); infinite: no limit.
        """
        base, per = of.first_s(points, q_ttft, most)
        first = over_classes(base, of.weight, q_ttft)
        spare = np.minimum(at_ttft - base, waiting_s + (first[..., None, None] - base))[:, :, None]
        wait = np.minimum(longest(spare, per, q_ttft), limits.wait_s)
        limited = np.isfinite(e2e_s)
        if limited.any():
            whole, per_whole = of.first_s(points, q_e2e, most)
            left = np.where(limited, e2e_s, 0.0)[..., None, None] - (whole + of.decoding_s(points))[:, :, None]
            wait = np.where(limited, np.minimum(wait, longest(left, per_whole, q_e2e)), wait)
        return np.broadcast_to(wait, (*first.shape, np.shape(e2e_s)[-1])), first

    def within(points: Points, most: float) -> tuple[Array, Mask]:
        """The longest waits, and which steps have one within the limits and a row of `at`, (E, L, N + 1) each."""
        wait, first = waits(points, most, at[:, 1])
        kept = points.exists & (of.per_token_s(points) <= at_tpot) & ~(of.pause_s(points) > at_itl)
        able = kept[..., None] & (wait > 0) & (first[..., None] <= at[:, 0])
        able[..., 1:] &= wait[..., 1:] < wait[..., :1]  # not those that the first row has
        return wait, able

    def seen(points: Points, most: float, turns: float, ttft_s: Array, e2e_s: Array) -> tuple[Array, Array]:
        """`missed`, (E, L, V), and `carried`, (E, L), of `longest_steps` within TTFT and E2E, (…, V) each.

        Steps fit where longer ones only carry more: time or chunks are scarcest, with the longest wait.
        """
        wait, first = waits(points, most, e2e_s)
        most_wait = waits(points, most, at[:1, 1])[0][..., 0]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            load = of.mean(points.load)
            lessened = load[[TIME, CHUNKS]].max(axis=0)
            prefill = points.prefill_waits(turns)
            able = points.exists & ~(of.per_token_s(points) > at_tpot) & ~(of.pause_s(points) > at_itl)
            able &= most_wait > (prefill if points.placed else 0.0)
            before = prefill[..., None] if points.placed else wait
            fits = (able & (load.max(axis=0) <= lessened))[..., None] & (first[..., None] <= ttft_s)
            fits &= wait > (before if points.placed else 0.0)
            before = np.where(fits, before, 1.0)
            fits &= of.mean(points.waiting(before, most)) <= lessened[..., None]
            if points.placed:
                place = points.place_waits(np.where(able, prefill, 1.0), most, lambda taken: of.mean(taken) / lessened)
                fits &= place[..., None] <= wait - before
            carried = np.where(points.exists & (lessened > 0.0), 1.0 / lessened, 0.0)
        beyond = np.where(able, 2.0, np.inf)[..., None]
        return np.where(points.exists[..., None], np.where(fits, 1.0, beyond), 0.0), carried

    def reaching(points: Points, ways: Sequence[tuple[float, float]]) -> Array:
        """The longest steps that fit within each row of `at` in any of the ways, (E, …)."""

        def each(step_s: Array, case: Index) -> tuple[Array, Array]:
            points = of.at(step_s, bool(ways[0][1]))
            way, row = np.divmod(case, len(at))
            found = [seen(points, *w, at[row, :1], at[row, 1:]) for w in ways]
            missed = np.stack([x[..., 0] for x, _ in found])
            return missed[way, :, np.arange(len(case))].T, found[0][1]

        of_ways = [seen(points, *w, at[:, 0], at[:, 1]) for w in ways]
        every = np.concatenate([missed.transpose(2, 0, 1) for missed, _ in of_ways])
        return longest_steps(points.step_s, every, of_ways[0][1], each)

    steps = levels_of_loads(costs, loads_of_levels(limits.load, least=limits.least))
    fixed = of.at(steps)
    rows = np.concatenate([of.mean(fixed.load), np.zeros_like(fixed.step_s)[None]])
    scarce = np.asarray(waits_for_places(rows).any(axis=1))
    within_limits = np.zeros(fixed.step_s.shape, dtype=bool)
    parts = [_none()]
    for placed in (False, True) if scarce.any() else (False,):
        # Turns that requests wait for prefill, where for places, too.
        ways = [(MOST_OF_WAIT[0], turns) for turns in TURNS] if placed else [(most, 0.0) for most in MOST_OF_WAIT]
        fixed = of.at(steps, True) if placed else fixed
        points = of.at(np.sort(np.concatenate([steps, reaching(fixed, ways)], axis=1), axis=1), placed)
        for most, turns in ways:
            wait, able = within(points, most)
            prefill = wait
            if placed:
                prefill = np.broadcast_to(points.prefill_waits(turns)[..., None], wait.shape)
                able = able & scarce[:, None, None] & (wait > prefill)
            else:
                within_limits |= within(fixed, most)[1][..., 0]
            for row in np.flatnonzero(able.any(axis=(0, 1))):
                mine, before = able[..., row], prefill[..., row]
                parts.append(of.rows(points, before, most, mine, np.where(mine, wait[..., row] - before, 0.0))[0])
    made = Levels.joined(parts)
    rounded = {"ttft_s": np.minimum(made.ttft_s, at_ttft), "deadline_s": np.minimum(made.deadline_s, at_e2e)}
    if q_e2e is None:
        rounded["e2e_s"] = rounded["deadline_s"]
    return replace(made, **rounded), lacks_slots(rows[..., None], within_limits[..., None])
