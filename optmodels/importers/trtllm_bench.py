"""``trtllm-bench throughput|latency``: its ``--report_json``, or the text that it prints; times in milliseconds.

Time to the first token and between tokens come from a streaming run (``--streaming``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from optmodels.importers import served
from optmodels.importers.source import ResultFile
from optmodels.latency.fit.measurements import Kind

NAME = "trtllm-bench"
TITLE = "trtllm-bench"


def detects(source: ResultFile) -> bool:
    """Its sections."""
    return {"engine", "performance", "request_info"} <= set(source.first) or _is_printed(source)


def _is_printed(source: ResultFile) -> bool:
    return "= PERFORMANCE OVERVIEW" in source.text and "= REQUEST DETAILS" in source.text


# Figures of the printed text → keys of the report.
_FIGURES = {
    "Model": "engine.model", "Dtype": "engine.dtype", "Quantization": "engine.quantization",
    "TensorRT LLM Version": "engine.version", "TensorRT-LLM Version": "engine.version",
    "Number of concurrent requests": "request_info.avg_num_concurrent_requests",
    "Average Input Length (tokens)": "request_info.avg_input_length",
    "Average Output Length (tokens)": "request_info.avg_output_length",
    "TP Size": "world_info.tp_size", "PP Size": "world_info.pp_size",
    "Request Throughput (req/sec)": "performance.request_throughput_req_s",
    "Average request latency (ms)": "performance.avg_request_latency_ms",
    "Average time-to-first-token [TTFT] (ms)": "streaming_metrics.avg_ttft_ms",
    "Average time-per-output-token [TPOT] (ms)": "streaming_metrics.avg_tpot_ms",
}  # fmt: skip


def _printed(source: ResultFile) -> dict[str, Any]:
    """The printed figures under the keys of the report."""
    report: dict[str, Any] = {"engine": {}}
    for name, value in re.findall(r"^([^:\n]+?)\s*:\s+(\S+)\s*$", source.text, flags=re.M):
        if name.strip() in _FIGURES:
            section, _, key = _FIGURES[name.strip()].partition(".")
            number = re.fullmatch(r"[\d,]+\.?\d*", value) is not None
            report.setdefault(section, {})[key] = float(value.replace(",", "")) if number else value
    return report


def read(
    source: ResultFile, fixed: Mapping[str, float], columns: Mapping[str, str]
) -> tuple[Kind, list[dict[str, Any]]]:
    """The reports of the file, or the printed one.

    Raises:
        InputError: a figure that is missing or wrong; a run without times of single tokens.
    """
    if _is_printed(source):
        return "served", [_run(source, _printed(source), 1, fixed)]
    source.check_whole()
    return "served", [_run(source, data, line, fixed) for line, data in source.records]


def _run(source: ResultFile, data: dict[str, Any], line: int, fixed: Mapping[str, float]) -> dict[str, Any]:
    """A report."""
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
