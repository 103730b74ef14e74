"""The method ``exact``: model by model where only GPUs couple them, else relaxation, rounding, exchanges and tree.

Whatever stops it, and wherever a solve fails, it returns the best plan known by then with its proved bound. It
begins with a bound that needs no solver and with the plans of two heuristics (where the relaxations are small and may
prove their own rounding, they come after these); the others follow where a proof takes long. With time enough for all
of them no heuristic's plan is better than its own. Under a limit too short for that it knows those that came first:
`greedy_dp_exchange`, `maaso_star`, `lp_rounding` where relaxations and short trees are not enough, then the others in
the order of `OTHERS`. A heuristic's result with the whole limit to itself, or `config_tree` on fewer configurations,
can then be better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from formulations.orchestration.assign import reserve
from formulations.orchestration.clock import LEAST_S, Clock
from formulations.orchestration.flow import ceiling, metrics
from formulations.orchestration.making import among_stages, counts_of, make_plan, with_instances
from formulations.orchestration.methods.baselines import alpaserve, round_robin, selective_replication
from formulations.orchestration.methods.by_model import TREE, by_model, separable
from formulations.orchestration.methods.exchange import greedy_dp_exchange
from formulations.orchestration.methods.greedy_dp import maaso_printed, maaso_star
from formulations.orchestration.methods.relaxed import lp_rounding
from formulations.orchestration.methods.trials import scale
from formulations.orchestration.model import FlowModel, dispatch, nonzeros
from formulations.orchestration.place import running_counts
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.problem import Orchestration
from formulations.orchestration.pruning import together
from formulations.orchestration.replay import dispatched, simulable
from formulations.orchestration.rounding import (
    Fits,
    Scheduled,
    holds,
    impossible,
    improved,
    rounded,
    scheduled,
    unaffordable,
    without_idle,
)
from optmodels.arrays import Ints
from optmodels.errors import InputError, SolverError
from optmodels.formulation import Method, Options
from optmodels.plans.outcome import Outcome
from optmodels.solver import solve_compiled
from optmodels.solver.cancel import caught_interrupt
from optmodels.solver.compile import Compiled
from optmodels.solver.highs import PROVED, Event, Limit, Status, relative_gap, relaxation

MOST_TRIED = 500_000  # requests in a trial of the heuristics it begins with, where no time limit stops them
QUICK = 100_000  # nonzeros of a joint form whose relaxation comes before any heuristic: a second or so
IDLE_GPU = 1e-5  # score of the whole cluster standing idle: among equal relaxations, few and well-used instances
SEARCH = 0.85  # of the time: until the search for instances ends
SLIGHT = 1e-5  # of the score: where bound and plan are as near, and the gap asked for allows it, no heuristic is run
HEURISTICS, HEURISTICS_S = 0.4, 2.0  # of the rest, or if that is more, seconds
FIRST: tuple[Method, ...] = (greedy_dp_exchange, maaso_star)  # its starting point
OTHERS: tuple[Method, ...] = (  # if need be, and as far as they have not run
    lp_rounding, *FIRST, alpaserve, selective_replication, round_robin, maaso_printed,
)  # fmt: skip


@dataclass
class _InstanceSearch:
    """Instances with their schedule, a bound, and how they were found.

    Attributes:
        found: the best.
        others: all known.
        heuristic: the best plan of a heuristic, its instances not yet on servers.
        ran: the heuristics so far.
        status: status of a search that found nothing.
    """

    problem: Orchestration
    t: OrchestrationTables
    bound: float
    found: Scheduled | None = None
    others: list[Scheduled] = field(default_factory=list)
    heuristic: OrchestrationPlan | None = None
    ran: list[Method] = field(default_factory=list)
    status: Status = "no_solution_found"
    limit: Limit | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    log: dict[str, Any] = field(default_factory=dict)
    size: dict[str, int] = field(default_factory=dict)
    events: tuple[Event, ...] = ()

    def better(self, other: Scheduled | None) -> None:
        """Keep the better one, and remember the other."""
        if other is not None:
            self.others.append(other)
        if other is not None and (self.found is None or other.objective > self.found.objective):
            self.found = other

    def bounded(self, bound: float | None) -> None:
        """Keep the tighter one."""
        if bound is not None:
            self.bound = min(self.bound, bound)

    def within(self, gap: float) -> bool:
        """Whether bound and schedule are as near as that."""
        return self.found is not None and self.near(self.found.objective, gap)

    def near(self, objective: float, gap: float) -> bool:
        """Whether bound and an objective are as near as that."""
        left = relative_gap(objective, self.bound)
        return left is not None and left <= max(gap, PROVED)

    def candidates(self, gap: float) -> list[Scheduled]:
        """The best plan, and others known that are as good for the gap asked for: simulation judges them.

        Where the search was stopped, so are those that are no further behind the best plan than the bound is ahead;
        but none that is behind a heuristic's plan.
        """
        assert self.found is not None
        ahead = max(0.0, self.bound - self.found.objective)
        least = -np.inf if self.heuristic is None else self.heuristic.score.total
        seen, found = {self.found.counts.tobytes()}, [self.found]
        for other in self.others:
            as_good = self.near(other.objective, gap) or other.objective >= self.found.objective - ahead
            if as_good and other.objective >= least and other.counts.tobytes() not in seen:
                found.append(other)
                seen.add(other.counts.tobytes())
        return found

    def tried(self, phase: str, clock: Clock, run: Callable[[], object]) -> None:
        """A part of the search, timed; if the solver fails in it, the earlier result is."""
        before = clock.seconds
        try:
            run()
        except (SolverError, InputError) as error:
            self.log.setdefault("failed", []).append(f"{phase}: {error}")
        self.seconds[phase] = self.seconds.get(phase, 0.0) + clock.seconds - before

    def heuristics(self, methods: Sequence[Method], clock: Clock) -> list[Ints]:
        """The instances of methods that have not run yet, each with the best schedule."""
        limit = clock.part(max(HEURISTICS, min(1.0, HEURISTICS_S / max(clock.left, LEAST_S))))
        made: list[Ints] = []
        for method in methods:
            if limit.over or self.within(PROVED):
                break
            if method in self.ran:
                continue
            self.ran.append(method)
            if method is lp_rounding:
                plan = method(self.problem, self.t, limit.given()).plan
            else:
                plan = among_stages(self.t, method(self.problem, together(self.t), limit.given())).plan
            if plan is None:
                continue
            if self.heuristic is None or plan.score.total > self.heuristic.score.total:
                self.heuristic = plan
            counts = counts_of(self.t, plan)
            if not any(np.array_equal(counts, other) for other in made):
                made.append(counts)
                self.better(scheduled(self.t, counts, clock))
        return made


def exact(problem: Orchestration, tables: OrchestrationTables, options: Options) -> Outcome[OrchestrationPlan]:
    """Model by model where only GPUs couple them, else by relaxation and tree; from the heuristics' instances too."""
    with caught_interrupt():
        return _exact(problem, tables, Clock.of(options))


