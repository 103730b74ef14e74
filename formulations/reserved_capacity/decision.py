"""The decision of a reserved-capacity plan: reservations, cost, SLO, how sure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from formulations.reserved_capacity.plan import ReservedPlan
from optmodels import catalog
from optmodels.reporting.decision import (
    HOURS_PER_MONTH,
    Rented,
    SeenLatency,
    at_words,
    latency_words,
    machine_notes,
    market_words,
    rounded,
    short_seconds,
    source_verdict,
    summary,
    usd,
)


def decision(problem: Mapping[str, Any], plan: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a solve document; machines of the first quarter."""
    p = ReservedPlan.model_validate(plan)
    hardware = {m["machine"]: m for m in problem.get("machines") or ()}
    rented = [
        Rented(r.machine, r.region, r.term, r.count, r.usd_per_hour_each, hardware.get(r.machine, {}).get("gpu"),
               hardware.get(r.machine, {}).get("gpu_count") or 1)
        for r in p.reservations if r.first_quarter == 0
    ]  # fmt: skip
    total = p.cost.total_usd_per_month
    hourly = p.cost.on_demand_usd_per_month + p.cost.spot_usd_per_month
    cost = f"{usd(total / HOURS_PER_MONTH)} USD/h ≈ {total:,.0f} USD/month"
    cost += f" ({hourly:,.0f} of it for machines by the hour)" if hourly > 0 else ""
    cost += _committed(p)
    later = sum(r.count for r in p.reservations if r.first_quarter > 0)
    found = summary(
        machines=rented, notes=machine_notes(problem), usd_per_hour=total / HOURS_PER_MONTH, cost=cost,
        slo=latency_words(_seen(report)), verdict=_verdict(p, report),
        own={name for name, m in hardware.items() if not m.get("catalog")} - _sold(),
    )  # fmt: skip
    found["headline"] += f"; {later:,} more machines in later quarters" if later else ""
    if by_the_hour := _busiest_purchases(p):
        reserved = found["headline"] if p.reservations else "nothing reserved"
        found["headline"] = f"{reserved}; by the hour up to {by_the_hour}"
    return found


def _sold() -> set[str]:
    """Names of the machines that clouds of the catalogue rent out."""
    return {m.machine for pool in catalog.pools() for m in catalog.machines(pool)}


def _committed(p: ReservedPlan) -> str:
    """``; commits 9,610,000 USD over 3 years``: rent of the reservations until they end, by their length."""
    total: dict[int, float] = {}
    for r in p.reservations:
        years = int(r.term.removeprefix("reserved_").removesuffix("y"))
        total[years] = total.get(years, 0.0) + r.count * r.usd_per_hour_each * HOURS_PER_MONTH * 12 * years
    parts = (
        f"{rounded(total_usd, 4):,.0f} USD over {n} year{'s' if n > 1 else ''}"
        for n, total_usd in sorted(total.items())
    )
    return f"; commits {' and '.join(parts)}" if total else ""


def _busiest_purchases(p: ReservedPlan) -> str:
    """``4× h100 on demand + 1× h100 spot``: machines bought in the hour with most of them, all regions together."""
    b = p.purchases
    by_kind: dict[tuple[str, str], dict[tuple[int, int, int], float]] = {}
    times = zip(b.scenario, b.quarter, b.hour, strict=True)
    for machine, market, hour, number in zip(b.machine, b.market, times, b.machines, strict=True):
        hours = by_kind.setdefault((machine, market), {})
        hours[hour] = hours.get(hour, 0.0) + number
    most = {kind: math.ceil(max(hours.values()) - 1e-6) for kind, hours in by_kind.items()}
    return " + ".join(f"{n:,}× {machine} {market_words(market)}" for (machine, market), n in most.items())


def _seen(report: Mapping[str, Any]) -> Iterator[SeenLatency]:
    """The worst of every service over the links that the plan uses, next to the limits."""
    for row in report.get("promises") or ():
        for name, title in (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2e", "E2E")):
            limit, value = row["limits"].get(name), row.get(f"{name}_s")
            if limit is not None and value is not None:
                at = at_words(limit["percentile"])
                yield SeenLatency(title, at, value, limit["at_most_s"], row["service"])


def _verdict(p: ReservedPlan, report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """On the replay of the busiest hour, on unserved requests, on the latencies."""
    for s in (report.get("out_of_sample") or {}).get("services", ()):
        share = s["within_ttft_slo"]["replayed"]
        if share is not None and s["promised"] is not None and share < s["promised"] - 0.01:
            yield (
                "bad",
                (
                    f"The replay of the busiest hour misses the SLO: {s['service']}: {share:.1%} within TTFT"
                    f" {short_seconds(s['ttft_limit_s'])}, {s['promised']:.0%} required."
                ),
            )
    if p.unserved.hour:
        yield "warn", f"Some requests are not served in {len(set(p.unserved.hour))} hours."
    known = report.get("latencies") or {}
    share = known.get("served_at_the_pessimistic_end")
    if share is None:
        yield from source_verdict(known.get("sources") or (), None)
    else:
        missed = [f"machines serve {share:.0%} of the planned requests/s"] if share < 1 - 1e-9 else []
        yield from source_verdict(known.get("sources") or (), missed)
