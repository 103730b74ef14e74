"""inference-perf's ``stage_N_lifecycle_metrics.json`` and ``summary_lifecycle_metrics.json`` (kubernetes-sigs, 0.1 on).

Fields as ``summarize_requests`` of its ``reportgen/base.py`` writes them: means and percentiles in seconds over the
requests that succeeded. TPOT is (request latency − TTFT)/(output tokens − 1): its own time per output token counts
stream events, and an engine may send several a token. A stage of a concurrent load states its concurrency; of
another it is Little's law, requests/s × seconds of a request. Lengths are ``prompt_tokens`` and ``output_tokens``, in
older reports ``prompt_len`` and ``output_len``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.importers import served
from optmodels.importers.source import ResultFile

NAME = "inference-perf"
TITLE = "inference-perf"
_KEYS = {"p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}


def detects(source: ResultFile) -> bool:
    """Its two halves."""
    return "load_summary" in source.first and isinstance(source.first.get("successes"), dict)


def run(source: ResultFile, data: dict[str, Any], line: int, fixed: Mapping[str, float]) -> dict[str, Any]:
    """A stage, or the whole run."""
    done = data.get("successes")
    latency = done.get("latency") if isinstance(done, dict) else None
    if not isinstance(latency, dict):
        raise source.wrong("successes.latency", latency, "latencies of the requests that succeeded", line)
    ttft = source.number(latency, "time_to_first_token.mean", line, optional=True)
    if ttft is None:
        expected = "its mean (a streaming API has it)"
        raise source.wrong("successes.latency.time_to_first_token", None, expected, line)
    whole = source.needed(latency, "request_latency.mean", line)
    output = source.or_set(_length(source, done, "output", line), "output_tokens", fixed, line)
    tpot = served.between_tokens(whole, ttft, output)
    if tpot is None:
        expected = f"more than the TTFT, {ttft:g} s, over more than one output token"
        raise source.wrong("successes.latency.request_latency", whole, expected, line)
    stated = source.number(latency, "time_per_output_token.mean", line, optional=True)
    agrees = stated is not None and abs(stated / tpot - 1.0) <= served.TPOT_WITHIN
    if stated is not None and not agrees:
        source.notes.append(
            f"TPOT {1e3 * tpot:.4g} ms by request latency, TTFT and output tokens; the stated "
            f"{1e3 * stated:.4g} ms counts stream events"
        )
    of = (("ttft", "time_to_first_token"), *((("tpot", "time_per_output_token"),) if agrees else ()))
    quantiles = {
        f"{ours}_{q}_s": source.number(latency, f"{theirs}.{key}", line, positive=False, optional=True)
        for ours, theirs in of
        for q, key in _KEYS.items()
    }
    rate = source.number(done, "throughput.requests_per_sec", line, optional=True)
    concurrency = source.number(data, "load_summary.concurrency", line, optional=True)
    if concurrency is None and rate is not None and "concurrency" not in fixed:
        concurrency = max(1.0, rate * whole)
    return served.row(
        source, fixed, line, concurrency=concurrency,
        input_tokens=_length(source, done, "prompt", line), output_tokens=output, ttft_s=ttft, tpot_s=tpot,
        failed=source.number(data, "failures.count", line, positive=False, optional=True),
        completed=source.number(done, "count", line, positive=False, optional=True), requests_per_s=rate,
        **quantiles,
    )  # fmt: skip


def _length(source: ResultFile, done: Any, what: str, line: int) -> float | None:
    found = (source.number(done, f"{what}_{kind}.mean", line, optional=True) for kind in ("tokens", "len"))
    return next((x for x in found if x is not None), None)
