"""Load levels free by period: never worse than the plan, and right where it can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from formulations.orchestration.flow import metrics
from formulations.orchestration.making import counts_of
from formulations.orchestration.model import dispatch
from formulations.orchestration.points import build_tables
from formulations.orchestration.problem import Orchestration
from optmodels.formulation import Options, get
from papers.orchestration_levels import by_period, day
from tests.maaso_cases import MODELS, problem

M = MODELS[0]


def in_turn(gap_s: float) -> Orchestration:
    """One GPU, 20 tokens/s alone and 15 each for two: an urgent request a bin first, later two patient ones a bin."""
    first = [20.0 * i for i in range(5)]
    later = [100.0 + gap_s + 20.0 * (i // 2) for i in range(10)]
    return problem(
        {(M, 1, 1): (20.0, 15.0)},
        {"rows": {"arrival_s": first + later, "output_tokens": [300] * 15, "slo_factor": [1.1] * 5 + [1.4] * 10}},
        (1,), bins={"seconds": 20.0, "lengths": 1, "slo": 2},
    )  # fmt: skip


def test_one_instance_serves_both_in_turn() -> None:
    """Alone a request takes 15 s of 16.5 allowed, in twos 20 s of 21: no level serves both kinds all by itself."""
    p = in_turn(40.0)
    t = build_tables(p)
    plan = get("orchestration").method("exact")(p, t, Options()).plan
    assert plan.prediction.attainment < 0.9
    share, report = by_period(t, counts_of(t, plan), 1)
    assert share == pytest.approx(1.0, abs=0.05)
    assert report.bound == pytest.approx(report.objective, abs=1e-3)


def test_one_period_is_the_best_single_level() -> None:
    p = in_turn(40.0)
    t = build_tables(p)
    best = -np.inf
    for c in range(len(t.configurations)):
        counts = np.zeros(len(t.configurations), dtype=np.int64)
        counts[c] = 1
        assignment, _ = dispatch(t, counts)
        assert assignment is not None
        best = max(best, metrics(t, assignment).total)
    _, report = by_period(t, counts, t.bins + 1)
    assert report.objective == pytest.approx(best, abs=1e-3)


def test_the_day_in_turn_is_planned_by_levels() -> None:
    p = day(together=False)
    t = build_tables(p)
    plan = get("orchestration").method("exact")(p, t, Options(gap=1e-3)).plan
    assert by_period(t, counts_of(t, plan), 12)[0] > plan.prediction.attainment + 0.1
