"""Inputs and results of a simulation, as arrays: requests, a cluster of instances, outcomes.

An instance has W virtual slots (MaaSO §V-A): a request waits in its instance's queue, first come first served, until
one is free, is prefilled for ``prefill_s + prefill_s_per_token·prompt`` seconds, after which its first token is out,
and then decodes all its output tokens (MS(2)). All requests in slots decode at ``tokens_per_s[w − 1]``, w of them being
there, so that the speed of every one changes with every admission and completion (``speed="load"``); or always at the
rate of the full batch (``speed="worst_case"``), MaaSO's assumption.

Policies choose an instance among the instances of the request's model and sub-cluster that are available:

* ``shortest_queue``: fewest requests waiting and in slots. ``least_load``: fewest for each slot.
* ``round_robin``: in turn, by model and sub-cluster. ``random``: evenly.
* ``maaso``: the three-step distributor (MaaSO §IV-F): its sub-cluster, there the instances whose full-batch speed meets
  the deadline without waiting, of these the one with fewest waiting, then with fewest in slots for each slot. None: it
  is refused.
* ``best_fit``: the slowest instance that is predicted to meet the deadline; where none is, the first to finish.
* ``planned_shares``: the kind of instance whose planned share of the request's class is furthest behind (deficit round
  robin), there the least loaded; overflow goes to the class's other kinds, then to any instance.

With overflow protection an instance on which a timeout is predicted cannot be chosen, and a request that finds no other
is refused. The prediction is the exact start in the queue plus prefill plus decoding at the full-batch rate, hence
never too early where speed falls with load: admitted requests then meet their deadlines. With ``queue="deadline"`` an
instance serves the one who must start first, and admits a request if then none in its queue is late: those with time
wait for those without, as in plans that let groups of requests wait apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from optmodels.arrays import Array, Ints, Mask
from optmodels.errors import InputError, Mistake, one_of
from optmodels.traces.types import Prefixes

if TYPE_CHECKING:
    from optmodels.simulation.engine import SlotState

Policy = Literal[
    "shortest_queue", "least_load", "round_robin", "random", "maaso", "best_fit", "planned_shares"
]  # fmt: skip
Speed = Literal["worst_case", "load"]
Queue = Literal["fifo", "deadline"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
SPEEDS: tuple[Speed, ...] = get_args(Speed)
QUEUES: tuple[Queue, ...] = get_args(Queue)
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Requests:
    """Requests in the order of their arrival.

    Attributes:
        arrival_s: (n,) ascending.
        prompt_tokens, output_tokens: (n,).
        model: (n,) code, the cluster's.
        deadline_s: (n,) seconds after arrival by which the last token is due; infinity: none.
        group: (n,) sub-cluster it must go to; −1: any.
        klass: (n,) class that planned shares and summaries go by; −1: none.
        expected_output_tokens: (n,) what dispatchers of engines know of the output; slots are given by the true ones.
        ttft_limit_s: (n,) seconds after arrival by which the first token is due; infinity: none. Dispatchers of slots
            do not go by it.
        prefixes: content blocks of the prompts, which engines share; None: nothing is shared.
    """

    arrival_s: Array
    prompt_tokens: Ints
    output_tokens: Ints
    model: Ints
    deadline_s: Array
    group: Ints
    klass: Ints
    expected_output_tokens: Ints
    ttft_limit_s: Array
    prefixes: Prefixes | None = None

    @classmethod
    def of(
        cls, arrival_s: Any, prompt_tokens: Any, output_tokens: Any, *, model: Any = 0, deadline_s: Any = np.inf,
        group: Any = -1, klass: Any = -1, expected_output_tokens: Any = None,
        ttft_limit_s: Any = np.inf, prefixes: Prefixes | None = None,
    ) -> Requests:  # fmt: skip
        """Requests from anything array-like; scalars stand for all."""
        arrival = np.ascontiguousarray(arrival_s, dtype=np.float64)

        def column(values: Any, kind: type) -> Any:
            return np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype=kind), arrival.shape))

        expected = output_tokens if expected_output_tokens is None else expected_output_tokens
        return cls(
            arrival, column(prompt_tokens, np.int64), column(output_tokens, np.int64), column(model, np.int64),
            column(deadline_s, np.float64), column(group, np.int64), column(klass, np.int64),
            column(expected, np.int64), column(ttft_limit_s, np.float64), prefixes,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def due_s(self) -> Array:
        """(n,) absolute deadlines; `TOLERANCE` forgives rounding."""
        return self.arrival_s + self.deadline_s * (1 + TOLERANCE)

    def take(self, chosen: Any) -> Requests:
        """Some of the requests: an index or mask that keeps their order."""
        values: dict[str, Any] = {k: getattr(self, k) for k in self.__dataclass_fields__ if k != "prefixes"}
        prefixes = None if self.prefixes is None else self.prefixes.take(np.arange(len(self))[chosen])
        return Requests(**{k: np.ascontiguousarray(v[chosen]) for k, v in values.items()}, prefixes=prefixes)


@dataclass(frozen=True)
class Cluster:
    """Instances that run.

    Attributes:
        names: (I,) of the instances.
        model: (I,) code of the model each serves, 0 ≤ code.
        slots: (I,) W ≥ 1, the inference batch size.
        tokens_per_s: (I, ≥ max W) decode tokens/s of each request while 1, 2, … W are in slots; beyond W unused.
        prefill_s: (I,) fixed part of prefill.
        prefill_s_per_token: (I,) and for every prompt token.
        group: (I,) sub-cluster; −1: open to all requests.
        available_from_s: (I,) before it nothing is sent there.
        gpus: (I,) for the summary.
    """

    names: tuple[str, ...]
    model: Ints
    slots: Ints
    tokens_per_s: Array
    prefill_s: Array
    prefill_s_per_token: Array
    group: Ints
    available_from_s: Array
    gpus: Ints

    @classmethod
    def of(
        cls, slots: Any, tokens_per_s: Any, *, names: Any = None, model: Any = 0, prefill_s: Any = 0.0,
        prefill_s_per_token: Any = 0.0, group: Any = -1, available_from_s: Any = 0.0, gpus: Any = 1,
    ) -> Cluster:  # fmt: skip
        """A cluster from anything array-like; scalars stand for all instances."""
        w = np.ascontiguousarray(slots, dtype=np.int64)

        def column(values: Any, kind: type) -> Any:
            return np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype=kind), w.shape))

        if names is None:
            names = (f"instance {i}" for i in range(len(w)))
        return cls(
            tuple(names), column(model, np.int64), w,
            np.ascontiguousarray(tokens_per_s, dtype=np.float64), column(prefill_s, np.float64),
            column(prefill_s_per_token, np.float64), column(group, np.int64), column(available_from_s, np.float64),
            column(gpus, np.int64),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.slots)

    def take(self, chosen: Any) -> Cluster:
        """Some of the instances, by index; one may be taken several times."""
        chosen = np.asarray(chosen, dtype=np.int64)
        rest = (np.ascontiguousarray(getattr(self, k)[chosen]) for k in list(self.__dataclass_fields__)[1:])
        return Cluster(tuple(self.names[i] for i in chosen), *rest)

    @property
    def full_tokens_per_s(self) -> Array:
        """(I,) decode tokens/s of each request with all slots taken, F(W)."""
        return self.tokens_per_s[np.arange(len(self)), self.slots - 1]


@dataclass(frozen=True)
class Shares:
    """Planned shares of every class on every kind of instance, by time bin.

    Attributes:
        kind: (I,) code of each instance, 0 ≤ code < J.
        weight: (bins, classes, J) share of the class's arrivals in that bin; a row sums to at most 1.
        bin_s: length of a bin; the last one lasts for ever.
        refuse_rest: the rest to 1 of a row is refused, as planned, unless a slot is free; else shares are relative.
    """

    kind: Ints
    weight: Array
    bin_s: float = np.inf
    refuse_rest: bool = False

    @property
    def planned(self) -> Array:
        """(bins, classes, J + 1) what becomes of a class's arrivals, last their refusal; all 0 where nothing is."""
        total = self.weight.sum(axis=2, keepdims=True)
        rest = np.maximum(0.0, 1.0 - total) * self.refuse_rest
        return np.concatenate((self.weight, rest), axis=2) / np.where(total + rest > 0, total + rest, 1.0)


