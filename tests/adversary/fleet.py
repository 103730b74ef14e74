"""Fleet: every point of an instance in one plain program, and random instances."""

from __future__ import annotations

import csv
import dataclasses
import fnmatch
import functools
import io
import itertools
import json
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import yaml
from scipy.stats import binom

from formulations.fleet.problem import (
    Bucket,
    Fleet,
    FleetPoint,
    FleetWorkload,
    HitRow,
    ModelOption,
    Percentile,
    PoolChoice,
)  # fmt: skip
from optmodels import catalog
from optmodels.catalog.types import Architecture, Machine
from optmodels.latency.calibration import Calibration
from optmodels.latency.resolve import Source, deployment, llm_name, read_source, resolve
from optmodels.latency.steps import Provenance, StepCosts
from tests.adversary import continuous, lengths, static
from tests.adversary.continuous import Kind, Level
from tests.adversary.draw import WEIGHTS
from tests.adversary.harness import FILES, Answer, Instance, UnsettledError
from tests.adversary.programme import Programme, Solution
from tests.adversary.static import Curve, Rng, Setting, Skeleton, between, maybe, pick, some

LEFT_OUT = (
    static.SHAPES
    | static.BOUNDS
    | static.itl("FleetSlo")
    | {
        **{f"TraceFile.{key}": static.READ for key in static.READERS},
        **{f"PoolChoice.{key}": static.READ for key in ("columns", "prices")},
        **dict.fromkeys(
            (
                "FleetWorkload.pieces",
                "Pieces.seconds",
                "Pieces.busiest",
                "BusiestPiece.window",
                "BucketRequests.of",
                "BusiestPiece.times_the_mean",
                "Bucket.rates",
                "Bucket.input_bounds",
                "Bucket.output_bounds",
            ),
            "requests of a trace over time, which tests of traces judge",
        ),
        "Gpu.driver_source": "for people",
        "Fleet.title": "for people",
        "PoolChoice.price_source": "for people",
        "Fleet.name": "for people",
        "Calibration.model": "provenance",
        **{f"{kind}.note": "for people" for kind in ("Gpu", "Machine", "Architecture")},
        **{
            f"{kind}.{key}": "for people"
            for kind in ("Gpu", "Architecture", "Calibration")
            for key in ("title", "source")
        },
        "Calibration.date": "for people",
        "Calibration.schema_version": "one value",
        "Calibration.schema_version=1": "one value",
        "Architecture.params": "for people",
        "Architecture.checkpoint": "for export",
    }
)
MOST_POINTS = 4000
MOST_DEPLOYMENTS = 1e6  # of a kind in a plan
Machines = tuple[tuple[str, str, str, int], ...]  # (machine, region, market, count)


# The reference ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Demand:
    """A bucket of a workload."""

    workload: FleetWorkload
    name: str
    input_tokens: int | None
    output_tokens: int | None
    rates: tuple[float, ...]  # by period, 1/s

    @property
    def tokens(self) -> int:
        return (self.input_tokens or 0) + (self.output_tokens or 0) or 1


class Serves(NamedTuple):
    """What a point does of a demand.

    Attributes:
        demand: its name.
        takes: deployments that 1 request/s takes of each capacity.
        late: whether the SLO is missed.
        part_s: seconds of a deadline, where it does one stage.
    """

    demand: str
    takes: tuple[float, ...]
    late: bool
    part_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class Point:
    """A deployment: what it costs and is made of, and what it can serve.

    Attributes:
        stage: of its requests.
        exchange: prefill and decode deployments of one exchange KV caches.
        engines: that batch continuously.
        measured: the name of a measured point, which has a reserve of its own.
    """

    usd: float
    machines: Machines
    model: Any
    load: float
    serves: tuple[Serves, ...]
    stage: str = "both"
    exchange: Any = None
    engines: int = 0
    measured: str | None = None

    def score(self, w: FleetWorkload) -> float:
        """What a workload says of the model's answers."""
        return next((m.quality or 0.0 for m in w.models or () if self.model in (_key(m), _label(m))), 0.0)

    @property
    def spot(self) -> bool:
        return any(m[2] == "spot" for m in self.machines)


def reference(data: Instance) -> Answer:
    """The best fleet by one program over every point."""
    plain = {k: v for k, v in data.items() if k != FILES}
    cache = plain.get("prefix_cache", {})
    if isinstance(cache.get("hits"), str):
        plain["prefix_cache"] = cache | {"hits": json.loads(data[FILES][cache["hits"]])["hits"]}
    p = Fleet.model_validate(plain)
    sense = "min" if p.objective == "min_cost" else "max"
    # Of certified plans simulation keeps the promises; what bounds them is a model with limits that are longer, by so
    # many times as time allows.
    loosest = max(p.certification.stretches) if p.certify == "replay" else 1.0
    loose = p.model_copy(update={"workloads": tuple(_stretched(w, loosest) for w in p.workloads)})
    best = _optimum(loose, data, static.PLAN_TOLERANCE, generous=True)
    worst = _optimum(p, data, 0.0, generous=False)
    # What is served is the demand less what is not: no solver tells less than the rounding of that.
    served = p.objective == "max_served"
    asked = sum(w.weight * max(d.rates) for w in p.workloads for d in _demands(p, w, data)) if served else 0.0
    return Answer(best, worst, sense, relative=3e-6, absolute=1e-12 * (1 + asked))  # type: ignore[arg-type]


def _optimum(p: Fleet, data: Instance, slack: float, generous: bool) -> float | None:
    workloads, own = p.workloads, p.points
    if p.melange.file is not None:
        workloads, own = _melange(data[FILES][p.melange.file])
    hours = [q.hours for q in p.periods] or [24.0]
    demands = {d.name: d for w in workloads for d in _demands(p, w, data)}
    pool = _machines(p)
    points = _every_point(p, data, own, demands, pool, slack, generous)
    if not generous:  # a bucket that takes more deployments of a point than a plan may have need not be offered it
        most = {d: MOST_DEPLOYMENTS / max(x.rates) for d, x in demands.items()}
        points = [
            dataclasses.replace(q, serves=tuple(s for s in q.serves if max(s.takes) <= most[s.demand])) for q in points
        ]
    points = _without_poorer([q for q in _completed(points) if q.serves])
    if len(points) > MOST_POINTS:
        raise UnsettledError(f"{len(points)} points")
    known = {(m.machine, m.region): m for m in pool}
    whole = _Fleet(p, workloads, demands, points, hours, slack, known)
    if whole.up or p.objective == "max_ce":
        return whole.optimum()
    each = []  # nothing ties the periods
    for t, h in enumerate(hours):
        mine = {name: dataclasses.replace(d, rates=(d.rates[t],)) for name, d in demands.items()}
        found = _Fleet(p, workloads, mine, points, [h], slack, known).optimum()
        if found is None:
            return None
        each.append(found * h / sum(hours))
    return math.fsum(each)


def _machines(p: Fleet) -> list[Machine]:
    listed = p.pool if isinstance(p.pool, tuple) else () if p.pool is None else (p.pool,)
    return [m for one in listed for m in static.machines(one)]


def _every_point(
    p: Fleet, data: Instance, own: tuple[FleetPoint, ...] | None, demands: dict[str, Demand], pool: list[Machine],
    slack: float, generous: bool,
) -> list[Point]:  # fmt: skip
    if p.points_table is not None:
        own = (*(own or ()), *_table(data[FILES][p.points_table]))
    if own is not None:
        return list(_measured(p, own, demands, pool, generous))
    return list(_modelled(p, data, demands, pool, slack, generous))


def _stretched(w: FleetWorkload, times: float) -> FleetWorkload:
    """A workload whose limits on latencies are so many times as long."""

    def longer(limit: Any) -> Any:
        if isinstance(limit, Percentile):
            return limit.model_copy(update={"at_most": limit.at_most * times})
        return None if limit is None else limit * times

    limits = {k: longer(getattr(w.slo, k)) for k in ("ttft_s", "tpot_s", "deadline_s")}
    return w.model_copy(update={"slo": w.slo.model_copy(update=limits)})


def _without_poorer(points: list[Point]) -> list[Point]:
    """Without points in whose place another one, equal but for what it serves, would do everything they do."""
    groups: dict[Any, list[Point]] = {}
    for q in points:
        groups.setdefault((q.usd, q.machines, q.model, q.load, q.stage, q.exchange, q.measured), []).append(q)
    return [
        q for mine in groups.values() for i, q in enumerate(mine)
        if not any(_does(o, q) and (j < i or not _does(q, o)) for j, o in enumerate(mine) if j != i)
    ]  # fmt: skip


def _completed(points: list[Point]) -> list[Point]:
    """Measured points, without the demands that no point of the other stage in the same exchange serves."""
    other = {"prefill": "decode", "decode": "prefill"}
    able = {(q.stage, q.exchange, s.demand) for q in points for s in q.serves}
    return [
        q if q.measured is None or q.stage == "both" else dataclasses.replace(
            q, serves=tuple(s for s in q.serves if (other[q.stage], q.exchange, s.demand) in able)
        )
        for q in points
    ]  # fmt: skip


def _does(one: Point, other: Point) -> bool:
    """Whether one serves all that the other one serves, no later and with no more of any capacity."""
    return all(
        any(
            a.demand == b.demand and a.late <= b.late and a.part_s <= b.part_s
            and all(x <= y for x, y in zip(a.takes, b.takes, strict=True))
            for a in one.serves
        )
        for b in other.serves
    )  # fmt: skip


