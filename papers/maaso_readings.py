"""Weaker readings of the systems that MaaSO is compared with: what its text leaves open, taken the other way.

The paper says of AlpaServe that it places homogeneous instances by simulation and balances load, and of both baselines
that they were extended by batch sizes and pruning (§V-A). It does not say whether models may differ in their
parallelism, nor what a baseline does with a request that will be late.
"""

from __future__ import annotations

from formulations.orchestration.clock import Clock
from formulations.orchestration.methods.baselines import ATTAINMENT
from formulations.orchestration.methods.greedy_dp import searched
from formulations.orchestration.methods.printed import Printed
from formulations.orchestration.methods.trials import BOTH, Trials, sample
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.problem import Orchestration
from optmodels.formulation import Method, Options
from optmodels.plans.outcome import Outcome


def alpaserve_shared(
    problem: Orchestration, tables: OrchestrationTables, options: Options
) -> Outcome[OrchestrationPlan]:
    """All instances alike, whatever their model: the homogeneous baseline of MaaSO's Algorithm 2, line 10."""
    trials = Trials(tables, sample(tables, options.seed), "shortest_queue", Clock.of(options))
    every = range(len(tables.configurations))
    return searched(tables, trials, every, ATTAINMENT, (BOTH,), Printed)


def alpaserve_full_batch(
    problem: Orchestration, tables: OrchestrationTables, options: Options
) -> Outcome[OrchestrationPlan]:
    """Parallelism searched for each model, the batch as large as memory allows, which is what an engine does untold."""
    largest: dict[tuple[int, ...], int] = {}
    for c, x in enumerate(tables.configurations):
        key = (x.model, x.gpu, x.tp, x.pp, x.dp)
        if key not in largest or x.batch > tables.configurations[largest[key]].batch:
            largest[key] = c
    trials = Trials(tables, sample(tables, options.seed), "shortest_queue", Clock.of(options))
    return searched(tables, trials, sorted(largest.values()), ATTAINMENT, (BOTH,))


READINGS: dict[str, Method] = {"alpaserve_shared": alpaserve_shared, "alpaserve_full_batch": alpaserve_full_batch}
