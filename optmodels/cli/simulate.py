"""`simulate`: one deployment on a request trace, without a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli import options
from optmodels.cli.console import answer
from optmodels.cli.options import Columns, First, Json, RateFactor, Seed, SkipBad, Where, named, reading, timed


def simulate(
    model: Annotated[
        str, typer.Option("--model", help="LLM of the catalogue (optmodels list catalog), or a config.json.")
    ],
    gpu: Annotated[str, named(options.gpu, "GPU of the catalogue, or a YAML file with its data.")],
    trace: Annotated[
        str,
        typer.Option(
            help="Azure CSV, Mooncake JSONL, or CSV/Parquet; or poisson:REQUESTS_PER_S:PROMPT:OUTPUT:SECONDS, lengths"
            " as N or LOW-HIGH."
        ),
    ],
    column: Columns = None,
    where: Where = None,
    skip_bad: SkipBad = False,
    tp: Annotated[int, typer.Option(help="GPUs of an instance (tensor parallelism).")] = 1,
    precision: Annotated[
        str | None, named(options.precision, "Weight precision; default: as the name states or as published.")
    ] = None,
    kv_precision: Annotated[str, named(options.kv_precision, "KV-cache precision.")] = "fp16",
    engine: Annotated[str, named(options.engine, "vllm, sglang or trtllm.")] = "vllm",
    latencies: Annotated[
        str, typer.Option(help="default, roofline, or a model file of calibrate --form steps.")
    ] = "default",
    max_num_seqs: Annotated[int, typer.Option(help="Requests that run at a time.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens of a step.")] = 8192,
    chunk_tokens: Annotated[int | None, typer.Option(help="Tokens of one prompt in a step; default: no limit.")] = None,
    kv_tokens: Annotated[
        float | None, typer.Option(help="KV-cache capacity in tokens; default: the rest of the GPUs' memory.")
    ] = None,
    runtime_gib: Annotated[
        float | None, typer.Option(help="Memory of the engine's runtime on each GPU, GiB; default: 1.")
    ] = None,
    instances: Annotated[int, typer.Option(help="Number of identical instances behind one dispatcher.")] = 1,
    dispatcher: Annotated[
        str,
        typer.Option(help="earliest_finish, least_kv, shortest_queue, round_robin or prefix_affine."),
    ] = "earliest_finish",
    refuse: Annotated[bool, typer.Option("--refuse", help="Refuse requests predicted to exceed the limits.")] = False,
    ttft_limit: Annotated[float | None, timed("TTFT limit that goodput counts.", options.ttft)] = None,
    tpot_limit: Annotated[
        float | None, timed("Limit on the time per output token after the first.", options.tpot)
    ] = None,
    itl_limit: Annotated[
        float | None, timed("Limit on the time between two tokens; prints the share of times within.", options.tpot)
    ] = None,
    e2e_limit: Annotated[float | None, timed("Limit on the time to the last token.", options.e2e)] = None,
    rate_factor: RateFactor = 1.0,
    first: First = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for simulate.json and a table of the requests.")] = None,
    as_json: Json = False,
) -> int:
    """Simulate one deployment on a request trace. The simulation goes engine step by engine step, without a plan."""
    from optmodels.reporting.simulate import simulate_lines

    answer(
        lambda: optmodels.simulate(
            model, gpu, trace, **reading(column, where, skip_bad), tp=tp, precision=precision,
            kv_precision=kv_precision, engine=engine, latencies=latencies, max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens, chunk_tokens=chunk_tokens, kv_tokens=kv_tokens,
            runtime_gib=runtime_gib, instances=instances, dispatcher=dispatcher, refuse=refuse, ttft_limit=ttft_limit,
            tpot_limit=tpot_limit, itl_limit=itl_limit, e2e_limit=e2e_limit, rate_factor=rate_factor, first=first,
            seed=seed, out=out,
        ),
        as_json, simulate_lines,
    )  # fmt: skip
    return 0
