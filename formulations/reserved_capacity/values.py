"""Binding constraints of a reserved-capacity plan, and the value of one more machine or of 10 ms of reach.

Values are differences of exact optima where solving the instance once for every place is little work. Else, where
machines are bought by the hour, they are savings in purchases with the plan's reservations fixed. `basis` states which.
The work allowed is counted in cells (rows × sources × sinks), not in seconds: every machine gives the same basis.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from formulations.reserved_capacity.dispatch import dispatch, kept_dispatch
from formulations.reserved_capacity.points import ReservedTables, build_tables
from formulations.reserved_capacity.problem import ServiceSlo
from optmodels.arrays import Array
from optmodels.engine.continuous import LatencyLimit, Percentile
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.solver.deadline import seconds_for
from optmodels.solver.highs import PROVED

SOLVED_CELLS = 1_000_000  # limit for the solves together, up to which every place is valued by solving again
DISPATCHED_CELLS = 6_000_000  # limit for the dispatches together, which decides how many places are valued
WHAT = "values of one more machine"
REACH_MS = 10.0
SHOWN = 12
FULL = 0.999
TOLD_APART = 2 * PROVED  # share of the cost below which two optima may be equal


def binding(t: ReservedTables, held: Array) -> dict[str, Any]:
    """Caps reached, the hours that need every machine, and the pairs just out of reach.

    Args:
        t: tables.
        held: reserved machines, (J, Q).
    """
    names, machines = t.case.regions, [m.machine for m in t.case.problem.machines]
    found = kept_dispatch(t, held)
    caps = [
        {"cap": "reservable", "region": names[t.sink_region[j]], "machine": machines[t.sink_machine[j]],
         "machines": float(t.sink_most[j])}
        for j in np.flatnonzero(np.isfinite(t.sink_most) & (held.max(axis=1) >= t.sink_most - 1e-9))
    ]  # fmt: skip
    for o in np.flatnonzero(np.isfinite(t.option_most)):
        hours = int((found.bought[:, o] >= t.option_most[o] * (1 - 1e-9)).sum())
        if hours:
            j = t.option_sink[o]
            caps.append({"cap": t.option_market[o], "region": names[t.sink_region[j]],
                         "machine": machines[t.sink_machine[j]], "machines": float(t.option_most[o]),
                         "hours": hours})  # fmt: skip
    total = held.sum(axis=0)[t.quarter]
    busy = found.used.sum(axis=1) / np.maximum(total, 1e-12)
    full = np.flatnonzero(busy >= FULL) if total.any() else np.zeros(0, dtype=np.intp)
    order = np.argsort(-busy, kind="stable")[:5]
    hours_full = [{"scenario": int(t.scenario[h]), "quarter": int(t.quarter[h]), "hour": int(t.hour[h]),
                   "busy_share": float(busy[h])} for h in order]  # fmt: skip
    return {"caps": caps, "hours_full": len(full), "busiest_hours": hours_full, "next_reaches": next_reaches(t)}


def next_reaches(t: ReservedTables) -> list[dict[str, Any]]:
    """Pairs of regions that a little more TTFT and deadline would bring into reach, by how many ms."""
    case = t.case
    rows: list[dict[str, Any]] = []
    for k, s in enumerate(case.problem.services):
        users = np.flatnonzero(case.demand_rps[:, :, k].any(axis=0))
        for i, m in enumerate(case.problem.machines):
            if case.requests_per_s[i, k] <= 0:
                continue
            for r in users:
                allowed = s.residency.get(case.regions[r], case.regions)
                for to in np.flatnonzero(case.offered[i]):
                    points = case.points(i, k)
                    more = s.slo.queue_s + case.prefill_s_at[i, k, points] - s.slo.ttft_limit_s
                    more = np.maximum(more, case.e2e_s_at[i, k, points] - s.slo.deadline_limit_s)
                    lacking = case.rtt_ms[r, to] + 1000 * float(more.min())
                    if lacking > 1e-9 and case.regions[to] in allowed:
                        rows.append({"service": s.service, "origin": case.regions[r], "server": case.regions[to],
                                     "machine": m.machine, "lacking_ms": float(lacking)})  # fmt: skip
    return sorted(rows, key=lambda x: float(x["lacking_ms"]))[:SHOWN]


def values(t: ReservedTables, held: Array) -> dict[str, Any]:
    """Worth of one more machine in every sink and of `REACH_MS` more reach, USD/month.

    Returns:
        ``basis``; ``machines``: region, machine, ``usd_per_month`` that one more free machine saves, and by term
        ``net_usd_per_month`` after its price; ``reach_usd_per_month`` (None: not computed).
    """
    places, cells = len(t.sink_region), len(t.demand) * t.reach.size
    solved = _by_solving(t) if places > 0 and cells * (places + 2) <= SOLVED_CELLS else None
    if solved is not None:
        return solved
    if len(t.option_sink) and cells <= DISPATCHED_CELLS:
        found = _by_dispatch(t, held, DISPATCHED_CELLS // max(cells, 1))
        return {"basis": f"purchases with the reservations fixed, {len(found)} of {places} places",
                "machines": _rows(t, found), "reach_usd_per_month": None}  # fmt: skip
    why = "a fixed plan without hourly machines has no price" if not len(t.option_sink) else "so is dispatching again"
    return {"basis": f"not computed: too large to solve again, and {why}", "machines": [], "reach_usd_per_month": None}


def _by_solving(t: ReservedTables) -> dict[str, Any] | None:
    """Exact optima with and without; None where the time limit of the call is reached."""

    def cost(tables: ReservedTables) -> float | None:
        from formulations.reserved_capacity.methods.exact import optimum

        left = seconds_for(WHAT, math.inf)
        limit = None if left == math.inf else left
        return None if left <= 0 else optimum(tables.case.problem, tables, Options(time_limit=limit))

    base = cost(t)
    if base is None:
        return None
    worth: dict[int, float] = {}
    for j in range(len(t.sink_region)):
        more = cost(one_more(t, j))
        if more is None:
            return None
        worth[j] = base - more if base - more > TOLD_APART * abs(base) else 0.0
    return {
        "basis": "exact re-solve",
        "machines": _rows(t, worth),
        "reach_usd_per_month": _worth_of_reach(t, base, cost),
    }


def one_more(t: ReservedTables, j: int) -> ReservedTables:
    """The tables with one machine in sink j that costs nothing and is always there."""
    ones = np.ones((1, t.quarters))
    return replace(
        t, column_sink=np.append(t.column_sink, j), column_term=(*t.column_term, "reserved_3y"),
        column_quarter=np.append(t.column_quarter, 0), column_active=np.concatenate((t.column_active, ones)),
        column_usd_per_month=np.append(t.column_usd_per_month, 0.0),
        column_usd_per_hour=np.append(t.column_usd_per_hour, 0.0), column_most=np.append(t.column_most, 1.0),
        column_step=np.append(t.column_step, 1), column_minimum=np.append(t.column_minimum, 0),
        sink_most=t.sink_most + (np.arange(len(t.sink_most)) == j),
    )  # fmt: skip


def _later(slo: ServiceSlo) -> ServiceSlo:
    later = {name: _later_limit(getattr(slo, name)) for name in ("ttft_s", "deadline_s")}
    return slo.model_copy(update=later)


def _later_limit(limit: LatencyLimit | None) -> LatencyLimit | None:
    if limit is None:
        return None
    if isinstance(limit, Percentile):
        return limit.model_copy(update={"at_most": limit.at_most + REACH_MS / 1000})
    return limit + REACH_MS / 1000


def _worth_of_reach(t: ReservedTables, base: float, cost: Any) -> float | None:
    problem = t.case.problem
    services = tuple(s.model_copy(update={"slo": _later(s.slo)}) for s in problem.services)
    try:
        wider = build_tables(problem.model_copy(update={"services": services}))
    except InputError:
        return None
    if wider.reach.shape == t.reach.shape and (wider.reach == t.reach).all():
        return 0.0
    found = cost(wider)
    return None if found is None else max(0.0, base - found)


def _by_dispatch(t: ReservedTables, held: Array, most: int) -> dict[int, float]:
    """Saving of one more machine in purchases in the `most` sinks where most is spent, as far as time goes."""
    if seconds_for(WHAT, math.inf) <= 0:
        return {}
    found = kept_dispatch(t, held)
    bill, _ = found.usd_per_month(t)
    base, spent = found.total_usd_per_month(t), np.zeros(len(t.sink_region))
    np.add.at(spent, t.option_sink, bill)
    out: dict[int, float] = {}
    for j in np.argsort(-spent, kind="stable")[:most]:
        if seconds_for(WHAT, math.inf) <= 0:
            break
        more = dispatch(t, held + (np.arange(len(held)) == j)[:, None])
        out[int(j)] = max(0.0, base - more.total_usd_per_month(t))
    return out


def _rows(t: ReservedTables, worth: dict[int, float]) -> list[dict[str, Any]]:
    names, machines = t.case.regions, [m.machine for m in t.case.problem.machines]
    rows = []
    for j in sorted(worth, key=lambda j: -worth[j]):
        mine = [c for c in np.flatnonzero(t.column_sink == j) if t.column_quarter[c] == 0]
        net = {t.column_term[c]: float(worth[j] - t.column_usd_per_month[c]) for c in mine}
        rows.append({"region": names[t.sink_region[j]], "machine": machines[t.sink_machine[j]],
                     "usd_per_month": float(worth[j]), "net_usd_per_month": net})  # fmt: skip
    return rows
