"""`prefix-hits`: shares of prompts that prefix caches have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Columns, Json, Seed, SkipBad, Where, listed, reading


def prefix_hits(
    trace: Annotated[str, typer.Argument(help="Mooncake JSONL, or any trace with hash_ids.")],
    column: Columns = None,
    where: Where = None,
    skip_bad: SkipBad = False,
    kv_tokens: Annotated[
        str | None, typer.Option(help="Sizes of an engine's cache, with commas; default: 32,768 to 16,777,216.")
    ] = None,
    engines: Annotated[str, typer.Option(help="Numbers of engines that share the requests, with commas.")] = "1,2,4,8",
    routing: Annotated[
        str, typer.Option(help="random, first_block (equal beginnings meet on one engine) or session.")
    ] = "first_block",
    by: Annotated[str | None, typer.Option(help="Label that separates requests: class, model, session.")] = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="File for the document, as a problem file takes it.")] = None,
    as_json: Json = False,
) -> int:
    """Estimate the prefix-cache hit rate of a trace. The table goes by cache size and number of engines."""
    from optmodels.api.prefix_hits import PREFIX_SIZES
    from optmodels.reporting.simulate import prefix_lines

    answer(
        lambda: optmodels.prefix_hits(
            trace, PREFIX_SIZES if kv_tokens is None else listed(kv_tokens, "--kv-tokens", float),
            listed(engines, "--engines", int), **reading(column, where, skip_bad), routing=routing, by=by,
            seed=seed, out=out,
        ),
        as_json, prefix_lines,
    )  # fmt: skip
    return 0
