"""Engines that batch continuously, recomputed for the check: their levels, and what requests take of them.

Written from the mathematics (README.md), request by request, with sums of its own; shares no code with engines.py,
busy.py or `optmodels.engine.continuous`. Both read the same costs of steps and tokens of cache (rates.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, minimize_scalar
from scipy.special import betainc, ndtri

from formulations.orchestration.problem import Continuous
from formulations.orchestration.rates import Steps
from optmodels.engine.continuous import Stage
from optmodels.engine.stages import Link
from optmodels.latency.speculation import Speculation
from optmodels.latency.steps import StepCosts
from optmodels.plans.engines import drafted, steps_after

Array = npt.NDArray[np.float64]
FULL = 0.005  # probability that running requests or their KV do not fit
LET_IN = 0.7, 1.0, 1.5  # times what the crowd seldom exceeds: max_num_seqs that a plan may choose
FILLED = 0.9  # of the room for prompts in a step


@dataclass(frozen=True)
class Sent:
    """KV caches that an engine of one stage sends or receives.

    Attributes:
        bytes_of: of the caches of prompts of so many tokens.
        net_bytes_per_s: of its server's network, its share.
        link: as in the file.
    """

    bytes_of: Callable[[Array], Array]
    net_bytes_per_s: float
    link: Link


@dataclass(frozen=True)
class Uneven:
    """Steps of several attention ranks wait for the longest chunk of a prompt in them, which several ranks' share.

    Attributes:
        longer_s: seconds of chunks over their even share, each once, ascending after 0.
        none: probability that no chunk of a step is longer, from each of these to the next.
        rest_s: what of that wait every step has, whoever's chunk it is.
    """

    longer_s: Array
    none: Array
    rest_s: float

    @classmethod
    def of(cls, longer: Array, chunks: Array) -> Uneven:
        """Of requests with chunks so much longer than their even share, of which so many come in a step by chance."""
        edges, where = np.unique(longer, return_inverse=True)
        each = np.bincount(where, chunks, len(edges))
        more = np.append(np.cumsum(each[::-1])[::-1], 0.0)
        edges, none = np.append(0.0, edges), np.exp(-more)
        return cls(edges, none, float((np.diff(edges) * (1 - none - more * none)[:-1]).sum()))

    def paid_s(self, chunks: Array, longer: Array) -> Array:
        """What prompts of so many chunks pay in all their steps: up to x the probability that none is longer."""
        whole = np.append(0.0, np.cumsum(np.diff(self.longer_s) * self.none[:-1]))
        at = np.searchsorted(self.longer_s, longer, side="right") - 1
        found: Array = chunks * (whole[at] + self.none[at] * (longer - self.longer_s[at]))
        return found


@dataclass(frozen=True)
class Level:
    """One engine at the step time at which `batch` requests run in the mean.

    Attributes:
        fixed_s, step_s, token_s: of a step that does little; t; of a token after the first, in the mean.
        charged: every chunk pays `prompt_step_s`.
        wait_s: ω, that prompts wait for others as planned: `waits` times what the mean one occupies.
        mean_wait_s: that they may wait in the mean: ω, or with bursts less, so that ω is the quantile.
        burst_s: what bursts add to the mean square of turns, over a turn: (I − 1)·(share of all requests)·(mean turn).
        queued: share of the capacity of waiting that all of its requests would take.
        slope_s: of a token of a decoding request's context.
        limits: resource → most of it on one engine.
        stage, sent: what it does of its requests, and how their caches come or go.
        part: of its model's requests that it gets.
        unused_kv_tokens: that its requests leave of the cache in the mean.
        cached: tokens that the cache has of the prompts of its model's requests; None: none are counted.
        ranks: data-parallel attention ranks, each with requests, limits and `kv_tokens` of its own.
        uneven: what requests pay because steps wait for the busiest of them.
    """

    costs: StepCosts
    later: float
    engine: Continuous
    kv_tokens: float
    fixed_s: float
    step_s: float
    token_s: float
    charged: bool
    wait_s: float
    mean_wait_s: float
    burst_s: float
    queued: float
    slope_s: float
    limits: dict[str, float]
    stage: Stage = "both"
    sent: Sent | None = None
    part: float = 1.0
    unused_kv_tokens: float = 0.0
    cached: Array | None = None
    ranks: int = 1
    uneven: Uneven | None = None

    def prompt_s(self, prompt: Array, cached: Array | float = 0.0) -> Array:
        """Seconds that prompts add to steps, waits for the busiest rank among them."""
        if self.uneven is None:
            return self.own_s(prompt, cached)
        return self.own_s(prompt, cached) + self.uneven.paid_s(*self._longer(prompt))

    def own_s(self, prompt: Array, cached: Array | float = 0.0) -> Array:
        """The same of ranks that all have as much to do."""
        if self.stage == "decode":
            return 0.0 * prompt
        return _prompt_s(self.costs, self.engine, prompt, self.charged, cached)

    def _longer(self, prompt: Array) -> tuple[Array, Array]:
        return _longer(self.costs, self.engine, self.ranks, prompt)

    def decode_s(self, prompt: Array, output: Array) -> Array:
        """Seconds that the tokens after the first add to steps."""
        if self.stage == "prefill":
            return 0.0 * prompt
        return _decode_s(self.costs, prompt, output, self.slope_s)

    def first_s(self, prompt: Array, cached: Array | float = 0.0) -> Array:
        """Seconds from a start to the first token; of an engine that decodes from a cache's leaving to its step."""
        if self.stage == "decode":
            return self.step_s + self.costs.request_s + self.moving_s(prompt)
        steps = np.ceil((prompt - cached) / self.engine.chunk(self.costs.drafts)) + 0.5
        own = steps * self.step_s + self.own_s(prompt, cached) + self.costs.request_s
        if self.uneven is not None:  # its rank is the busiest, but for what every step has of that
            chunks, longer = self._longer(prompt)
            own = own + np.where(longer > self.uneven.rest_s, chunks * (longer - self.uneven.rest_s), 0.0)
        found: Array = self.later * (own + self.wait_s)
        return found

    def moving_s(self, prompt: Array) -> Array:
        """Seconds in which a cache goes through this engine's network, which others leave that much of."""
        assert self.sent is not None
        free = 1 - self.sent.link.most_used
        return self.sent.bytes_of(prompt) / (free * self.sent.net_bytes_per_s)

    def gone_s(self, prompt: Array, output: Array) -> Array:
        """Seconds from the first token, or the first step of those that decode, until a request leaves."""
        if self.stage == "prefill":
            assert self.sent is not None
            return self.moving_s(prompt) + self.sent.link.latency_s
        return self.rest_s(output)

    def occupies_s(self, prompt: Array, cached: Array | float = 0.0) -> Array:
        """Seconds for which a prompt keeps others from being prefilled, on all ranks in the mean."""
        steps = (prompt - cached) / self.engine.room(self.costs.drafts) / self.ranks
        found: Array = self.own_s(prompt, cached) + steps * self.step_s
        return found

    def rest_s(self, output: Array) -> Array:
        """Seconds from the first token to the last."""
        found: Array = _steps_after(self.costs, output) * (self.token_s * self.costs.tokens)
        return found


