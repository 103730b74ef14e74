"""An instance from answers to questions."""

import io
import shlex

import pytest
import yaml

from optmodels.cli import interview
from optmodels.errors import InputError
from optmodels.loading import load

ANSWERS = ["qwen3-32b", "fp8", "1200", "300", "20", "1", "0.04", "15", "", "us-east-1", "h100=16, l40s=8", "1", ""]


def asked(lines, again=False):
    shown = []
    questions = interview.INTERVIEWS["fleet"].questions()
    given = interview.interview(questions, io.StringIO("".join(f"{x}\n" for x in lines)).readline, shown.append, again)
    return given, "".join(shown)


def test_answers_make_the_instance_that_the_options_of_plan_make(cli, folder, monkeypatch):
    """But for the limits, which are of 95 % in both."""
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{x}\n" for x in ANSWERS)))
    run = cli("new", "fleet", "mine.yaml", "--interactive")
    assert (run.status, run.out) == (0, "mine.yaml\n"), run.err
    words = (
        "plan --model qwen3-32b --precision fp8 --input 1200 --output 300 --rate 20 --ttft-p95 1 --tpot-p95 0.04"
        " --e2e-p95 15 --region us-east-1 --quota h100=16 --quota l40s=8 --survive 1 --time-limit 0.01"
        " --write other.yaml"
    )
    cli(*shlex.split(words))
    mine, other = (yaml.safe_load((folder / f"{n}.yaml").read_text()) for n in ("mine", "other"))
    assert mine == other
    assert cli("new", "fleet", "mine.yaml", "--interactive").status == 2  # written once


def test_somebody_there_is_asked_again():
    given, shown = asked(["qwen3-32", "qwen3-32b", "", "many", "-3", "10", *ANSWERS[3:]], again=True)
    assert (given["model"], given["weights"], given["input_tokens"]) == ("qwen3-32b", None, 10)
    assert "near it: qwen3-32b" in shown and shown.count("Tokens of a prompt") == 3


@pytest.mark.parametrize(("lines", "name", "value"), [
    (["nothing-like-it"], "model", "nothing-like-it"), (ANSWERS[:2], "input_tokens", "end of input"),
    ([*ANSWERS[:4], "nan"], "rate", "nan"), ([*ANSWERS[:10], "h100"], "quota", "h100"),
])  # fmt: skip
def test_nobody_there_is_told_what_was_wrong(lines, name, value):
    with pytest.raises(InputError) as error:
        asked(lines)
    (mistake,) = error.value.mistakes
    assert (mistake.file, mistake.path, mistake.value) == ("<stdin>", name, value)


def test_answers_that_make_no_instance_are_named_by_option(cli, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{x}\n" for x in [*ANSWERS[:9], "nowhere", "", "", ""])))
    run = cli("new", "fleet", "--interactive")
    assert (run.status, "--region" in run.err) == (2, True)


def limit(seconds):
    return {"at_most": seconds, "percentile": 0.95}


OTHERS = {  # answers, and something of the instance that they make
    "cost_efficiency": (
        ["llama-3.1-8b", "fp8", "16", "1024", "256", "500", "", "", "12", "gcp", "spot", "3.5"],
        {"slo": {"kind": "real_time", "tps": 500.0, "ttft_s": limit(2.0), "tbt_s": limit(0.1),
                 "deadline_s": limit(12.0)},
         "pool": {"catalog": "gcp"}, "budget_usd_per_hour": 3.5, "precision": {"weights": "fp8"}},
    ),
    "orchestration": (
        ["llama-3.1-8b, qwen2.5-14b", "l40s", "2", "4", "3", "2", "512", "128", "1.5", "", "60"],
        {"models": [{"model": "llama-3.1-8b"}, {"model": "qwen2.5-14b"}], "slo": {"factor": 1.5}},
    ),
    "reserved_capacity": (
        ["llama-3.1-8b", "", "512", "256", "us-east-1, eu-central-1", "60", "", "0.5", "", "", "", "0.9"],
        {"regions": ["us-east-1", "eu-central-1"], "resilience": {"lose_any_region_keep": 0.9}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("formulation", OTHERS)
def test_every_formulation_asks(formulation, cli, folder, monkeypatch):
    lines, expected = OTHERS[formulation]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{x}\n" for x in lines)))
    run = cli("new", formulation, "mine.yaml", "--interactive")
    assert run.status == 0, run.err
    made = yaml.safe_load((folder / "mine.yaml").read_text(encoding="utf-8"))
    assert expected.items() <= made.items()
    assert run.err.count(": ") >= len(lines)  # a prompt each
    assert load("mine.yaml").resolve()
    monkeypatch.setattr("sys.stdin", io.StringIO("nothing-like-it\n"))
    run = cli("new", formulation, "--interactive")
    assert (run.status, "nothing-like-it" in run.err) == (2, True)


def test_who_does_not_ask_says_who_does(cli):
    run = cli("new", "sweeping", "--interactive")
    assert (run.status, "cost_efficiency, fleet" in run.err) == (2, True)
    assert cli("new", "fleet", "--interactive", "--from", "day-and-night").status == 2


@pytest.mark.parametrize(("answer", "deadline"), [("", {}), ("20", {"deadline_s": limit(20.0)})])
def test_a_limit_of_whole_requests_may_be_left_out(answer, deadline, cli, folder, monkeypatch):
    lines = [*OTHERS["reserved_capacity"][0][:10], answer, ""]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{x}\n" for x in lines)))
    assert cli("new", "reserved_capacity", "mine.yaml", "--interactive").status == 0
    (service,) = yaml.safe_load((folder / "mine.yaml").read_text(encoding="utf-8"))["services"]
    assert service["slo"] == {"ttft_s": limit(1.0), "tbt_s": limit(0.1), "queue_s": 0.2} | deadline
    assert load("mine.yaml").resolve()
