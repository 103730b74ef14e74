"""Operating points of engines with continuous batching: the rates one instance can take, as linear constraints.

A step's seconds are additive over the requests in it (`latency.steps`): t = a₀ + Σ work. Let idle time be steps of
a₀ alone. Over a time T with n steps T = n·a₀ + T·Σ λ_w W_w, whatever the schedule, so that with ρ = Σ_w λ_w W_w the
mean step is

    t̄ = a₀ / (1 − ρ)                                                                                         (S1)

Where a share P₀ of the time is idle the steps that there are last a₀/(1 − ρ/(1 − P₀)). No request sees that mean: one
that runs sees the concurrency by the clock, and one that arrives waits for the end of a step only if there is one.

An operating point is an instance at a *level*: a step time t it is planned for and a mean wait ω before prefill. What
rates λ keep to the level is linear, one row a capacity (`ROWS`); `Points.load` has the rows divided by their right
sides, so that Σ_w load[k, …, w]·λ_w ≤ 1 for each k.

    time      Σ λ W           ≤ 1 − a₀/t                                                                    (S2)
    running   Σ λ·steps·t     ≤ C,  the largest mean concurrency with P(N ≥ max_num_seqs) ≤ `engine.most_full`    (S3)
    memory    Σ λ·t·κ         ≤ M,  so that P(KV ≥ its tokens) ≤ `engine.most_full`                         (S4)
    tokens    Σ λ·u·t         ≤ β·B, `engine.most_filled` of the prompt tokens that a step has room for     (S5)
    chunks    Σ λ·m·t         ≤ φ, the share of steps that carry a prompt                                   (S6)
    waiting   Σ λ (s²/2ω + s) ≤ 1  ⟺  Pollaczek–Khinchine's mean wait Σλs²/(2(1 − Σλs)) ≤ ω                 (S7)

with u the prompt tokens that no prefix cache has, m = ⌈u/B⌉ chunks, steps = m + S_out − 1 and s the time that a prompt
keeps others from prefill.

*Concurrency.* With Poisson arrivals the running requests are a birth–death chain with rates λ and n/(steps·(a₀ + cn)),
where c = ρ/(λ·steps): N ~ NegBin(N₀/ρ + 1, 1 − ρ) with N₀ = λ·steps·a₀, so that P(N ≥ k) = I_ρ(k, N₀/ρ + 1). It grows
with N₀ and with ρ, hence the bound at the level's ρ = 1 − a₀/t holds below it. *KV* is a compound of it: its variance
is at most Σ n_w E[K_w²]/(1 − ρ), and mean + z·√v ≤ mean + z·(v/σ + σ)/2 for every σ > 0, which is linear; z and σ are
such that it is exact where every request is as large as the mean one (weighted by size).

*Prefill* is one server: while prompts wait every step has B tokens of them and lasts a₀ + D + their work, D being the
decodes' δ·t with δ = Σ λ·decode. So s = u/B·(a₀ + δt) + prefill, and with U = Σ λ·u·t/B

    Σ λs = U·a₀/t + U·δ + Σ λ·prefill,   U·δ ≤ ρ(1 − v)²·U + (ρv²/γ)·δ   for each 0 ≤ v ≤ 1

where γU ≤ Σ λ·prefill: tight on γU + δ = ρ at γU = vρ, and below that line because the left side is quadratic. v is
the mixture's share of prefill; in s² and in quantiles δ is ρ times the class's own share of decodes or the mixture's.

*Stages.* An engine that only prefills has requests of one output token and a prompt in every step (φ = 1); one that
only decodes has no prompts, S6 and S7: its requests join with their KV cache at the end of a step. Either holds that
cache while it is on its way, too.

*Steps that carry prompts.* Of x = Σ λ·m·t chunks a step those that fill theirs take U = Σ λ·u·t/B steps, and others
share theirs at random, so that the share of steps with a prompt is

    1 − (1 − U)e^(−y)  ≤  U + 1 − e^(−y)  ≤  U + e^(−y₀)·y + 1 − (1 + y₀)e^(−y₀),   y = x − U, for each y₀ ≥ 0      (S8)

A request pays `prompt_step` for U + e^(−y₀)·y of its own, and a₀ has the rest, with the mixture's y₀ at full
load; or a₀ has everything where the mixture could be more then, as where most steps carry a prompt.

*a₀* holds the terms that are no sum over requests, at their largest. Where experts or a slope of contexts depend on
prompts, φ bounds the steps that have them (S6): a₀ then has the experts that the level's largest concurrency touches,
and all of them in the share φ of the steps; contexts cost the mean of both slopes. So t̄ ≤ t for all rates within the
rows, idle time being steps without prompts: (S6) counts all steps, and (S8), concave in U and y, allows of more steps
no fewer prompts.

*Speculation.* An engine with k draft tokens gives a decoding request g = 1 + a tokens a step (`latency.speculation`),
so that S_out − 1 of them take R = ⌈(S_out − 1)/g⌉ steps in place of S_out − 1, over contexts S_in + g·j, j < R, with k
more tokens in the cache and in the step's budget. It is the mean acceptance that counts: requests whose draft tokens
are accepted more or less often than others' are not distinguished.

*Ranks.* An engine of D data-parallel attention ranks (experts spread over all of them) sends a request to the least
busy one; `max_num_seqs`, B and the longest chunk belong to each, and a step is one step of every rank. So U = Σ
λ·u·t/(D·B); of slots, KV tokens and prompt tokens a rank has as much as an engine and 1/D of the requests (a share's
concurrency is spread no wider than N at the level's ρ). A rank is one server for its share of the prompts, and each
takes D·s of its time:

    Σ λ (D·s²/2ω + s) ≤ 1                                                                                   (S9)

and a prompt's own steps carry other ranks' prompts, too. A step waits for the busiest rank at every layer but the
experts (`StepCosts.step_of_ranks`): a chunk alone in its step makes it longer by x, D − 1 times its work outside the
experts, and several by no more than the longest of them while ranks are as many. With y_w of class w a step, at random,

    E[max] = ∫ 1 − e^(−Λ(z)) dz,   Λ(z) = Σ y_w·[x_w > z],                                                 (S10)

concave in y: its tangent at the mixture's full load charges a chunk ∫_0^x e^(−Λ₀(z)) dz and a₀ has the rest,
∫ 1 − (1 + Λ₀(z))e^(−Λ₀(z)) dz. Decodes, evenly spread over the ranks, count as even.

*Waiting for a place.* S3 and S4 keep requests from waiting for a slot or for KV cache. They may wait as for prefill. An
engine that is told to run n = ⌊min(max_num_seqs, KV/largest request)⌋ at a time on a rank preempts none, and one that
is full serves a request every

    s = steps·a₀/(n·D) + W

seconds, and later by ω_p·a₀/(t·n·D) where requests hold their places for a wait ω_p for prefill besides, so that
b = Σ λs is the used share of its service capacity. The birth–death chain above with a geometric queue of
ratio b finds n running with a probability F(b) that grows with b. Of its ρ and N₀ = (b − ρ)n it is largest where ρ is
least, Σλs·min W/s. Who waits does so for θ = (1 − 1/(2√n))·D·max s/(1 − b) in the mean, all as long as the
longest, which lies between M/D/1 at n = 1 and M/M/n at many, and exponentially: by ω in the mean over all, and at
quantiles as waits for prefill, with

    Σ λs ≤ b,   b the largest with F(b)·θ(b) ≤ ω, θ(b) ≤ (1 + most/2)·ω, b ≤ `engine.most_used`              (S12)

in place of S3 and S4. A level's wait is then divided: few turns of the longest prompt for prefill (`TURNS`), the rest
for places.

*Few decode steps.* The n decode steps of a short answer are each long, with a prompt, or short: no concurrency's mean.
The prompts that came after it until its last step are prefilled in them, as in a queue served in order,

    μ = Σλ·(n·t + m·b + p + w),   b a step next to prompts, w = Σλs²/2(1 − Σλs) the wait of its own prompt,

counted as Poisson many equal prompts of p̂ = Σλp²/Σλp, each followed by those that come in its own time, and these by
others: their number is generalised Poisson (Consul and Jain 1973). With K_q its quantile, TPOT is at most

    a₀ + `MARGIN`·d·N_q + min(J, p of a step full of prompts),                                              (S11)
    J = `MARGIN`·max(K_q·p̂, (μp̂ + z√μ·p̂ + (z² − 1)/6·max p)/(1 − Σλp))/n

with d the decode work of a running request in a step, and Σλp, Σλp², Σλs, Σλs² the largest of any mixture. It counts
where it is more than the concurrency's form, in full up to `FEW` steps and less and less until twice as many.

The mean has a form for few steps, too. If all requests are like this one and a step has all work that came in the one
before, a step s is followed by one of t + ρ(s − t) in the mean, and Var s = t·ρW/(1 − ρ²). A request comes in a step
that is Var s/t longer than t, and its prompt's step is p + ρ²W/(1 − ρ²) longer. In the steps that follow ρ, ρ², … of
that are left. So TPOT is in the mean, counted as (S11),

    t + d/(1 − ρ) + (ρ − ρⁿ⁺¹)/(1 − ρ)·(p + ρ²W/(1 − ρ²))/n                                                   (S16)

*Bursts.* Where arrivals are more uneven than Poisson's, with an index of dispersion I (variance over mean of how many
come in a window), the work that comes in it has the variance E[s²] + (I − 1)s̄² a request in place of E[s²]. An engine
that gets the share p of a stream whose index is I₀ sees I = 1 + p(I₀ − 1) if requests are dealt at random:

    Σ λ (s(D·s + (I − 1)·s̄)/2ω + s) ≤ 1                                                                     (S13)

*Whole requests.* A deadline is for the last token. The tails of the wait and of the concurrency are seldom met at
once, so that E2E at a quantile q is the mean and the root of the sum of squares of their additions to their own means,

    E2E_q = TTFT + D + √((TTFT_q − TTFT)² + (D_q − D)²),   D = R·(a₀ + c)/(1 − ρ) …,   D_q = R·(a₀ + c·N_q)     (S14)

with c the mixture's work in a step and R the steps of its decodes: a prediction at the level's load, no bound.

*Time between tokens.* A step with prompts is a pause that all who decode feel. Let only requests of one class v come,
with the largest share P of the time for their prompts and chunks of p seconds at most. Of the chunks that come in one
step, and in the steps that these prolong, a step has K: negative binomial, mean P·g/p with g the mean step that the
mixture's tokens see, variance over mean 1/(1 − P²) as in a branching process with immigration. Over tokens N is
weighted by itself. So a share q of the times between tokens is at most

    a₀ + `MARGIN`·d·N_q + max_v {(1 − e)·`prompt_step`·[K > 0] + min(`MARGIN`·p·K_q', full)},   q' = (1 + q)/2     (S15)

with e the part of `prompt_step` in a₀ and full the work of a step full of prompts. Of few decode steps, counted as in
(S11), the first follows the step of the request's own prompt: what comes in the steps before is more, by (S16) in
g + ρʲ(p + ρ²W/(1 − ρ²)) before step j, and K has any of these means. `engine.between` has the law at given rates. With
draft tokens a step makes several tokens at once, and there is one pause before them. An engine that only decodes has no
prompts; a request's first pause there is until it joins.

*Quantiles* that a level bounds are the formulas of `Points.ttft_s` and `Points.tpot_s`; those at given rates are
`predict`'s. ``benchmarks/continuous.py`` checks both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from optmodels.arrays import Array, Index, Mask
from optmodels.catalog.types import Architecture, Entry
from optmodels.engine.between import BetweenTokens
from optmodels.latency.adapters import Lora
from optmodels.latency.resolve import llm_name
from optmodels.latency.speculation import Speculation, steps_for
from optmodels.latency.steps import StepCosts, attended_pairs
from optmodels.limits import Limit
from optmodels.units import PositiveFraction, PositiveInt, Seconds, Tokens

Stage = Literal["both", "prefill", "decode"]
ROWS = ("time", "running", "memory", "tokens", "chunks", "waiting")
TIME, RUNNING, MEMORY, TOKENS, CHUNKS, WAITING = range(len(ROWS))
OVERFLOW = 0.005  # default of `engine.most_full`
TOKENS_FILLED = 0.9  # default of `engine.most_filled`
MOST_LOAD = 0.95  # default of `engine.most_load`
# docs/certificate.md has the effect and the fit of each of these constants.
MORE_PROMPTS = 3.0  # default of `engine.more_prompts`: φ of a level over the mixture's own
LEAST_ROOM = 16.0  # prompt tokens a step, next to its decodes, at least
MOST_OF_WAIT = (4.0, math.inf)  # a request whose s exceeds this many ω does not use the point: others would wait for it
MARGIN = 1.15  # on concurrency in quantiles of TPOT: prompts come in bursts, mixtures may be heavier than planned
FEW = 8  # decode steps of a request in which prompts are counted one by one
SPACING = 1.5  # of ρ/(1 − ρ) from a level to the next
FINE = (16, 4)  # parts of that spacing: loads at which best levels of few classes, and of more, may be
FEW_CLASSES = 4
LEAST_LOAD = 0.01  # default of `engine.least_load`
HALVINGS = 12  # of the step between two levels, to find the best one
PLACE_HALVINGS = 32  # of a load, to find the one at which requests wait for a place as long as planned
TURNS = (1.0, 4.0)  # of the longest prompt, that the mean wait for prefill may last where requests wait for places
LONGEST_WAIT_S = 30.0  # default of `engine.longest_wait_s`
UNLIMITED_WAIT_S = 2.0**30  # where it is dropped: the row of waiting is at its limit s to 10⁻⁹
BUSIEST_PLACES = 0.95  # default of `engine.most_used`
FEWEST_SEQS, MOST_SEQS = 256, 2048  # the plan's choice of max_num_seqs: doubled from one to the other
QUANTILES = (0.5, 0.9, 0.95, 0.99)
CROWDS = 24  # equally likely ones that TTFT is averaged over
LEAST_RPS = 1e-12  # requests/s of an instance below which, to rounding, a request is alone
BUSIEST = 0.95  # share of time that prompts keep others from prefill, in quantiles at given rates
# TTFT of a level at a quantile: first·t + own·(m·t + prefill) + waits·(quantile of the wait)
TTFT_FORM = {0.9: (0.75, 1.2, 1.05), 0.95: (0.82, 1.15, 1.06), 0.99: (0.98, 0.97, 1.09)}


def ttft_form(quantile: float | None) -> tuple[float, float, float]:
    """Coefficients of TTFT at a quantile; between the values of `TTFT_FORM` linear in −ln(1 − quantile).

    None is the mean; it represents the median too, which lies below the mean of a right-skewed distribution.
    """
    if quantile is None or quantile <= 0.5:
        return 0.5, 1.0, 1.0
    at = [-math.log(1.0 - q) for q in TTFT_FORM]
    here = -math.log(1.0 - min(quantile, 1.0 - 1e-12))
    first, own, waits = (float(np.interp(here, at, column)) for column in zip(*TTFT_FORM.values(), strict=True))
    return first, own, waits


def _of_engines(default: float) -> Callable[[Any, Any], float | None]:
    """The value of an absent key, where there are engines that it limits."""
    return lambda problem, _: default if getattr(problem, "serving", None) == "continuous" else None


class EngineLimits(Entry):
    """Limits of the engine's iterations; vLLM's names."""

    max_num_seqs: PositiveInt | None = Field(
        default=None,
        description="most running requests; a plan may give an engine fewer, which its KV cache holds whole; default: "
        "the plan decides, the least of 256, 512, … up to most_num_seqs that restricts nothing else",
    )
    most_num_seqs: Annotated[
        Annotated[PositiveInt, Field(ge=FEWEST_SEQS)] | None,
        Limit("largest choice of max_num_seqs", "most", off=65536, implied=_of_engines(MOST_SEQS)),
    ] = Field(default=None, description="largest max_num_seqs that a plan chooses; default: 2048")
    longest_wait_s: Annotated[
        Seconds | None, Limit("longest mean wait", "most", "s", off=math.inf, implied=_of_engines(LONGEST_WAIT_S))
    ] = Field(
        default=None,
        description="longest mean queueing delay that a plan counts on, before prefill and for a slot or KV cache, "
        "however relaxed the limits on TTFT and E2E; default: 30 s",
    )
    most_used: Annotated[
        Annotated[PositiveFraction, Field(lt=1)] | None,
        Limit("largest use of slots and KV cache", "most", "%", top=0.99, implied=_of_engines(BUSIEST_PLACES)),
    ] = Field(
        default=None,
        description="largest utilisation of slots or KV cache where requests wait for them; default: 0.95",
    )
    most_load: Annotated[
        Annotated[PositiveFraction, Field(lt=1)] | None,
        Limit("largest load of an engine", "most", "%", top=0.99, implied=_of_engines(MOST_LOAD)),
    ] = Field(default=None, description="largest utilisation of an engine; default: 0.95")
    least_load: Annotated[
        Annotated[PositiveFraction, Field(ge=1e-6, le=0.5)] | None,
        Limit("smallest load of an engine", "least", "%", off=1e-6, implied=_of_engines(LEAST_LOAD)),
    ] = Field(
        default=None,
        description="share of the time that an engine works on requests at the shortest iteration that is planned for:"
        " a shorter one meets a tighter limit on TPOT and carries next to nothing; default: 0.01",
    )
    more_prompts: Annotated[
        Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)] | None,
        Limit(
            "iterations that carry a prompt",
            "most",
            "× those of the planned requests",
            off=1e6,
            either=True,
            implied=_of_engines(MORE_PROMPTS),
        ),
    ] = Field(
        default=None,
        description="share of iterations that carry a prompt, at most, over that of the planned requests together:"
        " more allows engines for other requests, and makes iterations longer; where experts or contexts cost more"
        " beside prompts; default: 3",
    )
    most_filled: Annotated[
        Annotated[PositiveFraction, Field(lt=1)] | None,
        Limit("largest use of a step's prompt tokens", "most", "%", top=0.99, implied=_of_engines(TOKENS_FILLED)),
    ] = Field(
        default=None,
        description="largest mean share of an iteration's prompt tokens that prompts fill; default: 0.9",
    )
    most_full: Annotated[
        Annotated[PositiveFraction, Field(le=0.05)] | None,
        Limit("time that slots or KV cache are full", "most", "%", top=0.05, implied=_of_engines(OVERFLOW)),
    ] = Field(
        default=None,
        description="largest probability that all slots, or all KV cache, are taken where the plan counts on no wait "
        "for them; default: 0.005",
    )
    max_num_batched_tokens: Tokens = Field(
        default=8192, description="most tokens of an iteration; a plan may give an engine fewer"
    )
    chunk_tokens: Tokens | None = Field(
        default=None, description="most tokens of one prompt in an iteration; default: no limit"
    )
    speculation: tuple[Speculation, ...] = Field(
        default=(), description="speculative decoding, at most one entry a model"
    )
    lora: Lora | None = Field(default=None, description="LoRA adapters of every engine")

    @model_validator(mode="after")
    def _room_for_prompts(self) -> Self:
        drafts = max((s.drafts for s in self.speculation), default=0)
        least = self.max_num_seqs or FEWEST_SEQS
        if self.max_num_batched_tokens < least * (1 + drafts) + LEAST_ROOM:
            each = f" × {1 + drafts} (a token and its drafts)" if drafts else ""
            raise ValueError(f"max_num_batched_tokens at least max_num_seqs{each} + {LEAST_ROOM:g}: room for prompts")
        return self

    @model_validator(mode="after")
    def _each_model_once(self) -> Self:
        models = [s.model for s in self.speculation]
        if len(set(models)) < len(models) or (None in models and len(models) > 1):
            raise ValueError("speculation of a model once, and alone where it is every model's")
        return self

    @property
    def slots(self) -> int:
        """Requests that run at a time: max_num_seqs, or the least that a plan chooses."""
        return self.choices[0] if self.max_num_seqs is None else self.max_num_seqs

    @property
    def choices(self) -> tuple[int, ...]:
        """Every max_num_seqs that a plan may choose, ascending: the file's, or doubled while a step has room for it.

        A larger `most_num_seqs` adds choices and drops none. A file's own number is a setting and no limit: of two
        engines told different numbers neither does all that the other one does.
        """
        if self.max_num_seqs is not None:
            return (self.max_num_seqs,)
        drafts = max((s.drafts for s in self.speculation), default=0)
        most, room = self.most_num_seqs or MOST_SEQS, int((self.max_num_batched_tokens - LEAST_ROOM) // (1 + drafts))
        found, n = list[int](), FEWEST_SEQS
        while n <= min(most, room):
            found.append(n)
            n *= 2
        return (*found, room) if room < n <= most and room not in found else tuple(found)

    def choosing(self, max_num_seqs: int) -> Self:
        """The same with the least of its choices that lets in this many requests, or the most of them."""
        least = next((n for n in self.choices if n >= max_num_seqs), self.choices[-1])
        return self.model_copy(update={"max_num_seqs": least})

    @property
    def wait_s(self) -> float:
        """Longest mean wait; a longer one than `UNLIMITED_WAIT_S` lets no more requests in."""
        return LONGEST_WAIT_S if self.longest_wait_s is None else min(self.longest_wait_s, UNLIMITED_WAIT_S)

    @property
    def busiest(self) -> float:
        """Largest b of (S12)."""
        return BUSIEST_PLACES if self.most_used is None else self.most_used

    @property
    def load(self) -> float:
        """Largest ρ of a level."""
        return MOST_LOAD if self.most_load is None else self.most_load

    @property
    def least(self) -> float:
        """Smallest ρ of a level."""
        return LEAST_LOAD if self.least_load is None else self.least_load

    @property
    def prompts_over(self) -> float:
        """φ of (S6) over the mixture's own."""
        return MORE_PROMPTS if self.more_prompts is None else self.more_prompts

    @property
    def filled(self) -> float:
        """β of (S5)."""
        return TOKENS_FILLED if self.most_filled is None else self.most_filled

    @property
    def overflow(self) -> float:
        """Probability of (S3) and (S4)."""
        return OVERFLOW if self.most_full is None else self.most_full

    def room_beside(self, crowd: Array | float, drafts: Array | float) -> Array:
        """Prompt tokens of a step next to a token of each running request, and its draft tokens."""
        running = np.minimum(crowd, self.slots)
        return np.maximum(self.max_num_batched_tokens - running * (1.0 + drafts), LEAST_ROOM)

    def chunk_beside(self, crowd: Array | float, drafts: Array | float) -> Array:
        """Tokens of one prompt in such a step."""
        return np.minimum(self.room_beside(crowd, drafts), self.chunk_tokens or np.inf)

    def speculates(self, model: Architecture) -> Speculation | None:
        """How engines of a model speculate, None where they do not."""
        return next((s for s in self.speculation if s.model in (None, llm_name(model), model.title)), None)


