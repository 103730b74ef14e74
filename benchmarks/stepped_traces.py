"""Random traces whose rate steps up 2 to 10 times: each is planned as `optmodels plan --trace` does, then replayed.

    python benchmarks/stepped_traces.py --traces 200 --first 50000 --out stepped.csv

Every trace has its own LLM, GPUs, engine, lengths and SLOs. Its rate has steps of a minute to two hours, spikes of
seconds, ramps and silences; some have bursts within a step (Gamma arrivals). Each plan is replayed from its document.
`worst_miss` is the largest number of points by which the share of a bucket's requests within a limit stays below the
promise, under any policy; of a limit on the mean, the per cent above it. `worst_drawn` is the same where other seeds
draw who gets a request at random. A plan promises unless its own document says that the replay refutes it. A row is
written when it is found, and a run that was stopped goes on where it ended.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import optmodels
from optmodels import question
from optmodels.arrays import Array
from optmodels.loading import load
from optmodels.plans.replayed import missed

COLUMNS = (
    "trace", "what", "requests", "hours", "highest", "status", "promises", "certified", "machines", "worst_miss",
    "worst_drawn", "cpu_s",
)  # fmt: skip
MODELS = {  # with GPUs that have room for it, and requests/s of a quiet minute
    "llama-3.1-8b": (("l4", "a10g", "l40s", "a100-80g", "h100"), 4.0),
    "qwen3-30b-a3b": (("l40s", "a100-80g", "h100", "h200"), 4.0),
    "gemma-3-12b": (("l40s", "a100-40g", "h100"), 2.0),
    "qwen3-32b": (("l40s", "a100-80g", "h100", "h200"), 1.5),
    "gpt-oss-120b": (("h100", "h200", "b200"), 2.0),
    "llama-3.3-70b": (("a100-80g", "h100", "h200", "b200"), 1.0),
    "qwen3-235b-a22b": (("h200", "b200"), 1.0),
}
FEWEST, MOST = 800, 8000  # requests of a trace
DRAWS = (1, 2, 3)  # seeds of who gets a request at random


def rates_in_time(rng: np.random.Generator) -> tuple[Array, Array]:
    """Moments in seconds and the rate at each over a quiet minute's, linear between: (K,) each."""
    at, height = [0.0], [1.0]

    def to(seconds: float, first: float, last: float) -> None:
        at.extend((at[-1], at[-1] + seconds))
        height.extend((first, last))

    up = lambda: float(rng.uniform(2.0, 10.0))  # noqa: E731
    longest = float(np.exp(rng.uniform(np.log(120.0), np.log(7200.0))))
    high = int(rng.integers(2))
    for k in range(int(rng.integers(2, 7))):
        seconds, level = float(np.exp(rng.uniform(np.log(60.0), np.log(longest)))), up() if k % 2 == high else 1.0
        kind = rng.choice(["even", "spike", "ramp", "silence"], p=[0.6, 0.15, 0.15, 0.1])
        if kind == "ramp":
            to(seconds, height[-1], level)
        elif kind == "silence":
            to(seconds, 0.0, 0.0)
        else:
            to(seconds, level, level)
        if kind == "spike":
            to(float(rng.uniform(2.0, 40.0)), level * up(), level * up())
    to(60.0, *[up() if max(height) < 2.0 else 1.0] * 2)
    return np.array(at), np.array(height)


