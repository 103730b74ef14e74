"""Charts of a sweep: the objective over what was varied, and the frontier of two aims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.reporting.charts import Chart, chart, labels, shortened
from optmodels.reporting.colours import ALARM, REST, SERIES

LINES, CELLS = 12, 2000


def charts(document: Mapping[str, Any]) -> list[Chart]:
    """Charts of a sweep document."""
    rows, keys = document["rows"], list(document["keys"])
    numeric = [k for k in keys if all(_is_number(r["varied"].get(k)) for r in rows)]
    numeric.sort(key=lambda k: -len({r["varied"][k] for r in rows}))
    found = [_frontier(document), _lines(document, keys, numeric)]
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


def _frontier(document: Mapping[str, Any]) -> Chart | None:
    """The first two aims against each other; what nothing beats is joined by a line."""
    aims = document.get("pareto") or []
    if len(aims) < 2:
        return None
    x, y = aims[0]["column"], aims[1]["column"]
    rows = []
    for r in document["rows"]:
        a, b = value_of(r, x), value_of(r, y)
        if _is_number(a) and _is_number(b):
            kind = "on the frontier" if r.get("frontier") else "beaten"
            rows.append({"x": a, "y": b, "kind": kind, "proof": "proved" if r.get("proved") else "not proved",
                         "plan": shortened(str(r.get("headline", "")), 80), "at": _point(r["varied"])})  # fmt: skip
    if not rows:
        return None
    axes = {
        "x": {"field": "x", "type": "quantitative", "title": shortened(_title(aims[0])), "scale": {"zero": False}},
        "y": {"field": "y", "type": "quantitative", "title": shortened(_title(aims[1])), "scale": {"zero": False}},
    }
    points = {
        "mark": {"type": "point", "size": 70, "strokeWidth": 2},
        "encoding": axes | {
            "color": {"field": "kind", "type": "nominal", "title": None,
                      "scale": {"domain": ["on the frontier", "beaten"], "range": [ALARM, REST]}},
            "fill": {"condition": {"test": "datum.proof === 'proved' && datum.kind !== 'beaten'", "value": ALARM},
                     "value": "transparent"},
            "tooltip": [{"field": "x", "title": shortened(x)}, {"field": "y", "title": shortened(y)},
                        {"field": "at", "title": "at"}, {"field": "plan"}, {"field": "proof"}],
        },
    }  # fmt: skip
    line = {
        "transform": [{"filter": "datum.kind === 'on the frontier'"}],
        "mark": {"type": "line", "color": ALARM, "opacity": 0.5, "interpolate": "step-after"},
        "encoding": axes | {"order": {"field": "x", "type": "quantitative"}},
    }  # fmt: skip
    return chart(
        "Frontier",
        "Every solve by its first two aims. Nothing found is better in all aims than a point on the line; filled points"
        " are proved.",
        rows, {"layer": [line, points]}, height=340,
    )  # fmt: skip


def _title(aim: Mapping[str, Any]) -> str:
    return f"{aim['column']} ({'less' if aim['direction'] == 'min' else 'more'} is better)"


def _point(varied: Mapping[str, Any]) -> str:
    words = [f"{k} = {v:.5g}" if isinstance(v, float) else f"{k} = {v}" for k, v in varied.items()]
    return shortened(", ".join(words), 90)


def _lines(document: Mapping[str, Any], keys: list[str], numeric: list[str]) -> Chart | None:
    """The objective over the varied field with most values, a line for each combination of the others."""
    rows = [r for r in document["rows"] if r.get("objective") is not None]
    if not rows:
        return None
    across = numeric[0] if numeric else keys[0]
    others = [k for k in keys if k != across]
    groups = [_point({k: r["varied"].get(k) for k in others}) for r in rows]
    short = labels(groups)
    data = [
        {"x": r["varied"][across] if numeric else str(r["varied"].get(across)), "y": r["objective"], "group": short[g],
         "proof": "proved" if r.get("proved") else "not proved", "plan": shortened(str(r.get("headline", "")), 80)}
        for r, g in zip(rows, groups, strict=True)
    ]  # fmt: skip
    few = len(short) <= LINES
    domain = list(short.values())
    encoding: dict[str, Any] = {
        "x": {"field": "x", "type": "quantitative" if numeric else "nominal", "title": shortened(across, 60),
              "scale": {"zero": False}, **({} if numeric else {"sort": None})},
        "y": {"field": "y", "type": "quantitative", "title": f"objective, {document.get('unit', '')}",
              "scale": {"zero": False}},
        "tooltip": [{"field": "x", "title": shortened(across)}, {"field": "y", "title": "objective", "format": ",.6~g"},
                    {"field": "group", "title": "at"}, {"field": "plan"}, {"field": "proof"}],
    }  # fmt: skip
    if not numeric:
        del encoding["x"]["scale"]
    if few and others:
        encoding["color"] = {"field": "group", "type": "nominal", "title": None,
                             "scale": {"domain": domain, "range": list(SERIES[: len(domain)])}}  # fmt: skip
    mark: dict[str, Any] = {"type": "line", "point": {"size": 45}} if few and numeric else {"type": "point", "size": 45}
    mark |= {} if "color" in encoding else {"color": SERIES[0]}
    return chart("Objective", "The objective of every solve that has a plan, over what was varied.", data,
                 {"mark": mark, "encoding": encoding}, height=320)  # fmt: skip


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
        "x": {"field": "x", "type": "ordinal", "sort": ticks["x"], "title": shortened(x, 60),
              "axis": {"labelAngle": 0, "labelOverlap": True}},
        "y": {"field": "y", "type": "ordinal", "sort": ticks["y"][::-1], "title": shortened(y, 60)},
        "color": {"condition": {"test": "datum.objective === null", "value": "#dddddd"}, "field": "objective",
                  "type": "quantitative", "title": document.get("unit", ""), "scale": {"scheme": "viridis"},
                  "legend": {"orient": "right", "columns": 1}},
        "tooltip": [{"field": "x", "title": shortened(x)}, {"field": "y", "title": shortened(y)}, {"field": "status"},
                    {"field": "objective", "format": ",.6~g"}, {"field": "plan"}],
    }  # fmt: skip
    return chart(
        "Map", "The objective over both varied fields; grey has no plan. Point at a cell for its plan.", data,
        {"mark": {"type": "rect", "stroke": "#fff"}, "encoding": encoding}, height=300,
    )  # fmt: skip
