"""The shipped coefficients of serving engines: fitted, judged on what was left out, and (``--write``) written.

    python benchmarks/engine_model.py aggregated.csv [--write]

The rows are closed loops of ai-dynamo/aiconfigurator ("silicon" samples, Apache-2.0), which are not part of this
repository. Each row that is not fitted has its reason; errors on all rows are printed beside those on the rest.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small systems: threads wait for one another

import numpy as np
import pandas as pd
import yaml

from optmodels import catalog
from optmodels.latency.engines.document import EngineModel, EngineTarget, labels
from optmodels.latency.engines.fit import Fitted, fit
from optmodels.latency.engines.forms import FIRST_TOKEN_FORM, STEP_FORM
from optmodels.latency.engines.terms import FIRST_TOKEN, STEP, Deployment, Loads, first_token_terms, step_terms
from optmodels.latency.fit.document import errors, residual_quantiles

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
    rows["concurrency"] = raw.batch_size.astype(float) * rows.ranks
    rows["why"] = ""
    deepseek = rows.llm.isin(("deepseek-v3", "deepseek-r1"))
    for reason, mask in {
        "LLM or GPU that the catalogue lacks": rows.llm.isna() | rows.gpu.isna(),
        "exact duplicate": _rounded(rows.assign(llm=rows.llm.replace(SAME_SHAPE))).duplicated(),
        "saturated: TTFT above the whole decoding time": rows.ttft_s > rows.output_tokens * rows.tpot_s,
        "vLLM 0.12 sweep without a precision, of inconsistent level": (rows.engine == "vllm")
        & (rows.version == "0.12.0") & raw.precision.isna(),
        "speculation that is not labelled (TensorRT-LLM 1.2.0rc6.post3 on DeepSeek)": deepseek
        & (rows.version == "1.2.0rc6.post3"),
        "TensorRT-LLM 1.3.0rc1: 3 to 8 times its twins of other versions": rows.version == "1.3.0rc1",
    }.items():  # fmt: skip
        rows.loc[mask & (rows.why == ""), "why"] = reason
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
        found = {name: np.zeros(len(self.frame)) for name in FIRST_TOKEN}
        for d, i, loads in self.parts:
            for name, value in first_token_terms(d, loads, step_s[i]).items():
                found[name][i] = value
        return found


def fitted(rows: Rows) -> tuple[Fitted, Fitted]:
    """Of the step and of the first token, whose step is the predicted one."""
    step = fit(STEP_FORM, rows.step, rows.frame.tpot_s.to_numpy(), rows.labels)
    predicted = step.predict(rows.step, rows.labels)
    return step, fit(FIRST_TOKEN_FORM, rows.first(predicted), rows.frame.ttft_s.to_numpy(), rows.labels)


def predictions(models: tuple[Fitted, Fitted], rows: Rows) -> dict[str, np.ndarray]:
    """Seconds by target, (n,) each."""
    step = models[0].predict(rows.step, rows.labels)
    return {"tpot_s": step, "ttft_s": models[1].predict(rows.first(step), rows.labels)}


def groups(frame: pd.DataFrame) -> dict[str, pd.Series]:
    """What is left out together, in four ways."""
    same = frame.llm.replace(SAME_SHAPE)  # leaving out one leaves out both
    workload = frame.input_tokens.astype(int).astype(str) + "+" + frame.output_tokens.astype(int).astype(str)
    return {"workload": workload, "llm": same, "gpu": frame.gpu, "engine": frame.engine}


def left_out(frame: pd.DataFrame, level: pd.Series) -> dict[str, np.ndarray]:
    """Predictions of every row by a fit without its level; rows with a reason are never fitted, but predicted."""
    found = {target: np.zeros(len(frame)) for target in ("tpot_s", "ttft_s")}
    for value in level.unique():
        inside = (level == value).to_numpy()
        models = fitted(Rows(frame[~inside & (frame.why == "").to_numpy()]))
        for target, seconds in predictions(models, Rows(frame[inside])).items():
            found[target][inside] = seconds
    return found


def quantiles(ratio: np.ndarray, level: np.ndarray, what: str) -> dict[str, float]:
    """Of measured/predicted: pooled over workloads; of LLMs, GPUs and engines the wider of pooled and worst-but-few.

    With few LLMs a pooled quantile is that of the LLM with the most rows: a fresh LLM is one draw among LLMs, so each
    has one vote, with its own quantile.
    """
    pooled = residual_quantiles(ratio, np.ones(len(ratio)))
    if what == "workload":
        return pooled
    own = [residual_quantiles(ratio[level == v], np.ones((level == v).sum())) for v in np.unique(level)]
    levels = [at for at in pooled if any(at in q for q in own)]
    wider = [max(pooled[at], np.quantile([q[at] for q in own if at in q], float(at))) for at in levels]
    return dict(zip(levels, np.maximum.accumulate(wider).tolist(), strict=True))


def main() -> None:
    """Fit, judge, print, and with ``--write`` write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--write", action="store_true", help="write the coefficients into the catalogue")
    args = parser.parse_args()
    everything = read(args.rows)
    everything = everything[everything.why != "LLM or GPU that the catalogue lacks"]
    distinct = everything[everything.why != "exact duplicate"].reset_index(drop=True)
    clean = (distinct.why == "").to_numpy()
    rows = Rows(distinct[clean])
    print(f"{len(everything)} rows, {clean.sum()} fitted")
    counts = everything[everything.why != ""].why.value_counts()
    for reason, count in counts.items():
        print(f"  {count:4d} left out: {reason}")
    peak = sum(rows.step[name] for name in ("dense", "experts", "kv", "decode", "prefill", "attention"))
    p50, p90 = np.quantile(rows.frame.tpot_s.to_numpy() / peak, [0.5, 0.9])
    print(f"measured TPOT over the sum of times at peak: median {p50:.1f}, p90 {p90:.1f}")
    models = fitted(rows)
    inside = predictions(models, rows)
    judged: dict[str, dict] = {t: {"left_out": {}, "residual_quantiles": {}} for t in inside}
    for target, seconds in inside.items():
        error = np.abs(seconds / rows.frame[target].to_numpy() - 1)
        print(f"{target}, in sample: median {np.median(error):.1%}, p90 {np.quantile(error, 0.9):.1%}")
    for what, level in groups(distinct).items():
        found = left_out(distinct, level)
        for target, seconds in found.items():
            measured = distinct[target].to_numpy()
            error, signed = np.abs(seconds / measured - 1), seconds / measured - 1
            print(f"{target}, a whole {what} left out: median {np.median(error[clean]):.1%} "
                  f"(all rows {np.median(error):.1%}), p90 {np.quantile(error[clean], 0.9):.1%}, "
                  f"median signed {np.median(signed[clean]):+.1%}", flush=True)  # fmt: skip
            judged[target]["left_out"][what] = errors(measured[clean], seconds[clean])
            judged[target]["residual_quantiles"][what] = quantiles(
                (measured / seconds)[clean], level.to_numpy()[clean], what
            )
    if not args.write:
        return
    frame = rows.frame
    document = EngineModel(
        title="engine coefficients", date="2026-11-22", rows=int(clean.sum()),
        source="ai-dynamo/aiconfigurator 0.12.0, silicon samples (aggregated closed loops), Apache-2.0; fitted by "
               "benchmarks/engine_model.py",
        rows_left_out={str(k): int(v) for k, v in counts.items()},
        measured={k: tuple(sorted(frame[k].unique())) for k in ("engine", "gpu", "llm", "precision")},
        together=tuple(sorted(set(zip(frame.engine, frame.llm, frame.gpu, strict=True)))),
        domain={c: (float(frame[c].min()), float(frame[c].max()))
                for c in ("concurrency", "input_tokens", "output_tokens")},
        targets={t: EngineTarget(coefficients=m.coefficients, adjustments=m.adjustments, factors=m.factors, **judged[t])
                 for t, m in zip(("tpot_s", "ttft_s"), models, strict=True)},
    )  # fmt: skip
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(yaml.safe_dump(_short(document.model_dump(mode="json", by_alias=True)), sort_keys=False), "utf-8")
    print(f"written: {OUT}")


def _short(value):
    """Six significant digits: the file is read by people."""
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_short(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
