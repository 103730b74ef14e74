"""The fleet MILP: against brute force and a second solver, its bounds, its answers when there is no plan."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyomo.environ as pyo
import pytest
import yaml
from fleet_cases import brute_force, fleet, random_fleet
from scipy.optimize import linprog
from scipy.stats import binom

import optmodels
from formulations.fleet.check import check
from formulations.fleet.making import FleetChoice, make_plan
from formulations.fleet.methods import columns as fleet_columns
from formulations.fleet.methods import exact as method
from formulations.fleet.methods.exact import exact
from formulations.fleet.methods.heuristics import complete, lp_rounding_choice
from formulations.fleet.methods.melange import MelangeModel, melange
from formulations.fleet.model import build
from formulations.fleet.points import build_tables, prune
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.solver import solve_compiled, solve_model

ROOT = Path(__file__).resolve().parents[2]
MELANGE = ROOT / "instances/fleet/melange-example.yaml"


def solved(problem, **options):
    tables = build_tables(problem)
    outcome = exact(problem, tables, Options(**options))
    if outcome.plan is not None:
        verdict = check(problem, outcome.plan.model_dump(mode="json"))
        assert verdict.ok, verdict.violations
    return tables, outcome


@pytest.mark.parametrize("seed", range(6))
def test_min_cost_is_the_brute_force_optimum(seed):
    rng = np.random.default_rng(seed)
    problem = random_fleet(rng, stock=[{"machine": "m0", "at_most": int(rng.integers(0, 4))}],
                           budget_usd_per_hour=float(rng.uniform(4, 20)))  # fmt: skip
    tables, outcome = solved(problem)
    truth = brute_force(problem, tables)
    if truth is None:
        assert outcome.status == "infeasible"
    else:
        assert outcome.status == "optimal"
        assert outcome.plan.total_usd_per_hour == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_shortfall_spot_share_and_replicas_against_brute_force(seed):
    rng = np.random.default_rng(100 + seed)
    problem = random_fleet(
        rng, w0={"unserved_usd_per_1000_requests": 0.3}, w1={"spot_share_max": 0.5}, w2={"min_replicas": 2},
        p0={"market": "spot"}, stock=[{"machine": "m1", "at_most": 3}],
    )  # fmt: skip
    tables, outcome = solved(problem)
    truth = brute_force(problem, tables)
    assert (outcome.plan is None) == (truth is None)
    if truth is not None:
        assert outcome.plan.total_usd_per_hour == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("goal", ["max_served", "max_ce"])
@pytest.mark.parametrize("seed", range(3))
def test_ratio_and_served_demand_against_brute_force(goal, seed):
    rng = np.random.default_rng(200 + seed)
    problem = random_fleet(rng, 3, 2, objective=goal, budget_usd_per_hour=float(rng.uniform(3, 8)), w1={"weight": 2.0})
    tables, outcome = solved(problem)
    truth = brute_force(problem, tables)
    value = outcome.plan.tokens_per_usd if goal == "max_ce" else outcome.plan.first_priority_served_per_s
    assert value == pytest.approx(truth, rel=1e-6)
    assert outcome.bound >= value * (1 - 1e-6)
    if goal == "max_ce":
        assert outcome.status == "optimal"


def test_priority_is_lexicographic():
    rates, throughput = [1.0, 1.0], [[1.0], [1.0]]
    base = {"objective": "max_served", "budget_usd_per_hour": 1.0}
    problem = fleet(rates, throughput, [1.0], w0={"priority": 2, "weight": 9.0}, w1={"priority": 1}, **base)
    _, outcome = solved(problem)
    (unserved,) = outcome.plan.periods[0].unserved
    assert unserved.demand == "w0/b"
    assert unserved.share == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(3))
def test_a_second_solver_agrees(seed):
    pyscipopt = pytest.importorskip("pyscipopt", reason="needs SCIP: pip install pyscipopt")
    rng = np.random.default_rng(seed)
    problem = random_fleet(rng, 12, 8, stock=[{"machine": "m*", "at_most": 3}])
    tables, outcome = solved(problem)
    model = build(problem, prune(tables)[0])
    scip = pyscipopt.Model()
    scip.hideOutput()
    assert _by_scip(scip, model) == pytest.approx(outcome.plan.total_usd_per_hour, rel=1e-6)


def _by_scip(scip, model):
    """Optimum of a Pyomo model by SCIP, coefficient by coefficient."""
    from optmodels.solver import compile_model

    c = compile_model(model)
    inf = scip.infinity()
    x = [
        scip.addVar(vtype="I" if i else "C", lb=float(lo), ub=float(min(hi, inf)))
        for lo, hi, i in zip(c.lower, c.upper, c.integer, strict=True)
    ]
    rows = c.A.tocsr()
    for r in range(rows.shape[0]):
        part = slice(rows.indptr[r], rows.indptr[r + 1])
        total = sum(float(v) * x[j] for j, v in zip(rows.indices[part], rows.data[part], strict=True))
        if np.isfinite(c.row_upper[r]):
            scip.addCons(total <= float(c.row_upper[r]))
        if np.isfinite(c.row_lower[r]):
            scip.addCons(total >= float(c.row_lower[r]))
    scip.setObjective(sum(float(v) * x[j] for j, v in enumerate(c.costs[0]) if v), "minimize")
    scip.optimize()
    assert scip.getStatus() == "optimal"
    return scip.getObjVal()


# ---------------------------------------------------------------------------------------- single workload, Mélange


BOTH = {"main": ["on_demand", "spot"], "ao": ["on_demand", "spot"]}


def single_problem(objective):
    return {
        "formulation": "cost_efficiency", "schema": 1, "serving": "static",
        "name": "one", "model": "opt-6.7b", "objective": objective,
        "workload": {"batch": 8, "input_tokens": 256, "output_tokens": 32},
        "slo": {"kind": "real_time", "tps": 300.0, "ttft_s": 2.0, "tpot_s": 0.2},
        "pool": {"catalog": "llm-pilot-table-vii"}, "markets": BOTH,
        "strategies": {"replicas": [1, 2], "multi_pass": [2], "parallel": [2], "shared": [2]},
    }  # fmt: skip


def as_fleet(single, **changes):
    w = single["workload"]
    strategies = single["strategies"] | {
        "batches": [w["batch"]],
        "families": ["high_end", "multi_pass", "kvo_ram", "kvo_disk", "ao", "ao_parallel", "ao_shared"],
    }
    slo = {k: v for k, v in single["slo"].items() if k != "kind"}
    rate = single["slo"]["tps"] / (w["input_tokens"] + w["output_tokens"])
    bucket = {"input_tokens": w["input_tokens"], "output_tokens": w["output_tokens"], "requests_per_s": rate}
    return {
        "formulation": "fleet", "schema": 1, "name": "one", "serving": "static", "pool": single["pool"],
        "strategies": strategies,
        "workloads": [{"name": "w", "model": single["model"], "buckets": [bucket], "slo": slo}],
        "markets": BOTH,
    } | changes  # fmt: skip


def test_one_workload_without_limits_is_the_single_workload_answer():
    """At the rate TPS_SLO every feasible candidate carries the workload alone: the cheapest one, once."""
    single = optmodels.solve(single_problem("capped"))
    many = optmodels.solve(as_fleet(single_problem("capped")))
    assert many.status == single.status == "optimal"
    assert many.plan["usd_per_hour"] == pytest.approx(single.plan["usd_per_hour"], rel=1e-9)
    assert [d["count"] for d in many.plan["periods"][0]["deployments"]] == [1]


def test_one_workload_with_enough_demand_has_the_single_workload_ce():
    single = optmodels.solve(single_problem("uncapped"))
    problem = as_fleet(single_problem("uncapped"), objective="max_ce")
    problem["workloads"][0]["buckets"][0]["requests_per_s"] = 50.0
    many = optmodels.solve(problem)
    assert many.plan["tokens_per_usd"] == pytest.approx(single.objective, rel=1e-6)


@pytest.mark.parametrize(("slices", "cost"), [(1, 6.70), (4, 5.69), (3, 4.68)])
def test_melange_example(slices, cost):
    problem = optmodels.load(MELANGE)
    folder = problem._folder
    problem = problem.model_copy(update={"melange": problem.melange.model_copy(update={"slice_factor": slices})})
    problem._folder = folder
    outcome = melange(problem, build_tables(problem), Options())
    assert outcome.plan.total_usd_per_hour == pytest.approx(cost)
    assert outcome.bound is None
    assert check(problem, outcome.plan.model_dump(mode="json")).ok


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("slices", [1, 2, 3])
def test_counted_slices_are_melanges_binaries(seed, slices):
    """The counted form against Mélange's own: a binary for every slice and type."""
    problem = random_fleet(np.random.default_rng(seed), 4, 3)
    tables = build_tables(problem)
    load, rates = tables.load, tables.rates[0]
    m = pyo.ConcreteModel()
    m.S = [(w, s) for w in range(len(rates)) for s in range(slices)]
    m.P = range(load.shape[1])
    m.y = pyo.Var([(w, s, p) for w, s in m.S for p in m.P if np.isfinite(load[w, p])], domain=pyo.Binary)
    m.n = pyo.Var(m.P, domain=pyo.NonNegativeIntegers)
    m.one = pyo.Constraint(m.S, rule=lambda m, w, s: sum(m.y[w, s, p] for p in m.P if np.isfinite(load[w, p])) == 1)
    m.fits = pyo.Constraint(
        m.P,
        rule=lambda m, p: (
            sum(rates[w] * load[w, p] / slices * m.y[w, s, p] for w, s in m.S if np.isfinite(load[w, p])) <= m.n[p]
        ),
    )
    m.cost = pyo.Objective(expr=sum(tables.points.usd_per_hour[p] * m.n[p] for p in m.P))
    literal, _, _ = solve_model(m)
    counted = solve_compiled(MelangeModel(tables, slices).compiled())
    assert counted.objective == pytest.approx(literal.objective, rel=1e-6)
    _, whole = solved(problem)
    assert whole.plan.total_usd_per_hour <= counted.objective + 1e-6


