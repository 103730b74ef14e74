"""Right files made wrong: structure, types, sizes, encodings."""

from __future__ import annotations

import contextlib
import copy
import csv
import gzip
import io
import json
import random
from typing import Any

import yaml

NUMBERS = (0, -1, 1, 2, -0.0, 0.5, 1e-9, 1e-30, 1e300, -1e300, 1e9, 10**6, 10**12, 2**63, -(2**63), 10**30, 10**5000,
           float("nan"), float("inf"), float("-inf"), 1e-320)  # fmt: skip
TEXTS = (
    "", " ", "x", "*", "\x00", "\x1b[31m", "\ud800", "é" * 50, "名前", "\u202eabc", "x" * 5000, "<b>", "=1+1",
    "@SUM(A1)", "../../etc/passwd", "/etc/passwd", "nan", "inf", "-1", "1e400", "0x10", "1_000", "12:30:45",
    "2026-13-45", "200 ms", "48 GiB", "1e3 furlongs", "null", "true", "~", "{{7*7}}", "%s", "a,b", "a\nb", '"', "'",
    "[x]", "a.b", "a/b",
)  # fmt: skip
TAGS = (
    '!!int ""', '!!int "x"', '!!bool "maybe"', '!!float ""', '!!timestamp "abc"', "!!python/object:os.system {}",
    "!!binary 'x'", "!!set {a, b}", "!!omap [a: 1]", "!!null x", "!thing x", "0x" + "f" * 6000, "1" * 5000, "*nowhere",
    "&a [*a]", "2026-02-30", "1:2:3", ".nan", ".inf", "<<", "!!merge x", "{<<: [1, 2]}", "{? [a, b] : c}", "{1: 2}",
    "{null: 1}", "{true: 1}", "{1.5: x}", "{2026-01-01: x}",
)  # fmt: skip


def mutated(content: Any, name: str, rng: random.Random) -> bytes:
    """The bytes of a file that is the content with one to four things changed.

    Args:
        content: a document (mapping or list), or text or bytes.
        name: of the file, whose ending says how a document is written.
        rng: decides everything.
    """
    changes = rng.choice((1, 1, 1, 2, 2, 3, 4))
    if isinstance(content, dict | list):
        document = copy.deepcopy(content)
        for _ in range(changes):
            with contextlib.suppress(RecursionError):  # of copies of what an earlier change made deep
                document = changed(document, rng)
        data = written(document, name, rng).encode("utf-8", "surrogatepass")
    elif name.endswith(".parquet"):
        data = _parquet(content, rng)
    else:
        packed = isinstance(content, bytes)
        text = gzip.decompress(content).decode() if packed else content
        for _ in range(changes):
            text = _lines(text, rng) if name.endswith(".jsonl") else _cells(text, rng)
        data = text.encode("utf-8", "surrogatepass")
        data = gzip.compress(data, mtime=0) if packed else data
    return _bytes(data, rng) if rng.random() < 0.12 else data


def changed(document: Any, rng: random.Random) -> Any:
    """One thing of a document changed in its place, or the document replaced."""
    places = list(_places(document))
    if not places:
        return value(None, rng)
    parent, key = rng.choice(places)
    old = parent[key]
    match rng.randrange(12):
        case 0:
            del parent[key]
        case 1 | 2 | 3 | 4:
            parent[key] = value(old, rng)
        case 5:
            parent[key] = [old] if rng.random() < 0.5 else {"x": old}
        case 6:
            other, at = rng.choice(places)
            parent[key] = copy.deepcopy(other[at])
        case 7 if isinstance(old, list):
            parent[key] = rng.choice(([], old * 2, old[::-1], old[:1], [*old, value(None, rng)], old * 200))
        case 7 if isinstance(old, dict):
            parent[key] = rng.choice(({}, dict(reversed(old.items())), old | {rng.choice(TEXTS): value(None, rng)}))
        case 8 if isinstance(parent, dict):
            parent[rng.choice((str(key) + "x", str(key).upper(), rng.choice(TEXTS)))] = parent.pop(key)
        case 9 if isinstance(old, int | float) and not isinstance(old, bool):
            try:
                parent[key] = old * rng.choice((-1, 0.001, 0.1, 0.9, 1.1, 10, 1000, 1e6, 1e12))
            except OverflowError:
                parent[key] = 0
        case 10:
            deep: Any = old
            for _ in range(rng.choice((3, 30, 70, 2000))):
                deep = [deep]
            parent[key] = deep
        case _:
            if isinstance(parent, list):
                parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(old))
            else:
                parent[rng.choice(("__class__", "x", "name", "kind", "schema"))] = value(old, rng)
    return document


def value(old: Any, rng: random.Random) -> Any:
    """Another value, mostly of another kind."""
    as_text = old if isinstance(old, list | dict | int) else str(old)
    return rng.choice((
        rng.choice(NUMBERS), rng.choice(NUMBERS), rng.choice(TEXTS), None, True, False, [], {}, [None], [[]], as_text,
        [rng.choice(NUMBERS)] * 3, {"a": rng.choice(NUMBERS)}, _Tag(rng.choice(TAGS)),
    ))  # fmt: skip


