"""Compiled models by SCIP, which shares no code with HiGHS; needs the extra ``prove`` (PySCIPOpt)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from optmodels.arrays import Array
from optmodels.solver.compile import Compiled
from optmodels.solver.session import Ended, Limit

TOLERANCE = 1e-9  # of rows and reduced costs; SCIP's own is 10⁻⁶ of a row's size
_ENDED: dict[str, Ended] = {
    "optimal": "optimal", "infeasible": "infeasible", "unbounded": "unbounded", "inforunbd": "unbounded",
}  # fmt: skip
_LIMITS: dict[str, Limit] = {
    "timelimit": "time", "gaplimit": "gap", "nodelimit": "time", "memlimit": "memory", "userinterrupt": "interrupt",
}  # fmt: skip


class OtherRun(NamedTuple):
    """One run of another solver than HiGHS.

    Attributes:
        ended: how it ended.
        limit: limit that stopped it.
        message: the solver's own word.
        x: best point, (n,).
        bound: its bound.
        nodes: number of nodes; 0 where it states none.
    """

    ended: Ended
    limit: Limit | None = None
    message: str = ""
    x: Array | None = None
    bound: float | None = None
    nodes: int = 0


def installed() -> bool:
    """Whether there is a SCIP here."""
    return find_spec("pyscipopt") is not None


def run_scip(model: Compiled, seconds: float | None, gap: float, seed: int) -> OtherRun:
    """Minimise the first objective.

    Args:
        model: scaled, as HiGHS would get it.
        seconds: limit; None: none.
        gap: relative, at which to stop.
        seed: random seed of SCIP's random numbers.
    """
    from pyscipopt import Model, quicksum

    scip = Model()
    scip.hideOutput()
    for name, value in (
        ("limits/time", seconds), ("limits/gap", gap), ("randomization/randomseedshift", seed),
        ("numerics/feastol", TOLERANCE), ("numerics/dualfeastol", TOLERANCE),
    ):  # fmt: skip
        if value is not None:
            scip.setParam(name, value)
    cost = model.costs[0]
    x = [
        scip.addVar(vtype="I" if whole else "C", lb=_end(low), ub=_end(high), obj=c)
        for whole, low, high, c in zip(
            model.integer.tolist(), model.lower.tolist(), model.upper.tolist(), cost.tolist(), strict=True
        )
    ]
    scip.addObjoffset(float(model.offsets[0]))
    A = model.A.tocsr()
    for i, (low, high) in enumerate(zip(model.row_lower.tolist(), model.row_upper.tolist(), strict=True)):
        at = slice(A.indptr[i], A.indptr[i + 1])
        row: Any = quicksum(float(a) * x[j] for j, a in zip(A.indices[at].tolist(), A.data[at], strict=True))
        if at.start == at.stop:
            if not low <= 0 <= high:
                return OtherRun("infeasible", message="an empty row cannot hold")
        elif low == high:
            scip.addCons(row == low)
        else:
            if np.isfinite(low):
                scip.addCons(row >= low)
            if np.isfinite(high):
                scip.addCons(row <= high)
    scip.optimize()
    status = str(scip.getStatus())
    point = None
    if scip.getNSols():
        best = scip.getBestSol()
        point = np.array([scip.getSolVal(best, v) for v in x])
    limit = _LIMITS.get(status)
    ended = _ENDED.get(status, "limit" if limit else "error")
    bound = float(scip.getDualbound()) if ended in ("optimal", "limit") else None
    if bound is not None and abs(bound) >= scip.infinity():
        bound = None
    return OtherRun(ended, limit, f"SCIP: {status}", point, bound, int(scip.getNTotalNodes()))


def _end(bound: float) -> float | None:
    return bound if np.isfinite(bound) else None
