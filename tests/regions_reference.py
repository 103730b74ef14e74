"""Multi-region serving, slow and obvious: lists, dictionaries and scans, to judge `simulation.regions` by.

A prefix cache is a dictionary from block to [users, last use]; a trie is a list of (path, target) records; the hash
ring is a sorted list. Events that happen at once are handled in the order in which they were announced.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from optmodels.simulation.regions import hashes


@dataclass
class Request:
    number: int
    region: int
    key: int
    prompt: int
    output: int
    blocks: list[int]
    n_prompt: int
    n_all: int
    produced: int = 0
    held: int = 0
    sent: float = -1.0
    first: float = -1.0
    done: float = -1.0
    replica: int = -1
    hit: int = 0
    forwarded: bool = False
    refused: bool = False


@dataclass
class Server:
    number: int
    region: int
    engine: object
    up: tuple[float, float]
    balancer: int = -1
    queue: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    fresh: list[Request] = field(default_factory=list)
    busy: bool = False
    left_out: int = 0
    private: int = 0
    outstanding: int = 0
    pushed: int = 0
    cache: dict[int, list[int]] = field(default_factory=dict)
    uses: int = 0
    preempted: int = 0


@dataclass
class Balancer:
    number: int
    region: int
    servers: list[int]
    queue: list[Request] = field(default_factory=list)
    pointer: int = 0
    far_pointer: int = 0
    far_pushed: dict[int, int] = field(default_factory=dict)
    near: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    far: list[tuple[tuple[int, ...], int]] = field(default_factory=list)


class Reference:
    def __init__(self, trace, fleet, routing, programs=None, seed=0):
        self.fleet, self.routing, self.programs = fleet, routing, programs
        self.d = np.asarray(fleet.one_way_s)
        R = len(fleet.regions)
        self.may = np.ones((R, R), dtype=bool) if fleet.may is None else fleet.may
        n = len(trace)
        label = trace.labels["region"]
        session = trace.labels.get("session")
        keys = hashes(np.arange(n) if session is None else session.codes, seed)
        contents = None if programs is None else programs.contents
        blocks = contents or trace.prefixes
        self.bt = 16 if blocks is None else blocks.block_tokens
        self.requests = []
        for i in range(n):
            prompt, output = int(trace.prompt_tokens[i]), int(trace.output_tokens[i])
            mine = [] if blocks is None else [int(b) for b in blocks.of(i)]
            n_prompt = min(len(mine), prompt // self.bt)
            n_all = n_prompt if contents is None else max(n_prompt, min(len(mine), (prompt + output - 1) // self.bt))
            region = fleet.regions.index(label.names[label.codes[i]])
            self.requests.append(Request(i, region, int(keys[i]), prompt, output, mine, n_prompt, n_all))
        self.arrival = trace.arrival_s
        self.reserve = int(np.ceil(trace.output_tokens.mean()))
        forever = np.full(len(fleet.region), np.inf)
        low, high = (-forever, forever) if fleet.from_s is None else (fleet.from_s, fleet.until_s)
        self.servers = [
            Server(p, int(fleet.region[p]), fleet.engines[fleet.engine[p]], (low[p], high[p]))
            for p in range(len(fleet.region))
        ]
        if routing.layout == "central":
            centre = 0 if routing.centre is None else fleet.regions.index(routing.centre)
            self.balancers = [Balancer(0, centre, list(range(len(self.servers))))]
            self.entry = [0] * R
        else:
            places = sorted({s.region for s in self.servers})
            self.balancers = [
                Balancer(x, r, [s.number for s in self.servers if s.region == r]) for x, r in enumerate(places)
            ]
            self.entry = [
                places.index(r) if r in places else int(np.argmin([self.d[r, p] for p in places])) for r in range(R)
            ]
        for b in self.balancers:
            for p in b.servers:
                self.servers[p].balancer = b.number
        self.ring = {b.number: self._ring(b.servers, seed) for b in self.balancers}
        self.far_ring = self._ring([b.number for b in self.balancers], seed + 1)
        kv = {b.number: sum(self.servers[p].engine.kv_tokens // self.bt for p in b.servers) for b in self.balancers}
        self.near_limit = {x: int(routing.trie_share * kv[x]) for x in kv}
        self.far_limit = {x: int(routing.trie_share * (sum(kv.values()) - kv[x])) for x in kv}
        self.probes = []  # (left out by server, available by balancer, queue by balancer) of every tick
        self.probes.append(([0] * len(self.servers), [len(b.servers) for b in self.balancers], [0] * len(kv)))
        self.events, self.announced = [], 0
        self.remaining = n

    def _ring(self, targets, seed):
        names = ((t * 1_000_003 + v, t) for t in targets for v in range(self.routing.virtual_nodes))
        return sorted((int(hashes(np.array([name]), seed + 17)[0]), t) for name, t in names)

    def at(self, when, what, *arguments):
        heapq.heappush(self.events, (when, self.announced, what, arguments))
        self.announced += 1

    def run(self, until):
        waits = set()
        if self.programs is not None:
            waits = {i for i, parent in enumerate(self.programs.parent) if parent >= 0}
            waits |= {self._root(g) for g in self.programs.following if g >= 0}
            self.open = list(np.bincount(self.programs.program))
        for r in self.requests:
            if r.number not in waits:
                self.send(r, self.arrival[r.number])
        self.at(self.routing.probe_s, self.tick)
        now = 0.0
        while self.remaining:
            when, _, what, arguments = heapq.heappop(self.events)
            if when > until:
                return until
            now = when
            what(now, *arguments)
        return now

    def _root(self, program):
        members = [i for i in range(len(self.requests)) if self.programs.program[i] == program]
        return next(i for i in members if self.programs.parent[i] < 0)

    # ------------------------------------------------------------------------------------------- users
    def send(self, r, now):
        r.sent = now + (0.0 if self.programs is None else self.programs.think_s[r.number])
        b = self.balancers[self.entry[r.region]]
        self.at(r.sent + self.d[r.region, b.region], self.arrive, r, b)

    def back(self, r, server):
        owner, entry = self.balancers[server.balancer].region, self.balancers[self.entry[r.region]].region
        return self.d[server.region, owner] + self.d[owner, entry] + self.d[entry, r.region]

    def finished(self, r, server, now):
        self.remaining -= 1
        self.at(now + self.d[server.region, self.balancers[server.balancer].region], self.notice, server)
        if self.programs is None:
            return
        after = now + self.back(r, server)
        for i in range(len(self.requests)):
            if self.programs.parent[i] == r.number:
                self.send(self.requests[i], after)
        g = self.programs.program[r.number]
        self.open[g] -= 1
        if self.open[g] == 0 and self.programs.following[g] >= 0:
            self.send(self.requests[self._root(self.programs.following[g])], after)

    # --------------------------------------------------------------------------------------- balancers
    def arrive(self, now, r, b):
        b.queue.append(r)
        self.drain(now, b)

    def notice(self, now, server):
        server.outstanding -= 1
        if self.routing.push == "outstanding":
            self.drain(now, self.balancers[server.balancer])

    def tick(self, now):
        # `available` counts with what was known before this probe, but for how the kernel sees its own slot: both
        # write the pending counts first.
        self.probes.append(([s.left_out for s in self.servers], [0] * len(self.balancers),
                            [len(b.queue) for b in self.balancers]))  # fmt: skip
        for b in self.balancers:
            self.probes[-1][1][b.number] = sum(self.available(self.servers[p], None, now) for p in b.servers)
        for s in self.servers:
            s.pushed = 0
        for b in self.balancers:
            b.far_pushed = {}
        for b in self.balancers:
            self.drain(now, b)
        self.at(now + self.routing.probe_s, self.tick)

    def seen(self, a, b):
        """The probe that somebody in region a has of somebody in region b."""
        lag = int(np.rint(self.d[b, a] / self.routing.probe_s))
        return self.probes[max(0, len(self.probes) - 1 - lag)]

    def available(self, s, region, now):
        if not s.up[0] <= now < s.up[1] or (region is not None and not self.may[region, s.region]):
            return False
        if self.routing.push == "outstanding":
            return s.outstanding < self.routing.limit
        if self.routing.push == "pending":
            room = region is None or self.routing.burst is None or s.pushed < self.routing.burst
            return room and self.seen(self.balancers[s.balancer].region, s.region)[0][s.number] == 0
        return True

    @staticmethod
    def match(records, r, target):
        best = 0
        for path, t in records:
            if t == target:
                n = 0
                while n < min(len(path), r.n_prompt) and path[n] == r.blocks[n]:
                    n += 1
                best = max(best, n)
        return best

    def choose(self, b, r, now):
        free = [p for p in b.servers if self.available(self.servers[p], r.region, now)]
        if not free:
            return None
        rule = self.routing
        if rule.select == "round_robin":
            order = b.servers[b.pointer :] + b.servers[: b.pointer]
            p = next(p for p in order if p in free)
            b.pointer = (b.servers.index(p) + 1) % len(b.servers)
            return p
        if rule.select == "consistent_hashing":
            return self.next_on(self.ring[b.number], r.key, free)
        load = {p: self.servers[p].outstanding for p in free}
        least = min(free, key=lambda p: (load[p], free.index(p)))
        if rule.select == "least_load":
            return least
        most = max(load.values())
        if rule.router and most - load[least] > rule.balance_absolute and most > rule.balance_relative * load[least]:
            return least
        length = {p: self.match(b.near, r, p) for p in free}
        best = min(free, key=lambda p: (-length[p], load[p], free.index(p)))
        if length[best] * self.bt >= rule.match * r.prompt:
            return best
        if rule.router:
            size = {p: sum(len(path) for path, t in b.near if t == p) for p in free}
            return min(free, key=lambda p: (size[p], free.index(p)))
        return least

    @staticmethod
    def next_on(ring, key, free):
        nodes = [x for x in ring if x[0] >= key] + [x for x in ring if x[0] < key]
        return next(t for _, t in nodes if t in free)

    def choose_far(self, b, r):
        free = {}
        for other in self.balancers:
            _, avail, queue = self.seen(b.region, other.region)
            if other is b or not self.may[r.region, other.region]:
                continue
            if avail[other.number] > 0 and queue[other.number] <= self.routing.buffer:
                sent = b.far_pushed.get(other.number, 0)
                if self.routing.burst is None or sent < self.routing.burst * avail[other.number]:
                    free[other.number] = avail[other.number]
        if not free:
            return None
        if self.routing.select == "round_robin":
            L = len(self.balancers)
            x = next(x for x in ((b.far_pointer + k) % L for k in range(L)) if x in free)
            b.far_pointer = (x + 1) % L
            return x
        if self.routing.select == "consistent_hashing":
            return self.next_on(self.far_ring, r.key, free)
        value = free if self.routing.select == "least_load" else {x: self.match(b.far, r, x) for x in free}
        return min(free, key=lambda x: (-value[x], self.d[b.region, self.balancers[x].region], x))

    def drain(self, now, b):
        while b.queue:
            r = b.queue[0]
            p = self.choose(b, r, now)
            if p is not None:
                b.queue.pop(0)
                s = self.servers[p]
                r.replica = p
                s.outstanding += 1
                s.pushed += 1
                self.note(b.near, r, p, self.near_limit[b.number])
                self.at(now + self.d[b.region, s.region], self.deliver, r, s)
                continue
            if self.routing.layout != "regional" or r.forwarded:
                return
            x = self.choose_far(b, r)
            if x is None:
                return
            b.queue.pop(0)
            r.forwarded = True
            b.far_pushed[x] = b.far_pushed.get(x, 0) + 1
            self.note(b.far, r, x, self.far_limit[b.number])
            other = self.balancers[x]
            self.at(now + self.d[b.region, other.region], self.arrive, r, other)

    def note(self, records, r, target, limit):
        if self.routing.select != "prefix" or r.n_prompt == 0:
            return
        records.append((tuple(r.blocks[: r.n_prompt]), target))
        while sum(len(path) for path, _ in records) > limit and len(records) > 1:
            records.pop(0)

    # ---------------------------------------------------------------------------------------- replicas
    def deliver(self, now, r, s):
        if r.prompt + r.output > s.engine.kv_tokens:
            r.refused = True
            self.finished(r, s, now)
            return
        s.queue.append(r)
        if not s.busy:
            self.start(now, s)

    def memory(self, s):
        return s.private + len(s.cache) * self.bt

    def idle_blocks(self, s):
        return [b for b, (users, _) in s.cache.items() if users == 0]

    def evict(self, s):
        del s.cache[min(self.idle_blocks(s), key=lambda b: s.cache[b][1])]

    def hold(self, s, block):
        s.cache.setdefault(block, [0, 0])[0] += 1

    def unlock(self, s, r):
        for block in reversed(r.blocks[: r.held]):
            s.uses += 1
            s.cache[block][0] -= 1
            s.cache[block][1] = s.uses
        r.held = 0

    def start(self, now, s):
        g = s.engine
        s.fresh = []
        tokens, pairs = 0, 0.0
        while s.queue and len(s.running) < g.max_batch:
            r = s.queue[0]
            context = r.prompt + r.produced
            m = 0
            while m < min((context - 1) // self.bt, r.n_all) and r.blocks[m] in s.cache:
                m += 1
            new = context - m * self.bt
            if s.fresh and tokens + new > g.prefill_tokens:
                break
            owed = sum(max(0, self.reserve - x.produced) for x in [*s.running, r])
            gone = len([b for b in self.idle_blocks(s) if b not in r.blocks[:m]])
            if s.running and new + owed > g.kv_tokens - self.memory(s) + gone * self.bt:
                break
            s.queue.pop(0)
            for block in r.blocks[:m]:
                self.hold(s, block)
            r.held = m
            if r.first < 0:
                r.hit = m * self.bt
            while self.memory(s) + new > g.kv_tokens:
                self.evict(s)
            s.private += new
            s.running.append(r)
            s.fresh.append(r)
            tokens += new
            pairs += new * (m * self.bt + new / 2)
        if s.fresh:
            seconds = g.prefill_s + g.prefill_per_token_s * tokens + g.prefill_per_pair_s * pairs
        else:
            while s.running and self.memory(s) + len(s.running) > g.kv_tokens:
                if self.idle_blocks(s):
                    self.evict(s)
                    continue
                r = s.running.pop()
                s.private -= r.prompt + r.produced - 1 - r.held * self.bt
                self.unlock(s, r)
                s.queue.insert(0, r)
                s.preempted += 1
            s.private += len(s.running)
            context = sum(r.prompt + r.produced for r in s.running)
            read = g.decode_s + g.decode_per_kv_token_s * context
            seconds = max(read, g.decode_per_sequence_s * len(s.running))
        s.left_out = len(s.queue)
        s.busy = bool(s.running)
        if s.busy:
            self.at(now + seconds, self.end, s)

    def end(self, now, s):
        for r in s.fresh or list(s.running):
            r.produced += 1
            if s.fresh:
                if r.first < 0:
                    r.first = now
                self.cover(s, r, r.n_prompt)
            if r.produced == r.output:
                self.cover(s, r, r.n_all)
                s.private -= r.prompt + r.output - 1 - r.held * self.bt
                self.unlock(s, r)
                s.running.remove(r)
                r.done = now
                self.finished(r, s, now)
        s.fresh = []
        self.start(now, s)

    def cover(self, s, r, blocks):
        for block in r.blocks[r.held : blocks]:
            self.hold(s, block)
            s.private -= self.bt
        r.held = max(r.held, blocks)
