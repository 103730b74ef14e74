"""Keep scipy and Pyomo from importing, for every command, modules that nothing of ours uses.

*Pyomo*'s optional-dependency hook loads scipy.stats, .integrate and .spatial (over a second) as soon as anybody touches
scipy; a linear compile needs scipy.sparse alone. *scipy* copies every public name of numpy, and thereby loads numpy's
test tools, f2py and masked arrays (a tenth of a second), which later imports get all the same. Where these private
hooks are absent or scipy is already loaded, nothing changes but start-up time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import numpy as np

UNUSED = {"ctypeslib", "f2py", "ma", "matlib", "polynomial", "random", "testing"}
HOOKS = "pyomo.common.dependencies"


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


def _unhook(dependencies: Any) -> None:
    """Remove the hook that Pyomo runs when scipy is first used."""
    if hasattr(dependencies.scipy_available, "_callback"):
        dependencies.scipy_available._callback = None
        getattr(dependencies.DeferredImportCallbackFinder, "_callbacks", {}).pop("scipy", None)


class _Later(MetaPathFinder, Loader):
    """Pyomo, once it is imported: it sees no scipy, which it would use at once, and then has no hook for it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Of the module with the hooks, whose loader then is this object; of no other."""
        if name != HOOKS:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As its own loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As its own loader does, next to a scipy that is not loaded yet."""
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        scipy = sys.modules.pop("scipy")
        try:
            self.loader.exec_module(module)
        finally:
            sys.modules["scipy"] = scipy
        _unhook(module)


if "scipy" not in sys.modules:
    if HOOKS in sys.modules:
        _unhook(sys.modules[HOOKS])
    else:
        sys.meta_path.insert(0, _Later())
    _without_unused()
