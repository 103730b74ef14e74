"""Mistakes that change the ranking of autoscalers, each as a test, and the manifests of what was tuned."""

import json

import jsonschema
import numpy as np
import pytest
import yaml
from crds import BEHAVIOUR, CRON, HORIZONTAL_POD_AUTOSCALER, PROMETHEUS, SCALED_OBJECT

from optmodels.api.backtest import minutes
from optmodels.autoscaling.backtest import ALWAYS, Quantiles, _method
from optmodels.autoscaling.history import History
from optmodels.autoscaling.policies import HorizontalPodAutoscaler, Observation
from optmodels.autoscaling.running import Replica, run
from optmodels.forecast.ticks import tick_quantiles

RATE = 4.0


def day_and_night(days, seed=0, mean=40.0):
    rng = np.random.default_rng(seed)
    t = np.arange(days * 8640) / 8640
    return rng.poisson(10 * mean * (1 + 0.6 * np.sin(2 * np.pi * t))).astype(float)


@pytest.mark.parametrize("name", [m for m in ALWAYS if m != "perfect"])
def test_no_autoscaler_looks_ahead(name):
    """A truncated history gives the same replicas bit by bit. What comes later is changed, not only cut."""
    bins = day_and_night(3)
    later = bins.copy()
    later[6 * 3000 :] = 7777.0
    paths = []
    for h in (History(bins), History(later), History(bins[: 6 * 3000])):
        replica = Replica(RATE)
        q = Quantiles(h, replica, 1440, "last_value") if name == "plan" else None
        method = _method(name, h, replica, 1440, q)
        paths.append(run(method.make(**method.default), h, replica).ready[:3000])
    np.testing.assert_array_equal(paths[0], paths[1])
    np.testing.assert_array_equal(paths[0], paths[2])


def test_pods_on_their_way_count_for_hpa():
    seen = Observation(0, np.array([40.0]), 40.0, 40.0, 1.0, 0.0, 5, 10, RATE)
    assert HorizontalPodAutoscaler(target=0.7)(seen) == 15  # 10 / 0.7 of them exist: no second order


def test_a_lead_time_is_rounded_up():
    assert minutes("90s", "lead") == 2 and minutes("5m", "lead") == 5 and minutes("61s", "lead") == 2


def test_the_forecast_of_a_tick_is_its_largest_minute_not_its_mean():
    x = np.tile([10.0, 10.0, 10.0, 10.0, 60.0], 800)[:-1]  # the next tick has one minute of 60 in it
    (quantile,) = tick_quantiles(x, x, 5, 1, (0.9,))[0]
    assert quantile == pytest.approx(60.0, rel=1e-9)


def test_quantiles_cover_after_a_change_of_level():
    """Errors of the last days, not of training, correct the quantiles: a jump in noise is learned."""
    rng = np.random.default_rng(2)
    noise = np.concatenate([0.05 * rng.standard_normal(6 * 1440), 0.3 * rng.standard_normal(6 * 1440)])
    bins = np.repeat(300 * np.exp(noise), 6)
    q = Quantiles(History(bins), Replica(RATE), 2 * 1440, "last_value")
    assert q.cover(0.95, 10 * 1440) == pytest.approx(0.95, abs=0.02)


def test_manifests_have_the_tuned_settings(tmp_path, cli):
    t = np.arange(3 * 1440)
    n = np.random.default_rng(1).poisson(60 * 40 * (1 + 0.5 * np.sin(2 * np.pi * t / 1440)))
    path = tmp_path / "day.csv"
    path.write_text("time,requests\n" + "\n".join(f"{60 * s},{k}" for s, k in zip(t, n, strict=True)))
    asked = ["backtest", "--replica", "2:10", "--history", path, "--train", "2d", "--judge", "1d", "--tune"]
    done = cli(*asked, "--methods", "hpa,keda,scheduled", "--manifests", tmp_path / "m", "--json")
    assert done.status == 0, done.err
    rows = {r["method"]: r for r in json.loads(done.out)["rows"] if r["tuned"]}
    hpa, keda, schedule = (
        yaml.safe_load((tmp_path / "m" / f"{x}.yaml").read_text()) for x in ("hpa", "keda", "schedule")
    )
    for manifest, schema in ((hpa, HORIZONTAL_POD_AUTOSCALER), (keda, SCALED_OBJECT), (schedule, SCALED_OBJECT)):
        jsonschema.validate(manifest, schema)
    jsonschema.validate(keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"], BEHAVIOUR)
    for trigger in (*keda["spec"]["triggers"], *schedule["spec"]["triggers"]):
        jsonschema.validate(trigger["metadata"], PROMETHEUS if trigger["type"] == "prometheus" else CRON)
    assert hpa["spec"]["minReplicas"] == rows["hpa"]["fewest"] <= rows["hpa"]["most"] == hpa["spec"]["maxReplicas"]
    value = hpa["spec"]["metrics"][0]["external"]["target"]["averageValue"]
    assert value == f"{2000 * rows['hpa']['setting']['target']:.0f}m"
    window = hpa["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"]
    assert window == 60 * rows["hpa"]["setting"]["window_min"]
    threshold = float(keda["spec"]["triggers"][0]["metadata"]["threshold"])
    assert threshold == pytest.approx(2 * rows["keda"]["setting"]["target"])
    hours = [int(x["metadata"]["desiredReplicas"]) for x in schedule["spec"]["triggers"]]
    peak = n.reshape(3, 24, 60).max(axis=(0, 2)) / 60
    assert hours == [int(np.ceil(rows["scheduled"]["setting"]["factor"] * p / 2 - 1e-9)) for p in peak]
