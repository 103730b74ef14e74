"""How a reserved-capacity result reads in the terminal, its tables as data frames, and its comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from rich.table import Table

from formulations.reserved_capacity.making import counts_of
from formulations.reserved_capacity.plan import ReservedPlan
from formulations.reserved_capacity.points import ReservedTables
from formulations.reserved_capacity.problem import (
    HOURS_PER_MONTH,
    QUARTERS_OF_TERM,
    ReservedCapacity,
    quarters_charged,
)
from optmodels.arrays import Array
from optmodels.catalog.types import MARKETS
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.errors import InputError
from optmodels.io.write import columns_of
from optmodels.latency.resolve import UNCALIBRATED
from optmodels.latency.steps import Provenance
from optmodels.reporting.sources import end_level, of_requests, source_entries, source_lines
from optmodels.reporting.text import beside_limit, plain, seconds, titled
from optmodels.solver.deadline import OUT_OF_SAMPLE, seconds_for

PROMISES_SHOWN, REGIONS_SHOWN, ROWS_SHOWN, POINTS_SHOWN = 8, 8, 30, 4
COMPARED = {
    "region_local": "every region reserves for its own peak (SK Fig. 1a)",
    "global_peak": "one pool for the global peak, latency limits ignored (SK Fig. 3b)",
    "on_demand": "perfect on-demand autoscaling in every region (SK Fig. 3b)",
}


def _paid(machines: float, usd_per_hour: float) -> float:
    """USD/h; nothing costs nothing, whatever the price."""
    return float(machines * usd_per_hour) if machines > 0 else 0.0


def comparisons(t: ReservedTables) -> dict[str, float | None]:
    """Cost of the paper's three ways to provision, USD/month; None where a price is missing.

    Reservations at each region's best term, whole machines; autoscaling in fractions of a machine, by the hour.
    Growth and scenarios: the mean over rows for autoscaling, the largest row for reservations.
    """
    case = t.case
    terms = [m for m in ("reserved_1y", "reserved_3y") if m in case.problem.terms]
    growth = case.problem.growth
    renewed = [  # USD/h a machine held throughout costs for each of its price
        sum(quarters_charged(growth, m, q) for q in range(0, t.quarters, QUARTERS_OF_TERM[m])) / t.quarters
        for m in terms
    ]
    reserve = case.usd_per_hour[:, :, [MARKETS.index(m) for m in terms]] * np.array(renewed)
    with np.errstate(all="ignore"):
        cheapest = np.where(np.isnan(reserve), np.inf, reserve).min(axis=2, initial=np.inf)  # (I, R)
    hourly = np.nan_to_num(case.usd_per_hour[:, :, MARKETS.index("on_demand")], nan=np.inf)
    load = t.work  # machines per request/s
    local = t.source_region[:, None] == t.sink_region[None, :]
    total: dict[str, float | None] = {"region_local": 0.0, "global_peak": None, "on_demand": 0.0}
    for r in np.unique(t.source_region):
        mine = np.flatnonzero(t.source_region == r)
        sinks = np.flatnonzero((t.sink_region == r) & (t.reach & local)[mine].all(axis=0))
        options = []
        for j in sinks:
            need = t.demand[:, mine] @ load[mine, j]
            i = t.sink_machine[j]
            options.append((_paid(np.ceil(need.max() - 1e-9), cheapest[i, r]), _paid(t.weight @ need, hourly[i, r])))
        for name, x in (("region_local", 0), ("on_demand", 1)):
            best = min((o[x] for o in options), default=np.inf)
            so_far = total[name]
            total[name] = so_far + best * HOURS_PER_MONTH if so_far is not None and np.isfinite(best) else None
    best_global = np.inf
    for i in np.unique(t.sink_machine):
        rate = case.rps_at[i].max(axis=1)[t.source_service] * case.problem.utilisation
        if (rate > 0).all() and np.isfinite(cheapest[i].min()):
            need = t.unit * float((t.demand @ (1 / rate)).max(initial=0.0))
            best_global = min(best_global, _paid(np.ceil(need - 1e-9), cheapest[i].min()))
    total["global_peak"] = best_global * HOURS_PER_MONTH if np.isfinite(best_global) else None
    return total


def report(t: ReservedTables, plan: ReservedPlan | None) -> dict[str, Any]:
    """The report next to the plan.

    Returns:
        ``comparisons`` (USD/month of other ways to provision), ``regions`` (peak and mean demand in machines, reserved
        machines, forwarded in and out), ``binding`` and ``values`` (`reserved_values`), ``size`` and ``notes``.
    """
    out: dict[str, Any] = {
        "comparisons": comparisons(t),
        "size": {"rows": len(t.demand), "sources": len(t.source_region), "sinks": len(t.sink_region)},
        "notes": [*t.case.notes, *_of_requests(t.case.problem)],
        "latencies": _latencies(t),
        "prices": {m.machine: said for m in t.case.problem.machines if (said := t.case.problem.price_source(m))},
    }
    if plan is not None:
        from formulations.reserved_capacity import values as reserved_values

        held = machines_held(t, plan)
        out["binding"], out["values"] = reserved_values.binding(t, held), reserved_values.values(t, held)
        out["regions"], out["promises"] = _regions(t, plan), _promises(t, plan)
        local = out["comparisons"]["region_local"]
        saving = None if local is None else local - plan.cost.total_usd_per_month
        out["value_of_forwarding_usd_per_month"] = saving
        out |= _other_demand(t, plan)
    return out


def _other_demand(t: ReservedTables, plan: ReservedPlan) -> dict[str, Any]:
    """The plan on days drawn again where its demand was recorded, if there is time; or why not."""
    from formulations.reserved_capacity.other_demand import out_of_sample, why_not

    why = why_not(t, plan)
    if why is not None:
        recorded = any(s.demand.kind in ("file", "trace") for s in t.case.problem.services)
        return {"not_out_of_sample": why} if recorded else {}
    return {"out_of_sample": out_of_sample(t, plan)} if seconds_for(OUT_OF_SAMPLE, math.inf) else {}


def _promises(t: ReservedTables, plan: ReservedPlan) -> list[dict[str, Any]]:
    """What requests of each service see at most on the machines and over the links that the plan uses, and may see.

    TTFT = round trip + queue + prefill (SK §2.1) of the slowest link; TPOT where machines' throughput is derived; E2E,
    in the same way of the slowest link, where there is a deadline.
    """
    case = t.case
    p, places, kinds = case.problem, case.regions, [m.machine for m in case.problem.machines]
    here = {(x.region, x.machine) for x in plan.reservations}
    here |= set(zip(plan.purchases.region, plan.purchases.machine, strict=True))
    rows = []
    for k, s in enumerate(p.services):
        links = [
            (case.rtt_ms[o, at] / 1e3 + s.slo.queue_s + case.prefill_s_at[i, k, x],
             case.rtt_ms[o, at] / 1e3 + case.e2e_s_at[i, k, x], f.rtt_ms, f.origin, f.server, kinds[i],
             case.rps_at[i, k, x])
            for f in plan.flows for o, at in [(places.index(f.origin), places.index(f.server))]
            for i in np.flatnonzero(case.allowed[k, o, at]) if (f.server, kinds[i]) in here
            for x in [case.level[k, o, at, i]]
        ]  # fmt: skip
        if not links:
            continue
        ttft, _, rtt, origin, server, *_ = max(links)
        tpot, pauses = [], []
        for x in plan.serving:
            if x.service == s.service and any(
                machine == x.machine and (x.reach_ms is None or math.isclose(rate, x.requests_per_s, rel_tol=1e-6))
                for *_, machine, rate in links
            ):
                tpot.append(x.tpot_s)
                pauses += [] if x.itl_s is None else [x.itl_s]
        limits = {"ttft": s.slo.ttft_s, "tpot": s.slo.tpot_s, "itl": s.slo.itl_s, "e2e": s.slo.deadline_s}
        most = {name: seconds_and_quantile(limit) for name, limit in limits.items()}
        whole = max(link[1] for link in links)
        rows.append({
            "service": s.service, "ttft_s": float(ttft), "origin": origin, "server": server, "rtt_ms": rtt,
            "tpot_s": max(tpot, default=None), **({"itl_s": max(pauses)} if pauses else {}),
            **({} if s.slo.deadline_s is None else {"e2e_s": float(whole)}),
            "limits": {name: {"at_most_s": at, "percentile": q} for name, (at, q) in most.items() if math.isfinite(at)},
        })  # fmt: skip
    return rows


def _of_requests(p: ReservedCapacity) -> list[str]:
    """What percentiles are of, service by service."""
    return [
        f"{s.service}: {said}" for s in p.services if s.workload is not None
        for said in of_requests((s.slo.ttft_s, s.slo.tpot_s, s.slo.itl_s, s.slo.deadline_s), s.workload.classes)
    ]  # fmt: skip


def _latencies(t: ReservedTables) -> dict[str, Any]:
    """Source and interval of the latencies that machines' throughput comes of, where the instance does not state it.

    And the least share of a machine's planned requests per second that it serves at the pessimistic end of these.
    """
    p, case = t.case.problem, t.case
    level, of, share = p.level(), [], 1.0
    safety = None if level is None else level.safety
    for i, m in enumerate(p.machines):
        for k, s in enumerate(p.services):
            found = case.derived(i, k)
            if found is None or s.workload is None:
                continue
            kind = Provenance(s.workload.variant, "peaks of the catalogue", notes=(UNCALIBRATED,))
            of.append((f"{s.service} on {m.machine}", found.provenance or kind))
            most = None if found.provenance is None else end_level(found.provenance)
            if level is None or most is None:
                share = math.nan
            elif safety is None or safety < most:
                try:
                    end = case.choices(i, k, replace(level, safety=most))
                except InputError:  # of other degrees of parallelism not so much is known
                    share = math.nan
                else:
                    share = min(share, end[0].rps / found.rps if end else 0.0)
    known = None if math.isnan(share) else share
    return {"sources": source_entries(of, safety), "served_at_the_pessimistic_end": known}


def machines_held(t: ReservedTables, plan: ReservedPlan) -> Array:
    """Reserved machines by sink and quarter, (J, Q), of a plan."""
    return t.reserved(counts_of(t, plan))


def _regions(t: ReservedTables, plan: ReservedPlan) -> list[dict[str, Any]]:
    rows = []
    for r, name in enumerate(t.case.regions):
        mine = np.flatnonzero(t.source_region == r)
        own = t.unit * t.demand[:, mine].sum(axis=1)
        sent = sum(f.mean_requests_per_s for f in plan.flows if f.origin == name and f.server != name)
        taken = sum(f.mean_requests_per_s for f in plan.flows if f.server == name and f.origin != name)
        rows.append({
            "region": name, "peak_requests_per_s": float(own.max(initial=0.0)),
            "mean_requests_per_s": float(t.weight @ own) if len(mine) else 0.0,
            "reserved": int(sum(x.count for x in plan.reservations if x.region == name)),
            "reserved_requests_per_s": float(_capacity(t, plan, r)),
            "sent_away_requests_per_s": sent, "taken_in_requests_per_s": taken,
        })  # fmt: skip
    return rows


def _capacity(t: ReservedTables, plan: ReservedPlan, r: int) -> float:
    """Requests/s of the first service that reserved machines of a region serve in the first quarter."""
    names = [m.machine for m in t.case.problem.machines]
    rate = t.case.requests_per_s[:, 0] * t.case.problem.utilisation
    region = t.case.regions[r]
    return sum(
        x.count * float(rate[names.index(x.machine)])
        for x in plan.reservations if x.region == region and x.first_quarter == 0
    )  # fmt: skip


def summary(result: Mapping[str, Any]) -> list[Any]:
    """Rich renderables of a solve document."""
    out: list[Any] = []
    plan, extra = result.get("plan"), result.get("report", {})
    if plan is not None:
        p = ReservedPlan.model_validate(plan)
        out.append(plain(p.headline()))
        if extra.get("promises"):
            out += [_promise_table(extra["promises"]), ""]
        out.append(_reservation_table(p))
        out += ["", _region_table(extra.get("regions", []))]
        out += _serving_lines(p) + _purchase_lines(p) + _flow_lines(p)
        out += ["", _cost_table(p, extra.get("comparisons", {})), *_commitment_lines(p)]
        if "out_of_sample" in extra:
            out += ["", _other_demand_table(extra["out_of_sample"])]
        if why := extra.get("not_out_of_sample"):
            out.append(f"Not replayed out of sample: {plain(why)}.")
        out += _binding_lines(extra.get("binding", {})) + _value_lines(extra.get("values", {}))
    known = extra.get("latencies") or {}
    if known.get("sources"):
        out += ["", *source_lines(known["sources"])]
        share = known["served_at_the_pessimistic_end"]
        out += [] if share is None else [f"  Pessimistic case: machines serve {share:.0%} of the planned requests/s"]
    prices: dict[str, list[str]] = {}
    for machine, said in extra.get("prices", {}).items():
        prices.setdefault(said, []).append(machine)
    out += [f"[bold]Prices[/bold] of {plain(', '.join(of))}: {plain(said)}" for said, of in prices.items()]
    out += [f"[dim]note: {plain(n)}[/dim]" for n in extra.get("notes", [])]
    return out


def _reservation_table(p: ReservedPlan) -> Table:
    """What to reserve, and where as much of it."""
    table = titled("Reservations", "reserve", "term", "from", "USD/h each", "in")
    where: dict[tuple[str, ...], list[str]] = {}
    for line in p.reservations:
        start = "now" if line.first_quarter == 0 else f"quarter {line.first_quarter + 1}"
        what = f"{line.count} × {plain(line.machine)}", line.term.replace("_", " "), start
        where.setdefault((*what, f"{line.usd_per_hour_each:.4g}"), []).append(plain(line.region))
    for row, regions in [*where.items()][:ROWS_SHOWN]:
        each = "each of " if len(regions) > 1 else ""
        table.add_row(*row, each + ", ".join(regions))
    if len(where) > ROWS_SHOWN:
        table.add_row("…", "", "", "", f"{len(where) - ROWS_SHOWN} more in reservations.csv")
    return table


def _promise_table(rows: list[Mapping[str, Any]]) -> Table:
    known = {"tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
    more = [(name, title) for name, title in known.items() if any(r.get(f"{name}_s") for r in rows)]
    columns = ["service", "TTFT", "round trip in it", *(title for _, title in more)]
    table = titled("What requests see in the worst case, and their SLO", *columns)
    if len(rows) > PROMISES_SHOWN:
        rows = sorted(rows, key=lambda r: -max((r[f"{k}_s"] or 0.0) / x["at_most_s"] for k, x in r["limits"].items()))
    for r in rows[:PROMISES_SHOWN]:
        cells = []
        for name in ("ttft", *(name for name, _ in more)):
            value, limit = r.get(f"{name}_s"), r["limits"].get(name)
            cells.append(
                "" if value is None else seconds(value) if limit is None
                else beside_limit(value, limit["at_most_s"], limit["percentile"])
            )  # fmt: skip
        way = f"{r['rtt_ms']:.0f} ms, {plain(r['origin'])} → {plain(r['server'])}"
        table.add_row(plain(r["service"]), cells[0], way, *cells[1:])
    if len(rows) > PROMISES_SHOWN:
        table.add_row("…", f"{len(rows) - PROMISES_SHOWN} with more slack")
    return table


def _region_table(rows: list[Mapping[str, Any]]) -> Table:
    table = titled("Regions", "region", "peak req/s", "mean req/s", "reserved req/s", "sends away", "takes in")
    shown = sorted(rows, key=lambda r: -r["peak_requests_per_s"])[:REGIONS_SHOWN]
    for r in shown if len(rows) > REGIONS_SHOWN else rows:
        values = (r["peak_requests_per_s"], r["mean_requests_per_s"], r["reserved_requests_per_s"],
                  r["sent_away_requests_per_s"], r["taken_in_requests_per_s"])  # fmt: skip
        table.add_row(plain(r["region"]), *(f"{v:,.4g}" for v in values))
    if len(rows) > REGIONS_SHOWN:
        table.add_row(f"… {len(rows) - REGIONS_SHOWN} with lower peaks")
    return table


def _serving_lines(p: ReservedPlan) -> list[str]:
    """What machines serve with continuous batching, and what requests see of them."""
    kinds = [(x.machine, x.service) for x in p.serving]
    shown = [x for n, x in enumerate(p.serving) if kinds[:n].count(kinds[n]) < POINTS_SHOWN]
    lines = [
        f"{plain(x.service)} on {plain(x.machine)}{_within(x.reach_ms)}: {x.requests_per_s:.4g} req/s,"
        f" TP={x.tensor_parallel}"
        f"{f' × {x.attention_ranks} attention ranks' if x.attention_ranks else ''} × {x.replicas_per_machine};"
        f" TTFT {x.ttft_s:.3g} s + {x.wait_s:.3g} s of waiting, TPOT {1e3 * x.tpot_s:.3g} ms"
        f"{'' if x.itl_s is None else f', ITL {1e3 * x.itl_s:.3g} ms'};"
        f" iterations of {1e3 * x.engine.step_s:.3g} ms, {x.engine.max_num_batched_tokens:,} tokens"
        for x in shown
    ]
    lines += [f"… {len(p.serving) - len(shown)} more operating points"] if len(p.serving) > len(shown) else []
    return ["", "[bold]A machine serves[/bold], by continuous batching", *(f"  {x}" for x in lines)] if lines else []


def _within(reach_ms: float | None) -> str:
    return "" if reach_ms is None else f" for users within {reach_ms:.0f} ms"


def _purchase_lines(p: ReservedPlan) -> list[str]:
    b = p.purchases
    lines = []
    for market in ("on_demand", "spot"):
        index = [x for x, m in enumerate(b.market) if m == market]
        if index:
            hours = len({(b.scenario[x], b.quarter[x], b.hour[x]) for x in index})
            busiest: dict[int, float] = {}
            for x in index:
                busiest[b.hour[x] % 24] = busiest.get(b.hour[x] % 24, 0.0) + b.machines[x]
            top = sorted(busiest, key=lambda h: -busiest[h])[:4]
            total = sum(b.machines[x] for x in index)
            when = ", ".join(map(str, sorted(top)))
            lines.append(
                f"{market.replace('_', '-')}: in {hours} hours, {total:,.0f} machine-hours,"
                f" most in hours {when} of the day (hour 0 = first row)"
            )
    if p.unserved.hour:
        lost = sum(p.unserved.requests_per_s) * 3600
        lines.append(f"unserved: {lost:,.0f} requests over {len(set(p.unserved.hour))} hours")
    return ["", *lines] if lines else []


def _flow_lines(p: ReservedPlan) -> list[str]:
    away = sorted((f for f in p.flows if f.origin != f.server), key=lambda f: -f.mean_requests_per_s)
    if not away:
        return ["", "nothing is forwarded"]
    lines = ["", f"[bold]Forwarding[/bold] ({p.forwarded_share:.1%} of requests)"]
    lines += [
        f"  {plain(f.origin)} → {plain(f.server)}: mean {f.mean_requests_per_s:,.4g} req/s,"
        f" peak {f.peak_requests_per_s:,.4g}, round trip {f.rtt_ms:.0f} ms"
        for f in away[:8]
    ]
    return lines + ([f"  … and {len(away) - 8} more pairs"] if len(away) > 8 else [])


def _cost_table(p: ReservedPlan, compared: Mapping[str, float | None]) -> Table:
    table = titled("Cost", "provisioning", "USD/month", "relative to this plan")
    total = p.cost.total_usd_per_month
    table.add_row("this plan", f"{total:,.0f}", "")
    for name, value in compared.items():
        ratio = "" if value is None or total <= 0 else f"{value / total:.2f}×"
        table.add_row(COMPARED[name], "no price" if value is None else f"{value:,.0f}", ratio)
    return table


def _other_demand_table(found: Mapping[str, Any]) -> Table:
    """Predicted, replayed and out of sample."""
    times = "once" if found["draws"] == 1 else f"{found['draws']} times"
    title = f"Out of sample (days of each region drawn anew {times}, seed {found['seed']}; the busiest hour replayed)"
    table = titled(title, "", "predicted", "replayed", "out of sample")
    for key, name, form in (("served_share", "served", "{:.2%}"),
                            ("least_served_share", "served, worst hour", "{:.2%}"),
                            ("usd_per_month", "USD/month", "{:,.0f}")):  # fmt: skip
        table.add_row(name, form.format(found[key]["predicted"]), "", form.format(found[key]["out_of_sample"]))
    for s in found["services"][:PROMISES_SHOWN]:
        promised = "in the mean" if s["promised"] is None else f"{s['promised']:.1%}"
        kept = f"{plain(s['service'])}: TTFT within {seconds(s['ttft_limit_s'])}"
        for name, predicted, key in ((kept, promised, "within_ttft_slo"),
                                     ("  throughput / demand", "", "throughput_over_demand")):  # fmt: skip
            seen = ("" if x is None else f"{x:.2%}" for x in (s[key]["replayed"], s[key]["out_of_sample"]))
            table.add_row(name, predicted, *seen)
    if len(found["services"]) > PROMISES_SHOWN:
        table.add_row(f"… {len(found['services']) - PROMISES_SHOWN} more")
    return table


def _commitment_lines(p: ReservedPlan) -> list[str]:
    """Commitment of the reservations, and how much the plan's cost leaves out."""
    c = p.cost
    if not c.committed_usd:
        return []
    line = f"all commitments until their terms end: {c.committed_usd:,.0f} USD"
    if c.committed_beyond_horizon_usd:
        charged = c.beyond_horizon_usd_per_month
        line += (
            f", of it {c.committed_beyond_horizon_usd:,.0f} USD after the horizon, of which the plan is charged"
            f" {charged:,.0f} USD/month"
        )
    return [line]


