"""The terminal text of `migrate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.reporting.decision import cost_words
from optmodels.reporting.text import plain


def migrate_lines(found: Mapping[str, Any]) -> list[str]:
    """Lines for the terminal (rich markup)."""
    usd, attained = found["usd_per_hour"], found["attained"]
    if not found["steps"]:
        return ["[bold]Nothing to do:[/bold] the plan's machines run."]
    kept = "capacity kept at every step" if found["kept"] else f"capacity falls to {attained['least']:.1%}"
    lines = [
        f"[bold]{len(found['steps'])} steps, {kept}[/bold]",
        f"  Cost: {usd['before']:,.2f} USD/h now, then {cost_words(usd['after'])}",
        f"  Requests served within the SLOs, predicted: {attained['before']:.1%} now, {attained['after']:.1%} after",
        "",
    ]
    for i, s in enumerate(found["steps"], 1):
        lines += [
            plain(f"{i:>3}. {s['do']} {s['count']} × {s['deployment'].replace('(on_demand)', '(on demand)')}"),
            f"     [dim]{plain(s['reason'])}; then {s['attained']:.1%} served, {s['usd_per_hour']:,.2f} USD/h[/dim]",
        ]
    return lines
