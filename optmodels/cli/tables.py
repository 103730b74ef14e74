"""`tables`: a problem's operating points, or any curve as a table with certified error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import optmodels
from optmodels.cli.console import answer, show
from optmodels.cli.options import Force, Json, OutFile, Where, pairs
from optmodels.io.write import json_text


def tables(
    source: Annotated[Path, typer.Argument(help="Problem file; or, with --x, a CSV/Parquet curve or a latency model.")],
    x: Annotated[str | None, typer.Option(help="First axis: a column; of a model NAME=FIRST:LAST[:STEP].")] = None,
    y: Annotated[str | None, typer.Option(help="The latency or throughput: a column, or a model's target.")] = None,
    z: Annotated[str | None, typer.Option(help="A second axis, e.g. context_tokens.")] = None,
    max_error: Annotated[float | None, typer.Option(help="Largest relative error, e.g. 0.02.")] = None,
    segments: Annotated[int | None, typer.Option(help="Or the number of segments (one axis).")] = None,
    set: Annotated[list[str] | None, typer.Option("--set", help="With a model: another input, NAME=VALUE.")] = None,
    safety: Annotated[float | None, typer.Option(help="With a model: prediction quantile.")] = None,
    out: OutFile = None,
    plot: Annotated[Path | None, typer.Option(help="Picture to write (one axis).")] = None,
    where: Where = None,
    rows: Annotated[int, typer.Option(help="With a problem file: number of operating points to show.")] = 8,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Tabulate latencies linearised with a certified error. It reads a problem file, a curve or a model."""
    from optmodels.reporting.latencies import curve_document, curve_lines

    how: dict[str, Any] = {
        "y": y, "z": z, "max_error": max_error, "segments": segments, "set": pairs(set, "--set"), "safety": safety,
        "out": out, "plot": plot, "where": pairs(where, "--where"), "force": force,
    }  # fmt: skip
    if x is None:
        return _of_an_instance(source, how, rows, as_json)
    notes: list[str] = []
    answer(
        lambda: optmodels.tables(source, x=x, **how, on_note=notes.append), as_json,
        lambda found: curve_lines(found, notes), lambda found: json_text(curve_document(found, notes)),
    )  # fmt: skip
    return 0


def _of_an_instance(source: Path, how: dict[str, Any], rows: int, as_json: bool) -> int:
    """Operating points at their best α, and the linearised curves with certified error."""
    from optmodels.api.tables import USUAL_ERROR, frames_of
    from optmodels.loading import load

    problem = load(source)
    max_error = USUAL_ERROR if how["max_error"] is None else how["max_error"]
    frame, curves, worst = frames_of(problem, optmodels.tables(problem, **how), max_error)
    if as_json:
        document: dict[str, Any] = {"instance": problem.name, "operating_points": frame.to_dict("records")}
        if curves is not None:
            document |= {"max_error": max_error, "certified_error": worst, "curves": curves.to_dict("records")}
        sys.stdout.write(json_text(document) + "\n")
        return 0
    line = f"{len(frame)} operating points, shown at most {rows}"
    if curves is not None:
        line += f"; {curves['configuration'].nunique()} latency curves linearised at {len(curves)} nodes,"
        line += f" certified relative error ≤ {worst:.2g} (asked {max_error:.2g})"
    show([line, "", _shown(frame, rows)])
    return 0


def _shown(frame: Any, rows: int) -> Any:
    """The first rows of a data frame as a table."""
    from optmodels.reporting.text import plain, short, titled

    table = titled(None, *map(plain, frame.columns), box=None)
    for row in frame.head(rows).astype(object).itertuples(index=False):
        table.add_row(*(plain(short(value)) for value in row))
    return table
