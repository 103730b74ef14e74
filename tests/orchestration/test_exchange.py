"""Exchanges after greedy_dp: what like instances miss, brute force over all instances, prices of change."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from formulations.orchestration.flow import metrics
from formulations.orchestration.making import counts_of
from formulations.orchestration.methods.exchange import Exchanges
from formulations.orchestration.model import dispatch
from formulations.orchestration.problem import Orchestration
from optmodels.formulation import Options, get
from papers.maaso import case
from tests.maaso_cases import MODELS, problem, rows, tables

FORM = get("orchestration")


def alike(gpus: int = 3, **extra: Any) -> Orchestration:
    """100 tokens every 3 s, due in 40 s: tp-2 and dp together decode 35 tokens/s, three dp 30."""
    return problem(
        {(MODELS[0], 1, 1): (10.0,), (MODELS[0], 2, 1): (25.0,)},
        {"rows": {"arrival_s": [3.0 * i for i in range(60)], "output_tokens": [100] * 60, "slo_factor": [4.0] * 60}},
        (gpus,), **extra,
    )  # fmt: skip


def kinds(outcome: Any) -> dict[str, int]:
    return {c.parallelism: c.instances for c in outcome.plan.configurations}


def test_unlike_instances_for_like_requests() -> None:
    """Algorithm 1 gives like requests like instances; an exchange finds the mixture that serves more."""
    p = alike()
    t = tables(p)
    assert kinds(FORM.method("greedy_dp")(p, t, Options())) == {"dp": 3}
    found = FORM.method("greedy_dp_exchange")(p, t, Options())
    assert kinds(found) == {"tp-2": 1, "dp": 1}
    assert found.log["steps"] == 1


def test_a_price_on_changes_is_kept_in_mind() -> None:
    running = {"running": [{"model": MODELS[0], "batch": 1, "count": 3}]}
    for price, expected in ((0.0, {"tp-2": 1, "dp": 1}), (1.0, {"dp": 3})):
        p = alike(change=running | {"score_per_start": price, "score_per_stop": price})
        assert kinds(FORM.method("greedy_dp_exchange")(p, tables(p), Options())) == expected


@pytest.mark.parametrize("seed", range(4))
def test_against_every_deployment(seed: int) -> None:
    """Two models, four GPUs: never below greedy_dp, never above the best of all, and most often that."""
    rates = {(m, tp, 1): (f * 10.0 * tp**0.8,) for m, f in zip(MODELS, (2.0, 1.0), strict=True) for tp in (1, 2)}
    p = problem(rates, rows(seed, 80, MODELS, rate=0.5), (4,))
    t = tables(p)
    best = -np.inf
    for counts in product(*(range(1 + 4 // g) for g in t.gpus_of)):
        if np.dot(counts, t.gpus_of) <= 4:
            assignment, _ = dispatch(t, np.array(counts))
            assert assignment is not None
            best = max(best, metrics(t, assignment).total)
    first = FORM.method("greedy_dp")(p, t, Options()).plan.score.total
    found = FORM.method("greedy_dp_exchange")(p, t, Options()).plan
    assert first - 1e-9 <= found.score.total <= best + 1e-6
    assert found.score.total >= 0.99 * best


@pytest.mark.parametrize("trace, gpus, requests", [(3, 24, 20_000), (2, 16, 10_000)])
def test_values_are_those_of_schedules(trace: int, gpus: int, requests: int) -> None:
    """Model by model, reservations give no more than the linear programme of all models, and most of it."""
    p = case(trace, gpus=gpus, requests=requests)
    t = tables(p)
    start = FORM.method("greedy_dp")(p, t, Options()).plan
    search = Exchanges(p, t, 0)
    counts = search.improve(counts_of(t, start))
    assert search.allowed(counts)
    assignment, _ = dispatch(t, counts)
    assert assignment is not None
    total = metrics(t, assignment).total
    assert 0.95 * total <= search.value(counts) <= total + 1e-6
    assert total > start.score.total
