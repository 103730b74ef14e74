"""inference-perf's ``stage_N_lifecycle_metrics.json`` and ``summary_lifecycle_metrics.json`` (kubernetes-sigs, 0.1 on).

Fields as ``summarize_requests`` of its ``reportgen/base.py`` writes them: means and percentiles in seconds over the
requests that succeeded. A stage of a concurrent load states its concurrency; of another it is Little's law, requests/s ×
seconds of a request. Lengths are ``prompt_tokens`` and ``output_tokens``, in older reports ``prompt_len``, ``output_len``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.latency.fit.measurements import Kind
from optmodels.measure.importers import served
from optmodels.measure.importers.source import Source

NAME = "inference-perf"
TITLE = "inference-perf"
_KEYS = {"p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}


def detects(source: Source) -> bool:
    """Its two halves."""
    return "load_summary" in source.first and isinstance(source.first.get("successes"), dict)


def read(source: Source, fixed: Mapping[str, float], columns: Mapping[str, str]) -> tuple[Kind, list[dict[str, Any]]]:
    """The stage (or whole run) of each file.

    Raises:
        InputError: a field that is missing or wrong; an API that does not stream.
    """
    rows = []
    for line, data in source.records:
        done = data.get("successes")
        latency = done.get("latency") if isinstance(done, dict) else None
        if not isinstance(latency, dict):
            raise source.wrong("successes.latency", latency, "latencies of the requests that succeeded", line)
        means = {}
        for ours, theirs in (("ttft_s", "time_to_first_token"), ("tpot_s", "time_per_output_token")):
            means[ours] = source.number(latency, f"{theirs}.mean", line, optional=True)
            if means[ours] is None:
                raise source.wrong(f"successes.latency.{theirs}", None, "its mean (a streaming API has it)", line)
        quantiles = {
            f"{ours}_{q}_s": source.number(latency, f"{theirs}.{key}", line, positive=False, optional=True)
            for ours, theirs in (("ttft", "time_to_first_token"), ("tpot", "time_per_output_token"))
            for q, key in _KEYS.items()
        }
        rate = source.number(done, "throughput.requests_per_sec", line, optional=True)
        concurrency = source.number(data, "load_summary.concurrency", line, optional=True)
        if concurrency is None and rate is not None and "concurrency" not in fixed:
            concurrency = max(1.0, rate * source.needed(latency, "request_latency.mean", line))
        rows.append(
            served.row(
                source, fixed, line, concurrency=concurrency,
                input_tokens=_length(source, done, "prompt", line), output_tokens=_length(source, done, "output", line),
                ttft_s=means["ttft_s"] or 0.0, tpot_s=means["tpot_s"] or 0.0, requests_per_s=rate, **quantiles,
            )
        )  # fmt: skip
    return "served", rows


def _length(source: Source, done: Any, what: str, line: int) -> float | None:
    found = (source.number(done, f"{what}_{kind}.mean", line, optional=True) for kind in ("tokens", "len"))
    return next((x for x in found if x is not None), None)
