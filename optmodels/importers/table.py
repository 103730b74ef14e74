"""Plain CSV: columns as `read_measurements` wants them, known by their names, or mapped, checked cell by cell."""

from __future__ import annotations

import csv
import io
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from optmodels.errors import InputError, Mistake
from optmodels.importers.source import ResultFile
from optmodels.latency.fit.measurements import COLUMNS, Kind, read_measurements
from optmodels.traces.columns import NAMES, plain, with_unit
from optmodels.traces.json_rows import flat

NAME = "csv"
TITLE = "plain CSV or JSON"
LISTED = 12
# Names of columns as people write them; times have their unit at the end.
_OTHER_NAMES = {
    "concurrency": ("conc", "users", "clients", "num_users", "max_concurrency", "num_concurrency"),
    "input_tokens": NAMES["prompt_tokens"], "output_tokens": NAMES["output_tokens"],
    "tp": ("tp_size", "tensor_parallel", "tensor_parallel_size"),
    "ttft_s": ("ttft", "mean_ttft", "avg_ttft", "ttft_mean", "ttft_avg", "time_to_first_token"),
    "tpot_s": ("tpot", "mean_tpot", "avg_tpot", "tpot_mean", "tpot_avg", "time_per_output_token"),
}  # fmt: skip
_UNITS = {1.0: "s", 1e-3: "ms", 1e-6: "us", 1e-9: "ns"}


def _by_name(names: list[str]) -> dict[str, str]:
    """Ours → theirs (with its unit) of columns whose names are known, where a table has no column of ours."""
    found = {}
    for ours, others in _OTHER_NAMES.items():
        if ours in names:
            continue
        for name in names:
            bare, seconds = with_unit(plain(name)) if ours.endswith("_s") else (plain(name), None)
            if (bare == ours or bare in others) and ours.endswith("_s") == (seconds is not None):
                found[ours] = name if seconds is None else f"{name}:{_UNITS[seconds]}"
                break
    return found


def detects(source: ResultFile) -> bool:
    """A header with commas: whatever no other format is. JSON is read so where its keys are known or named."""
    if source.text.lstrip()[:1] in ("{", "["):
        return {"concurrency", "ttft_s", "tpot_s"} <= {*source.first, *_by_name([*source.first])}
    return "," in _header(source)


def _header(source: ResultFile) -> str:
    return next((line for line in source.lines if line.strip() and not line.startswith("#")), "")


def read(
    source: ResultFile, fixed: Mapping[str, float], columns: Mapping[str, str]
) -> tuple[Kind, list[dict[str, Any]]]:
    """Every row, in the units of `COLUMNS`.

    Raises:
        InputError: a ragged row, a column that is missing, a bad cell.
    """
    if source.text.lstrip()[:1] in ("{", "["):
        return _objects(source, fixed, columns)
    source.check_ended()
    start = source.lines.index(_header(source))
    width = len(source.cells(start + 1))
    numbers = []  # of the rows' lines
    for number, line in enumerate(source.lines[start + 1 :], start + 2):
        if not line.strip() or line.startswith("#"):
            continue
        numbers.append(number)
        if (n := len(source.cells(number))) != width:
            raise source.wrong("", f"{n} cells", f"{width} as in the header", number)
    if not numbers:
        raise source.wrong("", "a header without rows", "at least one measurement", start + 1)
    names = [c.strip() for c in source.cells(start + 1)]
    return _measured(source, source.text, names, fixed, columns, start + 1, numbers)


def _objects(
    source: ResultFile, fixed: Mapping[str, float], columns: Mapping[str, str]
) -> tuple[Kind, list[dict[str, Any]]]:  # fmt: skip
    """The objects of a JSON file as rows: keys within objects are joined by dots.

    Raises:
        InputError: no JSON, a column that is missing, a bad cell.
    """
    source.check_whole()
    rows = [(line, flat(data)) for line, data in source.records]
    names = list(dict.fromkeys(k for _, row in rows for k in row))
    known = {c for kind in COLUMNS.values() for c in kind}
    columns = _by_name(names) | dict(columns)
    wanted = [n for n in names if n in known or n in columns.values() or n in {
        v.rpartition(":")[0] for v in columns.values()
    }]  # fmt: skip
    text = io.StringIO()
    out = csv.writer(text)
    out.writerow(wanted)
    out.writerows([["" if row.get(n) is None else row[n] for n in wanted] for _, row in rows])
    try:
        return _measured(source, text.getvalue(), wanted, fixed, columns, 1, [line for line, _ in rows])
    except InputError as error:
        listing = ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")
        raise InputError(
            replace(m, hint=m.hint or f"keys of the file: {listing}; name one: --column OURS=KEY")
            for m in error.mistakes
        ) from None


def _measured(
    source: ResultFile, text: str, names: list[str], fixed: Mapping[str, float], columns: Mapping[str, str],
    header: int, numbers: list[int],
) -> tuple[Kind, list[dict[str, Any]]]:  # fmt: skip
    """The rows of a table as measurements; columns that the table lacks come from `fixed`."""
    mapped = _by_name(names) | {k: f"{v:g}" for k, v in fixed.items() if k not in names} | dict(columns)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "table.csv"
        copy.write_text(text, encoding="utf-8")
        try:
            m = read_measurements(copy, columns=mapped)
        except InputError as error:
            raise InputError([_placed(source, x, header, numbers) for x in error.mistakes]) from None
    if "tp" in COLUMNS[m.kind] and "tp" not in names and "tp" not in mapped:
        source.or_set(None, "tp", {}, header)
    cells = {**m.values, **m.labels}
    return m.kind, [{k: v[i].item() for k, v in cells.items()} for i in range(len(m))]


def _placed(source: ResultFile, mistake: Mistake, header: int, numbers: list[int]) -> Mistake:
    """The mistake with this file's name and line: its row's line, else the header's."""
    row = re.match(r"row (\d+)", mistake.path)
    return replace(mistake, file=source.name, line=numbers[int(row[1]) - 1] if row else header)
