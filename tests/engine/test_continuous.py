"""Operating points of continuous batching against steps counted one by one, a birth–death chain and the simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import betainc

from optmodels.engine.continuous import (
    CHUNKS,
    MEMORY,
    MOST_OF_WAIT,
    QUANTILES,
    RUNNING,
    TIME,
    TOKENS,
    Classes,
    Coefficients,
    EngineLimits,
    crowd_above,
    crowd_allowed,
    crowd_quantile,
    levels_of_loads,
    loads_of_levels,
    longest_steps,
    longest_wait,
    operating_points,
    predict,
    ttft_form,
    with_best_steps,
)
from optmodels.latency.steps import AttentionWindow, Experts, StepCosts
from optmodels.simulation.continuous import Arrivals, Engine, simulate

EVERYTHING = StepCosts(
    fixed_s=0.01, prompt_step_s=0.002, prompt_token_s=3e-5, prompt_pair_s=1e-8, prompt_context_s=2e-7,
    decode_request_s=2e-5, context_s=1e-7, mixed_context_s=1.5e-7, request_s=0.003,
    experts=Experts(0.004, 8, 2), window=AttentionWindow(0.5, 40, 0.8),
)  # fmt: skip
PLAIN = StepCosts(0.01, prompt_token_s=3e-5, decode_request_s=3e-5, context_s=8e-8, mixed_context_s=8e-8)
NONE = np.zeros(0)


def test_work_of_a_request_is_what_it_adds_to_every_step_of_its_life():
    """100 prompt tokens, 36 of them cached, in chunks of 25; 7 output tokens: each step with and without it."""
    costs, chunk, decode = EVERYTHING, 25, 6
    bare = costs.fixed_s
    prefill, at = 0.0, 36
    while at < 100:
        p = min(chunk, 100 - at)
        experts = float(costs.experts.seconds(p))
        prefill += costs.step(np.array([float(p)]), np.array([float(at)]), NONE) - bare - experts
        at += p
    decodes = sum(costs.step(NONE, NONE, np.array([100.0 + i])) - bare for i in range(decode))
    decodes -= decode * float(costs.experts.seconds(1))
    c = Coefficients.of(costs)
    one = np.array([64.0])
    assert c.prefill_work_s(one, 36.0, np.array([25.0]), 1.0)[0] == pytest.approx(prefill, rel=1e-12)
    flat = Coefficients.of(StepCosts(**vars(costs) | {"window": None}))
    assert flat.prefill_work_s(one, 36.0, np.array([25.0]), 0.0)[0] == pytest.approx(
        64 * 3e-5 + 1e-8 * 64 * (36 + 32) + 2e-7 * (36 + 61 + 86), rel=1e-12
    )
    assert c.decode_work_s(np.array([100.0]), np.array([7.0]), 0.0)[0] == pytest.approx(decodes, rel=1e-12)
    assert c.step_fixed_s(5.0, 0.25) == pytest.approx(0.01 + 0.75 * 0.004 * (1 - 0.75**5) + 0.25 * 0.004)
    assert c.step_fixed_s(5.0, 1.0) == pytest.approx(0.01 + 0.004)
    assert c.largest_fixed_s == pytest.approx(0.01 + 0.004 + 0.002)


def test_the_crowd_is_the_stationary_one_of_its_birth_death_chain():
    rate, steps, fixed, each = 4.0, 50.0, 0.01, 0.002
    load = rate * steps * each
    chain = np.cumprod([1.0] + [rate * steps * (fixed + each * n) / n for n in range(1, 3000)])
    chain /= chain.sum()
    crowd = rate * steps * fixed
    for n in (1, 3, 10, 40):
        assert crowd_above(n, crowd, load) == pytest.approx(chain[n:].sum(), rel=1e-9)
    mean = (crowd + load) / (1 - load)
    assert mean == pytest.approx(np.arange(3000) @ chain, rel=1e-9)
    assert crowd_quantile(0.99, np.array(crowd), np.array(load)) == pytest.approx(
        np.searchsorted(np.cumsum(chain), 0.99), abs=2
    )
    most = crowd_allowed(np.array(64.0), np.array(load))
    assert crowd_above(64, most * (1 - load), load) == pytest.approx(0.005, rel=1e-6)
    assert crowd_allowed(np.array(2.0), np.array(0.95)) == 0  # even a single request's own chain is above 0.5 %


def test_the_crowd_allowed_is_never_above_the_true_one():
    rng = np.random.default_rng(5)
    most = np.append(np.exp(rng.uniform(-4.0, 9.0, 4000)), [0.0, np.inf])
    load = np.append(rng.uniform(1e-3, 0.999, 4000), [0.5, 0.5])
    low, high = np.zeros_like(load), most
    for _ in range(60):
        middle = (low + high) / 2
        fine = betainc(np.maximum(most, 1e-12), middle * (1 - load) / load + 1, load) <= 0.005
        low, high = np.where(fine, middle, low), np.where(fine, high, middle)
    found = crowd_allowed(most, load)
    assert (found <= low).all() and found == pytest.approx(low, rel=3e-9, abs=1e-12)


def test_rows_by_hand():
    """One class without chunks or windows: every row from its formula."""
    classes, limits = Classes.of([300.0], [101.0]), EngineLimits(max_num_seqs=64, max_num_batched_tokens=364)
    kv = 50_000.0
    p = operating_points([PLAIN], np.array([kv]), limits, classes, np.array([[0.02]]))
    rho, room = 0.5, 300.0
    work = 300 * 3e-5 + 100 * 3e-5 + 8e-8 * (100 * 300 + 99 * 100 / 2)
    assert p.load[TIME, 0, 0, 0] == pytest.approx(work / rho)
    assert p.load[RUNNING, 0, 0, 0] == pytest.approx(101 * 0.02 / crowd_allowed(np.array(64.0), np.array(rho)))
    assert p.load[TOKENS, 0, 0, 0] == pytest.approx(300 * 0.02 / (0.9 * room))
    assert p.load[CHUNKS, 0, 0, 0] == 0  # no cost of a step depends on prompts
    held = 300.0 + np.array([0, *range(1, 101)])
    size = (held**2).sum() / held.sum()
    slots = crowd_allowed(np.array(kv / size), np.array(rho))
    assert 0.02 * held.sum() / p.load[MEMORY, 0, 0, 0] == pytest.approx(slots * size, rel=1e-9)
    beside = 0.01 + rho * 0.02 * (work - 300 * 3e-5) / work
    s = 300 / room * beside + 300 * 3e-5
    assert p.turn_s[0, 0, 0] == pytest.approx(s)
    rate = 1 / p.waiting(np.array([[[0.1]]]), np.inf)[0, 0, 0, 0]
    assert rate * s * s / (2 * 0.1) + rate * p.mean_turn_s[0, 0, 0] == pytest.approx(1.0)
    assert np.isinf(p.waiting(np.array([[[s / 5]]]), 4.0)).all()


def test_a_prompt_turns_with_all_decodes_beside_it_take_no_longer_than_the_linear_bound():
    """U·δ of any mixture within the time row, against its bound by class."""
    rng = np.random.default_rng(1)
    classes = Classes.of(rng.uniform(50, 4000, 6), rng.uniform(2, 500, 6), weight=rng.uniform(0, 1, 6))
    p = operating_points(
        [PLAIN], np.array([1e6]), EngineLimits(), classes, levels_of_loads([PLAIN], np.array([0.7]))[:, 1:]
    )
    t, room, u = p.step_s[0, 0], float(p.engine.room_beside(np.inf, 0)), classes.new_tokens
    decodes = (p.work_s - p.prefill_s)[0, 0]
    tightest = np.inf
    for _ in range(2000):
        rates = rng.dirichlet(np.full(6, 0.3))
        rates /= rates @ p.load[TIME, 0, 0]
        beside = p.fixed_s[0, 0] + t * (rates @ decodes)
        turns = rates @ (u / room * beside + p.prefill_s[0, 0])
        bound = rates @ p.mean_turn_s[0, 0]
        assert turns <= bound * (1 + 1e-9)
        tightest = min(tightest, bound / turns)
    assert tightest < 1.02


COSTLY = StepCosts(0.008, prompt_step_s=0.02, prompt_token_s=2e-5, decode_request_s=4e-5, context_s=5e-8,
                   mixed_context_s=5e-8)  # fmt: skip


def test_what_a_step_costs_because_it_carries_a_prompt_by_hand():
    """One class at a level at which some steps carry prompts, and at one at which nearly all do."""
    classes, limits = Classes.of([400.0], [60.0]), EngineLimits(max_num_seqs=64, max_num_batched_tokens=2112)
    p = operating_points([COSTLY], np.array([1e6]), limits, classes, np.array([[0.016, 0.2]]))
    prefill, decode = 400 * 2e-5, 59 * 4e-5 + 5e-8 * (59 * 400 + 59 * 58 / 2)
    filled = 400 / 2048
    many = 0.1  # requests that end in a step of 16 ms
    for _ in range(200):
        left = 0.008 - 0.02 * (many * filled + 1 - np.exp(-many * (1 - filled)))
        many += 0.1 * (left / (prefill + decode) - many)
    y = many * (1 - filled)
    within, paid = 1 - (1 + y) * np.exp(-y), filled + np.exp(-y) * (1 - filled)
    assert 0.1 < y < 1
    assert p.fixed_s[0] == pytest.approx([0.008 + within * 0.02, 0.028])
    assert p.work_s[0, :, 0] == pytest.approx([prefill + decode + paid * 0.02, prefill + decode])
    # At full load the bound is what such steps cost: nothing is lost where the mixture is the planned one.
    assert p.load[TIME, 0, 0, 0] * many / 0.016 == pytest.approx(1.0)
    assert p.prefill_s[0, :, 0] == pytest.approx([prefill + 0.02 * (1 - within), prefill])
    share = decode / p.work_s[0, 0, 0]
    beside = p.fixed_s[0, 0] + (0.016 - p.fixed_s[0, 0]) * share
    assert p.turn_s[0, 0, 0] == pytest.approx(filled * (beside + 0.02 * (1 - within)) + prefill)


def test_prompts_that_fill_their_chunks_are_as_those_that_nearly_do():
    """At a level at which some steps carry prompts, and at one at which all do."""
    limits, levels = EngineLimits(max_num_seqs=64, max_num_batched_tokens=2112), np.array([[0.05, 0.2]])
    full, nearly = (
        operating_points([COSTLY], np.array([1e6]), limits, Classes.of([n], [60.0]), levels)
        for n in (4096.0, 4096.0 - 1e-6)
    )
    assert full.fixed_s[0] == pytest.approx([0.008, 0.028])
    assert full.work_s[0, 0, 0] - full.work_s[0, 1, 0] == pytest.approx(2 * 0.02)
    assert nearly.fixed_s == pytest.approx(full.fixed_s) and nearly.work_s == pytest.approx(full.work_s)
    assert nearly.load == pytest.approx(full.load)


def test_prompts_that_cost_nothing_but_that_a_step_carries_them():
    costs = StepCosts(0.008, prompt_step_s=0.02, decode_request_s=4e-5)
    p = operating_points([costs], np.array([1e6]), EngineLimits(), Classes.of([400.0], [60.0]), np.array([[0.02, 0.2]]))
    assert p.fixed_s[0, 0] < p.fixed_s[0, 1] == 0.028
    assert np.isfinite(p.load).all() and np.isfinite(p.waiting(np.full((1, 2, 1), 0.1), np.inf)).all()


def test_steps_with_prompts_cost_no_more_than_their_linear_bound_in_any_mixture():
    """The share 1 − (1 − U)e^(−y) of mixtures within the rows of time and tokens, at levels short and long."""
    rng = np.random.default_rng(2)
    classes = Classes.of(rng.uniform(50, 4000, 5), rng.uniform(2, 500, 5), weight=rng.uniform(0, 1, 5))
    levels = levels_of_loads([COSTLY], np.array([0.2, 0.5, 0.9]))
    p = operating_points([COSTLY], np.array([1e7]), EngineLimits(), classes, levels)
    c, tightest = Coefficients.of(COSTLY), np.inf
    for j in np.flatnonzero(p.exists[0]):
        t, room = p.step_s[0, j], float(p.engine.room_beside(np.inf, 0))
        alone = c.prefill_work_s(classes.new_tokens, 0.0, room, 0.0)
        alone += c.decode_work_s(classes.input_tokens, classes.output_tokens[:, 0], 0.0)
        for _ in range(400):
            rates = rng.dirichlet(np.full(5, 0.3))
            rates /= max(rates @ p.load[TIME, 0, j], rates @ p.load[TOKENS, 0, j])
            filled = t * rates @ classes.new_tokens / room
            carry = 1 - (1 - filled) * np.exp(filled - t * rates @ p.chunks[0, j])
            step = 0.008 + t * rates @ alone + 0.02 * carry
            assert step <= t * (1 + 1e-9)
            tightest = min(tightest, t / step)
    assert tightest < 1.01


def test_the_share_of_steps_that_carry_prompts_is_the_simulators():
    """Few prompts, ones that fill steps, and many that share them: in the last there are two in a step that has one."""
    for load, inputs, outputs, most in (
        (0.3, 200.0, 100.0, 0.01), (0.6, 1900.0, 80.0, 0.02), (0.5, 5000.0, 60.0, 0.04), (0.8, 300.0, 40.0, 0.04),
    ):  # fmt: skip
        classes, limits = Classes.of([inputs], [outputs]), EngineLimits(max_num_seqs=512, max_num_batched_tokens=2048)
        c = Coefficients.of(COSTLY)
        work = c.prefill_work_s(classes.new_tokens, 0.0, 2048.0, 0.6)
        rates = load / (work + c.decode_work_s(classes.input_tokens, classes.output_tokens[:, 0], 0.0))
        found = predict(COSTLY, classes, rates, limits)
        arrivals, _ = drawn(rates, np.array([inputs]), np.array([outputs]), 100_000, 7)
        seen = simulate(arrivals, [Engine(COSTLY, 10**8, 512, 2048)])
        assert found.step_s == pytest.approx(float(seen.busy_s[0] / seen.steps[0]), rel=most)


def test_next_to_no_load_is_a_request_alone():
    """However few they are: rounding leaves neither nothing to divide by nor another figure."""
    classes, limits = Classes.of([900.0], [60.0]), EngineLimits(max_num_seqs=512, max_num_batched_tokens=2048)
    few = predict(COSTLY, classes, np.array([1e-9]), limits)
    for rate in (1e-13, 1e-16, 1e-30, 1e-300):
        found = predict(COSTLY, classes, np.array([rate]), limits)
        assert found.ttft_s[None] == pytest.approx(few.ttft_s[None], rel=1e-6)
        assert found.tpot_s[None] == pytest.approx(few.tpot_s[None], rel=1e-6)
        assert found.step_s == pytest.approx(few.step_s, rel=1e-4)


def test_waits_are_longest_where_few_requests_cause_them():
    """The bound is the largest quantile over all shares of requests that wait, and it is attained."""
    for q in (0.9, 0.95, 0.99):
        for most in MOST_OF_WAIT:
            rho = np.linspace(1 - q, 0.9999, 50_001)[1:]
            theta = 1 / rho if np.isinf(most) else np.minimum(1 / rho, most / 2 / (1 - rho))
            assert longest_wait(q, most) == pytest.approx((theta * np.log(rho / (1 - q))).max(), rel=1e-4)
    assert longest_wait(None, 4.0) == longest_wait(0.5, 4.0) == 1.0


def test_forms_between_the_quantiles_they_were_found_for():
    assert ttft_form(0.95) == pytest.approx((0.82, 1.15, 1.06))
    low, middle, high = (np.array(ttft_form(q)) for q in (0.9, 1 - np.sqrt(0.1 * 0.05), 0.95))
    np.testing.assert_allclose(middle, (low + high) / 2)


def drawn(rates, inputs, outputs, n, seed):
    rng = np.random.default_rng(seed)
    kind = rng.choice(len(rates), n, p=rates / rates.sum())
    times = np.cumsum(rng.exponential(1 / rates.sum(), n))
    return Arrivals.of(times, inputs[kind].astype(int), outputs[kind].astype(int)), kind


@pytest.mark.parametrize(("load", "inputs", "outputs"), [
    (0.35, [300.0, 3000.0], [400.0, 150.0]), (0.6, [800.0, 100.0], [200.0, 60.0]), (0.8, [500.0], [300.0]),
])  # fmt: skip
def test_means_and_tails_are_those_of_the_simulator(load, inputs, outputs):
    inputs, outputs = np.array(inputs), np.array(outputs)
    classes, limits = Classes.of(inputs, outputs), EngineLimits(max_num_seqs=4096, max_num_batched_tokens=8192)
    c, room = Coefficients.of(PLAIN), 8192.0 - 4096
    work = c.prefill_work_s(inputs, 0.0, np.full_like(inputs, room), 1.0) + c.decode_work_s(inputs, outputs, 0.0)
    rates = load / work.sum() * np.ones_like(work)
    found = predict(PLAIN, classes, rates, limits)
    arrivals, kind = drawn(rates, inputs, outputs, 400_000, 3)
    seen = simulate(arrivals, [Engine(PLAIN, 10**8, limits.max_num_seqs, limits.max_num_batched_tokens)])
    steps = float(seen.busy_s[0] / seen.steps[0])
    assert found.step_s == pytest.approx(steps, rel=0.015)
    running = float((seen.finish_s - seen.start_s).sum() / seen.finish_s.max())
    assert found.running == pytest.approx(running, rel=0.05)
    for q in (0.5, 0.95, 0.99):
        tpot = float(np.quantile(seen.tpot_s, q))
        assert found.all_tpot_s[q] == pytest.approx(tpot, rel=0.2)
        for w in range(len(inputs)):
            ttft = float(np.quantile(seen.ttft_s[kind == w], q))
            assert found.ttft_s[q][w] == pytest.approx(ttft, rel=0.15)
    assert set(found.ttft_s) == {None, *QUANTILES}


def test_rates_within_the_rows_keep_step_crowd_cache_and_waits():
    """Two mixtures at the edge of a level: the simulator stays within what the level promises."""
    inputs, outputs = np.array([200.0, 1500.0]), np.array([250.0, 80.0])
    limits = EngineLimits(max_num_seqs=64, max_num_batched_tokens=2048)
    classes = Classes.of(inputs, outputs)
    points = operating_points([PLAIN], np.array([60_000.0]), limits, classes, np.array([[0.02]]))
    wait = np.array([[[0.05]]])
    rows = np.concatenate([points.load[:, 0, 0], points.waiting(wait, np.inf)[0, 0]])
    for mixture in ([0.9, 0.1], [0.3, 0.7]):
        rates = np.array(mixture)
        rates /= (rows @ rates).max()
        arrivals, kind = drawn(rates, inputs, outputs, 100_000, 5)
        seen = simulate(arrivals, [Engine(PLAIN, 60_000, 64, 2048)])
        assert seen.busy_s[0] / seen.steps[0] <= 0.02 * 1.01
        assert seen.preemptions.sum() <= 0.005 * 100_000
        assert seen.queue_s.mean() <= 0.05 + 0.02
        for q in (None, 0.95, 0.99):
            base, waits = points.ttft_s(q, np.inf)
            for w in range(2):
                mine = seen.ttft_s[kind == w]
                value = mine.mean() if q is None else np.quantile(mine, q)
                assert value <= base[0, 0, w] + waits * 0.05
                each = seen.tpot_s[kind == w]
                at_most = 1.03 * points.tpot_s(q)[0, 0, w]
                assert (each.mean() if q is None else np.quantile(each, q)) <= at_most


def test_what_a_prompt_leaves_behind_by_hand():
    """F of a class alone: the share of time that goes to prompts, of a prompt's own seconds."""
    classes, limits = Classes.of([300.0], [101.0]), EngineLimits(max_num_seqs=64, max_num_batched_tokens=2048)
    p = operating_points([PLAIN], np.array([1e9]), limits, classes, np.array([[0.02]]))
    prompt, rho, decodes = 300 * 3e-5, 0.5, 100
    work = prompt + decodes * 3e-5 + 8e-8 * (decodes * 300 + 99 * decodes / 2)
    after = rho * prompt / work * prompt
    assert p.following_s[0, 0, 0] == pytest.approx(after)
    each, d = work / 101, (work - prompt) / decodes
    assert p.tpot_s(None)[0, 0, 0] == pytest.approx((0.01 + each) / rho - each + d + after / (1 - rho) / decodes)
    assert p.bursts[0, 0, 0] == pytest.approx(after * 0.02 / decodes / (1 - rho * prompt / work) ** 2)
    assert p.ttft_s(None, np.inf)[0][0, 0, 0] == pytest.approx(0.5 * 0.02 + 0.02 + prompt + after / 2)


