"""Prefix-cache hits by size of the cache and number of engines: what a plan counts on, by hand and by brute force."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import yaml
from fleet_cases import BUSY, brute_force

import optmodels
from formulations.fleet.check import check
from formulations.fleet.deploy import deployments
from formulations.fleet.methods.exact import exact
from formulations.fleet.plan import FleetPlan
from formulations.fleet.points import DECODE, PREFILL, build_tables
from formulations.fleet.replay import _sent, _together, replay
from formulations.fleet.show import summary
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.simulation.options import ReplayOptions
from optmodels.traces.types import Prefixes, Trace

HITS = [
    {"engines": n, "kv_tokens": size, "share": share}
    for n, shares in {1: (0.2, 0.5, 0.8), 2: (0.15, 0.45, 0.7), 4: (0.1, 0.3, 0.5), 8: (0.0, 0.2, 0.3)}.items()
    for size, share in zip((10_000.0, 40_000.0, 90_000.0), shares, strict=True)
]
DOCUMENTS = {
    "name": "documents", "model": "llama-3.1-8b",
    "slo": {"ttft_s": {"at_most": 6.0, "percentile": 0.95}, "tpot_s": 0.08},
    "buckets": [{"input_tokens": 12000, "output_tokens": 300, "requests_per_s": 6.3}],
}  # fmt: skip


def instance(engines=4, **changes):
    return BUSY | {
        "pool": {"catalog": "aws", "include": ["g6e.xlarge", "p5.4xlarge"]}, "workloads": [DOCUMENTS],
        "prefix_cache": {"hits": HITS, "engines": engines, "kept": 0.2},
    } | changes  # fmt: skip


@pytest.fixture(scope="module")
def solved():
    return optmodels.solve(instance(8))


def test_a_share_is_the_least_of_the_numbers_allowed_at_the_largest_size_kept():
    case = optmodels.load(instance(3)).resolve()  # measured are 1, 2, 4 and 8
    assert [case.hit_share("documents", kv) for kv in (49_999, 50_000, 200_000, 900_000)] == [0, 0.1, 0.3, 0.5]
    together = copy.deepcopy(HITS)
    for row in together:
        row["share"] = row["share"] / 2 + 0.1 * row["engines"] / 8  # with affinity more engines lose nothing
    case = optmodels.load(instance(8, prefix_cache={"hits": together, "engines": 8, "kept": 0.25})).resolve()
    assert case.hit_share("documents", 360_000) == pytest.approx(0.15 + 0.1)
    assert case.hit_share("documents", 40_000) == pytest.approx(0.1)
    assert case.running_kv_tokens({"documents"}, 1000.0) == 750


def test_splitting_engines_costs_hits_and_hits_money(solved):
    assert solved.status == "optimal"
    assert solved.check.ok, solved.check.violations
    [limit] = [x for x in solved.plan["periods"][0]["limits"] if x["name"] == "quota for documents, engines"]
    assert limit["unit"] == "engines" and 1 < limit["value"] <= limit["limit"] == 8
    assert optmodels.solve(instance(3)).status == "infeasible"
    # With the shares of one engine however many there are it costs less: that is what splitting costs.
    free = [row | {"engines": n} for row in HITS if row["engines"] == 1 for n in (1, 8)]
    best = optmodels.solve(instance(8, prefix_cache={"hits": free, "engines": 8, "kept": 0.2}))
    assert best.objective < solved.objective


@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_is_that_of_brute_force_within_the_engines(seed):
    problem = optmodels.load(instance(4))
    tables = build_tables(problem)
    rng = np.random.default_rng(seed)
    some = tables.restricted(np.sort(rng.choice(len(tables.points), min(3, len(tables.points)), replace=False)))
    small = replace(some, load=some.load / 3, capacities=some.capacities / 3)
    assert (small.consumption.max(axis=1) >= 1).all()
    expected = brute_force(problem, small)
    outcome = exact(problem, small, Options())
    assert (outcome.plan is None) == (expected is None)
    if expected is not None:
        assert outcome.plan.total_usd_per_hour == pytest.approx(expected)


def test_the_check_counts_engines_and_shares_anew(solved):
    [limit] = [x for x in solved.plan["periods"][0]["limits"] if x["name"] == "quota for documents, engines"]
    problem, plan = optmodels.load(instance(int(limit["value"]) - 1)), solved.plan
    assert any("quota for documents, engines <=" in v.requirement for v in check(problem, plan).violations)
    better = [row | {"share": min(row["share"] + 0.1, 0.9)} for row in HITS]
    assert not check(optmodels.load(instance(8, prefix_cache={"hits": better, "engines": 8, "kept": 0.2})), plan).ok
    assert not check(optmodels.load(instance(8, prefix_cache={"hits": HITS, "engines": 8, "kept": 0.3})), plan).ok


def test_promises_hold_on_the_simulator(solved, monkeypatch):
    monkeypatch.setattr("formulations.fleet.replay.DRAWN", 10_000)
    for row in replay(optmodels.load(instance(8)), solved.plan, None, ReplayOptions())["demands"]:
        assert row["tpot_replayed_s"] <= row["tpot_planned_s"]
        assert row["ttft_within"] >= 0.95


def test_engines_that_decode_for_others_hold_no_prefixes():
    """Their prompts come with all of their cache: nothing is kept for others there, and they split no hits."""
    apart = {"deployment": {"stages": ["prefill", "decode"]}}
    problem = optmodels.load(instance(8, **apart))
    tables, plain = build_tables(problem), build_tables(optmodels.load(instance(8, prefix_cache=None, **apart)))
    one, other = (t.restricted(t.points.stage == DECODE) for t in (tables, plain))
    np.testing.assert_array_equal(one.points.level, other.points.level)
    np.testing.assert_allclose(one.capacities, other.capacities)
    quota = [name for name in tables.limit_names if "documents" in name]
    assert quota == ["quota for documents, engines"]
    takes = tables.consumption[:, tables.limit_names.index(*quota)]
    assert (takes[tables.points.stage == DECODE] == 0).all() and (takes[tables.points.stage == PREFILL] > 0).all()
    result = optmodels.solve(problem)
    assert result.status == "optimal" and result.check.ok, result.check.violations
    lines = result.plan["periods"][0]["deployments"]
    prefill = sum(d["count"] * d["replicas_per_machine"] for d in lines if d["stage"] == "prefill")
    [limit] = [x for x in result.plan["periods"][0]["limits"] if x["name"] == quota[0]]
    assert limit["value"] == prefill < sum(d["count"] * d["replicas_per_machine"] for d in lines)
    assert not check(optmodels.load(instance(8, prefix_cache=None, **apart)), result.plan).ok


def test_the_file_that_the_command_writes_is_the_table(cli, folder):
    rows = [
        {"timestamp": 100 * k, "input_length": 2048, "output_length": 50, "hash_ids": [k % 5, 10 + k % 5, 20 + k]}
        for k in range(60)
    ]  # fmt: skip
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    cli(
        "prefix-hits", "t.jsonl", "--engines", "1,8", "--kv-tokens", "10000,100000", "--out", "hits.json"
    ).assert_clean()
    data = instance(8, prefix_cache={"hits": "hits.json", "engines": 8, "kept": 0.2})
    (folder / "f.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    run = cli("solve", "f.yaml", "--json")
    run.assert_clean()
    document = json.loads(run.out)
    assert document["check"]["ok"]
    assert document["plan"]["routing"] == "first_block"  # the command's, which says so
    problem = optmodels.load(document["problem"])  # written out, it stands alone
    assert problem.resolve().hit_share("documents", 1e6) > 0.4
    assert check(problem, document["plan"]).ok


def test_the_plan_says_how_requests_find_their_prefixes():
    """Replays keep together what the routing does, exports say so to routers, and the check knows the routing."""
    cache = {"hits": HITS, "engines": 8, "kept": 0.2}
    stages = {"deployment": {"stages": ["prefill", "decode"]}}
    problem = optmodels.load(instance(8, prefix_cache=cache | {"routing": "first_block"}, **stages))
    result = optmodels.solve(problem)
    assert result.check.ok and result.plan["routing"] == "first_block"
    assert "prompts that begin alike go to the same engine" in "".join(map(str, summary(result.model_dump())))
    assert not check(problem, result.plan | {"routing": None}).ok
    n = 400
    trace = Trace(
        "blocks", np.arange(n) / 5.0, np.full(n, 12000), np.full(n, 300),
        prefixes=Prefixes(512, np.arange(n + 1), np.arange(n) % 37),
    )  # fmt: skip
    case, plan = problem.resolve(), FleetPlan.model_validate(result.plan)
    group = _together(case, trace)
    lines = [(j, s) for j, d in enumerate(plan.periods[0].deployments) for s in d.serves if d.stage == "prefill"]
    line, member = _sent(plan.periods[0], np.zeros(n, np.int64), [lines], "planned_shares", None, True, group)
    kept = {k: set(zip(line[group == k], member[group == k], strict=True)) for k in range(37)}
    assert all(len(engines) == 1 for engines in kept.values())
    assert len(set().union(*kept.values())) > 1
    hits = {d.stage: d.prefix_hits for d in deployments(problem, result.plan).deployments}
    caches = {d.stage: d.engine.kv_tokens for d in plan.periods[0].deployments}
    assert hits == {"decode": 0.0, "prefill": pytest.approx(case.hit_share("documents", caches["prefill"]))}
    anywhere = optmodels.load(instance(8, prefix_cache=cache | {"routing": "random"}, **stages))
    assert all(d.prefix_hits == 0.0 for d in deployments(anywhere, optmodels.solve(anywhere).plan).deployments)


@pytest.mark.parametrize(("changes", "path", "said"), [
    ({"prefix_cache": {"hits": HITS, "engines": 9}}, "prefix_cache.engines", "at most 8"),
    ({"prefix_cache": {"hits": [HITS[0] | {"workload": "chats"}], "engines": 1}}, "hits[0].workload", "a workload"),
    ({"prefix_cache": {"hits": "none.json", "engines": 1}}, "prefix_cache.hits", "file"),
    ({"workloads": [DOCUMENTS | {"prefix_hit_share": 0.3}]}, "workloads[0].prefix_hit_share", "none beside"),
    ({"serving": "static", "engine": {}, "latency": {},
      "workloads": [DOCUMENTS | {"slo": {"tpot_s": 0.08}}]}, "prefix_cache", "serving: continuous"),
])  # fmt: skip
def test_what_says_nothing_there_is_refused(changes, path, said):
    with pytest.raises(InputError) as caught:
        optmodels.load(instance(**changes)).resolve()
    assert any(path in m.path and said in m.expected for m in caught.value.mistakes), caught.value
