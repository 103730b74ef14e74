"""Plan LLM serving by mathematical optimisation, with a certificate.

>>> import optmodels
>>> result = optmodels.solve("instances/cost_efficiency/table_ix/batch-budget-1.0.yaml")
>>> result.status, round(result.plan["usd_per_hour"], 3)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optmodels.api import (
        check,
        compare,
        evaluate,
        explain,
        export,
        fewest_gpus,
        listing,
        new,
        new_formulation,
        replay,
        report,
        save,
        simulate,
        solve,
        tables,
    )
    from optmodels.loading import load
    from optmodels.study.backtest import backtest
    from optmodels.study.max_rate import max_rate
    from optmodels.study.stress import stress
    from optmodels.study.sweep import sweep

_ELSEWHERE = {"load": "optmodels.loading"} | {
    name: f"optmodels.study.{name}" for name in ("backtest", "max_rate", "stress", "sweep")
}

__all__ = [
    "backtest", "check", "compare", "evaluate", "explain", "export", "fewest_gpus", "listing", "load",
    "max_rate", "new", "new_formulation", "prefix_hits", "replay", "report", "save", "simulate", "solve", "stress",
    "sweep", "tables",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import optmodels`` stays light."""
    if name in __all__:
        return getattr(import_module(_ELSEWHERE.get(name, "optmodels.api")), name)
    raise AttributeError(f"module 'optmodels' has no attribute {name!r}")
