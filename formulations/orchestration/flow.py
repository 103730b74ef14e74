"""Requests on instances over time: the column form as arrays, its best assignment for given instances, its metrics.

For class k on configuration c, both of one model, with d_kc seconds of service and w_kc ≥ 0 seconds of wait allowed, in
bins t of Δ seconds:

    x_kct  requests that start,   Y_kct  requests waiting for c at the end of bin t,
    m_kct = x_kct + Y_kct − Y_kc,t−1 ≥ 0  requests admitted: they arrive in t and are meant for c.

Each request is meant for one configuration from its arrival on, so first come, first served within (k, c) is optimal
and a deadline is kept if and only if whoever waited at t − w has started by t:  M(t − w) ≤ X(t) in cumulative terms.
Starts are spread over their bin, so a request keeps a slot busy for the share `busy_shares(d)` of each bin after it.

Only a share φ_kc of a class can be in time on c where its requests differ in what they are allowed per token. Those
that can are the ones with the largest allowances, so shares are nested: of the arrivals at most φ may be meant for
configurations whose share is φ or less.

That is the *exact* form, for given instances. To choose them, the *pooled* form keeps a few stocks for each class. With
configurations in the order of their shares, level l is the first few of them, φ_l and w_l their largest share
and wait:

    I_klt ≤ I_kl,t−1 + φ_l·arrivals − Σ_{c in l} x_kct (the rest is refused),  I_klt ≤ φ_l·(arrivals of the last w_l s).

It has a fraction of the rows, and relaxes the exact form (Y summed over the level is such an I), so its bound holds for
every plan. The last level holds all configurations.

This module states the matrix in numpy for speed; `formulations/orchestration/model.py` states the pooled form in Pyomo,
family by family, and a test holds the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from formulations.orchestration.packing import Room, rooms
from formulations.orchestration.place import running_counts
from formulations.orchestration.points import OrchestrationTables
from optmodels.errors import SolverError
from optmodels.solver.compile import Compiled
from optmodels.solver.highs import Report, Settings, solve_compiled

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SHARE_STEP = 0.01  # configurations whose shares and waits differ by less are in one level of the pooled form
WAIT_STEP_BINS = 0.1
NO_WAIT_BINS = 0.02  # a wait shorter than this share of a bin is none


@dataclass(frozen=True)
class Assignment:
    """Instances of every configuration and the requests meant for them; P pairs (class, configuration), T bins.

    Attributes:
        counts: (C,) instances.
        request_class, configuration: (P,).
        admitted, started, waiting: (P, T); `waiting` at the end of the bin.
    """

    counts: Ints
    request_class: Ints
    configuration: Ints
    admitted: Array
    started: Array
    waiting: Array


@dataclass(frozen=True)
class Metrics:
    """MS(6–8) of an assignment."""

    satisfaction: float
    throughput: float
    latency: float
    changes: float
    shortfall_penalty: float
    total: float
    in_time: float
    tokens_per_s: float
    mean_latency_s: float
    slot_use: float
    started: int
    stopped: int
    shortfalls: dict[str, float] = field(default_factory=dict)


def busy_shares(service_s: float, bin_s: float) -> Array:
    """Mean slots kept busy in the bin of the start and each one after it, by one start at a uniform time of its bin."""
    z = bin_s * np.arange(int(np.ceil(service_s / bin_s - 1e-12)) + 2, dtype=np.float64)

    def started_before(v: Array) -> Array:  # mean of max(v − u, 0) over u uniform in the bin
        v = np.maximum(v, 0.0)
        mean: Array = np.where(v < bin_s, v**2 / (2 * bin_s), v - bin_s / 2)
        return mean

    until = started_before(z) - started_before(z - service_s)
    shares: Array = np.diff(until) / bin_s
    return shares[: np.flatnonzero(shares > 1e-12).max(initial=0) + 1]


@dataclass(frozen=True)
class Weights:
    """What a request in time adds to each metric, by class; MS(6) with its normalisers.

    S = Σ satisfaction·served; T = Σ throughput·served, at most 1; L = Σ latency·served − waiting·(seconds waited).
    A request that is not served in time adds nothing to any of them.
    """

    satisfaction: Array  # (K,)
    throughput: Array  # (K,)
    first_token: Array  # (K, C) share of L lost to prefill
    latency: float
    waiting: float  # per second
    capped: bool  # T could exceed 1


def weights(t: OrchestrationTables) -> Weights:
    """The linear pieces of MS(6–8)."""
    q, o = t.classes, t.case.problem.objective
    N = float(q.count.sum()) or 1.0
    offered = float(q.count @ q.output_tokens)
    threshold = o.throughput_threshold_tokens_per_s
    full = offered if threshold is None else threshold * t.horizon_s
    longest = latency_threshold(t)
    prefill = np.array([[x.prefill_s_per_token * s for x in t.configurations] for s in q.prompt_tokens])
    return Weights(
        satisfaction=q.weight / (float(q.count @ q.weight) or 1.0),
        throughput=q.output_tokens / (full or 1.0),
        first_token=prefill.reshape(len(q), len(t.configurations)) / (longest * N),
        latency=1.0 / N,
        waiting=1.0 / (longest * N),
        capped=offered > full * (1 + 1e-12),
    )


def latency_threshold(t: OrchestrationTables) -> float:
    """First-token latency that counts as 0, seconds: given, or the longest any admissible pair allows."""
    given = t.case.problem.objective.latency_threshold_s
    if given is not None:
        return given
    prefill = np.array([[x.prefill_s_per_token * s for x in t.configurations] for s in t.classes.prompt_tokens])
    longest = np.where(t.admissible, t.wait_s + prefill.reshape(t.wait_s.shape), 0.0).max(initial=0.0)
    return float(longest) or 1.0


@dataclass(frozen=True)
class Columns:
    """Where the variables of the flow model are."""

    n: slice  # instances
    y: slice  # packing patterns
    up: slice  # instances started
    down: slice  # instances stopped
    short: slice  # missed attainment by model
    capped: slice  # T, where it could exceed 1
    g: slice  # GPUs of each model: integer, to branch on
    x: slice  # starts, pair-major
    Y: slice  # waiting, by waiting pair; pooled: by level
    total: int


@dataclass(frozen=True)
class Level:
    """A stock of the pooled form: the pairs of class k that allow the shortest waits.

    Attributes:
        k: class.
        pairs: indices into the model's pairs.
        share, wait_s: the largest of theirs.
        whole: all pairs of the class.
    """

    k: int
    pairs: Ints
    share: float
    wait_s: float
    whole: bool


def _ends(share: Array, wait_bins: Array) -> list[int]:
    """Where levels end: before a share or a wait noticeably above that of the level's first configuration."""
    ends, first = [], 0
    for i in range(1, len(share)):
        if share[i] > share[first] + SHARE_STEP or wait_bins[i] > wait_bins[first] + WAIT_STEP_BINS:
            ends.append(i)
            first = i
    return [*ends, len(share)]


