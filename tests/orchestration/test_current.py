"""What runs today: the optimum's own instances, levels by enumeration, what replays see, and mistakes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from orchestration_cases import two_models

import optmodels
from formulations.orchestration.current import CurrentCluster, _ascended, _best_use, _lines
from formulations.orchestration.points import build_tables
from formulations.orchestration.rounding import scheduled
from optmodels.errors import InputError
from optmodels.reporting.evaluate import evaluate_lines
from optmodels.traces.types import Label, Trace

ONE_H100 = {
    "latency": {"model": "roofline"}, "serving": "continuous", "models": [{"model": "llama-3.2-3b"}],
    "cluster": {"servers": [{"server": "s", "gpu": "h100", "gpus": 2}]},
    "candidates": {"tp": [1, 2], "batch": [1, 4, 16, 64]},
    "requests": {"rows": {
        "arrival_s": np.linspace(0, 4, 40).tolist(), "prompt_tokens": [1500, 90] * 20, "output_tokens": [200, 90] * 20,
        "slo_factor": [1.5, 2.5] * 20}},
}  # fmt: skip
SLOTS = {"schema": 1, "dispatcher": "shortest_queue", "deployments": [
    {"model": "mistral-7b", "instances": 2, "tp": 2, "batch": 4}, {"model": "llama-3.2-3b", "instances": 2, "batch": 4},
]}  # fmt: skip
ENGINE = {"schema": 1, "dispatcher": "least_kv", "deployments": [{"model": "llama-3.2-3b", "instances": 2}]}


def test_the_optimums_own_instances_are_no_further_than_rounding_from_it():
    instance = two_models(60)
    best = optmodels.solve(instance)
    same = [
        {"model": c["model"], "instances": c["instances"], **{k: c[k] for k in ("tp", "pp", "dp", "batch")}}
        for c in best.plan["configurations"]
    ]
    found = optmodels.evaluate({"schema": 1, "deployments": same}, problem=instance)
    assert found["today"]["objective"] == pytest.approx(best.objective, rel=1e-6)
    assert found["saving"]["share"] == pytest.approx(0, abs=1e-6)
    assert found["report"]["attainment"]["planned_routing"] == pytest.approx(best.plan["prediction"]["attainment"])
    assert found["best"]["replayed_attainment"] == pytest.approx(found["report"]["attainment"]["best_dispatcher"])


def test_what_runs_is_replayed_with_its_dispatcher_and_without_refusals():
    instance = two_models(60)
    found = optmodels.evaluate(SLOTS, problem=instance)
    report = found["report"]
    assert (report["gpus"], report["gpus_of_cluster"]) == (6, 8)
    assert report["replays"]["replayed"]["refused"] == 0.0
    kinds = [(d["model"], d["engines"], d["batch"]) for d in report["deployments"]]
    assert kinds == [("mistral-7b", 2, 4), ("llama-3.2-3b", 2, 4)]
    served = sum(d["requests_per_s"] for d in report["deployments"])
    assert served == pytest.approx(60 / 30, rel=0.5)
    assert found["saving"]["share"] >= -1e-9
    said = " ".join(str(x) for x in evaluate_lines(found))
    assert "Today: 6 of 8 GPUs" in said
    assert "more than" in said


def test_the_level_of_engines_is_the_best_of_all():
    problem = optmodels.load(two_models(1, **ONE_H100))
    t = build_tables(problem)
    lines = _lines(t, CurrentCluster.model_validate(ENGINE))
    assert [(x.batch, x.engine.waits) for x in lines[0]] == [(1, 1.0), (4, 1.0), (16, 1.0), (64, 1.0), (64, 4.0)]
    plan, at = _best_use(t, lines, [2])
    totals = []
    for x in lines[0]:
        index = next(
            i
            for i, c in enumerate(t.configurations)
            if c.tp == 1 and (c.batch, c.engine.waits) == (x.batch, x.engine.waits)
        )
        counts = np.zeros(len(t.configurations), dtype=int)
        counts[index] = 2
        totals.append(scheduled(t, counts).objective)
    assert plan.score.total == pytest.approx(max(totals))
    assert at.configurations[0].engine.limits.slots == 256


def test_ascent_goes_on_until_no_level_is_better():
    best = _ascended([0, 0], [3, 4], lambda x: -((x[0] - 2) ** 2) - (x[1] - x[0]) ** 2)
    assert best in ([1, 1], [2, 2])  # of a ridge a step in one coordinate may see no more


def test_engines_admit_as_many_as_they_are_told():
    few = ENGINE | {"deployments": [{"model": "llama-3.2-3b", "instances": 2, "max_num_seqs": 8}]}
    at_once = {"requests": {"rows": ONE_H100["requests"]["rows"] | {"arrival_s": [0.0] * 40}}}
    instance = two_models(1, **ONE_H100 | at_once)
    found = [optmodels.evaluate(x, problem=instance)["report"]["replays"]["replayed"] for x in (few, ENGINE)]
    assert found[0]["waiting_s"]["mean"] > 3 * found[1]["waiting_s"]["mean"]
    assert found[0]["tpot_s"]["mean"] < found[1]["tpot_s"]["mean"]


def test_a_trace_takes_the_place_of_the_requests():
    trace = Trace(
        "mine", np.array([0.0, 1.0, 2.0]), np.array([10, 10, 10]), np.array([300, 300, 300]),
        {"model": Label(("mistral-7b",), np.zeros(3, dtype=np.int64))}, np.array([2.0, 2.0, 2.0]),
    )  # fmt: skip
    found = optmodels.evaluate(SLOTS, trace, problem=two_models(60))
    assert found["requests"] == 3
    assert found["report"]["attainment"]["replayed"] == 1.0
    assert [d["demand"] for d in found["report"]["demands"]] == ["mistral-7b"]


def test_a_file_to_start_from_is_evaluated_as_it_is(tmp_path):
    for name, instance in (("slots", two_models(60)), ("engines", two_models(1, **ONE_H100))):
        (tmp_path / f"{name}.json").write_text(json.dumps(instance))
        today = tmp_path / f"{name}-today.yaml"
        optmodels.new("current", today, from_=str(tmp_path / f"{name}.json"))
        found = optmodels.evaluate(today, time_limit=1e-3)
        lines = found["report"]["deployments"]
        assert lines and all(d["engines"] == d["dp"] for d in lines)  # one instance of each


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"model": "gpt-9"}, "deployments[0].model"),
        ({"gpu": "h100"}, "deployments[0].gpu"),
        ({"batch": None}, "deployments[0].batch"),
        ({"instances": 9}, "deployments"),
        ({"tp": 8, "batch": 4}, "deployments[0]"),
        ({"model": "llama-3.2-3b", "tp": 1}, "deployments[1]"),
    ],
)
def test_mistakes_are_named(change, path):
    first, second = SLOTS["deployments"]
    with pytest.raises(InputError) as caught:
        optmodels.evaluate(SLOTS | {"deployments": [first | change, second]}, problem=two_models(60))
    assert path in [m.path for m in caught.value.mistakes]


def test_a_dispatcher_of_the_other_kind_of_serving_is_a_mistake():
    with pytest.raises(InputError, match="dispatcher"):
        optmodels.evaluate(SLOTS | {"dispatcher": "least_kv"}, problem=two_models(60))


@pytest.mark.parametrize(("current", "instance"), [(SLOTS, two_models(60)), (ENGINE, two_models(1, **ONE_H100))])
def test_what_has_no_time_is_left_out_and_named(current, instance):
    found = optmodels.evaluate(current, problem=instance, time_limit=1e-3)
    assert "the replay" in found["left_out"]
    assert "the replay with the best dispatcher" in found["left_out"]
    report = found["report"]
    assert list(report["attainment"]) == ["planned_routing"]
    assert report["replays"] == {}
    assert all("replayed_busy" not in d for d in report["deployments"])
    assert any("Left out at the time limit" in str(x) for x in evaluate_lines(found))
