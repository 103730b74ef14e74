"""report, export: what people read and run next."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from optmodels.cli.options import Force, PlanFile
from optmodels.errors import printable


def register(app: typer.Typer) -> None:
    """Add this module's verbs."""
    app.command()(report)
    app.command()(export)


def report(
    results: Annotated[
        list[Path], typer.Argument(help="Result files (plan.json, compare.json), folders of them, or instances.")
    ],
    out: Annotated[Path | None, typer.Option(help="HTML file (default: a new report.html beside the result).")] = None,
    figures: Annotated[Path | None, typer.Option(help="Write every chart as a picture into this folder.")] = None,
    kind: Annotated[str, typer.Option("--format", help="Of the pictures: png, svg or pdf.")] = "png",
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    force: Force = False,
) -> int:
    """One HTML page of results that needs no network. Words, tables, charts, the certificate, the instance."""
    from optmodels import api
    from optmodels.cli.results import result_of

    results = [result_of(r) for r in results]
    target = out if out is not None else _free(results)
    api.report(results, out=target, figures=figures, kind=kind, title=title, overwrite=force)
    sys.stdout.write(f"{target}\n")
    if show:
        import webbrowser

        webbrowser.open(target.resolve().as_uri())
    return 0


def export(
    plan: PlanFile,
    to: Annotated[
        str, typer.Option(help="vllm, kubernetes, lws, kserve, keda, llm-d, dynamo, skypilot, terraform, mps or lp.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the files (default: all of them on stdout).")] = None,
    force: Force = False,
) -> int:
    """What runs and buys a plan: vLLM, Kubernetes and more. Or the model itself, as MPS or LP."""
    from optmodels import api
    from optmodels.cli.results import result_of

    made = api.export(result_of(plan), to, out=out, overwrite=force)
    for note in made.notes:
        sys.stderr.write(f"note: {' '.join(printable(note).split())}\n")
    for name, text in made.files.items():
        if out is not None:
            sys.stdout.write(f"{out / name}\n")
        else:
            sys.stdout.write((f"# --- {name}\n" if len(made.files) > 1 else "") + text)
    return 0


def _free(results: list[Path]) -> Path:
    """A name that is not taken: beside a single result, else here."""
    folder = Path()
    if len(results) == 1:
        folder = results[0] if results[0].is_dir() else results[0].parent
    names = (folder / ("report.html" if i == 1 else f"report-{i}.html") for i in range(1, 1_000_000))
    return next(name for name in names if not name.exists())
