"""The column form of orchestration, pooled and exact, each family once; README.md has the notation and the proofs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from formulations.orchestration.busy import from_then_on
from formulations.orchestration.engines import TRANSFER
from formulations.orchestration.flow import NO_WAIT_BINS, Assignment, demand, kept_models, weights
from formulations.orchestration.making import make_plan
from formulations.orchestration.place import rooms_of, running_counts
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.problem import Orchestration
from optmodels.arrays import Array, Ints, Mask
from optmodels.engine.continuous import CHUNKS, MEMORY, RUNNING, TIME, TOKENS, WAITING
from optmodels.errors import SolverError
from optmodels.model import Expression, Model, Rows, Terms, at_least, at_most, between, equal, no_rows
from optmodels.solver.highs import Report, Settings, solve_compiled

SHARE_STEP = 0.01  # configurations whose shares and waits differ by less are in one level
WAIT_STEP_BINS = 0.1


class CountLevels(NamedTuple):
    """L groups of pairs, each of one class.

    Attributes:
        k: (L,) class.
        share: (L,) of the class that can be in time, the largest of its pairs'.
        pairs: L arrays.
    """

    k: Ints
    share: Array
    pairs: list[Ints]

    @classmethod
    def of(cls, made: list[tuple[int, float, Ints]]) -> CountLevels:
        """Of (class, share, pairs) one by one."""
        k, share = [q for q, _, _ in made], [part for _, part, _ in made]
        return cls(np.array(k, dtype=np.int64), np.array(share, dtype=float), [pairs for _, _, pairs in made])


class FlowModel(Model):
    """The column form of `t`: pooled, to choose instances; with `counts` of them exact, a linear programme.

    Attributes:
        given: the instances are not chosen.
        pooled: a few stocks for each class; otherwise one for each pair.
        bins: T.
        arrivals, requests, one: (K, T), (K,), in units of `one` requests (`flow.demand`).
        capacity: (R, C) of an instance, in the same units: slots; or of each of `engines.RESOURCES`.
        weights: weights of a unit.
        k, c: (P,) class and route of the pairs whose requests may be in time; a route is a configuration, or one that
            prefills and one that decodes (`OrchestrationTables.legs`).
        pair: (K, routes) which of them; −1: none.
        of_pair, on: (U,) pair and configuration that pairs use: a disaggregated route has two.
        levels: stocks of the pooled form; in the exact form, pairs whose shares are upper bounds below 1.
        wait_bins: (K, routes) of the exact form, 0 where there is no stock.
        busy: (R, U, …) mean of each resource that a start takes, bin by bin; of them busy_bins (U,) are not 0.
        binds: (R, C) whether a resource can be short where no other is.
        m: admitted requests, terms in rows (k, c, t) of the exact form.
        unit, units_of: (C,) GPUs of a unit, units of an instance.
        size_type, size, nested, room: (R,) GPU type and unit size; sizes of the type divide one another; what units so
            large may take of the GPUs.
        pattern_free, made: (Y,) free GPUs of the servers, (Y, R) units of each size, by column of y.
        servers: (G, …) servers by type and free GPUs.
        stock: (G,) GPUs that may be used; ∞: all.
    """

    def __init__(self, t: OrchestrationTables, counts: Ints | None = None, *, pooled: bool | None = None) -> None:
        p = t.case.problem
        super().__init__(p.name or p.formulation)
        self.t, self.bins = t, t.bins
        self.arrivals, self.one = demand(t)
        self.requests, self.capacity = self.arrivals.sum(axis=1), t.capacity / self.one
        w = weights(t)
        self.weights = replace(w, satisfaction=w.satisfaction * self.one, throughput=w.throughput * self.one,
                               first_token=w.first_token * self.one, latency=w.latency * self.one,
                               waiting=w.waiting * self.one)  # fmt: skip
        self.given = counts is not None
        self.pooled = not self.given if pooled is None else pooled
        self.k, self.c = np.nonzero(_pairs(t, counts))
        self.pair = np.full(t.admissible.shape, -1)
        self.pair[self.k, self.c] = np.arange(len(self.k))
        self._instances(counts)
        self._requests()
        self.state(FAMILIES)
        self._scores()

    def _instances(self, counts: Ints | None) -> None:
        """Variables for instances and what limits them."""
        t, p, C = self.t, self.t.case.problem, len(self.t.configurations)
        rooms = () if self.given else rooms_of(t)
        most = counts if counts is not None else [rooms[x.gpu].gpus // x.gpus for x in t.configurations]
        least = counts if counts is not None else 0.0
        self.n = self.variable("n", ("c",), C, lower=least, upper=most, integer=not self.given)

        self.unit = np.array([x.unit for x in t.configurations], dtype=np.int64)
        self.units_of = np.array([x.units for x in t.configurations], dtype=np.int64)
        sizes = [(g, s, room.divisible, room.capacity[s]) for g, room in enumerate(rooms) for s in room.sizes]
        self.size_type, self.size, self.nested, self.room = np.array(sizes, dtype=np.int64).reshape(-1, 4).T
        patterns = [(g, p) for g, room in enumerate(rooms) if not room.divisible for p in range(len(room.patterns))]
        self.y = self.variable("y", ("g", "p"), np.array(patterns, dtype=np.int64).reshape(-1, 2), integer=True)
        self.pattern_free = np.array([rooms[g].patterns[p][0] for g, p in patterns], dtype=np.int64)
        self.made = np.zeros((len(patterns), len(sizes)))
        for g, room in enumerate(rooms):
            if not room.divisible:
                self.made[np.ix_(self.y.labels[0] == g, self.size_type == g)] = [made for _, made in room.patterns]
        self.servers = np.zeros((len(t.case.gpu_types), max((f for r in rooms for f in r.servers), default=0) + 1))
        self.stock = np.full(len(t.case.gpu_types), np.inf)
        for g, room in enumerate(rooms):
            self.servers[g, list(room.servers)] = list(room.servers.values())
            if room.stock is not None:
                self.stock[g] = room.stock

        changes = p.change.running and (p.change.score_per_start or p.change.score_per_stop)
        self.up, self.down = (self.variable(name, ("c",), C if changes else 0) for name in ("up", "down"))
        self.short = self.variable("short", ("m",), kept_models(t) if p.slo.shortfall_penalty is not None else [])
        self.T = self.variable("T", upper=1.0) if self.weights.capped else None
        gpus = float(sum(room.gpus for room in rooms))
        self.g = self.variable("g", ("m",), 0 if self.given else len(p.models), upper=gpus, integer=True)

    def _requests(self) -> None:
        """Variables for requests, and how long they may wait and keep slots busy."""
        t, T, k, c = self.t, self.bins, self.k, self.c
        share, wait = t.share[k, c], t.wait_s[k, c]
        pairs = (np.repeat(k, T), np.repeat(c, T), np.tile(np.arange(T), len(k)))
        self.levels = _levels(t, k, c) if self.pooled else _nested(t, k, c)
        if self.pooled:
            young = share[:, None] * self._arrived(k, wait, 0)
            self.x = self.variable("x", ("k", "c", "t"), pairs, upper=young.ravel())
            longest = np.array([wait[pairs].max() for pairs in self.levels.pairs])
            late = self.levels.share[:, None] * self._arrived(self.levels.k, longest, 1)
            late[:, -1:] = 0.0  # no request waits at the end
            self.I = self.variable("I", ("l", "t"), late.shape, upper=late)
        else:
            self.x = self.variable("x", ("k", "c", "t"), pairs)
            bins = np.where(wait / t.bin_s >= NO_WAIT_BINS, wait / t.bin_s, 0.0)
            self.wait_bins = np.zeros(self.pair.shape)
            self.wait_bins[k, c] = bins
            some = np.repeat(bins > 0, T)
            end = np.where(np.arange(T) < T - 1, np.inf, 0.0)
            self.Y = self.variable("Y", ("k", "c", "t"), tuple(part[some] for part in pairs), upper=end[None, None])
            self.m = self.x + self.Y - self.Y.lag("t")  # admitted
        uses = [t.uses(q, j) for q, j in zip(k.tolist(), c.tolist(), strict=True)]
        self.of_pair = np.repeat(np.arange(len(uses)), [len(of) for of in uses])
        self.on = np.array([on for of in uses for on, _ in of], dtype=np.int64)
        busy = [shares for of in uses for _, shares in of]
        self.busy_bins = np.array([shares.shape[1] for shares in busy], dtype=np.int64)
        self.busy = np.zeros((len(self.capacity), len(busy), self.busy_bins.max(initial=0)))
        for use, shares in enumerate(busy):
            self.busy[:, use, : shares.shape[1]] = shares
        self.after = from_then_on(self.busy)
        self.binds = _binding(self.busy, self.on, len(t.configurations))

    def _arrived(self, k: Ints, wait_s: Array, edge: int) -> Array:
        """(n, T) arrivals of class k in each bin, and in the wait before its start (edge 0) or its end (edge 1)."""
        edges = np.arange(self.bins + 1) * self.t.bin_s
        total = np.hstack((np.zeros((len(self.t.classes), 1)), np.cumsum(self.arrivals, axis=1)))
        since = edges[edge : self.bins + edge]
        before = [np.interp(since - wait, edges, total[i]) for i, wait in zip(k, wait_s.tolist(), strict=True)]
        return total[k, 1:] - np.array(before).reshape(len(k), self.bins)

    def by_level(self, terms: Terms) -> Terms:
        """Σ over the pairs of a level, in rows (l, t)."""
        k, c, _ = terms.labels
        pairs = self.levels.pairs
        level = np.repeat(np.arange(len(pairs)), [len(part) for part in pairs])
        pair = np.concatenate([*pairs, np.zeros(0, dtype=np.int64)])
        belongs = sp.csr_array((np.ones(len(pair)), (pair, level)), shape=(len(self.k), len(pairs)))
        return terms.by("t", p=self.pair[k, c]).dot("p", belongs, "l").by("l", "t")

    @property
    def tokens(self) -> Terms:
        """Tokens of requests in time, as a share of T's unit."""
        return self.x * self.weights.throughput[self.x.labels[0]]

    def _scores(self) -> None:
        """MS(6–8) as expressions, and MS(6) or one of its parts after the other as objectives."""
        t, w, p = self.t, self.weights, self.t.case.problem
        k, c, _ = self.x.labels
        last = np.append(np.diff(self.levels.k) > 0, True)  # the level of every pair of a class
        stock = self.I[last[self.I.labels[0]]] if self.pooled else self.Y
        prompt = (self.x * (w.latency - w.first_token[k, c])).by()
        parts = {
            "attainment": self.expression("satisfaction", self.x * w.satisfaction[k]),
            "throughput": self.expression("throughput", self.tokens if self.T is None else self.T),
            "latency": self.expression("latency", prompt - stock.by() * (w.waiting * t.bin_s)),
        }
        changes = self.up * p.change.score_per_start + self.down * p.change.score_per_stop
        penalties = self.expression("penalties", changes.by() + self.short.by() * (p.slo.shortfall_penalty or 0.0))
        o = p.objective
        if o.kind == "score":
            score = o.score(*(part.vector(self.width) for part in parts.values()))
            self.maximise("score", sum((v * v.of(score) for v in self.variables.values()), Expression()) - penalties)
            return
        for i, name in enumerate(o.order):
            self.maximise(f"priority_{name}", parts[name] - penalties if i == 0 else parts[name])

    def assignment(self, x: Array) -> Assignment:
        """The assignment of a solution of the exact form."""
        assert not self.pooled
        shape = (len(self.k), self.bins)
        waiting = np.zeros(shape)
        waiting[self.wait_bins[self.k, self.c] > 0] = np.maximum(self.Y.of(x).reshape(-1, self.bins), 0.0)
        started = np.maximum(self.x.of(x).reshape(shape), 0.0)
        before = np.hstack((np.zeros((len(self.k), 1)), waiting[:, :-1]))
        counts = np.round(self.n.of(x)).astype(np.int64)
        admitted = np.maximum(started + waiting - before, 0.0)
        return Assignment(counts, self.k, self.c, *(self.one * v for v in (admitted, started, waiting)))


