"""`schema`: the JSON Schema of input files and documents."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

import optmodels


def schema(
    name: Annotated[
        str,
        typer.Argument(help="A formulation (problem files), or current, plan, explanation, compare, sweep, replay."),
    ],
    keys: Annotated[
        bool, typer.Option("--keys", help="Every key of a formulation's problem files in words (Markdown).")
    ] = False,
) -> int:
    """Print the JSON Schema of an input file or document. Documents are problem files, input of `evaluate`, results."""
    found = optmodels.schema(name, keys=keys)
    sys.stdout.write(found if isinstance(found, str) else json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return 0
