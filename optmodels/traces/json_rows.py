"""Requests in JSON: lines, an array, or an object, flat or nested, one request each or a list of them.

* Keys within objects are joined by dots, entries of lists have their number: ``timing_events[0].timestamp``. Lists of
  ``{key, value}`` (OpenTelemetry's attributes) are read as objects.
* An object without token counts that holds lists of objects (AIBrix' ``requests``, OTLP's ``scopeSpans``, ``data``)
  stands for the objects in them; each has the outer keys too.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from optmodels.errors import InputError, Mistake
from optmodels.traces.columns import has_tokens, roles, several

MAX_DEPTH = 12
MAX_ENTRIES = 64  # of a list, read one by one
_VALUES = ("intValue", "doubleValue", "stringValue", "boolValue")
SESSION = "session_id"  # of turns listed in one object that names no session


class JsonColumn:
    """Cells of one key: numbers packed, whatever else kept next to them."""

    def __init__(self) -> None:
        self.packed, self.odd = array("d"), dict[int, Any]()

    def put(self, row: int, value: Any) -> None:
        """The cell of a row; rows left out are empty."""
        self.fill(row)
        if type(value) is int or type(value) is float:
            try:
                self.packed.append(value)
                if type(value) is int and abs(value) >= 2**53:
                    self.odd[row] = value
                return
            except OverflowError:
                pass
        if value is not None:
            self.odd[row] = value
        self.packed.append(np.nan)

    def fill(self, rows: int) -> None:
        """Empty cells up to a row."""
        missing = rows - len(self.packed)
        if missing > 0:
            self.packed.extend([np.nan] * missing)

    def series(self) -> Any:
        """As pandas has it."""
        import pandas as pd

        found: Any = pd.Series(np.array(self.packed, dtype=np.float64))
        if self.odd:
            found = found.astype(object)
            found.iloc[list(self.odd)] = pd.Series(list(self.odd.values()), dtype=object).to_numpy()
        return found


def values(file: str, text: str, line: int = 1) -> Iterator[tuple[int, Any]]:
    """JSON values one after another, entries of an array one by one, each with its line.

    Raises:
        InputError: no JSON, by line.
    """
    decoder, at, seen = json.JSONDecoder(), 0, 0
    inside = False

    def skip(at: int, characters: str) -> int:
        while at < len(text) and (text[at].isspace() or text[at] in characters):
            at += 1
        return at

    at = skip(at, "")
    if text[at : at + 1] == "[":
        inside, at = True, at + 1
    while True:
        at = skip(at, "," if inside else "")
        line, seen = line + text.count("\n", seen, at), at
        if inside and text[at : at + 1] == "]":
            inside, at = False, at + 1
            continue
        if at >= len(text):
            if inside:
                raise InputError(Mistake(file, "", "an array that does not end", "whole, valid JSON", line))
            return
        try:
            value, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            where = line + text.count("\n", seen, error.pos)
            raise InputError(Mistake(file, "", error.msg, "whole, valid JSON", where)) from None
        except (RecursionError, ValueError):
            raise InputError(Mistake(file, "", text[at : at + 60], "JSON that can be read", line)) from None
        yield line, value
        at = end


def flat(row: Mapping[str, Any], lists: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The values of a request by their keys joined by dots; lists of `lists` whole."""
    found: dict[str, Any] = {}

    def walk(path: str, value: Any, depth: int) -> None:
        if path in lists or depth > MAX_DEPTH:
            found[path] = value
        elif isinstance(value, Mapping):
            for k, v in value.items():
                walk(f"{path}.{k}" if path else str(k), v, depth + 1)
        elif isinstance(value, list):
            if _are_attributes(value):
                walk(path, {str(x["key"]): _unpacked(x.get("value")) for x in value}, depth + 1)
                return
            for i, entry in enumerate(value[:MAX_ENTRIES]):
                if isinstance(entry, Mapping | list):
                    walk(f"{path}[{i}]", entry, depth + 1)
                else:
                    found[f"{path}[{i}]"] = entry
        else:
            found[path] = value

    walk("", row, 0)
    return found


