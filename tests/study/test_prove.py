"""check --prove: claims confirmed, refuted and left open; and answers that are an error whatever the method says."""

import json
from dataclasses import replace

import pytest
import yaml
from document_cases import BURST, CERTIFIED
from orchestration_cases import two_models

import optmodels
from optmodels import formulation, load
from optmodels.certification.rounds import _Rounds
from optmodels.cli import run
from optmodels.errors import InputError
from optmodels.plans.outcome import CheckReport, Outcome, Violation, judged
from optmodels.solver import scip
from optmodels.solver.highs import relative_gap
from optmodels.study import prove

NAMES = ("cost_efficiency", "fleet", "orchestration", "reserved_capacity")


STATIC = {"serving": "static", "strategies": {"families": ["high_end", "kvo_ram"], "batches": [1, 4, 16, 64]},
          "queueing": {"model": "mmc", "load_levels": [0.5, 0.7, 0.85, 0.95]}}  # fmt: skip


LOOSER = BURST | {  # engines may be waited for so short in the first pass that the second one's plan is better
    "engine": BURST["engine"] | {"waits": 1e-4}, "certification": {"copies": 4, "rounds": 6}, "bins": {"seconds": 5.0},
    "requests": {"duration_s": 60, "classes": [
        {"model": "llama-3.2-3b", "output_tokens": 60, "prompt_tokens": 2000, "slo_factor": 3, "requests_per_s": 8}]},
}  # fmt: skip


def template(name):
    """Fleet's in static batches, where heuristics do not find the best plan; orchestration's in slots, for speed."""
    found = yaml.safe_load(formulation.get(name).template)
    if name == "orchestration":
        return {k: v for k, v in found.items() if k != "serving"} | {"latency": {"roofline": "roofline"}}
    if name != "fleet":
        return found
    for workload in found["workloads"]:
        if isinstance(limit := workload.get("slo", {}).get("tpot_s"), dict):
            workload["slo"]["tpot_s"] = limit["at_most"]
    return {k: v for k, v in found.items() if k not in ("engine", "latency")} | STATIC


def document(name, method="exact", **changes):
    return json.loads(optmodels.solve(template(name), method).to_json()) | changes


@pytest.mark.parametrize("name", NAMES)
def test_what_exact_claims_is_confirmed(name):
    report = optmodels.check(document(name), prove=True, time_limit=60)
    assert report.ok
    assert report.proof.verdict == "confirmed"
    assert report.proof.bound == pytest.approx(report.proof.claimed, rel=1e-5)
    assert "bound" not in {line.path for line in report.trusted}


def forged(name, method):
    """A heuristic's plan that is not the best one, called optimal."""
    made = document(name, method)
    return made | {"status": "optimal", "bound": made["objective"], "gap": 0.0, "limit": None}


def fleet_with_a_worse_plan():
    best = optmodels.solve(template("fleet")).objective
    form = formulation.get("fleet")
    for method in form.methods:
        made = optmodels.solve(template("fleet"), method)
        if made.plan is not None and made.check.ok and made.objective > best * 1.01:
            return method, best
    raise AssertionError("every method finds the best plan")


