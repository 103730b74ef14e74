"""Prefill and decode apart: optimum by brute force over counts and pairs, figures by hand, plans that must fail."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import yaml
from fleet_cases import APART, BUSY, random_stages
from scipy.optimize import linprog

import optmodels
from formulations.fleet import engines, making
from formulations.fleet.check import check
from formulations.fleet.deploy import deployments
from formulations.fleet.engines import engine_of, transfer_bytes
from formulations.fleet.methods import METHODS, exact
from formulations.fleet.model import FleetModel
from formulations.fleet.plan import DeploymentLine
from formulations.fleet.points import BOTH, DECODE, PREFILL, build_case, build_tables, prune
from formulations.fleet.replay import replay
from formulations.fleet.show import summary
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.simulation.continuous import Arrivals, Engine, simulate
from optmodels.simulation.options import ReplayOptions
from optmodels.solver import solve_compiled
from optmodels.targets.vllm import arguments, export
from optmodels.traces.types import Trace


@pytest.fixture(scope="module")
def apart():
    result = optmodels.solve(APART)
    assert result.status == "optimal"
    assert result.check.ok, result.check.violations
    return result


def brute_force(problem, tables, most):
    """The least USD/h over every vector of counts; for each a linear program over single points and *pairs*."""
    x, rates, W, P = tables.points, tables.rates[0], len(tables.demands), len(tables.points)
    can, limit = np.isfinite(tables.load), tables.deadlines
    ways = [(w, (p,)) for w in range(W) for p in range(P) if can[w, p] and x.stage[p] == BOTH]
    ways += [
        (w, (p, q)) for w in range(W) for p in range(P) for q in range(P)
        if can[w, p] and can[w, q] and x.stage[p] == PREFILL and x.stage[q] == DECODE
        and x.exchange[p] == x.exchange[q] and tables.part_s[w, p] + tables.part_s[w, q] <= limit[w]
    ]  # fmt: skip
    case = tables.case
    least = np.array([case.serve_at_least(case.workload(d.workload)) for d in tables.demands])
    price = rates * [case.workload(d.workload).unserved_usd_per_1000_requests * 3.6 for d in tables.demands]
    A = np.zeros((P + 2 * W, len(ways) + W))
    spot = [case.workload(d.workload).spot_share_max for d in tables.demands] * 2
    meet = np.hstack([np.zeros((W, len(ways))), np.eye(W)])
    for i, (w, used) in enumerate(ways):
        meet[w, i] = 1
        for p in used:
            A[p, i] += rates[w] * tables.load[w, p]
        A[P + w, i], A[P + W + w, i] = x.spot[used[0]], x.spot[used[-1]]  # prefilled, decoded on spot
    best = None
    asked = [case.workload(d.workload).min_replicas for d in tables.demands]  # a bucket each
    counts = itertools.product(range(most + 1), repeat=P)
    for n in sorted(counts, key=lambda n: float(np.array(n) @ x.usd_per_hour)):
        cost = float(np.array(n) @ x.usd_per_hour)
        if cost > (problem.budget_usd_per_hour or np.inf) + 1e-9 or (best is not None and cost >= best):
            continue
        if (np.array(n) @ tables.consumption > tables.limits + 1e-9).any():
            continue
        able = np.array(n) * can
        if any(able[w, x.stage != other].sum() < k for w, k in enumerate(asked) for other in (PREFILL, DECODE)):
            continue
        found = linprog(np.append(np.zeros(len(ways)), price), A_ub=A, b_ub=[*n, *spot], A_eq=meet, b_eq=np.ones(W),
                        bounds=[(0, None)] * len(ways) + [(0, 1 - v) for v in least])  # fmt: skip
        if found.status == 0:
            best = min(best or np.inf, cost + found.fun)
    return best


@pytest.mark.parametrize("seed", range(50))
def test_the_optimum_is_that_of_brute_force_over_counts_and_pairs(seed):
    """Pairs are told apart there; the model has none, only sums by stage and Hall's condition."""
    problem, tables = random_stages(seed)
    most = 2
    expected = brute_force(problem, tables, most)
    machines = len(tables.resources)
    capped = replace(
        tables, limit_rows=np.vstack([tables.limit_rows.reshape(-1, machines), np.eye(machines)]),
        limits=np.append(tables.limits, np.full(machines, most)),
        limit_names=(*tables.limit_names, *(f"stock of m{k}" for k in range(machines))),
    )  # fmt: skip
    for judged in (capped, prune(capped)[0]):
        found = solve_compiled(FleetModel(problem, judged).compiled())
        assert found.objective == (None if expected is None else pytest.approx(expected, rel=1e-6))


