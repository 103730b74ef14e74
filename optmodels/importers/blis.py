"""BLIS' ``--metrics-path`` JSON (inference-sim/inference-sim, ``MetricsOutput`` of sim/metrics_utils.go, 2026).

Means over the completed requests in milliseconds. It simulates arrivals, not a closed-loop run: the mean concurrency is
Little's law, responses/s × seconds of a request, of the file's instances together; of several instances give that
of one with ``--set concurrency=N``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.importers import served
from optmodels.importers.source import ResultFile

NAME = "blis"
TITLE = "BLIS"


def detects(source: ResultFile) -> bool:
    """Its names."""
    return {"vllm_estimated_duration_s", "ttft_mean_ms", "itl_mean_ms"} <= set(source.first)


def run(source: ResultFile, data: dict[str, Any], line: int, fixed: Mapping[str, float]) -> dict[str, Any]:
    """A run of the file."""
    rate = source.needed(data, "responses_per_sec", line)
    done = source.needed(data, "completed_requests", line)
    whole = source.needed(data, "e2e_mean_ms", line) / 1e3
    quantiles = {}
    for ours, theirs in (("ttft", "ttft"), ("tpot", "itl")):
        for q in ("p90", "p95", "p99"):
            value = source.number(data, f"{theirs}_{q}_ms", line, positive=False, optional=True)
            quantiles[f"{ours}_{q}_s"] = None if value is None else value / 1e3
    return served.row(
        source, fixed, line, concurrency=None if "concurrency" in fixed else max(1.0, rate * whole),
        input_tokens=source.needed(data, "total_input_tokens", line) / done,
        output_tokens=source.needed(data, "total_output_tokens", line) / done,
        ttft_s=source.needed(data, "ttft_mean_ms", line) / 1e3,
        tpot_s=source.needed(data, "itl_mean_ms", line) / 1e3, e2e_s=whole, completed=done,
        failed=sum(
            source.number(data, name, line, positive=False, optional=True) or 0.0
            for name in ("timed_out_requests", "dropped_unservable")
        ),
        requests_per_s=rate, **quantiles,
    )  # fmt: skip
