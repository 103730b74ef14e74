"""The fleet MILP: its constraint families, each stated once. README.md has the mathematics around them.

`FleetModel` is the whole model, `Parameters` what its families read next to variables; column generation states some of
the same families on other variables (`formulations.fleet.methods.columns`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from formulations.fleet.choice import FleetChoice
from formulations.fleet.points import DECODE, MOST_DEPLOYMENTS, PREFILL, FleetTables, changes_matter, in_time
from formulations.fleet.problem import Fleet
from formulations.fleet.reserve import MOST_SPARES, largest_pools
from formulations.fleet.scenarios import Draws
from optmodels.arrays import Array, Index
from optmodels.errors import InputError, Mistake, SolverError
from optmodels.model import Expression, Family, Model, Rows, Terms, Variable, at_least, at_most, equal, no_rows

SMALL = 1e-4  # of `capacity`: shares with smaller coefficients have rows of their own; a tolerance hides 1 % of others


class Parameters(Model):
    """λ, l, a, b, C and the limits of a fleet; a limit that is not set is infinite."""

    x: Terms  # x_twp
    s: Terms  # s_tw
    n: Terms  # n_tp

    def __init__(self, problem: Fleet, tables: FleetTables) -> None:
        super().__init__(problem.name or problem.formulation)
        self.problem, self.tables = problem, tables
        case, points = tables.case, tables.points
        of = [case.workload(d.workload) for d in tables.demands]
        hours = np.array([q.hours for q in case.periods])
        self.hours = hours / hours.sum()  # (T,), shares of the day
        self.rates = tables.rates  # (T, W), λ
        self.load = tables.load  # (W, P), l
        self.usd, self.spot, self.rho = points.usd_per_hour, points.spot, points.rho  # (P,)
        self.stage, self.exchange = points.stage, points.exchange  # (P,)
        self.takes, self.limits = tables.takes, tables.limits  # (P, R), a; (R,), b
        self.budget = np.inf if problem.budget_usd_per_hour is None else problem.budget_usd_per_hour
        spot_share = np.array([w.spot_share_max for w in of])
        self.spot_share = np.where(spot_share < 1, spot_share, np.inf)  # (W,)
        names = {w.name: i for i, w in enumerate(case.workloads)}
        self.workload = np.array([names[d.workload] for d in tables.demands], dtype=np.intp)  # (W,)
        self.asks = np.array([w.quality_at_least is not None for w in of], dtype=bool)  # (W,), for quality
        own = (self.workload[:, None] == self.workload).astype(float)
        self.together = self.rates @ own  # (T, W), Λ of its workload
        self.served = np.array([case.serve_at_least(w) for w in of])  # (W,), σ
        self.usd_unserved = np.array([w.unserved_usd_per_1000_requests * 3.6 for w in of])  # (W,), USD/h per request/s

    def load_of(self, x: Terms) -> Array:
        """λ_tw·l_wp, deployments for all of w, entry by entry."""
        t, w, p = x.labels
        return self.rates[t, w] * self.load[w, p]


class FleetModel(Parameters):
    """The fleet MILP on the given tables.

    Args:
        problem: objective and limits.
        tables: points; prune them first (`formulations.fleet.points.prune`).
        ratio: q of Dinkelbach's subproblem max tokens − q·cost (max_ce), tokens per USD; None: a part of a larger
            model, in which max_ce is no objective and need not run anything.
    """

    n: Variable

    def __init__(self, problem: Fleet, tables: FleetTables, ratio: float | None = 0.0) -> None:
        super().__init__(problem, tables)
        case, c = tables.case, problem.change
        self.T, P = len(self.rates), len(tables.points)
        self.ratio = ratio if problem.objective == "max_ce" else None
        possible = np.isfinite(self.load)
        wanted = self.rates > 0
        of = np.array([[d.workload == w.name for w in case.workloads] for d in tables.demands])  # (W, I)
        self.able = (possible[:, :, None] & of[:, None, :]).any(axis=0)  # (P, I): p can serve a bucket of i
        least = np.array([w.min_replicas for w in case.workloads], dtype=float)
        self.replicas = np.where(least > 0, least, -np.inf)  # (I,)
        # Machines that are started and stopped: the points' own, and others that run now.
        changing = problem.running is not None or (self.T > 1 and changes_matter(problem))
        running: dict[Any, int] = {}
        for r in problem.running or ():
            running[r.machine, r.region, r.market] = running.get((r.machine, r.region, r.market), 0) + r.count
        used = list(tables.resources) if changing else []
        idle = [r for r in running if r not in used]
        self.use = sp.hstack([tables.use[:, : len(used)], sp.csr_matrix((P, len(idle)))], format="csr")  # (P, G), u
        self.before = np.zeros((self.T, len(used + idle)))  # machines that run before the first period
        self.before[0] = [running.get(r, 0) for r in used + idle]
        self.cyclic = problem.running is None  # else the day follows the running fleet
        self.max_starts = np.inf if c.max_starts is None else c.max_starts
        self.max_stops = np.inf if c.max_stops is None else c.max_stops
        self.after_loss = 1.0 if problem.reserve is None else problem.reserve.load_after_loss
        # Beyond `most` deployments none helps: the peak load, after a loss too; of a pool under the reserve, all that
        # it can need and its spare ones, on any of its points. Where changes matter, idle ones may keep machines.
        load = np.where(possible, self.load, 0.0)
        self.full = np.minimum(self.rates @ load, 1.0)  # (T, P), S
        peak = self.rates.max(axis=0) @ load
        draws = tables.case.draws
        self.draws = draws
        if draws is not None:
            self.drawn_rates, self.slower = drawn_of(tables, draws)  # (N, W) requests/s, (N, P)
            peak = np.maximum(peak, ((self.drawn_rates @ load) * self.slower).max(axis=0))
        most = np.maximum(np.ceil(peak - 1e-9), max(1.0, least.max(initial=0.0)))
        survived = np.maximum(most, np.ceil(peak * self.rho / self.after_loss - 1e-9))
        self.pool, levels = _levels(problem, tables, survived)  # (P,), −1: under no reserve
        for j in np.unique(levels[:, 0]):
            most[self.pool == j] = survived[self.pool == j].sum() + levels[levels[:, 0] == j, 2].max()
        most = np.full(P, MOST_DEPLOYMENTS) if changing else np.minimum(most, MOST_DEPLOYMENTS)
        t, level = np.divmod(np.arange(self.T * len(levels)), max(len(levels), 1))
        pool, k, lost, size = levels[level].T
        self.lost, self.size = lost, size  # by entry of y: spare deployments, and the largest pool they protect
        chance = problem.reserve is not None and problem.reserve.survive_probability is not None
        self.pools = problem.reserve.pools if problem.reserve is not None and chance else np.inf

        self.n = self.variable("n", ("t", "p"), (self.T, P), upper=most[None, :], integer=True)
        self.x = self.variable("x", ("t", "w", "p"), np.nonzero(wanted[:, :, None] & possible[None]), upper=1.0)
        self.s = self.variable("s", ("t", "w"), np.nonzero(wanted), upper=1.0 - self.served[None, :])
        self.y = self.variable("y", ("t", "j", "k"), (t, pool, k), upper=1.0, integer=True)
        kept = changing or least.any() or problem.objective == "max_ce"  # where deployments without load may run
        idle_pools = np.unique(levels[:, 0])[: None if kept else 0]
        at, j = np.divmod(np.arange(self.T * len(idle_pools)), max(len(idle_pools), 1))
        self.idle = self.variable("idle", ("t", "j"), (at, idle_pools[j]), integer=True)
        t, w, p = self.x.labels
        after = self.rates[t, w] * self.load[w, p] * self.rho[p] / self.after_loss
        self.J = int(self.pool.max(initial=-1)) + 1
        together = np.zeros((self.T, self.J + 1))  # the last for points in no pool
        np.add.at(together, (t, self.pool[p]), after)
        after /= np.minimum(together, 1.0)[t, self.pool[p]]
        self.after_losses = np.where(self.pool[p] >= 0, after, np.inf)  # by entry of x
        if draws is not None:
            comes = self.drawn_rates > 0
            self.drawn = self.variable("drawn", ("c", "w", "p"), np.nonzero(comes[:, :, None] & possible), upper=1.0)
            self.refused = self.variable("refused", ("c", "w"), np.nonzero(comes), upper=1.0)
        self.up = self.variable("up", ("t", "g"), self.before.shape)
        self.down = self.variable("down", ("t", "g"), self.before.shape)
        self.state(FAMILIES)

        span = sum(q.hours for q in case.periods) if self.T > 1 else c.horizon_hours
        self.usd_start, self.usd_stop = c.start_usd / span, c.stop_usd / span  # USD/h for one a day
        self.tokens = np.array([d.tokens for d in tables.demands])
        work = [case.workload(d.workload) for d in tables.demands]
        self.weight, self.priority = np.array([w.weight for w in work]), np.array([w.priority for w in work])
        each_hour = usd_per_hour(self)
        if draws is not None and draws.usd_per_1000:
            price = 3.6 * draws.usd_per_1000 / len(draws)
            each_hour = each_hour + self.refused * (price * self.drawn_rates[self.refused.labels])
        cost = self.expression("usd_per_hour", each_hour)
        tokens = self.expression("tokens_per_hour", served(self, 3600.0 * self.weight * self.tokens))
        if problem.objective == "max_served":
            for k in sorted(set(self.priority[wanted.any(axis=0)].tolist())):
                self.maximise(f"served_{k}", served(self, np.where(self.priority == k, self.weight, 0.0)))
        if self.ratio is not None:
            self.minimise("parametric", self.ratio * cost - tokens)
        elif problem.objective != "max_ce":
            self.minimise("cost", cost)

    def choice(self, x: Array) -> FleetChoice:
        """Counts and shares of a solution."""
        n, share = self.variables["n"], self.variables["x"]
        value = share.of(x)
        used = value > 1e-9
        counts = np.round(n.of(x)).astype(np.intp).reshape(n.index.sizes)
        t, w, p = (label[used] for label in share.labels)
        return FleetChoice(counts, t, w, p, value[used])

    def words(self, family: str, label: tuple[int, ...]) -> str | None:
        """A row in the words of the instance; None where it is no limit of the user's."""
        tables = self.tables
        match family:
            case "demand_met":
                d = tables.demands[label[1]]
                return f"bucket {d.name} ({max(d.requests_per_s):.4g} requests/s)"
            case "stock":
                return f"{tables.limit_names[label[1]]} at most {tables.limits[label[1]]:g}"
            case "within_budget":
                return f"budget at most {self.budget:g} USD/h"
            case "spot_share" | "spot_share_decoded":
                w = tables.case.workload(tables.demands[label[1]].workload)
                return f"spot share of {w.name} at most {w.spot_share_max:g}"
            case "quality":
                w = tables.case.workloads[label[1]]
                return f"quality of {w.name} at least {w.quality_at_least:g}"
            case "drawn_unserved" if self.draws is not None and self.draws.unserved is not None:
                return f"unserved share over the draws at most {100 * self.draws.unserved:g} %"
            case "min_replicas" | "min_replicas_decoding":
                w = tables.case.workloads[label[1]]
                return f"replicas for {w.name} at least {w.min_replicas}"
            case "survives":
                return "reserve"
            case "few_pools":
                return f"at most {int(self.pools)} pools under the reserve"
            case "starts_limit":
                return f"machines started at most {int(self.max_starts)}"
            case "stops_limit":
                return f"machines stopped at most {int(self.max_stops)}"
            case _:
                return None


