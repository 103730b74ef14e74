"""Operating points of the cost-efficiency problem: those of static batches with an objective, pruned with proof."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np

from formulations.cost_efficiency.apart import Kind, Pairs, pairs
from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.catalog.types import MARKETS
from optmodels.errors import InputError
from optmodels.latency.strategies import FAMILIES
from optmodels.serving import points as serving
from optmodels.serving.continuous import seconds_and_quantile
from optmodels.serving.engine import EngineCosts, engine_costs
from optmodels.serving.lengths import classes
from optmodels.serving.levels import Levels, levels
from optmodels.serving.points import Array, Index, StaticTables, in_memory, linearise, optimise, priced
from optmodels.serving.static import Case

# Of the longest wait that TTFT and deadline allow, down to what is short beside any answer: waiting is part of E2E, and
# a loose limit must not cost more than a tight one. Among equals the fastest wins.
WAITS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)


@dataclass(frozen=True)
class CostCase(Case):
    """A cost-efficiency problem with every reference resolved."""

    problem: CostEfficiency


@dataclass(frozen=True)
class Engines:
    """Levels of engines that batch continuously, and which each configuration is of.

    Attributes:
        at: levels of engines that serve requests whole.
        costs: of every engine.
        row: of `at`, of each configuration, or NONE where it is one of `apart`.
        apart: prefill and decode apart; None: no configuration is.
        pair: row of `apart`, of each configuration, or NONE.
    """

    at: Levels
    costs: dict[Kind, EngineCosts]
    row: Index
    apart: Pairs | None
    pair: Index

    def take(self, rows: Index) -> Engines:
        """Of some of the configurations."""
        return replace(self, row=self.row[rows], pair=self.pair[rows])


@dataclass(frozen=True, repr=False)
class CostTables(StaticTables):
    """Everything a method may look at."""

    case: CostCase
    engines: Engines | None = None

    def compact(self) -> CostTables:
        """Drop configurations that no candidate uses."""
        used = np.unique(self.candidates.configuration)
        engines = None if self.engines is None else self.engines.take(used)
        return replace(super().compact(), engines=engines)

    def objective(self, e2e_s: Array, usd_per_hour: Array) -> Array:
        """USD per million tokens: the reciprocal of CE, which every method minimises.

        Capped (LP 9): C/(TPS_SLO·3600). Uncapped: C·E2E/(tokens·3600), because TPS = tokens/E2E.
        """
        p = self.case.problem
        per_hour = usd_per_hour / 3600.0 * 1e6
        if p.objective == "capped":
            capped: Array = np.asarray(per_hour / p.slo.tps)
            return capped
        value: Array = per_hour * e2e_s / self.case.tokens
        return value


def build_tables(problem: CostEfficiency) -> CostTables:
    """Enumerate configurations, compute their curves, price every market combination."""
    if problem.serving == "continuous":
        return _continuous(problem)
    return CostTables(**vars(serving.build_tables(problem)))


def _continuous(problem: CostEfficiency) -> CostTables:
    """Every level of every engine, on the fewest machines that keep the workload's requests in flight.

    A level takes so many requests in flight (`Levels.running`); they are spread evenly. More machines at the same level
    cost more and promise no other latency, so the fewest that strategies.replicas allows are enough.
    """
    case, w = problem.resolve(), problem.workload
    of, limits = problem.engines(case), problem.engine
    kinds: dict[Kind, EngineCosts] = {}
    where: dict[Kind, list[int]] = {}
    splits = tuple(product(problem.strategies.tensor_parallel, problem.ranks(case)))
    for i, m in enumerate(case.machines):
        for tp, ranks in splits:
            if m.gpu_count % (tp * ranks) or case.architecture.heads % tp or m.gpu is None:
                continue
            key = (m.gpu, tp, m.vram_gib / m.gpu_count, ranks)
            if key not in kinds:
                try:
                    kinds[key] = engine_costs(of, limits, case.gpus[m.gpu], m.gpu, tp, key[2], ranks)
                except InputError:  # no peak of the GPU is known, or nobody has measured what safety needs
                    continue
            where.setdefault(key, []).append(i)
    costs = {key: e for key, e in kinds.items() if e.kv_tokens > 0}
    able = list(costs)
    ttft, tpot, deadline = problem.slo.latencies
    within = seconds_and_quantile(deadline)
    of_lengths = classes(case.lengths)
    whole = "both" in problem.deployment.stages
    at = levels(list(costs.values()) if whole else [], limits, of_lengths, ttft, tpot, shares=WAITS, deadline=within)
    counts = np.array(problem.strategies.allowed("high_end"))
    rows: list[tuple[int, ...]] = []
    for level, (e, running) in enumerate(zip(at.engine.tolist(), at.running.tolist(), strict=True)):
        each = math.floor(running * (1 + 1e-12))
        _, split, _, ranks = able[e]
        for i in where[able[e]] if each else ():
            replicas = case.machines[i].gpu_count // (split * ranks)
            enough = counts[(counts * replicas * each >= w.batch) & (counts * replicas <= w.batch)]
            if len(enough):
                rows.append((level, i, split, ranks, replicas, enough.min()))
    row, main, gpus, domains, dp, count = np.array(rows, dtype=np.intp).reshape(-1, 6).T
    other, part = np.full_like(main, serving.NONE), -(-w.batch // (count * dp))
    constant = np.stack([at.ttft_s, at.tpot_s, at.e2e_s], axis=1)[row]
    pair, found = np.full_like(row, serving.NONE), None
    if problem.deployment.apart:
        found = pairs(problem, case, costs, where, of_lengths, (ttft, tpot), within, WAITS)
        none, whole_loop = np.full(len(found), serving.NONE), np.full(len(found), w.batch)
        row, pair = np.concatenate([row, none]), np.concatenate([pair, np.arange(len(found))])
        main, other = np.concatenate([main, found.first]), np.concatenate([other, found.second])
        gpus, dp = np.concatenate([gpus, found.first_tp]), np.concatenate([dp, found.first_dp])
        domains = np.concatenate([domains, np.ones_like(found.first_dp)])
        count, part = np.concatenate([count, found.first_count]), np.concatenate([part, whole_loop])
        constant = np.concatenate([constant, found.latencies_s])
    family = np.full(len(row), FAMILIES.index("high_end"), dtype=np.intp)
    configurations = serving.Configurations(family, main, other, gpus, dp, count, part, domains)
    engines = Engines(at, costs, row, found, pair)
    return CostTables(
        case=case, configurations=configurations, curves=serving.constant_curves(case, constant),  # type: ignore[arg-type]
        candidates=_priced(case, configurations, engines), engines=engines,
    )  # fmt: skip


def _priced(case: Case, c: serving.Configurations, engines: Engines | None) -> serving.Candidates:
    """Every configuration in every allowed market combination; what decodes is bought as main machines are."""
    if engines is None or engines.apart is None:
        return priced(case, c)
    apart = np.flatnonzero(engines.pair != serving.NONE)
    whole = np.flatnonzero(engines.pair == serving.NONE)
    alone = priced(case, c.take(whole))
    parts = [replace(alone, configuration=whole[alone.configuration])]
    prices = np.array([[m.prices.get(k) or np.nan for k in MARKETS] for m in case.machines])
    allowed, second = sorted({MARKETS.index(m) for m in case.problem.markets.main}), engines.apart.second_count
    for first_market, second_market in product(allowed, repeat=2):
        cost = c.count[apart] * prices[c.main[apart], first_market]
        cost = cost + second[engines.pair[apart]] * prices[c.ao[apart], second_market]
        rows = apart[~np.isnan(cost)]
        markets = np.full_like(rows, first_market), np.full_like(rows, second_market)
        parts.append(serving.Candidates(rows, *markets, cost[~np.isnan(cost)]))
    return serving.Candidates(**{f.name: np.concatenate([getattr(x, f.name) for x in parts])
                                 for f in fields(serving.Candidates)})  # fmt: skip


def rebind(tables: CostTables, problem: CostEfficiency) -> CostTables | None:
    """Tables of a problem that differs from theirs in SLO, budget and prices only: the same curves; else None."""
    old = tables.case.problem
    if problem.serving == "continuous" and problem.slo != old.slo:
        return None  # levels are those that keep the SLO
    if dict(problem.model_copy(update={f: getattr(old, f) for f in ("slo", "budget_usd_per_hour")})) == dict(old):
        return replace(tables, case=replace(tables.case, problem=problem))
    if len(problem.pool.machines) != len(old.pool.machines):
        return None
    machines = tuple(m.model_copy(update={"prices": o.prices}) for m, o in
                     zip(problem.pool.machines, old.pool.machines, strict=True))  # fmt: skip
    pool = problem.pool.model_copy(update={"machines": machines})
    if dict(problem.model_copy(update={"pool": pool})) != dict(old):
        return None
    case = CostCase(**vars(problem.resolve()))
    return replace(tables, case=case, candidates=_priced(case, tables.configurations, tables.engines))


# ------------------------------------------------------------------------------------------------------ pruning


@dataclass(frozen=True)
class Pruned:
    """Candidates that may still be optimal, and how many were cut by what."""

    tables: CostTables
    counts: dict[str, int]
    incumbent: int | None  # row of the best proved-feasible candidate among those kept


def prune(tables: CostTables) -> Pruned:
    """Cut candidates that cannot be optimal, with proof; at least one optimum stays if there is any plan.

    In turn: memory (no α fits), budget, SLO (a lower bound over all α already exceeds a limit, `lower_bounds`),
    cost (its objective bound exceeds the objective of a candidate that is proved feasible at its balance α: choosing
    that one instead would be strictly better), and SLO again (no α keeps all limits, `optimise`).
    """
    c, s, limits = tables.curves, tables.candidates, tables.limits
    counts: dict[str, int] = {"candidates": len(s)}
    fits = in_memory(c)
    ttft_lb, tbt_lb, e2e_lb = c.lower_bounds() if len(c) else (np.zeros(0),) * 3
    meets = (ttft_lb <= limits.ttft_s) & (tbt_lb <= limits.tbt_s) & (e2e_lb <= limits.e2e_s)
    of = s.configuration
    alive = fits[of]
    counts["memory"] = int((~alive).sum())
    affordable = s.usd_per_hour <= limits.usd_per_hour
    counts["budget"] = int((alive & ~affordable).sum())
    alive &= affordable
    counts["slo"] = int((alive & ~meets[of]).sum())
    alive &= meets[of]
    incumbent = None
    if alive.any():
        trial = np.unique(of[alive])
        part = c.take(trial)
        ok = np.zeros(len(c), dtype=bool)
        e2e = np.full(len(c), np.inf)
        ttft, tbt, e2e_trial = part.metrics(part.balance())
        ok[trial] = (ttft <= limits.ttft_s) & (tbt <= limits.tbt_s) & (e2e_trial <= limits.e2e_s)
        e2e[trial] = e2e_trial
        bound = tables.objective(e2e_lb[of], s.usd_per_hour)
        proved = alive & ok[of]
        if proved.any():
            value = np.where(proved, tables.objective(e2e[of], s.usd_per_hour), np.inf)
            best = int(value.argmin())
            beaten = alive & (bound > value[best] * (1 + 1e-9))
            counts["cost"] = int(beaten.sum())
            alive &= ~beaten
            incumbent = int(np.count_nonzero(alive[:best]))
    counts.setdefault("cost", 0)
    if alive.any():  # each limit at some α, but no α for all of them, however near
        rest = np.unique(of[alive])
        together = np.zeros(len(c), dtype=bool)
        together[rest] = optimise(c.take(rest), limits).feasible
        counts["slo"] += int((alive & ~together[of]).sum())
        alive &= together[of]
        if incumbent is not None:
            incumbent = int(np.count_nonzero(alive[:best]))
    rows = np.flatnonzero(alive)
    counts["kept"] = len(rows)
    return Pruned(tables.restricted(rows), counts, incumbent)


def candidate_order(tables: CostTables, e2e_s: Array) -> Iterator[int]:
    """Rows of candidates from best to worst: objective, then the simplest family, then E2E, then row."""
    s = tables.candidates
    e2e = e2e_s[s.configuration]
    value = tables.objective(e2e, s.usd_per_hour)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        key = np.nan_to_num(np.round(np.log(value), 10), nan=np.inf, posinf=np.inf, neginf=-np.inf)  # equal to 1e-10
    simple = tables.configurations.family[s.configuration]  # FAMILIES lists them by what there is to operate
    yield from map(int, np.lexsort((np.arange(len(s)), e2e, simple, key)))


def linearised(tables: CostTables, max_error: float) -> tuple[Any, float]:
    """Node table of the curves that may still be optimal (what the MILP sees), and the worst certified error."""
    import pandas as pd

    kept = prune(tables).tables.compact()
    if not len(kept.curves):
        return pd.DataFrame({"configuration": [], "family": [], "alpha": []}), 0.0
    nodes = linearise(kept.curves, kept.limits, max_error)
    n, J = nodes.alpha.shape
    index = [i for i in range(n) for _ in range(J)]
    frame = pd.DataFrame({
        "configuration": index, "family": [FAMILIES[kept.configurations.family[i]] for i in index],
        "alpha": nodes.alpha.ravel(), "ttft_s": nodes.ttft_s.ravel(), "tbt_s": nodes.tbt_s.ravel(),
        "e2e_s": nodes.e2e_s.ravel(), "certified_error": [float(nodes.error[i]) for i in index],
    })  # fmt: skip
    return frame.drop_duplicates(["configuration", "alpha"]), float(nodes.error.max())
