"""How wrong the shipped coefficients are of measurements of another kind than any they were fitted to.

    python benchmarks/never_fitted.py FOLDER

FOLDER holds public data that are not part of this repository: casys-kaist/LLMServingSim (MIT), 300 requests to vLLM on
one RTX PRO 6000 and 300 on two, and whole steps put together from kernels on that GPU; argonne-lcf/LLM-Inference-Bench
(BSD-3), static batches of vLLM and TensorRT-LLM of 2024 on A100 and H100; ai-dynamo/aiconfigurator (Apache-2.0),
prefill and decode apart on H200, H100 and B200 (TPOT; `disaggregated` prints more). Printed is predicted over measured
less one, so that −10 % is a tenth too fast. Nothing is fitted to any of it.

The steps are kernels alone, of one GPU's share, without launches and scheduler, which the coefficients of engines have,
and without collectives, which are taken off. The static batches' A100 is not said to have 40 or 80 GB; both are
printed, and the slope of its latencies along the weights is the bandwidth of the former.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from disaggregated import read_rows, tpot_s
from engine_simulator import REQUESTS

from optmodels.latency.engines.document import deployed
from optmodels.latency.resolve import collective_costs, engine_costs
from optmodels.latency.steps import StepCosts, static_batch
from optmodels.simulation.continuous import Arrivals, Engine, simulate

PCIE_REQUESTS = Path("vllm_requests") / "rtxpro6000_qwen3-32b_tp2_vllm-0.19.csv"
STEPS = {"Llama-3.1-8B_tp1": ("llama-3.1-8b", 1), "Llama-3.1-8B_tp2": ("llama-3.1-8b", 2),
         "Qwen3-32B_tp1": ("qwen3-32b", 1)}  # fmt: skip
STATIC_LLMS = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b", "mistralai/Mistral-7B-v0.1": "mistral-7b",
    "meta-llama/Meta-Llama-3-8B": "llama-3-8b", "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "meta-llama/Meta-Llama-3-70B": "llama-3-70b", "meta-llama/Llama-2-70b-hf": "llama-2-70b",
}  # fmt: skip
STATIC_GPUS = {"Nvidia A100 GPU": ("a100-40g", "a100-80g"), "Nvidia H100 GPU": ("h100",)}
STATIC_ENGINES = {"vLLM": "vllm", "TensorRT-LLM": "trtllm"}
CHUNK_TOKENS = 8192
SLOTS, FIRST = 128, 80  # requests that run at a time, and that arrive before these are full


@cache
def costs(llm: str, gpu: str, engine: str, tp: int, prompt_tokens: float) -> StepCosts:
    """Of a step in 16 bits, by the shipped coefficients."""
    return engine_costs(deployed(engine, gpu, llm, "fp16", tp), prompt_tokens)[0]


def say(what: str, ratio: np.ndarray) -> None:
    """One line of the table, of predicted/measured, (n,)."""
    wrong = ratio - 1.0
    print(f"| {what} | {len(wrong):,} | {np.median(wrong):+.0%} | {np.median(np.abs(wrong)):.0%} | "
          f"{np.quantile(np.abs(wrong), 0.9):.0%} |", flush=True)  # fmt: skip


def served(path: Path, llm: str, tp: int, lone: float = 1.0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """TTFT, TPOT and E2E of requests to vLLM on RTX PRO 6000, measured and simulated step by step, (n,) each.

    Args:
        path: a row a request.
        llm: key of the catalogue.
        tp: tensor-parallel degree.
        lone: share of `StepCosts.request_s`.
    """
    r = pd.read_csv(path)
    first, whole = (r.first_token_s - r.queued_s).to_numpy(), (r.last_token_s - r.queued_s).to_numpy()
    each = (whole - first) / (r.output_tokens.to_numpy() - 1)
    d = deployed("vllm", "rtx-pro-6000", llm, "fp16", tp)
    kv = int(d.kv_tokens(float((r.input_tokens + r.output_tokens).mean())))
    costs, _ = engine_costs(d, float(r.input_tokens.mean()))
    engine = Engine(replace(costs, request_s=lone * costs.request_s), kv, SLOTS, 2048)
    seen = simulate(Arrivals.of(r.queued_s, r.input_tokens, r.output_tokens), [engine])
    return {"TTFT": (first, seen.ttft_s), "TPOT": (each, seen.tpot_s), "E2E": (whole, seen.e2e_s)}


def requests(path: Path, llm: str, tp: int) -> None:
    """The arrivals of 300 requests simulated step by step, request by request and in the mean."""
    for name, (values, found) in served(path, llm, tp).items():
        say(f"RTX PRO 6000, vLLM 0.19, {llm} TP{tp}: {name} of requests ({found.mean() / values.mean() - 1.0:+.1%} in "
            "the mean)", found / values)  # fmt: skip
    for lone in (1.0, 0.1):
        values, found = (x[:FIRST] for x in served(path, llm, tp, lone)["TTFT"])
        say(f"{llm} TP{tp}: TTFT of the first {FIRST}, with {lone:.0%} of request_s", found / values)


def steps(folder: Path) -> None:
    """Kernels of whole steps, decoding alone and with a prompt."""
    for name, (llm, tp) in STEPS.items():
        f = pd.read_csv(folder / f"steps_RTXPRO6000_{name}.csv.gz")
        c = costs(llm, "rtx-pro-6000", "vllm", tp, 1024.0)
        x = collective_costs(deployed("vllm", "rtx-pro-6000", llm, "fp16", tp).deployment)
        c = replace(c, **{s: getattr(c, s) - getattr(x, s) for s in ("fixed_s", "prompt_token_s", "decode_request_s")})
        p, k, n, context = (f[x].to_numpy(float) for x in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"))
        prompt = (p > 0) * (c.prompt_step_s + c.prompt_token_s * p + c.prompt_pair_s * p * (k + p / 2.0))
        ratio = (c.fixed_s + prompt + n * (c.decode_request_s + c.context_s * context)) / (f.step_ms.to_numpy() / 1e3)
        say(f"RTX PRO 6000, {llm} TP{tp}: kernels of steps that decode", ratio[p == 0])
        say(f"RTX PRO 6000, {llm} TP{tp}: with a prompt of 512 tokens or more", ratio[p >= 512])


def static(path: Path) -> None:
    """Static batches of equal prompts and answers, by GPU, engine and batch."""
    f = pd.read_csv(path)
    f = f[f.Model.isin(STATIC_LLMS)]
    for (hardware, framework), part in f.groupby(["Hardware", "Framework"]):
        for gpu in STATIC_GPUS[str(hardware)]:
            ratio = np.array([
                _batch_s(gpu, STATIC_ENGINES[str(framework)], row) / row["Latency"] for _, row in part.iterrows()
            ])  # fmt: skip
            for batches in ((1,), (16, 32, 64)):
                said = " to ".join(str(b) for b in sorted({batches[0], batches[-1]}))
                say(f"{gpu}, {framework} of 2024, static batches of {said}", ratio[part["Batch Size"].isin(batches)])


def _batch_s(gpu: str, engine: str, row: pd.Series) -> float:
    tokens = int(row["Input Output Length"])
    c = costs(STATIC_LLMS[row.Model], gpu, engine, int(row["Num of Hardware"]), float(tokens))
    first, decode = static_batch(c, np.array([float(row["Batch Size"])]), tokens, tokens, CHUNK_TOKENS)
    return float(first[0] + (tokens - 1) * decode[0])


def apart(path: Path) -> None:
    """Steps of decode engines."""
    rows = read_rows(path)
    ratio = np.array([tpot_s(r) * 1e3 / r.silicon_tpot_ms for _, r in rows.iterrows()])
    for system in ("h200_sxm", "b200_sxm", "h100_sxm"):
        say(f"{system.partition('_')[0]}, decode apart (mostly DeepSeek-V3): TPOT", ratio[(rows.system == system)])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    print("| what was never fitted | n | median signed | median error | 9 of 10 within |\n|---|---|---|---|---|")
    requests(folder / REQUESTS, "llama-3.1-8b", 1)
    requests(folder / PCIE_REQUESTS, "qwen3-32b", 2)
    apart(folder / "silicon" / "disaggregated.csv")
    static(folder / "static_batches_a100_h100.csv")
    steps(folder / "mixed_batches")


if __name__ == "__main__":
    main()
