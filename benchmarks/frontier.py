"""What slack costs: uniform margin, margin by workload, slow machine types and scenarios on the same draws.

Nine workloads of three models on AWS machines, p5 stock 20. Plans are made for 100 draws of demand and slow machine
types and judged on others. Costs are at equal unserved shares, over the cost of the plan without slack.

python benchmarks/frontier.py --draws 1000
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import optmodels
from formulations.fleet.stress import UNSERVED

MODELS = ("llama-3.1-8b", "llama-3.3-70b", "qwen3-32b")
SHAPES = ((256, 128), (1024, 256), (4096, 256))  # prompt and answer tokens
SLO = {"ttft_s": {"at_most": 2.0, "percentile": 0.95}, "tpot_s": {"at_most": 0.1, "percentile": 0.95}}
VOLATILITIES = {"differ": (0.30, 0.05), "equal": (0.18, 0.18)}  # standard deviations of even and odd workloads


def instance(volatility: str, seed: int, scale: float) -> dict[str, Any]:
    """The fleet of a seed."""
    rng, sd = np.random.default_rng(seed), VOLATILITIES[volatility]
    workloads = [
        {
            "name": f"w{k}", "model": MODELS[k % 3], "precision": {"weights": "fp8"}, "slo": SLO,
            "buckets": [{"input_tokens": SHAPES[k // 3][0], "output_tokens": SHAPES[k // 3][1],
                         "requests_per_s": round(scale * rng.uniform(5, 40) / (1 + k // 3), 2)}],
        }
        for k in range(9)
    ]  # fmt: skip
    return {
        "formulation": "fleet", "schema": 1, "name": f"nine-{volatility}", "serving": "continuous",
        "workloads": workloads, "pool": {"catalog": "aws"}, "stock": [{"machine": "p5.48xlarge", "at_most": 20}],
        "scenarios": {"draws": 100, "unserved": 0.02, "slow_probability": 0.25,
                      "demand_sd": {f"w{k}": sd[k % 2] for k in range(9)}},
    }  # fmt: skip


def main() -> None:
    """One table for each kind of volatility and seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--scale", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=20.0)
    a = parser.parse_args()
    for volatility in VOLATILITIES:
        for seed in range(a.seeds):
            began = time.process_time()
            asked = instance(volatility, seed, a.scale)
            plain = {k: v for k, v in asked.items() if k != "scenarios"}
            plan = optmodels.solve(plain, time_limit=a.time_limit, gap=1e-3).document()
            found = optmodels.stress(plan, draws=a.draws, problem=asked, seed=seed, time_limit=a.time_limit)
            base = found["frontier"][0]
            print(
                f"\nVolatilities {volatility}, seed {seed}: plan without slack {base['usd_per_hour']:.2f} USD/h, "
                f"{base['unserved']:.1%} unserved; {time.process_time() - began:.0f} CPU seconds"
            )
            print(
                "| unserved | " + " | ".join(f"{100 * s:g} %" for s in UNSERVED) + " |\n|---|" + "---|" * len(UNSERVED)
            )
            kinds = dict.fromkeys(r["kind"] for r in found["frontier"][1:])
            for kind in kinds:
                costs = [found["cost_at_unserved"][str(s)][kind] for s in UNSERVED]
                cells = ["never" if c is None else f"{c / base['usd_per_hour']:.3f}" for c in costs]
                print(f"| {kind} | " + " | ".join(cells) + " |")
            for r in found["frontier"]:
                print(f"    {r['kind']} {r['setting']}: {r['usd_per_hour']:.2f} USD/h, {r['unserved']:.3%}", flush=True)


if __name__ == "__main__":
    main()
