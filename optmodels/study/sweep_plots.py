"""Pictures of a sweep: the objective over what was varied, and the frontier with what is proved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from optmodels.reporting.plots import plt, save_all

if TYPE_CHECKING:
    from optmodels.study.sweep import Sweep

LINES = 8  # lines told apart by colour; beyond, a colour scale
TICKS = 12
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee", "#999933", "#cc3311", "#555555")
NOT_PROVED = "not proved; bar to the bound"
MANY = 12  # letters a value is written in


def save_plots(found: Sweep, folder: Path, kind: str = "png") -> list[Path]:
    """Write ``sweep`` and, where one was asked for, ``frontier``; the files written.

    Args:
        found: the sweep.
        folder: where to.
        kind: png or svg.
    """
    return save_all((("sweep", _sweep(found)), ("frontier", _frontier(found))), folder, kind)


def _numeric(column: Any) -> bool:
    return column.dtype.kind in "iuf" and bool(column.notna().all())


def _log(values: Any) -> bool:
    """Values that spread evenly in their logarithms are drawn so."""
    v = np.unique(np.asarray(values, dtype=float))
    if len(v) < 3 or v[0] <= 0:
        return False
    even, even_log = np.ptp(np.diff(v)) / np.ptp(v), np.ptp(np.diff(np.log(v))) / np.ptp(np.log(v))
    return bool(even_log < even and v[-1] / v[0] > 4)


def _log_axis(axis: Any) -> None:
    """A logarithmic axis labelled 0.2, 0.5, 1, 2, 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_minor_formatter(NullFormatter())


def _text(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return _safe(text if len(text) <= MANY else text[: MANY - 1] + "…")


def _safe(text: str, limit: int = 60) -> str:
    """Text that matplotlib draws as it is; `$` would begin mathematics."""
    text = "".join(c if c.isprintable() else "?" for c in text).replace("$", r"\$")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _sweep(found: Sweep) -> Any:
    """Objective over the varied field with most values; a line for every combination of the others, if few."""
    frame, keys = found.frame, list(found.keys)
    if frame["objective"].notna().sum() == 0:
        return None
    counts = {k: frame[k].nunique() for k in keys}
    numbers = [k for k in keys if _numeric(frame[k])]
    across = max(numbers or keys, key=lambda k: counts[k])
    others = [k for k in keys if k != across and counts[k] > 1]
    figure, axes = plt.subplots(figsize=(8, 4.5))
    lines = int(np.prod([counts[k] for k in others], dtype=float)) if others else 1
    x = frame[across] if across in numbers else frame[across].map({v: i for i, v in enumerate(_seen(frame[across]))})
    if lines <= LINES and lines * counts[across] == len(frame):
        groups = frame.groupby(others, sort=False, dropna=False) if others else [((), frame)]
        for i, (values, part) in enumerate(groups):
            named = zip(others, values if isinstance(values, tuple) else (values,), strict=True)
            label = ", ".join(f"{_last(k)} = {_text(v)}" for k, v in named)
            _line(axes, x.loc[part.index], part, COLOURS[i % len(COLOURS)], label or None)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    else:
        shade = others[0] if others and _numeric(frame[others[0]]) else None
        dots = axes.scatter(
            x, frame["objective"], c=None if shade is None else frame[shade], s=14, alpha=0.7, cmap="viridis",
            color=COLOURS[0] if shade is None else None,
        )  # fmt: skip
        if shade is not None:
            figure.colorbar(dots, ax=axes, label=_safe(shade))
    _missing(axes, x, frame)
    if across in numbers:
        if _log(frame[across]):
            _log_axis(axes.xaxis)
    else:
        names = _seen(frame[across])
        step = max(1, len(names) // TICKS)
        axes.set_xticks(range(0, len(names), step), [_text(n) for n in names[::step]], rotation=30, ha="right")
    sense, unit = found.goal
    axes.set_xlabel(_safe(across))
    axes.set_ylabel(f"objective, {unit} ({'less' if sense == 'min' else 'more'} is better)")
    axes.grid(alpha=0.3)
    axes.set_title(_safe(f"{Path(found.instance).stem}, {found.task.method}: {len(frame)} solves"))
    return figure


def _seen(column: Any) -> list[Any]:
    return list(dict.fromkeys(column.tolist()))


def _last(key: str) -> str:
    """The ending of a path that tells it apart at a glance."""
    return _safe(key.rsplit(".", 1)[-1], 30)


def _line(axes: Any, x: Any, part: Any, colour: str, label: str | None) -> None:
    """A line; proved points are filled, others hollow with a bar to their bound."""
    part = part.assign(x=x).sort_values("x")
    axes.plot(part["x"], part["objective"], color=colour, linewidth=1.2, label=label)
    sure = part["proved"]
    axes.scatter(part["x"][sure], part["objective"][sure], s=20, color=colour, zorder=3)
    open_ = part[~sure & part["objective"].notna()]
    _with_bounds(axes, open_["x"], open_["objective"], open_["bound"], colour)


def _with_bounds(axes: Any, x: Any, y: Any, bound: Any, colour: str) -> None:
    if not len(x):
        return
    known = axes.get_legend_handles_labels()[1]
    label = None if NOT_PROVED in known else NOT_PROVED
    axes.scatter(x, y, s=26, facecolors="white", edgecolors=colour, zorder=3, label=label)
    bound = bound.astype(float)
    axes.vlines(x, np.fmin(y, bound), np.fmax(y, bound), color=colour, alpha=0.5, linewidth=1)


def _missing(axes: Any, x: Any, frame: Any) -> None:
    """Points without a plan as marks on the floor: proved infeasible, or not found."""
    for infeasible, label, colour in ((True, "infeasible, proved", "#cc3311"), (False, "no plan found", "#999999")):
        rows = frame["objective"].isna() & ((frame["status"] == "infeasible") == infeasible)
        if rows.any():
            axes.plot(
                x[rows], np.zeros(int(rows.sum())), "x", color=colour, label=label, clip_on=False, markersize=6,
                transform=axes.get_xaxis_transform(),
            )  # fmt: skip
            axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))