class _Names:
    """Variable names made when somebody asks: a row of a report needs one, not a million."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return self.columns.total

    def __getitem__(self, i: int) -> Any:
        for name, part in vars(self.columns).items():
            if isinstance(part, slice) and part.start <= i < part.stop:
                return type("Column", (), {"name": f"{name}[{i - part.start}]"})()
        raise IndexError(i)


class FlowModel:
    """The column form of `tables` as arrays: pooled, to choose instances; with `counts` of them exact, an LP."""

    def __init__(self, t: OrchestrationTables, counts: Ints | None = None, *, pooled: bool | None = None) -> None:
        self.t, self.counts = t, counts
        self.pooled = counts is None if pooled is None else pooled
        allowed = t.admissible if counts is None else t.admissible & (np.asarray(counts) > 0)[None, :]
        allowed = allowed & (t.classes.count > 0)[:, None]
        self.k, self.c = np.nonzero(allowed)
        self.T, self.P = t.bins, len(self.k)
        wait = t.wait_s[self.k, self.c] / t.bin_s if self.P else np.zeros(0)
        self.waits = np.flatnonzero(wait >= NO_WAIT_BINS)  # pairs with a stock
        self.wait_bins = wait[self.waits]
        self.classes, self.class_index = np.unique(self.k, return_inverse=True)
        units: list[list[int]] = [[] for _ in t.case.gpu_types]
        for x in t.configurations:
            units[x.gpu].append(x.unit)
        self.rooms = rooms(t.case, units)
        self.weights = weights(t)

    @cached_property
    def columns(self) -> Columns:
        """Where each family starts and ends."""
        p, at = self.t.case.problem, 0
        C = len(self.t.configurations)
        patterns = sum(len(r.patterns) for r in self.rooms if not r.divisible) if self.counts is None else 0
        changes = C if p.change.running and (p.change.score_per_start or p.change.score_per_stop) else 0
        sizes = {
            "n": C, "y": patterns, "up": changes, "down": changes,
            "short": len(kept_models(self.t)) if p.slo.shortfall_penalty is not None else 0,
            "capped": int(self.weights.capped), "g": len(p.models) if self.counts is None else 0,
            "x": self.P * self.T, "Y": (len(self.levels) if self.pooled else len(self.waits)) * self.T,
        }  # fmt: skip
        parts = {}
        for name, size in sizes.items():
            parts[name] = slice(at, at + size)
            at += size
        return Columns(**parts, total=at)

    def compiled(self) -> Compiled:
        """The model for the solver."""
        rows = _Rows(self.columns.total)
        lower, upper = np.zeros(self.columns.total), np.full(self.columns.total, np.inf)
        self._instances(rows, lower, upper)
        if self.pooled:
            self._balance(rows, upper)
        else:
            self._arrivals(rows)
            self._eligible(rows)
            self._deadlines(rows, upper)
        self._occupancy(rows)
        if self.counts is None:
            self._whole(rows)
        self._attainment(rows)
        integer = np.zeros(self.columns.total, dtype=bool)
        integer[self.columns.n] = integer[self.columns.y] = integer[self.columns.g] = self.counts is None
        costs = self._costs(rows, upper)
        A, low, high, names = rows.matrix()
        return Compiled(
            costs=costs, offsets=np.zeros(len(costs)), signs=-np.ones(len(costs)), A=A, row_lower=low, row_upper=high,
            lower=lower, upper=upper, integer=integer, variables=_Names(self.columns), row_names=names,  # type: ignore[arg-type]
        )  # fmt: skip

    def _instances(self, rows: _Rows, lower: Array, upper: Array) -> None:
        """GPUs by type, packing, stock, numbers of instances by model, changes."""
        t, p, cols = self.t, self.t.case.problem, self.columns
        n = np.arange(cols.n.start, cols.n.stop)
        if self.counts is not None:
            lower[cols.n] = upper[cols.n] = self.counts
        else:
            for c, x in enumerate(t.configurations):
                upper[cols.n.start + c] = self.rooms[x.gpu].gpus // x.gpus
            at = cols.y.start
            for g, room in enumerate(self.rooms):
                mine = np.flatnonzero(t.gpu_of == g) if len(n) else np.zeros(0, dtype=np.int64)
                at = self._packing(rows, room, g, mine, at)
                if room.stock is not None and len(mine):
                    rows.add(f"stock[{g}]", n[mine], t.gpus_of[mine].astype(float), high=float(room.stock))
        for m in range(cols.g.stop - cols.g.start):
            mine = np.flatnonzero(t.model_of == m)
            upper[cols.g.start + m] = float(sum(room.gpus for room in self.rooms))
            rows.add(
                f"gpus_of_model[{m}]", np.append(n[mine], cols.g.start + m), np.append(t.gpus_of[mine], -1.0), 0.0, 0.0
            )
        for m, served in enumerate(p.models):
            mine = np.flatnonzero(t.model_of == m) if len(n) else np.zeros(0, dtype=np.int64)
            low, high = served.minimum_instances, served.maximum_instances
            if low or high is not None:
                rows.add(f"instances_of_model[{m}]", n[mine], np.ones(len(mine)), float(low),
                         np.inf if high is None else float(high))  # fmt: skip
        if cols.up.start < cols.up.stop:
            running = running_counts(t)
            for c in range(len(n)):
                rows.add(f"started[{c}]", [n[c], cols.up.start + c], [1.0, -1.0], high=float(running[c]))
                rows.add(f"stopped[{c}]", [n[c], cols.down.start + c], [1.0, 1.0], low=float(running[c]))

    def _packing(self, rows: _Rows, room: Room, g: int, mine: Ints, at: int) -> int:
        """Units fit the servers of one GPU type; returns where the next type's patterns start."""
        t, n = self.t, self.columns.n.start
        unit = np.array([t.configurations[c].unit for c in mine])
        if room.divisible:
            for s in room.sizes:
                which = mine[unit >= s]
                rows.add(f"packing[{g},{s}]", n + which, t.gpus_of[which].astype(float), high=float(room.capacity[s]))
            return at
        patterns = room.patterns
        kinds = np.array([free for free, _ in patterns])
        made = np.array([p for _, p in patterns])
        columns = np.arange(at, at + len(patterns))
        for i, s in enumerate(room.sizes):
            which = mine[unit == s]
            units = np.array([t.configurations[c].units for c in which], dtype=float)
            rows.add(f"packing[{g},{s}]", np.concatenate((n + which, columns)),
                     np.concatenate((units, -made[:, i].astype(float))), high=0.0)  # fmt: skip
        for kind, count in sorted(room.servers.items()):
            which = columns[kinds == kind]
            rows.add(f"servers[{g},{kind}]", which, np.ones(len(which)), high=float(count))
        return at + len(patterns)

    def _admitted(self, pair: Ints, bin_: Ints) -> tuple[Ints, Ints, Array]:
        """Entries of m = x_t + Y_t − Y_{t−1} as (position in the arguments, column, coefficient)."""
        position = np.arange(len(pair))
        stock = np.full(self.P, -1)
        stock[self.waits] = np.arange(len(self.waits))
        has, earlier = stock[pair] >= 0, (stock[pair] >= 0) & (bin_ > 0)
        Y = self.columns.Y.start + stock[pair] * self.T + bin_
        return (
            np.concatenate((position, position[has], position[earlier])),
            np.concatenate((self.columns.x.start + pair * self.T + bin_, Y[has], Y[earlier] - 1)),
            np.concatenate((np.ones(len(pair)), np.ones(has.sum()), -np.ones(earlier.sum()))),
        )

    def _balance(self, rows: _Rows, upper: Array) -> None:
        """Pooled: Σ_{c in l} x_kct + I_klt − I_kl,t−1 ≤ φ_l·arrivals; arrivals still young enough bound x and I."""
        T, edges = self.T, np.arange(self.T + 1) * self.t.bin_s
        bins = np.arange(T)
        for i, level in enumerate(self.levels):
            stock = self.columns.Y.start + i * T + bins
            x = self.columns.x.start + level.pairs[:, None] * T + bins
            row = np.concatenate((np.tile(bins, len(level.pairs)), bins, bins[1:]))
            column = np.concatenate((x.ravel(), stock, stock[:-1]))
            value = np.concatenate((np.ones(x.size + T), -np.ones(T - 1)))
            rows.block("balance", T, row, column, value, high=level.share * self.t.classes.arrivals[level.k])
            total = self._total[level.k]
            upper[stock] = level.share * (total[1:] - np.interp(edges[1:] - level.wait_s, edges, total))
            upper[stock[-1]] = 0.0  # nobody waits at the end
        for i, (k, c) in enumerate(zip(self.k, self.c, strict=True)):
            at = self.columns.x.start + i * T
            upper[at : at + T] = self.t.share[k, c] * self._young(int(k), float(self.t.wait_s[k, c]))

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The pooled form's stocks: prefixes of each class's configurations by share, the last one whole."""
        made = []
        for k in self.classes:
            mine = np.flatnonzero(self.k == k)
            mine = mine[np.lexsort((self.t.wait_s[k, self.c[mine]], self.t.share[k, self.c[mine]]))]
            share = self.t.share[k, self.c[mine]]
            wait = np.maximum.accumulate(self.t.wait_s[k, self.c[mine]]) / self.t.bin_s
            for end in _ends(share, wait):
                c = self.c[mine[:end]]
                longest = float(self.t.wait_s[k, c].max())
                made.append(Level(int(k), np.sort(mine[:end]), float(share[end - 1]), longest, end == len(mine)))
        return tuple(made)

    @cached_property
    def _total(self) -> Array:
        """(K, T + 1) arrivals until each edge of the bins."""
        return np.hstack((np.zeros((len(self.t.classes), 1)), np.cumsum(self.t.classes.arrivals, axis=1)))

    def _young(self, k: int, wait_s: float) -> Array:
        """(T,) arrivals of class k in each bin and in the `wait_s` before it: those that may start there."""
        edges = np.arange(self.T + 1) * self.t.bin_s
        young: Array = self._total[k, 1:] - np.interp(edges[:-1] - wait_s, edges, self._total[k])
        return young

    def _eligible(self, rows: _Rows) -> None:
        """Σ m_kct over the configurations of share φ or less ≤ φ·arrivals, for every share φ < 1 met."""
        T = self.T
        for k in self.classes:
            mine = np.flatnonzero(self.k == k)
            share = self.t.share[k, self.c[mine]]
            for φ in np.unique(share[share < 1 - 1e-9]):
                pairs = mine[share <= φ]
                pair, bin_ = np.repeat(pairs, T), np.tile(np.arange(T), len(pairs))
                position, column, value = self._admitted(pair, bin_)
                rows.block("eligible", T, bin_[position], column, value, high=φ * self.t.classes.arrivals[k])

    def _arrivals(self, rows: _Rows) -> None:
        """Σ_c m_kct ≤ arrivals of the class in the bin."""
        used, index = self.classes, self.class_index
        pair, bin_ = np.repeat(np.arange(self.P), self.T), np.tile(np.arange(self.T), self.P)
        position, column, value = self._admitted(pair, bin_)
        row = index[pair[position]] * self.T + bin_[position]
        rows.block("arrivals", len(used) * self.T, row, column, value, high=self.t.classes.arrivals[used].ravel())

    def _deadlines(self, rows: _Rows, upper: Array) -> None:
        """m ≥ 0, and whoever waited at the end of s has started w later: Y_s − f·m_s ≤ Σ_{τ = s+1 … s+p} x_τ."""
        W, T = len(self.waits), self.T
        if not W:
            return
        pair, bin_ = np.repeat(self.waits, T), np.tile(np.arange(T), W)
        position, column, value = self._admitted(pair, bin_)
        rows.block("admitted", W * T, position, column, value, low=np.zeros(W * T))
        whole = np.floor(self.wait_bins + 1e-9).astype(np.int64)
        part = np.clip(self.wait_bins - whole, 0.0, 1.0)
        r, j, v = [np.arange(W * T)], [self.columns.Y.start + np.arange(W * T)], [np.ones(W * T)]
        some = part[np.repeat(np.arange(W), T)]
        r.append(position)
        j.append(column)
        v.append(-some[position] * value)
        for ahead in range(1, int(whole.max(initial=0)) + 1):
            mask = (np.repeat(whole, T) >= ahead) & (bin_ + ahead < T)
            r.append(np.flatnonzero(mask))
            j.append(self.columns.x.start + pair[mask] * T + bin_[mask] + ahead)
            v.append(-np.ones(int(mask.sum())))
        rows.block("expiry", W * T, np.concatenate(r), np.concatenate(j), np.concatenate(v), high=np.zeros(W * T))
        upper[self.columns.Y.start + np.arange(W) * T + T - 1] = 0.0  # nobody waits at the end

    def _occupancy(self, rows: _Rows) -> None:
        """Busy slots ≤ slots, of every configuration in every bin (one more than there are starts)."""
        t, T = self.t, self.T
        used, index = np.unique(self.c, return_inverse=True)
        B = T + 1
        r, j, v = [], [], []
        for i in range(self.P):
            shares = busy_shares(float(t.service_s[self.k[i], self.c[i]]), t.bin_s)
            start = np.repeat(np.arange(T), len(shares))
            at = start + np.tile(np.arange(len(shares)), T)
            keep = at < B
            r.append(index[i] * B + at[keep])
            j.append(self.columns.x.start + i * T + start[keep])
            v.append(np.tile(shares, T)[keep])
        for i, c in enumerate(used):
            r.append(i * B + np.arange(B))
            j.append(np.full(B, self.columns.n.start + c))
            v.append(np.full(B, -float(t.slots_of[c])))
        if r:
            rows.block("occupancy", len(used) * B, np.concatenate(r), np.concatenate(j), np.concatenate(v),
                       high=np.zeros(len(used) * B))  # fmt: skip

    def _whole(self, rows: _Rows) -> None:
        """Σ_t x_kct ≤ φ_kc·requests·n_c: implied by whole instances, not by the relaxation's fractions of one."""
        T, n = self.T, self.columns.n.start
        most = self.t.share[self.k, self.c] * self.t.classes.count[self.k]
        row, x = np.repeat(np.arange(self.P), T), np.arange(self.columns.x.start, self.columns.x.stop)
        rows.block(
            "whole", self.P, np.concatenate((row, np.arange(self.P))), np.concatenate((x, n + self.c)),
            np.concatenate((np.ones(len(x)), -most)), high=np.zeros(self.P),
        )  # fmt: skip

    def _attainment(self, rows: _Rows) -> None:
        """Requests of a model in time ≥ attainment_at_least of them, less the shortfall where it may be missed."""
        t, soft = self.t, self.columns.short.start < self.columns.short.stop
        for i, m in enumerate(kept_models(t)):
            least = t.case.problem.models[m].attainment_at_least or 0.0
            count = float(t.classes.count[t.classes.model == m].sum())
            if count <= 0:
                continue
            pairs = np.flatnonzero(t.classes.model[self.k] == m)
            column = (self.columns.x.start + pairs[:, None] * self.T + np.arange(self.T)).ravel()
            value = np.full(len(column), 1.0 / count)
            if soft:
                column, value = np.append(column, self.columns.short.start + i), np.append(value, 1.0)
            rows.add(f"attainment[{m}]", column, value, low=float(least))

    def _costs(self, rows: _Rows, upper: Array) -> Array:
        """MS(6), or one metric a row; maximised, so negated."""
        p, cols, w, T = self.t.case.problem, self.columns, self.weights, self.T
        satisfaction, throughput, latency = (np.zeros(cols.total) for _ in range(3))
        satisfaction[cols.x] = np.repeat(w.satisfaction[self.k], T)
        tokens = np.repeat(w.throughput[self.k], T)
        if w.capped:
            throughput[cols.capped] = 1.0
            upper[cols.capped] = 1.0
            x = np.arange(cols.x.start, cols.x.stop)
            rows.add("throughput_cap", np.append(x, cols.capped.start), np.append(tokens, -1.0), low=0.0)
        else:
            throughput[cols.x] = tokens
        latency[cols.x] = np.repeat(w.latency - w.first_token[self.k, self.c], T)
        whole = (
            np.array([level.whole for level in self.levels]) if self.pooled else np.ones(len(self.waits), dtype=bool)
        )
        latency[cols.Y] = np.repeat(np.where(whole, -w.waiting * self.t.bin_s, 0.0), T)
        o, change = p.objective, p.change
        extra = np.zeros(cols.total)
        extra[cols.up], extra[cols.down] = -change.score_per_start, -change.score_per_stop
        extra[cols.short] = -(p.slo.shortfall_penalty or 0.0)
        if o.kind == "score":
            return -(o.alpha * satisfaction + (1 - o.alpha) * (o.beta * throughput + (1 - o.beta) * latency) + extra)[
                None
            ]
        named = {"attainment": satisfaction, "throughput": throughput, "latency": latency}
        parts = [named[name] for name in o.order]
        parts[0] = parts[0] + extra
        return -np.array(parts)

    def assignment(self, x: Array) -> Assignment:
        """The assignment of a solution of the exact form."""
        assert not self.pooled
        cols, T = self.columns, self.T
        started = np.maximum(x[cols.x].reshape(self.P, T), 0.0)
        waiting = np.zeros((self.P, T))
        waiting[self.waits] = np.maximum(x[cols.Y].reshape(len(self.waits), T), 0.0)
        before = np.hstack((np.zeros((self.P, 1)), waiting[:, :-1]))
        counts = np.round(x[cols.n]).astype(np.int64)
        return Assignment(counts, self.k, self.c, np.maximum(started + waiting - before, 0.0), started, waiting)


