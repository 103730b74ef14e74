"""A terminal summary as blocks of a page: one text of a formulation serves both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rich.errors import MarkupError
from rich.table import Table
from rich.text import Text

from optmodels.errors import printable

CELL, LINE = 400, 2_000  # characters of a cell, of a line; longer ones are cut, with a mark
CLASSES = {"bold": "strong", "dim": "dim", "red": "bad", "green": "good", "yellow": "warn", "italic": "em"}


@dataclass(frozen=True)
class Span:
    """Some characters in one style; `style` holds CSS class names."""

    text: str
    style: str = ""


@dataclass
class Paragraph:
    """A line, with the indented lines below it as a list."""

    line: list[Span]
    items: list[list[Span]] = field(default_factory=list)


@dataclass(frozen=True)
class WordGrid:
    """A table; a column of numbers is aligned to the right."""

    caption: str
    columns: list[str]
    rows: list[list[list[Span]]]
    numeric: list[bool]


def cut(text: str, limit: int) -> str:
    """Text of at most `limit` characters and a note on the missing part."""
    text = printable(text)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def spans(item: Any, limit: int = LINE) -> list[Span]:
    """Rich markup (or a rich text) as styled spans; markup that is none is text."""
    try:
        text = item if isinstance(item, Text) else Text.from_markup(str(item), emoji=False)
    except MarkupError:
        text = Text(str(item))
    if len(text.plain) > limit:
        return [Span(cut(text.plain, limit))]
    plain = text.plain
    edges = sorted({0, len(plain), *(min(max(x, 0), len(plain)) for s in text.spans for x in (s.start, s.end))})
    found = []
    for start, end in pairwise(edges):
        words = {w for s in text.spans if s.start <= start and end <= s.end for w in str(s.style).split()}
        found.append(Span(printable(plain[start:end]), " ".join(CLASSES[w] for w in sorted(words) if w in CLASSES)))
    return found


def grid(table: Table) -> WordGrid:
    """A rich table as a grid."""
    columns = [_plain(c.header) for c in table.columns]
    cells = [[spans(cell, CELL) for cell in c._cells] for c in table.columns]
    rows = [list(row) for row in zip(*cells, strict=True)]
    return WordGrid(_plain(table.title or ""), columns, rows, _numeric(rows, len(columns)))


def made(caption: str, columns: list[str], rows: Iterable[Iterable[Any]]) -> WordGrid:
    """A grid of plain values."""
    cells = [[[Span(cut("" if v is None else str(v), CELL))] for v in row] for row in rows]
    return WordGrid(caption, columns, cells, _numeric(cells, len(columns)))


def spaced(name: object) -> str:
    """A name without its underscores: ``cost_efficiency`` as ``cost efficiency``."""
    return str(name).replace("_", " ")


def _plain(item: Any) -> str:
    return cut("".join(s.text for s in spans(item)), CELL)


def _numeric(rows: list[list[list[Span]]], width: int) -> list[bool]:
    """Columns whose cells all begin with a number (or are empty), one at least being one."""

    def kind(cell: list[Span]) -> bool | None:
        text = "".join(s.text for s in cell).strip()
        return None if not text else text.lstrip("-+−").replace(",", "")[:1].isdigit() and len(text) <= 24

    kinds = [[kind(row[c]) for row in rows] for c in range(width)]
    return [False not in k and True in k for k in kinds]


def blocks(renderables: Iterable[Any]) -> Iterator[Paragraph | WordGrid]:
    """Paragraphs and tables of a summary, in order."""
    current: Paragraph | None = None
    for item in renderables:
        if isinstance(item, Table):
            if current is not None:
                yield current
            current = None
            yield grid(item)
            continue
        for line in item if isinstance(item, list) else [item]:
            text = line.plain if isinstance(line, Text) else str(line)
            if not text.strip():
                if current is not None:
                    yield current
                current = None
            elif text.startswith("  ") and current is not None:
                current.items.append(spans(line.strip() if isinstance(line, str) else line))
            else:
                if current is not None:
                    yield current
                current = Paragraph(spans(line.strip() if isinstance(line, str) else line))
    if current is not None:
        yield current
