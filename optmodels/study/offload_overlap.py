"""Does moving KV overlap computing? LP(11), LP(12) and LP(18) held against measured steps, α from 0 to 1.

    python -m optmodels.study.offload_overlap [--models A,B,C] [--device cpu|cuda] [--offload ram,disk] [--out DIR]
        [--budget-s SECONDS] [--grid GRID] [--layers N] [--from FILE…]

Measures each model's decode and prefill steps (`optmodels measure`), with transfers beside the computation and, as a
control, before it. Then fits, to the relative errors of each model and place:

    decode   T = β₀ + β₁·B + f·B·l + max(m·(1−α)·B·l, d·α·B·l)      LP(12), rates free: ``max``
                                   + m·(1−α)·B·l + d·α·B·l                               ``sum``
             T = max(β₀ + β₁·B + m·B·l, d·α·B·l) + ρ·min(of the same)                    ``hidden``
    prefill  T = max(β₀ + β₁·Σp + f·Σp², d·α·Σp) + ρ·min(of the same)                    LP(11) is ρ = 0

``max`` is LP(12) as printed; ``sum`` is the same without overlap. ``hidden`` lets the transfer overlap the whole step,
as LP(11) has it for prefills and the roofline variant for decoding too, and ρ is the share of the shorter that is not
hidden: 0 confirms the maximum, 1 is a sum, more than 1 says that the two slow each other down. Its interval is the
jackknife's over whole (batch, context) points. The control has to show ρ ≈ 1, else the method could not tell. Errors
are p90 on held-out (batch, context) points, every α of a point held out together. LP(18) is fitted likewise to the
predictions of the strategies' curves, by place and phase.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[np.float64]
FOLDS = 5
STARTS = ((0.3, 0.3, 0.3, 0.3, 0.3), (0.1, 0.1, 0.5, 1.0, 0.0), (0.5, 0.1, 0.1, 0.1, 1.0), (0.1, 0.1, 0.1, 2.0, 2.0))
CPU_MODELS = {  # small enough for a CPU, with a KV cache large against its last-level cache; MHA, GQA, MoE
    "small-mha": {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 8, "head_dim": 64, "ffn": 2048,
                  "ffn_matrices": 2, "vocab": 4096, "max_positions": 8192},
    "small-gqa": {"layers": 4, "hidden": 768, "heads": 12, "kv_heads": 4, "head_dim": 64, "ffn": 2048,
                  "ffn_matrices": 3, "vocab": 4096, "max_positions": 8192},
    "small-moe": {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 4, "head_dim": 64, "ffn": 1024,
                  "ffn_matrices": 3, "vocab": 4096, "max_positions": 8192,
                  "moe": {"experts": 8, "active": 2, "expert_ffn": 512}},
}  # fmt: skip
GPU_MODELS = ("llama-2-7b", "llama-3.1-8b", "qwen3-30b-a3b")  # multi-head, grouped, mixture of experts
CPU_GRID = "batch=1,2,4,8 prompt=128,256,512 context=512,1024,2048,4096 chunk=128"
GPU_GRID = "batch=1,4,16,64 prompt=256,1024,4096 context=512,2048,8192,16384 chunk=512"
ALPHAS = (0.125, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Form:
    """A model of T with non-negative parameters: `predict(θ, x)`, x of shape (n, 3): B or Σp, B·l or Σp², α."""

    names: tuple[str, ...]
    predict: Callable[[Array, Array], Array]


def _max(t: Array, x: Array) -> Array:
    n, nl, a = x.T
    found: Array = t[0] + t[1] * n + t[2] * nl + np.maximum(t[3] * (1 - a) * nl, t[4] * a * nl)
    return found


def _sum(t: Array, x: Array) -> Array:
    n, nl, a = x.T
    found: Array = t[0] + t[1] * n + t[2] * nl + t[3] * (1 - a) * nl + t[4] * a * nl
    return found


def _hidden(t: Array, x: Array, moved: Array) -> Array:
    work = t[0] + t[1] * x[:, 0] + t[2] * x[:, 1]
    transfer = t[3] * moved
    found: Array = np.maximum(work, transfer) + t[4] * np.minimum(work, transfer)
    return found


DECODE = {
    "max": Form(("fixed", "request", "compute", "resident", "moved"), _max),
    "sum": Form(("fixed", "request", "compute", "resident", "moved"), _sum),
    "hidden": Form(("fixed", "request", "resident", "moved", "rho"), lambda t, x: _hidden(t, x, x[:, 2] * x[:, 1])),
}
PREFILL = {
    "hidden": Form(
        ("fixed", "token", "attention", "moved", "rho"), lambda t, x: _hidden(t, x, x[:, 2] * x[:, 0])
    ),
}  # fmt: skip


def fit(form: Form, x: Array, y: Array) -> Array:
    """Non-negative parameters of least relative error (soft-L1), from several starts because ``max`` has kinks."""
    from scipy.optimize import least_squares

    scale = np.array([
        y.mean(), *(y.mean() / np.maximum(c.mean(), 1e-30) for c in (x[:, 0], x[:, 1])),
        y.mean() / np.maximum(x[:, 1].mean(), 1e-30), 0.0,
    ])  # fmt: skip
    if form.names[-1] == "rho":  # the transfer is per token moved, ρ is a share
        per = x[:, 1] if form is DECODE["hidden"] else x[:, 0]
        scale[3], scale[4] = y.mean() / per.mean(), 1.0
    else:
        scale[4] = scale[3]

    def residual(t: Array) -> Array:
        return np.asarray(form.predict(t * scale, x) / y - 1.0)

    best: Any = None
    for start in (
        (0.3, 0.3, 0.3, 0.3, 0.3),
        (0.1, 0.1, 0.5, 1.0, 0.0),
        (0.5, 0.1, 0.1, 0.1, 1.0),
        (0.1, 0.1, 0.1, 2.0, 2.0),
    ):
        found = least_squares(residual, start, bounds=(0.0, np.inf), loss="soft_l1", f_scale=0.1, max_nfev=400)
        if best is None or found.cost < best.cost:
            best = found
    parameters: Array = best.x * scale
    return parameters


def held_out(form: Form, x: Array, y: Array, group: npt.NDArray[np.intp]) -> Array:
    """Predictions of each row by a fit that saw no row of its group's fold."""
    kinds = np.unique(group)
    fold = (np.random.default_rng(0).permutation(len(kinds)) % min(FOLDS, len(kinds)))[np.searchsorted(kinds, group)]
    found = np.full(len(y), np.nan)
    for k in np.unique(fold):
        test = fold == k
        found[test] = form.predict(fit(form, x[~test], y[~test]), x[test])
    return found


