"""MaaSO's placer and its baselines: known optima, the simulator as second method, every plan through the checker."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formulations.orchestration.assign import reserve
from formulations.orchestration.flow import metrics, weights
from formulations.orchestration.methods.greedy_dp import deploy
from formulations.orchestration.methods.printed import Printed
from formulations.orchestration.methods.search import Search, SearchGroup
from formulations.orchestration.methods.slots import pooled
from formulations.orchestration.methods.trials import BOTH, RELAXED, STRICT, Trials, sample, split
from formulations.orchestration.model import dispatch
from formulations.orchestration.problem import Orchestration
from optmodels.formulation import Options, get
from optmodels.simulation.cluster import Cluster, Requests, simulate
from papers.maaso import case
from tests.maaso_cases import MODELS, problem, rows, tables, whole

QUICK = (
    "greedy_dp",
    "greedy_dp_exchange",
    "maaso_star",
    "maaso_printed",
    "alpaserve",
    "selective_replication",
    "round_robin",
)
FORM = get("orchestration")


def mixed(gpus: int = 3, **extra: Any) -> Orchestration:
    """Strict requests every 5 s that only tp-2 serves in time, relaxed ones every 10 s: tp-2 and dp serve all on 3."""
    at = sorted([(5.0 * i, 0.55) for i in range(60)] + [(10.0 * i + 0.1, 1.5) for i in range(30)])
    return problem(
        {(MODELS[0], 1, 1): (10.0,), (MODELS[0], 2, 1): (20.0,)},
        {"rows": {"arrival_s": [a for a, _ in at], "output_tokens": [100] * 90, "slo_factor": [f for _, f in at]}},
        (gpus,), **extra,
    )  # fmt: skip


def kinds(outcome: Any) -> dict[str, int]:
    return {c.parallelism: c.instances for c in outcome.plan.configurations}


def test_heterogeneous_optimum() -> None:
    p = mixed()
    t = tables(p)
    best = FORM.method("greedy_dp")(p, t, Options())
    assert kinds(best) == {"tp-2": 1, "dp": 1}
    assert best.plan.dispatcher.strict_slo_factor == 0.55
    seen = FORM.replay(p, best.plan.model_dump(mode="json"), None, None)
    assert seen["policies"]["maaso"]["attainment"] == 1.0
    # No homogeneous deployment does as well: dp cannot serve the strict, one tp-2 has time for two in three.
    alike = FORM.method("alpaserve")(p, t, Options())
    seen = FORM.replay(p, alike.plan.model_dump(mode="json"), None, None)
    assert kinds(alike) == {"tp-2": 1}
    assert seen["policies"]["shortest_queue"]["attainment"] < 0.8


def test_printed_algorithm_shares_a_configuration() -> None:
    """As urgent, one model needs tp-2 and the other two dp: a configuration of its own for each, or tp-2 for both."""
    arrivals = [5.0 * i for i in range(60)]
    p = problem(
        {(m, tp, 1): (rate,) for m, rates in zip(MODELS, ((10.0, 20.0), (10.0, 11.0)), strict=True)
         for tp, rate in zip((1, 2), rates, strict=True)},
        {"rows": {"arrival_s": np.repeat(arrivals, 2).tolist(), "output_tokens": [100] * 120,
                  "slo_factor": [1.2] * 120, "model": [*MODELS] * 60}},
        (4,), models=[{"model": MODELS[0], "t_slice_s": 0.05}, {"model": MODELS[1], "t_slice_s": 0.1}],
    )  # fmt: skip
    t = tables(p)
    own, shared = (FORM.method(name)(p, t, Options()) for name in ("greedy_dp", "maaso_printed"))
    assert {(c.model, c.parallelism): c.instances for c in own.plan.configurations} == {
        (MODELS[0], "tp-2"): 1, (MODELS[1], "dp"): 2,
    }  # fmt: skip
    assert {(c.model, c.parallelism): c.instances for c in shared.plan.configurations} == {
        (MODELS[0], "tp-2"): 1, (MODELS[1], "tp-2"): 1,
    }  # fmt: skip
    seen = [FORM.replay(p, x.plan.model_dump(mode="json"), None, None)["policies"]["maaso"] for x in (own, shared)]
    assert seen[0]["attainment"] == 1.0
    assert seen[1]["attainment"] < 0.85


@pytest.mark.parametrize("side", [BOTH, STRICT])
def test_printed_algorithm_against_every_count(side: int) -> None:
    """One model: for every number of GPUs Algorithm 1 finds the best of all configurations and numbers of instances."""
    p = problem({(MODELS[0], 1, 1): (10.0, 8.0), (MODELS[0], 2, 1): (18.0, 15.0)},
                rows(5, 150, MODELS[:1], rate=1.5), (6,))  # fmt: skip
    t, goal = whole(p), p.objective.weights
    trials = Trials(t, sample(t), "maaso")
    way = Printed(trials, range(len(t.configurations)), 6, goal, (BOTH, STRICT, RELAXED))
    used = [c for of in way.shapes for c in of.values()]
    for gpus, (score, groups) in enumerate(way.grown(side)):
        best = max((trials.gains(c, n, side).score(goal) for c in used for n in range(1, gpus // t.gpus_of[c] + 1)),
                   default=0.0)  # fmt: skip
        assert score == pytest.approx(best, abs=1e-12)
        assert sum(x.count * t.gpus_of[x.configuration] for x in groups) <= gpus


def test_selective_replication_takes_single_gpus() -> None:
    p = mixed(4)
    assert kinds(FORM.method("selective_replication")(p, tables(p), Options()))["dp"] <= 4
    assert set(kinds(FORM.method("selective_replication")(p, tables(p), Options()))) == {"dp"}


def test_round_robin_has_equal_numbers() -> None:
    rates = {(MODELS[0], 1, 1): (10.0,), (MODELS[1], 2, 1): (20.0,), (MODELS[1], 1, 1): ()}
    p = problem({k: v for k, v in rates.items() if v}, rows(1, 60, MODELS), (8,),
                models=[{"model": MODELS[0]}, {"model": MODELS[1], "t_slice_s": 0.1}])  # fmt: skip
    found = FORM.method("round_robin")(p, tables(p), Options())
    # 8 // (1 + 2) = 2 of each; of the two GPUs left one goes to each model's next instance that has room.
    assert {c.model: c.instances for c in found.plan.configurations} == {MODELS[0]: 3, MODELS[1]: 2}
    assert found.plan.dispatcher.overflow_protection is False


def test_minimum_and_maximum_instances() -> None:
    p = mixed(6, models=[{"model": MODELS[0], "maximum_instances": 2}])
    assert sum(kinds(FORM.method("greedy_dp")(p, tables(p), Options())).values()) <= 2
    q = mixed(6, models=[{"model": MODELS[0], "minimum_instances": 4}])
    for name in ("greedy_dp", "alpaserve"):
        assert sum(kinds(FORM.method(name)(q, tables(q), Options())).values()) >= 4
    r = mixed(2, models=[{"model": MODELS[0], "minimum_instances": 3}])
    none = FORM.method("greedy_dp")(r, tables(r), Options())
    assert none.plan is None
    assert "3 instances" in none.log["reason"]


def test_attainment_to_hold_moves_gpus() -> None:
    """The second model's requests are worth little, but half of them must be in time."""
    rates = {(m, 1, 1): (10.0,) for m in MODELS}
    asked = rows(3, 200, MODELS, rate=0.4, low=1.2, high=3.0)
    free = problem(rates, asked, (2,), models=[{"model": MODELS[0]}, {"model": MODELS[1], "weight": 0.0}],
                   objective={"alpha": 1.0})  # fmt: skip
    held = problem(
        rates, asked, (2,), objective={"alpha": 1.0},
        models=[{"model": MODELS[0]}, {"model": MODELS[1], "weight": 0.01, "attainment_at_least": 0.3}],
    )  # fmt: skip
    first = FORM.method("greedy_dp")(free, tables(free), Options()).plan
    assert {c.model for c in first.configurations} == {MODELS[0]}
    second = FORM.method("greedy_dp")(held, tables(held), Options()).plan
    assert {c.model for c in second.configurations} == set(MODELS)
    assert not second.shortfalls


