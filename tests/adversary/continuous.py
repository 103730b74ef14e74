"""Engines that batch continuously, from the mathematics: what the references of all formulations share.

Written from docs/continuous-batching.md and docs/engine.md, request class by request class and with plain sums
over chunks and tokens; engines of one kind of requests from the READMEs of the formulations that have them. Of the
product come the seconds of an engine's step on a deployment (`StepCosts`), no more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import betainc, logsumexp
from scipy.stats import nbinom, norm

from optmodels import catalog
from optmodels.catalog.types import Architecture
from optmodels.latency.steps import StepCosts
from optmodels.latency.work import LayerWork
from tests.adversary.roofline import held_bytes, replicas_of_a_head

Array = npt.NDArray[np.float64]
SELDOM, FILLED = 0.005, 0.9  # defaults of most_full and most_filled
Mixture = Sequence[tuple[float, float, float, float]]  # weight, prompt, output, prompt tokens that caches have
WHOLE = 1e-9  # by which requests in flight may miss a whole number
HAIR = 1e-12  # by which a value may miss another that it was computed from
CLASSES_OF_WAIT = (4.0, math.inf)  # a prompt may keep others waiting at most so many ω by itself
FEWEST, MOST = 256, 2048  # max_num_seqs where it is to be chosen
UNSAID = {"max_num_seqs": None, "most_num_seqs": None, "longest_wait_s": None, "most_used": None, "chunk_tokens": None,
          "most_load": None, "most_filled": None, "most_full": None, "least_load": None,
          "more_prompts": None}  # fmt: skip
BEFORE = (1.0, 4.0)  # waits before prefill of requests that wait for places too, in the longest turn
MANY = 1e9  # prompts that come while one request is there, at most
MOST_LOAD = 0.95  # through whose ρ/(1 − ρ) those of levels go
HALVINGS = 12  # of the interval in which a level ceases to be good for a class
QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)  # at which classes that share a limit are looked at
ENOUGH = 1e-9  # relative, by which a sum of shares may miss a quantile


@dataclass(frozen=True)
class Kind:
    """A class of requests; `weight`: requests/s, of which only ratios matter."""

    prompt: float
    output: float
    cached: float
    weight: float

    @property
    def new(self) -> float:
        """u: prompt tokens to prefill."""
        return max(self.prompt * (1.0 - self.cached), 1.0)


# What an engine may do ------------------------------------------------------------------------------------------------


def choices(limits: Any, drafts: int) -> list[int]:
    """What max_num_seqs may be: as said, or doubled from 256, and the most that leaves a step 16 prompt tokens."""
    if limits.max_num_seqs is not None:
        return [limits.max_num_seqs]
    most, room = limits.most_num_seqs or MOST, (limits.max_num_batched_tokens - 16) // (1 + drafts)
    doubled = [*itertools.takewhile(lambda n: n <= most, (FEWEST << k for k in itertools.count()))]
    return [*dict.fromkeys(min(n, room) for n in [*doubled, *(doubled[-1:] if room < doubled[-1] else [])])]


def loads(most: float | None = None, parts: int = 1, smallest: float | None = None) -> list[float]:
    """ρ that levels are offered at, from 0.01 on: ρ/(1 − ρ) grows by a half, in so many equal factors."""
    most, smallest = most or MOST_LOAD, smallest or 0.01
    odds = [MOST_LOAD / (1 - MOST_LOAD) * 1.5 ** (k / parts) for k in range(-60 * parts, 30 * parts)]
    least = min(o for k, o in enumerate(odds) if k % parts == 0 and o >= smallest / (1 - smallest) * (1 - 1e-9))
    return [o / (1 + o) for o in odds if least <= o <= most / (1 - most) * (1 + 1e-9)]


def step_times(c: StepCosts, limits: Any, parts: int = 1) -> list[float]:
    """Steps of these loads, of the largest a₀ and shorter ones of the least; the first is too short for a level."""
    at_loads = loads(getattr(limits, "most_load", None), parts, getattr(limits, "least_load", None))
    long, short = ([a0 / (1.0 - rho) for rho in at_loads] for a0 in (largest_fixed_s(c), least_fixed_s(c)))
    return sorted([c.fixed_s, *long, *(t for t in short if t < largest_fixed_s(c) / (1.0 - loads()[0]))])


def longest_step(times: Sequence[float], beyond: Callable[[float], float]) -> float | None:
    """The longest step that is not `beyond`, above 1; None where there is none. All longer ones are."""
    low, high = -1, len(times)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if beyond(times[middle]) <= 1.0 else (low, middle)
    return times[low] if low >= 0 else None


def beside(limits: Any, seqs: int) -> SimpleNamespace:
    """An `engine` section with so many sequences; whatever is not said has its default."""
    said = {key: getattr(limits, key, None) for key in (*UNSAID, "max_num_batched_tokens")}
    said |= {"longest_wait_s": said["longest_wait_s"] or 30.0, "most_used": said["most_used"] or 0.95}
    return SimpleNamespace(**said | {"max_num_seqs": seqs})


def places(kinds: Sequence[Kind], drafts: int, seqs: int, kv: float, ranks: int) -> int:
    """n: requests of the largest class that fits which a rank holds whole, each in a slot; 0: none fits."""
    whole = [k.prompt + k.output + drafts for k in kinds]
    largest = max((h for h in whole if h <= kv / ranks), default=math.inf)
    return min(seqs, math.floor(kv / ranks / largest)) if largest < math.inf else 0


# What a request adds to its steps, and crowds of them -----------------------------------------------------------------


def seen(c: StepCosts, context: float) -> float:
    """Tokens that attention sees of so many, mean over the layers."""
    if c.window is None:
        return context
    return c.window.share * min(context, c.window.tokens) + (1.0 - c.window.share) * context


def prompt_s(c: StepCosts, new: float, earlier: float, chunk: float, charged: bool) -> float:
    """Seconds that a prompt adds to its steps; `charged`: each chunk pays `prompt_step_s`."""
    starts = [earlier + j * chunk for j in range(math.ceil(new / chunk))]
    end, bend = earlier + new, math.inf if c.window is None else float(c.window.tokens)
    corners = [earlier, *([bend] if earlier < bend < end else []), end]  # between these `attended` is a straight line

    def attended(context: float) -> float:
        share = 0.0 if c.window is None else c.window.pair_share
        return share * min(context, bend) + (1.0 - share) * context if share else context

    pairs = sum((b - a) * (attended(a) + attended(b)) / 2 for a, b in itertools.pairwise(corners))
    return (
        c.prompt_token_s * new + c.prompt_pair_s * pairs + c.prompt_context_s * sum(seen(c, x) for x in starts)
        + (c.prompt_step_s * len(starts) if charged else 0.0)
    )  # fmt: skip


def decode_s(c: StepCosts, prompt: float, output: float, mixed: float) -> float:
    """Seconds that the output tokens after the first add to theirs; the share `mixed` of all steps carries prompts.

    An output that is a mean, and no whole number, is between those of its two neighbours on the parabola through them.
    """
    count = rounds(c, output)
    whole = math.floor(count)
    contexts = sum(seen(c, prompt + c.tokens * i) for i in range(whole))
    if count > whole:
        contexts = _progression(c, prompt, count, c.tokens)
    slope = c.context_s + (c.mixed_context_s - c.context_s) * mixed
    return c.decode_request_s * count + slope * contexts


def rounds(c: StepCosts, output: float) -> float:
    """Steps in which a request gets the output tokens after the first; in the mean where drafts are accepted by chance.

    So many as steps before which it lacks one: Σ_n P(n steps make fewer), up to 1,024 tokens, linear between whole
    numbers; further ones take a step for each 1 + a.
    """
    asked = output - 1.0
    if c.tokens <= 1:
        return asked
    whole = min(math.floor(asked), 1024)
    least, more = (_lacking(c.drafts, c.tokens, d) for d in (whole, min(whole + 1, 1024)))
    return least + (asked - whole) * (1 / c.tokens if whole == 1024 else more - least)


@cache
def _lacking(drafts: int, tokens: float, asked: int) -> float:
    """Σ_n P(S_n < asked), S_n being what n steps make, each one token and the drafts up to the first not accepted."""
    roots = np.roots([*([1.0] * drafts), 1.0 - tokens]) if tokens < 1 + drafts else np.ones(1)  # Σ pʲ = a
    p = max(float(r.real) for r in roots if abs(r.imag) < 1e-7 and -1e-9 <= r.real <= 1 + 1e-9)
    step = np.array([0.0, *(p**j * (1 - p) for j in range(drafts)), p**drafts])
    made, total = np.ones(1), 0.0
    while asked > 0 and made.sum() > 1e-15 and len(made) > 0:
        made = made[:asked]
        total += float(made.sum())
        made = np.convolve(made, step)
        made = made[:asked] if made[:asked].any() else np.zeros(0)
    return total


def speculating(c: StepCosts, s: Any, draft: StepCosts | None) -> StepCosts:
    """Costs of steps in which a decoding request has k drafts beside its last token.

    Args:
        c: of the model's steps.
        s: a `speculation` section.
        draft: of the draft model's steps; None: a head's, a share of the model's own.
    """
    k = s.drafts
    accepted = s.accepted if s.accepted is not None else sum(s.acceptance**i for i in range(1, k + 1))
    passes = draft or c.scaled(s.head or 0.0)  # k of them, each of which reads all its experts
    every_pass = passes.fixed_s + (passes.experts.all_s if passes.experts is not None else 0.0)
    # Draft i is verified as a prompt token after context + i others would be.
    verified = sum(c.prompt_token_s + c.prompt_pair_s * i for i in range(1, k + 1))
    return replace(
        c, fixed_s=c.fixed_s + k * every_pass,
        decode_request_s=c.decode_request_s + verified + k * passes.decode_request_s,
        **{f"{of}context_s": getattr(c, f"{of}context_s") + k * (c.prompt_pair_s + getattr(passes, f"{of}context_s"))
           for of in ("", "mixed_")},
        **{f"prompt_{of}_s": getattr(c, f"prompt_{of}_s") + getattr(passes, f"prompt_{of}_s")
           for of in ("step", "token", "pair", "context", "expert")},
        drafts=k, tokens=1 + accepted,
    )  # fmt: skip


def _progression(c: StepCosts, first: float, count: float, by: float) -> float:
    """Σ of what is seen of first, first + by, …, of a number of terms that is not whole."""

    def plain(terms: float) -> float:
        return terms * first + by * terms * (terms - 1.0) / 2.0

    if c.window is None:
        return plain(count)
    below = min(max(math.ceil((c.window.tokens - first) / by), 0.0), count)
    capped = plain(below) + (count - below) * c.window.tokens
    return c.window.share * capped + (1.0 - c.window.share) * plain(count)


def fixed_s(c: StepCosts, decoding: float, mixed: float, charged: bool) -> float:
    """a₀ beside so many decoding requests; the share `mixed` of steps carries prompts, which touch every expert."""
    experts = 0.0
    if c.experts is not None:
        touched = 1.0 - (1.0 - c.experts.active / c.experts.experts) ** ((1 + c.drafts) * decoding)
        experts = c.experts.all_s * ((1.0 - mixed) * touched + mixed)
    return c.fixed_s + experts + (0.0 if charged else c.prompt_step_s)


def largest_fixed_s(c: StepCosts) -> float:
    """a*: a₀ of a step that carries prompts and touches every expert."""
    return fixed_s(c, math.inf, 1.0, False)


def least_fixed_s(c: StepCosts) -> float:
    """a₀ of a step without prompts in which one request decodes."""
    return fixed_s(c, 1.0, 0.0, True)


def allowed_crowd(most: float, load: float, seldom: float = SELDOM) -> float:
    """The largest mean of a negative binomial crowd, variance/mean 1/(1 − ρ), that seldom reaches `most`; 0: none."""

    def above(mean: float) -> float:
        return float(betainc(most, mean * (1.0 - load) / load + 1.0, load)) - seldom

    if most <= 0 or above(0.0) > 0:
        return 0.0
    return float(brentq(above, 0.0, most, xtol=1e-14 * most, rtol=1e-14)) if above(most) > 0 else most


def crowd_at(quantile: float, fixed_crowd: float, load: float, more: float = 0.0) -> float:
    """The crowd that is exceeded with probability 1 − quantile: Cornish–Fisher's expansion to the skewness.

    `more`: variance beside the crowd's own, which leaves the skewness as it is.
    """
    mean = (fixed_crowd + load) / (1.0 - load)
    skewness = (1.0 + load) / math.sqrt(fixed_crowd + load)
    z = float(norm.ppf(quantile))
    return mean + math.sqrt(mean / (1.0 - load) + more) * (z + skewness * (z * z - 1.0) / 6.0)


def runtime_gib(stated: float | None, safety: float | None, shape: Architecture) -> float:
    """Of an engine on each GPU: as stated, or 1 GiB and what logs of as many models had at most beside it."""
    if stated is not None:
        return stated
    if safety is None:
        return 1.0
    routed = shape.moe is not None and shape.moe.dense_layers < shape.layers
    ends = catalog.kv_memory_document()["experts" if routed else "dense"]["gib"]
    above = [float(level) for level in ends if float(level) >= safety] or [max(map(float, ends))]
    return 1.0 + float(ends[f"{min(above):g}"][1])


def adapters_gib(lora: Any, shape: Architecture, tp: int) -> float:
    """What LoRA adapters take of each GPU of an attention rank: as stated, or matrix by matrix in 16 bits.

    A projection of n × m numbers has A of n·r and B of r·m. Of queries, keys, values, gate and up A is whole on every
    GPU and B cut into `tp` parts, of the output's and the down projection it is the other way round.
    """
    if lora is None:
        return 0.0
    if lora.gib_each is not None:
        return float(lora.max_loras * lora.gib_each / tp)
    r, values, copies = lora.max_lora_rank, shape.head_dim, replicas_of_a_head(shape, tp)
    outputs = [shape.heads * shape.head_dim * (2 if shape.attention_gate else 1) / tp]
    outputs += [copies * shape.kv_heads * width / tp for width in (shape.head_dim, values)]
    numbers = shape.layers * (sum(r * shape.hidden + r * out for out in outputs)
                              + r * shape.heads * values / tp + r * shape.hidden)  # fmt: skip
    whole, cut = r * shape.hidden, r * shape.ffn / tp
    dense = shape.layers if shape.moe is None else shape.moe.dense_layers
    numbers += dense * shape.ffn_matrices * (whole + cut)
    return float(lora.max_loras * 2.0 * numbers / 2**30)


def adapting(costs: StepCosts, lora: Any) -> StepCosts:
    """Steps as long as stated with adapters."""
    return costs if lora is None else costs.scaled(lora.slower)


def kv_tokens(
    work: LayerWork, shape: Architecture, usable_bytes: float, tp: int, pass_tokens: int, seqs: int, request: float,
    drafts: int = 0, head: float = 0.0, draft: tuple[LayerWork, Architecture] | None = None, ranks: int = 1,
) -> float:  # fmt: skip
    """Tokens that the cache of an engine holds beside weights and a full pass; 0 or less: there is no room.

    Args:
        work, shape: of the model.
        usable_bytes: of each GPU.
        tp: GPUs of an attention rank.
        pass_tokens: prompt tokens of a rank's pass.
        seqs: sequences of a rank's pass, each with its logits.
        request: tokens of a request; short ones take most a token, where layers have windows or states.
        drafts: that a sequence has verified in a pass, each with its logits.
        head: share of the model's weights and cache that a draft head has beside.
        draft: the draft model, whose weights and cache are beside.
        ranks: attention ranks of the engine, whose caches are counted together.
    """
    logits = ranks * (1 + drafts) * seqs * work.logit_bytes_per_sequence
    logits += ranks * tp * max(seqs - 256, 0) * shape.vocab * 31.0  # sampled beyond what the runtime has room for
    room = ranks * tp * usable_bytes - _held_by_ranks(work, shape, tp, pass_tokens, ranks) - logits
    room -= head * _held_by_ranks(work, shape, tp, 0, ranks)
    of_request = (1 + head) * _cache_bytes(work, shape, tp, request)
    if draft is not None:
        room -= _held_by_ranks(*draft, tp, 0, ranks)
        of_request += _cache_bytes(*draft, tp, request)
    return float(room / (of_request / request))


def _held_by_ranks(work: LayerWork, shape: Architecture, tp: int, pass_tokens: float, ranks: int) -> float:
    """Weights and a pass of every rank; the routed experts are spread over all of them, and there once."""
    experts = shape.layers * work.expert_weight_bytes
    return ranks * (held_bytes(work, shape, tp, pass_tokens, 0) - experts) + experts


def _cache_bytes(work: LayerWork, shape: Architecture, tp: int, request: float) -> float:
    """Of a request of so many tokens, on all GPUs."""
    once = work.seen(request) * work.kv_bytes_per_token_all_layers * replicas_of_a_head(shape, tp)
    return float(once + shape.layers * work.state_bytes)


def sent_bytes(cached: Sequence[tuple[LayerWork, Architecture, float]], prompt: float) -> float:
    """Of a prompt's caches, each so many times as large as that of (work, shape) on one GPU."""
    return sum(share * _cache_bytes(work, shape, 1, prompt) for work, shape, share in cached)