def kept_models(t: OrchestrationTables) -> list[int]:
    """Models with an attainment to hold."""
    return [m for m, s in enumerate(t.case.problem.models) if s.attainment_at_least is not None]


class _Rows:
    """Rows of the matrix as they are added, family by family."""

    def __init__(self, columns: int) -> None:
        self.width, self.height = columns, 0
        self.parts: list[tuple[Any, Any, Any]] = []
        self.low: list[Array] = []
        self.high: list[Array] = []
        self.families: list[tuple[str, int]] = []

    def block(
        self,
        name: str,
        rows: int,
        row: Any,
        column: Any,
        value: Any,
        low: Array | None = None,
        high: Array | None = None,
    ) -> None:
        """A family of rows by coordinates."""
        self.parts.append((np.asarray(row) + self.height, np.asarray(column), np.asarray(value, dtype=float)))
        self.low.append(np.full(rows, -np.inf) if low is None else low)
        self.high.append(np.full(rows, np.inf) if high is None else high)
        self.families.append((name, rows))
        self.height += rows

    def add(self, name: str, column: Any, value: Any, low: float = -np.inf, high: float = np.inf) -> None:
        """One row."""
        column = np.asarray(column, dtype=np.int64)
        self.block(name, 1, np.zeros(len(column), dtype=np.int64), column, value, np.array([low]), np.array([high]))

    def matrix(self) -> tuple[Any, Array, Array, Any]:
        """CSC matrix, bounds, names."""
        row, column, value = (np.concatenate([p[i] for p in self.parts]) for i in range(3))
        A = sp.coo_matrix((value, (row, column)), shape=(self.height, self.width)).tocsc()
        return A, np.concatenate(self.low), np.concatenate(self.high), _RowNames(self.families)


