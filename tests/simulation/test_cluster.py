"""The compiled simulator against the slow reference, queueing formulas and hand-worked cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optmodels.batch.queueing import erlang_c, variability
from optmodels.errors import InputError
from optmodels.latency.controllers import StaticController
from optmodels.simulation.cluster import POLICIES, QUEUES, SPEEDS, Cluster, Requests, Shares, simulate
from optmodels.simulation.reference import simulate_slowly

# Sixteenths and powers of two are added, multiplied and divided without rounding, so that ties are ties in both.
sixteenths = st.integers(0, 64).map(lambda x: x / 16)


@st.composite
def cases(draw):
    """A small cluster with few models, sub-clusters and kinds; requests with and without deadlines and classes."""
    count = draw(st.integers(1, 4))
    rates = [sorted((2.0 ** draw(st.integers(-1, 3)) for _ in range(4)), reverse=True) for _ in range(count)]
    per = st.lists(st.integers(0, 1), min_size=count, max_size=count)
    cluster = Cluster.of(
        [draw(st.integers(1, 4)) for _ in range(count)],
        rates,
        model=draw(per),
        prefill_s=[draw(sixteenths) * draw(st.integers(0, 1)) for _ in range(count)],
        prefill_s_per_token=[draw(st.sampled_from([0.0, 1 / 16])) for _ in range(count)],
        group=[draw(st.integers(-1, 1)) for _ in range(count)],
        available_from_s=[draw(st.sampled_from([0.0, 0.0, 2.0])) for _ in range(count)],
    )
    n = draw(st.integers(0, 20))
    several = {"min_size": n, "max_size": n}
    gaps = draw(st.lists(sixteenths, **several))
    requests = Requests.of(
        np.cumsum(gaps) if n else np.zeros(0),
        draw(st.lists(st.integers(1, 20), **several)),
        draw(st.lists(st.integers(1, 40), **several)),
        model=draw(st.lists(st.integers(0, 1), **several)),
        deadline_s=draw(st.lists(st.sampled_from([0.0, 1.0, 4.0, 10.0, 30.0, np.inf]), **several)),
        group=draw(st.lists(st.integers(-1, 1), **several)),
        klass=draw(st.lists(st.integers(-1, 1), **several)),
    )
    weight = np.array(draw(st.lists(st.integers(0, 3), min_size=12, max_size=12)), dtype=float).reshape(2, 2, 3) / 8
    kinds = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    shares = Shares(np.array(kinds, np.int64), weight, draw(st.sampled_from([np.inf, 4.0])), draw(st.booleans()))
    return requests, cluster, shares


PROTECTED = [(True, q) for q in QUEUES]


def assert_same(one, other):
    np.testing.assert_array_equal(one.instance, other.instance)
    for name in ("start_s", "first_token_s", "finish_s", "busy_s"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12, atol=1e-9, err_msg=name)
    np.testing.assert_array_equal(one.promised, other.promised)


@pytest.mark.slow
@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("policy", POLICIES)
@given(case=cases(), rule=st.sampled_from([(False, "fifo"), *PROTECTED]), seed=st.integers(0, 5))
@settings(max_examples=40)
def test_equals_the_slow_reference(policy, speed, case, rule, seed):
    """Slow: 40 cases of each speed and policy, by a reference in plain Python."""
    requests, cluster, shares = case
    arguments = {"speed": speed, "overflow_protection": rule[0], "queue": rule[1], "shares": shares, "seed": seed}
    fast = simulate(requests, cluster, policy, **arguments)
    assert_same(fast, simulate_slowly(requests, cluster, policy, **arguments))


@pytest.mark.parametrize("rule", [(False, "fifo"), *PROTECTED])
@pytest.mark.parametrize("policy", POLICIES)
def test_equals_the_slow_reference_with_long_queues(policy, rule):
    """Thrice the load that 12 unlike instances can serve, so that every path of a queue is taken."""
    rng = np.random.default_rng(4)
    slots = rng.integers(2, 9, 12)
    rates = rng.uniform(20, 60, (12, 1)) * (1 - 0.15 * np.log(0.5 + np.arange(1, 9)))
    cluster = Cluster.of(slots, rates, model=np.arange(12) % 2, prefill_s_per_token=1e-3, group=np.arange(12) % 3 - 1)
    n, output = 300, rng.integers(20, 400, 300)
    per_s = 3 * float((cluster.full_tokens_per_s * slots).sum()) / output.mean()
    requests = Requests.of(
        np.cumsum(rng.gamma(0.25, 4 / per_s, n)), rng.integers(1, 900, n), output, model=rng.integers(0, 2, n),
        deadline_s=output / rng.uniform(2, 20, n), group=rng.integers(-1, 2, n), klass=rng.integers(-1, 3, n),
    )  # fmt: skip
    shares = Shares(np.arange(12) % 4, rng.dirichlet(np.ones(5), (3, 3))[:, :, :4], 2.0, refuse_rest=True)
    arguments = {"overflow_protection": rule[0], "queue": rule[1], "shares": shares, "seed": 3}
    fast = simulate(requests, cluster, policy, **arguments)
    assert_same(fast, simulate_slowly(requests, cluster, policy, **arguments))
    assert (fast.start_s > requests.arrival_s)[fast.served].mean() > 0.1 and fast.served.all() <= (not rule[0])


@pytest.mark.parametrize("policy", POLICIES)
@given(case=cases(), speed=st.sampled_from(SPEEDS), queue=st.sampled_from(QUEUES))
@settings(max_examples=20)
def test_what_holds_in_every_run(policy, case, speed, queue):
    requests, cluster, shares = case
    seen = simulate(requests, cluster, policy, speed=speed, queue=queue, shares=shares)
    served = seen.served
    assert seen.met(requests)[served].all()  # overflow protection keeps every promise
    assert (cluster.model[seen.instance[served]] == requests.model[served]).all()
    assert (seen.start_s >= requests.arrival_s).all()
    assert (seen.first_token_s >= seen.start_s).all() and (seen.finish_s >= seen.first_token_s).all()
    for j in range(len(cluster)):
        mine = seen.instance == j
        edges = np.concatenate([seen.start_s[mine], seen.finish_s[mine]])
        step = np.concatenate([np.ones(mine.sum()), -np.ones(mine.sum())])
        order = np.lexsort((step, edges))  # a slot freed at a time may be taken at it
        assert np.cumsum(step[order]).max(initial=0) <= cluster.slots[j]
        if queue == "fifo":
            assert (np.diff(seen.start_s[mine]) >= 0).all()  # first come, first served


def test_load_by_hand():
    """Two slots at 4 tokens/s alone and 2 together: 8 tokens at 0 s and 6 at 1 s."""
    cluster = Cluster.of([2], [[4.0, 2.0]])
    seen = simulate(Requests.of([0.0, 1.0], 1, [8, 6]), cluster)
    # The first has 4 left at 1 s, which take 2 s together; the second then has 2 left, 0.5 s alone.
    np.testing.assert_allclose(seen.finish_s, [3.0, 3.5])
    worst = simulate(Requests.of([0.0, 1.0], 1, [8, 6]), cluster, speed="worst_case")
    np.testing.assert_allclose(worst.finish_s, [4.0, 4.0])


def test_a_later_admission_makes_an_earlier_one_late():
    """MaaSO §III-B's cascaded timeout, and the protection that prevents it."""
    cluster = Cluster.of([2], [[4.0, 2.0]])
    requests = Requests.of([0.0, 1.0], 1, [8, 6], deadline_s=[2.0, 9.0])
    seen = simulate(requests, cluster, overflow_protection=False)
    assert seen.promised.all() and seen.met(requests).tolist() == [False, True]
    assert simulate(requests, cluster).instance.tolist() == [-1, 0]  # 8 tokens at 2 tokens/s are predicted late


