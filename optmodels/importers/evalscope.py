"""evalscope's ``benchmark_summary.json`` (modelscope/evalscope ``perf``), or a table of its figures: one run a row.

Means in seconds over the requests that succeeded; the concurrency is the number of users.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.importers import served
from optmodels.importers.source import ResultFile

NAME = "evalscope"
TITLE = "evalscope perf"
TTFT, TPOT = "Average time to first token (s)", "Average time per output token (s)"
CONCURRENCY = "Number of concurrency"


def detects(source: ResultFile) -> bool:
    """Its names, as keys or columns."""
    return {TTFT, CONCURRENCY} <= (source.header or set(source.first))


def run(source: ResultFile, data: dict[str, Any], line: int, fixed: Mapping[str, float]) -> dict[str, Any]:
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
