"""Runs by another solver, or by HiGHS in another way than usual, for the one who doubts an answer.

The choice travels in a context variable: the methods of formulations do not know it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Way:
    """How every run inside is made.

    Attributes:
        solver: solver of compiled models (`solve_compiled`): HiGHS; SCIP, through its own package; or any name that
            `pyomo_solver.named` lets pass. A kept `Session` is always HiGHS'.
        seed: added to the settings' seed.
        options: options of HiGHS, over the settings' options.
        said: how each run by another solver ended, in its words; filled as they are made.
    """

    solver: str = "HiGHS"
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)


_WAY: ContextVar[Way] = ContextVar("optmodels_way", default=Way())  # noqa: B039 - frozen


@contextmanager
def otherwise(way: Way) -> Iterator[None]:
    """Runs inside are made that way."""
    token = _WAY.set(way)
    try:
        yield
    finally:
        _WAY.reset(token)


def way() -> Way:
    """How runs are made here."""
    return _WAY.get()


def as_usual() -> bool:
    """Whether no other solver, seed or options were asked for."""
    now = way()
    return now.solver == "HiGHS" and not now.seed and not now.options
