"""Engines that batch continuously, as configurations: a level's step, what it takes, and what requests take of it.

A configuration carries a *level*: the step time t at which, in the mean over the model's requests, `batch` of them run,

    t = a₀ + batch·Σ W / Σ steps          (t̄ = a₀/(1 − ρ), ρ = λW, and Little's law, batch = λ·steps·t̄)

with W the seconds that a request adds to its steps over its life and steps = its chunks m + its output tokens − 1. The
engine keeps to t as long as no more comes in than these capacities of one engine allow (`RESOURCES`, derived in
`engine.continuous`):

    time      Σ W           ≤ 1 − a₀/t, a share of every second
    requests  running       ≤ C, the mean crowd that seldom (0.5 %) reaches max_num_seqs
    memory    KV tokens     ≤ M, the mean that seldom fills the cache
    tokens    of prompts    ≤ 0.9 of a step's room beside running requests
    prompts   chunks a step ≤ f, the share of steps that carry a prompt, where contexts or experts cost more in these
    waiting   Σ (s² + (I − 1)·s̄·s)·w/2ω + Σ s ≤ 1 second a second, s what a prompt occupies the prefill for: prompts
              wait ω/w in the mean

ω is the wait at the quantile asked for, w its most over the mean: of a wait that is positive with probability ρ and
then exponential, the quantile q is ln(ρ/(1 − q))/ρ means, at most 1/(e(1 − q)). With `Continuous.bursts` none ω is the
mean, w = 1, and I = 1. The waiting row is Pollaczek and Khinchine's W = Σλs²/2(1 − Σλs) ≤ ω/w where I = 1, Poisson. Of
others the work that comes in a window has the variance Var(s) + I·s̄² a request in place of E[s²], I being the index of
dispersion of how many come (variance over mean), and W is that over 2(1 − Σλs) in heavy traffic. An engine that gets
the share p of a stream sees 1 + p(I − 1) of its I if requests are dealt at random (in turn: less); p is what it serves
at its level, batch/(t·Σ steps) a second, over all that come of the model.

With prefill and decode apart (`stage`) an engine does one part of its requests. One that prefills has no decodes in its
steps, of its `batch` prompts as many in one as there is room for, and keeps a cache until it is sent; one that decodes
has no prompts, and a request joins at the end of the step in which its cache has come. Sending and receiving take
`link`, of every second what is planned of the engine's share of its server's network.

Where the prefix cache has the head of a prompt (prefixes.py), only the rest is prefilled, behind it: it alone counts in
W, chunks and what occupies the prefill; KV and contexts are of the whole prompt.

An engine of D data-parallel attention ranks takes one step with all of them: batch, limits and cache are of each, so
that ν = D·batch/Σ steps requests come in a step. A rank has 1/D of the requests, of which each keeps it for D·s. A step
waits for the busiest rank outside the experts, and so for its longest chunk (`Busiest`, S10 of `engine.continuous`).

A request gets its first token ω + (½ + m)·t + (work of its prompt) after its start and one every t' from then on (with
speculation 1 + a of them, `optmodels.latency.speculation`), t'
being the step beside a crowd at the quantile asked for (`Continuous.quantile`); its prompt's work, tokens and chunks
are spread over the time to the first token, its decodes' work over the rest; it runs from its start on, and its KV
grows from its prompt to all its tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from formulations.orchestration.busy import LEAST, bins_of, growing, held
from formulations.orchestration.problem import Continuous
from formulations.orchestration.rates import Steps
from optmodels.engine.continuous import TOKENS_FILLED, Coefficients, Stage, crowd_allowed, crowd_quantile
from optmodels.engine.stages import Link, cache_bytes
from optmodels.latency.memory import Drafts
from optmodels.latency.steps import StepCosts
from optmodels.latency.work import LayerWork

Array = npt.NDArray[np.float64]
RESOURCES = ("time", "requests", "memory", "tokens", "prompts", "waiting", "link")
SELDOM = 0.995  # a crowd that is exceeded by one in 200 is what max_num_seqs lets in
SAME = 1.0 + 1e-9
TIME, REQUESTS, MEMORY, TOKENS, PROMPTS, WAITING, LINK = range(len(RESOURCES))


@dataclass(frozen=True)
class Lengths:
    """Prompt and output tokens of a model's requests that can be held, each as often as `weight` says; (n,) each.

    All of the model's come at a mean rate with an index of dispersion (variance over mean of how many come at a time).
    `cached`: tokens at the heads of prompts that the prefix cache has.
    """

    prompt: Array
    output: Array
    weight: Array
    requests_per_s: float = np.inf
    dispersion: float = 1.0
    cached: Array | float = 0.0


@dataclass(frozen=True)
class Transfer:
    """How an engine of one stage sends or receives KV caches.

    Attributes:
        work, drafts: of the model's layers and of what drafts for them, which say the bytes of a cache.
        net_bytes_per_s: its share of the server's network.
        link: how much of it is planned, and what a transfer takes besides.
    """

    work: LayerWork
    net_bytes_per_s: float
    link: Link
    drafts: Drafts | None = None

    def seconds(self, prompt: Array, latency: bool) -> Array:
        """Of the caches of prompts beside others; with `latency` what a transfer takes besides."""
        found: Array = self.gigabytes(prompt) * 1e9 / (self.net_bytes_per_s * (1.0 - self.link.most_used))
        return found + (self.link.latency_s if latency else 0.0)

    def share_s(self, prompt: Array) -> Array:
        """What it takes of a second of the network's planned share."""
        found: Array = self.gigabytes(prompt) * 1e9 / (self.net_bytes_per_s * self.link.most_used)
        return found

    def gigabytes(self, prompt: Array) -> Array:
        """Of the caches of prompts."""
        found: Array = cache_bytes(self.work, prompt, self.drafts) / 1e9
        return found


