"""Closed loops by their formula: worked by hand, and against the step simulator."""

from __future__ import annotations

import numpy as np
import pytest

from optmodels.latency.steps import Experts, StepCosts
from optmodels.serving.continuous import EngineLimits
from optmodels.serving.loop import StageOfLoop, first_at_once_s, loop, loop_apart
from optmodels.simulation.continuous import Arrivals, Engine
from optmodels.simulation.continuous_controlled import simulate_controlled
from optmodels.simulation.stages import simulate_loop

COSTS = StepCosts(fixed_s=0.01, prompt_step_s=0.005, prompt_token_s=1e-4, decode_request_s=0.001)
LIMITS = EngineLimits(max_num_seqs=256, max_num_batched_tokens=8192)


def test_one_user_and_two():
    # A prompt of 100 takes 10 + 5 + 10 ms, each of 10 decodes 10 + 1 ms.
    one = loop(COSTS, 1.0, LIMITS, 100, 11, 1)
    assert (one.ttft_s, one.tpot_s, one.e2e_s) == pytest.approx((0.025, 0.011, 0.135))
    # Of two, each pays 15 + 10 ms of work in 11 steps of 10 ms; the other decodes beside a prompt.
    two = loop(COSTS, 1.0, LIMITS, 100, 11, 2)
    assert two.e2e_s == pytest.approx(11 * 0.01 + 2 * 0.025) and two.requests_per_s == pytest.approx(2 / 0.16)
    assert two.ttft_s == pytest.approx(0.025 + 0.001)
    measured = loop(COSTS, 1.5, LIMITS, 100, 11, 1)  # no time of the engine's
    assert measured.ttft_s == pytest.approx(0.0375) and measured.requests_per_s == one.requests_per_s
    assert loop(COSTS, 1.0, LIMITS, 100, 1, 1).tpot_s == 0.0


def test_more_prompts_than_steps_have_room_for_wait():
    # 8 users, 1,000 + 2 tokens, 1,008 a step: 1,000 beside 8 decodes, so that 8 requests take 8 steps in place of 2.
    few = EngineLimits(max_num_seqs=8, max_num_batched_tokens=1008)
    seen = loop(COSTS, 1.0, few, 1000, 2, 8)
    assert seen.e2e_s == pytest.approx(8 * 0.01 + 8 * (0.105 + 0.001))
    assert seen.ttft_s > seen.e2e_s / 2


def test_apart_one_user_and_what_binds():
    stages = StageOfLoop(COSTS, 1, LIMITS), StageOfLoop(COSTS, 1, LIMITS)
    one = loop_apart(*stages, 1.0, 100, 11, 1, 0.02, 0.03)
    assert (one.ttft_s, one.e2e_s) == pytest.approx((0.045, 0.185)) and one.tpot_s == pytest.approx(0.014)
    # 8,000 of 8,192 tokens a step: prefill does one in 0.815 s, whoever waits
    many = loop_apart(*stages, 1.0, 8000, 11, 40, 0.0, 0.0)
    assert many.requests_per_s == pytest.approx((8192 / 8000) / (0.015 + 8192 / 8000 * 0.8))
    assert many.ttft_s + many.tpot_s * 10 == pytest.approx(40 / many.requests_per_s)


def test_two_ranks_wait_for_the_busier_one():
    # Outside the experts a prompt of 100 takes 8 ms of even work, a decode 0.6; alone on a rank they take 16 and 1.2.
    costs = StepCosts(fixed_s=0.01, prompt_token_s=1e-4, prompt_expert_s=2e-5, decode_request_s=1e-3,
                      decode_expert_s=4e-4)  # fmt: skip
    one = loop(costs, 1.0, LIMITS, 100, 11, 1, 2)
    first, later = 0.01 + 2 * 0.008 + 0.002, 0.01 + 2 * 0.0006 + 0.0004
    assert (one.ttft_s, one.tpot_s, one.e2e_s) == pytest.approx((first, later, first + 10 * later))
    # Of two, one a rank, the prompt's rank keeps the other waiting; else both decode, evenly.
    two = loop(costs, 1.0, LIMITS, 100, 11, 2, 2)
    with_prompt = 0.01 + 2 * 0.008 + 0.002 + 0.0004
    assert two.ttft_s == pytest.approx(with_prompt)
    assert two.e2e_s == pytest.approx(2 * with_prompt + 9 * (0.01 + 2 * 0.001))
    # Two prompts that share a step take no longer outside the experts than one.
    stages = StageOfLoop(costs, 1, LIMITS, 2), StageOfLoop(costs, 1, LIMITS, 2)
    apart = loop_apart(*stages, 1.0, 100, 11, 1, 0.0, 0.0)
    assert (apart.ttft_s, apart.e2e_s) == pytest.approx((first, first + 10 * later))