def level(
    steps: Steps, engine: Continuous, kv_tokens: float, prompt: Array, output: Array, weight: Array, batch: int,
    waits: float, stream: tuple[float, float], speculation: Speculation | None = None, stage: Stage = "both",
    sent: Sent | None = None, cached: Array | float = 0.0, ranks: int = 1,
) -> Level:  # fmt: skip
    """The level of a batch and a wait for requests of these lengths, each as often as `weight` (sum 1) says.

    `stream`: requests of the model per second, and the index of dispersion of their arrivals; `cached`: tokens at the
    heads of the prompts that need not be computed. Batch and limits are of each rank.
    """
    computed, batch = prompt - cached, ranks * batch
    if stage == "prefill":  # what it makes of an answer is its first token
        output = 1 + 0 * output
    costs = drafted(steps.alone or steps.costs, steps.draft, speculation)
    room, chunks = engine.room(costs.drafts), np.ceil(computed / engine.chunk(costs.drafts))
    if stage == "decode":
        chunks = 0 * chunks
    lasts = chunks + _steps_after(costs, output)
    turns = float((weight * lasts).sum())
    unlike = costs.experts is not None or costs.mixed_context_s > costs.context_s
    mixed = min(1.0, 2 * batch * float((weight * chunks).sum()) / turns) if unlike else 1.0
    experts = 0.0
    if costs.experts is not None:
        tokens = ranks * engine.slots * (1 + costs.drafts)
        touched = 1 - (1 - costs.experts.active / costs.experts.experts) ** tokens
        experts = costs.experts.all_s * (touched + mixed * (1 - touched))
    slope = (1 - mixed) * costs.context_s + mixed * costs.mixed_context_s
    together: float = batch  # requests in a step
    if stage == "prefill":
        together = min(batch, max(1.0, FILLED * room * turns / float((weight * computed).sum())))
    uneven = None
    if ranks > 1:
        _, longer = _longer(costs, engine, ranks, prompt)
        uneven = Uneven.of(longer, batch / turns * weight * chunks)
        experts += uneven.rest_s
    ways = []
    for charged in (False, True) if stage == "both" else (stage == "decode",):
        fixed = costs.fixed_s + experts + (0.0 if charged else costs.prompt_step_s)
        work = _decode_s(costs, prompt, output, slope)
        if stage != "decode":
            work = work + _prompt_s(costs, engine, prompt, charged, cached)
        if uneven is not None:
            work = work + uneven.paid_s(chunks, longer)
        each = float((weight * work).sum()) / turns
        ways.append((fixed + together * each, fixed, each, charged))
    # What is the same but for rounding is paid by chunks.
    step, fixed, each, charged = ways[-1] if ways[-1][0] <= ways[0][0] * (1 + 1e-9) else ways[0]
    load = busy = 1 - fixed / step
    wait = mean_wait = burst = queued = 0.0
    part = 1.0
    if stage != "decode":
        occupied = _prompt_s(costs, engine, prompt, charged, cached) + computed / room / ranks * step
        turn, (all_per_s, dispersion) = float((weight * occupied).sum()), stream
        served_per_s = load / (turns * each)  # its time over the work of a request
        part = min(1.0, served_per_s / all_per_s)
        burst = turn * (dispersion - 1) * part
        wait = waits * ranks * turn * (batch if stage == "prefill" else 1)
        mean_wait = wait if engine.bursts == "none" else wait / _most_of_mean(engine.quantile)
        others = float((weight * occupied * (ranks * occupied + burst)).sum()) / (2 * mean_wait)
        queued = served_per_s * (turn + others)
        if stage == "prefill":  # its crowd is a queue's
            busy = min(load, turn / (turn + others))
    size = prompt + (0 if stage == "prefill" else output / 2) + costs.drafts
    lasting = weight * lasts * size
    typical = float((lasting * size).sum() / lasting.sum())
    unused = max(0.0, kv_tokens - batch * float(lasting.sum()) / turns)
    crowd = _crowd(engine.quantile, batch, busy)
    limits = {
        "time": load,
        "running requests": ranks * _mean_below(engine.slots, busy),
        "KV tokens": ranks * typical * _mean_below(kv_tokens / typical, busy),
    }
    if stage != "decode":
        limits |= {"prompt tokens of a step": ranks * FILLED * room, "waiting of prompts": 1.0}
        if mixed < 1:
            limits["chunks of a step"] = mixed
    if stage != "both":
        limits["network for KV caches"] = 1.0
    token = max(step, fixed + each * min(crowd, ranks * engine.slots)) / costs.tokens
    return Level(
        costs, steps.later, engine, kv_tokens, fixed, step, token, charged, wait, mean_wait, burst, queued, slope,
        limits, stage, sent, part, unused, None, ranks, uneven,
    )  # fmt: skip


