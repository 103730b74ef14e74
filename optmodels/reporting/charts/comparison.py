"""Charts of a comparison: who comes how near the certified bound, how fast, on how many instances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optmodels.reporting.charts import Chart, chart, labels
from optmodels.reporting.colours import SERIES

LEAST_SECONDS = 1e-3


def charts(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Charts of compare rows."""
    methods = list(dict.fromkeys(str(r["method"]) for r in rows))
    colours = _colours(methods)
    return [c for c in (_gaps(rows, colours), _profile(rows, methods, colours), _times(rows, methods, colours)) if c]


def _colours(methods: list[str]) -> dict[str, Any]:
    short = labels(methods)
    scale = {"domain": [short[m] for m in methods], "range": [SERIES[i % len(SERIES)] for i in range(len(methods))]}
    return {"field": "method", "type": "nominal", "title": None, "scale": scale}


def _gaps(rows: Sequence[Mapping[str, Any]], colours: Mapping[str, Any]) -> Chart | None:
    """One dot for every run: seconds against gap to the best proved bound."""
    short = labels(str(r["method"]) for r in rows)
    names = labels(instance_name(r) for r in rows)
    points = [
        {"method": short[str(r["method"])], "instance": names[instance_name(r)], "gap": max(r["gap_to_bound"], 0.0),
         "seconds": max(r["seconds"]["total"], LEAST_SECONDS)}
        for r in rows if r.get("gap_to_bound") is not None and math.isfinite(r["gap_to_bound"])
    ]  # fmt: skip
    if not points:
        return None
    encoding = {
        "x": {"field": "seconds", "type": "quantitative", "scale": {"type": "log"}, "title": "seconds",
              "axis": {"format": "~g", "tickCount": 6}},
        "y": {"field": "gap", "type": "quantitative", "scale": {"type": "symlog", "constant": 0.05},
              "axis": {"format": "~%", "tickCount": 6}, "title": "gap to the certified bound"},
        "color": dict(colours),
        "opacity": {"condition": {"param": "shown", "value": 0.9}, "value": 0.06},
        "tooltip": [{"field": "method"}, {"field": "instance"}, {"field": "gap", "format": ".2%"},
                    {"field": "seconds", "format": ".3g"}],
    }  # fmt: skip
    choice = {"name": "shown", "select": {"type": "point", "fields": ["method"], "toggle": "true"}, "bind": "legend"}
    spec = {"mark": {"type": "point", "filled": True, "size": 70}, "encoding": encoding, "params": [choice]}
    return chart(
        "Gap and time",
        "Every run as a dot: how far its plan may be from the best one (0 % is proved best), and how long it took."
        " Click the legend to single out methods.",
        points, spec, height=320,
    )  # fmt: skip


def _profile(rows: Sequence[Mapping[str, Any]], methods: list[str], colours: Mapping[str, Any]) -> Chart | None:
    """Share of the instances with a plan that each method solves within a gap; one with another seed is another."""
    solvable = {(r["instance"], r.get("seed")) for r in rows if r.get("objective") is not None}
    seeds = len({seed for _, seed in solvable})
    what = "instances" if seeds < 2 else f"instances with {seeds} seeds"
    if len({instance for instance, _ in solvable}) < 2:
        return None
    short = labels(methods)
    gaps = {
        m: sorted(max(r["gap_to_bound"], 0.0) for r in rows if r["method"] == m and r.get("gap_to_bound") is not None)
        for m in methods
    }
    right = max([0.01, *(g for mine in gaps.values() for g in mine if math.isfinite(g))]) * 1.2
    points = []
    for m in methods:
        steps = [(0.0, sum(g <= 0 for g in gaps[m]))]
        steps += [(g, k) for k, g in enumerate(gaps[m], 1) if g > 0] + [(right, len(gaps[m]))]
        points += [{"method": short[m], "gap": g, "share": k / len(solvable)} for g, k in steps]
    encoding = {
        "x": {"field": "gap", "type": "quantitative", "scale": {"type": "symlog", "constant": 0.05, "nice": False},
              "axis": {"format": "~%", "tickCount": 6}, "title": "within this gap of the certified bound"},
        "y": {"field": "share", "type": "quantitative", "axis": {"format": "%"}, "scale": {"domain": [0, 1]},
              "title": f"share of {len({i for i, _ in solvable})} {what}"},
        "color": dict(colours),
        "opacity": {"condition": {"param": "shown", "value": 1}, "value": 0.1},
        "tooltip": [{"field": "method"}, {"field": "gap", "format": ".2%"}, {"field": "share", "format": ".0%"}],
    }  # fmt: skip
    choice = {"name": "shown", "select": {"type": "point", "fields": ["method"], "toggle": "true"}, "bind": "legend"}
    mark = {"type": "line", "interpolate": "step-after", "strokeWidth": 2.2}
    return chart(
        "Performance profile",
        "For each method the share of the instances that it solves within a gap to the certified bound; higher and"
        " further left is better.",
        points, {"mark": mark, "encoding": encoding, "params": [choice]}, height=320,
    )  # fmt: skip


def _times(rows: Sequence[Mapping[str, Any]], methods: list[str], colours: Mapping[str, Any]) -> Chart | None:
    """Time of every method over the instances: its spread as ticks."""
    short = labels(methods)
    names = labels(instance_name(r) for r in rows)
    points = [{"method": short[str(r["method"])], "instance": names[instance_name(r)],
               "seconds": max(r["seconds"]["total"], LEAST_SECONDS)} for r in rows]  # fmt: skip
    encoding = {
        "x": {"field": "seconds", "type": "quantitative", "scale": {"type": "log"}, "title": "seconds",
              "axis": {"format": "~g", "tickCount": 6}},
        "y": {"field": "method", "type": "nominal", "sort": None, "title": None},
        "color": dict(colours) | {"legend": None},
        "tooltip": [{"field": "method"}, {"field": "instance"}, {"field": "seconds", "format": ".3g"}],
    }  # fmt: skip
    return chart(
        "Time", "Seconds of every run, tables and check included; one tick a run.", points,
        {"mark": {"type": "tick", "thickness": 2, "height": 14}, "encoding": encoding},
        height=max(80, 26 * len(methods)),
    )  # fmt: skip


def instance_name(row: Mapping[str, Any]) -> str:
    """An instance by its file's name without folder and ending."""
    return Path(str(row["instance"])).stem or str(row["instance"])