def test_who_has_time_waits_for_who_has_not():
    """One slot, 10 tokens/s: taken to 1 s; 10 tokens due at 9 s, then 10 due at 2.5 s, then 10 due at 3.5 s."""
    cluster = Cluster.of([1], [[10.0]])
    requests = Requests.of([0.0, 0.1, 0.2, 0.3], 1, 10, deadline_s=[2.0, 8.9, 2.3, 3.2])
    urgent = simulate(requests, cluster, queue="deadline")
    np.testing.assert_allclose(urgent.finish_s, [1.0, 4.0, 2.0, 3.0])
    assert simulate(requests, cluster).served.tolist() == [True, True, False, True]
    # One more that is due at 4 s would make the second late were it due at 4.5 s, and is refused for its sake.
    more = Requests.of([0.0, 0.1, 0.2, 0.3, 0.4], 1, 10, deadline_s=[2.0, 4.4, 2.3, 3.2, 3.6])
    assert simulate(more, cluster, queue="deadline").served.tolist() == [True, True, True, True, False]


def test_prefill_takes_the_slot_and_delays_the_first_token():
    seen = simulate(Requests.of([0.0, 0.0], [100, 50], 10), Cluster.of([1], [[10.0]], prefill_s_per_token=0.01))
    np.testing.assert_allclose(seen.first_token_s, [1.0, 2.5])
    np.testing.assert_allclose(seen.finish_s, [2.0, 3.5])


def test_planned_shares_are_kept_to_within_one_request():
    cluster = Cluster.of([1, 1, 1], np.ones((3, 1)))
    shares = Shares(np.array([0, 1, 1]), np.array([[[0.7, 0.2]]]), refuse_rest=True)
    requests = Requests.of(
        np.arange(103) / 1000, 1, np.where(np.arange(103) < 3, 1000, 1), klass=np.r_[-1, -1, -1, [0] * 100]
    )
    seen = simulate(requests, cluster, "planned_shares", shares=shares, overflow_protection=False)
    for n in range(1, 101):
        chosen = seen.instance[3 : 3 + n]  # the first three keep every slot
        kinds = np.where(chosen < 0, 2, shares.kind[chosen])
        assert np.abs(np.bincount(kinds, minlength=3) - np.array([0.7, 0.2, 0.1]) * n).max() <= 1 + 1e-9