def _exact(problem: Orchestration, t: OrchestrationTables, clock: Clock) -> Outcome[OrchestrationPlan]:
    if reason := impossible(t):
        return Outcome("infeasible", None, log={"reason": reason})
    if not len(t.configurations):
        assignment, _ = dispatch(t, np.zeros(0, dtype=np.int64))
        assert assignment is not None
        plan = make_plan(t, assignment)
        assert plan is not None
        return Outcome("optimal", plan, plan.score.total, log={"reason": "no candidate can be used"})
    search, until = _InstanceSearch(problem, t, ceiling(t)), clock.part(SEARCH)
    starts: list[Ints] = []
    search.tried("begin", clock, partial(_begin, search, until, starts))
    if not search.within(PROVED) and not until.over:
        _instances(search, until, starts)
    log, seconds = search.log, search.seconds | {"solve": clock.seconds}
    limit = search.limit or until.stopped
    if search.found is None and search.heuristic is None:
        bound, limit = (None, None) if search.status == "infeasible" else (search.bound, limit)
        return Outcome(search.status, None, bound, limit, seconds, search.size, log, search.events)
    plan = _chosen(search, clock)
    seconds["dispatch"] = clock.seconds - seconds["solve"]
    proved = plan is not None and search.near(plan.score.total, PROVED)
    status: Status = "optimal" if proved else "feasible" if plan is not None else "no_solution_found"
    stopped = None if proved else limit or "gap"
    return Outcome(status, plan, search.bound, stopped, seconds, search.size, log, search.events)


