"""Integer labels of many rows at once: which grid or table they index, and the position of each in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from optmodels.arrays import Array
from optmodels.arrays import Index as Ints
from optmodels.errors import SolverError

Labels: TypeAlias = tuple[Ints, ...]
"""One (n,) array for each index set: entry i has the label (labels[0][i], labels[1][i], …)."""

LARGEST = int(np.iinfo(np.intp).max)
TABLE = (
    1 << 20
)  # a lookup table of this many places costs nothing; a larger one pays only if there are labels to fill it


class StatementError(SolverError):
    """A variable or a constraint family is stated wrongly: a fault of the formulation, not of its user."""


def first(labels: Labels, where: Any) -> str:
    """The first label where the mask holds, in brackets."""
    i = int(np.flatnonzero(where)[0])
    return f"[{','.join(str(int(part[i])) for part in labels)}]"


def sizes_of(labels: Labels) -> tuple[int, ...]:
    """The smallest grid from 0 that holds the labels."""
    return tuple(int(part.max(initial=-1)) + 1 for part in labels)


def as_ints(values: Any, what: str) -> Ints:
    """(n,) integers.

    Raises:
        StatementError: another shape, not integers, or below 0.
    """
    array = np.asarray(values)
    if array.ndim != 1 or (len(array) and not np.issubdtype(array.dtype, np.integer)):
        raise StatementError(f"{what} must be an (n,) array of integers, not {array.dtype} of shape {array.shape}")
    if len(array) and array.min() < 0:
        raise StatementError(f"{what} must be 0 or more, not {int(array.min())}")
    return array.astype(np.intp, copy=False)


class Index:
    """The labels that exist: a dense grid, or a table of labels, each once.

    Args:
        over: sizes, a tuple ``(T, P)`` or one integer; or labels, an (r, k) array, a tuple of k arrays (r,), or where
            k is 1 an (r,) array or list.

    Attributes:
        labels: k arrays (r,), in order; a grid's are row-major.
        sizes: (k,), a grid that holds them.
        grid: all labels of the grid exist.
    """

    def __init__(self, over: Any) -> None:
        if isinstance(over, int | np.integer):
            over = (over,)
        self.grid = isinstance(over, tuple) and all(np.ndim(part) == 0 for part in over)
        if self.grid:
            self.sizes = tuple(int(part) for part in over)
            if any(size < 0 for size in self.sizes):
                raise StatementError(f"sizes must be 0 or more, not {self.sizes}")
            self.labels: Labels = tuple(part.ravel() for part in np.indices(self.sizes, dtype=np.intp))
            self.rows = math.prod(self.sizes)
            return
        if not isinstance(over, tuple):
            table = np.asarray(over)
            if table.ndim not in (1, 2) or (table.ndim == 2 and not table.shape[1]):
                raise StatementError(f"labels must be of shape (r, k), not {table.shape}")
            over = tuple(table.T) if table.ndim == 2 else (table,)
        self.labels = tuple(as_ints(part, "labels") for part in over)
        self.rows = len(self.labels[0])
        if any(len(part) != self.rows for part in self.labels):
            raise StatementError(f"labels differ in length: {[len(part) for part in self.labels]}")
        self.sizes = sizes_of(self.labels)
        self._keys = _keys(self.labels, self.sizes)
        self._sorted = self._table = None
        if math.prod(self.sizes) <= max(TABLE, 8 * self.rows):
            self._table = np.full(math.prod(self.sizes), -1, dtype=np.intp)
            self._table[self._keys] = np.arange(self.rows)
            twice = self._table[self._keys] != np.arange(self.rows)
        else:
            self._sorted = np.argsort(self._keys, kind="stable")
            in_order = self._keys[self._sorted]
            twice = np.zeros(self.rows, dtype=bool)
            twice[self._sorted[1:]] = in_order[1:] == in_order[:-1]
        if twice.any():
            raise StatementError(f"the label {first(self.labels, twice)} is there twice")

    def find(self, labels: Labels) -> Ints:
        """(n,) position of each label.

        Raises:
            StatementError: a label does not exist, or has another number of indices.
        """
        if len(labels) != len(self.sizes):
            raise StatementError(f"labels have {len(labels)} indices where {len(self.sizes)} are expected")
        outside = [
            (part < 0) | (part >= size)
            for part, size in zip(labels, self.sizes, strict=True)
            if len(part) and (part.min() < 0 or part.max() >= size)
        ]
        if outside:
            raise StatementError(f"there is no {first(labels, np.logical_or.reduce(outside))}")
        keys = _keys(labels, self.sizes)
        if self.grid:
            return keys
        if self._table is not None:
            at = self._table[keys]
            missing = at < 0
        else:
            assert self._sorted is not None
            near = np.searchsorted(self._keys, keys, sorter=self._sorted)
            at = self._sorted[np.minimum(near, self.rows - 1)]
            missing = self._keys[at] != keys
        if missing.any():
            raise StatementError(f"there is no {first(labels, missing)}")
        return at


def _keys(labels: Labels, sizes: Sequence[int]) -> Ints:
    """(n,) row-major position in the grid."""
    if not labels:
        return np.zeros(0, dtype=np.intp)
    if math.prod(sizes) > LARGEST:
        raise StatementError(f"a grid of {sizes} is too large")
    key = labels[0]
    for part, size in zip(labels[1:], sizes[1:], strict=True):
        key = key * size + part
    return key


def distinct(parts: Sequence[Labels]) -> tuple[Labels, list[Ints]]:
    """The distinct labels of several groups, sorted, and the position of every label of each group among them."""
    sizes = tuple(max(size) for size in zip(*(sizes_of(part) for part in parts), strict=True))
    keys = [_keys(part, sizes) for part in parts]
    places = math.prod(sizes)
    if places <= max(TABLE, 8 * sum(map(len, keys))):
        there = np.zeros(places, dtype=bool)
        for key in keys:
            there[key] = True
        found = np.flatnonzero(there)
        table = np.cumsum(there) - 1
        at = [table[key] for key in keys]
    else:
        found, inverse = np.unique(np.concatenate(keys), return_inverse=True)
        at = np.split(inverse, np.cumsum([len(key) for key in keys])[:-1])
    return tuple(np.unravel_index(found, sizes)), at


def by_label(value: Any, index: Index, what: str, *, in_order: bool = True) -> Array:
    """(r,) numbers for the labels of an index.

    Args:
        value: a scalar; an array indexed by labels (an axis of length 1 serves every label); or, where the labels
            were given in an order (`in_order`), an (r,) array in that order.
        index: the labels.
        what: named in errors.

    Raises:
        StatementError: another shape, a label beyond the array, or not a number.
    """
    array, rows, k = np.asarray(value, dtype=float), index.rows, len(index.sizes)
    if array.ndim == 0:
        numbers = np.full(rows, float(array))
    elif array.ndim == 1 and in_order and len(array) == rows:
        numbers = array
    elif array.ndim == k:
        short = [1 < n < size or n == 0 < size for n, size in zip(array.shape, index.sizes, strict=True)]
        if any(short):
            raise StatementError(f"{what} has shape {array.shape}, too small for labels up to {index.sizes}")
        numbers = array[tuple(0 if n == 1 else part for n, part in zip(array.shape, index.labels, strict=True))]
        numbers = np.broadcast_to(numbers, rows)
    else:
        raise StatementError(f"{what} has shape {array.shape}, neither a scalar nor one number for each of {rows} rows")
    if np.isnan(numbers).any():
        raise StatementError(f"{what} is not a number at {first(index.labels, np.isnan(numbers)) if k else 'all'}")
    return numbers
