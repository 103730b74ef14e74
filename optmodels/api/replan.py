"""`replan`: one tick of a fleet that follows its traffic."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optmodels.api.sources import File
from optmodels.arrays import Array
from optmodels.autoscaling.history import History, read_history
from optmodels.errors import InputError, Mistake, one_of
from optmodels.forecast.methods import NAMES
from optmodels.forecast.ticks import LEVELS, read_forecast, tick_quantiles
from optmodels.io.read import read_document, read_model, validate
from optmodels.io.write import json_text, refuse_existing, write_text
from optmodels.study.planned import Source, planned
from optmodels.verification import version

WAYS = ("auto", "rule", "exact")
LEAST_HISTORY_MIN = 120
NEWEST_MIN = 5760  # of a history that a forecast reads: four days
SLACK_S = 2.0  # that a request may wait within its SLO


@dataclass
class _FromHistory:
    """Conformal quantiles of one history a workload, which all end now."""

    histories: Mapping[str, History]
    method: str
    slack_s: float

    def __call__(self, workloads: Sequence[str], tick_min: float, ticks: int) -> tuple[Array, tuple[float, ...]]:
        found = []
        for name in workloads:
            h = self.histories[name]
            rates = h.for_forecasts()
            required = np.where(np.isfinite(rates), h.required(self.slack_s), np.nan)
            rates, required = rates[-NEWEST_MIN:], required[-NEWEST_MIN:]
            found.append(tick_quantiles(rates, required, max(round(tick_min), 1), ticks, LEVELS, self.method))
        return np.stack(found, axis=2), LEVELS


def replan(
    file: Source, *, state: File | Mapping[str, Any], history: File | None = None, forecast: File | None = None,
    ticks: int | None = None, time_limit: float = 5.0, method: str = "auto", forecast_method: str = "auto",
    last: File | Mapping[str, Any] | None = None, out: File | None = None, force: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Decide what to order, stop and load now.

    Args:
        file: the problem: file, mapping or `Problem`; of a plan document its problem file.
        state: running fleet: machines, lead times, changes. In Python also a mapping
            (`formulations.fleet.tick.state.TickState`).
        history: requests up to now: a table of time, requests and workload (`autoscaling.history.read_history`).
        forecast: quantiles in place of a history: a table of time, q0.5, q0.9, … and workload
            (`forecast.ticks.read_forecast`).
        ticks: horizon; None: three times the largest lead time.
        time_limit: seconds for the solver; 0 uses the rule.
        method: ``auto``, ``rule``, or ``exact`` (the MILP even where the rule is exact).
        forecast_method: median forecast from the history: auto (that of least loss on its newest days), last_value,
            yesterdays_change, damped_ets, arima or boosting (`forecast.methods.NAMES`).
        last: document of an earlier tick: its changes count where even the rule fails.
        out: folder for tick.json and the state.yaml of the next tick.
        force: replace existing files.

    Returns:
        ``tick`` (``source``: exact, rounded, rule or last); ``orders``, ``stops``, ``loads``, ``unloads`` and
        ``kept_idle``, each with its reason; ``path``, ``next_state``.

    Raises:
        InputError: a file or argument that cannot be used.
    """
    files = [] if out is None else [Path(out) / "tick.json", Path(out) / "state.yaml"]
    if not force:
        refuse_existing(*files)
    one_of("method", method, WAYS)
    one_of("forecast_method", forecast_method, ("auto", *NAMES))
    if (history is None) == (forecast is None):
        raise InputError(Mistake(None, "--history, --forecast", None, "one of the two"))
    if ticks is not None and not 2 <= ticks <= 288:
        raise InputError(Mistake(None, "ticks", ticks, "2 to 288 ticks"))
    if time_limit < 0:
        raise InputError(Mistake(None, "time_limit", time_limit, "seconds ≥ 0; 0: the rule"))
    began = time.perf_counter()
    given = planned(file)
    problem, (form, part) = given.problem, given.part("replan")
    schema = form.tick_state
    assert schema is not None
    now = validate(schema, dict(state)) if isinstance(state, Mapping) else read_model(Path(state), schema)
    names = [w.name for w in problem.resolve().workloads]
    read: Any
    if forecast is not None:
        rates, levels = read_forecast(Path(forecast), names, ticks)
        read, ticks = (lambda *_: (rates, levels)), len(rates)
    else:
        assert history is not None
        read = _FromHistory(_histories(Path(history), names), forecast_method, SLACK_S)
    earlier = last if last is None or isinstance(last, Mapping) else read_document(Path(last))[0]
    prepared = time.perf_counter()
    found: dict[str, Any] = part(problem, now, read, ticks=ticks, time_limit=time_limit, method=method, last=earlier)
    document = {
        "source": given.name, "formulation": form.name, **found,
        "forecast": {"history": None if history is None else str(history), "file": None if forecast is None else
                     str(forecast), "method": None if history is None else forecast_method},
        "seconds": {"read": prepared - began, "tick": time.perf_counter() - prepared},
        "optmodels_version": version(),
    }  # fmt: skip
    if files:
        import yaml

        write_text(files[0], json_text(document) + "\n", overwrite=force)
        write_text(files[1], yaml.safe_dump(document["next_state"], sort_keys=False), overwrite=force)
    return document


def _histories(path: Path, names: Sequence[str]) -> dict[str, History]:
    """The history of each workload; a file without a column ``workload`` is of the only one."""
    from optmodels.io.tables import open_text

    several = path.suffix == ".parquet"
    if not several:
        with open_text(path, "a history") as text:
            several = "workload" in [c.strip().lower() for c in text.readline().split(",")]
    if not several and len(names) > 1:
        raise InputError(Mistake(str(path), "columns", "no workload", f"a column with {', '.join(names)}"))
    found = {name: read_history(path, name if several else None) for name in names}
    for name, h in found.items():
        if h.minutes < LEAST_HISTORY_MIN:
            expected = f"at least {LEAST_HISTORY_MIN} minutes of {name}"
            raise InputError(Mistake(str(path), "history", f"{h.minutes} minutes", expected))
    return found
