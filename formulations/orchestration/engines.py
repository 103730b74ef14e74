"""Levels of engines that batch continuously, as configurations carry them, and the capacity that a start takes, bin by
bin.

The theory is `optmodels.engine`'s: a level is a step time t at which `batch` requests run in the mean, with a mean wait
for prefill and, where slots or KV cache are scarcest, one for a place. The share of a capacity that one request/s takes
(`ROWS`, of an engine of one stage its network besides) is the total that one start takes, in seconds. A start takes
it over time: its prompt's work, tokens, chunks and wait until the first token, its decodes' work after it, a slot all
along, and KV that grows from its prompt to all its tokens. Times are the level's means; who is in time is told by TTFT
and E2E at `engine.quantile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial

import numpy as np

from formulations.orchestration.busy import LEAST, bins_of, growing, held
from formulations.orchestration.problem import QUEUED, Continuous
from optmodels.arrays import Array, Ints, Mask
from optmodels.engine.continuous import (
    ROWS,
    RUNNING,
    TIME,
    WAITING,
    Classes,
    Coefficients,
    LatencyLimit,
    Points,
    Stage,
    Whole,
    crowd_quantile,
    held_tokens,
    longest_wait,
    operating_points,
    seconds_and_quantile,
    waits_for_places,
)
from optmodels.engine.costs import EngineCosts
from optmodels.engine.levels import steps_of_running
from optmodels.engine.stages import Link, cache_bytes
from optmodels.latency.memory import Drafts
from optmodels.latency.work import LayerWork

CAPACITIES = (*ROWS, "transfer")
TRANSFER = len(ROWS)
_FIELDS = tuple(f.name for f in fields(Classes))
PLACE_WAITS_S = (0.5, 4.0)  # mean waits for a place that levels are planned for, where places are scarcest


@dataclass(frozen=True)
class Stream:
    """A model's requests as they come.

    Attributes:
        kind: each of them, weights of sum 1.
        requests_per_s: mean rate.
        dispersion: I₀, variance over mean of how many come in a window.
        itl: limit on the time between their tokens.
    """

    kind: Classes
    requests_per_s: float = np.inf
    dispersion: float = 1.0
    itl: LatencyLimit | None = None

    def having(self, cached: Array) -> Stream:
        """The same where a prefix cache has this many tokens of each prompt."""
        return replace(self, kind=replace(self.kind, cached=_share(cached, self.kind.input_tokens)))


def _share(cached: Array, prompt: Array) -> Array:
    """Share of a prompt that is cached, so rounded that no more than the rest is left to compute."""
    share = cached / prompt
    for _ in range(3):
        share = np.where(prompt * (1.0 - share) > prompt - cached, np.nextafter(share, 1.0), share)
    return share


@dataclass(frozen=True)
class Transfer:
    """How an engine of one stage sends or receives KV caches.

    Attributes:
        work, drafts: work of the model's layers and of the draft model: the bytes of a cache.
        net_bytes_per_s: its share of the server's network.
        link: planned share, and latency of a transfer.
    """

    work: LayerWork
    net_bytes_per_s: float
    link: Link
    drafts: Drafts | None = None

    def seconds(self, prompt: Array, latency: bool) -> Array:
        """Transfer time of the caches of prompts next to others; `latency`: with the link's latency."""
        found: Array = self.gigabytes(prompt) * 1e9 / self.link.rate(self.net_bytes_per_s)
        return found + (self.link.latency_s if latency else 0.0)

    def share_s(self, prompt: Array) -> Array:
        """Seconds of the network's planned share."""
        return self.gigabytes(prompt) * 1e9 / (self.net_bytes_per_s * self.link.most_used)

    def gigabytes(self, prompt: Array) -> Array:
        """Size of the caches of prompts."""
        return cache_bytes(self.work, prompt, self.drafts) / 1e9


