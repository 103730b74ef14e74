"""One deployment on a trace: what its users see, and how full it is over time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from optmodels import catalog
from optmodels.arrays import Array
from optmodels.catalog.spelling import unknown_gpu, unknown_llm
from optmodels.errors import InputError, Mistake, one_of
from optmodels.latency.memory import RUNTIME_GIB, kv_tokens, runtime_interval
from optmodels.latency.resolve import Engine as EngineName
from optmodels.latency.resolve import deployment, resolve, source_of
from optmodels.latency.steps import Provenance, StepCosts
from optmodels.latency.work import KV_BYTES, WEIGHT_BYTES, layer_work
from optmodels.simulation.continuous import (
    EDGES_S,
    Arrivals,
    Dispatcher,
    Engine,
    Gaps,
    ServedRequests,
    gap_quantiles,
    of_edges,
    simulate,
)
from optmodels.simulation.summary import QUANTILES, quantiles
from optmodels.traces.types import Trace
from optmodels.units import GIB

BINS = 200


@dataclass(frozen=True)
class GoodputLimits:
    """Limits of goodput: seconds to the first token, per output token after it, to the last; None: anything.

    `itl_s` is no limit of goodput: the report has the share of times between tokens within it.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    itl_s: float | None = None


@dataclass(frozen=True)
class SimulatedDeployment:
    """One instance by names of the catalogue.

    Attributes:
        llm, gpu: the deployment.
        tp: GPUs.
        precision, kv_precision: of weights and cache.
        engine: vllm, sglang or trtllm.

    Raises:
        InputError: a name is not known.
    """

    llm: str
    gpu: str
    tp: int
    precision: str
    kv_precision: str
    engine: str

    def __post_init__(self) -> None:
        if self.llm not in catalog.llms():
            raise InputError(unknown_llm("llm", self.llm))
        if self.gpu not in catalog.gpus():
            raise InputError(unknown_gpu("gpu", self.gpu))
        one_of("engine", self.engine, get_args(EngineName))
        one_of("precision", self.precision, WEIGHT_BYTES)
        one_of("kv_precision", self.kv_precision, KV_BYTES)
        if self.tp < 1:
            raise InputError(Mistake(None, "tp", self.tp, "at least 1"))

    def costs(self, model: str, prompt_tokens: float) -> tuple[StepCosts, Provenance]:
        """Step costs by ``default``, ``roofline``, a model file or a shipped model.

        A model file that names neither GPU nor LLM is taken to be measured on this deployment.

        Raises:
            InputError: no such file, or not such a model.
        """
        source = source_of(model, self.engine, Path, "model")  # type: ignore[arg-type]
        here = {"gpu": self.gpu, "llm": self.llm, "precision": self.precision}
        models = tuple(m if m.gpu or m.llm else m.model_copy(update=here) for m in source.models)
        source = replace(source, models=models)
        d = deployment(
            source, catalog.llms()[self.llm], self.llm, catalog.gpus()[self.gpu], self.gpu,
            self.precision, self.kv_precision, self.tp,  # type: ignore[arg-type]
        )  # fmt: skip
        return resolve(source, d, prompt_tokens)

    def kv_tokens(
        self, max_num_seqs: int, max_num_batched_tokens: int, request_tokens: float, runtime_gib: float = RUNTIME_GIB
    ) -> float:
        """Tokens of KV cache that weights and a pass leave on the GPUs.

        Args:
            max_num_seqs, max_num_batched_tokens: of a pass.
            request_tokens: mean length of the requests; layers with a window or a recurrent state hold by it.
            runtime_gib: memory of the engine's runtime on each GPU.

        Raises:
            InputError: not even one.
        """
        room = self._room(max_num_seqs, max_num_batched_tokens, request_tokens, runtime_gib)
        if room < 1:
            expected = f"GPUs enough for the weights of {self.llm} ({self.precision})"
            raise InputError(Mistake(None, "tp", self.tp, expected))
        return room

    def kv_tokens_between(
        self, max_num_seqs: int, max_num_batched_tokens: int, request_tokens: float, level: float = 0.9
    ) -> tuple[float, float]:
        """The same at both ends of the runtimes that engines' logs have, `level` of them between."""
        low, high = runtime_interval(catalog.llms()[self.llm].routed)[level]
        least, most = (
            self._room(max_num_seqs, max_num_batched_tokens, request_tokens, max(RUNTIME_GIB + end, 0.0))
            for end in (high, low)
        )
        return least, most

    def _room(
        self, max_num_seqs: int, max_num_batched_tokens: int, request_tokens: float, runtime_gib: float
    ) -> float:  # fmt: skip
        work = layer_work(catalog.llms()[self.llm], self.precision, self.kv_precision)  # type: ignore[arg-type]
        return kv_tokens(
            work, catalog.gpus()[self.gpu].usable_gib * GIB, self.tp, chunk_tokens=max_num_batched_tokens,
            max_requests=max_num_seqs, request_tokens=request_tokens, runtime_bytes=runtime_gib * GIB,
        )  # fmt: skip