@dataclass(frozen=True)
class Busiest:
    """What chunks of prompts cost because steps wait for the rank with the longest of them: ∫ 1 − e^(−Λ(z)) dz a step.

    With Λ(z) chunks a step that are longer than z by chance. Its tangent at the level's own requests charges a chunk
    that is x longer ∫_0^x e^(−Λ) dz and a₀ the rest.

    Attributes:
        longer_s: x of the level's requests, ascending from 0 on: seconds of a chunk over its even share, (n + 1,).
        paid_s: what each of their chunks pays.
        rest_s: what a₀ has.
    """

    longer_s: Array
    paid_s: Array
    rest_s: float

    @classmethod
    def at(cls, longer_s: Array, chunks: Array) -> Busiest:
        """Of requests whose chunks are so much longer and come so many in a step, (n,) each."""
        order = np.argsort(longer_s)
        x = np.append(0.0, longer_s[order])
        more = np.cumsum(chunks[order][::-1])[::-1]  # Λ up to each x
        width, none = np.diff(x), np.exp(-more)
        rest = float(width @ (1.0 - (1.0 + more) * none))
        return cls(x, np.append(0.0, np.cumsum(width * none)), rest)

    def pays_s(self, longer_s: Array) -> Array:
        """Of a chunk that is so much longer, for all steps of its; beyond the level's longest it pays all of that."""
        beyond = np.maximum(longer_s - self.longer_s[-1], 0.0)
        found: Array = np.interp(longer_s, self.longer_s, self.paid_s) + beyond
        return found


EVEN = Busiest(np.zeros(1), np.zeros(1), 0.0)


