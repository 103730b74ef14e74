"""`batch-limits`: the largest batch that memory and latency allow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli import options
from optmodels.cli.console import answer
from optmodels.cli.options import Json, timed


def batch_limits(
    capacity_tokens: Annotated[float, typer.Option(help="Tokens the KV cache holds, η.")],
    epsilon: Annotated[float, typer.Option(help="Allowed probability that the KV cache overflows.")] = 0.01,
    trace: Annotated[Path | None, typer.Option(help="CSV or Parquet trace with token counts.")] = None,
    input_column: Annotated[
        str | None, typer.Option(help="Column of prompt tokens in the trace; default: by its name.")
    ] = None,
    output_column: Annotated[
        str | None, typer.Option(help="Column of output tokens in the trace; default: by its name.")
    ] = None,
    input_mean: Annotated[float | None, typer.Option(help="Without a trace: mean prompt tokens.")] = None,
    input_std: Annotated[float, typer.Option(help="Standard deviation of prompt tokens.")] = 0.0,
    output_mean: Annotated[float | None, typer.Option(help="Without a trace: mean output tokens.")] = None,
    output_std: Annotated[float, typer.Option(help="Standard deviation of output tokens.")] = 0.0,
    latencies: Annotated[Path | None, typer.Option("--latencies", help="Model file for b_SLA.")] = None,
    limit_s: Annotated[float | None, timed("Allowed time between tokens.", options.tpot)] = None,
    safety: Annotated[float | None, typer.Option(help="Probability that a step stays below --limit-s.")] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel degree, for b_SLA.")] = 1,
    as_json: Json = False,
) -> int:
    """Compute the largest batch that memory and latency allow. Memory suffices with a probability that you give."""
    from optmodels.reporting.latencies import batch_limit_lines

    answer(
        lambda: optmodels.batch_limits(
            capacity_tokens, epsilon=epsilon, trace=trace, input_column=input_column, output_column=output_column,
            input_mean=input_mean, input_std=input_std, output_mean=output_mean, output_std=output_std,
            latencies=latencies, limit_s=limit_s, safety=safety, tp=tp,
        ),
        as_json, batch_limit_lines,
    )  # fmt: skip
    return 0
