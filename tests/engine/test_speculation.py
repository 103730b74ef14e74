"""Levels of engines that speculate: steps of a request one by one, and the identity (S1) on the step simulator."""

from __future__ import annotations

import numpy as np
import pytest

from optmodels.engine.continuous import (
    MEMORY,
    RUNNING,
    TIME,
    TOKENS,
    Classes,
    Coefficients,
    EngineLimits,
    crowd_allowed,
    operating_points,
    predict,
)
from optmodels.engine.running import running
from optmodels.latency.speculation import Speculation, steps_for, with_drafts
from optmodels.latency.steps import StepCosts
from optmodels.plans.engines import steps_after
from optmodels.simulation.continuous import Arrivals, Engine, simulate

PLAIN = StepCosts(0.01, prompt_token_s=3e-5, decode_request_s=3e-5, context_s=8e-8, mixed_context_s=8e-8)
THREE = Speculation(drafts=3, acceptance=0.7, head=0.02)
DRAFTED = with_drafts(PLAIN, THREE, None)
LIMITS = EngineLimits(max_num_seqs=64, max_num_batched_tokens=2048, speculation=(THREE,))
NONE = np.zeros(0)


def test_a_request_takes_fewer_steps_each_with_its_drafts():
    """A draft of two is accepted half the time: 1.5 tokens a step. D tokens take 1, 1.5, 2.25, 2.875, … steps:

    R(D) = 1 + (R(D − 1) + R(D − 2))/2, and with D between whole numbers what lies between. 4 tokens take 2.875 steps
    over 100, 101.5 and, in part, 103 tokens: Σ over n of h + g·j is n·h + g·n(n − 1)/2, n whole or not.
    """
    half = Speculation(drafts=1, acceptance=0.5)
    costs = with_drafts(PLAIN, half, None)
    c = Coefficients.of(costs)
    expected = [0.0, 1.0, 1.5, 2.25, 2.875]
    np.testing.assert_allclose(c.rounds(np.arange(5.0)), expected)
    np.testing.assert_allclose(c.rounds(np.array([0.5, 2.5])), [0.5, 1.875])
    sums = 2.875 * 100 + 1.5 * 2.875 * 1.875 / 2
    work = 2.875 * costs.decode_request_s + sums * costs.context_s
    assert c.decode_work_s(np.array([100.0]), np.array([5.0]), 0.0)[0] == pytest.approx(work, rel=1e-12)
    one, two = c.held(np.array([100.0]), np.array([4.0]))
    assert one[0] == pytest.approx(sums + 2 * 2.875)  # its next token and a draft
    squares = 102**2 * 2.875 + 1.5 * 102 * 2.875 * 1.875 + 1.5**2 * 2.875 * 1.875 * 4.75 / 6
    assert two[0] == pytest.approx(squares)


@pytest.mark.parametrize(("drafts", "p"), [(1, 0.5), (3, 0.7), (5, 0.9), (8, 0.95), (2, 1.0), (4, 0.0)])
def test_the_mean_number_of_steps_is_that_of_drafts_accepted_by_chance(drafts, p):
    """20,000 requests, each step of which accepts drafts up to the first that is not; and what a check recomputes."""
    rng = np.random.default_rng(drafts)
    tokens = Speculation(drafts=drafts, acceptance=p).tokens
    steps = 1 + np.cumprod(rng.random((20_000, 60, drafts)) < p, axis=2).sum(axis=2)
    assert steps.mean() == pytest.approx(tokens, rel=0.01)
    made = steps.cumsum(axis=1)
    for D in (1, 2, 3, 5, 10, 37):
        seen = 1 + (made < D).sum(axis=1)
        error = 4 * seen.std() / np.sqrt(len(seen)) + 1e-9
        assert steps_for(D, drafts, tokens) == pytest.approx(seen.mean(), abs=error)
    for D in (0.0, 3.0, 7.5, 300.0, 1024.0, 5000.5):
        assert steps_for(D, drafts, tokens) == pytest.approx(steps_after(D + 1, drafts, tokens), rel=1e-9)
    # Far from the end a step makes 1 + a: what is too much in the last settles.
    assert steps_for(5000, drafts, tokens) == pytest.approx(5000 / tokens, rel=2e-3)


