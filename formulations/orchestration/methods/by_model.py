"""The column form decomposed by model: models share nothing but GPUs.

MS(6), change penalties and shortfalls are sums over models, and so is every row except packing and stock. Where these
state no more than Σ_m g_m ≤ G (`separable`), the problem is

    max Σ_m V_m(g_m)  s.t. Σ_m g_m ≤ G,    V_m(g) = the best of model m alone with whole instances on g GPUs.

No V_m is tabulated. Upper bounds U_m(g) ≥ V_m(g) and schedules L_m(g) ≤ V_m(g) are kept for every g; dynamic
programming over g combines them to a bound and a plan. Only where the bound's own split of the GPUs has U > L is
something solved, each time the next of the `STAGES`:

    relaxed   the pooled form without integrality; its dual price of GPUs bounds every other g too (weak duality)
    pooled    the pooled form with whole instances, and the exact schedule of its result
    exact     the exact form (one stock for each class and configuration) with whole instances: V_m(g)

V_m does not decrease in g, so each result bounds smaller or larger g as well. The split changes until bound and plan
meet; as every stage is finite they do (the argument of A*: nothing is refined that the best bound does not rest on).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from formulations.orchestration.clock import LEAST_S, Clock
from formulations.orchestration.flow import ceiling, weights
from formulations.orchestration.model import FlowModel, nonzeros
from formulations.orchestration.place import rooms_of
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.pruning import restrict
from formulations.orchestration.rounding import scheduled, unaffordable
from optmodels.arrays import Array, Ints
from optmodels.errors import InputError, SolverError
from optmodels.solver.compile import Compiled
from optmodels.solver.highs import PROVED, Event, Limit, Report, relative_gap, relaxation, solve_compiled

MOST_GPUS = 256  # of more, fractions of an instance hardly count: the relaxation is quicker
STAGES = ("relaxed", "pooled", "exact")
# The heuristics of the tree solve sub-MIPs for longer than these trees take.
SUB_MIPS = ("mip_heuristic_run_rins", "mip_heuristic_run_rens", "mip_heuristic_run_root_reduced_cost")
TREE = {"mip_heuristic_effort": 0.01, "mip_lp_solver": "ipm"} | dict.fromkeys(SUB_MIPS, False)


def separable(t: OrchestrationTables) -> bool:
    """Whether models couple through a number of GPUs only: one type, sizes that divide one another and the servers."""
    o = t.case.problem.objective
    if len(t.apart) or len(t.case.gpu_types) != 1 or o.kind != "score" or weights(t).capped:
        return False
    room = rooms_of(t)[0]
    return room.gpus <= MOST_GPUS and room.divisible and all(v >= room.gpus for v in room.capacity.values())


def alone(t: OrchestrationTables, m: int) -> OrchestrationTables:
    """The tables of one model among every model's requests: scores add up to the whole score."""
    only = restrict(t, t.model_of == m)
    nothing = {"attainment_at_least": None, "minimum_instances": 0, "maximum_instances": None}
    p = only.case.problem
    models = [served if i == m else served.model_copy(update=nothing) for i, served in enumerate(p.models)]
    return replace(only, case=replace(only.case, problem=p.model_copy(update={"models": models})))


@dataclass
class Split:
    """Result of the search: instances, a bound, its course.

    Attributes:
        counts: (C,) best instances; None: none are known.
        objective: their score, in the exact form.
        bound: no plan is better.
        infeasible: no plan exists.
        solved: problems solved at each stage.
        failed: questions that the solver could not answer; the bounds found before them hold.
    """

    counts: Ints | None
    objective: float | None
    bound: float | None
    infeasible: bool = False
    limit: Limit | None = None
    events: list[Event] = field(default_factory=list)
    solved: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STAGES, 0))
    nodes: int = 0
    failed: list[str] = field(default_factory=list)


