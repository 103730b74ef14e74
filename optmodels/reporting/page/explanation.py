"""The article of an explanation: why there is no plan, or the limits that the plan depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from optmodels.reporting.charts.explanation import charts
from optmodels.reporting.page.articles import Article, Section, instance_of
from optmodels.reporting.page.figures import number
from optmodels.reporting.page.words import Paragraph, Span, WordGrid, cut, made, spaced

BADGES = {"feasible": ("good", "there is a plan"), "infeasible": ("bad", "infeasible, proved")}


def of_explanation(document: Mapping[str, Any]) -> Article:
    """The article of an explanation document; every sentence in it is the document's own."""
    title = document.get("title") or document.get("instance") or "Explanation"
    badge = BADGES.get(document["status"], ("warn", "neither a plan nor a proof"))
    article = Article(cut(str(title), 300), f"Explanation · {spaced(document['formulation'])}", badge)
    lead = [_line(document["words"])]
    if document.get("headline") and document["headline"] not in document["words"]:
        lead.append(_line(document["headline"]))
    for conflict in document.get("conflicts") or []:
        proof = "none can be left out: proved" if conflict["irreducible"] else "not proved to be the fewest"
        many = "Cannot hold together" if len(conflict["members"]) > 1 else "Nothing meets this"
        lead.append(_line(f"{many} ({proof})", (m["words"] for m in conflict["members"])))
    if document.get("restored_words"):
        lead.append(_line(document["restored_words"]))
    article.sections.append(Section("The answer", lead, lead=True))
    changes = []
    if document.get("alone"):
        changes.append(_line("Enough, each alone", (a["words"] for a in document["alone"])))
    if document.get("jointly"):
        changes.append(_line(f"Cheapest together: {document['jointly']['words']}"))
    if changes:
        article.sections.append(Section("What would restore a plan", changes))
    drawn = charts(document)
    if drawn:
        article.sections.append(Section("Charts", drawn))
    tables = _tables(document)
    if tables:
        article.sections.append(Section("Limits, prices and next plans", tables))
    notes = [_line(f"Not examined: {s}") for s in document.get("skipped") or []]
    notes += [_line("How the words are meant", (f"{k}: {v}" for k, v in (document.get("definitions") or {}).items()))]
    solves = f"{document.get('solves', 0):,} solves in {document.get('seconds', 0.0):.3g} s."
    article.sections.append(Section("How it was found", [_line(solves), *notes]))
    article.reproduce(["optmodels", "explain", document.get("instance", "")], *instance_of(document))
    return article


def _line(text: str, items: Iterable[str] = ()) -> Paragraph:
    return Paragraph([Span(cut(text, 2000))], [[Span(cut(i, 2000))] for i in items])


def _tables(document: Mapping[str, Any]) -> list[WordGrid | Paragraph]:
    found: list[WordGrid | Paragraph] = []
    limits = document.get("limits") or []
    binding = [line["words"] for line in limits if line["binds"] is not False]
    if binding:
        found.append(_line("What binds", binding))
    if limits:
        rows = [
            [line["limit"]["name"], line["limit"]["path"], line["limit"]["value"], line["limit"]["unit"],
             {True: "binds", False: "no", None: "not found out"}[line["binds"]], _number(line.get("gain_of_step")),
             _number(line.get("gain_without"))] for line in limits
        ]  # fmt: skip
        columns = ["limit", "where", "value", "unit", "binds", "gain of a step", "gain without it"]
        found.append(made(f"Limits; gains in {document.get('unit', '')}", columns, rows))
    if document.get("prices"):
        rows = [[p["name"], _number(p["value"]), _number(p["low"]), _number(p["high"]), p["unit"], p["words"]]
                for p in document["prices"]]  # fmt: skip
        columns = ["price", "today", "down to", "up to", "unit", "in words"]
        found.append(made("Prices, and how far each can move alone", columns, rows))
    if document.get("next_plans"):
        rows = [[_number(n["objective"]), n["headline"], n["words"]] for n in document["next_plans"]]
        found.append(made("Next best plans", ["objective", "plan", "in words"], rows))
    return found


def _number(value: Any) -> str | None:
    return None if value is None else number(float(value))
