"""Tables a user wrote: CSV, compressed or not, and Parquet, within stated limits on the size; rows as models."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from pydantic import BaseModel

from optmodels.arrays import Array
from optmodels.errors import InputError, Mistake, Mistakes, printable
from optmodels.io.pipes import settled
from optmodels.io.read import not_utf8, validate

if TYPE_CHECKING:
    import pandas as pd

M = TypeVar("M", bound=BaseModel)
MAX_TEXT_BYTES = 256 * 2**20  # of CSV or JSON lines, unpacked
MAX_COLUMN_BYTES = 512 * 2**20  # of Parquet's columns, in memory
MAX_COLUMNS = 10_000
SEPARATORS = (",", ";", "\t", "|")
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
_DECIMALS = re.compile(r"\d+,\d+")
_HEAD_CHARACTERS = 2**20
_TAR = 257, 262  # bytes that name a tar archive


class _Limited(io.RawIOBase):
    """The bytes of a stream, up to a limit, beyond which reading is refused."""

    def __init__(self, stream: Any, name: str) -> None:
        self.stream, self.name, self.left = stream, name, MAX_TEXT_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as there is something.

        Raises:
            InputError: more than the limit.
        """
        data = self.stream.read(len(buffer))
        self.left -= len(data)
        if self.left < 0:
            raise too_large(self.name, "a longer text", f"{MAX_TEXT_BYTES // 2**20} MiB of text, unpacked")
        buffer[: len(data)] = data
        return len(data)


def too_large(name: str, found: object, limit: str) -> InputError:
    """A table over a limit, and what to do about it."""
    return InputError(Mistake(name, "", found, f"at most {limit}", hint="keep fewer rows or only the columns needed"))


