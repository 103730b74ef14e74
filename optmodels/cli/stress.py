"""`stress`: a plan under more demand, slower engines and losses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from optmodels.cli.options import Force, Json, PlanFile, seconds


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(stress)


def stress(
    plan: PlanFile,
    inflate: Annotated[
        list[str] | None, typer.Option(help="Range of factors: demand=1:1.5 or latency=1:1.5; may be repeated.")
    ] = None,
    lose: Annotated[
        list[str] | None,
        typer.Option(help="region (each), machine (one of each deployment) or spot (all); may be repeated."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Factors of each range.")] = 3,
    draws: Annotated[int, typer.Option(help="Random scenarios for the frontier of margins; 0: none.")] = 0,
    instance: Annotated[Path | None, typer.Option(help="Instance in place of the one in PLAN.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the draws.")] = 0,
    time_limit: Annotated[
        float, typer.Option("--time-limit", parser=seconds, metavar="SECONDS", help="Seconds of each solve.")
    ] = 10.0,  # type: ignore[assignment]
    picture: Annotated[Path | None, typer.Option(help="File for the chart: .png, .svg or .pdf.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the document (JSON).")] = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Stress a plan. SLO attainment and cost under more demand, slower engines and losses."""
    from optmodels.api import to_json
    from optmodels.cli.console import show
    from optmodels.cli.results import result_of
    from optmodels.io.write import refuse_existing, write_text
    from optmodels.reporting.charts import save_chart
    from optmodels.reporting.stress import stress_chart, stress_lines
    from optmodels.study.stress import stress as judge

    for file in (out, picture):
        if file is not None and not force:
            refuse_existing(file)
    found = judge(
        result_of(plan), inflate=dict(_range(text) for text in inflate or ()), lose=lose or (), steps=steps,
        draws=draws, instance=instance, seed=seed, time_limit=time_limit,
    )  # fmt: skip
    if out is not None:
        write_text(out, to_json(found) + "\n", overwrite=force)
    if picture is not None:
        save_chart(stress_chart(found), picture, found["source"], overwrite=force)
    if as_json:
        sys.stdout.write(to_json(found) + "\n")
    else:
        show(stress_lines(found))
    return 0


def _range(text: str) -> tuple[str, tuple[float, float]]:
    """``demand=1:1.5`` as its name and the two factors; one factor is both."""
    from optmodels.errors import InputError, Mistake

    name, _, ends = text.partition("=")
    low, _, high = ends.partition(":")
    try:
        return name.strip(), (float(low), float(high or low))
    except ValueError:
        raise InputError(Mistake(None, "--inflate", text, "NAME=FROM:TO, such as demand=1:1.5")) from None
