"""`calibrate`: a latency model fitted to measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from optmodels.api.sources import File, renamed
from optmodels.errors import InputError, Mistake, one_of
from optmodels.io.write import refuse_existing, write_text

if TYPE_CHECKING:
    from optmodels.latency.calibration import Calibration
    from optmodels.latency.engines.document import EngineModel
    from optmodels.latency.fit.document import LatencyModel
    from optmodels.latency.fit.measurements import Kind, Measurements


FORMS = ("auto", "scaled", "two_segment", "additive", "steps", "decay", "linear_batch", "default")


@renamed({"llm": "model", "model": "form"}, lambda given: "llm" in given or given.get("model") in FORMS)
def calibrate(
    measurements: File, *, form: str = "auto", out: File | None = None, column: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None, workload: Sequence[str] | None = None, kind: Kind | None = None,
    gpu: str | None = None, model: str | None = None, precision: str | None = None, engine: str | None = None,
    attention_ranks: int | None = None, weighting: Literal["relative", "absolute"] = "relative",
    batch_limit: float | None = None, plot: File | None = None, title: str = "", source: str = "",
    date: str | None = None, force: bool = False, on_note: Callable[[str], object] = lambda _: None,
) -> LatencyModel | Calibration | EngineModel:  # fmt: skip
    """Fit a latency model to measurements.

    Args:
        measurements: CSV or Parquet file of measured latencies.
        form: ``auto``, ``scaled``, ``two_segment``, ``additive``, ``steps``, ``decay`` or ``linear_batch``;
            ``default``: the engines' global coefficients, shrunk towards a few served rows of one deployment.
        out: model file to write (YAML).
        column: our name → the file's.
        where: keep the rows whose columns have these values.
        workload: columns whose rows are held back together.
        kind: ``step``, ``static``, ``served`` or ``pairs``; None: by the columns.
        gpu: GPU of the catalogue (scaled; MoE terms); with ``default`` also a YAML file, or as the rows state.
        model: LLM of the catalogue; with ``default`` as `gpu`.
        precision: precision of weights: fp16, fp8, fp8_block, fp4, mxfp4 or int4; None: the rows' (with ``default``),
            or fp16.
        engine: measured engine: vllm, sglang or trtllm; None: as the rows state.
        attention_ranks: data-parallel attention ranks, with ``default``; None: as the rows state.
        weighting: ``relative``, or ``absolute`` as in LLMVisor.
        batch_limit: batch limit B of the decay model.
        plot: residual plot to write (PNG, SVG, PDF).
        title: title of the model file.
        source: where the measurements come from.
        date: date of the measurements, ISO; None: today.
        force: replace existing files.
        on_note: called with each line on how well ``default`` predicts the rows before and after.

    Returns:
        The fitted model with its errors on held-back rows; coefficients of several GPUs and strategies (`Calibration`)
        where the file has pairs of them; the engines' coefficients with ``default``.

    Raises:
        InputError: a file or an argument is wrong, too few rows, a file that exists.
    """
    given = dict(locals())
    from optmodels.catalog.files import described
    from optmodels.latency.fit import calibrate_measurements, read_measurements
    from optmodels.latency.fit.calibrate import calibrate_pairs
    from optmodels.latency.fit.forms import FitOptions
    from optmodels.latency.fit.measurements import KINDS, read_frame
    from optmodels.latency.fit.reference import Reference
    from optmodels.latency.output import yaml_text
    from optmodels.latency.resolve import Engine
    from optmodels.latency.work import WEIGHT_BYTES

    if form != "default":
        with described(model, gpu) as (own, device, weights):
            if (own, device) != (model, gpu):
                return calibrate(**given | {"model": own, "gpu": device, "precision": precision or weights})
    file = Path(measurements)
    if file.suffix in (".json", ".jsonl"):
        expected = (
            "a CSV or Parquet table; optmodels measure --from FILE --out rows.parquet makes one of a tool's results"
        )
        raise InputError(Mistake(None, "measurements", str(file), expected))
    engines = get_args(Engine)
    for name, value, known in (
        ("kind", kind, KINDS), ("weighting", weighting, ("relative", "absolute")), ("engine", engine, engines),
        ("precision", precision, tuple(WEIGHT_BYTES)),
    ):  # fmt: skip
        if value is not None:
            one_of(name, value, known)
    if (gpu is None) != (model is None) and form != "default":
        raise InputError(Mistake(None, "--gpu, --model", gpu or model, "both or neither"))
    target, picture = (None if p is None else Path(p) for p in (out, plot))
    if not force:
        refuse_existing(target, picture)
    if kind is None and form == "scaled" and gpu is None and {"predicted_s"} <= set(read_frame(file).columns):
        kind = "pairs"  # a file that `measure` wrote: predictions next to the measured steps
    m = read_measurements(file, kind=kind, columns=dict(column or {}), where=where, workload=workload)
    source = source or file.name
    several = m.kind == "pairs" and len(set(zip(*(m.labels[k].tolist() for k in m.labels), strict=True))) > 1
    found: LatencyModel | Calibration | EngineModel
    written: LatencyModel | Calibration | EngineModel
    if form == "default":
        found = written = _with_own_rows(m, (engine, gpu, model, precision, attention_ranks), source, date, on_note)
    elif several and form in ("auto", "scaled"):
        found = written = calibrate_pairs(m, title=title, source=source, date=date)
    else:
        reference = Reference(gpu, model, precision or "fp16") if gpu and model else None  # type: ignore[arg-type]
        stated = engine or m.states.get("engine")
        options = FitOptions(reference, weighting == "relative", batch_limit, stated if stated in engines else None)
        fitted = calibrate_measurements(m, form, options, title=title, source=source, date=date)
        found = written = fitted.model
        if m.kind == "pairs":
            written = calibrate_pairs(m, title=title, source=source, date=date).model_copy(
                update={"model": fitted.model}
            )
        elif fitted.model.model == "scaled":
            written = fitted.calibration()
        if picture is not None:
            from optmodels.reporting.charts import save_chart
            from optmodels.reporting.charts.latency import residuals

            save_chart(residuals(m, fitted), picture, fitted.model.title, overwrite=force)
    if target is not None:
        document = written.model_dump(mode="json", by_alias=True, exclude_none=form != "default")
        write_text(target, yaml_text(document), overwrite=force)
    return found


def _with_own_rows(
    m: Measurements, deployment: tuple[str | None, str | None, str | None, str | None, int | None], source: str,
    date: str | None, on_note: Callable[[str], object],
) -> EngineModel:  # fmt: skip
    """The engines' coefficients shrunk towards served rows of one deployment at one or several TP degrees.

    Missing parts of the deployment are taken from the rows.
    """
    from optmodels.catalog.spelling import precision as read_precision
    from optmodels.catalog.spelling import precision_of
    from optmodels.latency.engines.own import described, served_rows, with_own_rows

    engine, gpu, llm, precision, ranks = deployment
    llm = llm or m.states.get("model")
    stated = m.states.get("precision") or precision_of(llm or "") or "fp16"
    rows = served_rows(
        m, engine or m.states.get("engine"), gpu or m.states.get("gpu"), llm,
        precision or str(read_precision(stated)), ranks or round(float(m.states.get("attention_ranks", 1))),
    )  # fmt: skip
    found = with_own_rows(rows, source=source, date=date)
    for line in described(found, rows):
        on_note(line)
    if "mixes" in m.source:
        on_note(f"warning: rows of several deployments are taken for one: {m.source['mixes']}; --where keeps one's")
    return found
