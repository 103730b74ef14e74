"""The parts of every summary: text of users without markup or control characters, numbers, titled tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rich.markup import escape
from rich.table import Table

from optmodels.errors import printable
from optmodels.limits import figure

CALLED = {  # names in documents, without their units, that state less than they should
    "mean_latency": "mean_TTFT", "step": "step_of_the_engine", "wait": "wait_before_prefill",
    "ce_capped": "cost_efficiency,_capped_at_the_SLO", "ce_uncapped": "cost_efficiency,_uncapped",
    "penalty": "penalties", "change": "changes_between_periods",
}  # fmt: skip

DIGITS = 12  # more than a number for people usually has, at most
SHORT_STATUS = {"no_solution_found": "no plan"}  # in tables of many runs


def plain(text: object) -> str:
    """Text that prints as itself: rich markup escaped, control characters replaced."""
    return escape(printable(str(text)))


def short(value: object) -> str:
    """A number for people; nothing for None and NaN; else the text."""
    if value is None or value != value:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return figure(value)


def seconds(value: float, more: int = 0) -> str:
    """A latency for people: ms below a second; with this many more digits than usual."""
    return f"{value * 1e3:.{3 + more}g} ms" if value < 0.9995 else f"{value:.{4 + more}g} s"


def told_apart(one: float, other: float, text: Callable[[float, int], str] = seconds) -> tuple[str, str]:
    """A number and the most it may be, with as many digits as it takes to see that it is larger, if it is.

    Args:
        one: a number.
        other: its upper limit.
        text: text of a number, with this many more digits than usual.
    """
    texts = text(one, 0), text(other, 0)
    for more in range(1, DIGITS):
        if texts[0] != texts[1] or one <= other * (1 + 1e-6):
            break
        texts = text(one, more), text(other, more)
    return texts


def beside_limit(value_s: float, limit_s: float, quantile: float | None) -> str:
    """A latency next to the most it may be, as markup: green where it is kept."""
    colour, at = "green" if value_s <= limit_s * (1 + 1e-6) else "red", f" (p{100 * quantile:g})" if quantile else ""
    value, limit = told_apart(value_s, limit_s)
    return f"[{colour}]{value}[/{colour}] of {limit}{at}"


def titled(title: str | None, *columns: str, **looks: Any) -> Table:
    """A table with its title above the first column; `looks` as in rich."""
    return Table(*columns, title=title, title_justify="left", title_style="bold", **looks)


def first_lines(lines: list[str], most: int = 20) -> list[str]:
    """At most this many lines, and how many are left out."""
    more = len(lines) - most
    return [*lines[:most], f"  and {more:,} more"] if more > 0 else lines


def as_html(lines: Iterable[Any]) -> str:
    """Lines and tables of a terminal summary as one block of HTML with their styles; names of users are escaped."""
    from io import StringIO

    from rich.console import Console

    console = Console(record=True, file=StringIO(), width=110, force_jupyter=False, emoji=False, highlight=False)
    for line in lines:
        console.print(line)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
