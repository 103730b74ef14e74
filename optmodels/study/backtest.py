"""The verb `backtest`: what autoscalers would have cost and attained on a history, beside hindsight."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

from optmodels import formulation as registry
from optmodels.autoscaling.backtest import ALWAYS, Backtest, Replica
from optmodels.autoscaling.backtest import backtest as run_policies
from optmodels.autoscaling.history import History, read_history
from optmodels.autoscaling.policies import Policy
from optmodels.errors import InputError, Mistake, one_of
from optmodels.loading import load

LEAST_MINUTES = 60


def backtest(
    source: Any, history: str | PathLike[str] | History, *, train_min: int = 7 * 1440, judge_min: int = 7 * 1440,
    methods: Sequence[str] = ALWAYS, workload: str | None = None, lead_min: int = 5, drain_min: int = 1,
    goal: float = 0.99, tune: bool = False, slack_s: float = 2.0, patience_s: float = 30.0,
    policies: Mapping[str, Policy] | None = None, say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """Run autoscalers on a history of requests.

    Args:
        source: instance file, mapping or problem whose cheapest deployment is the replica; or a `Replica`.
        history: file of counts or requests (`autoscaling.history.read_history`), or a `History`.
        train_min: minutes to tune on; the first day warms up forecasts.
        judge_min: minutes to judge on.
        methods: names of `autoscaling.backtest.ALWAYS`.
        workload: of the instance, where it has several.
        lead_min: minutes from an order until a replica serves.
        drain_min: minutes that a replica drains.
        goal: share of the requests within the SLO.
        tune: search the settings of every method on the training minutes; else defaults alone.
        slack_s, patience_s: waiting within the SLO, and waiting after which a client leaves; seconds.
        policies: policies of one's own, by name: callables from `autoscaling.policies.Observation` to a count.
        say: gets one line a method.

    Returns:
        The backtest document: ``rows`` (method, setting, tuned, attained, usd, over_hindsight, changes, worst_minute),
        ``at_goal``, ``frontiers``, ``hindsight_usd``, ``forecast``, ``replica``.

    Raises:
        InputError: a file, an argument or an instance that cannot be used.
    """
    for name in methods:
        one_of("methods", name, ALWAYS)
    for option, value in (("train_min", train_min), ("judge_min", judge_min)):
        if value < LEAST_MINUTES:
            raise InputError(Mistake(None, option, value, f"at least {LEAST_MINUTES} minutes"))
    if not 0 < goal < 1:
        raise InputError(Mistake(None, "goal", goal, "a share between 0 and 1, such as 0.99"))
    if lead_min < 0 or drain_min < 0:
        raise InputError(Mistake(None, "lead_min, drain_min", (lead_min, drain_min), "whole minutes ≥ 0"))
    began = time.perf_counter()
    if isinstance(source, Replica):
        replica, offer = source, None
    else:
        problem = source if hasattr(source, "formulation") and not isinstance(source, Mapping) else load(source)
        form = registry.get(problem.formulation)
        if form.replica is None:
            able = ", ".join(n for n in registry.names() if registry.get(n).replica is not None)
            raise InputError(Mistake(None, "formulation", form.name, f"an instance of {able}"))
        offer = form.replica(problem, workload)
        replica = Replica(offer.requests_per_s, offer.usd_per_hour, lead_min, drain_min, slack_s, patience_s)
    series = history if isinstance(history, History) else read_history(Path(history), workload)
    if series.minutes < train_min + judge_min:
        expected = f"at least {train_min + judge_min:,} minutes: --train and --judge together"
        raise InputError(Mistake(series.name or None, "history", f"{series.minutes:,} minutes", expected))
    found = run_policies(
        series, replica, train_min, judge_min, methods=methods, goal=goal, tune=tune, policies=policies, say=say
    )
    return {
        "history": series.name, "history_notes": list(series.notes), "train_min": train_min, "judge_min": judge_min,
        "goal": goal, "replica": asdict(replica) | ({} if offer is None else asdict(offer)), **_document(found),
        "seconds": time.perf_counter() - began, "optmodels_version": version("optmodels"),
    }  # fmt: skip


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
