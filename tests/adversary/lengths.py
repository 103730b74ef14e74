"""Workloads of several lengths: their classes, from the instance, and random ones."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from tests.adversary.continuous import Kind
from tests.adversary.harness import FILES, Instance
from tests.adversary.static import Rng, between, maybe, pick

ODD = (0.2, 0.5, 0.63, 0.9, 0.97, 0.999, 0.9995)  # percentiles that limits are at
# Columns that a trace has where nobody names others, and edges of its classes.
COLUMNS = {"time": "TIMESTAMP", "input_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"}
EDGES = {"input_edges": (256, 1024, 4096), "output_edges": (64, 256)}


def classes(workload: Instance, files: Instance, cached: float = 0.0) -> list[Kind]:
    """A workload's classes, weighted by their shares; one where it has two numbers."""
    of = workload.get("lengths")
    if of is None:
        return [Kind(workload["input_tokens"], workload["output_tokens"], cached, 1.0)]
    if isinstance(of, dict):
        of = _cut(of, files[of["trace"]])
    total = math.fsum(x.get("share", 1.0) for x in of)
    return [Kind(x["input_tokens"], x["output_tokens"], cached, x.get("share", 1.0) / total) for x in of]


def _cut(of: Instance, text: str) -> list[Instance]:
    """Requests of a CSV trace by cells of input × output length, at the mean lengths of a cell, rounded up."""
    prompt, answer = (of.get(key, COLUMNS[key]) for key in ("input_tokens", "output_tokens"))
    cells: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        both = int(row[prompt]), int(row[answer])
        edges = (of.get(key, EDGES[key]) for key in ("input_edges", "output_edges"))
        i, j = (sum(n > e for e in x) for n, x in zip(both, edges, strict=True))
        cells.setdefault((i, j), []).append(both)
    return [
        {"input_tokens": math.ceil(sum(a for a, _ in x) / len(x)), "share": len(x),
         "output_tokens": math.ceil(sum(b for _, b in x) / len(x))}
        for x in cells.values()
    ]  # fmt: skip


def mean_prompt(kinds: Sequence[Kind]) -> float:
    """Tokens, by the shares."""
    return sum(k.weight * k.prompt for k in kinds)


def mean_tokens(kinds: Sequence[Kind]) -> float:
    """Tokens of a request, by the shares."""
    return sum(k.weight * (k.prompt + k.output) for k in kinds)


def shortest(kinds: Sequence[Kind]) -> float:
    """Tokens of a request of the shortest class."""
    return min(k.prompt + k.output for k in kinds)


def spread(rng: Rng, data: Instance, workload: Instance, name: str) -> None:
    """Classes in the place of a workload's two numbers: one that says the same, up to four, or those of a trace."""
    prompt, answer = workload.pop("input_tokens"), workload.pop("output_tokens")

    def one() -> tuple[int, int]:
        longer = [int(max(1, n * between(rng, 0.2, 5.0))) for n in (prompt, answer)]
        if maybe(rng, 0.1):
            longer[1] = 1
        return min(longer[0], 3000), min(longer[1], 1000)

    if maybe(rng, 0.3):
        _trace(rng, data, workload, name, [one() for _ in range(int(rng.integers(2, 40)))])
        return
    count = pick(rng, [1, 2, 2, 3, 3, 4])
    found = [(prompt, answer), *(one() for _ in range(count - 1))]
    if count > 1 and maybe(rng, 0.1):
        found[1] = found[0]  # twice the same
    rng.shuffle(found)
    shares = pick(rng, [[1.0] * count, [round(float(x), 3) + 0.001 for x in rng.random(count)], [9.0, 1.0, 0.1, 1.0]])
    workload["lengths"] = [
        {"input_tokens": int(a), "output_tokens": int(b), "share": f}
        for (a, b), f in zip(found, shares[:count], strict=True)
    ]
    if maybe(rng, 0.1):
        del pick(rng, workload["lengths"])["share"]


def _trace(rng: Rng, data: Instance, workload: Instance, name: str, requests: list[tuple[int, int]]) -> None:
    of: dict[str, Any] = {"trace": f"{name}-lengths.csv"}
    columns = dict(COLUMNS)
    if maybe(rng):
        columns = {"time": "at", "input_tokens": "in", "output_tokens": "out"}
        of |= columns | {"time_unit_s": 0.5}
    if maybe(rng):
        of |= {"input_edges": [100, 1000], "output_edges": [20]}
    lines = [",".join(columns.values()), *(f"{t}.0,{a},{b}" for t, (a, b) in enumerate(requests))]
    data.setdefault(FILES, {})[of["trace"]] = "\n".join(lines) + "\n"
    workload["lengths"] = of


def odd_percentiles(rng: Rng, slo: Instance, keys: Sequence[str]) -> None:
    """Limits, each on the mean or at some percentile."""
    for key in keys:
        if key in slo and maybe(rng, 0.7):
            given = slo[key]
            most = given["at_most"] if isinstance(given, dict) else given
            slo[key] = {"at_most": most, "percentile": pick(rng, ODD)} if maybe(rng, 0.8) else most