# ------------------------------------------------------------------------------------------------ bounds


def test_relaxation_is_the_lp_bound_and_pinned():
    """Column generation gives the LP bound of the model itself; on Mélange's example that is 4.63 and not 4.68."""
    problem = optmodels.load(MELANGE)
    tables = build_tables(problem)
    model = build(problem, tables)
    pyo.TransformationFactory("core.relax_integer_vars").apply_to(model)
    relaxed, _, _ = solve_model(model)
    found = fleet_columns.relaxation(problem, tables)
    assert found.bound == pytest.approx(relaxed.objective, rel=1e-9)
    assert found.bound == pytest.approx(3.67 * 1.125, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_relaxation_with_scarce_machines_is_the_lp_bound(seed):
    rng = np.random.default_rng(seed)
    problem = random_fleet(rng, 6, 5, stock=[{"machine": "m*", "at_most": 2}], budget_usd_per_hour=60.0,
                           w0={"spot_share_max": 0.3}, p1={"market": "spot"})  # fmt: skip
    tables = build_tables(problem)
    model = build(problem, tables)
    pyo.TransformationFactory("core.relax_integer_vars").apply_to(model)
    relaxed, _, _ = solve_model(model)
    found = fleet_columns.relaxation(problem, tables)
    assert found.feasible == (relaxed.objective is not None)
    if found.feasible:
        assert found.bound == pytest.approx(relaxed.objective, rel=1e-6)


def test_column_generation_and_one_model_agree(monkeypatch):
    problem = random_fleet(np.random.default_rng(5), 12, 9)
    _, whole = solved(problem)
    monkeypatch.setattr(method, "MANY_PAIRS", 5)
    _, generated = solved(problem)
    assert generated.bound <= whole.plan.total_usd_per_hour * (1 + 1e-6)
    assert generated.plan.total_usd_per_hour >= whole.plan.total_usd_per_hour * (1 - 1e-6)
    assert generated.plan.total_usd_per_hour <= whole.plan.total_usd_per_hour * 1.005


def test_parts_that_share_nothing_are_solved_apart():
    throughput = [[2.0, 0.0], [0.0, 3.0]]
    problem = fleet([3.0, 4.0], throughput, [1.0, 1.5])
    _, outcome = solved(problem)
    assert outcome.log["parts"] == 2
    assert outcome.status == "optimal"
    assert outcome.bound == pytest.approx(2 * 1.0 + 2 * 1.5)


# ------------------------------------------------------------------------------------------- reserve, days, changes


def test_reserve_survives_the_stated_losses():
    problem = fleet([3.5], [[1.0]], [1.0], p0={"market": "spot"}, reserve={"lost": 2})
    _, outcome = solved(problem)
    assert outcome.plan.periods[0].deployments[0].count == 6  # 3.5 deployments of load, two lost
    stated = fleet([3.5], [[1.0]], [1.0], p0={"market": "spot"}, reserve={"survive_probability": 0.99, "pools": 1},
                   interruptions=[{"per_hour": 0.6, "recovery_s": 600}])  # fmt: skip
    _, outcome = solved(stated)
    assert outcome.plan.survival_probability >= 0.99
    fewer = outcome.plan.periods[0].deployments[0].count - 1
    from scipy.stats import binom

    assert binom.cdf(fewer - 4, fewer, 1 - 1 / 1.1) < 0.99


def test_changes_cost_and_are_limited():
    day = {"periods": [{"name": "night", "hours": 12, "rate_factor": 0.25}, {"name": "day", "hours": 12}]}
    free = fleet([4.0], [[1.0]], [1.0], **day)
    _, outcome = solved(free)
    assert outcome.plan.total_usd_per_hour == pytest.approx(2.5)
    _, outcome = solved(fleet([4.0], [[1.0]], [1.0], **day, change={"start_usd": 5.0, "stop_usd": 5.0}))
    assert outcome.plan.total_usd_per_hour == pytest.approx(2.5 + 30 / 24)
    _, outcome = solved(fleet([4.0], [[1.0]], [1.0], **day, change={"start_usd": 50.0}))
    assert outcome.plan.total_usd_per_hour == pytest.approx(4.0)
    _, outcome = solved(fleet([4.0], [[1.0]], [1.0], **day, change={"max_starts": 1}))
    assert outcome.plan.total_usd_per_hour == pytest.approx(3.5)


def test_running_fleet_is_kept_when_moving_costs_more():
    running = {"running": [{"machine": "m0", "count": 4}], "change": {"start_usd": 30.0, "horizon_hours": 24}}
    problem = fleet([4.0], [[1.0, 1.0]], [1.0, 0.5], **running)
    _, outcome = solved(problem)
    assert outcome.plan.usd_per_hour == pytest.approx(4.0)
    cheap = problem.model_copy(update={"change": problem.change.model_copy(update={"start_usd": 1.0})})
    _, outcome = solved(cheap)
    assert outcome.plan.usd_per_hour == pytest.approx(2.0)
    assert outcome.plan.periods[0].starts == {"m1 (on_demand)": 4}


def test_a_demand_that_sleeps_takes_no_part_in_the_relaxation():
    """Where no point it could use is the first one in the table: it once made the start's counts no numbers."""
    night = [{"name": "night", "hours": 6, "rate_factors": {"w1": 0.0}}, {"name": "day", "hours": 18}]
    problem = fleet([2.0, 3.0], [[4.0, 1.0], [0.0, 2.0]], [3.0, 1.0], periods=night)
    choice = lp_rounding_choice(problem, build_tables(problem))
    np.testing.assert_array_equal(choice.n, [[1, 0], [1, 2]])
    assert (0, 1) not in zip(choice.t, choice.w, strict=True)


def test_shadow_price_of_a_scarce_machine():
    problem = fleet([4.0], [[1.0, 1.0]], [1.0, 3.0], stock=[{"machine": "m0", "at_most": 2}])
    _, outcome = solved(problem)
    (price,) = outcome.plan.shadow_prices
    assert price.limit == "stock of m0"
    assert price.exact
    assert price.gain == pytest.approx(2.0)


# -------------------------------------------------------------------------------------------------- no plan exists


@pytest.mark.parametrize(
    ("changes", "named", "not_named"),
    [
        ({"stock": [{"machine": "m0", "at_most": 0}]}, ["stock of m0 at most 0", "bucket w1/b"], ["w0/b"]),
        ({"w0": {"min_replicas": 3}, "stock": [{"machine": "m1", "at_most": 2}, {"machine": "m0", "at_most": 0}],
          "w1": {"serve_at_least": 0.0}}, ["replicas for w0 at least 3", "stock of m1 at most 2"], ["bucket"]),
        ({"budget_usd_per_hour": 2.5}, ["budget at most 2.5 USD/h", "w0/b", "w1/b"], ["stock"]),
    ],
)  # fmt: skip
def test_conflicts_are_named(changes, named, not_named):
    """w1 needs m0; m0 and m1 both serve w0."""
    problem = fleet([1.0, 2.0], [[1.0, 2.0], [1.0, 0.0]], [1.0, 2.0], **changes)
    _, outcome = solved(problem)
    assert outcome.status == "infeasible"
    text = "; ".join(outcome.log["conflict"])
    for part in named:
        assert part in text
    for part in not_named:
        assert part not in text


def test_budget_too_small_says_how_much_is_needed():
    _, outcome = solved(fleet([3.0], [[1.0]], [1.0], budget_usd_per_hour=2.0))
    assert "3.0000 USD/h" in outcome.log["reason"]


def test_impossible_bucket_and_zero_throughput_are_named():
    _, outcome = solved(fleet([1.0, 1.0], [[1.0], [0.0]], [1.0]))
    assert outcome.status == "infeasible"
    assert outcome.log["conflict"] == ["w1/b: no point sustains it"]
    single = single_problem("capped")
    problem = as_fleet(single)
    problem["workloads"][0]["slo"]["ttft_s"] = 1e-4
    result = optmodels.solve(problem)
    assert result.exit_status == 3
    assert "w/256x32: nearest is " in result.log["reason"]
    assert "TTFT" in result.log["reason"]


def test_replicas_of_a_workload_that_nothing_serves():
    problem = fleet([1.0, 1.0], [[1.0], [0.0]], [1.0], w1={"min_replicas": 1, "serve_at_least": 0.0})
    _, outcome = solved(problem)
    assert outcome.status == "infeasible"
    assert outcome.log["conflict"] == ["replicas for w1 at least 1: no point can serve it"]


def test_running_machines_may_stay_idle_where_stopping_costs():
    running = {"running": [{"machine": "m0", "count": 9}], "change": {"stop_usd": 100.0, "horizon_hours": 1}}
    _, outcome = solved(fleet([1.0], [[1.0]], [1.0], **running))
    assert outcome.plan.total_usd_per_hour == pytest.approx(9.0)


def test_result_stands_alone(tmp_path):
    """plan.json carries the instance with Mélange's file, trace or catalogue written out; the check needs no other."""
    for source in (MELANGE, ROOT / "instances/fleet/day-and-night.yaml"):
        result = optmodels.solve(source, out=tmp_path)
        assert optmodels.check(next(tmp_path.glob(f"{source.stem}*")) / "plan.json").ok
        assert result.check.ok


@pytest.mark.parametrize("include", [["g6e.xlarge"], ["g5.xlarge", "g6e.xlarge"], ["g6e.xlarge", "g5.xlarge"]])
@pytest.mark.parametrize("family", ["ao", "ao_parallel", "ao_shared"])
def test_machines_for_attention_are_lines_of_their_own(include, family):
    """Also where both roles are one machine type in one market, and wherever the AO machine stands in the pool."""
    result = optmodels.solve({
        "formulation": "fleet", "schema": 1, "serving": "static",
        "workloads": [{
            "name": "chat", "model": "llama-3.1-8b", "slo": {"ttft_s": 4.0, "tpot_s": 0.2},
            "buckets": [{"input_tokens": 1024, "output_tokens": 256, "requests_per_s": 6}],
        }],
        "pool": {"catalog": "aws", "include": include},
        "markets": {"main": ["on_demand"], "ao": ["on_demand"]},
        "strategies": {"families": [family], "batches": [16]},
    })  # fmt: skip
    assert result.status == "optimal" and result.check.ok, result.check
    for line in result.plan["periods"][0]["deployments"]:
        assert [m["role"] for m in line["machines"]] == ["main", "ao"]


OFFLOADING = ["high_end", "kvo_ram", "ao"]


def of_static_batches(name, **changes):
    data = yaml.safe_load((ROOT / f"tests/fleet/static/{name}.yaml").read_text(encoding="utf-8"))
    return optmodels.solve(data | changes)


def test_among_plans_of_equal_cost_the_simplest_is_taken():
    """Offloading gains capacity in stock-limited that nobody pays less for; on day-and-night it pays."""
    plain = of_static_batches("stock-limited")
    found = of_static_batches("stock-limited", strategies={"families": OFFLOADING, "batches": [4, 16, 64]})
    assert found.status == "optimal" and found.check.ok
    assert found.objective == pytest.approx(plain.objective, rel=1e-9)
    assert {d["family"] for d in found.plan["periods"][0]["deployments"]} == {"high_end"}
    binding = {line["name"] for line in found.plan["periods"][0]["limits"] if line["binding"]}
    assert {s["limit"] for s in found.plan["shadow_prices"]} <= binding
    worth = of_static_batches("day-and-night", strategies={"families": OFFLOADING, "batches": [4, 16, 64]})
    assert worth.objective < of_static_batches("day-and-night").objective
    assert "kvo_ram" in {d["family"] for q in worth.plan["periods"] for d in q["deployments"]}


def test_no_engine_offloads_at_every_step_so_that_nobody_gets_it_unasked():
    result = optmodels.solve(ROOT / "instances/fleet/spot-heavy.yaml")
    assert {d["family"] for q in result.plan["periods"] for d in q["deployments"]} == {"high_end"}


# ------------------------------------------------------------------------------- reserves against plain enumeration


def cheapest_with_reserve(problem, t, most):
    """Least USD/h over all counts up to `most`, by enumeration: loads fit before and after the losses."""
    points, r, rates = t.points, problem.reserve, t.rates[0]
    pairs = [(w, p) for w in range(len(rates)) for p in range(len(points)) if np.isfinite(t.load[w, p])]
    served = np.array([[float(w == v) for w, _ in pairs] for v in range(len(rates))])
    loads = np.array([[rates[w] * t.load[w, p] * (p == q) for w, p in pairs] for q in range(len(points))])
    pools = [np.flatnonzero(points.pool == j) for j in np.unique(points.pool[points.spot])]
    after = [(loads[mine] * points.rho[mine, None]).sum(axis=0) for mine in pools]
    best = np.inf
    for n in itertools.product(range(most + 1), repeat=len(points)):
        usd, n = float(np.dot(n, points.usd_per_hour)), np.array(n)
        used = sum(n[mine].sum() > 0 for mine in pools)
        if usd >= best or (r.lost is None and used > r.pools):
            continue
        room = []
        for mine in pools:
            size, q = int(n[mine].sum()), float(points.unavailable[mine].max())
            lost = r.lost
            if lost is None:
                miss = (1 - r.survive_probability) / r.pools
                lost = next(k for k in range(size + 1) if binom.sf(k, size, q) <= miss)
            room.append(r.load_after_loss * (size - lost) if size else 0.0)
        found = linprog(np.zeros(len(pairs)), A_ub=np.vstack([loads, *after]), b_ub=np.append(n, room), A_eq=served,
                        b_eq=np.ones(len(rates)), bounds=(0, 1))  # fmt: skip
        if found.status == 0:
            best = usd
    return best


@pytest.mark.parametrize("seed", range(12))
def test_reserves_are_those_of_enumeration(seed):
    g = np.random.default_rng(seed)
    reserve = {"load_after_loss": float(g.choice([1.0, 0.7, 0.4]))}
    reserve |= {"lost": int(g.integers(1, 3))} if seed % 2 else {"survive_probability": 0.99, "pools": 3}
    problem = fleet(
        g.uniform(0.5, 1.5, 2).tolist(), g.uniform(0.7, 3.0, (2, 3)).tolist(), g.uniform(1, 4, 3).round(2).tolist(),
        max_load=float(g.choice([1.0, 0.8])), p0={"market": "spot"}, p1={"market": "spot"},
        p2={"machine": "m0", "market": "spot"}, reserve=reserve, interruptions=[{"per_hour": 0.3, "recovery_s": 600}],
    )  # fmt: skip
    tables, outcome = solved(problem)
    assert outcome.status == "optimal"
    assert outcome.plan.total_usd_per_hour == pytest.approx(cheapest_with_reserve(problem, tables, 9))
    assert check(problem, outcome.plan.model_dump(mode="json")).ok


def test_a_reserve_beyond_reason_is_refused_with_what_was_asked():
    """Lost 95 % of the time: 5,000 deployments would need some 95,000 spare ones. Refused, not cut."""
    problem = fleet(
        [5000.0], [[1.0]], [1.0], p0={"market": "spot"}, reserve={"survive_probability": 0.99, "pools": 2},
        interruptions=[{"per_hour": 1.0, "recovery_s": 68400}],
    )  # fmt: skip
    with pytest.raises(InputError, match=r"reserve\.survive_probability: got 0\.99;.*20,000 spare deployments"):
        exact(problem, build_tables(problem), Options())


def test_a_heuristic_buys_as_many_spare_deployments_as_it_takes():
    """30,000 deployments' load that is lost a seventh of the time: more than 1,000 spare ones."""
    problem = fleet(
        [30000.0], [[1.0]], [1.0], p0={"market": "spot"}, reserve={"survive_probability": 0.999, "pools": 1},
        interruptions=[{"per_hour": 1.0, "recovery_s": 600}],
    )  # fmt: skip
    tables = build_tables(problem)
    bought = int(complete(problem, tables, [(0, 0, 0, 1.0)]).n.sum())
    q = float(tables.points.unavailable[0])
    left = [n - int(binom.isf(1e-3, n, q)) for n in (bought - 1, bought)]
    assert left[0] < 30000 <= left[1]  # one fewer would not do


def test_deployments_alike_are_equally_full():
    """Three of a kind at two prices hold 1.5 deployments' load together; the third point is full and unlike them."""
    problem = fleet([3.0, 1.0], [[2.0, 2.0, 1.0], [2.0, 2.0, 0.0]], [1.0, 1.2, 0.4])
    tables = build_tables(problem)
    kind = {name: k for k, name in enumerate(p.name for p in problem.points)}
    uneven = {("w0/b", "p0"): 1 / 6, ("w0/b", "p1"): 1 / 2, ("w0/b", "p2"): 1 / 3, ("w1/b", "p1"): 1.0}
    names = [d.name for d in tables.demands]
    w, p = (np.array(x) for x in zip(*((names.index(a), kind[b]) for a, b in uneven), strict=True))
    choice = FleetChoice(np.array([[1, 2, 1]]), np.zeros(4, dtype=int), w, p, np.array(list(uneven.values())))
    plan = make_plan(tables, choice)
    lines = plan.periods[0].deployments
    assert {d.point: d.utilisation for d in lines} == pytest.approx({"p0": 0.5, "p1": 0.5, "p2": 1.0})
    shares = {(s.demand, d.point): s.share for d in lines for s in d.serves}
    assert shares == pytest.approx({
        ("w0/b", "p0"): 2 / 9, ("w0/b", "p1"): 4 / 9, ("w0/b", "p2"): 1 / 3,
        ("w1/b", "p0"): 1 / 3, ("w1/b", "p1"): 2 / 3,
    })  # fmt: skip
    assert check(problem, plan.model_dump(mode="json")).ok
