"""The terminal text of a backtest: the decision first, then the table, then how sure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.reporting.charts import Chart, chart, coloured, rule
from optmodels.reporting.charts.channels import amounts, tips
from optmodels.reporting.colours import SERIES
from optmodels.reporting.decision import HOURS_PER_MONTH, rounded
from optmodels.reporting.text import plain

ROWS_SHOWN = 8
BESIDE = 0.06  # of the requests, below the goal, that the picture shows


def backtest_lines(found: Mapping[str, Any]) -> list[str]:
    """Lines for the terminal (rich markup)."""
    goal, replica, rows = found["goal"], found["replica"], found["rows"]
    reached = {m: c for m, c in found["at_goal"].items() if c is not None and m not in ("perfect",)}
    hours = found["judge_min"] / 60
    days = "1 day" if hours == 24 else f"{hours / 24:g} days"
    lines = []
    able = [r for r in rows if r["attained"] >= goal and r["method"] != "perfect"]
    if able:
        best = min(able, key=lambda r: r["usd"])
        lines += [
            f"[bold]{best['method']}{' (tuned)' * best['tuned']} meets the goal at the least cost:[/bold] "
            f"{best['usd']:,.0f} USD for {days} ≈ {rounded(best['usd'] / hours * HOURS_PER_MONTH):,.0f} USD/month",
            f"  {best['attained']:.2%} of the requests within the SLO, goal {goal:.2%}; {best['over_hindsight']:.2f} × "
            "the cost of hindsight, simulated",
        ]
    else:
        lines.append(f"[bold]No autoscaler has {goal:.2%} of the requests within the SLO.[/bold]")
    lines.append(f"  Hindsight, the least cost with perfect knowledge: {found['hindsight_usd']:,.0f} USD (exact).")
    what = (
        f"{replica['machines']}: ".replace(", )", ")").replace("on_demand", "on demand")
        if "machines" in replica
        else ""
    )
    lines.append(
        plain(
            f"  One replica: {what}{replica['requests_per_s']:.3g} requests/s within the SLO, "
            f"{replica['usd_per_hour']:.2f} USD/h, serves {replica['start_min']} min after its order."
        )
    )
    lines += [
        "",
        f"{'autoscaler':<18}{'setting':<32}{'attained':>10}{'× hindsight':>13}{'changes':>9}{'worst minute':>14}",
    ]
    ordered = sorted(rows, key=lambda r: (-(r["attained"] >= goal), r["over_hindsight"]))
    for r in ordered[:ROWS_SHOWN]:
        setting = ("tuned: " if r["tuned"] else "") + ", ".join(f"{k} {v:g}" for k, v in r["setting"].items())
        mark = " " if r["attained"] >= goal else "✗"
        lines.append(
            f"{r['method']:<18}{setting:<32}{r['attained']:>9.2%}{mark}{r['over_hindsight']:>13.3f}{r['changes']:>9,}"
            f"{r['worst_minute']:>14.0%}"
        )
    if ordered[ROWS_SHOWN:]:
        more = ", ".join(dict.fromkeys(r["method"] for r in ordered[ROWS_SHOWN:]))
        lines.append(f"… and {len(ordered) - ROWS_SHOWN} that cost more or miss the goal (--json): {more}")
    lines.append("Attained: share of the requests within the SLO. Changes: replicas ordered or stopped.")
    if len(found["frontiers"]) and any(len(f) > 1 for f in found["frontiers"].values()):
        at = ", ".join(f"{m} {c:.3f}" for m, c in sorted(reached.items(), key=lambda x: x[1]))
        lines += [
            "",
            f"Cost at exactly {goal:.2%} attained, over all settings, as a multiple of hindsight: {at or 'none'}.",
        ]
        never = [m for m, c in found["at_goal"].items() if c is None]
        if never:
            lines.append(f"No setting attained it: {', '.join(never)}.")
    forecast = found["forecast"]
    if forecast:
        cover = ", ".join(f"{c:.1%} (quantile {q})" for q, c in forecast["cover"].items())
        lines.append(f"Forecast of plan: {forecast['method']}. Minutes of the test days at or below it: {cover}.")
    lines += [plain(f"Note: {n}") for n in found["history_notes"]]
    lines += [
        "Simulated with a fluid queue in steps of 10 seconds. Differences below 1 % are noise.",
        "Next",
        "  --tune searches every autoscaler's settings; --manifests DIR writes them for HPA and KEDA",
    ]
    return lines


def backtest_chart(found: Mapping[str, Any]) -> Chart:
    """Cost next to the attained share: every setting of every autoscaler, a line for the best ones of each."""
    low, rows = max(found["goal"] - BESIDE, 0.0), []
    known = dict(found["frontiers"])
    for r in found["rows"]:  # those that were run as they are
        known.setdefault(r["method"], [(r["attained"], r["over_hindsight"])])
    for method, points in known.items():
        cheapest = None
        for attained, cost in sorted(points, key=lambda p: (-p[0], p[1])):
            best = cheapest is None or cost < cheapest
            cheapest = cost if cheapest is None else min(cheapest, cost)
            if attained >= low and best:
                rows.append({"method": method, "attained": attained, "cost": cost})
    shown = list(dict.fromkeys(r["method"] for r in rows))
    encoding = {
        "x": amounts("attained", "share of requests within the SLO", axis={"format": ".0%", "tickMinStep": 0.01},
                     scale={"domain": [low, 1.0]}),
        "y": amounts("cost", "cost, × hindsight", scale={"zero": False}),
        "color": coloured("method", shown),
        "shape": coloured("method", shown, ["circle"] * len(SERIES) + ["square"] * len(SERIES)),
        "tooltip": tips("method", ("attained", None, ".2%"), ("cost", None, ".3f")),
    }  # fmt: skip
    left = [m for m in known if m not in shown]
    caption = "Cost and share within the SLO of each autoscaler's best settings on the test days."
    caption += f" Below {low:.0%}: {', '.join(left)}." if left else ""
    return chart(
        "Autoscalers", caption, rows,
        {"layer": [{"mark": {"type": "line", "point": True}, "encoding": encoding}, rule(found["goal"], "the goal")]},
    )  # fmt: skip
