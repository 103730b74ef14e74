"""The method ``exact``: model by model where only GPUs couple them, else relaxation, rounding, exchanges and tree."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from formulations.orchestration.making import counts_of, make_plan
from formulations.orchestration.methods.by_model import TREE, by_model, separable
from formulations.orchestration.methods.exchange import greedy_dp_exchange
from formulations.orchestration.methods.greedy_dp import maaso_star
from formulations.orchestration.methods.rounding import (
    Scheduled,
    impossible,
    improved,
    rounded,
    scheduled,
    without_idle,
)
from formulations.orchestration.methods.trials import scale
from formulations.orchestration.model import FlowModel, dispatch
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.problem import Orchestration
from formulations.orchestration.replay import dispatched
from optmodels.formulation import Options
from optmodels.plan.outcome import Outcome
from optmodels.solver import Settings, solve_compiled
from optmodels.solver.compile import Compiled
from optmodels.solver.highs import PROVED, Event, Limit, Status, relative_gap, relaxation

Ints = npt.NDArray[np.int64]
MOST_TRIED = 500_000  # requests in a trial of the heuristic that the exact method starts from
IDLE_GPU = 1e-5  # score of the whole cluster standing idle: among equal relaxations, few and well-used instances


@dataclass
class _Search:
    """Instances with their schedule, a bound, and how they were found."""

    found: Scheduled | None
    bound: float | None
    status: Status  # where nothing was found
    limit: Limit | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    log: dict[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    others: list[Scheduled] = field(default_factory=list)

    def better(self, other: Scheduled | None) -> None:
        """Keep the better one, and remember the other."""
        if other is not None:
            self.others.append(other)
        if other is not None and (self.found is None or other.objective > self.found.objective):
            self.found = other

    def bounded(self, bound: float | None) -> None:
        """Keep the tighter one."""
        if bound is not None:
            self.bound = bound if self.bound is None else min(self.bound, bound)

    def within(self, gap: float) -> bool:
        """Whether bound and schedule are as near as that."""
        return self.found is not None and self.near(self.found.objective, gap)

    def near(self, objective: float, gap: float) -> bool:
        """Whether bound and an objective are as near as that."""
        left = relative_gap(objective, self.bound)
        return left is not None and left <= max(gap, PROVED)

    def candidates(self, gap: float) -> list[Scheduled]:
        """What is found, and others known that are as good for the gap asked for: simulation judges them.

        Where the search was stopped, so are those that are no further behind what is found than the bound is ahead.
        """
        assert self.found is not None
        ahead = 0.0 if self.bound is None else max(0.0, self.bound - self.found.objective)
        seen, found = {self.found.counts.tobytes()}, [self.found]
        for other in self.others:
            as_good = self.near(other.objective, gap) or other.objective >= self.found.objective - ahead
            if as_good and other.counts.tobytes() not in seen:
                found.append(other)
                seen.add(other.counts.tobytes())
        return found


def exact(problem: Orchestration, tables: OrchestrationTables, options: Options) -> Outcome[OrchestrationPlan]:
    """Model by model where only GPUs couple them, else by relaxation and tree; from the heuristic's instances too."""
    clock = time.perf_counter()

    def settings() -> Settings:
        left = None if options.time_limit is None else max(0.05, options.time_limit - (time.perf_counter() - clock))
        return Settings(left, options.gap, options.seed, on_event=options.on_event)

    if reason := impossible(tables):
        return Outcome("infeasible", None, log={"reason": reason})
    if not len(tables.configurations):
        assignment, _ = dispatch(tables, np.zeros(0, dtype=np.int64))
        assert assignment is not None
        return Outcome("optimal", make_plan(tables, assignment), 0.0, log={"reason": "no candidate can be used"})
    flow = FlowModel(tables)
    model = flow.compiled()
    seconds = {"build": time.perf_counter() - clock}
    if separable(tables):
        search = _by_model(problem, tables, options, settings)
    else:
        search = _jointly(problem, tables, options, flow, model, settings)
    size, seconds = model.size, seconds | search.seconds
    seconds["solve"] = time.perf_counter() - clock
    if search.found is None:
        return Outcome(search.status, None, search.bound, search.limit, seconds, size, search.log, search.events)
    plans = [
        p for s in search.candidates(options.gap)
        if (p := make_plan(tables, without_idle(tables, s.assignment))) is not None
    ]  # fmt: skip
    plan = dispatched(tables, plans, options.seed) if plans else None
    if plan is not None:
        search.log["judged"] = len(plans)
        seconds["dispatch"] = time.perf_counter() - clock - seconds["solve"]
    if search.within(PROVED) and (plan is None or search.near(plan.score.total, PROVED)):
        return Outcome("optimal", plan, search.bound, None, seconds, size, search.log, search.events)
    return Outcome("feasible", plan, search.bound, search.limit or "gap", seconds, size, search.log, search.events)


