"""Decomposition by model: the same optimum as all models together, bounds that hold, the split of the GPUs."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orchestration_cases import two_models

import optmodels
from formulations.orchestration.clock import Clock
from formulations.orchestration.flow import metrics
from formulations.orchestration.methods.by_model import Value, alone, best_split, by_model, separable
from formulations.orchestration.model import FlowModel, dispatch
from formulations.orchestration.points import build_tables
from formulations.orchestration.rounding import Fits, scheduled
from optmodels.formulation import Options
from optmodels.loading import load
from optmodels.solver.highs import Settings, relaxation, solve_compiled
from papers.maaso import case

SMALL = {
    "candidates": {"tp": [1, 2], "batch": [2, 4]},
    "cluster": {"servers": [{"server": "box", "gpu": "v100-16g-pcie", "gpus": 4}]},
}
VARIANTS = {
    "plain": {},
    "alpha-one": {"objective": {"alpha": 1.0}},
    "attainment": {"models": [{"model": "mistral-7b", "attainment_at_least": 0.5}, {"model": "llama-3.2-3b"}]},
    "soft": {"models": [{"model": "mistral-7b", "attainment_at_least": 1.0}, {"model": "llama-3.2-3b", "weight": 3.0}],
             "slo": {"shortfall_penalty": 0.3}},
    "limits": {"models": [{"model": "mistral-7b", "minimum_instances": 1, "maximum_instances": 2},
                          {"model": "llama-3.2-3b", "maximum_instances": 1}]},
    "changes": {"change": {"running": [{"model": "mistral-7b", "tp": 2, "batch": 4}], "score_per_start": 0.01,
                           "score_per_stop": 0.02}},
}  # fmt: skip


def tables_of(**changes):
    return build_tables(load(two_models(50, **(SMALL | changes))))


@pytest.mark.parametrize("variant", VARIANTS)
def test_optimum_of_all_models_together(variant):
    """The exact form with every model's instances in one tree."""
    t = tables_of(seed=3, **VARIANTS[variant])
    assert separable(t)
    together = solve_compiled(FlowModel(t, pooled=False).compiled(), Settings(60))
    split = by_model(t, Clock.of(Options()))
    assert split.objective == pytest.approx(together.objective, rel=2e-6)
    assert split.bound == pytest.approx(split.objective, rel=2e-6)
    assert scheduled(t, split.counts).objective == pytest.approx(split.objective, abs=1e-7)
    assert Fits(t)(split.counts)


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_of_the_models_add_up(variant):
    t = tables_of(seed=1, **VARIANTS[variant])
    counts = np.zeros(len(t.configurations), dtype=np.int64)
    counts[[np.flatnonzero(t.model_of == m)[-1] for m in range(2)]] = 1
    whole = scheduled(t, counts)
    parts = [scheduled(alone(t, m), counts[t.model_of == m]) for m in range(2)]
    assert whole.objective == pytest.approx(sum(p.objective for p in parts), abs=1e-7)
    assert whole.objective == pytest.approx(metrics(t, whole.assignment).total)


