"""The shipped coefficients of serving engines: fitted, judged on groups left out, and (``--write``) written.

    python benchmarks/engine_model.py FOLDER [--write]

FOLDER holds closed loops that are not part of this repository: silicon/aggregated.csv of ai-dynamo/aiconfigurator
("silicon" samples, Apache-2.0) on GPUs of NVIDIA. Those of AMD come on top (`maker_model`). Each row that is not fitted
has its reason. `left_groups` says what is left out and how coverage is measured. ``--write`` writes the file of
coefficients with its interval, and the table of docs/latency-models.md.

The fit has stages (`staged`):

1. coefficients, adjustments and factors of the rows before `LATER`; the step's are of 24 November 2026 (`EARLIER`);
2. constants of layers with sparse or linear attention (`attention_layers`);
3. factors of levels that only the later rows have, so that these never change what is predicted of others;
4. versions, which no user states, go: TTFT is that of the newest, and what is off on an LLM and a GPU stays with these.

Rows left out are left out of all stages. If some are earlier rows, the step is fitted again without them.

GPUs without closed loops, but with single kernels of vLLM (FOLDER/kernels, same publisher and licence), get what these
take longer than H100's, of the same shape and precision, each over its GPU's peak (`efficiencies`).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small systems: threads wait for one another

import numpy as np
import pandas as pd
import yaml
from attention_layers import with_constants
from engine_fit import extend, fit
from left_groups import Choices, choices, errors_of, factors, interval, judged, named, quantiles, residuals

from optmodels import catalog
from optmodels.latency.engines.choice import choose
from optmodels.latency.engines.document import (
    LEAST_OWN,
    OWN_WORKLOADS,
    EngineModel,
    EngineTarget,
    Judged,
    labels,
)
from optmodels.latency.engines.fit import Fitted, Form, Reach, adjust
from optmodels.latency.engines.forms import FIRST_TOKEN_FORM, STEP_FORM
from optmodels.latency.engines.own import TARGETS, Loops, ServedRows, pulled
from optmodels.latency.engines.terms import (
    FIRST_TOKEN,
    STEP,
    TRENDS,
    Loads,
    ModelInstance,
    first_token_terms,
    release,
    step_terms,
)

DUPLICATE = "exact duplicate"
UNKNOWN = "LLM or GPU that the catalogue lacks"
ROWS, AMD_ROWS = "silicon/aggregated.csv", "served_amd_2026-01.csv"
EARLIER = Path(__file__).parent / "engine_model_earlier.yaml"  # the step, fitted to the rows before `LATER`
OUT = Path(__file__).parents[1] / "optmodels" / "catalog" / "data" / "engine_models" / "default.yaml"
LLMS = {
    "Qwen/Qwen3-32B": "qwen3-32b", "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b", "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b", "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "openai/gpt-oss-120b": "gpt-oss-120b", "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "deepseek-ai/DeepSeek-R1": "deepseek-r1", "nvidia/DeepSeek-R1-NVFP4": "deepseek-r1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3", "zhipuai/GLM-5": "glm-5", "moonshotai/Kimi-K2.5": "kimi-k2.5",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b", "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "deepseek-ai/DeepSeek-R1-0528": "deepseek-r1", "amd/DeepSeek-R1-0528-MXFP4-Preview": "deepseek-r1",
}  # fmt: skip
LATER = {"llm": ("glm-5", "kimi-k2.5", "qwen3.5-397b-a17b"), "gpu": ("h200",)}  # published after the first fit
LAST_SHARE = 0.3  # of the spread that a few rows of one's own have: what is left to an LLM on a GPU
SAME_SHAPE = {"deepseek-v3": "deepseek-r1"}
GPUS = {"h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "gb200": "gb200", "a100_sxm": "a100-80g",
        "l40s": "l40s", "b300_sxm": "b300"}  # fmt: skip


PAGE = Path(__file__).parents[1] / "docs" / "latency-models.md"
TABLE = re.compile(r"(<!-- left out: begin -->\n)(.*?)(<!-- left out: end -->)", flags=re.S)
NAMES = {
    "known": "a workload of a known group", "gpu": "a GPU", "llm": "an LLM", "engine": "an engine",
    "precision": "a precision", "pair": "a pair: engine and LLM, engine and GPU, or LLM and GPU",
    "own_3": "an LLM but 3 rows at random", "own_3_chosen": "an LLM but 3 rows chosen by `rows-to-measure`",
    "own_5": "an LLM but 5 rows at random", "own_5_chosen": "an LLM but 5 chosen rows",
    "own_10": "an LLM but 10 rows at random", "own_10_chosen": "an LLM but 10 chosen rows",
}  # fmt: skip
KERNELS = {"a100_sxm": "a100-80g", "l40s": "l40s"}  # systems with kernels and without closed loops
BEYOND_CACHE_BYTES = 128e6  # the largest L2 cache has 96 MiB


def efficiencies(folder: Path) -> dict[str, dict[str, float]]:
    """GPU|precision → term → log of its kernels' time over the peak's, less the same of H100; medians over shapes.

    Products of at most 64 rows read weights that no L2 cache holds (`dense`), those of 1,024 rows and more compute
    (`prefill`); attention of one token reads a KV cache that no L2 cache holds (`kv`), that of 1,024 tokens and more
    computes in 16 bits (`attention`).
    """
    gpus = catalog.gpus()
    reference, found = gpus["h100"], {}
    for system, name in KERNELS.items():
        gpu = gpus[name]
        slower = reference.mem_bytes_per_s / gpu.mem_bytes_per_s
        generation, context = (_kernels(folder, system, f"attention__*{kind}") for kind in ("generation", "context"))
        cached = (
            2.0
            * 2.0
            * generation.batch_size
            * generation.num_key_value_heads
            * 128
            * (generation.isl + generation.step)
        )
        attended = context[(context.isl >= 1024) & (context.isl * context.batch_size >= 4096)]
        attention = {
            "kv": _median(generation[cached >= BEYOND_CACHE_BYTES].ratio / slower),
            "attention": _median(attended.ratio / (reference.fp16_flops / gpu.fp16_flops)),
        }
        products = _kernels(folder, system, "gemm")
        for dtype, part in products.groupby("gemm_dtype"):
            own, theirs = (getattr(g, f"{dtype}_flops") for g in (gpu, reference))
            weights = part.n * part.k * (2.0 if dtype == "fp16" else 1.0)
            reading = part[(part.m <= 64) & (weights >= BEYOND_CACHE_BYTES)].ratio / slower
            computing = part[(part.m >= 1024) & (part.n >= 1024) & (part.k >= 1024)].ratio / (theirs / own)
            terms = {"dense": _median(reading), "experts": _median(reading)}
            terms |= dict.fromkeys(("decode", "prefill", "routed"), _median(computing)) | attention
            levels = [dtype]
            if dtype == "fp16":
                levels += [f"{p} in 16 bits" for p in ("fp8", "fp4") if getattr(gpu, f"{p}_flops") is None]
            found |= {f"{name}|{level}": terms for level in levels}
    return found


def _kernels(folder: Path, system: str, kind: str) -> pd.DataFrame:
    """Kernels that were measured on a system and on H100, with the `ratio` of their times."""
    both = []
    for which in (system, "h100_sxm"):
        rows = pd.read_parquet(next(folder.glob(f"{which}__{kind}*")))
        if kind == "gemm":
            names = ["gemm_dtype", "m", "n", "k"]
            rows["gemm_dtype"] = rows.gemm_dtype.astype(str).replace({"bfloat16": "fp16"})
        else:
            names = ["batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim"]
            grouped = (rows.num_heads / rows.num_key_value_heads).between(4, 16)
            whole = rows.get("window_size", pd.Series(0, rows.index)) == 0
            rows = rows[grouped & whole & (rows.kv_cache_dtype.astype(str) == "bfloat16")]
        both.append(rows.groupby(names).latency.median())
    joined = pd.concat(both, axis=1, join="inner", keys=("own", "theirs")).reset_index()
    return joined.assign(ratio=joined.own / joined.theirs)


def _median(ratio: pd.Series) -> float:
    return float(np.log(ratio.median()))


def with_efficiencies(models: tuple[Fitted, Fitted], found: dict[str, dict[str, float]]) -> tuple[Fitted, Fitted]:
    """The step's and the first token's, adjusted for GPUs by their kernels."""
    of_first = {"weights": "dense", "burst": "prefill", "burst_attention": "attention"}
    first = {
        level: {name: terms[of_first.get(name, name)] for name in FIRST_TOKEN if of_first.get(name, name) in terms}
        for level, terms in found.items()
    }
    return tuple(
        replace(model, adjustments={**model.adjustments, "gpu|precision": levels})
        for model, levels in zip(models, (found, first), strict=True)
    )


def read(folder: Path) -> pd.DataFrame:
    """One row a distinct measurement, with its geometry resolved, and in `why` the reason not to fit it, or ""."""
    return _silicon(folder / ROWS)


def read_amd(path: Path) -> pd.DataFrame:
    """Closed loops on AMD's GPUs, of `AMD_ROWS`."""
    raw = pd.read_csv(path)
    return pd.DataFrame({
        "engine": raw.framework, "version": raw.image.str.extract(r":v?([^-]+-rocm)")[0], "llm": raw.model.map(LLMS),
        "gpu": raw.hw, "precision": raw.precision, "gpus": raw.tp.astype(int), "ranks": 1,
        "input_tokens": raw.isl.astype(float), "output_tokens": raw.osl.astype(float), "ttft_s": raw.mean_ttft,
        "tpot_s": raw.mean_tpot, "concurrency": raw.conc.astype(float), "why": "",
    })  # fmt: skip


