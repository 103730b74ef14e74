"""Trace files of every format, and every way they can be wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from optmodels.errors import InputError
from optmodels.traces.readers import read_trace

OURS = "arrival_s,prompt_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "traces"


def mooncake(*rows):
    return "".join(json.dumps(r) + "\n" for r in rows)


def line(timestamp=0, input_length=600, output_length=5, **more):
    return {"timestamp": timestamp, "input_length": input_length, "output_length": output_length} | more


@pytest.fixture
def put(folder):
    def put(data, name="trace.csv"):
        path = folder / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return put


def test_azure_timestamps_become_seconds_since_the_first(put):
    text = AZURE + "2023-11-16 23:59:59.9799600,4808,10\n2023-11-17 00:00:00.0319600,3180,8\n"
    trace = read_trace(put(text, "whatever.txt"))
    np.testing.assert_allclose(trace.arrival_s, [0.0, 0.052], atol=1e-9)
    assert trace.prompt_tokens.tolist() == [4808, 3180] and trace.output_tokens.tolist() == [10, 8]


def test_own_columns_with_labels_comments_and_gzip(put):
    text = "# mine\n\nmodel, output_tokens, prompt_tokens, arrival_s, slo_factor, region\n"
    text += "a, 5, 6, 0.5, 1.2, eu\n\nb, 7, 8, 0.5, 0.9, us\na, 1, 1, 2, 1, eu\n"
    for data in (text.encode(), gzip.compress(text.encode()), b"\xef\xbb\xbf" + text.encode()):
        trace = read_trace(put(data))
        assert trace.arrival_s.tolist() == [0.5, 0.5, 2.0] and trace.output_tokens.tolist() == [5, 7, 1]
        assert [trace.labels["model"].names[c] for c in trace.labels["model"].codes] == ["a", "b", "a"]
        assert trace.slo_factor.tolist() == [1.2, 0.9, 1.0] and set(trace.labels) == {"model", "region"}


def test_parquet_is_known_by_its_content(folder):
    frame = pd.DataFrame(
        {"arrival_s": [0.0, 1.0], "prompt_tokens": [3, 4], "output_tokens": [5, 6], "class": ["x", "y"]}
    )
    frame.to_parquet(folder / "trace.bin")
    trace = read_trace(folder / "trace.bin")
    assert len(trace) == 2 and trace.labels["class"].names == ("x", "y")


@pytest.mark.parametrize("packed", [False, True])
def test_mooncake_blocks(put, packed):
    text = mooncake(line(0, 600, 5, hash_ids=[1, 2]), line(1500, 512, 1, hash_ids=[1]))
    trace = read_trace(put(gzip.compress(text.encode()) if packed else text))
    assert trace.arrival_s.tolist() == [0.0, 1.5]
    assert trace.prefixes.block_tokens == 512
    assert [trace.prefixes.of(i).tolist() for i in (0, 1)] == [[1, 2], [1]]
    assert trace.take(np.array([1])).prefixes.of(0).tolist() == [1]


@pytest.mark.parametrize(
    "data, at, words",
    [
        ("", None, "empty file"),
        ("\n\n", None, "no rows"),
        (OURS, None, "at least one request"),
        ("a,b\n1,2\n", None, "Azure"),
        ("arrival_s,prompt_tokens\n0,1\n", None, "output_tokens: missing"),
        (OURS + "0,1,1\n1,-3,1\n", 3, r"got -3; expected a whole number from 1"),
        (OURS + "0,1,0\n", 2, "whole number"),
        (OURS + "0,1.5,1\n", 2, "whole number"),
        (OURS + "0,x,1\n", 2, "got 'x'"),
        (OURS + "0,,1\n", 2, "prompt_tokens: missing"),
        (OURS + "0,1,1e30\n", 2, "whole number"),
        (OURS + "nan,1,1\n", 2, "arrival_s: missing"),
        (OURS + "inf,1,1\n", 2, "seconds ≥ 0"),
        (OURS + "-1,1,1\n", 2, "seconds ≥ 0"),
        (OURS + "1,1,1\n\n0.5,1,1\n", 4, "order of arrival"),
        (OURS + "0,1,1\n1,1,1,9\n", 3, "4 cells"),
        ("# c\n" + OURS + "0,1,1\n1,1,1,9\n", 4, "4 cells"),
        (AZURE + "yesterday,1,1\n", 2, "date and time"),
        (AZURE + "2023-11-16 18:00:01,1,1\n2023-11-16 18:00:00,1,1\n", 3, "order of arrival"),
        ("arrival_s,prompt_tokens,output_tokens,slo_factor\n0,1,1,0\n", 2, "finite number > 0"),
        ("arrival_s,prompt_tokens,output_tokens,model\n0,1,1,\n", 2, "a name in every row"),
        (mooncake(line()) + "{oops\n", 2, "one JSON object"),
        (mooncake({"timestamp": 0, "input_length": 1}), 1, "output_length: missing"),
        (mooncake(line(), line(output_length=0)), 2, "whole number"),
        (mooncake(line(), line(input_length=True)), 2, "whole number"),
        (mooncake(line(), line(timestamp="soon")), 2, "milliseconds"),
        (mooncake(line(5), line(4)), 2, "order of arrival"),
        (mooncake(line(hash_ids=[1, 2, 3])), 1, "at most one block"),
        (mooncake(line(hash_ids=["a"])), None, "whole numbers"),
        (mooncake(line(hash_ids=7)), 1, "hash_ids as a list"),
        (gzip.compress((OURS + "0,1,1\n" * 1000).encode(), mtime=0)[:60], None, "complete gzip"),
        (b"\x1f\x8bnonsense", None, "complete gzip"),
        (b"PAR1 but no more", None, "complete Parquet"),
        (b"\xff\xfe\x00a", None, "Azure"),
    ],
)
def test_mistakes_are_named(put, data, at, words):
    path = put(data)
    with pytest.raises(InputError, match=words) as error:
        read_trace(path)
    first = error.value.mistakes[0]
    assert first.file == str(path) and first.line == at


def test_many_bad_rows_are_counted(put):
    with pytest.raises(InputError, match="and 95 more rows") as error:
        read_trace(put(OURS + "0,0,1\n" * 100))
    assert len(error.value.mistakes) == 5


def test_no_such_file_and_folders(folder):
    with pytest.raises(InputError, match="no such file"):
        read_trace(folder / "none.csv")
    with pytest.raises(InputError, match="a folder"):
        read_trace(folder)


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no public traces at {TRACES}")
@pytest.mark.parametrize(
    "name, requests, seconds, prompts",
    [
        ("AzureLLMInferenceTrace_code.csv", 8819, 3435.95, 18_059_974),
        ("AzureLLMInferenceTrace_conv.csv", 19_366, 3501.72, 22_361_870),
        ("mooncake_synthetic.jsonl.gz", 3993, 1022.03, 61_194_628),
    ],
)
def test_public_traces(name, requests, seconds, prompts):
    trace = read_trace(TRACES / name)
    assert len(trace) == requests and trace.prompt_tokens.sum() == prompts
    assert trace.duration_s == pytest.approx(seconds, abs=0.01)
    if trace.prefixes is not None:
        again = 1 - len(np.unique(trace.prefixes.ids)) / len(trace.prefixes.ids)
        assert again == pytest.approx(0.64, abs=0.01)  # SOURCES: 64 % of the blocks were seen before
