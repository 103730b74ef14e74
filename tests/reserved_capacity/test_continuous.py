"""Throughput of machines that batch continuously: brute force over levels, reach, the check, what is refused."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import numpy as np
import pytest
from best_steps import with_best
from scipy.optimize import brentq, minimize_scalar

import optmodels
from formulations.reserved_capacity.check import check
from formulations.reserved_capacity.problem import ReservedCapacity
from formulations.reserved_capacity.replay import WARM_UP, RegionReplayOptions, engine_of, replay
from formulations.reserved_capacity.throughput import hardware_of, on_engines
from optmodels import catalog, formulation
from optmodels.engine.continuous import levels_of_loads, loads_of_levels, seconds_and_quantile
from optmodels.engine.costs import engine_costs
from optmodels.errors import InputError, UnattainableError
from optmodels.plans.engines import Request, at_level, capacities, latencies

SLO = {
    "ttft_s": {"at_most": 0.8, "percentile": 0.9}, "tpot_s": {"at_most": 0.1, "percentile": 0.9}, "queue_s": 0.1,
}  # fmt: skip


def instance(slo: dict[str, Any] = SLO, rtt_ms: float = 90.0, **changes: Any) -> ReservedCapacity:
    day = {"west": [20.0, 60.0, 10.0], "east": [60.0, 15.0, 30.0]}
    return ReservedCapacity.model_validate({
        "formulation": "reserved_capacity", "schema": 1, "name": "two",
        "regions": [{"region": r, "utc_offset_h": 0} for r in day],
        "network": {"rtt_ms": {"west": {"east": rtt_ms}}, "local_rtt_ms": 5.0},
        "services": [{
            "service": "chat", "slo": slo,
            "demand": {"kind": "inline", "unit": "requests_per_s", "by_region": day},
            "workload": {"model": "llama-3.1-8b", "input_tokens": 512, "output_tokens": 128},
        }],
        "machines": [
            {"machine": "box", "gpu": "l40s", "gpu_count": 2, "prices": {"on_demand": 3.0, "reserved_1y": 2.0}},
        ],
        "terms": ["reserved_1y", "on_demand"], "serving": "continuous", "latency": {"model": "roofline"},
    } | changes)  # fmt: skip


def most(problem: ReservedCapacity, away_s: float = 0.005) -> tuple[float, float, float]:
    """Most requests/s of a machine for users `away_s` away, level by level in plain numbers, its TTFT and its E2E.

    Levels are those of loads, the best one, and the best within reach, each with the longest wait within queue and
    deadline. Of those that carry as much the shorter request.
    """
    service, level = problem.services[0], problem.level()
    assert service.workload is not None and level is not None and level.engine is not None
    gpu, gpus, vram = hardware_of(problem.machines[0])
    of, limits, best = on_engines(service, level), level.engine, (0.0, 0.0, 0.0)
    within, quantile = seconds_and_quantile(service.slo.deadline_s)
    for tp, n in itertools.product((1, 2), limits.choices):
        told = limits.choosing(n)
        e = engine_costs(of, told, catalog.gpus()[gpu or ""], gpu or "", tp, vram)
        fixed = e.costs.fixed_s + e.costs.prompt_step_s
        request = Request(512, 512, 128, 1.0)

        def seen(t: float, of_wait: float | None, told: Any = told, e: Any = e, request: Any = request, n: int = n,
                 tp: int = tp) -> tuple[float, float, float, float, float] | None:  # fmt: skip
            """Requests/s, TTFT, TPOT, E2E, and how far beyond the limits for users that far away."""
            at = at_level(told, e.costs, e.kv_tokens, {"": request}, t)
            if at is None:
                return None
            (first, tpot, _), (later, _, _) = (
                latencies(at, at.requests[""], t, wait, of_wait, n, e.slower, e.costs.request_s, (0.9, 0.9, None))
                for wait in (0.0, 1.0)
            )
            wait = 0.1 / (later - first)
            whole, longer = (
                latencies(at, at.requests[""], t, w, of_wait, n, e.slower, e.costs.request_s, (0.9, 0.9, quantile))[2]
                for w in (0.0, 1.0)
            )
            if math.isfinite(within):
                wait = min(wait, (within - away_s - whole) / (longer - whole))
            late = max(away_s + 0.1 + first - 0.8, 1e-9 - wait, 10 * (tpot - 0.1))
            wait = max(wait, 1e-9)
            rate = gpus // tp / max(capacities(at, t, wait, of_wait, n)[""].values())
            return rate, first, tpot, whole + wait * (longer - whole), late

        for of_wait in (4.0, None):
            steps = sorted(with_best(fixed / (1 - loads_of_levels()), told, e, request, 0.1, 0.9))

            def carried(t: float, of_wait: float | None = of_wait, seen: Any = seen) -> float:
                x = seen(t, of_wait)
                return 0.0 if x is None or x[4] > 0.0 else float(x[0])

            late = [x[4] if (x := seen(t, of_wait)) else -1.0 for t in steps]
            for (t, before), (u, after) in itertools.pairwise(list(zip(list(steps), late, strict=True))):
                if -1.0 < before <= 0.0 < after:
                    root = brentq(lambda t, of_wait=of_wait: seen(t, of_wait)[4], t, u)  # type: ignore[index]
                    steps.append(root * (1 - 1e-9))
            steps.sort()
            top = max(range(len(steps)), key=lambda i: carried(steps[i]))
            for low, high in itertools.pairwise(steps[max(top - 1, 0) : top + 2]):
                steps.append(float(minimize_scalar(lambda t: -carried(t), bounds=(low, high), method="bounded").x))
            for t in steps:
                found = seen(t, of_wait)
                if found is not None and found[4] <= 0.0:
                    best = max(best, (found[0], -found[3], found[1]))
    return best[0], best[2], -best[1]


DRAFTS = {
    "max_num_seqs": 64, "max_num_batched_tokens": 4096,
    "speculation": [{"drafts": 3, "acceptance": 0.7, "draft": "qwen3-0.6b"}],
}  # fmt: skip


LATE = SLO | {"deadline_s": {"at_most": 5.0, "percentile": 0.95}}


@pytest.mark.parametrize(
    ("slo", "engine"),
    [(SLO, {}), (SLO, DRAFTS), (LATE, {}), (LATE, DRAFTS), (SLO | {"deadline_s": 4.0}, {})],
    ids=["plain", "drafts", "deadline", "deadline, drafts", "mean deadline"],
)
def test_a_machine_serves_what_brute_force_finds(slo: dict[str, Any], engine: dict[str, Any]) -> None:
    problem = instance(slo, engine=engine)
    case = problem.resolve()
    for away, away_s in ((0, 0.005), (1, 0.09)):  # from west to west and to east
        rate, first, whole = most(problem, away_s)
        x = case.level[0, 0, away, 0]
        if problem.services[0].slo.deadline_s is not None:
            assert case.e2e_s_at[0, 0, x] == pytest.approx(whole, rel=2e-4)
        assert case.pair_rps[0, 0, away, 0] == pytest.approx(rate, rel=2e-4)  # the best level is found by halving
        assert case.prefill_s_at[0, 0, x] == pytest.approx(first, rel=2e-4)


def test_a_level_that_reaches_more_users_wins() -> None:
    near = instance().resolve()
    prefill_s = float(near.prefill_s_at[0, 0, 0])
    far = instance(machines=[
        {"machine": "box", "gpu": "l40s", "gpu_count": 2, "regions": ["west"], "prices": {"reserved_1y": 2.0}}
    ], terms=["reserved_1y"], rtt_ms=1000 * (0.8 - 0.1 - 0.6 * prefill_s)).resolve()  # fmt: skip
    assert far.prefill_s_at[0, 0, 0] <= 0.6 * prefill_s
    assert far.requests_per_s[0, 0] < near.requests_per_s[0, 0]
    assert far.allowed.any(axis=(2, 3)).all()


def test_a_deadline_buys_speed_and_reach_with_throughput() -> None:
    slo = LATE | {"ttft_s": SLO["ttft_s"] | {"at_most": 2.0}}  # the deadline binds first
    without = {k: v for k, v in slo.items() if k != "deadline_s"}
    none, loose, late = (instance(x).resolve() for x in (without, without | {"deadline_s": 1000.0}, slo))
    assert np.array_equal(none.requests_per_s, loose.requests_per_s)
    assert np.array_equal(none.allowed, loose.allowed)
    assert late.requests_per_s[0, 0] < none.requests_per_s[0, 0]
    # Machines stand in both regions; one serves the other at a level of its own, which the deadline slows.
    near, far = (instance(slo, rtt_ms=ms).resolve() for ms in (5.0, 1500.0))
    assert near.rps_at.shape == (1, 1, 1) and near.allowed.all() and far.allowed.all()
    assert (far.level[0, :, :, 0] == [[0, 1], [1, 0]]).all()
    assert far.pair_rps[0, 0, 1, 0] < 0.9 * far.pair_rps[0, 0, 0, 0] == 0.9 * near.pair_rps[0, 0, 1, 0]


@pytest.mark.parametrize("serving", ["continuous", "static"])
@pytest.mark.parametrize("key", ["ttft_s", "deadline_s", "tpot_s"])
def test_a_looser_limit_takes_no_throughput_between_any_two_regions(key: str, serving: str) -> None:
    """No pair of users and machines, near or far, is served by fewer requests/s of a machine."""
    rng, several = np.random.default_rng(3), 0
    for _ in range(12):
        slo = copy.deepcopy(LATE)
        slo["ttft_s"]["at_most"], slo["deadline_s"]["at_most"] = rng.uniform(0.3, 1.0), rng.uniform(3.0, 8.0)
        slo["tpot_s"]["at_most"] = rng.uniform(0.03, 0.1)
        looser, rtt_ms = copy.deepcopy(slo), rng.uniform(20.0, 900.0)
        looser[key]["at_most"] *= rng.choice([1.01, 1.1, 1.5])
        if serving == "static":
            slo, looser = ({k: x["at_most"] if isinstance(x, dict) else x for k, x in y.items()} for y in (slo, looser))
        try:
            tight, loose = (instance(x, rtt_ms=rtt_ms, serving=serving).resolve() for x in (slo, looser))
        except UnattainableError:
            continue
        several += tight.rps_at.shape[2] > 1
        assert (loose.pair_rps >= tight.pair_rps * (1 - 1e-12)).all()
    assert several > 0


def test_a_longest_wait_that_is_relaxed_takes_no_reach_from_a_deadline() -> None:
    """The wait was as long as `queue_s` and `longest_wait_s` allowed: the deadline was missed, "infeasible"."""
    slo = LATE | {"ttft_s": {"at_most": 4.0, "percentile": 0.9}, "queue_s": 3.0, "deadline_s": 2.5}
    before = np.zeros((1, 1, 2, 1))
    for wait_s in (0.02, 0.1, 0.5, 30.0):
        found = instance(slo, rtt_ms=150.0, engine={"longest_wait_s": wait_s}).resolve()
        assert (found.pair_rps > 0.0).all() and (found.pair_rps >= before * (1 - 1e-12)).all(), wait_s
        before = found.pair_rps


ALONE = [{"machine": "box", "gpu": "l40s", "gpu_count": 2, "regions": ["west"], "prices": {"reserved_1y": 2.0}}]


def test_a_machine_has_a_level_for_each_distance_and_the_check_recomputes_them() -> None:
    """All machines in the west: its own users at a fast level, those of the east at a slower one that reaches them."""
    slo = LATE | {"ttft_s": SLO["ttft_s"] | {"at_most": 2.0}}
    problem = instance(slo, machines=ALONE, terms=["reserved_1y"], rtt_ms=1500.0)
    found = optmodels.solve(problem)
    assert found.check is not None and found.check.ok
    near, far = found.plan["serving"]
    if near["reach_ms"] > far["reach_ms"]:
        near, far = far, near
    assert 5.0 <= near["reach_ms"] < 1500.0 <= far["reach_ms"]
    assert near["requests_per_s"] > 1.1 * far["requests_per_s"]
    hours = zip([20.0, 60.0, 10.0], [60.0, 15.0, 30.0], strict=True)
    need = max(w / near["requests_per_s"] + e / far["requests_per_s"] for w, e in hours)
    assert sum(x["count"] for x in found.plan["reservations"]) == math.ceil(need)
    inlined = ReservedCapacity.model_validate(problem.inline().model_dump(mode="json", by_alias=True))
    assert check(inlined, found.plan).ok and optmodels.solve(inlined).plan["serving"] == found.plan["serving"]
    for change in ("reach_ms", "requests_per_s", "ttft_s", "replicas_per_machine"):
        for line in (0, 1):
            wrong = copy.deepcopy(found.plan)
            wrong["serving"][line][change] *= 2
            assert not check(problem, wrong).ok, change
    for serving in ([near], [far], [near, near, far], [near, far | {"reach_ms": None}]):
        wrong = copy.deepcopy(found.plan) | {"serving": serving}
        assert not check(problem, wrong).ok
    step = copy.deepcopy(found.plan)
    step["serving"][0]["engine"]["step_s"] = step["serving"][1]["engine"]["step_s"]
    assert not check(problem, step).ok
    fewer = copy.deepcopy(found.plan)
    fewer["reservations"][0]["count"] -= 1
    assert any("demand is served" in v.requirement for v in check(problem, fewer).violations)
    options = RegionReplayOptions(seconds=60.0)
    assert replay(problem, found.plan, None, options)["services"][0]["replicas"] == sum(
        x["count"] * near["replicas_per_machine"] for x in found.plan["reservations"]
    )
    assert formulation.get("reserved_capacity").deployments(problem, found.plan).notes[-1].startswith("box serves")


def test_a_plan_that_is_late_is_noticed() -> None:
    """All machines in the west: with a deadline of 5 ms less than the way takes the east is out of reach."""
    found = optmodels.solve(instance(LATE, machines=ALONE, terms=["reserved_1y"]))
    assert found.check is not None and found.check.ok
    (note,) = found.report["notes"]
    assert note.startswith("chat: percentiles are computed for prompts of exactly 512 and answers of exactly 128 ")
    (promise,) = found.report["promises"]
    assert promise["e2e_s"] <= 5.0 == promise["limits"]["e2e"]["at_most_s"]
    inlined = instance(LATE, machines=ALONE, terms=["reserved_1y"]).inline().model_dump(mode="json", by_alias=True)
    serves = inlined["machines"][0]["serves"]["chat"][0]
    assert serves["e2e_s"] + 0.09 == pytest.approx(promise["e2e_s"])
    serves["e2e_s"] += 5.0 - promise["e2e_s"] + 0.005
    inlined["services"][0]["unserved_usd_per_request"] = 1.0
    late = check(ReservedCapacity.model_validate(inlined), found.plan)
    assert any("demand is served" in v.requirement for v in late.violations)


def test_means_say_nothing_of_lengths() -> None:
    found = optmodels.solve(instance({"ttft_s": 0.8, "tpot_s": 0.1, "queue_s": 0.1, "deadline_s": 5.0}))
    assert found.report is not None and found.report["notes"] == []


def test_the_replay_counts_who_is_in_time() -> None:
    problem = instance(LATE)
    plan = optmodels.solve(problem).plan
    assert plan is not None
    requests: dict[str, Any] = {}
    options = RegionReplayOptions(seconds=60.0, keep=requests.__setitem__)
    for at_most in (4.0, 5.0, 100.0):  # each has engines at a level of its own
        late = instance(LATE | {"deadline_s": {"at_most": at_most, "percentile": 0.95}})
        share = replay(late, plan, None, options)["policies"]["skylb"]["within_deadline"]
        seen = requests["chat"]
        counted = np.asarray(seen["arrival_s"]) >= WARM_UP * options.seconds
        within = (np.asarray(seen["e2e_s"]) <= at_most) & ~np.asarray(seen["refused"], dtype=bool)
        assert share == pytest.approx(within[counted].mean()), at_most
        assert (share == 1.0) == (at_most == 100.0)
    assert "within_deadline" not in replay(instance(), plan, None, options)["services"][0]


def test_a_deadline_that_nothing_keeps_is_said() -> None:
    with pytest.raises(UnattainableError, match=r"services\[0\]\.slo\.deadline_s.*a deadline that some machine can"):
        instance(SLO | {"deadline_s": 0.3}).resolve()


def test_stated_rates_state_the_time_of_a_request() -> None:
    box: dict[str, Any] = {
        "machine": "box", "prices": {"on_demand": 3.0, "reserved_1y": 2.0},
        "serves": {"chat": {"requests_per_s": 3.0}},
    }  # fmt: skip
    with pytest.raises(InputError, match=r"machines\[0\]\.serves\.chat\.e2e_s.*the service has a deadline_s"):
        instance({"ttft_s": 0.8, "deadline_s": 4.0}, machines=[box], serving="static").resolve()
    box["serves"]["chat"]["e2e_s"] = 3.95
    case = instance({"ttft_s": 0.8, "deadline_s": 4.0}, machines=[box], serving="static").resolve()
    assert case.allowed[0, :, :, 0].tolist() == [[True, False], [False, True]]  # 5 ms at home, 90 ms elsewhere
    box["serves"]["chat"]["e2e_s"] = 3.996
    with pytest.raises(UnattainableError, match=r"deadline_s \(west\).*is 4 s"):
        instance({"ttft_s": 0.8, "deadline_s": 4.0}, machines=[box], serving="static").resolve()


def test_static_batches_are_those_within_the_deadline() -> None:
    """By hand from the machine's own batches: the largest of those whose requests end in time."""
    slo = {"ttft_s": 0.8, "tpot_s": 0.1}
    free = instance(slo, serving="static")
    tight = instance(slo | {"deadline_s": 2.5}, serving="static")
    whole, short = (p.resolve().derived(0, 0) for p in (free, tight))
    assert whole is not None and short is not None
    assert whole.e2e_s + 0.005 > 2.5 >= short.e2e_s + 0.005  # 5 ms to the machines at home
    assert short.batch < whole.batch and short.rps < whole.rps
    # B/(B·prefill + 127·TPOT) requests/s of each replica, and prefill + 127·TPOT of a request
    decode = short.e2e_s - short.prefill_s
    assert short.rps == pytest.approx(short.replicas * short.batch / (short.batch * short.prefill_s + decode))
    less = instance(slo | {"deadline_s": short.e2e_s + 0.005 - 1e-6}, serving="static").resolve().derived(0, 0)
    assert less is not None and less.rps < short.rps
    loose = instance(slo | {"deadline_s": "1e6 s"}, serving="static").resolve().derived(0, 0)
    assert loose is not None and (loose.batch, loose.tp, loose.rps) == (whole.batch, whole.tp, whole.rps)