def _silicon(path: Path) -> pd.DataFrame:
    raw = pd.read_csv(path)
    tp, ranks = raw.tp_size.astype(int), raw.attention_dp_size.fillna(1).astype(int)
    experts_tp, experts_ep, product = raw.moe_tp_size, raw.moe_ep_size, tp * ranks
    squared = (experts_tp == experts_ep) & (experts_tp > 1) & (product == experts_tp * experts_ep)  # n written twice
    twice = (tp == ranks) & (tp > 1)
    rows = pd.DataFrame({
        "engine": raw.backend, "version": raw.backend_version.fillna("?"), "llm": raw.model_path.map(LLMS),
        "gpu": raw.system.map(GPUS), "precision": raw.precision.fillna("fp16").replace("bf16", "fp16"),
        "gpus": np.where(squared, experts_tp, np.where(twice, tp, product)).astype(int),
        "ranks": np.where(squared & (ranks > 1), experts_tp, ranks).astype(int),
        "input_tokens": raw.isl.astype(float), "output_tokens": raw.osl.astype(float),
        "ttft_s": raw.silicon_ttft_ms / 1e3, "tpot_s": raw.silicon_tpot_ms / 1e3,
    })  # fmt: skip
    written = np.where(squared, ranks, rows.ranks)  # batches are of the ranks as written: twins in both spellings agree
    rows["concurrency"] = raw.batch_size.astype(float) * written
    rows["why"] = ""
    deepseek = rows.llm.isin(("deepseek-v3", "deepseek-r1"))
    # 112 prompts of 1,000 tokens in 10 ms a token: nearly every product at the H200's peak
    cached = (rows.engine == "vllm") & (rows.version == "0.12.0") & (rows.llm == "llama-3.1-8b") & (rows.gpu == "h200")
    for reason, mask in {
        UNKNOWN: rows.llm.isna() | rows.gpu.isna(),
        DUPLICATE: _rounded(rows.assign(llm=rows.llm.replace(SAME_SHAPE))).duplicated(),
        "saturated: TTFT above the whole decoding time": rows.ttft_s > rows.output_tokens * rows.tpot_s,
        "vLLM 0.12 sweep without a precision, of inconsistent level": (rows.engine == "vllm")
        & (rows.version == "0.12.0") & raw.precision.isna(),
        "speculation that is not labelled (TensorRT-LLM 1.2.0rc6.post3 on DeepSeek)": deepseek
        & (rows.version == "1.2.0rc6.post3"),
        "prompts from a prefix cache (vLLM 0.12.0, Llama-3.1-8B on H200)": cached,
        "TensorRT-LLM 1.3.0rc1: 3 to 8 times its twins of other versions": rows.version == "1.3.0rc1",
    }.items():  # fmt: skip
        rows.loc[mask & (rows.why == ""), "why"] = reason
    kept = rows[rows.why == ""]
    at_peak = Rows(kept).step
    for reason, names in {
        "matrix products faster than the GPUs' peak": ("decode", "prefill", "routed", "attention"),
        "weights and cache read faster than the GPUs' memory": ("dense", "experts", "kv"),
    }.items():
        faster = sum(at_peak[name] for name in names) > kept.tpot_s.to_numpy()
        rows.loc[kept.index[faster], "why"] = reason
    return rows.reset_index(drop=True)


