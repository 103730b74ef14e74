"""MaaSO's placer (§IV-D, E): simulator-guided sub-clusters with dynamic programming over the split of the GPUs.

Each method is `(problem, tables, options) -> Outcome`. The search by simulation chooses the instances; the plan's
shares, and so its objective, are then the best assignment to these instances that is known, as for every method.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from formulations.orchestration.assign import reserve
from formulations.orchestration.clock import Clock
from formulations.orchestration.making import make_plan
from formulations.orchestration.methods.printed import Printed
from formulations.orchestration.methods.search import Search, SearchGroup
from formulations.orchestration.methods.trials import BOTH, RELAXED, STRICT, Goal, Trials, sample
from formulations.orchestration.packing import rooms
from formulations.orchestration.plan import Dispatcher, OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.problem import Orchestration
from formulations.orchestration.replay import dispatched
from formulations.orchestration.rounding import STEPS, Fits, holds, scheduled
from optmodels.arrays import Ints
from optmodels.formulation import Options
from optmodels.plans.outcome import Outcome
from optmodels.simulation.cluster import Policy

MOST_STARTS = 6_000  # classes on configurations × bins: beyond it the linear programme takes more than some 0.2 s
TIE = 1e-6  # weight of the other terms


@dataclass(frozen=True)
class Placement:
    """Instances and how requests are sent to them.

    Attributes:
        groups: like instances, with the side of the SLO split they serve.
        strict_slo_factor: θ up to which a request is strict.
    """

    groups: tuple[SearchGroup, ...]
    policy: Policy
    protect: bool = True
    strict_slo_factor: float | None = None

    def counts(self, t: OrchestrationTables) -> Ints:
        """(C,) instances of every configuration."""
        counts = np.zeros(len(t.configurations), dtype=np.int64)
        for g in self.groups:
            counts[g.configuration] += g.count
        return counts

    def subclusters(self) -> dict[int, list[int]]:
        """Of every configuration, the sub-cluster of each of its instances."""
        sides: dict[int, list[int]] = {}
        for g in reversed(self.groups):
            sides.setdefault(g.configuration, []).extend([g.side] * g.count)
        return sides

    def label(self, plan: OrchestrationPlan) -> OrchestrationPlan:
        """The plan with its dispatcher: policy and the split θ."""
        dispatcher = Dispatcher(policy=self.policy, overflow_protection=self.protect,
                                strict_slo_factor=self.strict_slo_factor)  # fmt: skip
        return plan.model_copy(update={"dispatcher": dispatcher})


def greedy_dp(problem: Orchestration, tables: OrchestrationTables, options: Options) -> Outcome[OrchestrationPlan]:
    """MaaSO: simulator-guided instances for strict and relaxed requests, dynamic programming over the GPUs."""
    return maaso(problem, tables, options, problem.objective.weights)


def maaso_star(problem: Orchestration, tables: OrchestrationTables, options: Options) -> Outcome[OrchestrationPlan]:
    """MaaSO*: the same for SLO satisfaction only (α = 1)."""
    return maaso(problem, tables, options, (1.0, TIE, TIE))


def maaso_printed(problem: Orchestration, tables: OrchestrationTables, options: Options) -> Outcome[OrchestrationPlan]:
    """MaaSO with its Algorithm 1 as printed: all models of a sub-cluster share one configuration."""
    return maaso(problem, tables, options, problem.objective.weights, Printed)


def maaso(
    problem: Orchestration, t: OrchestrationTables, options: Options, goal: Goal, way: type[Search | Printed] = Search
) -> Outcome[OrchestrationPlan]:
    """Algorithms 1 and 2 for a goal."""
    trials = Trials(t, sample(t, options.seed), "maaso", Clock.of(options))
    every = list(range(len(t.configurations)))
    return searched(t, trials, every, goal, (BOTH, STRICT, RELAXED), way)


def searched(
    t: OrchestrationTables, trials: Trials, usable: Sequence[int], goal: Goal, sides: Sequence[int],
    way: type[Search | Printed] = Search,
) -> Outcome[OrchestrationPlan]:  # fmt: skip
    """Search, then assign."""
    groups = deploy(trials, usable, goal, sides, way)
    divided = any(g.side != BOTH for g in groups)
    found = Placement(tuple(groups), trials.policy, trials.protect, trials.threshold if divided else None)
    return finish(t, found, goal, trials.clock, trials)


def deploy(
    trials: Trials, usable: Sequence[int], goal: Goal, sides: Sequence[int], way: type[Search | Printed] = Search
) -> list[SearchGroup]:
    """The search on one GPU type after the other, each for requests that the ones before do not serve in time."""
    t, scale = trials.t, trials.drawn.scale
    room = rooms(t.case, [[] for _ in t.case.gpu_types])
    groups: list[SearchGroup] = []
    left = np.ones(len(trials.drawn.requests), dtype=bool)
    order = sorted(range(len(room)), key=lambda g: -room[g].gpus)
    for g in order:
        mine = [c for c in usable if t.configurations[c].gpu == g]
        if not mine or room[g].gpus < scale:
            continue
        if groups:
            trials.keep(left)
        placed = [sum(x.count for x in groups if t.configurations[x.configuration].model == m)
                  for m in range(len(t.case.models))]  # fmt: skip
        made = way(trials, mine, room[g].gpus // scale, goal, sides, placed).solve()
        if len(order) > 1:
            for x in made:
                members = trials.members(t.configurations[x.configuration].model, x.side)
                left[members[trials.run(x.configuration, x.count, x.side)[1]]] = False
        groups += [SearchGroup(x.configuration, x.side, x.count * scale) for x in made]
    trials.keep(np.ones(len(left), dtype=bool))
    return fitting(t, groups)


def fitting(t: OrchestrationTables, groups: Sequence[SearchGroup]) -> list[SearchGroup]:
    """The groups less what does not fit the servers: of the largest instances one at a time, or a part of many."""
    fits = Fits(t)
    kept = list(groups)
    while kept and not fits(Placement(tuple(kept), "maaso").counts(t)):
        i = max(range(len(kept)), key=lambda i: (t.configurations[kept[i].configuration].unit, kept[i].count))
        kept[i] = replace(kept[i], count=kept[i].count - max(1, kept[i].count // STEPS))
        kept = [g for g in kept if g.count]
    return kept


def finish(
    t: OrchestrationTables, found: Placement, goal: Goal, clock: Clock, trials: Trials | None = None
) -> Outcome[OrchestrationPlan]:
    """The plan of a deployment: requests assigned by linear programme; where that is large, by reservations."""
    at = time.perf_counter()
    seconds = {"search": clock.seconds}
    log: dict[str, object] = {"policy": found.policy}
    if trials is not None:
        log |= {"simulated_requests": trials.simulated, "sample_scale": trials.drawn.scale}
    p = t.case.problem
    counts = found.counts(t)
    pairs = int((t.admissible & (counts > 0)[None, :] & (t.classes.count > 0)[:, None]).sum())
    large, why = pairs * t.bins > MOST_STARTS, ""
    assignment = reserve(t, counts, goal, clock.options.seed, clock=clock) if large else None
    if assignment is None or not holds(t, assignment):
        best = scheduled(t, counts, clock)
        assignment = None if best is None else best.assignment
    if assignment is None:
        why = "the instances found cannot hold every attainment_at_least"
    for m, served in enumerate(p.models):
        if int(counts[t.model_of == m].sum()) < served.minimum_instances:
            assignment, why = None, f"{served.model}: no room for {served.minimum_instances} instances"
    sides = found.subclusters() if t.taken is None else None
    plan = None if assignment is None else make_plan(t, assignment, sides, on_servers=clock.on_servers)
    seconds |= {"assign": time.perf_counter() - at, "solve": clock.seconds}
    limit = clock.stopped
    if plan is None:
        log["reason"] = why or "the instances do not fit the servers"
        return Outcome("no_solution_found", None, limit=limit, seconds=seconds, log=log)
    if t.taken is None:
        plan = found.label(plan)
    elif not clock.options.answer_only:  # MaaSO's dispatchers send to slots
        plan = dispatched(t, [plan], clock.options.seed, clock)
    return Outcome("feasible", plan, limit=limit, seconds=seconds, log=log)
