"""Options that several verbs have: each is stated here once, with its name and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def duration(text: str) -> float | str:
    """Seconds of a bare number; a text with a unit, such as ``800ms``, as it is: the schema reads it."""
    try:
        return float(text)
    except ValueError:
        return text


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
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="Map a column: OURS=THEIRS, OURS=THEIRS:unit, or OURS=3 for all rows."),
]