def _rounded(frame: pd.DataFrame) -> pd.DataFrame:
    """With measurements to nine digits: the same row is found written with different last ones."""
    return frame.assign(**{c: frame[c].map(lambda v: float(f"{v:.9g}")) for c in ("ttft_s", "tpot_s")})


def deployment(row: pd.Series) -> ModelInstance:
    """What a row was measured on.

    The rows do not say how wide the cache is. Caches of 8- and 4-bit checkpoints are taken to have 8 bits, but for vLLM
    on Hopper, whose published launch scripts (SemiAnalysisAI/InferenceX) ask for 8 bits on B200 only.
    """
    wide = row.precision == "fp16" or (row.engine == "vllm" and row.gpu in ("h100", "h200"))
    return ModelInstance(
        catalog.llms()[row.llm], row.llm, catalog.gpus()[row.gpu], row.gpu, row.engine, row.precision,
        "fp16" if wide else "fp8", int(row.gpus), int(row.ranks), row.version,
    )  # fmt: skip


class Rows:
    """Rows with their terms and labels; `cache`: folder that keeps fits."""

    def __init__(self, frame: pd.DataFrame, cache: Path | None = None) -> None:
        self.frame, self.cache = frame.reset_index(drop=True), cache
        self.step = {name: np.zeros(len(frame)) for name in (*STEP, "age")}
        self.labels: dict[str, np.ndarray] = {}
        self.parts = []
        alike = ["llm", "gpu", "precision", "gpus", "ranks", "engine", "version"]
        for _, part in self.frame.groupby(alike):
            d, i = deployment(part.iloc[0]), part.index.to_numpy()
            loads = Loads(*(part[c].to_numpy() for c in ("concurrency", "input_tokens", "output_tokens")))
            self.parts.append((d, i, loads))
            for name, value in step_terms(d, loads).items():
                self.step[name][i] = value
            for grouping, level in labels(d).items():
                self.labels.setdefault(grouping, np.empty(len(frame), dtype=object))[i] = level

    def first(self, step_s: np.ndarray) -> dict[str, np.ndarray]:
        """Terms of the first token, given the steps' seconds, (n,)."""
        found = {name: np.zeros(len(self.frame)) for name in (*FIRST_TOKEN, *TRENDS)}
        for d, i, loads in self.parts:
            for name, value in first_token_terms(d, loads, step_s[i]).items():
                found[name][i] = value
        return found

    def loops(self, chosen: np.ndarray) -> tuple[list[Loops], np.ndarray]:
        """The chosen rows as a user has them, who knows of no other versions of the engine; and in what order."""
        found, order = [], []
        for d, i, loads in self.parts:
            k = np.isin(i, chosen)
            if k.any():
                part = Loads(*(values[k] for values in vars(loads).values()))
                found.append(Loops(replace(d, version=None), part))
                order.append(i[k])
        return found, np.concatenate(order)

    def served(self, chosen: np.ndarray) -> list[ServedRows]:
        """The same with what was measured."""
        loops, order = self.loops(chosen)
        cuts = np.cumsum([len(s.loads.concurrency) for s in loops])[:-1]
        tpot, ttft = (np.split(self.frame[target].to_numpy()[order], cuts) for target in TARGETS)
        return [ServedRows(s.deployment, s.loads, *seconds) for s, *seconds in zip(loops, tpot, ttft, strict=True)]


