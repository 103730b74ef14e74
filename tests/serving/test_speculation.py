"""Levels of engines that speculate: steps of a request one by one, and the identity (S1) on the step simulator."""

from __future__ import annotations

import math

import numpy as np
import pytest

from optmodels.latency.speculation import Speculation, with_drafts
from optmodels.latency.steps import StepCosts
from optmodels.serving.continuous import (
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
from optmodels.serving.running import running
from optmodels.simulation.continuous import Arrivals, Engine, simulate

PLAIN = StepCosts(0.01, prompt_token_s=3e-5, decode_request_s=3e-5, context_s=8e-8, mixed_context_s=8e-8)
THREE = Speculation(drafts=3, acceptance=0.7, head=0.02)
DRAFTED = with_drafts(PLAIN, THREE, None)
LIMITS = EngineLimits(max_num_seqs=64, max_num_batched_tokens=2048, speculation=(THREE,))
NONE = np.zeros(0)


def test_a_request_takes_fewer_steps_each_with_its_drafts():
    """10 tokens after the first at 2.533 a step: four steps, over 100, 102.5, 105.1 and 107.6 tokens."""
    c, g = Coefficients.of(DRAFTED), 1 + 0.7 + 0.49 + 0.343
    contexts = [100 + g * j for j in range(4)]
    steps = [DRAFTED.step(NONE, NONE, np.array([x])) - DRAFTED.fixed_s for x in contexts]
    assert c.decode_work_s(np.array([100.0]), np.array([11.0]), 0.0)[0] == pytest.approx(sum(steps), rel=1e-12)
    one, two = c.held(np.array([100.0]), np.array([10.0]))
    assert one[0] == pytest.approx(sum(x + 4 for x in contexts))  # its next token and three drafts
    assert two[0] == pytest.approx(sum((x + 4) ** 2 for x in contexts))
    assert c.rounds(np.array([0.0, 1.0, 2.0, 3.0, 2 * g])).tolist() == [0, 1, 1, 2, 2]


def test_rows_by_hand():
    t = 0.05
    points = operating_points([DRAFTED], np.array([50_000.0]), LIMITS, Classes.of([400.0], [101.0]), np.array([[t]]))
    steps = 1 + math.ceil(100 / THREE.tokens)
    rho = 1 - DRAFTED.fixed_s / t
    work = float(points.work_s[0, 0, 0])
    assert points.steps[0, 0, 0] == steps
    assert points.load[TIME, 0, 0, 0] == pytest.approx(work / rho)
    crowd = float(crowd_allowed(np.array(64.0), np.array(rho)))
    assert points.load[RUNNING, 0, 0, 0] == pytest.approx(steps * t / crowd)
    room = min(0.9 * (t - DRAFTED.fixed_s) / (400 * 3.06e-5) * 400, 2048 - 64 * 4)
    assert points.prompt_room[0, 0] == pytest.approx(room)
    assert points.max_num_batched_tokens[0, 0] == math.ceil(room) + 256
    assert points.load[TOKENS, 0, 0, 0] == pytest.approx(400 * t / (0.9 * room))
    each = (DRAFTED.fixed_s + work / steps) / (1 - rho)
    assert points.tpot_s(None)[0, 0, 0] == pytest.approx(each * 40 / 100)
    assert points.decoding_s(None)[0, 0, 0] == pytest.approx(each * 40)
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
    assert float(np.nanmean(tight.tpot_s)) == pytest.approx(at.tpot_s[None], rel=0.05)
    assert float(np.nanmean(tight.e2e_s[klass == 0])) == pytest.approx(at.e2e_s[None][0], rel=0.1)
    plain = predict(PLAIN, classes, rates, roomy) if load < 0.6 else None
    assert plain is None or found.tpot_s[None] < plain.tpot_s[None]
