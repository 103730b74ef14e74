"""Attention ranks in a closed loop: brute force over levels, steps counted one by one, what is refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from loop_cases import TPOT, TTFT, cheapest, instance

import optmodels
from formulations.cost_efficiency.check import check
from formulations.cost_efficiency.plan import CostPlan
from formulations.cost_efficiency.points import build_tables
from formulations.cost_efficiency.predicted import predicted
from formulations.cost_efficiency.problem import CostEfficiency
from formulations.cost_efficiency.replay import replay
from optmodels import formulation
from optmodels.arrays import Array, Ints
from optmodels.engine.continuous import EngineLimits
from optmodels.engine.costs import EngineCosts, engine_costs
from optmodels.errors import InputError
from optmodels.latency.steps import Experts, StepCosts
from optmodels.simulation.continuous import Arrivals, Engine
from optmodels.simulation.continuous_controlled import simulate_controlled

LLM = "deepseek-v2-lite"  # a latent cache, whole on every GPU of a rank, and routed experts


def moe(**changes: Any) -> CostEfficiency:
    pool = {"machines": [
        {"machine": "quad", "gpu": "l40s", "gpu_count": 4, "vram_gib": 192, "prices": {"on_demand": 6.0}},
    ]}  # fmt: skip
    strategies = {"families": ["high_end"], "tensor_parallel": [1, 2, 4], "attention_ranks": [1, 2, 4]}
    workload = {"batch": 300, "input_tokens": 500, "output_tokens": 120}
    return instance(**{"model": LLM, "pool": pool, "strategies": strategies, "workload": workload} | changes)


def engine(problem: CostEfficiency, tp: int, ranks: int) -> EngineCosts:
    case = problem.resolve()
    return engine_costs(problem.engines(case), problem.engine, case.gpus["l40s"], "l40s", tp, 48.0, ranks)


@pytest.mark.parametrize("split", [(1, 4), (2, 2), (1, 2), (4, 1)])
def test_exact_is_the_cheapest_by_brute_force(split: tuple[int, int]) -> None:
    tp, ranks = split
    problem = moe(strategies={"families": ["high_end"], "tensor_parallel": [tp], "attention_ranks": [ranks]})
    usd, e2e = cheapest(problem)
    found = optmodels.solve(problem)
    assert found.check is not None and found.check.ok
    assert found.plan["usd_per_hour"] == pytest.approx(usd)
    assert found.plan["prediction"]["e2e_s"] == pytest.approx(e2e, rel=1e-6)
    assert found.plan.get("attention_ranks") == (ranks if ranks > 1 else None)
    assert found.plan["replicas_per_machine"] == 4 // (tp * ranks)


def test_of_several_ranks_the_cheapest_is_chosen() -> None:
    problem = moe(strategies={"families": ["high_end"], "tensor_parallel": [1, 2], "attention_ranks": [1, 2]},
                  workload={"batch": 60, "input_tokens": 500, "output_tokens": 120})  # fmt: skip
    usd, e2e = cheapest(problem)
    found = optmodels.solve(problem)
    assert found.plan["usd_per_hour"] == pytest.approx(usd)
    assert found.plan["prediction"]["e2e_s"] == pytest.approx(e2e, rel=1e-6)


def test_a_model_without_experts_has_one() -> None:
    strategies = {"families": ["high_end"], "tensor_parallel": [1, 2]}
    plain, listed = (
        optmodels.solve(instance(strategies=strategies | more)).plan for more in ({}, {"attention_ranks": [2, 4]})
    )
    assert plain == listed


@pytest.mark.parametrize(
    ("path", "value"), [("attention_ranks", 2), ("replicas_per_machine", 2), ("tensor_parallel", 2)]
)
def test_the_check_counts_the_gpus_of_all_ranks(path: str, value: int) -> None:
    problem = moe(strategies={"families": ["high_end"], "tensor_parallel": [1], "attention_ranks": [4]})
    plan = copy.deepcopy(optmodels.solve(problem).plan)
    assert plan["attention_ranks"] == 4 and check(problem, plan).ok
    plan[path] = value
    assert not check(problem, plan).ok
    (made,) = formulation.get("cost_efficiency").deployments(problem, optmodels.solve(problem).plan).deployments
    assert (made.attention_ranks, made.tensor_parallel, made.replicas_per_machine) == (4, 1, 1)


def loop(
    e: EngineCosts, limits: EngineLimits, users: int, prompt: int, output: int, together: int = 1
) -> np.ndarray:  # fmt: skip
    """TTFT and time per token of a closed loop's requests, steps counted one by one, (n, 2).

    Each request goes to the rank with the fewest; a step is of all ranks and waits for the one with most to do. The
    first `together` users begin at once, the others in the middle of an answer.
    """
    rng = np.random.default_rng(1)
    asked: list[list[list[float]]] = [[] for _ in range(e.ranks)]  # asked at, prompt left, first token at, tokens made
    for i in range(users):
        asked[i % e.ranks].append([0.0, float(prompt), 0.0, float(rng.integers(0, output - 1)) * (i >= together)])
        if i >= together:
            asked[i % e.ranks][-1][1] = 0.0
    now, seen = 0.0, []
    while len(seen) < 20 * users:
        work, chunked = [], []
        for mine in asked:
            decoding = [x for x in mine if x[1] == 0.0]
            room, tokens, before = float(limits.max_num_batched_tokens - len(decoding)), [], []
            for x in mine:
                if x[1] > 0.0 and room > 0.0:
                    chunk = min(room, x[1])
                    tokens.append(chunk)
                    before.append(prompt - x[1])
                    chunked.append((x, chunk))
                    room -= chunk
            contexts = np.array([prompt + x[3] for x in decoding])
            work.append((np.array(tokens), np.array(before), contexts))
        running = [x for mine in asked for x in mine if x[1] == 0.0]
        now += e.costs.step_of_ranks(work)
        for x in running:
            x[3] += 1.0
        for x, chunk in chunked:
            x[1] -= chunk
            if x[1] == 0.0:
                x[2], x[3] = now + e.costs.request_s, 1.0
        for mine in asked:
            for x in [x for x in mine if x[1] == 0.0 and x[3] >= output]:
                mine.remove(x)
                seen.append((e.slower * (x[2] - x[0]), (now - x[2]) / (output - 1), x[2] > 0.0))
                min(asked, key=len).append([now, float(prompt), 0.0, 0.0])
    return np.array([(first, each) for first, each, whole in seen[4 * users :] if whole])


@pytest.mark.parametrize("split", [(1, 4), (2, 2)])
def test_a_loop_keeps_what_its_level_promises(split: tuple[int, int]) -> None:
    tp, ranks = split
    problem = moe(strategies={"families": ["high_end"], "tensor_parallel": [tp], "attention_ranks": [ranks]})
    plan, w = optmodels.solve(problem).plan, problem.workload
    users = max(plan["batch_split"])
    seen = loop(engine(problem, tp, ranks), problem.engine, users, w.input_tokens, w.output_tokens)
    first, each = np.quantile(seen, 0.9, axis=0)
    burst = loop(engine(problem, tp, ranks), problem.engine, users, w.input_tokens, w.output_tokens, users // 8)
    assert np.quantile(burst[:, 0], 0.9) <= TTFT["at_most"]  # of equal lengths users who begin together stay together
    assert first <= plan["prediction"]["ttft_s"] <= TTFT["at_most"] * (1 + 1e-9)
    assert each <= plan["prediction"]["tpot_s"] <= TPOT["at_most"] * (1 + 1e-9)
    e2e = float((seen[:, 0] + seen[:, 1] * (w.output_tokens - 1)).mean())
    assert e2e <= plan["prediction"]["e2e_s"] * 1.002  # users keep no perfect turn: with (2, 2) 0.1 % longer
    assert each > 0.3 * plan["prediction"]["tpot_s"]  # it is not by being empty


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"serving": "static", "slo": {"kind": "real_time", "tps": 200, "ttft_s": 3.0, "tpot_s": 0.12}}, "static"),
    ],
)
def test_where_nobody_can_say_ranks_are_refused(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(InputError, match=rf"strategies\.attention_ranks.*{path}"):
        moe(**changes).resolve()
    with pytest.raises(ValueError, match="each number of attention ranks once"):
        moe(strategies={"attention_ranks": [2, 2]})


def at_once(costs: StepCosts, ranks: int, users: int, slots: int, tokens: int, prompts: Ints, outputs: Ints) -> Array:
    """When requests are asked, have their first and their last token, steps counted one by one; (3, n).

    All users ask at the beginning, and again once answered, the rank with the fewest that wait and run.
    """
    n, coming, now = len(prompts), 0, 0.0
    times = np.full((3, n), np.nan)
    left, made = prompts.astype(float), np.zeros(n)
    waiting: list[list[int]] = [[] for _ in range(ranks)]
    running: list[list[int]] = [[] for _ in range(ranks)]
    while coming < n or any(waiting) or any(running):
        while coming < n and sum(map(len, waiting)) + sum(map(len, running)) < users:
            fewest = min(range(ranks), key=lambda k: len(waiting[k]) + len(running[k]))
            waiting[fewest].append(coming)
            times[0, coming] = now
            coming += 1
        work, chunks = [], {}
        for mine, others in zip(running, waiting, strict=True):
            decoding = [i for i in mine if left[i] == 0]
            room = float(tokens - len(decoding))
            while others and len(mine) < slots and room > sum(left[i] for i in mine):
                mine.append(others.pop(0))
            before, taken = [], []
            for i in mine:
                if left[i] > 0 and room > 0:
                    chunks[i] = min(left[i], room)
                    room -= chunks[i]
                    taken.append(chunks[i])
                    before.append(prompts[i] - left[i])
            contexts = np.array([prompts[i] + made[i] - 1 for i in decoding], float)
            work.append((np.array(taken), np.array(before), contexts))
        now += costs.step_of_ranks(work)
        for mine in running:
            for i in list(mine):
                if left[i] == 0:
                    made[i] += 1
                elif i in chunks:
                    left[i] -= chunks[i]
                    made[i] = 1.0 * (left[i] == 0)
                    times[1, i] = now
                if made[i] == outputs[i]:
                    times[2, i] = now
                    mine.remove(i)
    return times


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_loop_is_simulated_step_by_step(ranks: int) -> None:
    """Against plain numbers, lengths drawn, slots and tokens that run out."""
    rng = np.random.default_rng(ranks)
    costs = StepCosts(
        0.01, 0.002, 1e-5, 1e-9, 1e-9, 1e-4, 1e-7, 2e-7, experts=Experts(0.01, 64, 4), prompt_expert_s=4e-6,
        decode_expert_s=3e-5,
    )  # fmt: skip
    n, users, slots, tokens = 300, 31, 9, 600
    prompts, outputs = rng.integers(5, 1500, n), rng.integers(1, 40, n)
    seen = simulate_controlled(
        Arrivals.of(np.zeros(n), prompts, outputs), Engine(costs, 10**6, slots, tokens, ranks=ranks), users=users
    ).served
    asked, first, last = at_once(costs, ranks, users, slots, tokens, prompts, outputs)
    np.testing.assert_allclose(seen.arrivals.arrival_s, asked, rtol=1e-9)
    np.testing.assert_allclose(seen.first_s, first, rtol=1e-9)
    np.testing.assert_allclose(seen.finish_s, last, rtol=1e-9)


def test_a_plan_of_ranks_is_replayed_and_predicted() -> None:
    problem = moe(strategies={"families": ["high_end"], "tensor_parallel": [1], "attention_ranks": [4]})
    found = optmodels.solve(problem)
    assert found.plan is not None and (build_tables(problem).configurations.ranks == 4).all()
    seen = replay(problem, found.plan)
    assert {p["kept"] for p in seen["promises"]} == {True} and len(seen["promises"]) == 6
    row, mean = seen["policies"]["spread"], predicted(problem, CostPlan.model_validate(found.plan))
    assert mean is not None and found.report["predicted"] == mean
    for ours, theirs in (("ttft_s", "ttft_s"), ("tpot_s", "tpot_s"), ("e2e_s", "e2e_s")):
        assert row[ours]["mean"] == pytest.approx(mean[theirs], rel=0.03)
    assert row["requests_per_s"] == pytest.approx(problem.workload.batch / row["e2e_s"]["mean"], rel=0.03)
    alike = replay(problem, found.plan | {"attention_ranks": 2, "replicas_per_machine": 2})["policies"]["spread"]
    assert alike["e2e_s"]["mean"] != pytest.approx(row["e2e_s"]["mean"], rel=0.03)  # ranks are what is simulated