def nonzeros(t: OrchestrationTables, counts: Ints | None = None, *, pooled: bool = False) -> float:
    """About how many a form has, without building it: by pair and bin, the bins of a service and of a wait."""
    k, c = np.nonzero(_pairs(t, counts))
    service, wait = t.service_s[k, c] / t.bin_s, t.wait_s[k, c] / t.bin_s
    each = np.minimum(service + 2, t.bins) + 5
    return float(t.bins * (each if pooled else each + np.minimum(wait, t.bins)).sum())


def _pairs(t: OrchestrationTables, counts: Ints | None) -> Mask:
    """(K, R) classes with requests on routes, with instances where these are given, that serve them in time."""
    allowed = t.admissible & (t.classes.count > 0)[:, None]
    return allowed if counts is None else allowed & t.open(counts)


def _levels(t: OrchestrationTables, k: Ints, c: Ints) -> CountLevels:
    """Stocks of the pooled form: the first few configurations of a class in the order of their shares, the last all.

    One ends before a share or a wait noticeably above the first configuration's that the one before has not.
    """
    made = []
    for q in np.unique(k):
        mine = np.flatnonzero(k == q)
        mine = mine[np.lexsort((t.wait_s[q, c[mine]], t.share[q, c[mine]]))]
        share, wait = t.share[q, c[mine]], np.maximum.accumulate(t.wait_s[q, c[mine]]) / t.bin_s
        ends, first = [], 0
        for i in range(len(mine)):
            if share[i] > share[first] + SHARE_STEP or wait[i] > wait[first] + WAIT_STEP_BINS:
                ends.append(i)
                first = i
        made += [(q, share[:end].max(), mine[:end]) for end in (*ends, len(mine))]
    return CountLevels.of(made)


