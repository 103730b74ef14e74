"""One engine step's seconds, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from optmodels.latency.steps import AttentionWindow, Experts, StepCosts

NONE = np.zeros(0)


def test_a_mixed_step_is_the_sum_of_its_parts() -> None:
    costs = StepCosts(
        fixed_s=1.0, prompt_step_s=0.5, prompt_token_s=0.01, prompt_pair_s=1e-4, prompt_context_s=1e-3,
        decode_request_s=0.2, context_s=1e-3, mixed_context_s=2e-3,
    )  # fmt: skip
    # One chunk of 10 tokens over 30 earlier ones; two decodes over 100 and 300.
    mixed = costs.step(np.array([10.0]), np.array([30.0]), np.array([100.0, 300.0]))
    assert mixed == pytest.approx(1.0 + 0.5 + 0.1 + 1e-4 * 10 * 35 + 0.03 + 0.4 + 2e-3 * 400)
    assert costs.step(NONE, NONE, np.array([100.0, 300.0])) == pytest.approx(1.0 + 0.4 + 0.4)
    assert costs.scaled(2.0).step(NONE, NONE, np.array([100.0, 300.0])) == pytest.approx(3.6)


def test_pairs_under_a_window_are_those_of_its_tokens() -> None:
    """Gemma 3 (arXiv 2503.19786 §2.1): five of six layers attend to the last 1,024 tokens."""
    costs = StepCosts(
        fixed_s=0.0, prompt_pair_s=1.0, window=AttentionWindow(share=5 / 6, tokens=1024, pair_share=5 / 6)
    )
    # A prompt of 4,096: 2,048 in the mean in one layer; in five 1024²/2 and 3,072 times 1,024, 1024·(1 − 1/8) a token.
    assert float(costs.pairs(4096, 0)) == pytest.approx(4096 * (2048 / 6 + 5 / 6 * 896))
    whole = costs.step(np.array([4096.0]), np.zeros(1), NONE)
    chunks = [costs.step(np.array([p]), np.array([k]), NONE) for p, k in ((700.0, 0.0), (1300.0, 700.0), (2096.0, 2e3))]
    assert sum(chunks) == pytest.approx(whole)
    middles = np.arange(500, 1500) + 0.5
    assert float(costs.pairs(1000, 500)) == pytest.approx(costs.seen(middles).sum(), rel=1e-6)
    picked = replace(
        costs, window=AttentionWindow(share=0.5, tokens=1024, pair_share=5 / 6)
    )  # the share of contexts is another
    assert picked.pairs(4096, 0) == costs.pairs(4096, 0) and picked.seen(2048) == 1536
    assert float(StepCosts(0.0).pairs(3, 4)) == 3 * (4 + 1.5)
    rank = (np.array([2096.0]), np.array([2e3]), NONE)
    assert costs.step_of_ranks([rank]) == pytest.approx(chunks[2])


def test_experts_and_windows() -> None:
    costs = StepCosts(
        fixed_s=0.0,
        context_s=1.0,
        experts=Experts(all_s=8.0, experts=4, active=2),
        window=AttentionWindow(0.5, 50, 0.5),
    )
    # Two tokens touch 1 − (1/2)² = 3/4 of the experts; a context of 150 counts (50 + 150)/2 = 100, one of 20 itself.
    assert costs.step(NONE, NONE, np.array([150.0, 20.0])) == pytest.approx(6.0 + 100.0 + 20.0)
    assert costs.scaled(0.5).step(NONE, NONE, np.array([150.0, 20.0])) == pytest.approx(63.0)
