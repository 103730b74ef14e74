"""The decision of a fleet plan: machines, cost, SLO, how sure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from formulations.fleet.plan import FleetPlan
from optmodels.plans.replayed import missed
from optmodels.reporting.decision import (
    LATENCY_NAMES,
    Rented,
    SeenLatency,
    at_words,
    headroom_words,
    latency_words,
    listed,
    machine_notes,
    short_seconds,
    slos_of,
    source_verdict,
    summary,
    sure_words,
    usd,
)
from optmodels.reporting.text import told_apart


def decision(problem: Mapping[str, Any], plan: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a solve document."""
    p = FleetPlan.model_validate(plan)
    peak = max(p.periods, key=lambda q: q.usd_per_hour)
    rented = [
        Rented(m.machine, m.region, m.market, d.count * m.count, m.usd_per_hour_each, m.gpu, m.gpus_per_machine)
        for d in peak.deployments for m in d.machines
    ]  # fmt: skip
    found = summary(
        machines=rented, notes=machine_notes(problem), slo=latency_words(_seen(p, problem, report)),
        verdict=_verdict(p, report), headroom=_headroom(p, report),
        usd_per_hour=p.total_usd_per_hour, per_token=_per_token(p, report),
    )  # fmt: skip
    if len(p.periods) > 1:
        found["headline"] += f" (peak: {peak.name})"
        found["cost"] += f"; {usd(peak.usd_per_hour)} USD/h in the most expensive period, {peak.name}"
    return found


def _headroom(p: FleetPlan, report: Mapping[str, Any]) -> dict[str, Any] | None:
    """The largest multiple of the rates, less one; where not every request is served there is none."""
    if p.served_share < 1 - 1e-9:
        return None
    found = report.get("headroom")
    if found is None:
        return {"share": None, "text": "Headroom: not computed here; optmodels max-rate PLAN computes it."}
    period = f" (in {found['period']})" if len(p.periods) > 1 else ""
    until = f"until an engine is full or a prediction exceeds its SLO{period}"
    return {"share": found["factor"] - 1.0, "text": headroom_words(found["factor"], until, found["bound"])}


def _per_token(p: FleetPlan, report: Mapping[str, Any]) -> str:
    if p.usd_per_million_tokens is None:
        return ""
    output = report.get("usd_per_million_output_tokens")
    both = f"{usd(p.usd_per_million_tokens)} USD per million tokens at the planned rates"
    return both if output is None else f"{both} ({usd(output)} per million output tokens)"


def _seen(p: FleetPlan, problem: Mapping[str, Any], report: Mapping[str, Any]) -> Iterator[SeenLatency]:
    """Latencies next to limits: simulated if certified, predicted at the planned rates of continuous batching, or the
    plan's own."""
    if p.certification is not None and p.certification.status == "certified":
        for x in p.certification.promises:
            seen = LATENCY_NAMES[x.latency], at_words(x.percentile), x.seen_s
            yield SeenLatency(*seen, x.at_most_s, x.demand, "simulated")
        return
    limits = slos_of(problem)
    rows: dict[str, dict[str, float | None]] = {x["demand"]: x for x in report.get("predicted") or ()}
    if not rows:
        for s in (s for q in p.periods for d in q.deployments if d.stage == "both" for s in d.serves):
            row = rows.setdefault(s.demand, {})
            for name, value in (("ttft_s", s.ttft_s), ("tpot_s", s.tpot_s), ("deadline_s", s.e2e_s)):
                if value is not None:
                    waited = value + (0.0 if name == "tpot_s" else s.wait_s)
                    row[name] = max(row.get(name) or 0.0, waited)
    for demand, row in rows.items():
        for name, title in LATENCY_NAMES.items():
            limit, at = limits.get(demand.partition("/")[0], {}).get(name), None
            if isinstance(limit, Mapping):
                limit, at = limit["at_most"], limit["percentile"]
            if limit is not None and name in row:
                yield SeenLatency(title, at_words(at), row[name], limit, demand)


def _verdict(p: FleetPlan, report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """On the replay, on certification, on unserved requests, on the latencies."""
    yield from _replayed(report)
    if lost := [
        x["demand"] for x in report.get("predicted") or () if any(x.get(name, 0.0) is None for name in LATENCY_NAMES)
    ]:
        yield "bad", f"Engines cannot serve the planned rates of {listed(lost)} in the long run."
    if p.served_share < 1:
        yield "warn", f"{p.served_share:.2%} of requests are served."
    if p.certification is not None and p.certification.status != "certified":
        yield "bad", "Simulation did not confirm every SLO (certification below)."
    if latency := report.get("latency"):
        at_the_end = latency["missed_at_the_pessimistic_end"]
        several = len({s.demand for q in p.periods for d in q.deployments for s in d.serves}) > 1
        said = None if at_the_end is None else [_missed(x, several) for x in at_the_end]
        certified = p.certification is not None and p.certification.status == "certified"
        if said and certified and sure_words(latency["sources"])[2]:  # simulated at these very latencies
            said = []
        yield from source_verdict(latency["sources"], said)


def _replayed(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """SLOs that the trace's own requests miss in simulation."""
    worst = missed(report)
    if worst is not None:
        yield "bad", f"The plan misses its SLO on the trace: {worst}."
    elif report.get("replayed"):
        yield "good", "The replay of the trace meets every SLO."


def _missed(x: Mapping[str, Any], several: bool) -> str:
    if x["pessimistic_s"] is None:
        return f"{x['demand']} exceeds the engines' capacity" if several else "the engines' capacity is exceeded"
    value, limit = told_apart(x["pessimistic_s"], x["limit_s"], short_seconds)
    return f"{LATENCY_NAMES[x['latency']]} {value}, SLO {limit}" + (f" ({x['demand']})" if several else "")
