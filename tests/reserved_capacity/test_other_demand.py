"""Plans on days drawn anew: two days worked by hand, the calendar of the draws, what is left out and why."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from reserved import service, two_regions

import optmodels
from formulations.reserved_capacity.other_demand import DRAWS, drawn_hours
from formulations.reserved_capacity.replay import RegionReplayOptions
from formulations.reserved_capacity.show import summary
from optmodels import formulation
from optmodels.loading import load

PEAKS = {"west": (10.0, 2.0), "east": (2.0, 10.0)}  # requests/s on the first and on the second day


def two_days(**changes):
    """12 machines, for the regions' peaks fall on different days; 20 where both come together."""
    by_region = {n: [v for day in days for v in [day] * 24] for n, days in PEAKS.items()}
    demand = {"kind": "inline", "unit": "requests_per_s", "by_region": by_region}
    return two_regions(services=service(demand=demand)) | changes


def expected():
    """Demand of every draw, (draws, hours), from the days drawn alone."""
    out = []
    for draw in range(DRAWS):
        day = drawn_hours(48, 2, 1 + draw) // 24
        out.append(np.array(PEAKS["west"])[day[:, 0]] + np.array(PEAKS["east"])[day[:, 1]])
    return np.array(out)


def test_reservations_fall_short_where_peaks_meet():
    result = optmodels.solve(two_days())
    assert sum(r["count"] for r in result.plan["reservations"]) == 12
    found, demand = result.report["out_of_sample"], expected()
    assert demand.max() == 20 and demand.min() == 4  # all that can be drawn
    served = np.minimum(demand, 12)
    assert found["served_share"]["predicted"] == found["least_served_share"]["predicted"] == 1
    share = (served.sum(axis=1) / demand.sum(axis=1)).mean()
    assert found["served_share"]["out_of_sample"] == pytest.approx(share, abs=1e-6)
    assert found["least_served_share"]["out_of_sample"] == pytest.approx(12 / 20, abs=1e-6)
    for at in ("predicted", "out_of_sample"):  # what is not served has no price here
        assert found["usd_per_month"][at] == pytest.approx(12 * 730.0)


def test_what_is_bought_by_the_hour_costs():
    result = optmodels.solve(two_days(terms=["reserved_3y", "on_demand"]))
    found, demand = result.report["out_of_sample"], expected()
    assert found["least_served_share"]["out_of_sample"] == 1
    held = sum(r["count"] for r in result.plan["reservations"])
    usd = 730.0 * (held + 3.0 * np.maximum(demand - held, 0).mean())
    assert found["usd_per_month"]["predicted"] == pytest.approx(result.objective)
    assert found["usd_per_month"]["out_of_sample"] == pytest.approx(usd)


def test_the_busiest_hour_is_replayed_with_its_own_machines():
    result = optmodels.solve(two_days(terms=["reserved_3y", "on_demand"]))
    [chat] = result.report["out_of_sample"]["services"]
    assert (chat["ttft_limit_s"], chat["promised"]) == (0.5, None)
    form = formulation.get("reserved_capacity")
    [own] = form.replay(load(two_days()), result.plan, None, RegionReplayOptions(seconds=600.0))["services"]
    for name in ("within_ttft_slo", "throughput_over_demand"):
        assert chat[name]["replayed"] == own[name]
    # Of the first draw both peaks meet, 20 requests/s: without what is bought then 12 machines serve 60 %.
    assert expected()[0].max() == 20
    assert chat["throughput_over_demand"]["out_of_sample"] == pytest.approx(1, abs=0.06)
    short = optmodels.solve(two_days()).report["out_of_sample"]["services"][0]
    assert short["throughput_over_demand"]["out_of_sample"] == pytest.approx(0.6, abs=0.06)
    assert short["within_ttft_slo"]["out_of_sample"] < 0.5 * short["within_ttft_slo"]["replayed"]


def test_growth_and_scenarios_stay_as_they_are():
    scenarios = {"scenarios": [{"scenario": "as now", "probability": 0.5},
                               {"scenario": "half", "probability": 0.5, "factor": 0.5}]}  # fmt: skip
    plan = two_days(uncertainty=scenarios, growth={"quarters": 2, "factor_per_quarter": 1.0})
    found = optmodels.solve(plan).report["out_of_sample"]
    demand = np.concatenate([expected(), 0.5 * expected()], axis=1)
    share = (np.minimum(demand, 12).sum(axis=1) / demand.sum(axis=1)).mean()
    assert found["served_share"]["out_of_sample"] == pytest.approx(share, abs=1e-6)


def test_days_drawn_keep_hour_weekday_and_season():
    hours = drawn_hours(24 * 70 + 5, 3, 4)
    at = np.arange(len(hours))[:, None]
    assert (hours % 24 == at % 24).all() and hours.max() < 24 * 70
    off = hours // 24 - at // 24
    assert set(np.unique(off)) == {-14, -7, 0, 7, 14}
    assert (off[:24] >= 0).all()
    day = off.reshape(-1, 3)[::24]
    assert (day[:, 0] != day[:, 1]).any() and (day[:, 1] != day[:, 2]).any()  # each region by itself
    for d in range(70):
        assert len(np.unique(off[24 * d : 24 * d + 24, 0])) == 1  # a day stays together
    week = drawn_hours(24 * 7, 1, 0) // 24
    assert set(np.unique(week)) <= set(range(7)) and (week[:, 0] != np.arange(24 * 7) // 24).any()
    assert (drawn_hours(48, 2, 3) == drawn_hours(48, 2, 3)).all()


def test_check_makes_it_again_and_the_screen_shows_it(tmp_path):
    result = optmodels.solve(two_days(), out=tmp_path)
    [table] = [x for x in summary(result.document()) if "drawn anew" in str(getattr(x, "title", ""))]
    assert "out of sample" in [str(c.header) for c in table.columns]
    assert "60.00%" in [*table.columns[3].cells]
    [written] = tmp_path.glob("*/plan.json")
    assert optmodels.check(written).ok
    changed = json.loads(written.read_text())
    changed["report"]["out_of_sample"]["least_served_share"]["out_of_sample"] = 0.9
    written.write_text(json.dumps(changed))
    assert any("out_of_sample" in v.requirement for v in optmodels.check(written).violations)


def test_left_out_when_asked_and_where_nothing_was_recorded():
    left = optmodels.solve(two_days(), out_of_sample=False)
    assert "out_of_sample" not in left.report and left.log["left_out"] == ["the replay out of sample"]
    assert optmodels.check(left).ok
    by_clock = {"kind": "diurnal", "hours": 48, "total_requests_per_s": 5}
    report = optmodels.solve(two_regions(services=service(demand=by_clock))).report
    assert "out_of_sample" not in report and "not_out_of_sample" not in report


def test_a_short_trace_says_why(tmp_path):
    with (tmp_path / "trace.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["time_s", "region"])
        rows.writerows([3600 * h + 5, name] for h in range(30) for name in PEAKS)
    demand = {"kind": "trace", "file": "trace.csv", "scale": 3600}
    (tmp_path / "instance.yaml").write_text(json.dumps(two_regions(services=service(demand=demand))))
    result = optmodels.solve(tmp_path / "instance.yaml")
    assert result.report["not_out_of_sample"] == "fewer than 48 hours of demand"
    assert any("Not replayed out of sample: fewer" in str(x) for x in summary(result.document()))
    assert optmodels.check(result).ok
