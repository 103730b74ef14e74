"""`max-rate`: the largest request rate within the SLOs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from optmodels.cli.options import Json, duration, seconds


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("max-rate")(max_rate)


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
    ttft: Annotated[Any, typer.Option(parser=duration, metavar="SECONDS", help="Mean TTFT.")] = None,
    ttft_p95: Annotated[Any, typer.Option(parser=duration, metavar="SECONDS", help="95th percentile.")] = None,
    tpot: Annotated[Any, typer.Option(parser=duration, metavar="SECONDS", help="Mean time per output token.")] = None,
    tpot_p95: Annotated[Any, typer.Option(parser=duration, metavar="SECONDS", help="95th percentile.")] = None,
    e2e: Annotated[Any, typer.Option(parser=duration, metavar="SECONDS", help="Mean time of a request.")] = None,
    e2e_p95: Annotated[Any, typer.Option(parser=duration, metavar="SECONDS", help="95th percentile.")] = None,
    instance: Annotated[Path | None, typer.Option(help="Instance in place of the one in PLAN.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Requests for the simulation; default: the instance's.")] = None,
    simulate: Annotated[bool, typer.Option("--simulate/--no-simulate", help="Bisect the rate by replays.")] = True,
    seed: Annotated[int, typer.Option(help="Random seed of the simulation.")] = 0,
    time_limit: Annotated[
        float, typer.Option("--time-limit", parser=seconds, metavar="SECONDS", help="Seconds of the solve.")
    ] = 20.0,  # type: ignore[assignment]
    as_json: Json = False,
) -> int:
    """Largest request rate within the SLOs. By the model with a bound, and by simulation."""
    from optmodels.api import to_json
    from optmodels.cli.console import show
    from optmodels.errors import InputError, Mistake
    from optmodels.reporting.max_rate import max_rate_lines
    from optmodels.study.max_rate import max_rate as find

    if (plan is None) == (model is None):
        raise InputError(Mistake(None, "PLAN, --model", None, "one of the two"))
    source: Any = plan
    if model is not None:
        from optmodels import question
        from optmodels.cli.asking import _one, quota_of

        if not quota and budget is None:
            raise InputError(Mistake(None, "--quota, --budget", None, "GPUs or USD/h that limit the fleet"))
        asked = question.Question(
            model=model, input_tokens=input_tokens, output_tokens=output_tokens, rate=1.0,
            ttft=_one("ttft", ttft, ttft_p95, None), tpot=_one("tpot", tpot, tpot_p95, None),
            e2e=_one("e2e", e2e, e2e_p95, None), quota=[quota_of(text) for text in quota or []], budget=budget,
        )  # fmt: skip
        try:
            source = question.instance(asked)
        except InputError as error:
            raise question.as_options(error) from None
    found = find(source, instance=instance, trace=trace, simulate=simulate, seed=seed, time_limit=time_limit)
    if as_json:
        sys.stdout.write(to_json(found) + "\n")
    else:
        show(max_rate_lines(found))
    return 0
