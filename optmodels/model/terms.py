"""Linear terms over arrays: a variable's columns with coefficients, and the row that each of them is a term of."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from optmodels.arrays import Array
from optmodels.arrays import Index as Ints
from optmodels.model.labels import Index, Labels, StatementError, as_ints, by_label, distinct, sizes_of


class Part(NamedTuple):
    """n entries of a sum."""

    labels: Labels  # k arrays (n,)
    columns: Ints  # (n,)
    coefficients: Array  # (n,)


class Terms:
    """Σ coefficient·column, entry by entry, each with the label of the row it belongs to.

    Entries of one label are added up when rows are made of them. An array that is multiplied with the terms has one
    number for each entry, in the order of `labels`; Terms never change, every operation returns new ones.

    Attributes:
        sets: names of the index sets; ``""`` where `at` gave labels without names.
        sizes: sizes of each set, from 0; known to be at least the largest label + 1.
        parts: the summands.
    """

    __array_ufunc__ = None  # so that array * terms comes to __rmul__

    def __init__(self, sets: tuple[str, ...], sizes: tuple[int, ...], parts: tuple[Part, ...]) -> None:
        self.sets, self.sizes, self.parts = sets, sizes, parts

    @cached_property
    def labels(self) -> Labels:
        """k arrays (n,), one for each set: where each entry belongs."""
        if len(self.parts) == 1:
            return self.parts[0].labels
        return tuple(np.concatenate([p.labels[i] for p in self.parts]) for i in range(len(self.sets)))

    @cached_property
    def columns(self) -> Ints:
        """(n,) column of each entry."""
        return self.parts[0].columns if len(self.parts) == 1 else np.concatenate([p.columns for p in self.parts])

    @cached_property
    def coefficients(self) -> Array:
        """(n,) coefficient of each entry."""
        if len(self.parts) == 1:
            return self.parts[0].coefficients
        return np.concatenate([p.coefficients for p in self.parts])

    def __len__(self) -> int:
        """Entries."""
        return sum(len(p.columns) for p in self.parts)

    # ------------------------------------------------------------------------------------------------ arithmetic

    def __add__(self, other: Terms) -> Terms:
        if not isinstance(other, Terms):
            return NotImplemented
        if len(self.sets) != len(other.sets) or any(
            a != b for a, b in zip(self.sets, other.sets, strict=True) if a and b
        ):
            raise StatementError(
                f"terms labelled by {self.sets} cannot be added to terms labelled by {other.sets}: "
                "name their rows with by(...)"
            )
        names = tuple(a or b for a, b in zip(self.sets, other.sets, strict=True))
        sizes = tuple(max(a, b) for a, b in zip(self.sizes, other.sizes, strict=True))
        return Terms(names, sizes, self.parts + other.parts)

    def __neg__(self) -> Terms:
        return self * -1.0

    def __sub__(self, other: Terms) -> Terms:
        return self + (-other) if isinstance(other, Terms) else NotImplemented

    def __mul__(self, factor: npt.ArrayLike) -> Terms:
        """Every coefficient times a scalar, or times its own number of an (n,) array."""
        numbers = np.asarray(factor, dtype=float)
        if numbers.ndim == 0:
            return Terms(self.sets, self.sizes, tuple(p._replace(coefficients=p.coefficients * numbers)
                                                      for p in self.parts))  # fmt: skip
        if numbers.shape != (len(self),):
            raise StatementError(f"a factor has shape {numbers.shape}, the terms have {len(self)} entries")
        return Terms(self.sets, self.sizes, (Part(self.labels, self.columns, self.coefficients * numbers),))

    __rmul__ = __mul__

    # ---------------------------------------------------------------------------------------- which row an entry is in

    def __getitem__(self, which: Any) -> Terms:
        """The entries of a mask (n,), at positions, or of a slice."""
        if not isinstance(which, slice):
            which = np.asarray(which)
            if which.dtype == bool and which.shape != (len(self),):
                raise StatementError(f"a mask has shape {which.shape}, the terms have {len(self)} entries")
        labels = tuple(part[which] for part in self.labels)
        return Terms(self.sets, self.sizes, (Part(labels, self.columns[which], self.coefficients[which]),))

    def by(self, *sets: str, **new: Ints) -> Terms:
        """The same entries in rows labelled by these sets: a sum over every set that is not named.

        Args:
            sets: kept, in this order.
            new: further sets, each with the (n,) label of every entry: ``x.by("t", j=pool[p])``.

        Raises:
            StatementError: an unknown set, or an array of another length.
        """
        for name in sets:
            self._position(name)
        added = {name: as_ints(values, f"labels of {name}") for name, values in new.items()}
        for name, values in added.items():
            if len(values) != len(self):
                raise StatementError(f"labels of {name} are {len(values)}, the terms have {len(self)} entries")
        kept = [self._position(name) for name in sets]
        sizes = tuple(self.sizes[i] for i in kept) + sizes_of(tuple(added.values()))
        if not added:
            parts = tuple(p._replace(labels=tuple(p.labels[i] for i in kept)) for p in self.parts)
            return Terms(sets, sizes, parts)
        labels = tuple(self.labels[i] for i in kept) + tuple(added.values())
        return Terms(sets + tuple(added), sizes, (Part(labels, self.columns, self.coefficients),))

    def among(self, other: Terms) -> Terms:
        """The entries in rows that `other` has entries in: ``used - m.n.among(used)`` has no row for n alone."""
        if self.sets != other.sets:
            raise StatementError(f"terms labelled by {self.sets} are not among those labelled by {other.sets}")
        if not len(other):
            return self[:0]
        if not self.sets:
            return self
        _, (mine, theirs) = distinct([self.labels, other.labels])
        return self[np.isin(mine, theirs)]

    def lag(self, name: str, steps: int = 1, *, cyclic: bool = False) -> Terms:
        """v of t − `steps` as a term of row t. Without such a row it is left out, or begins again where `cyclic`."""
        i = self._position(name)
        at, size = self.labels[i] + steps, self.sizes[i]
        if cyclic:
            return self._relabelled(i, at % size if size else at)
        inside = (at >= 0) & (at < size)
        return self[inside]._relabelled(i, at[inside])

    def across(self, **sets: int) -> Terms:
        """Every entry in every row 0 … size − 1 of a further set: ``n.across(t=T)`` is n in each row t."""
        n, terms = len(self), self
        for name, size in sets.items():
            if name in self.sets:
                raise StatementError(f"the terms are labelled by {name} already")
            labels = tuple(np.repeat(part, size) for part in terms.labels)
            terms = Terms(
                (*terms.sets, name), (*terms.sizes, size),
                (Part((*labels, np.tile(np.arange(size), n)), np.repeat(terms.columns, size),
                      np.repeat(terms.coefficients, size)),),
            )  # fmt: skip
            n *= size
        return terms

    def dot(self, name: str, matrix: Any, new: str) -> Terms:
        """Σ over a set of matrix[set, new]·term: the rows are labelled by `new` where they were by `name`.

        Args:
            name: a set of the terms.
            matrix: (size of the set, size of the new set), dense or sparse; zeros make no entry.
            new: the new set's name.
        """
        i = self._position(name)
        a = sp.csr_array(matrix)
        a.eliminate_zeros()
        at = self.labels[i]
        if len(at) and at.max() >= a.shape[0]:
            raise StatementError(f"a matrix of {a.shape[0]} rows has none for {name} = {int(at.max())}")
        starts = a.indptr[at].astype(np.intp)
        many = a.indptr[at + 1] - starts
        entry = np.repeat(np.arange(len(at)), many)
        nonzero = np.arange(len(entry)) + np.repeat(starts - (np.cumsum(many) - many), many)
        labels = [part[entry] for part in self.labels]
        labels[i] = a.indices[nonzero].astype(np.intp)
        sets, sizes = list(self.sets), list(self.sizes)
        sets[i], sizes[i] = new, a.shape[1]
        part = Part(tuple(labels), self.columns[entry], self.coefficients[entry] * a.data[nonzero])
        return Terms(tuple(sets), tuple(sizes), (part,))

    def at(
        self, entries: Ints, labels: tuple[Any, ...], coefficient: npt.ArrayLike = 1.0, sets: tuple[str, ...] = ()
    ) -> Terms:
        """Entries placed in rows at will: entry ``entries[i]`` is a term of row ``labels[…][i]``.

        Args:
            entries: (n,) positions among these terms; the same one may be in many rows.
            labels: one array (n,) for each index of the rows, or a scalar for all.
            coefficient: (n,) or one for all, times the entries' own.
            sets: the labels' names, checked where terms are added.

        Raises:
            StatementError: an entry that does not exist, arrays that differ in length.
        """
        entries = as_ints(entries, "entries")
        if len(entries) and entries.max() >= len(self):
            raise StatementError(f"there is no entry {int(entries.max())}: the terms have {len(self)}")
        placed = tuple(
            np.full(len(entries), part, dtype=np.intp) if np.ndim(part) == 0 else as_ints(part, "labels")
            for part in labels
        )
        if any(len(part) != len(entries) for part in placed):
            raise StatementError(f"{len(entries)} entries have labels of lengths {[len(part) for part in placed]}")
        if sets and len(sets) != len(placed):
            raise StatementError(f"{len(placed)} indices are named {sets}")
        own = self.coefficients
        taken = np.broadcast_to(own[:1], len(entries)) if own.strides == (0,) else own[entries]  # all the same
        part = Part(placed, self.columns[entries], taken)
        return Terms(sets or ("",) * len(placed), sizes_of(placed), (part,)) * coefficient

    def _position(self, name: str) -> int:
        if name not in self.sets or not name:
            raise StatementError(f"the terms are labelled by {self.sets}, not by {name!r}")
        return self.sets.index(name)

    def _relabelled(self, i: int, at: Ints) -> Terms:
        labels = (*self.labels[:i], at, *self.labels[i + 1 :])
        return Terms(self.sets, self.sizes, (Part(labels, self.columns, self.coefficients),))


class Variable(Terms):
    """A variable over index sets, one column for each of its labels; as Terms, each column is in the row of its label.

    Attributes:
        name: name in the mathematics.
        index: its labels; a grid is row-major, so that ``values.reshape(index.sizes)`` is a table.
        start: its first column.
        lower, upper: (n,).
        integer: whether it is integer.
    """

    def __init__(
        self, name: str, sets: tuple[str, ...], over: Any, start: int, lower: Any, upper: Any, integer: bool
    ) -> None:
        try:
            self.index = index = Index(over)
            if len(index.sizes) != len(sets):
                raise StatementError(f"{len(sets)} sets, {sets}, and labels of {len(index.sizes)} indices")
            self.lower = by_label(lower, index, "the lower bound")
            self.upper = by_label(upper, index, "the upper bound")
        except StatementError as error:
            raise StatementError(f"variable {name}: {error}") from None
        self.name, self.start, self.integer = name, start, integer
        n = index.rows
        part = Part(index.labels, start + np.arange(n), np.broadcast_to(np.float64(1.0), n))
        super().__init__(sets, index.sizes, (part,))

    def find(self, *labels: Any) -> Ints:
        """(n,) positions of labels, for `at`.

        Raises:
            StatementError: the variable has no such label.
        """
        try:
            return self.index.find(tuple(as_ints(part, "labels") for part in labels))
        except StatementError as error:
            raise StatementError(f"variable {self.name}: {error}") from None

    def of(self, x: Array) -> Array:
        """(n,) its part of a solution."""
        return x[self.start : self.start + len(self)]


class Expression:
    """Σ coefficient·column + constant: a cost or a metric, to be optimised or read in a larger model."""

    __array_ufunc__ = None

    def __init__(self, terms: Terms | None = None, constant: float = 0.0) -> None:
        nothing = Part((), np.zeros(0, dtype=np.intp), np.zeros(0))
        self.terms = Terms((), (), (nothing,)) if terms is None else terms.by()
        self.constant = float(constant)
        if not np.isfinite(self.terms.coefficients).all() or not np.isfinite(self.constant):
            raise StatementError("a coefficient of an expression is no finite number")

    def __add__(self, other: Expression | Terms | float) -> Expression:
        if isinstance(other, Terms):
            other = Expression(other)
        if isinstance(other, Expression):
            return Expression(self.terms + other.terms, self.constant + other.constant)
        return Expression(self.terms, self.constant + other)

    __radd__ = __add__

    def __neg__(self) -> Expression:
        return self * -1.0

    def __sub__(self, other: Expression | Terms | float) -> Expression:
        return self + -other

    def __rsub__(self, other: Terms | float) -> Expression:
        return -self + other

    def __mul__(self, factor: float) -> Expression:
        return Expression(self.terms * factor, self.constant * factor)

    __rmul__ = __mul__

    def vector(self, columns: int) -> Array:
        """(columns,) coefficients."""
        used, costs = self.terms.columns, self.terms.coefficients
        return np.bincount(used, weights=costs, minlength=columns).astype(np.float64, copy=False)

    def value(self, x: Array) -> float:
        """At a solution."""
        return float(self.terms.coefficients @ x[self.terms.columns]) + self.constant
