"""Policies at hand-worked observations, and runs that see nothing of the future."""

import importlib.util
import inspect

import numpy as np
import pytest

import optmodels
from optmodels.autoscaling.backtest import Quantiles, backtest, cost_at
from optmodels.autoscaling.history import History
from optmodels.autoscaling.policies import (
    AibrixPodAutoscaler,
    DynamoPlanner,
    HorizontalPodAutoscaler,
    Keda,
    KnativePodAutoscaler,
    Observation,
    QuantileRule,
    SageServeGuided,
    ScheduledPolicy,
    WvaSaturation,
)
from optmodels.autoscaling.queue import serve_minute
from optmodels.autoscaling.running import Replica, run, run_types
from optmodels.errors import InputError
from optmodels.forecast.methods import method_of
from optmodels.forecast.points import METHODS
from optmodels.forecast.ticks import TickForecast

RATE = 2.0  # requests/s of a replica


def seen(rate, ready, pending=0, backlog=0.0, use=0.5, minute=100, rates=None):
    rates = np.full(minute, rate) if rates is None else np.asarray(rates, float)
    return Observation(len(rates), rates, rate, rate, use, backlog, ready, pending, RATE)


def test_hpa_holds_within_its_tolerance_and_comes_down_by_the_largest_wish():
    hpa = HorizontalPodAutoscaler(target=0.5, window_min=2)
    assert hpa(seen(10.0, 10)) == 10  # load 5 replicas over 10 × 0.5
    assert hpa(seen(16.0, 10)) == 16  # ⌈8/0.5⌉
    assert hpa(seen(4.0, 16)) == 16  # the wish of the last minute stays in the window
    assert hpa(seen(4.0, 16)) == 4
    assert hpa(seen(4.0, 4, backlog=240.0)) == 8  # 4 + 240/60 requests/s offered


def test_keda_takes_the_mean_of_two_minutes():
    assert Keda(target=1.0)(seen(8.0, 1, rates=[99.0, 4.0, 8.0])) == 3


def test_aibrix_halves_and_doubles_at_most():
    apa = AibrixPodAutoscaler(target=0.5)
    assert apa(seen(100.0, 10)) == 20
    assert apa(seen(1.0, 10)) == 5
    assert apa(seen(10.5, 10)) == 10  # +5 % is within the tolerance


def test_knative_panics_and_does_not_come_down_meanwhile():
    kpa = KnativePodAutoscaler(target=1.0)
    assert kpa(seen(40.0, 4)) == 8  # twice at most, and panic: 20 replicas' load on 4
    assert kpa(seen(2.0, 8, minute=101)) == 8
    assert kpa(seen(2.0, 8, minute=110)) == 4


def test_wva_adds_one_when_nothing_starts_up():
    wva = WvaSaturation(saturated=0.8, spare=0.1)
    assert wva(seen(1.0, 4, use=0.75)) == 5
    assert wva(seen(1.0, 4, pending=1, use=0.75)) == 5
    assert wva(seen(1.0, 4, use=0.5)) == 3  # 0.5·4/3 = 0.67 leaves 0.1 below 0.8
    assert wva(seen(1.0, 4, use=0.6)) == 4


def test_dynamo_decides_every_interval():
    dynamo = DynamoPlanner(use=0.5)
    assert dynamo(seen(9.0, 1, minute=99)) == 9
    assert dynamo(seen(90.0, 9, minute=100)) == 9
    assert dynamo(seen(6.0, 9, rates=[6.0] * 102)) == 6


def test_sageserve_goes_towards_its_plan_one_at_a_time():
    ahead = np.full((200, 60), 20.0)  # plan: 20·1.1/2 = 11 replicas
    for by_forecast in (False, True):
        lt = SageServeGuided(ahead, by_forecast=by_forecast)
        assert lt(seen(12.0, 8, use=0.6)) == 9
        assert lt(seen(12.0, 8, pending=1, use=0.6)) == 9  # one is in progress
        assert lt(seen(12.0, 8, use=0.4)) == 8
        assert lt(seen(2.0, 8, use=0.1)) == 8 and lt(seen(2.0, 13, use=0.1)) == 12  # down to the plan alone
        assert lt(seen(24.0, 11, use=0.8)) == 11
    assert SageServeGuided(ahead)(seen(24.0, 11, use=0.95)) == 12
    ua = SageServeGuided(ahead, by_forecast=True)
    assert ua(seen(24.0, 11, use=0.95)) == 11 and ua(seen(101.0, 11, use=0.95)) == 12


def test_a_timetable_knows_only_earlier_days():
    rates = np.full(1480, 1.0)
    rates[30] = 8.0  # in the first hour of the first day
    rates[1470] = 80.0  # of today
    assert ScheduledPolicy(1.0)(seen(1.0, 1, rates=rates)) == 4


def test_between_order_and_keep_nothing_changes():
    rule = QuantileRule(np.full(200, 7.0), np.full(200, 11.0))
    assert [rule(seen(1.0, n)) for n in (1, 4, 5, 6, 9)] == [4, 4, 5, 6, 6]


@pytest.mark.parametrize(
    ("arrivals", "capacity", "backlog", "late", "left"),
    [
        ([10] * 6, 1.0, 0.0, 0.0, 0.0),
        ([20] * 6, 0.0, 0.0, 120.0, 60.0),
        # 4/s against 2/s: a wait of 2 s after 2 s of the first step; then all wait longer
        ([40, 0, 0, 0, 0, 0], 2.0, 0.0, 32.0, 0.0),
        ([20] * 6, 2.0, 40.0, 120.0, 40.0),
    ],
)
def test_a_fluid_queue_by_hand(arrivals, capacity, backlog, late, left):
    found = serve_minute(np.array(arrivals, float), 0, capacity, backlog, 2.0, 30.0)
    assert found[:2] == pytest.approx((late, left))