class _RowNames:
    """Row names made when somebody asks."""

    def __init__(self, families: list[tuple[str, int]]) -> None:
        self.families = families

    def __getitem__(self, i: int) -> str:
        for name, rows in self.families:
            if i < rows:
                return name if rows == 1 else f"{name}[{i}]"
            i -= rows
        raise IndexError(i)


def dispatch(
    t: OrchestrationTables, counts: Ints, settings: Settings | None = None
) -> tuple[Assignment | None, Report]:
    """The best assignment to given instances, all requests known beforehand (an LP); None where none is allowed.

    Raises:
        SolverError: the solver failed.
    """
    flow = FlowModel(t, np.asarray(counts, dtype=np.int64))
    if not flow.P:
        p = t.case.problem
        asked = [m for m in kept_models(t) if (p.models[m].attainment_at_least or 0.0) > 0 and
                 t.classes.count[t.classes.model == m].sum() > 0]  # fmt: skip
        if asked and p.slo.shortfall_penalty is None:
            why = f"no request of {t.case.models[asked[0]]} may start anywhere"
            return None, Report("infeasible", None, None, None, None, None, (), 0.0, 0, why)
        empty = np.zeros((0, t.bins))
        none = np.zeros(0, dtype=np.int64)
        found = Report("optimal", None, 0.0, 0.0, 0.0, None, (), 0.0, 0, "no request may start anywhere")
        return Assignment(np.asarray(counts, dtype=np.int64), none, none, empty, empty, empty), found
    report = solve_compiled(flow.compiled(), settings)
    if report.status in ("error", "unbounded"):
        raise SolverError(f"the assignment LP is {report.status}: {report.message}")
    return (None if report.x is None else flow.assignment(report.x)), report


