"""False values for every scalar of a plan."""

import copy
import operator

from optmodels.latency.strategies import FAMILIES

RUBBISH = [None, "", "text", [], {}, -1, 0, 10**400, float("nan"), float("inf"), True]


def leaves(data, path=()):
    """Paths of all scalars of a JSON document."""
    if isinstance(data, dict):
        for k, v in data.items():
            yield from leaves(v, (*path, k))
    elif isinstance(data, list):
        for i, v in enumerate(data):
            yield from leaves(v, (*path, i))
    else:
        yield path


def changed_at(data, path, change):
    """A copy of the document on the way to a place, the rest shared, with `change` made to what holds the place."""
    outer = inner = copy.copy(data)
    for part in path[:-1]:
        inner[part] = copy.copy(inner[part])
        inner = inner[part]
    change(inner, path[-1])
    return outer


def replaced(data, path, value):
    """The document with one value replaced."""
    return changed_at(data, path, lambda inner, key: operator.setitem(inner, key, value))


def value_at(data, path):
    for part in path:
        data = data[part]
    return data


def other_values(path, value):
    """Wrong values of the same type, the likeliest lies first."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, 0, -value, value * 1000]
    if isinstance(value, float):
        return [value * 0.99 - 1e-3, value * 1.01 + 1e-3, value * 2 + 1, -value - 1.0]
    if path[-1] == "family":
        return [f for f in FAMILIES if f != value]
    if path[-1] == "market":
        return [m for m in ("on_demand", "spot", "reserved_1y", "reserved_3y") if m != value]
    if path[-1] == "role":
        return [r for r in ("main", "ao") if r != value]
    if path[-1] == "sense":
        return [s for s in ("<=", ">=") if s != value]
    if isinstance(value, str):
        return [value + "x", "big" if value != "big" else "small"]
    return [1.0]  # where there is none: an invented figure


def pattern(path):
    """A path with [] for every index: plan.limits[].value."""
    return "".join("[]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def sampled(paths, most=2):
    """Of the paths of one pattern the first, the last and, with `most` above 2, some between."""
    by = {}
    for path in paths:
        by.setdefault(pattern(path), []).append(path)
    for group in by.values():
        steps = range(min(most, len(group)))
        yield from {group[round(i * (len(group) - 1) / max(most - 1, 1))]: None for i in steps}


def lies(path, value):
    """False values of a leaf: another number or name, the other sign, nothing."""
    return [*other_values(path, value), *([] if value is None else [None])]


def without(data, path):
    """The document without one key or entry."""
    return changed_at(data, path, operator.delitem)


def containers(data, path=()):
    """Paths of all lists and objects, the document itself not."""
    for k, v in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(v, dict | list):
            yield (*path, k)
            yield from containers(v, (*path, k))


def mutants(document, elsewhere=()):
    """(what, path, document with one thing changed), for every kind of place in the document.

    Every scalar gets other values, every key is left out, every entry of a list left out and doubled; of many equal
    places (entries of a list) the first and the last, this one with two other values only, as the patterns of places
    `elsewhere` that another document tries in full.
    """
    seen = set(elsewhere)
    for path in sampled(leaves(document)):
        every = lies(path, value_at(document, path))
        for wrong in every[:2] if pattern(path) in seen else every:
            yield f"{pattern(path)} = {wrong!r}", path, replaced(document, path, wrong)
        seen.add(pattern(path))
    lists = {p for p in containers(document) if isinstance(value_at(document, p), list)}
    keys = [p for p in [*leaves(document), *containers(document)] if not isinstance(p[-1], int)]
    for path in sampled(keys):
        yield f"{pattern(path)} left out", path, without(document, path)
    for path in sampled(sorted(lists, key=pattern)):
        entries = value_at(document, path)
        for i in {0, len(entries) - 1} if entries else ():
            yield f"{pattern(path)}[{i}] left out", path, without(document, (*path, i))
            yield f"{pattern(path)}[{i}] doubled", path, replaced(document, path, [*entries[: i + 1], *entries[i:]])


def table_mutants(rows):
    """(what, rows with one thing changed) of a CSV file as lists of text: every column, some rows."""
    body = range(1, len(rows))
    some = sorted({len(rows) // 2, len(rows) - 1} & set(body))
    for column in range(len(rows[0])):
        yield f"heading {rows[0][column]}", replaced(rows, (0, column), rows[0][column] + "x")
        for i in some:
            cell = rows[i][column]
            for wrong in ("", "7.25", f"-{cell}") if i == some[0] else ("7.25",):
                if wrong != cell and not (_number(cell) == _number(wrong) is not None):
                    yield f"{rows[0][column]} = {wrong!r} in row {i}", replaced(rows, (i, column), wrong)
    for i in some:
        yield f"row {i} left out", rows[:i] + rows[i + 1 :]
        yield f"row {i} doubled", rows[: i + 1] + rows[i:]
        if i > 1 and rows[i] != rows[i - 1]:
            yield f"rows {i - 1} and {i} swapped", [*rows[: i - 1], rows[i], rows[i - 1], *rows[i + 1 :]]


def _number(text):
    try:
        return float(text)
    except ValueError:
        return None