@dataclass(frozen=True)
class Outcomes:
    """The outcome of every request.

    Attributes:
        instance: (n,) index; −1: refused.
        start_s, first_token_s, finish_s: (n,) absolute; infinity where refused.
        promised: (n,) would meet its deadline if nothing more were admitted after its start.
        busy_s: (I,) time with at least one request in a slot.
        gaps: (models, B + 1) counted times between tokens; None: not counted.
    """

    instance: Ints
    start_s: Array
    first_token_s: Array
    finish_s: Array
    promised: Mask
    busy_s: Array
    gaps: Ints | None = None

    @property
    def served(self) -> Mask:
        """Not refused."""
        return self.instance >= 0

    def met(self, requests: Requests) -> Mask:
        """(n,) whether it was served within its deadline and its limit on the first token."""
        first_s = requests.arrival_s + requests.ttft_limit_s * (1 + TOLERANCE)
        return self.served & (self.finish_s <= requests.due_s) & (self.first_token_s <= first_s)


_NO_SHARES = Shares(np.zeros(0, np.int64), np.zeros((1, 0, 0)))


def simulate(
    requests: Requests, cluster: Cluster, policy: Policy = "shortest_queue", *, speed: Speed = "load",
    overflow_protection: bool = True, queue: Queue = "fifo", shares: Shares | None = None, seed: int = 0,
) -> Outcomes:  # fmt: skip
    """Send every request to an instance and serve it.

    Deterministic; the seed matters to ``random`` only. A completion and an arrival at the same time: completion first.

    Args:
        requests: requests in order of arrival.
        cluster: the instances.
        policy: how an instance is chosen, see the module.
        speed: speed of decoding, see the module.
        overflow_protection: refuse where a timeout is predicted.
        queue: order in which an instance serves; ``deadline`` needs overflow protection.
        shares: shares of ``planned_shares``.
        seed: random seed of ``random``.

    Raises:
        InputError: unknown policy or speed, shares missing, arrays of the wrong shape, a slot without a rate.
    """
    validate(requests, cluster, policy, speed, overflow_protection, queue, shares)
    from optmodels.simulation import engine

    used = shares if policy == "planned_shares" and shares is not None else _NO_SHARES
    order = np.argsort(cluster.model, kind="stable")
    models = np.arange(cluster.model.max(initial=-1) + 2)
    state = _state(requests, cluster.take(order), speed, used.kind[order] if len(used.kind) else np.zeros_like(order))
    state.x["name"] = order
    planned = used.planned
    engine.run(
        state, np.searchsorted(cluster.model[order], models).astype(np.int64), POLICIES.index(policy),
        (1 + QUEUES.index(queue)) * overflow_protection, seed,
        np.full((len(models), requests.group.max(initial=-1) + 2), -1, np.int64), np.arange(len(order)),
        planned, float(used.bin_s), np.zeros(planned.shape[1:]),
    )  # fmt: skip
    busy_s = np.zeros(len(cluster))
    busy_s[order] = state.x["busy"]
    return Outcomes(state.instance, state.start, state.first, state.finish, state.promised, busy_s)


