"""`tables`: a problem's operating points, or any curve as a table with certified error."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import optmodels
from optmodels.cli.console import answer, show
from optmodels.cli.options import Json, verb
from optmodels.io.write import json_text

Shown = Annotated[int, typer.Option(help="With a problem file: number of operating points to show.")]


@verb("source", source="Problem file; or, with --x, a CSV/Parquet curve or a latency model.")
def tables(given: dict[str, Any], rows: Shown = 8, as_json: Json = False) -> int:
    """Tabulate latencies linearised with a certified error. It reads a problem file, a curve or a model."""
    from optmodels.reporting.latencies import curve_document, curve_lines

    if "x" not in given:
        return _of_an_instance(given, rows, as_json)
    notes: list[str] = []
    answer(
        lambda: optmodels.tables(**given, on_note=notes.append), as_json,
        lambda found: curve_lines(found, notes), lambda found: json_text(curve_document(found, notes)),
    )  # fmt: skip
    return 0


def _of_an_instance(given: dict[str, Any], rows: int, as_json: bool) -> int:
    """Operating points at their best α, and the linearised curves with certified error."""
    from optmodels.api.tables import USUAL_ERROR, frames_of
    from optmodels.loading import load

    problem = load(given["source"])
    max_error = given.get("max_error", USUAL_ERROR)
    frame, curves, worst = frames_of(problem, optmodels.tables(**given | {"source": problem}), max_error)
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
