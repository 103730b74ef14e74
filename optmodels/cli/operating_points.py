"""`operating-points`: a fitted model or measurements as rows of a problem file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli import options
from optmodels.cli.console import answer
from optmodels.cli.options import Force, Json, OutFile, Where, listed, named, pairs, timed


def operating_points(
    latencies: Annotated[
        Path,
        typer.Argument(
            help="Model file from `calibrate`, the name of a shipped model, served measurements (CSV, Parquet), "
            "used directly, or default: coefficients fitted over many engines, GPUs and LLMs, for --engine, --gpu and "
            "--model."
        ),
    ],
    machine: Annotated[str, typer.Option(help="The machine's name in the problem's pool.")],
    batch: Annotated[int, typer.Option(min=1, help="Requests of the workload.")],
    input_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens of each.")],
    output_tokens: Annotated[int, typer.Option(min=1, help="Output tokens of each.")],
    as_: Annotated[
        str,
        typer.Option(
            "--as",
            help="Key of the problem file: operating_points (cost efficiency), points_table "
            "(fleet), measured (orchestration) or serves (reserved capacity).",
        ),
    ] = "operating_points",
    replicas: Annotated[str, typer.Option(help="Numbers of machines that share the batch.")] = "1",
    passes: Annotated[str, typer.Option(help="Numbers of passes on one machine, besides one.")] = "1",
    loads: Annotated[
        str | None,
        typer.Option(
            help="Requests of a replica at a time (all but operating_points); default: 1,2,4 … batch; with "
            "measurements used directly, the measured ones and those between."
        ),
    ] = None,
    demand: Annotated[
        list[str] | None,
        typer.Option(help="points_table: WORKLOAD/BUCKET, or WORKLOAD/BUCKET=INxOUT of other lengths; repeatable."),
    ] = None,
    service: Annotated[str | None, typer.Option(help="serves: the service's name.")] = None,
    ttft_s: Annotated[
        float | None, timed("points_table, serves: keep the loads that meet this TTFT.", options.ttft)
    ] = None,
    tpot_s: Annotated[
        float | None,
        timed("points_table, serves: keep the loads that meet this TPOT.", options.tpot, "--tpot-s"),
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel degree.")] = 1,
    replicas_per_machine: Annotated[int, typer.Option(min=1, help="Replicas that share a machine.")] = 1,
    chunk_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens in a step (step models).")] = 8192,
    capacity_tokens: Annotated[
        float | None,
        typer.Option(help="Tokens the KV cache of one machine holds; with default: by the engines' own formula."),
    ] = None,
    safety: Annotated[
        float | None, typer.Option(help="Prediction quantile: latencies stay below with this probability.")
    ] = None,
    engine: Annotated[
        str | None, named(options.engine, "With default: vllm, sglang or trtllm; with rows of your own: as they state.")
    ] = None,
    gpu: Annotated[
        str | None,
        named(
            options.gpu, "With default: GPU of the catalogue, or a YAML file of one; with measurements: the row's GPU."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="With default: LLM of the catalogue, or a YAML file of one; with measurements: its name there.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        named(
            options.precision,
            "With default: fp16, fp8, fp8_block, fp4, mxfp4 or int4 weights; else the rows', or fp16.",
        ),
    ] = None,
    attention_ranks: Annotated[int, typer.Option(min=1, help="With default: data-parallel attention ranks.")] = 1,
    where: Where = None,
    out: OutFile = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Compute rows of a problem file from a latency model. It can also read measurements. You give the workload."""
    from optmodels.reporting.latencies import point_lines

    answer(
        lambda: optmodels.operating_points(
            latencies, machine=machine, batch=batch, input_tokens=input_tokens, output_tokens=output_tokens, as_=as_,
            replicas=listed(replicas, "--replicas", int), passes=listed(passes, "--passes", int),
            loads=None if loads is None else listed(loads, "--loads", int), demand=demand or [], service=service,
            ttft_s=ttft_s, tpot_s=tpot_s, tp=tp, replicas_per_machine=replicas_per_machine, chunk_tokens=chunk_tokens,
            capacity_tokens=capacity_tokens, safety=safety, engine=engine, gpu=gpu, model=model, precision=precision,
            attention_ranks=attention_ranks, where=pairs(where, "--where"), out=out, force=force,
        ),
        as_json, lambda found: point_lines(found, machine, out),
    )  # fmt: skip
    return 0
