"""Results of load generators, servers and predictors as their tools' documentation has them; what `measure` reads."""

from __future__ import annotations

import json

SERVE = {
    "date": "20260301-120000",
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-8B",
    "num_prompts": 100,
    "request_rate": "inf",
    "max_concurrency": 16,
    "duration": 50.0,
    "completed": 100,
    "total_input_tokens": 102400,
    "total_output_tokens": 25600,
    "request_throughput": 2.0,
    "mean_ttft_ms": 210.0,
    "median_ttft_ms": 200.0,
    "p99_ttft_ms": 410.0,
    "mean_tpot_ms": 11.5,
    "median_tpot_ms": 11.0,
    "p99_tpot_ms": 14.0,
    "mean_itl_ms": 11.4,
    "a_field_of_next_year": [1, 2],
}
SGLANG = {
    "backend": "sglang",
    "request_rate": 5.0,
    "max_concurrency": 64,
    "concurrency": 11.78,
    "completed": 1000,
    "total_input_tokens": 302000,
    "total_output_tokens": 196000,
    "total_output_tokens_retokenized": 195000,
    "request_throughput": 4.9,
    "mean_e2e_latency_ms": 2409.5,
    "mean_ttft_ms": 91.7,
    "mean_tpot_ms": 11.8,
    "p99_ttft_ms": 327.9,
}
LATENCY = {"avg_latency": 2.5, "latencies": [2.4, 2.5, 2.9], "percentiles": {"50": 2.5}}


def statistic(value, unit):
    return {"unit": unit, "avg": value, "p50": value, "p99": 2 * value, "min": value, "max": value, "std": 0.0}


AIPERF = {
    "time_to_first_token": statistic(250.0, "ms"),
    "inter_token_latency": statistic(9.0, "ms"),
    "input_sequence_length": statistic(550.0, "tokens"),
    "output_sequence_length": statistic(256.0, "tokens"),
    "request_throughput": {"unit": "requests/sec", "avg": 3.0},
    "input_config": {"loadgen": {"concurrency": 8}},
}
AIPERF_CSV = (
    "Metric,avg,min,max,p99,p90,p50\n"
    'Time To First Token (ms),"1,146.31",249.48,"3,485.23","3,457.97","3,215.06",640.07\n'
    "Inter Token Latency (ms),30.35,27.59,35.60,35.23,33.55,30.13\n"
    "Output Sequence Length (tokens),174.45,164.00,187.00,186.22,180.10,174.00\n"
    'Input Sequence Length (tokens),"3,000.05","2,999.00","3,001.00","3,001.00","3,000.00","3,000.00"\n'
    "\n"
    "Metric,Value\n"
    "Output Token Throughput (per sec),261.25\n"
)
LLMPERF = {
    "version": "2023-08-31",
    "model": "some/model",
    "num_concurrent_requests": 5,
    "mean_input_tokens": 256,
    "results_inter_token_latency_s_mean": 0.0119,
    "results_ttft_s_mean": 0.25,
    "results_ttft_s_quantiles_p99": 0.6,
    "results_end_to_end_latency_s_mean": 1.24,
    "results_number_input_tokens_mean": 260.0,
    "results_number_output_tokens_mean": 100.0,
    "results_number_input_tokens_min": "131",
}


def histogram(name, bounds, counts, total, model="m"):
    labels = f'engine="0",model_name="{model}"'
    lines = [f"# HELP {name} Some help.", f"# TYPE {name} histogram"]
    lines += [f'{name}_bucket{{{labels},le="{b}"}} {float(c)}' for b, c in zip(bounds, counts, strict=True)]
    return [*lines, f"{name}_count{{{labels}}} {float(counts[-1])}", f"{name}_sum{{{labels}}} {total}"]


PROMETHEUS = "\n".join(
    [
        'vllm:num_requests_running{engine="0",model_name="m"} 6.0',
        'python_gc_objects_collected_total{generation="0"} 12.0',
        *histogram("vllm:time_to_first_token_seconds", ("0.1", "0.5", "1.0", "+Inf"), (0, 50, 100, 100), 50.0),
        *histogram("vllm:inter_token_latency_seconds", ("0.01", "0.025", "+Inf"), (100, 900, 1000), 18.0),
        *histogram("vllm:request_prompt_tokens", ("1000.0", "+Inf"), (100, 100), 51200.0),
        *histogram("vllm:request_generation_tokens", ("200.0", "+Inf"), (100, 100), 12800.0),
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 100.0',
        "",
    ]
)
TABLE = "users,isl,osl,ttft_ms,tpot_ms\n1,128,64,40,9\n8,128,64,60,11\n32,128,64,150,14\n"


