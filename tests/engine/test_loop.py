"""Closed loops by their formula: worked by hand, and against the step simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from optmodels.engine.continuous import Classes, EngineLimits
from optmodels.engine.costs import EngineCosts
from optmodels.engine.levels import loop_levels
from optmodels.engine.loop import least, loop
from optmodels.latency.steps import Experts, Provenance, StepCosts
from optmodels.simulation.continuous import Arrivals, Engine
from optmodels.simulation.continuous_controlled import simulate_controlled

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


def test_where_every_rank_has_a_prompt_none_decodes_for_all_its_users():
    # Five steps, a prompt in each of them for 2.4 of 12 users. Drafts make a decode dearer (2 ms) than a prompt (1 ms).
    costs = StepCosts(fixed_s=0.01, prompt_token_s=1e-3, decode_request_s=2e-3)
    seen = loop(costs, 1.0, LIMITS, 1, 5, 12, 2)
    # Of two prompts each rank has one, next to five decodes; of three one rank has two and the other one.
    longest = 0.01 + 2 * (0.001 + 5 * 0.002)
    assert seen.e2e_s == pytest.approx(5 * longest) and seen.tpot_s == pytest.approx(longest)
    # Of four ranks one has no prompt, and its three users decode.
    assert loop(costs, 1.0, LIMITS, 1, 5, 12, 4).e2e_s == pytest.approx(5 * (0.01 + 4 * 3 * 0.002))


def test_levels_need_the_floor_of_loops_whose_requests_come_evenly():
    """Of random engines: prompts of a loop are in more steps than random ones, which share theirs."""
    rng, raised = np.random.default_rng(1), 0
    for _ in range(15):
        drafts, ranks, slots = (int(rng.choice(x)) for x in ([0, 0, 1, 8], [1, 1, 2, 4], [4, 8, 32]))
        costs = replace(_costs(rng, rng.random() < 0.5), drafts=drafts, tokens=1.0 + drafts * rng.choice([0, 0.3]))
        room = int(rng.choice([16, 100, 2000]))
        limits = EngineLimits(max_num_seqs=slots, max_num_batched_tokens=slots * (1 + drafts) + room)
        prompt, output = int(rng.choice([2, 10, 100])), int(rng.choice([2, 3, 5, 9, 17]))
        engine = EngineCosts(costs, 1.0, 1e6, Provenance("", ""), ranks=ranks, slots=slots)
        kind, users = Classes.of([prompt], [output]), np.unique(rng.integers(1, ranks * slots + 1, 5)).astype(float)
        at, each = loop_levels([engine], limits, kind, users, (None, None, None))
        floor = least(engine, limits, kind, each)
        raised += int((floor.tpot_s > at.tpot_s).sum())
        alone = [loop(costs, 1.0, limits, prompt, output, n, ranks) for n in each]
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            assert np.array([getattr(x, name) for x in alone]) == pytest.approx(getattr(floor, name))
    assert raised > 0  # so that `least` says something


def _costs(rng: np.random.Generator, experts: bool) -> StepCosts:
    fixed, context = 10 ** rng.uniform(-2.5, -1.5), 10 ** rng.uniform(-7.3, -6.5)
    return StepCosts(
        fixed_s=fixed, prompt_step_s=fixed * rng.choice([0, 0.3, 2.0]), prompt_token_s=10 ** rng.uniform(-5.3, -4.2),
        prompt_pair_s=10 ** rng.uniform(-10, -9), decode_request_s=fixed * 10 ** rng.uniform(-3, -1.5),
        context_s=context, mixed_context_s=context * rng.choice([1.0, 1.8]), request_s=0.01,
        experts=Experts(fixed, 64, 4) if experts else None,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_means_of_random_loops_are_those_of_the_simulator(ranks):
    """Slow: means settle after thousands of requests, simulated step by step."""
    rng, errors, several = np.random.default_rng(5), [], ranks > 1
    for _ in range(12 if several else 24):
        costs, _ = _costs(rng, rng.random() < 0.3), _costs(rng, False)
        prompt, output, users = (int(10 ** rng.uniform(*x)) for x in ((2.0, 4.0), (1.3, 3.0), (0.3, 2.2)))
        total = users * 3 + max(4 * users, 1000)
        prompts, outputs = np.full(total, prompt), np.full(total, output)
        outputs[:users] = np.maximum(1, output * np.arange(1, users + 1) // users)  # one after another
        engine = Engine(costs, 2 * users * (prompt + output) + 100_000, 256, 8192, ranks=ranks)
        seen = simulate_controlled(Arrivals.of(np.zeros(total), prompts, outputs), engine, users=users).served
        found = loop(costs, 1.0, LIMITS, prompt, output, users, ranks)
        look = slice(2 * users, total - users)
        means = [float(np.mean(x[look])) for x in (seen.ttft_s, seen.tpot_s, seen.e2e_s)]
        expected = np.array([*means, np.quantile(seen.ttft_s[look], 0.95)])
        predicted = np.array([found.ttft_s, found.tpot_s, found.e2e_s, found.ttft_s])
        errors.append(np.abs(predicted / expected - 1.0))
    ttft, tpot, e2e, p95 = np.mean(errors, axis=0)
    if several:
        assert (np.array([ttft, tpot, e2e]) < (0.08, 0.04, 0.03)).all(), (ttft, tpot, e2e)
        return
    assert ttft < 0.06 and tpot < 0.03 and e2e < 0.01, (ttft, tpot, e2e)
    assert p95 < 0.12, p95
