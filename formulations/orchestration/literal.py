"""Orchestration as MaaSO §IV-C writes it: every request and every GPU by itself. For small instances; the reference.

Sets: requests r, instances i (one for each that could run: configuration c and a copy), GPUs g of named servers, start
bins t. The workload level W of MS(1) is linearised to its worst case, the full batch (MaaSO's distributor plans with
it), so a request on i lasts prefill + l_r / F_c.

    a_i ∈ {0, 1}       instance i runs
    x_ri ∈ {0, 1}      request r is served by i, only where r can be in time there                        MS(a)
    y_ig ∈ {0, 1}      GPU g belongs to i, only where the type is right                                    MS(a)
    u_is ∈ Z₊          units of i in server s
    z_rit ∈ [0, 1]     r starts on i in bin t, only between its arrival and its deadline less its service

    Σ_i x_ri ≤ 1 (no request twice),   Σ_i y_ig ≤ 1 (a GPU has one owner)                                      MS(b)
    Σ_g y_ig = gpus_i·a_i,   Σ_i Σ_g y_ig ≤ GPUs,   Σ_{g in s} y_ig = unit_i·u_is (a unit shares a server)  MS(c)
    memory: configurations that do not fit are no candidates                                               MS(d)
    Σ_t z_rit = x_ri ≤ a_i,   Σ_r Σ_τ busy_ri(t − τ)·z_riτ ≤ slots_i·a_i                                   MS(2)
    with continuous serving the last for each resource of an engine (`engines`), at the request's own lengths

Starts are spread over a bin and a request may be spread over two of them, as in the column form: the compared value is
what happens to GPUs and requests, not how time is cut.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyomo.environ as pyo

from formulations.orchestration.busy import busy_shares, from_then_on
from formulations.orchestration.engines import Taken
from formulations.orchestration.flow import NO_WAIT_BINS, weights
from formulations.orchestration.making import make_plan
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import OrchestrationTables
from formulations.orchestration.problem import Orchestration
from optmodels.formulation import Options
from optmodels.plans.outcome import Outcome
from optmodels.solver import Settings, paused_gc, solve_model
from optmodels.solver.highs import PROVED

MOST_BINARIES = 20_000


class Literal:
    """The sets: requests with their class, instances that could run, GPUs that work."""

    def __init__(self, tables: OrchestrationTables) -> None:
        t = self.t = tables
        if t.class_of is None or t.deadline_s is None or t.case.trace is None:
            raise ValueError("requests given as classes have no literal form")
        trace = t.case.trace
        self.requests = range(len(trace))
        self.klass = t.class_of
        self.arrival_bin = np.minimum((trace.arrival_s / t.bin_s).astype(int), t.bins - 1)
        self.gpus = [(s.gpu, s.name, g) for s in t.case.servers for g in s.free]
        self.servers = [s.name for s in t.case.servers if s.free]
        self.instances = [
            (c, copy) for c, x in enumerate(t.configurations)
            for copy in range(min(int(t.case.free_gpus[x.gpu]) // x.gpus, _most(t, x.model)))
        ]  # fmt: skip
        self.busy, self.last = {}, {}
        number = np.zeros(len(trace), dtype=np.int64)  # of each request, among its model's requests
        for m in range(len(t.case.models)):
            mine = t.case.request_model == m
            number[mine] = np.arange(mine.sum())
        for r in self.requests:
            for c, x in enumerate(t.configurations):
                if x.model == t.case.request_model[r] and t.share[t.class_of[r], c] > 0:
                    prompt, output = (float(v[r]) for v in (trace.prompt_tokens, trace.output_tokens))
                    if (e := x.engine) is not None:
                        i = number[r]
                        wait = min(float(t.deadline_s[r]) - e.sees.e2e_s[i], t.case.ttft_limit_s - e.sees.ttft_s[i])
                        wait = float(wait) if e.fits[i] else -1.0
                        one = Taken.by(e, np.array([i]), np.zeros(1, dtype=np.int64), 1)
                        self.busy[r, c] = one.shares(e, 0, t.bin_s) / x.dp
                    else:
                        prefill = x.prefill_s_per_token * prompt
                        service = prefill + output / x.worst_rate
                        wait = min(float(t.deadline_s[r]) - service, t.case.ttft_limit_s - prefill)
                        self.busy[r, c] = busy_shares(service, t.bin_s)[None, :]
                    if wait >= 0:
                        self.last[r, c] = wait

    def starts(self, r: int, c: int) -> list[tuple[int, float]]:
        """Bins in which r may start on c, and the share that may: arrival bin and the wait after it."""
        wait = self.last[r, c] / self.t.bin_s
        first, T = int(self.arrival_bin[r]), self.t.bins
        if wait < NO_WAIT_BINS:
            return [(first, 1.0)]
        whole = int(np.floor(wait + 1e-9))
        found = [(first + i, 1.0) for i in range(whole + 1) if first + i < T]
        part = wait - whole
        if part > 1e-9 and first + whole + 1 < T:
            found.append((first + whole + 1, part))
        return found


def _most(t: OrchestrationTables, model: int) -> int:
    most = t.case.problem.models[model].maximum_instances
    return 10**9 if most is None else most


def build(problem: Orchestration, tables: OrchestrationTables) -> Any:
    """The literal ConcreteModel.

    Raises:
        ValueError: requests are given as classes.
    """
    d = Literal(tables)
    t, I = tables, range(len(d.instances))  # noqa: E741 - the set's name in the docstring
    w, q = weights(tables), tables.classes
    pairs = [(r, i) for i, (c, _) in enumerate(d.instances) for r in d.requests if (r, c) in d.last]
    with paused_gc():
        m = pyo.ConcreteModel(name=problem.name or "orchestration")
        m.data = d
        m.a = pyo.Var(I, domain=pyo.Binary)
        m.x = pyo.Var(pairs, domain=pyo.Binary)
        right = [(i, g) for i, (c, _) in enumerate(d.instances) for g, (kind, _, _) in enumerate(d.gpus)
                 if kind == t.configurations[c].gpu]  # fmt: skip
        m.y = pyo.Var(right, domain=pyo.Binary)
        m.u = pyo.Var(I, range(len(d.servers)), domain=pyo.NonNegativeIntegers)
        m.z = pyo.Var([(r, i, b) for r, i in pairs for b, _ in d.starts(r, d.instances[i][0])], bounds=(0, 1))
        served_by: dict[int, list[int]] = {}
        for r, i in pairs:
            served_by.setdefault(r, []).append(i)
        m.once = pyo.Constraint(served_by, rule=lambda m, r: sum(m.x[r, i] for i in served_by[r]) <= 1)
        owners: dict[int, list[int]] = {}
        for i, g in right:
            owners.setdefault(g, []).append(i)
        m.owner = pyo.Constraint(owners, rule=lambda m, g: sum(m.y[i, g] for i in owners[g]) <= 1)
        mine = {i: [g for j, g in right if j == i] for i in I}
        size = {i: t.configurations[d.instances[i][0]] for i in I}
        m.held = pyo.Constraint(I, rule=lambda m, i: sum(m.y[i, g] for g in mine[i]) == size[i].gpus * m.a[i])
        m.together = pyo.Constraint(
            I, range(len(d.servers)),
            rule=lambda m, i, s: sum((m.y[i, g] for g in mine[i] if d.gpus[g][1] == d.servers[s]), 0 * m.a[i])
            == size[i].unit * m.u[i, s],
        )  # fmt: skip
        m.stock = pyo.Constraint(
            [g for g, kind in enumerate(t.case.gpu_types) if kind in problem.cluster.stock],
            rule=lambda m, g: sum((size[i].gpus * m.a[i] for i in I if size[i].gpu == g), 0 * m.a[0])
            <= problem.cluster.stock[t.case.gpu_types[g]],
        )  # fmt: skip
        limited = [k for k, x in enumerate(problem.models) if x.minimum_instances or x.maximum_instances is not None]
        m.limits = pyo.Constraint(
            limited,
            rule=lambda m, k: (
                problem.models[k].minimum_instances,
                sum(m.a[i] for i in I if size[i].model == k),
                problem.models[k].maximum_instances,
            ),
        )
        # Copies of a configuration are interchangeable: the first ones run.
        m.order = pyo.Constraint([i for i in I if d.instances[i][1] > 0], rule=lambda m, i: m.a[i] <= m.a[i - 1])
        m.assigned = pyo.Constraint(
            pairs, rule=lambda m, r, i: sum(m.z[r, i, b] for b, _ in d.starts(r, d.instances[i][0])) == m.x[r, i]
        )
        m.runs = pyo.Constraint(pairs, rule=lambda m, r, i: m.x[r, i] <= m.a[i])
        part = [(r, i, b, f) for r, i in pairs for b, f in d.starts(r, d.instances[i][0]) if f < 1]
        m.in_time = pyo.Constraint(
            range(len(part)), rule=lambda m, j: m.z[part[j][:3]] <= part[j][3] * m.x[part[j][:2]]
        )
        resources = range(len(t.capacity))
        busy: dict[tuple[int, int, int], list[Any]] = {}
        for r, i in pairs:
            c = d.instances[i][0]
            for b, _ in d.starts(r, c):
                after = from_then_on(d.busy[r, c])
                for at in range(b, min(b + after.shape[1], t.bins + 1)):
                    shares = d.busy[r, c] if at < t.bins else after
                    for what in resources:
                        busy.setdefault((what, i, at), []).append(float(shares[what, at - b]) * m.z[r, i, b])
        m.slots = pyo.Constraint(
            busy, rule=lambda m, what, i, at: sum(busy[what, i, at])
            <= float(t.capacity[what, d.instances[i][0]]) * m.a[i],
        )  # fmt: skip
        count = {k: float(q.count[q.model == k].sum()) for k in range(len(problem.models))}
        m.attainment = pyo.Constraint(
            [k for k, x in enumerate(problem.models) if x.attainment_at_least is not None and count[k] > 0],
            rule=lambda m, k: (
                sum(m.x[r, i] for r, i in pairs if size[i].model == k)
                >= (problem.models[k].attainment_at_least or 0.0) * count[k]
            ),
        )
        o = problem.objective
        k_of = {r: int(d.klass[r]) for r in d.requests}
        satisfaction = pyo.quicksum(w.satisfaction[k_of[r]] * v for (r, _), v in m.x.items())
        throughput = pyo.quicksum(w.throughput[k_of[r]] * v for (r, _), v in m.x.items())
        latency = pyo.quicksum((w.latency - w.first_token[k_of[r], d.instances[i][0]]) * v for (r, i), v in m.x.items())
        latency -= pyo.quicksum(
            w.waiting * t.bin_s * (b - int(d.arrival_bin[r])) * v
            for (r, _, b), v in m.z.items()
            if b > d.arrival_bin[r]
        )
        m.score = pyo.Objective(expr=o.score(satisfaction, throughput, latency), sense=pyo.maximize)
    return m


def literal(problem: Orchestration, tables: OrchestrationTables, options: Options) -> Outcome[OrchestrationPlan]:
    """The literal form by HiGHS, on instances small enough for it; its instances scheduled as the exact form does."""
    from formulations.orchestration.rounding import scheduled  # methods names this module among its own

    if tables.case.trace is None:
        return Outcome("no_solution_found", None, log={"reason": "requests given as classes have no literal form"})
    if problem.objective.kind != "score" or weights(tables).capped or problem.change.running:
        reason = "the literal form knows scores without a throughput cap and without running instances"
        return Outcome("no_solution_found", None, log={"reason": reason})
    if not tables.configurations:
        return Outcome("no_solution_found", None, log={"reason": "no candidate can be used"})
    d = Literal(tables)
    binaries = len(d.instances) * (len(d.requests) + len(d.gpus))
    if binaries > MOST_BINARIES:
        reason = f"{binaries:,} binaries; the literal form is for up to {MOST_BINARIES:,}, exact has the same optimum"
        return Outcome("no_solution_found", None, log={"reason": reason})
    clock = time.perf_counter()
    model = build(problem, tables)
    seconds = {"build": time.perf_counter() - clock}
    settings = Settings(options.time_limit, options.gap, options.seed, on_event=options.on_event)
    solved, phases, size = solve_model(model, settings)
    plan = None
    if solved.x is not None:
        counts = np.zeros(len(tables.configurations), dtype=np.int64)
        for i, (c, _) in enumerate(d.instances):
            counts[c] += round(model.a[i].value)
        found = scheduled(tables, counts)
        plan = None if found is None else make_plan(tables, found.assignment)
    log = {"solver": solved.message, "nodes": solved.nodes, "literal_objective": solved.objective}
    status, bound = solved.status, solved.bound
    if plan is not None and bound is not None and plan.score.total > bound + PROVED * abs(bound):
        # The plan counts class means and parts of requests, the bound whole requests with their own deadlines.
        log["bound_of_whole_requests"] = bound
        status, bound = "feasible", None
    return Outcome(status, plan, bound, solved.limit, seconds | phases, size, log, solved.events)