def test_the_mean_step_is_planned_by_the_clock():
    """One class of long prompts with short answers, full: steps last 1.8 t, and t with idle time as steps of a₀."""
    costs = StepCosts(0.004, prompt_token_s=5e-5, decode_request_s=3e-5, context_s=8e-8, mixed_context_s=8e-8)
    inputs, outputs = np.array([3000.0]), np.array([39.0])
    p = operating_points(
        [costs], np.array([1e7]), EngineLimits(), Classes.of(inputs, outputs), np.array([[0.006]])
    )  # fmt: skip
    rates = 1 / p.load[:, 0, 0].max(axis=0)
    arrivals, _ = drawn(rates, inputs, outputs, 60_000, 3)
    seen = simulate(arrivals, [Engine(costs, 10**7, 256, 8192)])
    seconds, busy, steps = seen.finish_s.max(), seen.busy_s[0], seen.steps[0]
    idle = 1 - busy / seconds
    assert busy / steps == pytest.approx(0.004 / (1 - (1 - 4 / 6) / (1 - idle)), rel=0.02)
    assert busy / steps > 1.8 * 0.006
    assert seconds / (steps + (seconds - busy) / 0.004) == pytest.approx(0.006, rel=0.01)
    assert seen.tpot_s.mean() <= p.tpot_s(None)[0, 0, 0]


