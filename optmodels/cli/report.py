"""`report`: one HTML page of results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import optmodels
from optmodels.cli.options import verb
from optmodels.cli.results import result_of

Results = Annotated[
    list[Path], typer.Argument(metavar="RESULT", help="Result files (plan.json, compare.json), folders, or problems.")
]


@verb(
    "results", results=Results,
    out="HTML file (default: a new report.html next to the result).",
)  # fmt: skip
def report(
    given: dict[str, Any],
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> int:
    """Write one HTML page of results without network. It holds tables, charts, the certificate and the problem."""
    results = [result_of(r) for r in given["results"]]
    target = given.get("out") or _free(results)
    optmodels.report(**given | {"results": results, "out": target})
    sys.stdout.write(f"{target}\n")
    if show:
        import webbrowser

        webbrowser.open(target.resolve().as_uri())
    return 0


def _free(results: list[Path]) -> Path:
    """A name that is not taken: next to a single result, else in the current folder."""
    folder = Path()
    if len(results) == 1:
        folder = results[0] if results[0].is_dir() else results[0].parent
    names = (folder / ("report.html" if i == 1 else f"report-{i}.html") for i in range(1, 1_000_000))
    return next(name for name in names if not name.exists())
