"""Autoscaling policies: rules from each minute's observation to the number of replicas that should exist.

Each follows its public source (docstrings name it), reduced to one replica type and one decision a minute. `load` is
the offered load in replicas: the rate of the last minute, with the queue served within a minute, over a replica's rate.
A policy of one's own is any callable from `Observation` to a whole number.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Protocol

import numpy as np

from optmodels.arrays import Array, Ints

LEVEL_GAIN, SLOPE_GAIN = 0.4, 0.1  # of the trend that stands in for Dynamo's filter


@dataclass(slots=True)
class Observation:
    """Observation of a policy at the start of a minute.

    Attributes:
        minute: index of the minute that begins.
        rates: mean requests/s of every minute before it, (minute,); NaN: not measured.
        rate: the newest measured of them.
        newest_rate: requests/s of the last ten seconds.
        use: largest share of the ready capacity that a step of the last minute asked for; above 1 a queue grows.
        backlog: requests that wait.
        ready, pending: replicas that serve, and that start up.
        replica_rate: requests/s that a replica serves within the SLO.
        counts: replicas that serve, by type where there are several, (G,).
        coming: orders on their way: minute in which they serve, count, type.
    """

    minute: int
    rates: Array
    rate: float
    newest_rate: float
    use: float
    backlog: float
    ready: int
    pending: int
    replica_rate: float
    counts: Ints | None = None
    coming: Sequence[Sequence[int]] = ()

    @property
    def total(self) -> int:
        """Replicas that exist: ready and starting."""
        return self.ready + self.pending

    @property
    def load(self) -> float:
        """Offered load in replicas."""
        return (self.rate + self.backlog / 60.0) / self.replica_rate


class Policy(Protocol):
    """A rule from an observation to the wanted number of replicas."""

    def __call__(self, seen: Observation) -> int:
        """Wanted replicas, ready and starting."""
        ...


@dataclass
class HorizontalPodAutoscaler:
    """Kubernetes HPA: ⌈n·metric/target⌉ outside a tolerance of ±10 %; down to the largest wish of a window.

    Pods that start up count with a metric of 0, as the documentation states, so the wish is ⌈load/target⌉.
    """

    target: float = 0.7
    window_min: int = 5
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        self.wishes: deque[int] = deque(maxlen=self.window_min)

    def signal(self, seen: Observation) -> float:
        """Offered load in replicas."""
        return seen.load

    def __call__(self, seen: Observation) -> int:
        """Wanted replicas, ready and starting."""
        n, load = max(seen.total, 1), self.signal(seen)
        wish = n if abs(load / (n * self.target) - 1.0) <= self.tolerance else math.ceil(load / self.target)
        self.wishes.append(wish)
        return wish if wish >= seen.total else min(seen.total, max(self.wishes))


@dataclass
class Keda(HorizontalPodAutoscaler):
    """KEDA on the request rate: HPA's rule on the mean rate of the last two minutes."""

    rate_min: int = 2

    def signal(self, seen: Observation) -> float:
        """Mean offered rate of the last minutes, in replicas."""
        recent = seen.rates[-self.rate_min :]
        measured = recent[np.isfinite(recent)]
        return (float(measured.mean()) if len(measured) else seen.rate) / seen.replica_rate