def test_bursts_of_prompts_are_those_of_any_mixture():
    """Two classes by hand, the planned mixture of one alone; a third that cache cannot hold does not count."""
    inputs, outputs = np.array([150.0, 2000.0, 90_000.0]), np.array([51.0, 61.0, 20.0])
    classes = Classes.of(inputs, outputs, weight=np.array([0.95, 0.05, 1e-9]))
    limits = EngineLimits(max_num_batched_tokens=4096)
    p = operating_points([PLAIN], np.array([80_000.0]), limits, classes, np.array([[0.02]]))
    assert np.isinf(p.load[MEMORY, 0, 0, 2])
    prompt, decodes = inputs * 3e-5, outputs - 1
    work = prompt + decodes * 3e-5 + 8e-8 * (decodes * inputs + (decodes - 1) * decodes / 2)
    share, square = 0.5 * (prompt / work)[1], 0.5 * (prompt**2 / work)[1]
    assert p.bursts[0, 0] == pytest.approx(square * 0.02 / decodes / (1 - share) ** 2)
    for mixture in np.random.default_rng(1).dirichlet(np.full(2, 0.3), 200):
        rates = mixture / (mixture @ p.load[TIME, 0, 0, :2])
        assert rates @ prompt[:2] <= share * (1 + 1e-9)
        assert rates @ prompt[:2] ** 2 <= square * (1 + 1e-9)


