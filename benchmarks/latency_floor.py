"""How far the errors of first tokens on `engine_model`'s rows could fall, whoever predicts: floors and oracles.

    python benchmarks/latency_floor.py aggregated.csv [--draws 8]

Prints, beside what the shipped form reaches where a GPU is left out or five rows of one's own are known:

* repeats: one deployment, workload and concurrency measured twice;
* the same form where more is known than is allowed: the GPU's other LLMs and engines are fitted, too;
* the predictions of a left-out GPU after its own rows corrected them, a median ratio for each GPU, engine, …;
* trees and boosted trees on the same physical terms, loads and names (where scikit-learn is installed);
* five own rows continued by a Gaussian process over the log-ratios whose kernel is tuned on the very rows to predict;
* protocols that no row states, and what is gained where one is given: a series whose first tokens wait for another
  request's completion.
"""

from __future__ import annotations

import argparse
import itertools
import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small systems: threads wait for one another
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from engine_model import (
    DUPLICATE,
    SAME_SHAPE,
    TARGETS,
    Rows,
    elsewhere,
    fitted,
    groups,
    left_out,
    no_version,
    own_draws,
    own_rows,
    predictions,
    read,
)

from optmodels.latency.engines.terms import FIRST_TOKEN

SETTING = ["gpu", "engine", "llm", "precision", "gpus", "ranks", "input_tokens", "output_tokens", "concurrency"]
KERNEL = {"constant": 0.4, "local": 0.4, "configuration": 0.1, "noise": 0.1, "concurrency": 1.5, "input_tokens": 1.5,
          "output_tokens": 3.0, "gpus": 2.0}  # fmt: skip
OWN = 5
FREEDOM = 3.0  # of Student's t
WAITING = {"engine": "trtllm", "version": "1.0.0rc3", "llm": "llama-3.1-8b"}  # TTFT grows as output_tokens/concurrency
INTERVALS = 0.9  # of the intervals between two completions that they wait


def error(log_ratio: np.ndarray) -> str:
    """Median and 0.9 quantile of |predicted/measured − 1|."""
    size = np.abs(np.exp(log_ratio) - 1.0)
    return f"{np.median(size):6.1%} (p90 {np.quantile(size, 0.9):.0%})" if len(size) else "none"


def repeats(frame: pd.DataFrame) -> None:
    """Print how well a measurement predicts its repeat."""
    frame = frame.assign(llm=frame.llm.replace(SAME_SHAPE))
    for what, keys in (("of the same version", [*SETTING, "version"]), ("of any version", SETTING)):
        ratio: dict[str, list[float]] = {target: [] for target in TARGETS}
        members = 0
        for _, part in frame.groupby(keys):
            members += len(part) * (len(part) > 1)
            for a, b in itertools.permutations(range(len(part)), 2):
                for target in TARGETS:
                    ratio[target].append(float(np.log(part[target].iloc[a] / part[target].iloc[b])))
        said = ", ".join(f"{target} {error(np.array(values))}" for target, values in ratio.items())
        print(f"repeats {what}, {members} rows: {said}", flush=True)


def stated(what: str, log_ratio: np.ndarray, clean: np.ndarray, known: np.ndarray) -> None:
    """Print TTFT's errors of all fitted rows, of those whose LLM another GPU has under the engine, and of the rest."""
    print(f"{what}: {error(log_ratio[clean])}; LLM and engine known together: {error(log_ratio[clean & known])}; "
          f"not: {error(log_ratio[clean & ~known])}", flush=True)  # fmt: skip


def corrected(rows: Rows, log_ratio: np.ndarray, clean: np.ndarray, known: np.ndarray) -> None:
    """Print what is left of a left-out GPU's errors after a median ratio for each level of its own rows."""
    frame = rows.frame
    kinds = {
        "GPU": ["gpu"], "GPU and engine": ["gpu", "engine"], "GPU, engine and LLM": ["gpu", "engine", "llm"],
        "series (precision, version and geometry, too)":
            ["gpu", "engine", "llm", "precision", "version", "gpus", "ranks"],
    }  # fmt: skip
    kinds["series and workload"] = [*kinds["series (precision, version and geometry, too)"], "input_tokens",
                                    "output_tokens"]  # fmt: skip
    for what, keys in kinds.items():
        levels = frame[keys].astype(str).agg("|".join, axis=1)
        level = pd.Series(np.where(clean, log_ratio, np.nan)).groupby(levels).transform("median").to_numpy()
        stated(f"GPU left out, then its own median ratio by {what}, {levels[clean].nunique()} of them",
               log_ratio - level, clean, known)  # fmt: skip


