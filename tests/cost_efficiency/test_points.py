"""Tables: which configurations there are, what they cost, how well they are linearised, what pruning may cut."""

from dataclasses import replace

import numpy as np
import pytest
from cases import brute_force, instances, tables_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from formulations.cost_efficiency.check import check
from formulations.cost_efficiency.making import best_row, make_plan
from formulations.cost_efficiency.points import candidate_order, prune
from optmodels.batch.points import batch_split, fewest_parts, interval_errors, linearise
from optmodels.catalog.types import MARKETS
from optmodels.errors import InputError
from optmodels.latency.strategies import FAMILIES


def value_of(tables, row):
    o, s = tables.optimum, tables.candidates
    return float(tables.objective(o.e2e_s[s.configuration[row]], s.usd_per_hour[row]))


def in_range(tables):
    """Curves that have an α-range and a finite value on it."""
    c = tables.curves
    rows = np.flatnonzero(c.alpha_lo <= c.alpha_hi)
    return c.take(rows[np.isfinite(c.take(rows).e2e(c.alpha_lo[rows]))])


# ------------------------------------------------------------------------------------------------- linearisation


@settings(max_examples=15)
@given(instances(pools=("llm-pilot-table-vii", "llm-pilot-table-vi"), most_machines=3), st.sampled_from([1e-2, 1e-3]))
def test_the_interpolant_lies_above_the_curve_by_at_most_the_certified_error(document, asked):
    _, t = tables_of(document)
    part = in_range(t)
    assume(len(part))
    part = part.take(np.arange(min(len(part), 60)))
    nodes = linearise(part, t.limits, asked)
    assert nodes.error.max() <= asked or nodes.alpha.shape[1] >= 257
    assert (np.diff(nodes.alpha, axis=1) >= 0).all()
    for share in np.linspace(0, 1, 61):
        alpha = part.alpha_lo + share * (part.alpha_hi - part.alpha_lo)
        ttft, tbt, e2e = part.metrics(alpha)
        for true, values in ((tbt, nodes.tpot_s), (e2e, nodes.e2e_s), (ttft, nodes.ttft_s)):
            chord = np.array([np.interp(a, x, y) for a, x, y in zip(alpha, nodes.alpha, values, strict=True)])
            assert (chord >= true * (1 - 1e-9)).all()
            if values is not nodes.ttft_s:
                assert (chord <= true * (1 + nodes.error) + 1e-12).all()


@settings(max_examples=15)
@given(instances(pools=("llm-pilot-table-vii",), most_machines=3))
def test_the_nodes_hold_the_minimiser_the_ends_and_the_kink(document):
    _, t = tables_of(document)
    part = in_range(t)
    assume(len(part))
    nodes = linearise(part, t.limits)
    for wanted in (part.fastest_alpha(), part.calmest_alpha(), part.prefill_kink(), part.alpha_lo, part.alpha_hi):
        assert (np.abs(nodes.alpha - wanted[:, None]).min(axis=1) <= 1e-12).all()
    for j in range(nodes.alpha.shape[1]):
        ttft, tbt, e2e = part.metrics(nodes.alpha[:, j])
        assert np.array_equal(nodes.e2e_s[:, j], e2e)
        assert np.array_equal(nodes.tpot_s[:, j], tbt)
        assert np.array_equal(nodes.ttft_s[:, j], ttft)


def test_chord_error_of_a_parabola_is_at_least_the_true_one():
    x = np.linspace(1, 2, 9)[None]
    true = max(np.interp(v, x[0], x[0] ** 2) / v**2 - 1 for v in np.linspace(1, 2, 4001))
    # Some 8 times the true error at the ends, where only one neighbour bounds the curve.
    assert true <= interval_errors(x, x**2).max() <= 16 * true


def test_chord_error_sees_a_kink_between_nodes():
    x = np.array([[0.0, 0.4, 0.6, 1.0]])
    y = np.maximum(1.0, 1 + 10 * (x - 0.5))
    assert interval_errors(x, y).max() >= 0.5 - 1e-12  # the chord is 1.5 at α = 0.5, the curve 1.0


