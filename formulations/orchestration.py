"""Orchestration in column form (MaaSO §IV-C): integer numbers of instances, shares of request classes over time.

Configurations c with n_c instances; request classes k with arrivals a_kt, of which the share φ_kc can be in time on c;
starts x_kct of k on c in bin t; levels l of k, the first few of its configurations in the order of their shares,
with the stock I_klt waiting for them at the end of bin t. Nothing in it counts GPUs or requests one by one.

    max  MS(6) or its parts
    s.t. balance        Σ_{c in l} x_kct + I_klt − I_kl,t−1 ≤ φ_l·a_kt          (the rest is refused)
         bounds         0 ≤ I_klt ≤ φ_l·(arrivals of the last w_l seconds), 0 ≤ x_kct ≤ φ_kc·(arrivals young enough)
         whole          Σ_t x_kct ≤ φ_kc·requests·n_c                             (tightens the relaxation)
         occupancy      Σ_k Σ_τ busy_kc(t − τ)·x_kcτ ≤ slots_c·n_c
         packing        Σ_{c: unit ≥ s} gpus_c·n_c ≤ s·Σ_servers ⌊working GPUs / s⌋, or patterns (MS b, c)
         stock, numbers of instances by model, attainment_at_least, changes against what runs

Memory (MS d) and the throughput of a configuration (MS 1) are in the tables: an operating point that does not fit is
no column. `points/orchestration_flow.py` states the same matrix in numpy, which `exact` solves (a test holds the two
equal); for the instances it finds, the exact waiting form there is the plan's schedule, and its objective the plan's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyomo.environ as pyo

from formulations.orchestration_literal import literal
from optmodels.formulation import Formulation, Method, Options
from optmodels.heuristics.orchestration import greedy_dp, maaso_printed, maaso_star
from optmodels.heuristics.orchestration_baselines import alpaserve, round_robin, selective_replication
from optmodels.heuristics.orchestration_exchange import greedy_dp_exchange
from optmodels.heuristics.orchestration_relaxed import config_tree, lp_rounding
from optmodels.heuristics.orchestration_trials import scale
from optmodels.plan import deploy
from optmodels.plan.orchestration import OrchestrationPlan, counts_of, make_plan
from optmodels.plan.orchestration_check import check
from optmodels.plan.orchestration_named_check import check_files
from optmodels.plan.orchestration_replay import dispatched
from optmodels.plan.outcome import Outcome
from optmodels.points.orchestration import OrchestrationTables, build_tables
from optmodels.points.orchestration_by_model import TREE, by_model, separable
from optmodels.points.orchestration_flow import FlowModel, busy_shares, dispatch, weights
from optmodels.points.orchestration_place import running_counts
from optmodels.points.orchestration_rounding import Scheduled, impossible, improved, rounded, scheduled, without_idle
from optmodels.problem.orchestration import Orchestration
from optmodels.problem.orchestration_template import TEMPLATE
from optmodels.reporting.charts.orchestration import charts
from optmodels.reporting.orchestration import frames, report, summary
from optmodels.simulation.options import ReplayOptions
from optmodels.solver import Settings, paused_gc, solve_compiled
from optmodels.solver.compile import Compiled
from optmodels.solver.highs import PROVED, Event, Limit, Status, relative_gap, relaxation

Ints = npt.NDArray[np.int64]
MOST_TRIED = 500_000  # requests in a trial of the heuristic that the exact method starts from
IDLE_GPU = 1e-5  # score of the whole cluster standing idle: among equal relaxations, few and well-used instances

# ---------------------------------------------------------------------------------------------------------------------
# Parameters


def model_data(t: OrchestrationTables) -> SimpleNamespace:
    """What the constraint families read: pairs (k, c), bounds, packing."""
    flow = FlowModel(t)
    upper = flow.compiled().upper
    cols, T = flow.columns, flow.T
    pairs = [(int(k), int(c)) for k, c in zip(flow.k, flow.c, strict=True)]
    return SimpleNamespace(
        t=t, T=T, pairs=pairs, rooms=flow.rooms, w=weights(t), running=running_counts(t),
        levels=flow.levels,
        used=sorted({c for _, c in pairs}),
        of={c: [k for k, q in pairs if q == c] for c in {c for _, c in pairs}},
        most_x={p: upper[cols.x.start + i * T : cols.x.start + (i + 1) * T] for i, p in enumerate(pairs)},
        most_I=[upper[cols.Y.start + i * T : cols.Y.start + (i + 1) * T] for i in range(len(flow.levels))],
        most_n=upper[cols.n], busy={p: busy_shares(float(t.service_s[p]), t.bin_s) for p in pairs},
        patterns=[(g, i) for g, r in enumerate(flow.rooms) if not r.divisible for i in range(len(r.patterns))],
        changes=cols.up.stop > cols.up.start, soft=cols.short.stop > cols.short.start,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Constraints, one function for each family


def balance(b: Any, i: int, t: int) -> Any:
    """Σ_{c in l} x_kct + I_klt − I_kl,t−1 ≤ φ_l·a_kt, of the i-th level (k, l)."""
    level = b.data.levels[i]
    before = b.I[i, t - 1] if t > 0 else 0.0
    starts = sum(b.x[b.data.pairs[p] + (t,)] for p in level.pairs)
    return starts + b.I[i, t] - before <= float(level.share * b.data.t.classes.arrivals[level.k, t])


def whole(b: Any, k: int, c: int) -> Any:
    """Σ_t x_kct ≤ φ_kc·requests·n_c: implied by whole instances, not by the relaxation's fractions of one."""
    most = float(b.data.t.share[k, c] * b.data.t.classes.count[k])
    return sum(b.x[k, c, t] for t in range(b.data.T)) - most * b.n[c] <= 0


