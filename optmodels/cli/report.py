"""`report`: one HTML page of results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import optmodels
from optmodels.cli.options import Force
from optmodels.cli.results import result_of


def report(
    results: Annotated[
        list[Path], typer.Argument(help="Result files (plan.json, compare.json), folders of them, or problems.")
    ],
    out: Annotated[Path | None, typer.Option(help="HTML file (default: a new report.html next to the result).")] = None,
    figures: Annotated[Path | None, typer.Option(help="Write every chart as a picture into this folder.")] = None,
    format: Annotated[str, typer.Option(help="Format of the pictures: png, svg or pdf.")] = "png",
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    force: Force = False,
) -> int:
    """Write one HTML page of results without network. It holds tables, charts, the certificate and the problem."""
    results = [result_of(r) for r in results]
    target = out if out is not None else _free(results)
    optmodels.report(results, out=target, figures=figures, format=format, title=title, force=force)
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
