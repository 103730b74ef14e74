"""Readers of trace files: public traces, engines' request logs, and any table with columns mapped by name.

A format is found from the columns (CSV, Parquet) or keys (JSON), not from the file's name; gzip is undone:

* ours                 ``arrival_s, input_tokens, output_tokens``, and optionally ``predicted_output_tokens``,
                       ``slo_factor`` and the labels ``model``, ``region``, ``class``, ``session``
* Azure                ``TIMESTAMP, ContextTokens, GeneratedTokens`` (Azure/AzurePublicDataset:
                       AzureLLMInferenceDataset2023 and 2024, AzureLMMInferenceDataset2025)
* Mooncake             JSON lines ``timestamp`` in ms, ``input_length, output_length, hash_ids`` of 512-token blocks
                       (kvcache-ai/Mooncake, FAST25-release); aiperf's with ``session_id`` and ``delay``
* Qwen-Bailian         the same keys with ``chat_id``: timestamp in seconds, blocks of 16 tokens
                       (alibaba-edu/qwen-bailian-usagetraces-anon)
* BurstGPT             ``Timestamp, Model, Request tokens, Response tokens, Log Type`` (HPMLL/BurstGPT); its requests
                       without response tokens failed, as its README states, and are left out and counted
* ServeGen             ``request_id, timestamp, input_tokens, output_tokens`` (alibaba/ServeGen: its workloads as CSV)
* AIBrix               JSON lines ``timestamp`` in ms and ``requests``: ``Prompt Length, Output Length`` of each
* vidur, splitwise-sim ``arrived_at, num_prefill_tokens, num_decode_tokens``; ``arrival_timestamp, prompt_size,
                       token_size``: seconds
* benchmarks           JSON of ``vllm bench serve`` and ``sglang.bench_serving`` with their lists (`traces.logs`)
* servers              lines of vLLM's and SGLang's request logs (`traces.logs`)
* any other            columns by their names (`traces.columns`): OpenTelemetry's GenAI spans, LiteLLM's spend logs,
                       BLIS' traces, LLMServingSim's request logs, SGLang's ``--export-metrics-to-file``, one's own

`columns` maps ours to theirs in any of these, ``THEIRS`` or ``THEIRS:unit``; arrivals then count from the first one.
Arrivals are ISO dates and times, or numbers in the unit that the option, the format, the column's name or the size of a
number since 1970 states. Numbers with fractions are seconds, with a note; of whole ones the unit is asked for. Rows out
of order are sorted and counted; a request has at least one prompt and one output token. Failed requests (by a column
such as ``status``) are left out and counted.
"""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import PydanticCustomError

from optmodels.arrays import Array, Ints, Mask
from optmodels.errors import InputError, Mistake, printable
from optmodels.io.pipes import settled
from optmodels.io.read import MAX_BYTES
from optmodels.io.tables import (
    MAX_COLUMNS,
    SEPARATORS,
    numbers,
    open_text,
    parsed_csv,
    read_parquet,
    separator,
    too_large,
    uneven,
)
from optmodels.io.write import path_text
from optmodels.traces import dates as written
from optmodels.traces import json_rows, logs, sessions
from optmodels.traces.columns import FAILED, TIMES, epoch_unit, plain, recognised, several
from optmodels.traces.types import Label, Prefixes, Trace
from optmodels.units import convert

if TYPE_CHECKING:
    import pandas as pd

LABELS = ("model", "region", "class", "session")
MAX_TOKENS = 10**9
MAX_SECONDS = 1e10
SHOWN = 5  # bad rows named one by one
LOG_LINES = 100  # one line shows that a file is a server's log: others may print before it


@dataclass(frozen=True)
class Layout:
    """Columns of a format with the data that a trace needs.

    Attributes:
        title: name of the format, for messages.
        arrival, prompt, output: columns or keys; all have to be there.
        seconds: seconds that one unit of a numeric arrival lasts; None: its size or the user states.
        from_first: arrivals count from the first one.
        labels: ours → theirs, read where they are there.
        marks: further columns that identify the format.
        block_tokens: block tokens of a ``hash_ids`` entry.
        failed: meaning of a request without output tokens, in words; empty: a mistake.
    """

    title: str
    arrival: str
    prompt: str
    output: str
    seconds: float | None = 1.0
    from_first: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    block_tokens: int = 512
    failed: str = ""

    def known_by(self, names: set[str]) -> bool:
        """Whether these columns identify the format."""
        return names.issuperset((self.arrival, self.prompt, self.output, *self.marks))


