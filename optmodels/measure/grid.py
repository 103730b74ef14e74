"""What to measure: points over (batch, prompt), (batch, context), mixed steps and α, the most informative first.

The order is sequential D-optimal design for the terms that the latency forms are linear in (`latency.fit.forms`),
relative to each point's predicted latency because the fits minimise relative errors: the next point is the one whose
row x has the largest xᵀ(XᵀX + εI)⁻¹x, i.e. the one that the points so far predict least surely. It starts at the
corners, and a campaign cut short at any time has about the best points that could be had in that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from optmodels.errors import InputError, Mistake

Array = npt.NDArray[np.float64]
Family = Literal["high_end", "kvo_ram", "kvo_disk", "ao"]
Schedule = Literal["overlap", "serial"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
OFFLOADS: dict[str, Family] = {"ram": "kvo_ram", "disk": "kvo_disk", "ao": "ao"}
_RIDGE = 1e-6


@dataclass(frozen=True)
class Point:
    """One engine step: `prefills` chunks of `chunk` tokens over `earlier` each, `decodes` requests over `context`.

    `alpha` of the KV (of the batch's attention for ``ao``) lies where `family` says. ``overlap`` moves it beside the
    computation, ``serial`` before it: the control without which no overlap can be told.
    """

    prefills: int = 0
    chunk: int = 0
    earlier: int = 0
    decodes: int = 0
    context: int = 0
    family: Family = "high_end"
    alpha: float = 0.0
    schedule: Schedule = "overlap"
    tp: int = 1

    @property
    def phase(self) -> str:
        """prefill, decode or mixed."""
        if not self.prefills:
            return "decode"
        return "mixed" if self.decodes else "prefill"

    @property
    def tokens(self) -> int:
        """Tokens processed."""
        return self.prefills * self.chunk + self.decodes

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values the step leaves in memory."""
        return self.prefills * (self.earlier + self.chunk) + self.decodes * (self.context + 1)

    @property
    def moved_tokens(self) -> float:
        """Tokens whose KV is offloaded: written by a prefill, read by a decode step."""
        return self.alpha * (self.prefills * self.chunk if self.prefills else self.decodes * (self.context + 1))

    def __str__(self) -> str:
        parts = []
        if self.prefills:
            parts.append(
                f"prefill {self.prefills}×{self.chunk}" + (f" over {self.earlier} each" if self.earlier else "")
            )
        if self.decodes:
            parts.append(f"decode {self.decodes} over {self.context}")
        if self.family != "high_end":
            parts.append(f"{self.family} α = {self.alpha:g}" + (" serial" if self.schedule == "serial" else ""))
        if self.tp > 1:
            parts.append(f"tp {self.tp}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Grid:
    """Values of each axis; the product is measured, steps of more than `max_tokens` tokens left out."""

    batch: tuple[int, ...] = (1, 4, 16, 64)
    prompt: tuple[int, ...] = (128, 512, 2048)
    context: tuple[int, ...] = (128, 1024, 4096)
    chunk: tuple[int, ...] = (512,)

    @classmethod
    def parse(cls, text: str | None) -> Grid:
        """Read ``"batch=1,8 prompt=128,512 context=1024 chunk=256"``; axes not named keep their defaults.

        Raises:
            InputError: an unknown axis, or values that are not positive integers.
        """
        if not text:
            return cls()
        found: dict[str, tuple[int, ...]] = {}
        for word in text.split():
            name, sign, values = word.partition("=")
            if name not in cls.__dataclass_fields__ or not sign:
                axes = ", ".join(cls.__dataclass_fields__)
                raise InputError(Mistake(None, "--grid", word, f"AXIS=N,N,… with an axis of {axes}"))
            try:
                numbers = tuple(sorted({int(v) for v in values.split(",") if v}))
            except ValueError:
                numbers = (0,)
            if any(n < 1 for n in numbers):
                raise InputError(Mistake(None, f"--grid {name}", values, "positive integers, comma-separated"))
            found[name] = numbers
        return cls(**found)


def points(
    grid: Grid,
    *,
    offload: Sequence[str] = (),
    alphas: Sequence[float] = (),
    tps: Sequence[int] = (1,),
    schedules: Sequence[Schedule] = ("overlap",),
    max_tokens: int = 16384,
) -> list[Point]:
    """Every point of the grid, in a fixed order.

    Args:
        grid: The axes.
        offload: Which of `OFFLOADS` to measure besides the resident KV.
        alphas: Offload ratios; 0 stands for the resident points, which are always there.
        tps: Tensor-parallel degrees; offloading is measured at the least of them.
        schedules: How offloaded KV moves.
        max_tokens: Tokens an engine processes in a step at most.
    """
    prefill = [Point(prefills=b, chunk=p) for b in grid.batch for p in grid.prompt if b * p <= max_tokens]
    decode = [Point(decodes=b, context=c) for b in grid.batch for c in grid.context]
    mixed = [
        Point(prefills=1, chunk=k, earlier=e, decodes=b, context=c)
        for k in grid.chunk
        for e in (0, max(grid.prompt))
        for b in grid.batch
        for c in (grid.context[0], grid.context[-1])
        if k + b <= max_tokens
    ]
    chunked = [Point(prefills=1, chunk=k, earlier=e) for k in grid.chunk for e in grid.prompt if k <= max_tokens]
    found = [replace(p, tp=tp) for tp in tps for p in (*prefill, *decode, *chunked, *mixed)]
    for name in offload:
        for a in (a for a in alphas if a > 0):
            for p in (*prefill, *decode):
                # Attention moves by whole requests: the α of a point is the one it truly has.
                alpha = round(a * (p.prefills + p.decodes)) / (p.prefills + p.decodes) if name == "ao" else a
                ways = schedules if name != "ao" else SCHEDULES[:1]
                if alpha > 0:
                    found += [replace(p, family=OFFLOADS[name], alpha=alpha, schedule=s, tp=min(tps)) for s in ways]
    return list(dict.fromkeys(found))


def features(p: Point) -> Array:
    """The terms of the latency forms, and what is offloaded, by family, phase and schedule."""
    r, n = p.prefills, p.decodes
    kv = n * (p.context + 1)
    squares = r * p.chunk * (p.chunk + 2 * p.earlier)
    common = [1.0, p.tokens, kv, squares, r * p.earlier, n, float(p.phase == "mixed"), p.tp - 1.0]
    moved = []
    for family in OFFLOADS.values():
        for schedule in SCHEDULES:
            here = float(p.family == family and p.schedule == schedule)
            moved += [here, here * p.moved_tokens * (r > 0), here * p.moved_tokens * (n > 0)]
    return np.array([*common, *moved], dtype=float)


def informative_first(found: Sequence[Point], predicted_s: Array) -> list[Point]:
    """The points in sequential D-optimal order (see the module's docstring).

    Args:
        found: The points.
        predicted_s: (n,) predicted seconds of each; rows are divided by them.
    """
    if not found:
        return []
    X = np.stack([features(p) for p in found]) / predicted_s[:, None]
    scale = np.sqrt((X**2).mean(axis=0))
    X = X[:, scale > 0] / scale[scale > 0]
    inverse = np.eye(X.shape[1]) / _RIDGE
    left = np.ones(len(found), dtype=bool)
    order = []
    for _ in found:
        Z = X @ inverse
        spread = np.einsum("ij,ij->i", Z, X)
        spread[~left] = -np.inf
        i = int(spread.argmax())
        left[i] = False
        order.append(found[i])
        inverse -= np.outer(Z[i], Z[i]) / (1.0 + spread[i])
    return order
