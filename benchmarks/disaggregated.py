"""TPOT and TTFT of closed loops with prefill and decode apart.

    python benchmarks/disaggregated.py ROWS.csv [--floor]

The rows are those of ai-dynamo/aiconfigurator ("silicon" samples, Apache-2.0), which are not part of this repository;
no coefficient was fitted to any of them. Their settings are public (SemiAnalysisAI/InferenceX and the recipes of
NVIDIA/srt-slurm that it names): N = batch per rank · ranks · workers users all begin at once and make ten requests
each; lengths of the 1,024- and 8,192-token rows are uniform between 0.8 and 1 of what is written; TTFT is the mean over
all requests. Predicted are, with the costs that plans use (`optmodels.latency.resolve`), nothing fitted,

* TPOT: a step of the decode engine without prompts, `decode_batch_size` requests on each of its attention ranks;
* TTFT: that loop, simulated as replays simulate it (`simulate_loop`): engines that prefill step by step, 8,192 tokens a
  rank or what the recipe says, engines that decode with steps of the predicted TPOT. First tokens come from the engine
  that decodes, as Dynamo sends them, so the wait for a slot there is in TTFT.

``--floor`` prints what a tenth of prefill's speed or of TPOT does to TTFT, and errors where that is little; loops that
were measured twice; and what Little's law says of prefill engines and of slots.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from engine_model import GPUS, LLMS

from optmodels import catalog
from optmodels.latency.engines.document import read_engine_model
from optmodels.latency.engines.terms import ModelInstance
from optmodels.latency.resolve import engine_costs
from optmodels.latency.steps import StepCosts
from optmodels.simulation.continuous import Engine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from references.stage_loop import simulate_loop

REQUESTS = 10  # of each user
WRITTEN = {1024, 8192}  # tokens; such lengths are 0.9 of it in the mean
ROOM = 8192, 8192  # tokens and prompts of a rank's step, at most
# And where a recipe has more (max-prefill-tokens, max-running-requests): engine, GPU.
ROOM_OF_RECIPE = {("sglang", "h200_sxm"): (163_840, 16)}
CACHE_TOKENS = 10**8  # more than the users have: recipes have room for all
# Slots of a rank that decodes, where its recipe (max_batch_size) has fewer than users: engine, GPU, precision, batch.
SLOTS = {
    ("trtllm", "h100_sxm", "fp8", 3): 2, ("trtllm", "h100_sxm", "fp8", 10): 8, ("trtllm", "h100_sxm", "fp8", 20): 16,
    ("trtllm", "b200_sxm", "fp4", 36): 32,
}  # fmt: skip
LITTLE = 0.2
shipped = cache(read_engine_model)


@cache
def _costs(llm: str, gpu: str, engine: str, precision: str, gpus: int, ranks: int, tokens: float):
    wide = engine == "vllm" and gpu in ("h100", "h200")  # as in `engine_model.deployment`
    d = ModelInstance(
        catalog.llms()[llm], llm, catalog.gpus()[gpu], gpu, engine, precision, "fp16" if wide else "fp8", gpus, ranks
    )  # fmt: skip
    return engine_costs(shipped().at(d), tokens)[0]


def read_rows(path: Path) -> pd.DataFrame:
    """Distinct rows; those without batch sizes or numbers of workers say nothing of the load and are left out."""
    counts = [f"{stage}_{what}" for stage in ("prefill", "decode") for what in ("batch_size", "num_workers")]
    rows = pd.read_csv(path).drop_duplicates()
    known = rows.dropna(subset=counts).reset_index(drop=True)
    print(f"{len(known)} rows; {len(rows) - len(known)} without batch sizes or workers are left out")
    return known


def costs_of(row: pd.Series, stage: str) -> tuple[StepCosts, int]:
    """Costs of a stage's engine, and its attention ranks."""
    tp, ranks = int(row[f"{stage}_tp_size"]), int(row[f"{stage}_attention_dp_size"])
    return _costs(
        LLMS[row.model_path], GPUS[row.system], row.backend, row.precision, tp * ranks, ranks,
        float(row.isl),
    ), ranks  # fmt: skip


def tpot_s(row: pd.Series) -> float:
    """A step of the decode engine at its crowd and mean context."""
    c, ranks = costs_of(row, "decode")
    crowd = slots(row) * ranks
    experts = 0.0 if c.experts is None else float(c.experts.seconds(crowd))
    return float(c.fixed_s + experts + crowd * (c.decode_request_s + c.context_s * (row.isl + row.osl / 2.0)))


