"""What fleet once proved falsely or failed to find: loads of any size, pools, idle machines, limits of time."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from fleet_cases import brute_force, fleet
from scipy.optimize import linprog
from scipy.stats import binom

import optmodels
from formulations.fleet.check import check
from formulations.fleet.methods import exact as method
from formulations.fleet.methods import heuristics
from formulations.fleet.methods.exact import exact
from formulations.fleet.methods.melange import melange
from formulations.fleet.plan import objective_value
from formulations.fleet.points import build_tables
from formulations.fleet.problem import Fleet, Reserve
from optmodels.errors import InputError
from optmodels.formulation import Options

SOLVE = method._solve


def solved(problem):
    outcome = exact(problem, build_tables(problem), Options())
    assert outcome.status == "optimal", outcome.log
    report = check(problem, outcome.plan.model_dump(mode="json"))
    assert report.ok, report.violations
    assert outcome.bound == pytest.approx(outcome.plan.total_usd_per_hour, rel=1e-6)
    return outcome.plan


# ------------------------------------------------------------------------------------------------ rates of any size


@pytest.mark.parametrize("rate", [1e-3, 1e-6, 1e-9, 1e-12])
def test_a_demand_however_small_takes_a_deployment(rate):
    """One that only the dear point can serve, beside one that keeps the cheap point busy."""
    problem = fleet([1.5, rate], [[1.0, 1.0], [0.0, 1.0]], [1.0, 3.0])
    plan = solved(problem)
    assert plan.total_usd_per_hour == pytest.approx(1 + 3)
    assert plan.periods[0].unserved == []


@pytest.mark.parametrize("rate", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("method_", ["greedy", "greedy_dp", "lp_rounding", "single_type", "melange"])
def test_heuristics_serve_a_demand_however_small(rate, method_):
    problem = fleet([1.5, rate], [[1.0, 1.0], [1.0, 1.0]], [1.0, 3.0])
    outcome = optmodels.solve(problem, method_)
    assert outcome.check is not None
    assert outcome.check.ok, outcome.check.violations


@pytest.mark.parametrize("rate", [1e-6, 1e-9])
def test_a_reserve_holds_for_a_demand_however_small(rate):
    """The pool of the small demand needs a deployment that is left when three are lost."""
    plan = solved(fleet([1.5, rate], [[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0], reserve={"lost": 3}))
    assert plan.total_usd_per_hour == pytest.approx(5 * 1 + 4 * 2)


@pytest.mark.parametrize("factor", [1e-9, 1e-6, 1.0, 1e3])
def test_the_optimum_does_not_depend_on_the_unit_of_time(factor):
    """Rates and throughputs in other units: the same loads."""
    rates, throughput = np.array([0.7, 1.3, 0.02]), np.array([[1.0, 2.0], [0.9, 1.7], [1.0, 3.0]])
    problem = fleet((rates * factor).tolist(), (throughput * factor).tolist(), [1.0, 1.8])
    assert solved(problem).total_usd_per_hour == pytest.approx(2.8)


def test_prices_that_no_plan_pays_do_not_hide_small_ones():
    """One p3 for everything costs 2.0e-6 USD/h; five p0 beside it made it 2.025e-6, of a median price of 2e5."""
    throughput = [
        [0.0, 0.0, 0.0, 0.0166], [0.0, 1e4, 0.0, 15.4], [0.0, 0.0, 0.0, 3.3e11], [1e-7, 0.0, 20.0, 0.0519],
    ]  # fmt: skip
    problem = fleet([4e-6, 4e-5, 8000.0, 5e-7], throughput, [5e-9, 2e8, 4e5, 2e-6])
    assert solved(problem).total_usd_per_hour == pytest.approx(2e-6)


@pytest.mark.parametrize("seed", [2, 3, 10, 16, 18, 22])
def test_a_ratio_is_proved_at_prices_of_any_size(seed):
    """Six to sixteen orders apart: points that no better ratio pays are left out, and the last round's 0 is a sum of
    terms that cancel, in which rounding is no gap."""
    g = np.random.default_rng(seed)
    throughput, usd = 10 ** g.uniform(0, 3, (3, 3)), 10 ** g.uniform(-8, 8, 3)
    problem = fleet(g.uniform(0.1, 0.9, 3).tolist(), throughput.tolist(), usd.tolist(), objective="max_ce")
    tables = build_tables(problem)
    outcome = exact(problem, tables, Options())
    assert outcome.status == "optimal", outcome.log
    assert outcome.plan.tokens_per_usd == pytest.approx(brute_force(problem, tables, 2), rel=1e-6)
    assert outcome.bound == pytest.approx(outcome.plan.tokens_per_usd, rel=1e-6)


def test_a_point_dearer_than_the_budget_hides_nothing():
    """One p0 and one p2 serve all for 3.6e-6 USD/h; p1, at 6e6 USD/h beyond the budget of 1335, made it 0.0098."""
    w0 = {"b0": 547.0, "b1": 4.266, "b2": 4885000.0}
    w1 = {"b0": 275.3, "b1": 12.92}
    serves = [
        {"w0/b0": 397818.0, "w0/b1": 3.878, "w0/b2": 835.8, "w1/b0": 1.254e8},
        {"w0/b1": 476.8, "w0/b2": 4.389e10, "w1/b0": 2.673e7, "w1/b1": 6.257e7},
        {"w0/b0": 1223440.0, "w0/b1": 752646.0, "w0/b2": 5.664e10, "w1/b1": 2.31e8},
    ]
    document = {
        "formulation": "fleet", "schema": 1, "budget_usd_per_hour": 1335.0,
        "workloads": [
            {"name": "w0", "buckets": [{"name": b, "requests_per_s": r} for b, r in w0.items()]},
            {"name": "w1", "buckets": [{"name": b, "requests_per_s": r} for b, r in w1.items()],
             "unserved_usd_per_1000_requests": 31140.0},
        ],
        "points": [{"name": f"p{k}", "usd_per_hour": usd, "requests_per_s": serves[k]}
                   for k, usd in enumerate([1.675e-06, 5.956e6, 1.962e-06])],
    }  # fmt: skip
    assert solved(Fleet.model_validate(document)).total_usd_per_hour == pytest.approx(3.637e-06)


def test_a_demand_beyond_a_million_deployments_is_refused():
    with pytest.raises(InputError, match=r"workloads\[0\]: got '1e\+10 requests/s of w0/b'; .* 1,000,000 deployments"):
        build_tables(fleet([1e10], [[1.0]], [1.0]))
    assert np.isinf(build_tables(fleet([1.0], [[1.0, 1e-7]], [1.0, 1e-9])).load[0, 1])


def test_what_tables_find_wrong_is_said_of_the_file(tmp_path):
    path = tmp_path / "many.yaml"
    document = fleet([1e10], [[1.0]], [1.0]).model_dump(mode="json", by_alias=True, exclude_unset=True)
    path.write_text(json.dumps(document))
    for ask in (optmodels.solve, optmodels.tables, lambda file: optmodels.compare([file])):
        with pytest.raises(InputError) as found:
            ask(path)
        assert found.value.mistakes[0].file == str(path)


@pytest.mark.parametrize("changes", [{"queueing": {"model": "mmc", "load_levels": [8e-7]}}, {"max_load": 8e-7}])
def test_a_load_level_of_next_to_nothing_is_refused(changes):
    with pytest.raises(ValueError, match=r"0\.001"):
        fleet([1.0], [[1.0]], [1.0], **changes)


# ------------------------------------------------------------------------------------------------------------ pools


def test_lost_counts_every_machine_and_a_probability_spot_ones():
    assert Reserve(lost=1).machines == "all"
    assert Reserve(lost=1, machines="spot").machines == "spot"
    assert Reserve(survive_probability=0.99).machines == "spot"
    assert solved(fleet([1.5], [[1.0]], [1.0], reserve={"lost": 1})).total_usd_per_hour == pytest.approx(3.0)
    spot_only = {"lost": 1, "machines": "spot"}
    assert solved(fleet([1.5], [[1.0]], [1.0], reserve=spot_only)).total_usd_per_hour == pytest.approx(2.0)


def test_measured_points_share_no_spares():
    """Two models on one machine type at one price: a spare deployment of one carries nothing of the other."""
    problem = fleet([1.0, 1.0], [[1.0, 0.0], [0.0, 1.0]], [2.0, 2.0], p1={"machine": "m0"}, reserve={"lost": 1})
    assert solved(problem).total_usd_per_hour == pytest.approx(2 * (2 + 2))


@pytest.mark.parametrize("seed", range(10))
def test_reserves_over_measured_points_are_those_of_enumeration(seed):
    """Every vector of counts, pools by point, losses by the binomial: nothing of the tables is read."""
    g = np.random.default_rng(100 + seed)
    rates, throughput = g.uniform(0.3, 1.8, 2), g.uniform(0.6, 2.5, (2, 3))
    usd, spot = g.uniform(1, 4, 3).round(2), np.array([True, True, bool(seed % 3)])
    rho, full = float(g.choice([1.0, 0.8])), float(g.choice([1.0, 0.6]))
    lost = int(g.integers(1, 4)) if seed % 2 else None
    reserve = {"load_after_loss": full} | ({"lost": lost} if lost else {"survive_probability": 0.97, "pools": 2})
    markets = [{"market": "spot" if on else "on_demand"} for on in spot]
    problem = fleet(
        rates.tolist(), throughput.tolist(), usd.tolist(), max_load=rho, reserve=reserve,
        p0=markets[0], p1=markets[1], p2=markets[2] | {"machine": "m0"},
        interruptions=[{"per_hour": 0.4, "recovery_s": 900}],
    )  # fmt: skip
    away = 1 - 1 / (1 + 0.4 * 900 / 3600)
    best = np.inf
    for n in itertools.product(range(8), repeat=3):
        room = np.array(n, dtype=float)
        protected = np.array(n) > 0 if lost else (np.array(n) > 0) & spot
        if not lost and protected.sum() > 2:
            continue
        for k in np.flatnonzero(protected):
            spare = lost or next(s for s in range(n[k] + 1) if binom.sf(s, n[k], away) <= 0.03 / 2)
            room[k] = min(room[k], max(full * (n[k] - spare) / rho, 0.0))
        if float(usd @ n) >= best:
            continue
        load = rates[:, None] / throughput / rho
        A_ub = np.zeros((3, 6))
        for k in range(3):
            A_ub[k, [k, 3 + k]] = load[:, k]
        A_eq = np.kron(np.eye(2), np.ones(3))
        if linprog(np.zeros(6), A_ub=A_ub, b_ub=room, A_eq=A_eq, b_eq=[1, 1], bounds=(0, 1)).status == 0:
            best = float(usd @ n)
    assert solved(problem).total_usd_per_hour == pytest.approx(best)


def test_points_of_one_pool_share_spares_though_nothing_else():
    """Two workloads on points of their own, one machine set and model: one spare deployment does for both."""
    problem = fleet([0.4, 0.4], [[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0], reserve={"lost": 1})
    tables = build_tables(problem)
    assert exact(problem, tables, Options()).plan.total_usd_per_hour == pytest.approx(4.0)
    together = replace(tables, points=replace(tables.points, pool=np.array([0, 0])))
    outcome = exact(problem, together, Options())
    assert "parts" not in outcome.log
    assert (outcome.status, outcome.plan.total_usd_per_hour) == ("optimal", pytest.approx(2.0))


# ------------------------------------------------------------------------------------------------- machines kept idle


def test_machines_may_idle_so_that_none_is_started():
    """By day one point takes three of the machines that others use one by one at night; starting one costs 50 USD."""
    problem = fleet(
        [3.0, 3.0], [[3.0, 0.0], [0.0, 1.0]], [3.0, 1.0], p0={"count": 3}, p1={"machine": "m0"},
        periods=[{"name": "night", "hours": 12, "rate_factors": {"w0": 0.0, "w1": 1 / 3}},
                 {"name": "day", "hours": 12, "rate_factors": {"w1": 0.0}}],
        change={"start_usd": 50.0},
    )  # fmt: skip
    plan = solved(problem)
    assert plan.total_usd_per_hour == pytest.approx(3.0)
    assert [sum(d.count for d in q.deployments) for q in plan.periods] == [3, 1]


def test_a_pool_under_the_reserve_may_idle_too():
    problem = fleet(
        [4.0], [[1.0]], [1.0], reserve={"lost": 1}, change={"start_usd": 50.0},
        periods=[{"name": "night", "hours": 12, "rate_factor": 0.1}, {"name": "day", "hours": 12}],
    )  # fmt: skip
    assert solved(problem).total_usd_per_hour == pytest.approx(5.0)


# ------------------------------------------------------------------------------------------ nothing has to be served


def test_serving_nothing_is_a_plan_where_nothing_can_be_served():
    refused = {"name": "w0", "buckets": [{"name": "b", "requests_per_s": 1.0}], "unserved_usd_per_1000_requests": 0.1}
    problem = fleet([1.0], [[0.0]], [1.0], w0=refused)
    assert solved(problem).total_usd_per_hour == pytest.approx(0.36)
    served = fleet([1.0], [[0.0]], [1.0], objective="max_served")
    outcome = exact(served, build_tables(served), Options())
    assert (outcome.status, outcome.plan.first_priority_served_per_s) == ("optimal", 0.0)
    ratio = fleet([1.0], [[0.0]], [1.0], objective="max_ce")
    outcome = exact(ratio, build_tables(ratio), Options())
    assert (outcome.status, outcome.plan.tokens_per_usd, outcome.bound) == ("optimal", 0.0, 0.0)


def test_a_quota_of_what_nothing_takes_has_no_shadow_price():
    plan = solved(fleet([1.0], [[2.0]], [1.0], quota=[{"machine": "nothing", "at_most": 0}]))
    assert plan.shadow_prices == []


# ------------------------------------------------------------------------------------------------- never less than one


def many(rng, demands=12, points=9):
    """Half of every demand may be on spot, where the cheap points are."""
    spot = {f"p{k}": {"market": "spot"} for k in range(points) if k % 3}
    return fleet(
        rng.uniform(0.01, 0.3, demands).tolist(), rng.uniform(0.5, 4.0, (demands, points)).tolist(),
        [float(rng.uniform(0.5, 1.0) if k % 3 else rng.uniform(1.0, 3.0)) for k in range(points)],
        **spot, **{f"w{i}": {"spot_share_max": 0.5} for i in range(demands)},
        stock=[{"machine": "*", "at_most": 9}],
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_columns_are_generated_with_the_same_result(seed, monkeypatch):
    problem = many(np.random.default_rng(seed))
    plain = solved(problem)
    monkeypatch.setattr(method, "MANY_PAIRS", 0)
    assert solved(problem).total_usd_per_hour == pytest.approx(plain.total_usd_per_hour)


def test_what_columns_do_not_find_the_whole_model_does(monkeypatch):
    problem = many(np.random.default_rng(5))
    plain = solved(problem)
    monkeypatch.setattr(method, "MANY_PAIRS", 0)
    monkeypatch.setattr(method, "_restricted_milp", _finds_nothing)
    outcome = exact(problem, build_tables(problem), Options())
    assert outcome.log["column_generation"] == "no plan on few points: solved on all"
    assert outcome.plan.total_usd_per_hour == pytest.approx(plain.total_usd_per_hour)


def _finds_nothing(problem, tables, settings, start):
    solved_ = method._solve(problem, tables, settings, start)
    return solved_.report, None, solved_.seconds, solved_.compiled.size


@pytest.mark.parametrize("goal", ["min_cost", "max_served", "max_ce"])
@pytest.mark.parametrize("seed", range(2))
def test_out_of_time_exact_has_the_best_plan_of_the_heuristics(goal, seed, monkeypatch):
    """Where the time for the model ends before it has a plan; the log says whose the plan is."""
    limits = {} if goal == "min_cost" else {"budget_usd_per_hour": 6.0, "objective": goal}
    problem = many(np.random.default_rng(seed)).model_copy(update=limits)
    tables = build_tables(problem)
    monkeypatch.setattr(method, "_solve", _out_of_time)
    outcome = exact(problem, tables, Options())
    plans = [p for m in heuristics.METHODS.values() if (p := m(problem, tables, Options()).plan) is not None]
    assert plans
    sign = 1 if goal == "min_cost" else -1
    assert sign * objective_value(outcome.plan) <= min(sign * objective_value(p) for p in plans) + 1e-9
    assert (outcome.status, outcome.limit) == ("feasible", "time")
    if goal == "min_cost":  # the linear relaxation bounds it all the same
        assert 0 < outcome.bound <= outcome.plan.total_usd_per_hour
    if goal == "max_served":
        assert outcome.log["plan_by"] in heuristics.METHODS


def _out_of_time(problem, tables, settings, start, ratio=0.0):
    found = SOLVE(problem, tables, settings, start, ratio)
    report = replace(found.report, status="no_solution_found", limit="time", x=None, objective=None, bound=None)
    return replace(found, report=report)


def test_a_part_without_a_plan_costs_no_bound(monkeypatch):
    """Of two models that share nothing the second has no plan in time: its bound counts, and a heuristic's fleet."""
    problem = fleet([2.5, 1.5], [[1.0, 0.0], [0.0, 1.0]], [1.0, 3.0])
    each, tables = method._one_part, build_tables(problem)

    def late(problem, part, *rest, **options):
        found = each(problem, part, *rest, **options)
        out = replace(found, plan=None, status="no_solution_found", limit="time")
        return out if part.demands[0].workload == "w1" else found

    monkeypatch.setattr(method, "_one_part", late)
    found = exact(problem, tables, Options(answer_only=True))
    assert found.plan.total_usd_per_hour == pytest.approx(3 * 1.0 + 2 * 3.0)
    assert found.bound == pytest.approx(3 * 1.0 + 2 * 3.0)
    assert found.log["parts"] == 2


