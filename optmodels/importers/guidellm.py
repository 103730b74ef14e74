"""GuideLLM's ``benchmarks.json`` or ``.yaml``: one report, one benchmark a load (vllm-project/guidellm 0.2 to 0.7).

Fields as in ``benchmark/schemas/generative`` of its source: distributions over the successful requests, TTFT and
inter-token latency in milliseconds. Its time per output token counts the first token too; the time between tokens,
which is meant here, is its inter-token latency. A benchmark of this many streams has these in flight; another has
the mean concurrency that it measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.importers import served
from optmodels.importers.source import ResultFile
from optmodels.latency.fit.measurements import Kind

NAME = "guidellm"
TITLE = "GuideLLM"


def detects(source: ResultFile) -> bool:
    """Benchmarks with its metrics; or the CSV that it writes next to, which `read` refuses in words."""
    found = (source.first or source.yaml).get("benchmarks")
    if isinstance(found, list) and found and isinstance(found[0], dict):
        return isinstance(found[0].get("metrics"), dict)
    return source.lines[0].startswith("Run Info,")


def read(
    source: ResultFile, fixed: Mapping[str, float], columns: Mapping[str, str]
) -> tuple[Kind, list[dict[str, Any]]]:
    """Every benchmark of the report.

    Raises:
        InputError: a field that is missing or wrong; no report, or its CSV.
    """
    if source.lines[0].startswith("Run Info,"):
        raise source.wrong("", "GuideLLM's CSV", "the benchmarks.json that it writes too", 1)
    source.check_whole()
    report = source.yaml or source.records[0][1]
    found = report.get("benchmarks")
    if not isinstance(found, list):
        raise source.wrong("benchmarks", found, "a list of benchmarks", source.line_of("benchmarks") or 1)
    return "served", [_row(source, report, b, f"benchmarks[{i}]", fixed) for i, b in enumerate(found)]


def _row(source: ResultFile, report: Any, benchmark: Any, path: str, fixed: Mapping[str, float]) -> dict[str, Any]:
    metrics = benchmark.get("metrics") if isinstance(benchmark, dict) else None
    if not isinstance(metrics, dict):
        raise source.wrong(f"{path}.metrics", metrics, "the metrics of a benchmark", source.line_of("metrics") or 1)

    def mean(metric: str) -> float:
        value = source.number(metrics, f"{metric}.successful.mean", optional=True)
        if value is None:
            expected, at = "a number (did a request succeed?)", source.line_of(metric) or 1
            raise source.wrong(f"{path}.metrics.{metric}.successful.mean", None, expected, at)
        return value

    quantiles = {}
    for ours, theirs in (("ttft", "time_to_first_token_ms"), ("tpot", "inter_token_latency_ms")):
        for q in served.QUANTILES:
            value = source.number(metrics, f"{theirs}.successful.percentiles.{q}", positive=False, optional=True)
            if value is not None:
                quantiles[f"{ours}_{q}_s"] = value / 1e3
    streams = next(
        (value for where in ("config", "args")
         if (value := source.number(benchmark, f"{where}.strategy.streams", optional=True)) is not None), None,
    )  # fmt: skip
    model = next((m for m in (_text(report, "args", "model"), _text(benchmark, "worker", "backend_model")) if m), None)
    return served.row(
        source, fixed, 1, concurrency=max(1.0, streams if streams is not None else mean("request_concurrency")),
        input_tokens=mean("prompt_token_count"), output_tokens=mean("output_token_count"),
        ttft_s=mean("time_to_first_token_ms") / 1e3, tpot_s=mean("inter_token_latency_ms") / 1e3,
        e2e_s=source.number(metrics, "request_latency.successful.mean", optional=True),
        failed=source.number(metrics, "request_totals.errored", positive=False, optional=True),
        completed=source.number(metrics, "request_totals.successful", positive=False, optional=True),
        requests_per_s=source.number(metrics, "requests_per_second.successful.mean", optional=True),
        model=model, **quantiles,
    )  # fmt: skip


def _text(data: Any, *path: str) -> str | None:
    for part in path:
        data = data.get(part) if isinstance(data, dict) else None
    return data if isinstance(data, str) else None
