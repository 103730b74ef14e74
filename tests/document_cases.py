"""Solve documents of every formulation that together fill every field of its plan's schema."""

from __future__ import annotations

from conftest import tiny_problem
from fleet_cases import APART, CONTINUOUS, DAY, MEASURED, SCARCE
from orchestration_cases import two_models
from reserved import machine, service, two_regions


def _cost(family, **changes):
    document = tiny_problem(
        workload={"batch": 8, "input_tokens": 512, "output_tokens": 64}, budget_usd_per_hour=20.0,
        strategies={"families": [family], "replicas": [1, 2], "multi_pass": [2], "parallel": [2], "shared": [2]},
        slo={"kind": "real_time", "tps": 50.0, "ttft_s": 5.0, "tpot_s": 0.5},
    )  # fmt: skip
    for each in document["pool"]["machines"]:
        each["net_gbps"] = 100
    return document | changes


POINTS = {"operating_points": [
    {"name": "one", "family": "high_end", "main": "big", "tps": 120.0},
    {"name": "two", "family": "ao", "main": "mid", "ao": "small", "alpha": 0.7, "tps": 110.0},
]}  # fmt: skip


def _reserved(**changes):
    """Three futures' costs in one: growth, scenarios, purchases by the hour, egress, demand given up at a price."""
    document = two_regions(
        terms=["reserved_3y", "on_demand", "spot"],
        services=[
            service(request_kb=5.0, answer_kb=80.0, unserved_usd_per_request=0.0004)[0],
            service(service="mail", demand={"kind": "inline", "unit": "requests_per_s",
                                            "by_region": {"west": [1.0, 3.0], "east": [2.0, 0.5]}})[0],
        ],
        machines=machine(
            prices={"on_demand": 3.0, "reserved_3y": 1.0, "spot": 1.2}, spot_lost_share=0.1, spot_available=2,
            serves={s: {"requests_per_s": 1.0, "prefill_s": 0.1} for s in ("chat", "mail")},
        ),
        growth={"quarters": 2, "factor_per_quarter": 1.3},
        uncertainty={"scenarios": [{"scenario": "a", "probability": 0.6},
                                   {"scenario": "b", "probability": 0.4, "factor": 1.4}]},
    )  # fmt: skip
    document["network"]["egress"] = {"usd_per_gb": {"west": 0.05, "east": 0.09}}
    return document | changes


def _days():
    """Two days, of which others are drawn: what the plan is worth on them is in the report."""
    by_region = {"west": [10.0] * 24 + [2.0] * 24, "east": [2.0] * 24 + [10.0] * 24}
    demand = {"kind": "inline", "unit": "requests_per_s", "by_region": by_region}
    return two_regions(services=service(demand=demand))


def _on_engines(model="llama-3.1-8b", gpus=1, ttft_s=0.8, **workload):
    """What a machine serves is a level of an engine."""
    document = two_regions(
        terms=["on_demand"], serving="continuous", engine={"chunk_tokens": 512}, latency={"model": "roofline"},
        machines=[{"machine": "box", "gpu": "l40s", "gpu_count": gpus, "prices": {"on_demand": 3.0}}],
    )  # fmt: skip
    document["services"] = [document["services"][0] | {
        "slo": {"ttft_s": {"at_most": ttft_s, "percentile": 0.9}, "tpot_s": 0.1, "queue_s": 0.1,
                "itl_s": {"at_most": 0.5, "percentile": 0.9}},
        "workload": {"model": model, "input_tokens": 512, "output_tokens": 128} | workload,
    }]  # fmt: skip
    return document


def _listed(workload):
    """With its model in a list."""
    rest = {k: v for k, v in workload.items() if k != "model"}
    return rest | {"models": [{"name": "k", "model": workload["model"], "quality": 0.9}]}