def only(values: dict[str, np.ndarray], chosen: np.ndarray) -> dict[str, np.ndarray]:
    """The chosen rows of each."""
    return {name: value[chosen] for name, value in values.items()}


def fitted(rows: Rows, chosen: np.ndarray) -> tuple[Fitted, Fitted]:
    """Of the step and of the first token, whose step is the predicted one; read from the cache where it was fitted."""
    if rows.cache is None:
        return staged(rows, chosen)
    known = [pickle.dumps(x) for x in (STEP_FORM, FIRST_TOKEN_FORM, rows.step, rows.frame[list(TARGETS)].to_numpy())]
    file = rows.cache / f"{hashlib.sha256(b''.join((*known, chosen.tobytes()))).hexdigest()}.pickle"
    if not file.is_file():
        file.write_bytes(pickle.dumps(staged(rows, chosen)))
    return pickle.loads(file.read_bytes())


def later(frame: pd.DataFrame) -> np.ndarray:
    """Whether rows have a part of `LATER`, (n,)."""
    return np.logical_or.reduce([frame[what].isin(names).to_numpy() for what, names in LATER.items()])


def staged(rows: Rows, chosen: np.ndarray) -> tuple[Fitted, Fitted]:
    """Of the step and of the first token, without a version: fitted to the chosen rows, (n,), stage by stage."""
    tpot, ttft = (rows.frame[target].to_numpy() for target in TARGETS)
    new = chosen & later(rows.frame)
    old, all_old = chosen & ~new, (rows.frame.why == "").to_numpy() & ~later(rows.frame)
    if (old == all_old).all():
        step = Fitted(**yaml.safe_load(EARLIER.read_text("utf-8")))
    else:
        step = fit(STEP_FORM, only(rows.step, old), tpot[old], only(rows.labels, old))
    step = with_constants(step, rows, chosen)  # none of an earlier row
    first = fit(FIRST_TOKEN_FORM, only(_first(rows, step, rows.labels), old), ttft[old], only(rows.labels, old))
    if new.any():
        step = extend(STEP_FORM, step, only(rows.step, new), tpot[new], only(rows.labels, new))
        terms = only(_first(rows, step, rows.labels), new)
        first = extend(FIRST_TOKEN_FORM, first, terms, ttft[new], only(rows.labels, new))
    step = _last(STEP_FORM, without_versions(step), rows, rows.step, tpot, chosen)
    terms = _first(rows, step, no_version(rows))
    return step, _last(FIRST_TOKEN_FORM, without_versions(first, newest(rows, chosen)), rows, terms, ttft, chosen)


