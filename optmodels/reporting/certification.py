"""How far simulation confirmed a plan, as every formulation that certifies prints it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optmodels.reporting.text import first_lines, titled


def certification_lines(
    c: Any, held: str, columns: Mapping[str, Callable[[Any], str]], cuts: Sequence[str], unkept: Sequence[str]
) -> list[Any]:
    """The rounds of certification, what was cut, and what is not kept.

    Args:
        c: the `certification` of a plan.
        held: what a certified plan's promises do, in words.
        columns: of its rounds, besides what all have: title → a round's cell.
        cuts: in words.
        unkept: promises that were not found kept, in words.
    """
    colour = "green" if c.status == "certified" else "red"
    words = {
        "certified": held,
        "incomplete": "not certified: the rounds were stopped",
        "not kept": "not certified: no plan is left that keeps what the rounds cut off",
    }[c.status]
    out: list[Any] = [f"[{colour}]Certification: {words}[/{colour}]"]
    if c.rounds:
        table = titled("", "round", "objective", "promises", "broken", "undecided", *columns)
        for number, r in enumerate(c.rounds, 1):
            which = " (this plan)" if number == c.of_round and len(c.rounds) > 1 else ""
            common = f"{r.objective:,.6g}", str(r.promises), str(r.broken), str(r.undecided)
            table.add_row(f"{number}{which}", *common, *(cell(r) for cell in columns.values()))
        out.append(table)
    return out + first_lines([f"  {x}" for x in cuts]) + first_lines([f"  {x}" for x in unkept])
