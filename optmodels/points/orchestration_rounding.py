"""Whole instances from fractional ones, and their best schedule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from optmodels.points.orchestration import OrchestrationTables
from optmodels.points.orchestration_flow import Assignment, FlowModel, dispatch, kept_models, metrics
from optmodels.points.orchestration_packing import Room, pack
from optmodels.solver.highs import Settings

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
    flow = FlowModel(t)
    fits = Fits(t, flow.rooms)
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
