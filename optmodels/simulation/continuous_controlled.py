"""One engine with continuous batching and what its compiled loop cannot call: a controller, users who wait.

A `latency.controllers.Controller` sets the batch limit before every step. Users keep their number of requests in the
system whatever the arrival times state: each asks again when it is answered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from optmodels.arrays import Array
from optmodels.errors import InputError, Mistake
from optmodels.latency.controllers import Controller, StepObservation
from optmodels.simulation.continuous import Arrivals, Engine, Gaps, ServedRequests, _served, _state, _validate

RECENT = 10  # decode steps in the averages that controllers see


@dataclass(frozen=True)
class Controlled:
    """Results of a simulation, and the duration of every step with a decode."""

    served: ServedRequests
    decode_step_s: Array


def simulate_controlled(
    arrivals: Arrivals, engine: Engine, controller: Controller | None = None, *, interval_steps: int = 1,
    users: int | None = None, gaps: Gaps | None = None,
) -> Controlled:  # fmt: skip
    """Serve all requests on one engine.

    Args:
        arrivals: requests; with `users`, arrivals of the result are computed.
        engine: its `max_num_seqs` is never exceeded. Of several ranks a request goes to the least busy one.
        controller: sets the batch limit; None: `max_num_seqs`.
        interval_steps: steps between two calls. Above 1 the floor b_t ≥ N^d of the dynamic-batching paper lets
            completed requests be replaced until the next call, so that a batch that is too large hardly shrinks.
        users: closed-loop run of this many.
        gaps: times between tokens to count.

    Raises:
        InputError: a value that the requests and the engine do not allow, a request larger than a rank's cache, or a
            controller of several ranks.
    """
    from optmodels.simulation import continuous_kernel as kernel

    _validate(arrivals, [engine], "round_robin", None, None)
    if controller is not None and engine.ranks > 1:
        raise InputError(Mistake(None, "ranks", engine.ranks, "1: controllers are of one rank"))
    n = len(arrivals)
    large = -(-(arrivals.input_tokens + arrivals.output_tokens - 1) // engine.block_tokens) > engine.blocks
    if large.any():
        i = int(large.argmax())
        tokens = int(arrivals.input_tokens[i] + arrivals.output_tokens[i])
        expected = f"at most {engine.kv_tokens:g} tokens, prompt and answer together"
        raise InputError(Mistake(None, f"arrivals[{i}]", tokens, expected))
    state = _state(arrivals, [engine], 1.0, 0, gaps)
    x, r, step_end, here = state.x[0], state.request, state.next, state.here
    inputs, outputs = np.cumsum(arrivals.input_tokens), np.cumsum(arrivals.output_tokens)
    seconds: list[float] = []
    batches: list[int] = []
    coming, now, under_way = 0, 0.0, False
    several = engine.ranks > 1
    while True:
        while coming < n and (
            (here.sum() if several else here[0]) < users if users else r["arrival_s"][coming] <= step_end[0]
        ):
            if users:
                r["arrival_s"][coming] = now
            kernel.arrive(state, coming, float(r["arrival_s"][coming]))
            coming += 1
        if step_end[0] == np.inf:
            break
        now = float(step_end[0])
        if under_way:
            kernel.complete(state)
            under_way = False
            continue
        if controller is not None and int(x["steps"]) % interval_steps == 0:
            recent = slice(-RECENT, None)
            limit = controller.step(StepObservation(
                waiting=int(x["waiting"]), decoding=int(x["decoding"]),
                mean_input_tokens=float(inputs[coming - 1] / coming),
                mean_output_tokens=float(outputs[coming - 1] / coming),
                decode_latency_s=float(np.mean(seconds[recent])) if seconds else None,
                decode_batch=float(np.mean(batches[recent])) if batches else None,
            ))  # fmt: skip
            x["seqs"] = min(max(limit, 1), engine.max_num_seqs)
        under_way = kernel.schedule(state)
        decoding = int(state.x["decoding"].sum() if several else x["decoding"])
        if decoding:
            seconds.append(float(step_end[0]) - now)
            batches.append(decoding)
    came = replace(arrivals, arrival_s=r["arrival_s"].copy())
    only = np.zeros(engine.ranks, np.int64)
    return Controlled(_served(came, [engine], only, np.array([0, -1]), state, None), np.array(seconds))