class _Fleet:
    """The program of an instance."""

    def __init__(
        self, p: Fleet, workloads: tuple[FleetWorkload, ...], demands: dict[str, Demand], points: list[Point],
        hours: list[float], slack: float, pool: dict[tuple[str, str], Machine],
    ) -> None:  # fmt: skip
        self.p, self.workloads, self.demands, self.points, self.pool = p, workloads, demands, points, pool
        self.share = [h / sum(hours) for h in hours]
        self.hours, self.loose = hours, 1 + slack
        m = self.m = Programme()
        periods = range(len(hours))
        self.n = {(t, i): m.variable(whole=True) for t in periods for i in range(len(points))}
        self.x = {
            (t, i, k): m.variable(0.0, 0.0, 1.0)
            for t in periods for i, q in enumerate(points) for k, s in enumerate(q.serves)
            if demands[s.demand].rates[t] > 0
        }  # fmt: skip
        self.s = {
            (t, d.name): m.variable(0.0, 0.0, min(1.0, 1 - self._least(d.workload) * (2 - self.loose)))
            for t in periods for d in demands.values() if d.rates[t] > 0
        }  # fmt: skip
        self.up: dict[tuple[int, Any], int] = {}
        self.down: dict[tuple[int, Any], int] = {}
        for t in periods:
            self._serving(t)
            self._apart(t)
            self._limits(t)
            self._quality(t)
            self._reserve(t)
        self._changes()
        self.refused = self._drawn()

    def _least(self, w: FleetWorkload) -> float:
        if w.serve_at_least is not None:
            return w.serve_at_least
        return 1.0 if self.p.objective == "min_cost" and not w.unserved_usd_per_1000_requests else 0.0

    def _load(self, t: int, i: int, k: int) -> float:
        """Deployments that all of a demand takes, of the scarcest capacity."""
        s = self.points[i].serves[k]
        return self.demands[s.demand].rates[t] * max(s.takes)

    def _felt(self, load: dict[int, float]) -> dict[int, float]:
        """Loads that do not vanish beside a deployment or the others: the solver would drop them in silence.

        Those that would are left out where limits are read generously, and taken for more where strictly.
        """
        least = max(1e-10 * max(load.values(), default=1.0), 1e-10)
        if self.loose > 1:
            return {x: v for x, v in load.items() if v > least}
        return {x: max(v, 1.01 * least) for x, v in load.items() if v > 0}

    def _serving(self, t: int) -> None:
        for (u, name), column in self.s.items():
            if u == t:
                mine = {
                    x: self.points[i] for (v, i, k), x in self.x.items()
                    if v == t and self.points[i].serves[k].demand == name and self.points[i].stage != "decode"
                }  # fmt: skip
                self.m.row({**dict.fromkeys(mine, 1.0), column: 1.0}, 1, 1)
                for other in ("prefill", "decode"):  # in whichever of the two it does, a request may be on spot
                    on_spot = {
                        x: 1.0 for (v, i, k), x in self.x.items()
                        if v == t and self.points[i].serves[k].demand == name and self.points[i].stage != other
                        and self.points[i].spot
                    }  # fmt: skip
                    self.m.row(on_spot, high=self.demands[name].workload.spot_share_max * self.loose)
        for i, q in enumerate(self.points):
            mine = {self.x[t, i, k]: s for k, s in enumerate(q.serves) if (t, i, k) in self.x}
            for each in zip(*(s.takes for s in mine.values()), strict=True):
                loads = {x: self.demands[s.demand].rates[t] * a for (x, s), a in zip(mine.items(), each, strict=True)}
                self.m.row({**self._felt(loads), self.n[t, i]: -self.loose}, high=0)
            for x in mine:  # one deployment at least where anything is served, however little load it is
                self.m.row({x: 1.0, self.n[t, i]: -1.0}, high=0)

    def _apart(self, t: int) -> None:
        """What is prefilled apart is decoded by deployments that exchange caches with those that did it, in time.

        Prefilled shares wait in a row, the soonest done first: a decode deployment takes from all that leave it
        the time it needs. What waits behind each place is not negative, and in the end nothing is left.
        """
        ends: dict[tuple[Any, str], tuple[list[tuple[float, int]], list[tuple[float, int]]]] = {}
        for (u, i, k), x in self.x.items():
            q = self.points[i]
            if u == t and q.stage != "both":
                both_ends = ends.setdefault((q.exchange, q.serves[k].demand), ([], []))
                both_ends[q.stage == "decode"].append((q.serves[k].part_s, x))
        for (_, name), (firsts, rests) in ends.items():
            limit = self.demands[name].workload.slo.deadline_s
            most = (_seconds(limit) or math.inf) * max(self.loose, 1 + continuous.HAIR)
            firsts.sort()
            places: list[dict[int, float]] = [{x: 1.0} for _, x in firsts]
            for rest_s, x in rests:
                place = sum(first_s + rest_s <= most for first_s, _ in firsts)
                if place == 0:
                    self.m.high[x] = 0.0
                else:
                    places[place - 1][x] = -1.0
            left: dict[int, float] = {}
            for n, place_of in enumerate(places, start=1):
                waits = self.m.variable(high=0.0 if n == len(places) else math.inf)
                self.m.row({**left, **place_of, waits: -1.0}, 0, 0)
                left = {waits: 1.0}

    def _units(self, machine: str, region: str, unit: str) -> int:
        m = self.pool.get((machine, region))
        if m is None or unit == "machines":
            return 1
        return m.gpu_count if unit == "gpus" else m.vcpu or 0

    def _gpu(self, machine: str, region: str) -> str:
        m = self.pool.get((machine, region))
        return "" if m is None or m.gpu is None else m.gpu

    def _limits(self, t: int) -> None:
        p = self.p
        if p.budget_usd_per_hour is not None:
            most = p.budget_usd_per_hour * self.loose
            costs = {}
            for i, q in enumerate(self.points):
                if q.usd > most:
                    self.m.high[self.n[t, i]] = 0.0
                elif q.usd > 1e-11 * most:  # less is nothing, and the solver would drop it in silence
                    costs[self.n[t, i]] = q.usd
            self.m.row(costs, high=most)
        for lines, together in ((p.stock, False), (p.quota, True)):
            for line in lines:
                sums: dict[Any, dict[int, float]] = {}
                for i, q in enumerate(self.points):
                    for machine, region, market, count in q.machines:
                        if (
                            fnmatch.fnmatchcase(machine, line.machine)
                            and fnmatch.fnmatchcase(region, line.region)
                            and line.market in (None, market)
                            and fnmatch.fnmatchcase(self._gpu(machine, region), line.gpu)
                        ):
                            row = sums.setdefault(None if together else (machine, region), {})
                            units = count * self._units(machine, region, line.unit)
                            row[self.n[t, i]] = row.get(self.n[t, i], 0.0) + units
                for row in sums.values():
                    self.m.row(row, high=line.at_most)
        for w in self.workloads:
            if _hits(p, w.name) and p.prefix_cache is not None:  # whatever could serve it counts
                engines = {
                    self.n[t, i]: float(q.engines) for i, q in enumerate(self.points)
                    if any(self.demands[s.demand].workload is w for s in q.serves)
                }  # fmt: skip
                self.m.row(engines, high=p.prefix_cache.engines)
            for other in ("decode", "prefill") if w.min_replicas else ():
                able = [
                    self.n[t, i] for i, q in enumerate(self.points)
                    if q.stage != other and any(self.demands[s.demand].workload is w for s in q.serves)
                ]  # fmt: skip
                self.m.row(dict.fromkeys(able, 1.0), low=w.min_replicas)

    def _quality(self, t: int) -> None:
        """Mean score of a workload's answered requests, each counted once."""
        for w in self.workloads:
            least = w.quality_at_least
            if least is None:
                continue
            row: dict[int, float] = {}
            for (u, i, k), x in self.x.items():
                q = self.points[i]
                d = self.demands[q.serves[k].demand]
                if u == t and q.stage != "decode" and d.workload is w:
                    row[x] = d.rates[t] * (q.score(w) / least - 2 + self.loose)
            most = max(map(abs, row.values()), default=0.0)
            if most > 0:
                self.m.row({x: v / most for x, v in row.items() if abs(v) > 1e-10 * most}, low=0)

    def _reserve(self, t: int) -> None:
        r = self.p.reserve
        if r is None:
            return
        only_spot = r.machines == "spot" and ("machines" in r.model_fields_set or r.survive_probability is not None)
        pools: dict[Any, list[int]] = {}
        for i, q in enumerate(self.points):
            if q.spot or not only_spot:
                pools.setdefault((q.machines, q.measured or (q.model, q.stage)), []).append(i)
        used = []
        for (machines, _), members in pools.items():
            count = {self.n[t, i]: 1.0 for i in members}
            load = {
                self.x[t, i, k]: self._load(t, i, k) * self.points[i].load / r.load_after_loss
                for i in members for k in range(len(self.points[i].serves)) if (t, i, k) in self.x
            }  # fmt: skip
            if r.lost is not None:
                on = self.m.variable(0.0, 0.0, 1.0, whole=True)  # it serves something; an idle one may be lost whole
                self.m.row({**self._felt(load), **dict.fromkeys(count, -self.loose), on: float(r.lost)}, high=0)
                for x in load:  # one deployment at least is left of a pool that serves anything
                    self.m.row({x: 1.0, on: -1.0}, high=0)
                    self.m.row({x: 1.0, **dict.fromkeys(count, -1.0), on: float(r.lost)}, high=0)
                continue
            used.append(self._survives(count, load, self._unavailable(machines), t, members))
        if r.survive_probability is not None:
            self.m.row({c: 1.0 for choice in used for c in choice}, high=r.pools)

    def _most(self, t: int, members: list[int]) -> float:
        """More deployments of a pool than any plan has a use for."""
        most: dict[str, int] = {}  # by demand
        for i in members:
            for k, s in enumerate(self.points[i].serves):
                if (t, i, k) in self.x:
                    most[s.demand] = max(most.get(s.demand, 0), math.ceil(self._load(t, i, k)))
        loads = sum(most.values()) + len(members)
        extra = sum(w.min_replicas for w in self.workloads) + sum(r.count for r in self.p.running or ())
        r = self.p.reserve
        return (loads / (r.load_after_loss if r is not None else 1.0)) + extra + 2

    def _survives(
        self, count: dict[int, float], load: dict[int, float], unavailable: float, t: int, members: list[int]
    ) -> list[int]:
        """A size is chosen; the load fits what is left after all losses but improbable ones."""
        r = self.p.reserve
        assert r is not None and r.survive_probability is not None
        miss = (1 - r.survive_probability) / r.pools * self.loose
        most = math.ceil(self._most(t, members))
        choice, sizes, left = [], {}, {}
        size = 0
        while True:
            size += 1
            lost = next(k for k in range(size + 1) if binom.sf(k, size, unavailable) <= miss)
            column = self.m.variable(0.0, 0.0, 1.0, whole=True)
            choice.append(column)
            sizes[column], left[column] = -float(size), -float(size - lost) * self.loose
            if size - lost >= most:
                break
            if size > 1500:
                raise UnsettledError("reference: pools of more than 1500")
        self.m.row(dict.fromkeys(choice, 1.0), high=1)
        # A pool of idle deployments need not survive; whether it is one of `pools` is left open.
        idle = self.m.variable(high=math.inf if self.loose > 1 else 0.0)
        self.m.row({**count, **sizes, idle: -1.0}, 0, 0)
        self.m.row({**self._felt(load), **left}, high=0)
        for x in load:
            self.m.row({x: 1.0, **left}, high=0)
        return choice

    def _unavailable(self, machines: Machines) -> float:
        up = 1.0
        for machine, region, market, count in machines:
            rule = next((x for x in self.p.interruptions if fnmatch.fnmatchcase(machine, x.machine)
                         and fnmatch.fnmatchcase(region, x.region)), None)  # fmt: skip
            if market == "spot" and rule is not None:
                up /= (1 + rule.per_hour * rule.recovery_s / 3600) ** count
        return 1 - up

    def _changes(self) -> None:
        c, periods = self.p.change, len(self.share)
        matters = bool(c.start_usd or c.stop_usd) or c.max_starts is not None or c.max_stops is not None
        if not matters or (self.p.running is None and periods == 1):
            return
        running: dict[Any, int] = {}
        for r in self.p.running or ():
            key = (r.machine, r.region, r.market)
            running[key] = running.get(key, 0) + r.count
        types = {m[:3] for q in self.points for m in q.machines} | set(running)
        for t in range(periods):
            for g in types:
                self.up[t, g], self.down[t, g] = self.m.variable(), self.m.variable()
                row = {self.up[t, g]: -1.0, self.down[t, g]: 1.0}
                for i, q in enumerate(self.points):
                    count = float(sum(m[3] for m in q.machines if m[:3] == g))
                    row[self.n[t, i]] = row.get(self.n[t, i], 0.0) + count
                    if t or self.p.running is None:
                        before = self.n[(t - 1) % periods, i]
                        row[before] = row.get(before, 0.0) - count
                was = running.get(g, 0) if t == 0 and self.p.running is not None else 0
                self.m.row(row, was, was)
            for bound, columns in ((c.max_starts, self.up), (c.max_stops, self.down)):
                if bound is not None:
                    self.m.row({columns[t, g]: 1.0 for g in types}, high=bound)

    def _drawn(self) -> dict[int, float]:
        """Every draw of demand and slow machines is routed by itself; what is not served, in requests/s of the mean."""
        s = self.p.scenarios
        if s is None:
            return {}
        m, refused, shares = self.m, dict[int, float](), dict[int, float]()
        comes = [d for d in self.demands.values() if d.rates[0] > 0]
        names = {d.workload.name for d in comes}
        demand = {name: _factors(s, name) for name in names}
        slow = {i: np.max([_slowness(s, line[0]) for line in q.machines], axis=0) for i, q in enumerate(self.points)}
        for c in range(s.draws):
            rates = {d.name: d.rates[0] * demand[d.workload.name][c] for d in comes}
            x = {(i, k): m.variable(0.0, 0.0, 1.0) for t, i, k in self.x if t == 0}
            for d in comes:
                u = m.variable(0.0, 0.0, 1.0)
                mine = [v for (i, k), v in x.items() if self.points[i].serves[k].demand == d.name]
                m.row({**dict.fromkeys(mine, 1.0), u: 1.0}, 1, 1)
                refused[u] = rates[d.name] / s.draws
                shares[u] = rates[d.name] / math.fsum(rates.values()) / s.draws
            for i, q in enumerate(self.points):
                here = {v: q.serves[k] for (j, k), v in x.items() if j == i}
                for each in zip(*(of.takes for of in here.values()), strict=True):
                    loads = {
                        v: rates[of.demand] * slow[i][c] * a for (v, of), a in zip(here.items(), each, strict=True)
                    }
                    m.row({**self._felt(loads), self.n[0, i]: -self.loose}, high=0)
                for v in here:
                    m.row({v: 1.0, self.n[0, i]: -1.0}, high=0)
        if s.unserved is not None:
            m.row(shares, high=s.unserved + self.loose - 1)
        return refused

    def _usd(self) -> dict[int, float]:
        """Cost per hour, unserved requests, late ones and changes included."""
        c = self.p.change
        usd: dict[int, float] = {}
        for (t, i), n in self.n.items():
            usd[n] = self.share[t] * self.points[i].usd
        for (t, i, k), x in self.x.items():
            s = self.points[i].serves[k]
            d = self.demands[s.demand]
            if s.late and d.workload.soft is not None:
                usd[x] = self.share[t] * 3.6 * d.workload.soft.usd_per_1000_requests * d.rates[t]
        for (t, name), s in self.s.items():
            d = self.demands[name]
            usd[s] = self.share[t] * 3.6 * d.workload.unserved_usd_per_1000_requests * d.rates[t]
        if self.p.scenarios is not None:
            usd |= {u: 3.6 * (self.p.scenarios.usd_per_1000_unserved or 0.0) * r for u, r in self.refused.items()}
        span = sum(self.hours) if len(self.hours) > 1 else c.horizon_hours
        usd |= dict.fromkeys(self.up.values(), c.start_usd / span)
        usd |= dict.fromkeys(self.down.values(), c.stop_usd / span)
        return usd

    def optimum(self) -> float | None:
        """USD/h, tokens per USD or weighted requests per second of the first priority."""
        usd = self._usd()
        if self.p.objective == "min_cost":
            found = self._minimum(usd)
            return None if found is None else found.value
        served: dict[int, float] = {}
        able = {q.demand for point in self.points for q in point.serves}
        first = min(w.priority for w in self.workloads)
        for (t, name), s in self.s.items():
            d = self.demands[name]
            worth = self.share[t] * d.rates[t] * d.workload.weight
            if self.p.objective == "max_ce":
                served[s] = worth * 3600 * d.tokens
            elif d.workload.priority == first and name in able:  # what nothing serves would hide the rest
                served[s] = worth
        if self.p.objective == "max_served":
            missed = self._minimum(served)
            return None if missed is None else math.fsum(c * (1.0 - missed.x[i]) for i, c in served.items())
        empty = self._of_nothing(usd)
        if not self.n:
            return empty
        self.m.row(dict.fromkeys(self.n.values(), 1.0), low=1)
        best = self._best_ratio(served, usd)
        return empty if best is None else best

    def _of_nothing(self, usd: dict[int, float]) -> float | None:
        """Tokens per USD of a fleet that runs nothing: 0, where that keeps every limit."""
        high = list(self.m.high)
        for i in self.n.values():
            self.m.high[i] = 0.0
        found = self._minimum(usd)
        self.m.high = high
        return None if found is None else 0.0

    def _minimum(self, objective: dict[int, float]) -> Solution | None:
        """The least value of an objective; the programme is as before."""
        high = list(self.m.high)
        self.m.cost = [objective.get(i, 0.0) for i in range(len(high))]
        try:
            return self.m.solve()
        finally:
            self.m.high = high

    def _best_ratio(self, served: dict[int, float], usd: dict[int, float]) -> float | None:
        """Most tokens per USD: where the best of tokens − q·USD is nothing, q is the ratio (Dinkelbach)."""
        whole = math.fsum(served.values())
        ratio = 0.0
        for _ in range(60):
            # minimise missed tokens + q·USD, in units of all tokens
            objective = {i: served.get(i, 0.0) / whole + ratio * usd.get(i, 0.0) / whole for i in {*served, *usd}}
            found = self._minimum(objective)
            if found is None:
                return None
            x = found.x
            tokens = whole - math.fsum(c * x[i] for i, c in served.items())
            cost = math.fsum(c * x[i] for i, c in usd.items())
            few = tokens <= 1e-9 * whole
            if few and min(served.values()) < 1e-9 * whole:
                raise UnsettledError("reference: tokens that vanish beside others")
            if few and self.loose == 1:
                return None  # strictly read, what tolerances leave is nothing, and a fleet that serves nothing is none
            new = tokens / cost
            if new <= ratio * (1 + 1e-9):
                return max(new, ratio)
            ratio = new
        raise UnsettledError("reference: the ratio does not settle")


