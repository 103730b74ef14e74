"""`measure`: benchmark results as a file that `calibrate` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Columns, Force, Json, OutFile, pairs
from optmodels.errors import InputError, Mistake


def measure(
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="Result files of a benchmark.")] = None,
    from_: Annotated[
        list[Path] | None, typer.Option("--from", help="Result file of a benchmark; may be repeated.")
    ] = None,
    format: Annotated[str | None, typer.Option("--format", help="Format of the files; default: detected.")] = None,
    set: Annotated[
        list[str] | None, typer.Option("--set", help="A value that the files lack, e.g. concurrency=16.")
    ] = None,
    column: Columns = None,
    tp: Annotated[
        int | None, typer.Option(min=1, help="Tensor-parallel degree of the runs, where the files do not state it.")
    ] = None,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Read runs with more than 5 % failed requests.")
    ] = False,
    model: Annotated[str | None, typer.Option("--model", hidden=True)] = None,
    out: OutFile = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Read benchmark results into a file for `calibrate`. `rows-to-measure` prints the commands of benchmarks."""
    from optmodels.reporting.latencies import measured_lines

    if model is not None:
        expected = (
            "result files: measure reads what benchmarks wrote; `optmodels rows-to-measure` prints their commands"
        )
        raise InputError(Mistake(None, "--model", model, expected))
    answer(
        lambda: optmodels.measure(
            files or [], from_=from_ or [], format=format, set=pairs(set, "--set"),
            column=pairs(column, "--column"), tp=tp, allow_failed=allow_failed, out=out, force=force,
        ),
        as_json, measured_lines,
    )  # fmt: skip
    return 0
