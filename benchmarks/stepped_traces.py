"""Random traces whose rate steps up 2 to 10 times: each is planned as `optmodels plan --trace` does, then replayed.

    python benchmarks/stepped_traces.py --traces 200 --out stepped.csv

Every trace has its own lengths, step times and heights. Some have bursts within a step (Gamma arrivals). Each plan is
replayed from its document. `worst_miss` is the largest number of points by which the share of a bucket's requests
within a limit stays below the promise, under any policy. A row is written when it is found, and a run that was stopped
goes on where it ended.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import optmodels
from optmodels import question
from optmodels.loading import load

COLUMNS = ("trace", "requests", "steps", "highest", "status", "certified", "machines", "worst_miss", "cpu_s")
MODELS = ("llama-3.1-8b", "qwen3-32b", "llama-3.3-70b")
MOST_REQUESTS = 6000


def draw(seed: int) -> dict[str, Any]:
    """A random trace: arrival, prompt and answer of each request, with its steps and what is asked of the plan."""
    rng = np.random.default_rng([36, seed])
    model = MODELS[int(rng.integers(len(MODELS)))]
    base = float(rng.uniform(0.3, 3.0)) * {"llama-3.1-8b": 3.0, "qwen3-32b": 1.0, "llama-3.3-70b": 1.0}[model]
    steps = int(rng.integers(2, 6))
    heights = np.ones(steps)
    high = rng.choice(steps, int(rng.integers(1, steps)), replace=False)
    heights[high] = rng.uniform(2.0, 10.0, len(high))
    length = rng.uniform(0.5, 1.5, steps)
    length *= MOST_REQUESTS * rng.uniform(0.3, 1.0) / (base * heights @ length)
    burst = float(rng.choice([1.0, 1.0, 2.0, 3.0]))  # coefficient of variation between arrivals
    at, start = [], 0.0
    for height, seconds in zip(heights, length, strict=True):
        n = int(2 * base * height * seconds + 50)
        times = np.cumsum(rng.gamma(1 / burst**2, burst**2 / (base * height), n))
        at.append(start + times[times < seconds])
        start += seconds
    arrival = np.concatenate(at)
    kinds = rng.integers(1, 4)  # chat, retrieval, long answers, mixed in shares that change with every step
    means = rng.uniform([200, 30], [4000, 400], (kinds, 2))
    weight = rng.dirichlet(np.ones(kinds), steps)
    step = np.searchsorted(np.cumsum(length), arrival, side="right").clip(0, steps - 1)
    kind = np.array([rng.choice(kinds, p=weight[s]) for s in step], int)
    spread = np.exp(rng.normal(0.0, 0.5, (len(arrival), 2)))
    tokens = np.maximum(1, means[kind] * spread).astype(int)
    tokens[:, 0] = np.minimum(tokens[:, 0], 16_000)
    tokens[:, 1] = np.minimum(tokens[:, 1], 2_000)
    limits = {
        "ttft": (float(rng.choice([1.0, 2.0, 4.0])), float(rng.choice([0.9, 0.95, 0.99]))),
        "tpot": [0.05, (0.06, 0.95), 0.1][int(rng.integers(3))],
    }
    return {"arrival": arrival, "tokens": tokens, "heights": heights, "model": model, "limits": limits}


CHEAP = {"stretch": 1.4, "rounds": 4}  # of the certification, so that hundreds of traces take minutes; then the default


def plan(seed: int, folder: Path) -> tuple[optmodels.Result, dict[str, Any]]:
    """The plan of a random trace, and the trace."""
    drawn = draw(seed)
    path = folder / f"{seed}.csv"
    with path.open("w", newline="") as handle:
        rows = csv.writer(handle)
        rows.writerow(("arrival_s", "prompt_tokens", "output_tokens"))
        rows.writerows((f"{a:.4f}", *t) for a, t in zip(drawn["arrival"], drawn["tokens"].tolist(), strict=True))
    asked = question.Question(
        model=drawn["model"], trace=path, ttft=drawn["limits"]["ttft"], tpot=drawn["limits"]["tpot"],
        gpus=["h100", "l40s"],
    )  # fmt: skip
    instance = question.instance(asked)
    result = optmodels.solve(load(instance | {"certification": CHEAP}, folder=folder), out_of_sample=False)
    if result.plan is None or result.plan["certification"]["status"] != "certified":
        result = optmodels.solve(load(instance, folder=folder), out_of_sample=False)
    return result, drawn


def worst_miss(result: optmodels.Result) -> float:
    """Points by which the plan's own replay misses a promised share at most; below 0: none is missed."""
    rows = optmodels.replay(result)["report"]["demands"]
    names = ("ttft", "tpot", "deadline")
    return max(
        100.0 * (row[f"{x}_percentile"] - row[f"{x}_within"])
        for row in rows for x in names if row.get(f"{x}_percentile") is not None
    )  # fmt: skip


def measure(seed: int, folder: Path) -> dict[str, Any]:
    """A row of the table."""
    clock = time.process_time()
    result, drawn = plan(seed, folder)
    row: dict[str, Any] = {
        "trace": seed, "requests": len(drawn["arrival"]), "steps": len(drawn["heights"]),
        "highest": round(float(drawn["heights"].max()), 1), "status": result.status,
    }  # fmt: skip
    if result.plan is None:
        return row | {"certified": "", "machines": "", "worst_miss": "", "cpu_s": round(time.process_time() - clock, 2)}
    machines = sum(m["count"] * d["count"] for d in result.plan["periods"][0]["deployments"] for m in d["machines"])
    return row | {
        "certified": result.plan["certification"]["status"], "machines": machines,
        "worst_miss": round(worst_miss(result), 3), "cpu_s": round(time.process_time() - clock, 2),
    }  # fmt: skip


def main() -> None:
    """Measure what is not in the table yet, and say the worst."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("stepped_traces.csv"))
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    if given.out.exists():
        with given.out.open() as handle:
            found = list(csv.DictReader(handle))
    done = {int(row["trace"]) for row in found}
    with TemporaryDirectory() as folder, given.out.open("a", newline="") as handle:
        table = csv.DictWriter(handle, COLUMNS)
        if not done:
            table.writeheader()
        for seed in range(given.traces):
            if seed not in done:
                found.append(measure(seed, Path(folder)))
                table.writerow(found[-1])
                handle.flush()
    planned = [row for row in found if row["worst_miss"] != ""]
    misses = [float(row["worst_miss"]) for row in planned]
    certified = sum(row["certified"] == "certified" for row in planned)
    sys.stdout.write(
        f"{len(found)} traces: {len(planned)} planned, {certified} certified; worst miss {max(misses):.2f} points,"
        f" of certified plans"
        f" {max(m for m, row in zip(misses, planned, strict=True) if row['certified'] == 'certified'):.2f};"
        f" {sum(float(row['cpu_s']) for row in found):.0f} CPU s\n"
    )


if __name__ == "__main__":
    main()
