"""Certified fleets: promises hold on the simulator with other seeds, cuts are kept, stops are said."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import numpy as np
import pytest
from document_cases import BATCHING, CERTIFIED
from fleet_cases import APART

import optmodels
from formulations.fleet import FORMULATION
from formulations.fleet.certify import (
    FleetRounds,
    Promised,
    Together,
    _holds_at,
    _JudgedPromise,
    _room,
    beside_whole,
    longer_limits,
    simulations,
)
from formulations.fleet.check import check
from formulations.fleet.plan import FleetPlan
from formulations.fleet.points import BOTH, DECODE, PREFILL, build_tables, cut, engines
from optmodels.certification import rounds as certification
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.latency.steps import StepCosts
from optmodels.plans.outcome import Outcome
from optmodels.simulation.continuous import Engine
from optmodels.simulation.promises import Promise, RequestStream, Station, Verdict, judge


@pytest.fixture(scope="module")
def problem():
    return optmodels.load(CERTIFIED)


@pytest.fixture(scope="module")
def solved(problem):
    return optmodels.solve(problem)


def test_cuts_lead_to_a_plan_whose_promises_hold(problem, solved):
    assert solved.check.ok
    found = solved.plan["certification"]
    assert found["status"] == "certified"
    first, *_, last = found["rounds"]
    assert first["broken"] > 0 == last["broken"]
    assert last["worst"] <= 1
    assert found["cuts"]
    assert all(p["found"] == "kept" and p["seen_s"] <= p["at_most_s"] for p in found["promises"])
    assert solved.bound <= solved.objective * (1 + 1e-9)
    assert re.search(r"certified: all .* \(round (\d+) of \1\)", solved.log["reason"])
    case, plan = problem.resolve(), FleetPlan.model_validate(solved.plan)
    again = list(simulations(case, plan.periods[0], plan.stretch))
    assert len(again) == len(plan.periods[0].deployments)
    for x in again:
        verdicts = judge(x.stations, x.streams, x.promises, 0.05 / 10, [987])
        assert [v.found for v in verdicts] == ["kept"] * len(x.promises)


def test_what_there_was_no_time_for_is_said(problem, monkeypatch):
    """The plan can be the optimum of the models that were solved, and another one's better."""
    left = property(lambda rounds: 0.0 if rounds.found and not rounds.found[-1].unkept else float("inf"))
    monkeypatch.setattr(certification._Rounds, "left", left)
    rules = problem.certification.model_copy(update={"stretch": (2.0, 3.0)})
    easy = tuple(longer_limits(w, 10.0) for w in problem.workloads)
    solved = optmodels.solve(problem.model_copy(update={"workloads": easy, "certification": rules}))
    assert (solved.plan["certification"]["status"], solved.plan["certification"]["bound_stretch"]) == ("certified", 1.0)
    words = "no time was left for models with limits 2 times as long, limits 3 times as long"
    assert solved.log["reason"].endswith(words)


def test_the_model_alone_has_no_plan(problem):
    """Its latencies are bounds: here the limits are kept only in simulation."""
    alone = optmodels.solve(CERTIFIED | {"certify": "none"})
    assert alone.status == "infeasible"


def test_a_cut_derates_every_point_of_its_engine_and_takes_pairs_out(problem, solved):
    tables = build_tables(optmodels.load(CERTIFIED | {"certify": "none", "workloads": BATCHING["workloads"]}))
    step, wait, most = tables.points.level[:3, 0]
    of = FleetPlan.model_validate(solved.plan).certification.cuts[0]
    line = of.model_copy(update={
        "step_s": step, "wait_s": wait, "most_of_wait": None if most == float("inf") else most, "keep": 0.5,
        "forbidden": ["chat/1024x256"], "model": None,  # these workloads have one model, not a list
    })  # fmt: skip
    less = cut(tables, [line])
    assert less.points.rho[0] == 0.5 * tables.points.rho[0]
    assert (less.points.rho[1:] == tables.points.rho[1:]).all()
    names = [d.name for d in tables.demands]
    kept, gone = names.index("chat/256x128"), names.index("chat/1024x256")
    assert less.load[kept, 0] == pytest.approx(2 * tables.load[kept, 0])
    assert (less.load[gone, 0], less.load[gone, 1]) == (float("inf"), tables.load[gone, 1])