def _most_of_mean(quantile: float) -> float:
    """Largest ratio of the quantile of a wait to its mean, where P(wait > x) = ρ·exp(−ρx/mean), over ρ ≤ 1."""
    best = minimize_scalar(lambda rho: -math.log(rho / (1 - quantile)) / rho, bounds=(1e-3, 1.0), method="bounded",
                           options={"xatol": 1e-12})  # fmt: skip
    return max(1.0, -float(best.fun), math.log(1 / (1 - quantile)))


def _prompt_s(
    costs: StepCosts, engine: Continuous, prompt: Array, charged: bool, cached: Array | float
) -> Array:  # fmt: skip
    chunk = engine.chunk(costs.drafts)
    earlier = np.broadcast_to(cached, prompt.shape)
    chunks = np.ceil((prompt - earlier) / chunk)
    share, width = (0.0, math.inf) if costs.window is None else (costs.window.pair_share, costs.window.tokens)

    def looked_at(tokens: Array) -> Array:
        found: Array = (tokens**2 - share * np.maximum(tokens - width, 0.0) ** 2) / 2
        return found

    pairs = looked_at(prompt) - looked_at(earlier)
    again = np.zeros_like(prompt)
    for i in range(int(chunks.max(initial=0.0))):
        again += np.where(i < chunks, costs.seen(earlier + i * chunk), 0.0)
    own = costs.prompt_token_s * (prompt - earlier) + costs.prompt_pair_s * pairs + costs.prompt_context_s * again
    found: Array = own + (costs.prompt_step_s * chunks if charged else 0.0)
    return found


