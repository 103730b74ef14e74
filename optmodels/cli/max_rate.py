"""`max-rate`: the largest request rate within the SLOs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, Seed, duration, seconds


def max_rate(
    plan: Annotated[
        Path | None,
        typer.Argument(metavar="[PLAN]", help="plan.json, its folder, or an instance: any fleet within its limits."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="An LLM in place of PLAN; then --input, --output, --quota.")] = None,
    input_tokens: Annotated[str | None, typer.Option("--input", help="Prompt tokens: 8000 or 8k.")] = None,
    output_tokens: Annotated[str | None, typer.Option("--output", help="Output tokens.")] = None,
    quota: Annotated[list[str] | None, typer.Option(help="GPUs of a type: h100=16; may be repeated.")] = None,
    budget: Annotated[float | None, typer.Option(help="USD/h at most.")] = None,
    ttft: Annotated[Any, typer.Option(parser=duration, metavar="SECONDS", help="Limit on the mean TTFT.")] = None,
    ttft_p95: Annotated[Any, typer.Option(parser=duration, metavar="SECONDS", help="… on its 95th percentile.")] = None,
    tpot: Annotated[
        Any, typer.Option(parser=duration, metavar="SECONDS", help="… on the time per output token.")
    ] = None,
    tpot_p95: Annotated[Any, typer.Option(parser=duration, metavar="SECONDS", help="… on its 95th percentile.")] = None,
    e2e: Annotated[Any, typer.Option(parser=duration, metavar="SECONDS", help="… on the time of a request.")] = None,
    e2e_p95: Annotated[Any, typer.Option(parser=duration, metavar="SECONDS", help="… on its 95th percentile.")] = None,
    instance: Annotated[Path | None, typer.Option(help="Instance in place of the one in PLAN.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Requests for the simulation; default: the instance's.")] = None,
    simulate: Annotated[bool, typer.Option("--simulate/--no-simulate", help="Bisect the rate by replays.")] = True,
    seed: Seed = 0,
    time_limit: Annotated[
        float, typer.Option("--time-limit", parser=seconds, metavar="SECONDS", help="Seconds of the solve.")
    ] = 20.0,  # type: ignore[assignment]
    as_json: Json = False,
) -> int:
    """Find the largest request rate within the SLOs. By the model with a bound, and by simulation."""
    from optmodels.cli.plan import quota_of
    from optmodels.cli.results import result_of
    from optmodels.reporting.max_rate import max_rate_lines

    given = plan if plan is None or plan.suffix in (".yaml", ".yml") else result_of(plan)
    answer(
        lambda: optmodels.max_rate(
            given, model=model, input=input_tokens, output=output_tokens,
            quota=[quota_of(text) for text in quota or []], budget=budget, ttft=ttft,
            ttft_p95=ttft_p95, tpot=tpot, tpot_p95=tpot_p95, e2e=e2e, e2e_p95=e2e_p95,
            instance=instance, trace=trace, simulate=simulate, seed=seed, time_limit=time_limit,
        ),
        as_json, max_rate_lines,
    )  # fmt: skip
    return 0
