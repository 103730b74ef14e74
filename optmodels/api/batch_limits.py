"""`batch-limits`: the largest batch that memory and latency allow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optmodels.api.sources import File, renamed
from optmodels.errors import InputError, Mistake

if TYPE_CHECKING:
    from optmodels.latency.fit.document import LatencyModel


@renamed({"model": "latencies"})
def batch_limits(
    capacity_tokens: float, *, epsilon: float = 0.01, trace: File | None = None, input_column: str | None = None,
    output_column: str | None = None, input_mean: float | None = None, input_std: float = 0.0,
    output_mean: float | None = None, output_std: float = 0.0, latencies: File | None = None,
    limit_s: float | None = None, safety: float | None = None, tp: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """The largest batch that memory and latency allow.

    Args:
        capacity_tokens: KV-cache capacity η, tokens.
        epsilon: allowed probability that the cache runs over.
        trace: CSV or Parquet file with token counts; None: by means and standard deviations.
        input_column: column of prompt tokens in the trace; None: by its name.
        output_column: column of output tokens in the trace; None: by its name.
        input_mean: mean prompt tokens, without a trace.
        input_std: standard deviation of prompt tokens.
        output_mean: mean output tokens, without a trace.
        output_std: standard deviation of output tokens.
        latencies: model file for b_SLA, with `limit_s`.
        limit_s: allowed time between tokens, seconds.
        safety: probability that a step stays below `limit_s`.
        tp: tensor-parallel degree, for b_SLA.

    Returns:
        ``batch``, ``b_mem`` by three rules, ``b_sla`` where a model is given, and the lengths' moments.

    Raises:
        InputError: a file or an argument is wrong.
    """
    from optmodels.io.tables import finite_numbers
    from optmodels.latency import batch_limits as bl
    from optmodels.latency.fit.document import read_latency_model
    from optmodels.latency.fit.measurements import read_frame

    if (trace is None) == (input_mean is None or output_mean is None):
        raise InputError(Mistake(None, "--trace, --input-mean, --output-mean", None, "either a trace or both means"))
    if (latencies is None) != (limit_s is None):
        raise InputError(Mistake(None, "--latencies, --limit-s", None, "both or neither"))
    if trace is not None:
        from optmodels.traces.columns import recognised

        frame = read_frame(Path(trace))
        known = recognised(frame.columns)
        names = [
            given or known.get(ours, (None, None))[0]
            for ours, given in (("prompt_tokens", input_column), ("output_tokens", output_column))
        ]
        listing = f"a column: the file has {', '.join(frame.columns[:12])}"
        absent = [
            Mistake(str(trace), c or option, None, listing, hint=f"name it: {option} COLUMN")
            for c, option in zip(names, ("--input-column", "--output-column"), strict=True) if c not in frame
        ]  # fmt: skip
        if absent:
            raise InputError(absent)
        columns = [finite_numbers(frame, str(c), str(trace)) for c in names]
        lengths, inputs, outputs = bl.from_sample(*columns), float(columns[0].mean()), float(columns[1].mean())
    else:
        inputs, outputs = float(input_mean or 0), float(output_mean or 0)
        lengths = bl.from_moments(inputs, input_std, outputs, output_std)
    limit = bl.memory_limit(lengths, capacity_tokens, epsilon)
    best = limit.exact if limit.exact is not None else limit.normal
    document: dict[str, Any] = {
        "mean_tokens": lengths.mean, "std_tokens": lengths.std, "correlation": lengths.correlation, "epsilon": epsilon,
        "b_mem": {
            "normal": limit.normal, "exact": limit.exact, "linear": limit.linear,
            "reserve_tokens": limit.reserve_tokens, "true_probability_of_normal": limit.true_probability,
            "standard_error": limit.standard_error,
            "largest_tried": bl.B_MAX if max(limit.normal, limit.linear, best) == bl.B_MAX else None,
        },
    }  # fmt: skip
    if latencies is not None and limit_s is not None:
        fitted = read_latency_model(Path(latencies))
        target = "tpot_s" if fitted.measured == "served" else "latency_s"
        sla = bl.b_sla(
            lambda b: float(fitted.predict(_decode_values(fitted, b, inputs, outputs, tp), target, safety=safety)[0]),
            limit_s,
        )
        document |= {
            "b_sla": sla, "limit_s": limit_s,
            "warnings": list(fitted.extrapolation(_decode_values(fitted, max(sla, 1), inputs, outputs, tp))),
        }  # fmt: skip
        best = min(best, sla)
    return document | {"batch": best}


def _decode_values(model: LatencyModel, b: int, inputs: float, outputs: float, tp: int) -> Mapping[str, Any]:
    """Inputs of a model of steps or served requests for `b` decoding requests."""
    import numpy as np

    if model.measured == "step":
        values: dict[str, float] = {
            "prefill_tokens": 0, "prefill_context_tokens": 0, "prefill_requests": 0, "decode_requests": b,
            "decode_context_tokens": inputs + outputs / 2,
        }  # fmt: skip
    elif model.measured == "served":
        values = {"concurrency": b, "input_tokens": inputs, "output_tokens": outputs}
    else:
        expected = "a model of steps or of served requests"
        raise InputError(Mistake(None, "--latencies", f"from {model.measured} measurements", expected))
    return {name: np.array([float(value)]) for name, value in (values | {"tp": tp}).items()}
