"""Heuristics return only plans that hold, none beats the bound, and each does what its name says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fleet_cases import fleet, random_fleet

from formulations.fleet import FORMULATION
from formulations.fleet.check import check
from formulations.fleet.plan import objective_value
from formulations.fleet.points import build_tables
from optmodels.formulation import Options
from optmodels.loading import load

ROOT = Path(__file__).parents[2]


def run(problem, *names):
    tables = build_tables(problem)
    return [FORMULATION.methods[n](problem, tables, Options()) for n in names]


@pytest.mark.parametrize("goal", ["min_cost", "max_served", "max_ce"])
@pytest.mark.parametrize("seed", range(4))
def test_every_method_is_checked_and_within_the_bound(goal, seed):
    rng = np.random.default_rng(seed)
    limits = {"stock": [{"machine": "m1", "at_most": 3}], "w1": {"spot_share_max": 0.6}, "p0": {"market": "spot"}}
    if goal != "min_cost":
        limits["budget_usd_per_hour"] = 6.0
    problem = random_fleet(rng, 5, 5, objective=goal, **limits)
    exact, *others = run(problem, *FORMULATION.methods)
    found = 0
    for outcome in others:
        if outcome.plan is None:
            assert outcome.log["reason"]
            continue
        found += 1
        verdict = check(problem, outcome.plan.model_dump(mode="json"))
        assert verdict.ok, verdict.violations
        assert outcome.bound is None
        value, best = objective_value(outcome.plan), exact.bound
        assert value >= best * (1 - 1e-6) if goal == "min_cost" else value <= best * (1 + 1e-6)
    assert found >= (2 if exact.plan is not None else 0)


def bought(outcome):
    """Deployments by point."""
    return {d.name: d.count for d in outcome.plan.periods[0].deployments}


def test_greedy_takes_the_cheapest_tokens():
    """USD 0.75 a request/s on p1, 1 on p0; less than a full p1 goes where whole deployments cost least."""
    for rate, counts in ((8.0, {"p1": 2}), (9.0, {"p0": 1, "p1": 2}), (1.5, {"p0": 2})):
        (outcome,) = run(fleet([rate], [[1.0, 4.0]], [1.0, 3.0]), "greedy")
        assert bought(outcome) == counts


def test_greedy_fills_open_deployments_before_it_buys_others():
    """w1's tokens cost least on p1, which would be a second machine; a quarter of p0, open for w0, carries w1."""
    (outcome,) = run(fleet([3.0, 0.5], [[4.0, 1.0], [2.0, 4.0]], [2.0, 1.5]), "greedy")
    assert bought(outcome) == {"p0": 1}


def test_greedy_never_costs_more_than_each_bucket_by_itself():
    """Three p0 seem best for each of four buckets by itself; one p1 carries 1.125 of them: Mélange's example."""
    problem = fleet([6.0, 3.0, 15.0, 6.0], [[2.0, 20.0], [1.0, 20.0], [5.0, 40.0], [2.0, 20.0]], [1.01, 3.67])
    (outcome,) = run(problem, "greedy")
    assert outcome.plan.total_usd_per_hour == pytest.approx(2 * 3.67)


def test_greedy_dp_splits_a_budget_between_models():
    """Two models, money for one: DP gives it to the one that serves more, whatever the order."""
    for throughput in ([[1.0, 0.0], [0.0, 5.0]], [[5.0, 0.0], [0.0, 1.0]]):
        problem = fleet([5.0, 5.0], throughput, [2.0, 2.0], objective="max_served", budget_usd_per_hour=2.0)
        (outcome,) = run(problem, "greedy_dp")
        assert outcome.plan.first_priority_served_per_s == pytest.approx(5.0)


