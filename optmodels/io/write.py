"""Writing results: atomically, never over another result unless told to."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optmodels.errors import InputError, Mistake, NotWrittenError

_FORMULA = re.compile(r"'*[=+\-@\t\r]")  # after apostrophes too: taking one off gives back what there was
# Errors of a file system without hard links: exFAT, some network and FUSE mounts, Android's.
NO_LINKS = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.EINVAL}
NEW_NAME = "a new file name, or --force"
DEVICES = {"CON", "PRN", "AUX", "NUL", *(f"{port}{i}" for port in ("COM", "LPT") for i in range(1, 10))}  # of Windows
_WRITABLE = "a folder that can be written"
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as text that every document can hold: bytes that are not UTF-8 are written as ``\\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def not_written(path: Path, error: OSError, expected: str, where: str = "") -> InputError:
    """The mistake that a failed write is: no room on the disk, or `expected`."""
    wanted = "free space on the disk" if error.errno in FULL else expected
    return InputError(Mistake(str(path), where, error.strerror, wanted))


def write_text(path: Path, text: str, *, overwrite: bool = False) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode("utf-8"), overwrite=overwrite)


def write_bytes(path: Path, data: bytes, *, overwrite: bool = False) -> None:
    """Write a file so that readers see the whole file or nothing; devices and pipes are written to, never replaced.

    Raises:
        InputError: the file exists and `overwrite` is false, or the folder cannot be written.
    """
    if _takes_bytes(path):
        try:
            with path.open("wb") as stream:
                stream.write(data)
        except OSError as error:
            raise not_written(path, error, "a device or pipe that can be written") from None
        return
    if overwrite and path.is_symlink():
        path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
    except OSError as error:
        raise not_written(path, error, _WRITABLE) from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        if overwrite:
            temporary.replace(path)
        else:
            _name_anew(temporary, path)
    except FileExistsError:
        raise InputError(Mistake(str(path), "", "an existing file", NEW_NAME)) from None
    except OSError as error:  # a folder in the way, a name too long for the disk
        raise not_written(path, error, "the name of a file that can be written") from None
    finally:
        temporary.unlink(missing_ok=True)


def _takes_bytes(path: Path) -> bool:
    """Whether a path names a device, a pipe or a socket, such as ``/dev/stdout``."""
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except (OSError, ValueError):
        return False


def _name_anew(temporary: Path, path: Path) -> None:
    """Give a file its name, atomically where the file system has hard links.

    Raises:
        FileExistsError: the name is taken, the one who took it meanwhile.
    """
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        path.touch(mode=0o644, exist_ok=False)  # ours from here on: empty for a moment, then whole
        temporary.replace(path)


def refuse_existing(*paths: Path | None) -> None:
    """Refuse to write files that exist, before any work for them is done.

    Raises:
        InputError: one exists.
    """
    for path in paths:
        if path is not None and path.exists() and not _takes_bytes(path):
            raise InputError(Mistake(str(path), "", "an existing file", NEW_NAME))


def check_folder(folder: Path | None) -> None:
    """Refuse a folder that cannot be made or written, before any work for what goes into it is done.

    Raises:
        InputError: it is no folder, lies in none, or may not be written.
    """
    if folder is None:
        return
    whole = folder.absolute()
    there = next((p for p in (whole, *whole.parents) if os.path.lexists(p)), whole)  # none: a drive that is not there
    if not there.is_dir():
        raise InputError(Mistake(str(folder), "", f"{there} is no folder", _WRITABLE))
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(Mistake(str(folder), "", f"no right to write in {there}", _WRITABLE))


@contextmanager
def keeping(result: Any) -> Iterator[None]:
    """Writing of a result that is not to be lost if it fails.

    Raises:
        NotWrittenError: what could not be written, with the result.
    """
    try:
        yield
    except InputError as error:
        raise NotWrittenError(error.mistakes, result) from None


def safe_name(text: str, limit: int = 80) -> str:
    """A file name on every system, made of the readable part of `text`: letters, digits, dot, dash, underscore."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:limit].rstrip("-.")  # Windows drops dots at the end
    return f"_{name}"[:limit] if name.partition(".")[0].upper() in DEVICES else name or "result"


def bare_name(instance: str | os.PathLike[str]) -> str:
    """The name of an instance: of its file without folders and ending, or its own, which may have dots."""
    path = Path(instance)
    return path.stem if path.suffix.lower() in (".yaml", ".yml", ".json") else path.name


