"""What prefix caches have of prompts, counted in plans: by hand, against the literal form, and turned off."""

from __future__ import annotations

import numpy as np
import pytest
from orchestration_cases import agreeing, levels, two_models

from formulations.orchestration.check import check
from formulations.orchestration.methods.exact import exact
from formulations.orchestration.points import build_tables
from formulations.orchestration.prefixes import KV_BLOCK_TOKENS, Prompts, engines_alike
from formulations.orchestration.problem import Continuous
from optmodels.engine.continuous import TOKENS, longest_wait
from optmodels.formulation import Options
from optmodels.latency.steps import StepCosts
from optmodels.loading import load
from optmodels.simulation.continuous import Engine as SimulatedEngine

BLOCKS = 500
PROMPT = 16 * BLOCKS + 1


def alike(factors, more=None):
    """Requests with one prompt, a minute apart, of one model on one GPU; `factors`: θ of each."""
    n = len(factors)
    rows = {
        "arrival_s": [60.0 * i for i in range(n)], "output_tokens": [20] * n, "prompt_tokens": [PROMPT] * n,
        "slo_factor": factors, "prefix_blocks": [list(range(BLOCKS))] * n, "prefix_block_tokens": 16,
    }  # fmt: skip
    return load(two_models(
        10, models=[{"model": "mistral-7b"}], cluster={"servers": [{"server": "s", "gpu": "h100", "gpus": 1}]},
        candidates={"tp": [1], "batch": [1]}, latency={"model": "default"}, serving="continuous",
        engine={"waits": 0.5, "bursts": "none"}, requests={"rows": rows}, **(more or {}),
    ))  # fmt: skip


def tokens(x):
    """Of its requests' prompts in its cache."""
    kind = x.engine.stream.kind
    return (kind.cached * kind.input_tokens).tolist()


def between():
    """θ with which a request is in time where its prompt is cached, and only there."""
    t = build_tables(alike([100.0] * 5))
    (x,) = t.configurations
    cold, warm = (float(x.engine.seen_with(np.full(5, c)).e2e_s[0]) for c in (0.0, 16.0 * BLOCKS))
    assert warm < 0.8 * cold
    return (0.1 * warm + 0.9 * cold) / (20 * t.t_slice_s[0])


def test_an_engine_gets_the_part_of_one_of_so_many():
    assert [engines_alike(x) for x in (1.0, 0.5, 0.34, 0.3, 0.21, 1 / 6, 0.16, 1e-9)] == [1, 2, 3, 4, 6, 6, 8, 1024]


def test_who_is_refused_leaves_nothing_in_the_cache():
    """The first is too late and the second is not, so that the third, as urgent as the first, finds the prompt."""
    tight = between()
    (x,) = build_tables(alike([tight, 100.0, tight, tight, 100.0])).configurations
    assert tokens(x) == pytest.approx([0.0, 0.0, *[16.0 * BLOCKS] * 3])
    (x,) = build_tables(alike([tight] * 5)).configurations
    assert tokens(x) == [0.0] * 5
    problem = alike([tight, 100.0, tight, tight, 100.0])
    plan = exact(problem, build_tables(problem), Options(gap=0)).plan.model_dump(mode="json")
    assert plan["prediction"]["in_time"] == pytest.approx(4)
    assert check(problem, plan).violations == []
    off = alike([tight, 100.0, tight, tight, 100.0], {"prefix_cache": {"hits": "none"}})
    whole = exact(off, build_tables(off), Options(gap=0)).plan
    assert whole.prediction.in_time == pytest.approx(2)
    assert check(off, plan).violations != []


def test_blocks_that_engines_cannot_share_are_not_counted():
    given = alike([100.0] * 2).model_dump(mode="json", exclude_unset=True)
    given["requests"]["rows"] |= {"prefix_blocks": [list(range(80))] * 2, "prefix_block_tokens": 100}
    (x,) = build_tables(load(given)).configurations
    assert tokens(x) == [0.0] * 2
    assert SimulatedEngine.__dataclass_fields__["block_tokens"].default == KV_BLOCK_TOKENS


def test_the_least_blocks_that_are_enough():
    prompts = Prompts(alike([1.0] * 4).resolve().trace)
    least = np.array([0, 1, 333, BLOCKS + 1])
    asked = []

    def in_time(cached):
        asked.append(1)
        return cached / 16 >= least

    assert prompts.needed(in_time).tolist() == least.tolist()
    assert len(asked) <= 10


def test_a_level_by_hand():
    """Of 1,000 prompt tokens 400 are cached: 6 ms of prompts, 100 tokens of 0.1 ms each, 16 ms in 101 steps."""
    costs = StepCosts(0.010, prompt_token_s=10e-6, decode_request_s=100e-6)
    limits = Continuous(max_num_seqs=64, max_num_batched_tokens=1064, waits=0.5)
    (e,) = levels(costs, limits, [1000], [101], [8], stream=(40.0, 1.0), cached=lambda plain, at: np.array([400.0]))
    t = 0.010 + 8 * 0.016 / 101
    assert e.step_s == pytest.approx(t)
    turn = 0.6 * (0.010 + (t - 0.010) * 10 / 16) + 0.006
    assert e.wait_s * longest_wait(0.8, np.inf) == pytest.approx(turn / 2)
    assert e.load[TOKENS, 0] == pytest.approx(600 * t / 900)
    assert e.part == pytest.approx(8 / (101 * t) / 40)  # of the stream, by Little's law
    assert e.idle_kv_tokens == pytest.approx(100_000 - 8 * (1000 + 100 * 50.5 / 101))  # beside 8 with half an answer
    cold = levels(costs, limits, [1000], [101], [8])[0]
    assert cold.step_s > e.step_s and cold.sees.first_s[0] > e.sees.first_s[0]


def family(seed, count=7):
    rng = np.random.default_rng(seed)
    blocks = [[k * 100 + d for d in range(60)] for k in rng.integers(0, 2, count).tolist()]
    return {
        "arrival_s": (2.0 * np.sort(rng.integers(0, 4, count))).tolist(),
        "output_tokens": rng.choice(np.arange(20, 200), count, replace=False).tolist(), "prompt_tokens": [1000] * count,
        "slo_factor": rng.uniform(1.2, 2.5, count).round(3).tolist(), "prefix_blocks": blocks,
        "prefix_block_tokens": 16,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_literal_and_column_form_agree(seed):
    given = two_models(
        10, models=[{"model": "mistral-7b"}], cluster={"servers": [{"server": "s", "gpu": "h100", "gpus": 2}]},
        candidates={"tp": [1, 2], "batch": [1, 4]}, latency={"model": "default"}, serving="continuous",
        requests={"rows": family(seed)}, bins={"lengths": 50, "slo": 50, "seconds": 2.0},
    )  # fmt: skip
    t, column = agreeing(load(given))
    assert any(any(tokens(x)) for x in t.configurations)
    assert column.plan.prediction.in_time > 0
    rows = {k: v for k, v in family(seed).items() if not k.startswith("prefix")}
    without = build_tables(load(given | {"requests": {"rows": rows}}))
    off = build_tables(load(given | {"prefix_cache": {"hits": "none"}}))
    for name in ("service_s", "first_s", "share", "wait_s"):
        np.testing.assert_array_equal(getattr(without, name), getattr(off, name))
    assert not np.array_equal(off.first_s, t.first_s)
