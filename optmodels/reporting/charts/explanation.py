"""Charts of an explanation: the cost of each limit, how far prices can move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.reporting.charts import Chart, chart, coloured, labels, rule
from optmodels.reporting.charts.channels import amounts, entries, tips
from optmodels.reporting.colours import ALARM, REST, STRONG

SHOWN = 24


def charts(document: Mapping[str, Any]) -> list[Chart]:
    """Charts of an explanation document."""
    return [c for c in (_gains(document), _prices(document), _needs(document)) if c is not None]


def _gains(document: Mapping[str, Any]) -> Chart | None:
    """Better objective with each limit one step looser, and without it."""
    unit = document.get("unit", "")
    found = [line for line in document.get("limits") or [] if line.get("binds")]
    rows = []
    short = labels((f"{line['limit']['name']} ({line['limit']['path']})" for line in found), 60)
    for line in found:
        name = short[f"{line['limit']['name']} ({line['limit']['path']})"]
        for what, gain in (("one step looser", line.get("gain_of_step")), ("without it", line.get("gain_without"))):
            if gain is not None:
                rows.append({"limit": name, "what": what, "gain": gain, "words": line["words"][:300]})
    rows.sort(key=lambda r: -r["gain"])
    rows = rows[: 2 * SHOWN]
    if not rows:
        return None
    encoding = {
        "y": entries("limit"),
        "yOffset": {"field": "what", "type": "nominal"},
        "x": amounts("gain", f"better objective, {unit}", axis={"format": "~s", "tickCount": 6}),
        "color": coloured("what", ["one step looser", "without it"], [STRONG, REST]),
        "tooltip": tips("limit", "what", ("gain", unit, ",.6~g"), "words"),
    }  # fmt: skip
    return chart(
        "What each limit costs",
        "How much better the optimum gets with a limit loosened by one step, and without it, found by solving again."
        " Limits that cost nothing are left out.",
        rows, {"mark": {"type": "bar"}, "encoding": encoding}, height=max(90, 40 * len({r["limit"] for r in rows})),
    )  # fmt: skip


def _prices(document: Mapping[str, Any]) -> Chart | None:
    """The range of each price within which purchases stay the same, relative to the price."""
    found = [
        p for p in document.get("prices") or [] if p["value"] > 0 and (p["low"] is not None or p["high"] is not None)
    ]
    found = sorted(found, key=lambda p: (not p["bought"], p["name"]))[:SHOWN]
    if not found:
        return None
    short = labels((p["name"] for p in found), 60)
    ends = [v / p["value"] for p in found for v in (p["low"], p["high"]) if v is not None]
    right = min(max([1.2, *ends]) * 1.1, 5.0)
    rows = [
        {"price": short[p["name"]], "low": 0.0 if p["low"] is None else p["low"] / p["value"],
         "high": right if p["high"] is None else min(p["high"] / p["value"], right),
         "open": "no upper end found" if p["high"] is None else "",
         "kind": "bought" if p["bought"] else "not bought", "words": p["words"][:300]}
        for p in found
    ]  # fmt: skip
    bars = {
        "mark": {"type": "bar", "height": {"band": 0.45}},
        "encoding": {
            "y": entries("price"),
            "x": amounts("low", "price against today's", "%", scale={"domain": [0, right], "nice": False}),
            "x2": {"field": "high"},
            "color": coloured("kind", ["bought", "not bought"], [STRONG, REST]),
            "tooltip": tips("price", "words", ("open", " ")),
        },
    }  # fmt: skip
    return chart(
        "How far prices can move",
        "The range of each price, all else as it is, within which what is bought stays the same; the dashed line is"
        " today's price.",
        rows, {"layer": [bars, rule(1, "today's price")]}, height=max(90, 26 * len(rows)),
    )  # fmt: skip


def _needs(document: Mapping[str, Any]) -> Chart | None:
    """Of an infeasible instance, the least relative change of each limit that alone restores a plan."""
    found = [a for a in document.get("alone") or [] if a.get("change") is not None]
    if not found:
        return None
    short = labels((f"{a['limit']['name']} ({a['limit']['path']})" for a in found), 60)
    rows = [{"limit": short[f"{a['limit']['name']} ({a['limit']['path']})"], "change": a["change"],
             "words": a["words"][:300]} for a in found[:SHOWN]]  # fmt: skip
    encoding = {
        "y": entries("limit"),
        "x": amounts("change", "least change of the limit", "%"),
        "tooltip": tips("limit", ("change", None, ".2%"), "words"),
    }  # fmt: skip
    return chart(
        "What would be enough, each alone",
        "By how much each limit would have to be loosened, all others as they are, for a plan to exist.",
        rows, {"mark": {"type": "bar", "height": {"band": 0.6}, "color": ALARM}, "encoding": encoding},
        height=max(80, 28 * len(rows)),
    )  # fmt: skip
