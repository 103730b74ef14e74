"""`backtest`: autoscalers on a history of requests, beside hindsight."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from optmodels.cli.options import Force, Json
from optmodels.errors import InputError, Mistake

MINUTES = {"m": 1, "min": 1, "h": 60, "d": 1440}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("backtest")(backtest)


def backtest(
    history: Annotated[
        Path,
        typer.Option(
            help="Requests over time: a table with time and requests (at most a minute apart), or a request log."
        ),
    ],
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Fleet instance; its cheapest deployment is the replica.")
    ] = None,
    replica: Annotated[
        str | None, typer.Option(help="Replica in place of FILE: RATE:USD, requests/s within the SLO and USD an hour.")
    ] = None,
    workload: Annotated[str | None, typer.Option(help="Workload of FILE and of the history.")] = None,
    train: Annotated[str, typer.Option(help="Time to tune on; the first day warms up forecasts.")] = "7d",
    judge: Annotated[str, typer.Option(help="Time to judge on.")] = "7d",
    methods: Annotated[str | None, typer.Option(help="Autoscalers, comma-separated; default: all.")] = None,
    lead: Annotated[str, typer.Option(help="Time from an order until a replica serves.")] = "5m",
    drain: Annotated[str, typer.Option(help="Time that a replica drains.")] = "1m",
    goal: Annotated[float, typer.Option(help="Share of the requests within the SLO.")] = 0.99,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search each autoscaler's settings on the training time.")
    ] = False,
    slack: Annotated[float, typer.Option(help="Seconds of waiting within the SLO.")] = 2.0,
    out: Annotated[Path | None, typer.Option(help="File for the document (JSON).")] = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Compare autoscalers on a request history. Cost and SLO attainment, beside the least cost with hindsight."""
    from optmodels.api import to_json
    from optmodels.autoscaling.backtest import ALWAYS, Replica
    from optmodels.cli.console import show
    from optmodels.io.write import refuse_existing, write_text
    from optmodels.reporting.backtest import backtest_lines
    from optmodels.study.backtest import backtest as compare_policies

    if (file is None) == (replica is None):
        raise InputError(Mistake(None, "FILE, --replica", None, "one of the two: a fleet instance, or RATE:USD"))
    if out is not None and not force:
        refuse_existing(out)
    lead_min, drain_min = minutes(lead, "--lead"), minutes(drain, "--drain")
    source: Any = file
    if replica is not None:
        rate, usd = _rate_and_price(replica)
        source = Replica(rate, usd, lead_min, drain_min, slack)
    names = tuple(m.strip() for m in methods.split(",") if m.strip()) if methods else ALWAYS

    def say(line: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{line}\x1b[K")

    found = compare_policies(
        source, history, train_min=minutes(train, "--train"), judge_min=minutes(judge, "--judge"), methods=names,
        workload=workload, lead_min=lead_min, drain_min=drain_min, goal=goal, tune=tune, slack_s=slack, say=say,
    )  # fmt: skip
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    if out is not None:
        write_text(out, to_json(found) + "\n", overwrite=force)
    if as_json:
        sys.stdout.write(to_json(found) + "\n")
    else:
        show(backtest_lines(found))
    return 0


def minutes(text: str, option: str) -> int:
    """A duration such as 7d, 12h or 5m, in minutes; rounded up, so that no start-up is planned too short."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d)\s*", text)
    if match is None:
        raise InputError(Mistake(None, option, text, "a duration such as 90s, 5m, 12h or 7d"))
    seconds = float(match[1]) * 60 * MINUTES.get(match[2], 1 / 60)
    return int(-(-seconds // 60))


def _rate_and_price(text: str) -> tuple[float, float]:
    rate, _, usd = text.partition(":")
    try:
        found = float(rate), float(usd)
    except ValueError:
        found = (0.0, 0.0)
    if not (0 < found[0] < float("inf") and 0 < found[1] < float("inf")):
        raise InputError(Mistake(None, "--replica", text, "RATE:USD, such as 8.55:13.76"))
    return found
