"""Fleets made for a trace: every piece is carried, promises are judged by the trace's own requests, screens say so."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

import optmodels
from formulations.fleet.carried import scaled
from formulations.fleet.methods.exact import exact
from formulations.fleet.on_trace import OnTrace, verdict
from formulations.fleet.plan import FleetPlan
from formulations.fleet.points import build_tables
from formulations.fleet.show import summary
from optmodels import question
from optmodels.cli.solve import _headline
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.loading import load
from optmodels.plans.replayed import missed
from optmodels.reporting.page.articles import of_result

CASES = Path(__file__).parents[1] / "reported" / "tracing"
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


def measured(rates, sustains, price=1.0):
    """Buckets whose rates in two pieces are given, and points that sustain so many requests/s of each."""
    buckets = [{"name": f"b{i}", "input_tokens": 100, "output_tokens": 10, "requests_per_s": float(np.mean(r)),
                "rates": list(map(float, r))} for i, r in enumerate(rates)]  # fmt: skip
    return {
        "formulation": "fleet", "schema": 1,
        "workloads": [{"name": "w", "buckets": buckets, "pieces": {"seconds": [10.0] * len(rates[0])}}],
        "points": [{"name": f"p{k}", "usd_per_hour": price * (1 + 0.3 * k),
                    "requests_per_s": {f"w/b{i}": s for i, s in enumerate(each)}} for k, each in enumerate(sustains)],
    }  # fmt: skip


def test_one_fleet_carries_each_piece_and_no_envelope_of_all():
    """Two buckets that come one after the other need one deployment, not the two that both together would."""
    result = optmodels.solve(measured([(4, 0), (0, 4)], [(4, 4)]))
    assert (result.status, result.objective, result.check.ok) == ("optimal", pytest.approx(1.0), True)
    together = optmodels.solve(measured([(4, 4), (4, 4)], [(4, 4)]))
    assert together.objective == pytest.approx(2.0)


@pytest.mark.parametrize("seed", range(6))
def test_the_cheapest_fleet_for_all_pieces_by_brute_force(seed):
    """Counts of both points, and shares by a linear program with the rows of every piece."""
    from scipy.optimize import linprog

    rng = np.random.default_rng(seed)
    rates, sustains = rng.uniform(0, 9, (2, 3)), rng.uniform(1, 5, (2, 2))
    data = measured(rates, sustains)
    mean = rates.mean(axis=1)

    def fits(n):
        rows, limits = [], []
        for t, p in itertools.product(range(3), range(2)):
            row = np.zeros((2, 2))
            row[:, p] = rates[:, t] / sustains[p]
            rows.append(row.ravel())
            limits.append(n[p] + 1e-9)
        sums = [np.repeat(np.eye(2)[w], 2) for w in range(2)]
        return linprog(np.zeros(4), rows, limits, sums, [1, 1], bounds=(0, 1)).status == 0

    best = min(a + 1.3 * b for a, b in itertools.product(range(12), repeat=2) if fits((a, b)))
    for method in ("exact", "greedy"):
        result = optmodels.solve(data, method)
        assert result.check.ok, result.check.violations
        assert result.objective >= best - 1e-6
    assert optmodels.solve(data).objective == pytest.approx(best)
    assert mean.sum() > 0


@pytest.mark.parametrize(("change", "expected"), [
    ({"requests_per_s": 5.0}, "whose mean over the pieces is its requests_per_s"),
    ({"rates": [6.0, 6.0, 6.0]}, "rates of a bucket only beside pieces, one for each"),
])  # fmt: skip
def test_rates_that_contradict_each_other_are_a_mistake(change, expected):
    data = measured([(2, 10)], [(3,)])
    data["workloads"][0]["buckets"][0] |= change
    with pytest.raises(InputError, match=expected):
        optmodels.solve(data)


def test_a_plan_that_carries_only_the_mean_fails_its_check():
    document = json.loads(optmodels.solve(measured([(2, 10), (2, 2)], [(3, 3)])).to_json())
    assert optmodels.check(document).ok
    line = document["plan"]["periods"][0]["deployments"][0]
    line["count"] -= 1
    assert any("load ≤ deployments" in v.requirement for v in optmodels.check(document).violations)


@pytest.fixture(scope="module")
def stepped():
    """The reported trace of 2, 10 and 4 requests/s, as `plan --trace` asks about it."""
    problem = load(CASES / "fleet.yaml")
    return optmodels.solve(problem.model_copy(update={"certify": "replay"}))


def test_the_reported_steps_take_thirteen_gpus_that_keep_their_promises(stepped, tmp_path):
    assert (stepped.status, stepped.check.ok, missed(stepped.report)) == ("optimal", True, None)
    assert stepped.plan["certification"]["arrivals"] == "trace"
    assert stepped.report["replayed"] == {"requests": "its own 4,900 requests", "kept": True, "missed": []}
    replayed = optmodels.replay(stepped)["report"]
    assert replayed["sent"] == "its own 4,900 requests"
    assert all(row["ttft_within"] >= 0.95 and row["tpot_replayed_s"] <= 0.05 for row in replayed["demands"])
    over = stepped.report["over_time"]
    assert over["busiest"] == "busiest minute 2.0 × the mean" and len(over["pieces"]) == 3
    assert over["peak_gpus"] == 13 and 6 <= over["mean_gpus"] <= 9
    assert over["gpu_hours"] == pytest.approx(sum(x["gpus"] * x["seconds"] for x in over["pieces"]) / 3600)
    (tmp_path / "plan.json").write_text(stepped.to_json())
    assert optmodels.check(tmp_path / "plan.json").ok
    document = json.loads(stepped.to_json())  # of which the check solves each piece again
    document["log"]["left_out"] = ["GPUs over time"]
    assert any("report.over_time.pieces[0].gpus" in v.requirement for v in optmodels.check(document).violations)
    del document["log"]["left_out"]
    document["report"]["over_time"]["pieces"][0]["gpus"] += 1
    assert [v.requirement for v in optmodels.check(document).violations] == ["report.over_time.pieces[0].gpus: rebuilt"]


def of_four():
    """The same question, where machines of 4 H100 are for sale."""
    data = yaml.safe_load((CASES / "fleet.yaml").read_text())
    machines = [{"machine": f"x{n}", "gpu": "h100", "gpu_count": n, "vram_gib": 80 * n, "prices": {"on_demand": n}}
                for n in (1, 4, 8)]  # fmt: skip
    return load(data | {"pool": {"machines": machines}}, folder=CASES)


def test_the_reported_steps_take_twelve_gpus_where_machines_of_four_are_sold():
    found = optmodels.fewest_gpus(of_four())
    assert (found["gpus"], found["bound"], found["missed"], found["headline"]) == (12, 12, None, "3× x4")


def test_one_lucky_draw_certifies_nothing():
    """Twelve GPUs as they are sold, 8 + 4 · 1, meet the SLO in turn and in one draw at random, not in others."""
    problem = load(CASES / "fleet.yaml")
    tables = build_tables(problem)
    plan = exact(problem, scaled(tables, np.full(2, 0.94)), Options(time_limit=30)).plan
    assert plan is not None and plan.headline() == "4× p5.4xlarge + 1× p5.48xlarge"
    kept = {}
    for draws in (1, 3):
        certification = problem.certification.model_copy(update={"draws": draws})
        case = replace(tables.case, problem=problem.model_copy(update={"certification": certification}))
        kept[draws] = verdict(OnTrace(case, 0, plan.periods[0], 1.0), "")["kept"]
    assert kept == {1: True, 3: False}


def planned(rows, folder, **limits):
    (folder / "rows.csv").write_text(
        "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{t:.3f},{n},50\n" for t, n in rows)
    )
    asked = question.Question(model="llama-3.1-8b", trace=folder / "rows.csv", gpus=["l40s"], **limits)
    return optmodels.solve(load(question.instance(asked), folder=folder))


def test_a_silent_piece_needs_no_gpus(tmp_path):
    """And a bucket that is silent in a piece on a line of its own."""
    early, late = np.arange(0, 200, 0.5), np.arange(800, 1000, 0.2)
    result = planned([(t, 1000) for t in (*early, *late)], tmp_path, ttft=(1.0, 0.95))
    assert result.check.ok and missed(result.report) is None
    assert [x["gpus"] for x in result.report["over_time"]["pieces"]] == [1, 0, 1]
    turns = planned([*((t, 200) for t in early), *((t, 9000) for t in late)], tmp_path, ttft=(2.0, 0.95))
    assert turns.check.ok and len(turns.report["over_time"]["pieces"]) == 3


def test_no_operating_point_for_a_trace_is_infeasible(tmp_path):
    at = np.concatenate([np.arange(0, 200, 0.5), np.arange(200, 400, 0.1)])
    result = planned([(t, 1000) for t in at], tmp_path, itl=(1e-4, 0.95))
    assert (result.status, result.plan) == ("infeasible", None)


def test_fewest_gpus_judges_the_trace_itself(cli):
    done = cli("fewest-gpus", str(CASES / "fleet.yaml"), "--json")
    found = json.loads(done.out)
    assert (done.status, found["gpus"], found["missed"]) == (0, 13, None)
    lines = cli("fewest-gpus", str(CASES / "fleet.yaml")).out
    assert lines.startswith("13 GPUs attain 100%") and "peak 13 GPUs" in lines and "GPU-hours" in lines


def test_what_runs_today_is_judged_by_the_trace(cli):
    done = cli("evaluate", str(CASES / "today.yaml"))
    assert "at the mean rate of the trace: 99.9% of requests" in done.out
    assert "every SLO met" not in done.out.splitlines()[2]
    said = " ".join(done.out.split())
    assert "It misses the SLO of qwen3-32b/≤4096x>256, qwen3-32b/>4096x>256 in the replay." in said
    assert "predicted to miss" not in said


@pytest.fixture(scope="module")
def refuted(tmp_path_factory):
    """A plan by the model alone for requests that come forty at once: no piece of the trace shows it."""
    folder = tmp_path_factory.mktemp("bursts")
    at = np.repeat(np.arange(60) * 10.0, 40)
    rows = "".join(f"{t + k * 1e-4},{2000},{50}\n" for k, t in enumerate(at))
    (folder / "bursts.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    asked = question.Question(
        model="llama-3.1-8b", trace=folder / "bursts.csv", ttft=(0.5, 0.95), gpus=["l40s"], certify=False
    )
    return optmodels.solve(load(question.instance(asked), folder=folder))


def test_a_plan_that_its_own_requests_refute_is_not_optimal_and_says_so_first(refuted, tmp_path):
    assert refuted.check.ok and refuted.status == "feasible" and refuted.gap == pytest.approx(0, abs=1e-6)
    words = refuted.log["missed"]
    [worst] = refuted.report["replayed"]["missed"][:1]
    assert f"TTFT within 0.5 s for {worst['within']:.1%} of the requests, 95.0% promised" in words
    shown = [str(line) for line in _headline(refuted, refuted.document())]
    [red] = [line for line in shown[:6] if "[red]" in line]
    assert words in red and "optimal" not in " ".join(shown)
    assert not any("all requests served" in str(line) for line in summary(refuted.document()))
    assert "misses its SLO in the replay or prediction" in str(of_result(refuted.document()))
    data = json.loads(refuted.to_json())
    assert optmodels.check(data).ok
    lies = copy.deepcopy(data)
    lies["status"], lies["limit"] = "optimal", None
    assert any("replay: refutes nothing" in v.requirement for v in optmodels.check(lies).violations)
    lies = copy.deepcopy(data)
    lies["report"]["replayed"] |= {"kept": True, "missed": []}
    assert any(v.requirement.startswith("report.replayed") for v in optmodels.check(lies).violations)


def test_certification_buys_what_bursts_need(refuted):
    certified = optmodels.solve(refuted.problem | {"certify": "replay"})
    c = certified.plan["certification"]
    assert (c["status"], c["arrivals"]) == ("certified", "trace") and missed(certified.report) is None
    assert certified.objective > refuted.objective
    text = "\n".join(str(line) for line in summary(certified.document()))
    assert "the trace's own requests are replayed, sent in turn and at random" in text
    plan = copy.deepcopy(json.loads(certified.to_json()))
    plan["plan"]["certification"]["promises"][0]["seen_s"] *= 1e3
    assert not optmodels.check(plan).ok


def test_without_a_trace_certification_says_that_arrivals_were_poisson():
    asked = question.Question(model="llama-3.1-8b", input_tokens=500, output_tokens=100, rate=3.0, ttft=(1.0, 0.95),
                              gpus=["l40s"], certify=True)  # fmt: skip
    result = optmodels.solve(question.instance(asked))
    assert result.plan["certification"]["arrivals"] == "poisson"
    assert any("for Poisson arrivals" in str(line) for line in summary(result.document()))
    assert "drawn at random (Poisson)" in optmodels.replay(result)["report"]["sent"]


def test_where_one_workload_has_no_trace_every_piece_is_certified_by_poisson_arrivals():
    data = yaml.safe_load((CASES / "fleet.yaml").read_text())
    other = {"name": "rest", "model": "qwen3-32b", "precision": {"weights": "fp8"}, "slo": data["workloads"][0]["slo"],
             "buckets": [{"input_tokens": 500, "output_tokens": 100, "requests_per_s": 1.0}]}  # fmt: skip
    data["workloads"].append(other)
    data |= {"certify": "replay", "certification": {"stretch": 1}}
    result = optmodels.solve(load(data, folder=CASES))
    c = FleetPlan.model_validate(result.plan).certification
    assert (c.arrivals, c.status, result.check.ok) == ("poisson", "certified", True)
    assert result.report["not_out_of_sample"] == "rest given as rates, without a trace"


def test_plan_and_replay_sort_requests_alike(tmp_path):
    """An hour of retrieval: as many requests in every bucket of the plan as its replay of the same file sends there."""
    shutil.copy(CASES / "rag_hour3.csv.gz", tmp_path / "rag.csv.gz")
    asked = question.Question(model="llama-3.1-8b", trace=tmp_path / "rag.csv.gz", ttft=(4.0, 0.9), gpus=["h100"],
                              certify=False)  # fmt: skip
    result = optmodels.solve(load(question.instance(asked), folder=tmp_path), out_of_sample=False)
    [w] = result.problem["workloads"]
    planned = dict(zip((b["name"] for b in w["buckets"]), np.bincount(w["requests"]["bucket"]).tolist(), strict=True))
    assert sorted(planned.values()) == sorted((793, 8580, 6805, 252, 1090))
    rows = optmodels.replay(result, tmp_path / "rag.csv.gz")["report"]["demands"]
    assert {r["demand"].partition("/")[2]: r["requests"] for r in rows} == planned
    own = optmodels.replay(result)["report"]["demands"]
    assert [(r["demand"], r["requests"]) for r in own] == [(r["demand"], r["requests"]) for r in rows]


def test_a_gap_in_a_short_trace_keeps_no_plan_away():
    result = optmodels.solve(CASES / "or-9006.yaml", time_limit=5)
    assert result.plan is not None and result.check.ok


@pytest.mark.parametrize(
    ("limits", "seed"), [("day.csv.gz", {"rate_factor": 40.0, "gpus": ["h100"], "quota": [("h100", 64)]}),
                         ("day2.csv.gz", {"rate_factor": 3.0, "gpus": ["h100"]})],
)  # fmt: skip
@pytest.mark.slow
def test_days_with_peaks_are_planned_so_that_their_own_replay_keeps_what_is_promised(limits, seed):
    """Slow: days of 20,000 and 90,000 requests, simulated step by step in every round of certification."""
    asked = question.Question(
        model="llama-3.3-70b", trace=CASES / limits, ttft=(1.0, 0.95), tpot=0.05, **seed
    )  # fmt: skip
    result = optmodels.solve(load(question.instance(asked), folder=CASES))
    assert result.plan["certification"]["status"] == "certified" and missed(result.report) is None
    assert result.report["over_time"]["busiest"] in ("busiest hour 3.8 × the mean", "busiest hour 4.8 × the mean")
    found = optmodels.replay(result)["report"]
    assert found["sent"] in ("its own 23,725 requests", "its own 89,971 requests")
    assert min(row["ttft_within"] for row in found["demands"]) >= 0.95


@pytest.mark.parametrize("seed", [0, 6, 8, 50348, pytest.param(range(9, 18), marks=pytest.mark.slow)])
def test_random_steps_are_planned_so_that_their_own_replay_keeps_what_is_promised(seed, tmp_path):
    """Slow: nine traces more, each certified, then replayed twice."""
    from stepped_traces import plan, worst_miss

    for one in [seed] if isinstance(seed, int) else seed:
        result, _ = plan(one, tmp_path)
        assert result.check.ok and missed(result.report) is None
        assert max(worst_miss(result, seed) for seed in range(2)) <= 1.0
