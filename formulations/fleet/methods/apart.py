"""Fleets with disaggregated prefill and decode as known tools size them: one prefill and one decode configuration a
model.

Every bucket of a model goes to one prefill and one decode kind of deployment, whose numbers match its rate. DistServe
(Zhong et al., OSDI 2024, algorithm 1) takes the configuration with the best goodput per GPU of each stage, all GPUs
being alike, and as many replicas as the rate needs. AIConfigurator (NVIDIA; its SDK's picking.py) enumerates units of x
prefill and y decode workers, of whose rates it plans 90 % and 92 % (its rate-matching degradation factors), and repeats
the unit up to the rate. Here stand USD/h in the place of numbers of GPUs, and our points with their limits on latency
in the place of either tool's predictions, so that the plans hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from formulations.fleet.methods.columns import components
from formulations.fleet.methods.heuristics import Share, complete, finish
from formulations.fleet.plan import FleetPlan
from formulations.fleet.points import BOTH, DECODE, PREFILL, FleetTables, in_time, nondominated
from formulations.fleet.problem import Fleet
from optmodels.arrays import Array, Index
from optmodels.formulation import Method, Options
from optmodels.plans.outcome import Outcome

PREFILL_FACTOR, DECODE_FACTOR = 0.9, 0.92  # of a worker's rate, that AIConfigurator plans
MOST_WORKERS = 32  # of a stage in its unit
ROUNDED = 1e-9  # deployments
Sized = tuple[float, int, int]  # USD/h, and numbers of prefill and decode deployments


def pairs(tables: FleetTables, rows: Index, load: Array, alike: Sequence[object]) -> Iterator[tuple[int, int]]:
    """Prefill and decode points that exchange caches and serve all these demands, keeping their deadlines together.

    Points that another of the same stage, exchange and kind (`alike`) replaces at no more price and load are left out.
    """
    assert tables.part_s is not None
    points, limits = tables.points, tables.deadlines.tolist()
    groups: dict[tuple[int, int, object], list[int]] = {}
    for p in np.flatnonzero(np.isfinite(load) & (points.stage != BOTH)).tolist():
        groups.setdefault((int(points.stage[p]), int(points.exchange[p]), alike[p]), []).append(p)
    keys = np.column_stack([points.usd_per_hour, load, tables.part_s[rows].T])
    best = {key: [mine[k] for k in nondominated(keys[mine])] for key, mine in groups.items()}
    for (stage, exchange, _), first in best.items():
        others = [d for key, mine in best.items() if key[:2] == (DECODE, exchange) for d in mine]
        for p in first if stage == PREFILL else ():
            for d in others:
                if all(in_time(tables.part_s[w, p], tables.part_s[w, d], limits[w]) for w in rows):
                    yield p, d


def loads(tables: FleetTables, t: int, rows: Index) -> Array:
    """Deployments of every point that these demands take together, (P,); infinite where one cannot be served."""
    each = tables.load[None] if tables.capacities is None else tables.capacities
    with np.errstate(invalid="ignore"):
        total = np.einsum("w,qwp->qp", tables.rates[t, rows], each[:, rows]).max(axis=0)
    return np.where(np.isfinite(tables.load[rows]).all(axis=0), total, np.inf)


def _sized(
    problem: Fleet, tables: FleetTables,
    size: Callable[[FleetTables, Array, int, int], Sized | None],
) -> Outcome[FleetPlan]:  # fmt: skip
    """The cheapest pair as `size` counts it, for the demands of every model and period by themselves."""
    clock = time.perf_counter()
    if tables.part_s is None:
        return finish(problem, tables, None, clock, "only with prefill and decode apart")
    alike = _gpus(tables)
    shares: list[Share] = []
    counts = np.zeros((len(tables.case.periods), len(tables.points)), dtype=np.intp)
    for t in range(len(tables.case.periods)):
        active = np.isfinite(tables.load) & (tables.rates[t] > 0)[:, None]
        for rows, _ in components(active):
            load = loads(tables, t, rows)
            found = [
                (*sized, p, d)
                for p, d in pairs(tables, rows, load, alike)
                if (sized := size(tables, load, p, d)) is not None
            ]
            if not found:
                why = f"no one pair of configurations serves every bucket with {tables.demands[rows[0]].workload}'s"
                return finish(problem, tables, None, clock, why)
            _, x, y, p, d = min(found)
            counts[t, [p, d]] = x, y
            shares += [(t, w, k, 1.0) for w in rows.tolist() for k in (p, d)]
    choice = complete(problem, tables, shares)
    return finish(problem, tables, replace(choice, n=np.maximum(choice.n, counts)), clock)


def distserve(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """Equal GPUs for both stages, each stage's best goodput per dollar, replicated up to the rate."""
    gpus = _gpus(tables)

    def size(tables: FleetTables, load: Array, p: int, d: int) -> Sized | None:
        if gpus[p] != gpus[d]:
            return None
        usd = tables.points.usd_per_hour
        x, y = (max(1, int(np.ceil(load[k] - ROUNDED))) for k in (p, d))
        return float(load[p] * usd[p] + load[d] * usd[d]), x, y  # by goodput, before rounding up

    return _sized(problem, tables, size)


def xpyd(problem: Fleet, tables: FleetTables, options: Options) -> Outcome[FleetPlan]:
    """Units of x prefill and y decode workers, at 90 and 92 % of their rates, as often as needed: the cheapest."""
    workers = np.arange(1, MOST_WORKERS + 1)

    def size(tables: FleetTables, load: Array, p: int, d: int) -> Sized | None:
        usd = tables.points.usd_per_hour
        first, rest = PREFILL_FACTOR * workers[:, None] / load[p], DECODE_FACTOR * workers[None, :] / load[d]
        units = np.ceil(1.0 / np.minimum(first, rest) - ROUNDED)  # each serves that share of the requests/s
        price = units * (workers[:, None] * usd[p] + workers[None, :] * usd[d])
        x, y = np.unravel_index(int(price.argmin()), price.shape)
        n = int(units[x, y])
        return float(price[x, y]), n * int(workers[x]), n * int(workers[y])

    return _sized(problem, tables, size)


def _gpus(tables: FleetTables) -> list[str | None]:
    """The GPU of every point; for measured points the GPU of their machine or, outside of the pool, its name.

    None of points that name no machine: these count as alike.
    """
    x = tables.points
    if tables.case.points is not None:
        gpus = {(m.machine, m.region): m.gpu for m in tables.case.machines}
        points = [tables.case.points[c] for c in x.configuration]
        return [gpus.get((p.machine, p.region)) or p.machine or None for p in points]
    if not tables.blocks:
        return [None] * len(x)
    mains = [tables.blocks[b].machines[tables.blocks[b].configurations.main[c]]
             for b, c in zip(x.block, x.configuration, strict=True)]  # fmt: skip
    return [m.gpu for m in mains]


METHODS: dict[str, Method] = {"distserve": distserve, "xpyd": xpyd}
TITLES = {
    "distserve": "one prefill and one decode configuration on equal GPUs, rates matched (DistServe)",
    "xpyd": "units of x prefill and y decode workers of one configuration each (AIConfigurator)",
}