def test_plans_are_checked_and_say_how_to_run_the_engines() -> None:
    problem = instance()
    found = optmodels.solve(problem)
    assert found.check is not None and found.check.ok
    (line,) = found.plan["serving"]
    assert max(line["engine"]["capacities"].values()) == pytest.approx(1.0)
    made = formulation.get("reserved_capacity").deployments(problem, found.plan)
    assert {d.max_num_batched_tokens for d in made.deployments} == {line["engine"]["max_num_batched_tokens"]}
    bought = {(p.region, p.count) for p in made.purchases}
    assert {(d.region, d.machines) for d in made.deployments} == bought
    for path, factor in (
        ("requests_per_s", 1.01),
        ("ttft_s", 0.9),
        ("wait_s", 0.5),
        ("tpot_s", 0.9),
        ("e2e_s", 2),
    ):
        wrong = copy.deepcopy(found.plan)
        wrong["serving"][0][path] *= factor
        assert not check(problem, wrong).ok, path
    for path in ("step_s", "wait_s", "kv_tokens"):
        wrong = copy.deepcopy(found.plan)
        wrong["serving"][0]["engine"][path] *= 1.05
        assert not check(problem, wrong).ok, path


def test_inlined_it_says_the_same() -> None:
    problem = instance()
    again = ReservedCapacity.model_validate(problem.inline().model_dump(mode="json", by_alias=True))
    assert np.array_equal(again.resolve().requests_per_s, problem.resolve().requests_per_s)
    assert optmodels.solve(again).plan["serving"] == optmodels.solve(problem).plan["serving"]