def test_failed_gpus_leave_no_room_for_large_units() -> None:
    """8 GPUs, one of each server's four failed: no tp-4, however much the search would like it."""
    rates = {(MODELS[0], 1, 1): (10.0,), (MODELS[0], 2, 1): (19.0,), (MODELS[0], 4, 1): (60.0,)}
    p = problem(rates, rows(2, 100, MODELS[:1], rate=2.0), (4, 4),
                cluster={"servers": [{"server": s, "gpu": "h100", "gpus": 4} for s in "ab"],
                         "failed_gpus": {"a": [0], "b": [3]}})  # fmt: skip
    for name in QUICK:
        found = FORM.method(name)(p, tables(p), Options())
        assert FORM.check(p, found.plan.model_dump(mode="json")).ok, name
        assert "tp-4" not in kinds(found)


# ---------------------------------------------------------------------------------------------------- the search


def score_of(t: Any, groups: list[SearchGroup], trials: Trials, goal: Any) -> float:
    """MS(6) of one simulation of everything together: sub-clusters as groups of the simulator."""
    drawn, w = trials.drawn, weights(t)
    of = [g for g in groups for _ in range(g.count)]
    if not of:
        return 0.0
    xs = [t.configurations[g.configuration] for g in of]
    rate = np.ones((len(xs), max(x.slots for x in xs)))
    for i, x in enumerate(xs):
        rate[i, : x.slots] = x.tokens_per_s
    cluster = Cluster.of(
        [x.slots for x in xs], rate, model=[x.model for x in xs], group=[g.side for g in of],
        prefill_s_per_token=[x.prefill_s_per_token for x in xs],
    )  # fmt: skip
    r = drawn.requests
    sent = Requests.of(r.arrival_s, r.prompt_tokens, r.output_tokens, model=r.model, deadline_s=r.deadline_s,
                       klass=r.klass, group=np.where(drawn.slo_factor <= trials.threshold, 0, 1),
                       ttft_limit_s=r.ttft_limit_s)  # fmt: skip
    seen = simulate(sent, cluster, trials.policy)
    met = seen.met(sent)
    k = r.klass[met]
    first = (seen.first_token_s - r.arrival_s)[met]
    per_token = w.throughput[k] / t.classes.output_tokens[k]
    return float(
        goal[0] * w.satisfaction[k].sum() + goal[1] * (per_token * r.output_tokens[met]).sum()
        + goal[2] * (w.latency * len(k) - w.waiting * first.sum())
    )  # fmt: skip


