"""Keep scipy and Pyomo from importing, for every command, what nothing of ours uses.

*Pyomo*'s optional-dependency hook loads scipy.stats, .integrate and .spatial (over a second) as soon as anybody touches
scipy; a linear compile needs scipy.sparse alone. *scipy* copies every public name of numpy, and thereby loads numpy's
test tools, f2py and masked arrays (a tenth of a second), which later imports get all the same. Where these private
hooks are absent or scipy is already loaded, nothing changes but start-up time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

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


if "scipy" not in sys.modules:
    from pyomo.common import dependencies

    if hasattr(dependencies.scipy_available, "_callback"):
        dependencies.scipy_available._callback = None
        getattr(dependencies.DeferredImportCallbackFinder, "_callbacks", {}).pop("scipy", None)
    _without_unused()
