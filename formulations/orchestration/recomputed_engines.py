"""Engines that batch continuously, recomputed for the check: the level that a line states, and starts over time.

The level's check is shared by every engine (`optmodels.plans.engines`), request by request. Orchestration's own part
is written here from its README: who is in time, and what starts take of an engine bin by bin, as integrals of the curve
of starts. Shares no code with engines.py or busy.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from formulations.orchestration.plan import EngineLevelLine
from formulations.orchestration.problem import Continuous
from optmodels.arrays import Array, Ints, Mask
from optmodels.engine.continuous import LatencyLimit, Stage, seconds_and_quantile
from optmodels.engine.costs import EngineCosts
from optmodels.engine.stages import Link
from optmodels.plans.engines import (
    Level,
    Request,
    at_level,
    between_tokens,
    capacities,
    drafted,
    running_at,
    step_beside,
    whole,
)
from optmodels.plans.findings import Findings
from optmodels.plans.lines import latency_source

LET_IN = 0.7, 1.0, 1.5  # times the running requests that are seldom exceeded: max_num_seqs that a plan may choose


@dataclass(frozen=True)
class Sent:
    """KV caches that an engine of one stage sends or receives.

    Attributes:
        bytes_of: size of the caches of prompts of this many tokens.
        net_bytes_per_s: its share of its server's network.
        link: link, as the file states it.
    """

    bytes_of: Callable[[Array], Array]
    net_bytes_per_s: float
    link: Link

    def planned_s(self, prompt: Array) -> Array:
        """Seconds of the planned share."""
        return self.bytes_of(prompt) / (self.link.most_used * self.net_bytes_per_s)


@dataclass(frozen=True)
class Asked:
    """A model's requests: tokens of prompt and output, weights of sum 1, how they arrive, limit on their ITL."""

    prompt: Array
    output: Array
    weight: Array
    requests_per_s: float
    dispersion: float
    itl: LatencyLimit | None = None


@dataclass(frozen=True)
class Derived:
    """An engine at the level that its line states, derived again.

    Attributes:
        of: the level, whose requests are the model's by number.
        limits: limits of the engine, with the level's max_num_seqs.
        first_s, rest_s: mean seconds to the first token, and from there until a request leaves; of an engine that only
            decodes from a cache's leaving. (n,) each, as all that follows.
        late_s, whole_s: to the first token, and until it leaves, at `engine.quantile`.
        fits: requests that can be on it.
        load: share of each capacity that one start takes, seconds.
        prompts: share of the time that is the prompt's.
        work_s: added to steps.
        part: share of the model's requests that it serves at its level.
        idle_kv_tokens: idle KV tokens of a rank's cache, that its requests leave in the mean.
        turn_s: mean turn of a prompt.
        places: requests that run at a time where requests wait for a place; else max_num_seqs.
        keep: share of its capacities that certification leaves.
    """

    of: Level
    line: EngineLevelLine
    limits: Continuous
    costs: EngineCosts
    stage: Stage
    sent: Sent | None
    first_s: Array
    rest_s: Array
    late_s: Array
    whole_s: Array
    fits: Mask
    load: dict[str, Array]
    prompts: Array
    work_s: Array
    part: float
    idle_kv_tokens: float
    turn_s: float
    places: int
    asked: Asked
    cached: Array
    keep: float = 1.0

    @property
    def most_running(self) -> float:
        """Requests that run in the mean where its capacity of running requests is taken."""
        fits = np.isfinite(self.load["running"])
        steps = np.array([self.of.requests[str(i)].steps for i in range(len(fits))])
        weight = self.asked.weight * fits
        taken = float(weight @ np.where(fits, self.load["running"], 0.0))
        return float(weight @ steps) * self.line.step_s / taken if taken > 0 else 0.0

    @property
    def ranks(self) -> int:
        """Data-parallel attention ranks."""
        return self.costs.ranks


