"""The independent check finds every forged figure, and instance files with mistakes are refused by name."""

from __future__ import annotations

import copy

import pytest
from fleet_cases import BASE, CONTINUOUS, DAY, MEASURED, SCARCE
from tampering import RUBBISH, leaves, other_values, replaced, value_at

import optmodels
from formulations.fleet import FORMULATION
from formulations.fleet.check import check
from optmodels.errors import InputError


@pytest.fixture(scope="module")
def solved():
    result = optmodels.solve(BASE)
    assert result.status == "optimal"
    return optmodels.load(BASE), result.plan


def test_template_solves_and_passes(solved):
    assert check(*solved).ok


FORGERIES = {
    "count": lambda d, q: q.update(deployments=q["deployments"][1:]),
    "price": lambda d, q: d["machines"][0].update(usd_per_hour_each=d["machines"][0]["usd_per_hour_each"] / 2),
    "one": lambda d, q: d.update(usd_per_hour_each=d["usd_per_hour_each"] / 2),
    "batch": lambda d, q: d.update(batch=7),
    "load level": lambda d, q: d.update(load_level=0.99),
    "share": lambda d, q: d["serves"][0].update(share=d["serves"][0]["share"] / 2),
    "ttft": lambda d, q: d["serves"][0].update(ttft_s=d["serves"][0]["ttft_s"] / 2),
    "e2e": lambda d, q: d["serves"][0].update(e2e_s=d["serves"][0]["e2e_s"] / 2),
    "alpha": lambda d, q: d["serves"][0].update(alpha=0.9),
    "wait": lambda d, q: d["serves"][0].update(wait_s=d["serves"][0]["wait_s"] + 0.5),
    "market": lambda d, q: d["machines"][0].update(market="reserved_1y"),
    "machine": lambda d, q: d["machines"][0].update(machine="g99"),
    "cap": lambda d, q: d.update(service_cap_s=d["service_cap_s"] / 100),
    "cost": lambda d, q: q.update(usd_per_hour=q["usd_per_hour"] / 2),
    "unserved": lambda d, q: q.update(unserved=[{"demand": "chat/256x128", "share": 0.5, "requests_per_s": 1.8,
                                                 "usd_per_hour": 0.0}]),
    "period": lambda d, q: q.update(name="other"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_are_found(solved, name):
    problem, plan = solved
    forged = copy.deepcopy(plan)
    period = forged["periods"][0]
    FORGERIES[name](period["deployments"][0], period)
    assert not check(problem, forged).ok


@pytest.mark.parametrize("key", ["total_usd_per_hour", "usd_per_hour", "served_share", "tokens_per_usd",
                                 "penalty_usd_per_hour", "change_usd_per_hour"])  # fmt: skip
def test_forged_totals_are_found(solved, key):
    problem, plan = solved
    assert not check(problem, plan | {key: plan[key] * 0.9 + 0.01}).ok


CASES = {
    "static": BASE, "continuous": CONTINUOUS, "periods, prices, limits": DAY, "shadow prices": SCARCE,
    "measured": MEASURED,
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def good(request):
    data = CASES[request.param]
    result = optmodels.solve(data)
    assert result.status == "optimal", result.log
    problem = optmodels.load(data)
    assert check(problem, result.plan).ok, check(problem, result.plan).violations
    if request.param == "shadow prices":
        assert result.plan["shadow_prices"]
    return problem, result.plan


def free(path, wrong, plan):
    """Why a false value of this leaf may pass; None: it has to be found."""
    value = value_at(plan, path)
    if path[-1] == "name" and (len(path) == 1 or path[-3] == "deployments"):
        return "a title in words: every fact in it is a field of its own"
    if path[0] == "shadow_prices" and path[-1] in ("gain", "exact") and (path[-1] == "exact" or wrong > 0):
        return "only solving again tells it; sign, unit, the limit's name and a ceiling are checked"
    if path[-1] == "service_cap_s" and value is not None:
        services = [line["e2e_s"] for line in value_at(plan, path[:-1])["serves"]]
        if None not in services and wrong >= max(services, default=0.0):
            return "waiting may be planned for any service time at least the longest; it is recomputed with the stated"
    if path[-1] == "most_of_wait":
        served = [line["demand"] for line in value_at(plan, path[:-2])["serves"]]
        if all(name.startswith("summaries/") for name in served):
            return "it is part of percentiles of TTFT, and these requests have a limit of the mean"
    if isinstance(value, float) and abs(wrong - value) <= 1e-12:
        return "the same value"
    return None


@pytest.mark.slow
def test_every_tampering_is_caught(good):
    """Slow: a check for each field of a plan and each other value."""
    problem, plan = good
    missed, tried = set(), 0
    for path in leaves(plan):
        for wrong in other_values(path, value_at(plan, path)):
            if free(path, wrong, plan) is not None:
                continue
            tried += 1
            try:
                if check(problem, replaced(plan, path, wrong)).ok:
                    missed.add(f"{'.'.join(map(str, path))} = {wrong!r}")
            except Exception as error:
                missed.add(f"{'.'.join(map(str, path))} = {wrong!r} crashes: {error!r}")
    assert not missed, "\n" + "\n".join(sorted(missed))
    assert tried > 100


def nodes(data, path=()):
    """Paths of all lists and objects."""
    for k, v in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(v, dict | list):
            yield (*path, k)
            yield from nodes(v, (*path, k))


@pytest.mark.slow
def test_rubbish_never_crashes_the_checker(good):
    """Slow: a check for each node of a plan and each kind of rubbish."""
    problem, plan = good
    crashes = {}
    for path in [*leaves(plan), *nodes(plan)]:
        for bad in RUBBISH:
            try:
                report = check(problem, replaced(plan, path, bad))
                report.model_dump_json()
            except Exception as error:
                crashes[".".join(map(str, path)), repr(bad)[:12]] = repr(error)
    assert not crashes, "\n" + "\n".join(map(str, crashes.items()))


@pytest.mark.parametrize("key", ["limits", "serves", "deployments", "machines"])
def test_lines_left_out_are_noticed(good, key):
    problem, plan = good
    for path in nodes(plan):
        for i in range(len(value_at(plan, path)) if path[-1] == key else 0):
            line = value_at(plan, path)[i]
            if key == "limits" and line["name"].startswith("stock") and line["value"] == 0:
                continue  # machines that can serve nothing have no line
            lines = value_at(plan, path)
            assert not check(problem, replaced(plan, path, lines[:i] + lines[i + 1 :])).ok, (path, i)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"stock": [{"machine": "g6*", "at_most": 0}, {"machine": "g6e*", "at_most": 0}]}, "stock"),
        ({"quota": [{"machine": "*", "at_most": 1}]}, "quota"),
        ({"budget_usd_per_hour": 0.5}, "budget"),
        ({"reserve": {"lost": 20}}, "losing 20"),
        ({"reserve": {"survive_probability": 0.999999999, "pools": 4}}, "loses too many"),
        ({"running": [{"machine": "g5.xlarge", "region": "us-east-1", "count": 3}], "change": {"max_starts": 0}},
         "started"),
        ({"periods": [{"name": "always", "hours": 24, "rate_factor": 3.0}]}, "load"),
        ({"max_load": 1.0, "queueing": {"model": "none"}}, "load level"),
    ],
)  # fmt: skip
def test_the_check_reads_the_instance(solved, changes, named):
    """The same plan against stricter instances."""
    _, plan = solved
    verdict = check(optmodels.load(BASE | changes), plan)
    assert not verdict.ok
    assert any(named in v.requirement for v in verdict.violations), verdict.violations


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("workloads", 0, "model"), "llama-3.1-8x", "workloads[0].model"),
        (("workloads", 0, "buckets", 0, "share"), 0.9, "workloads[0].buckets"),
        (("workloads", 0, "buckets", 0, "input_tokens"), 10**6, "workloads[0].buckets (1000000x128)"),
        (("workloads", 0, "slo", "ttft_s"), {"at_most": "1 kg", "percentile": 0.95}, "workloads[0].slo.ttft_s"),
        (("workloads", 1, "name"), "chat", "workloads[1].name"),
        (("pool", "include"), ["nothing"], "pool"),
        (("queueing", "model"), "mm1", "queueing.model"),
        (("reserve",), {}, "reserve"),
        (("interruptions", 0, "per_hour"), -1, "interruptions[0].per_hour"),
        (("stock", 0, "at_most"), 1.5, "stock[0].at_most"),
        (("running",), [{"machine": "zz", "count": 1}], "running[0].machine"),
        (("points",), [{"name": "p", "usd_per_hour": 1.0, "requests_per_s": {"chat/none": 1.0}}], "points[0]"),
        (("melange",), {"file": "absent.json"}, "melange.file"),
    ],
)
def test_mistakes_are_named(path, value, where):
    data = copy.deepcopy(BASE)
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(InputError) as caught:
        optmodels.load(data)
    assert any(m.path.startswith(where) for m in caught.value.mistakes), caught.value