def _stream(seed: int, what: int, name: str) -> Rng:
    """Of a workload (0) or a machine type (1): the draws are data of the instance."""
    return np.random.default_rng([seed, what, zlib.crc32(name.encode())])


def _factors(s: Any, workload: str) -> Any:
    """On the rates of a workload, by draw: lognormal with mean 1 and the stated standard deviation."""
    sd = s.demand_sd.get(workload, 0.0) if isinstance(s.demand_sd, dict) else s.demand_sd
    normal = _stream(s.seed, 0, workload).standard_normal(s.draws)
    variance = math.log(1 + sd**2)
    return np.exp(normal * math.sqrt(variance) - variance / 2)


def _slowness(s: Any, machine: str) -> Any:
    """Factor on the times of a machine type by draw, 1 unless it is slow."""
    rng = _stream(s.seed, 1, machine)
    factor = rng.uniform(s.slow[0], s.slow[1], s.draws)
    return np.where(rng.random(s.draws) < s.slow_probability, factor, 1.0)


def _demands(p: Fleet, w: FleetWorkload, data: Instance) -> Iterator[Demand]:
    buckets = w.buckets or ()
    if w.trace is not None:
        buckets = tuple(_traced(w, data[FILES][w.trace.file]))
    for b in buckets:
        rate = b.requests_per_s if b.requests_per_s is not None else (b.share or 0.0) * (w.requests_per_s or 0.0)
        rates = tuple(rate * q.rate_factors.get(w.name, q.rate_factor) for q in p.periods) or (rate,)
        if max(rates) > 0:
            label = b.name or f"{b.input_tokens}x{b.output_tokens}"
            yield Demand(w, f"{w.name}/{label}", b.input_tokens, b.output_tokens, rates)


def _traced(w: FleetWorkload, text: str) -> Iterator[Bucket]:
    """Requests of a CSV trace by cells of input × output length, at the mean lengths of a cell, rounded up."""
    assert w.trace is not None
    at, prompt, output = (getattr(w.trace, key) or name for key, name in lengths.COLUMNS.items())
    rows = [
        (float(r[at]) * (w.trace.time_unit_s or 1.0), int(r[prompt]), int(r[output]))
        for r in csv.DictReader(io.StringIO(text))
    ]
    span = max(r[0] for r in rows) - min(r[0] for r in rows)
    cells: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for _, a, b in rows:
        cell = (sum(a > e for e in w.trace.input_edges), sum(b > e for e in w.trace.output_edges))
        cells.setdefault(cell, []).append((a, b))
    for (i, j), mine in cells.items():
        a, b = (math.ceil(sum(column) / len(mine)) for column in zip(*mine, strict=True))
        rate = len(mine) / span * w.trace.rate_factor
        yield Bucket(name=f"{i}-{j}", input_tokens=a, output_tokens=b, requests_per_s=rate)


def _table(text: str) -> list[FleetPoint]:
    rows = []
    for r in csv.DictReader(io.StringIO(text)):
        known: Instance = {k: r.pop(k) for k in list(r) if "/" not in k}
        known = {k: v for k, v in known.items() if v != ""}
        for k in ("count", "slots", "tp", "replicas_per_machine"):
            if k in known:
                known[k] = int(known[k])
        if "usd_per_hour" in known:
            known["usd_per_hour"] = float(known["usd_per_hour"])
        rows.append(FleetPoint(**known, requests_per_s={k: float(v) for k, v in r.items() if v != ""}))
    return rows


def _melange(text: str) -> tuple[tuple[FleetWorkload, ...], tuple[FleetPoint, ...]]:
    """Mélange's configuration: a bucket for every cell, a point for every GPU type."""
    config = json.loads(text)
    cells = [(i, j) for i, row in enumerate(config["workload_distribution"]) for j in range(len(row))]
    rates = config["workload_distribution"]
    buckets = [
        Bucket(name=f"{i},{j}", requests_per_s=rates[i][j] * config["total_request_rate"]) for i, j in cells
    ]  # fmt: skip
    points = [
        FleetPoint(
            name=name, usd_per_hour=g["cost"], machine=name,
            requests_per_s={f"melange/{i},{j}": g["tputs"][i][j] for i, j in cells},
        )
        for name, g in config["gpu_info"].items()
    ]  # fmt: skip
    return (FleetWorkload(name="melange", buckets=tuple(buckets)),), tuple(points)


def _levels(p: Fleet) -> list[float]:
    return [p.max_load] if p.queueing.model == "none" else [x for x in p.queueing.load_levels if x < 1]


def _wait(p: Fleet, slots: int, load: float, service_s: float, percentile: float | None) -> float:
    """Waiting before `slots` servers (Allen–Cunneen, Erlang's C by recursion), the mean or at a percentile."""
    if p.queueing.model == "none":
        return 0.0
    offered, blocked = slots * load, 1.0
    for k in range(1, slots + 1):
        blocked = offered * blocked / (k + offered * blocked)
    waits = blocked / (1 - load * (1 - blocked))
    if p.queueing.model == "mmc":
        factor = 1.0
    elif p.queueing.model == "mdc":
        factor = min(1.0, (1 + (1 - load) * (slots - 1) * (math.sqrt(4 + 5 * slots) - 2) / (16 * load * slots)) / 2)
    else:
        factor = (max(1.0, p.queueing.arrival_scv) + p.queueing.service_scv) / 2
    mean = waits * service_s / (slots * (1 - load)) * factor
    if percentile is None:
        return mean
    return mean / waits * math.log(waits / (1 - percentile)) if waits > 1 - percentile else 0.0


def _kept(p: Fleet, d: Demand, slots: int, load: float, cap_s: float, seen: Any, slack: float) -> bool | None:
    """Whether a demand's SLO is missed at these (TTFT, TBT, E2E) with waiting; None: by more than is allowed."""
    slo, worst = d.workload.slo, 0.0
    for limit, base in ((slo.ttft_s, seen[0]), (slo.deadline_s, seen[2])):
        if limit is not None:
            at_most, percentile = (
                (limit.at_most, limit.percentile) if isinstance(limit, Percentile) else (limit, None)
            )  # fmt: skip
            worst = max(worst, (base + _wait(p, slots, load, cap_s, percentile)) / at_most)
    if seen[1] is not None:
        worst = max(worst, seen[1] / continuous.limit(slo.tpot_s)[0])
        worst = max(worst, 0.0 if slo.tps is None else slo.tps * seen[2] / (slots * d.tokens))
    if worst <= 1 + slack:
        return False
    soft = d.workload.soft
    return True if soft is not None and worst <= soft.up_to * (1 + slack) else None


def _longest(p: Fleet, services: set[float], generous: bool) -> list[float]:
    """Longest service times that waiting may be planned for: where there are more than classes, surely the longest."""
    if p.queueing.model == "none":
        return [math.inf]
    caps = sorted(services)
    return caps[-1:] if len(caps) > p.queueing.service_classes and not generous else caps


def _measured(
    p: Fleet, own: tuple[FleetPoint, ...], demands: dict[str, Demand], pool: list[Machine], generous: bool
) -> Iterator[Point]:
    prices = {(m.machine, m.region): m.prices for m in pool}
    for q in own:
        usd = q.usd_per_hour
        if usd is None:
            usd = q.count * (prices[q.machine, q.region].get(q.market) or math.nan)
        machines = ((q.machine or q.name, q.region, q.market, q.count),)
        mine = {d: r for d, r in q.requests_per_s.items() if r > 0 and d in demands}
        caps = _longest(p, {q.slots / r for r in mine.values()}, generous)
        exchange = None
        if q.stage != "both":
            exchange = (q.model, q.region, q.tp if p.deployment.link.tensor_parallel == "equal" else None)
        for load, cap in itertools.product(_levels(p), caps):
            serves = []
            for d, rate in mine.items():
                e2e = q.slots / rate
                if p.queueing.model != "none" and (
                    e2e > cap or _kept(p, demands[d], q.slots, load, cap, (0.0, None, e2e), 0.0) is not False
                ):
                    continue  # a soft SLO is one of modelled points
                serves.append(Serves(d, (1 / (rate * load),), False))
            yield Point(usd, machines, q.model, load, tuple(serves), q.stage, exchange, measured=q.name)


def _modelled(
    p: Fleet, data: Instance, demands: dict[str, Demand], pool: list[Machine], slack: float, generous: bool
) -> Iterator[Point]:
    calibration: Any = p.latency.calibration
    if isinstance(calibration, str):
        listed = calibration in catalog.calibrations()
        text = catalog.calibration_document(calibration) if listed else yaml.safe_load(data[FILES][calibration])
        calibration = Calibration.model_validate(text)
    source = read_source(p, p.latency.model or "default", p.latency.engine)  # once, as it keeps what it resolved
    groups: dict[Any, list[Demand]] = {}
    named: dict[Any, Any] = {}
    for d in demands.values():
        for m in _models(d.workload):
            groups.setdefault(_key(m), []).append(d)
            named.setdefault(_key(m), m.model)
    for key, members in groups.items():
        first = named[key]
        architecture = catalog.llms()[first] if isinstance(first, str) else first
        setting = Setting(
            architecture, key[1], key[2], 1, 1, dict(catalog.gpus()) | dict(p.gpus), p.latency.variant, p.memory,
            () if calibration is None else calibration.coefficients, p.latency.safety,
        )  # fmt: skip
        if p.serving == "continuous":
            yield from _engines(p, source, setting, members, key, pool, generous)
            continue
        for batch in sorted(set(p.strategies.batches)):
            for k in static.skeletons(pool, p.strategies, batch, setting):
                priced = list(_priced(p, k))
                if priced:
                    yield from _points(p, source, setting, k, batch, members, key, priced, slack, generous)


def _models(w: FleetWorkload) -> tuple[ModelOption, ...]:
    """Those that may answer a workload's requests."""
    if w.models is not None:
        return w.models
    assert w.model is not None
    return (ModelOption(model=w.model, precision=w.precision),)


def _key(m: ModelOption) -> tuple[str, str, str]:
    """What deployments load: shape and precision."""
    architecture = catalog.llms()[m.model] if isinstance(m.model, str) else m.model
    return architecture.model_dump_json(), m.precision.weights, m.precision.kv


def _label(m: ModelOption) -> str:
    """What measured points call it."""
    kv = "" if m.precision.kv == "fp16" else f", {m.precision.kv} KV cache"
    return m.name or f"{m.model if isinstance(m.model, str) else 'own'} {m.precision.weights}{kv}"