def test_transfers_of_a_part_are_of_its_own_demands():
    """Workloads of two models share nothing and are planned apart: rows of the second alone are not rows of both."""
    chat = APART["workloads"][0]
    both = [chat | {"name": "first", "model": "llama-3.1-8b"}, chat | {"name": "second"}]
    problem = optmodels.load(APART | {"workloads": both, "deployment": {"stages": ["prefill", "decode"]}})
    tables = build_tables(problem)
    part = tables.of_demands(np.array([i for i, d in enumerate(tables.demands) if d.workload == "second"]))
    plan = making.make_plan(part, exact._one_part(problem, part, Options(), {}, {}, plain=True).plan)
    (line,) = plan.periods[0].transfers
    assert set(line.demands) == {d.name for d in part.demands} and len(line.demands) == 2
    bytes_per_s = 5.0 * (4096 + 1024) * 80 * 2 * 8 * 128 * 2  # 80 layers, keys and values of 8 heads of 128, fp16
    assert line.gb_per_s == pytest.approx(bytes_per_s / 1e9)


def test_a_hundred_thousand_tokens_of_cache_by_hand():
    """Llama-3.1-8B: 32 layers × 2 × 8 heads × 128 × 2 bytes = 131,072 bytes a token; 12,000 of them 1.572864 GB.

    100 Gbit/s are 12.5 GB/s, of which half is planned: 0.2517 s and 5 ms a transfer, 0.2517 of the network a request/s.
    """
    case = optmodels.load(BUSY | {"deployment": {"stages": ["prefill", "decode"], "link": {"net_gbps": 100}}}).resolve()
    at = next(i for i, d in enumerate(case.demands) if d.input_tokens == 12000)
    assert transfer_bytes(case, [case.demands[at]]) == pytest.approx([12000 * 131072])
    tables, other = (
        build_case(case),
        build_tables(
            optmodels.load(BUSY | {"deployment": {"stages": ["prefill", "decode"], "link": {"net_gbps": 1e6}}})
        ),
    )
    first = np.flatnonzero((tables.points.stage == PREFILL) & np.isfinite(tables.load[at]))[0]
    assert tables.capacities[-1, at, first] == pytest.approx(12000 * 131072 / 6.25e9)
    alike = np.flatnonzero((tables.points.level[:3, first] == other.points.level[:3].T).all(axis=1)
                           & (other.points.stage == PREFILL)
                           & (other.points.configuration == tables.points.configuration[first]))  # fmt: skip
    if len(alike):
        less = tables.latencies.ttft_s[at, first] - other.latencies.ttft_s[at, alike[0]]
        assert less == pytest.approx(12000 * 131072 / 6.25e9, rel=1e-3)


