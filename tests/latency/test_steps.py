"""One engine step's seconds, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from optmodels.latency.steps import Experts, StepCosts, Window

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


def test_experts_and_windows() -> None:
    costs = StepCosts(
        fixed_s=0.0, context_s=1.0, experts=Experts(all_s=8.0, experts=4, active=2), window=Window(share=0.5, tokens=50)
    )
    # Two tokens touch 1 − (1/2)² = 3/4 of the experts; a context of 150 counts (50 + 150)/2 = 100, one of 20 itself.
    assert costs.step(NONE, NONE, np.array([150.0, 20.0])) == pytest.approx(6.0 + 100.0 + 20.0)
    assert costs.scaled(0.5).step(NONE, NONE, np.array([150.0, 20.0])) == pytest.approx(63.0)
