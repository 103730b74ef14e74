"""Compiled models by any solver that Pyomo knows and finds: CBC, GLPK, SCIP, Gurobi, CPLEX, Xpress and so on.

Each is asked for the gap that was asked for (their own defaults differ, and Gurobi's of 10⁻⁴ is no proof); the result
that it answers is mapped to the words of a `Session`. Its bound stands on its word, its point is verified by the one
who asks.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from optmodels.errors import InputError, Mistake, SolverError
from optmodels.solver.compile import Compiled, paused_gc
from optmodels.solver.otherwise import Way
from optmodels.solver.scip import OtherRun, installed
from optmodels.solver.session import Ended, Limit

_ENDED: dict[str, Ended] = {
    "optimal": "optimal", "globallyOptimal": "optimal", "infeasible": "infeasible", "unbounded": "unbounded",
    "infeasibleOrUnbounded": "unbounded",
}  # fmt: skip
_LIMITS: dict[str, Limit] = {
    "maxTimeLimit": "time", "maxIterations": "time", "maxEvaluations": "time", "feasible": "gap",
    "minFunctionValue": "gap", "userInterrupt": "interrupt", "resourceInterrupt": "memory",
}  # fmt: skip
# The gap's option, and options that make a proof: no absolute gap, one thread, a seed. By the beginning of the name.
_OPTIONS: dict[str, tuple[str, dict[str, float], str | None]] = {
    "cbc": ("ratioGap", {"allowableGap": 0.0}, "randomCbcSeed"),
    "glpk": ("mipgap", {}, "seed"),
    "gurobi": ("MIPGap", {"MIPGapAbs": 0.0, "Threads": 1, "IntFeasTol": 1e-9, "FeasibilityTol": 1e-9}, "Seed"),
    "cplex": ("mip_tolerances_mipgap", {"mip_tolerances_absmipgap": 0.0, "threads": 1}, "randomseed"),
    "scip": ("limits/gap", {}, "randomization/randomseedshift"),
    "xpress": ("miprelstop", {"mipabsstop": 0.0, "threads": 1}, "randomseed"),
    "highs": ("mip_rel_gap", {"mip_abs_gap": 0.0, "threads": 1}, "random_seed"),
}


def known() -> list[str]:
    """Names of Pyomo's solvers, sorted."""
    from pyomo.environ import SolverFactory  # which registers them

    return sorted(name for name in SolverFactory if not name.startswith("_"))


def named(name: str) -> Way:
    """How runs are made by the solver that a user names.

    Args:
        name: ``highs``; ``scip``, by its own package where that is installed; or another name that Pyomo has.

    Raises:
        InputError: Pyomo does not know it, does not find it, or it solves no mixed-integer linear programs.
    """
    if name == "highs":
        return Way()
    if name == "scip" and installed():
        return Way("SCIP")
    names = known()
    if name not in names:
        raise InputError(Mistake(None, "--solver", name, f"highs, or one that Pyomo knows: {', '.join(names)}"))
    solver = _made(name)
    if hasattr(solver, "has_capability") and not solver.has_capability("integer"):
        raise InputError(Mistake(None, "--solver", name, "a solver of mixed-integer linear programs"))
    with _quiet():
        try:
            there = bool(solver.available(exception_flag=False))
        except Exception:  # of a solver's own Python package, half installed
            there = False
    if not there:
        expected = "a solver that is installed: Pyomo knows this one and finds neither its program nor its package"
        raise InputError(Mistake(None, "--solver", name, expected))
    return Way(name)


