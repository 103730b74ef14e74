"""Pyomo → standard form → HiGHS, in one pass, with limits, bounds and an honest status."""

from optmodels.solver import light_imports  # noqa: F401 - before anything imports scipy
from optmodels.solver.compile import Compiled, InfeasibleModelError, compile_model, paused_gc
from optmodels.solver.highs import Report, solve_compiled
from optmodels.solver.model import solve_model
from optmodels.solver.session import Event, Session, Settings

__all__ = [
    "Compiled",
    "Event",
    "InfeasibleModelError",
    "Report",
    "Session",
    "Settings",
    "compile_model",
    "paused_gc",
    "solve_compiled",
    "solve_model",
]
