"""Other planners' ways and other ways to build the model, on the same work; docs/comparison.md shows what this prints.

    python benchmarks/comparison.py [--write]      needs: pip install 'pulp<4' linopy

Every way gets the same operating points, prices and demand. CPU seconds are the process's and its children's, operating
points not included, as a multiple of those of the first row of a table; an answer's gap is to the bound that `exact`
proved. What is compared with another planner is its way as its paper or documentation states it, written or run here,
never the product itself.
"""

from __future__ import annotations

import argparse
import math
import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from formulations import fleet, orchestration
from formulations.fleet.methods.melange import MelangeModel
from formulations.fleet.model import FleetModel
from formulations.fleet.points import FleetTables
from formulations.fleet.problem import Fleet
from optmodels import load, tables
from optmodels.batch.queueing import variability, waiting
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.formulation import Formulation, Options
from optmodels.solver import Settings, solve_compiled

sys.path.insert(0, str(Path(__file__).parents[1]))
from instances.generate.fleet import grid_problem, scaling

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "comparison.md"
BEGIN, END = "<!-- compared: begin -->", "<!-- compared: end -->"
GAP = 1e-4  # at which every solver may stop
LIMIT_S = 20.0  # and must
SLOTS = 100_000  # of a pool, at most


def cpu_s() -> float:
    """CPU seconds of this process and its children so far."""
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def row(
    name: str, objective: float | None, bound: float | None, best: float, cpu: float, first: float, said: str
) -> str:
    """A line of a table; `best` is the proved bound that gaps are to."""
    value = "none" if objective is None else f"{objective:.5g}"
    gap = "" if objective is None else f"{abs(objective - best) / max(objective, best):.1%}"
    return f"| {name} | {value} | {'' if bound is None else f'{bound:.5g}'} | {gap} | {cpu / first:.2g} | {said} |"


def table(unit: str, rows: list[str]) -> list[str]:
    """Lines of a table."""
    return ["", f"| way | {unit} | its own bound | gap | CPU | it says |", "|---|---|---|---|---|---|", *rows, ""]


def methods(form: Formulation, problem: Any, made: Any, named: dict[str, str]) -> tuple[list[str], float, float]:
    """Methods of a formulation on one problem, `exact` first: rows, the CPU seconds of `exact`, its bound."""
    rows, first, best = [], 0.0, math.nan
    for name, said in named.items():
        clock = cpu_s()
        outcome = form.methods[name](problem, made, Options(time_limit=LIMIT_S, gap=GAP))
        cpu = cpu_s() - clock
        if name == "exact":
            first, best = cpu, outcome.bound or math.nan
        objective = None if outcome.plan is None else form.objective(outcome.plan)
        said += "" if outcome.plan is not None else f" ({outcome.log.get('reason', outcome.status)})"
        said += f"; stopped after {LIMIT_S:.0f} s" if outcome.limit == "time" else ""
        rows.append(row(f"`{name}`", objective, outcome.bound, best, cpu, first, said))
    return rows, first, best


