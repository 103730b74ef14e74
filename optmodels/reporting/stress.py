"""The terminal text and the picture of `stress`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.reporting.charts import Chart, chart, coloured
from optmodels.reporting.charts.channels import amounts, entries, tips
from optmodels.reporting.decision import cost_words
from optmodels.reporting.text import plain

ROWS_SHOWN = 8
KEPT = 2e-4  # of the requests: the gap of the solves


def stress_lines(found: Mapping[str, Any]) -> list[str]:
    """Lines for the terminal (rich markup)."""
    rows = found["scenarios"]
    kept = [r for r in rows if r["attained"] >= 1 - KEPT]
    worst = min(rows, key=lambda r: r["attained"])
    lines = [
        f"[bold]The plan meets every SLO in {len(kept)} of {len(rows)} scenarios.[/bold] "
        f"It costs {cost_words(found['usd_per_hour'])}.",
        f"  Worst: {plain(name_of(worst))}: {worst['attained']:.1%} of the requests within the SLO, predicted.",
        "",
        f"{'scenario':<46}{'attained':>10}  {'bucket with the least':<30}{'new plan, USD/h':>16}",
    ]
    shown = rows if len(rows) <= ROWS_SHOWN else sorted(rows, key=lambda r: r["attained"])[:ROWS_SHOWN]
    for r in shown:
        mark = " " if r["attained"] >= 1 - KEPT else "✗"
        least = "" if r["attained"] >= 1 - KEPT else f"{r['worst_attained']:.0%} of {r['worst']}"
        cost = "" if r["lost"] else "none" if r["usd_per_hour"] is None else f"{r['usd_per_hour']:,.2f}"
        lines.append(plain(f"{name_of(r)[:45]:<46}{r['attained']:>9.1%}{mark}  {least[:29]:<30}{cost:>16}"))
    if len(rows) > len(shown):
        least_left = min(r["attained"] for r in rows if r not in shown)
        lines.append(f"… and {len(rows) - len(shown)} scenarios with at least {least_left:.1%}; --json lists all")
    lines += [
        "Attained: share of the requests within the SLO, by the best routing to the engines that are left.",
        "New plan: cost of the cheapest plan for that scenario.",
    ]
    if found["frontier"]:
        lines += ["", f"Plans on {found['draws']} random draws of demand and slow machines:",
                  f"{'plan':<34}{'USD/h':>12}{'unserved, mean':>16}{'worst':>8}{'draws served':>14}"]  # fmt: skip
        for r in found["frontier"]:
            lines.append(plain(
                f"{plan_name(r):<34}{r['usd_per_hour']:>12,.2f}{r['unserved']:>16.2%}{r['worst']:>8.1%}{r['kept']:>14.0%}"
            ))  # fmt: skip
        lines += ["", "Cost in USD/h by the mean unserved share allowed"]
        for share, costs in found["cost_at_unserved"].items():
            each = ", ".join(f"{kind} {usd:,.2f}" for kind, usd in costs.items() if usd is not None)
            lines.append(f"  {float(share):.1%}: {plain(each) or 'none'}")
    return lines


def plan_name(row: Mapping[str, Any]) -> str:
    """A plan of the frontier in words."""
    value = row["setting"]
    match row["kind"]:
        case "plan":
            return "this plan"
        case "uniform margin":
            return f"uniform margin × {value:.3g}"
        case "scenarios":
            return f"scenarios, {value:.3g} unserved"
        case kind:
            return f"{kind}, quantile {value:g}"


def name_of(row: Mapping[str, Any]) -> str:
    """A scenario in words."""
    if row["lost"]:
        return f"without {row['lost']}".replace("(on_demand)", "(on demand)")
    return f"demand × {row['demand']:g}, latency × {row['latency']:g}"


def stress_chart(found: Mapping[str, Any]) -> Chart:
    """Attained share of every scenario."""
    rows = [
        {"scenario": name_of(r), "attained": r["attained"], "usd": r["usd_per_hour"],
         "verdict": "every SLO met" if r["attained"] >= 1 - KEPT else "SLOs missed"}
        for r in found["scenarios"]
    ]  # fmt: skip
    encoding = {
        "y": entries("scenario", sort=[r["scenario"] for r in rows]),
        "x": amounts("attained", "share of requests within the SLO", ".0%", scale={"domain": [0, 1]}),
        "color": coloured("verdict", ["every SLO met", "SLOs missed"], ["#4477aa", "#ee6677"]),
        "tooltip": tips("scenario", ("attained", None, ".2%"), ("usd", "plan for it, USD/h", ",.2f")),
    }  # fmt: skip
    return chart(
        "Stress", "Share of the requests that the plan's engines serve within the SLOs in each scenario.", rows,
        {"mark": {"type": "bar", "height": {"band": 0.7}}, "encoding": encoding}, height=max(90, 24 * len(rows)),
    )  # fmt: skip


def frontier_chart(found: Mapping[str, Any]) -> Chart:
    """Cost next to the unserved share, a line for each kind of plan."""
    rows = [
        {"kind": r["kind"], "plan": plan_name(r), "usd": r["usd_per_hour"], "unserved": r["unserved"]}
        for r in found["frontier"]
    ]  # fmt: skip
    encoding = {
        "x": amounts("unserved", "unserved share, mean over the draws", ".1%"),
        "y": amounts("usd", "USD/h", scale={"zero": False}),
        "color": {"field": "kind", "type": "nominal", "title": None},
        "tooltip": tips("plan", ("usd", None, ",.2f"), ("unserved", None, ".2%")),
    }  # fmt: skip
    return chart(
        "Frontier", f"Cost and unserved share of plans on {found['draws']} draws of demand and slow machines.", rows,
        {"mark": {"type": "line", "point": True}, "encoding": encoding},
    )  # fmt: skip
