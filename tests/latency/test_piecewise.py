"""Tables: fewest breakpoints against brute force, certificates between points, encodings, round trips."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optmodels.errors import InputError
from optmodels.latency import piecewise as pw


def brute(x, y, error):
    """Fewest breakpoints by trying every subset."""
    n = len(x)
    for k in range(n - 1):
        for inside in itertools.combinations(range(1, n - 1), k):
            rows = [0, *inside, n - 1]
            if np.abs(np.interp(x, x[rows], y[rows]) / y - 1).max() <= error + 1e-12:
                return k + 2
    return n


curves = st.integers(2, 9).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(1, 20), min_size=n, max_size=n).map(lambda d: np.cumsum(d).astype(float)),
        st.lists(st.floats(0.1, 10), min_size=n, max_size=n).map(np.array),
    )
)


@settings(max_examples=150, deadline=None)
@given(curves, st.floats(0, 0.8))
def test_fewest_breakpoints_and_certificate(curve, error):
    x, y = curve
    t = pw.table(x, y, max_error=error)
    assert len(t.x) == brute(x, y, error)
    assert t.max_error <= error + 1e-11
    fine = np.linspace(x[0], x[-1], 400)  # also between the points
    assert np.abs(t(fine) / np.interp(fine, x, y) - 1).max() <= t.max_error + 1e-9


@settings(max_examples=60, deadline=None)
@given(curves, st.integers(1, 5))
def test_least_error_for_a_number_of_segments(curve, segments):
    x, y = curve
    t = pw.table(x, y, segments=segments)
    n = len(x)
    best = min(
        np.abs(np.interp(x, x[r], y[r]) / y - 1).max()
        for k in range(min(segments, n - 1))
        for r in ([0, *inside, n - 1] for inside in itertools.combinations(range(1, n - 1), k))
    )
    assert len(t.x) <= segments + 1 and t.max_error == pytest.approx(best, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(2, 5), st.floats(0, 0.5), st.integers(0, 10**6))
def test_2d_tables_have_the_fewest_rows(n, m, error, seed):
    rng = np.random.default_rng(seed)
    x, z = np.cumsum(rng.integers(1, 9, n)).astype(float), np.cumsum(rng.integers(1, 9, m)).astype(float)
    y = 1 + x[:, None] * 0.1 + z * 0.05 + 0.01 * x[:, None] * z + rng.uniform(0, 1, (n, m))
    g = pw.grid(x, z, y, max_error=error)
    assert g.proved_fewest and g.max_error <= error + 1e-11
    fewest = min(
        len(r) * len(c)
        for r in ([0, *i, n - 1] for k in range(n - 1) for i in itertools.combinations(range(1, n - 1), k))
        for c in ([0, *i, m - 1] for k in range(m - 1) for i in itertools.combinations(range(1, m - 1), k))
        if np.abs(pw._interpolate(x, z, x[r], z[c], y[np.ix_(r, c)]) / y - 1).max() <= error + 1e-12
    )
    assert g.y.size == fewest
    X, Z = np.meshgrid(np.linspace(x[0], x[-1], 25), np.linspace(z[0], z[-1], 25), indexing="ij")
    full = pw.Grid(x, z, y, 0, y.size, "linear", 0, True)
    assert np.abs(g(X, Z) / full(X, Z) - 1).max() <= g.max_error + 1e-9


def test_encodings():
    x = np.arange(1.0, 30.0)
    assert pw.table(x, 3 + 2 * x, max_error=0.0).encoding == "linear"
    convex = pw.table(x, 5 + 0.1 * x**2, max_error=0.02)
    assert (convex.encoding, convex.binaries) == ("epigraph", 0) and 2 < len(convex.x) < 15
    assert pw.table(x, x / (5 + x), max_error=0.01).encoding == "hypograph"  # throughput b/τ(b): concave
    wave = pw.table(x, 10 + np.sin(x), max_error=0.01)
    assert wave.encoding == "segment_binaries" and wave.binaries == len(wave.x) - 1


def test_epigraph_inequalities_are_the_table():
    x = np.arange(1.0, 30.0)
    t = pw.table(x, 5 + 0.1 * x**2, max_error=0.05)
    slope = np.diff(t.y) / np.diff(t.x)
    lines = t.y[:-1, None] + slope[:, None] * (x - t.x[:-1, None])
    np.testing.assert_allclose(lines.max(axis=0), t(x))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_round_trip_with_provenance(tmp_path, suffix):
    x = np.arange(1.0, 20.0)
    t = pw.table(
        x,
        1 / 3 + 0.01 * x**2,
        max_error=0.03,
        name_x="batch",
        name_y="latency_s",
        provenance={"file": "m.csv"},
    )
    path = tmp_path / f"t.{suffix}"
    pw.write(path, t)
    again = pw.read(path)
    np.testing.assert_array_equal(again.x, t.x)
    np.testing.assert_array_equal(again.y, t.y)
    assert (again.max_error, again.encoding, again.provenance, again.name_x) == (
        t.max_error,
        t.encoding,
        t.provenance,
        "batch",
    )
    with pytest.raises(InputError, match="existing file"):
        pw.write(path, t)
    pw.write(path, t, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    g = pw.grid(x, [1.0, 2.0, 3.0], np.outer(x, [1.0, 1.5, 1.7]), max_error=0.01)
    pw.write(tmp_path / f"g.{suffix}", g)
    same = pw.read(tmp_path / f"g.{suffix}")
    np.testing.assert_array_equal(same.y, g.y)
    assert same.proved_fewest == g.proved_fewest


@pytest.mark.parametrize(
    ("x", "y", "error"),
    [
        ([1], [1], 0.1),
        ([1, 1], [1, 1], 0.1),
        ([2, 1], [1, 1], 0.1),
        ([1, 2], [1, 0], 0.1),
        ([1, 2], [1, np.nan], 0.1),
        ([1, 2], [1, 1], -1),
        ([1, 2], [1, 1], np.nan),
        ([1, 2, 3], [1, 1], 0.1),
    ],
)
def test_mistakes_are_named(x, y, error):
    with pytest.raises(InputError) as raised:
        pw.table(x, y, max_error=error)
    assert raised.value.mistakes[0].expected


def test_a_foreign_file_is_named(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="certificate"):
        pw.read(tmp_path / "t.csv")
