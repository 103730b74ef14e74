"""Plan LLM serving by mathematical optimisation, with a certificate.

>>> import optmodels
>>> result = optmodels.solve("instances/cost_efficiency/table_ix/batch-budget-1.0.yaml")
>>> result.status, round(result.plan["usd_per_hour"], 3)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optmodels.api import check, compare, explain, listing, new, report, save, solve, tables
    from optmodels.problem.load import load
    from optmodels.study.sweep import sweep

_API = "optmodels.api"
_HOME = {
    "check": _API,
    "compare": _API,
    "explain": _API,
    "listing": _API,
    "load": "optmodels.problem.load",
    "new": _API,
    "report": _API,
    "save": _API,
    "solve": _API,
    "sweep": "optmodels.study.sweep",
    "tables": _API,
}

__all__ = [
    "check",
    "compare",
    "explain",
    "listing",
    "load",
    "new",
    "report",
    "save",
    "solve",
    "sweep",
    "tables",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import optmodels`` stays light."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'optmodels' has no attribute {name!r}")
