"""`new`: a problem file to start from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import optmodels
from optmodels.cli.options import verb
from optmodels.errors import InputError, Mistake


@verb("formulation", "file", "folder")
def new(
    given: dict[str, Any],
    interactive: Annotated[
        bool,
        typer.Option(
            "--interactive", help="Ask the questions of `plan` one by one (fleet only); answers may come from a file."
        ),
    ] = False,
) -> int:
    """Write a problem file to start from. It writes a template, a shipped one, or a package of your own formulation."""
    formulation, file, from_ = given["formulation"], given.get("file"), given.get("from_")
    if interactive:
        from optmodels.cli import interview
        from optmodels.io.write import refuse_existing, write_text

        if from_ is not None:
            raise InputError(Mistake(None, "--interactive", "--from", "one of the two"))
        if formulation != "fleet":
            raise InputError(Mistake(None, "--interactive", formulation, "`optmodels new fleet --interactive`"))
        if file is not None and not given["force"]:
            refuse_existing(file)
        text = interview.instance()
        if file is not None:
            write_text(file, text, overwrite=given["force"])
    else:
        if from_ is not None and file is None and formulation != "current":
            file = Path(f"{from_.rpartition('/')[2]}.yaml")
        text = optmodels.new(**given | {"file": file})
    made = formulation == "formulation" and not interactive
    sys.stdout.write(text if file is None else f"{text if made else file}\n")
    return 0
