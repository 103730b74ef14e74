"""`measure`: the results of benchmarks as a file that `calibrate` reads.

`operating-points`: what a fitted model makes of a workload, as a file that an instance reads.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optmodels.cli import options
from optmodels.cli.latency import Where, pairs, print_result
from optmodels.cli.options import Columns, Force, Json, OutFile
from optmodels.errors import InputError, Mistake, Mistakes, one_of
from optmodels.io.write import refuse_existing, write_frame

if TYPE_CHECKING:
    from optmodels.latency.fit.operating import Predictor, Workload


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.command("measure")(measure)
    app.command("operating-points")(operating_points)


def measure(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="Result files of a benchmark.")
    ] = None,
    sources: Annotated[
        list[Path] | None, typer.Option("--from", help="Result file of a benchmark; may be repeated.")
    ] = None,
    format_: Annotated[str | None, typer.Option("--format", help="Format of the files; default: detected.")] = None,
    fixed: Annotated[
        list[str] | None, typer.Option("--set", help="A value that the files lack, e.g. concurrency=16.")
    ] = None,
    column: Columns = None,
    tp: Annotated[
        int | None, typer.Option(min=1, help="Tensor-parallel degree of the runs, where the files do not state it.")
    ] = None,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Read runs of which more than 5 % of the requests failed.")
    ] = False,
    model: Annotated[str | None, typer.Option("--model", "--llm", hidden=True)] = None,
    out: OutFile = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Benchmark results as a measurement file for `calibrate`. `rows-to-measure` prints what to run."""
    if model is not None:
        expected = (
            "result files: measure reads what benchmarks wrote; `optmodels rows-to-measure` prints their commands"
        )
        raise InputError(Mistake(None, "--model", model, expected))
    read = [*(sources or ()), *(files or ())]
    if not read:
        raise InputError(
            Mistake(None, "FILE", None, "result files of a benchmark; `optmodels rows-to-measure` names runs")
        )
    if out is not None:
        if out.suffix not in (".parquet", ".csv"):
            raise InputError(Mistake(str(out), "--out", out.suffix or "no ending", "a file ending in .parquet or .csv"))
        if not force:
            refuse_existing(out)
    given = pairs(fixed, "--set") | ({} if tp is None else {"tp": str(tp)})
    _imported(read, format_, given, pairs(column, "--column"), allow_failed, out, force, as_json)


def _numbers(text: str, option: str, low: float, high: float) -> tuple[float, ...]:
    try:
        found = tuple(sorted({float(w) for w in text.split(",") if w}))
    except ValueError:
        found = ()
    if not found or not all(low <= x <= high for x in found):
        raise InputError(Mistake(None, option, text, f"numbers from {low:g} to {high:g}, comma-separated"))
    return found


def whole_numbers(text: str, option: str, high: int) -> tuple[int, ...]:
    """``1,2,4`` as sorted numbers from 1 to `high`."""
    found = _numbers(text, option, 1, high)
    if any(x != int(x) for x in found):
        raise InputError(Mistake(None, option, text, "whole numbers, comma-separated"))
    return tuple(int(x) for x in found)


def _positive(*options: tuple[str, float | None]) -> None:
    wrong = Mistakes()
    for name, value in options:
        if value is not None and not 0 < value < float("inf"):
            wrong.add(name, value, "a positive number")
    wrong.raise_any()