def occupancy(b: Any, c: int, t: int) -> Any:
    """Σ_k Σ_τ busy_kc(t − τ)·x_kcτ ≤ slots_c·n_c: mean requests in slots in a bin."""
    d = b.data
    busy = sum(
        float(share) * b.x[k, c, t - s]
        for k in d.of[c] for s, share in enumerate(d.busy[k, c]) if 0 <= t - s < d.T
    )  # fmt: skip
    return busy <= int(d.t.slots_of[c]) * b.n[c]


def packing(b: Any, g: int, s: int) -> Any:
    """Units of at least s GPUs fit the servers of type g; patterns where sizes do not divide one another (MS b)."""
    d, room = b.data, b.data.rooms[g]
    mine = [c for c, x in enumerate(d.t.configurations) if x.gpu == g]
    if room.divisible:
        big = [c for c in mine if d.t.configurations[c].unit >= s]
        return sum(int(d.t.gpus_of[c]) * b.n[c] for c in big) <= room.capacity[s]
    units = sum(d.t.configurations[c].units * b.n[c] for c in mine if d.t.configurations[c].unit == s)
    i = room.sizes.index(s)
    return units - sum(p[i] * b.y[g, j] for j, (_, p) in enumerate(room.patterns) if p[i]) <= 0


def servers(b: Any, g: int, free: int) -> Any:
    """Every server of type g with so many working GPUs follows one pattern."""
    room = b.data.rooms[g]
    return sum(b.y[g, j] for j, (kind, _) in enumerate(room.patterns) if kind == free) <= room.servers[free]


def stock(b: Any, g: int) -> Any:
    """Σ gpus_c·n_c ≤ cluster.stock of the GPU type (MS c)."""
    d = b.data
    return sum(int(d.t.gpus_of[c]) * b.n[c] for c in range(len(d.t.configurations)) if d.t.gpu_of[c] == g) <= (
        d.rooms[g].stock
    )


def gpus_of_model(b: Any, m: int) -> Any:
    """g_m = Σ gpus_c·n_c, integer: something to branch on."""
    d = b.data
    return sum(int(d.t.gpus_of[c]) * b.n[c] for c in range(len(d.t.configurations)) if d.t.model_of[c] == m) == b.g[m]


def instances_of_model(b: Any, m: int) -> Any:
    """minimum_instances ≤ Σ n_c ≤ maximum_instances."""
    served = b.data.t.case.problem.models[m]
    total = sum(b.n[c] for c in range(len(b.data.t.configurations)) if b.data.t.model_of[c] == m)
    return (served.minimum_instances, total, served.maximum_instances)


def started(b: Any, c: int) -> Any:
    """up_c ≥ n_c − running_c."""
    return b.n[c] - b.up[c] <= int(b.data.running[c])


def stopped(b: Any, c: int) -> Any:
    """down_c ≥ running_c − n_c."""
    return b.n[c] + b.down[c] >= int(b.data.running[c])


def attainment(b: Any, m: int) -> Any:
    """Requests of the model in time ≥ attainment_at_least of them − shortfall."""
    d = b.data
    count = float(d.t.classes.count[d.t.classes.model == m].sum())
    served = sum(b.x[k, c, t] * (1.0 / count) for k, c in d.pairs if d.t.classes.model[k] == m for t in range(d.T))
    return served + (b.short[m] if d.soft else 0.0) >= float(d.t.case.problem.models[m].attainment_at_least)


def throughput_cap(b: Any) -> Any:
    """T ≤ Σ tokens in time / threshold, where T could exceed 1 (MS 7)."""
    return sum(b.data.w.throughput[k] * b.x[k, c, t] for k, c, t in b.x) - b.T >= 0


