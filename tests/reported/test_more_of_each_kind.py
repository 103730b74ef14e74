"""Traces, results and prices of further tools, written from knowledge of what they write: each kind read or refused."""

import bz2
import json
import lzma
from datetime import UTC, datetime
from email.utils import format_datetime

import numpy as np
import pytest

from formulations.cost_efficiency.as_fleet import as_fleet
from optmodels import importers, units
from optmodels.catalog.prices import machines_of
from optmodels.errors import InputError
from optmodels.traces.readers import read_trace

START = 1714521600.25
AT, PROMPT, OUTPUT = [0.0, 1.5, 3.25, 9.5], [2802, 1836, 12, 512], [95, 7, 300, 64]
ROWS = list(zip(AT, PROMPT, OUTPUT, strict=True))


def day(at):
    return datetime.fromtimestamp(START + at, UTC)


def iso(at):
    return day(at).isoformat()


def table(head, row, between=","):
    return "\n".join([between.join(head), *(between.join(map(str, row(*r))) for r in ROWS)]) + "\n"


def lines(row):
    return "".join(json.dumps(row(*r)) + "\n" for r in ROWS)


AZURE = table(("TIMESTAMP", "ContextTokens", "GeneratedTokens"), lambda a, p, o: (iso(a), p, o))
OURS = ("timestamp", "input_tokens", "output_tokens")
TRACES = {
    "bars": table(OURS, lambda a, p, o: (iso(a), p, o), "|"),
    "thousands": table(OURS, lambda a, p, o: (iso(a), f'"{p:,}"', o)),
    "decimals": table(OURS, lambda a, p, o: (f"{a:.2f}".replace(".", ","), p, o), ";"),
    "langfuse": lines(lambda a, p, o: {"startTime": iso(a), "usageDetails": {"input": p, "output": o}}),
    "langfuse-csv": table(("timestamp", "usage.input", "usage.output"), lambda a, p, o: (iso(a), p, o)),
    "openinference": lines(lambda a, p, o: {
        "start_time": iso(a), "attributes": {"llm": {"token_count": {"prompt": p, "completion": o}}}}),
    "envoy": lines(lambda a, p, o: {"start_time": iso(a), "llm_input_token": p, "llm_output_token": o}),
    "helicone": lines(lambda a, p, o: {"request_created_at": iso(a), "prompt_tokens": p, "completion_tokens": o}),
    "vertex": lines(lambda a, p, o: {
        "logging_time": iso(a), "usageMetadata": {"promptTokenCount": p, "candidatesTokenCount": o}}),
    "vidur-out": table(("request_arrived_at", "request_num_prefill_tokens", "request_num_decode_tokens"),
                       lambda a, p, o: (a, p, o)),
    "aiperf-records": lines(lambda a, p, o: {
        "metadata": {"request_start_ns": int((START + a) * 1e9)},
        "metrics": {"input_sequence_length": {"value": p}, "output_sequence_length": {"value": o}}}),
    "jaeger": json.dumps({"data": [{"spans": [{"startTime": int((START + a) * 1e6), "tags": [
        {"key": "gen_ai.usage.input_tokens", "type": "int64", "value": p},
        {"key": "gen_ai.usage.output_tokens", "type": "int64", "value": o}]}]} for a, p, o in ROWS]}),
    "inside": json.dumps({"meta": {"n": 4}, "results": {"items": [
        {"timestamp": a, "input_tokens": p, "output_tokens": o} for a, p, o in ROWS]}}, indent=1),
    "posthog": lines(lambda a, p, o: {"timestamp": iso(a), "properties": {"$ai_input_tokens": p,
    "$ai_output_tokens": o}}),
    "warehouse": table(("request_ts", "prompt_token_cnt", "response_token_cnt"), lambda a, p, o: (iso(a), p, o)),
    "utc": table(OURS, lambda a, p, o: (day(a).strftime("%Y-%m-%d %H:%M:%S.%f UTC"), p, o)),
    "python": table(OURS, lambda a, p, o: (day(a).strftime('"%Y-%m-%d %H:%M:%S,%f"'), p, o)),
}  # fmt: skip
WHOLE_SECONDS = {
    "mail": table(OURS, lambda a, p, o: (f'"{format_datetime(day(a), usegmt=True)}"', p, o)),
    "apache": table(OURS, lambda a, p, o: (day(a).strftime("[%d/%b/%Y:%H:%M:%S +0000]"), p, o)),
    "americans": table(OURS, lambda a, p, o: (day(a + 20 * 86400).strftime("%m/%d/%Y %I:%M:%S %p"), p, o)),
    "germans": table(OURS, lambda a, p, o: (day(a).strftime("%d.%m.%Y %H:%M:%S"), p, o)),
}