def _longer(costs: StepCosts, engine: Continuous, ranks: int, prompt: Array) -> tuple[Array, Array]:
    """Chunks of prompts, and seconds that each is longer where one rank has it than in an even share of all."""
    chunks = np.ceil(prompt / engine.chunk(costs.drafts))
    alone = _prompt_s(costs, engine, prompt, False, 0.0) - costs.prompt_expert_s * prompt
    return chunks, (ranks * alone - alone) / chunks


def _steps_after(costs: StepCosts, output: Array) -> Array:
    """Steps that make the tokens after the first, in the mean."""
    return np.array([steps_after(each, costs.drafts, costs.tokens) for each in output.tolist()])


def _decode_s(costs: StepCosts, prompt: Array, output: Array, slope_s: float) -> Array:
    n, g = _steps_after(costs, output), costs.tokens
    contexts = n * prompt + g * n * (n - 1) / 2
    if costs.window is not None:  # less what lies before the window in those layers that have one
        beyond = prompt - costs.window.tokens
        inside = np.clip(np.ceil(-beyond / g), 0.0, n)
        contexts = contexts - costs.window.share * (
            (n - inside) * beyond + g * (n * (n - 1) - inside * (inside - 1)) / 2
        )  # fmt: skip
    found: Array = costs.decode_request_s * n + slope_s * contexts
    return found


def _above(count: float, mean: float, load: float) -> float:
    """P(N ≥ count) where N₀/(1 − load) = mean: negative binomial with r = N₀/load + 1."""
    return float(betainc(max(count, 1e-12), mean * (1 - load) / load + 1, load))


def _mean_below(most: float, load: float) -> float:
    """The largest mean crowd that reaches `most` with probability 0.5 % at most; 0: none."""
    if _above(most, 0.0, load) > FULL:
        return 0.0
    if _above(most, most, load) <= FULL:
        return most
    return float(brentq(lambda mean: _above(most, mean, load) - FULL, 0.0, most, xtol=1e-10 * most))


