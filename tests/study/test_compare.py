"""Comparisons: rows for refusals, seeds, replay; profiles and gaps by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT

import optmodels
from optmodels import formulation
from optmodels.errors import InputError, Mistake
from optmodels.plans.outcome import Outcome
from optmodels.reporting.charts.comparison import charts as comparison_charts
from optmodels.reporting.charts.comparison import gap_over_time, ratios
from optmodels.reporting.page.comparison import _by_method, of_comparison
from optmodels.study.compare import comparison_frame, comparison_table, events_frame, save_comparison, statistics_frame
from optmodels.study.rows import figures

FLEET = ROOT / "tests/fleet/static/stock-limited.yaml"
INSTANCES = ROOT / "instances"
TABLE_IX = ROOT / "instances/cost_efficiency/table_ix"


def too_large(problem, tables, options):
    raise InputError(Mistake(None, "workloads", 900, "at most 100 demands for this method"))


def broken(problem, tables, options):
    raise ZeroDivisionError("x")


def slow(problem, tables, options):
    assert options.time_limit == 0.5
    return Outcome("no_solution_found", None, bound=1.0, limit="time")


@pytest.fixture
def methods(monkeypatch):
    """Add methods and hooks to the fleet formulation."""
    form = formulation.get("fleet")

    def add(more, **hooks):
        changed = replace(form, methods={**form.methods, **more}, **hooks)
        monkeypatch.setattr(formulation, "get", lambda name: changed)

    return add


def test_refusals_faults_and_limits_are_rows_with_their_reason(methods):
    methods({"too_large": too_large, "broken": broken, "slow": slow})
    rows = optmodels.compare([FLEET], ["too_large", "broken", "slow", "exact"], time_limit=0.5)
    assert [r["status"] for r in rows[:3]] == ["no_solution_found", "error", "no_solution_found"]
    assert "at most 100 demands" in rows[0]["headline"]
    assert "ZeroDivisionError" in rows[1]["headline"]
    assert rows[2]["limit"] == "time"
    assert rows[3]["objective"] is not None
    frame = comparison_frame(rows)
    assert frame["seconds_to_first"].isna().tolist() == [True, True, True, False]
    assert frame["gap_to_bound"].isna().tolist() == [True, True, True, False]


def test_first_solution_and_proof_are_within_the_run():
    for row in optmodels.compare([FLEET], ["exact", "greedy"]):
        s = row["seconds"]
        assert 0 < s["to_first"] <= s["total"]
        assert (s["to_proof"] == s["total"]) if row["proved"] else s["to_proof"] is None
    assert {r["method"] for r in optmodels.compare([FLEET], ["exact", "greedy"]) if r["proved"]} == {"exact"}


def test_a_replayed_report_becomes_columns(methods):
    def replay(problem, plan, trace, options):
        assert plan["formulation"] == "fleet"
        assert trace is None
        assert options.seed == 3
        policies = {"random": {"served_share": 0.97}, "fifo": {"served_share": 0.95}}
        return {"requests": 100, "predicted": {"served_share": 1.0}, "policies": policies, "waits_s": [1.0, 2.0]}

    methods({"too_large": too_large}, replay=replay)
    rows = optmodels.compare([FLEET], ["exact", "too_large"], replay=True, seed=3)
    assert rows[0]["replay.requests"] == 100
    assert rows[0]["replay.policies.fifo.served_share"] == 0.95
    assert "replay.waits_s" not in rows[0]
    assert any("replay, random: served_share 0.97 (predicted 1)" in str(x) for x in comparison_table(rows))
    assert rows[1]["replay.none"] == "no plan"
    methods({}, replay=None)
    (row,) = optmodels.compare([FLEET], ["exact"], replay=True)
    assert "cannot be replayed" in row["replay.none"]


def row(method, objective, proof=None, instance="i", seed=0, **more):
    return {
        "instance": instance, "formulation": "f", "method": method, "seed": seed, "unit": "USD/h", "sense": "min",
        "status": "optimal", "objective": objective, "bound": None, "gap": None, "gap_to_bound": None,
        "proved": proof is not None, "check": None if objective is None else {"ok": True}, "size": {}, "events": [],
        "seconds": {"total": 1.0 + seed, "to_first": None, "to_proof": proof}, "headline": "",
    } | more  # fmt: skip


def test_the_screen_says_each_plan_once_and_who_proved_the_best_bound():
    rows = [row("a", 5.0, bound=4.0, headline="x"), row("b", 5.0, headline="x"), row("c", 6.0, bound=4.5, headline="y"),
            row("d", None, status="no_solution_found", headline="[too] large")]  # fmt: skip
    table, *lines = comparison_table(rows)
    assert table.caption == "bound 4.5 USD/h, proved by c"
    assert lines == ["  a, b: x", "  c: y", "  d: \\[too] large", ""]
    assert list(table.columns[1].cells) == ["optimal", "optimal", "optimal", "no plan"]
    assert comparison_table([r | {"sense": "max"} for r in rows])[0].caption == "bound 4 USD/h, proved by a"
    assert comparison_table([row("a", None)])[0].caption is None


def test_statistics_over_seeds_by_hand():
    rows = [row("a", v, seed=i) for i, v in enumerate([1.0, 2.0, 6.0, None])] + [row("b", 5.0)]
    a, b = statistics_frame(rows).to_dict("records")
    assert (a["seeds"], a["with_plan"]) == (4, 3)
    assert a["objective_mean"] == 3.0
    assert a["objective_sd"] == pytest.approx(math.sqrt(7))
    assert (a["objective_min"], a["objective_max"]) == (1.0, 6.0)
    assert a["seconds_total_mean"] == 2.5
    assert (b["objective_mean"], b["objective_sd"]) == (5.0, 0.0)
    assert math.isnan(b["seconds_to_proof_mean"])


def test_performance_ratios_by_hand():
    rows = [
        row("a", 2.0, 1.0), row("b", 3.0), row("a", None, instance="j"), row("b", 4.0, 8.0, instance="j"),
        row("a", None, instance="k"), row("b", None, instance="k"),
    ]  # fmt: skip
    assert ratios(rows, "quality")[1].tolist() == [[1.0, 1.5], [math.inf, 1.0]]
    assert ratios(rows, "time")[1].tolist() == [[1.0, math.inf], [math.inf, 1.0]]
    most = [row("a", 2.0, sense="max"), row("b", 4.0, sense="max"), row("c", 8.0, sense="max", check={"ok": False})]
    assert ratios(most, "quality")[1].tolist() == [[2.0, 1.0, math.inf]]
    two = [row("a", 1.0), row("b", 1.0, instance="j")]
    assert np.isnan(ratios(two, "quality")[1]).tolist() == [[False, True], [True, False]]
    assert ratios([row("a", 1.0, 0.0), row("b", 1.0, 2.0)], "time")[1].tolist() == [[1.0, math.inf]]


def event(seconds, objective, bound):
    return {"seconds": seconds, "objective": objective, "bound": bound, "nodes": 0}


def test_gap_over_time_is_of_one_model_and_ends_with_the_plans_gap():
    steps = [event(0.1, None, 5.0), event(0.2, 10.0, 5.0), event(0.3, 8.0, 6.0)]
    assert gap_over_time(row("a", 8.0, gap=0.25, events=steps)) == [(0.2, 0.5), (0.3, 0.25)]
    assert gap_over_time(row("a", 8.0, gap=0.5, events=steps)) == []
    again = [event(0.1, 4.0, 4.0), *steps]
    assert gap_over_time(row("a", 8.0, gap=0.25, events=again)) == []
    assert gap_over_time(row("a", 8.0, gap=None, events=steps)) == []


def test_files_of_a_comparison(tmp_path):
    fleet = FLEET.with_name("day-and-night.yaml")  # whose search has several incumbents and bounds
    rows = optmodels.compare([fleet, TABLE_IX / "batch-budget-2.0.yaml"], ["exact", "greedy"], seeds=[0, 1])
    folder = save_comparison(rows, tmp_path)
    names = {p.name for p in folder.iterdir()}
    tables = {"compare.csv", "compare.json", "events.csv", "seeds.csv"}
    pictures = {"compare", "profile", "gap-over-time", "gap-and-time", "time"}
    assert names == tables | {"report.html"} | {f"{n}.png" for n in pictures}
    assert len(pd.read_csv(folder / "compare.csv")) == 8
    assert json.loads((folder / "compare.json").read_text(encoding="utf-8"))[0]["seed"] == 0
    events = events_frame(rows)
    assert events.groupby(["instance", "seed"])["seconds"].apply(lambda s: s.is_monotonic_increasing).all()


def test_folders_are_searched_and_other_files_passed_over(cli, folder):
    deep = folder / "mine/deep"
    deep.mkdir(parents=True)
    source = TABLE_IX / "batch-budget-2.0.yaml"
    (deep / "a.yaml").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    (deep / "measured.csv").write_bytes((TABLE_IX / "measured.csv").read_bytes())
    (deep / "notes.yaml").write_text("just: notes\n", encoding="utf-8")
    (deep / "result.json").write_text('{"formulation": "fleet", "plan": null}', encoding="utf-8")
    (deep / "broken.yaml").write_text("a: [", encoding="utf-8")
    run = cli("compare", "mine", "--methods", "enumerate", "--seeds", "0,2", "--json")
    assert run.status == 0, run.err
    rows = json.loads(run.out)
    assert [(Path(r["instance"]).name, r["seed"]) for r in rows] == [("a.yaml", 0), ("a.yaml", 2)]
    for wrong in ("0,0", "a", "-1", ""):
        assert cli("compare", "mine", "--seeds", wrong).status == 2
    for wrong in ("", "greedy,greedy"):
        refused = cli("compare", "mine", "--methods", wrong)
        assert refused.status == 2 and ("each once" in refused.err or not wrong)


def test_a_method_that_only_some_formulations_have_runs_there_and_the_rest_is_said(cli, folder):
    paths = [TABLE_IX / "batch-budget-2.0.yaml", FLEET, INSTANCES / "fleet/melange-example.yaml"]
    run = cli("compare", *paths, "--methods", "enumerate,exact", "--json")
    assert run.status == 0, run.err
    ran = [(r["formulation"], r["method"]) for r in json.loads(run.out)]
    assert ran == [
        ("cost_efficiency", "enumerate"),
        ("cost_efficiency", "exact"),
        ("fleet", "exact"),
        ("fleet", "exact"),
    ]
    [said] = [line for line in run.err.splitlines() if "skipped" in line]
    assert said == "skipped: enumerate on 2 problems of fleet, which has no such method"
    run = cli("compare", *paths, "--methods", "enumerate", "--json")  # nothing is left for the fleet
    assert run.status == 0 and len(json.loads(run.out)) == 1
    for unknown in ("enumerat", "enumerate,nonsense"):
        run = cli("compare", *paths, "--methods", unknown)
        assert run.status == 2 and unknown.split(",")[-1] in run.err and "expected one of" in run.err
    assert "did you mean enumerate" in cli("compare", *paths, "--methods", "enumerat").err
    with pytest.warns(UserWarning, match="enumerate on 1 problem of fleet"):
        optmodels.compare(paths[:2], ["enumerate"])


def test_the_page_has_a_column_of_seeds_where_there_are_several_and_runs_them_again():
    rows = optmodels.compare([FLEET], ["greedy"], seeds=[3, 5])
    article = of_comparison(rows)
    [table] = [i for s in article.sections if s.title == "Problems" for i in s.items]
    assert table.columns[1] == "seed" and [row[1][0].text for row in table.rows] == ["3", "5"]
    assert article.command.endswith("--seeds 3,5")
    again = of_comparison([r for r in rows if r["seed"] == 3])
    [table] = [i for s in again.sections if s.title == "Problems" for i in s.items]
    assert "seed" not in table.columns and again.command.endswith("--seed 3")


def test_replay_columns_have_what_every_service_saw():
    textbook = INSTANCES / "reserved_capacity/textbook-two-regions.yaml"
    [row] = optmodels.compare([textbook], ["exact"], replay=True)
    assert 0 <= row["replay.services.chat.within_ttft_slo"] <= 1
    assert row["replay.services.chat.ttft_p90_s"] > 0 and row["replay.services.chat.replicas"] == 12


def test_records_are_named_where_their_first_entries_differ():
    records = {"losses": [{"region": "a", "kept": 1.0}, {"region": "b", "kept": 0.5}], "rows": [{"k": "x"}, {"k": "x"}]}
    assert figures(records, "r", records=True) == {"r.losses.a.kept": 1.0, "r.losses.b.kept": 0.5}
    assert figures(records, "r") == {}


def test_page_counts_a_seed_as_a_problem_and_means_the_median_by_median():
    paths = [INSTANCES / "fleet/gcp-three-regions.yaml", INSTANCES / "fleet/melange-example.yaml"]
    rows = optmodels.compare(paths, ["exact", "greedy"], seeds=[0, 1])
    [profile] = [c for c in comparison_charts(rows) if c.file == "compare"]
    shares = [p["share"] for p in profile.spec["data"]["values"]]
    assert max(shares) == 1 and "2 problems with 2 seeds" in json.dumps(profile.spec)
    gaps = sorted(r["gap_to_bound"] for r in rows if r["method"] == "greedy")
    [greedy] = _by_method(rows, ["greedy"]).rows
    assert f"{(gaps[1] + gaps[2]) / 2:.2%}" in str(greedy)
