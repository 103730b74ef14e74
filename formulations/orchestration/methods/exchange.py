"""`greedy_dp`, then exchanges of instances judged by their schedule: what MaaSO's search leaves to be found.

Algorithms 1 and 2 try like instances only, in every cell by itself and under one dispatcher. Here some instances of a
configuration are exchanged for others, in one model or in two at once, as long as the planned score rises. That score
adds up over the models, so that the instances of each are assigned once only.
"""

from __future__ import annotations

import time

import numpy as np

from formulations.orchestration.assign import reserve
from formulations.orchestration.clock import Clock
from formulations.orchestration.flow import metrics
from formulations.orchestration.making import counts_of
from formulations.orchestration.methods.by_model import alone
from formulations.orchestration.methods.greedy_dp import Placement, finish, greedy_dp
from formulations.orchestration.methods.search import MISSING, SearchGroup
from formulations.orchestration.methods.trials import BOTH
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.problem import Orchestration
from formulations.orchestration.pruning import dominated, paper_rules
from formulations.orchestration.replay import dispatched
from formulations.orchestration.rounding import Fits
from optmodels.arrays import Ints
from optmodels.formulation import Options
from optmodels.plans.outcome import Outcome

LEAST = 1e-7  # gain worth a step
SWAPS = 8  # of an assignment by reservations
WORK, EACH = 300_000, 750  # (class, configuration, bin) assigned in all, some 0.5 s; the cost of any assignment next to
MOST_FITS = 100  # changes packed into servers in one step


def greedy_dp_exchange(
    problem: Orchestration, tables: OrchestrationTables, options: Options
) -> Outcome[OrchestrationPlan]:
    """The paper's search, improved by exchanges; the better of both plans, under the dispatcher that serves it best."""
    clock = Clock.of(options)
    start = greedy_dp(problem, tables, options)
    if start.plan is None:
        return start
    at = time.perf_counter()
    exchanges = Exchanges(problem, tables, options.seed, clock)
    counts = exchanges.improve(counts_of(tables, start.plan))
    log: dict[str, object] = {"steps": exchanges.steps, "assigned": len(exchanges.known)}
    seconds = {"greedy_dp": at - clock.began, "exchange": time.perf_counter() - at}
    plan = start.plan
    if exchanges.steps:
        groups = tuple(SearchGroup(int(c), BOTH, int(counts[c])) for c in np.flatnonzero(counts))
        made = finish(tables, Placement(groups, "planned_shares"), exchanges.goal, clock).plan
        if made is not None and made.score.total > plan.score.total:
            plan = made
    if not options.answer_only:
        plan = dispatched(tables, [plan], options.seed, clock)
    seconds["solve"] = clock.seconds
    return Outcome("feasible", plan, limit=clock.stopped, seconds=seconds, log=start.log | log)


class Exchanges:
    """Local search on the numbers of instances.

    Attributes:
        known: score of a model's instances, as far as they were assigned.
        steps: taken.
    """

    def __init__(self, problem: Orchestration, t: OrchestrationTables, seed: int, clock: Clock | None = None) -> None:
        models = range(len(t.case.models))
        self.t, self.seed, self.goal, self.clock = t, seed, problem.objective.weights, clock or Clock.of(Options())
        self.alone = [alone(t, m) for m in models]
        self.mine = [np.flatnonzero(t.model_of == m) for m in models]
        kept = dominated(t).keep & paper_rules(t).keep
        self.usable = [np.flatnonzero(kept[mine]) for mine in self.mine]
        self.fits = Fits(t)
        self.least = np.array([m.minimum_instances for m in problem.models])
        self.gpus = np.zeros((len(t.configurations), len(t.case.gpu_types)), dtype=np.int64)
        self.gpus[np.arange(len(t.configurations)), t.gpu_of] = t.gpus_of
        penalty = problem.slo.shortfall_penalty
        self.hold = MISSING if penalty is None else penalty
        self.known: dict[tuple[int, bytes], float] = {}
        self.work = self.steps = 0

    @property
    def stopped(self) -> bool:
        """Whether enough was tried; a heuristic bounds its own work, and claims no more than the plan it returns."""
        return self.work >= WORK or self.clock.over

    def value(self, counts: Ints) -> float:
        """The planned score of instances, their requests assigned by reservations."""
        return sum(self._model(m, counts[mine]) for m, mine in enumerate(self.mine))

    def _model(self, m: int, counts: Ints) -> float:
        key = (m, counts.tobytes())
        if key not in self.known:
            t = self.alone[m]
            a = reserve(t, counts, self.goal, self.seed, SWAPS)
            self.work += EACH + len(a.request_class) * t.bins
            seen = metrics(t, a)
            gained = float(np.dot(self.goal, (seen.satisfaction, seen.throughput, seen.latency)))
            self.known[key] = gained - seen.changes - self.hold * sum(seen.shortfalls.values())
        return self.known[key]

    def variants(self, m: int, counts: Ints) -> list[Ints]:
        """The model's instances with one, half or all of a configuration's taken away or exchanged, or one added.

        In their place comes one of another configuration, or as many as their GPUs hold.
        """
        gpus = self.t.gpus_of[self.mine[m]]
        found = {counts.tobytes(): counts}
        for c in (None, *np.flatnonzero(counts)):
            for out in (0,) if c is None else sorted({1, (int(counts[c]) + 1) // 2, int(counts[c])}):
                fewer = counts.copy()
                if c is not None:
                    fewer[c] -= out
                    found.setdefault(fewer.tobytes(), fewer)
                for d in self.usable[m]:
                    freed = 0 if c is None else out * int(gpus[c])
                    for into in sorted({1, max(1, freed // int(gpus[d]))}):
                        more = fewer.copy()
                        more[d] += into
                        found.setdefault(more.tobytes(), more)
        del found[counts.tobytes()]
        return list(found.values())

    def step(self, counts: Ints) -> Ints | None:
        """The best change of one model, or of two at once, that fits; None: none is better."""
        model, gain, change = [-1], [0.0], [np.zeros_like(counts)]  # no change, next to which another stands alone
        for m, mine in enumerate(self.mine):
            now = self._model(m, counts[mine])
            for variant in self.variants(m, counts[mine]):
                if self.stopped:
                    break
                whole = np.zeros_like(counts)
                whole[mine] = variant - counts[mine]
                model.append(m)
                gain.append(self._model(m, variant) - now)
                change.append(whole)
        gains, models, changes = np.array(gain), np.array(model), np.array(change)
        gpus, free = changes @ self.gpus, self.t.case.free_gpus - counts @ self.gpus
        i, j = np.nonzero(gains[:, None] + gains[None, :] > LEAST)
        fits = (models[i] < models[j]) & (gpus[i] + gpus[j] <= free).all(axis=1)
        i, j = i[fits], j[fits]
        for at in np.argsort(-(gains[i] + gains[j]), kind="stable")[:MOST_FITS]:
            changed = counts + changes[i[at]] + changes[j[at]]
            if self.allowed(changed):
                return changed
        return None

    def allowed(self, counts: Ints) -> bool:
        """Whether instances fit the servers and are as many as asked."""
        enough = np.bincount(self.t.model_of, counts, len(self.least)) >= self.least
        return bool(enough.all()) and self.fits(counts)

    def improve(self, counts: Ints) -> Ints:
        """Step by step, until none helps, all is in time at once or enough was tried."""
        while not self.stopped and self.value(counts) < sum(self.goal) - 1e-4:
            changed = self.step(counts)
            if changed is None:
                break
            counts, self.steps = changed, self.steps + 1
        return counts
