"""`simulate`: one deployment on a request trace, without a plan."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optmodels.api.sources import File, read_requests, renamed
from optmodels.errors import InputError, Mistake, one_of
from optmodels.formulation import checked_options
from optmodels.io.write import check_folder, write_document
from optmodels.verification import version

if TYPE_CHECKING:
    from optmodels.traces.types import Trace


@renamed({"llm": "model"})
def simulate(
    model: str, gpu: str, trace: File | Trace, *, column: Mapping[str, str] | None = None,
    where: Mapping[str, str | Sequence[str]] | None = None, skip_bad: bool = False, tp: int = 1,
    precision: str | None = None, kv_precision: str = "fp16", engine: str = "vllm", latencies: str = "default",
    max_num_seqs: int = 256, max_num_batched_tokens: int = 8192, chunk_tokens: int | None = None,
    kv_tokens: float | None = None, runtime_gib: float | None = None, instances: int = 1,
    dispatcher: str = "earliest_finish", refuse: bool = False, ttft_limit: float | None = None,
    tpot_limit: float | None = None, itl_limit: float | None = None, e2e_limit: float | None = None,
    rate_factor: float = 1.0, first: float | None = None, seed: int = 0, out: File | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Simulate one deployment on a trace, step by step, without a plan.

    Args:
        model: LLM of the catalogue, or a config.json or YAML file of one (`catalog.files`).
        gpu: GPU of the catalogue, or a YAML file of one.
        trace: file of requests, or ``poisson:REQUESTS_PER_S:PROMPT:OUTPUT:SECONDS`` with lengths as N or
            LOW-HIGH, drawn evenly.
        column: columns of a trace file: our name → the file's (`traces.readers.read_trace`).
        where: keep the rows of the file whose columns have these values.
        skip_bad: skip rows that cannot be read, and count them.
        tp: GPUs of an instance.
        precision: weight precision; None: as the name states or as published.
        kv_precision: KV-cache precision.
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        latencies: ``default``, ``roofline``, or a model file that ``calibrate --form steps`` wrote.
        max_num_seqs: requests that an instance runs at a time.
        max_num_batched_tokens: tokens of a step.
        chunk_tokens: tokens of one prompt in a step; None: no limit.
        kv_tokens: KV-cache capacity, tokens; None: the rest of the GPUs' memory.
        runtime_gib: memory of the engine's runtime on each GPU, GiB; None: 1. Unused with `kv_tokens`.
        instances: number of identical instances behind one dispatcher.
        dispatcher: ``earliest_finish``, ``least_kv``, ``shortest_queue``, ``round_robin`` or ``prefix_affine``.
        refuse: refuse requests predicted to exceed the limits.
        ttft_limit, tpot_limit, e2e_limit: limit that goodput counts, seconds.
        itl_limit: limit on the time between two tokens, seconds; the report has the share of such times within it.
        rate_factor: multiply the trace's arrival rate by this factor.
        first: seconds of the trace to keep; None: all.
        seed: random seed of a drawn trace.
        out: folder for results; a new folder is made in it with simulate.json and a table of requests.

    Raises:
        InputError: a name, a file or an argument is wrong, or the weights do not fit.
    """
    arguments = dict(locals())
    from optmodels import catalog
    from optmodels.catalog import spelling
    from optmodels.catalog.files import described
    from optmodels.latency.memory import runtime_gib as default_runtime
    from optmodels.reporting.sources import source_entries
    from optmodels.simulation.continuous import DISPATCHERS, Engine
    from optmodels.simulation.deployment import GoodputLimits, SimulatedDeployment, serve
    from optmodels.simulation.sessions import beside_measured, in_sessions
    from optmodels.traces.generated import poisson

    with described(model, gpu) as (own, device, weights):
        if (own, device) != (model, gpu):
            return simulate(**arguments | {"model": own, "gpu": device, "precision": precision or weights})
    check_folder(None if out is None else Path(out))
    able = [d for d in DISPATCHERS if d != "planned_shares"]
    one_of("dispatcher", dispatcher, able)
    if runtime_gib is not None and not 0 <= runtime_gib < math.inf:
        raise InputError(Mistake(None, "runtime_gib", runtime_gib, "GiB ≥ 0"))
    if instances < 1:
        raise InputError(Mistake(None, "instances", instances, "at least 1"))
    for name, seconds in (
        ("ttft_limit", ttft_limit), ("tpot_limit", tpot_limit), ("itl_limit", itl_limit), ("e2e_limit", e2e_limit),
    ):  # fmt: skip
        if seconds is not None and not seconds > 0:
            raise InputError(Mistake(None, name, seconds, "seconds > 0"))
    seed = checked_options(seed).seed
    drawn = isinstance(trace, str) and trace.startswith("poisson:")
    given = poisson(trace, seed) if drawn else trace  # type: ignore[arg-type]
    requests = read_requests(given, column, where, skip_bad, first, rate_factor)
    assert requests is not None
    began = time.perf_counter()
    stated = spelling.precision_of(model)
    llm, gpu, engine = spelling.llm_of(model) or model, spelling.gpu(gpu), spelling.engine(engine)
    precision = spelling.precision(precision) or stated or catalog.published_precision(llm)
    kv_precision = spelling.kv_precision(kv_precision)
    one = SimulatedDeployment(llm, gpu, tp, precision, kv_precision, engine)
    costs, provenance = one.costs(latencies, float(requests.prompt_tokens.mean()))
    room, runtime, between = kv_tokens, default_runtime(runtime_gib), None
    if room is None:
        mean = float((requests.prompt_tokens + requests.output_tokens).mean())
        room = one.kv_tokens(max_num_seqs, max_num_batched_tokens, mean, runtime)
        if runtime_gib is None:
            between = one.kv_tokens_between(max_num_seqs, max_num_batched_tokens, mean)
    limits = Engine(costs, int(room), max_num_seqs, max_num_batched_tokens, chunk_tokens, overlap=True)
    good = GoodputLimits(ttft_limit, tpot_limit, e2e_limit, itl_limit)
    report, kept, requests, how = in_sessions(
        requests,
        lambda trace: serve(trace, limits, instances, dispatcher, refuse, good),  # type: ignore[arg-type]
    )
    found: dict[str, Any] = {
        "deployment": {
            "llm": llm, "gpu": gpu, "tp": tp, "precision": precision, "kv_precision": kv_precision, "engine": engine,
            "instances": instances, "dispatcher": dispatcher, "refuse": refuse, "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens, "chunk_tokens": chunk_tokens,
            "kv_tokens": limits.kv_tokens, "runtime_gib": None if kv_tokens is not None else runtime,
            "kv_tokens_between": between,
        },
        "latency": source_entries([(f"{llm} on {tp} × {gpu}", provenance)])[0],
        "limits": {"ttft_s": ttft_limit, "tpot_s": tpot_limit, "itl_s": itl_limit, "e2e_s": e2e_limit},
        "trace": requests.name, "trace_notes": [*requests.notes, *filter(None, [how])], "rate_factor": rate_factor,
        "first_s": first, "seed": seed, "report": report, "measured": beside_measured(requests, kept),
        "seconds": time.perf_counter() - began, "optmodels_version": version(),
    }  # fmt: skip
    if out is not None:
        write_document(found, Path(out), f"{llm}-{gpu}-simulate", "simulate.json", {"requests": kept})
    return found
