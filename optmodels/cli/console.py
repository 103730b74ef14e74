"""Printing: results on stdout, progress and mistakes on stderr."""

from __future__ import annotations

import codecs
import io
import json
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from optmodels.errors import InputError, NotWrittenError
    from optmodels.solver.highs import Event

T = TypeVar("T")


def ready() -> None:
    """Make stdout and stderr such that nothing written to them is a fault, closed or of an old terminal."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        codecs.register_error("escaped", _escaped)
        sys.stdout.reconfigure(errors="escaped")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Characters that an encoding lacks as JSON writes them, so that documents stay what they are."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def report_mistakes(error: InputError) -> None:
    """The mistakes on stderr, each on its own line."""
    sys.stderr.write(f"{error}\n")


def attempted(call: Callable[[], T]) -> tuple[T, NotWrittenError | None]:
    """What a call returns and, where that could be found and not written, why: to be said once it is shown."""
    from optmodels.errors import NotWrittenError

    try:
        return call(), None
    except NotWrittenError as error:
        return error.result, error


def show(items: list[Any]) -> None:
    """Rich renderables or markup on stdout; wide enough for tables when piped."""
    from rich.console import Console

    from optmodels.errors import printable

    console = Console(highlight=False, soft_wrap=True, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160, soft_wrap=True, emoji=False)
    for item in items:
        console.print(printable(item) if isinstance(item, str) else item)


class Progress:
    """One live line on stderr: seconds, incumbent, bound and gap, from `AFTER_S` on and every `EVERY_S`."""

    AFTER_S, EVERY_S = 1.0, 0.25

    def __init__(self) -> None:
        self._began, self._last, self._done = time.perf_counter(), "tables …", threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """What a solver has found so far; a callback of `api.solve`."""
        from optmodels.solver.highs import relative_gap

        incumbent = "none" if event.objective is None else f"{event.objective:.6g}"
        bound = "none" if event.bound is None or not math.isfinite(event.bound) else f"{event.bound:.6g}"
        gap = relative_gap(event.objective, event.bound)
        within = "" if gap is None or not math.isfinite(gap) else f"  gap {gap:.2%}"
        self._last = f"incumbent {incumbent}  bound {bound}{within}  nodes {event.nodes}"

    def _tick(self) -> None:
        wait = self.AFTER_S
        while not self._done.wait(wait):
            text = f"{time.perf_counter() - self._began:.0f} s  {self._last}  (Ctrl-C: the best so far)"
            sys.stderr.write(f"\r{text[: shutil.get_terminal_size().columns - 1]}\x1b[K")
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
def counted() -> Iterator[Any]:
    """How many rows of a study there are and what the last one was, on stderr where it is a terminal."""
    from rich.console import Console

    from optmodels.reporting.text import plain

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield None
        return
    done = 0
    with console.status("tables …") as status:

        def on_row(row: Any) -> None:
            nonlocal done
            done += 1
            status.update(f"{done} runs done, last: {plain(row['instance'])} {plain(row['method'])}")

        yield on_row
