"""A plan's closed loop replayed: one user by hand, Little's law, lengths of a trace, and what there is no replay of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_cases import instance

import optmodels
from formulations.cost_efficiency.problem import CostEfficiency
from formulations.cost_efficiency.replay import replay
from optmodels.errors import InputError
from optmodels.serving.engine import engine_costs
from optmodels.simulation.options import ReplayOptions
from optmodels.traces.types import Trace


@pytest.fixture(scope="module")
def solved() -> tuple[CostEfficiency, dict[str, Any]]:
    problem = instance()
    plan = optmodels.solve(problem).plan
    assert plan is not None
    return problem, plan


def test_one_user_sees_empty_steps() -> None:
    slo = {"kind": "real_time", "tps": 1, "ttft_s": 3.0, "tbt_s": 0.12}
    problem = instance(workload={"batch": 1, "input_tokens": 500, "output_tokens": 3}, slo=slo)
    plan = optmodels.solve(problem).plan
    assert plan is not None
    found = replay(problem, plan)
    case = problem.resolve()
    m = next(m for m in case.machines if m.machine == plan["machines"][0]["machine"])
    assert m.gpu is not None
    costs = engine_costs(problem.engines(case), problem.engine, case.gpus[m.gpu], m.gpu, plan["tensor_parallel"],
                         m.vram_gib / m.gpu_count).costs  # fmt: skip
    budget, first, done = plan["engine"]["max_num_batched_tokens"], 0.0, 0
    while done < 500:  # chunks of a step's budget
        chunk = min(budget, 500 - done)
        first += costs.step(np.array([float(chunk)]), np.array([float(done)]), np.zeros(0))
        done += chunk
    later = [float(costs.step(np.zeros(0), np.zeros(0), np.array([500.0 + k]))) for k in range(2)]
    for row in found["policies"].values():
        assert row["ttft_s"]["mean"] == pytest.approx(first + costs.request_s)
        assert row["tpot_s"]["mean"] == pytest.approx(sum(later) / 2)
        assert row["tokens_per_s"] == pytest.approx(503 / (first + sum(later)), rel=2e-3)
        cost = plan["usd_per_hour"] / 3600 / row["tokens_per_s"] * 1e6
        assert row["usd_per_million_tokens"] == pytest.approx(cost)


def test_a_plan_keeps_what_it_promises_and_littles_law_holds(solved: tuple[CostEfficiency, dict[str, Any]]) -> None:
    problem, plan = solved
    found = replay(problem, plan)
    assert found["engines"] == len(plan["batch_split"])
    assert found["predicted"]["ttft_s"] == {"p90": plan["prediction"]["ttft_s"]}
    assert {p["kept"] for p in found["promises"]} == {True} and len(found["promises"]) == 6
    for row in found["policies"].values():
        assert row["requests_per_s"] == pytest.approx(problem.workload.batch / row["e2e_s"]["mean"], rel=0.03)
        assert row["tokens_per_s"] == pytest.approx(620 * row["requests_per_s"])
        assert row["tokens_per_s"] >= plan["prediction"]["tps"]


def test_a_promise_that_is_broken_is_said(solved: tuple[CostEfficiency, dict[str, Any]]) -> None:
    problem, plan = solved
    wrong = plan | {"engine": plan["engine"] | {"max_num_seqs": 2}}  # the others of its users wait
    [first, _, _] = replay(problem, wrong, options=ReplayOptions(policy="at_once"))["promises"]
    assert first["promise"].startswith("TTFT p90") and first["kept"] is False and first["replayed"] > 3.0


def test_lengths_come_from_a_trace(solved: tuple[CostEfficiency, dict[str, Any]]) -> None:
    problem, plan = solved
    kept: dict[str, Any] = {}
    trace = Trace("three", np.zeros(3), np.array([100, 200, 300]), np.array([1, 20, 30]))
    options = ReplayOptions(seed=4, keep=kept.__setitem__)
    found = replay(problem, plan, trace, options)
    assert replay(problem, plan, trace, ReplayOptions(seed=4)) == found
    assert set(kept) == {"spread", "at_once"}
    seen = kept["at_once"]
    pairs = set(zip(seen["prompt_tokens"].tolist(), seen["output_tokens"].tolist(), strict=True))
    assert pairs == {(100, 1), (200, 20), (300, 30)}
    assert np.isnan(seen["tpot_s"][seen["output_tokens"] == 1]).all()


@pytest.mark.parametrize(
    ("options", "path"), [({"policy": "random"}, "policy"), ({"controller": "static:3"}, "controller"),
                          ({"queue": "deadline"}, "queue")],
)  # fmt: skip
def test_what_does_not_exist_is_refused(
    solved: tuple[CostEfficiency, dict[str, Any]], options: dict[str, Any], path: str
) -> None:
    with pytest.raises(InputError, match=path):
        replay(*solved, options=ReplayOptions(**options))


def test_no_replay_of_stages() -> None:
    small = {"machine": "small", "gpu": "l4", "gpu_count": 1, "vram_gib": 24, "prices": {"on_demand": 0.8}}
    problem = instance(
        pool={"machines": [small]}, deployment={"stages": ["prefill", "decode"], "link": {"net_gbps": 20}}
    )
    plan = optmodels.solve(problem).plan
    assert plan is not None
    with pytest.raises(InputError, match="no replay of a closed loop through engines of two stages"):
        replay(problem, plan)
