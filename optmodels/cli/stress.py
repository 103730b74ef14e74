"""`stress`: a plan under more demand, slower engines and losses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Force, Json, PlanFile, Seed, timed
from optmodels.cli.results import result_of
from optmodels.errors import InputError, Mistake


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
    draws: Annotated[int, typer.Option(help="Draws for the frontier of plans with slack; 0: none.")] = 0,
    problem: Annotated[Path | None, typer.Option("--problem", help="Problem file in place of the one in PLAN.")] = None,
    seed: Seed = 0,
    time_limit: Annotated[float, timed("Seconds of each solve.")] = 10.0,
    picture: Annotated[Path | None, typer.Option(help="File for the chart: .png, .svg or .pdf.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the document (JSON).")] = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Stress-test a plan. The table has SLO attainment and cost under more demand, slower engines and losses."""
    from optmodels.reporting.stress import stress_lines

    answer(
        lambda: optmodels.stress(
            result_of(plan), inflate=dict(_range(text) for text in inflate or ()), lose=lose or (), steps=steps,
            draws=draws, problem=problem, seed=seed, time_limit=time_limit, picture=picture, out=out, force=force,
        ),
        as_json, stress_lines,
    )  # fmt: skip
    return 0


def _range(text: str) -> tuple[str, tuple[float, float]]:
    """``demand=1:1.5`` as its name and the two factors; one factor is both."""
    name, _, ends = text.partition("=")
    low, _, high = ends.partition(":")
    try:
        return name.strip(), (float(low), float(high or low))
    except ValueError:
        raise InputError(Mistake(None, "--inflate", text, "NAME=FROM:TO, such as demand=1:1.5")) from None
