"""KV-cache capacity as engines log it at start-up, and as `latency.memory` predicts it.

    python benchmarks/kv_capacity.py FOLDER [--write]

FOLDER holds kv_capacity_logs.csv, public logs of vLLM that are not part of this repository. `MORE` adds logs that were
read elsewhere. One number is fitted, the GiB of an engine's runtime: each model is judged with the median of the other
models' logs (leave one model out, equal weight for models). So are the logs of each kind of version alone: vLLM's first
engine (before 0.8) took more, and since 0.14 CUDA graphs are inside the share.
``--write`` writes the tables of docs/results/kv-memory.md and the interval of optmodels/catalog/data/kv_memory.yaml.

vLLM's log counts tokens that every layer keeps, windows or not, so that predictions here have one token a request.
"""

from __future__ import annotations

import argparse
import csv
import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from optmodels import catalog
from optmodels.catalog.types import Architecture
from optmodels.latency.memory import RUNTIME_GIB, kv_token_bytes, kv_tokens, weight_bytes
from optmodels.latency.work import LayerWork, layer_work
from optmodels.units import GIB

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "kv-memory.md"
OUT = ROOT / "optmodels" / "catalog" / "data" / "kv_memory.yaml"
LEVELS = (0.5, 0.8, 0.9, 0.95)
TABLE = re.compile(r"(<!-- logs -->\n)(.*?)(<!-- end -->)", re.DOTALL)
GPUS = {"rtx3090b": 23.57, "rtx4090": 23.52}  # GiB for programs, of GPUs that the catalogue lacks
_GATED = {"kv_heads": 8, "head_dim": 128, "ffn_matrices": 3, "max_positions": 4096}
OWN: dict[str, Architecture] = {  # LLMs that the catalogue lacks
    "mistral-nemo": Architecture(layers=40, hidden=5120, heads=32, ffn=14336, vocab=131072, **_GATED),
    "yi-34b": Architecture(layers=60, hidden=7168, heads=56, ffn=20480, vocab=64000, **_GATED),
}
# By source: max_num_seqs where it is not vLLM's 256, and max_num_batched_tokens where the log itself prints another
# than the file.
SEQS = {"inference-sim": 128, "vllm#23278": 1024}
BATCHED = {"dennislee22": 2048}
CONNECTED = {"vllm#21348"}  # started with LMCache, whose buffers are no part of the runtime
SIM = "inference-sim/inference-sim testdata/trained_physics_iter29.json"
A100 = "dennislee22/vLLM-benchmarking log/vllm-7B-1gpuA10080GB-0.5GRAM.log"


@dataclass(frozen=True)
class Log:
    """One engine's start-up."""

    llm: str
    gpu: str
    tp: int
    weights: str
    utilization: float
    batched: float
    seqs: float
    tokens: float
    source: str
    version: str = ""

    @property
    def era(self) -> str:
        """Kind of vLLM's version, by how it takes memory; a log of a month has the version of that month."""
        numbers = tuple(map(int, re.findall(r"\d+", self.version)[:2]))
        return "before 0.8" if (0, 0) < numbers < (0, 8) else "0.8 to 0.13" if (0, 0) < numbers < (0, 14) else "newer"

    @property
    def architecture(self) -> Architecture:
        """Shape of the LLM."""
        return OWN.get(self.llm) or catalog.llms()[self.llm]

    @property
    def gpu_gib(self) -> float:
        """Memory that programs get of one GPU, GiB."""
        return GPUS[self.gpu] if self.gpu in GPUS else catalog.gpus()[self.gpu].usable_gib

    @property
    def work(self) -> LayerWork:
        """Work of the LLM at its precision."""
        return layer_work(self.architecture, self.weights)

    def predicted(self, runtime_gib: float = RUNTIME_GIB) -> float:
        """KV tokens as vLLM counts them."""
        return kv_tokens(
            self.work, self.gpu_gib * GIB, self.tp, utilization=self.utilization, runtime_bytes=runtime_gib * GIB,
            chunk_tokens=self.batched, max_requests=self.seqs, request_tokens=1.0,
        )  # fmt: skip

    @property
    def runtime_gib(self) -> float | None:
        """Runtime that makes the prediction exact, GiB of each GPU; None where the engine refused to start."""
        if not self.tokens:
            return None
        gib = float(kv_token_bytes(self.work, self.tp)) / GIB / self.tp
        roomy = kv_tokens(self.work, 1e4 * GIB, self.tp, utilization=1.0, runtime_bytes=0.0, chunk_tokens=self.batched,
                          max_requests=self.seqs, request_tokens=1.0)  # fmt: skip
        held = 1e4 - roomy * gib  # weights and a pass
        return self.utilization * self.gpu_gib - held - self.tokens * gib


