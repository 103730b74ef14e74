"""Certified orchestration: promises are kept by replays, cuts are kept to, stops are said."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
from document_cases import BURST, DEALT_HERE
from orchestration_cases import two_models

import optmodels
from formulations.orchestration import FORMULATION
from formulations.orchestration.certify import _judged, cut, loosened
from formulations.orchestration.check import check
from formulations.orchestration.making import rows_of
from formulations.orchestration.plan import ModelCut
from formulations.orchestration.points import build_tables
from formulations.orchestration.replay import replay
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.simulation.options import ReplayOptions

RATES = {
    "requests": {"duration_s": 60, "classes": [
        {"model": "llama-3.2-3b", "output_tokens": 60, "prompt_tokens": 2000, "slo_factor": 3, "requests_per_s": 8}]},
    "bins": {"seconds": 5.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def problem():
    return optmodels.load(two_models(1, **BURST))


@pytest.fixture(scope="module")
def solved(problem):
    return optmodels.solve(problem)


def test_a_certified_plan_attains_what_it_promises(problem, solved):
    assert solved.check.ok
    found = solved.plan["certification"]
    assert found["status"] == "certified"
    assert (found["rounds"][0]["attainment"], found["rounds"][0]["broken"]) == (1.0, 1)
    (promise,) = found["promises"]
    assert promise["promised"] == pytest.approx(solved.plan["prediction"]["attainment"])
    named = solved.plan["dispatcher"]["policy"]
    seen = optmodels.replay(solved)["report"]["policies"][named]["attainment"]
    assert promise["promised"] <= promise["seen"] == pytest.approx(seen)
    assert found["rounds"][found["of_round"] - 1]["replayed"] == max(
        r["replayed"] for r in found["rounds"] if not r["broken"]
    )
    assert solved.objective <= solved.bound * (1 + 1e-9)
    assert "certified: all" in solved.log["reason"]


def test_a_cut_takes_from_every_capacity_of_a_models_engines_and_from_who_can_be_in_time(problem):
    t = build_tables(problem)
    less = cut(t, [ModelCut(model="llama-3.2-3b", keep=0.5, in_time=0.75)])
    assert less.configurations[0].engine.load == pytest.approx(2 * t.configurations[0].engine.load)
    assert less.share == pytest.approx(0.75 * t.share)
    assert less.busy(0, 0) == pytest.approx(2 * t.busy(0, 0))


def test_looser_engines_have_the_same_classes_and_steps(problem):
    t = build_tables(problem)
    other = loosened(t)
    assert other.classes is t.classes
    mine, looser = t.configurations[0].engine, other.configurations[0].engine
    assert (looser.step_s, looser.fixed_s) == (mine.step_s, mine.fixed_s)
    assert looser.wait_s == pytest.approx(8 * mine.wait_s)


@pytest.mark.parametrize(
    "changes", [{}, DEALT_HERE | {"candidates": {"tp": [1], "attention_ranks": [1, 4], "batch": [2]}}]
)
def test_lines_of_one_pass_are_found_in_the_tables_of_the_other(changes):
    """Engines that may wait long or short in the first pass wait in one way in the second."""
    t = build_tables(optmodels.load(two_models(1, **BURST | {"engine": {"waits": [0.01, 3]}} | changes)))
    other = loosened(t)
    assert {x.engine.waits for x in t.configurations} == {0.01, 3.0}
    assert {x.engine.waits for x in other.configurations} == {8.0}
    for of, at in ((t, other), (other, t)):
        lines = [
            SimpleNamespace(model=t.case.models[x.model], gpu=t.case.gpu_types[x.gpu], degrees=x.degrees,
                            batch=x.batch, stage=x.stage, level=x.level)
            for x in of.configurations
        ]  # fmt: skip
        plan = SimpleNamespace(configurations=lines)
        assert rows_of(of, plan) == list(range(len(lines)))
        found = [at.configurations[c] for c in rows_of(at, plan)]
        same = [(x.model, x.gpu, x.degrees, x.batch) for x in of.configurations]
        assert [(x.model, x.gpu, x.degrees, x.batch) for x in found] == same


def test_draws_decide_by_students_t():
    """Gains 1, 2, 3 of 10 each: mean 2, standard error 0.577; the 5 % quantile of t with two degrees is 2.920."""
    good, came = np.array([6.0, 7.0, 8.0]), np.full(3, 10.0)
    kept, unclear, broken = (_judged("m", "in_time", share, good, came, 0.05) for share in (0.5, 0.6, 0.9))
    assert [x.line.found for x in (kept, unclear, broken)] == ["kept", "undecided", "broken"]
    assert kept.line.seen == pytest.approx(0.7)
    assert kept.least == pytest.approx(0.7 - 2.91999 * 3**-0.5 / 10, rel=1e-5)


def test_rates_are_drawn(solved):
    """With another seed the mean over other draws is at least as promised, too."""
    document = two_models(1, **BURST | RATES | {"certification": {"copies": 16, "rounds": 6}})
    found = optmodels.solve(document).plan["certification"]
    assert (found["status"], found["copies"]) == ("certified", 16)
    assert found["promises"][0]["requests"] > 16 * 400
    other = optmodels.solve(document | {"certification": document["certification"] | {"seed": 5}})
    assert other.plan["certification"]["promises"][0]["seen"] >= found["promises"][0]["promised"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: c["cuts"][0].update(keep=0.5), "in its busiest bin"),
        (lambda c: c["cuts"][0].update(in_time=0.5), "can be in time"),
        (lambda c: c["promises"].pop(), "the promises of the plan"),
        (lambda c: c["promises"][0].update(promised=0.5), "promised"),
        (lambda c: c["promises"][0].update(found="broken"), "certified exactly if all promises hold"),
        (lambda c: c["promises"][0].update(found="undecided"), "one replay decides"),
        (lambda c: (x := c["rounds"][c["of_round"] - 1]).update(looser=not x["looser"]), "engine.waits"),
        (lambda c: c.update(copies=3), "copies are the problem's"),
        (lambda c: c.update(status="incomplete"), "certified exactly if all promises hold"),
    ],
)
def test_the_check_notices_what_does_not_fit(problem, solved, change, named):
    plan = copy.deepcopy(solved.plan)
    change(plan["certification"])
    found = [v.requirement for v in check(problem, plan).violations]
    assert any(named in x for x in found), found


def test_a_limit_stops_the_rounds_and_the_plan_says_so(problem):
    exact, tables = FORMULATION.methods["exact"], build_tables(problem)
    stopped = exact(problem, tables, Options(time_limit=1e-9))
    assert stopped.plan.certification.status == "incomplete"
    assert "NOT certified" in stopped.log["reason"]
    assert check(problem, stopped.plan.model_dump(mode="json")).ok
    bare = exact(problem, tables, Options(answer_only=True))
    assert bare.plan.certification.of_round == 0
    assert check(problem, bare.plan.model_dump(mode="json")).ok


def test_a_share_that_no_replay_keeps_is_named():
    """All ten are to be in time, which the model has and no replay."""
    strict = BURST | {"models": [{"model": "llama-3.2-3b", "attainment_at_least": 1.0}]}
    result = optmodels.solve(two_models(1, **strict))
    assert result.plan["certification"]["status"] == "not kept"
    assert result.plan["certification"]["promises"][0]["found"] == "broken"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"certification": {"copies": 1}}, "certification.copies"),
        ({"certification": {"quantile": 0.4}}, "certification.quantile"),
        ({"certify": "prayer"}, "certify"),
        ({"serving": "slots", "latency": {"roofline": "roofline"}, "engine": None}, "certify"),
    ],
)
def test_mistakes_are_named(change, path):
    with pytest.raises(InputError) as caught:
        optmodels.load(two_models(1, **BURST | change)).resolve()
    assert path in [m.path for m in caught.value.mistakes]


def test_replays_count_the_limit_on_the_first_token(problem, solved):
    """As the plan and its certification do: in time is who keeps both limits, by the requests' own times."""
    tables = {}
    everybody = ReplayOptions(
        overflow_protection=False, keep=lambda name, columns: tables.update({name: columns})
    )  # fmt: skip
    limit_s = 0.05
    tight = problem.model_copy(update={"slo": problem.slo.model_copy(update={"ttft_s": limit_s})})
    found = replay(tight, solved.plan, options=everybody)["policies"]
    for name, x in tables.items():
        first_s, last_s = (x[k] - x["arrival_s"] for k in ("first_token_s", "finish_s"))
        in_time = (last_s <= x["deadline_s"] * (1 + 1e-9)) & (first_s <= limit_s * (1 + 1e-9))
        assert found[name]["attainment"] == pytest.approx(in_time.mean())
        assert (last_s[~in_time] <= x["deadline_s"][~in_time]).any()  # late by the first token alone
