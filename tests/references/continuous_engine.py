"""`continuous.simulate` again, slow and plain: every step visits every request, every sum is taken anew.

The compiled loop is tested against it. It also takes `controllers` (`latency.controllers`), which set the batch limit
before every step, and users who wait for their answer before they ask again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from optmodels.arrays import Array, Ints
from optmodels.latency.controllers import Controller, StepObservation
from optmodels.simulation.continuous import (
    Arrivals,
    Dispatcher,
    Engine,
    Gaps,
    ServedRequests,
    Within,
    _binned,
    _validate,
)
from optmodels.simulation.continuous_kernel import LAST_STEP

RECENT = 10  # decode steps in the averages that controllers see


@dataclass(eq=False)
class _Request:
    """One request where it is now."""

    index: int
    arrived_s: float
    prompt: int
    output: int
    expected: int
    priority: float
    ids: list[int]  # whole prefix blocks of the prompt
    received: int
    made: int = 0
    context: int = 0  # tokens in the cache
    target: int = 0  # tokens to be in the cache before the next token is made
    room: int = 0  # tokens for which it has blocks
    chunk: int = 0
    shared: list[int] = field(default_factory=list)  # prefix blocks that it uses

    @property
    def tokens(self) -> int:
        """Prompt and what was made."""
        return self.prompt + self.made

    @property
    def urgency(self) -> tuple[float, int]:
        return self.priority, self.index


class _Ranks:
    """One engine at the present time: what its ranks have in common."""

    def __init__(self, engine: Engine, unit_tokens: int, controller: Controller | None) -> None:
        self.engine = engine
        self.ranks = [_Instance(engine, unit_tokens, controller, self) for _ in range(engine.ranks)]
        self.step_end = math.inf  # or, between two steps, the time at which the next begins
        self.under_way = False
        self.steps = 0
        self.busy_s = 0.0
        self.recent_s = 0.0
        self.most = 0


class _Instance:
    """One rank of an engine."""

    def __init__(self, engine: Engine, unit_tokens: int, controller: Controller | None, of: _Ranks) -> None:
        self.engine, self.unit_tokens, self.controller, self.of = engine, unit_tokens, controller, of
        self.unit = unit_tokens // engine.block_tokens
        if self.unit > engine.blocks:
            self.unit = 0
        self.waiting: list[_Request] = []
        self.running: list[_Request] = []  # in order of admission
        self.decoding: list[_Request] = []
        self.users: dict[int, int] = {}  # of each prefix block in the cache
        self.unused: list[int] = []  # prefix blocks without users, longest unused first
        self.seen: list[tuple[int, int]] = []  # prompt and output tokens of what came
        self.decode_steps: list[tuple[float, int]] = []  # seconds and requests

    def blocks(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.engine.block_tokens)

    @property
    def used(self) -> int:
        """Blocks in use, those of shared prefixes once."""
        own = sum(self.blocks(r.room) - len(r.shared) * self.unit for r in self.running)
        return own + (len(self.users) - len(self.unused)) * self.unit

    def use(self, block: int) -> None:
        """One more user of a prefix block."""
        if block in self.unused:
            self.unused.remove(block)
        self.users[block] = self.users.get(block, 0) + 1

    def make_room(self) -> None:
        """Forget unused prefix blocks until everything has its place."""
        while self.used + len(self.unused) * self.unit > self.engine.blocks:
            del self.users[self.unused.pop(0)]

    def give_up(self, r: _Request) -> None:
        """Release what a request has in the cache."""
        self.running.remove(r)
        if r in self.decoding:
            self.decoding.remove(r)
        for block in reversed(r.shared):
            self.users[block] -= 1
            if self.users[block] == 0:
                self.unused.append(block)
        r.shared = []

    def found(self, r: _Request, tokens: int) -> list[int]:
        """Prefix blocks at the head of a prompt that are in the cache and leave a token to compute."""
        n = 0
        if self.unit:
            while n < min(len(r.ids), (tokens - 1) // self.unit_tokens) and r.ids[n] in self.users:
                n += 1
        return r.ids[:n]

    def advance_prompt(self, r: _Request, budget: int) -> int:
        """Give a prompt its chunk of this step, and share the prefix blocks that are then computed."""
        r.chunk = min(r.target - r.context, self.engine.chunk_tokens or budget, budget)
        while (
            self.unit and len(r.shared) < len(r.ids) and (len(r.shared) + 1) * self.unit_tokens <= r.context + r.chunk
        ):
            block = r.ids[len(r.shared)]
            self.use(block)
            r.shared.append(block)
        return budget - r.chunk

    def limit(self) -> int:
        """Requests that may run."""
        if self.controller is None:
            return self.engine.max_num_seqs
        recent = self.decode_steps[-RECENT:]
        return max(1, self.controller.step(StepObservation(
            waiting=len(self.waiting),
            decoding=len(self.decoding),
            mean_input_tokens=sum(i for i, _ in self.seen) / len(self.seen),
            mean_output_tokens=sum(o for _, o in self.seen) / len(self.seen),
            decode_latency_s=sum(t for t, _ in recent) / len(recent) if recent else None,
            decode_batch=sum(b for _, b in recent) / len(recent) if recent else None,
        )))  # fmt: skip


class _Simulation:
    def __init__(
        self, arrivals: Arrivals, engines: Sequence[Engine], dispatcher: Dispatcher, assigned: Ints | None,
        planned: Array | None, planned_bin_s: float, within: Within, refuse: bool, users: int | None,
        controllers: Sequence[Controller | None] | None,
    ) -> None:  # fmt: skip
        _validate(arrivals, engines, dispatcher, assigned, planned)
        self.a, self.dispatcher, self.assigned, self.refuse, self.users = arrivals, dispatcher, assigned, refuse, users
        n, unit = len(arrivals), arrivals.prefixes.block_tokens if arrivals.prefixes is not None else 0
        self.engines = [
            _Ranks(e, unit, c)
            for e, c in zip(engines, controllers or [None] * len(engines), strict=True)
        ]  # fmt: skip
        self.instances = [e for x in self.engines for e in x.ranks]
        self.planned = np.zeros((1, 1, 1)) if planned is None else _binned(planned)
        self.planned_bin_s, self.within, self.credit = planned_bin_s, within, np.zeros(self.planned.shape[1:])
        self.turn: dict[int, int] = {}
        self.came = arrivals.arrival_s.copy()
        self.instance = np.full(n, -1, np.int64)
        self.start, self.first, self.finish = (np.full(n, np.nan) for _ in range(3))
        self.hit, self.preempted = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.here = 0
        self.last = np.full(n, np.nan)  # seconds of the last token
        self.gaps: list[tuple[int, float]] = []  # request and time between two tokens

    def request(self, i: int) -> _Request:
        a = self.a
        prompt = int(a.input_tokens[i])
        ids = a.prefixes.of(i)[: prompt // a.prefixes.block_tokens].tolist() if a.prefixes is not None else []
        return _Request(
            i, float(self.came[i]), prompt, int(a.output_tokens[i]), int(a.expected_output_tokens[i]),
            float(a.priority[i]), ids, int(a.received_tokens[i]),
        )  # fmt: skip

    # -- a step

    def schedule(self, x: _Ranks, now: float) -> None:
        """Choose what the next step does, and how long that takes."""
        going = any(e.running for e in x.ranks)
        work = [self.chosen(e, now, going) for e in x.ranks]
        running = sum(len(e.running) for e in x.ranks)
        if not running:
            x.recent_s = 0.0
            x.step_end = math.inf
            return
        x.under_way = True
        costs = x.engine.costs
        seconds = costs.step(*work[0]) if len(work) == 1 else costs.step_of_ranks(work)
        for e in x.ranks:
            if e.decoding:
                e.decode_steps.append((seconds, len(e.decoding)))
        x.busy_s += seconds
        x.recent_s += LAST_STEP * (seconds - x.recent_s)
        x.most = max(x.most, running)
        x.step_end = now + seconds

    def chosen(self, e: _Instance, now: float, going: bool) -> tuple[Array, Array, Array]:
        """What a rank does in the next step, as of `StepCosts.step`; `going`: its engine was not idle."""
        preempted = False
        drafts = e.engine.costs.drafts
        while e.used + sum(e.blocks(r.context + 1 + drafts) - e.blocks(r.room) for r in e.decoding) > e.engine.blocks:
            worst = max(e.running, key=lambda r: r.urgency)
            e.give_up(worst)
            worst.received = 0
            e.waiting.append(worst)
            self.preempted[worst.index] += 1
            preempted = True
        for r in e.decoding:
            r.room = r.context + 1 + drafts
        e.make_room()
        budget = e.engine.max_num_batched_tokens - len(e.decoding) * (1 + drafts)
        filling = [r for r in e.running if r not in e.decoding]
        for r in filling:
            budget = e.advance_prompt(r, budget)
        limit = e.limit()
        later = e.engine.overlap and going
        while e.waiting and not preempted and len(e.running) < limit and budget > 0:
            r = min(e.waiting, key=lambda r: r.urgency)
            shared = e.found(r, r.tokens)
            context = max(len(shared) * e.unit_tokens, r.received)
            room = r.tokens + (context == r.tokens) * (1 + drafts)  # who decodes at once needs it for its next tokens
            idle = sum(b in e.unused for b in shared)
            if e.used + e.blocks(room) + (idle - len(shared)) * e.unit > e.engine.blocks:
                break
            e.waiting.remove(r)
            for block in shared:
                e.use(block)
            r.shared, r.context, r.target, r.room = list(shared), context, r.tokens, room
            e.running.append(r)
            e.make_room()
            if math.isnan(self.start[r.index]):
                self.start[r.index], self.hit[r.index] = now, len(shared) * e.unit_tokens
            if context == r.target:
                r.made = 1
                self.first[r.index] = r.arrived_s
                self.last[r.index] = r.arrived_s - self.sent_s[r.index]
                e.decoding.append(r)
                budget -= 1 + drafts
            else:
                chunk = min(r.target - r.context, e.engine.chunk_tokens or budget, budget)
                if later:
                    r.chunk = 0
                else:
                    filling.append(r)
                    e.advance_prompt(r, budget)
                budget -= chunk
        chunks = [r for r in filling if r.chunk > 0]
        return (
            np.array([r.chunk for r in chunks], dtype=float), np.array([r.context for r in chunks], dtype=float),
            np.array([r.context for r in e.decoding], dtype=float),
        )  # fmt: skip

    def complete(self, x: _Ranks, now: float) -> None:
        """End a step of all ranks."""
        g = x.engine.costs.tokens
        made = math.floor((x.steps + 1) * g + 1e-9) - math.floor(x.steps * g + 1e-9)
        x.steps += 1
        x.under_way = False
        for e in x.ranks:
            self.made(e, made, now)

    def made(self, e: _Instance, made: int, now: float) -> None:
        """So many tokens for everyone who decodes on a rank; prompts advance."""
        filling = [r for r in e.running if r not in e.decoding]
        done = []
        for r in e.decoding:
            self.token(r, now)
            r.context += made
            r.room = r.context
            r.made += made
            if r.made >= r.output:
                done.append(r)
        for r in sorted(done, key=lambda r: (r.output - r.made, e.running.index(r))):  # by tokens too many
            self.answered(e, r, now)
        for r in filling:
            r.context += r.chunk
            if r.context < r.target:
                continue
            r.made += 1
            self.token(r, now)
            if math.isnan(self.first[r.index]):
                self.first[r.index] = now
            if r.made == r.output:
                self.answered(e, r, now)
            else:
                e.decoding.append(r)

    def token(self, r: _Request, now: float) -> None:
        """Tokens at the end of a step: the time since the last ones."""
        if not math.isnan(self.last[r.index]):
            self.gaps.append((r.index, now - self.last[r.index]))
        self.last[r.index] = now

    def answered(self, e: _Instance, r: _Request, now: float) -> None:
        e.give_up(r)
        self.finish[r.index] = now
        self.here -= 1

    # -- who gets a request

    def predicted(self, e: _Instance, i: int, now: float) -> tuple[float, float]:
        """Seconds to the first and last token (`continuous_kernel._predicted`)."""
        r, c, engine = self.request(i), e.engine.costs, e.engine
        here = len(e.running) + len(e.waiting) + 1
        own = r.prompt - max(len(e.found(r, r.prompt)) * e.unit_tokens, r.received)
        filling = [q for q in e.running if q not in e.decoding]
        ahead = sum(q.target - q.context for q in filling) + sum(q.tokens - q.received for q in e.waiting)
        n = min(here, engine.max_num_seqs)
        context = (sum(q.context for q in e.decoding) + ahead + r.prompt) / here
        D = engine.ranks  # the others as busy
        step = c.step(np.zeros(0), np.zeros(0), np.full(D * n, context))
        load = max(here / engine.max_num_seqs, (self.asked(e) + e.blocks(r.prompt)) / engine.blocks)
        first = e.of.step_end - now if e.of.step_end < math.inf else 0.0
        if load > 1.0:
            outputs = r.expected + sum(q.expected for q in e.running + e.waiting)
            first += (load - 1.0) * outputs / 2 / (here * c.tokens) * step
        if ahead + own > 0:
            room = max(engine.max_num_batched_tokens - n * (1 + c.drafts) + 1, 1)
            first += math.ceil((ahead + own) / room) * (step + c.prompt_step_s) + D * c.prompt_token_s * (ahead + own)
            first += D * c.prompt_pair_s * float(c.pairs(own, r.prompt - own))
        first += c.request_s
        return first, first + (r.expected - 1) / c.tokens * max(step, engine.step_s, e.of.recent_s)

    def asked(self, e: _Instance) -> int:
        """Blocks in use and of the prompts that wait."""
        return e.used + sum(e.blocks(q.tokens) for q in e.waiting)

    def may(self, j: int, i: int, now: float) -> bool:
        e, a = self.instances[j], self.a
        longest = int(a.input_tokens[i] + a.output_tokens[i]) - 1 + e.engine.costs.drafts
        if e.engine.available_from_s > now or e.blocks(longest) > e.engine.blocks:
            return False
        if not self.refuse:
            return True
        first, last = self.predicted(e, i, now)
        return bool(first <= a.ttft_limit_s[i] and last <= a.deadline_s[i])

    def choose(self, i: int, now: float) -> int:
        """The instance a request is sent to, or −1."""
        if self.assigned is not None:
            x = int(self.assigned[i])
            mine = [j for j, e in enumerate(self.instances) if x >= 0 and e.of is self.engines[x]]
            return self.best("shortest_queue", [j for j in mine if self.may(j, i, now)], i, now, mine)
        pool = int(self.a.pool[i])
        mine = [j for j, e in enumerate(self.instances) if e.engine.pool == pool]
        able = [j for j in mine if self.may(j, i, now)]
        if self.dispatcher == "round_robin":
            last = self.turn.get(pool, -1)
            for j in [j for j in mine if j > last] + [j for j in mine if j <= last]:
                if j in able:
                    self.turn[pool] = j
                    return j
            return -1
        if self.dispatcher == "planned_shares":
            b = min(int(now / self.planned_bin_s), len(self.planned) - 1)
            share, credit = self.planned[b, self.a.klass[i]], self.credit[self.a.klass[i]]
            credit += share
            if not share.any():
                return -1
            turn = int(np.where(share > 0, credit, -np.inf).argmax())
            credit[turn] -= 1.0
            if turn == len(share) - 1:
                return -1
            of_kind = [j for j in able if self.instances[j].engine.kind == turn]
            return self.best(self.within, of_kind or able, i, now, mine)
        return self.best(self.dispatcher, able, i, now, mine)

    def best(self, how: str, able: list[int], i: int, now: float, mine: list[int]) -> int:
        return min(able, key=lambda j: (self.rank(how, j, i, now, mine), self.length(j), j), default=-1)

    def length(self, j: int) -> int:
        e = self.instances[j]
        return len(e.running) + len(e.waiting)

    def rank(self, how: str, j: int, i: int, now: float, mine: list[int]) -> float:
        e = self.instances[j]
        if how == "least_kv":
            return self.asked(e) * (1.0 / e.engine.blocks)
        if how == "earliest_finish":
            return self.predicted(e, i, now)[1]
        lengths = [self.length(k) for k in mine]
        if how == "prefix_affine":
            if max(lengths) - min(lengths) > 32 and max(lengths) > 1.5 * min(lengths):
                return self.length(j)
            r = self.request(i)
            tokens = len(e.found(r, r.prompt)) * e.unit_tokens
            return -tokens if tokens > 0.3 * r.prompt else 0.0
        return self.length(j)

    # -- time

    def run(self) -> None:
        """Arrivals and steps in order of time; who arrives as a step ends is seen by the next."""
        coming, n, now = 0, len(self.a), 0.0
        while True:
            then = min((x.step_end for x in self.engines), default=math.inf)
            while coming < n and (self.here < self.users if self.users else self.came[coming] <= then):
                if self.users:
                    self.came[coming] = now
                self.arrive(coming)
                coming += 1
                then = min((x.step_end for x in self.engines), default=math.inf)
            if then == math.inf:
                return
            now = then
            x = min(self.engines, key=lambda x: x.step_end)
            if x.under_way:
                self.complete(x, now)
            else:
                self.schedule(x, now)

    def arrive(self, i: int) -> None:
        now = float(self.came[i])
        j = self.choose(i, now)
        if j >= 0:
            e, r = self.instances[j], self.request(i)
            self.instance[i] = self.engines.index(e.of)
            e.seen.append((r.prompt, r.output))
            e.waiting.append(r)
            self.here += 1
            if e.of.step_end == math.inf:
                e.of.step_end = now


def simulate(
    arrivals: Arrivals, engines: Sequence[Engine], dispatcher: Dispatcher = "earliest_finish", *,
    assigned: Ints | None = None, planned: Array | None = None, planned_bin_s: float = math.inf,
    within: Within = "shortest_queue", refuse: bool = False, users: int | None = None,
    controllers: Sequence[Controller | None] | None = None, gaps: Gaps | None = None,
) -> ServedRequests:  # fmt: skip
    """Serve all requests; see `continuous.simulate`.

    Args:
        users: keep so many requests in the system whatever their arrival times; those of the result are when they came.
        controllers: by engine, what sets the batch limit in place of `max_num_seqs`, before every step.
    """
    s = _Simulation(
        arrivals, engines, dispatcher, assigned, planned, planned_bin_s, within, refuse, users, controllers
    )  # fmt: skip
    s.sent_s = np.zeros(len(arrivals)) + (0.0 if gaps is None else gaps.sent_s)
    s.run()
    counts = None
    if gaps is not None:
        counts = np.zeros((int(gaps.group.max()) + 1, len(gaps.edges_s) + 1), np.int64)
        for i, seconds in s.gaps:
            if gaps.group[i] >= 0:
                counts[gaps.group[i], np.searchsorted(gaps.edges_s, seconds)] += 1
    outside = np.array([e.costs.request_s for e in engines] + [0.0])[s.instance]
    return ServedRequests(
        replace(arrivals, arrival_s=s.came), s.instance, s.start, s.first + outside,
        s.finish + outside, s.hit, s.preempted, np.array([x.steps for x in s.engines]),
        np.array([x.busy_s for x in s.engines]), np.array([x.most for x in s.engines]), None,
        counts,
    )  # fmt: skip
