"""Trace files as they are: public traces, engines' request logs, and tables of anyone's with columns mapped by name.

A format is found from the columns (CSV, Parquet) or keys (JSON lines), not from the name; gzip is undone:

* ours                 ``arrival_s, prompt_tokens, output_tokens``, and optionally ``predicted_output_tokens``,
                       ``slo_factor`` and the labels ``model``, ``region``, ``class``, ``session``
* Azure                ``TIMESTAMP, ContextTokens, GeneratedTokens`` (Azure/AzurePublicDataset:
                       AzureLLMInferenceDataset2023 and 2024, AzureLMMInferenceDataset2025)
* Mooncake             JSON lines ``timestamp`` in ms, ``input_length, output_length, hash_ids`` of 512-token blocks
                       (kvcache-ai/Mooncake, FAST25-release)
* Qwen-Bailian         the same keys with ``chat_id``: timestamp in seconds, blocks of 16 tokens
                       (alibaba-edu/qwen-bailian-usagetraces-anon)
* BurstGPT             ``Timestamp, Model, Request tokens, Response tokens, Log Type`` (HPMLL/BurstGPT); its requests
                       without response tokens failed, as its README says, and are left out and counted
* ServeGen             ``request_id, timestamp, input_tokens, output_tokens`` (alibaba/ServeGen: its workloads as CSV)
* benchmarks           JSON of ``vllm bench serve`` and ``sglang.bench_serving`` with their lists (`traces.logs`)
* servers              lines of vLLM's and SGLang's request logs (`traces.logs`)
* SGLang               JSON lines of ``--export-metrics-to-file``: ``request_received_ts, prompt_tokens,
                       completion_tokens``
* vLLM, as a table     ``queued_s, input_tokens, output_tokens``

`columns` maps ours to theirs in any of these, ``THEIRS`` or ``THEIRS:unit``; arrivals then count from the first one.
Arrivals are numbers in the unit or ISO dates and times. Rows out of order are sorted and counted; a request has at
least one prompt and one output token.
"""

from __future__ import annotations

import io
import itertools
import json
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import PydanticCustomError

from optmodels.errors import InputError, Mistake
from optmodels.io.read import MAX_BYTES
from optmodels.io.tables import MAX_COLUMNS, numbers, open_text, parsed_csv, read_parquet, too_large, uneven
from optmodels.traces import logs
from optmodels.traces.types import Floats, Ints, Label, Prefixes, Trace
from optmodels.units import convert

if TYPE_CHECKING:
    import pandas as pd

LABELS = ("model", "region", "class", "session")
MAX_TOKENS = 10**9
MAX_SECONDS = 1e10
SHOWN = 5  # bad rows named one by one
LOG_LINES = 100  # of which one shows that a file is a server's log: others may print before it


@dataclass(frozen=True)
class Layout:
    """Where a format keeps what a trace needs.

    Attributes:
        title: for messages.
        arrival, prompt, output: columns or keys; all have to be there.
        seconds: that one unit of a numeric arrival lasts.
        from_first: arrivals count from the first one.
        labels: ours → theirs, read where they are there.
        marks: further columns by which it is known.
        block_tokens: of a ``hash_ids`` entry.
        failed: in words, what a request without output tokens is; empty: a mistake.
    """

    title: str
    arrival: str
    prompt: str
    output: str
    seconds: float = 1.0
    from_first: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    block_tokens: int = 512
    failed: str = ""

    def known_by(self, names: set[str]) -> bool:
        """Whether these columns are its own."""
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
)  # fmt: skip
_MAP_YOURS = "map yours: arrival_s=THEIRS:unit, input_tokens=THEIRS, output_tokens=THEIRS"
_FORMATS = (
    "Azure's CSV (TIMESTAMP, ContextTokens, GeneratedTokens), Mooncake's JSON lines (timestamp, input_length, "
    "output_length, hash_ids), BurstGPT, ServeGen, benchmarks and request logs of vLLM and SGLang, CSV or Parquet with "
    "arrival_s, prompt_tokens, output_tokens, or columns mapped onto these"
)
OPTIONAL = ("predicted_output_tokens", "slo_factor", *LABELS, "hash_ids", "block_tokens")
_ALIAS = {"input_tokens": "prompt_tokens"}
_MAPPED = ("arrival_s", "prompt_tokens", "output_tokens", *OPTIONAL)


