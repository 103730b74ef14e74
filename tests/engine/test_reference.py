"""Levels of random mixtures: those of `engine.continuous` are those of the reference, figure by figure.

First levels at which requests seldom wait for slots or KV cache, then levels at which they wait for a place.
"""

from __future__ import annotations

import numpy as np
import pytest

from optmodels.engine.continuous import (
    RUNNING,
    TURNS,
    WAITING,
    Classes,
    EngineLimits,
    levels_of_loads,
    loads_of_levels,
    operating_points,
)
from optmodels.latency.steps import Experts, StepCosts
from tests.adversary import continuous as reference

LOADS = loads_of_levels()
STAGES = ("both", "both", "prefill", "decode")
RANKS = (1, 2, 8)


def drawn(rng):
    """Costs, classes (some of one output token), limits, KV tokens, and TPOT limits of which some bind."""
    n = int(rng.integers(1, 6))
    context, token_s = rng.uniform(1e-8, 2e-7), rng.uniform(1e-6, 6e-5)
    costs = StepCosts(
        rng.uniform(0.003, 0.02), prompt_step_s=float(rng.choice([0.0, rng.uniform(0, 0.03)])),
        prompt_token_s=token_s, prompt_expert_s=token_s * rng.uniform(0, 1), prompt_pair_s=rng.uniform(0, 2e-9),
        prompt_context_s=float(rng.choice([0.0, 1e-7])), decode_request_s=rng.uniform(1e-5, 1e-4), context_s=context,
        mixed_context_s=context * float(rng.choice([1.0, rng.uniform(1, 2)])), request_s=rng.uniform(0, 0.02),
        experts=None if rng.random() < 0.6 else Experts(rng.uniform(0.001, 0.02), 64, 4),
    )  # fmt: skip
    inputs = np.rint(np.exp(rng.uniform(np.log(20), np.log(6000), n)))
    outputs = np.where(rng.random(n) < 0.15, 1.0, np.rint(np.exp(rng.uniform(np.log(2), np.log(800), n))))
    seqs = int(rng.choice([16, 64, 256]))
    limits = EngineLimits(
        max_num_seqs=seqs, max_num_batched_tokens=seqs + int(rng.integers(64, 8192)),
        chunk_tokens=None if rng.random() < 0.6 else int(rng.integers(32, 2048)),
    )  # fmt: skip
    at_most = [
        (float(np.exp(rng.uniform(np.log(0.008), np.log(0.3)))), rng.choice([None, 0.5, 0.9, 0.99])) for _ in outputs
    ]
    kv = float(np.exp(rng.uniform(np.log(2e4), np.log(1e7))))
    return costs, inputs, outputs, rng.dirichlet(np.full(n, 2.0)), limits, kv, at_most


@pytest.mark.parametrize("seed", range(60))
def test_levels_are_those_of_the_reference(seed):
    rng = np.random.default_rng(seed)
    costs, inputs, outputs, weight, limits, kv, at_most = drawn(rng)
    stage, ranks = STAGES[seed % 4], RANKS[seed % 3]
    kv *= ranks
    if stage == "decode":
        outputs = np.maximum(outputs, 2.0)
    moved = rng.uniform(0, 0.05, len(inputs)) if stage != "both" else np.zeros(len(inputs))
    classes = Classes.of(inputs, outputs, cached=0.25, weight=weight)

    def at(step_s):
        return operating_points([costs], np.array([kv]), limits, classes, step_s, stage, moved[None, None, :], ranks)

    def tpot(points):
        if stage == "prefill":
            return np.zeros_like(points.work_s)
        each = np.stack([points.tpot_s(q)[..., i] for i, (_, q) in enumerate(at_most)], axis=-1)
        joins = points.step_s[..., None] + moved + points.request_s[:, None, None]
        return each + (joins / (outputs - 1.0) if stage == "decode" else 0.0)

    points = at(levels_of_loads([costs], LOADS))
    there = np.flatnonzero(points.exists[0])
    there = there[np.append(True, np.diff(points.step_s[0, there]) > 0)]
    kinds = [reference.Kind(i, o, 0.25, w) for i, o, w in zip(inputs, outputs, weight, strict=True)]
    expected = reference.levels(
        costs, kinds, limits, kv, stage=stage, moved_s=moved.tolist(), ranks=ranks
    )  # fmt: skip
    np.testing.assert_allclose(points.step_s[0, there], [x.step_s for x in expected], rtol=1e-9)
    each = tpot(points)
    for j, x in zip(there, expected, strict=True):
        assert points.fixed_s[0, j] == pytest.approx(x.fixed_s, rel=1e-9)
        rows = np.array(x.rows, dtype=float).T  # (5, W)
        np.testing.assert_allclose(points.load[:WAITING, 0, j], rows, rtol=1e-6)
        for i, (_, q) in enumerate(at_most if stage != "prefill" else ()):
            joins = reference.joins_s(costs, x.step_s, moved[i]) / (outputs[i] - 1.0) if stage == "decode" else 0.0
            assert each[0, j, i] == pytest.approx(reference.tpot_s(x, i, q) + joins, rel=1e-6)
        if stage == "decode":
            continue
        np.testing.assert_allclose(points.turn_s[0, j], x.turn_s, rtol=1e-6)
        np.testing.assert_allclose(points.mean_turn_s[0, j], x.mean_turn_s, rtol=1e-6)
        for i, (_, q) in enumerate(at_most):
            first, times = points.ttft_s(q, 4.0)
            expected_s = reference.ttft_s(x, i, q, 4.0, costs.request_s)
            assert (first[0, j, i], times) == pytest.approx(expected_s, rel=1e-6)


