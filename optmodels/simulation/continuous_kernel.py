"""The event loop of `continuous.simulate`, compiled.

A step costs the same however many requests are in it. All who decode advance together, so an instance counts its steps
and keeps of each decoding request only the step at which something happens to it (its context outgrows the attention
window, it is answered), in a heap; how many of them fill a block of the KV cache is counted by their context modulo the
block's size; sums over contexts grow by the number of requests. With draft tokens all who decode get as many tokens of
a step, and it is these tokens, the instance's `clock`, that it counts. An instance is brought forward only when
somebody looks at it. Waiting requests lie in a pairing heap, so that order of arrival and priorities are one thing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from optmodels.simulation.engine import INF, LAST, compiled
from optmodels.simulation.regions_kernel import find, link, put, record, remove, unlink
from optmodels.simulation.step_kernel import clock as _clock
from optmodels.simulation.step_kernel import experts as _experts
from optmodels.simulation.step_kernel import pairs as _pairs
from optmodels.simulation.step_kernel import seen as _seen

ASSIGNED, ROUND_ROBIN, SHORTEST_QUEUE, LEAST_KV, EARLIEST_FINISH, PLANNED_SHARES, PREFIX_AFFINE = range(7)
UNEVEN_BY, UNEVEN_TIMES = 32, 1.5  # requests: from here on evenness goes before prefixes
LAST_STEP = 0.1  # of the mean of recent steps: the last ten or so are what counts
WORTH = 0.3  # of the prompt: from here on a prefix is worth a longer queue

# last_s: its last token, of one that decodes no longer or not yet; group: −1 or where the times between its tokens
# count. order: of its admission; held: prefix blocks of the KV `blocks` that it uses; inside: its context is still
# within the window; where: in the heap of decoding requests, or −1; due: the instance's clock at which it is answered;
# edge: the last within its limit on these times, of which it had `pauses`, `late` of them beyond.
# a, b: child and sibling while waiting, neighbours in order of admission while running; fill: next that is prefilled.
REQUEST = record(
    "input output expected received klass pool ids units instance"
    " made context todo chunk order held hit base due inside where a b fill preempted blocks group edge pauses late",
    "arrival_s priority deadline_s ttft_limit_s start_s first_s finish_s last_s",
)
# sum_c, sum_w: contexts of decoding requests, as a whole and within the window; below: how many are within it; ahead:
# prompt tokens still to be prefilled; asked: KV blocks of the prompts that wait; free: blocks that no request uses, the
# `cached` prefix blocks, each of `unit` blocks; root: of waiting requests; clock: tokens that a request which
# always decoded would have got of the steps so far, ⌊steps·tokens⌋. Each of the `ranks` of an engine is one; rank: its
# place after the first of them; recent_s: mean of the steps since it was idle, the last counting `LAST_STEP`.
INSTANCE = record(
    "blocks free asked kind pool seqs budget chunk block unit window overlap"
    " running decoding waiting root steps sum_c sum_w below ahead expected orders"
    " first last filling filled heap residues cached base mask slot oldest newest slots preempted most drafts clock"
    " ranks rank joined",
    "fixed_s prompt_step_s prompt_token_s prompt_pair_s prompt_context_s decode_request_s context_s mixed_context_s"
    " prompt_expert_s decode_expert_s request_s experts_s untouched window_share pair_share from_s step_s busy_s"
    " per_block tokens recent_s",
)
ENTRY = record("key order who")
BIN = record("", "busy_s running waiting kv_blocks tokens")  # integrals over the bin's seconds


class State(NamedTuple):
    """Everything, of n requests and I instances in order of their pools."""

    request: Any  # (n,) of REQUEST
    x: Any  # (I,) of INSTANCE
    next: Any  # (I,) end of the step under way; infinity: idle
    here: Any  # (I,) requests that wait and run
    heap: Any  # of ENTRY, those that decode; of instance j from x[j].heap on
    residue: Any  # number of decoding requests that have each context − clock modulo the block
    cell: Any  # hash tables of prefix blocks, from x[j].base on
    slot: Any  # prefix blocks, from x[j].slots on
    ids: Any  # of the prompts' prefix blocks
    unit_tokens: int  # tokens of a prefix block
    prioritised: bool
    bins: Any  # (I, T) of BIN
    bin_s: float
    edges: Any  # (B,) ascending seconds; none: times between tokens are not counted
    steps: Any  # (I, B + 1) steps that last up to each edge
    gaps: Any  # (G, B + 1) times between tokens, the same of each group


def apart(function):  # type: ignore[no-untyped-def]
    """A part that is called rarely or from several places."""
    return njit(cache=True, _nrt=False, error_model="numpy")(function)


# ------------------------------------------------------------------------------------------- who waits


@compiled
def _before(s, one, other):  # type: ignore[no-untyped-def]
    first, second = s.request[one].priority, s.request[other].priority
    return first < second or (first == second and one < other)


@compiled
def _meld(s, one, other):  # type: ignore[no-untyped-def]
    """One pairing heap of two."""
    if one < 0 or other < 0:
        return max(one, other)
    if _before(s, other, one):
        one, other = other, one
    s.request[other].b = s.request[one].a
    s.request[one].a = other
    return one


@apart
def _wait(s, j, i):  # type: ignore[no-untyped-def]
    """Put a request among those that wait."""
    x, r = s.x[j], s.request[i]
    r.a = r.b = -1
    x.root = _meld(s, x.root, i)
    x.waiting += 1
    x.ahead += r.input + r.made - r.received
    x.asked += -(-(r.input + r.made) // x.block)


@compiled
def _unwait(s, x):  # type: ignore[no-untyped-def]
    """Take the first waiting request: its children become one heap, in pairs and then from the last to the first."""
    gone = s.request[x.root]
    one, pairs = gone.a, -1
    while one >= 0:
        other = s.request[one].b
        following = s.request[other].b if other >= 0 else -1
        pair = _meld(s, one, other)
        s.request[pair].b = pairs
        pairs = pair
        one = following
    root = -1
    while pairs >= 0:
        following = s.request[pairs].b
        root = _meld(s, root, pairs)
        pairs = following
    x.root = root
    x.waiting -= 1
    x.asked -= -(-(gone.input + gone.made) // x.block)


# ------------------------------------------------------------------------------------------- who decodes


@compiled
def _set(s, k, entry_key, entry_order, who):  # type: ignore[no-untyped-def]
    e = s.heap[k]
    e.key, e.order, e.who = entry_key, entry_order, who
    s.request[who].where = k


@compiled
def _up(s, base, k, key, order, who):  # type: ignore[no-untyped-def]
    """Place an entry at or above position k."""
    while k > 0:
        parent = (k - 1) >> 1
        p = s.heap[base + parent]
        if p.key < key or (p.key == key and p.order < order):
            break
        _set(s, base + k, p.key, p.order, p.who)
        k = parent
    _set(s, base + k, key, order, who)


@apart
def _unheap(s, base, n, k):  # type: ignore[no-untyped-def]
    """Remove position k of a heap of n entries."""
    s.request[s.heap[base + k].who].where = -1
    n -= 1
    if k == n:
        return
    end = s.heap[base + n]
    key, order, who = end.key, end.order, end.who
    while True:
        child = 2 * k + 1
        if child >= n:
            break
        c = s.heap[base + child]
        if child + 1 < n:
            d = s.heap[base + child + 1]
            if d.key < c.key or (d.key == c.key and d.order < c.order):
                child += 1
                c = d
        if key < c.key or (key == c.key and order < c.order):
            break
        _set(s, base + k, c.key, c.order, c.who)
        k = child
    _up(s, base, k, key, order, who)


@compiled
def _edge(s, seconds):  # type: ignore[no-untyped-def]
    """The first edge that is no less."""
    low, high = 0, len(s.edges)
    while low < high:
        middle = (low + high) >> 1
        if s.edges[middle] < seconds:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _count(s, j, i, times):  # type: ignore[no-untyped-def]
    """Add the steps of an instance so far to the times between a request's tokens (1), or take them off (−1)."""
    r = s.request[i]
    if r.group >= 0:
        for b in range(s.gaps.shape[1]):
            _add(s, r, b, times * s.steps[j, b])


