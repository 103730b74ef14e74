"""`operating-points`: a fitted model or measurements as rows of a problem file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optmodels.api.sources import File, renamed
from optmodels.errors import InputError, Mistake, Mistakes, one_of
from optmodels.io.write import write_frame, write_text

if TYPE_CHECKING:
    from optmodels.latency.fit.operating import PointWorkload, Predictor

FORMS = ("operating_points", "points_table", "measured", "serves")  # keys of instance files


@renamed(
    {"model": "latencies", "llm": "model", "tbt_s": "tpot_s"},
    lambda given: "llm" in given or "tbt_s" in given or ("model" in given and "latencies" not in given),
)
def operating_points(
    latencies: File, *, machine: str, batch: int, input_tokens: int, output_tokens: int, as_: str = "operating_points",
    replicas: Sequence[int] = (1,), passes: Sequence[int] = (1,), loads: Sequence[int] | None = None,
    demand: Sequence[str] = (), service: str | None = None, ttft_s: float | None = None, tpot_s: float | None = None,
    tp: int = 1, replicas_per_machine: int = 1, chunk_tokens: int = 8192, capacity_tokens: float | None = None,
    safety: float | None = None, engine: str | None = None, gpu: str | None = None, model: str | None = None,
    precision: str | None = None, attention_ranks: int = 1, where: Mapping[str, str] | None = None,
    out: File | None = None, force: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Rows of a problem file from a fitted model, from measurements or from the engines' coefficients.

    Args:
        latencies: model file that `calibrate` wrote, name of a shipped model, a table of served measurements to take
            unmodified, or ``default``: coefficients fitted over many engines, for `engine`, `gpu` and `model`.
        machine: the machine's name in the problem's pool.
        batch: requests of the workload.
        input_tokens: prompt tokens of each request.
        output_tokens: output tokens of each request.
        as_: key of the problem file: ``operating_points`` (cost efficiency), ``points_table`` (fleet), ``measured``
            (orchestration) or ``serves`` (reserved capacity).
        replicas: numbers of machines that share the batch.
        passes: numbers of passes on one machine, besides one.
        loads: concurrent requests of a replica (all but ``operating_points``); None: 1, 2, 4 … batch; of measurements
            those between measured ones, and these.
        demand: with ``points_table``: ``WORKLOAD/BUCKET``, or ``WORKLOAD/BUCKET=INxOUT`` of other lengths.
        service: with ``serves``: the service's name.
        ttft_s: with ``points_table`` and ``serves``: keep the loads that meet this TTFT, seconds.
        tpot_s: with ``points_table`` and ``serves``: keep the loads that meet this TPOT, seconds.
        tp: tensor-parallel degree.
        replicas_per_machine: replicas that share a machine.
        chunk_tokens: prompt tokens in a step (step models).
        capacity_tokens: tokens that the KV cache of one machine holds; None: by the engines' own formula (``default``).
        safety: prediction quantile: latencies stay below with this probability.
        engine: ``vllm``, ``sglang`` or ``trtllm``, with ``default``; of rows of your own as they state.
        gpu: GPU of the catalogue, or a YAML file of one, with ``default``; of measurements the GPU's name there.
        model: LLM of the catalogue, or a YAML file of one, with ``default``; of measurements its name there.
        precision: precision of weights: fp16, fp8, fp8_block, fp4, mxfp4 or int4; None: the rows', or fp16.
        attention_ranks: data-parallel attention ranks, with ``default``.
        where: with a table of measurements: keep the rows whose columns have these values.
        out: file to write.
        force: replace an existing file.

    Returns:
        The rows under their key, and ``warnings``.

    Raises:
        InputError: a file or an argument is wrong, weights that the GPUs do not hold, a file that exists.
    """
    from optmodels.io.tables import records
    from optmodels.latency.engines.document import Deployed
    from optmodels.latency.fit import operating
    from optmodels.latency.output import yaml_text

    one_of("as", as_, FORMS)
    wrong = Mistakes()
    for name, value in (("--capacity-tokens", capacity_tokens), ("--ttft-s", ttft_s), ("--tpot-s", tpot_s)):
        if value is not None and not 0 < value < float("inf"):
            wrong.add(name, value, "a positive number")
    wrong.raise_any()
    w = operating.PointWorkload(
        batch, input_tokens, output_tokens, tp, chunk_tokens, capacity_tokens or float("inf"), replicas_per_machine
    )
    for name, given, form in (
        ("--demand", demand, "points_table"), ("--service", service, "serves"), ("--loads", loads, None),
    ):  # fmt: skip
        if given and as_ != form and (form is not None or as_ == "operating_points"):
            raise InputError(Mistake(None, name, str(given), f"only with --as {form or ', '.join(FORMS[1:])}"))
    predictor = _predictor(Path(latencies), engine, gpu, model, precision, tp, attention_ranks, where or {})
    w, memory = _with_memory(w, predictor, capacity_tokens)
    several = tuple(sorted({*(2**i for i in range(batch.bit_length())), batch}))
    if loads is not None:
        several = _whole_numbers(loads, "--loads", batch)
    elif isinstance(predictor, operating.MeasuredLoops) and as_ != "operating_points":
        several = predictor.loads(w, several)
    bounds = operating.SloBounds(ttft_s or float("inf"), tpot_s or float("inf"))
    target = None if out is None else Path(out)
    if as_ == "serves":
        if service is None:
            raise InputError(Mistake(None, "--service", None, "the service's name in the problem file"))
        serves, notes = operating.served(predictor, w, several, bounds, safety)
        rows = [{"service": service, **serves}]
        if target is not None:
            write_text(target, yaml_text({"machine": machine, "serves": {service: serves}}), overwrite=force)
    else:
        if as_ == "operating_points":
            frame, notes = operating.operating_points(
                predictor, machine, w, replicas=_whole_numbers(replicas, "--replicas", batch),
                passes=_whole_numbers(passes, "--passes", batch), safety=safety,
            )  # fmt: skip
        elif as_ == "points_table":
            frame, notes = operating.throughputs(predictor, machine, _demands(demand, w), several, bounds, safety)
        else:
            d = predictor.deployment if isinstance(predictor, Deployed) else None
            llm_name = model or (getattr(predictor, "llm", None) if d is None else d.llm_name)
            kind = gpu or (getattr(predictor, "gpu", None) if d is None else d.gpu_name)
            for option, known in (("--model", llm_name), ("--gpu", kind)):
                if known is None:
                    raise InputError(
                        Mistake(None, option, None, "its name in the problem file: the model file states none")
                    )
            frame, notes = operating.load_rates(predictor, str(llm_name), str(kind), w, several, safety)
        rows = records(frame)
        if target is not None:
            write_frame(target, frame, overwrite=force)
    notes += memory
    if attention_ranks > 1:
        notes = (
            *notes,
            f"{attention_ranks} data-parallel attention ranks are no key of points in problem files: plans and "
            f"exports of these say TP{tp}, and the engine has to be told of the ranks beside",
        )
    return {as_: rows, "warnings": list(notes)}


