"""explain."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from optmodels.cli import options
from optmodels.cli.options import Instance, Json

NEEDS_S, NEEDS_SOLVES, NEEDS_SHOWN = 10.0, 60, 4  # of an infeasible answer's own explanation


def register(app: typer.Typer) -> None:
    """Add this module's verb."""
    app.command()(explain)


def explain(
    instance: Instance,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            parser=options.seconds,
            metavar="SECONDS",
            help="Seconds for all solves (default 60; 10 if there is a plan).",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Examine every limit and price, however long it takes.")
    ] = False,
    max_solves: Annotated[int | None, typer.Option("--max-solves", help="Solves at most (default 1000).")] = None,
    next_plans: Annotated[int, typer.Option("--next", help="How many of the next best plans.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Folder for explanation.json and its page.")] = None,
    as_json: Json = False,
) -> int:
    """Why there is no plan, or what the plan hangs on. The least change that gives one; or what binds, what that costs,
    and the next best plans."""
    from optmodels import api
    from optmodels.cli.console import attempted, show
    from optmodels.reporting.explanation import summary

    with steps() as on_step:
        document, unwritten = attempted(lambda: api.explain(
            instance, time_limit=time_limit, max_solves=max_solves, next_plans=next_plans, everything=everything,
            on_step=on_step, out=out,
        ))  # fmt: skip
    if as_json:
        sys.stdout.write(document.to_json() + "\n")
    else:
        show(summary(document.model_dump(mode="json", by_alias=True)))
    if unwritten is not None:
        raise unwritten
    return document.exit_status


def needs(source: Any) -> list[str]:
    """What every limit of an infeasible instance would have to be, alone, as far as a few seconds tell."""
    from optmodels import api
    from optmodels.errors import OptmodelsError

    try:
        found = api.explain(source, time_limit=NEEDS_S, max_solves=NEEDS_SOLVES).model_dump(mode="json", by_alias=True)
    except OptmodelsError:
        return []
    written = [x for x in found["alone"] if x["limit"]["written"]]
    lines = [_needed(x) for x in written]
    if not lines and found["jointly"]:
        lines = [f"Enough together: {found['jointly']['words']}."]
    return [line if i == 0 else f"Or {line}" for i, line in enumerate(lines[:NEEDS_SHOWN])]


def _needed(x: Mapping[str, Any]) -> str:
    """``quota of h100: 48 GPUs needed, the limit is 24 GPUs``, of an explanation's relaxation."""
    changed = re.fullmatch(r"(.*): (.+?) → (.+?)(?: \(.*\))?", x["words"])
    if changed is None:
        return f"{x['words']}."
    name, limit, needed = changed.groups()
    return f"{name}: {needed} {'needed' if x['limit']['side'] == 'most' else 'possible'}, the limit is {limit}."


@contextmanager
def steps() -> Iterator[Any]:
    """What is being solved on stderr: a live line on a terminal, otherwise a line where the question changes."""
    from rich.console import Console

    from optmodels.errors import printable

    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status("…") as status:
            yield lambda text: status.update(printable(text))
        return
    last = [""]

    def on_step(text: str) -> None:
        what = text.partition(" · ")[0]
        if what != last[0]:
            last[0] = what
            sys.stderr.write(f"{printable(text)}\n")

    yield on_step
