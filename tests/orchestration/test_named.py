"""Requests by name: feasible by code that shares nothing with what names them, literal constraints, brute force."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pandas as pd
import pyomo.environ as pyo
import pytest
from orchestration_cases import handful, two_models
from scipy.optimize import linprog

import optmodels
from formulations.orchestration import literal
from formulations.orchestration.check_requests import check_requests
from formulations.orchestration.methods.exact import exact
from formulations.orchestration.named import _flow, name_requests, requests_table
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import build_tables
from formulations.orchestration.prices import most_in_time
from formulations.orchestration.replay import cluster_of, replay, requests_of
from formulations.orchestration.slots import schedule
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.loading import load
from optmodels.simulation.assigned import follow
from optmodels.simulation.cluster import Cluster, Requests, simulate
from optmodels.simulation.options import ReplayOptions
from optmodels.traces.types import Trace


def named_plan(document):
    problem = load(document)
    t = build_tables(problem)
    p = exact(problem, t, Options(gap=1e-2)).plan
    return problem, t, p, name_requests(t, p)


OVERLOADED = [two_models(150, seed) for seed in range(2)] + [
    two_models(90, 2, slo={"ttft_s": 1.5}),
    two_models(60, 3, objective={"kind": "lexicographic"}, candidates={"tp": [1, 2], "batch": [2]}),
    two_models(120, 4, candidates={"tp": [1], "dp": [1, 2], "batch": [3]}),
]


@pytest.fixture(scope="module", params=range(len(OVERLOADED)))
def planned(request):
    return named_plan(OVERLOADED[request.param])


def test_everybody_named_is_in_time_in_a_slot_of_his_own(planned):
    problem, t, p, named = planned
    table = requests_table(t, p, named)
    verdict = check_requests(problem, p.model_dump(mode="json"), pd.DataFrame(table))
    assert verdict.ok, verdict.violations
    assert 0 < named.served.sum() < len(named.instance)


def test_the_simulator_starts_and_ends_nobody_later_than_planned(planned):
    _, t, p, named = planned
    requests, cluster = requests_of(t), cluster_of(t, p)
    for speed in ("load", "worst_case"):
        seen = follow(requests, cluster, named.instance, named.slot, named.start_s, speed=speed)
        assert (seen.met(requests) == named.served).all()
        assert (seen.start_s <= named.start_s + 1e-6).all() and (seen.finish_s <= named.finish_s + 1e-6).all()
    np.testing.assert_allclose(seen.finish_s, named.finish_s)


@pytest.mark.parametrize(
    ("change", "requirement"),
    [
        (lambda table, r: table["start_s"].__setitem__(r, table["arrival_s"][r] - 1), "arrival before start"),
        (lambda table, r: table["finish_s"].__setitem__(r, table["due_s"][r] + 1), "before the deadline"),
        (lambda table, r: table["slot"].__setitem__(r, 99), "slot of request"),
        (lambda table, r: table["instance"].__setitem__(r, "nobody"), "instance runs"),
        (lambda table, r: table["request"].__setitem__(r, 0), "once"),
        (lambda table, r: table["finish_s"].__setitem__(r, table["start_s"][r]), "service before finish"),
    ],
)
def test_a_table_that_is_not_feasible_is_refuted(planned, change, requirement):
    problem, t, p, named = planned
    table = requests_table(t, p, named)
    change(table, int(np.flatnonzero(named.served)[-1]))
    verdict = check_requests(problem, p.model_dump(mode="json"), table)
    assert any(requirement in v.requirement for v in verdict.violations)


def test_two_in_a_slot_are_refuted(planned):
    problem, t, p, named = planned
    table = requests_table(t, p, named)
    i, j = next((i, j) for i, j in itertools.combinations(np.flatnonzero(named.served), 2)
                if named.instance[i] == named.instance[j] and named.slot[i] != named.slot[j]
                and named.start_s[i] <= named.start_s[j] < named.finish_s[i] - 1e-3)  # fmt: skip
    table["slot"][j] = table["slot"][i]
    verdict = check_requests(problem, p.model_dump(mode="json"), table)
    assert any("one request at a time" in v.requirement for v in verdict.violations)


@pytest.mark.parametrize("seed", range(4))
def test_named_plan_satisfies_the_literal_constraints(seed):
    """MS (a)–(d) with whole requests: binaries, one instance each, GPUs held once, an instance that runs."""
    problem, t, p, named = named_plan(handful(seed=seed))
    model = literal.build(problem, t)
    d = model.data
    for v in model.component_data_objects(pyo.Var):
        v.set_value(0, skip_validation=True)
    names = [(c.tp, c.batch) for c in t.configurations]
    copies, index = {}, []
    for line in p.instances:
        c = names.index((p.configurations[line.configuration].tp, p.configurations[line.configuration].batch))
        index.append(d.instances.index((c, copies.get(c, 0))))
        copies[c] = copies.get(c, 0) + 1
        model.a[index[-1]].set_value(1)
        for server, gpus in line.placement.items():
            model.u[index[-1], d.servers.index(server)].set_value(len(gpus) // t.configurations[c].unit)
            for g in gpus:
                model.y[index[-1], d.gpus.index((0, server, g))].set_value(1)
    for r in np.flatnonzero(named.served):
        model.x[int(r), index[named.instance[r]]].set_value(1)  # a KeyError: r cannot be in time there
    families = (model.once, model.owner, model.held, model.together, model.stock, model.limits, model.order, model.runs)
    rows = [c for family in families for c in family.values()]
    broken = [
        c.name for c in rows
        if not ((c.lower is None or pyo.value(c.body) >= pyo.value(c.lower) - 1e-9)
                and (c.upper is None or pyo.value(c.body) <= pyo.value(c.upper) + 1e-9))
    ]  # fmt: skip
    assert not broken
    assert check_requests(problem, p.model_dump(mode="json"), requests_table(t, p, named)).ok


def most_in_time_by_trying(release, latest, service, slots):
    """The most requests that slots of one kind can serve in time, by trying every set and order."""
    n = len(release)
    for size in range(n, 0, -1):
        for chosen in itertools.combinations(range(n), size):
            for order in itertools.permutations(chosen):
                free = [0.0] * slots
                for i in order:
                    start = max(min(free), release[i])
                    if start > latest[i] + 1e-12:
                        break
                    free[free.index(min(free))] = start + service[i]
                else:
                    return size
    return 0


@pytest.mark.parametrize("seed", range(12))
def test_slots_against_every_order(seed):
    """Some order of some requests on the first slot free is optimal; the heuristic is at most one request short."""
    rng = np.random.default_rng(seed)
    n, slots = 6, 1 + seed % 2
    release = np.sort(rng.uniform(0, 6, n))
    service = rng.uniform(1, 4, (n, 1))
    latest = release[:, None] + rng.uniform(0, 3, (n, 1))
    best = most_in_time_by_trying(release, latest[:, 0], service[:, 0], slots)
    found, start = schedule(release, latest, service, np.ones(n), np.zeros(n, np.int64), np.zeros(slots, np.int64),
                            np.ones(1), 200)  # fmt: skip
    served = found >= 0
    assert best - 1 <= served.sum() <= best
    assert ((start >= release) & (start <= latest[:, 0]))[served].all()


def test_slots_reach_the_optimum_nearly_always():
    short = 0
    for seed in range(40):
        rng = np.random.default_rng(100 + seed)
        release, service = np.sort(rng.uniform(0, 5, 5)), rng.uniform(1, 4, (5, 1))
        latest = release[:, None] + rng.uniform(0, 3, (5, 1))
        found, _ = schedule(release, latest, service, np.ones(5), np.zeros(5, np.int64), np.zeros(1, np.int64),
                            np.ones(1), 200)  # fmt: skip
        short += most_in_time_by_trying(release, latest[:, 0], service[:, 0], 1) - int((found >= 0).sum())
    assert 0 <= short <= 2


@pytest.mark.parametrize("seed", range(6))
def test_no_schedule_beats_the_bound_of_the_prices(seed):
    """Against every order of few requests, and against one slot for each of many."""
    rng = np.random.default_rng(seed)
    n, slots = 6, 1 + seed % 2
    release = np.sort(rng.uniform(0, 6, n))
    service = rng.uniform(1, 4, (n, 1))
    latest = release[:, None] + rng.uniform(0, 3, (n, 1))
    bound, choice = most_in_time(release, latest, service, np.array([slots]), 1)
    assert bound >= most_in_time_by_trying(release, latest[:, 0], service[:, 0], slots) - 1e-9
    assert set(choice.tolist()) <= {-1, 0}
    bound, _ = most_in_time(release, latest, service, np.array([n]), 1)
    assert bound == pytest.approx(n)


def test_bound_of_the_prices_is_that_of_the_linear_programme():
    """Two requests a second of one second on one slot, no wait: half of them."""
    release = np.arange(40) / 2.0
    bound, _ = most_in_time(release, release[:, None].copy(), np.ones((40, 1)), np.array([1]), 15)
    assert 20 <= bound < 20.8


@pytest.mark.parametrize("seed", range(5))
def test_flow_is_maximal_and_moves_least(seed):
    """Against a linear programme of the same network."""
    rng = np.random.default_rng(seed)
    C, T = 3, 4
    quota = rng.integers(0, 4, (C, T))
    cells = {
        (int(b), int(code)): int(rng.integers(1, 5)) for b in range(T) for code in rng.choice(np.arange(1, 8), 2, False)
    }
    sent = _flow(cells, quota)
    for key, count in cells.items():
        assert sum(f for (b, code, _), f in sent.items() if (b, code) == key) <= count
    assert all(code >> q & 1 for _, code, q in sent)
    # Variables: cell → configuration → bin whose quota it uses.
    ways = [(key, q, b) for key in cells for q in range(C) if key[1] >> q & 1 for b in range(T)]
    rows = [[float(w[0] == key) for w in ways] for key in cells]
    rows += [[float(w[1:] == (q, b)) for w in ways] for q in range(C) for b in range(T)]
    limits = [*cells.values(), *quota.ravel()]
    best = linprog([0.01 * abs(key[0] - b) - 1 for key, _, b in ways], A_ub=rows, b_ub=limits)
    assert sum(sent.values()) == round(sum(best.x))


def test_planned_is_a_policy_of_replay_and_other_requests_fall_back():
    document = two_models(150, 1)
    result = optmodels.solve(document, gap=1e-2)
    assert {"planned", "shortest_queue"} <= set(result.report["replay"]["policies"])
    found = replay(load(document), result.plan, None, ReplayOptions(policy="planned"))
    assert found["policies"]["planned"]["attainment"] == pytest.approx(found["named"]["attainment"])
    frame = result.frames()["requests"]
    assert len(frame) == 150 and frame["finish_s"].notna().mean() == pytest.approx(found["named"]["attainment"])
    own = load(document).resolve().trace
    again = replay(load(document), result.plan, own, ReplayOptions(policy="planned"))
    assert again["policies"] == found["policies"]
    other = Trace("other", own.arrival_s + 1.0, own.prompt_tokens, own.output_tokens, own.labels, own.slo_factor)
    moved = replay(load(document), result.plan, other, ReplayOptions(policy="planned"))
    assert "planned" not in moved["policies"] and "in place of planned" in moved["notes"][0]


def test_assignments_that_do_not_fit_the_cluster_are_refused():
    _, t, p, named = named_plan(two_models(20, 0))
    requests, cluster = requests_of(t), cluster_of(t, p)
    for instance, slot in ((named.instance + len(p.instances), named.slot), (named.instance, named.slot + 1000)):
        with pytest.raises(InputError):
            follow(requests, cluster, instance, slot, named.start_s)


def test_no_names_without_a_trace_or_without_instances():
    *_, named = named_plan(two_models(20, memory={"vram_usable": 0.01}))
    assert named is not None and not named.served.any()
    classes = [{"model": "mistral-7b", "output_tokens": 400, "slo_factor": 1.2, "requests_per_s": 0.2}]
    rates = handful(requests={"duration_s": 60, "classes": classes}, bins={})
    problem = load(rates)
    t = build_tables(problem)
    plan = exact(problem, t, Options(gap=1e-2)).plan
    assert name_requests(t, plan) is None
    assert isinstance(plan, OrchestrationPlan)


def test_the_requests_lie_beside_the_plan_and_are_checked_with_it(cli, folder):
    (folder / "case.json").write_text(json.dumps(two_models(80, 1)))
    assert cli("solve", "case.json", "--method", "lp_rounding", "--out", "out").status == 0
    path = folder / "out" / "case-lp_rounding" / "requests.csv"
    table = pd.read_csv(path)
    assert len(table) == 80 and {"instance", "slot", "start_s", "finish_s", "due_s"} <= set(table)
    assert "requests.csv" not in (path.parent / "plan.json").read_text()
    assert cli("check", str(path.parent)).status == 0
    served = table.index[table["start_s"].notna()][0]
    table.loc[served, "start_s"] -= 100.0
    table.to_csv(path, index=False)
    run = cli("check", str(path.parent))
    assert run.status == 1 and "arrival before start" in run.out
    path.write_text("nothing\n1\n")
    run = cli("check", str(path.parent))
    assert run.status == 2 and "requests.csv" in run.err


@pytest.mark.parametrize("seed", range(6))
def test_names_reach_the_literal_optimum_where_time_is_whole(seed):
    """Arrivals, services and waits of whole bins: cutting time costs nothing, and the optima are one number."""
    rng = np.random.default_rng(seed)
    count, bin_s, rate = 8, 2.0, 50.0
    bins, waits = rng.integers(1, 4, count), rng.integers(0, 3, count)
    document = handful(
        cluster={"servers": [{"server": "box", "count": 2, "gpu": "v100-16g-pcie", "gpus": 1}]},
        candidates={"tp": [1], "batch": [1]},
        latency={"decay": [{"model": "mistral-7b", "tp": 1, "base_tokens_per_s": rate, "delta": 0.0}]},
        objective={"alpha": 1.0},
        requests={"rows": {
            "arrival_s": (bin_s * np.sort(rng.integers(0, 5, count))).tolist(),
            "output_tokens": (bins * bin_s * rate).astype(int).tolist(),
            "slo_factor": ((bins + waits) / bins * (1 + 1e-9)).tolist(),
        }},
    )  # fmt: skip
    problem = load(document)
    t = build_tables(problem)
    whole = literal.literal(problem, t, Options())
    named = name_requests(t, exact(problem, t, Options()).plan)
    assert whole.log["solver"] == "Optimal"
    assert named.served.sum() == round(count * whole.log["literal_objective"])
    assert named.served.sum() <= count * named.attainment_bound + 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_following_an_assignment_is_the_simulation_of_it(seed):
    """One slot an instance in order of arrival; and a slot for everybody, where only speed depends on others."""
    rng = np.random.default_rng(seed)
    n = 30
    requests = Requests.of(np.sort(rng.uniform(0, 20, n)), rng.integers(1, 50, n), rng.integers(1, 200, n))
    for slots, count in ((1, 3), (n, 1)):
        rates = np.sort(rng.uniform(10, 60, (count, slots)), axis=1)[:, ::-1]
        cluster = Cluster.of([slots] * count, rates, prefill_s=0.1, prefill_s_per_token=0.01)
        seen = simulate(requests, cluster, "round_robin", overflow_protection=False)
        slot = np.arange(n) % slots
        again = follow(requests, cluster, seen.instance, slot, requests.arrival_s)
        np.testing.assert_allclose(again.finish_s, seen.finish_s, rtol=1e-9)
        np.testing.assert_allclose(again.first_token_s, seen.first_token_s, rtol=1e-9)
        np.testing.assert_allclose(again.busy_s, seen.busy_s, rtol=1e-9)
