"""The compiled simulator against the slow reference, in the same run on the same machine.

    python benchmarks/simulator.py [--requests 1000000]

64 instances with 8 to 32 slots of two models, gamma arrivals with CV 2 at 90 % of capacity, lengths and deadlines as in
MaaSO's trace 4. The rate is over the whole call of `simulate`, validation included; the reference serves the first
requests of the same trace, and both must agree on them.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from optmodels.problem.traces import Generated
from optmodels.simulation.cluster import POLICIES, SPEEDS, Cluster, Requests, Shares, simulate
from optmodels.simulation.reference import simulate_slowly
from optmodels.simulation.summary import summary
from optmodels.traces.generated import generate

INSTANCES, MODELS, SLOW = 64, 2, 300


def case(n):
    """Requests, cluster and planned shares."""
    slots = np.array([8, 16, 32, 16])[np.arange(INSTANCES) // MODELS % 4]
    w = np.arange(1, slots.max() + 1)
    rates = 60.0 * (1 - 0.15 * np.log(0.5 + w)) * np.ones((INSTANCES, 1))
    cluster = Cluster.of(slots, rates, model=np.arange(INSTANCES) % MODELS, prefill_s_per_token=1e-4)
    capacity = float((cluster.full_tokens_per_s * slots).sum())
    per_s = 0.9 * capacity / 600.0  # requests of 600 tokens on average
    models = {f"model {k}": 1.0 for k in range(MODELS)}
    trace = generate(
        Generated(requests_per_s=per_s, cv=2, requests=n, maaso=4, prompt_tokens=(100, 900), models=models)
    )
    deadline = trace.slo_factor * trace.output_tokens / rates[0, 0] * 2 + 0.2
    requests = Requests.of(
        trace.arrival_s, trace.prompt_tokens, trace.output_tokens, model=trace.labels["model"].codes,
        deadline_s=deadline, klass=trace.labels["class"].codes,
    )  # fmt: skip
    shares = Shares(np.arange(INSTANCES) // MODELS % 4, np.array([[[0.2, 0.3, 0.2, 0.3], [0.1, 0.2, 0.5, 0.2]]]))
    return requests, cluster, shares


def main():
    """Print one row for every policy and speed."""
    options = argparse.ArgumentParser()
    options.add_argument("--requests", type=int, default=1_000_000)
    n = options.parse_args().requests
    requests, cluster, shares = case(n)
    few = requests.take(np.arange(min(SLOW, n)))
    clock = time.perf_counter()
    simulate(few, cluster)
    print(f"{n:,} requests, {INSTANCES} instances; first call {time.perf_counter() - clock:.1f} s (compiled or loaded)")
    print("| policy | speed, queue | attainment | refused | compiled, requests/s | of CPU | reference | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for policy in POLICIES:
        for speed, queue in (*((s, "fifo") for s in SPEEDS), ("load", "deadline")):
            clock, cpu = time.perf_counter(), time.process_time()
            seen = simulate(requests, cluster, policy, speed=speed, queue=queue, shares=shares)
            fast, cpu = n / (time.perf_counter() - clock), n / (time.process_time() - cpu)
            clock = time.perf_counter()
            slow = simulate_slowly(few, cluster, policy, speed=speed, queue=queue, shares=shares)
            rate = len(few) / (time.perf_counter() - clock)
            assert (slow.instance == seen.instance[: len(few)]).all()
            figures = summary(seen, requests, cluster)
            print(f"| {policy} | {speed}, {queue} | {figures.attainment:.3f} | {figures.refused:.3f} | "
                  f"{fast:,.0f} | {cpu:,.0f} | {rate:,.0f} | {fast / rate:,.0f}× |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
