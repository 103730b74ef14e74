"""`explain`: why there is no plan, or what limits it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb


@verb("problem")
def explain(given: dict[str, Any], as_json: Json = False) -> int:
    """Explain why there is no plan, or what limits the plan. It finds the least change that gives a plan, or the
    binding constraints, their shadow prices and the next best plans."""
    from optmodels.reporting.explanation import summary

    with steps() as on_step:
        found = answer(
            lambda: optmodels.explain(**given, on_step=on_step), as_json,
            lambda document: summary(document.model_dump(mode="json", by_alias=True)),
            lambda document: document.to_json(),
        )  # fmt: skip
    return found.exit_status


@contextmanager
def steps() -> Iterator[Any]:
    """The current question on stderr: a live line on a terminal, otherwise a line where the question changes."""
    from rich.console import Console

    from optmodels.errors import printable

    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status("…") as status:
            yield lambda text: status.update(printable(text))
        return
    last = [""]

    def on_step(text: str) -> None:
        what = text.partition(" · ")[0]
        if what != last[0]:
            last[0] = what
            sys.stderr.write(f"{printable(text)}\n")

    yield on_step
