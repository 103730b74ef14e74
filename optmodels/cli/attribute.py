"""`attribute`: a step's latency divided among its requests and tenants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json


def attribute(
    batch: Annotated[Path, typer.Argument(help="Batch file (JSON or YAML): the requests of one step.")],
    latencies: Annotated[Path, typer.Option("--latencies", help="Model file from `calibrate` on step measurements.")],
    fixed: Annotated[str, typer.Option(help="How per-step constants are divided: equal or tokens.")] = "equal",
    safety: Annotated[float | None, typer.Option(help="Multiply by this quantile of the model's residuals.")] = None,
    as_json: Json = False,
) -> int:
    """Divide a step's latency among its requests and tenants."""
    from optmodels.reporting.latencies import attribution_lines

    answer(
        lambda: optmodels.attribute(batch, latencies, fixed=fixed, safety=safety),  # type: ignore[arg-type]
        as_json, attribution_lines,
    )  # fmt: skip
    return 0
