"""How wrong the latency models are on real measurements, against their baselines and targets.

    python benchmarks/latency_models.py [--data FOLDER] [--write docs/results/latency-models.md]

Reads the public measurements that stand beside the project (see docs/latency-models.md); without them there is
nothing to measure. Prints a Markdown table; `--write` puts it between the markers of the page.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from optmodels.errors import InputError
from optmodels.latency.attribution import Attributor
from optmodels.latency.fit import calibrate_measurements, read_measurements
from optmodels.latency.fit.calibrate import folds
from optmodels.latency.fit.document import Frame, errors, load_of, predict_segments
from optmodels.latency.fit.forms import FitOptions, fit_segments
from optmodels.latency.fit.reference import Reference

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data" / "latency"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
STEP = {
    "prefill_tokens": "prefill_chunk",
    "prefill_context_tokens": "kv_prefill",
    "decode_requests": "n_decode",
    "decode_context_tokens": "kv_decode",
    "latency_s": "step_ms:ms",
}
SERVED = {
    "input_tokens": "isl",
    "output_tokens": "osl",
    "concurrency": "batch_size",
    "tp": "tp_size",
    "ttft_s": "silicon_ttft_ms:ms",
    "tpot_s": "silicon_tpot_ms:ms",
}
STATIC = {
    "input_tokens": "Input Output Length",
    "output_tokens": "Input Output Length",
    "batch": "Batch Size",
    "tp": "Num of Hardware",
    "latency_s": "Latency",
}
SERVED_MODELS = {
    "Qwen_Qwen3-32B.csv": "qwen3-32b",
    "meta-llama_Llama-3.1-8B-Instruct.csv": "llama-3.1-8b",
    "Qwen_Qwen3-235B-A22B-FP8.csv": "qwen3-235b-a22b",
}
STEP_FILES = ("Llama-3.1-8B_tp1", "Llama-3.1-8B_tp2", "Qwen3-32B_tp1")


def held_back(m, model, target, options):
    """(n,) predictions by models that never saw the row's workload."""
    out = np.full(len(m), np.nan)
    fold = folds(m.workload)
    for k in np.unique(fold):
        try:
            segments, _ = fit_segments(model, m.take(fold != k), target, options)
        except InputError:
            continue
        frame = Frame(model, m.kind, options.reference)
        out[fold == k] = predict_segments(frame, segments, m.take(fold == k).values, target)
    return out


def steps(data):
    """Step models: VTC, LV(1), additive."""
    rows = []
    for name in STEP_FILES:
        path = data / "mixed_batches" / f"steps_RTXPRO6000_{name}.csv.gz"
        for by in (None, ["decode_requests", "decode_context_tokens"]):
            m = read_measurements(path, columns=STEP, workload=by)
            kind = load_of("step", m.values).segment
            y = m.values["latency_s"]
            found = {}
            for model in ("vtc", "two_segment", "additive"):
                found[model] = held_back(m, model, "latency_s", FitOptions())
            if by is None:
                for part in ("prefill", "decode"):
                    here = kind == part
                    v, lv, a = (errors(y[here], found[k][here]) for k in found)
                    rows.append(
                        (
                            f"{name}, {part} steps: p90 / p99, VTC → LV(1) → additive",
                            f"{v.p90:.1%} / {v.p99:.1%} → {lv.p90:.1%} / {lv.p99:.1%} → {a.p90:.1%} / {a.p99:.1%}",
                            f"LV(1) {v.p90 / lv.p90:.1f}× / {v.p99 / lv.p99:.1f}×, "
                            f"additive {v.p90 / a.p90:.1f}× / {v.p99 / a.p99:.1f}× lower",
                            {"prefill": "2.5× / 3.3×", "decode": "3.5× / 4.4×"}[part],
                        )
                    )
            seen = np.isfinite(found["additive"]) & ((kind != "prefill") | (by is None))
            lv, a = (errors(y[seen], found[k][seen]) for k in ("two_segment", "additive"))
            what = "prompts (or contexts)" if by is None else "decode sets"
            rows.append(
                (
                    f"{name}, all steps, whole {what} held out: p90",
                    f"{a.p90:.1%}",
                    f"LV(1) {lv.p90:.1%}",
                    "≤ 10 %",
                )
            )
    return rows


