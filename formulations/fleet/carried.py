"""Rates that given engines carry: the largest one within their SLOs, or the most of a rate that exceeds it.

A plan fixes how many engines of each kind there are. An engine serves at any of its operating points, so the model
chooses points and shares again: its optimum bounds every routing of requests to these engines. Without a plan the
instance's stock, quota and budget limit the engines.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from formulations.fleet.certify import stretched
from formulations.fleet.making import FleetChoice, make_plan
from formulations.fleet.model import Parameters, deadlines, decoded, quality, stock, within_budget
from formulations.fleet.plan import DeploymentLine, FleetPlan
from formulations.fleet.points import (
    DECODE,
    MOST_DEPLOYMENTS,
    STAGES,
    FleetTables,
    PointMemory,
    build_case,
    build_tables,
    cut,
)
from formulations.fleet.problem import Fleet
from formulations.fleet.replay import drawn, replay
from optmodels.arrays import Array, Ints
from optmodels.batch.points import NONE
from optmodels.errors import InputError, Mistake
from optmodels.latency.strategies import FAMILIES
from optmodels.model import Rows, Variable, at_most, equal
from optmodels.simulation.options import ReplayOptions
from optmodels.solver import Settings, solve_compiled
from optmodels.solver.deadline import HEADROOM, leave_out, wanted
from optmodels.traces.shape import sped_up
from optmodels.traces.types import Label, Trace

GAP = 1e-4  # of the largest rate
SECONDS = 20.0
MOST_FACTOR = 1e9
MOST_REPLAYS, REPLAYS_S, REPLAYED_GAP = 9, 60.0, 0.02  # of the bisection
HEADROOM_S, HEADROOM_GAP, MOST_SHARES = 5.0, 0.005, 20_000  # of the headroom beside a plan
DRAWN_S, LEAST_DRAWN = 120.0, 20_000  # of Poisson arrivals: seconds, and requests at least


class CarriedModel(Parameters):
    """Shares of demands on engines whose number is limited, in one period.

    Args:
        tables: operating points.
        period: index of the period whose rates count.
        kind: kind of each point, (P,); −1: none of these engines.
        counts: engines of each kind; None: limited by stock, quota and budget alone.
        common: maximise the factor that all rates have in common; else the requests/s that are served.
    """

    n: Variable
    x: Variable

    def __init__(
        self, tables: FleetTables, period: int, kind: Ints, counts: Array | None = None, *, common: bool = True
    ) -> None:
        super().__init__(tables.case.problem, tables)
        self.rates, self.together = self.rates[[period]], self.together[[period]]
        self.kind, self.counts = kind, counts
        most = np.full(len(kind), 1.0 * MOST_DEPLOYMENTS) if counts is None else np.where(kind >= 0, counts[kind], 0.0)
        able = np.isfinite(self.load) & (most > 0)
        wanted = self.rates > 0
        self.n = self.variable("n", ("t", "p"), (1, len(kind)), upper=most[None, :], integer=True)
        share = np.nonzero(wanted[:, :, None] & able[None])
        self.x = self.variable("x", ("t", "w", "p"), share, upper=MOST_FACTOR if common else 1.0)
        if common:
            self.factor = self.variable("factor", (), upper=MOST_FACTOR)
        families = (carried, engines_of_kind, decoded, deadlines, quality)
        self.state((in_proportion, spot_in_proportion, *families) if common else (at_most_once, *families))
        self.state(() if counts is not None else (stock, within_budget))
        if common:
            self.maximise("rate", self.factor)
        else:
            t, w, p = self.x.labels
            self.maximise("served", (self.x * self.rates[t, w])[self.stage[p] != DECODE])

    def choice(self, x: Array, factor: float = 1.0) -> FleetChoice:
        """Counts and shares of a solution, of demands that are `factor` times as large."""
        value = self.x.of(x) / factor
        used = value > 1e-9
        t, w, p = (label[used] for label in self.x.labels)
        return FleetChoice(np.round(self.n.of(x)).astype(np.intp).reshape(1, -1), t, w, p, value[used])


def in_proportion(m: CarriedModel) -> Rows:
    """Σ_p x_twp = f for each w: every demand is served f times its rate; p that only decode do not count."""
    t, w = np.nonzero(m.rates > 0)
    first = m.stage[m.x.labels[2]] != DECODE
    factor = m.factor.at(np.zeros(len(w), dtype=np.intp), (t, w), sets=("t", "w"))
    return equal(0.0, m.x[first].by("t", "w") - factor)


def spot_in_proportion(m: CarriedModel) -> Rows:
    """Σ_{p on spot} x_twp ≤ spot_share_max_w·f; p that only decode do not count."""
    _, w, p = m.x.labels
    mine = m.spot[p] & (m.stage[p] != DECODE) & np.isfinite(m.spot_share[w])
    at, of = np.nonzero((m.rates > 0) & np.isfinite(m.spot_share))
    factor = m.factor.at(np.zeros(len(of), dtype=np.intp), (at, of), m.spot_share[of], sets=("t", "w"))
    return at_most(0.0, m.x[mine].by("t", "w") - factor)


def at_most_once(m: CarriedModel) -> Rows:
    """Σ_p x_twp ≤ 1."""
    return at_most(1.0, m.x[m.stage[m.x.labels[2]] != DECODE].by("t", "w"))


def carried(m: CarriedModel) -> Rows:
    """Σ_w λ_w·l_qwp·x_twp ≤ n_tp for each capacity q."""
    t, w, p = m.x.labels
    each = m.tables.each_load
    load = m.rates[t, w] * each[:, w, p]
    q, i = np.nonzero(load)
    used = m.x.at(i, (t[i], p[i], q), load[q, i], sets=("t", "p", "q"))
    return at_most(0.0, used - m.n.across(q=len(each)).among(used))


def engines_of_kind(m: CarriedModel) -> Rows:
    """Σ_{p of kind k} n_tp ≤ N_k."""
    if m.counts is None:
        return at_most(np.inf, m.n)
    mine = m.kind >= 0
    _, p = m.n.labels
    return at_most(m.counts, m.n[mine[p]].by(k=m.kind[p[mine[p]]]))


@dataclass(frozen=True)
class Engines:
    """The engines of a period of a plan, by kind: machines, markets, model and parallelism.

    Attributes:
        kind: kind of each point, (P,); −1: none that the plan has.
        counts: deployments of each kind, (K,).
        lines: the kind of each deployment line of the plan, (L,).
    """

    kind: Ints
    counts: Array
    lines: Ints

    def without(self, line: int, count: int) -> Engines:
        """The engines after a loss of some deployments of a line."""
        counts = self.counts.copy()
        counts[self.lines[line]] = max(counts[self.lines[line]] - count, 0.0)
        return replace(self, counts=counts)


def engines_of(tables: FleetTables, lines: list[DeploymentLine]) -> Engines:
    """The points of a plan's deployment lines, each with every operating point of its engines.

    Raises:
        InputError: a line that the instance has no point of.
    """
    x = tables.points
    of, keys = _engines_with_points(tables)
    kind = np.full(len(x), -1, dtype=np.int64)
    counts: list[float] = []
    found: list[int] = []
    known: dict[tuple[int, ...], int] = {}
    for i, d in enumerate(lines):
        wanted = _key_of_line(tables, d)
        mine = tuple(g for g, key in enumerate(keys) if key == wanted)
        if not mine:
            expected = "a plan made for this problem: no operating point of these engines"
            raise InputError(Mistake(None, f"plan.periods[].deployments[{i}]", d.name, expected))
        if mine not in known:
            known[mine] = len(counts)
            kind[np.isin(of, mine)] = len(counts)
            counts.append(0.0)
        counts[known[mine]] += d.count
        found.append(known[mine])
    return Engines(kind, np.array(counts), np.array(found, dtype=np.int64))


def _engines_with_points(tables: FleetTables) -> tuple[Ints, list[tuple[Any, ...]]]:
    """Group of each point, (P,), and the engines of each group."""
    x = tables.points
    same = np.stack([x.block, x.configuration, x.main_market, x.ao_market, x.model, x.stage], axis=1)
    groups, of = np.unique(same, axis=0, return_inverse=True)
    of = of.ravel()
    example = np.zeros(len(groups), dtype=np.int64)
    example[of] = np.arange(len(x))
    return of, [_key(tables, int(p)) for p in example]


def _key(tables: FleetTables, p: int) -> tuple[Any, ...]:
    x = tables.points
    machines = tuple(sorted((*resource, n) for resource, n in tables.machines_of(p)))
    if x.block[p] == NONE:
        assert tables.case.points is not None
        return ("point", tables.case.points[x.configuration[p]].name)
    conf, c = tables.blocks[x.block[p]].configurations, int(x.configuration[p])
    family = FAMILIES[conf.family[c]]
    how = (_engine_family(family), int(conf.tp[c]), int(conf.dp[c]), int(conf.ranks[c]))
    return (machines, int(x.model[p]), int(x.stage[p]), how)


def _engine_family(family: str) -> str:
    """Offloading to a machine's own memory or disk, and passes, are how its engines run: a plan may name either."""
    return "high_end" if family == "multi_pass" or family.startswith("kvo") else family