def _last(
    form: Form, f: Fitted, rows: Rows, terms: dict[str, np.ndarray], seconds: np.ndarray, chosen: np.ndarray
) -> Fitted:
    """With coefficients of each LLM on each GPU, which leave other LLMs and GPUs alone, and configurations."""
    spread = {"llm|gpu": {term: LAST_SHARE * x for term, x in form.own.spread.items()}}
    stage = Form({}, spread, {"configuration": form.factors["configuration"]}, form.noise)
    labels = no_version(rows)
    for level in np.unique(labels["llm|gpu"][chosen].astype(str)):  # they have no parameter in common
        mine = chosen & (labels["llm|gpu"] == level)
        f = adjust(stage, f, only(terms, mine), seconds[mine], only(labels, mine))
    return f


def newest(rows: Rows, chosen: np.ndarray) -> dict[str, dict[str, float]]:
    """Level of no version → levels of the newest version of the engine with the LLM, and their shares of its rows."""
    frame = pd.DataFrame({"mine": rows.labels["version"], "none": no_version(rows)["version"],
                          "release": rows.frame.version.map(release)})[chosen]  # fmt: skip
    found = {}
    for none, part in frame.groupby("none"):
        counts = part.release.value_counts()
        if len(enough := counts.index[counts >= min(LEAST_OWN.values())]):  # a release of one odd row is left out
            last = part.mine[part.release == max(enough)]
            found[str(none)] = last.value_counts(normalize=True).to_dict()
    return found