def test_chord_error_of_a_line_is_zero_and_equal_nodes_do_no_harm():
    x = np.array([[0.0, 0.0, 0.3, 0.3, 1.0, 1.0]])
    assert interval_errors(x, 2 + x).max() == pytest.approx(0, abs=1e-12)


# ------------------------------------------------------------------------------------------------------- pruning


@settings(max_examples=40)
@given(instances())
def test_pruning_keeps_an_optimum_and_feasibility(document):
    _, t = tables_of(document)
    pruned = prune(t)
    before, after = best_row(t), best_row(pruned.tables)
    assert (before is None) == (after is None)
    if before is not None:
        assert value_of(pruned.tables, after) == pytest.approx(value_of(t, before), rel=1e-12)
    cut = sum(pruned.counts[k] for k in ("memory", "budget", "slo", "cost"))
    assert cut + pruned.counts["kept"] == pruned.counts["candidates"] == len(t.candidates)


@settings(max_examples=40)
@given(instances())
def test_the_incumbent_of_pruning_is_feasible_and_kept(document):
    _, t = tables_of(document)
    pruned = prune(t)
    if pruned.incumbent is None:
        return
    s = pruned.tables.candidates
    part = t.curves.take(s.configuration[[pruned.incumbent]])
    ttft, tbt, e2e = part.metrics(part.balance())
    assert ttft[0] <= t.limits.ttft_s
    assert tbt[0] <= t.limits.tpot_s
    assert e2e[0] <= t.limits.e2e_s
    assert s.usd_per_hour[pruned.incumbent] <= t.limits.usd_per_hour


@settings(max_examples=25)
@given(instances(pools=("llm-pilot-table-vii", "llm-pilot-table-ii"), most_machines=3))
def test_exhaustive_evaluation_finds_what_a_dense_grid_finds(document):
    problem, t = tables_of(document)
    row, grid = best_row(t), brute_force(problem, t, 101)
    if row is None:
        assert grid == np.inf
    else:
        assert value_of(t, row) <= grid * (1 + 1e-9)


@settings(max_examples=20)
@given(instances(pools=("llm-pilot-table-vii",), most_machines=3))
def test_the_optimum_is_within_its_limits(document):
    _, t = tables_of(document)
    o = t.optimum
    ok = o.feasible
    assert (o.ttft_s[ok] <= t.limits.ttft_s).all()
    assert (o.tpot_s[ok] <= t.limits.tpot_s).all()
    assert (o.e2e_s[ok] <= t.limits.e2e_s).all()
    assert ((o.alpha >= t.curves.alpha_lo) & (o.alpha <= t.curves.alpha_hi))[ok].all()


def test_a_workload_of_one_output_token_is_linearised_without_fuss():
    """No decode step, so TBT is zero throughout: the certified error is a number all the same."""
    document = {
        "formulation": "cost_efficiency", "schema": 1, "serving": "static",
        "model": "opt-6.7b", "slo": {"kind": "batch", "tps": 10},
        "workload": {"batch": 8, "input_tokens": 64, "output_tokens": 1}, "pool": {"catalog": "llm-pilot-table-vii"},
    }  # fmt: skip
    _, t = tables_of(document)
    nodes = linearise(in_range(t), t.limits)
    assert nodes.error.max() <= 1e-3


def test_order_tells_close_values_apart_however_bad_the_worst_is(tiny):
    """Among feasible plans one may be 10¹² times worse than the best; the best is still the best."""
    points = [
        {"name": "simple, 0.05 % worse", "family": "high_end", "main": "mid", "e2e_s": 1.0005},
        {"name": "best", "family": "kvo_ram", "main": "mid", "e2e_s": 1.0},
        {"name": "hopeless", "family": "high_end", "main": "mid", "e2e_s": 1e12},
    ]
    document = tiny(
        objective="uncapped", slo={"kind": "batch", "tps": 1e-12}, latency={"operating_points": points},
        markets={"main": ["on_demand"], "ao": ["on_demand"]},
    )  # fmt: skip
    _, t = tables_of(document)
    row = best_row(t)
    assert t.measured[t.candidates.configuration[row]].name == "best"