def rho_interval(form: Form, x: Array, y: Array, group: npt.NDArray[np.intp]) -> tuple[float, float, float]:
    """ρ and its 95 % jackknife interval over groups."""
    from scipy.stats import t as student

    whole = float(fit(form, x, y)[-1])
    kinds = np.unique(group)
    without = np.array([fit(form, x[group != k], y[group != k])[-1] for k in kinds])
    n = len(kinds)
    error = float(np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum()))
    half = float(student.ppf(0.975, n - 1)) * error
    return whole, max(0.0, whole - half), whole + half


def analyse(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """One line for each model, phase, place and schedule: the forms' held-out errors, ρ, LP(18).

    Args:
        frame: Rows as `optmodels measure` writes them, with a column ``model``.
    """
    found = []
    for (model, phase), part in frame[frame["phase"] != "mixed"].groupby(["model", "phase"]):
        resident = part[(part["family"] == "high_end") & (part["prefill_context_tokens"] == 0)]
        for (family, schedule), moved in part[part["alpha"] > 0].groupby(["family", "schedule"]):
            if family == "ao":
                continue
            import pandas as pd

            rows = pd.concat([resident, moved])
            x, y, group = _inputs(rows, phase == "decode")
            if len(np.unique(group)) < 4:
                continue
            line: dict[str, Any] = {
                "model": model, "phase": phase, "family": family, "schedule": schedule, "rows": len(rows),
                "points": len(np.unique(group)),
            }  # fmt: skip
            for name, form in (DECODE if phase == "decode" else PREFILL).items():
                error = np.abs(held_out(form, x, y, group) / y - 1.0)
                line[f"{name}_p50"], line[f"{name}_p90"] = (float(q) for q in np.quantile(error, [0.5, 0.9]))
                if name == "hidden":
                    line["rho"], line["rho_low"], line["rho_high"] = rho_interval(form, x, y, group)
                    t = fit(form, x, y)
                    line["moved_s_per_token"] = float(t[3])
                    # ρ is told only where there is something to hide: the shorter part's share of the step.
                    n = x[:, 2] > 0
                    per = x[:, 1] if phase == "decode" else x[:, 0]
                    work = t[0] + t[1] * x[:, 0] + t[2] * x[:, 1]
                    transfer = t[3] * x[:, 2] * per
                    line["hideable"] = float(np.median((np.minimum(work, transfer) / y)[n]))
            for variant, column in (("roofline", "predicted_s"), ("paper", "predicted_paper_s")):
                line[f"lp18_{variant}_p90"] = _lp18(moved, column)
            found.append(line)
    return found


def _inputs(rows: pd.DataFrame, decode: bool) -> tuple[Array, Array, npt.NDArray[np.intp]]:
    import pandas as pd

    a, y = np.asarray(rows["alpha"], float), np.asarray(rows["latency_s"], float)
    if decode:
        n = np.asarray(rows["decode_requests"], float)
        second = n * (np.asarray(rows["decode_context_tokens"], float) + 1)
    else:
        n = np.asarray(rows["prefill_tokens"], float)
        second = n**2 / np.asarray(rows["prefill_requests"], float)
    group, _ = pd.factorize(pd.Series(list(zip(n, second, strict=True))))
    return np.stack([n, second, a], axis=1), y, group.astype(np.intp)


def _lp18(rows: pd.DataFrame, column: str) -> float | None:
    """p90 error of β₁·T_pred + β₀ on held-back (batch, context) points."""
    from optmodels.errors import InputError
    from optmodels.latency.fit.calibrate import calibrate_measurements
    from optmodels.latency.fit.measurements import STEP_COLUMNS, measurements

    part = rows[rows[column].notna()]
    names = part[list(STEP_COLUMNS)].astype(str).agg(" ".join, axis=1)
    try:
        values = {"predicted_s": part[column], "latency_s": part["latency_s"], "point": names}
        m = measurements("pairs", {k: np.asarray(v) for k, v in values.items()}, workload=["point"])
        cross = calibrate_measurements(m, "scaled").model.targets["latency_s"].cross_validated
    except InputError:
        return None
    return None if cross is None else cross.p90


def verdict(lines: list[dict[str, Any]]) -> list[str]:
    """What the numbers say of the maximum, one sentence for each model, phase and place."""
    said = []
    for line in (x for x in lines if x["schedule"] == "overlap"):
        where = f"{line['model']}, {line['phase']}, {line['family']}"
        control = next(
            (
                x
                for x in lines
                if x["schedule"] == "serial" and all(x[k] == line[k] for k in ("model", "phase", "family"))
            ),
            None,
        )
        text = f"ρ = {line['rho']:.2f} [{line['rho_low']:.2f}, {line['rho_high']:.2f}]"
        if control is not None:
            text += f", control {control['rho']:.2f} [{control['rho_low']:.2f}, {control['rho_high']:.2f}]"
        if line["hideable"] < 0.05:
            outcome = "nothing to be told: the shorter part is below 5 % of the step"
        elif line["rho_high"] < 0.5:
            outcome = "the maximum is confirmed"
        elif line["rho_low"] > 0.5:
            outcome = "the maximum is refuted: most of the shorter part shows"
        else:
            outcome = "undecided"
        said.append(f"{where}: {outcome}; {text}")
    return said


def gather(arguments: argparse.Namespace) -> pd.DataFrame:
    """Measure, or read what was measured."""
    import pandas as pd

    from optmodels import catalog
    from optmodels.catalog.types import Architecture
    from optmodels.latency.fit.measurements import read_frame
    from optmodels.measure import campaign
    from optmodels.measure.grid import Grid

    if arguments.sources:
        frames = [read_frame(p).assign(model=campaign.read_about(p).get("model", p.stem)) for p in arguments.sources]
        return pd.concat(frames, ignore_index=True)
    cpu = arguments.device == "cpu"
    names = arguments.models.split(",") if arguments.models else (list(CPU_MODELS) if cpu else list(GPU_MODELS))
    frames = []
    for name in names:
        arch = catalog.llms()[name] if name in catalog.llms() else Architecture.model_validate(CPU_MODELS[name])
        c = campaign.Campaign(
            arch=arch, model=name, grid=Grid.parse(arguments.grid or (CPU_GRID if cpu else GPU_GRID)),
            offload=tuple(arguments.offload.split(",")), alphas=ALPHAS, schedules=("overlap", "serial"),
            device=arguments.device, layers=arguments.layers, budget_s=arguments.budget_s, folder=arguments.out,
            repeats=arguments.repeats,
        )  # fmt: skip
        path = arguments.out / f"{name}.parquet"
        measured = campaign.measure(c, path.with_suffix(".journal"), campaign.to_stderr)
        campaign.write(path, measured, overwrite=True)
        frames.append(measured.frame.assign(model=name))
    return pd.concat(frames, ignore_index=True)


def main(words: list[str]) -> int:
    """Measure, fit, say."""
    from optmodels.cli.console import report_mistakes, show
    from optmodels.errors import InputError

    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--models", help="of the catalogue, or of " + ", ".join(CPU_MODELS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--offload", default="ram,disk")
    parser.add_argument("--grid")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--budget-s", type=float, help="for each model")
    parser.add_argument("--out", type=Path, default=Path("results/offload_overlap"))
    parser.add_argument("--from", dest="sources", type=Path, nargs="+", help="measured before: read, do not measure")
    arguments = parser.parse_args(words)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        lines = analyse(gather(arguments))
    except InputError as error:
        report_mistakes(error)
        return 2
    (arguments.out / "overlap.json").write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")
    for line in lines:
        shown = [f"{line['model']} {line['phase']} {line['family']} {line['schedule']} ({line['rows']} rows)"]
        shown += [f"{n} p90 {line[f'{n}_p90']:.1%}" for n in ("max", "sum", "hidden") if f"{n}_p90" in line]
        shown += [f"hideable {line['hideable']:.0%}", f"rho {line['rho']:.2f}"]
        shown += [
            f"LP(18) on {v} p90 {line[f'lp18_{v}_p90']:.1%}" for v in ("roofline", "paper") if line[f"lp18_{v}_p90"]
        ]
        show(["; ".join(shown)])
    show(verdict(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