def _binding_lines(found: Mapping[str, Any]) -> list[str]:
    lines = []
    for c in found.get("caps", [])[:6]:
        hours = f" in {c['hours']} hours" if "hours" in c else ""
        lines.append(f"  {c['cap'].replace('_', '-')} cap of {c['machines']:,.4g} {plain(c['machine'])} in"
                     f" {plain(c['region'])} reached{hours}")  # fmt: skip
    if found.get("hours_full"):
        peak = found["busiest_hours"][0]
        lines.append(f"  every reserved machine is busy in {found['hours_full']} hours, first in hour {peak['hour']}")
    lines += [f"  {plain(x['origin'])} → {plain(x['server'])} is {x['lacking_ms']:.3g} ms out of reach"
              for x in found.get("next_reaches", [])[:2]]  # fmt: skip
    return ["", "[bold]Binding constraints[/bold]", *lines] if lines else []


def _value_lines(found: Mapping[str, Any]) -> list[str]:
    if not found:
        return []
    lines = []
    for x in [x for x in found["machines"] if x["usd_per_month"] > 0][:4]:
        net = ", ".join(f"{t.replace('reserved_', '')} {round(v):+,}" for t, v in x["net_usd_per_month"].items())
        after = f" (net of its price: {net})" if net else ""
        lines.append(f"  {plain(x['machine'])} in {plain(x['region'])}: {x['usd_per_month']:,.0f} USD/month{after}")
    if found["machines"] and not lines:
        lines.append("  one more machine anywhere: nothing")
    if found["reach_usd_per_month"] is not None:
        lines.append(f"  10 ms more TTFT: {found['reach_usd_per_month']:,.0f} USD/month")
    return ["", f"[bold]Shadow prices[/bold] ({plain(found['basis'])})", *lines]