BATCHING = CONTINUOUS | {
    "workloads": CONTINUOUS["workloads"][:1], "pool": CONTINUOUS["pool"] | {"include": ["g6e.xlarge"]},
    "markets": {"main": ["on_demand"]}, "engine": CONTINUOUS["engine"] | {"chunk_tokens": 2048},
    "latency": {"model": "roofline"},  # the coefficients of engines, written out, would be thousands of numbers
}  # fmt: skip
MET = {"hits": [{"engines": 9, "kv_tokens": 0.0, "share": 0.1}], "engines": 9, "routing": "session"}
# The model finds nothing with these limits; with longer ones a plan that a first simulation refutes and cuts mend.
CERTIFIED = BATCHING | {
    "workloads": [_listed(BATCHING["workloads"][0]) | {"requests_per_s": 24.0, "slo": {
        "ttft_s": {"at_most": 0.12, "percentile": 0.9}, "tpot_s": {"at_most": 0.03, "percentile": 0.9}}}],
    "certify": "replay", "certification": {"stretch": 3.0},
}  # fmt: skip
# One deployment does both stages, and of those apart only such as have one degree exchange caches.
STAGES = APART | {
    "latency": {"model": "roofline"}, "workloads": [_listed(APART["workloads"][0]) | {
        "quality_at_least": 0.9,
        "slo": APART["workloads"][0]["slo"] | {"tpot_s": {"at_most": 0.02, "percentile": 0.95}}}],
    "deployment": APART["deployment"] | {"link": {"tensor_parallel": "equal"}},
}  # fmt: skip
IN_FLIGHT = _cost("high_end") | {
    "model": "llama-3.1-8b", "workload": {"batch": 20, "input_tokens": 1500, "output_tokens": 20},
    "slo": {"kind": "real_time", "tps": 50.0, "ttft_s": {"at_most": 3.0, "percentile": 0.99}, "tpot_s": 0.2},
    "pool": {"machines": [
        {"machine": "one", "gpu": "l40s", "gpu_count": 1, "vram_gib": 48, "prices": {"on_demand": 2.0}}]},
    "serving": "continuous", "engine": {"chunk_tokens": 512}, "latency": {"model": "roofline"},
    "strategies": {"families": ["high_end"]},
}  # fmt: skip
DEALT = IN_FLIGHT | {  # over attention ranks, whose GPUs exchange over PCIe
    "slo": {"kind": "real_time", "tps": 50.0, "ttft_s": {"at_most": 5.0, "percentile": 0.99}, "tpot_s": 0.4},
    "model": "deepseek-v2-lite", "strategies": {"families": ["high_end"], "attention_ranks": [4]},
    "pool": {"machines": [
        {"machine": "quad", "gpu": "l40s", "gpu_count": 4, "vram_gib": 192, "prices": {"on_demand": 3.0}}]},
}  # fmt: skip
RUNNING = [{"model": "mistral-7b", "tp": 2, "batch": 4, "placement": {"box-2": [1, 3]}}]
CHANGES = {"running": RUNNING, "score_per_start": 0.01, "score_per_stop": 0.05}
SHORT = [{"model": "mistral-7b", "attainment_at_least": 1.0}, {"model": "llama-3.2-3b"}]
ENGINES = {
    "serving": "continuous", "latency": {"model": "roofline"}, "models": [{"model": "llama-3.2-3b"}],
    "engine": {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "chunk_tokens": 512, "waits": [0.5, 4.0]},
    "cluster": {"servers": [{"server": "s", "gpu": "h100", "gpus": 1}]}, "candidates": {"tp": [1], "batch": [4]},
    "requests": {"rows": {
        "arrival_s": [0.0, 0.2], "prompt_tokens": [700, 90], "output_tokens": [40, 90], "slo_factor": [2.0, 3.0]}},
    "bins": {"seconds": 1.0},
}  # fmt: skip
DEALT_HERE = {
    "models": [{"model": "deepseek-v2-lite", "t_slice_s": 0.06}],
    "cluster": {"servers": [{"server": "s", "gpu": "l40s", "gpus": 4}]},
    "candidates": {"tp": [1], "attention_ranks": [4], "batch": [2]},
}  # fmt: skip
# Ten long prompts at once, of which the linear model has more in time than a replay: cuts in both passes.
BURST = ENGINES | {
    "requests": {"rows": {
        "arrival_s": [0.0] * 10, "prompt_tokens": [2000] * 10, "output_tokens": [60] * 10, "slo_factor": [2.5] * 10}},
    "engine": {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "quantile": 0.5, "waits": 1.0},
    "bins": {"seconds": 2.0, "lengths": 1, "slo": 1},
    "certify": "replay", "certification": {"quantile": 0.5, "waits": 8.0, "rounds": 4},
}  # fmt: skip
ONE_BOX = {"servers": [{"server": "box", "count": 1, "gpu": "v100-16g-pcie", "gpus": 4}]}

