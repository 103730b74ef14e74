"""Does moving KV overlap computing? LP(11), LP(12) and LP(18) held against measured steps, α from 0 to 1.

    python -m papers.offload_overlap FILE... [--out DIR]

FILE is a table (CSV, Parquet), one row a measured step: `STEP_COLUMNS` of `optmodels.latency.fit.measurements`,
``phase`` (prefill, decode), ``family`` (high_end, kvo_ram, kvo_disk), ``alpha``, ``schedule`` (overlap: transfers with
the computation; serial: transfers before it), ``tp``, ``latency_s``; ``resident_s`` and ``serial_s`` of an overlapped
step: the same step, timed in turns with it, with all KV resident and with transfers first; ``predicted_s`` and
``predicted_paper_s``: the strategies' curves. The study writes ``DIR/overlap.json``.

The work is w (all KV resident), the transfer x (the serial step less w), the step T with both at once. The share of the
shorter part that is not hidden is

    ρ = (T − max(w, x)) / min(w, x):

0 is the maximum of LP(11) and LP(12), 1 a sum, more than 1 says that the two slow each other down. ρ is the median over
the steps in which there is something to hide (min(w, x) at least 5 % of T), its interval a bootstrap over whole
(batch, context) points. Nothing is fitted for it.

Then models of T, rates free, fitted to relative errors, by p90 on held-out (batch, context) points (every α of a point
held out together):

    ``max``     β₀ + β₁·B + f·B·l + max(m·(1−α)·B·l, d·α·B·l)       LP(12) as printed
    ``sum``     the same with + in place of the maximum
    ``hidden``  max(β₀ + β₁·B + m·B·l, d·α·B·l) + ρ·min(of the same), ρ free: the transfer may hide behind the whole
                step, as LP(11) has it for prefills (Σp, Σp² in place of B, B·l) and the roofline variant for decoding

and LP(18), β₁·T_pred + β₀ of the strategies' curves, by place and phase.
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

from optmodels.arrays import Array, Index, Mask

if TYPE_CHECKING:
    import pandas as pd

FOLDS = 5
LEAST_HIDEABLE = 0.05
RESAMPLES = 1000


@dataclass(frozen=True)
class Form:
    """T as a sum of terms once it is known which part of each row's maximum is the larger.

    Attributes:
        terms: (x, branch, ρ) → (n, k): the terms of each row; `branch` is true where the first part is the larger.
        first: (x, θ) → (n,): by how much the first part exceeds the second.
        shares: Values of ρ to try; one value where the form has no ρ.
    """

    terms: Callable[[Array, Mask, float], Array]
    first: Callable[[Array, Array], Array]
    shares: tuple[float, ...] = (0.0,)

    def predict(self, t: Array, x: Array) -> Array:
        """T; the last parameter is ρ."""
        found: Array = self.terms(x, self.first(x, t[:-1]) >= 0, float(t[-1])) @ t[:-1]
        return found


def _paper_terms(x: Array, resident: Mask, _: float) -> Array:
    n, nl, a, _ = x.T
    return np.stack([np.ones_like(n), n, nl, np.where(resident, (1 - a) * nl, 0.0), np.where(resident, 0.0, a * nl)], 1)


def _sum_terms(x: Array, _: Mask, __: float) -> Array:
    n, nl, a, _ = x.T
    return np.stack([np.ones_like(n), n, nl, (1 - a) * nl, a * nl], 1)


def _hidden_terms(x: Array, work: Mask, rho: float) -> Array:
    n, second, _, moved = x.T
    weight = np.where(work, 1.0, rho)
    return np.stack([weight, weight * n, weight * second, np.where(work, rho, 1.0) * moved], 1)


def _work_and_transfer(x: Array, t: Array) -> tuple[Array, Array]:
    return t[0] + t[1] * x[:, 0] + t[2] * x[:, 1], t[3] * x[:, 3]


FORMS = {
    "max": Form(_paper_terms, lambda x, t: t[3] * (1 - x[:, 2]) * x[:, 1] - t[4] * x[:, 2] * x[:, 1]),
    "sum": Form(_sum_terms, lambda x, t: np.ones(len(x))),
    "hidden": Form(
        _hidden_terms,
        lambda x, t: np.subtract(*_work_and_transfer(x, t)),
        tuple(np.round(np.arange(0.0, 3.01, 0.1), 2).tolist()),
    ),
}


def fit(form: Form, x: Array, y: Array) -> Array:
    """Non-negative parameters of least squared relative error, ρ last.

    Given ρ and the larger part of each row the form is linear, so non-negative least squares alternate with the
    choice of branches, from several first choices, for every ρ of a grid and then of a finer one around the best.
    """
    from scipy.optimize import nnls

    starts = [np.ones(len(y), bool), *(x[:, 2] <= a for a in (0.2, 0.5)), np.zeros(len(y), bool) | (x[:, 2] == 0)]

    def at(rho: float) -> tuple[float, Array]:
        best = (np.inf, np.zeros(0))
        for branch in starts:
            for _ in range(12):
                X = form.terms(x, branch, rho)
                scale = np.maximum(np.abs(X / y[:, None]).max(axis=0), 1e-300)
                t = nnls(X / y[:, None] / scale, np.ones(len(y)))[0] / scale
                loss = float(((form.predict(np.append(t, rho), x) / y - 1.0) ** 2).sum())
                if loss < best[0]:
                    best = (loss, np.append(t, rho))
                new = form.first(x, t) >= 0
                if (new == branch).all():
                    break
                branch = new
        return best

    best = min((at(rho) for rho in form.shares), key=lambda f: f[0])
    for step in (0.02, 0.004) if len(form.shares) > 1 else ():
        around = best[1][-1] + step * np.arange(-5, 6)
        best = min((best, *(at(float(r)) for r in around if r >= 0)), key=lambda f: f[0])
    return best[1]


def held_out(form: Form, x: Array, y: Array, group: Index) -> Array:
    """Predictions of each row by a fit that saw no row of its group's fold."""
    kinds = np.unique(group)
    fold = (np.random.default_rng(0).permutation(len(kinds)) % min(FOLDS, len(kinds)))[np.searchsorted(kinds, group)]
    found = np.full(len(y), np.nan)
    for k in np.unique(fold):
        test = fold == k
        found[test] = form.predict(fit(form, x[~test], y[~test]), x[test])
    return found


