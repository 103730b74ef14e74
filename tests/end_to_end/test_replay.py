"""The verb `replay` as users type it."""

from __future__ import annotations

import copy
import json
import shutil

import pandas as pd
import pytest
from conftest import ROOT
from reserved import two_regions

import optmodels

INSTANCE = ROOT / "instances" / "fleet" / "day-and-night.yaml"


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    optmodels.solve(INSTANCE, out=folder)
    return next(folder.rglob("plan.json"))


@pytest.fixture
def trace(folder):
    rows = "".join(f"{i / 20},{100 + 40 * (i % 30)},{50 + i % 200}\n" for i in range(2000))
    (folder / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    return "trace.csv"


def test_predicted_beside_replayed(cli, plan, trace, folder):
    first = cli("replay", plan, "--trace", trace, "--out", "out")
    assert first.status == 0, first.err
    assert "predicted" in first.out and "planned shares" in first.out
    rows = [line.split("   ")[0].strip() for line in first.out.splitlines()]
    assert len(rows) < 40 and not any(r.endswith((" p50, s", " p90, s")) for r in rows), (
        rows
    )  # those are in the document
    [written] = (folder / "out").iterdir()
    document = json.loads((written / "replay.json").read_text())
    assert document["requests"] == 2000 and document["report"]["policies"]
    rows = pd.read_csv(written / "requests-planned_shares.csv")
    assert len(rows) == 2000 and rows["ttft_s"].notna().all()
    cli("replay", plan, "--trace", trace, "--out", "out", "--parquet")
    assert len(list((folder / "out").iterdir())) == 2  # nothing is overwritten
    [other] = (folder / "out").glob("*-2")
    pd.testing.assert_frame_equal(pd.read_parquet(other / "requests-random.parquet"),
                                  pd.read_csv(written / "requests-random.csv"), check_dtype=False)  # fmt: skip


def test_json_is_one_document_and_writes_nothing(command, cli, plan, trace, folder):
    options = ("--trace", trace, "--json", "--policy", "random", "--rate-factor", "2", "--first", "10")
    run = command("replay", plan, *options)
    run.assert_clean()
    document = json.loads(run.out)
    assert run.status == 0 and document["requests"] == 200 and list(document["report"]["policies"]) == ["random"]
    assert [p.name for p in folder.iterdir()] == ["trace.csv"]
    assert json.loads(cli("replay", plan, *options).out)["report"] == document["report"]


def test_predicted_lengths_that_nobody_uses_are_said(plan, trace, cli):
    document = json.loads(cli("replay", plan, "--trace", trace, "--predicted-error", "1", "--json").out)
    assert document["report"]["notes"] and document["predicted_error"] == 1
    assert "notes" not in json.loads(cli("replay", plan, "--trace", trace, "--json").out)["report"]


def test_python_gives_the_same(plan, trace, cli):
    document = json.loads(cli("replay", plan, "--trace", trace, "--json").out)
    assert optmodels.replay(plan, trace)["report"] == document["report"]


@pytest.mark.parametrize(
    "options, words",
    [
        (["--trace", "none.csv"], "no such file"),
        (["--trace", "bad.csv"], "bad.csv:3: prompt_tokens: got 0"),
        (["--policy", "fastest"], "planned_shares"),
        (["--speed", "warp"], "worst_case"),
        (["--queue", "lifo"], "deadline"),
        (["--queue", "deadline"], "order of arrival"),
        (["--controller", "static:4"], "fixed batches"),
        (["--rate-factor", "2"], "trace"),
        (["--trace", "trace.csv", "--rate-factor", "-1"], "finite number > 0"),
        (["--trace", "trace.csv", "--first", "0"], "seconds > 0"),
        (["--seed", "-1"], "whole number"),
        (["--resample", "1"], "no requests one by one"),
        (["--trace", "trace.csv", "--block-s", "9"], "resample"),
        (["--trace", "trace.csv", "--part", "last"], "first, rest"),
        (["--trace", "trace.csv", "--part", "rest", "--share", "2"], "requests on both sides"),
        (["--trace", "trace.csv", "--column", "prompt_tokens=none"], "columns.prompt_tokens: got 'none'"),
        (["--column", "prompt_tokens=none"], "a trace file"),
    ],
)
def test_mistakes(cli, plan, trace, folder, options, words):
    (folder / "bad.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,0,1\n")
    run = cli("replay", plan, *options)
    run.assert_clean()
    assert run.status == 2 and words in run.err
    assert not (folder / "results").exists()


def test_reserved_capacity_writes_the_requests_of_every_run(cli, command, folder):
    document = two_regions(resilience={"lose_any_region_keep": 0.5})
    (folder / "two.json").write_text(json.dumps(document))
    assert cli("solve", "two.json", "--out", "r").status == 0
    rows = "".join(f"{i / 10},{100 + 40 * (i % 30)},{50 + i % 200},{'east' if i % 3 else 'west'}\n" for i in range(600))
    (folder / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens,region\n" + rows)
    run = command("replay", "r/two-exact/plan.json", "--trace", "trace.csv", "--out", "out")
    run.assert_clean()
    assert run.status == 0 and "predicted" in run.out, run.err
    [written] = (folder / "out").iterdir()
    report = json.loads((written / "replay.json").read_text())["report"]
    assert {p.name for p in written.glob("*.csv")} == {
        "requests-chat.csv", "requests-chat-without-west.csv", "requests-chat-without-east.csv"
    }  # fmt: skip
    seen = pd.read_csv(written / "requests-chat.csv", keep_default_na=False, na_values=[""])
    assert seen["region"].value_counts().to_dict() == {"east": 400, "west": 200}
    away = seen["served_in"].notna() & (seen["served_in"] != seen["region"])
    assert away.mean() == pytest.approx(report["services"][0]["forwarded_share"], abs=0.1)  # there without the warm-up
    assert (seen["e2e_s"] >= seen["ttft_s"])[seen["e2e_s"].notna()].all() and seen["ttft_s"].min() > 0
    lost = pd.read_csv(written / "requests-chat-without-west.csv")
    assert len(lost) < 600 and set(lost["served_in"].dropna()) == {"east"}


def test_a_plan_without_replay_says_so(cli, tiny, write):
    write(tiny())
    assert cli("solve", "instance.yaml", "--out", "r").status == 0
    run = cli("replay", "r/instance-exact/plan.json")
    run.assert_clean()
    assert run.status == 2 and "no replay" in run.err and "static" in run.err


def test_an_instance_without_a_result(cli, write, plan, folder):
    shutil.copy(INSTANCE, folder / "instance.yaml")
    run = cli("replay", "instance.yaml")
    run.assert_clean()
    assert run.status == 2 and "a problem file with a result" in run.err


def test_a_plan_of_another_instance_is_the_users_mistake(cli, plan):
    for other in ("fleet/melange-example.yaml", "reserved_capacity/textbook-two-regions.yaml"):
        found = cli("replay", plan, "--problem", ROOT / "instances" / other, "--json")
        assert found.status == 2 and found.out == "" and "a plan made for this problem" in found.err, found.err


def test_a_plan_that_its_own_instance_contradicts_is_the_users_mistake(cli, folder):
    """What a document says of its points: one that is not there (a StopIteration), one that carries nothing (a 0)."""
    assert cli("solve", ROOT / "instances/fleet/melange-example.yaml", "--out", folder).status == 0
    document = json.loads((folder / "melange-example-exact/plan.json").read_text(encoding="utf-8"))
    renamed, idle = copy.deepcopy(document), copy.deepcopy(document)
    renamed["plan"]["periods"][0]["deployments"][0]["point"] = "H9000"
    line = idle["plan"]["periods"][0]["deployments"][0]
    point = next(q for q in idle["problem"]["points"] if q["name"] == line["point"])
    point["requests_per_s"][line["serves"][0]["demand"]] = 0
    for wrong in (renamed, idle):
        (folder / "wrong.json").write_text(json.dumps(wrong), encoding="utf-8")
        found = cli("replay", folder / "wrong.json", "--json")
        assert found.status == 2 and found.out == "" and "a plan made for this problem" in found.err, found.err


def test_the_folder_of_a_result_stands_for_its_plan(cli, plan, folder):
    assert cli("check", plan.parent).status == 0
    assert cli("export", plan.parent, "--to", "terraform").out == cli("export", plan, "--to", "terraform").out
    empty = cli("check", folder)
    assert empty.status == 2 and "no plan.json" in empty.err
    assert "plan.json of a result" in cli("replay", folder / "nothing").err


ORCHESTRATION = {
    "formulation": "orchestration", "schema": 1, "name": "mine",
    "cluster": {"servers": [{"server": "s", "gpu": "h100", "gpus": 2}]}, "models": [{"model": "llama-3.1-8b"}],
    "candidates": {"tp": [1], "batch": [8]}, "latency": {"roofline": "roofline"}, "slo": {"factor": 3},
    "requests": {"trace": {
        "file": "own.csv", "columns": {"arrival_s": "at:ms", "input_tokens": "n", "output_tokens": "m"},
        "predicted_output": {"error": 0.3, "seed": 2},
    }},
}  # fmt: skip


def test_out_of_sample_beside_predicted(cli, write, folder):
    rows = "".join(f"{50 * i + i % 7},{100 + i % 90},{20 + i % 50}\n" for i in range(300))
    (folder / "own.csv").write_text("at,n,m\n" + rows)
    done = cli("solve", write(ORCHESTRATION), "--out", "solved")
    assert done.status == 0, done.out + done.err
    replay = ("replay", "solved/instance-exact", "--problem", "instance.yaml", "--json", "--policy", "planned_shares")
    found = {}
    for seed in ("1", "2"):
        run = cli(*replay, "--resample", seed)
        assert run.status == 0, run.err
        found[seed] = json.loads(run.out)
        assert found[seed]["trace"] == f"own.csv, resampled with seed {seed}" and found[seed]["resample"] == int(seed)
        assert found[seed]["report"]["predicted"] and found[seed]["report"]["policies"]
    assert (
        found["1"]["report"] != found["2"]["report"]
        and json.loads(cli(*replay, "--resample", "1").out)["report"] == (found["1"]["report"])
    )
    rest = json.loads(cli(*replay, "--part", "rest", "--share", "0.8").out)
    first = json.loads(cli(*replay, "--part", "first", "--share", "0.8", "--predicted-error", "0.5").out)
    assert rest["requests"] + first["requests"] == 300 and rest["requests"] == pytest.approx(60, abs=3)
    mapped = ("--trace", "own.csv", "--column", "arrival_s=at:ms", "--column", "input_tokens=n")
    whole = json.loads(cli(*replay, *mapped, "--column", "output_tokens=m").out)
    assert whole["requests"] == 300 and whole["trace_notes"] == []
    assert any("predicted output lengths change nothing" in n for n in first["report"]["notes"])  # slots
