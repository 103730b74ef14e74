"""What the user waits for: whole commands, warm, against ``python -c "import pyomo.environ, highspy, pandas"``.

    python benchmarks/startup.py [page json fresh] [--runs N]

page   `solve` with its files and page, the ratio of CPU and of wall-clock seconds: cost efficiency and fleet ≤ 2, a
       year of 40 regions ≤ 3
json   `solve --json`, which writes no page: ≤ 1.5
fresh  the first orchestration solve with nothing compiled by numba: ≤ 20 s

Command and rival take turns, after one run of each that is not counted (Python's own caches are warm); each ratio is
the median over the pairs.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

INSTANCES = Path(__file__).parents[1] / "instances"
RIVAL = [sys.executable, "-c", "import pyomo.environ, highspy, pandas"]
SMALL = (
    "cost_efficiency/present_day/llama-3.1-70b-chat-aws",
    "cost_efficiency/present_day/mixtral-8x7b-rag-gcp",
    "cost_efficiency/present_day/qwen2.5-32b-fp8-azure",
    "fleet/aws-six-workloads",
    "fleet/aws-continuous",
    "fleet/gcp-three-regions",
    "fleet/spot-heavy",
    "fleet/day-and-night",
    "fleet/stock-limited",
    "fleet/melange-example",
)
LARGE = ("reserved_capacity/year-40-gcp",)
FRESH = ("orchestration/textbook-two-servers", "orchestration/maaso-trace-4")


def run(command: list[str], **variables: str) -> tuple[float, float]:
    """CPU and wall-clock seconds of a whole process."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | variables
    before, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    seconds, after = time.perf_counter() - clock, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, seconds


def solve(name: str, *options: str) -> list[str]:
    """The command that solves a shipped instance."""
    return [sys.executable, "-m", "optmodels", "solve", str(INSTANCES / f"{name}.yaml"), *options]


def compared(name: str, command: list[str], runs: int) -> None:
    """One line: the command's seconds, and its ratio to the rival's."""
    run(command), run(RIVAL)
    pairs = [(run(command), run(RIVAL)) for _ in range(runs)]
    cpu, wall = (statistics.median(ours[i] / theirs[i] for ours, theirs in pairs) for i in (0, 1))
    seconds = statistics.median(ours[0] for ours, _ in pairs)
    print(f"{name:52s} {seconds:6.2f} s CPU   {cpu:5.2f} times the rival's, wall {wall:5.2f}", flush=True)


def page(runs: int) -> None:
    """With plan, tables and page written."""
    with tempfile.TemporaryDirectory() as folder:
        for name in (*SMALL, *LARGE):
            compared(name, solve(name, "--out", folder), runs)


def json(runs: int) -> None:
    """The document alone."""
    for name in (*SMALL, *LARGE):
        compared(name, solve(name, "--json"), runs)


def fresh(runs: int) -> None:
    """Nothing compiled."""
    for name in FRESH:
        found = []
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as cache:
                found.append(run(solve(name, "--json", "--gap", "1e-3"), NUMBA_CACHE_DIR=cache))
        cpu, wall = (statistics.median(f[i] for f in found) for i in (0, 1))
        print(f"{name:52s} {cpu:6.2f} s CPU, {wall:.2f} s", flush=True)


SECTIONS = {"page": page, "json": json, "fresh": fresh}


def main() -> None:
    """Run the sections named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=list(SECTIONS))
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    for name in arguments.sections:
        print(f"\n== {name}: {SECTIONS[name].__doc__}")
        SECTIONS[name](arguments.runs)


if __name__ == "__main__":
    main()
