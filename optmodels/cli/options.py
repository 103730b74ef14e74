"""Options that several verbs have: each is stated here once, with its name and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Instance = Annotated[Path, typer.Argument(help="Instance file (YAML or JSON).")]
PlanFile = Annotated[
    Path, typer.Argument(help="plan.json of a result, its folder, or the instance: its newest result below results/.")
]
Method = Annotated[str, typer.Option(help="exact, or a heuristic: optmodels list methods.")]
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", help="Seconds (or inf), tables included; the incumbent and bound so far count."),
]
Gap = Annotated[float, typer.Option(help="Stop at this relative MIP gap.")]
Seed = Annotated[int, typer.Option(help="Of the solver or heuristic.")]
Solver = Annotated[
    str, typer.Option(help="highs, or any that Pyomo knows and finds: cbc, glpk, scip, gurobi, cplex, xpress …")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
OutFile = Annotated[Path | None, typer.Option("--out", help="File to write.")]
# How a trace is read: every verb that reads one has these three, and gives them to `reading`.
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="Map a column: OURS=THEIRS, OURS=THEIRS:unit, or OURS=3 for all rows."),
]
Where = Annotated[
    list[str] | None, typer.Option("--where", help="Only rows whose column has this value: status=ok; may be repeated.")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out rows of the trace that cannot be read; they are counted.")
]


def reading(column: list[str] | None, where: list[str] | None, skip_bad: bool) -> dict[str, Any]:
    """The three options as arguments of the API: values of one column are alternatives, columns have to agree."""
    from optmodels.cli.latency import pairs

    chosen: dict[str, list[str]] = {}
    for text in where or ():
        for name, value in pairs([text], "--where").items():
            chosen.setdefault(name, []).append(value)
    return {"columns": pairs(column, "--column") or None, "where": chosen or None, "skip_bad": skip_bad}
