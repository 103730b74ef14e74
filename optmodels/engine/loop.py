"""A closed-loop run at its users: latencies where all ask the same, evenly one after another, and again when
answered.

N users keep an engine busy, so that its mean step is known without a law of the concurrency. A request takes m steps of
its prompt and R of its decodes; in the time of these each of the N has one request, unless prompts come faster than
steps have room for them: N·u tokens of prompts take N·u/B steps at least. With n the larger,

    T = n·a₀ + N·W,   requests/s = N/T                                                                      (L1)

and x = N·m/n chunks a step, where a step with prompts has one, or x where that is more (arrivals are even, not
Poisson: no chance is in it). A user asks at the end of a step, so that his prompt is in the next one.

*Ranks.* Of D attention ranks each has N/D users, as even as whole users are, and they ask in turn, so that with c
chunks in a step a rank has ⌈c/D⌉ or ⌊c/D⌋, with c one of the two integers at x. A step lasts D times the work that the
busiest rank does in it outside the experts. With prompts that is a rank with most of them, or one with fewest and so
one more that decodes; else the one with most users, and among equals with the longest contexts. The excess over an even
share comes to each step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from optmodels.engine.continuous import Classes, Coefficients, EngineLimits
from optmodels.engine.costs import EngineCosts
from optmodels.latency.steps import StepCosts


@dataclass(frozen=True)
class Loop:
    """Mean latencies of every request of a closed-loop run.

    Attributes:
        ttft_s, tpot_s, e2e_s: seconds, `tpot_s` 0 where answers have one token.
        requests_per_s: requests/s of the users together.
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
        costs: costs of its steps, over the ranks.
        slower: factor of TTFT besides (`EngineCosts.slower`); it is no time of the engine's.
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


def least_of_ranks(engine: EngineCosts, limits: EngineLimits, kind: Classes, users: float) -> Loop | None:
    """Mean latencies that a level's own are no less than in a closed-loop run; None of one attention rank.

    (S10) counts the wait of steps for the busiest of several ranks where requests come at random, and their decodes as
    even. Those of a loop come evenly: fewer prompts share a step, more steps wait, and a rank without a prompt has one
    more that decodes. So the level has `loop` of requests of the mixture's mean lengths as its least.

    Args:
        engine: its costs.
        limits: limits of each rank, with the level's `max_num_seqs`.
        kind: the mixture.
        users: users of the engine.
    """
    if engine.ranks == 1:
        return None
    prompt, output = (float(np.average(x, weights=kind.weight)) for x in (kind.new_tokens, kind.output_at(None)))
    return loop(engine.costs, engine.slower, limits, prompt, output, users, engine.ranks)


def _of_ranks(chunks: float, ranks: int) -> tuple[float, float]:
    """⌈c/D⌉, at least one, and ⌊c/D⌋ in the mean over the integers c at this many chunks a step."""
    least = math.floor(chunks)
    more = chunks - least
    most = (1.0 - more) * math.ceil(least / ranks) + more * math.ceil((least + 1.0) / ranks)
    return most, (1.0 - more) * (least // ranks) + more * ((least + 1) // ranks)


def _uneven(
    costs: StepCosts, ranks: int, users: float, chunks: float, chunk_s: float, context: float, half: float
) -> tuple[float, float]:  # fmt: skip
    """Seconds that a step with prompts, and one without, waits for the busiest rank beyond an even share.

    Args:
        costs: costs of a step.
        ranks: D.
        users: N.
        chunks: chunks of a step with prompts.
        chunk_s: chunk seconds of one, outside the experts.
        context: context that one who decodes attends to, in the mean.
        half: half of an answer's tokens.
    """
    least, larger = divmod(users, ranks)
    most = math.ceil(users / ranks)
    met = (larger * (least + 1.0) ** 2 + (ranks - larger) * least**2) / users  # users of a prompt's rank
    request = costs.decode_request_s - costs.decode_expert_s
    beside, alone = request + costs.mixed_context_s * context, request + costs.context_s * context
    busiest, idlest = _of_ranks(chunks, ranks)
    own = max(busiest * chunk_s + max(met - busiest, 0.0) * beside, idlest * chunk_s + max(most - idlest, 0.0) * beside)
    longer = costs.context_s * half * (1.0 - 1.0 / (larger or ranks))  # in turn, one has the longest contexts
    with_prompts = ranks * own - chunks * chunk_s - max(users - chunks, 0.0) * beside
    return with_prompts, ranks * (most * alone + longer) - users * alone


def _seen(
    first_s: float, whole_s: float, slower: float, request_s: float, decodes: float, rate: float
) -> Loop:  # fmt: skip
    outside = (slower - 1.0) * (first_s + request_s) + request_s
    each = (whole_s - first_s) / decodes if decodes > 0 else 0.0
    return Loop(first_s + outside, each, whole_s + outside, rate)