def without_versions(f: Fitted, instead: dict[str, dict[str, float]] | None = None) -> Fitted:
    """Without factors and trends of versions, which no user states; `instead`: new levels, means of the given ones."""
    factors, trends, reach = f.factors["version"], f.trends.get("version", {}), f.reach.get("version", {})
    mean, slopes, ends = {}, {}, {}
    for level, shares in (instead or {}).items():
        mean[level] = sum(x * factors[v] for v, x in shares.items())
        names = sorted({name for v in shares for name in trends.get(v, {})})
        slopes[level] = {n: sum(x * trends[v].get(n, 0.0) for v, x in shares.items()) for n in names}
        ends[level] = {n: _span([reach[v][n] for v in shares if n in reach.get(v, {})]) for n in names}
    return replace(
        f, factors={**f.factors, "version": mean}, trends={**f.trends, "version": slopes},
        reach={**f.reach, "version": ends},
    )  # fmt: skip


def _span(reaches: list[Reach]) -> Reach:
    low, high = zip(*reaches, strict=True)
    return min(low), max(high)


def _first(rows: Rows, step: Fitted, labels: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Terms of the first token by the predicted step, (n,) each."""
    return rows.first(step.predict(rows.step, labels))


def predictions(
    models: tuple[Fitted, Fitted], rows: Rows, known: dict[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Seconds by target, (n,) each, for a user, who states no version; `known`: other labels."""
    labels = known or no_version(rows)
    step = models[0].predict(rows.step, labels)
    return {"tpot_s": step, "ttft_s": models[1].predict(rows.first(step), labels)}


def one_shape(frame: pd.DataFrame) -> pd.Series:
    """The LLM of each row, LLMs of one shape under one name: leaving out one leaves out both."""
    return frame.llm.replace(SAME_SHAPE)


def workloads(frame: pd.DataFrame) -> pd.Series:
    """Prompt and output length of each row."""
    return frame.input_tokens.astype(int).astype(str) + "+" + frame.output_tokens.astype(int).astype(str)


def without_llms(rows: Rows) -> dict[str, tuple[Fitted, Fitted]]:
    """LLM → coefficients of a fit without it."""
    clean, llm = rows.frame.why == "", one_shape(rows.frame)
    return {value: fitted(rows, (clean & (llm != value)).to_numpy()) for value in llm[clean].unique()}


def own_deployments(
    rows: Rows, without: dict[str, tuple[Fitted, Fitted]], count: int
) -> Iterator[tuple[tuple[Fitted, Fitted], np.ndarray]]:
    """Coefficients of a fit without an LLM, and the rows of one engine, LLM, GPU and precision of it.

    Of those with three workloads and five rows more than `count`.
    """
    frame, workload, llm = rows.frame, workloads(rows.frame), one_shape(rows.frame)
    for value, models in without.items():
        mine = frame[(frame.why == "") & (llm == value)]
        for _, part in mine.groupby(["engine", "llm", "gpu", "precision"]):
            if workload[part.index].nunique() >= OWN_WORKLOADS and len(part) >= count + 5:
                yield models, part.index.to_numpy()


def own_draws(
    rows: Rows, without: dict[str, tuple[Fitted, Fitted]], count: int, draws: int
) -> Iterator[tuple[tuple[Fitted, Fitted], np.ndarray, np.ndarray]]:
    """Coefficients of a fit without an LLM, `count` rows of it over three workloads, and its other rows.

    Of each deployment, `draws` times: three workloads, one row of each and further ones of the three at random; all
    other rows of the deployment are to be predicted.
    """
    rng = np.random.default_rng(0)
    workload = workloads(rows.frame).to_numpy()
    for models, members in own_deployments(rows, without, count):
        kinds = np.unique(workload[members])
        for _ in range(draws):
            three = rng.choice(kinds, OWN_WORKLOADS, replace=False)
            pool = members[np.isin(workload[members], three)]
            chosen = [rng.choice(members[workload[members] == w]) for w in three]
            more = min(count, len(pool)) - len(chosen)
            chosen += list(rng.choice(np.setdiff1d(pool, chosen), more, replace=False))
            yield models, np.array(chosen), np.setdiff1d(members, chosen)


def own_chosen(
    rows: Rows, without: dict[str, tuple[Fitted, Fitted]], count: int
) -> Iterator[tuple[tuple[Fitted, Fitted], np.ndarray, np.ndarray]]:
    """The same with the rows that ``rows-to-measure`` chooses among the loads of the deployment's rows."""
    for models, members in own_deployments(rows, without, count):
        loops, order = rows.loops(members)
        chosen = order[choose(models, loops, loops, count).rows]
        yield models, chosen, np.setdiff1d(members, chosen)


def no_version(rows: Rows) -> dict[str, np.ndarray]:
    """Labels of rows whose engine's version nobody else measured."""
    return {**rows.labels, "version": (rows.frame.engine + "|None|" + rows.frame.llm).to_numpy()}


def own_rows(rows: Rows, cases: Iterable[tuple]) -> pd.DataFrame:
    """Rows of LLMs never seen but for a few rows (`own_draws`, `own_chosen`): `group`, log(measured/predicted)."""
    found = []
    for k, (models, chosen, rest) in enumerate(cases):
        seconds = predictions(pulled(models, rows.served(chosen)), rows)
        ratio = {t: np.log(rows.frame[t].to_numpy()[rest] / seconds[t][rest]) for t in TARGETS}
        found.append(pd.DataFrame({"group": k, **ratio}))
    return pd.concat(found, ignore_index=True)


def main() -> None:
    """Fit, judge, print, and with ``--write`` write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=8, help="of rows of one's own, by deployment")
    parser.add_argument("--cache", type=Path, help="folder that keeps fits between runs")
    parser.add_argument("--write", action="store_true", help="write the coefficients and the table of the docs")
    args = parser.parse_args()
    everything = read(args.folder)
    counts = everything[everything.why != ""].why.value_counts()
    distinct = everything[~everything.why.isin((DUPLICATE, UNKNOWN))].reset_index(drop=True)
    if args.cache is not None:
        args.cache.mkdir(parents=True, exist_ok=True)
    rows, clean = Rows(distinct, args.cache), (distinct.why == "").to_numpy()
    print(f"{len(everything)} rows, {clean.sum()} fitted")
    for reason, count in counts.items():
        print(f"  {count:4d} left out: {reason}")
    models = fitted(rows, clean)
    seen = {target: distinct[target].to_numpy() for target in TARGETS}
    for target, seconds in predictions(models, rows).items():
        print(f"{target}, in sample: median error {np.median(np.abs(seconds / seen[target] - 1.0)[clean]):.1%}")
    llm = one_shape(distinct)
    left = residuals(
        named(distinct, llm), workloads(distinct).to_numpy(), clean, seen,
        lambda fit_to: predictions(fitted(rows, fit_to), rows),
    )  # fmt: skip
    above = {t: factors(left, t) for t in TARGETS}
    found = {
        t: {"interval": interval(left, t), "left_out": judged(left, t, above[t]["0.9"]), "residual_quantiles": {}}
        for t in TARGETS
    }  # fmt: skip
    working, usd = distinct.assign(work=llm + "|" + workloads(distinct)), prices(distinct)
    decided = {p: choices(left, each, working, usd) for p, each in above["tpot_s"].items()}
    without = without_llms(rows)
    for what, least in LEAST_OWN.items():
        at_random = own_rows(rows, own_draws(rows, without, least, args.draws))
        chosen = own_rows(rows, own_chosen(rows, without, least))
        for target in TARGETS:
            q = {p: float(np.exp(x)) for p, x in quantiles(at_random, target).items()}
            found[target]["residual_quantiles"][what] = q
            for name, frame in ((what, at_random), (f"{what}_chosen", chosen)):
                found[target]["left_out"][name] = errors_of(frame, target, np.full(len(frame), q["0.9"]))
    table = errors_table({t: found[t]["left_out"] for t in TARGETS}, decided["0.9"])
    print(table)
    for what, c in decided["0.8"].items():
        print(f"choices at safety 0.8, {what}: {c.kept:.0%} of {c.made} keep their limit, median regret {c.regret:.0%}")
    speed(models, rows.parts[0][0])
    if not args.write:
        return
    models = with_efficiencies(models, efficiencies(args.folder / "kernels"))
    frame = distinct[clean]
    document = EngineModel(
        title="engine coefficients", date=date.today().isoformat(), rows=int(clean.sum()),
        source="closed loops of ai-dynamo/aiconfigurator 0.12.0 (silicon samples, Apache-2.0); fitted by "
               "benchmarks/engine_model.py",
        rows_left_out={str(k): int(v) for k, v in counts.items()},
        together=together(frame),
        domain={c: (float(frame[c].min()), float(frame[c].max()))
                for c in ("concurrency", "input_tokens", "output_tokens")},
        targets={t: EngineTarget(**vars(m), **found[t]) for t, m in zip(TARGETS, models, strict=True)},
    )  # fmt: skip
    save(document)
    text = PAGE.read_text("utf-8")
    PAGE.write_text(TABLE.sub(lambda m: f"{m[1]}{table}\n{m[3]}", text), "utf-8")
    print(f"written: {OUT}, {PAGE}; factors of single makers' GPUs belong to older coefficients and are gone:")
    print(f"  python benchmarks/maker_model.py {args.folder} --write")


def save(document: EngineModel) -> None:
    """Write the shipped coefficients."""
    data = _short(document.model_dump(mode="json", by_alias=True))
    OUT.write_text(yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=120), "utf-8")


def prices(frame: pd.DataFrame) -> np.ndarray:
    """USD/h of each row's GPUs, on demand in the list of aws, (n,)."""
    each: dict[str, float] = {}
    for m in catalog.machines("aws"):
        if m.gpu and m.gpu_count and m.prices.on_demand:
            each[m.gpu] = min(each.get(m.gpu, np.inf), m.prices.on_demand / m.gpu_count)
    return frame.gpus.to_numpy(float) * frame.gpu.map(each).to_numpy(float)


def errors_table(left_out: dict[str, dict[str, Judged]], decided: dict[str, Choices]) -> str:
    """Markdown: errors, coverage and factors of safety 0.9, and choices by it, by what was left out."""
    lines = [
        "| left out | groups | TPOT, median error (signed) | TTFT, median error (signed) "
        "| safety 0.9 covers TPOT / TTFT | and multiplies by | choices that keep their limit "
        "| median regret, in all / beside an equally safe choice |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for what, name in NAMES.items():
        if what not in left_out["tpot_s"]:
            continue
        tpot, ttft = (left_out[t][what] for t in TARGETS)
        c = decided.get(what)
        chosen = "– | –" if c is None else f"{c.kept:.0%} of {c.made} | {c.regret:.0%} / {c.equally_safe:.0%}"
        lines.append(
            f"| {name} | {tpot.groups} | {tpot.median:.1%} ({tpot.signed:+.1%}) | {ttft.median:.1%} "
            f"({ttft.signed:+.1%}) | {tpot.covered:.1%} / {ttft.covered:.1%} "
            f"| {tpot.factor:.2f} / {ttft.factor:.2f} | {chosen} |"
        )
    return "\n".join(lines)


def together(frame: pd.DataFrame) -> tuple[tuple[str, str, str, str], ...]:
    """(engine, LLM, GPU, precision) with as many rows as one's own rows need to count as measured."""
    found = frame.groupby(["engine", "llm", "gpu", "precision"]).size()
    return tuple(sorted(found.index[found >= min(LEAST_OWN.values())]))


def speed(models: tuple[Fitted, Fitted], d: ModelInstance, points: int = 1_000_000) -> None:
    """Print how many operating points a second one core predicts."""
    rng = np.random.default_rng(0)
    loads = Loads(*(rng.integers(low, high, points).astype(float) for low, high in ((1, 256), (64, 8192), (16, 2048))))
    level = {grouping: [name] for grouping, name in labels(d).items()}
    start = time.process_time()
    step = models[0].predict(step_terms(d, loads), level)
    models[1].predict(first_token_terms(d, loads, step), level)
    print(f"TPOT and TTFT of {points / (time.process_time() - start):,.0f} operating points a second (aim 1,000,000)")


def _short(value):
    """Six significant digits: the file is read by people."""
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_short(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
