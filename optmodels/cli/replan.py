"""`replan`: one tick of a fleet that follows its traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Force, Json, seconds


def replan(
    file: Annotated[Path, typer.Argument(help="Fleet problem file, or a plan with its problem file.")],
    state: Annotated[Path, typer.Option(help="Running fleet (YAML): machines, lead times, changes.")],
    history: Annotated[Path | None, typer.Option(help="Requests up to now: time, requests (and workload).")] = None,
    forecast: Annotated[
        Path | None, typer.Option(help="Quantiles in place of a history: time, q0.5, q0.9, … (and workload).")
    ] = None,
    ticks: Annotated[int | None, typer.Option(help="Horizon; default: three times the largest lead time.")] = None,
    method: Annotated[str, typer.Option(help="auto, rule, or exact.")] = "auto",
    forecast_method: Annotated[
        str, typer.Option(help="Median forecast: auto, last_value, yesterdays_change, damped_ets, arima, boosting.")
    ] = "auto",
    last: Annotated[Path | None, typer.Option(help="Document of an earlier tick, used if every method fails.")] = None,
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit", parser=seconds, metavar="SECONDS", help="Seconds for the solver; 0 uses the rule."
        ),
    ] = 5.0,
    out: Annotated[Path | None, typer.Option(help="Folder for tick.json and state.yaml of the next tick.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Decide one tick of a fleet that follows its traffic. It states orders, stops and loads, each with its reason."""
    from optmodels.reporting.replan import replan_lines

    found = answer(
        lambda: optmodels.replan(
            file, state=state, history=history, forecast=forecast, ticks=ticks, method=method,
            forecast_method=forecast_method, last=last, time_limit=time_limit, out=out, force=force,
        ),
        as_json, replan_lines,
    )  # fmt: skip
    return 4 if found["tick"]["source"] == "last" else 0
