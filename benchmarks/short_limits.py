"""`exact` at short limits: never less than the best heuristic's plan, nor nothing where one exists.

    python benchmarks/short_limits.py                   shipped instances at 1, 2 and 5 s, then the large ones
    python benchmarks/short_limits.py shipped           instances of every formulation that take longer than that
    python benchmarks/short_limits.py orchestration     50 LLMs on 1,008 GPUs of three types, 60 s
    python benchmarks/short_limits.py reserved          40 regions x 8,760 hours, forwarded work 1.2 times local, two
                                                        sizes, on-demand beside reservations, 100 s
    python benchmarks/short_limits.py spot              12 workloads of 40 buckets on AWS's list, at most half on spot,
                                                        60 s

Every method gets the limit; a row is `exact`'s plan and bound beside the best plan of all the others. Exit status 1
where `exact` has less. What each of these once was: `no_solution_found` where a heuristic had a plan.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import optmodels
from optmodels import formulation
from optmodels.loading import load

INSTANCES = Path(__file__).parents[1] / "instances"
SHIPPED = (
    "cost_efficiency/present_day/llama-3.1-70b-chat-aws.yaml", "fleet/agent-stages.yaml", "fleet/aws-continuous.yaml",
    "fleet/deepseek-r1-stages.yaml", "fleet/gcp-three-regions.yaml", "orchestration/continuous-chat-and-code.yaml",
    "orchestration/maaso-trace-4-gpus-64.yaml", "orchestration/maaso-trace-6.yaml",
    "orchestration/scale-100000-gpus.yaml", "reserved_capacity/gcp-prices-1y-3y.yaml",
    "reserved_capacity/year-40-gcp.yaml",
)  # fmt: skip
SLIGHT = 1e-5  # the tolerance of feasibility of a mixed-integer plan, relative
LLMS = [
    "opt-6.7b", "opt-13b", "opt-30b", "llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3-8b", "llama-3-70b",
    "llama-3.1-8b", "llama-3.1-70b", "llama-3.2-3b", "qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b", "qwen2.5-72b",
    "qwen3-8b", "qwen3-32b", "qwen3-30b-a3b", "mistral-7b", "mixtral-8x7b", "deepseek-moe-16b", "deepseek-v2-lite",
    "llama-3.3-70b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-14b", "qwen3.5-27b", "qwen3.5-35b-a3b",
    "gemma-3-4b", "gemma-3-12b", "gemma-3-27b", "mistral-small-24b", "gpt-oss-20b", "gpt-oss-120b",
]  # fmt: skip


def orchestration() -> dict[str, Any]:
    """50 models on 42 servers of eight GPUs of each of three types; some LLMs stand there twice, as fine-tunes do."""
    names = [*LLMS, *(f"{m}-tuned" for m in LLMS)][:50]
    share = 1.0 / np.arange(1, 51)
    return {
        "formulation": "orchestration", "schema": 1, "name": "50-llms-1008-gpus",
        "cluster": {"servers": [{"server": g, "count": 42, "gpu": g, "gpus": 8} for g in ("h100", "a100-80g", "l40s")]},
        "models": [{"model": n, "architecture": n.removesuffix("-tuned")} for n in names],
        "latency": {"model": "roofline"}, "candidates": {"tp": [1, 2, 4, 8], "batch": [4, 16, 64]},
        "requests": {"trace": {"generated": {
            "maaso": 4, "requests": 40_000, "requests_per_s": 400.0, "cv": 2,
            "models": dict(zip(names, (share / share.sum()).tolist(), strict=True)), "seed": 1}}},
        "objective": {"alpha": 1.0}, "bins": {"lengths": 2, "slo": 3},
    }  # fmt: skip


def reserved() -> dict[str, Any]:
    """The benchmark's regions and year, with forwarded work that costs more than local work."""
    from reserved_capacity import RESERVED, instance

    document = instance(40, 8760, [*RESERVED, "on_demand"])
    document["services"][0]["kappa"] = 1.2
    return document


def spot() -> dict[str, Any]:
    """More than 40,000 pairs of bucket and operating point, with a limit that links a workload's buckets."""
    rng = np.random.default_rng(0)
    buckets = [
        [{"input_tokens": int(i), "output_tokens": int(o), "requests_per_s": float(r)} for i, o, r in
         zip(rng.integers(64, 4096, 40), rng.integers(16, 512, 40), rng.uniform(0.05, 0.5, 40), strict=True)]
        for _ in range(12)
    ]  # fmt: skip
    return {
        "formulation": "fleet", "schema": 1, "name": "spot-12x40", "latency": {"model": "roofline"},
        "workloads": [{"name": f"w{k}", "model": "llama-3.1-8b", "buckets": b, "spot_share_max": 0.5,
                       "slo": {"ttft_s": 5.0, "tbt_s": 0.2}} for k, b in enumerate(buckets)],
        "pool": {"catalog": "aws"}, "serving": "continuous",
    }  # fmt: skip


def compared(name: str, problem: Any, limit_s: float) -> bool:
    """Print `exact` beside the best of the other methods; whether it has no less."""
    sign = -1.0 if formulation.get(problem.formulation).goal_of(problem)[0] == "min" else 1.0
    best, of = -math.inf, "none has a plan"
    clock, busy = time.perf_counter(), time.process_time()
    exact = optmodels.solve(problem, time_limit=limit_s, out_of_sample=False)
    seconds, cpu = time.perf_counter() - clock, time.process_time() - busy
    mine = -math.inf if exact.objective is None else sign * exact.objective
    for method in formulation.get(problem.formulation).methods:
        if method == "exact":
            continue
        found = optmodels.solve(problem, method, time_limit=limit_s, out_of_sample=False)
        if found.objective is not None and sign * found.objective > best:
            best, of = sign * found.objective, method
    kept = mine >= best - SLIGHT * abs(best)
    gap = "" if exact.gap is None else f"{100 * exact.gap:.2f} %"
    cells = (name, f"{limit_s:g}", exact.status, f"{exact.objective or math.nan:.6g}", gap, f"{sign * best:.6g}", of,
             f"{seconds:.1f}", f"{cpu:.1f}", "yes" if kept else "NO")  # fmt: skip
    print("| " + " | ".join(cells) + " |", flush=True)
    return kept


def main() -> int:
    """Run the cases named on the command line, or all."""
    large = {"orchestration": (orchestration, 60.0), "reserved": (reserved, 100.0), "spot": (spot, 60.0)}
    print(
        "| instance | limit s | exact | objective | gap | best other | by | seconds | CPU s | no less |\n|"
        + "---|" * 10
    )
    kept = True
    for case in sys.argv[1:] or ["shipped", *large]:
        if case == "shipped":
            for name in SHIPPED:
                for limit_s in (1.0, 2.0, 5.0):
                    kept &= compared(name, load(INSTANCES / name), limit_s)
        else:
            made, limit_s = large[case]
            kept &= compared(case, load(made()), limit_s)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
