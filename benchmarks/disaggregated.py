"""TPOT and TTFT of closed loops with prefill and decode apart: ``python benchmarks/disaggregated.py ROWS.csv``.

The rows are those of ai-dynamo/aiconfigurator ("silicon" samples, Apache-2.0), which are not part of this repository;
no coefficient was fitted to any of them. Predicted are, with the costs that plans use (`optmodels.latency.resolve`),

* TPOT: a step of the decode engine without prompts, `decode_batch_size` requests on each of its attention ranks;
* TTFT: the crowd N of all decode engines goes round between them, Z = tokens·TPOT each time, and M prefill engines that
  take s a prompt: mean values of a closed network (Reiser and Lavenberg), M servers as one that is M times as fast and
  a delay (Seidmann). No transfer, no burst at the start of a measurement.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from engine_model import GPUS, LLMS

from optmodels import catalog
from optmodels.latency.engines.document import read_engine_model
from optmodels.latency.engines.terms import Deployment
from optmodels.latency.resolve import engine_costs
from optmodels.latency.steps import StepCosts


def costs_of(row: pd.Series, stage: str) -> tuple[StepCosts, int]:
    """Costs of a stage's engine, and its attention ranks."""
    tp, ranks = int(row[f"{stage}_tp_size"]), int(row[f"{stage}_attention_dp_size"])
    llm, gpu = LLMS[row.model_path], GPUS[row.system]
    wide = row.backend == "vllm" and gpu in ("h100", "h200")  # as in `engine_model.deployment`
    engine = Deployment(
        catalog.llms()[llm], llm, catalog.gpus()[gpu], gpu, row.backend, row.precision,
        "fp16" if wide else "fp8", tp * ranks, ranks, row.backend_version,
    )  # fmt: skip
    return engine_costs(read_engine_model().at(engine), float(row.isl))[0], ranks


def tpot_s(row: pd.Series) -> float:
    """A step of the decode engine at its crowd and mean context."""
    c, ranks = costs_of(row, "decode")
    crowd = float(row.decode_batch_size * ranks)
    experts = 0.0 if c.experts is None else float(c.experts.seconds(crowd))
    return float(c.fixed_s + experts + crowd * (c.decode_request_s + c.context_s * (row.isl + row.osl / 2.0)))


def prompt_s(row: pd.Series) -> float:
    """A prompt alone on the prefill engine."""
    c, _ = costs_of(row, "prefill")
    once = c.fixed_s + c.prompt_step_s + (0.0 if c.experts is None else c.experts.all_s)
    return float(once + c.prompt_token_s * row.isl + c.prompt_pair_s * row.isl**2 / 2.0)


def first_token_s(row: pd.Series) -> float:
    """Mean time at the prefill engines, waiting included."""
    crowd = int(row.decode_batch_size * row.decode_attention_dp_size * row.decode_num_workers)
    engines, each, away = float(row.prefill_num_workers), prompt_s(row), row.osl * tpot_s(row)
    there, time = 0.0, each
    for n in range(1, crowd + 1):
        queued = each / engines * (1.0 + there)
        time = queued + each * (engines - 1.0) / engines
        there = n / (time + away) * queued
    return time


def main() -> None:
    """Print errors, in all and by engine, GPU and LLM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    rows = pd.read_csv(parser.parse_args().rows).drop_duplicates()
    for name, predict, aim in (("tpot", tpot_s, 12), ("ttft", first_token_s, 25)):
        ratio = pd.Series([predict(r) * 1e3 / r[f"silicon_{name}_ms"] for _, r in rows.iterrows()], index=rows.index)
        wrong = 100.0 * (ratio - 1.0).abs()
        print(
            f"{name.upper()}, {len(rows)} rows: median error {wrong.median():.1f} % (aim {aim}), nine in ten"
            f" {wrong.quantile(0.9):.0f} %, predicted over measured {ratio.median():.2f} (median)"
        )
        by = [rows.backend, rows.system, rows.model_path]
        print(pd.DataFrame({"rows": wrong, "error %": wrong, "ratio": ratio}).groupby(by).agg(
            {"rows": "count", "error %": "median", "ratio": "median"}).round(2).to_string(), "\n")  # fmt: skip


if __name__ == "__main__":
    main()
