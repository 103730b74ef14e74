"""``vllm bench latency --output-json``: whole static batches, first prompt token to last output token.

The file has ``avg_latency``, ``latencies`` and ``percentiles`` in seconds but not the measured deployment, so batch
size and lengths come from ``--set batch=8 --set input_tokens=32 --set output_tokens=128`` (the tool's defaults are
these).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from optmodels.importers.source import ResultFile
from optmodels.latency.fit.measurements import Kind

NAME = "vllm-latency"
TITLE = "vllm bench latency"


def detects(source: ResultFile) -> bool:
    """Its two fields."""
    return "avg_latency" in source.first and "percentiles" in source.first


def read(
    source: ResultFile, fixed: Mapping[str, float], columns: Mapping[str, str]
) -> tuple[Kind, list[dict[str, Any]]]:
    """The median of the iterations (their mean in files without them).

    Raises:
        InputError: a field that is missing or wrong, by line; batch or lengths not given.
    """
    rows = []
    for line, data in source.records:
        average = source.needed(data, "avg_latency", line)
        each = data.get("latencies", [])
        if not isinstance(each, list):
            raise source.wrong("latencies", each, "a list of seconds")
        seconds = [source.needed({"latencies": x}, "latencies", line) for x in each]
        row = {name: source.or_set(None, name, fixed, line) for name in ("batch", "input_tokens", "output_tokens")}
        rows.append(
            row
            | {
                "tp": source.or_set(None, "tp", fixed, line),
                "latency_s": median(seconds) if seconds else average,
                "repeats": len(seconds),
            }
        )
    return "static", rows