def _state(requests: Requests, cluster: Cluster, speed: Speed, kind: Ints) -> SlotState:
    """Initial state of the compiled loop."""
    from optmodels.simulation import engine

    n, full, slots = len(requests), cluster.full_tokens_per_s, cluster.slots
    rates = cluster.tokens_per_s if speed == "load" else np.repeat(full[:, None], cluster.tokens_per_s.shape[1], axis=1)
    x = np.zeros(len(cluster), engine.INSTANCE)
    for name, values in (
        ("slots", slots), ("worst_s", 1.0 / full), ("prefill_s", cluster.prefill_s), ("group", cluster.group),
        ("prefill_s_per_token", cluster.prefill_s_per_token), ("available_from", cluster.available_from_s),
        ("base", np.cumsum(slots) - slots), ("ready", -np.inf),
    ):  # fmt: skip
        x[name] = values
    room = int(slots.sum())

    def given(values: Any, kind: type) -> Any:
        return np.require(values, kind, ["C", "W"])  # one compiled version for whatever it is given

    def told(kind: type) -> Any:
        return np.empty(n, kind)

    return engine.SlotState(
        arrival=given(requests.arrival_s, float), due=given(requests.due_s, float),
        prompt=given(requests.prompt_tokens, int), output=given(requests.output_tokens, int),
        model=given(requests.model, int), group=given(requests.group, int), klass=given(requests.klass, int),
        following=told(int), latest=told(float), instance=told(int), start=told(float), first=told(float),
        finish=told(float), promised=told(bool), x=x, next_event=np.full(len(x), np.inf),
        rank=np.zeros(len(x), engine.RANK), kind=given(kind, int), rates=given(rates, float),
        done=np.zeros(room, engine.ENTRY), joins=np.zeros(room, engine.ENTRY), release=np.zeros(room),
    )  # fmt: skip


