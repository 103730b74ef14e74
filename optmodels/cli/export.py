"""`export`: a plan as what engines, schedulers, clouds and solvers read."""

from __future__ import annotations

import sys
from typing import Any

import optmodels
from optmodels.cli.options import verb
from optmodels.cli.results import result_of
from optmodels.errors import printable


@verb("plan", out="Folder for the files (default: all of them on stdout).")
def export(given: dict[str, Any]) -> int:
    """Export a plan to vLLM, Kubernetes and other targets. It can also write the model itself, as MPS or LP."""
    made = optmodels.export(**given | {"plan": result_of(given["plan"])})
    for note in made.notes:
        sys.stderr.write(f"note: {' '.join(printable(note).split())}\n")
    for name, text in made.files.items():
        if "out" in given:
            sys.stdout.write(f"{given['out'] / name}\n")
        else:
            sys.stdout.write((f"# --- {name}\n" if len(made.files) > 1 else "") + text)
    return 0
