"""Heuristics and baselines: checked plans, never better than the bound; the two proving methods always agree."""

import numpy as np
import pytest
from cases import instances, tables_of
from hypothesis import given, settings

import optmodels
from formulations.cost_efficiency.check import check
from formulations.cost_efficiency.making import best_row
from formulations.cost_efficiency.methods.heuristics import METHODS, TITLES, config_tree, enumerate_all
from optmodels.formulation import Options
from optmodels.latency.strategies import FAMILIES

PROVING = ("enumerate", "config_tree")


def value_of(tables):
    row = best_row(tables)
    if row is None:
        return np.inf
    s = tables.candidates
    return float(tables.objective(tables.optimum.e2e_s[s.configuration[row]], s.usd_per_hour[row]))


def run(method, document, **options):
    problem, t = tables_of(document)
    return METHODS[method](problem, t, Options(**options))


@settings(max_examples=15)
@given(instances())
def test_every_plan_passes_the_checker_and_none_beats_the_optimum(document):
    problem, t = tables_of(document)
    best = value_of(t)
    for name, method in METHODS.items():
        outcome = method(problem, t, Options())
        if outcome.plan is None:
            assert outcome.status == ("infeasible" if name in PROVING else "no_solution_found"), name
            if name not in PROVING:
                assert outcome.log["reason"], name
            continue
        verdict = check(problem, outcome.plan.model_dump(mode="json"))
        assert verdict.ok, (name, verdict.violations)
        assert outcome.plan.usd_per_million_tokens >= best * (1 - 1e-9), name
        assert outcome.status == ("optimal" if name in PROVING else "feasible"), name
        assert (outcome.bound is None) == (name not in PROVING), name


def test_progress_is_told_in_the_unit_of_the_objective(tiny):
    told = []
    result = optmodels.solve(tiny(), on_event=told.append)
    assert told[-1].objective == pytest.approx(result.objective, rel=1e-6)
    assert result.events[-1]["bound"] == pytest.approx(result.bound, rel=1e-6)


@settings(max_examples=40)
@given(instances())
def test_the_configuration_tree_finds_what_exhaustion_finds(document):
    problem, t = tables_of(document)
    tree, all_ = config_tree(problem, t, Options()), enumerate_all(problem, t, Options())
    assert tree.status == all_.status
    if all_.plan is not None:
        assert tree.plan.usd_per_million_tokens == pytest.approx(all_.plan.usd_per_million_tokens, rel=1e-9)
        assert tree.bound == pytest.approx(all_.bound, rel=1e-9)


def test_the_tree_opens_fewer_nodes_than_there_are(tiny):
    log = run("config_tree", tiny()).log
    cut = log["cut_memory"] + log["cut_slo"] + log["cut_budget"] + log["cut_bound"]
    assert 0 < log["opened"] < log["nodes"]
    assert log["opened"] + cut == log["nodes"]


def test_the_tree_under_no_time_claims_no_more_than_it_knows(tiny):
    outcome = run("config_tree", tiny(), time_limit=1e-12)
    assert (outcome.status, outcome.limit) == ("no_solution_found", "time")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_pool_that_nothing_fits_is_answered_by_every_method(tiny, name):
    outcome = run(name, tiny(model="llama-3.1-405b"))
    assert outcome.plan is None
    assert outcome.status in ("infeasible", "no_solution_found")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_budget_of_nothing_is_answered_by_every_method(tiny, name):
    outcome = run(name, tiny(budget_usd_per_hour=0.0))
    assert outcome.plan is None


@pytest.mark.parametrize("name", sorted(METHODS))
def test_machines_without_a_price_in_the_allowed_markets(tiny, name):
    outcome = run(name, tiny(markets={"main": ["reserved_3y"], "ao": ["reserved_3y"]}))
    assert outcome.plan is None


