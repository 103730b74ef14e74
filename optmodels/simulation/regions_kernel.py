"""The compiled event loop of `simulation.regions`: one `World` of plain arrays, changed in place.

Blocks of token ids name whole prefixes, so a radix tree is a set of blocks: a replica's prefix cache is a hash table of
blocks with reference counts and a list of the unreferenced ones from oldest to newest use (a block's parent is always
newer than the block, so eviction is leaf first), and a balancer's trie (SK §3.2) is a hash table of (block, target).
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from optmodels.simulation.step_kernel import clock, experts, pairs, seen

ARRIVE, DELIVER, STEP, NOTICE, TICK, SAMPLE = range(6)
ROUND_ROBIN, LEAST_LOAD, HASH, PREFIX = range(4)
BLIND, OUTSTANDING, PENDING = range(3)
ANY = 1 << 60  # tokens


def record(integers: str, floats: str = "") -> np.dtype[Any]:
    """A record type of 64-bit fields."""
    return np.dtype([(n, np.int64) for n in integers.split()] + [(n, np.float64) for n in floats.split()])


# start: offset into ids; n_prompt, n_all: whole blocks of the prompt, and with the answer; next: in whichever queue the
# request is; held: blocks locked; hit: prompt tokens found cached; todo, chunk: of a mixed engine, prompt tokens still
# to be prefilled and the ones of this step. A request with arrival_s = inf waits for another.
REQUEST = record(
    "region key prompt output start n_prompt n_all child_start child_end program"
    " next produced held replica hit forwarded refused todo chunk",
    "arrival_s think_s sent_s first_s done_s",
)
# owner: balancer that manages it; reserve: output tokens kept free for everybody running; lag: probe ticks its state is
# old; private: tokens of KV outside the cache's blocks; base, mask: its part of the cache table; free, oldest, newest:
# slots; cached, evictable: blocks; pushed: since the last probe; left_out: requests still waiting
# after the last admission (SK §3.3's pending). mixed: steps by `StepCosts`; steps: so far; made: tokens of this one's
# decoding requests.
REPLICA = record(
    "region owner kv_tokens max_batch prefill_tokens reserve lag"
    " head tail waiting left_out batch fresh busy private context outstanding pushed preempted"
    " base mask free oldest newest cached evictable mixed chunk_tokens window drafts steps made",
    "decode_s decode_per_kv_token_s decode_per_sequence_s prefill_s prefill_per_token_s prefill_per_pair_s"
    " from_s until_s busy_s"
    " fixed_s prompt_step_s prompt_token_s prompt_pair_s prompt_context_s decode_request_s context_s mixed_context_s"
    " prompt_expert_s decode_expert_s request_s experts_s untouched window_share pair_share tokens",
)
BALANCER = record("region start end ring_start ring_end head tail waiting pointer far_pointer")
TRIE = record("base mask record_base room first count entries limit")  # 2l: replicas of l; 2l + 1: other balancers
SLOT = record("block refs older newer")
CELL = record("key value")  # of a hash table; key −1: empty
PAIR = record("request target")
NODE = record("hash target")  # of a hash ring
PROGRAM = record("left next")  # requests still to finish; first request of the client's next program or −1
RULE = record(
    "select push limit buffer burst smallest_tree forward block_tokens tick seq remaining",
    "probe_s match unbalanced_by unbalanced_times",
)


class World(NamedTuple):
    """Everything; R regions, P replicas, L balancers."""

    request: Any
    replica: Any
    balancer: Any
    trie: Any  # (2L,)
    program: Any
    rule: Any  # (1,)
    slot: Any
    cache: Any  # cells: block → slot
    listed: Any  # cells: block · width + target → records that pass through
    records: Any  # pairs, a ring for every trie
    tree_size: Any  # (2L, width)
    ids: Any
    child: Any
    managed: Any
    ring: Any
    far_ring: Any
    entry: Any  # (R,) balancer of a region's users
    one_way_s: Any  # (R, R)
    may: Any  # (R, R) requests of r may be served in s
    far_lag: Any  # (L, L)
    far_pushed: Any  # (L, L) since the last probe
    running: Any  # (P, most)
    seen_pending: Any  # (history, P)
    seen_avail: Any  # (history, L)
    seen_queue: Any


# ------------------------------------------------------------------------------------------------ hash tables


@njit(cache=True)
def home(key: int, mask: int) -> Any:
    """Where a key would like to be: multiplicative hashing."""
    return np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & mask


@njit(cache=True)
def find(table: Any, base: int, mask: int, key: int) -> int:
    """Cell of a key in the part of the table that begins at base, or −1."""
    at = home(key, mask)
    while True:
        found = table[base + at].key
        if found == key:
            return base + at
        if found == -1:
            return -1
        at = (at + 1) & mask


@njit(cache=True)
def put(table: Any, base: int, mask: int, key: int, value: int) -> None:
    """Insert a key that is not there."""
    at = home(key, mask)
    while table[base + at].key != -1:
        at = (at + 1) & mask
    table[base + at].key = key
    table[base + at].value = value


@njit(cache=True)
def remove(table: Any, base: int, mask: int, where: int) -> None:
    """Backward-shift deletion: what probed past the hole moves into it."""
    i = where - base
    j = i
    while True:
        j = (j + 1) & mask
        if table[base + j].key == -1:
            break
        h = home(table[base + j].key, mask)
        stays = (i < h and h <= j) if i <= j else (h > i or h <= j)
        if not stays:
            table[base + i] = table[base + j]
            i = j
    table[base + i].key = -1


# ---------------------------------------------------------------------------------------------- prefix cache


@njit(cache=True, forceinline=True)
def unlink(slots: Any, owner: Any, x: Any) -> None:
    """Take a block off its owner's list of evictable blocks, from `owner.oldest` to `owner.newest`."""
    if x.older >= 0:
        slots[x.older].newer = x.newer
    else:
        owner.oldest = x.newer
    if x.newer >= 0:
        slots[x.newer].older = x.older
    else:
        owner.newest = x.older


