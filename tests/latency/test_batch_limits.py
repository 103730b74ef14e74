"""b_mem and b_SLA against definitions, enumeration and Monte Carlo; both controllers step by step."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optmodels.errors import InputError
from optmodels.latency import batch_limits as bl
from optmodels.latency.controllers import (
    CombinedController,
    MemoryController,
    SlaController,
    StaticController,
    StepObservation,
)


def test_normal_limit_by_hand():
    # μ = 100, σ = 50, θ = 2 (ε = 0.02275): b·100 + 100·√b ≤ 12000 → √b ≤ (√(10⁴+4.8·10⁶) − 100)/200 = 10.4659, b = 109
    lengths = bl.from_moments(60, 30, 40, 40)
    assert (lengths.mean, lengths.std) == (100, 50)
    epsilon = 0.022750131948179195
    assert bl.theta(epsilon) == pytest.approx(2.0)
    assert bl.b_mem_normal(lengths, 12000, epsilon) == 109


@settings(max_examples=200, deadline=None)
@given(st.floats(1, 5000), st.floats(0, 3000), st.floats(10, 1e6), st.floats(1e-4, 0.6))
def test_normal_limit_is_the_largest(mean, std, capacity, epsilon):
    lengths = bl.LengthMoments(mean, std)
    b = bl.b_mem_normal(lengths, capacity, epsilon)
    theta = bl.theta(epsilon)

    def need(x):
        return x * mean + theta * std * math.sqrt(x)

    assert b == 0 or need(b) <= capacity * (1 + 1e-9)
    if theta >= 0:
        assert need(b + 1) > capacity * (1 - 1e-9)


def test_linear_rule_reproduces_the_limit_with_its_own_buffer():
    lengths = bl.from_moments(500, 400, 200, 100)
    b = bl.b_mem_normal(lengths, 200_000, 0.01)
    assert bl.b_mem_linear(lengths.mean, 200_000, bl.buffer_tokens(lengths, b, 0.01)) == b
    # As printed, L₀ = η − (θσ_S + μ_S) is nearly nothing at that batch: the rule would fill the memory to the mean.
    printed = 200_000 - (bl.buffer_tokens(lengths, b, 0.01) + b * lengths.mean)
    assert bl.b_mem_linear(lengths.mean, 200_000, printed) > b + 10


def test_exact_probability_by_enumeration():
    lengths = bl.from_sample(np.array([1.0, 2.0]), np.array([0.0, 1.0]))  # totals 1 or 3, half each
    # three requests: sums 3, 5, 7, 9 with probability 1, 3, 3, 1 eighths
    for capacity, expected in ((3, 7 / 8), (4, 7 / 8), (5, 4 / 8), (7, 1 / 8), (8.9, 1 / 8), (9, 0)):
        assert bl.overflow_probability(lengths, 3, capacity) == pytest.approx(expected, abs=1e-12)
    assert bl.b_mem_exact(lengths, 7, 0.125) == 3 and bl.b_mem_exact(lengths, 7, 0.12) == 2


def test_exact_probability_against_monte_carlo():
    rng = np.random.default_rng(3)
    lengths = bl.from_sample(np.rint(rng.lognormal(6, 1, 500)), np.rint(rng.gamma(2, 100, 500)))
    capacity = 60 * lengths.mean
    for b in (40, 50, 55):
        exact = bl.overflow_probability(lengths, b, capacity)
        estimate, error = bl.monte_carlo_overflow(lengths, b, capacity, draws=20_000, seed=b)
        assert abs(exact - estimate) < 4 * error


def test_report_says_how_wrong_the_normal_approximation_is():
    rng = np.random.default_rng(0)
    lengths = bl.from_sample(np.rint(rng.lognormal(5, 1.5, 2000)), np.full(2000, 50.0))
    limit = bl.memory_limit(lengths, 30 * lengths.mean, 0.01)
    assert limit.exact < limit.normal  # heavy tails: the normal answer runs over more often than allowed
    assert limit.true_probability > 0.01
    moments = bl.memory_limit(bl.from_moments(500, 400, 200, 100), 200_000, 0.01)
    assert moments.exact is None and moments.true_probability == pytest.approx(0.01, abs=0.005)


def test_correlation_counts():
    x = np.arange(1.0, 101.0)
    together = bl.from_sample(x, x)
    assert together.correlation == pytest.approx(1.0)
    assert together.std == pytest.approx(2 * x.std())  # DB(9) would say √2·σ


def test_b_sla_is_the_largest_batch_in_time():
    assert bl.b_sla(lambda b: 0.0269 + 0.0002308 * b, 0.05) == 100  # Fig. 3: about 100 at 50 ms
    assert bl.b_sla(lambda b: 0.0269 + 0.0002308 * b, 0.0801) == 230  # and 230 at 80 ms
    assert bl.b_sla(lambda b: 1.0, 0.5) == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: bl.from_moments(0, 1, 1, 1),
        lambda: bl.from_moments(1, -1, 1, 1),
        lambda: bl.from_moments(float("nan"), 0, 1, 0),
        lambda: bl.from_moments(1e300, 0, 1, 0),
        lambda: bl.from_moments(1e-300, 0, 1, 0),
        lambda: bl.from_sample(np.array([1.0, 1e300]), np.array([1.0, 2.0])),
        lambda: bl.from_sample(np.array([1e-300]), np.array([0.0])),
        lambda: bl.b_mem_normal(bl.LengthMoments(1, 0), 1e300, 0.1),
        lambda: bl.from_sample(np.array([]), np.array([])),
        lambda: bl.from_sample(np.array([-1.0]), np.array([0.0])),
        lambda: bl.b_mem_normal(bl.LengthMoments(1, 0), -1, 0.1),
        lambda: bl.b_mem_normal(bl.LengthMoments(1, 0), 1, 1.0),
        lambda: bl.b_sla(lambda b: b, 0),
        lambda: bl.overflow_probability(bl.LengthMoments(1, 0), 1, 1),
        lambda: SlaController(0),
        lambda: SlaController(1, alpha=0),
        lambda: SlaController(1, b_min=5, b_max=2),
        lambda: MemoryController(0, 0.1, bl.LengthMoments(1, 0)),
        lambda: StaticController(0),
    ],
)
def test_mistakes_are_named(call):
    with pytest.raises(InputError) as raised:
        call()
    assert raised.value.mistakes[0].expected


# ---------------------------------------------------------------------------------------- controllers


def test_algorithm_1_line_by_line():
    c = MemoryController(12000, 0.022750131948179195, bl.LengthMoments(100, 50), b_max=120)
    assert c.batch == 109 and c.reserve_tokens == pytest.approx(2 * 50 * math.sqrt(109))
    assert (
        c.step(StepObservation(waiting=0, decoding=50, mean_input_tokens=10, mean_output_tokens=10)) == 109
    )  # nothing waits
    assert (
        c.step(StepObservation(waiting=5, decoding=0, mean_input_tokens=10, mean_output_tokens=10)) == 109
    )  # nothing decodes
    room = 12000 - c.reserve_tokens
    assert c.step(StepObservation(waiting=5, decoding=50, mean_input_tokens=150, mean_output_tokens=50)) == int(
        room // 200
    )
    assert (
        c.step(StepObservation(waiting=5, decoding=70, mean_input_tokens=150, mean_output_tokens=50)) == 70
    )  # at least N^d
    assert (
        c.step(StepObservation(waiting=5, decoding=50, mean_input_tokens=10, mean_output_tokens=10)) == 120
    )  # at most B_max


def test_algorithm_2_line_by_line():
    c = SlaController(0.05, tolerance_s=0.002, b_min=1, b_max=256, alpha=16, delta=4)
    assert c.step(StepObservation(0, 0)) == 128  # no evidence yet: the middle of [1, 256]
    c.step(StepObservation(9, 128, decode_latency_s=0.06, decode_batch=128.0))
    assert (c.low, c.high) == (1, 128)  # too slow: high = max{128, 1+16}, low = max{1−4, 1}
    assert c.step(StepObservation(9, 60, decode_latency_s=0.04, decode_batch=64.0)) == (64 + 132) // 2
    assert (c.low, c.high) == (64, 132)  # fast: low = min{64, 128−16}, high = 128+4
    c.step(StepObservation(9, 90, decode_latency_s=0.05, decode_batch=98.0))
    assert (c.low, c.high) == (90, 106)  # on target: b̄ ± α/2
    assert c.step(StepObservation(9, 200, decode_latency_s=0.05, decode_batch=98.0)) == 200  # at least N^d


def test_algorithm_2_finds_the_limit_of_fig_3():
    c = SlaController(0.05, b_max=512)
    batch = 1
    for _ in range(60):
        batch = c.step(StepObservation(1, 0, decode_latency_s=0.0269 + 0.0002308 * batch, decode_batch=float(batch)))
    assert abs(0.0269 + 0.0002308 * batch - 0.05) <= 0.003


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 0.2), st.floats(0, 600), st.integers(0, 300)), max_size=30))
def test_algorithm_2_keeps_its_bracket_in_bounds(seen):
    c = SlaController(0.05, b_min=4, b_max=256)
    for latency, batch, decoding in seen:
        b = c.step(StepObservation(1, min(decoding, 256), decode_latency_s=latency, decode_batch=batch))
        assert 4 <= c.low <= c.high <= 256 and 4 <= b <= 256


def test_combined_is_the_smaller():
    c = CombinedController(StaticController(30), StaticController(20))
    assert c.step(StepObservation(1, 1)) == 20


def test_the_length_that_is_none_is_named_by_its_row():
    with pytest.raises(InputError, match=r"1e\+300 tokens in row 2"):
        bl.from_sample(np.array([1.0, 1e300]), np.array([1.0, 2.0]))


def test_a_cache_for_more_requests_than_are_looked_at():
    """10¹² tokens hold 10¹⁰ requests of 100: neither the count nor the memory it is found in grows with them."""
    limit = bl.memory_limit(bl.from_moments(60, 30, 40, 40), 1e12, 0.01)
    assert limit.normal == limit.linear == bl.B_MAX and limit.true_probability == 0


def test_a_sum_of_gamma_lengths_runs_over_as_often_as_it_does():
    """One exponential length of mean 100 exceeds 250 with probability e^−2.5; two of them with (1 + 2.5)·e^−2.5."""
    lengths = bl.LengthMoments(100.0, 100.0)
    for batch, wanted in ((1, np.exp(-2.5)), (2, 3.5 * np.exp(-2.5))):
        estimate, error = bl.monte_carlo_overflow(lengths, batch, 250.0)
        assert abs(estimate - wanted) < 4 * error
