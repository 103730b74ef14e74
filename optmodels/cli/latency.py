"""`calibrate`, `attribute`, `batch-limits`, `tables`: latency models on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import click
import typer

from optmodels.cli import options
from optmodels.cli.options import Columns, Force, Json, OutFile
from optmodels.errors import InputError, Mistake, one_of
from optmodels.io.write import refuse_existing

if TYPE_CHECKING:
    import pandas as pd

    from optmodels.latency.calibration import Calibration
    from optmodels.latency.fit.document import LatencyModel
    from optmodels.latency.fit.measurements import Measurements

Where = Annotated[list[str] | None, typer.Option("--where", help="Keep rows with COLUMN=VALUE (the file's names).")]


def register(app: typer.Typer) -> None:
    """Add the latency verbs to the command line."""
    app.command("calibrate")(calibrate)
    app.command("attribute")(attribute)
    app.command("batch-limits")(batch_limits)
    app.command("tables")(tables)


def pairs(items: Sequence[str] | None, option: str) -> dict[str, str]:
    """``NAME=VALUE`` options as a mapping."""
    found: dict[str, str] = {}
    for item in items or ():
        key, sign, value = item.partition("=")
        if not sign or not key.strip() or not value.strip():
            raise InputError(Mistake(None, option, item, "NAME=VALUE"))
        found[key.strip()] = value.strip()
    return found


def calibrate(
    measurements: Annotated[Path, typer.Argument(help="CSV or Parquet file of measured latencies.")],
    model: Annotated[
        str,
        typer.Option(
            help="auto, scaled, two_segment, additive, steps, decay or linear_batch; default: the engines' global "
            "coefficients, pulled by a few served rows of --engine, --gpu and --llm."
        ),
    ] = "auto",
    out: OutFile = None,
    column: Columns = None,
    where: Where = None,
    workload: Annotated[
        str | None, typer.Option(help="Columns (comma-separated) whose rows are held back together.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="step, static, served or pairs; default: by the columns.")] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            parser=options.gpu,
            metavar="TEXT",
            help="GPU of the catalogue (scaled; MoE terms); with default also a YAML file, or what the rows say.",
        ),
    ] = None,
    llm: Annotated[str | None, typer.Option(help="LLM of the catalogue; with default as --gpu.")] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            parser=options.precision,
            metavar="TEXT",
            help="fp16, fp8, fp8_block, fp4, mxfp4 or int4 weights; default: the rows' (with default), or fp16.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            parser=options.engine,
            metavar="TEXT",
            help="That was measured: vllm, sglang or trtllm; default: what the rows say.",
        ),
    ] = None,
    attention_ranks: Annotated[
        int | None, typer.Option(min=1, help="With default: data-parallel attention ranks; or what the rows say.")
    ] = None,
    weighting: Annotated[str, typer.Option(help="relative, or absolute as in LLMVisor.")] = "relative",
    batch_limit: Annotated[float | None, typer.Option(help="Batch limit B of the decay model.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Residual plot to write (PNG, SVG, PDF).")] = None,
    title: Annotated[str, typer.Option(help="Title for the model file.")] = "",
    source: Annotated[str, typer.Option(help="Where the measurements come from.")] = "",
    date: Annotated[str | None, typer.Option(help="Date of the measurements, ISO; default today.")] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fit a latency model to measurements. It says how wrong it may be."""
    from optmodels.catalog.files import described
    from optmodels.latency.fit import calibrate_measurements, read_measurements
    from optmodels.latency.fit.calibrate import calibrate_pairs
    from optmodels.latency.fit.forms import Options
    from optmodels.latency.fit.measurements import KINDS, read_frame
    from optmodels.latency.fit.reference import Reference
    from optmodels.latency.output import write_text, yaml_text
    from optmodels.latency.resolve import Engine
    from optmodels.latency.work import WEIGHT_BYTES

    if measurements.suffix in (".json", ".jsonl"):
        expected = (
            "a CSV or Parquet table; optmodels measure --from FILE --out rows.parquet makes one of a tool's results"
        )
        raise InputError(Mistake(None, "measurements", str(measurements), expected))
    if kind is not None:
        one_of("--kind", kind, KINDS)
    one_of("--weighting", weighting, ("relative", "absolute"))
    engines = get_args(Engine)
    if engine is not None:
        one_of("--engine", engine, engines)
    if precision is not None:
        one_of("--precision", precision, tuple(WEIGHT_BYTES))
    if (gpu is None) != (llm is None) and model != "default":
        raise InputError(Mistake(None, "--gpu, --llm", gpu or llm, "both or neither"))
    if not force:
        refuse_existing(out, plot)
    if kind is None and model == "scaled" and gpu is None and {"predicted_s"} <= set(read_frame(measurements).columns):
        kind = "pairs"  # a file that `measure` wrote: predictions beside the measured steps
    m = read_measurements(
        measurements,
        kind=kind,  # type: ignore[arg-type]
        columns=pairs(column, "--column"),
        where=pairs(where, "--where"),
        workload=[w.strip() for w in workload.split(",")] if workload else None,
    )
    if model == "default":
        _pull(m, (engine, gpu, llm, precision, attention_ranks), source or measurements.name, date, out, force, as_json)
        return
    several = m.kind == "pairs" and len(set(zip(*(m.labels[k].tolist() for k in m.labels), strict=True))) > 1
    if several and model in ("auto", "scaled"):
        coefficients = calibrate_pairs(m, title=title, source=source or measurements.name, date=date)
        document = coefficients.model_dump(mode="json", by_alias=True, exclude_none=True)
        if out is not None:
            write_text(out, yaml_text(document), overwrite=force)
        print_result(
            document,
            as_json,
            [
                f"{c['gpu']} {c['family']} {c['phase']}: β₁ = {c['slope']:.4g}, β₀ = {c['intercept_s']:.4g} s"
                for c in document["coefficients"]
            ],
        )
        return
    llm, gpu, stated = click.get_current_context().with_resource(described(llm, gpu))
    reference = Reference(gpu, llm, precision or stated or "fp16") if gpu and llm else None  # type: ignore[arg-type]
    known = engine or m.states.get("engine")
    options = Options(reference, weighting == "relative", batch_limit, known if known in engines else None)
    fitted = calibrate_measurements(m, model, options, title=title, source=source or measurements.name, date=date)
    document = fitted.model.model_dump(mode="json", by_alias=True, exclude_none=True)
    if out is not None:
        written: LatencyModel | Calibration = fitted.model
        if m.kind == "pairs":
            coefficients = calibrate_pairs(m, title=title, source=source or measurements.name, date=date)
            written = coefficients.model_copy(update={"model": fitted.model})
        elif fitted.model.model == "scaled":
            written = fitted.calibration()
        write_text(out, yaml_text(written.model_dump(mode="json", by_alias=True, exclude_none=True)), overwrite=force)
    if plot is not None:
        from optmodels.reporting.charts import save_chart
        from optmodels.reporting.charts.latency import residuals

        save_chart(residuals(m, fitted), plot, fitted.model.title, overwrite=force)
    lines = describe(fitted.model)
    if out is not None:
        lines.append(f"written: {out}")
    print_result(document, as_json, lines)


