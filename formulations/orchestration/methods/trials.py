"""The simulator as the judge of candidate deployments (MaaSO §IV-D): like instances on the requests of a cell.

A *cell* holds the requests of one model and one side of the SLO split (strict, relaxed, or both). Cells share neither
requests nor instances, so the serving score MS(6) of a deployment is the sum over its cells, and every trial (cell,
configuration, number of instances) is simulated once and remembered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from formulations.orchestration.clock import Clock
from formulations.orchestration.flow import weights
from formulations.orchestration.methods.slots import pooled
from formulations.orchestration.points import OrchestrationTables
from optmodels.arrays import Array, Ints, Mask
from optmodels.formulation import Options
from optmodels.simulation.cluster import Cluster, Outcomes, Policy, Requests, Speed, simulate

Goal = tuple[float, float, float]  # weights of S, T and L
BOTH, STRICT, RELAXED = -1, 0, 1
MOST_SIMULATED, MOST_DRAWN = 60_000, 500_000
MOST_STEPS = 512  # GPUs of a type in the dynamic programme


@dataclass(frozen=True)
class Gains:
    """Contributions to S, T and L of MS(6–8) by requests that meet their deadline, and the number of others."""

    satisfaction: float
    throughput: float
    latency: float
    missed: int

    def score(self, goal: Goal) -> float:
        """MS(6)."""
        return goal[0] * self.satisfaction + goal[1] * self.throughput + goal[2] * self.latency


@dataclass(frozen=True)
class Sample:
    """The requests that deployments are tried on: each stands for `scale` of them, each GPU for as many.

    Attributes:
        requests: their class as `klass`; no group.
        slo_factor: (n,) θ.
        scale: 1, or more where requests or GPUs are too many to be simulated one by one.
    """

    requests: Requests
    slo_factor: Array
    scale: int


def scale(t: OrchestrationTables) -> int:
    """How many requests, and GPUs, one of a sample stands for."""
    gpus = int(t.case.free_gpus.max(initial=0))
    return max(1, -(-gpus // MOST_STEPS), min(-(-int(t.classes.count.sum()) // MOST_SIMULATED), gpus // 32))


def sample(t: OrchestrationTables, seed: int = 0) -> Sample:
    """The trace's requests, or Poisson arrivals of the classes; thinned evenly where they are too many.

    Where there are too many for the GPUs, thinned or not, `MOST_DRAWN` stand for what fills these anyway.
    """
    thinned, trace = scale(t), t.case.trace
    if trace is not None:
        assert t.class_of is not None and t.deadline_s is not None
        chosen = np.arange(0, len(trace), thinned)
        requests = Requests.of(
            trace.arrival_s[chosen], trace.prompt_tokens[chosen], trace.output_tokens[chosen],
            model=t.servable(t.case.request_model, trace.prompt_tokens + trace.output_tokens)[chosen],
            deadline_s=t.deadline_s[chosen], klass=t.class_of[chosen], ttft_limit_s=t.case.ttft_limit_s,
        )  # fmt: skip
        return Sample(requests, t.case.slo_factor[chosen], thinned)
    rng = np.random.default_rng(seed)
    q = t.classes
    number = rng.poisson(q.arrivals * min(1.0 / thinned, MOST_DRAWN / max(float(q.count.sum()), 1.0)))
    k, b = np.nonzero(number)
    times = number[k, b]
    k, b = np.repeat(k, times), np.repeat(b, times)
    arrival = (b + rng.random(len(b))) * t.bin_s
    order = np.argsort(arrival, kind="stable")
    k, arrival = k[order], arrival[order]
    requests = Requests.of(
        arrival, np.maximum(1, np.round(q.prompt_tokens[k])), np.maximum(1, np.round(q.output_tokens[k])),
        model=t.servable(q.model, q.prompt_tokens + q.output_tokens)[k], deadline_s=q.deadline_s[k], klass=k,
        ttft_limit_s=t.case.ttft_limit_s,
    )  # fmt: skip
    return Sample(requests, q.slo_factor[k], thinned)


def split(slo_factor: Array) -> float:
    """The θ up to which a request is strict: the cut into two groups of least variance (Otsu; k-means for k = 2)."""
    value = np.sort(slo_factor)
    n = len(value)
    if n < 2 or value[0] == value[-1]:
        return float(value[-1]) if n else 0.0
    total = np.cumsum(value)
    low = np.arange(1, n)
    between = (total[:-1] / low - (total[-1] - total[:-1]) / (n - low)) ** 2 * low * (n - low)
    between[value[1:] == value[:-1]] = -1.0
    return float(value[between.argmax()])


class Trials:
    """Trials on one sample under one policy; the one who makes them stops when `clock` is over."""

    def __init__(
        self, t: OrchestrationTables, drawn: Sample, policy: Policy, clock: Clock | None = None, *,
        protect: bool = True, speed: Speed = "load",
    ) -> None:  # fmt: skip
        self.t, self.drawn, self.clock = t, drawn, clock or Clock.of(Options())
        self.policy, self.protect, self.speed = policy, protect, speed
        w, n = weights(t), len(drawn.requests)
        k = drawn.requests.klass
        self.satisfaction = w.satisfaction[k] * drawn.scale
        per_token = (w.throughput / np.maximum(t.classes.output_tokens, 1e-300))[k]
        self.throughput = per_token * drawn.requests.output_tokens * drawn.scale
        self.latency, self.waiting = w.latency * drawn.scale, w.waiting * drawn.scale
        self.threshold = split(drawn.slo_factor)
        self.side = np.where(drawn.slo_factor <= self.threshold, STRICT, RELAXED)
        self.left = np.ones(n, dtype=bool)
        self.simulated = 0
        self._members: dict[tuple[int, int], Ints] = {}
        self._requests: dict[tuple[int, int], Requests] = {}
        self._known: dict[tuple[int, int, int, int], Gains] = {}

    def keep(self, left: Mask) -> None:
        """Go on with some of the requests: what another GPU type's instances do not serve."""
        self.left = left
        self._members.clear()
        self._requests.clear()
        self._known.clear()

    def members(self, model: int, side: int) -> Ints:
        """Requests of a cell."""
        if (model, side) not in self._members:
            mine = self.left & (self.drawn.requests.model == model)
            self._members[model, side] = np.flatnonzero(mine if side == BOTH else mine & (self.side == side))
        return self._members[model, side]

    def requests(self, model: int, side: int) -> Requests:
        """The same as the simulator takes them."""
        if (model, side) not in self._requests:
            r = self.drawn.requests.take(self.members(model, side))
            self._requests[model, side] = Requests.of(
                r.arrival_s, r.prompt_tokens, r.output_tokens, deadline_s=r.deadline_s, klass=r.klass,
                ttft_limit_s=r.ttft_limit_s,
            )  # fmt: skip
        return self._requests[model, side]

    def estimates(self, c: int, counts: Ints, side: int) -> list[Gains]:
        """Gains of this many instances as one pool of slots; the list ends where more would gain nothing."""
        x = self.t.configurations[c]
        r, mine = self.requests(x.model, side), self.members(x.model, side)
        if not len(r) or not len(counts):
            return []
        prefill = x.prefill_s_per_token * r.prompt_tokens
        wait = r.deadline_s - prefill - r.output_tokens / x.worst_rate
        latest = r.arrival_s + np.minimum(wait, r.ttft_limit_s - prefill)
        able = latest >= r.arrival_s
        found = pooled(
            r.arrival_s[able], prefill[able], r.output_tokens[able], latest[able], self.satisfaction[mine][able],
            self.throughput[mine][able], self.latency, self.waiting, x.tokens_per_s, counts,
        )  # fmt: skip
        self.simulated += int(able.sum()) * len(found)
        return [Gains(s, t, late, len(r) - int(served)) for s, t, late, served in found.tolist()]

    def cluster(self, c: int, count: int) -> Cluster:
        """`count` instances of a configuration."""
        x = self.t.configurations[c]
        return Cluster.of(
            np.full(count, x.slots), np.tile(x.tokens_per_s, (count, 1)), prefill_s_per_token=x.prefill_s_per_token,
            gpus=x.gpus,
        )  # fmt: skip

    def run(self, c: int, count: int, side: int) -> tuple[Outcomes, Mask]:
        """Simulate: outcomes, and which of the cell's requests were in time."""
        r = self.requests(self.t.configurations[c].model, side)
        self.simulated += len(r)
        o = simulate(r, self.cluster(c, count), self.policy, speed=self.speed, overflow_protection=self.protect)
        return o, o.met(r)

    def gains(self, c: int, count: int, side: int) -> Gains:
        """Gain of `count` instances of configuration c from the cell."""
        model = self.t.configurations[c].model
        key = (model, side, c, count)
        if key not in self._known:
            o, met = self.run(c, count, side)
            mine = self.members(model, side)
            r = self.requests(model, side)
            first = o.first_token_s[met] - r.arrival_s[met]
            chosen = mine[met]
            self._known[key] = Gains(
                float(self.satisfaction[chosen].sum()), float(self.throughput[chosen].sum()),
                float(self.latency * len(chosen) - self.waiting * first.sum()), len(mine) - len(chosen),
            )  # fmt: skip
        return self._known[key]


def numbers(most: int) -> Ints:
    """1, 2, … `most`; beyond some 25 in steps of 4 %."""
    every = np.unique(np.round(np.geomspace(1, max(most, 1), 1 + int(np.log(max(most, 1)) / np.log(1.04)))))
    return np.unique(np.concatenate((np.arange(1, min(most, 25) + 1), every[every <= most]))).astype(np.int64)