def _key_of_line(tables: FleetTables, d: DeploymentLine) -> tuple[Any, ...]:
    if d.point is not None:
        return ("point", d.point)
    family = _engine_family(d.family or "")
    how = (family, d.tensor_parallel or 1, d.replicas_per_machine or 1, d.attention_ranks or 1)
    machines = tuple(sorted((m.machine, m.region, m.market, m.count) for m in d.machines))
    return (machines, tables.case.which(d.loads, d.model), STAGES.index(d.stage), how)


def tables_of(problem: Fleet, plan: FleetPlan | None) -> FleetTables:
    """The operating points that a plan was made of: under the cuts of its certification, where it has one."""
    return as_cut(build_tables(problem), plan)


def as_cut(tables: FleetTables, plan: FleetPlan | None) -> FleetTables:
    """The tables with a plan's engines, under the cuts of its certification."""
    if plan is None:
        return tables
    tables = _with_engines(tables, plan)
    if plan.certification is None:
        return tables
    if plan.stretch != 1:
        tables = stretched(tables, plan.stretch)
    return cut(tables, plan.certification.cuts)


def _with_engines(tables: FleetTables, plan: FleetPlan) -> FleetTables:
    """The tables, or those of the simpler families only, where a plan of static batches was made of these.

    Tables keep of equal machines only the undominated points, and a plan may have the simpler ones of equal cost.
    """
    problem, lines = tables.case.problem, [d for q in plan.periods for d in q.deployments]
    families = [FAMILIES.index(d.family) for d in lines if d.family is not None]
    if problem.continuous or not families:
        return tables
    if {_key_of_line(tables, d) for d in lines} <= {*_engines_with_points(tables)[1]}:
        return tables
    simpler = tuple(f for f in problem.strategies.families if FAMILIES.index(f) <= max(families))
    fewer = problem.model_copy(update={"strategies": problem.strategies.model_copy(update={"families": simpler})})
    return build_case(replace(tables.case, problem=fewer))