def _frontier(found: Sweep) -> Any:
    """The first two aims against each other: all plans, the frontier as a staircase, proved points filled."""
    if not found.pareto:
        return None
    first, second = found.pareto[:2]
    frame = found.frame[found.frame["check_ok"] == True]  # noqa: E712 - the column may hold None
    figure, axes = plt.subplots(figsize=(8, 4.8))
    front = found.frontier.sort_values(second.column)
    rest = frame[~frame["frontier"]]
    if len(rest):
        axes.scatter(rest[second.column], rest[first.column], s=12, color="#bbbbbb", label="beaten by another plan")
    if len(found.pareto) == 2:
        where: Literal["post", "pre"] = "post" if second.direction == "min" else "pre"
        axes.step(front[second.column], front[first.column], where=where, color=COLOURS[0], linewidth=1.2, alpha=0.7)
    for sure, fill, label in ((True, COLOURS[0], "its optimum proved"), (False, "white", "not proved")):
        part = front[front["proved"] == sure]
        if len(part):
            axes.scatter(
                part[second.column], part[first.column], s=32, facecolors=fill, edgecolors=COLOURS[0], zorder=3,
                label=f"on the frontier, {label}",
            )  # fmt: skip
    for aim, axis in ((second, axes.xaxis), (first, axes.yaxis)):
        if len(frame) and _log(frame[aim.column]):
            _log_axis(axis)
    axes.set_xlabel(_safe(f"{second.column} ({'less' if second.direction == 'min' else 'more'} is better)"))
    axes.set_ylabel(_safe(f"{first.column} ({'less' if first.direction == 'min' else 'more'} is better)"))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_title(_safe(f"{Path(found.instance).stem}, {found.task.method}: frontier of {len(frame)} plans"))
    return figure