def test_a_user_range_beyond_the_light_load_of_a_shared_machine_stays_allowed(tiny):
    """α_min cuts the range from below; light load from above. Where both leave nothing, α_min itself still works."""
    document = tiny(
        workload={"batch": 16, "input_tokens": 256, "output_tokens": 32},
        strategies={"families": ["ao_shared"], "shared": [2], "alpha": {"min": 0.4, "max": 0.6}},
        slo={"kind": "batch", "tps": 1.0},
    )
    problem, t = tables_of(document)
    expected = brute_force(problem, t)
    row = best_row(t)
    assert np.isfinite(expected)
    assert row is not None
    assert value_of(t, row) == pytest.approx(expected, rel=1e-6)


# ------------------------------------------------------------------------------------------- parts of the batch


@pytest.mark.parametrize("batch", range(1, 65))
def test_the_fewest_parts_are_the_first_counts_of_each_largest_part(batch):
    first = {}
    for count in range(1, batch + 1):
        first.setdefault(max(batch_split(batch, count)), count)
    assert fewest_parts(batch).tolist() == sorted(first.values())
    assert len(first) <= 2 * batch**0.5


def split_document(batch, family="high_end", **strategies):
    """An SLO that only small parts meet, on machines that are cheap with few of them."""
    machines = [
        {"machine": "one", "gpu": "l40s", "gpu_count": 1, "vram_gib": 48, "ram_gib": 64, "net_gbps": 20,
         "prices": {"on_demand": 1.9}},
        {"machine": "two", "gpu": "l40s", "gpu_count": 2, "vram_gib": 96, "ram_gib": 128, "net_gbps": 20,
         "prices": {"on_demand": 4.1}},
    ]  # fmt: skip
    return {
        "formulation": "cost_efficiency", "schema": 1, "serving": "static", "model": "llama-3.1-8b",
        "workload": {"batch": batch, "input_tokens": 1024, "output_tokens": 64},
        "slo": {"kind": "real_time", "tps": 100, "ttft_s": 0.2, "tpot_s": 0.1}, "pool": {"machines": machines},
        "markets": {"main": ["on_demand"], "ao": ["on_demand"]}, "strategies": {"families": [family]} | strategies,
    }  # fmt: skip


@pytest.mark.parametrize("batch", range(1, 65))
def test_without_lists_the_optimum_is_that_of_every_count(batch):
    every = list(range(1, batch + 1))
    lists = {"replicas": every, "multi_pass": every[1:], "parallel": every[1:], "shared": every[1:]}
    for family in ("high_end", "multi_pass", "ao_parallel", "ao_shared"):
        for reading in ("capped", "uncapped"):
            found = []
            for strategies in ({}, lists):
                document = split_document(batch, family, **strategies) | {"objective": reading}
                if family == "multi_pass":
                    document["slo"] = {"kind": "batch", "tps": 100}
                    document["workload"]["input_tokens"] = 8192
                _, t = tables_of(document)
                row = best_row(t)
                found.append(np.inf if row is None else value_of(t, row))
            assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_a_listed_count_is_offered_whatever_smaller_ones_there_could_be():
    """Five machines would do with a largest part of 4 too, but are not in the list."""
    _, t = tables_of(split_document(20, replicas=[1, 2, 3, 4, 6, 8]))
    row = best_row(t.restricted(t.configurations.main[t.candidates.configuration] == 0))
    assert row is not None
    plan = make_plan(t, row, 0.0)
    assert plan.batch_split == [4, 4, 3, 3, 3, 3]