# The levels of fleet --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """An engine at a planned step time; lists are by class.

    Attributes:
        fixed_s: a₀, with the share e of what a step that carries prompts costs besides.
        rows: what one request/s of a class takes of the engine, of time, slots, memory, tokens and chunks.
        turn_s, mean_turn_s: s, and what a request/s adds to Σ λs.
        crowd_s: c, of a running request in a step: the larger of the class's own mean and the mixture's.
        own_s: d, of a request in each of its own decode steps.
        beside_s: t″, of a step of a class's own prompt at a quantile, what other ranks prefill in it included.
        late_s: F, of the prompts that come while one of the class is prefilled.
        late_token_s: F/((1 − ρ)D), how much longer these make each of its decode steps.
        prompts_var: V, s²: by how much what others' prompts add to a request's decode steps varies, in their mean; at
            most, whatever mixture of the classes that can be on the level it takes.
        carries_s: o, by which a step with a prompt is longer than a₀ has it.
        busiest_s: x − R, by which a step with a chunk of a class's own prompt is longer than a₀ has it, as its rank has
            all of the work outside the experts.
        most_crowd_s: ĉ, the largest c of a class that can be on the level.
        ranks: D, of data-parallel attention.
        fits: whether a class can be on the level.
        work_s, steps, rounds: W, and steps in all and of decoding, of a request.
        decode_step_s: d, work of a decode step: the larger of the class's own mean and the mixture's.
        came: μ, equal prompts that come while a request of a class is there, in the mean.
        prompts: (P, Q, max p, max p/U) of others' prompts; P = 0 where there are none.
        seqs: that run at most, on each rank.
        place: requests wait for one of so many places, each of a slot and a whole request's cache.
    """

    step_s: float
    fixed_s: float
    rows: list[tuple[float, ...]]
    turn_s: list[float]
    mean_turn_s: list[float]
    chunks: list[int]
    prefill_s: list[float]
    beside_s: list[float]
    crowd_s: list[float]
    own_s: list[float]
    steps_per_token: list[float]
    late_s: list[float]
    late_token_s: list[float]
    prompts_var: list[float]
    carries_s: float
    busiest_s: list[float]
    most_crowd_s: float
    ranks: int
    fits: list[bool]
    work_s: list[float]
    steps: list[float]
    rounds: list[float]
    decode_step_s: list[float]
    came: list[float]
    prompts: tuple[float, float, float, float]
    seqs: int
    place: bool = False

    def in_places_s(self, before_s: float) -> list[float]:
        """s_w: seconds of all places together that a request of each class has one for, after such a wait."""
        held = [(n * self.fixed_s + before_s * self.fixed_s / self.step_s) / (self.seqs * self.ranks)
                for n in self.steps]  # fmt: skip
        return [h + w for h, w in zip(held, self.work_s, strict=True)]

    def with_places(self, before_s: float, load: float) -> Level:
        """Its rows where so large a share of its places is taken."""
        rows = [
            (r[0], *([s / load if fits and load > 0 else math.inf] * 2), *r[3:])
            for r, s, fits in zip(self.rows, self.in_places_s(before_s), self.fits, strict=True)
        ]
        return replace(self, rows=rows, place=True)

    def least_place_s(self, before_s: float, load: float) -> float:
        """ω_s: the least mean wait for a place that so large a share of taken places asks for.

        It is F·θ, where requests wait at all, and θ is no more than 1 + R/2 times as long.
        """
        each = [(s, w) for s, w, fits in zip(self.in_places_s(before_s), self.work_s, self.fits, strict=True) if fits]
        n, k, gamma = self.seqs, np.arange(1, self.seqs + 1), min(w / s for s, w in each)
        theta_s = (1.0 - 1.0 / (2.0 * math.sqrt(n))) * self.ranks * max(s for s, _ in each) / (1.0 - load)
        ways = np.zeros(n + 1)  # to so many requests, in logarithms
        if load > 0:
            ways[1:] = np.cumsum(np.log((1.0 - gamma) * load * n / k + gamma * load))
            ways[-1] -= math.log1p(-load)  # and all that wait
        full = math.exp(ways[-1] - float(logsumexp(ways))) if load > 0 else 0.0
        return max(full * theta_s, theta_s / (1.0 + CLASSES_OF_WAIT[0] / 2.0))

    def place_load(self, before_s: float, place_s: float, most_used: float) -> float:
        """b̂: share of the places that may be taken where a request waits so long for one in the mean; 0: none."""
        if self.least_place_s(before_s, most_used) <= place_s:
            return most_used
        low, high = 0.0, most_used
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.least_place_s(before_s, middle) <= place_s else (low, middle)
        return low


def binds(rows: Iterable[Sequence[float]], which: Sequence[int]) -> bool:
    """Whether for anything it is one of these capacities that is scarcest."""
    return any(max(r[j] for j in which) >= max(r) for r in rows)


def levels(
    c: StepCosts, kinds: Sequence[Kind], limits: Any, kv: float, *, stage: str = "both",
    moved_s: Sequence[float] = (), ranks: int = 1, place: bool = False,
    beyond: Callable[[Level], float] | None = None, known: dict[float, Level | None] | None = None,
) -> list[Level]:  # fmt: skip
    """Those that there are at steps a₀/(1 − ρ) of the largest a₀, at shorter ones of the least, and the best one.

    The best is the longest that is not `beyond`, above 1: a longer one takes less of time and more of all else. It may
    be shorter than the shortest of these: down to what a step takes whatever is in it.

    `place`: requests wait for one of `max_num_seqs` places, of which as many are taken as may ever be.
    `known`: those of step times that were asked before, of the same engine.
    """
    times, known = step_times(c, limits), {} if known is None else known

    def at(t: float) -> Level | None:
        if t not in known:
            x = level(c, kinds, limits, kv, t, stage, moved_s, ranks)
            known[t] = x.with_places(0.0, limits.most_used) if x is not None and place else x
        return known[t]

    def m(t: float) -> float:
        """0 where there is no level, as the step is too short for one."""
        return 0.0 if beyond is None or (x := at(t)) is None else beyond(x)

    of = [m(t) for t in times] if beyond is not None else []
    last = max((j for j, each in enumerate(of) if each <= 1.0), default=len(times) - 1)
    if last < len(times) - 1 and (of[last + 1] < math.inf or at(times[last]) is not None):  # else it is on no level
        kept, over = times[last], times[last + 1]
        for _ in range(HALVINGS):
            middle = (kept + over) / 2
            kept, over = (middle, over) if m(middle) <= 1.0 else (kept, middle)
        times.append(kept)
    return [x for t in sorted(set(times)) if (x := at(t)) is not None]


def too_long(kinds: Sequence[Kind], tpot: tuple[float, float | None]) -> Callable[[Level], float]:
    """TPOT of a mixture over its limit, or slots, cache or tokens over time, whichever is most."""
    weights = [k.weight for k in kinds]

    def beyond(x: Level) -> float:
        time, *others = mean_row(weights, [row[:4] for row in x.rows])
        scarcer = max(others) / time if time > 0 else math.inf
        if all(k.output <= 1 for k in kinds):
            return scarcer
        answers = [w if k.output > 1 else 0.0 for w, k in zip(weights, kinds, strict=True)]
        late = bound(
            weights if tpot[1] is not None else answers,
            lambda j, q: tpot_s(x, j, q) if kinds[j].output > 1 else 0.0, tpot[1],
        )  # fmt: skip
        return max(scarcer, late / tpot[0])

    return beyond


def joins_s(c: StepCosts, step_s: float, moved_s: float) -> float:
    """Until a request joins an engine that only decodes: its cache comes, and the step then under way ends."""
    return step_s + moved_s + c.request_s


def level(
    c: StepCosts, kinds: Sequence[Kind], limits: Any, kv: float, t: float, stage: str = "both",
    moved_s: Sequence[float] = (), ranks: int = 1,
) -> Level | None:  # fmt: skip
    """The level of a step time t, or None where its fixed seconds exceed it, or it has nothing to do.

    Args:
        c: of the engine.
        kinds: classes of requests.
        limits: the instance's `engine` section, of each rank.
        kv: tokens that the cache holds, of all ranks.
        t: seconds of a step.
        stage: what the engine does of a request: of one token of output where it only prefills, without a prompt to
            prefill where it only decodes.
        moved_s: seconds that each class's cache is on its way from or to it; it is held meanwhile.
        ranks: attention ranks that requests are dealt to at random, each with slots, cache and room of its own, all in
            step.
    """
    if stage == "prefill":
        kinds = [replace(k, output=1.0) for k in kinds]
    fresh = [0.0 if stage == "decode" else k.new for k in kinds]  # u

    def mixture(values: Sequence[float]) -> float:
        return sum(k.weight * v for k, v in zip(kinds, values, strict=True)) / sum(k.weight for k in kinds)

    seqs, most_tokens = limits.max_num_seqs, limits.max_num_batched_tokens
    own_most = math.inf if limits.chunk_tokens is None else float(limits.chunk_tokens)
    whole = [prompt_s(c, u, k.prompt - u, max(u, 1.0), False) for u, k in zip(fresh, kinds, strict=True)]  # one chunk
    alone = [w + c.prompt_step_s * (stage != "decode") + decode_s(c, k.prompt, k.output, 0.0)
             for w, k in zip(whole, kinds, strict=True)]  # fmt: skip
    if mixture(alone) <= 0:
        return None
    fewest = [math.ceil(u / min(most_tokens, own_most)) for u in fresh]
    carry = max(t - c.fixed_s, 0.0) * mixture(fewest) / mixture(alone)  # chunks a step of the mixture at full load
    varies = c.mixed_context_s != c.context_s or (c.experts is not None and c.experts.all_s > 0)
    phi = 1.0 if stage == "prefill" else min((limits.more_prompts or 3.0) * carry, 1.0) if varies else 0.0
    lightest = c.decode_request_s + c.context_s * min(k.prompt for k in kinds)
    most = float(ranks * seqs)
    crowd = min(most, max(t - c.fixed_s, 0.0) / lightest) if lightest > 0 else most
    a = fixed_s(c, crowd, phi, True)
    if a >= t:
        return None
    room = float(_room(c, limits))
    chunk = min(room, own_most)
    chunks = [math.ceil(u / chunk) for u in fresh]
    prefill = [prompt_s(c, u, k.prompt - u, chunk, False) for u, k in zip(fresh, kinds, strict=True)]
    decode = [decode_s(c, k.prompt, k.output, phi) for k in kinds]
    full = [u / (ranks * room) for u in fresh]  # U
    beyond = [max(m - n, 0.0) for m, n in zip(chunks, full, strict=True)]  # y
    tokens_s = mixture([p + d for p, d in zip(prefill, decode, strict=True)])
    others = [(ranks - 1.0) * (p - c.prompt_expert_s * u) / m if m else 0.0
              for p, u, m in zip(prefill, fresh, chunks, strict=True)]  # x  # fmt: skip
    weights = [k.weight / sum(k.weight for k in kinds) for k in kinds]
    longer, waits = longest_chunks(
        [p * m for p, m in zip(weights, chunks, strict=True)], others, t - a, tokens_s, c.prompt_step_s,
        None if stage == "prefill" else (mixture(full), mixture(beyond)),
    )  # fmt: skip
    if a + longer >= t:
        return None
    slower = [m * g for m, g in zip(chunks, waits, strict=True)]
    tokens_s += mixture(slower)
    other = None if stage == "prefill" else other_chunks(c, t - a - longer, tokens_s, mixture(full), mixture(beyond))
    if other is None:  # every step carries a prompt
        every, paid = 1.0, [0.0 for _ in kinds]
    else:
        every = -math.expm1(-other) - other * math.exp(-other)
        paid = [n + math.exp(-other) * y for n, y in zip(full, beyond, strict=True)]
    a0, carries_s = a + longer + every * c.prompt_step_s, (1.0 - every) * c.prompt_step_s
    rho = 1.0 - a0 / t
    if rho <= 0:
        return None
    # Of the steps, for its prompt.
    asks = [p + n * c.prompt_step_s + b for p, n, b in zip(prefill, paid, slower, strict=True)]
    work = [p + d for p, d in zip(asks, decode, strict=True)]
    decodes = [rounds(c, k.output) for k in kinds]
    steps = [m + r for m, r in zip(chunks, decodes, strict=True)]
    own = [d / r if r > 0 else 0.0 for d, r in zip(decode, decodes, strict=True)]
    per_token = [r / (k.output - 1.0) if k.output > 1 else 0.0 for r, k in zip(decodes, kinds, strict=True)]
    seldom, filled = getattr(limits, "most_full", None) or SELDOM, getattr(limits, "most_filled", None) or FILLED
    slots = ranks * allowed_crowd(float(seqs), rho, seldom)

    # Token-steps of the cache, and their squares: a prompt counts whole in its chunks, and while its cache is on its
    # way; one that has come waits for the next step.
    joins = 1.0 if stage == "decode" else 0.0
    whole_steps = [m + joins + s / t for m, s in zip(chunks, moved_s or [0.0] * len(kinds), strict=True)]
    # Sums over j < r of h + g·j and its square, by Faulhaber, as r is a mean and may be no whole number.
    sums = [(r, r * (r - 1) / 2, r * (r - 1) * (2 * r - 1) / 6) for r in decodes]
    first_held = [k.prompt + 1 + c.drafts for k in kinds]
    held = [
        m * k.prompt + n * h + c.tokens * j
        for m, k, h, (n, j, _) in zip(whole_steps, kinds, first_held, sums, strict=True)
    ]
    squares = [
        m * k.prompt**2 + n * h**2 + 2 * c.tokens * h * j + c.tokens**2 * jj
        for m, k, h, (n, j, jj) in zip(whole_steps, kinds, first_held, sums, strict=True)
    ]
    kv /= ranks  # a rank's, which has so small a part of the requests, too
    held_whole = [k.prompt + k.output + c.drafts <= kv for k in kinds]
    typical = mixture(squares) / mixture(held)
    mean = allowed_crowd(kv / typical, rho, seldom)
    rows = []
    for i in range(len(kinds)):
        memory = math.inf
        if mean > 0 and held_whole[i]:
            spread = math.sqrt(mean / (1.0 - rho))
            z, sigma = (kv / typical - mean) / spread, typical * spread
            memory = t * (held[i] + z * squares[i] / (2.0 * sigma * (1.0 - rho))) / (kv - z * sigma / 2.0) / ranks
        rows.append((
            work[i] / rho, steps[i] * t / slots if slots > 0 else math.inf, memory,
            fresh[i] * t / (filled * ranks * room), chunks[i] * t / phi if chunks[i] and varies and phi < 1 else 0.0,
        ))  # fmt: skip

    each = [max(w / n, mixture(work) / mixture(steps)) if n else 0.0 for w, n in zip(work, steps, strict=True)]
    fits = [h and (stage != "decode" or k.output > 1) for h, k in zip(held_whole, kinds, strict=True)]
    heaviest = max((c_s for c_s, can in zip(each, fits, strict=True) if can), default=0.0)
    per_round = mixture(decode) / mixture(decodes) if mixture(decodes) > 0 else 0.0
    one_round = [max(o, per_round) for o in own]
    none = [0.0] * len(kinds)
    x = Level(
        t, a0, rows, none, none, chunks, prefill, none, each, own, per_token, none, none, none, carries_s, none,
        heaviest, ranks, fits, work, steps, decodes, one_round, none, (0.0, 0.0, 0.0, 0.0), seqs,
    )  # fmt: skip
    if stage == "decode":  # nothing waits for prefill
        return x
    v = mixture(asks) / mixture(work)
    gamma = min(p / (n * t) for p, n in zip(asks, full, strict=True))
    beside = [a0 + rho * t * max(d / w, 1.0 - v) for d, w in zip(decode, work, strict=True)]
    # Others' prompts are few and long: a second of prefill is in one of so many in the mean, or of the class's own.
    typical_s = mixture([p * p for p in asks]) / mixture(asks) if v > 0 else 0.0
    busy = [rho * max(p / w, v) for p, w in zip(asks, work, strict=True)]  # ρ_p
    late = [b * max(p, typical_s) for b, p in zip(busy, asks, strict=True)]  # F
    # Of whatever is on the level Σ λW ≤ ρ, so that Σ λp² and Σ λp are at most those of the classes with most per W.
    can = [(p, w) for p, w, able in zip(asks, work, fits, strict=True) if able and w > 0]
    square = rho * max((p * p / w for p, w in can), default=0.0)  # Q
    share = rho * max((p / w for p, w in can), default=0.0)  # P
    # Those that come while a request waits, is prefilled and decodes, as many equal ones: P²/Q a second.
    longer_s = [b + carries_s for b in beside]  # b
    queue = [(n * b + p, p, n, w) for n, b, p, w, able in zip(full, longer_s, asks, work, fits, strict=True)
             if able and p > 0]  # fmt: skip
    came, prompts = none, x.prompts
    if share > 0:
        busy_share = rho * max(s / w for s, _, _, w in queue)  # X
        wait_s = math.inf
        if busy_share < 1:
            wait_s = rho * max(ranks * s * s / w for s, _, _, w in queue) / (2.0 * (1.0 - busy_share))
        came = [min((r * t + m * b + p + wait_s) * share * share / square, MANY)
                for r, m, b, p in zip(decodes, chunks, longer_s, asks, strict=True)]  # fmt: skip
        prompts = (share, square, max(p for _, p, _, _ in queue), max(p / n for _, p, n, _ in queue))
    return replace(
        x,
        turn_s=[n * b + p for n, b, p in zip(full, longer_s, prefill, strict=True)],
        mean_turn_s=[
            n * (a0 + carries_s + rho * t * (1.0 - v) ** 2) + p + (d * rho * v**2 / gamma if v > 0 else 0.0)
            for n, p, d in zip(full, prefill, decode, strict=True)
        ],
        beside_s=[s + (1.0 - 1.0 / ranks) * b * t for s, b in zip(beside, busy, strict=True)],
        late_s=late, late_token_s=[f / ((1.0 - rho) * n) if n > 0 else 0.0 for f, n in zip(late, decodes, strict=True)],
        prompts_var=[square * t / (n * (1.0 - share) ** 2) if n > 0 else 0.0 for n in decodes],
        busiest_s=[max(s - longer, 0.0) for s in others], came=came, prompts=prompts,
    )  # fmt: skip


def longest_chunks(
    a_request: Sequence[float], x: Sequence[float], left_s: float, tokens_s: float, prompt_step_s: float,
    full: tuple[float, float] | None,
) -> tuple[float, list[float]]:  # fmt: skip
    """(R, g): what a step is longer by for its longest chunk, and of that what a chunk of each class pays.

    Chunks of a step are Poisson, n·A(z) of them longer than z: the longest is ∫ 1 − e^(−nA(z)) dz in the mean, which is
    concave in n. At the n of a full step its tangent has R at no requests, and ∫ to x of e^(−nA(z)) dz for each chunk.

    Args:
        a_request: chunks of each class that the mean request has.
        x: seconds of each.
        left_s: of a step, beside its fixed ones.
        tokens_s: of the mean request, beside `prompt_step_s` and these.
        prompt_step_s: of a step that carries prompts.
        full: (steps that the mean request fills, chunks that it has beyond those); None: every step carries prompts.
    """
    ends = sorted({0.0, *x})
    parts = [(low, high, sum(m for m, z in zip(a_request, x, strict=True) if z > low))
             for low, high in itertools.pairwise(ends)]  # between these A(z) is the same  # fmt: skip

    def step(n: float) -> float:
        carried = 1.0 if full is None else n * full[0] - math.expm1(-n * full[1])
        longest = sum((high - low) * -math.expm1(-n * many) for low, high, many in parts)
        return n * tokens_s + prompt_step_s * carried + longest - left_s

    if not parts:
        return 0.0, [0.0 for _ in x]
    n = float(brentq(step, 0.0, left_s / tokens_s, xtol=1e-15, rtol=1e-15)) if step(0.0) < 0 else 0.0
    base = sum((high - low) * (1.0 - (1.0 + n * many) * math.exp(-n * many)) for low, high, many in parts)
    return base, [sum((high - low) * math.exp(-n * many) for low, high, many in parts if high <= z) for z in x]


def other_chunks(c: StepCosts, left_s: float, tokens_s: float, full: float, beyond: float) -> float | None:
    """y₀: chunks a step at full load beyond those that fill steps; None where every step carries a prompt.

    At ν requests a step, each chunk that fills a step pays for it, and of others in one the first does:
    ν·(w + prompt_step·U) + prompt_step·(1 − e^(−ν·y)) is what a step has left. Where steps that all pay have room for
    more than ν requests, all do.

    Args:
        c: of the engine.
        left_s: t − a, of a step.
        tokens_s: w, of the mean request beside `prompt_step_s`.
        full: U, steps that its prompt fills.
        beyond: y, chunks that it has beyond those.
    """
    ps = c.prompt_step_s

    def too_long(nu: float) -> float:
        return nu * (tokens_s + ps * full) - ps * math.expm1(-nu * beyond) - left_s

    high = left_s / (tokens_s + ps * full)
    least = left_s / (tokens_s + ps * (full + beyond))
    nu = float(brentq(too_long, 0.0, high * (1 + 1e-9), xtol=1e-15 * least, rtol=1e-15)) if ps * beyond > 0 else high
    if left_s - ps > nu * tokens_s * (1 + HAIR):
        return None
    return nu * beyond


def tpot_s(x: Level, i: int, quantile: float | None) -> float:
    """Seconds per output token after the first of class i, at most; 0 where there is none.

    In the mean a request waits in its decode steps for a₀, its own work and that of the others: ρ of (a₀ + c)/(1 − ρ);
    for no more than as many of the heaviest class as there are places, where others wait for these. At a quantile its
    steps last as those of a crowd whose variance has V/c² beside, and which at most is as many as run of the heaviest
    class. Either way it has besides what came while its prompt was prefilled.
    """
    rho = 1.0 - x.fixed_s / x.step_s
    heavier = max(x.most_crowd_s, x.crowd_s[i])
    if quantile is None:
        crowd_s = x.own_s[i] + rho * (x.fixed_s + x.crowd_s[i]) / (1.0 - rho)
        n = x.rounds[i]
        if 0 < n < 16 and x.prompts[0] > 0:  # the excess of its prompt's step dies out geometrically in those after it
            excess = x.work_s[i] - x.own_s[i] * n + x.work_s[i] / (rho**-2 - 1.0)
            left = rho * (1.0 - rho**n) / (1.0 - rho)
            few = x.step_s + x.own_s[i] / (1.0 - rho) + excess * left / n
            many = x.fixed_s + crowd_s + x.late_token_s[i]
            crowd_s += min(max(2.0 - n / 8.0, 0.0), 1.0) * max(few - many, 0.0)
        if x.place:
            crowd_s = min(crowd_s, x.ranks * x.seqs * heavier)
        return x.steps_per_token[i] * (x.fixed_s + crowd_s + x.late_token_s[i])
    most = x.ranks * x.seqs * heavier / x.crowd_s[i]

    def running(variance: float) -> float:
        return min(max(crowd_at(quantile, rho * x.fixed_s / x.crowd_s[i], rho, variance), 1.0), most)

    many = x.fixed_s + 1.15 * x.crowd_s[i] * running(x.prompts_var[i] / x.crowd_s[i] ** 2) + x.late_token_s[i]
    n, few = x.rounds[i], 0.0
    if 0 < n < 16 and x.prompts[0] > 0:
        few = x.fixed_s + 1.15 * x.decode_step_s[i] * running(0.0) + _prompts_in_steps_s(x, i, quantile)
    return x.steps_per_token[i] * (many + min(max(2.0 - n / 8.0, 0.0), 1.0) * max(few - many, 0.0))


def _prompts_in_steps_s(x: Level, i: int, quantile: float) -> float:
    """J: what prompts of others make each of few decode steps longer by, of which as many came as at a quantile."""
    share, square, longest_s, filled_s = x.prompts
    mu, z = x.came[i], float(norm.ppf(quantile))
    spread, skew = mu + z * math.sqrt(mu), (z * z - 1.0) / 6.0
    followed = followed_quantile(quantile, mu, share)
    work_s = max(followed * square / share, (spread * square / share + skew * longest_s) / (1.0 - share))
    return min(1.15 * work_s / x.rounds[i], filled_s)


def followed_quantile(quantile: float, mu: float, share: float) -> float:
    """Customers of busy periods that Poisson many begin, each with `share` more in its own time, at a quantile.

    A Poisson number of Borel ones, by Panjer's recursion; by moments where there are many.
    """
    if mu > 30 * (1 - share):
        z, left = float(norm.ppf(quantile)), 1 - share
        skew = (1 + 2 * share) * (z * z - 1) / 6 / left**2
        return float(mu / left + z * math.sqrt(mu / left**3) + skew)

    sizes, chances = np.zeros(4096), np.zeros(4096)  # j times the chance that one begins j (Borel); of so many in all
    chances[0] = math.exp(-mu)
    within, k = chances[0], 0
    while within < quantile:
        k += 1
        logs = (k - 1) * math.log(share * k) if share > 0 else -math.inf if k > 1 else 0.0
        sizes[k] = k * math.exp(logs - share * k - math.lgamma(k + 1.0))
        chances[k] = mu / k * float(sizes[1 : k + 1] @ chances[k - 1 :: -1][:k])  # Panjer's recursion
        within += chances[k]
    return float(k)


def ttft_s(x: Level, i: int, quantile: float | None, most: float, request_s: float) -> tuple[float, float]:
    """Seconds to the first token of class i but for waiting, at most, and of how many ω the wait is counted."""
    beside = x.late_s[i] / 2.0 + request_s  # others' prompts in the step of its own, and what is outside the steps
    if quantile is None or quantile <= 0.5:
        carries = x.carries_s + x.busiest_s[i]
        return 0.5 * x.step_s + x.chunks[i] * (x.step_s + carries) + x.prefill_s[i] + beside, 1.0
    at = [-math.log(1.0 - q) for q in (0.9, 0.95, 0.99)]
    here = -math.log(1.0 - min(quantile, 1.0 - 1e-12))
    columns = ((0.75, 0.82, 0.98), (1.2, 1.15, 0.97), (1.05, 1.06, 1.09))
    first, own, waits = (float(np.interp(here, at, column)) for column in columns)
    step_s = x.beside_s[i] + x.carries_s + x.busiest_s[i]
    base = first * x.step_s + own * (x.chunks[i] * step_s + x.prefill_s[i]) + beside
    return base, waits * _longest_wait(1.0 - quantile, most)


@cache
def _longest_wait(above: float, most: float) -> float:
    """The wait that is exceeded with probability `above`, in ω, of the mixture in which it is longest.

    Prompts wait with probability ρ, and then exponentially, with mean θ ≤ min(1/ρ, most/2/(1 − ρ)): found by trying ρ.
    """

    def wait(rho: float) -> float:
        return min(1.0 / rho, most / 2.0 / (1.0 - rho)) * math.log(rho / above)

    low, high = above, 1.0 - 1e-15
    for _ in range(200):  # one peak
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (a, high) if wait(a) < wait(b) else (low, b)
    return max(wait(low), 0.0)


# Several classes under one limit --------------------------------------------------------------------------------------


def mean_row(weights: Sequence[float], rows: Sequence[Sequence[float]]) -> list[float]:
    """What one request/s of a mixture takes of each capacity."""
    return [sum(w * v for w, v in zip(weights, column, strict=True)) / sum(weights)
            for column in zip(*rows, strict=True)]  # fmt: skip


def bound(weights: Sequence[float], of: Callable[[int, float | None], float], quantile: float | None) -> float:
    """What a mixture stays below, in the mean (None) or at a quantile, of each class's own bounds.

    Of class w at least the share g is below x wherever its bound at g is no more; of all of them Σ f_w·g_w is. One
    class has its own bound; 0 where nothing has a weight.

    Args:
        weights: of the classes, whose shares f they are together.
        of: (class, quantile or None for the mean) → its bound.
        quantile: of the mixture.
    """
    total = sum(weights)
    if quantile is None:
        return sum(w * of(i, None) for i, w in enumerate(weights) if w) / total if total else 0.0
    if len(weights) == 1:
        return of(0, quantile)
    steps = sorted((of(i, g), i, g) for i in range(len(weights)) for g in {*QUANTILES, quantile})
    return _first(steps, weights, quantile)


def longest(
    weights: Sequence[float], of: Callable[[int, float | None], tuple[float, float]], quantile: float | None,
    limit_s: float,
) -> float:  # fmt: skip
    """The longest wait ω at which a mixture keeps a limit; `of`: (class, quantile) → (seconds without it, ω more)."""
    total = sum(weights)
    if quantile is None or len(weights) == 1:
        both = [of(i, quantile) for i in range(len(weights))]
        base, per = (sum(w * v for w, v in zip(weights, x, strict=True)) / total for x in zip(*both, strict=True))
        return (limit_s - base) / per
    found = []  # shorter waits let more of a class be in time
    for i in range(len(weights)):
        for g in {*QUANTILES, quantile}:
            base, per = of(i, g)
            found.append((-(limit_s - base) / per, i, g))
    return -_first(sorted(found), weights, quantile)


def _first(steps: Sequence[tuple[float, int, float]], weights: Sequence[float], quantile: float) -> float:
    """Of steps (x, class, quantile) in order the x from which on enough of all classes is reached."""
    reached = [0.0] * len(weights)
    for j, (x, i, g) in enumerate(steps):
        reached[i] = max(reached[i], g)
        if j + 1 < len(steps) and steps[j + 1][0] == x:
            continue
        if sum(w * r for w, r in zip(weights, reached, strict=True)) >= quantile * sum(weights) * (1 - ENOUGH):
            return x
    return math.inf


def limit(of: Any) -> tuple[float, float | None]:
    """A limit's seconds, and its percentile; None: the mean."""
    if of is None:
        return math.inf, None
    return (of, None) if isinstance(of, float | int) else (of.at_most, of.percentile)