def _has_rows(value: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether an object holds, at some depth, a list of several objects."""
    return any(
        (isinstance(v, list) and len(v) > 1 and all(isinstance(x, Mapping) for x in v) and not _are_attributes(v))
        or (isinstance(v, Mapping) and depth < MAX_DEPTH and _has_rows(v, depth + 1))
        for v in value.values()
    )


def _columns(value: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The rows of a table that one object holds by columns, as pandas writes it; None: it holds none."""
    names, data = value.get("columns"), value.get("data")
    if isinstance(names, list) and isinstance(data, list) and all(isinstance(x, list) for x in data):
        return [dict(zip(map(str, names), x, strict=False)) for x in data] if has_tokens(map(str, names)) else None
    lists = {k: v for k, v in value.items() if isinstance(v, list)} or {
        k: list(v.values()) for k, v in value.items() if isinstance(v, Mapping) and v and all(map(str.isdigit, v))
    }
    if len({len(v) for v in lists.values()}) != 1 or not has_tokens(lists):
        return None
    return [dict(zip(lists, x, strict=True)) for x in zip(*lists.values(), strict=True)]


def _are_attributes(value: list[Any]) -> bool:
    """Whether a list holds OpenTelemetry's attributes."""
    return bool(value) and all(
        isinstance(x, Mapping) and x.keys() <= {"key", "value", "type"} and "key" in x for x in value
    )


def _unpacked(value: Any) -> Any:
    """The value of an OpenTelemetry attribute."""
    if isinstance(value, Mapping):
        return next((value[k] for k in _VALUES if k in value), dict(value))
    return value


class RequestColumns:
    """Rows of a JSON file as columns; only keys that matter are kept.

    Args:
        file: file name, for messages.
        keep: keys to keep besides those known by their name.
        blocks: key of the prompts' blocks.
        complete: whether a request has its lengths, by its keys.
    """

    def __init__(
        self, file: str, keep: frozenset[str], blocks: str, complete: Callable[[set[str]], bool]
    ) -> None:  # fmt: skip
        self.file, self.keep, self.blocks_key, self.complete = file, keep, blocks, complete
        self.whole = frozenset((blocks, *keep))  # keys whose lists are no entries of their own
        self.lines: list[int] = []
        self.columns: dict[str, JsonColumn] = {}
        self.names: dict[str, None] = {}
        self.ids, self.counts = array("q"), array("q")
        self._wanted: dict[str, bool] = {}

    def add(self, line: int, value: Any) -> None:
        """The request, or the requests, of one JSON value.

        Raises:
            InputError: no object, or blocks that are none.
        """
        if not isinstance(value, Mapping):
            expected = f"an object with {self.blocks_key} as a list of whole numbers"
            raise InputError(Mistake(self.file, "", value, expected, line))
        if (columns := _columns(value)) is not None:
            for row in columns:
                self._one(line, row)
        elif any(isinstance(v, dict | list) and k != self.blocks_key for k, v in value.items()):
            for row in self._requests(line, value, {}, 0):
                self._one(line, flat(row, self.whole))
        else:
            self._one(line, value)

    def _requests(self, line: int, row: Mapping[str, Any], outer: Mapping[str, Any], depth: int) -> Iterator[Any]:
        merged = {**outer, **row}
        lists = {
            k: v for k, v in row.items()
            if isinstance(v, list) and k != self.blocks_key and not _are_attributes(v)
            and all(isinstance(x, Mapping) for x in v)
        }  # fmt: skip
        shared = {k: v for k, v in merged.items() if k not in lists}
        if (
            not lists
            and depth <= MAX_DEPTH
            and not self.complete({k for k in flat(merged, self.whole) if "[" not in k})
        ):
            within = [k for k, v in row.items() if isinstance(v, Mapping) and _has_rows(v)]
            if len(within) == 1:  # {"results": {"items": […]}}
                outside = {k: v for k, v in merged.items() if k != within[0]}
                yield from self._requests(line, row[within[0]], outside, depth + 1)
                return
        if depth > MAX_DEPTH or not lists or self._is_request(merged, shared):
            yield merged
            return
        for entries in lists.values():
            if any(r.field == "delay_s" for x in entries for k in x for r in roles(str(k))) and not any(
                r.field == "session" for x in (shared, *entries) for k in x for r in roles(str(k))
            ):
                shared[SESSION] = f"line {line}, {len(self.lines)}"
            for entry in entries:
                yield from self._requests(line, entry, shared, depth + 1)

    def _is_request(self, merged: Mapping[str, Any], shared: Mapping[str, Any]) -> bool:
        """Whether an object has the lengths of a request outside its lists, or where a mapping states."""
        return self.complete(set(flat(shared, self.whole))) or any(
            "[" in k and k in self.keep for k in flat(merged, self.whole)
        )

    def _one(self, line: int, row: Mapping[str, Any]) -> None:
        i = len(self.lines)
        for name, value in row.items():
            wanted = self._wanted.get(name)
            if wanted is None:
                self.names[name] = None
                wanted = self._wanted[name] = name in self.keep or bool(roles(name)) or several([name]) is not None
            if wanted:
                if name not in self.columns:
                    self.columns[name] = JsonColumn()
                self.columns[name].put(i, value)
        blocks = row.get(self.blocks_key, ())
        try:
            if isinstance(blocks, str):
                raise TypeError
            self.ids.extend(blocks or ())
            self.counts.append(len(blocks or ()))
        except OverflowError:
            raise InputError(Mistake(self.file, self.blocks_key, blocks[:3], "whole numbers below 2⁶³", line)) from None
        except (TypeError, ValueError):
            expected = f"an object with {self.blocks_key} as a list of whole numbers"
            raise InputError(Mistake(self.file, "", dict(row), expected, line)) from None
        self.lines.append(line)

    def frame(self) -> Any:
        """The columns as a data frame."""
        import pandas as pd

        for column in self.columns.values():
            column.fill(len(self.lines))
        return pd.DataFrame({name: column.series() for name, column in self.columns.items()},
                            index=range(len(self.lines)))  # fmt: skip


def complete(mapped: Mapping[str, str]) -> Callable[[set[str]], bool]:
    """Whether keys hold both lengths, by their names or by a mapping."""

    def test(names: set[str]) -> bool:
        needed = {f for f in ("prompt_tokens", "output_tokens") if f not in mapped}
        given = all(
            theirs in names or theirs.rpartition(":")[0] in names or _is_number(theirs)
            for f, theirs in mapped.items() if f in ("prompt_tokens", "output_tokens")
        )  # fmt: skip
        if len(needed) == 2:
            return has_tokens(names)
        return given and needed <= {r.field for n in names for r in roles(n)}

    return test


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
