"""Plan LLM serving by mathematical optimisation, with a certificate.

>>> import optmodels
>>> result = optmodels.solve("instances/cost_efficiency/table_ix/batch-budget-1.0.yaml")
>>> result.status, round(result.plan["usd_per_hour"], 3)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optmodels.api import check, compare, export, listing, new, report, save, solve, tables
    from optmodels.problem.load import load
    from optmodels.study.sweep import sweep

__all__ = [
    "check", "compare", "export", "listing", "load", "new", "report", "save", "solve", "sweep", "tables",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import optmodels`` stays light."""
    if name == "load":
        from optmodels.problem.load import load

        return load
    if name == "sweep":
        from optmodels.study.sweep import sweep

        return sweep
    if name in __all__:
        from optmodels import api

        return getattr(api, name)
    raise AttributeError(f"module 'optmodels' has no attribute {name!r}")