@pytest.mark.parametrize(
    ("slo", "serving", "path"),
    [
        (SLO | {"queue_s": 0.0}, "continuous", "queue_s"),
        (SLO, "static", "ttft_s"),
        ({"ttft_s": 0.8, "tpot_s": 0.1}, "continuous", "queue_s"),
        ({"ttft_s": 0.8, "tpot_s": 0.1, "deadline_s": {"at_most": 9.0, "percentile": 0.9}}, "static", "deadline_s"),
    ],
)
def test_limits_that_say_nothing_are_refused(slo: dict[str, Any], serving: str, path: str) -> None:
    with pytest.raises(InputError, match=rf"services\[0\]\.slo\.{path}"):
        instance(slo, serving=serving).resolve()


def test_engines_of_several_attention_ranks() -> None:
    """What a machine carries by brute force, the check, the export, and the replay's prompts, on which ranks wait."""
    machines = [{"machine": "box", "gpu": "h200", "gpu_count": 8, "prices": {"on_demand": 30.0, "reserved_1y": 20.0}}]
    service = instance().services[0].model_dump(mode="json", exclude_none=True) | {"workload": {
        "model": "deepseek-r1", "weights": "fp8_block", "input_tokens": 512, "output_tokens": 128,
        "attention_ranks": [8],
    }}  # fmt: skip
    problem = instance(machines=machines, services=[service])
    found = optmodels.solve(problem)
    (line,) = found.plan["serving"]
    assert (line["tensor_parallel"], line["attention_ranks"], line["replicas_per_machine"]) == (1, 8, 1)
    assert found.check is not None and found.check.ok
    level = problem.level()
    assert level is not None and level.engine is not None
    of = on_engines(problem.services[0], level)
    best, request, chosen = 0.0, Request(512, 512, 128, 1.0), 0
    for n in level.engine.choices:
        told = level.engine.choosing(n)
        e = engine_costs(of, told, catalog.gpus()["h200"], "h200", 1, 141.0, 8)
        for t in with_best(levels_of_loads([e.costs], loads_of_levels())[0], told, e, request, 0.1, 0.9):
            at = at_level(told, e.costs, e.kv_tokens, {"": request}, t, ranks=8)
            for of_wait in (4.0, None) if at is not None else ():
                (first, tpot, _), (later, _, _) = (
                    latencies(at, at.requests[""], t, wait, of_wait, n, e.slower, e.costs.request_s, (0.9, 0.9, None))
                    for wait in (0.0, 1.0)
                )
                wait = 0.1 / (later - first)
                if tpot <= 0.1 and 0.005 + 0.1 + first <= 0.8:
                    rate = 1 / max(capacities(at, t, wait, of_wait, n)[""].values())
                    if rate > best * (1 + 1e-9):  # more slots only where they carry more
                        best, chosen = rate, n
    assert line["engine"]["max_num_seqs"] == chosen
    assert line["requests_per_s"] == pytest.approx(best, rel=1e-3)
    for path, value in (("attention_ranks", 4), ("replicas_per_machine", 2), ("requests_per_s", 1.01 * best)):
        wrong = copy.deepcopy(found.plan)
        wrong["serving"][0][path] = value
        assert not check(problem, wrong).ok, path
    made = formulation.get("reserved_capacity").deployments(problem, found.plan)
    assert {(d.tensor_parallel, d.attention_ranks) for d in made.deployments} == {(1, 8)}
    choice = problem.resolve().derived(0, 0)
    assert choice is not None
    prompt = np.array([512.0])
    alone = e.costs.step_of_ranks([(prompt, 0 * prompt, np.zeros(0)), *[(np.zeros(0),) * 3] * 7])
    x = engine_of(choice, problem.services[0].workload)
    assert x.costs is not None and x.max_batch == 8 * chosen
    assert x.costs.step(prompt, 0 * prompt, np.zeros(0)) == pytest.approx(alone, rel=1e-9)
    even = np.full(64, 600.0)
    assert x.costs.step(np.zeros(0), np.zeros(0), even) == pytest.approx(
        e.costs.step_of_ranks([(np.zeros(0), np.zeros(0), even[::8])] * 8)
    )
    with pytest.raises(InputError, match=r"services\[0\]\.workload\.attention_ranks: .*static"):
        instance(machines=machines, services=[service | {"slo": {"ttft_s": 0.8, "tpot_s": 0.1}}],
                 serving="static").resolve()  # fmt: skip