def run_pyomo(name: str, model: Compiled, seconds: float | None, gap: float, seed: int) -> OtherRun:
    """Minimise the first objective by the solver of that name.

    Args:
        name: name of a solver in Pyomo that `named` accepts.
        model: scaled, as HiGHS would get it.
        seconds: limit; None: none.
        gap: relative, at which to stop.
        seed: random seed of the solver's random numbers, where it has an option for it.

    Raises:
        SolverError: it failed, or Pyomo did with it.
    """
    problem = _stated(model)
    if problem is None:
        return OtherRun("infeasible", message="an empty row cannot hold")
    solver = _made(name)
    family = next((key for key in _OPTIONS if name.removeprefix("appsi_").startswith(key)), None)
    if family is not None:
        gap_option, fixed, seed_option = _OPTIONS[family]
        solver.options.update({gap_option: gap} | fixed | ({seed_option: seed} if seed_option and seed else {}))
    with _quiet():
        try:
            limit_s = {} if seconds is None else {"timelimit": max(1, math.ceil(seconds))}  # GLPK takes whole seconds
            results = solver.solve(problem, load_solutions=False, **limit_s)
            _load(solver, problem, results)
        except Exception as error:  # whatever the solver's own package raises
            raise SolverError(f"{name}, asked through Pyomo, failed: {error}") from error
    said = str(results.solver.termination_condition)
    limit = _LIMITS.get(said)
    ended: Ended = _ENDED.get(said, "limit" if limit else "error")
    values = [v.value for v in problem.x.values()]
    point = None if ended in ("infeasible", "unbounded") or None in values else np.array(values, dtype=float)
    bound = _number(results.problem.lower_bound) if ended in ("optimal", "limit") else None
    if ended == "optimal" and bound is None and point is not None:
        bound = float(model.costs[0] @ point + model.offsets[0])  # it states that nothing is better
    if ended == "error" and point is not None:
        ended, limit = "limit", "interrupt"
    return OtherRun(ended, limit, f"{name}: {said}", point, bound)


def _made(name: str) -> Any:
    from pyomo.environ import SolverFactory

    with _quiet():
        return SolverFactory(name)


def _stated(model: Compiled) -> Any:
    """The model as Pyomo's; None where a row without columns cannot hold."""
    from pyomo.core.expr import LinearExpression
    from pyomo.environ import Binary, ConcreteModel, Constraint, Integers, Objective, Reals, Var

    lower, upper = model.lower.tolist(), model.upper.tolist()
    unit = model.integer & (model.lower == 0) & (model.upper == 1)
    domains = [Binary if b else Integers if i else Reals for b, i in zip(unit, model.integer, strict=True)]
    with paused_gc():
        made = ConcreteModel()
        made.x = Var(
            range(len(lower)), domain=lambda _, j: domains[j], bounds=lambda _, j: (_end(lower[j]), _end(upper[j]))
        )
        x = list(made.x.values())
        cost = model.costs[0]
        used = np.flatnonzero(cost)
        made.goal = Objective(expr=LinearExpression(
            constant=float(model.offsets[0]), linear_coefs=cost[used].tolist(), linear_vars=[x[j] for j in used]
        ))  # fmt: skip
        A = model.A.tocsr()
        rows = {}
        for i, (low, high) in enumerate(zip(model.row_lower.tolist(), model.row_upper.tolist(), strict=True)):
            at = slice(A.indptr[i], A.indptr[i + 1])
            if at.start == at.stop:
                if not low <= 0 <= high:
                    return None
            elif np.isfinite(low) or np.isfinite(high):
                body = LinearExpression(linear_coefs=A.data[at].tolist(), linear_vars=[x[j] for j in A.indices[at]])
                rows[i] = (low, body) if low == high else (_end(low), body, _end(high))
        made.rows = Constraint(list(rows), rule=lambda _, i: rows[i])
    return made


def _load(solver: Any, problem: Any, results: Any) -> None:
    """Put the best point into the model, if there is one; older and newer interfaces of Pyomo keep it in two places."""
    if len(results.solution) > 0:
        problem.solutions.load_from(results)
    elif hasattr(solver, "load_vars") and str(results.solver.termination_condition) not in ("infeasible", "unbounded"):
        try:
            solver.load_vars()
        except RuntimeError:  # none found
            return


def _number(value: Any) -> float | None:
    number = None if value is None else float(getattr(value, "value", value))
    return number if number is not None and abs(number) < 1e20 else None


def _end(bound: float) -> float | None:
    return float(bound) if np.isfinite(bound) else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Pyomo's warnings about statuses repeat the mapping here."""
    logger = logging.getLogger("pyomo")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
