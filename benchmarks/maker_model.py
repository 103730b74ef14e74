"""Coefficients of one maker's GPUs on top of the shipped ones, which stay: fitted, judged on parts left out, written.

    python benchmarks/maker_model.py FOLDER [--write]

FOLDER holds served_amd_2026-01.csv of InferenceMAX (SemiAnalysis, figures), which is not part of this repository:
closed loops of SGLang with DeepSeek-R1 on AMD's GPUs. They add levels of the maker, the chip and the GPU to the shipped
coefficients (`engines.fit.adjust`). Each part is left out once: a workload, a GPU, a precision, and the only LLM, which
leaves the coefficients without any of these rows. Coverage is that of the shipped interval for the parts then unseen.
Groups (engine, LLM, GPU and precision) have equal weight. ``--write`` writes the file of coefficients and the table of
docs/results/latency-models.md.

A run whose first tokens at p99 take `WARM_UP` times their mean compiled kernels meanwhile: its TTFT is not fitted and
not judged, its TPOT is.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np
import pandas as pd
from engine_model import (
    AMD_ROWS,
    OUT,
    Rows,
    no_version,
    one_shape,
    only,
    predictions,
    read_amd,
    save,
    together,
    workloads,
)
from left_groups import errors_of

from optmodels import catalog
from optmodels.latency.engines.document import EngineModel, Judged, MakerRows, maker, read_engine_model
from optmodels.latency.engines.fit import Fitted, Form, adjust
from optmodels.latency.engines.interval import PARTS, unseen_levels
from optmodels.latency.engines.own import TARGETS

MAKER, DATE = "AMD", "2026-01"
SOURCE = "closed loops of InferenceMAX (SemiAnalysis), SGLang with DeepSeek-R1; fitted by benchmarks/maker_model.py"
WARM_UP = 30.0
PAGE = Path(__file__).parents[1] / "docs" / "results" / "latency-models.md"
TABLE = re.compile(r"(<!-- makers: begin -->\n)(.*?)(<!-- makers: end -->)", flags=re.S)
KINDS = {
    "known": ("a workload", workloads), "gpu": ("a GPU", lambda f: f.gpu),
    "precision": ("a precision", lambda f: f.precision), "llm": ("DeepSeek-R1, and so every row", one_shape),
}  # fmt: skip


# GPUs of another maker than the coefficients' GPUs: additions of its software and of each chip (`adjust`). What prompts
# take longer on one LLM is of the whole: given to the routed experts, Mixtral's prompts took 40 times their products.
_STEP_OF_CHIP = {"*": 0.1, "dense": 0.2, "experts": 0.2, "kv": 0.2, "prefill": 0.2, "routed": 0.2, "layer": 0.35,
                 "moe": 1.0, "mla": 0.35, "comm": 0.35, "running": 0.2, "prompt": 0.5}  # fmt: skip
_FIRST_OF_CHIP = {"*": 0.2, "fixed": 0.5, "layer": 0.5, "prefill": 0.1, "routed": 0.1, "step": 1.0, "burst": 1.0,
                  "queue": 0.7, "running": 0.7}  # fmt: skip
MAKER_FORMS = (
    Form({}, {"maker": _STEP_OF_CHIP, "chip": _STEP_OF_CHIP}, {"gpu": 0.05}, (0.08, 0.08)),
    Form({}, {"maker": _FIRST_OF_CHIP, "chip": _FIRST_OF_CHIP}, {"maker": 1.0, "chip": 0.5, "gpu": 0.05}, (0.2, 0.2)),
)


def without(model: EngineModel) -> EngineModel:
    """The coefficients without what this program added before."""
    known, groupings = catalog.gpus(), {g for form in MAKER_FORMS for g in form.spread}
    mine = {name for name, gpu in known.items() if maker(gpu) == MAKER}
    targets = {}
    for name, target in model.targets.items():
        factors = {
            g: {v: x for v, x in levels.items() if v not in mine}
            for g, levels in target.factors.items() if g not in groupings
        }  # fmt: skip
        kept = {g: levels for g, levels in target.adjustments.items() if g not in groupings}
        targets[name] = target.model_copy(update={"adjustments": kept, "factors": factors})
    groups = tuple(g for g in model.together if g[PARTS.index("gpu")] not in mine)
    return model.model_copy(update={"targets": targets, "together": groups, "makers": ()})


class Maker:
    """Rows of one maker's GPUs, `frame`, and the coefficients that they adjust, `base`."""

    def __init__(self, folder: Path) -> None:
        self.base = without(read_engine_model())
        self.frame = read_amd(folder / AMD_ROWS)
        raw = pd.read_csv(folder / AMD_ROWS)
        self.rows, self.steady = Rows(self.frame), (raw.p99_ttft < WARM_UP * raw.mean_ttft).to_numpy()
        self.labels = no_version(self.rows)

    def fitted(self, chosen: np.ndarray) -> tuple[Fitted, Fitted]:
        """Of the step and of the first token, (n,) chosen rows."""
        step, first = (self.base.targets[t].fitted for t in TARGETS)
        if chosen.any():
            step = adjust(MAKER_FORMS[0], step, *self._at(self.rows.step, "tpot_s", chosen))
        if (chosen := chosen & self.steady).any():
            terms = self.rows.first(step.predict(self.rows.step, self.labels))
            first = adjust(MAKER_FORMS[1], first, *self._at(terms, "ttft_s", chosen))
        return step, first

    def _at(self, terms: dict[str, np.ndarray], target: str, chosen: np.ndarray) -> tuple:
        return only(terms, chosen), self.frame[target].to_numpy()[chosen], only(self.labels, chosen)

    def left_out(self) -> dict[str, dict[str, Judged]]:
        """Errors and coverage by target and what was left out."""
        found: dict[str, dict[str, Judged]] = {t: {} for t in TARGETS}
        group = self.frame[["engine", "llm", "gpu", "precision"]].agg("|".join, axis=1)
        for kind, (_, of) in KINDS.items():
            level = of(self.frame).to_numpy()
            ratio = {t: np.zeros(len(self.frame)) for t in TARGETS}
            above = {t: np.zeros(len(self.frame)) for t in TARGETS}
            for value in np.unique(level):
                out = level == value
                predicted = predictions(self.fitted(~out), self.rows, self.labels)
                groups = {*self.base.together, *together(self.frame[~out])}
                for t in TARGETS:
                    ratio[t][out] = np.log(self.frame[t].to_numpy() / predicted[t])[out]
                    for i in np.flatnonzero(out):
                        parts = {p: str(self.frame[p].iloc[i]) for p in PARTS}
                        above[t][i] = self.base.targets[t].interval.factors(unseen_levels(parts, groups))["0.9"]
            for t in TARGETS:
                kept = self.steady if t == "ttft_s" else np.ones(len(self.frame), bool)
                frame = pd.DataFrame({"group": group, t: ratio[t]})[kept]
                found[t][kind] = errors_of(frame, t, above[t][kept])
        return found

    def model(self, left_out: dict[str, dict[str, Judged]]) -> EngineModel:
        """The shipped coefficients with the maker's own."""
        every = np.ones(len(self.frame), bool)
        targets = {
            t: self.base.targets[t].model_copy(update={"adjustments": f.adjustments, "factors": f.factors})
            for t, f in zip(TARGETS, self.fitted(every), strict=True)
        }
        rows = MakerRows(maker=MAKER, rows=len(self.frame), source=SOURCE, date=DATE, left_out=left_out)
        groups = tuple(sorted({*self.base.together, *together(self.frame)}))
        return self.base.model_copy(update={"targets": targets, "together": groups, "makers": (rows,)})