@pytest.mark.parametrize(("batch", "machines"), [(20, 5), (33, 9), (64, 16)])
def test_by_default_no_more_machines_are_bought_than_it_takes(batch, machines):
    document = split_document(batch)
    document["pool"]["machines"].pop()
    problem, t = tables_of(document)
    plan = make_plan(t, best_row(t), 0.0)
    assert [line.count for line in plan.machines] == [machines]
    assert max(plan.batch_split) == 4
    assert check(problem, plan.model_dump(mode="json")).ok


def test_parts_that_no_memory_holds_are_left_out():
    """Activations of 64 requests do not fit beside the weights, those of fewer do; where none fit, one way stays."""
    document = split_document(64)
    document["memory"] = {"chunk_tokens": 65536}
    document["pool"]["machines"][0]["vram_gib"] = 20
    document["pool"]["machines"][1]["vram_gib"] = 20
    _, t = tables_of(document)
    c = t.configurations
    fits = t.curves.vram_fixed <= t.curves.vram
    assert fits[c.main == 0].all()
    assert c.count[c.main == 0].min() > 1
    alone = (c.main == 1) & (c.tp == 1)
    assert c.count[alone].tolist() == [1]
    assert not fits[alone].any()


def test_too_many_configurations_are_refused_in_words(monkeypatch):
    monkeypatch.setattr("optmodels.batch.points.MOST_CONFIGURATIONS", 40)
    with pytest.raises(InputError, match=r"configurations.; expected at most 40 configurations of ao_parallel"):
        tables_of(split_document(32, "ao_parallel"))


@pytest.mark.parametrize("batch", [8, 32])
def test_an_offload_ratio_asked_for_beyond_light_load_is_found(batch):
    """α ≥ 1 leaves one point of the curve, heavily loaded or not."""
    for model in ("opt-6.7b", "llama-3.1-8b"):
        document = {
            "formulation": "cost_efficiency", "schema": 1, "serving": "static",
            "model": model, "slo": {"kind": "batch", "tps": 1},
            "workload": {"batch": batch, "input_tokens": 512, "output_tokens": 128},
            "pool": {"catalog": "llm-pilot-table-vii"},
            "strategies": {"families": ["ao_shared"], "shared": [4], "alpha": {"min": 1.0}},
        }  # fmt: skip
        problem, t = tables_of(document)
        assert value_of(t, best_row(t)) == pytest.approx(brute_force(problem, t, 3), rel=1e-9)


@pytest.mark.parametrize(("other", "together"), [
    ({"region": "us-east-1", "provider": "aws"}, True), ({"region": "us-east-1"}, True),
    ({"region": "us-east-1", "provider": "gcp"}, False), ({"region": "eu-west-1", "provider": "aws"}, False),
    ({"region": "eu-west-1"}, False), ({"region": "asia-southeast1", "provider": "gcp"}, False),
])  # fmt: skip
def test_attention_is_offloaded_to_machines_of_the_same_region_and_cloud(other, together):
    main = {"machine": "one", "gpu": "l40s", "vram_gib": 48, "net_gbps": 20, "prices": {"on_demand": 1.9}}
    document = split_document(8, "ao")
    document["pool"]["machines"] = [
        main | {"region": "us-east-1", "provider": "aws"}, main | {"machine": "far"} | other,
    ]  # fmt: skip
    _, t = tables_of(document)
    pairs = set(zip(t.configurations.main.tolist(), t.configurations.ao.tolist(), strict=True))
    near = {(0, 0), (1, 1)}
    assert pairs == (near | {(0, 1), (1, 0)} if together else near)


# --------------------------------------------------------------------------------------- configurations and costs


