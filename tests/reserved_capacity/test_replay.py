"""Plans replayed: machines of the hour, throughput as planned, losses survived or not."""

from __future__ import annotations

import json

import numpy as np
import pytest
from reserved import machine, service, two_regions

import optmodels
from formulations.reserved_capacity.points import build_tables
from formulations.reserved_capacity.replay import RegionReplayOptions, chat_of, replay, routing_of, stated_engine
from optmodels import formulation
from optmodels.errors import InputError
from optmodels.loading import load
from optmodels.simulation.options import ReplayOptions
from optmodels.simulation.regions import RegionFleet, policy, simulate
from optmodels.traces.multiregion import open_loop_chat
from optmodels.traces.types import Label, Trace

FORM = formulation.get("reserved_capacity")


def replayed(document, trace=None, **options):
    result = optmodels.solve(document)
    return FORM.replay(load(document), result.plan, trace, RegionReplayOptions(**options)), result


def test_machines_and_throughput_are_the_plans():
    report, _ = replayed(two_regions(), seconds=400.0)
    (chat,) = report["services"]
    assert chat["replicas"] == 12
    assert chat["throughput_over_demand"] == pytest.approx(1.0, abs=0.06)
    assert 0.02 < chat["forwarded_share"] < 0.6  # ten of twelve requests arise where six machines stand
    assert report["losses"] == []
    json.dumps(report, allow_nan=False)


def test_a_plan_for_losses_survives_each_and_another_does_not():
    report, result = replayed(two_regions(resilience={"lose_any_region_keep": 0.9}), seconds=400.0)
    assert [x["region"] for x in report["losses"]] == ["west", "east"]
    assert report["survives_every_loss"]
    report, result = replayed(two_regions(), seconds=400.0, lose="each")
    assert not report["survives_every_loss"]
    held = {r["region"]: r["count"] for r in result.plan["reservations"]}
    for loss in report["losses"]:  # twelve machines for a demand of twelve, less those lost
        assert loss["throughput_over_demand"] == pytest.approx(1 - held[loss["region"]] / 12, abs=0.06)


def test_purchases_of_the_hour_run_and_those_of_others_do_not():
    demand = {"kind": "inline", "unit": "requests_per_s", "by_region": {"west": [1.0] * 9 + [11.0],
              "east": [0.0] * 10}}  # fmt: skip
    document = two_regions(services=service(demand=demand), terms=["reserved_3y", "on_demand"])
    busy, _ = replayed(document, seconds=200.0)
    calm, _ = replayed(document, seconds=200.0, hour=0)
    assert (busy["hour"], busy["services"][0]["replicas"]) == (9, 11)
    assert (calm["hour"], calm["services"][0]["replicas"]) == (0, 1)


def test_a_trace_over_two_hours_gets_each_hours_purchases():
    demand = {"kind": "inline", "unit": "requests_per_s", "by_region": {"west": [1.0, 3.0, 1.0, 1.0, 1.0],
              "east": [0.0] * 5}}  # fmt: skip
    document = two_regions(services=service(demand=demand), terms=["reserved_3y", "on_demand"])
    g = np.random.default_rng(0)
    n = 1500
    arrival = np.sort(g.uniform(0, 7200, n))
    trace = Trace("mine", arrival, np.full(n, 512), np.full(n, 256), {"region": Label(("west",), np.zeros(n, int))})
    report, _ = replayed(document, trace, hour=0)
    assert report["seconds"] == pytest.approx(7200, rel=0.01)
    assert report["services"][0]["replicas"] == 3  # one reserved, two bought for the second hour


def test_services_share_machines_by_their_work():
    both = [two_regions()["services"][0], two_regions()["services"][0] | {"service": "code"}]
    box = machine(serves={"chat": {"requests_per_s": 1.0, "prefill_s": 0.1},
                          "code": {"requests_per_s": 2.0, "prefill_s": 0.1}})  # fmt: skip
    report, result = replayed(two_regions(services=both, machines=box), seconds=200.0)
    replicas = {s["service"]: s["replicas"] for s in report["services"]}
    assert replicas == {"chat": 12, "code": 6}
    assert sum(r["count"] for r in result.plan["reservations"]) == 18


