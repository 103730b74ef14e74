"""Engines with continuous batching: by hand, and the compiled loop against the plain one."""

from dataclasses import replace

import numpy as np
import pytest
from references import continuous_engine as plain

from optmodels.errors import InputError
from optmodels.latency.controllers import StaticController
from optmodels.latency.steps import AttentionWindow, Experts, StepCosts
from optmodels.simulation.continuous import (
    DISPATCHERS,
    EDGES_S,
    Arrivals,
    Engine,
    Gaps,
    gap_quantiles,
    of_edges,
    simulate,
)
from optmodels.simulation.continuous_controlled import simulate_controlled
from optmodels.traces.types import Prefixes

SECOND = StepCosts(fixed_s=1.0)  # every step takes one


def engine(costs=SECOND, **limits):
    return Engine(costs, **({"kv_tokens": 1000, "max_num_seqs": 8, "max_num_batched_tokens": 64} | limits))


def prompts(*blocks, block_tokens=4):
    """Prefixes from lists of block ids."""
    start = np.cumsum([0, *map(len, blocks)]).astype(np.int64)
    return Prefixes(block_tokens, start, np.array([b for ids in blocks for b in ids], np.int64))


def test_one_request_by_hand():
    costs = StepCosts(
        fixed_s=1.0, prompt_step_s=0.5, prompt_token_s=0.1, decode_request_s=0.25, context_s=0.01, request_s=7.0
    )
    seen = simulate(Arrivals.of([2.0], [100], [3]), [engine(costs)])
    first = 1.5 + 6.4 + 1.5 + 3.6  # chunks of 64 and 36 tokens
    assert seen.first_s == pytest.approx([2 + first + 7])
    assert seen.finish_s - seen.first_s == pytest.approx([2 * 1.25 + 0.01 * (100 + 101)])
    assert (seen.queue_s, seen.steps, seen.most_running) == ([0], [4], [1])


def test_decodes_come_first_and_prompts_get_what_is_left():
    # Step 1: 8 tokens of the first. Step 2: its decode and 7 of the second's 10; step 3: the last 3.
    seen = simulate(Arrivals.of([0, 0.5], [8, 10], [3, 2]), [engine(max_num_batched_tokens=8)])
    assert seen.first_s.tolist() == [1, 3] and seen.finish_s.tolist() == [3, 4]
    short = simulate(Arrivals.of([0, 0.5], [8, 10], [3, 2]), [engine(max_num_batched_tokens=8, chunk_tokens=4)])
    assert short.first_s.tolist() == [2, 4]


def test_with_overlap_who_is_admitted_waits_a_step_unless_the_engine_was_idle():
    seen = simulate(Arrivals.of([0, 0.5], [8, 10], [3, 2]), [engine(overlap=True)])
    assert seen.start_s.tolist() == [0, 1] and seen.first_s.tolist() == [1, 3] and seen.finish_s.tolist() == [3, 4]


def test_the_last_to_come_is_preempted_and_computed_anew():
    # 5 blocks of 4: both prompts take 2 each; the 5th block goes to the first, then the second has to go.
    a = Arrivals.of([0, 0], [8, 8], [6, 6])
    seen = simulate(a, [engine(kv_tokens=20, block_tokens=4)])
    assert seen.preemptions.tolist() == [0, 1]
    # Step 2 wants two blocks and one is free. The first goes on alone until it is answered at 6; its prompt and first
    # token are then 9 tokens, the step makes the second token, four more follow.
    assert seen.first_s.tolist() == [1, 1] and seen.finish_s.tolist() == [6, 11]
    urgent = simulate(Arrivals.of([0, 0], [8, 8], [6, 6], priority=[1, 0]), [engine(kv_tokens=20, block_tokens=4)])
    assert urgent.preemptions.tolist() == [1, 0]


def test_prompts_share_what_is_cached():
    same = prompts([1, 2, 3], [1, 2, 3], [1, 2, 9])
    a = Arrivals.of([0, 10, 20], [12, 12, 12], [2, 2, 2], prefixes=same)
    seen = simulate(a, [engine(StepCosts(fixed_s=1.0, prompt_token_s=0.1), block_tokens=2)])
    assert seen.hit_tokens.tolist() == [0, 8, 8]  # a token is left to compute
    assert seen.ttft_s == pytest.approx([2.2, 1.4, 1.4])
    small = simulate(a, [engine(kv_tokens=14, block_tokens=2)])  # what is unused for longest goes, leaves before roots
    assert small.hit_tokens.tolist() == [0, 8, 8]


