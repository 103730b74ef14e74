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

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optmodels.arrays import Array
from optmodels.engine.continuous import Classes, Coefficients, EngineLimits
from optmodels.engine.costs import EngineCosts
from optmodels.latency.steps import StepCosts


@dataclass(frozen=True)
class Loop:
    """Mean latencies of every request of a closed-loop run, for each number of users.

    Attributes:
        ttft_s, tpot_s, e2e_s: seconds, (N,), `tpot_s` 0 where answers have one token.
        requests_per_s: requests/s of the users together, (N,).
    """

    ttft_s: Array
    tpot_s: Array
    e2e_s: Array
    requests_per_s: Array


def loop(
    costs: StepCosts, slower: float, limits: EngineLimits, input_tokens: float, output_tokens: float,
    users: npt.ArrayLike, ranks: int = 1,
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
    c, decodes, users = Coefficients.of(costs), output_tokens - 1.0, np.asarray(users, dtype=float)
    prompt, output = np.asarray(input_tokens), np.asarray(output_tokens)
    rounds = float(c.rounds(output - 1.0))
    room = limits.room_beside(users / ranks, costs.drafts)
    chunk = limits.chunk_beside(users / ranks, costs.drafts)
    chunks = np.ceil(input_tokens / chunk)
    steps = chunks + rounds
    every = np.maximum(steps, users / ranks * input_tokens / room)  # steps in which each user has a request
    carried = users * chunks / every
    mixed, together = np.minimum(carried, 1.0), np.maximum(carried, 1.0)
    decoding = users * rounds / every
    beside = np.maximum(np.minimum(users - together, decoding), 0.0)  # a prompt of one's own: who decodes then
    fixed = c.step_fixed_s(np.maximum(decoding, 1.0), mixed)
    prefill = c.prefill_work_s(prompt, 0.0, chunk, 1.0 / together)
    decode = c.decode_work_s(prompt, output, mixed)
    cycle = every * fixed + users * (prefill + decode)
    context = float(c.seen_in_progression(prompt, c.tokens, np.asarray(rounds))) / max(rounds, 1.0)
    alone = c.prefill_work_s(prompt, 0.0, chunk, 0.0)
    own = chunks * (
        c.step_fixed_s(1.0, 1.0) + costs.prompt_step_s
        + beside * (costs.decode_request_s + costs.mixed_context_s * context)
    ) + together * alone  # fmt: skip
    if ranks > 1:
        outside = (alone - costs.prompt_expert_s * input_tokens) / chunks
        carry, carry_none = _uneven(costs, ranks, users, together, outside, context, decodes / 2.0)
        uneven = every == steps  # else all ranks are as busy
        own = own + uneven * chunks * carry
        cycle = cycle + uneven * every * (mixed * carry + (1.0 - mixed) * carry_none)
    first = own + (every - steps) / every * cycle
    outside_s = (slower - 1.0) * (first + costs.request_s) + costs.request_s
    each = (cycle - first) / decodes if decodes > 0 else np.zeros_like(cycle)
    return Loop(first + outside_s, each, cycle + outside_s, users / cycle)


def least(engine: EngineCosts, limits: EngineLimits, kind: Classes, users: npt.ArrayLike) -> Loop:
    """Mean latencies that a level's own are no less than in a closed-loop run: `loop` at the mixture's mean lengths.

    A level counts requests that come at random and, on ranks, decodes that are even. Those of a loop come evenly: fewer
    prompts share a step, more steps have one, and a rank without a prompt has one more that decodes.

    Args:
        engine: its costs.
        limits: limits of each rank.
        kind: the mixture.
        users: users of the engine, (N,).
    """
    prompt, output = (float(np.average(x, weights=kind.weight)) for x in (kind.new_tokens, kind.output_at(None)))
    return loop(engine.costs, engine.slower, limits, prompt, output, users, engine.ranks)


def _of_ranks(chunks: Array, ranks: int) -> tuple[Array, Array]:
    """⌈c/D⌉, at least one, and ⌊c/D⌋ in the mean over the integers c at this many chunks a step."""
    below = np.floor(chunks)
    more = chunks - below
    most = (1.0 - more) * np.ceil(below / ranks) + more * np.ceil((below + 1.0) / ranks)
    return most, (1.0 - more) * (below // ranks) + more * ((below + 1.0) // ranks)


def _uneven(
    costs: StepCosts, ranks: int, users: Array, chunks: Array, chunk_s: Array, context: float, half: float
) -> tuple[Array, Array]:  # fmt: skip
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
    fewest, larger = np.divmod(users, ranks)
    most = np.ceil(users / ranks)
    met = (larger * (fewest + 1.0) ** 2 + (ranks - larger) * fewest**2) / users  # users of a prompt's rank
    request = costs.decode_request_s - costs.decode_expert_s
    beside, alone = request + costs.mixed_context_s * context, request + costs.context_s * context
    busiest, idlest = _of_ranks(chunks, ranks)
    own = np.maximum(
        busiest * chunk_s + np.maximum(met - busiest, 0.0) * beside,
        idlest * chunk_s + np.maximum(most - idlest, 0.0) * beside,
    )
    longer = costs.context_s * half * (1.0 - 1.0 / np.where(larger > 0, larger, ranks))  # in turn, one has the longest
    with_prompts = ranks * own - chunks * chunk_s - np.maximum(users - chunks, 0.0) * beside
    return with_prompts, ranks * (most * alone + longer) - users * alone
