"""What a fleet file says in vain: refused where nobody knows the name, noted where another pool would."""

from __future__ import annotations

import pytest

import optmodels
from optmodels.errors import InputError
from optmodels.loading import load


def _fleet(**changes: object) -> dict:
    machines = [
        {"machine": name, "gpu": gpu, "region": region, "vram_gib": 24, "ram_gib": 64, "prices": {"on_demand": usd}}
        for name, gpu, region, usd in (("g6.xlarge", "l4", "us-east-1", 1.0), ("own", "a10g", "cellar", 2.0))
    ]
    return {
        "formulation": "fleet", "schema": 1, "name": "notes", "serving": "static",
        "workloads": [{
            "name": "w", "model": "llama-3.1-8b", "slo": {"deadline_s": 60},
            "buckets": [{"input_tokens": 128, "output_tokens": 128, "requests_per_s": 1}],
        }],
        "pool": {"machines": machines}, "strategies": {"families": ["high_end"], "batches": [4]}, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "path", "hint"),
    [
        ({"stock": [{"machine": "g6.xlrage", "at_most": 4}]}, "stock[0].machine", "g6.xlarge"),
        ({"stock": [{"machine": "own", "at_most": 4}, {"machine": "h100", "at_most": 4}]}, "stock[1].machine", None),
        ({"quota": [{"region": "us-esat-1", "at_most": 4}]}, "quota[0].region", "us-east-1"),
        ({"quota": [{"gpu": "a01g", "at_most": 4}]}, "quota[0].gpu", "a10g"),
        ({"interruptions": [{"machine": "own.*", "per_hour": 0.1}]}, "interruptions[0].machine", "own"),
    ],
)
def test_a_pattern_that_nobody_knows_is_refused_with_what_is_there(lines, path, hint):
    with pytest.raises(InputError) as refused:
        load(_fleet(**lines))
    (mistake,) = refused.value.mistakes
    assert mistake.path == path and "that the catalogue knows: " in mistake.expected
    assert mistake.hint == (hint and f"did you mean {hint}?")


def test_what_another_pool_would_have_is_noted_and_survives_the_document():
    lines = {
        "stock": [{"machine": "p5.*", "at_most": 2}, {"machine": "g6.*", "at_most": 9}],
        "quota": [{"gpu": "h100", "region": "eu-*", "unit": "gpus", "at_most": 8}, {"machine": "*", "at_most": 9}],
        "interruptions": [{"machine": "own", "region": "us-*", "per_hour": 0.1}],
    }
    result = optmodels.solve(_fleet(**lines))
    assert result.report["notes"] == [
        "stock[0] is about nothing here: no machine of the pool has machine p5.*",
        "quota[0] is about nothing here: no machine of the pool has gpu h100, region eu-*",
        "interruptions[0] is about nothing here: no machine of the pool has machine own, region us-*",
    ]
    assert optmodels.check(result).ok  # the document says the same of the instance that it carries


def test_a_measured_point_may_be_gone_so_that_its_line_is_noted():
    measured = [{"name": "p", "usd_per_hour": 1.0, "requests_per_s": {"w/128x128": 2.0}}]
    found = load(_fleet(pool=None, points=measured, stock=[{"machine": "q", "at_most": 3}])).resolve()
    assert found.notes == ("stock[0] is about nothing here: no machine of the pool has machine q",)


def test_a_workload_without_a_promise_and_a_service_at_any_price_are_noted():
    bare = _fleet(objective="max_served")
    bare["workloads"][0]["slo"] = {}
    assert load(bare).resolve().notes == (
        "w: nothing is promised to its requests (slo has no limit)",
        "objective: max_served without budget_usd_per_hour, stock or quota serves at any price",
    )
    assert load(_fleet(objective="max_served", budget_usd_per_hour=9)).resolve().notes == ()


def test_a_long_limit_without_a_unit_is_asked_about_quoted_or_not():
    slow = _fleet()
    for value in (200, "200", {"at_most": 200, "percentile": 0.95}):
        slow["workloads"][0]["slo"] = {"ttft_s": value}
        with pytest.raises(InputError) as error:
            load(slow, computed=False)
        (mistake,) = error.value.mistakes
        assert mistake.path.startswith("workloads[0].slo.ttft_s") and mistake.value == 200
        assert mistake.expected == "a TTFT with its unit: '200 ms' or '200 s'"
        assert load(slow).workloads[0].slo.ttft_s is not None
    for value in ("200 s", "200 ms", "200s"):
        slow["workloads"][0]["slo"] = {"ttft_s": value, "tpot_s": 0.2}
        assert load(slow, computed=False).resolve().notes == ()