@njit(cache=True, forceinline=True)
def link(slots: Any, owner: Any, slot: int) -> None:
    """Put a block behind the newest of its owner's list."""
    x = slots[slot]
    x.older = owner.newest
    x.newer = -1
    if owner.newest >= 0:
        slots[owner.newest].newer = slot
    else:
        owner.oldest = slot
    owner.newest = slot


@njit(cache=True)
def lock(w: Any, p: int, slot: int) -> None:
    """One more user of a cached block; the first takes it off the list of evictable blocks."""
    e, x = w.replica[p], w.slot[slot]
    if x.refs == 0:
        unlink(w.slot, e, x)
        e.evictable -= 1
    x.refs += 1


@njit(cache=True)
def evict(w: Any, p: int) -> None:
    """Drop the block unused for longest."""
    e = w.replica[p]
    slot = e.oldest
    lock(w, p, slot)  # takes it off the list
    x = w.slot[slot]
    remove(w.cache, e.base, e.mask, find(w.cache, e.base, e.mask, x.block))
    x.refs = 0
    x.newer = e.free
    e.free = slot
    e.cached -= 1


@njit(cache=True)
def hold(w: Any, p: int, block: int) -> None:
    """Lock a block, inserting it where it is not cached."""
    e = w.replica[p]
    at = find(w.cache, e.base, e.mask, block)
    if at >= 0:
        lock(w, p, w.cache[at].value)
        return
    slot = e.free
    x = w.slot[slot]
    e.free = x.newer
    x.block = block
    x.refs = 1
    put(w.cache, e.base, e.mask, block, slot)
    e.cached += 1


@njit(cache=True)
def release(w: Any, p: int, i: int) -> None:
    """Unlock the blocks request i holds, deepest first, so that roots are the newest."""
    e, r = w.replica[p], w.request[i]
    for b in range(r.held - 1, -1, -1):
        slot = w.cache[find(w.cache, e.base, e.mask, w.ids[r.start + b])].value
        x = w.slot[slot]
        x.refs -= 1
        if x.refs == 0:
            link(w.slot, e, slot)
            e.evictable += 1
    r.held = 0


