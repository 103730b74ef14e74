"""Printing: results on stdout, progress and mistakes on stderr."""

from __future__ import annotations

import codecs
import errno
import io
import json
import math
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from optmodels.errors import InputError, NotWrittenError
    from optmodels.solver.highs import Event

T = TypeVar("T")
VIOLATIONS_SHOWN = 20
QUANTITY = 18  # characters of a cell that is a number with its unit


def ready() -> None:
    """Make stdout and stderr such that nothing written to them is a fault, closed or of an old terminal."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    elif type(getattr(sys.stdout, "buffer", None)) in (io.BufferedWriter, io.FileIO) and not sys.stdout.isatty():
        sys.stdout.flush()
        to = io.BufferedWriter(_Read(sys.stdout.fileno(), "wb", closefd=False))
        sys.stdout = io.TextIOWrapper(to, sys.stdout.encoding, sys.stdout.errors)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        codecs.register_error("escaped", _escaped)
        sys.stdout.reconfigure(errors="escaped")


lost: list[OSError] = []  # errors that kept text from the screen


class _Read(io.FileIO):
    """A file, or a pipe whose reader may be gone (``| head``).

    A failed write never stops the command, which may have files to write. Other errors than a closed pipe are in
    `lost`, and `cli.run` reports them at the end.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # also for the final flush
            if error.errno not in (errno.EPIPE, errno.EINVAL):  # Windows reports the latter for such a pipe
                lost.append(error)
            return super().write(data)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Characters that an encoding lacks as JSON writes them, so that documents stay unchanged."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def report_mistakes(error: InputError) -> None:
    """The mistakes on stderr, each on its own line."""
    sys.stderr.write(f"{error}\n")


def attempted(call: Callable[[], T]) -> tuple[T, NotWrittenError | None]:
    """A call's result, and the reason why it was not written, if so: reported after the result."""
    from optmodels.errors import NotWrittenError

    try:
        return call(), None
    except NotWrittenError as error:
        return error.result, error


def answer(
    call: Callable[[], T], as_json: bool, lines: Callable[[T], Sequence[Any]], to_text: Callable[[T], str] | None = None
) -> T:
    """Call a verb, print its result and return it: one JSON document, or lines for people.

    Args:
        call: the verb.
        as_json: print the document.
        lines: the terminal's lines for the verb's result (`show`).
        to_text: the document as JSON text; None: as `json_text` writes it.

    Raises:
        NotWrittenError: a printed result could not be written.
    """
    from optmodels.io.write import json_text

    found, unwritten = attempted(call)
    if as_json:
        sys.stdout.write((to_text or json_text)(found) + "\n")
    else:
        show(lines(found))
    if unwritten is not None:
        raise unwritten
    return found


def show(items: Sequence[Any]) -> None:
    """Rich renderables or markup on stdout: wrapped to a terminal or to COLUMNS, else each text in one line."""
    from rich.console import Console
    from rich.table import Table

    from optmodels.errors import printable

    console = Console(highlight=False, soft_wrap=True, emoji=False)
    wrap = console.is_terminal or os.environ.get("COLUMNS", "").isdecimal()
    if not wrap:
        console = Console(highlight=False, width=160, soft_wrap=True, emoji=False)
    for item in items:
        texts = [printable(item)] if isinstance(item, str) else []
        if isinstance(item, Table):
            texts = _fit(item, console)
        for text in texts:
            for line in _wrapped(text, console.width) if wrap else [text]:
                console.print(line)
        if not isinstance(item, str) and not texts:
            console.print(item, soft_wrap=not wrap)


def _wrapped(markup: str, width: int) -> Iterator[Text]:
    """Its lines broken between words, each as far in as it begins; a word that is longer (a path) stays whole."""
    from rich.text import Text

    for line in Text.from_markup(markup, emoji=False).split(allow_blank=True):
        words = [m.span() for m in re.finditer(r"\S+", line.plain)]
        start = indent = words[0][0] if words else 0
        breaks = []
        for first, last in words:
            if last - start > width - indent and first > start:
                breaks.append(first)
                start = first
        for i, row in enumerate(line.divide(breaks)):
            row.rstrip()
            yield Text(" " * indent).append_text(row) if i else row