def served(data):
    """Closed-loop request models."""
    rows, pooled = [], {"ttft_s": [], "tpot_s": []}
    for source, llm in SERVED_MODELS.items():
        options = FitOptions(Reference("h100", llm, "fp8"))
        m = read_measurements(data / "served_h100_trtllm.csv", columns=SERVED, where={"source": source})
        _, tbt = options.reference.latencies(m.values)
        ttft, _ = options.reference.latencies(m.values | {"concurrency": np.ones(len(m))})  # one prompt alone
        raw = {"ttft_s": ttft, "tpot_s": tbt}
        by_tp = read_measurements(
            data / "served_h100_trtllm.csv", columns=SERVED, where={"source": source}, workload=["tp"]
        )
        for target, limit in (("tpot_s", "≤ 6 %"), ("ttft_s", "≤ 30 %")):
            y = m.values[target]
            out = held_back(m, "additive", target, options)
            pooled[target].append(np.abs(out / y - 1))
            tp = held_back(by_tp, "additive", target, options)
            ok = np.isfinite(tp)
            tp_text = f"leave-one-TP-out {errors(y[ok], tp[ok]).mape:.1%}" if ok.any() else "one TP only"
            rows.append(
                (
                    f"{llm}: {target[:4].upper()} MAPE, leave one workload out",
                    f"{errors(y, out).mape:.1%}",
                    f"{tp_text}; pure roofline {errors(y, raw[target]).mape:.0%}",
                    limit,
                )
            )
    for target, limit, peer in (
        ("tpot_s", "≤ 6 %", "12.6 %, roofline 38 %"),
        ("ttft_s", "≤ 30 %", "54 %, roofline 74 %"),
    ):
        e = np.concatenate(pooled[target])
        rows.append(
            (
                f"all {len(e)} rows: {target[:4].upper()} MAPE, leave one workload out",
                f"{e.mean():.1%}",
                f"public peer {peer}",
                limit,
            )
        )
    return rows


def static(data):
    """Static batches, one model for each (GPU, count, engine, LLM) and pooled over counts."""
    import pandas as pd

    frame = pd.read_csv(data / "static_batches_a100_h100.csv")
    rows = []
    for what, keys in (
        ("each GPU × count × engine × LLM", ["Hardware", "Num of Hardware", "Framework", "Model"]),
        ("pooled over counts", ["Hardware", "Framework", "Model"]),
    ):
        inside, outside, lengths = [], [], []
        for key, part in frame.groupby(keys):
            if len(part) < 12:
                continue
            where = {k: str(v) for k, v in zip(keys, key, strict=True)}
            path = data / "static_batches_a100_h100.csv"
            m = read_measurements(path, columns=STATIC, where=where)
            y = m.values["latency_s"]
            segments, _ = fit_segments("additive", m, "latency_s", FitOptions())
            inside.append(errors(y, predict_segments(Frame("additive", "static"), segments, m.values, "latency_s")).p90)
            out = held_back(m, "additive", "latency_s", FitOptions())
            outside.append(errors(y, out).p90)
            by_length = read_measurements(path, columns=STATIC, where=where, workload=["input_tokens"])
            lengths.append(errors(y, held_back(by_length, "additive", "latency_s", FitOptions())).p90)
        n = len(inside)
        rows.append(
            (
                f"{what} ({n}): median p90 in sample",
                f"{np.median(inside):.1%}",
                f"{np.mean(np.array(inside) <= 0.05):.0%} of them within",
                "≤ 5 %",
            )
        )
        rows.append(
            (
                f"{what} ({n}): median p90, batch sizes left out",
                f"{np.median(outside):.1%}",
                f"lengths left out {np.median(lengths):.1%}",
                "≤ 15 %",
            )
        )
    return rows


