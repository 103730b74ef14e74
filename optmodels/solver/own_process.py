"""A call in a process of its own, which can be ended: HiGHS may loop without a look at the clock or at Ctrl-C.

The process is another Python with this one's `sys.path`, not a fork (HiGHS must not be forked after it has run) and not
one of `multiprocessing`'s, which would run the caller's main module again.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, TypeVar

from optmodels.errors import SolverError
from optmodels.solver.cancel import cancelled, caught_interrupt

LOOK_S = 0.02
T = TypeVar("T")
START = "import sys; sys.path[:] = {path!r}; from optmodels.solver.own_process import _serve; _serve()"


def possible() -> bool:
    """Whether another Python like this one can be started: a frozen application would start itself."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


class EndedError(Exception):
    """The call was ended: its time was over, or somebody cancelled."""


def in_own_process(call: Callable[..., T], *arguments: object, seconds: float | None) -> T:
    """What a function of a module returns there.

    Args:
        call, arguments: pickled.
        seconds: until the process is ended; None: until the call returns, or somebody cancels.

    Raises:
        EndedError: it was ended.
        SolverError: the process died.
        Exception: what the call raises.
    """
    began, asked = time.monotonic(), pickle.dumps((call, arguments))
    with caught_interrupt(), subprocess.Popen(  # noqa: S603 - this Python
        [sys.executable, "-c", START.format(path=sys.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, start_new_session=True,  # Ctrl-C is ours, and on Windows, which has no sessions:
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    ) as child:  # fmt: skip
        assert child.stdin is not None and child.stdout is not None
        said, listen = list[bytes](), child.stdout.read
        listens = threading.Thread(target=lambda: said.append(listen()), daemon=True)
        listens.start()
        try:
            child.stdin.write(asked)
            child.stdin.flush()  # and stays open: the process ends when nobody holds it any more
            while listens.is_alive():
                if cancelled() or (seconds is not None and time.monotonic() - began > seconds):
                    raise EndedError
                listens.join(LOOK_S)
        except BrokenPipeError:
            pass
        finally:
            child.kill()
            listens.join()
    try:
        returned, value = pickle.loads(said[0])  # noqa: S301 - from our own process
    except (EOFError, pickle.UnpicklingError):
        raise SolverError("the process of a solver died: out of memory, or killed") from None
    if not returned:
        raise value
    answer: T = value
    return answer


def _serve() -> None:
    """The other side: one call."""
    asked, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed is no answer
    os.dup2(2, 0)
    call, arguments = pickle.load(asked)  # noqa: S301 - from the process that started this one
    threading.Thread(target=_end_with_caller, args=(asked,), daemon=True).start()
    try:
        answer = True, call(*arguments)
    except Exception as error:
        answer = False, error
    pickle.dump(answer, out)
    out.flush()
    os._exit(0)


def _end_with_caller(asked: IO[bytes]) -> None:
    asked.read()
    os._exit(1)
