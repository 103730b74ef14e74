"""TTFT of closed loops as plans have it: engines' steps, and what a request takes outside them.

    python benchmarks/served_loops.py FOLDER [--constant]

The rows are those that the shipped coefficients were fitted to (`engine_model`), so that this says nothing of what was
never measured; it says how far a loop of steps (`optmodels.engine.loop`) is from the form that was fitted. A plan's
time to first token is the steps' plus `StepCosts.request_s`. Nine tenths of the requests see the loop as it settles,
and a tenth those of all users at once, as clients that begin so and ask ten times each do. Loops with more users than
an engine lets in are left out.

``--constant`` asks whether bursts explain `StepCosts.request_s`: with all of it, a tenth and none, the share of
requests that see all users at once is fitted to the loops of other LLMs with at most 16 users on NVIDIA's GPUs.
"""

from __future__ import annotations

import argparse
import itertools
import math
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from engine_model import deployment, one_shape, read
from left_groups import weighted_quantile

from optmodels.engine.continuous import Coefficients, EngineLimits
from optmodels.engine.loop import loop
from optmodels.latency.engines.document import read_engine_model
from optmodels.latency.resolve import engine_costs
from optmodels.latency.steps import StepCosts

shipped = cache(read_engine_model)
LIMITS = EngineLimits(max_num_batched_tokens=8192, max_num_seqs=256)
FIRST = 0.1  # of a user's requests
FEW = 16  # users
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


def seconds(row: pd.Series) -> tuple[float, float, float]:
    """Mean TTFT of a loop as it settles, and of all users at once, both with `request_s`, the third; else NaN."""
    d = deployment(row)
    costs, _ = engine_costs(shipped().at(d), row.input_tokens)
    if row.concurrency > LIMITS.max_num_seqs * d.attention_ranks:
        return float("nan"), float("nan"), float("nan")
    settled = loop(costs, 1.0, LIMITS, row.input_tokens, row.output_tokens, row.concurrency, d.attention_ranks).ttft_s
    at_once = first_at_once_s(costs, row.input_tokens, row.concurrency, d.attention_ranks)
    return settled, max(at_once, settled), costs.request_s


def first_token_s(row: pd.Series) -> float:
    """Mean TTFT of a loop, NaN where the engine does not let so many in."""
    settled, at_once, _ = seconds(row)
    return FIRST * at_once + (1.0 - FIRST) * settled


def constant(rows: pd.DataFrame) -> None:
    """Print how well shares of `request_s` predict LLMs that were left out, by engine."""
    found = np.array([seconds(row) for _, row in rows.iterrows()])
    group = rows[["engine", "llm", "gpu", "precision"]].agg("|".join, axis=1)
    weight = (1.0 / group.groupby(group).transform("size")).to_numpy()
    llm, shares = one_shape(rows).to_numpy(), np.linspace(0.0, 1.0, 101)
    print("| engine | groups | request_s | share at once | median error (signed) | nine in ten within |")
    print("|---|---|---|---|---|---|")
    for engine in sorted(rows.engine.unique()):
        mine = (rows.engine == engine).to_numpy()
        for kept in (1.0, 0.1, 0.0):
            settled, at_once = found[:, 0] - (1.0 - kept) * found[:, 2], found[:, 1] - (1.0 - kept) * found[:, 2]
            wrong = np.log((np.outer(1.0 - shares, settled) + np.outer(shares, at_once)) / rows.ttft_s.to_numpy())
            best = {
                left: int(np.argmin([
                    weighted_quantile(np.abs(w[mine & (llm != left)]), weight[mine & (llm != left)], 0.5) for w in wrong
                ])) for left in np.unique(llm[mine])
            }  # fmt: skip
            e = np.expm1([wrong[best[llm[i]], i] for i in np.flatnonzero(mine)])
            half, nine = (weighted_quantile(np.abs(e), weight[mine], q) for q in (0.5, 0.9))
            signed = weighted_quantile(e, weight[mine], 0.5)
            print(f"| {engine} | {group[mine].nunique()} | {kept:.0%} | {np.median(shares[list(best.values())]):.2f} |"
                  f" {half:.1%} ({signed:+.1%}) | {nine:.0%} |", flush=True)  # fmt: skip


def main() -> None:
    """Print errors, in all, by engine and by crowd."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--constant", action="store_true", help="whether bursts explain request_s")
    args = parser.parse_args()
    rows = read(args.folder)
    rows = rows[rows.why == ""]
    if args.constant:
        rows = rows[(rows.concurrency <= FEW) & rows.gpu.isin(("h100", "h200", "b200"))]
        constant(rows.reset_index(drop=True))
        return
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
