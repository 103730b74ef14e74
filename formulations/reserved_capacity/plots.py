"""Pictures of a reserved-capacity plan: demand and capacity over the week by region, a flow map, cost bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from formulations.reserved_capacity.points import ReservedTables
from formulations.reserved_capacity.show import COMPARED, comparisons, frames

HOURS_SHOWN = 168
REGIONS_SHOWN = 12


def figures(t: ReservedTables, plan: Any, folder: Path, kind: str = "png") -> list[Path]:
    """Write the pictures of a plan; the files written.

    Args:
        t: tables of the problem.
        plan: its plan (`ReservedPlan`).
        folder: where to.
        kind: png or svg.
    """
    from optmodels.reporting.plots import plt, save_all

    drawn = (("demand-and-capacity", _week), ("flow-map", _flow_map), ("cost", _cost))
    return save_all(((name, draw(plt, t, plan)) for name, draw in drawn), folder, kind)


def _week(plt: Any, t: ReservedTables, plan: Any) -> Any:
    """Machines busy by region stacked, against machines reserved, over the first week of the first scenario."""
    table = frames(t, plan)["hours"]
    table = table[(table["scenario"] == 0) & (table["quarter"] == 0)].head(HOURS_SHOWN)
    names = sorted(t.case.regions, key=lambda n: -float(table[f"{n} machines busy"].sum()))
    shown, rest = names[:REGIONS_SHOWN], names[REGIONS_SHOWN:]
    hours = np.arange(len(table))
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(10, 7), sharex=True)
    colours = plt.get_cmap("tab20").colors
    for axes, what, unit in ((top, "demand req/s", "demand, requests/s"), (bottom, "machines busy", "machines busy")):
        series = [table[f"{n} {what}"].to_numpy() for n in shown]
        labels = list(shown)
        if rest:
            series.append(sum(table[f"{n} {what}"].to_numpy() for n in rest))
            labels.append(f"{len(rest)} more")
        axes.stackplot(hours, series, labels=labels, colors=colours, step="mid" if len(hours) <= 48 else None)
        axes.set_ylabel(unit)
    reserved = sum(table[f"{n} machines reserved"].to_numpy() for n in names)
    bottom.plot(hours, reserved, color="black", lw=1.5, label="reserved")
    bottom.set_xlabel("hour")
    top.set_title("Where demand arises (top) and where it is served (bottom)")
    handles, labels = bottom.get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7, loc="center left", bbox_to_anchor=(0.91, 0.5))
    return figure


def _flow_map(plt: Any, t: ReservedTables, plan: Any) -> Any:
    """Regions at their places; arrows as wide as the mean forwarded flow; None where places are unknown."""
    places = dict(zip(t.case.regions, t.case.places, strict=True))
    if any(None in p for p in places.values()):
        return None
    known = {name: (float(a or 0), float(b or 0)) for name, (a, b) in places.items()}
    figure, axes = plt.subplots(figsize=(10, 5))
    held = dict.fromkeys(t.case.regions, 0)
    for line in plan.reservations:
        held[line.region] += line.count
    most = max([f.mean_requests_per_second for f in plan.flows if f.origin != f.server], default=1.0)
    for f in plan.flows:
        if f.origin == f.server or f.mean_requests_per_second < 0.02 * most:
            continue
        (a, b), (c, d) = known[f.origin], known[f.server]
        width = 0.4 + 3.0 * f.mean_requests_per_second / most
        style = {"arrowstyle": "-|>", "lw": width, "color": "#4477aa", "alpha": 0.6, "connectionstyle": "arc3,rad=0.2"}
        axes.annotate("", xy=(d, c), xytext=(b, a), arrowprops=style)
    largest = max(1, *held.values())
    for name, (latitude, longitude) in known.items():
        axes.scatter(
            longitude, latitude, s=12 + 300 * held[name] / largest, color="#cc3311" if held[name] else "#999999"
        )
        axes.text(longitude + 2, latitude + 2, f"{name} {held[name] or ''}", fontsize=6)
    axes.set_xlim(-180, 180)
    axes.set_ylim(-60, 75)
    axes.set_xlabel("longitude, degrees")
    axes.set_ylabel("latitude, degrees")
    axes.set_title("Reserved machines (area) and mean forwarding (width)")
    return figure


def _cost(plt: Any, t: ReservedTables, plan: Any) -> Any:
    """Cost per month of the plan by part, and of the paper's ways to provision."""
    figure, axes = plt.subplots(figsize=(7, 4.5))
    c, bottom = plan.cost, 0.0
    parts = (("reserved", c.reserved_usd_per_month, "#4477aa"), ("on demand", c.on_demand_usd_per_month, "#ee6677"),
             ("spot", c.spot_usd_per_month, "#228833"), ("unserved", c.unserved_usd_per_month, "#999999"),
             ("egress", c.egress_usd_per_month, "#ccbb44"))  # fmt: skip
    for name, value, colour in parts:
        if value > 0:
            axes.bar("this plan", value, bottom=bottom, color=colour, label=name)
            bottom += value
    for name, value in comparisons(t).items():
        if value is not None:
            axes.bar(name.replace("_", " "), value, color="#bbbbbb")
    axes.set_ylabel("USD per month")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    axes.set_title("\n".join(f"{k.replace('_', ' ')}: {v}" for k, v in COMPARED.items()), fontsize=7, loc="left")
    return figure
