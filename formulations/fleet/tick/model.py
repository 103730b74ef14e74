"""The tick as a MILP: machines, deployments and expected shortage over the horizon (docs/tick.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from formulations.fleet.tick.data import Tick
from optmodels.arrays import Array, Ints
from optmodels.model import Family, Model, Rows, Terms, Variable, at_least, at_most, equal, no_rows


class TickModel(Model):
    """Machines M_tg, orders o_tg, stops d_tg, deployments n_tp, loads ld_tp and requests beyond capacity z_tjw.

    Args:
        tick: parameters.
        whole: ticks from the first whose counts are whole; the rest is relaxed. None: every tick.
    """

    n: Variable
    M: Variable
    o: Variable
    d: Variable
    z: Variable
    ld: Variable

    def __init__(self, tick: Tick, whole: int | None = None) -> None:
        super().__init__("tick")
        self.tick = tick
        H, G, P = tick.H, len(tick.machines), len(tick.of)
        W, J = len(tick.workloads), len(tick.levels)
        whole = H if whole is None else min(whole, H)
        self.arrives = np.array([x.start for x in tick.lead])  # (G,), ticks
        # No plan needs more: bounds that make the relaxation's dual bound finite.
        peak = tick.rates.max(axis=(0, 1))
        most_n = np.ceil(peak[tick.of] / tick.rate) + 1.0
        needed = most_n @ tick.use
        most = needed + tick.ready + tick.arriving.sum(axis=0) + tick.committed
        t, g = np.indices((H, G)).reshape(2, -1)
        may = (t + self.arrives[g] < H) & (t >= tick.blocked[g])
        # Whole and relaxed ticks are two variables, as a variable is whole or not; rows read their concatenation.
        self.M = self._split("M", "g", whole, H, lower=tick.kept.astype(float), upper=most)
        self.n = self._split("n", "p", whole, H, lower=np.zeros((H, P)), upper=most_n)
        self.o = self.variable("o", ("t", "g"), (H, G), upper=np.where(may, most[g], 0.0).reshape(H, G))
        self.d = self.variable("d", ("t", "g"), (H, G), upper=most[None, :])
        self.loads = tick.load > 0
        late = np.flatnonzero(self.loads)
        at, which = np.indices((H, len(late))).reshape(2, -1)
        self.ld = self.variable("ld", ("t", "p"), (at, late[which]), upper=most_n[late[which]])
        self.z = self.variable("z", ("t", "j", "w"), (H, J, W), upper=tick.rates)
        self.state(FAMILIES)
        _, zj, zw = self.z.labels
        self.minimise("usd", self.expression("cost", (
            (self.M * np.tile(tick.usd, H)).by()
            + (self.o * np.tile(tick.start_usd + tick.usd * self.arrives, H)).by()
            + (self.d * np.tile(tick.stop_usd + tick.usd * tick.drain, H)).by()
            + (self.z * (tick.mass[zj] * tick.late_usd[zw])).by()
        ), -float((tick.kept @ tick.usd).sum())))  # fmt: skip

    def _split(self, name: str, of: str, whole: int, H: int, lower: Array, upper: Array) -> Any:
        """A variable (H, ·) that is whole in the first ticks; upper bounds by label."""
        t, k = np.indices(lower.shape).reshape(2, -1)
        made: Any = None
        for part, integer in ((t < whole, True), (t >= whole, False)):
            if part.any():
                more = self.variable(
                    name if integer else f"{name}_tail", ("t", of), (t[part], k[part]), lower=lower[t[part], k[part]],
                    upper=upper[k[part]], integer=integer,
                )  # fmt: skip
                made = more if made is None else made + more
        return made

    def values(self, name: str, x: Array) -> Array:
        """(H, ·) values of M or n."""
        parts = [self.variables[k].of(x) for k in (name, f"{name}_tail") if k in self.variables]
        return np.concatenate(parts).reshape(self.tick.H, -1)


def _shifted(terms: Terms, by: Ints, H: int, sets: tuple[str, str]) -> Terms:
    """Entries of tick t as terms of row t + by[label]; those beyond the horizon are left out."""
    t, k = terms.labels
    inside = np.flatnonzero(t + by[k] < H)
    return terms.at(inside, (t[inside] + by[k[inside]], k[inside]), sets=sets)


def machine_balance(m: TickModel) -> Rows:
    """M_tg − M_{t−1,g} = A_tg + o_{t−L_g,g} − d_tg, with M_{−1,g} the machines that run now."""
    came = m.tick.arriving.astype(float)
    came[0] += m.tick.ready
    ordered = _shifted(m.o, m.arrives, m.tick.H, ("t", "g"))
    return equal(came, m.M - m.M.lag("t") - ordered + m.d)


def machines_hold(m: TickModel) -> Rows:
    """Σ_p u_pg·(n_tp + Σ_{τ=t−ℓ_p+1..t} ld_τp + loading_tp) ≤ M_tg: machines may be idle, which is what bridging is."""
    tick = m.tick
    taken = m.n.dot("p", tick.use, "g") - m.M
    rest = np.zeros((tick.H, len(tick.machines)))
    if len(m.ld):
        t, p = m.ld.labels
        spans = [np.flatnonzero((tick.load[p] > k) & (t + k < tick.H)) for k in range(int(tick.load.max()))]
        e, later = np.concatenate(spans), np.concatenate([np.full(len(s), k) for k, s in enumerate(spans)])
        taken = taken + m.ld.at(e, (t[e] + later, p[e]), sets=("t", "p")).dot("p", tick.use, "g")
        waiting = np.cumsum(tick.loading[::-1], axis=0)[::-1] - tick.loading  # still loading in tick t, (H, P)
        rest = waiting @ tick.use
    return at_most(-rest, taken)


def deployment_balance(m: TickModel) -> Rows:
    """n_tp − n_{t−1,p} ≤ loading_tp + ld_{t−ℓ_p,p}: a deployment serves ℓ_p ticks after its machine begins to load."""
    tick = m.tick
    if tick.serving is None or not len(m.ld):
        return no_rows()
    came = tick.loading.astype(float)
    came[0] += tick.serving
    mine = m.n[m.loads[m.n.labels[1]]]
    return at_most(came, mine - mine.lag("t") - _shifted(m.ld, tick.load, tick.H, ("t", "p")))


def minimum_up(m: TickModel) -> Rows:
    """M_tg ≥ young_tg + Σ_{τ=t−U+1..t} (A_τg + o_{τ−L_g,g}): Rajan and Takriti's rows, for counts."""
    tick = m.tick
    if tick.min_up < 1:
        return no_rows()
    came = tick.young.astype(float)
    for k in range(min(tick.min_up, tick.H)):
        came[k:] += tick.arriving[: tick.H - k]
    recent = [_shifted(m.o, m.arrives + k, tick.H, ("t", "g")) for k in range(tick.min_up)]
    terms: Terms = m.M
    for ordered in recent:
        terms = terms - ordered
    return at_least(came, terms)


