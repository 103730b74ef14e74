"""``trtllm-bench throughput|latency --report_json`` (NVIDIA/TensorRT-LLM): one report a run, times in milliseconds.

Time to the first token and between tokens come from a streaming run (``--streaming``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.importers import served
from optmodels.importers.source import ResultFile

NAME = "trtllm-bench"
TITLE = "trtllm-bench"


def detects(source: ResultFile) -> bool:
    """Its sections."""
    return {"engine", "performance", "request_info"} <= set(source.first)


def run(source: ResultFile, data: dict[str, Any], line: int, fixed: Mapping[str, float]) -> dict[str, Any]:
    """A report of the file."""
    source.check_whole()
    streamed = data.get("streaming_metrics")
    if not isinstance(streamed, dict):
        expected = "times of single tokens: run trtllm-bench with --streaming"
        raise source.wrong("streaming_metrics", streamed, expected, line)
    quantiles = {
        f"{m}_{q}_s": served.scaled(source, streamed, f"{m}_percentiles.{q}", 1e-3, line)
        for m in ("ttft", "tpot") for q in served.QUANTILES
    }  # fmt: skip
    engine = data["engine"] if isinstance(data["engine"], dict) else {}
    return served.row(
        source, fixed, line,
        concurrency=source.number(data, "request_info.avg_num_concurrent_requests", line, optional=True),
        input_tokens=source.number(data, "request_info.avg_input_length", line, optional=True),
        output_tokens=source.number(data, "request_info.avg_output_length", line, optional=True),
        ttft_s=source.needed(streamed, "avg_ttft_ms", line) / 1e3,
        tpot_s=source.needed(streamed, "avg_tpot_ms", line) / 1e3,
        e2e_s=served.scaled(source, data, "performance.avg_request_latency_ms", 1e-3, line),
        tp=source.number(data, "world_info.tp_size", line, optional=True),
        pp=source.number(data, "world_info.pp_size", line, optional=True),
        requests_per_s=source.number(data, "performance.request_throughput_req_s", line, optional=True),
        model=_text(engine, "model"), precision=_text(engine, "quantization") or _text(engine, "dtype"),
        engine="trtllm", engine_version=_text(engine, "version"), **quantiles,
    )  # fmt: skip


def _text(data: Mapping[str, Any], name: str) -> str | None:
    value = data.get(name)
    return value if isinstance(value, str) else None