class Percentile(Entry):
    """A latency limit that a share of the requests meets."""

    at_most: Seconds = Field(description="the limit")
    percentile: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = Field(
        description="share of the requests that meet it"
    )


LatencyLimit = Seconds | Percentile


FEWER_TOKENS = "try fewer engine.max_num_batched_tokens: iterations with prompts get shorter, first tokens later"


def latency_limit(name: str, off: float | None = math.inf) -> Limit:
    """How explanations name and loosen a `LatencyLimit`; `off` is its value where there is none."""
    advice = FEWER_TOKENS if name == "ITL" else ""
    return Limit(name, "most", "s", off=off, inner="at_most", detail=" (percentile {percentile:g})", advice=advice)


def seconds_and_quantile(limit: LatencyLimit | None) -> tuple[float, float | None]:
    """A limit's seconds, infinite without one, and the quantile that it bounds; None: the mean."""
    if limit is None:
        return math.inf, None
    return (limit.at_most, limit.percentile) if isinstance(limit, Percentile) else (limit, None)


@dataclass(frozen=True)
class Classes:
    """Request classes; shape (W,) unless stated otherwise.

    Attributes:
        input_tokens: S_in.
        output_tokens: (W, J): equally likely S_out ≥ 1 of each class; J = 1: its mean alone.
        cached: share h of the prompt that the prefix cache has.
        weight: requests/s or any multiple: the mixture that constants of a level (never its safety) are chosen for.
    """

    input_tokens: Array
    output_tokens: Array
    cached: Array
    weight: Array

    @classmethod
    def of(
        cls, input_tokens: npt.ArrayLike, output_tokens: npt.ArrayLike, *, cached: float | Array = 0.0,
        weight: float | Array = 1.0,
    ) -> Classes:  # fmt: skip
        """Classes by their mean output, (W,), or by equally likely outputs, (W, J)."""
        inputs = np.asarray(input_tokens, dtype=float)
        outputs = np.asarray(output_tokens, dtype=float)
        full = np.ones_like(inputs)
        return cls(inputs, outputs if outputs.ndim == 2 else outputs[:, None], full * cached, full * weight)

    def __len__(self) -> int:
        return len(self.input_tokens)

    @property
    def new_tokens(self) -> Array:
        """u: prompt tokens to prefill; at least the last one."""
        return np.maximum(self.input_tokens * (1.0 - self.cached), 1.0)

    def output_at(self, quantile: float | None) -> Array:
        """Output tokens at a quantile (None: the mean), (W,)."""
        if quantile is None:
            return self.output_tokens.mean(axis=1)
        at = max(math.ceil(quantile * self.output_tokens.shape[1] - 1.0), 0)
        return np.sort(self.output_tokens, axis=1)[:, at]


