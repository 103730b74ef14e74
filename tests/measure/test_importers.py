"""Every importer on files written after its tool's documented format, and on the same files spoilt."""

import gzip
import json

import pytest
from commands import python

from optmodels import importers
from optmodels.errors import InputError
from optmodels.importers import rows
from optmodels.latency.fit import read_measurements
from papers.offload_overlap import read_about
from tests.measure.tool_files import (
    AIC,
    AIPERF,
    AIPERF_CSV,
    BATCH,
    BLIS,
    COLUMNS,
    CSVS,
    GOOD,
    GUIDELLM,
    INFERENCEX,
    LATENCY,
    PROMETHEUS,
    SERVE,
    STAGE,
    TP,
    histogram,
    spread,
    statistic,
)


def read(paths, name=None, fixed=None, columns=None):
    """As `importers.read`, of results of one GPU where they do not say."""
    return importers.read(paths, name, TP | (fixed or {}), columns)


def write(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(path, **options):
    with pytest.raises(InputError) as caught:
        read([path], **options)
    return caught.value.mistakes


@pytest.mark.parametrize("form", GOOD)
@pytest.mark.parametrize("told", [True, False], ids=["told", "detected"])
def test_reads_the_documented_format_and_calibrate_reads_the_result(form, told, tmp_path):
    name, text, fixed, columns, wanted = GOOD[form]
    kind, found = read([write(tmp_path, name, text)], form if told else None, fixed, columns)
    row = found.frame.iloc[0]
    assert {k: row[k] for k in wanted} == pytest.approx(wanted)
    assert found.about["files"][0]["format"] == importers.FORMATS[form].TITLE
    for ending in ("csv", "parquet"):
        out = tmp_path / f"out.{ending}"
        rows.write(out, found)
        m = read_measurements(out)
        assert m.kind == kind and len(m) == len(found.frame)
        assert read_about(out)["files"] == json.loads(json.dumps(found.about["files"]))


def cuts(form):
    """Truncations that leave something a reader could mistake for whole."""
    text = GOOD[form][1]
    lines = text.splitlines(keepends=True)
    if form == "prometheus":
        return ["".join(lines[:7]), text[: text.index("vllm:time_to_first_token_seconds_count") + 30]]
    if form in CSVS:
        return [text[:-9], lines[0]]
    return [text[: len(text) * 2 // 3], text.rstrip()[:-1]]


@pytest.mark.parametrize("form", GOOD)
@pytest.mark.parametrize("told", [True, False], ids=["told", "detected"])
def test_refuses_truncated_empty_and_wrong_files_by_name_and_line(form, told, tmp_path):
    name, _, fixed, columns, _ = GOOD[form]
    options = {"name": form if told else None, "fixed": fixed, "columns": columns}
    for i, text in enumerate([*cuts(form), "", "\n\n", "[]", "{}", "hello", "\x00\x01"]):
        path = write(tmp_path, f"{i}-{name}", text)
        found = mistakes(path, **options)
        assert all(str(path) == m.file for m in found), text
        assert any(m.line is not None or m.path for m in found), (text, found)
    lines = GOOD[form][1].count("\n")
    assert all(
        m.line is not None and m.line <= lines + 2 for m in mistakes(write(tmp_path, name, cuts(form)[0]), **options)
    )


def accepted(path, text, **options):
    """Whether it is read; else all that is said names the file and a line."""
    path.write_bytes(text)
    try:
        read([path], **options)
    except InputError as error:
        assert all(m.file == str(path) and m.line is not None and m.line >= 1 for m in error.mistakes), (text, error)
        return False
    return True


@pytest.mark.parametrize("form", GOOD)
@pytest.mark.parametrize("told", [True, False], ids=["told", "detected"])
def test_a_file_cut_at_any_byte_is_refused_unless_what_is_left_is_whole(form, told, tmp_path):
    """JSON has an end; of lines, so many as are whole are results as well as all of them."""
    name, text, fixed, columns, _ = GOOD[form]
    whole = text.encode()
    options = {"name": form if told else None, "fixed": fixed, "columns": columns}
    cuts = [*range(0, len(whole) - 90, 1 + len(whole) // 700), *range(max(0, len(whole) - 90), len(whole))]
    read = [k for k in sorted(set(cuts)) if accepted(tmp_path / name, whole[:k], **options)]
    if form in ("prometheus", *CSVS):
        assert all(whole[k - 1 : k] == b"\n" for k in read)
    elif form == "sglang-serving":  # its first line is a run of its own, and so is its second without the line end
        first = whole.index(b"\n")
        assert read == [first, first + 1, len(whole) - 1]
    else:
        assert read == []


BINARY = (b"\x89PNG\r\n\x1a\n\x00", b"PAR1\x00\x15\x04", b"\x00" * 64, b"SQLite format 3\x00", bytes(range(256)))
OTHER = (
    b"",
    b"\n\n",
    b"null\n",
    b"[]\n",
    b"{}\n",
    b"3\n",
    b'"a"\n',
    b"[[1, 2]]\n",
    b"<html>404</html>\n",
    b"a b\n1 2\n",
)


@pytest.mark.parametrize("form", GOOD)
@pytest.mark.parametrize("told", [True, False], ids=["told", "detected"])
def test_binary_and_other_files_are_refused_by_name_and_line(form, told, tmp_path):
    name, _, fixed, columns, _ = GOOD[form]
    options = {"name": form if told else None, "fixed": fixed, "columns": columns}
    foreign = [text.encode() for f, (_, text, *_rest) in GOOD.items() if f != form] if told else []
    for text in (*BINARY, *OTHER, *foreign):
        assert not accepted(tmp_path / name, text, **options), text


@pytest.mark.parametrize(
    ("form", "field", "value", "line"),
    [
        ("vllm-serve", "mean_ttft_ms", "fast", 13),
        ("vllm-serve", "mean_tpot_ms", -1.0, 16),
        ("vllm-serve", "completed", 0, 9),
        ("sglang-serving", "total_input_tokens", [], 1),
        ("vllm-latency", "avg_latency", None, 1),
        ("genai-perf", "time_to_first_token", 250, 2),
        ("genai-perf", "inter_token_latency", None, 1),
        ("llmperf", "results_end_to_end_latency_s_mean", 0.1, 9),
        ("guidellm", "benchmarks", {}, 9),
        ("inference-perf", "successes", {"latency": []}, 1),
        ("blis", "ttft_mean_ms", 0, 12),
        ("blis", "completed_requests", 0, 3),
    ],
)
def test_names_the_wrong_field_and_its_line(form, field, value, line, tmp_path):
    name, text, fixed, columns, _ = GOOD[form]
    data = json.loads(text.splitlines()[0] if name.endswith("l") else text)
    data[field] = value
    if value is None:
        del data[field]
    path = write(tmp_path, name, json.dumps(data) if name.endswith("l") else json.dumps(data, indent=2))
    (found,) = mistakes(path, name=form, fixed=fixed, columns=columns)
    assert field in found.path and found.line == line, found


def test_genai_perf_csv_with_thousands_and_the_folder_s_concurrency(tmp_path):
    folder = tmp_path / "m-openai-chat-concurrency16"
    folder.mkdir()
    path = write(folder, "profile_export_genai_perf.csv", AIPERF_CSV)
    kind, found = read([path])
    row = found.frame.iloc[0]
    assert kind == "served" and row["concurrency"] == 16
    assert row["ttft_s"] == pytest.approx(1.14631) and row["input_tokens"] == pytest.approx(3000.05)
    path = write(folder, "spoilt.csv", AIPERF_CSV.replace("30.35", "30,35"))
    (wrong,) = mistakes(path)
    assert wrong.line == 3 and "11 cells" not in str(wrong) and "8 cells" in str(wrong)
    path = write(folder, "spoilt.csv", AIPERF_CSV.replace("30.35", "soon"))
    assert mistakes(path)[0].line == 3


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"phases": [{"name": "warm", "exclude_from_results": True, "concurrency": 2},
                     {"name": "profiling", "kind": "profiling", "concurrency": 40}]}, 40),
        ({"phases": {"warmup": {"concurrency": 2}, "profiling": {"concurrency": 24}}}, 24),
        ({"loadgen": {"concurrency": 8}}, 8),
        ({"perf_analyzer": {"stimulus": {"concurrency": 4}}}, 4),
        ({"concurrency": 3}, 3),
    ],
    ids=["AIPerf 0.9", "by name", "AIPerf before", "GenAI-Perf with a config", "GenAI-Perf"],
)  # fmt: skip
def test_every_age_of_genai_perf_and_aiperf_states_its_concurrency(config, wanted, tmp_path):
    new = {"schema_version": "1.5", "warmup_metrics": {"time_to_first_token": statistic(900.0, "ms")}}
    path = write(tmp_path, "profile_export_aiperf.json", json.dumps(new | AIPERF | {"input_config": config}))
    row = read([path])[1].frame.iloc[0]
    assert row["concurrency"] == wanted and row["ttft_s"] == pytest.approx(0.25)


def test_an_open_loop_has_the_concurrency_of_little_s_law(tmp_path):
    data = {k: v for k, v in SERVE.items() if k != "max_concurrency"} | {"max_concurrency": None}
    _, found = read([write(tmp_path, "open.json", json.dumps(data))])
    # 2 requests/s, each 0.21 s + 255 × 11.5 ms in the system.
    assert found.frame["concurrency"][0] == pytest.approx(2.0 * (0.21 + 255 * 0.0115))


def test_prometheus_says_what_a_line_or_histogram_lacks(tmp_path):
    path = write(tmp_path, "a.prom", PROMETHEUS.replace("50.0\n", "fifty\n", 1))
    assert mistakes(path)[0].line is not None
    path = write(
        tmp_path, "b.prom", PROMETHEUS.replace('le="0.5"} ', 'le="0.5",model_name="m"} 7', 0).replace("running", "idle")
    )
    (m,) = mistakes(path)
    assert m.path == "concurrency" and "--set" in str(m)
    found = read([path], fixed={"concurrency": "3"})[1].frame
    assert found["concurrency"][0] == 3
    less = PROMETHEUS.replace('le="1.0"} 100.0', 'le="1.0"} 20.0')
    assert "cumulative" in str(mistakes(write(tmp_path, "c.prom", less))[0])


def test_prometheus_counts_failures_and_compares_latencies(tmp_path):
    aborted = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 10.0\n'
    (m,) = mistakes(write(tmp_path, "a.prom", PROMETHEUS + aborted))
    assert (m.path, m.value) == ("failed requests", "10 of 110 requests failed")
    for seconds, agrees in ((278.6, True), (400.0, False)):  # 100 × (0.5 s + 127 × 18 ms)
        whole = "\n".join(histogram("vllm:e2e_request_latency_seconds", ("5.0", "+Inf"), (100, 100), seconds)) + "\n"
        path = write(tmp_path, "b.prom", PROMETHEUS + whole)
        if agrees:
            assert read([path])[1].frame["tpot_s"][0] == 0.018
        else:
            assert "TPOT" in str(mistakes(path)[0])


def test_text_after_a_whole_object_is_named_by_its_line(tmp_path):
    [mistake] = mistakes(write(tmp_path, "m_1_2_summary.json", '{\n}\n "results_ttft_s_mean": 0.2,\n}'))
    assert mistake.line == 1 and "JSON" in mistake.expected


def test_prometheus_refuses_infinite_counters(tmp_path):
    lines = PROMETHEUS.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("vllm:time_to_first_token_seconds_sum"))
    lines[at] = lines[at].rpartition(" ")[0] + " 1e999"
    [mistake] = mistakes(write(tmp_path, "metrics.prom", "\n".join(lines) + "\n"))
    assert mistake.line == at + 1 and mistake.expected == "a finite number"