@compiled
def _add(s, r, at, times):  # type: ignore[no-untyped-def]
    """Add times between a request's tokens up to an edge."""
    s.gaps[r.group, at] += times
    r.pauses += times
    if at > r.edge:
        r.late += times


@apart
def _decode(s, j, i):  # type: ignore[no-untyped-def]
    """Begin to decode, with the context that is in the cache."""
    x, r = s.x[j], s.request[i]
    _count(s, j, i, -1)
    c = r.context
    r.base = c - x.clock
    r.due = x.clock + r.output - r.made
    key = r.due
    r.inside = c < x.window
    x.sum_c += c
    x.sum_w += min(c, x.window)
    x.below += r.inside
    if r.inside:
        key = min(key, x.clock + x.window - c)
    s.residue[x.residues + r.base % x.block] += 1
    _up(s, x.heap, x.decoding, key, r.order, i)
    x.decoding += 1


@apart
def _stop(s, j, i):  # type: ignore[no-untyped-def]
    """Decode no longer; its context and tokens made are known from here on."""
    x, r = s.x[j], s.request[i]
    _count(s, j, i, 1)
    c = r.base + x.clock
    r.context = c
    r.made = r.output - (r.due - x.clock)
    x.sum_c -= c
    x.sum_w -= min(c, x.window)
    x.below -= r.inside
    s.residue[x.residues + r.base % x.block] -= 1
    _unheap(s, x.heap, x.decoding, r.where - x.heap)
    x.decoding -= 1
    r.blocks = -(-c // x.block)


# ------------------------------------------------------------------------------------------- KV cache


@apart
def _lock(s, j, slot):  # type: ignore[no-untyped-def]
    """One more user of a prefix block; the first takes it off the list of evictable blocks."""
    x, b = s.x[j], s.slot[slot]
    if b.refs == 0:
        unlink(s.slot, x, b)
        x.cached -= 1
        x.free -= x.unit
    b.refs += 1


@apart
def _take(s, j, blocks):  # type: ignore[no-untyped-def]
    """Use blocks; prefix blocks unused for longest are evicted where none are empty."""
    x = s.x[j]
    while x.free - x.cached * x.unit < blocks:
        slot = x.oldest
        _lock(s, j, slot)
        b = s.slot[slot]
        remove(s.cell, x.base, x.mask, find(s.cell, x.base, x.mask, b.block))
        b.refs = 0
        b.newer = x.slot
        x.slot = slot
        x.free += x.unit
    x.free -= blocks


@apart
def _share(s, j, i, upto):  # type: ignore[no-untyped-def]
    """Put the prompt's prefix blocks that are computed with this step, up to a token, among the shared ones."""
    x, r = s.x[j], s.request[i]
    while r.held < r.units and (r.held + 1) * s.unit_tokens <= upto:
        block = s.ids[r.ids + r.held]
        at = find(s.cell, x.base, x.mask, block)
        if at >= 0:
            _lock(s, j, s.cell[at].value)
            x.free += x.unit
        else:
            slot = x.slot
            b = s.slot[slot]
            x.slot = b.newer
            b.block = block
            b.refs = 1
            put(s.cell, x.base, x.mask, block, slot)
        r.held += 1


@apart
def _release(s, j, i):  # type: ignore[no-untyped-def]
    """Give up all blocks; of shared ones the deepest first, so that roots are the newest."""
    x, r = s.x[j], s.request[i]
    x.free += r.blocks - r.held * x.unit
    while r.held > 0:
        r.held -= 1
        slot = s.cell[find(s.cell, x.base, x.mask, s.ids[r.ids + r.held])].value
        b = s.slot[slot]
        b.refs -= 1
        if b.refs == 0:
            link(s.slot, x, slot)
            x.cached += 1
            x.free += x.unit


@apart
def _found(s, j, i, tokens):  # type: ignore[no-untyped-def]
    """Leading prefix blocks that are cached and leave a token to compute, and how many of them no request uses."""
    x, r = s.x[j], s.request[i]
    n, idle = 0, 0
    if x.unit > 0:
        most = min(r.units, (tokens - 1) // s.unit_tokens)
        while n < most:
            at = find(s.cell, x.base, x.mask, s.ids[r.ids + n])
            if at < 0:
                break
            idle += s.slot[s.cell[at].value].refs == 0
            n += 1
    return n, idle


# ------------------------------------------------------------------------------------------- steps


@compiled
def _leave(s, x, i):  # type: ignore[no-untyped-def]
    """Take a request out of the running ones."""
    r = s.request[i]
    if r.a >= 0:
        s.request[r.a].b = r.b
    else:
        x.first = r.b
    if r.b >= 0:
        s.request[r.b].a = r.a
    else:
        x.last = r.a
    x.running -= 1


@apart
def _preempt(s, j, t):  # type: ignore[no-untyped-def]
    """The least urgent running request, the last to come among them, gives up its blocks and waits again."""
    x = s.x[j]
    i = x.last
    if s.prioritised:
        k = s.request[i].a
        while k >= 0:
            if _before(s, i, k):
                i = k
            k = s.request[k].a
    r = s.request[i]
    if r.where >= 0:
        _stop(s, j, i)
        r.last_s = t
    else:
        x.ahead -= r.todo
        before, k = -1, x.filling
        while k != i:
            before, k = k, s.request[k].fill
        if before < 0:
            x.filling = r.fill
        else:
            s.request[before].fill = r.fill
        if x.filled == i:
            x.filled = before
    _leave(s, x, i)
    _release(s, j, i)
    r.received = 0
    r.preempted += 1
    x.preempted += 1
    _wait(s, j, i)


@compiled
def _growing(s, x, low, high):  # type: ignore[no-untyped-def]
    """Blocks that all who decode need to go from `low` to `high` tokens beyond the cached ones."""
    blocks = 0
    for i in range(low, high):
        blocks += s.residue[x.residues + (-x.clock - i) % x.block]
    return blocks


@compiled
def _admit(s, j, t, budget, later):  # type: ignore[no-untyped-def]
    """The first waiting request joins the running ones, if its prompt has room; the budget left, or −1.

    With `later` it computes nothing in this step.
    """
    x = s.x[j]
    i = x.root
    r = s.request[i]
    tokens = r.input + r.made
    units, idle = _found(s, j, i, tokens)
    context = max(units * s.unit_tokens, r.received)
    # Who decodes at once needs room for its next token and the draft tokens next to it.
    blocks = -(-(tokens + (context == tokens) * (1 + x.drafts)) // x.block)
    if blocks + (idle - units) * x.unit > x.free:
        return -1
    _unwait(s, x)
    for k in range(units):
        _lock(s, j, s.cell[find(s.cell, x.base, x.mask, s.ids[r.ids + k])].value)
    r.held = units
    _take(s, j, blocks - units * x.unit)
    r.blocks = blocks
    r.context = context
    r.todo = tokens - context
    r.order = x.orders
    x.orders += 1
    r.a = x.last
    r.b = -1
    if x.last >= 0:
        s.request[x.last].b = i
    else:
        x.first = i
    x.last = i
    x.running += 1
    x.ahead -= context - r.received
    if np.isnan(r.start_s):
        r.start_s = t
        r.hit = units * s.unit_tokens
    if r.todo == 0:
        r.made = 1
        r.first_s = r.arrival_s
        _decode(s, j, i)
        r.fill = x.joined
        x.joined = i
        return budget - 1 - x.drafts
    r.fill = -1
    if x.filled >= 0:
        s.request[x.filled].fill = i
    else:
        x.filling = i
    x.filled = i
    r.chunk = min(r.todo, x.chunk, budget)
    left = budget - r.chunk
    if later:
        r.chunk = 0
    elif r.held < r.units:
        _share(s, j, i, context + r.chunk)
    return left


@compiled
def _choose(s, j, t, others):  # type: ignore[no-untyped-def]
    """Choose the work of the next step; `others`: whether requests run on other ranks."""
    x = s.x[j]
    preempted = False
    while _growing(s, x, 0, 1 + x.drafts) > x.free:
        _preempt(s, j, t)
        preempted = True
    _take(s, j, _growing(s, x, 0, 1 + x.drafts))
    budget = x.budget - x.decoding * (1 + x.drafts)
    i = x.filling
    while i >= 0:
        r = s.request[i]
        r.chunk = min(r.todo, x.chunk, budget)
        budget -= r.chunk
        if r.held < r.units and x.unit > 0:
            _share(s, j, i, r.context + r.chunk)
        i = r.fill
    later = x.overlap == 1 and (x.running > 0 or others)
    while not preempted and x.root >= 0 and x.running < x.seqs and budget > 0:
        left = _admit(s, j, t, budget, later)
        if left < 0:
            break
        budget = left


@compiled
def _chunks(s, x):  # type: ignore[no-untyped-def]
    """Prompt tokens of the next step, pairs of attending and attended tokens, and earlier tokens of their prompts."""
    tokens, pairs, earlier = 0, 0.0, 0.0
    i = x.filling
    while i >= 0:
        r = s.request[i]
        if r.chunk > 0:
            tokens += r.chunk
            pairs += _pairs(x, float(r.chunk), float(r.context))
            earlier += _seen(x, float(r.context))
        i = r.fill
    return tokens, pairs, earlier


@compiled
def _pauses(s, j, t, seconds):  # type: ignore[no-untyped-def]
    """Count a step that begins, and from their last tokens on the pauses of requests that came with their cache."""
    x = s.x[j]
    if len(s.edges) > 0:
        at = _edge(s, seconds)
        s.steps[j, at] += 1
        i = x.joined
        while i >= 0:
            r = s.request[i]
            if r.group >= 0:
                _add(s, r, at, -1)
                _add(s, r, _edge(s, t + seconds - r.last_s), 1)
            i = r.fill
    x.joined = -1


@compiled
def _schedule(s, j, t):  # type: ignore[no-untyped-def]
    """Begin the next step, if there is anything to do."""
    x = s.x[j]
    _choose(s, j, t, False)
    if x.running == 0:
        x.recent_s = 0.0
        s.next[j] = INF
        return
    tokens, pairs, earlier = _chunks(s, x)
    contexts = x.window_share * x.sum_w + (1.0 - x.window_share) * x.sum_c
    n = x.decoding
    seconds = x.fixed_s + _experts(x, tokens + n * (1 + x.drafts)) + x.decode_request_s * n
    if tokens > 0:
        seconds += x.prompt_step_s + x.prompt_token_s * tokens + x.prompt_pair_s * pairs
        seconds += x.prompt_context_s * earlier + x.mixed_context_s * contexts
    else:
        seconds += x.context_s * contexts
    x.busy_s += seconds
    x.most = max(x.most, x.running)
    x.recent_s += LAST_STEP * (seconds - x.recent_s)
    s.next[j] = t + seconds
    _pauses(s, j, t, seconds)
    if s.bins.shape[1] > 0:
        _record(s, j, t, seconds, tokens + n * (_clock(x, x.steps + 1) - x.clock))


@compiled
def _record(s, j, t, seconds, tokens):  # type: ignore[no-untyped-def]
    """Add a step to the bins that it lies in; the part after the last bin is not kept."""
    x, width = s.x[j], s.bin_s
    end = t + seconds
    k = int(t / width)
    while k < s.bins.shape[1] and t < end:
        part = min(end, (k + 1) * width) - t
        b = s.bins[j, k]
        b.busy_s += part
        b.running += x.running * part
        b.waiting += x.waiting * part
        b.kv_blocks += (x.blocks - x.free) * part
        b.tokens += tokens * (part / seconds)
        k += 1
        t = k * width


@compiled
def _answered(s, j, i, t):  # type: ignore[no-untyped-def]
    x, r = s.x[j], s.request[i]
    r.finish_s = t
    x.expected -= r.expected
    s.here[j] -= 1
    _leave(s, x, i)
    _release(s, j, i)


@compiled
def _complete(s, j, t):  # type: ignore[no-untyped-def]
    """End a step: its tokens for everyone who decodes, prompts advance, the last chunk of one gives a token."""
    x = s.x[j]
    x.steps += 1
    made = _clock(x, x.steps) - x.clock
    x.free += _growing(s, x, made, 1 + x.drafts)  # of draft tokens that were not accepted
    x.clock += made
    x.sum_c += x.decoding * made
    x.sum_w += x.below * made
    while x.decoding > 0 and s.heap[x.heap].key <= x.clock:
        i = s.heap[x.heap].who
        r = s.request[i]
        if r.inside and r.base + x.clock >= x.window:  # its context leaves the window
            x.sum_w -= r.base + x.clock - x.window
            x.below -= 1
            r.inside = 0
            _unheap(s, x.heap, x.decoding, 0)
            _up(s, x.heap, x.decoding - 1, r.due, r.order, i)
        else:
            _stop(s, j, i)
            _answered(s, j, i, t)
    before, i = -1, x.filling
    while i >= 0:
        r = s.request[i]
        following = r.fill
        r.context += r.chunk
        r.todo -= r.chunk
        x.ahead -= r.chunk
        if r.todo > 0:
            before = i
        else:
            if before < 0:
                x.filling = following
            else:
                s.request[before].fill = following
            if x.filled == i:
                x.filled = before
            r.made += 1
            if np.isnan(r.first_s):
                r.first_s = t
            elif r.group >= 0:
                _add(s, r, _edge(s, t - r.last_s), 1)  # since it was preempted
            if r.made >= r.output:
                _answered(s, j, i, t)
            else:
                _decode(s, j, i)
        i = following


@compiled
def _schedule_ranks(s, low, high, t, others):  # type: ignore[no-untyped-def]
    """Begin the next step of an engine's ranks (`StepCosts.step_of_ranks`), if there is anything to do."""
    x, carries, running = s.x[low], False, 0
    for j in range(low, high):
        _choose(s, j, t, others)
        running += s.x[j].running
        i = s.x[j].filling
        while i >= 0 and not carries:
            carries = s.request[i].chunk > 0
            i = s.request[i].fill
    if running == 0:
        for j in range(low, high):
            s.x[j].recent_s = 0.0
            s.next[j] = INF
        return
    prompts, decodes, most = 0, 0, 0.0
    for j in range(low, high):
        y = s.x[j]
        tokens, pairs, earlier = _chunks(s, y)
        contexts = x.window_share * y.sum_w + (1.0 - x.window_share) * y.sum_c
        own = (x.prompt_token_s - x.prompt_expert_s) * tokens + (x.decode_request_s - x.decode_expert_s) * y.decoding
        own += x.prompt_pair_s * pairs + x.prompt_context_s * earlier
        own += (x.mixed_context_s if carries else x.context_s) * contexts
        most = max(most, own)
        prompts += tokens
        decodes += y.decoding
    seconds = x.fixed_s + _experts(x, prompts + decodes * (1 + x.drafts)) + x.ranks * most
    seconds += x.prompt_expert_s * prompts + x.decode_expert_s * decodes
    if carries:
        seconds += x.prompt_step_s
    for j in range(low, high):
        y = s.x[j]
        y.busy_s += seconds
        y.most = max(y.most, running)
        y.recent_s += LAST_STEP * (seconds - y.recent_s)
        s.next[j] = t + seconds
        _pauses(s, j, t, seconds)
        if s.bins.shape[1] > 0:
            tokens, _, _ = _chunks(s, y)
            _record(s, j, t, seconds, tokens + y.decoding * (_clock(y, y.steps + 1) - y.clock))


@apart
def _advance_ranks(s, low, high, until):  # type: ignore[no-untyped-def]
    """All steps of an engine's ranks that begin before a time."""
    while s.next[low] < until:
        t, running = s.next[low], 0
        for j in range(low, high):
            running += s.x[j].running
        if running > 0:
            running = 0
            for j in range(low, high):  # those without requests step along
                _complete(s, j, t)
                running += s.x[j].running
        _schedule_ranks(s, low, high, t, running > 0)


@compiled
def _advance(s, j, until):  # type: ignore[no-untyped-def]
    """All steps that begin before a time."""
    x = s.x[j]
    if x.ranks > 1:
        _advance_ranks(s, j - x.rank, j - x.rank + x.ranks, until)
        return
    while s.next[j] < until:
        t = s.next[j]
        if x.running > 0:
            _complete(s, j, t)
        _schedule(s, j, t)


# ------------------------------------------------------------------------------------------- who gets a request


@compiled
def _predicted(s, j, i, t):  # type: ignore[no-untyped-def]
    """Seconds from now to the first and the last token, from the knowledge of an engine's front end.

    Everyone here decodes with the newcomer in steps that also carry prompts: first the rest of the step under way;
    then, if slots or blocks are short, until the excess has left, half a mean answer each; then the prompts ahead and
    its own, a budget a step; then its own answer in steps without prompts, or the instance's usual or recent ones if
    longer, as others' prompts come meanwhile, too. Other ranks of its engine are taken to have as much to do.
    """
    x, r = s.x[j], s.request[i]
    here = s.here[j] + 1
    own = r.input - r.received
    if x.unit > 0:
        units, _ = _found(s, j, i, r.input)
        own = min(own, r.input - units * s.unit_tokens)
    n = min(here, x.seqs)
    step = x.fixed_s + _experts(x, x.ranks * n * (1 + x.drafts)) + x.ranks * n * (
        x.decode_request_s + x.context_s * _seen(x, (x.sum_c + x.ahead + r.input) / here)
    )  # fmt: skip
    blocks = x.blocks - x.free + x.asked + (-(-r.input // x.block))
    load = max(here / x.seqs, blocks * x.per_block)
    first = s.next[j] - t if s.next[j] < INF else 0.0
    if load > 1.0:
        first += (load - 1.0) * 0.5 * (x.expected + r.expected) / (here * x.tokens) * step
    prompts = x.ahead + own
    if prompts > 0:
        first += np.ceil(prompts / max(x.budget - n * (1 + x.drafts) + 1, 1)) * (step + x.prompt_step_s)
        first += x.ranks * (x.prompt_token_s * prompts + x.prompt_pair_s * _pairs(x, float(own), float(r.input - own)))
    first += x.request_s
    return first, first + (r.expected - 1) / x.tokens * max(step, x.step_s, x.recent_s)


@compiled
def _may(s, j, i, t, refuse):  # type: ignore[no-untyped-def]
    """Whether an instance takes a request: it runs, the request fits it and, where it may refuse, is in time."""
    x, r = s.x[j], s.request[i]
    if x.from_s > t or -(-(r.input + r.output - 1 + x.drafts) // x.block) > x.blocks:
        return False
    if not refuse:
        return True
    first, last = _predicted(s, j, i, t)
    return first <= r.ttft_limit_s and last <= r.deadline_s


@apart
def _pick(s, i, t, low, high, kind, how, refuse):  # type: ignore[no-untyped-def]
    """The instance of the lowest rank (of a kind, if ≥ 0) that takes a request, or −1."""
    best, lowest, tie = -1, INF, INF
    even = True
    if how == PREFIX_AFFINE:
        least, most = INF, 0.0
        for j in range(low, high):
            least, most = min(least, float(s.here[j])), max(most, float(s.here[j]))
        even = most - least <= UNEVEN_BY or most <= UNEVEN_TIMES * least
    for j in range(low, high):
        if kind >= 0 and s.x[j].kind != kind:
            continue
        second = float(s.here[j])
        first = second
        if how == LEAST_KV:
            x = s.x[j]
            first = (x.blocks - x.free + x.asked) * x.per_block
        elif how == EARLIEST_FINISH:
            _, first = _predicted(s, j, i, t)
        elif how == PREFIX_AFFINE and even:
            units, _ = _found(s, j, i, s.request[i].input)
            tokens = units * s.unit_tokens
            first = -float(tokens) if tokens > WORTH * s.request[i].input else 0.0
        if (first < lowest or (first == lowest and second < tie)) and _may(s, j, i, t, refuse):
            best, lowest, tie = j, first, second
    return best


@apart
def _in_turn(s, i, t, low, high, last, refuse):  # type: ignore[no-untyped-def]
    """The first instance after the last that takes a request, or −1."""
    j = last
    for _ in range(low, high):
        j += 1
        if j >= high or j < low:
            j = low
        if _may(s, j, i, t, refuse):
            return j
    return -1


@apart
def _planned(s, i, t, low, high, planned, credit, within, refuse):  # type: ignore[no-untyped-def]
    """Deficit round robin over kinds of instances; −1: refused, as the last share is."""
    turn = -1
    for q in range(len(planned)):
        credit[q] += planned[q]
        if planned[q] > 0 and (turn < 0 or credit[q] > credit[turn]):
            turn = q
    if turn < 0:
        return -1
    credit[turn] -= 1.0
    if turn == len(planned) - 1:
        return -1
    j = _pick(s, i, t, low, high, turn, within, refuse)
    if j < 0:  # whichever else would take it
        j = _pick(s, i, t, low, high, -1, within, refuse)
    return j


@compiled
def _arrive(s, j, i, t):  # type: ignore[no-untyped-def]
    """Send a request to an instance."""
    s.x[j].expected += s.request[i].expected
    s.here[j] += 1
    _wait(s, j, i)
    if s.next[j] == INF:
        low = j - s.x[j].rank
        for k in range(low, low + s.x[j].ranks):
            s.next[k] = t


@apart
def arrive(s, i, t):  # type: ignore[no-untyped-def]
    """Send a request to the least busy rank of the only engine; this and the next two are for loops not compiled."""
    least = 0
    for j in range(1, len(s.x)):
        if s.here[j] < s.here[least]:
            least = j
    s.request[i].instance = least
    _arrive(s, least, i, t)


@apart
def complete(s):  # type: ignore[no-untyped-def]
    """End the step under way on the only engine; ranks without requests step along."""
    t = s.next[0]
    for j in range(len(s.x)):
        _complete(s, j, t)


@apart
def schedule(s):  # type: ignore[no-untyped-def]
    """Begin the next step on the only engine, if there is anything to do; whether there is."""
    running = 0
    if len(s.x) == 1:
        _schedule(s, 0, s.next[0])
    else:
        for j in range(len(s.x)):
            running += s.x[j].running
        _schedule_ranks(s, 0, len(s.x), s.next[0], running > 0)
    running = 0
    for j in range(len(s.x)):
        running += s.x[j].running
    return running > 0


@njit(cache=True, _nrt=False, error_model="numpy")
def run(s, start_of, how, assigned, planned, planned_bin_s, credit, within, last, refuse):  # type: ignore[no-untyped-def]
    """Serve all requests; outcomes are written into the state.

    Requests of pool m go to instances ``start_of[m]`` to ``start_of[m + 1]``. Where `assigned` names an instance, the
    request goes there; where that is the first of several ranks, to the least busy of them.
    `last` is the instance with the last turn, by pool; `planned` is by bin, class and kind, `credit` by class and kind.
    """
    n = len(s.request)
    for i in range(n + 1):  # the last is the end: everything there is to do
        t, low, high, j = LAST, 0, len(s.x), -1
        if i < n:
            t, pool = s.request[i].arrival_s, s.request[i].pool
            low, high = start_of[pool], start_of[pool + 1]
            if how == ASSIGNED:
                j = assigned[i]
            elif how == ROUND_ROBIN and not refuse:
                j = _in_turn(s, i, t, low, high, last[pool], refuse)
            if how == ASSIGNED or (how == ROUND_ROBIN and not refuse):
                low, high = max(j, 0), j + 1  # the state of other instances is not read
        for k in range(low, high):
            if s.next[k] < t:
                _advance(s, k, t)
        if i == n:
            break
        r = s.request[i]
        if how == ASSIGNED:
            if j >= 0:
                j = _pick(s, i, t, j, j + s.x[j].ranks, -1, SHORTEST_QUEUE, refuse)
        elif how == ROUND_ROBIN:
            if refuse:
                j = _in_turn(s, i, t, low, high, last[r.pool], refuse)
            if j >= 0:
                last[r.pool] = j
        elif how == PLANNED_SHARES:
            b = int(min(t / planned_bin_s, planned.shape[0] - 1.0))
            j = _planned(s, i, t, low, high, planned[b, r.klass], credit[r.klass], within, refuse)
        else:
            j = _pick(s, i, t, low, high, -1, how, refuse)
        r.instance = j
        if j >= 0:
            _arrive(s, j, i, t)
