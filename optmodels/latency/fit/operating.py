"""Operating points of a workload from any fitted model: what an instance's ``latency.operating_points`` reads.

LP(18) coefficients reach an instance's own curves; other models are no curves over α. At one workload they still give
TTFT, TBT and E2E of a machine with all KV resident, run at once (``high_end``, 1 … R machines sharing the batch) or in
k passes (``multi_pass``, LP 17):

* ``step``    prompts in steps of at most `chunk_tokens`, then S_out − 1 decode steps over growing contexts;
* ``served``  a closed loop as wide as the batch: its TTFT and time per output token;
* ``static``  the whole batch's latency, which says nothing of TTFT and TBT.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from optmodels.errors import InputError, Mistake
from optmodels.latency.fit.loads import Values
from optmodels.latency.fit.measurements import Kind

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[np.float64]


class Predictor(Protocol):
    """What predicts: a fitted `LatencyModel`, or the engines' coefficients `at` a deployment."""

    @property
    def model(self) -> str:
        """Its name."""

    @property
    def measured(self) -> Kind:
        """What its rows were."""

    @property
    def targets(self) -> Container[str]:
        """What it predicts."""

    def predict(self, values: Values, target: str | None = None, *, safety: float | None = None) -> Array:
        """Seconds, (n,)."""

    def extrapolation(self, values: Values) -> tuple[str, ...]:
        """What was never measured."""


@dataclass(frozen=True)
class Workload:
    """A batch of equal requests, and what one machine holds of it."""

    batch: int
    input_tokens: int
    output_tokens: int
    tp: int = 1
    chunk_tokens: int = 8192
    capacity_tokens: float = math.inf


def operating_points(
    model: Predictor,
    machine: str,
    w: Workload,
    *,
    replicas: tuple[int, ...] = (1,),
    passes: tuple[int, ...] = (),
    safety: float | None = None,
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """One row for each way to run the workload on the machine, and what leaves the model's range.

    Args:
        model: A fitted model of steps, served requests or static batches.
        machine: Its name in the instance's pool.
        w: The workload.
        replicas: Numbers of machines that share the batch.
        passes: Numbers of micro-batches one machine runs one after another.
        safety: Probability that fresh measurements stay below, or None.

    Raises:
        InputError: a model of something else, no count that the batch and the memory allow.
    """
    import pandas as pd

    if model.measured == "pairs":
        raise InputError(Mistake(None, "model", model.measured, "a model of step, served or static measurements"))
    ways = [("high_end", n) for n in replicas] + [("multi_pass", k) for k in passes if k > 1]
    rows: list[dict[str, object]] = []
    said: list[str] = []
    length = w.input_tokens + w.output_tokens
    for family, count in ways:
        part = -(-w.batch // count)
        if count > w.batch or part * length > w.capacity_tokens:
            continue
        (ttft, tbt, e2e), warnings = _one_pass(model, w, part, safety)
        said += warnings
        k = count if family == "multi_pass" else 1
        rows.append({
            "name": f"{machine} {family} {count}",
            "family": family,
            "main": machine,
            "count": count,
            "e2e_s": k * e2e,
            "ttft_s": None if ttft is None else (k - 1) * e2e + ttft,
            "tbt_s": tbt,
            "source": f"{model.model} from {model.measured} measurements" + (f", safety {safety:g}" if safety else ""),
        })  # fmt: skip
    if not rows:
        expected = f"at most {w.batch}, with {length} tokens a request within {w.capacity_tokens:g}"
        raise InputError(Mistake(None, "replicas, passes", [n for _, n in ways], expected))
    return pd.DataFrame(rows), tuple(dict.fromkeys(said))


def _one_pass(
    model: Predictor, w: Workload, batch: int, safety: float | None
) -> tuple[tuple[float | None, float | None, float], tuple[str, ...]]:
    """(TTFT, TBT, E2E) of one pass over `batch` requests."""
    S, out = w.input_tokens, w.output_tokens
    if model.measured == "static":
        values = _columns(batch=batch, input_tokens=S, output_tokens=out, tp=w.tp)
        return (None, None, float(model.predict(values, safety=safety)[0])), model.extrapolation(values)
    if model.measured == "served":
        values = _columns(concurrency=batch, input_tokens=S, output_tokens=out, tp=w.tp)
        if "ttft_s" not in model.targets:
            raise InputError(Mistake(None, "model", model.model, "a model with a TTFT: additive or scaled"))
        ttft, tbt = (float(model.predict(values, target, safety=safety)[0]) for target in ("ttft_s", "tpot_s"))
        return (ttft, tbt, ttft + (out - 1) * tbt), model.extrapolation(values)
    prefill, decode = _prefill_steps(w, batch), _decode_steps(w, batch)
    ttft = float(model.predict(prefill, safety=safety).sum())
    warnings = model.extrapolation(prefill)
    if out == 1:
        return (ttft, 0.0, ttft), warnings
    each = model.predict(decode, safety=safety)
    return (ttft, float(each.mean()), ttft + float(each.sum())), (*warnings, *model.extrapolation(decode))


def _columns(**values: float) -> dict[str, np.ndarray]:
    return {k: np.array([float(v)]) for k, v in values.items()}


def _prefill_steps(w: Workload, batch: int) -> Values:
    """Whole prompts together as far as a step holds them; longer prompts one after another, in chunks."""
    S, chunk = w.input_tokens, w.chunk_tokens
    rows = []  # tokens, earlier KV, requests
    if chunk >= S:
        together = chunk // S
        rows = [(min(together, batch - i) * S, 0, min(together, batch - i)) for i in range(0, batch, together)]
    else:
        rows = [(min(chunk, S - k), k, 1) for k in range(0, S, chunk)] * batch
    tokens, earlier, requests = (np.array(c, dtype=float) for c in zip(*rows, strict=True))
    none = np.zeros(len(rows))
    return {
        "prefill_tokens": tokens, "prefill_context_tokens": earlier, "prefill_requests": requests,
        "decode_requests": none, "decode_context_tokens": none, "tp": none + w.tp,
    }  # fmt: skip


def _decode_steps(w: Workload, batch: int) -> Values:
    t = np.arange(1.0, max(w.output_tokens, 2))
    none = np.zeros(len(t))
    return {
        "prefill_tokens": none, "prefill_context_tokens": none, "prefill_requests": none,
        "decode_requests": none + batch, "decode_context_tokens": w.input_tokens + t, "tp": none + w.tp,
    }  # fmt: skip
