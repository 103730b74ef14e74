"""A limit on the time between tokens of a service."""

from typing import Any

import pytest

import optmodels
from formulations.reserved_capacity.problem import ReservedCapacity
from optmodels.errors import InputError

SLO = {
    "ttft_s": {"at_most": 0.8, "percentile": 0.9}, "tpot_s": {"at_most": 0.1, "percentile": 0.9}, "queue_s": 0.1,
}  # fmt: skip
DAY = {"west": [20.0, 60.0, 10.0], "east": [60.0, 15.0, 30.0]}


def instance(itl: Any, **changes: Any) -> ReservedCapacity:
    return ReservedCapacity.model_validate({
        "formulation": "reserved_capacity", "schema": 1, "name": "two",
        "regions": [{"region": r, "utc_offset_h": 0} for r in DAY],
        "network": {"rtt_ms": {"west": {"east": 90.0}}, "local_rtt_ms": 5.0},
        "services": [{
            "name": "chat", "slo": SLO | ({} if itl is None else {"itl_s": itl}),
            "demand": {"kind": "inline", "unit": "requests_per_s", "by_region": DAY},
            "workload": {"model": "llama-3.1-8b", "input_tokens": 512, "output_tokens": 128},
        }],
        "machines": [
            {"machine": "box", "gpu": "l40s", "gpu_count": 2, "prices": {"on_demand": 3.0, "reserved_1y": 2.0}},
        ],
        "terms": ["reserved_1y", "on_demand"], "serving": "continuous", "latency": {"model": "roofline"},
    } | changes)  # fmt: skip


def test_a_tighter_limit_costs_more_and_is_checked():
    costs = []
    for at in (None, 0.2, 0.06, 0.04):
        limit = None if at is None else {"at_most": at, "percentile": 0.9}
        found = optmodels.solve(instance(limit))
        assert found.check.ok
        (line,) = found.plan["serving"]
        assert line["itl_s"] is None if at is None else line["itl_s"] <= at * (1 + 1e-9)
        costs.append(found.objective)
        if at is not None:
            assert any("ITL p90" in said for said in found.summary["slo"])
            document = found.model_dump(mode="json", by_alias=True)
            document["plan"]["serving"][0]["itl_s"] *= 0.9
            assert "ITL" in str(optmodels.check(document).violations)
    assert costs == sorted(costs) and costs[-1] > costs[0]


@pytest.mark.parametrize(("itl", "changes"), [(1e-4, {}), (0.1, {"serving": "static"})])
def test_what_is_refused(itl, changes):
    with pytest.raises(InputError) as refused:
        instance(itl, **changes).resolve()
    assert any(m.path == "services[0].slo.itl_s" for m in refused.value.mistakes)
