"""Pictures, studies and the command line of reserved capacity."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml
from commands import python
from reserved import service, two_regions

import optmodels
from optmodels import formulation
from optmodels.loading import load
from papers import skylb
from papers.reserved_capacity import worth

FORM = formulation.get("reserved_capacity")
PLACED = {"regions": [{"region": "us-east-1"}, {"region": "eu-central-1"}], "network": {"catalog": "aws"}}


def placed():
    demand = {"kind": "inline", "unit": "requests_per_s",
              "by_region": {"us-east-1": [10.0, 2.0] * 12, "eu-central-1": [2.0, 10.0] * 12}}  # fmt: skip
    return two_regions(services=service(demand=demand), **PLACED)


def drawn(document, folder):
    optmodels.report(optmodels.solve(document), figures=folder)
    return {p.name.partition("-")[2]: p for p in folder.glob("*.png")}


def test_pictures_where_places_are_known_and_where_not(tmp_path):
    made = drawn(placed(), tmp_path / "placed")
    assert set(made) == {"where-demand-arises.png", "where-it-is-served.png", "flow-map.png", "cost.png"}
    assert all(p.stat().st_size > 5_000 for p in made.values())
    assert "flow-map.png" not in drawn(two_regions(), tmp_path / "nowhere")


def test_every_region_that_reserves_has_its_name_on_the_map():
    """Six regions of North America, whose names above their circles would cover one another."""
    from formulations.reserved_capacity.charts import _overlap, _sides

    places = {"ca-central-1": (45.5, -73.6), "ca-west-1": (51.0, -114.1), "us-east-1": (38.9, -77.5),
              "us-east-2": (40.0, -83.0), "us-west-1": (37.4, -121.9), "us-west-2": (45.8, -119.7)}  # fmt: skip
    sides = _sides({n: (place, len(f"{n} 116")) for n, place in places.items()})
    assert set(sides) == set(places) and len(set(sides.values())) > 1
    assert _overlap((0, 2, 0, 2), (1, 3, 1, 3)) and not _overlap((0, 2, 0, 2), (2, 3, 0, 2))
    heap = {f"region-{i}": ((0.0, 0.0), 12) for i in range(6)}
    assert list(_sides(heap)) == ["region-0", "region-1", "region-2", "region-3"]  # on four sides, no more


def test_cost_is_drawn_in_all_its_parts_and_steps_end_where_the_next_begin():
    result = optmodels.solve(two_regions()).model_dump(mode="json")
    result["plan"]["cost"] |= {"egress_usd_per_month": 12.0}
    *_, served, cost = FORM.charts(result)
    parts = {r["part"]: r["usd"] for r in cost.spec["data"]["values"] if r["way"] == "this plan"}
    assert parts == {"reserved": pytest.approx(8760), "egress": 12.0}
    assert [len(r["y"]) for r in served.spec["data"]["values"]] == [3, 3]  # two hours


def test_worth_by_solving_again():
    found = worth(load(two_regions(resilience={"lose_any_region_keep": 1.0})))
    assert found["usd_per_month"] == pytest.approx(24 * 730)
    changes = {c["what"]: c["usd_per_month"] for c in found["changes"]}
    assert changes["no loss to survive"] == pytest.approx(12 * 730)
    assert changes["no forwarding at all"] is None  # nobody could survive
    assert changes["10 ms longer TTFT of chat"] == pytest.approx(0.0)


def test_study_modules_print(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(two_regions()))
    text = subprocess.run([sys.executable, "-m", "papers.reserved_capacity", str(path)],
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert "optimum: 8,760 USD/month" in text
    assert skylb.replicas_saved(16) == (9, pytest.approx(-0.25))


def test_no_demand_costs_nothing_and_no_less():
    document = two_regions()
    document["services"][0]["demand"]["by_region"] = {"west": [0.0, 0.0], "east": [0.0, 0.0]}
    compared = optmodels.solve(load(document)).report["comparisons"]
    assert [str(usd) for usd in compared.values()] == ["0.0"] * 3  # and not −0


@pytest.mark.slow
def test_command_line_solves_checks_and_compares(tmp_path):
    """Slow: each verb is a process that imports all libraries."""
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(two_regions()))

    def command(*arguments):
        return python("-m", "optmodels", *arguments, cwd=tmp_path)

    found = command("solve", str(path), "--json")
    assert found.status == 0, found.err
    result = json.loads(found.out)
    assert result["objective"] == pytest.approx(8760)
    assert result["report"]["values"]["basis"] == "exact re-solve"
    assert result["report"]["comparisons"]["region_local"] == pytest.approx(14600)
    plan = tmp_path / "plan.json"
    plan.write_text(found.out)
    assert command("check", str(plan)).status == 0
    rows = json.loads(command("compare", str(path), "--json").out)
    rows = rows if isinstance(rows, list) else rows["rows"]
    assert {r["method"] for r in rows} == set(FORM.methods)
    assert {r["method"]: r["objective"] for r in rows}["region_local"] == pytest.approx(14600)