def frames(t: ReservedTables, plan: Any) -> dict[str, Any]:
    """Columns by file name: reservations, hours (demand and capacity by region), forwarding, purchases."""
    if plan is None:
        return {"demand": hours(t, None)}
    return {
        "reservations": columns_of([x.model_dump() for x in plan.reservations]),
        "hours": hours(t, plan),
        "forwarding": columns_of([x.model_dump() for x in plan.flows]),
        "purchases": {k: v[: MAX_ROWS * 10] for k, v in plan.purchases.model_dump().items()},
    }


def hours(t: ReservedTables, plan: ReservedPlan | None) -> dict[str, Array]:
    """Demand of every hour and region, and with a plan the machines that it has reserved and those that are busy."""
    from formulations.reserved_capacity.dispatch import kept_dispatch

    names = t.case.regions
    columns: dict[str, Any] = {"scenario": t.scenario, "quarter": t.quarter, "hour": t.hour}
    for r, name in enumerate(names):
        columns[f"{name} demand req/s"] = t.unit * t.demand[:, t.source_region == r].sum(axis=1)
    if plan is not None:
        held = machines_held(t, plan)
        found = kept_dispatch(t, held)
        for r, name in enumerate(names):
            mine = np.flatnonzero(t.sink_region == r)
            columns[f"{name} machines reserved"] = held[mine].sum(axis=0)[t.quarter]
            columns[f"{name} machines busy"] = found.used[:, mine].sum(axis=1)
    return {name: column[:MAX_ROWS] for name, column in columns.items()}


MAX_ROWS = 10_000