# ------------------------------------------------------------------------------------------ the work of a request


@dataclass(frozen=True)
class Coefficients:
    """The coefficients of one deployment (scalars) or of P, shape (P, 1, 1), to broadcast with (levels, classes)."""

    fixed_s: Array
    prompt_step_s: Array
    prompt_token_s: Array
    prompt_pair_s: Array
    prompt_context_s: Array
    decode_request_s: Array
    context_s: Array
    mixed_context_s: Array
    request_s: Array
    experts_s: Array
    untouched: Array  # 1 − k/E
    window_share: Array
    window_tokens: Array
    pair_share: Array
    drafts: Array
    tokens: Array
    prompt_expert_s: Array  # of `prompt_token_s`

    @classmethod
    def stack(cls, costs: Sequence[StepCosts]) -> Coefficients:
        """Of P deployments."""

        def column(values: list[float]) -> Array:
            return np.array(values, dtype=float).reshape(-1, 1, 1)

        named = [n for n in cls.__dataclass_fields__ if n in StepCosts.__dataclass_fields__]
        return cls(
            **{n: column([getattr(c, n) for c in costs]) for n in named},
            experts_s=column([0.0 if c.experts is None else c.experts.all_s for c in costs]),
            untouched=column([0.0 if c.experts is None else 1 - c.experts.active / c.experts.experts for c in costs]),
            window_share=column([0.0 if c.window is None else c.window.share for c in costs]),
            window_tokens=column([np.inf if c.window is None else c.window.tokens for c in costs]),
            pair_share=column([0.0 if c.window is None else c.window.pair_share for c in costs]),
        )

    @classmethod
    def of(cls, costs: StepCosts) -> Coefficients:
        """Of one deployment, as scalars."""
        stacked = cls.stack([costs])
        return cls(**{n: getattr(stacked, n)[0, 0, 0] for n in cls.__dataclass_fields__})

    @property
    def least_fixed_s(self) -> Array:
        """a₀ of a step in which one request decodes."""
        return self.step_fixed_s(1.0, 0.0)

    @property
    def largest_fixed_s(self) -> Array:
        """a₀ of a step with a prompt that touches every expert."""
        return self.step_fixed_s(np.inf, 1.0) + self.prompt_step_s

    def step_fixed_s(self, decoding: Array | float, mixed: Array | float) -> Array:
        """A step's fixed seconds with this many decoding requests, where the share `mixed` of steps has prompts.

        Every expert counts in a step with a prompt; `prompt_step` is next to.
        """
        touched = 1.0 - self.untouched ** ((1.0 + self.drafts) * np.asarray(decoding, dtype=float))
        share = np.asarray(mixed, dtype=float)
        experts = self.experts_s * ((1.0 - share) * touched + share)
        return self.fixed_s + experts

    def seen_in_progression(self, first: Array, step: Array | float, count: Array) -> Array:
        """Σ_{i < count} of the tokens that attention sees of first + i·step tokens (`StepCosts.seen`)."""
        with np.errstate(invalid="ignore"):
            below = np.where(
                np.isinf(self.window_tokens), count,
                np.clip(np.ceil((self.window_tokens - first) / np.maximum(step, 1e-9)), 0.0, count),
            )  # fmt: skip
            rest = np.where(count > below, (count - below) * self.window_tokens, 0.0)
        everything = count * first + step * count * (count - 1.0) / 2.0
        capped = below * first + step * below * (below - 1.0) / 2.0 + rest
        return self.window_share * capped + (1.0 - self.window_share) * everything

    def prefill_work_s(self, prompt: Array, earlier: Array | float, chunk: Array, charged: Array | float) -> Array:
        """Seconds that a prompt adds to its steps.

        Args:
            prompt: tokens to prefill.
            earlier: tokens before them that the cache has.
            chunk: its tokens in a step.
            charged: share of `prompt_step` charged to each chunk.
        """
        chunks = np.ceil(prompt / np.where(prompt > 0, chunk, 1.0))  # none where all is prefilled elsewhere
        pairs = attended_pairs(prompt, np.asarray(earlier, dtype=float), self.window_tokens, self.pair_share)
        return (
            self.prompt_token_s * prompt + self.prompt_pair_s * pairs + charged * self.prompt_step_s * chunks
            + self.prompt_context_s * self.seen_in_progression(np.asarray(earlier, dtype=float), chunk, chunks)
        )  # fmt: skip

    def rounds(self, decodes: Array) -> Array:
        """Steps that make this many tokens after the first, in the mean; fewer only where draft tokens are accepted."""
        every = np.broadcast_arrays(self.tokens, self.drafts, np.asarray(decodes, dtype=float))
        tokens, drafts, found = every[0], every[1], every[2].copy()
        kinds = {*zip(tokens.ravel().tolist(), drafts.ravel().tolist(), strict=True)} if (tokens > 1.0).any() else ()
        for g, k in kinds:
            if g > 1.0:
                mine = (tokens == g) & (drafts == k)
                found[mine] = steps_for(found[mine], round(k), g)
        return found

    def held(self, prompt: Array, decodes: Array) -> tuple[Array, Array]:
        """Σ over the steps of a request's decodes of the tokens that it holds with its draft tokens, and of their
        squares.
        """
        n, base, g = self.rounds(decodes), prompt + 1.0 + self.drafts, self.tokens
        one = n * base + g * n * (n - 1.0) / 2.0
        two = n * base**2 + g * base * n * (n - 1.0) + g * g * n * (n - 1.0) * (2.0 * n - 1.0) / 6.0
        return one, two

    def decode_work_s(self, prompt: Array, output: Array, mixed: Array | float) -> Array:
        """Seconds that a request's output − 1 decodes add to their steps (the first token is the prefill's).

        Args:
            prompt: all its tokens.
            output: tokens, ≥ 1.
            mixed: share of steps that carry prompts, where a token of context costs `mixed_context_s`.
        """
        slope = self.context_s + (self.mixed_context_s - self.context_s) * mixed
        rounds = self.rounds(output - 1.0)
        return self.decode_request_s * rounds + slope * self.seen_in_progression(prompt, self.tokens, rounds)


# -------------------------------------------------------------------------------------------------------- concurrencies


def crowd_above(count: Array | float, fixed_crowd: Array | float, load: Array | float) -> Array:
    """P(N ≥ count) of the running requests: NegBin(N₀/ρ + 1, 1 − ρ).

    Args:
        count: ≥ 0.
        fixed_crowd: N₀ = λ·steps·a₀, the mean concurrency if steps lasted a₀.
        load: 0 < ρ < 1.
    """
    from optmodels.special import betainc

    return np.asarray(betainc(np.maximum(count, 1e-12), np.asarray(fixed_crowd) / load + 1.0, load))


def crowd_quantile(quantile: float | Array, fixed_crowd: Array, load: Array, besides: Array | float = 0.0) -> Array:
    """The count that N exceeds with probability 1 − quantile, from its first three moments (Cornish–Fisher).

    `besides` is added to its variance.
    """
    from optmodels.special import ndtri

    mean = (fixed_crowd + load) / (1.0 - load)
    spread, skew = np.sqrt(mean / (1.0 - load) + besides), (1.0 + load) / np.sqrt(fixed_crowd + load)
    z = ndtri(quantile)
    return mean + spread * (z + skew * (z * z - 1.0) / 6.0)


def prompts_quantile(quantile: float, came: Array, busy: Array) -> Array:
    """The least count that Poisson many, each followed by others in its own time, stay within.

    P(k) = μ(μ + kρ)^(k−1)·e^(−μ−kρ)/k! (Consul and Jain 1973, eq. 2.1); of means above 30 from its first three moments.

    Args:
        quantile: probability.
        came: μ, mean of the first ones.
        busy: ρ, mean number that follow each at once, below 1.
    """
    from optmodels.special import gammaln, ndtri

    z, (mean, rho) = float(ndtri(quantile)), np.broadcast_arrays(came, busy)
    free = 1.0 - rho
    few = mean <= 30.0 * free
    most = mean / free + z * np.sqrt(mean / free**3) + (1.0 + 2.0 * rho) * (z * z - 1.0) / 6.0 / free**2
    found, k = np.where(few, 0.0, most), 0
    left = np.flatnonzero(few & (np.exp(-mean) < quantile))
    mean, rho = mean.ravel()[left], rho.ravel()[left]
    within = np.exp(-mean)
    while len(left):
        k += 1
        rate = mean + k * rho
        within = within + np.exp(np.log(mean) + (k - 1.0) * np.log(rate) - rate - gammaln(k + 1.0))
        found.ravel()[left] = k
        short = within < quantile
        left, mean, rho, within = (x[short] for x in (left, mean, rho, within))
    return found


def chunks_quantile(quantile: Array | float, mean: Array, busy: Array, most: Array, chance: Array) -> Array:
    """The least K of (S15), or `most` of them if that is less: negative binomial with variance/mean 1/(1 − P²).

    Above a mean of 30 from its first three moments.

    Args:
        quantile: probability.
        mean: mean of K, (…, J): any of J.
        busy: P, below 1, (…).
        most: chunks at which the search may end, (…).
        chance: probability of each of the J, that broadcasts to them.
    """
    from optmodels.special import ndtri

    mean, chance = (np.moveaxis(x, -1, 0) for x in np.broadcast_arrays(np.asarray(mean, dtype=float), chance))
    q, busy, most, largest = (
        np.asarray(x, dtype=float) for x in np.broadcast_arrays(quantile, busy, most, mean.max(axis=0))
    )
    b = np.clip(busy * busy, 1e-12, 1.0 - 1e-12)
    z = ndtri(q)
    found = largest + z * np.sqrt(largest / (1.0 - b)) + (z * z - 1.0) / 6.0 * (1.0 + b) / (1.0 - b)
    found = np.minimum(np.ceil(found), most)
    few = largest <= 30.0
    found[few] = 0.0
    r = np.maximum(mean * (1.0 - b) / b, 1e-300)
    here = np.exp(r * np.log1p(-b))
    left = np.flatnonzero((few & ((chance * here).sum(axis=0) < q) & (most > 0.0)).ravel())
    q, b, most = (x.ravel()[left] for x in (q, b, most))
    r, here, chance = (np.broadcast_to(x, (len(x), *few.shape)).reshape(len(x), -1)[:, left] for x in (r, here, chance))
    within, k = here, 0
    while len(left):
        here = here * (k + r) / (k + 1.0) * b
        within, k = within + here, k + 1
        np.put(found, left, np.minimum(k, most))
        on = ((chance * within).sum(axis=0) < q) & (k < most)
        left, q, b, most = (x[on] for x in (left, q, b, most))
        r, here, within, chance = (x[:, on] for x in (r, here, within, chance))
    return found


def crowd_allowed(most: Array, load: Array, overflow: float = OVERFLOW) -> Array:
    """The largest mean N₀/(1 − ρ) whose P(N ≥ most) ≤ overflow, to 1e-9 and never above; 0 where there is none."""
    from optmodels.special import btdtrib

    found = btdtrib(most, overflow, load)  # N₀/ρ + 1; below 1 or NaN where even N₀ = 0 is too much
    mean: Array = np.fmax(found - 1.0, 0.0) * load / (1.0 - load)
    return mean * (1.0 - 1e-9)  # SciPy's own tolerance


# ---------------------------------------------------------------------------------------------- operating points


@dataclass(frozen=True)
class FewSteps:
    """Prompts of others in the n decode steps of a request, as this many equal ones, (P, L, W) or (P, L, 1).

    Attributes:
        decodes_s: seconds that a running request adds to a step by its decodes, its own kind's or the mixture's.
        prompt_s, heaviest_s: seconds by which a prompt, and the heaviest, prolongs each of the n steps in their mean.
        expected: prompts in them without followers, mean of a Poisson distribution.
        followers: Σλp, mean number that come in a prompt's own time.
        longest_s: seconds by which prompts prolong a step at most: they fill it.
        excess_s: mean seconds by which the step of its own prompt is longer than t (S16).
        mean_s: mean seconds by which prompts make each of the n steps longer than t.
        counts: 1 up to `FEW` steps, 0 from twice as many on, where their sum is a concurrency's, and where no prompts
            come.
    """

    decodes_s: Array
    prompt_s: Array
    heaviest_s: Array
    expected: Array
    followers: Array
    longest_s: Array
    excess_s: Array
    mean_s: Array
    counts: Array

    def prolonged_s(self, quantile: float) -> Array:
        """Seconds by which prompts prolong each of the n steps in their mean, at a quantile."""
        from optmodels.special import ndtri

        z, mean = float(ndtri(quantile)), np.where(self.counts > 0.0, np.minimum(self.expected, 1e9), 0.0)
        skewed = (mean + z * np.sqrt(mean)) * self.prompt_s + (z * z - 1.0) / 6.0 * self.heaviest_s
        counted = np.maximum(
            prompts_quantile(quantile, mean, self.followers) * self.prompt_s, skewed / (1.0 - self.followers)
        )
        return np.minimum(np.where(self.counts > 0.0, MARGIN * counted, 0.0), self.longest_s)


