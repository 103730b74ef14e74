"""`calibrate`: a latency model fitted to measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli import options
from optmodels.cli.console import answer
from optmodels.cli.options import Columns, Force, Json, OutFile, Where, listed, named, pairs
from optmodels.io.write import json_text


def calibrate(
    measurements: Annotated[Path, typer.Argument(help="CSV or Parquet file of measured latencies.")],
    form: Annotated[
        str,
        typer.Option(
            help="Form: auto, scaled, two_segment, additive, steps, decay or linear_batch; or default: the built-in "
            "coefficients, corrected by a few served rows of --engine, --gpu and --model."
        ),
    ] = "auto",
    out: OutFile = None,
    column: Columns = None,
    where: Where = None,
    workload: Annotated[
        str | None, typer.Option(help="Columns (comma-separated) whose rows are held back together.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="step, static, served or pairs; default: by the columns.")] = None,
    gpu: Annotated[
        str | None,
        named(
            options.gpu,
            "GPU of the catalogue (scaled; MoE terms); with default also a YAML file, or as the rows state.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="LLM of the catalogue; with default as --gpu.")] = None,
    precision: Annotated[
        str | None,
        named(
            options.precision,
            "fp16, fp8, fp8_block, fp4, mxfp4 or int4 weights; default: the rows' (with default), or fp16.",
        ),
    ] = None,
    engine: Annotated[
        str | None, named(options.engine, "Measured engine: vllm, sglang or trtllm; default: as the rows state.")
    ] = None,
    attention_ranks: Annotated[
        int | None, typer.Option(min=1, help="With default: data-parallel attention ranks; default: as the rows state.")
    ] = None,
    weighting: Annotated[str, typer.Option(help="relative, or absolute as in LLMVisor.")] = "relative",
    batch_limit: Annotated[float | None, typer.Option(help="Batch limit B of the decay model.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Residual plot to write (PNG, SVG, PDF).")] = None,
    title: Annotated[str, typer.Option(help="Title for the model file.")] = "",
    source: Annotated[str, typer.Option(help="Where the measurements come from.")] = "",
    date: Annotated[str | None, typer.Option(help="Date of the measurements, ISO; default today.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Fit a latency model to measurements. It reports the errors on held-back rows."""
    from optmodels.reporting.latencies import calibrated_lines

    notes: list[str] = []
    answer(
        lambda: optmodels.calibrate(
            measurements, form=form, out=out, column=pairs(column, "--column"), where=pairs(where, "--where"),
            workload=listed(workload, "--workload") if workload else None, kind=kind,  # type: ignore[arg-type]
            gpu=gpu, model=model, precision=precision, engine=engine, attention_ranks=attention_ranks,
            weighting=weighting, batch_limit=batch_limit, plot=plot, title=title, source=source,  # type: ignore[arg-type]
            date=date, force=force, on_note=notes.append,
        ),
        as_json, lambda found: calibrated_lines(found, notes, out),
        lambda found: json_text(found.model_dump(mode="json", by_alias=True, exclude_none=form != "default")),
    )  # fmt: skip
    return 0