def _levels(problem: Fleet, tables: FleetTables, load: Array) -> tuple[Index, Index]:
    """Pool of every point under the reserve (P,), −1 for others, and rows (pool, k, spare ones, largest pool).

    `load` (P,) are the deployments that the largest load of each point takes, without spare ones.

    Raises:
        InputError: no reasonable number of spare ones gives the probability asked for.
    """
    points, reserve = tables.points, problem.reserve
    rows: list[Any] = []
    pool = np.full(len(points), -1)
    if reserve is not None:
        pool = np.where(points.spot | (reserve.machines == "all"), points.pool, -1)
        for j in np.unique(pool[pool >= 0]).tolist():
            mine = pool == j
            if reserve.lost is not None:
                table = [(reserve.lost, int(load[mine].sum()) + reserve.lost)]
            else:
                assert reserve.survive_probability is not None
                miss = (1 - reserve.survive_probability) / reserve.pools
                table = largest_pools(float(points.unavailable[mine].max()), miss, int(load[mine].sum()))
                if not table:
                    expected = f"a probability that {MOST_SPARES:,} spare deployments of a pool can give"
                    wrong = reserve.survive_probability
                    raise InputError(Mistake(None, "reserve.survive_probability", wrong, expected))
            rows += [(j, k, lost, size) for k, (lost, size) in enumerate(table)]
    return pool, np.array(rows or np.empty((0, 4)), dtype=np.intp)