def planned(
    line: EngineLevelLine, costs: EngineCosts, limits: Continuous, asked: Asked, batch: int, stage: Stage,
    sent: Sent | None, cached: Array | float = 0.0, other: Array | None = None,
) -> Derived | None:  # fmt: skip
    """The level of a line; None where there is none.

    Args:
        line: line, as the plan states it.
        costs: costs of its steps, and its KV cache: data.
        limits: limits of the instance.
        asked: the model's requests.
        batch: requests that run on each rank in the mean.
        stage: stage of the requests that it does.
        sent: caches of one stage.
        cached: tokens of each prompt in its prefix cache.
        other: instead of the requests' latencies, their latencies at the same level with this many tokens cached.
    """
    n, steps = len(asked.prompt), drafted(costs.alone or costs.costs, costs.draft, costs.speculation)
    kv, places = costs.with_slots(line.level_num_seqs).kv_tokens, line.level_num_seqs
    if line.place_wait_s > 0:
        largest = asked.prompt + asked.output + steps.drafts
        held = largest[largest <= kv / costs.ranks]
        places = min(places, math.floor(kv / costs.ranks / held.max())) if len(held) else 0
    limits = limits.model_copy(update={"max_num_seqs": max(places, 1)})
    has = np.broadcast_to(np.asarray(cached, dtype=float), n)
    requests = _requests(asked, has, stage, asked.weight)
    if other is not None:
        requests |= {f"+{k}": r for k, r in _requests(asked, other, stage, np.zeros(n)).items()}
    level = at_level(limits, steps, kv, requests, line.step_s, stage, costs.ranks)
    if level is None:
        return None
    mine = [level.requests[str(i)] for i in range(n)]
    asks = mine if other is None else [level.requests[f"+{i}"] for i in range(n)]
    turn = float(asked.weight @ [level.turn(r, line.step_s) for r in mine])
    work, lasts = (float(asked.weight @ [getattr(r, k) for r in mine]) for k in ("work", "steps"))
    part = min(1.0, level.load / work / asked.requests_per_s)
    moving = np.zeros(n) if sent is None else sent.bytes_of(asked.prompt) / sent.link.rate(sent.net_bytes_per_s)
    late_s = moving + (sent.link.latency_s if sent is not None and stage == "prefill" else 0.0)
    wait, factor = line.wait_s + line.place_wait_s, costs.slower if stage != "decode" else 0.0
    seen = np.array([
        whole(level, r, line.step_s, wait, places, factor, steps.request_s, limits.quantile) for r in asks
    ])  # fmt: skip
    first, late, rest, total = seen.T
    if stage == "prefill":
        late, rest = late + late_s, late_s
        total = late
    elif stage == "decode":
        first, total = moving + line.step_s + steps.request_s, total - first
        late, total = first, first + total
    fits = np.array([level.can_hold(r) and (stage != "decode" or r.output > 1) for r in asks])
    load = {}
    if other is None:
        by = capacities(
            level, line.step_s, line.wait_s, None, places, dict(zip(level.requests, late_s.tolist(), strict=True)),
            line.place_wait_s, limits.busiest, part * (asked.dispersion - 1) * turn,
        )  # fmt: skip
        load = {k: np.array([by[str(i)][k] for i in range(n)]) for k in by["0"]}
        if line.place_wait_s > 0:  # as the check of engines has slots and KV cache then
            load |= {k: np.where(fits, load[k], math.inf) for k in ("running", "memory")}
        if sent is not None:
            load["transfer"] = sent.planned_s(asked.prompt)
        for row in load.values():
            fits &= np.isfinite(row)
        if stage == "decode":
            load = {k: np.where(asked.output > 1, row, 0.0) for k, row in load.items()}
    holds = [r.chunks * r.prompt + r.decodes * (r.prompt + 1 + r.drafts) + r.tokens * r.decodes * (r.decodes - 1) / 2
             for r in mine]  # fmt: skip
    idle = max(0.0, level.kv - batch * float(asked.weight @ holds) / lasts)
    return Derived(
        level, line, limits, costs, stage, sent, first, rest, late, total, fits, load,
        np.array([r.prompt_work for r in mine]) / level.load, np.array([r.work for r in mine]), part, idle, turn,
        places, asked, has,
    )  # fmt: skip


def as_planned(
    line: EngineLevelLine, costs: EngineCosts, limits: Continuous, asked: Asked, batch: int, stage: Stage, cached: Array
) -> EngineLevelLine:  # fmt: skip
    """The line of the same level, without waits for a place, where a prefix cache has this many tokens of each
    prompt.
    """
    step = step_of_running(costs, limits, asked, batch, stage, line.level_num_seqs, cached)
    one = line.model_copy(update={"step_s": step, "wait_s": 1.0, "place_wait_s": 0.0})
    of = planned(one, costs, limits, asked, batch, stage, None, cached)
    return one if of is None else one.model_copy(update={"wait_s": _wait_s(of, batch)})


def _wait_s(of: Derived, batch: int) -> float:
    """Mean wait for prefill: the wait at `engine.quantile` is `waits` mean turns, each of a batch's prompts alone."""
    above = 1 - of.limits.quantile
    factor = 1.0 if above >= 0.5 else max(math.log(x / above) / x for x in (1.0, min(1.0, math.e * above)))
    return of.line.waits * of.ranks * of.turn_s * (batch if of.stage == "prefill" else 1) / factor


