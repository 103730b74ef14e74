"""Orchestration on engines: attainment predicted and replayed on traces, of the exact method and of every heuristic.

    python benchmarks/attainment.py run FOLDER LOG [--parts first|second|both] [--traces NAME…] [--engines NAME…]
                                                   [--methods NAME…] [--seconds 25]
    python benchmarks/attainment.py table LOG [--engine NAME]

FOLDER holds the public traces `AzureLLMInferenceTrace_code.csv`, `AzureLLMInferenceTrace_conv.csv` (Azure 2023) and
`mooncake_synthetic.jsonl[.gz]`; MaaSO's six are generated. `run` solves what LOG (a JSON document a line) does not have
yet, so a run that was stopped goes on. Every trace has two parts that share no request: settings are chosen on the
first and judged on the second. `replayed` is with the dispatcher that the plan names, which sees no request before it
comes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import optmodels
from formulations.orchestration.methods import METHODS
from optmodels.loading import load

SHIPPED = Path(__file__).parents[1] / "instances" / "orchestration"
GAP = 1e-3
HEURISTICS = ("greedy_dp", "greedy_dp_exchange", "maaso_star", "lp_rounding", "alpaserve", "selective_replication")
ENGINES: dict[str, dict[str, Any] | None] = {
    "default": None,
    "half": {"waits": 0.5, "bursts": "none"},
    "half-two": {"waits": [0.5, 2.0], "bursts": "none"},
    "half-trace": {"waits": 0.5, "bursts": "trace"},
    "one-trace": {"waits": 1.0, "bursts": "trace"},
    "two-trace": {"waits": 2.0, "bursts": "trace"},
    "four-trace": {"waits": 4.0, "bursts": "trace"},
    "half-two-trace": {"waits": [0.5, 2.0], "bursts": "trace"},
    "one-four": {"waits": [1.0, 4.0], "bursts": "none"},
}


@dataclass(frozen=True)
class Source:
    """A trace file: deadlines, how many times as fast it comes, seconds of each part, and GPUs to plan it for."""

    file: str
    slo_factor: float
    rate_factor: float
    part_s: float
    gpus: tuple[int, ...]


FILES = {
    "code": Source("AzureLLMInferenceTrace_code.csv", 10, 8, 1700, (2, 4, 6, 8)),
    "conversation": Source("AzureLLMInferenceTrace_conv.csv", 3, 6, 1100, (2, 3, 4)),
    "mooncake": Source("mooncake_synthetic.jsonl", 30, 4, 511, (16, 24, 32)),
    "mooncake-urgent": Source("mooncake_synthetic.jsonl", 6, 4, 511, (16, 24)),
    "mooncake-unshared": Source("mooncake_unshared.jsonl", 30, 4, 511, (16, 24, 32)),
}
UNSHARED = "mooncake-unshared"  # the same requests without the blocks of their prompts: nothing is found in a cache
MAASO_GPUS = (6, 8, 12)
MAASO_SEED = {"first": 1, "second": 2}
BATCHES = {"tp": [1, 2, 4], "batch": [1, 2, 4, 8, 16, 32, 64, 128]}


def documents(name: str, part: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Instances of one part of a trace, by the number of GPUs."""
    engines = {
        "serving": "continuous", "latency": {"model": "default"}, "objective": {"alpha": 1.0}, "candidates": BATCHES,
    }  # fmt: skip
    if name in FILES:
        s = FILES[name]
        skip = 0.0 if part == "first" else s.part_s
        trace = {"file": s.file, "rate_factor": s.rate_factor, "skip_s": skip, "first_s": s.part_s}
        sizes, document = s.gpus, {
            "formulation": "orchestration", "schema": 1, "models": [{"model": "llama-3-8b"}],
            "slo": {"factor": s.slo_factor}, "requests": {"model": "llama-3-8b", "trace": trace},
        }  # fmt: skip
    else:
        sizes = MAASO_GPUS
        document = yaml.safe_load((SHIPPED / f"{name.replace('maaso-', 'maaso-trace-')}.yaml").read_text("utf-8"))
        document["requests"]["trace"]["generated"] |= {
            "requests": 5000, "requests_per_s": 26, "seed": MAASO_SEED[part],
        }  # fmt: skip
    for gpus in sizes:
        whole, rest = divmod(gpus, 8)
        servers = [{"server": "s", "count": whole, "gpu": "h100", "gpus": 8}] * (whole > 0)
        servers += [{"server": "part", "count": 1, "gpu": "h100", "gpus": rest}] * (rest > 0)
        yield gpus, document | engines | {"name": f"{name}-{part}-{gpus}", "cluster": {"servers": servers}}


def attained(result: optmodels.Result) -> float:
    """Replayed attainment with the dispatcher that the plan names."""
    found = optmodels.replay(result, policy=result.plan["dispatcher"]["policy"])["report"]
    return float(found["policies"][found["policy"]]["attainment"])


