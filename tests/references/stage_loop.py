"""A closed-loop benchmark run through engines that prefill and engines that decode, event by event.

`optmodels.simulation.stages.simulate_stages` has to see the same of the requests that arrive when these were asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np

from optmodels.errors import InputError, Mistake
from optmodels.simulation.continuous import Arrivals, Engine, Ints, _state, _validate
from optmodels.simulation.stages import Staged


@dataclass
class _One:
    """An engine of a loop, its ranks together: its state, whether a step is under way, and the requests that it has."""

    state: Any
    request_s: float
    under_way: bool = False
    has: list[int] = field(default_factory=list)

    def complete(self) -> list[int]:
        """End the step under way; the requests that it finished."""
        from optmodels.simulation import continuous_kernel as kernel

        kernel.complete(self.state)
        self.under_way = False
        if self.state.here.sum() == len(self.has):
            return []
        ended = np.isfinite(self.state.request["finish_s"][self.has])
        done = [i for i, over in zip(self.has, ended, strict=True) if over]
        self.has = [i for i, over in zip(self.has, ended, strict=True) if not over]
        return done


def simulate_loop(
    input_tokens: Ints, output_tokens: Ints, prefill: Sequence[Engine], decode: Sequence[Engine], users: int,
    slower: float = 1.0, sends_s: float = 0.0, receives_s: float = 0.0, over_s: float = 0.0,
) -> tuple[Staged, Arrivals, Ints]:  # fmt: skip
    """A closed loop: users who each ask again when they are answered, through engines of both stages in turn.

    `simulate_stages` sees the same of the requests that arrive when these were asked.

    Args:
        input_tokens, output_tokens: (n,) of the requests, in the order in which they are asked.
        prefill: engines that prefill.
        decode: engines that decode.
        users: requests in the system.
        slower, sends_s, receives_s: as of `simulate_stages`, the same for all.
        over_s: seconds over which users begin, evenly.

    Returns:
        What was seen, the requests with the times at which they were asked, and how often each was preempted, (n,).

    Raises:
        InputError: what the requests and engines do not allow, or a request larger than a cache.
    """
    from optmodels.simulation import continuous_kernel as kernel

    n, engines = len(input_tokens), [*prefill, *decode]
    first = Arrivals.of(np.zeros(n), input_tokens, np.ones(n, np.int64))
    more = np.maximum(output_tokens, 2)  # answers of one token never get there
    second = Arrivals.of(np.zeros(n), input_tokens, more, received_tokens=input_tokens)
    ones = []
    for k, e in enumerate(engines):
        asked = first if k < len(prefill) else second
        _validate(asked, [e], "round_robin", None, None)
        large = -(-(asked.input_tokens + asked.output_tokens - 1) // e.block_tokens) > e.blocks
        if large.any():
            i = int(large.argmax())
            tokens = int(asked.input_tokens[i] + asked.output_tokens[i])
            expected = f"at most {e.kv_tokens:g} tokens, prompt and answer together"
            raise InputError(Mistake(None, f"arrivals[{i}]", tokens, expected))
        ones.append(_One(_state(asked, [e], 1.0, 0), e.costs.request_s))
    came, ttft, e2e, queue = (np.full(n, np.nan) for _ in range(4))
    coming = decoded = 0
    events: list[tuple[float, bool, int, int, int]] = []  # time, whether of a step, order, engine (−1: asked), request
    order = 0

    def at(time: float, engine: int, request: int = -1) -> None:
        nonlocal order
        heappush(events, (time, engine >= 0 and request < 0, order, engine, request))
        order += 1

    def arrive(time: float, k: int, i: int) -> None:
        one = ones[k]
        idle = one.state.next[0] == np.inf
        one.state.request["arrival_s"][i] = time
        kernel.arrive(one.state, i, time)
        one.has.append(i)
        if idle:
            at(float(one.state.next[0]), k)

    for begun in range(min(users, n)):
        at(over_s * begun / users, -1)
    while events:
        now, _, _, k, i = heappop(events)
        if k < 0:
            if coming < n:
                came[coming] = now
                arrive(now, coming % len(prefill), coming)
                coming += 1
            continue
        if i >= 0:
            arrive(now, len(prefill) + decoded % len(decode), i)
            decoded += 1
            continue
        one = ones[k]
        if one.under_way:
            for j in one.complete():
                seen = one.state.request[j]
                if k < len(prefill):
                    queue[j] = seen["start_s"] - came[j]
                    ttft[j] = (float(seen["finish_s"]) - came[j] + one.request_s) * slower + sends_s
                    e2e[j] = ttft[j]
                    if output_tokens[j] > 1:
                        at(came[j] + ttft[j] + receives_s, len(prefill), j)
                        continue
                else:
                    e2e[j] = float(seen["finish_s"]) + one.request_s - came[j]
                at(came[j] + e2e[j], -1)
            at(now, k)  # what arrives now is there when the next step begins
            continue
        one.under_way = kernel.schedule(one.state)
        if one.state.next[0] != np.inf:
            at(float(one.state.next[0]), k)
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(output_tokens > 1, (e2e - ttft) / (output_tokens - 1), np.nan)
    busy = sum(float(one.state.x[0]["busy_s"]) for one in ones)
    preempted = np.sum([one.state.request["preempted"] for one in ones], axis=0)
    return Staged(queue, ttft, tpot, e2e, busy), Arrivals.of(came, input_tokens, output_tokens), preempted
