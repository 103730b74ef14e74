"""Latency measurements as a user has them: CSV or Parquet, columns mapped by name, every bad cell named.

Four kinds, distinguished by their columns:

* ``step``   one engine step: prompt tokens processed and the KV they attend to, decoding requests and their
             context, seconds. What LLMVisor (LV 1) and chunked-prefill profilers record.
* ``static`` one static batch from first prompt token to last output token.
* ``served`` a closed-loop run of `concurrency` users: mean TTFT and time per output token.
* ``pairs``  predicted and measured seconds (LP 18), by GPU, strategy family and phase.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from pydantic_core import PydanticCustomError

from optmodels.arrays import Array, Index
from optmodels.errors import InputError, Mistake, Mistakes
from optmodels.io import tables
from optmodels.latency.calibration import MOST
from optmodels.units import convert

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["step", "static", "served", "pairs"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MAX_MISTAKES = 20
LEAST_S = 1e-12  # of any measured time: below, its reciprocal is none


@dataclass(frozen=True)
class Column:
    """One input column: its unit, the least value allowed, and what stands in where the file has none."""

    unit: str
    minimum: float = 0.0
    default: float | None = None

    @property
    def expected(self) -> str:
        """In words."""
        unit = f" {self.unit}" if self.unit else ""
        return f"a number ≥ {self.minimum:g}{unit}, at most {MOST:g}"


_TP = Column("", 1.0, default=1.0)
_SECONDS = Column("s", LEAST_S)
_TOKENS = Column("token", 1.0)
COLUMNS: dict[Kind, dict[str, Column]] = {
    "step": {
        "prefill_tokens": Column("token", default=0.0),
        "prefill_context_tokens": Column("token", default=0.0),
        "prefill_requests": Column("", default=-1.0, minimum=-1.0),
        "decode_requests": Column("", default=0.0),
        "decode_context_tokens": Column("token", default=0.0),
        "tp": _TP,
        "latency_s": _SECONDS,
    },
    "static": {
        "batch": Column("", 1.0),
        "input_tokens": _TOKENS,
        "output_tokens": _TOKENS,
        "tp": _TP,
        "latency_s": _SECONDS,
    },
    "served": {
        "concurrency": Column("", 1.0),
        "input_tokens": _TOKENS,
        "output_tokens": _TOKENS,
        "tp": _TP,
        "ttft_s": _SECONDS,
        "tpot_s": _SECONDS,
    },
    "pairs": {"predicted_s": _SECONDS, "latency_s": _SECONDS},
}
TARGETS: dict[Kind, tuple[str, ...]] = {
    "step": ("latency_s",),
    "static": ("latency_s",),
    "served": ("ttft_s", "tpot_s"),
    "pairs": ("latency_s",),
}
LABELS: dict[Kind, dict[str, str]] = {
    "step": {},
    "static": {},
    "served": {},
    "pairs": {"gpu": "*", "family": "*", "phase": "decode"},
}
WORKLOADS: dict[Kind, tuple[str, ...]] = {
    "step": (),
    "static": ("batch",),
    "served": ("input_tokens", "output_tokens"),
    "pairs": (),
}
SETTINGS = (  # columns of importers that state the deployment: rows of several are several deployments
    "model", "gpu", "engine", "engine_version", "precision", "pp", "attention_ranks", "expert_parallel",
    "dp_attention", "spec_decoding", "prefix_tokens",
)  # fmt: skip
STEP_COLUMNS = ("prefill_tokens", "prefill_requests", "decode_requests", "decode_context_tokens")
_TELLING: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    ("step", (*STEP_COLUMNS, "predicted_s", "latency_s")),  # what `measure` writes holds both
    ("pairs", ("predicted_s", "latency_s")),
    ("served", ("concurrency", "ttft_s", "tpot_s")),
    ("static", ("batch", "input_tokens", "output_tokens", "latency_s")),
    ("step", ("latency_s",)),
)


@dataclass(frozen=True)
class Measurements:
    """Validated measurements of one kind.

    Attributes:
        kind: Kind of the rows.
        values: Column name → (n,) floats in the unit of `COLUMNS`.
        labels: Text columns, (n,) each.
        workload: (n,) integers: rows of equal number belong to the same workload and are held back together.
        workload_by: The columns that make a workload.
        source: File as named by the user, its SHA-256, the column mapping used, and `SETTINGS` that vary (``mixes``).
        states: `SETTINGS` that are the same in all rows, as text.
    """

    kind: Kind
    values: dict[str, Array]
    labels: dict[str, npt.NDArray[np.str_]]
    workload: Index
    workload_by: tuple[str, ...] = ()
    source: dict[str, Any] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.workload)

    def take(self, rows: npt.NDArray[Any]) -> Measurements:
        """The given rows (mask or indices)."""
        return replace(
            self,
            values={k: v[rows] for k, v in self.values.items()},
            labels={k: v[rows] for k, v in self.labels.items()},
            workload=self.workload[rows],
        )


def measurements(
    kind: Kind, values: Mapping[str, Sequence[float] | Array], *, workload: Sequence[str] | None = None,
    name: str = "<data>",
) -> Measurements:  # fmt: skip
    """Measurements from arrays, checked as a file would be.

    Raises:
        InputError: a missing column or a bad value, by row.
    """
    import pandas as pd

    return _build(pd.DataFrame({k: np.asarray(v) for k, v in values.items()}), kind, {}, workload, name, {"file": name})


def read_measurements(
    path: Path, *, kind: Kind | None = None, columns: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None, workload: Sequence[str] | None = None,
) -> Measurements:  # fmt: skip
    """Read a CSV (also .csv.gz) or Parquet file of measurements.

    Args:
        path: The file.
        kind: Kind of the rows; None: by the columns.
        columns: Our name → theirs, ``COLUMN``, ``COLUMN:unit`` (e.g. ``step_ms:ms``) or a number for all rows.
        where: Keep only rows whose (file's) column equals the text.
        workload: Columns (ours or the file's) that make a workload for cross-validation.

    Raises:
        InputError: unreadable, unknown or missing columns, bad units, bad cells (by row), nothing left.
    """
    name = str(path)
    frame = read_frame(path)
    for column, wanted in (where or {}).items():
        if column not in frame.columns:
            raise InputError(Mistake(name, f"where.{column}", column, f"a column of the file: {_list(frame.columns)}"))
        frame = frame[matching(frame[column], wanted)]
    if where and frame.empty:
        raise InputError(Mistake(name, "where", dict(where), "a condition that some row meets"))
    frame, left_out = _of_kind(frame, kind, where or {})
    source = {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    if left_out:
        source["left_out"] = left_out
    if columns:
        source["columns"] = ", ".join(f"{k}={v}" for k, v in columns.items())
    mixed = {c: frame[c].dropna().unique() for c in SETTINGS if c in frame}
    if several := [f"{c} ({_list(values, 6)})" for c, values in mixed.items() if len(values) > 1]:
        source["mixes"] = "; ".join(several)
    if where:
        source["where"] = ", ".join(f"{k}={v}" for k, v in where.items())
    states = {c: str(values[0]) for c, values in mixed.items() if len(values) == 1 and frame[c].notna().all()}
    return replace(_build(frame, kind, columns or {}, workload, name, source), states=states)


def read_loads(path: Path) -> dict[str, Array]:
    """The columns of served requests but for the measured values: possible runs, (n,) each. Other columns are ignored.

    Raises:
        InputError: unreadable, missing columns, bad cells (by row), no rows.
    """
    name, frame = str(path), read_frame(path)
    if frame.empty:
        raise InputError(Mistake(name, "", "no rows", "at least one closed loop"))
    values: dict[str, Array] = {}
    wrong = Mistakes()
    for ours, column in COLUMNS["served"].items():
        if ours not in TARGETS["served"]:
            with wrong.collecting():
                values[ours] = _numbers(frame, ours, None, column, name)
    wrong.raise_any(MAX_MISTAKES)
    return values


def _of_kind(frame: pd.DataFrame, kind: Kind | None, where: Mapping[str, str]) -> tuple[pd.DataFrame, str]:
    """Of a file that `measure` wrote, the rows that a kind has a form for; and how many were left out, in words.

    Steps: those with all KV resident. Pairs: those that the curves predict. Transfers before the computation are a
    control, not a way to serve. A condition of the user's on the column keeps its rows.
    """
    if not set(frame.columns).issuperset(STEP_COLUMNS) or "predicted_s" not in frame:
        return frame, ""
    keep, said = frame["latency_s"].notna(), []
    if kind == "pairs":
        keep &= frame["predicted_s"].notna()
        said.append("without a prediction")
    elif "alpha" in frame and "alpha" not in where and "family" not in where:
        keep &= frame["alpha"] == 0
        said.append("with offloaded KV")
    if "schedule" in frame and "schedule" not in where:
        keep &= frame["schedule"] != "serial"
        said.append("with transfers before the computation")
    dropped = int((~keep).sum())
    return frame[keep], f"{dropped} rows {' or '.join(said)}" if dropped else ""


def read_frame(path: Path) -> pd.DataFrame:
    """A CSV or Parquet file as a table.

    Raises:
        InputError: not there, unreadable, or over a limit of `io.tables`.
    """
    frame = tables.read_frame(path)
    frame.columns = [str(c).strip() for c in frame.columns]
    return frame


def matching(column: pd.Series[Any], wanted: str) -> Any:
    """Rows whose cell equals `wanted`, as a number where the column is one."""
    try:
        return column.astype(float) == float(wanted)
    except (TypeError, ValueError):
        return column.astype(str) == wanted


def _list(names: Iterable[object], limit: int = 12) -> str:
    found = [str(n) for n in names]
    return ", ".join(found[:limit]) + (", …" if len(found) > limit else "")


def _build(
    frame: pd.DataFrame, kind: Kind | None, columns: Mapping[str, str], workload: Sequence[str] | None, name: str,
    source: dict[str, Any],
) -> Measurements:  # fmt: skip
    known = {c for k in KINDS for c in (*COLUMNS[k], *LABELS[k])}
    unknown = [c for c in columns if c not in known]
    if unknown:
        raise InputError([Mistake(name, f"columns.{c}", c, f"one of {_list(sorted(known), 99)}") for c in unknown])
    have = set(frame.columns) | set(columns)
    if kind is None:
        kind = next((k for k, telling in _TELLING if have.issuperset(telling)), None)
        if kind is None:
            raise InputError(
                Mistake(
                    name,
                    "columns",
                    _list(frame.columns),
                    "columns of one kind of measurement: " + "; ".join(f"{k}: {', '.join(t)}" for k, t in _TELLING),
                    hint="map yours with --column OURS=THEIRS:unit",
                )
            )
    if frame.empty:
        raise InputError(Mistake(name, "", "no rows", "at least one measurement"))
    values: dict[str, Array] = {}
    wrong = Mistakes()
    for ours, column in COLUMNS[kind].items():
        with wrong.collecting():
            values[ours] = _numbers(frame, ours, columns.get(ours), column, name)
    wrong.raise_any(MAX_MISTAKES)
    if kind == "step":
        values = _complete_step(values, name)
    n = len(frame)
    labels = {}
    for label, default in LABELS[kind].items():
        theirs = columns.get(label, label)
        if theirs in frame:
            blank = np.flatnonzero(frame[theirs].isna())
            if len(blank):
                raise InputError(Mistake(name, f"row {blank[0] + 1}.{theirs}", None, "a name in every row"))
            labels[label] = np.asarray(frame[theirs].astype(str), dtype=str)
        else:
            labels[label] = np.full(n, default if label not in columns else theirs)
    if kind == "step" and not workload:
        number, by = _step_workloads(values)
    else:
        number, by = _workloads(frame, values, workload, kind, name)
    return Measurements(kind, values, labels, number, by, source)


def _numbers(frame: pd.DataFrame, ours: str, spec: str | None, column: Column, name: str) -> Array:
    theirs, factor = (spec, 1.0) if spec is not None else (ours, 1.0)
    if theirs not in frame and ":" in theirs:
        theirs, _, unit = theirs.rpartition(":")
        try:
            factor = float(str(convert(f"1 {unit}", column.unit)))
        except (PydanticCustomError, ValueError):
            raise InputError(
                Mistake(name, f"columns.{ours}", unit, f"a unit of {column.unit or 'a plain number'}")
            ) from None
    if theirs not in frame:
        if spec is None and column.default is not None:
            return np.full(len(frame), column.default)
        try:
            return np.full(len(frame), float(theirs))
        except ValueError:
            raise InputError(
                Mistake(
                    name,
                    f"columns.{ours}",
                    theirs if spec is not None else None,
                    f"a column of the file ({column.expected}); it has {_list(frame.columns)}",
                    hint=f"map yours with --column {ours}=THEIRS:unit",
                )
            ) from None
    numbers = tables.numbers(frame[theirs]) * factor
    bad = ~(numbers <= MOST) | (numbers < column.minimum)
    if bad.any():
        raise InputError(
            [
                Mistake(name, f"row {i + 1}.{theirs}", frame[theirs].iloc[i], column.expected)
                for i in np.flatnonzero(bad)[:MAX_MISTAKES]
            ]
        )
    return numbers


def _complete_step(values: dict[str, Array], name: str) -> dict[str, Array]:
    p, n = values["prefill_tokens"], values["decode_requests"]
    idle = (p <= 0) & (n <= 0)
    if idle.any():
        i = int(np.flatnonzero(idle)[0])
        raise InputError(Mistake(name, f"row {i + 1}", "an empty step", "prefill_tokens > 0 or decode_requests > 0"))
    r = values["prefill_requests"]
    return values | {"prefill_requests": np.where(p > 0, np.where(r > 0, r, 1.0), 0.0)}


def _step_workloads(values: dict[str, Array]) -> tuple[Index, tuple[str, ...]]:
    """A prompt chunk and its context; pure decode steps, which have none, by their context."""
    import pandas as pd

    p, k, c = (values[n] for n in ("prefill_tokens", "prefill_context_tokens", "decode_context_tokens"))
    text = [f"{a:g} × {b:g}" if a > 0 else f"decode × {d:g}" for a, b, d in zip(p, k, c, strict=True)]
    number, _ = pd.factorize(np.array(text, dtype=object))
    return number.astype(np.intp), ("prefill_tokens", "prefill_context_tokens", "or decode_context_tokens")


def _workloads(
    frame: pd.DataFrame, values: dict[str, Array], by: Sequence[str] | None, kind: Kind, name: str
) -> tuple[Index, tuple[str, ...]]:
    import pandas as pd

    chosen = tuple(by) if by else WORKLOADS[kind]
    if kind == "pairs" and not by and set(frame.columns).issuperset(STEP_COLUMNS):
        chosen = STEP_COLUMNS  # every α of a (batch, context) is held back with it
    if not chosen:
        return np.arange(len(frame), dtype=np.intp), ("row",)
    parts = []
    for column in chosen:
        if column in values:
            parts.append(pd.Series(values[column]).map(lambda v: f"{v:g}"))
        elif column in frame:
            parts.append(frame[column].astype(str).reset_index(drop=True))
        else:
            raise InputError(Mistake(name, "workload", column, f"a column of the file: {_list(frame.columns)}"))
    text = parts[0]
    for part in parts[1:]:
        text = text + " × " + part
    number, _ = pd.factorize(text)
    return number.astype(np.intp), chosen
