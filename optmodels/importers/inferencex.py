"""InferenceX (formerly InferenceMAX): its CSV export, and the ``agg_*.json`` of its runs, one object or an array.

CSV headers as in ``csv-export-helpers.ts`` of SemiAnalysisAI/InferenceX-app (2026), JSON fields as
``process_result.py`` of SemiAnalysisAI/InferenceX writes them: seconds, throughput of one chip, concurrency of the
whole deployment. Means where they are stated, else medians. Rows whose prefill and decode have machines of their own
are left out and counted; the JSON of the first versions states no lengths: ``--set input_tokens=1024 --set
output_tokens=1024``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.importers import served
from optmodels.importers.source import ResultFile
from optmodels.latency.fit.measurements import Kind

NAME = "inferencex"
TITLE = "InferenceX / InferenceMAX"
CSV = {
    "conc": "Concurrency", "isl": "ISL", "osl": "OSL", "tp": "TP", "ep": "EP", "hw": "Hardware", "model": "Model",
    "framework": "Framework", "precision": "Precision", "dp_attention": "DP Attention", "disagg": "Disaggregated",
    "spec_decoding": "Spec Decoding", "date": "Date",
    **{f"{stat.lower()}_{metric.lower()}": f"{stat} {metric} (s)"
       for stat in ("Mean", "Median", "P99") for metric in ("TTFT", "TPOT")},
}  # fmt: skip


_EXPERIMENTAL = {"median_ttft", "median_tpot", "completed", "total_output_tokens"}


def detects(source: ResultFile) -> bool:
    """Its columns, or its names among JSON fields."""
    if {"ISL", "OSL", "Concurrency", "Hardware"} <= source.header:
        return True
    return {"hw", "conc", "tput_per_gpu"} <= set(source.first) or set(source.first) >= _EXPERIMENTAL


def read(
    source: ResultFile, fixed: Mapping[str, float], columns: Mapping[str, str]
) -> tuple[Kind, list[dict[str, Any]]]:
    """Every result of the file.

    Raises:
        InputError: a value that is missing or wrong, by line.
    """
    if source.header:
        found = [(line, {ours: data.get(theirs) for ours, theirs in CSV.items()}) for line, data in source.table]
    else:
        found = [(line, _as_run(source, data, line)) for line, data in source.records]
    rows = [_row(source, data, line, fixed) for line, data in found if not _true(data.get("disagg"))]
    if apart := len(found) - len(rows):
        source.notes.append(f"{apart} rows left out: prefill and decode on machines of their own")
    return "served", rows


def _as_run(source: ResultFile, data: dict[str, Any], line: int) -> dict[str, Any]:
    """Results of its experimental runs (vLLM's names, times in seconds) by the names of the other results."""
    if not set(data) >= _EXPERIMENTAL:
        return data
    served.check_failed(source, line=line, **served.counts(source, data, line))
    if data.get("mean_ttft") is None or data.get("mean_tpot") is None:
        source.notes.append("medians: the file states no means")
    return {
        **data,
        "conc": data.get("max_concurrency"),
        "model": data.get("model_id"),
        "isl": served.per_request(source, data, "total_input_tokens", line),
        "osl": served.per_request(source, data, "total_output_tokens", line),
    }


def _row(source: ResultFile, data: dict[str, Any], line: int, fixed: Mapping[str, float]) -> dict[str, Any]:
    def time(metric: str) -> float:
        for stat in ("mean", "median"):
            if data.get(f"{stat}_{metric}") is not None:
                return source.needed(data, f"{stat}_{metric}", line)
        raise source.wrong(f"mean_{metric}", None, "a mean or median in seconds", line)

    means = data.get("mean_ttft") is not None and data.get("mean_tpot") is not None
    tail = {
        f"{m}_{q}_s": source.number(data, f"{stat}_{m}", line, positive=False, optional=True)
        for m in ("ttft", "tpot") for q, stat in (("p50", "median"), ("p99", "p99"))
    }  # fmt: skip
    hardware = data.get("hw")
    return served.row(
        source, fixed, line,
        concurrency=source.number(data, "conc", line, optional=True),
        input_tokens=source.number(data, "isl", line, optional=True),
        output_tokens=source.number(data, "osl", line, optional=True),
        ttft_s=time("ttft"), tpot_s=time("tpot"),
        e2e_s=source.number(data, f"{'mean' if means else 'median'}_e2el", line, optional=True),
        tp=source.number(data, "tp", line, optional=True),
        model=data.get("model"), gpu=None if hardware is None else str(hardware).lower().split("-")[0],
        engine=data.get("framework"), precision=data.get("precision"), date_measured=data.get("date"),
        expert_parallel=source.number(data, "ep", line, optional=True),
        dp_attention=None if data.get("dp_attention") is None else str(_true(data["dp_attention"])).lower(),
        spec_decoding=data.get("spec_decoding") or data.get("mtp"), **tail,
    )  # fmt: skip


def _true(value: object) -> bool:
    return value is True or str(value).strip().lower() in ("true", "1")