def _nested(t: OrchestrationTables, k: Ints, c: Ints) -> CountLevels:
    """For every share below 1 that a class has on some configuration, the pairs of that share or less."""
    made = []
    for q in np.unique(k):
        mine = np.flatnonzero(k == q)
        share = t.share[q, c[mine]]
        made += [(q, most, mine[share <= most]) for most in np.unique(share[share < 1 - 1e-9])]
    return CountLevels.of(made)


def _binding(busy: Array, c: Ints, configurations: int) -> Mask:
    """(R, C) whether a resource of c can be short where no other is: not if each start takes no more than of another.

    Args:
        busy: (R, P, …) of an instance's amount (1 in all), pair by pair.
        c: (P,) configuration of each pair.
        configurations: C.
    """
    binds = np.ones((len(busy), configurations), dtype=bool)
    for j in np.unique(c):
        mine = busy[:, c == j]
        for r in range(len(mine)):
            others = [s for s in np.flatnonzero(binds[:, j]) if s != r]
            binds[r, j] = not any((mine[r] <= mine[s]).all() for s in others)
    return binds


def _each(counts: Ints) -> tuple[Ints, Ints]:
    """Entries repeated this many times, and the number of each repetition from 0."""
    entry = np.repeat(np.arange(len(counts)), counts)
    return entry, np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts)


