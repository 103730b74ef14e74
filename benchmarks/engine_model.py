"""The shipped coefficients of serving engines: fitted, judged on what was left out, and (``--write``) written.

    python benchmarks/engine_model.py aggregated.csv [--h100 FOLDER] [--kernels FOLDER --write]

The rows are closed loops of ai-dynamo/aiconfigurator ("silicon" samples, Apache-2.0), which are not part of this
repository. Each row that is not fitted has its reason; errors on all rows are printed beside those on the rest. Aims
stand in brackets. Coverage is nested: the quantile of what is left out is that of other levels, predicted by fits
that know neither. ``--h100`` adds the models fitted to one LLM on H100 (`latency_models`).

GPUs of which no closed loop is known, but single kernels of vLLM (same publisher and licence), get what these take
longer than H100's, of the same shape and precision, each over its GPU's peak (`efficiencies`).
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small systems: threads wait for one another

import numpy as np
import pandas as pd
import yaml

from optmodels import catalog
from optmodels.latency.engines.choice import choose
from optmodels.latency.engines.document import LEAST_OWN, OWN_WORKLOADS, SPREAD_BY, EngineModel, EngineTarget, labels
from optmodels.latency.engines.fit import Fitted, fit
from optmodels.latency.engines.forms import FIRST_TOKEN_FORM, STEP_FORM
from optmodels.latency.engines.own import TARGETS, Loops, ServedRows, pulled
from optmodels.latency.engines.terms import FIRST_TOKEN, STEP, TRENDS, Deployment, Loads, first_token_terms, step_terms
from optmodels.latency.fit.document import LEVELS, errors, residual_quantiles

AIMS = {
    "workload": {"tpot_s": 0.05, "ttft_s": 0.14}, "gpu": {"tpot_s": 0.10, "ttft_s": 0.22},
    "llm": {"tpot_s": 0.12, "ttft_s": 0.28}, "engine": {"tpot_s": 0.13, "ttft_s": 0.35},
    "own": {"tpot_s": 0.06, "ttft_s": 0.15},
}  # fmt: skip
DUPLICATE = "exact duplicate"
FOLDS = 8
SHRINK_ROWS = 20.0
INFLATION = {"tpot_s": 1.2, "ttft_s": 1.6}
OUT = Path(__file__).parents[1] / "optmodels" / "catalog" / "data" / "engine_models" / "default.yaml"
LLMS = {
    "Qwen/Qwen3-32B": "qwen3-32b", "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b", "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b", "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "openai/gpt-oss-120b": "gpt-oss-120b", "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "deepseek-ai/DeepSeek-R1": "deepseek-r1", "nvidia/DeepSeek-R1-NVFP4": "deepseek-r1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3",
}  # fmt: skip
SAME_SHAPE = {"deepseek-v3": "deepseek-r1"}
GPUS = {"h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "gb200": "gb200", "a100_sxm": "a100-80g",
        "l40s": "l40s", "b300_sxm": "b300"}  # fmt: skip


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


def read(path: Path) -> pd.DataFrame:
    """One row a distinct measurement, with its geometry resolved, and in `why` the reason not to fit it, or ""."""
    raw = pd.read_csv(path)
    tp, ranks = raw.tp_size.astype(int), raw.attention_dp_size.fillna(1).astype(int)
    experts_tp, experts_ep, product = raw.moe_tp_size, raw.moe_ep_size, tp * ranks
    squared = (experts_tp == experts_ep) & (experts_tp > 1) & (product == experts_tp * experts_ep)  # n written twice
    twice = (tp == ranks) & (tp > 1)
    rows = pd.DataFrame({
        "engine": raw.backend, "version": raw.backend_version.fillna("?"), "llm": raw.model_path.map(LLMS),
        "gpu": raw.system.map(GPUS), "precision": raw.precision.fillna("fp16"),
        "gpus": np.where(squared, experts_tp, np.where(twice, tp, product)).astype(int),
        "ranks": np.where(squared & (ranks > 1), experts_tp, ranks).astype(int),
        "input_tokens": raw.isl.astype(float), "output_tokens": raw.osl.astype(float),
        "ttft_s": raw.silicon_ttft_ms / 1e3, "tpot_s": raw.silicon_tpot_ms / 1e3,
    })  # fmt: skip
    written = np.where(squared, ranks, rows.ranks)  # batches are of the ranks as written: twins in both spellings agree
    rows["concurrency"] = raw.batch_size.astype(float) * written
    rows["why"] = ""
    deepseek = rows.llm.isin(("deepseek-v3", "deepseek-r1"))
    for reason, mask in {
        "LLM or GPU that the catalogue lacks": rows.llm.isna() | rows.gpu.isna(),
        DUPLICATE: _rounded(rows.assign(llm=rows.llm.replace(SAME_SHAPE))).duplicated(),
        "saturated: TTFT above the whole decoding time": rows.ttft_s > rows.output_tokens * rows.tpot_s,
        "vLLM 0.12 sweep without a precision, of inconsistent level": (rows.engine == "vllm")
        & (rows.version == "0.12.0") & raw.precision.isna(),
        "speculation that is not labelled (TensorRT-LLM 1.2.0rc6.post3 on DeepSeek)": deepseek
        & (rows.version == "1.2.0rc6.post3"),
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


def deployment(row: pd.Series) -> Deployment:
    """What a row was measured on.

    The rows do not say how wide the cache is. Caches of 8- and 4-bit checkpoints are taken to have 8 bits, but for vLLM
    on Hopper, whose published launch scripts (SemiAnalysisAI/InferenceX) ask for 8 bits on B200 only.
    """
    wide = row.precision == "fp16" or (row.engine == "vllm" and row.gpu in ("h100", "h200"))
    return Deployment(
        catalog.llms()[row.llm], row.llm, catalog.gpus()[row.gpu], row.gpu, row.engine, row.precision,
        "fp16" if wide else "fp8", int(row.gpus), int(row.ranks), row.version,
    )  # fmt: skip


class Rows:
    """Rows with their terms and labels."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame.reset_index(drop=True)
        self.step = {name: np.zeros(len(frame)) for name in STEP}
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
    """Of the step and of the first token, whose step is the predicted one."""
    tpot, ttft = (rows.frame[target].to_numpy()[chosen] for target in TARGETS)
    step = fit(STEP_FORM, only(rows.step, chosen), tpot, only(rows.labels, chosen))
    first = only(rows.first(step.predict(rows.step, rows.labels)), chosen)
    return step, fit(FIRST_TOKEN_FORM, first, ttft, only(rows.labels, chosen))


