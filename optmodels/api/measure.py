"""`measure`: benchmark results as a file that `calibrate` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optmodels.api.sources import File
from optmodels.errors import InputError, Mistake
from optmodels.io.write import refuse_existing


def measure(
    files: Sequence[File] = (), *, from_: Sequence[File] = (), format: str | None = None,
    set: Mapping[str, str | float] | None = None, column: Mapping[str, str] | None = None, tp: int | None = None,
    allow_failed: bool = False, out: File | None = None, force: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Read benchmark results into one table of measurements.

    Args:
        files: result files of a benchmark.
        from_: result file of a benchmark, read before `files`.
        format: format of the files (`importers.FORMATS`); None: detected for each.
        set: values that the files do not state, such as ``{"concurrency": 16}``.
        column: columns of plain tables: our name → the file's.
        tp: tensor-parallel degree of the runs, where the files do not state it.
        allow_failed: read runs with more than 5 % failed requests.
        out: CSV or Parquet file to write.
        force: replace an existing file.

    Returns:
        ``kind`` and ``rows`` of the measurements, ``files`` with format and SHA-256, ``out``.

    Raises:
        InputError: no file, an unreadable or wrong one (by line), files of two kinds, a file that exists.
    """
    from optmodels import importers
    from optmodels.importers import rows
    from optmodels.io.tables import records

    paths = [Path(p) for p in (*from_, *files)]
    if not paths:
        raise InputError(
            Mistake(None, "FILE", None, "result files of a benchmark; `optmodels rows-to-measure` names runs")
        )
    target = None if out is None else Path(out)
    if target is not None:
        if target.suffix not in (".parquet", ".csv"):
            expected = "a file ending in .parquet or .csv"
            raise InputError(Mistake(str(target), "--out", target.suffix or "no ending", expected))
        if not force:
            refuse_existing(target)
    given = {k: str(v) for k, v in (set or {}).items()} | ({} if tp is None else {"tp": str(tp)})
    kind, measured = importers.read(paths, format, given, dict(column or {}), allow_failed)
    if target is not None:
        rows.write(target, measured, overwrite=force)
    return measured.about | {"kind": kind, "out": str(target) if target else None, "rows": records(measured.frame)}
