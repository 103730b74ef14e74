"""Engines that batch continuously, as configurations: a level's step, what it takes, and what requests take of it.

A configuration carries a *level*: the step time t at which, in the mean over the model's requests, `batch` of them run,

    t = a₀ + batch·Σ W / Σ steps          (t̄ = a₀/(1 − ρ), ρ = λW, and Little's law, batch = λ·steps·t̄)

with W the seconds that a request adds to its steps over its life and steps = its chunks m + its output tokens − 1. The
engine keeps to t as long as no more comes in than these capacities of one engine allow (`RESOURCES`, derived in
`serving.continuous`):

    time      Σ W           ≤ 1 − a₀/t, a share of every second
    requests  running       ≤ C, the mean crowd that seldom (0.5 %) reaches max_num_seqs
    memory    KV tokens     ≤ M, the mean that seldom fills the cache
    tokens    of prompts    ≤ 0.9 of a step's room beside running requests
    prompts   chunks a step ≤ f, the share of steps that carry a prompt, where contexts or experts cost more in these
    waiting   Σ (s² + (I − 1)·s̄·s)·w/2ω + Σ s ≤ 1 second a second, s what a prompt occupies the prefill for: prompts
              wait ω/w in the mean

With `Continuous.bursts` ω is the wait at the quantile asked for, w its most over the mean: of a wait that is positive
with probability ρ and then exponential, the quantile q is ln(ρ/(1 − q))/ρ means, at most 1/(e(1 − q)). Without, w = 1
and I = 1. The waiting row is Pollaczek and Khinchine's W = Σλs²/2(1 − Σλs) ≤ ω/w where I = 1, Poisson arrivals. Of
others the work that comes in a window has the variance Var(s) + I·s̄² a request in place of E[s²], I being the index of
dispersion of how many come (variance over mean), and W is that over 2(1 − Σλs) in heavy traffic. An engine that gets
the share p of a stream sees 1 + p(I − 1) of its I if requests are dealt at random (in turn: less); p is what it serves
at its level, batch/(t·Σ steps) a second, over all that come of the model.

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
from optmodels.latency.steps import StepCosts
from optmodels.serving.continuous import TOKENS_FILLED, Coefficients, crowd_allowed, crowd_quantile

Array = npt.NDArray[np.float64]
RESOURCES = ("time", "requests", "memory", "tokens", "prompts", "waiting")
SELDOM = 0.995  # a crowd that is exceeded by one in 200 is what max_num_seqs lets in
BELOW_ONE = 1.0 - 1e-12  # a share of steps at which `Coefficients.step_fixed_s` leaves prompt_step out
TIME, REQUESTS, MEMORY, TOKENS, PROMPTS, WAITING = range(len(RESOURCES))


@dataclass(frozen=True)
class Lengths:
    """Prompt and output tokens of a model's requests that can be held, each as often as `weight` says; (n,) each.

    All of the model's come at a mean rate with an index of dispersion (variance over mean of how many come at a time).
    """

    prompt: Array
    output: Array
    weight: Array
    requests_per_s: float = np.inf
    dispersion: float = 1.0


@dataclass(frozen=True)
class Engine:
    """One engine at a level.

    Attributes:
        costs: of its steps, with the safety asked for.
        later: first tokens take so many times as long as these say.
        limits: of the engine.
        kv_tokens: that its cache holds.
        crowd_s: work of a running request in a step, in the mean.
        fixed_s: a₀.
        charged: every chunk pays what a step that carries prompts costs in addition; else a₀ has it. The cheaper one.
        mixed: f.
        step_s: t.
        pace_s: of a step after the first token, as promised: t at the quantile of the crowd that the limits ask for.
        wait_s: ω, one of `Continuous.wait_levels` times the mean s.
        mean_wait_s: ω/w: what prompts may wait in the mean.
        burst_s: (I − 1)·s̄ of the requests that it gets.
        capacity: (R,) of `RESOURCES`; ∞: no limit.
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
    capacity: Array

    @classmethod
    def at(
        cls, steps: Steps, limits: Continuous, kv_tokens: float, lengths: Lengths, batch: int, waits: float
    ) -> Engine:  # fmt: skip
        """The engine at the level at which `batch` requests run, and wait for `waits` prompts, in the mean."""
        c = Coefficients.of(steps.costs)
        k = steps.costs.drafts
        chunks, decodes = np.ceil(lengths.prompt / limits.chunk(k)), c.rounds(lengths.output - 1)
        run = float(lengths.weight @ (chunks + decodes))
        # Twice the share of the mean mixture, so that times with more prompts have room.
        often = min(1.0, 2.0 * batch * float(lengths.weight @ chunks) / run)
        mixed = often if steps.costs.experts is not None or c.mixed_context_s > c.context_s else 1.0

        def level(charged: bool) -> tuple[float, float, float, bool]:
            fixed = float(c.step_fixed_s(limits.max_num_seqs, min(mixed, BELOW_ONE)))
            fixed += 0.0 if charged else steps.costs.prompt_step_s
            prompts = _prompt_work(c, limits, charged, lengths.prompt)
            each = float(lengths.weight @ (prompts + c.decode_work_s(lengths.prompt, lengths.output, mixed))) / run
            return fixed + batch * each, fixed, each, charged

        step, fixed, crowd_s, charged = min(level(True), level(False))
        load = np.array(1.0 - fixed / step)
        # Never above the crowd that the engine lets in, nor below the mean.
        crowd = float(crowd_quantile(limits.quantile, np.array(batch * (1.0 - load)), load))
        pace = max(step, fixed + crowd_s * min(crowd, limits.max_num_seqs))
        size = lengths.prompt + lengths.output / 2 + k
        held = lengths.weight * (chunks + decodes) * size  # token-steps
        typical = float(held @ size) / float(held.sum())
        capacity = np.array([
            load, crowd_allowed(np.array(float(limits.max_num_seqs)), load),
            typical * crowd_allowed(np.array(kv_tokens / typical), load), TOKENS_FILLED * limits.room(k),
            mixed if mixed < 1.0 else np.inf, 1.0,
        ])  # fmt: skip
        prompts = _prompt_work(c, limits, charged, lengths.prompt)
        turn = float(lengths.weight @ (lengths.prompt * step / limits.room(k) + prompts))
        part = min(1.0, batch / (run * step) / lengths.requests_per_s)
        burst = part * (lengths.dispersion - 1.0) * turn
        mean = waits * turn / (1.0 if limits.bursts is None else _longest_wait(limits.quantile))
        return cls(
            steps.costs, steps.later, limits, kv_tokens, crowd_s, fixed, charged, mixed, step, pace, waits * turn, mean,
            burst, capacity,
        )  # fmt: skip

    @property
    def token_s(self) -> float:
        """Of a token after the first, as promised."""
        return self.pace_s / self.costs.tokens

    @cached_property
    def _of(self) -> Coefficients:
        return Coefficients.of(self.costs)

    def chunks(self, prompt: Array) -> Array:
        """m: steps that a prompt takes."""
        found: Array = np.ceil(prompt / self.limits.chunk(self.costs.drafts))
        return found

    def prompt_work_s(self, prompt: Array) -> Array:
        """Seconds that prompts add to their steps."""
        return _prompt_work(self._of, self.limits, self.charged, prompt)

    def decode_work_s(self, prompt: Array, output: Array) -> Array:
        """Seconds that the output tokens after the first add to theirs."""
        return self._of.decode_work_s(prompt, output, self.mixed)

    def first_s(self, prompt: Array) -> Array:
        """From the start to the first token."""
        own = (0.5 + self.chunks(prompt)) * self.step_s + self.prompt_work_s(prompt) + self.costs.request_s
        return self.later * (own + self.wait_s)

    def waits(self, prompt: Array) -> Array:
        """What prompts take of a second that may make others wait `mean_wait_s` in the mean, seconds."""
        s = prompt * self.step_s / self.limits.room(self.costs.drafts) + self.prompt_work_s(prompt)
        return s + s * (s + self.burst_s) / (2 * self.mean_wait_s)

    def rest_s(self, output: Array) -> Array:
        """From the first token to the last."""
        return self._of.rounds(output - 1.0) * self.pace_s

    def lets_in(self, running: float) -> int:
        """max_num_seqs of an engine on which so many run in the mean of its busiest bin: crowds are seldom larger."""
        load = np.array(1.0 - self.fixed_s / self.step_s)
        crowd = float(crowd_quantile(SELDOM, np.array(max(running, 1.0) * (1.0 - load)), load))
        return min(self.limits.max_num_seqs, int(np.ceil(crowd)))