def test_short_answers_beside_more_long_prompts_than_planned_keep_their_time_per_token():
    """One in twenty planned, one in five there: with the planned mixture's bursts p99 would be 15 % too low."""
    inputs, outputs = np.array([150.0, 2000.0]), np.array([50.0, 60.0])
    planned, limits = np.array([0.95, 0.05]), EngineLimits(max_num_batched_tokens=4096)
    p = operating_points(
        [PLAIN], np.array([1e7]), limits, Classes.of(inputs, outputs, weight=planned), np.array([[0.02]])
    )
    rates = np.array([0.8, 0.2])
    rates /= (p.load[:, 0, 0] @ rates).max()
    arrivals, kind = drawn(rates, inputs, outputs, 60_000, 3)
    got = np.quantile(simulate(arrivals, [Engine(PLAIN, 10**7, 256, 4096)]).tpot_s[kind == 0], 0.99)
    share = 0.5 * (planned @ inputs * 3e-5) / (planned @ p.work_s[0, 0])  # of time that goes to prompts
    of_planned = p.following_s[0, 0, 0] * 0.02 / 49 / (1 - share) ** 2
    assert 1.1 * replace(p, bursts=np.full_like(p.bursts, of_planned)).tpot_s(0.99)[0, 0, 0] < got
    assert got <= p.tpot_s(0.99)[0, 0, 0]