MORE = (
    Log("llama-3.1-70b", "h100", 4, "fp16", 0.9, 2048, 128, 486_800, SIM),
    Log("mistral-nemo", "h100", 2, "fp16", 0.9, 1024, 128, 768_144, SIM),
    Log("qwen2.5-7b", "h100", 1, "fp16", 0.9, 1024, 128, 1_045_888, SIM),
    Log("yi-34b", "h100", 2, "fp16", 0.9, 2048, 128, 332_688, SIM),
    Log("llama-4-scout", "h100", 2, "fp8", 0.9, 2048, 128, 132_048, SIM),
    Log("qwen2.5-7b", "a100-80g", 1, "fp16", 0.5, 2048, 256, 464_848, A100, "0.10.1.1"),
    Log("qwen3-235b-a22b", "h100", 4, "fp8_block", 0.9, 8192, 1024, 178_880, "vllm#21348", "0.9.2"),
)
# Weights on each GPU as logged, GiB.
LOADED = (
    ("llama-3.1-405b", "fp8", 8, 16, 57.75, "vllm#6746, first upload of 16 KV heads"),
    ("gpt-oss-120b", "mxfp4", 1, None, 65.97, "vllm#23278"),
    ("gpt-oss-120b", "mxfp4", 4, None, 17.22, "dennislee22/vLLM-benchmarking"),
    ("llama-3.1-70b", "fp8", 1, None, 67.72, "vLLM pull request 12569"),
    ("qwen2.5-7b", "fp16", 1, None, 14.25, "dennislee22/vLLM-benchmarking"),
)


def read(folder: Path) -> list[Log]:
    """The logs of the folder, and `MORE`."""
    path = next(folder.rglob("kv_capacity_logs.csv"))
    found = []
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            source = row["source"]
            stated = {k: v for k, v in BATCHED.items() if source.startswith(k)}
            seqs = next((v for k, v in SEQS.items() if source.startswith(k)), 256)
            batched = next(iter(stated.values()), float(row["max_num_batched_tokens"]))
            found.append(Log(row["llm"], row["gpu"], int(row["tensor_parallel"]), row["weights"],
                             float(row["gpu_memory_utilization"]), batched, seqs, float(row["kv_tokens_logged"]),
                             source, row["engine_version_or_date"]))  # fmt: skip
    return [*found, *MORE]


def others_runtime(logs: list[Log], llm: str) -> float:
    """Median runtime of the other models, each model with the median of its logs."""
    models = {x.llm for x in logs if x.llm != llm}
    each = [np.median([r for x in logs if x.llm == m and (r := x.runtime_gib) is not None]) for m in models]
    return float(np.median([e for e in each if np.isfinite(e)]))


