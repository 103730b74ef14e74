"""The fluid queue of a backtest against the step simulator: an hour with a peak at and beyond the capacity."""

import numpy as np
import pytest

from optmodels.autoscaling.history import History
from optmodels.autoscaling.policies import Static
from optmodels.autoscaling.running import Replica, run
from optmodels.latency.steps import StepCosts
from optmodels.simulation.continuous import Arrivals, Engine, simulate

ENGINE = Engine(StepCosts(0.010, prompt_token_s=100e-6, decode_request_s=1e-4), 200_000, 128, 2048)
ENGINES, SLACK_S, ALONE_S = 4, 2.0, 0.15  # engines; waiting within the SLO; TTFT without waiting


def requests(n):
    return np.full(n, 900), np.full(n, 50)


@pytest.fixture(scope="module")
def rate():
    """Requests/s of an engine that is never idle."""
    n = 800
    return n / simulate(Arrivals.of(np.zeros(n), *requests(n)), [ENGINE], "shortest_queue").finish_s.max()


@pytest.mark.parametrize(("peak", "least", "most"), [(0.9, 1.0, 1.0), (1.03, 0.8, 0.95), (1.1, 0.7, 0.78)])
@pytest.mark.parametrize("seed", [0, 1])
def test_attained_share_of_an_hour(rate, peak, least, most, seed):
    rng = np.random.default_rng(seed)
    begins = 10.0 * np.arange(360)
    bins = rng.poisson(10 * ENGINES * rate * (0.55 + (peak - 0.55) * np.exp(-(((begins - 1800) / 500) ** 2))))
    arrival = np.sort(np.repeat(begins, bins) + rng.uniform(0, 10, bins.sum()))
    seen = simulate(Arrivals.of(arrival, *requests(len(arrival))), [ENGINE] * ENGINES, "shortest_queue")
    by_steps = float((seen.ttft_s <= SLACK_S + ALONE_S).mean())
    replica = Replica(rate, 1.0, 0, 0, SLACK_S, 1e9)  # clients do not leave, as in the step simulator
    fluid = run(Static(ENGINES * rate, 1.0), History(bins.astype(float)), replica, least=ENGINES)
    assert least - 1e-3 <= by_steps <= most
    assert 1 - fluid.late.sum() / fluid.requests.sum() == pytest.approx(by_steps, abs=0.03)