def read_trace(path: Path, columns: Mapping[str, str] | None = None) -> Trace:
    """Read a request trace of any known format, or of any columns that are mapped onto ours.

    Args:
        path: The file.
        columns: Ours → theirs: ``arrival_s`` (``created:ms``), ``prompt_tokens`` (or ``input_tokens``),
            ``output_tokens``, ``predicted_output_tokens``, ``slo_factor``, a label, ``hash_ids``; a number stands for
            itself in every row (``output_tokens=128``, ``block_tokens=16``).

    Raises:
        InputError: not there, unreadable, cut off, empty, of no known format, over a limit of `io.tables`, a column
            that is not there, or bad rows (the first of each kind of mistake, with their number).
    """
    mapped = {_ALIAS.get(k, k): v for k, v in (columns or {}).items()}
    if unknown := [k for k in columns or {} if _ALIAS.get(k, k) not in _MAPPED]:
        expected = f"one of {', '.join((*_MAPPED, *_ALIAS))}"
        raise InputError(Mistake(str(path), f"columns.{k}", k, expected) for k in unknown)
    try:
        with path.open("rb") as raw:
            start = raw.read(4)
    except (OSError, ValueError):
        start = b"none"  # said by whoever opens it next
    if not start:
        raise InputError(Mistake(str(path), "", "an empty file", _FORMATS))
    if start == b"PAR1":
        frame = read_parquet(path)
        return _table(path, _Rows(_stripped(frame), np.arange(1, len(frame) + 1)), mapped)
    with open_text(path, f"a request trace: {_FORMATS}") as text:
        return _text(path, text, mapped)


@dataclass
class _Rows:
    """A table, the lines its rows are on (None: one JSON object), and the prompts' blocks."""

    frame: pd.DataFrame
    lines: Ints | None
    blocks: tuple[Ints, Ints] | None = None  # counts, ids
    notes: tuple[str, ...] = ()


def _text(path: Path, text: io.TextIOWrapper, mapped: Mapping[str, str]) -> Trace:
    """A server's log by its lines; else JSON if the first line that is not blank begins with a brace, else CSV."""
    skipped = 0
    for line in text:
        if line.strip() and not line.startswith("#"):
            break
        skipped += 1
    else:
        raise InputError(Mistake(str(path), "", "no rows", _FORMATS))
    table = not line.lstrip().startswith("{")
    begin = [line, *itertools.islice(text, LOG_LINES if table else 0)]
    if any(map(logs.is_log, begin)):
        return _listed(path, logs.server(str(path), itertools.chain(begin, text)), mapped)
    if table:
        if line.count(",") >= MAX_COLUMNS:
            raise too_large(str(path), "a header of more columns", f"{MAX_COLUMNS:,} columns")
        return _table(path, _csv(path, _Prefixed("".join(begin), text), skipped), mapped)
    if line.strip() == "{" or '"input_lens"' in line or '"total_input_tokens"' in line:
        return _bench(path, line + text.read(MAX_BYTES), mapped)
    return _table(path, _json_lines(path, _Prefixed(line, text), skipped, mapped), mapped)


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


def _csv(path: Path, text: Any, skipped: int) -> _Rows:
    import pandas as pd

    file = str(path)
    try:
        frame = parsed_csv(text, skip_blank_lines=False, skipinitialspace=True, low_memory=False)
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
    return _Rows(_stripped(frame), lines)