def draw(seed: int) -> dict[str, Any]:
    """A random trace: arrival, prompt and answer of each request, its rate in time and what is asked of the plan."""
    rng = np.random.default_rng([37, seed])
    model = list(MODELS)[int(rng.integers(len(MODELS)))]
    gpus, base = MODELS[model]
    at, height = rates_in_time(rng)
    passed = np.concatenate([[0.0], np.cumsum(np.diff(at) * (height[1:] + height[:-1]) / 2)])  # quiet seconds
    base *= float(np.exp(rng.uniform(np.log(0.3), np.log(3.0))))
    base = float(np.clip(base, FEWEST / passed[-1], MOST / passed[-1]))
    burst = float(rng.choice([1.0, 1.0, 2.0, 3.0]))  # coefficient of variation between arrivals
    even = np.cumsum(rng.gamma(1 / burst**2, burst**2, int(2 * base * passed[-1] + 50))) / base
    fine = np.unique(np.concatenate([np.linspace(a, b, 200) for a, b in itertools.pairwise(at)]))
    rate = np.interp(fine, at, height)
    known = np.concatenate([[0.0], np.cumsum(np.diff(fine) * (rate[1:] + rate[:-1]) / 2)])
    arrival = np.interp(even[even < known[-1]], known, fine)
    kinds = rng.integers(1, 4)  # chat, retrieval, long answers, mixed in shares that change in time
    means = np.exp(rng.uniform(np.log([100, 10]), np.log([8000, 600]), (kinds, 2)))
    parts = 4
    weight = rng.dirichlet(np.ones(kinds), parts)
    part = (np.arange(len(arrival)) * parts // max(len(arrival), 1)).clip(0, parts - 1)
    kind = np.array([rng.choice(kinds, p=weight[s]) for s in part], int)
    tokens = np.maximum(1, means[kind] * np.exp(rng.normal(0.0, 0.5, (len(arrival), 2)))).astype(int)
    tokens = np.minimum(tokens, [16_000, 2_000])
    share = lambda: float(rng.choice([0.9, 0.95, 0.99]))  # noqa: E731
    each_token = float(rng.choice([0.04, 0.06, 0.1]))
    answer = float(np.quantile(tokens[:, 1], 0.95)) if len(tokens) else 1.0
    possible = {
        "ttft": (float(rng.choice([1.0, 2.0, 4.0])), share()),
        "tpot": (each_token, share()) if rng.random() < 0.5 else each_token,
        "itl": (2.0 * each_token, share()),
        "e2e": (4.0 + answer * each_token, share()) if rng.random() < 0.7 else 4.0 + answer * each_token,
    }
    names = rng.permutation(list(possible))[: int(rng.integers(1, 4))]
    return {
        "arrival": arrival, "tokens": tokens, "heights": height, "model": model,
        "gpus": sorted(rng.permutation(list(gpus))[: int(rng.integers(1, 3))].tolist()),
        "engine": str(rng.choice(["vllm", "sglang", "trtllm"], p=[0.6, 0.2, 0.2])),
        "limits": {name: possible[name] for name in sorted(names)},
    }  # fmt: skip


LIMIT_S = 60.0
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
        model=drawn["model"], trace=path, gpus=drawn["gpus"], engine=drawn["engine"], **drawn["limits"]
    )
    instance = question.instance(asked)
    how: dict[str, Any] = {"out_of_sample": False, "time_limit": LIMIT_S}
    result = optmodels.solve(load(instance | {"certification": CHEAP}, folder=folder), **how)
    if result.plan is None or result.plan["certification"]["status"] != "certified":
        result = optmodels.solve(load(instance, folder=folder), **how)
    return result, drawn


def worst_miss(result: optmodels.Result, seed: int = 0) -> float:
    """Points by which the plan's own replay misses an SLO at most; below 0: none is missed."""
    rows = optmodels.replay(result, seed=seed)["report"]["demands"]
    names = ("ttft", "tpot", "itl", "deadline")
    return max(
        100.0 * (row[f"{x}_percentile"] - row[f"{x}_within"] if row[f"{x}_percentile"] is not None
                 else row.get(f"{x}_replayed_s", 0.0) / row[f"{x}_limit_s"] - 1.0)
        for row in rows for x in names if f"{x}_within" in row
    )  # fmt: skip


def measure(seed: int, folder: Path) -> dict[str, Any]:
    """A row of the table."""
    clock = time.process_time()
    result, drawn = plan(seed, folder)
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {
        "trace": seed, "requests": len(drawn["arrival"]), "hours": round(drawn["arrival"][-1] / 3600, 2),
        "what": f"{drawn['model']} {'+'.join(drawn['gpus'])} {drawn['engine']} {'+'.join(drawn['limits'])}",
        "highest": round(float(drawn["heights"].max()), 1), "status": result.status,
    }  # fmt: skip
    if result.plan is not None:
        row |= {
            "promises": "no" if missed(result.report) else "yes", "machines": gpus_of(result),
            "certified": result.plan["certification"]["status"], "worst_miss": round(worst_miss(result), 3),
            "worst_drawn": round(max(worst_miss(result, s) for s in DRAWS), 3),
        }  # fmt: skip
    return row | {"cpu_s": round(time.process_time() - clock, 2)}


def gpus_of(result: optmodels.Result) -> int:
    """GPUs of a plan."""
    lines = result.plan["periods"][0]["deployments"] if result.plan else []
    return sum(m["count"] * m["gpus_per_machine"] * d["count"] for d in lines for m in d["machines"])


def main() -> None:
    """Measure what is not in the table yet, and say the worst."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
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
        for seed in range(given.first, given.first + given.traces):
            if seed not in done:
                found.append(measure(seed, Path(folder)))
                table.writerow(found[-1])
                handle.flush()
    promised = [row for row in found if row["promises"] == "yes"]
    kinds = Counter(f"{row['status']}{' but refuted by its replay' * (row['promises'] == 'no')}" for row in found)
    worst = {x: max((float(row[x]) for row in promised), default=0.0) for x in ("worst_miss", "worst_drawn")}
    sys.stdout.write(
        f"{len(found)} traces: {len(promised)} plans promise; {', '.join(f'{n} {k}' for k, n in kinds.items())};"
        f" worst miss {worst['worst_miss']:.2f} points, at other draws {worst['worst_drawn']:.2f};"
        f" {sum(float(row['cpu_s']) for row in found):.0f} CPU s\n"
    )


if __name__ == "__main__":
    main()
