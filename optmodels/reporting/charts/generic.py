"""Charts of any result document, whatever its formulation: limits, gap over time, an explanation's sensitivities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from optmodels.reporting.charts import Chart, chart, coloured, labels, rule
from optmodels.reporting.charts.channels import amounts, entries, tips
from optmodels.reporting.colours import ALARM, STRONG
from optmodels.solver.highs import relative_gap

LIMITS_SHOWN = 30
GAPS = (0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0)  # marks of an axis
LEAST_S = 0.05  # of a solve whose gap over time is worth a chart


def result_charts(document: Mapping[str, Any]) -> list[Chart]:
    """Charts of every result: its formulation's charts first, then these."""
    return [c for c in (limits(document), gap_over_time(document)) if c is not None]


def limits(document: Mapping[str, Any]) -> Chart | None:
    """How much of every limit the plan uses; None where the plan states none."""
    plan = document.get("plan") or {}
    found = [("", line) for line in plan.get("limits") or []]
    for period in plan.get("periods") or []:
        prefix = f"{period['name']}: " if len(plan["periods"]) > 1 else ""
        found += [(prefix, line) for line in period.get("limits") or []]
    rows: list[dict[str, Any]] = []
    for prefix, line in found:
        value, limit = line["value"], line["limit"]
        at_most = line["sense"] == "<="
        if limit is None or value is None or (limit if at_most else value) <= 0:
            continue
        used = value / limit if at_most else limit / value
        rows.append({
            "name": prefix + line["name"], "used": used, "state": "binds" if line["binding"] else "has slack",
            "words": f"{value:.5g} {'≤' if at_most else '≥'} {limit:.5g} {line['unit']}",
        })  # fmt: skip
    if not rows:
        return None
    rows = sorted(rows, key=lambda r: -r["used"])[:LIMITS_SHOWN]
    short = labels(r["name"] for r in rows)
    for row in rows:
        row["name"] = short[row["name"]]
    bars = {
        "mark": {"type": "bar", "height": {"band": 0.7}},
        "encoding": {
            "x": amounts("used", axis={"format": "%", "title": "share of the limit used"},
                         scale={"domainMax": max(1.05, *(r["used"] for r in rows)), "domainMin": 0}),
            "y": entries("name"),
            "color": coloured("state", ["binds", "has slack"], [ALARM, STRONG]),
            "tooltip": tips(("name", "limit"), ("words", "plan against limit")),
        },
    }  # fmt: skip
    return chart(
        "Limits",
        "How much of each limit the plan uses; the dashed line is the limit itself. A limit that binds would have to be"
        " relaxed before a better plan could exist because of it.",
        rows, {"layer": [bars, rule(1, "the limit")]}, height=max(90, 26 * len(rows)),
    )  # fmt: skip


def gap_axis(title: str, right: float, marks: Sequence[float] = GAPS) -> dict[str, Any]:
    """An axis of gaps up to `right`: linear near zero, logarithmic beyond, with marks all the way."""
    right = max(right, 1e-3)
    axis = {"values": [g for g in marks if g <= right], "labelExpr": "format(datum.value, '~%')", "labelOverlap": True}
    scale = {"type": "symlog", "constant": 0.002, "domain": [0, right], "nice": False}
    return amounts("gap", title, axis=axis, scale=scale)


def gap_over_time(document: Mapping[str, Any]) -> Chart | None:
    """Relative gap between the best plan and the best bound at every event; None where fewer than two have one.

    A method may solve parts or smaller tables first: bounds beyond the document's own, and values better than its
    objective, belong to these and are no part of this picture. Certified plans have none, as every round starts again.
    """
    if (document.get("plan") or {}).get("certification") is not None:
        return None
    rows = []
    better = max if document.get("sense") == "max" else min
    worse = min if document.get("sense") == "max" else max
    ends: dict[str, Any] = {"objective": document.get("objective"), "bound": document.get("bound")}
    best: dict[str, Any] = {"objective": None, "bound": None}
    for event in document.get("events") or []:
        for key, improves in (("objective", better), ("bound", worse)):
            value, end = event.get(key), ends[key]
            if value is None or (end is not None and improves(value, end) != end and not math.isclose(value, end)):
                continue
            best[key] = value if best[key] is None else improves(best[key], value)
        gap = relative_gap(best["objective"], best["bound"])
        if gap is not None and math.isfinite(gap):  # infinite next to a plan worth 0
            rows.append({"seconds": event["seconds"], "gap": max(gap, 0.0), "nodes": event.get("nodes")})
    if len({r["seconds"] for r in rows}) < 2 or rows[-1]["seconds"] < LEAST_S:
        return None
    encoding = {
        "x": amounts("seconds", "seconds since the solver started"),
        "y": gap_axis("gap", max(r["gap"] for r in rows)),
        "tooltip": tips(("seconds", None, ".3g"), ("gap", None, ".3~%"), "nodes"),
    }  # fmt: skip
    return chart(
        "Gap over time",
        "How far the best plan known at each moment could at most be from the best possible one. Zero is proof.",
        rows, {"mark": {"type": "line", "interpolate": "step-after", "point": True}, "encoding": encoding}, height=220,
    )  # fmt: skip