@pytest.mark.parametrize(("speculation", "bytes_a_token"), [
    ({"drafts": 2, "acceptance": 0.6, "head": 0.125}, 1.125 * 327680),
    ({"drafts": 3, "acceptance": 0.7, "draft": "llama-3.2-3b"}, 327680 + 114688),
    ({"drafts": 4, "accepted": 1.2}, 327680),
], ids=["head", "draft model", "n-gram"])  # fmt: skip
def test_what_drafts_goes_with_the_cache(speculation, bytes_a_token):
    """Llama-3.1-70B: 80 layers × 2 × 8 heads × 128 × 2 bytes a token; a 3B drafts in 28 of them.

    Decode engines with drafts are faster than without; on the simulator both stages keep what the plan says.
    """
    stages = {"deployment": {"stages": ["prefill", "decode"]}}
    limits = {"engine": {"speculation": [speculation]}}
    result = optmodels.solve(APART | stages | limits)
    assert result.status == "optimal" and result.check.ok, result.check.violations
    case = optmodels.load(APART | stages | limits).resolve()
    assert transfer_bytes(case, case.demands) == pytest.approx([d.input_tokens * bytes_a_token for d in case.demands])
    [line] = result.plan["periods"][0]["transfers"]
    sent = sum(d.requests_per_s[0] * d.input_tokens for d in case.demands) * bytes_a_token
    assert line["gb_per_s"] == pytest.approx(sent / 1e9)
    best, alone = (
        np.min(t.latencies.tpot_s[:, t.points.stage == DECODE])
        for t in (build_tables(optmodels.load(APART | stages | more)) for more in (limits, {}))
    )
    assert best < alone
    for row in optmodels.replay(result)["report"]["demands"] if "draft" in speculation else ():
        assert row["ttft_replayed_s"] <= row["ttft_planned_s"] and row["tpot_replayed_s"] <= row["tpot_planned_s"]


def test_waits_leave_slow_decode_engines_their_time(monkeypatch):
    """Mean E2E of at most 30 s, of which decoding takes 24 to 30: the same level waits less, up to what is left."""
    chat = APART["workloads"][0] | {"slo": {"deadline_s": 30.0}}
    problem = optmodels.load(APART | {"workloads": [chat], "deployment": {"stages": ["prefill", "decode"]}})

    def slowest(tables):
        at = next(i for i, d in enumerate(tables.demands) if d.output_tokens == 512)
        mine = np.isfinite(tables.load[at])
        return tables.part_s[at, mine & (tables.points.stage == DECODE)].max()

    waits = build_tables(problem)
    monkeypatch.setattr(engines, "fixed_waits", lambda most_s, each=2: np.array([4.0]))
    longest = build_tables(problem)
    assert slowest(longest) < 26.0
    assert slowest(waits) > 28.0


def test_unlike_machines_for_the_two_stages(apart):
    lines = {d["stage"]: d for d in apart.plan["periods"][0]["deployments"]}
    assert lines["prefill"]["machines"][0]["gpu"] != lines["decode"]["machines"][0]["gpu"]
    assert lines["prefill"]["serves"][0]["tpot_s"] is None
    assert lines["decode"]["serves"][0]["ttft_s"] is None
    [sent] = apart.plan["periods"][0]["transfers"]
    # 80 layers × 2 × 8 heads × 128 × 2 bytes = 327,680 bytes a token; 10 requests/s of 2,560 tokens.
    assert sent["gb_per_s"] == pytest.approx(10 * 2560 * 327680 / 1e9)
    without = apart.log["stages"]["without"]
    alone = optmodels.solve(APART | {"deployment": {}})
    assert without["objective"] == pytest.approx(alone.plan["total_usd_per_hour"])
    assert apart.plan["total_usd_per_hour"] < without["objective"]


def test_the_plan_says_what_goes_through_which_network(apart):
    """8.39 GB/s of caches: 2 % of a p5's 3,200 Gbit/s, 17 % of a p4de's 400."""
    [said] = [x for x in summary(apart.model_dump()) if isinstance(x, str) and "KV caches" in x]
    [line] = apart.plan["periods"][0]["transfers"]
    counts = {d["stage"]: d["count"] for d in apart.plan["periods"][0]["deployments"]}
    shares = [line["gb_per_s"] / counts[s] * 8 / net for s, net in (("prefill", 3200), ("decode", 400))]
    assert f"at most {shares[0]:.0%} of one that prefills, {shares[1]:.0%} of one that decodes" in said
    assert any("certify: replay" in str(x) for x in summary(apart.model_dump()))  # whose bounds say what apart saves


