"""A history of requests: counts in bins of ten seconds, with missing bins as missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from optmodels.arrays import Array
from optmodels.autoscaling.queue import STEP_S, STEPS_A_MINUTE
from optmodels.errors import InputError, Mistake

OUTAGE_MINUTES = 10  # a run of zeros this long in a service with traffic counts as missing data for forecasts
MOST_BINS = 10_000_000


@dataclass(frozen=True)
class History:
    """Requests over time.

    Attributes:
        requests: requests in each bin of ten seconds; NaN: not measured; shape (6·minutes,).
        name: source of the rows.
        notes: changes made to the rows, one sentence each.
    """

    requests: Array
    name: str = ""
    notes: tuple[str, ...] = ()

    @property
    def minutes(self) -> int:
        """Whole minutes."""
        return len(self.requests) // STEPS_A_MINUTE

    @property
    def per_minute(self) -> Array:
        """Mean requests/s of each minute; NaN where any of its bins is missing; (minutes,)."""
        bins = self.requests[: self.minutes * STEPS_A_MINUTE].reshape(-1, STEPS_A_MINUTE)
        return np.asarray(bins.mean(axis=1) / STEP_S)

    def required(self, slack_s: float) -> Array:
        """Least requests/s that keep every wait of a minute that begins without a queue within the slack; (minutes,).

        A stretch of d seconds with a requests needs C·(d + slack) ≥ a: the largest a/(d + slack) over all stretches of
        the minute, and at least its mean. NaN where a bin is missing.
        """
        bins = self.requests[: self.minutes * STEPS_A_MINUTE].reshape(-1, STEPS_A_MINUTE)
        total = np.concatenate([np.zeros((len(bins), 1)), np.cumsum(bins, axis=1)], axis=1)
        found = total[:, -1] / (STEPS_A_MINUTE * STEP_S)
        for i in range(STEPS_A_MINUTE):
            for j in range(i + 1, STEPS_A_MINUTE + 1):
                found = np.maximum(found, (total[:, j] - total[:, i]) / ((j - i) * STEP_S + slack_s))
        return found

    def for_forecasts(self) -> Array:
        """`per_minute` without outages: a run of at least ten minutes of zeros is missing data, not traffic."""
        x = self.per_minute.copy()
        edges = np.flatnonzero(np.diff(np.concatenate([[0], (x == 0.0).astype(np.int8), [0]])))
        for begin, end in edges.reshape(-1, 2):
            if end - begin >= OUTAGE_MINUTES:
                x[begin:end] = np.nan
        return x


def read_history(path: Path, workload: str | None = None) -> History:
    """Read counts or requests.

    A table has the columns ``time`` (seconds, or ISO 8601) and ``requests`` (in the interval that begins there), and
    ``workload`` where it holds several. Any other file is read as a request trace (`optmodels.traces.readers`) and
    counted. Intervals must be equal and at most one minute; rows that are absent are missing data.

    Raises:
        InputError: a file that is neither, unequal intervals, or several workloads without a choice.
    """
    import pandas as pd

    from optmodels.io.tables import open_text

    if path.suffix == ".parquet":
        frame = pd.read_parquet(path)
    else:
        with open_text(path, "a history") as text:
            head = text.readline()
        if not {"time", "requests"} <= {c.strip().lower() for c in head.split(",")}:
            return _counted(path)
        frame = pd.read_csv(path)
    frame.columns = [str(c).strip().lower() for c in frame.columns]
    if not {"time", "requests"} <= set(frame.columns):
        raise InputError(Mistake(str(path), "columns", ", ".join(frame.columns), "time and requests"))
    if "workload" in frame.columns:
        names = sorted(frame["workload"].astype(str).unique())
        if workload is None and len(names) > 1:
            raise InputError(Mistake(str(path), "--workload", None, f"one of {', '.join(names)}"))
        if workload is not None:
            if workload not in names:
                raise InputError(Mistake(str(path), "workload", workload, f"one of {', '.join(names)}"))
            frame = frame[frame["workload"].astype(str) == workload]
    times = frame["time"]
    if not pd.api.types.is_numeric_dtype(times):
        try:
            stamps = pd.to_datetime(times, utc=True, format="ISO8601")
        except (ValueError, TypeError) as error:
            raise InputError(Mistake(str(path), "time", str(error)[:80], "seconds, or ISO 8601 times")) from None
        times = (stamps - stamps.min()).dt.total_seconds()
    t, count = times.to_numpy(dtype=float), pd.to_numeric(frame["requests"], errors="coerce").to_numpy(dtype=float)
    if len(t) < 2 or not np.isfinite(t).all():
        raise InputError(Mistake(str(path), "time", len(t), "at least two rows, each with a time"))
    if (wrong := np.flatnonzero(~(count >= 0) & ~np.isnan(count))).size:
        raise InputError(Mistake(str(path), f"row {wrong[0] + 1}.requests", float(count[wrong[0]]), "a number ≥ 0"))
    order = np.argsort(t, kind="stable")
    return _binned(path, t[order], count[order])


def _binned(path: Path, t: Array, count: Array) -> History:
    gaps = np.diff(t)
    interval = float(np.median(gaps))
    row = np.rint((t - t[0]) / interval) if interval > 0 else np.zeros(0)
    if not 0 < interval <= 60.0 or interval % STEP_S or np.abs((t - t[0]) - row * interval).max() > 0.01 * interval:
        expected = "equal intervals of 10, 20, 30 or 60 seconds; aggregate the requests first"
        raise InputError(Mistake(str(path), "time", f"{interval:g} s apart", expected))
    if len(np.unique(row)) < len(row):
        raise InputError(Mistake(str(path), "time", "a time twice", "one row for each interval"))
    steps = int(interval / STEP_S)
    n = (int(row[-1]) + 1) * steps
    if n > MOST_BINS:
        raise InputError(Mistake(str(path), "time", f"{n:,} bins", f"at most {MOST_BINS:,} bins of ten seconds"))
    bins = np.full((int(row[-1]) + 1, steps), np.nan)
    bins[row.astype(np.int64)] = count[:, None] / steps
    missing = int(np.isnan(bins).any(axis=1).sum())
    notes = (f"{missing} intervals without a count are missing data",) if missing else ()
    return History(bins.ravel(), str(path), notes)


def _counted(path: Path) -> History:
    from optmodels.traces.readers import read_trace

    trace = read_trace(path)
    last = float(trace.arrival_s.max()) if len(trace) else 0.0
    bins = np.bincount((trace.arrival_s // STEP_S).astype(np.int64), minlength=int(last // STEP_S) + 1)
    return History(bins.astype(float), str(path), tuple(trace.notes))
