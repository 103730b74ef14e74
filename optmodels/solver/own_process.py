"""A call in a process of its own, which can be ended: HiGHS may loop without a look at the clock or at Ctrl-C.

The process is another Python with this one's `sys.path`, not a fork (HiGHS must not be forked after it has run) and not
one of `multiprocessing`'s, which would run the caller's main module again. One that has answered waits for the next
call, as starting it takes longer than most calls.
"""

from __future__ import annotations

import atexit
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, TypeVar

from optmodels.errors import SolverError
from optmodels.solver.cancel import cancelled, caught_interrupt

LOOK_S = 0.02
SIZE = 8  # bytes that state how long a call is
T = TypeVar("T")
START = "import sys; sys.path[:] = {path!r}; from optmodels.solver.own_process import _serve; _serve()"


def possible() -> bool:
    """Whether another Python like this one can be started: a frozen application would start itself."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


class EndedError(Exception):
    """The call was ended: its time was over, or it was cancelled."""


class _Child:
    """Another Python that answers calls, one at a time."""

    def __init__(self, path: list[str]) -> None:
        self.path, self.of = path, os.getpid()
        self.listens: threading.Thread | None = None
        self.process = subprocess.Popen(  # noqa: S603 - this Python
            [sys.executable, "-c", START.format(path=path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,  # Ctrl-C is ours, and on Windows, which has no sessions:
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )  # fmt: skip

    def usable(self) -> bool:
        """Whether it is ours (not of a process that this one was forked from), like us, and still there."""
        return self.of == os.getpid() and self.path == sys.path and self.process.poll() is None

    def answer(self, asked: bytes, until: float) -> Any:
        """Whether the call returned, and its value or exception.

        Raises:
            EndedError: the time was over, or it was cancelled.
            SolverError: the process died.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        said, stdout = list[Any](), self.process.stdout

        def listen() -> None:
            with suppress(EOFError, pickle.UnpicklingError):
                said.append(pickle.load(stdout))  # noqa: S301 - from our own process

        self.listens = threading.Thread(target=listen, daemon=True)
        self.listens.start()
        with suppress(BrokenPipeError):
            self.process.stdin.write(len(asked).to_bytes(SIZE, "little") + asked)
            self.process.stdin.flush()  # and stays open: the process ends when no holder is left
        while self.listens.is_alive():
            if cancelled() or time.monotonic() > until:
                raise EndedError
            self.listens.join(LOOK_S)
        if not said:
            raise SolverError("the process of a solver died: out of memory, or killed")
        return said[0]

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        if self.listens is not None:
            self.listens.join()
        self.process.communicate()


_waiting: list[_Child] = []


@atexit.register
def _end_all() -> None:
    while _waiting:
        child = _waiting.pop()
        if child.of == os.getpid():
            child.end()


def _taken() -> _Child:
    while _waiting:
        child = _waiting.pop()
        if child.usable():
            return child
        if child.of == os.getpid():
            child.end()
    return _Child(list(sys.path))


def in_own_process(call: Callable[..., T], *arguments: object, seconds: float | None) -> T:
    """The return value of a module's function there.

    Args:
        call, arguments: pickled.
        seconds: until the process is ended; None: until the call returns, or it is cancelled.

    Raises:
        EndedError: it was ended.
        SolverError: the process died.
        Exception: the call's own exception.
    """
    until = float("inf") if seconds is None else time.monotonic() + seconds
    asked = pickle.dumps((call, arguments))
    with caught_interrupt():
        child = _taken()
        try:
            returned, value = child.answer(asked, until)
        except BaseException:
            child.end()
            raise
        _waiting.append(child)
    if not returned:
        raise value
    answer: T = value
    return answer


def _serve() -> None:
    """The other side: calls, until no more can be made."""
    asked, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed is no answer
    os.dup2(2, 0)
    calls = queue.SimpleQueue[bytes]()
    threading.Thread(target=_hear, args=(asked, calls), daemon=True).start()
    while True:
        call, arguments = pickle.loads(calls.get())  # noqa: S301 - from the process that started this one
        try:
            answer = True, call(*arguments)
        except Exception as error:
            answer = False, error
        pickle.dump(answer, out)
        out.flush()


def _hear(asked: IO[bytes], calls: queue.SimpleQueue[bytes]) -> None:
    while size := asked.read(SIZE):
        calls.put(asked.read(int.from_bytes(size, "little")))
    os._exit(1)
