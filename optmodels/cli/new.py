"""`new`: a problem file to start from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli.options import Force
from optmodels.errors import InputError, Mistake


def new(
    formulation: Annotated[
        str,
        typer.Argument(
            help="A formulation (optmodels list formulations); current: today's fleet; formulation: one of your own."
        ),
    ],
    file: Annotated[
        Path | None,
        typer.Argument(
            help="File to write (default: stdout; with --from the problem's own name); or the new formulation's name."
        ),
    ] = None,
    folder: Annotated[Path | None, typer.Argument(help="Where a new formulation goes (default: here).")] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="A shipped problem file, with its files: optmodels list problems. For current: a problem file.",
        ),
    ] = None,
    interactive: Annotated[
        bool,
        typer.Option(
            "--interactive", help="Ask the questions of `plan` one by one (fleet only); answers may come from a file."
        ),
    ] = False,
    force: Force = False,
) -> int:
    """Write a problem file to start from. It writes a template, a shipped one, or a package of your own formulation."""
    if interactive:
        from optmodels.cli import interview
        from optmodels.io.write import refuse_existing, write_text

        if from_ is not None:
            raise InputError(Mistake(None, "--interactive", "--from", "one of the two"))
        if formulation != "fleet":
            raise InputError(Mistake(None, "--interactive", formulation, "`optmodels new fleet --interactive`"))
        if file is not None and not force:
            refuse_existing(file)
        text = interview.instance()
        if file is not None:
            write_text(file, text, overwrite=force)
    else:
        if from_ is not None and file is None and formulation != "current":
            file = Path(f"{from_.rpartition('/')[2]}.yaml")
        text = optmodels.new(formulation, file, folder, from_=from_, force=force)
    made = formulation == "formulation" and not interactive
    sys.stdout.write(text if file is None else f"{text if made else file}\n")
    return 0
