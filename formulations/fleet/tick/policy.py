"""`replan`'s tick as a policy of a backtest: on the replica of least price a request, or on several machine types."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from formulations.fleet.points import build_tables
from formulations.fleet.problem import Fleet
from formulations.fleet.tick.data import Tick, horizon, tick_of
from formulations.fleet.tick.judge import PATHS
from formulations.fleet.tick.rule import lead_of
from formulations.fleet.tick.solve import decide, rule
from formulations.fleet.tick.state import TickState
from optmodels.arrays import Array, Mask
from optmodels.autoscaling.history import History
from optmodels.autoscaling.policies import Observation
from optmodels.autoscaling.running import Replica
from optmodels.forecast.points import MINUTES_A_DAY
from optmodels.forecast.ticks import LEVELS, TickForecast

MOST_TYPES, DEAREST = 4, 2.0  # machine types of a backtest, and their price a request over the least
LEAST_HISTORY_MIN = 120
SECONDS = 0.5  # of the solver in a tick


class TickPolicy:
    """A decision every tick. On minutes between ticks the rule decides, on ticks of one minute.

    With one machine type the rule may order and stop. With several it only orders: the program decides what to stop.

    Args:
        tick: parameters without state: G types with one pool each, one workload.
        minute: the same on ticks of one minute; None: nothing changes between ticks.
        forecasts: minute from which each forecast counts, and the forecast; a decision reads only what lies before it.
        method: method of `solve.decide`.
        judged: sampled paths on which candidates are compared.
    """

    def __init__(
        self, tick: Tick, minute: Tick | None, forecasts: Sequence[tuple[int, TickForecast]], method: str = "auto",
        judged: int = 0,
    ) -> None:  # fmt: skip
        self.tick, self.minute, self.method, self.judged = tick, minute, method, judged
        self.forecasts = forecasts
        self.sources: dict[str, int] = {}

    def __call__(self, seen: Observation) -> Any:
        """Wanted replicas, ready and starting: a count, or (G,) where the observation has counts by type."""
        t, step = seen.minute, round(self.tick.tick_min)
        whole = t % step == 0
        tick = self.tick if whole else self.minute
        ready = np.array([seen.ready]) if seen.counts is None else seen.counts
        there = ready.copy()
        for _, count, g in seen.coming:
            there[g] += count
        if t < LEAST_HISTORY_MIN:
            there[0] = max(math.ceil(1.5 * seen.load), 1)
        elif tick is not None:
            single = len(tick.machines) == 1
            tick = self.minute if single and self.minute is not None else tick
            step = round(tick.tick_min)
            arriving = np.zeros((tick.H, len(tick.machines)), dtype=np.int64)
            for at, count, g in seen.coming:
                arriving[min(max(-(-(at - t) // step), 0), tick.H - 1), g] += count
            forecast = next(f for begin, f in reversed(self.forecasts) if t >= begin)
            found = forecast.at(t, step, tick.H, tuple(tick.levels))
            now = replace(tick, ready=ready, arriving=arriving, rates=found[:, :, None])
            if whole and not single:
                done = decide(now, SECONDS, method=self.method, judged=self.judged)
                self.sources[done.source] = self.sources.get(done.source, 0) + 1
                there = there + done.orders - done.stops
            else:
                done = rule(now)
                self.sources["rule"] = self.sources.get("rule", 0) + 1
                there = there + done.orders - (done.stops if single else 0)
        return there if seen.counts is not None else int(there[0])


def ticks(
    problem: Fleet, workload: str, replica: Replica, history: History, tick_min: float = 5.0,
    forecast: str = "auto", train_min: int = MINUTES_A_DAY,
) -> tuple[list[Replica], Mapping[str, TickPolicy]]:  # fmt: skip
    """Replica types of a workload and the policies on them.

    Args:
        problem: the instance.
        workload: served alone.
        replica: start-up, draining and waiting of every type.
        history: requests.
        tick_min: minutes of a tick.
        forecast: median forecast, of `TickForecast`.
        train_min: minutes that the forecast is fitted on.

    Returns:
        Types by price a request, and policies by name: ``replan`` on the first type, ``replan_types`` on all, judged
        on sampled paths, and ``replan_objective``, where the program's own objective decides.
    """
    tables = build_tables(problem)

    def made(minutes: float) -> tuple[TickState, Tick]:
        state = TickState.model_validate({
            "schema": 1, "tick_min": minutes, "lead_times": [{"machine": "*", "start_min": replica.start_min}],
            "change": {"drain_min": replica.drain_min},
        })  # fmt: skip
        H = horizon(state, [r[0] for r in tables.resources])
        return state, tick_of(tables, state, np.ones((H, len(LEVELS), 1)), LEVELS, [workload])

    (state, whole), (by_minute, short) = made(tick_min), made(1.0)
    usd = whole.use @ whole.usd
    price = usd / whole.rate
    chosen = [p for p in np.argsort(price, kind="stable").tolist() if price[p] <= DEAREST * price.min()][:MOST_TYPES]
    types = [replace(replica, requests_per_s=float(whole.rate[p]), usd_per_hour=float(usd[p] * 60 / tick_min))
             for p in chosen]  # fmt: skip

    # The first day fits the forecast, so until its end the last value is the median.
    rates = history.for_forecasts()
    required = np.where(np.isfinite(rates), history.required(replica.slack_s), np.nan)
    train, ahead = min(train_min, len(rates)), round(tick_min) * whole.H
    forecasts = [
        (0, TickForecast(rates, required, train, ahead, "last_value")),
        (train, TickForecast(rates, required, train, ahead, forecast, replica.start_min + 1)),
    ]

    def policy(pools: list[int], method: str = "auto", judged: int = 0) -> TickPolicy:
        minute = _of_pools(short, by_minute, usd / tick_min, pools)
        tick = _of_pools(whole, state, usd, pools)
        return TickPolicy(tick, minute, forecasts, method, judged)

    made_of = {"replan": policy(chosen[:1])}
    if len(chosen) > 1:
        made_of["replan_types"] = policy(chosen, "exact", PATHS)
        made_of["replan_objective"] = policy(chosen, "exact")
    return types, made_of


def _of_pools(tick: Tick, state: TickState, usd: Array, pools: list[int]) -> Tick:
    """The tick whose machine types are the machine sets of some pools, one deployment on each."""
    G, use = len(pools), tick.use[pools]
    start = np.array([max(tick.lead[g].start for g in np.flatnonzero(row)) for row in use])
    usd, start_usd, stop_usd = usd[pools], use @ tick.start_usd, use @ tick.stop_usd
    drain = np.full(G, float(tick.drain.max(initial=0.0)))
    rows = tick.limit_rows @ use.T
    some: Mask = np.asarray(rows.any(axis=1))
    none = np.zeros(G, dtype=np.int64)
    return replace(
        tick, machines=tuple((tick.names[p], "", "") for p in pools), usd=usd,
        lead=tuple(
            lead_of(int(start[g]), float(drain[g]), float(start_usd[g]), float(stop_usd[g]), float(usd[g]))
            for g in range(G)
        ),
        drain=drain, start_usd=start_usd, stop_usd=stop_usd, ready=none, arriving=np.zeros((tick.H, G), np.int64),
        young=np.zeros((tick.H, G), np.int64), committed=none, blocked=none, limit_rows=rows[some],
        limits=tick.limits[some], limit_names=tuple(n for n, s in zip(tick.limit_names, some, strict=True) if s),
        of=none, use=np.eye(G), rate=tick.rate[pools], names=tuple(tick.names[p] for p in pools), load=none,
        loading=np.zeros((tick.H, G), np.int64),
    )  # fmt: skip