class _Column:
    """Cells of JSON lines: numbers packed, whatever else kept beside them."""

    def __init__(self) -> None:
        self.packed, self.odd = array("d"), dict[int, Any]()

    def append(self, value: Any) -> None:
        if type(value) is int or type(value) is float:
            try:
                self.packed.append(value)
                return
            except OverflowError:
                pass
        self.odd[len(self.packed)] = value
        self.packed.append(np.nan)

    def series(self) -> pd.Series[Any]:
        import pandas as pd

        found: pd.Series[Any] = pd.Series(np.array(self.packed, dtype=np.float64))
        if self.odd:
            found = found.astype(object)
            found.iloc[list(self.odd)] = pd.Series(list(self.odd.values()), dtype=object).to_numpy()
        return found


def _json_lines(path: Path, text: Any, skipped: int, mapped: Mapping[str, str]) -> _Rows:
    """JSON lines: the keys of the layout that the first line shows, of the mapping, and blocks."""
    import pandas as pd

    file = str(path)
    lines: list[int] = []
    needed: tuple[str, ...] = ()
    wanted: dict[str, _Column] = {}
    blocks_key, ids, counts = mapped.get("hash_ids", "hash_ids"), array("q"), array("q")
    for number, line in enumerate(text, skipped + 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not lines:
                needed, others = _keys(set(row), mapped)
                wanted = {key: _Column() for key in dict.fromkeys((*needed, *others))}
            for key in needed:
                wanted[key].append(row[key])
            for key in wanted.keys() - set(needed):
                wanted[key].append(row.get(key))
            blocks = row.get(blocks_key, ())
            if isinstance(blocks, str):
                raise TypeError
            ids.extend(blocks)
            counts.append(len(blocks))
        except json.JSONDecodeError as error:
            raise InputError(Mistake(file, "", error.msg, "one JSON object a line", number)) from None
        except (RecursionError, ValueError):  # more digits than Python reads
            raise InputError(Mistake(file, "", line.strip()[:60], "one flat JSON object a line", number)) from None
        except KeyError as error:
            key, hint = str(error.args[0]), _MAP_YOURS if not lines and not mapped else None
            raise InputError(Mistake(file, key, None, "this key in every line", number, hint)) from None
        except OverflowError:
            raise InputError(Mistake(file, blocks_key, blocks[:3], "whole numbers below 2⁶³", number)) from None
        except (TypeError, AttributeError):
            expected = f"an object with {blocks_key} as a list of whole numbers"
            raise InputError(Mistake(file, "", line.strip()[:60], expected, number)) from None
        lines.append(number)
    frame = pd.DataFrame({key: column.series() for key, column in wanted.items()})
    known = (np.array(counts, np.int64), np.array(ids, np.int64)) if len(ids) else None
    return _Rows(frame, np.array(lines, np.int64), known)


def _keys(names: set[str], mapped: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Keys that every line has, and those that it may have."""
    layout = _layout(names)
    if layout is None and not mapped:
        layout = MOONCAKE  # whose missing keys are named
    given = [c for ours in _MAPPED[:3] if (c := _theirs(mapped.get(ours))) is not None and c in names]
    base = [] if layout is None else [
        key for ours, key in zip(_MAPPED[:3], (layout.arrival, layout.prompt, layout.output), strict=True)
        if ours not in mapped
    ]  # fmt: skip
    others = [*(layout.labels.values() if layout is not None else ()), *OPTIONAL[:-2]]
    more = [c for ours in OPTIONAL[:-2] if (c := _theirs(mapped.get(ours))) is not None]
    marks = layout.marks if layout is not None else ()
    return (*given, *base), tuple(c for c in (*others, *more, *marks) if c in names)


def _theirs(spec: str | None) -> str | None:
    """The column of ``THEIRS:unit``, where it is no name with a colon itself."""
    return None if spec is None else spec.rpartition(":")[0] or spec


def _bench(path: Path, text: str, mapped: Mapping[str, str]) -> Trace:
    """One JSON object with a list for each column: requests in the order they were made."""
    if len(text) >= MAX_BYTES:
        raise too_large(str(path), "a longer JSON object", f"{MAX_BYTES // 2**20} MiB in one object")
    return _listed(path, logs.benchmark(str(path), text), mapped)


def _listed(path: Path, found: logs.Columns, mapped: Mapping[str, str]) -> Trace:
    import pandas as pd

    frame = pd.DataFrame({c: pd.Series(values, dtype=object) for c, values in found[0].items()})
    return _table(path, _Rows(frame, None, notes=tuple(found[1])), mapped)


def _layout(names: set[str]) -> Layout | None:
    return next((layout for layout in (*LAYOUTS, BENCH) if layout.known_by(names)), None)


def _table(path: Path, rows: _Rows, mapped: Mapping[str, str]) -> Trace:
    """Rows of a known layout, or of columns mapped onto ours."""
    frame, file = rows.frame, str(path)
    names = set(frame.columns)
    layout = _layout(names)
    if layout is None:
        missing = [c for c in _MAPPED[:3] if c not in names and c not in mapped]
        if len(missing) == 3:
            raise InputError(Mistake(file, "columns", sorted(names)[:8], _FORMATS, hint=_MAP_YOURS))
        if missing:
            raise InputError(Mistake(file, c, None, "this column", hint=_MAP_YOURS) for c in missing)
        layout = OURS
    if any(c in mapped for c in _MAPPED[:3]):
        layout = replace(layout, from_first=True)
    if not len(frame):
        raise InputError(Mistake(file, "", "a header without rows", "at least one request"))
    check = _Check(file, rows.lines)
    cells = {
        ours: _cells(frame, mapped.get(ours), default, ours, file)
        for ours, default in zip(_MAPPED[:3], (layout.arrival, layout.prompt, layout.output), strict=True)
    }
    notes = [*rows.notes]
    keep = np.ones(len(frame), dtype=bool)
    if layout.failed:
        keep = numbers(cells["output_tokens"][0]) != 0
        if not keep.all():
            notes.append(f"{int((~keep).sum()):,} of {len(frame):,} requests left out ({layout.failed})")
            if not keep.any():
                raise InputError(Mistake(file, layout.output, 0, "a request with output tokens"))
            frame, cells = frame[keep], {k: (v[keep], n) for k, (v, n) in cells.items()}
            check.lines = None if rows.lines is None else rows.lines[keep]
            check.index = np.flatnonzero(keep)
    times = _times(check, *cells["arrival_s"], mapped.get("arrival_s"), layout)
    prompt, output = (check.tokens(cells[c][1], cells[c][0]) for c in _MAPPED[1:3])
    predicted = slo_factor = None
    if (found := _optional(frame, mapped, "predicted_output_tokens", layout, file)) is not None:
        predicted = check.tokens(found[1], found[0])
    if (found := _optional(frame, mapped, "slo_factor", layout, file)) is not None:
        slo_factor = check.numbers(found[1], found[0], "a finite number > 0", lambda x: np.isfinite(x) & (x > 0))
    labels = {}
    for ours in LABELS:
        if (found := _optional(frame, mapped, ours, layout, file)) is not None:
            labels[ours] = check.label(found[1], found[0])
    prefixes = None if rows.blocks is None else _prefixes(check, rows.blocks, keep, prompt, layout, mapped, file)
    check.done()
    order = None
    if late := int((np.diff(times) < 0).sum()):
        notes.append(f"{late:,} of {len(times):,} rows came before the row above them: sorted by arrival")
        order = np.argsort(times, kind="stable")
    if layout.from_first:
        times = times - times.min()
    trace = Trace(path.name, times, prompt, output, labels, slo_factor, prefixes, predicted, tuple(notes))
    return trace if order is None else trace.take(order)


def _cells(frame: pd.DataFrame, spec: str | None, default: str, ours: str, file: str) -> tuple[pd.Series[Any], str]:
    """A column by mapping (or as the layout has it) with its name; a number stands for every row."""
    import pandas as pd

    theirs = spec if spec is not None and spec in frame.columns else _theirs(spec) or default
    if theirs in frame.columns:
        return frame[theirs], theirs
    try:
        return pd.Series(np.full(len(frame), float(theirs))), ours
    except ValueError:
        known = ", ".join(map(str, frame.columns[:12]))
        raise InputError(Mistake(file, f"columns.{ours}", theirs, f"a column of the file: {known}")) from None


def _optional(
    frame: pd.DataFrame, mapped: Mapping[str, str], ours: str, layout: Layout, file: str
) -> tuple[pd.Series[Any], str] | None:
    """`_cells` of what a trace need not have."""
    default = layout.labels.get(ours, ours if layout is OURS or ours not in LABELS else "")
    if ours not in mapped and default not in frame.columns:
        return None
    return _cells(frame, mapped.get(ours), default, ours, file)


def _times(check: _Check, cells: pd.Series[Any], name: str, spec: str | None, layout: Layout) -> Floats:
    """Arrivals in seconds: numbers in their unit, or ISO dates and times."""
    import pandas as pd

    seconds = layout.seconds if spec is None else 1.0
    theirs, _, unit = (spec or "").rpartition(":")
    if theirs and theirs == name:
        try:
            seconds = float(str(convert(f"1 {unit}", "s")))
        except (PydanticCustomError, ValueError):
            raise InputError(Mistake(check.file, "columns.arrival_s", unit, "a unit of time: ms, s, min, …")) from None
    first = next((c for c in cells if not (isinstance(c, float) and np.isnan(c))), None)
    dates = cells.dtype.kind == "M" or name == "TIMESTAMP" or (
        isinstance(first, str) and not pd.isna(pd.to_datetime(first, format="ISO8601", errors="coerce", utc=True))
        and np.isnan(numbers(pd.Series([first]))[0])
    )  # fmt: skip
    if not dates:
        what = {1.0: "seconds", 1e-3: "milliseconds"}.get(seconds, "a number")
        limit = MAX_SECONDS / seconds
        found = check.numbers(name, cells, f"{what} ≥ 0", lambda x: np.isfinite(x) & (x >= 0) & (x <= limit))
        return found / (1.0 / seconds)  # rounds as milliseconds / 1000 do
    times = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)
    check.bad(name, cells, times.isna().to_numpy(), "a date and time such as 2023-11-16 18:15:46.6805900")
    nanoseconds = times.to_numpy(dtype="datetime64[ns]").astype(np.int64)
    good = nanoseconds[~times.isna().to_numpy()]
    return (nanoseconds - (good.min() if len(good) else 0)) / 1e9


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
    """Columns checked as a whole, with the lines of what is wrong."""

    def __init__(self, file: str, lines: Ints | None) -> None:
        self.file, self.lines = file, lines
        self.index: Ints | None = None  # of the rows among all, where some are left out
        self.found: list[Mistake] = []

    def bad(self, column: str, values: Any, wrong: Any, expected: str) -> None:
        """Note the first rows of a column that are wrong, and how many more there are."""
        at = np.flatnonzero(wrong)
        for k, i in enumerate(at[:SHOWN]):
            more = f"and {len(at) - SHOWN:,} more rows" if k == SHOWN - 1 and len(at) > SHOWN else None
            value = values.iloc[i]
            value = None if isinstance(value, float) and np.isnan(value) else value
            value = value.item() if isinstance(value, np.generic) else value
            if self.lines is None:
                place = i if self.index is None else self.index[i]
                self.found.append(Mistake(self.file, f"{column}[{place}]", value, expected, hint=more))
            else:
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

    def done(self) -> None:
        """Refuse the file if anything was wrong."""
        if self.found:
            raise InputError(self.found)