def test_no_level_of_an_engine_has_room_again_for_what_broke_there(problem, solved):
    """It makes no difference to an engine which level its requests were planned at."""
    plan = FleetPlan.model_validate(solved.plan)
    rounds = FleetRounds(problem, build_tables(problem))
    loose = rounds.tables(plan.stretch)
    together = next(simulations(loose.case, plan.periods[0], plan.stretch))
    of, cuts = together.promised[0], {}
    line, shares = of.lines[0], {s.demand: s.requests_per_s for s in of.lines[0].serves}
    rates = np.array([shares.get(d.name, 0.0) for d in loose.demands]) / line.count

    def least(tables):
        """The room that any level of the engine has, as a share of those requests."""
        same = (engines(tables)[0] == engines(loose)[0][0]) & (tables.points.usd_per_hour == line.usd_per_hour_each)
        can = np.isfinite(tables.capacities[:, rates > 0][:, :, same]).all(axis=(0, 1))
        return np.einsum("w,kwp->kp", rates[rates > 0], tables.capacities[:, rates > 0][:, :, same][:, :, can]).max(0)

    assert (least(loose) < 1).any()
    bad = _JudgedPromise("always", of, Verdict(of.promise, "broken", 1.04 * of.promise.at_most_s, 9), together)
    rounds.add_cuts(cuts, [bad])
    assert least(cut(loose, [*cuts.values()])).min() == pytest.approx(1 / 0.98, rel=2e-4)


def test_a_cut_takes_nothing_away_that_was_not_simulated(problem, solved):
    """Where a promise breaks at all rates that are sought, from 0.4, levels keep what is less, or have little of it."""
    plan = FleetPlan.model_validate(solved.plan)
    rounds = FleetRounds(problem, build_tables(problem))
    loose = rounds.tables(plan.stretch)
    together = next(simulations(loose.case, plan.periods[0], plan.stretch))
    never, cuts = replace(together.promised[0].promise, at_most_s=1e-6), {}
    line = together.promised[0].lines[0]
    more = [s.model_copy(update={"requests_per_s": 1.5 * s.requests_per_s}) for s in line.serves]
    of = replace(together.promised[0], promise=never, lines=(line.model_copy(update={"serves": more}),))
    together = replace(together, promised=(of,))
    load = dict(_room(loose, engines(loose), [d.name for d in loose.demands], of.lines[0]))
    rounds.add_cuts(cuts, [_JudgedPromise("always", of, Verdict(never, "broken", 1.0, 9), together)])
    for key, taken in load.items():
        if 0.4 * taken >= 1.0:
            assert key not in cuts
        elif 0.4 * taken > 0.3:
            assert (cuts[key].keep, cuts[key].forbidden) == (pytest.approx(0.4 * taken, abs=1e-4), [])
        else:
            assert (cuts[key].keep, cuts[key].forbidden) == (1.0, [of.demand])
    assert min(load.values()) <= 0.75 < np.median([*load.values()]) < 2.5 <= max(load.values())


def test_the_rates_at_which_a_promise_holds_are_found():
    """M/D/1 at a load of 0.8: the mean at 0.52 holds at 0.65 of the rates, and less than the service at none sought."""
    step = StepCosts(fixed_s=0.01, prompt_token_s=1e-4, prompt_pair_s=0.0, decode_request_s=0.0, context_s=0.0,
                     mixed_context_s=0.0)  # fmt: skip
    station = Station(Engine(step, kv_tokens=10_000, max_num_seqs=1, max_num_batched_tokens=1000))
    for seconds, at_least, at_most in ((0.02 * (1 + 0.52 / (2 * 0.48)), 0.55, 0.7), (0.019, 0.4, 0.4)):
        promised = Promised(Promise((0,), "ttft_s", seconds, None), "chat", ())
        together = Together((station,), (RequestStream(0.8 / 0.02, 100, 1, 0, 0.02, 0.5),), (promised,))
        assert at_least <= _holds_at(together, 1) <= at_most


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: c["cuts"][0].update(keep=0.5), "load level"),
        (lambda c: c["cuts"][0].update(forbidden=["chat/256x128", "chat/1024x256"]), "is cut off"),
        (lambda c: c["promises"].pop(), "the promises of the plan"),
        (lambda c: c["promises"][0].update(at_most_s=5.0), "its limit"),
        (lambda c: c["promises"][0].update(found="broken"), "certified exactly if all promises hold"),
        (lambda c: c["rounds"][0].update(broken=0, undecided=0, objective=1.0), "no better plan was certified"),
        (lambda c: c.update(status="incomplete"), "certified exactly if all promises hold"),
    ],
)
def test_the_check_notices_what_does_not_fit(problem, solved, change, named):
    plan = copy.deepcopy(solved.plan)
    used = plan["periods"][0]["deployments"][0]["engine"]
    if named in ("load level", "is cut off"):  # of a point that the plan uses
        level = {k: used[k] for k in ("step_s", "wait_s", "most_of_wait")}
        cuts = plan["certification"]["cuts"]
        cuts.sort(key=lambda c: any(c[k] != v for k, v in level.items()))  # the point's own first, where it has one
        if any(cuts[0][k] != v for k, v in level.items()):
            cuts[0].update(level, keep=1.0)
    change(plan["certification"])
    found = [v.requirement for v in check(problem, plan).violations]
    assert any(named in x for x in found), found