def test_all_slots_may_be_filled_with_the_heaviest_class_that_can_be_there():
    """TPOT of a light class: others' crowd, counted in its own work, is more than there are slots."""
    weight = np.array([0.98, 0.019999, 0.000001])
    classes = Classes.of([20.0, 4000.0, 90_000.0], [200.0, 20.0, 20.0], weight=weight)
    limits, level = EngineLimits(max_num_seqs=16, max_num_batched_tokens=2048), np.array([[0.02]])
    every, two = (operating_points([PLAIN], np.array([kv]), limits, classes, level) for kv in (1e9, 90_000.0))
    assert np.isinf(two.load[MEMORY, 0, 0]).tolist() == [False, False, True]
    for p, heaviest in ((every, 2), (two, 1)):
        light, c = p.crowd_s[0, 0, 0], p.work_s[0, 0, heaviest] / p.steps[0, 0, heaviest]
        crowd = crowd_quantile(0.95, np.array(0.5 * 0.01 / light), np.array(0.5), p.bursts[0, 0, 0] / light**2)
        assert crowd > 16
        added = 1.15 * min(float(crowd) * light, 16 * c)
        assert p.tpot_s(0.95)[0, 0, 0] == pytest.approx(0.01 + added + p.left_s[0, 0, 0])
    assert two.tpot_s(0.95)[0, 0, 0] > 0.01 + 1.15 * 16 * light  # of its own kind alone


