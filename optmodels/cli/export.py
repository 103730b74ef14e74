"""`export`: a plan as what engines, schedulers, clouds and solvers read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli.options import Force, PlanFile
from optmodels.cli.results import result_of
from optmodels.errors import printable


def export(
    plan: PlanFile,
    to: Annotated[
        str, typer.Option(help="vllm, kubernetes, lws, kserve, keda, llm-d, dynamo, skypilot, terraform, mps or lp.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the files (default: all of them on stdout).")] = None,
    force: Force = False,
) -> int:
    """Export a plan to vLLM, Kubernetes and other targets. It can also write the model itself, as MPS or LP."""
    made = optmodels.export(result_of(plan), to, out=out, force=force)
    for note in made.notes:
        sys.stderr.write(f"note: {' '.join(printable(note).split())}\n")
    for name, text in made.files.items():
        if out is not None:
            sys.stdout.write(f"{out / name}\n")
        else:
            sys.stdout.write((f"# --- {name}\n" if len(made.files) > 1 else "") + text)
    return 0
