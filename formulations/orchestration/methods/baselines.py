"""The systems that MaaSO is compared with (§V-A), and round robin: like instances for every request of a model.

All search batch sizes too, as in the paper; none prunes, as trials are cheap. SLO satisfaction alone is their goal.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from formulations.orchestration.clock import Clock
from formulations.orchestration.methods.greedy_dp import TIE, Placement, finish, fitting, searched
from formulations.orchestration.methods.search import SearchGroup
from formulations.orchestration.methods.trials import BOTH, Gains, Goal, Trials, sample
from formulations.orchestration.packing import rooms
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.problem import Orchestration
from formulations.orchestration.pruning import admitted_share
from optmodels.formulation import Options
from optmodels.plans.outcome import Outcome

ATTAINMENT: Goal = (1.0, TIE, TIE)


def alpaserve(problem: Orchestration, tables: OrchestrationTables, options: Options) -> Outcome[OrchestrationPlan]:
    """AlpaServe, extended by batch sizes: the best homogeneous instances of every model, shortest queue."""
    trials = Trials(tables, sample(tables, options.seed), "shortest_queue", Clock.of(options))
    return searched(tables, trials, range(len(tables.configurations)), ATTAINMENT, (BOTH,))


def selective_replication(
    problem: Orchestration, tables: OrchestrationTables, options: Options
) -> Outcome[OrchestrationPlan]:
    """Replicas on as few GPUs as a model fits, one at a time where the simulated gain is largest; shortest queue."""
    t = tables
    trials = Trials(t, sample(t, options.seed), "shortest_queue", Clock.of(options))
    scale = trials.drawn.scale
    groups: list[SearchGroup] = []
    for g, room in enumerate(rooms(t.case, [[] for _ in t.case.gpu_types])):
        smallest = _smallest(t, g)
        left, count = room.gpus // scale, dict.fromkeys(smallest, 0)
        every = {m: np.arange(1, 1 + _most(t, m, left // t.configurations[of[0]].gpus)) for m, of in smallest.items()}
        gains = {m: [trials.estimates(c, every[m], BOTH) for c in of if not trials.clock.over]
                 for m, of in smallest.items()}  # fmt: skip
        while True:
            steps = [(_gain(gains[m], n, n + 1), -n, -m) for m, n in count.items()
                     if t.configurations[smallest[m][0]].gpus <= left and n < _most(t, m, n + 1)]  # fmt: skip
            if not steps or max(steps)[0] <= 0:
                break
            m = -max(steps)[2]
            count[m] += 1
            left -= t.configurations[smallest[m][0]].gpus
        for m, n in count.items():
            n = max(n, -(-t.case.problem.models[m].minimum_instances // scale))
            if n:
                best = max(range(len(gains[m])), key=lambda i: _score(gains[m][i], n), default=0)
                groups.append(SearchGroup(smallest[m][best], BOTH, n * scale))
    found = Placement(tuple(fitting(t, groups)), trials.policy)
    return finish(t, found, ATTAINMENT, trials.clock, trials)


def _most(t: OrchestrationTables, m: int, count: int) -> int:
    limit = t.case.problem.models[m].maximum_instances
    return count if limit is None else min(count, limit)


def _score(gains: list[Gains], count: int) -> float:
    return gains[min(count, len(gains)) - 1].score(ATTAINMENT) if gains and count else 0.0


def _gain(gains: list[list[Gains]], before: int, after: int) -> float:
    """With the best batch size for either number."""
    return max((_score(g, after) for g in gains), default=0.0) - max((_score(g, before) for g in gains), default=0.0)


def _smallest(t: OrchestrationTables, gpu: int) -> Mapping[int, list[int]]:
    """For every model that fits this GPU type, its configurations with the fewest GPUs."""
    found: dict[int, list[int]] = {}
    for c, x in enumerate(t.configurations):
        if x.gpu != gpu or not (t.classes.model == x.model).any():
            continue
        held = found.setdefault(x.model, [])
        if held and t.configurations[held[0]].gpus > x.gpus:
            held.clear()
        if not held or t.configurations[held[0]].gpus == x.gpus:
            held.append(c)
    return found


def round_robin(problem: Orchestration, tables: OrchestrationTables, options: Options) -> Outcome[OrchestrationPlan]:
    """As many instances of every model as of any other, on as few GPUs as it fits; requests in turn, none refused."""
    clock = Clock.of(options)
    t = tables
    share, largest = admitted_share(t), [x.batch * x.ranks for x in t.configurations]
    groups: list[SearchGroup] = []
    for g, room in enumerate(rooms(t.case, [[] for _ in t.case.gpu_types])):
        chosen = {m: max(of, key=lambda c: (share[c], largest[c])) for m, of in _smallest(t, g).items()}
        count, left = dict.fromkeys(chosen, 0), room.gpus
        each = left // max(1, sum(t.configurations[c].gpus for c in chosen.values()))
        for m, c in chosen.items():
            count[m] = _most(t, m, each)
            left -= count[m] * t.configurations[c].gpus
        for m, c in chosen.items():
            if t.configurations[c].gpus <= left and _most(t, m, count[m] + 1) > count[m]:
                count[m] += 1
                left -= t.configurations[c].gpus
        groups += [SearchGroup(chosen[m], BOTH, n) for m, n in count.items() if n]
    found = Placement(tuple(fitting(t, groups)), "round_robin", protect=False)
    return finish(t, found, ATTAINMENT, clock)
