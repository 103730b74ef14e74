"""``vllm bench serve --save-result`` (formerly benchmark_serving.py): one JSON object a run, one a line, or the CSV of
``vllm bench sweep``.

Means in milliseconds, totals over the completed requests. A run without ``max_concurrency`` is an open loop at
``request_rate``: its mean concurrency is Little's law over the measured values, requests in flight = rate × time each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.importers import served, sglang_serving
from optmodels.importers.source import ResultFile

NAME = "vllm-serve"
TITLE = "vllm bench serve"


def detects(source: ResultFile) -> bool:
    """Its means; SGLang's files, which have them too, are told first."""
    return {"mean_ttft_ms", "mean_tpot_ms"} <= (set(source.first) or source.header)


def run(source: ResultFile, data: dict[str, Any], line: int, fixed: Mapping[str, float]) -> dict[str, Any]:
    """A run of the file."""
    for name in sorted(sglang_serving.OWN & set(data)):
        raise source.wrong(name, data[name], f"no field of SGLang's, whose files are {sglang_serving.NAME}")
    ttft, tpot = (source.needed(data, f"mean_{m}_ms", line) / 1e3 for m in ("ttft", "tpot"))
    output = served.per_request(source, data, "total_output_tokens", line)
    concurrency = source.number(data, "max_concurrency", line, optional=True)
    tp = source.number(data, "tensor_parallel_size", line, optional=True)
    rate = source.number(data, "request_throughput", line, optional=True)
    if concurrency is None and rate is not None and output is not None and "concurrency" not in fixed:
        concurrency = max(1.0, rate * (ttft + max(output - 1.0, 0.0) * tpot))
    return served.row(
        source, fixed, line,
        concurrency=concurrency, tp=tp,
        input_tokens=served.per_request(source, data, "total_input_tokens", line),
        output_tokens=output, ttft_s=ttft, tpot_s=tpot, e2e_s=served.scaled(source, data, "mean_e2el_ms", 1e-3, line),
        **served.counts(source, data, line),
        requests_per_s=rate, model=data.get("model_id"), engine=data.get("backend"), date_measured=data.get("date"),
        **served.milliseconds(source, data, line),
    )  # fmt: skip