def _priced(p: Fleet, k: Skeleton) -> Iterator[tuple[float, Machines]]:
    """Cost and machines of a deployment in every pair of markets."""
    for market in p.markets.main:
        main = k.main.prices.get(market)
        if main is None:
            continue
        mine = (k.main.machine, k.main.region, market, k.mains)
        if k.ao is None:
            yield k.mains * main, (mine,)
            continue
        for other in p.markets.ao:
            ao = k.ao.prices.get(other)
            if ao is not None:
                yield k.mains * main + k.aos * ao, (mine, (k.ao.machine, k.ao.region, other, k.aos))


def _points(
    p: Fleet, source: Source, setting: Setting, k: Skeleton, batch: int, members: list[Demand], model: Any,
    priced: list[tuple[float, Machines]], slack: float, generous: bool,
) -> Iterator[Point]:  # fmt: skip
    """The points of one deployment at one batch: load levels and longest service times.

    Where the SLO is soft, the offload ratio may be the best within the SLO or within what is allowed beyond it: the
    generous reading has both, the strict one the second only where there is no first.
    """
    ways: list[tuple[Demand, Any]] = []
    for d in members:
        at = dataclasses.replace(setting, input_tokens=d.input_tokens or 1, output_tokens=d.output_tokens or 1)
        if p.latency.model not in (None, "roofline"):
            at = dataclasses.replace(at, costs=functools.partial(_costs, p, source, setting, d.input_tokens or 1))
        curve = Curve(at, k, batch, slack)
        found = []
        for up_to in (1.0, d.workload.soft.up_to if d.workload.soft is not None else None):
            if up_to is None or (found and not generous):
                continue
            slo = d.workload.slo
            tps = max(slo.tps or 0.0, batch * d.tokens / (_seconds(slo.deadline_s) or 1e9)) / up_to
            limits = ((_seconds(slo.ttft_s) or 1e9) * up_to, (slo.tpot_s or 1e9) * up_to, batch * d.tokens / tps)
            seen = static.best_run(curve, p.strategies.alpha, limits, slack)
            if seen is not None:
                found.append(seen)
        ways += [(d, seen) for seen in found]
    caps = _longest(p, {seen[2] for _, seen in ways}, generous)
    for load, cap in itertools.product(_levels(p), caps):
        serves = []
        for d, seen in ways:
            late = None if seen[2] > cap else _kept(p, d, batch, load, cap, seen, slack)
            if late is not None:
                serves.append(Serves(d.name, (seen[2] / (batch * load),), late))
        for usd, machines in priced:
            yield Point(usd, machines, model, load, tuple(serves))


def _costs(
    p: Fleet, source: Source, setting: Setting, prompt: float, gpu: str, tp: int, ranks: int = 1
) -> tuple[StepCosts, Provenance, Instance] | None:  # fmt: skip
    """Seconds of an engine's steps, and what its cache knows of drafts; None: the draft model cannot run there."""
    d = deployment(
        source, setting.architecture, llm_name(setting.architecture), setting.gpus[gpu], gpu,
        setting.weights, setting.kv, tp, ranks,  # type: ignore[arg-type]
    )  # fmt: skip
    costs, provenance = resolve(source, d, prompt)
    costs = continuous.adapting(costs, p.engine.lora if p.serving == "continuous" else None)
    if (s := _speculation(p, setting.architecture)) is None:
        return costs, provenance, {}
    drafted = static.speculating(source, d, costs, s, prompt, setting.weights, setting.kv)
    return None if drafted is None else (drafted[0], provenance, drafted[1])


def _speculation(p: Fleet, shape: Architecture) -> Any:
    """How engines of a model speculate, or None."""
    found = (s for s in p.engine.speculation if s.model in (None, llm_name(shape)))
    return next(found, None) if p.serving == "continuous" else None


def _engines(
    p: Fleet, source: Source, setting: Setting, members: list[Demand], model: Any, pool: list[Machine], generous: bool
) -> Iterator[Point]:
    """Engines on every machine, parallelism and number of attention ranks, at every level, with every wait."""
    kinds = [
        Kind(d.input_tokens or 1, d.output_tokens or 1, d.workload.prefix_hit_share, max(d.rates)) for d in members
    ]
    prompt = sum(k.weight * k.prompt for k in kinds) / sum(k.weight for k in kinds)
    shortest = min(k.prompt + k.output for k in kinds)
    work = static.layer_work(setting.architecture, setting.weights, setting.kv)  # type: ignore[arg-type]
    plain = p.strategies.model_copy(update={"families": ("high_end",), "replicas": (1,)})
    guesses = _speculation(p, setting.architecture)
    caches = static.caches(setting.architecture, guesses, setting.weights, setting.kv)
    bytes_of = [continuous.sent_bytes(caches, k.prompt) for k in kinds]
    link, stages = p.deployment.link, p.deployment.stages
    # Without experts to spread, ranks are engines of their own.
    ranks = p.strategies.attention_ranks if work.expert_weight_bytes else (1,)
    known: dict[Any, list[Row]] = {}
    decoding: dict[str, list[list[float]]] = {}  # of a deadline, that decoding takes in a region, by demand
    for stage in sorted(stages, key=("decode", "prefill", "both").index):
        for k in static.skeletons(pool, plain, max((m.gpu_count for m in pool), default=1), setting, ranks):
            if setting.gpus[k.main.gpu or ""].fp16_flops is None:
                continue  # nobody knows how fast it is
            net = (link.net_gbps or k.main.net_gbps or 0.0) * static.GBIT
            if stage != "both" and net <= 0:
                continue  # nothing that caches go through
            runtime = continuous.runtime_gib(p.memory.runtime_gib, p.latency.safety, setting.architecture)
            runtime += continuous.adapters_gib(p.engine.lora, setting.architecture, k.tp)
            usable = (p.memory.vram_usable * k.main.vram_gib / k.main.gpu_count - runtime) * static.GIB
            rests = decoding.setdefault(k.main.region, [[] for _ in kinds])
            apart = (net, k.main.region if stage == "prefill" else "") if stage != "both" else ()
            key = stage, k.main.gpu, k.tp, k.ranks, usable, apart
            if key not in known:
                found = _costs(p, source, setting, prompt, k.main.gpu or "", k.tp, k.ranks)
                if found is None:
                    continue
                costs, provenance, drafts = found
                tpot, ttft = provenance.factors(p.latency.safety)
                steps, slower = costs.scaled(tpot), max(ttft / tpot, 1.0)
                moved = [b / (net * (1 - link.most_used)) for b in bytes_of] if stage != "both" else [0.0] * len(kinds)
                if stage == "prefill":
                    moved = [s + link.latency_s for s in moved]
                rows: list[Row] = []
                more: Instance = {"stage": stage, "moved_s": moved, "ranks": k.ranks}
                alone = stage == "both" and len(members) == 1
                soft = any(d.workload.soft is not None for d in members)
                timed = stage != "both" and any(d.workload.slo.deadline_s is not None for d in members)
                for seqs in continuous.choices(p.engine, costs.drafts):
                    limits = continuous.beside(p.engine, seqs)
                    kv = continuous.kv_tokens(
                        work, setting.architecture, usable, k.tp, limits.max_num_batched_tokens, seqs, shortest,
                        **drafts, ranks=k.ranks,
                    )  # fmt: skip
                    cached, kept = _cached(p, members, kv)
                    kinds = [dataclasses.replace(of, cached=share) for of, share in zip(kinds, cached, strict=True)]
                    kv *= 1 - kept
                    if kv <= 0:
                        break
                    levels = continuous.levels(steps, kinds, limits, kv, **more)
                    sends = (moved, rests) if stage == "prefill" else None
                    n = continuous.places(kinds, costs.drafts, seqs, kv, k.ranks)
                    ways = [(seqs, most, math.inf) for most in continuous.CLASSES_OF_WAIT]
                    if stage == "both" and n and any(continuous.binds(x.rows, (1, 2)) for x in levels):
                        ways += [(n, continuous.CLASSES_OF_WAIT[0], turns) for turns in continuous.BEFORE]
                    for told, most, turns in ways if stage != "decode" else ((seqs, math.inf, math.inf),):
                        limits, place = continuous.beside(p.engine, told), turns < math.inf
                        seen = (limits, members, most, steps.request_s, slower, generous, sends)
                        row = functools.partial(_at_wait, seen, turns)
                        if stage == "decode":
                            row = functools.partial(_decoding, members, moved, steps)
                        beyond = functools.partial(_too_long, seen, turns) if alone else None
                        again = place or alone
                        for x in continuous.levels(steps, kinds, limits, kv, **more, place=place, beyond=beyond) \
                                if again else levels:  # fmt: skip
                            waits = [0.0] if stage == "decode" else _waits(seen, x)
                            rows += [found for omega in waits if (found := row(x, omega)) is not None]
                        if (alone and not soft) or timed:
                            continue

                        at = functools.partial(_level_at, (steps, kinds, limits, kv), (stage, moved, k.ranks), place)
                        fixed = [0.0] if stage == "decode" else [
                            2.0**j for j in range(-10, 10) if 2.0**j <= limits.longest_wait_s
                        ]  # fmt: skip
                        fine = continuous.step_times(steps, limits, 16 if len(kinds) <= 4 else 4)
                        rows += _at_best_steps(members, functools.cache(at), fine, row, fixed)
                    if not any(continuous.binds(x.rows, (1,)) for x in levels):
                        break
                known[key] = rows
            if stage == "decode":
                for row in known[key]:
                    for i, r in enumerate(row):
                        rests[i] += [] if r is None else [r.part_s]
            exchange = None if stage == "both" else (model, k.main.region, k.tp * (link.tensor_parallel == "equal"))
            for row in known[key]:
                serves = []
                for r, b in zip(row, bytes_of, strict=True):
                    if r is None:
                        continue
                    takes = [a / (k.dp * p.max_load) for a in r.takes]
                    if stage != "both":  # of the machine's network, whatever its engines
                        takes.append(b / (link.most_used * net * p.max_load))
                    serves.append(r._replace(takes=tuple(takes)))
                for usd, machines in _priced(p, k):
                    yield Point(usd, machines, model, p.max_load, tuple(serves), stage, exchange, k.dp)


def _hits(p: Fleet, workload: str) -> list[HitRow]:
    """What was measured of a workload's prompts in prefix caches."""
    rows = () if p.prefix_cache is None else p.prefix_cache.hits
    assert not isinstance(rows, str)
    return [r for r in rows if r.workload in (None, workload)]


def _cached(p: Fleet, members: list[Demand], kv: float) -> tuple[list[float], float]:
    """Of each demand the share of prompts in an engine's prefix cache, at least; what of the cache these take."""
    shares = [d.workload.prefix_hit_share for d in members]
    cache, kept = p.prefix_cache, 0.0
    for i, d in enumerate(members):
        if (rows := _hits(p, d.workload.name)) and cache is not None:
            kept = cache.kept
            enough = min(r.engines for r in rows if r.engines >= cache.engines)
            shares[i] = 1.0
            for n in {r.engines for r in rows if r.engines <= enough}:
                fitting = [(r.kv_tokens, r.share) for r in rows if r.engines == n and r.kv_tokens <= kept * kv]
                shares[i] = min(shares[i], max(fitting, default=(0.0, 0.0))[1])
    return shares, kept


Row = tuple[Serves | None, ...]  # by demand, of one engine


def _decoding(members: list[Demand], moved_s: list[float], costs: StepCosts, x: Level, _: float) -> Row:
    """What an engine that only decodes does of each demand: whose cache has come joins at the end of the step."""
    row: list[Serves | None] = []
    for i, d in enumerate(members):
        rest = (d.output_tokens or 1) - 1
        if rest < 1 or max(x.rows[i]) == math.inf:  # the prefill's token is the only one
            row.append(None)
            continue
        (each_s, each_at), (whole_s, whole_at) = map(
            continuous.limit, (d.workload.slo.tpot_s, d.workload.slo.deadline_s)
        )
        joins = continuous.joins_s(costs, x.step_s, moved_s[i])
        each = continuous.tpot_s(x, i, each_at) + joins / rest
        whole = rest * continuous.tpot_s(x, i, whole_at) + joins
        kept = each <= each_s * (1 + continuous.HAIR) and whole <= whole_s
        row.append(Serves(d.name, (*x.rows[i], 0.0), False, whole) if kept else None)
    return tuple(row)


Seen = tuple[Any, list[Demand], float, float, float, bool, tuple[list[float], list[list[float]]] | None]


def _too_long(seen: Seen, turns: float, x: Level) -> float:
    """By how much a step is too long for the only demand: what it takes of anything over time; infinite: it is late."""
    found = [_at_wait(seen, turns, x, omega) for omega in _waits(seen, x)]
    rows = [row[0] for row in found if row is not None and row[0] is not None and not row[0].late]
    return min((max(r.takes) / r.takes[0] for r in rows), default=math.inf)


def _level_at(engine: tuple[Any, ...], more: tuple[Any, ...], place: bool, t: float) -> Level | None:
    """A level, or None; with `place` one at which requests wait for a place, of which as many are taken as may be."""
    x = continuous.level(*engine, t, *more)
    return x.with_places(0.0, engine[2].most_used) if x is not None and place else x


