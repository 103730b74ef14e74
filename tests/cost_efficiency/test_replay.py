"""A plan's closed loop replayed: one user by hand, Little's law, lengths of a trace, and what there is no replay of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_cases import instance
from references.stage_loop import simulate_loop

import optmodels
from formulations.cost_efficiency.problem import CostEfficiency
from formulations.cost_efficiency.replay import replay
from optmodels.engine.costs import engine_costs
from optmodels.errors import InputError
from optmodels.simulation.continuous import Engine
from optmodels.simulation.options import ReplayOptions
from optmodels.simulation.stages import simulate_stages
from optmodels.traces.types import Trace


@pytest.fixture(scope="module")
def solved() -> tuple[CostEfficiency, dict[str, Any]]:
    problem = instance()
    plan = optmodels.solve(problem).plan
    assert plan is not None
    return problem, plan


def test_one_user_sees_empty_steps() -> None:
    slo = {"kind": "real_time", "tps": 1, "ttft_s": 3.0, "tpot_s": 0.12}
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
    assert found["predicted"]["ttft_s"]["mean"] < plan["prediction"]["ttft_s"]  # the users there are, not the bound
    assert {p["kept"] for p in found["promises"]} == {True} and len(found["promises"]) == 6
    bounds = [plan["prediction"][k] for k in ("ttft_s", "tpot_s", "tps")]
    assert [p["planned_bound"] for p in found["promises"][:3]] == bounds
    for row in found["policies"].values():
        assert row["requests_per_s"] == pytest.approx(problem.workload.batch / row["e2e_s"]["mean"], rel=0.03)
        assert row["tokens_per_s"] == pytest.approx(620 * row["requests_per_s"])
        assert row["tokens_per_s"] >= plan["prediction"]["tps"]


def test_a_deadline_is_a_promise() -> None:
    deadline = {"at_most": 9.0, "percentile": 0.95}
    limits = {k: {"at_most": v, "percentile": 0.9} for k, v in (("ttft_s", 3.0), ("tpot_s", 0.12))}
    problem = instance(slo={"kind": "real_time", "tps": 200, **limits, "deadline_s": deadline})
    plan = optmodels.solve(problem).plan
    assert plan is not None
    found = replay(problem, plan, options=ReplayOptions(policy="spread"))
    [promise] = [p for p in found["promises"] if p["promise"].startswith("E2E p95")]
    assert promise["limit"] == 9.0 and promise["kept"] is True
    assert promise["replayed"] == found["policies"]["spread"]["e2e_s"]["p95"] <= promise["planned_bound"] <= 9.0


def test_percentiles_say_that_they_are_of_one_length_of_answers() -> None:
    """Of equal answers the promise is kept, of exponential ones of the same mean it is not, and the report says so."""
    late = {"at_most": 5.0, "percentile": 0.95}
    slo = {"kind": "real_time", "tps": 200, "ttft_s": 3.0, "tpot_s": 0.12}
    problem = instance(slo=slo | {"deadline_s": late})
    solved = optmodels.solve(problem)
    assert solved.plan is not None and solved.report is not None
    [note] = solved.report["notes"]
    assert "prompts of exactly 500 and answers of exactly 120 tokens" in note
    outputs = np.maximum(np.round(np.random.default_rng(5).exponential(120.0, 4000)), 1).astype(int)
    varied = Trace("varied", np.zeros(4000), np.full(4000, 500), outputs)
    for trace, kept in ((None, True), (varied, False)):
        found = replay(problem, solved.plan, trace, ReplayOptions(policy="spread"))
        assert [p["kept"] for p in found["promises"] if p["promise"].startswith("E2E p95")] == [kept]
    for means in (slo, slo | {"deadline_s": 5.0}):
        of_means = optmodels.solve(instance(slo=means)).report
        assert of_means is not None and of_means["notes"] == []


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
    pairs = set(zip(seen["input_tokens"].tolist(), seen["output_tokens"].tolist(), strict=True))
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


@pytest.mark.parametrize(("seed", "ranks"), [(0, 1), (1, 1), (2, 1), (0, 3), (2, 4)])
def test_requests_that_come_when_the_loop_asks_them_see_the_same(seed: int, ranks: int) -> None:
    """The loop against `simulate_stages`, which is told when they come."""
    rng = np.random.default_rng(seed)
    n, users, slower, sends, receives = 120, 9, 1.25, 0.013, 0.021
    prompts, outputs = rng.integers(10, 900, n), rng.integers(1, 40, n)
    problem = instance()
    case = problem.resolve()
    costs = engine_costs(problem.engines(case), problem.engine, case.gpus["l4"], "l4", 1, 24.0).costs
    first, second = (
        [Engine(costs, kv, 8, 512, 256, ranks=ranks)] * n for kv, n in ((6000, 2), (4000, 3))
    )  # fmt: skip
    seen, came, _ = simulate_loop(prompts, outputs, first, second, users, slower, sends, receives)
    assert (np.diff(came.arrival_s) >= 0).all() and np.isfinite(seen.e2e_s).all()
    finish = came.arrival_s + seen.e2e_s
    assert came.arrival_s[users:] == pytest.approx(np.sort(finish)[: n - users])
    cached = np.argsort(np.where(outputs > 1, came.arrival_s + seen.ttft_s + receives, np.inf), kind="stable")
    then = np.full(n, -1)
    then[cached] = 2 + np.arange(n) % 3
    then[outputs == 1] = -1
    here = np.where(outputs > 1, sends, 0.0)
    again = simulate_stages(
        came, [*first, *second], np.arange(n) % 2, np.full(n, slower), then, here, np.full(n, receives)
    )  # fmt: skip
    one = outputs == 1  # which this sends nowhere
    assert again.ttft_s + np.where(one, sends, 0.0) == pytest.approx(seen.ttft_s)
    assert again.e2e_s + np.where(one, sends, 0.0) == pytest.approx(seen.e2e_s)
    assert again.queue_s == pytest.approx(seen.queue_s)
    assert again.tpot_s[~one] == pytest.approx(seen.tpot_s[~one])
    assert again.busy_s == pytest.approx(seen.busy_s)
