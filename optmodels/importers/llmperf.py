"""LLMPerf ``token_benchmark_ray.py``: the ``*_summary.json`` of a run, seconds throughout.

Its inter-token latency is end-to-end time over output tokens, first token included; the time per output token after
the first is (end to end − TTFT)/(tokens − 1), from the means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.importers import served
from optmodels.importers.source import ResultFile

NAME = "llmperf"
TITLE = "LLMPerf"


def detects(source: ResultFile) -> bool:
    """Its prefix."""
    return any(k.startswith("results_ttft_s") for k in source.first)


def run(source: ResultFile, data: dict[str, Any], line: int, fixed: Mapping[str, float]) -> dict[str, Any]:
    """The run of a file."""
    ttft = _mean(source, data, "ttft_s", line)
    whole = _mean(source, data, "end_to_end_latency_s", line)
    tokens = _mean(source, data, "number_output_tokens", line)
    if tokens <= 1 or whole <= ttft:
        raise source.wrong(
            "results_end_to_end_latency_s_mean", whole, f"more than the TTFT, {ttft:g} s, over more than one token"
        )
    quantiles = {
        f"ttft_{q}_s": source.number(data, f"results_ttft_s_quantiles_{q}", line, positive=False, optional=True)
        for q in served.QUANTILES
    }
    return served.row(
        source, fixed, line,
        concurrency=source.number(data, "num_concurrent_requests", line, optional=True),
        input_tokens=_mean(source, data, "number_input_tokens", line), output_tokens=tokens,
        ttft_s=ttft, tpot_s=(whole - ttft) / (tokens - 1.0),
        failed=source.number(data, "results_number_errors", line, positive=False, optional=True),
        completed=source.number(data, "results_num_completed_requests", line, positive=False, optional=True),
        model=data.get("model"), **quantiles,
    )  # fmt: skip


def _mean(source: ResultFile, data: dict[str, Any], metric: str, line: int) -> float:
    """``results_X_mean``, or ``mean`` of a nested ``results_X``."""
    if isinstance(data.get(f"results_{metric}"), dict):
        return source.needed(data, f"results_{metric}.mean", line)
    return source.needed(data, f"results_{metric}_mean", line)
