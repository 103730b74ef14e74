"""Stopping a solve from elsewhere: Ctrl-C, or an event that belongs to one call, not to the process.

The event travels in a context variable, so that every solver run inside a call sees it, in whatever formulation, and
other threads and tasks do not.
"""

from __future__ import annotations

import signal
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


@contextmanager
def caught_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a flag (a second one interrupts as usual); only possible in the main thread.

    Inside another one the flag is that one's: a method of many solves catches Ctrl-C once, between its solves too.
    """
    around = _FLAG.get()
    if around is not None:
        yield around
        return
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    previous = signal.getsignal(signal.SIGINT)

    def handler(signum: int, frame: Any) -> None:
        if flag.is_set():
            signal.signal(signal.SIGINT, previous)
            raise KeyboardInterrupt
        flag.set()

    signal.signal(signal.SIGINT, handler)
    token = _FLAG.set(flag)
    try:
        yield flag
    finally:
        _FLAG.reset(token)
        signal.signal(signal.SIGINT, previous)