def _chosen(search: _InstanceSearch, clock: Clock) -> OrchestrationPlan | None:
    """The plan to return: among the good enough ones the one that does best in simulation."""
    t, plans = search.t, []
    for s in search.candidates(clock.options.gap) if search.found is not None else ():
        plan = make_plan(t, without_idle(t, s.assignment))
        if plan is not None:
            plans.append(plan)
        if plans and (clock.over or not simulable(t, plans[0])):
            break
    search.log["judged"] = len(plans)
    best = dispatched(t, plans, clock.options.seed, clock) if plans else None
    kept = search.heuristic
    if kept is not None and (best is None or best.score.total < kept.score.total - PROVED * abs(kept.score.total)):
        kept = with_instances(t, kept)  # its instances could not be scheduled as well in the time that was left
        return best if kept is None else dispatched(t, [kept], clock.options.seed, clock)
    return best


def _begin(search: _InstanceSearch, clock: Clock, starts: list[Ints]) -> None:
    """What costs next to nothing, then the heuristics, but where `_jointly` runs them."""
    t = search.t
    fits = Fits(t)
    for counts in (running_counts(t), _fewest(t)):
        if fits(counts) and _enough(t, counts):
            made = reserve(t, counts, search.problem.objective.weights, clock.options.seed, clock=clock)
            if holds(t, made):
                search.better(Scheduled(counts, made, metrics(t, made).total))
    if separable(t) or nonzeros(t, pooled=True) > QUICK:
        starts += _first(search, clock)


def _first(search: _InstanceSearch, clock: Clock) -> list[Ints]:
    """The instances of the heuristics it begins with, as far as they have not run."""
    tried = int(search.t.classes.count.sum()) // scale(search.t)
    if tried <= MOST_TRIED or clock.limited:
        return search.heuristics(FIRST, clock)
    search.log["heuristics"] = f"not before they are needed: {tried:,} requests a trial"
    return []


def _fewest(t: OrchestrationTables) -> Ints:
    """Of each model its least number of instances, on as few GPUs as it fits."""
    counts = np.zeros(len(t.configurations), dtype=np.int64)
    for m, served in enumerate(t.case.problem.models):
        mine = np.flatnonzero(t.model_of == m)
        if len(mine):
            counts[mine[np.argmin(t.gpus_of[mine])]] = served.minimum_instances
    return counts


def _enough(t: OrchestrationTables, counts: Ints) -> bool:
    """Whether every model has its least number of instances."""
    least = [m.minimum_instances for m in t.case.problem.models]
    return bool((np.bincount(t.model_of, counts, len(least)) >= least).all())


def _instances(search: _InstanceSearch, clock: Clock, starts: list[Ints]) -> None:
    """The search for better instances and a better bound."""
    size = nonzeros(search.t, pooled=True)
    search.limit = unaffordable(size, clock)
    if search.limit is not None:
        search.log["not_made"] = f"the model has {size:,.0f} nonzeros"
        search.tried("heuristics", clock, lambda: search.heuristics(OTHERS, clock))
        return
    before = clock.seconds
    flow = FlowModel(search.t)
    model = flow.compiled()
    search.size, search.seconds["build"] = model.size, clock.seconds - before
    if separable(search.t):
        _by_model(search, clock, starts)
    else:
        _jointly(search, flow, model, clock)