def test_prompts_computed_elsewhere_decode_at_once():
    seen = simulate(Arrivals.of([0.0, 0.0], [8, 8], [3, 3], received_tokens=[8, 4]), [engine()])
    assert seen.first_s.tolist() == [0, 1] and seen.finish_s.tolist() == [2, 3]


def test_dispatchers_by_hand():
    a = Arrivals.of([0, 0, 0.1], [16, 64, 1], [9, 2, 1])
    two = [engine(), engine()]
    assert simulate(a, two, "round_robin").instance.tolist() == [0, 1, 0]
    assert simulate(a, two, "shortest_queue").instance.tolist() == [0, 1, 0]
    assert simulate(a, two, "least_kv").instance.tolist() == [0, 1, 0]
    assert simulate(a, two, assigned=[1, -1, 1]).instance.tolist() == [1, -1, 1]
    shares = [[0.5, 0.25, 0.25]]
    kinds = [engine(), engine(kind=1)]
    four = Arrivals.of(np.zeros(4), 1, 1)
    assert simulate(four, kinds, "planned_shares", planned=shares).instance.tolist() == [0, 1, -1, 0]
    cached = Arrivals.of([0, 5, 5], [8, 8, 8], [2, 2, 2], prefixes=prompts([7, 8], [5, 6], [7, 9]))
    affine = simulate(cached, [engine(block_tokens=4)] * 2, "prefix_affine")
    assert affine.instance.tolist() == [0, 0, 0] and affine.hit_tokens.tolist() == [0, 0, 4]
    late = Arrivals.of([0, 0], [64, 64], [1, 1], ttft_limit_s=1.5)
    assert simulate(late, [engine()], refuse=True).instance.tolist() == [0, -1]


@pytest.mark.parametrize("run", [simulate, plain.simulate])
def test_predictions_know_how_long_steps_have_lately_been(run):
    # The first prompt takes 10 steps of 3 s; the second request comes in the last. It waits half a second and, with 16
    # tokens at most 7 a step, three such steps; then ten tokens at the mean of the ten steps, weights 0.1·0.9^k.
    costs = StepCosts(fixed_s=1.0, prompt_step_s=2.0)
    lately = 3 * (1 - 0.9**10)
    for limit, instance in ((9.5 + 10 * lately + 1e-6, 0), (9.5 + 10 * lately - 1e-6, -1)):
        a = Arrivals.of([0, 29.5], [80, 8], [1, 11], deadline_s=[np.inf, limit])
        assert run(a, [engine(costs, max_num_batched_tokens=8)], refuse=True).instance.tolist() == [0, instance]
    idle = Arrivals.of([0, 40], [80, 8], [1, 11], deadline_s=[np.inf, 3 + 10 + 1e-6])  # what was before counts no more
    assert run(idle, [engine(costs, max_num_batched_tokens=8)], refuse=True).instance.tolist() == [0, 0]


def test_times_between_tokens_by_hand():
    # Of three tokens two pauses: the first beside the second's prompt of 10 tokens, the other beside its decode.
    costs = StepCosts(fixed_s=1.0, prompt_step_s=0.5, prompt_token_s=0.1, decode_request_s=0.01)
    a = Arrivals.of([0, 1.2], [8, 10], [3, 2])
    seen = simulate(a, [engine(costs)], gaps=Gaps(np.array([1.015, 1.5, 2.51]), np.array([0, 1])))
    assert seen.gaps.tolist() == [[0, 1, 1, 0], [0, 1, 0, 0]]  # 2.51 and 1.02, 1.02
    late = simulate(a, [engine(costs)], gaps=Gaps(np.array([1.015, 1.5, 2.51]), np.array([0, 1]), limit_s=1.5))
    assert (late.pauses.tolist(), late.late_pauses.tolist()) == ([2, 1], [1, 0])
    found = gap_quantiles(*of_edges(np.array([1.015, 1.5, 2.51]), seen.gaps[0]), [0.5, 0.95])
    assert found == pytest.approx({"mean": 2.005, "p50": 1.5, "p95": 2.51})
    assert simulate(a, [engine(costs)]).gaps is None and gap_quantiles(*of_edges(EDGES_S, np.zeros(701)), [0.5]) == {}
    # Its cache comes 3 s after its first token: 3 s, half of the step under way and its own.
    came = Arrivals.of([0, 0.5], [8, 8], [9, 3], received_tokens=[0, 8])
    seen = simulate(came, [engine()], gaps=Gaps(np.array([1.0, 4.4, 4.6]), np.array([-1, 0]), 3.0))
    assert seen.gaps.tolist() == [[1, 0, 1, 0]]
    # While it is preempted a request waits for its next token: from 2 to 6, and one more for its prompt.
    seen = simulate(
        Arrivals.of([0, 0], [8, 8], [6, 6]), [engine(kv_tokens=20, block_tokens=4)],
        gaps=Gaps(np.array([1.0, 2.0, 5.9, 6.1]), np.array([0, 1])),
    )  # fmt: skip
    assert seen.gaps.tolist() == [[5, 0, 0, 0, 0], [4, 0, 0, 1, 0]]
    assert (seen.pauses.tolist(), seen.late_pauses.tolist()) == ([5, 5], [0, 0])


