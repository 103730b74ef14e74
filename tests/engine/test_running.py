"""Engines at the rates they have: against the step simulator, and dispatchers' shares worked by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from optmodels.engine.continuous import Classes, EngineLimits
from optmodels.engine.running import running, shares
from optmodels.latency.steps import StepCosts
from optmodels.simulation.continuous import Arrivals, Engine, simulate

COSTS = StepCosts(
    fixed_s=0.02, prompt_step_s=0.001, prompt_token_s=2e-5, prompt_pair_s=0.0, prompt_context_s=0.0,
    decode_request_s=2e-4, context_s=1e-7, mixed_context_s=1e-7, request_s=0.0,
)  # fmt: skip
CLASSES = Classes.of([500.0, 2000.0], [200.0, 100.0])


def simulated(rates, kv_tokens, limits, n=20_000):
    rng = np.random.default_rng(0)
    kind = rng.choice(2, n, p=rates / rates.sum())
    arrivals = Arrivals.of(
        np.cumsum(rng.exponential(1 / rates.sum(), n)), np.array([500, 2000])[kind], np.array([200, 100])[kind]
    )  # fmt: skip
    one = Engine(COSTS, int(kv_tokens), limits.max_num_seqs, limits.max_num_batched_tokens)
    return simulate(arrivals, [one]), kind


@pytest.mark.parametrize("max_num_seqs", [256, 24])
@pytest.mark.parametrize("total", [2.0, 4.0])
def test_the_share_within_a_limit_is_that_of_the_simulation(total, max_num_seqs):
    """With slots to spare, and with so few that a share of the requests waits for one."""
    rates = np.array([0.7, 0.3]) * total
    limits = EngineLimits(max_num_seqs=max_num_seqs)
    found = running(COSTS, 1.0, CLASSES, rates, 1e7, limits)
    seen, kind = simulated(rates, 1e7, limits)
    assert found.step_s == pytest.approx(float(seen.busy_s[0] / seen.steps[0]), rel=0.05)
    for klass in range(2):
        mine = kind == klass
        for what, limit in (("ttft_s", 0.5), ("e2e_s", 8.0), ("tpot_s", 0.04)):
            inside = float((getattr(seen, what)[mine] <= limit).mean())
            assert found.within(what, klass, limit) == pytest.approx(inside, abs=0.08), what


@pytest.mark.parametrize("lengths", [([500, 4000], [200, 100]), ([60, 60], [30, 60])])
@pytest.mark.parametrize("ranks", [2, 8])
def test_engines_of_ranks_are_near_the_simulation(ranks, lengths):
    """Long chunks, for which other ranks wait, and short ones, of which a step has more than there are ranks."""
    prompts, outputs = (np.array(x) for x in lengths)
    rates, limits = np.array([0.7, 0.3]) * 2500.0 / prompts.mean(), EngineLimits()
    classes = Classes.of(prompts.astype(float), outputs.astype(float))
    costs = replace(COSTS, prompt_expert_s=5e-6)
    found = running(costs, 1.0, classes, rates, 1e8, limits, ranks)
    rng, n = np.random.default_rng(0), 40_000
    kind = rng.choice(2, n, p=rates / rates.sum())
    arrivals = Arrivals.of(np.cumsum(rng.exponential(1 / rates.sum(), n)), prompts[kind], outputs[kind])
    seen = simulate(arrivals, [Engine(costs, 10**8, ranks=ranks)])
    step = float(seen.busy_s[0] / seen.steps[0])
    assert found.step_s == pytest.approx(step, rel=0.1)
    assert float(rates @ found.tpot_s[None]) / rates.sum() == pytest.approx(float(seen.tpot_s.mean()), rel=0.1)
    for k, each in enumerate(found.tpot_s[None]):
        assert each == pytest.approx(float(seen.tpot_s[kind == k].mean()), rel=0.15)
    as_one = running(costs, 1.0, classes, rates, 1e8, limits)
    assert abs(found.step_s - step) < abs(as_one.step_s - step)
    for klass in range(2):
        ttft = seen.ttft_s[kind == klass]
        assert found.ttft_s[None][klass] == pytest.approx(ttft.mean(), rel=0.15)
        assert found.at("ttft_s", klass, 0.95) == pytest.approx(np.quantile(ttft, 0.95), rel=0.35)


def test_answers_of_one_token_have_no_time_per_output_token():
    """Alone on an engine, where nothing decodes, and beside others, whose time is not theirs."""
    alone = running(COSTS, 1.0, Classes.of([500.0], [1.0]), np.array([2.0]), 1e7, EngineLimits())
    both = running(COSTS, 1.0, Classes.of([500.0, 2000.0], [1.0, 100.0]), np.array([2.0, 1.0]), 1e7, EngineLimits())
    for share in (None, 0.95):
        assert alone.at("tpot_s", 0, share) == both.at("tpot_s", 0, share) == 0.0 < both.at("tpot_s", 1, share)
        assert alone.at("e2e_s", 0, share) == alone.at("ttft_s", 0, share)
    assert both.within("tpot_s", 0, 1e-6) == 0.999 > both.within("tpot_s", 1, 0.02)


def test_ranks_share_slots_and_each_has_its_own_cache():
    rates, limits = np.array([3.0, 1.0]), EngineLimits(max_num_seqs=8)
    assert running(COSTS, 1.0, CLASSES, rates, 1e7, limits).load == 1.0
    four = running(COSTS, 1.0, CLASSES, rates, 1e7, limits, 4)
    assert four.load < 1.0 and four.slots == pytest.approx(four.running / 32)
    assert running(COSTS, 1.0, CLASSES, rates * 0.1, 4000.0, limits).load < 1.0
    assert running(COSTS, 1.0, CLASSES, rates * 0.1, 4000.0, limits, 2).load == 1.0  # a rank holds 2,000 tokens


def test_what_never_fits_or_never_ends_is_overloaded():
    limits = EngineLimits()
    assert running(COSTS, 1.0, CLASSES, np.array([200.0, 200.0]), 1e7, limits).load == 1.0  # time
    assert running(COSTS, 1.0, CLASSES, np.array([3.0, 1.0]), 3000.0, limits).load == 1.0  # one request at a time
    assert running(COSTS, 1.0, CLASSES, np.array([3.0, 1.0]), 2000.0, limits).within("e2e_s", 0, 1e9) == 0.0
    few = replace(CLASSES)
    assert running(COSTS, 1.0, few, np.array([3.0, 1.0]), 1e7, EngineLimits(max_num_seqs=4)).load == 1.0  # slots


def test_shares_even_out_what_the_dispatcher_looks_at():
    """KV 0.2·s and 0.6·s of a group: a part of 3 to 1 for each engine; two of the first: 3/7, 3/7, 1/7."""

    def engine(kv, first_s):
        return lambda s: SimpleNamespace(
            kv=kv * s, running=10 * kv * s, e2e_s={None: np.array([first_s + 4 * kv * s])}
        )  # fmt: skip

    engines = [engine(0.2, 1.0), engine(0.6, 1.0)]
    for dispatcher in ("least_kv", "shortest_queue", "earliest_finish", "prefix_affine"):
        assert shares(dispatcher, engines, [2, 1]) == pytest.approx([3 / 7, 1 / 7], rel=1e-3), dispatcher
    assert shares("round_robin", engines, [2, 1]) == pytest.approx([1 / 3, 1 / 3])
    # An engine that is slower empty than the other one full gets nothing of earliest finish.
    assert shares("earliest_finish", [engine(0.2, 1.0), engine(0.6, 2.0)], [1, 1]) == pytest.approx([1.0, 0.0])
