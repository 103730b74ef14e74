"""The independent checker: accepts good plans of every family and catches every tampering, one field at a time."""

import copy

import pytest
from cases import instances, tables_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tampering import RUBBISH, leaves, other_values, replaced, value_at

from formulations.cost_efficiency.check import check
from formulations.cost_efficiency.methods.heuristics import enumerate_all
from optmodels.formulation import Options
from optmodels.latency.strategies import FAMILIES
from optmodels.loading import load

FREE = {"name", "measured"}  # labels; `measured` has its own test
REAL_TIME = {"kind": "real_time", "tps": 50.0, "ttft_s": 5.0, "tpot_s": 0.5}


def planned(tiny, family, **changes):
    """(problem, a good plan of the family as JSON data)."""
    document = tiny(
        strategies={"families": [family], "replicas": [1, 2], "multi_pass": [2, 4], "parallel": [2], "shared": [2]},
        workload={"batch": 8, "input_tokens": 512, "output_tokens": 64},
        budget_usd_per_hour=20.0,
    )
    for machine in document["pool"]["machines"]:
        machine["net_gbps"] = 100  # or the paper's variant saturates a shared AO machine
    document["slo"] = REAL_TIME if family != "multi_pass" else {"kind": "batch", "tps": 50.0}
    document |= changes
    problem, t = tables_of(document)
    plan = enumerate_all(problem, t, Options()).plan
    assert plan is not None
    return problem, plan.model_dump(mode="json")