def test_a_proof_that_no_fleet_with_stages_is_better(monkeypatch):
    monkeypatch.setattr(exact, "MOST_BREAK_EVEN_S", 600.0)  # as long as it takes where the machine is busy
    busy = BUSY | {"memory": {"runtime_gib": 0.0}}  # where the break-even price is between two bounds
    result = optmodels.solve(busy | {"deployment": {"stages": ["both", "prefill", "decode"]}})
    stages = result.log["stages"]
    assert stages["used"] is False
    assert stages["none_is_better"] is True
    assert 0.5 < stages["pays_below"]["found"] < stages["pays_below"]["none_from"] < 1
    today = optmodels.solve(busy)
    assert result.plan["total_usd_per_hour"] == pytest.approx(today.plan["total_usd_per_hour"])
    assert result.bound == pytest.approx(today.bound)


def test_where_a_limit_stopped_the_search_a_better_fleet_without_stages_is_the_plan(monkeypatch, apart):
    """And where it stopped the search for one without, the summary does not call that the best."""
    monkeypatch.setattr(exact, "MOST_BREAK_EVEN_S", 0.0)
    problem = optmodels.load(BUSY | {"deployment": {"stages": ["both", "prefill", "decode"]}})
    parted = optmodels.load(BUSY | {"deployment": {"stages": ["prefill", "decode"]}})
    worse = exact.exact(parted, build_tables(parted), Options(answer_only=True))
    best = optmodels.solve(BUSY)
    stopped = replace(worse, status="feasible", limit="gap", bound=best.bound)
    found = exact._with_what_stages_save(problem, build_tables(problem), Options(), stopped)
    assert found.plan.total_usd_per_hour == pytest.approx(best.objective)
    assert worse.plan.total_usd_per_hour > best.objective + 1
    assert (found.status, found.limit, found.log["stages"]["none_is_better"]) == ("optimal", None, True)

    said = apart.model_dump()
    for status, bound, expected in (("optimal", 1.0, "fleet without"), ("feasible", 1.0, "(bound 1.00)")):
        said["log"]["stages"]["without"] |= {"status": status, "bound": bound}
        [line] = [x for x in summary(said) if isinstance(x, str) and "The best fleet" in x]
        assert expected in line
        assert ("found" in line) == (status == "feasible")


def test_the_price_at_which_stages_apart_pay_is_between_a_fleet_and_a_proof(monkeypatch):
    """The least cost at either end, with prices scaled there, by the whole model, which brute force has confirmed."""
    monkeypatch.setattr(making, "_transfers", lambda *_: [])  # measured points have no caches
    monkeypatch.setattr(exact, "MOST_BREAK_EVEN_S", 600.0)
    between = 0
    for seed in range(12):
        problem, tables = random_stages(seed)
        best = solve_compiled(FleetModel(problem, tables).compiled())
        alone = solve_compiled(FleetModel(problem, tables.alone()).compiled())
        if best.x is None or alone.x is None or alone.objective > best.objective + 1e-6 or problem.budget_usd_per_hour:
            continue
        found = exact.pays_below(problem, tables, Options(), best.objective)

        def least(factor, problem=problem, tables=tables):
            usd = np.where(tables.points.stage != BOTH, factor, 1.0) * tables.points.usd_per_hour
            cheaper = replace(tables, points=replace(tables.points, usd_per_hour=usd))
            return solve_compiled(FleetModel(problem, cheaper).compiled()).objective

        goal = best.objective * (1 - exact.WORTH)
        assert 0 <= found["found"] < found["none_from"] <= 1
        assert least(found["none_from"]) >= goal * (1 - 1e-6)
        if found["found"]:
            assert least(found["found"]) <= goal * (1 + 1e-6)
            between += found["none_from"] <= found["found"] * exact.CLOSE * (1 + 1e-9)
    assert between >= 1


def test_both_alone_are_todays_points():
    ours, today = (build_tables(optmodels.load(BUSY | d)) for d in ({"deployment": {"stages": ["both"]}}, {}))
    np.testing.assert_array_equal(ours.capacities, today.capacities)
    np.testing.assert_array_equal(ours.points.usd_per_hour, today.points.usd_per_hour)
    more = build_tables(optmodels.load(BUSY | {"deployment": {"stages": ["both", "prefill", "decode"]}})).alone()
    np.testing.assert_array_equal(more.capacities[:-1], today.capacities)
    np.testing.assert_array_equal(np.nan_to_num(more.capacities[-1], posinf=0.0), 0.0)


