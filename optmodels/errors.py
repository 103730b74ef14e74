"""What a user can get wrong, and how it is said."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """One thing wrong in a user's input.

    Attributes:
        file: The file as the user named it (None for objects made in Python).
        path: Where inside the file, e.g. ``slo.ttft_s`` or ``pool.machines[2].gpu``.
        value: The offending value (None when something is missing).
        expected: What would have been right, unit included.
        line: 1-based line in the file, where known.
        hint: A suggestion, e.g. the nearest known name.
    """

    file: str | None
    path: str
    value: object
    expected: str
    line: int | None = None
    hint: str | None = None

    def __str__(self) -> str:
        where = printable(self.file or "<input>", 400)
        if self.line is not None:
            where += f":{self.line}"
        text = f"{where}: {printable(self.path, 400) or '(top level)'}: "
        text += "missing" if self.value is None else f"got {shorten(self.value)}"
        text += f"; expected {printable(self.expected, 2000)}"
        return text + (f" ({printable(self.hint, 400)})" if self.hint else "")


def printable(text: str, limit: int | None = None) -> str:
    """Text without control characters (which could drive a terminal), cut to `limit` characters."""
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


class _Short(reprlib.Repr):
    """`repr` that looks at the beginning of a value only, however large it is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = 4
        self.maxstring = self.maxother = self.maxlong = 120


def shorten(value: object, limit: int = 80) -> str:
    """`repr` of a value, cut to `limit` characters and free of control characters."""
    return printable(_Short().repr(value), limit)


class OptmodelsError(Exception):
    """Base class of every error this package raises on purpose."""


class InputError(OptmodelsError):
    """The user's input is wrong; carries every mistake found, not only the first."""

    def __init__(self, mistakes: Iterable[Mistake] | Mistake) -> None:
        self.mistakes = (mistakes,) if isinstance(mistakes, Mistake) else tuple(mistakes)
        super().__init__("\n".join(str(m) for m in self.mistakes))


class SolverError(OptmodelsError):
    """The solver or the compilation of a model failed: a fault of the program, not of the user."""


class UnattainableError(InputError):
    """A well-formed instance whose limits nothing can meet, as seen before any model is built."""
