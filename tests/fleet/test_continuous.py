"""Fleets of engines that batch continuously: optimum by brute force, the promises on the simulator, figures by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml
from conftest import ROOT
from fleet_cases import APART, BUSY, brute_force

import optmodels
from formulations.fleet import FORMULATION
from formulations.fleet.check import check
from formulations.fleet.deploy import deployments
from formulations.fleet.making import FleetChoice
from formulations.fleet.methods.columns import relaxation
from formulations.fleet.methods.exact import exact
from formulations.fleet.plan import FleetPlan
from formulations.fleet.points import build_tables, prune
from formulations.fleet.predicted import predicted
from formulations.fleet.replay import replay
from formulations.fleet.show import report
from optmodels.cli.console import show
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.simulation.options import ReplayOptions
from optmodels.targets.vllm import arguments


@pytest.fixture(scope="module")
def busy():
    return optmodels.load(BUSY)


@pytest.fixture(scope="module")
def solved(busy):
    result = optmodels.solve(BUSY)
    assert result.status == "optimal"
    assert result.check.ok
    return result


def few(tables, seed, points=3):
    """Random points of the table that serve something each, in units in which a few of them carry everything."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(tables.points), points, replace=False)
    return tables.restricted(np.sort(chosen))


def test_every_engine_of_a_machine_counts():
    def capacities(gpus):
        machine = {
            "machine": "rack",
            "gpu": "l4",
            "gpu_count": gpus,
            "vram_gib": 24 * gpus,
            "prices": {"on_demand": 1.0},
        }
        tables = build_tables(optmodels.load({
            "formulation": "fleet", "schema": 1, "name": "rack", "serving": "continuous",
            "workloads": [{"name": "chat", "model": "llama-3.1-8b", "buckets": [
                {"input_tokens": 500, "output_tokens": 100, "requests_per_s": 1.0}], "slo": {"tpot_s": 0.2}}],
            "pool": {"machines": [machine]}, "markets": {"main": ["on_demand"]}, "latency": {"model": "roofline"},
            "strategies": {"tensor_parallel": [1]},
        }))  # fmt: skip
        return tables.capacities

    assert capacities(1).size > 0
    np.testing.assert_allclose(72 * capacities(72), capacities(1), rtol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_is_that_of_brute_force_over_counts(busy, seed):
    tables = build_tables(busy)
    # Fewer requests, so that few deployments serve them: the same points at a sixth of the load.
    small = few(tables, seed)
    small = replace(small, load=small.load / 6, capacities=small.capacities / 6)
    expected = brute_force(busy, small)
    outcome = exact(busy, small, Options())
    if expected is None:
        assert outcome.plan is None
        return
    assert outcome.plan.total_usd_per_hour == pytest.approx(expected)
    kept, _ = prune(small)
    assert relaxation(busy, kept).bound <= expected * (1 + 1e-9)


def test_capacities_of_one_deployment_are_shared_by_what_it_serves():
    """Its use of each capacity is at most 1, and less in all than if each bucket's scarcest one were the engine's."""
    lines = optmodels.solve(ROOT / "instances/fleet/aws-continuous.yaml").plan["periods"][0]["deployments"]
    for line in lines:
        assert max(line["engine"]["capacities"].values()) <= 1 + 1e-9
        assert line["utilisation"] == pytest.approx(max(line["engine"]["capacities"].values()))
    alone = sum(s["load"] for line in lines for s in line["serves"])
    assert alone > sum(line["utilisation"] * line["count"] for line in lines) * (1 + 1e-6)


def test_loads_are_of_each_capacity(busy):
    tables = build_tables(busy)
    w, p = np.argwhere(np.isfinite(tables.load))[0]
    choice = FleetChoice(np.eye(1, len(tables.points), p, dtype=int), np.array([0, 0]), np.array([w, w]),
                         np.array([p, p]), np.array([0.25, 0.5]))  # fmt: skip
    each = 0.75 * tables.rates[0, w] * tables.capacities[:, w, p]
    np.testing.assert_allclose(choice.used_of_each(tables)[:, 0, p], each)
    assert choice.used(tables)[0, p] == pytest.approx(each.max()) == choice.used_alone(tables)[0, p]


def test_promises_hold_on_the_simulator(busy, solved):
    """Poisson arrivals sent at random, as the formulas assume, and in turn, which is kinder."""
    found = replay(busy, solved.plan, None, ReplayOptions())
    assert {row["policy"] for row in found["demands"]} == {"planned_shares", "random"}
    for row in found["demands"]:
        for name in ("ttft", "tpot", "deadline"):
            if f"{name}_limit_s" not in row:
                continue
            assert row[f"{name}_replayed_s"] <= row[f"{name}_planned_s"] <= row[f"{name}_limit_s"] * (1 + 1e-9)
            if row[f"{name}_percentile"] is not None:
                assert row[f"{name}_within"] >= row[f"{name}_percentile"]
    assert found["policies"]["random"]["tpot_s"]["mean"] > 0


def test_what_is_predicted_at_the_planned_rates_is_near_the_simulator_and_below_the_levels(busy, solved):
    lines = solved.plan["periods"][0]["deployments"]
    at_rates = {x["demand"]: x for x in solved.report["predicted"]}
    assert set(at_rates) == {s["demand"] for d in lines for s in d["serves"]}
    for row in replay(busy, solved.plan, None, ReplayOptions(policy="random"))["demands"]:
        for name, key in (("ttft", "ttft_s"), ("tpot", "tpot_s"), ("deadline", "deadline_s")):
            if f"{name}_limit_s" in row:
                value = at_rates[row["demand"]][key]
                assert 0.8 * row[f"{name}_replayed_s"] <= value <= row[f"{name}_planned_s"]


def test_what_is_predicted_is_at_most_the_bound_and_that_the_limit():
    """Of every bucket, stage and latency."""
    short = {"name": "short", "model": "llama-3.1-8b", "slo": {"tpot_s": {"at_most": 0.1, "percentile": 0.9}},
             "buckets": [{"input_tokens": 3000, "output_tokens": 2, "requests_per_s": 5.0},
                         {"input_tokens": 200, "output_tokens": 300, "requests_per_s": 1.0}]}  # fmt: skip
    for data in (BUSY, BUSY | {"workloads": [short]}, APART):
        result = optmodels.solve(data)
        case = optmodels.load(data).resolve()
        rows = {x["demand"]: x for x in result.report["predicted"]}
        shares = [s for d in result.plan["periods"][0]["deployments"] for s in d["serves"]]
        for name, row in rows.items():
            slo = case.workload(name.rpartition("/")[0]).slo
            mine = [s for s in shares if s["demand"] == name]
            for key, stated in (("ttft_s", "ttft_s"), ("tpot_s", "tpot_s"), ("deadline_s", "e2e_s")):
                limit = getattr(slo, key)
                most = [s[stated] for s in mine if s[stated] is not None]
                if limit is None or not most or (key == "deadline_s" and data is APART):
                    continue
                assert row[key] <= max(most) * (1 + 1e-9)
                assert max(most) <= seconds_and_quantile(limit)[0] * (1 + 1e-6)


def test_a_bound_takes_the_place_of_a_longer_estimate_where_engines_have_the_capacity(busy, solved):
    plan = FleetPlan.model_validate(solved.plan)
    (before, *_) = predicted(busy.resolve(), plan)
    lines = [d for d in plan.periods[0].deployments for s in d.serves if s.demand == before["demand"]]
    for share in (s for d in lines for s in d.serves):
        share.ttft_s = before["ttft_s"] / 2
    (after, *_) = predicted(busy.resolve(), plan)
    assert (after["ttft_s"], after["at_bound"]) == (before["ttft_s"] / 2, ["ttft_s"])
    for d in lines:
        d.engine.capacities["time"] = 1.01
    (after, *_) = predicted(busy.resolve(), plan)
    assert after["ttft_s"] == before["ttft_s"] and "at_bound" not in after


def test_engines_asked_for_twice_the_rate_have_no_prediction_or_a_longer_one(busy, solved):
    plan = FleetPlan.model_validate(solved.plan)
    twice = plan.model_copy(deep=True)
    for s in (s for d in twice.periods[0].deployments for s in d.serves):
        s.requests_per_s *= 2
    for one, two in zip(predicted(busy.resolve(), plan), predicted(busy.resolve(), twice), strict=True):
        for key in ("ttft_s", "tpot_s", "deadline_s"):
            assert two[key] is None or two[key] > one[key]


def test_what_to_run_has_the_settings_of_the_level(busy, solved):
    made = deployments(busy, solved.plan)
    for line, deployment in zip(solved.plan["periods"][0]["deployments"], made.deployments, strict=True):
        found = arguments(deployment)
        assert found["max-num-seqs"] == 256
        assert found["max-num-batched-tokens"] == line["engine"]["max_num_batched_tokens"]
    [chunked] = deployments(optmodels.load(BUSY | {"engine": {"chunk_tokens": 512}}), {
        **solved.plan, "periods": [solved.plan["periods"][0] | {"deployments": [
            line | {"engine": line["engine"] | {"chunk_tokens": 512}}
            for line in solved.plan["periods"][0]["deployments"][:1]]}],
    }).deployments  # fmt: skip
    assert arguments(chunked)["long-prefill-token-threshold"] == 512


def test_safety_is_paid_for(solved):
    safe = optmodels.solve(BUSY | {"latency": {"safety": 0.9}})
    assert safe.check.ok
    assert safe.plan["total_usd_per_hour"] > solved.plan["total_usd_per_hour"]


def test_a_fleet_of_experts_by_one_machine():
    """Mixtures of experts and a soft SLO: every step reads more experts, and what is late is said to be."""
    data = BUSY | {
        "pool": {"catalog": "aws", "include": ["p4d.24xlarge"]},
        "workloads": [BUSY["workloads"][0] | {
            "model": "mixtral-8x7b", "requests_per_s": 10.0,
            "slo": {"ttft_s": 0.12, "tpot_s": {"at_most": 0.013, "percentile": 0.9}},
            "soft": {"usd_per_1000_requests": 0.5, "up_to": 4.0},
        }],
    }  # fmt: skip
    result = optmodels.solve(data)
    assert result.check.ok, result.check.violations
    assert any(s["misses_slo"] for d in result.plan["periods"][0]["deployments"] for s in d["serves"])
    assert result.plan["penalty_usd_per_hour"] > 0
    # Without being late it takes more machines, at steps so short that the shortest of nine loads is not reached.
    strict = {"workloads": [data["workloads"][0] | {"soft": None}]}
    late, result = result, optmodels.solve(data | strict)
    assert result.check.ok and result.objective > late.objective and result.plan["penalty_usd_per_hour"] == 0
    assert all(s["tpot_s"] <= 0.013 for d in result.plan["periods"][0]["deployments"] for s in d["serves"])
    strict["workloads"][0]["slo"] = {"ttft_s": 0.12, "tpot_s": {"at_most": 0.01, "percentile": 0.9}}  # as long as a₀
    strict = optmodels.solve(data | strict)
    assert strict.status == "infeasible"
    assert "at every load" in strict.log["reason"]


def test_finer_levels_cannot_gain_more_than_said(busy):
    tables = build_tables(busy)
    assert report(tables, None)["levels_spread"] == tables.spread > 1.2


@pytest.mark.parametrize(("changes", "path", "said"), [
    ({"queueing": {"model": "mmc"}}, "queueing.model", "none with serving: continuous"),
    ({"strategies": {"families": ["ao"]}}, "strategies.families", "high_end among them"),
    ({"engine": {"max_num_seqs": 512, "max_num_batched_tokens": 512}}, "engine", "room for prompts"),
    ({"points": [{"name": "p", "usd_per_hour": 1.0, "requests_per_s": {}}], "pool": None}, "serving", "static"),
    ({"latency": {"model": "default", "calibration": "opt-a10"}}, "latency", "either a model or a calibration"),
])  # fmt: skip
def test_what_says_nothing_there_is_refused(changes, path, said):
    with pytest.raises(InputError) as caught:
        optmodels.load(BUSY | changes).resolve()
    found = [m for m in caught.value.mistakes if m.path.startswith(path)]
    assert found, caught.value
    assert any(said in m.expected for m in found), found


def test_the_template_solves_on_the_command_line(cli, write):
    name = write(FORMULATION.template, "fleet.yaml")
    run = cli("solve", name, "--out", "results", "--json")
    run.assert_clean()
    document = json.loads(run.out)
    assert document["check"]["ok"]
    assert yaml.safe_load(FORMULATION.template)["serving"] == "continuous"
    run = cli("replay", "results/fleet-exact/plan.json", "--out", "replayed")
    run.assert_clean()
    assert "TTFT" in run.out
    problem = optmodels.load(document["problem"])  # written out, it stands alone
    assert check(problem, document["plan"]).ok


def test_a_plan_with_drafts_is_checked_replayed_and_exported(cli, write, monkeypatch):
    """On one kind of machine 6.5 ms a token need them; the promises hold on the simulator."""
    monkeypatch.setattr("formulations.fleet.replay.DRAWN", 10_000)
    chat = BUSY["workloads"][0] | {"slo": {"ttft_s": {"at_most": 2.0, "percentile": 0.95}, "tpot_s": 0.0065}}
    instance = BUSY | {"workloads": [chat], "pool": {"catalog": "aws", "include": ["p5.4xlarge"]}}
    assert optmodels.solve(instance).status == "infeasible"
    drafts = {"model": "llama-3.1-8b", "drafts": 3, "acceptance": 0.75, "head": 0.04}
    instance |= {"engine": {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "speculation": [drafts]}}
    run = cli("solve", write(yaml.safe_dump(instance), "drafts.yaml"), "--out", "results", "--json")
    run.assert_clean()
    document = json.loads(run.out)
    assert document["check"]["ok"]
    problem = optmodels.load(document["problem"])  # written out, it stands alone
    plan = document["plan"]
    assert check(problem, plan).ok
    for line in plan["periods"][0]["deployments"]:
        assert "3 drafts a step of a head: 2.734 tokens a step" in line["engine"]["latency"]
    for field, value in (("step_s", 1.01), ("max_num_batched_tokens", 2)):
        wrong = json.loads(json.dumps(plan))
        engine = wrong["periods"][0]["deployments"][0]["engine"]
        engine[field] = type(engine[field])(engine[field] * value)
        assert not check(problem, wrong).ok
    for row in replay(problem, plan, None, ReplayOptions())["demands"]:
        assert row["tpot_replayed_s"] <= row["tpot_planned_s"] <= row["tpot_limit_s"] * (1 + 1e-9)
        assert row["ttft_within"] >= 0.95
    made = deployments(problem, plan).deployments[0]
    config = json.loads(arguments(made)["speculative-config"])
    assert config == {"method": "eagle3", "model": "SET-THE-DRAFT", "num_speculative_tokens": 3}
    run = cli("export", "results/drafts-exact/plan.json", "--to", "vllm")
    assert run.status == 0 and "tokens of a step with 3 drafts" in run.err


@pytest.mark.parametrize("tpot_s", [0.0095, {"at_most": 0.018, "percentile": 0.95}])
def test_a_quiet_engine_keeps_a_limit_near_what_its_steps_take(tpot_s, monkeypatch):
    """8 ms of a step without prompts: levels begin there, not at the 30 ms of one with a prompt; replays keep it."""
    monkeypatch.setattr("formulations.fleet.replay.DRAWN", 20_000)
    chat = {"name": "chat", "model": "llama-3.1-8b", "slo": {"ttft_s": 1.0, "tpot_s": tpot_s},
            "buckets": [{"input_tokens": 1000, "output_tokens": 200, "requests_per_s": 5.0},
                        {"input_tokens": 3000, "output_tokens": 30, "requests_per_s": 0.5}]}  # fmt: skip
    problem = optmodels.load(BUSY | {"workloads": [chat], "pool": {"catalog": "aws", "include": ["p5.4xlarge"]}})
    solved = optmodels.solve(problem)
    assert (solved.status, solved.plan["periods"][0]["deployments"][0]["count"]) == ("optimal", 1)
    assert solved.check.ok, solved.check.violations
    for row in replay(problem, solved.plan, None, ReplayOptions())["demands"]:
        assert row["tpot_replayed_s"] <= row["tpot_planned_s"] <= row["tpot_limit_s"] * (1 + 1e-9)


@pytest.mark.parametrize("tpot_s", [0.01, 0.016, {"at_most": 0.03, "percentile": 0.95}])
def test_points_that_take_no_more_of_any_capacity_than_another_of_one_stand_in_for_it(tpot_s, monkeypatch):
    chat = BUSY["workloads"][0] | {"slo": {"ttft_s": 1.0, "tpot_s": tpot_s}}
    documents = BUSY["workloads"][1]
    instance = BUSY | {"workloads": [chat, documents], "reserve": {"lost": 1}}
    tables = build_tables(optmodels.load(instance))
    few, best = prune(tables)[1]["kept"], optmodels.solve(instance)
    monkeypatch.setattr("formulations.fleet.points._fits_on_another", lambda x, _: np.zeros(x.shape[2], dtype=bool))
    many, known = prune(build_tables(optmodels.load(instance)))[1]["kept"], optmodels.solve(instance)
    assert 0 < few < many
    assert (best.status, best.objective) == (known.status, pytest.approx(known.objective, rel=1e-9))


def test_a_model_file_that_cannot_be_used_is_a_mistake_and_no_proof_of_infeasibility():
    """Steps measured on nobody knows what, and a level that no measurements support: the file is named, not a fleet."""
    errors = {"rows": 1, "r2": None, "mape": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0, "bias": 0.0}
    target = {"segments": [{"terms": [{"name": "fixed", "value": 0.01}]}], "in_sample": errors}
    model = {"model": "additive", "measured": "step", "title": "of a stranger", "targets": {"latency_s": target}}
    with pytest.raises(InputError, match="of a stranger"):
        optmodels.solve(BUSY | {"latency": {"model": [model]}})
    with pytest.raises(InputError, match=r"latency.safety: got 0.9999; .* \(at most 0.99\)"):
        optmodels.solve(BUSY | {"latency": {"safety": 0.9999}})


def test_a_gpu_whose_peak_nobody_published_is_no_memory_that_is_short():
    pool = {"catalog": "aws", "include": ["g7.2xlarge"]}
    result = optmodels.solve(BUSY | {"pool": pool, "workloads": BUSY["workloads"][:1]})
    assert result.status == "infeasible"
    assert "no FLOP/s are published of rtx-pro-4500" in result.log["reason"]


def test_limits_missed_at_the_pessimistic_end_are_named():
    """Promises near their limit miss it there; with safety 0.9 that end is what was planned, and nothing does."""
    base = BUSY | {"latency": {"model": "default"}}
    central = optmodels.solve(base).report["latency"]
    safe = optmodels.solve(base | {"latency": {"model": "default", "safety": 0.9}}).report["latency"]
    assert safe["missed_at_the_pessimistic_end"] == []
    missed = central["missed_at_the_pessimistic_end"]
    assert missed and all(m["pessimistic_s"] is None or m["pessimistic_s"] > m["limit_s"] for m in missed)
    assert len({(m["demand"], m["latency"]) for m in missed}) == len(missed)
    assert all(s["tpot_at_most"] > 1 for s in central["sources"])


def test_how_many_engines_a_machine_runs_is_said(capsys):
    """What a line says of requests and memory is of one engine, of which eight GPUs have eight."""
    one = BUSY | {"workloads": BUSY["workloads"][:1], "strategies": {"tensor_parallel": [1]}}
    found = optmodels.solve(one | {"pool": {"catalog": "aws", "include": ["p5.48xlarge"]}, "stock": [], "quota": []})
    (line,) = found.plan["periods"][0]["deployments"]
    assert line["replicas_per_machine"] == 8
    show(FORMULATION.summary(found.document()))
    assert re.search(r"\b8\s[^\n]*\n?replicas on each machine|8 replicas", capsys.readouterr().out)  # lines may break
