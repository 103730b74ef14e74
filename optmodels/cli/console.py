"""Printing: results on stdout, progress and mistakes on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optmodels.errors import InputError
    from optmodels.solver.highs import Event


def report_mistakes(error: InputError) -> None:
    """The mistakes on stderr, each on its own line."""
    sys.stderr.write(f"{error}\n")


def show(items: list[Any]) -> None:
    """Rich renderables or markup on stdout; wide enough for tables when piped."""
    from rich.console import Console

    from optmodels.errors import printable

    console = Console(highlight=False, soft_wrap=True, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160, soft_wrap=True, emoji=False)
    for item in items:
        console.print(printable(item) if isinstance(item, str) else item)


@contextmanager
def progress(enabled: bool) -> Iterator[Any]:
    """Live incumbent and bound on stderr where it is a terminal; yields the callback, or None."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not enabled or not console.is_terminal:
        yield None
        return
    with console.status("tables …") as status:

        def on_event(event: Event) -> None:
            incumbent = "none" if event.objective is None else f"{event.objective:.6g}"
            bound = "none" if event.bound is None else f"{event.bound:.6g}"
            status.update(f"{event.seconds:.1f} s  incumbent {incumbent}  bound {bound}  nodes {event.nodes}")

        yield on_event


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
