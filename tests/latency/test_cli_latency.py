"""The verbs end to end, through a runner of the tests' own."""

import json

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from optmodels.cli import command_line
from optmodels.errors import InputError
from optmodels.io.read import read_model
from optmodels.latency.calibration import Calibration
from optmodels.latency.fit.document import read_latency_model

app = command_line(["calibrate", "attribute", "batch_limits", "tables"])


def run(*arguments):
    """(exit status, stdout): InputError is 2, as the command line's main makes it."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, InputError):
        return 2, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.fixture
def steps(tmp_path):
    rng = np.random.default_rng(0)
    b, c = rng.integers(1, 65, 200), rng.integers(16, 4096, 200)
    y = 1e3 * (0.010 + 1e-7 * b * c + 1e-4 * b) * np.exp(0.02 * rng.standard_normal(200))
    path = tmp_path / "steps.csv"
    path.write_text("n,ctx,ms\n" + "".join(f"{i},{j},{k}\n" for i, j, k in zip(b, c, y, strict=True)))
    return path


MAP = (
    "--column",
    "decode_requests=n",
    "--column",
    "decode_context_tokens=ctx",
    "--column",
    "latency_s=ms:ms",
)


def test_calibrate_attribute_and_batch_limits(steps, tmp_path):
    out = tmp_path / "model.yaml"
    code, text = run("calibrate", steps, *MAP, "--form", "two_segment", "--out", out)
    assert code == 0 and "held back" in text and "sum_c" in text
    model = read_latency_model(out)
    assert model.provenance["sha256"] and model.targets["latency_s"].cross_validated.mape < 0.05

    code, text = run("calibrate", steps, *MAP, "--form", "two_segment", "--out", out)
    assert code == 2 and "--force" in text
    code, text = run("calibrate", steps, *MAP, "--form", "two_segment", "--out", out, "--force", "--json")
    assert code == 0 and json.loads(text)["model"] == "two_segment"

    batch = tmp_path / "batch.json"
    batch.write_text(
        json.dumps(
            {
                "schema": 1,
                "requests": [
                    {"id": "a", "tenant": "x", "tokens": 1, "context_tokens": 2000},
                    {"id": "b", "tenant": "y", "tokens": 1, "context_tokens": 100},
                ],
                "admit": {"id": "c", "tokens": 1, "context_tokens": 9000},
            }
        )
    )
    code, text = run("attribute", batch, "--latencies", out, "--json")
    found = json.loads(text)
    assert code == 0
    assert sum(r["share_s"] for r in found["requests"]) == pytest.approx(found["latency_s"], rel=1e-12)
    assert found["requests"][0]["vtc_share_s"] == found["requests"][1]["vtc_share_s"]
    assert found["requests"][0]["share_s"] > found["requests"][1]["share_s"]
    assert found["admit"]["latency_s"] == pytest.approx(found["latency_s"] + found["admit"]["added_s"])

    code, text = run(
        "batch-limits",
        "--capacity-tokens",
        50000,
        "--input-mean",
        500,
        "--input-std",
        200,
        "--output-mean",
        100,
        "--latencies",
        out,
        "--limit-s",
        "0.015",
        "--json",
    )
    found = json.loads(text)
    assert code == 0 and found["batch"] == min(found["b_sla"], found["b_mem"]["normal"]) > 0


def test_scaled_writes_a_coefficients_file(tmp_path):
    rows = "".join(
        f"t4,high_end,decode,{p},{2 * p + 0.001}\n" + f"l4,high_end,prefill,{p},{3 * p}\n"
        for p in (0.01, 0.02, 0.05, 0.1)
    )
    (tmp_path / "pairs.csv").write_text("gpu,family,phase,predicted_s,latency_s\n" + rows)
    code, _ = run("calibrate", tmp_path / "pairs.csv", "--form", "scaled", "--out", tmp_path / "c.yaml")
    calibration = read_model(tmp_path / "c.yaml", Calibration)
    assert code == 0
    assert calibration.find("t4", "high_end", "decode").slope == pytest.approx(2)
    assert calibration.find("l4", "high_end", "prefill").slope == pytest.approx(3)
    assert yaml.safe_load((tmp_path / "c.yaml").read_text())["schema"] == 1


def test_the_engine_that_was_measured_is_kept(tmp_path, cli):
    """What the rows say of it, or the option: a plan for another engine has to know that it carries a model over."""
    rows = [f"{c},1024,256,1,{0.05 + c / 100},{0.01 + c / 5000}" for c in (1, 2, 4, 8, 16)]
    head = "concurrency,input_tokens,output_tokens,tp,ttft_s,tpot_s"
    (tmp_path / "sglang.csv").write_text("\n".join([head + ",engine", *(f"{r},sglang" for r in rows)]))
    (tmp_path / "bare.csv").write_text("\n".join([head, *rows]))
    ask = ("--form", "linear_batch", "--out")
    for file, options, engine in (
        ("sglang", (), "sglang"),
        ("bare", ("--engine", "trtllm"), "trtllm"),
        ("bare", (), None),
    ):
        done = cli("calibrate", tmp_path / f"{file}.csv", *ask, tmp_path / "model.yaml", "--force", *options)
        assert done.status == 0, done.err
        assert read_latency_model(tmp_path / "model.yaml").engine == engine
    assert cli("calibrate", tmp_path / "bare.csv", *ask, tmp_path / "m.yaml", "--engine", "tgi").status == 2


def test_linearise(tmp_path):
    path = tmp_path / "curve.csv"
    path.write_text("batch,latency_s\n" + "".join(f"{b},{0.02 + 1e-4 * b + 1e-6 * b * b}\n" for b in range(1, 129)))
    out = tmp_path / "t.csv"
    code, text = run("tables", path, "--x", "batch", "--y", "latency_s", "--max-error", "0.01", "--out", out, "--json")
    found = json.loads(text)
    assert code == 0 and found["encoding"] == "epigraph" and found["max_error"] <= 0.01 and found["rows"] < 10
    assert out.is_file()


def test_linearise_a_shipped_model():
    code, text = run(
        "tables", "h100-qwen3-32b-fp8-served", "--x", "concurrency=8:128", "--set", "input_tokens=1024",
        "--set", "output_tokens=256", "--y", "tpot_s", "--safety", "0.9", "--max-error", "0.02", "--json",
    )  # fmt: skip
    found = json.loads(text)
    assert code == 0 and found["max_error"] <= 0.02 and found["rows"] <= 6 and found["warnings"] == []
    assert found["tpot_s"] == sorted(found["tpot_s"])
    code, text = run(
        "tables", "h100-qwen3-32b-fp8-served", "--x", "concurrency=8:128", "--y", "tpot_s", "--max-error", "1"
    )
    assert code == 2 and "--set input_tokens" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("calibrate", "nowhere.csv"),
        ("calibrate", "STEPS"),
        ("calibrate", "STEPS", *MAP, "--form", "nonsense"),
        ("calibrate", "STEPS", *MAP, "--column", "x"),
        ("calibrate", "STEPS", *MAP, "--gpu", "h100"),
        ("calibrate", "STEPS", *MAP, "--gpu", "h100", "--model", "nonsense"),
        ("calibrate", "STEPS", *MAP, "--where", "no=1"),
        ("calibrate", "STEPS", *MAP, "--workload", "no"),
        ("attribute", "STEPS", "--latencies", "STEPS"),
        ("batch-limits", "--capacity-tokens", "5"),
        ("tables", "STEPS", "--x", "n", "--y", "no", "--max-error", "0.1"),
        ("tables", "STEPS", "--x", "n", "--y", "ms", "--max-error", "0.1"),
    ],
)
def test_mistakes_exit_with_2_and_say_what_was_expected(steps, arguments):
    code, text = run(*(str(steps) if a == "STEPS" else a for a in arguments))
    assert code == 2 and "expected" in text
