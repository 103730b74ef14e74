"""llm-d's benchmark report (llm-d/llm-d-benchmark, ``benchmark_report`` 0.1 and 0.2), YAML or JSON: one point.

Version 0.1 has ``metrics``, 0.2 ``results.request_performance.aggregate``; every statistic has its units. A run of
inference-perf whose time per output token disagrees with the latency of requests counted stream events; the time
between tokens is then (request latency − TTFT)/(output tokens − 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.importers import served
from optmodels.importers.source import ResultFile
from optmodels.latency.fit.measurements import Kind

NAME = "llm-d"
TITLE = "llm-d's benchmark report"
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def _report(source: ResultFile) -> Mapping[str, Any]:
    return source.first or source.yaml


def detects(source: ResultFile) -> bool:
    """Its sections."""
    data = _report(source)
    return {"version", "scenario"} <= set(data) and bool({"results", "metrics"} & set(data))


def read(
    source: ResultFile, fixed: Mapping[str, float], columns: Mapping[str, str]
) -> tuple[Kind, list[dict[str, Any]]]:
    """The point of the report.

    Raises:
        InputError: a field that is missing or wrong; prefill and decode on machines of their own.
    """
    data = _report(source)
    found = _at(data, "results", "request_performance", "aggregate") or data.get("metrics")
    if not isinstance(found, Mapping):
        raise source.wrong("results.request_performance.aggregate", None, "the metrics of the run", 1)

    def seconds(name: str, stat: str = "mean") -> float | None:
        entry = _at(found, "latency", name)
        value = source.number(entry, stat, positive=False, optional=True) if isinstance(entry, Mapping) else None
        if value is None:
            return None
        unit = str(entry.get("units", "s")).split("/")[0]
        if unit not in UNITS:
            raise source.wrong(f"latency.{name}.units", unit, f"one of {', '.join(UNITS)}")
        return value * UNITS[unit]

    def needed(name: str) -> float:
        value = seconds(name)
        if not value:
            raise source.wrong(f"latency.{name}.mean", value, "a time > 0 (a streaming run has it)", 1)
        return value

    stacks = _stacks(data)
    if any(s.get("role") in ("prefill", "decode") for s in stacks):
        raise source.wrong("scenario.stack.role", "prefill, decode", "engines that serve whole requests", 1)
    engine = next((s for s in stacks if s.get("parallelism") or s.get("engine")), {})
    ttft, whole = needed("time_to_first_token"), seconds("request_latency")
    output = source.number(found, "requests.output_length.mean", optional=True)
    tpot = seconds("time_per_output_token") or seconds("inter_token_latency")
    derived = served.between_tokens(whole, ttft, output)
    tool = str(_at(data, "scenario", "load", "standardized", "tool") or _at(data, "scenario", "load", "name") or "")
    if derived is not None and (
        tpot is None or ("inference-perf" in tool and abs(tpot / derived - 1.0) > served.TPOT_WITHIN)
    ):
        if tpot is not None:
            source.notes.append(f"TPOT {1e3 * derived:.4g} ms; the stated {1e3 * tpot:.4g} ms counts stream events")
        tpot = derived
    if tpot is None:
        tpot = needed("time_per_output_token")
    rate = source.number(found, "throughput.request_rate.mean", optional=True)
    if rate is None:
        rate = source.number(found, "throughput.requests_per_sec", optional=True)
    concurrency = source.number(data, "scenario.load.standardized.concurrency", optional=True)
    if concurrency is None and rate is not None and whole is not None and "concurrency" not in fixed:
        concurrency = max(1.0, rate * whole)
    failed = source.number(found, "requests.failures", positive=False, optional=True)
    total = source.number(found, "requests.total", positive=False, optional=True)
    quantiles = {
        f"{ours}_{q}_s": seconds(theirs, q)
        for ours, theirs in (("ttft", "time_to_first_token"), *((("tpot", "time_per_output_token"),)
                             if tpot is not derived else ())) for q in served.QUANTILES
    }  # fmt: skip
    return "served", [served.row(
        source, fixed, 1, concurrency=concurrency,
        input_tokens=source.number(found, "requests.input_length.mean", optional=True), output_tokens=output,
        ttft_s=ttft, tpot_s=tpot, e2e_s=whole, failed=failed,
        completed=None if total is None else total - (failed or 0.0),
        tp=source.number(engine, "parallelism.tp", optional=True),
        pp=source.number(engine, "parallelism.pp", optional=True),
        requests_per_s=rate, model=engine.get("model"), gpu=engine.get("gpu"), engine=engine.get("engine"), **quantiles,
    )]  # fmt: skip


def _stacks(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The engines of a report: role, engine, model, GPU and parallelism of each."""
    found = []
    for entry in _at(data, "scenario", "stack") or ():
        one = _at(entry, "standardized")
        if isinstance(one, Mapping) and one.get("kind", "inference_engine") == "inference_engine":
            found.append({
                "role": one.get("role"), "engine": _text(one.get("tool")), "model": _text(_at(one, "model", "name")),
                "gpu": _text(_at(one, "accelerator", "model")), "parallelism": _at(one, "accelerator", "parallelism"),
            })  # fmt: skip
    if found:
        return found
    cards = _at(data, "scenario", "host", "accelerator") or ()
    roles = _at(data, "scenario", "host", "type") or ()
    engines = _at(data, "scenario", "platform", "engine") or ()
    for i, card in enumerate(cards if isinstance(cards, list) else ()):
        role = roles[i] if isinstance(roles, list) and i < len(roles) else None
        tool = engines[i] if isinstance(engines, list) and i < len(engines) else {}
        found.append({
            "role": role, "engine": _text(_at(tool, "name")), "model": _text(_at(data, "scenario", "model", "name")),
            "gpu": _text(_at(card, "model")), "parallelism": _at(card, "parallelism"),
        })  # fmt: skip
    return found


def _at(data: Any, *path: str) -> Any:
    for part in path:
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
