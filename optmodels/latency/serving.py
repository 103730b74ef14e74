"""From the time of a step to requests: continuous batching simulated step by step.

The engine is vLLM's in outline: requests wait first come, first served; one is admitted while fewer than the batch
limit run and its prompt fits the free KV cache; a step either prefills whole prompts while decoding stalls, or (with
`chunk_tokens`) mixes at most that many prompt tokens with one token of every decoding request; when the cache runs
over, the request admitted last is preempted and recomputed. The batch limit comes from a `Controller`, asked every
step unless told otherwise. Deterministic; no randomness but what the caller puts into the requests.

`closed_loop` keeps C users busy and gives TTFT and time per output token at that concurrency: the quantity end-to-end
benchmarks measure.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optmodels.errors import InputError, Mistake
from optmodels.latency.controllers import Controller, Observation, StaticController

Array = npt.NDArray[np.float64]
MAX_STEPS = 5_000_000


@dataclass(frozen=True)
class StepWork:
    """One step: prompt tokens of `prefills` requests (each over `prefill_context` earlier ones), and decodes."""

    prefill_tokens: float
    prefill_context: float
    prefills: int
    decodes: int
    decode_context: float  # mean


StepTime = Callable[[StepWork], float]


def linear_step_time(decode_fixed_s: float, decode_per_request_s: float, prefill_per_token_s: float) -> StepTime:
    """DB: τ(b) = D₀ + D₁·b for decoding, and a time per prompt token."""

    def seconds(w: StepWork) -> float:
        decode = decode_fixed_s + decode_per_request_s * w.decodes if w.decodes else 0.0
        return max(decode, decode_fixed_s * (w.prefills > 0)) + prefill_per_token_s * w.prefill_tokens

    return seconds


@dataclass(frozen=True)
class Arrival:
    """One request: when it comes, prompt and output tokens (≥ 1 each)."""

    time_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Served:
    """What a simulation saw.

    Attributes:
        ttft_s, tpot_s, finish_s: (n,) per request, in order of arrival; tpot NaN for one-token outputs.
        makespan_s: From the first arrival to the last token.
        output_tokens_per_s: Output tokens over the makespan.
        preemptions: How often the cache ran over.
        decode_step_s: Every decoding step's duration.
    """

    ttft_s: Array
    tpot_s: Array
    finish_s: Array
    makespan_s: float
    output_tokens_per_s: float
    preemptions: int
    decode_step_s: Array


@dataclass(eq=False)
class _Run:
    index: int
    arrival: Arrival
    todo: int  # prompt tokens still to be prefilled
    context: int = 0  # tokens in the cache while prefilling
    made: int = 0  # output tokens when decoding (re)started
    base: int = 0  # while decoding: context = base + decode steps so far
    due: int = 0  # decode step at which it is answered


def simulate(
    arrivals: Sequence[Arrival],
    seconds: StepTime,
    controller: Controller,
    capacity_tokens: float,
    *,
    chunk_tokens: int | None = None,
    interval_steps: int = 1,
    window_steps: int = 10,
    users: int | None = None,
) -> Served:
    """Serve all requests.

    Args:
        arrivals: In order of time.
        seconds: Duration of a step.
        controller: Sets the batch limit.
        capacity_tokens: η, tokens the KV cache holds.
        chunk_tokens: Prompt tokens mixed into a decode step; None: whole prompts, decoding stalls.
        interval_steps: Steps between two calls of the controller. Above 1 the paper's floor b_t ≥ N^d lets completed
            requests be replaced until the next call, so that a batch that is too large hardly shrinks.
        window_steps: Decode steps in the "recent" averages the controller sees.
        users: Closed loop: ignore arrival times, keep that many requests in the system.

    Raises:
        InputError: nothing to serve, or a request larger than the cache.
    """
    if not arrivals:
        raise InputError(Mistake(None, "arrivals", None, "at least one request"))
    for i, a in enumerate(arrivals):
        if a.input_tokens < 1 or a.output_tokens < 1 or a.input_tokens + a.output_tokens > capacity_tokens:
            raise InputError(
                Mistake(
                    None,
                    f"arrivals[{i}]",
                    (a.input_tokens, a.output_tokens),
                    f"at least one token each, at most {capacity_tokens:g} together",
                )
            )
    n = len(arrivals)
    start, first, finish = np.zeros(n), np.full(n, np.nan), np.full(n, np.nan)
    waiting: deque[_Run] = deque()
    filling: list[_Run] = []
    decoding: dict[int, _Run] = {}  # in order of admission
    due: list[tuple[int, int]] = []  # heap of (decode step, request); stale entries of preempted requests stay
    decoded = in_cache = 0  # decode steps so far; context tokens of all decoding requests
    clock = 0.0 if users else arrivals[0].time_s
    begin, coming, done, preemptions, limit = clock, 0, 0, 0, 1
    inputs = outputs = 0  # of what has come: Algorithm 1 monitors their averages
    decode_times: list[float] = []
    batches: list[int] = []
    steps = 0
    while done < n:
        while coming < n and (
            len(waiting) + len(filling) + len(decoding) < users if users else arrivals[coming].time_s <= clock
        ):
            a = arrivals[coming]
            start[coming] = clock if users else a.time_s
            waiting.append(_Run(coming, a, a.input_tokens))
            inputs += a.input_tokens
            outputs += a.output_tokens
            coming += 1
        if not (waiting or filling or decoding):
            clock = arrivals[coming].time_s
            continue
        if steps % interval_steps == 0:
            times, sizes = decode_times[-window_steps:], batches[-window_steps:]
            limit = controller.step(
                Observation(
                    waiting=len(waiting),
                    decoding=len(decoding),
                    mean_input_tokens=inputs / coming,
                    mean_output_tokens=outputs / coming,
                    decode_latency_s=sum(times) / len(times) if times else None,
                    decode_batch=sum(sizes) / len(sizes) if sizes else None,
                )
            )
        steps += 1
        if steps > MAX_STEPS:
            raise InputError(Mistake(None, "arrivals", n, f"a simulation of at most {MAX_STEPS} steps"))
        used = in_cache + sum(r.context + r.todo for r in filling)
        while waiting and len(filling) + len(decoding) < max(limit, 1) and used + waiting[0].todo < capacity_tokens:
            r = waiting.popleft()
            filling.append(r)
            used += r.todo
        # Every decoding request appends one token; whoever came last makes room. Prompts are prefilled in order of
        # admission, so those still being prefilled came after all that decode.
        while used + len(decoding) > capacity_tokens:
            if filling:
                r = filling.pop()
                used -= r.context + r.todo
                made = r.made
            else:
                _, r = decoding.popitem()
                used -= r.base + decoded
                in_cache -= r.base + decoded
                made = r.arrival.output_tokens - (r.due - decoded)
            waiting.appendleft(_Run(r.index, r.arrival, r.arrival.input_tokens + made, made=made))
            preemptions += 1
        chunks = _chunks(filling, chunk_tokens)
        decodes = len(decoding) if chunk_tokens is not None or not chunks else 0
        duration = seconds(
            StepWork(
                prefill_tokens=float(sum(p for _, p in chunks)),
                prefill_context=sum(r.context for r, _ in chunks) / len(chunks) if chunks else 0.0,
                prefills=len(chunks),
                decodes=decodes,
                decode_context=in_cache / decodes if decodes else 0.0,
            )
        )
        clock += duration
        if decodes:
            decode_times.append(duration)
            batches.append(decodes)
            decoded += 1
            in_cache += decodes
            while due and due[0][0] <= decoded:
                step, index = heapq.heappop(due)
                ready = decoding.get(index)
                if ready is not None and ready.due == step:
                    del decoding[index]
                    in_cache -= ready.base + decoded
                    finish[index] = clock
                    done += 1
        for r, p in chunks:
            r.context += p
            r.todo -= p
            if r.todo:
                continue
            filling.remove(r)
            r.made += 1
            if math.isnan(first[r.index]):
                first[r.index] = clock
            if r.made >= r.arrival.output_tokens:
                finish[r.index] = clock
                done += 1
                continue
            r.base, r.due = r.context - decoded, decoded + r.arrival.output_tokens - r.made
            decoding[r.index] = r
            in_cache += r.context
            heapq.heappush(due, (r.due, r.index))
    out = np.array([a.output_tokens for a in arrivals], dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(out > 1, (finish - first) / (out - 1), np.nan)
    span = clock - begin
    return Served(
        first - start,
        tpot,
        finish,
        span,
        float(out.sum()) / span,
        preemptions,
        np.array(decode_times),
    )


def _chunks(filling: list[_Run], chunk_tokens: int | None) -> list[tuple[_Run, int]]:
    """Which prompts are prefilled in this step, and how many tokens of each."""
    if chunk_tokens is None:
        return [(r, r.todo) for r in filling]
    chunks, room = [], chunk_tokens
    for r in filling:
        if room <= 0:
            break
        p = min(r.todo, room)
        chunks.append((r, p))
        room -= p
    return chunks


@dataclass(frozen=True)
class ServingPoint:
    """Means at one concurrency, after warm-up."""

    concurrency: int
    ttft_s: float
    tpot_s: float
    output_tokens_per_s: float


def closed_loop(
    seconds: StepTime,
    concurrency: int,
    input_tokens: int,
    output_tokens: int,
    *,
    chunk_tokens: int | None = None,
    capacity_tokens: float = math.inf,
    rounds: int = 4,
) -> ServingPoint:
    """C users, each sending its next request when the last is answered; the first of `rounds` rounds is warm-up.

    Users start one after another, spread over one request's time, as their requests are in the steady state.

    Raises:
        InputError: a request larger than the cache.
    """
    total = concurrency * rounds
    # Outputs of the warm-up round are staggered, so that later prompts do not arrive all at once.
    arrivals = [
        Arrival(
            0.0,
            input_tokens,
            output_tokens if i >= concurrency else max(1, output_tokens * (i + 1) // concurrency),
        )
        for i in range(total)
    ]
    seen = simulate(
        arrivals,
        seconds,
        StaticController(concurrency),
        capacity_tokens,
        chunk_tokens=chunk_tokens,
        users=concurrency,
    )
    keep = slice(concurrency, max(total - concurrency, concurrency + 1))
    tpot = seen.tpot_s[keep]
    tpot_s = float(np.nanmean(tpot)) if np.isfinite(tpot).any() else float("nan")
    ttft_s = float(seen.ttft_s[keep].mean())
    return ServingPoint(
        concurrency,
        ttft_s,
        tpot_s,
        concurrency * output_tokens / (ttft_s + (output_tokens - 1) * tpot_s)
        if output_tokens > 1
        else concurrency / ttft_s,
    )


def capacity_rps(
    make_controller: Callable[[], Controller],
    seconds: StepTime,
    lengths: Sequence[tuple[int, int]],
    capacity_tokens: float,
    tpot_limit_s: float,
    *,
    chunk_tokens: int | None = None,
    high_rps: float = 64.0,
    tolerance: float = 0.02,
    seed: int = 0,
) -> float:
    """Highest Poisson arrival rate at which mean time per output token keeps its limit and the queue does not build up.

    "Capacity" of the paper's Fig. 4 and Table II; found by bisection on simulations of the given lengths. A queue
    builds up when the second half of the requests waits more than twice as long as the first, plus ten steps' time.
    """
    gaps = np.random.default_rng(seed).exponential(1.0, len(lengths))
    times = np.cumsum(gaps)

    def holds(rate: float) -> bool:
        arrivals = [Arrival(float(t) / rate, i, o) for t, (i, o) in zip(times, lengths, strict=True)]
        seen = simulate(arrivals, seconds, make_controller(), capacity_tokens, chunk_tokens=chunk_tokens)
        half = len(arrivals) // 2
        first, second = float(seen.ttft_s[:half].mean()), float(seen.ttft_s[half:].mean())
        return float(np.nanmean(seen.tpot_s)) <= tpot_limit_s and second <= 2 * first + 10 * tpot_limit_s

    low, high = 0.0, high_rps
    while high - low > tolerance * max(low, 0.1):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
