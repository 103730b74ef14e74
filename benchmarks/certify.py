"""Certified fleets: do their promises hold in other simulations, and what do they cost?

    python benchmarks/certify.py [--count 40] [--seed 0] [--limit 60] [--stretches 1.2 1.7 2.5 4]
                                 [--compare-every 1] [--apart]

Random fleets on AWS (one to four workloads of four models, limits on means and percentiles) are planned with
``certify: replay``. Every certified plan is simulated anew with another seed, each promise at the confidence that the
plan states; and replayed on 100,000 drawn requests. Its cost is set beside that of the model's own plan without
certification, the bound, and, for one in --compare-every, the cheapest certified plan found with other stretches of the
limits. With --apart prefill and decode have machines of their own.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

import optmodels
from formulations.fleet.certify import simulations
from formulations.fleet.plan import FleetPlan
from formulations.fleet.replay import replay
from optmodels.simulation.options import ReplayOptions
from optmodels.simulation.promises import judge

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "qwen2.5-32b")
MACHINES = ["g5.xlarge", "g5.12xlarge", "g6e.xlarge", "g6e.12xlarge", "p4d.24xlarge", "p5.4xlarge", "p5.48xlarge"]
OTHER_SEED = 1_000_003


def drawn(seed):
    """A random fleet."""
    rng = np.random.default_rng(seed)

    def between(low, high):
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    def limit(low, high):
        seconds, quantile = round(between(low, high), 3), rng.choice([0.0, 0.5, 0.9, 0.95, 0.99])
        return {"at_most": seconds, "percentile": float(quantile)} if quantile else seconds

    workloads = []
    for i in range(int(rng.integers(1, 5))):
        model = MODELS[int(rng.choice(4, p=[0.55, 0.15, 0.1, 0.2]))]
        chances = (("ttft_s", 0.85, 0.4, 8.0), ("tpot_s", 0.7, 0.05, 0.2), ("deadline_s", 0.3, 40.0, 200.0))
        slo = {name: limit(low, high) for name, chance, low, high in chances if rng.random() < chance}
        buckets = {
            (int(between(100, 8000)), int(between(20, 600))): between(0.2, 45.0) / (1 if i == 0 else 4)
            for _ in range(int(rng.integers(1, 5)))
        }
        workloads.append({
            "name": f"w{i}", "model": model, "slo": slo, "prefix_hit_share": float(rng.choice([0.0, 0.0, 0.4])),
            "buckets": [{"input_tokens": a, "output_tokens": b, "requests_per_s": round(r, 3)}
                        for (a, b), r in buckets.items()],
        })  # fmt: skip
    return {
        "formulation": "fleet", "schema": 1, "name": f"random-{seed}", "workloads": workloads,
        "pool": {"catalog": "aws", "include": MACHINES}, "markets": {"main": ["on_demand"], "ao": ["on_demand"]},
        "serving": "continuous", "latency": {"model": "default"}, "certify": "replay",
        "engine": {"max_num_seqs": int(rng.choice([64, 256])), "max_num_batched_tokens": int(rng.choice([2048, 8192]))},
    }  # fmt: skip


def again(problem, result):
    """Promises, how many break beyond the interval in a simulation with another seed, and the replay's worst share."""
    case, plan = problem.resolve(), FleetPlan.model_validate(result.plan)
    total = len(plan.certification.promises)
    broken = 0
    error = (1 - plan.certification.confidence) / max(total, 1)
    for x in simulations(case, plan.periods[0], plan.stretch):
        broken += sum(v.found == "broken" for v in judge(x.stations, x.streams, x.promises, error, [OTHER_SEED]))
    worst = 0.0
    seen = replay(problem, result.plan, None, ReplayOptions(policy="random", seed=OTHER_SEED))
    for row in seen["demands"]:
        for name in ("ttft", "tpot", "deadline"):
            if f"{name}_replayed_s" in row:
                worst = max(worst, row[f"{name}_replayed_s"] / row[f"{name}_limit_s"])
    return total, broken, worst


def main(arguments):
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stretches", type=float, nargs="*", default=[1.2, 1.7, 2.5, 4.0])
    parser.add_argument("--compare-every", type=int, default=1, help="plans of which one is made with other stretches")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of each solve")
    a = parser.parse_args(arguments)
    promised = broken = certified = over = made = none = rounds = 0
    above, saved, gaps, spent, seed = [], [], [], [], a.seed
    while made < a.count:
        data, seed = drawn(seed) | ({"deployment": {"stages": ["prefill", "decode"]}} if a.apart else {}), seed + 1
        problem = optmodels.load(data)
        began = time.process_time()
        result = optmodels.solve(problem, time_limit=a.limit)
        took = time.process_time() - began
        if result.plan is None:
            none += 1
            print(f"{data['name']}: {result.status}, {took:.1f} s of CPU", flush=True)
            continue
        made += 1
        spent.append(took)
        found = result.plan["certification"]
        if found["status"] != "certified":
            print(f"{data['name']}: {found['status']}, {result.log['reason']}", flush=True)
            continue
        certified += 1
        rounds += len(found["rounds"])
        total, bad, worst = again(problem, result)
        promised, broken, over = promised + total, broken + bad, over + (worst > 1)
        alone = next((r["objective"] for r in found["rounds"] if r["stretch"] == 1), None)
        known = "not sought"
        if certified % a.compare_every == 0:
            tries = (optmodels.solve(data | {"certification": {"stretch": x}}, time_limit=a.limit) for x in a.stretches)
            kept = (x for x in tries if x.plan is not None and x.plan["certification"]["status"] == "certified")
            least = min([result.objective, *(x.objective for x in kept)])
            above.append(result.objective / least - 1)
            known = f"{least:.2f}"
        saved += [] if alone is None else [1 - result.objective / alone]
        gaps.append(result.gap or 0.0)
        print(
            f"{data['name']}: {total} promises, {bad} broken with another seed, replay at worst {worst:.2f} of a limit;"
            f" {len(found['rounds'])} rounds, {result.objective:.2f} USD/h (by the model alone"
            f" {'no plan' if alone is None else f'{alone:.2f}'}, bound {result.bound:.2f}, cheapest known"
            f" {known}), {took:.1f} s of CPU", flush=True,
        )  # fmt: skip
    print(f"\n{certified} of {made} plans certified ({none} fleets without a plan); {broken} of {promised} promises"
          f" broken beyond their interval with another seed; {over} plans with a replay above a limit")  # fmt: skip
    if above:
        print(f"above the cheapest certified plan known ({len(above)} compared): mean {np.mean(above):.2%}, worst"
              f" {np.max(above):.2%}")  # fmt: skip
    print(f"below the model's own plan: mean {np.mean(saved):.1%}, most {np.max(saved):.1%};"
          f" gap to the bound: median {np.median(gaps):.1%}; {rounds} rounds, CPU mean {np.mean(spent):.1f} s, most"
          f" {np.max(spent):.1f} s")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