def _pull(
    m: Measurements, of: tuple[str | None, str | None, str | None, str | None, int | None], source: str,
    date: str | None, out: Path | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """The engines' coefficients pulled by served rows of one deployment or several tensor-parallel degrees of it.

    What the command does not say of the deployment is what the rows say.
    """
    from optmodels.catalog.spelling import precision as read_precision
    from optmodels.catalog.spelling import precision_of
    from optmodels.latency.engines.own import described, served_rows, with_own_rows
    from optmodels.latency.output import write_text, yaml_text

    engine, gpu, llm, precision, ranks = of
    llm = llm or m.states.get("model")
    stated = m.states.get("precision") or precision_of(llm or "") or "fp16"
    precision = precision or str(read_precision(stated))
    rows = served_rows(
        m, engine or m.states.get("engine"), gpu or m.states.get("gpu"), llm, precision,
        ranks or round(float(m.states.get("attention_ranks", 1))),
    )  # fmt: skip
    found = with_own_rows(rows, source=source, date=date)
    document = found.model_dump(mode="json", by_alias=True)
    if out is not None:
        write_text(out, yaml_text(document), overwrite=force)
    lines = described(found, rows)
    if "mixes" in m.source:
        lines.append(
            f"warning: rows of several deployments are taken for one: {m.source['mixes']}; --where keeps one's"
        )
    print_result(document, as_json, [*lines, *([f"written: {out}"] if out is not None else [])])


def describe(model: LatencyModel) -> list[str]:
    """A model in lines of text: coefficients, errors, warnings."""
    lines = [f"{model.model}, from {model.provenance.get('rows', '?')} {model.measured} measurements"]
    lines += [f"  {w}" for w in model.why]
    for name, target in model.targets.items():
        for segment in target.segments:
            lines.append(f"{name}" + (f", {segment.when} rows" if segment.when != "all" else ""))
            for c in segment.terms:
                interval = f"  [{c.low:.3g}, {c.high:.3g}]" if c.low is not None and c.high is not None else ""
                lines.append(f"  {c.name:<20} {c.value:>11.4g} {c.unit:<20}{interval}")
        for what, e in (("in sample", target.in_sample), ("held back", target.cross_validated)):
            if e is not None:
                r2 = f"R² {e.r2:.4f}  " if e.r2 is not None else ""
                lines.append(
                    f"  {what}: {r2}MAPE {e.mape:.1%}  "
                    f"p50 {e.p50:.1%}  p90 {e.p90:.1%}  p99 {e.p99:.1%}  (n = {e.rows})"
                )
        if target.held_back:
            lines.append(f"  held back: {target.held_back}")
        shown = [f"{k}: ×{v:.3f}" for k, v in target.residual_quantiles.items() if k in ("0.5", "0.9", "0.95", "0.99")]
        lines.append(f"  safety levels: {', '.join(shown) or 'too few rows for any'}")
    lines += [f"warning: {w}" for w in model.warnings]
    return lines


def attribute(
    batch: Annotated[Path, typer.Argument(help="Batch file (JSON or YAML): the requests of one step.")],
    model: Annotated[Path, typer.Option(help="Model file from `calibrate` on step measurements.")],
    fixed: Annotated[str, typer.Option(help="How per-step constants are divided: equal or tokens.")] = "equal",
    safety: Annotated[float | None, typer.Option(help="Inflate by the residual quantile of this level.")] = None,
    as_json: Json = False,
) -> None:
    """Divide a step's latency among its requests and tenants."""
    import numpy as np

    from optmodels.io.read import read_model
    from optmodels.latency import attribution as a
    from optmodels.latency.fit.document import read_latency_model

    one_of("--fixed", fixed, ("equal", "tokens"))
    b = read_model(batch, a.Batch)
    fitted = read_latency_model(model)
    attributor = a.Attributor(fitted, fixed=fixed, safety=safety)  # type: ignore[arg-type]
    with np.errstate(over="ignore", invalid="ignore"):
        shares = a.attribute(attributor, b.requests, b.tp)
    if not np.isfinite(shares.request_s).all():
        raise InputError(Mistake(str(model), "targets", None, "coefficients that give finite latencies for this batch"))
    tokens, context, decoding = a.arrays(b.requests)
    warnings = fitted.extrapolation(
        {
            "prefill_tokens": tokens[~decoding],
            "prefill_context_tokens": context[~decoding],
            "decode_context_tokens": context[decoding],
            "decode_requests": _one(decoding.sum()),
            "tp": _one(b.tp),
        }
    )
    document: dict[str, Any] = {
        "latency_s": shares.latency_s,
        "requests": [
            {"id": r.id, "tenant": r.tenant, "share_s": float(s), "vtc_share_s": float(v)}
            for r, s, v in zip(b.requests, shares.request_s, shares.vtc_s, strict=True)
        ],
        "tenants": [
            {"tenant": t, "share_s": s, "vtc_share_s": shares.vtc_tenant_s[t]} for t, s in shares.tenant_s.items()
        ],
        "warnings": list(warnings),
    }
    lines = [f"step: {1e3 * shares.latency_s:.3f} ms", f"{'tenant':<24}{'share ms':>12}{'by tokens ms':>14}"]
    lines += [
        f"{t['tenant']:<24}{1e3 * t['share_s']:>12.3f}{1e3 * t['vtc_share_s']:>14.3f}" for t in document["tenants"]
    ]
    lines.append(f"{'request':<24}{'share ms':>12}{'by tokens ms':>14}")
    lines += [f"{r['id']:<24}{1e3 * r['share_s']:>12.3f}{1e3 * r['vtc_share_s']:>14.3f}" for r in document["requests"]]
    if b.admit is not None:
        admission = a.admit(attributor, b.requests, b.admit, b.tp)
        document["admit"] = {
            "id": b.admit.id,
            "added_s": admission.added_s,
            "share_s": admission.share_s,
            "latency_s": admission.after.latency_s,
        }
        lines.append(
            f"admitting {b.admit.id}: step {1e3 * admission.after.latency_s:.3f} ms, "
            f"{1e3 * admission.added_s:+.3f} ms; its share {1e3 * admission.share_s:.3f} ms"
        )
    print_result(document, as_json, lines + [f"warning: {w}" for w in warnings])


def _one(value: float) -> Any:
    import numpy as np

    return np.array([float(value)])


def batch_limits(
    capacity_tokens: Annotated[float, typer.Option(help="Tokens the KV cache holds, η.")],
    epsilon: Annotated[float, typer.Option(help="Allowed probability of running over.")] = 0.01,
    trace: Annotated[Path | None, typer.Option(help="CSV or Parquet trace with token counts.")] = None,
    input_column: Annotated[
        str | None, typer.Option(help="Column of prompt tokens in the trace; default: by its name.")
    ] = None,
    output_column: Annotated[
        str | None, typer.Option(help="Column of output tokens in the trace; default: by its name.")
    ] = None,
    input_mean: Annotated[float | None, typer.Option(help="Without a trace: mean prompt tokens.")] = None,
    input_std: Annotated[float, typer.Option(help="Standard deviation of prompt tokens.")] = 0.0,
    output_mean: Annotated[float | None, typer.Option(help="Without a trace: mean output tokens.")] = None,
    output_std: Annotated[float, typer.Option(help="Standard deviation of output tokens.")] = 0.0,
    model: Annotated[Path | None, typer.Option(help="Model file for b_SLA.")] = None,
    limit_s: Annotated[
        float | None, typer.Option(parser=options.tpot, metavar="SECONDS", help="Time between tokens allowed, seconds.")
    ] = None,
    safety: Annotated[float | None, typer.Option(help="Probability of staying below it.")] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel degree, for b_SLA.")] = 1,
    as_json: Json = False,
) -> None:
    """The largest batch that memory and latency allow. Memory suffices with a probability that you give."""

    from optmodels.latency import batch_limits as bl
    from optmodels.latency.fit.document import read_latency_model
    from optmodels.latency.fit.measurements import read_frame

    if (trace is None) == (input_mean is None or output_mean is None):
        raise InputError(Mistake(None, "--trace, --input-mean, --output-mean", None, "either a trace or both means"))
    if (model is None) != (limit_s is None):
        raise InputError(Mistake(None, "--model, --limit-s", None, "both or neither"))
    if trace is not None:
        from optmodels.traces.columns import recognised

        frame = read_frame(trace)
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
        columns = [_column(frame, str(c), trace) for c in names]
        lengths, inputs, outputs = (
            bl.from_sample(*columns),
            float(columns[0].mean()),
            float(columns[1].mean()),
        )
    else:
        inputs, outputs = float(input_mean or 0), float(output_mean or 0)
        lengths = bl.from_moments(inputs, input_std, outputs, output_std)
    limit = bl.memory_limit(lengths, capacity_tokens, epsilon)
    document: dict[str, Any] = {
        "mean_tokens": lengths.mean,
        "std_tokens": lengths.std,
        "correlation": lengths.correlation,
        "b_mem": {
            "normal": limit.normal,
            "exact": limit.exact,
            "linear": limit.linear,
            "reserve_tokens": limit.reserve_tokens,
            "true_probability_of_normal": limit.true_probability,
            "standard_error": limit.standard_error,
        },
    }
    exact = f"{limit.exact} exactly, " if limit.exact is not None else ""
    lines = [
        f"tokens per request: {lengths.mean:.1f} ± {lengths.std:.1f}",
        f"b_mem: {exact}{limit.normal} by the normal approximation, "
        f"{limit.linear} by the linear rule (L₀ = {limit.reserve_tokens:.0f})",
        f"  at {limit.normal} the cache runs over with probability {limit.true_probability:.4f} "
        f"± {limit.standard_error:.4f} (allowed {epsilon:g})",
    ]
    best = limit.exact if limit.exact is not None else limit.normal
    if max(limit.normal, limit.linear, best) == bl.B_MAX:
        lines.append(f"  {bl.B_MAX:,} is the largest batch that is looked at")
    if model is not None and limit_s is not None:
        fitted = read_latency_model(model)
        sla = bl.b_sla(_decode_latency(fitted, inputs, outputs, tp, safety), limit_s)
        document["b_sla"] = sla
        document["warnings"] = list(fitted.extrapolation(_decode_values(fitted, max(sla, 1), inputs, outputs, tp)))
        lines.append(f"b_SLA: {sla} within {limit_s:g} s")
        lines += [f"warning: {w}" for w in document["warnings"]]
        best = min(best, sla)
    document["batch"] = best
    lines.append(f"batch: {best}")
    print_result(document, as_json, lines)


def _column(frame: pd.DataFrame, name: str, file: Path) -> Any:
    """A column of a user's table as numbers.

    Raises:
        InputError: a cell that is none.
    """
    import numpy as np

    from optmodels.io.tables import numbers

    found = numbers(frame[name])
    wrong = np.flatnonzero(~np.isfinite(found))
    if len(wrong):
        raise InputError(
            Mistake(str(file), f"row {wrong[0] + 1}.{name}", frame[name].iloc[wrong[0]], "a finite number")
        )
    return found


def _decode_values(model: LatencyModel, b: int, inputs: float, outputs: float, tp: int) -> Mapping[str, Any]:
    one = {"tp": _one(tp)}
    if model.measured == "step":
        return one | {
            "prefill_tokens": _one(0),
            "prefill_context_tokens": _one(0),
            "prefill_requests": _one(0),
            "decode_requests": _one(b),
            "decode_context_tokens": _one(inputs + outputs / 2),
        }
    if model.measured == "served":
        return one | {"concurrency": _one(b), "input_tokens": _one(inputs), "output_tokens": _one(outputs)}
    raise InputError(
        Mistake(None, "--model", f"from {model.measured} measurements", "a model of steps or of served requests")
    )


def _decode_latency(model: LatencyModel, inputs: float, outputs: float, tp: int, safety: float | None) -> Any:
    target = "tpot_s" if model.measured == "served" else "latency_s"
    return lambda b: float(model.predict(_decode_values(model, b, inputs, outputs, tp), target, safety=safety)[0])


def tables(
    source: Annotated[
        Path, typer.Argument(help="Instance file; or, with --x, a CSV/Parquet curve or a latency model.")
    ],
    x: Annotated[str | None, typer.Option(help="First axis: a column; of a model NAME=FIRST:LAST[:STEP].")] = None,
    y: Annotated[str | None, typer.Option(help="The latency or throughput: a column, or a model's target.")] = None,
    z: Annotated[str | None, typer.Option(help="A second axis, e.g. context_tokens.")] = None,
    max_error: Annotated[float | None, typer.Option(help="Largest relative error, e.g. 0.02.")] = None,
    segments: Annotated[int | None, typer.Option(help="Or the number of segments (one axis).")] = None,
    fixed: Annotated[list[str] | None, typer.Option("--set", help="Of a model: another input, NAME=VALUE.")] = None,
    safety: Annotated[float | None, typer.Option(help="Of a model: probability of staying below.")] = None,
    out: OutFile = None,
    plot: Annotated[Path | None, typer.Option(help="Picture to write (one axis).")] = None,
    where: Where = None,
    rows: Annotated[int, typer.Option(help="Of an instance: operating points to show.")] = 20,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Linearised latency tables with certified error. Of an instance's operating points, or of any curve or model."""
    if x is None:
        from optmodels.cli.tables import show_tables

        misplaced = {"--y": y, "--z": z, "--segments": segments, "--set": fixed, "--safety": safety, "--plot": plot}
        wrong = [
            Mistake(None, k, v, "only with --x, for a curve or a model") for k, v in misplaced.items() if v is not None
        ]
        if wrong:
            raise InputError(wrong)
        return show_tables(source, 1e-3 if max_error is None else max_error, out, rows, as_json, force)
    if y is None:
        raise InputError(Mistake(None, "--y", None, "the column or target to tabulate"))
    _tabulate(source, x, y, z, max_error, segments, fixed, safety, out, plot, where, force, as_json)
    return 0


def _tabulate(
    points: Path,
    x: str,
    y: str,
    z: str | None,
    max_error: float | None,
    segments: int | None,
    fixed: list[str] | None,
    safety: float | None,
    out: Path | None,
    plot: Path | None,
    where: list[str] | None,
    force: bool,
    as_json: bool,
) -> None:
    """A table with certified error and the fewest breakpoints, of a curve file or a model."""
    import hashlib

    import numpy as np

    from optmodels import catalog
    from optmodels.latency import piecewise
    from optmodels.latency.fit.measurements import matching, read_frame

    warnings: tuple[str, ...] = ()
    if points.suffix in (".yaml", ".yml", ".json") or str(points) in catalog.latency_models():
        frame, warnings = _evaluate(points, [a for a in (x, z) if a], y, pairs(fixed, "--set"), safety)
        x, z = x.partition("=")[0], z.partition("=")[0] if z else None
    else:
        frame = read_frame(points)
    for key, value in pairs(where, "--where").items():
        if key not in frame:
            raise InputError(Mistake(str(points), key, None, "a column of the file"))
        frame = frame[matching(frame[key], value)]
    absent = [c for c in (x, y, z) if c is not None and c not in frame]
    if absent:
        raise InputError(
            [Mistake(str(points), c, None, f"a column; the file has {', '.join(frame.columns)}") for c in absent]
        )
    provenance = {"file": points.name}
    if points.is_file():
        provenance["sha256"] = hashlib.sha256(points.read_bytes()).hexdigest()
    if safety is not None:
        provenance["safety"] = f"{safety:g}"
    numbers = {c: _column(frame, c, points) for c in (x, y, z) if c is not None}
    found: piecewise.Table | piecewise.Grid
    if z is None:
        order = np.argsort(numbers[x], kind="stable")
        xs, ys = numbers[x][order], numbers[y][order]
        found = piecewise.table(
            xs, ys, max_error=max_error, segments=segments, name_x=x, name_y=y, provenance=provenance
        )
        if plot is not None:
            from optmodels.reporting.charts import save_chart
            from optmodels.reporting.charts.latency import table

            save_chart(table(found, xs, ys), plot, points.name, overwrite=force)
        rows = len(found.x)
    else:
        xs, zs = np.unique(numbers[x]), np.unique(numbers[z])
        values = np.full((len(xs), len(zs)), np.nan)
        values[np.searchsorted(xs, numbers[x]), np.searchsorted(zs, numbers[z])] = numbers[y]
        if max_error is None:
            raise InputError(Mistake(None, "--max-error", None, "a relative error: two axes need one"))
        found = piecewise.grid(xs, zs, values, max_error=max_error, name_x=x, name_z=z, name_y=y, provenance=provenance)
        rows = found.y.size
    if out is not None:
        piecewise.write(out, found, overwrite=force)
    document = {
        "rows": rows,
        "points": found.points,
        "max_error": found.max_error,
        "encoding": found.encoding,
        "binaries": found.binaries,
        "warnings": list(warnings),
        x: found.x.tolist(),
        y: found.y.tolist(),
    }
    fewest = "" if not isinstance(found, piecewise.Grid) or found.proved_fewest else " (not proved fewest)"
    print_result(
        document,
        as_json,
        [
            f"{rows} of {found.points} points{fewest}, relative error at most {found.max_error:.3%}",
            f"encoding: {found.encoding}, {found.binaries} binaries",
            *(f"warning: {w}" for w in warnings),
        ],
    )


def _evaluate(
    path: Path, axes: Sequence[str], target: str, fixed: Mapping[str, str], safety: float | None
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """A model on the grid of its axes, as a table, and what it says about leaving its range."""
    import numpy as np
    import pandas as pd

    from optmodels.latency.fit.document import read_latency_model
    from optmodels.latency.fit.measurements import COLUMNS

    model = read_latency_model(path)
    inputs = {k: c for k, c in COLUMNS[model.measured].items() if k not in model.targets}
    ranges = {}
    for axis in axes:
        name, _, text = axis.partition("=")
        try:
            first, last, *step = (float(t) for t in text.split(":"))
            found = np.arange(first, last + 1e-9, step[0] if step else 1.0)
        except (ValueError, ZeroDivisionError):
            raise InputError(Mistake(None, "--x, --z", axis, "NAME=FIRST:LAST[:STEP]")) from None
        if name not in inputs or not 2 <= len(found) <= 4096:
            expected = f"2 to 4096 values of one of {', '.join(inputs)}"
            raise InputError(Mistake(None, "--x, --z", axis, expected))
        ranges[name] = found
    values: dict[str, Any] = {
        n: v.ravel() for n, v in zip(ranges, np.meshgrid(*ranges.values(), indexing="ij"), strict=True)
    }
    n = len(next(iter(values.values())))
    for name, column in inputs.items():
        if name in values:
            continue
        try:
            value = float(fixed[name]) if name in fixed else column.default
        except ValueError:
            value = None
        if value is None or not np.isfinite(value):
            raise InputError(Mistake(None, f"--set {name}", fixed.get(name), column.expected))
        values[name] = np.full(n, value)
    if "prefill_requests" in values:
        values["prefill_requests"] = np.where(
            values["prefill_tokens"] > 0, np.maximum(values["prefill_requests"], 1), 0
        )
    return pd.DataFrame(values | {target: model.predict(values, target, safety=safety)}), model.extrapolation(values)


def print_result(document: Mapping[str, Any], as_json: bool, lines: Sequence[str]) -> None:
    """One JSON document, or lines of text, on stdout."""
    if as_json:
        typer.echo(json.dumps(document, ensure_ascii=False, allow_nan=False))
    else:
        typer.echo("\n".join(lines))
