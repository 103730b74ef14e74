"""A trace cut by its rate: pieces against brute force and known steps, its busiest window and stretch by counting."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from optmodels.traces.buckets import sort_into_buckets
from optmodels.traces.pieces import (
    MOST_PIECES,
    _changes,
    busiest_stretch,
    busiest_window,
    cut_in_time,
    without_dominated,
)
from optmodels.traces.shape import resampled
from optmodels.traces.types import Trace


def steps(rates, seconds, seed=0, burst=1.0):
    rng, at, start = np.random.default_rng(seed), [], 0.0
    for rate in rates:
        times = np.cumsum(rng.gamma(1 / burst**2, burst**2 / rate, int(2 * rate * seconds + 50)))
        at.append(start + times[times < seconds])
        start += seconds
    return np.concatenate(at)


@pytest.mark.parametrize("seed", range(5))
def test_steps_are_found_where_they_are(seed):
    arrival = steps([2, 10, 4], 300.0, seed)
    found = cut_in_time(arrival, np.zeros(len(arrival), np.int64), 1, 900.0)
    assert found.edges_s == pytest.approx([0, 300, 600, 900], abs=12)
    assert found.rates[:, 0] == pytest.approx([2, 10, 4], rel=0.15)


@pytest.mark.parametrize("burst", [1.0, 3.0])
def test_an_even_rate_is_one_piece_in_bursts_too(burst):
    cuts = [len(cut_in_time(a, np.zeros(len(a), np.int64), 1, 1000.0).rates)
            for a in (steps([5], 1000.0, seed, burst) for seed in range(20))]  # fmt: skip
    assert sum(n > 1 for n in cuts) <= 2


def test_a_change_of_the_mixture_alone_is_a_piece():
    arrival = np.arange(2000) / 2.0
    bucket = (np.arange(2000) >= 1000).astype(np.int64)
    found = cut_in_time(arrival, bucket, 2, 1000.0)
    assert found.edges_s == pytest.approx([0, 500, 1000], abs=6)
    assert found.rates == pytest.approx(np.array([[2.0, 0.0], [0.0, 2.0]]), abs=0.05)


@pytest.mark.parametrize("seed", range(10))
def test_no_other_cut_is_better(seed):
    """Every cut of up to seven bins, by the formula of the module."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.choice([3.0, 30.0], 7)[:, None] * rng.uniform(0.5, 2.0, (1, 2)))
    total = np.concatenate([np.zeros((1, 2)), counts.cumsum(axis=0)])

    def value(edges):
        gain = 0.0
        for a, b in itertools.pairwise(edges):
            c = counts[a:b].sum(axis=0)
            gain += sum(x * np.log(x / (b - a)) for x in c if x) - 1.5 * np.log(7)
        return gain

    every = [(0, *inner, 7) for k in range(MOST_PIECES) for inner in itertools.combinations(range(1, 7), k)]
    assert value(_changes(total, 1.0).tolist()) == pytest.approx(max(map(value, every)))


def test_the_busiest_window_is_an_hour_of_a_day_and_a_second_of_a_minute():
    day = np.sort(np.concatenate([np.arange(0, 86400, 60.0), 36000 + np.arange(1000) * 3.0]))
    found = busiest_window(day, 86400.0)
    assert found is not None and found.window == "hour"
    assert found.times_the_mean == pytest.approx((1000 + 50 + 10) / (len(day) / 24), rel=0.01)
    assert "busiest hour" in found.in_words()
    assert busiest_window(np.arange(0, 60, 0.1), 60.0).window == "second"
    assert busiest_window(np.array([0.0, 1.0]), 1.0) is None


def test_the_busiest_stretch_asks_for_most_tokens_a_second():
    rng = np.random.default_rng(1)
    arrival, tokens = np.sort(rng.uniform(0, 100, 60)), rng.integers(1, 100, 60).astype(float)
    kept = busiest_stretch(arrival, tokens, 20)
    each = [tokens[i : i + 20].sum() / (arrival[i + 19] - arrival[i]) for i in range(41)]
    assert kept == slice(int(np.argmax(each)), int(np.argmax(each)) + 20)
    assert busiest_stretch(arrival, tokens, 60) == slice(0, 60)


@pytest.mark.parametrize("seed", range(5))
def test_pieces_that_another_one_exceeds_are_left_out(seed):
    rates = np.random.default_rng(seed).integers(0, 3, (6, 2)).astype(float)
    kept = without_dominated(rates)
    for k, row in enumerate(rates):
        others = [i for i in kept if i != k and (rates[i] >= row).all()]
        assert (k not in kept) == bool(others)
        assert k in kept or others


def test_a_request_goes_to_the_bucket_that_holds_it_else_to_the_nearest():
    inf = float("inf")
    bounds = [(0, 100, 0, inf), (100, 1000, 0, 10), None]
    means = [(99, 50), (120, 5), (5000, 50)]
    prompts, answers = np.array([100, 101, 101, 4000, 1]), np.array([1, 10, 900, 60, 10**6])
    assert sort_into_buckets(prompts, answers, bounds, means).tolist() == [0, 1, 0, 2, 0]


def test_blocks_that_are_all_gaps_are_drawn_again():
    """Twenty requests at both ends of a trace: more than a third of the pairs of blocks have none of them."""
    at = np.concatenate([np.linspace(0, 0.5, 8), np.linspace(10.5, 11.446, 12)])
    ones = np.ones(20, np.int64)
    sizes = [len(resampled(Trace("short", at, ones, ones), seed, 1.0)) for seed in range(200)]
    assert min(sizes) >= 1
