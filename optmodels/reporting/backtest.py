"""The terminal text of a backtest: the decision first, then the table, then how sure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.reporting.text import plain


def backtest_lines(found: Mapping[str, Any]) -> list[str]:
    """Lines for the terminal (rich markup)."""
    goal, replica, rows = found["goal"], found["replica"], found["rows"]
    reached = {m: c for m, c in found["at_goal"].items() if c is not None and m not in ("perfect",)}
    days = found["judge_min"] / 1440
    lines = []
    able = [r for r in rows if r["attained"] >= goal and r["method"] != "perfect"]
    if able:
        best = min(able, key=lambda r: r["usd"])
        lines.append(
            f"[bold]{best['method']}{_setting(best)} meets the goal at the least cost:[/bold] {best['usd']:,.0f} USD "
            f"for {days:g} days, {best['over_hindsight']:.2f} × hindsight, {best['attained']:.2%} within the SLO"
        )
    else:
        lines.append(f"[bold]No autoscaler meets the goal of {goal:.2%} within the SLO.[/bold]")
    lines.append(f"Hindsight, the least cost with perfect knowledge: {found['hindsight_usd']:,.0f} USD (exact).")
    what = f"{replica['machines']}, " if "machines" in replica else ""
    lines.append(
        plain(
            f"Replica: {what}{replica['requests_per_s']:.3g} requests/s within the SLO, "
            f"{replica['usd_per_hour']:.2f} USD/h, serves {replica['start_min']} min after its order."
        )
    )
    lines += [
        "",
        f"{'autoscaler':<18}{'setting':<32}{'attained':>10}{'× hindsight':>13}{'changes':>9}{'worst minute':>14}",
    ]
    for r in sorted(rows, key=lambda r: (-(r["attained"] >= goal), r["over_hindsight"])):
        setting = ("tuned: " if r["tuned"] else "") + ", ".join(f"{k} {v:g}" for k, v in r["setting"].items())
        mark = " " if r["attained"] >= goal else "✗"
        lines.append(
            f"{r['method']:<18}{setting:<32}{r['attained']:>9.2%}{mark}{r['over_hindsight']:>13.3f}{r['changes']:>9,}"
            f"{r['worst_minute']:>14.0%}"
        )
    if len(found["frontiers"]) and any(len(f) > 1 for f in found["frontiers"].values()):
        at = ", ".join(f"{m} {c:.3f}" for m, c in sorted(reached.items(), key=lambda x: x[1]))
        lines += [
            "",
            f"Cost at {goal:.2%} attained, from all settings on the judged days, × hindsight: {at or 'none'}.",
        ]
        never = [m for m, c in found["at_goal"].items() if c is None]
        if never:
            lines.append(f"No setting attained it: {', '.join(never)}.")
    forecast = found["forecast"]
    if forecast:
        cover = ", ".join(f"{float(q):.0%} → {c:.1%}" for q, c in forecast["cover"].items())
        lines.append(f"Forecast of plan: {forecast['method']}; quantiles covered on the judged days: {cover}.")
    lines += [plain(f"Note: {n}") for n in found["history_notes"]]
    lines.append("The queue is a fluid in 10-second steps; differences below 1 % are noise.")
    return lines


def _setting(row: Mapping[str, Any]) -> str:
    return " (tuned)" if row["tuned"] else ""
