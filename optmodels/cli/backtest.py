"""`backtest`: autoscalers on a history of requests, compared with hindsight."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import optmodels
from optmodels.cli.console import answer, one_line
from optmodels.cli.options import Force, Json, listed, timed


def backtest(
    history: Annotated[
        Path,
        typer.Option(
            help="Requests over time: a table of time and requests, a row a minute or more, or a request log."
        ),
    ],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Fleet problem file; its cheapest deployment is the replica."),
    ] = None,
    replica: Annotated[
        str | None, typer.Option(help="Replica in place of FILE: RATE:USD, requests/s within the SLO and USD an hour.")
    ] = None,
    workload: Annotated[str | None, typer.Option(help="Workload of FILE and of the history.")] = None,
    train: Annotated[str, typer.Option(help="Time to tune on; the first day warms up forecasts.")] = "7d",
    judge: Annotated[str, typer.Option(help="Time to test on.")] = "7d",
    methods: Annotated[str | None, typer.Option(help="Autoscalers, comma-separated; default: all.")] = None,
    lead: Annotated[str, typer.Option(help="Time from an order until a replica serves.")] = "5m",
    drain: Annotated[str, typer.Option(help="Time that a replica drains.")] = "1m",
    goal: Annotated[float, typer.Option(help="Share of the requests within the SLO.")] = 0.99,
    forecast_method: Annotated[
        str,
        typer.Option(help="Median forecast of plan: auto, last_value, yesterdays_change, damped_ets, arima, boosting."),
    ] = "auto",
    tune: Annotated[
        bool, typer.Option("--tune", help="Search each autoscaler's settings on the training time.")
    ] = False,
    slack: Annotated[float, timed("Waiting within the SLO.")] = 2.0,
    manifests: Annotated[
        Path | None, typer.Option(help="Folder for HPA and KEDA manifests and a timetable, as tuned.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 1,
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler, in place of processes.")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Folder of finished autoscalers; the same command goes on from there.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="File for the chart: .png, .svg or .pdf.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the document (JSON).")] = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Compare autoscalers on a request history. Prints cost, SLO attainment and the least cost with hindsight."""
    from optmodels.reporting.backtest import backtest_lines

    names = None if methods is None else listed(methods, "--methods")

    def run() -> dict[str, Any]:
        with one_line() as on_step:
            return optmodels.backtest(
                file, history=history, replica=replica, workload=workload, train=train, judge=judge, methods=names,
                lead=lead, drain=drain, goal=goal, forecast_method=forecast_method, tune=tune, slack=slack,
                manifests=manifests, workers=workers,
                scheduler=scheduler, keep=keep, picture=picture, out=out, force=force, on_step=on_step,
            )  # fmt: skip

    answer(run, as_json, backtest_lines)
    return 0