def test_a_limit_stops_the_rounds_and_the_plan_says_so():
    easy = optmodels.load(BATCHING | {"certify": "replay"})
    exact, tables = FORMULATION.methods["exact"], build_tables(easy)
    stopped = exact(easy, tables, Options(time_limit=1e-9))
    assert stopped.plan.certification.status == "incomplete" and stopped.plan.certification.of_round == 0
    assert "NOT certified" in stopped.log["reason"]
    assert check(easy, stopped.plan.model_dump(mode="json")).ok
    bare = exact(easy, tables, Options(answer_only=True))
    assert bare.plan.certification.status == "incomplete"


def test_promises_that_nothing_keeps_are_named():
    hopeless = copy.deepcopy(CERTIFIED)
    hopeless["workloads"][0]["slo"]["ttft_s"]["at_most"] = 0.1
    hopeless["certification"] = {"stretch": 8.0, "rounds": 2}
    result = optmodels.solve(hopeless)
    assert result.status == "no_solution_found"
    assert "not kept in the last round" in result.log["reason"]
    assert "chat/1024x256 ttft_s" in result.log["reason"]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"serving": "static", "latency": {}, "certify": "replay"}, "certify"),
        ({"certification": {"stretch": 0.5}}, "certification.stretch"),
        ({"certification": {"confidence": 1.0}}, "certification.confidence"),
        ({"certification": {"rounds": 0}}, "certification.rounds"),
        ({"certify": "prayer"}, "certify"),
    ],
)
def test_mistakes_are_named(change, path):
    with pytest.raises(InputError) as caught:
        optmodels.load(CERTIFIED | change).resolve()
    assert path in [m.path for m in caught.value.mistakes]


# 70B on unlike machines, limits so tight that the model's bounds on tails take a larger fleet than simulation does.
APART_CERTIFIED = APART | {
    "certify": "replay", "certification": {"stretch": 2.0}, "latency": {"model": "roofline"},
    "deployment": {"stages": ["prefill", "decode"]},
    "workloads": [APART["workloads"][0] | {"slo": {
        "ttft_s": {"at_most": 0.8, "percentile": 0.95}, "tpot_s": {"at_most": 0.03, "percentile": 0.95},
        "deadline_s": {"at_most": 12, "percentile": 0.9}}}],
}  # fmt: skip


@pytest.fixture(scope="module")
def apart():
    return optmodels.load(APART_CERTIFIED)


@pytest.fixture(scope="module")
def solved_apart(apart):
    return optmodels.solve(apart)


def test_engines_that_exchange_caches_keep_their_promises_together(apart, solved_apart):
    """Of a network: TTFT where requests are prefilled, TPOT and E2E where they are decoded."""
    assert solved_apart.check.ok, solved_apart.check.violations
    found = solved_apart.plan["certification"]
    assert found["status"] == "certified" and found["rounds"][found["of_round"] - 1]["stretch"] == 2.0
    assert solved_apart.objective < found["rounds"][0]["objective"]
    case, plan = apart.resolve(), FleetPlan.model_validate(solved_apart.plan)
    stage = {d.name: d.stage for d in plan.periods[0].deployments}
    of = {(stage[p["deployment"]], p["latency"]) for p in found["promises"]}
    assert of == {("prefill", "ttft_s"), ("decode", "tpot_s"), ("decode", "deadline_s")}
    [network] = simulations(case, plan.periods[0], plan.stretch)
    verdicts = judge(network.stations, network.streams, network.promises, 0.05 / 10, [987])
    assert [v.found for v in verdicts] == ["kept"] * len(found["promises"])