def _at_best_steps(
    members: list[Demand], at: Callable[[float], Level | None], times: list[float],
    row: Callable[[Level, float], Row | None], waits: list[float],
) -> Iterator[Row]:  # fmt: skip
    """With each wait the longest step at which a demand keeps its limits, or soft ones, and takes no more than of time.

    Of each demand; of demands those alone are there whose own longest step is no shorter.
    """
    several = any(d.workload.soft is not None for d in members)
    for omega in waits:

        def beyond(t: float, i: int, soft: bool, omega: float = omega) -> float:
            if (x := at(t)) is None:
                return 0.0
            served = row(x, omega)
            mine = None if served is None else served[i]
            kept = mine is not None and max(mine.takes) <= mine.takes[0] and (soft or not mine.late)
            return 1.0 if kept else 2.0

        ends = [[continuous.longest_step(times, lambda t, i=i, soft=soft: beyond(t, i, soft)) or 0.0
                 for soft in ((False, True) if several else (False,))] for i in range(len(members))]  # fmt: skip
        for t in sorted({t for of in ends for t in of}):
            if t > 0 and (x := at(t)) is not None and (served := row(x, omega)) is not None:
                yield tuple(mine if of[-1] >= t else None for mine, of in zip(served, ends, strict=True))


class _Ends(NamedTuple):
    """Of each demand on a level: TPOT over its limit, longest waits within its limits and within soft ones, whether it
    can be there, and seconds of its part of a deadline, without waiting and times ω."""  # fmt: skip

    missed: list[float]
    allowed: list[float]
    soft: list[float]
    able: list[bool]
    parts: list[tuple[float, float]]


_KNOWN: dict[
    tuple[int, int], tuple[Seen, Level, _Ends]
] = {}  # by identity: the same level is asked about at every wait


def _ends(seen: Seen, x: Level) -> _Ends:
    """`_ends_of`, computed once while they are the last thousands asked about."""
    known = _KNOWN.get((id(seen), id(x)))
    if known is None:
        if len(_KNOWN) > 5000:
            _KNOWN.clear()
        known = _KNOWN[id(seen), id(x)] = seen, x, _ends_of(seen, x)  # both are kept, so that no other has their id
    return known[2]


def _ends_of(seen: Seen, x: Level) -> _Ends:
    """`sends` of what is seen, where the engine only prefills, by demand: seconds that the cache is on its way, and
    what decoding takes of a deadline, anywhere."""  # fmt: skip
    limits, members, most, request_s, slower, _, sends = seen
    found = _Ends([], [], [], [], [])
    for i, d in enumerate(members):
        slo, up_to = d.workload.slo, 1.0 if d.workload.soft is None else d.workload.soft.up_to
        (first_s, first_at), (each_s, each_at), (whole_s, whole_at) = map(
            continuous.limit, (slo.ttft_s, slo.tpot_s, slo.deadline_s)
        )  # fmt: skip
        if sends is None:
            sent, least = 0.0, 0.0
            found.missed.append(continuous.tpot_s(x, i, each_at) / each_s)
            rest = ((d.output_tokens or 1) - 1) * continuous.tpot_s(x, i, whole_at)
        else:
            sent, least = sends[0][i], min(sends[1][i], default=math.inf)
            found.missed.append(0.0)
            rest = sent
        ends: list[list[float]] = [[], []]
        left_s = whole_s - least if least < math.inf else -math.inf
        for limit, at, after in ((first_s, first_at, sent), (left_s, whole_at, rest)):
            base, waits = continuous.ttft_s(x, i, at, most, request_s)
            for end, factor in zip(ends, (1.0, up_to), strict=True):
                end.append((limit * factor - (base * slower + after)) / (waits * slower))
        found.parts.append((base * slower + rest, waits * slower))
        found.allowed.append(min(limits.longest_wait_s, *ends[0]))
        found.soft.append(min(limits.longest_wait_s, *ends[1]))
        found.able.append((x.fits[i] if x.place else max(x.rows[i]) < math.inf) and found.missed[i] <= up_to)
    return found


def _waits(seen: Seen, x: Level) -> list[float]:
    """Waits that a level of a fixed load is offered with.

    A demand keeps its limits on the first token and the whole request up to a wait of its own. Each of these, and of
    those of soft limits, is offered; of more than four demands rounded down to 2^(k/2) s. Where the engine only
    prefills, and some demand has a deadline, 2^(k/2) s from 1/1024 s on are offered in place of these.
    """
    members, sends, of = seen[1], seen[6], _ends(seen, x)
    offered = [w for ends in (of.allowed, of.soft) for w, can in zip(ends, of.able, strict=True) if can and w > 0]
    fixed = [2.0 ** (k / 2) for k in range(-80, 80)]
    if sends is not None and any(d.workload.slo.deadline_s is not None for d in members):
        return [w for w in fixed if 2.0**-10 <= w <= max(offered, default=0.0)]
    if len(members) > 4:
        offered = [max(f for f in fixed if f <= w) for w in offered]
    return sorted(set(offered))


def _at_wait(seen: Seen, turns: float, x: Level, omega: float) -> Row | None:
    """By demand what it takes of every capacity and whether it is late, or None; None where there is no such wait.

    `turns`: of the longest prompt, that requests wait before prefill where they wait for places, too.
    """
    limits, members, most, _, _, generous, sends = seen
    hair = static.PLAN_TOLERANCE if generous else continuous.HAIR
    of = _ends(seen, x)
    longest = max((s for s, fits in zip(x.turn_s, x.fits, strict=True) if fits), default=0.0)
    before_s = turns * x.ranks * longest if x.place else math.inf
    if omega <= before_s < math.inf:
        return None
    y, wait_s = x, min(omega, before_s)  # before prefill
    if x.place:
        y = x.with_places(before_s, x.place_load(before_s, omega - before_s, limits.most_used))
    row: list[Serves | None] = []
    for i, s in enumerate(x.turn_s):
        too_long = x.ranks * s > most * wait_s * (1 + hair)
        if not of.able[i] or omega > of.soft[i] * (1 + hair) or too_long or max(y.rows[i]) == math.inf:
            row.append(None)
            continue
        late = omega > of.allowed[i] * (1 + hair) or of.missed[i] > 1 + hair
        takes = (*y.rows[i], x.ranks * s * s / (2 * wait_s) + x.mean_turn_s[i])
        row.append(Serves(members[i].name, takes, late, of.parts[i][0] + of.parts[i][1] * omega if sends else 0.0))
    return tuple(row)


def _seconds(limit: Any) -> float | None:
    return limit.at_most if isinstance(limit, Percentile) else limit


# Random instances ---------------------------------------------------------------------------------------------------


def generate(rng: Rng) -> Instance:
    """A random small instance, its limits near what its fleets need."""
    other, third = rng.spawn(2)  # streams of their own leave the instances of other seeds as they are
    if maybe(other, 0.08):
        return _scarce_ranks(other)
    kind = pick(rng, ["measured"] * 5 + ["modelled"] * 5 + ["engines"] * 4 + ["edge", "edge", "scales", "melange"])
    data: Instance = {"formulation": "fleet", "schema": 1, "notes": kind}
    if (kind != "engines" and maybe(rng, 0.1)) or kind == "modelled":
        data["serving"] = "static"
    if maybe(rng, 0.5):
        data["objective"] = pick(rng, ["min_cost", "max_ce", "max_served"])
    if maybe(rng, 0.4):
        data["periods"] = [{"name": f"t{t}", "hours": between(rng, 0.5, 24)} for t in range(int(rng.integers(1, 4)))]
    modelled = kind in ("modelled", "engines")
    if kind == "melange":
        _mixed(rng, data)
    else:
        _workloads(rng, data, kind)
        for q in data.get("periods", ())[1:]:
            if maybe(rng, 0.6):
                q["rate_factor"] = pick(rng, [0.0, 0.3, 1.0, 2.0])
            if maybe(rng, 0.3):
                q["rate_factors"] = {data["workloads"][0]["name"]: pick(rng, [0.0, 0.5, 3.0])}
        if modelled:
            _pool(rng, data, kind)
        else:
            _own_points(rng, data, kind, third)
    if kind != "engines" and maybe(rng, 0.3):
        _queueing(rng, data)
        if "prefill" in data.get("deployment", {}).get("stages", ()):  # waits are in what was measured of a stage
            data["queueing"]["model"] = "none"
            for w in data["workloads"]:
                w.get("slo", {}).pop("deadline_s", None)
    elif maybe(rng, 0.3):
        data["max_load"] = between(rng, 1e-3 if kind == "scales" else 0.2, 1.0)
    if kind != "melange" or maybe(rng, 0.5):
        _limits(rng, data, kind)
    if kind == "engines" and not {"prefix_cache", "attention_ranks"} & {*data, *data["strategies"]}:
        if maybe(other, 0.1):
            data["certify"] = pick(other, ["none", "replay", "replay"])
        if data.get("certify") == "replay" and maybe(other, 0.9):
            data["certification"] = {
                "stretch": pick(other, [1.0, 1.5, 3.0, [1.2, 2.0]]), "rounds": int(other.integers(1, 5)),
                "confidence": pick(other, [0.5, 0.8, 0.95]), "seed": int(other.integers(100)),
            }  # fmt: skip
    for w in data.get("workloads", ()):
        if "buckets" in w and maybe(other, 0.1):  # what replays send, on which no plan depends
            n = int(other.integers(1, 6))
            w["requests"] = {
                "arrival_s": sorted(between(other, 0.01, 10) for _ in range(n)),
                "input_tokens": [int(between(other, 1, 1500)) for _ in range(n)],
                "output_tokens": [int(between(other, 1, 80)) for _ in range(n)],
                "bucket": [int(other.integers(len(w["buckets"]))) for _ in range(n)],
            }
    if "attention_ranks" in data.get("strategies", {}) and maybe(rng, 0.7):  # what a few machines carry
        dear = max(v for q in _pools(data) for m in q["machines"] for v in m["prices"].values())
        data |= {"objective": "max_served", "budget_usd_per_hour": dear * between(rng, 1.0, 3.0)}
        data.pop("reserve", None)
        for w in data["workloads"]:
            w.pop("serve_at_least", None)
            w.pop("min_replicas", None)
    if kind not in ("melange", "scales") and "prefix_cache" not in data and maybe(other, 0.15):
        _by_a_hair(other, data)
    last = rng.spawn(1)[0]
    if data.get("certification") and maybe(last):
        data["certification"]["draws"] = pick(last, [1, 2, 3])
    shapes = [m["model"] for w in data.get("workloads", ()) for m in w.get("models", [w]) if "model" in m]
    static.newer(last, data, shapes, data.get("serving") == "continuous")
    if kind not in ("melange", "modelled") and maybe(last, 0.12):
        _scenarios(last, data)
    return data


def _scenarios(rng: Rng, data: Instance) -> None:
    """Draws of demand and of slow machines, in the place of whatever has no meaning beside them."""
    if any("stage" in q or q.get("model") for q in data.get("points", ())) or "stage" in str(data.get(FILES, {})):
        return
    for key in ("objective", "reserve", "deployment", "change", "prefix_cache", "certify", "certification"):
        data.pop(key, None)
    data["periods"] = data.get("periods", [])[:1]
    if not data["periods"]:
        del data["periods"]
    for w in data["workloads"]:
        for key in ("soft", "quality_at_least", "spot_share_max"):
            w.pop(key, None)
    found: Instance = {"draws": int(rng.integers(1, 3 if data["notes"] == "engines" else 9))}
    if maybe(rng, 0.8):
        named = {w["name"]: pick(rng, [0.0, 0.1, 0.5, 2.0]) for w in some(rng, data["workloads"])}
        found["demand_sd"] = named if maybe(rng) else pick(rng, [0.0, 0.1, 0.5, 2.0])
    if maybe(rng, 0.7):
        found |= {
            "slow_probability": pick(rng, [0.2, 0.5, 1.0]),
            "slow": pick(rng, [[1.1, 1.5], [2.0, 2.0], [1.0, 5.0]]),
        }
    if maybe(rng):
        found["seed"] = int(rng.integers(100))
    key = pick(rng, ["unserved", "usd_per_1000_unserved"])
    found[key] = pick(rng, [0.0, 0.01, 0.1, 0.5, 1.0]) if key == "unserved" else between(rng, 0.01, 20)
    data["scenarios"] = found


def _by_a_hair(rng: Rng, data: Instance) -> None:
    """All rates times what makes some point's load nearly a whole number, and perhaps a budget of nearly so many."""
    if data.get("serving") == "continuous":
        return  # best steps take the reference seconds to minutes
    p = Fleet.model_validate({k: v for k, v in data.items() if k != FILES})
    demands = {d.name: d for w in p.workloads for d in _demands(p, w, data)}
    points = [q for q in _every_point(p, data, p.points, demands, _machines(p), 0.0, False) if q.serves]
    if not points or any("trace" in w for w in data["workloads"]):
        return
    q, t = pick(rng, points), int(rng.integers(max(1, len(p.periods))))
    mine = [s for s in q.serves if maybe(rng, 0.7)]
    load = max((math.fsum(x) for x in zip(*([r * demands[s.demand].rates[t] for r in s.takes] for s in mine),
                                          strict=True)), default=0.0)  # fmt: skip
    if not 0 < load < 1e4:
        return
    whole = max(round(load), int(rng.integers(1, 4)))
    times = whole * static.nearly_one(rng) / load
    for w in data["workloads"]:
        for part in (w, *w["buckets"]):
            if "requests_per_s" in part:
                part["requests_per_s"] *= times
        if maybe(rng, 0.3):  # between what its deployments cost, so that not all of it is served
            rate = math.fsum(demands[s.demand].rates[t] for s in mine) * times
            w["unserved_usd_per_1000_requests"] = between(rng, 0.5, 3) * whole * q.usd / (3.6 * rate)
    if maybe(rng, 0.3):
        data["budget_usd_per_hour"] = whole * q.usd * static.nearly_one(rng)


