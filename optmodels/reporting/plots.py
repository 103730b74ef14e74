"""Pictures for papers and terminals' neighbours: PNG or SVG by matplotlib (the ``plot`` extra)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from optmodels.reporting.colours import FAMILY_COLOURS

__all__ = ["FAMILY_COLOURS", "gap_plot", "plt", "save_all", "save_figure"]


def save_figure(figure: Any, path: Path) -> None:
    """Write and close a figure; the format is the path's ending."""
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


def save_all(figures: Iterable[tuple[str, Any]], folder: Path, kind: str) -> list[Path]:
    """Write the figures that there are (not None) under their names; the files written."""
    made = []
    for name, figure in figures:
        if figure is not None:
            made.append(folder / f"{name}.{kind}")
            save_figure(figure, made[-1])
    return made


def gap_plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Share of the instances that have a plan which each method solves within a given gap to the certified bound."""
    methods = list(dict.fromkeys(r["method"] for r in rows))
    solvable = {(r["instance"], r.get("seed")) for r in rows if r["objective"] is not None}  # a seed is a problem
    gaps = {
        m: sorted(100 * max(r["gap_to_bound"], 0.0) for r in rows if r["method"] == m and r["gap_to_bound"] is not None)
        for m in methods
    }
    right = 1.3 * max([1.0, *(g for mine in gaps.values() for g in mine)])
    figure, axes = plt.subplots(figsize=(8, 4.5))
    for i, method in enumerate(methods):
        mine = gaps[method]
        x = [0.0, *(g for g in mine for _ in (0, 1)), right]
        y = [0.0, *(v for n in range(len(mine)) for v in (n, n + 1)), len(mine)]
        # Earlier methods thicker, so that a later one on the same steps does not hide them.
        width = 1.2 + 5.0 * (len(methods) - 1 - i) / max(len(methods) - 1, 1)
        axes.plot(x, [100 * v / max(len(solvable), 1) for v in y], label=method, linewidth=width, solid_capstyle="butt")
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xlim(-0.02, right)
    axes.set_ylim(0, 103)
    axes.set_xlabel("gap to the certified bound, %")
    axes.set_ylabel("instances that have a plan, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    axes.set_title(f"Instances solved within a gap ({len({i for i, _ in solvable})} with a plan)")
    save_figure(figure, path)