# Requests that all keep one limit -------------------------------------------------------------------------------------


class Bounds:
    """What a mixture on a level stays below: TTFT, TPOT and E2E, at a quantile or (None) in the mean.

    Args:
        c: of the engine's steps.
        slower: first tokens take so many times as long yet.
        kinds: of the requests.
        x: the level.
        most: a prompt may keep others waiting at most so many ω by itself.
    """

    def __init__(self, c: StepCosts, slower: float, kinds: Sequence[Kind], x: Level, most: float) -> None:
        self.c, self.slower, self.x, self.most = c, slower, x, most
        self.weights = [k.weight / sum(k.weight for k in kinds) for k in kinds]
        self.after = [k.output - 1 for k in kinds]  # tokens

    def first(self, i: int, at: float | None) -> tuple[float, float]:
        """TTFT of a class without waiting, and of how many ω its wait is counted."""
        base, per = ttft_s(self.x, i, at, self.most, self.c.request_s)
        return base * self.slower, per * self.slower

    def each(self, i: int, at: float | None) -> float:
        return tpot_s(self.x, i, at) if self.after[i] > 0 else 0.0

    def whole(self, i: int, at: float | None) -> tuple[float, float]:
        base, per = self.first(i, at)
        return base + self.after[i] * self.each(i, at), per

    def ttft(self, at: float | None, wait_s: float) -> float:
        return self._waiting(self.first, at, wait_s)

    def e2e(self, at: float | None, wait_s: float) -> float:
        return self._waiting(self.whole, at, wait_s)

    def tpot(self, at: float | None) -> float:
        answers = [f if n > 0 else 0.0 for f, n in zip(self.weights, self.after, strict=True)]
        return bound(answers if at is None else self.weights, self.each, at)

    def _waiting(
        self, of: Callable[[int, float | None], tuple[float, float]], at: float | None, wait_s: float
    ) -> float:
        def late(i: int, g: float | None) -> float:
            base, per = of(i, g)
            return base + per * wait_s if per * wait_s else base

        return bound(self.weights, late, at)

    def queue(self, wait_s: float) -> float:
        """What one request/s takes of the capacity of waiting."""
        return sum(f * (self.x.ranks * s**2 / (2 * wait_s) + m)
                   for f, s, m in zip(self.weights, self.x.turn_s, self.x.mean_turn_s, strict=True))  # fmt: skip


