"""Operating points of a fleet: deployments as columns, and the load each demand puts on each of them.

A *point* is a deployment: model, machine set with its markets, strategy, parallelism, batch, load level. Its capacity
is one. A demand w (a bucket of a workload) puts `load[w, p]` on it per request/s: deployment-seconds per request,
E2E/batch at the best α within the SLO, divided by the load ρ at which the point is planned. Waiting at ρ counts
against the SLO, so a point planned fuller serves fewer demands. Infinite load: p cannot serve w within its SLO.

An engine that batches continuously has several capacities (`optmodels.engine.continuous.ROWS`): a demand puts
`capacities[q, w, p]` on each, and `load` is the scarcest one's.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from formulations.fleet.engines import EngineKind, FleetLevels, levels, transfer_bytes
from formulations.fleet.plan import CutLine
from formulations.fleet.problem import (
    Demand,
    Fleet,
    FleetCase,
    FleetPoint,
    StockLine,
)
from optmodels.arrays import Array, Columns, Index, Mask
from optmodels.batch.points import NONE, Optimum, StaticTables, in_memory, optimise_each, priced
from optmodels.batch.points import build_tables as build_single
from optmodels.batch.queueing import variability, waiting
from optmodels.catalog.types import MARKETS, Market, Prices
from optmodels.engine.continuous import ROWS, Stage, seconds_and_quantile
from optmodels.errors import InputError, Mistake
from optmodels.latency.strategies import FAMILIES
from optmodels.units import GBPS

Resource = tuple[str, str, Market]  # machine, region, market
LEVEL = ("step_s", "wait_s", "most_of_wait", "place_wait_s", "kv_tokens")
SAME_LEVEL = 1e-9  # what steps and waits of one level may differ by, written to a file and read
SAME_QUALITY = 1e-12  # of a floor, by which scores are as good
STAGES: tuple[Stage, ...] = ("both", "prefill", "decode")
BOTH, PREFILL, DECODE = range(len(STAGES))
CAPACITIES = (*ROWS, "transfer")  # of engines where some do one stage
MOST_REMEMBERED = 200
MOST_DEPLOYMENTS = 1_000_000  # of one point in a period; numbers of them stay exact next to shares


@dataclass(frozen=True)
class FleetPoints(Columns):
    """Deployments; shape (P,)."""

    usd_per_hour: Array
    spot: Mask  # some part is bought on the spot market
    unavailable: Array  # long-run share of time that an interruption takes it away
    rho: Array  # load it is planned for
    slots: Index  # requests in service at a time: its batch
    service_cap_s: Array  # longest service time of the demands it serves; infinite without queueing
    pool: Index  # equal machine set and model: shares a reserve; of measured points, whose model is not known, each one
    block: Index  # where it comes from: blocks[block], or NONE for a measured point
    configuration: Index  # row of the block's configurations, or of case.points
    main_market: Index
    ao_market: Index
    level: Array  # (5, P) of `LEVEL`; NaN where batches are static
    stage: Index  # of `STAGES`
    exchange: Index  # prefill and decode deployments of one exchange KV caches: of a model, region and parallelism
    model: Index  # of `FleetTables.models`


@dataclass(frozen=True)
class PointLatencies(Columns):
    """Latencies of a demand on a point, seconds, shape (W, P); NaN: not modelled or impossible."""

    alpha: Array
    ttft_s: Array  # without waiting
    tpot_s: Array
    itl_s: Array  # NaN without a limit
    e2e_s: Array

    def rows(self, rows: Index) -> PointLatencies:
        """The given demands."""
        return PointLatencies(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


class PointMemory(dict[Any, Any]):
    """Results that similar problems share, by content; the oldest entries go."""

    def keep(self, key: Any, value: Any) -> None:
        """Remember a value."""
        while len(self) >= MOST_REMEMBERED:
            del self[next(iter(self))]
        self[key] = value


@dataclass(frozen=True, repr=False)
class FleetTables:
    """Everything a method may look at."""

    case: FleetCase
    points: FleetPoints
    load: Array  # (W, P), deployments per request/s; inf: impossible
    penalty: Array | None  # (W, P), USD per request that misses a soft SLO
    latencies: PointLatencies | None
    blocks: tuple[StaticTables, ...]
    resources: tuple[Resource, ...]
    use: sp.csr_matrix  # (P, G) machines of each resource in a deployment
    limit_rows: Array  # (R, G) weights of stock and quota rows
    limits: Array  # (R,)
    limit_names: tuple[str, ...]
    blocked: dict[str, str]  # demands without any point → why
    capacities: Array | None = None  # (Q, W, P), loads on each of several; None: `load` is the only one
    spread: float = 1.0  # of the levels, at most (`optmodels.engine.continuous.Points.spread`)
    part_s: Array | None = None  # (W, P), seconds of a deadline that a point of one stage takes; None: none does one
    models: tuple[FleetCase, ...] = ()  # the case as each model sees it
    stretch: float = 1.0  # the points keep limits this many times as long as the case's, and so do pairs of them
    memory: PointMemory = field(default_factory=lambda: PointMemory())  # of `rebind`: rows by model, answers by part

    def __repr__(self) -> str:
        return f"<FleetTables {self.case.problem.name}: {len(self.points)} points, {len(self.demands)} demands>"

    @cached_property
    def quality(self) -> Array | None:
        """Score of a demand's answers by each point over what its workload's mean has to be, less 1; (W, P).

        0 where no quality is asked for, the point does not serve the demand, or it only decodes: a request counts where
        it is prefilled, by the same model. None: no workload asks for any.
        """
        if all(w.quality_at_least is None for w in self.case.workloads):
            return None
        over = np.zeros((len(self.demands), max(len(self.models), 1)))
        for k, case in enumerate(self.models):
            scores = {w.name: w.models[0].quality for w in case.workloads if w.models is not None}
            for i, d in enumerate(self.demands):
                least, score = self.case.workload(d.workload).quality_at_least, scores.get(d.workload)
                if least is not None and score is not None:
                    over[i, k] = score / least - 1.0
        counts = np.isfinite(self.load) & (self.points.stage != DECODE)
        return np.where(counts, over[:, self.points.model], 0.0)

    def good_enough(self) -> FleetTables:
        """The same tables where every point serves only demands whose quality it keeps by itself."""
        if self.quality is None:
            return self
        return replace(self, load=np.where(self.quality >= -SAME_QUALITY, self.load, np.inf))

    @property
    def demands(self) -> tuple[Demand, ...]:
        """Rows of `load`."""
        return self.case.demands

    @cached_property
    def each_load(self) -> Array:
        """Load on each capacity, (Q, W, P); 0 for capacities that are never the scarcest of a point."""
        if self.capacities is None:
            return self.load[None]
        can = np.isfinite(self.load)
        each = np.where(can, self.capacities, 0.0)
        for k in range(len(each)):
            for other in range(len(each)):
                if other != k:  # of equal ones the last stays
                    each[k][:, (each[k] <= each[other]).all(axis=0)] = 0.0
        return np.where(can, each, np.inf)

    def blended(self) -> FleetTables:
        """The same tables with one load that never exceeds the load of every capacity: the one scarcest for every
        demand.

        Any mixture of capacities bounds the deployments needed from below, so a relaxation of these tables is one of
        the others.
        """
        if self.capacities is None:
            return self
        can = np.isfinite(self.load)
        total = np.einsum("w,kwp->kp", self.rates.max(axis=0), np.where(can, self.capacities, 0.0))
        scarcest = np.take_along_axis(self.capacities, total.argmax(axis=0)[None, None, :], axis=0)[0]
        return replace(self, load=np.where(can, scarcest, np.inf), capacities=None)

    @cached_property
    def rates(self) -> Array:
        """Requests/s, shape (T, W)."""
        return np.array([d.requests_per_s for d in self.demands]).T

    @cached_property
    def takes(self) -> sp.csr_array:
        """Use of every stock and quota by a deployment, shape (P, R)."""
        machines = self.use @ sp.csr_matrix(self.limit_rows.T)
        names = self.case.measured_hits
        if not names:
            return sp.csr_array(machines)
        able = np.isfinite(self.load)
        mine = [np.array([d.workload == name for d in self.demands], dtype=bool) for name in names]
        engines = np.array([
            0 if b == NONE else self.blocks[b].configurations.dp[c]
            for b, c in zip(self.points.block.tolist(), self.points.configuration.tolist(), strict=True)
        ])  # fmt: skip
        engines[self.points.stage == DECODE] = 0  # hold no prefix cache
        engines = np.stack([engines * able[rows].any(axis=0) for rows in mine], axis=1)
        return sp.csr_array(sp.hstack([machines, sp.csr_matrix(engines)]))

    @property
    def deadlines(self) -> Array:
        """Seconds of every demand's deadline, as the points keep it, infinite without one, (W,)."""
        limits = [seconds_and_quantile(self.case.workload(d.workload).slo.deadline_s)[0] for d in self.demands]
        return self.stretch * np.array(limits)

    @property
    def consumption(self) -> Array:
        """`takes` as a dense array, shape (P, R)."""
        return self.takes.toarray()

    def restricted(self, columns: Index | Mask) -> FleetTables:
        """The same tables with only some points."""
        rows = np.asarray(columns)
        index: Index = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.intp)
        return replace(
            self, points=self.points.take(index), load=self.load[:, index], use=self.use[index],
            capacities=None if self.capacities is None else self.capacities[:, :, index],
            penalty=None if self.penalty is None else self.penalty[:, index],
            part_s=None if self.part_s is None else self.part_s[:, index],
            latencies=None if self.latencies is None else self.latencies.take(index),
        )  # fmt: skip

    def alone(self) -> FleetTables:
        """The same tables with only the points that each serve requests alone."""
        return self if self.part_s is None else replace(self.restricted(self.points.stage == BOTH), part_s=None)

    def of_demands(self, rows: Index) -> FleetTables:
        """The same tables with only some demands and their workloads."""
        demands = tuple(self.demands[w] for w in rows)
        names = {d.workload for d in demands}
        case = replace(self.case, demands=demands, workloads=tuple(w for w in self.case.workloads if w.name in names))
        return replace(
            self, case=case, load=self.load[rows], penalty=None if self.penalty is None else self.penalty[rows],
            latencies=None if self.latencies is None else self.latencies.rows(rows),
            capacities=None if self.capacities is None else self.capacities[:, rows],
            part_s=None if self.part_s is None else self.part_s[rows],
        )  # fmt: skip

    def usd_per_share(self, period: int) -> Array:
        """Penalty of serving all of a demand by a point, USD/h, shape (W, P)."""
        return self.usd_of_shares(period, *np.ix_(*map(np.arange, self.load.shape)))

    def usd_of_shares(self, t: Any, w: Any, p: Any) -> Array:
        """Penalty of serving all of demand w by point p in period t, USD/h; indices of one shape, or that broadcast."""
        if self.penalty is None:
            return np.zeros(np.broadcast(w, p).shape)
        return self.penalty[w, p] * self.rates[t, w] * 3600.0

    def machines_of(self, point: int) -> Iterator[tuple[Resource, int]]:
        """Machines of a deployment with their number: the main ones, then those for attention."""
        x = self.points
        if x.block[point] == NONE:
            row = self.use[point]
            yield self.resources[row.indices[0]], int(row.data[0])
            return
        tables, c = self.blocks[x.block[point]], int(x.configuration[point])
        markets = MARKETS[x.main_market[point]], None if x.ao_market[point] == NONE else MARKETS[x.ao_market[point]]
        yield from _bought(tables, c, *markets)