@pytest.mark.parametrize("variant", ["paper", "roofline"])
@pytest.mark.parametrize("objective", ["capped", "uncapped"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_good_plan_passes(tiny, family, objective, variant):
    problem, plan = planned(tiny, family, objective=objective, latency={"variant": variant})
    report = check(problem, plan)
    assert report.ok, report.violations


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tampering_is_caught(tiny, family):
    problem, plan = planned(tiny, family)
    missed = set()
    for path in leaves(plan):
        if path[0] in FREE:
            continue
        for wrong in other_values(path, value_at(plan, path)):
            try:
                if check(problem, replaced(plan, path, wrong)).ok:
                    missed.add(".".join(map(str, path)))
            except Exception as error:
                missed.add(f"{'.'.join(map(str, path))} = {wrong!r} crashes: {error!r}")
    assert not missed, "\n" + "\n".join(sorted(missed))


@pytest.mark.parametrize("family", ["high_end", "multi_pass", "ao_shared"])
def test_rubbish_in_a_field_never_crashes_the_checker(tiny, family):
    problem, plan = planned(tiny, family)
    crashes = {}
    for path in [*leaves(plan), ("machines",), ("batch_split",), ("prediction",), ("limits",), ("ce_capped",)]:
        for bad in RUBBISH:
            try:
                check(problem, replaced(plan, path, bad))
            except Exception as error:
                crashes[".".join(map(str, path)), repr(bad)[:12]] = type(error).__name__
    assert not crashes, "\n" + "\n".join(map(str, crashes.items()))


@pytest.mark.parametrize("rubbish", [{}, {"formulation": "cost_efficiency"}, {"family": 3}])
def test_what_is_no_plan_is_not_well_formed(tiny, rubbish):
    report = check(load(tiny()), rubbish)
    assert not report.ok
    assert report.violations[0].requirement == "plan is well-formed"


def test_an_unknown_key_is_refused(tiny):
    problem, plan = planned(tiny, "high_end")
    assert not check(problem, plan | {"extra": 1}).ok


def test_a_machine_line_too_many_is_refused(tiny):
    problem, plan = planned(tiny, "high_end")
    assert not check(problem, plan | {"machines": plan["machines"] * 2}).ok
    problem, plan = planned(tiny, "ao")
    assert not check(problem, plan | {"machines": plan["machines"][:1]}).ok
    assert not check(problem, plan | {"machines": plan["machines"][1:]}).ok


def test_a_limit_left_out_or_invented_is_noticed(tiny):
    problem, plan = planned(tiny, "high_end")
    assert not check(problem, plan | {"limits": plan["limits"][1:]}).ok
    invented = {"name": "karma", "value": 1.0, "limit": 2.0, "unit": "", "sense": "<=", "binding": False}
    assert not check(problem, plan | {"limits": [*plan["limits"], invented]}).ok


@pytest.mark.parametrize(
    ("change", "requirement"),
    [
        ({"slo": REAL_TIME | {"ttft_s": 1e-4}}, "TTFT"),
        ({"slo": REAL_TIME | {"tpot_s": 1e-4}}, "TPOT"),
        ({"slo": REAL_TIME | {"tps": 1e5}}, "TPS"),
        ({"budget_usd_per_hour": 0.01}, "budget"),
        ({"markets": {"main": ["reserved_3y"], "ao": ["reserved_3y"]}}, "market"),
        ({"memory": {"vram_usable": 0.05}}, "VRAM"),
        ({"strategies": {"families": ["high_end"]}}, "family"),
        ({"strategies": {"families": ["ao_shared"], "shared": [5]}}, "K, N"),
        ({"strategies": {"families": ["ao_shared"], "shared": [2], "alpha": {"min": 0.99, "max": 1.0}}}, "α"),
        ({"strategies": {"families": ["ao_shared"], "shared": [2], "tensor_parallel": [4]}}, "TP"),
        ({"workload": {"batch": 9, "input_tokens": 512, "output_tokens": 64}}, "parts"),
        ({"objective": "uncapped"}, "objective"),
    ],
)
def test_a_plan_for_another_instance_names_what_it_breaks(tiny, change, requirement):
    problem, plan = planned(tiny, "ao_shared")
    document = problem.model_dump(mode="json", by_alias=True, exclude_none=True) | change
    report = check(load(document), plan)
    assert any(requirement in v.requirement for v in report.violations), report.violations


def test_an_offloaded_cache_too_large_for_its_host_is_caught(tiny):
    problem, plan = planned(tiny, "kvo_ram", strategies={"families": ["kvo_ram"], "alpha": {"min": 1.0, "max": 1.0}})
    document = problem.model_dump(mode="json", by_alias=True, exclude_none=True)
    for machine in document["pool"]["machines"]:
        machine["ram_gib"] = 0.01
    assert any("offloaded" in v.requirement for v in check(load(document), plan).violations)


def test_a_part_on_spot_by_any_other_price_is_caught(tiny):
    problem, plan = planned(tiny, "ao", markets={"main": ["on_demand"], "ao": ["on_demand"]})
    tampered = copy.deepcopy(plan)
    for line in tampered["machines"]:
        line["usd_per_hour_each"] /= 2  # everything else made consistent with the lie
    tampered["usd_per_hour"] /= 2
    tampered["usd_per_million_tokens"] /= 2
    for ce in ("ce_capped", "ce_uncapped"):
        tampered[ce] = {k: 2 * v for k, v in tampered[ce].items()}
    assert any("price" in v.requirement for v in check(problem, tampered).violations)


def test_measured_points_are_checked_against_their_row(tiny):
    points = [
        {"name": "one", "family": "high_end", "main": "big", "tps": 90.0},  # misses the SLO of 100
        {"name": "two", "family": "ao", "main": "mid", "ao": "small", "alpha": 0.7, "tps": 110.0},
    ]
    problem, t = tables_of(tiny(latency={"operating_points": points}))
    plan = enumerate_all(problem, t, Options()).plan.model_dump(mode="json")
    assert check(problem, plan).ok
    for path, wrong in ((("measured",), "one"), (("measured",), None), (("alpha",), 0.5), (("family",), "ao_parallel"),
                        (("prediction", "tps"), 120.0), (("machines", 0, "machine"), "big")):  # fmt: skip
        assert not check(problem, replaced(plan, path, wrong)).ok, path


def test_a_modelled_plan_is_not_passed_off_as_measured(tiny):
    problem, plan = planned(tiny, "high_end")
    assert not check(problem, plan | {"measured": "in my dreams"}).ok


@settings(max_examples=25)
@given(instances(), st.data())
def test_random_plans_pass_and_random_lies_do_not(document, data):
    problem, t = tables_of(document)
    plan = enumerate_all(problem, t, Options()).plan
    assume(plan is not None)
    good = plan.model_dump(mode="json")
    report = check(problem, good)
    assert report.ok, report.violations
    checked = [("usd_per_hour",), ("usd_per_million_tokens",), ("prediction", "e2e_s"), ("prediction", "tps"),
               ("machines", 0, "usd_per_hour_each")]  # fmt: skip
    path = data.draw(st.sampled_from(checked))
    factor = data.draw(st.sampled_from([0.5, 0.999, 1.001, 2.0]))
    assert not check(problem, replaced(good, path, value_at(good, path) * factor)).ok


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({}, []),
        ({"region": "there"}, ["AO machine in its main machine's region"]),
        ({"provider": "other"}, ["AO machine in its main machine's cloud"]),
        ({"provider": ""}, []),
    ],
)
def test_a_partner_that_stands_elsewhere_is_refused(tiny, change, refused):
    """The partner is replaced by a machine like it, in another region or another cloud."""
    problem, plan = planned(tiny, "ao")
    document = problem.model_dump(mode="json", by_alias=True, exclude_none=True)
    partner = next(line for line in plan["machines"] if line["role"] == "ao")
    machines = [m | {"provider": "cloud"} for m in document["pool"]["machines"]]
    like = next(m for m in machines if m["machine"] == partner["machine"])
    document["pool"]["machines"] = [*machines, like | {"machine": "twin"} | change]
    partner["machine"], partner["region"] = "twin", change.get("region", partner["region"])
    assert [v.requirement for v in check(load(document), plan).violations] == refused
