"""A request trace cut into buckets of input × output length and into pieces of time; the rule that sorts requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from optmodels.arrays import Ints
from optmodels.catalog.types import Entry
from optmodels.engine.lengths import Cut, Length, LengthsOfTrace, normalised
from optmodels.errors import InputError, Mistake
from optmodels.traces.pieces import Pieces, busiest_stretch, busiest_window, cut_in_time
from optmodels.traces.readers import read_trace
from optmodels.traces.types import Trace as Requests
from optmodels.units import PositiveInt

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MAX_TOKENS = 10**6  # of a request, as in buckets that an instance writes out
MOST_REQUESTS = 100_000  # of a trace that a result holds one by one; of longer ones their busiest stretch
LONGEST_S = 10 * 365 * 86400.0  # beyond, times of two kinds are mixed


class BucketRequests(Entry):
    """The requests that a workload's buckets were cut from, in the order of their arrival."""

    arrival_s: tuple[NonNegative, ...] = Field(min_length=1, description="ascending, at the rate that is planned for")
    input_tokens: tuple[PositiveInt, ...] = Field(description="tokens of each prompt")
    output_tokens: tuple[PositiveInt, ...] = Field(description="tokens of each answer")
    bucket: tuple[Annotated[int, Field(strict=True, ge=0)], ...] = Field(description="index of each one's bucket")
    of: PositiveInt | None = Field(
        default=None, description="requests in the whole trace, where these are its busiest stretch"
    )

    @model_validator(mode="after")
    def _equally_long(self) -> BucketRequests:
        n = len(self.arrival_s)
        for key in ("input_tokens", "output_tokens", "bucket"):
            if len(getattr(self, key)) != n:
                raise ValueError(f"{key} of {n} requests like arrival_s (it has {len(getattr(self, key))})")
        if any(a > b for a, b in pairwise(self.arrival_s)):
            raise ValueError("arrival_s in ascending order")
        if self.of is not None and self.of <= n:
            raise ValueError(f"of: more than these {n} requests, or none")
        return self

    def in_words(self) -> str:
        """How many requests these are, and of how many."""
        if self.of is None:
            return f"{len(self.arrival_s):,} requests"
        return f"busiest {len(self.arrival_s):,} of {self.of:,} requests"


@dataclass(frozen=True)
class Cell:
    """One bucket of a trace.

    Attributes:
        name: ``≤1024x≤256``.
        input_tokens, output_tokens: means, rounded up.
        requests_per_s: mean over the trace.
        longest_tokens: prompt and answer of the longest request.
        input_bounds, output_bounds: lengths above the first and up to the second (None: any) are the bucket's.
        rates: requests/s in each piece of the trace.
    """

    name: str
    input_tokens: int
    output_tokens: int
    requests_per_s: float
    longest_tokens: int
    input_bounds: tuple[int, int | None]
    output_bounds: tuple[int, int | None]
    rates: tuple[float, ...]


@dataclass(frozen=True)
class CutTrace:
    """A trace cut into buckets and pieces.

    Attributes:
        cells: buckets, empty ones left out.
        requests: requests of the trace, or of its busiest stretch where there are more than `MOST_REQUESTS`.
        pieces: stretches of even rates.
        whole: all requests, in the order of their arrival, at the rate that is planned for.
        bucket: (n,) the cell of each of them.
    """

    cells: tuple[Cell, ...]
    requests: BucketRequests
    pieces: Pieces
    whole: Requests
    bucket: Ints


def sort_into_buckets(
    input_tokens: Ints, output_tokens: Ints, bounds: Sequence[tuple[float, float, float, float] | None],
    means: Sequence[tuple[float, float]],
) -> Ints:  # fmt: skip
    """The bucket of each request, (n,): the one whose bounds hold its lengths, else the one with the nearest means.

    Every verb that sorts requests uses this rule.

    Args:
        input_tokens, output_tokens: (n,) of the requests.
        bounds: bounds of each bucket: prompt above and up to, answer above and up to; None: the bucket has none.
        means: tokens of each bucket's mean prompt and answer.
    """
    found = np.full(len(input_tokens), -1, np.int64)
    for k, limits in enumerate(bounds):
        if limits is not None:
            low_in, high_in, low_out, high_out = limits
            inside = (input_tokens > low_in) & (input_tokens <= high_in)
            inside &= (output_tokens > low_out) & (output_tokens <= high_out)
            found[inside & (found < 0)] = k
    rest = np.flatnonzero(found < 0)
    if len(rest):
        a, b = np.log(np.array(means, dtype=float)).T
        far = np.abs(np.log(input_tokens[rest])[:, None] - a) + np.abs(np.log(output_tokens[rest])[:, None] - b)
        found[rest] = far.argmin(axis=1)
    return found


