"""Traces split, resampled and with predicted lengths, against what can be counted by hand or said of the draw."""

import numpy as np
import pytest

from optmodels.errors import InputError
from optmodels.traces.shape import dispersion, halves, predicted, resampled
from optmodels.traces.types import Label, Prefixes, Trace


def trace(n=2000, seed=0):
    """Arrivals with two bursts; a request's lengths, label and block tell which one it is."""
    rng = np.random.default_rng(seed)
    at = np.sort(np.concatenate((rng.uniform(0, 1000, n // 2), rng.normal(300, 5, n // 4), rng.normal(700, 5, n // 4))))
    at = np.clip(at, 0, 1000)
    own = np.arange(1, n + 1)
    blocks = Prefixes(16, np.arange(n + 1), own + 10_000)
    return Trace("t", at, own, own + 5, {"model": Label(("a", "b"), own % 2)}, own / 10.0, blocks, own + 7)


def test_halves_by_time():
    t = Trace("t", np.array([0.0, 1, 4, 5, 10]), np.arange(1, 6), np.arange(1, 6))
    first, rest = halves(t, 0.45)
    assert first.arrival_s.tolist() == [0, 1, 4] and rest.arrival_s.tolist() == [0.5, 5.5]
    assert rest.prompt_tokens.tolist() == [4, 5] and rest.name == "rest of t"
    for share in (0.0, 1.0, -1, float("nan")):
        with pytest.raises(InputError, match="requests on both sides"):
            halves(t, share)


@pytest.mark.parametrize("block_s", [None, 3.0, 990.0])
def test_a_resample_is_made_of_stretches_of_the_trace(block_s):
    t = trace()
    again = resampled(t, 5, block_s)
    assert (np.diff(again.arrival_s) >= 0).all() and 0 <= again.arrival_s[0] <= again.arrival_s[-1] <= t.duration_s
    who = again.prompt_tokens - 1
    for column in ("output_tokens", "slo_factor", "predicted_output_tokens"):
        assert (getattr(again, column) == getattr(t, column)[who]).all()
    assert (again.labels["model"].codes == t.labels["model"].codes[who]).all()
    assert (again.prefixes.ids == t.prefixes.ids[who]).all()
    # within a block requests follow each other as in the trace, as far apart as there
    follows = np.diff(who) == 1
    blocks = np.count_nonzero(~follows) + 1
    assert blocks <= 2 * np.ceil(1000 / (block_s or 1000 / 24)) + 1
    apart, there = np.diff(again.arrival_s)[follows], np.diff(t.arrival_s)[who[:-1][follows]]
    assert np.count_nonzero(np.abs(apart - there) > 1e-9) <= blocks  # one block may end where the next happens to begin
    same = resampled(t, 5, block_s)
    assert (same.arrival_s == again.arrival_s).all() and (same.prompt_tokens == again.prompt_tokens).all()
    assert len(resampled(t, 6, block_s)) != len(again) or block_s == 990.0


def test_resamples_have_the_rate_of_the_trace():
    """Every moment of the (circular) trace is drawn equally often: the mean number of requests is that of the trace."""
    t = trace()
    sizes = np.array([len(resampled(t, seed)) for seed in range(200)])
    assert sizes.mean() == pytest.approx(len(t), abs=4 * sizes.std() / np.sqrt(200))
    assert sizes.std() > 3 * np.sqrt(len(t))  # bursts are drawn, or not, as a whole


def test_traces_that_cannot_be_resampled():
    one = Trace("t", np.zeros(3), np.ones(3, int), np.ones(3, int))
    with pytest.raises(InputError, match="time span"):
        resampled(one, 0)
    for block in (0.0, -1.0, 2000.0, float("nan")):
        with pytest.raises(InputError, match="block_s"):
            resampled(trace(), 0, block)


def test_predictions_err_as_said():
    t = trace()
    long = Trace("t", t.arrival_s, t.prompt_tokens, np.full(len(t), 10**6))
    ratio = np.log(predicted(long, 0.5, 3).predicted_output_tokens / 1e6)
    assert abs(ratio.mean()) < 4 * 0.5 / np.sqrt(len(t)) and ratio.std() == pytest.approx(0.5, rel=0.05)
    assert (predicted(t, 0.0).predicted_output_tokens == t.output_tokens).all()
    assert (
        predicted(Trace("t", np.zeros(99), np.ones(99, int), np.ones(99, int)), 3.0).predicted_output_tokens.min() == 1
    )
    with pytest.raises(InputError, match="predicted_error"):
        predicted(t, -0.1)


def test_dispersion_of_arrivals():
    """1 of Poisson's whatever the rate does slowly, more of pairs, 0 of a clock."""
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.exponential(0.05, 40_000))
    assert dispersion(times, 0.5) == pytest.approx(1.0, abs=0.05)
    assert dispersion(times**1.2, 0.5) == pytest.approx(1.0, abs=0.1)
    assert dispersion(np.repeat(times, 2), 0.5) == pytest.approx(2.0, abs=0.1)
    assert dispersion(np.arange(1, 1000) * 0.1 - 0.05, 0.5) == 0
    assert dispersion(np.array([0.7, 1.2, 1.3, 2.0]), 0.5) == ((0 - 1) ** 2 + (1 - 2) ** 2 + (2 - 0) ** 2) / 6
    assert dispersion(np.array([0.7]), 0.5) == dispersion(np.zeros(0), 0.5) == 1
