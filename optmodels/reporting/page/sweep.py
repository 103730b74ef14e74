"""The article of a sweep: many solves with some fields varied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optmodels.reporting.charts.sweep import charts, value_of
from optmodels.reporting.page.articles import STATUS_WORDS, Article, Section, instance_of
from optmodels.reporting.page.figures import Figure, number
from optmodels.reporting.page.words import Paragraph, Span, WordGrid, cut, made, spaced
from optmodels.reporting.quantities import title as title_of

ROWS_SHOWN = 300


def of_sweep(document: Mapping[str, Any]) -> Article:
    """The article of a sweep document (sweep.json)."""
    rows, keys = document["rows"], list(document["keys"])
    title = document.get("problem", {}).get("title") or Path(str(document["instance"])).stem
    article = Article(cut(f"Sweep of {title}", 300), f"{spaced(document['formulation'])} · method {document['method']}")
    counts = {s: sum(r["status"] == s for r in rows) for s in dict.fromkeys(r["status"] for r in rows)}
    said = ", ".join(f"{n} {STATUS_WORDS.get(s, ('', s))[1]}" for s, n in counts.items())
    what = f"{len(rows)} solves over {'; '.join(title_of(k) for k in keys)}: {said}."
    failed = sum(r.get("check") is not None and not r["check"]["ok"] for r in rows)
    objectives = [r["objective"] for r in rows if r.get("objective") is not None]
    figures = [Figure("Solves", number(len(rows)), ""), Figure("With a plan", number(len(objectives)), ""),
               Figure("Plans that failed the check", number(failed), "")]  # fmt: skip
    if objectives:
        best = min(objectives) if document["sense"] == "min" else max(objectives)
        figures.append(Figure("Best objective", number(float(best)), document["unit"]))
    article.sections.append(Section("In short", [Paragraph([Span(cut(what, 2000))]), figures], lead=True))
    drawn = charts(document)
    if drawn:
        article.sections.append(Section("Charts", drawn))
    aims = [a["column"] for a in document.get("pareto") or []]
    if aims:
        front = sorted((r for r in rows if r.get("frontier")), key=lambda r: value_of(r, aims[0]))
        article.sections.append(Section("Frontier", [_table("What nothing beats", front, keys, aims)]))
    article.sections.append(Section("Solves", [_table("", rows, keys, [])]))
    words = ["optmodels", "sweep", str(document["instance"])]
    for text in document.get("vary") or []:
        words += ["--vary", str(text)]
    words += ["--method", str(document["method"])] if document["method"] != "exact" else []
    words += [
        w for k in ("seed", "time_limit") if document.get(k) for w in (f"--{k.replace('_', '-')}", str(document[k]))
    ]
    if aims:
        words += ["--pareto", ",".join(f"{a['column']}:{a['direction']}" for a in document["pareto"])]
    article.reproduce(words, *instance_of(document, "The problem that was varied"))
    return article


def _table(caption: str, rows: list[Mapping[str, Any]], keys: list[str], more: list[str]) -> WordGrid:
    columns = [*keys, *(c for c in more if c not in keys)]
    lines = [
        [*(_value(value_of(r, c)) for c in columns), STATUS_WORDS.get(r["status"], ("", r["status"]))[1],
         _value(r.get("objective")), _value(r.get("bound")), r.get("headline", "")]
        for r in rows[:ROWS_SHOWN]
    ]  # fmt: skip
    left = f"the first {ROWS_SHOWN} of {len(rows)}; all are in sweep.csv" if len(rows) > ROWS_SHOWN else ""
    names = [*(cut(title_of(c), 60) for c in columns), "status", "objective", "bound", "plan"]
    return made(". ".join(t for t in (caption, left) if t), names, lines)


def _value(value: Any) -> str | None:
    if value is None:
        return None
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