# ---------------------------------------------------------------------------------------------------------------------
# Instances


def packing(m: FlowModel) -> Rows:
    """Σ_{unit_c ≥ s} gpus_c·n_c ≤ s·Σ_servers ⌊working GPUs / s⌋ of type g: units fit the servers (MS b).

    Where sizes of g do not divide one another, Σ_{unit_c = s} units_c·n_c ≤ Σ_p made_ps·y_gp.
    """
    if m.given:
        return no_rows()
    g, s = m.size_type, m.size
    unit, same = m.unit[:, None], m.t.gpu_of[:, None] == g
    c, row = np.nonzero(same & np.where(m.nested, unit >= s, unit == s))
    p, size = np.nonzero(m.made)
    used = m.n.at(c, (g[row], s[row]), np.where(m.nested[row], m.t.gpus_of[c], m.units_of[c]), ("g", "s"))
    made = m.y.at(p, (g[size], s[size]), m.made[p, size], ("g", "s"))
    return at_most(np.where(m.nested, m.room, 0.0), used - made, over=(g, s))


def servers(m: FlowModel) -> Rows:
    """Σ_{p of f GPUs} y_gp ≤ servers of type g with f working GPUs: each follows one pattern."""
    return at_most(m.servers, m.y.by("g", f=m.pattern_free))


