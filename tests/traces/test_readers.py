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
        ("a,b\n1,2\n", None, "the file has the columns a, b .name them: --column arrival_s=COLUMN:UNIT"),
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
        (OURS + "0,1,1\n1,1,1,9\n", 3, "4 cells"),
        ("# c\n" + OURS + "0,1,1\n1,1,1,9\n", 4, "4 cells"),
        (AZURE + "yesterday,1,1\n", 2, "date and time"),
        ("arrival_s,prompt_tokens,output_tokens,slo_factor\n0,1,1,0\n", 2, "finite number > 0"),
        ("arrival_s,prompt_tokens,output_tokens,model\n0,1,1,\n", 2, "a name in every row"),
        (mooncake(line()) + "{oops\n", 2, "one JSON object"),
        (mooncake({"timestamp": 0, "input_length": 1}), None, "output_tokens: missing; .* timestamp, input_length"),
        (mooncake(line(), line(output_length=0)), 2, "whole number"),
        (mooncake(line(), line(input_length=True)), 2, "whole number"),
        (mooncake(line(), line(timestamp="soon")), 2, "milliseconds"),
        (mooncake(line(hash_ids=[1, 2, 3])), 1, "at most one block"),
        (mooncake(line(hash_ids=["a"])), 1, "whole numbers"),
        (mooncake(line(hash_ids=[2**70])), 1, "whole numbers below"),
        (mooncake(line(hash_ids=7)), 1, "hash_ids as a list"),
        (gzip.compress((OURS + "0,1,1\n" * 1000).encode(), mtime=0)[:60], None, "complete gzip"),
        (b"\x1f\x8bnonsense", None, "complete gzip"),
        (b"PAR1 but no more", None, "complete Parquet"),
        (b"\xff\xfe\x00a", None, "UTF-16"),
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


# ------------------------------------------------------------------------------------- traces and logs as they are

BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
SERVEGEN = "request_id,timestamp,input_tokens,output_tokens\n0,0.25,700,90\n1,0.75,20,5\n"
BAILIAN = line(61.114, 20, 5, chat_id=7, parent_chat_id=-1, type="text", turn=1, hash_ids=[3, 4])
SGLANG = {"request_parameters": "{}", "id": "a", "prompt_tokens": 30, "completion_tokens": 4, "e2e_latency": 0.5}
BENCH = {
    "date": "20260301-120000", "completed": 2, "mean_ttft_ms": 9.0, "input_lens": [10, 20, 30],
    "output_lens": [3, 0, 5], "start_times": [100.5, 100.0, 102.0], "errors": ["", "timed out", ""], "ttfts": [0.1] * 3,
}  # fmt: skip


def test_azure_2024_has_time_zones(put):
    trace = read_trace(put(AZURE + "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10T02:00:01.5+02:00,2399,6\n"))
    np.testing.assert_allclose(trace.arrival_s, [0.0, 1.49007], atol=1e-9)


def test_burst_gpt_with_failures_left_out_and_counted(put):
    rows = "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n118,GPT-4,417,276,693,API log\n"
    trace = read_trace(put(BURST + rows))
    assert trace.arrival_s.tolist() == [0, 113] and trace.output_tokens.tolist() == [18, 276]
    assert trace.labels["model"].names == ("ChatGPT", "GPT-4") and trace.labels["class"].codes.tolist() == [0, 1]
    assert trace.notes == ("1 of 3 requests left out (failed: no response tokens)",)
    with pytest.raises(InputError, match="Request tokens: got -1") as error:
        read_trace(put(BURST + rows + "119,GPT-4,-1,2,1,API log\n"))
    assert error.value.mistakes[0].line == 5
    with pytest.raises(InputError, match="a request with output tokens"):
        read_trace(put(BURST + "5,ChatGPT,472,0,472,API log\n"))


def test_serve_gen_and_bailian(put):
    trace = read_trace(put(SERVEGEN))
    assert trace.arrival_s.tolist() == [0.25, 0.75] and trace.prompt_tokens.tolist() == [700, 20]
    trace = read_trace(put(mooncake(BAILIAN)))
    assert trace.arrival_s.tolist() == [61.114] and trace.prefixes.block_tokens == 16
    assert trace.prefixes.of(0).tolist() == [3, 4] and trace.labels["class"].names == ("text",)
    with pytest.raises(InputError, match="every 16 prompt tokens"):
        read_trace(put(mooncake(BAILIAN | {"hash_ids": [1, 2, 3]})))


