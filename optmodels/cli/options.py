"""Options that several verbs have: each is stated here once, with its name and help."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

N = TypeVar("N", str, int, float)


def duration(text: str) -> float | str:
    """Seconds of a bare number; a text with a unit, such as ``800ms``, unchanged: the schema reads it."""
    try:
        return float(text)
    except ValueError:
        return text


def seconds(text: str) -> float:
    """Seconds of ``0.8``, ``800ms`` or ``2 min``."""
    return _quantity(text, "s")


def ttft(text: str) -> float:
    """A limit on TTFT in seconds."""
    return _limit(text, "TTFT")


def tpot(text: str) -> float:
    """A limit on TPOT in seconds."""
    return _limit(text, "TPOT")


def e2e(text: str) -> float:
    """A limit on the time of a request in seconds."""
    return _limit(text, "time of a request")


def _limit(text: str, name: str) -> float:
    from optmodels.limits import SECONDS_USUAL
    from optmodels.units import bare_number

    found, bare = _quantity(text, "s"), bare_number(text)
    if bare is not None and bare > SECONDS_USUAL[name]:
        raise typer.BadParameter(f"{bare:g} has no unit, and that is long for a {name}: '{bare:g} ms' or '{bare:g} s'?")
    return found


def _quantity(text: str, unit: str) -> float:
    from pydantic_core import PydanticCustomError

    from optmodels.units import convert

    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(str(convert(text, unit)))
    except PydanticCustomError as error:
        raise typer.BadParameter(f"{text!r} is not {error.message()}") from None


def gpu(text: str) -> str:
    """A GPU by its catalogue key; unknown names unchanged."""
    from optmodels.catalog import spelling

    return str(spelling.gpu(text))


def precision(text: str) -> str:
    """A weight precision by its name in files; unknown names unchanged."""
    from optmodels.catalog import spelling

    return str(spelling.precision(text))


def kv_precision(text: str) -> str:
    """A KV-cache precision by its name in files; unknown names unchanged."""
    from optmodels.catalog import spelling

    return str(spelling.kv_precision(text))


def engine(text: str) -> str:
    """An engine by its name in files; unknown names unchanged."""
    from optmodels.catalog import spelling

    return str(spelling.engine(text))


def named(parser: Callable[[str], Any], help: str) -> Any:
    """An option whose value is a name, read by `parser`."""
    return typer.Option(parser=parser, metavar="TEXT", help=help)


def timed(help: str, parser: Callable[[str], Any] = seconds, *names: str) -> Any:
    """An option whose value is a duration."""
    return typer.Option(*names, parser=parser, metavar="SECONDS", help=help)


def listed(text: str, option: str, kind: type[N] = str, least: float = 0, most: float = math.inf) -> list[N]:  # type: ignore[assignment]
    """The values of a comma list, in their order.

    Args:
        text: such as ``1,2,4``.
        option: its name, for messages.
        kind: str, int or float.
        least, most: bounds of numbers.

    Raises:
        InputError: a value that is not of its kind or out of bounds.
    """
    from optmodels.errors import InputError, Mistake

    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        found = [kind(part) for part in parts]
        if found and (kind is str or all(least <= x <= most for x in found)):  # type: ignore[operator]
            return found
    except ValueError:
        pass
    words = {str: "names", int: "whole numbers"}.get(kind, "numbers")
    bounds = "" if kind is str else f" from {least:,.10g}" + (f" to {most:,.10g}" if math.isfinite(most) else " on")
    raise InputError(Mistake(None, option, text, f"{words}{bounds}, comma-separated"))


def pairs(items: Sequence[str] | None, option: str) -> dict[str, str]:
    """``NAME=VALUE`` options as a mapping.

    Raises:
        InputError: one without a name or a value.
    """
    from optmodels.errors import InputError, Mistake

    found: dict[str, str] = {}
    for item in items or ():
        key, sign, value = item.partition("=")
        if not sign or not key.strip() or not value.strip():
            raise InputError(Mistake(None, option, item, "NAME=VALUE"))
        found[key.strip()] = value.strip()
    return found


Instance = Annotated[Path, typer.Argument(metavar="FILE", help="Problem file (YAML or JSON).")]
PlanFile = Annotated[
    Path, typer.Argument(help="plan.json of a result, its folder, or the problem: its newest result below results/.")
]
Method = Annotated[str, typer.Option(help="exact, or a heuristic: optmodels list methods.")]
TimeLimit = Annotated[
    float | None, timed("Seconds (or 5min, inf), tables included. At the limit the best plan so far counts.")
]
Gap = Annotated[float, typer.Option(help="Stop at this relative MIP gap.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]
Solver = Annotated[
    str, typer.Option(help="highs, or any solver that Pyomo finds: cbc, glpk, scip, gurobi, cplex, xpress …")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
OutFile = Annotated[Path | None, typer.Option("--out", help="File to write.")]

# The options of a trace: every verb that reads one has the first three, and gives them to `reading`.
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="Map a column: OURS=THEIRS, OURS=THEIRS:unit, or OURS=3 for all rows."),
]
Where = Annotated[
    list[str] | None, typer.Option("--where", help="Keep rows whose column has this value: status=ok; may be repeated.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip and count rows of the trace that cannot be read.")]
RateFactor = Annotated[float, typer.Option(help="Multiply the trace's arrival rate by this factor.")]
First = Annotated[float | None, timed("Keep only this many seconds of the trace.")]


def reading(column: list[str] | None, where: list[str] | None, skip_bad: bool) -> dict[str, Any]:
    """The three options as arguments of the API: values of one column are alternatives, columns have to agree."""
    chosen: dict[str, list[str]] = {}
    for text in where or ():
        for name, value in pairs([text], "--where").items():
            chosen.setdefault(name, []).append(value)
    return {"column": pairs(column, "--column") or None, "where": chosen or None, "skip_bad": skip_bad}