OURS = Layout("our own columns", "arrival_s", "prompt_tokens", "output_tokens", labels={k: k for k in LABELS})
MOONCAKE = Layout("Mooncake", "timestamp", "input_length", "output_length", 1e-3)
BENCH = Layout(
    "benchmarks and server logs", logs.START, logs.PROMPT, logs.OUTPUT, from_first=True,
    failed="failed: no output, or an error",
)  # fmt: skip
LAYOUTS = (
    OURS,
    Layout("Azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", from_first=True),
    Layout(
        "BurstGPT", "Timestamp", "Request tokens", "Response tokens", from_first=True,
        labels={"model": "Model", "class": "Log Type", "session": "Session ID"}, failed="failed: no response tokens",
    ),
    Layout(
        "Qwen-Bailian", "timestamp", "input_length", "output_length", labels={"class": "type"}, marks=("chat_id",),
        block_tokens=16,
    ),
    MOONCAKE,
    Layout("ServeGen", "timestamp", "input_tokens", "output_tokens", marks=("request_id",)),
    Layout("SGLang's request metrics", "request_received_ts", "prompt_tokens", "completion_tokens", from_first=True),
    Layout("vLLM's request times", "queued_s", "input_tokens", "output_tokens", from_first=True),
    Layout("AIBrix", "timestamp", "Prompt Length", "Output Length", 1e-3),
    Layout("vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    Layout("splitwise-sim", "arrival_timestamp", "prompt_size", "token_size", from_first=True),
)  # fmt: skip
_OURS = ("arrival_s", "prompt_tokens", "output_tokens")
_FORMATS = (
    "a request trace: columns for the arrival, the prompt tokens and the output tokens, of Azure, Mooncake, BurstGPT, "
    "AIBrix, LiteLLM, OpenTelemetry, a benchmark, a server's log, or your own"
)
_MAPPED = (
    *_OURS, "predicted_output_tokens", "slo_factor", *LABELS, "hash_ids", "block_tokens", "delay_s", "prefix_tokens",
    "prefix_group", "status", "ttft_s", "e2e_s",
)  # fmt: skip
ALIASES = {
    "input_tokens": "prompt_tokens", "arrival": "arrival_s", "time": "arrival_s", "timestamp": "arrival_s",
    "think_s": "delay_s", "delay": "delay_s",
}  # fmt: skip
_READ_BY_NAME = ("delay_s", "prefix_tokens", "prefix_group", "session", "class", "status", "error", "ttft_s", "e2e_s",
                 "base_s", "first_token_s", "last_token_s")  # fmt: skip
SHOWN_COLUMNS = 12
_SEPARATOR_LINE = re.compile(r'"?sep=.?"?\s*$', re.IGNORECASE)  # Excel's, before the header


@dataclass(frozen=True)
class How:
    """How a file is read.

    Attributes:
        columns: ours → theirs.
        where: column → values of the rows that are kept.
        skip_bad: whether rows that cannot be read are left out and counted.
        option: option that maps a column, for messages.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    skip_bad: bool = False


def read_trace(
    path: Path, columns: Mapping[str, str] | None = None, where: Mapping[str, str | Sequence[str]] | None = None,
    skip_bad: bool = False,
) -> Trace:  # fmt: skip
    """Read a request trace of any known format, or of any columns that are mapped onto ours.

    Args:
        path: The file, or a pipe.
        columns: Ours → theirs: ``arrival_s`` (``created:ms``), ``input_tokens`` (or ``prompt_tokens``),
            ``output_tokens``, ``predicted_output_tokens``, ``slo_factor``, a label, ``hash_ids``, ``delay_s`` (think
            time after the answer before), ``prefix_tokens``; a number stands for itself in every row
            (``output_tokens=128``, ``block_tokens=16``).
        where: Only rows whose column has this value, or one of these.
        skip_bad: Leave out rows that cannot be read, named and counted in the notes.

    Raises:
        InputError: not there, unreadable, cut off, empty, of no known format, over a limit of `io.tables`, a column
            that is not there, or bad rows (the first of each kind of mistake, with their number).
    """
    mapped = {ALIASES.get(k, k): v for k, v in (columns or {}).items()}
    if unknown := [k for k in columns or {} if ALIASES.get(k, k) not in _MAPPED]:
        expected = f"one of {', '.join((*_MAPPED, *ALIASES))}"
        raise InputError(Mistake(str(path), f"columns.{k}", k, expected) for k in unknown)
    wanted = {k: (v,) if isinstance(v, str) else tuple(map(str, v)) for k, v in (where or {}).items()}
    how = How(mapped, wanted, skip_bad)
    copy = settled(path, "a request trace")
    try:
        found = _read(copy, path_text(path.name), how)
    except InputError as error:
        if copy == path:
            raise
        raise InputError(replace(m, file=str(path)) if m.file == str(copy) else m for m in error.mistakes) from None
    return found


def _read(path: Path, name: str, how: How) -> Trace:
    try:
        with path.open("rb") as raw:
            start = raw.read(4)
    except (OSError, ValueError):
        start = b"none"  # stated by the one who opens it next
    if not start:
        raise InputError(Mistake(str(path), "", "an empty file", _FORMATS))
    if start == b"PAR1":
        frame = read_parquet(path)
        return _table(path, name, _CsvRows(_stripped(frame), np.arange(1, len(frame) + 1)), how)
    with open_text(path, _FORMATS) as text:
        return _text(path, name, text, how)


@dataclass
class _CsvRows:
    """A table, the lines its rows are on (None: one JSON object), and the prompts' blocks."""

    frame: pd.DataFrame
    lines: Ints | None
    blocks: tuple[Ints, Ints] | None = None  # counts, ids
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # the file's columns; empty: the table's


def _text(path: Path, name: str, text: io.TextIOWrapper, how: How) -> Trace:
    """A server's log by its lines; else JSON if the first character is a brace or bracket, else CSV."""
    file, skipped = str(path), 0
    for line in text:
        if line.strip() and not line.startswith("#") and not _SEPARATOR_LINE.match(line):
            break
        skipped += 1
    else:
        raise InputError(Mistake(file, "", "no rows", _FORMATS))
    table = line.lstrip()[:1] not in ("{", "[")
    begin = [line, *itertools.islice(text, LOG_LINES if line.lstrip()[:1] != "{" else 0)]
    if any(map(logs.is_log, begin)):
        return _listed(path, name, logs.server(file, itertools.chain(begin, text)), how)
    if table:
        if max(map(line.count, SEPARATORS)) >= MAX_COLUMNS:
            raise too_large(file, "a header of more columns", f"{MAX_COLUMNS:,} columns")
        return _table(path, name, _csv(path, _Prefixed("".join(begin), text), skipped, line), how)
    if '"input_lens"' in line or '"total_input_tokens"' in line:
        return _bench(path, name, line + text.read(MAX_BYTES), how)
    try:
        one_a_line = isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        one_a_line = bool(line.strip()[1:]) and line.strip()[-1] == "}"
    if one_a_line:
        return _table(path, name, _json_lines(path, _Prefixed(line, text), skipped, how), how)
    rest = "".join(begin) + text.read()
    if '"input_lens"' in rest or '"total_input_tokens"' in rest or (line.strip()[:1] == "{" and not rest.strip()[1:]):
        return _bench(path, name, rest, how)
    rows = _requests(path, how)
    for at, value in json_rows.values(file, rest, skipped + 1):
        rows.add(at, value)
    return _table(path, name, _json_table(path, rows), how)


class _Prefixed(io.TextIOBase):
    """A text stream with its first lines given back."""

    def __init__(self, first: str, rest: io.TextIOWrapper) -> None:
        self.first, self.rest = first, rest

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> str:
        """Some characters, the first lines' at first."""
        if self.first:
            first, self.first = self.first, ""
            return first + (self.rest.read() if size is None or size < 0 else "")
        return self.rest.read(-1 if size is None else size)

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
        """The next line."""
        first, newline, self.first = self.first.partition("\n")
        return first + newline or self.rest.readline()


def _stripped(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.rename(columns=lambda c: str(c).strip())


def _csv(path: Path, text: Any, skipped: int, header: str) -> _CsvRows:
    import pandas as pd

    file = str(path)
    try:
        frame = parsed_csv(text, skip_blank_lines=False, skipinitialspace=True, low_memory=False, sep=separator(header))
    except pd.errors.ParserError as error:
        said = str(error).split("\n")[0][:80]
        raise InputError(uneven(error, file, skipped) or Mistake(file, "", said, _FORMATS)) from None
    except ValueError as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        raise InputError(Mistake(file, "", str(error).split("\n")[0][:80], _FORMATS)) from None
    lines = np.arange(len(frame)) + skipped + 2
    blank = frame.isna().all(axis=1).to_numpy()
    if blank.any():
        frame, lines = frame[~blank], lines[~blank]
    again = _headers(frame)
    if not again.any():
        return _CsvRows(_stripped(frame), lines)
    frame = frame[~again].apply(_numeric)
    note = f"repeated headers left out: {int(again.sum()):,}, the first in line {lines[again][0]:,}"
    return _CsvRows(_stripped(frame), lines[~again], notes=(note,))


def _headers(frame: pd.DataFrame) -> Mask:
    """Rows that repeat the header, as files put one after another do, (n,)."""
    found = np.ones(len(frame), dtype=bool)
    for column in frame.columns:
        if not found.any() or frame[column].dtype.kind in "biuf":
            return np.zeros(len(frame), dtype=bool)
        found &= (frame[column].astype(str).str.strip() == str(column).strip()).to_numpy()
    return found


def _numeric(cells: pd.Series[Any]) -> pd.Series[Any]:
    """A column as numbers if every cell is one."""
    import pandas as pd

    found: pd.Series[Any] = pd.to_numeric(cells, errors="coerce")
    return found if found.notna().equals(cells.notna()) else cells


def _requests(path: Path, how: How) -> json_rows.RequestColumns:
    """An empty table for JSON, which keeps the columns that are asked for."""
    mapped = how.columns.values()
    keep = frozenset((
        *mapped, *(v.rpartition(":")[0] for v in mapped if ":" in v), *how.where, *LABELS,
        "predicted_output_tokens", "slo_factor",
        *(c for x in LAYOUTS for c in (*x.marks, *x.labels.values(), x.arrival, x.prompt, x.output)),
    ))  # fmt: skip
    blocks = how.columns.get("hash_ids", "hash_ids")
    return json_rows.RequestColumns(str(path), keep, blocks, json_rows.complete(how.columns))


def _json_lines(path: Path, text: Any, skipped: int, how: How) -> _CsvRows:
    """JSON lines, one object or a list of requests on each."""
    file, rows = str(path), _requests(path, how)
    bad: list[tuple[int, str]] = []
    for number, line in enumerate(text, skipped + 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (RecursionError, ValueError) as error:
            if how.skip_bad:
                bad.append((number, line.strip()[:60]))
                continue
            if isinstance(error, json.JSONDecodeError):
                raise InputError(Mistake(file, "", error.msg, "one JSON object a line", number)) from None
            raise InputError(Mistake(file, "", line.strip()[:60], "one flat JSON object a line", number)) from None
        rows.add(number, value)
    found = _json_table(path, rows)
    if bad:
        found.notes = (_skipped(len(bad), len(bad) + len(rows.lines), [f"line {n}: no JSON" for n, _ in bad]),)
    return found


def _json_table(path: Path, rows: json_rows.RequestColumns) -> _CsvRows:
    if not rows.lines:
        raise InputError(Mistake(str(path), "", "no requests", _FORMATS))
    blocks = (np.array(rows.counts, np.int64), np.array(rows.ids, np.int64)) if len(rows.ids) else None
    return _CsvRows(rows.frame(), np.array(rows.lines, np.int64), blocks, names=tuple(rows.names))


def _theirs(spec: str | None) -> str | None:
    """The column of ``THEIRS:unit``, where it is no name with a colon itself."""
    return None if spec is None else spec.rpartition(":")[0] or spec


def _bench(path: Path, name: str, text: str, how: How) -> Trace:
    """One JSON object with a list for each column: requests in the order they were made."""
    if len(text) >= MAX_BYTES:
        raise too_large(str(path), "a longer JSON object", f"{MAX_BYTES // 2**20} MiB in one object")
    return _listed(path, name, logs.benchmark(str(path), text), how)


def _listed(path: Path, name: str, found: logs.Columns, how: How) -> Trace:
    import pandas as pd

    frame = pd.DataFrame({c: pd.Series(values, dtype=object) for c, values in found[0].items()})
    return _table(path, name, _CsvRows(frame, None, notes=tuple(found[1])), how)


def _layout(names: set[str]) -> Layout | None:
    return next((layout for layout in (*LAYOUTS, BENCH) if layout.known_by(names)), None)


def _by_name(file: str, names: Sequence[str], mapped: Mapping[str, str]) -> Layout:
    """The layout of a file with columns of its own, by their names and the mapped columns.

    Raises:
        InputError: a column that is neither.
    """
    by_name = recognised(names)
    found: dict[str, tuple[str, float | None]] = {k: (k, 1.0) for k in mapped if k in _OURS}
    found |= {k: by_name[k] for k in _OURS if k in by_name and k not in mapped}
    if missing := [k for k in _OURS if k not in found]:
        raise InputError(_no_column(file, missing, names))
    labels = {k: k for k in LABELS if k in names and any(c in mapped for c in _OURS)}
    arrival, prompt, output = (found[k][0] for k in _OURS)
    return Layout(_BY_NAME, arrival, prompt, output, seconds=found["arrival_s"][1], labels=labels)


def _listing(names: Sequence[str]) -> str:
    """The file's columns, for a message."""
    more = f", … ({len(names)} in all)" if len(names) > SHOWN_COLUMNS else ""
    return printable(", ".join(map(str, names[:SHOWN_COLUMNS])) + more, 400)


_WHAT = {"arrival_s": "arrival times", "prompt_tokens": "prompt tokens", "output_tokens": "output tokens"}


def _no_column(file: str, missing: Sequence[str], names: Sequence[str]) -> Mistake:
    """The mistake of a file without the columns that a trace needs."""
    options = " ".join(f"--column {k}=COLUMN{':UNIT' if k == 'arrival_s' else ''}" for k in missing)
    expected = f"{', '.join(_WHAT[k] for k in missing)}: the file has the columns {_listing(names)}"
    return Mistake(file, ", ".join(missing), None, expected, hint=f"name them: {options}")


def _table(path: Path, name: str, rows: _CsvRows, how: How) -> Trace:
    """Rows of a known layout, of columns known by their names, or of columns mapped onto ours."""
    frame, file, mapped = rows.frame, str(path), how.columns
    names = [str(c) for c in rows.names or frame.columns]
    for ours in mapped:
        _refuse_unknown(file, f"columns.{ours}", mapped[ours], names)
    layout = _layout(set(names)) or _by_name(file, names, mapped)
    if any(c in mapped for c in _OURS):
        layout = replace(layout, from_first=True)
    if not len(frame):
        raise InputError(Mistake(file, "", "a header without rows", "at least one request"))
    table = _Table(file, frame, names, mapped, layout)
    if (count := several(map(str, frame.columns))) is not None and (numbers(frame[count]) > 1).any():
        raise InputError(Mistake(file, count, frame[count].max(), "one request a row: rows here add up several"))
    notes = [*rows.notes]
    keep = np.ones(len(frame), dtype=bool)
    for column, values in how.where.items():
        keep &= table.equal(column, values)
    if how.where:
        if not keep.any():
            said = ", ".join(f"{k}={' or '.join(v)}" for k, v in how.where.items())
            raise InputError(Mistake(file, "where", said, "a condition that some row meets"))
        if not keep.all():
            notes.append(f"{int((~keep).sum()):,} of {len(frame):,} rows left out by --where")
    if layout.failed:
        gone = keep & (numbers(table.cells("output_tokens")[0]) == 0)
        if gone.any():
            notes.append(f"{int(gone.sum()):,} of {len(frame):,} requests left out ({layout.failed})")
            keep &= ~gone
            if not keep.any():
                raise InputError(Mistake(file, layout.output, 0, "a request with output tokens"))
    gone, why = table.failed(how.where)
    gone = gone & keep
    if gone.any() and not gone[keep].all():
        notes.append(f"{int(gone.sum()):,} of {len(frame):,} requests left out (failed, by column {why})")
        keep &= ~gone
    lines = rows.lines
    bad = _bad_rows(table, rows, keep, how)
    if bad is not None:
        wrong, named = bad
        notes.append(_skipped(len(wrong), int(keep.sum()), named))
        keep[wrong] = False
        if not keep.any():
            raise InputError(Mistake(file, "", "no row that can be read", "a request", hint="; ".join(named[:SHOWN])))
    check = _Check(file, lines)
    if not keep.all():
        table = table.of(keep)
        check.lines = None if lines is None else lines[keep]
        check.index = np.flatnonzero(keep)
    read = _Reader(table, check, rows, keep)
    trace = read.trace(name, notes)
    check.done()
    order = None
    times = trace.arrival_s
    if late := int((np.diff(times) < 0).sum()):
        if trace.follows is None:
            notes.append(f"{late:,} of {len(times):,} rows came before the row above them: sorted by arrival")
        order = np.argsort(times, kind="stable")
    if layout.from_first or read.since_1970:
        trace = replace(trace, arrival_s=times - times.min())
    trace = replace(trace, notes=tuple(notes))
    return trace if order is None else trace.take(order)


def _bad_rows(table: _Table, rows: _CsvRows, keep: Any, how: How) -> tuple[Ints, list[str]] | None:
    """Rows that cannot be read, among all, and why, where such rows are to be left out."""
    if not how.skip_bad:
        return None
    check = _Check(table.file, None if rows.lines is None else rows.lines[keep])
    check.index = np.flatnonzero(keep)
    _Reader(table if keep.all() else table.of(keep), check, rows, keep).trace("", [])
    if not check.rows:
        return None
    at = np.unique(np.concatenate(check.rows))
    said = [f"{'row' if m.line is None else f'line {m.line}'}: {m.path} {m.value!r}" for m in check.found[:SHOWN]]
    return np.flatnonzero(keep)[at], said


def _skipped(count: int, total: int, said: Sequence[str]) -> str:
    more = "; …" if count > min(SHOWN, len(said)) else ""
    return f"{count:,} of {total:,} rows skipped: {'; '.join(said[:SHOWN])}{more}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _refuse_unknown(file: str, path: str, spec: str, names: Sequence[str]) -> None:
    """Refuse a column that the file does not have; a number stands for itself.

    Raises:
        InputError: no such column, with those that the file has.
    """
    theirs = _theirs(spec) or spec
    if spec in names or theirs in names or _is_number(theirs) or path.endswith(("hash_ids", "block_tokens")):
        return
    raise InputError(Mistake(file, path, theirs, f"a column of the file: {_listing(names)}"))


@dataclass(frozen=True)
class _Table:
    """Rows with the fields that their columns hold."""

    file: str
    frame: pd.DataFrame
    names: list[str]
    mapped: Mapping[str, str]
    layout: Layout

    def of(self, keep: Any) -> _Table:
        """Some of the rows."""
        return replace(self, frame=self.frame[keep])

    def where(self, ours: str) -> tuple[str | None, float | None]:
        """The column of a field, and seconds of one unit where its name or the mapping states the unit."""
        spec = self.mapped.get(ours)
        if spec is not None:
            if spec in self.frame.columns:
                return spec, None
            theirs, _, unit = spec.rpartition(":")
            if theirs and ours in TIMES:
                return theirs, self.unit(ours, unit)
            return spec, None
        defaults = dict(zip(_OURS, (self.layout.arrival, self.layout.prompt, self.layout.output), strict=True))
        if ours in defaults:
            return defaults[ours], self.layout.seconds if ours == "arrival_s" else None
        if ours in self.layout.labels:
            return self.layout.labels[ours], None
        if ours in ("predicted_output_tokens", "slo_factor"):
            return ours, None
        if ours in _READ_BY_NAME:
            column, seconds = recognised(self.names).get(ours, (None, None))
            return column, seconds
        return None, None

    def unit(self, ours: str, unit: str) -> float:
        """Seconds of one unit.

        Raises:
            InputError: no unit of time.
        """
        try:
            return float(str(convert(unit if unit[:1].isdigit() else f"1 {unit}", "s")))
        except (PydanticCustomError, ValueError):
            raise InputError(Mistake(self.file, f"columns.{ours}", unit, "a unit of time: ms, s, min, …")) from None

    def cells(self, ours: str) -> tuple[pd.Series[Any], str, float | None]:
        """The cells of a field with its column's name and unit; a number stands for every row."""
        import pandas as pd

        column, seconds = self.where(ours)
        assert column is not None
        if column in self.frame.columns:
            return self.frame[column], column, seconds
        if ours in self.mapped and _is_number(column):
            return pd.Series(np.full(len(self.frame), float(column)), index=self.frame.index), ours, seconds
        empty = pd.Series(np.full(len(self.frame), np.nan), index=self.frame.index)
        return empty, column, seconds

    def optional(self, ours: str) -> tuple[pd.Series[Any], str, float | None] | None:
        """`cells` of a field that a trace need not have."""
        column, _ = self.where(ours)
        if column is None or (ours not in self.mapped and column not in self.frame.columns):
            return None
        return self.cells(ours)

    def equal(self, column: str, values: Sequence[str]) -> Any:
        """Rows whose cell is one of some values, as text or as a number.

        Raises:
            InputError: no such column.
        """
        if column not in self.frame.columns:
            near = [c for c in self.frame.columns if plain(str(c)) == plain(column)]
            if len(near) != 1:
                raise InputError(Mistake(self.file, "where", column, f"a column of the file: {_listing(self.names)}"))
            column = near[0]
        cells, found = self.frame[column], np.zeros(len(self.frame), dtype=bool)
        text = cells.map(lambda v: str(v).strip().lower()).to_numpy()
        for value in values:
            found |= text == value.strip().lower()
            if _is_number(value):
                found |= numbers(cells) == float(value)
        return found

    def failed(self, but: Mapping[str, Any]) -> tuple[Any, str]:
        """Rows that a status states have failed, and the column; none where the user chose by that column."""
        columns = {ours: f for ours in ("status", "error") if (f := self.optional(ours)) is not None}
        if {plain(c) for c in but} & {plain(f[1]) for f in columns.values()}:
            columns = {}
        for ours, (cells, column, _) in columns.items():
            if ours == "error":
                said = cells.map(lambda v: not (v is None or v != v or str(v).strip().lower() in _NO_ERROR))
                gone = said.to_numpy(dtype=bool)
            else:
                gone = cells.map(lambda v, c=column: _has_failed(v, c)).to_numpy(dtype=bool)
            if gone.any():
                return gone, column
        return np.zeros(len(self.frame), dtype=bool), ""


_NO_ERROR = {"", "none", "null", "nan", "false", "0", "0.0", "ok", "[]", "{}"}


def _has_failed(value: Any, column: str) -> bool:
    """Whether a status marks a failed request: a word, false, or a code of HTTP or OpenTelemetry."""
    if isinstance(value, bool | np.bool_):
        return not value
    if isinstance(value, int | float):
        if value != value:
            return False
        return value >= 400 or (plain(column).endswith("status_code") and value == 2) or (
            plain(column).startswith("succe") and value == 0
        )  # fmt: skip
    text = plain(str(value))
    return text in FAILED or (text.isdigit() and int(text) >= 400)


class _Reader:
    """A table's columns as a trace."""

    def __init__(self, table: _Table, check: _Check, rows: _CsvRows, keep: Any) -> None:
        self.table, self.check, self.rows, self.keep = table, check, rows, keep
        self.since_1970 = False

    def trace(self, name: str, notes: list[str]) -> Trace:
        """The requests in the order of the file; `notes` are added to."""
        table, check = self.table, self.check
        labels = {}
        for ours in LABELS:
            if (found := table.optional(ours)) is not None:
                if ours == "session" and ours not in table.mapped and ours not in table.layout.labels and (
                    bool(found[0].isna().any())
                ):  # fmt: skip
                    continue
                labels[ours] = check.label(found[1], found[0])
        prompt, output = (check.tokens(table.cells(c)[1], table.cells(c)[0]) for c in _OURS[1:])
        times, follows, prompt, heads = self._arrivals(labels, prompt, output, notes)
        predicted = slo_factor = None
        if (found := table.optional("predicted_output_tokens")) is not None:
            predicted = check.tokens(found[1], found[0])
        if (found := table.optional("slo_factor")) is not None:
            slo_factor = check.numbers(found[1], found[0], "a finite number > 0", lambda x: np.isfinite(x) & (x > 0))
        prefixes = None
        if self.rows.blocks is not None:
            prefixes = _prefixes(check, self.rows.blocks, self.keep, prompt, table.layout, table.mapped, table.file)
        else:
            prefixes = self._heads(labels, prompt, heads)
        measured = self._measured(output)
        return Trace(name, times, prompt, output, labels, slo_factor, prefixes, predicted, (), follows, measured)

    def _arrivals(
        self, labels: Mapping[str, Label], prompt: Ints, output: Ints, notes: list[str]
    ) -> tuple[Array, Any, Ints, Ints | None]:
        """Arrivals in seconds; turns that wait for the answer before them; prompts; tokens shared with that turn."""
        table, check = self.table, self.check
        cells, column, seconds = table.cells("arrival_s")
        delay = table.optional("delay_s")
        if delay is None or "session" not in labels:
            return self._times(cells, column, seconds, None, notes), None, prompt, None
        waits = cells.isna().to_numpy() & ~delay[0].isna().to_numpy()
        turns = sessions.turns(labels["session"].codes)
        waits &= turns >= 0
        times = self._times(cells, column, seconds, waits, notes)
        if not waits.any():
            return times, None, prompt, None
        unit = delay[2] if delay[2] is not None else self.used_seconds
        wait = check.numbers(delay[1], delay[0].where(waits, 0.0), "a time ≥ 0", lambda x: np.isfinite(x) & (x >= 0))
        return sessions.closed(times, turns, waits, wait * unit, prompt, output, self.rows.blocks is not None, notes)

    def _times(self, cells: pd.Series[Any], name: str, seconds: float | None, absent: Any, notes: list[str]) -> Array:
        """Arrivals in seconds: numbers in their unit, or ISO dates and times. `absent` ones are 0."""
        import pandas as pd

        check, layout = self.check, self.table.layout
        self.used_seconds = seconds if seconds is not None else 1.0
        there = cells[~cells.isna()]
        if absent is not None:
            cells = cells.where(~absent, 0.0) if len(there) == 0 else cells.where(~absent, there.iloc[0])
        first = there.iloc[0] if len(there) else None
        if cells.dtype.kind != "M" and not (isinstance(first, str) and np.isnan(numbers(pd.Series([first]))[0])):
            exact = _whole_nanoseconds(cells)
            found = numbers(cells)
            known = found[np.isfinite(found)]
            middle = float(np.median(known)) if len(known) else 0.0
            since = epoch_unit(middle)
            if since is not None and self._may_say_so(name):
                seconds = since
            if layout.title == MOONCAKE.title and since is None:
                self._check_milliseconds(known, name)
            self.since_1970 = since is not None and since == seconds and layout is not OURS
            if seconds is None:
                seconds = self._guessed(known, name, notes)
            self.used_seconds = seconds
            what = {1.0: "seconds", 1e-3: "milliseconds"}.get(seconds, "a number")
            limit = MAX_SECONDS / seconds
            good = check.numbers(name, cells, f"{what} ≥ 0", lambda x: np.isfinite(x) & (x >= 0) & (x <= limit))
            if exact is not None and self.since_1970 and seconds < 1e-3:
                return (exact - exact.min()) * seconds
            return good / (1.0 / seconds)  # rounds as milliseconds / 1000 do
        times = written.read(cells)
        unread = written.BOTH if times.isna().all() and written.either(cells) else written.EXPECTED
        check.bad(name, cells, times.isna().to_numpy(), unread)
        nanoseconds = times.to_numpy(dtype="datetime64[ns]").astype(np.int64)
        good_dates = nanoseconds[~times.isna().to_numpy()]
        self.origin = int(good_dates.min()) if len(good_dates) else 0
        found = (nanoseconds - self.origin) / 1e9
        return found if absent is None else np.where(absent, 0.0, found)

    def _may_say_so(self, name: str) -> bool:
        """Whether the size of arrivals tells their unit: no option, no name of the column and not our own does."""
        spec, layout = self.table.mapped.get("arrival_s"), self.table.layout
        if spec is not None:
            return spec == name
        return layout is not OURS and not (layout.title == _BY_NAME and layout.seconds is not None)

    def _check_milliseconds(self, known: Array, name: str) -> None:
        """Refuse arrivals with fractions, which Mooncake's milliseconds have not, where nothing else tells the format.

        Raises:
            InputError: with the two readings.
        """
        told = "arrival_s" in self.table.mapped or self.rows.blocks is not None or "delay" in self.table.names
        if not told and (known != np.floor(known)).any():
            found, hint = [float(x) for x in known[:3]], f"--column arrival_s={name}:s, or arrival_s={name}:ms"
            expected = "whole milliseconds, as in Mooncake's files, or a unit: these may be seconds"
            raise InputError(Mistake(self.check.file, name, found, expected, hint=hint))

    def _guessed(self, known: Array, name: str, notes: list[str]) -> float:
        """Seconds of one unit where nothing states it: numbers with fractions are seconds.

        Raises:
            InputError: whole numbers, which may be anything.
        """
        if "arrival_s" in self.table.mapped:
            return 1.0
        if len(known) and not (known == np.floor(known)).all():
            notes.append(f"{name} read as seconds (milliseconds: --column arrival_s={name}:ms)")
            return 1.0
        if not len(known):
            raise InputError(
                Mistake(self.check.file, name, None, "times: numbers, or dates such as 2023-11-16 18:15:46")
            )
        first = [int(x) for x in known[:3]]
        hint = f"--column arrival_s={name}:s, or arrival_s={name}:ms"
        raise InputError(
            Mistake(self.check.file, name, first, "a unit: these may be seconds or milliseconds", hint=hint)
        )

    def _heads(self, labels: Mapping[str, Label], prompt: Ints, heads: Ints | None) -> Prefixes | None:
        """Blocks of prompts that share a stated number of tokens at their beginning."""
        found, groups = self.table.optional("prefix_tokens"), np.full(len(prompt), -1)
        session = labels.get("session")
        if found is not None:
            shared = self.check.numbers(
                found[1], found[0].where(~found[0].isna(), 0), "a whole number of tokens ≥ 0",
                lambda x: (x >= 0) & (x == np.floor(x)) & (x <= MAX_TOKENS),
            ).astype(np.int64)  # fmt: skip
            if not shared.any():
                return None
            named = self.table.optional("prefix_group")
            if named is not None:
                given = ~named[0].isna().to_numpy()
                codes = sessions.codes(named[0].astype(str))
                groups = np.where(given, codes, groups)
        elif heads is not None:
            shared = heads
        else:
            return None
        if session is not None:
            groups = np.where(groups < 0, session.codes + groups.max() + 1, groups)
        return sessions.shared_heads(np.minimum(shared, prompt), prompt, groups)

    def _measured(self, output: Ints) -> Mapping[str, Array]:
        """Seconds to the first and last token and between tokens, as a log states them for each request."""
        table = self.table
        found: dict[str, Array] = {}
        for ours in ("ttft_s", "e2e_s"):
            cells = table.optional(ours)
            if cells is not None and (cells[2] is not None or ours in table.mapped):
                found[ours] = numbers(cells[0]) * (cells[2] if cells[2] is not None else 1.0)
        base = self._moment("base_s")
        if base is None:
            base = self._moment("arrival_s")
        for ours, moment in (("ttft_s", "first_token_s"), ("e2e_s", "last_token_s")):
            if ours not in found and base is not None and (at := self._moment(moment)) is not None:
                found[ours] = at - base
        found = {
            k: np.where((v >= 0) & (v < _LONGEST_ANSWER_S), v, np.nan) for k, v in found.items()
        }  # fmt: skip
        if {"ttft_s", "e2e_s"} <= found.keys():
            with np.errstate(divide="ignore", invalid="ignore"):
                tpot = (found["e2e_s"] - found["ttft_s"]) / (output - 1)
            found["tpot_s"] = np.where((output > 1) & (tpot >= 0), tpot, np.nan)
        return {k: v for k, v in found.items() if np.isfinite(v).any()}

    def _moment(self, ours: str) -> Array | None:
        """Points of time as a log has them, in seconds."""

        cells = self.table.optional(ours)
        if cells is None:
            return None
        column, _, seconds = cells
        found = numbers(column)
        good = found[np.isfinite(found)]
        if len(good):
            since = epoch_unit(float(np.median(good)))
            return found * (seconds if seconds is not None else since or self.used_seconds)
        if column.dtype.kind in "fiub":
            return None
        dates = written.read(column)
        if dates.isna().all():
            return None
        nanoseconds = dates.to_numpy(dtype="datetime64[ns]").astype(np.int64)
        return np.where(dates.isna(), np.nan, (nanoseconds - getattr(self, "origin", 0)) / 1e9)


_BY_NAME = "columns by their names"
_LONGEST_ANSWER_S = 86400.0


def _whole_nanoseconds(cells: pd.Series[Any]) -> Any:
    """Whole numbers beyond the precision of a float, less the first of them; None where there are none."""
    try:
        whole = [int(v) for v in cells]
    except (TypeError, ValueError, OverflowError):
        return None
    if not whole or max(whole) < 2**53 or max(whole) >= 2**63:
        return None
    return np.array(whole, dtype=np.int64)


def _prefixes(
    check: _Check, blocks: tuple[Ints, Ints], keep: Any, prompt: Ints, layout: Layout, mapped: Mapping[str, str],
    file: str,
) -> Prefixes:  # fmt: skip
    import pandas as pd

    text = mapped.get("block_tokens", str(layout.block_tokens))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 2**20:
        raise InputError(Mistake(file, "columns.block_tokens", text, "a whole number of tokens, at least 1"))
    size, (counts, ids) = int(text), blocks
    needed = -(-prompt // size)
    found = Prefixes(size, np.concatenate(([0], np.cumsum(counts))).astype(np.int64), ids)
    if not keep.all():
        found, counts = found.take(np.flatnonzero(keep)), counts[keep]
    check.bad("hash_ids", pd.Series(counts), counts > needed, f"at most one block for every {size} prompt tokens")
    return found


class _Check:
    """Columns checked as a whole, with the lines of mistakes."""

    def __init__(self, file: str, lines: Ints | None) -> None:
        self.file, self.lines = file, lines
        self.index: Ints | None = None  # of the rows among all, where some are left out
        self.rows: list[Ints] = []  # that are wrong
        self.found: list[Mistake] = []

    def bad(self, column: str, values: Any, wrong: Any, expected: str) -> None:
        """Note the first rows of a column that are wrong, and how many more there are."""
        import pandas as pd

        at = np.flatnonzero(wrong)
        for k, i in enumerate(at[:SHOWN]):
            more = f"and {len(at) - SHOWN:,} more rows" if k == SHOWN - 1 and len(at) > SHOWN else None
            value = values.iloc[i]
            value = None if value is pd.NA or (isinstance(value, float) and np.isnan(value)) else value
            value = value.item() if isinstance(value, np.generic) else value
            if self.lines is None:
                place = i if self.index is None else self.index[i]
                self.found.append(Mistake(self.file, f"{column}[{place}]", value, expected, hint=more))
            else:
                self.found.append(Mistake(self.file, column, value, expected, int(self.lines[i]), more))
        if len(at):
            self.rows.append(at)

    def numbers(
        self, column: str, values: pd.Series, expected: str, good: Callable[[Array], Any], whole: bool = False
    ) -> Array:
        """A column of numbers that are `good`; 1 where they are not."""
        found = numbers(values, whole)
        fine = good(found)
        self.bad(column, values, ~fine, expected)
        return np.where(fine, found, 1.0)

    def tokens(self, column: str, values: pd.Series) -> Ints:
        """A column of token counts."""
        found = self.numbers(
            column, values, f"a whole number from 1 to {MAX_TOKENS}",
            lambda x: (x >= 1) & (x <= MAX_TOKENS) & (x == np.floor(x)), whole=True,
        )  # fmt: skip
        return found.astype(np.int64)

    def label(self, column: str, values: pd.Series) -> Label:
        """A column of names."""
        import pandas as pd

        self.bad(column, values, values.isna().to_numpy(), "a name in every row")
        codes, names = pd.factorize(values.astype(str))
        return Label(tuple(str(n) for n in names), codes.astype(np.int64))

    def done(self) -> None:
        """Refuse the file if anything was wrong."""
        if self.found:
            hint = "; ".join(filter(None, (self.found[-1].hint, "--skip-bad leaves such rows out")))
            raise InputError([*self.found[:-1], replace(self.found[-1], hint=hint)])
