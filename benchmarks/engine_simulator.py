"""The step simulator: how fast it is, and how near to 300 real requests to vLLM.

    python benchmarks/engine_simulator.py [--data FOLDER]

Speed is steps and requests per second of processor time on one core. The replay reads public requests and the step
measurements of the same hardware (see docs/simulate.md); without them only the speed is printed. Its step model is
``calibrate --form steps`` on measured kernels, with nothing fitted to the requests.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from optmodels.latency.fit import calibrate_measurements, read_measurements
from optmodels.latency.fit.steps import HOST_REQUEST_S, step_costs
from optmodels.latency.steps import StepCosts
from optmodels.simulation.continuous import Arrivals, Engine, simulate

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "latency"
STEPS = "mixed_batches/steps_RTXPRO6000_Llama-3.1-8B_tp1.csv.gz"
REQUESTS = "vllm_requests/rtxpro6000_llama-3.1-8b_vllm-0.19.csv"
COLUMNS = {
    "prefill_tokens": "prefill_chunk",
    "prefill_context_tokens": "kv_prefill",
    "decode_requests": "n_decode",
    "decode_context_tokens": "kv_decode",
    "latency_s": "step_ms:ms",
}
COSTS = StepCosts(
    fixed_s=0.01, prompt_token_s=5e-5, decode_request_s=1e-4, context_s=9e-8, mixed_context_s=1.6e-7
)  # fmt: skip
TARGETS = ("TTFT mean ≤ 5 %, p99 ≤ 10 %", "TPOT mean ≤ 3 %", "E2E ≤ 3 %")


def speed(requests):
    """Poisson arrivals at four fifths of what the instances can do; the loop is compiled before."""
    print("| dispatcher | instances | steps/s | requests/s | preempted |\n|---|---|---|---|---|")
    for dispatcher in ("round_robin", "shortest_queue", "least_kv", "earliest_finish"):
        for instances in (1, 64):
            rng = np.random.default_rng(0)
            arrivals = Arrivals.of(
                np.cumsum(rng.exponential(1.0 / (8.0 * instances), requests)),
                rng.integers(50, 1500, requests), rng.integers(20, 400, requests),
            )  # fmt: skip
            engines = [Engine(COSTS, 200_000)] * instances
            simulate(Arrivals.of(0.0, [1], [1]), engines, dispatcher)
            best = np.inf
            for _ in range(3):
                began = time.process_time()
                seen = simulate(arrivals, engines, dispatcher)
                best = min(best, time.process_time() - began)
            print(
                f"| {dispatcher} | {instances} | {seen.steps.sum() / best / 1e6:.1f} M | {requests / best / 1e6:.2f} M "
                f"| {seen.preemptions.sum():,} |",
                flush=True,
            )


def accuracy(data):
    """Mean and quantiles, simulated over measured − 1, as what is modelled is added up."""
    import pandas as pd

    m = read_measurements(data / STEPS, columns=COLUMNS)
    costs = step_costs(calibrate_measurements(m, "steps").model, 0.0)
    one_slope = replace(costs, context_s=costs.mixed_context_s)
    host = replace(costs, decode_request_s=costs.decode_request_s + HOST_REQUEST_S)
    r = pd.read_csv(data / REQUESTS)
    first, whole = (r.first_token_s - r.queued_s).to_numpy(), (r.last_token_s - r.queued_s).to_numpy()
    measured = {"TTFT": first, "TPOT": (whole - first) / (r.output_tokens.to_numpy() - 1), "E2E": whole}
    arrivals = Arrivals.of(r.queued_s, r.input_tokens, r.output_tokens)
    columns = [f"{name} {level}" for name in measured for level in ("mean", "p50", "p90", "p99")]
    print(f"\n| {len(r)} requests, simulated/measured − 1 | " + " | ".join(columns) + " |")
    print("|" + "---|" * (len(columns) + 1))
    for what, c, overlap in (
        ("one context slope", one_slope, False),
        ("two slopes", costs, False),
        ("+ steps chosen one ahead (overlap)", costs, True),
        (f"+ {HOST_REQUEST_S * 1e6:.0f} µs a running request (host)", host, True),
    ):
        seen = simulate(arrivals, [Engine(c, 500_000, 128, 2048, overlap=overlap)])
        row = []
        for values, found in zip(measured.values(), (seen.ttft_s, seen.tpot_s, seen.e2e_s), strict=True):
            row.append(found.mean() / values.mean() - 1)
            row += [np.quantile(found, q) / np.quantile(values, q) - 1 for q in (0.5, 0.9, 0.99)]
        print(f"| {what} | " + " | ".join(f"{x:+.1%}" for x in row) + " |", flush=True)
    print(f"\nTargets: {'; '.join(TARGETS)}.")


def main():
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--requests", type=int, default=500_000)
    arguments = parser.parse_args()
    speed(arguments.requests)
    if (arguments.data / REQUESTS).is_file():
        accuracy(arguments.data)


if __name__ == "__main__":
    main()
