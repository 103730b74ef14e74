"""Charts of a sweep: the frontier of two aims, and the objective over the varied fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from optmodels.reporting.charts import Chart, chart, coloured, labels, shortened
from optmodels.reporting.charts.channels import amounts, tips
from optmodels.reporting.colours import ALARM, REST, SERIES
from optmodels.reporting.quantities import title

LINES, CELLS = 12, 2000
BEATEN = "beaten by another plan"
PROVED, OPEN, INFEASIBLE, NONE_FOUND = "proved", "not proved; bar to the bound", "infeasible, proved", "no plan found"
SHAPES = {PROVED: "circle", OPEN: "diamond", INFEASIBLE: "cross", NONE_FOUND: "triangle-down"}


def charts(document: Mapping[str, Any]) -> list[Chart]:
    """Charts of a sweep document."""
    rows = document["rows"]
    counts = {k: len({str(r["varied"].get(k)) for r in rows}) for k in document["keys"]}
    keys = sorted(counts, key=lambda k: -counts[k])
    numeric = [k for k in keys if all(_is_number(r["varied"].get(k)) for r in rows)]
    found = [_frontier(document), _objective(document, [k for k in keys if counts[k] > 1] or keys, numeric)]
    if len(keys) == 2 and len(numeric) == 2:
        found.append(_map(document, numeric[0], numeric[1]))
    return [c for c in found if c is not None]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def value_of(row: Mapping[str, Any], column: str) -> Any:
    """A column of a sweep's table: a varied field, a figure of the plan, or an outcome."""
    for place in (row["varied"], row, row.get("plan") or {}):
        if column in place:
            return place[column]
    return None


def _scale(values: Sequence[float]) -> dict[str, Any]:
    """Logarithmic where the values spread evenly in their logarithms, else linear; both without zero."""
    v, linear = np.unique(np.asarray(values, dtype=float)), {"zero": False, "nice": False, "padding": 12}
    if len(v) < 3 or v[0] <= 0 or v[-1] / v[0] <= 4:
        return linear
    even, even_log = np.ptp(np.diff(v)) / np.ptp(v), np.ptp(np.diff(np.log(v))) / np.ptp(np.log(v))
    return {"type": "log", "nice": False, "padding": 12} if even_log < even else linear


def _frontier(document: Mapping[str, Any]) -> Chart | None:
    """The first aim over the second; what nothing beats is joined by a line where there are no others."""
    aims = document.get("pareto") or []
    if len(aims) < 2:
        return None
    y, x = aims[0]["column"], aims[1]["column"]
    rows = []
    for r in document["rows"]:
        a, b = value_of(r, x), value_of(r, y)
        if _is_number(a) and _is_number(b) and (r.get("check") or {}).get("ok"):
            kind = f"on the frontier, {'proved' if r.get('proved') else 'not proved'}" if r.get("frontier") else BEATEN
            rows.append({"x": a, "y": b, "kind": kind, "plan": shortened(str(r.get("headline", "")), 80),
                         "at": _point(r["varied"])})  # fmt: skip
    if not rows:
        return None
    axes = {
        channel: amounts(channel, shortened(_title(aim), 80), ",~r", scale=_scale([r[channel] for r in rows]))
        for channel, aim in (("x", aims[1]), ("y", aims[0]))
    }  # fmt: skip
    colours = {"on the frontier, proved": (ALARM, ALARM), "on the frontier, not proved": (ALARM, "#ffffff"),
               BEATEN: (REST, REST)}  # fmt: skip
    kinds = [k for k in colours if any(r["kind"] == k for r in rows)]
    points = {
        "mark": {"type": "point", "size": 60, "strokeWidth": 1.8, "opacity": 1},
        "encoding": axes | {
            "stroke": coloured("kind", kinds, [colours[k][0] for k in kinds]),
            "fill": coloured("kind", kinds, [colours[k][1] for k in kinds]),
            "tooltip": tips(("x", shortened(x)), ("y", shortened(y)), ("at", "at"), "plan", ("kind", " ")),
        },
    }  # fmt: skip
    line = {
        "transform": [{"filter": f"datum.kind !== '{BEATEN}'"}],
        "mark": {"type": "line", "color": ALARM, "opacity": 0.5,
                 "interpolate": "step-after" if aims[1]["direction"] == "min" else "step-before"},
        "encoding": axes | {"order": amounts("x")},
    }  # fmt: skip
    return chart(
        "Frontier",
        "Every plan by the first two aims. Nothing found is better in all aims than a point on the frontier; filled"
        " points are proved optimal.",
        rows, {"layer": [line, points] if len(aims) == 2 else [points]}, height=340,
    )  # fmt: skip


def _title(aim: Mapping[str, Any]) -> str:
    return f"{title(aim['column'])} ({'less' if aim['direction'] == 'min' else 'more'} is better)"


def _point(varied: Mapping[str, Any]) -> str:
    words = [f"{title(k)} = {v:.5g}" if isinstance(v, float) else f"{title(k)} = {v}" for k, v in varied.items()]
    return shortened(", ".join(words), 90)


