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
from typing import TypeVar

from optmodels.errors import SolverError
from optmodels.solver.cancel import cancelled, caught_interrupt

LOOK_S = 0.02
T = TypeVar("T")
START = "import sys; sys.path[:] = {path!r}; from optmodels.solver.apart import _serve; _serve()"


class EndedError(Exception):
    """The call was ended: its time was over, or somebody cancelled."""


def called_apart(call: Callable[..., T], *arguments: object, seconds: float | None) -> T:
    """What a function of a module returns there.

    Args:
        call, arguments: pickled.
        seconds: until the process is ended; None: until the call returns, or somebody cancels.

    Raises:
        EndedError: it was ended.
        SolverError: the process died.
        Exception: what the call raises.
    """
    began = time.monotonic()
    with caught_interrupt(), subprocess.Popen(  # noqa: S603 - this Python
        [sys.executable, "-c", START.format(path=sys.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, start_new_session=True,  # Ctrl-C is ours
    ) as child:  # fmt: skip
        assert child.stdin is not None and child.stdout is not None
        said: list[bytes] = []
        reads = threading.Thread(target=lambda: said.append(child.stdout.read()), daemon=True)  # type: ignore[union-attr]
        reads.start()
        try:
            pickle.dump((call, arguments), child.stdin)
            child.stdin.flush()  # and stays open: the process ends when nobody holds it any more
        except BrokenPipeError:
            pass
        while reads.is_alive():
            if cancelled() or (seconds is not None and time.monotonic() - began > seconds):
                child.kill()
                raise EndedError
            reads.join(LOOK_S)
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
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed is no answer
    call, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
    threading.Thread(target=_end_with_caller, daemon=True).start()
    try:
        answer = True, call(*arguments)
    except Exception as error:
        answer = False, error
    pickle.dump(answer, out)
    out.flush()
    os._exit(0)


def _end_with_caller() -> None:
    sys.stdin.buffer.read()
    os._exit(1)
