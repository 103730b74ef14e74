"""Orchestration plans in the simulator: whoever follows the plan keeps most of what it promises under overload."""

from __future__ import annotations

import pytest

import optmodels
from optmodels.plan.orchestration_replay import replay
from optmodels.problem.traces import Generated
from optmodels.simulation.options import ReplayOptions
from optmodels.traces.generated import generate

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
