"""For each level at a tighter limit a looser one has a level that serves its buckets and holds what it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from formulations.fleet.engines import EngineKind, FleetLevels, levels
from optmodels.loading import load

BUCKETS = ((300, 200, 4.0), (2000, 60, 1.0), (60, 2, 1.0), (900, 400, 2.0), (4000, 100, 0.3), (120, 30, 3.0))
KINDS = [EngineKind("l40s", 1, 48.0), EngineKind("h100", 2, 80.0)]


def levels_of(slo: dict[str, Any], buckets: int, **workload: Any) -> FleetLevels:
    case = load({
        "formulation": "fleet", "schema": 1, "serving": "continuous", "latency": {"model": "default", "engine": "vllm"},
        "workloads": [{
            "name": "w", "model": "llama-3.1-8b", "slo": slo, **workload,
            "buckets": [{"input_tokens": i, "output_tokens": o, "requests_per_s": r} for i, o, r in BUCKETS[:buckets]],
        }],
        "pool": {"machines": [
            {"machine": "a", "gpu": "l40s", "gpu_count": 1, "vram_gib": 48, "prices": {"on_demand": 1.0}},
            {"machine": "b", "gpu": "h100", "gpu_count": 2, "vram_gib": 160, "prices": {"on_demand": 6.0}},
        ]},
        "markets": {"main": ["on_demand"]},
    }).resolve()  # fmt: skip
    return levels(case, list(range(buckets)), KINDS)[0]


def without(tight: FleetLevels, loose: FleetLevels) -> list[int]:
    """Rows of the one for which the other has none that holds what they hold."""
    found = []
    for p in range(len(tight.engine)):
        mine = tight.capacities[:, :, p]
        serves = np.isfinite(mine[0])
        able = (loose.engine == tight.engine[p]) & np.isfinite(loose.capacities[0][serves]).all(axis=0)
        able &= (loose.late[serves] <= tight.late[serves, p, None]).all(axis=0)
        other = loose.capacities[:, serves][:, :, able]
        own = mine[:, serves]
        # A capacity of q is held where it takes no more than one and the same capacity of p, for every bucket.
        held = (other[:, None] <= own[None, :, :, None] * (1 + 1e-9)).all(axis=2).any(axis=1).all(axis=0)
        if not held.any():
            found.append(p)
    return found


@pytest.mark.parametrize("buckets", [1, 3, 6])
@pytest.mark.parametrize("key", ["ttft_s", "tpot_s", "itl_s", "deadline_s"])
def test_levels_of_a_looser_limit_hold_what_those_of_a_tighter_one_do(key: str, buckets: int) -> None:
    limits: dict[str, Any] = {"ttft_s": {"at_most": 0.6, "percentile": 0.95}, "tpot_s": 0.03, "deadline_s": 12.0}
    limits |= {"itl_s": {"at_most": 0.07, "percentile": 0.9}} if key == "itl_s" else {}
    tight = levels_of(limits, buckets)
    assert len(tight.engine) > 0
    at = limits[key]
    for factor in (1.01, 1.07, 1.4, 3.0, 8.0):
        longer = at | {"at_most": at["at_most"] * factor} if isinstance(at, dict) else at * factor
        loose = levels_of(limits | {key: longer}, buckets)
        assert without(tight, loose) == [], factor
    if key != "deadline_s" and buckets > 1:  # the other way round some have none
        assert without(loose, tight) != []


def test_soft_limits_too() -> None:
    soft = {"soft": {"usd_per_1000_requests": 1.0, "up_to": 1.5}}
    limits: dict[str, Any] = {"ttft_s": {"at_most": 0.6, "percentile": 0.95}, "tpot_s": 0.03}
    tight = levels_of(limits, 3, **soft)
    assert tight.late.any()
    assert without(tight, levels_of(limits | {"tpot_s": 0.033}, 3, **soft)) == []
    wider = {"soft": soft["soft"] | {"up_to": 1.7}}
    assert without(tight, levels_of(limits, 3, **wider)) == []