def test_light_requests_beside_heavy_ones_keep_their_time_per_token():
    """The level's mixture is of light requests nearly alone; of the rates more than twice as many are heavy."""
    costs = StepCosts(0.018, prompt_token_s=2.2e-5, decode_request_s=2e-5, context_s=1.5e-7, mixed_context_s=1.5e-7)
    inputs, outputs = np.array([500.0, 4800.0]), np.array([180.0, 26.0])
    classes, limits = Classes.of(inputs, outputs, weight=np.array([0.9, 0.1])), EngineLimits(max_num_seqs=256)
    p = operating_points([costs], np.array([1e7]), limits, classes, np.array([[0.08]]))
    rates = np.array([0.78, 0.22])
    rates /= (p.load[:, 0, 0] @ rates).max()
    arrivals, kind = drawn(rates, inputs, outputs, 60_000, 3)
    seen = simulate(arrivals, [Engine(costs, 10**7, 256, 8192)])
    got = np.quantile(seen.tpot_s[kind == 0], 0.95)
    assert 0.018 + 1.15 * 256 * p.crowd_s[0, 0, 0] + p.left_s[0, 0, 0] < got <= p.tpot_s(0.95)[0, 0, 0]


def test_the_best_level_lies_where_a_limit_per_token_binds():
    """Of two engines with the same class; with a looser limit it is no shorter."""
    classes, limits = Classes.of([300.0], [101.0]), EngineLimits()
    levels = levels_of_loads([PLAIN, EVERYTHING], np.array([0.2, 0.5, 0.8, 0.95]))

    def missed(step_s, at_most=0.031):
        p = operating_points([PLAIN, EVERYTHING], np.array([1e6, 1e6]), limits, classes, step_s)
        return p.missed(p.tpot_s(None), at_most)[..., 0], np.where(p.exists, 1.0 / p.load[TIME, ..., 0], 0.0)

    every = with_best_steps(levels, missed)
    assert every.shape == (2, levels.shape[1] + 1) and (np.diff(every, axis=1) >= 0).all()
    longest = np.zeros(2)
    for e in range(2):
        assert np.isin(levels[e], every[e]).all()
        kept = every[e][missed(every)[0][e] <= 1]
        assert missed(np.full((2, 1), kept.max()))[0][e, 0] == pytest.approx(1.0, rel=1e-3)
    for at_most in np.linspace(0.02, 0.06, 30):
        found = with_best_steps(levels, lambda t, at_most=at_most: missed(t, at_most))
        now = np.where(missed(found, at_most)[0] <= 1, found, 0.0).max(axis=1)
        assert (now >= longest).all()
        longest = now


