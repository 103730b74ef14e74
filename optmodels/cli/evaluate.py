"""`evaluate`: today's deployments next to the best plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Columns, First, Json, RateFactor, Seed, SkipBad, TimeLimit, Where, reading


def evaluate(
    current: Annotated[Path, typer.Argument(help="File of today's deployments (guide: evaluate).")],
    trace: Annotated[
        Path | None,
        typer.Option(help="Requests whose rates and lengths count (guide: traces); default: the problem's."),
    ] = None,
    problem: Annotated[
        Path | None, typer.Option("--problem", help="Problem file, in place of the one that the file names.")
    ] = None,
    column: Columns = None,
    where: Where = None,
    skip_bad: SkipBad = False,
    rate_factor: RateFactor = 1.0,
    first: First = None,
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for evaluate.json, the requests and the best plan (default: no files)."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Compare today's deployments with the best plan. Prints cost, SLO attainment and the gap to the optimum."""
    from optmodels.reporting.evaluate import evaluate_lines

    answer(
        lambda: optmodels.evaluate(
            current, trace, problem=problem, **reading(column, where, skip_bad), rate_factor=rate_factor,
            first=first, time_limit=time_limit, seed=seed, out=out,
        ),
        as_json, evaluate_lines,
    )  # fmt: skip
    return 0
