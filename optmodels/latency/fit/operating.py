"""Operating points of a workload from any fitted model, or from measurements themselves, in the forms instances read.

LP(18) coefficients reach an instance's own curves; other models are no curves over α. At one workload they still give
TTFT, TPOT and E2E of a machine with all KV resident, run at once (``high_end``, 1 … R machines sharing the batch) or in
k passes (``multi_pass``, LP 17):

* ``step``    prompts in steps of at most `chunk_tokens`, then S_out − 1 decode steps over growing contexts;
* ``served``  a closed-loop run as wide as the batch: its TTFT and time per output token;
* ``static``  the whole batch's latency, which states nothing of TTFT and TPOT.

Each form keeps the parallelism it is for: rows of ``latency.operating_points`` (`operating_points`), rows of a
``points_table`` with the requests/s of every demand (`throughputs`), tokens/s by load (`load_rates`) and the share that
one machine ``serves`` (`served`).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from optmodels.arrays import Array, Mask
from optmodels.errors import InputError, Mistake
from optmodels.latency.fit.loads import Values
from optmodels.latency.fit.measurements import TARGETS, Kind, Measurements

if TYPE_CHECKING:
    import pandas as pd

SAME_LENGTH = 0.02  # load generators miss the length asked for by as much


class Predictor(Protocol):
    """A predictor: a fitted `LatencyModel`, or the engines' coefficients `at` a deployment."""

    @property
    def model(self) -> str:
        """Its name."""

    @property
    def measured(self) -> Kind:
        """Kind of its rows."""

    @property
    def targets(self) -> Container[str]:
        """Targets that it predicts."""

    def predict(self, values: Values, target: str | None = None, *, safety: float | None = None) -> Array:
        """Seconds, (n,)."""

    def extrapolation(self, values: Values) -> tuple[str, ...]:
        """Parts that were never measured."""


@dataclass(frozen=True)
class MeasuredLoops:
    """Measured closed-loop runs as they are, without a fit: one workload and parallelism, interpolated in the
    concurrency.

    Attributes:
        rows: Measurements of the ``served`` kind.
        name: Their file, for messages.
    """

    rows: Measurements
    name: str
    model: str = "measurements"
    measured: Kind = "served"
    targets: tuple[str, ...] = TARGETS["served"]

    def predict(self, values: Values, target: str | None = None, *, safety: float | None = None) -> Array:
        """Seconds, (n,): the mean of equal rows, linear between two concurrencies.

        Raises:
            InputError: a workload, parallelism or concurrency that was not measured; a safety level.
        """
        if safety is not None:
            expected = "no level: measurements as they are keep no residuals (fit a model with calibrate)"
            raise InputError(Mistake(self.name, "safety", safety, expected))
        return np.array([
            self._one({k: float(v[i]) for k, v in values.items()}, target or "tpot_s")
            for i in range(len(values["concurrency"]))
        ])  # fmt: skip

    def loads(self, w: PointWorkload, among: Iterable[int]) -> tuple[int, ...]:
        """The concurrencies that lie between measured ones of a workload, and the measured up to its batch.

        Raises:
            InputError: a workload, parallelism or so small a batch that was not measured.
        """
        at = {"tp": float(w.tp), "input_tokens": float(w.input_tokens), "output_tokens": float(w.output_tokens)}
        measured = np.unique(self.rows.values["concurrency"][self._rows_of(at)])
        if w.batch < measured[0]:
            expected = f"from {measured[0]:g} to {measured[-1]:g}, as measured"
            raise InputError(Mistake(self.name, "concurrency", w.batch, expected))
        whole = {int(x) for x in measured if x == round(x) and x <= w.batch}
        return tuple(sorted(whole | {x for x in among if measured[0] <= x <= measured[-1]}))

    def _rows_of(self, at: dict[str, float]) -> Mask:
        """Rows of one workload and parallelism."""
        v = self.rows.values
        same = np.ones(len(self.rows), dtype=bool)
        for column in ("tp", "input_tokens", "output_tokens"):
            near = np.abs(v[column] - at[column]) <= SAME_LENGTH * at[column] * (column != "tp")
            if not (same & near).any():
                known = ", ".join(f"{x:g}" for x in np.unique(v[column][same])[:12])
                expected = f"a measured {column} (with what is said before it): {known}"
                raise InputError(Mistake(self.name, column, at[column], expected, hint="or fit a model with calibrate"))
            same &= near
        return same

    def _one(self, at: dict[str, float], target: str) -> float:
        v, same = self.rows.values, self._rows_of(at)
        loads, index = np.unique(v["concurrency"][same], return_inverse=True)
        if not loads[0] <= at["concurrency"] <= loads[-1]:
            expected = f"from {loads[0]:g} to {loads[-1]:g}, as measured"
            raise InputError(Mistake(self.name, "concurrency", at["concurrency"], expected))
        means = np.bincount(index, v[target][same]) / np.bincount(index)
        return float(np.interp(at["concurrency"], loads, means))

    def extrapolation(self, values: Values) -> tuple[str, ...]:
        """Nothing: unmeasured inputs are refused."""
        return ()