def test_planned_shares_refuse_nobody_while_a_slot_is_free():
    """All are to be refused: one at a time finds the slot free, of two at a time one does."""
    cluster, shares = Cluster.of([1], [[1.0]]), Shares(np.array([0]), np.zeros((1, 1, 1)), refuse_rest=True)
    for together, served in ((1, [True] * 6), (2, [True, False] * 3)):
        requests = Requests.of(np.repeat(np.arange(0.0, 12.0, 2 * together), together), 1, 1, klass=0)
        for engine in (simulate, simulate_slowly):
            seen = engine(requests, cluster, "planned_shares", shares=shares)
            assert seen.served.tolist() == served


@pytest.mark.parametrize("servers, load", [(1, 0.7), (4, 0.8), (16, 0.9)])
@pytest.mark.parametrize("discipline", ["mmc", "mdc"])
def test_mean_waiting_of_poisson_arrivals(discipline, servers, load):
    """M/M/c exactly and M/D/c by Cosmetatos; within four standard errors by batch means, 3 % more for M/D/c."""
    n, mean = 400_000, 1000
    rng = np.random.default_rng(servers)
    tokens = np.full(n, mean) if discipline == "mdc" else np.maximum(rng.exponential(mean, n), 1).round().astype(int)
    arrival = np.cumsum(rng.exponential(1.0, n)) / (load * servers)
    cluster = Cluster.of([servers], np.full((1, servers), float(mean)))
    seen = simulate(Requests.of(arrival, 1, tokens), cluster, overflow_protection=False)
    waited = (seen.start_s - arrival)[n // 20 :]
    means = np.array([part.mean() for part in np.array_split(waited, 20)])
    error = means.std(ddof=1) / np.sqrt(20)
    expected = erlang_c(servers, load) / (servers * (1 - load)) * variability(discipline, 1, 1, servers, load)
    assert abs(waited.mean() - expected) <= 4 * error + (0.03 * expected if discipline == "mdc" else 0)
    assert error < 0.12 * expected  # the test has power


def test_random_is_seeded_and_even():
    cluster = Cluster.of([1000] * 4, np.ones((4, 1000)))
    requests = Requests.of(np.arange(4000) / 1e6, 1, 1000)
    one, same, other = (simulate(requests, cluster, "random", seed=s).instance for s in (1, 1, 2))
    assert (one == same).all() and (one != other).any()
    assert np.abs(np.bincount(one) - 1000).max() < 5 * np.sqrt(750)


def test_controllers_set_the_batch_limit():
    cluster = Cluster.of([8], np.full((1, 8), 10.0))
    requests = Requests.of(np.zeros(20), 1, 100)
    limited = simulate_slowly(requests, cluster, overflow_protection=False, controllers=[StaticController(2)])
    assert_same(limited, simulate(requests, Cluster.of([2], [[10.0] * 2]), overflow_protection=False))


def test_nothing_to_do_is_fine():
    none = Requests.of([], [], [])
    assert len(simulate(none, Cluster.of([1], [[1.0]])).instance) == 0
    one = Requests.of([0.0], 1, 1, model=3)
    assert simulate(one, Cluster.of([], np.zeros((0, 1)))).instance.tolist() == [-1]
    assert simulate(one, Cluster.of([1], [[1.0]])).instance.tolist() == [-1]  # nobody serves its model


@pytest.mark.parametrize(
    "requests, cluster, options, words",
    [
        (([1.0, 0.0], 1, 1), ([1], [[1.0]]), {}, "ascending"),
        (([0.0], 1, -1), ([1], [[1.0]]), {}, "≥ 0"),
        (([np.nan], 1, 1), ([1], [[1.0]]), {}, "finite"),
        (([0.0], 1, 1), ([2], [[1.0]]), {}, "slots"),
        (([0.0], 1, 1), ([0], [[1.0]]), {}, "slots"),
        (([0.0], 1, 1), ([1], [[0.0]]), {}, "tokens_per_s"),
        (([0.0], 1, 1), ([1], [[1.0]]), {"policy": "fastest"}, "one of"),
        (([0.0], 1, 1), ([1], [[1.0]]), {"speed": "warp"}, "one of"),
        (([0.0], 1, 1), ([1], [[1.0]]), {"queue": "lifo"}, "one of"),
        (([0.0], 1, 1), ([1], [[1.0]]), {"queue": "deadline", "overflow_protection": False}, "fifo"),
        (([0.0], 1, 1), ([1], [[1.0]]), {"policy": "planned_shares"}, "shares"),
    ],
)
def test_mistakes_are_named(requests, cluster, options, words):
    with pytest.raises(InputError, match=words):
        simulate(Requests.of(*requests), Cluster.of(*cluster), **options)
