"""Figures of a simulation worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from optmodels.simulation.cluster import Cluster, Requests, simulate
from optmodels.simulation.summary import columns, summary


@pytest.fixture
def seen():
    """Two slots at 4 tokens/s alone and 2 together; a second instance for a model nobody asks for."""
    cluster = Cluster.of([2, 1], [[4.0, 2.0], [4.0, 4.0]], names=["a", "b"], model=[0, 1], gpus=[2, 1])
    requests = Requests.of([0.0, 1.0, 2.0], 1, [8, 6, 5], deadline_s=[2.0, 9.0, 9.0], model=[0, 0, 2], klass=[1, 0, 0])
    return simulate(requests, cluster, overflow_protection=False), requests, cluster


def test_figures_by_hand(seen):
    """The first is done at 3 s, not 2 s, because of the second, which is done at 3.5 s; the third finds no one."""
    s = summary(*seen, classes=("x", "y"), models=("m", "n", "o"))
    third = pytest.approx(1 / 3)
    assert (s.requests, s.attainment, s.refused, s.late, s.cascaded) == (3, third, third, third, third)
    assert s.waiting_s["mean"] == 0 and s.ttft_s["p99"] == 0
    assert s.e2e_s["mean"] == pytest.approx((3 + 2.5) / 2)
    first, second = 3 / 7, 2.5 / 5  # seconds per token after the first
    assert s.tpot_s["mean"] == pytest.approx((first + second) / 2)
    assert s.tpot_s["p95"] == pytest.approx(first + 0.95 * (second - first))
    assert s.throughput_tokens_per_s == pytest.approx(14 / 3.5)
    assert s.goodput_tokens_per_s == pytest.approx(6 / 3.5) and s.goodput_requests_per_s == pytest.approx(1 / 3.5)
    assert s.decode_tokens_per_s == pytest.approx((8 / 3 + 6 / 2.5) / 2)
    assert s.slot_use == pytest.approx((3 + 2.5) / (3 * 3.5)) and s.gpu_use == pytest.approx(2 / 3)
    assert s.by_class == {"x": 0.5, "y": 0.0} and s.by_model == {"m": 0.5, "o": 0.0}


def test_answers_of_one_token_have_no_time_per_output_token():
    cluster = Cluster.of([1], [[4.0]], prefill_s_per_token=0.5)
    requests = Requests.of([0.0, 9.0], [1, 1], [1, 5])
    s = summary(simulate(requests, cluster), requests, cluster)
    assert s.e2e_s["mean"] == pytest.approx((0.75 + 1.75) / 2) and s.ttft_s["p95"] == 0.5
    assert s.tpot_s == pytest.approx(dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), 1.25 / 4))
    alone = Requests.of([0.0], 1, [1])
    assert summary(simulate(alone, cluster), alone, cluster).tpot_s == {}


def test_a_late_first_token_is_late():
    """The second starts when the first is done, at 2 s: its first token takes 2.5 s, its last is in time."""
    cluster = Cluster.of([1], [[4.0]], prefill_s=1.0)
    requests = Requests.of([0.0, 0.5], 1, [4, 4], deadline_s=9.0, ttft_limit_s=[1.0, 2.0])
    s = summary(simulate(requests, cluster), requests, cluster)
    assert (s.attainment, s.late, s.cascaded) == (0.5, 0.5, 0.0) and s.ttft_s["mean"] == pytest.approx((1 + 2.5) / 2)
    assert s.goodput_tokens_per_s == pytest.approx(4 / 4)


def test_rows(seen):
    rows = columns(*seen)
    assert rows["instance"].tolist() == ["a", "a", ""]
    assert np.isnan(rows["finish_s"][2]) and rows["met"].tolist() == [False, True, False]


def test_of_nothing():
    s = summary(
        simulate(Requests.of([], [], []), cluster := Cluster.of([1], [[1.0]])), Requests.of([], [], []), cluster
    )
    assert s.requests == 0 and s.attainment == 0 and s.waiting_s == {} and s.slot_use == 0
