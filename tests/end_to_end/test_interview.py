"""An instance from answers to questions."""

import io
import shlex

import pytest
import yaml

from optmodels.cli import interview
from optmodels.errors import InputError

ANSWERS = ["qwen3-32b", "fp8", "1200", "300", "20", "1", "0.04", "15", "", "us-east-1", "h100=16, l40s=8", "1", ""]


def asked(lines, again=False):
    shown = []
    questions = interview.fleet_questions()
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


def test_only_fleet_asks(cli):
    run = cli("new", "cost_efficiency", "--interactive")
    assert run.status == 2 and "new fleet --interactive" in run.err
    assert cli("new", "fleet", "--interactive", "--from", "day-and-night").status == 2