def build_tables(problem: Fleet) -> FleetTables:
    """Points of a fleet problem after exact pruning within equal machine sets.

    Of the points with the same machines, markets and model only those are kept that no other one beats for every
    demand (`nondominated`); they cost the same, so an optimum stays.
    """
    return build_case(problem.resolve())


def build_case(case: FleetCase, memory: PointMemory | None = None) -> FleetTables:
    """`build_tables` of a resolved problem; rows of models that `memory` has are not made again.

    A point does not serve a bucket that would take more than `MOST_DEPLOYMENTS` deployments.

    Raises:
        InputError: the demand takes more than that even of the points that it takes fewest of.
    """
    memory = PointMemory() if memory is None else memory
    tables = in_every_piece(_measured(case) if case.points is not None else _modelled(case, memory))
    rates = tables.rates.max(axis=0)[:, None]
    needed = np.multiply(tables.load, rates, where=rates > 0, out=np.where(np.isfinite(tables.load), 0.0, np.inf))
    least = needed.min(axis=1, initial=np.inf)
    total = float(least[np.isfinite(least)].sum())
    if total > MOST_DEPLOYMENTS:
        busiest = case.demands[int(np.where(np.isfinite(least), least, 0.0).argmax())]
        where = f"workloads[{[w.name for w in case.workloads].index(busiest.workload)}]"
        value = f"{max(busiest.requests_per_s):.6g} requests/s of {busiest.name}"
        raise InputError(Mistake(None, where, value, f"a demand that {MOST_DEPLOYMENTS:,} deployments can carry"))
    return _paired(replace(tables, load=np.where(needed <= MOST_DEPLOYMENTS, tables.load, np.inf)))


def in_every_piece(tables: FleetTables) -> FleetTables:
    """The tables with the capacities of every piece of a trace that no other piece exceeds, piece after piece.

    One fleet, with the same shares throughout, has to carry each piece. At rates over the mean f_kw a deployment needs
    Σ_w f_kw·λ_w·l_qwp·x_wp ≤ n_p for each piece k and capacity q, which is a capacity with loads f_kw·l_qwp.
    """
    peaks = tables.case.peaks
    if (peaks == 1.0).all():
        return tables
    each = tables.load[None] if tables.capacities is None else tables.capacities
    can = np.isfinite(tables.load)
    every = peaks[:, None, :, None] * np.where(can, each, 0.0)[None]  # (K, Q, W, P)
    every = np.where(can, every.reshape(len(peaks) * len(each), *tables.load.shape), np.inf)
    return replace(tables, load=every.max(axis=0), capacities=every)


