"""GenAI-Perf and AIPerf profile exports: ``profile_export_genai_perf`` / ``profile_export_aiperf`` ``.json``, ``.csv``,
and the table that both print.

JSON: each metric an object with a ``unit`` and statistics (``avg``, ``p50``, …). CSV: a table of metrics with their
unit in the name, ``Time To First Token (ms)``, then one of single values; thousands have commas. The concurrency is in
``input_config`` of the JSON (AIPerf: of its profiling phase), else in the artifact folder's name (``…-concurrency16``),
else the user's, else rate × latency of the requests (Little's law).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from optmodels.importers import served
from optmodels.importers.source import ResultFile
from optmodels.latency.fit.measurements import Kind

NAME = "genai-perf"
TITLE = "GenAI-Perf / AIPerf"
METRICS = {
    "ttft_s": "time_to_first_token",
    "tpot_s": "inter_token_latency",
    "input_tokens": "input_sequence_length",
    "output_tokens": "output_sequence_length",
}
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "tokens": 1.0, "": 1.0}
_OTHERS = ("request_latency", "request_count", "error_request_count", "request_throughput")
_BORDERS = re.compile("[│┃|]")  # of a printed table
_HEADING = re.compile(r"^\s*(?P<name>[^()]+?)\s*(\((?P<unit>[^)]*)\))?\s*$")


def detects(source: ResultFile) -> bool:
    """Metrics by name: objects in JSON, rows of a table in CSV."""
    if isinstance(source.first.get("time_to_first_token"), dict):
        return True
    text = source.text.lower()
    return "time to first token" in text and (source.lines[0].lower().startswith("metric,") or _is_printed(text))


def _is_printed(text: str) -> bool:
    return re.search(r"[│┃|]\s*(metric|statistic)\s*[│┃|]\s*avg\s*[│┃|]", text, re.I) is not None


def read(
    source: ResultFile, fixed: Mapping[str, float], columns: Mapping[str, str]
) -> tuple[Kind, list[dict[str, Any]]]:
    """The run of the file.

    Raises:
        InputError: a metric that is missing or wrong, by line.
    """
    as_json = source.text.lstrip()[:1] in ("{", "[")
    if as_json:
        source.check_whole()
    metrics = _from_json(source) if as_json else _from_csv(source)
    found, quantiles = {}, {}
    for ours, theirs in METRICS.items():
        if theirs not in metrics:
            raise source.wrong(theirs, None, "a metric of the run (a streaming endpoint has it)", 1)
        unit, line, statistics = metrics[theirs]
        if unit not in UNITS:
            raise source.wrong(f"{theirs}.unit", unit, f"one of {', '.join(u for u in UNITS if u)}", line)
        found[ours] = UNITS[unit] * source.needed(statistics, "avg", line)
        if ours.endswith("_s"):
            for q in served.QUANTILES:
                value = source.number(statistics, q, line, positive=False, optional=True)
                if value is not None:
                    quantiles[f"{ours[:-2]}_{q}_s"] = UNITS[unit] * value
    extra: dict[str, Any] = {}
    for ours, theirs in (
        ("e2e_s", "request_latency"),
        ("completed", "request_count"),
        ("failed", "error_request_count"),
    ):
        if theirs in metrics:
            unit, line, statistics = metrics[theirs]
            value = source.number(statistics, "avg", line, positive=False, optional=True)
            extra[ours] = None if value is None else UNITS.get(unit, 1.0) * value
    concurrency, rate = _concurrency(source), _rate(source, metrics)
    if concurrency is None and "concurrency" not in fixed and rate is not None and extra.get("e2e_s"):
        concurrency = max(1.0, rate * extra["e2e_s"])
    found |= {"requests_per_s": rate} if rate is not None else {}
    return "served", [served.row(source, fixed, 1, concurrency=concurrency, **found, **quantiles, **extra)]


def _rate(source: ResultFile, metrics: Mapping[str, Metric]) -> float | None:
    """Requests/s that were answered."""
    _, line, statistics = metrics.get("request_throughput", ("", 1, {}))
    name = "value" if statistics.get("avg") is None else "avg"
    return source.number(statistics, name, line, optional=True)


Metric = tuple[str, int, dict[str, Any]]


def _from_json(source: ResultFile) -> dict[str, Metric]:
    (_, data), *_ = source.records
    found = {}
    for name in (*METRICS.values(), *_OTHERS):
        value = data.get(name)
        if value is None or (name in _OTHERS and not isinstance(value, dict)):
            continue
        line = source.line_of(name) or 1
        if not isinstance(value, dict):
            raise source.wrong(name, value, "an object with unit and avg", line)
        times = ("time_to_first_token", "inter_token_latency", "request_latency")
        default = "ms" if name in times else "tokens"
        found[name] = (str(value.get("unit", default)).lower(), line, value)
    return found


def _from_csv(source: ResultFile) -> dict[str, Metric]:
    """The rows of its tables; each table has a header of its own, and empty lines lie between."""
    found: dict[str, Metric] = {}
    header: list[str] = []
    printed = _is_printed(source.text)
    for number, text in enumerate(source.lines, 1):
        cells = _BORDERS.split(text)[1:-1] if printed else source.cells(number)
        if not any(c.strip() for c in cells):
            continue
        if cells[0].strip().lower() in ("metric", "statistic"):
            header = [c.strip().lower() for c in cells]
            continue
        if not header:
            raise source.wrong("", cells[0], "a header beginning with Metric", number)
        if len(cells) != len(header):
            raise source.wrong("", f"{len(cells)} cells", f"{len(header)} as in the header", number)
        if (match := _HEADING.match(cells[0])) is None:
            continue
        name = match["name"].lower().replace(" ", "_")
        if name not in METRICS.values() and name not in ("request_latency", "request_throughput"):
            continue
        statistics: dict[str, Any] = {}
        for column, cell in list(zip(header, cells, strict=True))[1:]:
            text = cell.replace(",", "").strip()
            try:
                statistics[column] = float(text) if text and text.upper() != "N/A" else None
            except ValueError:
                raise source.wrong(f"{match['name']}.{column}", cell, "a number", number) from None
        found[name] = ((match["unit"] or "").lower(), number, statistics)
    return found


def _phases(config: Any) -> list[Any]:
    """The phases of a run whose requests are in the results."""
    found = config.get("phases") if isinstance(config, dict) else None
    if isinstance(found, dict):  # by name, as the tool's own YAML may have them
        found = [{"name": name, **phase} for name, phase in found.items() if isinstance(phase, dict)]
    phases = [p for p in found if isinstance(p, dict)] if isinstance(found, list) else []
    return [p for p in phases if not p.get("exclude_from_results") and "warmup" not in (p.get("kind"), p.get("name"))]


def _concurrency(source: ResultFile) -> float | None:
    if isinstance(source.json, dict):
        config = source.json.get("input_config")
        line = source.line_of("phases") or 1
        for phase in _phases(config):
            value = source.number(phase, "concurrency", line, optional=True)
            if value is not None:
                return value
        for path in ("loadgen.concurrency", "perf_analyzer.stimulus.concurrency", "concurrency"):
            value = source.number(config, path, source.line_of("input_config") or 1, optional=True)
            if value is not None:
                return value
    match = re.search(r"concurrency[_-]?(\d+)", source.name)
    return float(match[1]) if match else None