def table(m: MakerRows) -> str:
    """Markdown: errors, coverage and factors of safety 0.9 by what was left out."""
    lines = [
        "| left out | rows (TPOT / TTFT) | TPOT, median error (signed) | TTFT, median error (signed) "
        "| safety 0.9 covers TPOT / TTFT | and multiplies by |",
        "|---|---|---|---|---|---|",
    ]
    for kind, (name, _) in KINDS.items():
        a, b = (m.left_out[t][kind] for t in TARGETS)
        lines.append(
            f"| {name} | {a.rows} / {b.rows} | {a.median:.1%} ({a.signed:+.1%}) | {b.median:.1%} ({b.signed:+.1%}) "
            f"| {a.covered:.1%} / {b.covered:.1%} | {a.factor:.2f} / {b.factor:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Fit, judge, print, and with ``--write`` write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="write the coefficients and the table of the docs")
    args = parser.parse_args()
    mine = Maker(args.folder)
    model = mine.model(mine.left_out())
    said = table(model.makers[0])
    print(said)
    if args.write:
        save(model)
        PAGE.write_text(TABLE.sub(lambda m: f"{m[1]}{said}\n{m[3]}", PAGE.read_text("utf-8")), "utf-8")
        print(f"written: {OUT}, {PAGE}")


if __name__ == "__main__":
    main()