def _crowd(quantile: float, mean: float, load: float) -> float:
    """The crowd exceeded with probability 1 − quantile, from mean, variance and skewness (Cornish and Fisher)."""
    r, odds = mean * (1 - load) / load + 1, load / (1 - load)
    z = float(ndtri(quantile))
    variance, skewed = r * odds * (1 + odds), 1 + 2 * odds  # the latter is skewness times standard deviation
    return r * odds + math.sqrt(variance) * z + skewed * (z * z - 1) / 6


def may_let_in(of: Level, running: float) -> set[int]:
    """The values of max_num_seqs that a plan may state where so many requests run on an engine in its busiest bin."""
    limit, mean = of.engine.slots, running / of.ranks
    if of.stage == "prefill":
        return {limit}
    seldom = min(limit, math.ceil(_crowd(1 - FULL, max(mean, 1.0), 1.0 - of.fixed_s / of.step_s)))
    return {min(limit, max(math.ceil(factor * seldom), math.ceil(mean) if factor != 1 else 0)) for factor in LET_IN}


# ------------------------------------------------------------------------------------------ what is taken over time


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
        total: Array = area[i] + begun[i] * rest + inside * rest**2 / 2
        return total

    a = bin_s * np.arange(len(x) + 2, dtype=np.float64)
    found: Array = (
        integral(a + bin_s - since_s) - integral(a - since_s) - integral(a + bin_s - until_s) + integral(a - until_s)
    ) / bin_s
    return found


def growing_between(x: Array, since_s: float, until_s: float, bin_s: float) -> Array:
    """The same of what every start grows to 1, from `since_s` after it to `until_s`.

    It is the mean over s of those that started between `until_s` and s before, which is quadratic in s between
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


def taken(
    of: Level, prompt: Array, output: Array, x: Array, bin_s: float, since_s: float = 0.0,
    cached: Array | float = 0.0,
) -> dict[str, Array]:  # fmt: skip
    """What requests of these lengths, started along x, take of one resource after the other; bins and two more.

    They come to this engine `since_s` after their start.
    """
    first, rest = of.first_s(prompt, cached), of.gone_s(prompt, output)
    if of.stage == "prefill":
        output = 0 * output
    to_first, to_last = float(first.mean()), float((first + rest).mean())
    beside = prompt + of.costs.drafts
    held = float((first * beside + rest * (beside + output / 2)).mean())
    flat = to_first * prompt.mean() + (to_last - to_first) * (prompt.mean() + output.mean() / 2)
    prompts = started_between(x, since_s, since_s + to_first, bin_s)
    runs = started_between(x, since_s, since_s + to_last, bin_s)
    decoding = to_last - to_first
    kv = prompt.mean() * runs + output.mean() * growing_between(x, since_s + to_first, since_s + to_last, bin_s)
    decode = float(of.decode_s(prompt, output).mean()) / decoding if decoding > 0 else 0.0
    found = {
        "time": prompts * float(of.prompt_s(prompt, cached).mean()) / to_first + (runs - prompts) * decode,
        "running requests": runs,
        "KV tokens": kv * held / flat,
    }
    if of.stage != "decode":
        own, computed = of.occupies_s(prompt, cached), prompt - cached
        chunks = np.ceil(computed / of.engine.chunk(of.costs.drafts))
        waiting = own + own * (of.ranks * own + of.burst_s) / (2 * of.mean_wait_s)
        found |= {
            "prompt tokens of a step": prompts * computed.mean() * of.step_s / to_first,
            "waiting of prompts": prompts * float(waiting.mean()) / to_first,
            "chunks of a step": prompts * float(chunks.mean()) * of.step_s / to_first,
        }
    if of.sent is not None:
        used = float(of.sent.bytes_of(prompt).mean()) / (of.sent.link.most_used * of.sent.net_bytes_per_s)
        moving = (runs - prompts) / decoding if of.stage == "prefill" else prompts / to_first
        found["network for KV caches"] = moving * used
    return found
