"""Proofs that a model has no point, which rest on our own arithmetic and not on a solver's word.

The relaxation is infeasible by a Farkas ray (`safe.least_value`) or because its bounds, propagated, contradict one
another. Where only integrality makes it infeasible, the whole numbers are branched on, until every leaf is.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from optmodels.solver.compile import Compiled
from optmodels.solver.safe import least_value, propagated
from optmodels.solver.scaling import scaled
from optmodels.solver.session import Session, Settings

MOST_NODES = 500
FRACTION = 1e-6  # from a whole number, within which a value is one


def refute(model: Compiled, seconds: float, most_nodes: int = MOST_NODES) -> str | None:
    """Prove that no point meets rows, bounds and integrality, if that is so and does not take long.

    Args:
        model: scaled (`scaling.scaled`): the solver looks for the proof, and finds it at ordinary sizes only.
        seconds, most_nodes: after which to give up.

    Returns:
        How it is proved, in words; None: it is not.
    """
    deadline = time.perf_counter() + seconds
    none = np.zeros_like(model.costs[:1])
    session = Session(
        replace(model, costs=none, offsets=np.zeros(1), integer=np.zeros_like(model.integer)),
        Settings(options={"presolve": "off", "solver": "simplex"}),
    )
    every = np.arange(len(model.lower))
    nodes, looked = [(model.lower, model.upper)], 0
    with session.watched():
        while nodes:
            left = deadline - time.perf_counter()
            if looked == most_nodes or left <= 0:
                return None
            looked += 1
            bounds = propagated(model, *nodes.pop())
            if bounds is None:
                continue
            lower, upper = bounds
            session.set_column_bounds(every, lower, upper)
            ended = session.run(left)
            if ended == "infeasible":
                ray = session.dual_ray()
                if ray is None or not any(least_value(model, none[0], y, 0.0, lower, upper) > 0 for y in (ray, -ray)):
                    return None
                continue
            if ended != "optimal":
                return None
            x = session.values()
            off = np.where(model.integer, np.abs(x - np.round(x)), 0.0)
            k = int(off.argmax()) if len(off) else 0
            if not len(off) or off[k] <= FRACTION:
                return None
            down, up = upper.copy(), lower.copy()
            down[k], up[k] = np.floor(x[k]), np.ceil(x[k])
            nodes += [(lower, down), (up, upper)]
    leaves = "" if looked == 1 else f" in every one of {looked} branches"
    return f"Infeasible, verified{leaves}"


def confirmed(session: Session, seconds: float) -> bool:
    """Whether a kept model that a run has called infeasible is: by a proof, or else by a second run without presolve.

    Args:
        session: session after the run.
        seconds: time limit of each of the two.
    """
    if refute(scaled(session.compiled()).model, seconds) is not None:
        return True
    session.set_option("presolve", "off")
    again = session.run(seconds)
    session.set_option("presolve", "choose")
    return again == "infeasible"
