"""`measure`: step latencies of this machine, or the logs of benchmarks, as a file that `calibrate` reads.

`operating-points`: what a fitted model makes of a workload, as a file that an instance reads.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optmodels.cli.latency import Where, pairs, print_result
from optmodels.cli.options import Columns, Force, Json, OutFile
from optmodels.errors import InputError, Mistake, Mistakes, one_of
from optmodels.io.write import refuse_existing, write_frame

if TYPE_CHECKING:
    from optmodels.catalog.types import Architecture
    from optmodels.latency.fit.operating import Predictor, Workload

NEEDS = "PyTorch: pip install 'optmodels[measure]'"


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.command("measure")(measure)
    app.command("operating-points")(operating_points)


def measure(
    model: Annotated[
        str | None, typer.Option("--model", "--llm", help="LLM of the catalogue, or a YAML file of one.")
    ] = None,
    grid: Annotated[
        str | None, typer.Option(help="Values of each axis: 'batch=1,8 prompt=128,512 context=1024 chunk=512'.")
    ] = None,
    offload: Annotated[str | None, typer.Option(help="KV elsewhere as well: ram, disk, ao.")] = None,
    alpha: Annotated[str, typer.Option(help="Offload ratios, comma-separated.")] = "0.25,0.5,0.75,1",
    schedule: Annotated[str, typer.Option(help="overlap, serial (transfers before computing) or both.")] = "overlap",
    tp: Annotated[
        str | None,
        typer.Option(help="Tensor-parallel degrees, comma-separated (default 1); with --from: that of the results."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N (experimental); by default a GPU.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU of the catalogue that this is; default: by its name.")] = None,
    dtype: Annotated[str, typer.Option(help="bf16 or fp16.")] = "bf16",
    layers: Annotated[int | None, typer.Option(help="Run only so many layers, and scale to the model's.")] = None,
    repeats: Annotated[int, typer.Option(help="Of each point, at most.")] = 9,
    threads: Annotated[int | None, typer.Option(help="CPU threads that compute.")] = None,
    link_gbps: Annotated[float | None, typer.Option(help="Bandwidth to the attention machine, Gbit/s (ao).")] = None,
    link_latency_us: Annotated[float, typer.Option(help="Its latency, microseconds.")] = 0.0,
    budget_s: Annotated[float | None, typer.Option(help="Seconds to spend; the most informative points first.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens in a step at most.")] = 16384,
    folder: Annotated[Path | None, typer.Option(help="Where to put the KV file (disk); default: beside --out.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, tokens and routing.")] = 0,
    sources: Annotated[
        list[Path] | None, typer.Option("--from", help="Read a benchmark's results instead; may be repeated.")
    ] = None,
    more: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files for --from.")] = None,
    format_: Annotated[str | None, typer.Option("--format", help="Their format, if it is not to be detected.")] = None,
    fixed: Annotated[
        list[str] | None, typer.Option("--set", help="With --from: a value the file lacks, e.g. concurrency=16.")
    ] = None,
    column: Columns = None,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="With --from: read runs of which more than 5 % failed.")
    ] = False,
    out: OutFile = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Step latencies, measured here or by another tool. One file that `calibrate` reads."""
    if more and not sources:
        raise InputError(Mistake(None, "FILE", str(more[0]), "files only after --from"))
    if (model is None) == (not sources):
        raise InputError(Mistake(None, "--model, --from", model, "either a model to measure or files to read"))
    if out is not None:
        if out.suffix not in (".parquet", ".csv"):
            raise InputError(Mistake(str(out), "--out", out.suffix or "no ending", "a file ending in .parquet or .csv"))
        if not force:
            refuse_existing(out)
    if sources:
        given = pairs(fixed, "--set") | ({} if tp is None else {"tp": tp})
        _imported(
            [*sources, *(more or ())], format_, given, pairs(column, "--column"), allow_failed, out, force, as_json
        )
        return
    for option, value in (
        ("--format", format_), ("--set", fixed), ("--column", column), ("--allow-failed", allow_failed),
    ):  # fmt: skip
        if value:
            raise InputError(Mistake(None, option, value, "only with --from"))
    from optmodels.measure import campaign as c
    from optmodels.measure.grid import OFFLOADS, SCHEDULES, Grid

    if not hasattr(
        os, "posix_fadvise"
    ):  # macOS and Windows: reads past the page cache, and memory, are asked otherwise
        raise InputError(Mistake(None, "measure", platform.system(), "Linux, or another tool's results by --from"))
    try:
        import torch
    except ImportError:
        raise InputError(Mistake(None, "measure", "PyTorch is not installed", NEEDS)) from None
    _positive(
        ("--layers", layers), ("--repeats", repeats), ("--threads", threads), ("--link-gbps", link_gbps),
        ("--budget-s", budget_s), ("--max-tokens", max_tokens),
    )  # fmt: skip
    if not 0 <= link_latency_us < float("inf"):
        raise InputError(Mistake(None, "--link-latency-us", link_latency_us, "a number ≥ 0"))
    ways = SCHEDULES if schedule == "both" else _words(schedule, SCHEDULES, "--schedule")
    wanted = c.Campaign(
        arch=_architecture(str(model)),
        model=str(model),
        grid=Grid.parse(grid),
        offload=_words(offload, tuple(OFFLOADS), "--offload"),
        alphas=_numbers(alpha, "--alpha", 0.0, 1.0),
        schedules=ways,  # type: ignore[arg-type]
        tps=whole_numbers(tp or "1", "--tp", 1024),
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
        gpu=gpu,
        dtype=_words(dtype, ("bf16", "fp16"), "--dtype")[0],
        layers=layers,
        repeats=repeats,
        threads=threads,
        link_bytes_per_s=None if link_gbps is None else link_gbps * 1e9 / 8,
        link_latency_s=link_latency_us * 1e-6,
        budget_s=budget_s,
        max_tokens=max_tokens,
        folder=folder or (out.parent if out is not None else Path()),
        seed=seed,
    )
    journal = out.with_name(out.name + ".journal") if out is not None else None
    measured = c.measure(wanted, journal, c.to_stderr)
    if measured.frame.empty:
        raise InputError(Mistake(None, "--grid, --budget-s", grid, "at least one point that fits memory and time"))
    if out is not None:
        c.write(out, measured, overwrite=force)
        if journal is not None:
            journal.unlink(missing_ok=True)
    print_result(
        measured.about | {"out": str(out) if out else None, "rows": _records(measured.frame)},
        as_json,
        _described(measured, out),
    )


