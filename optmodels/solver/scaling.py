"""The numbers of a model measured, and scaled by powers of two to where HiGHS' absolute tolerances mean something.

HiGHS lets a row be broken by 10⁻⁶, an integer be off by 10⁻⁶, and drops coefficients below 10⁻⁹. In a row whose terms
are of size one that is relative; in one of size 10⁻⁷ nothing is left of the row. Powers of two change no digit, so the
result that is found and proved for the scaled model holds for the model. Integer columns keep their unit.

Models whose numbers are ordinary are passed as they are: their answers do not change, and no time is spent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from optmodels.arrays import Array, Int32s, Mask
from optmodels.solver.compile import Compiled

ROWS = (1e-3, 1e6)  # sizes of rows that are left as they are
PASSES = 10  # over rows and columns
COSTS = (1e-3, 1e6)  # the least cost is raised to, unless the largest then exceeds
MOST_COST = 1e9  # times the least of a column that is not fixed, which dearer ones count as where any is
HIDES = 1e12  # times as dear and more: HiGHS 1.15.1 has then proved false optima, twice over
LEAST, MOST = 1e-8, 1e9  # after scaling, a coefficient, right-hand side or ratio beyond is extreme
MOST_INTEGER = 1e6  # a bound of an integer column beyond it is extreme: 10⁻⁶ times it is a whole unit
REFUSED = 1e12  # HiGHS refuses coefficients above 10¹⁵: no row is scaled up to near there
SPREAD = 1e10  # of a MIP's coefficients: over 12 orders HiGHS 1.15.1 has proved a false optimum, with rows of 8
NARROW = 1e-4  # a continuous column of such a size is extreme: a hundredth is the tolerance of its bounds
NEGLIGIBLE = 1e-7  # a term that is never a larger part of its row's right-hand side matters to no tolerance
NOISE = 1e-12  # of rows without one: a term that is never a larger part of the largest is rounding


@dataclass(frozen=True)
class Scaled:
    """A model as HiGHS sees it.

    Attributes:
        model: row_i·a_ij·column_j, costs objective_k·c_kj·column_j, bounds accordingly.
        row, column, objective: the factors, (m,), (n,), (objectives,); of rows and columns powers of two.
        extreme: properties for which one run is not enough (`extremes`).
    """

    model: Compiled
    row: Array
    column: Array
    objective: Array
    extreme: str | None


def scaled(model: Compiled) -> Scaled:
    """Scale rows of no ordinary size, rows and columns where that is not enough, and every objective.

    Its median cost becomes one, and the least cost is not below what HiGHS' tolerance of reduced costs leaves alone.
    """
    i, j, a = _entries(model)
    column = np.ones(len(model.lower))
    row = _row_factors(model, i, j, a, column)
    found = _by(model, row, column)
    extreme = extremes(found)
    if extreme is not None:
        model = _fixed_in_offsets(model)
        column = _column_factors(model, i, j, a)
        row = _row_factors(model, i, j, a * column[j], column, (1.0, 1.0))
        found = _by(model, row, column)
        extreme = extremes(found)
    objective = np.array([_objective_factor(np.abs(c[c != 0])) if c.any() else 1.0 for c in found.costs])
    found = replace(found, costs=found.costs * objective[:, None], offsets=found.offsets * objective)
    return Scaled(found, row, column, objective, extreme)


def _fixed_in_offsets(model: Compiled) -> Compiled:
    """The model with the costs of fixed columns, which decide nothing, in its offsets: next to them others vanish."""
    fixed = model.lower == model.upper
    offsets = model.offsets + model.costs[:, fixed] @ model.lower[fixed]
    return replace(model, costs=np.where(fixed, 0.0, model.costs), offsets=offsets)


def capped(seen: Scaled) -> Scaled | None:
    """The same with its dearest columns cheaper, where they hide the cheapest from HiGHS; None: they do not.

    Of columns that are never negative: its bound holds, and is no worse where they are 0, as in plans worth having.
    """
    cost, free = seen.model.costs[0], seen.model.lower < seen.model.upper
    least = np.abs(cost[free & (cost != 0)]).min(initial=np.inf)
    if not (cost[free] > HIDES * least).any():
        return None
    dear = (cost > MOST_COST * least) & (seen.model.lower >= 0)
    first = np.where(dear, MOST_COST * least, cost)
    factor = _objective_factor(np.abs(first[free & (first != 0)]))
    costs, offsets = np.vstack((first * factor, seen.model.costs[1:])), seen.model.offsets.copy()
    offsets[0] *= factor
    objective = seen.objective.copy()
    objective[0] *= factor
    return replace(seen, model=replace(seen.model, costs=costs, offsets=offsets), objective=objective)


def _objective_factor(cost: Array) -> float:
    unit, least, most = float(np.median(cost)), float(cost.min()), float(cost.max())
    return max(1.0 / unit, min(COSTS[0] / least, COSTS[1] / most))


def _entries(model: Compiled) -> tuple[Int32s, Int32s, Array]:
    """Row, column and size of every coefficient that is not zero."""
    entries = model.A.tocoo()
    used = entries.data != 0
    return entries.row[used], entries.col[used], np.abs(entries.data[used])


def _by(model: Compiled, row: Array, column: Array) -> Compiled:
    """The model by its factors."""
    if (row == 1).all() and (column == 1).all():
        return model
    return replace(
        model, A=sp.csc_matrix(sp.diags(row) @ model.A @ sp.diags(column)), costs=model.costs * column,
        row_lower=model.row_lower * row, row_upper=model.row_upper * row,
        lower=model.lower / column, upper=model.upper / column,
    )  # fmt: skip


def _row_factors(
    model: Compiled, i: Int32s, j: Int32s, a: Array, column: Array, keep: tuple[float, float] = ROWS
) -> Array:  # fmt: skip
    """1 where a row's size is within `keep`, else what brings it to about one."""
    size = _row_sizes(model, i, j, a, column)
    largest = np.zeros(len(size))
    np.maximum.at(largest, i, a)
    size = np.maximum(size, largest / REFUSED)
    return _power_of_two(size, (size == 0) | ((size >= keep[0]) & (size <= keep[1])))


