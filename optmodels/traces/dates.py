"""Dates and times of traces as tools write them: ISO 8601, mail headers, web servers' logs, spreadsheets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

EXPECTED = "a date and time such as 2023-11-16 18:15:46.6805900"
BOTH = "a date that names its month: 2024-05-01 18:15:46; 05/01/2024 may be of January or of May"
_SLASHES = re.compile(r"\s*(\d{1,2})[/-](\d{1,2})[/-]\d{4}\b")
_CLOCKS = ("%H:%M:%S", "%H:%M:%S.%f", "%I:%M:%S %p", "%H:%M", "%I:%M %p")
_OTHERS = (
    "%a, %d %b %Y %H:%M:%S %z", "%d/%b/%Y:%H:%M:%S %z", "%a %b %d %H:%M:%S %Y",
    *(f"{day} {clock}" for day in ("%d.%m.%Y", "%d %b %Y", "%b %d, %Y", "%b %d, %Y @") for clock in _CLOCKS),
)  # fmt: skip


def read(cells: pd.Series[Any]) -> pd.Series[Any]:
    """Points of time, UTC where no zone is stated; NaT where a cell is none."""
    import pandas as pd

    found: pd.Series[Any] = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)
    if cells.dtype.kind != "O" or not (left := found.isna() & ~cells.isna()).any():
        return found
    text = cells[left].astype(str).str.strip().str.strip("[]").str.replace(r"\s*\b(UTC|GMT|Z)$", "+0000", regex=True)
    text = text.str.replace(r"(:\d\d),(\d+)", r"\1.\2", regex=True).str.replace(
        r"(:\d\d)\+0000$", r"\1 +0000", regex=True
    )
    order = _order(text)
    slashed = () if order is None else tuple(f"{order} {clock}" for clock in _CLOCKS)
    for form in ("ISO8601", *slashed, *_OTHERS):
        told = pd.to_datetime(text, format=form, errors="coerce", utc=True)
        if not told.isna().all():
            found = found.astype("datetime64[ns, UTC]")
            found.loc[told.index] = told.astype("datetime64[ns, UTC]")
            break
    return found


def either(cells: pd.Series[Any]) -> bool:
    """Whether dates state numbers alone, of which none tells which of the two is the month."""
    return bool(cells.astype(str).map(lambda x: bool(_SLASHES.match(x))).any()) and _order(cells.astype(str)) is None


def _order(text: pd.Series[Any]) -> str | None:
    """Format of dates such as 05/28/2024: a number above 12 is the day; None: no such dates, or none tells."""
    pairs = [(int(m[1]), int(m[2])) for m in map(_SLASHES.match, text) if m is not None]
    first, second = (max((p[i] for p in pairs), default=0) for i in (0, 1))
    if max(first, second) <= 12 or min(first, second) > 12:
        return None
    sign = "-" if "-" in text.iloc[0][:3] else "/"
    return sign.join(("%d", "%m", "%Y") if first > 12 else ("%m", "%d", "%Y"))
