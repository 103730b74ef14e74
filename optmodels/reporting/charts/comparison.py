"""Charts of a comparison: who comes how near the certified bound, how fast, on how many instances."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from optmodels.arrays import Array
from optmodels.reporting.charts import Chart, chart, coloured, labels, legend_choice, shortened
from optmodels.reporting.charts.channels import amounts, entries, tips
from optmodels.reporting.charts.generic import gap_axis
from optmodels.reporting.colours import SERIES
from optmodels.solver.highs import relative_gap

LEAST_SECONDS = 1e-3
RUNS_SHOWN = 9  # instances whose gap over time is drawn
SAME_GAP = 1e-4
RATIO = 1e3  # performance ratios beyond are drawn at the edge
Rows = Sequence[Mapping[str, Any]]


def charts(rows: Rows) -> list[Chart]:
    """Charts of compare rows."""
    methods = labels(str(r["method"]) for r in rows)
    found = (_gaps, _within_gap, _profiles, _times, _gaps_over_time)
    return [c for make in found if (c := make(rows, methods)) is not None]


def _style(methods: Mapping[str, str], beside: str = "strokeDash") -> dict[str, Any]:
    """A colour for each method; dashes (or another shape) next to it where there are more methods than colours."""
    found = {"color": coloured("method", methods.values())}
    if len(methods) > len(SERIES):
        ways: tuple[Any, Any] = ([1, 0], [5, 3]) if beside == "strokeDash" else ("circle", "triangle-up")
        found[beside] = coloured("method", methods.values(), [ways[i // len(SERIES) % 2] for i in range(len(methods))])
    return found


def _steps(methods: Mapping[str, str]) -> dict[str, Any]:
    """`_style` of lines as wide as their rows state."""
    return _style(methods) | {"strokeWidth": amounts("width", scale=None, legend=None)}


def _width(methods: Mapping[str, str], method: str) -> float:
    """Pixels: earlier methods are thicker, so that a later one on the same steps does not hide them."""
    return 1.5 + 4.0 * (len(methods) - 1 - list(methods).index(method)) / max(len(methods) - 1, 1)


def _gaps(rows: Rows, methods: Mapping[str, str]) -> Chart | None:
    """One dot for every run: seconds against gap to the best proved bound."""
    names = labels(instance_name(r) for r in rows)
    points = [
        {"method": methods[str(r["method"])], "instance": names[instance_name(r)], "gap": max(r["gap_to_bound"], 0.0),
         "seconds": max(r["seconds"]["total"], LEAST_SECONDS)}
        for r in rows if r.get("gap_to_bound") is not None and math.isfinite(r["gap_to_bound"])
    ]  # fmt: skip
    if not points:
        return None
    encoding = _style(methods, "shape") | {
        "x": amounts("seconds", "seconds", scale={"type": "log"}, axis={"format": ",~r", "tickCount": 6}),
        "y": gap_axis("gap to the certified bound", 1.2 * max(0.01, *(p["gap"] for p in points))),
        "opacity": {"condition": {"param": "shown", "value": 0.9}, "value": 0.06},
        "tooltip": tips("method", ("instance", "problem"), ("gap", None, ".2%"), ("seconds", None, ".3g")),
    }  # fmt: skip
    mark = {"type": "point", "filled": True, "size": 70}
    return chart(
        "Gap and time",
        "Every run as a dot: how far its plan may be from the best one (0 % is proved best), and how long it took."
        " Click the legend to single out methods.",
        points, {"mark": mark, "encoding": encoding, "params": [legend_choice("method")]}, height=320,
    )  # fmt: skip


def _within_gap(rows: Rows, methods: Mapping[str, str]) -> Chart | None:
    """Share of the instances with a plan that each method solves within a gap; one with another seed is another."""
    solvable = {(r["instance"], r.get("seed")) for r in rows if r.get("objective") is not None}
    instances, seeds = (len({pair[i] for pair in solvable}) for i in (0, 1))
    what = "problems" if seeds < 2 else f"problems with {seeds} seeds"
    if not solvable:
        return None
    gaps = {
        m: sorted(max(r["gap_to_bound"], 0.0) for r in rows if r["method"] == m and r.get("gap_to_bound") is not None)
        for m in methods
    }
    right = max([0.01, *(g for mine in gaps.values() for g in mine if math.isfinite(g))]) * 1.2
    points = []
    for m in methods:
        steps = [(0.0, 0), (0.0, sum(g <= 0 for g in gaps[m]))]
        steps += [(g, k) for k, g in enumerate(gaps[m], 1) if g > 0] + [(right, len(gaps[m]))]
        line = {"method": methods[m], "width": _width(methods, m)}
        points += [line | {"gap": g, "share": k / len(solvable)} for g, k in steps]
    encoding = _steps(methods) | {
        "x": gap_axis("within this gap of the certified bound", right),
        "y": amounts("share", f"share of {instances} {what}", "%", scale={"domain": [0, 1]}),
        "opacity": {"condition": {"param": "shown", "value": 1}, "value": 0.1},
        "tooltip": tips("method", ("gap", None, ".2%"), ("share", None, ".0%")),
    }  # fmt: skip
    return chart(
        "Solved within a gap",
        "For each method the share of the problems that it solves within a gap to the certified bound; higher and"
        " further left is better.",
        points, {"mark": {"type": "line", "interpolate": "step-after"}, "encoding": encoding,
                 "params": [legend_choice("method")]}, height=320, name="compare",
    )  # fmt: skip


def ratios(rows: Rows, measure: str) -> tuple[list[str], Array]:
    """Performance ratios of Dolan and Moré (2002): each method's measure over the best method's on the same problem.

    Args:
        rows: rows of `optmodels.compare`; an (instance, seed) counts as one problem.
        measure: ``quality``: cost (or the reciprocal of a maximised value) of the plan found, infinite without one;
            ``time``: seconds to the proof, infinite without one.

    Returns:
        Methods, and ratios ≥ 1 of shape (problems, methods); NaN: the method was not run on the problem. Problems that
        no method solves are left out.
    """
    methods = list(dict.fromkeys(r["method"] for r in rows))
    problems = list(dict.fromkeys((r["instance"], r.get("seed")) for r in rows))
    value = np.full((len(problems), len(methods)), np.nan)
    for r in rows:
        at = problems.index((r["instance"], r.get("seed"))), methods.index(r["method"])
        value[at] = _quality(r) if measure == "quality" else _time(r)
    value = value[np.isfinite(value).any(axis=1)]
    best = np.nanmin(value, axis=1, keepdims=True) if len(value) else value
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # seconds may be 0
        return methods, np.where(value == best, 1.0, value / best)


def _quality(row: Mapping[str, Any]) -> float:
    objective = row["objective"]
    if objective is None or objective <= 0 or row["check"] is None or not row["check"]["ok"]:
        return math.inf
    return float(objective) if row["sense"] == "min" else 1.0 / objective


def _time(row: Mapping[str, Any]) -> float:
    seconds = row["seconds"].get("to_proof")
    return math.inf if seconds is None else float(seconds)


def _profiles(rows: Rows, methods: Mapping[str, str]) -> Chart | None:
    """Share of the problems that each method solves within a factor of the best method's quality, and of its time."""
    points: list[dict[str, Any]] = []
    panels: list[dict[str, Any]] = []
    for measure, title, done in (
        ("quality", "cost of the plan, over the best plan's", "has a plan for"),
        ("time", "seconds to the proof, over the fastest's", "proves"),
    ):
        names, found = ratios(rows, measure)
        right = float(np.clip(1.1 * found[np.isfinite(found)].max(initial=1.0), 1.1, RATIO))
        shown = len(points)
        for i, method in enumerate(names):
            mine = found[:, i][~np.isnan(found[:, i])]
            solved = np.sort(mine[np.isfinite(mine)])
            steps = [(1.0, 0), *((x, k) for k, x in enumerate(solved, 1)), (right, len(solved))]
            line = {"measure": measure, "method": methods[method], "width": _width(methods, method)}
            points += [line | {"factor": min(x, right), "share": k / len(mine)} for x, k in steps if len(solved)]
        if len(points) == shown:
            continue
        encoding = _steps(methods) | {
            "x": amounts("factor", title, axis={"format": ",~r", "tickCount": 5},
                         scale={"type": "log", "domain": [1, right], "nice": False}),
            "y": amounts("share", "share of the problems" if not panels else None, "%", scale={"domain": [0, 1]}),
            "tooltip": tips("method", ("factor", None, ".4~g"), ("share", None, ".0%")),
        }  # fmt: skip
        panels.append({
            "title": {"text": f"{len(found)} problems that some method {done}", "fontSize": 12, "anchor": "middle"},
            "width": 300, "height": 260, "transform": [{"filter": {"field": "measure", "equal": measure}}],
            "mark": {"type": "line", "interpolate": "step-after"}, "encoding": encoding,
        })  # fmt: skip
    if not panels:
        return None
    return chart(
        "Performance profiles",
        "For each method the share of the problems that it solves within a factor of the best method (Dolan and Moré),"
        " by the cost of its plan and by the time to its proof; higher and further left is better.",
        points, {"hconcat": panels}, name="profile",
    )  # fmt: skip