def test_a_relaxed_case_carries_no_less_whatever_the_functions_look_like():
    """Steps that fit and requests/s drawn at random: the relaxed case fits wherever the tighter one does."""
    gained = searched = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        P, L = 3, int(rng.integers(2, 7))
        steps = np.sort(rng.uniform(0.01, 0.1, (P, L)), axis=1)
        rough, smooth = rng.choice([0.0, 0.02, 1.0]), rng.uniform(-1.0, 20.0)
        limit = np.array([rng.uniform(0.02, 0.1), rng.uniform(0.02, 0.1)])
        limit.sort()

        def noise(t, salt, seed=seed):
            return np.modf(np.abs(np.sin(t * 1e4 * (seed + salt + 1.0))) * 1e3)[0]

        def carried(t, rough=rough, smooth=smooth, noise=noise):
            return 1.0 + smooth * t + rough * noise(t, 0.5)

        def seen(t, case, limit=limit, rough=rough, noise=noise):
            fits = t + 0.05 * rough * noise(t, 0.25) <= limit[case]
            return np.where(fits, 1.0, 2.0), carried(t)

        missed = np.stack([seen(steps, np.array([n]))[0] for n in (0, 1)])
        found = longest_steps(steps, missed, carried(steps), seen)
        J = found.shape[1] // 2
        best = []
        for n in (0, 1):
            every = np.concatenate([steps, found[:, n * J : n * J + J]], axis=1)
            fits = seen(every, np.array([n]))[0] <= 1.0
            best.append(np.where(fits, carried(every), 0.0).max(axis=1))
            searched += int((fits[:, L:] & (every[:, L:] > steps[:, :1])).sum())
        assert (best[1] >= best[0]).all(), seed
        gained += int((best[1] > best[0]).sum())
    assert gained > 100 and searched > 100