# ---------------------------------------------------------------------------------------------------- constraints


def demand_met(m: Parameters) -> Rows:
    """Σ_p x_twp + s_tw = 1: every request is sent to a deployment or not served; decode-only p do not count."""
    _, _, p = m.x.labels
    return equal(1.0, m.x[m.stage[p] != DECODE].by("t", "w") + m.s)


def decoded(m: FleetModel) -> Rows:
    """Σ_{p ∈ D_k} x_twp = Σ_{p ∈ P_k} x_twp: prefilled requests are decoded within their exchange group k."""
    _, _, p = m.x.labels
    first, rest = m.stage[p] == PREFILL, m.stage[p] == DECODE
    sent = m.x[first].by("t", "w", k=m.exchange[p[first]])
    return equal(0.0, m.x[rest].by("t", "w", k=m.exchange[p[rest]]) - sent)


def deadlines(m: FleetModel) -> Rows:
    """Σ_{p ∈ D_k, e_wp ≥ r} x_twp ≤ Σ_{p ∈ P_k, e_wp + r ≤ L_w} x_twp for each r = e_wp of a p ∈ D_k: E2E limits.

    e_wp is the time that p takes of w's deadline L_w. A decode deployment can follow every prefill deployment of at
    most L_w − e_wp, so the sets are nested. With `decoded`, shares can be paired if and only if these rows hold (Hall's
    condition). Only values of r at which another pair becomes too late have a row.
    """
    if m.tables.part_s is None:
        return no_rows()
    t, w, p = m.x.labels
    part, limits = m.tables.part_s[w, p], m.tables.deadlines
    placed: list[Any] = []  # entries of x, their signs, k and r
    for i, k, mine in alike(np.flatnonzero(np.isfinite(limits[w])), w, m.exchange[p]):
        first, rest = mine[m.stage[p[mine]] == PREFILL], mine[m.stage[p[mine]] == DECODE]
        for r, least in enumerate(breakpoints(part[rest], in_time(part[first, None], part[rest], limits[i]))):
            slow, fast = rest[part[rest] >= least], first[in_time(part[first], least, limits[i])]
            placed += [
                np.stack([e, np.full_like(e, sign), np.full_like(e, k), np.full_like(e, r)])
                for e, sign in ((slow, 1), (fast, -1))
            ]
    if not placed:
        return no_rows()
    e, signs, *row = np.hstack(placed)
    return at_most(0.0, m.x.at(e, (t[e], w[e], *row), signs, sets=("t", "w", "k", "r")))


