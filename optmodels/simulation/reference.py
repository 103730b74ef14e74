"""`cluster.simulate` again, slow and obvious: every event moves every request, every prediction plays the queue out.

The compiled engine is tested against it, and the engine for batch limits that change: `controllers` sets the
limit of an instance before every arrival and after every completion there (§5 of the dynamic-batching paper asks every
scheduling interval, which this simulation does not have). Numba cannot call controllers, which are Python objects.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from optmodels.latency.controllers import Controller, StepObservation
from optmodels.simulation.cluster import Cluster, Outcomes, Policy, Queue, Requests, Shares, Speed, validate


@dataclass
class _Slot:
    request: int
    prefill_s: float  # left
    tokens: float  # left
    prefilling: bool


@dataclass
class _Instance:
    """One instance at the present time."""

    index: int
    slots: int
    limit: int
    rates: list[float]
    full: float
    active: list[_Slot] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    busy_s: float = 0.0
    prompts: int = 0
    outputs: int = 0
    came: int = 0

    @property
    def rate(self) -> float:
        """Decode tokens/s of each active request."""
        return self.rates[len(self.active) - 1]

    @property
    def here(self) -> int:
        """Requests waiting and in slots."""
        return len(self.active) + len(self.queue)

    def next_event(self) -> tuple[float, int, int]:
        """Time until the next end of a prefill (0) or completion (1), and its active request."""
        events = [
            (s.prefill_s, 0, k) if s.prefilling else (s.tokens / self.rate, 1, k) for k, s in enumerate(self.active)
        ]
        return min(events, key=lambda e: e[:2], default=(math.inf, 1, -1))

    def pass_time(self, seconds: float) -> None:
        """Let every active request go on."""
        if self.active:
            self.busy_s += seconds
        rate = self.rate if self.active else 0.0
        for s in self.active:
            if s.prefilling:
                s.prefill_s -= seconds
            else:
                s.tokens -= rate * seconds


class _Simulation:
    def __init__(
        self, requests: Requests, cluster: Cluster, policy: Policy, speed: Speed, protect: bool, queue: Queue,
        shares: Shares | None, seed: int, controllers: Sequence[Controller | None] | None,
    ) -> None:  # fmt: skip
        n = len(requests)
        self.requests, self.cluster, self.policy, self.protect = requests, cluster, policy, protect
        self.shares, self.seed, self.urgent_first = shares, seed, queue == "deadline"
        self.planned = shares.planned if shares is not None else np.zeros((0, 0, 0))
        self.controllers = controllers or [None] * len(cluster)
        full = cluster.full_tokens_per_s
        self.instances = [
            _Instance(
                j, w, w, [float(full[j])] * w if speed == "worst_case" else cluster.tokens_per_s[j, :w].tolist(),
                float(full[j]),
            )
            for j, w in enumerate(cluster.slots.tolist())
        ]  # fmt: skip
        self.now = 0.0
        self.instance = np.full(n, -1, np.int64)
        self.start, self.first, self.finish = (np.full(n, np.inf) for _ in range(3))
        self.promised = np.zeros(n, np.bool_)
        self.last: dict[tuple[int, int], int] = {}
        self.credit: dict[int, list[float]] = {}
        self.decks: dict[int, list[int]] = {}

    def prefill(self, i: int, j: int) -> float:
        return float(
            self.cluster.prefill_s[j] + self.cluster.prefill_s_per_token[j] * float(self.requests.prompt_tokens[i])
        )

    def worst(self, i: int, j: int) -> float:
        """Prefill and decoding at the full-batch rate."""
        return self.prefill(i, j) + float(self.requests.output_tokens[i]) / self.instances[j].full

    def latest(self, i: int, j: int) -> float:
        """Start that meets a request's deadline."""
        return float(self.requests.due_s[i]) - self.worst(i, j)

    def play(self, j: int, queue: list[int]) -> dict[int, float]:
        """Starts of a queue at the full-batch rate."""
        inst = self.instances[j]
        release = [self.now + s.prefill_s + s.tokens / inst.full for s in inst.active]
        heapq.heapify(release)
        starts = {}
        for k in queue:
            start = self.now
            while len(release) >= inst.limit:
                start = heapq.heappop(release)
            starts[k] = start
            heapq.heappush(release, start + self.worst(k, j))
        return starts

    def predicted(self, i: int, j: int) -> float:
        """Finish of a request if it is sent to an instance now and waits its turn; by urgency: if it is the first."""
        ahead = [] if self.urgent_first else self.instances[j].queue
        return self.play(j, [*ahead, i])[i] + self.worst(i, j)

    def may(self, i: int, j: int) -> bool:
        """Whether a request may go to an instance of its model."""
        g, own = int(self.requests.group[i]), int(self.cluster.group[j])
        if self.cluster.available_from_s[j] > self.now or (g >= 0 and own >= 0 and g != own):
            return False
        if not self.protect:
            return True
        if self.urgent_first and self.instances[j].queue:
            queue = sorted([*self.instances[j].queue, i], key=lambda k: (self.latest(k, j), k))
            return all(start <= self.latest(k, j) for k, start in self.play(j, queue).items())
        return self.predicted(i, j) <= self.requests.due_s[i]

    def least_loaded(self, i: int, among: list[int]) -> int:
        able = [j for j in among if self.may(i, j)]
        return min(able, key=lambda j: (self.instances[j].here / self.instances[j].slots, j), default=-1)

    def choose(self, i: int) -> int:
        """The instance a request is sent to, or −1."""
        mine = [j for j in range(len(self.instances)) if self.cluster.model[j] == self.requests.model[i]]
        if not mine:
            return -1
        due = float(self.requests.due_s[i])
        match self.policy:
            case "planned_shares":
                return self.follow(i, mine)
            case "least_load":
                return self.least_loaded(i, mine)
            case "round_robin":
                key = (int(self.requests.model[i]), max(int(self.requests.group[i]), -1))
                after = self.last.get(key, -1)
                order = [j for j in mine if j > after] + [j for j in mine if j <= after]
                chosen = next((j for j in order if self.may(i, j)), -1)
                if chosen >= 0:
                    self.last[key] = chosen
                return chosen
            case "random":
                return self.draw(i, self.decks.setdefault(int(self.requests.model[i]), mine))
        able = [j for j in mine if self.may(i, j)]
        if self.policy == "maaso":
            able = [j for j in able if self.now + self.worst(i, j) <= due]

        def key_of(j: int) -> tuple[float, ...]:
            inst = self.instances[j]
            if self.policy == "shortest_queue":
                return (inst.here, j)
            if self.policy == "maaso":
                return (len(inst.queue), inst.here / inst.slots, j)
            predicted = self.predicted(i, j)
            return (0, inst.full, inst.here / inst.slots, j) if predicted <= due else (1, predicted, 0, j)

        return min(able, key=key_of, default=-1)

    def draw(self, i: int, deck: list[int]) -> int:
        """Random: draw instances without putting them back until one may be sent the request."""
        for k in range(len(deck)):
            there = k + random_turn(self.seed, i, k, len(deck) - k)
            deck[k], deck[there] = deck[there], deck[k]
            if self.may(i, deck[k]):
                return deck[k]
        return -1

    def follow(self, i: int, mine: list[int]) -> int:
        """Planned shares: the kind furthest behind, else the class's other kinds, else any instance."""
        shares, k = self.shares, int(self.requests.klass[i])
        assert shares is not None
        if k >= 0:
            planned = self.planned[int(min(self.now / shares.bin_s, len(shares.weight) - 1)), k].tolist()
            refused = len(planned) - 1
            if any(planned):
                credit = self.credit.setdefault(k, [0.0] * len(planned))
                for q, w in enumerate(planned):
                    credit[q] += w
                open_ = [q for q, w in enumerate(planned) if w > 0]
                turn = max(open_, key=lambda q: (credit[q], -q))
                credit[turn] -= 1.0
                if turn == refused:
                    j = self.least_loaded(i, mine)
                    if j < 0 or len(self.instances[j].active) >= self.instances[j].limit:
                        return -1
                    credit[turn] += 1.0  # a slot that no request waits for
                    return j
                others = sorted((q for q in open_ if q not in (turn, refused)), key=lambda q: (-credit[q], q))
                for q in [turn, *others]:
                    j = self.least_loaded(i, [j for j in mine if shares.kind[j] == q])
                    if j >= 0:
                        return j
        return self.least_loaded(i, mine)

    def limit(self, inst: _Instance) -> None:
        """Ask an instance's controller for its batch limit."""
        controller = self.controllers[inst.index]
        if controller is None:
            return
        decoding = sum(not s.prefilling for s in inst.active)
        inst.limit = min(inst.slots, max(1, controller.step(StepObservation(
            waiting=len(inst.queue) + len(inst.active) - decoding, decoding=decoding,
            mean_input_tokens=inst.prompts / max(inst.came, 1), mean_output_tokens=inst.outputs / max(inst.came, 1),
            decode_latency_s=1.0 / inst.rate if decoding else None, decode_batch=float(decoding) if decoding else None,
        ))))  # fmt: skip

    def fill(self, inst: _Instance) -> None:
        """Put waiting requests into free slots."""
        if self.urgent_first:
            inst.queue.sort(key=lambda k: (self.latest(k, inst.index), k))
        while inst.queue and len(inst.active) < inst.limit:
            i = inst.queue.pop(0)
            prefill, output = self.prefill(i, inst.index), float(self.requests.output_tokens[i])
            inst.active.append(_Slot(i, prefill, output, prefill > 0))
            self.start[i] = self.now
            if prefill <= 0:
                self.first[i] = self.now
            self.promised[i] = self.now + prefill + output / inst.rate <= self.requests.due_s[i]

    def step(self, until: float) -> bool:
        """The next event of any instance up to a time, or that time."""
        wait, kind, k, inst = min(
            ((*i.next_event(), i) for i in self.instances), key=lambda e: e[:2], default=(math.inf, 1, -1, None)
        )
        if self.now + wait > until or inst is None or math.isinf(wait):
            if not math.isinf(until):
                for other in self.instances:
                    other.pass_time(until - self.now)
                self.now = until
            return False
        for other in self.instances:
            other.pass_time(wait)
        self.now += wait
        slot = inst.active[k]
        if kind == 0:
            slot.prefill_s, slot.prefilling = 0.0, False
            self.first[slot.request] = self.now
        else:
            self.finish[slot.request] = self.now
            del inst.active[k]
            self.limit(inst)
            self.fill(inst)
        return True

    def run(self) -> Outcomes:
        for i, arrival in enumerate(self.requests.arrival_s.tolist()):
            while self.step(arrival):
                pass
            j = self.choose(i)
            if j < 0:
                continue
            inst = self.instances[j]
            self.instance[i] = j
            inst.queue.append(i)
            inst.came += 1
            inst.prompts += int(self.requests.prompt_tokens[i])
            inst.outputs += int(self.requests.output_tokens[i])
            self.limit(inst)
            self.fill(inst)
        while self.step(math.inf):
            pass
        busy = np.array([x.busy_s for x in self.instances])
        return Outcomes(self.instance, self.start, self.first, self.finish, self.promised, busy)