def trees(rows: Rows, levels: dict[str, pd.Series], clean: np.ndarray, known: np.ndarray) -> None:
    """Print what regressors without a form make of the same terms, loads and names."""
    try:
        from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
    except ImportError:
        print("trees: not measured, scikit-learn is not installed")
        return
    frame, target = rows.frame, np.log(rows.frame.ttft_s.to_numpy())
    terms = rows.first(predictions(fitted(rows, clean), rows)["tpot_s"])
    columns = [np.log(terms[name] + 1e-6) for name in FIRST_TOKEN]
    columns += [np.log(frame[c].to_numpy(float)) for c in ("concurrency", "input_tokens", "output_tokens", "gpus",
                                                           "ranks")]  # fmt: skip
    columns += [pd.get_dummies(names).to_numpy(float) for names in (frame.engine, frame.precision, frame.llm)]
    X = np.column_stack(columns)
    chance = pd.Series(np.random.default_rng(0).integers(0, 8, len(frame)), index=frame.index)
    for what, level in {**levels, "eighth of the rows, by chance,": chance}.items():
        for name, make in {
            "trees": lambda: ExtraTreesRegressor(200, min_samples_leaf=3, max_features=0.5, random_state=0),
            "boosted trees": lambda: HistGradientBoostingRegressor(
                loss="absolute_error", max_iter=200, learning_rate=0.06, min_samples_leaf=10, random_state=0
            ),
        }.items():
            found = target.copy()
            for value in level[clean].unique():
                inside = (level == value).to_numpy()
                found[inside] = make().fit(X[clean & ~inside], target[clean & ~inside]).predict(X[inside])
            stated(f"{name}, a whole {what} left out", found - target, clean, known)


def protocols(frame: pd.DataFrame, wait: np.ndarray) -> None:
    """Print two protocols that no row states: by how much TTFT depends on the output's length, which no prefill does.

    Rows of one deployment, prompt length and concurrency differ in their output only.
    """
    alike = [c for c in SETTING if c != "output_tokens"]
    waiting = frame[wait > 0.0].assign(less=(frame.ttft_s - wait)[wait > 0.0])
    spread = waiting.groupby(alike)[["ttft_s", "less"]].agg(lambda s: s.max() / s.min())
    few = spread[spread.index.get_level_values("concurrency") <= 32.0]
    print(f"{WAITING['llm']} on {WAITING['engine']} {WAITING['version']}, at most 32 requests: TTFT of the longest "
          f"output over that of the shortest, median {few.ttft_s.median():.2f}; less {INTERVALS:g} intervals between "
          f"completions {few.less.median():.2f}")  # fmt: skip
    series = frame[(frame.llm == "llama-3.1-70b") & (frame.engine == "trtllm") & (frame.input_tokens == 1024.0)]
    by = [c for c in alike if c != "gpus"]
    for gpus, part in series.groupby("gpus"):
        short, long = (part[part.output_tokens == n].set_index(by) for n in (1024.0, 8192.0))
        steps = ((short.ttft_s - long.ttft_s) / short.tpot_s)[long.ttft_s < 1.0]  # above: waits for room in the cache
        low, middle, high = np.quantile(steps.dropna(), [0.1, 0.5, 0.9])
        print(f"llama-3.1-70b on trtllm, {gpus} GPUs: TTFT of 1,024 output tokens less that of 8,192, in steps: median "
              f"{middle:.0f} ({low:.0f} to {high:.0f})")  # fmt: skip


