"""The independent checker finds every way a plan can be wrong; replay keeps what a plan promises."""

# ruff: noqa: E501 - tables of cases

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from orchestration_cases import handful, two_models

import optmodels
from formulations.orchestration.check import check
from formulations.orchestration.check_requests import check_files
from formulations.orchestration.packing import pack
from formulations.orchestration.plan import OrchestrationPlan
from formulations.orchestration.points import build_tables
from formulations.orchestration.replay import cluster_of, replay, requests_of, shares_of
from optmodels.loading import load
from optmodels.simulation.options import ReplayOptions


@pytest.fixture(scope="module")
def solved():
    document = two_models(80, 2)
    return load(document), optmodels.solve(document, gap=1e-3).plan


def test_a_right_plan_passes(solved):
    problem, plan = solved
    assert check(problem, plan).ok


def test_the_headline_says_where_no_prefill_is_modelled():
    """Decay models know decoding alone: nobody waits for a first token that takes no time."""
    plan = optmodels.solve(two_models(2, 1), "greedy_dp_exchange").plan
    assert plan["prediction"]["mean_latency_s"] == 0
    said = OrchestrationPlan.model_validate(plan)
    assert said.headline().endswith("first token at once (no prefill modelled)")
    said.prediction.mean_latency_s = 0.25
    assert said.headline().endswith("wait and prefill 0.25 s")


def first_share(plan, key, change):
    i = int(np.argmax(plan["shares"]["admitted"]))
    plan["shares"][key][i] = change(plan["shares"][key][i])