@pytest.mark.parametrize("name", sorted(METHODS))
def test_measured_points_serve_every_method(tiny, name):
    points = [
        {"name": "resident", "family": "high_end", "main": "big", "tps": 150.0},
        {"name": "host", "family": "kvo_ram", "main": "mid", "alpha": 0.5, "tps": 120.0},
        {"name": "disk", "family": "kvo_disk", "main": "mid", "alpha": 0.5, "tps": 110.0},
        {"name": "pair", "family": "ao", "main": "mid", "ao": "small", "alpha": 0.7, "tps": 110.0},
    ]
    document = tiny(latency={"operating_points": points})
    problem, t = tables_of(document)
    outcome = METHODS[name](problem, t, Options())
    assert outcome.plan is not None
    assert check(problem, outcome.plan.model_dump(mode="json")).ok


def test_every_method_has_a_title():
    assert set(TITLES) == set(METHODS)
    assert all(TITLES.values())


# ------------------------------------------------------------------------- what each baseline's docstring promises


def box(name, gpu="l4", price=1.0, vram=24, **more):
    return {"machine": name, "gpu": gpu, "vram_gib": vram, "ram_gib": 64, "disk_gbps": 8, "net_gbps": 100,
            "prices": {"on_demand": price}, **more}  # fmt: skip


def with_pool(tiny, *machines, **changes):
    return tiny(**{
        "pool": {"machines": list(machines)}, "slo": {"kind": "batch", "tps": 1.0},
        "strategies": {"families": list(FAMILIES), "replicas": [1], "multi_pass": [2, 4, 8]}, **changes,
    })  # fmt: skip


def bought(outcome):
    return [m.machine for m in outcome.plan.machines]


def test_high_end_takes_the_fastest_gpu_and_the_cheapest_of_those(tiny):
    pool = [box("slow", "t4", 0.1, 16), box("fast-dear", "l40s", 9.0, 48), box("fast-cheap", "l40s", 5.0, 48)]
    outcome = run("high_end", with_pool(tiny, *pool))
    assert bought(outcome) == ["fast-cheap"]
    assert outcome.plan.family == "high_end"


def test_high_end_runs_the_fewest_passes_that_fit(tiny):
    # 13.4 GB of weights in 0.9·24 GiB leave about 9.6 GB for a KV cache of 8·1024·0.5 MB = 4.3 GB per 8 requests.
    big = {"batch": 64, "input_tokens": 960, "output_tokens": 64}  # 34 GB of KV cache: 4 passes of 16
    outcome = run("high_end", with_pool(tiny, box("only"), workload=big))
    assert outcome.plan.family == "multi_pass"
    assert outcome.plan.passes == 4


def test_high_end_names_its_machine(tiny):
    pool = [box("fast", "l40s", 9.0, 48), box("named", "t4", 0.1, 16)]
    small = {"batch": 1, "input_tokens": 64, "output_tokens": 4}
    outcome = run("high_end", with_pool(tiny, *pool, baselines={"high_end": "named"}, workload=small))
    assert bought(outcome) == ["named"]


@pytest.mark.parametrize(("method", "family"), [("kvo_disk", "kvo_disk"), ("infersave", "kvo_ram")])
def test_the_offload_baselines_take_the_cheapest_machine_that_fits(tiny, method, family):
    pool = [box("too-small", vram=12, price=0.1), box("dear", price=2.0), box("cheap", price=0.5)]
    outcome = run(method, with_pool(tiny, *pool))
    assert bought(outcome) == ["cheap"]
    assert outcome.plan.family == family


@pytest.mark.parametrize(
    ("method", "baselines"), [("kvo_disk", {"kvo_disk": "dear"}), ("infersave", {"infersave": {"base": "dear"}})]
)
def test_the_offload_baselines_take_the_machine_they_are_told(tiny, method, baselines):
    pool = [box("dear", price=2.0), box("cheap", price=0.5)]
    assert bought(run(method, with_pool(tiny, *pool, baselines=baselines))) == ["dear"]