def test_the_series_adds_up():
    seen = simulate(Arrivals.of([0.5, 3.5], [8, 8], [2, 1]), [engine()], bin_s=1.0)
    assert seen.series.busy.tolist() == [[0.5, 1, 0.5, 0.5, 0.5]]
    assert seen.series.tokens_per_s.tolist() == [[4, 4.5, 0.5, 4, 4]]
    assert seen.series.kv_blocks.tolist() == [[0.5, 1, 0.5, 0.5, 0.5]]


def test_drafts_by_hand():
    # Steps make ⌊n·2.5⌋ tokens: 2, 3, 2, 3. The prompt takes the first, so that 3, 2, 3 are the answer's next: at the
    # fourth step's end all 9 are there.
    costs = StepCosts(fixed_s=1.0, decode_request_s=0.5, context_s=0.01, drafts=3, tokens=2.5)
    seen = simulate(Arrivals.of([0], [20], [9]), [engine(costs)])
    assert seen.first_s == [1] and seen.finish_s == pytest.approx([1 + 3 * 1.5 + 0.01 * (20 + 23 + 25)])
    # 16 and 4 tokens of cache are 5 blocks of 4, and a request of 20 needs 3 more for its drafts than it may keep.
    tight = simulate(Arrivals.of([0], [16], [5]), [engine(costs, kv_tokens=20, block_tokens=4)])
    assert tight.instance.tolist() == [-1]
    # The first decodes with 3 drafts: 4 tokens of 8 are left for the second's prompt in each of two steps.
    both = simulate(Arrivals.of([0, 0.5], [8, 8], [9, 1]), [engine(costs, max_num_batched_tokens=8, max_num_seqs=2)])
    assert both.steps.tolist() == [4] and both.first_s.tolist() == [1, 4]


def test_what_cannot_be_simulated_is_named():
    with pytest.raises(InputError, match="at least max_num_seqs, 8"):
        engine(max_num_batched_tokens=4)
    with pytest.raises(InputError, match="ascending"):
        simulate(Arrivals.of([1, 0], 1, 1), [engine()])
    with pytest.raises(InputError, match="divisor"):
        simulate(Arrivals.of([0], 9, 1, prefixes=prompts([1])), [engine(block_tokens=3)])
    assert simulate(Arrivals.of([0], 900, 200), [engine()]).instance.tolist() == [-1]  # never fits
    assert len(simulate(Arrivals.of([], [], []), []).finish_s) == 0


