"""Whole instances from fractional ones, and their best schedule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from formulations.orchestration.assign import reserve
from formulations.orchestration.clock import LEAST_S, Clock
from formulations.orchestration.flow import Assignment, kept_models, metrics
from formulations.orchestration.model import dispatch, nonzeros
from formulations.orchestration.packing import fits_by_patterns
from formulations.orchestration.place import rooms_of, running_counts
from formulations.orchestration.points import OrchestrationTables
from optmodels.arrays import Array, Ints
from optmodels.errors import InputError, SolverError
from optmodels.solver.highs import Limit, Report

EVALUATIONS = 40  # schedules tried by `improved`
IDLE = 1e-10  # of all requests
MOST_NONZEROS = 10_000_000  # of a matrix: some 1 GB where it is made, as much again in the solver
SECONDS_PER_NONZERO = 1e-6  # to make it
STEPS = 32  # instances are added one by one, of more than that by this part of them


@dataclass(frozen=True)
class Scheduled:
    """Instances with the best schedule they allow, and its objective (the first priority if lexicographic)."""

    counts: Ints
    assignment: Assignment
    objective: float


def unaffordable(size: float, clock: Clock | None) -> Limit | None:
    """Why not to make a matrix of this many nonzeros: it fills the memory, or cannot be made in the time that is
    left.
    """
    if size > MOST_NONZEROS:
        return "memory"
    return "time" if clock is not None and size * SECONDS_PER_NONZERO > max(LEAST_S, clock.left) else None


def holds(t: OrchestrationTables, a: Assignment) -> bool:
    """Whether every attainment_at_least that must hold does."""
    return t.case.problem.slo.shortfall_penalty is not None or not metrics(t, a).shortfalls


def scheduled(t: OrchestrationTables, counts: Ints, clock: Clock | None = None) -> Scheduled | None:
    """The best schedule of given instances; None where they cannot meet the requirements.

    Where the linear programme is too large, ends without an answer or fails, it is one by reservations.
    """
    counts = np.asarray(counts, dtype=np.int64)
    report: Report | None = None
    assignment = None
    if unaffordable(nonzeros(t, counts), clock) is None:
        try:
            assignment, report = dispatch(t, counts, None if clock is None else clock.settings())
        except (SolverError, InputError):
            report = None
    if assignment is None and (report is None or report.status != "infeasible"):
        assignment = reserve(t, counts, t.case.problem.objective.weights, clock=clock)
        assignment = assignment if holds(t, assignment) else None
    return None if assignment is None else Scheduled(counts, assignment, metrics(t, assignment).total)


class Fits:
    """Whether numbers of instances fit the cluster and the limits on instances."""

    def __init__(self, t: OrchestrationTables) -> None:
        self.t, self.rooms = t, rooms_of(t)
        self.unit = np.array([x.unit for x in t.configurations], dtype=np.int64)
        self.units = np.array([x.units for x in t.configurations], dtype=np.int64)
        limits = [m.maximum_instances for m in t.case.problem.models]
        self.most = [np.inf if v is None else float(v) for v in limits]

    def __call__(self, counts: Ints) -> bool:
        """True if they do; smaller numbers then fit too."""
        t = self.t
        used = counts * t.gpus_of
        for g, room in enumerate(self.rooms):
            mine = t.gpu_of == g
            if used[mine].sum() > room.gpus:
                return False
            if room.divisible:
                if any(used[mine & (self.unit >= s)].sum() > room.capacity[s] for s in room.sizes):
                    return False
            else:
                units = {int(s): int((counts * self.units)[mine & (self.unit == s)].sum()) for s in room.sizes}
                if not fits_by_patterns(room, units):
                    return False
        return all(counts[t.model_of == m].sum() <= most for m, most in enumerate(self.most))


def rounded(t: OrchestrationTables, n: Array, clock: Clock | None = None) -> Scheduled | None:
    """Round fractional instances down, then add whole ones where most is missing, as long as one fits."""
    fits = Fits(t)
    counts = np.floor(n + 1e-6).astype(np.int64)
    if not fits(counts):
        return None
    step = np.where(n > 1e-3, np.maximum(1, counts // STEPS), 0)
    while step.any():
        missing = np.where(step > 0, n - counts, -np.inf)
        # Per GPU, so that a large instance that is hardly wanted does not take the room of a small one that is.
        c = int(np.argmax(missing / t.gpus_of))
        more = counts.copy()
        more[c] += step[c]
        if fits(more):
            counts = more
            step[c] = max(step[c], counts[c] // STEPS)
        else:
            step[c] //= 2
    for m, served in enumerate(t.case.problem.models):
        if counts[t.model_of == m].sum() < served.minimum_instances:
            return None
    return scheduled(t, counts, clock)


def improved(t: OrchestrationTables, start: Scheduled, bound: float, clock: Clock | None = None) -> Scheduled:
    """Exchange one instance for another of at most its GPUs (of any model) as long as that helps.

    At most `EVALUATIONS` schedules are tried, so that without a time limit the same instance gives the same plan.
    Untried plans do not weaken the bound: it holds for every plan.

    Args:
        t: the tables.
        start: counts to begin with.
        bound: no plan is better: the search ends near it.
        clock: when to stop.
    """
    fits = Fits(t)
    least = np.array([m.minimum_instances for m in t.case.problem.models])
    best, tried, left = start, {start.counts.tobytes()}, EVALUATIONS
    while left > 0:
        served = np.bincount(best.assignment.request_class, best.assignment.admitted.sum(axis=1), len(t.classes))
        missed = np.bincount(t.classes.model, t.classes.count - served, len(t.case.models))
        moves = [
            (-missed[t.model_of[d]], -int(t.gpus_of[d]), int(t.model_of[c] != t.model_of[d]), int(c), d)
            for c in np.flatnonzero(best.counts) for d in range(len(t.configurations))
            if c != d and t.gpu_of[c] == t.gpu_of[d] and t.gpus_of[d] <= t.gpus_of[c]
        ]  # fmt: skip
        for *_, c, d in sorted(moves):
            more = best.counts.copy()
            more[c] -= 1
            more[d] += max(1, int(t.gpus_of[c] // t.gpus_of[d]))
            few = any(more[t.model_of == m].sum() < v for m, v in enumerate(least))
            if more.tobytes() in tried or few or not fits(more):
                continue
            tried.add(more.tobytes())
            left -= 1
            found = scheduled(t, more, clock)
            if found is not None and found.objective > best.objective + 1e-6:
                best = found
                break
            if left == 0 or (clock is not None and clock.over):
                left = 0
                break
        else:
            break
        if best.objective >= bound * (1 - 1e-4):
            break
    return best


def without_idle(t: OrchestrationTables, a: Assignment) -> Assignment:
    """The same schedule without instances that no request is meant for, but for running ones and models' minimum."""
    served = np.zeros(len(a.counts))
    first, last = t.legs[a.configuration].T
    np.add.at(served, first, a.admitted.sum(axis=1))
    np.add.at(served, last, a.admitted.sum(axis=1))
    counts, running = a.counts.copy(), running_counts(t)
    for c in np.flatnonzero((counts > 0) & (served <= IDLE * t.classes.count.sum())):
        m = t.model_of[c]
        spare = int(counts[t.model_of == m].sum()) - t.case.problem.models[m].minimum_instances
        counts[c] -= max(0, min(int(counts[c] - running[c]), spare))
    used = t.open(counts)[a.configuration]
    return Assignment(
        counts, a.request_class[used], a.configuration[used], a.admitted[used], a.started[used], a.waiting[used]
    )


def impossible(t: OrchestrationTables) -> str:
    """Why no plan exists, where it shows without a solver; empty otherwise."""
    p = t.case.problem
    for m, served in enumerate(p.models):
        usable = bool((t.model_of == m).any())
        reasons = sorted({d.reason for d in t.discarded if d.model == served.model})
        why = f"no candidate of {served.model} can be used: {'; '.join(reasons[:3])}"
        if served.minimum_instances and not usable:
            return f"models[{m}].minimum_instances is {served.minimum_instances}, but {why}"
        if served.maximum_instances is not None and served.minimum_instances > served.maximum_instances:
            return f"models[{m}].minimum_instances is above maximum_instances"
        mine = t.classes.model == m
        if m in kept_models(t) and p.slo.shortfall_penalty is None and t.classes.count[mine].sum() > 0:
            able = t.classes.count[mine & t.admissible.any(axis=1)].sum() / t.classes.count[mine].sum()
            if able < (served.attainment_at_least or 0.0):
                less = (
                    why if not usable else f"only {able:.1%} of its requests can meet their deadline on any candidate"
                )
                return f"models[{m}].attainment_at_least is {served.attainment_at_least:g}, but {less}"
    return ""
