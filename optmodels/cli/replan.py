"""`replan`: one tick of a fleet that follows its traffic; `migrate`: ordered steps to a plan."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from optmodels.cli.options import Force, Json, seconds


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(replan)


def replan(
    file: Annotated[Path, typer.Argument(help="Fleet instance, or a plan with its instance.")],
    state: Annotated[Path, typer.Option(help="What runs now (YAML): machines, lead times, changes.")],
    history: Annotated[Path | None, typer.Option(help="Requests up to now: time, requests (and workload).")] = None,
    forecast: Annotated[
        Path | None, typer.Option(help="Quantiles in place of a history: time, q0.5, q0.9, … (and workload).")
    ] = None,
    ticks: Annotated[int | None, typer.Option(help="Horizon; default: three times the largest lead time.")] = None,
    method: Annotated[str, typer.Option(help="auto, rule, or exact.")] = "auto",
    forecast_method: Annotated[
        str, typer.Option(help="Median forecast: last_value, yesterdays_change, damped_ets or arima.")
    ] = "last_value",
    last: Annotated[Path | None, typer.Option(help="Document of an earlier tick, for where all else fails.")] = None,
    time_limit: Annotated[
        float, typer.Option("--time-limit", parser=seconds, metavar="SECONDS", help="Seconds of the solver; 0: rule.")
    ] = 5.0,  # type: ignore[assignment]
    out: Annotated[Path | None, typer.Option(help="Folder for tick.json and state.yaml of the next tick.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """One tick of a fleet that follows its traffic. Orders, stops and loads, each with its reason."""
    import yaml

    from optmodels.api import to_json
    from optmodels.cli.console import show
    from optmodels.io.write import refuse_existing, write_text
    from optmodels.reporting.replan import replan_lines
    from optmodels.study.replan import replan as decide

    files = [] if out is None else [out / "tick.json", out / "state.yaml"]
    if not force:
        refuse_existing(*files)
    found = decide(
        file, state, history=history, forecast=forecast, ticks=ticks, method=method, forecast_method=forecast_method,
        last=last, time_limit=time_limit,
    )  # fmt: skip
    if files:
        write_text(files[0], to_json(found) + "\n", overwrite=force)
        write_text(files[1], yaml.safe_dump(found["next_state"], sort_keys=False), overwrite=force)
    if as_json:
        sys.stdout.write(to_json(found) + "\n")
    else:
        show(replan_lines(found))
    return 4 if found["tick"]["source"] == "last" else 0