def _by_model(search: _InstanceSearch, clock: Clock, starts: list[Ints]) -> None:
    """`methods.by_model`, and the schedule of the instances it finds."""

    def more(methods: Sequence[Method]) -> list[Ints]:
        made: list[Ints] = []
        search.tried("heuristics", clock, lambda: made.extend(search.heuristics(methods, clock)))
        return made

    rounding = partial(more, (lp_rounding,)) if clock.limited else None  # the trees end with better ones
    split = by_model(search.t, clock, starts, partial(more, OTHERS), rounding)
    search.log |= {"decomposed": "by model", "solved": split.solved, "nodes": split.nodes}
    if split.failed:
        search.log.setdefault("failed", []).extend(split.failed)
    search.limit, search.events = split.limit, tuple(split.events)
    search.status = "infeasible" if split.infeasible else "no_solution_found"
    search.bounded(split.bound)
    if (counts := split.counts) is not None:
        search.tried("schedule", clock, lambda: search.better(scheduled(search.t, counts, clock)))


def _relax(search: _InstanceSearch, flow: FlowModel, model: Compiled, clock: Clock) -> None:
    """The relaxation's bound, and its instances rounded."""
    t = search.t
    idle = np.zeros(flow.width)
    flow.n.of(idle)[:] = IDLE_GPU * t.gpus_of / max(1, int(t.case.free_gpus.sum()))
    limit = clock if set(FIRST) <= set(search.ran) else clock.part(0.5)  # leaving time for a heuristic's plan
    bound, x, *_ = relaxation(model, limit.settings(), idle, IDLE_GPU)
    search.bounded(bound)
    if x is not None:
        search.better(rounded(t, flow.n.of(x), clock))


def _jointly(search: _InstanceSearch, flow: FlowModel, model: Compiled, clock: Clock) -> None:
    """The pooled form of every model: relaxation, roundings, exchanges, the other heuristics, tree."""
    t, log, gap = search.t, search.log, clock.options.gap

    def open_() -> bool:
        return not search.within(gap) and not clock.over

    def relax_exact() -> None:  # under overload the pooled stocks promise more than can be scheduled
        form = FlowModel(t, pooled=False)
        _relax(search, form, form.compiled(), clock)

    def improve() -> None:
        assert search.found is not None
        search.better(improved(t, search.found, search.bound, clock.part(0.5)))

    def tree() -> None:
        start = None if search.found is None else flow.start({"n": search.found.counts})
        # Its own heuristics solve sub-MIPs for longer than the tree takes; the rounding above stands in for them.
        run = replace(clock.settings(), options=TREE, on_event=clock.options.on_event)
        solved = solve_compiled(model, run, start)
        search.log |= {"solver": solved.message, "nodes": solved.nodes}
        search.limit, search.events = solved.limit, solved.events
        search.status = "infeasible" if solved.status == "infeasible" else "no_solution_found"
        search.bounded(solved.bound)
        if solved.x is not None:
            search.better(scheduled(t, np.round(flow.n.of(solved.x)).astype(np.int64), clock))

    search.tried("relax", clock, lambda: _relax(search, flow, model, clock))
    log |= {"relaxation": search.bound, "rounding": None if search.found is None else search.found.objective}
    if search.found is not None and open_() and unaffordable(nonzeros(t), clock) is None:
        search.tried("relax", clock, relax_exact)
        log["exact_relaxation"] = search.bound
    if open_():
        search.tried("heuristics", clock, lambda: search.heuristics((lp_rounding,), clock))
    if not search.within(min(gap, SLIGHT)):
        search.tried("heuristics", clock, lambda: _first(search, clock))
    if search.found is not None and open_():
        search.tried("improve", clock, improve)
    if open_():
        search.tried("heuristics", clock, lambda: search.heuristics(OTHERS, clock))
    if open_():
        search.tried("tree", clock, tree)
