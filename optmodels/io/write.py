"""Writing results: atomically, never over another result unless told to."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from optmodels.errors import InputError, Mistake

NEW_NAME = "a new file name, or --force"


def write_text(path: Path, text: str, *, overwrite: bool = False) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode("utf-8"), overwrite=overwrite)


def write_bytes(path: Path, data: bytes, *, overwrite: bool = False) -> None:
    """Write a file so that readers see all of it or nothing.

    Raises:
        InputError: the file exists and `overwrite` is false, or the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
    except OSError as error:
        raise InputError(Mistake(str(path), "", error.strerror, "a folder that can be written")) from None
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
            os.link(temporary, path)  # fails if the target exists, whoever made it meanwhile
    except FileExistsError:
        raise InputError(Mistake(str(path), "", "an existing file", NEW_NAME)) from None
    except OSError as error:  # a folder in the way, a name too long for the disk
        raise InputError(Mistake(str(path), "", error.strerror, "the name of a file that can be written")) from None
    finally:
        temporary.unlink(missing_ok=True)


def refuse_existing(*paths: Path | None) -> None:
    """Refuse to write files that exist, before any work for them is done.

    Raises:
        InputError: one exists.
    """
    for path in paths:
        if path is not None and path.exists():
            raise InputError(Mistake(str(path), "", "an existing file", NEW_NAME))


def safe_name(text: str, limit: int = 80) -> str:
    """A file name made of the readable part of `text`: letters, digits, dot, dash, underscore."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
    return name[:limit] or "result"


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
        raise InputError(Mistake(str(parent), "", error.strerror, "a folder that can be written")) from None
    raise InputError(Mistake(str(parent), "", name, "a free result name"))


def write_frame(path: Path, frame: Any, *, overwrite: bool = False) -> None:
    """Write a data frame as CSV or Parquet, by the file's ending, as `write_text` does.

    Raises:
        InputError: another ending, or the file exists.
    """
    if path.suffix == ".csv":
        write_text(path, frame.to_csv(index=False), overwrite=overwrite)
    elif path.suffix == ".parquet":
        write_bytes(path, frame.to_parquet(index=False), overwrite=overwrite)
    else:
        raise InputError(Mistake(str(path), "", path.suffix or "no ending", "a file ending in .csv or .parquet"))
