"""Percentiles over several lengths by their definition; levels of mixtures against the check and plain numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixture_levels import Mixture, smallest

from optmodels.engine.continuous import Classes, EngineLimits, LatencyLimit, Percentile, longest_wait
from optmodels.engine.costs import EngineCosts
from optmodels.engine.lengths import GRID, Length, classes, normalised, over_classes, shares_bounded
from optmodels.engine.levels import levels, loads_of_levels, loop_levels
from optmodels.latency.steps import Provenance, StepCosts
from optmodels.plans.engines import Kind, check_engine
from optmodels.plans.findings import Findings
from optmodels.plans.lines import engine_line

COSTS = StepCosts(
    fixed_s=0.01, prompt_token_s=5e-5, prompt_pair_s=1e-9, decode_request_s=1e-4, context_s=1e-7, mixed_context_s=2e-7,
    prompt_step_s=0.002, request_s=0.01,
)  # fmt: skip
ENGINE = EngineCosts(COSTS, 1.1, 60_000.0, Provenance("test", "made up"))
LIMITS = EngineLimits(max_num_seqs=128, max_num_batched_tokens=2048)
LENGTHS = ((60, 30, 5.0), (700, 1, 1.0), (400, 250, 2.0), (6000, 90, 1.0))
MIXED = normalised([Length(input_tokens=i, output_tokens=o, share=f) for i, o, f in LENGTHS])


@given(st.integers(0, 10**9))
def test_a_percentile_over_classes_is_the_smallest_that_enough_are_within(seed: int) -> None:
    """Bounds in no order, equal ones among them."""
    rng = np.random.default_rng(seed)
    count, q = int(rng.integers(2, 6)), float(rng.choice([0.2, 0.5, 0.63, 0.9, 0.99, 0.9995]))
    weight, grid = rng.dirichlet(np.ones(count)), shares_bounded(q, count)
    bounds = np.round(rng.exponential(size=(3, count, len(grid))), int(rng.integers(1, 4)))
    found = over_classes(bounds, weight, q)
    for row, each in enumerate(bounds):
        assert found[row] == smallest(lambda w, g, each=each: each[w, grid.index(g)], weight.tolist(), q)


def test_one_class_and_means_are_what_they_are() -> None:
    bounds = np.array([[[1.0]], [[3.0]]])
    assert over_classes(bounds, np.ones(1), 0.9).tolist() == [1.0, 3.0]
    assert shares_bounded(0.9, 1) == (0.9,) and shares_bounded(None, 4) == (None,)
    assert shares_bounded(0.9995, 2) == (*GRID, 0.9995)
    assert over_classes(np.array([[1.0], [5.0]]), np.array([0.75, 0.25]), None) == 2.0


def test_shorter_answers_make_up_for_longer_ones() -> None:
    """Half the requests are in time for certain, so that p90 is where the others' p80 is bounded: at their p90."""
    grid = shares_bounded(0.9, 2)
    late = [10.0 + g for g in grid]
    found = float(over_classes(np.array([[0.1] * len(grid), late]), np.array([0.5, 0.5]), 0.9))
    assert found == 10.9  # 0.5·0.999 + 0.5·0.75 is less than 0.9
    assert float(over_classes(np.array([[0.1] * len(grid), late]), np.array([0.95, 0.05]), 0.9)) == 0.1


@pytest.mark.parametrize(
    ("ttft", "tpot", "deadline"),
    [
        (1.5, 0.06, (math.inf, None)),
        (Percentile(at_most=1.5, percentile=0.9), Percentile(at_most=0.1, percentile=0.95), (math.inf, None)),
        (Percentile(at_most=3.0, percentile=0.6), 0.08, (9.0, 0.9)),
        (2.0, Percentile(at_most=0.2, percentile=0.99), (5.0, None)),
    ],
    ids=["means", "percentiles", "deadline", "mean deadline"],
)
def test_levels_are_those_of_plain_numbers_and_of_the_check(
    monkeypatch: pytest.MonkeyPatch, ttft: LatencyLimit, tpot: LatencyLimit, deadline: tuple[float, float | None]
) -> None:
    monkeypatch.setattr("optmodels.engine.levels.loads_of_levels", lambda most, **_: loads_of_levels(most)[::3])
    at = levels([ENGINE], LIMITS, classes(MIXED, 0.25), ttft, tpot, deadline=deadline)
    asked = [(x.at_most, x.percentile) if isinstance(x, Percentile) else (x, None) for x in (ttft, tpot)]
    rows = [*Mixture(ENGINE, LIMITS, LENGTHS, 0.25).rows(asked[0], asked[1], deadline)]
    assert len(rows) == len(at) > 12
    stated = (at.requests_per_s, at.running, at.first_s, at.ttft_s, at.tpot_s, at.e2e_s)
    said = np.array([(r.rate, r.running, r.first_s, r.ttft_s, r.tpot_s, r.e2e_s) for r in rows])
    order = (np.lexsort(np.round(x[[3, 0, 4]], 6)) for x in (np.array(stated), said.T))
    mine, theirs = (x[:, k] for x, k in zip((np.array(stated), said.T), order, strict=True))
    assert np.allclose(mine, theirs, rtol=1e-3)  # the best level is found by halving
    assert (at.deadline_s <= deadline[0]).all() and (at.ttft_s <= asked[0][0]).all()
    kind = Kind(tuple((x.input_tokens, x.output_tokens, x.share) for x in MIXED), 0.25, asked[0][1], asked[1][1],
                deadline[1])  # fmt: skip
    for row in range(len(at)):
        found = Findings()
        line = engine_line(at, row, ENGINE, LIMITS)
        seen = check_engine(found, "it", line, ENGINE, LIMITS, kind, float(at.requests_per_s[row]))
        assert found.violations == []
        assert seen is not None
        recomputed = (seen.first_s, seen.first_s + seen.waiting_s, seen.tpot_s, seen.e2e_s, seen.deadline_s)
        mine = [x[row] for x in (at.first_s, at.ttft_s, at.tpot_s, at.e2e_s, at.deadline_s)]
        assert np.allclose(recomputed, mine, rtol=1e-6)


