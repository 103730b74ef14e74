"""Whole instances from fractional ones, and their best schedule."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from formulations.orchestration.flow import Assignment, kept_models, metrics
from formulations.orchestration.model import dispatch
from formulations.orchestration.packing import Room, pack
from formulations.orchestration.place import rooms_of, running_counts
from formulations.orchestration.points import OrchestrationTables
from optmodels.solver.highs import Settings

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
EVALUATIONS = 40
IDLE = 1e-6  # requests


@dataclass(frozen=True)
class Scheduled:
    """Instances with the best schedule they allow, and its objective (the first priority if lexicographic)."""

    counts: Ints
    assignment: Assignment
    objective: float


def scheduled(t: OrchestrationTables, counts: Ints, settings: Settings | None = None) -> Scheduled | None:
    """The best schedule of given instances; None where they cannot hold what is asked of them."""
    assignment, _ = dispatch(t, counts, settings)
    if assignment is None:
        return None
    return Scheduled(np.asarray(counts, dtype=np.int64), assignment, metrics(t, assignment).total)


class Fits:
    """Whether numbers of instances fit the cluster and the limits on instances."""

    def __init__(self, t: OrchestrationTables, rooms: tuple[Room, ...]) -> None:
        self.t, self.rooms = t, rooms
        self.unit = np.array([x.unit for x in t.configurations], dtype=np.int64)
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
                units = [t.configurations[c].unit for c in np.flatnonzero(mine)
                         for _ in range(int(counts[c]) * t.configurations[c].units)]  # fmt: skip
                if pack(t.case, g, units) is None:
                    return False
        return all(counts[t.model_of == m].sum() <= most for m, most in enumerate(self.most))


def rounded(t: OrchestrationTables, n: Array, settings: Settings | None = None) -> Scheduled | None:
    """Round fractional instances down, then add whole ones where most is missing, as long as one fits."""
    fits = Fits(t, rooms_of(t))
    counts = np.floor(n + 1e-6).astype(np.int64)
    if not fits(counts):
        return None
    open_ = n > 1e-3
    while open_.any():
        missing = np.where(open_, n - counts, -np.inf)
        # Per GPU, so that a large instance that is hardly wanted does not take the room of a small one that is.
        c = int(np.argmax(missing / t.gpus_of))
        more = counts.copy()
        more[c] += 1
        if fits(more):
            counts = more
        else:
            open_[c] = False
    for m, served in enumerate(t.case.problem.models):
        if counts[t.model_of == m].sum() < served.minimum_instances:
            return None
    return scheduled(t, counts, settings)


def improved(t: OrchestrationTables, start: Scheduled, bound: float, until: float = np.inf) -> Scheduled:
    """Exchange one instance for another of at most its GPUs (of any model) as long as that helps.

    At most `EVALUATIONS` schedules are tried, so that without a time limit the same instance gives the same plan.

    Args:
        t: the tables.
        start: where to begin.
        bound: no plan is better: the search ends near it.
        until: `time.perf_counter` at which to stop.
    """
    fits = Fits(t, rooms_of(t))
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
            found = scheduled(t, more)
            if found is not None and found.objective > best.objective + 1e-6:
                best = found
                break
            if left == 0 or time.perf_counter() > until:
                left = 0
                break
        else:
            break
        if best.objective >= bound * (1 - 1e-4):
            break
    return best


def without_idle(t: OrchestrationTables, a: Assignment) -> Assignment:
    """The same schedule without instances that no request is meant for, but for running ones and models' minimum."""
    served = np.bincount(a.configuration, a.admitted.sum(axis=1), len(a.counts))
    counts, running = a.counts.copy(), running_counts(t)
    for c in np.flatnonzero((counts > 0) & (served <= IDLE)):
        m = t.model_of[c]
        spare = int(counts[t.model_of == m].sum()) - t.case.problem.models[m].minimum_instances
        counts[c] -= max(0, min(int(counts[c] - running[c]), spare))
    return replace(a, counts=counts)


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
