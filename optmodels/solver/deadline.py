"""The time limit of one call next to the solve itself: reports, shadow prices and reasons that cost solves of their
own.

It travels in a context variable, as `cancel`'s event does, so that a formulation's report need not be told. Work that
there is no time for is left out and named.
"""

from __future__ import annotations

import math
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from optmodels.solver.cancel import cancelled

OUT_OF_SAMPLE = "the replay out of sample"
OVER_TIME = "GPUs over time"
OTHER_END = "the plan at the other end of the latencies' interval"
HEADROOM = "the headroom"


class _Everything:
    def __contains__(self, _what: object) -> bool:
        return True


EVERYTHING: Container[str] = _Everything()


@dataclass
class _Deadline:
    until: float  # of `time.perf_counter`
    without: Container[str] = ()
    left_out: list[str] = field(default_factory=list)

    def leave_out(self, what: str) -> None:
        if what not in self.left_out:
            self.left_out.append(what)


_DEADLINE: ContextVar[_Deadline | None] = ContextVar("optmodels_deadline", default=None)


@contextmanager
def deadline(seconds: float | None, without: Container[str] = ()) -> Iterator[list[str]]:
    """Work inside has this many seconds from now (None: no limit), and nothing that is named in `without`.

    Yields the parts left out, in words.
    """
    found = _Deadline(time.perf_counter() + (math.inf if seconds is None else seconds), without)
    token = _DEADLINE.set(found)
    try:
        yield found.left_out
    finally:
        _DEADLINE.reset(token)


def seconds_for(what: str, most: float, least: float = 0.0) -> float:
    """Seconds that something next to the answer may take, at most `most`; 0: none, and it is named as left out.

    What takes `least` seconds or more has none where fewer are left.

    None once the call is to stop.
    """
    found = _DEADLINE.get()
    if found is None:
        return most
    left = found.until - time.perf_counter()
    if not wanted(what):
        return 0.0
    if left <= 0 or left < least:
        found.leave_out(what)
        return 0.0
    return min(most, left)


def leave_out(what: str) -> None:
    """Name something that the clock of a method cut short or left out."""
    if (found := _DEADLINE.get()) is not None:
        found.leave_out(what)


def wanted(what: str) -> bool:
    """Whether something next to the answer is done at all; if not, it is named as left out.

    Enough for work as short as a check, and done whatever the time.
    """
    found = _DEADLINE.get()
    if found is None or not (what in found.without or cancelled()):
        return True
    found.leave_out(what)
    return False
