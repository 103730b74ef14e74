"""Time between tokens: bounds of levels and predictions next to the step simulator, and the check's own arithmetic."""

import numpy as np
import pytest

from optmodels.engine.between import after_first
from optmodels.engine.continuous import (
    Classes,
    Coefficients,
    EngineLimits,
    chunks_quantile,
    levels_of_loads,
    operating_points,
    predict,
)
from optmodels.latency.steps import StepCosts
from optmodels.plans.engines import Request, at_level, between_tokens
from optmodels.simulation.continuous import EDGES_S, Arrivals, Engine, Gaps, at_quantile, of_edges, simulate
from tests.adversary import continuous

QUANTILES = (0.9, 0.95, 0.99)


def drawn(rng):
    """Costs of a step, prompts, answers and shares of one to three classes."""
    n = int(rng.integers(1, 4))
    costs = StepCosts(
        fixed_s=rng.uniform(0.004, 0.02), prompt_step_s=float(rng.choice([0.0, rng.uniform(0.0, 0.03)])),
        prompt_token_s=rng.uniform(1e-5, 6e-5), prompt_pair_s=rng.uniform(0, 2e-9),
        decode_request_s=rng.uniform(1e-5, 5e-5), context_s=(context := rng.uniform(2e-8, 2e-7)),
        mixed_context_s=context,
    )  # fmt: skip
    inputs = np.rint(np.exp(rng.uniform(np.log(50), np.log(6000), n)))
    outputs = np.rint(np.exp(rng.uniform(np.log(20), np.log(400), n)))
    return costs, inputs, outputs, rng.dirichlet(np.full(n, 2.0))