@pytest.mark.parametrize(
    "quantiles", [(None, None, None), (0.9, 0.95, None), (0.6, None, 0.9)], ids=["means", "percentiles", "deadline"]
)
def test_closed_loops_have_the_shortest_steps_and_waits(quantiles: tuple[float | None, ...]) -> None:
    """(M3) and (M4) against bisection of the check's own capacities; fewer users see less of everything."""
    users = np.array([1.0, 2.0, 3.0, 5.0, 60.0])
    at, each = loop_levels([ENGINE], LIMITS, classes(MIXED, 0.25), users, quantiles)  # type: ignore[arg-type]
    none = [(math.inf, q) for q in quantiles]
    rows = [r for n in users for r in Mixture(ENGINE, LIMITS, LENGTHS, 0.25).loop(int(n), *none)]
    assert len(rows) == len(at) > 4 and 60.0 not in each and {*each} <= {*users}
    order = np.lexsort((at.most_of_wait, at.place_wait_s > 0.0, each))
    stated = np.array([at.ttft_s, at.tpot_s, at.e2e_s, at.deadline_s])[:, order]
    assert np.allclose(stated, np.array([(r.ttft_s, r.tpot_s, r.e2e_s, r.deadline_s) for r in rows]).T, rtol=1e-6)
    assert (np.floor(at.running * (1 + 1e-9)) >= each).all()
    placed = at.place_wait_s[order] > 0.0
    assert placed.any()
    for most, waits in ((4.0, False), (math.inf, False), (4.0, True)):
        seen = stated[:, (at.most_of_wait[order] == most) & (placed == waits)]
        assert seen.shape[1] > 1 and (np.diff(seen, axis=1) > 0).all()


def test_waits_add_what_the_queue_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optmodels.engine.levels.loads_of_levels", lambda most, **_: loads_of_levels(most)[::3])
    kind = classes(MIXED)
    ttft = Percentile(at_most=1e9, percentile=0.95)
    at = levels([ENGINE], LIMITS, kind, ttft, 0.1, 0.3)
    rows = [*Mixture(ENGINE, LIMITS, LENGTHS).rows((1e9, 0.95), (0.1, None), queue_s=0.3)]
    assert len(rows) == len(at)
    assert at.waiting_s.max() == pytest.approx(0.3)
    assert sorted(at.first_s) == pytest.approx(sorted(r.first_s for r in rows), rel=2e-3)
    assert sorted(at.requests_per_s) == pytest.approx(sorted(r.rate for r in rows), rel=2e-3)


def test_a_class_that_no_engine_can_hold_leaves_no_level() -> None:
    kind = Classes.of([400.0, 59_990.0], [100.0, 100.0], weight=np.array([0.999, 0.001]))
    assert len(levels([ENGINE], LIMITS, kind, None, None)) == 0
    assert len(levels([ENGINE], LIMITS, Classes.of([400.0, 9000.0], [100.0, 100.0]), None, None)) > 0


def test_two_halves_are_no_more_than_the_whole() -> None:
    """A level of requests named twice promises what it does of one name, or less where more of them are in time."""
    kinds = [Classes.of([400.0] * n, [100.0] * n) for n in (1, 2)]
    ttft, tpot = Percentile(at_most=0.5, percentile=0.9), Percentile(at_most=0.05, percentile=0.9)
    one, two = (levels([ENGINE], LIMITS, kind, ttft, tpot) for kind in kinds)
    assert np.allclose(one.requests_per_s, two.requests_per_s) and np.allclose(one.tpot_s, two.tpot_s)


@pytest.mark.parametrize("most", [4.0, math.inf])
def test_the_wait_of_a_percentile_is_one_below_63_percent_too(most: float) -> None:
    """1 − 1/e and below it is worst where all prompts wait: with short ones it was negative."""
    found = [longest_wait(q, most) for q in np.linspace(0.51, 0.7, 39)]
    assert (np.diff(found) > 0).all() and found[0] > 0.7
    above = [max(min(1 / r, most / 2 / (1 - r)) * math.log(r / (1 - q)) for r in np.linspace(0.01, 0.9999, 4000))
             for q in (0.55, 0.6, 0.65)]  # fmt: skip
    assert [longest_wait(q, most) for q in (0.55, 0.6, 0.65)] == pytest.approx(above, rel=1e-3)
