"""The compiled multi-region simulation against the slow reference, and cases by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from regions_reference import Reference

from optmodels.errors import InputError
from optmodels.latency.steps import AttentionWindow, Experts, StepCosts
from optmodels.simulation import continuous
from optmodels.simulation.regions import POLICIES, PUSHES, RegionEngine, RegionFleet, RegionRouting, policy, simulate
from optmodels.traces.types import Label, Prefixes, Programs, Trace

BT = 4


def random_case(seed):
    """A few regions, replicas of two kinds, conversations that share prefixes, sometimes closed loop."""
    g = np.random.default_rng(seed)
    R, P, n = int(g.integers(1, 5)), int(g.integers(1, 7)), int(g.integers(1, 60))
    d = g.uniform(0.0, 0.3, (R, R))
    d = (d + d.T) / 2
    np.fill_diagonal(d, 0.001)
    engines = tuple(
        RegionEngine(
            kv_tokens=int(g.integers(60, 200)), decode_s=0.03, decode_per_kv_token_s=1e-4, decode_per_sequence_s=0.02,
            prefill_s=0.01, prefill_per_token_s=0.004, prefill_per_pair_s=1e-5, max_batch=int(g.integers(2, 9)),
            prefill_tokens=int(g.integers(20, 120)),
        ) for _ in range(2)
    )  # fmt: skip
    timed = g.random() < 0.2
    may = g.random((R, R)) < 0.8
    np.fill_diagonal(may, True)
    fleet = RegionFleet(
        tuple(f"r{i}" for i in range(R)), d, engines, g.integers(0, R, P), g.integers(0, 2, P),
        g.uniform(0, 1, P) * (g.random(P) < 0.3) if timed else None, g.uniform(3, 9, P) if timed else None,
        may if g.random() < 0.3 else None,
    )  # fmt: skip
    users = int(g.integers(1, 8))
    session = g.integers(0, users, n)
    prompt, output = g.integers(1, 90, n), g.integers(1, 30, n)
    length = (prompt + output) // BT + 1
    # One root for some users, then their own blocks: prefixes shared across users and within them.
    depth = np.concatenate([np.arange(k) for k in length])
    owner = np.repeat(session, length)
    shared = g.integers(0, 6, users)[owner]
    ids = np.where(depth < shared, depth, 10_000 * (owner + 1) + depth)
    start = np.concatenate(([0], np.cumsum(length)))
    labels = {
        "region": Label(fleet.regions, g.choice(R, n, p=g.dirichlet(np.ones(R)))),
        "session": Label(tuple(f"u{i}" for i in range(users)), session),
    }
    arrival = np.sort(g.uniform(0, 6, n))
    trace = Trace("random", arrival, prompt, output, labels, prefixes=Prefixes(BT, start, ids))
    programs = None
    if g.random() < 0.6:
        program = np.sort(g.integers(0, max(1, n // 5), n))
        program = np.unique(program, return_inverse=True)[1]
        first = np.searchsorted(program, program)
        back = np.array([g.integers(f, i) if i > f else -1 for i, f in enumerate(first)])
        following = np.where(g.random(program.max() + 1) < 0.5, np.arange(program.max() + 1) + 1, -1)
        following[-1] = -1
        contents = trace.prefixes if g.random() < 0.7 else None
        programs = Programs(back, program, following, g.uniform(0, 0.2, n) * (g.random(n) < 0.5), contents)
    rule = RegionRouting(
        select=str(g.choice(["round_robin", "least_load", "consistent_hashing", "prefix"])), push=str(g.choice(PUSHES)),
        layout=str(g.choice(["central", "regional", "regional", "local"])), limit=int(g.integers(1, 6)),
        buffer=int(g.integers(0, 3)), burst=[None, 1, 3][int(g.integers(3))],
        probe_s=float(g.choice([0.05, 0.2])), match=float(g.choice([0.1, 0.5])),
        router=bool(g.random() < 0.3), virtual_nodes=5, trie_share=float(g.choice([0.2, 4.0])),
    )  # fmt: skip
    return trace, fleet, rule, programs


@pytest.mark.slow
@settings(max_examples=150)
@given(st.integers(0, 100_000))
def test_same_as_the_reference(seed):
    """Slow: 150 cases by a reference in plain Python."""
    trace, fleet, rule, programs = random_case(seed)
    slow = Reference(trace, fleet, rule, programs)
    seconds = slow.run(30.0)
    fast = simulate(trace, fleet, rule, programs=programs, until_s=30.0)
    assert fast.seconds == pytest.approx(seconds, abs=1e-9)
    served = [(r.replica, r.hit, r.forwarded, r.refused) for r in slow.requests]
    assert served == list(zip(fast.replica, fast.hit_tokens, fast.forwarded, fast.refused, strict=True))
    assert [s.preempted for s in slow.servers] == fast.preempted.tolist()
    back = [slow.back(r, slow.servers[max(r.replica, 0)]) for r in slow.requests]
    ttft = [r.first + b - r.sent if r.first >= 0 else np.nan for r, b in zip(slow.requests, back, strict=True)]
    e2e = [r.done + b - r.sent if r.done >= 0 else np.nan for r, b in zip(slow.requests, back, strict=True)]
    np.testing.assert_allclose(fast.ttft_s, ttft, rtol=0, atol=1e-9)
    np.testing.assert_allclose(fast.e2e_s, e2e, rtol=0, atol=1e-9)


PARTS = {
    "dense": {}, "experts": {"experts": Experts(0.01, 64, 4)}, "window": {"window": AttentionWindow(0.5, 400, 0.4)},
    "drafts": {"drafts": 3, "tokens": 2.4},
}  # fmt: skip


@pytest.mark.parametrize("chunk", [None, 300])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("rate", [2.0, 12.0])
def test_a_replica_with_costs_steps_as_an_engine_that_batches_continuously(rate, part, chunk):
    g, n = np.random.default_rng(3), 250
    costs = StepCosts(
        fixed_s=8e-3, prompt_step_s=1e-3, prompt_token_s=3e-5, prompt_pair_s=2e-9, prompt_context_s=1e-8,
        decode_request_s=1e-4, context_s=4e-8, mixed_context_s=5e-8, request_s=4e-3, **PARTS[part],
    )  # fmt: skip
    arrival, prompt, output = np.sort(g.uniform(0, n / rate, n)), g.integers(50, 3000, n), g.integers(1, 400, n)
    engine = continuous.Engine(costs, 600_000, 48, 1024, chunk)
    seen = continuous.simulate(continuous.Arrivals.of(arrival, prompt, output), [engine])
    replica = RegionEngine(600_000, costs=costs, max_batch=48, prefill_tokens=1024, chunk_tokens=chunk)
    fleet = RegionFleet(("here",), np.zeros((1, 1)), (replica,), np.array([0]), np.array([0]))
    r = simulate(Trace("same", arrival, prompt, output, {}), fleet, policy("least_load"))
    np.testing.assert_allclose(r.ttft_s, seen.ttft_s, rtol=1e-9)
    np.testing.assert_allclose(r.e2e_s, seen.e2e_s, rtol=1e-9)
    assert r.busy_s[0] == pytest.approx(seen.busy_s[0], rel=1e-9)


def test_where_memory_is_short_a_replica_with_costs_preempts_as_often():
    g, n = np.random.default_rng(4), 250
    costs = StepCosts(fixed_s=8e-3, prompt_token_s=3e-5, decode_request_s=1e-4, context_s=4e-8)
    arrival, prompt, output = np.sort(g.uniform(0, n / 4, n)), g.integers(50, 3000, n), g.integers(1, 400, n)
    seen = continuous.simulate(
        continuous.Arrivals.of(arrival, prompt, output), [continuous.Engine(costs, 12_000, 48, 1024)]
    )
    replica = RegionEngine(12_000, costs=costs, max_batch=48, prefill_tokens=1024)
    fleet = RegionFleet(("here",), np.zeros((1, 1)), (replica,), np.array([0]), np.array([0]))
    r = simulate(Trace("same", arrival, prompt, output, {}), fleet, policy("least_load"))
    assert seen.preemptions.sum() > 20
    assert r.preempted[0] == pytest.approx(seen.preemptions.sum(), rel=0.25)
    assert r.e2e_s.mean() == pytest.approx(seen.e2e_s.mean(), rel=0.03)


def one(prompt=(10,), output=(3,), arrival=(0.0,), **changes):
    """Requests on one replica in `there`, users in `here`, 0.1 s one way."""
    engine = (
        RegionEngine(kv_tokens=100, decode_s=0.05, prefill_s=0.2, prefill_per_token_s=0.01) if not changes else None
    )
    engine = engine or RegionEngine(**({"kv_tokens": 100, "decode_s": 0.05, "prefill_s": 0.2,
                                    "prefill_per_token_s": 0.01}
                                 | changes))  # fmt: skip
    fleet = RegionFleet(("here", "there"), np.array([[0.0, 0.1], [0.1, 0.0]]), (engine,), np.array([1]), np.array([0]))
    label = {"region": Label(("here",), np.zeros(len(prompt), dtype=int))}
    return Trace("hand", np.array(arrival), np.array(prompt), np.array(output), label), fleet


def test_one_request_by_hand():
    trace, fleet = one()
    for name in ("round_robin", "skylb"):  # a central balancer `here`, and the only regional one `there`
        r = simulate(trace, fleet, policy(name))
        # there and back 0.2 s, prefill 0.2 + 10 · 0.01 s, then two decode steps
        assert r.ttft_s[0] == pytest.approx(0.5)
        assert r.e2e_s[0] == pytest.approx(0.6)
        assert [r.metrics(deadline_s=s)["within_deadline"] for s in (0.59, 0.61)] == [0.0, 1.0]


def test_full_region_forwards_and_comes_back():
    engine = RegionEngine(kv_tokens=40, decode_s=0.05, prefill_per_token_s=0.01)
    fleet = RegionFleet(("a", "b"), np.array([[0.0, 0.15], [0.15, 0.0]]), (engine,), np.array([0, 1]), np.array([0, 0]))
    n = 12
    label = {"region": Label(("a",), np.zeros(n, dtype=int))}
    trace = Trace("burst", np.linspace(0, 1, n), np.full(n, 20), np.full(n, 15), label)
    home, away = (simulate(trace, fleet, policy("skylb", layout=x)) for x in ("local", "regional"))
    assert not home.forwarded.any()
    assert 0 < away.forwarded.sum() < n
    assert away.metrics()["e2e_s"]["mean"] < home.metrics()["e2e_s"]["mean"]
    assert (away.ttft_s[away.forwarded] >= 0.3 + 0.2).all()  # a round trip and the prefill


def test_hash_of_the_session_keeps_its_cache():
    g = np.random.default_rng(1)
    n, users = 300, 12
    session = g.integers(0, users, n)
    ids = (1000 * session[:, None] + np.arange(8)).ravel()
    prefixes = Prefixes(BT, np.arange(n + 1) * 8, ids)
    engine = RegionEngine(kv_tokens=1000, decode_s=0.01, prefill_per_token_s=1e-3)
    fleet = RegionFleet(("a",), np.zeros((1, 1)), (engine,), np.zeros(4, dtype=int), np.zeros(4, dtype=int))
    labels = {"session": Label(tuple(map(str, range(users))), session)}
    trace = Trace("x", np.sort(g.uniform(0, 200, n)), np.full(n, 33), np.full(n, 2), labels, prefixes=prefixes)
    for name in ("consistent_hashing", "prefix", "skylb_ch", "skylb"):
        r = simulate(trace, fleet, policy(name))
        assert (r.hit_tokens == 0).sum() == users  # each user's first request alone misses
        assert r.metrics()["cache_hit_rate"] == pytest.approx((n - users) / n * 32 / 33)
    assert (simulate(trace, fleet, policy("round_robin")).hit_tokens == 0).sum() > 3 * users


def test_memory_is_never_exceeded_and_the_youngest_gives_way():
    n = 40
    trace, fleet = one((30,) * n, (60,) * n, tuple(np.linspace(0, 0.5, n)), kv_tokens=200)
    lengths = np.array([60] * 5 + [1] * 35)  # the mean promises little: the five long ones are admitted together
    trace = Trace(trace.name, trace.arrival_s, trace.prompt_tokens, lengths, trace.labels)
    r = simulate(trace, fleet, policy("round_robin"))
    assert r.done.all()
    assert r.metrics()["preemptions"] > 0
    assert r.kv_used.max() <= 1.0


def test_what_can_never_fit_is_refused():
    trace, fleet = one((10, 99), (3, 2), (0.0, 0.0))
    r = simulate(trace, fleet, policy("skylb"))
    assert r.refused.tolist() == [False, True]
    assert r.metrics()["refused"] == 1
    assert r.metrics()["ttft_s"]["p99"] is None


def test_loss_of_a_region_and_opening_hours():
    trace, fleet = one((10,) * 4, (3,) * 4, (0.0, 1.0, 2.0, 3.0))
    fleet = RegionFleet(fleet.regions, fleet.one_way_s, fleet.engines, np.array([0, 1]), np.array([0, 0]))
    assert (simulate(trace, fleet, policy("skylb")).replica == 0).all()
    lost = fleet.without("here")
    assert lost.region.tolist() == [1]
    assert (simulate(trace, lost, policy("skylb")).ttft_s > 0.2).all()
    hours = RegionFleet(fleet.regions, fleet.one_way_s, fleet.engines, fleet.region, fleet.engine,
                  np.array([-np.inf, -np.inf]), np.array([1.5, np.inf]))  # fmt: skip
    assert simulate(trace, hours, policy("skylb")).replica.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("push", PUSHES)
def test_same_seed_same_replay(name, push):
    trace, fleet, _, programs = random_case(11)
    a, b = (simulate(trace, fleet, policy(name, push), programs=programs, until_s=60.0) for _ in range(2))
    np.testing.assert_array_equal(a.e2e_s, b.e2e_s)
    assert a.metrics() == b.metrics()


def test_mistakes_are_named():
    trace, fleet = one()
    with pytest.raises(InputError, match="round_robin"):
        policy("roundrobin")
    with pytest.raises(InputError, match="pending"):
        policy("skylb", "sp-p")
    with pytest.raises(InputError, match="centre"):
        simulate(trace, fleet, policy("least_load", centre="mars"))
    nowhere = Trace("x", trace.arrival_s, trace.prompt_tokens, trace.output_tokens, {"region": Label(("mars",),
                    np.zeros(1, dtype=int))})  # fmt: skip
    with pytest.raises(InputError, match="mars"):
        simulate(nowhere, fleet, policy("skylb"))
