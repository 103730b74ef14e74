"""Files that can be read once only (pipes, ``/dev/stdin``): copied to the disk the first time, so that all can read.

A named pipe without a writer is refused after `PATIENCE_S`; a writer that is slow is waited for, as `cat` does.
"""

from __future__ import annotations

import atexit
import os
import select
import shutil
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from optmodels.errors import InputError, Mistake
from optmodels.io.write import not_written

STDIN = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
PATIENCE_S = 10.0  # until the other end of a named pipe is open
MAX_BYTES = 2 * 2**30
_CHUNK = 2**20
_copies: dict[tuple[int, int], Path] = {}


def is_stream(path: Path) -> bool:
    """Whether a path names something that can be read once only, or standard input (``-``)."""
    if str(path) in STDIN:
        return True
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def settled(path: Path, what: str = "a file") -> Path:
    """The path itself, or a copy of a stream's contents; one stream is read once in a process.

    Args:
        path: a file, a named pipe, ``-`` (standard input), ``/dev/stdin`` or ``/dev/fd/N``.
        what: is expected there, in words.

    Raises:
        InputError: a terminal or another device, a pipe without a writer, more than `MAX_BYTES`, a full disk.
    """
    if not is_stream(path):
        return path
    if str(path) == "-":
        path = Path(STDIN[1])
    name = str(path)
    try:
        found = path.stat()
    except OSError as error:  # closed
        raise InputError(Mistake(name, "", error.strerror, what)) from None
    key = (found.st_dev, found.st_ino)
    if key in _copies:
        return _copies[key]
    if not (stat.S_ISFIFO(found.st_mode) or stat.S_ISREG(found.st_mode)):
        kind = "a terminal" if _is_terminal(path) else "a device"
        raise InputError(Mistake(name, "", kind, f"{what}, or a pipe that holds one"))
    folder = tempfile.mkdtemp(prefix="optmodels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = Path(folder) / (path.name if path.suffix else "stdin" if name in STDIN else "stream")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            with copy.open("wb") as to:
                _copy(handle, to, name, what)
        finally:
            os.close(handle)
    except OSError as error:
        if error.filename == str(copy) or error.filename is None:
            raise not_written(copy, error, "a folder for temporary files") from None
        raise InputError(Mistake(name, "", error.strerror, what)) from None
    _copies[key] = copy
    return copy


def _is_terminal(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.isatty(handle)
    finally:
        os.close(handle)


def _copy(handle: int, to: IO[bytes], name: str, what: str) -> None:
    """Copy a pipe to its end. Reading gives nothing while no writer has it open, and waits else."""
    begun, length, told = time.monotonic(), 0, False
    while True:
        try:
            data = os.read(handle, _CHUNK)
        except BlockingIOError:  # a writer has it open and has written nothing yet
            select.select([handle], [], [], 1.0)
            begun = time.monotonic()
            continue
        if not data:
            if length or time.monotonic() - begun > PATIENCE_S or not _has_name(name):
                break
            if not told and time.monotonic() - begun > 1.0:
                told = True
                sys.stderr.write(f"waiting {PATIENCE_S:g} s for a writer of {name!r}\n")
            time.sleep(0.02)
            continue
        length += len(data)
        if length > MAX_BYTES:
            raise InputError(Mistake(name, "", "a longer stream", f"at most {MAX_BYTES // 2**30} GiB"))
        to.write(data)
    if not length:
        found = f"nothing within {PATIENCE_S:g} s" if _has_name(name) else "nothing"
        raise InputError(Mistake(name, "", found, f"{what}, written to this pipe"))


def _has_name(name: str) -> bool:
    """Whether a pipe has a name in the file system, so that a writer may still come."""
    return name not in STDIN and stat.S_ISFIFO(os.lstat(name).st_mode)
