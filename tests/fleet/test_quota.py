"""Quota by GPU type: of all machines that have it, whatever they are called."""

from __future__ import annotations

import optmodels
from optmodels.plans.outcome import Result


def _fleet(gpu: str, at_most: int) -> dict:
    """Machines of one and of two x per machine, and a dearer one of y."""

    def machine(name, gpu, count, usd):
        return {"machine": name, "gpu": gpu, "gpu_count": count, "vram_gib": 24 * count, "ram_gib": 64,
                "prices": {"on_demand": usd}}  # fmt: skip

    x = {
        "title": "X",
        "fp16_flops": 1e14,
        "mem_bytes_per_s": 1e12,
        "vram_gib": 24,
        "pcie_bytes_per_s": 3e10,
        "link_bytes_per_s": 3e10,
    }
    return {
        "formulation": "fleet", "schema": 1, "name": "quota", "serving": "static", "gpus": {"x": x, "y": x},
        "workloads": [{
            "name": "w", "model": "llama-3.1-8b", "slo": {"deadline_s": 60},
            "buckets": [{"input_tokens": 128, "output_tokens": 128, "requests_per_s": 8}],
        }],
        "pool": {"machines": [machine("one", "x", 1, 1.0), machine("two", "x", 2, 2.0), machine("dear", "y", 1, 9.0)]},
        "markets": {"main": ["on_demand"]}, "strategies": {"families": ["high_end"], "batches": [4]},
        "quota": [{"gpu": gpu, "unit": "gpus", "at_most": at_most}],
    }  # fmt: skip


def _used(result: Result) -> dict[str, int]:
    found = {"x": 0, "y": 0}
    for d in result.plan["periods"][0]["deployments"]:
        for m in d["machines"]:
            found[m["gpu"]] += d["count"] * m["count"] * m["gpus_per_machine"]
    return found


def test_a_quota_counts_the_gpus_of_a_type_over_all_its_machines():
    free = optmodels.solve(_fleet("x", 1000))
    least = _used(free)["x"]
    assert least >= 2 and _used(free)["y"] == 0
    tight = optmodels.solve(_fleet("x", least - 1))
    assert tight.check.ok and tight.status == "optimal"
    assert _used(tight)["x"] <= least - 1 and _used(tight)["y"] >= 1
    assert tight.objective > free.objective
    (line,) = [x for x in tight.plan["periods"][0]["limits"] if x["name"].startswith("quota")]
    assert line["name"] == "quota of x, gpus" and line["value"] == _used(tight)["x"]


def test_the_check_notices_a_broken_quota_of_a_gpu():
    free = optmodels.solve(_fleet("x", 1000))
    verdict = optmodels.check(free, _fleet("x", _used(free)["x"] - 1))
    assert not verdict.ok
    assert any("quota of x" in v.requirement for v in verdict.violations)
