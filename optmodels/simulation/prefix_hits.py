"""Prefix-cache hits of a request trace, for every size of the cache at once, split over some engines.

Each engine has a cache of its own, which evicts the least recently used blocks (LRU). The blocks that a request finds
at the head of its prompt depend on the size C of the cache by the *stack distance* of its blocks alone (Mattson,
Gecsei, Slutz and Traiger, IBM Systems Journal 9(2), 1970): this many blocks were used since the block itself was,
itself included, and it is there exactly if these are no more than C. One pass over the trace finds all of them: a
Fenwick tree counts the blocks whose last use is later.

A request uses the blocks of its prompt, its root last, so that the rest of a prompt is its head whatever C is, and
once and for all the blocks of its answer and of the prompt's last, partial block. That running requests hold theirs
is left out: C is the room for prompts that are not in progress, next to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numba import njit

from optmodels.arrays import Ints
from optmodels.errors import InputError, Mistake, one_of
from optmodels.traces.types import Routing, Trace

ROUTINGS: tuple[Routing, ...] = get_args(Routing)


@dataclass(frozen=True)
class Distances:
    """Blocks found at the heads of prompts in caches without end.

    Attributes:
        block_tokens: tokens of a block.
        request: request of each block, (m,).
        distance: blocks used since its last use, at least; itself included, (m,); of a prompt never less than of the
            block before.
    """

    block_tokens: int
    request: Ints
    distance: Ints

    def hit_tokens(self, requests: int, kv_tokens: float) -> Ints:
        """Prompt tokens of each of the requests that caches of a size have, (requests,)."""
        there = self.distance <= int(kv_tokens // self.block_tokens)
        return np.bincount(self.request[there], minlength=requests) * self.block_tokens


def engines_of(trace: Trace, engines: int, routing: Routing, seed: int = 0) -> Ints:
    """The engine that each request is sent to, (n,).

    Args:
        trace: requests.
        engines: how many.
        routing: ``random``; by the prompt's ``first_block``, so that equal ones meet; by ``session``.
        seed: random seed. Requests without a block, and blocks and sessions by a hash of it, are
            spread evenly.

    Raises:
        InputError: requests without sessions.
    """
    rng = np.random.default_rng(seed)
    if routing == "random":
        return rng.integers(0, engines, len(trace))
    code = together(trace, routing)
    spread = np.arange(code.max(initial=-1) + 1) % engines
    rng.shuffle(spread)
    return np.asarray(spread[code], dtype=np.int64)


def together(trace: Trace, routing: Routing) -> Ints:
    """Codes from 0 on of requests that go to one engine, by ``first_block`` or ``session``, (n,).

    Raises:
        InputError: requests without sessions.
    """
    if routing == "session":
        if "session" not in trace.labels:
            raise InputError(Mistake(None, "routing", routing, "a trace with a column session"))
        key = trace.labels["session"].codes
    else:
        assert trace.prefixes is not None
        p = trace.prefixes
        known = np.diff(p.start) > 0
        key = -1 - np.arange(len(trace))
        key[known] = p.ids[p.start[:-1][known]]
    _, code = np.unique(key, return_inverse=True)
    return np.asarray(code, dtype=np.int64)


def distances(
    trace: Trace, engine: Ints, kv_tokens: float = np.inf, needed: Ints | None = None
) -> Distances:  # fmt: skip
    """Stack distances of the blocks at the heads of prompts, of caches of at most one size.

    Args:
        trace: requests, with prefixes.
        engine: engine of each, (n,).
        kv_tokens: largest number of tokens in an engine's cache.
        needed: (n,) blocks that a request has to find, or else it is not served and leaves nothing in the cache; None:
            all are served.

    Raises:
        InputError: the trace states no shared prompts.
    """
    p = trace.prefixes
    if p is None:
        expected = "them with every request: nothing else says what prompts share"
        raise InputError(Mistake(trace.name, "hash_ids", None, expected))
    size = p.block_tokens
    whole = np.minimum(np.diff(p.start), trace.prompt_tokens // size)
    able = np.minimum(whole, (trace.prompt_tokens - 1) // size)  # a token is left to compute
    rest = -(-(trace.prompt_tokens + trace.output_tokens) // size) - whole
    _, block = np.unique(p.ids, return_inverse=True)
    needed = np.zeros(len(trace), dtype=np.int64) if needed is None else needed
    most = np.iinfo(np.int64).max if np.isinf(kv_tokens) else int(kv_tokens // size)
    found: list[tuple[Ints, Ints]] = []
    for e in np.unique(engine):
        mine = np.flatnonzero(engine == e)
        out = np.empty((2, int(able[mine].sum())), dtype=np.int64)
        used = _stack(
            mine, p.start[:-1], whole, able, rest, block.astype(np.int64), int(block.max(initial=-1)) + 1,
            int(whole[mine].sum()) + len(mine), most, needed, out,
        )  # fmt: skip
        found.append((out[0, :used], out[1, :used]))
    request, distance = (np.concatenate([f[k] for f in found]) if found else np.zeros(0, np.int64) for k in (0, 1))
    return Distances(size, request, distance)


@njit(cache=True, error_model="numpy")
def _stack(mine, start, whole, able, rest, block, blocks, places, most, needed, out):  # type: ignore[no-untyped-def]
    """Request and distance of each block found, into `out`; how many."""
    tree = np.zeros(places + 1, np.int64)  # Fenwick's, of blocks by the place of their last use
    last = np.full(blocks, -1, np.int64)
    total, place, n = 0, 0, 0
    for k in range(len(mine)):
        i = mine[k]
        furthest, before = 0, n
        for d in range(able[i]):
            at = last[block[start[i] + d]]
            if at < 0:
                break
            older, x = 0, at
            while x > 0:
                older += tree[x]
                x -= x & -x
            furthest = max(furthest, total - older)
            if furthest > most:
                break
            out[0, n], out[1, n] = i, furthest
            n += 1
        if n - before < needed[i]:
            continue
        for d in range(whole[i], -1, -1):  # the rest, then the prompt from its end to its root
            place += 1
            count = rest[i]
            if d < whole[i]:
                count = 1
                b = block[start[i] + d]
                if last[b] >= 0:
                    total -= 1
                    x = last[b] + 1
                    while x <= places:
                        tree[x] -= 1
                        x += x & -x
                last[b] = place - 1
            total += count
            x = place
            while x <= places:
                tree[x] += count
                x += x & -x
    return n


def prefix_hits(
    trace: Trace, kv_tokens: Sequence[float], engines: Sequence[int], routing: Routing = "first_block",
    by: str | None = None, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Shares of the prompts' tokens that caches have, by size, number of engines and label, beginning with empty ones.

    Args:
        trace: requests, with prefixes.
        kv_tokens: sizes of the cache of an engine.
        engines: how many requests are split over.
        routing: routing, as of `engines_of`.
        by: label of the requests whose shares are distinguished, such as ``class``; None: one share.
        seed: random seed.

    Returns:
        ``hits``: a row for each, as an instance of fleet takes them in ``prefix_cache.hits``; ``busiest``: by number of
        engines, the most requests of one of them, in means.

    Raises:
        InputError: an argument is wrong, or the trace has no prefixes.
    """
    one_of("routing", routing, ROUTINGS)
    for what, values, least in (("kv_tokens", kv_tokens, 0.0), ("engines", engines, 1)):
        if not values or not all(np.isfinite(v) and v >= least for v in values):
            raise InputError(Mistake(None, what, list(values), f"numbers of at least {least:g}"))
    if by is not None and by not in trace.labels:
        raise InputError(Mistake(None, "by", by, f"a label of the trace: {', '.join(trace.labels) or 'it has none'}"))
    n = len(trace)
    names: tuple[str | None, ...] = (None,) if by is None else trace.labels[by].names
    codes = np.zeros(n, np.int64) if by is None else trace.labels[by].codes
    prompts = np.bincount(codes, trace.prompt_tokens, len(names))
    rows, busiest = [], {}
    for count in sorted(set(engines)):
        sent = engines_of(trace, count, routing, seed) if trace.prefixes is not None else np.zeros(n, np.int64)
        found = distances(trace, sent)
        busiest[str(count)] = float(np.bincount(sent, minlength=count).max(initial=0) * count / max(n, 1))
        for size in sorted(set(kv_tokens)):
            hits = np.bincount(codes, found.hit_tokens(n, size), len(names))
            for k, name in enumerate(names):
                if prompts[k] > 0:
                    share = float(hits[k] / prompts[k])
                    rows.append({"workload": name, "engines": count, "kv_tokens": size, "share": share})
    return {
        "trace": trace.name, "requests": n, "routing": routing, "by": by, "seed": seed, "busiest": busiest,
        "block_tokens": trace.prefixes.block_tokens if trace.prefixes is not None else 0, "hits": rows,
    }  # fmt: skip
