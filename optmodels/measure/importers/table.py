"""Plain CSV: columns as `read_measurements` wants them, or mapped onto them, checked cell by cell."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from optmodels.errors import InputError, Mistake
from optmodels.latency.fit.measurements import Kind, read_measurements
from optmodels.measure.importers.source import Source

NAME = "csv"
TITLE = "plain CSV"


def detects(source: Source) -> bool:
    """A header with commas: whatever no other format is."""
    return source.text.lstrip()[:1] not in ("{", "[") and "," in _header(source)


def _header(source: Source) -> str:
    return next((line for line in source.lines if line.strip() and not line.startswith("#")), "")


def read(source: Source, fixed: Mapping[str, float], columns: Mapping[str, str]) -> tuple[Kind, list[dict[str, Any]]]:
    """Every row, in the units of `COLUMNS`.

    Raises:
        InputError: a ragged row, a column that is missing, a bad cell.
    """
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
    mapped = {k: f"{v:g}" for k, v in fixed.items()} | dict(columns)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "table.csv"
        copy.write_text(source.text, encoding="utf-8")
        try:
            m = read_measurements(copy, columns=mapped)
        except InputError as error:
            raise InputError([_placed(source, x, start + 1, numbers) for x in error.mistakes]) from None
    names = {**m.values, **m.labels}
    return m.kind, [{k: v[i].item() for k, v in names.items()} for i in range(len(m))]


def _placed(source: Source, mistake: Mistake, header: int, numbers: list[int]) -> Mistake:
    """The mistake with this file's name and line: that of its row, else the header's."""
    row = re.match(r"row (\d+)", mistake.path)
    return replace(mistake, file=source.name, line=numbers[int(row[1]) - 1] if row else header)