def _times(rows: Rows, methods: Mapping[str, str]) -> Chart | None:
    """Time of every method over the instances: its spread as ticks."""
    names = labels(instance_name(r) for r in rows)
    points = [{"method": methods[str(r["method"])], "instance": names[instance_name(r)],
               "seconds": max(r["seconds"]["total"], LEAST_SECONDS)} for r in rows]  # fmt: skip
    encoding = {
        "x": amounts("seconds", "seconds", scale={"type": "log"}, axis={"format": ",~r", "tickCount": 6}),
        "y": entries("method"),
        "color": _style(methods)["color"] | {"legend": None},
        "tooltip": tips("method", ("instance", "problem"), ("seconds", None, ".3g")),
    }  # fmt: skip
    return chart(
        "Time", "Seconds of every run, tables and check included; one tick a run.", points,
        {"mark": {"type": "tick", "thickness": 2, "height": 14}, "encoding": encoding},
        height=max(80, 26 * len(methods)),
    )  # fmt: skip


def gap_over_time(row: Mapping[str, Any]) -> list[tuple[float, float]]:
    """(solver's seconds, gap) of a run; empty where its events are not of one model, or of one whose bound is not ours.

    A method that solves several models in turn starts again from a wide gap, and the bound of a restricted model is no
    bound of the problem: the gap that such events end with is not the gap of the plan.
    """
    found = [
        (e["seconds"], relative_gap(e["objective"], e["bound"]))
        for e in row.get("events") or [] if e["objective"] is not None and e["bound"] is not None
    ]  # fmt: skip
    curve = [(s, g) for s, g in found if g is not None]
    if not curve or row["gap"] is None or abs(curve[-1][1] - row["gap"]) > SAME_GAP:
        return []
    rises = any(b[1] > a[1] + SAME_GAP for a, b in itertools.pairwise(curve))
    return [] if rises else curve


