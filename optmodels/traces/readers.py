"""Trace files: Azure's LLM inference CSV, Mooncake's JSON lines, and CSV or Parquet with our own columns.

The format is found from the content, not from the name; gzip is undone. Our own columns are ``arrival_s``,
``prompt_tokens``, ``output_tokens``, and optionally ``slo_factor`` and the labels ``model``, ``region``, ``class``,
``session``. Every request needs at least one prompt and one output token and arrives no earlier than the one before.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from optmodels.errors import InputError, Mistake
from optmodels.io.tables import MAX_COLUMNS, numbers, open_text, parsed_csv, read_parquet, too_large
from optmodels.traces.types import Floats, Ints, Label, Prefixes, Trace

if TYPE_CHECKING:
    import pandas as pd

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
OURS = ("arrival_s", "prompt_tokens", "output_tokens")
LABELS = ("model", "region", "class", "session")
MOONCAKE = ("timestamp", "input_length", "output_length")
MOONCAKE_BLOCK_TOKENS = 512
MAX_TOKENS = 10**9
SHOWN = 5  # bad rows named one by one
_FORMATS = (
    f"Azure's CSV ({', '.join(AZURE)}), Mooncake's JSON lines ({', '.join(MOONCAKE)}, hash_ids), "
    f"or CSV or Parquet with {', '.join(OURS)}"
)


def read_trace(path: Path) -> Trace:
    """Read a request trace of any known format.

    Raises:
        InputError: not there, unreadable, cut off, empty, of no known format, over a limit of `io.tables`, or bad rows
            (the first of each kind of mistake, with their number).
    """
    try:
        with path.open("rb") as raw:
            start = raw.read(4)
    except (OSError, ValueError):
        start = b"none"  # said by whoever opens it next
    if not start:
        raise InputError(Mistake(str(path), "", "an empty file", _FORMATS))
    if start == b"PAR1":
        return _parquet(path)
    with open_text(path, f"a request trace: {_FORMATS}") as text:
        return _text(path, text)


def _text(path: Path, text: io.TextIOWrapper) -> Trace:
    """JSON lines if the first line that is not blank begins with a brace, else CSV."""
    skipped = 0
    for line in text:
        if line.strip() and not line.startswith("#"):
            break
        skipped += 1
    else:
        raise InputError(Mistake(str(path), "", "no rows", _FORMATS))
    if line.count(",") >= MAX_COLUMNS:
        raise too_large(str(path), "a header of more columns", f"{MAX_COLUMNS:,} columns")
    rest = _Prefixed(line, text)
    return _mooncake(path, rest, skipped) if line.lstrip().startswith("{") else _csv(path, rest, skipped)


class _Prefixed(io.TextIOBase):
    """A text stream with its first line given back."""

    def __init__(self, first: str, rest: io.TextIOWrapper) -> None:
        self.first, self.rest = first, rest

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> str:
        """Some characters, the first line's at first."""
        if self.first:
            first, self.first = self.first, ""
            return first + (self.rest.read() if size is None or size < 0 else "")
        return self.rest.read(-1 if size is None else size)

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        """The next line."""
        first, self.first = self.first, ""
        return first or self.rest.readline()


def _csv(path: Path, text: Any, skipped: int) -> Trace:
    import pandas as pd

    file = str(path)
    try:
        frame = parsed_csv(text, skip_blank_lines=False, skipinitialspace=True, low_memory=False)
    except pd.errors.ParserError as error:
        found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
        if found is None:
            raise InputError(Mistake(file, "", str(error).split("\n")[0][:80], _FORMATS)) from None
        line = int(found[2]) + skipped
        raise InputError(Mistake(file, "row", f"{found[3]} cells", f"{found[1]} cells, as the header has", line)) from (
            None
        )
    except ValueError as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        raise InputError(Mistake(file, "", str(error).split("\n")[0][:80], _FORMATS)) from None
    lines = np.arange(len(frame)) + skipped + 2
    blank = frame.isna().all(axis=1).to_numpy()
    if blank.any():
        frame, lines = frame[~blank], lines[~blank]
    return _table(path, frame, lines)


def _parquet(path: Path) -> Trace:
    frame = read_parquet(path)
    return _table(path, frame, np.arange(1, len(frame) + 1))


def _table(path: Path, frame: pd.DataFrame, lines: Ints) -> Trace:
    """Azure's columns or ours."""
    frame = frame.rename(columns=lambda c: str(c).strip())
    columns = set(frame.columns)
    check = _Check(str(path), lines)
    if columns.issuperset(AZURE):
        return _assemble(path, check, _azure_times(frame, check), frame, AZURE)
    if columns.issuperset(OURS):
        times = check.numbers("arrival_s", frame["arrival_s"], "seconds ≥ 0", lambda x: np.isfinite(x) & (x >= 0))
        return _assemble(path, check, times, frame, OURS)
    missing = [c for c in OURS if c not in columns]
    if len(missing) == len(OURS):
        raise InputError(Mistake(str(path), "columns", sorted(columns)[:8], _FORMATS))
    raise InputError(Mistake(str(path), c, None, "this column") for c in missing)


def _assemble(path: Path, check: _Check, times: Floats, frame: pd.DataFrame, columns: tuple[str, ...]) -> Trace:
    if not len(frame):
        raise InputError(Mistake(str(path), "", "a header without rows", "at least one request"))
    prompt, output = (check.tokens(c, frame[c]) for c in columns[1:])
    slo_factor = None
    if "slo_factor" in frame.columns:
        slo_factor = check.numbers(
            "slo_factor", frame["slo_factor"], "a finite number > 0", lambda x: np.isfinite(x) & (x > 0)
        )
    labels = {c: check.label(c, frame[c]) for c in LABELS if c in frame.columns}
    check.ascending(columns[0], times)
    check.done()
    return Trace(path.name, times, prompt, output, labels, slo_factor)