class Continued:
    """Five own rows continued by a Gaussian process over log(measured/predicted) of the fit without their LLM.

    To what it predicts is added what is given, `wait`, seconds, (n,).
    """

    def __init__(self, rows: Rows, level: pd.Series, draws: int, wait: np.ndarray) -> None:
        frame, labels = rows.frame, no_version(rows)
        self.cases, self.ratio = [], np.zeros(len(frame))
        self.waits = wait / frame.ttft_s.to_numpy()
        last = None
        for models, chosen, rest in own_draws(rows, level, OWN, draws):
            if models is not last:
                last, ratio = models, np.log(frame.ttft_s.to_numpy() / predictions(models, rows, labels)["ttft_s"])
            both = np.concatenate([chosen, rest])
            self.ratio[both] = ratio[both]
            self.cases.append((chosen, rest))
        self.along = {c: np.log(frame[c].to_numpy(float)) for c in KERNEL if c in frame}
        self.same = rows.labels["configuration"]

    def errors(self, kernel: dict[str, float]) -> list[np.ndarray]:
        """Log-ratios predicted/measured of the other rows of each draw."""
        found = []
        for chosen, rest in self.cases:
            K, y, weight = self._covariance(chosen, chosen, kernel), self.ratio[chosen], np.ones(len(chosen))
            for _ in range(8):  # Student's t of the noise, by weights
                alpha = np.linalg.solve(K + np.diag(kernel["noise"] ** 2 / weight), y)
                weight = (FREEDOM + 1.0) / (FREEDOM + ((y - K @ alpha) / kernel["noise"]) ** 2)
            ahead = np.exp(self._covariance(rest, chosen, kernel) @ alpha - self.ratio[rest])
            found.append(np.log((ahead + self.waits[rest]) / (1.0 + self.waits[rest])))
        return found

    def _covariance(self, a: np.ndarray, b: np.ndarray, kernel: dict[str, float]) -> np.ndarray:
        distance = sum(((x[a][:, None] - x[b]) / kernel[c]) ** 2 for c, x in self.along.items())
        same = self.same[a][:, None] == self.same[b]
        return (kernel["constant"] ** 2 + kernel["local"] ** 2 * np.exp(-distance / 2.0)
                + kernel["configuration"] ** 2 * same)  # fmt: skip

    def tuned(self) -> tuple[float, dict[str, float]]:
        """The least median error and the kernel that gives it: the rows to predict choose it."""

        def median(kernel: dict[str, float]) -> float:
            return float(np.median(np.abs(np.exp(np.concatenate(self.errors(kernel))) - 1.0)))

        kernel, least = dict(KERNEL), median(KERNEL)
        for name, factor in itertools.product(3 * list(KERNEL), (0.4, 0.65, 1.5, 2.5)):
            other = {**kernel, name: kernel[name] * factor}
            if (found := median(other)) < least:
                kernel, least = other, found
        return least, kernel


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--draws", type=int, default=8, help="of rows of one's own, by deployment")
    args = parser.parse_args()
    frame = read(args.rows)
    frame = frame[~frame.why.isin(("LLM or GPU that the catalogue lacks", DUPLICATE))].reset_index(drop=True)
    clean = (frame.why == "").to_numpy()
    rows, levels, known = Rows(frame), groups(frame), np.zeros(len(frame), dtype=bool)
    known[clean] = elsewhere(frame[clean])
    repeats(frame[clean])
    mask = np.all([frame[c] == v for c, v in WAITING.items()], axis=0)
    wait = np.where(mask, INTERVALS * frame.output_tokens * frame.tpot_s / frame.concurrency, 0.0)
    protocols(frame[clean], wait[clean])

    seen = frame.ttft_s.to_numpy()
    ratio = {}
    cells = {
        "gpu": frame.gpu, "GPU of an engine": frame.gpu + "|" + frame.engine,
        "LLM under an engine on a GPU": frame.gpu + "|" + frame.engine + "|" + levels["llm"],
        "LLM under an engine": frame.engine + "|" + levels["llm"],
    }  # fmt: skip
    for what, level in cells.items():
        ratio[what] = np.log(left_out(rows, level)["ttft_s"] / seen)
        stated(f"this form, a whole {what} left out", ratio[what], clean, known)
    corrected(rows, ratio["gpu"], clean, known)

    told = Rows(frame.assign(ttft_s=np.maximum(seen - wait, 0.05 * seen)))
    found = left_out(told, frame.gpu)["ttft_s"] + wait
    stated(f"this form, a whole gpu left out, waits for a completion given ({mask.sum()} rows)",
           np.log(found / seen), clean, known)  # fmt: skip
    trees(rows, {"gpu": frame.gpu, "LLM under an engine on a GPU": cells["LLM under an engine on a GPU"],
                 "workload": levels["workload"]}, clean, known)  # fmt: skip

    measured, predicted = own_rows(rows, own_draws(rows, levels["llm"], OWN, args.draws))["ttft_s"]
    print(f"{OWN} own rows, this form: {error(np.log(predicted / measured))}", flush=True)
    for what, those, given in (("", rows, 0.0 * wait), (", waits for a completion given", told, wait)):
        process = Continued(those, levels["llm"], args.draws, given)
        least, kernel = process.tuned()
        print(f"{OWN} own rows, a Gaussian process tuned on the rows to predict{what}: {least:6.1%}; "
              + ", ".join(f"{name} {value:.2g}" for name, value in kernel.items()), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
