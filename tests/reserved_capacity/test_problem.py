"""Instance files: demand from tables, traces and clocks, and every mistake named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from reserved import machine, service, two_regions

import optmodels
from optmodels.catalog import geography
from optmodels.errors import InputError, UnattainableError
from optmodels.loading import load


def mistakes(document):
    with pytest.raises(InputError) as error:
        load(document)
    return str(error.value)


def written(tmp_path, frame, demand=None, name="demand.csv", **changes):
    if name.endswith(".parquet"):
        frame.to_parquet(tmp_path / name)
    else:
        frame.to_csv(tmp_path / name, index=False)
    document = two_regions(services=service(demand={"kind": "file", "file": name} | (demand or {})), **changes)
    path = tmp_path / "instance.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def hourly(hours, column="hour_start_utc", zone="UTC"):
    stamps = pd.date_range("2026-03-07 00:00", periods=hours, freq="h", tz="UTC").tz_convert(zone)
    text = stamps.strftime("%Y-%m-%d %H:%M:%S")
    return pd.DataFrame([
        {column: h, "region": r, "requests_per_hour": 3600.0 * (i + 1)}
        for i, r in enumerate(("west", "east")) for h in text
    ])  # fmt: skip


def test_a_region_may_be_its_name_alone():
    """Where the catalogue or nothing is needed beside it; its fields can be varied all the same."""
    demand = {"kind": "inline", "unit": "requests_per_s", "by_region": {"us-east-1": [1.0], "eu-west-1": [2.0]}}
    names = two_regions(regions=["us-east-1", {"region": "eu-west-1"}], services=service(demand=demand))
    names["network"] = {"catalog": "aws"}
    sections = names | {"regions": [{"region": "us-east-1"}, {"region": "eu-west-1"}]}
    assert load(names).regions == load(sections).regions
    rows = optmodels.sweep(names, {"regions[us-east-1].weight": [1.0, 2.0]}).rows
    assert [r["status"] for r in rows] == ["optimal", "optimal"]
    assert "regions[0]" in mistakes(names | {"regions": ["", "eu-west-1"]})
    assert "regions[1]" in mistakes(names | {"regions": ["us-east-1", 5]})


@pytest.mark.parametrize("name", ["demand.csv", "demand.parquet"])
def test_long_table(tmp_path, name):
    case = load(written(tmp_path, hourly(30), name=name)).resolve()
    assert case.demand_rps.shape == (30, 2, 1)
    assert case.demand_rps[0, :, 0] == pytest.approx([1, 2])
    assert case.start == "2026-03-07T00:00:00+00:00"


def test_wide_table_needs_its_unit(tmp_path):
    frame = pd.DataFrame(
        {"hour_start_utc": ["2026-01-01 00:00", "2026-01-01 01:00"], "west": [60, 120], "east": [0, 60]}
    )
    case = load(written(tmp_path, frame, {"unit": "requests_per_minute"})).resolve()
    assert case.demand_rps[:, :, 0].tolist() == [[1, 0], [2, 1]]
    with pytest.raises(InputError, match="unit: in the problem file"):
        load(written(tmp_path, frame))


def test_missing_hour_is_named(tmp_path):
    frame = hourly(30)
    with pytest.raises(InputError, match=r"west.*1 missing hour: 2026-03-07 05:00"):
        load(written(tmp_path, frame.drop(index=5)))


def test_hour_twice(tmp_path):
    frame = hourly(4)
    with pytest.raises(InputError, match="a second time"):
        load(written(tmp_path, pd.concat([frame, frame.iloc[[2]]])))


def test_negative_and_text_demand(tmp_path):
    frame = hourly(4)
    frame.loc[1, "requests_per_hour"] = -5.0
    with pytest.raises(InputError, match=r"west at 2026-03-07 01:00:00: got -5.0; .*≥ 0"):
        load(written(tmp_path, frame))
    frame["requests_per_hour"] = frame["requests_per_hour"].astype(object)
    frame.loc[1, "requests_per_hour"] = "n/a"
    with pytest.raises(InputError, match="no number"):
        load(written(tmp_path, frame))


ZONES = [{"region": "west", "time_zone": "America/Los_Angeles"}, {"region": "east", "time_zone": "Europe/Berlin"}]


def test_local_hours_across_daylight_saving(tmp_path):
    parts = [
        hourly(72, "hour_start_local", zone).query(f"region == '{region}'")
        for region, zone in (("west", "America/Los_Angeles"), ("east", "Europe/Berlin"))
    ]
    case = load(written(tmp_path, pd.concat(parts), regions=ZONES)).resolve()  # clocks go forward on 8 March in the US
    assert case.demand_rps.shape == (72, 2, 1)


def test_local_hour_that_does_not_exist(tmp_path):
    frame = pd.DataFrame([
        {"hour_start_local": f"2026-03-08 0{h}:00", "region": r, "requests_per_hour": 1.0}
        for r in ("west", "east") for h in range(5)
    ])  # fmt: skip
    with pytest.raises(InputError, match="daylight saving skips"):
        load(written(tmp_path, frame, regions=ZONES))


def test_inline_hours_differ():
    text = mistakes(two_regions(services=service(demand={
        "kind": "inline", "unit": "requests_per_s", "by_region": {"west": [1.0, 2.0], "east": [1.0]}
    })))  # fmt: skip
    assert "by_region.east" in text
    assert "1 missing" in text


def test_unreachable_region_is_named_with_the_least_it_needs():
    text = mistakes(two_regions(services=service(slo={"ttft_s": 0.05})))
    assert "services[0].slo.ttft_s (west)" in text
    assert "0.105 s" in text


def test_price_missing_for_a_term():
    assert "no machine has prices.spot" in mistakes(two_regions(terms=["reserved_3y", "spot"]))


def test_price_per_month_against_per_hour():
    text = mistakes(two_regions(machines=machine(prices={"on_demand": 3.0, "reserved_3y": 730.0})))
    assert "is this one per month?" in text
    problem = load(two_regions(machines=machine(prices={"on_demand": 3.0, "reserved_3y": "730 USD/month"})))
    assert problem.resolve().usd_per_hour[0, 0, 3] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"network": {"rtt_ms": {}}}, "a round trip in ms"),
        ({"network": {"catalog": "azure"}}, "a round-trip table of the catalogue"),
        ({"network": {"estimate": "geodesic"}}, "latitude_deg"),
        ({"network": {"rtt_ms": {"west": {"east": 0.1}}}}, "are these seconds?"),
        ({"network": {"rtt_ms": {"west": {"east": 99000.0}}}}, "µs"),
        ({"regions": [{"region": "west", "time_zone": "Mars/Olympus"}, {"region": "east"}]}, "IANA time zone"),
        ({"services": service(residency={"west": ["weast"]})}, "did you mean west?"),
        ({"machines": machine(serves={"chart": {"requests_per_s": 1.0}})}, "did you mean chat?"),
        ({"machines": machine(reservable={"wast": 1})}, "did you mean west?"),
        ({"machines": machine(serves={})}, "a machine that serves it"),
        (
            {
                "services": [
                    *service(),
                    *service(
                        service="day",
                        demand={
                            "kind": "inline",
                            "unit": "requests_per_s",
                            "by_region": {"west": [1.0], "east": [1.0]},
                        },
                    ),
                ]
            },
            "the same hours",
        ),
        ({"uncertainty": {"scenarios": [{"scenario": "a", "probability": 0.4}]}}, "sum to 1"),
        ({"regions": [{"region": "west"}, {"region": "west"}]}, "each name once"),
        ({"terms": []}, "at least 1"),
    ],
)
def test_mistakes_are_named(changes, said):
    assert said in mistakes(two_regions(**changes))


def test_trace_is_binned(tmp_path):
    pd.DataFrame({"time_s": [0, 10, 3700, 7300], "region": ["west", "east", "west", "west"]}).to_csv(
        tmp_path / "trace.csv", index=False
    )
    path = tmp_path / "instance.yaml"
    path.write_text(
        yaml.safe_dump(two_regions(services=service(demand={"kind": "trace", "file": "trace.csv", "scale": 3600})))
    )
    assert load(path).resolve().demand_rps[:, :, 0].tolist() == [[1, 1], [1, 0], [1, 0]]


def test_a_trace_as_replayed_is_binned_by_model(tmp_path):
    rows = {"arrival_s": [0, 10, 3700, 7300], "region": ["west", "east", "west", "west"], "model": [*"aabb"]}
    pd.DataFrame(rows).to_csv(tmp_path / "trace.csv", index=False)
    path, demand = tmp_path / "instance.yaml", {"kind": "trace", "file": "trace.csv", "scale": 3600}
    for model, expected in (("a", [[1, 1], [0, 0], [0, 0]]), ("b", [[0, 0], [1, 0], [1, 0]])):
        path.write_text(yaml.safe_dump(two_regions(services=service(demand=demand | {"model": model}))))
        assert load(path).resolve().demand_rps[:, :, 0].tolist() == expected
    path.write_text(yaml.safe_dump(two_regions(services=service(demand=demand | {"model": "c"}))))
    with pytest.raises(InputError, match="got 'c'; expected one of a, b"):
        load(path).resolve()


def test_negative_demand_in_a_file_is_named_as_written(tmp_path):
    (tmp_path / "d.csv").write_text(
        "hour_start_utc,region,requests_per_hour\n2026-03-02T00:00Z,west,3\n2026-03-02T00:00Z,east,-5\n"
    )
    path = tmp_path / "instance.yaml"
    path.write_text(yaml.safe_dump(two_regions(services=service(demand={"kind": "file", "file": "d.csv"}))))
    with pytest.raises(InputError, match=r"d\.csv: east at 2026-03-02T00:00Z: got -5\.0; .*requests_per_hour, ≥ 0"):
        load(path).resolve()


def test_nobody_may_serve_a_region():
    with pytest.raises(InputError, match=r"services\[0\] \(east\).*a region that may serve these users"):
        load(two_regions(services=service(residency={"east": []}))).resolve()


def test_one_price_for_all_regions_is_one_mix_up():
    prices = {"on_demand": 3.0, "reserved_3y": 730.0}
    with pytest.raises(InputError) as error:
        load(two_regions(machines=machine(prices=prices))).resolve()
    assert str(error.value).count("is this one per month") == 1


def test_diurnal_demand_peaks_at_local_time():
    demand = {"kind": "diurnal", "hours": 24, "total_requests_per_s": 10.0, "peak_local_hour": 14.0}
    rps = load(two_regions(services=service(demand=demand))).resolve().demand_rps[:, :, 0]
    assert rps[:, 0].argmax() == 22  # 14:00 at UTC−8
    assert rps[:, 1].argmax() == 10  # 14:00 at UTC+4
    assert rps.sum(axis=1).mean() == pytest.approx(10)


def test_weekly_curves_have_mean_one():
    for curve in geography.weekly_curves().values():
        assert curve.shape == (168,)
        assert curve.mean() == pytest.approx(1, abs=1e-3)


def test_catalogue_round_trips_and_their_estimate():
    names, rtt = geography.round_trip_times("aws")
    assert (rtt == rtt.T).all()
    places = geography.places()
    assert set(names) <= set(places)
    estimate = geography.geodesic_round_trip_ms(
        np.array([places[n].latitude_deg for n in names]), np.array([places[n].longitude_deg for n in names])
    )
    off = ~np.eye(len(names), dtype=bool)
    error = np.abs(estimate - rtt)[off] / rtt[off]
    assert np.median(error) < 0.16


def test_inline_problem_stands_alone(tmp_path):
    path = written(tmp_path, hourly(5))
    result = optmodels.solve(path)
    again = optmodels.solve(result.problem)
    assert again.objective == pytest.approx(result.objective)
    assert "file" not in str(result.problem["services"])


def test_throughput_from_the_latency_model():
    slow = {"model": "llama-3.1-8b", "input_tokens": 512, "output_tokens": 256}
    slo = {"ttft_s": 2.0, "tpot_s": 0.1}

    def rate(**workload):
        problem = load(
            two_regions(services=service(slo=slo, workload=slow | workload), machines=machine(gpu="l4", serves={}))
        )
        return problem.resolve().requests_per_s[0, 0]

    assert 1 < rate() < 6
    assert rate(output_tokens=128) > rate()
    assert rate(cached_input_share=0.8) > rate()


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "instances" / "reserved_capacity").glob("*.yaml")))
def test_shipped_instances_load(path):
    load(path)


def test_egress_prices_and_what_is_missing():
    names = ["us-east-1", "us-east-2", "ap-south-1"]
    document = two_regions(
        regions=[{"region": n} for n in names], network={"catalog": "aws", "egress": {"catalog": "aws"}},
        services=service(request_kb=1000.0, demand={"kind": "inline", "unit": "requests_per_s",
                                                    "by_region": {n: [1.0] for n in names}}),
    )  # fmt: skip
    usd = load(document).resolve().egress_usd_per_request[0]  # of a MB sent
    assert usd[0] == pytest.approx([0.0, 0.01e-3, 0.02e-3])
    assert usd[2] == pytest.approx([0.086e-3, 0.086e-3, 0.0])
    again = load(load(document).inline().model_dump(mode="json", by_alias=True, exclude_none=True))
    assert again.resolve().egress_usd_per_request[0] == pytest.approx(usd)
    document["network"]["egress"] = {"usd_per_gb": {"us-east-1": 0.02}}
    with pytest.raises(InputError, match="us-east-2 → us-east-1"):
        load(document).resolve()
    document["network"]["egress"] = {"catalog": "azure"}
    with pytest.raises(InputError, match="aws"):
        load(document).resolve()
    document["network"]["egress"] = {"catalog": "aws"}
    document["services"] = service(demand=document["services"][0]["demand"])
    with pytest.raises(InputError, match="answer_kb"):
        load(document).resolve()


def hours(**by_region):
    return {"kind": "inline", "unit": "requests_per_s", "by_region": {n: [v] for n, v in by_region.items()}}


@pytest.mark.parametrize("change, path", [
    ({"services": service(demand=hours(west=4e9, east=2.0))}, "services[0].demand"),
    ({"services": service(demand=hours(west=4e-9, east=0.0))}, "services[].demand"),
    ({"machines": machine(serves={"chat": {"requests_per_s": 1e-9}})}, "services[0].demand"),
    ({"machines": [*machine(), *machine(machine="slow", serves={"chat": {"requests_per_s": 1e-9}})]},
     "machines[1].serves.chat.requests_per_s"),
    ({"machines": machine(prices={"reserved_3y": 1e-9})}, "machines[0] (box) in west: reserved_3y"),
    ({"services": service(unserved_usd_per_request=1e9)}, "services[0].unserved_usd_per_request"),
    ({"growth": {"quarters": 40, "factor_per_quarter": 2.0}}, "services[0].demand"),
])  # fmt: skip
def test_sizes_and_prices_out_of_a_solvers_reach_are_refused_with_the_value(change, path):
    with pytest.raises(InputError) as error:
        load(two_regions(**change)).resolve()
    assert [m.path for m in error.value.mistakes] == [path]


@pytest.mark.parametrize("factor", [1e-6, 1e7])
def test_the_unit_of_requests_does_not_matter(factor):
    """A million times fewer requests, of machines that serve a million times fewer: the same plan."""

    def document(x):
        demand = hours(west=10.0 * x, east=2.3 * x)
        return two_regions(
            services=service(kappa=1.2, demand=demand, unserved_usd_per_request=0.0007 / x),
            machines=machine(prices={"on_demand": 2.5, "reserved_3y": 1.0},
                             serves={"chat": {"requests_per_s": x}}),
            terms=["reserved_3y", "on_demand"],
        )  # fmt: skip

    here, there = optmodels.solve(document(1.0)), optmodels.solve(document(factor))
    assert there.check.ok and there.status == "optimal"
    assert there.objective == pytest.approx(here.objective)
    assert there.plan["reservations"] == here.plan["reservations"]
    for a, b in zip(here.plan["flows"], there.plan["flows"], strict=True):
        assert b["mean_requests_per_s"] == pytest.approx(factor * a["mean_requests_per_s"])
    assert there.report["regions"][0]["peak_requests_per_s"] == pytest.approx(10.0 * factor)


@pytest.mark.parametrize(
    ("slo", "path"),
    [
        ({"ttft_s": 0.05, "tpot_s": 1.0, "queue_s": 0.02}, "services[0].slo.ttft_s"),
        ({"ttft_s": 9.0, "tpot_s": 1e-4, "queue_s": 1.0}, "services[0].slo.tpot_s"),
        ({"ttft_s": 0.05, "tpot_s": 1e-4, "queue_s": 0.02}, "services[0].name"),
    ],
)
def test_the_limit_that_no_engine_meets_is_named(slo, path):
    work = {"model": "llama-3.1-8b", "input_tokens": 512, "output_tokens": 128}
    engines = machine(serves={}, gpu="l40s", vram_gib=48)
    data = two_regions(
        serving="continuous", latency={"model": "roofline"}, machines=engines, services=service(workload=work, slo=slo)
    )
    with pytest.raises(UnattainableError) as refused:
        load(data)
    assert [m.path for m in refused.value.mistakes] == [path]


def test_regions_that_a_catalogue_does_not_have_are_named_once_each():
    regions = [{"region": "us-east"}, {"region": "eu-west-1"}, {"region": "cellar", "time_zone": "Europe/Oslo"}]
    with pytest.raises(InputError) as refused:
        load(two_regions(regions=regions, network={"catalog": "aws"}))
    told = {m.path: m for m in refused.value.mistakes}
    assert {"regions[0].region", "regions[2].region"} <= told.keys() and "regions[1].region" not in told
    assert told["regions[0].region"].hint == "did you mean us-east-2?"
    assert "network.rtt_ms, file or estimate" in told["regions[2].region"].expected


def test_round_trips_that_are_missing_are_one_line_a_region():
    regions = [{"region": n} for n in ("west", "east", "north")]
    with pytest.raises(InputError, match=r"rtt_ms: west → north: missing.*\n.*rtt_ms: east → north: missing"):
        load(two_regions(regions=regions, network={"rtt_ms": {"west": {"east": 60.0}}}))


def test_a_table_of_another_spelling_says_what_it_has(tmp_path):
    frame = hourly(3).replace({"east": "eest"})
    with pytest.raises(InputError, match=r"rows of east .*; it has eest \(did you mean eest\?\)"):
        load(written(tmp_path, frame))
