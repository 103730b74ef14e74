"""Certified piecewise-linear latency tables with the fewest breakpoints.

Given a curve y(x) > 0 at n points (and, between them, the straight lines joining them), choose breakpoints among the
points, the two ends included, so that the curve through the breakpoints errs by at most E relatively. On each stretch
between neighbouring points both curves are affine, so their ratio is monotone there and the largest error lies at a
point: checking the n points certifies the whole interval. For a latency over whole batch sizes given at every batch
size this is the exact function, not a sample of it.

Fewest breakpoints by dynamic programming over the segments (i, j) that keep the error, found in O(n²) by shrinking the
cone of admissible slopes from i; least error for a given number of segments by the minimax recursion over the exact
segment errors. Both are optimal among tables whose rows are true values of the curve, which is what a table is: every
row can be measured again.

2-D (batch × context) tables interpolate bilinearly on a grid. For a fixed choice of contexts the fewest batch sizes
follow from the same recursion, a segment being admissible if it is for every context; all choices of contexts are
tried while there are at most `EXACT_CONTEXTS` of them inside, which makes the number of rows the least possible, and
otherwise only the nested family that 1-D tables of growing accuracy suggest (`proved_fewest` states which). Bilinear
interpolation errs most at a point of the fine grid along each axis, and the certificate also covers the cells between,
because a ratio of two functions that are affine along each axis takes its extremes at the corners of a fine cell.

Encoding, the cheapest exact one for "latency ≥ table" and "latency ≤ SLO": `linear` (one segment), `epigraph` (convex:
one inequality per segment, no binaries), `hypograph` (concave, where the table bounds from above, e.g. throughput) or
`segment_binaries`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from optmodels.arrays import Array, Index, Mask
from optmodels.errors import InputError, Mistake, Mistakes
from optmodels.latency.output import write_bytes

Encoding = Literal["linear", "epigraph", "hypograph", "segment_binaries"]
EXACT_CONTEXTS = 10
_SLACK = 1e-12
_STRAIGHT = 1e-9
_PREFIX = "# optmodels "


@dataclass(frozen=True)
class Table:
    """A piecewise-linear curve and its certificate.

    Attributes:
        x, y: (m,) breakpoints, x increasing. name_x, name_y: column names, unit in the name.
        max_error: Largest relative error against the curve it was made from.
        points: How many points that curve had.
        encoding: The cheapest exact encoding. binaries: how many it needs.
        provenance: Source of the curve.
    """

    x: Array
    y: Array
    max_error: float
    points: int
    encoding: Encoding
    binaries: int
    name_x: str = "x"
    name_y: str = "y"
    provenance: dict[str, str] = field(default_factory=dict)

    def __call__(self, x: npt.ArrayLike) -> Array:
        """Interpolated value; beyond the ends there is none (NaN)."""
        return np.interp(np.asarray(x, dtype=float), self.x, self.y, left=np.nan, right=np.nan)


@dataclass(frozen=True)
class Grid:
    """A bilinear table over batch × context and its certificate.

    Attributes:
        x: (m,) breakpoints of the first axis. z: (k,) of the second. y: (m, k) values.
        max_error, points, encoding, binaries: as in `Table`; the encoding is along x, for one z at a time.
        proved_fewest: No table with fewer rows keeps the error.
    """

    x: Array
    z: Array
    y: Array
    max_error: float
    points: int
    encoding: Encoding
    binaries: int
    proved_fewest: bool
    name_x: str = "x"
    name_z: str = "z"
    name_y: str = "y"
    provenance: dict[str, str] = field(default_factory=dict)

    def __call__(self, x: npt.ArrayLike, z: npt.ArrayLike) -> Array:
        """Bilinear interpolation, x and z of one shape; NaN outside."""
        from scipy.interpolate import RegularGridInterpolator

        look_up = RegularGridInterpolator((self.x, self.z), self.y, bounds_error=False, fill_value=np.nan)
        return look_up(np.stack(np.broadcast_arrays(np.asarray(x, float), np.asarray(z, float)), axis=-1))


def _checked(x: npt.ArrayLike, y: npt.ArrayLike, error: float | None) -> tuple[Array, Array]:
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    wrong = Mistakes()
    if x.ndim != 1 or y.ndim != 1 or len(x) != len(y) or len(x) < 2:
        wrong.add("points", f"{x.shape} and {y.shape}", "two lists of equal length, at least 2")
    elif not (np.isfinite(x).all() and np.isfinite(y).all()):
        wrong.add("points", "a value that is not finite", "finite numbers")
    elif (np.diff(x) <= 0).any():
        wrong.add("x", "not increasing", "each x once, in increasing order")
    elif (y <= 0).any():
        wrong.add("y", float(y.min()), "numbers > 0: relative errors need them")
    if error is not None and not (np.isfinite(error) and error >= 0):
        wrong.add("max_error", error, "a relative error ≥ 0, e.g. 0.02")
    wrong.raise_any()
    return x, y


def admissible(x: Array, y: Array, error: float) -> Mask:
    """(n, n): whether the straight line from point i to point j > i errs by at most `error` at the points between."""
    n = len(x)
    ok = np.zeros((n, n), dtype=bool)
    tolerance = error + _SLACK
    for i in range(n - 1):
        dx = x[i + 1 :] - x[i]
        least = np.maximum.accumulate((y[i + 1 :] * (1 - tolerance) - y[i]) / dx)
        most = np.minimum.accumulate((y[i + 1 :] * (1 + tolerance) - y[i]) / dx)
        slope = (y[i + 1 :] - y[i]) / dx
        # The cone from i through the points before j; j itself is met exactly.
        ok[i, i + 1 :] = np.concatenate(([True], (slope[1:] >= least[:-1]) & (slope[1:] <= most[:-1])))
    return ok


def fewest_breakpoints(ok: Mask) -> Index:
    """Indices of a shortest chain 0 → n−1 of admissible segments (dynamic programming)."""
    n = len(ok)
    count = np.full(n, n + 1)
    back = np.full(n, -1, dtype=np.intp)
    count[0] = 0
    for j in range(1, n):
        before = np.where(ok[:j, j], count[:j], n + 1)
        back[j] = int(before.argmin())
        count[j] = before[back[j]] + 1
    chain = [n - 1]
    while chain[-1] != 0:
        chain.append(int(back[chain[-1]]))
    return np.array(chain[::-1], dtype=np.intp)


def segment_errors(x: Array, y: Array) -> Array:
    """(n, n): largest relative error of the line i → j at the points between; infinite for j ≤ i."""
    n = len(x)
    found = np.full((n, n), np.inf)
    for i in range(n - 1):
        for j in range(i + 1, n):
            inside = slice(i + 1, j)
            line = y[i] + (y[j] - y[i]) * (x[inside] - x[i]) / (x[j] - x[i])
            found[i, j] = np.max(np.abs(line / y[inside] - 1.0), initial=0.0)
    return found


def least_error(x: Array, y: Array, segments: int) -> Index:
    """Indices of the breakpoints of at most `segments` segments with the least largest error (minimax recursion)."""
    n = len(x)
    cost = segment_errors(x, y)
    best = cost[0].copy()
    best[0] = 0.0
    backs = []
    for _ in range(min(segments, n - 1) - 1):
        through = np.maximum(best[:, None], cost)
        back = through.argmin(axis=0)
        new = through[back, np.arange(n)]
        stay = best <= new
        backs.append(np.where(stay, -1, back))
        best = np.where(stay, best, new)
    chain, j = [n - 1], n - 1
    for back in reversed(backs):
        if back[j] >= 0:
            j = int(back[j])
            chain.append(j)
    if chain[-1] != 0:
        chain.append(0)
    return np.array(chain[::-1], dtype=np.intp)


def encoding_of(x: Array, y: Array) -> tuple[Encoding, int]:
    """The cheapest exact encoding of a piecewise-linear curve, and its binaries."""
    slope = np.diff(y) / np.diff(x)
    bend = np.diff(slope)
    straight = _STRAIGHT * max(float(np.abs(slope).max()), 1e-300)
    if (np.abs(bend) <= straight).all():
        return "linear", 0
    if (bend >= -straight).all():
        return "epigraph", 0
    if (bend <= straight).all():
        return "hypograph", 0
    return "segment_binaries", len(slope)


def table(
    x: npt.ArrayLike, y: npt.ArrayLike, *, max_error: float | None = None, segments: int | None = None,
    name_x: str = "x", name_y: str = "y", provenance: Mapping[str, str] | None = None,
) -> Table:  # fmt: skip
    """Fewest breakpoints for a relative error, or least error for a number of segments.

    Args:
        x: (n,), increasing.
        y: (n,), the curve over `x`, > 0.
        max_error: largest relative error allowed, e.g. 0.02.
        segments: or the number of segments; exactly one of the two.
        name_x: column name.
        name_y: column name.
        provenance: kept with the table.

    Raises:
        InputError: bad points, or not exactly one of the two.
    """
    x, y = _checked(x, y, max_error)
    if (max_error is None) == (segments is None):
        raise InputError(Mistake(None, "max_error, segments", (max_error, segments), "exactly one of the two"))
    if segments is not None and segments < 1:
        raise InputError(Mistake(None, "segments", segments, "a whole number ≥ 1"))
    if max_error is not None:
        rows = fewest_breakpoints(admissible(x, y, max_error))
    else:
        rows = least_error(x, y, int(segments or 1))
    error = float(np.abs(np.interp(x, x[rows], y[rows]) / y - 1.0).max())
    encoding, binaries = encoding_of(x[rows], y[rows])
    return Table(x[rows], y[rows], error, len(x), encoding, binaries, name_x, name_y, dict(provenance or {}))


def grid(
    x: npt.ArrayLike, z: npt.ArrayLike, y: npt.ArrayLike, *, max_error: float, name_x: str = "x", name_z: str = "z",
    name_y: str = "y", provenance: Mapping[str, str] | None = None,
) -> Grid:  # fmt: skip
    """The bilinear table with fewest rows (|x| × |z|) that keeps a relative error.

    Args:
        x: (n,) axis, increasing.
        z: (l,) axis, increasing.
        y: (n, l) values > 0.
        max_error: largest relative error.
        name_x: column name.
        name_z: column name.
        name_y: column name.
        provenance: kept with the table.

    Raises:
        InputError: bad points.
    """
    y = np.asarray(y, dtype=float)
    x = np.asarray(x, dtype=float)
    z = np.asarray(z, dtype=float)
    if y.ndim != 2 or y.shape != (len(x), len(z)):
        raise InputError(Mistake(None, "y", str(y.shape), f"one value for each of {len(x)} × {len(z)} points"))
    for column in y.T:
        _checked(x, column, max_error)
    for row in y:
        _checked(z, row, max_error)
    inner = len(z) - 2
    proved = inner <= EXACT_CONTEXTS
    best: tuple[int, Index, Index] | None = None
    for chosen in _context_choices(z, y, max_error, proved):
        if best is not None and len(chosen) * 2 >= best[0]:
            continue  # even two batch sizes would not be fewer rows
        rows = _rows_for(x, z, y, chosen, max_error)
        if rows is not None and (best is None or len(rows) * len(chosen) < best[0]):
            best = (len(rows) * len(chosen), rows, chosen)
    assert best is not None  # all contexts and all batch sizes err by nothing
    _, rows, chosen = best
    through = _interpolate(x, z, x[rows], z[chosen], y[np.ix_(rows, chosen)])
    error = float(np.abs(through / y - 1.0).max())
    found = [encoding_of(x[rows], y[rows, c]) for c in chosen]
    names = {e for e, _ in found} - {"linear"}
    encoding: Encoding = "linear" if not names else names.pop() if len(names) == 1 else "segment_binaries"
    return Grid(
        x[rows],
        z[chosen],
        y[np.ix_(rows, chosen)],
        error,
        y.size,
        encoding,
        (len(rows) - 1) if encoding == "segment_binaries" else 0,
        proved,
        name_x,
        name_z,
        name_y,
        dict(provenance or {}),
    )


def _context_choices(z: Array, y: Array, error: float, all_of_them: bool) -> list[Index]:
    """Sets of contexts to try, fewest first."""
    n = len(z)
    if all_of_them:
        return [
            np.array([0, *inside, n - 1], dtype=np.intp)
            for k in range(n - 1)
            for inside in itertools.combinations(range(1, n - 1), k)
        ]
    found = []
    for share in np.linspace(0.0, 1.0, 11):
        ok = np.ones((n, n), dtype=bool)
        for row in y:
            ok &= admissible(z, row, error * share)
        found.append(fewest_breakpoints(ok))
    found.append(np.arange(n, dtype=np.intp))
    return sorted(found, key=len)


def _rows_for(x: Array, z: Array, y: Array, chosen: Index, error: float) -> Index | None:
    """Fewest batch sizes for these contexts, or None where none suffice."""
    n = len(x)
    through = np.stack([np.interp(z, z[chosen], row[chosen]) for row in y])  # (n, l) interpolated along z only
    good = np.asarray((np.abs(through / y - 1.0) <= error + _SLACK).all(axis=1))  # rows that may be breakpoints
    if not (good[0] and good[-1]):
        return None
    ok = np.zeros((n, n), dtype=bool)
    for i in np.flatnonzero(good[:-1]):
        dx = x[i + 1 :, None] - x[i]
        least = np.maximum.accumulate((y[i + 1 :] * (1 - error - _SLACK) - through[i]) / dx, axis=0)
        most = np.minimum.accumulate((y[i + 1 :] * (1 + error + _SLACK) - through[i]) / dx, axis=0)
        slope = (through[i + 1 :] - through[i]) / dx
        inside = ((slope[1:] >= least[:-1]) & (slope[1:] <= most[:-1])).all(axis=1)
        ok[i, i + 1 :] = np.concatenate(([True], inside)) & good[i + 1 :]
    reach = np.zeros(n, dtype=bool)
    reach[0] = True
    for j in range(1, n):
        reach[j] = (reach[:j] & ok[:j, j]).any()
    return fewest_breakpoints(ok & reach[:, None]) if reach[-1] else None


def _interpolate(x: Array, z: Array, xs: Array, zs: Array, ys: Array) -> Array:
    along_z = np.stack([np.interp(z, zs, row) for row in ys])
    return np.stack([np.interp(x, xs, column) for column in along_z.T], axis=1)


# ---------------------------------------------------------------------------------------------- files


def _certificate(t: Table | Grid) -> dict[str, object]:
    kept: dict[str, object] = {
        "schema": 1,
        "kind": "grid" if isinstance(t, Grid) else "table",
        "max_error": t.max_error,
        "points": t.points,
        "encoding": t.encoding,
        "binaries": t.binaries,
        "provenance": t.provenance,
    }
    if isinstance(t, Grid):
        kept["proved_fewest"] = t.proved_fewest
    return kept


def write(path: Path, t: Table | Grid, *, overwrite: bool = False) -> None:
    """Write a table as CSV (certificate in comment lines) or Parquet (in the schema's metadata), by suffix.

    Raises:
        InputError: the file exists, or the folder cannot be written to.
    """
    import io

    import pandas as pd

    if isinstance(t, Grid):
        i, k = np.meshgrid(t.x, t.z, indexing="ij")
        frame = pd.DataFrame({t.name_x: i.ravel(), t.name_z: k.ravel(), t.name_y: t.y.ravel()})
    else:
        frame = pd.DataFrame({t.name_x: t.x, t.name_y: t.y})
    head = json.dumps(_certificate(t), ensure_ascii=False)
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrow = pa.Table.from_pandas(frame, preserve_index=False)
        arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), b"optmodels": head.encode()})
        sink = io.BytesIO()
        pq.write_table(arrow, sink)
        write_bytes(path, sink.getvalue(), overwrite=overwrite)
    else:
        text = _PREFIX + head + "\n" + frame.to_csv(index=False, float_format="%.17g")
        write_bytes(path, text.encode(), overwrite=overwrite)


def read(path: Path) -> Table | Grid:
    """Read back what `write` wrote.

    Raises:
        InputError: not such a file.
    """
    import pandas as pd

    name = str(path)
    if not path.is_file():
        raise InputError(Mistake(name, "", "no such file", "a table written by optmodels"))
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            arrow = pq.read_table(path)
            head = (arrow.schema.metadata or {})[b"optmodels"].decode()
            frame = arrow.to_pandas()
        else:
            with path.open(encoding="utf-8") as handle:
                line = handle.readline()
            head = line.removeprefix(_PREFIX)
            # Python's own float(): pandas' parser may be off in the last digit.
            frame = pd.read_csv(path, comment="#", dtype=str).map(float)
        kept = json.loads(head)
        common = {k: kept[k] for k in ("max_error", "points", "encoding", "binaries", "provenance")}
        names = [str(c) for c in frame.columns]
        if kept["kind"] == "grid":
            x, z = np.unique(frame[names[0]]), np.unique(frame[names[1]])
            y = np.asarray(frame.sort_values(names[:2])[names[2]], dtype=float).reshape(len(x), len(z))
            return Grid(
                x,
                z,
                y,
                proved_fewest=kept["proved_fewest"],
                name_x=names[0],
                name_z=names[1],
                name_y=names[2],
                **common,
            )
        x, y = (np.asarray(frame[c], dtype=float) for c in names)
        return Table(x, y, name_x=names[0], name_y=names[1], **common)
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise InputError(
            Mistake(name, "", str(error).split("\n")[0], "a table written by optmodels, certificate included")
        ) from None
