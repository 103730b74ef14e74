"""`stress`: a plan under more demand, slower engines and losses."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import optmodels
from optmodels.cli.console import answer
from optmodels.cli.options import Json, verb
from optmodels.cli.results import result_of
from optmodels.errors import InputError, Mistake

Factors = Annotated[
    list[str] | None, typer.Option(help="Range of factors: demand=1:1.5 or latency=1:1.5; may be repeated.")
]


@verb("plan")
def stress(given: dict[str, Any], inflate: Factors = None, as_json: Json = False) -> int:
    """Stress-test a plan. The table has SLO attainment and cost under more demand, slower engines and losses."""
    from optmodels.reporting.stress import stress_lines

    given |= {"plan": result_of(given["plan"]), "inflate": dict(_range(text) for text in inflate or ())}
    answer(lambda: optmodels.stress(**given), as_json, stress_lines)
    return 0


def _range(text: str) -> tuple[str, tuple[float, float]]:
    """``demand=1:1.5`` as its name and the two factors; one factor is both."""
    name, _, ends = text.partition("=")
    low, _, high = ends.partition(":")
    try:
        return name.strip(), (float(low), float(high or low))
    except ValueError:
        raise InputError(Mistake(None, "--inflate", text, "NAME=FROM:TO, such as demand=1:1.5")) from None