@dataclass(frozen=True)
class Way:
    """An engine at a level and a wait at which requests keep their limits.

    Attributes:
        requests_per_s: that all its capacities carry.
        first_s: to the first token at the limit's percentile, without waiting.
        whole_s: of a request at the deadline's percentile, waiting included.
    """

    requests_per_s: float
    first_s: float
    whole_s: float


def ways(
    c: StepCosts, slower: float, kinds: Sequence[Kind], limits: Any, kv: Callable[[int], float],
    ttft: tuple[float, float | None], tpot: tuple[float, float | None], waiting_s: float = math.inf,
    deadline: tuple[float, float | None] = (math.inf, None), ranks: int = 1,
    reach: Sequence[tuple[float, float]] = (),
) -> Iterator[Way]:  # fmt: skip
    """Every level, and the best of the mixture, at the longest wait.

    Args:
        c, slower, kinds: as in `Bounds`.
        limits: the instance's `engine` section.
        kv: tokens of the engine's cache beside the logits of so many sequences.
        ttft, tpot: (limit in seconds, its percentile; None: the mean).
        waiting_s: of TTFT, at its percentile, that may be waiting.
        deadline: of a whole request, as the others.
        ranks: of attention, as in `level`.
        reach: (seconds to the first token without waiting, of a whole request with its wait), within each of which
            every level has its longest wait, and there is the longest level besides.
    """

    weights = [k.weight for k in kinds]

    everywhere = [(math.inf, math.inf), *reach]

    def fills_time(of: Bounds, asked: Any, turn: int, within: tuple[float, float]) -> float:
        """1 where time or chunks are scarcest with the longest wait within TTFT and E2E, 2: not, or only without these,
        infinite: beyond a limit.
        """
        most = _wait_within(of, asked, ttft, waiting_s, deadline)
        omega = _wait_within(of, asked, ttft, waiting_s, (min(deadline[0], within[1]), deadline[1]))
        before = before_places(of.x)[turn] if of.x.place else omega
        if of.tpot(tpot[1]) > tpot[0] or most <= (before if of.x.place else 0):
            return math.inf
        if of.ttft(ttft[1], 0.0) > within[0] or omega <= (before if of.x.place else 0):
            return 2.0
        rows = mean_row(weights, of.x.rows)
        if of.x.ranks * max(of.x.turn_s) > of.most * before * (1 + HAIR) or before <= 0:
            return 2.0
        if of.x.place and max(rows) <= max(rows[0], rows[4]):
            waits = of.x.with_places(before, of.x.place_load(before, omega - before, asked.most_used))
            rows = mean_row(weights, waits.rows)
        return 2.0 if max(*rows, of.queue(before)) > max(rows[0], rows[4]) else 1.0

    def best(asked: Any, cache: float, place: bool) -> Iterator[Way]:
        """Of the fixed steps and of the longest that fill time, within each reach."""
        ways = [(CLASSES_OF_WAIT[0], k) for k in range(len(BEFORE))] if place else [(m, 0) for m in CLASSES_OF_WAIT]
        known: dict[float, Level | None] = {}
        every: dict[float, Level] = {}
        for most, turn in ways:
            for within in everywhere:

                def beyond(x: Level, most: float = most, turn: int = turn, at: tuple[float, float] = within) -> float:
                    return fills_time(Bounds(c, slower, kinds, x, most), asked, turn, at)

                found = levels(c, kinds, asked, cache, ranks=ranks, place=place, beyond=beyond, known=known)
                every |= {x.step_s: x for x in found}
        for most in {most: None for most, _ in ways}:
            for x in every.values():
                of = Bounds(c, slower, kinds, x, most)
                for e2e_s in sorted({min(deadline[0], at[1]) for at in everywhere}):
                    yield from _at_longest_wait(of, asked, ttft, tpot, waiting_s, (e2e_s, deadline[1]))

    for seqs in choices(limits, c.drafts):
        asked, cache = beside(limits, seqs), kv(seqs)
        if cache <= 0:
            return
        yield from best(asked, cache, place=False)
        mixed = [mean_row(weights, x.rows) for x in levels(c, kinds, asked, cache, ranks=ranks)]
        if (n := places(kinds, c.drafts, seqs, cache, ranks)) and binds(mixed, (1, 2)):
            yield from best(beside(limits, n), cache, place=True)
        if not binds(mixed, (1,)):
            return


