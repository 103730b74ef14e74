"""Operating points of the cost-efficiency problem: those of static batches with an objective, pruned with proof."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from formulations.cost_efficiency.problem import CostEfficiency
from optmodels.latency.strategies import FAMILIES
from optmodels.serving import points as serving
from optmodels.serving.points import Array, StaticTables, in_memory, linearise, priced
from optmodels.serving.static import Case


@dataclass(frozen=True)
class CostCase(Case):
    """A cost-efficiency problem with every reference resolved."""

    problem: CostEfficiency


@dataclass(frozen=True)
class CostTables(StaticTables):
    """Everything a method may look at."""

    case: CostCase

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
    return CostTables(**vars(serving.build_tables(problem)))


def rebind(tables: StaticTables, problem: CostEfficiency) -> StaticTables | None:
    """Tables of a problem that differs from theirs in SLO, budget and prices only: the same curves; else None."""
    old = tables.case.problem
    if dict(problem.model_copy(update={f: getattr(old, f) for f in ("slo", "budget_usd_per_hour")})) == dict(old):
        return replace(tables, case=replace(tables.case, problem=problem))
    if len(problem.pool.machines) != len(old.pool.machines):
        return None
    machines = tuple(m.model_copy(update={"prices": o.prices}) for m, o in
                     zip(problem.pool.machines, old.pool.machines, strict=True))  # fmt: skip
    pool = problem.pool.model_copy(update={"machines": machines})
    if dict(problem.model_copy(update={"pool": pool})) != dict(old):
        return None
    case = problem.resolve()
    return replace(tables, case=case, candidates=priced(case, tables.configurations))


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
    and cost (its objective bound exceeds the objective of a candidate that is proved feasible at its balance α:
    choosing that one instead would be strictly better).
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
    rows = np.flatnonzero(alive)
    counts["kept"] = len(rows)
    return Pruned(tables.restricted(rows), counts, incumbent)


def candidate_order(tables: CostTables, e2e_s: Array) -> Iterator[int]:
    """Rows of candidates from best to worst: objective, then the simplest family, then E2E, then row."""
    s = tables.candidates
    e2e = e2e_s[s.configuration]
    value = tables.objective(e2e, s.usd_per_hour)
    with np.errstate(divide="ignore", invalid="ignore"):
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