def _azure_times(frame: pd.DataFrame, check: _Check) -> Floats:
    """Timestamps as seconds since the first."""
    import pandas as pd

    column = frame["TIMESTAMP"]
    times = pd.to_datetime(column, format="ISO8601", errors="coerce", utc=True)
    check.bad("TIMESTAMP", column, times.isna().to_numpy(), "a date and time such as 2023-11-16 18:15:46.6805900")
    nanoseconds = times.to_numpy(dtype="datetime64[ns]").astype(np.int64)
    return (nanoseconds - (nanoseconds[0] if len(nanoseconds) else 0)) / 1e9


def _mooncake(path: Path, text: Any, skipped: int) -> Trace:
    """JSON lines: timestamp (ms), input_length, output_length, and where known hash_ids of 512-token blocks."""
    file = str(path)
    rows: list[tuple[Any, Any, Any]] = []
    lines: list[int] = []
    ids: list[int] = []
    counts: list[int] = []
    for number, line in enumerate(text, skipped + 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            rows.append((row["timestamp"], row["input_length"], row["output_length"]))
            blocks = row.get("hash_ids", ())
            ids.extend(blocks)
            counts.append(len(blocks))
        except json.JSONDecodeError as error:
            raise InputError(Mistake(file, "", error.msg, "one JSON object a line", number)) from None
        except (RecursionError, ValueError):  # more digits than Python reads
            raise InputError(Mistake(file, "", line.strip()[:60], "one flat JSON object a line", number)) from None
        except KeyError as error:
            raise InputError(Mistake(file, str(error.args[0]), None, "this key in every line", number)) from None
        except (TypeError, AttributeError):
            raise InputError(Mistake(file, "", line.strip()[:60], "an object with hash_ids as a list", number)) from (
                None
            )
        lines.append(number)
    import pandas as pd

    check = _Check(file, np.array(lines, np.int64))
    columns = dict(zip(MOONCAKE, (pd.Series(c, dtype=object) for c in zip(*rows, strict=True)), strict=True))
    milliseconds = check.numbers(
        "timestamp", columns["timestamp"], "milliseconds ≥ 0", lambda x: np.isfinite(x) & (x >= 0)
    )
    prompt, output = (check.tokens(c, columns[c]) for c in MOONCAKE[1:])
    check.ascending("timestamp", milliseconds)
    start = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    prefixes = None
    if ids:
        blocks = np.array(counts, np.int64)
        needed = -(-prompt // MOONCAKE_BLOCK_TOKENS)
        check.bad("hash_ids", pd.Series(blocks), blocks > needed, "at most one block for every 512 prompt tokens")
        try:
            prefixes = Prefixes(MOONCAKE_BLOCK_TOKENS, start, np.array(ids, dtype=np.int64))
        except (ValueError, TypeError, OverflowError):
            raise InputError(Mistake(file, "hash_ids", "ids that are no whole numbers", "whole numbers")) from None
    check.done()
    return Trace(path.name, milliseconds / 1e3, prompt, output, {}, None, prefixes)


class _Check:
    """Columns checked as a whole, with the lines of what is wrong."""

    def __init__(self, file: str, lines: Ints) -> None:
        self.file, self.lines = file, lines
        self.found: list[Mistake] = []

    def bad(self, column: str, values: Any, wrong: Any, expected: str) -> None:
        """Note the first rows of a column that are wrong, and how many more there are."""
        at = np.flatnonzero(wrong)
        for k, i in enumerate(at[:SHOWN]):
            more = f"and {len(at) - SHOWN:,} more rows" if k == SHOWN - 1 and len(at) > SHOWN else None
            value = values.iloc[i]
            value = None if isinstance(value, float) and np.isnan(value) else value
            value = value.item() if isinstance(value, np.generic) else value
            self.found.append(Mistake(self.file, column, value, expected, int(self.lines[i]), more))

    def numbers(self, column: str, values: pd.Series, expected: str, good: Callable[[Floats], Any]) -> Floats:
        """A column of numbers that are `good`; 1 where they are not."""
        found = numbers(values)
        fine = good(found)
        self.bad(column, values, ~fine, expected)
        return np.where(fine, found, 1.0)

    def tokens(self, column: str, values: pd.Series) -> Ints:
        """A column of token counts."""
        found = self.numbers(
            column, values, f"a whole number from 1 to {MAX_TOKENS}",
            lambda x: (x >= 1) & (x <= MAX_TOKENS) & (x == np.floor(x)),
        )  # fmt: skip
        return found.astype(np.int64)

    def label(self, column: str, values: pd.Series) -> Label:
        """A column of names."""
        import pandas as pd

        self.bad(column, values, values.isna().to_numpy(), "a name in every row")
        codes, names = pd.factorize(values.astype(str))
        return Label(tuple(str(n) for n in names), codes.astype(np.int64))

    def ascending(self, column: str, times: Floats) -> None:
        """Arrivals in order; only where every time could be read."""
        if any(m.path == column for m in self.found):
            return
        import pandas as pd

        late = np.concatenate(([False], np.diff(times) < 0))
        self.bad(column, pd.Series(times), late, "no earlier than the row before: a trace is in order of arrival")

    def done(self) -> None:
        """Refuse the file if anything was wrong."""
        if self.found:
            raise InputError(self.found)
