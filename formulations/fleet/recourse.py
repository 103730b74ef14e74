"""Shares that a fleet serves in each draw of demand and slow machines, under the best routing of that draw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from formulations.fleet.model import Parameters, drawn_capacities, drawn_of, drawn_served
from formulations.fleet.plan import ScenariosLine
from formulations.fleet.points import FleetTables
from formulations.fleet.scenarios import Draws
from optmodels.arrays import Array
from optmodels.errors import SolverError
from optmodels.model import Variable
from optmodels.solver import Settings, solve_compiled

ALL_SERVED = 1e-4  # of the requests of a draw
TOGETHER = 100  # draws in one linear program


class RecourseModel(Parameters):
    """Shares x_cwp and unserved shares u_cw of each draw, counts given: the least unserved requests/s.

    Args:
        tables: operating points that the fleet has.
        n: deployments of each, (P,).
        draws: demand and slow machines.
    """

    n: Variable

    def __init__(self, tables: FleetTables, n: npt.ArrayLike, draws: Draws) -> None:
        super().__init__(tables.case.problem, tables)
        self.draws = draws
        self.drawn_rates, self.slower = drawn_of(tables, draws)
        given = np.asarray(n, dtype=float)[None]
        self.n = self.variable("n", ("t", "p"), given.shape, lower=given, upper=given)
        comes = self.drawn_rates > 0
        able = np.isfinite(self.load)
        self.drawn = self.variable("drawn", ("c", "w", "p"), np.nonzero(comes[:, :, None] & able), upper=1.0)
        self.refused = self.variable("refused", ("c", "w"), np.nonzero(comes), upper=1.0)
        self.state((drawn_served, drawn_capacities))
        c, w = self.refused.labels
        self.minimise("unserved", self.refused * (self.drawn_rates[c, w] / self.drawn_rates.max()))


def refused(tables: FleetTables, n: npt.ArrayLike, draws: Draws, seconds: float = 60.0) -> tuple[Array, Array]:
    """Unserved requests/s and all requests/s of each draw, both (N,).

    Args:
        tables: operating points.
        n: deployments of each, (P,).
        draws: demand and slow machines.
        seconds: time limit of each linear program.
    """
    counts = np.asarray(n)
    used = np.flatnonzero(counts > 0)
    tables, counts = tables.restricted(used), counts[used]
    missed, total = [], []
    for first in range(0, len(draws), TOGETHER):
        part = slice(first, first + TOGETHER)
        some = replace(
            draws, demand={k: v[part] for k, v in draws.demand.items()},
            slow={k: v[part] for k, v in draws.slow.items()},
        )  # fmt: skip
        m = RecourseModel(tables, counts, some)
        report = solve_compiled(m.compiled(), Settings(seconds, 1e-9))
        if report.x is None:
            raise SolverError(f"the share served in {len(some)} draws: {report.message}")
        c, w = m.refused.labels
        missed.append(np.bincount(c, m.refused.of(report.x) * m.drawn_rates[c, w], minlength=len(some)))
        total.append(m.drawn_rates.sum(axis=1))
    return np.concatenate(missed), np.concatenate(total)


def scenarios_line(tables: FleetTables, n: npt.ArrayLike) -> ScenariosLine:
    """The line of a plan of an instance with scenarios."""
    draws = tables.case.draws
    assert draws is not None
    missed, total = refused(tables, n, draws)
    share = np.clip(np.divide(missed, total, out=np.zeros_like(missed), where=total > 0), 0.0, 1.0)
    share[share < 1e-9] = 0.0  # the solver's tolerance
    return ScenariosLine(
        draws=len(draws), unserved_share=float(share.mean()), worst_share=float(share.max()),
        all_served=float((share <= ALL_SERVED).mean()),
        usd_per_hour=3.6 * draws.usd_per_1000 * float((share * total).mean()),
        routes=[
            [d.name for d, load in zip(tables.demands, tables.load[:, p], strict=True) if np.isfinite(load)]
            for p in np.flatnonzero(n)
        ],
    )  # fmt: skip
