"""TTFT of closed loops as plans have it: engines' steps, and what a request takes outside them.

    python benchmarks/served_loops.py aggregated.csv

The rows are those that the shipped coefficients were fitted to (`engine_model`), so that this says nothing of what was
never measured; it says how far a loop of steps (`optmodels.serving.loop`) is from the form that was fitted. A plan's
time to first token is the steps' plus `StepCosts.request_s`. Nine tenths of the requests see the loop as it settles,
and a tenth those of all users at once, as clients that begin so and ask ten times each do. Loops with more users than
an engine lets in are left out.
"""

from __future__ import annotations

import argparse
import itertools
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from engine_model import deployment, read

from optmodels.latency.engines.document import read_engine_model
from optmodels.latency.resolve import engine_costs
from optmodels.serving.continuous import EngineLimits
from optmodels.serving.loop import StageOfLoop, first_at_once_s, loop

shipped = cache(read_engine_model)
LIMITS = EngineLimits(max_num_batched_tokens=8192)
FIRST = 0.1  # of a user's requests
CROWDS = (0, 4, 16, 64, 1024)


def first_token_s(row: pd.Series) -> float:
    """Mean TTFT of a loop, NaN where the engine does not let so many in."""
    d = deployment(row)
    costs, _ = engine_costs(shipped().at(d), row.input_tokens)
    if row.concurrency > LIMITS.max_num_seqs * d.attention_ranks:
        return float("nan")
    settled = loop(costs, 1.0, LIMITS, row.input_tokens, row.output_tokens, row.concurrency, d.attention_ranks).ttft_s
    engine = StageOfLoop(costs, 1.0, LIMITS, d.attention_ranks)
    at_once = first_at_once_s(engine, 1.0, row.input_tokens, row.concurrency, 0.0)
    return FIRST * max(at_once, settled) + (1.0 - FIRST) * settled


def main() -> None:
    """Print errors, in all, by engine and by crowd."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    rows = read(parser.parse_args().rows)
    rows = rows[rows.why == ""]
    ratio = rows.apply(first_token_s, axis=1) / rows.ttft_s
    rows, ratio = rows[ratio.notna()], ratio[ratio.notna()]
    print("| TTFT of loops | rows | median error (signed) | nine in ten within |\n|---|---|---|---|")

    def say(what: str, which: pd.Series) -> None:
        wrong = 100.0 * (ratio[which] - 1.0)
        print(f"| {what} | {which.sum():,} | {wrong.abs().median():.1f} % ({wrong.median():+.1f} %) |"
              f" {wrong.abs().quantile(0.9):.0f} % |")  # fmt: skip

    say("all", pd.Series(np.ones(len(rows), dtype=bool), index=rows.index))
    for engine in sorted(rows.engine.unique()):
        say(engine, rows.engine == engine)
    for low, high in itertools.pairwise(CROWDS):
        say(f"{low + 1} to {high} users", (rows.concurrency > low) & (rows.concurrency <= high))


if __name__ == "__main__":
    main()