def test_request_logs_of_sglang_are_written_when_requests_end(put):
    rows = [SGLANG | {"request_received_ts": 1.7e9 + t, "prompt_tokens": p} for t, p in ((3, 7), (0.5, 8), (4, 9))]
    trace = read_trace(put(mooncake(*rows)))
    assert trace.arrival_s.tolist() == [0, 2.5, 3.5] and trace.prompt_tokens.tolist() == [8, 7, 9]
    assert trace.notes == ("1 of 3 rows came before the row above them: sorted by arrival",)


@pytest.mark.parametrize("indent", [None, 2])
def test_vllm_bench_serve_detailed(put, indent):
    trace = read_trace(put(json.dumps(BENCH, indent=indent), "run.json"))
    assert trace.arrival_s.tolist() == [0, 1.5] and trace.prompt_tokens.tolist() == [10, 30]
    assert trace.notes == ("1 of 3 requests left out (failed: no output, or an error)",)
    for change, words in (
        ({"start_times": None}, "request_rate: missing; expected requests/s"),
        ({"output_lens": None}, "output_lens: missing"),
        ({"input_lens": [1]}, "lists of one length"),
        ({"input_lens": [1, 1, 0]}, r"input_lens\[2\]: got 0"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            read_trace(put(json.dumps(BENCH | change, indent=indent), "run.json"))


RUN = {  # sglang.bench_serving --output-details; vLLM's had no more, once
    "backend": "sglang", "dataset_name": "random", "request_rate": 4.0, "max_concurrency": None, "duration": 3.1,
    "total_input_tokens": 60, "input_lens": [10, 20, 30, 40], "output_lens": [3, 2, 1, 2],
    "ttfts": [0.5, 0.25, 1.0, 0.25], "itls": [[0.25, 0.25], [0.5], [], [0.25]], "generated_texts": [""] * 4,
    "errors": [""] * 4,
}  # fmt: skip


def test_benchmarks_without_start_times_send_as_their_tools_do(put):
    # two at a time: 0 to 1.0 and 0 to 0.75; the third begins at 0.75 and ends at 1.75, the fourth begins at 1.0
    trace = read_trace(put(json.dumps(RUN | {"request_rate": "inf", "max_concurrency": 2}) + "\n", "run.jsonl"))
    assert trace.arrival_s.tolist() == [0, 0, 0.75, 1.0] and trace.output_tokens.tolist() == [3, 2, 1, 2]
    assert trace.notes == ("no start times: sent as the benchmark does, all at once, at most 2 at a time",)
    assert read_trace(put(json.dumps(RUN | {"request_rate": "inf"}))).arrival_s.tolist() == [0, 0, 0, 0]
    many = RUN | {"input_lens": [5] * 4000, "output_lens": [7] * 4000, "errors": [""] * 4000}
    for burstiness in (1.0, 4.0):
        trace = read_trace(put(json.dumps(many | {"burstiness": burstiness})))
        gaps = np.diff(trace.arrival_s)
        assert gaps.mean() == pytest.approx(0.25, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)
        assert trace.notes == ("no start times: sent as the benchmark does, gaps drawn at its 4 requests/s",)


@pytest.mark.parametrize(("text", "words"), [
    (json.dumps(RUN) + "\n\n" + json.dumps(RUN), r":3: .*expected one run alone: a file for each"),
    (json.dumps({"backend": "vllm", "total_input_tokens": 9}), "input_lens: missing; .*--output-details"),
    (json.dumps(RUN | {"request_rate": None}), "request_rate: missing; expected requests/s"),
    (json.dumps(RUN | {"burstiness": 0}), "burstiness: got 0"),
    (json.dumps(RUN | {"max_concurrency": 2, "itls": None}), "ttfts and itls of each request"),
    (json.dumps(RUN | {"max_concurrency": 2, "itls": [1, [], [], []]}), "itls a list of each request"),
    (json.dumps(RUN | {"input_lens": [1]}), "lists of one length"),
])  # fmt: skip
def test_benchmarks_without_what_a_trace_needs_say_so(put, text, words):
    with pytest.raises(InputError, match=words):
        read_trace(put(text, "run.jsonl"))


META = {"id": "a", "finish_reason": {"type": "length", "length": 4}, "completion_tokens": 4, "cached_tokens": 0}
TEXT_LOG = """/venv/lib/python3.12/site-packages/x.py:1: FutureWarning: soon
[2025-11-24 10:00:00] server_args=ServerArgs(model_path='m')
INFO:     127.0.0.1:52999 - "GET /health HTTP/1.1" 200 OK
[2025-11-24 10:00:07] Finish: obj=GenerateReqInput(rid='b', text="'prompt_tokens': 9"), out={'text': 'x', %s}
[2025-11-24 10:00:07 TP0] Decode batch. #running-req: 1
[2025-11-24 10:00:05] Receive: obj=GenerateReqInput(rid='c', stream=False)
[2025-11-24 10:00:09] Finish: obj=GenerateReqInput(rid='c', stream=False), out={%s}
[2025-11-24 10:00:09] Finish: obj=GenerateReqInput(rid='d'), out={%s}
"""


def meta(**more):
    return f"'meta_info': {META | more}"


def test_sglang_request_logs(put):
    # asked at 7 − 1.5 and 9 − 4.5 s; the third is aborted
    first, second = {"prompt_tokens": 30, "e2e_latency": 1.5}, {"prompt_tokens": 20, "e2e_latency": 4.5}
    aborted = {"prompt_tokens": 2, "e2e_latency": 0.5, "completion_tokens": 0}
    trace = read_trace(put(TEXT_LOG % (meta(**first), meta(**second), meta(**aborted)), "server.log"))
    assert trace.arrival_s.tolist() == [0, 1] and trace.prompt_tokens.tolist() == [20, 30]
    assert trace.notes[:2] == (
        "arrivals are when the line was written less the time it took: as exact as its clock",
        "1 of 3 requests left out (failed: no output, or an error)",
    )
    rows = [{"timestamp": "2025-11-24T10:00:00.100000", "event": "request.received", "rid": "a", "obj": {}}]
    rows += [
        {"timestamp": f"2025-11-24T10:00:0{s}", "event": "request.finished", "rid": s, "out": {"meta_info": known}}
        for s, known in (("7.500000", META | first), ("9.250000", META | second), ("9.500000", {}))
    ]
    trace = read_trace(put(mooncake(*rows), "server.log"))
    np.testing.assert_allclose(trace.arrival_s, [0, 1.25], atol=1e-6)
    assert trace.output_tokens.tolist() == [4, 4] and "1 of 3 requests left out (no tokens" in trace.notes[1]
    exact = [
        meta(**x, response_sent_to_client_ts=1.7e9 + x["e2e_latency"] + k)
        for k, x in enumerate((first, second, aborted))
    ]
    trace = read_trace(put(TEXT_LOG % tuple(exact), "server.log"))
    np.testing.assert_allclose(trace.arrival_s, [0, 1], atol=1e-6)


VLLM_LOG = """(APIServer pid=7) INFO 12-31 23:59:58 [api_server.py:1805] vLLM API server version 0.10.0
INFO 12-31 23:59:59 [logger.py:41] Received request chatcmpl-a: prompt: 'prompt_token_ids: [1]', params: SamplingParams(n=1), prompt_token_ids: [1, 2, 3], prompt_embeds shape: None, lora_request: None.
DEBUG 01-01 00:00:02 [logger.py:46] Request cmpl-b-0 details: prompt: 'x', prompt_token_ids: [4, 5], prompt_embeds shape: None.
INFO 01-01 00:00:02 [logger.py:57] Received request cmpl-b-0: params: SamplingParams(n=1), lora_request: None.
INFO 01-01 00:00:02 [logger.py:41] Received request chatcmpl-c: prompt: 'x', params: SamplingParams(n=1), prompt_token_ids: [1], lora_request: None.
INFO 01-01 00:00:03 [logger.py:71] Generated response chatcmpl-a (streaming delta): output: 'x', output_token_ids: [9, 9], finish_reason: None
INFO 01-01 00:00:03 [logger.py:71] Generated response cmpl-b: output: 'output_token_ids: [1]', output_token_ids: [7], finish_reason: stop
INFO 01-01 00:00:04 [logger.py:71] Generated response chatcmpl-a (streaming delta): output: 'x', output_token_ids: [9], finish_reason: stop
INFO 01-01 00:00:04 [logger.py:71] Generated response chatcmpl-a (streaming complete): output: 'x', output_token_ids: None, finish_reason: streaming_complete
"""  # noqa: E501


def test_vllm_request_logs(put):
    trace = read_trace(put(VLLM_LOG, "server.log"))
    assert trace.arrival_s.tolist() == [0, 3] and trace.prompt_tokens.tolist() == [3, 2]
    assert trace.output_tokens.tolist() == [3, 1]
    assert trace.notes == (
        "arrivals to the second, as the log has them", "1 of 3 requests left out (no answer in the log)",
    )  # fmt: skip
    without = VLLM_LOG.replace("token_ids: [", "ids: [")
    with pytest.raises(InputError, match=r"3 requests without token ids.*--enable-log-outputs"):
        read_trace(put(without, "server.log"))
    with pytest.raises(InputError, match="got 'no request'"):
        read_trace(put(VLLM_LOG.splitlines()[0], "server.log"))


def test_rows_out_of_order_are_sorted_with_their_blocks(put):
    trace = read_trace(put(mooncake(line(5, hash_ids=[1, 2]), line(4, 10, hash_ids=[3]), line(9, 512, hash_ids=[4]))))
    assert trace.arrival_s.tolist() == [0.004, 0.005, 0.009] and "sorted" in trace.notes[0]
    assert [trace.prefixes.of(i).tolist() for i in range(3)] == [[3], [1, 2], [4]]


def test_columns_are_mapped_as_in_calibrate(put):
    text = "created,prompt_len,gen_len,guess,svc\n" + "".join(
        f"2026-03-01T10:00:0{s}Z,{p},{g},{q},{m}\n" for s, p, g, q, m in ((1, 5, 7, 8, "a"), (0, 6, 8, 4, "b"))
    )
    names = {"arrival_s": "created", "input_tokens": "prompt_len", "output_tokens": "gen_len",
             "predicted_output_tokens": "guess", "model": "svc"}  # fmt: skip
    trace = read_trace(put(text), names)
    assert trace.arrival_s.tolist() == [0, 1] and trace.prompt_tokens.tolist() == [6, 5]
    assert trace.predicted_output_tokens.tolist() == trace.expected_output_tokens.tolist() == [4, 8]
    assert trace.labels["model"].names[trace.labels["model"].codes[0]] == "b"
    trace = read_trace(
        put("ms,n\n500,5\n1750,6\n"), {"arrival_s": "ms:ms", "prompt_tokens": "n", "output_tokens": "64"}
    )
    assert trace.arrival_s.tolist() == [0, 1.25] and trace.output_tokens.tolist() == [64, 64]
    assert trace.expected_output_tokens is trace.output_tokens
    rows = mooncake({"at": 3.5, "in": 40, "out": 2, "kv": [1, 2, 3], "who": "x"})
    names = {"arrival_s": "at", "input_tokens": "in", "output_tokens": "out", "hash_ids": "kv", "block_tokens": "16",
             "session": "who"}  # fmt: skip
    trace = read_trace(put(rows), names)
    assert trace.prefixes.block_tokens == 16 and trace.prefixes.of(0).tolist() == [1, 2, 3]
    assert trace.labels["session"].names == ("x",)
    # one column of a known format replaced
    trace = read_trace(put(AZURE.replace("\n", ",Svc\n") + "2024-05-10 00:00:00,3,4,chat\n"), {"class": "Svc"})
    assert trace.labels["class"].names == ("chat",)


ALL = {"arrival_s": "t", "prompt_tokens": "p", "output_tokens": "o"}


@pytest.mark.parametrize(("columns", "words"), [
    ({"arrived": "created"}, "columns.arrived: got 'arrived'; expected one of arrival_s, prompt_tokens"),
    (ALL | {"arrival_s": "made"}, "columns.arrival_s: got 'made'; expected a column of the file: t, p, o"),
    (ALL | {"arrival_s": "t:parsec"}, "a unit of time"),
    ({"arrival_s": "t", "prompt_tokens": "p"}, "output_tokens: missing"),
    (ALL | {"model": "none"}, "columns.model: got 'none'"),
])  # fmt: skip
def test_wrong_mappings_are_named(put, columns, words):
    with pytest.raises(InputError, match=words):
        read_trace(put("t,p,o\n0,1,2\n"), columns)


def test_bad_rows_of_mapped_columns_have_their_line(put):
    names = {"arrival_s": "t", "prompt_tokens": "p", "output_tokens": "o"}
    with pytest.raises(InputError, match=r":3: t: got 'later'; expected a date and time"):
        read_trace(put("t,p,o\n2026-03-01 10:00,1,2\nlater,1,2\n"), names)
    with pytest.raises(InputError, match=r":3: t: got 'later'; expected seconds"):
        read_trace(put("t,p,o\n1,1,2\nlater,1,2\n"), names)
    with pytest.raises(InputError, match=r":2: p: got \[1\]"):
        read_trace(put(mooncake({"t": 0, "p": 1, "o": 1}, {"t": 0, "p": [1], "o": 1})), names)


def test_a_number_of_more_digits_than_python_reads_is_a_mistake(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text('{"start_times": [' + "1" * 5000 + '], "input_lens": [10], "output_lens": [3]}')
    with pytest.raises(InputError, match=r"bench\.json:1: .*expected one whole JSON object"):
        read_trace(path)