def mean_tokens(written: float) -> float:
    """Of requests whose length is written so."""
    return 0.9 * written if written in WRITTEN else written


def slots(row: pd.Series) -> float:
    """Of a rank that decodes."""
    key = (row.backend, row.system, row.precision, int(row.decode_batch_size))
    return float(SLOTS.get(key, row.decode_batch_size))


def drawn(written: float, count: int, chance: np.random.Generator) -> np.ndarray:
    """Lengths of requests in tokens, (count,)."""
    low = 0.8 * written if written in WRITTEN else written
    return np.rint(chance.uniform(low, written, count)).astype(np.int64)


def first_token_s(row: pd.Series, each_s: float, full: float, slower: float = 1.0) -> float:
    """Mean TTFT of a loop's requests.

    Args:
        row: the loop.
        each_s: TPOT.
        full: slots of a rank that decodes.
        slower: what the seconds of prefill engines' steps are multiplied by.
    """
    c, ranks = costs_of(row, "prefill")
    tokens, prompts = ROOM_OF_RECIPE.get((row.backend, row.system), ROOM)
    prefill = Engine(
        replace(c.scaled(slower), request_s=c.request_s), CACHE_TOKENS, prompts, tokens, ranks=ranks
    )  # fmt: skip
    slots_of_engine = int(full * row.decode_attention_dp_size)
    decode = Engine(StepCosts(each_s), CACHE_TOKENS, slots_of_engine, max(slots_of_engine, tokens))
    users = int(row.decode_batch_size * row.decode_attention_dp_size * row.decode_num_workers)
    chance = np.random.default_rng(0)
    inputs, outputs = (drawn(written, REQUESTS * users, chance) for written in (row.isl, row.osl))
    seen, _, _ = simulate_loop(
        inputs, outputs, [prefill] * int(row.prefill_num_workers), [decode] * int(row.decode_num_workers), users
    )  # fmt: skip
    return float((seen.e2e_s - (outputs - 1) * each_s).mean())


def most_per_s(row: pd.Series) -> float:
    """Requests/s that a prefill engine does at most."""
    c, ranks = costs_of(row, "prefill")
    tokens = mean_tokens(row.isl)
    room, most = ROOM_OF_RECIPE.get((row.backend, row.system), ROOM)
    prompts = min(max(room / tokens, 1.0), most) * ranks
    each = c.prompt_token_s * tokens + c.prompt_pair_s * float(c.pairs(tokens, 0.0))
    return prompts / (c.fixed_s + c.prompt_step_s + (0.0 if c.experts is None else c.experts.all_s) + prompts * each)


def errors(name: str, predicted: np.ndarray, measured: np.ndarray, aim: str = "") -> None:
    """Print them of predicted and measured seconds, (n,)."""
    ratio = predicted / measured
    wrong = 100.0 * np.abs(ratio - 1.0)
    print(f"{name}: median error {np.median(wrong):.1f} %{aim}, nine in ten {np.quantile(wrong, 0.9):.0f} %,"
          f" predicted over measured {np.median(ratio):.2f} (median)", flush=True)  # fmt: skip


def sensitive(rows: pd.DataFrame, each: np.ndarray, measured: np.ndarray, found: np.ndarray) -> None:
    """Print what a tenth of prefill's speed or of TPOT does to TTFT, and errors where it does little.

    Args:
        rows: loops.
        each: their predicted TPOT, seconds, (n,).
        measured: TTFT, seconds, (n,).
        found: predicted TTFT, seconds, (n,).
    """
    loops = [(r, t, slots(r)) for (_, r), t in zip(rows.iterrows(), each, strict=True)]
    moved = {
        "Prefill a tenth slower": np.array([first_token_s(r, t, s, 1.1) for r, t, s in loops]),
        "TPOT a tenth longer": np.array([first_token_s(r, 1.1 * t, s) for r, t, s in loops]),
    }  # fmt: skip
    steady = np.ones(len(rows), dtype=bool)
    for what, seconds in moved.items():
        by = np.abs(seconds / found - 1.0)
        steady &= by <= LITTLE
        print(f"{what} moves TTFT by {np.median(by):.0%} in the median, by {np.quantile(by, 0.9):.0%} or more in one"
              " loop of ten")  # fmt: skip
    slow = (rows.backend == "sglang").to_numpy() & (rows.system == "b200_sxm").to_numpy()
    for what, which in (("neither moves it by more than a fifth", steady), ("one does", ~steady),
                        ("neither does, without SGLang on B200", steady & ~slow)):  # fmt: skip
        errors(f"  TTFT, {which.sum()} rows where {what}", found[which], measured[which])