def alike(entries: Index, one: Index, other: Index) -> list[tuple[int, int, Index]]:
    """The entries that have both labels equal, with these labels, in their order; by one sort."""
    entries = entries[np.lexsort((other[entries], one[entries]))]
    labels = np.column_stack([one[entries], other[entries]])
    ends = np.flatnonzero((labels[1:] != labels[:-1]).any(axis=1)) + 1
    return [(int(one[e[0]]), int(other[e[0]]), e) for e in np.split(entries, ends) if len(e)]


def breakpoints(rest_s: Array, possible: Any) -> list[float]:
    """Least time of the decode entries that the same number of prefill ones is in time for, unless all are.

    Of such rows of `deadlines` the row of the least time has the most decode entries: it implies the others.

    Args:
        rest_s: (R,).
        possible: whether a prefill entry meets the deadline with a decode entry, (F, R).
    """
    count = possible.sum(axis=0)
    return [rest_s[count == c].min() for c in np.unique(count) if c < len(possible)]


def capacity(m: FleetModel) -> Rows:
    """Σ_w λ_tw·l_wp/S_tp·x_twp ≤ n_tp with S_tp = min(1, Σ_w λ_tw·l_wp): a deployment carries a load of one, or all."""
    if m.tables.capacities is not None:
        return no_rows()
    t, _, p = m.x.labels
    used = (m.x * (m.load_of(m.x) / m.full[t, p])).by("t", "p")
    return at_most(0.0, used - m.n.among(used))


