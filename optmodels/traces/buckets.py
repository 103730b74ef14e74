"""A request trace cut into buckets of input × output length: files of requests, and the means of each bucket."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from optmodels.catalog.types import Entry
from optmodels.errors import InputError, Mistake
from optmodels.serving.lengths import Cut, Length, LengthsOfTrace, normalised
from optmodels.traces.readers import read_trace
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


def bucket_trace(
    path: Path, trace: Cut, rate_factor: float = 1.0, notes: list[str] | None = None
) -> tuple[list[Cell], BucketRequests | None]:  # fmt: skip
    """Buckets of a trace file, empty ones left out, and its requests.

    Means are rounded up. The rate is requests / (last − first timestamp), times `rate_factor`.

    Args:
        path: of the file.
        trace: its columns, and the edges of buckets.
        rate_factor: requests come so many times as often.
        notes: added to: what was done to the file's rows.

    Returns:
        Name, mean input tokens, mean output tokens, requests/s, tokens of the longest request; and the requests, None
        if there are more than `MOST_REQUESTS`.

    Raises:
        InputError: unreadable, a missing column, a bad row, or no time span.
    """
    name = str(path)
    found = read_trace(path, trace.mapping, trace.where, trace.skip_bad)
    if notes is not None:
        notes += found.notes
    times, data = found.arrival_s, np.column_stack([found.prompt_tokens, found.output_tokens])
    span = found.duration_s - float(times[0])
    if not 0 < span <= LONGEST_S:
        expected = f"requests over a time span > 0 of at most {LONGEST_S / (365 * 86400):g} years"
        raise InputError(Mistake(name, "", f"{len(times)} requests over {span:g} s", expected))
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
    arrival = (times - times[0]) / rate_factor
    return cells, BucketRequests(
        arrival_s=tuple(arrival.tolist()), input_tokens=tuple(data[:, 0].tolist()),
        output_tokens=tuple(data[:, 1].tolist()), bucket=tuple(bucket.tolist()),
    )  # fmt: skip


def lengths_of(path: Path, trace: LengthsOfTrace) -> tuple[Length, ...]:
    """The buckets of a trace file as classes of requests, by their shares of them.

    Raises:
        InputError: as `bucket_trace`.
    """
    cells, _ = bucket_trace(path, trace)
    return normalised([Length(input_tokens=a, output_tokens=b, share=rate) for _, a, b, rate, _ in cells])


def _range(edges: tuple[int, ...], i: int) -> str:
    return f">{edges[-1]}" if i == len(edges) else f"≤{edges[i]}"