def twice(rows: pd.DataFrame, measured: np.ndarray) -> None:
    """Print how far apart loops are that were measured twice."""
    names = [
        c for c in rows.columns if ("silicon" not in c and not c.startswith("prefill")) or c == "prefill_num_workers"
    ]
    twins = pd.DataFrame({"ttft": measured}).groupby([rows[c].to_numpy() for c in names]).ttft
    apart = (twins.max() / twins.min())[twins.size() > 1] - 1.0
    print(f"{len(apart)} loops measured twice, prefill geometry written alike or not: TTFT {apart.median():.1%} apart"
          f" in the median, {apart.max():.0%} at most")  # fmt: skip


def little(rows: pd.DataFrame) -> None:
    """Print what N = X·(TTFT + decoding) says of prefill engines and of slots."""
    ranks = rows.decode_attention_dp_size * rows.decode_num_workers
    decoding = rows.osl.map(mean_tokens) * rows.silicon_tpot_ms / 1e3
    rate = rows.decode_batch_size * ranks / (rows.silicon_ttft_ms / 1e3 + decoding)
    few = [slots(r) < r.decode_batch_size for _, r in rows.iterrows()]
    said = (f"{x:.1f} of {slots(r):.0f}" for x, (_, r) in zip((rate * decoding / ranks)[few], rows[few].iterrows(),
                                                              strict=True))  # fmt: skip
    print(f"Slots in use where recipes have fewer than users: {', '.join(said)}")
    each = pd.DataFrame({"measured": rate / rows.prefill_num_workers, "most predicted": [most_per_s(r) for _, r in
                         rows.iterrows()]}).assign(ratio=lambda x: x.measured / x["most predicted"])  # fmt: skip
    by = ["backend", "system", "precision", "isl", "prefill_attention_dp_size", "prefill_moe_ep_size"]
    busiest = each.groupby([rows[name] for name in by], dropna=False).ratio.idxmax()
    print("Requests/s of a prefill engine, busiest loop of each series (not all are saturated):")
    print(rows.loc[busiest, by].join(each).round(2).to_string(index=False))


def main() -> None:
    """Print errors, in all and by engine, GPU and LLM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--floor", action="store_true", help="what TTFT's errors are made of")
    args = parser.parse_args()
    rows = read_rows(args.rows)
    each = np.array([tpot_s(r) for _, r in rows.iterrows()])
    seen, first = rows.silicon_tpot_ms.to_numpy() / 1e3, rows.silicon_ttft_ms.to_numpy() / 1e3
    full = np.array([slots(r) for _, r in rows.iterrows()])
    batch = rows.decode_batch_size.to_numpy(float)

    def ttft(tpot, limits, of=rows):
        return np.array([first_token_s(r, t, s) for (_, r), t, s in zip(of.iterrows(), tpot, limits, strict=True)])

    found = ttft(each, full)
    for name, predicted, measured, aim in (("TPOT", each, seen, 12), ("TTFT", found, first, 25)):
        errors(f"{name}, {len(rows)} rows", predicted, measured, f" (aim {aim})")
        table = pd.DataFrame({"rows": 1, "error %": 100.0 * np.abs(predicted / measured - 1.0),
                              "ratio": predicted / measured}, index=rows.index)  # fmt: skip
        print(table.groupby([rows.backend, rows.system, rows.model_path]).agg(
            {"rows": "count", "error %": "median", "ratio": "median"}).round(2).to_string(), "\n")  # fmt: skip
    unlimited = found.copy()
    unlimited[full < batch] = ttft(each[full < batch], batch[full < batch], rows[full < batch])
    errors("TTFT, with as many slots as users", unlimited, first)
    errors("TTFT, with the measured TPOT", ttft(seen, full), first)
    if args.floor:
        sensitive(rows, each, first, found)
        twice(rows, first)
        little(rows)


if __name__ == "__main__":
    main()
