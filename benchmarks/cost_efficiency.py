"""Timings of the cost-efficiency path over the whole AWS list: phases, rivals, evaluation rate.

python benchmarks/cost_efficiency.py [INSTANCE] [--repeat N]

Prints medians over N repetitions in one process (imports done), and every rival as a ratio to the exact method in the
same run. Nothing is asserted: machines differ.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from formulations.cost_efficiency.points import build_tables
from optmodels import formulation
from optmodels.formulation import Options
from optmodels.loading import load

DEFAULT = Path("instances/cost_efficiency/present_day/llama-3.1-70b-chat-aws.yaml")
RIVALS = ("enumerate", "config_tree", "greedy", "greedy_dp")


def median_seconds(work: Callable[[], object], repeat: int) -> float:
    """Median wall time of a call."""
    times = []
    for _ in range(repeat):
        clock = time.perf_counter()
        work()
        times.append(time.perf_counter() - clock)
    return statistics.median(times)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("instance", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    repeat = arguments.repeat
    problem = load(arguments.instance)
    form = formulation.get("cost_efficiency")
    tables = build_tables(problem)
    exact = form.method("exact")
    warm = exact(problem, tables, Options())
    print(f"{arguments.instance}: {len(tables.configurations):,} configurations, {len(tables.candidates):,} candidates")
    print(f"pruning: {warm.log['pruning']}")

    phases: dict[str, list[float]] = {}
    for _ in range(repeat):
        clock = time.perf_counter()
        tables = build_tables(problem)
        phases.setdefault("tables", []).append(time.perf_counter() - clock)
        outcome = exact(problem, tables, Options())
        for name, seconds in outcome.seconds.items():
            phases.setdefault(name, []).append(seconds)
        clock = time.perf_counter()
        assert outcome.plan is not None
        verdict = form.check(problem, outcome.plan.model_dump(mode="json"))
        phases.setdefault("check", []).append(time.perf_counter() - clock)
        assert verdict.ok
    print("\nexact method, seconds by phase (median):")
    for name, times in phases.items():
        print(f"  {name:8s} {statistics.median(times):8.4f}")
    total = sum(statistics.median(t) for t in phases.values())
    print(f"  {'total':8s} {total:8.4f}")

    print("\nrivals on the same tables, seconds and ratio to the exact method without tables and check:")
    base = total - statistics.median(phases["tables"]) - statistics.median(phases["check"])
    for name in RIVALS:
        method = form.method(name)
        seconds = median_seconds(lambda method=method: method(problem, build_tables_cached(tables), Options()), repeat)
        print(f"  {name:12s} {seconds:8.4f}   {seconds / base:6.2f} x")

    curves = tables.curves
    fits = np.flatnonzero(curves.alpha_lo <= curves.alpha_hi)
    part = curves.take(fits)
    alpha = part.balance()
    seconds = median_seconds(lambda: part.metrics(alpha), max(repeat, 5))
    everything = median_seconds(lambda: curves.metrics(curves.alpha_lo), max(repeat, 5))
    print(
        f"\nevaluation on one core: {len(part) / seconds:,.0f} operating points/s on the {len(part):,} that fit memory,"
    )
    print(f"                        {len(curves) / everything:,.0f} operating points/s on all {len(curves):,}")
    sys.stdout.flush()


def build_tables_cached(tables: object) -> object:
    """The tables without their cached exhaustive evaluation, so that every method pays for its own."""
    from dataclasses import replace

    return replace(tables)  # type: ignore[type-var]


if __name__ == "__main__":
    main()
