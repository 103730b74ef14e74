"""A results file: its text, its JSON, and where in it something is wrong."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from optmodels.errors import InputError, Mistake
from optmodels.io.pipes import settled
from optmodels.io.read import MAX_BYTES, parsed_yaml
from optmodels.latency.calibration import MOST


@dataclass(frozen=True)
class ResultFile:
    """A file's name and text.

    Attributes:
        name: name that the user gave.
        text: text of the file.
        notes: on rows that a reader left out.
        allow_failed: whether runs with many failed requests are read.
    """

    name: str
    text: str
    notes: list[str] = field(default_factory=list)
    allow_failed: bool = False

    @classmethod
    def of(cls, path: Path, allow_failed: bool = False) -> ResultFile:
        """Read a UTF-8 text file, gzipped or not.

        Raises:
            InputError: not there, unreadable, too large, empty, not text.
        """
        name = str(path)
        path = settled(path, "benchmark results")
        try:
            if not path.is_file():
                kind = "a folder" if path.is_dir() else "no such file"
                raise InputError(Mistake(name, "", kind, "a file of benchmark results"))
            if path.stat().st_size > MAX_BYTES:
                raise InputError(Mistake(name, "", f"{path.stat().st_size} bytes", f"at most {MAX_BYTES} bytes"))
            data = path.read_bytes()
            if data[:2] == b"\x1f\x8b":
                with gzip.open(path) as stream:
                    data = stream.read(MAX_BYTES + 1)
                if len(data) > MAX_BYTES:
                    raise InputError(Mistake(name, "", "a large archive", f"at most {MAX_BYTES} bytes unpacked"))
            text = data.decode("utf-8-sig")
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(Mistake(name, "", str(error) or "unreadable", "a readable file")) from None
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise InputError(Mistake(name, "", "bytes that are not UTF-8", "a text file", line)) from None
        if not text.strip():
            raise InputError(Mistake(name, "", "an empty file", "benchmark results", 1))
        return cls(name, text, allow_failed=allow_failed)

    @cached_property
    def lines(self) -> list[str]:
        """Without line ends."""
        return self.text.splitlines()

    @cached_property
    def json(self) -> Any:
        """The file as one JSON value; None where it is not JSON."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):  # also more digits than Python reads
            return None

    @cached_property
    def records(self) -> list[tuple[int, dict[str, Any]]]:
        """JSON objects with their first line: one object, an array of them, or one on each line.

        Raises:
            InputError: a line that is no JSON object, e.g. a truncated last one.
        """
        if isinstance(self.json, dict):
            return [(1, self.json)]
        if isinstance(self.json, list):
            if self.json and all(isinstance(x, dict) for x in self.json):
                return [(1, x) for x in self.json]
            raise self.wrong("", self.json, "an array of JSON objects", 1)
        if len(self.lines) > 1 and not self.lines[0].rstrip().endswith("}"):
            self._begins_whole()
        found = []
        for number, line in enumerate(self.lines, 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError) as error:
                said = _said(error)
                raise self.wrong("", said, "one whole JSON object on each line", number) from None
            if not isinstance(entry, dict):
                raise self.wrong("", entry, "a JSON object", number)
            found.append((number, entry))
        if not found:
            raise self.wrong("", "no results", "at least one JSON object", 1)
        return found

    @cached_property
    def yaml(self) -> Mapping[str, Any]:
        """The file as a YAML mapping; empty where it is none."""
        if self.text.lstrip()[:1] in ("{", "[") or not re.search(r"^[A-Za-z_]\w*:(\s|$)", self.text, flags=re.M):
            return {}
        try:
            return parsed_yaml(self.text, self.name)
        except InputError:
            return {}

    @cached_property
    def first(self) -> Mapping[str, Any]:
        """The first JSON object, to tell formats apart; empty where there is none."""
        try:
            return self.records[0][1]
        except (InputError, IndexError):
            return {}

    @cached_property
    def header(self) -> set[str]:
        """The names in the first line of a CSV file; empty where it is JSON."""
        if self.text.lstrip()[:1] in ("{", "["):
            return set()
        return {cell.strip() for cell in self.cells(1)}

    @cached_property
    def table(self) -> list[tuple[int, dict[str, Any]]]:
        """Rows of a CSV file with their lines, cells by column: numbers where they are, None where they are empty.

        Raises:
            InputError: a last line that does not end, a row of another length than the header's, no row.
        """
        self.check_ended()
        names, found = [cell.strip() for cell in self.cells(1)], []
        for number in range(2, len(self.lines) + 1):
            cells = self.cells(number)
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(names):
                raise self.wrong("", f"{len(cells)} cells", f"{len(names)} as in the header", number)
            found.append((number, {name: _cell(cell) for name, cell in zip(names, cells, strict=True)}))
        if not found:
            raise self.wrong("", "a header without rows", "at least one result", 1)
        return found

    def cells(self, number: int) -> list[str]:
        """The cells of a line; the first line is 1."""
        try:
            return next(csv.reader([self.lines[number - 1]]), [])
        except csv.Error as error:
            raise self.wrong("", str(error), "a line of CSV", number) from None

    def check_whole(self) -> None:
        """Refuse text that begins as JSON and does not end as it.

        Raises:
            InputError: with the line where it breaks off.
        """
        if self.text.lstrip()[:1] in ("{", "[") and not self._begins_whole():
            _ = self.records  # one object on each line

    def check_ended(self) -> None:
        """Refuse text whose last line does not end: a number cut short is a number still.

        Raises:
            InputError: with that line.
        """
        if not self.text.endswith("\n"):
            raise InputError(
                Mistake(
                    self.name, "", self.lines[-1][-60:], "a last line that ends (is the file truncated?)",
                    len(self.lines), "if it is whole, add the line end",
                )
            )  # fmt: skip

    def _begins_whole(self) -> bool:
        """Whether the text is one JSON value; False where more follows a whole one."""
        try:
            json.loads(self.text)
        except json.JSONDecodeError as error:
            if error.msg == "Extra data":
                return False
            raise self.wrong("", error.msg, "whole, valid JSON", error.lineno) from None
        except (ValueError, RecursionError) as error:
            raise self.wrong("", _said(error), "benchmark results", 1) from None
        return True

    def wrong(self, path: str, value: object, expected: str, line: int | None = None) -> InputError:
        """A mistake in this file; the line of the field named last in `path` unless given."""
        if line is None and path:
            line = self.line_of(re.split(r"[.\[]", path)[-1])
        return InputError(Mistake(self.name, path, value, expected, line))

    def line_of(self, field: str, start: int = 1) -> int | None:
        """First line from `start` on with a JSON key."""
        key = re.compile(rf'"{re.escape(field)}"\s*:')
        return next((n for n, line in enumerate(self.lines[start - 1 :], start) if key.search(line)), None)

    def number(
        self, data: Any, path: str, line: int = 1, *, positive: bool = True, optional: bool = False
    ) -> float | None:
        """A number at a dotted path of a JSON object.

        Raises:
            InputError: missing (unless optional), not a finite number, or not positive.
        """
        value = data
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None:
            if optional:
                return None
            raise self.wrong(path, None, "a number", line)
        known = not isinstance(value, bool) and isinstance(value, int | float) and -MOST <= value <= MOST
        if known and (value > 0 or (value == 0 and not positive)):
            return float(value)
        at = self.line_of(path.split(".")[0], line) or line
        if not known:
            raise self.wrong(path, value, f"a finite number, at most {MOST:g}", at)
        raise self.wrong(path, value, f"a number {'>' if positive else '≥'} 0", at)

    def needed(self, data: Any, path: str, line: int = 1) -> float:
        """`number` that must be there."""
        value = self.number(data, path, line)
        assert value is not None
        return value

    def or_set(self, value: float | None, name: str, fixed: Mapping[str, float], line: int = 1) -> float:
        """A value of the file, else the user's.

        Raises:
            InputError: neither.
        """
        if value is not None:
            return value
        if name in fixed:
            return fixed[name]
        option = "--tp N" if name == "tp" else f"--set {name}=N"
        raise InputError(
            Mistake(self.name, name, None, "a value: the file does not state it", line, f"give it with {option}")
        )


def _cell(text: str) -> float | str | None:
    text = text.strip()
    try:
        found = float(text) if text else None
    except ValueError:
        return text
    return found if found is None or math.isfinite(found) else text


def _said(error: Exception) -> str:
    """The fault in a JSON text, in words."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "too deeply nested" if isinstance(error, RecursionError) else "a number of thousands of digits"