def max_rate(
    problem: Fleet, plan: Mapping[str, Any] | None, trace: Trace | None = None, *, simulate: bool = True, seed: int = 0,
    time_limit: float = SECONDS,
) -> dict[str, Any]:  # fmt: skip
    """The largest multiple of the instance's rates within its SLOs.

    Args:
        problem: the instance; its rates are the mixture.
        plan: plan of the instance, JSON data; None: any fleet within its stock, quota and budget.
        trace: requests for the simulation, labelled as for a replay; None: the instance's own, or Poisson arrivals.
        simulate: bisect the factor by replays, too, where engines batch continuously.
        seed: random seed of the draws.
        time_limit: seconds of each solve.

    Returns:
        ``requests_per_s`` of the instance, and ``factor`` and ``requests_per_s`` of each way to find it:
        ``planned_shares`` (the first engine is full), ``best_shares`` with its ``bound`` (the model), ``simulated``
        with ``fails_at`` and what failed. Of several periods the one with the smallest factor, ``period``.

    Raises:
        InputError: a plan of another instance, or without a plan no limit on the engines.
    """
    p = None if plan is None else FleetPlan.model_validate(plan)
    tables = tables_of(problem, p)
    periods: list[dict[str, Any]] = []
    for t, period in enumerate(tables.case.periods):
        if not tables.rates[t].sum() > 0:
            continue
        engines = None if p is None else engines_of(tables, p.periods[t].deployments)
        if engines is None:
            m = CarriedModel(tables, t, np.zeros(len(tables.points), dtype=np.int64))
        else:
            m = CarriedModel(tables, t, engines.kind, engines.counts)
        report = solve_compiled(m.compiled(), Settings(time_limit, GAP))
        factor, bound = report.objective or 0.0, report.bound
        if p is None and report.x is not None:
            if m.n.of(report.x).max(initial=0.0) > MOST_DEPLOYMENTS / 2:
                raise InputError(Mistake(None, "quota", None, "stock, a quota or a budget that limits every machine"))
            if len(tables.case.periods) == 1 and factor > 0:
                p = make_plan(scaled(tables, np.full(len(tables.demands), factor)), m.choice(report.x, factor))
        rate = float(tables.rates[t].sum())
        found: dict[str, Any] = {"period": period.name, "requests_per_s": rate}
        if p is not None:
            full = max((1.0 - d.headroom for d in p.periods[t].deployments if d.serves), default=np.inf)
            at = p.periods[t].served_requests_per_s / rate / full if full > 0 else 0.0
            found["planned_shares"] = {"factor": at, "requests_per_s": at * rate}
        found["best_shares"] = {
            "factor": factor, "requests_per_s": factor * rate, "bound": None if bound is None else bound * rate
        }  # fmt: skip
        periods.append(found)
    least = min(periods, key=lambda q: q["best_shares"]["factor"])
    if plan is None and p is not None:
        least["fleet"] = p.headline()
    if p is not None and simulate and problem.continuous:
        least = least | {"simulated": _simulated(problem, p, least, trace, seed)}
    return least


