"""The independent check refuses what is wrong with a plan."""

from __future__ import annotations

import copy

import pytest
from reserved import service, two_regions

from formulations.reserved_capacity.check import check
from optmodels import api
from optmodels.loading import load


def plan_of(document):
    return api.solve(document).plan


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
