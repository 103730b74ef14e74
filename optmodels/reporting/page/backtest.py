"""The article of a backtest: autoscalers on a history of requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optmodels.reporting.backtest import backtest_chart, backtest_lines
from optmodels.reporting.page.articles import Article, Section
from optmodels.reporting.page.figures import Figure, number
from optmodels.reporting.page.words import Paragraph, WordGrid, cut, made, spans

AFTER = "Attained:"  # the line of the terminal's text after its table


def of_backtest(document: Mapping[str, Any]) -> Article:
    """The article of a backtest document."""
    name = Path(str(document["history"])).name or "a history"
    article = Article(cut(f"Autoscalers on {name}", 300), "backtest")
    lines = backtest_lines(document)
    after = next(i for i, x in enumerate(lines) if x.startswith(AFTER))
    parts = lines[: lines.index("")], lines[after : lines.index("Next")]
    first, last = ([Paragraph(spans(x.strip())) for x in part if x] for part in parts)
    figures = [
        Figure("Hindsight", number(float(document["hindsight_usd"])), "USD"),
        Figure("Test days", number(document["judge_min"] / 1440), ""),
        Figure("Goal within the SLO", number(float(document["goal"]), "%"), "%"),
    ]
    article.sections.append(Section("In short", [*first, figures], lead=True))
    article.sections.append(Section("Cost and SLO attainment", [backtest_chart(document)]))
    rows = sorted(document["rows"], key=lambda r: (r["attained"] < document["goal"], r["over_hindsight"]))
    article.sections.append(Section("Autoscalers", [_table(rows)]))
    article.sections.append(Section("How sure", last))
    one, tuned = document["replica"], any(r["tuned"] for r in rows)
    article.reproduce([
        "optmodels", "backtest", "--replica", f"{one['requests_per_s']:g}:{one['usd_per_hour']:g}",
        "--history", document["history"], "--train", f"{document['train_min']}m", "--judge",
        f"{document['judge_min']}m", "--lead", f"{one['start_min']}m", "--drain", f"{one['drain_min']}m",
        "--slack", f"{one['slack_s']:g}", "--goal", f"{document['goal']:g}", *(["--tune"] if tuned else []),
        "--methods", ",".join(document["frontiers"]),
    ])  # fmt: skip
    return article


def _table(rows: list[Mapping[str, Any]]) -> WordGrid:
    names = ["autoscaler", "setting", "within the SLO, %", "× hindsight", "USD", "changes", "worst minute, %"]
    lines = [
        [r["method"], ("tuned: " if r["tuned"] else "") + ", ".join(f"{k} {v:g}" for k, v in r["setting"].items()),
         f"{100 * r['attained']:.2f}", f"{r['over_hindsight']:.3f}", f"{r['usd']:,.0f}", f"{r['changes']:,}",
         f"{100 * r['worst_minute']:.0f}"]
        for r in rows
    ]  # fmt: skip
    return made("", names, lines)