def test_a_false_optimum_is_refuted_by_a_better_plan(tmp_path, capsys):
    method, best = fleet_with_a_worse_plan()
    false = forged("fleet", method)
    assert optmodels.check(false).ok  # plan and figures are right: only the bound is not
    report = optmodels.check(false, prove=True, time_limit=60)
    assert not report.ok
    assert report.proof.verdict == "refuted"
    assert report.violations[-1].requirement == "no plan is better than the bound"
    assert report.violations[-1].value == pytest.approx(best)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(false))
    capsys.readouterr()
    assert run(["check", str(file), "--prove"]) == 1
    assert "REFUTED" in capsys.readouterr().out
    assert run(["check", str(file), "--prove", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["proof"]["verdict"] == "refuted"


def test_a_bound_that_is_too_loose_is_not_wrong():
    made = document("fleet")
    loose = made | {"status": "feasible", "limit": "gap", "bound": made["bound"] * 0.9, "gap": 0.1}
    assert prove.prove(formulation.get("fleet"), load(made["problem"]), loose).verdict == "confirmed"


def test_a_false_infeasible_is_refuted_and_a_true_one_confirmed(tmp_path, capsys):
    false = document("fleet") | {"status": "infeasible", "plan": None, "objective": None, "bound": None, "gap": None}
    report = optmodels.check(false, prove=True)
    assert (report.ok, report.proof.verdict) == (False, "refuted")
    assert report.violations[-1].requirement == "no plan meets the limits"
    with pytest.raises(InputError):
        optmodels.check(false)
    poor = template("fleet") | {"budget_usd_per_hour": 0.01}
    true = json.loads(optmodels.solve(poor).to_json())
    assert true["status"] == "infeasible"
    assert optmodels.check(true, prove=True).proof.verdict == "confirmed"
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(true))
    capsys.readouterr()
    assert run(["check", str(file), "--prove"]) == 0
    shown = capsys.readouterr().out
    assert "confirmed" in shown
    assert "plan verified" not in shown


def test_without_a_claim_the_gap_is_shown():
    method, best = fleet_with_a_worse_plan()
    report = optmodels.check(document("fleet", method), prove=True)
    assert report.ok
    assert report.proof.verdict == "nothing claimed"
    assert report.proof.bound == pytest.approx(best, rel=1e-5)
    assert report.proof.gap > 0.009


def test_no_time_leaves_it_open():
    report = optmodels.check(document("fleet"), prove=True, time_limit=1e-6)
    assert report.ok
    assert report.proof.verdict == "not refuted"
    assert "bound" in {line.path for line in report.trusted}


def test_a_plan_that_fails_its_check_is_not_proved():
    made = document("fleet")
    made["objective"] *= 0.9
    assert optmodels.check(made, prove=True).proof is None


@pytest.mark.parametrize(
    ("made", "words"),
    [(CERTIFIED, "with limits 3 times as long, without cuts"),
     (two_models(1, **BURST), "with the engine's own margins, without cuts"),
     (two_models(1, **LOOSER), "with quantile 0.5 and waits 4, without cuts")],
)  # fmt: skip
def test_the_bound_of_a_certified_plan_is_that_of_the_model_it_names(made, words, capsys, tmp_path):
    result = optmodels.solve(made)
    file = tmp_path / "plan.json"
    file.write_text(result.to_json())
    data = json.loads(result.to_json())
    report = optmodels.check(data, prove=True, time_limit=60)
    assert (report.ok, report.proof.verdict, report.proof.of) == (True, "confirmed", [words])
    assert report.proof.bound == pytest.approx(result.bound, rel=1e-5)
    capsys.readouterr()
    assert run(["check", str(file), "--prove"]) == 0
    assert f"of the linear model {words}" in " ".join(capsys.readouterr().out.split())
    # a bound that the model it names does not keep is refuted by a plan of that model
    if data["objective"] > data["bound"] * 1.02:
        false = data["bound"] * 1.02
        false = data | {"bound": false, "gap": relative_gap(data["objective"], false)}
        assert optmodels.check(false, prove=True).proof.verdict == "refuted"


@pytest.mark.parametrize("stops", [1, 2])
def test_no_plan_of_a_certified_instance_is_no_plan_of_its_loosest_model(stops, monkeypatch):
    """The time over before it was solved, nothing is proved."""
    tight = [w | {"slo": {"ttft_s": 1e-4}} for w in CERTIFIED["workloads"]]
    made = CERTIFIED | {"workloads": tight, "certification": {"stretch": [2.0, 3.0]}}
    assert optmodels.solve(made).status == "infeasible"
    data = json.loads(optmodels.solve(made).to_json())
    proof = optmodels.check(data, prove=True).proof
    assert (proof.verdict, proof.of) == ("confirmed", ["with limits 3 times as long, without cuts"])
    monkeypatch.setattr(_Rounds, "left", property(lambda self: 1.0 if len(self.stops) < stops else -1.0))
    cut_short = optmodels.solve(made, time_limit=60)
    assert (cut_short.status, cut_short.limit) == ("no_solution_found", "time")


@pytest.mark.skipif(not scip.installed(), reason="needs the extra prove")
@pytest.mark.parametrize("name", NAMES)
def test_scip_confirms_it_too(name):
    proof = optmodels.check(document(name), prove=True, time_limit=60).proof
    assert proof.verdict == "confirmed"
    assert proof.attempts[0].solver == "SCIP"


# ------------------------------------------------------------------------------------------------ what is an error


@pytest.fixture
def failing(monkeypatch):
    """The check of fleet finds something wrong with every plan."""
    wrong = CheckReport(ok=False, violations=[Violation(requirement="a requirement", value=1, limit=0)])
    form = replace(formulation.get("fleet"), check=lambda problem, plan: wrong)
    monkeypatch.setattr(formulation, "get", lambda name: form)


@pytest.mark.parametrize("method", ["exact", "greedy"])
def test_a_plan_that_fails_its_check_is_an_error(failing, tmp_path, capsys, method):
    file = tmp_path / "fleet.yaml"
    file.write_text(formulation.get("fleet").template)
    made = optmodels.solve(file, method)
    assert (made.status, made.exit_status) == ("error", 1)
    assert made.log["reason"] == "the plan fails its check: a requirement"
    assert made.log["claimed"] in ("optimal", "feasible")
    assert run(["solve", str(file), "--method", method, "--out", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr().out
    assert "optimal, proved" not in shown
    (written,) = (tmp_path / "out").glob("*/plan.json")
    assert str(written) in "".join(shown.split())
    rows = optmodels.compare([file], [method])
    assert (rows[0]["status"], rows[0]["proved"]) == ("error", False)


@pytest.mark.parametrize(
    ("status", "objective", "bound", "sense", "expected"),
    [("optimal", 1.0, 1.0, "min", "optimal"), ("optimal", 1.0, 1.01, "min", "error"),
     ("feasible", 1.0, 1.01, "min", "error"), ("optimal", 1.01, 1.0, "max", "error"),
     ("optimal", 1.01, 1.0, "min", "feasible"), ("optimal", 1.0, 1.01, "max", "feasible"),
     ("feasible", 1.0, None, "max", "feasible"), ("optimal", 0.0, 0.0, "max", "optimal"),
     ("feasible", 1.0, 1.0 + 1e-9, "max", "optimal")],
)  # fmt: skip
def test_the_status_is_what_the_bound_leaves(status, objective, bound, sense, expected):
    assert judged(Outcome(status, None, bound), objective, sense, None).status == expected