def coverage(data):
    """Safety levels on rows that the calibration never saw."""
    rows = []
    for name in STEP_FILES:
        m = read_measurements(data / "mixed_batches" / f"steps_RTXPRO6000_{name}.csv.gz", columns=STEP)
        half = np.random.default_rng(1).permutation(m.workload.max() + 1)[m.workload] % 2 == 0
        model = calibrate_measurements(m.take(half), "additive").model
        test = m.take(~half)
        y = test.values["latency_s"]
        text = ", ".join(
            f"{s:g}: {np.mean(y <= model.predict(test.values, safety=s)):.3f}" for s in (0.8, 0.9, 0.95, 0.99)
        )
        rows.append(
            (
                f"{name}: share of unseen steps below the safety level",
                text,
                "other half of the prompts",
                "= level",
            )
        )
    return rows


def speed(data, batch=512):
    """Microseconds per request, and against a random forest in the same run."""
    m = read_measurements(data / "mixed_batches" / "steps_RTXPRO6000_Llama-3.1-8B_tp1.csv.gz", columns=STEP)
    model = calibrate_measurements(m, "additive").model
    attributor = Attributor(model)
    rng = np.random.default_rng(0)
    tokens, context = np.ones(batch), rng.integers(1, 8192, batch).astype(float)
    decoding = np.ones(batch, dtype=bool)
    tokens[:8], decoding[:8] = 256.0, False

    def best(run, repeat):
        times = []
        for _ in range(repeat):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return float(np.median(times))

    ours = best(lambda: attributor.shares(tokens, context, decoding), 300)
    predict = best(lambda: attributor.latency(tokens, context, decoding), 300)
    rows = [
        (
            f"attribution of a batch of {batch}",
            f"{1e6 * ours / batch:.2f} µs per request",
            f"{1e6 * ours:.0f} µs per step",
            "≤ 1 µs",
        )
    ]
    try:
        from sklearn.ensemble import RandomForestRegressor
    except ImportError:
        rows.append(("against a random forest", "not measured", "scikit-learn is not installed", "≥ 100×"))
        return rows
    v = m.values
    X = np.stack(
        [v[k] for k in ("prefill_tokens", "prefill_context_tokens", "decode_requests", "decode_context_tokens")],
        1,
    )
    forest = RandomForestRegressor(100, n_jobs=1, random_state=0).fit(X, v["latency_s"])
    # A forest has no shares: the nearest it offers is the step without each request in turn, as a batch of queries.
    row = np.array([[tokens[:8].sum(), context[:8].mean(), batch - 8.0, context[8:].mean()]])
    once = best(lambda: forest.predict(row), 30)
    each = best(lambda: [forest.predict(row) for _ in range(8)], 3) * batch / 8
    stacked = best(lambda: forest.predict(np.repeat(row, batch, axis=0)), 10)
    rows.append(
        (
            "random forest (100 trees): one what-if query per request, one by one",
            f"{each / ours:.0f}× slower",
            f"in one array {stacked / ours:.0f}×; one prediction {once / predict:.0f}× our prediction",
            "≥ 100×",
        )
    )
    return rows


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        parser.exit(2, f"no measurements at {arguments.data}: nothing to measure\n")
    lines = ["| what | measured | beside | target |", "|---|---|---|---|"]
    for part in (steps, served, static, coverage, speed):
        for row in part(arguments.data):
            lines.append("| " + " | ".join(row) + " |")
            print(lines[-1], flush=True)
    if arguments.write:
        text = arguments.write.read_text(encoding="utf-8")
        head, _, rest = text.partition(BEGIN)
        _, _, tail = rest.partition(END)
        arguments.write.write_text(f"{head}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
