"""Verbs as functions in a pipeline: results, data frames and texts are taken; what is wrong is an `InputError`."""

import pandas as pd
import pytest

import optmodels

ASKED = {"input": 1000, "output": 300, "rate": 3, "gpu": "h100", "ttft_p95": 1, "tpot": 0.05}


@pytest.fixture(scope="module")
def result():
    return optmodels.plan("qwen3-32b", **ASKED)


def test_every_verb_of_a_plan_takes_the_result(result):
    assert optmodels.max_rate(result)["requests_per_s"] == pytest.approx(3)
    assert optmodels.explain(result, max_solves=3).status == "feasible"
    assert optmodels.check(result).ok


def test_requests_may_be_a_data_frame(result):
    requests = {"timestamp": [1772442000 + i for i in range(9)], "input_tokens": 1000, "output_tokens": 30}
    frame = pd.DataFrame(requests)
    assert optmodels.replay(result, frame)["requests"] == 9
    assert optmodels.simulate("qwen3-32b", "h100", frame)["trace"] == "frame.parquet"
    assert optmodels.plan("qwen3-32b", trace=frame, gpu="h100", certify_replay=False).status == "optimal"


def test_quotas_are_texts_as_on_the_command_line():
    for quota in ("h100=8", ["8xH100"], {"h100": 8}, [("h100", 8)]):
        found = optmodels.plan("qwen3-32b", input=1000, output=300, rate=3, quota=quota)
        assert found.problem["quota"][0]["at_most"] == 8
    with pytest.raises(optmodels.InputError, match="a GPU type and how many"):
        optmodels.plan("qwen3-32b", input=1000, output=300, rate=3, quota="8")


def test_what_is_wrong_is_named():
    with pytest.raises(optmodels.InputError, match="closed"):
        optmodels.plan("gpt-4", **ASKED)
    with pytest.raises(optmodels.InputError, match="requests, not tokens"):
        optmodels.plan("qwen3-32b", **ASKED | {"rate": "1M tokens/hour"})
    with pytest.raises(TypeError, match="'input_tokens'"):
        optmodels.plan("qwen3-32b", input_tokens=1000, **ASKED)


def test_the_folder_of_out_is_its_plan_for_every_verb(result, tmp_path, monkeypatch, capsys):
    from optmodels.cli import run

    optmodels.plan("qwen3-32b", **ASKED, out=tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    for verb in ("check", "stress", "max-rate"):
        assert run([verb, "results"]) == 0, capsys.readouterr().err
