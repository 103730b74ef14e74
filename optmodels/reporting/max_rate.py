"""The terminal text of `max-rate`: the rate first, then how it is bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.reporting.text import plain


def max_rate_lines(found: Mapping[str, Any]) -> list[str]:
    """Lines for the terminal (rich markup)."""
    now, best = found["requests_per_s"], found["best_shares"]
    bound = best["bound"]
    of = "" if found["period"] == "always" else f" in period {found['period']}"
    if "planned_shares" not in found:  # an instance of several periods
        line = f"[bold]Largest rate within the SLOs: {best['requests_per_s']:.4g} requests/s[/bold]{plain(of)}"
        return [line, f"No fleet within stock, quota and budget exceeds {bound:.4g} requests/s (bound of the model)."]
    seen = found.get("simulated")
    first = seen or found["planned_shares"]
    how = "simulated" if seen else "predicted"
    lines = [f"[bold]Largest rate within the SLOs: {first['requests_per_s']:.4g} requests/s[/bold] ({how}{plain(of)})"]
    if found["headroom"] is not None:
        lines.append(f"  Planned: {now:.4g} requests/s; headroom {found['headroom']:+.1%}, by the smallest rate below.")
    lines += [f"  Fleet: {plain(found['fleet'])}"] if "fleet" in found else []
    rows = [("split as planned, predicted", found["planned_shares"]["requests_per_s"], "")]
    if seen:
        fails = (
            "" if seen["fails_at"] is None else f"SLO missed at {seen['fails_at']:.4g}: {plain(seen['missed'] or '')}"
        )
        rows.append(("split as planned, simulated", seen["requests_per_s"], fails))
    proved = "" if bound is None else f"bound {bound:.4g}: no split of the requests exceeds it"
    rows.append(("best split, predicted", best["requests_per_s"], proved))
    lines += ["", f"  {'requests among the engines':<30}{'requests/s':>10}"]
    lines += [f"  {name:<30}{rate:>10.4g}  [dim]{more}[/dim]".rstrip() for name, rate, more in rows]
    if seen and bound is not None and seen["requests_per_s"] > bound * (1 + 1e-6):
        lines.append("The simulation exceeds the bound: predictions are conservative for these engines.")
    if found["headroom"] is not None:
        lines += [
            "Next",
            f"  optmodels max-rate {plain(found['source'])} --trace LOG: simulate your own requests",
            f"  optmodels stress {plain(found['source'])} --inflate demand=1:1.5 --lose machine: test the plan further",
        ]
    return lines