def test_a_deadline_that_breaks_cuts_the_engines_of_both_stages(apart, solved_apart):
    tables, plan = build_tables(apart), FleetPlan.model_validate(solved_apart.plan)
    rounds = FleetRounds(apart, tables)
    loose = rounds.tables(2.0)
    [network] = simulations(tables.case, plan.periods[0], plan.stretch)
    broken = {x.promise.metric: x for x in network.promised}
    for metric, stages in (("ttft_s", {PREFILL}), ("tpot_s", {DECODE}), ("deadline_s", {PREFILL, DECODE})):
        cuts = {}
        of = broken[metric]
        verdict = Verdict(of.promise, "broken", 1.1 * of.promise.at_most_s, 100)
        rounds.add_cuts(cuts, [_JudgedPromise("always", of, verdict, network)])
        less = cut(loose, [*cuts.values()])
        changed = less.points.rho < loose.points.rho
        assert set(less.points.stage[changed].tolist()) == stages
        assert changed.sum() < (loose.points.stage == DECODE).sum()
        assert all(0.3 < x.keep < 1.0 and not x.forbidden for x in cuts.values())


def test_pairs_of_a_looser_model_keep_its_deadlines(apart):
    """The tables of a pass know that their deadlines are longer; those without stages stay so."""
    loose = FleetRounds(apart, build_tables(apart)).tables(2.0)
    assert loose.deadlines.tolist() == [24.0, 24.0] and loose.of_demands([0]).deadlines.tolist() == [24.0]
    every = optmodels.load(APART_CERTIFIED | {"deployment": {"stages": ["both", "prefill", "decode"]}})
    assert (FleetRounds(every, build_tables(every).alone()).tables(2.0).points.stage == BOTH).all()


def test_the_check_knows_which_line_promises_what(apart, solved_apart):
    plan = copy.deepcopy(solved_apart.plan)
    prefill, *_, decode = plan["certification"]["promises"]
    prefill["deployment"] = decode["deployment"]
    assert "certification: the promises of the plan" in [v.requirement for v in check(apart, plan).violations]
    shorter = copy.deepcopy(solved_apart.plan)
    shorter["certification"]["of_round"] = 1  # whose model kept the limits themselves
    assert any("TTFT" in v.requirement or "TPOT" in v.requirement for v in check(apart, shorter).violations)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_what_apart_saves_is_said_of_certified_fleets(apart, solved_apart, factor):
    """The better of the fleet found among all points and of the one among those alone; the bound is that of all."""
    every = optmodels.load(APART_CERTIFIED | {"deployment": {"stages": ["both", "prefill", "decode"]}})
    tables, plan = build_tables(every), FleetPlan.model_validate(solved_apart.plan)
    line = plan.periods[0].model_copy(update={"transfers": []})
    cost = factor * plan.total_usd_per_hour
    alone = plan.model_copy(update={"periods": [line], "total_usd_per_hour": cost})

    def method(problem, asked, options):
        assert options.time_limit <= 60
        of = plan if asked is tables else alone
        return Outcome("feasible", of, 50.0 if asked is tables else 70.0)

    found = beside_whole(method)(every, tables, Options(time_limit=60.0))
    assert found.bound == 50.0 and found.plan is (plan if factor > 1 else alone)
    if factor > 1:
        without = {"status": "feasible", "objective": cost, "bound": 70.0, "certified": True}
        assert found.log["stages"] == {"used": True, "certified": True, "without": without}
    else:
        assert found.log["stages"] == {"used": False, "certified": True, "none_is_better": False}
    # Where time let those alone go through looser models, the bound is theirs.
    tight = plan.total_usd_per_hour if factor < 1 else 50.0
    late = beside_whole(lambda p, asked, o: Outcome(
        "feasible", plan if asked is tables else alone, tight if asked is tables else 0.8 * cost, limit="time",
    ))(every, tables, Options())  # fmt: skip
    assert late.bound == min(tight, 0.8 * cost) and not late.log["stages"].get("none_is_better")
    bare = beside_whole(lambda *_: Outcome("feasible", plan, 50.0))(apart, build_tables(apart), Options())
    assert "stages" not in bare.log  # nothing there does both
