"""One self-contained HTML page for a result, a comparison or a sweep.

Names of users are escaped by the template, appear in charts as data only, and could not run if they were not: the
content security policy allows the page's own scripts by their hash, no ``eval``, and no address at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from optmodels.io.write import write_text
from optmodels.reporting.charts import CONFIG, Chart, save_chart
from optmodels.reporting.page.articles import Article, Code
from optmodels.reporting.page.documents import articles, as_written
from optmodels.reporting.page.words import Paragraph, WordGrid

__all__ = ["articles", "as_written", "render", "write_page"]


@dataclass(frozen=True)
class _Picture:
    chart: Chart
    number: int


def render(found: Sequence[Article], title: str | None = None) -> str:
    """The page of some articles.

    Args:
        found: at least one article.
        title: title of the page; default: the only article's, or a count.
    """
    from markupsafe import Markup

    from optmodels.reporting.page import bundle

    pictures: list[_Picture] = []
    shown = [_typed(a, pictures) for a in found]
    script, style = _text("page.js"), _text("style.css")
    charting, allowed = "", [script]
    if pictures:
        charting, unpacked = bundle.packed()
        allowed.append(unpacked)  # page.js puts it into the page
    single = found[0] if len(found) == 1 else None
    # Marked as safe: this package's own files, the bundle out of vl-convert, and JSON without any `<`.
    return _template().render(
        articles=shown, title=title or (single.title if single else f"{len(found)} results"),
        kicker=single.kicker if single else "optmodels", badge=single.badge if single else None,
        policy=_policy(allowed, style), style=Markup(style), version=_version(),  # noqa: S704
        script=Markup(script), charting=charting,  # noqa: S704
        data=Markup(_json({"config": CONFIG, "specs": [p.chart.spec for p in pictures]})),  # noqa: S704
    )  # fmt: skip


def write_page(document: Any, folder: Path, *, pictures: bool = False, overwrite: bool = False) -> None:
    """Write ``report.html`` of a document into its folder, with `pictures` its charts as PNG."""
    (article,) = articles([document])
    write_text(folder / "report.html", render([article]), overwrite=overwrite)
    drawn = article.charts() if pictures else []
    names = [c.file for c in drawn]
    for i, picture in enumerate(drawn):
        again = names[:i].count(names[i])
        name = f"{names[i]}-{again + 1}" if again else names[i]
        save_chart(picture, folder / f"{name}.png", article.title, overwrite=overwrite)


def _typed(article: Article, pictures: list[_Picture]) -> dict[str, Any]:
    """The article as the template wants it: every item with its kind, charts numbered through the page."""

    kinds = {_Picture: "chart", WordGrid: "grid", Paragraph: "paragraph", Code: "code"}

    def typed(item: Any) -> tuple[str, Any]:
        if isinstance(item, Chart):
            item = _Picture(item, len(pictures))
            pictures.append(item)
        return kinds.get(type(item), "figures"), item

    sections = [
        {"title": s.title, "lead": s.lead, "typed": [typed(item) for item in s.items]} for s in article.sections
    ]
    return {"title": article.title, "kicker": article.kicker, "badge": article.badge, "sections": sections}


def _json(data: Mapping[str, Any]) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _policy(scripts: Iterable[str], style: str) -> str:
    """Everything forbidden but the page's own scripts and style, pictures out of data and the charts' drawings."""
    return "; ".join((
        "default-src 'none'",
        "script-src " + " ".join(_hash(s) for s in scripts),
        f"style-src {_hash(style)}",
        "style-src-attr 'unsafe-inline'",  # the charts place their parts by style attributes
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ))  # fmt: skip


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}'"


@cache
def _text(name: str) -> str:
    return (files("optmodels.reporting.page") / name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    return environment.from_string(_text("template.html.j2"))


def _version() -> str:
    from importlib.metadata import version

    return version("optmodels")
