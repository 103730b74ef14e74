"""Rows that state outright a condition that a tiny coefficient states in exact arithmetic only: with x > 0, a whole
unit is needed.

In Σ_j a_j·x_j ≤ Σ_k b_k·n_k + β with whole n, a share x_j = 1 whose a_j is 10⁻⁷ is within the solver's tolerance of
needing nothing. But the right side is a multiple of some g, so where it is not 0 it is g at least, and with x_j ≤ u_j
x_j ≤ u_j·(right side)/g holds for every point: a row of ordinary numbers, which the tolerance does not reach.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from optmodels.arrays import Array, Int32s
from optmodels.solver.compile import Compiled

TINY = 1e-3  # of the smallest whole unit of its row: a term below it gets a row of its own
WHOLE = 1e-9  # relative, within which a ratio counts as a whole number


def linked(model: Compiled) -> Compiled:
    """The model with a row more for every tiny term of a continuous column next to whole ones."""
    A = sp.csr_matrix(model.A)
    added: list[tuple[Array, Array, float]] = []  # columns, coefficients, right-hand side
    rows = np.flatnonzero(np.asarray((abs(A) @ model.integer.astype(float)) > 0).ravel())
    for i in rows.tolist():
        at = slice(A.indptr[i], A.indptr[i + 1])
        for sign, end in ((1.0, model.row_upper[i]), (-1.0, -model.row_lower[i])):
            if np.isfinite(end):
                added += _of_row(model, A.indices[at], sign * A.data[at], float(end))
    if not added:
        return model
    row = np.repeat(np.arange(len(added)), [len(j) for j, _, _ in added])
    values, columns = np.concatenate([a for _, a, _ in added]), np.concatenate([j for j, _, _ in added])
    more = sp.csr_matrix((values, (row, columns)), shape=(len(added), A.shape[1]))
    return replace(
        model, A=sp.csc_matrix(sp.vstack((A, more))),
        row_lower=np.append(model.row_lower, np.full(len(added), -np.inf)),
        row_upper=np.append(model.row_upper, [end for _, _, end in added]),
        row_names=[*model.row_names, *(f"linked[{k}]" for k in range(len(added)))],
    )  # fmt: skip


def _of_row(model: Compiled, columns: Int32s, a: Array, end: float) -> list[tuple[Array, Array, float]]:
    """The rows of the tiny terms of Σ a_j·x_j ≤ end."""
    whole, lower, upper = model.integer[columns], model.lower[columns], model.upper[columns]
    units = a[whole]
    if not len(units) or (a[~whole] < 0).any() or (lower[~whole] < 0).any():
        return []
    g = float(np.abs(units).min())
    multiples = np.append(units, end) / g
    integral = (np.abs(multiples - np.round(multiples)) <= WHOLE * np.maximum(1.0, np.abs(multiples))).all()
    if integral:
        units, rest = np.round(units / g), float(np.round(end / g))
    elif end <= 0 and (lower[whole] >= 0).all():
        # The positive ones only take; of the others, one unit at least has to be there.
        units, rest = np.where(units < 0, -1.0, 0.0), 0.0
    else:
        return []
    n = columns[whole]
    return [
        (np.append(n, j), np.append(units, 1.0 / u), rest)
        for j, coefficient, u in zip(columns[~whole], a[~whole], upper[~whole], strict=True)
        if 0 < u < np.inf and 0 < coefficient * u < TINY * g
    ]
