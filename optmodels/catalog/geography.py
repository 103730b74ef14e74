"""Regions, round-trip times and demand curves of the catalogue; sources and licences head the data files."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

import numpy as np

from optmodels.arrays import Array
from optmodels.catalog.types import Entry

_DATA = files("optmodels.catalog") / "data"
EARTH_RADIUS_KM = 6371.0
GEODESIC_MS_PER_KM = 0.01623
GEODESIC_MS = 5.93


class Location(Entry):
    """A cloud region: where it is and what its clocks show."""

    region: str
    provider: str
    city: str
    latitude_deg: float
    longitude_deg: float
    time_zone: str


def _rows(name: str) -> list[list[str]]:
    text = (_DATA / name).read_text(encoding="utf-8")
    return list(csv.reader(line for line in text.splitlines() if not line.startswith("#")))


@cache
def places() -> dict[str, Location]:
    """Every cloud region of the catalogue by its name."""
    head, *rows = _rows("network/regions.csv")
    return {
        row[0]: Location(
            region=row[0], provider=row[1], city=row[2], latitude_deg=float(row[3]), longitude_deg=float(row[4]),
            time_zone=row[5],
        ) for row in rows if len(row) == len(head)
    }  # fmt: skip


@cache
def egress_prices(name: str) -> dict[str, dict[str, float]]:
    """USD per GB from a region to another, ``*``: to any other; by the region that sends.

    Raises:
        KeyError: no such table.
    """
    if name not in egress_tables():
        raise KeyError(name)
    out: dict[str, dict[str, float]] = {}
    for source, destination, price in _rows(f"egress/{name}.csv")[1:]:
        out.setdefault(source, {})[destination] = float(price)
    return out


def egress_tables() -> tuple[str, ...]:
    """Names of the shipped tables of egress prices."""
    return tuple(sorted(f.name.removesuffix(".csv") for f in (_DATA / "egress").iterdir() if f.name.endswith(".csv")))


@cache
def round_trip_times(name: str) -> tuple[tuple[str, ...], Array]:
    """Region names and their measured round-trip times, ms, shape (R, R).

    Raises:
        KeyError: no such table.
    """
    if name not in networks():
        raise KeyError(name)
    head, *rows = _rows(f"network/{name}.csv")
    return tuple(head[1:]), np.array([[float(v) for v in row[1:]] for row in rows])


@cache
def networks() -> tuple[str, ...]:
    """Names of the shipped round-trip tables."""
    files = (f.name for f in (_DATA / "network").iterdir() if f.name.endswith(".csv") and f.name != "regions.csv")
    return tuple(sorted(f.removesuffix(".csv") for f in files))


@cache
def weekly_curves() -> dict[str, Array]:
    """Demand over a week from Monday 00:00 in units of its mean, shape (168,), by curve name."""
    head, *rows = _rows("demand/weekly_curves.csv")
    table = np.array([[float(v) for v in row] for row in rows])
    return {name: table[:, i] for i, name in enumerate(head) if i}


@cache
def land() -> tuple[tuple[tuple[tuple[float, float], ...], ...], ...]:
    """Outlines of the continents for maps: polygons as rings of (longitude, latitude), degrees."""
    polygons: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for polygon, ring, longitude, latitude in _rows("map/land.csv")[1:]:
        polygons.setdefault(polygon, {}).setdefault(ring, []).append((float(longitude), float(latitude)))
    return tuple(tuple(tuple(points) for points in rings.values()) for rings in polygons.values())


def geodesic_round_trip_ms(latitude_deg: Array, longitude_deg: Array) -> Array:
    """Round-trip times estimated from great-circle distance, ms, shape (R, R).

    0.0162 ms/km + 5.9 ms, the relative least-squares fit to the shipped AWS table (median error 14 %, p90 35 %);
    zero distance is given the constant.
    """
    phi, lam = np.radians(latitude_deg), np.radians(longitude_deg)
    cosine = np.sin(phi)[:, None] * np.sin(phi) + np.cos(phi)[:, None] * np.cos(phi) * np.cos(lam[:, None] - lam)
    km = EARTH_RADIUS_KM * np.arccos(np.clip(cosine, -1.0, 1.0))
    rtt: Array = GEODESIC_MS + GEODESIC_MS_PER_KM * km
    return rtt