@dataclass(frozen=True)
class PlannedEngine:
    """One engine at a level, for n requests of a model.

    Attributes:
        of: its costs and KV cache.
        limits: limits of the engine, with the max_num_seqs of the level.
        points: the level, (1, 1).
        batch: requests that run on each rank in the mean.
        waits: mean wait for prefill in mean turns, at `engine.quantile`.
        wait_s: ω, mean wait for prefill; `place_wait_s`: for a place, 0: requests seldom wait for one.
        burst_s: (I − 1)·s̄.
        part: share of its model's requests that it serves at its level.
        transfer: transfer of caches, where it does one stage.
        keep: share of its capacities that certification leaves.
    """

    of: EngineCosts
    limits: Continuous
    stream: Stream
    stage: Stage
    points: Points
    batch: int
    waits: float
    wait_s: float
    place_wait_s: float
    burst_s: float
    part: float
    transfer: Transfer | None = None
    keep: float = 1.0

    @property
    def step_s(self) -> float:
        """t."""
        return float(self.points.step_s[0, 0])

    @property
    def fixed_s(self) -> float:
        """a₀."""
        return float(self.points.fixed_s[0, 0])

    @property
    def ranks(self) -> int:
        """Data-parallel attention ranks."""
        return self.of.ranks

    @property
    def slots(self) -> int:
        """Requests that a rank runs at a time, at most."""
        return int(self.points.slots[0, 0, 0])

    @property
    def kv_tokens(self) -> float:
        """KV-cache capacity over its ranks, tokens."""
        return self.of.with_slots(self.limits.slots).kv_tokens

    @cached_property
    def load(self) -> Array:
        """One request/s as a share of each of `CAPACITIES`, (7, n); infinite: it cannot be on the level."""
        points, wait, place = self.points, np.array([[[self.wait_s]]]), np.array([[[self.place_wait_s]]])
        rows = points.load[:, 0, 0]
        if points.placed:
            rows = points.with_places(place, wait[..., 0], np.inf)[:, 0, 0, 0]
        waiting = np.zeros(rows.shape[1])
        if self.stage != "decode":
            waiting = points.waiting(wait, np.inf, np.array([[[self.burst_s]]]))[0, 0, 0]
        sent = np.zeros(rows.shape[1])
        if self.transfer is not None:
            sent = self.transfer.share_s(self.stream.kind.input_tokens)
        found = np.vstack((rows, waiting, sent)) / self.keep
        if self.stage == "decode":  # of one token nothing is left to decode
            found[:, self.stream.kind.output_tokens[:, 0] <= 1.0] = 0.0
        return found

    @cached_property
    def sees(self) -> Whole:
        """Latencies of requests until they leave, transfers of their cache included, (n,) each."""
        slower = 0.0 if self.stage == "decode" else self.of.slower  # it makes no first tokens
        seen = self.points.whole(self.limits.quantile, np.array([[self.wait_s + self.place_wait_s]]), slower)
        first, late, rest, whole = (x[0, 0] for x in (seen.first_s, seen.ttft_s, seen.rest_s, seen.e2e_s))
        if self.transfer is None:
            return Whole(first, late, rest, whole)
        prompt = self.stream.kind.input_tokens
        if self.stage == "prefill":
            sent = self.transfer.seconds(prompt, latency=True)
            return Whole(first, late + sent, sent, late + sent)
        joins = self.joins_s(prompt)
        return Whole(joins, joins, rest, joins + (whole - first))

    def seen_with(self, cached: Array) -> Whole:
        """Latencies on this level with other tokens of the prompts in the prefix cache."""
        kind, n = self.stream.kind, len(self.stream.kind)
        other = replace(kind, cached=_share(cached, kind.input_tokens), weight=np.zeros(n))
        both = Classes(*(np.concatenate([getattr(x, f) for x in (kind, other)]) for f in _FIELDS))
        points = operating_points([self.of.costs], np.array([self.kv_tokens]), self.limits, both, self.points.step_s,
                                  self.stage, attention_ranks=self.ranks, placed=self.points.placed)  # fmt: skip
        seen = replace(self, points=points, stream=replace(self.stream, kind=both)).sees
        return Whole(*(getattr(seen, f.name)[n:] for f in fields(Whole)))

    @cached_property
    def fits(self) -> Mask:
        """Requests that can be on the level, (n,)."""
        return np.isfinite(self.load).all(axis=0) & self.points.holds[0, 0]

    @cached_property
    def itl_s(self) -> float | None:
        """Time between tokens at the quantile of its limit, at most, of the request of which it is longest.

        None without a limit, and of engines that decode nothing.
        """
        some = self.fits & (self.stream.kind.output_tokens.max(axis=1) > 1.0) & (self.stream.kind.weight > 0)
        if self.stream.itl is None or self.stage == "prefill" or not some.any():
            return None
        quantile = seconds_and_quantile(self.stream.itl)[1]
        if self.stage == "decode":
            found = self.points.itl_of_joining_s(quantile, self.joins_s(self.stream.kind.input_tokens))
        else:
            found = self.points.itl_s(quantile)
        return float(found[0, 0, some].max())

    @property
    def pauses_longer(self) -> bool:
        """Whether times between tokens exceed their limit."""
        return (self.itl_s or 0.0) > seconds_and_quantile(self.stream.itl)[0] * (1.0 + 1e-12)

    def joins_s(self, prompt: Array) -> Array:
        """Seconds from a cache's leaving until the first step of its request, where engines only decode."""
        assert self.transfer is not None
        return self.transfer.seconds(prompt, latency=False) + self.step_s + self.of.costs.request_s

    @property
    def pace_s(self) -> float:
        """Step next to the concurrency of `engine.quantile`, of the mixture's mean request, seconds."""
        crowd = float(self.points.crowd_s.min())
        load = np.array(1.0 - self.fixed_s / self.step_s)
        running = crowd_quantile(self.limits.quantile, load * self.fixed_s / crowd, load)
        return max(self.step_s, self.fixed_s + crowd * min(float(running), self.ranks * self.slots))

    @property
    def token_s(self) -> float:
        """Time per output token at `pace_s`."""
        return self.pace_s / self.of.costs.tokens

    def rest_s(self, output: Array) -> Array:
        """Seconds of decoding of any requests at `pace_s`."""
        return Coefficients.of(self.of.costs).rounds(output - 1.0) * self.pace_s

    @property
    def prefill_load(self) -> Array:
        """Prompt's part of the time that a request/s takes, (n,)."""
        p = self.points
        decodes = p.decode_s[0, 0] * (p.steps - p.chunks)[0, 0]
        work = np.where(p.work_s[0, 0] > 0.0, p.work_s[0, 0], 1.0)
        return self.load[TIME] * np.maximum(1.0 - decodes / work, 0.0)

    @property
    def work_s(self) -> Array:
        """Seconds that requests add to steps, (n,)."""
        return self.load[TIME] * self.keep * (1.0 - self.fixed_s / self.step_s)

    @property
    def mean_load(self) -> Array:
        """`load` of the mixture; infinite where nothing of a positive weight can be on it, (7,)."""
        weight, fits = self.stream.kind.weight, np.isfinite(self.load).all(axis=0)
        if not weight[fits].sum() > 0:
            return np.full(len(self.load), np.inf)
        return self.load[:, fits] @ weight[fits] / weight[fits].sum()

    @property
    def most_running(self) -> float:
        """Requests that run in the mean where its capacity of running requests is taken."""
        p, fits = self.points, np.isfinite(self.load[RUNNING])
        lasts = p.steps[0, 0] * self.step_s
        weight = self.stream.kind.weight * fits
        taken = float(weight @ np.where(fits, self.load[RUNNING] * self.keep, 0.0))
        return float(weight @ lasts) / taken if taken > 0 else 0.0

    @property
    def idle_kv_tokens(self) -> float:
        """Tokens of a rank's cache that its requests leave in the mean."""
        weight = self.stream.kind.weight
        one, _ = held_tokens(self.points.of, self.points.classes, self.points.chunks)
        steps = float(weight @ self.points.steps[0, 0])
        return max(0.0, self.kv_tokens / self.ranks - self.batch * float(weight @ one[0, 0]) / steps)

    def lets_in(self, running: float) -> int:
        """max_num_seqs of each rank where this many run in the mean of the busiest bin, which seldom are more."""
        if self.stage == "prefill" or self.points.placed:
            return self.slots
        load = np.array(1.0 - self.fixed_s / self.step_s)
        crowd = float(
            crowd_quantile(1.0 - self.limits.overflow, np.array(max(running / self.ranks, 1.0) * (1.0 - load)), load)
        )
        return min(self.slots, int(np.ceil(crowd)))


