"""Time between two output tokens of a request (ITL) at given rates: how long the steps last that it decodes in.

Of N running requests a step lasts s = a₀ + d·N, with prompts `prompt_step` and their chunks' work X more, up to a
step full of prompts. What came in one step is prefilled in the next: X₍ₖ₊₁₎ is a compound Poisson of the chunks that
come in s + X₍ₖ₎ seconds, a branching process with immigration. With φ the characteristic function of a chunk's work,
λ the chunks a second and p their work, its stationary law has

    E e^(iωX) = exp(λs·Σ_j (h_j − 1)),   h₀ = φ(ω),   h_(j+1) = E[e^(λp(h_j − 1))]                               (B1)

(Athreya and Ney 1972, ch. VI.7), inverted by a fast Fourier transform. Requests see N one larger and weighted by
itself. Of D attention ranks a step waits for the busiest, and each has the law of its own chunks: F(X)^D.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from optmodels.arrays import Array

CELLS = 2048  # of the work of a step's prompts
BEYOND = 3.0  # steps full of prompts, or longest chunks, that they reach
GENERATIONS = 200
HALVINGS = 50


@dataclass(frozen=True)
class BetweenTokens:
    """Steps of an engine, as requests that decode see them; seconds.

    Attributes:
        step_s: (K,) step without prompts at equally likely concurrencies.
        prompt_step_s: seconds that a step with prompts costs besides.
        chunk_s, rates: (C,) work of chunks, and how many of each come in a second.
        full_s: work of a step full of prompts.
        mixed: share of steps with prompts.
        ranks: data-parallel attention ranks D; `chunk_s` are D times a chunk's work outside the experts.
        others_s: mean seconds that prompts of other ranks make a step longer by.
    """

    step_s: Array
    prompt_step_s: float
    chunk_s: Array
    rates: Array
    full_s: float
    mixed: float
    ranks: float = 1.0
    others_s: float = 0.0

    @cached_property
    def _prompts(self) -> tuple[Array, Array]:
        """Probabilities that prompts' work stays within each cell, (K, CELLS), and the cells' seconds."""
        cell = BEYOND * max(self.full_s, float(self.chunk_s.max())) / CELLS
        omega = 2.0 * np.pi * np.fft.fftfreq(CELLS)
        below = np.floor(self.chunk_s / cell)
        part = (self.chunk_s / cell - below)[:, None]
        each = (1.0 - part) * np.exp(-1j * np.outer(below, omega)) + part * np.exp(-1j * np.outer(below + 1.0, omega))
        share, total = self.rates / self.rates.sum(), float(self.rates.sum()) / self.ranks
        h = share @ each - 1.0
        exponent = np.zeros(CELLS, complex)
        for _ in range(GENERATIONS):
            exponent += h
            h = share @ np.expm1(np.outer(total * self.chunk_s, h))
            if np.abs(h).max() < 1e-6:
                break
        came = total * (self.step_s + self.prompt_step_s * self.mixed / 2.0 + self.others_s)
        found = np.fft.ifft(np.exp(np.outer(came, exponent)), axis=1).real
        below_each: Array = np.minimum(np.cumsum(np.clip(found, 0.0, None), axis=1), 1.0) ** self.ranks
        return below_each, np.arange(CELLS, dtype=float) * cell

    def within(self, seconds: float) -> float:
        """Share of the times between tokens that are this long at most."""
        beyond = seconds * (1.0 + 1e-9) - self.step_s
        if not self.rates.sum() > 0.0 or not self.chunk_s.max() > 0.0:
            return float((beyond >= 0.0).mean())
        below, cells = self._prompts
        spare = beyond - self.prompt_step_s
        with_prompts = np.array([np.interp(x, cells, row) for x, row in zip(spare, below, strict=True)])
        found = np.where(spare >= self.full_s, 1.0, np.where(spare > 0.0, with_prompts, below[:, 0]))
        return float(np.where(beyond >= 0.0, np.minimum(found, 1.0), 0.0).mean())

    def at(self, quantile: float) -> float:
        """The time that this share of the times between tokens stays within."""
        low, high = 0.0, float(self.step_s.max()) + self.prompt_step_s + self.full_s + float(self.chunk_s.max())
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            low, high = (middle, high) if self.within(middle) < quantile else (low, middle)
        return high


def after_first(quantile: float, steps: float) -> float | None:
    """Quantile of the other times that leaves room for a request's first one to be longer; None: it decides.

    Where another engine decodes, the first time between tokens lasts until it joins, one of `steps`.
    """
    left = (1.0 - quantile) * steps - 1.0
    return 1.0 - left / (steps - 1.0) if left > 0.0 else None
