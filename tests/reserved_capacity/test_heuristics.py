"""Heuristics: every plan checks out, none beats the optimum, the baselines are what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reserved import machine, random_instance, service, two_regions

import optmodels
from formulations.reserved_capacity.dispatch import dispatch
from formulations.reserved_capacity.methods import full, heuristics
from formulations.reserved_capacity.methods.heuristics import METHODS, k_medoids
from optmodels import formulation
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.loading import load

FORM = formulation.get("reserved_capacity")


def run(document, name):
    problem = load(document)
    return problem, FORM.method(name)(problem, FORM.tables(problem), Options())


@pytest.mark.parametrize(
    ("name", "machines"), [("region_local", 20), ("proportional", 12), ("greedy", 12), ("lp_rounding", 12)]
)
def test_by_hand(name, machines):
    problem, found = run(two_regions(), name)
    assert sum(r.count for r in found.plan.reservations) == machines
    assert FORM.check(problem, found.plan.model_dump(mode="json")).ok


def test_where_nothing_is_forwarded_the_share_is_no_negative_zero():
    """Six demands whose sum depends on the order: 1 − what stays/all is −2.2e-16."""
    names, per_hour = "abcdef", (13102.3, 6125.9, 1778.5, 1314.0, 16452.1, 18342.4)
    demand = {name: [rate] for name, rate in zip(names, per_hour, strict=True)}
    far = {a: {b: 100.0 for b in names if b > a} for a in names[:-1]}
    document = two_regions(
        regions=[{"region": name} for name in names], network={"rtt_ms": far},
        services=service(demand={"kind": "inline", "unit": "requests_per_hour", "by_region": demand}),
    )  # fmt: skip
    plan = run(document, "region_local")[1].plan
    assert plan.forwarded_share == 0.0
    assert ", 0.0% forwarded" in plan.headline()


def test_a_model_too_large_to_write_out_is_not_solved(monkeypatch):
    monkeypatch.setattr(full, "MOST_FLOWS", 7)  # of 8
    _, found = run(two_regions(), "full")
    assert (found.status, found.bound, found.plan) == ("no_solution_found", None, None)
    assert found.log["reason"] == "8 flow variables, solved are up to 7; exact needs none"


def test_repair_adds_nothing_where_it_is_lost():
    """Machines in the lost region cannot help: greedy once added them there for ever."""
    three = {"west": [10.0, 2.0], "east": [2.0, 10.0], "south": [1.0, 1.0]}
    document = two_regions(
        regions=[{"region": n, "utc_offset_h": 0} for n in three], resilience={"lose_any_region_keep": 0.8},
        network={"rtt_ms": {a: dict.fromkeys(three, 100.0) for a in three}},
    )  # fmt: skip
    document["services"][0]["demand"]["by_region"] = three
    for name in ("greedy", "lp_rounding"):
        problem, found = run(document, name)
        assert FORM.check(problem, found.plan.model_dump(mode="json")).ok
        assert sum(r.count for r in found.plan.reservations) <= 26


def test_global_peak_is_one_pool():
    _, found = run(two_regions(), "global_peak")
    assert [r.count for r in found.plan.reservations] == [12]


def test_autoscaling_pays_the_mean():
    _, found = run(two_regions(terms=["reserved_3y", "on_demand"]), "on_demand")
    assert found.plan.cost.total_usd_per_month == pytest.approx(12 * 3 * 730)
    assert not found.plan.reservations


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_none_beats_the_optimum(seed):
    try:
        document = random_instance(seed)
        problem = load(document)
    except InputError:
        assume(False)
    tables = FORM.tables(problem)
    best = FORM.method("exact")(problem, tables, Options(time_limit=5.0, gap=1e-3))
    for name in METHODS:
        found = FORM.method(name)(problem, tables, Options(time_limit=5.0))
        if found.plan is None:
            assert found.log["reason"]
            continue
        verdict = FORM.check(problem, found.plan.model_dump(mode="json"))
        assert verdict.ok, (name, verdict.violations)
        assert best.status != "infeasible"
        if best.bound is not None:
            assert found.plan.cost.total_usd_per_month >= best.bound * (1 - 1e-6)


def test_k_medoids_finds_the_clusters():
    rng = np.random.default_rng(1)
    points = np.concatenate([c + 0.1 * rng.standard_normal((10, 2)) for c in ([0, 0], [5, 5], [9, 0])])
    medoids, size = k_medoids(points, 3)
    assert sorted(m // 10 for m in medoids) == [0, 1, 2]
    assert sorted(size) == [10, 10, 10]


@pytest.mark.parametrize("name", [m for m in METHODS if m != "on_demand"])
def test_a_minimum_that_is_no_multiple_of_the_step_is_rounded_up(name):
    document = two_regions(machines=machine(minimum=9, step=2))
    problem, found = run(document, name)
    assert FORM.check(problem, found.plan.model_dump(mode="json")).ok
    assert min(r.count for r in found.plan.reservations) >= 10


def forwarding_costs():
    """Four regions a day with a locality loss, steps and few hourly machines: no proof in a hundredth of a second."""
    names = ("a", "b", "c", "d")
    rng = np.random.default_rng(4)
    demand = {n: rng.uniform(1, 30, 24).round(1).tolist() for n in names}
    return two_regions(
        regions=[{"region": n} for n in names],
        network={"rtt_ms": {n: dict.fromkeys(names, 20.0) for n in names}},
        services=[two_regions()["services"][0] | {
            "kappa": 1.2, "demand": {"kind": "inline", "unit": "requests_per_s", "by_region": demand}}],
        machines=machine(prices={"on_demand": 2.5, "reserved_3y": 1.0}, minimum=3, step=2, on_demand_available=9),
        terms=["reserved_3y", "on_demand"], resilience={"lose_any_region_keep": 0.5},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["exact", "full"])
def test_stopped_at_once_no_exact_method_has_less_than_the_best_heuristic(name):
    problem = load(forwarding_costs())
    tables = FORM.tables(problem)
    plans = [METHODS[each](problem, tables, Options()).plan for each in METHODS]
    best = min(p.cost.total_usd_per_month for p in plans if p is not None)
    found = FORM.method(name)(problem, tables, Options(time_limit=0.01))
    assert found.plan is not None and FORM.check(problem, found.plan.model_dump(mode="json")).ok
    assert found.plan.cost.total_usd_per_month <= best * (1 + 1e-9)
    assert found.bound is None or found.bound <= best


def test_a_dispatch_out_of_time_serves_every_row_all_the_same():
    t = FORM.tables(load(forwarding_costs()))
    held = np.full((len(t.sink_region), 1), 18.0)
    best, hurried = dispatch(t, held), dispatch(t, held, until=0.0)
    assert best.short(t) == hurried.short(t) == 0
    assert best.total_usd_per_month(t) <= hurried.total_usd_per_month(t) <= 1.5 * best.total_usd_per_month(t)
    served = (t.demand - hurried.unserved).T @ t.weight
    assert hurried.flow.sum(axis=1) == pytest.approx(served)
    used = (hurried.flow * t.work).sum(axis=0)
    assert used == pytest.approx(hurried.used.T @ t.weight)
    have = held.T.repeat(len(t.demand), axis=0)
    np.add.at(have.T, t.option_sink, hurried.bought.T)
    assert (hurried.used <= have + 1e-9).all()


def test_exact_has_a_plan_however_short_its_limit(monkeypatch):
    """Over 32 regions, with a loss to survive, and with heuristics that get nothing past the limit."""
    monkeypatch.setattr(heuristics, "GRACE", 0.0)
    problem = load(Path(__file__).parents[2] / "instances/reserved_capacity/week-32-aws.yaml")
    tables = FORM.tables(problem)
    found = FORM.method("exact")(problem, tables, Options(time_limit=0.01))
    assert found.plan is not None
    assert FORM.check(problem, found.plan.model_dump(mode="json")).ok


@pytest.mark.parametrize("hair", [1e-10, 3e-9, 3e-8, 9e-8, 9e-7])
@pytest.mark.parametrize("kappa", [1.0, 1.2])
def test_no_plan_a_hair_short_is_better_than_a_bound(kappa, hair):
    """Peaks of whole machines and a hair: what one method calls enough is enough to every bound."""
    peak, third = 3 * (1 + hair), 1 + hair
    chat = service(kappa=kappa, demand={"kind": "inline", "unit": "requests_per_s",
                                        "by_region": {"west": [peak, third], "east": [2 * third, peak]}})  # fmt: skip
    document = two_regions(services=chat)
    problem = load(document)
    plans = {name: optmodels.solve(problem, name, time_limit=20, out_of_sample=False) for name in FORM.methods}
    bounds = {name: r.bound for name, r in plans.items() if r.bound is not None}
    assert bounds.keys() >= {"exact", "full"} and all(plans[name].status == "optimal" for name in bounds)
    for name, r in plans.items():
        assert r.objective is None or (r.check.ok and r.objective >= max(bounds.values()) * (1 - 1e-6)), (name, bounds)