def serve(
    trace: Trace, engine: Engine, instances: int = 1, dispatcher: Dispatcher = "earliest_finish", refuse: bool = False,
    limits: GoodputLimits | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Serve a trace on instances that are equal.

    Args:
        trace: the requests.
        engine: one instance.
        instances: how many.
        dispatcher: who sends a request where.
        refuse: requests whose first or last token is predicted to be later than the limits are refused.
        limits: limits of goodput and refusals.

    Returns:
        The report, JSON-ready, and a table of the requests, a column an entry.
    """
    limits = limits or GoodputLimits()
    arrivals = Arrivals.of(
        trace.arrival_s, trace.prompt_tokens, trace.output_tokens, prefixes=trace.prefixes,
        expected_output_tokens=trace.expected_output_tokens,
        ttft_limit_s=np.inf if limits.ttft_s is None else limits.ttft_s,
        deadline_s=np.inf if limits.e2e_s is None else limits.e2e_s,
    )  # fmt: skip
    bin_s = max(trace.duration_s, 1e-9) / BINS
    edges = EDGES_S if limits.itl_s is None else np.unique(np.append(EDGES_S, limits.itl_s * (1 + 1e-9)))
    seen = simulate(
        arrivals, [engine] * instances, dispatcher, refuse=refuse, bin_s=bin_s, bins=2 * BINS,
        gaps=Gaps(edges, np.zeros(len(arrivals), np.int64)),
    )  # fmt: skip
    good = _good(seen, limits)
    assert seen.gaps is not None
    pauses, many = of_edges(edges, seen.gaps.sum(axis=0))
    between: dict[str, Any] = {"itl_s": gap_quantiles(pauses, many, QUANTILES)}
    if limits.itl_s is not None:
        between["itl_within"] = float(many[pauses <= limits.itl_s * (1 + 1e-9)].sum() / max(many.sum(), 1.0))
    return _report(seen, engine, instances, good, between), {
        "arrival_s": arrivals.arrival_s, "input_tokens": arrivals.input_tokens,
        "output_tokens": arrivals.output_tokens, "instance": seen.instance, "queue_s": seen.queue_s,
        "ttft_s": seen.ttft_s, "tpot_s": seen.tpot_s, "e2e_s": seen.e2e_s, "cached_tokens": seen.hit_tokens,
        "preemptions": seen.preemptions, "good": good,
    }  # fmt: skip


def _good(seen: ServedRequests, limits: GoodputLimits) -> Any:
    """(n,) served, and within every limit; answers of one token have no time per output token."""
    good = seen.served.copy()
    for limit, values in ((limits.ttft_s, seen.ttft_s), (limits.tpot_s, seen.tpot_s), (limits.e2e_s, seen.e2e_s)):
        if limit is not None:
            good &= ~(values > limit * (1 + 1e-9))
    return good


def _report(
    seen: ServedRequests, engine: Engine, instances: int, good: Any, between: dict[str, Any]
) -> dict[str, Any]:  # fmt: skip
    a, served = seen.arrivals, seen.served
    n = len(a)
    begin = float(a.arrival_s[0]) if n else 0.0
    span = float(np.nanmax(seen.finish_s, initial=begin)) - begin
    busy, steps = float(seen.busy_s.sum()), int(seen.steps.sum())

    def rate(amount: Any) -> float:
        return float(amount) / span if span > 0 else 0.0

    tpot = seen.tpot_s[served]
    found: dict[str, Any] = {
        "requests": n, "refused": int(n - served.sum()), "seconds": span,
        "ttft_s": quantiles(seen.ttft_s[served]),
        "tpot_s": quantiles(tpot[np.isfinite(tpot)]),
        **between,
        "e2e_s": quantiles(seen.e2e_s[served]),
        "queue_s": quantiles(seen.queue_s[served]),
        "requests_per_s": rate(served.sum()), "output_tokens_per_s": rate(a.output_tokens[served].sum()),
        "good_share": float(good.mean()) if n else 1.0,
        "goodput_requests_per_s": rate(good.sum()), "goodput_tokens_per_s": rate(a.output_tokens[good].sum()),
        "preemptions": int(seen.preemptions.sum()),
        "cached_prompt_share": float(seen.hit_tokens.sum() / max(1, a.input_tokens[served].sum())),
        "steps": steps, "mean_step_s": busy / steps if steps else 0.0,
        "busy_share": rate(busy / instances), "most_running": int(seen.most_running.max(initial=0)),
    }  # fmt: skip
    s = seen.series
    assert s is not None
    over = {
        "time_s": np.arange(s.busy.shape[1]) * s.bin_s, "busy_share": s.busy.mean(axis=0),
        "running": s.running.mean(axis=0), "waiting": s.waiting.mean(axis=0),
        "kv_use": s.kv_blocks.mean(axis=0) / (engine.blocks * engine.ranks), "tokens_per_s": s.tokens_per_s.sum(axis=0),
    }  # fmt: skip
    found["running"] = _mean_and_most(over["running"])
    found["kv_use"] = _mean_and_most(over["kv_use"])
    found["over_time"] = {k: [float(f"{v:.6g}") for v in values] for k, values in over.items()}
    return found


def _mean_and_most(values: Array) -> dict[str, float]:
    """Of means over bins, an instance's."""
    return {"mean": float(values.mean()), "max": float(values.max())} if len(values) else {}
