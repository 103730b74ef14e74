"""The block of text that ``vllm bench serve`` and ``sglang.bench_serving`` print, as reports quote it.

``Serving Benchmark Result`` opens a block and a line of ``=`` ends it; a file may have several, and other text. Means
are in milliseconds, totals over the requests that succeeded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from optmodels.importers import served
from optmodels.importers.source import ResultFile
from optmodels.latency.fit.measurements import Kind

NAME = "console"
TITLE = "printed results of vllm bench serve or SGLang"
_BEGIN = re.compile(r"={3,}\s*Serving Benchmark Result\s*={3,}")
_END = re.compile(r"^={20,}$")
_FIGURE = re.compile(r"(?P<name>[A-Za-z][^:]*?)\s*:\s+(?P<value>\S+)$")
_COLOURS = re.compile("\x1b\\[[0-9;]*m")


def detects(source: ResultFile) -> bool:
    """The headline of a block."""
    return _BEGIN.search(source.text) is not None


def read(
    source: ResultFile, fixed: Mapping[str, float], columns: Mapping[str, str]
) -> tuple[Kind, list[dict[str, Any]]]:
    """Every block of the file.

    Raises:
        InputError: a figure that is missing or wrong, by line; a block that does not end.
    """
    rows, block, begun = [], dict[str, tuple[int, str]](), 0
    for number, line in enumerate(source.lines, 1):
        text = _COLOURS.sub("", line).strip()
        if _BEGIN.search(text):
            block, begun = {}, number
        elif begun and _END.search(text):
            rows.append(_row(source, block, begun, fixed))
            begun = 0
        elif begun and (match := _FIGURE.search(text)) is not None:
            block[match["name"].strip().lower()] = number, match["value"]
    if begun:
        raise source.wrong("", "a block that does not end", "the line of = that ends it", len(source.lines))
    if not rows:
        raise source.wrong("", "no results", "a block headed Serving Benchmark Result", 1)
    return "served", rows


def _row(
    source: ResultFile, block: Mapping[str, tuple[int, str]], begun: int, fixed: Mapping[str, float]
) -> dict[str, Any]:  # fmt: skip
    def number(*names: str) -> float | None:
        for name in names:
            line, text = block.get(name, (begun, ""))
            if not text or text.lower() in ("n/a", "none", "inf", "nan"):
                continue
            try:
                return float(text.replace(",", ""))
            except ValueError:
                raise source.wrong(name, text, "a number", line) from None
        return None

    def needed(*names: str) -> float:
        value = number(*names)
        if value is None or value <= 0:
            raise source.wrong(names[0], value, "a number > 0", begun)
        return value

    completed = needed("successful requests")
    ttft, output = needed("mean ttft (ms)") / 1e3, needed("total generated tokens") / completed
    whole = number("mean e2el (ms)", "mean e2e latency (ms)")
    each = served.between_tokens(None if whole is None else whole / 1e3, ttft, output)
    tpot = each if each is not None and number("mean tpot (ms)") is None else needed("mean tpot (ms)") / 1e3
    rate = number("request throughput (req/s)")
    concurrency = number("concurrency", "maximum request concurrency", "max request concurrency")
    if concurrency is None and rate is not None:
        concurrency = rate * (ttft + max(output - 1.0, 0.0) * tpot)
    quantiles = {
        f"{m}_{q}_s": value / 1e3
        for m in ("ttft", "tpot") for q, name in (("p50", "median"), ("p90", "p90"), ("p95", "p95"), ("p99", "p99"))
        if (value := number(f"{name} {m} (ms)")) is not None
    }  # fmt: skip
    backend = block.get("backend", (0, ""))[1]
    return served.row(
        source, fixed, begun, concurrency=None if concurrency is None else max(1.0, concurrency),
        input_tokens=needed("total input tokens") / completed, output_tokens=output, ttft_s=ttft, tpot_s=tpot,
        e2e_s=None if whole is None else whole / 1e3, completed=completed, failed=number("failed requests"),
        requests_per_s=rate, engine=backend or None, **quantiles,
    )  # fmt: skip