def served(rng, costs, kv, limits, rates, inputs, outputs, count=6000):
    """Times between tokens of Poisson arrivals, by class."""
    kind = rng.choice(len(rates), count, p=rates / rates.sum())
    arrivals = Arrivals.of(
        np.cumsum(rng.exponential(1 / rates.sum(), count)), inputs[kind].astype(int), outputs[kind].astype(int)
    )
    engine = Engine(costs, int(kv), limits.max_num_seqs, limits.max_num_batched_tokens)
    group = np.where(np.arange(count) < count // 10, -1, kind)
    return simulate(arrivals, [engine], gaps=Gaps(EDGES_S, group)).gaps


def test_levels_bound_what_the_simulator_sees_between_tokens():
    """Of levels that any mixture fills: most bounds hold, and none is far off (`benchmarks/continuous.py promises`)."""
    rng, ratios = np.random.default_rng(5), []
    while len(ratios) < 150:
        costs, inputs, outputs, share = drawn(rng)
        limits = EngineLimits(max_num_seqs=int(rng.choice([64, 256])), max_num_batched_tokens=4096)
        kv = rng.uniform(50_000, 600_000)
        classes = Classes.of(inputs, outputs, weight=share)
        step = levels_of_loads([costs], np.array([rng.uniform(0.2, 0.9)]))[:, -1:]
        points = operating_points([costs], np.array([kv]), limits, classes, step)
        rows = np.concatenate([points.load[:, 0, 0], points.waiting(np.full((1, 1, 1), 0.3), np.inf)[0, 0]])
        if not np.isfinite(rows).all():
            continue
        mixture = rng.dirichlet(np.ones(len(inputs)))
        gaps = served(rng, costs, kv, limits, mixture / (rows @ mixture).max(), inputs, outputs)
        for w, counts in enumerate(gaps):
            if counts.sum() > 50_000:
                ratios += [at_quantile(*of_edges(EDGES_S, counts), q) / points.itl_s(q)[0, 0, w] for q in QUANTILES]
    ratios = np.array(ratios)
    assert (ratios > 1.03).mean() <= 0.03 and ratios.max() < 1.2 and np.median(ratios) > 0.5


@pytest.mark.parametrize(("prompt", "output", "load"), [(1500, 3, 0.1), (3000, 3, 0.15), (1500, 12, 0.2)])
def test_the_steps_of_short_answers_follow_that_of_their_prompt(prompt, output, load):
    """More prompts come in a long step: without that, no pause of nine in ten had one."""
    costs, limits = StepCosts(0.011, 0.0, 5e-5, 0.0, 0.0, 2e-5, 5e-8, 5e-8), EngineLimits(max_num_seqs=256)
    classes = Classes.of([float(prompt)], [float(output)])
    points = operating_points(
        [costs], np.array([4e5]), limits, classes, levels_of_loads([costs], np.array([load]))[:, -1:]
    )
    rows = np.concatenate([points.load[:, 0, 0], points.waiting(np.full((1, 1, 1), 0.5), np.inf)[0, 0]])
    rng = np.random.default_rng(3)
    [counts] = served(rng, costs, 4e5, limits, 1.0 / rows.max(axis=0), np.array([prompt]), np.array([output]))
    for q in QUANTILES:
        assert at_quantile(*of_edges(EDGES_S, counts), q) <= points.itl_s(q)[0, 0, 0], q


def test_predictions_are_near_what_the_simulator_sees():
    rng, errors = np.random.default_rng(7), []
    while len(errors) < 45:
        costs, inputs, outputs, share = drawn(rng)
        limits, classes = EngineLimits(max_num_seqs=2000, max_num_batched_tokens=8192), Classes.of(inputs, outputs)
        c = Coefficients.of(costs)
        work = c.prefill_work_s(inputs, 0.0, np.full_like(inputs, 8192.0), 1.0) + c.decode_work_s(inputs, outputs, 0.0)
        rates = rng.uniform(0.3, 0.8) / (share @ work) * share
        try:
            found = predict(costs, classes, rates, limits)
        except ValueError:
            continue
        if not np.isfinite(found.waiting_s) or found.running > 1000:
            continue
        seen = of_edges(EDGES_S, served(rng, costs, 1e9, limits, rates, inputs, outputs).sum(axis=0))
        errors += [found.between.at(q) / at_quantile(*seen, q) - 1 for q in QUANTILES]
        for q in QUANTILES:
            assert found.between.within(found.between.at(q)) >= q - 1e-6
    assert np.median(np.abs(errors)) < 0.04 and np.mean(np.abs(errors)) < 0.12


@pytest.mark.parametrize("mean", [1e-9, 0.02, 0.7, 4.0, 25.0])
def test_chunks_are_negative_binomial(mean):
    from scipy.stats import nbinom

    for busy in (1e-6, 0.3, 0.9):
        for q in (0.5, 0.95, 0.995):
            expected = nbinom.ppf(q, mean * (1 - busy**2) / busy**2, 1 - busy**2)
            assert chunks_quantile(q, np.array([[mean]]), np.array([busy]), np.array([500.0]), np.ones(1)) == [expected]
    assert chunks_quantile(0.99, np.array([[mean]]), np.array([0.5]), np.array([0.0]), np.ones(1)) == [0.0]


def test_chunks_may_have_any_of_several_means():
    from scipy.stats import nbinom

    means, chance, busy = np.array([0.1, 4.0, 9.0]), np.array([0.5, 0.3, 0.2]), 0.6
    within = [chance @ nbinom.cdf(k, means * (1 - busy**2) / busy**2, 1 - busy**2) for k in range(60)]
    for q in (0.3, 0.9, 0.99):
        expected = float(np.searchsorted(within, q))
        assert chunks_quantile(q, means[None], np.array([busy]), np.array([500.0]), chance) == [expected]


@pytest.mark.parametrize("stage", ["both", "decode"])
@pytest.mark.parametrize("chunk", [None, 700])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_check_finds_the_same_bound(stage, chunk, ranks):
    costs = StepCosts(0.01, 0.004, 3e-5, 1e-9, 1e-9, 3e-5, 1e-7, 1e-7, prompt_expert_s=1e-5)
    limits = EngineLimits(max_num_seqs=128, max_num_batched_tokens=2048, chunk_tokens=chunk)
    inputs, outputs, weight = np.array([300.0, 5000.0, 900.0]), np.array([200.0, 60.0, 5.0]), np.array([2.0, 1.0, 1.0])
    step = levels_of_loads([costs], np.array([0.5]))[:, -1:]
    points = operating_points(
        [costs], np.array([2e5]), limits, Classes.of(inputs, outputs, weight=weight), step, stage,
        attention_ranks=ranks,
    )  # fmt: skip
    requests = {
        str(k): Request(i, i if stage == "both" else 0.0, o, w)
        for k, (i, o, w) in enumerate(zip(inputs, outputs, weight, strict=True))
    }
    level = at_level(limits, costs, 2e5, requests, float(step[0, 0]), stage, ranks)
    for q in (None, 0.5, 0.95, 0.99, 0.999):
        mine = [*between_tokens(level, costs, limits, dict.fromkeys(requests, q), float(step[0, 0]), 128).values()]
        assert points.itl_s(q)[0, 0] == pytest.approx(mine, rel=1e-6), q
    # The adversary's own, from docs/engine.md.
    kinds = [continuous.Kind(i, o, 0.0, w) for i, o, w in zip(inputs, outputs, weight, strict=True)]
    x = continuous.level(costs, kinds, limits, 2e5, float(step[0, 0]), stage, [0.0] * 3, ranks)
    for q in (None, 0.5, 0.95, 0.99, 0.999):
        found = continuous.longest_pause_s(costs, x, kinds, limits, [0.0] * 3, "both", q)
        if stage == "both":
            assert found == pytest.approx(points.itl_s(q).max(), rel=1e-6), q


def test_of_many_times_between_tokens_a_first_one_may_be_longer():
    assert after_first(0.95, 101.0) == pytest.approx(1 - 4.05 / 100)
    assert after_first(0.99, 50.0) is None
