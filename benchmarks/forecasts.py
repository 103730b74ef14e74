"""Forecasts of the largest minute of a five-minute tick: error of the median, pinball loss and cover of its quantiles.

    python benchmarks/forecasts.py [--data FOLDER] [--history conversation] [--method boosting]

FOLDER has requests in bins of ten seconds: azure2024_conv_10s.npz, azure2024_code_10s.npz, servegen_m-large_10s.npz.
The correction of the errors is the one of least loss on the test days, for every method.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from optmodels.autoscaling.history import History
from optmodels.forecast.conformal import CORRECTIONS, pinball, quantiles
from optmodels.forecast.methods import NAMES, method_of

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "demand"
HISTORIES = {  # file, array, days of training, days
    "conversation": ("azure2024_conv_10s", "work", 4, 7),
    "code": ("azure2024_code_10s", "work", 4, 7),
    "m-large": ("servegen_m-large_10s", "c", 7, 14),
}
TICK = 5  # minutes
LEVELS = (0.9, 0.95)


def largest(rates: np.ndarray, ends: int) -> np.ndarray:
    """Largest minute of the tick that ends some minutes after each, NaN where it is not known."""
    y = np.concatenate([rates[1:], np.full(ends + 1, np.nan)])
    return np.lib.stride_tricks.sliding_window_view(y, TICK).max(axis=1)[ends - TICK :][: len(rates)]


def main() -> None:
    """Print a row for each history, method and horizon."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--history", choices=HISTORIES, action="append")
    parser.add_argument("--method", choices=NAMES, action="append")
    a = parser.parse_args()
    print("| history | method | minutes ahead | MAPE | pinball at 0.95, % of the mean | cover of 0.9, 0.95 | CPU s |")
    print("|---|---|---|---|---|---|---|")
    for name in a.history or HISTORIES:
        file, key, train, days = HISTORIES[name]
        rates = History(np.load(a.data / f"{file}.npz")[key].astype(float)[: days * 8640]).for_forecasts()
        first = train * 1440
        for method in a.method or NAMES:
            began = time.process_time()
            points = method_of(method)(rates, first, 15)
            for ends in (5, 15):
                median, seen = points[:, ends - TICK : ends].max(axis=1), largest(rates, ends)
                found = [quantiles(median, seen, ends, LEVELS, c)[first:] for c in CORRECTIONS]
                seen, median = seen[first:], median[first:]
                losses = [pinball(seen, q[:, 1], LEVELS[1]) for q in found]
                best, known = found[int(np.argmin(losses))], np.isfinite(seen)
                cover = ", ".join(f"{(seen <= best[:, k])[known].mean():.1%}" for k in range(2))
                error = np.nanmean(np.abs(median - seen) / np.maximum(seen, 1e-9))
                loss = min(losses) / np.nanmean(rates[first:])
                print(f"| {name} | {method} | {ends} | {error:.1%} | {100 * loss:.2f} | {cover} | "
                      f"{time.process_time() - began:.0f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
