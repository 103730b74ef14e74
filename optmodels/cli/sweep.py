"""`sweep`: one problem solved many times."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb
from optmodels.io.write import json_text

if TYPE_CHECKING:
    from optmodels.study.sweep import Sweep

LOG_EVERY_S = 10.0
SHOWN = 40


Workers = Annotated[int | None, typer.Option(help="Processes; 1 solves in this one, default: as many as pay.", min=1)]


@verb(
    "problem", vary="KEY=from:to:count[:log], KEY=v1,v2,…, or random KEY~from:to[:log].", on_row=None,
    out="Folder of this sweep (default: results/NAME-sweep).",
)  # fmt: skip
def sweep(given: dict[str, Any], workers: Workers = None, as_json: Json = False) -> int:
    """Solve a problem many times with some fields varied. It makes a table, a Pareto frontier and pictures."""
    from optmodels.study.sweep import SweepInterrupted, default_folder

    given = {"out": lambda: default_folder(given["problem"], given["resume"])} | given | {"workers": workers}
    try:
        with _progress() as on_row:
            found = answer(
                lambda: optmodels.sweep(**given, on_row=on_row), as_json, _summary,
                lambda sweep: json_text(sweep.document()),
            )  # fmt: skip
    except SweepInterrupted as stop:
        sys.stderr.write(f"interrupted: {stop.done} of {stop.total} solves done and kept in {stop.folder}; the same")
        sys.stderr.write(f" command with --resume --out {stop.folder} goes on from there\n")
        return 4
    return found.exit_status


@contextmanager
def _progress() -> Iterator[Callable[[int, int, Any], None]]:
    """A bar on stderr where that is a terminal, a line now and then where it is not; yields the callback."""
    import time

    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        last = time.monotonic()

        def log(done: int, total: int, row: Any) -> None:
            nonlocal last
            if time.monotonic() - last >= LOG_EVERY_S:
                last = time.monotonic()
                sys.stderr.write(f"{done} of {total} solves done\n")

        yield log
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"),
        console=console, transient=True,
    ) as bar:  # fmt: skip
        line = bar.add_task("tables …", total=None)

        def update(done: int, total: int, row: Any) -> None:
            bar.update(line, completed=done, total=total, description=row["status"])

        yield update


def _summary(found: Sweep) -> list[Any]:
    from optmodels.io.write import path_text
    from optmodels.reporting.text import plain, short, titled

    _, unit = found.goal
    rows, status = len(found.rows), [r["status"] for r in found.rows]
    counts = ", ".join(f"{status.count(s)} {s.replace('_', ' ')}" for s in dict.fromkeys(status))
    kept = f"; {found.reused} taken from the earlier run" if found.reused else ""
    lines: list[Any] = [f"{plain(found.instance)}: {rows} solves by {plain(found.task.method)}: {counts}{kept}", ""]
    if found.damaged:
        several = "s hold" if found.damaged > 1 else " holds"
        lines.insert(1, f"{found.damaged} line{several} no result in journal.jsonl: skipped, and solved again")
    frame, title = found.frame, "The first solves" if rows > SHOWN else None
    if found.pareto:
        frame, title = found.frontier, "Frontier"
    aims = [a.column for a in found.pareto if a.column not in (*found.keys, "objective")]
    table = titled(
        title, *(plain(k) for k in found.keys), "status", f"objective ({unit})", *(plain(c) for c in aims), "plan"
    )
    for row in frame.head(SHOWN).to_dict("records"):
        table.add_row(
            *(plain(short(row[k])) for k in found.keys), row["status"] + ("" if row["proved"] else " (not proved)"),
            short(row["objective"]), *(short(row[c]) for c in aims), plain(row["headline"]),
        )  # fmt: skip
    lines.append(table)
    if len(frame) > SHOWN:
        lines.append(f"[dim]… {len(frame) - SHOWN} more rows in sweep.csv[/dim]")
    if found.folder is not None:
        lines.append(f"[dim]Files: {plain(path_text(found.folder))}[/dim]")
    return lines
