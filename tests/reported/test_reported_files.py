"""Traces, benchmark results and price lists as users have them: what comes out of each, and of files of their kinds."""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from optmodels import importers
from optmodels.catalog.prices import gpu_of, machines_of, read_prices
from optmodels.engine.lengths import Cut
from optmodels.errors import InputError
from optmodels.loading import load
from optmodels.traces.buckets import bucket_trace
from optmodels.traces.columns import epoch_unit, recognised
from optmodels.traces.readers import read_trace

HERE = Path(__file__).parent
TRACES, RESULTS, PRICES = HERE / "traces", HERE / "importers", HERE / "prices"
LITELLM = ([0.0, 1.23, 2.88], [811, 2040, 811], [120, 300, 120])
WANTED = {  # arrivals, prompts, answers
    "aibrix.jsonl": ([0, 0, 0.655, 0.942, 2.1, 2.1], [909, 557, 713, 582, 120, 64], [22, 21, 19, 21, 300, 12]),
    "vidur.csv": ([0, 0.052, 0.098189, 0.35, 0.9, 1.4], [4808, 3180, 110, 7433, 34, 2011], [10, 8, 27, 14, 12, 41]),
    "splitwise-sim.csv": ([0, 2, 3], [4096, 2048, 2048], [32, 8, 16]),
    "blis.csv": ([0, 0.25, 2.5], [512, 2048, 300], [128, 256, 90]),
    "multi-round-qa.csv": ([0, 0.5, 1, 5], [1045, 1046, 1044, 2210], [100, 100, 100, 98]),
    "litellm-ok.jsonl": LITELLM, "litellm.csv": LITELLM, "litellm.json": LITELLM, "litellm.jsonl": LITELLM,
    "otel.jsonl": ([0, 1.23], [811, 2040], [120, 300]), "otel-flat.csv": ([0, 1.23], [811, 2040], [120, 300]),
    "llmservingsim.jsonl": (
        [0, 0.265091, 0.396147, 0.488067, 0.5049], [2358, 1034, 1320, 685, 298], [531, 769, 769, 769, 526],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WANTED)
def test_traces_are_read_without_a_mapping(name):
    arrivals, prompts, outputs = WANTED[name]
    found = read_trace(TRACES / name)
    np.testing.assert_allclose(found.arrival_s, arrivals, atol=1e-6)
    assert found.prompt_tokens.tolist() == prompts and found.output_tokens.tolist() == outputs
    cut = bucket_trace(TRACES / name, Cut())  # plan --trace reads it in the same way
    assert sorted(cut.requests.input_tokens) == sorted(prompts)
    span = arrivals[-1] - arrivals[0]
    assert sum(c.requests_per_s for c in cut.cells) == pytest.approx(len(prompts) / span, rel=1e-5)


def test_failed_requests_are_left_out_and_counted_unless_chosen():
    for name in ("blis.csv", "litellm.csv", "litellm.json", "litellm.jsonl"):
        found = read_trace(TRACES / name)
        assert any("1 of 4 requests left out (failed, by column status)" in n for n in found.notes), name
    only = read_trace(TRACES / "blis.csv", where={"status": "ok"})
    assert len(only) == 3 and "1 of 4 rows left out by --where" in only.notes
    every = read_trace(TRACES / "blis.csv", where={"status": ["ok", "error"]})
    assert len(every) == 4 and not every.notes
    with pytest.raises(InputError, match=r"litellm\.csv:3: prompt_tokens: got 0"):
        read_trace(TRACES / "litellm.csv", where={"status": ["success", "failure"]})
    skipped = read_trace(TRACES / "litellm.csv", where={"status": ["success", "failure"]}, skip_bad=True)
    assert len(skipped) == 3 and "1 of 4 rows skipped: line 3: prompt_tokens 0" in skipped.notes[0]
    with pytest.raises(InputError, match="a column of the file: request_id, client_id"):
        read_trace(TRACES / "blis.csv", where={"nothing": "x"})


def test_sessions_wait_for_answers():
    found = read_trace(TRACES / "aiperf-multiturn.jsonl")
    assert found.follows.parent.tolist() == [-1, -1, 1, 0] and found.follows.think_s.tolist() == [0, 0, 1.0, 2.5]
    assert found.prompt_tokens.tolist() == [1200, 700, 700 + 90 + 300, 1200 + 60 + 400]  # all of the session so far
    assert [len(found.prefixes.of(i)) for i in range(4)] == [3, 2, 3, 4]
    assert any("open loop" in n for n in found.notes)


def test_simulated_sessions_are_closed_loops():
    from optmodels.simulation.sessions import in_sessions

    trace = read_trace(TRACES / "aiperf-multiturn.jsonl")

    def serve(requests):  # one at a time, each as long as its tokens: known by hand
        free, done = 0.0, []
        for at, tokens in zip(requests.arrival_s, requests.output_tokens, strict=True):
            free = max(free, at) + tokens / 100.0
            done.append(free - at)
        return None, {"e2e_s": np.array(done)}

    _, columns, served, note = in_sessions(trace, serve)
    # a: 0 to 0.6; b: 0.6 to 1.5; b again at 2.5 to 2.9; a again at 0.6 + 2.5 = 3.1
    np.testing.assert_allclose(served.arrival_s, [0.0, 0.4, 2.5, 3.1])
    np.testing.assert_allclose(columns["e2e_s"], [0.6, 1.1, 0.4, 0.6])
    assert "closed loops" in note


def test_a_log_with_measured_times_is_kept_beside_what_is_simulated():
    found = read_trace(TRACES / "llmservingsim.jsonl")
    np.testing.assert_allclose(found.measured["ttft_s"][0], 0.689435, atol=1e-6)
    np.testing.assert_allclose(found.measured["e2e_s"][0], 17.570318, atol=1e-6)
    np.testing.assert_allclose(found.measured["tpot_s"][0], (17.570318 - 0.689435) / 530, atol=1e-8)


ALIASES = {
    "arrival_s": ("arrival_time_s", "Timestamp (s)", "startTimeSeconds", "created_at_s"),
    "prompt_tokens": ("prompt_tokens", "promptTokens", "Input Length", "num_prefill_tokens", "context_tokens"),
    "output_tokens": ("completion_tokens", "outputTokens", "Output Length", "num_decode_tokens", "generated_tokens"),
}


@pytest.mark.parametrize("form", ["csv", "semicolons", "lines", "array", "nested", "listed", "wrapped"])
def test_names_are_alike_in_every_form(form, tmp_path):
    """The same requests under many names, as CSV and as JSON of every shape, are the same trace."""
    rng = np.random.default_rng(7)
    at = np.cumsum(rng.exponential(1.0, 20)) + 0.25
    prompt, output = rng.integers(1, 3000, 20), rng.integers(1, 500, 20)
    for names in itertools.islice(itertools.product(*ALIASES.values()), 0, None, 11):
        rows = [dict(zip(names, (float(a), int(p), int(o)), strict=True))
                for a, p, o in zip(at, prompt, output, strict=True)]  # fmt: skip
        if form in ("csv", "semicolons"):
            out = io.StringIO()
            table = csv.DictWriter(out, names, delimiter="," if form == "csv" else ";")
            table.writeheader()
            table.writerows(rows)
            text = out.getvalue()
        elif form == "lines":
            text = "".join(json.dumps(r) + "\n\n" for r in rows)
        elif form == "array":
            text = json.dumps(rows, indent=2)
        elif form == "nested":
            text = "".join(json.dumps({"event": {"usage": r, "id": i}}) + "\n" for i, r in enumerate(rows))
        elif form == "listed":
            text = "".join(json.dumps({names[0]: r[names[0]], "requests": [
                {k: v for k, v in r.items() if k != names[0]}]}) + "\n" for r in rows)  # fmt: skip
        else:
            text = json.dumps({"data": rows, "total": 20})
        path = tmp_path / "trace.any"
        path.write_text(text)
        found = read_trace(path)
        np.testing.assert_allclose(found.arrival_s - found.arrival_s[0], at - at[0], atol=1e-6, err_msg=str(names))
        assert found.prompt_tokens.tolist() == prompt.tolist() and found.output_tokens.tolist() == output.tolist()


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_times_since_1970_say_their_unit(unit, scale, tmp_path):
    base = 1_772_442_000
    path = tmp_path / "t.csv"
    rows = "".join(f"{(base + t) * scale},5,{i + 1}\n" for i, t in enumerate((0, 2, 7)))
    path.write_text("timestamp,input_tokens,output_tokens\n" + rows)
    np.testing.assert_allclose(read_trace(path).arrival_s, [0, 2, 7], atol=1e-5)
    path.write_text("when,input_tokens,output_tokens\n" + rows)
    np.testing.assert_allclose(read_trace(path, {"arrival_s": "when"}).arrival_s, [0, 2, 7], atol=1e-5)
    assert epoch_unit(base * scale) == pytest.approx(1 / scale)


def test_times_of_no_known_unit_are_asked_for(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("time,input_tokens,output_tokens\n0,5,1\n\n655,5,2\n")
    with pytest.raises(InputError, match=r"a unit: .*--column arrival_s=time:s, or arrival_s=time:ms"):
        read_trace(path)
    assert read_trace(path, {"arrival_s": "time:ms"}).arrival_s.tolist() == [0, 0.655]
    path.write_text("time,input_tokens,output_tokens\n0.5,5,1\n655.25,5,2\n")
    assert "time read as seconds" in read_trace(path).notes[0]


def test_nested_keys_are_mapped(tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [{"timing_events": [{"timestamp": 100.5 + t}, {"timestamp": 999.0}], "n": {"in.put": 4 + t}, "k": 2}
            for t in (0, 3)]  # fmt: skip
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    columns = {"arrival_s": "timing_events[0].timestamp:s", "input_tokens": "n.in.put", "output_tokens": "k"}
    found = read_trace(path, columns)
    assert found.arrival_s.tolist() == [0, 3] and found.prompt_tokens.tolist() == [4, 7]
    with pytest.raises(InputError, match=r"a column of the file: timing_events\[0\]\.timestamp, timing_events\[1\]"):
        read_trace(path, columns | {"output_tokens": "no.such"})


def test_otlp_exports_are_read(tmp_path):
    def span(at, prompt, output):
        attributes = [{"key": "gen_ai.usage.input_tokens", "value": {"intValue": str(prompt)}},
                      {"key": "gen_ai.usage.output_tokens", "value": {"intValue": str(output)}},
                      {"key": "gen_ai.usage.cache_read.input_tokens", "value": {"intValue": "1"}}]  # fmt: skip
        return {"name": "chat", "startTimeUnixNano": str(at), "attributes": attributes, "status": {}}

    spans = [span(1772442000120000000, 811, 120), span(1772442001350000000, 2040, 300)]
    path = tmp_path / "otlp.json"
    path.write_text(json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": spans}]}]}, indent=1))
    found = read_trace(path)
    np.testing.assert_allclose(found.arrival_s, [0, 1.23], atol=1e-9)
    assert found.prompt_tokens.tolist() == [811, 2040]


def test_prefixes_given_as_a_number_of_tokens(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens,prefix_tokens,prefix_group\n"
        "0,64,1,48,a\n1,80,1,48,a\n2,64,1,32,b\n3,64,1,0,a\n"
    )
    prefixes = read_trace(path).prefixes
    first, second, other, none = (prefixes.of(i).tolist() for i in range(4))
    assert prefixes.block_tokens == 16 and first[:3] == second[:3] and first[3] != second[3]
    assert not set(other) & set(first) and not set(none) & set(first + second)


def test_rows_that_cannot_be_read_are_named_by_their_line_and_skipped_if_asked(tmp_path):
    """Blank lines count, in every form; what is left is what the good rows alone give."""
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n\n2024-05-10 00:00:00,5,1\n\n"
                    "2024-05-10 00:00:01,0,1\nyesterday,5,1\n2024-05-10 00:00:03,6,2\n")  # fmt: skip
    with pytest.raises(InputError) as error:
        read_trace(path)
    assert sorted(m.line for m in error.value.mistakes) == [5, 6]
    found = read_trace(path, skip_bad=True)
    assert found.arrival_s.tolist() == [0, 3] and found.prompt_tokens.tolist() == [5, 6]
    assert found.notes[0].startswith("2 of 4 rows skipped: ") and "line 5" in found.notes[0]
    (cell,) = bucket_trace(path, Cut(skip_bad=True)).cells
    assert cell.requests_per_s == pytest.approx(2 / 3)
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"ts": 0.5, "isl": 3, "osl": 4}\n\n{"ts": 1.5, "isl": 3}\n{oops\n{"ts": 2.5, "isl": 5, "osl": 6}\n'
    )
    with pytest.raises(InputError, match=r"t\.jsonl:4: "):
        read_trace(path)
    assert read_trace(path, skip_bad=True).prompt_tokens.tolist() == [3, 5]


def test_messages_list_the_columns_of_the_file_and_the_option(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("moment,size,answer\n1,2,3\n")
    with pytest.raises(InputError) as error:
        read_trace(path)
    (mistake,) = error.value.mistakes
    assert "moment, size, answer" in str(mistake) and "--column arrival_s=COLUMN:UNIT" in str(mistake)
    assert str(mistake).count("\n") == 0
    assert recognised(["usage.prompt_tokens", "usage.prompt_tokens_details.cached_tokens"])["prompt_tokens"][0] == (
        "usage.prompt_tokens"
    )


# ------------------------------------------------------------------------------------------------- benchmark results


def rows_of(name, tp="8", **options):
    return importers.read([RESULTS / name], fixed={} if tp is None else {"tp": tp}, **options)[1]


@pytest.mark.parametrize(("name", "wanted"), [
    ("llm-d.yaml", {"concurrency": 4.3, "input_tokens": 500, "ttft_s": 0.03, "tpot_s": 0.004, "tp": 1,
                    "requests_per_s": 10}),
    ("evalscope.json", {"concurrency": 10, "input_tokens": 1093.9, "ttft_s": 0.9636, "tpot_s": 0.0359, "tp": 8}),
    ("evalscope.csv", {"concurrency": 1, "ttft_s": 0.3141, "tpot_s": 0.0299, "tp": 8}),
    ("trtllm-bench.json", {"concurrency": 31.6, "output_tokens": 500, "ttft_s": 0.29, "tpot_s": 0.0192, "tp": 2}),
    ("vllm-console.txt", {"concurrency": 16, "input_tokens": 997.44, "output_tokens": 1000, "ttft_s": 0.06077,
                          "tpot_s": 0.0061, "tp": 8}),
    ("sglang-infinity.jsonl", {"concurrency": 15.99, "ttft_s": 6.088042, "tpot_s": 0.0162030, "tp": 8}),
    ("inference-perf-half-tpot.json", {"ttft_s": 0.05739, "tpot_s": (4.678 - 0.05739) / 245.1, "tp": 8}),
    ("inferencex-experimental-refused.json", {"concurrency": 16, "input_tokens": 2048, "ttft_s": 0.3683,
                                              "tpot_s": 0.03823, "tp": 8}),
])  # fmt: skip
def test_results_are_read(name, wanted):
    found = rows_of(name)
    row = found.frame.iloc[0]
    assert {k: row[k] for k in wanted} == pytest.approx(wanted, rel=1e-5)
    if wanted["tp"] == 8:  # not stated in the file
        with pytest.raises(InputError, match=r"tp: missing; .*--tp N"):
            rows_of(name, tp=None)


def test_runs_with_many_failed_requests_are_refused_unless_asked():
    with pytest.raises(InputError, match=r"4,068 of 4,800 requests failed.*--allow-failed"):
        rows_of("inference-perf-85pct-failed.json")
    found = rows_of("inference-perf-85pct-failed.json", allow_failed=True)
    assert "4,068 of 4,800 requests failed" in found.about["files"][0]["notes"]
    assert "stream events" in rows_of("inference-perf-half-tpot.json").about["files"][0]["notes"][0]


def _console(tpot, e2e):
    return (
        "INFO starting\n\x1b[1m============ Serving Benchmark Result ============\x1b[0m\n"
        "Backend: sglang\nSuccessful requests: 100\nFailed requests: 3\nTotal input tokens: 51,200\n"
        "Total generated tokens: 12800\nRequest throughput (req/s): 2.0\nConcurrency: 3.5\n"
        f"----Time----\nMean E2E Latency (ms): {e2e}\nMean TTFT (ms): 60.0\nMean TPOT (ms): {tpot}\n" + "=" * 50 + "\n"
    )


SERVE = {"completed": 100, "total_input_tokens": 51200, "total_output_tokens": 12800, "max_concurrency": 4,
         "mean_ttft_ms": 60.0}  # fmt: skip


@pytest.mark.parametrize("stated", [10.0, 5.0, 18.0])
@pytest.mark.parametrize("form", ["console", "vllm", "sglang", "trtllm", "evalscope", "blis", "llm-d", "inferencex"])
def test_every_tool_whose_tpot_disagrees_with_its_latencies_is_refused(form, stated, tmp_path):
    e2e = 60.0 + 127 * 10.0  # a token each 10 ms
    text = {
        "console": _console(stated, e2e),
        "vllm": json.dumps(SERVE | {"mean_tpot_ms": stated, "mean_e2el_ms": e2e}),
        "sglang": json.dumps(SERVE | {"mean_tpot_ms": stated, "mean_e2e_latency_ms": e2e, "concurrency": 4}),
        "trtllm": json.dumps({
            "engine": {}, "world_info": {"tp_size": 1}, "performance": {"avg_request_latency_ms": e2e},
            "request_info": {"avg_num_concurrent_requests": 4, "avg_input_length": 512, "avg_output_length": 128},
            "streaming_metrics": {"avg_ttft_ms": 60.0, "avg_tpot_ms": stated},
        }),
        "evalscope": json.dumps({
            "Number of concurrency": 4, "Average latency (s)": e2e / 1e3, "Average time to first token (s)": 0.06,
            "Average time per output token (s)": stated / 1e3, "Average input tokens per request": 512,
            "Average output tokens per request": 128,
        }),
        "blis": json.dumps({
            "vllm_estimated_duration_s": 1.0, "completed_requests": 100, "total_input_tokens": 51200,
            "total_output_tokens": 12800, "responses_per_sec": 2.0, "e2e_mean_ms": e2e, "ttft_mean_ms": 60.0,
            "itl_mean_ms": stated,
        }),
        "llm-d": "version: '0.1'\nscenario: {host: {accelerator: [{model: x, count: 1, parallelism: {tp: 1}}]}}\n"
                 "metrics:\n  requests: {total: 100, failures: 1, input_length: {units: count, mean: 512}, "
                 "output_length: {units: count, mean: 128}}\n"
                 f"  latency: {{request_latency: {{units: ms, mean: {e2e}}}, time_to_first_token: "
                 f"{{units: ms, mean: 60}}, time_per_output_token: {{units: ms/token, mean: {stated}}}}}\n"
                 "  throughput: {requests_per_sec: 2.0}\n",
        "inferencex": json.dumps({
            "completed": 100, "num_prompts": 100, "total_input_tokens": 51200, "total_output_tokens": 12800,
            "max_concurrency": 4, "median_ttft": 0.06, "median_tpot": stated / 1e3, "median_e2el": e2e / 1e3,
        }),
    }[form]  # fmt: skip
    path = tmp_path / f"result.{'yaml' if form == 'llm-d' else 'txt'}"
    path.write_text(text)
    if stated == 10.0:
        assert importers.read([path], fixed={"tp": "1"})[1].frame["tpot_s"][0] == pytest.approx(0.01)
    else:
        with pytest.raises(InputError, match=rf"TPOT: got '{stated:.4g} ms'; expected 10 ms ± 15%"):
            importers.read([path], fixed={"tp": "1"})


def test_unknown_results_are_named_and_json_can_be_mapped(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"alpha": 1, "beta": {"first": 30}, "users": 4, "isl": 9, "osl": 7, "gap": 20}))
    with pytest.raises(InputError, match=r"got 'keys alpha, beta, users, isl, osl, gap'.*--column"):
        importers.read([path])
    columns = {"concurrency": "users", "input_tokens": "isl", "output_tokens": "osl", "ttft_s": "beta.first:ms",
               "tpot_s": "gap:ms"}  # fmt: skip
    row = importers.read([path], None, {"tp": "2"}, columns)[1].frame.iloc[0]
    assert (row["ttft_s"], row["tpot_s"], row["tp"]) == (0.03, 0.02, 2)
    path.write_text("=====\nMLPerf Results Summary\n=====\nSUT name : x\n")
    with pytest.raises(InputError, match="an MLPerf log"):
        importers.read([path])
    with pytest.raises(InputError, match="simulate --trace"):
        importers.read([TRACES / "llmservingsim.jsonl"])


# ------------------------------------------------------------------------------------------------------------ prices


@pytest.mark.parametrize(("name", "usd_per_month", "headline"), [
    ("skypilot.yaml", 2.49 * 5 * 730, "nothing reserved; by the hour up to 8× gpu_1x_h100_pcie on demand"),
    ("focus.yaml", 55.04 * 5 * 730, "nothing reserved; by the hour up to 8× "),
    ("coreweave.yaml", 21866.85, "9× h100 (us-east-1, reserved 1y): 9 H100; by the hour up to 14× h100 on demand"),
])  # fmt: skip
def test_prices_are_read_and_planned_with(name, usd_per_month, headline):
    from optmodels import solve

    found = solve(PRICES / name, out_of_sample=False)
    assert found.status == "optimal" and found.objective == pytest.approx(usd_per_month, abs=0.01)
    assert found.document()["summary"]["headline"].startswith(headline)


@pytest.mark.parametrize(("name", "usd_per_hour"), [("inferno.yaml", 23.0), ("inferno7.yaml", 280.0)])
def test_published_optima_of_inferno(name, usd_per_hour):
    from optmodels import solve

    assert solve(PRICES / name, out_of_sample=False).objective == pytest.approx(usd_per_hour)


def test_rows_of_skypilot_and_focus():
    rows = {(r.machine, r.region): r for r in read_prices(PRICES / "vms.csv")}
    assert gpu_of(rows["gpu_1x_h100_pcie", "us-east-1"]) == "h100-pcie"
    assert gpu_of(rows["gpu_8x_a100", "us-east-1"]) == "a100-40g"
    (focus,) = read_prices(PRICES / "focus.csv")
    assert focus.prices == {"on_demand": 55.04, "reserved_1y": 31.46}


def test_prices_by_the_gpu_with_a_smallest_number(tmp_path):
    (tmp_path / "p.csv").write_text("card,usd,floor\nH100,2.23,1\nL40S,$1.10,2\nA100,1.00,8\nUnheard-of 9,1,1\n")
    columns = {"gpu": "card", "on_demand_usd_per_gpu_hour": "usd", "least_gpus": "floor"}
    machines, others = machines_of(tmp_path / "p.csv", columns)
    found = {(m.gpu, m.gpu_count): m.prices.on_demand for m in machines}
    assert found == pytest.approx({
        ("h100", 1): 2.23, ("h100", 2): 4.46, ("h100", 4): 8.92, ("h100", 8): 17.84, ("l40s", 2): 2.2,
        ("l40s", 4): 4.4, ("l40s", 8): 8.8,
    })  # fmt: skip
    assert others == ["A100-8x", *(f"Unheard-of 9-{n}x" for n in (1, 2, 4, 8))]  # 40 or 80 GiB: not guessed
    data = {
        "formulation": "fleet", "schema": 1, "pool": {"prices": "p.csv", "columns": columns},
        "markets": {"main": ["on_demand"]}, "serving": "continuous",
        "workloads": [{"name": "w", "model": "llama-3.1-8b",
                       "buckets": [{"input_tokens": 500, "output_tokens": 100, "requests_per_s": 1.0}]}],
    }  # fmt: skip
    case = load(data, folder=tmp_path).resolve()
    assert {m.gpu for m in case.machines} == {"h100", "l40s"} and case.price_source == "prices of p.csv"
    assert any("left out: no GPU of the catalogue" in n for n in case.notes)
    for wrong, words in (
        ({"gpu": "none"}, "a column of the file: card, usd, floor"),
        ({"price": "usd"}, "one of machine"),
    ):
        with pytest.raises(InputError, match=words):
            machines_of(tmp_path / "p.csv", wrong)
