"""Closed loops of engines of several attention ranks: their formula beside the step simulator.

    python benchmarks/rank_loops.py [--count 60] [--seed 1]

Random loops of DeepSeek-R1 on 8 H200, Qwen3 235B on 8 H100 and DeepSeek-V2-Lite on 4 L40S of 2 to 8 ranks, with the
default model's step costs; users begin one after another (`engine.loop.loop`). Errors are predicted over simulated,
less 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from optmodels import catalog
from optmodels.engine.continuous import EngineLimits
from optmodels.engine.loop import loop
from optmodels.latency.resolve import deployment, resolve, source_of
from optmodels.simulation.continuous import Arrivals, Engine
from optmodels.simulation.continuous_controlled import simulate_controlled

MODELS = (("deepseek-r1", "fp8_block", "h200", 8), ("qwen3-235b-a22b", "fp8", "h100", 8),
          ("deepseek-v2-lite", "fp16", "l40s", 4))  # fmt: skip
LIMITS = EngineLimits(max_num_seqs=512, max_num_batched_tokens=8192)
KV_TOKENS = 10**8  # of a rank: slots and tokens are what binds
LEAST_SEEN = 3000  # requests


def engine(source, model, prompt, ranks):
    """Costs of an engine of so many ranks on all GPUs of a node."""
    llm, weights, gpu, gpus = model
    d = deployment(source, catalog.llms()[llm], llm, catalog.gpus()[gpu], gpu, weights, "fp16", gpus // ranks, ranks)
    return resolve(source, d, float(prompt))[0]


def compared(rng, source):
    """Predicted over simulated of one loop, less 1: TTFT, TPOT and E2E; and which loop."""
    model = MODELS[rng.integers(len(MODELS))]
    ranks = int(rng.choice([2, 4, 8][: 3 if model[3] == 8 else 2], 2)[0])
    prompt, output = (int(10 ** rng.uniform(*x)) for x in ((2.0, 4.1), (1.5, 3.0)))
    users = int(10 ** rng.uniform(0.3, 2.6))
    total = users * 3 + max(4 * users, LEAST_SEEN)
    prompts, outputs = np.full(total, prompt), np.full(total, output)
    outputs[:users] = np.maximum(1, output * np.arange(1, users + 1) // users)
    costs = engine(source, model, prompt, ranks)
    one = Engine(costs, KV_TOKENS, LIMITS.max_num_seqs, LIMITS.max_num_batched_tokens, ranks=ranks)
    look, said = (
        slice(2 * users, total - users),
        f"{model[0]}, {prompt} + {output} tokens, {users} users, ranks {ranks}",
    )
    seen = simulate_controlled(Arrivals.of(np.zeros(total), prompts, outputs), one, users=users).served
    found = loop(costs, 1.0, LIMITS, prompt, output, users, ranks)
    true = [float(np.nanmean(x[look])) for x in (seen.ttft_s, seen.tpot_s, seen.e2e_s)]
    errors = [a / b - 1 for a, b in zip((found.ttft_s, found.tpot_s, found.e2e_s), true, strict=True)]
    return errors, said


def main(arguments):
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", action="store_true", help="print every loop")
    a = parser.parse_args(arguments)
    source = source_of("default", "vllm", Path, "latency")
    titles = "latency", "loops", "mean absolute error", "nine in ten within", "largest", "bias"
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    rng, errors = np.random.default_rng(a.seed), []
    for _ in range(a.count):
        found, said = compared(rng, source)
        errors.append(found)
        if a.each:
            print(f"{said}: " + ", ".join(f"{100 * x:+.1f} %" for x in found), flush=True)
    for latency, column in zip(("TTFT", "TPOT", "E2E"), 100 * np.array(errors).T, strict=True):
        size = np.abs(column)
        print(f"| {latency} | {len(column)} | {size.mean():.1f} % | {np.quantile(size, 0.9):.1f} % |"
              f" {size.max():.1f} % | {column.mean():+.1f} % |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
