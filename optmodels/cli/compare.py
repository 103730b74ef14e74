"""`compare`: methods on problems, side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli.console import answer, counted, show
from optmodels.cli.options import Json, Seed, TimeLimit, listed


def compare(
    problems: Annotated[list[Path], typer.Argument(metavar="FILE", help="Problem files or folders of them.")],
    methods: Annotated[str | None, typer.Option(help="Comma-separated; default: all.")] = None,
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    seeds: Annotated[str | None, typer.Option(help="Several, comma-separated: statistics over them.")] = None,
    replay: Annotated[bool, typer.Option("--replay", help="Simulate every plan on its problem's trace.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for tables and pictures.")] = None,
    as_json: Json = False,
) -> int:
    """Compare methods on problems side by side. Prints objective, certified gap, and seconds to plan and proof."""
    from optmodels.study.compare import comparison_table

    names = None if methods is None else listed(methods, "--methods")
    several = None if seeds is None else listed(seeds, "--seeds", int)
    with counted() as on_row:
        rows = answer(
            lambda: optmodels.compare(
                problems, names, time_limit=time_limit, seed=seed, seeds=several, replay=replay, out=out,
                on_row=on_row, on_skip=lambda text: sys.stderr.write(f"{text}\n"),
            ),
            as_json, comparison_table,
        )  # fmt: skip
    if out is not None and not as_json:
        show([f"[dim]Files: {out}[/dim]"])
    statuses = {r["status"] for r in rows}
    failed = any(r["check"] is not None and not r["check"]["ok"] for r in rows) or "error" in statuses
    return 1 if failed else 0
