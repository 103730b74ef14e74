"""A model as an MPS or LP file that any solver reads, with the names of the mathematics.

The file has the first objective only: later ones, which choose among equal optima, have no place in either format.
An MPS file always minimises. The objective of a maximisation is negated there; its first line names the change. A
constant of the objective is a column fixed at 1.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csc_matrix, hstack

from optmodels.errors import InputError, Mistake
from optmodels.io.write import write_bytes
from optmodels.solver.compile import Compiled, compile_model
from optmodels.solver.session import Session

FORMATS = ("mps", "lp")
NEGATED = "* A maximisation: this file minimises -1 times the objective.\n"  # first line of an MPS file
LONGEST = 200  # letters of a name; LP files allow 255
# Words that begin a section of an LP file, or mean infinity.
_RESERVED = re.compile(
    r"(min(imi[sz]e|imum)?|max(imi[sz]e|imum)?|st|s\.t\.|such|subject|bounds?|free|inf(inity)?|gen(eral|erals)?"
    r"|int(eger|egers)?|bin(ary|aries)?|semi(-continuous)?|sos[12]?|end)",
    re.IGNORECASE,
)


def write_model(model: Any, path: Path, *, overwrite: bool = False) -> None:
    """Write a linear Pyomo model, or a compiled one, as MPS or LP by the file's ending.

    Args:
        model: its first active objective is written, in the model's own sense.
        path: ending in .mps or .lp; written whole or not at all.
        overwrite: an existing file.

    Raises:
        InputError: another ending, or the file exists.
        SolverError: the model is not linear, or HiGHS cannot write it.
    """
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise InputError(Mistake(str(path), "", path.suffix or "no ending", "a file ending in .mps or .lp"))
    write_bytes(path, model_text(model, kind).encode("ascii"), overwrite=overwrite)


def model_text(model: Any, kind: str) -> str:
    """The text of an MPS or LP file of the model; see `write_model`.

    Args:
        model: a linear Pyomo model, or a compiled one.
        kind: ``mps`` or ``lp``.
    """
    m = model if isinstance(model, Compiled) else compile_model(model)
    # Costs are compiled for minimisation, and an MPS file minimises: CBC and GLPK misread OBJSENSE MAX.
    sign = float(m.signs[0]) if kind == "lp" else 1.0
    costs, A, lower, upper, integer = sign * m.costs[0], m.A, m.lower, m.upper, m.integer
    column_names, offset = [*m.column_names], sign * float(m.offsets[0])
    if kind == "mps" and offset:  # readers disagree on the sign of a constant, not on a column that is fixed at 1
        costs, A = np.append(costs, offset), hstack([A, csc_matrix((A.shape[0], 1))], format="csc")
        lower, upper, integer = np.append(lower, 1.0), np.append(upper, 1.0), np.append(integer, False)
        column_names, offset = [*column_names, "constant"], 0.0
    session = Session()
    session.load(costs, A, m.row_lower, m.row_upper, lower, upper, integer, offset, maximise=sign < 0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"model.{kind}"
        session.write(file, file_names(column_names), file_names(m.row_names))
        text = file.read_text(encoding="ascii")
    if kind == "lp":
        return _whole_words(text)
    return text if m.signs[0] > 0 else NEGATED + text


def _whole_words(text: str) -> str:
    """An LP file whose sections have the names that every reader knows, and none without content.

    CBC takes HiGHS' ``gen`` for a variable, skips the rest and solves a model without integers.
    """
    called = {"bin": "binary", "gen": "general", "semi": "semi-continuous"}
    lines = text.splitlines()
    empty = {i for i, line in enumerate(lines[:-1]) if line in called and not lines[i + 1].startswith(" ")}
    return "\n".join([called.get(line, line) for i, line in enumerate(lines) if i not in empty] + [""])


def file_names(names: Iterable[str]) -> list[str]:
    """Names that both formats take, each once: ``x[0,a b]`` becomes ``x(0,a_b)``."""
    out: list[str] = []
    taken: set[str] = set()
    for name in names:
        plain = name.replace("[", "(").replace("]", ")")
        plain = re.sub(r"[^A-Za-z0-9_(),.#$%&@{}]", "_", plain)[:LONGEST]
        if not re.match(r"[A-Za-z_]", plain) or re.match(r"[eE][0-9]", plain) or _RESERVED.fullmatch(plain):
            plain = f"_{plain}"
        unique, n = plain, 2
        while unique in taken:
            unique, n = f"{plain}_{n}", n + 1
        taken.add(unique)
        out.append(unique)
    return out