@pytest.mark.parametrize(("trace", "cv"), [(1, 4.0), (3, 2.0), (4, 2.0), (6, 1.0)])
def test_never_worse_than_its_homogeneous_baseline(trace: int, cv: float) -> None:
    p = case(trace, gpus=8, cv=cv, requests=2_500, seed=trace)
    t, goal = tables(p), p.objective.weights
    every = range(len(t.configurations))
    scores = {}
    for sides in ((BOTH,), (BOTH, STRICT, RELAXED)):
        trials = Trials(t, sample(t), "maaso")
        scores[sides] = score_of(t, deploy(trials, every, goal, sides), trials, goal)
    assert scores[BOTH, STRICT, RELAXED] >= scores[(BOTH,)] - 1e-9
    assert scores[(BOTH,)] > 0.1


def test_search_against_all_ways() -> None:
    """With every trial simulated, the programme finds the best sum over cells that fits the GPUs."""
    rates = {(m, tp, 1): (10.0 * tp**0.8, 8.0 * tp**0.8) for m in MODELS for tp in (1, 2)}
    p = problem(rates, rows(5, 150, MODELS, rate=0.8), (4,))
    t, goal = tables(p), p.objective.weights
    trials = Trials(t, sample(t), "maaso")
    found = Search(trials, range(len(t.configurations)), 4, goal, (BOTH, STRICT, RELAXED))
    for key, cell in found.cells.items():
        for i in range(1, len(cell.count)):
            cell.gains[i] = trials.gains(cell.configuration[i], cell.count[i], key[1])
            cell.simulated[i] = True
    chosen = found.choose(found.sides)
    best = -np.inf
    ways = []
    for m in range(2):
        both, strict, relaxed = (range(len(found.cells[m, s].count)) for s in (BOTH, STRICT, RELAXED))
        ways.append([[((m, BOTH), i)] for i in both]
                    + [[((m, STRICT), i), ((m, RELAXED), j)] for i, j in product(strict, relaxed)])  # fmt: skip
    for a, b in product(*ways):
        if sum(found.cells[key].gpus[i] for key, i in a + b) <= 4:
            best = max(best, found.value(a + b))
    assert found.value(chosen) == pytest.approx(best, abs=1e-12)
    assert sum(found.cells[key].gpus[i] for key, i in chosen) <= 4


