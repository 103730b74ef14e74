"""Costs of a step: worked by hand, and batches in closed form against their steps one by one."""

from __future__ import annotations

import numpy as np
import pytest

from optmodels.errors import InputError
from optmodels.latency.steps import AttentionWindow, Experts, Provenance, StepCosts, static_batch

NONE = np.zeros(0)
COSTS = StepCosts(
    fixed_s=1.0, prompt_step_s=0.5, prompt_token_s=0.01, prompt_pair_s=0.001, prompt_context_s=0.002,
    decode_request_s=0.1, context_s=0.003, mixed_context_s=0.004, request_s=7.0,
)  # fmt: skip
RICH = StepCosts(**vars(COSTS) | {"experts": Experts(2.0, 8, 2), "window": AttentionWindow(0.5, 40, 0.5)})


def test_a_step_by_hand() -> None:
    chunk = COSTS.step(np.array([10.0]), np.array([20.0]), np.array([30.0, 50.0]))
    assert chunk == pytest.approx(1.0 + 0.5 + 0.01 * 10 + 0.001 * 10 * 25 + 0.002 * 20 + 0.1 * 2 + 0.004 * 80)
    assert COSTS.step(NONE, NONE, np.array([30.0])) == pytest.approx(1.0 + 0.1 + 0.003 * 30)
    seen = 0.5 * 40 + 0.5 * 100
    assert RICH.step(NONE, NONE, np.array([100.0])) == pytest.approx(1 + 2.0 * (1 - 0.75) + 0.1 + 0.003 * seen)


def test_scaling_scales_every_second() -> None:
    chunk = np.array([10.0]), np.array([50.0]), np.array([30.0])
    assert RICH.scaled(3.0).step(*chunk) == pytest.approx(3.0 * RICH.step(*chunk))
    assert RICH.scaled(3.0).request_s == 21.0


@pytest.mark.parametrize("costs", [COSTS, RICH], ids=["dense", "experts and windows"])
@pytest.mark.parametrize(("S", "out", "chunk"), [(30, 5, 100), (30, 1, 8), (64, 9, 64), (7, 3, 1000), (50, 4, 30)])
def test_a_static_batch_is_its_steps_one_by_one(costs: StepCosts, S: int, out: int, chunk: int) -> None:
    batch = np.array([1.0, 2.0, 3.0, 5.0, 8.0])
    first, decode = static_batch(costs, batch, S, out, chunk)
    for i, B in enumerate(batch.astype(int).tolist()):
        prompts = [(prompt, token) for prompt in range(B) for token in range(S)]
        total = costs.request_s
        for at in range(0, len(prompts), chunk):
            step = prompts[at : at + chunk]
            parts = [[t for q, t in step if q == p] for p in dict.fromkeys(q for q, _ in step)]
            total += costs.step(np.array([float(len(p)) for p in parts]), np.array([float(p[0]) for p in parts]), NONE)
        assert first[i] == pytest.approx(total)
        steps = [costs.step(NONE, NONE, np.full(B, float(S + t))) for t in range(1, out)]
        assert decode[i] == pytest.approx(np.mean(steps) if steps else 0.0)


def test_factors_are_the_next_stored_quantiles_or_refused() -> None:
    where = Provenance("m", "s", tpot=((0.5, 1.0), (0.9, 1.3)), ttft=((0.5, 1.1), (0.9, 2.0)))
    assert where.factors(None) == (1.0, 1.0)
    assert where.factors(0.6) == (1.3, 2.0)
    with pytest.raises(InputError, match=r"latency\.safety.*0\.99.*at most 0\.9"):
        where.factors(0.99)
    with pytest.raises(InputError, match="keeps no residuals"):
        Provenance("roofline", "peaks").factors(0.9)