@dataclass(frozen=True)
class Whole:
    """Latencies of each class on a level, seconds, (P, L, W) each.

    Attributes:
        first_s, rest_s: mean time to the first token, and from there to the last.
        ttft_s, e2e_s: time to the first and to the last token at a quantile.
    """

    first_s: Array
    ttft_s: Array
    rest_s: Array
    e2e_s: Array


@dataclass(frozen=True)
class Points:
    """P deployments × L step times, and the loads of W classes on each; `exists` marks the operating points.

    Attributes:
        step_s: t, (P, L).
        exists: (P, L).
        fixed_s: a₀, (P, L).
        chunks: m, (P, L, W).
        prefill_s: seconds that a prompt adds to the steps that carry it, where others pay no `prompt_step` and its rank
            is the busiest, (P, L, W).
        work_s: W: prefill, `prompt_step` and the busiest rank as shared, and decodes, (P, L, W).
        steps: m and its decodes' steps, mean, (P, L, W).
        load: one request/s as a share of each capacity of `ROWS` but waiting, (5, P, L, W); infinite: not on this one.
            Of `placed` slots and memory at the longest waits for places (S12).
        beside_s: length of a step next to its rank's prompts, (P, L, W): with the class's own share of decodes or the
            mixture's.
        turn_s: s, (P, L, W), 0 where engines only decode; `mean_turn_s`: the same in Σ λs.
        crowd_s: c: mean work of a running request in a step, (P, L, W): the class's own or the mixture's by weight,
            whichever is larger. `decode_s`: d, of the class's own decodes, 0 without any.
        following_s: F: work of the prompts that come while a request's is prefilled, (P, L, W).
        left_s, bursts: mean prolongation of its decode steps by these, and the variance that prompts of others
            make in that, at most, s², (P, L, W).
        few: the prompts in a request's decode steps, counted one by one.
        place_s: seconds between two departures of a class while every place is taken, (P, L, W).
        slots: requests that a rank runs at a time, at most, (P, 1, 1); `placed`: they are n of (S12).
        holds: classes that can be on the level, however few at a time, (P, L, W).
        room: prompt tokens of a step of a rank, B, (P, L, 1).
        outside_s: part of `prompt_step` that a₀ lacks, (P, L, 1).
        request_s: seconds of a request outside the steps, (P,).
        of: coefficients of the P deployments.
        ranks: data-parallel attention ranks D, (P, 1, 1).
    """

    classes: Classes
    engine: EngineLimits
    step_s: Array
    exists: Mask
    fixed_s: Array
    chunks: Array
    prefill_s: Array
    work_s: Array
    steps: Array
    load: Array
    beside_s: Array
    turn_s: Array
    mean_turn_s: Array
    crowd_s: Array
    decode_s: Array
    following_s: Array
    left_s: Array
    bursts: Array
    few: FewSteps
    place_s: Array
    slots: Array
    placed: bool
    holds: Mask
    room: Array
    outside_s: Array
    request_s: Array
    of: Coefficients
    ranks: Array

    def spread(self) -> float:
        """How many times as much a level takes of a capacity as any step time up to the next level would, at most.

        A larger t never serves requests faster, so the lower of two levels can serve every request of one between them.
        Of time and chunks it takes less, of slots, KV, tokens and turns more than the lower level: all are monotone in
        t. So no choice of t in the range of the levels needs less than 1/spread of the deployments.
        """
        turns = (self.turn_s**2, self.mean_turn_s)
        rows = np.concatenate([self.load, np.stack(turns)])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = rows[:, :, :-1] / rows[:, :, 1:]
        known = self.exists[:, :-1] & self.exists[:, 1:]
        return float(np.nanmax(np.where(known[None, :, :, None] & np.isfinite(ratio), ratio, 1.0), initial=1.0))

    def take(self, deployment: Index, level: Index) -> Points:
        """Only some levels, each as a deployment of its own, (n, 1)."""

        def some(x: Any) -> Any:
            if not isinstance(x, np.ndarray):
                return x
            rows = level if x.ndim > 1 and x.shape[1] > 1 else np.zeros_like(level)
            return x[deployment] if x.ndim == 1 else x[deployment, rows][:, None]

        of = {n: some(getattr(self, n)) for n in type(self).__dataclass_fields__ if n not in ("few", "of", "load")}
        few = FewSteps(**{n: some(getattr(self.few, n)) for n in FewSteps.__dataclass_fields__})
        coefficients = Coefficients(**{n: some(getattr(self.of, n)) for n in Coefficients.__dataclass_fields__})
        return Points(**of, load=self.load[:, deployment, level][:, :, None], few=few, of=coefficients)

    def waiting(self, wait_s: Array, most: float, burst_s: Array | float = 0.0) -> Array:
        """One request/s as a share of the waiting that a mean wait ω allows (S7, S9), (P, L, V, W).

        Args:
            wait_s: ω > 0, (P, L, V).
            most: value of `MOST_OF_WAIT`. A class that holds prefill up for more than that many ω by itself waits
                infinitely long.
            burst_s: (I − 1)·s̄ of (S13), seconds, to broadcast with ω; 0: Poisson arrivals.
        """
        s, omega, ranks = self.turn_s[:, :, None, :], wait_s[..., None], self.ranks[..., None]
        fits = self.exists[:, :, None, None] & (ranks * s <= most * omega * (1.0 + 1e-12))
        queue = s * (ranks * s + np.asarray(burst_s)[..., None]) / (2.0 * omega)
        return np.where(fits, queue + self.mean_turn_s[:, :, None, :], np.inf)

    def prefill_waits(self, turns: float) -> Array:
        """Mean waits for prefill of this many turns of the longest prompt that can be on a level, (P, L)."""
        longest: Array = (self.ranks * np.where(self.holds, self.turn_s, 0.0)).max(axis=2)
        return turns * longest

    def with_places(self, wait_s: Array, prefill_wait_s: Array, most: float) -> Array:
        """`load` of `placed` where requests wait for one of `slots` by ω in the mean (S12), (5, P, L, V, W).

        Args:
            wait_s: ω, (P, L, V).
            prefill_wait_s: ω of (S7), which they hold their places for, (P, L).
            most: value of `MOST_OF_WAIT`.
        """
        place, slowest, steady = self._places(prefill_wait_s)
        busy = busiest_places(self.slots, steady, self.ranks * slowest, wait_s, most, self.engine.busiest)[..., None]
        found = np.repeat(self.load[:, :, :, None, :], wait_s.shape[2], axis=3)
        with np.errstate(divide="ignore", invalid="ignore"):
            found[[RUNNING, MEMORY]] = np.where(busy > 0.0, place[:, :, None, :] / busy, np.inf)
        return found

    def place_waits(self, prefill_wait_s: Array, most: float, of: Callable[[Array], Array]) -> Array:
        """The least ω with which `with_places` carries rates; infinite where none does, (P, L).

        Args:
            prefill_wait_s: ω of (S7), (P, L).
            most: value of `MOST_OF_WAIT`.
            of: (use of one request/s of each class) → use at the rates, (P, L, W) → (P, L).
        """
        place, slowest, steady = self._places(prefill_wait_s)
        busy = of(place)
        with np.errstate(invalid="ignore"):
            able = (busy <= self.engine.busiest) & (self.slots[..., 0] >= 1.0)
        used, places = np.where(able, busy, 0.0), self.slots[..., 0]
        waits = (1.0 - 0.5 / np.sqrt(np.maximum(places, 1.0))) * (self.ranks * slowest)[..., 0] / (1.0 - used)
        found = np.maximum(waits * chance_of_waiting(places, steady[..., 0], used), waits / (1.0 + most / 2.0))
        return np.where(able, found, np.inf)

    def _places(self, prefill_wait_s: Array) -> tuple[Array, Array, Array]:
        """Seconds between departures while every place is taken: of each class, of the slowest; least share of work."""
        fits = np.isfinite(self.place_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            later = (prefill_wait_s * self.fixed_s / self.step_s)[..., None] / (self.ranks * self.slots)
            place = np.where(fits, self.place_s + later, np.inf)
            slowest = np.where(fits, place, 0.0).max(axis=2, keepdims=True)
            steady = np.where(fits, self.work_s / place, 1.0).min(axis=2, keepdims=True)
        return place, slowest, steady

    def missed(self, per_token_s: Array, at_most_s: Array | float, load: Array | None = None) -> Array:
        """How far a class is beyond its best level, (P, L, W): above 1 where a shorter step serves more of it.

        The larger of its time per token over its limit, and of what it takes of slots, KV cache or prompt tokens over
        its share of time: a longer step takes less of time and more of these. 0 at steps too short to be a level,
        infinite where no request of the class can be on the level. `load`: of mixtures, in place of the classes' own.
        """
        load = self.load if load is None else load
        with np.errstate(divide="ignore", invalid="ignore"):
            room = load[[RUNNING, MEMORY, TOKENS]].max(axis=0) / load[TIME]
            found = np.maximum(per_token_s / at_most_s, room)
        return np.where(self.exists[..., None], np.where(np.isnan(found), np.inf, found), 0.0)

    def tpot_s(self, quantile: float | None) -> Array:
        """Seconds per output token after the first at a quantile (None: the mean), at most, (P, L, W).

        A step of a running request lasts (a₀ + c)/(1 − ρ) in the mean, by Little's law: a₀, its own work c and the
        others' ρ(a₀ + c)/(1 − ρ). While it decodes its own is d. At a quantile a step lasts a₀ + `MARGIN`·c·N_q, with N
        at the level's ρ = 1 − a₀/t, and no more than all slots filled with the heaviest class (by c) that can be there:
        the others may be of it. Either is longer by the residual of a prompt: F = ρ_p·E[prefill²]/E[prefill] of
        work came while it was prefilled, which takes F/(1 − ρ), as others come meanwhile, over its n decode steps. And
        prompts are few and long, so that requests of few tokens differ by more than N does: the time T of n steps is
        n·a₀ + what came in T, whose variance in the mean step is Σλ·prefill²·t/n/(1 − Σλ·prefill)². Both sums are the
        largest of any mixture: Σ λW ≤ ρ, so that they are ρ times the largest prefill²/W and prefill/W of a class that
        can be there. ρ_p of F is prefill's share of the time, and it and F's prompts are the class's own or the
        mixture's. Of few output tokens (`FEW`) the prompts in their steps are counted (S11). Draft tokens make several
        tokens of one. Of one output token there is none.
        """
        each = self._decode_step_s(quantile) * self._steps_per_token
        return np.where(self.classes.output_tokens.max(axis=1) > 1.0, each, 0.0)

    def _decode_step_s(self, quantile: float | None) -> Array:
        if quantile not in self._known:
            self._known[quantile] = self._decode_steps_s(quantile)
        return self._known[quantile]

    @cached_property
    def _known(self) -> dict[float | None, Array]:
        return {}

    def _decode_steps_s(self, quantile: float | None) -> Array:
        fixed, load = self.fixed_s[..., None], (1.0 - self.fixed_s / self.step_s)[..., None]
        seen = fixed, self.crowd_s, self.decode_s, self.left_s, self.bursts, load
        heaviest = np.where(self.holds, self.crowd_s, 0.0).max(axis=2, keepdims=True)
        most = self.ranks * self.slots * np.maximum(heaviest / self.crowd_s, 1.0)
        of_crowd = _tpot(*seen, quantile, most, MARGIN)
        if quantile is None:
            counted = self.step_s[..., None] + self.decode_s / (1.0 - load) + self.few.mean_s
            mean = of_crowd + self.few.counts * np.maximum(counted - of_crowd, 0.0)
            return np.minimum(mean, fixed + self.crowd_s * most + self.left_s) if self.placed else mean
        rho = np.clip(load, 1e-9, 1.0 - 1e-9)
        crowd = crowd_quantile(quantile, rho * fixed / self.crowd_s, rho)
        counted = fixed + MARGIN * self.few.decodes_s * np.clip(crowd, 1.0, most) + self.few.prolonged_s(quantile)
        return of_crowd + self.few.counts * np.maximum(counted - of_crowd, 0.0)

    @property
    def _steps_per_token(self) -> Array:
        """Of output after the first, mean over a class's requests, (P, 1, W); 1 where there is none."""
        decodes = self.classes.output_tokens - 1.0
        each = np.where(decodes > 0, self.of.rounds(decodes.ravel()).reshape(-1, *decodes.shape), 1.0)
        return (each / np.where(decodes > 0, decodes, 1.0)).mean(axis=2)[:, None, :]

    def itl_s(self, quantile: float | Array | None) -> Array:
        """Seconds between two output tokens at a quantile of these times (None: the mean), at most (S15), (P, L, W).

        Of D ranks a step waits for the one with most chunks, each D times its work outside the experts:
        q' = 1 − (1 − q)/2D, with as many chunks as come to one rank.
        """
        mean, several = self._decode_step_s(None), self.classes.output_tokens.max(axis=1) > 1.0
        if quantile is None:
            return np.where(several, mean, 0.0)
        fixed, load = self.fixed_s[..., None], np.clip(1.0 - self.fixed_s / self.step_s, 1e-9, 1.0 - 1e-9)[..., None]
        crowd = crowd_quantile(quantile, load * fixed / self.crowd_s + load, load) + 1.0
        found = fixed + MARGIN * self.few.decodes_s * np.clip(crowd, 1.0, self.ranks * self.slots)
        prefilling = self.chunks > 0.0
        if not prefilling.any():
            return found
        most = float(self.engine.max_num_batched_tokens)
        new, prompt = self.classes.new_tokens, self.classes.input_tokens
        last = np.minimum(new, min(most, self.engine.chunk_tokens or most))
        work = self.of.prefill_work_s(last, prompt - last, last, 0.0)  # of the last chunk, which attends to most
        work = self.ranks * (work - self.of.prompt_expert_s * last) + self.of.prompt_expert_s * last
        decodes = self.steps - self.chunks
        with np.errstate(divide="ignore", invalid="ignore"):
            tokens = self.classes.weight * decodes
            seen = (tokens * mean).sum(axis=2, keepdims=True) / np.maximum(tokens.sum(axis=2, keepdims=True), 1e-300)
            able = self.holds & prefilling & (work > 0.0)
            busy = np.where(able, load * (1.0 - self.decode_s * decodes / self.work_s), 0.0)
            came = np.where(able, busy * seen / (work + self.outside_s), 0.0) / self.ranks
            full = np.where(able, work * most / last, 0.0).max(axis=2, keepdims=True)
            enough = np.where(able, np.ceil(full / (MARGIN * work)), 0.0)

        def longest(times: Array, chance: Array) -> Array:
            """Of prompts, where K has any of J means, over that of a mixture's token; (P, L), of (P, L, J)."""
            mean, among = came[..., None] * times[:, :, None, :], 1.0 - (1.0 - quantile) / 2.0 / self.ranks
            chunks = chunks_quantile(among, mean, busy, enough, chance[:, :, None, :])
            pause = np.where(chunks > 0.0, self.outside_s + np.minimum(MARGIN * work * chunks, full), 0.0)
            return pause.max(axis=2)

        pause = longest(np.ones((1, 1, 1)), np.ones((1, 1, 1)))
        found = found + pause[..., None]
        for w in np.flatnonzero((self.few.counts > 0.0).any(axis=(0, 1))):
            n = np.floor(np.maximum(decodes[..., w, None], 1.0))
            steps = np.arange(n.max())
            even = np.maximum(self.step_s + self.decode_s[..., w] / (1.0 - load[..., 0]), seen[..., 0])[..., None]
            before = (even + load**steps * self.few.excess_s[..., w, None]) / seen
            more = longest(before, np.where(steps < n, 1.0 / n, 0.0)) - pause
            found[..., w] += self.few.counts[..., w] * np.maximum(more, 0.0)
        return np.where(several, found, 0.0)

    def itl_of_joining_s(self, quantile: float | None, joins_s: Array) -> Array:
        """`itl_s` of engines that only decode, where a request's first time between tokens lasts until it joins.

        It is one of n, that all others leave room for: at a quantile they may be this much longer, or the first is.
        """
        n, found = np.maximum(self.steps - self.chunks, 1.0), self.itl_s(quantile)
        if quantile is None:
            return np.asarray(found + joins_s / n)
        left = ((1.0 - quantile) * n - 1.0) / np.maximum(n - 1.0, 1e-9)
        others = self.itl_s(1.0 - np.clip(left, 1e-9, 0.5))
        return np.where(left > 1e-9, np.minimum(others, found + joins_s), found + joins_s)

    def ttft_s(self, quantile: float | None, most: float) -> tuple[Array, float]:
        """Seconds to the first token at a quantile (None: the mean), at most: (P, L, W) and this many times ω.

        Prompts that came in one step are prefilled together, half of them behind its own: F/2.
        """
        first, times, waits = ttft_form(quantile)
        t = self.step_s[..., None]
        own = t if quantile is None or quantile <= 0.5 else self.beside_s
        base = first * t + times * (self.chunks * own + self.prefill_s) + self.following_s / 2.0
        base = base + self.request_s[:, None, None]
        return base, waits * longest_wait(quantile, most)

    def whole(self, quantile: float, wait_s: Array, slower: float = 1.0) -> Whole:
        """TTFT and E2E as the level predicts them (S14): means, and values at a quantile; (P, L, W) each.

        Args:
            quantile: q; up to 0.5 it is the mean.
            wait_s: ω, for prefill and for a place together, (P, L).
            slower: factor of TTFT besides.
        """
        first, late = (
            slower * (base + waits * wait_s[..., None])
            for base, waits in (self.ttft_s(q, math.inf) for q in (None, quantile))
        )
        load = (1.0 - self.fixed_s / self.step_s)[..., None]
        crowd = self.crowd_s.min(axis=2, keepdims=True)  # the mixture's: no class's own is below all others'
        seen = self.fixed_s[..., None], crowd, self.decode_s, self.left_s, np.zeros_like(crowd), load
        rounds = self.of.rounds((self.classes.output_tokens - 1.0).ravel())
        rounds = rounds.reshape(-1, *self.classes.output_tokens.shape).mean(axis=2)[:, None, :]
        rest, slow = (
            rounds * _tpot(*seen, q, self.ranks * self.slots) for q in (None, quantile if quantile > 0.5 else None)
        )
        apart = np.hypot(np.maximum(late - first, 0.0), np.maximum(slow - rest, 0.0))
        return Whole(first, np.maximum(late, first), rest, first + rest + apart)

    def decoding_s(self, quantile: float | None) -> Array:
        """Seconds from the first token to the last at a quantile, at most: TPOT and length each there; (P, L, W)."""
        rest = np.maximum(self.classes.output_at(quantile) - 1.0, 0.0)
        return self.of.rounds(rest) * self._decode_step_s(quantile)


def longest_wait(quantile: float | None, most: float) -> float:
    """Largest quantile of the wait in units of ω over all mixtures that a point takes; 1 for the mean.

    A wait is positive with probability ρ_s = Σλs and then exponential with mean θ = W/ρ_s. W ≤ ω, and θ = R/(1 − ρ_s)
    with the residual R ≤ most·ω/2. So θ ≤ min(ω/ρ_s, R/(1 − ρ_s)), and the quantile is θ·ln(ρ_s/(1 − q)).

    Args:
        quantile: q.
        most: value of `MOST_OF_WAIT`.
    """
    if quantile is None or quantile <= 0.5:
        return 1.0
    # The second bound grows with ρ_s and the first falls; times the logarithm the first peaks at e·(1 − q), or where
    # all wait if that is more, as of quantiles below 1 − 1/e.
    above = 1.0 - quantile
    rho = max(1.0 / (1.0 + most / 2.0), min(math.e * above, 1.0))
    theta = 1.0 / rho if rho >= 1.0 or math.isinf(most) else min(1.0 / rho, most / 2.0 / (1.0 - rho))
    return theta * max(math.log(rho / above), 0.0)


def _tpot(
    fixed_s: Array, crowd_s: Array, decode_s: Array, left_s: Array, bursts: Array, load: Array,
    quantile: float | None, most: Array | float, margin: float = 1.0,
) -> Array:  # fmt: skip
    rho = np.clip(load, 1e-9, 1.0 - 1e-9)
    if quantile is None:
        return (fixed_s + crowd_s) / (1.0 - rho) - crowd_s + decode_s + left_s
    count = crowd_quantile(quantile, rho * fixed_s / crowd_s, rho, bursts / crowd_s**2)
    return fixed_s + margin * crowd_s * np.clip(count, 1.0, most) + left_s


def chance_of_waiting(places: Array, steady: Array, busy: Array) -> Array:
    """Probability that a request finds all places taken, at a share `busy` < 1 of full engines' rate (S12).

    Args:
        places: n that a rank has, at least 1.
        steady: least share of the time between two departures of a full engine that is work.
        busy: b.
    """
    from optmodels.special import betaln

    alone, load = (1.0 - steady) * busy * places, np.clip(steady * busy, 1e-9, 1.0 - 1e-9)
    above, more = crowd_above(places, alone, load), alone / load + 1.0
    here = np.exp(places * np.log(load) + more * np.log1p(-load) - betaln(places, more)) / places  # P(N = n)
    queue = here / (1.0 - busy)
    return queue / np.maximum(1.0 - above + queue, 1e-300)


def busiest_places(places: Array, steady: Array, slowest_s: Array, wait_s: Array, most: float, busiest: float) -> Array:
    """Largest b at which requests wait for a place by ω in the mean (S12), never more; 0 where there is none.

    Args:
        places, steady: of `chance_of_waiting`, to broadcast with ω.
        slowest_s: seconds between two departures of a full rank, of its slowest class.
        wait_s: ω.
        most: value of `MOST_OF_WAIT`.
        busiest: b at most.
    """
    shape = np.broadcast_shapes(places.shape, wait_s.shape)
    given = [np.broadcast_to(x, shape).ravel() for x in (places, steady, slowest_s, wait_s)]
    found = np.zeros(given[0].shape)

    def keeps(busy: Array, n: Array, steady: Array, slowest_s: Array, omega: Array) -> Mask:
        waits = (1.0 - 0.5 / np.sqrt(n)) * slowest_s / (1.0 - busy)
        able = waits <= omega * (1.0 + most / 2.0)
        able[able] &= waits[able] * chance_of_waiting(n[able], steady[able], busy[able]) <= omega[able]
        return np.asarray(able)

    some = np.flatnonzero(given[0] >= 1.0)  # engines without places have none
    full = keeps(np.full(len(some), busiest), *(x[some] for x in given))
    found[some[full]] = busiest
    some = some[~full]
    rest = [x[some] for x in given]
    low, high = np.zeros(len(some)), np.full(len(some), busiest)
    for _ in range(PLACE_HALVINGS - 1):
        busy = (low + high) / 2.0
        able = keeps(busy, *rest)
        low, high = np.where(able, busy, low), np.where(able, high, busy)
    found[some] = low
    return found.reshape(shape)


def waits_for_places(capacities: Array) -> Mask:
    """Whether slots or KV cache are scarcest, so that waiting for them gains something; of rows in order of `ROWS`."""
    others = np.delete(capacities, (RUNNING, MEMORY), axis=0).max(axis=0)
    found: Mask = capacities[[RUNNING, MEMORY]].max(axis=0) > others
    return found & np.isfinite(others)


def lacks_slots(capacities: Array, can: Mask) -> Mask:
    """Whether more slots may carry more: they are scarcest at a step of a class within its limits, or at the next one.

    If another capacity is scarcer at both, it is between them, too: for capacities that grow with the step the ratio
    stays, and of time it only falls. With relaxed limits no deployment stops lacking slots.

    Args:
        capacities: capacities of steps, ascending, rows in the order of `ROWS`, (Q, P, L, W).
        can: classes within their limits, (P, L, W).
    """
    running = capacities[RUNNING]
    scarcest = np.isfinite(running) & (running >= capacities.max(axis=0))
    scarcest[:, :-1] |= scarcest[:, 1:]
    return (can & scarcest).any(axis=(1, 2))


def loads_of_levels(most: float = MOST_LOAD, parts: int = 1, least: float = LEAST_LOAD) -> Array:
    """Loads ρ that levels are at, ascending: ρ/(1 − ρ) grows by `SPACING`, through the value at `MOST_LOAD`.

    They depend on no limit of a request: a larger `most` or a smaller `least` adds some and moves none.

    Args:
        most: largest load.
        parts: parts of each spacing; with more than 1 every `parts`-th of the loads, from the first on, is one with 1.
        least: no load is smaller.
    """
    through, top = MOST_LOAD / (1.0 - MOST_LOAD), most / (1.0 - most)
    first, last = (math.log(x / through) / math.log(SPACING) for x in (least / (1.0 - least), top))
    steps = np.arange(parts * math.ceil(first), math.floor(parts * last + 1e-9) + 1.0) / parts
    ratio = through * SPACING**steps
    return ratio / (1.0 + ratio)


def levels_of_loads(costs: Sequence[StepCosts], loads: Array) -> Array:
    """Step times (P, L) at which loads ρ are carried: a₀/(1 − ρ), with a₀ at its least and at its largest.

    The former are for steps shorter than any of the latter's at the default `engine.least_load`, whatever the loads: a
    smaller one adds steps and drops none. In place of the others, and first, stands a step without a level:
    `StepCosts.fixed_s`, which every step of a level is longer than.
    """
    c = Coefficients.stack(costs)
    least, most = c.least_fixed_s[:, :, 0], c.largest_fixed_s[:, :, 0]
    short, long = least / (1.0 - loads), most / (1.0 - loads)
    none = c.fixed_s[:, :, 0]
    short = np.where(short < most / (1.0 - loads_of_levels()[0]), short, none)
    some = (short > none).any(axis=0)
    return np.sort(np.concatenate([none, short[:, some], long], axis=1), axis=1)


def with_best_steps(step_s: Array, seen: Callable[[Array], tuple[Array, Array]]) -> Array:
    """Step times of levels, and the one that is best for the only class of each deployment, ascending.

    A longer step takes less of time and more of everything else: the longest one at which the class meets its limits
    and time is still scarcest carries most requests. It may be shorter than every level. `longest_steps` finds it, so
    that a relaxed limit does not carry less.

    Args:
        step_s: `levels_of_loads`, ascending, (P, L).
        seen: as in `longest_steps`, of step times (P, J).
    """
    missed, carried = seen(step_s)
    best = longest_steps(step_s, missed[None], carried, lambda step_s, _: seen(step_s))
    return np.sort(np.concatenate([step_s, best], axis=1), axis=1)


def longest_steps(
    step_s: Array, missed: Array, carried: Array, seen: Callable[[Array, Index], tuple[Array, Array]]
) -> Array:  # fmt: skip
    """The longest steps that fit each of N cases, beside the given ones; the first step where there is none, (P, N·J).

    A relaxed case carries no less at the steps given and found, whatever the functions of the step look like. It fits
    at every step at which the tighter one does; requests/s depend on the step alone. Each search lies between two
    neighbours of `step_s`, of which the shorter fits and the longer does not. It halves `HALVINGS` times and goes on to
    the middle only if that fits, carries at least what the lower end does, and at most what each end refused so far
    does. If the relaxed case fits at the longer neighbour, that carries as much as all that the tighter one may find.
    If not, both searches ask the same middles until one fits the relaxed case alone. There the relaxed one goes on to
    steps that carry no less than this middle, and the tighter one to steps that carry no more.

    Args:
        step_s: `levels_of_loads`, ascending, (P, L).
        missed: excess of these over the right ones in every case, (N, P, L): above 1 they do not fit; 0: too short
            for a level; infinite: no request can be on the level.
        carried: requests/s of these, 0 where there is no level, (P, L); of all cases.
        seen: (step times, (P, K), case of each column, (K,)) → `missed` and `carried` of these, (P, K) both.
    """
    fits = missed <= 1.0
    ends = fits[..., :-1] & ~fits[..., 1:] & ((missed[..., :-1] > 0.0) | np.isfinite(missed[..., 1:]))
    count = int(ends.sum(axis=2).max(initial=0))
    if not count:
        return step_s[:, :1]
    chosen = np.argsort(~ends, axis=2, kind="stable")[..., :count]  # (N, P, J)
    wanted, below = (
        x.transpose(1, 0, 2).reshape(len(step_s), -1) for x in (np.take_along_axis(ends, chosen, axis=2), chosen)
    )
    case = np.repeat(np.arange(len(missed)), count)
    low, high, least, most = (np.take_along_axis(x, below + k, axis=1) for x in (step_s, carried) for k in (0, 1))
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        excess, here = seen(middle, case)
        keeps = (excess <= 1.0) & (here >= least) & (here <= most)
        low, least = np.where(keeps, middle, low), np.where(keeps, here, least)
        high, most = np.where(keeps, high, middle), np.where(keeps, most, np.minimum(most, here))
    return np.where(wanted, low, step_s[:, :1])


def work_of_steps(
    costs: Sequence[StepCosts] | Coefficients, kv_tokens: Array, engine: EngineLimits, classes: Classes, step_s: Array,
    stage: Stage = "both", attention_ranks: Array | int = 1, placed: bool = False,
) -> tuple[Mask, Array, Array, Array]:  # fmt: skip
    """`exists`, `fixed_s`, `work_s` and `steps` of `operating_points`, whose arguments these are."""
    *_, exists, a0, _, _, work, steps = _worked(
        costs, kv_tokens, engine, classes, step_s, stage, attention_ranks, placed
    )  # fmt: skip
    return exists[:, :, 0], a0[:, :, 0], work, steps


def _worked(
    costs: Sequence[StepCosts] | Coefficients, kv_tokens: Array, engine: EngineLimits, classes: Classes, step_s: Array,
    stage: Stage, attention_ranks: Array | int, placed: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """How long steps last at levels, and on what: the first part of `operating_points`."""
    if stage == "prefill":
        classes = replace(classes, output_tokens=np.ones((len(classes), 1)))
    c = costs if isinstance(costs, Coefficients) else Coefficients.stack(costs)
    t = np.asarray(step_s, dtype=float)[:, :, None]  # (P, L, 1)
    ranks = np.broadcast_to(np.asarray(attention_ranks, dtype=float), len(c.fixed_s))[:, None, None]  # D
    kv = np.asarray(kv_tokens, dtype=float)[:, None, None] / ranks
    prompt, weight = classes.input_tokens, classes.weight / classes.weight.sum()
    slots = np.full(kv.shape, float(engine.slots))
    if placed:
        whole = prompt + classes.output_tokens.max(axis=1) + c.drafts
        with np.errstate(divide="ignore"):
            slots = np.minimum(slots, np.floor(kv / np.where(whole <= kv, whole, 0.0).max(axis=2, keepdims=True)))
    u = np.zeros(len(classes)) if stage == "decode" else classes.new_tokens
    earlier = prompt - u
    each = c.rounds((classes.output_tokens - 1.0).ravel())  # (P, 1, W·J)
    contexts = c.seen_in_progression(np.repeat(prompt, classes.output_tokens.shape[1])[None, None, :], c.tokens, each)
    decodes, contexts = (
        x.reshape(len(c.fixed_s), 1, *classes.output_tokens.shape).mean(axis=3) for x in (each, contexts)
    )  # (P, 1, W)

    def mixture(value: Array) -> Array:
        return (weight * value).sum(axis=2, keepdims=True)

    def decode_s(mixed: Array | float) -> Array:
        slope = c.context_s + (c.mixed_context_s - c.context_s) * mixed
        return c.decode_request_s * decodes + slope * contexts

    # The share φ of steps that carry a prompt: of the mixture by weight at full load, and room for others.
    alone = c.prefill_work_s(u, earlier, np.maximum(u, 1.0), 1.0) + decode_s(0.0)
    most_chunk = float(min(engine.max_num_batched_tokens, engine.chunk_tokens or engine.max_num_batched_tokens))
    few = np.ceil(u / most_chunk)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # of one output token nothing is decoded
        x = np.maximum(t - c.fixed_s, 0.0) * (weight * few).sum() / (weight * alone).sum(axis=2, keepdims=True)
    varies = (c.mixed_context_s != c.context_s) | (c.experts_s > 0)
    phi = np.ones_like(x) if stage == "prefill" else np.where(varies, np.minimum(engine.prompts_over * x, 1.0), 0.0)

    # a₀ without `prompt_step`, at the largest mean concurrency of the level, by time and by slots.
    with np.errstate(divide="ignore", over="ignore"):
        lightest = c.decode_request_s + c.context_s * prompt.min()
        crowd = np.minimum(ranks * slots, np.maximum(t - c.fixed_s, 0.0) / lightest)
    bare = c.step_fixed_s(crowd, phi)
    exists = t > bare
    room = np.maximum(engine.max_num_batched_tokens - slots * (1.0 + c.drafts), LEAST_ROOM) + 0.0 * bare  # B of a rank
    chunk = np.minimum(room, engine.chunk_tokens or np.inf)
    chunks, filled = np.ceil(u / chunk), u / (ranks * room)
    alone, decoding = c.prefill_work_s(u, earlier, chunk, 0.0), decode_s(phi)
    outside_experts = alone - c.prompt_expert_s * u
    longer = (ranks - 1.0) * outside_experts / np.maximum(chunks, 1.0)  # x of its chunks in the mean
    busiest, rest = _busiest_rank(
        t - bare, c.prompt_step_s, alone + decoding, filled, chunks, longer, weight, stage
    )  # fmt: skip
    busiest = busiest * chunks
    within, paid = _prompt_steps(
        t - bare - rest, c.prompt_step_s, alone + busiest + decoding, filled, chunks - filled, weight, stage
    )  # fmt: skip
    a0 = bare + rest + within * c.prompt_step_s
    exists &= a0 < t
    rho = np.where(exists, 1.0 - a0 / t, 0.5)
    prefill = alone + paid * c.prompt_step_s + busiest
    work, steps = prefill + decoding, chunks + decodes
    return (
        classes, c, t, ranks, kv, weight, slots, u, decodes, decoding, phi, varies, room, chunks, filled, alone, longer,
        within, rest, exists, a0, rho, prefill, work, steps,
    )  # fmt: skip


def operating_points(
    costs: Sequence[StepCosts] | Coefficients,
    kv_tokens: Array,
    engine: EngineLimits,
    classes: Classes,
    step_s: Array,
    stage: Stage = "both",
    held_s: Array | float = 0.0,
    attention_ranks: Array | int = 1,
    placed: bool = False,
) -> Points:
    """Capacities and latencies of deployments at levels.

    Args:
        costs: costs of P deployments.
        kv_tokens: tokens that their KV caches hold, (P,).
        engine: its limits.
        classes: W of them.
        step_s: t, (P, L).
        stage: stages of a request that the engines serve.
        held_s: seconds that they hold its prompt's cache besides, broadcast to (P, 1, W).
        attention_ranks: data-parallel attention ranks that an engine is made of, broadcast to (P,); `costs` are of
            steps of all, `kv_tokens` of all together, `engine` of each.
        placed: engines run no more at a time than their KV caches hold of the largest requests (S12).
    """
    (
        classes, c, t, ranks, kv, weight, slots, u, decodes, decoding, phi, varies, room, chunks, filled, alone, longer,
        within, rest, exists, a0, rho, prefill, work, steps,
    ) = _worked(costs, kv_tokens, engine, classes, step_s, stage, attention_ranks, placed)  # fmt: skip
    prompt = classes.input_tokens

    def mixture(value: Array) -> Array:
        found: Array = (weight * value).sum(axis=2, keepdims=True)
        return found

    load = np.empty((WAITING, *work.shape))
    load[TIME] = work / rho
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        load[[RUNNING, MEMORY]] = 0.0
        if not placed:  # else (S12) has both, below
            load[RUNNING] = steps * t / (ranks * crowd_allowed(slots + 0.0 * rho, rho, engine.overflow))
            joining = 1.0 if stage == "decode" else 0.0  # steps between arrival and the first one with the request
            load[MEMORY] = _memory(c, classes, chunks + joining + held_s / t, t, kv, rho, weight, engine.overflow)
            load[MEMORY] /= ranks
        load[TOKENS] = u * t / (engine.filled * ranks * room)
        load[CHUNKS] = 0.0
        if stage == "both":
            load[CHUNKS] = np.where(varies & (phi < 1.0), chunks * t / phi, 0.0)
    load[:, ~exists[:, :, 0]] = np.inf
    holds = np.isfinite(load[TIME]) & (prompt + classes.output_tokens.max(axis=1) + c.drafts <= kv)
    if stage == "decode":
        holds &= classes.output_tokens.mean(axis=1) > 1.0
        load[..., classes.output_tokens.mean(axis=1) <= 1.0] = np.inf  # the prefill's token is the only one

    with np.errstate(divide="ignore", invalid="ignore"):  # of no slots
        place = np.where(holds, steps * a0 / (ranks * slots) + work, np.inf)
    if placed:
        load[[RUNNING, MEMORY]] = np.where(slots >= 1.0, place / engine.busiest, np.inf)
    outside = (1.0 - within) * c.prompt_step_s  # share of the cost of a step with a prompt, not in a₀
    with np.errstate(invalid="ignore"):
        prefill_share = mixture(prefill) / mixture(work)  # v
        beside = a0 + rho * t * np.fmax(decoding / work, 1.0 - prefill_share)
    mean_turn = filled * (a0 + outside + t * rho * (1.0 - prefill_share) ** 2) + alone
    if stage != "decode":
        gamma = (prefill / (filled * t)).min(axis=2, keepdims=True)  # 0: no prompt costs anything
        mean_turn += decoding * rho * prefill_share**2 / np.where(gamma > 0, gamma, np.inf)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        crowd_s = np.fmax(work / steps, mixture(work) / mixture(steps))
        own = np.where(decodes > 0, decoding / decodes, 0.0)
        prefilling = rho * np.fmax(prefill / work, prefill_share)
        following = prefilling * np.fmax(prefill, mixture(prefill**2) / mixture(prefill))
        left = np.where(decodes > 0, following / (1.0 - rho) / decodes, 0.0)
        fits = holds & (work > 0)
        prompts, squares = (  # the largest Σλp and Σλp² of any mixture with ΣλW ≤ ρ
            rho * np.where(fits, of_work, 0.0).max(axis=2, keepdims=True)
            for of_work in (prefill / work, prefill**2 / work)
        )
        bursts = np.where(decodes > 0, squares * t / decodes / (1.0 - prompts) ** 2, 0.0)
        few_steps = _few_steps(
            rho, fits, t, beside + outside, filled, prefill, work, chunks, decodes, prompts, squares,
            np.fmax(own, mixture(decoding) / mixture(decodes)), ranks,
        )  # fmt: skip
    return Points(
        classes, engine, t[:, :, 0], exists[:, :, 0], a0[:, :, 0], chunks,
        alone + (outside + np.maximum(longer - rest, 0.0)) * chunks,
        work, steps, load, beside + (1.0 - 1.0 / ranks) * prefilling * t, filled * (beside + outside) + alone,
        mean_turn, crowd_s, own, following, left, bursts, few_steps, place, slots, placed, holds,
        room, outside, c.request_s[:, 0, 0], c, ranks,
    )  # fmt: skip


def _few_steps(
    rho: Array, fits: Mask, t: Array, beside: Array, filled: Array, prefill: Array, work: Array,
    chunks: Array, decodes: Array, prompts: Array, squares: Array, decodes_s: Array, ranks: Array,
) -> FewSteps:  # fmt: skip
    """Prompts in the decode steps of a request (S11), of the mixtures with most of them.

    Args:
        rho: load of the level.
        fits: classes that can be there.
        t: step time.
        beside: seconds of a step next to prompts.
        filled, prefill, work, chunks, decodes: of each class.
        prompts, squares: largest Σλp and Σλp² of any mixture.
        decodes_s: value of `FewSteps`.
        ranks: D.
    """
    turn = ranks * (filled * beside + prefill)
    busy, late = (
        rho * np.where(fits & (prefill > 0), of_work, 0.0).max(axis=2, keepdims=True)
        for of_work in (turn / work / ranks, turn**2 / work / ranks)
    )
    waits = np.where(busy < 1.0, late / (2.0 * (1.0 - busy)), np.inf)
    window = decodes * t + chunks * beside + prefill + waits
    one = squares / prompts
    expected = np.where((decodes > 0) & (prompts > 0), prompts * window / one, 0.0)
    full = np.where(fits & (filled > 0), prefill / filled, 0.0).max(axis=2, keepdims=True)
    heaviest = np.where(fits, prefill, 0.0).max(axis=2, keepdims=True)
    each, longest = (np.where(decodes > 0, x / decodes, 0.0) for x in (one, heaviest))
    counts = np.where(expected > 0.0, np.clip(2.0 - decodes / FEW, 0.0, 1.0), 0.0)
    fading = rho * (1.0 - rho**decodes) / (1.0 - rho)
    excess = np.where(counts > 0.0, prefill + rho**2 * work / (1.0 - rho**2), 0.0)
    mean = fading * excess / np.maximum(decodes, 1e-300)
    return FewSteps(decodes_s, each, longest, expected, prompts, full, excess, mean, counts)


def _prompt_steps(
    free_s: Array, prompt_step_s: Array, work_s: Array, filled: Array, sharing: Array, weight: Array, stage: Stage
) -> tuple[Array, Array]:  # fmt: skip
    """How many times `prompt_step` a₀ has it, (P, L, 1), and each request pays it, (P, L, W) (S8).

    At full load n requests a step fill it: n·work + `prompt_step`·(nU + 1 − e^(−ny)) = t − a₀. Every step of an engine
    that only prefills carries a prompt.

    Args:
        free_s: seconds by which a step lasts longer than the rest of a₀.
        prompt_step_s: seconds of a step that carries a prompt.
        work_s: seconds of work of a request, next to `prompt_step`.
        filled, sharing: its U and y.
        weight: weight of the mixture, sum 1.
        stage: stage of requests that the engine does.
    """
    from optmodels.special import wrightomega

    def mixture(value: Array) -> Array:
        return (weight * value).sum(axis=2, keepdims=True)

    if stage == "prefill":
        return np.ones_like(free_s), np.zeros_like(sharing)
    left, y = free_s - prompt_step_s, mixture(sharing)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = mixture(work_s + filled * prompt_step_s)
        each = whole / y
        many = np.where(y > 0, left / each + wrightomega(np.log(prompt_step_s / each) - left / each), 0.0)  # y₀ = ny
        always = left / mixture(work_s) > np.where(y > 0, many / y, free_s / whole)
    shares = np.exp(-many)
    within, paid = 1.0 - (1.0 + many) * shares, filled + shares * sharing
    return np.where(always, 1.0, within), np.where(always, 0.0, paid)


def _busiest_rank(
    free_s: Array, prompt_step_s: Array, work_s: Array, filled: Array, chunks: Array, longer_s: Array, weight: Array,
    stage: Stage,
) -> tuple[Array, Array]:  # fmt: skip
    """Seconds added to a chunk, (P, L, W), and to a₀, (P, L, 1), because steps wait for the busiest rank (S10).

    At full load n requests a step fill it, as in `_prompt_steps`.

    Args:
        free_s, prompt_step_s, work_s, filled, weight, stage: as there.
        chunks: chunks of a prompt.
        longer_s: x of each, 0 where there is one rank.
    """

    def mixture(value: Array) -> Array:
        return (weight * value).sum(axis=2, keepdims=True)

    longer_s = np.broadcast_to(longer_s, np.broadcast_shapes(longer_s.shape, free_s.shape))
    if not longer_s.any():
        return np.zeros_like(longer_s), np.zeros_like(free_s)
    order = np.argsort(longer_s, axis=2)
    width = np.diff(np.take_along_axis(longer_s, order, axis=2), axis=2, prepend=0.0)
    of_each = np.take_along_axis(np.broadcast_to(weight * chunks, longer_s.shape), order, axis=2)
    above = np.cumsum(of_each[..., ::-1], axis=2)[..., ::-1]  # Λ of one request a step, below each x
    whole, full, sharing = mixture(work_s), mixture(filled), mixture(chunks - filled)
    low = np.zeros_like(free_s)
    with np.errstate(divide="ignore", invalid="ignore"):  # of prompts that cost nothing
        high = np.maximum(free_s, 0.0) / whole
        for _ in range(60):
            n = (low + high) / 2.0
            carry = 1.0 if stage == "prefill" else n * full - np.expm1(-n * sharing)
            taken = n * whole + prompt_step_s * carry - (width * np.expm1(-n * above)).sum(axis=2, keepdims=True)
            low, high = np.where(taken < free_s, n, low), np.where(taken < free_s, high, n)
    none = np.exp(-low * above)
    paid = np.take_along_axis(np.cumsum(width * none, axis=2), np.argsort(order, axis=2), axis=2)
    return paid, (width * (1.0 - (1.0 + low * above) * none)).sum(axis=2, keepdims=True)


def held_tokens(c: Coefficients, classes: Classes, chunks: Array) -> tuple[Array, Array]:
    """Σ over a request's steps of the tokens that it holds, and of their squares: means of each class, (…, W)."""
    S, outputs = classes.input_tokens, classes.output_tokens
    one, two = (
        x.reshape(*x.shape[:-1], *outputs.shape).mean(axis=-1)
        for x in c.held(np.repeat(S, outputs.shape[1]), (outputs - 1.0).ravel())
    )
    return one + chunks * S, two + chunks * S**2


def _memory(
    c: Coefficients, classes: Classes, chunks: Array, t: Array, kv: Array, rho: Array, weight: Array, overflow: float
) -> Array:  # fmt: skip
    """One request/s as a share of the KV cache (S4), (P, L, W)."""
    S = classes.input_tokens
    one, two = held_tokens(c, classes, chunks)
    typical = (weight * two).sum(axis=2, keepdims=True) / (weight * one).sum(axis=2, keepdims=True)
    slots = kv / typical
    mean = crowd_allowed(slots, rho, overflow)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        spread = np.sqrt(mean / (1.0 - rho))  # of the concurrency
        z, sigma = (slots - mean) / spread, typical * spread
        share = t * (one + z * two / (2.0 * sigma * (1.0 - rho))) / (kv - z * sigma / 2.0)
    largest = S + classes.output_tokens.max(axis=1) + c.drafts
    return np.where((mean > 0) & (largest <= kv), share, np.inf)


# ---------------------------------------------------------------------------------------- at given arrival rates


@dataclass(frozen=True)
class Prediction:
    """Behaviour of an engine at given rates.

    Attributes:
        load: ρ.
        step_s: mean of its steps, idle time left out; `fixed_s`: a₀ of them.
        running: mean requests that run.
        waiting_s: mean wait before prefill.
        ttft_s, tpot_s: quantile (None: mean) → seconds of each class, (W,); no time per token without a second one.
        all_tpot_s: the same for every decoding request together.
        tokens: tokens that a decoding request gets of a step, in the mean over all.
        between: times between two of its tokens.
    """

    load: float
    step_s: float
    fixed_s: float
    running: float
    waiting_s: float
    ttft_s: dict[float | None, Array]
    tpot_s: dict[float | None, Array]
    all_tpot_s: dict[float | None, float]
    tokens: float
    between: BetweenTokens


def predict(
    costs: StepCosts, classes: Classes, rates: Array, engine: EngineLimits, most: float = math.inf,
    quantiles: Sequence[float] = QUANTILES, attention_ranks: int = 1,
) -> Prediction:  # fmt: skip
    """Means and quantiles at the rates themselves, of one instance.

    (S1) corrected for idle time, t̄ = a₀/(1 − ρ/(1 − P₀)); the concurrency's mean (N₀ + ρ)/(1 − ρ); TTFT by
    `_first_token`. Requests that come while a prompt is prefilled decode together, as one to the concurrency: in the
    time that prompts leave to decodes concurrencies come at the rate of requests, and with x = ρ_decode/(1 − ρ_prefill)

        P₀ = (1 − ρ_prefill)·(1 − x)^(N₀/x + 1) = (1 − ρ)·(1 − x)^(N₀/x)

    Of D ranks each has N/D of the concurrency, and chunks of one step are spread evenly, so that beyond their even work
    Σc outside the experts it lasts D times the busiest rank's less Σc (`_busiest`), which (S10) bounds.

    Args:
        costs: costs of its steps.
        classes: W of them.
        rates: rates of each, requests/s, (W,).
        engine: its settings.
        most: requests that run at a time, at most, where KV cache allows fewer than `engine`.
        quantiles: shares of requests that quantiles are wanted for.
        attention_ranks: D of the deployment; `costs` are for steps of every rank, `rates` and `most` for the ranks
            together, `engine` of each.

    Raises:
        ValueError: the rates are more than it can serve.
    """
    c, ranks = Coefficients.of(costs), float(attention_ranks)
    most = min(most, ranks * engine.slots)
    if 0.0 < rates.sum() < LEAST_RPS:
        rates = rates / rates.sum() * LEAST_RPS
    u, outputs = classes.new_tokens, classes.output_tokens
    decodes = c.rounds(outputs - 1.0).mean(axis=1)
    answered = float(rates @ (outputs.mean(axis=1) - 1.0))
    tokens = answered / float(rates @ decodes) if answered > 0 else 1.0
    # Room for prompts, the share of steps with one and a₀ depend on the step, and it on them: a few rounds settle it.
    step, mixed, crowd, idle, together = math.inf, 1.0, 0.0, 0.0, 1.0
    for _ in range(100):
        chunk = engine.chunk_beside(crowd / ranks, costs.drafts)
        chunks = np.ceil(u / chunk)
        alone = c.prefill_work_s(u, classes.input_tokens - u, chunk, 0.0)
        outside = alone - c.prompt_expert_s * u
        room = engine.room_beside(crowd / ranks, costs.drafts)
        busiest = np.zeros_like(outside)
        if ranks > 1.0:
            longest, behind = _busiest(outside / chunks, rates * chunks, together, ranks)
            fits = np.maximum(1.0 - u / chunks / room, 0.0)  # next to a chunk of its rank
            busiest = ranks * chunks * (longest + behind * fits) - outside
            busiest *= float(rates @ busiest > 0.0)
        decode = c.decode_work_s(classes.input_tokens[:, None], outputs, mixed).mean(axis=1)
        load = float(rates @ (alone + decode))
        if load >= 1.0:
            raise ValueError(f"load {load:.4g}: more than the instance can serve")
        waits = together * float(rates @ busiest) / max(float(rates @ chunks), 1e-300)  # of a step with a prompt
        a0, of_prompts = float(c.step_fixed_s(crowd, mixed)), mixed * (float(c.prompt_step_s) + waits)
        before, step = step, (a0 + of_prompts) / (1.0 - min(load / (1.0 - idle), 1.0 - 1e-12))
        load += of_prompts * (1.0 - idle) / step
        fixed_crowd = float(rates @ (chunks + decodes)) * a0
        beside = max(float(rates @ decode) / (1.0 - load + float(rates @ decode)), 1e-9)  # ρ_decode/(1 − ρ_prefill)
        idle = (1.0 - load) * (1.0 - beside) ** (fixed_crowd / beside)
        idle = idle if idle < 1.0 - load else 0.0
        crowd = (fixed_crowd + load) / (1.0 - load)
        carried, filled = (float(rates @ n) * step for n in (chunks, u / (ranks * room)))
        longer = float(c.prompt_step_s) + waits + float(rates @ alone) * step / (1.0 - idle) / mixed
        begun = float(rates.sum()) * step * idle / (1.0 - idle)
        mixed = _carrying(carried, filled, begun, longer / step, mixed)
        together = carried / max(mixed * (1.0 - idle), 1e-300)
        if abs(step - before) <= 1e-12 * step:
            break
    charged = mixed * (1.0 - idle) / max(carried, 1e-300)  # chunks of one step share its cost
    prefill = alone + charged * c.prompt_step_s * chunks + busiest
    deciles = crowd_quantile((np.arange(CROWDS) + 0.5) / CROWDS, np.array(fixed_crowd), np.array(load))
    of_decode = float(rates @ decode) / max(float(rates @ decodes), 1e-300)
    following, prefilling = float(rates @ prefill**2), float(rates @ prefill)
    first = _first_token(
        c, classes, rates, engine, np.clip(deciles, 0.0, most)[:, None], a0, of_decode, prefilling, charged,
        busiest, ranks,
    )  # fmt: skip
    a, crowd_s, rho = map(np.array, (a0, load * a0 / fixed_crowd, load))

    def tpot(own_s: Array, steps: Array, made: Array, came: Array) -> dict[float | None, Array]:
        """Of requests of so many decode steps, each with `own_s` of their own, and `made` tokens; 0 without any."""
        several = np.where(steps > 0.0, steps, 1.0)
        left = came / several / 2.0 * (1.0 - load**several) / (1.0 - load)
        bursts = following / several * step / (1.0 - prefilling) ** 2
        return {
            q: np.where(steps > 0, _tpot(a, crowd_s, own_s, left, bursts, rho, q, max(most, 1.0)) * steps, 0.0)
            / np.maximum(made, 1e-300)
            for q in (None, *quantiles)
        }  # fmt: skip

    rounds = float(rates @ decodes) / max(float(rates.sum()), 1e-300)
    together_s = tpot(np.array(of_decode), np.array(rounds), np.array(rounds * tokens), np.array(following))
    each_s = tpot(decode / np.maximum(decodes, 1e-300), decodes, outputs.mean(axis=1) - 1.0, prefilling * prefill)
    ttft = {q: first.seconds(q) + costs.request_s for q in (None, *quantiles)}
    of_all = {q: float(x) for q, x in together_s.items()}
    among = crowd_quantile((np.arange(CROWDS) + 0.5) / CROWDS, np.array(fixed_crowd + load), np.array(load)) + 1.0
    last = u - (chunks - 1.0) * chunk  # tokens of a prompt's last chunk; all others are full
    each_token = (alone + (ranks - 1.0) * outside) / u
    between = BetweenTokens(
        a0 + of_decode * np.clip(among, 1.0, max(most, 1.0)), float(c.prompt_step_s),
        np.concatenate([each_token * chunk, each_token * last]), np.concatenate([rates * (chunks - 1.0), rates]),
        float((each_token * room).max()), mixed, ranks, (1.0 - 1.0 / ranks) * prefilling * step,
    )  # fmt: skip
    return Prediction(load, step, a0, crowd, first.waiting_s, ttft, each_s, of_all, tokens, between)


def _busiest(chunk_s: Array, weight: Array, together: float, ranks: float) -> tuple[Array, float]:
    """Each chunk's part of the busiest rank's work in a step: of its longest chunk, (W,), and of the chunks behind it,
    s.

    Chunks of a step that has any are Poisson's given that there is one, n with the mean Λ(0)/(1 − e^(−Λ(0))), and go to
    ranks as evenly as they can: behind the longest are ⌈n/D⌉ − 1 mean ones. A chunk has ∫_0^c (1 − e^(−Λ))/Λ dz
    of the former, with Λ as in (S10).

    Args:
        chunk_s: c of each, (W,).
        weight: how often each comes, (W,).
        together: mean of n.
        ranks: D.
    """
    from optmodels.special import gammainc, lambertw

    mean, share = max(together, 1.0 + 1e-9), weight / max(float(weight.sum()), 1e-300)
    all_of = mean + float(lambertw(-mean * math.exp(-mean)).real)  # Λ(0)
    order = np.argsort(chunk_s)
    above = all_of * np.cumsum(share[order][::-1])[::-1]
    each = np.where(above > 0.0, -np.expm1(-above) / np.where(above > 0.0, above, 1.0), 1.0)
    longest = np.empty_like(chunk_s)
    longest[order] = np.cumsum(np.diff(chunk_s[order], prepend=0.0) * each)
    rows = np.arange(1.0, 10.0 + (all_of + 10.0 * math.sqrt(all_of)) / ranks)
    behind = float(gammainc(rows * ranks + 1.0, all_of).sum()) / -math.expm1(-all_of)  # Σ P(n > kD)
    return longest, behind / mean * float(share @ chunk_s)


def _longer_by_others(longer_s: Array, came: Array) -> Array:
    """∫_x^∞ 1 − e^(−Λ) dz, (K, W): by how much x of the longest chunk is more, in the mean, than one's own.

    Args:
        longer_s: x of each, (K, W).
        came: chunks of each in a step, (K, W).
    """
    order = np.argsort(longer_s, axis=1)
    width = np.diff(np.take_along_axis(longer_s, order, axis=1), axis=1, prepend=0.0)
    above = np.cumsum(np.take_along_axis(came, order, axis=1)[:, ::-1], axis=1)[:, ::-1]
    each = width * -np.expm1(-above)
    beyond = np.cumsum(each[:, ::-1], axis=1)[:, ::-1] - each
    return np.take_along_axis(beyond, np.argsort(order, axis=1), axis=1)


def _carrying(carried: float, filled: float, begun: float, longer: float, share: float) -> float:
    """Share of steps that carry a prompt (S8), from a first estimate.

    A step with prompts is longer and gathers more of them for the next one, so that fewer steps have any than by
    chance: a chain of short and long steps, as far as chunks share theirs.

    Args:
        carried: chunks a step.
        filled: steps among them that fill theirs.
        begun: share of steps before which the engine was idle: a prompt begins them.
        longer: mean steps that one with prompts lasts longer than one without.
        share: share of steps with prompts, as thought.
    """
    if carried <= 0.0:
        return 0.0
    sharing, more = max(carried - filled, 0.0), max(1.0 - filled / carried, 0.0) * longer
    short = max(1.0 - share * more, 0.0)
    none_again, again = math.exp(-sharing * (short + more)), -math.expm1(-sharing * short)
    begun, filled = min(begun, 1.0), min(filled, 1.0)
    # 1 − (1 − begun)·(1 − filled)·none_again/(again + none_again), without what 1 − … loses at next to no load.
    return begun + (1.0 - begun) * (filled + (1.0 - filled) * again / (again + none_again))


@dataclass(frozen=True)
class _FirstToken:
    """TTFT of W classes by its moments: a gamma above the least, (W,)."""

    least_s: Array
    mean_s: Array
    variance: Array
    waiting_s: float

    def seconds(self, quantile: float | None) -> Array:
        """At a quantile; None: the mean."""
        if quantile is None or not np.isfinite(self.waiting_s):
            return self.mean_s
        from optmodels.special import gammaincinv

        above = self.mean_s - self.least_s
        return self.least_s + gammaincinv(above**2 / self.variance, quantile) * self.variance / above


def _first_token(
    c: Coefficients, classes: Classes, rates: Array, engine: EngineLimits, crowd: Array, fixed_s: float,
    decode_s: float, prefilling: float, charged: float, busiest_s: Array, ranks: float,
) -> _FirstToken:  # fmt: skip
    """TTFT where requests arrive at rates (W,): moments given the concurrency, then those over concurrencies.

    While N requests decode, a step lasts d = a₀ + `decode_s`·N next to prompts, d/(1 − ρ_prefill) with them, and has
    room for B(N) prompt tokens. A prompt keeps the others from prefill for s = u·d/B + prefill, as in (S7), and waits
    as in M/G/1:

        E[W | N] = Σλs²/2(1 − Σλs),   Var[W | N] = E[W | N]² + Σλs³/3(1 − Σλs)

    to which add the rest of the step that it arrives in, uniform, and its own chunks. That step and its own last as
    long as the prompts of one step's arrivals make them: Var = Σλ·prefill²·d/(1 − ρ_prefill) each. Concurrencies in
    which prefill would be overloaded do not stay: Σλs counts `BUSIEST` at most.

    Of D ranks each is a server of λ/D, on which a prompt takes what its rank alone makes steps longer by, what others'
    do next to it, and by how much theirs are longer than its own. Its own rank's prompts make its steps vary; that it
    comes in the midst of a step with another rank's adds R to its wait, with

        E[Rᵏ] = (1 − 1/D)·Σλ·m·(prefill/m)ᵏ⁺¹/(k + 1),   k = 1, 2

    Args:
        crowd: N of equally likely concurrencies, (K, 1).
        fixed_s: a₀.
        decode_s: decode seconds of a running request in a step.
        prefilling: ρ_prefill.
        charged: argument of `Coefficients.prefill_work_s`.
        busiest_s: seconds of ρ_prefill that a request's steps wait for the busiest rank, (W,).
        ranks: D.
    """
    u, chunk = classes.new_tokens, engine.chunk_beside(crowd / ranks, c.drafts)
    chunks, beside = np.ceil(u / chunk), fixed_s + decode_s * crowd  # (K, W), (K, 1)
    full = c.prefill_work_s(u, classes.input_tokens - u, chunk, 0.0)  # in steps full of prompts
    prefill, step = full + charged * c.prompt_step_s * chunks, beside / (1.0 - prefilling)
    even = beside / (1.0 - prefilling + float(rates @ busiest_s))
    longer = (ranks - 1.0) * (full - c.prompt_expert_s * u)
    others = _longer_by_others(longer / chunks, rates * chunks * even)
    filled, besides = u / engine.room_beside(crowd / ranks, c.drafts), (1.0 - 1.0 / ranks) * (even - beside) + others
    turn = filled * (beside + c.prompt_step_s + besides) + full + longer
    varying, prefill = prefill + busiest_s, prefill + longer + chunks * others
    elsewhere, squares = (
        (1.0 - 1.0 / ranks) * (prefill * (prefill / chunks) ** (k - 1.0) @ rates)[:, None] / k for k in (2.0, 3.0)
    )
    rates = rates / ranks
    busy = (turn @ rates)[:, None]
    own = chunks * even + prefill
    if np.median(busy) >= 1.0:  # most of the time
        never = np.full(len(classes), np.inf)
        return _FirstToken(own.min(axis=0), never, never, math.inf)
    free = 1.0 - np.minimum(busy, BUSIEST)
    wait = (turn**2 @ rates)[:, None] / (2.0 * free)
    given = (
        wait**2
        + (turn**3 @ rates)[:, None] / (3.0 * free)
        + step**2 / 12.0
        + 2.0 * step * (varying**2 @ rates)[:, None]
        + np.maximum(squares - elsewhere**2, 0.0)
    )
    mean = step / 2.0 + own + wait + elsewhere
    return _FirstToken(own.min(axis=0), mean.mean(axis=0), given.mean(axis=0) + mean.var(axis=0), float(wait.mean()))