def drawn(seed):
    """A small hard case: little cache, few slots, shared prefixes, priorities, unlike engines."""
    rng = np.random.default_rng(seed)
    n, count = int(rng.integers(1, 60)), int(rng.integers(1, 5))
    block = int(rng.choice([1, 2, 4, 8]))
    unit = block * int(rng.integers(1, 4))
    pools = 1 + (count > 1 and rng.random() < 0.5)
    window = None
    if rng.random() < 0.4:
        window = AttentionWindow(float(rng.uniform(0.2, 1)), int(rng.integers(1, 60)), float(rng.uniform(0, 1)))
    experts = Experts(float(rng.uniform(0, 0.02)), 8, int(rng.integers(1, 9))) if rng.random() < 0.4 else None
    scale = np.array([0.02, 0.005, 1e-3, 1e-5, 1e-5, 1e-3, 1e-4, 2e-4, 0.01])

    drafts = int(rng.integers(1, 6)) if rng.random() < 0.4 else 0

    def one(j):
        seqs, tokens = int(rng.integers(1, 12)), 1.0 + drafts * float(rng.choice([0.0, 0.5, 1.0, rng.random()]))
        return Engine(
            StepCosts(
                *rng.uniform(0, 1, 9) * scale, experts=experts, window=window, drafts=drafts, tokens=tokens,
            ),
            int(rng.integers(60, 300)), seqs, seqs * (1 + drafts) + int(rng.integers(0, 40)),
            int(rng.integers(1, 20)) if rng.random() < 0.5 else None, block, bool(rng.random() < 0.5),
            float(rng.choice([0, 0, 0.05])), j % pools, int(rng.integers(0, 2)), float(rng.choice([0, 0, 0, 0.5])),
        )  # fmt: skip

    engines = [one(j) for j in range(count)]
    even = np.sort(rng.integers(0, 3, n) * 0.5)  # many at the same instant
    prompt, output = rng.integers(1, 60, n), rng.integers(1, 50, n)
    prefixes = None
    if rng.random() < 0.6:
        ids, node = [], 0
        for tokens in prompt:
            ids.append([])
            node = 0
            for depth in range(-(-int(tokens) // unit)):
                node = node * 3 + int(rng.integers(1, 3 if depth < 2 else 2))
                ids[-1].append(node % (1 << 62))
        prefixes = prompts(*ids, block_tokens=unit)
    received = np.where((rng.random(n) < 0.3) & (output > 1), rng.integers(0, prompt + 1), 0)
    arrivals = Arrivals.of(
        even if rng.random() < 0.3 else np.sort(rng.uniform(0, rng.choice([0.01, 1, 5]), n)), prompt, output,
        expected_output_tokens=np.maximum(1, output + rng.integers(-5, 6, n)),
        priority=rng.integers(0, 3, n) if rng.random() < 0.4 else 0, ttft_limit_s=rng.uniform(0.05, 3, n),
        deadline_s=rng.uniform(0.1, 10, n), pool=rng.integers(0, pools, n), klass=rng.integers(0, 2, n),
        received_tokens=received if rng.random() < 0.4 else 0, prefixes=prefixes,
    )  # fmt: skip
    given = {"refuse": bool(rng.random() < 0.4), "dispatcher": DISPATCHERS[rng.integers(len(DISPATCHERS))]}
    if given["dispatcher"] == "planned_shares":
        given["planned"] = rng.dirichlet(np.ones(max(e.kind for e in engines) + 2), (3, 2))
        given["planned_bin_s"] = 0.4
        given["within"] = ("shortest_queue", "least_kv", "earliest_finish", "prefix_affine")[rng.integers(4)]
    elif rng.random() < 0.2:
        given["assigned"] = rng.integers(-1, count, n)
    return arrivals, engines, given


def with_ranks(seed):
    """The same cases with engines of one to four attention ranks."""
    arrivals, engines, given = drawn(seed)
    rng = np.random.default_rng([seed, 4])

    def one(e):
        expert = rng.uniform(0, 1, 2) * (e.costs.prompt_token_s, e.costs.decode_request_s)
        costs = replace(e.costs, prompt_expert_s=float(expert[0]), decode_expert_s=float(expert[1]))
        return replace(e, costs=costs, ranks=int(rng.integers(1, 5)))

    return arrivals, [one(e) for e in engines], given


@pytest.mark.parametrize(("cases", "least"), [(drawn, 150), (with_ranks, 50)])
def test_the_compiled_loop_is_the_plain_one(cases, least):
    preempted = hits = refused = served = 0
    for seed in range(100):
        arrivals, engines, given = cases(seed)
        rng = np.random.default_rng(seed)
        given |= {"gaps": Gaps(np.sort(rng.uniform(0.0, 0.3, 9)), rng.integers(-1, 3, len(arrivals)), 0.01)}
        fast = simulate(arrivals, engines, bin_s=0.1, **given)
        slow = plain.simulate(arrivals, engines, **given)
        for name in ("instance", "preemptions", "hit_tokens", "steps", "most_running", "gaps"):
            assert np.array_equal(getattr(fast, name), getattr(slow, name)), (seed, name)
        for name in ("start_s", "first_s", "finish_s", "busy_s"):
            np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), rtol=1e-9, err_msg=f"{seed} {name}")
        assert np.isfinite(fast.finish_s[fast.served]).all()
        assert fast.series.busy.sum(axis=1) * 0.1 == pytest.approx(fast.busy_s)
        preempted, hits = preempted + fast.preemptions.sum(), hits + (fast.hit_tokens > 0).sum()
        refused, served = refused + (~fast.served).sum(), served + fast.served.sum()
    assert min(preempted, hits, refused) > least and served > 1500


