"""One tick: the rule against the MILP and machine-by-machine cost, limits, fallbacks, the command."""

import dataclasses
import json
import time

import numpy as np
import pytest
import yaml

import optmodels
from formulations.fleet.points import build_tables
from formulations.fleet.tick import check, judge, rule, solve
from formulations.fleet.tick.data import Tick, masses, tick_of
from formulations.fleet.tick.model import TickModel
from formulations.fleet.tick.policy import TickPolicy, ticks
from formulations.fleet.tick.state import TickState
from optmodels.autoscaling.history import History
from optmodels.autoscaling.running import Replica, run_types
from optmodels.forecast.ticks import tick_quantiles
from optmodels.loading import load
from optmodels.solver import Settings, solve_compiled


def made(types=1, workloads=1, ticks=12, seed=0, rates=None, levels=(1 / 2,), stock=None, scale=20.0, **changes):
    """A random tick of `types` machine types that all serve every workload."""
    rng = np.random.default_rng(seed)
    price, start = rng.uniform(2, 40, types), rng.integers(1, 4, types)
    usd = price * 5 / 60
    each = price[None] * rng.uniform(0.8, 1.4, (workloads, types)) / 5 if types > 1 else np.ones((workloads, 1))
    q = np.array(levels)
    if rates is None:
        middle = scale * rng.uniform(0.3, 2, workloads) * np.exp(0.2 * rng.standard_normal((ticks, workloads)))
        rates = middle[:, None, :] * (0.6 + q[None, :, None])
    start_usd = rng.uniform(0, 1, types) * price
    stop_usd, drain = rng.uniform(0, 0.2, types) * price, rng.uniform(0, 1, types)
    lead = tuple(
        rule.lead_of(int(start[g]), float(drain[g]), float(start_usd[g]), float(stop_usd[g]), float(usd[g]))
        for g in range(types)
    )
    of, use = np.repeat(np.arange(workloads), types), np.tile(np.eye(types), (workloads, 1))
    per = np.array([(usd / each[w]).min() for w in range(workloads)])
    arriving = np.zeros((ticks, types), np.int64)
    for g in range(types):
        arriving[rng.integers(0, start[g]), g] = rng.integers(0, 3)
    tick = Tick(
        tick_min=5.0, workloads=tuple(f"w{i}" for i in range(workloads)),
        machines=tuple((f"m{g}", "", "on_demand") for g in range(types)), usd=usd, lead=lead, drain=drain,
        start_usd=start_usd, stop_usd=stop_usd, ready=rng.integers(0, 6, types), arriving=arriving,
        young=np.zeros((ticks, types), np.int64), min_up=0, committed=np.zeros(types, np.int64),
        blocked=np.zeros(types, np.int64), limit_rows=np.eye(types) if stock else np.zeros((0, types)),
        limits=np.full(types, float(stock)) if stock else np.zeros(0),
        limit_names=tuple(f"stock {g}" for g in range(types)) if stock else (), of=of, use=use, rate=each.ravel(),
        names=tuple(f"p{i}" for i in range(len(of))), load=np.zeros(len(of), np.int64), serving=None,
        loading=np.zeros((ticks, len(of)), np.int64), rates=rates, levels=q, mass=masses(q), late_usd=1000 * per,
    )  # fmt: skip
    return dataclasses.replace(tick, **changes)


def path(seed, ticks=10, most=6):
    need = np.random.default_rng(seed).integers(0, most, ticks)
    return need, made(ticks=ticks, seed=seed, rates=need[:, None, None].astype(float))


@pytest.mark.parametrize("block", range(8))
def test_the_level_rule_is_the_milp_of_one_type(block):
    """200 random paths with machines on their way, start and stop costs and draining: equal cost, both verified."""
    for seed in range(25 * block, 25 * block + 25):
        need, tick = path(seed)
        counts, orders = rule.counts(need, int(tick.ready[0]), tick.arriving[:, 0], tick.lead[0])
        usd, wrong = check.cost(tick, counts[:, None], orders[:, None], np.minimum(counts, need)[:, None].astype(float))
        assert not wrong, (seed, wrong)
        compiled = TickModel(tick).compiled()
        report = solve_compiled(compiled, Settings(20, 0.0))
        assert usd == pytest.approx(report.objective, rel=1e-7, abs=1e-7), seed