@dataclass
class KnativePodAutoscaler:
    """KPA as in AIBrix (`algorithm/kpa.go`): stable and panic window, at most ×2 up and ÷2 down, delayed down."""

    target: float = 0.7
    down_delay_min: int = 0
    panic_at: float = 2.0

    def __post_init__(self) -> None:
        self.wishes: deque[int] = deque(maxlen=self.down_delay_min + 1)
        self.panic_until, self.panic_count = -1, 0

    def __call__(self, seen: Observation) -> int:
        """Wanted replicas, ready and starting."""
        n = max(seen.total, 1)
        stable, panic = seen.load, seen.newest_rate / seen.replica_rate
        wish = min(max(math.ceil(max(stable, panic if self.panic_until >= seen.minute else 0.0) / self.target),
                       n // 2), 2 * n)  # fmt: skip
        if panic / self.target >= self.panic_at * max(seen.ready, 1):
            self.panic_until, self.panic_count = seen.minute + 1, max(self.panic_count, wish)
        if self.panic_until >= seen.minute:
            self.panic_count = max(self.panic_count, wish, seen.total)
            return self.panic_count
        self.panic_count = 0
        self.wishes.append(wish)
        return max(self.wishes)


@dataclass
class AibrixPodAutoscaler:
    """APA (AIBrix): n·use/target outside +10 % and −20 %, at most ×2 up and ÷2 down."""

    target: float = 0.7
    up_tolerance: float = 0.1
    down_tolerance: float = 0.2

    def __call__(self, seen: Observation) -> int:
        """Wanted replicas, ready and starting."""
        n = max(seen.total, 1)
        ratio = seen.load / (n * self.target)
        if ratio > 1.0 + self.up_tolerance:
            return min(math.ceil(n * ratio), 2 * n)
        if ratio < 1.0 - self.down_tolerance:
            return max(math.ceil(n * ratio), n // 2)
        return n


@dataclass
class WvaSaturation:
    """llm-d WVA's saturation analyser: +1 when the spare share is below a threshold and nothing starts up; −1 when the
    load spread over n − 1 replicas still leaves it."""

    saturated: float = 0.8
    spare: float = 0.1

    def __call__(self, seen: Observation) -> int:
        """Wanted replicas, ready and starting."""
        n = max(seen.ready, 1)
        if self.saturated - seen.use < self.spare:
            return seen.total + (seen.pending == 0)
        if n >= 2 and seen.pending == 0 and seen.use * n / (n - 1) <= self.saturated - self.spare:
            return seen.total - 1
        return seen.total


@dataclass
class DynamoPlanner:
    """Dynamo's SLA planner (throughput rule): every interval ⌈forecast/(replica rate·use)⌉.

    The forecast is the last interval's mean, or with `trend` a local linear trend one interval ahead, with fixed
    gains where Dynamo runs a Kalman filter.
    """

    use: float = 1.0
    trend: bool = False
    interval_min: int = 3

    def __post_init__(self) -> None:
        self.level, self.slope, self.wish = math.nan, 0.0, 0

    def __call__(self, seen: Observation) -> int:
        """Wanted replicas, ready and starting."""
        if seen.minute % self.interval_min and self.wish:
            return self.wish
        recent = seen.rates[-self.interval_min :]
        measured = recent[np.isfinite(recent)]
        now = float(measured.mean()) if len(measured) else seen.rate
        if self.trend and not math.isnan(self.level):
            error = now - (self.level + self.slope)
            self.level, self.slope = self.level + self.slope + LEVEL_GAIN * error, self.slope + SLOPE_GAIN * error
        else:
            self.level = now
        forecast = max(self.level + self.slope, 0.0) if self.trend else now
        self.wish = max(math.ceil(forecast / (seen.replica_rate * self.use)), 1)
        return self.wish


@dataclass
class SageServe:
    """SageServe LT-I: every hour the largest forecast of the coming 20 to 60 minutes plus 10 %, at once.

    The forecast is a median of the same form as ours (`forecasts[t, h − 1]` for t + h), in place of its ARIMA.
    """

    forecasts: Array
    use: float = 1.0
    margin: float = 0.1

    def __post_init__(self) -> None:
        self.wish = 0

    def __call__(self, seen: Observation) -> int:
        """Wanted replicas, ready and starting."""
        if seen.minute % 60 == 0 or not self.wish:
            ahead = self.forecasts[max(seen.minute - 1, 0), 19:60]
            self.wish = max(math.ceil(float(ahead.max()) * (1 + self.margin) / (seen.replica_rate * self.use)), 1)
        return self.wish


@dataclass
class SageServeGuided(SageServe):
    """SageServe LT-U and LT-UA: towards the hourly plan one instance at a time, as use asks, and never two at once.

    One more above a use of `up`, one less below `down` where the plan has fewer. Beyond the plan LT-U goes above a use
    of `beyond`, LT-UA (`by_forecast`) where the last minute was five times the forecast. Use is the share of the ready
    capacity, in place of SageServe's memory use.
    """

    up: float = 0.5
    down: float = 0.25
    beyond: float = 0.9
    by_forecast: bool = False

    def __call__(self, seen: Observation) -> int:
        """Wanted replicas, ready and starting."""
        planned, n = super().__call__(seen), max(seen.total, 1)
        if seen.pending:
            return n
        if self.by_forecast:
            exceeds = seen.rate > 5.0 * float(self.forecasts[max(seen.minute - 2, 0), 0])
        else:
            exceeds = seen.use > self.beyond
        if seen.use > self.up and (n < planned or exceeds):
            return n + 1
        return n - 1 if seen.use < self.down and n > planned else n


@dataclass
class ScheduledPolicy:
    """A timetable by hour of the day: the largest minute of that hour on earlier days, times a factor."""

    factor: float = 1.2

    def __call__(self, seen: Observation) -> int:
        """Wanted replicas, ready and starting."""
        t, day = seen.minute, 1440
        if t < day:
            return max(math.ceil(1.5 * seen.load), 1)
        hour = t // 60 % 24
        past = [seen.rates[d * day + hour * 60 : d * day + hour * 60 + 60] for d in range(t // day)]
        peak = max((float(np.nanmax(p)) for p in past if np.isfinite(p).any()), default=seen.rate)
        return max(math.ceil(self.factor * peak / seen.replica_rate), 1)


@dataclass
class Static:
    """A constant number of replicas: the largest minute of the training days times a factor."""

    peak: float
    factor: float = 1.0

    def __call__(self, seen: Observation) -> int:
        """Wanted replicas, ready and starting."""
        return max(math.ceil(self.factor * self.peak / seen.replica_rate), 1)


@dataclass
class QuantileRule:
    """Order up to one quantile of the rate at the lead time; keep up to another of the largest rate soon after.

    Two thresholds make the fleet stable: between them nothing changes. With the true rates as quantiles it is the rule
    that covers every minute (`levels`).
    """

    order: Array  # requests/s at the lead time, forecast at each minute, (minutes,)
    keep: Array  # largest requests/s within twice the lead time, in the same way

    def __call__(self, seen: Observation) -> int:
        """Wanted replicas, ready and starting."""
        t = seen.minute - 1
        if t < 0:
            return max(math.ceil(seen.load), 1)
        least = math.ceil(float(self.order[t]) / seen.replica_rate - 1e-9)
        most = max(math.ceil(float(self.keep[t]) / seen.replica_rate - 1e-9), least)
        return max(min(max(seen.total, least), most), 1)


Make = Callable[..., Policy]


@dataclass(frozen=True)
class PolicyMethod:
    """A policy with its default and the settings that tuning tries."""

    make: Make
    default: Mapping[str, float]
    grid: Mapping[str, Sequence[float]]

    def settings(self) -> list[dict[str, float]]:
        """Every setting of the grid, the default among them."""
        names = list(self.grid)
        found = [dict(zip(names, values, strict=True)) for values in product(*self.grid.values())]
        return found if dict(self.default) in found else [dict(self.default), *found]


TARGETS = (0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
REACTIVE: dict[str, PolicyMethod] = {
    "hpa": PolicyMethod(HorizontalPodAutoscaler, {"target": 0.7, "window_min": 5},
                  {"target": TARGETS, "window_min": (1, 5, 15)}),
    "keda": PolicyMethod(Keda, {"target": 0.7, "window_min": 5}, {"target": TARGETS, "window_min": (1, 5, 15)}),
    "kpa": PolicyMethod(KnativePodAutoscaler, {"target": 0.7, "down_delay_min": 0},
                  {"target": TARGETS, "down_delay_min": (0, 5)}),
    "apa": PolicyMethod(AibrixPodAutoscaler, {"target": 0.7}, {"target": TARGETS}),
    "wva": PolicyMethod(WvaSaturation, {"saturated": 0.8, "spare": 0.1},
                  {"saturated": (0.7, 0.8, 0.9, 1.0), "spare": (0.05, 0.1, 0.2, 0.3)}),
    "dynamo": PolicyMethod(DynamoPlanner, {"use": 1.0}, {"use": TARGETS}),
    "dynamo_trend": PolicyMethod(partial(DynamoPlanner, trend=True), {"use": 1.0}, {"use": TARGETS}),
    "scheduled": PolicyMethod(ScheduledPolicy, {"factor": 1.2}, {"factor": (0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 2.0)}),
}  # fmt: skip
