"""`backtest`: the cost and SLO attainment of autoscalers on a history, compared with hindsight."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from optmodels import formulation as registry
from optmodels.api.sources import File, Source, problem_of
from optmodels.autoscaling.backtest import ALWAYS, Asked, Backtest, in_turn, runs_of
from optmodels.autoscaling.backtest import backtest as run_policies
from optmodels.autoscaling.history import History, read_history
from optmodels.autoscaling.policies import Policy
from optmodels.autoscaling.running import Replica, TypesPolicy
from optmodels.errors import InputError, Mistake, one_of
from optmodels.forecast.methods import NAMES
from optmodels.io.write import json_text, refuse_existing, write_text
from optmodels.verification import version

LEAST_MINUTES = 60
TICKS = ("replan", "replan_types", "replan_objective")  # of an instance: the tick of `optmodels replan`
SECONDS_OF = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def backtest(
    file: Source | None = None, *, history: File | History, replica: str | tuple[float, float] | None = None,
    workload: str | None = None, train: str = "7d", judge: str = "7d", methods: Sequence[str] | None = None,
    lead: str = "5m", drain: str = "1m", goal: float = 0.99, forecast_method: str = "auto", tune: bool = False,
    slack: float = 2.0, manifests: File | None = None, workers: int = 1, scheduler: str | None = None,
    keep: File | None = None, picture: File | None = None, out: File | None = None, force: bool = False,
    policies: Mapping[str, Policy] | None = None, on_step: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """Run autoscalers on a history of requests.

    Args:
        file: fleet problem (file, mapping or `Problem`) whose cheapest deployment is the replica.
        history: requests over time: a table of time and requests, a row a minute or more, or a request log
            (`autoscaling.history.read_history`). In Python also a `History`.
        replica: replica in place of `file`: ``RATE:USD``, requests/s within the SLO and USD/h. In Python also a pair.
        workload: name in the problem file and the history, where they have several.
        train: time to tune on, such as ``7d``; the first day warms up forecasts.
        judge: time to test on.
        methods: names of autoscalers; None: all, and with `file` also ``replan``. They are
            `autoscaling.backtest.ALWAYS`, and with `file` also `TICKS`.
        lead: time from an order until a replica serves.
        drain: time that a replica drains.
        goal: share of the requests within the SLO.
        forecast_method: median forecast of ``plan``: auto (that of least loss on the training time), last_value,
            yesterdays_change, damped_ets, arima or boosting (`forecast.methods.NAMES`).
        tune: search the settings of every method on the training time; else defaults alone.
        slack: waiting within the SLO, seconds.
        manifests: folder for hpa.yaml, keda.yaml and schedule.yaml with the tuned targets, windows and bounds.
        workers: processes; 1 runs in this one. A script that asks for more needs ``if __name__ == "__main__":``.
        scheduler: address of a Dask scheduler, in place of processes of ours.
        keep: folder of finished autoscalers: the same call goes on from there. Ticks are run anew.
        picture: file for the chart of cost and attained share: .png, .svg or .pdf.
        out: file for the document (JSON); `report` makes a page of it.
        force: replace existing files.
        policies: policies of one's own, by name: callables from `autoscaling.policies.Observation` to a count.
        on_step: called with one line a method.

    Returns:
        The backtest document: ``rows`` (method, setting, tuned, attained, usd, over_hindsight, changes, worst_minute),
        ``at_goal``, ``frontiers``, ``hindsight_usd``, ``forecast``, ``replica``.

    Raises:
        InputError: a file, an argument or a problem file that cannot be used.
    """
    if (file is None) == (replica is None):
        raise InputError(Mistake(None, "FILE, --replica", None, "one of the two: a fleet problem file, or RATE:USD"))
    if methods is None:
        methods = (*ALWAYS, *TICKS[:1]) if file is not None else ALWAYS
    target, chart = (None if name is None else Path(name) for name in (out, picture))
    if not force:
        refuse_existing(target, chart)
    if workers < 1:
        raise InputError(Mistake(None, "workers", workers, "at least 1 process"))
    for name in methods:
        one_of("methods", name, (*ALWAYS, *TICKS))
    one_of("forecast_method", forecast_method, ("auto", *NAMES))
    train_min, judge_min, lead_min, drain_min = (
        minutes(text, name) for name, text in (("train", train), ("judge", judge), ("lead", lead), ("drain", drain))
    )
    for name, value in (("train", train_min), ("judge", judge_min)):
        if value < LEAST_MINUTES:
            raise InputError(Mistake(None, name, f"{value} minutes", f"at least {LEAST_MINUTES} minutes"))
    if not 0 < goal < 1:
        raise InputError(Mistake(None, "goal", goal, "a share between 0 and 1, such as 0.99"))
    began = time.perf_counter()
    offer = None
    if replica is not None:
        rate, usd = _rate_and_price(replica)
    else:
        assert file is not None
        problem = problem_of(file)
        form = registry.get(problem.formulation)
        if form.replica is None:
            able = ", ".join(n for n in registry.names() if registry.get(n).replica is not None)
            raise InputError(Mistake(None, "formulation", form.name, f"a problem file of {able}"))
        offer = form.replica(problem, workload)
        rate, usd = offer.requests_per_s, offer.usd_per_hour
    one = Replica(rate, usd, lead_min, drain_min, slack)
    series = history if isinstance(history, History) else read_history(Path(history), workload)
    if series.minutes < train_min + judge_min:
        expected = f"at least {train_min + judge_min:,} minutes: --train and --judge together"
        raise InputError(Mistake(series.name or None, "history", f"{series.minutes:,} minutes", expected))
    ticks: dict[str, Any] = {}
    types: list[Replica] = []
    if asked := [name for name in methods if name in TICKS]:
        if file is None or form.ticks is None or offer is None:
            raise InputError(
                Mistake(None, "--methods", asked[0], "FILE, a problem file whose fleet `replan` can follow")
            )
        types, ticks = form.ticks(problem, offer.workload, one, series, train_min=train_min)
        if lacking := [name for name in asked if name not in ticks]:
            raise InputError(Mistake(None, "--methods", lacking[0], "several machine types of about the same price"))
    single: dict[str, Policy] = {name: ticks[name] for name in asked if name == TICKS[0]}
    several: dict[str, TypesPolicy] = {name: ticks[name] for name in asked if name != TICKS[0]}
    found = run_policies(
        series, one, train_min, judge_min, methods=[m for m in methods if m not in TICKS], goal=goal, tune=tune,
        forecast=forecast_method,
        policies=single | dict(policies or {}), types=types, on_types=several, say=on_step,
        each=partial(_each, workers=workers, scheduler=scheduler, keep=keep),
    )  # fmt: skip
    document = {
        "history": series.name, "history_notes": list(series.notes), "train_min": train_min, "judge_min": judge_min,
        "goal": goal,
        "types": [{"requests_per_s": x.requests_per_s, "usd_per_hour": x.usd_per_hour} for x in types],
        "sources": {name: ticks[name].sources for name in asked},
        "replica": asdict(one) | ({} if offer is None else asdict(offer)), **_document(found),
        "seconds": time.perf_counter() - began, "optmodels_version": version(),
    }  # fmt: skip
    if manifests is not None:
        import yaml

        from optmodels.targets.autoscalers import manifests as manifests_of

        for name, manifest in manifests_of(document, _timetable(series, one, document)).items():
            text = yaml.safe_dump(manifest, sort_keys=False, width=1000)
            write_text(Path(manifests) / name, text, overwrite=force)
    if target is not None:
        write_text(target, json_text(document) + "\n", overwrite=force)
    if chart is not None:
        from optmodels.reporting.backtest import backtest_chart
        from optmodels.reporting.charts import save_chart

        save_chart(backtest_chart(document), chart, overwrite=force)
    return document


def _each(
    asked: Asked, names: Sequence[str], workers: int, scheduler: str | None, keep: File | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The runs of every method: kept ones first, the others in this process, in several, or on a cluster."""
    from optmodels.study.journal import Journal
    from optmodels.study.pool import pool

    if workers == 1 and scheduler is None and keep is None:
        yield from in_turn(asked, names)
        return
    state = hashlib.sha256(asked.history.requests.tobytes())
    settings = asked.replica, asked.train_min, asked.judge_min, asked.tune, asked.forecast, version()
    state.update(repr(settings).encode())
    ids = {name: f"{name}-{state.hexdigest()}" for name in names}
    journal = None if keep is None else Journal(Path(keep) / "journal.jsonl", lambda row: "runs" in row)
    try:
        kept = {} if journal is None else {n: journal.rows[ids[n]] for n in names if ids[n] in journal.rows}
        yield from kept.items()
        left = {name: name for name in names if name not in kept}
        if not left:
            return
        with pool(min(workers, len(left)), scheduler) as hands:
            for batch in hands.run(runs_of, asked, left, lambda reason: {"failed": reason}):
                for name, found in batch:
                    if "failed" in found:
                        raise InputError(Mistake(None, f"methods.{name}", found["failed"], "a run that ends"))
                    if journal is not None:
                        journal.add([(ids[name], found)])
                    yield name, found
    finally:
        if journal is not None:
            journal.close()


