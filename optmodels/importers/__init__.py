"""Benchmark results that people already have, as measurements.

Each tool has a module with `NAME`, `TITLE`, `detects(source)` and a reader: `read(source, fixed, columns)`, which
returns the kind and the rows, or `run(source, data, line, fixed)`, which returns a row of the ``served`` kind for a
JSON object or a table's line. The module knows its tool's fields: it ignores unknown ones, checks the needed ones, and
names mistakes by file and line (`source`).
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from optmodels.errors import InputError, Mistake, Mistakes, one_of
from optmodels.importers import (
    aiconfigurator,
    blis,
    console,
    evalscope,
    genai_perf,
    guidellm,
    inference_perf,
    inferencex,
    llm_d,
    llmperf,
    llmservingsim,
    prometheus,
    sglang_serving,
    table,
    trtllm_bench,
    vllm_latency,
    vllm_serve,
)
from optmodels.importers.rows import MeasuredRows
from optmodels.importers.source import ResultFile
from optmodels.io.pipes import settled
from optmodels.io.write import path_text
from optmodels.latency.fit.measurements import COLUMNS, Kind

FORMATS: dict[str, ModuleType] = {
    m.NAME: m
    for m in (
        sglang_serving, vllm_serve, vllm_latency, genai_perf, llmperf, guidellm, inference_perf, inferencex, blis,
        aiconfigurator, prometheus, llmservingsim, llm_d, trtllm_bench, evalscope, console, table,
    )
}  # fmt: skip


def read(
    paths: Sequence[Path], name: str | None = None, fixed: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None, allow_failed: bool = False,
) -> tuple[Kind, MeasuredRows]:  # fmt: skip
    """Read files of benchmark results into one table of one kind.

    Args:
        paths: The files; or folders of profiles of LLMServingSim.
        name: Their format (one of `FORMATS`), or None to detect each file's.
        fixed: Values for columns that a file does not state, e.g. ``concurrency``; they do not replace stated ones.
        columns: Columns of plain tables and JSON: our name → theirs, as in `read_measurements`.
        allow_failed: Read runs in which more than 5 % of the requests failed.

    Raises:
        InputError: an unknown format, an unreadable, truncated, empty or wrong file (by line), files of two kinds.
    """
    import pandas as pd

    if name is not None:
        one_of("--format", name, FORMATS)
    values = _numbers(fixed or {})
    rows, files = [], []
    wrong = Mistakes()
    kinds: dict[Kind, str] = {}
    for path in [file for given in paths for file in llmservingsim.within(given) or [given]]:
        with wrong.collecting():
            source = ResultFile.of(path, allow_failed)
            module = FORMATS[name] if name is not None else table if columns else _detected(source)
            kind, found = _read(module, source, values, columns or {})
            if not found:
                why = "; ".join(source.notes) or "no results"
                raise source.wrong("", why, f"at least one result of {module.TITLE}", 1)
            kinds.setdefault(kind, source.name)
            rows += [{**row, "file": path_text(path.name), "format": module.NAME} for row in found]
            digest = hashlib.sha256(settled(path).read_bytes()).hexdigest()
            noted = {"notes": source.notes} if source.notes else {}
            files.append(
                {"file": path_text(source.name), "sha256": digest, "format": module.TITLE, "rows": len(found), **noted}
            )
    wrong.raise_any()
    if len(kinds) != 1:
        said = "; ".join(f"{file}: {kind}" for kind, file in kinds.items())
        raise InputError(Mistake(None, "--from", said or None, "files with measurements of one kind"))
    frame = pd.DataFrame(rows)
    about = {
        "written_by": "optmodels measure --from",
        "date": datetime.date.today().isoformat(),
        "files": files,
        "set": dict(fixed or {}),
    }
    return next(iter(kinds)), MeasuredRows(frame, about)


def _read(
    module: ModuleType, source: ResultFile, fixed: Mapping[str, float], columns: Mapping[str, str]
) -> tuple[Kind, list[dict[str, Any]]]:
    """Kind and rows of a file."""
    if not hasattr(module, "run"):
        return module.read(source, fixed, columns)
    every = source.table if source.header else source.records
    return "served", [module.run(source, data, line, fixed) for line, data in every]


def _numbers(fixed: Mapping[str, str]) -> dict[str, float]:
    known = {c: column for kind in COLUMNS.values() for c, column in kind.items()}
    found, wrong = {}, Mistakes()
    for name, text in fixed.items():
        try:
            found[name] = float(text)
            bad = name in known and not found[name] >= known[name].minimum
        except ValueError:
            bad = True
        if bad or name not in known:
            expected = known[name].expected if name in known else f"one of {', '.join(sorted(known))}"
            wrong.add(f"--set {name}", text, expected)
    wrong.raise_any()
    return found


def _detected(source: ResultFile) -> ModuleType:
    for is_it, what, expected in _OTHERS:
        if is_it(source):
            raise source.wrong("", what, expected, 1)
    for module in FORMATS.values():
        if module.detects(source):
            return module
    source.check_whole()  # refuses a file that is cut short or empty, by line
    keys = list(source.first or source.yaml)
    known = f"results of one of {', '.join(FORMATS)}"
    if keys:
        listing = ", ".join(map(str, keys[:KEYS_SHOWN])) + (", …" if len(keys) > KEYS_SHOWN else "")
        hint = "name what it holds: --column concurrency=KEY --column ttft_s=KEY:UNIT …"
        raise InputError(Mistake(source.name, "", f"keys {listing}", known, 1, hint))
    raise source.wrong("", source.text.strip().split("\n", 1)[0][:60], known, 1)


def _is_mlperf(source: ResultFile) -> bool:
    start = source.text[:100_000]
    table = {"Submitter", "Scenario", "# of Accelerators"} <= source.header
    return table or ":::MLLOG" in start or "MLPerf Results Summary" in start


def _is_request_log(source: ResultFile) -> bool:
    return {"input_toks", "output_toks", "first_token_ts"} <= set(source.first)


# Files that are no table of results: how they are known, their name, and the file expected instead.
_OTHERS: tuple[tuple[Callable[[ResultFile], bool], str, str], ...] = (
    (
        _is_mlperf, "an MLPerf log or table",
        "a benchmark's results: MLPerf's state neither prompt lengths nor concurrency",
    ),
    (
        _is_request_log, "LLMServingSim's log of requests",
        "a benchmark's results; this is a trace with measured times: optmodels simulate --trace FILE",
    ),
)  # fmt: skip
KEYS_SHOWN = 8