def _rate(rng: Rng, kind: str) -> float:
    if kind == "edge":  # whole numbers of throughputs that are whole numbers or halves
        return float(pick(rng, [0.5, 1.0, 2.0, 3.0, 6.0, 0.1, 0.3]))
    if kind == "engines":
        return between(rng, 0.2, 200)
    return between(rng, 1e-9, 1e10) if kind == "scales" else between(rng, 0.05, 20)


def _workloads(rng: Rng, data: Instance, kind: str) -> None:
    modelled = kind in ("modelled", "engines")
    architectures = [static.architecture(rng) for _ in range(int(rng.integers(1, 3)))]
    data["workloads"] = []
    for i in range(int(rng.integers(1, 4))):
        w: Instance = {"name": f"w{i}"}
        data["workloads"].append(w)
        if modelled:
            w["model"] = pick(rng, architectures) if maybe(rng, 0.9) else "opt-6.7b"
        elif maybe(rng, 0.2):
            w["model"] = "llama-3.1-8b"
        if maybe(rng, 0.15):
            w["precision"] = {"weights": pick(rng, WEIGHTS), "kv": pick(rng, ["fp16", "fp8"])}
        if modelled and maybe(rng, 0.25):
            _several(rng, w, architectures)
        if kind == "engines" and maybe(rng, 0.3):
            w["prefix_hit_share"] = pick(rng, [0.5, round(0.999 * float(rng.random()), 3)])
        shared = maybe(rng, 0.3)
        if shared:
            w["requests_per_s"] = _rate(rng, kind)
        if modelled and maybe(rng, 0.15):
            _trace(rng, data, w)
        else:
            w["buckets"] = []
            parts = rng.dirichlet(np.ones(3))
            for j in range(int(rng.integers(1, 4))):
                b: Instance = {}
                if modelled or maybe(rng, 0.3):
                    b = {"input_tokens": int(between(rng, 1, 1500)) + j, "output_tokens": int(between(rng, 1, 80))}
                lengths = [(x.get("input_tokens"), x.get("output_tokens")) for x in w["buckets"]]
                if not modelled or maybe(rng, 0.3) or (b["input_tokens"], b["output_tokens"]) in lengths:
                    b["name"] = f"b{j}"
                if shared:
                    b["share"] = math.floor(parts[j] * 1e4) / 1e4
                else:
                    b["requests_per_s"] = 0.0 if maybe(rng, 0.05) and j else _rate(rng, kind)
                if "input_tokens" in b and maybe(rng, 0.1):  # of no consequence for the plan
                    b["longest_tokens"] = b["input_tokens"] + b["output_tokens"] + int(between(rng, 1, 10_000))
                w["buckets"].append(b)
        low, high = (1e-6, 1e9) if kind == "scales" else (0.05, 20)
        if maybe(rng, 0.25):
            w["unserved_usd_per_1000_requests"] = between(rng, low, high)
        if maybe(rng, 0.2):
            w["serve_at_least"] = pick(rng, [0.0, 0.5, 0.9, 1.0])
        if maybe(rng, 0.2):
            w["min_replicas"] = int(rng.integers(0, 4))
        if maybe(rng, 0.25):
            w["spot_share_max"] = pick(rng, [0.0, 0.3, 0.5, 1.0])
        if maybe(rng, 0.25):
            w["weight"] = between(rng, 1e-6, 1e9) if kind == "scales" else between(rng, 0.2, 5)
        if maybe(rng, 0.25):
            w["priority"] = int(rng.integers(1, 4))
        if maybe(rng, 0.25):
            w["soft"] = {"usd_per_1000_requests": between(rng, low, high)}
            if maybe(rng):
                w["soft"]["up_to"] = between(rng, 1.1, 5)


def _several(rng: Rng, w: Instance, architectures: list[Instance]) -> None:
    """Two or three models and precisions in the place of one, with scores or without."""
    first = {"model": w.pop("model"), "precision": w.pop("precision", {})}
    others = [
        {
            "model": pick(rng, architectures),
            "precision": {"weights": pick(rng, WEIGHTS), "kv": pick(rng, ["fp16", "fp8"])},
        }
        for _ in range(int(rng.integers(1, 3)))
    ]
    w["models"], seen = [], []
    for m in (first, *others):
        key = m["model"], *({"weights": "fp16", "kv": "fp16"} | m["precision"]).values()
        if key not in seen:
            seen.append(key)
            w["models"].append(m | {"name": f"k{len(seen)}"})
    if maybe(rng, 0.8):
        for m in w["models"]:
            m["quality"] = pick(rng, [0.0, 0.5, round(float(rng.random()), 3)])
        scores = [m["quality"] for m in w["models"]]
        if max(scores) > 0 and maybe(rng, 0.8):
            part = pick(rng, [0.3, 0.5, 1.0, 1.0, 1.05])
            w["quality_at_least"] = max((1 - part) * min(scores) + part * max(scores), 1e-3)


def _trace(rng: Rng, data: Instance, w: Instance) -> None:
    columns = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
    trace: Instance = {"file": f"{w['name']}.csv", "input_edges": [100, 1000], "output_edges": [20]}
    w.pop("requests_per_s", None)
    if maybe(rng):
        columns = ["at", "in", "out"]
        trace |= {"time": "at", "input_tokens": "in", "output_tokens": "out", "time_unit_s": 0.5, "rate_factor": 2.0}
    rows = [(round(float(t), 3), int(between(rng, 1, 1500)), int(between(rng, 1, 80))) for t in rng.uniform(0, 5, 12)]
    text = "\n".join(",".join(map(str, r)) for r in [columns, *rows])
    data.setdefault(FILES, {})[trace["file"]] = text + "\n"
    w["trace"] = trace


def _rates(data: Instance) -> dict[str, float]:
    """Requests/s by demand, before periods."""
    return {
        f"{w['name']}/{b.get('name') or '{}x{}'.format(b['input_tokens'], b['output_tokens'])}":
        b.get("requests_per_s", b.get("share", 0.0) * w.get("requests_per_s", 0.0)) or 1.0
        for w in data["workloads"] for b in w.get("buckets", ())
    }  # fmt: skip


