"""`fewest-gpus`: the fewest GPUs that attain a share of the requests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Instance, Json, Seed, TimeLimit


def fewest_gpus(
    problem: Instance,
    attainment: Annotated[float, typer.Option(help="Share of the requests within their SLO, from 0 to 1.")] = 1.0,
    time_limit: TimeLimit = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the plan's files (default: none).")] = None,
    as_json: Json = False,
) -> int:
    """Find the fewest GPUs for an SLO attainment. A bound proves that fewer cannot do."""
    from optmodels.reporting.evaluate import fewest_lines

    found = answer(
        lambda: optmodels.fewest_gpus(problem, attainment, time_limit=time_limit, seed=seed, out=out), as_json,
        fewest_lines,
    )  # fmt: skip
    return 0 if found["gpus"] is not None else 3 if found["bound"] is None else 4
