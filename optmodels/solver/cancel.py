"""Stopping a solve from elsewhere: Ctrl-C, SIGTERM, or an event that belongs to one call, not to the process.

The event travels in a context variable, so that every solver run inside a call sees it, in whatever formulation, and
other threads and tasks do not.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_EVENT: ContextVar[threading.Event | None] = ContextVar("optmodels_cancel", default=None)
_FLAG: ContextVar[threading.Event | None] = ContextVar("optmodels_interrupt", default=None)


@contextmanager
def cancellable(event: threading.Event | None) -> Iterator[None]:
    """Solver runs inside stop soon after the event is set, as for Ctrl-C: with their incumbent, limit ``interrupt``."""
    token = _EVENT.set(event)
    try:
        yield
    finally:
        _EVENT.reset(token)


def current() -> threading.Event | None:
    """The event of this call, if it has one."""
    return _EVENT.get()


def cancelled() -> bool:
    """Whether this call is to stop."""
    return any(event is not None and event.is_set() for event in (_EVENT.get(), _FLAG.get()))


def repeat_dropped_interrupts() -> None:
    """Raise a Ctrl-C again that compiled code dropped, as pydantic's does where it writes out a union of models.

    Python reports such an exception to `sys.unraisablehook`, which cannot raise it: a thread does, a moment later.
    """
    usual = sys.unraisablehook
    waiting: list[threading.Timer] = []

    def hook(dropped: Any) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            usual(dropped)
        elif not any(t.is_alive() for t in waiting):
            waiting[:] = [threading.Timer(0.01, _interrupt_main)]
            waiting[0].start()

    sys.unraisablehook = hook


def _interrupt_main() -> None:
    if hasattr(signal, "pthread_kill"):  # ends waiting, too
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:  # Windows
        _thread.interrupt_main()


@contextmanager
def caught_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C or SIGTERM into a flag (a second one ends as usual); only possible in the main thread.

    A SIGTERM with a handler of its own keeps it, as in the processes of a sweep; an ignored SIGINT stays ignored, as in
    a script's background.
    Inside another one the flag is that one's: a method of many solves catches signals once, between its solves too.
    """
    around = _FLAG.get()
    if around is not None:
        yield around
        return
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    usual = (signal.SIG_DFL, signal.default_int_handler)
    previous = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    if previous[signal.SIGTERM] not in usual:
        del previous[signal.SIGTERM]
    if previous[signal.SIGINT] == signal.SIG_IGN:
        del previous[signal.SIGINT]

    def handler(signum: int, frame: Any) -> None:
        if flag.is_set():
            signal.signal(signum, previous[signal.Signals(signum)])
            signal.raise_signal(signum)
        flag.set()

    for caught in previous:
        signal.signal(caught, handler)
    token = _FLAG.set(flag)
    try:
        yield flag
    finally:
        _FLAG.reset(token)
        for caught, before in previous.items():
            signal.signal(caught, before)
