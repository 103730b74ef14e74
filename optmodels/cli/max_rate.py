"""`max-rate`: the largest request rate within the SLOs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, Seed, duration, timed
from optmodels.cli.plan import quota_of


def max_rate(
    plan: Annotated[
        Path | None,
        typer.Argument(metavar="PLAN", help="plan.json, its folder, or a problem file: any fleet within its limits."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="An LLM in place of PLAN; then --input, --output, --quota.")
    ] = None,
    input: Annotated[str | None, typer.Option("--input", help="Prompt tokens: 8000 or 8k.")] = None,
    output: Annotated[str | None, typer.Option("--output", help="Output tokens.")] = None,
    quota: Annotated[list[str] | None, typer.Option(help="GPUs of a type: h100=16; may be repeated.")] = None,
    budget: Annotated[float | None, typer.Option(help="Largest cost in USD/h.")] = None,
    ttft: Annotated[Any, timed("Mean TTFT.", duration)] = None,
    ttft_p95: Annotated[Any, timed("95th percentile of TTFT.", duration)] = None,
    tpot: Annotated[Any, timed("Mean time per output token.", duration)] = None,
    tpot_p95: Annotated[Any, timed("95th percentile of TPOT.", duration)] = None,
    itl_p95: Annotated[Any, timed("95th percentile of the time between tokens.", duration)] = None,
    e2e: Annotated[Any, timed("Mean time of a request.", duration)] = None,
    e2e_p95: Annotated[Any, timed("95th percentile of the time of a request.", duration)] = None,
    problem: Annotated[Path | None, typer.Option("--problem", help="Problem file in place of the one in PLAN.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Requests for the simulation; default: the problem's.")] = None,
    simulate: Annotated[bool, typer.Option("--simulate/--no-simulate", help="Bisect the rate by replays.")] = True,
    seed: Seed = 0,
    time_limit: Annotated[float, timed("Seconds of the solve.")] = 20.0,
    as_json: Json = False,
) -> int:
    """Find the largest request rate within the SLOs. Prints predicted rates with a bound, and a simulated one."""
    from optmodels.reporting.max_rate import max_rate_lines

    answer(
        lambda: optmodels.max_rate(
            plan, model=model, input=input, output=output, quota=[quota_of(text) for text in quota or []],
            budget=budget, ttft=ttft, ttft_p95=ttft_p95, tpot=tpot, tpot_p95=tpot_p95, e2e=e2e, e2e_p95=e2e_p95,
            itl_p95=itl_p95, problem=problem, trace=trace, simulate=simulate, seed=seed, time_limit=time_limit,
        ),
        as_json, max_rate_lines,
    )  # fmt: skip
    return 0