def test_pool_of_one_instance_is_the_simulator() -> None:
    """One instance at a constant rate: pool and simulator are the same first-come-first-served queue."""
    rates = {(MODELS[0], 1, 1): (9.0, 9.0, 9.0)}
    p = problem(rates, rows(7, 400, MODELS[:1], rate=0.5, low=1.1, high=4.0), (1,))
    t = whole(p)
    trials = Trials(t, sample(t), "shortest_queue", speed="worst_case")
    for c in range(3):
        (quick,), slow = trials.estimates(c, np.array([1]), BOTH), trials.gains(c, 1, BOTH)
        assert 0 < slow.missed < 400
        assert quick.missed == slow.missed
        assert quick.satisfaction == pytest.approx(slow.satisfaction)
        assert quick.throughput == pytest.approx(slow.throughput)
        assert quick.latency == pytest.approx(slow.latency)


def test_pool_counts_by_hand() -> None:
    """Three requests at once of 10 tokens at 10 tokens/s, latest start at 0.5 s: each needs a slot of its own."""
    at, output = np.zeros(3), np.full(3, 10)
    gain = pooled(at, at, output, np.full(3, 0.5), np.ones(3), np.ones(3), 1.0, 1.0, np.array([10.0]), np.arange(1, 6))
    assert gain[:, 3].tolist() == [1.0, 2.0, 3.0]  # it stops where one more gains nothing
    gain = pooled(at, at, output, np.full(3, 1.5), np.ones(3), np.ones(3), 1.0, 0.25, np.array([10.0]), np.array([1]))
    assert gain[0].tolist() == [2.0, 2.0, 2.0 - 0.25, 2.0]  # the second waits one second, the third would wait two


def test_split() -> None:
    assert split(np.array([0.8, 0.9, 1.0, 1.2, 1.3, 1.5])) == 1.0
    assert split(np.array([0.8, 0.8, 0.8, 1.4])) == 0.8
    assert split(np.array([1.1, 1.1])) == 1.1


# ---------------------------------------------------------------------------------------------------- assignment


@pytest.mark.parametrize(("trace", "requests", "least"), [(1, 500, 0.98), (2, 1_000, 0.95), (4, 4_000, 0.9)])
def test_reservations_against_the_linear_programme(trace: int, requests: int, least: float) -> None:
    p = case(trace, gpus=8, requests=requests, seed=1)
    t = tables(p)
    trials = Trials(t, sample(t), "maaso")
    counts = np.zeros(len(t.configurations), dtype=np.int64)
    for g in deploy(trials, range(len(counts)), p.objective.weights, (BOTH,)):
        counts[g.configuration] += g.count
    exact, _ = dispatch(t, counts)
    assert exact is not None
    quick, best = metrics(t, reserve(t, counts, p.objective.weights)).total, metrics(t, exact).total
    assert least * best <= quick <= best + 1e-6


# ------------------------------------------------------------------------------------------------ random instances


