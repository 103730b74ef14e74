"""A plan on requests that it was not made for: what a replay of the same resample says, left out when asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from orchestration_cases import two_models

import optmodels
from formulations.orchestration.flow import busiest
from formulations.orchestration.making import assignment_of, counts_of
from formulations.orchestration.model import dispatch
from formulations.orchestration.plan import Dispatcher, OrchestrationPlan
from formulations.orchestration.points import build_tables
from formulations.orchestration.replay import OTHER_REQUESTS, _over_bins, cluster_of, requests_of, sent, shares_of
from formulations.orchestration.show import summary
from optmodels.loading import load
from optmodels.simulation.options import ReplayOptions
from optmodels.traces.shape import resampled


@pytest.fixture(scope="module")
def instance():
    return two_models(12)


def test_predicted_replayed_and_out_of_sample_are_those_of_replays(instance):
    result = optmodels.solve(instance)
    found, own = result.report["out_of_sample"], result.report["replay"]
    shares = found["attainment"]
    assert shares["predicted"] == own["predicted"]["attainment"]
    if found["policy"] in own["policies"]:
        assert shares["replayed"] == own["policies"][found["policy"]]["attainment"]
    again = optmodels.replay(result, resample=OTHER_REQUESTS, policy=found["policy"])["report"]
    assert shares["out_of_sample"] == again["policies"][found["policy"]]["attainment"]
    assert found["requests"] == again["requests"]
    assert any("out of sample" in str(line) for line in summary(result.document()))
    assert optmodels.check(result).ok


def test_it_is_left_out_when_asked_and_the_check_knows(instance):
    result = optmodels.solve(instance, out_of_sample=False)
    assert "out_of_sample" not in result.report
    assert result.log["left_out"] == ["the replay out of sample"]
    assert "replay" in result.report
    assert optmodels.check(result).ok


def test_it_is_there_when_the_method_used_all_of_its_time(instance):
    result = optmodels.solve(instance, time_limit=1e-3)
    assert "out_of_sample" in result.report
    assert "the replay out of sample" not in result.log.get("left_out", [])


def test_an_overloaded_plan_keeps_on_other_requests_what_it_keeps_of_its_own():
    """One engine, thrice what it can serve: admitting all that an empty engine has in time keeps a tenth."""
    mix = [
        {"name": name, "share": 0.5, "prompt_tokens": prompt, "output_tokens": output, "slo_factor": [1.5, 3.0],
         "model": "llama-3.1-8b"}
        for name, prompt, output in (("short", [200, 1000], [50, 100]), ("long", [2000, 6000], [200, 400]))
    ]  # fmt: skip
    trace = {"generated": {"requests_per_s": 20, "duration_s": 60, "cv": 1, "seed": 1, "mix": mix}}
    instance = optmodels.load({
        "formulation": "orchestration", "schema": 1, "name": "more than can be served", "serving": "continuous",
        "cluster": {"servers": [{"server": "s", "gpu": "h100", "gpus": 1}]}, "models": [{"model": "llama-3.1-8b"}],
        "candidates": {"tp": [1], "batch": [16, 64]}, "latency": {"model": "default"}, "requests": {"trace": trace},
    })  # fmt: skip
    result = optmodels.solve(instance)
    shares = result.report["out_of_sample"]["attainment"]
    assert shares["replayed"] > 0.9 * shares["predicted"] > 0.26
    assert shares["out_of_sample"] > 0.85 * shares["replayed"]
    own = instance.resolve().trace
    few = optmodels.replay(result, own.take(np.arange(0, len(own), 10)))["report"]  # fewer than one engine can serve
    assert few["policies"]["planned_shares"]["attainment"] >= few["policies"]["earliest_finish"]["attainment"] - 0.02
    for policy in ("earliest_finish", "least_kv"):  # nothing but predictions refuses
        assert result.report["replay"]["policies"][policy]["attainment"] > 0.85 * shares["replayed"]
    t, plan = build_tables(instance), OrchestrationPlan.model_validate(result.plan)
    other = requests_of(t, resampled(own, OTHER_REQUESTS))
    by_shares = Dispatcher(policy="planned_shares", queue="deadline", refuse_rest=True)
    seen = sent(t, plan, other, cluster_of(t, plan), shares_of(t, plan, other), by_shares, ReplayOptions())
    assert seen.met(other).mean() > 0.5 * shares["replayed"]  # the plan names a better one


def test_whom_the_plan_admits_any_dispatcher_may_send():
    """Of one class half is admitted, of the other everyone: so many are served, whichever the dispatcher sends to."""
    engine = {"models": [{"model": "llama-3.1-8b"}], "serving": "continuous", "latency": {"model": "default"},
              "cluster": {"servers": [{"server": "s", "gpu": "h100", "gpus": 2}]},
              "candidates": {"tp": [1], "batch": [16]}}  # fmt: skip
    rates = [{"model": "llama-3.1-8b", "output_tokens": n, "prompt_tokens": 300, "slo_factor": 5, "requests_per_s": 3}
             for n in (50, 100)]  # fmt: skip
    problem = optmodels.load(
        {"formulation": "orchestration", "schema": 1, "requests": {"duration_s": 60, "classes": rates}} | engine
    )
    t = build_tables(problem)
    plan = OrchestrationPlan.model_validate(optmodels.solve(problem).plan)
    requests = requests_of(t, None, 3)
    shares = shares_of(t, plan)
    half = replace(shares, weight=np.where(np.arange(2)[None, :, None] == 0, 0.5, 1.0) * shares.weight)
    assert shares.weight.sum(axis=2) == pytest.approx(1.0)
    served = {}
    for policy in ("least_kv", "earliest_finish", "planned_shares"):
        for rest in (True, False):
            way = Dispatcher(policy=policy, refuse_rest=rest)
            index = sent(t, plan, requests, cluster_of(t, plan), half, way, ReplayOptions()).instance
            served[policy, rest] = [float((index[requests.klass == k] >= 0).mean()) for k in (0, 1)]
    for (policy, rest), (first, second) in served.items():
        assert second == 1.0
        assert first == pytest.approx(0.5 if rest else 1.0, abs=0.02), policy


def test_shares_over_all_bins_are_means_over_who_came():
    t = build_tables(problem := optmodels.load(two_models(12)))
    plan = OrchestrationPlan.model_validate(optmodels.solve(problem).plan)
    shares = shares_of(t, plan)
    over = _over_bins(t, shares)
    came = t.classes.arrivals
    assert over.weight.shape == (1, *shares.weight.shape[1:])
    for k in np.flatnonzero(came.sum(axis=1) > 0):
        expected = sum(came[k, b] * shares.weight[b, k] for b in range(t.bins)) / came[k].sum()
        assert over.weight[0, k] == pytest.approx(expected)
    assert over.bin_s == np.inf
    assert _over_bins(t, over) is over


def test_requests_up_to_the_headroom_attain_the_same_share():
    """At 1 + headroom times the requests all capacities suffice for the planned shares, beyond it one does not."""
    rows = two_models(30)["requests"]["rows"]
    instance = two_models(objective={"kind": "lexicographic", "order": ["latency"]}, requests={
        "classes": [{"model": m, "output_tokens": 300, "slo_factor": 1.2, "requests_per_s": 0.3}
                    for m in sorted(set(rows["model"]))], "duration_s": 60})  # fmt: skip
    result = optmodels.solve(instance)
    share = result.summary["headroom"]["share"]
    assert share > 0.01 and f"{share:.1%}" in result.summary["headroom"]["text"]
    plan = OrchestrationPlan.model_validate(result.plan)
    for factor, fits in ((1 + share * 0.999, True), (1 + share + 0.01, False)):
        for c in instance["requests"]["classes"]:
            c["requests_per_s"] = 0.3 * factor
        more = build_tables(load(instance))
        used = busiest(more, assignment_of(more, plan)) * factor / more.capacity
        assert (used.max() <= 1 + 1e-9) == fits
        if fits:
            found, _ = dispatch(more, counts_of(more, plan))
            assert found.admitted.sum() / more.classes.count.sum() >= plan.prediction.attainment - 1e-6