@contextmanager
def open_text(path: Path, what: str) -> Iterator[io.TextIOWrapper]:
    """A UTF-8 text file, compressed (see `unpacked`) or not, of at most `MAX_TEXT_BYTES` unpacked.

    Args:
        path: The file.
        what: is expected there, in words.

    Raises:
        InputError: also while the text is read: not there, unreadable, too large, no UTF-8 text, cut off.
    """
    name = str(path)
    first = b""
    path = settled(path, what)
    try:
        if not path.is_file():
            raise InputError(Mistake(name, "", "a folder" if path.is_dir() else "no such file", what))
        with path.open("rb") as raw:
            first = raw.read(2)
            raw.seek(0)
            stream = io.BufferedReader(_Limited(unpacked(raw, name), name), 2**20)
            if stream.peek(_TAR[1])[_TAR[0] : _TAR[1]] == b"ustar":
                expected = "one file, packed with gzip, bzip2, xz, ZIP or not"
                raise InputError(Mistake(name, "", "a tar archive", expected))
            with io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
                yield text
    except (EOFError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        kind = "gzip" if first == b"\x1f\x8b" else "compressed"
        raise InputError(Mistake(name, "", str(error)[:80], f"a complete {kind} file")) from None
    except UnicodeDecodeError:
        raise InputError(Mistake(name, "", not_utf8(first), what)) from None
    except OSError as error:
        raise InputError(Mistake(name, "", error.strerror or str(error)[:80], "a readable file")) from None


def unpacked(raw: Any, name: str) -> Any:
    """The bytes of an open file, unpacked if they begin as gzip, bzip2, xz, Zstandard or ZIP, whatever the file's name.

    Raises:
        InputError: a ZIP archive of several files, or one that cannot be read.
    """
    first = raw.read(6)
    raw.seek(0)
    if first.startswith(b"\x1f\x8b"):
        return gzip.open(raw)
    if first.startswith(b"BZh"):
        return bz2.open(raw)
    if first.startswith(b"\xfd7zXZ\x00"):
        return lzma.open(raw)
    if first.startswith(b"\x28\xb5\x2f\xfd"):
        import pyarrow as pa

        return pa.CompressedInputStream(raw, "zstd")
    if first.startswith(b"PK\x03\x04"):
        return _only_member(raw, name)
    return raw


def _only_member(raw: Any, name: str) -> Any:
    """The bytes of the only file in a ZIP archive; folders and what macOS adds are no files."""
    try:
        archive = zipfile.ZipFile(raw)
        members = [m for m in archive.namelist() if not m.endswith("/") and not m.startswith("__MACOSX/")]
        if "[Content_Types].xml" in members:
            raise InputError(Mistake(name, "", "an Excel workbook", "CSV: save the sheet as CSV (UTF-8)"))
        if len(members) == 1:
            return archive.open(members[0])
        found = f"a ZIP archive of {len(members)} files"
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        found = f"a ZIP archive that cannot be read: {str(error)[:60]}"
    raise InputError(Mistake(name, "", found, "one file, or a ZIP archive of one file without a password"))


def separator(header: str) -> str:
    """The character between a table's cells, by its header: comma, semicolon, tab or bar."""
    return max(SEPARATORS, key=header.count)


def read_parquet(path: Path) -> pd.DataFrame:
    """A Parquet file of at most `MAX_COLUMN_BYTES` in memory; columns within one are named ``outer.inner``.

    The size that a file states is looked at first, and texts are counted before they are written out: a few bytes of
    Parquet may stand for many equal rows.

    Raises:
        InputError: not there, unreadable, too large, lists within a column.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    name, limit = str(path), f"{MAX_COLUMN_BYTES // 2**20} MiB of columns in memory"
    path = settled(path, "a Parquet file")
    if not path.is_file():
        raise InputError(Mistake(name, "", "a folder" if path.is_dir() else "no such file", "a Parquet file"))
    try:
        with pq.ParquetFile(path) as file:
            found = file.metadata
            columns = [found.schema.column(i) for i in range(found.num_columns)]
            nested = next((c.path for c in columns if c.max_repetition_level), None)
            if nested is not None:
                raise InputError(Mistake(name, nested, "a list within a column", "one number, time or text a row"))
            if len(columns) > MAX_COLUMNS:
                raise too_large(name, f"{len(columns):,} columns", f"{MAX_COLUMNS:,} columns")
            groups = [found.row_group(i) for i in range(found.num_row_groups)]
            size = max(found.num_rows * len(columns) * 8, sum(g.total_byte_size for g in groups))
            if size > MAX_COLUMN_BYTES:
                raise too_large(name, f"{found.num_rows:,} rows of {len(columns)} columns", limit)
        texts = [c.path for c in columns if c.physical_type == "BYTE_ARRAY"]
        table = pq.read_table(path, read_dictionary=texts)
        while any(pa.types.is_struct(field.type) for field in table.schema):
            table = table.flatten()
        for i, column in enumerate(table.columns):
            if not pa.types.is_dictionary(column.type):
                continue
            for chunk in column.chunks:
                lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
                size += pc.sum(lengths.take(chunk.indices)).as_py() or 0
            if size > MAX_COLUMN_BYTES:
                raise too_large(name, f"{table.num_rows:,} rows of long texts", limit)
            table = table.set_column(i, table.field(i).name, column.cast(column.type.value_type))
        frame: pd.DataFrame = table.to_pandas()
        return frame if frame.index.names == [None] else frame.reset_index()
    except InputError:
        raise
    except Exception as error:  # pyarrow's own kinds of error
        raise InputError(Mistake(name, "", str(error).split("\n")[0][:80], "a complete Parquet file")) from None


def read_frame(path: Path, what: str = "a CSV or Parquet file") -> pd.DataFrame:
    """A table with a header: Parquet by the file's ending, else CSV, gzipped or not; what follows # is a comment.

    Args:
        path: The file.
        what: is expected there, in words.

    Raises:
        InputError: not there, unreadable, no table, or over a limit (`read_parquet`, `open_text`, `MAX_COLUMNS`).
    """
    if path.suffix == ".parquet":
        return read_parquet(path)
    name = str(path)
    with open_text(path, what) as text:
        check_columns(text, name)
    try:
        with open_text(path, what) as text:
            return parsed_csv(text)
    except InputError:
        raise
    except Exception as error:  # pandas' own kinds of error
        said = printable(str(error).split("\n")[0], 100)
        raise InputError(uneven(error, name) or Mistake(name, "", said, f"{what} with a header row")) from None


def uneven(error: Exception, file: str, skipped: int = 0) -> Mistake | None:
    """What pandas states about a row with more cells than the header, in words; None: it states something else.

    Args:
        error: pandas' own.
        file: file that was read.
        skipped: lines that pandas did not see.
    """
    found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
    if found is None:
        return None
    expected = f"{found[1]} cell{'s' * (found[1] != '1')}, as the header has"
    return Mistake(file, "row", f"{found[3]} cells", expected, int(found[2]) + skipped)


def parsed_csv(text: Any, **options: Any) -> pd.DataFrame:
    """CSV text as pandas reads it, but for rows longer than the header, whose first cells pandas takes for names.

    Args:
        text: a stream.
        options: options of `pandas.read_csv`.

    Raises:
        ParserError: of pandas; rows of more cells than the header has.
    """
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            found: pd.DataFrame = pd.read_csv(text, comment="#", index_col=False, **options)
        except pd.errors.ParserWarning:
            raise pd.errors.ParserError("rows of more cells than the header has") from None
    return found


def numbers(values: pd.Series[Any], whole: bool = False) -> Array:
    """A column as floats; NaN where a cell is no number, as a truth value is none.

    Cells may have commas, all between thousands or all as decimal points; NaN where both readings are possible.
    """
    import pandas as pd

    plain = values if values.dtype != object else values.where(~values.map(lambda v: isinstance(v, bool)))
    if values.dtype == bool:
        return np.full(len(values), np.nan)
    try:
        found = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    except (OverflowError, TypeError):  # more digits than a float holds; lists and the like
        return np.array([_float(v) for v in plain], dtype=np.float64)
    if plain.dtype.kind == "O" and np.isnan(found).any():
        found = found.copy()
        at = [i for i in np.flatnonzero(np.isnan(found)) if isinstance(plain.iloc[i], str) and "," in plain.iloc[i]]
        for i, value in zip(at, without_commas([plain.iloc[i] for i in at], whole), strict=True):
            found[i] = value
    return found


def without_commas(cells: Sequence[str], whole: bool = False) -> list[float]:
    """Numbers of a column's cells with commas; NaN where they are none, or where a comma may be either.

    Args:
        cells: such as ``2,802`` or ``0,5``.
        whole: whether the column counts something, so that ``2,802`` has thousands.
    """
    texts = [cell.strip() for cell in cells]
    if all(map(_THOUSANDS.fullmatch, texts)) and (
        whole or any(text.count(",") > 1 or "." in text or text.endswith(",000") for text in texts)
    ):
        return [float(text.replace(",", "")) for text in texts]
    if not whole and not all(map(_THOUSANDS.fullmatch, texts)) and all(map(_DECIMALS.fullmatch, texts)):
        return [float(text.replace(",", ".")) for text in texts]
    return [float("nan")] * len(texts)


def finite_numbers(frame: pd.DataFrame, name: str, file: str) -> Array:
    """A column of a user's table as numbers, (n,).

    Raises:
        InputError: a cell that is none.
    """
    found = numbers(frame[name])
    wrong = np.flatnonzero(~np.isfinite(found))
    if len(wrong):
        raise InputError(Mistake(file, f"row {wrong[0] + 1}.{name}", frame[name].iloc[wrong[0]], "a finite number"))
    return found


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows for JSON, which has no NaN."""
    found = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return cast(list[dict[str, Any]], found)


def _float(cell: Any) -> float:
    try:
        return float(cell)
    except (OverflowError, TypeError, ValueError):
        return float("nan")


def check_columns(text: io.TextIOBase, name: str) -> None:
    """Refuse a header of this many columns that reading it alone takes all memory.

    Raises:
        InputError: more than `MAX_COLUMNS`.
    """
    for _ in range(_HEAD_CHARACTERS):
        line = text.readline(_HEAD_CHARACTERS)
        if line and (line.startswith("#") or not line.strip()) and line.endswith("\n"):
            continue
        if max(map(line.count, SEPARATORS)) >= MAX_COLUMNS or len(line) == _HEAD_CHARACTERS:
            raise too_large(name, "a header of more columns", f"{MAX_COLUMNS:,} columns")
        return


def read_table(path: Path, model: type[M]) -> tuple[M, ...]:
    """Read a CSV or Parquet file, one validated model per row; empty cells are absent values.

    Raises:
        InputError: every bad row, by line; over a limit.
    """
    name = str(path)
    rows: Sequence[dict[str, Any]]
    if path.suffix == ".parquet":
        import pandas as pd

        frame = read_parquet(path)
        rows = [{str(k): v for k, v in r.items() if not pd.isna(v)} for r in frame.to_dict("records")]
        lines = list(range(1, len(rows) + 1))
    else:
        rows, lines = _csv_rows(path)
    integers = {n for n, f in model.model_fields.items() if "int" in str(f.annotation)}
    wrong = Mistakes()
    good: list[M] = []
    for i, (row, at) in enumerate(zip(rows, lines, strict=True)):
        cells = {k: _integer(v) if k in integers else v for k, v in row.items()}
        with wrong.collecting():
            good.append(validate(model, cells, name, lambda _, at=at: at, f"row {i + 1}"))  # type: ignore[misc]
    wrong.raise_any()
    return tuple(good)


def _integer(cell: Any) -> Any:
    """The whole number a CSV cell holds, or the cell for validation to refuse."""
    text = str(cell).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else cell


def csv_lines(path: Path) -> tuple[list[list[str]], list[int]]:
    """Rows of cells of a CSV file, the header first, and the line each ends on; lines that start with # are comments.

    Blank lines are left out.

    Raises:
        InputError: no UTF-8 CSV text, or over a limit.
    """
    what = "a UTF-8 CSV file"
    rows: list[list[str]] = []
    lines: list[int] = []
    with open_text(path, what) as handle:
        text = handle.read()
    try:
        if any(ord(c) < 32 and c not in "\t\r\n" for c in text):
            raise csv.Error("control characters")
        kept = [(i, line) for i, line in enumerate(text.splitlines(keepends=True), 1) if not line.startswith("#")]
        between = separator(kept[0][1]) if kept else ","
        reader = csv.reader((line for _, line in kept), strict=True, delimiter=between)
        for cells in reader:
            if cells:
                rows.append(cells)
                lines.append(kept[reader.line_num - 1][0])
    except csv.Error as error:
        raise InputError(Mistake(str(path), "", printable(str(error), 100), what)) from None
    return rows, lines


def _csv_rows(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Rows of a CSV file without empty cells, and the line each ends on.

    Raises:
        InputError: no UTF-8 CSV text, a column named twice, a row longer than the header.
    """
    found, lines = csv_lines(path)
    header = [name.strip() for name in found[0]] if found else []
    double = [name for i, name in enumerate(header) if name in header[:i]]
    if double:
        raise InputError(Mistake(str(path), double[0], "a second column of that name", "every column once"))
    rows: list[dict[str, Any]] = []
    for number, (cells, line) in enumerate(zip(found[1:], lines[1:], strict=True), 1):
        if len(cells) > len(header):
            expected = f"at most {len(header)} cells, as the header has"
            raise InputError(Mistake(str(path), f"row {number}", cells, expected, line))
        rows.append({k: v for k, v in zip(header, cells, strict=False) if v != ""})
    return rows, lines[1:]
