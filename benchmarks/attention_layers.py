"""Time that layers with sparse or linear attention add to a step, fitted with all other shipped coefficients fixed.

    python benchmarks/attention_layers.py FOLDER [--write]

FOLDER is that of `engine_model`. The shipped coefficients were fitted to LLMs without such layers, so these three
constants change no prediction of those. Printed is the error of TPOT without and with them, of the GPUs that they were
fitted to and of the others. ``--write`` writes those of all GPUs to the file of coefficients.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml
from engine_model import OUT, Rows, _short, read
from scipy.optimize import least_squares

from optmodels.latency.engines.document import read_engine_model
from optmodels.latency.engines.fit import Fitted
from optmodels.latency.engines.forms import STEP_FORM

CONSTANTS = {"sparse": ("sparse", "sparse_prompt"), "linear": ("linear",)}
NOISE = 0.05  # of log TPOT within a group, against the prior of a constant


def fitted(step: Fitted, rows: Rows, mine: np.ndarray, names: tuple[str, ...]) -> dict[str, float]:
    """Constants likeliest by log TPOT of rows `mine`, each LLM and GPU with the same weight, and by the priors."""
    terms = {name: value[mine] for name, value in rows.step.items()}
    labels = {name: value[mine] for name, value in rows.labels.items()}
    before = STEP_FORM.prior
    seen, groups = rows.frame.tpot_s.to_numpy()[mine], (rows.frame.llm + rows.frame.gpu)[mine]
    weight = np.sqrt(1.0 / groups.map(groups.value_counts()).to_numpy(float))

    def missed(x: np.ndarray) -> np.ndarray:
        found = extended(step, dict(zip(names, x, strict=True))).predict(terms, labels)
        off = [np.log(value / before[name][0]) / before[name][1] for name, value in zip(names, x, strict=True)]
        return np.concatenate([weight * np.log(seen / found), NOISE * np.array(off)])

    best = least_squares(missed, np.array([before[name][0] for name in names]), bounds=(1e-3, 1e3)).x
    return {name: float(f"{value:.6g}") for name, value in zip(names, best, strict=True)}


def extended(step: Fitted, constants: Mapping[str, float]) -> Fitted:
    """The step's coefficients with the constants."""
    return replace(step, coefficients={**step.coefficients, **constants})


def errors(step: Fitted, rows: Rows, mine: np.ndarray) -> str:
    """Median error of TPOT, and the signed one."""
    e = np.log(step.predict(rows.step, rows.labels) / rows.frame.tpot_s.to_numpy())[mine]
    return f"{np.expm1(np.median(np.abs(e))):.1%} ({np.expm1(np.median(e)):+.1%})"


def main() -> None:
    """Print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="write the constants to the coefficients")
    args = parser.parse_args()
    table = read(args.folder)
    rows = Rows(table[table.why == ""])
    step, found = read_engine_model().targets["tpot_s"].fitted, dict[str, float]()
    step = replace(
        step, coefficients={k: v for k, v in step.coefficients.items() if k not in sum(CONSTANTS.values(), ())}
    )
    print("| layers | fitted to | judged on | rows | TPOT without | TPOT with |\n|---|---|---|---|---|---|")
    for kind, names in CONSTANTS.items():
        has = rows.step[kind] > 0
        gpus = sorted(set(rows.frame.gpu[has]))
        for gpu in gpus:
            other = has & (rows.frame.gpu == gpu).to_numpy()
            constants = fitted(step, rows, has & ~other, names)
            llms = ", ".join(sorted(set(rows.frame.llm[other])))
            print(f"| {kind}, {llms} | {', '.join(g for g in gpus if g != gpu)} | {gpu} | {other.sum()} "
                  f"| {errors(step, rows, other)} | {errors(extended(step, constants), rows, other)} |")  # fmt: skip
        found |= fitted(step, rows, has, names)
    print({name: f"{value:.1f} µs a layer" for name, value in found.items()})
    if not args.write:
        return
    document = yaml.safe_load(OUT.read_text("utf-8"))
    document["targets"]["tpot_s"]["coefficients"] |= found
    OUT.write_text(yaml.safe_dump(_short(document), sort_keys=False), "utf-8")


if __name__ == "__main__":
    main()