def test_a_relaxation_that_rounds_up_above_the_stock_is_rounded_otherwise():
    """Half a machine for each of two buckets is one in stock; rounded up they are two. The second takes the other."""
    problem = fleet([0.5, 0.5], [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], [1.0, 1.0, 5.0], p1={"machine": "m0"},
                    stock=[{"machine": "m0", "at_most": 1}])  # fmt: skip
    (outcome,) = run(problem, "lp_rounding")
    assert sum(bought(outcome).values()) == 2 and bought(outcome)["p2"] == 1
    assert check(problem, outcome.plan.model_dump(mode="json")).ok


def test_full_deployments_of_a_relaxation_are_kept():
    """2.5 deployments of p0: two are full, and the rest costs least on p1, which rounding up would not see."""
    (outcome,) = run(fleet([5.0], [[2.0, 1.0]], [4.0, 3.0]), "lp_rounding")
    assert bought(outcome) == {"p0": 2, "p1": 1}


def test_single_type_is_one_type():
    (outcome,) = run(fleet([1.0, 1.0], [[1.0, 1.0], [2.0, 1.0]], [1.0, 5.0]), "single_type")
    assert {m.machine for d in outcome.plan.periods[0].deployments for m in d.machines} == {"m0"}
    (outcome,) = run(fleet([1.0, 1.0], [[1.0, 0.0], [0.0, 1.0]], [1.0, 5.0]), "single_type")
    assert outcome.plan is None


def test_single_type_shares_operating_points_of_its_machine():
    """Of three points of one machine each of the first two is best for a bucket; the third carries both."""
    problem = fleet([1.0, 1.0], [[4.0, 0.0, 3.0], [0.0, 4.0, 3.0]], [10.0] * 3, p1={"machine": "m0"},
                    p2={"machine": "m0"})  # fmt: skip
    (outcome,) = run(problem, "single_type")
    assert bought(outcome) == {"p2": 1}


def test_melange_refuses_limits_it_cannot_see():
    problem = fleet([3.0], [[1.0, 1.0]], [1.0, 2.0], stock=[{"machine": "m0", "at_most": 1}])
    (outcome,) = run(problem, "melange")
    assert outcome.plan is None
    assert "stock of m0" in outcome.log["reason"]


def test_reserve_and_replicas_are_kept_by_heuristics():
    problem = fleet([2.5], [[1.0]], [1.0], p0={"market": "spot"}, reserve={"lost": 1}, w0={"min_replicas": 5})
    (outcome,) = run(problem, "greedy")
    assert outcome.plan.periods[0].deployments[0].count == 5
    assert check(problem, outcome.plan.model_dump(mode="json")).ok


def test_a_demand_that_sleeps_beside_impossible_pairs_makes_no_nonsense():
    """0 requests/s times an infinite load: numpy would warn, which these tests take for an error."""
    periods = [{"name": "night", "hours": 6, "rate_factor": 0.0}, {"name": "day", "hours": 18}]
    problem = fleet([1.0, 2.0], [[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0], periods=periods)
    for outcome in run(problem, "greedy", "greedy_dp"):
        assert outcome.plan.total_usd_per_hour == pytest.approx(0.75 * 3)


def test_melange_refuses_a_reserve_it_cannot_see():
    (outcome,) = run(fleet([1.5], [[1.0]], [1.0], reserve={"lost": 1}), "melange")
    assert outcome.plan is None
    assert "reserve" in outcome.log["reason"]


def test_a_heuristic_that_would_buy_millions_says_so():
    problem = fleet([4.0, 4.0, 0.0], [[1.0, 6e-6], [1.0, 6e-6], [1.0, 1.0]], [1e9, 1e-3])
    (outcome,) = run(problem, "greedy")
    assert outcome.plan is None
    assert outcome.log["reason"] == "takes more than 1,000,000 deployments of a point"


def test_levels_of_one_engine_do_not_crowd_out_other_machines():
    """The three points with the cheapest tokens are levels of one engine; the optimum needs others."""
    problem = load(ROOT / "instances/fleet/stock-limited.yaml")
    exact, pruned = run(problem, "exact", "column_pruning")
    assert objective_value(pruned.plan) == pytest.approx(objective_value(exact.plan), rel=1e-9)