class Value:
    """Bounds and schedules of V_m(g) for g = 0 … G.

    Attributes:
        upper, lower: (G + 1,) U_m and L_m; −inf where there is no plan, or none known.
        counts: (G + 1,) instances of the schedules.
        stage: (G + 1,) stages passed at g.
    """

    def __init__(self, t: OrchestrationTables, m: int, gpus: int) -> None:
        self.t, self.m = alone(t, m), m
        self.mine = np.flatnonzero(t.model_of == m)
        self.lower = np.full(gpus + 1, -np.inf)
        self.counts: list[Ints | None] = [None] * (gpus + 1)
        self.stage = np.zeros(gpus + 1, dtype=np.int64)
        self.upper = np.full(gpus + 1, ceiling(self.t))
        self.offer(np.zeros(len(self.mine), dtype=np.int64))
        self.upper[: gpus + 1 if not len(self.mine) else 1] = self.lower[0]

    @cached_property
    def pooled(self) -> tuple[FlowModel, Compiled]:
        """The pooled form."""
        flow = FlowModel(self.t)
        return flow, flow.compiled()

    @cached_property
    def exact(self) -> tuple[FlowModel, Compiled]:
        """The exact form with instances to choose."""
        flow = FlowModel(self.t, pooled=False)
        return flow, flow.compiled()

    def offer(self, counts: Ints, clock: Clock | None = None) -> None:
        """Keep the best schedule of these instances of the model wherever it is the best known."""
        used = int(counts @ self.t.gpus_of)
        served = self.t.case.problem.models[self.m]
        most = np.inf if served.maximum_instances is None else served.maximum_instances
        if used >= len(self.lower) or not served.minimum_instances <= counts.sum() <= most:
            return
        found = scheduled(self.t, counts, clock)
        if found is None:
            return
        for g in range(used, len(self.lower)):
            if found.objective > self.lower[g]:
                self.lower[g], self.counts[g] = found.objective, found.counts

    def refine(self, g: int, clock: Clock, gap: float, part: Clock | None = None) -> Report | None:
        """The next stage at g GPUs, to a gap; the report of its tree, if it has one.

        Args:
            g: GPUs.
            clock: time for the stage.
            gap: relative, at which a tree may end.
            part: part of that, a trial for its tree: if it is not done by then, this is the next stage once more.

        Raises:
            InputError, SolverError: the solver failed; the bounds there were stand.
        """
        stage = STAGES[self.stage[g]]
        self.stage[g] += 1
        if unaffordable(nonzeros(self.t, pooled=stage != "exact"), clock) is not None:
            return None
        settings = replace(clock.settings(), gap=gap)
        flow, model = self.exact if stage == "exact" else self.pooled
        column = flow.g.start + self.m
        upper = model.upper.copy()
        upper[column] = g
        model = replace(model, upper=upper)
        if stage == "relaxed":
            relaxed = relaxation(model, settings)
            if relaxed.bound is not None and relaxed.reduced is not None:
                price = max(0.0, float(relaxed.reduced[column]))
                np.minimum(self.upper, relaxed.bound + price * (np.arange(len(self.upper)) - g), out=self.upper)
            return None
        known = self.counts[g]
        start = None if known is None else flow.start({"n": known})
        seconds = settings.time_limit if part is None else part.left
        found = solve_compiled(model, replace(settings, options=TREE, time_limit=seconds), start)
        if part is not None and found.limit == "time":
            self.stage[g] -= 1
        if found.status == "infeasible" or found.bound is not None:
            worst = -np.inf if found.bound is None else found.bound
            np.minimum(self.upper[: g + 1], worst, out=self.upper[: g + 1])  # no better with fewer
        if found.x is not None:
            self.offer(np.round(flow.n.of(found.x)).astype(np.int64), clock)
        return found


def best_split(values: Sequence[Array]) -> tuple[float, list[int]]:
    """max Σ_m values_m(g_m), Σ_m g_m ≤ G, and the g_m: dynamic programming, O(models·G²)."""
    size = len(values[0])
    best, chosen = np.zeros(size), []
    g, h = np.arange(size)[:, None], np.arange(size)[None, :]
    for value in values:
        table = np.where(h <= g, best[np.maximum(g - h, 0)] + value[None, :], -np.inf)
        chosen.append(table.argmax(axis=1))
        best = table.max(axis=1)
    at, split = size - 1, []
    for choice in reversed(chosen):
        split.append(int(choice[at]))
        at -= split[-1]
    return float(best[-1]), split[::-1]


def by_model(
    t: OrchestrationTables, clock: Clock, starts: Sequence[Ints] = (), more: Callable[[], Sequence[Ints]] | None = None,
    relaxed: Callable[[], Sequence[Ints]] | None = None,
) -> Split:  # fmt: skip
    """The best instances, to the gap of the clock's options (0: to proof) or until the clock is over.

    Args:
        t: tables for which `separable` holds.
        clock: time, gap, seed, progress.
        starts: instances that are known to fit.
        more: further ones, for when half of the time has not been enough.
        relaxed: further ones, for when relaxations have not been enough and a tree takes longer than all before it, or
            half of the rest: it is begun again, from the plans known then.
    """
    within = max(clock.options.gap, PROVED)
    half = clock.part(0.5)
    gpus = rooms_of(t)[0].gpus
    values = [Value(t, m, gpus) for m in range(len(t.case.models))]

    def offer(every: Sequence[Ints]) -> None:
        for counts in every:
            for v in values:
                v.offer(counts[v.mine], clock)

    offer(starts)
    split = Split(None, None, None)
    while True:
        bound, path = best_split([v.upper for v in values])
        objective, known = best_split([v.lower for v in values])
        split.infeasible = bound == -np.inf
        split.bound = None if split.infeasible else bound
        split.objective = None if objective == -np.inf else objective
        event = Event(clock.seconds, split.objective, split.bound, split.nodes)
        if not split.events or (split.events[-1].objective, split.events[-1].bound) != (event.objective, event.bound):
            split.events.append(event)
            if clock.options.on_event is not None:
                clock.options.on_event(event)
        split.limit = split.limit or clock.stopped
        open_ = [
            (v.stage[g], v.lower[g] - v.upper[g], v.m)
            for v, g in zip(values, path, strict=True) if v.upper[g] > v.lower[g] and v.stage[g] < len(STAGES)
        ]  # fmt: skip
        gap = relative_gap(split.objective, split.bound)
        if split.infeasible or split.limit or not open_ or (gap is not None and gap <= within):
            break
        if more is not None and half.over:
            offer(more())
            more = None
            continue
        m = min(open_)[-1]
        stage = STAGES[values[m].stage[path[m]]]
        part = None
        if relaxed is not None and stage != "relaxed":
            part = clock.part(min(0.5, clock.seconds / max(clock.left, LEAST_S)))
        split.solved[stage] += 1
        try:
            report = values[m].refine(path[m], clock, within / 2, part)
        except (InputError, SolverError) as error:
            split.failed.append(f"{t.case.models[m]} on {path[m]} GPUs, {stage}: {error}")
            continue
        if report is not None:
            split.nodes += report.nodes
            split.limit = report.limit if report.limit in ("interrupt", "memory") else None
            if relaxed is not None and report.limit == "time":
                offer(relaxed())
                relaxed = None
    if split.objective is not None:
        split.counts = np.zeros(len(t.configurations), dtype=np.int64)
        for v, g in zip(values, known, strict=True):
            mine = v.counts[g]
            assert mine is not None
            split.counts[v.mine] = mine
    return split
