"""The numbers of a model measured, and scaled by powers of two to where HiGHS' absolute tolerances mean something.

HiGHS lets a row be broken by 10⁻⁶, an integer be off by 10⁻⁶, and drops coefficients below 10⁻⁹. In a row whose terms
are of size one that is relative; in one of size 10⁻⁷ nothing is left of the row. Powers of two change no digit, so what
is found and proved for the scaled model holds for the model. Integer columns keep their unit.

Models whose numbers are ordinary are passed as they are: their answers do not change, and no time is spent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from optmodels.solver.compile import Compiled

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

ROWS = (1e-3, 1e6)  # sizes of rows that are left as they are
COLUMNS = (1e-4, 1e6)  # a continuous column all of whose coefficients lie below or above is scaled
LEAST, MOST = 1e-8, 1e9  # after scaling, a coefficient, right-hand side or ratio beyond is extreme
MOST_INTEGER = 1e6  # a bound of an integer column beyond it is extreme: 10⁻⁶ of it is a whole unit
NOISE = 1e-12  # a term that is never a larger part of its row is rounding


@dataclass(frozen=True)
class Scaled:
    """A model as HiGHS sees it.

    Attributes:
        model: row_i·a_ij·column_j, costs objective_k·c_kj·column_j, bounds accordingly.
        row, column, objective: the factors, (m,), (n,), (objectives,); of rows and columns powers of two.
    """

    model: Compiled
    row: Array
    column: Array
    objective: Array


def scaled(model: Compiled) -> Scaled:
    """Scale what is not ordinary; the median cost of every objective becomes one, which keeps the gap meaningful."""
    m, n = model.A.shape
    row, column = np.ones(m), np.ones(n)
    entries = model.A.tocoo()
    i, j, a = entries.row, entries.col, np.abs(entries.data)
    first = _row_factors(model, i, j, a, column)
    if (first != 1).any() or (len(a) and (a.min() < COLUMNS[0] or a.max() > COLUMNS[1])):
        column = _column_factors(model, i, j, a * first[i])
        row = _row_factors(model, i, j, a * column[j], column)
        with np.errstate(over="ignore"):
            model = replace(
                model, A=sp.csc_matrix(sp.diags(row) @ model.A @ sp.diags(column)), costs=model.costs * column,
                row_lower=model.row_lower * row, row_upper=model.row_upper * row,
                lower=model.lower / column, upper=model.upper / column,
            )  # fmt: skip
    objective = np.array([1.0 / float(np.median(np.abs(c[c != 0]))) if c.any() else 1.0 for c in model.costs])
    model = replace(model, costs=model.costs * objective[:, None], offsets=model.offsets * objective)
    return Scaled(model, row, column, objective)


def _power_of_two(size: Array, keep: npt.NDArray[np.bool_]) -> Array:
    """1 where `keep`, else the power of two that brings a size to about one."""
    found = np.ones(len(size))
    found[~keep] = 2.0 ** -np.round(np.log2(size[~keep]))
    return found


def _row_factors(model: Compiled, i: Ints, j: Ints, a: Array, column: Array) -> Array:
    """Of rows by their size: the right-hand side, or else the largest coefficient of a column's unit or whole range."""
    ends = np.maximum(*(np.abs(np.where(np.isfinite(b), b, 0.0)) for b in (model.row_lower, model.row_upper)))
    unit = np.minimum(1.0, _range(model) / column)
    size = np.zeros(len(ends))
    np.maximum.at(size, i, a * unit[j])
    size = np.where(ends > 0, ends, size)
    return _power_of_two(size, (size == 0) | ((size >= ROWS[0]) & (size <= ROWS[1])))


def _column_factors(model: Compiled, i: Ints, j: Ints, a: Array) -> Array:
    """Of continuous columns whose coefficients are all tiny or all huge; a range is not made smaller than one."""
    most, least = np.zeros(len(model.lower)), np.full(len(model.lower), np.inf)
    np.maximum.at(most, j, a)
    np.minimum.at(least, j, a)
    tiny, huge = (most > 0) & (most < COLUMNS[0]), np.isfinite(least) & (least > COLUMNS[1])
    factor = _power_of_two(np.where(tiny, most, np.where(huge, least, 1.0)), model.integer | ~(tiny | huge))
    span = _range(model)
    room = np.where(np.isfinite(span) & (span >= 1), 2.0 ** np.floor(np.log2(np.where(span >= 1, span, 1.0))), 1.0)
    return np.where(factor > 1, np.minimum(factor, np.where(np.isinf(span), np.inf, room)), factor)


def _range(model: Compiled) -> Array:
    """The largest |x_j| that the bounds allow, (n,); ∞ without bounds, 1 where they allow only 0."""
    span: Array = np.maximum(np.abs(model.lower), np.abs(model.upper))
    return np.where(span > 0, span, 1.0)


def extremes(model: Compiled) -> str | None:
    """What about a scaled model is beyond the trust in one run of the solver, in words; None: nothing.

    Terms that are rounding beside the rest of their row do not count.
    """
    entries = model.A.tocoo()
    i, j, a = entries.row, entries.col, np.abs(entries.data)
    if len(a):
        most = np.zeros(len(model.row_lower))
        np.maximum.at(most, i, a)
        span = _range(model)[j]
        with np.errstate(invalid="ignore"):
            counts = ~(a * span <= NOISE * np.minimum(1.0, most[i]))
        odd = counts & ((a < LEAST) | (a > MOST) | (most[i] > MOST * a))
        if odd.any():
            worst = int(np.flatnonzero(odd)[np.argmax((most[i] / a)[odd])])
            return (
                f"{model.row_names[i[worst]]} has coefficients {a[worst]:.2g}, of {model.column_names[j[worst]]}, and"
                f" {most[i[worst]]:.2g}"
            )
    for bound in (model.row_lower, model.row_upper):
        large = np.flatnonzero(np.isfinite(bound) & (np.abs(bound) > MOST))
        if len(large):
            return f"the right-hand side of {model.row_names[large[0]]} is {bound[large[0]]:.2g}"
    for bound in (model.lower, model.upper):
        large = np.flatnonzero(model.integer & np.isfinite(bound) & (np.abs(bound) > MOST_INTEGER))
        if len(large):
            return f"the whole number {model.column_names[large[0]]} may be {bound[large[0]]:.2g}"
    cost = np.abs(model.costs[0])
    used = cost > 0
    if used.any() and cost.max() > MOST * cost[used].min():
        least, most_ = (model.column_names[int(k)] for k in (np.where(used, cost, np.inf).argmin(), cost.argmax()))
        return f"the costs of {least} and {most_} are {cost[used].min():.2g} and {cost.max():.2g}"
    return None
