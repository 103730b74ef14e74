"""A limit on the time between tokens of orchestration's engines: planned, checked, replayed, certified, explained."""

import copy

import numpy as np
import pytest
from orchestration_cases import two_models

import optmodels
from formulations.orchestration.points import build_tables
from optmodels.errors import InputError


def instance(itl=None, **changes):
    """Requests of llama-3.2-3b at 6/s for 10 s, with prompts of 200 to 3,000 tokens, on one server of two H100."""
    rng = np.random.default_rng(0)
    rows = {
        "arrival_s": np.cumsum(rng.exponential(1 / 6, 60)).round(3).tolist(),
        "input_tokens": rng.integers(200, 3000, 60).tolist(), "output_tokens": rng.integers(50, 200, 60).tolist(),
        "slo_factor": [4.0] * 60,
    }  # fmt: skip
    slo = {} if itl is None else {"slo": {"itl_s": itl}}
    return two_models(
        cluster={"servers": [{"server": "s", "gpu": "h100", "gpus": 2}]}, models=[{"model": "llama-3.2-3b"}],
        latency={"model": "default"}, serving="continuous", candidates={"tp": [1], "batch": [2, 8, 32]},
        bins={"lengths": 2, "slo": 1, "seconds": 2.5},
        requests={"rows": rows}, **slo, **changes,
    )  # fmt: skip


def p95(at):
    return {"at_most": at, "percentile": 0.95}


def test_levels_with_longer_times_between_tokens_are_no_candidates():
    every = [x.engine for x in build_tables(optmodels.load(instance(p95(10.0)))).configurations]
    assert {e.batch for e in every} == {2, 8, 32} and all(e.itl_s > e.step_s / e.of.costs.tokens for e in every)
    by = {e.batch: e.itl_s for e in every}
    assert by[2] < by[8] < by[32]
    at = (by[2] + by[8]) / 2
    kept = [x.engine for x in build_tables(optmodels.load(instance(p95(at)))).configurations]
    assert {e.batch for e in kept} == {2} and all(e.itl_s <= at for e in kept)
    assert all(x.engine.itl_s is None for x in build_tables(optmodels.load(instance())).configurations)


def test_a_tighter_limit_attains_less_and_is_checked():
    seen = []
    for at in (0.2, 0.025):
        found = optmodels.solve(instance(p95(at)))
        assert found.check.ok, found.check.violations
        lines = [c["engine"]["itl_s"] for c in found.plan["configurations"]]
        assert lines and max(lines) <= at
        seen.append(found.objective)
        document = found.model_dump(mode="json", by_alias=True)
        other = copy.deepcopy(document)
        other["plan"]["configurations"][0]["engine"]["itl_s"] *= 0.9
        assert "itl_s" in str(optmodels.check(other).violations)
        other = copy.deepcopy(document)
        other["problem"]["slo"]["itl_s"]["at_most"] = 0.9 * lines[0]
        assert "ITL ≤ slo.itl_s" in str(optmodels.check(other).violations)
        rows = found.report["replay"]["policies"]
        within = rows[found.plan["dispatcher"]["policy"]]["itl_within"]
        assert within >= 0.95 and rows[found.plan["dispatcher"]["policy"]]["itl_s"]["p95"] <= at * 1.02
    assert seen[1] <= seen[0]


def test_a_first_time_where_other_engines_decode_lasts_until_the_cache_is_there():
    apart = {"deployment": {"stages": ["prefill", "decode"], "link": {"net_gbps": 100, "latency_s": 0.001}}}
    engines = [x.engine for x in build_tables(optmodels.load(instance(p95(10.0), **apart))).configurations]
    assert {e.stage for e in engines} == {"prefill", "decode"}
    for e in engines:
        if e.stage == "prefill":
            assert e.itl_s is None
        else:
            slowest = float(e.joins_s(e.stream.kind.input_tokens).max())
            assert e.step_s < e.itl_s < e.points.itl_s(0.95).max() + slowest
    found = optmodels.solve(instance(p95(0.2), **apart))
    assert found.check.ok and found.report["replay"]["policies"], found.check.violations


def test_certification_counts_times_between_tokens():
    found = optmodels.solve(instance(p95(0.2), certify="replay", certification={"rounds": 1}))
    assert found.check.ok, found.check.violations
    lines = {x["metric"]: x for x in found.plan["certification"]["promises"]}
    assert lines.keys() == {"in_time", "itl_s"} and lines["itl_s"]["promised"] == 0.95
    assert lines["itl_s"]["requests"] > lines["in_time"]["requests"]
    document = found.model_dump(mode="json", by_alias=True)
    document["plan"]["certification"]["promises"].pop()
    assert "promises" in str(optmodels.check(document).violations)


def test_slots_have_no_times_between_tokens():
    with pytest.raises(InputError) as refused:
        optmodels.load(two_models(slo={"itl_s": 0.1}))
    assert any(m.path == "slo.itl_s" for m in refused.value.mistakes)
