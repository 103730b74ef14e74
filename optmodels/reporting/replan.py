"""The terminal text of `replan`: what to do now, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.reporting.text import plain

SOURCES = {
    "exact": "MILP", "rounded": "MILP relaxation, rounded", "rule": "rule (base stock at the lead time)",
    "last": "plan of an earlier tick",
}  # fmt: skip


def replan_lines(found: Mapping[str, Any]) -> list[str]:
    """Lines for the terminal (rich markup)."""
    tick = found["tick"]
    changes = sum(x["count"] for what in ("orders", "stops") for x in found[what])
    lines = [
        f"[bold]{changes} machine{'s' * (changes != 1)} to change now[/bold], then {found['usd_per_hour']:,.2f} USD/h"
        if changes else f"[bold]Nothing to change now[/bold], {found['usd_per_hour']:,.2f} USD/h"
    ]  # fmt: skip
    for what, verb in (("orders", "order"), ("stops", "stop"), ("loads", "load"), ("unloads", "unload")):
        for x in found[what]:
            name = x.get("deployment") or f"{x['machine']}{' in ' + x['region'] if x['region'] else ''} ({x['market']})"
            when = f", ready in {x['ready_in_min']:g} min" if "ready_in_min" in x else ""
            lines += [f"  {verb} {x['count']} × {plain(name)}{when}", f"    [dim]{plain(x['reason'])}[/dim]"]
    for x in found["kept_idle"]:
        lines += [f"  keep {x['count']} idle × {plain(x['machine'])}", f"    [dim]{plain(x['reason'])}[/dim]"]
    proof = "" if tick["gap"] is None else f"; {tick['objective_usd']:,.2f} USD over the horizon, gap {tick['gap']:.2%}"
    lines.append(f"Decided by: {SOURCES[tick['source']]}, {plain(tick['why'])}{proof}")
    lines += ["", f"{'in':<8}{'workload':<18}{'capacity':>10}{'median':>10}{'highest quantile':>18}"]
    for row in found["path"]:
        for name, capacity in row["capacity"].items():
            quantiles = list(row["forecast"][name].values())
            mark = " " if capacity >= quantiles[-1] * (1 - 1e-9) else "✗"
            lines.append(
                plain(f"{row['in_min']:>4g} min{'':<1}{name[:17]:<18}{capacity:>9.4g}{mark}{quantiles[0]:>10.4g}"
                      f"{quantiles[-1]:>18.4g}")
            )  # fmt: skip
    return lines