@pytest.mark.parametrize("seed", range(2))
def test_bounds_hold_for_every_number_of_gpus(seed):
    """At every stage U ≥ V ≥ L, V by every choice of instances; U and L do not decrease in g."""
    t = tables_of(seed=seed)
    value = Value(t, 0, 4)
    best = np.full(5, -np.inf)
    for counts in itertools.product(*(range(4 // int(g) + 1) for g in value.t.gpus_of)):
        used = int(np.array(counts) @ value.t.gpus_of)
        if used <= 4:
            best[used:] = np.maximum(best[used:], scheduled(value.t, np.array(counts)).objective)
    for _ in range(3):
        for g in (2, 4, 1, 3):
            value.refine(g, Clock.of(Options()), 0.0)
            assert (value.upper >= best - 1e-7).all()
            assert (value.lower <= best + 1e-7).all()
            assert (np.diff(value.upper) >= -1e-12).all()
            assert (np.diff(value.lower) >= 0).all()
    np.testing.assert_allclose(value.upper, best, rtol=3e-6)
    np.testing.assert_allclose(value.lower, best, rtol=3e-6)


def test_price_of_gpus_bounds_every_other_number():
    """Weak duality: the bound at one g, moved along its price, is above the relaxation at every other."""
    t = alone(tables_of(seed=2), 0)
    flow = FlowModel(t)
    model = flow.compiled()

    def relaxed(g):
        upper = model.upper.copy()
        upper[flow.g.start] = g
        return relaxation(dataclasses.replace(model, upper=upper))

    at = [relaxed(g) for g in range(5)]
    prices = [float(r.reduced[flow.g.start]) for r in at]
    assert max(prices) > 1e-3
    for g, h in itertools.product(range(1, 5), range(5)):
        assert at[g].bound + max(0.0, prices[g]) * (h - g) >= at[h].bound - 1e-6


@given(st.lists(st.lists(st.integers(0, 20), min_size=5, max_size=5), min_size=1, max_size=3))
def test_split_of_the_gpus_is_the_best(values):
    values = [np.maximum.accumulate(np.array(v, dtype=float)) for v in values]
    total, split = best_split(values)
    choices = [c for c in itertools.product(range(5), repeat=len(values)) if sum(c) <= 4]
    assert total == max(sum(v[g] for v, g in zip(values, c, strict=True)) for c in choices)
    assert sum(split) <= 4
    assert total == sum(v[g] for v, g in zip(values, split, strict=True))


def test_no_plan_is_better_than_the_bound_at_any_time():
    t = tables_of(seed=4)
    seen = []
    split = by_model(t, Clock.of(Options(gap=1e-3, on_event=seen.append)))
    assert [e.bound for e in seen] == sorted((e.bound for e in seen), reverse=True)
    known = [e.objective for e in seen]
    assert known == sorted(known)
    assert split.bound >= by_model(t, Clock.of(Options())).objective - 1e-7
    assert (split.bound - split.objective) / split.objective <= 1e-3


def test_out_of_time_keeps_what_is_known():
    t = tables_of(seed=4)
    counts = np.zeros(len(t.configurations), dtype=np.int64)
    counts[0] = 1
    split = by_model(t, Clock.of(Options(time_limit=1e-9)), [counts])
    assert split.limit == "time"
    assert split.objective >= scheduled(t, counts).objective - 1e-9
    assert split.bound >= by_model(t, Clock.of(Options())).objective - 1e-7


def test_more_instances_asked_for_than_fit():
    t = tables_of(
        models=[{"model": "mistral-7b", "minimum_instances": 3}, {"model": "llama-3.2-3b", "minimum_instances": 2}]
    )
    split = by_model(t, Clock.of(Options()))
    assert split.infeasible
    assert split.counts is None


@pytest.mark.slow
@pytest.mark.parametrize("changes", [
    {"objective": {"kind": "lexicographic"}},
    {"objective": {"throughput_threshold_tokens_per_s": 100.0}},
    {"cluster": {"servers": [{"server": "a", "gpu": "v100-16g-pcie", "gpus": 3}]}},
    {"cluster": {"servers": [{"server": "a", "gpu": "v100-16g-pcie", "gpus": 4},
                             {"server": "b", "gpu": "a10", "gpus": 2}]},
     "latency": {"roofline": "roofline"}},
])  # fmt: skip
def test_what_couples_more_than_gpus_is_solved_together(changes):
    """Slow: two models in one MILP, which decomposing would avoid."""
    document = two_models(30, **(SMALL | changes))
    assert not separable(build_tables(load(document)))
    result = optmodels.solve(document, gap=0.02, time_limit=30)
    assert result.check.ok
    assert "decomposed" not in result.log


def test_schedule_that_presolve_breaks():
    """HiGHS 1.15's presolve leaves one row of this schedule short by 7e-5 and calls it optimal."""
    p = case(4, gpus=32)
    p = p.model_copy(update={"bins": p.bins.model_copy(update={"seconds": 9.0})})
    t = alone(build_tables(p), 1)
    counts = np.zeros(len(t.configurations), dtype=np.int64)
    counts[[c for c, x in enumerate(t.configurations) if (x.tp, x.batch) in ((2, 32), (4, 32), (4, 64))]] = 1
    assignment, report = dispatch(t, counts)
    assert report.status == "optimal"
    assert assignment is not None
    assert 0 < metrics(t, assignment).total < 1 / 3