def capacities(m: FleetModel) -> Rows:
    """Σ_w λ_tw·l_qwp/S_qtp·x_twp ≤ n_tp: the same for each capacity q of an engine with continuous batching.

    S_qtp = min(1, Σ_w λ_tw·l_qwp). A capacity that is never the scarcest, for any mixture of demands, has no row.
    """
    if m.tables.capacities is None:
        return no_rows()
    t, w, p = m.x.labels
    each = m.tables.each_load
    load = m.rates[t, w] * each[:, w, p]  # (Q, entries of x)
    full = np.zeros((len(each), *m.full.shape))
    where: Any = (slice(None), t, p)
    np.add.at(full, where, load)
    q, i = np.nonzero(load)
    scaled = load[q, i] / np.minimum(full[q, t[i], p[i]], 1.0)
    used = m.x.at(i, (t[i], p[i], q), scaled, sets=("t", "p", "q"))
    return at_most(0.0, used - m.n.across(q=len(each)).among(used))


def small_shares(m: FleetModel) -> Rows:
    """x_twp ≤ n_tp: where λ_tw·l_wp/S_tp is so small that `capacity` could hold within a tolerance without any n_tp."""
    every = m.x.labels
    small = m.load_of(m.x) / m.full[every[0], every[2]] < SMALL
    t, w, p = (label[small] for label in every)
    return at_most(0.0, m.x[small] - m.n.at(m.n.find(t, p), (t, w, p), sets=("t", "w", "p")))


def stock(m: Parameters) -> Rows:
    """Σ_p a_pr·n_tp ≤ b_r: stock of a machine type, or quota over several; machines, GPUs or vCPUs."""
    return at_most(m.limits[None, :], m.n.dot("p", m.takes, "r"))


def within_budget(m: Parameters) -> Rows:
    """Σ_p C_p·n_tp ≤ budget: USD per hour, in every period."""
    _, p = m.n.labels
    return at_most(m.budget, (m.n * m.usd[p]).by("t"))


def spot_share(m: Parameters) -> Rows:
    """Σ_{p on spot} x_twp ≤ spot_share_max_w: for every bucket; decode-only p do not count."""
    _, _, p = m.x.labels
    return at_most(m.spot_share[None, :], m.x[m.spot[p] & (m.stage[p] != DECODE)].by("t", "w"))


def spot_share_decoded(m: FleetModel) -> Rows:
    """Σ_{p on spot} x_twp ≤ spot_share_max_w: the same for decoding; prefill-only p do not count."""
    if m.tables.part_s is None:
        return no_rows()
    _, _, p = m.x.labels
    return at_most(m.spot_share[None, :], m.x[m.spot[p] & (m.stage[p] != PREFILL)].by("t", "w"))


def quality(m: Parameters) -> Rows:
    """Σ_{w ∈ i} λ_tw/Λ_ti·Σ_p (1 − q_wp/Q_i)·x_twp ≤ 0: mean score of workload i's answered requests is at least Q_i.

    Λ_ti are its requests/s. Decode-only p have no entry, nor have p whose score equals Q_i.
    """
    if m.tables.quality is None:
        return no_rows()
    x = m.x[m.asks[m.x.labels[1]]]
    t, w, p = x.labels
    worse = -m.tables.quality[w, p] * m.rates[t, w] / m.together[t, w]
    return at_most(0.0, (x * worse).by("t", i=m.workload[w]))


def min_replicas(m: FleetModel) -> Rows:
    """Σ_{p that can serve i} n_tp ≥ min_replicas_i: in every period, also without requests; decode-only p do not count.

    p can serve i if it can serve one of its buckets with requests, or any of its buckets if i has no requests.
    """
    return at_least(m.replicas[None, :], m.n.dot("p", m.able & (m.stage != DECODE)[:, None], "i"))


def min_replicas_decoding(m: FleetModel) -> Rows:
    """Σ_{p that can serve i} n_tp ≥ min_replicas_i: the same for decoding, if disaggregated; without prefill-only p."""
    if m.tables.part_s is None:
        return no_rows()
    return at_least(m.replicas[None, :], m.n.dot("p", m.able & (m.stage != PREFILL)[:, None], "i"))


def one_level(m: FleetModel) -> Rows:
    """Σ_k y_tjk ≤ 1: a pool has one number of spare deployments."""
    return at_most(1.0, m.y.by("t", "j"))


def pool_size(m: FleetModel) -> Rows:
    """Σ_{p ∈ j} n_tp − idle_tj ≤ Σ_k N_jk·y_tjk: a pool of more than N_jk deployments needs more than k spare ones."""
    return at_most(0.0, by_pool(m, m.n) - m.idle.by("t", "j") - (m.y * m.size).by("t", "j"))