def bucket_trace(path: Path, trace: Cut, rate_factor: float = 1.0, notes: list[str] | None = None) -> CutTrace:
    """Buckets of a trace file, empty ones left out, its pieces and its requests.

    The rate is requests / (last − first timestamp), times `rate_factor`. Pieces are as long as in the file.

    Args:
        path: path of the file.
        trace: its columns, and the edges of buckets.
        rate_factor: requests come this many times as often.
        notes: added to: changes to the file's rows.

    Raises:
        InputError: unreadable, a missing column, a bad row, or no time span.
    """
    name = str(path)
    found = read_trace(path, trace.mapping, trace.where, trace.skip_bad)
    if notes is not None:
        notes += found.notes
    lengths: Ints = np.column_stack([found.prompt_tokens, found.output_tokens])
    arrival = found.arrival_s - float(found.arrival_s[0]) if len(found) else found.arrival_s
    span = found.duration_s - float(found.arrival_s[0]) if len(found) else 0.0
    if not 0 < span <= LONGEST_S:
        expected = f"requests over a time span > 0 of at most {LONGEST_S / (365 * 86400):g} years"
        raise InputError(Mistake(name, "", f"{len(lengths)} requests over {span:g} s", expected))
    if (longest := int(lengths.sum(axis=1).max())) > MAX_TOKENS:
        raise InputError(Mistake(name, "", f"a request of {longest:,} tokens", f"at most {MAX_TOKENS:,} tokens"))
    grid = [
        ((i, j), (*_bounds(trace.input_edges, i), *_bounds(trace.output_edges, j)))
        for i in range(len(trace.input_edges) + 1) for j in range(len(trace.output_edges) + 1)
    ]  # fmt: skip
    limits = [(float(a), b or math.inf, float(c), d or math.inf) for _, (a, b, c, d) in grid]
    code: Ints = sort_into_buckets(lengths[:, 0], lengths[:, 1], limits, [])
    of, there = np.unique(code, return_inverse=True)
    bucket = there.ravel().astype(np.int64)
    in_time = cut_in_time(arrival, bucket, len(of), span)
    cells = []
    for k, at in enumerate(of.tolist()):
        mine, ((i, j), bounds) = lengths[bucket == k], grid[at]
        a, b = (math.ceil(v) for v in mine.mean(axis=0))
        cells.append(Cell(
            f"{_range(trace.input_edges, i)}x{_range(trace.output_edges, j)}", a, b, len(mine) / span * rate_factor,
            int(mine.sum(axis=1).max()), bounds[:2], bounds[2:], tuple((in_time.rates[:, k] * rate_factor).tolist()),
        ))  # fmt: skip
    pieces = Pieces(seconds=tuple(np.diff(in_time.edges_s).tolist()), busiest=busiest_window(arrival, span))
    whole = Requests(path.name, arrival / rate_factor, *lengths.T)
    kept = busiest_stretch(arrival, lengths.sum(axis=1).astype(float), MOST_REQUESTS)
    times = whole.arrival_s[kept] - (whole.arrival_s[kept.start] if len(lengths) > MOST_REQUESTS else 0.0)
    requests = BucketRequests(
        arrival_s=tuple(times.tolist()), input_tokens=tuple(lengths[kept, 0].tolist()),
        output_tokens=tuple(lengths[kept, 1].tolist()), bucket=tuple(bucket[kept].tolist()),
        of=len(lengths) if len(lengths) > MOST_REQUESTS else None,
    )  # fmt: skip
    return CutTrace(tuple(cells), requests, pieces, whole, bucket)


def lengths_of(path: Path, trace: LengthsOfTrace) -> tuple[Length, ...]:
    """The buckets of a trace file as classes of requests, by their shares of them.

    Raises:
        InputError: as `bucket_trace`.
    """
    cells = bucket_trace(path, trace).cells
    return normalised([
        Length(input_tokens=c.input_tokens, output_tokens=c.output_tokens, share=c.requests_per_s) for c in cells
    ])  # fmt: skip


def _bounds(edges: tuple[int, ...], i: int) -> tuple[int, int | None]:
    return 0 if i == 0 else edges[i - 1], None if i == len(edges) else edges[i]


def _range(edges: tuple[int, ...], i: int) -> str:
    return f">{edges[-1]}" if i == len(edges) else f"≤{edges[i]}"
