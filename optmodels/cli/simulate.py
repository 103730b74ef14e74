"""`simulate` and `prefix-hits`: one deployment on a request trace, and what its prefix caches have; without a plan."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from optmodels.cli import options
from optmodels.cli.options import Columns, Json, SkipBad, Where, reading
from optmodels.errors import InputError, Mistake


def register(app: typer.Typer) -> None:
    """Add this module's verb."""
    app.command()(simulate)
    app.command("prefix-hits")(prefix_hits)


def simulate(
    gpu: Annotated[
        str,
        typer.Option(parser=options.gpu, metavar="TEXT", help="GPU of the catalogue, or a YAML file with its data."),
    ],
    trace: Annotated[
        str,
        typer.Option(
            help="Azure CSV, Mooncake JSONL, or CSV/Parquet; or poisson:REQUESTS_PER_S:PROMPT:OUTPUT:SECONDS, lengths"
            " as N or LOW-HIGH."
        ),
    ],
    llm: Annotated[
        str | None, typer.Option(help="LLM of the catalogue (optmodels list catalog), or a config.json.")
    ] = None,
    column: Columns = None,
    where: Where = None,
    skip_bad: SkipBad = False,
    tp: Annotated[int, typer.Option(help="GPUs of an instance (tensor parallelism).")] = 1,
    precision: Annotated[
        str | None,
        typer.Option(
            parser=options.precision, metavar="TEXT", help="Of the weights; default: as the name says or as published."
        ),
    ] = None,
    kv_precision: Annotated[
        str, typer.Option(parser=options.kv_precision, metavar="TEXT", help="Of the KV cache.")
    ] = "fp16",
    engine: Annotated[
        str, typer.Option(parser=options.engine, metavar="TEXT", help="vllm, sglang or trtllm.")
    ] = "vllm",
    latencies: Annotated[
        str | None,
        typer.Option(help="default (unless said), roofline, or a model file of calibrate --model steps."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The LLM, as in plan; what --latencies takes is understood as well.")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Requests that run at a time.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens of a step.")] = 8192,
    chunk_tokens: Annotated[int | None, typer.Option(help="Of one prompt in a step; default: no limit.")] = None,
    kv_tokens: Annotated[
        float | None, typer.Option(help="That the KV cache holds; default: what the GPUs' memory leaves.")
    ] = None,
    instances: Annotated[int, typer.Option(help="Alike, behind one dispatcher.")] = 1,
    dispatcher: Annotated[
        str,
        typer.Option(help="earliest_finish, least_kv, shortest_queue, round_robin or prefix_affine."),
    ] = "earliest_finish",
    refuse: Annotated[bool, typer.Option("--refuse", help="Refuse what is predicted to exceed the limits.")] = False,
    ttft_limit: Annotated[
        float | None, typer.Option(parser=options.ttft, metavar="SECONDS", help="Seconds; what goodput counts.")
    ] = None,
    tpot_limit: Annotated[
        float | None,
        typer.Option(parser=options.tpot, metavar="SECONDS", help="Seconds per output token after the first."),
    ] = None,
    e2e_limit: Annotated[
        float | None, typer.Option(parser=options.e2e, metavar="SECONDS", help="Seconds to the last token.")
    ] = None,
    rate_factor: Annotated[float, typer.Option(help="The trace arrives so many times as fast.")] = 1.0,
    first: Annotated[
        float | None, typer.Option(parser=options.seconds, metavar="SECONDS", help="Only so many seconds of the trace.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of a trace that is drawn.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for simulate.json and a table of the requests.")] = None,
    as_json: Json = False,
) -> int:
    """Simulate one deployment on a trace. Engine step by engine step."""
    from optmodels import api
    from optmodels.cli.console import attempted, show
    from optmodels.reporting.simulate import simulate_lines

    llm, latencies = _named(llm, latencies, model)
    found, unwritten = attempted(lambda: api.simulate(
        llm, gpu, trace, **reading(column, where, skip_bad),
        tp=tp, precision=precision, kv_precision=kv_precision, engine=engine, model=latencies,
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, chunk_tokens=chunk_tokens,
        kv_tokens=kv_tokens, instances=instances, dispatcher=dispatcher, refuse=refuse, ttft_limit_s=ttft_limit,
        tpot_limit_s=tpot_limit, e2e_limit_s=e2e_limit, rate_factor=rate_factor, first_s=first, seed=seed, out=out,
    ))  # fmt: skip
    if as_json:
        sys.stdout.write(api.to_json(found) + "\n")
    else:
        show(simulate_lines(found))
    if unwritten is not None:
        raise unwritten
    return 0


def _named(llm: str | None, latencies: str | None, model: str | None) -> tuple[str, str]:
    """The LLM and what gives its latencies. `model` is the LLM where no other is named, else what gives latencies."""
    if model is not None:
        named = Path(model).suffix == ".json" or not Path(model).is_file()
        if llm is None and model not in ("default", "roofline") and named:
            llm = model
        elif latencies is None:
            latencies = model
        else:
            raise InputError(Mistake(None, "--model", model, f"--latencies alone, which says {latencies}"))
    if llm is None:
        raise InputError(Mistake(None, "--llm", None, "an LLM of the catalogue: optmodels list catalog"))
    return llm, latencies or "default"


def numbers(text: str, option: str, kind: type) -> list[Any]:
    """Numbers with commas between them."""
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(Mistake(None, option, text, "numbers with commas between them")) from None


def prefix_hits(
    trace: Annotated[str, typer.Argument(help="Mooncake JSONL, or any trace with hash_ids.")],
    column: Columns = None,
    where: Where = None,
    skip_bad: SkipBad = False,
    kv_tokens: Annotated[
        str | None, typer.Option(help="Sizes of an engine's cache, with commas; default: 32,768 to 16,777,216.")
    ] = None,
    engines: Annotated[str, typer.Option(help="How many engines requests are split over, with commas.")] = "1,2,4,8",
    routing: Annotated[
        str, typer.Option(help="random, first_block (equal beginnings meet on one engine) or session.")
    ] = "first_block",
    by: Annotated[str | None, typer.Option(help="Label whose requests are told apart: class, model, session.")] = None,
    seed: Annotated[int, typer.Option(help="Of what is random.")] = 0,
    out: Annotated[Path | None, typer.Option(help="File for the document, as an instance takes it.")] = None,
    as_json: Json = False,
) -> int:
    """Shares of prompts that prefix caches have. For every size of the cache and number of engines."""
    from optmodels import api
    from optmodels.cli.console import attempted, show
    from optmodels.reporting.simulate import prefix_lines

    found, unwritten = attempted(lambda: api.prefix_hits(
        trace, api.PREFIX_SIZES if kv_tokens is None else numbers(kv_tokens, "--kv-tokens", float),
        numbers(engines, "--engines", int), **reading(column, where, skip_bad), routing=routing, by=by,
        seed=seed, out=out,
    ))  # fmt: skip
    if as_json:
        sys.stdout.write(api.to_json(found) + "\n")
    else:
        show(prefix_lines(found))
    if unwritten is not None:
        raise unwritten
    return 0
