"""The article of a comparison: every method on every instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from optmodels.errors import printable
from optmodels.reporting.charts.comparison import charts, instance_name
from optmodels.reporting.page.articles import Article, Section
from optmodels.reporting.page.figures import Figure, number
from optmodels.reporting.page.words import Paragraph, Span, WordGrid, made, spaced
from optmodels.reporting.text import SHORT_STATUS

INSTANCES_SHOWN = 100  # a table of every instance; beyond, only the summary by method


def of_comparison(rows: Sequence[Mapping[str, Any]]) -> Article:
    """The article of compare rows."""
    instances = list(dict.fromkeys(str(r["instance"]) for r in rows))
    methods = list(dict.fromkeys(str(r["method"]) for r in rows))
    title = f"{len(methods)} methods on {len(instances)} problem{'s' * (len(instances) != 1)}"
    forms = ", ".join(dict.fromkeys(spaced(r["formulation"]) for r in rows))
    article = Article(title, f"Comparison · {forms}")
    article.sections.append(
        Section("In short", [Paragraph([Span(_short(rows, methods), "")]), _figures(rows)], lead=True)
    )
    article.sections.append(Section("Methods", [_by_method(rows, methods)]))
    article.sections.append(Section("Charts", list(charts(rows))))
    shown = instances[:INSTANCES_SHOWN]
    tables: list[WordGrid | Paragraph] = [_of_instance([r for r in rows if str(r["instance"]) == i], i) for i in shown]
    if len(instances) > len(shown):
        tables.append(Paragraph([Span(f"{len(instances) - len(shown)} more problems are in compare.csv.", "dim")]))
    article.sections.append(Section("Problems", list(tables)))
    article.reproduce(["optmodels", "compare", *instances, "--methods", ",".join(methods), *_seeds(rows)])
    return article


def _seeds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The option that runs the same seeds."""
    seeds = list(dict.fromkeys(str(r.get("seed", 0)) for r in rows))
    if seeds == ["0"]:
        return []
    return ["--seed" if len(seeds) == 1 else "--seeds", ",".join(seeds)]


def _short(rows: Sequence[Mapping[str, Any]], methods: list[str]) -> str:
    """The comparison in a sentence or two."""
    proved = {r["instance"] for r in rows if r["status"] in ("optimal", "infeasible")}
    total = len({r["instance"] for r in rows})
    means = []
    for m in methods:
        gaps = [r["gap_to_bound"] for r in rows if r["method"] == m and r.get("gap_to_bound") is not None]
        if gaps:
            means.append((sum(gaps) / len(gaps), m, len(gaps)))
    means.sort()
    text = f"{len(proved)} of {total} problem{'s' * (total != 1)} settled with proof."
    if means:
        nearest, method, count = means[0]
        furthest, last, last_count = means[-1]
        if len(means) > 1 and f"{nearest:.2%}" == f"{furthest:.2%}":
            text += f" All methods are {nearest:.2%} from the certified bound on average."
        else:
            text += f" Nearest to the certified bound on average: {method} ({nearest:.2%} over {count})"
            text += f"; furthest: {last} ({furthest:.2%} over {last_count})." if len(means) > 1 else "."
    return printable(text, 1000)


def _figures(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    failed = sum(r["check"] is not None and not r["check"]["ok"] for r in rows)
    seconds = sum(r["seconds"]["total"] for r in rows)
    return [
        Figure("Runs", number(len(rows)), ""),
        Figure("Runs with a plan", number(sum(r["objective"] is not None for r in rows)), ""),
        Figure("Plans that failed the check", number(failed), ""),
        Figure("Time of all runs", number(float(seconds)), "s"),
    ]


def _by_method(rows: Sequence[Mapping[str, Any]], methods: list[str]) -> WordGrid:
    lines = []
    for m in methods:
        mine = [r for r in rows if r["method"] == m]
        gaps = [r["gap_to_bound"] for r in mine if r.get("gap_to_bound") is not None]
        seconds = [r["seconds"]["total"] for r in mine]
        lines.append([
            m, sum(r["objective"] is not None for r in mine), sum(r["status"] == "optimal" for r in mine),
            *(_percent(of(gaps) if gaps else None) for of in (mean, median, max)),
            f"{median(seconds):.3g}", f"{max(seconds):.3g}",
        ])  # fmt: skip
    columns = [
        "method",
        "with a plan",
        "proved",
        "mean gap",
        "median gap",
        "worst gap",
        "median s",
        "longest s",
    ]
    return made("Every method over all problems; gaps are to the best proved bound", columns, lines)


def _of_instance(rows: Sequence[Mapping[str, Any]], instance: str) -> WordGrid:
    unit, several = rows[0]["unit"], len({r.get("seed", 0) for r in rows}) > 1
    lines = [
        [r["method"], *([str(r["seed"])] if several else []), SHORT_STATUS.get(r["status"], r["status"])
         + (", check FAILED" if r["check"] is not None and not r["check"]["ok"] else ""),
         None if r["objective"] is None else number(float(r["objective"])),
         None if r["bound"] is None else number(float(r["bound"])), _percent(r.get("gap_to_bound")),
         f"{r['seconds']['total']:.3g}", r.get("headline", "")]
        for r in rows
    ]  # fmt: skip
    columns = [
        "method",
        *(["seed"] if several else []),
        "status",
        f"objective, {unit}",
        "bound",
        "gap to bound",
        "seconds",
        "plan",
    ]
    return made(f"{instance_name(rows[0])} ({instance})", columns, lines)


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.2%}"