def in_piece(tables: FleetTables, factors: Array) -> FleetTables:
    """Tables of an instance that has only the rates of one piece of its traces.

    Args:
        tables: tables of the instance.
        factors: rates over the mean, (W,).
    """
    case, peaks = tables.case, tables.case.peaks
    demands = tuple(
        replace(d, requests_per_s=tuple(float(f) * r for r in d.requests_per_s), rates=None)
        for d, f in zip(case.demands, factors, strict=True)
    )
    made = replace(tables, case=replace(case, demands=demands, pieces_of={}))
    made = replace(made, models=made.case.by_model)
    if (peaks == 1.0).all() or tables.capacities is None:
        return made
    most, w = peaks.argmax(axis=0), np.arange(len(demands))
    each = (
        tables.capacities.reshape(len(peaks), len(tables.capacities) // len(peaks), *tables.load.shape)[most, :, w]
        / peaks[most, w][:, None, None]
    )
    capacities = each.transpose(1, 0, 2)
    return replace(made, capacities=capacities, load=np.where(np.isfinite(tables.load), capacities.max(axis=0), np.inf))


def in_time(first_s: Any, rest_s: Any, limit_s: float) -> Any:
    """Whether a prefill and a decode deployment together keep a deadline; arrays that broadcast."""
    return first_s + rest_s <= limit_s * (1 + 1e-12)


def _paired(tables: FleetTables) -> FleetTables:
    """The tables without points that no deployment of the other stage goes with: none exchanges caches in time."""
    if tables.part_s is None:
        return tables
    load, blocked = tables.load.copy(), dict(tables.blocked)
    stage, exchange = tables.points.stage, tables.points.exchange
    for w, (d, most) in enumerate(zip(tables.demands, tables.deadlines, strict=True)):
        can = np.isfinite(load[w])
        for k in np.unique(exchange[stage != BOTH]):
            ends = [np.flatnonzero(can & (stage == s) & (exchange == k)) for s in (PREFILL, DECODE)]
            for mine, others in (ends, ends[::-1]):
                least = tables.part_s[w, others].min(initial=np.inf)
                alone = ~in_time(tables.part_s[w, mine], least, most) | (not len(others))
                load[w, mine[alone]] = np.inf
        if not np.isfinite(load[w]).any():
            blocked.setdefault(
                d.name, "no prefill and decode deployments that exchange caches keep its limits together"
            )
    return replace(tables, load=load, blocked=blocked)


OUTSIDE = ("budget_usd_per_hour", "stock", "quota")  # limits that the points do not depend on
OUTSIDE_WORKLOAD = ("serve_at_least", "min_replicas", "spot_share_max", "quality_at_least")
OUTSIDE_CHANGE = ("max_starts", "max_stops")


def rebind(tables: FleetTables, problem: Fleet) -> FleetTables | None:
    """Tables of a changed problem.

    They are the same where only limits outside of the points differ. Else rows of models that are the same are taken
    over. None: of measured points, or of other workloads.
    """
    case = tables.case
    old = case.problem
    if len(problem.workloads) != len(old.workloads):
        return None
    again = None if case.points is not None else lambda: build_case(problem.resolve(), tables.memory)
    asks = {w.name for w in problem.workloads if w.min_replicas} - {w.name for w in old.workloads if w.min_replicas}
    if asks - {d.workload for d in case.demands}:  # buckets without requests that the tables do not have
        return again and again()
    back: dict[str, Any] = {f: getattr(old, f) for f in OUTSIDE}
    back["workloads"] = tuple(
        w.model_copy(update={f: getattr(o, f) for f in OUTSIDE_WORKLOAD})
        for w, o in zip(problem.workloads, old.workloads, strict=True)
    )
    back["change"] = problem.change.model_copy(update={f: getattr(old.change, f) for f in OUTSIDE_CHANGE})
    if dict(problem.model_copy(update=back)) != dict(old):  # fields, not caches
        return again and again()
    case = replace(case, problem=problem, workloads=problem.workloads or case.workloads)
    names, weights, limits = _limit_rows(case, tables.resources)
    return replace(tables, case=case, limit_rows=weights, limits=limits, limit_names=names, models=case.by_model)


# ------------------------------------------------------------------------------------------------------ modelled


@dataclass(frozen=True)
class _Rows(Columns):
    """Configurations × load levels of one model in one region, before markets."""

    block: Index
    configuration: Index
    slots: Index
    rho: Array
    cap_s: Array
    load: Array  # (D, n)
    penalty: Array
    latencies: PointLatencies  # (D, n)
    level: Array  # (5, n)
    capacities: Array | None = None  # (Q, D, n)
    spread: float = 1.0
    stage: Index | None = None  # (n,); None: both
    part_s: Array | None = None  # (D, n), of a deadline

    def besides(self, reserve: bool) -> Array:
        """Keys that compare the points of one machine set, capacities excepted, (n, keys)."""
        parts = [] if self.part_s is None else [self.part_s.T]
        after = [self.load.T * self.rho[:, None]] if reserve else []
        return np.concatenate([self.penalty.T, *parts, *after], axis=1)


def _modelled(case: FleetCase, memory: PointMemory) -> FleetTables:
    blocks: list[StaticTables] = []
    found: list[tuple[int, list[int], _Rows, Index, Index, Array, list[tuple[tuple[Resource, int], ...]]]] = []
    blocked: dict[str, str] = {}
    regions = sorted({m.region for m in case.machines})
    why: dict[int, tuple[float, str]] = {}
    for k, own in enumerate(case.by_model):
        names = {w.name for w in own.workloads}
        rows_of = [i for i, d in enumerate(case.demands) if d.workload in names]
        if not rows_of:
            continue
        made: dict[Any, Any] = {}  # levels of equal engines, of any region
        for region in regions:
            make = _engine_rows if case.problem.continuous else _region_rows
            key = _content(case, own), region
            if key not in memory:
                own_blocks: list[StaticTables] = []
                own_why: dict[int, tuple[float, str]] = {}
                memory.keep(key, (make(own, rows_of, region, own_blocks, own_why, made), own_blocks, own_why))
            rows, own_blocks, own_why = memory[key]
            why |= {i: x for i, x in own_why.items() if i not in why or x[0] <= why[i][0]}
            if rows is not None:
                rows = replace(rows, block=rows.block + len(blocks))
            blocks += own_blocks
            if rows is not None:
                found.append((k, rows_of, rows, *_markets(rows, blocks)))
    served = {i for _, mine, rows, *_ in found for k, i in enumerate(mine) if np.isfinite(rows.load[k]).any()}
    unmodelled = "no machine of the pool can be modelled" + case.without_flops
    for i, d in enumerate(case.demands):
        if i not in served:
            blocked[d.name] = why.get(i, (0.0, unmodelled))[1]
    return replace(_assemble(case, blocks, found, blocked), memory=memory)


def _content(case: FleetCase, own: FleetCase) -> bytes:
    """Everything that the rows of one model depend on."""
    found = blake2b(case.problem.model_dump_json(exclude={"workloads", "name", "title", *OUTSIDE, "change"}).encode())
    for w in own.workloads:
        found.update(w.model_dump_json(exclude={*OUTSIDE_WORKLOAD, "requests"}).encode())
    found.update(repr(case.demands).encode())
    return found.digest()


def _region_rows(
    case: FleetCase, demands: list[int], region: str, blocks: list[StaticTables], why: dict[int, tuple[float, str]],
    _: dict[Any, Any],
) -> _Rows | None:  # fmt: skip
    """Every configuration, batch and load level of one model in one region; dominated ones cut per machine set."""
    parts: list[_Rows] = []
    batches = sorted(set(case.problem.strategies.batches))
    strict: list[list[Optimum]] = []  # by demand and batch
    relaxed: list[list[Optimum | None]] = []
    tables: list[StaticTables] = []
    for i in demands:
        d, w = case.demands[i], case.workload(case.demands[i].workload)
        tables = [build_single(case.single(w, d, region, batch)) for batch in batches]
        curves = [t.curves for t in tables]
        strict.append(optimise_each(curves, [t.limits for t in tables]))
        relaxed.append([None] * len(batches))
        if w.soft is not None:
            slack = [case.single(w, d, region, batch, w.soft.up_to).resolve().limits for batch in batches]
            relaxed[-1] = [*optimise_each(curves, slack)]
        for t, optimum, batch in zip(tables, strict[-1], batches, strict=True):
            _remember(t, optimum, batch, d, why, i)
    for b, batch in enumerate(batches):
        if not len(tables[b].configurations):
            continue
        parts += list(_levels(case, demands, [o[b] for o in strict], [o[b] for o in relaxed], batch, len(blocks)))
        blocks.append(tables[b])
    return _cut(case, _Rows.joined(parts), blocks) if parts else None


def _cut(case: FleetCase, rows: _Rows, blocks: list[StaticTables]) -> _Rows | None:
    """Rows that serve something and that no other one of an equal machine set beats; None where there is none."""
    rows = rows.take(np.flatnonzero(np.isfinite(rows.load).any(axis=0)))
    if not len(rows):
        return None
    each, of = np.unique(np.stack([rows.block, rows.configuration]), axis=1, return_inverse=True)
    sets = np.array([_machine_set(blocks[b], c) for b, c in each.T])[of]
    if rows.stage is not None:  # what does one stage stands in for what does the same, and exchanges caches with it
        tp = np.array([blocks[b].configurations.tp[c] for b, c in each.T])[of]
        equal = case.problem.deployment.link.tensor_parallel == "equal"
        sets = np.column_stack([sets, rows.stage, tp * equal])
    keep: list[int] = []
    _, group = np.unique(sets, axis=0, return_inverse=True)
    order = np.argsort(group, kind="stable")
    besides = rows.besides(case.problem.reserve is not None)
    taken = [rows.load.T] if rows.capacities is None else list(rows.capacities.transpose(0, 2, 1))
    for mine in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        mine = mine[nondominated(np.concatenate([x[mine] for x in (*taken, besides)], axis=1))]
        if rows.capacities is not None and case.problem.certify == "none":  # which may plan the other less full
            mine = mine[~_fits_on_another(rows.capacities[:, :, mine], besides[mine])]
        keep += mine.tolist()
    return rows.take(np.array(sorted(keep), dtype=np.intp))


def _engine_rows(
    case: FleetCase, demands: list[int], region: str, blocks: list[StaticTables], why: dict[int, tuple[float, str]],
    known: dict[Any, Any],
) -> _Rows | None:  # fmt: skip
    """Every machine and tensor parallelism of one model in one region, at every level of its engines."""
    first = case.demands[demands[0]]
    engines = max((m.gpu_count for m in case.machines), default=1)  # of a machine, at most
    one = case.single(case.workload(first.workload), first, region, engines)
    alone = one.strategies.model_copy(update={"families": ("high_end",), "replicas": (1,)})
    tables = build_single(one.model_copy(update={"strategies": alone}))
    ranks = case.problem.strategies.attention_ranks
    if ranks != (1,) and tables.case.architecture.routed:  # without routed experts: this many replicas
        tables = _with_ranks(tables, ranks)
    c = tables.configurations
    kinds = [
        EngineKind(m.gpu or "", int(tp), m.vram_gib / m.gpu_count, attention_ranks=int(d))
        for m, tp, d in zip((tables.machines[i] for i in c.main), c.tp, c.ranks, strict=True)
    ]
    stages = case.problem.deployment.stages
    link = case.problem.deployment.link
    net = np.array([(link.net_gbps or tables.machines[i].net_gbps or 0.0) for i in c.main])
    found: list[tuple[Stage, FleetLevels, Index, Index]] = []  # with rows of the levels, and the configuration of each
    rest: Array | None = None
    spread = 1.0
    for stage in sorted(stages, key=("decode", "prefill", "both").index):  # what decoding takes of a deadline first
        own = kinds if stage == "both" else [replace(k, net_gbps=float(b)) for k, b in zip(kinds, net, strict=True)]
        distinct = [k for k in dict.fromkeys(own) if k.net_gbps != 0.0]
        same = (stage, tuple(distinct)) if rest is None else None  # what decodes is of a region
        made, its_spread, reasons = known.get(same) or levels(case, demands, distinct, stage, rest)
        known |= {} if same is None else {same: (made, its_spread, reasons)}
        spread = max(spread, its_spread)
        why |= {i: (1.0, reason) for i, reason in reasons.items() if i not in why or stage == "both"}
        if stage == "decode":
            rest = np.where(np.isfinite(made.capacities[0]), made.e2e_s, np.inf)
        of = {kind: np.flatnonzero(made.engine == e) for e, kind in enumerate(distinct)}
        each = [of.get(kind, np.zeros(0, dtype=np.intp)) for kind in own]
        row = np.concatenate([np.zeros(0, dtype=np.intp), *each])
        found.append((stage, made, row, np.repeat(np.arange(len(own)), [len(x) for x in each])))
    found.sort(key=lambda f: STAGES.index(f[0]))
    blocks.append(tables)
    configuration = np.concatenate([f[3] for f in found])
    stage_of = np.repeat([STAGES.index(f[0]) for f in found], [len(f[2]) for f in found])
    n, full = len(configuration), case.problem.max_load

    def joined(name: str) -> Array:
        return np.concatenate([getattr(made, name)[..., row] for _, made, row, _ in found], axis=-1)

    capacities = joined("capacities") / (c.dp[configuration] * full)
    apart = case.problem.deployment.apart
    if apart:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            sent = transfer_bytes(case, [case.demands[i] for i in demands])[:, None]
            sent = sent / (link.most_used * net[configuration] * GBPS * full)
        sent = np.where(np.isfinite(capacities[0]), np.where(stage_of == BOTH, 0.0, sent), np.inf)
        capacities = np.concatenate([capacities, sent[None]])
    dollars = np.array([0.0 if (s := case.workload(case.demands[i].workload).soft) is None
                        else s.usd_per_1000_requests / 1000.0 for i in demands])  # fmt: skip
    e2e = joined("e2e_s")
    bounded = np.isfinite([seconds_and_quantile(case.workload(case.demands[i].workload).slo.deadline_s)[0]
                           for i in demands])  # fmt: skip
    rows = _Rows(
        block=np.full(n, len(blocks) - 1, dtype=np.intp), configuration=configuration,
        slots=joined("max_num_seqs").astype(np.intp), rho=np.full(n, full),
        cap_s=np.full(n, np.inf), load=capacities.max(axis=0), penalty=joined("late") * dollars[:, None],
        latencies=PointLatencies(
            np.zeros((len(demands), n)), joined("ttft_s"), joined("tpot_s"), joined("itl_s"), e2e
        ),
        level=np.stack([joined(f) for f in LEVEL]), capacities=capacities, spread=spread,
        stage=stage_of if apart else None,
        part_s=np.where(bounded[:, None] & (stage_of != BOTH), e2e, 0.0) if apart else None,
    )  # fmt: skip
    return _cut(case, rows, blocks)


def _with_ranks(tables: StaticTables, listed: Sequence[int]) -> StaticTables:
    """The tables with engines of this many attention ranks, which take the GPUs of as many replicas."""
    c = tables.configurations
    rows = [np.flatnonzero(c.dp % d == 0) for d in listed]
    row, ranks = np.concatenate([c.dp[:0], *rows]), np.repeat(np.array(listed, dtype=np.intp), [len(r) for r in rows])
    made = replace(c.take(row), dp=c.dp[row] // ranks, ranks=ranks)
    return replace(tables, configurations=made, curves=tables.curves.take(row), candidates=priced(tables.case, made))


def _machine_set(tables: StaticTables, c: int) -> tuple[int, int, int, int]:
    """(main, how many, AO, how many) of a configuration, as in the cost-efficiency plan."""
    x = tables.configurations
    family, count = FAMILIES[x.family[c]], int(x.count[c])
    mains = 1 if family == "multi_pass" else count
    aos = 0 if x.ao[c] == NONE else (count if family == "ao_parallel" else 1)
    return int(x.main[c]), mains, int(x.ao[c]), aos


def _bought(
    tables: StaticTables, c: int, main_market: Market, ao_market: Market | None
) -> Iterator[tuple[Resource, int]]:
    """Machines of a configuration with their number: the main ones, then those for attention."""
    main, mains, ao, aos = _machine_set(tables, c)
    yield (tables.machines[main].machine, tables.machines[main].region, main_market), mains
    if ao_market is not None:
        yield (tables.machines[ao].machine, tables.machines[ao].region, ao_market), aos


def _levels(
    case: FleetCase, demands: list[int], strict: list[Optimum], relaxed: list[Optimum | None], batch: int, block: int
) -> Iterator[_Rows]:
    """Rows of one batch, one set per load level and service class."""
    q = case.problem.queueing
    n = len(strict[0].feasible)
    workloads = [case.workload(case.demands[i].workload) for i in demands]
    pick: list[list[Array]] = []
    for o, r in zip(strict, relaxed, strict=True):
        late = np.zeros(n, dtype=bool) if r is None else ~o.feasible & r.feasible
        found = [np.where(late, getattr(r or o, f), getattr(o, f)) for f in ("alpha", "ttft_s", "tpot_s", "e2e_s")]
        pick.append([np.where(o.feasible | late, x, np.nan) for x in found])
    alpha, ttft, tpot, e2e = np.stack(pick, axis=1)
    latencies = PointLatencies(alpha, ttft, tpot, np.full_like(e2e, np.nan), e2e)
    if q.model == "none":
        levels = [(case.problem.max_load, np.full(n, np.inf))]
    else:
        caps = _distinct(_longest_services(e2e, q.service_classes))
        levels = [(rho, cap) for rho in sorted(set(q.load_levels)) if rho < 1 for cap in caps]
    for rho, cap in levels:
        factor = variability(q.model, q.arrival_scv, q.service_scv, batch, rho)
        load, penalty = np.full((len(demands), n), np.inf), np.zeros((len(demands), n))
        for k, w in enumerate(workloads):
            with np.errstate(invalid="ignore"):
                can = np.isfinite(e2e[k]) & (e2e[k] <= cap * (1 + 1e-12))
            excess = np.zeros(n)
            for limit, base in ((w.slo.ttft_s, ttft[k]), (w.slo.deadline_s, e2e[k])):
                seconds, percentile = seconds_and_quantile(limit)
                if np.isfinite(seconds):
                    wait = 0.0 if q.model == "none" else waiting(batch, rho, factor, percentile) * cap
                    excess = np.fmax(excess, (base + wait) / seconds)
            excess = np.fmax(excess, tpot[k] / seconds_and_quantile(w.slo.tpot_s)[0])
            if w.slo.tps is not None:
                d = case.demands[demands[k]]
                excess = np.fmax(excess, w.slo.tps * e2e[k] / (batch * d.tokens))
            can &= excess <= (1.0 if w.soft is None else w.soft.up_to) * (1 + 1e-9)
            load[k, can] = e2e[k, can] / (batch * rho)
            if w.soft is not None:
                penalty[k] = np.where(excess > 1 + 1e-9, w.soft.usd_per_1000_requests / 1000.0, 0.0)
        yield _Rows(
            np.full(n, block, dtype=np.intp), np.arange(n), np.full(n, batch, dtype=np.intp), np.full(n, rho),
            cap, load, penalty, latencies, np.full((len(LEVEL), n), np.nan),
        )  # fmt: skip


def _longest_services(service: Array, classes: int) -> list[Array]:
    """Longest service times that waiting is planned for, (n,) by class: quantiles of the distinct ones, (D, n).

    Every one where there are no more than `classes`; the longest is always the last.
    """
    ranked = np.sort(np.where(np.isfinite(service), service, -1.0), axis=0)  # impossible ones first
    again = np.diff(ranked, axis=0, append=np.inf) <= 0  # stands in the next row, too
    ranked = np.sort(np.where(again, -1.0, ranked), axis=0)
    D, n = ranked.shape
    possible = (ranked >= 0).sum(axis=0)
    found = []
    for k in range(1, classes + 1):
        which = np.maximum(np.ceil(possible * k / classes).astype(int) - 1, 0)
        found.append(np.maximum(ranked[np.minimum(D - possible + which, D - 1), np.arange(n)], 0.0))
    return found


def _distinct(caps: list[Array]) -> list[Array]:
    kept: list[Array] = []
    for cap in caps:
        if not any(np.array_equal(cap, other) for other in kept):
            kept.append(cap)
    return kept


def _remember(
    tables: StaticTables, o: Optimum, batch: int, d: Demand, why: dict[int, tuple[float, str]], i: int
) -> None:
    """Keep the nearest miss of a demand, in words, for the case that nothing serves it."""
    if not len(o.feasible):
        return
    if o.feasible.any():  # then it is waiting that leaves no point
        why[i] = (0.0, f"batch {batch} meets its SLO without waiting, but not with waiting at any of the load levels")
        return
    limits = tables.limits
    fits = in_memory(tables.curves)
    if not fits.any():
        if i not in why:
            why[i] = (np.inf, "the model and its KV cache fit no deployment's memory")
        return
    tokens = batch * d.tokens
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = np.stack([o.ttft_s / limits.ttft_s, o.tpot_s / limits.tpot_s, o.e2e_s / limits.e2e_s])
    ratios[:, ~fits] = np.inf
    worst = ratios.max(axis=0)
    c = int(np.nanargmin(np.where(np.isnan(worst), np.inf, worst)))
    machine = tables.machines[tables.configurations.main[c]].machine
    texts = []
    if ratios[0, c] > 1:
        texts.append(f"TTFT {o.ttft_s[c]:.4g} s > {limits.ttft_s:.4g} s")
    if ratios[1, c] > 1:
        texts.append(f"TPOT {o.tpot_s[c]:.4g} s > {limits.tpot_s:.4g} s")
    if ratios[2, c] > 1:
        slo = tokens / limits.e2e_s
        texts.append(f"{tokens / o.e2e_s[c]:.4g} tokens/s < {slo:.4g} tokens/s (TPS or deadline)")
    if worst[c] < why.get(i, (np.inf, ""))[0] or i not in why:
        why[i] = (float(worst[c]), f"nearest is {machine} at batch {batch}: {', '.join(texts)}")


def _markets(
    rows: _Rows, blocks: list[StaticTables]
) -> tuple[Index, Index, Array, list[tuple[tuple[Resource, int], ...]]]:
    """Expand rows by market: (row, candidate of its block, USD/h, machines) of every offer."""
    by_block: dict[int, tuple[Index, Index]] = {}
    for b in np.unique(rows.block):
        of = blocks[b].candidates.configuration
        order = np.argsort(of, kind="stable")
        by_block[int(b)] = order, np.searchsorted(of[order], np.arange(len(blocks[b].configurations) + 1))
    row_of: list[int] = []
    candidate: list[int] = []
    cost: list[float] = []
    machines: list[tuple[tuple[Resource, int], ...]] = []
    for r, (b, c) in enumerate(zip(rows.block, rows.configuration, strict=True)):
        order, start = by_block[int(b)]
        tables = blocks[b]
        for s in order[start[c] : start[c + 1]]:
            row_of.append(r)
            candidate.append(int(s))
            cost.append(float(tables.candidates.usd_per_hour[s]))
            ao = tables.candidates.ao_market[s]
            machines.append(tuple(_bought(
                tables, c, MARKETS[tables.candidates.main_market[s]], None if ao == NONE else MARKETS[ao]
            )))  # fmt: skip
    return np.array(row_of, dtype=np.intp), np.array(candidate, dtype=np.intp), np.array(cost), machines


def _assemble(case: FleetCase, blocks: list[StaticTables], found: list[Any], blocked: dict[str, str]) -> FleetTables:
    W = len(case.demands)
    total = sum(len(row) for _, _, _, row, *_ in found)
    load, penalty = np.full((W, total), np.inf), np.zeros((W, total))
    apart = case.problem.deployment.apart
    rows_of_engines = CAPACITIES if apart else ROWS
    capacities = np.full((len(rows_of_engines), W, total), np.inf) if case.problem.continuous else None
    part_s = np.zeros((W, total)) if apart else None
    stage, exchange = np.zeros(total, dtype=np.intp), np.zeros(total, dtype=np.intp)
    groups: dict[tuple[int, str, int], int] = {}
    latencies = {f.name: np.full((W, total), np.nan) for f in fields(PointLatencies)}
    kinds = {"Array": float, "Index": np.intp, "Mask": bool}
    none = {f.name: np.zeros(0, dtype=kinds[str(f.type)]) for f in fields(FleetPoints)}
    parts = [FleetPoints(**none | {"level": np.zeros((len(LEVEL), 0))})]
    every: list[tuple[tuple[Resource, int], ...]] = []
    pools: dict[tuple[int, int, object], int] = {}
    at = 0
    for model, mine, rows, row, candidate, cost, machines in found:
        here = slice(at, at + len(row))
        load[mine, here] = rows.load[:, row]
        penalty[mine, here] = rows.penalty[:, row]
        if capacities is not None:
            capacities[:, mine, here] = rows.capacities[:, :, row]
        for name, values in latencies.items():
            values[mine, here] = getattr(rows.latencies, name)[:, row]
        block = rows.block[row]
        if part_s is not None and rows.part_s is not None and rows.stage is not None:
            part_s[mine, here] = rows.part_s[:, row]
            stage[here] = rows.stage[row]
            equal = case.problem.deployment.link.tensor_parallel == "equal"
            for p, (b, k) in enumerate(zip(block, rows.configuration[row], strict=True), start=at):
                region, tp = machines[p - at][0][0][1], int(blocks[b].configurations.tp[k]) * equal
                exchange[p] = groups.setdefault((model, region, tp), len(groups))
        markets = [
            (blocks[b].candidates.main_market[s], blocks[b].candidates.ao_market[s])
            for b, s in zip(block, candidate, strict=True)
        ]
        parts.append(FleetPoints(
            usd_per_hour=cost, rho=rows.rho[row], slots=rows.slots[row], service_cap_s=rows.cap_s[row],
            block=block, configuration=rows.configuration[row], level=rows.level[:, row],
            main_market=np.array([a for a, _ in markets], dtype=np.intp),
            ao_market=np.array([b for _, b in markets], dtype=np.intp),
            pool=np.array([
                pools.setdefault((model, int(s), m), len(pools)) for s, m in zip(stage[here], machines, strict=True)
            ], dtype=np.intp),
            stage=stage[here], exchange=exchange[here], model=np.full(len(row), model, dtype=np.intp),
            spot=np.array([any(r[2] == "spot" for r, _ in m) for m in machines], dtype=bool),
            unavailable=np.array([_unavailable(case, m) for m in machines]),
        ))  # fmt: skip
        every += machines
        at += len(row)
    resources, use = _use(every)
    names, weights, limits = _limit_rows(case, resources)
    soft = any(w.soft is not None for w in case.workloads)
    return FleetTables(
        case, FleetPoints.joined(parts), load, penalty if soft else None, PointLatencies(**latencies), tuple(blocks),
        resources, use, weights, limits, names, blocked, capacities,
        max((rows.spread for _, _, rows, *_ in found), default=1.0), part_s, case.by_model,
    )  # fmt: skip


def _unavailable(case: FleetCase, machines: tuple[tuple[Resource, int], ...]) -> float:
    """Share of time a deployment is lost to interruptions of any of its spot machines: 1 − Π 1/(1 + r·T)."""
    available = 1.0
    for (machine, region, market), count in machines:
        if market != "spot":
            continue
        for rule in case.problem.interruptions:
            if fnmatch.fnmatchcase(machine, rule.machine) and fnmatch.fnmatchcase(region, rule.region):
                available *= (1.0 / (1.0 + rule.per_hour * rule.recovery_s / 3600.0)) ** count
                break
    return 1.0 - available


def _use(machines: list[tuple[tuple[Resource, int], ...]]) -> tuple[tuple[Resource, ...], sp.csr_matrix]:
    index: dict[Resource, int] = {}
    i, j, v = [], [], []
    for p, used in enumerate(machines):
        for resource, count in used:
            i.append(p)
            j.append(index.setdefault(resource, len(index)))
            v.append(float(count))
    return tuple(index), sp.csr_matrix((v, (i, j)), shape=(len(machines), len(index)))


def _limit_rows(case: FleetCase, resources: tuple[Resource, ...]) -> tuple[tuple[str, ...], Array, Array]:
    """Stock rows (one for every matching machine and region) and quota rows, with weights over resources; engines."""
    by_key = {(m.machine, m.region): m for m in case.machines}
    gpu = {key: m.gpu or "" for key, m in by_key.items()}

    def weight(r: Resource, line: StockLine) -> float:
        m = by_key.get((r[0], r[1]))
        if line.unit == "gpus":
            return float(m.gpu_count) if m is not None else 1.0
        if line.unit == "vcpus":
            return float(m.vcpu or 0) if m is not None else 1.0
        return 1.0

    names: list[str] = []
    rows: list[Array] = []
    limits: list[float] = []
    for kind, lines in (("stock", case.problem.stock), ("quota", case.problem.quota)):
        for line in lines:
            match = [
                g for g, (machine, region, market) in enumerate(resources)
                if fnmatch.fnmatchcase(machine, line.machine) and fnmatch.fnmatchcase(region, line.region)
                and line.market in (None, market) and fnmatch.fnmatchcase(gpu.get((machine, region), ""), line.gpu)
            ]  # fmt: skip
            groups = {None: match} if kind == "quota" else {}
            if kind == "stock":
                for g in match:
                    groups.setdefault(resources[g][:2], []).append(g)  # type: ignore[arg-type]
            for key, members in groups.items():
                row = np.zeros(len(resources))
                for g in members:
                    row[g] = weight(resources[g], line)
                rows.append(row)
                limits.append(float(line.at_most))
                label = line.label if key is None else StockLine(
                    machine=key[0], region=key[1] or "*", market=line.market, at_most=line.at_most
                ).label  # fmt: skip
                names.append(f"{kind} of {label}" + ("" if line.unit == "machines" else f", {line.unit}"))
    weights = np.array(rows).reshape(len(rows), len(resources))
    for name in case.measured_hits:  # engines, which `FleetTables.takes` counts
        assert case.problem.prefix_cache is not None
        names.append(f"quota for {name}, engines")
        limits.append(float(case.problem.prefix_cache.engines))
    return tuple(names), weights, np.array(limits)


# ------------------------------------------------------------------------------------------------------ measured


def _measured(case: FleetCase) -> FleetTables:
    """Points from measured throughputs; load = 1/(ρ·requests/s), the throughputs being within the SLO.

    What does one stage takes no part of a deadline: there is none next to such points.
    """
    assert case.points is not None
    demand = {d.name: i for i, d in enumerate(case.demands)}
    W, q = len(case.demands), case.problem.queueing
    prices = {(m.machine, m.region): m.prices for m in case.machines}
    levels = [case.problem.max_load] if q.model == "none" else sorted({r for r in q.load_levels if r < 1})
    n = len(case.points)
    rate = np.zeros((W, n))
    for k, p in enumerate(case.points):
        for name, value in p.requests_per_s.items():
            if name in demand:
                rate[demand[name], k] = value
    cost = np.array([_price(p, prices) for p in case.points])
    machines: list[tuple[tuple[Resource, int], ...]] = [
        (((p.machine or p.name, p.region, p.market), p.count),) for p in case.points
    ]
    slots = np.array([p.slots for p in case.points], dtype=np.intp)
    stage = np.array([STAGES.index(p.stage) for p in case.points], dtype=np.intp)
    labels = {None if (w := of.workloads[0]).models is None else w.models[0].label: k
              for k, of in enumerate(case.by_model)}  # fmt: skip
    model = np.array([labels.get(p.model, 0) for p in case.points], dtype=np.intp)  # 0: of one that serves nothing
    equal = case.problem.deployment.link.tensor_parallel == "equal"
    groups: dict[tuple[int, str, int], int] = {}
    exchange = np.array([
        0 if p.stage == "both" else groups.setdefault((int(k), p.region, (p.tp or 1) * equal), len(groups))
        for p, k in zip(case.points, model, strict=True)
    ], dtype=np.intp)  # fmt: skip
    with np.errstate(divide="ignore", over="ignore"):
        busy = 1.0 / rate  # (W, n) deployment-seconds per request
    service = busy * slots  # seconds in a slot
    classes = [np.full(n, np.inf)] if q.model == "none" else _longest_services(service, q.service_classes)
    loads, caps, rhos = [], [], []
    for rho in levels:
        for cap in classes:
            load = busy / rho
            load[service > cap * (1 + 1e-12)] = np.inf
            for i, d in enumerate(case.demands) if q.model != "none" else ():
                slo = case.workload(d.workload).slo
                for limit, base in ((slo.ttft_s, 0.0), (slo.deadline_s, service[i])):
                    seconds, percentile = seconds_and_quantile(limit)
                    if np.isfinite(seconds):
                        wait = cap * np.array([
                            waiting(c, rho, variability(q.model, q.arrival_scv, q.service_scv, c, rho), percentile)
                            for c in slots.tolist()
                        ])  # fmt: skip
                        load[i, base + wait > seconds] = np.inf
            loads.append(load)
            caps.append(cap)
            rhos.append(np.full(n, rho))
    index = np.tile(np.arange(n), len(loads))
    every = [machines[k] for k in index]
    points = FleetPoints(
        usd_per_hour=cost[index], spot=np.array([any(r[2] == "spot" for r, _ in m) for m in every], dtype=bool),
        unavailable=np.array([_unavailable(case, m) for m in every]), rho=np.concatenate(rhos), slots=slots[index],
        service_cap_s=np.concatenate(caps),
        pool=index.astype(np.intp),
        block=np.full(len(index), NONE, dtype=np.intp), configuration=index.astype(np.intp),
        main_market=np.array([MARKETS.index(case.points[k].market) for k in index], dtype=np.intp),
        ao_market=np.full(len(index), NONE, dtype=np.intp), level=np.full((len(LEVEL), len(index)), np.nan),
        stage=stage[index], exchange=exchange[index], model=model[index],
    )  # fmt: skip
    load = np.concatenate(loads, axis=1)
    part_s = np.zeros(load.shape) if stage.any() else None
    blocked = {d.name: "no point sustains it" for i, d in enumerate(case.demands) if not np.isfinite(load[i]).any()}
    resources, use = _use(every)
    names, weights, limits = _limit_rows(case, resources)
    return FleetTables(
        case, points, load, None, None, (), resources, use, weights, limits, names, blocked, part_s=part_s,
        models=case.by_model,
    )  # fmt: skip


def _price(p: FleetPoint, prices: Mapping[tuple[str, str], Prices]) -> float:
    if p.usd_per_hour is not None:
        return p.usd_per_hour
    each = prices[p.machine, p.region].get(p.market)
    assert each is not None
    return float(p.count * each)


# ------------------------------------------------------------------------------------------------------- pruning


def nondominated(keys: Array, chunk: int = 256, block: int = 64) -> Index:
    """Rows that no other row is at most in every column (of equal rows the first); shape (n, K), inf allowed.

    Sorted by the sum over columns (infinities last), a row can only be dominated by an earlier one, and by a kept
    one if by any, because domination is transitive. The smallest kept ones, a `block`, come first: they beat most.
    """
    n = len(keys)
    if n <= 1:
        return np.arange(n)
    finite = np.where(np.isfinite(keys), keys, 0.0)
    order = np.lexsort((np.arange(n), finite.sum(axis=1), (~np.isfinite(keys)).sum(axis=1)))
    keys = keys[order]
    keys = keys[:, _telling(keys, keys)]
    kept = order[:0]  # places in the order
    for start in range(0, n, chunk):
        part = np.arange(start, min(start + chunk, n))
        for lo in range(0, len(kept), block):
            part = part[~_at_most(keys[kept[lo : lo + block]], keys[part]).any(axis=0)]
        fresh = ~_at_most(keys[part], keys[part], earlier=True).any(axis=0)
        kept = np.concatenate([kept, part[fresh]])
    return np.sort(order[kept])


@cache
def _pairs() -> Array:
    """A random pair, the smaller first, as shares of a number, (2, 256)."""
    return np.sort(np.random.default_rng(0).random((2, 256)), axis=0)


def _telling(one: Array, other: Array) -> Index:
    """Columns in which a row of one may exceed a later one of the other, first those that show it of most pairs."""
    columns = np.flatnonzero((one > other.min(axis=0)).any(axis=0))
    i, j = (_pairs() * len(one)).astype(np.intp)  # a sample tells which
    above = one[i][:, columns] > other[j][:, columns]
    first: list[int] = []
    while above.any():
        first.append(int(above.sum(axis=0).argmax()))
        above = above[~above[:, first[-1]]]
    return np.concatenate([columns[first], np.delete(columns, first)])


def _at_most(one: Array, other: Array, earlier: bool = False) -> Mask:
    """Whether a row is at most another in every column, (n, m); of `earlier` rows alone: before it."""
    found = np.ones((len(one), len(other)), dtype=bool)
    if earlier:
        found = np.triu(found, 1)
    k = 0
    while k < one.shape[1] and np.count_nonzero(found) > found.size / 16:  # all pairs, and once few are left these
        found &= one[:, None, k] <= other[:, k]
        k += 1
    i, j = np.nonzero(found)
    found[:] = False
    while k < one.shape[1] and len(i):
        to = 2 * k + 2
        keep = (one[i, k:to] <= other[j, k:to]).all(axis=1)
        i, j, k = i[keep], j[keep], to
    found[i, j] = True
    return found


def _fits_on_another(capacities: Array, besides: Array) -> Mask:
    """Points that another one stands in for which takes no more of any capacity than they do of one, (n,).

    Where max_k l_qwk ≤ l_pwk' for one capacity k' and every demand w of p, Σ_w l_qwk x_w ≤ Σ_w l_pwk' x_w for all k:
    what fits on p fits on q. Then max_k l_qwk ≤ max_k l_pwk: in the order of these only an earlier point stands in.

    Args:
        capacities: l, (Q, W, n).
        besides: other things that the substitute may take no more of, (n, K).
    """
    most = capacities.max(axis=0)
    order = np.lexsort((np.where(np.isfinite(most), most, 0.0).sum(axis=0), -np.isfinite(most).sum(axis=0)))
    most, besides = most[:, order], besides[order]
    takes = np.concatenate([most.T, besides], axis=1)
    found = np.zeros(len(order), dtype=bool)
    for each in capacities[:, :, order]:
        room = np.concatenate([np.where(np.isfinite(most), each, np.inf).T, besides], axis=1)
        columns = _telling(takes, room)
        found[order] |= _at_most(takes[:, columns], room[:, columns], earlier=True).any(axis=0)
    return found


def prune(tables: FleetTables, most: float = 4e9) -> tuple[FleetTables, dict[str, int]]:
    """Cut points that another one can replace one for one, so that an optimum stays.

    q replaces p if it costs no more, serves every demand of p with no more load and penalty, takes no more of any
    stock or quota, answers as well where quality is asked for, and counts against no limit that p does not (spot
    shares, reserve, machines that run now). Of one machine set it does, too, if it takes no more of any capacity than p
    of one (`_fits_on_another`).
    """
    p = tables.points
    counts = {"points": len(p)}
    can = np.isfinite(tables.load).any(axis=0)
    problem = tables.case.problem
    same: list[Array] = []  # what must agree
    each = [tables.load] if tables.capacities is None else list(tables.capacities)
    keys = [p.usd_per_hour[:, None], tables.consumption]
    if tables.penalty is not None:
        keys.append(tables.penalty.T)
    spot_limited = any(w.spot_share_max < 1 for w in tables.case.workloads)
    if spot_limited:
        keys.append(p.spot[:, None].astype(float))
    if tables.quality is not None:  # what does not serve a demand has no quality that another one lacks
        keys.append(np.where(np.isfinite(tables.load), -tables.quality, np.inf).T)
    if problem.reserve is not None:
        keys += [tables.load.T * p.rho[:, None]]
        same.append(p.pool.astype(float))
    changing = problem.running is not None or (len(tables.case.periods) > 1 and changes_matter(problem))
    if changing or tables.case.draws is not None:  # in draws types are slow at different times
        same.append(p.pool.astype(float))
    if tables.part_s is not None:
        keys.append(tables.part_s.T)
        same += [p.stage.astype(float), p.exchange.astype(float)]
    besides = np.concatenate(keys, axis=1)
    matrix = np.concatenate([besides, *(load.T for load in each)], axis=1)
    rows = np.flatnonzero(can)
    alike = np.zeros(len(rows), dtype=np.intp)
    if same:
        _, alike = np.unique(np.stack(same, axis=1)[rows], axis=0, return_inverse=True)
    parts = [rows[alike == k] for k in range(int(alike.max(initial=-1)) + 1)]
    if sum(len(part) ** 2 for part in parts) * matrix.shape[1] / 4 <= most:
        parts = [part[nondominated(matrix[part])] for part in parts]
        if tables.capacities is not None:
            sets = [part[p.pool[part] == k] for part in parts for k in np.unique(p.pool[part])]
            parts = [mine[~_fits_on_another(tables.capacities[:, :, mine], besides[mine])] for mine in sets]
        rows = np.sort(np.concatenate([rows[:0], *parts]))
    counts["kept"] = len(rows)
    return tables.restricted(rows), counts


def engines(tables: FleetTables) -> tuple[npt.NDArray[np.str_], Array, Index, Index, Index]:
    """Of each point of engines, (P,): GPU and its GiB, GPUs in an attention rank, ranks, and how many engines."""
    at = [(tables.blocks[b], c) for b, c in zip(tables.points.block, tables.points.configuration, strict=True)]
    mains = [block.machines[block.configurations.main[c]] for block, c in at]
    gpu = np.array([m.gpu or "" for m in mains])
    gib = np.array([m.vram_gib / m.gpu_count for m in mains])
    tp, ranks, dp = (np.array([getattr(b.configurations, n)[c] for b, c in at]) for n in ("tp", "ranks", "dp"))
    return gpu, gib, tp, ranks, dp


def cut(tables: FleetTables, cuts: Sequence[CutLine]) -> FleetTables:
    """The tables under what certification found: points planned less full, and pairs that are none.

    A cut names an engine at a level, and holds for every point at that level, whatever its machine, market and region.
    """
    if not cuts:
        return tables
    case, x = tables.case, tables.points
    gpu, gib, tp, ranks, _ = engines(tables)
    keep, forbidden = np.ones(len(x)), np.zeros(tables.load.shape, dtype=bool)
    for line in cuts:
        most = np.inf if line.most_of_wait is None else line.most_of_wait
        same = [line.step_s, line.wait_s, most, line.place_wait_s]
        level = np.isclose(x.level[:4].T, same, rtol=SAME_LEVEL, atol=0.0).all(axis=1)
        mine = level & (x.model == case.which(line.loads, line.model)) & (gpu == line.gpu)
        mine &= (tp == line.tensor_parallel) & (ranks == (line.attention_ranks or 1))
        mine &= x.stage == STAGES.index(line.stage)
        mine &= np.isclose(gib, line.gpu_gib, rtol=SAME_LEVEL)
        keep[mine] = line.keep
        forbidden[np.ix_([d.name in line.forbidden for d in tables.demands], mine)] = True
    load = np.where(forbidden, np.inf, tables.load / keep)
    none = np.isfinite(tables.load).any(axis=1) & ~np.isfinite(load).any(axis=1)
    blocked = {tables.demands[w].name: "no point is left on which its latencies hold" for w in np.flatnonzero(none)}
    capacities = None if tables.capacities is None else np.where(forbidden, np.inf, tables.capacities / keep)
    return replace(
        tables, points=replace(x, rho=x.rho * keep), load=load, capacities=capacities, blocked=tables.blocked | blocked
    )


def changes_matter(problem: Fleet) -> bool:
    """Whether starting or stopping machines costs or is limited."""
    c = problem.change
    return bool(c.start_usd or c.stop_usd or c.max_starts is not None or c.max_stops is not None)