def spread(mean):
    """A distribution of GuideLLM's."""
    one = {"mean": mean, "median": mean, "count": 9, "percentiles": {"p50": mean, "p99": 2 * mean}}
    return {"successful": one, "total": one, "errored": {**one, "count": 0}}


GUIDELLM = {
    "metadata": {"version": 1},
    "args": {"model": "some/model", "target": "http://localhost:8000"},
    "benchmarks": [
        {
            "type_": "generative_benchmark",
            "config": {"strategy": strategy},
            "metrics": {
                "requests_per_second": spread(2.0),
                "request_concurrency": spread(7.5),
                "prompt_token_count": spread(1000.0),
                "output_token_count": spread(200.0),
                "time_to_first_token_ms": spread(150.0),
                "time_per_output_token_ms": spread(21.0),
                "inter_token_latency_ms": spread(20.0),
            },
        }
        for strategy in ({"type_": "concurrent", "streams": 8}, {"type_": "poisson", "rate": 2.0})
    ],
}


def summary(mean):
    return {"mean": mean, "min": 0.0, "max": 9.0, "median": mean, "p90": 2 * mean, "p99": 3 * mean}


STAGE = {
    "benchmark_time_seconds": 60.0,
    "load_summary": {"count": 120, "requested_rate": 2.0, "achieved_rate": 2.0},
    "successes": {
        "count": 120,
        "latency": {
            "request_latency": summary(4.0),
            "normalized_time_per_output_token": summary(0.02),
            "time_per_output_token": summary(0.0195),
            "time_to_first_token": summary(0.12),
            "inter_token_latency": summary(0.019),
        },
        "throughput": {"requests_per_sec": 2.0, "output_tokens_per_sec": 400.0},
        "prompt_tokens": {"total": 120000.0, "cached": 0.0, "uncached": 120000.0, **summary(1000.0)},
        "output_len": summary(200.0),
        "output_tokens": {"total": 24120.0, **summary(201.0)},
    },
    "failures": {"count": 0, "request_latency": None},
}
AIC = (
    "model,isl,osl,prefix,concurrency,request_rate,bs,global_bs,ttft,tpot,request_latency,seq/s,tokens/s,num_total_gpus,"
    "tp,pp,dp,moe_tp,moe_ep,parallel,gemm,kvcache,memory,backend,version,system,power_w\n"
    "Qwen/Qwen3-32B,3000,512,0,28,3.1,28,28,187.7,9.9,5247.0,5.3,2553.1,4,4,1,1,1,1,tp4pp1,fp8,fp8,60.1,trtllm,1.0.0,"
    "h200_sxm,0.0\n"
    "Qwen/Qwen3-32B,3000,512,0,14,3.1,14,14,275.0,9.8,5283.0,2.7,1225.0,2,2,1,1,1,1,tp2pp1,fp8,fp8,80.2,trtllm,1.0.0,"
    "h200_sxm,0.0\n"
)
INFERENCEX = (
    "Model,ISL,OSL,Hardware,Hardware Key,Framework,Precision,TP,Concurrency,Date,Throughput/Chip (tok/s),"
    "Mean TTFT (s),Median TTFT (s),P99 TTFT (s),Mean TPOT (s),Median TPOT (s),P99 TPOT (s),Disaggregated,"
    "Spec Decoding,EP,DP Attention\n"
    "gpt-oss 120B,1024,8192,H200,h200_vllm,vllm,fp4,2,16,2026-02-01,1200.5,,0.31,0.55,,0.0061,0.0072,false,none,1,"
    "false\n"
    "gpt-oss 120B,1024,8192,B200,b200_trt,trt,fp4,4,64,2026-02-01,3200.5,0.2,0.19,0.4,0.004,0.0039,0.006,true,none,4,"
    "true\n"
)
BLIS = {
    "instance_id": "cluster",
    "completed_requests": 100,
    "still_queued": 0,
    "total_input_tokens": 51200,
    "total_output_tokens": 12800,
    "vllm_estimated_duration_s": 20.0,
    "responses_per_sec": 5.0,
    "tokens_per_sec": 640.0,
    "e2e_mean_ms": 1600.0,
    "e2e_p99_ms": 2400.0,
    "ttft_mean_ms": 60.0,
    "ttft_p99_ms": 110.0,
    "itl_mean_ms": 12.0,
    "itl_p99_ms": 15.0,
}
COLUMNS = {
    "concurrency": "users", "input_tokens": "isl", "output_tokens": "osl",
    "ttft_s": "ttft_ms:ms", "tpot_s": "tpot_ms:ms",
}  # fmt: skip