def step_of_running(
    costs: EngineCosts, limits: Continuous, asked: Asked, batch: int, stage: Stage, slots: int, cached: Array
) -> float:  # fmt: skip
    """The step at which this many requests run on each rank in the mean, seconds; 0: there is none."""
    steps = drafted(costs.alone or costs.costs, costs.draft, costs.speculation)
    limits = limits.model_copy(update={"max_num_seqs": slots})
    kv, requests = costs.with_slots(slots).kv_tokens, _requests(asked, cached, stage, asked.weight)
    running = float(costs.ranks * batch)

    def long_enough(step: float) -> bool:
        level = at_level(limits, steps, kv, requests, step, stage, costs.ranks)
        return level is not None and step >= level.fixed + _work(level, asked, running, stage, limits.filled)

    low, high = 0.0, 1e-3
    while not long_enough(high):
        low, high = high, 2 * high
        if high > 1e9:
            return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if long_enough(middle) else (middle, high)
    return high


def _work(level: Level, asked: Asked, running: float, stage: Stage, filled: float) -> float:
    """Seconds that this many running requests of the mixture add to a step."""
    every = [level.requests[str(i)] for i in range(len(asked.weight))]
    work, steps, new = (float(asked.weight @ [getattr(r, k) for r in every]) for k in ("work", "steps", "new"))
    if stage == "prefill":  # of the prompts that run as many are in one step as there is room for
        running = min(running, max(1.0, filled * level.ranks * level.room * steps / new))
    return running * work / steps if steps > 0 else math.inf


def _requests(asked: Asked, cached: Array, stage: Stage, weight: Array) -> dict[str, Request]:
    rows = zip(asked.prompt.tolist(), cached.tolist(), asked.output.tolist(), weight.tolist(), strict=True)
    return {
        str(i): Request(p, 0.0 if stage == "decode" else max(p - h, 1.0), 1.0 if stage == "prefill" else o, w)
        for i, (p, h, o, w) in enumerate(rows)
    }


def check_line(found: Findings, where: str, of: Derived, batch: int, limits: Continuous) -> None:
    """A line's statements on its level: its figures follow from its step and waits, within the instance's limits."""
    e, level = of.line, of.of
    for what, stated, true in (
        ("max_num_batched_tokens", e.max_num_batched_tokens, limits.max_num_batched_tokens),
        ("chunk_tokens", e.chunk_tokens, limits.chunk_tokens), ("most_of_wait", e.most_of_wait, None),
        ("source of latencies", e.latency, latency_source(of.costs.provenance)),
    ):  # fmt: skip
        found.require(f"{where}.{what}", stated == true, stated, true)
    found.close(f"{where}.kv_tokens", e.kv_tokens, of.costs.with_slots(e.level_num_seqs).kv_tokens, "tokens")
    work = _work(level, of.asked, of.ranks * batch, of.stage, limits.filled)
    found.close(f"{where}.step_s", e.step_s, level.fixed + work, "s")
    found.at_most(f"{where}: load of the level", level.load, limits.load)
    found.close(f"{where}.wait_s", e.wait_s, _wait_s(of, batch), "s")
    found.require(f"{where}.waits", e.waits in limits.wait_levels, e.waits, list(limits.wait_levels))
    found.at_most(f"{where}: longest mean wait", e.wait_s * (e.place_wait_s > 0) + e.place_wait_s, limits.wait_s, "s")
    pace = max(e.step_s, step_beside(level, of.places, limits.quantile))
    found.close(f"{where}.token_s", e.token_s, pace / of.costs.costs.tokens, "s")
    pause = _longest_pause(of)
    if pause is None:
        found.require(f"{where}: no ITL", e.itl_s is None, e.itl_s, None)
        return
    found.close(f"{where}.itl_s", math.nan if e.itl_s is None else e.itl_s, pause, "s")
    found.at_most(f"{where}: ITL ≤ slo.itl_s", pause, seconds_and_quantile(of.asked.itl)[0], "s")


def _longest_pause(of: Derived) -> float | None:
    """Time between tokens of the request of which it is longest; where engines only decode, its first one, too.

    That one lasts until it joins: one of n, that all others leave room for if there are enough of them.
    """
    who = [str(i) for i in np.flatnonzero(of.fits & (of.asked.output > 1) & (of.asked.weight > 0))]
    if of.asked.itl is None or of.stage == "prefill" or not who:
        return None
    quantile = seconds_and_quantile(of.asked.itl)[1]
    steps = drafted(of.costs.alone or of.costs.costs, of.costs.draft, of.costs.speculation)

    def at(quantiles: dict[str, float | None]) -> dict[str, float]:
        return between_tokens(of.of, steps, of.limits, quantiles, of.line.step_s, of.places, of.line.place_wait_s > 0)

    pauses = at(dict.fromkeys(who, quantile))
    if of.stage == "both":
        return max(pauses.values())
    rooms = dict[str, float | None]()
    for k in who:
        n = max(of.of.requests[k].decodes, 1.0)
        pauses[k] += float(of.first_s[int(k)]) / (1 if quantile is not None else n)
        if quantile is not None and (room := (1 - quantile) * n - 1) > 1e-9 * max(n - 1, 1e-9):
            rooms[k] = 1 - min(room / (n - 1), 0.5)
    for k, other in at(rooms).items():
        pauses[k] = min(pauses[k], other)
    return max(pauses.values())


