"""The table of a formulation's constraint families in its README, made from their docstrings.

    python -m optmodels.model.document formulations.fleet.model formulations/fleet/README.md [--check]

The table stands between two marks, which the README must have; ``--check`` changes nothing and fails where it is old.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from optmodels.errors import InputError, Mistake
from optmodels.model.labels import StatementError
from optmodels.model.model import Family

BEGIN, END = "<!-- families: made by optmodels.model.document -->", "<!-- families: end -->"


def inequality(family: Family) -> tuple[str, str]:
    """A family's inequality and the note to it.

    The docstring's first paragraph is the inequality, up to the first colon; what follows is the note.

    Raises:
        StatementError: no docstring.
    """
    said = inspect.cleandoc(family.__doc__ or "")
    if not said:
        raise StatementError(f"family {family.__name__} has no docstring to say its inequality")
    head, _, rest = said.partition("\n\n")
    stated, _, note = " ".join(head.split()).partition(": ")
    return stated.rstrip("."), " ".join(f"{note} {rest}".split())


def table(families: Iterable[Family]) -> str:
    """A Markdown table: family, inequality, note.

    Raises:
        StatementError: a family without a docstring.
    """
    lines = ["| Family | Inequality | Note |", "|---|---|---|"]
    for family in families:
        stated, note = inequality(family)
        lines.append(f"| `{family.__name__}` | {_cell(stated)} | {_cell(note)} |")
    return "\n".join(lines)


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")


def written(readme: str, families: Iterable[Family], file: str = "README.md") -> str:
    """The README with its table again.

    Raises:
        InputError: the marks are not there, once each and in order.
        StatementError: a family without a docstring.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in before + after:
        raise InputError(Mistake(file, "", None, f"one line {BEGIN!r} and after it one {END!r}"))
    return f"{before}{BEGIN}\n\n{table(families)}\n\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table, or with ``--check`` state whether it is as the code has it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m optmodels.model.document", description=__doc__)
    parser.add_argument("module", help="has the families in FAMILIES")
    parser.add_argument("readme", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 where the table is old")
    given = parser.parse_args(arguments)
    try:
        families = importlib.import_module(given.module).FAMILIES
        old = given.readme.read_text(encoding="utf-8")
        new = written(old, families, str(given.readme))
    except (ImportError, AttributeError, OSError, InputError, StatementError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if new != old and given.check:
        sys.stderr.write(f"{given.readme}: the table of families is not that of {given.module}\n")
        return 1
    if new != old:
        given.readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
