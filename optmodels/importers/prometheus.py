"""Prometheus text of vLLM's ``/metrics``: histograms since the server started, so scrape a server that ran one load.

Means are ``_sum/_count``; quantiles interpolate within a bucket, as PromQL's histogram_quantile does. The concurrency
is the gauge ``vllm:num_requests_running`` if the scrape fell under load, else the user's. The time between tokens has
to agree with the latency of requests.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from optmodels.importers import served
from optmodels.importers.source import ResultFile
from optmodels.latency.fit.measurements import Kind

NAME = "prometheus"
TITLE = "Prometheus text of vLLM metrics"
E2E = "vllm:e2e_request_latency_seconds"
TTFT = "vllm:time_to_first_token_seconds"
TPOT = (
    "vllm:request_time_per_output_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
)
DONE, FAILED = "vllm:request_success_total", ("abort", "error")
_SAMPLE = re.compile(
    r'^(?P<name>[a-zA-Z_:][\w:]*)(\{(?P<labels>(?:[^"}]|"(?:\\.|[^"\\])*")*)\})?\s+(?P<value>\S+)(\s+-?\d+)?\s*$'
)
_LABEL = re.compile(r'(\w+)\s*=\s*"((?:\\.|[^"\\])*)"')


class Histograms:
    """Samples of one model: sums over engines, cumulative buckets by upper bound."""

    def __init__(self) -> None:
        self.values: dict[str, float] = defaultdict(float)
        self.buckets: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
        self.line: dict[str, int] = {}

    def quantile(self, name: str, q: float) -> float | None:
        """Linear within the bucket; a bucket without an upper bound gives its lower one."""
        found = sorted(self.buckets[name].items())
        if not found or found[-1][1] <= 0:
            return None
        rank, lower, below = q * found[-1][1], 0.0, 0.0
        for upper, count in found:
            if count >= rank and count > below:
                return lower if math.isinf(upper) else lower + (upper - lower) * (rank - below) / (count - below)
            lower, below = upper, count
        return None


def detects(source: ResultFile) -> bool:
    """Its metrics."""
    return re.search(r"^vllm:\w+", source.text, flags=re.M) is not None


def read(
    source: ResultFile, fixed: Mapping[str, float], columns: Mapping[str, str]
) -> tuple[Kind, list[dict[str, Any]]]:
    """One row a model.

    Raises:
        InputError: a line that is no sample, a histogram that is missing, empty or not cumulative.
    """
    rows = []
    for model, h in _samples(source).items():
        tpot = next((n for n in TPOT if h.values[f"{n}_count"] > 0), None)
        if tpot is None:
            raise source.wrong(TPOT[0], None, f"a histogram with observations; or one of {', '.join(TPOT[1:])}", 1)
        running = h.values["vllm:num_requests_running"]
        quantiles = {
            f"{ours}_{q}_s": h.quantile(name, float(q[1:]) / 100)
            for ours, name in (("ttft", TTFT), ("tpot", tpot))
            for q in served.QUANTILES
        }
        rows.append(
            served.row(
                source, fixed, h.line.get(TTFT, 1),
                concurrency=fixed.get("concurrency", running if running >= 1 else None),
                input_tokens=_mean(source, h, "vllm:request_prompt_tokens"),
                output_tokens=_mean(source, h, "vllm:request_generation_tokens"),
                ttft_s=_mean(source, h, TTFT), tpot_s=_mean(source, h, tpot), model=model or None,
                completed=h.values["completed"], failed=h.values["failed"],
                e2e_s=_mean(source, h, E2E) if h.values[f"{E2E}_count"] > 0 else None, **quantiles,
            )
        )  # fmt: skip
    return "served", rows


def _mean(source: ResultFile, h: Histograms, name: str) -> float:
    count = h.values[f"{name}_count"]
    if count <= 0 or f"{name}_sum" not in h.values:
        raise source.wrong(name, None, "a histogram with observations", h.line.get(name, 1))
    counts = [c for _, c in sorted(h.buckets[name].items())]
    if any(b < a for a, b in pairwise(counts)):
        raise source.wrong(name, counts[:8], "buckets that are cumulative", h.line.get(name, 1))
    if counts and math.inf not in h.buckets[name]:
        raise source.wrong(name, 'no bucket le="+Inf"', "a whole histogram (is the file truncated?)", h.line[name])
    mean = h.values[f"{name}_sum"] / count
    if not mean > 0:
        raise source.wrong(f"{name}_sum", mean, "a positive mean", h.line.get(name, 1))
    return mean


def _samples(source: ResultFile) -> dict[str, Histograms]:
    found: dict[str, Histograms] = {}
    source.check_ended()
    for number, line in enumerate(source.lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _SAMPLE.match(line)
        if match is None:
            raise source.wrong("", line[:60], "a sample NAME{LABELS} VALUE", number)
        try:
            value = float(match["value"])
        except ValueError:
            raise source.wrong(match["name"], match["value"], "a number", number) from None
        name, labels = match["name"], dict(_LABEL.findall(match["labels"] or ""))
        if not name.startswith("vllm:"):
            continue
        if math.isinf(value):
            raise source.wrong(name, match["value"], "a finite number", number)
        h = found.setdefault(labels.get("model_name", ""), Histograms())
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        h.line.setdefault(base, number)
        if name.endswith("_bucket"):
            try:
                bound = float(labels["le"])
            except (KeyError, ValueError):
                bound = math.nan
            if not bound >= 0:
                raise source.wrong(name, labels.get("le"), 'a bucket with a numeric le="…" ≥ 0', number)
            h.buckets[base][bound] += value
        elif name == DONE:
            h.values["failed" if labels.get("finished_reason") in FAILED else "completed"] += value
        elif not math.isnan(value):
            h.values[name] += value
    return found