def _greedy(problem: Orchestration, t: OrchestrationTables, options: Options, log: dict[str, Any]) -> list[Ints]:
    """The instances of `greedy_dp_exchange` and `maaso_star`, if they find any; not where trials outlast the proof."""
    tried = int(t.classes.count.sum()) // scale(t)
    if tried > MOST_TRIED:
        log["greedy"] = f"left out: {tried:,} requests a trial"
        return []
    clock = time.perf_counter()
    found = {}
    for method in (greedy_dp_exchange, maaso_star):
        plan = method(problem, t, options).plan
        if plan is not None:
            counts = counts_of(t, plan)
            found[counts.tobytes()] = counts
    log["greedy_s"] = time.perf_counter() - clock
    return list(found.values())


def _by_model(
    problem: Orchestration, t: OrchestrationTables, options: Options, settings: Callable[[], Settings]
) -> _Search:
    """`methods.by_model`, and the schedule of the instances it finds."""
    log: dict[str, Any] = {}
    starts = _greedy(problem, t, options, log)
    split = by_model(t, settings(), starts)
    log |= {"decomposed": "by model", "solved": split.solved, "nodes": split.nodes}
    status: Status = "infeasible" if split.infeasible else "no_solution_found"
    search = _Search(None, split.bound, status, split.limit, {}, log, tuple(split.events))
    if split.counts is not None:
        clock = time.perf_counter()
        for counts in (split.counts, *starts):
            search.better(scheduled(t, counts))
        search.seconds["schedule"] = time.perf_counter() - clock
    return search


def _relax(t: OrchestrationTables, flow: FlowModel, model: Compiled, search: _Search, settings: Settings) -> None:
    """The relaxation's bound, and its instances rounded."""
    idle = np.zeros(flow.width)
    flow.n.of(idle)[:] = IDLE_GPU * t.gpus_of / max(1, int(t.case.free_gpus.sum()))
    bound, x, _ = relaxation(model, settings, idle, IDLE_GPU)
    search.bounded(bound)
    if x is not None:
        search.better(rounded(t, flow.n.of(x), settings))


def _jointly(
    problem: Orchestration, t: OrchestrationTables, options: Options, flow: FlowModel, model: Compiled,
    settings: Callable[[], Settings],
) -> _Search:  # fmt: skip
    """The pooled form of all models: relaxation, rounding, exchanges and the heuristic's instances, tree."""
    clock = time.perf_counter()
    search = _Search(None, None, "no_solution_found")
    log = search.log
    _relax(t, flow, model, search, settings())
    log |= {"relaxation": search.bound, "rounding": None if search.found is None else search.found.objective}
    if search.found is not None and not search.within(options.gap):
        # Under overload the pooled stocks promise more than can be scheduled.
        exact_form = FlowModel(t, pooled=False)
        _relax(t, exact_form, exact_form.compiled(), search, settings())
        log["exact_relaxation"] = search.bound
    search.seconds["relax"] = time.perf_counter() - clock
    if search.found is not None and search.bound is not None and not search.within(options.gap):
        until = np.inf if options.time_limit is None else clock + options.time_limit / 2
        search.found = improved(t, search.found, search.bound, until)
    search.seconds["improve"] = time.perf_counter() - clock - search.seconds["relax"]
    if not search.within(options.gap):
        for counts in _greedy(problem, t, options, log):
            search.better(scheduled(t, counts, settings()))
    if search.within(options.gap):
        return search
    start = None if search.found is None else flow.start({"n": search.found.counts})
    # Its own heuristics solve sub-MIPs for longer than the tree takes; the rounding above stands in for them.
    run = replace(settings(), options=TREE)
    solved = solve_compiled(model, run, start)
    search.seconds["tree"] = solved.seconds
    log |= {"solver": solved.message, "nodes": solved.nodes}
    search.limit, search.events, search.status = solved.limit, solved.events, solved.status
    search.bounded(solved.bound)
    if solved.x is not None:
        search.better(scheduled(t, np.round(flow.n.of(solved.x)).astype(np.int64)))
    return search
