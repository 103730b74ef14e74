"""Arrays: what every module calls numbers, counts, positions and truths, and tables of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]  # HiGHS' positions
Index = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Columns:
    """A table: arrays, or tables again, of which the last axis is its entries; any other value is of all of them."""

    def __len__(self) -> int:
        return int(getattr(self, fields(self)[0].name).shape[-1])

    def take(self, which: Index | Mask) -> Self:
        """The given entries."""
        return type(self)(**{f.name: _taken(getattr(self, f.name), which) for f in fields(self)})

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The entries of every part in turn; values that are no arrays are the first part's."""
        return cls(**{f.name: _joined([getattr(part, f.name) for part in parts]) for f in fields(cls)})


def _taken(value: Any, which: Index | Mask) -> Any:
    if isinstance(value, Columns):
        return value.take(which)
    return value[..., which] if isinstance(value, np.ndarray) else value


def _joined(values: list[Any]) -> Any:
    if isinstance(values[0], Columns):
        return values[0].joined(values)
    return np.concatenate(values, axis=-1) if isinstance(values[0], np.ndarray) else values[0]
