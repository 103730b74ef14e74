"""Dynamic against static batching under the settings of the dynamic-batching paper, as far as it gives them.

    python benchmarks/batch_controllers.py

Given: request counts, mean prompt and output lengths (Tables I, II), D_SLA, and Fig. 3's decode time (50 ms at 100
requests, 80 ms at 230). Not given, and assumed here: the spread of lengths (gamma, standard deviation = mean/√2), the
KV cache (400,000 tokens), the time per prompt token (50 µs), and the static baseline's batch, which decides the gain:
three are shown. Absolute throughputs are therefore not comparable, the gains are.
"""

from __future__ import annotations

import numpy as np

from optmodels.latency.batch_limits import from_sample
from optmodels.latency.controllers import MemoryController, SlaController, StaticController
from optmodels.latency.steps import StepCosts
from optmodels.simulation.continuous import Arrivals, Engine
from optmodels.simulation.continuous_controlled import simulate_controlled

DECODE_PER_REQUEST_S = 0.030 / 130
STEP = StepCosts(
    fixed_s=0.050 - 100 * DECODE_PER_REQUEST_S, decode_request_s=DECODE_PER_REQUEST_S, prompt_token_s=50e-6
)
CACHE_TOKENS = 400_000
ENGINE = Engine(STEP, CACHE_TOKENS, max_num_seqs=2048, max_num_batched_tokens=8192)
STATIC = (128, 256, 512)
TABLE_I = [
    ("LLaMA-65B", 68.4, 344.5, 1319, 8.2),
    ("LLaMA3-70B", 68.4, 454.4, 1319, 6.5),
    ("LLaMA3-70B", 191.0, 381.9, 3000, 12.2),
    ("PanGu-7B", 128, 128, 1000, 28.2),
    ("PanGu-38B", 128, 128, 1000, 26.0),
    ("PanGu-135B", 128, 128, 1000, 8.0),
]
TABLE_II = [
    ("LLaMA-65B", 237.7, 416.2, 3.0, 3.3),
    ("LLaMA3-70B", 256.6, 61.5, 5.4, 6.6),
    ("LLaMA3-70B", 256.6, 447.5, 3.0, 3.8),
]


def lengths(mean_in, mean_out, n, seed=0):
    """Gamma lengths of the given means, (n,) each."""
    rng = np.random.default_rng(seed)
    return tuple(np.maximum(1, np.round(rng.gamma(2, mean / 2, n))).astype(int) for mean in (mean_in, mean_out))


def span(arrivals, controller):
    """Seconds to serve everything."""
    return simulate_controlled(arrivals, ENGINE, controller).served.finish_s.max()


def capacity_rps(make_controller, prompts, outputs, tpot_limit_s, high_rps=32.0, tolerance=0.02):
    """Highest Poisson rate at which mean time per output token keeps its limit and the queue does not build up.

    "Capacity" of the paper's Fig. 4 and Table II, by bisection. A queue builds up when the second half of the requests
    waits more than twice as long as the first, plus ten steps' time.
    """
    times = np.cumsum(np.random.default_rng(0).exponential(1.0, len(prompts)))

    def holds(rate):
        seen = simulate_controlled(Arrivals.of(times / rate, prompts, outputs), ENGINE, make_controller()).served
        half = len(prompts) // 2
        first, second = seen.ttft_s[:half].mean(), seen.ttft_s[half:].mean()
        return np.nanmean(seen.tpot_s) <= tpot_limit_s and second <= 2 * first + 10 * tpot_limit_s

    low, high = 0.0, high_rps
    while high - low > tolerance * max(low, 0.1):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def main():
    """Print both tables."""
    print("| Table I | requests | gain over static 128 / 256 / 512 | the paper |\n|---|---|---|---|")
    for name, mean_in, mean_out, n, printed in TABLE_I:
        pairs = lengths(mean_in, mean_out, n)
        arrivals = Arrivals.of(np.zeros(n), *pairs)
        sample = from_sample(*(x.astype(float) for x in pairs))
        dynamic = span(arrivals, MemoryController(CACHE_TOKENS, 0.05, sample, b_max=2048))
        gains = [f"{span(arrivals, StaticController(b)) / dynamic - 1:+.1%}" for b in STATIC]
        print(f"| {name} {mean_in:g}/{mean_out:g} | {n} | {' / '.join(gains)} | +{printed} % |", flush=True)
    print("\n| Table II, 50 ms | capacity: static 48 / 64 / 128, SLA controller | the paper |\n|---|---|---|")
    for name, mean_in, mean_out, low, high in TABLE_II:
        pairs = lengths(mean_in, mean_out, 800)
        found = [
            capacity_rps(make, *pairs, 0.05)
            for make in (
                lambda: StaticController(48),
                lambda: StaticController(64),
                lambda: StaticController(128),
                lambda: SlaController(0.05, b_max=512),
            )
        ]
        print(
            f"| {name} {mean_in:g}/{mean_out:g} | {found[0]:.2f} / {found[1]:.2f} / {found[2]:.2f}, "
            f"{found[3]:.2f} req/s | {low:g} → {high:g} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