@pytest.mark.parametrize("seed", range(60))
def test_the_first_step_of_the_rule_is_that_of_its_path(seed):
    need, tick = path(seed)
    counts, orders = rule.counts(need, int(tick.ready[0]), tick.arriving[:, 0], tick.lead[0])
    found = solve.decide(tick)
    assert found.source == "rule" and found.orders[0] == orders[0]
    assert found.stops[0] == max(tick.ready[0] + tick.arriving[0, 0] - counts[0], 0)


def test_the_rule_takes_milliseconds():
    tick = made(20, 10, 24, levels=(0.5, 0.8, 0.9, 0.95, 0.98), scale=200.0)
    taken = []
    for _ in range(5):
        began = time.process_time()
        solve.rule(tick)
        taken.append(time.process_time() - began)
    assert min(taken) < 0.02  # 3 ms without other load


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("stock", [None, 12])
def test_decisions_can_be_carried_out_and_cost_what_they_state(seed, stock):
    levels = (0.5, 0.8, 0.95)
    tick = made(3, 2, 8, seed, levels=levels, stock=stock, late_usd=np.full(2, 50.0), min_up=seed % 3)
    for method in ("rule", "exact"):
        found = solve.decide(tick, 5.0, method=method)
        assert check.check(tick, found.orders, found.stops) == []
    model = TickModel(tick)
    report = solve_compiled(model.compiled(), Settings(20, 1e-4))
    M, n = np.round(model.values("M", report.x)), np.round(model.values("n", report.x))
    orders = np.round(model.o.of(report.x)).reshape(M.shape)
    usd, wrong = check.cost(tick, M.astype(int), orders.astype(int), n)
    assert not wrong and usd == pytest.approx(report.objective, rel=1e-6)
    if found.bound is not None:
        assert found.bound <= report.objective - solve.unavoidable(tick) + 1e-6 * abs(usd)
        assert found.gap <= 0.2


def test_a_large_tick_is_proved_in_a_second():
    tick = made(20, 10, 24, levels=(0.5, 0.8, 0.9, 0.95, 0.98), stock=60, scale=200.0, seed=3)
    per = tick.late_usd / 1000
    tick = dataclasses.replace(tick, late_usd=50 * per)
    began = time.process_time()
    found = solve.decide(tick, 60.0)
    assert found.source in ("rounded", "exact") and found.gap <= 0.02
    assert time.process_time() - began < 2  # 0.2 s without other load


def test_limits_hold_and_fallbacks_name_themselves():
    tick = made(2, 1, 8, 1, scale=200.0)
    assert check.check(tick, np.array([0, 0]), tick.ready + 1)
    few = solve.decide(dataclasses.replace(tick, max_changes=3.0), 5.0)
    assert few.orders.sum() + few.stops.sum() <= 3
    blocked = solve.decide(dataclasses.replace(tick, blocked=np.array([3, 3])), 0.0)
    assert blocked.orders.sum() == 0 and blocked.source == "rule" and blocked.why == "no time for a solver"
    kept = solve.decide(dataclasses.replace(tick, committed=tick.ready, rates=tick.rates * 0), 5.0, method="exact")
    assert (kept.machines[0] >= tick.ready).all() and kept.stops.sum() == tick.arriving[0].sum()
    broken = dataclasses.replace(tick, rate=tick.rate * np.nan)
    last = solve.decide(broken, 5.0, {"orders": {"m0||on_demand": 2}, "stops": {}})
    assert last.source == "last" and last.orders.tolist() == [2, 0]
    assert check.check(dataclasses.replace(tick, young=np.tile(tick.ready, (8, 1))), np.zeros(2, int), np.array([1, 0]))


