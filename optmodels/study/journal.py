"""Results of a long study so far, on disk: one JSON line for each result, in the order they came.

A line is there in full or it does not count: lines are appended and flushed to the disk before anybody is told, and a
last line that the end of its process cut off is recognised by its missing end and taken away.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from optmodels.errors import InputError, Mistake
from optmodels.io.write import not_written

FAR = 2**40  # where Windows locks a byte: locked bytes cannot be read, and no journal is as long


def _lock(handle: int) -> None:
    """Hold an open file against other processes until it is closed.

    Raises:
        OSError: another holds it.
    """
    try:
        import fcntl
    except ImportError:
        import msvcrt

        os.lseek(handle, FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Journal:
    """Results by identity; one process at a time may hold it open.

    Args:
        path: the file.
        is_row: whether an entry is a result.

    Attributes:
        rows: results by identity, the latest of each.
        damaged: lines that hold no result, a cut-off last one included.
    """

    def __init__(self, path: Path, is_row: Callable[[Any], bool] = lambda row: isinstance(row, dict)) -> None:
        self.path, self.rows, self.damaged = path, dict[str, dict[str, Any]](), 0
        self._is_row = is_row
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            binary = getattr(os, "O_BINARY", 0)  # Windows would write every line end as two
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | binary, 0o644)
        except OSError as error:
            raise not_written(path, error, "a folder that can be written") from None
        try:
            _lock(self._handle)
        except OSError:
            os.close(self._handle)
            raise InputError(Mistake(str(path), "", "in use", "a folder that no other sweep writes to now")) from None
        self._read()

    def _read(self) -> None:
        text = self.path.read_bytes()
        whole, _, torn = text.rpartition(b"\n")
        if torn:
            self.damaged += 1
            os.ftruncate(self._handle, len(text) - len(torn))
        for line in whole.splitlines():
            try:
                entry = json.loads(line)
                identity, row = entry["id"], entry["row"]
                whole_row = isinstance(identity, str) and self._is_row(row)
            except (ValueError, KeyError, TypeError, RecursionError):
                whole_row = False
            if whole_row:
                self.rows[identity] = row
            else:
                self.damaged += 1

    def add(self, found: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Append results (identity, row), and return once they are on the disk.

        Raises:
            InputError: they cannot be written; those before them are there.
        """
        text = ""
        for identity, row in found:
            line = json.dumps({"id": identity, "row": row}, ensure_ascii=False, allow_nan=False)
            self.rows[identity] = json.loads(line)["row"]
            text += line + "\n"
        data = text.encode("utf-8")
        try:
            while data:
                data = data[os.write(self._handle, data) :]
            os.fsync(self._handle)
        except OSError as error:
            expected = "free space on the disk; finished results are kept, and --resume goes on from them"
            raise InputError(Mistake(str(self.path), "", error.strerror, expected)) from None

    def close(self) -> None:
        """Let others write."""
        os.close(self._handle)
