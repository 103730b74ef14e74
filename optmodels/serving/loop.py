"""A closed loop at its users: what each sees where all ask alike, evenly one after another, and again when answered.

N users keep an engine busy, so that its mean step is known without a law of the crowd. A request takes m steps of its
prompt and R of its decodes; in the time of these each of the N has one request, unless prompts come faster than steps
have room for them: N·u tokens of prompts take N·u/B steps at least. With n the larger,

    T = n·a₀ + N·W,   requests/s = N/T                                                                      (L1)

and x = N·m/n chunks a step, of which a step with prompts has one, or x where that is more (arrivals are even, not
Poisson: no chance is in it). A user asks at the end of a step, so that his prompt is in the next one.

*Ranks.* Of D attention ranks each has N/D users, as even as whole users are, and they ask in turn, so that of c chunks
in a step the busiest rank has ⌈c/D⌉, with c one of the two integers at x. A step lasts D times what the busiest rank
does in it outside the experts: with prompts it is theirs, with those of the rank who decode beside them; else
the one with most users, and among equals with the longest contexts. What is more than an even share comes to each step.

*Stages.* Of λ requests/s a prefill engine has λ/P, evenly. While one prompt is done before the next comes, TTFT is its
own steps; else a step has those that came in the last, t = F/(1 − λ/P·w) or full, with F a step's fixed part and w
a prompt's, and a prompt waits for half of one at most. A decode engine has as many as arrive in the time they take, and
they join at the end of a step. λ is such that N are in the system, or what prefill engines can do at most, and the rest
waits for them. These are means: requests that decode in one step come back together, which only tails of TTFT show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from optmodels.latency.steps import StepCosts
from optmodels.serving.continuous import Coefficients, EngineLimits

HALVINGS = 60


@dataclass(frozen=True)
class Loop:
    """What every request of a loop sees, in the mean.

    Attributes:
        ttft_s, tpot_s, e2e_s: seconds, `tpot_s` 0 where answers have one token.
        requests_per_s: of all users.
    """

    ttft_s: float
    tpot_s: float
    e2e_s: float
    requests_per_s: float


def loop(
    costs: StepCosts, slower: float, limits: EngineLimits, input_tokens: float, output_tokens: float, users: float,
    ranks: int = 1,
) -> Loop:  # fmt: skip
    """Of an engine that serves requests whole.

    Args:
        costs: of its steps, of all ranks.
        slower: what TTFT is multiplied by besides (`EngineCosts.slower`); it is no time of the engine's.
        limits: its settings, of each rank.
        input_tokens, output_tokens: of every request.
        users: N, no more than run at a time.
        ranks: D.
    """
    c, decodes = Coefficients.of(costs), output_tokens - 1.0
    prompt, output = np.asarray(input_tokens), np.asarray(output_tokens)
    rounds = float(c.rounds(output - 1.0))
    room = float(limits.room_beside(users / ranks, costs.drafts))
    chunk = float(limits.chunk_beside(users / ranks, costs.drafts))
    chunks = math.ceil(input_tokens / chunk)
    steps = chunks + rounds
    every = max(steps, users / ranks * input_tokens / room)  # steps in which each user has a request
    carried = users * chunks / every
    mixed, together = min(carried, 1.0), max(carried, 1.0)
    decoding = users * rounds / every
    beside = max(min(users - together, decoding), 0.0)  # a prompt of one's own: who decodes then
    fixed = float(c.step_fixed_s(max(decoding, 1.0), mixed))
    prefill = float(c.prefill_work_s(prompt, 0.0, np.asarray(chunk), 1.0 / together))
    decode = float(c.decode_work_s(prompt, output, mixed))
    cycle = every * fixed + users * (prefill + decode)
    context = float(c.seen_in_progression(prompt, c.tokens, np.asarray(rounds))) / max(rounds, 1.0)
    alone = float(c.prefill_work_s(prompt, 0.0, np.asarray(chunk), 0.0))
    own = chunks * (
        float(c.step_fixed_s(1.0, 1.0)) + costs.prompt_step_s
        + beside * (costs.decode_request_s + costs.mixed_context_s * context)
    ) + together * alone  # fmt: skip
    if ranks > 1 and every == steps:  # else all ranks are as busy
        outside = (alone - costs.prompt_expert_s * input_tokens) / chunks
        carry, carry_none = _uneven(costs, ranks, users, together, outside, context, decodes / 2.0)
        own += chunks * carry
        cycle += every * (mixed * carry + (1.0 - mixed) * carry_none)
    first = own + (every - steps) / every * cycle
    return _seen(first, cycle, slower, costs.request_s, decodes, users / cycle)


def _of_busiest(chunks: float, ranks: int) -> float:
    """⌈c/D⌉ in the mean over the integers c at so many chunks a step, at least one."""
    least = math.floor(chunks)
    more = chunks - least
    return (1.0 - more) * math.ceil(least / ranks) + more * math.ceil((least + 1.0) / ranks)


def _uneven(
    costs: StepCosts, ranks: int, users: float, chunks: float, chunk_s: float, context: float, half: float
) -> tuple[float, float]:  # fmt: skip
    """Seconds that a step with prompts, and one without, waits for the busiest rank beyond an even share.

    Args:
        costs: of a step.
        ranks: D.
        users: N.
        chunks: of a step with prompts.
        chunk_s: of one, outside the experts.
        context: that one who decodes attends to, in the mean.
        half: of an answer's tokens.
    """
    least, larger = divmod(users, ranks)
    most = math.ceil(users / ranks)
    met = (larger * (least + 1.0) ** 2 + (ranks - larger) * least**2) / users  # users of a prompt's rank
    request = costs.decode_request_s - costs.decode_expert_s
    beside, alone = request + costs.mixed_context_s * context, request + costs.context_s * context
    busiest = _of_busiest(chunks, ranks)
    own = max(busiest * chunk_s + max(met - busiest, 0.0) * beside, most * beside)
    longer = costs.context_s * half * (1.0 - 1.0 / (larger or ranks))  # in turn, one has the longest contexts
    with_prompts = ranks * own - chunks * chunk_s - max(users - chunks, 0.0) * beside
    return with_prompts, ranks * (most * alone + longer) - users * alone


def _met(mean: float, ranks: int = 1) -> float:
    """Requests at an engine, itself among them, that one meets where they come evenly: E[n²]/E[n] of ⌊·⌋ and ⌈·⌉.

    Of several ranks in whose place all were as the busiest: E[n·D⌈n/D⌉]/E[n].
    """
    if mean <= 1.0:
        return float(ranks)
    least = math.floor(mean)
    more, last = mean - least, least + 1.0
    busiest, then = (ranks * math.ceil(n / ranks) for n in (least, last))
    return (least * busiest * (1.0 - more) + last * then * more) / mean


def _seen(
    first_s: float, whole_s: float, slower: float, request_s: float, decodes: float, rate: float
) -> Loop:  # fmt: skip
    outside = (slower - 1.0) * (first_s + request_s) + request_s
    each = (whole_s - first_s) / decodes if decodes > 0 else 0.0
    return Loop(first_s + outside, each, whole_s + outside, rate)


@dataclass(frozen=True)
class StageOfLoop:
    """The engines of one stage: their step costs, how many there are, their settings, and attention ranks of each."""

    costs: StepCosts
    engines: float
    limits: EngineLimits
    ranks: int = 1


def loop_apart(
    prefill: StageOfLoop, decode: StageOfLoop, slower: float, input_tokens: float, output_tokens: float, users: float,
    sends_s: float, receives_s: float,
) -> Loop:  # fmt: skip
    """Of engines that prefill and engines that decode, which requests go through in turn.

    Args:
        prefill, decode: the engines of either stage.
        slower, input_tokens, output_tokens, users: as of `loop`; two output tokens at least.
        sends_s, receives_s: from the end of a prefill until the user has his first token, and from then until the cache
            has arrived where it is decoded.
    """
    c, d, decodes = Coefficients.of(prefill.costs), Coefficients.of(decode.costs), output_tokens - 1.0
    prompt, output = np.asarray(input_tokens), np.asarray(output_tokens)
    room = float(prefill.limits.max_num_batched_tokens)
    chunk = min(room, float(prefill.limits.chunk_tokens or room))
    chunks = math.ceil(input_tokens / chunk)
    fixed = float(c.step_fixed_s(1.0, 1.0)) + prefill.costs.prompt_step_s
    work = float(c.prefill_work_s(prompt, 0.0, np.asarray(chunk), 0.0))
    alone = chunks * fixed + work
    ranks, outside = prefill.ranks, work - prefill.costs.prompt_expert_s * input_tokens
    alone += (ranks - 1.0) * outside
    together = room / input_tokens  # prompts of a rank's step, at most
    at_once = ranks * max(together, 1.0)
    most = prefill.engines * at_once / ((fixed if together > 1.0 else chunks * fixed) + at_once * work)
    rounds = float(d.rounds(output - 1.0))
    each = float(d.decode_work_s(prompt, output, 0.0)) / rounds

    def together_s(prompts: float) -> float:
        """Of so many prompts on several ranks."""
        waits = ranks * _of_busiest(prompts, ranks) - prompts
        return chunks * fixed + prompts * work + waits * outside

    def first_s(rate: float) -> float:
        per = rate / prefill.engines
        if per * alone <= 1.0:
            return alone
        step = min(chunks * fixed / max(1.0 - per * work, 1e-9), chunks * fixed + at_once * work)
        if ranks > 1:
            low, high = 1.0, at_once  # those that came in the last step
            for _ in range(HALVINGS):
                middle = (low + high) / 2.0
                low, high = (middle, high) if middle < per * together_s(middle) else (low, middle)
            step = together_s(high)
        return step + min(step - alone, step / 2.0)

    def waits_s(crowd: float) -> float:
        """Of a step in which so many decode in the mean, for the busiest rank and, of equals, the longest contexts."""
        uneven = _met(crowd, decode.ranks) - _met(crowd)
        longer = decode.costs.context_s * decodes / 2.0 * (decode.ranks - max(decode.ranks / max(crowd, 1.0), 1.0))
        return uneven * (each - decode.costs.decode_expert_s) + longer

    def decoding_s(rate: float) -> float:
        """Of a request: half a step until it joins, and its steps, in which as many are as come meanwhile."""
        per, seconds = rate / decode.engines, 0.0
        for _ in range(100):
            crowd = min(_met(per * seconds), float(decode.ranks * decode.limits.slots))
            waits = waits_s(per * seconds) if decode.ranks > 1 else 0.0
            before, seconds = seconds, rounds * (float(d.step_fixed_s(crowd, 0.0)) + crowd * each + waits)
            if abs(seconds - before) <= 1e-9 * seconds:
                break
        others = per * seconds * (users - 1.0) / users
        joins = min(others, 1.0) / 2.0 * seconds / rounds  # an idle engine takes it at once
        return receives_s + joins + seconds + decode.costs.request_s

    def cycle(rate: float) -> float:
        return (first_s(rate) + prefill.costs.request_s) * slower + sends_s + decoding_s(rate)

    low, high = 0.0, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if middle * cycle(middle) < users else (low, middle)
    rate = high
    first = (first_s(rate) + prefill.costs.request_s) * slower + sends_s
    first += max(users / rate - cycle(rate), 0.0)  # what the slower stage makes wait
    rest = decoding_s(rate)
    return Loop(first, rest / decodes, first + rest, rate)


def first_at_once_s(
    prefill: StageOfLoop, slower: float, input_tokens: float, users: float, sends_s: float
) -> float:  # fmt: skip
    """Mean TTFT of the first requests where all users begin at once, as those of benchmark clients do.

    Of n prompts at an engine of D attention ranks, m = n/D at each, the j-th ends with step ⌈j·S/B⌉ of the B tokens
    that a rank's step takes; until then min(⌈j·S/B⌉·B/S, m) are computed, on every rank, and at least its own.

    Args:
        prefill: the engines that prefill; their settings are of each rank.
        slower, input_tokens, users, sends_s: as of `loop_apart`.
    """
    c, room = Coefficients.of(prefill.costs), float(prefill.limits.max_num_batched_tokens)
    chunk = min(room, float(prefill.limits.chunk_tokens or room))
    fixed = float(c.step_fixed_s(1.0, 1.0)) + prefill.costs.prompt_step_s
    work = float(c.prefill_work_s(np.asarray(input_tokens), 0.0, np.asarray(chunk), 0.0))
    experts = prefill.costs.prompt_expert_s * input_tokens
    each = users / prefill.engines / prefill.ranks
    prompt = np.arange(1.0, math.ceil(each) + 1.0)
    steps = np.maximum(np.ceil(prompt * input_tokens / room - 1e-9), math.ceil(input_tokens / chunk))
    done = np.minimum(steps * room / input_tokens, each)
    seconds = steps * fixed + prefill.ranks * (np.maximum(done, 1.0) * (work - experts) + done * experts)
    share = np.minimum(each - (prompt - 1.0), 1.0) / each  # the last is less than one in the mean
    return (float(seconds @ share) + prefill.costs.request_s) * slower + sends_s
