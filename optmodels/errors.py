"""Mistakes of a user, and their messages."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

MOST_SHOWN = 50  # mistakes that are written out; the others are counted
LONGEST = 20_000  # characters of the messages together: a screen that scrolls away states nothing


@dataclass(frozen=True)
class Mistake:
    """One thing wrong in a user's input.

    Attributes:
        file: The file as the user named it (None for objects made in Python and for arguments).
        path: Place in the file, e.g. ``slo.ttft_s`` or ``pool.machines[2].gpu``.
        value: The offending value (None when something is missing).
        expected: The values that are right, with their unit.
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
        line = "" if self.line is None else f":{self.line}"
        text = "" if not self.file else f"{printable(self.file, 400)}{line}: "
        text += f"{printable(self.path, 400) or '(top level)'}: "
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

    def repr1(self, x: Any, level: int) -> str:
        """A table's number without the name of its type; a file's section as its contents."""
        if hasattr(x, "model_dump"):
            x = x.model_dump(exclude_unset=True)
        return super().repr1(x.item() if type(x).__module__ == "numpy" and not getattr(x, "shape", 1) else x, level)

    def repr_int(self, x: int, level: int) -> str:
        """As it is written, unless Python refuses to write this many digits."""
        return super().repr_int(x, level) if x.bit_length() < 10_000 else "a whole number of thousands of digits"


def shorten(value: object, limit: int = 80) -> str:
    """`repr` of a value, cut to `limit` characters and free of control characters; a long section by its keys."""
    text = _Short().repr(value)
    if isinstance(value, Mapping) and len(text) > limit:
        text = f"a section with {', '.join(map(str, islice(value, MOST_SHOWN)))}"
    return printable(text, limit)


class OptmodelsError(Exception):
    """Base class of every error this package raises on purpose."""


class InputError(OptmodelsError):
    """The user's input is wrong; carries every mistake found, not only the first."""

    def __init__(self, mistakes: Iterable[Mistake] | Mistake) -> None:
        self.mistakes = (mistakes,) if isinstance(mistakes, Mistake) else tuple(mistakes)
        super().__init__(self.mistakes)

    def __str__(self) -> str:
        lines: list[str] = []
        room = LONGEST
        for m in self.mistakes[:MOST_SHOWN]:
            line = str(m)
            if lines and len(line) > room:
                break
            lines.append(line)
            room -= len(line)
        more = len(self.mistakes) - len(lines)
        return "\n".join([*lines, f"and {more:,} more mistakes"] if more else lines)


class NotWrittenError(InputError):
    """Something was found and could not be written; it is not lost.

    Attributes:
        result: the return value that could not be written.
    """

    def __init__(self, mistakes: Iterable[Mistake] | Mistake, result: Any = None) -> None:
        super().__init__(mistakes)
        self.result = result


class SolverError(OptmodelsError):
    """The solver or the compilation of a model failed: a fault of the program, not of the user."""


class UnpublishedError(InputError):
    """A figure that nobody has published, such as a GPU's peak: one choice fewer among machines that are compared."""


class UnattainableError(InputError):
    """A well-formed instance whose limits nothing can meet, as seen before any model is built."""


def did_you_mean(value: object, known: Iterable[str], cutoff: float = 0.6, most: int = 1) -> str | None:
    """A hint with the `most` known names most like `value`, in capitals or not; None when none is equal.

    `cutoff` is difflib's.
    """
    names = {str(name).casefold(): name for name in known}
    near = [names[x] for x in difflib.get_close_matches(str(value).casefold(), names, n=most, cutoff=cutoff)]
    return f"did you mean {' or '.join(near)}?" if near else None


def one_of(path: str, value: object, known: Iterable[str]) -> None:
    """Refuse a value that is none of the known ones, and suggest the nearest.

    Raises:
        InputError: it is none of them.
    """
    names = list(known)
    if value not in names:
        raise InputError(Mistake(None, path, value, f"one of {', '.join(names)}", hint=did_you_mean(value, names)))


class Mistakes(list[Mistake]):
    """Mistakes found so far, so that all are reported at once; the file is filled in by the one who read it."""

    LISTED = 12  # known names shown after an unknown one

    def add(self, path: str, value: object, expected: str, hint: str | None = None) -> None:
        """One more mistake."""
        self.append(Mistake(None, path, value, expected, hint=hint))

    def unknown(self, path: str, value: str, what: str, known: Iterable[str]) -> None:
        """A name that is none of the known ones: some known ones are listed, the nearest is suggested."""
        names = sorted(known)
        listing = ", ".join(names[: self.LISTED]) + (", …" if len(names) > self.LISTED else "") or "there is none"
        self.add(path, value, f"{what}: {listing}", did_you_mean(value, names))

    def among(self, path: str, names: Iterable[str], what: str, known: Iterable[str]) -> None:
        """`unknown` for every name that is none of the known ones; ``{}`` in the path stands for the name."""
        listed = list(known)
        for name in names:
            if name not in listed:
                self.unknown(path.replace("{}", name), name, what, listed)

    def once(self, path: str, names: Iterable[str], expected: str) -> None:
        """One mistake for each name that was there before; ``{}`` in the path stands for its place."""
        seen = set[str]()
        for i, name in enumerate(names):
            if name in seen:
                self.add(path.replace("{}", str(i)), name, expected)
            seen.add(name)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Go on after the block if it raised an InputError, with its mistakes."""
        try:
            yield
        except InputError as error:
            self.extend(error.mistakes)

    def collect(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """What `call(*arguments)` returns, or None and the mistakes it raised."""
        with self.collecting():
            return call(*arguments)
        return None

    def raise_any(self, most: int | None = None) -> None:
        """Raise the mistakes, at most the first `most` of them, if there are any.

        Raises:
            InputError: always, unless nothing was wrong.
        """
        if self:
            raise InputError(self[:most])
