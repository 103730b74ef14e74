"""Common part of load generators: one row of a closed-loop run of users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optmodels.errors import InputError, Mistake
from optmodels.importers.source import ResultFile
from optmodels.latency.calibration import MOST

QUANTILES = ("p50", "p90", "p95", "p99")
MOST_FAILED = 0.05  # share of the requests, above which a run is read only if asked
TPOT_WITHIN = 0.15  # of the time between tokens that request latency and TTFT leave


def row(
    source: ResultFile, fixed: Mapping[str, float], line: int, *, concurrency: float | None,
    input_tokens: float | None, output_tokens: float | None, ttft_s: float, tpot_s: float, tp: float | None = None,
    e2e_s: float | None = None, failed: float | None = None, completed: float | None = None, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """A row of the ``served`` kind; values that the file lacks come from the user's ``--set``.

    Args:
        source, fixed, line: the file, the user's values, and where the run is.
        concurrency, input_tokens, output_tokens, ttft_s, tpot_s, tp: of the row.
        e2e_s: mean latency of a whole request, which has to agree with TTFT and TPOT.
        failed, completed: numbers of requests.
        more: further columns.

    Raises:
        InputError: a value that neither states; a setting that is neither a text nor a number; a value out of range; a
            TPOT that disagrees with the latency of requests; a run with many failed requests.
    """
    check_failed(source, failed, completed, line)
    tokens = output_tokens if output_tokens is not None else fixed.get("output_tokens")
    derived = between_tokens(e2e_s, ttft_s, tokens)
    if derived is not None and abs(tpot_s / derived - 1.0) > TPOT_WITHIN:
        expected = f"{1e3 * derived:.4g} ms ± {TPOT_WITHIN:.0%}: (request latency − TTFT)/(output tokens − 1)"
        raise source.wrong("TPOT", f"{1e3 * tpot_s:.4g} ms", expected, line)
    found = {
        "concurrency": source.or_set(concurrency, "concurrency", fixed, line),
        "input_tokens": source.or_set(input_tokens, "input_tokens", fixed, line),
        "output_tokens": source.or_set(output_tokens, "output_tokens", fixed, line),
        "tp": source.or_set(tp, "tp", fixed, line),
        "ttft_s": ttft_s,
        "tpot_s": tpot_s,
    } | {k: v for k, v in more.items() if v is not None}
    for name, value in found.items():
        if not isinstance(value, str | int | float) or (not isinstance(value, str) and not -MOST <= value <= MOST):
            raise source.wrong(name, value, f"a text, or a number of at most {MOST:g}", line)
    return found


def between_tokens(e2e_s: float | None, ttft_s: float, output_tokens: float | None) -> float | None:
    """(request latency − TTFT)/(output tokens − 1); None where these are not known or leave nothing."""
    if e2e_s is None or output_tokens is None or output_tokens <= 1.5 or e2e_s <= ttft_s:
        return None
    return (e2e_s - ttft_s) / (output_tokens - 1.0)


def check_failed(source: ResultFile, failed: float | None, completed: float | None, line: int) -> None:
    """Note how many requests of a run failed, and refuse a run with many.

    Raises:
        InputError: more than `MOST_FAILED` of the requests, unless `Source.allow_failed`.
    """
    if not failed:
        return
    total = failed + (completed or 0.0)
    said = f"{failed:,.0f} of {total:,.0f} requests failed"
    if failed > MOST_FAILED * total and not source.allow_failed:
        expected = f"a run with at most {MOST_FAILED:.0%} failed requests"
        mistake = Mistake(source.name, "failed requests", said, expected, line, "to read it anyway: --allow-failed")
        raise InputError(mistake)
    source.notes.append(said)


def per_request(source: ResultFile, data: Any, total: str, line: int) -> float | None:
    """A total over the completed requests, for each."""
    value = source.number(data, total, line, optional=True)
    return None if value is None else value / source.needed(data, "completed", line)


def milliseconds(source: ResultFile, data: Any, line: int) -> dict[str, float]:
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


def scaled(source: ResultFile, data: Any, path: str, factor: float, line: int) -> float | None:
    """A number that need not be there, in another unit."""
    value = source.number(data, path, line, positive=False, optional=True)
    return None if value is None else value * factor


def counts(source: ResultFile, data: Any, line: int) -> dict[str, Any]:
    """Completed and failed requests of vLLM's and SGLang's results; prompts without an answer have failed."""
    completed = source.number(data, "completed", line, positive=False, optional=True)
    failed = source.number(data, "failed", line, positive=False, optional=True)
    sent = source.number(data, "num_prompts", line, positive=False, optional=True)
    if failed is None and sent is not None and completed is not None:
        failed = max(0.0, sent - completed)
    return {"completed": completed, "failed": failed}
