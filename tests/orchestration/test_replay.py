"""Orchestration plans in the simulator: whoever follows the plan keeps most of what it promises under overload."""

from __future__ import annotations

import dataclasses
import json
import warnings

import numpy as np
import pytest
from orchestration_cases import two_models

import optmodels
from formulations.orchestration.replay import replay
from optmodels.errors import InputError
from optmodels.simulation.options import ReplayOptions
from optmodels.traces.generated import generate
from optmodels.traces.spec import Generated
from optmodels.traces.types import Label, Trace

REQUESTS = {"maaso": 4, "requests": 800, "requests_per_s": 15.0, "cv": 4, "models": {"mistral-7b": 1}}


@pytest.fixture(scope="module")
def planned():
    """Four GPUs, a third more than they can serve, in bursts."""
    result = optmodels.solve({
        "formulation": "orchestration", "schema": 1, "name": "small", "latency": {"roofline": "roofline"},
        "cluster": {"servers": [{"server": "p3", "count": 1, "gpu": "v100-16g-pcie", "gpus": 4}]},
        "models": [{"model": "mistral-7b"}],
        "candidates": {"tp": [1, 2, 4], "pp": [1], "dp": [1], "batch": [16, 32]},
        "requests": {"trace": {"generated": REQUESTS | {"seed": 1}}},
        "slo": {"factor": 1.2}, "objective": {"alpha": 1.0, "beta": 0.2},
    }, gap=0.01, time_limit=20)  # fmt: skip
    return optmodels.load(result.problem), result.plan


def test_planned_shares_recover_most_of_the_difference(planned):
    kept = {}
    found = replay(*planned, None, ReplayOptions(keep=kept.__setitem__))
    predicted = found["predicted"]["attainment"]
    plain, follows = (found["policies"][k] for k in ("shortest_queue", "planned_shares"))
    assert predicted - plain["attainment"] > 0.1  # overloaded
    assert follows["attainment"] >= plain["attainment"] + 0.5 * (predicted - plain["attainment"])
    assert follows["late"] == 0
    assert kept["planned_shares"]["met"].mean() == pytest.approx(follows["attainment"])


def test_other_requests_are_not_refused_for_the_plan_s_sake(planned):
    """At a tenth of the rate nothing overflows, and what the plan refused of its own requests does not matter."""
    trace = generate(Generated(**REQUESTS | {"requests_per_s": 1.5, "seed": 2}))
    found = replay(*planned, trace, ReplayOptions())
    follows, plain = (found["policies"][k]["attainment"] for k in ("planned_shares", "shortest_queue"))
    assert follows >= plain - 0.005


@pytest.mark.parametrize("text", ["static:4", "sla:0.02", "memory:4000", "sla:0.02,memory:4000"])
def test_controllers_hold_batches_below_the_slots(planned, text):
    """Event by event: fewer at once than slots, so fewer in time here, where everybody waits."""
    problem, plan = planned
    trace = generate(Generated(**REQUESTS | {"requests": 150, "seed": 3}))
    few = replay(problem, plan, trace, ReplayOptions(policy="least_load", controller=text))["policies"]["least_load"]
    free = replay(problem, plan, trace, ReplayOptions(policy="least_load"))["policies"]["least_load"]
    assert 0 < few["attainment"] < free["attainment"]


def test_a_controller_that_allows_every_slot_changes_nothing(planned):
    problem, plan = planned
    trace = generate(Generated(**REQUESTS | {"requests": 150, "seed": 3}))
    slow = replay(problem, plan, trace, ReplayOptions(policy="maaso", controller="static:1000"))["policies"]["maaso"]
    fast = replay(problem, plan, trace, ReplayOptions(policy="maaso"))["policies"]["maaso"]
    assert slow["attainment"] == fast["attainment"]
    assert slow["e2e_s"] == pytest.approx(fast["e2e_s"])


