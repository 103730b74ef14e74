"""Plan LLM serving by mathematical optimisation, with a certificate.

>>> import optmodels
>>> result = optmodels.solve("instances/cost_efficiency/table_ix/batch-budget-1.0.yaml")
>>> result.status, round(result.plan["usd_per_hour"], 3)

Every verb of the command line is a function here, with the same names and options; `load` reads an instance. Wrong
input raises `InputError`; a result that cannot be written raises `NotWrittenError`, which carries it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from optmodels.api import VERBS

if TYPE_CHECKING:
    from optmodels.api.attribute import attribute
    from optmodels.api.backtest import backtest
    from optmodels.api.batch_limits import batch_limits
    from optmodels.api.calibrate import calibrate
    from optmodels.api.check import check
    from optmodels.api.compare import compare
    from optmodels.api.evaluate import evaluate
    from optmodels.api.explain import explain
    from optmodels.api.export import export
    from optmodels.api.fewest_gpus import fewest_gpus
    from optmodels.api.list import list  # noqa: A004
    from optmodels.api.max_rate import max_rate
    from optmodels.api.measure import measure
    from optmodels.api.migrate import migrate
    from optmodels.api.new import new
    from optmodels.api.operating_points import operating_points
    from optmodels.api.plan import plan
    from optmodels.api.prefix_hits import prefix_hits
    from optmodels.api.replan import replan
    from optmodels.api.replay import replay
    from optmodels.api.report import report
    from optmodels.api.rows_to_measure import rows_to_measure
    from optmodels.api.schema import schema
    from optmodels.api.simulate import simulate
    from optmodels.api.solve import solve
    from optmodels.api.stress import stress
    from optmodels.api.sweep import sweep
    from optmodels.api.tables import tables
    from optmodels.errors import InputError, NotWrittenError
    from optmodels.loading import load

__all__ = [
    "InputError", "NotWrittenError",
    "attribute", "backtest", "batch_limits", "calibrate", "check", "compare", "evaluate", "explain", "export",
    "fewest_gpus", "list", "load", "max_rate", "measure", "migrate", "new", "operating_points", "plan", "prefix_hits",
    "replan", "replay", "report", "rows_to_measure", "schema", "simulate", "solve", "stress", "sweep", "tables",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import optmodels`` stays light."""
    if name == "load":
        return import_module("optmodels.loading").load
    if name in ("InputError", "NotWrittenError"):
        return getattr(import_module("optmodels.errors"), name)
    if name in VERBS:
        return getattr(import_module(f"optmodels.api.{name}"), name)
    raise AttributeError(f"module 'optmodels' has no attribute {name!r}")


def __dir__() -> Sequence[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
