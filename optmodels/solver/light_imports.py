"""Keep scipy from importing, for every command, modules that nothing of ours uses.

It copies every public name of numpy, and thereby loads numpy's test tools, f2py and masked arrays (a tenth of a
second), which later imports get all the same. Where scipy is already loaded, nothing changes but start-up time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

UNUSED = {"ctypeslib", "f2py", "ma", "matlib", "polynomial", "random", "testing"}


def _without_unused() -> None:
    """Import scipy.sparse while numpy does not list the submodules that it would load."""
    names, listed = np.__all__, np.__dir__

    def kept(public: Iterable[str]) -> list[str]:
        return [name for name in public if name not in UNUSED or f"numpy.{name}" in sys.modules]

    try:
        setattr(np, "__all__", kept(names))  # noqa: B010 - not for type checkers
        setattr(np, "__dir__", lambda: kept(listed()))  # noqa: B010
        import scipy.sparse  # noqa: F401
    finally:
        setattr(np, "__all__", names)  # noqa: B010
        setattr(np, "__dir__", listed)  # noqa: B010


def graphs() -> ModuleType:
    """scipy.sparse.csgraph, and scipy's linear algebra not before a Laplacian is wanted as an operator."""
    name = "scipy.sparse.linalg"
    if name in sys.modules or "scipy.sparse.csgraph" in sys.modules:
        return import_module("scipy.sparse.csgraph")

    def operator(*arguments: Any, **named: Any) -> Any:
        return import_module(name).LinearOperator(*arguments, **named)

    def other(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        sys.modules.pop(name, None)
        return getattr(import_module(name), wanted)

    later = ModuleType(name)
    later.__dict__.update(LinearOperator=operator, __getattr__=other)
    sys.modules[name] = later
    try:
        return import_module("scipy.sparse.csgraph")
    finally:
        if sys.modules.get(name) is later:
            del sys.modules[name]


if "scipy" not in sys.modules:
    _without_unused()