def _gaps_over_time(rows: Rows, methods: Mapping[str, str]) -> Chart | None:
    """Gap between incumbent and bound over a run's time, for the instances that took longest."""
    runs: dict[str, list[tuple[Mapping[str, Any], list[tuple[float, float]]]]] = {}
    for r in rows:
        if len(curve := gap_over_time(r)) > 1:
            runs.setdefault(str(r["instance"]), []).append((r, curve))
    chosen = sorted(runs, key=lambda n: -max(r["seconds"]["total"] for r, _ in runs[n]))[:RUNS_SHOWN]
    if not chosen:
        return None
    stems = [instance_name({"instance": n}) for n in chosen]
    short = {n: shortened(s if stems.count(s) == 1 else n, 34) for n, s in zip(chosen, stems, strict=True)}
    points = [
        {"instance": short[n], "method": methods[str(r["method"])], "seed": r.get("seed"), "seconds": s,
         "gap": min(g, 1.0), "end": ("proved" if r["proved"] else "stopped") if i == len(curve) - 1 else ""}
        for n in chosen for r, curve in runs[n] for i, (s, g) in enumerate(curve)
    ]  # fmt: skip
    shown = {m: label for m, label in methods.items() if any(p["method"] == label for p in points)}
    encoding = _style(shown) | {
        "x": amounts("seconds", "seconds of the solver", axis={"tickCount": 4, "format": ",~r"}),
        "y": gap_axis("gap", 1.0, (0.0, 0.001, 0.01, 0.1, 1.0)),
    }  # fmt: skip
    ends = encoding | {"shape": coloured("end", ["proved", "stopped"], ["circle", "cross"])}  # fmt: skip
    layers = [
        {"mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.5},
         "encoding": encoding | {"detail": {"field": "seed"}}},
        {"transform": [{"filter": "datum.end !== ''"}], "mark": {"type": "point", "filled": True, "size": 60},
         "encoding": ends},
    ]  # fmt: skip
    panel = entries("instance")
    spec = {"facet": panel, "columns": min(3, len(chosen)), "resolve": {"scale": {"x": "independent"}},
            "spec": {"width": 190 if len(chosen) > 2 else 300, "height": 130, "layer": layers}}  # fmt: skip
    return chart(
        "Gap over time",
        "The gap of single runs over the solver's time, for the problems that took longest: a disc where a run ends"
        " with its proof, a cross where it is stopped.",
        points, spec,
    )  # fmt: skip


def instance_name(row: Mapping[str, Any]) -> str:
    """An instance by its file's name without folder and ending."""
    return Path(str(row["instance"])).stem or str(row["instance"])