def _whole_numbers(values: Sequence[int], option: str, most: int) -> tuple[int, ...]:
    """Sorted, each once.

    Raises:
        InputError: none, or one that is not from 1 to `most`.
    """
    found = tuple(sorted({*values}))
    if not found or not all(1 <= n <= most for n in found):
        raise InputError(Mistake(None, option, list(values), f"whole numbers from 1 to {most:,}"))
    return found


def _with_memory(
    w: PointWorkload, predictor: Predictor, capacity_tokens: float | None
) -> tuple[PointWorkload, tuple[str, ...]]:
    """The workload with the KV cache that a machine has, and notes on where that is from.

    Raises:
        InputError: weights that the GPUs do not hold.
    """
    from optmodels.latency.engines.document import Deployed

    if capacity_tokens is not None:
        return w, ()
    if not isinstance(predictor, Deployed):
        return w, ("memory is not checked without --capacity-tokens",)
    found, d = predictor.kv_tokens(w.tokens), predictor.deployment
    if found < w.tokens:
        expected = (
            f"more memory: {d.gpus} × {d.gpu_name} hold the weights of {d.llm_name} in {d.precision} and no request"
        )
        raise InputError(Mistake(None, "--tp", d.gpus // d.attention_ranks, expected + f" of {w.tokens:,} tokens"))
    note = f"KV cache of {found:,.0f} tokens a replica by the engines' own formula; --capacity-tokens in its place"
    return dataclasses.replace(w, capacity_tokens=w.replicas_per_machine * found), (note,)


def _demands(items: Sequence[str], w: PointWorkload) -> dict[str, PointWorkload]:
    """The demands of a problem file by name, each with its lengths."""
    found: dict[str, PointWorkload] = {}
    for item in items:
        name, sign, lengths = item.partition("=")
        match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})", lengths)
        if "/" not in name or (sign and match is None):
            raise InputError(Mistake(None, "--demand", item, "WORKLOAD/BUCKET, or WORKLOAD/BUCKET=INPUTxOUTPUT tokens"))
        one = {} if match is None else {"input_tokens": int(match[1]), "output_tokens": int(match[2])}
        found[name] = dataclasses.replace(w, **one)
    if not found:
        raise InputError(Mistake(None, "--demand", None, "WORKLOAD/BUCKET of the problem"))
    return found


def _predictor(
    model: Path, engine: str | None, gpu: str | None, llm: str | None, precision: str | None, tp: int,
    attention_ranks: int, where: Mapping[str, str],
) -> Predictor:  # fmt: skip
    """The fitted model, measurements or coefficients that the argument names."""
    from optmodels.latency.engines.document import deployed, is_engine_model, read_engine_model
    from optmodels.latency.fit import operating, read_measurements
    from optmodels.latency.fit.document import read_latency_model

    table = model.suffix == ".parquet" or ".csv" in model.suffixes
    if where and not table:
        raise InputError(Mistake(None, "--where", dict(where), "only with a table of measurements"))
    if str(model) == "default":
        return deployed(engine, gpu, llm, precision or "fp16", tp, attention_ranks)
    if not table and is_engine_model(model):
        coefficients = read_engine_model(model)
        known = coefficients.own_deployment
        engine, gpu, llm = engine or known.get("engine"), gpu or known.get("gpu"), llm or known.get("llm")
        weights = precision or (known.get("precision") if llm == known.get("llm") else None) or "fp16"
        return deployed(engine, gpu, llm, weights, tp, attention_ranks, coefficients)
    if engine is not None:
        expected = "only with default, or a file of calibrate --form default"
        raise InputError(Mistake(None, "--engine", engine, expected))
    if table:
        found = read_measurements(model, kind="served", where=where)
        if "mixes" in found.source:
            raise InputError(Mistake(str(model), "--where", found.source["mixes"], "one deployment: COLUMN=VALUE"))
        return operating.MeasuredLoops(found, str(model))
    return read_latency_model(model)
