"""The verb `replan` of a fleet: the tick's decision as a document, with reasons in words and the next state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from formulations.fleet.points import build_tables
from formulations.fleet.problem import Fleet
from formulations.fleet.tick.check import check
from formulations.fleet.tick.data import Tick, horizon, tick_of
from formulations.fleet.tick.solve import Decision, decide
from formulations.fleet.tick.state import TickState
from optmodels.arrays import Array
from optmodels.errors import InputError, Mistake

Forecast = Callable[[Sequence[str], float, int], tuple[Array, Sequence[float]]]


def replan(
    problem: Fleet, state: TickState, forecast: Forecast, *, ticks: int | None = None, time_limit: float = 5.0,
    method: str = "auto", last: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One tick.

    Args:
        problem: the instance: workloads, machines, stock.
        state: the fleet now.
        forecast: (workloads, minutes of a tick, ticks) → requests/s (H, J, W) and quantiles.
        ticks: horizon; None: three times the largest lead time and hysteresis.
        time_limit: seconds of the solver; 0: the rule.
        method: auto, rule or exact.
        last: the document of an earlier tick, for where even the rule fails.

    Returns:
        ``tick`` (source, objective, bound, gap, seconds), ``orders``, ``stops``, ``loads`` and ``unloads``, each with
        its reason, ``kept_idle``, ``path``, ``next_state``.

    Raises:
        InputError: a horizon within the largest lead time.
    """
    tables = build_tables(problem)
    names = [w.name for w in problem.resolve().workloads]
    H = ticks or horizon(state, [r[0] for r in tables.resources])
    rates, levels = forecast(names, state.tick_min, H)
    tick = tick_of(tables, state, rates, levels, names)
    if (least := max((x.start for x in tick.lead), default=0) + 1) > tick.H:
        expected = f"at least {least} ticks of {state.tick_min:g} min: an order serves after its lead time"
        raise InputError(Mistake(None, "forecast, --ticks", f"{tick.H} ticks", expected))
    earlier = None if last is None else {
        what: {"|".join((x["machine"], x["region"], x["market"])): x["count"] for x in last.get(what, ())}
        for what in ("orders", "stops")
    }  # fmt: skip
    found = decide(tick, time_limit, earlier, method)
    wrong = check(tick, found.orders, found.stops)
    assert not wrong, wrong
    return document(tick, state, found)


def document(tick: Tick, state: TickState, found: Decision) -> dict[str, Any]:
    """The decision in words and figures."""
    price = tick.usd * 60.0 / tick.tick_min

    def machine(g: int, count: int, **more: Any) -> dict[str, Any]:
        name, region, market = tick.machines[g]
        return {"machine": name, "region": region, "market": market, "count": int(count),
                "usd_per_hour_each": float(price[g])} | more  # fmt: skip

    orders = [
        machine(g, found.orders[g], ready_in_min=tick.lead[g].start * tick.tick_min, reason=_why_order(tick, g, found))
        for g in np.flatnonzero(found.orders).tolist()
    ]  # fmt: skip
    stops = [machine(g, found.stops[g], reason=_why_stop(tick, g)) for g in np.flatnonzero(found.stops).tolist()]
    used = found.serving[0] @ tick.use
    idle = np.floor(tick.ready - found.stops - used + 1e-9)
    kept = [machine(g, idle[g], reason=_why_kept(tick, g)) for g in np.flatnonzero(idle > 0).tolist()]
    before = np.zeros(len(tick.of)) if tick.serving is None else tick.serving + tick.loading[0]
    target = np.round(found.serving[min(int(tick.load.max(initial=0)), tick.H - 1)])
    loads: list[dict[str, Any]] = []
    unloads: list[dict[str, Any]] = []
    for p in np.flatnonzero(target != before) if tick.serving is not None else ():
        row = {
            "workload": tick.workloads[tick.of[p]],
            "deployment": tick.names[p],
            "count": int(abs(target[p] - before[p])),
        }
        why = _why_load(tick, int(tick.of[p]))
        (loads if target[p] > before[p] else unloads).append(row | {"reason": why})
    path = []
    for t in range(min(tick.H, max(x.start for x in tick.lead) + 2)):
        capacity = {
            name: float(found.serving[t, tick.of == w] @ tick.rate[tick.of == w])
            for w, name in enumerate(tick.workloads)
        }
        path.append({
            "in_min": t * tick.tick_min, "machines": float(found.machines[t].sum()), "capacity": capacity,
            "forecast": {name: {f"q{q:g}": float(r) for q, r in zip(tick.levels, tick.rates[t, :, w], strict=True)}
                         for w, name in enumerate(tick.workloads)},
        })  # fmt: skip
    return {
        "tick": {
            "at": None if state.at is None else state.at.isoformat(), "horizon": tick.H, "tick_min": tick.tick_min,
            "source": found.source, "why": found.why, "objective_usd": found.objective, "bound_usd": found.bound,
            "gap": found.gap, "seconds": found.seconds,
        },
        "orders": orders, "stops": stops, "loads": loads, "unloads": unloads, "kept_idle": kept, "path": path,
        "usd_per_hour": float(price @ (tick.ready - found.stops + tick.arriving.sum(axis=0) + found.orders)),
        "next_state": next_state(state, tick, found),
    }  # fmt: skip