# ---------------------------------------------------------------------------------------------------------------------
# The model


def attach(block: Any, problem: Orchestration, tables: OrchestrationTables) -> None:
    """Put sets, variables and constraints on a Pyomo block; no objective.

    The block gets ``n`` by configuration, ``x`` by (class, configuration, bin), ``I`` by (class, bin) and the
    expressions ``satisfaction``, ``throughput``, ``latency`` (MS 6–8) and ``penalties``.
    """
    d = block.data = model_data(tables)
    C, M, bins = range(len(tables.configurations)), range(len(problem.models)), range(d.T)
    block.n = pyo.Var(C, domain=pyo.NonNegativeIntegers, bounds=lambda _, c: (0, d.most_n[c]))
    block.g = pyo.Var(M, domain=pyo.NonNegativeIntegers, bounds=(0, sum(r.gpus for r in d.rooms)))
    block.x = pyo.Var([(k, c, t) for k, c in d.pairs for t in bins], bounds=lambda _, k, c, t: (0, d.most_x[k, c][t]))
    block.I = pyo.Var(range(len(d.levels)), bins, bounds=lambda _, i, t: (0, d.most_I[i][t]))
    block.y = pyo.Var(d.patterns, domain=pyo.NonNegativeIntegers)
    kept = [m for m in M if problem.models[m].attainment_at_least is not None]
    block.short = pyo.Var(kept if d.soft else [], domain=pyo.NonNegativeReals)
    block.up = pyo.Var(C if d.changes else [], domain=pyo.NonNegativeReals)
    block.down = pyo.Var(C if d.changes else [], domain=pyo.NonNegativeReals)
    types = range(len(d.rooms))
    block.packing = pyo.Constraint([(g, s) for g in types for s in d.rooms[g].sizes], rule=packing)
    block.servers = pyo.Constraint(
        [(g, f) for g in types if not d.rooms[g].divisible for f in d.rooms[g].servers], rule=servers
    )
    block.stock = pyo.Constraint([g for g in types if d.rooms[g].stock is not None and d.rooms[g].sizes], rule=stock)
    block.gpus_of_model = pyo.Constraint([m for m in M if (tables.model_of == m).any()], rule=gpus_of_model)
    limited = [m for m in M if problem.models[m].minimum_instances or problem.models[m].maximum_instances is not None]
    block.instances_of_model = pyo.Constraint(limited, rule=instances_of_model)
    if d.changes:
        block.started = pyo.Constraint(C, rule=started)
        block.stopped = pyo.Constraint(C, rule=stopped)
    block.balance = pyo.Constraint(range(len(d.levels)), bins, rule=balance)
    block.whole = pyo.Constraint(d.pairs, rule=whole)
    block.occupancy = pyo.Constraint(d.used, range(d.T + 1), rule=occupancy)
    block.attainment = pyo.Constraint(
        [m for m in kept if tables.classes.count[tables.classes.model == m].sum() > 0], rule=attainment
    )
    _metrics(block, problem, tables)


def _metrics(block: Any, problem: Orchestration, tables: OrchestrationTables) -> None:
    """MS(6–8) as expressions."""
    d, w, change = block.data, block.data.w, problem.change
    block.satisfaction = pyo.Expression(expr=pyo.quicksum(w.satisfaction[k] * v for (k, _, _), v in block.x.items()))
    if w.capped:
        block.T = pyo.Var(bounds=(0, 1))
        block.throughput_cap = pyo.Constraint(rule=throughput_cap)
        block.throughput = pyo.Expression(expr=block.T)
    else:
        block.throughput = pyo.Expression(expr=pyo.quicksum(w.throughput[k] * v for (k, _, _), v in block.x.items()))
    block.latency = pyo.Expression(
        expr=pyo.quicksum((w.latency - w.first_token[k, c]) * v for (k, c, _), v in block.x.items())
        - pyo.quicksum(w.waiting * tables.bin_s * v for (i, _), v in block.I.items() if d.levels[i].whole)
    )
    block.penalties = pyo.Expression(
        expr=sum(change.score_per_start * v for v in block.up.values())
        + sum(change.score_per_stop * v for v in block.down.values())
        + sum((problem.slo.shortfall_penalty or 0.0) * v for v in block.short.values())
    )