def _described(measured: Any, out: Path | None) -> list[str]:
    frame, about = measured.frame, measured.about
    layers, probe = about["layers"], about["probe"]["gpu"]
    lines = [
        f"{len(frame)} points of {about['model']} on {about['device'].get('gpu', about['device']['cpu'])}, "
        f"{about['dtype']}, {about['threads']} threads",
        f"layers: {layers['run']} of {layers['model']} run, {layers['with_weights_of_their_own']} with weights of "
        "their own" + (", scaled to the model" if layers["scaled"] else ""),
        f"device at best: {probe['fp16_flops']:.3g} FLOP/s, memory {probe['mem_bytes_per_s']:.3g} B/s, from the host "
        f"{probe['pcie_bytes_per_s']:.3g} B/s, from disk {about['probe']['disk_bytes_per_s']:.3g} B/s "
        f"(disk_gbps: {about['probe']['disk_bytes_per_s'] * 8e-9:.3g})",
        f"{'phase':<9}{'family':<10}{'points':>7}{'median ms':>12}{'spread':>9}",
    ]
    for (phase, family), part in frame.groupby(["phase", "family"]):
        spread = float(((part["latency_p90_s"] - part["latency_p10_s"]) / part["latency_s"]).median())
        lines.append(
            f"{phase:<9}{family:<10}{len(part):>7}{1e3 * float(part['latency_s'].median()):>12.3f}{spread:>9.1%}"
        )
    if about["left_out"]:
        reasons = sorted(set(about["left_out"].values()))
        lines.append(f"left out: {len(about['left_out'])} points ({'; '.join(reasons)})")
    lines.append(f"not part of a measured step: {about['leaves_out']}")
    if about["catalogue_gpu"] is None:
        lines.append("the device is not in the catalogue; an instance may name it so:")
        lines.append(f"  gpus: {{measured: {_entry(probe)}}}")
    if out is not None:
        lines.append(f"written: {out}")
    return lines


def _entry(probe: dict[str, Any]) -> str:
    """A GPU entry on one YAML line."""
    names = ("fp16_flops", "mem_bytes_per_s", "vram_gib", "pcie_bytes_per_s", "link_bytes_per_s")
    return "{" + ", ".join(f"{n}: {probe[n]:.4e}" for n in names) + "}"


def _architecture(name: str) -> Architecture:
    """An entry of the catalogue, or a YAML file's.

    Raises:
        InputError: neither.
    """
    from optmodels import catalog
    from optmodels.catalog.types import Architecture
    from optmodels.io.read import read_model

    if name in catalog.llms():
        return catalog.llms()[name]
    if Path(name).is_file():
        return read_model(Path(name), Architecture)
    known = ", ".join(sorted(catalog.llms()))
    raise InputError(Mistake(None, "--model", name, f"a YAML file with an architecture, or one of {known}"))


def _words(text: str | None, known: tuple[str, ...], option: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(w for w in (text or "").split(",") if w))
    unknown = [w for w in found if w not in known]
    if unknown:
        raise InputError([Mistake(None, option, w, f"one of {', '.join(known)}") for w in unknown])
    if text is not None and not found:
        raise InputError(Mistake(None, option, text, f"one of {', '.join(known)}"))
    return found


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
    from optmodels.measure import campaign as c
    from optmodels.measure import importers

    kind, measured = importers.read(sources, format_, fixed, columns, allow_failed)
    if out is not None:
        c.write(out, measured, overwrite=force)
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
    ttft_s: Annotated[float | None, typer.Option(help="points_table, serves: only loads that keep this TTFT.")] = None,
    tbt_s: Annotated[float | None, typer.Option(help="points_table, serves: only loads that keep this TPOT.")] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel degree.")] = 1,
    replicas_per_machine: Annotated[int, typer.Option(min=1, help="Replicas that share a machine.")] = 1,
    chunk_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens in a step (step models).")] = 8192,
    capacity_tokens: Annotated[
        float | None,
        typer.Option(help="Tokens the KV cache of one machine holds; with default: by the engines' own formula."),
    ] = None,
    safety: Annotated[float | None, typer.Option(help="Probability of staying below.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="With default: vllm, sglang or trtllm; with rows of your own: theirs.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="With default: GPU of the catalogue, or a YAML file of one; measured: of the row."),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(help="With default: LLM of the catalogue, or a YAML file of one; measured: its name there."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="With default: fp16, fp8, fp8_block, fp4, mxfp4 or int4 weights; else your rows' own, or fp16."
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
