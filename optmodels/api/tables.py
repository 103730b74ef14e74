"""`tables`: a problem's operating points, or any curve as a table with certified error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optmodels import formulation as registry
from optmodels.api.sources import File, Source, problem_of
from optmodels.errors import InputError, Mistake
from optmodels.io.write import data_frame, refuse_existing, write_frame
from optmodels.problem import Problem

if TYPE_CHECKING:
    import pandas as pd

    from optmodels.latency.piecewise import Grid, Table

USUAL_ERROR = 1e-3  # relative, of an instance's linearised curves


def tables(
    source: Source, *, x: str | None = None, y: str | None = None, z: str | None = None, max_error: float | None = None,
    segments: int | None = None, set: Mapping[str, str | float] | None = None, safety: float | None = None,
    out: File | None = None, plot: File | None = None, where: Mapping[str, str] | None = None, force: bool = False,
    on_note: Callable[[str], object] = lambda _: None,
) -> Any:  # fmt: skip
    """The operating points of a problem, as its formulation's tables object; with `x` a curve or a model as a table.

    Args:
        source: problem file, mapping or `Problem`; with `x` a CSV or Parquet file, or a latency model.
        x: first axis: a column; of a model ``NAME=FIRST:LAST[:STEP]``.
        y: the latency or throughput: a column, or a model's target.
        z: second axis, such as ``context_tokens``.
        max_error: largest relative error (default for a problem file: 0.001).
        segments: number of segments, in place of `max_error` (one axis).
        set: other inputs of a model, by name.
        safety: prediction quantile of a model.
        out: CSV or Parquet file; of a problem file with linearised curves a second one ends in ``-curves``.
        plot: picture of the table (one axis).
        where: keep the rows of the file whose columns have these values.
        force: replace existing files.
        on_note: called with each warning of a model that leaves its range.

    Returns:
        The tables object (see the formulation), or a `piecewise.Table` or `piecewise.Grid`.

    Raises:
        InputError: a file or an argument is wrong, or a file exists.
    """
    if x is not None:
        if y is None:
            raise InputError(Mistake(None, "--y", None, "the column or target to tabulate"))
        file = Path(source)  # type: ignore[arg-type]
        return _curve(file, x, y, z, max_error, segments, set or {}, safety, out, plot, where or {}, force, on_note)
    misplaced = {"y": y, "z": z, "segments": segments, "set": set, "safety": safety, "plot": plot}
    wrong = [Mistake(None, k, v, "only with --x, for a curve or a model") for k, v in misplaced.items() if v]
    if wrong:
        raise InputError(wrong)
    if max_error is not None and not 0 < max_error < 1:
        raise InputError(Mistake(None, "--max-error", max_error, "a relative error > 0 and < 1"))
    problem = problem_of(source)
    with problem.blamed():
        found = registry.get(problem.formulation).tables(problem)
    if out is not None:
        frame, curves, _ = frames_of(problem, found, max_error or USUAL_ERROR)
        file = Path(out)
        beside = file.with_name(f"{file.stem}-curves{file.suffix}")
        if not force:  # both or neither
            refuse_existing(file, None if curves is None else beside)
        write_frame(file, frame, overwrite=force)
        if curves is not None:
            write_frame(beside, curves, overwrite=force)
    return found


def frames_of(problem: Problem, found: Any, max_error: float) -> tuple[pd.DataFrame, pd.DataFrame | None, float | None]:
    """Tables as data frames.

    Args:
        problem: the instance.
        found: its tables object.
        max_error: largest relative error of linearised curves.

    Returns:
        Its operating points; its linearised curves and their certified relative error, None where there are none.
    """
    form = registry.get(problem.formulation)
    frame = data_frame(next(iter(form.frames(found, None).values())))
    return (frame, None, None) if form.curves is None else (frame, *form.curves(found, max_error))


def _curve(
    file: Path, x: str, y: str, z: str | None, max_error: float | None, segments: int | None,
    fixed: Mapping[str, str | float], safety: float | None, out: File | None, plot: File | None,
    where: Mapping[str, str], force: bool, on_note: Callable[[str], object],
) -> Table | Grid:  # fmt: skip
    """A table with certified error and the fewest breakpoints, of a curve file or a model."""
    import hashlib

    import numpy as np

    from optmodels import catalog
    from optmodels.io.tables import finite_numbers
    from optmodels.latency import piecewise
    from optmodels.latency.fit.measurements import matching, read_frame

    if file.suffix in (".yaml", ".yml", ".json") or str(file) in catalog.latency_models():
        frame = _evaluated(file, [a for a in (x, z) if a], y, fixed, safety, on_note)
        x, z = x.partition("=")[0], z.partition("=")[0] if z else None
    else:
        frame = read_frame(file)
    for key, value in where.items():
        if key not in frame:
            raise InputError(Mistake(str(file), key, None, "a column of the file"))
        frame = frame[matching(frame[key], value)]
    absent = [c for c in (x, y, z) if c is not None and c not in frame]
    if absent:
        expected = f"a column; the file has {', '.join(frame.columns)}"
        raise InputError([Mistake(str(file), c, None, expected) for c in absent])
    about = {"file": file.name}
    if file.is_file():
        about["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    if safety is not None:
        about["safety"] = f"{safety:g}"
    numbers = {c: finite_numbers(frame, c, str(file)) for c in (x, y, z) if c is not None}
    found: Table | Grid
    if z is None:
        order = np.argsort(numbers[x], kind="stable")
        xs, ys = numbers[x][order], numbers[y][order]
        found = piecewise.table(xs, ys, max_error=max_error, segments=segments, name_x=x, name_y=y, provenance=about)
        if plot is not None:
            from optmodels.reporting.charts import save_chart
            from optmodels.reporting.charts.latency import table

            save_chart(table(found, xs, ys), Path(plot), file.name, overwrite=force)
    else:
        if max_error is None:
            raise InputError(Mistake(None, "--max-error", None, "a relative error: two axes need one"))
        xs, zs = np.unique(numbers[x]), np.unique(numbers[z])
        values = np.full((len(xs), len(zs)), np.nan)
        values[np.searchsorted(xs, numbers[x]), np.searchsorted(zs, numbers[z])] = numbers[y]
        found = piecewise.grid(xs, zs, values, max_error=max_error, name_x=x, name_z=z, name_y=y, provenance=about)
    if out is not None:
        piecewise.write(Path(out), found, overwrite=force)
    return found


def _evaluated(
    path: Path, axes: Sequence[str], target: str, fixed: Mapping[str, str | float], safety: float | None,
    on_note: Callable[[str], object],
) -> pd.DataFrame:  # fmt: skip
    """A model on the grid of its axes, as a table."""
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
    for line in model.extrapolation(values):
        on_note(line)
    return pd.DataFrame(values | {target: model.predict(values, target, safety=safety)})
