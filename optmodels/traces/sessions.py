"""Sessions: turns that wait for the answer before them, and prompts that begin with what came before."""

from __future__ import annotations

from typing import Any

import numpy as np

from optmodels.arrays import Array, Ints
from optmodels.traces.types import Follows, Prefixes

BLOCK_TOKENS = 16  # of prompts whose shared beginnings are known by a number of tokens


def codes(values: Any) -> Ints:
    """A number for each distinct value."""
    import pandas as pd

    return np.asarray(pd.factorize(values)[0], dtype=np.int64)


def turns(session: Ints) -> Ints:
    """(n,) the row of the turn before each in its session, in the order of the file; −1 for the first of a session."""
    order = np.argsort(session, kind="stable")
    before = np.full(len(session), -1, dtype=np.int64)
    same = session[order][1:] == session[order][:-1]
    before[order[1:]] = np.where(same, order[:-1], -1)
    return before


def closed(
    times: Array, before: Ints, waits: Any, think_s: Array, prompt: Ints, output: Ints, has_blocks: bool,
    notes: list[str],
) -> tuple[Array, Follows, Ints, Ints | None]:  # fmt: skip
    """Turns that are sent some time after the answer before them.

    Later turns that are shorter than the turns before them state only their new part: their prompts are all
    of the session so far (aiperf's multi-turn traces).

    Args:
        times: (n,) arrivals; of turns that wait anything.
        before: (n,) the turn before each.
        waits: (n,) whether a turn is sent after the answer before it.
        think_s: (n,) how long after it.
        prompt, output: (n,) tokens as the file has them.
        has_blocks: whether the file has the prompts' blocks.
        notes: added to.

    Returns:
        Arrivals as if answers took no time, who waits for whom, prompts, and the tokens shared with the turn before.
    """
    parent = np.where(waits, before, -1)
    whole = prompt.copy()
    for i in np.flatnonzero(waits):  # a turn comes after the one before it in the file
        whole[i] = whole[before[i]] + output[before[i]] + prompt[i]
    only_new = bool((prompt[waits] < (prompt + output)[before[waits]]).any())
    at = times.copy()
    for i in np.flatnonzero(waits):
        at[i] = at[before[i]] + think_s[i]
    count = len(np.flatnonzero(waits))
    notes.append(
        f"{count:,} of {len(times):,} requests follow an answer (sessions): `simulate` sends them so; plans and "
        "replays take an open loop, in which answers take no time"
    )
    shared = None
    if only_new:
        prompt = whole
        notes.append("prompts of later turns begin with the turns before them, whose tokens are added")
        if not has_blocks:
            shared = np.where(waits, (prompt + output)[before], 0)
    return at, Follows(parent, np.where(waits, think_s, 0.0)), prompt, shared


def shared_heads(shared: Ints, prompt: Ints, group: Ints) -> Prefixes:
    """Blocks of prompts whose first tokens equal those of the request before them in their group.

    Args:
        shared: (n,) tokens at the beginning that are the group's.
        prompt: (n,) tokens.
        group: (n,) whose beginnings are equal.
    """
    latest: dict[int, list[int]] = {}
    fresh, counts, ids = 0, list[int](), list[list[int]]()
    for head, tokens, of in zip((shared // BLOCK_TOKENS).tolist(), prompt.tolist(), group.tolist(), strict=True):
        size = -(-tokens // BLOCK_TOKENS)
        known = latest.get(of, [])[:head]
        mine = [*known, *range(fresh, fresh + size - len(known))]
        fresh += size - len(known)
        latest[of] = mine
        counts.append(size)
        ids.append(mine)
    start = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return Prefixes(BLOCK_TOKENS, start, np.concatenate([np.array(x, dtype=np.int64) for x in ids]))


def sent_after(trace: Any, e2e_s: Array) -> Array:
    """(n,) when every request is sent if answers take `e2e_s`; of requests without an answer no time."""
    follows = trace.follows
    assert follows is not None
    took = np.where(np.isfinite(e2e_s), e2e_s, 0.0)
    at = trace.arrival_s.copy()
    waits = follows.parent >= 0
    at[waits] = (trace.arrival_s + took)[follows.parent[waits]] + follows.think_s[waits]
    return at
