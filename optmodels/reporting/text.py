"""What every summary is made of: text of users without markup or control characters, numbers, titled tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.markup import escape
from rich.table import Table

from optmodels.errors import printable

CALLED = {"mean_latency": "mean_TTFT"}  # names in documents, without their units, that say less than they should


def plain(text: object) -> str:
    """Text that prints as itself: rich markup escaped, control characters replaced."""
    return escape(printable(str(text)))


def short(value: object) -> str:
    """A number with its thousands separated, a fraction in six digits; nothing for None and NaN; else the text."""
    if value is None or value != value:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def titled(title: str | None, *columns: str, **looks: Any) -> Table:
    """A table with its title above the first column; `looks` as in rich."""
    return Table(*columns, title=title, title_justify="left", title_style="bold", **looks)


def as_html(lines: Iterable[Any]) -> str:
    """Lines and tables of a terminal summary as one block of HTML with their styles; names of users are escaped."""
    from io import StringIO

    from rich.console import Console

    console = Console(record=True, file=StringIO(), width=110, force_jupyter=False, emoji=False, highlight=False)
    for line in lines:
        console.print(line)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