def sized(problem: Fleet, made: FleetTables) -> tuple[float, list[str]]:
    """The cheapest pool of equal deployments for each workload: an M/G/c queue of all its slots keeps every limit.

    Waiting by Allen and Cunneen, arrivals Poisson, service times those of the workload's buckets at full batches, the
    least number of deployments for each operating point. Stock, quotas and reserves are not looked at.

    Returns:
        USD/h, and the pools in words.
    """
    seen, points = made.latencies, made.points
    assert seen is not None
    usd, words = 0.0, []
    for work in made.case.workloads:
        rows = [w for w, d in enumerate(made.demands) if d.workload == work.name]
        rates = made.rates[0][rows]
        ttft, tail = seconds_and_quantile(work.slo.ttft_s)
        deadline, late = seconds_and_quantile(work.slo.deadline_s)
        best = (math.inf, 0, 0)
        for p in np.flatnonzero(np.isfinite(made.load[rows]).all(axis=0)):
            service = seen.e2e_s[rows, p]
            mean = float(rates @ service / rates.sum())
            scv = float(rates @ service**2 / rates.sum()) / mean**2 - 1.0
            slots, offered = int(points.slots[p]), float(rates @ service)
            for n in range(math.floor(offered / slots) + 1, SLOTS // slots):
                load_ = offered / (n * slots)
                if load_ >= 1:
                    continue
                factor = variability("ggc", 1.0, scv)
                first = mean * waiting(n * slots, load_, factor, tail) + seen.ttft_s[rows, p].max()
                last = mean * waiting(n * slots, load_, factor, late) + service.max()
                if first <= ttft and last <= deadline:
                    best = min(best, (n * float(points.usd_per_hour[p]), n, int(p)))
                    break
        usd += best[0]
        used = np.flatnonzero(made.use[[best[2]]].toarray()[0])
        words.append(f"{work.name} {best[1]} × {' + '.join(made.resources[g][0] for g in used)}")
    return usd, words


def fleets() -> list[str]:
    """Six workloads on one cloud's list, by ways of other planners."""
    problem = load(ROOT / "instances/fleet/aws-six-workloads.yaml")
    made = tables(problem)
    named = {
        "exact": "a plan, and a bound that no other beats",
        "melange": "whole slices of buckets to machine types (Mélange's model, equal slices counted)",
        "single_type": "a fleet of equal machines, every type tried, by `greedy` and `greedy_dp`",
        "greedy": "cheapest tokens first, open deployments filled, counts rounded up",
    }
    rows, first, best = methods(fleet.FORMULATION, problem, made, named)
    clock = cpu_s()
    usd, words = sized(problem, made)
    said = "a pool for each workload, sized by M/G/c: " + ", ".join(words)
    return table("USD/h", [*rows, row("M/G/c sizing", usd, None, best, cpu_s() - clock, first, said)])


def slices() -> list[str]:
    """Mélange's own example by its slice factor."""
    problem = load(ROOT / "instances/fleet/melange-example.yaml")
    made = tables(problem)
    clock = cpu_s()
    exact = fleet.FORMULATION.methods["exact"](problem, made, Options())
    first, best = cpu_s() - clock, exact.bound or math.nan
    assert exact.plan is not None
    rows = [row("`exact`", exact.plan.total_usd_per_hour, best, best, first, first, "any split of a bucket")]
    for factor in (1, 2, 3, 4, 8):
        clock = cpu_s()
        solved = solve_compiled(MelangeModel(made, factor).compiled(), Settings(LIMIT_S, GAP))
        said = f"{factor} slice{'s' if factor > 1 else ''} a bucket"
        rows.append(row("Mélange's model", solved.objective, solved.bound, best, cpu_s() - clock, first, said))
    return table("USD/h", rows)


def clusters() -> list[str]:
    """A trace on a cluster, by the systems MaaSO's paper compares with."""
    problem = load(ROOT / "instances/orchestration/maaso-trace-1.yaml")
    made = tables(problem)
    named = {
        "exact": "a plan, and a bound that no other beats in what is planned",
        "alpaserve": "equal instances for each model, found by simulation (AlpaServe's search, batch sizes added)",
        "maaso_star": "MaaSO's greedy and dynamic programme, for satisfaction alone",
        "selective_replication": "replicas of the smallest instance that fits, where simulation gains most",
        "round_robin": "equal shares of the GPUs, requests in turn",
    }
    orchestration.FORMULATION.methods["round_robin"](problem, made, Options())  # what numba compiles
    return table("objective", methods(orchestration.FORMULATION, problem, made, named)[0])


# ------------------------------------------------------------------------------------- the same model, built elsewhere

Built = tuple[Callable[[], Any], Callable[[Any], tuple[float | None, float | None]]]  # build; solve: objective, bound


def by_pulp(usd: Any, work: Any, solver: str) -> Built:
    """Plain PuLP, HiGHS or the CBC that it brings."""
    import pulp

    W, P = work.shape

    def build() -> Any:
        model = pulp.LpProblem("fleet", pulp.LpMinimize)
        n = [pulp.LpVariable(f"n_{p}", lowBound=0, cat="Integer") for p in range(P)]
        x = {(w, p): pulp.LpVariable(f"x_{w}_{p}", 0, 1) for w in range(W) for p in range(P) if np.isfinite(work[w, p])}
        model += pulp.lpSum(float(usd[p]) * n[p] for p in range(P))
        for w in range(W):
            model += pulp.lpSum(x[w, p] for p in range(P) if (w, p) in x) == 1
        for p in range(P):
            model += pulp.lpSum(float(work[w, p]) * x[w, p] for w in range(W) if (w, p) in x) <= n[p]
        return model

    def solve(model: Any) -> tuple[float | None, float | None]:
        made = pulp.PULP_CBC_CMD if solver == "cbc" else pulp.HiGHS
        model.solve(made(msg=False, timeLimit=LIMIT_S, gapRel=GAP, threads=1))
        bound = None if solver == "cbc" else float(model.solverModel.getInfo().mip_dual_bound)
        return pulp.value(model.objective), bound

    return build, solve


def by_linopy(usd: Any, work: Any) -> Built:
    """Plain linopy, HiGHS."""
    import linopy
    import pandas as pd
    import xarray as xr

    W, P = work.shape
    w, p = pd.RangeIndex(W, name="w"), pd.RangeIndex(P, name="p")
    can = np.isfinite(work)

    def build() -> Any:
        model = linopy.Model()
        each = xr.DataArray(np.where(can, work, 0.0), coords=[w, p])
        n = model.add_variables(lower=0, coords=[p], name="n", integer=True)
        x = model.add_variables(lower=0, upper=xr.DataArray(can.astype(float), coords=[w, p]), name="x")
        model.add_constraints(x.sum("p") == 1)
        model.add_constraints((each * x).sum("w") - n <= 0)
        model.add_objective((xr.DataArray(usd, coords=[p]) * n).sum())
        return model

    def solve(model: Any) -> tuple[float | None, float | None]:
        options = {"time_limit": LIMIT_S, "mip_rel_gap": GAP, "threads": 1, "output_flag": False}
        model.solve(solver_name="highs", progress=False, **options)
        return float(model.objective.value), float(model.solver_model.getInfo().mip_dual_bound)

    return build, solve


def by_pyomo(usd: Any, work: Any) -> Built:
    """Plain Pyomo rules, HiGHS by appsi."""
    import pyomo.environ as pyo
    from pyomo.contrib.appsi.solvers import Highs

    W, P = work.shape
    pairs = [(w, p) for w in range(W) for p in range(P) if np.isfinite(work[w, p])]

    def build() -> Any:
        m = pyo.ConcreteModel()
        m.W, m.P, m.pairs = range(W), range(P), set(pairs)
        m.n = pyo.Var(m.P, domain=pyo.NonNegativeIntegers)
        m.x = pyo.Var(pairs, bounds=(0, 1))
        m.all = pyo.Constraint(m.W, rule=lambda m, w: sum(m.x[w, p] for p in m.P if (w, p) in m.pairs) == 1)
        m.capacity = pyo.Constraint(
            m.P, rule=lambda m, p: sum(work[w, p] * m.x[w, p] for w in m.W if (w, p) in m.pairs) <= m.n[p]
        )
        m.usd = pyo.Objective(expr=sum(usd[p] * m.n[p] for p in m.P))
        return m

    def solve(model: Any) -> tuple[float | None, float | None]:
        solver = Highs()
        solver.highs_options = {"time_limit": LIMIT_S, "mip_rel_gap": GAP, "threads": 1}
        solver.config.load_solution = False
        found = solver.solve(model)
        return found.best_feasible_objective, found.best_objective_bound

    return build, solve


def builds(problem: Fleet) -> list[str]:
    """One model, built and solved by each; nothing is pruned for any but `exact`."""
    made = tables(problem)
    usd, work = made.points.usd_per_hour, made.rates[0][:, None] * made.load

    def solved(model: Any) -> tuple[float | None, float | None]:
        report = solve_compiled(model, Settings(LIMIT_S, GAP))
        return report.objective, report.bound

    ways: dict[str, Built] = {
        "optmodels' statement": (lambda: FleetModel(problem, made).compiled(), solved),
        "Pyomo, HiGHS": by_pyomo(usd, work),
        "linopy, HiGHS": by_linopy(usd, work),
        "PuLP, HiGHS": by_pulp(usd, work, "highs"),
        "PuLP, CBC": by_pulp(usd, work, "cbc"),
    }
    rows, first, best = methods(fleet.FORMULATION, problem, made, {"exact": "pruned with proof, then the statement"})
    alone = 0.0
    for name, (build, solve) in ways.items():
        build()  # imports and caches
        clock = cpu_s()
        model = build()
        built = cpu_s() - clock
        begun = time.perf_counter()
        objective, bound = solve(model)
        stopped = time.perf_counter() - begun > 0.99 * LIMIT_S
        objective = None if objective is None or math.isnan(objective) else objective
        cpu = cpu_s() - clock
        alone = alone or built
        said = f"building alone: {built / alone:.2g} times the statement's"
        said += f"; stopped after {LIMIT_S:.0f} s" if stopped else ""
        rows.append(row(name, objective, bound, best, cpu, first, said))
    return table("USD/h", rows)


PARTS: dict[str, Callable[[], list[str]]] = {
    "Six workloads on one cloud's list": fleets,
    "Mélange's example, by slices": slices,
    "A trace on a cluster": clusters,
    "One model, built in other ways: 100 buckets, 8 machine types": lambda: builds(grid_problem(10, 10, 8, 60.0, 0)),
    "One model, built in other ways: 30 workloads, 300 operating points": lambda: builds(scaling(30, 300)),
}


def main() -> None:
    """Print the tables, or put them into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into docs/comparison.md")
    write = parser.parse_args().write
    text = "\n".join(line for title, part in PARTS.items() for line in (f"### {title}", *part()))
    if not write:
        print(text)
        return
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(
        re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{text}\n{END}", page, flags=re.S), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