def stock(m: TickModel) -> Rows:
    """Σ_g a_gr·(M_tg + Σ_{τ=t−L_g+1..t} o_τg + Σ_{τ>t} A_τg) ≤ b_r: machines on the way take stock."""
    tick = m.tick
    if not len(tick.limits):
        return no_rows()
    coming = np.cumsum(tick.arriving[::-1], axis=0)[::-1] - tick.arriving
    terms: Terms = m.M
    for k in range(int(m.arrives.max(initial=0))):
        t, g = m.o.labels
        inside = np.flatnonzero((t + k < tick.H) & (k < m.arrives[g]))
        terms = terms + m.o.at(inside, (t[inside] + k, g[inside]), sets=("t", "g"))
    there = np.cumsum(tick.arriving, axis=0) + tick.ready + coming  # running and ordered machines may exceed a limit
    most = np.maximum(tick.limits[None, :], there @ tick.limit_rows.T)
    return at_most(most - coming @ tick.limit_rows.T, terms.dot("g", tick.limit_rows.T, "r"))


def beyond(m: TickModel) -> Rows:
    """Σ_{p of w} c_p·n_tp + z_tjw ≥ λ^j_tw: z is what exceeds the capacity at the j-th quantile."""
    tick = m.tick
    _, p = m.n.labels
    served = (m.n * tick.rate[p]).by("t", w=tick.of[p])
    J = len(tick.levels)
    return at_least(np.transpose(tick.rates, (0, 2, 1)), served.across(j=J) + m.z.by("t", "w", "j"))


def changes_limit(m: TickModel) -> Rows:
    """Σ_g (o_0g + d_0g) ≤ the changes that one tick may have."""
    if not np.isfinite(m.tick.max_changes):
        return no_rows()
    now = [v[v.labels[0] == 0].by() for v in (m.o, m.d)]
    return at_most(float(m.tick.max_changes), now[0] + now[1])


FAMILIES: tuple[Family, ...] = (
    machine_balance, machines_hold, deployment_balance, minimum_up, stock, beyond, changes_limit,
)  # fmt: skip
