"""What binds and what one more machine is worth, by hand and against solving again."""

from __future__ import annotations

import numpy as np
import pytest
from reserved import machine, service, two_regions

import optmodels
from formulations.reserved_capacity import values as reserved_values
from optmodels import formulation
from optmodels.loading import load

FORM = formulation.get("reserved_capacity")


def reported(document, **options):
    return optmodels.solve(document, **options).report


def test_one_more_machine_saves_one():
    values = reported(two_regions())["values"]
    assert values["basis"] == "exact re-solve"
    assert [x["usd_per_month"] for x in values["machines"]] == pytest.approx([730.0, 730.0])
    assert all(x["net_usd_per_month"] == {"reserved_3y": pytest.approx(0.0)} for x in values["machines"])


def test_ten_ms_that_open_a_pair_are_worth_eight_machines():
    document = two_regions(services=service(slo={"ttft_s": 0.195}))  # 100 ms and 100 ms of prefill: 5 ms lacking
    report = reported(document)
    assert report["values"]["reach_usd_per_month"] == pytest.approx((20 - 12) * 730.0)
    assert report["binding"]["next_reaches"][0]["lacking_ms"] == pytest.approx(5.0)
    assert reported(two_regions(services=service(slo={"ttft_s": 0.15})))["values"]["reach_usd_per_month"] == 0.0


def test_a_cap_that_binds_is_named_and_priced():
    document = two_regions(
        machines=machine(reservable={"west": 3, "east": 100}, prices_by_region={"east": {"reserved_3y": 5.0}}),
    )
    report = reported(document)
    assert [(c["cap"], c["region"], c["machines"]) for c in report["binding"]["caps"]] == [("reservable", "west", 3.0)]
    best = report["values"]["machines"][0]
    assert best["usd_per_month"] == pytest.approx(5 * 730)  # one fewer in the east
    west = next(x for x in report["values"]["machines"] if x["region"] == "west")
    assert west["net_usd_per_month"]["reserved_3y"] == pytest.approx(4 * 730)


def test_what_requests_see_is_the_slowest_link_in_use():
    far = reported(two_regions(services=service(slo={"ttft_s": 0.25, "queue_s": 0.02})))
    (said,) = far["promises"]  # 100 ms of round trip, 20 of queue, 100 of prefill
    assert said["ttft_s"] == pytest.approx(0.22) and said["rtt_ms"] == 100.0 and said["origin"] != said["server"]
    assert said["limits"] == {"ttft": {"at_most_s": 0.25, "percentile": None}} and said["tpot_s"] is None
    (said,) = reported(two_regions(services=service(slo={"ttft_s": 0.15})))["promises"]  # out of each other's reach
    assert said["ttft_s"] < 0.15 and said["origin"] == said["server"]


def test_full_hours_are_counted():
    binding = reported(two_regions())["binding"]
    assert binding["hours_full"] == 2
    assert binding["busiest_hours"][0]["busy_share"] == pytest.approx(1.0)


def test_with_reservations_fixed_purchases_are_saved():
    short = {"kind": "inline", "unit": "requests_per_s",
             "by_region": {"west": [1.0] * 9 + [11.0], "east": [0.0] * 10}}  # fmt: skip
    document = two_regions(services=service(demand=short), terms=["reserved_3y", "on_demand"])
    problem = load(document)
    tables = FORM.tables(problem)
    held = np.zeros((2, 1))
    held[:] = [[1.0], [0.0]]
    found = reserved_values._by_dispatch(tables, held, 2)
    assert found == {j: pytest.approx(0.1 * 3 * 730) for j in (0, 1)}  # one machine in one of ten hours


def test_large_instances_say_what_the_value_is_based_on(monkeypatch):
    monkeypatch.setattr(reserved_values, "SOLVED_CELLS", 0)
    assert "too large" in reported(two_regions())["values"]["basis"]
    hourly = reported(two_regions(terms=["reserved_3y", "on_demand"]))["values"]
    assert hourly["basis"].startswith("purchases with the reservations fixed")


def test_summary_names_them():
    result = optmodels.solve(two_regions()).model_dump(mode="json")
    text = "\n".join(map(str, FORM.summary(result)))
    assert "Binding constraints" in text
    assert "Shadow prices" in text
    assert "10 ms more TTFT: 0 USD/month" in text
