"""`rows-to-measure`: the few closed-loop benchmark runs to measure for `calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli import options
from optmodels.cli.console import answer
from optmodels.cli.options import Force, Json, OutFile, listed, named


def rows_to_measure(
    problem: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="Problem file with the machines and lengths to choose rows for (latencies of engine steps); default: "
            "every possible row.",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=100, help="Number of rows to choose.")] = 5,
    engine: Annotated[str | None, named(options.engine, "vllm, sglang or trtllm; default: the problem's.")] = None,
    gpu: Annotated[
        str | None, named(options.gpu, "GPU of the catalogue, or a YAML file of one; default: the problem's.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="LLM of the catalogue, or a YAML file of one; default: the problem's."),
    ] = None,
    precision: Annotated[
        str | None,
        named(options.precision, "fp16, fp8, fp8_block, fp4, mxfp4 or int4 weights; default: the problem's, or fp16."),
    ] = None,
    attention_ranks: Annotated[int | None, typer.Option(min=1, help="Data-parallel attention ranks.")] = None,
    tp: Annotated[
        str | None,
        typer.Option(help="Tensor-parallel degrees to choose from; default: the problem's, or 1,2,4,8."),
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Concurrencies to choose from.")] = "1,4,16,64,256",
    input_tokens: Annotated[
        str, typer.Option(help="Prompt lengths to choose from, besides the problem's.")
    ] = "128,512,2048,8192",
    output_tokens: Annotated[
        str, typer.Option(help="Output lengths to choose from, besides the problem's.")
    ] = "128,512,1024",
    candidates: Annotated[
        Path | None,
        typer.Option(help="CSV or Parquet of candidate rows instead: concurrency, input_tokens, output_tokens, tp."),
    ] = None,
    measured: Annotated[
        Path | None, typer.Option(help="Rows of the deployment that you have already, as `calibrate` reads them.")
    ] = None,
    tool: Annotated[
        str | None,
        typer.Option(help="Benchmark whose commands are printed: vllm, sglang or guidellm; default: the engine's own."),
    ] = None,
    out: OutFile = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Choose the few benchmark runs to measure. The priors come from `calibrate --form default`."""
    from optmodels.reporting.latencies import chosen_lines

    answer(
        lambda: optmodels.rows_to_measure(
            problem, rows=rows, engine=engine, gpu=gpu, model=model, precision=precision,
            attention_ranks=attention_ranks, tp=listed(tp, "--tp", int, 1, 1024) if tp else None,
            concurrency=listed(concurrency, "--concurrency", int, 1, 10**6),
            input_tokens=listed(input_tokens, "--input-tokens", int, 1, 10**7),
            output_tokens=listed(output_tokens, "--output-tokens", int, 1, 10**7), candidates=candidates,
            measured=measured, tool=tool, out=out, force=force,
        ),
        as_json, lambda found: chosen_lines(found, out),
    )  # fmt: skip
    return 0