@dataclass(frozen=True)
class Engine:
    """One engine at a level.

    Attributes:
        costs: of its steps, with the safety asked for.
        later: first tokens take so many times as long as these say.
        limits: of the engine.
        kv_tokens: that its cache holds, that of each rank.
        crowd_s: work of a running request in a step, in the mean.
        fixed_s: a₀.
        charged: every chunk pays what a step that carries prompts costs in addition; else a₀ has it. The cheaper one.
        mixed: f.
        step_s: t.
        pace_s: of a step after the first token, as promised: t at the quantile of the crowd that the limits ask for.
        wait_s: ω, one of `Continuous.wait_levels` times the mean D·s; `batch` times that of an engine that prefills.
        mean_wait_s: ω/w: what prompts may wait in the mean.
        burst_s: (I − 1)·s̄ of the requests that it gets.
        queued: what all its requests take of the waiting row, at the rate of its level.
        part: p.
        idle_kv_tokens: of the cache, what its requests leave in the mean.
        capacity: (R,) of `RESOURCES`; ∞: no limit.
        stage: of its requests that it does.
        transfer: of caches, where that is one of them.
        ranks: D.
        busiest: what chunks pay where there are several ranks.
    """

    costs: StepCosts
    later: float
    limits: Continuous
    kv_tokens: float
    crowd_s: float
    fixed_s: float
    charged: bool
    mixed: float
    step_s: float
    pace_s: float
    wait_s: float
    mean_wait_s: float
    burst_s: float
    queued: float
    part: float
    idle_kv_tokens: float
    capacity: Array
    stage: Stage = "both"
    transfer: Transfer | None = None
    ranks: int = 1
    busiest: Busiest = EVEN

    @classmethod
    def at(
        cls, steps: Steps, limits: Continuous, kv_tokens: float, lengths: Lengths, batch: int, waits: float,
        stage: Stage = "both", transfer: Transfer | None = None, ranks: int = 1,
    ) -> Engine:  # fmt: skip
        """The engine at the level at which in the mean `batch` requests run on each rank, and wait for `waits` prompts.

        Of one that only decodes some request has to have more than one token of output.
        """
        c = Coefficients.of(steps.costs)
        k, running, most = steps.costs.drafts, ranks * batch, ranks * limits.slots
        fills, decoding = float(stage != "decode"), float(stage != "prefill")
        new = lengths.prompt - lengths.cached
        chunks = fills * np.ceil(new / limits.chunk(k))
        decodes = decoding * c.rounds(lengths.output - 1)
        run = float(lengths.weight @ (chunks + decodes))
        # Twice the share of the mean mixture, so that times with more prompts have room.
        often = min(1.0, 2.0 * running * float(lengths.weight @ chunks) / run)
        at_once = float(running)
        if stage == "prefill":  # as many prompts as a step has room for; the others wait
            room = TOKENS_FILLED * limits.room(k) * run / float(lengths.weight @ new)
            at_once = min(at_once, max(1.0, room))
        mixed = often if steps.costs.experts is not None or c.mixed_context_s > c.context_s else 1.0
        longer = _longer(c, limits, ranks, lengths.prompt, lengths.cached)
        busiest = EVEN if ranks == 1 else Busiest.at(longer, running / run * lengths.weight * chunks)
        waiting = chunks * busiest.pays_s(longer)

        def level(charged: bool) -> tuple[float, float, float, bool]:
            fixed = float(c.step_fixed_s(most, mixed)) + busiest.rest_s
            fixed += 0.0 if charged else steps.costs.prompt_step_s
            prompts = fills * _prompt_work(c, limits, charged, lengths.prompt, lengths.cached) + waiting
            decoded = decoding * c.decode_work_s(lengths.prompt, lengths.output, mixed)
            each = float(lengths.weight @ (prompts + decoded)) / run
            return fixed + at_once * each, fixed, each, charged

        # Every step of an engine that prefills carries a prompt, and none of one that decodes does.
        ways = {"both": (True, False), "prefill": (False,), "decode": (True,)}[stage]
        some = [level(way) for way in ways]
        # By chunks where both are the same but for rounding, as where every step carries a prompt.
        step, fixed, crowd_s, charged = some[-1] if some[0][0] > some[-1][0] * SAME else some[0]
        load = np.array(1.0 - fixed / step)
        occupied = new * step / (ranks * limits.room(k))
        occupied = occupied + fills * _prompt_work(c, limits, charged, lengths.prompt, lengths.cached)
        turn = float(lengths.weight @ occupied)
        wait = fills * waits * ranks * turn * (batch if stage == "prefill" else 1)
        rate = at_once / (run * step)
        part = min(1.0, rate / lengths.requests_per_s)
        burst = part * (lengths.dispersion - 1.0) * turn
        mean_wait = wait / (1.0 if limits.bursts == "none" else _longest_wait(limits.quantile))
        others = float(lengths.weight @ (occupied * (ranks * occupied + burst))) / (2.0 * mean_wait) if fills else 0.0
        if stage == "prefill":  # its crowd is a queue's, as busy as the waits allow, not that of decodes
            load = np.minimum(load, turn / (turn + others))
        # Never above the crowd that the engine lets in, nor below the mean.
        crowd = float(crowd_quantile(limits.quantile, np.array(running * (1.0 - load)), load))
        pace = max(step, fixed + crowd_s * min(crowd, most))
        size = lengths.prompt + decoding * lengths.output / 2 + k
        held = lengths.weight * (chunks + decodes) * size  # token-steps
        typical = float(held @ size) / float(held.sum())
        idle = max(0.0, kv_tokens - batch * float(held.sum()) / run)
        capacity = np.array([
            1.0 - fixed / step, ranks * crowd_allowed(np.array(float(limits.slots)), load),
            ranks * typical * crowd_allowed(np.array(kv_tokens / typical), load),
            ranks * TOKENS_FILLED * limits.room(k), mixed if 0.0 < mixed < 1.0 else np.inf, 1.0, 1.0,
        ])  # fmt: skip
        return cls(
            steps.costs, steps.later, limits, kv_tokens, crowd_s, fixed, charged, mixed, step, pace, wait, mean_wait,
            burst, rate * (turn + others), part, idle, capacity, stage, transfer, ranks, busiest,
        )  # fmt: skip

    @property
    def token_s(self) -> float:
        """Of a token after the first, as promised."""
        return self.pace_s / self.costs.tokens

    @cached_property
    def _of(self) -> Coefficients:
        return Coefficients.of(self.costs)

    def chunks(self, prompt: Array, cached: Array | float = 0.0) -> Array:
        """m: steps that a prompt takes."""
        found: Array = np.ceil((prompt - cached) / self.limits.chunk(self.costs.drafts))
        return found if self.stage != "decode" else np.zeros_like(prompt)

    def prompt_work_s(self, prompt: Array, cached: Array | float = 0.0) -> Array:
        """Seconds that prompts add to their steps."""
        waiting = self.busiest.pays_s(self._longer_s(prompt, cached))
        return self._even_s(prompt, cached) + self.chunks(prompt, cached) * waiting

    def _even_s(self, prompt: Array, cached: Array | float) -> Array:
        """The same where ranks are as busy as each other."""
        if self.stage == "decode":
            return np.zeros_like(prompt)
        return _prompt_work(self._of, self.limits, self.charged, prompt, cached)

    def _longer_s(self, prompt: Array, cached: Array | float) -> Array:
        """x: seconds of each chunk over its even share."""
        return _longer(self._of, self.limits, self.ranks, prompt, cached)

    def decode_work_s(self, prompt: Array, output: Array) -> Array:
        """Seconds that the output tokens after the first add to theirs."""
        if self.stage == "prefill":
            return np.zeros_like(prompt)
        return self._of.decode_work_s(prompt, output, self.mixed)

    def first_s(self, prompt: Array, cached: Array | float = 0.0) -> Array:
        """From the start to the first token; where engines only decode, from a cache's leaving to the first step."""
        if self.stage == "decode":
            assert self.transfer is not None
            return self.transfer.seconds(prompt, latency=False) + self.step_s + self.costs.request_s
        chunks = self.chunks(prompt, cached)
        own = (0.5 + chunks) * self.step_s + self._even_s(prompt, cached)
        own = own + chunks * np.maximum(self._longer_s(prompt, cached) - self.busiest.rest_s, 0.0)
        return self.later * (own + self.costs.request_s + self.wait_s)

    def waits(self, prompt: Array, cached: Array | float = 0.0) -> Array:
        """What prompts take of a second that may make others wait `mean_wait_s` in the mean, seconds."""
        if self.stage == "decode":
            return np.zeros_like(prompt)
        room = self.ranks * self.limits.room(self.costs.drafts)
        s = (prompt - cached) * self.step_s / room + self._even_s(prompt, cached)
        return s + s * (self.ranks * s + self.burst_s) / (2 * self.mean_wait_s)

    def after_s(self, prompt: Array, output: Array) -> Array:
        """From there until a request leaves the engine: with its last token, or with its cache."""
        if self.stage == "prefill":
            assert self.transfer is not None
            return self.transfer.seconds(prompt, latency=True)
        return self.rest_s(output)

    def rest_s(self, output: Array) -> Array:
        """From the first token to the last."""
        return self._of.rounds(output - 1.0) * self.pace_s

    def lets_in(self, running: float) -> int:
        """max_num_seqs of each rank, where so many run on the engine in the mean of its busiest bin; seldom more."""
        if self.stage == "prefill":
            return self.limits.slots
        load = np.array(1.0 - self.fixed_s / self.step_s)
        crowd = float(crowd_quantile(SELDOM, np.array(max(running / self.ranks, 1.0) * (1.0 - load)), load))
        return min(self.limits.slots, int(np.ceil(crowd)))


