"""`migrate`: the ordered steps from the running fleet to a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json


def migrate(
    now: Annotated[Path, typer.Argument(help="Plan that runs: plan.json of a result, or its folder.")],
    plan: Annotated[Path, typer.Argument(help="Plan to reach: plan.json of a result, or its folder.")],
    problem: Annotated[Path | None, typer.Option("--problem", help="Problem file in place of the one in PLAN.")] = None,
    as_json: Json = False,
) -> int:
    """Order the steps from the running fleet to a plan. Every step keeps capacity as far as stock allows."""
    from optmodels.cli.results import result_of
    from optmodels.reporting.migrate import migrate_lines

    answer(lambda: optmodels.migrate(result_of(now), result_of(plan), problem=problem), as_json, migrate_lines)
    return 0