@pytest.mark.parametrize(("path", "factor", "said"), [
    (("deployments", 0, "serves", 0, "ttft_s"), 1.01, "TTFT"),
    (("deployments", 1, "serves", 0, "tpot_s"), 0.9, "TPOT"),
    (("deployments", 1, "serves", 0, "e2e_s"), 0.9, "deadline"),
    (("deployments", 0, "serves", 1, "share"), 0.5, "decoded"),
    (("deployments", 0, "engine", "capacities", "transfer"), 0.5, "transfer in use"),
    (("transfers", 0, "gb_per_s"), 1.1, "KV caches sent"),
    (("transfers", 0, "requests_per_s"), 1.1, "requests/s sent"),
    (("transfers", 0, "demands", "chat/4096x256"), 0.5, "sent"),
])  # fmt: skip
def test_a_wrong_plan_fails_its_check(apart, path, factor, said):
    plan = copy.deepcopy(apart.plan)
    plan["periods"][0]["deployments"].sort(key=lambda d: d["stage"] != "prefill")
    at = plan["periods"][0]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] *= factor
    report = check(optmodels.load(APART), plan)
    assert any(said in v.requirement for v in report.violations), report.violations


def test_a_stage_called_another_or_pairs_too_late_fail(apart):
    plan = copy.deepcopy(apart.plan)
    plan["periods"][0]["transfers"] = []
    assert any("transfers" in v.requirement for v in check(optmodels.load(APART), plan).violations)
    plan = copy.deepcopy(apart.plan)
    for d in plan["periods"][0]["deployments"]:
        d["stage"] = "both"
    assert not check(optmodels.load(APART), plan).ok
    ends = [max(s["e2e_s"] for s in d["serves"]) for d in apart.plan["periods"][0]["deployments"]]
    short = copy.deepcopy(APART)
    short["workloads"][0]["slo"]["deadline_s"] = sum(ends) * 0.95
    found = check(optmodels.load(short), apart.plan).violations
    assert any("misses its deadline" in v.requirement for v in found)


def test_heuristics_know_whole_requests_only():
    problem = optmodels.load(APART)
    tables = build_tables(problem)
    for name in ("greedy", "lp_rounding", "single_type"):
        plan = METHODS[name](problem, tables, Options()).plan
        assert plan is None or all(d.stage == "both" for d in plan.periods[0].deployments)


@pytest.mark.parametrize(("changes", "path", "said"), [
    ({"deployment": {"stages": ["prefill"]}}, "deployment.stages", "prefill and decode together"),
    ({"deployment": {"stages": ["both", "both"]}}, "deployment.stages", "each stage once"),
    ({"serving": "static", "engine": {}, "latency": {}}, "deployment.stages", "[both] with serving: static"),
    ({"workloads": [APART["workloads"][0] | {"soft": {"usd_per_1000_requests": 1.0}}]}, "workloads[0].soft", "late"),
])  # fmt: skip
def test_what_says_nothing_of_stages_is_refused(changes, path, said):
    with pytest.raises(InputError) as caught:
        optmodels.load(APART | changes).resolve()
    assert any(m.path.startswith(path) and said in m.expected for m in caught.value.mistakes), caught.value


def test_promises_hold_on_the_simulator(apart):
    """Prefill, then the transfer, then decoding on other engines: planned shares and Poisson streams at random."""
    found = replay(optmodels.load(APART), apart.plan, None, ReplayOptions())
    assert {row["policy"] for row in found["demands"]} == {"planned_shares", "random"}
    for row in found["demands"]:
        for name in ("ttft", "tpot", "deadline"):
            assert row[f"{name}_replayed_s"] <= row[f"{name}_planned_s"] <= row[f"{name}_limit_s"] * (1 + 1e-9)