def stock(m: FlowModel) -> Rows:
    """Σ_{c on g} gpus_c·n_c ≤ stock_g (MS c)."""
    return no_rows() if m.given else at_most(m.stock, (m.n * m.t.gpus_of).by(g=m.t.gpu_of))


def gpus_of_model(m: FlowModel) -> Rows:
    """Σ_{c of m} gpus_c·n_c = g_m: an integer to branch on."""
    return no_rows() if m.given else equal(0.0, (m.n * m.t.gpus_of).by(m=m.t.model_of) - m.g)


def instances_of_model(m: FlowModel) -> Rows:
    """minimum_m ≤ Σ_{c of m} n_c ≤ maximum_m."""
    limits = [(s.minimum_instances, s.maximum_instances) for s in m.t.case.problem.models]
    low = [-np.inf if not least and most is None else float(least) for least, most in limits]
    high = [np.inf if most is None else float(most) for _, most in limits]
    return between(low, high, m.n.by(m=m.t.model_of), over=len(limits))


def started(m: FlowModel) -> Rows:
    """n_c − up_c ≤ running_c."""
    return at_most(running_counts(m.t), m.n.among(m.up) - m.up)


def stopped(m: FlowModel) -> Rows:
    """n_c + down_c ≥ running_c."""
    return at_least(running_counts(m.t), m.n.among(m.down) + m.down)


# ---------------------------------------------------------------------------------------------------------------------
# Requests


def balance(m: FlowModel) -> Rows:
    """Σ_{c in l} x_kct + I_lt − I_l,t−1 ≤ φ_l·a_kt: the rest is refused (pooled form)."""
    if not m.pooled:
        return no_rows()
    arrivals = m.levels.share[:, None] * m.arrivals[m.levels.k]
    return at_most(arrivals, m.by_level(m.x) + m.I - m.I.lag("t"), over=m.I.index.sizes)


def arrivals(m: FlowModel) -> Rows:
    """Σ_c m_kct ≤ a_kt, where m_kct = x_kct + Y_kct − Y_kc,t−1: the rest is refused (exact form)."""
    return no_rows() if m.pooled else at_most(m.arrivals, m.m.by("k", "t"))


def eligible(m: FlowModel) -> Rows:
    """Σ_{φ_kc ≤ φ_l} m_kct ≤ φ_l·a_kt for every φ_l < 1 of k: on these c the same ones can be in time (exact form)."""
    if m.pooled:
        return no_rows()
    arrivals = m.levels.share[:, None] * m.arrivals[m.levels.k]
    return at_most(arrivals, m.by_level(m.m), over=arrivals.shape)


def admitted(m: FlowModel) -> Rows:
    """m_kct ≥ 0 of the pairs that have a stock (exact form)."""
    if m.pooled:
        return no_rows()
    k, c, _ = m.m.labels
    return at_least(0.0, m.m[m.wait_bins[k, c] > 0])


def expiry(m: FlowModel) -> Rows:
    """Y_kct − f·m_kct ≤ Σ_{τ = t+1 … t+b} x_kcτ, b + f the wait in bins: who waits at the end of t starts in time."""
    if m.pooled:
        return no_rows()
    whole = np.floor(m.wait_bins + 1e-9).astype(np.int64)
    part = np.maximum(m.wait_bins - whole, 0.0)
    k, c, t = m.x.labels
    start, back = _each(np.minimum(whole[k, c], t))
    later = m.x.at(start, (k[start], c[start], t[start] - back - 1), sets=("k", "c", "t"))
    k, c, _ = m.m.labels
    return at_most(0.0, m.Y - (m.m * part[k, c])[m.wait_bins[k, c] > 0] - later)