def survives(m: FleetModel) -> Rows:
    """Σ_{p ∈ j} Σ_w λ_tw·l_wp·ρ_p/(f·S_tj)·x_twp ≤ Σ_{p ∈ j} n_tp − idle_tj − Σ_k k·y_tjk: enough is left.

    f is load_after_loss; ρ undoes the headroom in l; S_tj is the sum at x = 1, at most 1. Idle deployments, which only
    keep machines or count as replicas, may all be lost.
    """
    protected = np.isfinite(m.after_losses)
    return at_most(0.0, by_pool(m, m.x[protected] * m.after_losses[protected]) - left(m))


def small_survives(m: FleetModel) -> Rows:
    """x_twp ≤ Σ_{p ∈ j} n_tp − idle_tj − Σ_k k·y_tjk: where its coefficient in `survives` is as small; c is (w, p)."""
    small = m.after_losses < SMALL
    _, w, p = (label[small] for label in m.x.labels)
    pairs, c = np.unique(np.stack([w, p]).T, axis=0, return_inverse=True)
    _, points = pairs.T
    share = m.x[small].by("t", c=c)
    of_pool = sp.coo_array((np.ones(len(points)), (m.pool[points], np.arange(len(points)))), (m.J, len(points)))
    return at_most(0.0, share - left(m).dot("j", of_pool, "c").among(share))


def few_pools(m: FleetModel) -> Rows:
    """Σ_j Σ_k y_tjk ≤ pools: number of pools in the union bound, with a survival probability."""
    return at_most(m.pools, m.y.by("t"))


def starts_limit(m: FleetModel) -> Rows:
    """Σ_g up_tg ≤ max_starts: machines started before each period."""
    return at_most(m.max_starts, m.up.by("t"))


def stops_limit(m: FleetModel) -> Rows:
    """Σ_g down_tg ≤ max_stops: machines stopped before each period."""
    return at_most(m.max_stops, m.down.by("t"))


def machine_balance(m: FleetModel) -> Rows:
    """M_tg − M_{t−1,g} = up_tg − down_tg with M_tg = Σ_p u_pg·n_tp: machines started and stopped.

    The first period follows the machines that run now, else the last period.
    """
    machines = m.n.dot("p", m.use, "g")
    change = machines - machines.lag("t", cyclic=m.cyclic)
    return equal(m.before, change - m.up + m.down, over=m.before.shape)


def drawn_served(m: FleetModel) -> Rows:
    """Σ_p x_cwp + u_cw = 1: in draw c each request is routed to a deployment or not served."""
    if m.draws is None:
        return no_rows()
    return equal(1.0, m.drawn.by("c", "w") + m.refused)


def drawn_capacities(m: FleetModel) -> Rows:
    """Σ_w λ_cw·g_cp·l_qwp/S_qcp·x_cwp ≤ n_p: counts are shared by the draws; machines of p are g_cp times as slow."""
    if m.draws is None:
        return no_rows()
    c, w, p = m.drawn.labels
    each = m.tables.each_load
    load = m.drawn_rates[c, w] * m.slower[c, p] * each[:, w, p]  # (Q, entries)
    full = np.zeros((len(each), *m.slower.shape))
    where: Any = (slice(None), c, p)
    np.add.at(full, where, load)
    q, i = np.nonzero(load)
    scaled = load[q, i] / np.minimum(full[q, c[i], p[i]], 1.0)
    used = m.drawn.at(i, (np.zeros_like(i), p[i], q, c[i]), scaled, sets=("t", "p", "q", "c"))
    return at_most(0.0, used - m.n.across(q=len(each), c=len(m.slower)).among(used))


def drawn_unserved(m: FleetModel) -> Rows:
    """Σ_c Σ_w λ_cw/Λ_c·u_cw / N ≤ ε: unserved share of the requests, mean over the draws."""
    if m.draws is None or m.draws.unserved is None:
        return no_rows()
    c, w = m.refused.labels
    share = m.drawn_rates[c, w] / np.einsum("cw->c", m.drawn_rates)[c] / len(m.drawn_rates)
    return at_most(m.draws.unserved, (m.refused * share).by())


