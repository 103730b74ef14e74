"""`replay`: a plan simulated on a request trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from optmodels.cli import options
from optmodels.cli.options import Columns, Json, PlanFile, SkipBad, Where, reading


def register(app: typer.Typer) -> None:
    """Add this module's verb."""
    app.command()(replay)


def replay(
    plan: PlanFile,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="A public trace, a request log, or a table (guide: traces); default: the instance's requests."
        ),
    ] = None,
    column: Columns = None,
    where: Where = None,
    skip_bad: SkipBad = False,
    policy: Annotated[str | None, typer.Option(help="Who gets a request; default: the formulation's.")] = None,
    speed: Annotated[str, typer.Option(help="Decoding under load, or worst_case: as in a full batch.")] = "load",
    overflow_protection: Annotated[
        bool | None,
        typer.Option("--overflow-protection/--no-overflow-protection", help="Refuse what is predicted to be late."),
    ] = None,
    queue: Annotated[
        str | None, typer.Option(help="Instances serve in order of arrival (fifo) or urgency (deadline).")
    ] = None,
    controller: Annotated[
        str | None,
        typer.Option(
            help="Batch limits set while serving: static:BATCH, sla:SECONDS_PER_TOKEN, memory:KV_TOKENS,"
            " or several joined by commas (event by event: up to 20,000 requests)."
        ),
    ] = None,
    rate_factor: Annotated[float, typer.Option(help="The trace arrives so many times as fast.")] = 1.0,
    first: Annotated[
        float | None, typer.Option(parser=options.seconds, metavar="SECONDS", help="Only so many seconds of the trace.")
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="Only the first part of the trace's time, or the rest: first or rest.")
    ] = None,
    share: Annotated[float, typer.Option(help="Of the trace's time in its first part.")] = 0.5,
    resample: Annotated[
        int | None,
        typer.Option(help="Out of sample: another trace drawn from this one in blocks of time, with this seed."),
    ] = None,
    block_s: Annotated[
        float | None,
        typer.Option(
            parser=options.seconds, metavar="SECONDS", help="Seconds of such a block; default: a 24th of the trace."
        ),
    ] = None,
    predicted_error: Annotated[
        float | None,
        typer.Option(help="Dispatchers know output lengths with this standard deviation of ln(predicted/true)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything drawn.")] = 0,
    instance: Annotated[Path | None, typer.Option(help="For this instance, not the one in the file.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for replay.json and the requests (default: results/, not with --json).")
    ] = None,
    parquet: Annotated[bool, typer.Option("--parquet", help="Requests as Parquet, not CSV.")] = False,
    as_json: Json = False,
) -> int:
    """Simulate a plan on a request trace. Predicted beside replayed."""
    from optmodels import api
    from optmodels.cli.console import attempted, show
    from optmodels.cli.results import result_of
    from optmodels.reporting.replay import replay_lines

    target = out if out is not None else (None if as_json else Path("results"))
    found, unwritten = attempted(lambda: api.replay(
        result_of(plan), trace, instance=instance, policy=policy, speed=speed,  # type: ignore[arg-type]
        overflow_protection=overflow_protection, queue=queue, controller=controller,  # type: ignore[arg-type]
        rate_factor=rate_factor, first_s=first, **reading(column, where, skip_bad),
        part=part, share=share, resample=resample, block_s=block_s, predicted_error=predicted_error,  # type: ignore[arg-type]
        seed=seed, out=target,
        requests_as="parquet" if parquet else "csv",
    ))  # fmt: skip
    if as_json:
        sys.stdout.write(api.to_json(found) + "\n")
    else:
        show(replay_lines(found))
    if unwritten is not None:
        raise unwritten
    return 0
