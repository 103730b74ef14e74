"""`measure`: benchmark results as a file that `calibrate` reads."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb
from optmodels.errors import InputError, Mistake


@verb("files")
def measure(
    given: dict[str, Any], as_json: Json = False,
    model: Annotated[str | None, typer.Option("--model", hidden=True)] = None,
) -> int:  # fmt: skip
    """Read benchmark results into a file for `calibrate`. `rows-to-measure` prints the commands of benchmarks."""
    from optmodels.reporting.latencies import measured_lines

    if model is not None:
        expected = (
            "result files: measure reads what benchmarks wrote; `optmodels rows-to-measure` prints their commands"
        )
        raise InputError(Mistake(None, "--model", model, expected))
    answer(lambda: optmodels.measure(**given), as_json, measured_lines)
    return 0
