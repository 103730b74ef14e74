"""Traces longer than any block read at once: nothing is lost on the way from a file to a plan and its replay."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest

import optmodels
from optmodels.traces.readers import read_trace

N = 150_000


@pytest.fixture(scope="module")
def written():
    """No two prompts among 65,537 in a row are equal, so that a row that is lost or doubled shifts all others."""
    row = np.arange(N)
    return row * 0.001, row % 65_537 + 1, row % 797 + 1


def in_format(kind, path, arrival_s, prompt, output):
    if kind.startswith("azure"):
        times = np.datetime64("2023-11-16T18:00:00.000000") + np.round(arrival_s * 1e6).astype("timedelta64[us]")
        text = pd.DataFrame(
            {"TIMESTAMP": np.datetime_as_string(times), "ContextTokens": prompt, "GeneratedTokens": output}
        ).to_csv(index=False)
    else:
        own = pd.DataFrame({"arrival_s": arrival_s, "prompt_tokens": prompt, "output_tokens": output})
        if kind == "parquet":
            return own.to_parquet(path, row_group_size=10_000)
        text = own.to_csv(index=False)
    if kind == "azure, gzip in parts":  # as appended logs are
        half = text.index("\n", len(text) // 2) + 1
        return path.write_bytes(gzip.compress(text[:half].encode(), 1) + gzip.compress(text[half:].encode(), 1))
    if kind == "own, blank and comment lines":
        lines = text.splitlines()
        lines[1:] = [
            x for i, line in enumerate(lines[1:]) for x in ([line, "", "# more"] if i % 50_000 == 7 else [line])
        ]
        text = "\r\n".join(lines)
    return path.write_text(text)


@pytest.mark.parametrize("kind", ["azure", "azure, gzip in parts", "own", "own, blank and comment lines", "parquet"])
def test_every_row_is_read_once_and_in_order(folder, written, kind):
    in_format(kind, folder / "trace", *written)
    trace = read_trace(folder / "trace")
    np.testing.assert_allclose(trace.arrival_s, written[0], atol=1e-9)
    np.testing.assert_array_equal(trace.prompt_tokens, written[1])
    np.testing.assert_array_equal(trace.output_tokens, written[2])


def test_every_request_is_planned_and_replayed(folder, written):
    in_format("parquet", folder / "trace.parquet", *written)
    (folder / "case.yaml").write_text("""
formulation: orchestration
schema: 1
cluster: {servers: [{server: s, count: 4, gpu: v100-16g-pcie, gpus: 8}]}
models: [{model: llama-3.2-3b}]
candidates: {tp: [1, 2], batch: [16, 64]}
latency:
  decay:
  - {model: llama-3.2-3b, tp: 1, base_tokens_per_s: 5000, delta: 0.1}
  - {model: llama-3.2-3b, tp: 2, base_tokens_per_s: 8000, delta: 0.1}
requests: {model: llama-3.2-3b, trace: {file: trace.parquet}}
slo: {factor: 3}
""")
    result = optmodels.solve(folder / "case.yaml", gap=1e-3, out=folder)  # a trace in a file, and a report of it
    assert result.plan["prediction"]["requests"] == N
    assert sum(c["requests"] for c in result.plan["classes"]) == N
    seen = optmodels.replay(result, problem=folder / "case.yaml", out=folder, parquet=True)
    assert seen["report"]["requests"] == N
    for policy, row in seen["report"]["policies"].items():
        assert row["attainment"] + row["refused"] + row["late"] == pytest.approx(1.0), policy
    (kept, *_) = folder.rglob("*shortest_queue*.parquet")
    table = pd.read_parquet(kept)
    np.testing.assert_array_equal(table["input_tokens"], written[1])
    assert (table["instance"] != "").mean() == pytest.approx(
        1 - seen["report"]["policies"]["shortest_queue"]["refused"]
    )