def random_turn(seed: int, request: int, draw: int, count: int) -> int:
    """Which of `count` instances a draw of policy ``random`` is: a hash of seed, request and draw (splitmix64)."""
    z = (seed * 0xD1342543DE82EF95 + (request + 1) * 0x9E3779B97F4A7C15 + draw * 0xDA942042E4DD58B5) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) % count


def simulate_slowly(
    requests: Requests, cluster: Cluster, policy: Policy = "shortest_queue", *, speed: Speed = "load",
    overflow_protection: bool = True, queue: Queue = "fifo", shares: Shares | None = None, seed: int = 0,
    controllers: Sequence[Controller | None] | None = None,
) -> Outcomes:  # fmt: skip
    """The results of `cluster.simulate`, computed some thousand times as slowly.

    Args:
        requests, cluster, policy, speed, overflow_protection, queue, shares, seed: as there.
        controllers: controllers of the instances; None: the batch limit is the slots. Overflow predictions take the
            limit of the moment, so that with a controller an admitted request may miss its deadline.

    Raises:
        InputError: as there.
    """
    validate(requests, cluster, policy, speed, overflow_protection, queue, shares)
    return _Simulation(
        requests, cluster, policy, speed, overflow_protection, queue, shares, seed, controllers
    ).run()  # fmt: skip