# By formulation and name: the instance, and the method.
APART_HERE = {
    "deployment": {"stages": ["prefill", "decode"], "link": {"net_gbps": 100}}, "candidates": {"tp": [1], "batch": [1]},
    "cluster": {"servers": [{"server": "s", "gpu": "h100", "gpus": 2}]},
}  # fmt: skip
RANKS = {
    "formulation": "fleet", "schema": 1, "name": "ranks", "serving": "continuous",
    "workloads": [{
        "name": "chat", "model": "deepseek-r1", "precision": {"weights": "fp8_block"},
        "slo": {"tpot_s": 0.1, "itl_s": {"at_most": 1.0, "percentile": 0.9}},
        "buckets": [{"input_tokens": 2000, "output_tokens": 1000, "requests_per_s": 20.0}],
    }],
    "pool": {"catalog": "aws", "include": ["p5en.48xlarge"]}, "markets": {"main": ["on_demand"]},
    "strategies": {"attention_ranks": [1, 2, 4, 8]},
}  # fmt: skip
DRAWN = {
    "formulation": "fleet", "schema": 1, "name": "drawn",
    "workloads": [{"name": "chat", "buckets": [{"name": "all", "requests_per_s": 60}]}],
    "points": [{"name": "a", "machine": "A", "usd_per_hour": 3, "requests_per_s": {"chat/all": 10}}],
    "scenarios": {"draws": 8, "demand_sd": 0.4, "slow_probability": 0.3, "usd_per_1000_unserved": 0.5},
}  # fmt: skip
CASES = {
    "cost_efficiency": {
        "offloading": (_cost("kvo_ram"), "exact"),
        "a shared machine for attention": (_cost("ao_shared"), "exact"),
        "passes": (_cost("multi_pass", slo={"kind": "batch", "tps": 50.0}), "enumerate"),
        "measured": (tiny_problem(latency=POINTS), "greedy"),
        "continuous batching": (IN_FLIGHT, "exact"),
        "attention ranks": (DEALT, "exact"),
    },
    "fleet": {
        "periods, prices, limits": (DAY, "exact"),
        "shadow prices": (SCARCE, "exact"),
        "measured": (MEASURED, "exact"),
        "continuous batching": (BATCHING | {"prefix_cache": MET}, "exact"),
        "certified": (CERTIFIED, "exact"),
        "stages apart": (STAGES, "exact"),
        "attention ranks": (RANKS, "exact"),
        "drawn": (DRAWN, "exact"),
    },
    "orchestration": {
        "shortfalls": (
            two_models(60, 1, cluster=ONE_BOX, models=SHORT, slo={"shortfall_penalty": 0.1}), "greedy_dp_exchange",
        ),
        "sub-clusters": (two_models(24, 3), "maaso_star"),
        "changes": (two_models(24, 2, change=CHANGES), "config_tree"),
        "continuous batching": (two_models(1, **ENGINES), "exact"),
        "certified": (two_models(1, **BURST), "exact"),
        "stages apart": (two_models(1, **ENGINES | APART_HERE), "exact"),
        "attention ranks": (two_models(1, **ENGINES | DEALT_HERE), "exact"),
    },
    "reserved_capacity": {
        "two regions": (two_regions(), "exact"),
        "futures": (_reserved(), "full"),
        "by themselves": (two_regions(), "region_local"),
        "other days": (_days(), "exact"),
        "continuous batching": (_on_engines(), "exact"),
        "an operating point for each distance": (_on_engines(ttft_s=0.3), "exact"),
        "attention ranks": (_on_engines("deepseek-v2-lite", gpus=4, attention_ranks=[4]), "exact"),
    },
}  # fmt: skip