def _taken(m: FlowModel, resource: int) -> Rows:
    """Σ_k Σ_τ busy_rkc(t − τ)·x_kcτ ≤ capacity_rc·n_c, the bin after the last one too (`from_then_on`)."""
    use, t = np.repeat(np.arange(len(m.on)), m.bins), np.tile(np.arange(m.bins), len(m.on))
    start, later = _each(np.minimum(m.busy_bins[use], m.bins + 1 - t))
    at, use = t[start] + later, use[start]
    share = np.where(at < m.bins, m.busy[resource, use, later], m.after[resource, use, later])
    x = m.of_pair[use] * m.bins + t[start]  # its columns are pair by pair
    busy = m.x.at(x, (m.on[use], at), share, ("c", "t"))
    binds = m.binds[resource]
    some = np.unique(m.on[binds[m.on]])
    return at_most(0.0, busy[binds[busy.labels[0]]] - (m.n * m.capacity[resource])[some].across(t=m.bins + 1))


def occupancy(m: FlowModel) -> Rows:
    """Σ_k Σ_τ busy_kc(t − τ)·x_kcτ ≤ slots_c·n_c: mean requests in slots in a bin, the bin after the last one too."""
    return _taken(m, 0) if m.t.taken is None else no_rows()


def time(m: FlowModel) -> Rows:
    """Σ_k Σ_τ time_kc(t − τ)·x_kcτ ≤ n_c: of every second what steps leave to work (S2; continuous)."""
    return no_rows() if m.t.taken is None else _taken(m, TIME)


def running(m: FlowModel) -> Rows:
    """Σ_k Σ_τ running_kc(t − τ)·x_kcτ ≤ n_c: slots in the mean of a bin, or places (S3, S12; continuous)."""
    return no_rows() if m.t.taken is None else _taken(m, RUNNING)


def memory(m: FlowModel) -> Rows:
    """Σ_k Σ_τ memory_kc(t − τ)·x_kcτ ≤ n_c: KV cache in the mean of a bin, or places (S4, S12; continuous)."""
    return no_rows() if m.t.taken is None else _taken(m, MEMORY)


def tokens(m: FlowModel) -> Rows:
    """Σ_k Σ_τ tokens_kc(t − τ)·x_kcτ ≤ n_c: prompt tokens of a step (S5; continuous)."""
    return no_rows() if m.t.taken is None else _taken(m, TOKENS)


def chunks(m: FlowModel) -> Rows:
    """Σ_k Σ_τ chunks_kc(t − τ)·x_kcτ ≤ n_c: chunks of a step, where few are to carry any (S6; continuous)."""
    return no_rows() if m.t.taken is None else _taken(m, CHUNKS)


def whole(m: FlowModel) -> Rows:
    """Σ_{routes on c} Σ_t x_kct ≤ φ_kc·requests_k·n_c, φ_kc the largest of these: tightens the relaxation."""
    if m.given:
        return no_rows()
    most = np.zeros((len(m.requests), len(m.t.configurations)))
    k, share = m.k[m.of_pair], m.t.share[m.k, m.c][m.of_pair]
    np.maximum.at(most, (k, m.on), share * m.requests[k])
    use, t = np.repeat(np.arange(len(m.on)), m.bins), np.tile(np.arange(m.bins), len(m.on))
    served = m.x.at(m.of_pair[use] * m.bins + t, (k[use], m.on[use]), np.ones(len(use)), ("k", "c"))
    k, c = np.unique(np.column_stack((k, m.on)), axis=0).T
    return at_most(0.0, served - m.n.at(c, (k, c), most[k, c], ("k", "c")))


def attainment(m: FlowModel) -> Rows:
    """Σ_{k of m} Σ_ct x_kct / requests_m + short_m ≥ attainment_at_least_m."""
    q, models = m.t.classes, m.t.case.problem.models
    requests = np.bincount(q.model, q.count, len(models))
    asked = np.array([i for i in kept_models(m.t) if requests[i] > 0], dtype=np.int64)
    if not len(asked):
        return no_rows()
    least = np.array([models[i].attainment_at_least for i in asked.tolist()])
    model = q.model[m.x.labels[0]]
    served = (m.x.by(m=model) * (m.one / requests[model]))[np.isin(model, asked)]
    return at_least(least, served + m.short[np.isin(m.short.labels[0], asked)], over=(asked,))