TWO_LINES = json.dumps(SGLANG) + "\n" + json.dumps(SGLANG | {"concurrency": 40.0}) + "\n"
TP = {"tp": "1"}
BATCH = {"batch": "8", "input_tokens": "32", "output_tokens": "128"} | TP

# format → (file name, text, --set, --column, the first row wanted)
GOOD = {
    "vllm-serve": ("run.json", json.dumps(SERVE, indent=2), TP, {},
                   {"concurrency": 16, "input_tokens": 1024, "output_tokens": 256, "ttft_s": 0.21, "tpot_s": 0.0115,
                    "ttft_p50_s": 0.2, "ttft_p99_s": 0.41, "requests_per_s": 2.0}),
    "sglang-serving": ("runs.jsonl", TWO_LINES, TP, {},
                       {"concurrency": 11.78, "input_tokens": 302, "output_tokens": 196, "ttft_s": 0.0917,
                        "tpot_s": 0.0118}),
    "vllm-latency": ("lat.json", json.dumps(LATENCY, indent=4), BATCH, {},
                     {"batch": 8, "latency_s": 2.5, "repeats": 3}),
    "genai-perf": ("profile_export_aiperf.json", json.dumps(AIPERF, indent=2), TP, {},
                   {"concurrency": 8, "input_tokens": 550, "output_tokens": 256, "ttft_s": 0.25, "tpot_s": 0.009,
                    "ttft_p99_s": 0.5}),
    "llmperf": ("m_256_100_summary.json", json.dumps(LLMPERF, indent=4), TP, {},
                {"concurrency": 5, "input_tokens": 260, "output_tokens": 100, "ttft_s": 0.25, "tpot_s": 0.01}),
    "guidellm": ("benchmarks.json", json.dumps(GUIDELLM, indent=2), TP, {},
                 {"concurrency": 8, "input_tokens": 1000, "output_tokens": 200, "ttft_s": 0.15, "tpot_s": 0.02,
                  "ttft_p99_s": 0.3, "requests_per_s": 2.0}),
    "inference-perf": ("stage_0_lifecycle_metrics.json", json.dumps(STAGE, indent=2), TP, {},
                       {"concurrency": 8, "input_tokens": 1000, "output_tokens": 201, "ttft_s": 0.12,
                        "tpot_s": 0.0194, "ttft_p50_s": 0.12, "tpot_p99_s": 3 * 0.0195}),
    "aiconfigurator": ("pareto.csv", AIC, {}, {},
                       {"concurrency": 28, "input_tokens": 3000, "output_tokens": 512, "tp": 4, "ttft_s": 0.1877,
                        "tpot_s": 0.0099}),
    "inferencex": ("export.csv", INFERENCEX, {}, {},
                   {"concurrency": 16, "input_tokens": 1024, "output_tokens": 8192, "tp": 2, "ttft_s": 0.31,
                    "tpot_s": 0.0061, "ttft_p99_s": 0.55}),
    "blis": ("metrics.json", json.dumps(BLIS, indent=2), TP, {},
             {"concurrency": 8, "input_tokens": 512, "output_tokens": 128, "ttft_s": 0.06, "tpot_s": 0.012,
              "ttft_p99_s": 0.11}),
    "prometheus": ("metrics.prom", PROMETHEUS, TP, {},
                   {"concurrency": 6, "input_tokens": 512, "output_tokens": 128, "ttft_s": 0.5, "tpot_s": 0.018,
                    "ttft_p50_s": 0.5, "ttft_p90_s": 0.9, "tpot_p50_s": 0.0175}),
    "csv": ("mine.csv", TABLE, {"tp": "2"}, COLUMNS,
            {"concurrency": 1, "input_tokens": 128, "output_tokens": 64, "tp": 2, "ttft_s": 0.04, "tpot_s": 0.009}),
}  # fmt: skip
CSVS = ("csv", "aiconfigurator", "inferencex")
