"""AIConfigurator's predictions: ``pareto.csv`` and ``best_config_topn.csv`` of an aggregated (``agg``) experiment.

Columns as in ``ColumnsAgg`` and ``ColumnsStatic`` of its ``sdk/common.py`` (ai-dynamo/aiconfigurator 0.2 to 0.12; its
docs/cli_user_guide.md states where ``--save_dir`` puts them): isl, osl, concurrency of one replica, ttft and tpot in
milliseconds, tp, pp, dp (attention ranks), moe_ep, backend, version, system, gemm (precision of the weights).
Disaggregated results have no replica that serves alone and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.importers import served
from optmodels.importers.source import ResultFile

NAME = "aiconfigurator"
TITLE = "AIConfigurator"
OWN = {"isl", "osl", "ttft", "tpot", "concurrency"}


def detects(source: ResultFile) -> bool:
    """Its columns, aggregated or not."""
    return source.header >= OWN


def run(source: ResultFile, data: dict[str, Any], line: int, fixed: Mapping[str, float]) -> dict[str, Any]:
    """A configuration of the file; none of disaggregated results."""
    if "(d)workers" in source.header:
        raise source.wrong("(d)workers", None, "aggregated results (the folder agg, not disagg)", 1)
    text = {name: None if data.get(name) is None else str(data[name]) for name in ("model", "system", "backend")}
    return served.row(
        source, fixed, line,
        concurrency=source.needed(data, "concurrency", line),
        input_tokens=source.needed(data, "isl", line), output_tokens=source.needed(data, "osl", line),
        ttft_s=source.needed(data, "ttft", line) / 1e3, tpot_s=source.needed(data, "tpot", line) / 1e3,
        e2e_s=served.scaled(source, data, "request_latency", 1e-3, line),
        tp=source.number(data, "tp", line, optional=True), model=text["model"],
        gpu=None if text["system"] is None else text["system"].split("_")[0], engine=text["backend"],
        engine_version=data.get("version"), precision=data.get("gemm"),
        pp=source.number(data, "pp", line, optional=True),
        attention_ranks=source.number(data, "dp", line, optional=True),
        expert_parallel=source.number(data, "moe_ep", line, optional=True),
        prefix_tokens=source.number(data, "prefix", line, positive=False, optional=True),
    )  # fmt: skip
