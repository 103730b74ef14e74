"""Rows of a constraint family: terms and a right-hand side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from optmodels.arrays import Array
from optmodels.arrays import Index as Ints
from optmodels.model.labels import Index, Labels, StatementError, by_label, distinct, first
from optmodels.model.terms import Terms


@dataclass(frozen=True, eq=False)
class Rows:
    """lower ≤ Σ coefficient·column ≤ upper for each of r labels; nnz entries, entries of one row and column add up."""

    sets: tuple[str, ...]
    labels: Labels  # k arrays (r,)
    row: Ints  # (nnz,)
    columns: Ints  # (nnz,)
    coefficients: Array  # (nnz,)
    lower: Array  # (r,)
    upper: Array  # (r,)

    def __len__(self) -> int:
        """Rows."""
        return len(self.lower)

    def matrix(self, columns: int) -> Any:
        """CSR array (r, columns): entries added up, without zeros."""
        made = sp.coo_array((self.coefficients, (self.row, self.columns)), shape=(len(self), columns)).tocsr()
        made.eliminate_zeros()
        return made


def at_most(rhs: Any, terms: Terms, over: Any = None) -> Rows:
    """Σ terms ≤ rhs in every row.

    Args:
        rhs: a scalar; an array indexed by the rows' labels, an axis of length 1 serving all; or with `over` an (r,)
            array in its order. A row at +∞ states nothing and is left out.
        terms: entries labelled by rows.
        over: None for one row for each distinct label of the terms, sorted: a row without terms does not exist. Or the
            rows that must exist, sizes ``(T, P)`` or labels (r, k): an empty one stays and may be unsatisfiable, and
            a term of any other row is an error.

    Raises:
        StatementError: a label that is no row, a coefficient or bound that is no number, a wrong shape.
    """
    return between(-np.inf, rhs, terms, over)


def at_least(rhs: Any, terms: Terms, over: Any = None) -> Rows:
    """Σ terms ≥ rhs in every row; see `at_most`."""
    return between(rhs, np.inf, terms, over)


def equal(rhs: Any, terms: Terms, over: Any = None) -> Rows:
    """Σ terms = rhs in every row; see `at_most`."""
    return between(rhs, rhs, terms, over)


def between(low: Any, high: Any, terms: Terms, over: Any = None) -> Rows:
    """Low ≤ Σ terms ≤ high in every row; see `at_most`."""
    if over is not None:
        index = Index(over)
        if len(index.sizes) != len(terms.sets):
            raise StatementError(f"terms labelled by {terms.sets} are no rows over {len(index.sizes)} indices")
        if terms.sets:
            places = [index.find(part.labels) for part in terms.parts]
        else:
            places = [np.zeros(len(part.columns), dtype=np.intp) for part in terms.parts]
    elif not len(terms):
        return no_rows()
    elif terms.sets:
        labels, places = distinct([part.labels for part in terms.parts])
        index = _Found(labels)
    else:
        index = Index(())
        places = [np.zeros(len(part.columns), dtype=np.intp) for part in terms.parts]
    lower = by_label(low, index, "the right-hand side", in_order=over is not None)
    upper = by_label(high, index, "the right-hand side", in_order=over is not None)
    if (lower == np.inf).any() or (upper == -np.inf).any():
        raise StatementError("a right-hand side is infinite on the side that no row can reach")
    row = places[0] if len(places) == 1 else np.concatenate(places)
    coefficients = terms.coefficients
    if not np.isfinite(coefficients).all():
        at = first(terms.labels, ~np.isfinite(coefficients)) if terms.sets else ""
        raise StatementError(f"a coefficient of row {at} is no finite number")
    return _bounded(Rows(terms.sets, index.labels, row, terms.columns, coefficients, lower, upper))


def no_rows() -> Rows:
    """The return value of a family that does not apply."""
    nothing = np.zeros(0, dtype=np.intp)
    return Rows((), (), nothing, nothing, np.zeros(0), np.zeros(0), np.zeros(0))


class _Found(Index):
    """Labels found among terms: known to be distinct and in order."""

    def __init__(self, labels: Labels) -> None:
        self.labels, self.rows, self.grid = labels, len(labels[0]), False
        self.sizes = tuple(int(part.max(initial=-1)) + 1 for part in labels)


def _bounded(rows: Rows) -> Rows:
    """Without the rows that have no bound."""
    keep = np.isfinite(rows.lower) | np.isfinite(rows.upper)
    if keep.all():
        return rows
    position, inside = np.cumsum(keep) - 1, keep[rows.row]
    return Rows(
        rows.sets, tuple(part[keep] for part in rows.labels), position[rows.row[inside]], rows.columns[inside],
        rows.coefficients[inside], rows.lower[keep], rows.upper[keep],
    )  # fmt: skip