def _at_longest_wait(
    of: Bounds, limits: Any, ttft: tuple[float, float | None], tpot: tuple[float, float | None], waiting_s: float,
    deadline: tuple[float, float | None],
) -> Iterator[Way]:  # fmt: skip
    """The longest wait that all limits allow; of one for places as well the rest, after either one before prefill."""
    x = of.x
    if of.tpot(tpot[1]) > tpot[0]:
        return
    at_once = of.ttft(ttft[1], 0.0)
    omega = _wait_within(of, limits, ttft, waiting_s, deadline)
    for before_s in before_places(x) if x.place else (omega,):
        if before_s <= 0 or x.ranks * max(x.turn_s) > of.most * before_s * (1 + HAIR):
            continue
        if x.place and omega <= before_s:
            continue
        y = x.with_places(before_s, x.place_load(before_s, omega - before_s, limits.most_used)) if x.place else x
        rate = 1 / max(*mean_row(of.weights, y.rows), of.queue(before_s))
        if rate > 0:
            yield Way(rate, at_once, of.e2e(deadline[1], omega))


def _wait_within(
    of: Bounds, limits: Any, ttft: tuple[float, float | None], waiting_s: float, deadline: tuple[float, float | None]
) -> float:
    """ω within the limits on TTFT, on waiting and on E2E."""
    return min(
        longest(of.weights, of.first, ttft[1], ttft[0]),
        longest(of.weights, of.first, ttft[1], of.ttft(ttft[1], 0.0) + waiting_s),
        longest(of.weights, of.whole, deadline[1], deadline[0]), limits.longest_wait_s,
    )  # fmt: skip


