"""The plan of a reserved-capacity problem made from its tables, the counts bought and how demand is dispatched."""

from __future__ import annotations

from typing import Any

import numpy as np

from formulations.reserved_capacity.dispatch import Dispatch, kept_dispatch
from formulations.reserved_capacity.plan import (
    CostLines,
    FlowLine,
    HourlyPurchases,
    ReservationLine,
    ReservedPlan,
    ServingLine,
    Unserved,
)
from formulations.reserved_capacity.points import ReservedTables
from formulations.reserved_capacity.problem import HOURS_PER_MONTH, MONTHS_PER_QUARTER, QUARTERS_OF_TERM, ReservedCase
from optmodels.arrays import Array
from optmodels.plans.lines import engine_line


def make_plan(t: ReservedTables, counts: Array, found: Dispatch | None = None, *, pooled: bool = True) -> ReservedPlan:
    """The plan that buys `counts` (C,) of every column; flows and purchases from `found` or by `dispatch`."""
    case, p = t.case, t.case.problem
    counts = np.round(counts)
    found = kept_dispatch(t, t.reserved(counts)) if found is None else found
    names, machines = case.regions, [m.machine for m in p.machines]
    lines = [
        ReservationLine(
            region=names[t.sink_region[t.column_sink[c]]], machine=machines[t.sink_machine[t.column_sink[c]]],
            term=t.column_term[c], first_quarter=int(t.column_quarter[c]), count=int(counts[c]),
            usd_per_hour_each=float(t.column_usd_per_hour[c]),
        ) for c in np.flatnonzero(counts)
    ]  # fmt: skip
    h, o = np.nonzero(found.bought)
    j = t.option_sink[o]
    lost = np.array([
        p.machines[t.sink_machine[t.option_sink[x]]].spot_lost_share if m == "spot" else 0.0
        for x, m in enumerate(t.option_market)
    ])  # fmt: skip
    purchases = HourlyPurchases(
        scenario=t.scenario[h].tolist(), quarter=t.quarter[h].tolist(), hour=t.hour[h].tolist(),
        region=[names[x] for x in t.sink_region[j]], machine=[machines[x] for x in t.sink_machine[j]],
        market=[t.option_market[x] for x in o],
        machines=(found.bought[h, o] / (1 - lost[o])).tolist() if len(o) else [],
    )  # fmt: skip
    h, i = np.nonzero(found.unserved)
    unserved = Unserved(
        scenario=t.scenario[h].tolist(), quarter=t.quarter[h].tolist(), hour=t.hour[h].tolist(),
        region=[names[x] for x in t.source_region[i]], service=[p.services[x].service for x in t.source_service[i]],
        requests_per_s=(t.unit * found.unserved[h, i]).tolist(),
    )  # fmt: skip
    R = len(names)
    mean, peak = np.zeros((R, R)), t.unit * found.peak_flow
    pairs = (t.source_region[:, None], t.sink_region[None, :])
    np.add.at(mean, pairs, t.unit * found.flow)
    egress = np.zeros((R, R))
    np.add.at(egress, pairs, found.egress_usd_per_month(t))
    asked = t.unit * float(t.weight @ t.demand.sum(axis=1))
    # Smaller values are the rounding of demand less its unserved part.
    mean[mean <= max(1e-9 * mean.sum(), 1e-13 * asked)] = 0.0
    flows = [
        FlowLine(
            origin=names[a], server=names[b], rtt_ms=float(case.rtt_ms[a, b]),
            mean_requests_per_s=float(mean[a, b]), peak_requests_per_s=float(peak[a, b]),
            egress_usd_per_month=float(egress[a, b]),
        ) for a, b in np.argwhere(mean)
    ]  # fmt: skip
    by_option, short = found.usd_per_month(t)
    spot = np.array([m == "spot" for m in t.option_market], dtype=bool)
    within = t.column_active.sum(axis=1)
    terms = np.array([QUARTERS_OF_TERM[term] for term in t.column_term], dtype=float)
    usd = counts * t.column_usd_per_hour * HOURS_PER_MONTH  # a month, by column
    reserved = float(usd @ within) / t.quarters
    committed = MONTHS_PER_QUARTER * float(usd @ terms)
    beyond = MONTHS_PER_QUARTER * float(usd @ (terms - within)) if p.growth else 0.0
    charged = p.growth.beyond_horizon_charged * beyond / (MONTHS_PER_QUARTER * t.quarters) if p.growth else 0.0
    parts = (reserved, charged, float(by_option[~spot].sum()), float(by_option[spot].sum()), short, float(egress.sum()))
    return ReservedPlan(
        name=p.name, reservations=lines, purchases=purchases, unserved=unserved, flows=flows, pooled=pooled,
        serving=serving_lines(case),
        forwarded_share=float(mean[~np.eye(R, dtype=bool)].sum() / mean.sum()) if mean.any() else 0.0,
        cost=CostLines(
            reserved_usd_per_month=parts[0], beyond_horizon_usd_per_month=parts[1], on_demand_usd_per_month=parts[2],
            spot_usd_per_month=parts[3], unserved_usd_per_month=parts[4], egress_usd_per_month=parts[5],
            total_usd_per_month=sum(parts), committed_usd=committed, committed_beyond_horizon_usd=beyond,
        ),
    )  # fmt: skip


def serving_lines(case: ReservedCase) -> list[ServingLine]:
    """How machines run the services whose rate comes of continuous batching."""
    lines: list[ServingLine] = []
    p = case.problem
    if p.serving != "continuous":
        return lines
    for i, m in enumerate(p.machines):
        for k, s in enumerate(p.services):
            points = case.points(i, k)
            for x in points:
                found = case.derived(i, k, x)
                if found is None or found.continuous is None:
                    continue
                at, row = found.continuous.at, found.continuous.row
                lines.append(ServingLine(
                    machine=m.machine, service=s.service, tensor_parallel=found.tp,
                    attention_ranks=found.ranks if found.ranks > 1 else None, replicas_per_machine=found.replicas,
                    reach_ms=1e3 * found.reach_s if len(points) > 1 else None, requests_per_s=found.rps,
                    ttft_s=float(at.first_s[row]), wait_s=float(at.waiting_s[row]),
                    tpot_s=float(at.tpot_s[row]), e2e_s=float(at.e2e_s[row]),
                    itl_s=None if s.slo.itl_s is None else float(at.itl_s[row]),
                    engine=engine_line(at, row, found.continuous.engine, p.engine),
                ))  # fmt: skip
    return lines


def counts_of(t: ReservedTables, plan: ReservedPlan) -> Array:
    """Machines of every column, (C,), that a plan reserves."""
    names, machines = t.case.regions, [m.machine for m in t.case.problem.machines]
    column = {
        (names[t.sink_region[j]], machines[t.sink_machine[j]], t.column_term[c], int(t.column_quarter[c])): c
        for c, j in enumerate(t.column_sink)
    }
    counts = np.zeros(len(t.column_sink))
    for x in plan.reservations:
        counts[column[x.region, x.machine, x.term, x.first_quarter]] += x.count
    return counts


def extract(model: Any, tables: ReservedTables) -> ReservedPlan:
    """The plan of a solved Pyomo model; purchases and flows are dispatched again (local first among equals)."""
    from optmodels.model.pyomo_block import value_of

    k = np.array([round(value_of(model.k[c])) for c in range(len(tables.column_sink))])
    return make_plan(tables, k * tables.column_step.astype(float))
