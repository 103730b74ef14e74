"""How far simulation confirmed a plan, as every formulation that certifies prints it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from optmodels.reporting.text import first_lines, titled

FOUND = {"kept": "satisfied", "broken": "violated", "undecided": "inconclusive"}  # tests of SLOs, in words


def certification_lines(
    c: Any, held: str, columns: Mapping[str, Callable[[Any], str]], cuts: Sequence[str], unkept: Sequence[str]
) -> list[Any]:
    """The rounds of certification, the cuts, and the missed SLOs.

    Args:
        c: the `certification` of a plan.
        held: verb for a certified plan's SLOs, in words.
        columns: columns of its rounds, besides what all have: title → a round's cell. Rounds that are equal in the
            first of them and follow each other are shown as one, but for the plan's.
        cuts: the cuts, in words.
        unkept: promises that were not found kept, in words.
    """
    colour = "green" if c.status == "certified" else "red"
    words = {
        "certified": held,
        "incomplete": "not certified: the rounds were stopped",
        "not kept": "not certified: no plan is left that satisfies the cuts",
    }[c.status]
    out: list[Any] = [f"[{colour}]Certification: {words}[/{colour}]"]
    if c.rounds:
        runs = _runs(c.rounds, c.of_round, next(iter(columns.values())))
        title = "Of several rounds the one with the fewest violated" if any(len(run) > 1 for run in runs) else ""
        table = titled(title, "round", "objective", "SLOs", "violated", "inconclusive", *columns)
        for run in runs:
            which = " (this plan)" if run == [c.of_round] and len(c.rounds) > 1 else ""
            number = f"{run[0]}{which}" if len(run) == 1 else f"{run[0]} to {run[-1]}"
            r = min((c.rounds[i - 1] for i in run), key=lambda r: (r.broken, r.undecided))
            common = f"{r.objective:,.6g}", str(r.promises), str(r.broken), str(r.undecided)
            table.add_row(number, *common, *(cell(r) for cell in columns.values()))
        out.append(table)
    return out + first_lines([f"  {x}" for x in cuts]) + first_lines([f"  {x}" for x in unkept])


def _runs(rounds: Sequence[Any], chosen: int | None, kind: Callable[[Any], str]) -> list[list[int]]:
    """Numbers of rounds, from 1, that are shown as one."""
    each = groupby(enumerate(rounds, 1), key=lambda x: (kind(x[1]), x[0] == chosen))
    return [[number for number, _ in run] for _, run in each]