def test_requests_go_on_where_their_cache_arrives(apart):
    """Five requests far apart: each is alone on its engines, so that its times are sums of what they do for it."""
    n, problem = 5, optmodels.load(APART)
    case, period = problem.resolve(), apart.plan["periods"][0]
    trace = Trace("far", np.arange(n) * 1000.0, np.full(n, 4096, np.int64), np.full(n, 256, np.int64))
    kept = {}
    replay(problem, apart.plan, trace, ReplayOptions(policy="planned_shares", keep=lambda _, rows: kept.update(rows)))
    lines = {d["stage"]: DeploymentLine.model_validate(d) for d in period["deployments"]}
    (first, _), (rest, _) = (engine_of(case, lines[s]) for s in ("prefill", "decode"))
    alone = [
        simulate(
            Arrivals.of([0.0], [4096], [output], received_tokens=[received]),
            [Engine(costs, int(line.engine.kv_tokens), 256, line.engine.max_num_batched_tokens, None)],
        )
        for costs, line, output, received in (
            (first, lines["prefill"], 1, 0), (rest, lines["decode"], 256, 4096),
        )
    ]  # fmt: skip
    net = {d.machines[0].machine: next(m.net_gbps for m in case.machines if m.machine == d.machines[0].machine) / 8
           for d in lines.values()}  # fmt: skip
    sending, receiving = (4096 * 327680 / (net[lines[s].machines[0].machine] * 0.5e9) for s in ("prefill", "decode"))
    ttft = engine_of(case, lines["prefill"])[1] * alone[0].ttft_s[0] + 0.005 + sending
    np.testing.assert_allclose(kept["ttft_s"], ttft)
    np.testing.assert_allclose(kept["e2e_s"], ttft + receiving + alone[1].e2e_s[0])


def test_engines_are_told_their_stage_and_what_they_cannot_do(apart):
    made = deployments(optmodels.load(APART), apart.plan)
    roles = {d.stage: json.loads(arguments(d)["kv-transfer-config"]) for d in made.deployments}
    assert roles == {
        "prefill": {"kv_connector": "NixlConnector", "kv_role": "kv_producer"},
        "decode": {"kv_connector": "NixlConnector", "kv_role": "kv_consumer"},
    }
    for d in made.deployments:
        assert any("elsewhere a proxy has to" in note for note in d.notes)
    two = APART | {"strategies": {"tensor_parallel": [4]}}
    made = deployments(optmodels.load(two), optmodels.solve(two).plan)
    script = "".join(text for name, text in export(made).files.items() if name.endswith(".sh"))
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT=5600" in script
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT=5601" in script  # of the second engine of a machine


def test_a_plan_in_stages_becomes_a_graph_of_dynamo(apart, folder, cli):
    (folder / "plan.json").write_text(apart.to_json(), encoding="utf-8")
    run = cli("export", "plan.json", "--to", "dynamo", "--out", "made")
    assert run.status == 0, run.err
    assert "without RDMA devices" in run.err
    (file,) = (folder / "made").glob("*.yaml")
    (graph,) = yaml.safe_load_all(file.read_text(encoding="utf-8"))
    replicas = {}
    for d in apart.plan["periods"][0]["deployments"]:
        each = d["machines"][0]["count"] * d["replicas_per_machine"]
        replicas[d["stage"]] = replicas.get(d["stage"], 0) + d["count"] * each
    assert {c["type"]: c["replicas"] for c in graph["spec"]["components"]} == replicas | {"frontend": 1}


def test_engines_that_run_today_do_both_stages_beside_an_optimum_that_parts_them():
    """What runs is the same with stages allowed; the plan it is compared with is the instance's, and saves more."""
    today = {"schema": 1, "deployments": [
        {"workloads": ["chat"], "machine": "p5.48xlarge", "machines": 2, "tensor_parallel": 4}]}  # fmt: skip
    apart, together = (optmodels.evaluate(today, problem=APART | {"deployment": {"stages": stages}})
                       for stages in (["both", "prefill", "decode"], ["both"]))  # fmt: skip
    assert apart["report"] == together["report"]
    best = apart["best"]
    assert {d["stage"] for d in best["plan"]["periods"][0]["deployments"]} == {"prefill", "decode"}
    assert best["objective"] == pytest.approx(optmodels.solve(APART).objective)
    assert apart["saving"]["share"] == pytest.approx(1 - best["objective"] / apart["today"]["objective"])
    assert apart["saving"]["share"] > together["saving"]["share"]