def build(problem: Orchestration, tables: OrchestrationTables) -> Any:
    """The ConcreteModel of the problem: MS(6), or its parts as lexicographic priorities."""
    o = problem.objective
    with paused_gc():
        model = pyo.ConcreteModel(name=problem.name or problem.formulation)
        attach(model, problem, tables)
        parts = {"attainment": model.satisfaction, "throughput": model.throughput, "latency": model.latency}
        if o.kind == "score":
            rest = o.beta * parts["throughput"] + (1 - o.beta) * parts["latency"]
            score = o.alpha * parts["attainment"] + (1 - o.alpha) * rest - model.penalties
            model.score = pyo.Objective(expr=score, sense=pyo.maximize)
        else:
            for i, name in enumerate(o.order):
                expr = parts[name] - model.penalties if i == 0 else parts[name]
                setattr(model, f"priority_{name}", pyo.Objective(expr=expr, sense=pyo.maximize))
    return model


def extract(model: Any, tables: OrchestrationTables) -> OrchestrationPlan | None:
    """The plan of a solved model: its instances with their best schedule in the exact waiting form."""
    counts = np.array([round(model.n[c].value) for c in range(len(tables.configurations))], dtype=np.int64)
    assignment, _ = dispatch(tables, counts)
    return None if assignment is None else make_plan(tables, assignment)


# ---------------------------------------------------------------------------------------------------------------------
# The method


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
    """`points.orchestration_by_model`, and the schedule of the instances it finds."""
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
    idle = np.zeros(flow.columns.total)
    idle[flow.columns.n] = IDLE_GPU * t.gpus_of / max(1, int(t.case.free_gpus.sum()))
    bound, x, _ = relaxation(model, settings, idle, IDLE_GPU)
    search.bounded(bound)
    if x is not None:
        search.better(rounded(t, x[flow.columns.n], settings))


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
    start = (
        None
        if search.found is None
        else {flow.columns.n.start + c: float(v) for c, v in enumerate(search.found.counts)}
    )
    # Its own heuristics solve sub-MIPs for longer than the tree takes; the rounding above stands in for them.
    run = replace(settings(), options=TREE)
    solved = solve_compiled(model, run, start)
    search.seconds["tree"] = solved.seconds
    log |= {"solver": solved.message, "nodes": solved.nodes}
    search.limit, search.events, search.status = solved.limit, solved.events, solved.status
    search.bounded(solved.bound)
    if solved.x is not None:
        search.better(scheduled(t, np.round(solved.x[flow.columns.n]).astype(np.int64)))
    return search


def _replay(
    problem: Orchestration, plan: Mapping[str, Any], trace: Any = None, options: ReplayOptions | None = None
) -> dict[str, Any]:
    from optmodels.plan.orchestration_replay import replay

    return replay(problem, plan, trace, options)


def _figures(tables: OrchestrationTables, plan: OrchestrationPlan, folder: Path) -> list[Path]:
    from optmodels.reporting.orchestration import figures

    return figures(tables, plan, folder)


METHODS: dict[str, Method] = {
    "exact": exact, "literal": literal, "greedy_dp": greedy_dp,
    "greedy_dp_exchange": greedy_dp_exchange, "maaso_star": maaso_star, "maaso_printed": maaso_printed,
    "config_tree": partial(config_tree, exact=exact), "lp_rounding": lp_rounding, "alpaserve": alpaserve,
    "selective_replication": selective_replication, "round_robin": round_robin,
}  # fmt: skip
TITLES = {
    "exact": "column form with waiting by HiGHS",
    "literal": "every request and every GPU by itself, by HiGHS",
    "greedy_dp": "simulator-guided greedy and the split of the GPUs by dynamic programming (MaaSO Algorithms 1, 2)",
    "greedy_dp_exchange": "greedy_dp, then exchanges of instances judged by their schedule",
    "maaso_star": "greedy_dp for SLO satisfaction alone (α = 1)",
    "maaso_printed": "greedy_dp with one configuration for all models of a sub-cluster, as the paper prints it",
    "config_tree": "exact on what both prunings of the configuration tree leave (MaaSO §IV-D)",
    "lp_rounding": "the relaxation's instance counts rounded and repaired",
    "alpaserve": "one configuration for each model, found by simulation",
    "selective_replication": "replicas of the smallest instance that fits, where simulation gains most",
    "round_robin": "equal shares of the GPUs, requests in turn",
}

FORMULATION = Formulation(
    name="orchestration",
    title="Orchestration: model instances on GPUs, requests on instances (MaaSO)",
    problem=Orchestration,
    sense="max",
    unit="score",
    tables=build_tables,
    build=build,
    attach=attach,
    methods=METHODS,
    objective=lambda plan: plan.score.total,
    check=check,
    report=report,
    summary=summary,
    frames=frames,
    template=TEMPLATE,
    charts=charts,
    deployments=deploy.orchestration,
    figures=_figures,
    replay=_replay,
    plan=OrchestrationPlan,
    check_files=check_files,
    method_titles=TITLES,
)

if __name__ == "__main__":
    from optmodels.cli import solve_script

    solve_script("orchestration")