def is_read(file, within=1e-6):
    found = read_trace(file)
    np.testing.assert_allclose(found.arrival_s - found.arrival_s[0], AT, atol=within)
    assert found.prompt_tokens.tolist() == PROMPT and found.output_tokens.tolist() == OUTPUT


@pytest.mark.parametrize("name", [*TRACES, *WHOLE_SECONDS])
def test_traces(name, tmp_path):
    (tmp_path / "t").write_text((TRACES | WHOLE_SECONDS)[name])
    is_read(tmp_path / "t", 1.0 if name in WHOLE_SECONDS else 1e-6)


def test_compressed_traces_and_columns_within_columns(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    raw = AZURE.encode()
    for data in (bz2.compress(raw), lzma.compress(raw), pa.compress(raw, "zstd", asbytes=True)):
        (tmp_path / "t.csv").write_bytes(data)
        is_read(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_bytes(b"PK\x03\x04" + raw)
    with pytest.raises(InputError, match="ZIP archive"):
        read_trace(tmp_path / "t.csv")
    usage = pa.array([{"prompt_tokens": p, "completion_tokens": o} for _, p, o in ROWS])
    pq.write_table(pa.table({"created_at": pa.array([day(a) for a in AT]), "usage": usage}), tmp_path / "t.parquet")
    is_read(tmp_path / "t.parquet")


@pytest.mark.parametrize(("text", "words"), [
    (json.dumps({"data": [{"start_time": 1714521600 + 3600 * h, "results": [
        {"input_tokens": 100000, "output_tokens": 20000, "num_model_requests": 50}]} for h in range(3)]}),
     "num_model_requests: got 50.*one request a row"),
    (table(OURS, lambda a, p, o: (day(a).strftime("%m/%d/%Y %H:%M:%S"), p, o)), "may be of January or of May"),
    (table(OURS, lambda a, p, o: (day(a).strftime("%H:%M:%S"), p, o)), "a date and time such as"),
    (table(OURS, lambda a, p, o: (iso(a), p if a else "", o)), "--skip-bad leaves such rows out"),
    (lines(lambda a, p, o: {"timestamp": a, "input_length": p, "output_length": o}), "may be seconds"),
])  # fmt: skip
def test_traces_that_are_refused(text, words, tmp_path):
    (tmp_path / "t").write_text(text)
    with pytest.raises(InputError, match=words):
        read_trace(tmp_path / "t")


METRICS = {"time_to_first_token": 250.0, "inter_token_latency": 11.0, "request_latency": 3000.0,
           "input_sequence_length": 1000.0, "output_sequence_length": 251.0}  # fmt: skip
AIPERF = {name: {"unit": "tokens" if "length" in name else "ms", "avg": value} for name, value in METRICS.items()}
TRT = """= PYTORCH BACKEND
Model:			m
= REQUEST DETAILS
Number of concurrent requests:  9.0
Average Input Length (tokens):  1000.0000
Average Output Length (tokens): 251.0000
TP Size:                4
= PERFORMANCE OVERVIEW
Request Throughput (req/sec):                     3.0
Average request latency (ms):                     3,000.0
Average time-to-first-token [TTFT] (ms):          250.0
Average time-per-output-token [TPOT] (ms):        11.0
"""
EVALSCOPE = """| Key                               |  Value |
| Number of concurrency             |   9    |
| Average latency (s)               |   3.0  |
| Average time to first token (s)   |   0.25 |
| Average time per output token (s) |  0.011 |
| Average input tokens per request  |  1000  |
| Average output tokens per request |   251  |
"""
SGLANG = """============ Serving Benchmark Result ============
Successful requests:                     10
Concurrency:                             9.00
Total input tokens:                      10000
Total generated tokens:                  2510
Mean E2E Latency (ms):                   3000.00
Mean TTFT (ms):                          250.00
==================================================
"""
RESULTS = {
    "rate.json": json.dumps(AIPERF | {"request_throughput": {"unit": "requests/sec", "avg": 3.0}}),
    "printed.txt": "┃ Metric ┃ avg ┃ p99 ┃\n" + "".join(
        f"│ {name.replace('_', ' ').title()} ({'tokens' if 'length' in name else 'ms'}) │ {v:,.2f} │ {v:,.2f} │\n"
        for name, v in METRICS.items()) + "│ Request Throughput (requests/sec) │ 3.00 │ N/A │\n",
    "trt.txt": TRT, "evalscope.txt": EVALSCOPE, "sglang.txt": SGLANG,
    "own.json": json.dumps([{"conc": 9, "isl": 1000, "osl": 251, "ttft_ms": 250.0, "tpot_ms": 11.0}]),
    "own.csv": "Users,ISL,OSL,TTFT (ms),Mean TPOT (ms)\n9,1000,251,250,11\n",
    "sweep.csv": "max_concurrency,completed,total_input_tokens,total_output_tokens,mean_ttft_ms,mean_tpot_ms\n"
                 "9,10,10000,2510,250,11\n",
    "served.jsonl": json.dumps({
        "server_info": {"tp_size": 4}, "concurrency": 9.0, "completed": 10, "total_input_tokens": 10000,
        "total_output_tokens": 2510, "total_output_tokens_retokenized": 2510, "mean_ttft_ms": 250.0,
        "mean_tpot_ms": 11.0}) + "\n",
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_results(name, tmp_path):
    (tmp_path / name).write_text(RESULTS[name])
    kind, rows = importers.read([tmp_path / name], fixed={"tp": "1"})
    (row,) = rows.frame.to_dict("records")
    stated = name in ("trt.txt", "served.jsonl")  # the user's value never replaces one that the file states
    wanted = {"concurrency": 9.0, "output_tokens": 251.0, "ttft_s": 0.25, "tpot_s": 0.011, "tp": 4.0 if stated else 1.0}
    assert kind == "served" and {k: row[k] for k in wanted} == pytest.approx(wanted)


def test_a_table_of_mlperf_is_refused_by_name(tmp_path):
    (tmp_path / "m.csv").write_text("ID,Submitter,# of Accelerators,Scenario,Result\n1,x,8,Server,98443\n")
    with pytest.raises(InputError, match="MLPerf"):
        importers.read([tmp_path / "m.csv"])


def test_gpus_of_price_files_are_never_taken_for_their_likes(tmp_path):
    named = {
        "L40": None, "H20": None, "H200 NVL": None, "A100 PCIe": None, "A100": None, "H800": None, "RTX A6000": None,
        "A100-SXM4-40GB": "a100-40g", "A100 80GB": "a100-80g", "H100 PCIe": "h100-pcie", "H100 NVL": "h100-nvl",
        "L40S 48GB": "l40s", "A10": "a10", "A10G": "a10g", "GH200 480GB": "gh200-96g", "B300": "b300",
    }  # fmt: skip
    rows = [f"box{i},fra1,{gpu},1,1.5" for i, gpu in enumerate(named)]
    (tmp_path / "p.csv").write_text("\n".join(["machine,region,gpu,gpu_count,on_demand_usd_per_hour", *rows]))
    machines, unknown = machines_of(tmp_path / "p.csv")
    found = {m.machine: m.gpu for m in machines} | dict.fromkeys(unknown)
    assert found == {f"box{i}": key for i, key in enumerate(named.values())}


HEAD = "machine,region,gpu,gpu_count,on_demand_usd_per_hour\n"
FOCUS = (
    "BillingCurrency,ChargeCategory,ConsumedQuantity,ConsumedUnit,EffectiveCost,PricingCategory,PricingQuantity,"
    "PricingUnit,RegionId,SkuId,SkuPriceDetails\n"
    'USD,Usage,1,Hours,55.04,Standard,1,1 Hour,us-east-1,JRTCKXETXF,"{""InstanceType"": ""p5.48xlarge""}"\n'
)
AWS = (
    '"FormatVersion","v1.0"\n"OfferCode","AmazonEC2"\n"SKU","TermType","Unit","PricePerUnit","Currency",'
    '"LeaseContractLength","PurchaseOption","OfferingClass","Instance Type","Tenancy","Operating System",'
    '"Region Code"\n'
    '"A","OnDemand","Hrs","55.04","USD","","","","p5.48xlarge","Shared","Linux","us-east-1"\n'
    '"A","Reserved","Hrs","31.46","USD","1yr","No Upfront","standard","p5.48xlarge","Shared","Linux","us-east-1"\n'
    '"A","OnDemand","Hrs","63.87","USD","","","","p5.48xlarge","Shared","Windows","us-east-1"\n'
)


@pytest.mark.parametrize(("text", "prices"), [
    (FOCUS, {"on_demand": 55.04}), (AWS, {"on_demand": 55.04, "reserved_1y": 31.46}),
    (AWS.split("\n", 2)[2], {"on_demand": 55.04, "reserved_1y": 31.46}),  # without the lines before its header
    (HEAD + 'p5.48xlarge,us-east-1,H100,8,"$1,055.04"\n', {"on_demand": 1055.04}),
    (HEAD + "p5.48xlarge,us-east-1,H100,8,$55.0400 hourly\n", {"on_demand": 55.04}),
    ((HEAD + "p5.48xlarge,us-east-1,H100,8,55.04\n").replace(",", ";").replace(".04", ",04"), {"on_demand": 55.04}),
])  # fmt: skip
def test_prices(text, prices, tmp_path):
    (tmp_path / "p.csv").write_text(text)
    (machine,), _ = machines_of(tmp_path / "p.csv")
    assert (machine.machine, machine.gpu, machine.gpu_count) == ("p5.48xlarge", "h100", 8)
    assert machine.prices.model_dump(exclude_none=True) == prices


@pytest.mark.parametrize(("text", "words"), [
    (FOCUS.replace("USD", "EUR"), "got 'EUR'"),
    (HEAD.replace("usd", "eur") + "a,b,H100,8,20\n", "prices in USD"),
    (HEAD.replace("gpu_count", "on_demand_usd_per_hour") + "a,b,H100,20,30\n", "every column once"),
    (HEAD + 'a,b,H100,8,"2,05,0"\n', "a number > 0"),
    (HEAD + 'a,b,H100,8,"3,672"\n', "got '3,672'; expected a number > 0, with a decimal point"),
    (HEAD + "a,b,A10,0.17,1\n", "a GPU of the catalogue"),
])  # fmt: skip
def test_prices_that_are_refused(text, words, tmp_path):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        machines_of(tmp_path / "p.csv")


@pytest.mark.parametrize(("unit", "text", "wanted"), [
    ("s", "250 μs", 250e-6), ("s", "1m", 60.0), (units.REQUESTS, "1,000/min", 1000 / 60),
    (units.REQUESTS, "2M requests per day", 2e6 / 86400), (units.REQUESTS, "3 million/day", 3e6 / 86400),
    (units.REQUESTS, "120 messages/min", 2.0), (units.REQUESTS, "30 Hz", 30.0), ("GiB", "80 gb", 80e9 / 2**30),
    ("GiB", "80Gi", 80.0), ("USD/h", "$2.50/hr", 2.5), ("USD/h", "USD 2.5/h", 2.5), ("USD/h", "$1,234.5/h", 1234.5),
    ("Gbps", "400 gbps", 400.0), ("FLOP/s", "989 TFLOPS", 989e12), ("", "95 %", 0.95),
])  # fmt: skip
def test_quantities(unit, text, wanted):
    assert units.convert(text, unit) == pytest.approx(wanted)


@pytest.mark.parametrize(("unit", "text"), [
    ("s", "1,000 s"), ("s", "0,8 s"), ("USD/h", "€2.5/h"), ("USD/h", "$1800"), (units.REQUESTS, "1,500/min"),
    (units.REQUESTS, "1000 users"), ("s", "20 tokens/s"),
])  # fmt: skip
def test_quantities_with_two_readings_are_refused(unit, text):
    with pytest.raises(Exception, match=r"number|quantity|rate"):
        units.convert(text, unit)


def test_a_problem_with_stages_is_written_out_whatever_its_lengths(tmp_path):
    (tmp_path / "t.csv").write_text(AZURE)
    data = {
        "formulation": "cost_efficiency", "schema": 1, "name": "c", "model": "llama-3.1-8b", "serving": "continuous",
        "workload": {"batch": 8, "lengths": {"trace": "t.csv"}}, "slo": {"kind": "batch", "tps": 500},
        "pool": {"catalog": "aws", "include": ["g6e.*"]}, "deployment": {"stages": ["prefill", "decode"]},
    }  # fmt: skip
    (workload,) = as_fleet(data, tmp_path)["workloads"]
    tokens = sum(b["requests_per_s"] * (b["input_tokens"] + b["output_tokens"]) for b in workload["buckets"])
    assert tokens == pytest.approx(500)
    with pytest.raises(InputError, match=r"workload\.batch"):
        as_fleet(data | {"workload": {"input_tokens": 100, "output_tokens": 10}})
    with pytest.raises(InputError, match="serving: continuous"):
        as_fleet(data | {"serving": "static", "workload": {"batch": 8, "input_tokens": 100, "output_tokens": 10}})