def exposed(w: Array, x: Array, T: Array, group: Index) -> dict[str, float | int | None]:
    """Median ρ over steps with something to hide, with a 95 % bootstrap interval over groups.

    Args:
        w: (n,) seconds with all KV resident. x: (n,) of the transfer alone. T: (n,) of both at once.
        group: (n,) the (batch, context) point of each.
    """
    shorter = np.minimum(w, x)
    told = (shorter >= LEAST_HIDEABLE * T) & (x > 0)
    found: dict[str, float | int | None] = {"hideable_steps": int(told.sum()), "steps": len(T)}
    if len(np.unique(group[told])) < 3:
        return found | {"rho": None, "rho_low": None, "rho_high": None}
    rho = ((T - np.maximum(w, x)) / np.where(told, shorter, 1.0))[told]
    parts = [rho[group[told] == k] for k in np.unique(group[told])]
    rng = np.random.default_rng(0)
    again = [
        float(np.median(np.concatenate([parts[i] for i in rng.integers(0, len(parts), len(parts))])))
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(again, [0.025, 0.975])
    return found | {"rho": float(np.median(rho)), "rho_low": float(low), "rho_high": float(high)}


def analyse(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """One line for each model, phase and place: ρ, the forms' held-out errors, LP(18).

    Args:
        frame: Measured steps, with the columns above and ``model``.
    """
    import pandas as pd

    found = []
    steps = frame[(frame["phase"] != "mixed") & (frame["prefill_context_tokens"] == 0) & (frame["family"] != "ao")]
    for (model, phase), part in steps.groupby(["model", "phase"]):
        resident = part[part["family"] == "high_end"]
        for family, moved in part[part["family"] != "high_end"].groupby("family"):
            overlap = moved[moved["schedule"] == "overlap"]
            line: dict[str, Any] = {"model": model, "phase": phase, "family": family}
            line |= _exposed(overlap)
            rows = pd.concat([resident, overlap])
            x, y, group = _inputs(rows, phase == "decode")
            line |= {"rows": len(rows), "points": len(np.unique(group))}
            for name in ("max", "sum", "hidden") if phase == "decode" else ("hidden",):
                if line["points"] < FOLDS:
                    continue
                error = np.abs(held_out(FORMS[name], x, y, group) / y - 1.0)
                line[f"{name}_p50"], line[f"{name}_p90"] = (float(q) for q in np.quantile(error, [0.5, 0.9]))
            for variant, column in (("roofline", "predicted_s"), ("paper", "predicted_paper_s")):
                line[f"lp18_{variant}_p90"] = _lp18(overlap, column)
            found.append(line)
    return found


def _exposed(overlap: pd.DataFrame) -> dict[str, float | int | None]:
    """`exposed` of the steps that were timed in turns with their control and with all KV resident."""
    import pandas as pd

    from optmodels.latency.fit.measurements import STEP_COLUMNS

    rows = overlap[overlap["resident_s"].notna() & overlap["serial_s"].notna()]
    T, w, s = (np.asarray(rows[c], float) for c in ("latency_s", "resident_s", "serial_s"))
    group, _ = pd.factorize(
        pd.Series(list(rows[[*STEP_COLUMNS, "tp"]].itertuples(index=False, name=None)), dtype=object)
    )
    return exposed(w, s - w, T, group.astype(np.intp))


def _inputs(rows: pd.DataFrame, decode: bool) -> tuple[Array, Array, Index]:
    import pandas as pd

    a, y = np.asarray(rows["alpha"], float), np.asarray(rows["latency_s"], float)
    if decode:
        n = np.asarray(rows["decode_requests"], float)
        second = n * (np.asarray(rows["decode_context_tokens"], float) + 1)
    else:
        n = np.asarray(rows["prefill_tokens"], float)
        second = n**2 / np.asarray(rows["prefill_requests"], float)
    group, _ = pd.factorize(pd.Series(list(zip(n, second, strict=True))))
    return np.stack([n, second, a, a * (second if decode else n)], axis=1), y, group.astype(np.intp)


def _lp18(rows: pd.DataFrame, column: str) -> float | None:
    """p90 error of β₁·T_pred + β₀ on held-back (batch, context) points."""
    from optmodels.errors import InputError
    from optmodels.latency.fit.calibrate import calibrate_measurements
    from optmodels.latency.fit.measurements import STEP_COLUMNS, measurements

    part = rows[rows[column].notna()]
    if part.empty:
        return None
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
    for line in lines:
        where = f"{line['model']}, {line['phase']}, {line['family']}"
        steps = f"{line['hideable_steps']} of {line['steps']} steps have something to hide"
        if line["rho"] is None:
            said.append(f"{where}: nothing to be told, {steps}")
            continue
        if line["rho_high"] < 0.5:
            outcome = "the maximum is confirmed"
        elif line["rho_low"] > 0.5:
            outcome = "the maximum is refuted"
        else:
            outcome = "undecided"
        said.append(
            f"{where}: {outcome}, rho = {line['rho']:.2f} ({line['rho_low']:.2f} to {line['rho_high']:.2f}); {steps}"
        )
    return said


def described(line: dict[str, Any]) -> str:
    """One line of `analyse` in words."""
    shown = [f"{line['model']} {line['phase']} {line['family']} ({line['rows']} rows, {line['points']} points)"]
    shown += [f"{n} p90 {line[f'{n}_p90']:.1%}" for n in ("max", "sum", "hidden") if f"{n}_p90" in line]
    shown += [f"LP(18) on {v} p90 {line[f'lp18_{v}_p90']:.1%}" for v in ("roofline", "paper") if line[f"lp18_{v}_p90"]]
    return "; ".join(shown)


def read_about(path: Path) -> dict[str, Any]:
    """Read the header of a measurement file; empty for a file that `importers.rows.write` did not make."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            text = (pq.read_schema(path).metadata or {}).get(b"optmodels", b"{}").decode()
        else:
            with path.open(encoding="utf-8") as stream:
                first = stream.readline()
            text = first[1:] if first.startswith("# {") else "{}"
        found = json.loads(text)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def main(words: list[str]) -> int:
    """Read, fit, print."""
    import pandas as pd

    from optmodels.cli.console import report_mistakes, show
    from optmodels.errors import InputError
    from optmodels.latency.fit.measurements import read_frame

    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="measured steps")
    parser.add_argument("--out", type=Path, default=Path("results/offload_overlap"))
    arguments = parser.parse_args(words)
    try:
        frames = [read_frame(p).assign(model=read_about(p).get("model", p.stem)) for p in arguments.files]
        lines = analyse(pd.concat(frames, ignore_index=True))
    except InputError as error:
        report_mistakes(error)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "overlap.json").write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")
    show([*map(described, lines), *verdict(lines)])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
