"""Pictures of a comparison: Dolan–Moré performance profiles and the gap over time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.ticker import MaxNLocator, NullFormatter

from optmodels.reporting.plots import plt, save_all
from optmodels.solver.highs import relative_gap

TRACES = 9  # instances whose gap over time is drawn
SAME_GAP = 1e-4
RATIO = 1e3  # performance ratios beyond are drawn at the edge
Rows = Sequence[dict[str, Any]]
Array = npt.NDArray[np.float64]


def save_plots(rows: Rows, folder: Path, kind: str = "png") -> list[Path]:
    """Write ``profile`` and ``gap-over-time``; the files written.

    Args:
        rows: of `optmodels.compare`.
        folder: where to.
        kind: png or svg.
    """
    return save_all((("profile", _profile(rows)), ("gap-over-time", _over_time(rows))), folder, kind)


def ratios(rows: Rows, measure: str) -> tuple[list[str], Array]:
    """Performance ratios of Dolan and Moré (2002): each method's measure over the best method's on the same problem.

    Args:
        rows: of `optmodels.compare`; an (instance, seed) is a problem.
        measure: ``quality``: cost (or the reciprocal of what is maximised) of the plan found, infinite without one;
            ``time``: seconds to the proof, infinite without one.

    Returns:
        Methods, and ratios ≥ 1 of shape (problems, methods); NaN: the method was not run on the problem. Problems that
        no method solves are left out.
    """
    methods = list(dict.fromkeys(r["method"] for r in rows))
    problems = list(dict.fromkeys((r["instance"], r["seed"]) for r in rows))
    value = np.full((len(problems), len(methods)), np.nan)
    for r in rows:
        at = problems.index((r["instance"], r["seed"])), methods.index(r["method"])
        value[at] = _quality(r) if measure == "quality" else _time(r)
    value = value[np.isfinite(value).any(axis=1)]
    best = np.nanmin(value, axis=1, keepdims=True) if len(value) else value
    with np.errstate(invalid="ignore"):
        return methods, np.where(value == best, 1.0, value / best)


def _quality(row: dict[str, Any]) -> float:
    objective = row["objective"]
    if objective is None or row["check"] is None or not row["check"]["ok"]:
        return math.inf
    if row["sense"] == "min":
        return float(objective) if objective > 0 else math.inf
    return 1.0 / objective if objective > 0 else math.inf


def _time(row: dict[str, Any]) -> float:
    seconds = row["seconds"]["to_proof"]
    return math.inf if seconds is None else float(seconds)


def _profile(rows: Rows) -> Any:
    """Share of the problems that each method solves within a factor of the best method's quality, and of its time."""
    figure, panes = plt.subplots(1, 2, figsize=(12, 4.6))
    titles = {
        "quality": "cost of the plan found, over the best plan's", "time": "seconds to the proof, over the fastest's"
    }  # fmt: skip
    drawn = False
    for axes, (measure, title) in zip(panes, titles.items(), strict=True):
        methods, found = ratios(rows, measure)
        finite = found[np.isfinite(found)]
        right = float(np.clip(1.1 * finite.max(initial=1.0), 1.1, RATIO))
        for i, method in enumerate(methods):
            mine = found[:, i][~np.isnan(found[:, i])]
            solved = np.sort(mine[np.isfinite(mine)])
            if not len(solved):
                continue
            drawn = True
            x = np.concatenate([[1.0], solved, [right]])
            y = 100 * np.concatenate([[0.0], np.arange(1, len(solved) + 1), [len(solved)]]) / len(mine)
            width = 1.2 + 4.0 * (len(methods) - 1 - i) / max(len(methods) - 1, 1)
            axes.step(x, y, where="post", label=method, linewidth=width, color=_colour(i), solid_capstyle="butt")
        axes.set_xscale("log")
        axes.set_xlim(1.0, right)
        axes.xaxis.set_major_formatter(lambda v, _: f"{v:g}")
        axes.xaxis.set_minor_formatter((lambda v, _: f"{v:g}") if right < 8 else NullFormatter())
        axes.set_ylim(0, 103)
        axes.set_xlabel(f"factor of the best: {title}")
        axes.set_ylabel("problems, %")
        axes.set_title(
            f"{len(found)} problems that some method {'has a plan for' if measure == 'quality' else 'proves'}"
        )
        axes.grid(alpha=0.3)
    if not drawn:
        plt.close(figure)
        return None
    handles = {name: h for axes in panes for h, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, fontsize=8, loc="center left", bbox_to_anchor=(0.91, 0.5))
    return figure


def _colour(i: int) -> Any:
    return plt.get_cmap("tab20")(i % 20)


def gap_over_time(row: dict[str, Any]) -> list[tuple[float, float]]:
    """(solver's seconds, gap) of a run; empty where its events are not of one model, or of one whose bound is not ours.

    A method that solves several models in turn starts again from a wide gap, and the bound of a restricted model is no
    bound of the problem: the gap that such events end with is not the gap of the plan.
    """
    found = [
        (e["seconds"], relative_gap(e["objective"], e["bound"]))
        for e in row["events"] if e["objective"] is not None and e["bound"] is not None
    ]  # fmt: skip
    curve = [(s, g) for s, g in found if g is not None]
    if not curve or row["gap"] is None or abs(curve[-1][1] - row["gap"]) > SAME_GAP:
        return []
    rises = any(b[1] > a[1] + SAME_GAP for a, b in itertools.pairwise(curve))
    return [] if rises else curve


def _over_time(rows: Rows) -> Any:
    """Gap between incumbent and bound over a run's time, for the instances that took longest."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for r in rows:
        if len(gap_over_time(r)) > 1:
            runs.setdefault(r["instance"], []).append(r)
    chosen = sorted(runs, key=lambda n: -max(r["seconds"]["total"] for r in runs[n]))[:TRACES]
    if not chosen:
        return None
    methods = list(dict.fromkeys(r["method"] for n in chosen for r in runs[n]))
    across = min(3, len(chosen))
    down = math.ceil(len(chosen) / across)
    figure, panes = plt.subplots(down, across, figsize=(4.2 * across, 3.0 * down), squeeze=False)
    for axes in panes.flat[len(chosen) :]:
        axes.set_visible(False)
    for axes, name in zip(panes.flat, chosen, strict=False):
        for r in runs[name]:
            seconds, gap = zip(*((s, 100 * min(g, 1.0)) for s, g in gap_over_time(r)), strict=True)
            first = r["seed"] == runs[name][0]["seed"]
            axes.step(
                seconds, gap, where="post", linewidth=1.3, color=_colour(methods.index(r["method"])),
                label=r["method"] if first else None,
            )  # fmt: skip
            axes.plot(seconds[-1], gap[-1], "o" if r["proved"] else "x", color=_colour(methods.index(r["method"])))
        axes.set_yscale("symlog", linthresh=0.01)
        axes.set_ylim(-0.002, 120)
        axes.set_yticks([0, 0.01, 0.1, 1, 10, 100], ["0", "0.01", "0.1", "1", "10", "100"])
        axes.grid(alpha=0.3)
        axes.set_title(Path(name).stem[:40].replace("$", r"\$"), fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel("seconds of the solver", fontsize=8)
        axes.set_ylabel("gap, %", fontsize=8)
    handles = {name: h for axes in panes.flat for h, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle("Gap over time: ● proved, × stopped", fontsize=10)
    figure.tight_layout()
    return figure
