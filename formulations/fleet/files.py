"""Files that a fleet instance may refer to: request traces, tables of measured points, Mélange's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from optmodels.catalog.types import Entry
from optmodels.engine.lengths import Cut
from optmodels.errors import InputError, Mistake
from optmodels.io.tables import read_frame
from optmodels.units import PositiveInt

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TraceFile(Cut):
    """A request trace, cut into buckets of input × output length.

    A bucket's requests are planned with the bucket's mean lengths.
    """

    file: str = Field(description="beside the problem file or below")
    rate_factor: Positive = Field(default=1.0, description="requests come so many times as often")


WHOLE = ("count", "slots", "tp", "replicas_per_machine")
FIXED = ("name", "usd_per_hour", "machine", "region", "market", *WHOLE, "stage", "model")


def read_points_table(path: Path, demands: list[str]) -> list[dict[str, Any]]:
    """Measured points of a CSV or Parquet file: fixed columns, then requests/s by demand; empty cells: cannot serve.

    Raises:
        InputError: unreadable, an unknown column, or a row without a name.
    """
    import pandas as pd

    name = str(path)
    frame = read_frame(path)
    strange = [str(c) for c in frame.columns if c not in FIXED and c not in demands]
    if strange or "name" not in frame.columns:
        value = strange[:3] if strange else None
        raise InputError(Mistake(name, "columns", value, f"name, {', '.join(FIXED[1:])} and demands (workload/bucket)"))
    fixed = [c for c in FIXED if c in frame.columns]
    rates = [d for d in demands if d in frame.columns]
    try:
        matrix = frame[rates].to_numpy(dtype=float)
    except ValueError as error:
        raise InputError(Mistake(name, "columns", str(error)[:80], "requests/s as numbers")) from None
    if (matrix < 0).any() or np.isinf(matrix).any():
        raise InputError(Mistake(name, "columns", "a negative or infinite rate", "requests/s ≥ 0"))
    rows = []
    for k, record in enumerate(frame[fixed].to_dict("records")):
        row: dict[str, Any] = {str(c): v for c, v in record.items() if not pd.isna(v)}
        row |= {c: int(row[c]) for c in WHOLE if c in row}
        row["name"] = str(row.get("name", f"row {k + 1}"))
        row |= {"model": str(row["model"])} if "model" in row else {}
        good = np.flatnonzero(matrix[k] > 0)
        row["requests_per_s"] = {rates[i]: float(matrix[k, i]) for i in good}
        rows.append(row)
    return rows


class MelangeGpu(Entry):
    """One GPU type of Mélange's configuration."""

    cost: Positive
    tputs: tuple[tuple[NonNegative, ...], ...]


class MelangeConfig(Entry):
    """Mélange's JSON configuration: GPU types with profiled requests/s by bucket, distribution, rate, slice factor."""

    gpu_info: dict[str, MelangeGpu] = Field(min_length=1)
    workload_distribution: tuple[tuple[NonNegative, ...], ...] = Field(min_length=1)
    total_request_rate: Positive
    slice_factor: PositiveInt = 1

    @model_validator(mode="after")
    def _same_shape(self) -> MelangeConfig:
        shape = [len(row) for row in self.workload_distribution]
        for name, gpu in self.gpu_info.items():
            if [len(row) for row in gpu.tputs] != shape:
                raise ValueError(f"tputs of {name} with as many rows and columns as workload_distribution")
        return self