def test_command_line(cli, write, folder):
    name = write(FORMULATION.template, "fleet.yaml")
    run = cli("solve", name, "--out", "results")
    run.assert_clean()
    assert run.status == 0
    assert cli("check", "results/fleet-exact/plan.json").status == 0
    run = cli("tables", name)
    run.assert_clean()
    assert run.status == 0
    data = BASE | {"budget_usd_per_hour": 0.5}
    run = cli("solve", write(data, "poor.yaml"), "--out", "results")
    run.assert_clean()
    assert run.status == 3
    assert "budget at most 0.5 USD/h" in run.out
    data = BASE | {"objectiv": "min_cost"}
    run = cli("solve", write(data, "typo.yaml"))
    assert run.status == 2
    assert "did you mean objective" in run.err


def test_a_document_with_the_names_of_0_1_is_still_read():
    """Schema 1 said ``worth`` where schema 2 says ``shadow_prices``."""
    document = optmodels.solve(SCARCE).model_dump(mode="json", by_alias=True)
    assert document["schema"] == 2
    old = copy.deepcopy(document) | {"schema": 1, "optmodels_version": "0.1.0"}
    old["plan"]["worth"] = old["plan"].pop("shadow_prices")
    assert old["plan"]["worth"]
    assert optmodels.check(old).ok
    old["plan"]["worth"][0]["unit"] = "GPU"
    assert not optmodels.check(old).ok
    assert not optmodels.check(document | {"schema": 1}).ok  # of this version, it says


def test_a_longest_service_time_of_zero_is_none_that_anything_keeps(solved):
    problem, plan = solved
    forged = copy.deepcopy(plan)
    for d in forged["periods"][0]["deployments"]:
        d["service_cap_s"] = 0.0
        for line in d["serves"]:
            line["wait_s"] = 0.0
    violations = check(problem, forged).violations
    assert any("what waiting is planned for" in v.requirement for v in violations), violations