def before_places(x: Level) -> list[float]:
    """ω_p: what requests that wait for places may wait before prefill."""
    longest_s = max((s for s, fits in zip(x.turn_s, x.fits, strict=True) if fits), default=0.0)
    return [times * x.ranks * longest_s for times in BEFORE]


# Closed loops ---------------------------------------------------------------------------------------------------------


class Loops:
    """An engine that always has so many requests in flight: the shortest step and the shortest waits that carry them.

    Where slots or cache are scarcest they may wait for places, too.

    Args:
        c, slower, kinds: as in `Bounds`.
        limits: the instance's `engine` section.
        kv: tokens of the engine's cache.
        ranks: of attention, as in `level`.
        place: `limits` are of places.
    """

    def __init__(
        self, c: StepCosts, slower: float, kinds: Sequence[Kind], limits: Any, kv: float, ranks: int = 1,
        place: bool = False,
    ) -> None:  # fmt: skip
        self.c, self.slower, self.kinds, self.limits, self.ranks, self.place = c, slower, kinds, limits, ranks, place
        self.weights = [k.weight / sum(k.weight for k in kinds) for k in kinds]
        self.at = cache(lambda t: level(c, kinds, limits, kv, t, ranks=ranks))
        n = 0 if place else places(kinds, c.drafts, limits.max_num_seqs, kv, ranks)
        self.placed = Loops(c, slower, kinds, beside(limits, n), kv, ranks, place=True) if n else None

    def mean(self, values: Sequence[float]) -> float:
        return sum(f * v for f, v in zip(self.weights, values, strict=True))

    def carries(self, t: float, n: int) -> bool:
        x = self.at(t)
        return x is not None and t >= x.fixed_s + n * self.mean(x.work_s) / self.mean(x.steps)

    def step_s(self, n: int) -> float | None:
        """The shortest that has room for n requests; None: none has."""
        low, high = self.c.fixed_s, 2.0 * largest_fixed_s(self.c)
        tried = itertools.islice((high * 2.0**k for k in itertools.count()), 200)
        if (high := next((t for t in tried if self.carries(t, n)), 0.0)) == 0.0:
            return None
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self.carries(middle, n) else (middle, high)
        return high * (1 + 1e-9)

    def at_least(self, n: int) -> tuple[Level, float] | None:
        """The level of that step, and requests/s of so many in flight."""
        x = None if (t := self.step_s(n)) is None else self.at(t)
        return None if x is None else (x, n / (self.mean(x.steps) * x.fixed_s + n * self.mean(x.work_s)))

    def evenly(self, n: int) -> tuple[float, float, float]:
        """TTFT, TPOT and E2E of n users of the mean request who come evenly, one after another."""
        c, D = self.c, self.ranks
        prompt, output = self.mean([k.new for k in self.kinds]), self.mean([k.output for k in self.kinds])
        R, tokens = rounds(c, output), self.limits.max_num_batched_tokens
        room = max(tokens - (1 + c.drafts) * min(n / D, self.limits.max_num_seqs), 16.0)
        chunk = min(room, self.limits.chunk_tokens or room)
        m = math.ceil(prompt / chunk)
        steps = max(m + R, n * prompt / (D * room))
        x = n * m / steps
        z, mixed = max(x, 1.0), min(x, 1.0)
        others = max(min(n - z, n * R / steps), 0.0)
        prefill = prompt_s(c, prompt, 0.0, chunk, False)
        seen_tokens = _progression(c, prompt, R, c.tokens) / max(R, 1.0)
        step, without = self._uneven(n, z, prefill, m, prompt, seen_tokens, output) if steps == m + R else (0.0, 0.0)
        whole = steps * (fixed_s(c, max(n * R / steps, 1.0), mixed, True) + mixed * step + (1 - mixed) * without)
        whole += n * (prefill + c.prompt_step_s * m / z + decode_s(c, prompt, output, mixed))
        beside_s = others * (c.decode_request_s + c.mixed_context_s * seen_tokens)
        first = m * (largest_fixed_s(c) + beside_s + step) + z * prefill + (1 - (m + R) / steps) * whole
        each = (whole - first) / (output - 1) if output > 1 else 0.0
        later = (self.slower - 1) * (first + c.request_s) + c.request_s
        return first + later, each, whole + later

    def _uneven(
        self, n: int, z: float, prefill: float, m: int, prompt: float, seen_tokens: float, output: float
    ) -> tuple[float, float]:  # fmt: skip
        """What a step with z prompts, and one without any, takes more than ranks that share evenly would."""
        c, D = self.c, self.ranks
        if D == 1:
            return 0.0, 0.0
        p, r = (prefill - c.prompt_expert_s * prompt) / m, c.decode_request_s - c.decode_expert_s
        mixed, alone = r + c.mixed_context_s * seen_tokens, r + c.context_s * seen_tokens
        users = [n // D + (i < n % D) for i in range(D)]
        own = sum(u * u for u in users) / n  # on the rank of a user
        counts = {math.floor(z): 1 - z % 1, math.floor(z) + 1: z % 1}
        most, fewest = (sum(w * f(i / D) for i, w in counts.items()) for f in (math.ceil, math.floor))
        longest = max(most * p + max(own - most, 0) * mixed, fewest * p + max(max(users) - fewest, 0) * mixed)
        ahead = c.context_s * (output - 1) / 2 * (1 - 1 / (n % D or D))
        return D * longest - z * p - max(n - z, 0) * mixed, D * (max(users) * alone + ahead) - n * alone

    def scarce(self, n: int, which: Sequence[int]) -> bool:
        """Whether one of these capacities is the scarcest."""
        found = self.at_least(n)
        return found is not None and binds([mean_row(self.weights, found[0].rows)], which)

    def of(self, n: int) -> Iterator[tuple[float, float, Bounds]]:
        """(share of the scarcest capacity but time, wait, what holds then) with either kind of wait.

        Of time the step is what n requests have room in.
        """
        if (found := self.at_least(n)) is None:
            return
        x, rate = found
        scarce = [rate * v for v in mean_row(self.weights, x.rows)[1:]]
        if self.place:  # that slots and cache are enough is what their wait is for
            x, scarce = replace(x, place=True), scarce[2:] if all(x.fits) else [math.inf]
        queued = rate * self.mean(x.mean_turn_s)
        square = self.mean([s * s for s in x.turn_s])
        for most in CLASSES_OF_WAIT[:1] if self.place else CLASSES_OF_WAIT:
            least_s = rate * self.ranks * square / (2.0 * (1.0 - queued)) if queued < 1 else math.inf
            before_s = wait_s = max(least_s, self.ranks * max(x.turn_s) / most) * (1 + 1e-9)
            if self.place and before_s < math.inf and all(x.fits):
                load = rate * self.mean(x.in_places_s(before_s))
                if load > self.limits.most_used:
                    continue
                wait_s += x.least_place_s(before_s, load) * (1 + 1e-9)
            if wait_s <= self.limits.longest_wait_s and max(scarce) < math.inf:
                yield max(scarce), wait_s, Bounds(self.c, self.slower, self.kinds, x, most)
        if self.placed is not None and self.scarce(n, (1, 2)):
            yield from self.placed.of(n)


# Levels of orchestration ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """What an engine sends or receives caches through.

    Attributes:
        bytes_per_s: of it.
        most_used: share that is planned; a transfer has the rest to itself.
        latency_s: of a transfer, where it is sent.
        cached: (work, shape, share) of everything that keeps a cache of a prompt.
    """

    bytes_per_s: float
    most_used: float
    latency_s: float
    cached: Sequence[tuple[LayerWork, Architecture, float]]

    def bytes_of(self, prompt: float) -> float:
        return sent_bytes(self.cached, prompt)

    def moved_s(self, prompt: float) -> float:
        return self.bytes_of(prompt) / (self.bytes_per_s * (1.0 - self.most_used))

    def planned_s(self, prompt: float) -> float:
        """Of the planned share."""
        return self.bytes_of(prompt) / (self.bytes_per_s * self.most_used)


@dataclass(frozen=True)
class Engine:
    """An engine at the step at which `batch` requests of the mixture run on each of its ranks in the mean.

    Lists are by request of the mixture.

    Attributes:
        x: the level.
        who: of each request its number elsewhere.
        prompts, outputs: tokens, of the latter none where it only prefills.
        firsts, rests: mean seconds to the first token, and from there until a request leaves.
        lates, wholes: to the first token, and until it leaves, at the quantile.
        can: whether it can be on the level.
        rows: what one start takes of time, places, memory, tokens, chunks, waiting, and of a network if there is one.
        ahead: of the time what its prompt takes.
        rate: requests/s of the level.
        idle: tokens of a rank's cache that running requests leave in the mean.
        pace_s: of a token after the first, of the mean request at the quantile.
        running: requests that run where as many as may do.
        weights: of the mixture.
        wait_s: mean wait for prefill.
        pause_s: longest time between tokens at a quantile; None: none decodes here.
    """

    x: Level
    stage: str
    who: dict[int, int]
    prompts: list[float]
    outputs: list[float]
    firsts: list[float]
    rests: list[float]
    lates: list[float]
    wholes: list[float]
    can: list[bool]
    rows: list[list[float]]
    ahead: list[float]
    rate: float
    idle: float
    pace_s: float
    running: float

    weights: Sequence[float]
    wait_s: float
    pause_s: Callable[[float | None], float | None]

    @property
    def carries(self) -> float:
        """Requests/s of the mixture, of which those count that can be on the level."""
        loads = [self.load(j) for j in range(len(self.rows[0]))]
        return 1.0 / max(loads) if loads and max(loads) < math.inf else 0.0

    def load(self, row: int) -> float:
        """What one request/s of the mixture takes of a capacity, of those that can be on the level."""
        can = [i for i, ok in enumerate(self.can) if ok]
        total = sum(self.weights[i] for i in can)
        return sum(self.weights[i] * self.rows[i][row] for i in can) / total if total > 0 else math.inf

    def taken(self, who: Sequence[int], bin_s: float, bins: int, since: float = 0.0) -> list[Array]:
        """Of each capacity the share that the mean start of some requests takes, in its bin and those after it.

        `since`: seconds from the start until an engine that only decodes has to do with it.
        """
        each = [self.who[i] for i in who]

        def mean(values: Sequence[float]) -> float:
            return sum(values[i] for i in each) / len(each)

        def until(seconds: float) -> Array:
            return under_way(seconds, bin_s, bins)

        first = since + mean(self.firsts)
        last = first + mean(self.rests)
        here, early = until(last) - until(since), until(first) - until(since)
        late = here - early
        grown, prompt = mean(self.outputs), mean(self.prompts)
        cache = prompt * here + grown * _growing(first, last, bin_s, bins)
        size = (first - since) * prompt + (last - first) * (prompt + grown / 2)
        time, places, memory, *others = (mean([row[j] for row in self.rows]) for j in range(len(self.rows[0])))
        ahead = mean(self.ahead) if last > first else time
        found = [early * (ahead / (first - since)), here * (places / (last - since)), cache * (memory / size)]
        if last > first:
            found[0] = found[0] + late * ((time - ahead) / (last - first))
        of_prompts, network = others[:3], others[3:]
        found += [early * (value / (first - since)) for value in of_prompts]
        for value in network:
            over, lasts = (late, last - first) if self.stage == "prefill" else (early, first - since)
            found.append(over * (value / lasts))
        return found


def whole_s(x: Level, i: int, quantile: float, wait_s: float, later: float, request_s: float) -> tuple[float, ...]:
    """First token in the mean and at a quantile, rest in the mean, last token at the quantile; seconds.

    Decodes beside a crowd of the mixture. Whatever TTFT and decoding exceed their means by at the quantile adds up as
    the legs of a right-angled triangle do. Quantiles up to the median are the mean.
    """
    first, late = (
        later * (base + turns * wait_s)
        for base, turns in (ttft_s(x, i, q, math.inf, request_s) for q in (None, quantile))
    )
    rho, c, n = 1.0 - x.fixed_s / x.step_s, min(x.crowd_s), x.rounds[i]
    rest = slow = n * (x.fixed_s + rho * (x.fixed_s + c) / (1.0 - rho) + x.own_s[i] + x.late_token_s[i])
    if quantile > 0.5:
        slow = n * (beside_s(x, quantile) + x.late_token_s[i])
    over = math.sqrt(max(late - first, 0.0) ** 2 + max(slow - rest, 0.0) ** 2)
    return first, max(late, first), rest, first + rest + over


def longest_pause_s(
    c: StepCosts, x: Level, kinds: Sequence[Kind], limits: Any, moved_s: Sequence[float], stage: str,
    quantile: float | None,
) -> float | None:  # fmt: skip
    """The time between two tokens of the class of which it is longest; None: none decodes here."""
    if stage == "prefill":
        return None
    few = [i for i, k in enumerate(kinds) if x.fits[i] and k.output > 1 and k.weight > 0]
    found = []
    for i in few:
        if stage == "both":
            prompts = 0.0 if quantile is None else _pause_of_prompts_s(c, x, kinds, limits, quantile)
            n = x.rounds[i]
            if quantile is not None and 0 < n < 16 and x.prompts[0] > 0:  # its own prompt's step is before the first
                own = _pause_of_prompts_s(c, x, kinds, limits, quantile, i)
                prompts += min(2.0 - n / 8.0, 1.0) * max(own - prompts, 0.0)
            found.append(_pause_s(x, i, quantile) + prompts)
            continue
        n, joins = max(x.rounds[i], 1.0), joins_s(c, x.step_s, moved_s[i])
        pause = _pause_s(x, i, quantile) + (joins / n if quantile is None else joins)
        if quantile is not None and (1.0 - quantile) * n > 1.0 + 1e-9 * (n - 1.0):
            others = 1.0 - ((1.0 - quantile) * n - 1.0) / (n - 1.0)
            pause = min(pause, _pause_s(x, i, max(others, 0.5)))
        found.append(pause)
    return max(found, default=None)


def _pause_s(x: Level, i: int, quantile: float | None) -> float:
    """A step that a token of class i waits for, without the prompts in it."""
    if quantile is None:
        return tpot_s(x, i, None) / x.steps_per_token[i]
    rho = 1.0 - x.fixed_s / x.step_s
    crowd = crowd_at(quantile, rho * x.fixed_s / x.crowd_s[i] + rho, rho) + 1.0
    return x.fixed_s + 1.15 * x.decode_step_s[i] * min(max(crowd, 1.0), x.ranks * x.seqs)


def _pause_of_prompts_s(
    c: StepCosts, x: Level, kinds: Sequence[Kind], limits: Any, quantile: float, of: int | None = None
) -> float:  # fmt: skip
    """What the prompts of one class make a step longer by, of the class for which that is most.

    In any decode step of a request of class `of`; None: in any step that a token of the mixture sees.
    """
    rho, most = 1.0 - x.fixed_s / x.step_s, float(limits.max_num_batched_tokens)
    decodes = [k.weight * n for k, n in zip(kinds, x.rounds, strict=True)]
    steps = [n * tpot_s(x, i, None) / x.steps_per_token[i] if n else 0.0 for i, n in enumerate(decodes)]
    seen_s = sum(steps) / sum(decodes) if sum(decodes) > 0 else 0.0
    before = [seen_s]
    if of is not None:
        w = x.work_s[of]
        excess = w - x.own_s[of] * x.rounds[of] + w / (rho**-2 - 1.0)
        even = max(x.step_s + x.own_s[of] / (1.0 - rho), seen_s)
        before = [even + rho**j * excess for j in range(math.floor(x.rounds[of]))]
    last: dict[int, tuple[float, float]] = {}  # its chunk's tokens, and their work
    for i, k in enumerate(kinds):
        if x.fits[i] and x.chunks[i]:
            u = min(k.new, most, limits.chunk_tokens or math.inf)
            outside = prompt_s(c, u, k.prompt - u, u, False) - c.prompt_expert_s * u
            last[i] = u, x.ranks * outside + c.prompt_expert_s * u
    full = max((most * p / u for u, p in last.values()), default=0.0)
    found = [0.0]
    for i, (_, p) in last.items():
        busy = rho * (1.0 - x.rounds[i] * x.own_s[i] / x.work_s[i])
        each = busy * np.array(before) / (p + x.carries_s) / x.ranks
        came = each.max()
        if not p > 0 or not came > 0:
            continue
        q, b = 1.0 - (1.0 - quantile) / 2.0 / x.ranks, max(busy * busy, 1e-12)
        if came > 30:
            z = float(norm.ppf(q))
            k = math.ceil(came + z * math.sqrt(came / (1 - b)) + (z * z - 1) / 6 * (1 + b) / (1 - b))
        else:
            k = int(nbinom.ppf(q, each.min() * (1.0 - b) / b, 1.0 - b))
            while nbinom.cdf(k, each * (1.0 - b) / b, 1.0 - b).mean() < q and 1.15 * p * k < full:
                k += 1
        if k > 0:
            found.append(x.carries_s + min(1.15 * p * k, full))
    return max(found)


def beside_s(x: Level, quantile: float) -> float:
    """A step with as many of the mixture's mean requests as are not exceeded at a quantile, one at least."""
    rho, c = 1.0 - x.fixed_s / x.step_s, min(x.crowd_s)
    return x.fixed_s + c * min(max(crowd_at(quantile, rho * x.fixed_s / c, rho), 1.0), x.ranks * x.seqs)


def engines(
    c: StepCosts, later: float, limits: Any, kv_of: Callable[[int], float], mixture: Mixture, batch: int,
    waits: Sequence[float], stream: tuple[float, float], stage: str = "both", network: Network | None = None,
    ranks: int = 1, who: Sequence[int] | None = None, hits: Callable[[Callable[..., Any]], list[float]] | None = None,
    itl: tuple[float, float | None] = (math.inf, None),
) -> list[Engine]:  # fmt: skip
    """Every level of a batch: of each max_num_seqs while slots are scarcest, and of each wait.

    Of the waits for prefill a longer one while the level's own requests take more than half of the shorter one's row;
    beside the shortest, where slots or cache are scarcest, waits for a place of 0.5 and 4 seconds.

    Args:
        c: costs of steps.
        later: what times to the first token are multiplied by.
        limits: the instance's `engine` section, of each rank.
        kv_of: tokens that all ranks' caches hold, by max_num_seqs.
        mixture: (weight, prompt, output, cached tokens) of each request.
        batch: of each rank.
        waits: in mean turns, at the quantile.
        stream: requests per second of the model, and variance over mean of how many come in a window.
        stage, network: what it does of a request, and what caches go through.
        ranks: of attention.
        who: number of each request; None: in order.
        hits: tokens of each in the prefix cache, by the levels with so many.
        itl: limit on the time between tokens, and its quantile.
    """

    def paused(e: Engine) -> bool:
        pause = None if itl[0] == math.inf else e.pause_s(itl[1])
        return pause is not None and pause > itl[0] * (1 + HAIR)

    found: list[Engine] = []
    for seqs in choices(limits, c.drafts):
        lacks, kv = False, kv_of(seqs)
        if kv <= 0:
            break

        def at(
            cached: Sequence[float], wait: float, place_s: float = 0.0, seen: Sequence[float] | None = None,
            seqs: int = seqs, kv: float = kv,
        ) -> Engine | None:  # fmt: skip
            mine = [(w, p, n, h) for (w, p, n, _), h in zip(mixture, cached, strict=True)]
            return _engine(c, later, limits, seqs, kv, mine, batch, wait, place_s, stream, stage, network, ranks,
                           range(len(mixture)) if who is None else who, seen)  # fmt: skip

        queued, first = math.inf, True
        for wait in sorted(waits)[:1] if stage == "decode" else sorted(waits):
            if queued <= 0.5:
                break
            cached = [0.0] * len(mixture)
            if hits is not None and stage != "decode":
                cached = hits(partial(at, wait=wait))
            e = at(cached, wait)
            over = e is not None and 1.0 - e.x.fixed_s / e.x.step_s > (limits.most_load or 0.95) * (1 + 1e-9)
            if e is None or over or not any(e.can) or not e.carries:
                lacks |= e is not None and all(row[1] == math.inf for row in e.rows)
                continue
            if paused(e):
                continue
            queued = e.load(5) / e.load(0)
            lacks |= e.load(1) > e.load(0) * (1 + 1e-9)
            found.append(e)
            if first and stage == "both" and max(e.load(1), e.load(2)) > max(e.load(j) for j in (0, 3, 4, 5)):
                for place_s in (0.5, 4.0):
                    if place_s + e.wait_s <= (limits.longest_wait_s or 30.0):
                        more = at(cached, wait, place_s)
                        if more is not None and any(more.can) and more.carries and not paused(more):
                            found.append(more)
            first = False
        if not lacks:
            break
    return found


def _engine(
    c: StepCosts, later: float, limits: Any, seqs: int, kv: float, mixture: Mixture, batch: int, waits: float,
    place_s: float, stream: tuple[float, float], stage: str, network: Network | None, ranks: int, who: Sequence[int],
    seen: Sequence[float] | None,
) -> Engine | None:  # fmt: skip
    """One level; `seen`: cached tokens with which its requests see what it states, at the level that it has."""

    def kind(w: float, p: float, n: float, h: float) -> Kind:
        return Kind(p, n, h / p, w)

    total = sum(w for w, *_ in mixture)
    weights = [w / total for w, *_ in mixture]
    kinds = [kind(w, p, n, h) for w, (_, p, n, h) in zip(weights, mixture, strict=True)]
    many = ranks * batch
    run = seqs
    if place_s > 0:
        run = places(kinds, c.drafts, seqs, kv, ranks)
        if run < 1:
            return None
    told = beside(limits, run)
    moved = [0.0] * len(kinds)
    if network is not None:
        moved = [network.moved_s(k.prompt) + (network.latency_s if stage == "prefill" else 0.0) for k in kinds]

    def level_of(t: float, kinds: Sequence[Kind], moved: Sequence[float]) -> Level | None:
        return level(c, kinds, told, kv, t, stage, moved, ranks)

    def mean(values: Sequence[float]) -> float:
        return sum(w * v for w, v in zip(weights, values, strict=True))

    def beyond(t: float) -> float:
        """How much longer the step is than what so many running requests make of it."""
        x = level_of(t, kinds, moved)
        if x is None:
            return -1.0
        n = float(many)
        if stage == "prefill":
            fresh = mean([k.new for k in kinds])
            n = min(n, max(1.0, (limits.most_filled or FILLED) * ranks * _room(c, told) * mean(x.steps) / fresh))
        return t - x.fixed_s - n * mean(x.work_s) / mean(x.steps)

    if level_of(1e6, kinds, moved) is None:
        return None
    low, high = 0.0, 1e-4
    while beyond(high) < 0:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(middle) >= 0 else (middle, high)
    t = high
    x = level_of(t, kinds, moved)
    assert x is not None
    rate = (1.0 - x.fixed_s / t) / mean(x.work_s)
    part = min(1.0, rate / stream[0]) if stream[0] > 0 else 1.0
    turn = mean(x.turn_s)
    wait_s = waits * ranks * turn * (batch if stage == "prefill" else 1)
    wait_s /= _longest_wait(1.0 - limits.quantile, math.inf) if limits.quantile > 0.5 else 1.0
    burst = part * (stream[1] - 1.0) * turn
    rho = 1.0 - x.fixed_s / t
    held = [m * k.prompt + r * (k.prompt + 1 + c.drafts) + c.tokens * r * (r - 1) / 2
            for m, r, k in zip(x.chunks, x.rounds, kinds, strict=True)]  # fmt: skip
    idle = max(0.0, kv / ranks - batch * mean(held) / mean(x.steps))
    ahead = [(w - r * o) / rho for w, r, o in zip(x.work_s, x.rounds, x.own_s, strict=True)]
    rows = [list(row) for row in x.rows]
    if place_s > 0:
        share = x.place_load(wait_s, place_s, limits.most_used or 0.95)
        rows = [list(row) for row in x.with_places(wait_s, share).rows]
    can = list(x.fits)
    finite = [w if row[1] < math.inf else 0.0 for w, row in zip(weights, rows, strict=True)]
    taking = sum(w * row[1] for w, row in zip(finite, rows, strict=True) if w)
    steps = sum(w * n * t for w, n in zip(finite, x.steps, strict=True))
    running = steps / taking if taking > 0 else 0.0
    for i, k in enumerate(kinds):
        s = x.turn_s[i]
        waiting = 0.0 if stage == "decode" else s * (ranks * s + burst) / (2.0 * wait_s) + x.mean_turn_s[i]
        rows[i].append(waiting)
        if network is not None:
            rows[i].append(network.planned_s(k.prompt))
        can[i] = can[i] and all(v < math.inf for v in rows[i])
        if stage == "decode" and k.output <= 1:
            rows[i] = [0.0] * len(rows[i])
            ahead[i] = 0.0
    shown, shift = x, 0
    if seen is not None:  # beside the mixture, of no weight
        others = [kind(0.0, p, n, h) for (_, p, n, _), h in zip(mixture, seen, strict=True)]
        more = level_of(t, [*kinds, *others], [*moved, *moved])
        assert more is not None
        shown, shift = more, len(kinds)
    factor = 0.0 if stage == "decode" else later
    each = [whole_s(shown, i + shift, limits.quantile, wait_s + place_s, factor, c.request_s)
            for i in range(len(kinds))]  # fmt: skip
    firsts, lates, rests, wholes = (list(column) for column in zip(*each, strict=True))
    if stage == "prefill":
        lates = [late + sent for late, sent in zip(lates, moved, strict=True)]
        rests, wholes = moved, lates
    elif stage == "decode":
        wholes = [x - first for x, first in zip(wholes, firsts, strict=True)]
        firsts = [joins_s(c, t, moving) for moving in moved]
        lates, wholes = firsts, [x + first for x, first in zip(wholes, firsts, strict=True)]
    return Engine(
        x, stage, {n: i for i, n in enumerate(who)}, [k.prompt for k in kinds],
        [0.0 if stage == "prefill" else k.output for k in kinds], firsts, rests, lates, wholes, can, rows, ahead, rate,
        idle, max(t, beside_s(x, limits.quantile)), running, weights, wait_s,
        lambda q: longest_pause_s(c, replace(x, fits=can), kinds, told, moved, stage, q),
    )  # fmt: skip


def _room(c: StepCosts, limits: Any) -> int:
    """Prompt tokens of a step beside one of every running request, and its drafts."""
    return int(limits.max_num_batched_tokens - (1 + c.drafts) * limits.max_num_seqs)


def under_way(until_s: float, bin_s: float, bins: int) -> Array:
    """Share of bins 0, 1, … in which what starts at a uniform time of bin 0 and lasts so long is under way."""

    def started(z: float) -> float:  # ∫ to z of the share of starts until then, over the bin
        z = z / bin_s
        return 0.0 if z <= 0 else z * z / 2 if z <= 1 else z - 0.5

    edges = bin_s * np.arange(bins + 1)
    return np.diff([started(e) - started(e - until_s) for e in edges.tolist()])


def _growing(since_s: float, until_s: float, bin_s: float, bins: int) -> Array:
    """The same of what grows from 0 at `since_s` after the start to 1 at `until_s`, and ends there.

    It is the mean of what is under way between s and `until_s` over all s; of parabolas between s that are whole bins,
    of which Simpson's rule is exact.
    """
    total = np.zeros(bins)
    if until_s <= since_s:
        return total
    ends = [since_s, *(b for b in bin_s * np.arange(bins + 1) if since_s < b < until_s), until_s]
    for a, b in itertools.pairwise(ends):
        parts = [under_way(until_s, bin_s, bins) - under_way(s, bin_s, bins) for s in (a, (a + b) / 2, b)]
        total += (b - a) * (parts[0] + 4 * parts[1] + parts[2]) / 6
    return total / (until_s - since_s)