def new_folder(parent: Path, name: str) -> Path:
    """Create `parent/name`, or `parent/name-2`, `-3`, … if it exists.

    Raises:
        InputError: the parent cannot be written.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for i in range(1, 1_000_000):
            folder = parent / (name if i == 1 else f"{name}-{i}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise not_written(parent, error, _WRITABLE) from None
    raise InputError(Mistake(str(parent), "", name, "a free result name"))


def _harmless(cell: Any) -> Any:
    if not isinstance(cell, str) or not _FORMULA.match(cell):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def csv_text(table: Any) -> str:
    """A data frame, or columns by name, as CSV whose texts no spreadsheet takes for formulas.

    Before = + - @ an apostrophe is put. Only texts of users can begin so: numbers stay as they are, and so do texts
    that are numbers. Columns are written as a data frame of them would be, without the third of a second that pandas
    takes to import.
    """
    return _columns_text(table) if isinstance(table, Mapping) else _frame_text(table)


def _columns_text(columns: Mapping[str, Any]) -> str:
    """Columns of equal length (arrays or lists; None and NaN are empty cells) as CSV."""
    stream = io.StringIO()
    out = csv.writer(stream, lineterminator="\n")
    out.writerow(map(_harmless, columns))
    out.writerows(zip(*map(_cells, columns.values()), strict=True))
    return stream.getvalue()


def _cells(values: Any) -> list[Any]:
    """Cells of a column; numbers of an array, which may be millions, are written at once."""
    listed = values.tolist() if hasattr(values, "tolist") else values
    if getattr(getattr(values, "dtype", None), "kind", "O") in "iuf" and len(listed):
        from pydantic_core import to_json

        text = to_json(listed).decode()
        if not any(part in text for part in ("n", "e", "0.0000")):  # null; small numbers, which Python writes as 1e-05
            return text[1:-1].split(",")
    return ["" if v is None or v != v else _harmless(v) for v in listed]


def _frame_text(frame: Any) -> str:
    safe = frame.copy(deep=False)
    safe.columns = [_harmless(c) for c in frame.columns]
    for i, kind in enumerate(frame.dtypes):
        if kind.kind in "OUT":
            safe.isetitem(i, frame.iloc[:, i].map(_harmless))
    text: str = safe.to_csv(index=False)
    return text


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns by name, in the order in which the names come up; None where a row lacks one."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def data_frame(table: Any) -> Any:
    """A data frame, or columns by name as one."""
    import pandas as pd

    return pd.DataFrame(table) if isinstance(table, Mapping) else table


def write_frame(path: Path, frame: Any, *, overwrite: bool = False) -> None:
    """Write a data frame, or columns by name, as CSV or Parquet, by the file's ending, as `write_text` does.

    Raises:
        InputError: another ending, or the file exists.
    """
    if path.suffix == ".csv":
        write_text(path, csv_text(frame), overwrite=overwrite)
    elif path.suffix == ".parquet":
        write_bytes(path, data_frame(frame).to_parquet(index=False), overwrite=overwrite)
    else:
        raise InputError(Mistake(str(path), "", path.suffix or "no ending", "a file ending in .csv or .parquet"))


def write_document(
    document: dict[str, Any], parent: Path, name: str, file: str, tables: Mapping[str, Any], ending: str = "csv"
) -> Path:
    """Write a verb's document and its tables into a new folder below `parent`; the document names the folder.

    Args:
        document: gets the key ``folder``.
        parent, name: where the folder is made, and its name before it is a safe one.
        file: the document's file.
        tables: name → data frame, or columns by name.
        ending: of the tables' files.

    Raises:
        NotWrittenError: what could not be written, with the document.
    """
    with keeping(document):
        folder = new_folder(parent, safe_name(name))
        document["folder"] = path_text(folder)
        write_text(folder / file, json_text(document))
        for table, columns in tables.items():
            write_frame(folder / f"{safe_name(table)}.{ending}", columns)
    return folder


def finite(data: Any) -> Any:
    """JSON data with infinities and NaN as null."""
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {k: finite(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [finite(v) for v in data]
    return data


def json_text(data: Any) -> str:
    """Rows or documents as JSON text; infinities and NaN become null."""
    return json.dumps(finite(data), indent=2, ensure_ascii=False)