def test_costs_add_up_by_role_and_market(tiny):
    document = tiny(
        strategies={
            "families": list(FAMILIES),
            "replicas": [1, 2],
            "multi_pass": [2],
            "parallel": [3],
            "shared": [2],
        },
        markets={"main": ["on_demand"], "ao": ["on_demand", "spot"]},
    )
    _, t = tables_of(document)
    price = {m.machine: m.prices for m in t.machines}
    s, c = t.candidates, t.configurations
    for row in range(len(s)):
        i = s.configuration[row]
        family, count = FAMILIES[c.family[i]], c.count[i]
        main = price[t.machines[c.main[i]].machine].get(MARKETS[s.main_market[row]])
        total = main * (1 if family == "multi_pass" else count)
        if c.ao[i] >= 0:
            assert family.startswith("ao")
            ao = price[t.machines[c.ao[i]].machine].get(MARKETS[s.ao_market[row]])
            total += ao * (count if family == "ao_parallel" else 1)
        assert s.usd_per_hour[row] == pytest.approx(total)
    combinations = {(FAMILIES[c.family[i]], int(s.ao_market[r])) for r, i in enumerate(s.configuration)}
    assert ("ao", MARKETS.index("spot")) in combinations
    assert not {k for k in range(len(MARKETS)) if k != MARKETS.index("on_demand")} & set(s.main_market.tolist())


def test_a_machine_without_a_price_in_a_market_is_not_sold_there(tiny):
    _, t = tables_of(tiny(markets={"main": ["spot"], "ao": ["spot"]}))
    small = [m.machine for m in t.machines].index("small")  # no spot price
    used = t.configurations.main[t.candidates.configuration]
    assert small not in used
    assert small not in t.configurations.ao[t.candidates.configuration]


def test_tensor_parallel_degrees_divide_gpus_and_heads(tiny):
    document = tiny(model="opt-13b")  # 40 heads
    document["pool"]["machines"] = [
        {"machine": "eight", "gpu": "a100-80g", "gpu_count": 8, "vram_gib": 640, "prices": {"on_demand": 30.0}},
        {"machine": "three", "gpu": "a100-80g", "gpu_count": 3, "vram_gib": 240, "prices": {"on_demand": 12.0}},
    ]
    document["strategies"] = {"families": ["high_end"], "replicas": [1], "tensor_parallel": [1, 2, 3, 4, 8, 16]}
    _, t = tables_of(document)
    c = t.configurations
    pairs = sorted(zip(c.main.tolist(), c.tp.tolist(), c.dp.tolist(), strict=True))
    assert pairs == [(0, 1, 8), (0, 2, 4), (0, 4, 2), (0, 8, 1), (1, 1, 3)]  # 3 does not divide 40


def test_a_machine_is_not_split_into_more_replicas_than_requests(tiny):
    document = tiny(workload={"batch": 2, "input_tokens": 16, "output_tokens": 4})
    document["pool"]["machines"] = [
        {"machine": "eight", "gpu": "a100-80g", "gpu_count": 8, "vram_gib": 640, "prices": {"on_demand": 30.0}}
    ]
    _, t = tables_of(document)
    assert set(t.configurations.dp.tolist()) == {1, 2}


@given(st.integers(1, 10**6), st.integers(1, 1000))
def test_batch_split_is_even(batch, parts):
    split = batch_split(batch, parts)
    assert len(split) == parts
    assert sum(split) == batch
    assert max(split) - min(split) <= 1


@settings(max_examples=15)
@given(instances(pools=("llm-pilot-table-vii",)))
def test_order_is_from_best_to_worst(document):
    _, t = tables_of(document)
    ok = np.flatnonzero(t.optimum.feasible[t.candidates.configuration])
    assume(len(ok))
    part = t.restricted(ok)
    e2e = t.optimum.e2e_s
    value = t.objective(e2e[part.candidates.configuration], part.candidates.usd_per_hour)
    order = np.array(list(candidate_order(part, e2e)))
    assert sorted(order.tolist()) == list(range(len(ok)))
    assert (np.diff(value[order]) >= -1e-11 * value.max()).all()


def test_objective_is_dollars_per_million_tokens(tiny):
    _, t = tables_of(tiny())
    e2e, cost = np.array([10.0]), np.array([3.6])
    assert t.objective(e2e, cost)[0] == pytest.approx(3.6 / (3600 * 100) * 1e6)
    _, t = tables_of(tiny(objective="uncapped"))
    assert t.objective(e2e, cost)[0] == pytest.approx(3.6 / (3600 * (8 * 288 / 10)) * 1e6)