# Tokens of prompts by engine without, and level with, them.
Hits = Callable[[PlannedEngine, Callable[[Array], PlannedEngine]], Array]


def engines_at(
    costs: EngineCosts, limits: Continuous, stream: Stream, batches: Sequence[int], stage: Stage = "both",
    transfer: Transfer | None = None, cached: Hits | None = None,
) -> Iterator[PlannedEngine]:  # fmt: skip
    """Every level of an engine: of each batch, max_num_seqs and wait.

    A larger max_num_seqs only where the smaller one lacks slots; a longer wait only where the level's own
    requests take more than `QUEUED` of the shorter one's row; a wait for a place only where places are scarcest.

    Args:
        costs: costs of its steps, and its KV cache.
        limits: limits of the engine.
        stream: its model's requests.
        batches: requests that run in the mean, of each rank.
        stage: stage of the requests that it does.
        transfer: transfer of caches.
        cached: tokens of each prompt that the prefix cache of an engine has, by the engine without one and the level
            as it is with this many; None: none are counted.
    """
    left = list(batches)
    for n in limits.choices:
        mine = limits.model_copy(update={"max_num_seqs": n})
        if not left or costs.with_slots(n).kv_tokens <= 0:
            return
        lacking = []
        for batch, found, lacks in _of_slots(costs, mine, stream, left, stage, transfer, cached):
            yield from found
            if lacks:
                lacking.append(batch)
        left = lacking


