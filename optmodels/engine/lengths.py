"""Requests of several lengths: their keys in an instance, and percentiles over all of them.

Classes w have shares f_w, Σ f_w = 1. A mean over all requests is Σ f_w·(mean of w). Of a percentile each class has its
bound b_w(g) on latency at the shares g of `GRID`, so that at least g of its requests are within b_w(g), and

    B(q) = min {x : Σ_w f_w · max {g : b_w(g) ≤ x} ≥ q},   g = 0 with b_w(0) = 0 among them                   (M1)

bounds the share q of the requests: classes with short answers make up for those with long ones. One class keeps its own
bound, B(q) = b(q).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from optmodels.arrays import Array
from optmodels.catalog.types import Entry
from optmodels.engine.continuous import Classes
from optmodels.units import PositiveInt, Tokens

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
GRID = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)  # shares of a class at which its latency is bounded
ROUNDING = 1e-9  # relative, of a sum of shares


class Length(Entry):
    """A class of requests of equal lengths."""

    input_tokens: Tokens = Field(description="prompt tokens")
    output_tokens: Tokens = Field(description="output tokens")
    share: Positive = Field(default=1.0, description="share of the requests, on any scale")


class Cut(Entry):
    """How a request trace is read and cut into buckets of input × output length.

    The file has any format of `optmodels.traces.readers`. `columns` names columns that are not recognised.
    """

    columns: dict[str, str] = Field(
        default={},
        description="columns of a file with names of its own, ours: THEIRS or THEIRS:unit, e.g. input_tokens: "
        "prompt_len",
    )
    where: dict[str, str | tuple[str, ...]] = Field(
        default={}, description="column: value (or values) of the rows to keep, e.g. status: ok"
    )
    skip_bad: bool = Field(default=False, description="leave out rows that cannot be read, and count them")
    time: str | None = Field(default=None, description="column of arrival times; as columns: {arrival_s: …}")
    input_tokens: str | None = Field(default=None, description="column of prompt tokens; as columns: {input_tokens: …}")
    output_tokens: str | None = Field(
        default=None, description="column of output tokens; as columns: {output_tokens: …}"
    )
    time_unit_s: Positive | None = Field(default=None, description="unit of times that are numbers")
    input_edges: tuple[PositiveInt, ...] = Field(
        default=(256, 1024, 4096), description="upper edges of prompt tokens that separate buckets"
    )
    output_edges: tuple[PositiveInt, ...] = Field(
        default=(64, 256), description="upper edges of output tokens that separate buckets"
    )

    @model_validator(mode="after")
    def _sorted(self) -> Self:
        for edges in (self.input_edges, self.output_edges):
            if list(edges) != sorted(set(edges)):
                raise ValueError("edges in increasing order")
        return self

    @property
    def mapping(self) -> dict[str, str]:
        """The columns that are named, ours → theirs."""
        found = dict(self.columns)
        if self.time is not None or self.time_unit_s is not None:
            unit = "" if self.time_unit_s is None else f":{self.time_unit_s:.17g} s"
            found["arrival_s"] = f"{self.time or 'TIMESTAMP'}{unit}"
        tokens = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return found | {ours: theirs for ours, theirs in tokens.items() if theirs is not None}


class LengthsOfTrace(Cut):
    """Lengths of a request trace, cut into buckets of input × output length.

    Each bucket is a class of its mean lengths.
    """

    trace: str = Field(description="file of requests, next to the problem file or below")


Listed = Annotated[tuple[Length, ...], Field(min_length=1, max_length=1000)]
Lengths = Listed | LengthsOfTrace


ALIKE_OF_STATIC = "input_tokens and output_tokens with serving: static, whose requests are all alike"  # expected


def in_words(lengths: tuple[Length, ...] | LengthsOfTrace) -> str:
    """Text of the lengths in a message."""
    return f"those of {lengths.trace}" if isinstance(lengths, LengthsOfTrace) else f"a list of {len(lengths)}"


def which(workload: object) -> str:
    """Whether a workload is `Workload`, of requests that are all equal, or `MixedWorkload`; the tag of their union."""
    mixed = "lengths" in workload if isinstance(workload, Mapping) else hasattr(workload, "lengths")
    return "MixedWorkload" if mixed else "Workload"


def normalised(lengths: Sequence[Length]) -> tuple[Length, ...]:
    """The same with shares that sum to 1."""
    total = math.fsum(x.share for x in lengths)
    return tuple(x.model_copy(update={"share": x.share / total}) for x in lengths)


def mean_tokens(lengths: Sequence[Length]) -> tuple[float, float]:
    """Mean tokens of a prompt and of an answer; shares sum to 1."""
    return (
        math.fsum(x.share * x.input_tokens for x in lengths), math.fsum(x.share * x.output_tokens for x in lengths)
    )  # fmt: skip


def shortest_tokens(lengths: Sequence[Length]) -> int:
    """Prompt and answer of the shortest request."""
    return min(x.input_tokens + x.output_tokens for x in lengths)


def classes(lengths: Sequence[Length], cached: float = 0.0) -> Classes:
    """As engines see them, weighted by their shares; `cached`: of every prompt, in the prefix cache."""
    columns = ([float(getattr(x, name)) for x in lengths] for name in ("input_tokens", "output_tokens", "share"))
    inputs, outputs, shares = columns
    return Classes.of(inputs, outputs, cached=cached, weight=np.array(shares))


def shares_bounded(quantile: float | None, count: int) -> tuple[float | None, ...]:
    """Shares g at which each of this many classes is bounded, ascending; one class at its own quantile alone."""
    return (quantile,) if quantile is None or count == 1 else tuple(sorted({*GRID, quantile}))


def over_classes(bounds: Array, weight: Array, quantile: float | None) -> Array:
    """B(q) of (M1), or the mean over classes.

    Args:
        bounds: b_w(g) of each class at each of `shares_bounded`, (…, W, G); of means G = 1.
        weight: f_w, sum 1, (W,).
        quantile: q; None: the mean.
    """
    if quantile is None or bounds.shape[-2] == 1:
        return (weight * bounds[..., 0]).sum(axis=-1)
    grid = np.array(shares_bounded(quantile, bounds.shape[-2]), dtype=float)
    # The formulas at two shares need not be in order: requests within the lower bound of a larger share are within.
    least = np.minimum.accumulate(bounds[..., ::-1], axis=-1)[..., ::-1]
    gained = np.broadcast_to(weight[:, None] * np.diff(grid, prepend=0.0), least.shape)
    flat = (*least.shape[:-2], least.shape[-2] * least.shape[-1])
    least, gained = least.reshape(flat), gained.reshape(flat)
    order = np.argsort(least, axis=-1)
    within = np.cumsum(np.take_along_axis(gained, order, axis=-1), axis=-1) >= quantile * (1.0 - ROUNDING)
    at = np.take_along_axis(order, np.argmax(within, axis=-1)[..., None], axis=-1)
    return np.take_along_axis(least, at, axis=-1)[..., 0]
