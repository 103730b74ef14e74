"""The functions of scipy.special, which adds a note to each docstring when imported: longer than all else. Not here."""

from __future__ import annotations

from types import ModuleType
from typing import Any

try:
    from scipy._lib import _array_api
except ImportError:  # of another version, which may need no help
    _array_api = ModuleType("none")


class _Unread(dict[str, list[str]]):
    """A docstring that scipy would parse and add a note to, as it is."""

    def __init__(self, function: Any) -> None:
        super().__init__(Notes=[])
        self.text = function.__doc__

    def __str__(self) -> str:
        return f"\n{self.text}"


_read = getattr(_array_api, "FunctionDoc", None)
try:
    setattr(_array_api, "FunctionDoc", _Unread)  # noqa: B010 - not for type checkers
    from scipy.special import (
        bdtr,
        bdtrc,
        betainc,
        betaln,
        btdtrib,
        gammainc,
        gammaincc,
        gammaincinv,
        gammaln,
        lambertw,
        ndtr,
        ndtri,
        wrightomega,
    )
finally:
    setattr(_array_api, "FunctionDoc", _read)  # noqa: B010

__all__ = [
    "bdtr", "bdtrc", "betainc", "betaln", "btdtrib", "gammainc", "gammaincc", "gammaincinv", "gammaln", "lambertw",
    "ndtr", "ndtri", "wrightomega",
]  # fmt: skip