def may_let_in(of: Derived, running: float) -> set[int]:
    """The values of max_num_seqs that a plan may state where this many requests run on an engine in its busiest bin."""
    if of.stage == "prefill" or of.line.place_wait_s > 0:
        return {of.places}
    limit, mean = of.line.level_num_seqs, max(running / of.ranks, 1.0)
    seldom = min(limit, math.ceil(running_at(mean * (1 - of.of.load), of.of.load, 1 - of.limits.overflow)))
    least = running / of.ranks
    return {min(limit, max(math.ceil(factor * seldom), math.ceil(least) if factor != 1 else 0)) for factor in LET_IN}


# ------------------------------------------------------------------------------------------ capacity taken over time


def started_between(x: Array, since_s: float, until_s: float, bin_s: float) -> Array:
    """Mean over each bin and the two after the last of how many started between `until_s` and `since_s` before.

    The curve of starts is linear in every bin, so its integral is quadratic.
    """
    edges = np.arange(len(x) + 1) * bin_s
    begun = np.concatenate(([0.0], np.cumsum(x)))
    area = np.concatenate(([0.0], np.cumsum((begun[1:] + begun[:-1]) / 2 * bin_s)))

    def integral(at: Array) -> Array:
        at = np.maximum(at, 0.0)
        i = np.minimum((at / bin_s).astype(np.int64), len(x))
        inside = np.where(i < len(x), x[np.minimum(i, len(x) - 1)] / bin_s, 0.0)
        rest = at - edges[i]
        return area[i] + begun[i] * rest + inside * rest**2 / 2

    a = bin_s * np.arange(len(x) + 2, dtype=np.float64)
    return (
        integral(a + bin_s - since_s) - integral(a - since_s) - integral(a + bin_s - until_s) + integral(a - until_s)
    ) / bin_s


def growing_between(x: Array, since_s: float, until_s: float, bin_s: float) -> Array:
    """The same for the function that grows to 1, from `since_s` after it to `until_s`.

    It is the mean over s of the requests that started between `until_s` and s before, which is quadratic in s between
    multiples of the bin: two points of Gauss a piece are exact.
    """
    if until_s <= since_s:
        return np.zeros(len(x) + 2)
    first, last = math.floor(since_s / bin_s) + 1, math.ceil(until_s / bin_s)
    pieces = np.array([since_s, *(bin_s * np.arange(first, last)), until_s])
    total = np.zeros(len(x) + 2)
    for low, high in pairwise(pieces):
        for at in (-1 / math.sqrt(3), 1 / math.sqrt(3)):
            s = (low + high) / 2 + at * (high - low) / 2
            total += (high - low) / 2 * started_between(x, s, until_s, bin_s)
    return total / (until_s - since_s)


def taken(of: Derived, who: Ints, x: Array, bin_s: float, since_s: float = 0.0) -> dict[str, Array]:
    """What requests of a class, started along x, take of one capacity after the other; bins and two more.

    Args:
        of: the engine.
        who: numbers of the requests that means are taken over.
        x: starts by bin.
        bin_s: width of a bin.
        since_s: from their start until they come to this engine.
    """
    to_first, to_last = float(of.first_s[who].mean()), float((of.first_s + of.rest_s)[who].mean())
    prompt = float(of.asked.prompt[who].mean())
    output = 0.0 if of.stage == "prefill" else float(of.asked.output[who].mean())
    decoding = to_last - to_first
    prompts = started_between(x, since_s, since_s + to_first, bin_s)
    runs = started_between(x, since_s, since_s + to_last, bin_s)
    kv = prompt * runs + output * growing_between(x, since_s + to_first, since_s + to_last, bin_s)
    means = {name: float(row[who].mean()) for name, row in of.load.items()}
    early = prompts / to_first
    late = (runs - prompts) / decoding if decoding > 0 else 0.0 * runs
    ahead = float(of.prompts[who].mean()) if decoding > 0 else means["time"]
    found = {name: early * mean for name, mean in means.items()}
    found["time"] = early * ahead + late * (means["time"] - ahead)
    found["running"] = runs * means["running"] / to_last
    found["memory"] = kv * means["memory"] / (to_first * prompt + decoding * (prompt + output / 2))
    if of.stage == "prefill":
        found["transfer"] = late * means["transfer"]
    return found