def solved(path: Path, method: str, seconds: float) -> dict[str, Any]:
    """One solve and its replay."""
    busy = time.process_time()
    r = optmodels.solve(load(path), method, gap=GAP, time_limit=seconds, out_of_sample=True)
    cpu_s = time.process_time() - busy
    if r.plan is None:
        return {"status": r.status, "cpu_s": cpu_s}
    other = r.report.get("out_of_sample")
    return {
        "status": r.status, "gap": r.gap, "cpu_s": cpu_s, "predicted": r.plan["prediction"]["attainment"],
        "replayed": attained(r), "out_of_sample": other and other["attainment"]["out_of_sample"],
        "dispatcher": r.plan["dispatcher"],
    }  # fmt: skip


def run(a: argparse.Namespace) -> None:
    """Everything asked for that the log does not have."""
    log = Path(a.log)
    rows = [json.loads(x) for x in log.read_text("utf-8").splitlines()] if log.exists() else []
    known = {(x["trace"], x["part"], x["gpus"], x["engine"], x["method"]) for x in rows}
    with tempfile.TemporaryDirectory() as folder:
        for name in set(a.traces) & set(FILES):  # an instance reads files beside it
            s = FILES["mooncake"] if name == UNSHARED else FILES[name]
            given, copy = Path(a.folder) / s.file, Path(folder) / FILES[name].file
            if given.exists():
                shutil.copy(given, copy)
            else:
                import gzip

                copy.write_bytes(gzip.decompress(given.with_name(f"{s.file}.gz").read_bytes()))
            if name == UNSHARED:
                asked = [json.loads(x) for x in copy.read_text("utf-8").splitlines()]
                lines = [json.dumps({k: v for k, v in x.items() if k != "hash_ids"}) + "\n" for x in asked]
                copy.write_text("".join(lines), encoding="utf-8")
        for part in ("first", "second") if a.parts == "both" else (a.parts,):
            for name in a.traces:
                for gpus, document in documents(name, part):
                    if a.gpus and gpus not in a.gpus:
                        continue
                    for engine in a.engines:
                        path = Path(folder) / "instance.yaml"
                        with_engine = {} if ENGINES[engine] is None else {"engine": ENGINES[engine]}
                        path.write_text(yaml.safe_dump(document | with_engine), encoding="utf-8")
                        for method in a.methods:
                            key = {"trace": name, "part": part, "gpus": gpus, "engine": engine, "method": method}
                            if tuple(key.values()) in known:
                                continue
                            row = key | solved(path, method, a.seconds)
                            with log.open("a", encoding="utf-8") as file:
                                file.write(json.dumps(row) + "\n")
                            print(row, flush=True)


def table(a: argparse.Namespace) -> None:
    """The log as a table: one row a case and setting of engines, the best heuristic beside."""
    rows = [json.loads(x) for x in Path(a.log).read_text("utf-8").splitlines()]
    cases: dict[tuple[Any, ...], dict[str, Any]] = {}
    for x in rows:
        if a.engine in (None, x["engine"]):
            cases.setdefault((x["trace"], x["part"], x["gpus"], x["engine"]), {})[x["method"]] = x
    titles = ("trace", "part", "GPUs", "engine", "predicted", "replayed", "predicted − replayed", "out of sample",
              "best heuristic replayed", "which", "exact − best")  # fmt: skip
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|")
    above, behind = [], []
    for key, methods in cases.items():
        if "predicted" not in methods.get("exact", {}):
            continue
        e = methods.pop("exact")
        best = max((x for x in methods.values() if "predicted" in x), key=lambda x: x["replayed"], default=None)
        more = e["predicted"] - e["replayed"]
        if e["predicted"] >= 0.95:
            above.append(more)
        cells = [e["predicted"], e["replayed"], more, e["out_of_sample"]]
        shown = ["" if x is None else f"{100 * x:.1f}" for x in cells]
        if best is not None:
            behind.append(e["replayed"] - best["replayed"])
            shown += [f"{100 * best['replayed']:.1f}", best["method"], f"{100 * behind[-1]:.1f}"]
        print("| " + " | ".join([*map(str, key), *shown]) + " |")
    if above:
        print(f"\npredicted − replayed where 95 % and more are predicted ({len(above)} plans):"
              f" at most {100 * max(above):.1f}")  # fmt: skip
    if behind:
        print(f"exact − best heuristic in replay ({len(behind)} cases): at least {100 * min(behind):.1f},"
              f" in the mean {100 * np.mean(behind):.1f}")  # fmt: skip


def main(arguments: list[str]) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ways = parser.add_subparsers(required=True)
    one = ways.add_parser("run")
    one.set_defaults(do=run)
    one.add_argument("folder")
    one.add_argument("log")
    traces = [*FILES, *(f"maaso-{i}" for i in range(1, 7))]
    one.add_argument("--traces", nargs="+", default=[x for x in traces if x != UNSHARED], choices=traces)
    one.add_argument("--parts", default="both", choices=["first", "second", "both"])
    one.add_argument("--gpus", nargs="+", type=int)
    one.add_argument("--engines", nargs="+", default=["default"], choices=[*ENGINES])
    one.add_argument("--methods", nargs="+", default=["exact", *HEURISTICS], choices=sorted(METHODS))
    one.add_argument("--seconds", type=float, default=25.0, help="of each solve")
    other = ways.add_parser("table")
    other.set_defaults(do=table)
    other.add_argument("log")
    other.add_argument("--engine", choices=[*ENGINES])
    a = parser.parse_args(arguments)
    a.do(a)


if __name__ == "__main__":
    main(sys.argv[1:])
