"""Reserved capacity for requests of several lengths: brute force over levels, traces, the check, replay, refusals."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from mixture_levels import Mixture

import optmodels
from formulations.reserved_capacity.check import check
from formulations.reserved_capacity.problem import ReservedCapacity
from formulations.reserved_capacity.replay import RegionReplayOptions, replay
from formulations.reserved_capacity.throughput import hardware_of, on_engines
from optmodels import catalog
from optmodels.engine.continuous import seconds_and_quantile
from optmodels.engine.costs import engine_costs
from optmodels.errors import InputError

LENGTHS = ((100, 20, 3.0), (300, 1, 1.0), (1000, 320, 2.0), (400, 220, 4.0))
LISTED = [{"input_tokens": i, "output_tokens": o, "share": f} for i, o, f in LENGTHS]
SLO = {
    "ttft_s": {"at_most": 0.8, "percentile": 0.95}, "tpot_s": {"at_most": 0.1, "percentile": 0.9}, "queue_s": 0.1,
}  # fmt: skip
LATE = SLO | {"deadline_s": {"at_most": 12.0, "percentile": 0.95}}
MEANS = {"ttft_s": 0.8, "tpot_s": 0.08, "queue_s": 0.1, "deadline_s": 8.0}


def instance(slo: dict[str, Any] = SLO, workload: Any = None, **changes: Any) -> ReservedCapacity:
    day = {"west": [20.0, 60.0, 10.0], "east": [60.0, 15.0, 30.0]}
    return ReservedCapacity.model_validate({
        "formulation": "reserved_capacity", "schema": 1, "name": "two",
        "regions": [{"region": r, "utc_offset_h": 0} for r in day],
        "network": {"rtt_ms": {"west": {"east": 90.0}}, "local_rtt_ms": 5.0},
        "services": [{
            "service": "chat", "slo": slo,
            "demand": {"kind": "inline", "unit": "requests_per_s", "by_region": day},
            "workload": {"model": "llama-3.1-8b"} | (workload or {"lengths": LISTED}),
        }],
        "machines": [
            {"machine": "box", "gpu": "l40s", "gpu_count": 2, "prices": {"on_demand": 3.0, "reserved_1y": 2.0}},
        ],
        "terms": ["reserved_1y", "on_demand"], "serving": "continuous", "latency": {"model": "roofline"},
    } | changes)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slo", "cached", "gpus"),
    [(SLO, 0.4, 2), (LATE, 0.4, 1), (MEANS, 0.0, 2)],
    ids=["percentiles", "deadline", "means"],
)
def test_a_machine_serves_what_brute_force_finds(slo: dict[str, Any], cached: float, gpus: int) -> None:
    """Most requests/s of a machine for users next to it; of levels that carry as much the shorter request.

    Slow: brute force tries every iteration time and wait of an engine.
    """
    machine = {"machine": "box", "gpu": "l40s", "gpu_count": gpus, "prices": {"on_demand": 3.0, "reserved_1y": 2.0}}
    problem = instance(slo, {"lengths": LISTED, "cached_input_share": cached}, machines=[machine])
    service, level, case = problem.services[0], problem.level(), problem.resolve()
    assert level is not None and level.engine is not None
    of, limits = on_engines(service, level), level.engine
    gpu, _, vram = hardware_of(problem.machines[0])
    (ttft, q_ttft), tpot, (within, q_e2e) = (
        seconds_and_quantile(x) for x in (service.slo.ttft_s, service.slo.tpot_s, service.slo.deadline_s)
    )
    best = (0.0, 0.0, 0.0)
    for tp in (1, 2)[:gpus]:
        e = engine_costs(of, limits, catalog.gpus()[gpu or ""], gpu or "", tp, vram)
        asked = (1e9, q_ttft), tpot, (1e9, q_e2e), 0.1, (ttft - 0.105, within - 0.005)
        kept = asked[0], tpot, (within - 0.005, q_e2e), 0.1, asked[4]  # waits within the deadline, too
        of_both = [Mixture(e, limits, LENGTHS, cached).rows(*each) for each in (asked, kept)]
        for row in itertools.chain(*of_both):
            if 0.005 + 0.1 + row.first_s <= ttft and 0.005 + row.deadline_s <= within:
                best = max(best, (gpus // tp * row.rate, -row.deadline_s, row.first_s))
    x = case.level[0, 0, 0, 0]  # of users next to the machines
    assert case.pair_rps[0, 0, 0, 0] == pytest.approx(best[0], rel=2e-4)  # the best level is found by halving
    assert case.prefill_s_at[0, 0, x] == pytest.approx(best[2], rel=2e-4)
    if service.slo.deadline_s is not None:
        assert case.e2e_s_at[0, 0, x] == pytest.approx(-best[1], rel=2e-4)
    found = optmodels.solve(problem)
    assert found.check is not None and found.check.ok
    assert found.report["notes"] == ([] if slo is MEANS else ["chat: percentiles are over 4 lengths"])


def test_one_class_is_the_two_numbers() -> None:
    one = {"lengths": [{"input_tokens": 512, "output_tokens": 128, "share": 3}]}
    two, listed = (optmodels.solve(instance(LATE, w)) for w in ({"input_tokens": 512, "output_tokens": 128}, one))
    assert two.plan == listed.plan and two.report["notes"] == listed.report["notes"]


def test_the_check_recomputes_what_all_see() -> None:
    problem = instance(LATE)
    plan = optmodels.solve(problem).plan
    assert plan is not None and check(problem, plan).ok
    for key in ("ttft_s", "tpot_s", "e2e_s", "requests_per_s"):
        wrong = copy.deepcopy(plan)
        wrong["serving"][0][key] *= 0.9
        assert not check(problem, wrong).ok, key
    longer = [x | {"output_tokens": x["output_tokens"] + 40} for x in LISTED]
    assert not check(instance(LATE, {"lengths": longer}), plan).ok


def test_lengths_of_a_trace(tmp_path: Path) -> None:
    rows = [(0, 100, 20), (1, 120, 30), (2, 2000, 300), (9, 100, 40)]
    text = "".join(f"{t},{i},{o}\n" for t, i, o in rows)
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + text)
    data = json.loads(instance(LATE).model_dump_json(by_alias=True, exclude_unset=True))
    data["services"][0]["workload"]["lengths"] = {"trace": "t.csv"}
    (tmp_path / "i.yaml").write_text(yaml.safe_dump(data))
    problem = optmodels.load(tmp_path / "i.yaml")
    found = optmodels.solve(problem)
    assert found.check is not None and found.check.ok
    alone = problem.inline().model_dump(mode="json", by_alias=True)
    cut = [{"input_tokens": 107, "output_tokens": 30, "share": 0.75},
           {"input_tokens": 2000, "output_tokens": 300, "share": 0.25}]  # fmt: skip
    assert alone["services"][0]["workload"]["lengths"] == cut
    assert found.plan is not None and check(ReservedCapacity.model_validate(alone), found.plan).ok
    data["services"][0]["workload"]["lengths"] = {"trace": "no.csv"}
    (tmp_path / "i.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(InputError, match=r"services\[0\]\.workload\.lengths\.trace.*an existing file"):
        optmodels.load(tmp_path / "i.yaml").resolve()


def test_replays_draw_lengths_by_their_shares() -> None:
    problem = instance(LATE, {"lengths": LISTED, "cached_input_share": 0.2})
    plan = optmodels.solve(problem).plan
    assert plan is not None
    seen: dict[str, Any] = {}
    options = RegionReplayOptions(seconds=60.0, keep=lambda _, columns: seen.update(columns))
    found = replay(problem, plan, None, options)
    assert any("drawn one by one" in note for note in found["notes"])
    assert (np.diff(seen["arrival_s"]) >= 0).all()
    for prompt, answer, share in LENGTHS:
        of = (seen["input_tokens"] == prompt) & (seen["output_tokens"] == answer)
        assert of.mean() == pytest.approx(share / 10, abs=0.03)
    demand = problem.resolve().demand_rps[found["hour"], :, 0]
    east = (seen["region"] == "east").mean()
    assert east == pytest.approx(demand[1] / demand.sum(), abs=0.03)


def test_a_plan_for_lengths_keeps_its_promises_in_replay() -> None:
    """Replicas step as long as what they hold, and get as many requests between two probes as they serve."""
    problem = instance(LATE)
    plan = optmodels.solve(problem).plan
    assert plan is not None
    found = replay(problem, plan, None, RegionReplayOptions(seconds=120.0))
    (chat,), line = found["services"], plan["serving"][0]
    each = line["requests_per_s"] / line["replicas_per_machine"]
    assert each > 5 and found["routing"]["burst"] == np.ceil(0.2 * each)  # more than one request
    assert chat["throughput_over_demand"] == pytest.approx(1.0, abs=0.05)
    assert chat["within_ttft_slo"] > 0.95 and chat["within_deadline"] > 0.95


def test_static_batches_have_one_length() -> None:
    with pytest.raises(InputError, match=r"services\[0\]\.workload\.lengths: .*serving: static"):
        instance({"ttft_s": 0.8, "tpot_s": 0.1, "queue_s": 0.1}, serving="static").resolve()
