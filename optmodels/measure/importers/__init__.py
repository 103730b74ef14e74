"""Benchmark results that people already have, as measurements.

One module a tool: `NAME`, `TITLE`, `detects(source)` and `read(source, fixed)`, which gives the kind and the rows. A
module knows its tool's fields; fields it does not know are left alone, fields it needs are checked, and what is wrong
is named by file and line (`source`).
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from optmodels.errors import InputError, Mistake, Mistakes, one_of
from optmodels.latency.fit.measurements import COLUMNS, Kind
from optmodels.measure.importers import (
    aiconfigurator,
    blis,
    genai_perf,
    guidellm,
    inference_perf,
    inferencex,
    llmperf,
    llmservingsim,
    prometheus,
    sglang_serving,
    table,
    vllm_latency,
    vllm_serve,
)
from optmodels.measure.importers.source import Source
from optmodels.measure.rows import Measured

FORMATS: dict[str, ModuleType] = {
    m.NAME: m
    for m in (
        sglang_serving, vllm_serve, vllm_latency, genai_perf, llmperf, guidellm, inference_perf, inferencex, blis,
        aiconfigurator, prometheus, llmservingsim, table,
    )
}  # fmt: skip


def read(
    paths: Sequence[Path],
    name: str | None = None,
    fixed: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> tuple[Kind, Measured]:
    """Read files of benchmark results into one table of one kind.

    Args:
        paths: The files; or folders of profiles of LLMServingSim.
        name: Their format (one of `FORMATS`), or None to detect each file's.
        fixed: Values for columns that a file does not state, e.g. ``concurrency``; they do not replace stated ones.
        columns: Of plain tables: our column → theirs, as in `read_measurements`.

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
            source = Source.of(path)
            module = FORMATS[name] if name is not None else _detected(source)
            kind, found = module.read(source, values, columns or {})
            if not found:
                why = "; ".join(source.notes) or "no results"
                raise source.wrong("", why, f"at least one result of {module.TITLE}", 1)
            kinds.setdefault(kind, source.name)
            rows += [{**row, "file": path.name, "format": module.NAME} for row in found]
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            noted = {"notes": source.notes} if source.notes else {}
            files.append({"file": source.name, "sha256": digest, "format": module.TITLE, "rows": len(found), **noted})
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
    return next(iter(kinds)), Measured(frame, about)


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


def _detected(source: Source) -> ModuleType:
    for module in FORMATS.values():
        if module.detects(source):
            return module
    source.check_whole()  # says so, by line, where a file is cut short or empty
    raise source.wrong("", source.text.strip().split("\n", 1)[0][:60], f"results of one of {', '.join(FORMATS)}", 1)