def validate(
    requests: Requests, cluster: Cluster, policy: str, speed: str, overflow_protection: bool, queue: str,
    shares: Shares | None,
) -> None:  # fmt: skip
    """Refuse what cannot be simulated.

    Raises:
        InputError: the first thing wrong.
    """

    def wrong(path: str, value: object, expected: str) -> InputError:
        return InputError(Mistake(None, path, value, expected))

    one_of("policy", policy, POLICIES)
    one_of("speed", speed, SPEEDS)
    one_of("queue", queue, QUEUES)
    if queue == "deadline" and not overflow_protection:
        raise wrong("queue", queue, "fifo, without overflow protection")
    if policy == "planned_shares":
        if shares is None:
            raise wrong("shares", None, "planned shares, which this policy follows")
        if shares.kind.shape != cluster.slots.shape or shares.weight.ndim != 3 or not len(shares.weight):
            raise wrong("shares", shares.weight.shape, "a kind of every instance, weights of (bin, class, kind)")
        if len(cluster) and not 0 <= shares.kind.min() <= shares.kind.max() < shares.weight.shape[2]:
            raise wrong("shares.kind", shares.kind, f"codes from 0 to {shares.weight.shape[2] - 1}")
        if not (np.isfinite(shares.weight).all() and (shares.weight >= 0).all() and shares.bin_s > 0):
            raise wrong("shares", shares.weight, "finite weights ≥ 0 and a bin > 0 s")
        if len(requests) and requests.klass.max() >= shares.weight.shape[1]:
            raise wrong("requests.klass", int(requests.klass.max()), f"below {shares.weight.shape[1]} classes")
    if len(cluster):
        if cluster.slots.min() < 1 or cluster.slots.max() > cluster.tokens_per_s.shape[1]:
            raise wrong("cluster.slots", cluster.slots, f"1 to {cluster.tokens_per_s.shape[1]}, as rates are given")
        if cluster.model.min() < 0:
            raise wrong("cluster.model", int(cluster.model.min()), "codes ≥ 0")
        used = np.arange(cluster.tokens_per_s.shape[1]) < cluster.slots[:, None]
        if not ((cluster.tokens_per_s > 0) & np.isfinite(cluster.tokens_per_s))[used].all():
            raise wrong("cluster.tokens_per_s", cluster.tokens_per_s[used].min(), "finite rates > 0 for every slot")
        prefill = np.minimum(cluster.prefill_s, cluster.prefill_s_per_token)
        if not (prefill >= 0).all() or not np.isfinite(cluster.prefill_s + cluster.prefill_s_per_token).all():
            raise wrong("cluster.prefill_s", float(prefill.min()), "finite seconds ≥ 0")
    if len(requests):
        if not np.isfinite(requests.arrival_s).all() or (np.diff(requests.arrival_s) < 0).any():
            raise wrong("requests.arrival_s", requests.arrival_s, "finite, ascending times")
        if min(requests.prompt_tokens.min(), requests.output_tokens.min()) < 0:
            raise wrong("requests", "negative tokens", "token counts ≥ 0")
        if np.isnan(requests.deadline_s).any():
            raise wrong("requests.deadline_s", float("nan"), "seconds, or infinity for none")
