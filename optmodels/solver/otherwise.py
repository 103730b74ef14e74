"""Runs by another solver, or by HiGHS in another way than usual, for whoever doubts an answer.

The choice travels in a context variable: the methods of formulations know nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Way:
    """How every run inside is made.

    Attributes:
        solver: of compiled models (`solve_compiled`); a kept `Session` is always HiGHS'.
        seed: added to that of the settings.
        options: of HiGHS, over those of the settings.
    """

    solver: Literal["HiGHS", "SCIP"] = "HiGHS"
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


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