def test_compact_drops_only_what_no_candidate_uses(tiny):
    _, t = tables_of(tiny())
    some = t.restricted(np.array([0, 5, len(t.candidates) - 1]))
    small = some.compact()
    assert len(small.configurations) <= 3
    for row in range(3):
        a, b = some.candidates.configuration[row], small.candidates.configuration[row]
        assert some.curves.take([a]).e2e(np.array([0.1]))[0] == small.curves.take([b]).e2e(np.array([0.1]))[0]
        assert some.configurations.main[a] == small.configurations.main[b]


def test_measured_points_keep_their_own_figures(tiny):
    points = [
        {"name": "one", "family": "high_end", "main": "big", "tps": 150.0},
        {"name": "two", "family": "ao", "main": "mid", "ao": "small", "alpha": 0.7, "e2e_s": 12.0},
    ]
    _, t = tables_of(tiny(latency={"operating_points": points}))
    assert t.curves.measured_e2e.tolist() == [8 * 288 / 150.0, 12.0]
    assert t.curves.alpha_lo.tolist() == t.curves.alpha_hi.tolist() == [0.0, 0.7]
    assert replace(t).optimum.e2e_s.tolist() == [8 * 288 / 150.0, 12.0]


def test_a_measured_time_between_tokens_counts_even_for_one_output_token(tiny):
    points = [{"name": n, "family": "high_end", "main": m, "e2e_s": 1.0, "ttft_s": 0.5, "tpot_s": tbt}
              for n, m, tbt in (("calm", "big", 0.05), ("slow", "mid", 0.7))]  # fmt: skip
    document = tiny(
        latency={"operating_points": points}, workload={"batch": 8, "input_tokens": 64, "output_tokens": 1},
        slo={"kind": "real_time", "tps": 10, "ttft_s": 1.0, "tpot_s": 0.06},
    )  # fmt: skip
    _, t = tables_of(document)
    assert t.optimum.tpot_s.tolist() == [0.05, 0.7]
    assert t.optimum.feasible.tolist() == [True, False]
    assert t.curves.lower_bounds()[1].tolist() == [0.05, 0.7]


def test_the_asked_error_is_met(tiny):
    """A curve with all its kinks in a thousandth of the range, as KV offload to a slow disk has, needs nodes there."""
    _, t = tables_of(tiny(strategies={"families": ["kvo_disk"]}))
    for asked in (1e-2, 1e-3):
        nodes = linearise(in_range(t), t.limits, asked)
        assert nodes.error.max() <= asked


def test_a_latent_cache_is_on_every_gpu_and_a_batch_beyond_it_takes_passes():
    """DeepSeek-V3 on 8 × H200 holds under a million tokens: 1.5 million take three passes, by the check too."""
    document = {
        "formulation": "cost_efficiency", "schema": 1, "serving": "static", "model": "deepseek-v3",
        "precision": {"weights": "fp8_block", "kv": "fp16"},
        "workload": {"batch": 512, "input_tokens": 2000, "output_tokens": 1000}, "slo": {"kind": "batch", "tps": 100},
        "pool": {"machines": [{
            "machine": "p5en", "gpu": "h200", "gpu_count": 8, "vram_gib": 1128, "prices": {"on_demand": 63.3},
        }]},
        "strategies": {"families": ["high_end", "multi_pass"], "tensor_parallel": [8], "replicas": [1]},
    }  # fmt: skip
    problem, t = tables_of(document)
    fits = t.curves.alpha_lo <= t.curves.alpha_hi
    c = t.configurations
    assert not fits[c.family == FAMILIES.index("high_end")].any()
    passes = c.count[(c.family == FAMILIES.index("multi_pass")) & fits]
    assert passes.min() == 3
    row = best_row(t)
    plan = make_plan(t, row, float(t.optimum.alpha[t.candidates.configuration[row]]))
    assert plan.passes == 3
    assert check(problem, plan.model_dump(mode="json")).ok