def headroom(tables: FleetTables, plan: FleetPlan) -> dict[str, Any] | None:
    """The largest multiple of the planned rates that the plan's engines serve within their SLOs, as the model predicts.

    Returns:
        ``factor`` found, ``bound`` above which no routing serves the rates, and the ``period`` with the least; None
        where not every request is served, or where the solves exceed `HEADROOM_S`.
    """
    if plan.served_share < 1 - 1e-9:
        return None
    least: dict[str, Any] | None = None
    tables, began = as_cut(tables, plan), time.perf_counter()
    for t, period in enumerate(plan.periods):
        if not tables.rates[t].sum() > 0:
            continue
        left = HEADROOM_S - (time.perf_counter() - began) if wanted(HEADROOM) else 0.0
        engines = engines_of(tables, period.deployments)
        m = CarriedModel(tables, t, engines.kind, engines.counts)
        if len(m.x) > MOST_SHARES:
            return None
        report = solve_compiled(m.compiled(), Settings(left, HEADROOM_GAP)) if left > 0 else None
        if report is None or report.objective is None or report.bound is None:
            leave_out(HEADROOM)
            return None
        if least is None or report.objective < least["factor"]:
            least = {"factor": max(report.objective, 1.0), "bound": max(report.bound, 1.0), "period": period.name}
    return least


def scaled(tables: FleetTables, factors: Array) -> FleetTables:
    """The tables at other rates: every demand's times its factor, (W,), in all periods and pieces."""
    demands = tuple(
        replace(
            d, requests_per_s=tuple(f * r for r in d.requests_per_s),
            base_requests_per_s=f * d.base_requests_per_s,
            rates=None if d.rates is None else tuple(f * r for r in d.rates),
        )
        for d, f in zip(tables.case.demands, factors.tolist(), strict=True)
    )  # fmt: skip
    made = replace(tables, case=replace(tables.case, demands=demands), memory=PointMemory())
    return replace(made, models=made.case.by_model)


def _simulated(
    problem: Fleet, plan: FleetPlan, found: Mapping[str, Any], trace: Trace | None, seed: int
) -> dict[str, Any]:
    """The largest factor tried at which the replay met every SLO, and the smallest at which it did not."""
    case = problem.resolve()
    requests = case.trace if trace is None else trace
    if requests is None:
        requests, code = drawn(case, found["period"], np.random.default_rng(seed))
        names = tuple(d.name for d in case.demands)
        last = max(int(DRAWN_S * found["requests_per_s"]), LEAST_DRAWN)
        requests = replace(requests, labels={"class": Label(names, code)})
        requests = requests.take(np.arange(min(last, len(requests))))
    one = plan.model_copy(update={"periods": [q for q in plan.periods if q.name == found["period"]]})
    data = one.model_dump(mode="json", by_alias=True)
    planned, best = found["planned_shares"]["factor"], found["best_shares"]["factor"]
    good, bad, worst, tries = 0.0, np.inf, None, 0
    factor = max(planned, 1e-6)
    began = time.perf_counter()
    while tries < MOST_REPLAYS and (tries < 2 or time.perf_counter() - began < REPLAYS_S):
        missed = _misses(problem, data, sped_up(requests, factor), seed)
        tries += 1
        if missed is None:
            good = max(good, factor)
        elif factor < bad:
            bad, worst = factor, missed
        if bad <= good * (1 + REPLAYED_GAP):
            break
        factor = good * 1.1 if bad == np.inf else 0.5 * (good + bad) if good > 0 else 0.8 * bad
        if bad == np.inf and factor > 4 * max(best, planned):
            break
    rate = found["requests_per_s"]
    return {
        "factor": good, "requests_per_s": good * rate, "fails_at": None if bad == np.inf else bad * rate,
        "missed": worst, "replays": tries, "requests": len(requests),
    }  # fmt: skip


def _misses(problem: Fleet, plan: Mapping[str, Any], trace: Trace, seed: int) -> str | None:
    """The first SLO that a replay at the planned shares misses, in words; None: all hold."""
    seen = replay(problem, plan, trace, ReplayOptions(policy="planned_shares", seed=seed))
    if seen["policies"]["planned_shares"]["served_share"] < 1 - 1e-9:
        return "not every request is served"
    for row in seen["demands"]:
        for name, title in (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("deadline", "E2E")):
            at, limit = row.get(f"{name}_replayed_s"), row.get(f"{name}_limit_s")
            if at is not None and limit is not None and at > limit * (1 + 1e-9):
                return f"{row['demand']}: {title} {at:.3g} s, limit {limit:.3g} s"
    return None