def _objective(document: Mapping[str, Any], keys: list[str], numeric: list[str]) -> Chart | None:
    """The objective over the varied field with most values, a line for each combination of the others, if few."""
    rows = document["rows"]
    if all(r.get("objective") is None for r in rows):
        return None
    across, is_number = (numeric or keys)[0], bool(numeric)
    others = [k for k in keys if k != across]
    groups = [_point({k: r["varied"].get(k) for k in others}) for r in rows]
    short = labels(groups)
    widths = {label: 1.5 + 3.0 * (len(short) - i) / len(short) for i, label in enumerate(short.values(), 1)}
    data = [
        {"x": r["varied"][across] if is_number else str(r["varied"].get(across)), "y": r.get("objective"),
         "bound": r.get("bound"), "group": short[g], "width": widths[short[g]],
         "shade": r["varied"].get(others[0]) if others else None,
         "state": _state(r), "plan": shortened(str(r.get("headline", "")), 80)}
        for r, g in zip(rows, groups, strict=True)
    ]  # fmt: skip
    few = len(short) <= LINES
    x: dict[str, Any] = {"field": "x", "title": shortened(title(across), 60)}
    x |= (
        {"type": "quantitative", "scale": _scale([r["x"] for r in data]), "axis": {"format": ",~r"}}
        if is_number
        else {"type": "nominal", "sort": None, "axis": {"labelAngle": -30, "labelLimit": 120}}
    )
    better = "less" if document.get("sense") == "min" else "more"
    rated = f"objective, {document.get('unit', '')} ({better} is better)"
    y = amounts("y", rated, "~s", scale={"zero": False})
    colour: dict[str, Any] = {"value": SERIES[0]}
    if few and others:
        colour = coloured("group", short.values())
    elif others and others[0] in numeric:
        colour = amounts("shade", shortened(others[0]), scale={"scheme": "viridis"})
    states = [s for s in SHAPES if any(r["state"] == s for r in data)]
    shape = coloured("state", states, [SHAPES[s] for s in states])
    shape |= {} if states != [PROVED] else {"legend": None}
    tip = tips(("x", shortened(across)), ("y", "objective", ",.6~g"), ("bound", None, ",.6~g"), ("group", "at"), "plan",
               ("state", " "))  # fmt: skip
    marks: dict[str, Any] = {"x": x, "shape": shape, "tooltip": tip}

    def layer(state: str, mark: dict[str, Any], encoding: dict[str, Any]) -> dict[str, Any]:
        wanted = {"filter": {"field": "state", "equal": state}}
        return {
            "transform": [wanted],
            "mark": {"type": "point", "size": 50, "opacity": 1, **mark},
            "encoding": marks | encoding,
        }

    width = amounts("width", scale=None, legend=None)  # none hides another like it
    line = {"mark": {"type": "line"}, "transform": [{"filter": "datum.y !== null"}],
            "encoding": {"x": x, "y": y, "color": colour, "strokeWidth": width}}  # fmt: skip
    bar = {"mark": {"type": "rule", "opacity": 0.6},
           "transform": [{"filter": "datum.y !== null && datum.bound !== null"}],
           "encoding": {"x": x, "y": y, "y2": {"field": "bound"}, "color": colour}}  # fmt: skip
    floor = {"y": {"value": {"expr": "height"}}}
    layers = {
        PROVED: layer(PROVED, {"filled": True}, {"y": y, "color": colour}),
        OPEN: layer(OPEN, {"fill": "#ffffff"}, {"y": y, "color": colour}),
        INFEASIBLE: layer(INFEASIBLE, {"filled": True, "color": ALARM}, floor),
        NONE_FOUND: layer(NONE_FOUND, {"filled": True, "color": "#888888"}, floor),
    }
    drawn = ([line] if few and is_number else []) + ([bar] if OPEN in states else []) + [layers[s] for s in states]
    return chart("Objective", "The objective of every solve, over what was varied; what has no plan is on the floor.",
                 data, {"layer": drawn}, height=320, name="sweep")  # fmt: skip


def _state(row: Mapping[str, Any]) -> str:
    if row.get("objective") is None:
        return INFEASIBLE if row["status"] == "infeasible" else NONE_FOUND
    return PROVED if row.get("proved") else OPEN


def _map(document: Mapping[str, Any], x: str, y: str) -> Chart | None:
    """Two varied numbers as a grid, coloured by the objective."""
    rows = document["rows"]
    if len(rows) > CELLS or len({r["varied"][y] for r in rows}) < 2:
        return None
    data = [
        {"x": f"{r['varied'][x]:.4g}", "y": f"{r['varied'][y]:.4g}", "objective": r.get("objective"),
         "status": r["status"].replace("_", " "), "plan": shortened(str(r.get("headline", "")), 80)} for r in rows
    ]  # fmt: skip
    ticks = {a: [f"{v:.4g}" for v in sorted({r["varied"][k] for r in rows})] for a, k in (("x", x), ("y", y))}
    encoding = {
        "x": {"field": "x", "type": "ordinal", "sort": ticks["x"], "title": shortened(title(x), 60),
              "axis": {"labelAngle": 0, "labelOverlap": True}},
        "y": {"field": "y", "type": "ordinal", "sort": ticks["y"][::-1], "title": shortened(title(y), 60)},
        "color": {"condition": {"test": "datum.objective === null", "value": "#dddddd"}, "field": "objective",
                  "type": "quantitative", "title": document.get("unit", ""), "scale": {"scheme": "viridis"},
                  "legend": {"orient": "right", "columns": 1}},
        "tooltip": tips(("x", shortened(x)), ("y", shortened(y)), "status", ("objective", None, ",.6~g"), "plan"),
    }  # fmt: skip
    return chart(
        "Map", "The objective over both varied fields; grey has no plan. Point at a cell for its plan.", data,
        # invalid: points without an objective are drawn, too
        {"mark": {"type": "rect", "stroke": "#fff", "invalid": None}, "encoding": encoding}, height=300,
    )  # fmt: skip
