"""Levels of engines for one kind of requests, against plain numbers recomputed and a step-by-step simulation."""

from __future__ import annotations

import numpy as np
import pytest

from optmodels.latency.steps import Provenance, StepCosts
from optmodels.plan.engines import Kind, check_engine
from optmodels.plan.findings import Findings
from optmodels.plan.lines import engine_line
from optmodels.serving.continuous import Classes, EngineLimits, Percentile
from optmodels.serving.engine import EngineCosts
from optmodels.serving.levels import levels

ENGINE = EngineCosts(
    StepCosts(fixed_s=0.01, prompt_token_s=5e-5, prompt_pair_s=1e-9, decode_request_s=1e-4, context_s=1e-7,
              mixed_context_s=1e-7, request_s=0.01),
    1.0, 60_000.0, Provenance("test", "made up"),
)  # fmt: skip
LIMITS = EngineLimits(max_num_seqs=128, max_num_batched_tokens=2048)
TTFT, TPOT = Percentile(at_most=0.5, percentile=0.9), Percentile(at_most=0.05, percentile=0.9)


@pytest.mark.parametrize("ttft", [TTFT, 0.5])
def test_levels_are_what_the_check_recomputes(ttft: Percentile | float) -> None:
    at = levels([ENGINE], LIMITS, Classes.of([400.0], [100.0], cached=0.25), ttft, TPOT)
    assert len(at) > 10
    kind = Kind(400, 100, 0.25, ttft.percentile if isinstance(ttft, Percentile) else None, 0.9)
    for row in range(len(at)):
        found = Findings()
        line = engine_line(at, row, ENGINE, LIMITS)
        seen = check_engine(found, "it", line, ENGINE, LIMITS, kind, float(at.requests_per_s[row]))
        assert found.violations == []
        assert seen is not None
        stated = (at.first_s, at.waiting_s, at.tpot_s, at.e2e_s, at.running)
        said = (seen.first_s, seen.waiting_s, seen.tpot_s, seen.e2e_s, seen.running)
        assert np.allclose([x[row] for x in stated], said, rtol=1e-6)
        assert max(line.capacities.values()) == pytest.approx(1.0)
        assert seen.first_s + seen.waiting_s <= 0.5 * (1 + 1e-9)
        assert seen.tpot_s <= 0.05


def test_a_rate_beyond_the_level_is_noticed() -> None:
    at = levels([ENGINE], LIMITS, Classes.of([400.0], [100.0]), TTFT, TPOT)
    found = Findings()
    rate = 1.001 * float(at.requests_per_s[0])
    check_engine(found, "it", engine_line(at, 0, ENGINE, LIMITS), ENGINE, LIMITS, Kind(400, 100, 0, 0.9, 0.9), rate)
    assert any("what there is" in v.requirement for v in found.violations)


def test_a_closed_loop_at_its_most_is_the_level_at_its_rate() -> None:
    at = levels([ENGINE], LIMITS, Classes.of([400.0], [100.0]), TTFT, TPOT)
    for row, running in enumerate(at.running):
        assert at.rate_of(row, running) == pytest.approx(at.requests_per_s[row])
        assert at.rate_of(row, 0.5 * running) > 0.5 * at.requests_per_s[row]  # fewer beside one another are faster
        found = Findings()
        line = engine_line(at, row, ENGINE, LIMITS)
        check_engine(found, "it", line, ENGINE, LIMITS, Kind(400, 100, 0, 0.9, 0.9), in_flight=float(running))
        assert found.violations == []


def test_waiting_is_within_its_budget() -> None:
    kind = Classes.of([400.0], [100.0])
    free, bound = (levels([ENGINE], LIMITS, kind, TTFT, TPOT, most) for most in (np.inf, 0.02))
    assert bound.waiting_s.max() <= 0.02 * (1 + 1e-9)
    assert bound.requests_per_s.max() < free.requests_per_s.max()


def test_limits_that_no_level_keeps_leave_none() -> None:
    assert len(levels([ENGINE], LIMITS, Classes.of([400.0], [100.0]), 0.01, None)) == 0
    assert len(levels([], LIMITS, Classes.of([400.0], [100.0]), None, None)) == 0
