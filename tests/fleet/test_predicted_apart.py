"""What is predicted of stages apart: step by step where nobody else asks, and beside the replay."""

from __future__ import annotations

import numpy as np
import pytest
from fleet_cases import APART

import optmodels
from formulations.fleet.engines import engine_of, transfer_s
from formulations.fleet.plan import FleetPlan
from formulations.fleet.predicted import predicted
from formulations.fleet.replay import paired, replay
from optmodels.simulation.options import ReplayOptions


@pytest.fixture(scope="module")
def solved():
    """A problem whose requests are all prefilled and decoded apart, its result, and the plan."""
    data = APART | {"deployment": {"stages": ["prefill", "decode"]}}
    result = optmodels.solve(data)
    return optmodels.load(data), result, FleetPlan.model_validate(result.plan)


def test_of_one_request_it_is_the_sum_of_its_steps(solved):
    problem, _, plan = solved
    case, lone = problem.resolve(), plan.model_copy(deep=True)
    period = lone.periods[0]
    for s in (s for d in period.deployments for s in d.serves):
        s.requests_per_s = 1e-9
    rows = {x["demand"]: x for x in predicted(case, lone)}
    none = np.zeros(0)
    for k, demand in enumerate(case.demands):
        first, rest = [], []
        S, out = demand.input_tokens, demand.output_tokens
        for i, j in paired(case, period, demand.name, plan.stretch):
            prefill, decode = period.deployments[i], period.deployments[j]
            costs, slower = engine_of(case, prefill)
            assert prefill.engine.max_num_batched_tokens >= S  # one chunk
            seconds = costs.step(np.array([float(S)]), np.zeros(1), none) + costs.request_s
            link = case.problem.deployment.link.latency_s
            first.append(slower * seconds + transfer_s(case, prefill)[k] + link)
            costs, _ = engine_of(case, decode)
            steps = sum(costs.step(none, none, np.array([S + n])) for n in range(1, out))
            rest.append(transfer_s(case, decode)[k] + steps + costs.request_s)
        waits = rows[demand.name]["ttft_s"] - max(first)  # at p95: a step is thought to be under way when it comes
        assert 0 < waits < 1.1 * slower * engine_of(case, prefill)[0].fixed_s
        assert rows[demand.name]["tpot_s"] == pytest.approx(max(rest) / (out - 1), rel=0.02)
        whole = max(a + b for a, b in zip(first, rest, strict=True))
        assert rows[demand.name]["deadline_s"] == pytest.approx(whole, rel=0.02)


def test_it_is_near_the_replay_and_below_what_is_promised(solved):
    problem, result, _ = solved
    rows = {x["demand"]: x for x in result.report["predicted"]}
    for row in replay(problem, result.plan, None, ReplayOptions(policy="random"))["demands"]:
        for name, key, error in (("ttft", "ttft_s", 0.15), ("tpot", "tpot_s", 0.05), ("deadline", "deadline_s", 0.05)):
            value = rows[row["demand"]][key]
            assert value == pytest.approx(row[f"{name}_replayed_s"], rel=error)
            assert value < row[f"{name}_planned_s"]


def test_more_than_an_engine_serves_has_no_prediction(solved):
    problem, _, plan = solved
    full = plan.model_copy(deep=True)
    for s in (s for d in full.periods[0].deployments if d.stage == "decode" for s in d.serves):
        s.requests_per_s *= 100
    for one, other in zip(predicted(problem.resolve(), plan), predicted(problem.resolve(), full), strict=True):
        assert other["ttft_s"] == one["ttft_s"]  # prefill engines have no more
        assert other["tpot_s"] is None and other["deadline_s"] is None
