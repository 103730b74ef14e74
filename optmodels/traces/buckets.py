"""A request trace cut into buckets of input × output length: files of requests, and the means of each bucket."""

from __future__ import annotations

import csv
import datetime
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from optmodels.catalog.types import Entry
from optmodels.errors import InputError, Mistake
from optmodels.io.tables import open_text
from optmodels.serving.lengths import Cut, Length, LengthsOfTrace, normalised
from optmodels.traces.types import Trace as Requests
from optmodels.units import PositiveInt

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MAX_TOKENS = 10**6  # of a request, as in buckets that an instance writes out
MOST_REQUESTS = 50_000  # of a trace that a result holds one by one, and replays out of sample
LONGEST_S = 10 * 365 * 86400.0  # beyond, times of two kinds are mixed


class BucketRequests(Entry):
    """The requests that a workload's buckets were cut from, in the order of their arrival."""

    arrival_s: tuple[NonNegative, ...] = Field(min_length=1, description="ascending, at the rate that is planned for")
    input_tokens: tuple[PositiveInt, ...] = Field(description="of each prompt")
    output_tokens: tuple[PositiveInt, ...] = Field(description="of each answer")
    bucket: tuple[Annotated[int, Field(strict=True, ge=0)], ...] = Field(description="index of each one's bucket")

    @model_validator(mode="after")
    def _equally_long(self) -> BucketRequests:
        n = len(self.arrival_s)
        for key in ("input_tokens", "output_tokens", "bucket"):
            if len(getattr(self, key)) != n:
                raise ValueError(f"{key} of {n} requests like arrival_s (it has {len(getattr(self, key))})")
        if any(a > b for a, b in pairwise(self.arrival_s)):
            raise ValueError("arrival_s in ascending order")
        return self


Cell = tuple[str, int, int, float, int]


def bucket_trace(path: Path, trace: Cut, rate_factor: float = 1.0) -> tuple[list[Cell], BucketRequests | None]:
    """Buckets of a trace file, empty ones left out, and its requests.

    Means are rounded up. The rate is requests / (last − first timestamp), times `rate_factor`.

    Args:
        path: of the file.
        trace: its columns, and the edges of buckets.
        rate_factor: requests come so many times as often.

    Returns:
        Name, mean input tokens, mean output tokens, requests/s, tokens of the longest request; and the requests, None
        if there are more than `MOST_REQUESTS`.

    Raises:
        InputError: unreadable, a missing column, a bad row, or no time span.
    """
    name = str(path)
    times: list[float] = []
    lengths: list[tuple[int, int]] = []
    served: list[float] = []  # times of those that have lengths
    known = _known(path, trace)
    if known is not None:
        times = served = known.arrival_s.tolist()
        lengths = list(zip(known.prompt_tokens.tolist(), known.output_tokens.tolist(), strict=True))
    for line, row in () if known is not None else _rows(path):
        try:
            times.append(_time(row[trace.time]) * trace.time_unit_s)
            a, b = int(row[trace.input_tokens]), int(row[trace.output_tokens])
            if not (math.isfinite(times[-1]) and max(a, b) <= MAX_TOKENS):
                raise ValueError
        except KeyError as error:
            raise InputError(Mistake(name, str(error.args[0]), None, "this column in every row", line)) from None
        except (ValueError, TypeError, OverflowError):
            raise InputError(
                Mistake(name, f"row at line {line}", str(row)[:60], "a time and two token counts", line)
            ) from None
        if a >= 1 and b >= 1:
            lengths.append((a, b))
            served.append(times[-1])
    span = max(times) - min(times) if times else 0.0
    if not 0 < span <= LONGEST_S or not lengths:
        expected = f"requests over a time span > 0 of at most {LONGEST_S / (365 * 86400):g} years"
        raise InputError(Mistake(name, "", f"{len(times)} rows over {span:g} s", expected))
    data = np.array(lengths)
    if (longest := int(data.sum(axis=1).max())) > MAX_TOKENS:
        raise InputError(Mistake(name, "", f"a request of {longest:,} tokens", f"at most {MAX_TOKENS:,} tokens"))
    row_of = np.searchsorted(np.array(trace.input_edges), data[:, 0])
    column_of = np.searchsorted(np.array(trace.output_edges), data[:, 1])
    cells: list[Cell] = []
    bucket = np.zeros(len(data), np.int64)
    for i in range(len(trace.input_edges) + 1):
        for j in range(len(trace.output_edges) + 1):
            here = (row_of == i) & (column_of == j)
            mine = data[here]
            if len(mine):
                bucket[here] = len(cells)
                label = f"{_range(trace.input_edges, i)}x{_range(trace.output_edges, j)}"
                a, b = (math.ceil(v) for v in mine.mean(axis=0))
                cells.append((label, a, b, len(mine) / span * rate_factor, int(mine.sum(axis=1).max())))
    if len(data) > MOST_REQUESTS:
        return cells, None
    order = np.argsort(served, kind="stable")
    arrival = (np.array(served)[order] - min(times)) / rate_factor
    return cells, BucketRequests(
        arrival_s=tuple(arrival.tolist()), input_tokens=tuple(data[order, 0].tolist()),
        output_tokens=tuple(data[order, 1].tolist()), bucket=tuple(bucket[order].tolist()),
    )  # fmt: skip


def lengths_of(path: Path, trace: LengthsOfTrace) -> tuple[Length, ...]:
    """The buckets of a trace file as classes of requests, by their shares of them.

    Raises:
        InputError: as `bucket_trace`.
    """
    cells, _ = bucket_trace(path, trace)
    return normalised([Length(input_tokens=a, output_tokens=b, share=rate) for _, a, b, rate, _ in cells])


def _known(path: Path, trace: Cut) -> Requests | None:
    """The requests of a file in another known format than Azure's, where the section names no columns of its own."""
    from optmodels.traces.readers import read_trace

    named = ("time", "input_tokens", "output_tokens", "time_unit_s")
    if any(getattr(trace, key) != Cut.model_fields[key].default for key in named):
        return None
    try:
        _, first = next(iter(_rows(path)))
    except StopIteration:
        return None
    except InputError:
        first = {}  # one JSON object over several lines, for example
    return None if {trace.time, trace.input_tokens, trace.output_tokens} <= set(first) else read_trace(path)


def _range(edges: tuple[int, ...], i: int) -> str:
    return f">{edges[-1]}" if i == len(edges) else f"≤{edges[i]}"


def _time(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        text = str(value).strip()
        if "." in text:  # more digits than Python reads
            head, tail = text.split(".", 1)
            text = f"{head}.{tail[:6].ljust(6, '0')}"
        return datetime.datetime.fromisoformat(text).timestamp()


def _rows(path: Path) -> Any:
    name = str(path)
    try:
        with open_text(path, "a CSV or JSON-lines trace") as handle:
            if ".jsonl" in path.suffixes:
                for i, text in enumerate(handle, 1):
                    if text.strip():
                        yield i, json.loads(text)
            else:
                yield from enumerate(csv.DictReader(handle), 2)
    except (json.JSONDecodeError, csv.Error, RecursionError) as error:
        raise InputError(Mistake(name, "", str(error)[:80], "a CSV or JSON-lines trace")) from None