@dataclass(frozen=True)
class PointWorkload:
    """A batch of equal requests, and the part that one machine holds.

    Attributes:
        batch, input_tokens, output_tokens: requests, and tokens of each.
        tp: GPUs of a replica.
        replicas_per_machine: replicas that share a machine's part of the batch.
        chunk_tokens: prompt tokens in a step.
        capacity_tokens: tokens that the KV caches of a machine hold.
    """

    batch: int
    input_tokens: int
    output_tokens: int
    tp: int = 1
    chunk_tokens: int = 8192
    capacity_tokens: float = math.inf
    replicas_per_machine: int = 1

    @property
    def tokens(self) -> int:
        """Of a request."""
        return self.input_tokens + self.output_tokens


def operating_points(
    model: Predictor, machine: str, w: PointWorkload, *, replicas: tuple[int, ...] = (1,),
    passes: tuple[int, ...] = (), safety: float | None = None,
) -> tuple[pd.DataFrame, tuple[str, ...]]:  # fmt: skip
    """One row for each way to run the workload on the machine, and what leaves the model's range.

    Args:
        model: A fitted model of steps, served requests or static batches, or `MeasuredLoops`.
        machine: Its name in the instance's pool.
        w: The workload.
        replicas: Numbers of machines that share the batch.
        passes: Numbers of micro-batches one machine runs one after another.
        safety: Probability that fresh measurements stay below, or None.

    Raises:
        InputError: a model of something else, no count that the batch and the memory allow.
    """
    import pandas as pd

    check_predictor(model)
    ways = [("high_end", n) for n in replicas] + [("multi_pass", k) for k in passes if k > 1]
    rows: list[dict[str, object]] = []
    said: list[str] = []
    for family, count in ways:
        part = -(-w.batch // (count * w.replicas_per_machine))
        if count * w.replicas_per_machine > w.batch or not _fits(w, part):
            continue
        (ttft, tbt, e2e), warnings = _one_pass(model, w, part, safety)
        said += warnings
        k = count if family == "multi_pass" else 1
        rows.append({
            "name": f"{machine} {family} {count}{_parallelism(w)}",
            "family": family,
            "main": machine,
            "count": count,
            "tp": w.tp,
            "replicas_per_machine": w.replicas_per_machine,
            "e2e_s": k * e2e,
            "ttft_s": None if ttft is None else (k - 1) * e2e + ttft,
            "tpot_s": tbt,
            "source": source_of(model, safety),
        })  # fmt: skip
    if not rows:
        expected = f"at most {w.batch}, with {w.tokens} tokens a request within {w.capacity_tokens:g}"
        raise InputError(Mistake(None, "replicas, passes", [n for _, n in ways], expected))
    if model.measured == "static":
        said.append("static measurements say nothing of TTFT and TPOT: these points suit an SLO of kind batch only")
    return pd.DataFrame(rows), tuple(dict.fromkeys(said))


@dataclass(frozen=True)
class SloBounds:
    """Limits within which a load counts; infinite where there is none."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf

    def hold(self, ttft: float | None, tbt: float | None) -> bool:
        """Whether both are kept; an unknown value keeps no finite limit."""
        return (math.inf if ttft is None else ttft) <= self.ttft_s and (math.inf if tbt is None else tbt) <= self.tpot_s


def throughputs(
    model: Predictor, machine: str, demands: Mapping[str, PointWorkload], loads: tuple[int, ...],
    bounds: SloBounds, safety: float | None = None,
) -> tuple[pd.DataFrame, tuple[str, ...]]:  # fmt: skip
    """Rows of a fleet's ``points_table``: requests/s of a machine by demand, at each load that keeps the bounds.

    By Little's law a replica with L requests in service, E2E seconds each, completes L/E2E a second.

    Args:
        model: model, as in `operating_points`.
        machine: its name in the instance's pool.
        demands: workload/bucket → its lengths and the parallelism, the same for all.
        loads: requests of a replica at a time.
        bounds: limits of the SLO; a demand that misses it at a load has no rate there.
        safety: prediction quantile, as in `operating_points`.

    Raises:
        InputError: as there; no demand that keeps the bounds at any load.
    """
    import pandas as pd

    check_predictor(model)
    rows: list[dict[str, object]] = []
    said: list[str] = []
    first = next(iter(demands.values()))
    for load in loads:
        row: dict[str, object] = {
            "name": f"{machine} {load} requests{_parallelism(first)}", "machine": machine,
            "slots": load * first.replicas_per_machine, "tp": first.tp,
            "replicas_per_machine": first.replicas_per_machine,
        }  # fmt: skip
        for name, w in demands.items():
            if not _fits(w, load):
                continue
            (ttft, tbt, e2e), warnings = _one_pass(model, w, load, safety)
            said += warnings
            if bounds.hold(ttft, tbt):
                row[name] = load * w.replicas_per_machine / e2e
        if len(row) > 5:
            rows.append(row)
    if not rows:
        raise InputError(Mistake(None, "loads", list(loads), "a load at which some demand keeps memory and SLO"))
    frame = pd.DataFrame(rows)
    return frame.reindex(columns=[*frame.columns[:5], *(d for d in demands if d in frame)]), tuple(dict.fromkeys(said))


def load_rates(
    model: Predictor, name: str, gpu: str, w: PointWorkload, loads: tuple[int, ...], safety: float | None = None
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Rows of an orchestration's ``latency.measured``: tokens/s of one request among `load`, of a replica of tp GPUs.

    Raises:
        InputError: as `operating_points`; a model that knows no time between tokens.
    """
    import pandas as pd

    check_predictor(model)
    if model.measured == "static":
        raise InputError(Mistake(None, "model", "static", "a model of steps or served requests, which has a TPOT"))
    rows: list[dict[str, object]] = []
    said: list[str] = []
    prefill: float | None = None
    for load in sorted(loads):
        if not _fits(w, load):
            continue
        (ttft, tbt, _), warnings = _one_pass(model, w, load, safety)
        said += warnings
        assert ttft is not None and tbt is not None
        prefill = prefill if prefill is not None else w.input_tokens / ttft
        rows.append({
            "model": name, "gpu": gpu, "tp": w.tp, "pp": 1, "load": load, "tokens_per_s": 1.0 / tbt,
            "prefill_tokens_per_s": prefill,
        })  # fmt: skip
    if not rows:
        raise InputError(Mistake(None, "loads", list(loads), f"a load within {w.capacity_tokens:g} tokens"))
    return pd.DataFrame(rows), tuple(dict.fromkeys(said))


def served(
    model: Predictor, w: PointWorkload, loads: tuple[int, ...], bounds: SloBounds, safety: float | None = None
) -> tuple[dict[str, float], tuple[str, ...]]:
    """``serves`` of a machine for a service: requests/s at the load that serves most within the bounds, its TTFT.

    Raises:
        InputError: as `throughputs`.
    """
    frame, said = throughputs(model, "machine", {"it": w}, loads, bounds, safety)
    best = int(frame["it"].to_numpy().argmax())
    load = int(frame["slots"].to_numpy()[best]) // w.replicas_per_machine
    (ttft, _, _), _ = _one_pass(model, w, load, safety)
    return {"requests_per_s": float(frame["it"].to_numpy()[best]), "prefill_s": float(ttft or 0.0)}, said


def check_predictor(model: Predictor) -> None:
    """Refuse predictors without E2E of a workload.

    Raises:
        InputError: pairs; a served model without a TTFT.
    """
    if model.measured == "pairs":
        raise InputError(Mistake(None, "model", model.measured, "a model of step, served or static measurements"))
    if model.measured == "served" and "ttft_s" not in model.targets:
        raise InputError(Mistake(None, "model", model.model, "a model with a TTFT: calibrate anew"))


def source_of(model: Predictor, safety: float | None) -> str:
    """For the column of that name."""
    what = model.model if isinstance(model, MeasuredLoops) else f"{model.model} from {model.measured} measurements"
    return what + (f", safety {safety:g}" if safety else "")


def _parallelism(w: PointWorkload) -> str:
    return (f" TP{w.tp}" if w.tp > 1 else "") + (f" ×{w.replicas_per_machine}" if w.replicas_per_machine > 1 else "")


def _fits(w: PointWorkload, load: int) -> bool:
    """Whether a machine's caches hold `load` requests on each of its replicas."""
    return w.replicas_per_machine * load * w.tokens <= w.capacity_tokens


def _one_pass(
    model: Predictor, w: PointWorkload, batch: int, safety: float | None
) -> tuple[tuple[float | None, float | None, float], tuple[str, ...]]:
    """(TTFT, TPOT, E2E) of one pass over `batch` requests."""
    S, out = w.input_tokens, w.output_tokens
    if model.measured == "static":
        values = _columns(batch=batch, input_tokens=S, output_tokens=out, tp=w.tp)
        return (None, None, float(model.predict(values, safety=safety)[0])), model.extrapolation(values)
    if model.measured == "served":
        values = _columns(concurrency=batch, input_tokens=S, output_tokens=out, tp=w.tp)
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


def _prefill_steps(w: PointWorkload, batch: int) -> Values:
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


def _decode_steps(w: PointWorkload, batch: int) -> Values:
    t = np.arange(1.0, max(w.output_tokens, 2))
    none = np.zeros(len(t))
    return {
        "prefill_tokens": none, "prefill_context_tokens": none, "prefill_requests": none,
        "decode_requests": none + batch, "decode_context_tokens": w.input_tokens + t, "tp": none + w.tp,
    }  # fmt: skip