def test_rows_by_hand():
    t = 0.05
    points = operating_points([DRAFTED], np.array([50_000.0]), LIMITS, Classes.of([400.0], [101.0]), np.array([[t]]))
    after = float(steps_for(100, 3, THREE.tokens))
    assert after == pytest.approx(
        (100 + 1.0695) / THREE.tokens, rel=1e-4
    )  # Wald: 1.0695 tokens too many, (E X² − g)/2g
    steps = 1 + after
    rho = 1 - DRAFTED.fixed_s / t
    work = float(points.work_s[0, 0, 0])
    assert points.steps[0, 0, 0] == steps
    assert points.load[TIME, 0, 0, 0] == pytest.approx(work / rho)
    crowd = float(crowd_allowed(np.array(64.0), np.array(rho)))
    assert points.load[RUNNING, 0, 0, 0] == pytest.approx(steps * t / crowd)
    room = 2048 - 64 * 4
    assert points.load[TOKENS, 0, 0, 0] == pytest.approx(400 * t / (0.9 * room))
    own = (work - float(points.prefill_s[0, 0, 0])) / after  # of a decode, in place of the mean over all its steps
    prefill = float(points.prefill_s[0, 0, 0])
    left = rho * prefill / work * prefill / (1 - rho) / after  # of prompts that came meanwhile
    each = (DRAFTED.fixed_s + work / steps) / (1 - rho) - work / steps + own + left
    assert points.tpot_s(None)[0, 0, 0] == pytest.approx(each * after / 100)
    assert points.decoding_s(None)[0, 0, 0] == pytest.approx(each * after)
    held = 400 + sum(400 + THREE.tokens * j + 4 for j in range(40))
    plain = operating_points([PLAIN], np.array([50_000.0]), LIMITS, Classes.of([400.0], [101.0]), np.array([[t]]))
    assert points.load[MEMORY, 0, 0, 0] > held * t / 50_000
    assert points.load[MEMORY, 0, 0, 0] < plain.load[MEMORY, 0, 0, 0]  # requests are done sooner


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_the_mean_step_and_what_requests_see_are_those_of_the_simulator(load):
    """(S1) with the steps that drafts leave, and latencies a token, as without drafts."""
    rng = np.random.default_rng(int(10 * load))
    classes = Classes.of([300.0, 2000.0], [200.0, 100.0], weight=np.array([0.7, 0.3]))
    work = operating_points([DRAFTED], np.array([1e9]), LIMITS, classes, np.array([[0.03]])).work_s[0, 0]
    rates = classes.weight * load / float(classes.weight @ work)
    n = 12_000
    klass = rng.permutation(np.repeat([0, 1], [round(0.7 * n), round(0.3 * n)]))
    at = np.cumsum(rng.exponential(1.0, n))
    arrivals = Arrivals.of(
        at * (n / rates.sum() / at[-1]), classes.input_tokens[klass].astype(int),
        classes.output_tokens[klass, 0].astype(int),
    )  # fmt: skip
    seen = simulate(arrivals, [Engine(DRAFTED, 10**8, 4096, 2048 + 4 * 4096)])
    roomy = EngineLimits(max_num_seqs=4096, max_num_batched_tokens=2048 + 4 * 4096, speculation=(THREE,))
    found = predict(DRAFTED, classes, rates, roomy)
    assert seen.busy_s[0] / seen.steps[0] == pytest.approx(found.step_s, rel=0.02)
    wide = EngineLimits(max_num_seqs=256, max_num_batched_tokens=4096, speculation=(THREE,))
    tight = simulate(arrivals, [Engine(DRAFTED, 10**8, 256, 4096)])
    at = running(DRAFTED, 1.0, classes, rates, 1e8, wide)
    of_all = float(rates @ at.tpot_s[None]) / float(rates.sum())
    assert float(np.nanmean(tight.tpot_s)) == pytest.approx(of_all, rel=0.05)
    for k, each in enumerate(at.tpot_s[None]):
        assert float(np.nanmean(tight.tpot_s[klass == k])) == pytest.approx(each, rel=0.08)
    assert float(np.nanmean(tight.e2e_s[klass == 0])) == pytest.approx(at.e2e_s[None][0], rel=0.1)
    plain = predict(PLAIN, classes, rates, roomy) if load < 0.6 else None
    assert plain is None or found.all_tpot_s[None] < plain.all_tpot_s[None]