@pytest.mark.parametrize("text", ["pid:1", "static", "static:2.5", "sla:-1", "memory:inf", "static:4,"])
def test_controllers_that_are_none(planned, text):
    trace = generate(Generated(**REQUESTS | {"requests": 20, "seed": 3}))
    with pytest.raises(InputError, match="static:BATCH"):
        replay(*planned, trace, ReplayOptions(policy="maaso", controller=text))


def test_named_requests_and_changing_batches_do_not_go_together(planned):
    trace = generate(Generated(**REQUESTS | {"requests": 20, "seed": 3}))
    found = replay(*planned, trace, ReplayOptions(policy="planned", controller="static:4"))
    assert "batch limits may change" in found["notes"][0] and "planned" not in found["policies"]
    with pytest.raises(InputError, match="event by event"):
        replay(*planned, generate(Generated(**REQUESTS | {"requests": 20_001, "seed": 3})),
               ReplayOptions(policy="maaso", controller="static:4"))  # fmt: skip


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0, 1e308])
def test_shares_that_are_no_numbers_of_requests(planned, value):
    """Refused before anything is computed with them."""
    problem, plan = planned
    shares = plan["shares"] | {"admitted": [value] * len(plan["shares"]["admitted"])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match=r"shares\.admitted"):
            replay(problem, plan | {"shares": shares})


def test_a_written_plan_replays_as_right_after_solve(tmp_path):
    """Shared prompts and predicted lengths of a trace are in the plan's document, too; they change what is replayed."""
    rng = np.random.default_rng(0)
    n, head = 120, 1024
    lines = [
        {"timestamp": int(1000 * t), "input_length": head + 512, "output_length": int(o), "hash_ids": [1, 2, 10 + i],
         "predicted_output_tokens": int(o) * 2}
        for i, (t, o) in enumerate(zip(np.sort(rng.uniform(0, 20, n)), rng.integers(20, 200, n), strict=True))
    ]  # fmt: skip
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    base = two_models(4)
    instance = base | {
        "cluster": {"servers": [{"server": "s", "gpu": "h100", "gpus": 1}]}, "models": [{"model": "llama-3.1-8b"}],
        "serving": "continuous", "latency": {"model": "roofline"}, "slo": {"factor": 8.0},
        "candidates": {"tp": [1], "batch": [2, 16]}, "requests": {"trace": {"file": "t.jsonl"}},
    }  # fmt: skip
    (tmp_path / "i.json").write_text(json.dumps(instance))
    result = optmodels.solve(tmp_path / "i.json", time_limit=20)
    own = optmodels.load(tmp_path / "i.json").own_trace()
    assert own.prefixes is not None and own.predicted_output_tokens is not None
    again = optmodels.replay(json.loads(result.to_json()))["report"]
    assert again["policies"] == result.report["replay"]["policies"]
    alone = optmodels.replay(result, dataclasses.replace(own, prefixes=None))["report"]
    policy = again["policy"]
    assert again["policies"][policy]["ttft_s"]["mean"] < alone["policies"][policy]["ttft_s"]["mean"]


@pytest.mark.parametrize(
    ("labels", "path", "value"),
    [
        ({}, "model", None),
        ({"model": Label(("<b>", "llama-3.2-3b"), np.array([0, 1]))}, "model", "<b>"),
        ({"model": Label(("mistral-7b", "llama-3.2-3b"), np.array([0, 1]))}, "slo_factor", None),
    ],
)
def test_what_a_trace_lacks_names_it(labels, path, value):
    rows = {"arrival_s": [0.0, 1.0], "prompt_tokens": [9, 9], "output_tokens": [9, 9], "slo_factor": [2.0, 2.0]}
    instance = two_models(10, requests={"rows": rows | {"model": ["mistral-7b", "llama-3.2-3b"]}}, slo={})
    plan = optmodels.solve(instance, "round_robin")
    trace = Trace("log.csv", np.array([0.0, 2.0]), np.array([8, 9]), np.array([9, 9]), labels)
    with pytest.raises(InputError) as caught:
        optmodels.replay(plan, trace)
    [mistake] = caught.value.mistakes
    assert (mistake.file, mistake.path, mistake.value) == ("log.csv", path, value)