def _fit(table: Table, console: Console) -> list[str]:
    """Make a table that is too wide narrower: no lines between columns, and of each at least its longest word.

    A number stays on one line with its unit.

    Returns:
        Where not even the words fit: a text for every row, in place of the table; else nothing.
    """
    from rich.box import SIMPLE_HEAD
    from rich.text import Text

    if console.measure(table).maximum < console.width or not table.columns:
        return []
    cells = [[Text.from_markup(str(x)).plain for x in (c.header, *c.cells)] for c in table.columns]
    least = [max(len(word) for x in column for word in (_words(x) or [""])) for column in cells]
    most = [max(len(row) for x in column for row in (x.splitlines() or [""])) for column in cells]
    if sum(least) + 2 * len(cells) > console.width:
        return [*([f"[bold]{table.title}[/bold]"] if table.title else []), *_records(table)]
    if table.box is not None:
        table.box, table.show_edge, table.pad_edge, table.collapse_padding = SIMPLE_HEAD, False, False, True
    spare, wanted = console.width - 2 * len(cells) - sum(least), sum(most) - sum(least)
    for column, low, high in zip(table.columns, least, most, strict=True):
        column.width = low + (high - low) * min(spare, wanted) // max(1, wanted)
    return []


def _words(cell: str) -> list[str]:
    """What of a cell is not to be broken: words, or all of a short one that begins with a number."""
    return [cell] if len(cell) <= QUANTITY and re.match(r"[<≤>≥×+−-]*\d", cell) else cell.split()


def _records(table: Table) -> Iterator[str]:
    """Its rows as markup: the first cell, then every other that is not empty after the name of its column.

    A number in the first column needs the name of its column too.
    """
    heads = [" ".join(str(c.header).split()) for c in table.columns]
    for first, *others in zip(*(c.cells for c in table.columns), strict=True):
        if str(first)[:1].isdigit() and len(str(first)) <= QUANTITY:
            first = f"{heads[0]} {first}"
        said = [f"{head} {cell}".strip() for head, cell in zip(heads[1:], others, strict=True) if str(cell).strip()]
        yield f"[bold]{first}[/bold]  {'; '.join(said)}"


def at_a_terminal() -> bool:
    """Whether a person may be waiting for the output."""
    return sys.stdout.isatty() and sys.stderr.isatty()


class Progress:
    """One live line on stderr: seconds, incumbent, bound and gap, from `AFTER_S` on and every `EVERY_S`."""

    AFTER_S, EVERY_S = 1.0, 0.25

    def __init__(self) -> None:
        self._began, self._last, self._done = time.perf_counter(), "tables …", threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Progress of a solver; a callback of `api.solve`."""
        from optmodels.solver.highs import relative_gap

        incumbent = "none" if event.objective is None else f"{event.objective:.6g}"
        bound = "none" if event.bound is None or not math.isfinite(event.bound) else f"{event.bound:.6g}"
        gap = relative_gap(event.objective, event.bound)
        within = "" if gap is None or not math.isfinite(gap) else f"  gap {gap:.2%}"
        self._last = f"incumbent {incumbent}  bound {bound}{within}  nodes {event.nodes}"

    def _tick(self) -> None:
        wait = self.AFTER_S
        while not self._done.wait(wait):
            text = f"{time.perf_counter() - self._began:.0f} s  {self._last}"
            room = shutil.get_terminal_size().columns - 1
            hint = "  (Ctrl-C: the best so far)"
            sys.stderr.write(f"\r{(text + hint if len(text + hint) <= room else text)[:room]}\x1b[K")
            sys.stderr.flush()
            wait = self.EVERY_S

    def stop(self) -> None:
        """Take the line away; once is enough."""
        if not self._done.is_set():
            self._done.set()
            self._thread.join()
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@contextmanager
def progress(enabled: bool) -> Iterator[Progress | None]:
    """A live line on stderr where that is a terminal, else None."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    shown = Progress()
    try:
        yield shown
    finally:
        shown.stop()


@contextmanager
def one_line() -> Iterator[Callable[[str], None]]:
    """A line on stderr that the next replaces, where that is a terminal; yields what writes it."""
    live = sys.stderr.isatty()

    def write(line: str) -> None:
        if live:
            sys.stderr.write(f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K")
            sys.stderr.flush()

    yield write
    write("")


@contextmanager
def counted() -> Iterator[Callable[[Any], None]]:
    """Number of rows of a study and the last one, in one line."""
    from optmodels.errors import printable

    done = 0
    with one_line() as write:

        def on_row(row: Any) -> None:
            nonlocal done
            done += 1
            write(printable(f"{done} runs done, last: {row['instance']} {row['method']}"))

        yield on_row


def violation_lines(found: Any) -> list[str]:
    """Findings of a check, for the terminal: the first of many, each of a readable length."""
    from optmodels.errors import printable
    from optmodels.reporting.text import plain

    lines = [plain(printable(f"  {v.requirement}: {v.value} against {v.limit} {v.unit}", 400))
             for v in found[:VIOLATIONS_SHOWN]]  # fmt: skip
    more = len(found) - len(lines)
    return [*lines, f"  and {more:,} more, in the document"] if more else lines