@pytest.mark.parametrize("seed", range(100, 112))
def test_levels_with_waits_for_places_are_those_of_the_reference(seed):
    rng = np.random.default_rng(seed)
    costs, inputs, outputs, weight, limits, _, at_most = drawn(rng)
    ranks = RANKS[seed % 3]
    largest = np.sort(inputs + outputs)[-1 if seed % 4 else len(inputs) // 2]  # some of the others do not fit then
    kv = ranks * largest * np.exp(rng.uniform(0.0, np.log(1.5 * limits.max_num_seqs)))
    classes = Classes.of(inputs, outputs, cached=0.25, weight=weight)

    def at(step_s):
        return operating_points([costs], np.array([kv]), limits, classes, step_s, attention_ranks=ranks, placed=True)

    def tpot(points):
        return np.stack([points.tpot_s(q)[..., i] for i, (_, q) in enumerate(at_most)], axis=-1)

    points = at(levels_of_loads([costs], LOADS))
    there = np.flatnonzero(points.exists[0])
    there = there[np.append(True, np.diff(points.step_s[0, there]) > 0)]
    kinds = [reference.Kind(i, o, 0.25, w) for i, o, w in zip(inputs, outputs, weight, strict=True)]
    places = reference.places(kinds, 0, limits.max_num_seqs, kv, ranks)
    assert points.slots[0, 0, 0] == places >= 1
    told = reference.beside(limits, places)
    expected = reference.levels(costs, kinds, told, kv, ranks=ranks, place=True)
    np.testing.assert_allclose(points.step_s[0, there], [x.step_s for x in expected], rtol=1e-9)
    each, rows = tpot(points), points.load
    for j, x in zip(there, expected, strict=True):
        np.testing.assert_allclose(rows[:WAITING, 0, j], np.array(x.rows, dtype=float).T, rtol=1e-6)
        for i, (_, q) in enumerate(at_most):
            assert each[0, j, i] == pytest.approx(reference.tpot_s(x, i, q), rel=1e-6)
    for nth, turns in enumerate(TURNS):
        before = points.prefill_waits(turns)
        known = [reference.before_places(x)[nth] for x in expected]
        np.testing.assert_allclose(before[0, there], known, rtol=1e-6)
        waits = before[..., None] * np.array([0.3, 3.0, 40.0])
        with_places = points.with_places(waits, before, 4.0)[RUNNING, 0]
        for j, x, before_s in zip(there, expected, known, strict=True):
            for v, wait_s in enumerate(waits[0, j]):
                share = x.place_load(before_s, wait_s, 0.95)
                of_places = [r[RUNNING] for r in x.with_places(before_s, share).rows]
                np.testing.assert_allclose(with_places[j, v], of_places, rtol=1e-5)
                able = np.isfinite(with_places[j, v])
                if share < 0.95 and able.any():  # and back: the least wait with which so much is served
                    busy = share - 1e-9

                    def taken(of_each, j=j, able=able, busy=busy):
                        return busy * np.where(able, of_each, np.inf).min(axis=2) / of_each[0, j][able].min()

                    least = points.place_waits(before, 4.0, taken)[0, j]
                    assert least == pytest.approx(x.least_place_s(before_s, busy), rel=1e-6)
                    assert least == pytest.approx(wait_s, rel=1e-4)
