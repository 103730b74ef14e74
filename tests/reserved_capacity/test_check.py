"""The independent check refuses what is wrong with a plan."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from reserved import service, two_regions

import optmodels
from formulations.reserved_capacity.check import _Network, check
from optmodels.loading import load


def plan_of(document):
    return optmodels.solve(document).plan


def first_violation(document, plan):
    verdict = check(load(document), plan)
    assert not verdict.ok
    return verdict.violations[0].requirement


def one_less(plan, line):
    """A machine of 1 USD/h less, for three years."""
    line["count"] -= 1
    plan["cost"]["committed_usd"] -= 36 * 730.0
    for key in ("reserved_usd_per_month", "total_usd_per_month"):
        plan["cost"][key] -= 730.0


def test_one_machine_too_few():
    document = two_regions()
    plan = copy.deepcopy(plan_of(document))
    line = plan["reservations"][0]
    one_less(plan, line)
    assert "demand is served in hour" in first_violation(document, plan)


@pytest.mark.parametrize("extra", [{"kappa": 1.2}, {"forwarding_ceiling": 0.5}])
def test_one_machine_too_few_by_linear_program_and_ceiling(extra):
    document = two_regions(services=service(**extra))
    plan = copy.deepcopy(plan_of(document))
    total = sum(r["count"] for r in plan["reservations"])
    while total:
        line = max(plan["reservations"], key=lambda r: r["count"])
        one_less(plan, line)
        total -= 1
        assert "demand is served in hour" in first_violation(document, plan)
        break


def test_plan_that_does_not_survive_a_loss():
    plan = plan_of(two_regions())
    assert "after the loss of" in first_violation(two_regions(resilience={"lose_any_region_keep": 0.9}), plan)


def test_plan_that_does_not_hold_in_the_worst_case():
    plan = plan_of(two_regions())
    document = two_regions(uncertainty={"worst_case": {"deviation": 0.2, "regions": 1}})
    assert "20% higher" in first_violation(document, plan)


@pytest.mark.parametrize(
    ("change", "requirement"),
    [
        (lambda p: p["cost"].update(total_usd_per_month=1.0), "objective"),
        (lambda p: p["reservations"][0].update(usd_per_hour_each=0.5), "price of box"),
        (lambda p: p["reservations"][0].update(region="nowhere"), "reservation of a machine"),
        (lambda p: p["purchases"].update(hour=[0]), "columns of one length"),
        (lambda p: p.update(forwarded_share=0.9), "forwarded share"),
        (lambda p: p.pop("cost"), "plan is well-formed"),
        (lambda p: p["flows"][0].update(egress_usd_per_month=5.0), "cost of egress"),
    ],
)
def test_false_statements(change, requirement):
    plan = copy.deepcopy(plan_of(two_regions()))
    change(plan)
    assert requirement in first_violation(two_regions(), plan)


def test_more_than_is_offered():
    from reserved import machine

    plan = plan_of(two_regions())
    assert "reserved box" in first_violation(two_regions(machines=machine(reservable=3)), plan)


def test_purchases_beyond_the_terms():
    plan = plan_of(two_regions(terms=["reserved_3y", "on_demand"]))
    if plan["purchases"]["hour"]:
        assert first_violation(two_regions(), plan) == "term"


def egress():
    """Forwarding costs 0.05 or 0.09 USD/GB, and still pays."""
    document = two_regions(services=service(request_kb=5.0, answer_kb=80.0, unserved_usd_per_request=0.5))
    document["network"]["egress"] = {"usd_per_gb": {"west": 0.05, "east": 0.09}}
    return document


def forwarded(plan):
    return [line for line in plan["flows"] if line["origin"] != line["server"]]


def total_again(plan):
    """Everything that is added up, made to fit a lie in its parts."""
    cost, flows = plan["cost"], plan["flows"]
    cost["egress_usd_per_month"] = sum(line["egress_usd_per_month"] for line in flows)
    parts = [v for k, v in cost.items() if k.endswith("_usd_per_month") and k != "total_usd_per_month"]
    cost["total_usd_per_month"] = sum(parts)
    moved = sum(line["mean_requests_per_s"] for line in forwarded(plan))
    plan["forwarded_share"] = moved / sum(line["mean_requests_per_s"] for line in flows)


def served_at_home(plan):
    """Flows are said to stay at home, where there are too few machines, and cost nothing."""
    for line in forwarded(plan):
        home = next(x for x in plan["flows"] if x["origin"] == x["server"] == line["origin"])
        home["mean_requests_per_s"] += line["mean_requests_per_s"]
        home["peak_requests_per_s"] += line["peak_requests_per_s"]
    plan["flows"] = [line for line in plan["flows"] if line["origin"] == line["server"]]


def free_of_charge(plan):
    for line in plan["flows"]:
        line["egress_usd_per_month"] = 0.0


def longer_way(plan):
    forwarded(plan)[0]["rtt_ms"] = 1.0


def paid_for_what_is_given_up(plan):
    plan["unserved"] = {"scenario": [0], "quarter": [0], "hour": [0], "region": ["west"], "service": ["chat"],
                        "requests_per_s": [-1.0]}  # fmt: skip
    plan["cost"]["unserved_usd_per_month"] = -0.5 * 0.5 * 3600 * 730


def counted_from_the_end(plan):
    plan["purchases"] = {"scenario": [-1], "quarter": [-1], "hour": [-1], "region": ["west"], "machine": ["box"],
                         "market": ["on_demand"], "machines": [0.0]}  # fmt: skip


def twice(plan):
    plan["flows"].append(dict(plan["flows"][0], mean_requests_per_s=0.0, egress_usd_per_month=0.0))


@pytest.mark.parametrize(
    ("lie", "named"),
    [
        (served_at_home, "mean from"), (free_of_charge, "egress from"), (longer_way, "round trip"),
        (paid_for_what_is_given_up, "well-formed"), (counted_from_the_end, "well-formed"), (twice, "once"),
    ],
)  # fmt: skip
def test_lies_that_add_up_are_found(lie, named):
    document = egress()
    plan = copy.deepcopy(plan_of(document))
    assert forwarded(plan)
    assert check(load(document), plan).ok
    lie(plan)
    total_again(plan)
    assert named in first_violation(document, plan)


def test_flows_to_a_region_out_of_reach_are_found():
    near = two_regions(services=service(slo={"ttft_s": 0.15}))  # 100 ms of round trip and 100 of prefill are too long
    plan = plan_of(two_regions())
    found = [v.requirement for v in check(load(near), plan).violations]
    assert any(v.endswith("within residency and SLO") for v in found), found


def test_rates_so_high_that_a_machine_is_a_billionth_of_a_request():
    """HiGHS drops coefficients below 1e-9: the program of an hour counts flows in shares of their demand."""
    rate = 1e10
    demand = {"kind": "inline", "unit": "requests_per_s", "by_region": {"west": [8 * rate], "east": [1 * rate]}}
    document = two_regions(
        services=service(demand=demand, kappa=1.2),
        machines=[{"machine": "box", "prices": {"on_demand": 3.0, "reserved_3y": 1.0},
                   "serves": {"chat": {"requests_per_s": rate, "prefill_s": 0.1}}}],
    )  # fmt: skip
    problem = load(document)
    net = _Network(problem, problem.resolve())
    demands = problem.resolve().demand_rps
    enough, short = np.array([[[8.0], [1.0]]]), np.array([[[5.0], [1.0]]])
    assert net.short(demands, enough)[0] <= 1e-6 * rate
    assert net.short(demands, short)[0] == pytest.approx(3 * rate)


def test_rounding_of_shares_is_no_fault():
    plan = copy.deepcopy(plan_of(egress()))
    plan["forwarded_share"] -= 1e-9
    assert check(load(egress()), plan).ok
    plan["flows"] = [line for line in plan["flows"] if line["origin"] == line["server"]]
    plan["forwarded_share"] = -2e-16  # 1 − trace/sum where nothing is forwarded
    assert "well-formed" not in first_violation(egress(), plan)
