"""TTFT of closed loops as plans have it: engines' steps, and what a request takes outside them.

    python benchmarks/served_loops.py FOLDER

The rows are those that the shipped coefficients were fitted to (`engine_model`), so that this says nothing of what was
never measured; it says how far a loop of steps (`optmodels.engine.loop`) is from the form that was fitted. A plan's
time to first token is the steps' plus `StepCosts.request_s`. Nine tenths of the requests see the loop as it settles,
and a tenth those of all users at once, as clients that begin so and ask ten times each do. Loops with more users than
an engine lets in are left out.
"""

from __future__ import annotations

import argparse
import itertools
import math
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from engine_model import deployment, read

from optmodels.engine.continuous import Coefficients, EngineLimits
from optmodels.engine.loop import loop
from optmodels.latency.engines.document import read_engine_model
from optmodels.latency.resolve import engine_costs
from optmodels.latency.steps import StepCosts

shipped = cache(read_engine_model)
LIMITS = EngineLimits(max_num_batched_tokens=8192)
FIRST = 0.1  # of a user's requests
CROWDS = (0, 4, 16, 64, 1024)


def first_at_once_s(costs: StepCosts, input_tokens: float, users: float, ranks: int) -> float:
    """Mean TTFT of the first requests where all users begin at once, as those of benchmark clients do.

    Of m = users/ranks prompts at each rank the j-th ends with step ⌈j·S/B⌉ of the B tokens that a rank's step takes;
    until then min(⌈j·S/B⌉·B/S, m) are computed, on every rank, and at least its own.
    """
    c, room = Coefficients.of(costs), float(LIMITS.max_num_batched_tokens)
    fixed = float(c.step_fixed_s(1.0, 1.0)) + costs.prompt_step_s
    work = float(c.prefill_work_s(np.asarray(input_tokens), 0.0, np.asarray(room), 0.0))
    experts, each = costs.prompt_expert_s * input_tokens, users / ranks
    prompt = np.arange(1.0, math.ceil(each) + 1.0)
    steps = np.maximum(np.ceil(prompt * input_tokens / room - 1e-9), math.ceil(input_tokens / room))
    done = np.minimum(steps * room / input_tokens, each)
    seconds = steps * fixed + ranks * (np.maximum(done, 1.0) * (work - experts) + done * experts)
    share = np.minimum(each - (prompt - 1.0), 1.0) / each  # the last is less than one in the mean
    return float(seconds @ share) + costs.request_s


def first_token_s(row: pd.Series) -> float:
    """Mean TTFT of a loop, NaN where the engine does not let so many in."""
    d = deployment(row)
    costs, _ = engine_costs(shipped().at(d), row.input_tokens)
    if row.concurrency > LIMITS.max_num_seqs * d.attention_ranks:
        return float("nan")
    settled = loop(costs, 1.0, LIMITS, row.input_tokens, row.output_tokens, row.concurrency, d.attention_ranks).ttft_s
    at_once = first_at_once_s(costs, row.input_tokens, row.concurrency, d.attention_ranks)
    return FIRST * max(at_once, settled) + (1.0 - FIRST) * settled


def main() -> None:
    """Print errors, in all, by engine and by crowd."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    rows = read(parser.parse_args().folder)
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
