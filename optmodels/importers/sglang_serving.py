"""``python -m sglang.bench_serving --output-file``: one JSON object a line, one line a run.

As vLLM's, from which it descends; ``concurrency`` is the mean number of requests in flight as the tool measured it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.importers import served
from optmodels.importers.source import ResultFile

NAME = "sglang-serving"
TITLE = "SGLang bench_serving"
OWN = {"mean_e2e_latency_ms", "total_output_tokens_retokenized"}


def detects(source: ResultFile) -> bool:
    """Its own names among the means."""
    return "mean_ttft_ms" in source.first and bool(OWN & set(source.first))


def run(source: ResultFile, data: dict[str, Any], line: int, fixed: Mapping[str, float]) -> dict[str, Any]:
    """A run of the file."""
    if not OWN & set(data):
        raise source.wrong(min(OWN), None, "a field that SGLang writes (vLLM's files are vllm-serve)", line)
    measured = source.number(data, "concurrency", line, optional=True)
    limit = source.number(data, "max_concurrency", line, optional=True)
    return served.row(
        source, fixed, line,
        concurrency=max(1.0, measured) if measured is not None else limit,
        input_tokens=served.per_request(source, data, "total_input_tokens", line),
        output_tokens=served.per_request(source, data, "total_output_tokens", line),
        tp=source.number(data, "server_info.tp_size", line, optional=True),
        ttft_s=source.needed(data, "mean_ttft_ms", line) / 1e3,
        tpot_s=source.needed(data, "mean_tpot_ms", line) / 1e3,
        e2e_s=served.scaled(source, data, "mean_e2e_latency_ms", 1e-3, line),
        requests_per_s=source.number(data, "request_throughput", line, optional=True),
        **served.counts(source, data, line),
        engine=data.get("backend"),
        **served.milliseconds(source, data, line),
    )  # fmt: skip
