"""How large a batch may be: memory with a probability, and latency (dynamic batching, §III).

`b_mem` is the largest b with P(S_b > η) ≤ ε, S_b the sum of b requests' tokens (input + output) and η the tokens the KV
cache holds. Three answers, side by side:

* normal: under the central limit theorem of DB(10–12). With per-request mean μ and standard deviation σ,
  b·μ + θ·σ·√b ≤ η, so √b ≤ (√(θ²σ²+4μη) − θσ)/(2μ), θ = Φ⁻¹(1−ε). (DB(12) prints it with the symbols of the sums.)
* exact: the distribution of S_b itself, by convolution of the length distribution (FFT), for a trace.
* linear: b ≤ (η − L₀)/μ, DB(14), with the buffer L₀ = θσ√b₀ kept for a batch of b₀. The paper prints
  L₀ = η − (θσ_S + μ_S), which vanishes exactly at the batch that fills the memory and would leave no buffer there;
  read as the reserve that DB(13) asks for, the rule reproduces b_mem when b₀ = b_mem.

DB(9) adds Var(l_in) and Var(l_out), that is, takes input and output lengths as independent; from a trace the variance
of their sum is used, correlation included.

`b_SLA` is the largest b with D(b) ≤ D_SLA for a fitted latency model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from optmodels.arrays import Array
from optmodels.errors import InputError, Mistake, Mistakes

_FFT_LIMIT = 2**23  # cells of the exact distribution; beyond, lengths are put on a coarser grid, rounded up
B_MAX = 100_000  # beyond which no batch is looked at
MOST_TOKENS = 1e12


@dataclass(frozen=True)
class LengthMoments:
    """Tokens per request (input + output).

    Attributes:
        mean: μ. std: σ.
        sample: observed totals, for the exact distribution; None when only moments are given.
        correlation: correlation of input and output lengths, where known.
    """

    mean: float
    std: float
    sample: Array | None = None
    correlation: float | None = None


def from_moments(input_mean: float, input_std: float, output_mean: float, output_std: float) -> LengthMoments:
    """Lengths from means and standard deviations, input and output independent (DB 8, 9).

    Raises:
        InputError: means below 1, deviations negative, more than `MOST_TOKENS`.
    """
    wrong = Mistakes()
    for name, value, least in (
        ("input_mean", input_mean, 1),
        ("output_mean", output_mean, 1),
        ("input_std", input_std, 0),
        ("output_std", output_std, 0),
    ):
        if not least <= value <= MOST_TOKENS:
            wrong.add(name, value, f"a number from {least} to {MOST_TOKENS:g} tokens")
    wrong.raise_any()
    return LengthMoments(input_mean + output_mean, math.hypot(input_std, output_std))


def from_sample(input_tokens: Array, output_tokens: Array) -> LengthMoments:
    """Lengths from a trace.

    Raises:
        InputError: no rows, or a length that is no number from 0 to `MOST_TOKENS`.
    """
    total = np.asarray(input_tokens, dtype=float) + np.asarray(output_tokens, dtype=float)
    bad = np.flatnonzero(~((total >= 0) & (total <= MOST_TOKENS)))
    if not total.size or len(bad) or total.max() < 1:
        value = f"{total[bad[0]]:g} tokens in row {bad[0] + 1}" if len(bad) else "no tokens" if total.size else None
        raise InputError(Mistake(None, "trace", value, f"token counts from 0 to {MOST_TOKENS:g}, not all zero"))
    varies = np.ptp(input_tokens) > 0 and np.ptp(output_tokens) > 0
    correlation = float(np.corrcoef(input_tokens, output_tokens)[0, 1]) if varies else None
    return LengthMoments(float(total.mean()), float(total.std()), total, correlation)


def _check(capacity_tokens: float, epsilon: float) -> None:
    wrong = Mistakes()
    if not 0 < capacity_tokens <= MOST_TOKENS:
        wrong.add("capacity_tokens", capacity_tokens, f"a number > 0 tokens, at most {MOST_TOKENS:g}")
    if not 0 < epsilon < 1:
        wrong.add("epsilon", epsilon, "a probability between 0 and 1")
    wrong.raise_any()


def theta(epsilon: float) -> float:
    """Φ⁻¹(1 − ε)."""
    from scipy.stats import norm

    return float(norm.isf(epsilon))


def b_mem_normal(lengths: LengthMoments, capacity_tokens: float, epsilon: float) -> int:
    """Largest b with b·μ + θσ√b ≤ η (DB 12); 0 if not even one request fits.

    Raises:
        InputError: η not positive, ε outside (0, 1).
    """
    _check(capacity_tokens, epsilon)
    mu, ts = lengths.mean, theta(epsilon) * lengths.std
    root = (math.sqrt(ts * ts + 4 * mu * capacity_tokens) - ts) / (2 * mu)
    b = math.floor(root * root * (1 + 1e-12))
    while b > 0 and b * mu + ts * math.sqrt(b) > capacity_tokens * (1 + 1e-12):
        b -= 1
    return b


def buffer_tokens(lengths: LengthMoments, batch: float, epsilon: float) -> float:
    """L₀ = θσ√b₀: tokens held back for a batch of b₀ requests that turn out longer than average."""
    return theta(epsilon) * lengths.std * math.sqrt(max(batch, 0.0))


def b_mem_linear(mean_tokens: float, capacity_tokens: float, reserve_tokens: float) -> int:
    """DB(14): ⌊(η − L₀)/(E l_in + E l_out)⌋, at least 0."""
    return max(0, math.floor((capacity_tokens - reserve_tokens) / mean_tokens * (1 + 1e-12)))


def overflow_probability(lengths: LengthMoments, batch: int, capacity_tokens: float) -> float:
    """P(S_b > η) exactly, from the sample's own distribution.

    Lengths are whole tokens unless b·max exceeds the FFT limit; then they are rounded up to a grid, so that the
    probability is never understated.

    Raises:
        InputError: only moments are known.
    """
    if lengths.sample is None:
        raise InputError(
            Mistake(None, "trace", None, "a sample of lengths: moments alone do not give the exact probability")
        )
    if batch <= 0:
        return 0.0
    top = float(lengths.sample.max())
    if batch * top <= capacity_tokens:
        return 0.0
    grid = max(1.0, batch * top / _FFT_LIMIT)
    cells = np.ceil(lengths.sample / grid - 1e-9).astype(np.int64)
    pmf = np.bincount(cells) / len(cells)
    size = 1 << (batch * (len(pmf) - 1)).bit_length()
    spectrum = np.fft.rfft(pmf, size)
    total = np.fft.irfft(spectrum**batch, size)
    fits = math.floor(capacity_tokens / grid)
    return float(np.clip(1.0 - total[: fits + 1].sum(), 0.0, 1.0))


def monte_carlo_overflow(
    lengths: LengthMoments, batch: int, capacity_tokens: float, *, draws: int = 20_000, seed: int = 0
) -> tuple[float, float]:
    """(estimate, standard error) of P(S_b > η): resampling the trace, or gamma lengths of the given moments.

    The sum of b gamma lengths is a gamma variable itself: one draw in place of b.
    """
    rng = np.random.default_rng(seed)
    over = 0
    chunk = max(1, min(draws, 4_000_000 // max(batch, 1)))
    done = 0
    while done < draws:
        size = min(chunk, draws - done)
        if lengths.sample is not None:
            total = rng.choice(lengths.sample, (size, batch)).sum(axis=1)
        elif lengths.std > 1e-8 * lengths.mean:
            shape = (lengths.mean / lengths.std) ** 2
            total = rng.gamma(shape * batch, lengths.mean / shape, size)
        else:
            total = np.full(size, lengths.mean * batch)
        over += int((total > capacity_tokens).sum())
        done += size
    p = over / draws
    return p, math.sqrt(max(p * (1 - p), 1 / draws) / draws)


def largest(fits: Callable[[int], bool], ceiling: int = B_MAX) -> int:
    """Largest b ≤ ceiling with fits(b), for a condition that once false stays false; 0 if none."""
    low, high = 0, 1
    while high <= ceiling and fits(high):
        low, high = high, high * 2
    high = min(high, ceiling + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def b_mem_exact(lengths: LengthMoments, capacity_tokens: float, epsilon: float) -> int:
    """Largest b whose true overflow probability is at most ε, by the sample's own distribution.

    Raises:
        InputError: η not positive, ε outside (0, 1), or only moments are known.
    """
    _check(capacity_tokens, epsilon)
    return largest(lambda b: overflow_probability(lengths, b, capacity_tokens) <= epsilon + 1e-12)


def b_sla(latency_s: Callable[[int], float], limit_s: float, ceiling: int = B_MAX) -> int:
    """Largest b with D(b) ≤ D_SLA, D non-decreasing; 0 if not even one request meets it.

    Raises:
        InputError: the limit is not positive.
    """
    if not (math.isfinite(limit_s) and limit_s > 0):
        raise InputError(Mistake(None, "limit_s", limit_s, "a finite number > 0 s"))
    return largest(lambda b: latency_s(b) <= limit_s * (1 + 1e-12), ceiling)


@dataclass(frozen=True)
class MemoryLimit:
    """`b_mem` three ways, with the overflow probability that the normal answer truly has.

    Attributes:
        normal: Under the normal approximation. linear: DB(14) with L₀ for that batch.
        exact: From the sample's distribution; None where only moments are known.
        reserve_tokens: L₀.
        true_probability: P(S_normal > η): exact for a sample, else Monte Carlo with gamma lengths.
        standard_error: Standard error of that probability; 0 where exact.
    """

    normal: int
    linear: int
    exact: int | None
    reserve_tokens: float
    true_probability: float
    standard_error: float


def memory_limit(lengths: LengthMoments, capacity_tokens: float, epsilon: float, *, seed: int = 0) -> MemoryLimit:
    """All of the above at once, batches up to `B_MAX`.

    Raises:
        InputError: η not positive or ε outside (0, 1).
    """
    normal = min(B_MAX, b_mem_normal(lengths, capacity_tokens, epsilon))
    reserve = buffer_tokens(lengths, normal, epsilon)
    linear = min(B_MAX, b_mem_linear(lengths.mean, capacity_tokens, reserve))
    if lengths.sample is not None:
        return MemoryLimit(
            normal,
            linear,
            b_mem_exact(lengths, capacity_tokens, epsilon),
            reserve,
            overflow_probability(lengths, normal, capacity_tokens),
            0.0,
        )
    if normal == 0:
        return MemoryLimit(0, linear, None, reserve, 0.0, 0.0)
    p, error = monte_carlo_overflow(lengths, normal, capacity_tokens, seed=seed)
    return MemoryLimit(normal, linear, None, reserve, p, error)