def _imported(
    sources: list[Path],
    format_: str | None,
    fixed: dict[str, str],
    columns: dict[str, str],
    allow_failed: bool,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    from optmodels.measure import importers, rows

    kind, measured = importers.read(sources, format_, fixed, columns, allow_failed)
    if out is not None:
        rows.write(out, measured, overwrite=force)
    frame = measured.frame
    names = [n for n in frame.columns if frame[n].dtype.kind in "fi" and frame[n].notna().any()]
    files = len(measured.about["files"])
    lines = [f"{len(frame)} {kind} measurements from {files} file{'s' * (files != 1)}"]
    for f in measured.about["files"]:
        lines.append(f"  {f['file']}: {f['format']}, {f['rows']} row{'s' * (f['rows'] != 1)}")
        lines += [f"    {note}" for note in f.get("notes", ())]
    lines += [f"  {n}: {frame[n].min():g} to {frame[n].max():g}" for n in names]
    if out is not None:
        lines.append(f"written: {out}")
    document = measured.about | {"kind": kind, "out": str(out) if out else None, "rows": _records(frame)}
    print_result(document, as_json, lines)


def _records(frame: Any) -> list[dict[str, Any]]:
    """Rows for JSON, which has no NaN."""
    found: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return found


FORMS = ("operating_points", "points_table", "measured", "serves")  # keys of instance files


def operating_points(
    model: Annotated[
        Path,
        typer.Argument(
            help="Model file from `calibrate`, the name of a shipped model, served measurements (CSV, Parquet) to take "
            "as they are, or default: coefficients fitted over many engines, GPUs and LLMs, for --engine, --gpu and "
            "--llm."
        ),
    ],
    machine: Annotated[str, typer.Option(help="The machine's name in the instance's pool.")],
    batch: Annotated[int, typer.Option(min=1, help="Requests of the workload.")],
    input_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens of each.")],
    output_tokens: Annotated[int, typer.Option(min=1, help="Output tokens of each.")],
    form: Annotated[
        str,
        typer.Option(
            "--as",
            help="The key of an instance file that they are for: operating_points (cost efficiency), points_table "
            "(fleet), measured (orchestration) or serves (reserved capacity).",
        ),
    ] = "operating_points",
    replicas: Annotated[str, typer.Option(help="Numbers of machines that share the batch.")] = "1",
    passes: Annotated[str, typer.Option(help="Numbers of passes on one machine, besides one.")] = "1",
    loads: Annotated[
        str | None,
        typer.Option(
            help="Requests of a replica at a time (all but operating_points); default: 1,2,4 … batch; of measurements "
            "as they are, those between measured ones, and these."
        ),
    ] = None,
    demand: Annotated[
        list[str] | None,
        typer.Option(help="points_table: WORKLOAD/BUCKET, or WORKLOAD/BUCKET=INxOUT of other lengths; repeatable."),
    ] = None,
    service: Annotated[str | None, typer.Option(help="serves: the service's name.")] = None,
    ttft_s: Annotated[
        float | None,
        typer.Option(
            parser=options.ttft, metavar="SECONDS", help="points_table, serves: only loads that keep this TTFT."
        ),
    ] = None,
    tbt_s: Annotated[
        float | None,
        typer.Option(
            parser=options.tpot, metavar="SECONDS", help="points_table, serves: only loads that keep this TPOT."
        ),
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel degree.")] = 1,
    replicas_per_machine: Annotated[int, typer.Option(min=1, help="Replicas that share a machine.")] = 1,
    chunk_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens in a step (step models).")] = 8192,
    capacity_tokens: Annotated[
        float | None,
        typer.Option(help="Tokens the KV cache of one machine holds; with default: by the engines' own formula."),
    ] = None,
    safety: Annotated[float | None, typer.Option(help="Probability of staying below.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            parser=options.engine,
            metavar="TEXT",
            help="With default: vllm, sglang or trtllm; with rows of your own: theirs.",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            parser=options.gpu,
            metavar="TEXT",
            help="With default: GPU of the catalogue, or a YAML file of one; measured: of the row.",
        ),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(help="With default: LLM of the catalogue, or a YAML file of one; measured: its name there."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            parser=options.precision,
            metavar="TEXT",
            help="With default: fp16, fp8, fp8_block, fp4, mxfp4 or int4 weights; else your rows' own, or fp16.",
        ),
    ] = None,
    attention_ranks: Annotated[int, typer.Option(min=1, help="With default: data-parallel attention ranks.")] = 1,
    where: Where = None,
    out: OutFile = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """A fitted model or measurements as rows of an instance. At the workload that you give."""
    from optmodels.latency.engines.document import Deployed
    from optmodels.latency.fit import operating
    from optmodels.latency.output import write_text, yaml_text

    one_of("--as", form, FORMS)
    _positive(("--capacity-tokens", capacity_tokens), ("--ttft-s", ttft_s), ("--tbt-s", tbt_s))
    w = operating.Workload(
        batch, input_tokens, output_tokens, tp, chunk_tokens, capacity_tokens or float("inf"), replicas_per_machine
    )
    for option, given, of in (
        ("--demand", demand, "points_table"), ("--service", service, "serves"), ("--loads", loads, None),
    ):  # fmt: skip
        if given and form != of and (of is not None or form == "operating_points"):
            raise InputError(Mistake(None, option, str(given), f"only with --as {of or ', '.join(FORMS[1:])}"))
    predictor = _predictor(model, engine, gpu, llm, precision, tp, attention_ranks, pairs(where, "--where"))
    w, memory = _memory(w, predictor, capacity_tokens)
    several = tuple(sorted({*(2**i for i in range(batch.bit_length())), batch}))
    if loads is not None:
        several = whole_numbers(loads, "--loads", batch)
    elif isinstance(predictor, operating.Measured) and form != "operating_points":
        several = predictor.loads(w, several)
    bounds = operating.Bounds(ttft_s or float("inf"), tbt_s or float("inf"))
    written: str | None = None
    if form == "operating_points":
        counts = {
            name: whole_numbers(text, name, batch) for name, text in (("--replicas", replicas), ("--passes", passes))
        }
        frame, said = operating.operating_points(
            predictor, machine, w, replicas=counts["--replicas"], passes=counts["--passes"], safety=safety
        )
    elif form == "points_table":
        frame, said = operating.throughputs(predictor, machine, _demands(demand, w), several, bounds, safety)
    elif form == "measured":
        d = predictor.deployment if isinstance(predictor, Deployed) else None
        name = llm or (getattr(predictor, "llm", None) if d is None else d.llm_name)
        kind = gpu or (getattr(predictor, "gpu", None) if d is None else d.gpu_name)
        for option, value in (("--llm", name), ("--gpu", kind)):
            if value is None:
                raise InputError(Mistake(None, option, None, "its name in the instance: the model file states none"))
        frame, said = operating.load_rates(predictor, str(name), str(kind), w, several, safety)
    else:
        if service is None:
            raise InputError(Mistake(None, "--service", None, "the service's name in the instance"))
        serves, said = operating.served(predictor, w, several, bounds, safety)
        written = yaml_text({"machine": machine, "serves": {service: serves}})
    said += memory
    if attention_ranks > 1:
        said = (
            *said,
            f"{attention_ranks} data-parallel attention ranks are no key of points in instance files: plans and "
            f"exports of these say TP{tp}, and the engine has to be told of the ranks beside",
        )
    if written is not None:
        rows = [{"service": service, **serves}]
        lines = [written.rstrip()]
    else:
        rows = _records(frame)
        lines = [_point_line(r) for r in rows]
    if out is not None:
        if written is not None:
            write_text(out, written, overwrite=force)
        else:
            write_frame(out, frame, overwrite=force)
    lines += [f"warning: {w}" for w in said]
    if out is not None:
        lines.append(f"written: {out}")
    print_result({form: rows, "warnings": list(said)}, as_json, lines)


def _memory(w: Workload, predictor: Predictor, capacity_tokens: float | None) -> tuple[Workload, tuple[str, ...]]:
    """The workload with the KV cache that a machine has, and what is to be said of it.

    Raises:
        InputError: weights that the GPUs do not hold.
    """
    import dataclasses

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
    said = f"KV cache of {found:,.0f} tokens a replica by the engines' own formula; --capacity-tokens in its place"
    return dataclasses.replace(w, capacity_tokens=w.replicas_per_machine * found), (said,)


def _point_line(r: dict[str, Any]) -> str:
    if "e2e_s" in r:
        text = f"{r['name']}: E2E {r['e2e_s']:.4g} s"
        return text if r["ttft_s"] is None else f"{text}, TTFT {r['ttft_s']:.4g} s, TPOT {1e3 * r['tbt_s']:.4g} ms"
    if "load" in r:
        return f"{r['model']} on {r['gpu']}, TP{r['tp']}, {r['load']} requests: {r['tokens_per_s']:.4g} tokens/s each"
    rates = ", ".join(f"{v:.4g} requests/s of {k}" for k, v in r.items() if "/" in k and v is not None)
    return f"{r['name']}: {rates}"


def _demands(items: list[str] | None, w: Workload) -> dict[str, Workload]:
    """Demands of ``--demand``, each with its lengths."""
    import dataclasses

    found: dict[str, Workload] = {}
    for item in items or ():
        name, sign, lengths = item.partition("=")
        match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})", lengths)
        if "/" not in name or (sign and match is None):
            raise InputError(Mistake(None, "--demand", item, "WORKLOAD/BUCKET, or WORKLOAD/BUCKET=INPUTxOUTPUT tokens"))
        one = {} if match is None else {"input_tokens": int(match[1]), "output_tokens": int(match[2])}
        found[name] = dataclasses.replace(w, **one)
    if not found:
        raise InputError(Mistake(None, "--demand", None, "WORKLOAD/BUCKET of the instance"))
    return found


def _predictor(
    model: Path, engine: str | None, gpu: str | None, llm: str | None, precision: str | None, tp: int,
    attention_ranks: int, where: dict[str, str],
) -> Predictor:  # fmt: skip
    """What the argument names."""
    from optmodels.latency.engines.document import deployed, is_engine_model, read_engine_model
    from optmodels.latency.fit import operating, read_measurements
    from optmodels.latency.fit.document import read_latency_model

    table = model.suffix == ".parquet" or ".csv" in model.suffixes
    if where and not table:
        raise InputError(Mistake(None, "--where", where, "only with a table of measurements"))
    if str(model) == "default":
        return deployed(engine, gpu, llm, precision or "fp16", tp, attention_ranks)
    if not table and is_engine_model(model):
        coefficients = read_engine_model(model)
        known = coefficients.own_deployment
        engine, gpu, llm = engine or known.get("engine"), gpu or known.get("gpu"), llm or known.get("llm")
        weights = precision or (known.get("precision") if llm == known.get("llm") else None) or "fp16"
        return deployed(engine, gpu, llm, weights, tp, attention_ranks, coefficients)
    if engine is not None:
        expected = "only with default, or a file of calibrate --model default"
        raise InputError(Mistake(None, "--engine", engine, expected))
    if table:
        found = read_measurements(model, kind="served", where=where)
        if "mixes" in found.source:
            raise InputError(Mistake(str(model), "--where", found.source["mixes"], "one deployment: COLUMN=VALUE"))
        return operating.Measured(found, str(model))
    return read_latency_model(model)