def day_and_night(days, seed=0, mean=40.0):
    rng = np.random.default_rng(seed)
    t = np.arange(days * 8640) / 8640
    return rng.poisson(10 * mean * (1 + 0.6 * np.sin(2 * np.pi * t))).astype(float)


def test_nothing_later_than_now_enters_a_decision():
    whole = History(day_and_night(2))
    cut = History(whole.requests[: 6 * 2000])
    replica, train = Replica(RATE), 1440
    for method in ("last_value", "arima"):
        both = [Quantiles(h, replica, train, method) for h in (whole, cut)]
        for level in (0.9, 0.98):
            np.testing.assert_array_equal(both[0].order(level)[:2000], both[1].order(level))
            np.testing.assert_array_equal(both[0].keep(level)[:2000], both[1].keep(level))
    runs = [run(HorizontalPodAutoscaler(), h, replica) for h in (whole, cut)]
    np.testing.assert_array_equal(runs[0].paid[:2000], runs[1].paid)


def test_a_backtest_ranks_against_hindsight():
    found = backtest(History(day_and_night(4)), Replica(RATE), 2880, 2880, methods=("plan", "perfect", "static", "hpa"),
                     tune=False, forecast="last_value")  # fmt: skip
    rows = {r.method: r.judged for r in found.rows}
    # Hindsight covers every minute's mean: a queue of 2 seconds may save less than 1 % of it.
    assert 0.99 <= rows["perfect"].over_hindsight < 1.05 and rows["perfect"].attained > 0.99
    assert rows["plan"].attained > 0.99 and 1.0 <= rows["plan"].over_hindsight < rows["static"].over_hindsight
    assert rows["static"].changes == 0
    assert all(abs(found.forecast["cover"][str(q)] - q) < 0.02 for q in (0.9, 0.95))


def test_cost_at_a_goal_lies_between_neighbours():
    assert cost_at([(0.98, 1.0), (1.0, 2.0), (0.99, 3.0)], 0.99) == pytest.approx(1.5)
    assert cost_at([(0.98, 1.0)], 0.99) is None
    assert cost_at([(0.995, 1.2), (0.999, 1.1)], 0.99) == 1.1


def test_tuning_goes_by_the_share_attained_not_by_a_quantile():
    found = backtest(History(day_and_night(3)), Replica(RATE), 2880, 1440, methods=("hpa",), goal=0.995)
    default, tuned = found.rows
    assert tuned.tuned and tuned.train.attained >= 0.995 and tuned.train.usd <= default.train.usd
    assert found.at_goal["hpa"] is not None


def test_every_policy_decides_once_a_minute():
    """Equal ticks: a rival that decides each minute is not compared with one that may only every five."""
    minutes = []
    backtest(History(day_and_night(2)), Replica(RATE), 1440, 1440, methods=("static",), tune=False,
             policies={"mine": lambda seen: minutes.append(seen.minute) or 20})  # fmt: skip
    assert minutes == list(range(2880))


def test_one_type_of_several_runs_as_one():
    history = History(day_and_night(1))
    one = run(HorizontalPodAutoscaler(), history, Replica(RATE))
    hpa = HorizontalPodAutoscaler()
    several = run_types(lambda seen: np.array([hpa(seen), 0]), history, (Replica(RATE), Replica(1.0, 0.5)))
    for name in ("late", "paid", "changes", "ready"):
        np.testing.assert_array_equal(getattr(one, name), getattr(several, name))


def test_yesterday_is_not_the_forecast_of_traffic_without_a_season(monkeypatch):
    names = ("last_value", "yesterdays_change")
    monkeypatch.setattr("optmodels.autoscaling.backtest.METHODS", {n: METHODS[n] for n in names})
    rng = np.random.default_rng(4)
    level = np.exp(np.cumsum(0.02 * rng.standard_normal(4 * 1440)) * 0.5)
    q = Quantiles(History(np.repeat(300 * level, 6)), Replica(RATE), 3 * 1440)
    assert q.method == "last_value"
    monkeypatch.setattr("optmodels.forecast.ticks.METHODS", {n: METHODS[n] for n in names})
    assert TickForecast(300 * level, 300 * level, 3 * 1440, 20).method == "last_value"
    assert inspect.signature(optmodels.replan).parameters["forecast_method"].default == "auto"


def test_boosting_learns_a_season_or_names_its_extra():
    t = np.arange(3 * 1440)
    x = 40 * (1 + 0.5 * np.sin(2 * np.pi * t / 240)) * np.random.default_rng(0).normal(1, 0.02, len(t))
    x[500:520] = np.nan
    if importlib.util.find_spec("sklearn") is None:
        with pytest.raises(InputError, match=r"pip install 'optmodels\[boosting\]'"):
            method_of("boosting")(x, 2 * 1440, 15)
        return
    found, last = (method_of(name)(x, 2 * 1440, 15) for name in ("boosting", "last_value"))
    judged = slice(2 * 1440, 3 * 1440 - 15)
    errors = [np.abs(f[judged, 14] - x[2 * 1440 + 15 :]).mean() for f in (found, last)]
    assert errors[0] < 0.5 * errors[1]
    later = x.copy()
    later[2500:] = 7777.0  # bit by bit the same before, as parameters are of the training minutes alone
    again = method_of("boosting")(later[:2800], 2 * 1440 - 600, 15)
    np.testing.assert_array_equal(again[:2500], method_of("boosting")(x[:2500], 2 * 1440 - 600, 15))