def metrics(t: OrchestrationTables, a: Assignment) -> Metrics:
    """MS(6–8) of an assignment."""
    p, w, q = t.case.problem, weights(t), t.classes
    served = a.admitted.sum(axis=1)
    k, c = a.request_class, a.configuration
    satisfaction = float(w.satisfaction[k] @ served)
    tokens = float(q.output_tokens[k] @ served)
    throughput = min(1.0, float(w.throughput[k] @ served))
    waited = float(a.waiting.sum()) * t.bin_s
    latency = float((w.latency - w.first_token[k, c]) @ served) - w.waiting * waited
    prefill = w.first_token[k, c] @ served / w.waiting if len(k) else 0.0
    in_time = float(served.sum())
    running = running_counts(t)
    started, stopped = int(np.maximum(a.counts - running, 0).sum()), int(np.maximum(running - a.counts, 0).sum())
    listed = bool(p.change.running)
    changes = p.change.score_per_start * started + p.change.score_per_stop * stopped if listed else 0.0
    short = {}
    for m in kept_models(t):
        count = float(q.count[q.model == m].sum())
        missing = (p.models[m].attainment_at_least or 0.0) - (
            float(served[q.model[k] == m].sum()) / count if count else 1.0
        )
        if missing > 1e-9:
            short[t.case.models[m]] = missing
    penalty = (p.slo.shortfall_penalty or 0.0) * sum(short.values())
    o = p.objective
    values = {"attainment": satisfaction, "throughput": throughput, "latency": latency}
    score = (
        o.alpha * satisfaction + (1 - o.alpha) * (o.beta * throughput + (1 - o.beta) * latency)
        if o.kind == "score" else values[o.order[0]]
    )  # fmt: skip
    capacity = float(a.counts @ t.slots_of) * t.horizon_s if len(a.counts) else 0.0
    return Metrics(
        satisfaction=satisfaction, throughput=throughput, latency=latency, changes=changes, shortfall_penalty=penalty,
        total=score - changes - penalty, in_time=in_time, tokens_per_s=tokens / t.horizon_s,
        mean_latency_s=(waited + float(prefill)) / in_time if in_time > 0 else 0.0,
        slot_use=float(t.service_s[k, c] @ served) / capacity if capacity > 0 else 0.0,
        started=started if listed else int(a.counts.sum()), stopped=stopped, shortfalls=short,
    )  # fmt: skip