def _needed(tick: Tick, g: int, level: float, t: int) -> list[tuple[str, float]]:
    """Rates of the workloads that a type serves, at a quantile in a tick."""
    at = tick.at(level)[min(t, tick.H - 1)]
    mine = sorted({int(w) for w, u in zip(tick.of, tick.use, strict=True) if u[g] > 0})
    return [(tick.workloads[w], float(at[w])) for w in mine]


def _why_order(tick: Tick, g: int, found: Decision) -> str:
    start = tick.lead[g].start
    t = min(start, tick.H - 1)
    serving = found.serving[t]
    most = max(
        (w for w in range(len(tick.workloads))),
        key=lambda w: float(serving[(tick.of == w) & (tick.use[:, g] > 0)].sum()),
    )  # fmt: skip
    rate = float(tick.at(tick.order)[t, most])
    there = tick.ready + tick.arriving[: t + 1].sum(axis=0)
    mine = np.flatnonzero((tick.of == most) & (tick.use[:, g] > 0))
    carried = float((np.floor(there[g] / tick.use[mine, g]) * tick.rate[mine]).max(initial=0.0))
    return (
        f"{tick.workloads[most]} needs {rate:.4g} requests/s at quantile {tick.order:g} in {start * tick.tick_min:g} "
        "min; "
        f"machines of this type that are ready by then carry {carried:.4g}"
    )


def _why_stop(tick: Tick, g: int) -> str:
    window = tick.lead[g].bridge
    span = f"{window * tick.tick_min:.0f} min" if np.isfinite(window) else "the horizon"
    return f"not needed at quantile {tick.keep:g} within {span}; a later start costs less than keeping it"


def _why_kept(tick: Tick, g: int) -> str:
    name = "|".join(tick.machines[g])
    if tick.committed[g] >= tick.ready[g]:
        return "committed: paid in any case"
    if tick.young[0, g] > 0:
        return "younger than its minimum up time"
    rates = _needed(tick, g, tick.keep, 0)
    window = int(min(np.floor(tick.lead[g].bridge), tick.H - 1))
    later = [(w, max(float(tick.at(tick.keep)[: window + 1, tick.workloads.index(w)].max()), r)) for w, r in rates]
    who, rate = max(later, key=lambda x: x[1], default=(name, 0.0))
    return (
        f"{who} may need {rate:.4g} requests/s at quantile {tick.keep:g} within {window * tick.tick_min:g} min; "
        "starting again costs more than keeping it"
    )


def _why_load(tick: Tick, w: int) -> str:
    return f"{tick.workloads[w]}: {float(tick.at(tick.order)[0, w]):.4g} requests/s at quantile {tick.order:g} now"


def next_state(state: TickState, tick: Tick, found: Decision) -> dict[str, Any]:
    """The state one tick later if everything goes as planned: the file for the next call."""
    data = state.model_dump(mode="json", by_alias=True, exclude_none=True)
    known = {(m["machine"], m["region"], m["market"]): m for m in data["machines"]}
    step = state.tick_min
    rows = []
    for g, (machine, region, market) in enumerate(tick.machines):
        m = known.pop((machine, region, market), None) or known.pop((machine, "", market), None)
        m = m or {"machine": machine, "region": region, "market": market, "ready": 0, "ages_min": [], "starting": []}
        stopped, ordered = int(found.stops[g]), int(found.orders[g])
        ages = sorted(m["ages_min"], reverse=True)[: m["ready"] - stopped]  # the youngest may not stop; the oldest go
        if stopped and m["ages_min"]:
            ages = sorted(m["ages_min"])[: m["ready"] - stopped]
        ages = [a + step for a in ages]
        ready, starting = m["ready"] - stopped, []
        coming = [*m["starting"]]
        if ordered:
            coming.append({"count": ordered, "ready_in_min": tick.lead[g].start * step})
        for s in coming:
            if s["ready_in_min"] <= step:
                ready += s["count"]
                if ages or state.change.min_up_min:
                    ages = [*(ages or [state.change.min_up_min + step] * (ready - s["count"])), *[0.0] * s["count"]]
            else:
                starting.append({"count": s["count"], "ready_in_min": s["ready_in_min"] - step})
        if ready or starting:
            rows.append({"machine": machine, "region": region, "market": market, "ready": ready,
                         "ages_min": ages, "starting": starting})  # fmt: skip
    data["machines"] = rows
    if state.deployments is not None:
        t = min(int(tick.load.max(initial=0)), tick.H - 1)
        data["deployments"] = [
            {"workload": tick.workloads[tick.of[p]], "machine": tick.machines[g][0], "region": tick.machines[g][1],
             "market": tick.machines[g][2], "count": round(float(found.serving[t, p]))}
            for p in np.flatnonzero(np.round(found.serving[t]) > 0) for g in (int(tick.use[p].argmax()),)
        ]  # fmt: skip
    data["blocked"] = [b | {"minutes": b["minutes"] - step} for b in data["blocked"] if b["minutes"] > step]
    if state.at is not None:
        from datetime import timedelta

        data["at"] = (state.at + timedelta(minutes=step)).isoformat()
    return data