# ---------------------------------------------------------------------------------------------- a hair too many


@pytest.mark.parametrize("hair", [1e-10, 3e-9, 3e-8, 9e-8, 3e-7])
@pytest.mark.parametrize("count", [1, 3, 25])
def test_no_heuristic_has_a_plan_a_hair_short_that_is_better_than_the_bound(count, hair):
    """Demand of `count` deployments and a hair: by heuristics' 1e-7 enough, by the exact models' 1e-9 one too few."""
    rate = 2.0 * count * (1 + hair)
    problem = fleet([rate / 3, 2 * rate / 3], [[2.0], [2.0]], [1.0])
    tables = build_tables(problem)
    proved = exact(problem, tables, Options())
    assert proved.status == "optimal"
    if count * hair > 2e-8:
        assert proved.plan.total_usd_per_hour == count + 1
    plans = {name: m(problem, tables, Options()).plan for name, m in heuristics.METHODS.items()}
    made = {name: plan.total_usd_per_hour for name, plan in plans.items() if plan is not None}
    assert {"greedy", "greedy_dp", "lp_rounding"} <= made.keys()
    assert min(made.values()) >= proved.bound * (1 - 1e-6), made


@pytest.mark.parametrize("rate", [4e-10, 8e-9, 1e-6])
@pytest.mark.parametrize("reserve", [{"lost": 1}, {"lost": 1, "load_after_loss": 0.5}])
def test_a_load_however_small_outlives_the_losses_of_the_reserve(rate, reserve):
    problem = fleet([rate], [[1.0]], [1.0], reserve=reserve)
    tables = build_tables(problem)
    assert solved(problem).total_usd_per_hour == 2.0
    made = {}
    for name, m in heuristics.METHODS.items() | {("melange", melange)}:
        try:
            plan = m(problem, tables, Options()).plan
        except InputError:  # numbers too far apart for a solver
            continue
        if plan is not None:
            assert check(problem, plan.model_dump(mode="json")).ok, name
            made[name] = plan.total_usd_per_hour
    assert {"greedy", "greedy_dp", "lp_rounding"} <= made.keys() and set(made.values()) == {2.0}