def drawn_of(tables: FleetTables, draws: Draws) -> tuple[Array, Array]:
    """Rates of the demands in each draw, (N, W), and the factor on the times of each point, (N, P)."""
    rates = tables.rates[0] * np.array([draws.demand[d.workload] for d in tables.demands]).T
    each = [draws.slow.get(r[0], np.ones(len(draws))) for r in tables.resources]
    of = np.reshape(each, (len(each), len(draws)))
    use, slower = tables.use.tocoo(), np.ones((len(tables.points), len(draws)))
    np.maximum.at(slower, use.row, of[use.col])
    return rates, slower.T


def something_runs(m: FleetModel) -> Rows:
    """Σ_t Σ_p n_tp ≥ 1: the ratio of max_ce needs a cost."""
    return no_rows() if m.ratio is None else at_least(1.0, m.n.by())


FAMILIES: tuple[Family, ...] = (
    demand_met, decoded, deadlines, capacity, capacities, small_shares, stock, within_budget, spot_share,
    spot_share_decoded, quality, min_replicas, min_replicas_decoding, one_level, pool_size, survives, small_survives,
    few_pools, starts_limit, stops_limit, machine_balance, something_runs, drawn_served, drawn_capacities,
    drawn_unserved,
)  # fmt: skip


def left(m: FleetModel) -> Terms:
    """Σ_{p ∈ j} n_tp − idle_tj − Σ_k k·y_tjk in rows (t, j): deployments of a pool that are in use after the losses."""
    return by_pool(m, m.n) - m.idle.by("t", "j") - (m.y * m.lost).by("t", "j")


def by_pool(m: FleetModel, terms: Terms) -> Terms:
    """The entries on points under the reserve, in rows (t, j) of their pools."""
    p = terms.labels[-1]
    under = m.pool[p] >= 0
    return terms[under].by("t", j=m.pool[p[under]])


# ------------------------------------------------------------------------------------------------------ objectives


def usd(m: Parameters) -> Terms:
    """Σ_p C_p·n_tp + Σ_wp c_twp·x_twp + Σ_w 3600·v_w·λ_tw·s_tw in row t: USD/h of a period."""
    _, p = m.n.labels
    late = m.x * m.tables.usd_of_shares(*m.x.labels)
    t, w = m.s.labels
    unserved = m.s * (m.usd_unserved[w] * m.rates[t, w])
    return (m.n * m.usd[p]).by("t") + late.by("t") + unserved.by("t")


def usd_per_hour(m: FleetModel) -> Expression:
    """Σ_t h_t·(USD/h of period t) + Σ_t Σ_g (start_usd·up_tg + stop_usd·down_tg) / hours: mean over the day."""
    each = usd(m)
    return Expression(each * m.hours[each.labels[0]]) + (m.up * m.usd_start + m.down * m.usd_stop)


def served(m: FleetModel, value: Array) -> Expression:
    """Σ_t h_t·Σ_w value_w·λ_tw·(1 − s_tw) of a request's value, (W,); over demands that some point can serve."""
    _, demand = m.s.labels
    s = m.s[np.isfinite(m.load.T[:, demand]).any(axis=0)]
    t, w = s.labels
    each = m.hours[t] * value[w] * m.rates[t, w]
    return Expression(s * -each, float(each.sum()))


# ----------------------------------------------------------------------------------------------------------- Pyomo


def attach(block: Any, problem: Fleet, tables: FleetTables) -> None:
    """Put variables and constraints on a Pyomo block; no objective.

    The block gets ``n`` by (period, point), ``x`` by (period, demand, point), ``s`` by (period, demand), the
    expressions ``usd_per_hour`` (all costs, mean over the day) and ``tokens_per_hour`` (weighted, served), the periods
    ``T``, and the `FleetModel` as ``statement``.
    """
    _describe(block, FleetModel(problem, tables, None)).attach(block)


def build(problem: Fleet, tables: FleetTables, ratio: float = 0.0) -> Any:
    """The ConcreteModel of the problem; see `FleetModel` and `attach`."""
    stated = FleetModel(problem, tables, ratio)
    block = stated.pyomo()
    _describe(block, stated)
    return block


def _describe(block: Any, stated: FleetModel) -> FleetModel:
    block.T, block.statement = range(stated.T), stated
    return stated


def extract(block: Any, tables: FleetTables) -> FleetChoice:
    """Counts and shares of a solved block of `attach` or `build`; `tables` are those it was built on."""
    from optmodels.model.pyomo_block import NO_VALUES

    stated: FleetModel = block.statement
    x = stated.solution(block)
    if np.isnan(x).all():
        raise SolverError(NO_VALUES)
    return stated.choice(x)
