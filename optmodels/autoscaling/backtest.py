"""Policies side by side on one history: cost, SLO attainment and changes, next to the least cost with hindsight.

Billing begins with the order and ends with draining. A policy decides once a minute and sees nothing of the minute that
begins; `tests/autoscaling` compares runs on truncated histories bit by bit. Costs are multiples of hindsight: the least
cost of whole replicas that cover every minute's mean rate, start-up paid, with perfect knowledge (`levels`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from optmodels.arrays import Array
from optmodels.autoscaling import levels
from optmodels.autoscaling.history import History
from optmodels.autoscaling.policies import (
    REACTIVE,
    Policy,
    PolicyMethod,
    QuantileRule,
    SageServe,
    SageServeGuided,
    Static,
)
from optmodels.autoscaling.queue import STEPS_A_MINUTE
from optmodels.autoscaling.running import PolicyRun, Replica, TypesPolicy, run, run_types
from optmodels.forecast.conformal import CORRECTIONS, Correction, pinball, quantiles
from optmodels.forecast.methods import method_of
from optmodels.forecast.points import METHODS, MINUTES_A_DAY, last_value, yesterdays_change

ORDER_LEVELS = (0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995)
KEEP_LEVELS = (0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995)
PLAN_DEFAULT = {"order": 0.99, "keep": 0.995}
CHOSEN_AT = 0.98  # quantile whose loss chooses the median forecast
SAGESERVE = ("sageserve", "sageserve_u", "sageserve_ua")
ALWAYS = ("plan", "perfect", "static", *SAGESERVE, *REACTIVE)


@dataclass(frozen=True)
class JudgedRun:
    """A run on a stretch of minutes.

    Attributes:
        attained: share of the requests within the SLO.
        usd: cost.
        over_hindsight: cost as a multiple of the least with hindsight.
        changes: replicas ordered or stopped.
        worst_minute: smallest attained share of a minute with requests.
        fewest, most: replicas that served in a minute.
    """

    attained: float
    usd: float
    over_hindsight: float
    changes: int
    worst_minute: float
    fewest: int
    most: int


@dataclass(frozen=True)
class BacktestRow:
    """A method in the table of a backtest."""

    method: str
    setting: Mapping[str, float]
    tuned: bool
    judged: JudgedRun
    train: JudgedRun


@dataclass
class Backtest:
    """The document of a backtest.

    Attributes:
        rows: default and tuned setting of every method, on the judged days.
        frontiers: method → (attained, multiple of hindsight) of every setting, on the judged days.
        at_goal: method → multiple of hindsight at the goal, read off its frontier; None: it never attains the goal.
        hindsight_usd: least cost of the judged days.
        forecast: method of the median forecast, and the cover of each quantile on the judged days.
    """

    goal: float
    rows: list[BacktestRow] = field(default_factory=list)
    frontiers: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    at_goal: dict[str, float | None] = field(default_factory=dict)
    hindsight_usd: float = 0.0
    forecast: dict[str, Any] = field(default_factory=dict)


class Quantiles:
    """Quantiles of the required rate at the lead time and of the largest one soon after, forecast at every minute.

    The median forecast is of the mean rate; the conformal correction takes it to the rate that a minute requires
    (`History.required`).

    `order(q)[t]` and `keep(q)[t]` use nothing after minute t. The lead counts from the next decision: replicas ordered
    at the start of minute t + 1 serve from minute t + 1 + start.
    """

    def __init__(self, history: History, replica: Replica, train: int, method: str = "auto") -> None:
        self.x = history.for_forecasts()
        self.y = np.where(np.isfinite(self.x), history.required(replica.slack_s), np.nan)
        self.lead, self.soon = replica.start_min + 1, 2 * replica.start_min + 2
        names = tuple(METHODS) if method == "auto" else (method,)
        forecasts = {name: method_of(name)(self.x, train, self.soon) for name in names}
        self.method, self.correction = self._best(forecasts, train)
        points = forecasts[self.method]
        self._order = (points[:, self.lead - 1], self._ahead(self.lead, self.lead), self.lead)
        self._keep = (points.max(axis=1), self._ahead(1, self.soon), self.soon)
        self._known: dict[tuple[str, float], Array] = {}

    def order(self, level: float) -> Array:
        """Quantile of the rate at the lead time, (minutes,)."""
        return self._quantile("order", level)

    def keep(self, level: float) -> Array:
        """Quantile of the largest rate from the next minute to twice the lead time, (minutes,)."""
        return self._quantile("keep", level)

    def cover(self, level: float, begin: int) -> float:
        """Share of the minutes from `begin` whose outcome at the lead time was at most its quantile."""
        outcome, quantile = self._order[1][begin:], self.order(level)[begin:]
        counted = np.isfinite(outcome) & (outcome > 0)
        return float((outcome <= quantile)[counted].mean()) if counted.any() else math.nan

    def _quantile(self, what: str, level: float) -> Array:
        if (what, level) not in self._known:
            forecast, outcome, delay = self._order if what == "order" else self._keep
            self._known[what, level] = quantiles(forecast, outcome, delay, (level,), self.correction)[:, 0]
        return self._known[what, level]

    def _ahead(self, first: int, last: int) -> Array:
        """Largest required rate of the minutes t + first … t + last; NaN where one is missing; (minutes,)."""
        y = np.concatenate([self.y, np.full(last, np.nan)])
        windows = np.lib.stride_tricks.sliding_window_view(y[first:], last - first + 1)[: len(self.y)]
        return np.asarray(windows.max(axis=1))

    def _best(self, forecasts: Mapping[str, Array], train: int) -> tuple[str, Correction]:
        """The method and correction of least pinball loss on the last three training days."""
        begin, level = max(train - 3 * MINUTES_A_DAY, train // 2), CHOSEN_AT
        outcome, losses = self._ahead(self.lead, self.lead), {}
        for name, points in forecasts.items():
            for correction in CORRECTIONS:
                q = quantiles(points[:train, self.lead - 1], outcome[:train], self.lead, (level,), correction)
                losses[name, correction] = pinball(outcome[begin:train], q[begin:, 0], level)
        return min(losses, key=losses.__getitem__)


@dataclass(frozen=True)
class Asked:
    """What every method of a backtest runs on: the history, the replica, minutes, and whether settings are searched."""

    history: History
    replica: Replica
    train_min: int
    judge_min: int
    tune: bool = True
    forecast: str = "auto"

    @property
    def stretches(self) -> dict[str, slice]:
        """Minutes that are scored. The first day of training only warms up forecasts."""
        warm = min(MINUTES_A_DAY, self.train_min // 2)
        return {"train": slice(warm, self.train_min), "judge": slice(self.train_min, self.train_min + self.judge_min)}

    def hindsight(self) -> dict[str, int]:
        """Least replica-minutes of each stretch."""
        one = self.replica
        x = np.nan_to_num(self.history.per_minute, nan=0.0)
        need = np.ceil(x / one.requests_per_s - 1e-9).astype(np.int64).clip(min=1)
        best = levels.hindsight(need, one.start_min, one.drain_min)
        return {k: levels.paid_minutes(best[s], one.start_min, one.drain_min) - one.start_min * int(best[s.start])
                for k, s in self.stretches.items()}  # fmt: skip


Runs = Callable[[Asked, Sequence[str]], Iterable[tuple[str, dict[str, Any]]]]


def runs_of(asked: Asked, name: str) -> dict[str, Any]:
    """Every setting of a method, judged; its results are values that JSON has, so that they can be kept.

    Returns:
        ``runs``: the setting and `JudgedRun` of ``train`` and ``judge`` of each; ``default``: the default setting;
        ``forecast``: that of `plan`.
    """
    q, forecast = None, None
    if name == "plan":
        q = Quantiles(asked.history, asked.replica, asked.train_min, asked.forecast)
        cover = {str(level): q.cover(level, asked.train_min) for level in (0.9, 0.95, 0.98, 0.99)}
        forecast = {"method": q.method, **asdict(q.correction), "cover": cover}
    method, least = _method(name, asked.history, asked.replica, asked.train_min, q), asked.hindsight()
    runs = []
    for setting in method.settings() if asked.tune else [dict(method.default)]:
        found = run(method.make(**setting), asked.history, asked.replica)
        runs.append({"setting": setting, **{k: asdict(_judged(found, asked, k, least)) for k in asked.stretches}})
    return {"runs": runs, "default": dict(method.default), "forecast": forecast}


def _judged(found: PolicyRun, asked: Asked, name: str, least: Mapping[str, int]) -> JudgedRun:
    s = asked.stretches[name]
    requests, late = found.requests[s], found.late[s]
    some = requests > 0
    paid = float(found.paid[s].sum())
    return JudgedRun(
        1.0 - float(late.sum() / max(requests.sum(), 1e-300)), paid / 60.0 * asked.replica.usd_per_hour,
        paid / max(least[name], 1), int(found.changes[s].sum()),
        float((1.0 - late[some] / requests[some]).min(initial=1.0)),
        int(found.ready[s].min()),
        int(found.ready[s].max()),
    )  # fmt: skip


def in_turn(asked: Asked, names: Sequence[str]) -> Iterable[tuple[str, dict[str, Any]]]:
    """`runs_of` each method, one after the other."""
    return ((name, runs_of(asked, name)) for name in names)


def backtest(
    history: History, replica: Replica, train_min: int, judge_min: int, *, methods: Iterable[str] = ALWAYS,
    goal: float = 0.99, tune: bool = True, forecast: str = "auto", policies: Mapping[str, Policy] | None = None,
    types: Sequence[Replica] = (), on_types: Mapping[str, TypesPolicy] | None = None,
    say: Callable[[str], None] = lambda _: None, each: Runs = in_turn,
) -> Backtest:  # fmt: skip
    """Run every method on the history; tune on the first `train_min` minutes, judge on the next `judge_min`.

    Args:
        history: at least `train_min + judge_min` minutes.
        replica: unit that is added and removed.
        train_min, judge_min: minutes. The first day of training only warms up forecasts and is not scored.
        methods: names of `ALWAYS`.
        goal: share of the requests within the SLO that tuning and `at_goal` ask for.
        tune: try the grid of every method; else the defaults alone.
        forecast: name of `forecast.methods.NAMES`, or auto.
        policies: policies of one's own by name, run as they are.
        types: replica types of `on_types`, `replica` first.
        on_types: policies that return a count for each type, by name.
        say: callback that gets one line a method.
        each: gives `runs_of` every method, in any order: several processes, or results that were kept.
    """
    history = History(history.requests[: (train_min + judge_min) * STEPS_A_MINUTE], history.name, history.notes)
    asked, names = Asked(history, replica, train_min, judge_min, tune, forecast), list(methods)
    least = asked.hindsight()
    result = Backtest(goal, hindsight_usd=least["judge"] / 60.0 * replica.usd_per_hour)
    known: dict[str, dict[str, Any]] = {}
    for name, found in each(asked, names):
        known[name] = found
        say(f"{name}: {len(found['runs'])} setting{'s' * (len(found['runs']) != 1)}")
    for name in names:
        runs = [(r["setting"], JudgedRun(**r["train"]), JudgedRun(**r["judge"])) for r in known[name]["runs"]]
        result.forecast = known[name]["forecast"] or result.forecast
        default = next(r for r in runs if r[0] == known[name]["default"])
        result.rows.append(BacktestRow(name, default[0], False, default[2], default[1]))
        if tune and len(runs) > 1:
            able = [r for r in runs if r[1].attained >= goal]
            chosen = min(able, key=lambda r: r[1].usd) if able else max(runs, key=lambda r: r[1].attained)
            result.rows.append(BacktestRow(name, chosen[0], True, chosen[2], chosen[1]))
        result.frontiers[name] = [(r[2].attained, r[2].over_hindsight) for r in runs]
        result.at_goal[name] = cost_at(result.frontiers[name], goal)
    own = [(name, partial(run, policy, history, replica)) for name, policy in (policies or {}).items()]
    several = [(name, partial(run_types, policy, history, types)) for name, policy in (on_types or {}).items()]
    for name, make in (*own, *several):
        made = make()
        judged = {k: _judged(made, asked, k, least) for k in asked.stretches}
        result.rows.append(BacktestRow(name, {}, False, judged["judge"], judged["train"]))
        say(f"{name}: as it is")
    return result


def cost_at(points: Sequence[tuple[float, float]], goal: float) -> float | None:
    """Cost at an attained share, on the line between neighbours of the frontier; None: no point attains it."""
    frontier: list[tuple[float, float]] = []
    for attained, cost in sorted(points, key=lambda p: (-p[0], p[1])):  # the most attained first
        if not frontier or cost < frontier[-1][1]:
            frontier.append((attained, cost))
    above = [p for p in frontier if p[0] >= goal]
    if not above:
        return None
    below = [p for p in frontier if p[0] < goal]
    if not below:
        return above[-1][1]
    (a, x), (b, y) = below[0], above[-1]
    return x + (y - x) * (goal - a) / (b - a)


def _method(name: str, history: History, replica: Replica, train: int, q: Quantiles | None) -> PolicyMethod:
    """A method by name; those that forecast get their forecasts here."""
    if name in REACTIVE:
        return REACTIVE[name]
    if name == "static":
        peak = float(np.nanmax(history.per_minute[:train]))
        return PolicyMethod(
            lambda factor: Static(peak, factor), {"factor": 1.0}, {"factor": (0.8, 0.9, 1.0, 1.1, 1.2, 1.4)}
        )
    if name in SAGESERVE:
        ahead = np.median(
            [last_value(history.per_minute, train, 60), yesterdays_change(history.per_minute, train, 60)], axis=0
        )

        def sageserve(use: float) -> Policy:
            by_forecast = name == SAGESERVE[2]
            return (
                SageServe(ahead, use) if name == SAGESERVE[0] else SageServeGuided(ahead, use, by_forecast=by_forecast)
            )

        return PolicyMethod(sageserve, {"use": 1.0}, {"use": (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)})
    if name == "perfect":
        x = np.nan_to_num(history.required(replica.slack_s), nan=0.0)
        lead, soon = replica.start_min + 1, 2 * replica.start_min + 2
        padded = np.concatenate([x, np.full(soon, x[-1])])
        order = padded[lead : lead + len(x)]
        keep = np.lib.stride_tricks.sliding_window_view(padded[1:], replica.start_min + replica.drain_min + 1)
        return PolicyMethod(lambda: QuantileRule(order, np.maximum(keep[: len(x)].max(axis=1), order)), {}, {})
    assert name == "plan" and q is not None

    def plan(order: float, keep: float) -> Policy:
        return QuantileRule(q.order(order), q.keep(keep))

    return PolicyMethod(plan, PLAN_DEFAULT, {"order": ORDER_LEVELS, "keep": KEEP_LEVELS})