def _longest_wait(quantile: float) -> float:
    """w: the quantile of the wait over its mean, at most, and 1 at least."""
    above = 1.0 - quantile
    return max(1.0, 1.0 / (math.e * above) if math.e * above < 1.0 else -math.log(above))


def _prompt_work(
    c: Coefficients, limits: Continuous, charged: bool, prompt: Array, cached: Array | float
) -> Array:  # fmt: skip
    chunk = np.full(prompt.shape, float(limits.chunk(int(c.drafts))))
    return c.prefill_work_s(prompt - cached, cached, chunk, float(charged))


def _longer(c: Coefficients, limits: Continuous, ranks: int, prompt: Array, cached: Array | float) -> Array:
    """x: seconds of a prompt's chunks, in the mean over them, over their even share among the ranks."""
    if ranks == 1:
        return np.zeros_like(prompt)
    new = prompt - cached
    outside_experts = _prompt_work(c, limits, False, prompt, cached) - c.prompt_expert_s * new
    found: Array = (ranks - 1) * outside_experts / np.ceil(new / limits.chunk(int(c.drafts)))
    return found


# ------------------------------------------------------------------------------ what a request takes over its bins


@dataclass(frozen=True)
class Taken:
    """What requests take of an engine at its level, in the mean of each class or of those that start; (K,) each.

    Attributes:
        first_s: to the first token.
        service_s: to the last.
        prompt_work_s, decode_work_s: added to steps.
        new_tokens, chunks: to prefill.
        waits: of a second in which prompts may wait ω.
        kv_token_s: token-seconds of KV.
        prompt_tokens: with those that the prefix cache has.
        output_tokens: to decode.
        kv_gb, link_s: of a prompt's cache; of a second of the network's planned share. 0 where no cache is sent.
    """

    first_s: Array
    service_s: Array
    prompt_work_s: Array
    decode_work_s: Array
    new_tokens: Array
    chunks: Array
    waits: Array
    kv_token_s: Array
    prompt_tokens: Array
    output_tokens: Array
    kv_gb: Array
    link_s: Array

    @classmethod
    def by(
        cls, e: Engine, prompt: Array, output: Array, klass: npt.NDArray[np.int64], classes: int,
        cached: Array | float = 0.0,
    ) -> Taken:  # fmt: skip
        """Means over requests by class (0 where a class has none)."""
        count = np.maximum(np.bincount(klass, minlength=classes), 1)

        def mean(values: Array) -> Array:
            found: Array = np.bincount(klass, values, classes) / count
            return found

        first, rest = e.first_s(prompt, cached), e.after_s(prompt, output)
        x, nothing = e.transfer, np.zeros_like(prompt)
        kv, link = (nothing, nothing) if x is None else (x.gigabytes(prompt), x.share_s(prompt))
        output = output if e.stage != "prefill" else np.zeros_like(output)
        return cls(
            mean(first), mean(first + rest), mean(e.prompt_work_s(prompt, cached)),
            mean(e.decode_work_s(prompt, output)), mean(prompt - cached), mean(e.chunks(prompt, cached)),
            mean(e.waits(prompt, cached)),
            mean((first + rest) * (prompt + e.costs.drafts) + rest * output / 2), mean(prompt), mean(output),
            mean(kv), mean(link),
        )  # fmt: skip

    def shares(self, e: Engine, k: int, bin_s: float, since_s: float = 0.0) -> Array:
        """(R, L) mean share of each capacity that a start of class k takes, in its bin and those after it.

        It comes to this engine `since_s` after its start: from another, where prefill and decode are apart.
        """
        first, service = float(self.first_s[k]), float(self.service_s[k])
        bins = bins_of(since_s + service, bin_s)
        until_first, until_last = held(since_s + first, bin_s, bins), held(since_s + service, bin_s, bins)
        if since_s > 0:
            before = held(since_s, bin_s, bins)
            until_first, until_last = until_first - before, until_last - before
        after = until_last - until_first
        rest = service - first
        grown = growing(since_s + first, since_s + service, bin_s, bins)
        kv = self.prompt_tokens[k] * until_last + self.output_tokens[k] * grown
        whole = first * self.prompt_tokens[k] + rest * (self.prompt_tokens[k] + self.output_tokens[k] / 2)
        link = after / rest if e.stage == "prefill" else until_first / first
        taken = np.array([
            until_first * (self.prompt_work_s[k] / first) + after * (self.decode_work_s[k] / rest if rest > 0 else 0.0),
            until_last,
            kv * (self.kv_token_s[k] / whole),
            until_first * (self.new_tokens[k] * (e.step_s if e.stage != "decode" else 0.0) / first),
            until_first * (self.chunks[k] * e.step_s / first),
            until_first * (self.waits[k] / first),
            link * self.link_s[k],
        ])  # fmt: skip
        found: Array = taken / e.capacity[:, None]
        found[found <= LEAST] = 0.0
        return found