# --------------------------------------------------------------------------------------------------- replicas


@njit(cache=True)
def enter(w: Any, p: int, owed: int, most: int) -> int:
    """The first of the queue joins the batch, if its prompt has room next to the `owed` tokens kept free.

    Returns its prompt tokens that are not cached; −1 where it has no room, or where they are more than `most`.
    """
    e, bt = w.replica[p], w.rule[0].block_tokens
    i = e.head
    r = w.request[i]
    context = r.prompt + r.produced
    m, idle = 0, 0
    while m < min((context - 1) // bt, r.n_all):
        at = find(w.cache, e.base, e.mask, w.ids[r.start + m])
        if at < 0:
            break
        m += 1
        if w.slot[w.cache[at].value].refs == 0:
            idle += 1
    new = context - m * bt
    room = e.kv_tokens - e.private - (e.cached - e.evictable + idle) * bt
    if new > most or (e.batch and new + owed + max(0, e.reserve - r.produced) > room):
        return -1
    e.head = r.next
    if r.next < 0:
        e.tail = -1
    e.waiting -= 1
    for b in range(m):
        hold(w, p, w.ids[r.start + b])
    r.held = m
    if r.first_s < 0:
        r.hit = m * bt
    while e.cached * bt + e.private + new > e.kv_tokens:
        evict(w, p)
    e.private += new
    w.running[p, e.batch] = i
    e.batch += 1
    return new


@njit(cache=True)
def admit(w: Any, p: int) -> tuple[int, float]:
    """Continuous batching: from the queue into the batch while memory lasts; (tokens, pairs) to prefill."""
    e = w.replica[p]
    total, attended, owed = 0, 0.0, 0
    e.fresh = 0
    if e.waiting == 0:
        return total, attended
    for x in range(e.batch):
        owed += max(0, e.reserve - w.request[w.running[p, x]].produced)
    while e.waiting and e.batch < e.max_batch:
        new = enter(w, p, owed, e.prefill_tokens - total if e.fresh else ANY)
        if new < 0:
            break
        r = w.request[w.running[p, e.batch - 1]]
        e.fresh += 1
        owed += max(0, e.reserve - r.produced)
        total += new
        attended += new * (r.held * w.rule[0].block_tokens + new / 2)
    return total, attended


@njit(cache=True)
def preempt(w: Any, p: int) -> None:
    """The youngest of the batch gives up its memory and goes back to the head of the queue."""
    e = w.replica[p]
    e.batch -= 1
    i = w.running[p, e.batch]
    r = w.request[i]
    stored = r.prompt + r.produced - (r.todo == 0)
    e.private -= stored - r.held * w.rule[0].block_tokens
    if r.todo == 0:
        e.context -= stored
    r.todo = 0
    release(w, p, i)
    r.next = e.head
    e.head = i
    if e.tail < 0:
        e.tail = i
    e.waiting += 1
    e.preempted += 1


@njit(cache=True)
def alternate(w: Any, p: int) -> float:
    """Seconds of a step with the prefill of admitted requests or, without any, one token for everybody running."""
    e, bt = w.replica[p], w.rule[0].block_tokens
    total, attended = admit(w, p)
    if e.fresh:
        return e.prefill_s + e.prefill_per_token_s * total + e.prefill_per_pair_s * attended
    while e.batch and e.cached * bt + e.private + e.batch > e.kv_tokens:
        if e.evictable:
            evict(w, p)
        else:
            preempt(w, p)
    e.private += e.batch
    e.context += e.batch
    return max(e.decode_s + e.decode_per_kv_token_s * e.context, e.decode_per_sequence_s * e.batch)


@njit(cache=True)
def grow(w: Any, p: int) -> tuple[int, int]:
    """How many decode, and the tokens that this step makes for them."""
    e, n, made = w.replica[p], 0, 0
    for x in range(e.batch):
        r = w.request[w.running[p, x]]
        if r.todo == 0:
            n += 1
            made += min(e.made, r.output - r.produced)
    return n, made


@njit(cache=True)
def mix(w: Any, p: int) -> float:
    """Seconds of a step of prompts next to everybody who decodes, scheduled and priced as by `continuous`."""
    e, bt = w.replica[p], w.rule[0].block_tokens
    e.made = clock(e, e.steps + 1) - clock(e, e.steps)
    preempted = False
    n, made = grow(w, p)
    while n and e.cached * bt + e.private + made > e.kv_tokens:
        if e.evictable:
            evict(w, p)
        else:
            preempt(w, p)
            preempted = True
            n, made = grow(w, p)
    e.private += made
    budget = e.prefill_tokens - n * (1 + e.drafts)
    contexts, total, attended, earlier = 0.0, 0, 0.0, 0.0
    x = 0
    while True:
        if x == e.batch:
            if preempted or e.waiting == 0 or e.batch == e.max_batch or budget <= 0:
                break
            new = enter(w, p, 0, ANY)
            if new < 0:
                break
            w.request[w.running[p, x]].todo = new
        r = w.request[w.running[p, x]]
        x += 1
        if r.todo == 0:
            contexts += seen(e, float(r.prompt + r.produced - 1))
            continue
        r.chunk = max(0, min(r.todo, e.chunk_tokens, budget))
        if r.chunk:
            before = float(r.prompt + r.produced - r.todo)
            budget -= r.chunk
            total += r.chunk
            attended += pairs(e, float(r.chunk), before)
            earlier += seen(e, before)
    e.context += made
    seconds = e.fixed_s + experts(e, total + n * (1 + e.drafts)) + e.decode_request_s * n
    if total:
        seconds += e.prompt_step_s + e.prompt_token_s * total + e.prompt_pair_s * attended
        return seconds + e.prompt_context_s * earlier + e.mixed_context_s * contexts
    return seconds + e.context_s * contexts


@njit(cache=True)
def start_step(w: Any, events: Any, p: int, now: float) -> None:
    """Begin an engine's next step, if there is anything to do."""
    e = w.replica[p]
    seconds = mix(w, p) if e.mixed else alternate(w, p)
    e.left_out = e.waiting
    e.busy = e.batch > 0
    if e.busy:
        e.busy_s += seconds
        e.steps += 1
        push(w, events, now + seconds, STEP, p, 0)


@njit(cache=True)
def end_step(w: Any, events: Any, p: int, now: float) -> None:
    """Tokens are out: first tokens after a prefill, more for everybody who decodes; some are done."""
    e, bt = w.replica[p], w.rule[0].block_tokens
    kept = e.batch - e.fresh if e.fresh else 0
    for x in range(kept, e.batch):
        i = w.running[p, x]
        r = w.request[i]
        filled = e.fresh > 0
        if r.todo:
            r.todo -= r.chunk
            filled = r.todo == 0
            if not filled:
                w.running[p, kept] = i
                kept += 1
                continue
        r.produced += 1 if filled or not e.mixed else min(e.made, r.output - r.produced)
        if filled:
            e.context += r.prompt + r.produced - 1
            if r.first_s < 0:
                r.first_s = now
            for b in range(r.held, r.n_prompt):
                hold(w, p, w.ids[r.start + b])
                e.private -= bt
            r.held = max(r.held, r.n_prompt)
        if r.produced < r.output:
            w.running[p, kept] = i
            kept += 1
            continue
        stored = r.prompt + r.output - 1
        for b in range(r.held, r.n_all):
            hold(w, p, w.ids[r.start + b])
            e.private -= bt
        r.held = max(r.held, r.n_all)
        e.private -= stored - r.held * bt
        e.context -= stored
        release(w, p, i)
        r.done_s = now
        finished(w, events, i, p, now)
    e.batch = kept
    e.fresh = 0


@njit(cache=True)
def finished(w: Any, events: Any, i: int, p: int, now: float) -> None:
    """Tell the balancer, and release what waited for this request."""
    e, r, d = w.replica[p], w.request[i], w.one_way_s
    w.rule[0].remaining -= 1
    owner, entry = w.balancer[e.owner].region, w.balancer[w.entry[r.region]].region
    push(w, events, now + d[e.region, owner], NOTICE, p, 0)
    after = now + e.request_s + (d[e.region, owner] + d[owner, entry] + d[entry, r.region])
    for x in range(r.child_start, r.child_end):
        send(w, events, w.child[x], after)
    g = w.program[r.program]
    g.left -= 1
    if g.left == 0 and g.next >= 0:
        send(w, events, g.next, after)


@njit(cache=True)
def send(w: Any, events: Any, i: int, now: float) -> None:
    """A user sends request i, after thinking."""
    r = w.request[i]
    entry = w.entry[r.region]
    r.sent_s = now + r.think_s
    push(w, events, r.sent_s + w.one_way_s[r.region, w.balancer[entry].region], ARRIVE, i, entry)


@njit(cache=True)
def push(w: Any, events: Any, when: float, kind: int, a: int, b: int) -> None:
    """Announce an event."""
    heapq.heappush(events, (when, w.rule[0].seq, kind, a, b))
    w.rule[0].seq += 1


# -------------------------------------------------------------------------------------------------- balancers


@njit(cache=True)
def trie_match(w: Any, x: int, i: int, target: int) -> int:
    """Leading blocks of the prompt of request i on record for a target."""
    t, r, width = w.trie[x], w.request[i], w.tree_size.shape[1]
    for b in range(r.n_prompt):
        if find(w.listed, t.base, t.mask, w.ids[r.start + b] * width + target) < 0:
            return b
    return r.n_prompt


@njit(cache=True)
def trie_add(w: Any, x: int, i: int, target: int) -> None:
    """Record the path of request i; the earliest records go when there are too many (SK §3.2)."""
    t, r, width = w.trie[x], w.request[i], w.tree_size.shape[1]
    if r.n_prompt == 0:
        return
    for b in range(r.n_prompt):
        key = w.ids[r.start + b] * width + target
        at = find(w.listed, t.base, t.mask, key)
        if at >= 0:
            w.listed[at].value += 1
        else:
            put(w.listed, t.base, t.mask, key, 1)
    new = w.records[t.record_base + (t.first + t.count) % t.room]
    new.request = i
    new.target = target
    t.count += 1
    t.entries += r.n_prompt
    w.tree_size[x, target] += r.n_prompt
    while t.entries > t.limit and t.count > 1:
        old = w.records[t.record_base + t.first]
        gone = w.request[old.request]
        for b in range(gone.n_prompt):
            at = find(w.listed, t.base, t.mask, w.ids[gone.start + b] * width + old.target)
            w.listed[at].value -= 1
            if w.listed[at].value == 0:
                remove(w.listed, t.base, t.mask, at)
        t.entries -= gone.n_prompt
        w.tree_size[x, old.target] -= gone.n_prompt
        t.first = (t.first + 1) % t.room
        t.count -= 1


@njit(cache=True)
def available(w: Any, r: int, p: int, now: float) -> bool:
    """Whether its balancer would push a request of region r to replica p, as far as it knows (SK §3.3)."""
    e, rule = w.replica[p], w.rule[0]
    if not (e.from_s <= now and now < e.until_s and (r < 0 or w.may[r, e.region])):
        return False
    if rule.push == OUTSTANDING:
        return e.outstanding < rule.limit
    if rule.push == PENDING:
        seen = w.seen_pending[max(0, rule.tick - e.lag) % len(w.seen_pending), p]
        return seen == 0 and (r < 0 or e.pushed < rule.burst)
    return True


@njit(cache=True)
def on_ring(ring: Any, low: int, high: int, key: int) -> int:
    """First position of a ring at or after key, from `low` again past the end."""
    a, b = low, high
    while a < b:
        middle = (a + b) // 2
        if ring[middle].hash < key:
            a = middle + 1
        else:
            b = middle
    return low if a == high else a


@njit(cache=True)
def choose_replica(w: Any, l: int, i: int, now: float) -> int:  # noqa: E741
    """A replica of balancer l for request i, or −1."""
    rule, y, r = w.rule[0], w.balancer[l], w.request[i].region
    n = y.end - y.start
    if rule.select == ROUND_ROBIN:
        for x in range(n):
            at = (y.pointer + x) % n
            p = w.managed[y.start + at]
            if available(w, r, p, now):
                y.pointer = (at + 1) % n
                return p
        return -1
    if rule.select == HASH:
        size = y.ring_end - y.ring_start
        at = on_ring(w.ring, y.ring_start, y.ring_end, w.request[i].key) - y.ring_start
        for x in range(size):
            p = w.ring[y.ring_start + (at + x) % size].target
            if available(w, r, p, now):
                return p
        return -1
    least, smallest, best, length, most = -1, -1, -1, -1, 0
    for x in range(y.start, y.end):
        p = w.managed[x]
        if not available(w, r, p, now):
            continue
        load = w.replica[p].outstanding
        most = max(most, load)
        if least < 0 or load < w.replica[least].outstanding:
            least = p
        if rule.select == PREFIX:
            m = trie_match(w, 2 * l, i, p)
            if m > length or (m == length and load < w.replica[best].outstanding):
                best, length = p, m
            if smallest < 0 or w.tree_size[2 * l, p] < w.tree_size[2 * l, smallest]:
                smallest = p
    if rule.select == LEAST_LOAD or least < 0:
        return least
    fewest = w.replica[least].outstanding
    if most - fewest > rule.unbalanced_by and most > rule.unbalanced_times * fewest:
        return least
    if length * rule.block_tokens >= rule.match * w.request[i].prompt:
        return best
    return smallest if rule.smallest_tree else least


@njit(cache=True)
def remote(w: Any, r: int, l: int, other: int) -> int:  # noqa: E741
    """Replicas free for region r at another balancer when last heard of; 0 if its queue was beyond the buffer, or
    if `burst` requests for each have gone there since.
    """
    if other == l or not w.may[r, w.balancer[other].region]:
        return 0
    at = max(0, w.rule[0].tick - w.far_lag[l, other]) % len(w.seen_avail)
    free = w.seen_avail[at, other]
    if w.seen_queue[at, other] > w.rule[0].buffer or w.far_pushed[l, other] >= free * w.rule[0].burst:
        return 0
    return free


@njit(cache=True)
def choose_balancer(w: Any, l: int, i: int) -> int:  # noqa: E741
    """Another balancer for request i, or −1; equals by distance."""
    rule, y, r, L = w.rule[0], w.balancer[l], w.request[i].region, len(w.balancer)
    if rule.select == ROUND_ROBIN:
        for x in range(L):
            other = (y.far_pointer + x) % L
            if remote(w, r, l, other) > 0:
                y.far_pointer = (other + 1) % L
                return other
        return -1
    if rule.select == HASH:
        size = len(w.far_ring)
        at = on_ring(w.far_ring, 0, size, w.request[i].key)
        for x in range(size):
            other = w.far_ring[(at + x) % size].target
            if remote(w, r, l, other) > 0:
                return other
        return -1
    best, value, away = -1, 0, 0.0
    for other in range(L):
        free = remote(w, r, l, other)
        if free <= 0:
            continue
        mine = trie_match(w, 2 * l + 1, i, other) if rule.select == PREFIX else free
        distance = w.one_way_s[y.region, w.balancer[other].region]
        if best < 0 or mine > value or (mine == value and distance < away):
            best, value, away = other, mine, distance
    return best


@njit(cache=True)
def drain(w: Any, events: Any, l: int, now: float) -> None:  # noqa: E741
    """First come, first served: route from the head of the queue while a replica is available (SK §4.1)."""
    y, rule = w.balancer[l], w.rule[0]
    while y.waiting:
        i = y.head
        r = w.request[i]
        p = choose_replica(w, l, i, now)
        other = -1
        if p < 0:
            if not rule.forward or r.forwarded:
                return
            other = choose_balancer(w, l, i)
            if other < 0:
                return
        y.head = r.next
        if r.next < 0:
            y.tail = -1
        y.waiting -= 1
        if p >= 0:
            r.replica = p
            w.replica[p].outstanding += 1
            w.replica[p].pushed += 1
            if rule.select == PREFIX:
                trie_add(w, 2 * l, i, p)
            push(w, events, now + w.one_way_s[y.region, w.replica[p].region], DELIVER, i, p)
        else:
            r.forwarded = 1
            w.far_pushed[l, other] += 1
            if rule.select == PREFIX:
                trie_add(w, 2 * l + 1, i, other)
            push(w, events, now + w.one_way_s[y.region, w.balancer[other].region], ARRIVE, i, other)


@njit(cache=True)
def append(w: Any, queue: Any, i: int) -> None:
    """Add a request to the end of the queue of a replica or balancer."""
    w.request[i].next = -1
    if queue.tail >= 0:
        w.request[queue.tail].next = i
    else:
        queue.head = i
    queue.tail = i
    queue.waiting += 1


@njit(cache=True)
def probe(w: Any, now: float) -> None:
    """SK Listing 1, lines 2–16: every balancer's next view of replicas and of the others."""
    w.rule[0].tick += 1
    at = w.rule[0].tick % len(w.seen_pending)
    for p in range(len(w.replica)):
        w.seen_pending[at, p] = w.replica[p].left_out
        w.replica[p].pushed = 0
    for l in range(len(w.balancer)):  # noqa: E741
        y = w.balancer[l]
        w.seen_queue[at, l] = y.waiting
        w.seen_avail[at, l] = 0
        w.far_pushed[l] = 0
        for x in range(y.start, y.end):
            if available(w, -1, w.managed[x], now):
                w.seen_avail[at, l] += 1


@njit(cache=True)
def run(w: Any, until_s: float, sample_s: float, outstanding: Any, kv: Any) -> float:
    """Simulate until everything is done or until_s; the simulated seconds."""
    rule = w.rule[0]
    events = [(0.0, -1, SAMPLE, 0, 0)]
    for i in range(len(w.request)):
        r = w.request[i]
        if r.arrival_s < np.inf:
            send(w, events, i, r.arrival_s)
    push(w, events, rule.probe_s, TICK, 0, 0)
    now = 0.0
    while rule.remaining:
        when, _, kind, a, b = heapq.heappop(events)
        if when > until_s:
            return until_s
        now = when
        if kind == STEP:
            end_step(w, events, a, now)
            start_step(w, events, a, now)
        elif kind == ARRIVE:
            append(w, w.balancer[b], a)
            drain(w, events, b, now)
        elif kind == DELIVER:
            r, e = w.request[a], w.replica[b]
            if r.prompt + r.output > e.kv_tokens:
                r.refused = 1
                finished(w, events, a, b, now)
            else:
                append(w, e, a)
                if not e.busy:
                    start_step(w, events, b, now)
        elif kind == NOTICE:
            w.replica[a].outstanding -= 1
            if rule.push == OUTSTANDING:
                drain(w, events, w.replica[a].owner, now)
        elif kind == TICK:
            probe(w, now)
            for l in range(len(w.balancer)):  # noqa: E741
                drain(w, events, l, now)
            push(w, events, now + rule.probe_s, TICK, 0, 0)
        elif a < len(kv):
            for p in range(len(w.replica)):
                e = w.replica[p]
                outstanding[a, p] = e.outstanding
                # Referenced KV only: merely cached blocks could be evicted.
                kv[a, p] = (e.private + (e.cached - e.evictable) * rule.block_tokens) / e.kv_tokens
            push(w, events, now + sample_s, SAMPLE, a + 1, 0)
    return now
