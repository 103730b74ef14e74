"""What exact returns when it is stopped, when a solve fails, when numbers are extreme: no less than any heuristic."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time

import numpy as np
import pytest

import optmodels
from formulations.orchestration import rounding
from formulations.orchestration.assign import reserve
from formulations.orchestration.busy import busy_shares
from formulations.orchestration.clock import Clock
from formulations.orchestration.flow import ceiling, demand
from formulations.orchestration.making import counts_of
from formulations.orchestration.methods import METHODS, by_model, exact
from formulations.orchestration.methods.by_model import separable
from formulations.orchestration.methods.trials import MOST_DRAWN, sample
from formulations.orchestration.model import FlowModel, dispatch, nonzeros
from formulations.orchestration.named import name_requests
from formulations.orchestration.packing import Room
from formulations.orchestration.plan import Dispatcher
from formulations.orchestration.points import build_tables
from formulations.orchestration.prices import most_in_time
from formulations.orchestration.problem import MOST_BINS
from formulations.orchestration.replay import dispatched
from formulations.orchestration.rounding import rounded, scheduled
from formulations.orchestration.slots import schedule
from optmodels.errors import InputError, SolverError
from optmodels.formulation import Options
from optmodels.loading import load
from optmodels.solver.highs import Report

HEURISTICS = [m for m in METHODS if m not in ("exact", "literal", "config_tree")]
SPEED = {"v100-16g-pcie": 1.0, "l4": 0.6}


def document(gpus=("v100-16g-pcie", "l4"), **changes):
    """Two models of which too many requests come: on two GPU types all at once, on one model by model."""
    rates = {"llama-3.2-3b": 98.0, "mistral-7b": 43.0}
    decay = [
        {"model": m, "gpu": g, "tp": tp, "base_tokens_per_s": rate * SPEED[g] * tp**0.8, "delta": 0.1}
        for m, rate in rates.items() for g in gpus for tp in (1, 2)
    ]  # fmt: skip
    rng = np.random.default_rng(3)
    at = np.sort(rng.random(60) * 20)
    return {
        "formulation": "orchestration", "schema": 1, "name": "overload",
        "cluster": {"servers": [{"server": g, "gpu": g, "gpus": 4 // len(gpus), "vram_gib": 80} for g in gpus]},
        "models": [{"model": m} for m in rates],
        "candidates": {"tp": [1, 2], "batch": [1, 4]}, "latency": {"decay": decay},
        "requests": {"rows": {
            "arrival_s": at.tolist(), "output_tokens": rng.integers(50, 500, 60).tolist(),
            "model": rng.choice(list(rates), 60).tolist(), "slo_factor": rng.uniform(0.8, 2.0, 60).tolist(),
        }}, "bins": {"lengths": 2, "slo": 2},
    } | changes  # fmt: skip


def classes(rate, **changes):
    """The same as rates, to be scaled."""
    every = [{"model": m, "output_tokens": 200, "slo_factor": 1.5, "requests_per_s": [rate, 2 * rate, 0.5 * rate]}
             for m in ("llama-3.2-3b", "mistral-7b")]  # fmt: skip
    return document(requests={"classes": every, "classes_bin_s": 10}, **changes)


def read(source):
    problem = load(source)
    return problem, build_tables(problem)


def best_of_heuristics(problem, tables):
    plans = [METHODS[m](problem, tables, Options(answer_only=True)).plan for m in HEURISTICS]
    return max(p.score.total for p in plans if p is not None)


def fails(*arguments, **options):
    raise SolverError("Not Set")


@pytest.fixture(params=[("v100-16g-pcie",), ("v100-16g-pcie", "l4")], ids=["by model", "jointly"])
def case(request):
    problem, tables = read(document(request.param))
    assert separable(tables) == (len(request.param) == 1)
    return problem, tables


def check(problem, outcome):
    form = optmodels.formulation.get("orchestration")
    assert form.check(problem, outcome.plan.model_dump(mode="json")).ok
    assert outcome.bound is not None
    assert outcome.plan.score.total <= outcome.bound + 1e-6


# ------------------------------------------------------------------------------------------------- failures and limits


def test_a_solver_that_fails_leaves_the_heuristics_plan_and_a_bound(case, monkeypatch):
    problem, tables = case
    least, best = best_of_heuristics(problem, tables), METHODS["exact"](problem, tables, Options())
    for module, name in ((exact, "relaxation"), (exact, "solve_compiled"), (by_model, "relaxation"),
                         (by_model, "solve_compiled")):  # fmt: skip
        monkeypatch.setattr(module, name, fails)
    outcome = METHODS["exact"](problem, tables, Options())
    check(problem, outcome)
    assert (outcome.status, outcome.limit) == ("feasible", "gap")
    assert outcome.plan.score.total >= least - 1e-9
    assert outcome.bound >= best.plan.score.total - 1e-9
    assert outcome.log["failed"]


def test_assignments_without_a_linear_programme(case, monkeypatch):
    problem, tables = case
    monkeypatch.setattr(rounding, "dispatch", fails)
    monkeypatch.setattr(exact, "solve_compiled", fails)
    monkeypatch.setattr(by_model, "solve_compiled", fails)
    outcome = METHODS["exact"](problem, tables, Options())
    check(problem, outcome)
    assert outcome.plan.score.total > 0.3


def test_a_model_too_large_for_the_memory_is_not_made(case, monkeypatch):
    problem, tables = case
    monkeypatch.setattr(rounding, "MOST_NONZEROS", 10)
    outcome = METHODS["exact"](problem, tables, Options())
    check(problem, outcome)
    assert (outcome.status, outcome.limit) == ("feasible", "memory")
    assert outcome.bound == ceiling(tables)
    assert outcome.plan.score.total >= 0.9 * best_of_heuristics(problem, tables)
    assert METHODS["lp_rounding"](problem, tables, Options()).limit == "memory"


def test_the_size_of_a_model_is_told_without_it(case):
    _, tables = case
    for pooled in (True, False):
        made = FlowModel(tables, pooled=pooled).compiled().A.nnz
        assert made / 3 <= nonzeros(tables, pooled=pooled) <= 3 * made


def test_no_time_at_all_is_a_plan_with_a_bound(case):
    problem, tables = case
    outcome = METHODS["exact"](problem, tables, Options(time_limit=1e-9))
    check(problem, outcome)
    assert (outcome.status, outcome.limit) == ("feasible", "time")


@pytest.mark.parametrize("method", HEURISTICS)
def test_heuristics_stop_with_a_plan_that_holds(case, method):
    problem, tables = case
    outcome = METHODS[method](problem, tables, Options(time_limit=1e-9))
    assert outcome.limit == "time"
    if outcome.plan is not None:
        form = optmodels.formulation.get("orchestration")
        assert form.check(problem, outcome.plan.model_dump(mode="json")).ok


def test_a_cancelled_solve_has_a_plan(case):
    problem, _ = case
    cancel = threading.Event()
    cancel.set()
    result = optmodels.solve(problem, cancel=cancel)
    assert (result.status, result.limit) == ("feasible", "interrupt")
    assert result.check.ok


def test_ctrl_c_between_solves_keeps_the_incumbent(case, monkeypatch):
    problem, tables = case

    def pressed(*arguments):
        signal.raise_signal(signal.SIGINT)
        return separable(*arguments)

    monkeypatch.setattr(exact, "separable", pressed)
    outcome = METHODS["exact"](problem, tables, Options())
    check(problem, outcome)
    assert (outcome.status, outcome.limit) == ("feasible", "interrupt")


@pytest.mark.parametrize("seed", range(4))
def test_no_heuristic_is_better(seed):
    """Nor where bound and plan keep a gap, or where simulation likes another plan better."""
    rng = np.random.default_rng(seed)
    changes = {"objective": {"alpha": float(rng.random()), "beta": float(rng.random())},
               "candidates": {"tp": [1, 2], "batch": rng.choice([1, 2, 4, 8], 2, replace=False).tolist()}}  # fmt: skip
    problem, tables = read(document(**changes))
    outcome = METHODS["exact"](problem, tables, Options())
    check(problem, outcome)
    assert outcome.plan.score.total >= best_of_heuristics(problem, tables) - 1e-9


def test_a_plan_that_simulation_prefers_is_not_behind_a_heuristics(case):
    problem, tables = case
    good = scheduled(tables, counts_of(tables, METHODS["greedy_dp"](problem, tables, Options()).plan))
    poor = scheduled(tables, np.zeros_like(good.counts))
    heuristic = METHODS["greedy_dp"](problem, tables, Options()).plan
    search = exact._InstanceSearch(problem, tables, 2.0, found=good, others=[poor], heuristic=heuristic)
    assert [s.objective for s in search.candidates(1.0)] == [good.objective]
    search.heuristic = None
    assert len(search.candidates(1.0)) == 2


def test_the_ceiling_is_above_every_plan(case):
    problem, tables = case
    outcome = METHODS["exact"](problem, tables, Options())
    assert outcome.plan.score.total <= outcome.bound <= ceiling(tables)
    roomy, plenty = read(document(cluster={"servers": [{"server": "s", "count": 20, "gpu": "v100-16g-pcie", "gpus": 8,
                                                        "vram_gib": 80}]}, objective={"alpha": 1}))  # fmt: skip
    found = METHODS["exact"](roomy, plenty, Options())
    assert found.plan.score.total == pytest.approx(ceiling(plenty))


# ------------------------------------------------------------------------------------------------------------- numbers


def test_the_least_share_of_a_class_counts():
    """One of 70 requests can be in time: 1/70 is attained."""
    rows = {"arrival_s": [float(i) for i in range(70)], "output_tokens": [100] * 70, "model": ["llama-3.2-3b"] * 70,
            "slo_factor": [1e-3] * 69 + [2.0]}  # fmt: skip
    result = optmodels.solve(document(requests={"rows": rows}, objective={"alpha": 1}, bins={"lengths": 1, "slo": 1}))
    assert result.status == "optimal"
    assert result.objective == pytest.approx(1 / 70)


@pytest.mark.parametrize("factor", [1e-12, 1e-9, 1e-5])
def test_few_requests_are_a_unit(factor):
    """A slot is never full: what is planned for a request does not depend on how few there are."""
    few, many = (optmodels.solve(classes(1e-2 * f)) for f in (factor, 1.0))
    assert few.check.ok and few.status == "optimal"
    assert few.objective == pytest.approx(many.objective, rel=1e-6)
    assert demand(build_tables(load(classes(1e-2 * factor)))).unit < 1


@pytest.mark.parametrize("rate", [1e7, 1e12])
def test_more_requests_than_can_start_are_as_many_as_can(rate):
    """In the overload what is served does not depend on how many more there are."""
    objective = {"alpha": 1}
    some, many = (read(classes(r, objective=objective))[1] for r in (1e5, rate))
    counts = np.ones(len(some.configurations), dtype=np.int64)
    served = [dispatch(t, counts)[0].admitted.sum() for t in (some, many)]
    assert served[1] == pytest.approx(served[0], rel=1e-6)
    result = optmodels.solve(classes(rate, objective=objective))
    assert result.check.ok and result.objective > 0
    assert result.objective <= result.bound * (1 + 1e-6)
    assert len(sample(many).requests) < 1.1 * MOST_DRAWN


@pytest.mark.parametrize("factor", [1e-10, 1e10])
def test_machines_slow_and_fast_beyond_sense(factor):
    slow = classes(0.05)
    for row in slow["latency"]["decay"]:
        row["base_tokens_per_s"] *= factor
    result = optmodels.solve(slow)
    assert result.check.ok
    assert result.objective <= result.bound * (1 + 1e-6)


def test_a_service_longer_than_all_bins_is_cut_at_them():
    shares = busy_shares(1e12, 1.0)
    assert len(shares) <= MOST_BINS + 3
    assert shares[0] == pytest.approx(0.5) and (shares[1:] == 1).all()


def test_reservations_of_few_requests_are_those_of_many():
    t = read(classes(1e-2))[1]
    counts = np.ones(len(t.configurations), dtype=np.int64)
    tiny = dataclasses.replace(t, classes=dataclasses.replace(t.classes, arrivals=t.classes.arrivals * 1e-9))
    goal = (1.0, 0.0, 0.0)
    assert reserve(tiny, counts, goal).admitted * 1e9 == pytest.approx(reserve(t, counts, goal).admitted)


def test_prices_of_services_far_apart_have_few_bins():
    release, latest = np.array([0.0, 1.0]), np.array([[1e3], [1e3]])
    bound, _ = most_in_time(release, latest, np.array([[1e-16], [1e-16]]), np.array([1]), 2)
    assert bound == pytest.approx(2.0)


# ----------------------------------------------------------------------------------------------------- large clusters


def test_a_huge_cluster_is_filled_in_few_steps(monkeypatch):
    servers = [{"server": "s", "count": 100_000, "gpu": "v100-16g-pcie", "gpus": 8, "vram_gib": 80}]
    _, t = read(classes(1.0, cluster={"servers": servers}))
    tried = []
    monkeypatch.setattr(rounding.Fits, "__call__", lambda self, counts: tried.append(counts) or counts.sum() < 700_000)
    made = rounded(t, np.full(len(t.configurations), 1.5), Clock.of(Options()))
    assert made.counts.sum() >= 699_000
    assert len(tried) < 10_000


def test_patterns_are_counted_before_they_are_listed():
    for sizes, servers in (((2, 3), {7: 1, 4: 2}), ((1, 3, 4), {9: 1}), ((3, 5, 7), {20: 1, 2: 1})):
        room = Room(sizes, servers, None)
        assert room.ways == len(room.patterns) + (2 in servers and min(sizes) > 2)  # nothing fits: an empty pattern
    servers = [{"server": "s", "gpu": "v100-16g-pcie", "gpus": 2000, "vram_gib": 80}]
    rates = [{"model": "mistral-7b", "tp": tp, "base_tokens_per_s": 40.0 + tp, "delta": 0.1} for tp in range(1, 9)]
    with pytest.raises(InputError, match="ways to fill a server"):
        optmodels.solve(document(
            ("v100-16g-pcie",), cluster={"servers": servers}, models=[{"model": "mistral-7b"}],
            candidates={"tp": list(range(1, 9)), "batch": [4]}, latency={"decay": rates},
            requests={"classes": [{"model": "mistral-7b", "output_tokens": 200, "slo_factor": 1.5,
                                   "requests_per_s": 1.0}], "duration_s": 60},
        ))  # fmt: skip


# --------------------------------------------------------------------------------------------------- what already runs


@pytest.mark.parametrize(("placement", "tp", "expected"), [
    ({"v100-16g-pcie": [0]}, 2, "2 GPUs"),
    ({"l4": [0]}, 1, "a server with v100-16g-pcie"),
    ({"v100-16g-pcie": [4]}, 1, "a GPU index from 0 to 1"),
    ({"nowhere": [0]}, 1, "a server of the cluster"),
    ({"v100-16g-pcie": [1, 1]}, 2, "that no other running instance holds"),
])  # fmt: skip
def test_a_placement_of_what_runs_that_cannot_be(placement, tp, expected):
    running = [{"model": "mistral-7b", "gpu": "v100-16g-pcie", "tp": tp, "batch": 4, "placement": placement}]
    with pytest.raises(InputError, match=expected):
        build_tables(load(document(change={"running": running})))


def test_what_runs_and_is_pruned_is_stopped():
    running = [{"model": "mistral-7b", "gpu": "l4", "tp": 1, "batch": 1, "count": 1}]
    result = optmodels.solve(document(change={"running": running}), "config_tree")
    assert result.check.ok


# --------------------------------------------------------------------------------------------------------------- names


def test_names_stop_when_the_time_is_up(case):
    problem, tables = case
    plan = METHODS["greedy_dp"](problem, tables, Options()).plan
    assert name_requests(tables, plan, over=lambda: True) is None
    rng = np.random.default_rng(0)
    release = np.sort(rng.random(40) * 5)
    service = np.full((40, 1), 1.0)
    given = (release, release[:, None] + 2.0, service, np.ones(40), np.zeros(40, dtype=np.int64),
             np.zeros(2, dtype=np.int64), np.ones(1))  # fmt: skip
    stopped, improved = (schedule(*given, tries=500, over=lambda v=v: v)[0] >= 0 for v in (True, False))
    assert 0 < stopped.sum() <= improved.sum()


def test_time_that_the_rest_uses_up_leaves_what_rounding_finds(case, monkeypatch):
    """Exchanges and trees find nothing and take all the time they are given: `lp_rounding` has its turn."""
    problem, tables = case
    least = METHODS["lp_rounding"](problem, tables, Options(answer_only=True)).plan.score.total

    def last(clock):
        time.sleep(max(0.0, 2 * clock.until - clock.began - time.perf_counter()))  # `improved` is given half of it

    def tree(model, settings, start):
        time.sleep(settings.time_limit)
        return Report("no_solution_found", "time", None, None, None, None, (), settings.time_limit, 0, "")

    monkeypatch.setattr(exact, "FIRST", ())
    monkeypatch.setattr(exact, "rounded", lambda t, n, clock: scheduled(t, np.zeros(len(n)), clock))
    monkeypatch.setattr(exact, "improved", lambda t, start, bound, clock: last(clock) or start)
    monkeypatch.setattr(by_model, "solve_compiled", tree)
    outcome = METHODS["exact"](problem, tables, Options(time_limit=2))
    assert outcome.plan.score.total >= least - 1e-9 > 0
    check(problem, outcome)


def test_a_plan_with_another_dispatcher_has_no_sub_clusters(case):
    problem, tables = case
    plan = METHODS["greedy_dp"](problem, tables, Options()).plan
    sides = [x.model_copy(update={"subcluster": 0}) for x in plan.instances]
    own = Dispatcher(policy="maaso", strict_slo_factor=1.0)
    judged = dispatched(tables, [plan.model_copy(update={"instances": sides, "dispatcher": own})])
    assert judged.dispatcher.strict_slo_factor is None
    assert {x.subcluster for x in judged.instances} == {-1}