def throughput_cap(m: FlowModel) -> Rows:
    """T ≤ Σ_kct tokens_k·x_kct / threshold, where T could exceed 1 (MS 7)."""
    return no_rows() if m.T is None else at_least(0.0, m.tokens.by() - m.T)


def transfer(m: FlowModel) -> Rows:
    """Σ_k Σ_τ transfer_kc(t − τ)·x_kcτ ≤ n_c: KV caches through the planned share of the network (disaggregated
    stages).
    """
    return no_rows() if m.t.taken is None or not len(m.t.apart) else _taken(m, TRANSFER)


def waiting(m: FlowModel) -> Rows:
    """Σ_k Σ_τ waiting_kc(t − τ)·x_kcτ ≤ n_c: prompts wait as long as planned in the mean (S7, S13; continuous)."""
    return no_rows() if m.t.taken is None else _taken(m, WAITING)


FAMILIES = (
    packing, servers, stock, gpus_of_model, instances_of_model, started, stopped, balance, arrivals, eligible, admitted,
    expiry, occupancy, time, running, memory, tokens, chunks, waiting, transfer, whole,
    attainment, throughput_cap,
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# Uses


def model(problem: Orchestration, tables: OrchestrationTables) -> FlowModel:
    """The pooled form, which chooses instances."""
    return FlowModel(tables)


def attach(block: Any, problem: Orchestration, tables: OrchestrationTables) -> None:
    """Put the pooled form's variables, constraints and expressions on a Pyomo block; no objective.

    The block gets ``n`` by configuration, ``x`` by (class, configuration, bin), ``I`` by (level, bin) and the
    expressions ``satisfaction``, ``throughput``, ``latency`` (MS 6–8) and ``penalties``.
    """
    model(problem, tables).attach(block)


def build(problem: Orchestration, tables: OrchestrationTables) -> Any:
    """The ConcreteModel of the problem: MS(6), or its parts as lexicographic priorities."""
    return model(problem, tables).pyomo()


def dispatch(
    t: OrchestrationTables, counts: Ints, settings: Settings | None = None
) -> tuple[Assignment | None, Report]:
    """The best assignment to given instances, all requests known beforehand (an LP); None where none is allowed.

    Raises:
        SolverError: the solver failed.
    """
    counts = np.asarray(counts, dtype=np.int64)
    if not _pairs(t, counts).any():
        p = t.case.problem
        asked = [m for m in kept_models(t) if (p.models[m].attainment_at_least or 0.0) > 0 and
                 t.classes.count[t.classes.model == m].sum() > 0]  # fmt: skip
        if asked and p.slo.shortfall_penalty is None:
            why = f"no request of {t.case.models[asked[0]]} may start anywhere"
            return None, Report("infeasible", None, None, None, None, None, (), 0.0, 0, why)
        empty = np.zeros((0, t.bins))
        none = np.zeros(0, dtype=np.int64)
        found = Report("optimal", None, 0.0, 0.0, 0.0, None, (), 0.0, 0, "no request may start anywhere")
        return Assignment(counts, none, none, empty, empty, empty), found
    flow = FlowModel(t, counts)
    report = solve_compiled(flow.compiled(), settings)
    if report.status in ("error", "unbounded"):
        raise SolverError(f"the assignment LP is {report.status}: {report.message}")
    return (None if report.x is None else flow.assignment(report.x)), report


def extract(model: Any, tables: OrchestrationTables) -> OrchestrationPlan | None:
    """The plan of a solved model: its instances with their best schedule in the exact waiting form."""
    from optmodels.model.pyomo_block import value_of

    counts = np.array([round(value_of(model.n[c])) for c in range(len(tables.configurations))], dtype=np.int64)
    assignment, _ = dispatch(tables, counts)
    return None if assignment is None else make_plan(tables, assignment)
