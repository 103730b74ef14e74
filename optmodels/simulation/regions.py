"""Multi-region serving as SkyLB runs it (SK §3–4), simulated event by event.

Replicas batch continuously: a step either prefills admitted requests or decodes one token for everybody running; a
request is admitted when its uncached prompt and the output tokens owed to the batch fit the KV memory; where memory
runs out the youngest goes back to the queue and is recomputed. Replicas with `Engine.costs` put prompts, in chunks,
next to those that decode, keep nothing free for output tokens, and step as `simulation.continuous` does, but for KV
memory: tokens count, not blocks. Finished prompts and answers stay in a prefix cache of
whole blocks until memory is needed (least recently used first).

Balancers queue first come, first served. With *blind pushing* a request goes to a replica at once; *SP-O* pushes to
replicas with fewer outstanding requests than a limit, *SP-P* to those without a waiting request at their last step, as
probes report it (SK §3.3, Listing 1). In the regional layout a balancer serves its own region first and forwards, when
no replica there is available, to a balancer that has one and whose queue is within the buffer τ.

Not stated in the paper, stated here: `Routing.probe_s`, `Routing.buffer`, `Routing.limit` (SK §3.3 saw 20 to 50
outstanding requests on an L4), `Routing.trie_share`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from optmodels.arrays import Array, Ints, Mask
from optmodels.errors import InputError, Mistake, one_of
from optmodels.latency.steps import StepCosts
from optmodels.traces.types import Programs, Trace

Select = Literal["round_robin", "least_load", "consistent_hashing", "prefix"]
Push = Literal["blind", "outstanding", "pending"]
Layout = Literal["central", "regional", "local"]
SELECTS: tuple[Select, ...] = ("round_robin", "least_load", "consistent_hashing", "prefix")
PUSHES: tuple[Push, ...] = ("blind", "outstanding", "pending")


@dataclass(frozen=True)
class RegionEngine:
    """Cost of a replica's steps, and its memory.

    Attributes:
        kv_tokens: tokens the KV cache holds.
        decode_s: decode seconds of a step, whatever is in it (weights read).
        decode_per_kv_token_s: seconds for every token of context read.
        decode_per_sequence_s: compute of one sequence's token; a step takes the longer of memory and compute.
        prefill_s, prefill_per_token_s, prefill_per_pair_s: of a prefill step, its new tokens, and its pairs of new
            token and context token.
        max_batch: sequences at once.
        prefill_tokens: most prompt tokens of one step.
        costs: costs of its steps, in place of the seconds above; `prefill_tokens` are then prompt tokens, decodes and
            their drafts of a step (vLLM's max_num_batched_tokens).
        chunk_tokens: with `costs`, of one prompt in a step; None: no limit of its own.
    """

    kv_tokens: int
    decode_s: float = 0.0
    decode_per_kv_token_s: float = 0.0
    decode_per_sequence_s: float = 0.0
    prefill_s: float = 0.0
    prefill_per_token_s: float = 0.0
    prefill_per_pair_s: float = 0.0
    max_batch: int = 256
    prefill_tokens: int = 16_384
    costs: StepCosts | None = None
    chunk_tokens: int | None = None


@dataclass(frozen=True)
class RegionFleet:
    """Replicas of one service over regions.

    Attributes:
        regions: names.
        one_way_s: (R, R) half a round trip.
        engines: kinds of replica.
        region: (P,) where each replica stands.
        engine: (P,) its kind.
        from_s, until_s: (P,) when it takes requests; None: always.
        may: (R, R) whose requests may be served where; None: everywhere.
    """

    regions: tuple[str, ...]
    one_way_s: Array
    engines: tuple[RegionEngine, ...]
    region: Ints
    engine: Ints
    from_s: Array | None = None
    until_s: Array | None = None
    may: Mask | None = None

    def without(self, region: str) -> RegionFleet:
        """The fleet after the loss of a region: its replicas are gone, its users enter at the nearest other."""
        keep = self.region != self.regions.index(region)
        opening, closing = (None if v is None else v[keep] for v in (self.from_s, self.until_s))
        return replace(
            self, region=self.region[keep], engine=self.engine[keep], from_s=opening, until_s=closing
        )  # fmt: skip


@dataclass(frozen=True)
class RegionRouting:
    """How requests find a replica.

    Attributes:
        select: among available targets; `prefix` is the trie of SK §3.2.
        push: when a replica is available.
        layout: one central balancer, one in every region that forward to each other, or regions left to themselves.
        centre: region of the central balancer.
        limit: outstanding requests of a replica under SP-O.
        buffer: τ of SK Listing 1: queued requests up to which a balancer takes forwarded ones.
        burst: requests that a balancer sends to one free replica, or for each to another balancer, between two probes;
            None: any number, as in SK's listing. Where many arrive between probes, the listing sends them all to the
            same few replicas.
        probe_s: between two probes; the state of a place d seconds away is d seconds old.
        match: share of the prompt on record from which the longest match decides (SK §5.1: 50 %).
        router: below `match`, what SGLang's router does: the smallest tree, and the least loaded when out of balance.
        balance_absolute, balance_relative: outstanding requests of the busiest replica over the idlest, and their
            ratio, past both of which it is out of balance. As in earlier versions of SGLang's router (with `match`
            0.5); newer ones have 64 and 1.5 with 0.3 (docs/papers/skylb.md).
        virtual_nodes: virtual nodes of every target on the hash ring.
        trie_share: size of a balancer's trie over the blocks its targets can hold.
        sample_s: between two samples of load.
    """

    select: Select = "prefix"
    push: Push = "pending"
    layout: Layout = "regional"
    centre: str | None = None
    limit: int = 20
    buffer: int = 4
    burst: int | None = None
    probe_s: float = 0.1
    match: float = 0.5
    router: bool = False
    balance_absolute: float = 32.0
    balance_relative: float = 1.0001
    virtual_nodes: int = 64
    trie_share: float = 8.0
    sample_s: float = 1.0


POLICIES: dict[str, RegionRouting] = {  # SK §5.1: RR, LL, CH, SGL, one balancer each; SK §3.2: one in every region
    "round_robin": RegionRouting("round_robin", "blind", "central"),
    "least_load": RegionRouting("least_load", "blind", "central"),
    "consistent_hashing": RegionRouting("consistent_hashing", "blind", "central"),
    "prefix": RegionRouting("prefix", "blind", "central", router=True),
    "skylb_ch": RegionRouting("consistent_hashing", "pending", "regional"),
    "skylb": RegionRouting("prefix", "pending", "regional"),
}


def policy(name: str, push: str | None = None, **changes: Any) -> RegionRouting:
    """A named policy, with another way of pushing or other changes.

    Raises:
        InputError: unknown policy or push.
    """
    one_of("policy", name, POLICIES)
    if push is not None:
        one_of("push", push, PUSHES)
    chosen: dict[str, Any] = changes if push is None else changes | {"push": push}
    return replace(POLICIES[name], **chosen)


@dataclass(frozen=True)
class Replay:
    """The course of every request and replica; −1 or NaN where it did not happen.

    Attributes:
        ttft_s: (n,) at the user.
        e2e_s: (n,) at the user.
        replica: (n,) that served it.
        hit_tokens: (n,) of the prompt found in the cache.
        forwarded: (n,) served by another region's balancer.
        refused: (n,) too large for the replica's memory.
        outstanding, kv_used: (samples, P) requests sent and not reported done, and share of KV memory referenced.
        seconds: simulated.
    """

    trace: Trace
    fleet: RegionFleet
    routing: RegionRouting
    sent_s: Array
    ttft_s: Array
    e2e_s: Array
    replica: Ints
    hit_tokens: Ints
    forwarded: Mask
    refused: Mask
    preempted: Ints
    busy_s: Array
    outstanding: Array
    kv_used: Array
    seconds: float
    started: Mask = field(repr=False, default_factory=lambda: np.zeros(0, dtype=bool))

    @property
    def done(self) -> Mask:
        """(n,) finished within the time simulated."""
        return np.isfinite(self.e2e_s)

    def metrics(
        self, *, warmup_s: float = 0.0, ttft_slo_s: float | None = None, deadline_s: float | None = None
    ) -> dict[str, Any]:
        """Figures of the requests sent after the warm-up, JSON-ready.

        Where some have not ended, the deadline is judged for requests whose deadline is over by then.
        """
        sent = self.started & (self.sent_s >= warmup_s)
        done = sent & self.done
        ended = self.sent_s + np.nan_to_num(self.e2e_s, nan=np.inf)
        counted = self.done & (ended >= warmup_s)
        span = max(self.seconds - warmup_s, 1e-9)
        prompts = float(self.trace.prompt_tokens[done].sum())
        region = _codes(self.trace, self.fleet)
        served = np.where(self.replica >= 0, self.fleet.region[self.replica] if len(self.fleet.region) else -1, -1)
        late = self.outstanding[int(warmup_s / self.routing.sample_s) :]
        kv = self.kv_used[int(warmup_s / self.routing.sample_s) :]
        out: dict[str, Any] = {
            "requests": int(sent.sum()), "finished": int(done.sum()), "refused": int((self.refused & sent).sum()),
            "seconds": self.seconds,
            "ttft_s": percentiles(self.ttft_s[sent]), "e2e_s": percentiles(self.e2e_s[done]),
            "output_tokens_per_s": float(self.trace.output_tokens[counted].sum()) / span,
            "tokens_per_s": float((self.trace.output_tokens + self.trace.prompt_tokens)[counted].sum()) / span,
            "cache_hit_rate": float(self.hit_tokens[done].sum()) / prompts if prompts else 0.0,
            "forwarded_share": float((served != region)[done].mean()) if done.any() else 0.0,
            "preemptions": int(self.preempted.sum()),
            "busy_share": float(self.busy_s.sum()) / max(self.seconds * max(len(self.busy_s), 1), 1e-9),
            "outstanding_max_over_mean": _imbalance(late), "outstanding_max_over_min": _spread(late),
            "kv_peak": float(kv.max(initial=0.0)), "kv_mean": float(kv.mean()) if kv.size else 0.0,
            "kv_peak_max_over_min": _spread(kv.max(axis=0, initial=0.0)[None] if kv.size else kv),
        }  # fmt: skip
        if ttft_slo_s is not None:
            out["ttft_slo_s"] = ttft_slo_s
            out["within_ttft_slo"] = float((self.ttft_s[sent] <= ttft_slo_s).mean()) if sent.any() else 1.0
        if deadline_s is not None:
            due = sent if self.done[sent].all() else sent & (self.sent_s + deadline_s <= self.seconds)
            out["deadline_s"] = deadline_s
            out["within_deadline"] = float((self.e2e_s[due] <= deadline_s).mean()) if due.any() else 1.0
        return out


def percentiles(values: Array) -> dict[str, float | None]:
    """Percentiles, seconds, where a request without the value counts as infinitely late (None where that shows), and
    the mean of requests that have one.
    """
    if not len(values):
        return dict.fromkeys(("mean", "p10", "p25", "p50", "p75", "p90", "p95", "p99"))
    ordered = np.sort(np.nan_to_num(values, nan=np.inf))
    rank = {f"p{q}": ordered[min(len(ordered) - 1, int(np.ceil(q / 100 * len(ordered))) - 1)]
            for q in (10, 25, 50, 75, 90, 95, 99)}  # fmt: skip
    known = ordered[np.isfinite(ordered)]
    return {"mean": float(known.mean()) if len(known) else None} | {
        k: float(v) if np.isfinite(v) else None for k, v in rank.items()
    }


def _imbalance(load: Array) -> float:
    """Largest over mean load of a replica, mean over the samples with any load."""
    busy = load[load.sum(axis=1) > 0] if load.size else load
    return float((busy.max(axis=1) / busy.mean(axis=1)).mean()) if busy.size else 1.0


def _spread(load: Array) -> float | None:
    """Largest over smallest load of a replica by their means over time; None where the smallest is zero."""
    if not load.size:
        return None
    mean = load.mean(axis=0)
    return float(mean.max() / mean.min()) if mean.min() > 0 else None


def _codes(trace: Trace, fleet: RegionFleet) -> Ints:
    """Region of every request as an index of the fleet's.

    Raises:
        InputError: no label `region` where there are several, or a region the fleet does not know.
    """
    label = trace.labels.get("region")
    if label is None:
        if len(fleet.regions) == 1:
            return np.zeros(len(trace), dtype=np.int64)
        raise InputError(Mistake(trace.name, "region", None, "a region for every request"))
    unknown = [n for n in label.names if n not in fleet.regions]
    if unknown:
        raise InputError(Mistake(trace.name, "region", unknown[0], f"one of {', '.join(fleet.regions)}"))
    return np.array([fleet.regions.index(n) for n in label.names], dtype=np.int64)[label.codes]


def simulate(
    trace: Trace, fleet: RegionFleet, routing: RegionRouting, *, programs: Programs | None = None,
    until_s: float | None = None, seed: int = 0,
) -> Replay:  # fmt: skip
    """Run a trace through a fleet.

    Args:
        trace: requests; labels ``region`` (where the fleet has several) and ``session`` (the key of hashing; default:
            every request its own); prefixes make the caches and tries useful.
        fleet: replicas and distances.
        routing: policy.
        programs: requests that wait for others; None: all are sent at the times of the trace.
        until_s: simulated seconds at most; default: ten minutes after the last arrival.
        seed: random seed of the hash rings.

    Raises:
        InputError: an unknown region, or the central balancer's is.
    """
    from optmodels.simulation import regions_kernel as kernel  # numba only when something is simulated

    until = trace.duration_s + 600.0 if until_s is None else until_s
    world = _world(kernel, trace, fleet, routing, programs, seed)
    P, samples = len(world.replica), int(min(until, 10**6) / routing.sample_s) + 1
    outstanding, kv = np.full((samples, P), np.nan), np.full((samples, P), np.nan)
    seconds = float(kernel.run(world, until, routing.sample_s, outstanding, kv))
    taken = int(np.isfinite(kv).all(axis=1).sum()) if P else 0
    r, e = world.request, world.replica
    served = np.maximum(r["replica"], 0)
    middle, entry = world.balancer["region"][e["owner"]], world.balancer["region"][world.entry[r["region"]]]
    back = np.zeros(len(r))
    if P:  # as `finished` in the kernel
        d = fleet.one_way_s
        back = d[e["region"][served], middle[served]] + d[middle[served], entry] + d[entry, r["region"]]
        back = back + e["request_s"][served]
    started = (r["sent_s"] >= 0) & (r["sent_s"] <= seconds)
    return Replay(
        trace=trace, fleet=fleet, routing=routing, sent_s=np.where(started, r["sent_s"], np.nan),
        ttft_s=np.where(r["first_s"] >= 0, r["first_s"] + back - r["sent_s"], np.nan),
        e2e_s=np.where(r["done_s"] >= 0, r["done_s"] + back - r["sent_s"], np.nan),
        replica=r["replica"], hit_tokens=r["hit"], forwarded=r["forwarded"] > 0, refused=r["refused"] > 0,
        preempted=e["preempted"], busy_s=e["busy_s"], outstanding=outstanding[:taken], kv_used=kv[:taken],
        seconds=seconds, started=started,
    )  # fmt: skip


def _world(
    kernel: Any, trace: Trace, fleet: RegionFleet, routing: RegionRouting, programs: Programs | None, seed: int
) -> Any:
    """Arrays of the kernel at time zero."""
    request, program, ids, child, block_tokens = _requests(kernel, trace, fleet, programs, seed)
    balancer, managed, ring, far_ring, entry = _balancers(kernel, fleet, routing, seed)
    d, where = np.ascontiguousarray(fleet.one_way_s, dtype=float), balancer["region"]
    R, P, L = len(fleet.regions), len(fleet.region), len(balancer)
    replica, slot, cache = _replicas(kernel, trace, fleet, block_tokens, int(ids.max(initial=0)) + 1)
    for x in range(L):
        replica["owner"][managed[balancer["start"][x] : balancer["end"][x]]] = x
    replica["lag"] = np.rint(d[replica["region"], where[replica["owner"]]] / routing.probe_s)
    far_lag = np.ascontiguousarray(np.rint(d[np.ix_(where, where)].T / routing.probe_s)).astype(np.int64)
    history = 1 + int(max(replica["lag"].max(initial=0), far_lag.max(initial=0)))
    width = max(P, L, 1)
    trie, listed, records = _tries(kernel, balancer, managed, replica, routing, block_tokens, request)
    rule = np.zeros(1, dtype=kernel.RULE)
    rule[0] = (
        SELECTS.index(routing.select), PUSHES.index(routing.push), routing.limit, routing.buffer,
        10**9 if routing.burst is None else routing.burst, routing.router,
        routing.layout == "regional", block_tokens, 0, 0, len(request), routing.probe_s, routing.match,
        *((routing.balance_absolute, routing.balance_relative) if routing.router else (np.inf, np.inf)),
    )  # fmt: skip
    avail = np.tile(balancer["end"] - balancer["start"], (history, 1))
    return kernel.World(
        request=request, replica=replica, balancer=balancer, trie=trie, program=program, rule=rule, slot=slot,
        cache=cache, listed=listed, records=records, tree_size=np.zeros((2 * L, width), dtype=np.int64), ids=ids,
        child=child, managed=managed, ring=ring, far_ring=far_ring, entry=entry, one_way_s=d,
        may=np.ones((R, R), dtype=bool) if fleet.may is None else np.ascontiguousarray(fleet.may), far_lag=far_lag,
        far_pushed=np.zeros((L, L), dtype=np.int64),
        running=np.zeros((P, int(replica["max_batch"].max(initial=1))), dtype=np.int64),
        seen_pending=np.zeros((history, P), dtype=np.int64), seen_avail=avail, seen_queue=np.zeros_like(avail),
    )  # fmt: skip


def _requests(kernel: Any, trace: Trace, fleet: RegionFleet, programs: Programs | None, seed: int) -> tuple[Any, ...]:
    """Requests, programs, block ids, children, tokens of a block."""
    n = len(trace)
    r = np.zeros(n, dtype=kernel.REQUEST)
    session = trace.labels.get("session")
    r["region"], r["key"] = _codes(trace, fleet), hashes(np.arange(n) if session is None else session.codes, seed)
    r["prompt"], r["output"], r["arrival_s"] = trace.prompt_tokens, trace.output_tokens, trace.arrival_s
    for name in ("next", "replica", "sent_s", "first_s", "done_s"):
        r[name] = -1
    whole = programs is not None and programs.contents is not None
    blocks = programs.contents if programs is not None and whole else trace.prefixes
    block_tokens, ids = 16, np.zeros(0, dtype=np.int64)
    if blocks is not None:
        block_tokens, r["start"], known = blocks.block_tokens, blocks.start[:-1], np.diff(blocks.start)
        ids = np.unique(blocks.ids, return_inverse=True)[1].astype(np.int64).ravel()  # small, ≥ 0
        r["n_prompt"] = np.minimum(known, r["prompt"] // block_tokens)
        r["n_all"] = r["n_prompt"]
        if whole:
            r["n_all"] = np.maximum(r["n_prompt"], np.minimum(known, (r["prompt"] + r["output"] - 1) // block_tokens))
    if programs is None:
        program = np.zeros(1, dtype=kernel.PROGRAM)
        program[0] = (n + 1, -1)
        return r, program, ids, np.zeros(0, dtype=np.int64), block_tokens
    order = np.argsort(programs.parent, kind="stable").astype(np.int64)
    roots = np.flatnonzero(programs.parent < 0)
    child = order[len(roots) :]
    r["child_end"] = np.cumsum(np.bincount(programs.parent[child], minlength=n))
    r["child_start"] = np.concatenate(([0], r["child_end"][:-1]))
    r["program"], r["think_s"] = programs.program, programs.think_s
    root = np.full(len(programs.following) + 1, -1, dtype=np.int64)  # the last one: of no program
    root[programs.program[roots]] = roots
    program = np.zeros(len(programs.following), dtype=kernel.PROGRAM)
    program["left"], program["next"] = np.bincount(programs.program, minlength=len(program)), root[programs.following]
    waits = programs.parent >= 0
    waits[program["next"][program["next"] >= 0]] = True
    r["arrival_s"][waits] = np.inf
    return r, program, ids, child, block_tokens


def _replicas(kernel: Any, trace: Trace, fleet: RegionFleet, block_tokens: int, blocks: int) -> tuple[Any, ...]:
    """Replicas, slots of their caches (no more than there are blocks), and the caches' table."""
    from optmodels.simulation.step_kernel import coefficients

    P = len(fleet.region)
    e = np.zeros(P, dtype=kernel.REPLICA)
    e["region"], e["until_s"], e["from_s"] = fleet.region, np.inf, -np.inf
    for name in set(RegionEngine.__dataclass_fields__) - {"costs", "chunk_tokens"}:
        e[name] = [getattr(fleet.engines[x], name) for x in fleet.engine]
    if fleet.from_s is not None and fleet.until_s is not None:
        e["from_s"], e["until_s"] = fleet.from_s, fleet.until_s
    e["reserve"] = int(np.ceil(trace.output_tokens.mean())) if len(trace) else 0
    for p, x in enumerate(fleet.engine):
        engine = fleet.engines[x]
        if engine.costs is not None:
            of = {"mixed": 1, "reserve": 0, "chunk_tokens": engine.chunk_tokens or engine.prefill_tokens}
            for name, value in (of | coefficients(engine.costs)).items():
                e[p][name] = value
    slots = np.minimum(e["kv_tokens"] // block_tokens, blocks) + 2
    size = powers_of_two(2 * slots)
    e["mask"], e["base"], e["free"] = size - 1, np.cumsum(size) - size, np.cumsum(slots) - slots
    for name in ("head", "tail", "oldest", "newest"):
        e[name] = -1
    slot = np.zeros(int(slots.sum()), dtype=kernel.SLOT)
    slot["newer"] = np.arange(1, len(slot) + 1)
    slot["newer"][np.cumsum(slots) - 1] = -1  # every replica's free list ends with its last slot
    return e, slot, _table(kernel, int(size.sum()))


def _balancers(kernel: Any, fleet: RegionFleet, routing: RegionRouting, seed: int) -> tuple[Any, ...]:
    """Balancers, the replicas they manage, hash rings of replicas and of balancers, and whose users go where."""
    R, P, d = len(fleet.regions), len(fleet.region), fleet.one_way_s
    if routing.layout == "central":
        if routing.centre is not None:
            one_of("centre", routing.centre, fleet.regions)
        where = np.array([0 if routing.centre is None else fleet.regions.index(routing.centre)])
        groups = [np.arange(P)]
    else:
        where = np.unique(fleet.region)  # users of a region without replicas use the nearest balancer
        where = where if len(where) else np.arange(R)
        groups = [np.flatnonzero(fleet.region == r) for r in where]
    entry = d[:, where].argmin(axis=1)
    if routing.layout != "central":
        entry[where] = np.arange(len(where))  # whatever is at distance zero
    y = np.zeros(len(where), dtype=kernel.BALANCER)
    count = np.array([len(g) for g in groups])
    y["region"], y["head"], y["tail"] = where, -1, -1
    y["end"], y["ring_end"] = np.cumsum(count), np.cumsum(count) * routing.virtual_nodes
    y["start"], y["ring_start"] = y["end"] - count, y["ring_end"] - count * routing.virtual_nodes
    ring = np.concatenate([_ring(kernel, g, routing.virtual_nodes, seed) for g in groups])
    far = _ring(kernel, np.arange(len(where)), routing.virtual_nodes, seed + 1)
    return y, np.concatenate(groups).astype(np.int64), ring, far, entry.astype(np.int64)


def _tries(
    kernel: Any, balancer: Any, managed: Ints, replica: Any, routing: RegionRouting, block_tokens: int, request: Any
) -> tuple[Any, ...]:
    """Tries of every balancer, their table and their records."""
    t = np.zeros(2 * len(balancer), dtype=kernel.TRIE)
    if routing.select == "prefix":
        blocks = replica["kv_tokens"] // block_tokens
        mine = np.array([blocks[managed[y["start"] : y["end"]]].sum() for y in balancer])
        t["limit"][::2], t["limit"][1::2] = routing.trie_share * mine, routing.trie_share * (blocks.sum() - mine)
        t["limit"] = np.minimum(t["limit"], request["n_prompt"].sum())  # no more than there is
    size, t["room"] = powers_of_two(2 * (t["limit"] + request["n_prompt"].max(initial=1) + 1)), t["limit"] + 2
    t["base"], t["mask"], t["record_base"] = np.cumsum(size) - size, size - 1, np.cumsum(t["room"]) - t["room"]
    return t, _table(kernel, int(size.sum())), np.zeros(int(t["room"].sum()), dtype=kernel.PAIR)


def _table(kernel: Any, cells: int) -> Any:
    table = np.zeros(cells, dtype=kernel.CELL)
    table["key"] = -1
    return table


def powers_of_two(least: Ints) -> Ints:
    """The next powers of two, at least 16."""
    return 2 ** np.ceil(np.log2(np.maximum(least, 16))).astype(np.int64)


def hashes(values: Ints, seed: int) -> Ints:
    """splitmix64 of integers, non-negative."""
    with np.errstate(over="ignore"):
        z = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15) * np.uint64(seed + 1)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out: Ints = ((z ^ (z >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)
    return out


def _ring(kernel: Any, targets: Ints, virtual_nodes: int, seed: int) -> Any:
    """Every target's virtual nodes, sorted by hash (Chord's ring, SK §3.2)."""
    ring = np.zeros(len(targets) * virtual_nodes, dtype=kernel.NODE)
    ring["target"] = np.repeat(targets, virtual_nodes)
    ring["hash"] = hashes(ring["target"] * 1_000_003 + np.tile(np.arange(virtual_nodes), len(targets)), seed + 17)
    return ring[np.argsort(ring["hash"], kind="stable")]


def describe(routing: RegionRouting) -> Mapping[str, Any]:
    """The policy as JSON data."""
    return {k: getattr(routing, k) for k in routing.__dataclass_fields__}
