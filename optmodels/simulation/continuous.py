"""Engines with continuous batching, step by step: inputs and results of a simulation, as arrays.

An instance works as vLLM's V1 scheduler does. Its time is `latency.steps.StepCosts`. Before every step

1. each request that decodes gets room for one more token in the paged KV cache; where no block is free or can be
   evicted, the least urgent request (the last to have come among equals) gives up its blocks and waits again: the part
   that it had is computed again;
2. prompts under way get the rest of ``max_num_batched_tokens`` in order of admission, at most ``chunk_tokens`` each;
3. unless a request was preempted, waiting requests are admitted by priority and arrival while fewer than
   ``max_num_seqs`` run, tokens are left, and the first of them has room for its whole prompt.

With `overlap` a step is chosen while the one before it runs (vLLM's asynchronous scheduling, the overlap schedulers of
SGLang and TensorRT-LLM): who is admitted computes nothing in the step that begins then, unless the engine was idle.

A prompt's last chunk makes the first token, every later step one more. Where the costs have k draft tokens a step, each
decoding request takes k + 1 tokens of a step's budget and room for as many in the cache, and it gives back the part
not accepted; and all get as many tokens, so that after n steps of the instance they are ⌊n·g⌋ for g = 1 + a: the mean
acceptance, without its chance. Content blocks of prompts (`traces.Prefixes`)
are shared: those at the head of a prompt that are in the cache are not computed, but at least one token is; blocks
that no request uses stay until their room is needed, those unused for longest going first.

An engine of several data-parallel attention ranks is as many instances, each with slots, token budget, KV cache and
prefixes of its own, that take their steps together: a step begins for all when the last one ends and lasts as long as
what all of them do in it takes (`StepCosts.step_of_ranks`); ranks without requests step along. A request stays on the
rank that it was sent to.

A dispatcher sends a request at its arrival to an instance of its pool, a rank being one:

* ``round_robin``: in turn. ``shortest_queue``: fewest requests waiting and running.
* ``least_kv``: smallest share of KV blocks in use or asked for by prompts that wait.
* ``earliest_finish``: by a prediction from the queue, the running requests, the step costs and how long steps have
  lately been (`continuous_kernel._predicted`).
* ``planned_shares``: the kind of instance whose planned share of the request's class is furthest behind (deficit round
  robin), there as another dispatcher states (`within`), else whichever takes it; a last share is refused.
* ``prefix_affine``: most tokens of the prompt cached, if that is a third; the shortest queue where none is, or
  where queues are uneven.

Requests `assigned` to an engine, and requests of its closed-loop runs, go to its rank with the fewest waiting and
running.

With ``refuse`` an instance on which the first or last token is predicted to be late cannot be chosen, and a request
that finds no other is refused at once. Predictions use `expected_output_tokens`. Nothing is random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from optmodels.arrays import Array, Ints, Mask
from optmodels.errors import InputError, Mistake, one_of
from optmodels.latency.steps import StepCosts
from optmodels.traces.types import Prefixes

Dispatcher = Literal[
    "round_robin", "shortest_queue", "least_kv", "earliest_finish", "planned_shares", "prefix_affine"
]  # fmt: skip
Within = Literal["shortest_queue", "least_kv", "earliest_finish", "prefix_affine"]
DISPATCHERS: tuple[Dispatcher, ...] = get_args(Dispatcher)


@dataclass(frozen=True)
class Engine:
    """One engine: its step costs and vLLM's limits, which are of each rank.

    Attributes:
        costs: costs of its steps, over the ranks.
        kv_tokens: KV tokens that its cache holds, a rank's; whole blocks count.
        max_num_seqs: requests that run at a time.
        max_num_batched_tokens: prompt tokens, decodes and their drafts of a step; at least the decodes of
            `max_num_seqs`.
        chunk_tokens: chunk tokens of one prompt in a step (vLLM's long_prefill_token_threshold); None: no limit of its
            own.
        block_tokens: block tokens of a KV block.
        overlap: whether a step is chosen while the one before it runs.
        step_s: least length of steps after the first token in predictions (a plan's step time, say).
        pool: requests of the same pool may be sent here (a model, state).
        kind: kind that planned shares name it by.
        available_from_s: before it nothing is sent here.
        ranks: data-parallel attention ranks.
    """

    costs: StepCosts
    kv_tokens: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    chunk_tokens: int | None = None
    block_tokens: int = 16
    overlap: bool = False
    step_s: float = 0.0
    pool: int = 0
    kind: int = 0
    available_from_s: float = 0.0
    ranks: int = 1

    def __post_init__(self) -> None:
        mistakes = [
            Mistake(None, name, getattr(self, name), "at least 1")
            for name in ("max_num_seqs", "block_tokens", "chunk_tokens", "ranks")
            if getattr(self, name) is not None and getattr(self, name) < 1
        ]
        decoding = self.max_num_seqs * (1 + self.costs.drafts)
        if self.max_num_batched_tokens < decoding:
            each = f" with {self.costs.drafts} drafts each" if self.costs.drafts else ""
            expected = f"at least max_num_seqs{each}, {decoding}"
            mistakes.append(Mistake(None, "max_num_batched_tokens", self.max_num_batched_tokens, expected))
        if not self.kv_tokens >= self.block_tokens:
            mistakes.append(
                Mistake(None, "kv_tokens", self.kv_tokens, f"a block of {self.block_tokens} tokens or more")
            )
        if mistakes:
            raise InputError(*mistakes)

    @property
    def blocks(self) -> int:
        """KV blocks, of each rank."""
        return int(self.kv_tokens // self.block_tokens)


@dataclass(frozen=True)
class Arrivals:
    """Requests in the order of their arrival.

    Attributes:
        arrival_s: (n,) ascending.
        input_tokens, output_tokens: (n,) ≥ 1.
        expected_output_tokens: (n,) what dispatchers believe.
        priority: (n,) the lowest is served first.
        ttft_limit_s, deadline_s: (n,) seconds from arrival to the first and last token; infinity: none.
        pool: (n,) code, the engines'.
        klass: (n,) that planned shares go by.
        received_tokens: (n,) prompt tokens whose KV comes with the request from another engine. If that is all of them,
            its first token came with it too, and the answer has at least two.
        prefixes: content blocks of the prompts, or None: nothing is shared.
    """

    arrival_s: Array
    input_tokens: Ints
    output_tokens: Ints
    expected_output_tokens: Ints
    priority: Array
    ttft_limit_s: Array
    deadline_s: Array
    pool: Ints
    klass: Ints
    received_tokens: Ints
    prefixes: Prefixes | None = None

    @classmethod
    def of(
        cls, arrival_s: Any, input_tokens: Any, output_tokens: Any, *, expected_output_tokens: Any = None,
        priority: Any = 0.0, ttft_limit_s: Any = np.inf, deadline_s: Any = np.inf, pool: Any = 0, klass: Any = 0,
        received_tokens: Any = 0, prefixes: Prefixes | None = None,
    ) -> Arrivals:  # fmt: skip
        """Requests from anything array-like; scalars stand for all."""
        arrival = np.ascontiguousarray(arrival_s, dtype=np.float64)

        def column(values: Any, kind: type) -> Any:
            return np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype=kind), arrival.shape))

        expected = output_tokens if expected_output_tokens is None else expected_output_tokens
        return cls(
            arrival, column(input_tokens, np.int64), column(output_tokens, np.int64), column(expected, np.int64),
            column(priority, np.float64), column(ttft_limit_s, np.float64), column(deadline_s, np.float64),
            column(pool, np.int64), column(klass, np.int64), column(received_tokens, np.int64), prefixes,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.arrival_s)


@dataclass(frozen=True)
class Gaps:
    """What times between tokens (ITL) are counted for; one is the time from a token to the next step that makes some.

    With draft tokens a step makes several at once, between which nobody waits: a step counts once. While a request is
    preempted it waits for its next token, too.

    Attributes:
        edges_s: (B,) ascending seconds; counts are of times up to each, and of longer ones.
        group: (n,) where each request's count, 0 ≤ group; −1: nowhere.
        sent_s: (n,) seconds between the first token and the arrival of requests that come with their KV cache.
        limit_s: (n,) limit of each request, one of the edges: longer times are `late_pauses`.
    """

    edges_s: Array
    group: Ints
    sent_s: Array | float = 0.0
    limit_s: Array | float = np.inf


EDGES_S: Array = np.array(1e-4 * 1.02 ** np.arange(700), dtype=np.float64)  # of reports: up to 103 s, 2 % apart


def of_edges(edges_s: Array, counts: Ints) -> tuple[Array, Array]:
    """Counted times, each as the edge that it is not above, and how many there are of each.

    Edges are 1e-9 above the limits that they are made for, and taken to be these.
    """
    seconds = np.append(edges_s, 2.0 * edges_s[-1]) * (1.0 - 2e-9)
    return seconds[counts > 0], counts[counts > 0].astype(float)


def at_quantile(values: Array, many: Array, quantile: float | None) -> float:
    """Mean (None) or quantile of ascending values that are this many each."""
    if quantile is None:
        return float(np.average(values, weights=many))
    return float(values[np.searchsorted(np.cumsum(many), quantile * many.sum() * (1.0 - 1e-12))])


def gap_quantiles(values: Array, many: Array, levels: Sequence[float]) -> dict[str, float]:
    """Mean and quantiles of such values by name; nothing of nothing."""
    named = {"mean": None} | {f"p{100 * q:g}": q for q in levels}
    return {name: at_quantile(values, many, q) for name, q in named.items()} if len(values) else {}


@dataclass(frozen=True)
class Series:
    """Means over bins of time, (I, T) each: engine by bin, all ranks together.

    Attributes:
        bin_s: width; bin k is from ``k·bin_s`` on.
        busy: share of the bin in which a step was under way.
        running, waiting: requests, as at the beginning of each step; 0 while idle.
        kv_blocks: KV blocks in use; 0 while idle.
        tokens_per_s: prompt and output tokens processed.
    """

    bin_s: float
    busy: Array
    running: Array
    waiting: Array
    kv_blocks: Array
    tokens_per_s: Array


@dataclass(frozen=True)
class ServedRequests:
    """Results of a simulation, (n,) by request and (I,) by engine.

    Attributes:
        instance: index of the engine; −1: refused. Times of refused requests are NaN.
        start_s: first scheduled. first_s, finish_s: first and last token, the engine's `request_s` included.
        hit_tokens: hit tokens of the prompt, found in the cache at its first admission.
        preemptions: (n,) how often a request was.
        steps, busy_s: of each engine; the mean step is their ratio.
        most_running: most running of each engine, all ranks together.
        series: None where not asked for.
        gaps: (groups, B + 1) times between tokens up to each edge, not cumulated; None where not asked for.
        pauses, late_pauses: (n,) times between the tokens of each request, and those beyond its limit; 0 where not
            asked for.
    """

    arrivals: Arrivals
    instance: Ints
    start_s: Array
    first_s: Array
    finish_s: Array
    hit_tokens: Ints
    preemptions: Ints
    steps: Ints
    busy_s: Array
    most_running: Ints
    series: Series | None
    gaps: Ints | None = None
    pauses: Ints | int = 0
    late_pauses: Ints | int = 0

    @property
    def served(self) -> Mask:
        """(n,) not refused."""
        return self.instance >= 0

    @property
    def ttft_s(self) -> Array:
        """(n,) seconds from arrival to the first token."""
        return self.first_s - self.arrivals.arrival_s

    @property
    def e2e_s(self) -> Array:
        """(n,) seconds from arrival to the last token."""
        return self.finish_s - self.arrivals.arrival_s

    @property
    def queue_s(self) -> Array:
        """(n,) seconds from arrival until first scheduled."""
        return self.start_s - self.arrivals.arrival_s

    @property
    def tpot_s(self) -> Array:
        """(n,) seconds per output token after the first; NaN for answers of one token."""
        later = self.arrivals.output_tokens - 1
        return np.where(later > 0, (self.finish_s - self.first_s) / np.maximum(later, 1), np.nan)


def simulate(
    arrivals: Arrivals, engines: Sequence[Engine], dispatcher: Dispatcher = "earliest_finish", *,
    assigned: Any = None, planned: Any = None, planned_bin_s: float = np.inf, within: Within = "shortest_queue",
    refuse: bool = False, bin_s: float | None = None, bins: int = 1000, gaps: Gaps | None = None,
) -> ServedRequests:  # fmt: skip
    """Serve all requests.

    Args:
        arrivals: requests.
        engines: engine of each instance.
        dispatcher: who sends a request where.
        assigned: (n,) engines by request, in place of a dispatcher; −1: refused.
        planned: (bins, classes, kinds + 1) shares of each class by kind of instance, the last refused, for
            ``planned_shares``; without bins: the same always.
        planned_bin_s: width of its bins; the last lasts for ever.
        within: who is chosen of a kind.
        refuse: whether requests that are predicted to be late are refused.
        bin_s: width of the bins of the series; None: no series.
        bins: at most this many.
        gaps: times between tokens to count; None: none.

    Raises:
        InputError: a value that the requests and engines do not allow.
    """
    from optmodels.simulation import continuous_kernel as kernel

    one_of("within", within, get_args(Within))
    _validate(arrivals, engines, dispatcher, assigned, planned)
    order = np.array(sorted(range(len(engines)), key=lambda j: engines[j].pool), np.int64)
    ranks = np.array([engines[j].ranks for j in order], np.int64)
    pools = max([e.pool for e in engines], default=-1) + 1
    pools = max(pools, int(arrivals.pool.max(initial=-1)) + 1)
    before = np.append(0, np.cumsum(ranks))  # instances
    start_of = before[np.searchsorted([engines[j].pool for j in order], np.arange(pools + 1))]
    width = 0
    if bin_s is not None:
        width = bins
    state = _state(arrivals, [engines[j] for j in order], bin_s or 1.0, width, gaps)
    place = np.full(len(engines) + 1, -1, np.int64)  # the first instance in the kernel's order; the last of −1
    place[order] = before[:-1]
    sent = place[np.asarray(assigned, np.int64)] if assigned is not None else np.zeros(0, np.int64)
    shares = np.zeros((1, 1, 1)) if planned is None else _binned(planned)
    how = kernel.ASSIGNED if assigned is not None else 1 + DISPATCHERS.index(dispatcher)
    kernel.run(
        state, start_of, how, sent, shares, planned_bin_s, np.zeros(shares.shape[1:]), 1 + DISPATCHERS.index(within),
        np.full(pools, -1, np.int64), refuse,
    )  # fmt: skip
    return _served(arrivals, engines, np.repeat(order, ranks), place, state, bin_s)


def _validate(arrivals: Arrivals, engines: Sequence[Engine], dispatcher: str, assigned: Any, planned: Any) -> None:
    """Reject what would make the loop wrong or endless."""
    one_of("dispatcher", dispatcher, DISPATCHERS)
    a = arrivals
    if len(a) and not (np.isfinite(a.arrival_s).all() and a.arrival_s[0] >= 0 and (np.diff(a.arrival_s) >= 0).all()):
        raise InputError(Mistake(None, "arrival_s", None, "ascending finite seconds from 0 on"))
    whole = a.received_tokens == a.input_tokens
    if (
        (a.received_tokens < 0).any()
        or (a.received_tokens > a.input_tokens).any()
        or (a.output_tokens[whole] < 2).any()
    ):
        expected = "between 0 and the prompt, all of it only for answers of two tokens and more"
        raise InputError(Mistake(None, "received_tokens", None, expected))
    for name, least in (("input_tokens", 1), ("output_tokens", 1), ("expected_output_tokens", 1), ("pool", 0)):
        values = getattr(a, name)
        if (values < least).any():
            i = int(np.argmax(values < least))
            raise InputError(Mistake(None, f"{name}[{i}]", int(values[i]), f"at least {least}"))
    if np.isnan(a.priority).any():
        raise InputError(Mistake(None, "priority", None, "numbers"))
    if assigned is not None:
        sent = np.asarray(assigned)
        if sent.shape != a.arrival_s.shape or (sent < -1).any() or (sent >= len(engines)).any():
            raise InputError(Mistake(None, "assigned", None, f"(n,) indices of the {len(engines)} engines or −1"))
    elif dispatcher == "planned_shares":
        shape = (int(a.klass.max(initial=-1)) + 1, max([e.kind for e in engines], default=-1) + 2)
        shares = _binned(planned if planned is not None else [])
        if shares.ndim != 3 or shares.shape[1] < shape[0] or shares.shape[2] != shape[1] or (a.klass < 0).any():
            raise InputError(
                Mistake(None, "planned", shares.shape, f"shares of {shape[0]} classes by {shape[1]} kinds")
            )
    if a.prefixes is not None:
        for e in engines:
            if a.prefixes.block_tokens % e.block_tokens:
                expected = f"a divisor of the prompts' content blocks of {a.prefixes.block_tokens} tokens"
                raise InputError(Mistake(None, "block_tokens", e.block_tokens, expected))


def _binned(planned: Any) -> Array:
    """Planned shares by bin."""
    shares = np.ascontiguousarray(planned, dtype=np.float64)
    return shares[None] if shares.ndim == 2 else shares


def _state(a: Arrivals, engines: Sequence[Engine], bin_s: float, bins: int, gaps: Gaps | None = None) -> Any:
    """All that the kernel works on; an instance is a rank of an engine."""
    from optmodels.simulation import continuous_kernel as kernel
    from optmodels.simulation.regions_kernel import CELL, SLOT
    from optmodels.simulation.step_kernel import coefficients

    n = len(a)
    r = np.zeros(n, kernel.REQUEST)
    for name, values in (
        ("input", a.input_tokens), ("output", a.output_tokens), ("expected", a.expected_output_tokens),
        ("received", a.received_tokens), ("klass", a.klass), ("pool", a.pool), ("arrival_s", a.arrival_s),
        ("priority", a.priority), ("deadline_s", a.deadline_s), ("ttft_limit_s", a.ttft_limit_s), ("where", -1),
        ("start_s", np.nan), ("first_s", np.nan), ("finish_s", np.nan), ("group", -1 if gaps is None else gaps.group),
        ("last_s", a.arrival_s - (0.0 if gaps is None else gaps.sent_s)),
        ("edge", 0 if gaps is None else np.searchsorted(gaps.edges_s, gaps.limit_s * (1 + 1e-12), "right") - 1),
    ):  # fmt: skip
        r[name] = values
    unit_tokens, ids = 0, np.zeros(0, np.int64)
    if a.prefixes is not None:
        unit_tokens, ids = a.prefixes.block_tokens, a.prefixes.ids
        r["ids"] = a.prefixes.start[:-1]
        r["units"] = np.minimum(np.diff(a.prefixes.start), a.input_tokens // unit_tokens)
    ranks = [(e, k) for e in engines for k in range(e.ranks)]
    x = np.zeros(len(ranks), kernel.INSTANCE)
    heap = residues = cells = slots = 0
    slot_links = []
    for j, (e, rank) in enumerate(ranks):
        unit = unit_tokens // e.block_tokens
        units = e.blocks // unit if unit else 0
        table = 1 << (2 * units).bit_length() if units else 0
        for name, value in {
            "pool": e.pool, "kind": e.kind, "seqs": e.max_num_seqs, "budget": e.max_num_batched_tokens,
            "chunk": e.chunk_tokens or e.max_num_batched_tokens, "blocks": e.blocks, "block": e.block_tokens,
            "unit": unit if units else 0, "root": -1, "first": -1, "last": -1, "filling": -1, "filled": -1,
            "joined": -1, "heap": heap, "residues": residues,
            "free": e.blocks, "base": cells, "mask": table - 1, "slot": slots, "oldest": -1, "newest": -1,
            "slots": slots, "from_s": e.available_from_s, "step_s": e.step_s,
            "per_block": 1.0 / e.blocks, "overlap": e.overlap, "ranks": e.ranks, "rank": rank,
            **coefficients(e.costs),
        }.items():  # fmt: skip
            x[j][name] = value
        slot_links.append(np.append(np.arange(slots + 1, slots + units), -1)[:units])
        heap += min(e.max_num_seqs, n)
        residues += e.block_tokens
        cells += table
        slots += units
    cell, slot = np.zeros(cells, CELL), np.zeros(slots, SLOT)
    cell["key"] = -1
    slot["newer"] = np.concatenate(slot_links) if slots else 0
    prioritised = bool(n and np.ptp(a.priority) > 0)
    edges = np.zeros(0) if gaps is None else np.ascontiguousarray(gaps.edges_s, np.float64)
    return kernel.State(
        r, x, np.full(len(x), np.inf), np.zeros(len(x), np.int64), np.zeros(heap, kernel.ENTRY),
        np.zeros(residues, np.int64), cell, slot, np.ascontiguousarray(ids, np.int64), unit_tokens, prioritised,
        np.zeros((len(x), bins), kernel.BIN), bin_s, edges, np.zeros((len(x), len(edges) + 1), np.int64),
        np.zeros((int(r["group"].max(initial=-1)) + 1, len(edges) + 1), np.int64),
    )  # fmt: skip


def _served(
    a: Arrivals, engines: Sequence[Engine], engine: Ints, place: Ints, state: Any, bin_s: float | None
) -> ServedRequests:  # fmt: skip
    """Outcomes in the order of the requests and engines given; `engine` is each instance's."""
    r, x = state.request, state.x[place[:-1]]
    index = np.append(engine, -1)[r["instance"]]
    outside = np.append([e.costs.request_s for e in engines], 0.0)[index]
    lost = index < 0
    start, first, finish = (np.where(lost, np.nan, r[k]) for k in ("start_s", "first_s", "finish_s"))
    series = None
    if bin_s is not None:
        last = int(np.nanmax(finish, initial=0.0) // bin_s) + 1
        b = state.bins[:, : min(last, state.bins.shape[1])]
        busy = b["busy_s"][place[:-1]] / bin_s
        of_all = np.zeros((4, *busy.shape))
        for k, name in enumerate(("running", "waiting", "kv_blocks", "tokens")):
            np.add.at(of_all[k], engine, b[name] / bin_s)
        series = Series(bin_s, busy, *of_all)
    return ServedRequests(
        a, index, start, first + outside, finish + outside, r["hit"].copy(), r["preempted"].copy(), x["steps"].copy(),
        x["busy_s"].copy(), x["most"].copy(), series, state.gaps if len(state.edges) else None,
        r["pauses"].copy(), r["late"].copy(),
    )  # fmt: skip
