"""`explain`: why there is no plan, or what limits it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import optmodels
from optmodels.cli.console import answer, one_line
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
    """The current question on stderr: one live line on a terminal, otherwise a line where the question changes."""
    from optmodels.errors import printable

    live, last = sys.stderr.isatty(), ""
    with one_line() as write:

        def on_step(text: str) -> None:
            nonlocal last
            what = text.partition(" · ")[0]
            if live:
                write(printable(text))
            elif what != last:
                sys.stderr.write(f"{printable(text)}\n")
            last = what

        yield on_step