def _longest_wait(quantile: float) -> float:
    """w: the quantile of the wait over its mean, at most, and 1 at least."""
    above = 1.0 - quantile
    return max(1.0, 1.0 / (math.e * above) if math.e * above < 1.0 else -math.log(above))


def _prompt_work(c: Coefficients, limits: Continuous, charged: bool, prompt: Array) -> Array:
    chunk = limits.chunk(int(c.drafts))
    return c.prefill_work_s(prompt, 0.0, np.full(prompt.shape, float(chunk)), float(charged))


# ------------------------------------------------------------------------------ what a request takes over its bins


@dataclass(frozen=True)
class Taken:
    """What requests take of an engine at its level, in the mean of each class; (K,) each.

    Attributes:
        first_s: to the first token.
        service_s: to the last.
        prompt_work_s, decode_work_s: added to steps.
        prompt_tokens, chunks: to prefill.
        waits: of a second in which prompts may wait ω.
        kv_token_s: token-seconds of KV.
        output_tokens: to decode.
    """

    first_s: Array
    service_s: Array
    prompt_work_s: Array
    decode_work_s: Array
    prompt_tokens: Array
    chunks: Array
    waits: Array
    kv_token_s: Array
    output_tokens: Array

    @classmethod
    def by(cls, e: Engine, prompt: Array, output: Array, klass: npt.NDArray[np.int64], classes: int) -> Taken:
        """Means over requests by class (0 where a class has none)."""
        count = np.maximum(np.bincount(klass, minlength=classes), 1)

        def mean(values: Array) -> Array:
            found: Array = np.bincount(klass, values, classes) / count
            return found

        first, rest = e.first_s(prompt), e.rest_s(output)
        return cls(
            mean(first), mean(first + rest), mean(e.prompt_work_s(prompt)), mean(e.decode_work_s(prompt, output)),
            mean(prompt), mean(e.chunks(prompt)), mean(e.waits(prompt)),
            mean((first + rest) * (prompt + e.costs.drafts) + rest * output / 2), mean(output),
        )  # fmt: skip

    def shares(self, e: Engine, k: int, bin_s: float) -> Array:
        """(R, L) mean share of each capacity that a start of class k takes, in its bin and those after it."""
        first, service = float(self.first_s[k]), float(self.service_s[k])
        bins = bins_of(service, bin_s)
        until_first, until_last = held(first, bin_s, bins), held(service, bin_s, bins)
        after = until_last - until_first
        rest = service - first
        kv = self.prompt_tokens[k] * until_last + self.output_tokens[k] * growing(first, service, bin_s, bins)
        whole = first * self.prompt_tokens[k] + rest * (self.prompt_tokens[k] + self.output_tokens[k] / 2)
        taken = np.array([
            until_first * (self.prompt_work_s[k] / first) + after * (self.decode_work_s[k] / rest if rest > 0 else 0.0),
            until_last,
            kv * (self.kv_token_s[k] / whole),
            until_first * (self.prompt_tokens[k] * e.step_s / first),
            until_first * (self.chunks[k] * e.step_s / first),
            until_first * (self.waits[k] / first),
        ])  # fmt: skip
        found: Array = taken / e.capacity[:, None]
        found[found <= LEAST] = 0.0
        return found