def test_expected_shortage_covers_the_order_quantile():
    """With the default cost of late requests the MILP's capacity is about the newsvendor's quantile."""
    levels = tuple(np.linspace(0.05, 0.99, 48))
    q = np.array(levels)
    rates = np.repeat((1000 + 1000 * q)[None, :, None], 12, axis=0)
    tick = made(1, 1, 12, 2, rates=rates, levels=levels, start_usd=np.zeros(1), stop_usd=np.zeros(1))
    tick = dataclasses.replace(tick, late_usd=(tick.usd / tick.rate)[:1] / (1 - 0.9))
    found = solve.decide(tick, 20.0, method="exact")
    capacity = found.serving[-1] @ tick.rate
    assert capacity == pytest.approx(1900, rel=0.03)


# ------------------------------------------------------------------------------------------------------- forecast


def test_tick_quantiles_cover_and_see_nothing_after_now():
    rng = np.random.default_rng(0)
    x = 50 * np.exp(np.cumsum(0.02 * rng.standard_normal(6000)) * 0.3)
    whole = tick_quantiles(x[:4000], x[:4000], 5, 4)
    changed = x.copy()
    changed[4000:] = 1e6
    assert np.array_equal(whole, tick_quantiles(changed[:4000], changed[:4000], 5, 4))
    hits = []
    for n in range(4000, 5900, 37):
        q = tick_quantiles(x[:n], x[:n], 5, 2, (0.5, 0.9))
        hits.append([x[n + 5 * h : n + 5 * h + 5].max() <= q[h, 1] for h in range(2)])
    assert 0.78 <= np.mean(hits) <= 0.97


def test_outages_are_not_forecast_errors():
    x = np.full(3000, 10.0)
    x[1000:1100] = np.nan
    q = tick_quantiles(x, x, 5, 3)
    assert np.allclose(q, 10.0)


# -------------------------------------------------------------------------------------------------------- command


@pytest.fixture
def files(folder):
    instance = {
        "formulation": "fleet", "schema": 1, "name": "two",
        "workloads": [{"name": "chat", "buckets": [{"name": "all", "requests_per_s": 30}]},
                      {"name": "code", "buckets": [{"name": "all", "requests_per_s": 10}]}],
        "points": [
            {"name": "a", "machine": "big", "usd_per_hour": 30, "requests_per_s": {"chat/all": 10, "code/all": 4}},
            {"name": "b", "machine": "small", "usd_per_hour": 4, "requests_per_s": {"chat/all": 1, "code/all": 0.5}},
        ],
        "stock": [{"machine": "big", "at_most": 6}],
    }  # fmt: skip
    state = {
        "schema": 1, "at": "2026-11-27T10:05:00Z", "change": {"min_up_min": 10},
        "lead_times": [{"machine": "big", "start_min": 10}, {"machine": "*", "start_min": 5}],
        "machines": [{"machine": "big", "ready": 4, "ages_min": [600, 600, 90, 3]},
                     {"machine": "small", "ready": 9, "starting": [{"count": 2, "ready_in_min": 3}]}],
    }  # fmt: skip
    (folder / "two.yaml").write_text(yaml.safe_dump(instance))
    (folder / "running.yaml").write_text(yaml.safe_dump(state))
    rng = np.random.default_rng(0)
    rows = [f"{60 * t},{w},{int(60 * b * (1 + 0.4 * np.sin(t / 230)) * rng.normal(1, 0.05))}"
            for t in range(1500) for w, b in (("chat", 30), ("code", 10))]  # fmt: skip
    (folder / "h.csv").write_text("time,workload,requests\n" + "\n".join(rows))
    return folder


