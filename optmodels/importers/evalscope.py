"""evalscope's ``benchmark_summary.json`` (modelscope/evalscope ``perf``), a table of its figures with one run a row, or
the table that it prints.

Means in seconds over the requests that succeeded; the concurrency is the number of users.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from optmodels.importers import served
from optmodels.importers.source import ResultFile
from optmodels.latency.fit.measurements import Kind

NAME = "evalscope"
TITLE = "evalscope perf"
TTFT, TPOT = "Average time to first token (s)", "Average time per output token (s)"
CONCURRENCY = "Number of concurrency"


def detects(source: ResultFile) -> bool:
    """Its names, as keys or columns."""
    return {TTFT, CONCURRENCY} <= ({*_printed(source)} or source.header or set(source.first))


def _printed(source: ResultFile) -> dict[str, Any]:
    """The figures of the table that it prints; empty where the file is none."""
    found = re.findall(r"^[|│]\s*([A-Z][^|│]*?)\s*[|│]\s*(-?[\d.]+)\s*[|│]\s*$", source.text, flags=re.M)
    return {name: float(value) for name, value in found if value.count(".") < 2}


def read(
    source: ResultFile, fixed: Mapping[str, float], columns: Mapping[str, str]
) -> tuple[Kind, list[dict[str, Any]]]:
    """The runs of the file.

    Raises:
        InputError: a figure that is missing or wrong, by line.
    """
    printed = _printed(source)
    every = [(1, printed)] if printed else source.table if source.header else source.records
    return "served", [_run(source, data, line, fixed) for line, data in every]


def _run(source: ResultFile, data: dict[str, Any], line: int, fixed: Mapping[str, float]) -> dict[str, Any]:
    """A run of the file."""

    def number(name: str) -> float | None:
        value = data.get(name)
        return None if value is None else source.number({"_": value}, "_", line, positive=False)

    def needed(name: str) -> float:
        value = number(name)
        if value is None or value <= 0:
            raise source.wrong(name, value, "a number > 0", line)
        return value

    return served.row(
        source, fixed, line, concurrency=needed(CONCURRENCY),
        input_tokens=number("Average input tokens per request"),
        output_tokens=number("Average output tokens per request"), ttft_s=needed(TTFT), tpot_s=needed(TPOT),
        e2e_s=number("Average latency (s)"), failed=number("Failed requests"), completed=number("Succeed requests"),
        requests_per_s=number("Request throughput (req/s)"), model=data.get("Model"),
    )  # fmt: skip
