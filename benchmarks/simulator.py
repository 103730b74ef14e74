"""The compiled simulator against the slow reference, in the same run on the same machine.

    python benchmarks/simulator.py [--requests 1000000]
    python benchmarks/simulator.py --rows 10000000      a long trace read, simulated, solved and replayed

64 instances with 8 to 32 slots of two models, gamma arrivals with CV 2 at 90 % of capacity, lengths and deadlines as in
MaaSO's trace 4. The rate is over the whole call of `simulate`, validation included; the reference serves the first
requests of the same trace, and both must agree on them.

With ``--rows`` every step is a process of its own, for its peak memory: files are written (Azure's CSV, the same
gzipped, our columns as CSV and Parquet), each is read by `read_trace` and compared with what was written, beside pandas
reading the same columns without a check; 24 GPUs are planned for the trace, and the plan replayed on it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import yaml

from optmodels.simulation.cluster import POLICIES, SPEEDS, Cluster, Requests, Shares, simulate
from optmodels.simulation.reference import simulate_slowly
from optmodels.simulation.summary import summary
from optmodels.traces.generated import generate
from optmodels.traces.spec import Generated

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


FILES = ("azure.csv", "azure.csv.gz", "own.csv", "own.parquet")
INSTANCE = Path(__file__).parents[1] / "instances" / "orchestration" / "maaso-trace-4-requests-40000.yaml"


def long_trace(n):
    """Arrivals, prompts and outputs of a long trace: 100 requests/s, microseconds."""
    rng = np.random.default_rng(0)
    return np.cumsum(rng.integers(1, 20_000, n)), rng.integers(1, 4000, n), rng.integers(1, 800, n)


def write(folder, n):
    """The trace in all formats, and an instance that uses it."""
    import pandas as pd

    arrival, prompt, output = long_trace(n)
    times = np.datetime64("2023-11-16T18:15:46.680590") + arrival.astype("timedelta64[us]")
    columns = {"ContextTokens": prompt, "GeneratedTokens": output}
    pd.DataFrame({"TIMESTAMP": np.datetime_as_string(times)} | columns).to_csv(folder / FILES[0], index=False)
    with (folder / FILES[0]).open("rb") as plain, gzip.open(folder / FILES[1], "wb", 1) as packed:
        shutil.copyfileobj(plain, packed)
    own = pd.DataFrame({"arrival_s": arrival / 1e6, "prompt_tokens": prompt, "output_tokens": output})
    own.to_csv(folder / FILES[2], index=False)
    own.to_parquet(folder / FILES[3])
    case = yaml.safe_load(INSTANCE.read_text(encoding="utf-8"))
    case["models"], case["latency"]["decay"] = case["models"][:1], case["latency"]["decay"][:4]
    case["requests"], case["slo"] = {"model": "llama-3.2-3b", "trace": {"file": FILES[3]}}, {"factor": 1.5}
    (folder / "case.yaml").write_text(yaml.safe_dump(case), encoding="utf-8")


def step(name, folder, n):
    """One step of `rows`: how many requests it saw, seconds of CPU, and what else is to be said."""
    import pandas as pd

    import optmodels
    from optmodels.traces.readers import read_trace

    said = ""
    clock = time.process_time()
    if name == "write":
        write(folder, n)
        seen = n
    elif name.startswith("pandas "):
        path = folder / name.split()[1]
        seen = len(pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path))
    elif name.startswith("read "):
        trace = read_trace(folder / name.split()[1])
        seen, seconds = len(trace), time.process_time() - clock
        for found, written in zip(
            (trace.arrival_s, trace.prompt_tokens, trace.output_tokens), long_trace(n), strict=True
        ):
            assert np.allclose(found - found[0], (written - written[0]) / (1e6 if written[-1] > n else 1), atol=1e-6)
        clock = time.process_time() - seconds
    elif name == "solve":
        result = optmodels.solve(folder / "case.yaml", gap=1e-3, time_limit=60, out=folder)
        seen = round(result.plan["prediction"]["requests"])
        said = f"{result.status}, attainment {result.plan['prediction']['attainment']:.4f}"
        (folder / "plan.json").write_text(json.dumps({"plan": result.plan}), encoding="utf-8")
    else:
        found = optmodels.replay(folder / "plan.json", problem=folder / "case.yaml", policy=name.split()[1])["report"]
        seen = found["requests"]
        said = f"attainment {found['policies'][name.split()[1]]['attainment']:.4f}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"| {name} | {seen:,} | {time.process_time() - clock:.1f} | {peak:,.0f} | {said} |", flush=True)
    assert seen == n


def rows(n):
    """Print one row for every step."""
    print("| step | requests | CPU s | peak MiB | |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("write", *(f"{who} {f}" for f in FILES for who in ("pandas", "read")), "solve",
                     "replay shortest_queue", "replay planned_shares"):  # fmt: skip
            subprocess.run([sys.executable, __file__, "--rows", str(n), "--step", name, folder], check=True)


def main():
    """What was asked for."""
    options = argparse.ArgumentParser()
    options.add_argument("--requests", type=int, default=1_000_000)
    options.add_argument("--rows", type=int, help="of a long trace, in place of everything else")
    options.add_argument("--step", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.step:
        step(given.step[0], Path(given.step[1]), given.rows)
    elif given.rows:
        rows(given.rows)
    else:
        policies(given.requests)


def policies(n):
    """Print one row for every policy and speed."""
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