def _own_points(rng: Rng, data: Instance, kind: str, other: Rng) -> None:
    """Measured points, most of them inline, some in a table, some with the price of a machine of the pool."""
    usd = (1e-9, 1e9) if kind == "scales" else (0.2, 10)
    if maybe(rng, 0.4):
        own = [static.machine(rng, f"m{i}", ["l4", "a100"], 20.0, usd) for i in range(2)]
        data["pool"] = {"machines": own} if maybe(rng) else [{"machines": [m]} for m in own]
    rows = []
    rates = _rates(data)
    for i in range(int(rng.integers(1, 6))):
        row: Instance = {"name": f"p{i}", "requests_per_s": {}}
        priced = [m for one in _pools(data) for m in one["machines"]]
        if priced and maybe(rng):
            m = pick(rng, priced)
            row |= {"machine": m["machine"], "market": pick(rng, m["prices"])}
            gpus = m.get("gpu_count", 1)
        else:
            row["usd_per_hour"] = float(pick(rng, [1, 1, 2, 3])) if kind == "edge" else between(rng, *usd)
            gpus = 8
            if maybe(rng, 0.6):
                row["machine"] = pick(rng, ["a", "b", "c"])
            if maybe(rng, 0.2):
                row["region"] = pick(rng, ["here", "there"])
            if maybe(rng, 0.5):
                row["market"] = pick(rng, ["on_demand", "spot", "spot", "reserved_1y"])
        if maybe(rng, 0.2):
            row["count"] = int(rng.integers(1, 4))
        if maybe(rng, 0.4):
            row["slots"] = pick(rng, [1, 2, 8, 32])
        if maybe(rng, 0.3):
            row["tp"] = pick(rng, [t for t in (1, 2, 4, 8) if t <= gpus])
        if maybe(rng, 0.3):
            row["replicas_per_machine"] = int(rng.integers(1, gpus // row.get("tp", 1) + 1))
        for d in rates:
            if maybe(rng, 0.85):
                load = between(rng, 1e-9, 1e4)  # deployments that the demand takes, at extreme scales
                row["requests_per_s"][d] = rates[d] / load if kind == "scales" else _rate(rng, kind)
        rows.append(row)
    if maybe(other, 0.4):
        rows = _of_models(other, data, rows)
        rows = _of_stages(other, data, rows)
    if maybe(rng, 0.15):
        keys = ["name", "usd_per_hour", "machine", "region", "market", "count", "slots", "tp", "replicas_per_machine"]
        keys += ["stage", "model", *rates]
        table = rows[len(rows) // 2 :]
        rows = rows[: len(rows) // 2]
        text = io.StringIO()
        writer = csv.DictWriter(text, keys, extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**r, **r["requests_per_s"]} for r in table)
        data.setdefault(FILES, {})["points.csv"] = text.getvalue()
        data["points_table"] = "points.csv"
    if rows or "points_table" not in data:
        data["points"] = rows


NAMED: Instance = {  # models that points were measured of
    "small": {"name": "small", "model": "llama-3.1-8b"},
    "small in fp8": {"name": "small in fp8", "model": "llama-3.1-8b", "precision": {"weights": "fp8", "kv": "fp8"}},
    "opt-6.7b fp16": {"model": "opt-6.7b"},
    "opt-6.7b fp8, fp8 KV cache": {"model": "opt-6.7b", "precision": {"weights": "fp8", "kv": "fp8"}},
}


def _of_models(rng: Rng, data: Instance, rows: list[Instance]) -> list[Instance]:
    """Points of several models in the place of those of one, and workloads that accept some of them."""
    labels = some(rng, NAMED, 1)[:2]
    accepted: dict[str, list[str | None]] = {w["name"]: [None] for w in data["workloads"]}
    for w in data["workloads"]:
        if maybe(rng, 0.3):
            continue  # served by whatever says no model
        w.pop("model", None)
        w.pop("precision", None)
        accepted[w["name"]] = some(rng, labels, 1)
        w["models"] = [dict(NAMED[str(x)]) for x in accepted[w["name"]]]
        if maybe(rng, 0.7):
            scores = [pick(rng, [0.0, 0.5, round(float(rng.random()), 3)]) for _ in w["models"]]
            for m, score in zip(w["models"], scores, strict=True):
                m["quality"] = score
            if max(scores) > 0 and maybe(rng, 0.8):
                part = pick(rng, [0.3, 0.5, 0.9, 1.0, 1.05])
                w["quality_at_least"] = max((1 - part) * min(scores) + part * max(scores), 1e-3)
    found: list[Instance] = []
    anybody = {d: r for row in rows for d, r in row["requests_per_s"].items()} if maybe(rng, 0.7) else {}
    for label in dict.fromkeys(x for listed in accepted.values() for x in listed):
        for row in some(rng, rows, 1)[:2]:
            rates = anybody | row["requests_per_s"]
            mine = {d: r for d, r in rates.items() if label in accepted[d.partition("/")[0]]}
            found.append(_alike(rng, row, f"p{len(found)}", mine) | ({} if label is None else {"model": label}))
    return found


def _alike(rng: Rng, row: Instance, name: str, rates: dict[str, float]) -> Instance:
    """A point on the same machine at another price, where it has one of its own, and at other rates."""
    faster = pick(rng, [1.0, 2.0, between(rng, 0.4, 2.5)])
    found = row | {"name": name, "requests_per_s": {d: r * faster for d, r in rates.items()}}
    if "usd_per_hour" in row:
        found["usd_per_hour"] = row["usd_per_hour"] * pick(rng, [1.0, between(rng, 0.5, 2.0)])
    return found


def _of_stages(rng: Rng, data: Instance, rows: list[Instance]) -> list[Instance]:
    """Points that do both stages, or one of them beside others that do the rest, or beside none."""
    stages = static.stages(rng)
    equal = maybe(rng, 0.4)
    link = {"tensor_parallel": "equal" if equal else "any"} if equal or maybe(rng, 0.3) else {}
    if "prefill" not in stages and maybe(rng):
        return rows
    data["deployment"] = {"stages": stages} | ({"link": link} if link else {})
    if "prefill" not in stages:
        return rows
    found: list[Instance] = []
    for row in rows:
        whole = "both" in stages and maybe(rng, 0.6)
        if whole:
            found.append(row | {"name": f"p{len(found)}"} | ({"stage": "both"} if maybe(rng) else {}))
        if whole and maybe(rng, 0.4):
            continue
        gpus = 8 if "usd_per_hour" in row else min(4, row.get("tp", 1) * row.get("replicas_per_machine", 1))
        tp = pick(rng, [t for t in (1, 2, 4, 8) if t <= gpus])
        for stage in ("prefill", "decode") if maybe(rng, 0.9) else (pick(rng, ["prefill", "decode"]),):
            rates = {d: r * pick(rng, [1.0, 2.0]) for d, r in row["requests_per_s"].items() if maybe(rng, 0.95)}
            part = _alike(rng, row, f"p{len(found)}", rates) | {"stage": stage}
            if "usd_per_hour" in row:
                part["usd_per_hour"] *= pick(rng, [0.5, 0.5, 0.25, 1.0])
                if maybe(rng, 0.15):
                    part["region"] = pick(rng, ["here", "there"])
                if maybe(rng, 0.3):
                    part["market"] = pick(rng, ["on_demand", "spot", "spot"])
            if equal or maybe(rng, 0.2):
                part["tp"] = tp if maybe(rng, 0.8) else pick(rng, [t for t in (1, 2, 4, 8) if t <= gpus])
                part.pop("replicas_per_machine", None)
            found.append(part)
    for w in data["workloads"]:
        if maybe(rng, 0.15):
            w["min_replicas"] = int(rng.integers(1, 4))
        if maybe(rng, 0.15):
            w["spot_share_max"] = pick(rng, [0.0, 0.3, 0.5])
    return found


def _pools(data: Instance) -> list[Instance]:
    pool = data.get("pool")
    return pool if isinstance(pool, list) else [] if pool is None else [pool]


def _pool(rng: Rng, data: Instance, kind: str) -> None:
    """Machines and strategies of modelled points; engines and how they step."""
    data["gpus"] = static.gpus(rng, int(rng.integers(1, 3)))
    ranks = _ranks(rng, data["workloads"]) if kind == "engines" and maybe(rng, 0.15) else []
    vram = 2 * max((_weights_gib(w) for w in data["workloads"]), default=1.0) + (2.0 if kind == "engines" else 0.0)
    own = [
        static.machine(rng, f"m{i}", list(data["gpus"]), vram, (0.2, 8)) for i in range(int(rng.integers(1, 4)))
    ]  # fmt: skip
    for m in own:
        if maybe(rng, 0.3):
            m["region"], m["provider"] = pick(rng, ["here", "there"]), pick(rng, ["one", "one", "two"])
    for m in own if ranks else ():
        m["gpu_count"] = pick(rng, [2, 2, 4, 8])
        m["vram_gib"] = vram * between(rng, 1.0, 4.0) + 4.0 * m["gpu_count"]
    data["pool"] = {"machines": own} if maybe(rng) else [{"machines": [m]} for m in own]
    if isinstance(data["pool"], dict) and maybe(rng, 0.2):
        data["pool"] |= {"include": ["m*"], "exclude": ["m7"]}
    if isinstance(data["pool"], dict) and maybe(rng, 0.2):
        data["pool"]["assumed_discounts"] = {m: round(float(rng.random()), 3) for m in some(rng, static.MARKETS)}
    if isinstance(data["pool"], dict) and maybe(rng, 0.1):
        data["pool"] |= {"catalog": "llm-pilot-table-vii", "region": "us-east-1", "include": ["m*", "g6.xlarge"]}
    if maybe(rng, 0.4):
        data["markets"] = {"main": some(rng, static.MARKETS), "ao": some(rng, static.MARKETS)}
    s: Instance = {"batches": sorted({int(x) for x in rng.integers(1, 24, size=int(rng.integers(1, 3)))})}
    s["families"] = some(rng, static.FAMILIES)[:3]
    for key, low in (("replicas", 1), ("multi_pass", 2), ("parallel", 2), ("shared", 2)):
        if maybe(rng, 0.4):
            s[key] = [int(x) for x in rng.integers(low, 9, size=int(rng.integers(1, 4)))]
    if maybe(rng, 0.3):
        s["tensor_parallel"] = some(rng, [1, 2, 4])
    if maybe(rng, 0.2):
        s["alpha"] = static.alpha_range(rng)
    if ranks:
        s |= {"attention_ranks": ranks, "tensor_parallel": pick(rng, [[1], [1, 2], [2]])}
    data["strategies"] = s
    if kind == "engines":
        _batching(rng, data)
    elif maybe(rng, 0.2):
        data["latency"] = static.steps(rng)
    elif maybe(rng, 0.7):
        data["latency"] = {"variant": pick(rng, ["paper", "roofline"])}
        if maybe(rng, 0.7):
            calibration = static.calibration(rng, list(data["gpus"]), False)
            data["latency"]["calibration"] = pick(rng, [calibration, "own.yaml", "llm-pilot-table-viii"])
            if data["latency"]["calibration"] == "own.yaml":
                data.setdefault(FILES, {})["own.yaml"] = yaml.safe_dump(calibration)
    if maybe(rng, 0.3):
        data["memory"] = static.memory(rng)
    for w in data["workloads"]:
        if ranks and maybe(rng):  # not all that is asked must be served
            w["unserved_usd_per_1000_requests"] = between(rng, 0.05, 20)
        for rated in (w, *w.get("buckets", ())) if ranks else ():
            if "requests_per_s" in rated:  # so many machines that what they carry matters
                rated["requests_per_s"] *= 50.0
        if maybe(rng, 0.7):
            w["slo"] = _slo(rng, modelled=True)
            if kind == "engines":
                w["slo"].pop("tps", None)
                if maybe(rng, 0.6):  # between what the shortest steps of engines promise and the longest
                    w["slo"]["tpot_s"] = between(rng, 0.002, 0.1)
                tpot_s = w["slo"].get("tpot_s")
                if tpot_s is not None and maybe(rng):
                    w["slo"]["tpot_s"] = {"at_most": tpot_s, "percentile": pick(rng, [0.5, 0.9, 0.95, 0.99])}


def _scarce_ranks(rng: Rng) -> Instance:
    """A few machines whose attention ranks have too little of something for what is asked of them.

    Slots, cache, prompt tokens of a step or time until the first token are scarce; limits are near what some level
    keeps, and the demand near what the machines carry.
    """
    scarce = pick(rng, ["slots"] * 3 + ["cache"] * 2 + ["tokens"] + ["waiting"] * 3)
    shape = static.architecture(rng)
    shape["moe"] = static.experts(rng, shape["layers"]) | {"dense_layers": 0}
    tp = pick(rng, [t for t in (1, 1, 2) if shape["heads"] % t == 0])
    most, seqs = pick(rng, [2, 4, 8]), pick(rng, [16, 64])
    room, prompts, outputs = pick(rng, [16, 32, 64, 256]), (100, 2000), (1, 6)
    if scarce == "slots":
        seqs, room, prompts, outputs = pick(rng, [4, 8, 16]), 2048, (10, 200), (100, 1500)
        shape["moe"] |= {"experts": 64, "active": pick(rng, [1, 2, 8]), "expert_ffn": pick(rng, [256, 1024, 2048])}
    elif scarce == "cache":
        seqs, room, prompts, outputs = pick(rng, [64, 256]), pick(rng, [512, 2048]), (20, 200), (30, 100)
    lengths = [(int(between(rng, *prompts)), int(between(rng, *outputs)) + j) for j in range(int(rng.integers(1, 4)))]
    rates, held = [between(rng, 0.3, 3) for _ in lengths], float(seqs)
    if scarce == "cache":
        held = between(rng, 5.0, 40.0)
        if maybe(rng, 0.7):  # one kind of requests, and seldom, that hardly fits
            lengths.append((int(between(rng, 1000, 4000)), 50))
            rates.append(0.002)
            held = between(rng, 0.5, 1.1)
    buckets = [
        {"input_tokens": a, "output_tokens": b, "requests_per_s": rate}
        for (a, b), rate in zip(lengths, rates, strict=True)
    ]
    parts = [[b] for b in buckets] if maybe(rng) or held < 2 else [buckets]
    usd = between(rng, 0.5, 8)
    machine = {"machine": "m0", "gpu": "gpu0", "gpu_count": most * tp, "vram_gib": 1.0, "prices": {"on_demand": usd}}
    data: Instance = {
        "formulation": "fleet", "schema": 1, "notes": "ranks", "serving": "continuous",
        "gpus": {"gpu0": static.gpus(rng, 1)["gpu0"] | {"fp16_flops": between(rng, 3e13, 1e15)}},
        "pool": {"machines": [machine]}, "latency": static.steps(rng),
        "strategies": {
            "batches": [1], "tensor_parallel": [tp],
            "attention_ranks": pick(rng, [[most], [most], [1, most], [most, 16], [2] if most == 4 else [most]]),
        },
        "engine": {"max_num_seqs": seqs, "max_num_batched_tokens": seqs + room},
        "workloads": [{"name": f"w{j}", "model": shape, "buckets": part} for j, part in enumerate(parts)],
    }  # fmt: skip
    if held < 2:
        data["workloads"][-1]["weight"] = 1000.0
    if maybe(rng, 0.3):
        data["engine"]["chunk_tokens"] = max(int(room * between(rng, 0.2, 1.0)), 1)
    if scarce == "slots" and maybe(rng, 0.8):  # caches so long that what all ranks run matters to a step
        ranks, costs, _ = _of_ranks(Fleet.model_validate(data))
        if costs.context_s > 0:
            long = continuous.largest_fixed_s(costs) / (costs.context_s * ranks * seqs)
            for b in buckets:
                b["input_tokens"] = max(int(min(long * between(rng, 0.2, 4.0), 5e4)), 1)
    for i, b in enumerate(buckets):  # each once
        while any(
            (b["input_tokens"], b["output_tokens"]) == (x["input_tokens"], x["output_tokens"]) for x in buckets[:i]
        ):
            b["input_tokens"] += 1
    longest = max(b["input_tokens"] + b["output_tokens"] for b in buckets)
    machine["vram_gib"] = _vram_gib(Fleet.model_validate(data), held * longest)
    _near_limits(rng, data, *{"slots": (0.2, 0.8), "waiting": (1.0, 0.2)}.get(scarce, (0.2, 0.2)))
    p = Fleet.model_validate(data)
    demands = {d.name: d for w in p.workloads for d in _demands(p, w, data)}
    takes = [
        max(sum(demands[s.demand].rates[0] * s.takes[c] for s in q.serves) for c in range(len(q.serves[0].takes)))
        for q in _modelled(p, data, demands, static.machines(p.pool), 0.0, True) if q.serves
    ]  # fmt: skip
    count = int(rng.integers(1, 5))  # machines that about all demand takes
    for b in buckets:
        b["requests_per_s"] = float(f"{b['requests_per_s'] * count / min(takes, default=1.0):.4g}")
        b["requests_per_s"] *= pick(rng, [0.7, 1.5, 2.0, 4.0])
    if maybe(rng, 0.8):
        data |= {"objective": "max_served", "budget_usd_per_hour": count * usd * 1.01}
    else:
        data["objective"] = pick(rng, ["max_ce", "min_cost"])
        for w in data["workloads"]:
            w["unserved_usd_per_1000_requests"] = between(rng, 0.05, 20)
    return data


def _of_ranks(p: Fleet) -> tuple[int, StepCosts, float]:
    """The most attention ranks of an engine on the only machine, its steps, and how much later first tokens are."""
    pool, model, tp = p.pool, p.workloads[0].model, p.strategies.tensor_parallel[0]
    assert isinstance(pool, PoolChoice)
    assert isinstance(model, Architecture)
    ranks = max(d for d in p.strategies.attention_ranks if pool.machines[0].gpu_count % (d * tp) == 0)
    source = read_source(p, p.latency.model or "default", p.latency.engine)
    setting = Setting(model, "fp16", "fp16", 1, 1, dict(p.gpus), p.latency.variant, p.memory)
    buckets = [b for w in p.workloads for b in w.buckets or ()]
    rate = sum(b.requests_per_s or 0.0 for b in buckets)
    prompt = sum((b.requests_per_s or 0.0) * (b.input_tokens or 1) for b in buckets) / rate
    found = _costs(p, source, setting, prompt, "gpu0", tp, ranks)
    assert found is not None
    tpot, ttft = found[1].factors(p.latency.safety)
    return ranks, found[0].scaled(tpot), max(ttft / tpot, 1.0)


def _vram_gib(p: Fleet, tokens: float) -> float:
    """Of a machine, with which the cache of a rank holds so many tokens where an engine has as many ranks as fit."""
    pool, model = p.pool, p.workloads[0].model
    assert isinstance(pool, PoolChoice)
    assert isinstance(model, Architecture)
    ranks, tp = _of_ranks(p)[0], p.strategies.tensor_parallel[0]
    shortest = min((b.input_tokens or 1) + (b.output_tokens or 1) for w in p.workloads for b in w.buckets or ())
    work = static.layer_work(model, "fp16", "fp16")

    def kv(gib: float) -> float:
        limits = p.engine.max_num_batched_tokens, p.engine.max_num_seqs
        return continuous.kv_tokens(work, model, gib * static.GIB, tp, *limits, shortest, ranks=ranks)

    each = 1e3 * (ranks * tokens - kv(0.0)) / (kv(1e3) - kv(0.0))
    each += continuous.runtime_gib(p.memory.runtime_gib, p.latency.safety, model)
    return float(f"{pool.machines[0].gpu_count * each / p.memory.vram_usable:.6g}")


def _near_limits(rng: Rng, data: Instance, first_token: float, per_token: float) -> None:
    """Limits on TTFT and TPOT, so often, that a level, mostly the best one, keeps just so or just not."""
    p = Fleet.model_validate(data)
    ranks, costs, slower = _of_ranks(p)
    demands = [d for w in p.workloads for d in _demands(p, w, data)]
    kinds = [Kind(d.input_tokens or 1, d.output_tokens or 1, 0.0, d.rates[0]) for d in demands]

    def takes(x: Level) -> float:
        return max(sum(k.weight * r[c] for k, r in zip(kinds, x.rows, strict=True)) for c in range(4))

    levels = continuous.levels(costs, kinds, p.engine, 1e12, ranks=ranks)
    if not levels:
        return
    x = min(levels, key=takes) if maybe(rng, 0.7) else pick(rng, levels)
    for w in data["workloads"]:
        i = pick(rng, [i for i, d in enumerate(demands) if d.workload.name == w["name"]])
        at = pick(rng, [None, 0.5, 0.9, 0.95, 0.99, 0.99])
        limits = {}
        if maybe(rng, first_token):
            base, waits = continuous.ttft_s(x, i, at, 4.0, costs.request_s)
            turns = pick(rng, [0.0, 0.1, 0.2, 0.24, 1.0]) * waits * ranks * x.turn_s[i]
            limits["ttft_s"] = (base + turns) * slower * between(rng, 1.0, 1.04)
        if kinds[i].output > 1 and maybe(rng, per_token):
            limits["tpot_s"] = continuous.tpot_s(x, i, at) * between(rng, 0.6, 1.1)
        w["slo"] = {
            k: float(f"{v:.4g}") if at is None else {"at_most": float(f"{v:.4g}"), "percentile": at}
            for k, v in limits.items()
        }


def _ranks(rng: Rng, workloads: list[Instance]) -> list[int]:
    """Attention ranks to choose from, of models most of which have experts."""
    listed = [m["model"] for w in workloads for m in w.get("models", [w])]
    for shape in {id(a): a for a in listed if isinstance(a, dict)}.values():
        if maybe(rng, 0.9):
            shape["moe"] = static.experts(rng, shape["layers"])
            shape["moe"]["dense_layers"] = pick(rng, [0, 0, shape["moe"]["dense_layers"]])
    return list(pick(rng, [[2], [2], [4, 2], [2, 1], [1, 4], [1, 2, 8]]))


def _batching(rng: Rng, data: Instance) -> None:
    """Continuous batching."""
    data["serving"] = "continuous"
    if maybe(rng, 0.3):
        data["strategies"].pop("families")
    elif "high_end" not in data["strategies"]["families"]:
        data["strategies"]["families"].append("high_end")
    if maybe(rng, 0.7):
        data["latency"] = static.steps(rng)
    ranks = "attention_ranks" in data["strategies"]
    if ranks or maybe(rng, 0.6):
        data["engine"] = static.engine_limits(rng)
    if ranks and maybe(rng, 0.7):  # so few that slots are scarce
        data["engine"] |= {"max_num_seqs": pick(rng, [2, 4, 8]), "max_num_batched_tokens": pick(rng, [64, 256, 1024])}
    if maybe(rng, 0.4):
        _stages(rng, data)
    elif maybe(rng, 0.3) and not any("models" in w for w in data["workloads"]) and not ranks:
        data["prefix_cache"] = _prefixes(rng, data)
    if "engine" in data and "prefix_cache" not in data and maybe(rng, 0.4):
        shape = pick(rng, [static.architecture(rng), "qwen3-0.6b"])
        static.speculates(rng, data["engine"], [shape])
        named = [w["model"] for w in data["workloads"] if isinstance(w.get("model"), str)]
        if named:
            data["engine"]["speculation"][0]["model"] = pick(rng, named)


def _prefixes(rng: Rng, data: Instance) -> Instance:
    """Measured hits of prefix caches, inline or in a file."""
    rows: list[Instance] = []
    workloads = data["workloads"]
    for w in pick(rng, [[None], workloads, workloads[:1]]):
        for n in sorted(some(rng, [1, 2, 4, 16]) or [1]):
            for size in sorted(between(rng, 1, 1e6) for _ in range(int(rng.integers(1, 4)))):
                row = {"engines": n, "kv_tokens": size, "share": round(0.99 * float(rng.random()), 3)}
                rows.append(row if w is None else {"workload": w["name"]} | row)
    for w in workloads:
        if any(r.get("workload") in (None, w["name"]) for r in rows):
            w.pop("prefix_hit_share", None)
    most = min(max(r["engines"] for r in rows if r.get("workload") == of) for of in {r.get("workload") for r in rows})
    found: Instance = {"hits": rows, "engines": int(rng.integers(1, most + 1))}
    if maybe(rng):
        found["kept"] = round(between(rng, 0.01, 0.99), 4)
    routing = {"routing": pick(rng, ["random", "first_block", "session"])} if maybe(rng) else {}
    if maybe(rng, 0.3):
        data.setdefault(FILES, {})["hits.json"] = json.dumps({"hits": rows} | (routing if maybe(rng) else {}))
        found["hits"] = "hits.json"
    return found | routing


def _stages(rng: Rng, data: Instance) -> None:
    """Prefill and decode apart, and how caches go from one to the other."""
    stages = static.stages(rng)
    if "prefill" in stages:  # small enough for one program over every point: three stages, their waits and pairs
        if isinstance(data["pool"], dict):
            data["pool"]["machines"] = data["pool"]["machines"][:2]
        else:
            data["pool"] = data["pool"][:2]
        data["strategies"]["tensor_parallel"] = data["strategies"].get("tensor_parallel", [1])[:1]
        data["workloads"] = data["workloads"][:2]
        if "periods" in data and maybe(rng, 0.8):
            data["periods"] = data["periods"][:1]
    if "prefill" in stages and maybe(rng, 0.3):  # slots and caches for few requests at a time
        data["engine"] = data.get("engine", {}) | {"max_num_seqs": pick(rng, [1, 2, 4]), "max_num_batched_tokens": 64}
        each = max(_weights_gib(w) for w in data["workloads"])
        for m in (m for q in _pools(data) for m in q["machines"]):
            m["vram_gib"] = m.get("gpu_count", 1) * each * between(rng, 1.05, 2.0)
    data["deployment"] = static.linked(rng, stages, [m for q in _pools(data) for m in q["machines"]])
    for w in data["workloads"] if "prefill" in stages else ():  # nobody has said what these mean there
        w.pop("soft", None)


def _weights_gib(w: Instance) -> float:
    models = [m.model for m in _models(FleetWorkload.model_validate(w))]
    shapes = [catalog.llms()[m] if isinstance(m, str) else m for m in models]
    return max(static.layer_work(a, "fp16", "fp16").weight_bytes for a in shapes) / static.GIB


def _slo(rng: Rng, modelled: bool) -> Instance:
    slo: Instance = {}
    for key, low, high in (("ttft_s", 0.02, 20), ("deadline_s", 0.2, 100)):
        if maybe(rng):
            value = between(rng, low, high)
            slo[key] = {"at_most": value, "percentile": pick(rng, [0.5, 0.9, 0.99])} if maybe(rng) else value
    if modelled and maybe(rng, 0.4):
        slo["tpot_s"] = between(rng, 0.002, 1)
    if modelled and maybe(rng, 0.2):
        slo["tps"] = between(rng, 1, 2000)
    return slo


def _queueing(rng: Rng, data: Instance) -> None:
    data["queueing"] = {"model": pick(rng, ["none", "mdc", "mmc", "ggc", "ggc"])}
    q = data["queueing"]
    if maybe(rng, 0.7):
        q["load_levels"] = [between(rng, 0.05, 0.99) for _ in range(int(rng.integers(1, 3)))]
    if q["model"] == "ggc":
        q["arrival_scv"], q["service_scv"] = between(rng, 0.1, 4), between(rng, 0.1, 4)
    if maybe(rng):
        q["service_classes"] = pick(rng, [1, 2, 16])
    for w in data.get("workloads", ()):
        if "slo" not in w and maybe(rng, 0.5):
            w["slo"] = _slo(rng, modelled=data["notes"] == "modelled")


def _mixed(rng: Rng, data: Instance) -> None:
    """Mélange's configuration in place of workloads and points."""
    rows, columns = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    shares = rng.dirichlet(np.ones(rows * columns)).reshape(rows, columns)
    config = {
        "gpu_info": {
            f"g{i}": {
                "cost": between(rng, 0.2, 10),
                "tputs": [[between(rng, 0.1, 20) for _ in range(columns)] for _ in range(rows)],
            }
            for i in range(int(rng.integers(1, 4)))
        },
        "workload_distribution": [[float(x) for x in row] for row in shares],
        "total_request_rate": between(rng, 0.1, 50), "slice_factor": int(rng.integers(1, 5)),
    }  # fmt: skip
    data[FILES] = {"melange.json": json.dumps(config)}
    data["melange"] = {"file": "melange.json"}
    if maybe(rng):
        data["melange"]["slice_factor"] = int(rng.integers(1, 5))


def _limits(rng: Rng, data: Instance, kind: str) -> None:
    """Stock, quota, budget, reserve, changes."""
    pooled = [m for one in _pools(data) for m in one.get("machines", ())]
    names = ["*", "a", "b", "m0", "m*", "g0", "p0"]
    units = ["machines", "gpus"] + (["vcpus"] if pooled and all("vcpu" in m for m in pooled) else [])
    for key in ("stock", "quota"):
        if maybe(rng, 0.25):
            data[key] = [
                {"machine": pick(rng, names), "at_most": int(rng.integers(0, 15))}
                for _ in range(int(rng.integers(1, 3)))
            ]
            for line in data[key]:
                if maybe(rng, 0.3):
                    line["region"] = pick(rng, ["*", "here", ""])
                if maybe(rng, 0.4):
                    line["market"] = pick(rng, static.MARKETS[:2] if maybe(rng, 0.8) else static.MARKETS)
                if maybe(rng, 0.4):
                    line["unit"] = pick(rng, units)
                if pooled and maybe(rng, 0.3):
                    line["gpu"] = pick(rng, sorted({m["gpu"] for m in pooled}))
    if maybe(rng, 0.3):
        high = 1e8 if kind == "scales" else 60
        data["budget_usd_per_hour"] = float(rng.integers(0, 12)) if kind == "edge" else between(rng, 0.3, high)
    if maybe(rng, 0.3) or kind == "edge":
        if maybe(rng, 0.6) or kind == "scales":
            data["reserve"] = {"lost": int(rng.integers(1, 4))}
            if maybe(rng):
                data["reserve"]["machines"] = pick(rng, ["spot", "all"])
        else:
            data["reserve"] = {"survive_probability": pick(rng, [0.9, 0.99, 0.999, 0.51])}
            data["interruptions"] = [{"per_hour": between(rng, 0.01, 1)}]
        if maybe(rng, 0.4):
            data["reserve"]["load_after_loss"] = between(rng, 0.3, 1.0)
        if maybe(rng, 0.4):
            data["reserve"]["pools"] = int(rng.integers(1, 5))
    if maybe(rng, 0.2) or "survive_probability" in data.get("reserve", {}):
        lines = [{"per_hour": between(rng, 0.01, 1), "recovery_s": between(rng, 10, 3600)}]
        if maybe(rng):
            lines.insert(0, {"machine": pick(rng, names), "region": pick(rng, ["*", "here"]), "per_hour": 0.0})
        data["interruptions"] = lines
    for line in (x for key in ("stock", "quota", "interruptions") for x in data.get(key, ()) if pooled):
        for key, elsewhere in (("machine", "p5.*"), ("region", "us-east-1")):  # known to the catalogue: not refused
            if not fnmatch.filter([m.get(key, "") for m in pooled], line.get(key, "*")):
                line[key] = elsewhere
    if maybe(rng, 0.25):
        data["change"] = {k: between(rng, 0.01, 5) for k in some(rng, ["start_usd", "stop_usd", "horizon_hours"])}
        for key in ("max_starts", "max_stops"):
            if maybe(rng, 0.4):
                data["change"][key] = int(rng.integers(0, 12))
    if maybe(rng, 0.3):
        known = [(m["machine"], m.get("region", "")) for m in pooled] + [
            (q.get("machine", q["name"]), q.get("region", "")) for q in data.get("points", ())
        ]  # fmt: skip
        if known:
            data["running"] = []
            for _ in range(int(rng.integers(1, 3))):
                machine, region = pick(rng, known)
                line = {"machine": machine, "count": int(rng.integers(1, 6))}
                if region or maybe(rng, 0.3):
                    line["region"] = region
                if maybe(rng, 0.6):
                    line["market"] = pick(rng, static.MARKETS[:2] if maybe(rng, 0.8) else static.MARKETS)
                data["running"].append(line)