def test_several_files_make_one_table_and_two_kinds_do_not(tmp_path):
    paths = [write(tmp_path, f"{c}.json", json.dumps(SERVE | {"max_concurrency": c})) for c in (1, 4, 16)]
    _, found = read(paths)
    assert found.frame["concurrency"].tolist() == [1, 4, 16] and set(found.frame["file"]) == {p.name for p in paths}
    paths.append(write(tmp_path, "lat.json", json.dumps(LATENCY)))
    with pytest.raises(InputError, match="one kind"):
        read(paths, fixed=BATCH)
    with pytest.raises(InputError, match="--set batch"):
        read(paths[-1:], fixed={"input_tokens": "32", "output_tokens": "128"})
    for fixed in ({"batch": "0"}, {"batch": "x"}, {"what": "1"}):
        with pytest.raises(InputError, match="--set"):
            read(paths[-1:], fixed=fixed)


def test_the_command_line_reads_benchmarks_and_says_what_is_wrong(tmp_path):
    runs = [
        write(tmp_path, f"{c}-{i}.json", json.dumps(
            SERVE | {"max_concurrency": c, "total_input_tokens": 100 * i,
                     "mean_tpot_ms": 8 + c / 4 + c * (i + 128) / 4000, "mean_ttft_ms": 30 + i / 10 + c}))
        for c in (1, 4, 16, 64) for i in (128, 512, 2048)
    ]  # fmt: skip
    out = tmp_path / "served.parquet"

    def run(*arguments):
        return python("-m", "optmodels", *arguments, cwd=tmp_path)

    assert "--tp" in run("measure", *runs).err
    words = ["measure", "--tp", "1", *runs]
    done = run(*words, "--out", out, "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["kind"] == "served" and len(json.loads(done.out)["rows"]) == 12
    fitted = run("calibrate", out, "--form", "additive", "--json")
    assert fitted.status == 0, fitted.err
    assert json.loads(fitted.out)["targets"]["tpot_s"]["in_sample"]["mape"] < 0.02
    for arguments, said in (
        ([*words, "--out", out], "existing file"),
        (["measure"], "rows-to-measure"),
        (["measure", "--model", "llama-3.1-8b"], "rows-to-measure"),
        (["measure", "--from", runs[0], "--format", "excel"], "vllm-serve"),
        (["measure", "--from", tmp_path / "none.json"], "no such file"),
    ):
        done = run(*arguments)
        assert done.status == 2 and said in done.err, (arguments, done.err)


def run_of(form, users, prompt):
    """The text of one run of known truth: 64 tokens out, TTFT = 20 + p/20 + u ms, TPOT = 8 + u/8 + u·p/16000 ms."""
    ttft, tpot = 20 + prompt / 20 + users, 8 + users / 8 + users * prompt / 16000
    means = {"completed": 10, "total_input_tokens": 10 * prompt, "total_output_tokens": 640,
             "mean_ttft_ms": ttft, "mean_tpot_ms": tpot}  # fmt: skip
    match form:
        case "vllm-serve":
            return json.dumps(means | {"max_concurrency": users})
        case "sglang-serving":
            return json.dumps(means | {"concurrency": users, "mean_e2e_latency_ms": ttft + 63 * tpot}) + "\n"
        case "genai-perf":
            return json.dumps({
                "time_to_first_token": statistic(ttft * 1e6, "ns"), "inter_token_latency": statistic(tpot, "ms"),
                "input_sequence_length": statistic(prompt, "tokens"),
                "output_sequence_length": statistic(64, "tokens"),
                "input_config": {"phases": [{"name": "profiling", "concurrency": users}]},
            })  # fmt: skip
        case "llmperf":
            return json.dumps({
                "num_concurrent_requests": users, "results_ttft_s_mean": ttft / 1e3,
                "results_end_to_end_latency_s_mean": (ttft + 63 * tpot) / 1e3,
                "results_number_input_tokens_mean": prompt, "results_number_output_tokens_mean": 64,
            })  # fmt: skip
        case "guidellm":
            metrics = GUIDELLM["benchmarks"][0]["metrics"] | {
                "prompt_token_count": spread(prompt), "output_token_count": spread(64),
                "time_to_first_token_ms": spread(ttft), "inter_token_latency_ms": spread(tpot),
            }  # fmt: skip
            strategy = {"type_": "concurrent", "streams": users}
            return json.dumps({"benchmarks": [{"config": {"strategy": strategy}, "metrics": metrics}]})
        case "inference-perf":
            latency = {"time_to_first_token": {"mean": ttft / 1e3}, "time_per_output_token": {"mean": tpot / 2e3},
                       "request_latency": {"mean": (ttft + 63 * tpot) / 1e3}}  # fmt: skip
            done = {"latency": latency, "prompt_len": {"mean": prompt}, "output_len": {"mean": 64}}
            return json.dumps({"load_summary": {"concurrency": users}, "successes": done})
        case "aiconfigurator":
            return f"isl,osl,concurrency,ttft,tpot,tp\n{prompt},64,{users},{ttft},{tpot},1\n"
        case "inferencex":
            return json.dumps([{
                "hw": "h200", "tp": 1, "conc": users, "isl": prompt, "osl": 64, "tput_per_gpu": 1.0,
                "mean_ttft": ttft / 1e3, "mean_tpot": tpot / 1e3,
            }])  # fmt: skip
        case "blis":
            each = ttft + 63 * tpot
            return json.dumps(BLIS | {
                "completed_requests": 10, "total_input_tokens": 10 * prompt, "total_output_tokens": 640,
                "ttft_mean_ms": ttft, "itl_mean_ms": tpot, "e2e_mean_ms": each, "responses_per_sec": 1e3 * users / each,
            })  # fmt: skip
        case "prometheus":
            return "\n".join([
                f'vllm:num_requests_running{{model_name="m"}} {users}',
                *histogram("vllm:time_to_first_token_seconds", ("+Inf",), (10,), ttft / 100),
                *histogram("vllm:request_time_per_output_token_seconds", ("+Inf",), (10,), tpot / 100),
                *histogram("vllm:request_prompt_tokens", ("+Inf",), (10,), 10.0 * prompt),
                *histogram("vllm:request_generation_tokens", ("+Inf",), (10,), 640.0), "",
            ])  # fmt: skip
    return f"users,isl,osl,ttft_ms,tpot_ms\n{users},{prompt},64,{ttft},{tpot}\n"


@pytest.mark.parametrize("form", [f for f in GOOD if f != "vllm-latency"])
def test_calibrate_finds_the_truth_in_the_runs_of_every_load_generator(form, tmp_path):
    from optmodels.latency.fit import calibrate_measurements

    runs = [
        write(tmp_path, f"{u}-{p}{'.jsonl' if form == 'sglang-serving' else '.txt'}", run_of(form, u, p))
        for u in (1, 4, 16, 64) for p in (128, 512, 2048)
    ]  # fmt: skip
    _, found = read(runs, None, {}, COLUMNS if form == "csv" else {})
    rows.write(tmp_path / "served.csv", found)
    model = calibrate_measurements(read_measurements(tmp_path / "served.csv"), "additive").model
    assert model.measured == "served" and model.targets["tpot_s"].in_sample.mape < 0.03
    assert model.targets["ttft_s"].in_sample.mape < 0.03


def test_open_loops_of_guidellm_and_inference_perf_and_what_their_reports_lack(tmp_path):
    rows = read([write(tmp_path, "b.json", json.dumps(GUIDELLM))])[1].frame
    assert rows["concurrency"].tolist() == [8, 7.5] and set(rows["model"]) == {"some/model"}
    assert "benchmarks.json" in str(mistakes(write(tmp_path, "b.csv", "Run Info,Run Info,\nRun ID,Profile,\n"))[0])
    empty = json.loads(json.dumps(GUIDELLM))
    empty["benchmarks"][1]["metrics"]["time_to_first_token_ms"]["successful"]["mean"] = None
    (wrong,) = mistakes(write(tmp_path, "e.json", json.dumps(empty)))
    assert wrong.path == "benchmarks[1].metrics.time_to_first_token_ms.successful.mean"
    stage = json.loads(json.dumps(STAGE))
    stage["successes"]["latency"]["time_to_first_token"] = None  # an API that does not stream
    assert "streaming" in str(mistakes(write(tmp_path, "s.json", json.dumps(stage)))[0])


def test_aiconfigurator_and_inferencex_keep_what_was_run(tmp_path):
    rows = read([write(tmp_path, "pareto.csv", AIC)])[1].frame
    assert rows["tp"].tolist() == [4, 2] and set(rows["gpu"]) == {"h200"} and set(rows["engine"]) == {"trtllm"}
    apart = AIC.replace("parallel,", "(d)workers,")
    assert "aggregated" in str(mistakes(write(tmp_path, "d.csv", apart))[0])
    _, found = read([write(tmp_path, "x.csv", INFERENCEX)])
    assert len(found.frame) == 1 and found.frame["gpu"][0] == "h200" and found.frame["precision"][0] == "fp4"
    assert "1 rows left out" in found.about["files"][0]["notes"][0]
    first = json.dumps({"hw": "h200-nv_1", "tp": 8, "ep": 1, "conc": 4, "tput_per_gpu": 9.0, "median_ttft": 0.2,
                        "median_tpot": 0.01, "disagg": False})  # fmt: skip
    path = write(tmp_path, "agg_run.json", first)
    assert mistakes(path)[0].path == "input_tokens"
    row = read([path], fixed={"input_tokens": "1024", "output_tokens": "1024"})[1].frame.iloc[0]
    assert (row["gpu"], row["tp"], row["tpot_s"]) == ("h200", 8, 0.01)


def test_several_deployments_in_one_file_are_told_apart(folder, cli):
    one = {"concurrency": [1, 8], "input_tokens": [100, 100], "output_tokens": [50, 50]}
    rows = "".join(f"{c},100,50,{gpu},{t * c},{t}\n" for gpu, t in (("h100", 0.02), ("h200", 0.01)) for c in (1, 8))
    (folder / "m.csv").write_text(",".join((*one, "gpu", "ttft_s", "tpot_s")) + "\n" + rows)
    ask = ("operating-points", "m.csv", "--machine", "m", "--batch", 8, "--input-tokens", 100, "--output-tokens", 50)
    refused = cli(*ask)
    assert refused.status == 2 and "gpu (h100, h200)" in refused.err
    done = cli(*ask, "--where", "gpu=h200", "--json")
    assert json.loads(done.out)["operating_points"][0]["tpot_s"] == 0.01
    assert "several deployments" in cli("calibrate", "m.csv", "--form", "linear_batch").out


def test_static_batches_are_read_one_by_one_and_joined(tmp_path):
    """vllm bench latency does not say what it ran: each file with its --set, then the tables together."""
    from optmodels.latency.fit import calibrate_measurements

    tables = []
    for batch in (1, 4, 16):
        for tokens in (64, 256):
            seconds = 0.02 + 0.0001 * batch * tokens + 127 * (0.008 + 0.0002 * batch)
            path = write(tmp_path, "latency.json", json.dumps({"avg_latency": seconds, "percentiles": {}}))
            fixed = {"batch": str(batch), "input_tokens": str(tokens), "output_tokens": "128"}
            tables.append(tmp_path / f"{batch}-{tokens}.csv")
            rows.write(tables[-1], read([path], None, fixed)[1])
    kind, found = read(tables)
    assert kind == "static" and found.frame["batch"].tolist() == [1, 1, 4, 4, 16, 16]
    rows.write(tmp_path / "static.csv", found)
    model = calibrate_measurements(read_measurements(tmp_path / "static.csv"), "two_segment").model
    assert model.targets["latency_s"].in_sample.mape < 0.1


EXPORT = "Model,ISL,OSL,Hardware,Framework,TP,Concurrency,Mean TTFT (s),Mean TPOT (s)\n"


@pytest.mark.parametrize("name", ["nan", "1" * 400, "inf"])
def test_a_model_whose_name_reads_as_no_number_keeps_it(name, tmp_path):
    path = tmp_path / "export.csv"
    path.write_text(f"{EXPORT}{name},1024,128,h100,vllm,2,16,0.3,0.006\n")
    _, found = read([path])
    assert found.frame["model"].tolist() == [name]
    path.write_text(f"{EXPORT}m,1024,128,h100,vllm,2,{name},0.3,0.006\n")
    with pytest.raises(InputError, match=r"export\.csv:2: conc: got .*expected a finite number, at most 1e\+12"):
        read([path])


@pytest.mark.parametrize(("field", "text", "said"), [
    ("model_id", "NaN", "model: got nan"),
    ("model_id", "[1]", r"model: got \[1\]"),
    ("total_input_tokens", "1" * 400, "total_input_tokens: got 1111"),
    ("total_input_tokens", "1" * 5000, "thousands of digits"),
    ("completed", "1e-320", "input_tokens: got "),
])  # fmt: skip
def test_no_number_of_a_result_leaves_what_a_float_holds(field, text, said, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(SERVE | {"num_prompts": None, field: "@"}).replace('"@"', text))
    with pytest.raises(InputError, match=said):
        read([path])


def test_damaged_archives_and_endless_cells_are_mistakes(tmp_path):
    path = tmp_path / "run.json.gz"
    packed = bytearray(gzip.compress(json.dumps(SERVE).encode()))
    packed[10:30] = b"\xff" * 20  # the compressed data, not the header
    path.write_bytes(packed)
    with pytest.raises(InputError, match=r"run\.json\.gz"):
        read([path])
    for head in ("batch,input_tokens,output_tokens,latency_s\n", "Metric,avg\nTime To First Token (ms),"):
        path = tmp_path / "long.csv"
        path.write_text(head + "1" * 200_000 + ",1,1,1\n")
        with pytest.raises(InputError, match="a line of CSV"):
            read([path])