TAMPERING = {
    "a GPU twice": (lambda p: p["instances"][1].update(placement=p["instances"][0]["placement"]), "held once"),
    "a GPU that is not there": (lambda p: p["instances"][0].update(placement={"box-1": [9]}), "box-1/9"),
    "an unknown server": (lambda p: p["instances"][0].update(placement={"nowhere": [0]}), "server of"),
    "too few GPUs": (lambda p: [i.update(placement={s: g[:-1] for s, g in i["placement"].items()}) for i in p["instances"]], "GPUs of"),
    "another batch": (lambda p: p["configurations"][0].update(batch=3), "usable candidate"),
    "more requests than come": (lambda p: first_share(p, "admitted", lambda v: v + 50), "admitted of"),
    "starts that nobody admitted": (lambda p: first_share(p, "started", lambda v: v + 5), "starts of"),
    "admitted and never started": (lambda p: first_share(p, "started", lambda v: 0.0), "starts"),
    "negative shares": (lambda p: first_share(p, "admitted", lambda v: -1.0), "≥ 0"),
    "a class that is not there": (lambda p: first_share(p, "request_class", lambda v: 99), "indices"),
    "a better prediction": (lambda p: p["prediction"].update(attainment=1.5), "attainment"),
    "a better latency": (lambda p: p["prediction"].update(mean_latency_s=p["prediction"]["mean_latency_s"] + 1), "mean_latency_s"),
    "a better score": (lambda p: p["score"].update(total=2.0), "score.total"),
    "a shortfall made up": (lambda p: p.update(shortfalls={"mistral-7b": 0.2}), "shortfalls"),
    "sub-clusters without a split": (lambda p: p["instances"][0].update(subcluster=1), "split of the SLO"),
    "a split without sub-clusters": (lambda p: p["dispatcher"].update(strict_slo_factor=1.2), "split of the SLO"),
    "a dispatcher that needs another": (lambda p: p.update(dispatcher={"policy": "planned"}, online=None), "online"),
    "refusals without shares": (lambda p: p.update(dispatcher={"policy": "maaso", "refuse_rest": True}, online=None), "refuse_rest"),
    "urgency without refusing": (lambda p: p.update(dispatcher={"policy": "maaso", "queue": "deadline", "overflow_protection": False}, online=None), "overflow"),
    "nonsense": (lambda p: p.update(instances="none"), "well-formed"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERING)
def test_tampering_is_found(solved, name):
    problem, plan = solved
    tamper, expected = TAMPERING[name]
    changed = copy.deepcopy(plan)
    tamper(changed)
    verdict = check(problem, changed)
    assert not verdict.ok
    assert any(expected in v.requirement for v in verdict.violations), [v.requirement for v in verdict.violations]


def test_too_many_requests_for_the_slots_are_found():
    crowded, roomy = (two_models(300, 3, candidates={"tp": [1, 2], "batch": [b]}) for b in (2, 8))
    plan = optmodels.solve(roomy, gap=1e-2).plan
    for c in plan["configurations"]:
        c["batch"] = 2
    assert not check(load(crowded), plan).ok


def test_failed_gpus_are_not_used_and_their_use_is_found():
    servers = {
        "servers": [{"server": "box", "count": 2, "gpu": "v100-16g-pcie", "gpus": 4}],
        "failed_gpus": {"box-1": [0, 2]},
    }
    document = two_models(80, 2, cluster=servers)
    plan = optmodels.solve(document, gap=1e-2).plan
    used = {(s, g) for i in plan["instances"] for s, gpus in i["placement"].items() for g in gpus}
    assert not used & {("box-1", 0), ("box-1", 2)}
    broken = load(two_models(80, 2, cluster=servers | {"failed_gpus": {"box-1": [0, 2], "box-2": [0, 1, 2, 3]}}))
    assert not check(broken, plan).ok


@pytest.mark.parametrize("units", [[4, 2, 1, 1, 3, 3], [3, 3, 1, 1], [2, 2, 2, 2], [4, 4], [1] * 8])
def test_packing_gives_every_unit_its_own_gpus(units):
    problem = load(two_models(10))
    case = problem.resolve()
    placed = pack(case, 0, units)
    if sum(units) > 8:
        assert placed is None
        return
    assert placed is not None
    taken = [(s, g) for p in placed for s, gpus in p.items() for g in gpus]
    assert len(taken) == len(set(taken)) == sum(units)
    assert all(len(p) == 1 for p in placed)


def test_running_instances_stay_where_they_are():
    running = [{"model": "mistral-7b", "tp": 2, "batch": 4, "placement": {"box-2": [1, 3]}}]
    document = two_models(80, 2, change={"running": running, "score_per_start": 0.01, "score_per_stop": 0.05})
    result = optmodels.solve(document, gap=1e-2)
    kept = [i for i in result.plan["instances"] if i["kept"]]
    assert result.check.ok
    assert [i["placement"] for i in kept] == [{"box-2": [1, 3]}]


def test_replay_admits_only_what_it_can_keep(solved):
    problem, plan = solved
    found = replay(problem, plan)
    assert {found["policy"], "planned", "shortest_queue", "maaso", "planned_shares"} <= set(found["policies"])
    for row in found["policies"].values():
        assert row["late"] == 0.0  # overflow protection plans with the full batch
        assert row["attainment"] + row["refused"] == pytest.approx(1.0)
    worst = replay(problem, plan, options=ReplayOptions(policy="shortest_queue", speed="worst_case"))
    assert list(worst["policies"]) == ["shortest_queue"]


def test_replay_inputs_have_the_shapes_the_simulator_wants(solved):
    problem, plan = solved
    from formulations.orchestration.plan import OrchestrationPlan

    t, p = build_tables(problem), OrchestrationPlan.model_validate(plan)
    requests, cluster, shares = requests_of(t), cluster_of(t, p), shares_of(t, p)
    assert len(requests) == 80
    assert len(cluster) == len(p.instances)
    assert shares.weight.shape == (t.bins, len(t.classes), len(p.configurations))
    assert shares.weight.sum(axis=2).max() <= 1 + 1e-9


def test_a_table_of_requests_that_says_all_are_refused_is_found(tmp_path):
    """Also a plan that serves nobody; and what a row says of a request is recomputed, whatever wrote it."""
    result = optmodels.solve(two_models(24, 2), "greedy_dp", out=tmp_path)
    folder = Path(result.log["folder"])
    assert optmodels.check(folder).ok
    table = pd.read_csv(folder / "requests.csv", keep_default_na=False, dtype=str)
    served = table["start_s"] != ""
    assert served.any()
    for column, value in (("due_s", "1e6"), ("output_tokens", "1"), ("input_tokens", "999"), ("model", "mistral-7b"),
                          ("first_token_s", "0.0"), ("arrival_s", "0.0")):  # fmt: skip
        (folder / "requests.csv").write_text(table.assign(**{column: value}).to_csv(index=False))
        violations = check_files(load(two_models(24, 2)), result.plan, folder).violations
        assert any(v.requirement.startswith(column) for v in violations), column
    table.loc[served, ["instance", "slot", "start_s", "first_token_s", "finish_s"]] = ["", "-1", "", "", ""]
    (folder / "requests.csv").write_text(table.to_csv(index=False))
    report = optmodels.check(folder)
    assert not report.ok
    assert any(v.requirement.startswith("requests.csv") for v in report.violations)


@pytest.mark.parametrize("name", ["@x", "'@x", "=1+1", "+1", "007"])
def test_names_in_the_table_of_requests_are_what_a_user_wrote(tmp_path, name):
    """A cell that a spreadsheet takes for a formula has an apostrophe before it; a text that is a number stays one."""
    decay = [{"model": name, "tp": 1, "base_tokens_per_s": 40.0, "delta": 0.1}]
    document = handful(models=[{"model": name, "architecture": "mistral-7b"}], latency={"decay": decay},
                       candidates={"tp": [1], "batch": [1, 2]})  # fmt: skip
    result = optmodels.solve(document, "greedy_dp", out=tmp_path)
    report = optmodels.check(Path(result.log["folder"]))
    assert report.ok, report.violations
    table = pd.read_csv(Path(result.log["folder"]) / "requests.csv", dtype=str)
    assert (table["start_s"].notna()).any()
