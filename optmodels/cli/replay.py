"""`replay`: a plan simulated on a request trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import (
    Columns,
    First,
    Json,
    PlanFile,
    RateFactor,
    Seed,
    SkipBad,
    Where,
    reading,
    timed,
)
from optmodels.cli.results import result_of


def replay(
    plan: PlanFile,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="A public trace, a request log, or a table (guide: traces); default: the problem's requests."
        ),
    ] = None,
    column: Columns = None,
    where: Where = None,
    skip_bad: SkipBad = False,
    policy: Annotated[str | None, typer.Option(help="Who gets a request; default: the formulation's.")] = None,
    speed: Annotated[str, typer.Option(help="Decoding speed: load, or worst_case (a full batch).")] = "load",
    overflow_protection: Annotated[
        bool | None,
        typer.Option("--overflow-protection/--no-overflow-protection", help="Refuse requests predicted to be late."),
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
    rate_factor: RateFactor = 1.0,
    first: First = None,
    part: Annotated[
        str | None, typer.Option(help="Only the first part of the trace's time, or the rest: first or rest.")
    ] = None,
    share: Annotated[float, typer.Option(help="Share of the trace's time in its first part.")] = 0.5,
    resample: Annotated[
        int | None,
        typer.Option(help="Out of sample: another trace drawn from this one in blocks of time, with this seed."),
    ] = None,
    block_s: Annotated[float | None, timed("Length of a block in seconds; default: a 24th of the trace.")] = None,
    predicted_error: Annotated[
        float | None,
        typer.Option(help="Dispatchers know output lengths with this standard deviation of ln(predicted/true)."),
    ] = None,
    seed: Seed = 0,
    problem: Annotated[
        Path | None, typer.Option("--problem", help="Problem file, in place of the one in the file.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for replay.json and the requests (default: results/, not with --json).")
    ] = None,
    parquet: Annotated[bool, typer.Option("--parquet", help="Requests as Parquet, not CSV.")] = False,
    as_json: Json = False,
) -> int:
    """Simulate a plan on a request trace. The output has predicted next to replayed latencies."""
    from optmodels.reporting.replay import replay_lines

    target = out if out is not None else (None if as_json else Path("results"))
    answer(
        lambda: optmodels.replay(
            result_of(plan), trace, problem=problem, policy=policy, speed=speed,  # type: ignore[arg-type]
            overflow_protection=overflow_protection, queue=queue, controller=controller,  # type: ignore[arg-type]
            rate_factor=rate_factor, first=first, **reading(column, where, skip_bad),
            part=part, share=share, resample=resample, block_s=block_s,  # type: ignore[arg-type]
            predicted_error=predicted_error, seed=seed, out=target, parquet=parquet,
        ),
        as_json, replay_lines,
    )  # fmt: skip
    return 0