def _of_slots(
    costs: EngineCosts, limits: Continuous, stream: Stream, batches: Sequence[int], stage: Stage,
    transfer: Transfer | None, cached: Hits | None,
) -> Iterator[tuple[int, list[PlannedEngine], bool]]:  # fmt: skip
    """By batch the levels of one max_num_seqs, and whether they lack slots."""
    kv, held_s = costs.with_slots(limits.slots).kv_tokens, np.zeros(1)
    if transfer is not None:
        held_s = transfer.seconds(stream.kind.input_tokens, latency=stage == "prefill")

    def at(step_s: Array, kind: Classes, placed: bool = False) -> Points:
        moved = held_s if len(kind) == len(held_s) else np.full(len(kind), held_s.mean())
        return operating_points(
            [costs.costs], np.array([kv]), limits, kind, step_s, stage, moved[None, None, :], costs.ranks, placed
        )  # fmt: skip

    def made(step_s: float, batch: int, waits: float, stream: Stream, place_wait_s: float = 0.0) -> PlannedEngine:
        points = at(np.array([[step_s]]), stream.kind, place_wait_s > 0)
        weight = stream.kind.weight
        turn = float(weight @ points.turn_s[0, 0])
        wait = waits * costs.ranks * turn * (batch if stage == "prefill" else 1)
        rate = 1.0 / float(weight @ points.load[TIME, 0, 0]) if points.exists[0, 0] else 0.0
        part = min(1.0, rate / stream.requests_per_s)
        return PlannedEngine(
            costs, limits, stream, stage, points, batch, waits, wait / longest_wait(limits.quantile, np.inf),
            place_wait_s, part * (stream.dispersion - 1.0) * turn, part, transfer,
        )  # fmt: skip

    def step_s(batch: int, stream: Stream, placed: bool = False) -> float:
        n = np.array([float(costs.ranks * batch)])
        found = steps_of_running(partial(at, placed=placed), stream.kind, n, stage == "prefill")
        return float(found[0, 0])

    running = costs.ranks * np.array(batches, dtype=float)
    steps = steps_of_running(at, stream.kind, running, stage == "prefill")[0].tolist()
    for batch, step in zip(batches, steps, strict=True):
        found: list[PlannedEngine] = []
        lacks, queued = False, np.inf
        for waits in limits.wait_levels[: None if stage != "decode" else 1]:
            if queued <= QUEUED:
                break
            e = made(step, batch, waits, stream)
            if cached is not None and stage != "decode":

                def level(tokens: Array, batch: int = batch, waits: float = waits) -> PlannedEngine:
                    mine = stream.having(tokens)
                    return made(step_s(batch, mine), batch, waits, mine)

                e = level(cached(e, level))
            loads = e.mean_load
            if 1.0 - e.fixed_s / e.step_s > limits.load * (1.0 + 1e-9) or not np.isfinite(loads).all():
                lacks |= bool(np.isinf(e.load[RUNNING]).all())
                continue
            if e.pauses_longer:
                continue
            queued = loads[WAITING] / loads[TIME]
            lacks |= bool(loads[RUNNING] > loads[TIME] * (1.0 + 1e-9))
            found.append(e)
            if stage == "both" and waits_for_places(loads[: len(ROWS)]) and len(found) == 1:
                places = [w for w in PLACE_WAITS_S if w + e.wait_s <= limits.wait_s]
                placed = step_s(batch, e.stream, placed=True) if places else 0.0
                some = [made(placed, batch, waits, e.stream, w) for w in places]
                found += [
                    x for x in some
                    if np.isfinite(x.mean_load).all() and x.points.exists.all() and not x.pauses_longer
                ]  # fmt: skip
        yield batch, found, lacks