def test_two_ranks_by_hand():
    costs = StepCosts(
        1.0, prompt_step_s=0.5, prompt_token_s=0.1, prompt_expert_s=0.04, decode_request_s=0.2, decode_expert_s=0.05,
        context_s=0.01, mixed_context_s=0.02,
    )  # fmt: skip
    two = engine(costs, ranks=2)
    # Step 1: 10 and 4 tokens, the busier rank has 10·0.06 outside the experts, which do all 14.
    # Step 2: each decodes. Step 3: the second alone, which with half of the ranks costs twice as much.
    seen = simulate(Arrivals.of([0, 0], [10, 4], [2, 3]), [two], assigned=[0, 0], bin_s=10.0)
    first = 1.5 + 2 * 10 * 0.06 + 14 * 0.04
    second = 1.0 + 2 * (0.15 + 0.01 * 10) + 2 * 0.05
    third = 1.0 + 2 * (0.15 + 0.01 * 5) + 0.05
    assert seen.first_s == pytest.approx([first, first])
    assert seen.finish_s == pytest.approx([first + second, first + second + third])
    assert (seen.steps.tolist(), seen.most_running.tolist()) == ([3], [2])
    assert seen.busy_s == pytest.approx([first + second + third])
    assert seen.series.running[0] * 10 == pytest.approx(2 * (first + second) + third)
    # A prompt on one rank makes the other's decodes cost what they do in steps with prompts; it comes too late for the
    # step under way, and begins with the next for both.
    late = simulate(Arrivals.of([0, 0.5], [10, 4], [3, 1]), [two], assigned=[0, 0])
    alone = 1.5 + 2 * 10 * 0.06 + 10 * 0.04
    mixed = 1.5 + 2 * max(0.15 + 0.02 * 10, 4 * 0.06) + 4 * 0.04 + 0.05
    assert late.start_s == pytest.approx([0, alone]) and late.first_s == pytest.approx([alone, alone + mixed])


def test_ranks_have_slots_and_caches_of_their_own_and_keep_their_requests():
    # One slot a rank: the third waits for a rank although the fourth request, sent to the other one, is short.
    slots = engine(max_num_seqs=1, ranks=2)
    a = Arrivals.of([0, 0, 0.1, 0.2], 4, [9, 2, 1, 1])
    assert simulate(a, [slots], assigned=[0] * 4).first_s.tolist() == [1, 1, 10, 3]
    # Half of the cache each: a prompt that both together would hold fits none.
    assert simulate(Arrivals.of([0], [20], [1]), [engine(kv_tokens=16, ranks=2)]).instance.tolist() == [-1]
    same = Arrivals.of([0, 0, 5, 5], 8, 2, prefixes=prompts([1, 2], [3, 4], [1, 2], [1, 2]))
    seen = simulate(same, [engine(block_tokens=4, ranks=2)], "shortest_queue")
    assert seen.hit_tokens.tolist() == [0, 0, 4, 0]


def test_alike_ranks_are_one_engine_with_the_work_of_all():
    """Where the ranks have the same work, a step is that of its costs, which are of work even over the ranks."""
    costs = StepCosts(0.01, 0.002, 1e-4, 1e-7, 0.0, 1e-4, 1e-6, 1e-6, experts=Experts(0.01, 8, 2),
                      prompt_expert_s=6e-5, decode_expert_s=3e-5)  # fmt: skip
    rng = np.random.default_rng(2)
    arrival, prompt, output = np.sort(rng.uniform(0, 5, 40)), rng.integers(20, 200, 40), rng.integers(5, 60, 40)

    def served(ranks, seqs, tokens):
        a = Arrivals.of(*(np.repeat(x, 4) for x in (arrival, prompt, output)))
        return simulate(a, [Engine(costs, 10**6, seqs, tokens, ranks=ranks)], assigned=np.zeros(160, int))

    four, one = served(4, 16, 10**6), served(1, 64, 10**6)
    np.testing.assert_allclose(four.finish_s, one.finish_s, rtol=1e-12)
    assert four.steps == one.steps


def test_controllers_are_of_one_rank():
    two = engine(ranks=2)
    with pytest.raises(InputError, match="one rank"):
        simulate_controlled(Arrivals.of([0], 4, 2), two, StaticController(3))
    with pytest.raises(InputError, match="at least 1"):
        engine(ranks=0)
