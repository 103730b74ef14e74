"""The measurement file that `calibrate` reads: rows, and a header that states where they come from."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optmodels.errors import InputError, Mistake
from optmodels.io.write import write_bytes, write_text

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class MeasuredRows:
    """Measurements and their origin.

    Attributes:
        frame: one row a measured operating point.
        about: tool, files, date and notes, as JSON.
    """

    frame: pd.DataFrame
    about: dict[str, Any]


def write(path: Path, measured: MeasuredRows, *, overwrite: bool = False) -> None:
    """Write the measurement file: Parquet with `about` in its metadata, or CSV with `about` in a comment line.

    Raises:
        InputError: another ending, an existing file, or a folder that cannot be written.
    """
    about = json.dumps(measured.about, ensure_ascii=False, default=str)
    if path.suffix == ".csv":
        write_text(path, f"# {about}\n" + measured.frame.to_csv(index=False), overwrite=overwrite)
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pandas(measured.frame, preserve_index=False)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"optmodels": about.encode()})
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        write_bytes(path, buffer.getvalue(), overwrite=overwrite)
    else:
        raise InputError(Mistake(str(path), "--out", path.suffix or "no ending", "a file ending in .parquet or .csv"))