class _Tag(str):
    """Text that stands in YAML as it is, and in JSON as a text."""

    __slots__ = ()


def written(document: Any, name: str, rng: random.Random) -> str:
    """JSON or YAML text; deep documents are written as far as the writer can."""
    try:
        if name.endswith(".json"):
            return json.dumps(document, ensure_ascii=rng.random() < 0.7)
        tags: list[str] = []
        text = yaml.dump(_marked(document, tags), Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=True,
                         default_flow_style=rng.choice((None, True, False)))  # fmt: skip
        for number, tag in enumerate(tags):
            text = text.replace(f"tag-{number}-tag", tag)
        return text
    except (RecursionError, ValueError):  # too deep, or more digits than Python writes
        return "[" * 3000 if rng.random() < 0.5 else "{a: " * 200 + "1" * 6000


def _marked(data: Any, tags: list[str]) -> Any:
    if isinstance(data, _Tag):
        tags.append(str(data))
        return f"tag-{len(tags) - 1}-tag"
    if isinstance(data, dict):
        return {k: _marked(v, tags) for k, v in data.items()}
    return [_marked(v, tags) for v in data] if isinstance(data, list) else data


def _places(data: Any) -> Any:
    """(parent, key) of everything in a document, however deep."""
    left = [data]
    while left:
        data = left.pop()
        for key, inner in list(data.items() if isinstance(data, dict) else enumerate(data)):
            yield data, key
            if isinstance(inner, dict | list):
                left.append(inner)


def _cells(text: str, rng: random.Random) -> str:
    """CSV text with a cell, a row, a column or its layout changed."""
    rows = list(csv.reader(text.splitlines())) or [[]]
    row = rng.choice(rows)
    match rng.randrange(10):
        case 0:
            del rows[rng.randrange(len(rows))]
        case 1:
            rows.insert(rng.randrange(len(rows) + 1), list(row))
        case 2 if row:
            del row[rng.randrange(len(row))]
        case 3:
            row.insert(rng.randrange(len(row) + 1), str(rng.choice(TEXTS)))
        case 4:
            at = rng.randrange(1 + max(map(len, rows)))
            for other in rows:
                other[at : at + 1] = [] if rng.random() < 0.98 else ["x"]
        case 5:
            del rows[rng.randrange(3) :]
        case 6:
            rows = [rows[0], *rows[:0:-1]]
        case _ if row:
            number = rng.choice(NUMBERS[:-6] + NUMBERS[-4:])
            row[rng.randrange(len(row))] = str(rng.choice((number, rng.choice(TEXTS), "1" * 400, "1" * 5000)))
        case _:
            row.append("x")
    out = io.StringIO()
    csv.writer(out, lineterminator=rng.choice(("\n", "\n", "\n", "\r\n", "\r"))).writerows(rows)
    return out.getvalue()


def _lines(text: str, rng: random.Random) -> str:
    """JSON lines with one of them changed."""
    lines = text.splitlines()
    if not lines:
        return "{}\n"
    at = rng.randrange(len(lines))
    try:
        lines[at] = json.dumps(changed(json.loads(lines[at]), rng))
    except (RecursionError, ValueError, AttributeError, TypeError):
        lines[at] = rng.choice(("[" * 3000, "{", "null", "", "1" * 6000))
    return "\n".join(lines) + "\n"


def _parquet(data: bytes, rng: random.Random) -> bytes:
    import pandas as pd

    frame = pd.read_parquet(io.BytesIO(data))
    column = rng.choice(list(frame.columns))
    match rng.randrange(6):
        case 0:
            frame = frame.drop(columns=column)
        case 1:
            frame = frame.iloc[: rng.randrange(2)]
        case 2:
            frame[column] = [rng.choice(("x", "*", "<b>", "é")) for _ in range(len(frame))]
        case 3:
            frame[column] = [[1, 2]] * len(frame)
        case 4:
            frame[column] = pd.Timestamp("2026-01-01")
        case _:
            number = rng.choice([n for n in NUMBERS if abs(n) < 2**62 or n != n])
            frame[column] = [float(number)] * len(frame)
    out = io.BytesIO()
    frame.to_parquet(out, index=False)
    return out.getvalue()


def _bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes cut off, torn, doubled, packed or in another encoding."""
    at = rng.randrange(len(data) + 1)
    match rng.randrange(9):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + rng.randbytes(rng.choice((1, 4, 100))) + data[at:]
        case 2:
            return data + data
        case 3:
            return gzip.compress(data, mtime=0)
        case 4:
            return b"\xef\xbb\xbf" + data
        case 5:
            return data.decode("utf-8", "replace").encode("utf-16")
        case 6:
            return b""
        case 7:
            return gzip.compress(data, mtime=0)[: rng.randrange(60)]
        case _:
            return data.replace(b":", b"\t:").replace(b",", b";")