def test_quarter_and_scenario_are_those_asked_for():
    """Twelve machines in the west; two services, each of a region, share them by the work of the hour in question."""

    def of(name, region):
        by_region = {"west": [0.0], "east": [0.0]} | {region: [3.0]}
        demand = {"kind": "inline", "unit": "requests_per_s", "by_region": by_region}
        return service(service=name, demand=demand)[0]

    rate = {"requests_per_s": 1.0, "prefill_s": 0.1}
    document = two_regions(
        services=[of("chat", "west"), of("code", "east")],
        machines=machine(serves={"chat": rate, "code": rate}, regions=["west"]),
        growth={"quarters": 2, "factor_per_quarter": 2.0},
        uncertainty={"scenarios": [{"scenario": "as now", "probability": 0.5},
                                   {"scenario": "west", "probability": 0.5, "by_region": {"east": 0.2}}]},
    )  # fmt: skip
    problem, plan = load(document), optmodels.solve(document).plan
    for scenario, shares in ((0, (6, 6)), (1, (10, 2))):
        options = RegionReplayOptions(quarter=1, scenario=scenario, seconds=200.0)
        found = FORM.replay(problem, plan, None, options)
        assert tuple(s["replicas"] for s in found["services"]) == shares
        offered = [s["offered_requests_per_s"] for s in found["services"]]
        assert offered == pytest.approx([6.0, 6.0 if scenario == 0 else 1.2], rel=0.2)
        assert replay(problem, plan, None, options, build_tables(problem)) == found


def test_derived_replicas_serve_what_the_tables_say():
    document = two_regions(
        services=service(slo={"ttft_s": 2.0, "tpot_s": 0.1}, workload={
            "model": "llama-3.1-8b", "input_tokens": 512, "output_tokens": 256}),
        machines=[{"machine": "g6.xlarge", "gpu": "l4", "prices": {"reserved_3y": 1.0}}],
    )  # fmt: skip
    report, result = replayed(document, seconds=200.0)
    assert report["notes"] == []
    assert report["services"][0]["throughput_over_demand"] == pytest.approx(1.0, abs=0.06)
    again = FORM.replay(load(result.problem), result.plan, None, RegionReplayOptions(seconds=200.0))  # from the file
    assert again == report


def test_a_stated_throughput_is_served_exactly():
    engine, replicas = stated_engine(4.0, 0.3, 512, 256, 0.05)
    fleet = RegionFleet(("a",), np.zeros((1, 1)), (engine,), np.zeros(replicas, int), np.zeros(replicas, int))
    n = 4000
    rush = Trace("rush", np.zeros(n), np.full(n, 512), np.full(n, 256))
    r = simulate(rush, fleet, policy("round_robin"), until_s=1e5)
    assert n / r.seconds == pytest.approx(4.0, rel=0.05)


def test_generated_requests_have_the_workloads_means_and_rates():
    for lengths in ((512, 256), (2048, 256), (100, 400)):
        work = open_loop_chat(chat_of(*lengths), {"a": 30.0, "b": 0.0}, 2000.0, seed=1)
        assert work.trace.output_tokens.mean() == pytest.approx(lengths[1], rel=0.05)
        assert work.trace.prompt_tokens.mean() == pytest.approx(lengths[0], rel=0.15)
        assert len(work.trace) == pytest.approx(60_000, rel=0.03)
        assert (work.trace.labels["region"].codes == 0).all()


def test_mistakes_are_named():
    result = optmodels.solve(two_regions())
    wrong = (
        (RegionReplayOptions(hour=7), "hour"), (RegionReplayOptions(quarter=1), "quarter"),
        (RegionReplayOptions(lose="mars"), "lose"), (ReplayOptions(policy="best"), "policy"),
        (ReplayOptions(controller="static:4"), "controller"),
    )  # fmt: skip
    for options, word in wrong:
        with pytest.raises(InputError, match=word):
            FORM.replay(load(two_regions()), result.plan, None, options)
    assert routing_of("least_load/outstanding").push == "outstanding"