def test_a_tick_from_files_and_the_next_one(files, cli):
    asked = ["replan", "two.yaml", "--history", "h.csv", "--forecast-method", "last_value"]
    done = cli(*asked, "--state", "running.yaml", "--out", "o", "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert found["tick"]["source"] in ("rounded", "exact") and found["tick"]["gap"] <= 0.05
    assert all(x["reason"] for what in ("orders", "stops", "kept_idle") for x in found[what])
    big = sum(x["count"] for x in found["orders"] if x["machine"] == "big")
    assert 4 + big <= 6
    ordered = sum(x["count"] for x in found["orders"])
    state = yaml.safe_load((files / "o/state.yaml").read_text())
    there = sum(m["ready"] + sum(s["count"] for s in m["starting"]) for m in state["machines"])
    assert there == 15 + ordered - sum(x["count"] for x in found["stops"])
    assert state["at"].startswith("2026-11-27T10:10")
    done = cli(*asked, "--state", "o/state.yaml")
    assert done.status == 0 and "Decided by: " in done.out
    assert cli(*asked, "--state", "running.yaml", "--out", "o").status == 2  # nothing is overwritten


def test_a_forecast_file_in_place_of_a_history(files, cli):
    rows = [f"{300 * t},{w},{q},{2 * q}" for t in range(8) for w, q in (("chat", 20), ("code", 5))]
    (files / "f.csv").write_text("time,workload,q0.5,q0.98\n" + "\n".join(rows))
    done = cli("replan", "two.yaml", "--state", "running.yaml", "--forecast", "f.csv", "--method", "rule", "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert found["tick"]["source"] == "rule" and found["tick"]["horizon"] == 8
    assert found["path"][0]["forecast"]["chat"] == {"q0.5": 20.0, "q0.98": 40.0}


def test_mistakes_of_state_and_forecast(files, cli):
    asked = ["replan", "two.yaml", "--state", "running.yaml"]
    (files / "one.csv").write_text("time,requests\n0,1\n60,2\n")
    (files / "bad.csv").write_text("time,workload,mean\n0,chat,1\n")
    (files / "bad.yaml").write_text(yaml.safe_dump({"schema": 1, "machines": [{"machine": "huge", "ready": 1}]}))
    (files / "ages.yaml").write_text(
        yaml.safe_dump({"schema": 1, "machines": [{"machine": "big", "ready": 2, "ages_min": [1]}]})
    )
    rows = [f"{300 * t},{w},20,30" for t in range(2) for w in ("chat", "code")]
    (files / "short.csv").write_text("time,workload,q0.5,q0.9\n" + "\n".join(rows))
    for arguments, expected in (
        ([*asked, "--forecast", "short.csv"], "at least 3 ticks"),
        ([*asked, "--history", "h.csv", "--ticks", "2"], "at least 3 ticks"),
        (asked, "one of the two"), ([*asked, "--history", "one.csv"], "a column with chat, code"),
        ([*asked, "--forecast", "bad.csv"], "q0.5"), ([*asked, "--history", "h.csv", "--method", "magic"], "rule"),
        (["replan", "two.yaml", "--state", "bad.yaml", "--history", "h.csv"], "machines[0].machine"),
        (["replan", "two.yaml", "--state", "ages.yaml", "--history", "h.csv"], "2 ages"),
    ):  # fmt: skip
        done = cli(*arguments)
        assert done.status == 2 and expected in done.err, (arguments, done.err)


def test_a_history_of_several_workloads_serves_a_problem_of_one(files):
    whole = yaml.safe_load((files / "two.yaml").read_text())
    whole["workloads"] = whole["workloads"][:1]
    for point in whole["points"]:
        del point["requests_per_s"]["code/all"]
    found = optmodels.replan(whole, state=files / "running.yaml", history=files / "h.csv", time_limit=0.0)
    assert set(found["path"][0]["capacity"]) == {"chat"}


def test_model_loads_take_their_time(files):
    """A machine changes its workload in the load time, without a new start."""
    problem = load(files / "two.yaml")
    state = TickState.model_validate({
        "schema": 1, "lead_times": [{"machine": "*", "start_min": 20, "load_min": 5}],
        "machines": [{"machine": "big", "ready": 4}],
        "deployments": [{"workload": "chat", "machine": "big", "count": 4}],
    })  # fmt: skip
    rates = np.zeros((8, 1, 2))
    rates[:, 0, 0], rates[:, 0, 1] = 20.0, 8.0  # two of the four serve code from now on
    tick = tick_of(build_tables(problem), state, rates, (0.5,), ["chat", "code"])
    found = solve.decide(tick, 20.0, method="exact")
    code = found.serving[:, tick.of == 1] @ tick.rate[tick.of == 1]
    assert code[0] == 0.0 and code[1] == pytest.approx(8.0) and found.orders.sum() == 0


# ------------------------------------------------------------------------------------------- pitfalls of re-planning


def test_shortage_that_no_order_can_cure_is_in_no_gap():
    """Before the first arrival nothing helps: a rate ten times as large there leaves objective and gap as they are."""
    rates = np.full((12, 1, 1), 20.0)
    found = []
    for early in (20.0, 2000.0):
        rates[0, 0, 0] = early
        tick = made(2, 1, 12, 4, rates=rates.copy(), arriving=np.zeros((12, 2), np.int64))
        tick = dataclasses.replace(tick, ready=np.array([1, 0]), late_usd=np.full(1, 50.0))
        found.append(solve.decide(tick, 10.0, method="exact"))
    assert found[0].objective == pytest.approx(found[1].objective, rel=0.01)
    assert max(x.gap for x in found) <= 0.011


def test_lead_times_are_rounded_up_to_ticks(files):
    tables = build_tables(load(files / "two.yaml"))
    for minutes, tick_count in ((5, 1), (5.1, 2), (6, 2), (10, 2), (11, 3)):
        state = TickState.model_validate({"schema": 1, "lead_times": [{"machine": "*", "start_min": minutes}]})
        tick = tick_of(tables, state, np.ones((8, 1, 2)), (0.5,), ["chat", "code"])
        assert {x.start for x in tick.lead} == {tick_count}


def test_committed_machines_cost_nothing_and_are_not_stopped():
    tick = made(2, 1, 8, 6, rates=np.full((8, 1, 1), 1e-3), arriving=np.zeros((8, 2), np.int64))
    tick = dataclasses.replace(tick, ready=np.array([3, 2]), committed=np.array([3, 2]))
    found = solve.decide(tick, 5.0, method="exact")
    assert found.stops.sum() == 0 and found.orders.sum() == 0 and found.objective == pytest.approx(0.0, abs=1e-6)


# ------------------------------------------------------------------------------------ candidates and the backtest


def test_sampled_paths_have_the_forecasts_quantiles():
    levels = (0.1, 0.5, 0.9)
    tick = made(1, 1, 6, 0, rates=np.tile(np.array([10.0, 20.0, 40.0])[None, :, None], (6, 1, 1)), levels=levels)
    drawn = judge.paths(tick, 4000)
    assert np.quantile(drawn, 0.5, axis=0) == pytest.approx(np.full(6, 20.0), rel=0.05)
    assert np.corrcoef(drawn[:, 2], drawn[:, 3])[0, 1] > 0.75
    assert drawn.min() == 10.0 and drawn.max() == 40.0


def test_a_rollout_on_a_constant_path_costs_what_the_check_counts():
    """One type, a constant rate, no error: nothing changes after now, so the cost is that of the path of counts."""
    need = 4
    for have, order in ((4, 0), (1, 3)):
        tick = made(1, 1, 8, 3, rates=np.full((8, 1, 1), float(need)), arriving=np.zeros((8, 1), np.int64))
        tick = dataclasses.replace(tick, ready=np.array([have]), late_usd=np.array([7.0]))
        start = tick.lead[0].start
        machines = np.where(np.arange(8) < start, have, have + order)[:, None]
        orders = np.zeros((8, 1), np.int64)
        orders[0] = order
        usd, wrong = check.cost(tick, machines, orders, np.minimum(machines, need).astype(float))
        got = judge.rollout(tick, np.array([order]), np.array([0]), np.full((5, 8), float(need)))
        assert not wrong and got == pytest.approx(usd, rel=1e-9)


def test_a_candidate_that_leaves_requests_late_loses():
    tick = made(2, 1, 10, 5, levels=(0.5, 0.9), arriving=np.zeros((10, 2), np.int64))
    tick = dataclasses.replace(tick, ready=np.zeros(2, np.int64))
    assert judge.can_judge(tick)
    found = solve.decide(tick, 5.0, method="exact", judged=20)
    assert found.source != "none" and found.orders.sum() > 0 and "sampled paths" in found.why
    assert check.check(tick, found.orders, found.stops) == []


def of_types(bins, train_min=1440):
    fleet = {
        "formulation": "fleet", "schema": 1, "name": "types",
        "workloads": [{"name": "chat", "buckets": [{"name": "all", "requests_per_s": 18}]}],
        "points": [
            {"name": "a", "machine": "A", "usd_per_hour": 10, "requests_per_s": {"chat/all": 5}},
            {"name": "b", "machine": "B", "usd_per_hour": 3, "requests_per_s": {"chat/all": 1}},
            {"name": "c", "machine": "C", "usd_per_hour": 90, "requests_per_s": {"chat/all": 1}},
        ],
    }  # fmt: skip
    history = History(bins)
    types, policies = ticks(load(fleet), "chat", Replica(5, 10, 5), history, forecast="last_value", train_min=train_min)
    return history, types, policies


def test_ticks_see_nothing_of_the_future_and_between_them_the_rule_only_orders():
    """Two rates: the program every five minutes, the rule each minute; with several types it stops nothing."""
    t = np.arange(6 * 185) / 1800
    bins = np.random.default_rng(3).poisson(400 * (1 + 0.5 * np.sin(6 * t))).astype(float)
    changed = bins.copy()
    changed[6 * 170 :] = 9999.0
    for name in ("replan", "replan_objective"):
        runs = []
        for b in (bins, changed):
            history, types, policies = of_types(b, train_min=130)
            assert [x.requests_per_s for x in types] == [5.0, 1.0]  # the third costs nine times as much a request
            runs.append(run_types(policies[name], history, types if name == "replan_objective" else types[:1]))
        np.testing.assert_array_equal(runs[0].ready[:170], runs[1].ready[:170])
        np.testing.assert_array_equal(runs[0].paid[:170], runs[1].paid[:170])
        late = runs[0].late[150:].sum() / runs[0].requests[150:].sum()
        assert late < 0.1
        fewer = np.flatnonzero(np.diff(runs[0].ready[121:]) < 0) + 122
        if name == "replan_objective":
            assert (fewer % 5 == 0).all()


def test_a_jump_between_ticks_is_ordered_at_the_next_minute():
    """A controller that ticks every five minutes alone would see it up to four minutes later."""
    bins = np.full(6 * 160, 100.0)
    bins[6 * 141 :] = 600.0
    history, types, policies = of_types(bins, train_min=130)
    both = policies["replan_objective"]
    slow = TickPolicy(both.tick, None, both.forecasts, "exact")
    orders = [run_types(x, history, types).changes[136:150] for x in (both, slow)]
    first = [136 + int(np.flatnonzero(x)[0]) for x in orders]
    assert first[0] == 142 and first[1] == 145


def test_a_backtest_of_an_instance_has_the_tick(files, cli):
    n = np.random.default_rng(0).poisson(1200, 300)
    (files / "one.csv").write_text("time,requests\n" + "\n".join(f"{60 * t},{k}" for t, k in enumerate(n)))
    one = yaml.safe_load((files / "two.yaml").read_text())
    one["workloads"], one["points"] = one["workloads"][:1], one["points"]
    for point in one["points"]:
        point["requests_per_s"] = {"chat/all": point["requests_per_s"]["chat/all"]}
    one["points"][1]["usd_per_hour"] = 3.2
    (files / "one.yaml").write_text(yaml.safe_dump(one))
    asked = ["backtest", "one.yaml", "--history", "one.csv", "--train", "150m", "--judge", "150m"]
    done = cli(*asked, "--methods", "static,replan,replan_types", "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    rows = {r["method"]: r for r in found["rows"]}
    assert set(rows) == {"static", "replan", "replan_types"} and rows["replan"]["attained"] > 0.9
    assert found["sources"]["replan"] and len(found["types"]) == 2
    done = cli("backtest", "--replica", "5:10", *asked[2:], "--methods", "replan")
    assert done.status == 2 and "replan" in done.err