def table(logs: list[Log]) -> tuple[str, list[float], list[float]]:
    """The table, and the absolute errors of all and of dense models."""
    lines = ["| LLM | GPUs | weights | share | logged | predicted | error | left out | error |",
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    errors, dense = [], []
    for x in logs:
        shipped, judged = x.predicted(), x.predicted(others_runtime(logs, x.llm))
        said = ["–", "–"]
        if x.tokens:
            said = [f"{v / x.tokens - 1:+.1%}" for v in (shipped, judged)]
            errors.append(abs(judged / x.tokens - 1))
            dense += [errors[-1]] if x.architecture.moe is None else []
        elif shipped or judged:
            said = ["starts" if v else "–" for v in (shipped, judged)]
        logged = f"{x.tokens:,.0f}" if x.tokens else "refused"
        lines.append(f"| {x.llm} | {x.tp} × {x.gpu} | {x.weights} | {x.utilization:g} | {logged} | {shipped:,.0f} |"
                     f" {said[0]} | {judged:,.0f} | {said[1]} |")  # fmt: skip
    return "\n".join(lines), errors, dense


def eras_table(logs: list[Log]) -> str:
    """By kind of version: runtime, median over the models; errors of dense models by the other models."""
    lines = ["| vLLM | GiB | dense, left out | largest |", "|---|---|---|---|"]
    for era in ("before 0.8", "0.8 to 0.13", "newer"):
        mine = [x for x in logs if x.era == era and (x.runtime_gib or 0.0) > 0 and x.source not in CONNECTED]
        dense = [x for x in mine if x.architecture.moe is None]
        errors = [abs(x.predicted(others_runtime(mine, x.llm)) / x.tokens - 1) for x in dense]
        runtime = others_runtime(mine, "")
        lines.append(f"| {era} | {runtime:.2f} | {np.median(errors):.1%} | {max(errors):.1%} |")
    return "\n".join(lines)


def loaded() -> str:
    """Weights on a GPU, as logged and as predicted."""
    lines = ["| LLM | weights | TP | logged GiB | predicted GiB |", "|---|---|---|---|---|"]
    for llm, weights, tp, kv_heads, logged, source in LOADED:
        shape = catalog.llms()[llm]
        if kv_heads is not None:
            shape = shape.model_copy(update={"kv_heads": kv_heads})
        gib = float(weight_bytes(layer_work(shape, weights), tp)) / tp / GIB
        lines.append(f"| {llm} ({source}) | {weights} | {tp} | {logged} | {gib:.2f} |")
    return "\n".join(lines)


def interval(logs: list[Log], routed: bool) -> dict[str, Any]:
    """Quantiles of an engine's runtime beyond `RUNTIME_GIB`, GiB a GPU: level of safety → lower and upper end.

    Models have equal weight, and their logs equal shares of it. Conformal: of n models the upper end has
    level·(n + 1) below it, and is the largest log at most. A log whose weights and cache exceed its share of the GPU's
    memory contradicts its own settings, and is left out.
    """
    each: dict[str, list[float]] = {}
    for x in logs:
        if x.runtime_gib is not None and x.runtime_gib > 0 and (x.architecture.moe is not None) == routed:
            each.setdefault(x.llm, []).append(x.runtime_gib - RUNTIME_GIB)
    n = len(each)
    rows = sorted((v, 1.0 / len(values)) for values in each.values() for v in values)
    values, mass = np.array([v for v, _ in rows]), np.cumsum([w for _, w in rows])
    found: dict[str, Any] = {"models": n, "logs": len(rows), "gib": {}}
    for level in LEVELS:
        high = values[min(int(np.searchsorted(mass, level * (n + 1) - 1e-9)), len(values) - 1)]
        low = values[max(int(np.searchsorted(mass, (1 - level) * (n + 1) + 1e-9)) - 1, 0)]
        found["gib"][f"{level:g}"] = [round(float(min(low, 0.0)), 2), round(float(max(high, 0.0)), 2)]
    return found


def ends_table(ends: dict[str, Any]) -> str:
    """The interval, a row for a kind of model."""
    lines = [
        "| LLMs | models | logs |" + "".join(f" {level:.0%} |" for level in LEVELS),
        "|---" * (3 + len(LEVELS)) + "|",
    ]
    for kind, found in ends.items():
        cells = "".join(f" {low:+.2f} to {high:+.2f} |" for low, high in found["gib"].values())
        lines.append(f"| {kind} | {found['models']} | {found['logs']} |{cells}")
    return "\n".join(lines)


def main() -> None:
    """Print the tables; with ``--write`` into the page as well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    logs = read(options.folder)
    made, errors, dense = table(logs)
    summary = (
        f"Leave one model out: median error {np.median(errors):.1%} of {len(errors)} logs,"
        f" {np.median(dense):.1%} of the {len(dense)} of dense models. Above 15 %: {sum(e > 0.15 for e in errors)},"
        f" of dense models {sum(e > 0.15 for e in dense)}."
    )
    ends = {"dense": interval(logs, False), "experts": interval(logs, True)}
    text = f"{summary}\n\n{made}\n\n{eras_table(logs)}\n\n{loaded()}\n\n{ends_table(ends)}\n"
    print(text)
    if options.write:
        page = PAGE.read_text("utf-8")
        PAGE.write_text(TABLE.sub(lambda m: f"{m[1]}\n{text}\n{m[3]}", page), "utf-8")
        about = {
            "title": "runtime of engines beyond the memory formula, GiB a GPU",
            "source": "start-up logs of vLLM in public issues and repositories, benchmarks/kv_capacity.py",
            "date": date.today().isoformat(),
        }
        OUT.write_text(yaml.safe_dump(about | ends, sort_keys=False, default_flow_style=None), "utf-8")
        print(f"written: {OUT}, {PAGE}")


if __name__ == "__main__":
    main()