def predictions(
    models: tuple[Fitted, Fitted], rows: Rows, known: dict[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Seconds by target, (n,) each; `known`: other labels than the rows'."""
    step = models[0].predict(rows.step, known or rows.labels)
    return {"tpot_s": step, "ttft_s": models[1].predict(rows.first(step), known or rows.labels)}


def groups(frame: pd.DataFrame) -> dict[str, pd.Series]:
    """What is left out together, in four ways."""
    same = frame.llm.replace(SAME_SHAPE)  # leaving out one leaves out both
    workload = frame.input_tokens.astype(int).astype(str) + "+" + frame.output_tokens.astype(int).astype(str)
    return {"workload": workload, "llm": same, "gpu": frame.gpu, "engine": frame.engine}


def without(rows: Rows, level: pd.Series, values: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Predictions of all rows by a fit without some levels; rows with a reason are never fitted, but predicted."""
    return predictions(fitted(rows, ((rows.frame.why == "") & ~level.isin(values)).to_numpy()), rows)


def left_out(rows: Rows, level: pd.Series) -> dict[str, np.ndarray]:
    """Predictions of every row by a fit without its level."""
    found = {target: np.zeros(len(level)) for target in TARGETS}
    for value in level.unique():
        inside = (level == value).to_numpy()
        for target, seconds in without(rows, level, (value,)).items():
            found[target][inside] = seconds[inside]
    return found


def folded(level: pd.Series) -> pd.Series:
    """Levels in at most `FOLDS` groups, the largest apart from one another."""
    names = level.value_counts().index
    if len(names) <= FOLDS:
        return level
    return level.map({v: str(i % FOLDS) for i, v in enumerate(names)})


def covered(rows: Rows, level: pd.Series, what: str) -> dict[str, float]:
    """Share of fitted rows below the prediction at safety 0.9 where nothing of their level is known in any way.

    Levels are left out in `folded` groups. The rows of another group u are predicted by a fit without u and v; the
    quantile over all u inflates the prediction of v by the fit without v. Of two groups nothing is left to fit to:
    there the predictions of u by a fit that has seen v must do.
    """
    group, clean = folded(level), (rows.frame.why == "").to_numpy()
    names = [v for v in group.unique() if clean[(group == v).to_numpy()].any()]
    inside = {v: (group == v).to_numpy() for v in names}
    one = {v: without(rows, group, (v,)) for v in names}
    two = {} if len(names) == 2 else {p: without(rows, group, p) for p in itertools.combinations(names, 2)}
    found = {}
    for target in TARGETS:
        measured, below = rows.frame[target].to_numpy(), np.zeros(len(level), dtype=bool)
        for v in names:
            ratio = np.ones(len(level))
            for u in names:
                if u != v:
                    known = two.get((u, v), two.get((v, u), one[u]))
                    ratio[inside[u]] = (measured / known[target])[inside[u]]
            known, spread = interval(rows, ratio, clean & ~inside[v], level, what)
            below[inside[v]] = (measured <= known["0.9"] ** powers(rows, spread) * one[v][target])[inside[v]]
        found[target] = float(below[clean].mean())
    return found


def own_deployments(rows: Rows, level: pd.Series, count: int) -> Iterator[tuple[tuple[Fitted, Fitted], np.ndarray]]:
    """Coefficients of a fit without an LLM, and the rows of one engine, LLM, GPU and precision of it.

    Of those with three workloads and five rows more than `count`.
    """
    frame, workload = rows.frame, groups(rows.frame)["workload"]
    for value in level.unique():
        models = fitted(rows, ((frame.why == "") & (level != value)).to_numpy())
        mine = frame[(frame.why == "") & (level == value)]
        for _, part in mine.groupby(["engine", "llm", "gpu", "precision"]):
            if workload[part.index].nunique() >= OWN_WORKLOADS and len(part) >= count + 5:
                yield models, part.index.to_numpy()


def own_draws(rows: Rows, level: pd.Series, count: int, draws: int) -> Iterator[tuple]:
    """Coefficients of a fit without an LLM, `count` rows of it over three workloads, and its other rows.

    Of each deployment, `draws` times: three workloads, one row of each and further ones of the three at random; all
    other rows of the deployment are to be predicted.
    """
    rng = np.random.default_rng(0)
    workload = groups(rows.frame)["workload"].to_numpy()
    for models, members in own_deployments(rows, level, count):
        kinds = np.unique(workload[members])
        for _ in range(draws):
            three = rng.choice(kinds, OWN_WORKLOADS, replace=False)
            pool = members[np.isin(workload[members], three)]
            chosen = [rng.choice(members[workload[members] == w]) for w in three]
            more = min(count, len(pool)) - len(chosen)
            chosen += list(rng.choice(np.setdiff1d(pool, chosen), more, replace=False))
            yield models, np.array(chosen), np.setdiff1d(members, chosen)


def own_chosen(rows: Rows, level: pd.Series, count: int) -> Iterator[tuple]:
    """The same with the rows that ``optmodels suggest`` chooses: it is told the loads of the deployment's rows."""
    for models, members in own_deployments(rows, level, count):
        loops, order = rows.loops(members)
        chosen = order[choose(models, loops, loops, count).rows]
        yield models, chosen, np.setdiff1d(members, chosen)


def no_version(rows: Rows) -> dict[str, np.ndarray]:
    """Labels of rows whose engine's version nobody else measured."""
    return {**rows.labels, "version": (rows.frame.engine + "|None|" + rows.frame.llm).to_numpy()}


def own_rows(rows: Rows, cases: Iterable[tuple]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Measured and predicted seconds of LLMs never seen but for a few rows (`own_draws`, `own_chosen`), by target."""
    found: dict[str, list] = {target: [] for target in TARGETS}
    for models, chosen, rest in cases:
        for target, s in predictions(pulled(models, rows.served(chosen)), rows, no_version(rows)).items():
            found[target].append((rows.frame[target].to_numpy()[rest], s[rest]))
    return {t: tuple(np.concatenate(x) for x in zip(*pairs, strict=True)) for t, pairs in found.items()}


def interval(
    rows: Rows, ratio: np.ndarray, chosen: np.ndarray, level: pd.Series, what: str
) -> tuple[dict[str, float], dict[str, float]]:
    """Quantiles of measured/predicted; of workloads to the power 1/spread, and the spread by engine and LLM.

    Of a workload left out, engine and LLM are known, and so is how far their ratios lie apart: a mean |log ratio|,
    shrunken towards that of all rows. Of G LLMs, GPUs or engines, a fresh one may be worse than all: the share of
    ratios above the quantile is made smaller by G/(G + 1).
    """
    if what == "workload":
        size = np.abs(np.log(ratio[chosen]))
        by = pd.Series(size).groupby(rows.labels[SPREAD_BY][chosen].astype(str))
        spread = ((by.sum() / size.mean() + SHRINK_ROWS) / (by.size() + SHRINK_ROWS)).to_dict()
        scaled = ratio[chosen] ** (1.0 / powers(rows, spread)[chosen])
        return residual_quantiles(scaled, np.ones(len(scaled))), spread
    groups_seen = level[chosen].nunique()
    above = {f"{at:g}": (1.0 - at) * groups_seen / (groups_seen + 1.0) for at in LEVELS}
    found = {at: float(np.quantile(ratio[chosen], 1.0 - share, method="higher")) for at, share in above.items()}
    return {at: q for at, q in found.items() if above[at] * chosen.sum() >= 1.0}, {}


def elsewhere(frame: pd.DataFrame) -> np.ndarray:
    """Rows whose LLM was measured on several GPUs under their engine, (n,): of the others the LLM is left out, too."""
    return (frame.groupby(["engine", "llm"]).gpu.transform("nunique") > 1).to_numpy()


def powers(rows: Rows, spread: dict[str, float]) -> np.ndarray:
    """The spread of each row, (n,)."""
    return np.array([spread.get(v, 1.0) for v in rows.labels[SPREAD_BY]])


def stated(name: str, measured: np.ndarray, seconds: np.ndarray, aim: float | None = None, beside: str = "") -> None:
    """Print the errors of predictions."""
    error, signed = np.abs(seconds / measured - 1), seconds / measured - 1
    aimed = "" if aim is None else f" (aim {aim:.0%})"
    print(f"{name}: median {np.median(error):.1%}{aimed}, p90 {np.quantile(error, 0.9):.1%}, "
          f"median signed {np.median(signed):+.1%} (aim ±5%){beside}", flush=True)  # fmt: skip


def main() -> None:
    """Fit, judge, print, and with ``--write`` write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--h100", type=Path, help="folder with served_h100_trtllm.csv")
    parser.add_argument("--draws", type=int, default=8, help="of rows of one's own, by deployment")
    parser.add_argument("--kernels", type=Path, help="folder with tables of single kernels (Parquet)")
    parser.add_argument("--write", action="store_true", help="write the coefficients into the catalogue")
    args = parser.parse_args()
    if args.write and args.kernels is None:
        parser.error("--write needs --kernels")
    everything = read(args.rows)
    everything = everything[everything.why != "LLM or GPU that the catalogue lacks"]
    distinct = everything[everything.why != DUPLICATE].reset_index(drop=True)
    clean = (distinct.why == "").to_numpy()
    rows = Rows(distinct)
    print(f"{len(everything)} rows, {clean.sum()} fitted")
    counts = everything[everything.why != ""].why.value_counts()
    for reason, count in counts.items():
        print(f"  {count:4d} left out: {reason}")
    seen = {target: distinct[target].to_numpy() for target in TARGETS}
    peak = sum(rows.step[name] for name in ("dense", "experts", "kv", "decode", "prefill", "attention"))
    p50, p90 = np.quantile((seen["tpot_s"] / peak)[clean], [0.5, 0.9])
    print(f"measured TPOT over the sum of times at peak: median {p50:.1f}, p90 {p90:.1f}")
    models = fitted(rows, clean)
    judged: dict[str, dict] = {t: {"left_out": {}, "residual_quantiles": {}} for t in TARGETS}
    for target, seconds in predictions(models, rows).items():
        stated(f"{target}, in sample", seen[target][clean], seconds[clean])
    levels = groups(distinct)
    for what, level in levels.items():
        found = left_out(rows, level)
        share = covered(rows, level, what)
        for target, seconds in found.items():
            measured, predicted = seen[target][clean], seconds[clean]
            q, spread = interval(rows, seen[target] / seconds, clean, level, what)
            width = float(np.median(q["0.9"] ** powers(rows, spread)[clean]))
            judged[target]["left_out"][what] = errors(measured, predicted)
            judged[target]["residual_quantiles"][what] = q
            judged[target].setdefault("spread", spread)
            wide = f" (aim {INFLATION[target]:.1f})" if what == "workload" else ""
            every = np.median(np.abs(seconds / seen[target] - 1))
            stated(f"{target}, a whole {what} left out", measured, predicted, AIMS[what][target],
                   f"; all rows: median {every:.1%}; safety 0.9 multiplies by {width:.2f}{wide} and covers "
                   f"{share[target]:.3f} (aim 0.88 to 0.95)")  # fmt: skip
            if what == "gpu":
                both = elsewhere(distinct[clean])
                stated(f"{target}, of these LLMs that another GPU has under the same engine", measured[both],
                       predicted[both], AIMS[what][target])  # fmt: skip
    for what, least in LEAST_OWN.items():
        by_chance = own_rows(rows, own_draws(rows, levels["llm"], least, args.draws))
        chosen = own_rows(rows, own_chosen(rows, levels["llm"], least))
        for target in TARGETS:
            measured, predicted = by_chance[target]
            q = residual_quantiles(measured, predicted)
            judged[target]["left_out"][what] = errors(measured, predicted)
            judged[target]["residual_quantiles"][what] = q
            aim = AIMS["own"][target] if least == 5 else None
            stated(f"{target}, {least} rows of one's own by chance, LLM left out", measured, predicted, aim,
                   f"; safety 0.9 multiplies by {q['0.9']:.2f}")  # fmt: skip
            measured, predicted = chosen[target]
            stated(f"{target}, {least} rows of one's own, chosen by the command, LLM left out", measured, predicted,
                   aim, f"; {np.mean(measured <= q['0.9'] * predicted):.3f} are below that safety")  # fmt: skip
    speed(models, rows.parts[0][0])
    if args.h100 is not None:
        from latency_models import served

        for name, value, _, _ in served(args.h100)[-2:]:
            print(f"H100, `additive` fitted to each LLM, {name}: {value} (aim {'3.8%' if 'TPOT' in name else '12.0%'})")
    if args.kernels is not None:
        slower = efficiencies(args.kernels)
        models = with_efficiencies(models, slower)
        for level, terms in slower.items():
            print(f"{level}, kernels over H100's, each over its peak: "
                  + ", ".join(f"{name} ×{np.exp(x):.2f}" for name, x in terms.items()))  # fmt: skip
    if not args.write:
        return
    frame = distinct[clean]
    document = EngineModel(
        title="engine coefficients", date="2026-11-24", rows=int(clean.sum()),
        source="ai-dynamo/aiconfigurator 0.12.0, silicon samples (aggregated closed loops), Apache-2.0; fitted by "
               "benchmarks/engine_model.py",
        rows_left_out={str(k): int(v) for k, v in counts.items()},
        measured={k: tuple(sorted(frame[k].unique())) for k in ("engine", "gpu", "llm", "precision")},
        together=together(frame),
        precisions={m: tuple(sorted(g.unique())) for m, g in frame.groupby("llm").precision},
        domain={c: (float(frame[c].min()), float(frame[c].max()))
                for c in ("concurrency", "input_tokens", "output_tokens")},
        targets={t: EngineTarget(**vars(m), **judged[t]) for t, m in zip(TARGETS, models, strict=True)},
    )  # fmt: skip
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(yaml.safe_dump(_short(document.model_dump(mode="json", by_alias=True)), sort_keys=False), "utf-8")
    print(f"written: {OUT}")


def together(frame: pd.DataFrame) -> tuple[tuple[str, str, str], ...]:
    """(engine, LLM, GPU) with as many rows, over as many workloads, as one's own rows need to count as measured."""
    found = frame.assign(workload=groups(frame)["workload"]).groupby(["engine", "llm", "gpu"]).workload
    enough = (found.size() >= min(LEAST_OWN.values())) & (found.nunique() >= OWN_WORKLOADS)
    return tuple(sorted(enough.index[enough]))


def speed(models: tuple[Fitted, Fitted], d: Deployment, points: int = 1_000_000) -> None:
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
