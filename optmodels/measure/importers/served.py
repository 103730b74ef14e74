"""What load generators have in common: one row of a closed loop of users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.latency.calibration import MOST
from optmodels.measure.importers.source import Source

QUANTILES = ("p50", "p90", "p95", "p99")


def row(
    source: Source,
    fixed: Mapping[str, float],
    line: int,
    *,
    concurrency: float | None,
    input_tokens: float | None,
    output_tokens: float | None,
    ttft_s: float,
    tpot_s: float,
    tp: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A row of the ``served`` kind; what the file does not state comes from the user's ``--set``.

    Raises:
        InputError: a value that neither states; a setting that is neither a text nor a number; a value out of range.
    """
    found = {
        "concurrency": source.or_set(concurrency, "concurrency", fixed, line),
        "input_tokens": source.or_set(input_tokens, "input_tokens", fixed, line),
        "output_tokens": source.or_set(output_tokens, "output_tokens", fixed, line),
        "tp": tp if tp is not None else fixed.get("tp", 1.0),
        "ttft_s": ttft_s,
        "tpot_s": tpot_s,
    } | {k: v for k, v in more.items() if v is not None}
    for name, value in found.items():
        if not isinstance(value, str | int | float) or (not isinstance(value, str) and not -MOST <= value <= MOST):
            raise source.wrong(name, value, f"a text, or a number of at most {MOST:g}", line)
    return found


def per_request(source: Source, data: Any, total: str, line: int) -> float | None:
    """A total over the completed requests, for each."""
    value = source.number(data, total, line, optional=True)
    return None if value is None else value / source.needed(data, "completed", line)


def milliseconds(source: Source, data: Any, line: int) -> dict[str, float]:
    """Quantiles that vLLM and SGLang both name ``p99_ttft_ms``, ``median_tpot_ms``; seconds."""
    found = {}
    for metric in ("ttft", "tpot"):
        for quantile in QUANTILES:
            names = (f"{quantile}_{metric}_ms", *((f"median_{metric}_ms",) if quantile == "p50" else ()))
            for name in names:
                value = source.number(data, name, line, positive=False, optional=True)
                if value is not None:
                    found[f"{metric}_{quantile}_s"] = value / 1e3
    return found
