"""Controllers and closed loops on the step simulator: against the plain loop, and what the controllers gain."""

import numpy as np
import pytest
from references import continuous_engine as plain

from optmodels.errors import InputError
from optmodels.latency.batch_limits import from_sample
from optmodels.latency.controllers import MemoryController, SlaController, StaticController
from optmodels.latency.steps import StepCosts
from optmodels.simulation.continuous import Arrivals, Engine, simulate
from optmodels.simulation.continuous_controlled import simulate_controlled

FIG_3 = StepCosts(fixed_s=0.0269, decode_request_s=0.0002308, prompt_token_s=5e-5)


def lengths(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.gamma(2, 95, n).astype(int) + 1, rng.gamma(2, 190, n).astype(int) + 1


def at_once(n):
    return Arrivals.of(np.zeros(n), *lengths(n))  # as in Table I of the paper


def engine(kv_tokens=400_000, **limits):
    return Engine(FIG_3, kv_tokens, **({"max_num_seqs": 2048, "max_num_batched_tokens": 8192} | limits))


@pytest.mark.parametrize("users", [None, 5])
def test_it_is_the_plain_loop(users):
    prompt, output = (np.minimum(x, 60) for x in lengths(40))
    arrivals = Arrivals.of(np.linspace(0, 3, 40), prompt, output)
    small = Engine(FIG_3, 240, 16, 32, block_tokens=4)
    fast = simulate_controlled(arrivals, small, SlaController(0.03, b_max=16), users=users)
    slow = plain.simulate(arrivals, [small], "round_robin", users=users, controllers=[SlaController(0.03, b_max=16)])
    for name in ("start_s", "first_s", "finish_s", "ttft_s"):
        np.testing.assert_allclose(getattr(fast.served, name), getattr(slow, name), rtol=1e-9)
    assert np.array_equal(fast.served.preemptions, slow.preemptions) and fast.served.preemptions.sum() > 0
    if users is None:
        free, run = simulate_controlled(arrivals, small).served, simulate(arrivals, [small])
        np.testing.assert_allclose(free.finish_s, run.finish_s, rtol=1e-12)


def test_a_request_larger_than_the_cache_is_named():
    with pytest.raises(InputError, match="at most 32 tokens"):
        simulate_controlled(Arrivals.of([0, 0], [4, 40], [4, 4]), engine(32))


def closed_loop(
    engine: Engine, concurrency: int, input_tokens: int, output_tokens: int, *, rounds: int = 4
) -> tuple[float, float]:
    """Means after warm-up, the first of the rounds: (TPOT seconds, output tokens/s)."""
    total = concurrency * rounds
    # Outputs of the warm-up round are staggered, so that later prompts do not arrive all at once.
    first = np.maximum(1, output_tokens * np.arange(1, concurrency + 1) // concurrency)
    outputs = np.concatenate((first, np.full(total - concurrency, output_tokens)))
    seen = simulate_controlled(Arrivals.of(np.zeros(total), input_tokens, outputs), engine, users=concurrency).served
    keep = slice(concurrency, max(total - concurrency, concurrency + 1))
    return float(np.nanmean(seen.tpot_s[keep])), concurrency * output_tokens / float(seen.e2e_s[keep].mean())


def test_closed_loop_approaches_the_mean_step():
    C, S, out = 32, 512, 128
    tpot_s, tokens_per_s = closed_loop(engine(max_num_seqs=C, max_num_batched_tokens=256), C, S, out, rounds=6)
    # Σp = C·S/out prompt tokens and nearly C decodes in the mean step (loads.served_load)
    mean_step = 0.0269 + 0.0002308 * C + 5e-5 * C * S / out
    assert tpot_s == pytest.approx(mean_step, rel=0.05)
    assert tokens_per_s == pytest.approx(C / mean_step, rel=0.1)


def test_memory_controller_beats_a_small_static_batch_as_in_table_i():
    arrivals = at_once(600)
    sample = from_sample(*(x.astype(float) for x in lengths(600)))
    spans = [
        simulate_controlled(arrivals, engine(150_000), c).served.finish_s.max()
        for c in (StaticController(96), *(MemoryController(150_000, 0.05, sample) for _ in range(2)))
    ]
    assert 1.05 < spans[0] / spans[1] < 1.7  # the paper: 1.08 to 1.28
    assert spans[1] == spans[2]


def test_sla_controller_keeps_decode_steps_in_time():
    static, held = (
        simulate_controlled(at_once(1000), engine(max_num_batched_tokens=2048), c).decode_step_s
        for c in (StaticController(256), SlaController(0.05, b_max=512))
    )
    late = [np.mean(s > 0.055) for s in (static, held)]
    assert late[0] > 0.3 and late[1] < late[0] / 3
