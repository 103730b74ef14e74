"""Workloads without requests: their replicas are bought, their priority does not count, no stated limit is violated."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml
from fleet_cases import MEASURED

import optmodels
from formulations.fleet import FORMULATION
from formulations.fleet.check import check

REPORTED = Path(__file__).resolve().parents[1] / "reported" / "fleet"


def stated(result, name):
    (line,) = (x for x in result.plan["periods"][0]["limits"] if x["name"] == name)
    return line["value"]


@pytest.mark.parametrize(
    ("case", "usd_per_hour", "workload", "replicas"),
    [
        ("cont-9030", 3 * 4.07, "w0", 3),  # three of the only machine, which loads the model of both workloads
        ("replicas-zero-binds", 6.64, "w0", 1),
        ("measured-9218", 9 * 0.01808 + 5 * 1.194, "w1", 5),  # 9 decode and 5 prefill deployments of M0
    ],
)
def test_replicas_are_bought_whether_requests_arrive_or_not(case, usd_per_hour, workload, replicas):
    result = optmodels.solve(REPORTED / f"fleet-{case}.yaml")
    assert (result.status, result.exit_status) == ("optimal", 0)
    assert result.plan["total_usd_per_hour"] == pytest.approx(usd_per_hour)
    assert stated(result, f"replicas for {workload}") == replicas


@pytest.mark.parametrize("case", ["measured-9113", "measured-9163"])
def test_replicas_that_no_deployment_can_be_are_infeasible(case):
    result = optmodels.solve(REPORTED / f"fleet-{case}.yaml")
    assert (result.status, result.exit_status) == ("infeasible", 3)
    assert "no point can serve it" in result.log["reason"]


@pytest.mark.parametrize("method", ["greedy", "greedy_dp", "lp_rounding", "single_type", "column_pruning"])
def test_heuristics_buy_them_too(method):
    result = optmodels.solve(REPORTED / "fleet-cont-9030.yaml", method)
    assert result.exit_status == 0 and stated(result, "replicas for w0") == 3


def two_points(**changes):
    return MEASURED | {
        "workloads": [
            {"name": "warm", "min_replicas": 2, "priority": 1, "buckets": [{"name": "b", "requests_per_s": 0.0}]},
            {"name": "busy", "priority": 3, "buckets": [{"name": "b", "requests_per_s": 1.5}]},
        ],
        "points": [
            {"name": "both", "usd_per_hour": 3.0, "requests_per_s": {"warm/b": 1.0, "busy/b": 1.0}},
            {"name": "busy only", "usd_per_hour": 1.0, "requests_per_s": {"busy/b": 1.0}},
            {"name": "warm only", "usd_per_hour": 1.5, "requests_per_s": {"warm/b": 1.0}},
        ],
    } | changes  # fmt: skip


@pytest.mark.parametrize(("replicas", "usd_per_hour"), [(0, 2.0), (1, 3.5), (2, 5.0), (3, 6.5)])
def test_the_cheapest_way_to_have_them(replicas, usd_per_hour):
    """Two of "busy only" serve the requests; each replica adds the cheaper of "warm only" and a swap to "both"."""
    instance = two_points()
    instance["workloads"][0]["min_replicas"] = replicas
    assert optmodels.solve(instance).objective == pytest.approx(usd_per_hour)


def test_explain_and_rebind_know_a_workload_that_the_tables_left_out():
    instance = two_points()
    instance["workloads"][0]["min_replicas"] = 0
    tables = FORMULATION.tables(optmodels.load(instance))
    assert FORMULATION.rebind(tables, optmodels.load(two_points())) is None
    assert FORMULATION.rebind(FORMULATION.tables(optmodels.load(two_points())), optmodels.load(instance)) is not None


@pytest.mark.parametrize("objective", ["min_cost", "max_ce", "max_served"])
def test_the_first_priority_is_that_of_workloads_with_requests(objective):
    limits = {"objective": objective, "budget_usd_per_hour": 10.0}
    result = optmodels.solve(two_points(**limits))
    assert (result.status, result.exit_status) == ("optimal", 0)
    assert result.plan["first_priority_served_per_s"] == pytest.approx(1.5)


def test_a_plan_that_states_a_violated_limit_does_not_pass():
    """As it was written before replicas without requests were bought: 0 ≥ 2 "binds"."""
    result = optmodels.solve(two_points())
    problem, plan = optmodels.load(two_points()), copy.deepcopy(result.plan)
    assert check(problem, plan).ok
    period = plan["periods"][0]
    period["deployments"] = [d for d in period["deployments"] if d["serves"]]
    next(x for x in period["limits"] if x["name"] == "replicas for warm")["value"] = 0.0
    found = [v.requirement for v in check(problem, plan).violations]
    assert any("replicas for warm: kept" in x for x in found), found


def test_evaluate_leaves_it_out():
    instance = yaml.safe_load((REPORTED / "fleet-replicas-zero-binds.yaml").read_text(encoding="utf-8"))
    current = {"schema": 1, "deployments": [{"workloads": ["w0", "w1"], "machine": "m0", "replicas": 1, "machines": 2}]}
    assert optmodels.evaluate(current, problem=instance)["report"]["usd_per_hour"] == pytest.approx(2 * 6.64)


@pytest.mark.parametrize("objective", ["min_cost", "max_ce", "max_served"])
@pytest.mark.parametrize(
    "limit", [{"budget_usd_per_hour": 0.5}, {"quota": [{"machine": "*", "at_most": 0}]},
              {"stock": [{"machine": "p", "at_most": 0}]}, {"points": [("p", 0.0)]}],
)  # fmt: skip
def test_nothing_that_can_run_and_nothing_that_has_to_be_served_is_an_empty_plan(objective, limit):
    instance = MEASURED | {
        "objective": objective,
        "workloads": [{"name": "w", "serve_at_least": 0, "buckets": [{"name": "b", "requests_per_s": 1.0}]}],
    }
    served = dict(limit.get("points", [("p", 2.0)]))
    points = [{"name": k, "usd_per_hour": 1.0, "requests_per_s": {"w/b": v}} for k, v in served.items()]
    result = optmodels.solve(instance | limit | {"points": points})
    assert (result.status, result.objective, result.bound, result.exit_status) == ("optimal", 0.0, 0.0, 0)
    assert not result.plan["periods"][0]["deployments"]