def test_infersave_scales_up_only_when_the_base_fails(tiny):
    pool = [box("base", price=0.5, ram_gib=1), box("more-ram", price=0.9, ram_gib=256), box("other", "l40s", 0.7, 48)]
    light = {"batch": 2, "input_tokens": 256, "output_tokens": 32}
    assert bought(run("infersave_plus", with_pool(tiny, *pool, workload=light))) == ["base"]
    # 34 GB of KV cache at batch 64: beyond the base's memory, so its rule looks for the same GPU with more RAM.
    heavy = {"batch": 64, "input_tokens": 960, "output_tokens": 64}
    told = {"infersave": {"base": "base"}}
    assert run("infersave", with_pool(tiny, *pool, workload=heavy, baselines=told)).status == "no_solution_found"
    assert bought(run("infersave_plus", with_pool(tiny, *pool, workload=heavy, baselines=told))) == ["more-ram"]
    told = {"infersave": {"base": "base", "plus": "other"}}
    assert bought(run("infersave_plus", with_pool(tiny, *pool, workload=heavy, baselines=told))) == ["other"]


def test_ao_cluster_takes_the_cheapest_pair_or_the_one_it_is_told(tiny):
    pool = [box("a", price=1.0), box("b", price=0.6), box("c", "t4", 0.2, 16)]
    light = {"batch": 2, "input_tokens": 256, "output_tokens": 32}
    outcome = run("ao_cluster", with_pool(tiny, *pool, workload=light))
    assert outcome.plan.family == "ao"
    assert outcome.plan.usd_per_hour == pytest.approx(0.4)  # c attends for c
    told = {"ao_cluster": {"main": "a", "ao": "c"}}
    assert bought(run("ao_cluster", with_pool(tiny, *pool, baselines=told))) == ["a", "c"]


def test_greedy_takes_the_cheapest_that_meets_the_slo_offloading_only_what_memory_forces(tiny):
    document = tiny(workload={"batch": 32, "input_tokens": 512, "output_tokens": 64})
    plan = run("greedy", document).plan
    _, t = tables_of(document)
    of, c = t.candidates.configuration, t.curves
    _, _, e2e = c.metrics(np.minimum(c.alpha_lo, 1.0))
    ok = (c.alpha_lo <= c.alpha_hi) & (e2e <= t.limits.e2e_s)
    assert plan.usd_per_hour == t.candidates.usd_per_hour[ok[of]].min()
    vram = next(line for line in plan.limits if line.name.startswith("VRAM"))
    assert plan.alpha == 0 or vram.binding


def test_greedy_is_optimal_for_capped_batch_without_offloading(tiny):
    document = tiny(strategies={"families": ["high_end"]})
    _, t = tables_of(document)
    assert run("greedy", document).plan.usd_per_million_tokens == pytest.approx(value_of(t))


def test_heuristics_do_not_change_the_tables(tiny):
    problem, t = tables_of(tiny())
    before = (t.candidates.usd_per_hour.copy(), t.curves.alpha_lo.copy(), t.curves.alpha_hi.copy())
    for method in METHODS.values():
        method(problem, t, Options())
    after = (t.candidates.usd_per_hour, t.curves.alpha_lo, t.curves.alpha_hi)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_dear_machine_does_not_blind_the_dynamic_programme_to_cheap_ones(tiny):
    """Its budgets lie at even ratios: in even steps up to 5000 USD/h the first bought everything else."""
    document = tiny(slo={"kind": "real_time", "tps": 50.0, "ttft_s": 60.0, "tpot_s": 1.0})
    without = run("greedy_dp", document).plan
    big = document["pool"]["machines"][0]
    document["pool"]["machines"].append(big | {"machine": "dear", "prices": {"on_demand": 5000.0}})
    plan = run("greedy_dp", document).plan
    assert plan.usd_per_million_tokens == pytest.approx(without.usd_per_million_tokens)
    assert plan.usd_per_million_tokens == pytest.approx(run("enumerate", document).plan.usd_per_million_tokens)
