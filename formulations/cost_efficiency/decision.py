"""The decision of a cost-efficiency plan: machines, cost, SLO, how sure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from formulations.cost_efficiency.plan import CostPlan
from optmodels.reporting.decision import Rented, machine_notes, short_seconds, source_verdict, summary, usd
from optmodels.reporting.text import told_apart


def decision(problem: Mapping[str, Any], plan: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a solve document."""
    p = CostPlan.model_validate(plan)
    rented = [
        Rented(m.machine, m.region, m.market, m.count, m.usd_per_hour_each, m.gpu, m.gpus_per_machine)
        for m in p.machines
    ]  # fmt: skip
    output = report.get("usd_per_million_output_tokens")
    tps = next((x.limit for x in p.limits if x.name == "TPS"), None)
    capped = tps is not None and problem.get("objective", "capped") == "capped"
    at = f"the SLO's {tps:,.0f} tokens/s" if capped else "full load"
    tokens = f"{usd(p.usd_per_million_tokens)} USD per million tokens at {at}"
    return summary(
        machines=rented, notes=machine_notes(problem), usd_per_hour=p.usd_per_hour,
        per_token=tokens if output is None else f"{tokens} ({usd(output)} per million output tokens)",
        slo=_slo(report), verdict=_verdict(report),
    )  # fmt: skip


def _latencies(report: Mapping[str, Any]) -> Mapping[str, Any]:
    return report.get("latencies") or {"plan": [], "predicted": []}


def _slo(report: Mapping[str, Any]) -> Iterator[str]:
    """Predictions next to limits; the mean at the users there are and the bound, where they differ."""
    mean = report.get("predicted") or {}
    keys = {"TTFT": "ttft_s", "TPOT": "tpot_s", "ITL": "itl_s", "E2E": "e2e_s"}
    for x in _latencies(report)["predicted"]:
        if x["slo"] is None or x["predicted"] is None or x["name"] not in keys:
            continue
        value, limit = told_apart(x["predicted"], x["slo"], short_seconds)
        if keys[x["name"]] in mean:
            yield f"{x['name']} {short_seconds(mean[keys[x['name']]])} predicted, at most {value}, SLO {limit}"
        else:
            yield f"{x['name']} {value} predicted, SLO {limit}"


def _verdict(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    known = _latencies(report)
    ends = [x for x in known["predicted"] if x["pessimistic"] is not None and x["slo"] is not None]
    missed = []
    for x in ends:
        if x["name"] == "TPS":
            if x["pessimistic"] < x["slo"]:
                missed.append(f"throughput {x['pessimistic']:,.0f} tokens/s, SLO {x['slo']:,.0f}")
        elif x["pessimistic"] > x["slo"]:
            value, limit = told_apart(x["pessimistic"], x["slo"], short_seconds)
            missed.append(f"{x['name']} {value}, SLO {limit}")
    return source_verdict(known["plan"], missed if ends else None)