def test_fixed_loads_are_among_finer_ones_and_among_those_of_a_larger_load():
    for parts in (4, 16):
        assert np.isin(loads_of_levels(), loads_of_levels(parts=parts)).all()
    assert np.isin(loads_of_levels(0.5), loads_of_levels(0.95)).all()
    few, some, all_of = (levels_of_loads([EVERYTHING], loads_of_levels(least=x)) for x in (0.2, 0.01, 1e-6))
    assert np.isin(few, some).all() and np.isin(some, all_of).all()
    assert loads_of_levels()[-1] == pytest.approx(0.95) and loads_of_levels(0.949)[-1] < 0.949


def carried(costs, limits, classes, step, stage):
    """Requests/s of the only class, waiting aside, and the rows that bind."""
    rows = operating_points([costs], np.array([1e5]), limits, classes, np.array([[step]]), stage).load[:, 0, 0, 0]
    return 1 / rows.max(), rows


@pytest.mark.parametrize(
    ("stage", "limits", "row"),
    [
        # With few slots these are scarcer than time already at the shortest level: the best step is a shorter one.
        ("both", EngineLimits(max_num_seqs=8, max_num_batched_tokens=2048), RUNNING),
        # Where nothing is decoded a longer step takes more of nothing but the tokens of a step.
        ("prefill", EngineLimits(max_num_seqs=256, max_num_batched_tokens=1024), TOKENS),
    ],
)
def test_the_best_step_of_a_class_carries_more_than_any_other(stage, limits, row):
    classes = Classes.of([300.0], [101.0])
    levels = levels_of_loads([PLAIN], np.array([0.35, 0.95]))

    def missed(step_s):
        p = operating_points([PLAIN], np.array([1e5]), limits, classes, step_s, stage)
        return p.missed(np.zeros_like(p.work_s), np.inf)[..., 0], np.where(p.exists, 1.0 / p.load[TIME, ..., 0], 0.0)

    (step,) = set(with_best_steps(levels, missed)[0]) - set(levels[0])
    assert (step < 0.0154) == (stage == "both")  # the shortest level's, 0.01/(1 - 0.35)
    most, rows = carried(PLAIN, limits, classes, step, stage)
    assert rows[row] == pytest.approx(rows[TIME], rel=5e-3) and rows.argmax() in (row, TIME)
    for other in np.geomspace(0.0101, 0.2, 200):
        assert carried(PLAIN, limits, classes, other, stage)[0] <= most * 1.005


def test_a_level_below_what_a_step_takes_does_not_exist():
    classes = Classes.of([300.0], [100.0])
    points = operating_points([PLAIN, EVERYTHING], np.array([1e5, 1e5]), EngineLimits(), classes,
                              np.array([[0.009, 0.03], [0.009, 0.03]]))  # fmt: skip
    assert points.exists.tolist() == [[False, True], [False, True]]
    assert np.isinf(points.load[:, :, 0]).all()
    assert np.isfinite(points.load[:, :, 1]).all()
    # Requests that the cache cannot hold are served nowhere.
    short = operating_points([PLAIN], np.array([350.0]), EngineLimits(), classes, np.array([[0.03]]))
    assert np.isinf(short.load[MEMORY]).all()
