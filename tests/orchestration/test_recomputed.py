"""What the checks recompute is what the tables say, and no figure of a plan can be changed unseen."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
from orchestration_cases import DECAY, handful, two_models
from tampering import RUBBISH, leaves, other_values, replaced, value_at

from formulations.orchestration.check import check
from formulations.orchestration.check_requests import check_requests
from formulations.orchestration.flow import latency_threshold
from formulations.orchestration.methods.exact import exact
from formulations.orchestration.methods.greedy_dp import greedy_dp
from formulations.orchestration.named import name_requests, requests_table
from formulations.orchestration.points import build_tables
from formulations.orchestration.recomputed import recompute, service_s
from optmodels.errors import InputError
from optmodels.formulation import Options
from optmodels.loading import load

QUICK = Options(gap=0.1, time_limit=2)
PREFILL = [{**row, "prefill_tokens_per_s": 4000.0 * row["tp"]} for row in DECAY]
UNLIKE = {
    "servers": [
        {"server": "old", "count": 2, "gpu": "v100-16g-pcie", "gpus": 3},
        {"server": "new", "gpu": "a100-40g", "gpus": 2},
    ],
    "failed_gpus": {"old-2": [1]},
}
RATES = [
    {"model": "mistral-7b", "output_tokens": 400, "prompt_tokens": 90, "slo_factor": 1.0, "requests_per_s": 0.2},
    {"model": "llama-3.2-3b", "output_tokens": 300, "slo_factor": 1.3, "requests_per_s": 0.3, "weight": 2.0},
]
LISTED = [RATES[0] | {"requests_per_s": [0.1, 0.4, 0.2]}, RATES[1]]
RUNNING = [
    {"model": "mistral-7b", "tp": 2, "batch": 4, "placement": {"box-2": [1, 3]}},
    {"model": "llama-3.2-3b", "batch": 4, "count": 5},
    {"model": "llama-3.2-3b", "batch": 3},
]


def random_requests(seed, count):
    """Prompts too, some equal θ, some requests longer than memory."""
    rng = np.random.default_rng(seed)
    output = rng.integers(1, 700, count)
    output[rng.integers(0, count, 2)] = 10**6
    return {"rows": {
        "arrival_s": np.sort(rng.exponential(20, count)).round(2).tolist(),
        "output_tokens": output.tolist(), "prompt_tokens": rng.integers(1, 3000, count).tolist(),
        "model": rng.choice(["mistral-7b", "llama-3.2-3b"], count).tolist(),
        "slo_factor": rng.choice([0.4, 0.7, 1.0, 1.5, 3.0], count).tolist(),
    }}  # fmt: skip


VARIANTS = {
    "plain": {},
    "prefill and TTFT": {"latency": {"decay": PREFILL}, "slo": {"ttft_s": 0.8}},
    "bins by itself": {"bins": {}},
    "each request by itself": {"bins": {}, "requests": random_requests(9, 30)},
    "unlike servers": {"cluster": UNLIKE, "candidates": {"tp": [1, 2], "dp": [1, 2], "batch": [1, 2, 4, 8, 16]}},
    "pipelines over servers": {
        "cluster": UNLIKE | {"pipelines_cross_servers": True}, "latency": {"roofline": "roofline"},
        "candidates": {"tp": [1, 2], "pp": [1, 2], "batch": [1, 4, 16, 64]}, "memory": {"tokens_per_slot": "max"},
    },
    "one instance of a model": {"models": [{"model": "mistral-7b", "maximum_instances": 1}, {"model": "llama-3.2-3b"}]},
    "little memory": {"memory": {"vram_usable": 0.95, "tokens_per_slot": 900}, "candidates": {"tp": [1], "batch": [8]}},
    "something runs": {"change": {"running": RUNNING, "score_per_start": 0.01, "score_per_stop": 0.02}},
    "its own t_slice and weight": {
        "models": [{"model": "mistral-7b", "t_slice_s": 0.03, "weight": 3.0}, {"model": "llama-3.2-3b"}],
        "objective": {"latency_threshold_s": 5.0, "throughput_threshold_tokens_per_s": 100.0},
    },
    "latency first": {"objective": {"kind": "lexicographic", "order": ["latency", "attainment"]}},
    "attainment at a price": {
        "models": [{"model": "mistral-7b", "attainment_at_least": 1.0}, {"model": "llama-3.2-3b"}],
        "slo": {"shortfall_penalty": 0.1},
    },
    "rates": {"requests": {"duration_s": 60, "classes": RATES}},
    "rates by bin": {"requests": {"classes_bin_s": 7.0, "classes": LISTED}, "bins": {}},
    "one moment": {"requests": {"rows": {"arrival_s": [0.0] * 5, "output_tokens": [90, 200, 200, 300, 700],
                                         "model": ["mistral-7b"] * 5, "slo_factor": [1.0, 1.2, 1.2, 2.0, 0.1]}}},
}  # fmt: skip


def variants():
    for seed, (name, changes) in enumerate(VARIANTS.items()):
        requests = {} if "requests" in changes else {"requests": random_requests(seed, 60 + seed)}
        yield pytest.param(two_models(50, seed, **requests | changes), id=name)
    for seed in range(3):
        yield pytest.param(handful(seed=seed), id=f"handful {seed}")


@pytest.mark.parametrize("document", list(variants()))
def test_recomputed_from_the_instance_as_in_the_tables(document):
    problem = load(document)
    t, true = build_tables(problem), recompute(problem)
    usable = [c for c in true.candidates.values() if not c.refused]
    assert [(c.model, c.gpu, c.tp, c.pp, c.dp, c.batch, c.unit, c.tokens_per_s) for c in usable] == [
        (c.model, c.gpu, c.tp, c.pp, c.dp, c.batch, c.unit, c.worst_rate) for c in t.configurations
    ]
    assert len(true.candidates) == len(t.configurations) + len(t.discarded)
    assert (true.bins, true.bin_s) == (t.bins, t.bin_s)
    np.testing.assert_array_equal([q.arrivals for q in true.groups], t.classes.arrivals)
    for name in ("model", "output_tokens", "prompt_tokens", "deadline_s", "weight"):
        np.testing.assert_allclose([getattr(q, name) for q in true.groups], getattr(t.classes, name), rtol=1e-12)
    for k, q in enumerate(true.groups):
        for i, c in enumerate(usable):
            if c.model == q.model:
                share, wait = true.in_time(q, (c, c))
                assert share == pytest.approx(t.share[k, i], abs=1e-12)
                assert wait == pytest.approx(t.wait_s[k, i]) if share > 0 else t.wait_s[k, i] < 0
                assert service_s(q, c) == pytest.approx(t.service_s[k, i])
    assert true.latency_threshold_s() == pytest.approx(latency_threshold(t))


@pytest.mark.parametrize("document", list(variants())[1::2])
def test_plans_pass(document):
    problem = load(document)
    t = build_tables(problem)
    for method in (exact, greedy_dp):
        plan = method(problem, t, QUICK).plan
        if plan is None:
            continue
        verdict = check(problem, plan.model_dump(mode="json"))
        assert verdict.ok, verdict.violations
        named = name_requests(t, plan)
        if named is not None:
            table = pd.DataFrame(requests_table(t, plan, named))
            assert check_requests(problem, plan.model_dump(mode="json"), table).ok


RICH = two_models(
    240, 2, latency={"decay": PREFILL}, slo={"shortfall_penalty": 0.05},
    models=[{"model": "mistral-7b", "attainment_at_least": 1.0, "weight": 2.0}, {"model": "llama-3.2-3b"}],
    change={"running": RUNNING, "score_per_start": 0.01, "score_per_stop": 0.05},
)  # fmt: skip


@pytest.fixture(scope="module")
def rich():
    problem = load(RICH)
    plan = exact(problem, build_tables(problem), QUICK).plan.model_dump(mode="json")
    assert check(problem, plan).ok
    assert plan["shortfalls"] and plan["stopped"] and any(i["kept"] for i in plan["instances"])
    return problem, plan


NAMES = {"name", "label", "dispatcher", "online", "subcluster"}  # and what is no figure
EQUAL_PLANS = {"bin"}  # another bin may serve the same requests as well
FIRST = 3  # shares of each column


def figures(plan):
    for path in leaves(plan):
        if not (NAMES | EQUAL_PLANS) & set(path) and not (path[0] == "shares" and path[2] >= FIRST):
            yield path


def test_every_figure_is_recomputed(rich):
    problem, plan = rich
    missed = [
        (path, wrong) for path in figures(plan) for wrong in other_values(path, value_at(plan, path))
        if wrong != value_at(plan, path) and check(problem, replaced(plan, path, wrong)).ok
    ]  # fmt: skip
    assert not missed


def test_rubbish_in_a_field_never_crashes_the_check(rich):
    problem, plan = rich
    for path in leaves(plan):
        if max((x for x in path if isinstance(x, int)), default=0) == 0:  # the first of every list
            for bad in RUBBISH:
                check(problem, replaced(plan, path, bad))


def kept(plan):
    return next(i for i in plan["instances"] if i["kept"])


def not_kept(plan):
    return next(i for i in plan["instances"] if not i["kept"])


@pytest.mark.parametrize(
    ("change", "requirement"),
    [
        (lambda p: not_kept(p).update(kept=True), "kept where it runs"),
        (lambda p: kept(p).update(kept=False), "moved"),
        (lambda p: not_kept(p).update(subcluster=7), "sub-cluster"),
        (lambda p: p["classes"][0].update(model="llama-3.2-3b"), "classes[0].model"),
        (lambda p: p["prediction"].update(gpus=9), "prediction.gpus"),
        (lambda p: p.update(bin_s=float("nan")), "time bins"),
    ],
)
def test_tampering_with_what_was_not_checked_before(rich, change, requirement):
    problem, plan = rich
    plan = copy.deepcopy(plan)
    change(plan)
    assert any(requirement in v.requirement for v in check(problem, plan).violations)


OTHER_INSTANCES = {
    "slower": ({"latency": {"decay": [r | {"base_tokens_per_s": 0.8 * r["base_tokens_per_s"]} for r in PREFILL]}}, ""),
    "slower prefill": ({"latency": {"decay": [{**r, "prefill_tokens_per_s": 900.0} for r in PREFILL]}}, ""),
    "less memory": ({"memory": {"vram_usable": 0.5}}, "usable candidate"),
    "longer slots": ({"memory": {"tokens_per_slot": 10**6}}, "usable candidate"),
    "tighter deadlines": ({"models": [m | {"t_slice_s": 0.012} for m in RICH["models"]]}, "time bins"),
    "another weight": ({"models": [RICH["models"][0] | {"weight": 1.0}, RICH["models"][1]]}, "score.satisfaction"),
    "another latency threshold": ({"objective": {"latency_threshold_s": 77.0}}, "score.latency"),
    "nothing runs": ({"change": {}}, "kept where it runs"),
    "wider bins": ({"bins": {"lengths": 2, "slo": 2, "seconds": 4.0}}, "time bins"),
    "no price of a shortfall": ({"slo": {}}, "attainment_at_least"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_INSTANCES)
def test_the_plan_of_another_instance_is_found(rich, name):
    _, plan = rich
    changes, requirement = OTHER_INSTANCES[name]
    verdict = check(load(RICH | changes), plan)
    assert any(requirement in v.requirement for v in verdict.violations), verdict.violations


def test_what_cannot_be_recomputed_is_named(rich):
    _, plan = rich
    with pytest.raises(InputError, match="t_slice_s"):
        check(load(RICH | {"latency": {"decay": [r for r in PREFILL if r["tp"] > 1]}}), plan)
    with pytest.raises(InputError, match="time bins"):
        check(load(RICH | {"bins": {"seconds": 0.001}}), plan)


def test_requests_of_an_instance_whose_configuration_is_not_there(rich):
    problem, plan = rich
    t = build_tables(problem)
    found = exact(problem, t, QUICK).plan
    table = requests_table(t, found, name_requests(t, found))
    tampered = copy.deepcopy(plan)
    tampered["instances"][0]["configuration"] = 99
    assert any("configuration of" in v.requirement for v in check_requests(problem, tampered, table).violations)
    tampered = copy.deepcopy(plan)
    tampered["configurations"][0]["batch"] = 5
    assert any("usable candidate" in v.requirement for v in check_requests(problem, tampered, table).violations)
