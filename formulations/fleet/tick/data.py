"""A tick as arrays: an instance's deployments, the state of the fleet and a forecast.

Each workload has one pool per machine type: the deployment that carries most of its mixture there. Pools share the
machines of a type.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from formulations.fleet.points import BOTH, FleetTables
from formulations.fleet.tick.rule import Lead, lead_of
from formulations.fleet.tick.state import TickState
from optmodels.arrays import Array, Ints
from optmodels.errors import InputError, Mistake, Mistakes


@dataclass(frozen=True)
class Tick:
    """One tick's parameters: G machine types, P pools, W workloads, H ticks, J quantiles, R limits.

    Attributes:
        tick_min: minutes of a tick.
        workloads: names, W.
        machines: (machine, region, market), G.
        usd: USD a tick of a machine, (G,).
        lead: times of each type, G.
        drain: ticks that a stopped machine is paid, (G,).
        start_usd, stop_usd: with hysteresis, (G,).
        ready: machines that run, (G,).
        arriving: machines on their way by the tick that they are ready in, (H, G).
        young: running machines that may not stop yet, by tick, (H, G).
        min_up: ticks that a machine runs at least.
        committed: machines that are paid in any case, (G,).
        blocked: ticks from now in which orders fail, (G,).
        limit_rows: weights of stock and quota rows, (R, G).
        limits: (R,).
        limit_names: R.
        of: workload of each pool, (P,).
        use: machines of each type that a deployment takes, (P, G).
        rate: requests/s of its workload that a deployment carries, (P,).
        names: name of each pool's deployment, P.
        load: ticks from a ready machine to a deployment that serves, (P,).
        serving: deployments that serve; None: not stated; (P,).
        loading: deployments that load by the tick in which they serve, (H, P).
        rates: forecast requests/s, (H, J, W).
        levels: quantiles, (J,).
        mass: probability that each quantile represents, (J,).
        late_usd: USD of one request/s beyond capacity for a tick, (W,).
        max_changes: machines ordered and stopped now; infinite: no limit.
        order, keep: quantiles of the rule.
    """

    tick_min: float
    workloads: tuple[str, ...]
    machines: tuple[tuple[str, str, str], ...]
    usd: Array
    lead: tuple[Lead, ...]
    drain: Array
    start_usd: Array
    stop_usd: Array
    ready: Ints
    arriving: Ints
    young: Ints
    min_up: int
    committed: Ints
    blocked: Ints
    limit_rows: Array
    limits: Array
    limit_names: tuple[str, ...]
    of: Ints
    use: Array
    rate: Array
    names: tuple[str, ...]
    load: Ints
    serving: Ints | None
    loading: Ints
    rates: Array
    levels: Array
    mass: Array
    late_usd: Array
    max_changes: float = math.inf
    order: float = 0.99
    keep: float = 0.995

    @property
    def kept(self) -> Ints:
        """Committed machines that can be there in each tick, (H, G)."""
        there = self.ready + np.cumsum(self.arriving, axis=0)
        late = np.arange(self.H)[:, None] >= np.maximum([x.start for x in self.lead], self.blocked)[None, :]
        return np.where(late, self.committed, np.minimum(self.committed, there))

    @property
    def H(self) -> int:  # noqa: N802 - the mathematics' name
        """Ticks."""
        return len(self.rates)

    def at(self, level: float) -> Array:
        """Forecast rates at a quantile, linear between the given ones, (H, W)."""
        where = np.interp(level, self.levels, np.arange(len(self.levels)))
        low = int(where)
        high = min(low + 1, len(self.levels) - 1)
        return np.asarray(self.rates[:, low] + (where - low) * (self.rates[:, high] - self.rates[:, low]))


def masses(levels: Array) -> Array:
    """Probability that each quantile represents: the difference to the one below; the largest has the rest above, too.

    Quantiles 0.5, 0.9 represent (−∞, q0.5] and (q0.5, ∞): a shortage beyond the largest quantile is counted at it.
    """
    edges = np.concatenate([[0.0], levels[:-1] + np.diff(levels) / 2, [1.0]])
    return np.diff(edges)


def horizon(state: TickState, machines: Sequence[str]) -> int:
    """Ticks to look ahead: three times the largest lead time and hysteresis, 6 to 48."""
    leads = [state.lead(m) for m in machines] or [state.lead("*")]
    ticks = max(math.ceil((x.start_min + x.load_min) / state.tick_min) for x in leads)
    return min(max(3 * (ticks + math.ceil(60 * state.change.hysteresis_h / state.tick_min)), 6), 48)


def tick_of(tables: FleetTables, state: TickState, rates: Array, levels: Sequence[float], names: Sequence[str]) -> Tick:
    """The arrays of a tick.

    Args:
        tables: operating points of the instance.
        state: the fleet now.
        rates: forecast requests/s, (H, J, W), workloads in the order of `names`.
        levels: quantiles, ascending.
        names: workloads of the forecast.

    Raises:
        InputError: machines of the state that the instance does not have, or a workload that no deployment serves.
    """
    H = len(rates)
    wrong = Mistakes()
    of, use, rate, labels = _pools(tables, names)
    resources = tuple(tables.resources)
    used = np.flatnonzero((use > 0).any(axis=0))
    by_name = {r: g for g, r in enumerate(resources)}

    def find(entry: Any, path: str) -> int | None:
        mine = [g for r, g in by_name.items()
                if r[0] == entry.machine and entry.region in ("", r[1]) and r[2] == entry.market]  # fmt: skip
        if not mine:
            near = sorted({r[0] for r in resources})[:5]
            wrong.add(path, f"{entry.machine} ({entry.market})", f"a machine of the problem, such as {', '.join(near)}")
            return None
        return mine[0]

    G, tick = len(resources), state.tick_min
    ready, arriving = np.zeros(G, np.int64), np.zeros((H, G), np.int64)
    young = np.zeros((H, G), np.int64)
    min_up = math.ceil(state.change.min_up_min / tick - 1e-9)
    for i, m in enumerate(state.machines):
        g = find(m, f"machines[{i}].machine")
        if g is None:
            continue
        ready[g] += m.ready
        for s in m.starting:
            at = math.ceil(s.ready_in_min / tick - 1e-9)
            if at == 0:
                ready[g] += s.count
            elif at < H:
                arriving[at, g] += s.count
        for age in m.ages_min:
            left = math.ceil((state.change.min_up_min - age) / tick - 1e-9)
            young[: max(left, 0), g] += 1
    committed = np.zeros(G, np.int64)
    for i, c in enumerate(state.commitments):
        g = find(c, f"commitments[{i}].machine")
        if g is not None:
            committed[g] += c.count
    blocked = np.zeros(G, np.int64)
    for b in state.blocked:
        for r, g in by_name.items():
            if fnmatch.fnmatchcase(r[0], b.machine) and fnmatch.fnmatchcase(r[1], b.region):
                blocked[g] = max(blocked[g], math.ceil(b.minutes / tick - 1e-9))
    price = _prices(tables)
    load_min = np.array([state.lead(r[0]).load_min for r in resources])
    extra = load_min if state.deployments is None else np.zeros(G)
    start = np.array([math.ceil((state.lead(r[0]).start_min + e) / tick - 1e-9)
                      for r, e in zip(resources, extra, strict=True)])  # fmt: skip
    usd = price * tick / 60.0
    change = state.change
    start_usd = change.start_usd + change.hysteresis_h * price
    stop_usd = np.full(G, change.stop_usd)
    drain = np.full(G, change.drain_min / tick)
    lead = tuple(
        lead_of(int(start[g]), float(drain[g]), float(start_usd[g]), change.stop_usd, float(usd[g])) for g in range(G)
    )
    main = use.argmax(axis=1)
    load = (
        np.ceil(load_min[main] / tick - 1e-9).astype(np.int64)
        if state.deployments is not None
        else np.zeros(len(of), np.int64)
    )
    serving, loading = None, np.zeros((H, len(of)), np.int64)
    if state.deployments is not None:
        serving = np.zeros(len(of), np.int64)
        for i, d in enumerate(state.deployments):
            g = find(d, f"deployments[{i}].machine")
            mine: Any = (
                []
                if g is None or d.workload not in names
                else np.flatnonzero((of == list(names).index(d.workload)) & (use[:, g] > 0))
            )
            if g is not None and not len(mine):
                wrong.add(f"deployments[{i}].workload", d.workload, f"one of {', '.join(names)}, served by {d.machine}")
                continue
            if g is None:
                continue
            serving[mine[0]] += d.count
            for s in d.loading:
                at = math.ceil(s.ready_in_min / tick - 1e-9)
                if at < H:
                    loading[at, mine[0]] += s.count
    wrong.raise_any()
    per_request = np.array([  # USD of one request/s for a tick, at the least price
        (use[of == w] @ usd / rate[of == w]).min() for w in range(len(names))
    ])  # fmt: skip
    late = per_request / (1.0 - state.order)  # so that capacity at the order quantile costs least (newsvendor)
    if state.usd_per_1000_late is not None:
        late = np.full(len(names), state.usd_per_1000_late / 1000 * tick * 60)
    q = np.asarray(levels, dtype=float)
    limited = np.isfinite(tables.limits)
    keep_rows = np.flatnonzero(limited)
    keep_g = np.union1d(used, np.flatnonzero((ready > 0) | (arriving.sum(axis=0) > 0) | (committed > 0)))
    rows = np.asarray(tables.limit_rows)[keep_rows][:, keep_g]
    some = np.asarray(rows.any(axis=1))
    return Tick(
        tick_min=tick, workloads=tuple(names), machines=tuple(resources[g] for g in keep_g), usd=usd[keep_g],
        lead=tuple(lead[g] for g in keep_g), drain=drain[keep_g], start_usd=start_usd[keep_g],
        stop_usd=stop_usd[keep_g], ready=ready[keep_g], arriving=arriving[:, keep_g], young=young[:, keep_g],
        min_up=min_up, committed=committed[keep_g], blocked=blocked[keep_g], limit_rows=rows[some],
        limits=np.asarray(tables.limits)[keep_rows][some],
        limit_names=tuple(n for n, s in zip((tables.limit_names[r] for r in keep_rows), some, strict=True) if s),
        of=of, use=use[:, keep_g], rate=rate, names=labels, load=load, serving=serving, loading=loading, rates=rates,
        levels=q, mass=masses(q), late_usd=late,
        max_changes=math.inf if change.max_changes is None else change.max_changes, order=state.order, keep=state.keep,
    )  # fmt: skip


def _prices(tables: FleetTables) -> Array:
    """USD an hour of one machine of each resource, from the points that use it alone."""
    price = np.full(len(tables.resources), np.inf)
    use = tables.use.tocsr()
    for p in range(len(tables.points)):
        a, b = use.indptr[p], use.indptr[p + 1]
        if b - a == 1:
            g = use.indices[a]
            price[g] = min(price[g], tables.points.usd_per_hour[p] / use.data[a])
    return np.where(np.isfinite(price), price, 0.0)


def _pools(tables: FleetTables, names: Sequence[str]) -> tuple[Ints, Array, Array, tuple[str, ...]]:
    """For each workload and machine set the deployment that carries most of the workload's mixture."""
    tables = tables.good_enough()
    x = tables.points
    each = tables.each_load
    dense = np.asarray(tables.use.todense())
    sets, group = np.unique(dense, axis=0, return_inverse=True)
    group = group.ravel()
    of, rate, rows = [], [], []
    for w, name in enumerate(names):
        mine = np.array([i for i, d in enumerate(tables.demands) if d.workload == name])
        if not len(mine):
            raise InputError(
                Mistake(None, "workload", name, f"one of {', '.join(w.name for w in tables.case.workloads)}")
            )
        total = tables.rates[:, mine].sum(axis=0)
        share = total / total.sum() if total.sum() > 0 else np.full(len(mine), 1.0 / len(mine))
        busy = share > 0
        load = np.einsum("w,qwp->qp", share[busy], each[:, mine[busy]]).max(axis=0)
        load = np.where((x.stage == BOTH) & (load > 0), load, np.inf)
        best = np.full(len(sets), np.inf)
        np.minimum.at(best, group, load)
        able = np.flatnonzero(np.isfinite(best))
        if not len(able):
            raise InputError(Mistake(None, "workloads", name, "a deployment that serves all its buckets by itself"))
        of += [w] * len(able)
        rate += (1.0 / best[able]).tolist()
        rows += able.tolist()
    use = sets[rows].astype(float)
    labels = tuple(
        " + ".join(f"{int(n)}× {tables.resources[g][0]}" for g, n in enumerate(row) if n) + f" for {names[w]}"
        for row, w in zip(use, of, strict=True)
    )
    return np.array(of, np.int64), use, np.array(rate), labels
