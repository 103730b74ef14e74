"""`evaluate`: what a user runs today beside the best plan; `fewest-gpus`: how few would do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from optmodels.cli import options
from optmodels.cli.options import Columns, Instance, Json, SkipBad, TimeLimit, Where, reading


def register(app: typer.Typer) -> None:
    """Add this module's verbs."""
    app.command()(evaluate)
    app.command(name="fewest-gpus")(fewest_gpus)


def evaluate(
    current: Annotated[Path, typer.Argument(help="What runs today (guide: evaluate).")],
    trace: Annotated[
        Path | None,
        typer.Option(help="Requests whose rates and lengths count (guide: traces); default: the instance's."),
    ] = None,
    instance: Annotated[Path | None, typer.Option(help="In place of the one that the file names.")] = None,
    column: Columns = None,
    where: Where = None,
    skip_bad: SkipBad = False,
    rate_factor: Annotated[float, typer.Option(help="The trace arrives so many times as fast.")] = 1.0,
    first: Annotated[
        float | None, typer.Option(parser=options.seconds, metavar="SECONDS", help="Only so many seconds of the trace.")
    ] = None,
    time_limit: TimeLimit = None,
    seed: Annotated[int, typer.Option(help="Of everything drawn.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for evaluate.json, the requests and the best plan (default: no files)."),
    ] = None,
    as_json: Json = False,
) -> int:
    """What you run today, beside the best plan. Its cost, attainment, and the distance."""
    from optmodels import api
    from optmodels.cli.console import attempted, show
    from optmodels.reporting.evaluate import evaluate_lines

    found, unwritten = attempted(lambda: api.evaluate(
        current, trace, instance=instance, **reading(column, where, skip_bad), rate_factor=rate_factor,
        first_s=first, time_limit=time_limit, seed=seed, out=out,
    ))  # fmt: skip
    if as_json:
        sys.stdout.write(api.to_json(found) + "\n")
    else:
        show(evaluate_lines(found))
    if unwritten is not None:
        raise unwritten
    return 0


def fewest_gpus(
    instance: Instance,
    attainment: Annotated[float, typer.Option(help="Share of the requests within their SLO, from 0 to 1.")] = 1.0,
    time_limit: TimeLimit = None,
    seed: Annotated[int, typer.Option(help="Of the solver.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the plan's files (default: none).")] = None,
    as_json: Json = False,
) -> int:
    """The fewest GPUs that attain a share of the requests. With a bound."""
    from optmodels import api
    from optmodels.cli.console import attempted, show
    from optmodels.reporting.evaluate import fewest_lines

    found, unwritten = attempted(
        lambda: api.fewest_gpus(instance, attainment, time_limit=time_limit, seed=seed, out=out)
    )
    if as_json:
        sys.stdout.write(api.to_json(found) + "\n")
    else:
        show(fewest_lines(found))
    if unwritten is not None:
        raise unwritten
    return 0 if found["gpus"] is not None else 3 if found["bound"] is None else 4
