"""Time that layers with sparse or linear attention add to a step, fitted with all other coefficients fixed.

    python benchmarks/attention_layers.py FOLDER

FOLDER is that of `engine_model`, which adds these constants to coefficients of LLMs without such layers; they change no
prediction of those. Printed is the error of TPOT without and with them, on each GPU, of constants fitted to the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from engine_fit import fit
from scipy.optimize import least_squares

from optmodels.latency.engines.fit import Fitted
from optmodels.latency.engines.forms import STEP_FORM

if TYPE_CHECKING:
    from engine_model import Rows

CONSTANTS = {"sparse": ("sparse", "sparse_prompt"), "linear": ("linear",)}
NOISE = 0.05  # of log TPOT within a group, against the prior of a constant


def with_constants(step: Fitted, rows: Rows, chosen: np.ndarray) -> Fitted:
    """The step with constants of the chosen rows' layers, (n,), or of the priors where no row has such layers."""
    for kind, names in CONSTANTS.items():
        mine = chosen & (rows.step[kind] > 0)
        step = extended(
            step, fitted(step, rows, mine, names) if mine.any() else {k: STEP_FORM.prior[k][0] for k in names}
        )
    return step


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
    """Print the table."""
    from engine_model import Rows, later, only, read  # which imports this module

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    table = read(args.folder)
    rows = Rows(table[table.why == ""])
    old = ~later(rows.frame)
    step = fit(STEP_FORM, only(rows.step, old), rows.frame.tpot_s.to_numpy()[old], only(rows.labels, old))
    has_none = {k: v for k, v in step.coefficients.items() if k not in sum(CONSTANTS.values(), ())}
    step = replace(step, coefficients=has_none)
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


if __name__ == "__main__":
    main()