def _timetable(history: History, one: Replica, document: Mapping[str, Any]) -> list[int] | None:
    """Replicas by hour of the day of the scheduled autoscaler, after all days of the history."""
    rows = [r for r in document["rows"] if r["method"] == "scheduled"]
    rates = history.per_minute[: history.minutes // 1440 * 1440].reshape(-1, 24, 60)
    if not rows or not len(rates):
        return None
    factor = max(rows, key=lambda r: r["tuned"])["setting"]["factor"]
    peak = np.nanmax(np.where(np.isfinite(rates), rates, 0.0), axis=(0, 2))
    return [int(n) for n in np.ceil(factor * peak / one.requests_per_s - 1e-9)]


def minutes(text: str, name: str) -> int:
    """A duration such as 7d, 12h or 5m, in minutes; rounded up, so that no start-up is planned too short.

    Raises:
        InputError: text without a unit, or with an unknown one.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d)\s*", str(text))
    if match is None:
        raise InputError(Mistake(None, name, text, "a duration such as 90s, 5m, 12h or 7d"))
    return int(-(-float(match[1]) * SECONDS_OF[match[2]] // 60))


def _rate_and_price(replica: str | tuple[float, float]) -> tuple[float, float]:
    """Requests/s and USD/h.

    Raises:
        InputError: not two positive numbers.
    """
    try:
        rate, usd = map(float, replica.split(":") if isinstance(replica, str) else replica)
    except ValueError:
        rate = usd = 0.0
    if not (0 < rate < float("inf") and 0 < usd < float("inf")):
        raise InputError(Mistake(None, "--replica", replica, "RATE:USD, such as 8.55:13.76"))
    return rate, usd


def _document(found: Backtest) -> dict[str, Any]:
    rows = [
        {"method": r.method, "setting": dict(r.setting), "tuned": r.tuned, **asdict(r.judged),
         "train": asdict(r.train)}
        for r in found.rows
    ]  # fmt: skip
    return {
        "rows": rows, "at_goal": found.at_goal, "frontiers": found.frontiers, "hindsight_usd": found.hindsight_usd,
        "forecast": found.forecast,
    }  # fmt: skip
