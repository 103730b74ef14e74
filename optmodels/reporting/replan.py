"""The terminal text of `replan`: what to do now, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.reporting.decision import market_words
from optmodels.reporting.text import plain

ROWS_SHOWN = 8
SOURCES = {
    "exact": "mixed-integer program", "rounded": "relaxed mixed-integer program, rounded",
    "rule": "rule (base stock at the lead time)", "last": "plan of an earlier tick",
}  # fmt: skip


def replan_lines(found: Mapping[str, Any]) -> list[str]:
    """Lines for the terminal (rich markup)."""
    tick = found["tick"]
    counts = {verb: sum(x["count"] for x in found[what]) for what, verb in (("orders", "order"), ("stops", "stop"))}
    now = " and ".join(f"{verb} {n} machine{'s' * (n != 1)}" for verb, n in counts.items() if n)
    cost = f"{found['usd_per_hour']:,.2f} USD/h"
    lines = [
        f"[bold]{now[0].upper()}{now[1:]} now[/bold]; the fleet then costs {cost}"
        if now else f"[bold]No machine to order or stop now[/bold]; the fleet costs {cost}"
    ]  # fmt: skip
    for what, verb in (("orders", "order"), ("stops", "stop"), ("loads", "load"), ("unloads", "unload")):
        for x in found[what]:
            where = f" in {x['region']}" if x.get("region") else ""
            name = x.get("deployment") or f"{x['machine']}{where} ({market_words(x['market'])})"
            when = f", ready in {x['ready_in_min']:g} min" if "ready_in_min" in x else ""
            lines += [f"  {verb} {x['count']} × {plain(name)}{when}", f"    [dim]{plain(x['reason'])}[/dim]"]
    for x in found["kept_idle"]:
        lines += [f"  keep {x['count']} idle × {plain(x['machine'])}", f"    [dim]{plain(x['reason'])}[/dim]"]
    lines += ["", *_capacity(found["path"]), ""]
    lines.append(f"Decided by: {SOURCES[tick['source']]} ({plain(tick['why'])})")
    if tick["gap"] is not None:
        hours = tick["horizon"] * tick["tick_min"] / 60
        lines.append(f"Cost of the next {hours:g} h: {tick['objective_usd']:,.2f} USD, proved within {tick['gap']:.2%}")
    lines += ["Next", "  Make these changes, then call replan again with what runs; --out DIR writes the next state."]
    return lines


def _capacity(path: list[Mapping[str, Any]]) -> list[str]:
    """Capacity next to the forecast; of many rows those with the least capacity over the highest quantile."""
    rows = [
        (row["in_min"], name, capacity, [*row["forecast"][name].items()])
        for row in path
        for name, capacity in row["capacity"].items()
    ]
    tightest = sorted(rows, key=lambda r: r[2] / max(r[3][-1][1], 1e-9))[:ROWS_SHOWN]
    shown = rows if len(rows) <= ROWS_SHOWN else [r for r in rows if r in tightest]
    highest = f"quantile {rows[0][3][-1][0].removeprefix('q')}" if rows else ""
    lines = [f"{'requests/s in':<16}{'workload':<20}{'capacity':>10} {'median':>10}{highest:>16}"]
    for in_min, name, capacity, quantiles in shown:
        mark = " " if capacity >= quantiles[-1][1] * (1 - 1e-9) else "✗"
        median, high = quantiles[0][1], quantiles[-1][1]
        lines.append(plain(f"{in_min:>6g} min      {name[:19]:<20}{capacity:>10.4g}{mark}{median:>10.4g}{high:>16.4g}"))
    if len(rows) > len(shown):
        lines.append(f"… and {len(rows) - len(shown)} rows with more capacity over the forecast")
    return lines