def _row_sizes(model: Compiled, i: Int32s, j: Int32s, a: Array, column: Array) -> Array:
    """The right-hand side, or where there is none the largest coefficient of a column's unit or whole range, (m,)."""
    ends = _ends(model)
    unit = np.minimum(1.0, _range(model) / column)
    size = np.zeros(len(ends))
    np.maximum.at(size, i, a * unit[j])
    return np.where(ends > 0, ends, size)


def _ends(model: Compiled) -> Array:
    """The larger right-hand side of every row, 0 without one, (m,)."""
    found: Array = np.maximum(*(np.abs(np.where(np.isfinite(b), b, 0.0)) for b in (model.row_lower, model.row_upper)))
    return found


def _power_of_two(size: Array, keep: Mask) -> Array:
    """1 where `keep`, else the power of two that brings a size to about one."""
    found = np.ones(len(size))
    found[~keep] = 2.0 ** -np.round(np.log2(size[~keep]))
    return found


def _column_factors(model: Compiled, i: Int32s, j: Int32s, a: Array) -> Array:
    """Of continuous columns, by which every row and column has coefficients around one: geometric means in turn.

    No column's range becomes smaller than one.
    """
    m, n = model.A.shape
    row, column = np.zeros(m), np.zeros(n)  # logarithms to base two
    size = np.log2(a)
    for _ in range(PASSES):
        row = -_middle(i, size + column[j], m)
        column = np.where(model.integer, 0.0, -_middle(j, size + row[i], n))
    within = np.log2(np.where(model.integer, 1.0, _range(model)))
    found: Array = np.exp2(np.round(np.minimum(column, within)))
    return found


def _middle(at: Int32s, size: Array, n: int) -> Array:
    """Halfway between the smallest and the largest size of each group, (n,); 0 of none."""
    most, least = np.full(n, -np.inf), np.full(n, np.inf)
    np.maximum.at(most, at, size)
    np.minimum.at(least, at, size)
    return np.where(
        np.isfinite(most), (np.where(np.isfinite(most), most, 0) + np.where(np.isfinite(least), least, 0)) / 2, 0
    )


def _range(model: Compiled) -> Array:
    """The largest |x_j| that the bounds allow, (n,); ∞ without bounds, 1 where they allow only 0."""
    span: Array = np.maximum(np.abs(model.lower), np.abs(model.upper))
    return np.where(span > 0, span, 1.0)


def extremes(model: Compiled) -> str | None:
    """What about a scaled model is beyond the trust in one run of the solver, in words; None: nothing.

    Terms that are rounding next to the rest of their row do not count.
    """
    i, j, a = _entries(model)
    if len(a):
        most = np.zeros(len(model.row_lower))
        np.maximum.at(most, i, a)
        span = _range(model)[j]
        ends = _ends(model)
        negligible = np.where(ends > 0, NEGLIGIBLE * ends, NOISE * np.minimum(1.0, most))
        with np.errstate(invalid="ignore"):
            counts = ~(a * span <= negligible[i])
        odd = counts & ((a < LEAST) | (a > MOST) | (most[i] > MOST * a))
        if odd.any():
            worst = int(np.flatnonzero(odd)[np.argmax((most[i] / a)[odd])])
            return (
                f"{model.row_names[i[worst]]} has coefficients {a[worst]:.2g}, of {model.column_names[j[worst]]}, and"
                f" {most[i[worst]]:.2g}"
            )
        counted = a[counts]
        if len(counted) and model.integer.any() and counted.max() > SPREAD * counted.min():
            return f"coefficients reach from {counted.min():.2g} to {counted.max():.2g}"
        # A continuous column is as large as it takes to fill a row, or as its bounds allow.
        with np.errstate(over="ignore"):
            large = np.minimum(span, _row_sizes(model, i, j, a, np.ones(len(model.lower)))[i] / a)
        narrow = np.flatnonzero(counts & ~model.integer[j] & (large < NARROW))
        if len(narrow):
            k = narrow[large[narrow].argmin()]
            return f"{model.column_names[int(j[k])]} is of size {large[k]:.2g} in {model.row_names[int(i[k])]}"
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
    if used.any() and cost.max() > COSTS[1] / COSTS[0] * cost[used].min():
        least, most_ = (model.column_names[int(k)] for k in (np.where(used, cost, np.inf).argmin(), cost.argmax()))
        return f"the costs of {least} and {most_} are {cost[used].min():.2g} and {cost.max():.2g}"
    return None