@dataclass(frozen=True)
class Taken:
    """Use of an engine's capacities by a start at its level: means of each class, (K,) each.

    Attributes:
        first_s: seconds to the first token; of an engine that only decodes, to its first step there.
        service_s: until it leaves: with its last token, or with its cache.
        prefill: share of the time that its prompt takes, as `load`.
        load: one start as a share of each of `CAPACITIES`, seconds, (7, K).
        prompt_tokens, output_tokens: held at its start, and decoded.
        kv_gb: size of its prompt's cache, 0 where none is sent.
        work_s: added to steps.
    """

    first_s: Array
    service_s: Array
    prefill: Array
    load: Array
    prompt_tokens: Array
    output_tokens: Array
    kv_gb: Array
    work_s: Array

    @classmethod
    def by(cls, e: PlannedEngine, rows: Ints, klass: Ints, classes: int) -> Taken:
        """Means over some of the stream's requests by class; 0 where a class has none.

        Args:
            e: the engine.
            rows: rows of the requests, (m,).
            klass: klass of each, (m,).
            classes: K.
        """
        count, kind = np.maximum(np.bincount(klass, minlength=classes), 1), e.stream.kind

        def mean(values: Array) -> Array:
            return np.bincount(klass, values[rows], classes) / count

        sees, nothing = e.sees, np.zeros(len(kind))
        output = nothing if e.stage == "prefill" else kind.output_tokens[:, 0]
        kv = nothing if e.transfer is None else e.transfer.gigabytes(kind.input_tokens)
        return cls(
            mean(sees.first_s), mean(sees.first_s + sees.rest_s), mean(e.prefill_load),
            np.array([mean(row) for row in e.load]), mean(kind.input_tokens), mean(output), mean(kv), mean(e.work_s),
        )  # fmt: skip

    def shares(self, e: PlannedEngine, k: int, bin_s: float, since_s: float = 0.0) -> Array:
        """(7, L) mean share of each capacity that a start of class k takes, in its bin and those after it.

        It comes to this engine `since_s` after its start: from another, where prefill and decode are disaggregated.
        """
        first, service = float(self.first_s[k]), float(self.service_s[k])
        bins = bins_of(since_s + service, bin_s)
        until_first, until_last = held(since_s + first, bin_s, bins), held(since_s + service, bin_s, bins)
        if since_s > 0:
            before = held(since_s, bin_s, bins)
            until_first, until_last = until_first - before, until_last - before
        rest = service - first
        early = until_first / first
        late = (until_last - until_first) / rest if rest > 0 else np.zeros(bins)
        grown = growing(since_s + first, since_s + service, bin_s, bins)
        kv = self.prompt_tokens[k] * until_last + self.output_tokens[k] * grown
        kv = kv / (first * self.prompt_tokens[k] + rest * (self.prompt_tokens[k] + self.output_tokens[k] / 2))
        time, running, memory, tokens, chunks, waiting, sent = self.load[:, k] / e.keep
        prompt = self.prefill[k] / e.keep if rest > 0 else time
        found: Array = np.array([
            early * prompt + late * (time - prompt), until_last * (running / service), kv * memory,
            early * tokens, early * chunks, early * waiting, (late if e.stage == "prefill" else early) * sent,
        ])  # fmt: skip
        found[found <= LEAST] = 0.0
        return found
