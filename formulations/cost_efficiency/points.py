"""Operating points of the cost-efficiency problem: static batches with an objective, pruned with proof."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.arrays import Array, Index
from optmodels.batch import points as serving
from optmodels.batch.points import StaticTables, in_memory, linearise, optimise, priced
from optmodels.batch.static import BatchCase
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.engine.costs import EngineCosts, engine_costs
from optmodels.engine.lengths import classes
from optmodels.engine.levels import Levels, loop_levels
from optmodels.engine.loop import least
from optmodels.errors import UnpublishedError
from optmodels.latency.strategies import FAMILIES

Kind = tuple[str, int, float, int]  # of engines: GPU, TP, GiB of VRAM of each GPU, attention ranks


@dataclass(frozen=True)
class CostCase(BatchCase):
    """A cost-efficiency problem with every reference resolved."""

    problem: CostEfficiency


@dataclass(frozen=True)
class CandidateEngines:
    """Levels of engines that batch continuously, and which each configuration is of.

    Attributes:
        at: levels of the engines.
        costs: costs of every engine.
        row: row of `at` of each configuration.
    """

    at: Levels
    costs: dict[Kind, EngineCosts]
    row: Index

    def take(self, rows: Index) -> CandidateEngines:
        """Of some of the configurations."""
        return replace(self, row=self.row[rows])


@dataclass(frozen=True, repr=False)
class CostTables(StaticTables):
    """Everything a method may look at."""

    case: CostCase
    engines: CandidateEngines | None = None

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
            return np.asarray(per_hour / p.slo.tps)
        return per_hour * e2e_s / self.case.tokens


def build_tables(problem: CostEfficiency) -> CostTables:
    """Enumerate configurations, compute their curves, price every market combination."""
    if problem.serving == "continuous":
        return _continuous(problem)
    return CostTables(**vars(serving.build_tables(problem)))


def _continuous(problem: CostEfficiency) -> CostTables:
    """Every engine on every allowed number of machines, at the best level of the requests that each has in flight.

    The workload's requests are spread evenly: c machines of dp engines each have ⌈batch/(c·dp)⌉ in flight on the
    fullest. Of counts with as many on the fullest the smallest is enough. No candidate depends on a limit on a latency
    (`optmodels.engine.levels`, closed-loop runs), so that a relaxed limit has every candidate of a tighter one.
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
                except UnpublishedError:
                    continue
            where.setdefault(key, []).append(i)
    costs = {key: e for key, e in kinds.items() if e.kv_tokens > 0}
    able = list(costs)
    counts = np.unique(np.array(problem.strategies.allowed("high_end")))
    fewest: dict[int, dict[int, int]] = {}  # by engines of a machine: machines, by requests of the fullest engine
    for key in able:
        for i in where[key]:
            dp = case.machines[i].gpu_count // (key[1] * key[3])
            some = counts[counts * dp <= w.batch]
            fewest[dp] = dict(zip((-(-w.batch // (some * dp))).tolist()[::-1], some.tolist()[::-1], strict=True))
    most = max((e.ranks * limits.choices[-1] for e in costs.values()), default=0)
    users = np.array(sorted({n for by in fewest.values() for n in by if n <= most}), dtype=float)
    at, each = loop_levels(
        list(costs.values()), limits, classes(case.lengths), users, _quantiles(problem), problem.slo.itl
    )
    ttft_s, tpot_s, e2e_s = (x.copy() for x in (at.ttft_s, at.tpot_s, at.e2e_s))
    for e, slots in sorted({*zip(at.engine.tolist(), at.max_num_seqs.tolist(), strict=True)}):
        mine = (at.engine == e) & (at.max_num_seqs == slots)
        told = limits.model_copy(update={"max_num_seqs": slots})
        seen = least(costs[able[e]], told, classes(case.lengths), each[mine])  # of a loop, whose requests come evenly
        for bound, floor in ((ttft_s, seen.ttft_s), (tpot_s, seen.tpot_s), (e2e_s, seen.e2e_s)):
            bound[mine] = np.maximum(bound[mine], floor)
    deadline_s = np.maximum(at.deadline_s, np.where(e2e_s > at.e2e_s, e2e_s, 0.0))
    at = replace(at, ttft_s=ttft_s, tpot_s=tpot_s, e2e_s=e2e_s, deadline_s=deadline_s)
    rows: list[tuple[int, ...]] = []
    for level, (e, n) in enumerate(zip(at.engine.tolist(), each.astype(int).tolist(), strict=True)):
        _, split, _, ranks = able[e]
        for i in where[able[e]]:
            dp = case.machines[i].gpu_count // (split * ranks)
            if (count := fewest[dp].get(n)) is not None:
                rows.append((level, i, split, ranks, dp, count, n))
    row, main, gpus, domains, replicas, machines, part = np.array(rows, dtype=np.intp).reshape(-1, 7).T
    family = np.full(len(row), FAMILIES.index("high_end"), dtype=np.intp)
    none = np.full_like(main, serving.NONE)
    configurations = serving.Configurations(family, main, none, gpus, replicas, machines, part, domains)
    engines = CandidateEngines(at, costs, row)
    curves = serving.constant_curves(case, np.stack([at.ttft_s, at.tpot_s, at.e2e_s], axis=1)[row])
    return CostTables(
        case=case, configurations=configurations, curves=curves,  # type: ignore[arg-type]
        candidates=_priced(case, configurations, engines), engines=engines,
    )  # fmt: skip


def _quantiles(problem: CostEfficiency) -> tuple[float | None, float | None, float | None]:
    """That limits on TTFT, time per output token and E2E bound."""
    ttft, tpot, deadline = (seconds_and_quantile(limit)[1] for limit in problem.slo.latencies)
    return ttft, tpot, deadline


def _bounded(problem: CostEfficiency) -> tuple[object, ...]:
    """Quantiles that levels have bounds at; without a limit on ITL it has no bound."""
    itl = problem.slo.itl
    return *_quantiles(problem), itl is None, seconds_and_quantile(itl)[1]


def _priced(case: BatchCase, c: serving.Configurations, engines: CandidateEngines | None) -> serving.BatchCandidates:
    """Every configuration in every allowed market combination; of engines those that keep the deadline and ITL."""
    found = priced(case, c)
    if engines is None:
        return found
    slo, at = case.problem.slo, engines.at
    late = at.deadline_s[engines.row] > seconds_and_quantile(slo.latencies[2])[0]
    late |= at.itl_s[engines.row] > seconds_and_quantile(slo.itl)[0]
    return found.take(np.flatnonzero(~late[found.configuration]))


def rebind(tables: CostTables, problem: CostEfficiency) -> CostTables | None:
    """Tables of a problem that differs from theirs in SLO, budget and prices only: the same curves; else None."""
    old = tables.case.problem
    if problem.serving == "continuous" and _bounded(problem) != _bounded(old):
        return None  # levels are bounds at these
    pool = problem.pool
    if len(pool.machines) != len(old.pool.machines):
        return None
    machines = tuple(m.model_copy(update={"prices": o.prices}) for m, o in
                     zip(pool.machines, old.pool.machines, strict=True))  # fmt: skip
    same = {f: getattr(old, f) for f in ("slo", "budget_usd_per_hour")}
    same["pool"] = pool.model_copy(update={"machines": machines})
    if dict(problem.model_copy(update=same)) != dict(old):
        return None
    case = replace(tables.case, problem=problem) if pool == old.pool else CostCase(**vars(problem.resolve()))
    return replace(tables, case=case, candidates=_priced(case, tables.configurations, tables.engines))


# ------------------------------------------------------------------------------------------------------ pruning


@dataclass(frozen=True)
class PrunedPoints:
    """Candidates that may still be optimal, and how many were cut by what."""

    tables: CostTables
    counts: dict[str, int]
    incumbent: int | None  # row of the best proved-feasible candidate among those kept


def prune(tables: CostTables) -> PrunedPoints:
    """Cut candidates that cannot be optimal, with proof; at least one optimum stays if there is any plan.

    In turn: memory (no α fits), budget, SLO (a lower bound over all α already exceeds a limit, `lower_bounds`),
    cost (its objective bound exceeds the objective of a candidate that is proved feasible at its balance α: choosing
    that one instead would be strictly better), and SLO again (no α keeps all limits, `optimise`).
    """
    c, s, limits = tables.curves, tables.candidates, tables.limits
    counts: dict[str, int] = {"candidates": len(s)}
    fits = in_memory(c)
    ttft_lb, tbt_lb, e2e_lb = c.lower_bounds() if len(c) else (np.zeros(0),) * 3
    meets = (ttft_lb <= limits.ttft_s) & (tbt_lb <= limits.tpot_s) & (e2e_lb <= limits.e2e_s)
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
        ok[trial] = (ttft <= limits.ttft_s) & (tbt <= limits.tpot_s) & (e2e_trial <= limits.e2e_s)
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
    return PrunedPoints(tables.restricted(rows), counts, incumbent)


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
    """Node table of the curves that may still be optimal (the MILP's input), and the worst certified error."""
    import pandas as pd

    kept = prune(tables).tables.compact()
    if not len(kept.curves):
        return pd.DataFrame({"configuration": [], "family": [], "alpha": []}), 0.0
    nodes = linearise(kept.curves, kept.limits, max_error)
    n, J = nodes.alpha.shape
    index = [i for i in range(n) for _ in range(J)]
    frame = pd.DataFrame({
        "configuration": index, "family": [FAMILIES[kept.configurations.family[i]] for i in index],
        "alpha": nodes.alpha.ravel(), "ttft_s": nodes.ttft_s.ravel(), "tpot_s": nodes.tpot_s.ravel(),
        "e2e_s": nodes.e2e_s.ravel(), "certified_error": [float(nodes.error[i]) for i in index],
    })  # fmt: skip
    return frame.drop_duplicates(["configuration", "alpha"]), float(nodes.error.max())
