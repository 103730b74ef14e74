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
    room = "" if found["headroom"] is None else f", planned {now:.4g}; headroom {found['headroom']:+.1%}"
    lines = [
        f"[bold]Largest rate within the SLOs: {first['requests_per_s']:.4g} requests/s[/bold] ({how}{plain(of)}){room}"
    ]
    lines += [f"  of {plain(found['fleet'])}"] if "fleet" in found else []
    rows = [("planned shares, predicted", found["planned_shares"]["requests_per_s"], "")]
    if seen:
        fails = "" if seen["fails_at"] is None else f"misses at {seen['fails_at']:.4g}: {plain(seen['missed'] or '')}"
        rows.append(("planned shares, simulated", seen["requests_per_s"], fails))
    proved = "" if bound is None else f"bound {bound:.4g}: no split of the requests exceeds it"
    rows.append(("best shares, predicted", best["requests_per_s"], proved))
    lines += [f"  {name:<28}{rate:>10.4g}  [dim]{more}[/dim]".rstrip() for name, rate, more in rows]
    if seen and bound is not None and seen["requests_per_s"] > bound * (1 + 1e-6):
        lines.append("The simulation exceeds the bound: predictions are conservative for these engines.")
    return lines