def _costs(rng: np.random.Generator, experts: bool) -> StepCosts:
    fixed, context = 10 ** rng.uniform(-2.5, -1.5), 10 ** rng.uniform(-7.3, -6.5)
    return StepCosts(
        fixed_s=fixed, prompt_step_s=fixed * rng.choice([0, 0.3, 2.0]), prompt_token_s=10 ** rng.uniform(-5.3, -4.2),
        prompt_pair_s=10 ** rng.uniform(-10, -9), decode_request_s=fixed * 10 ** rng.uniform(-3, -1.5),
        context_s=context, mixed_context_s=context * rng.choice([1.0, 1.8]), request_s=0.01,
        experts=Experts(fixed, 64, 4) if experts else None,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "apart"), [((1, 1), False), ((1, 1), True), ((2, 4), False), ((4, 2), True)])
def test_means_of_random_loops_are_those_of_the_simulator(apart, ranks):
    rng, errors, several = np.random.default_rng(5), [], ranks != (1, 1)
    for _ in range(12 if several else 24):
        first, second = _costs(rng, not apart and rng.random() < 0.3), _costs(rng, False)
        prompt, output, users = (int(10 ** rng.uniform(*x)) for x in ((2.0, 4.0), (1.3, 3.0), (0.3, 2.2)))
        total = users * 3 + max(4 * users, 1000)
        prompts, outputs = np.full(total, prompt), np.full(total, output)
        outputs[:users] = np.maximum(1, output * np.arange(1, users + 1) // users)  # one after another
        kv = 2 * users * (prompt + output) + 100_000
        engines = [Engine(c, kv, 256, 8192, ranks=d) for c, d in zip((first, second), ranks, strict=True)]
        if apart:
            p, d = (int(n) for n in rng.integers(1, 5, 2))
            stages = StageOfLoop(first, p, LIMITS, ranks[0]), StageOfLoop(second, d, LIMITS, ranks[1])
            found = loop_apart(*stages, 1.2, prompt, output, users, 0.02, 0.03)
            asked, over_s = (np.full(total, output), found.e2e_s) if several else (outputs, 0.0)
            seen, _, _ = simulate_loop(
                prompts, asked, engines[:1] * p, engines[1:] * d, users, 1.2, 0.02, 0.03, over_s
            )  # fmt: skip
        else:
            arrivals = Arrivals.of(np.zeros(total), prompts, outputs)
            seen = simulate_controlled(arrivals, engines[0], users=users).served
            found = loop(first, 1.0, LIMITS, prompt, output, users, ranks[0])
        look = slice(2 * users, total - users)
        means = [float(np.mean(x[look])) for x in (seen.ttft_s, seen.tpot_s, seen.e2e_s)]
        expected = np.array([*means, np.quantile(seen.ttft_s[look], 0.95)])
        predicted = np.array([found.ttft_s, found.tpot_s, found.e2e_s, found.ttft_s])
        errors.append(np.abs(predicted / expected - 1.0))
    ttft, tpot, e2e, p95 = np.mean(errors, axis=0)
    if several:
        at_most = (0.16, 0.04, 0.05) if apart else (0.08, 0.04, 0.03)  # prefill that is nearly full is the hard part
        assert (np.array([ttft, tpot, e2e]) < at_most).all(), (ttft, tpot, e2e)
        return
    assert ttft < 0.06 and tpot < 0.03 and e2e < 0.01, (ttft, tpot, e2e)
    assert p95 < 0.12, p95


def test_all_at_once_the_first_prompts_wait_for_one_another():
    # 3 prompts of 8,192 tokens a step each: 15 + 819.2 ms a step.
    one = StageOfLoop(COSTS, 1, LIMITS)
    assert first_at_once_s(one, 1.0, 8192, 3, 0.02) == pytest.approx(2 * 0.8342 + 0.02)
    # Alone on one of four ranks a prompt takes four times what it does of all GPUs; four take no longer.
    for users in (1, 4):
        assert first_at_once_s(StageOfLoop(COSTS, 1, LIMITS, 4), 1.0, 100, users, 0.0) == pytest.approx(
            0.015 + 4 * 0.01
        )
    assert first_at_once_s(one, 1.5, 100, 1, 0.02) == pytest.approx(1.5 * 0.025 + 0.02)


def test_the_first_requests_at_once_are_those_of_the_simulator():
    rng, errors = np.random.default_rng(3), []
    for _ in range(30):
        costs, prompt, users = _costs(rng, rng.random() < 0.3), int(10 ** rng.uniform(2, 4)), int(rng.integers(1, 200))
        p = int(rng.integers(1, 5))
        engine = Engine(costs, users * (prompt + 20) + 100_000, 256, 8192)
        alike = np.full(users, prompt), np.full(users, 2)
        seen, _, _ = simulate_loop(*alike, [engine] * p, [engine], users, 1.2, 0.02, 0.0)
        stage = StageOfLoop(costs, p, LIMITS)
        errors.append(first_at_once_s(stage, 1.2, prompt, users, 0.02) / seen.ttft_s.mean() - 1.0)
    assert np.mean(np.abs(errors)) < 0.05 and np.max(np.abs(errors)) < 0.3, np.round(errors, 3)
