"""Cost efficiency with continuous batching: brute force over engines, the check's verdict, what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from loop_cases import TPOT, TTFT, cheapest, instance

import optmodels
from formulations.cost_efficiency.as_fleet import as_fleet
from formulations.cost_efficiency.check import check
from formulations.cost_efficiency.making import OF_BOUNDS, make_plan
from formulations.cost_efficiency.points import build_tables
from optmodels.errors import InputError

DRAFTS = {
    "max_num_seqs": 64, "max_num_batched_tokens": 4096,
    "speculation": [{"model": "llama-3.1-8b", "drafts": 3, "acceptance": 0.7, "head": 0.05}],
}  # fmt: skip


def before(deadline: Any) -> dict[str, Any]:
    """The SLO of `instance` with a deadline."""
    return {"kind": "real_time", "tps": 200, "ttft_s": TTFT, "tpot_s": TPOT, "deadline_s": deadline}


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {}}, {"engine": DRAFTS}, {"slo": before(4.0)}, {"slo": before({"at_most": 4.0, "percentile": 0.95})},
        {"slo": before({"at_most": 3.0, "percentile": 0.99}), "engine": DRAFTS},
    ],
    ids=["plain", "drafts", "mean deadline", "deadline", "drafts, deadline"],
)  # fmt: skip
def test_exact_is_the_cheapest_by_brute_force(changes: dict[str, Any]) -> None:
    problem = instance(**changes)
    found = optmodels.solve(problem)
    assert found.plan is not None
    assert found.check is not None and found.check.ok
    usd, e2e = cheapest(problem)
    assert found.plan["usd_per_hour"] == pytest.approx(usd)
    assert found.plan["prediction"]["e2e_s"] == pytest.approx(e2e, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "path", "expected"),
    [
        ({"serving": "static", "latency": {}}, "engine.speculation", "none but with serving: continuous"),
        ({"model": "mistral-7b"}, "engine.speculation[0].model", "a model of this problem"),
        ({"engine": {"speculation": [{"drafts": 1, "accepted": 1, "draft": "lama"}]}}, "[0].draft", "of the catalogue"),
    ],
)
def test_drafts_that_nobody_makes_are_refused(changes: dict[str, Any], path: str, expected: str) -> None:
    slo = {"kind": "real_time", "tps": 200, "ttft_s": 3.0, "tpot_s": 0.12}
    with pytest.raises(InputError) as caught:
        instance(**({"engine": DRAFTS, "slo": slo} | changes)).resolve()
    assert any(path in m.path and expected in m.expected for m in caught.value.mistakes), caught.value


def test_a_deadline_costs_what_it_shortens() -> None:
    """None and one that nothing comes near are the same plan; a percentile costs no less than the mean of as many s."""

    def best(deadline: Any) -> dict[str, Any]:
        found = optmodels.solve(instance(slo=before(deadline)))
        assert found.plan is not None and found.check is not None and found.check.ok, deadline
        return found.plan

    none, loose, mean, late = map(best, (None, 1000.0, 4.0, {"at_most": 4.0, "percentile": 0.95}))
    assert none == loose | {"limits": [line for line in loose["limits"] if line["name"] != "E2E"]}
    assert none["usd_per_hour"] < mean["usd_per_hour"] <= late["usd_per_hour"]
    assert none["prediction"]["e2e_s"] > 4.0
    said = {line["name"]: line for line in late["limits"]}["E2E"]
    assert late["prediction"]["e2e_s"] < said["value"] <= said["limit"] == 4.0
    report = check(instance(slo=before(4.0)), none)
    assert any(v.requirement.startswith("E2E <=") for v in report.violations)
    wrong = copy.deepcopy(late)
    next(line for line in wrong["limits"] if line["name"] == "E2E")["value"] *= 0.9
    assert not check(instance(slo=before({"at_most": 4.0, "percentile": 0.95})), wrong).ok


@pytest.mark.parametrize("percentile", [0.3, 0.5, 0.55, 0.62, 0.64, 0.8, 0.999])
def test_the_check_knows_every_percentile(percentile: float) -> None:
    limits = {k: {"at_most": v, "percentile": percentile}
              for k, v in (("ttft_s", 3.0), ("tpot_s", 0.12), ("deadline_s", 8.0))}  # fmt: skip
    found = optmodels.solve(instance(slo={"kind": "real_time", "tps": 200, **limits}))
    assert found.check is not None and found.check.ok, found.check.violations


def test_a_deadline_that_nothing_keeps_is_said() -> None:
    found = optmodels.solve(instance(slo=before(0.1)))
    assert found.plan is None and found.status == "infeasible"


@pytest.mark.parametrize(("ttft_s", "status"), [({"at_most": 1.0, "percentile": 0.95}, "infeasible"), (1.0, "optimal")])
def test_levels_that_miss_the_slo_are_said_to_be_bounds(ttft_s: Any, status: str) -> None:
    one = {"batch": 1, "input_tokens": 4000, "output_tokens": 4}
    found = optmodels.solve(instance(workload=one, slo={"kind": "real_time", "tps": 1, "ttft_s": ttft_s, "tpot_s": 5}))
    assert found.status == status
    reason = found.log.get("reason", "")
    if status == "optimal":
        assert not reason
    else:
        assert reason.startswith("the nearest is High-end (no offload) on large: TTFT 1.")
        assert reason.endswith(OF_BOUNDS)


@pytest.mark.parametrize("method", ["enumerate", "config_tree", "greedy_dp"])
def test_other_methods_know_the_same_candidates(method: str) -> None:
    problem = instance()
    assert optmodels.solve(problem, method=method).objective == pytest.approx(optmodels.solve(problem).objective)


def test_no_static_technique_is_offered() -> None:
    problem = instance(strategies={"families": ["high_end", "multi_pass", "kvo_ram", "ao"]})
    assert set(build_tables(problem).configurations.family.tolist()) == {0}


@pytest.mark.parametrize(
    ("path", "value"),
    [("step_s", 1.02), ("wait_s", 1.5), ("kv_tokens", 1.1), ("max_num_batched_tokens", 2), ("max_num_seqs", 2)],
)
def test_the_check_recomputes_the_engine(path: str, value: float) -> None:
    problem = instance()
    found = optmodels.solve(problem)
    assert found.plan is not None
    plan = copy.deepcopy(found.plan)
    plan["engine"][path] = type(plan["engine"][path])(plan["engine"][path] * value)
    assert not check(problem, plan).ok


def test_more_in_flight_than_the_level_takes_is_noticed() -> None:
    found = optmodels.solve(instance())
    assert found.plan is not None
    report = check(instance(workload={"batch": 600, "input_tokens": 500, "output_tokens": 120}),
                             found.plan | {"batch_split": [600]})  # fmt: skip
    assert any("what there is" in v.requirement for v in report.violations)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"latency": {"calibration": "of-batches.yaml"}}, "latency.model"),
        ({"serving": "static"}, "slo.ttft_s"),
        ({"serving": "static", "slo": before({"at_most": 9.0, "percentile": 0.9})}, "slo.deadline_s"),
        ({"strategies": {"families": ["kvo_ram"]}}, "strategies.families"),
    ],
)
def test_what_says_nothing_is_refused(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(InputError, match=path.replace(".", r"\.")):
        instance(**changes).resolve()


def test_a_longer_ttft_limit_loses_nothing():
    """What keeps 1 s keeps 8 s, 32 s and no limit at all: the optimum is the same plan."""
    workload = {"batch": 64, "input_tokens": 300, "output_tokens": 20}

    def best(slo: dict[str, Any]) -> float:
        found = optmodels.solve(instance(objective="uncapped", workload=workload, slo=slo))
        assert found.status == "optimal" and found.objective is not None
        return found.objective

    limits = (*({"kind": "real_time", "tps": 100.0, "ttft_s": s, "tpot_s": 1.0} for s in (1.0, 8.0, 32.0)),
              {"kind": "batch", "tps": 100.0})  # fmt: skip
    found = [best(slo) for slo in limits]
    assert found == sorted(found) and found[0] == pytest.approx(found[-1])


REPORTED = Path(__file__).parents[1] / "reported" / "levels"


def test_the_plan_of_a_tight_limit_is_found_at_a_loose_one() -> None:
    """Three users of long prompts: TTFT within 3 s was "infeasible, proved", and within 1.2 s it had a plan."""
    tight, loose = (optmodels.load(REPORTED / f"both-{name}.yaml") for name in ("tight", "loose"))
    first, second = optmodels.solve(tight), optmodels.solve(loose)
    assert first.status == second.status == "optimal" and second.check is not None and second.check.ok
    assert first.plan["machines"] == second.plan["machines"] and first.objective == pytest.approx(second.objective)
    document = optmodels.explain(loose)
    assert document.status == "feasible" and not document.conflicts


@pytest.mark.parametrize("name", ["stages-tight", "stages-loose", "stages-loosen-1.6"])
def test_stages_are_fleets(name: str, tmp_path: Path) -> None:
    """What asked for prefill and decode apart is told to use a fleet; its own is written out, and has a plan."""
    file = REPORTED / f"{name}.yaml"
    with pytest.raises(InputError, match=r"deployment\.stages: got .*expected formulation: fleet.*as_fleet FILE"):
        optmodels.load(file)
    made = as_fleet(yaml.safe_load(file.read_text()))
    assert optmodels.solve(optmodels.load(made)).status == "optimal"


def test_of_the_fleet_written_out_requests_come_as_fast_as_the_loop_turns() -> None:
    made = as_fleet(yaml.safe_load((REPORTED / "stages-tight.yaml").read_text()))
    (workload,) = made["workloads"]
    (bucket,) = workload["buckets"]
    assert bucket["requests_per_s"] == pytest.approx(5000 / 8050)
    assert workload["slo"] == {"ttft_s": 5.892, "tpot_s": 0.0438, "deadline_s": pytest.approx(3 * 8050 / 5000)}
    today = yaml.safe_load((REPORTED / "stages-tight.yaml").read_text())
    today["slo"]["tpot_s"] = today["slo"].pop("tbt_s")  # today's name
    assert as_fleet(today)["workloads"][0]["slo"]["tpot_s"] == 0.0438


@pytest.mark.parametrize("engine", [{}, {"max_num_seqs": 16}])
def test_every_candidate_is_a_plan_that_the_check_accepts(engine: dict[str, Any]) -> None:
    """Of engines that requests seldom wait for a place of, and of those that they do."""
    loose = {"kind": "real_time", "tps": 1.0, "ttft_s": {"at_most": 500.0, "percentile": 0.9}, "tpot_s": 5.0}
    workload = {"batch": 60, "input_tokens": 3000, "output_tokens": 600}
    problem = instance(workload=workload, slo=loose, engine=engine)
    tables = build_tables(problem)
    places = tables.engines.at.place_wait_s[tables.engines.row]
    assert (places > 0).any() and (places == 0).any()
    for row in range(len(tables.candidates)):
        report = check(problem, make_plan(tables, row, 0.0).model_dump(mode="json"))
        assert report.ok, report.violations