@st.composite
def problems(draw: st.DrawFn) -> Orchestration:
    models = MODELS[: draw(st.integers(1, 2))]
    rates = {}
    for m in models:
        for tp in (1, 2, *draw(st.sampled_from([(), (4,)]))):
            first = draw(st.floats(5, 15)) * tp**0.7
            fall = draw(st.floats(0.6, 1.0))
            rates[m, tp, 1] = tuple(first * fall**i for i in range(draw(st.integers(1, 3))))
    seed, n = draw(st.integers(0, 10**6)), draw(st.integers(1, 120))
    requests = rows(seed, n, models, rate=draw(st.floats(0.1, 5.0)))
    extra: dict[str, Any] = {}
    if draw(st.booleans()):
        extra["objective"] = {"kind": "lexicographic"}
    if draw(st.booleans()):
        extra["slo"] = {"ttft_s": draw(st.floats(0.5, 20.0))}
    served = [{"model": m, "minimum_instances": draw(st.integers(0, 1))} for m in models]
    if draw(st.booleans()):
        served[0]["maximum_instances"] = draw(st.integers(1, 3))
    if draw(st.booleans()):
        extra["change"] = {"running": [{"model": models[0], "batch": 1, "count": 2}], "score_per_start": 0.01,
                           "score_per_stop": 0.005}  # fmt: skip
    return problem(rates, requests, tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=3))),
                   models=served, **extra)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(problems())
def test_every_plan_passes_the_checker(p: Orchestration) -> None:
    """Slow: every method on 25 problems, each plan checked and replayed."""
    t = tables(p)
    for name in QUICK:
        found = FORM.method(name)(p, t, Options(seed=1))
        if found.plan is None:  # only where minimum instances leave no room
            assert sum(m.minimum_instances for m in p.models) > 0, name
            continue
        data = found.plan.model_dump(mode="json")
        verdict = FORM.check(p, data)
        assert verdict.ok, (name, verdict.violations)
        seen = FORM.replay(p, data, None, None)
        assert 0 <= seen["policies"][found.plan.dispatcher.policy]["attainment"] <= 1


@pytest.mark.parametrize("name", [*QUICK, "lp_rounding", "config_tree"])
def test_same_seed_same_plan(name: str) -> None:
    p = problem({(m, tp, 1): (10.0 * tp**0.8, 7.0 * tp**0.8) for m in MODELS for tp in (1, 2)},
                rows(11, 120, MODELS, rate=1.0), (4, 2))  # fmt: skip
    one, two = (FORM.method(name)(p, tables(p), Options(seed=4)).plan for _ in range(2))
    assert one is not None
    assert one == two


def test_two_gpu_types_are_both_used() -> None:
    """The second type serves what the first leaves."""
    rates = {(MODELS[0], 1, 1): (10.0,)}
    p = problem(rates, rows(4, 200, MODELS[:1], rate=1.0, low=1.5, high=3.0), (2,))
    data = p.model_dump(mode="json", by_alias=True, exclude_none=True)
    data["cluster"]["servers"].append({"server": "old", "gpu": "a100-80g", "gpus": 3})
    data["latency"]["measured_rows"].append({"model": MODELS[0], "gpu": "a100-80g", "load": 1, "tokens_per_s": 9.0})
    data["models"][0]["minimum_instances"] = 4
    q = Orchestration.model_validate(data)
    found = FORM.method("greedy_dp")(q, tables(q), Options())
    assert {c.gpu: c.instances for c in found.plan.configurations} == {"h100": 2, "a100-80g": 3}
    assert FORM.check(q, found.plan.model_dump(mode="json")).ok


def test_classes_at_scale_are_sampled() -> None:
    """A million requests on 4,096 GPUs as classes: planned on a sample, checked as they are."""
    p = problem(
        {(MODELS[0], 1, 1): (50.0, 48.0, 46.0, 44.0), (MODELS[0], 2, 1): (90.0, 85.0, 80.0, 75.0)},
        {"duration_s": 600.0, "classes": [
            {"model": MODELS[0], "output_tokens": 300, "slo_factor": 0.9, "requests_per_s": 700.0},
            {"model": MODELS[0], "output_tokens": 200, "slo_factor": 1.6, "requests_per_s": 900.0},
        ]},
        cluster={"servers": [{"server": "s", "count": 512, "gpu": "h100", "gpus": 8}]},
    )  # fmt: skip
    found = FORM.method("greedy_dp")(p, tables(p), Options())
    assert found.log["sample_scale"] > 1
    assert FORM.check(p, found.plan.model_dump(mode="json")).ok
    assert found.plan.prediction.attainment > 0.9
