"""What the `tables` verb shows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def show_tables(source: Path, max_error: float, out: Path | None, rows: int, as_json: bool, force: bool) -> int:
    """Operating points at their best α, and the linearised curves with certified error."""
    from optmodels import api, formulation
    from optmodels.cli.console import show
    from optmodels.errors import InputError, Mistake
    from optmodels.io.write import data_frame, refuse_existing, write_frame
    from optmodels.loading import load

    if not 0 < max_error < 1:
        raise InputError(Mistake(None, "--max-error", max_error, "a relative error > 0 and < 1"))
    problem = load(source)
    form, tables = formulation.get(problem.formulation), api.tables(problem)
    frame = data_frame(next(iter(form.frames(tables, None).values())))
    if form.curves is None:  # points at fixed α, nothing to linearise
        if out is not None:
            write_frame(out, frame, overwrite=force)
        if as_json:
            document = {"instance": problem.name, "operating_points": frame.to_dict("records")}
            sys.stdout.write(api.to_json(document) + "\n")
        else:
            show([_shown(frame, rows), "", f"{len(frame)} operating points, shown at most {rows}"])
        return 0
    curves, worst = form.curves(tables, max_error)
    if out is not None:
        beside = out.with_name(f"{out.stem}-curves{out.suffix}")
        if not force:  # both or neither
            refuse_existing(out, beside)
        write_frame(out, frame, overwrite=force)
        write_frame(beside, curves, overwrite=force)
    if as_json:
        document = {
            "instance": problem.name, "max_error": max_error, "certified_error": worst,
            "operating_points": frame.to_dict("records"), "curves": curves.to_dict("records"),
        }  # fmt: skip
        sys.stdout.write(api.to_json(document) + "\n")
        return 0
    show([_shown(frame, rows), "",
          f"{len(frame)} operating points, shown at most {rows}; {curves['configuration'].nunique()} latency curves"
          f" linearised at {len(curves)} nodes,"
          f" certified relative error ≤ {worst:.2g} (asked {max_error:.2g})"])  # fmt: skip
    return 0


def _shown(frame: Any, rows: int) -> Any:
    """The first rows of a data frame as a table."""
    from optmodels.reporting.text import plain, short, titled

    table = titled(None, *map(plain, frame.columns), box=None)
    for row in frame.head(rows).astype(object).itertuples(index=False):
        table.add_row(*(plain(short(value)) for value in row))
    return table
