"""`plan`: an answer without a file; and what `solve` shows when."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import time

import pytest
import yaml

import optmodels
from optmodels import catalog

ASKED = ["plan", "--model", "qwen3-32b", "--precision", "fp8", "--input", "1200", "--output", "300", "--rate", "20",
         "--ttft-p95", "1", "--tpot", "0.04", "--cloud", "aws", "--region", "us-east-1", "--quota", "h100=16",
         "--survive", "1"]  # fmt: skip


def test_an_answer_without_a_file_is_that_of_the_instance_it_stands_for(cli, folder):
    said = cli(*ASKED, "--write", "mine.yaml")
    assert said.status == 0
    assert "optimal, proved" in said.out and "What requests see" in said.out
    rows = [[cell.strip() for cell in line.split("│")[2:-1]] for line in said.out.splitlines() if "│" in line]
    assert [row[0] for row in rows[:3]] == ["TTFT p95", "TPOT mean", "E2E mean"]
    assert [row[-1] for row in rows[:3]] == ["1 s", "40 ms", ""] and all(row[1] for row in rows[:3])
    assert "optmodels explain mine.yaml" in said.out
    assert sorted(p.name for p in folder.iterdir()) == ["mine.yaml"]  # no other files unless told
    data = yaml.safe_load((folder / "mine.yaml").read_text())
    assert data["workloads"][0]["slo"] == {"ttft_s": {"at_most": 1.0, "percentile": 0.95}, "tpot_s": 0.04}
    assert data["quota"] == [{"gpu": "h100", "unit": "gpus", "at_most": 16}]
    assert data["reserve"] == {"lost": 1}
    assert "memory" not in data  # the engines' defaults: 1 GiB of runtime, more at a safety level
    asked = json.loads(cli(*ASKED, "--json").out)
    assert [x.partition(" predicted, SLO ")[2] for x in asked["summary"]["slo"]] == ["1 s", "40 ms"]
    solved = json.loads(cli("solve", "mine.yaml", "--json").out)
    assert asked["status"] == "optimal" and asked["check"]["ok"]
    assert asked["objective"] == solved["objective"] and asked["plan"] == solved["plan"]
    deployments = asked["plan"]["periods"][0]["deployments"]
    assert sum(d["count"] * m["count"] * m["gpus_per_machine"] for d in deployments for m in d["machines"]
               if m["gpu"] == "h100") <= 16  # fmt: skip


def test_the_instance_that_is_shown_is_the_one_that_is_written(cli, folder):
    assert "formulation: fleet" not in cli(*ASKED).out
    said = cli(*ASKED, "--show-problem").out
    cli(*ASKED, "--write", "mine.yaml")
    shown = said.partition("(--write FILE saves it)\n")[2].partition("\n\nNext")[0]
    assert yaml.safe_load(shown) == yaml.safe_load((folder / "mine.yaml").read_text())


@pytest.mark.parametrize(
    ("more", "expected"), [([], "--max-model-len=auto"), (["--longest", "8192"], "--max-model-len=8192")]
)
def test_engines_admit_the_longest_request_where_it_is_known(cli, folder, more, expected):
    cli(*ASKED, *more, "--force", "--out", "results")
    (plan,) = folder.glob("results/*/plan.json")
    cli("export", plan, "--to", "vllm", "--out", "run")
    scripts = [path.read_text() for path in folder.glob("run/*.sh")]
    assert scripts
    assert all(expected in text for text in scripts)
    assert all(("not how long the longest is" in text) == (not more) for text in scripts)


def test_whether_prefill_and_decode_apart_are_cheaper(cli, folder):
    asked = ["plan", "--model", "llama-3.1-8b", "--input", "2000", "--output", "100", "--rate", "10", "--ttft-p95", "1",
             "--tpot", "0.05", "--gpu", "h100", "--disaggregate", "--certify-replay",
             "--write", "mine.yaml"]  # fmt: skip
    said = cli(*asked, "--json")
    said.assert_clean()
    document = json.loads(said.out)
    assert document["check"]["ok"] and document["plan"]["certification"]["status"] == "certified"
    assert {"used", "certified"} <= set(document["log"]["stages"])
    data = yaml.safe_load((folder / "mine.yaml").read_text())
    assert data["deployment"] == {"stages": ["both", "prefill", "decode"]} and data["certify"] == "replay"
    assert "--disaggregate: whether" in cli(*ASKED).out


def test_older_names_are_read_with_a_note(cli, folder):
    asked = {"input": 500, "output": 50, "rate": 1, "tpot": "50 ms", "gpu": ["h100"]}
    with pytest.warns(DeprecationWarning, match="disaggregate"):
        older = optmodels.plan("llama-3.1-8b", apart=True, **asked)
    assert older.plan == optmodels.plan("llama-3.1-8b", disaggregate=True, **asked).plan


def test_what_the_plan_would_be_at_the_pessimistic_end(cli, folder):
    asked = [*ASKED[: ASKED.index("--quota")], "--write", "mine.yaml", "--force"]
    central, safe = cli(*asked), cli(*asked, "--safety", "0.9")
    assert "In this pessimistic case the plan misses its SLO" in central.out and "--safety 0.9: a plan" in central.out
    assert "Predictions include a margin of" in safe.out and "--safety 0.9: a plan" not in safe.out
    costs = [
        float(re.search(r"([\d.]+) USD/h ≈", line)[1]) for line in (safe.out, central.out.partition("--safety")[2])
    ]
    assert costs[0] == costs[1]  # the price of that plan stands beside the one that misses
    assert yaml.safe_load((folder / "mine.yaml").read_text())["latency"]["safety"] == 0.9
    cost = [json.loads(cli(*asked, *more, "--json").out)["objective"] for more in ([], ["--safety", "0.9"])]
    assert cost[0] < cost[1]
    for wrong in ("1.9", "0.9999"):
        said = cli(*asked, "--safety", wrong)
        assert said.status == 2 and "--safety: got" in said.err


H200_OR_B200 = ["--model", "qwen3-32b", "--precision", "fp8", "--input", "2k", "--output", "300", "--rate", "30",
                "--ttft", "1", "--tpot", "30ms"]  # fmt: skip


def test_the_measurement_that_tells_which_machines_are_right(cli, folder):
    central = json.loads(cli("plan", *H200_OR_B200, "--write", "mine.yaml", "--json").out)
    safe = json.loads(cli("plan", *H200_OR_B200, "--safety", "0.9", "--json").out)
    told = central["log"]["next_measurement"]
    assert told == safe["log"]["next_measurement"]  # the cheaper plan's, whichever of both was asked for
    assert told["between"] == ["8 H200 + 1 H100", "8 B200"] and (told["gpu"], told["input_tokens"]) == ("h200", 2000)
    running = 30 / 9 * central["report"]["predicted"][0]["deadline_s"]  # Little's law, by engine
    assert running <= told["concurrency"] < 1.2 * running  # the engines on H200 have more than the one on H100
    for now, then in told["narrows"].values():
        assert 1.0 < then < now
    assert safe["log"]["safer"]["usd_per_hour"] == central["objective"] < safe["objective"]
    solved = cli("solve", "mine.yaml", "--time-limit", "60", "--out", "results")
    line = next(x for x in solved.out.splitlines() if x.strip().startswith("optmodels rows-to-measure"))
    assert line.strip() == told["command"] and "To choose between 8 H200 + 1 H100 and 8 B200, measure" in solved.out
    assert "Next measurement" not in cli("solve", "mine.yaml", "--out", "results").out  # without time for another plan
    rows = json.loads(cli(*told["command"].split()[1:], "--json").out)
    assert len(rows["rows"]) == told["rows"]
    assert rows["targets"]["TPOT"]["safety_09"] == dict(zip(("now", "after"), told["narrows"]["TPOT"], strict=True))
    few = ["2" if x == "30" else x for x in H200_OR_B200[:-1]]
    easy = json.loads(cli("plan", *few, "2s", "--gpu", "h200", "--json").out)
    assert "next_measurement" not in easy["log"]  # the same machines at both ends


def test_what_nothing_serves_says_why_and_what_to_try(cli):
    said = cli("plan", "--model", "qwen3-32b", "--input", "1200", "--output", "300", "--rate", "20", "--ttft", "0.001",
               "--gpu", "h100")  # fmt: skip
    assert said.status == 3
    assert "infeasible, proved" in said.out and "optmodels explain FILE" in said.out


def test_an_infeasible_answer_says_how_much_is_needed(cli):
    asked = ["plan", "--model", "llama-3.3-70b", "--input", "1000", "--output", "300", "--rate", "100",
             "--tpot", "0.05", "--gpu", "h100", "--quota", "h100=24"]  # fmt: skip
    said = cli(*asked)
    assert said.status == 3
    line = next(line for line in said.out.splitlines() if "quota of h100: " in line)
    needed = int(re.search(r"(\d+) GPUs needed, the limit is 24 GPUs", line)[1])
    assert cli(*asked[:-1], f"h100={needed}").status == 0 and cli(*asked[:-1], f"h100={needed - 1}").status == 3


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--model", "qwen3-32"], "--model: got 'qwen3-32'"),
        (["--precision", "fp9"], "--precision: got 'fp9'"),
        (["--region", "mars"], "--region: got 'mars'; expected a region of aws"),
        (["--cloud", "azur"], "--cloud: got 'azur'"),
        (["--gpu", "h10"], "--gpu: got 'h10'"),
        (["--quota", "h100"], "--quota: got 'h100'; expected a GPU type and how many of them, as in h100=16"),
        (["--quota", "h10=4"], "--quota: got 'h10'"),
        (["--market", "on-demands"], "--market: got 'on-demands'"),
        (["--rate", "-1"], "--rate: got -1.0; expected requests/s > 0"),
        (["--rate", "0"], "--rate: got 0.0; expected requests/s > 0"),
        (["--rate", "inf"], "--rate: got inf; expected a finite number in requests/s"),
        (["--survive", "-1"], "--survive: got -1; expected a whole number of deployments ≥ 0"),
        (["--time-limit=-1"], "--time-limit: got -1.0; expected seconds > 0"),
        (["--input", "0"], "--input: got 0"),
        (["--budget", "-5"], "--budget: got -5.0"),
        (["--engine", "vlm"], "--engine: got 'vlm'"),
        (["--longest", "1499"], "--longest: got 1499; expected at least the 1500 tokens of --input and --output"),
        (["--longest", "9999999"], "--longest: got 9999999"),
        (["--ttft", "-1"], "--ttft: got -1.0"),
        (["--ttft", "1", "--ttft-p99", "2"], "--ttft: got"),
    ],
)
def test_a_mistake_is_said_of_the_option(cli, more, expected):
    asked = ["plan", "--model", "qwen3-32b", "--input", "1200", "--output", "300", "--rate", "20"]
    said = cli(*asked, *more)
    assert said.status == 2
    assert expected in said.err


TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:{m:02}:{s:02}.5,{200 + 40 * s},{20 + m}\n" for m in range(10) for s in range(60)
)
OF_TRACE = ["plan", "--model", "llama-3.1-8b", "--trace", "kept/mine.csv", "--ttft-p95", "1", "--tpot", "0.05"]


@pytest.mark.slow
def test_a_trace_stands_for_lengths_and_rate(cli, folder):
    """Slow: three certified plans, each simulated on the trace."""
    (folder / "kept").mkdir()
    (folder / "kept" / "mine.csv").write_text(TRACE)
    said = cli(*OF_TRACE, "--out", "results")
    said.assert_clean()
    assert "the requests of mine.csv" in said.out and "out of sample" in said.out
    assert [p.name for p in folder.glob("results/*")] == ["llama-3.1-8b-plan-exact"]  # a dot in a name is no ending
    asked = json.loads(cli(*OF_TRACE, "--rate-factor", "2", "--write", "mine.yaml", "--json").out)
    data = yaml.safe_load((folder / "mine.yaml").read_text())
    assert data["workloads"][0]["trace"] == {"file": "kept/mine.csv", "rate_factor": 2.0}
    solved = json.loads(cli("solve", "mine.yaml", "--json").out)
    assert asked["plan"] == solved["plan"] and asked["plan"]["periods"][0]["requests_per_s"] > 1.9


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--trace", "none.csv"], "--trace: got 'none.csv'; expected an existing file"),
        (["--rate", "3"], "--rate: got 3.0; expected nothing beside --trace"),
        (["--longest", "3"], "--longest: got 3; expected nothing beside --trace"),
        (["--rate-factor", "-1"], "--rate-factor: got -1.0"),
        (["--write", "elsewhere/mine.yaml"], "--write: got 'elsewhere/mine.yaml'; expected a file in kept or above it"),
    ],
)
def test_a_mistake_beside_a_trace_is_said_of_the_option(cli, folder, more, expected):
    (folder / "kept").mkdir()
    (folder / "kept" / "mine.csv").write_text(TRACE)
    said = cli(*OF_TRACE, *more)
    assert (said.status, expected in said.err) == (2, True), said.err
    assert not (folder / "elsewhere").exists()


@pytest.mark.parametrize(("left_out", "option"), [((5, 7), "--input"), ((7, 9), "--output"), ((9, 11), "--rate")])
def test_requests_are_stated_one_way_or_the_other(cli, left_out, option):
    asked = [x for i, x in enumerate(ASKED) if not left_out[0] <= i < left_out[1]]
    said = cli(*asked)
    assert (said.status, said.err.count("missing")) == (2, 1) and f"{option}: missing" in said.err
    assert "--rate-factor: got 2.0" in cli(*ASKED, "--rate-factor", "2").err


# ------------------------------------------------------------------------------------------------ the plan at once


def test_the_result_is_handed_over_before_anything_is_written(tiny, folder):
    seen = []

    def on_result(result):
        seen.append((result.status, sorted(folder.iterdir()), "folder" in result.log))

    found = optmodels.solve(tiny(), out=folder, on_result=on_result)
    assert seen == [("optimal", [], False)]
    assert (folder / found.log["folder"] / "plan.json").is_file()


def test_a_terminal_is_shown_seconds_bound_and_gap_while_it_waits():
    script = (
        "import sys, time\n"
        "from optmodels.cli.console import Progress, progress\n"
        "from optmodels.solver.session import Event\n"
        "Progress.AFTER_S = Progress.EVERY_S = 0.01\n"
        "with progress(True) as shown:\n"
        "    shown(Event(0.1, 10.0, 8.0, 3))\n"
        "    time.sleep(0.3)\n"
        "print('answer')\n"
    )
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=True)
    os.close(theirs)
    time.sleep(0.05)
    said = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "incumbent 10  bound 8  gap 20.00%  nodes 3" in said
    assert said.endswith("\r\x1b[K")  # nothing of it stays
    assert done.stdout == b"answer\n"


def test_no_terminal_is_shown_nothing(command, write, tiny):
    write(tiny())
    assert command("solve", "instance.yaml").err == ""


def test_a_result_says_what_it_is_in_one_line_and_in_a_notebook(tiny):
    result = optmodels.solve(tiny(name="<b>"))
    assert repr(result) == str(result)
    assert repr(result).startswith("<Result instance: <b>, method: exact, status: optimal, objective: ")
    assert len(repr(result)) < 400
    assert "<th>instance</th><td>&lt;b&gt;</td>" in result._repr_html_()
    assert "main machine: " in result._repr_html_()  # what the plan says
    assert "<pre" not in pickle.loads(pickle.dumps(result))._repr_html_()  # which has no tables to say it from


FOUR_BITS = {"deepseek-v4-flash", "deepseek-v4-pro", "kimi-k3"}  # published so as a whole


def test_weights_are_as_published_unless_said(cli):
    published = {name: catalog.published_precision(name) for name in catalog.llms()}
    experts = {n for n, x in catalog.llms().items() if x.moe is not None and x.moe.expert_precision is not None}
    assert {n for n, p in published.items() if p == "mxfp4"} - {
        "deepseek-v4-flash",
        "deepseek-v4-pro",
        "kimi-k3",
    } == experts
    assert (published["qwen3-32b"], published["deepseek-r1"]) == ("fp16", "fp8_block")
    asked = ["plan", "--model", "gpt-oss-20b", "--input", "500", "--output", "100", "--rate", "1", "--show-problem"]
    assert "weights: mxfp4" in cli(*asked).out
    assert "precision:" not in cli(*asked, "--precision", "fp16").out
